"""Which loops of users' kernels are kept from being unrolled on CPUs, where that takes long."""

from __future__ import annotations

import re

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.msl import translate

HEAD = """#include <metal_stdlib>
using namespace metal;
inline float long_one(float x) { return sin(x) * cos(x) + exp(-x * x) * log(1 + x * x) + sqrt(x * x + 1) + tan(x); }
inline float nth(thread const float* values, int n) { return values[n]; }
typedef struct { half scale; packed_char4 values[8]; } Block;
"""
WORK = "s += long_one(s); s -= long_one(s + 1); s *= long_one(s + 2); s += long_one(s + 3);"


def kernel(body: str) -> str:
    return (
        f"{HEAD}kernel void f(device float* o, device const Block* blocks, constant int& n,\n"
        f"  uint i [[thread_position_in_grid]], ushort lane [[thread_index_in_simdgroup]]) {{\n"
        f"  float s = o[i]; float a[8] = {{s}}; float4 v = s; threadgroup float t[64]; simdgroup_float8x8 m[8];\n"
        f"  {body}\n o[i] = s + a[0] + v.x; }}"
    )


def rolled(source: str) -> list[bool]:
    """Whether each loop of a translation is kept from being unrolled."""
    text = translate(source, "opencl", launch="row").source
    text = text[text.index("__kernel void") :]
    return [bool(before) for before in re.findall(r'(_Pragma\("clang loop unroll\(disable\)"\)\s+)?\bfor \(', text)]


@pytest.mark.parametrize(
    "body",
    [
        f"for (int k = 0; k < 8; k++) {{ {WORK} }}",
        f"for (int k = 0; k < n; k++) {{ {WORK} }}",
        f"for (int k = 0; k < 8; k++) {{ o[k] = s; t[k] = o[k] + t[2 * k]; {WORK} }}",
        f"for (int k = 0; k < 8; k++) {{ device const Block& b = blocks[k]; s += b.values[k].x; {WORK} }}",
        f"for (int k = 8; k > 0; k >>= 1) {{ a[3] += v[1]; {WORK} }}",
        f"const int last = 4; for (ushort k = 1; k <= last * 2; k += 2) {{ {WORK} }}",
        f"for (int k = 0; k < 8; k++) {{ const int j = 7 - k; s += simd_sum(j) + simd_shuffle_up(j, 1); {WORK} }}",
    ],
)
def test_long_loops_over_no_registers_are_not_unrolled(body: str) -> None:
    assert rolled(kernel(body)) == [True]


@pytest.mark.parametrize(
    "body",
    [
        "for (int k = 0; k < 4; k++) s += o[k];",
        f"for (int k = 0; k < 8; k++) {{ a[k] += s; {WORK} }}",
        f"for (int k = 0; k < 4; k++) {{ v[k] += s; {WORK} }}",
        f"for (int k = 0; k < 8; k++) {{ m[k] = make_filled_simdgroup_matrix<float, 8, 8>(0); {WORK} }}",
        f"for (int k = 0; k < 8; k++) {{ const int j = 7 - k; s += a[j]; {WORK} }}",
        f"for (int k = 0; k < 8; k++) {{ s += nth(a, k); {WORK} }}",
        f"for (ushort d = 16; d > 0; d /= 2) {{ s += simd_shuffle_xor(s, d); {WORK} }}",
        f"for (ushort d = 16; d > 0; d /= 2) {{ const ushort e = d; s += simd_broadcast(s, e); {WORK} }}",
        f"thread float* p = a; for (int k = 0; k < 8; k++) {{ s += *p++; {WORK} }}",
        f"\n#pragma unroll\nfor (int k = 0; k < 8; k++) {{ {WORK} }}",
        f"\n#pragma clang loop unroll_count(2)\nfor (int k = 0; k < 8; k++) {{ {WORK} }}",
    ],
)
def test_loops_over_registers_short_ones_and_marked_ones_are_left_alone(body: str) -> None:
    assert rolled(kernel(body)) == [False]


@pytest.mark.parametrize("mark", ["\n#pragma unroll\n", "\n#pragma clang loop unroll(full)\n", '_Pragma("unroll") '])
def test_huge_loops_are_not_unrolled_though_they_are_marked(mark: str) -> None:
    for turns, is_rolled in ((2, False), (64, True)):
        body = f"{mark}for (int k = 0; k < {turns}; k++) {{ {WORK} }}"
        text = translate(kernel(body), "opencl", launch="row").source
        assert text.count("unroll") == 1
        assert ("unroll(disable)" in text) == is_rolled
    body = f"{mark}for (int k = 0; k < 64; k++) {{ a[k & 7] += 1; {WORK} }}"
    assert "unroll(disable)" not in translate(kernel(body), "opencl", launch="row").source


@pytest.mark.parametrize(
    ("work", "is_rolled"),
    [
        ("t[k] = lane + k < n ? o[lane + k] : 0;", True),
        ("if (lane + k < n) { o[lane + k] = s; s += 1; }", True),
        ("if (lane + k < n) s += 1; else s += o[k];", True),
        ("t[k] = lane + k < n ? s : 0; s += o[k];", False),
        ("if (lane + k < n) { s += 1; } o[k] = s;", False),
        ("a[k] = lane + k < n ? o[lane + k] : 0;", False),
    ],
)
def test_marked_loops_with_memory_under_conditions_are_soon_huge(work: str, is_rolled: bool) -> None:
    source = kernel(f"\n#pragma unroll\nfor (int k = 0; k < 8; k++) {{ {work} }}")
    assert ("unroll(disable)" in translate(source, "opencl", launch="row").source) == is_rolled


def test_function_constants_are_numbers() -> None:
    for index, is_rolled in (("k + 3", False), ("3", True)):
        source = kernel(f"for (int k = -RADIUS; k <= RADIUS; k++) {{ a[{index}] += o[i + k]; {WORK} }}")
        source = source.replace("kernel void", "constant int RADIUS [[function_constant(0)]];\nkernel void")
        text = translate(source, "opencl", launch="row", function_constants={"RADIUS": 3}).source
        assert ("unroll(disable)" in text) == is_rolled


def test_members_and_second_constants_of_templates_are_known() -> None:
    """What a loop over registers counts to, and that a pointer of a template's class is to memory."""
    source = f"""{HEAD}
template <typename T> struct Loader {{
    threadgroup T* to;
    const device T* from;
    void load() const {{ for (int k = 0; k < 8; k++) {{ to[k] = from[k]; float s = to[k]; {WORK} }} }}
}};
template <typename T, int M> kernel void f(device T* o, uint i [[thread_position_in_grid]]) {{
    constexpr int TM = M / (2 * 2), TN = M / (4 * 2);
    float a[TN] = {{}}; float s = TM;
    for (int k = 0; k < TN; k++) {{ a[k] += s; {WORK} }}
    threadgroup T t[8]; Loader<T> loader{{t, o}}; loader.load(); o[i] = a[0] + t[0];
}}
template [[host_name("f8")]] kernel void f<float, 8>(device float*, uint);"""
    text = translate(source, "opencl", launch="row").source
    text = text[text.index("struct Loader") :]
    marked = re.findall(r'(_Pragma\("clang loop unroll\(disable\)"\)\s+)?for \(int k', text)
    assert [bool(each) for each in marked] == [True, False]


def test_a_register_beside_a_long_inner_loop_may_be_memory() -> None:
    body = f"for (int k = 0; k < 4; k++) {{ for (int j = 0; j < 8; j++) {{ s += o[j]; {WORK} }} a[k] += s; }}"
    assert rolled(kernel(body)) == [True, True]
    hot = "for (int q = 0; q < n; q++) for (int j = 0; j < 8; j++) a[j] += o[q];"
    assert rolled(kernel(f"{body} {hot}"))[:2] == [False, True]


@pytest.mark.parametrize(
    ("declared", "element", "is_rolled"),
    [
        ("device const char* p = blocks[k].bytes + lane;", "p[j]", True),
        ("const uint q = i * 8; device const half* p = (device const half*)o + k + q;", "p[2 * j + 1]", True),
        ("device const half* p = (device const half*)o + k;", "p[j]", False),
        ("device const half* p = (device const half*)o + k + i;", "p[32 * j]", False),
        ("device const half* p = (device const half*)o + k;", "p[j * n + i]", False),
        ("device const packed_char4* p = blocks[k + i].values;", "p[j].x", False),
        ("device const float* p = o + k + i;", "p[j]", False),
        ("thread const char* p = (thread const char*)a;", "p[j]", False),
    ],
)
def test_a_register_beside_runs_of_short_elements_may_be_memory(declared: str, element: str, is_rolled: bool) -> None:
    inner = f"for (int j = 0; j < 8; j++) x += {element} * v[j & 3];"
    body = f"for (int k = 0; k < 2; k++) {{ {declared} float x = 0; {inner} a[k] += x; }}"
    for mark in ("", "\n#pragma unroll\n"):
        text = kernel(mark + body).replace("half scale;", "half scale; char bytes[8];")
        assert ("unroll(disable)" in translate(text, "opencl", launch="row").source) == is_rolled


def test_what_functions_are_passed_may_be_a_threads_own() -> None:
    helper = """template <int N> float g(device const char* bytes, float4 v, int il) {
    float a[8];
    for (int k = 0; k < 2; k++) {
        device const char* p = bytes + k * 64 + il;
        float x = 0;
        for (int j = 0; j < 8; j++) x += p[j] * v[j & 3];
        a[k] += x;
    }
    return a[0];
}
"""
    for argument, is_rolled in (("int(lane) / 4", True), ("n", False)):
        source = kernel(f"s += g<3>((device const char*)blocks, v, {argument});")
        text = translate(source.replace("kernel void", f"{helper}kernel void"), "opencl", launch="row").source
        assert ("unroll(disable)" in text) == is_rolled


def test_shaders_of_the_package_are_left_as_they_are() -> None:
    assert "unroll" not in translate(kernel(f"for (int k = 0; k < 8; k++) {{ {WORK} }}"), "opencl").source
    assert "unroll" not in translate(kernel(f"for (int k = 0; k < 8; k++) {{ {WORK} }}"), "cuda", launch="box").source


def test_deep_loops_and_long_chains_of_calls_are_looked_at_soon() -> None:
    loops = "".join(f"for (int k{d} = 0; k{d} < 2; k{d}++) {{" for d in range(60)) + WORK + "}" * 60
    chain = "".join(f"inline float g{d}(float x) {{ return g{d + 1}(x) + 1; }}\n" for d in range(400))
    early = "".join(f"inline float g{d}(float x);\n" for d in range(401)) + chain
    early += "inline float g400(float x) { return x; }\n"
    source = kernel(f"for (int k = 0; k < n; k++) {{ s += g0(s); {WORK} }} {loops}")
    assert rolled(source.replace("kernel void", early + "kernel void"))[0]


def test_rolled_loops_give_the_same_numbers() -> None:
    work = "s = max(s, 0 * long_one(s)); " * 4
    source = kernel(f"for (int k = 0; k < 8; k++) {{ s += 0.5f * k; {work} }}")
    assert rolled(source) == [True]
    out = np.arange(40, dtype=np.float32)
    mg.compile(source).function("f")(40, out, np.zeros(34, np.uint8), np.int32(2))
    x = np.arange(40)
    np.testing.assert_array_equal(out, x + 14 + x + x)
