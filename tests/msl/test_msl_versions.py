"""Versions of the language after 2.3: refused by default with the version they need, and carried on request."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.errors import ShaderError
from mpsgrad.msl import translate
from mpsgrad.msl.lint import lint

# What is used, the version it came with, a body, what it stores in out[0] of a float array, and where its name stands.
LATER = [
    ("bfloat", "3.1", "float x = 1.01; bfloat b = bfloat(x); out[0] = b;", 1.0078125),
    ("bfloat", "3.1", "bfloat b = bfloat(3.0), c = 2; b *= c; b += 1; out[0] = b * 0.5 + (b > c) + sizeof(b);", 3.5 + 1 + 2),
    ("bfloat", "3.1", "bfloat b = -bfloat(1.0h) / 3; out[0] = as_type<ushort>(b); out[0] += as_type<bfloat>(ushort(0x3f80));", 0xBEAB + 1),
    ("bfloat4", "3.1", "bfloat4 v = bfloat4(1, 2, 3, 4); v = v * bfloat(0.5) + bfloat4(1); float4 f = float4(v); out[0] = f.x + 10 * v.y + 100 * f.z + v.w;", 1.5 + 20 + 250 + 3),
    ("bfloat2", "3.1", "bfloat2 v = bfloat2(float2(1.01, 2)); v.xy = v.yx; bool2 m = v > bfloat2(1.5); out[0] = float(v.x) + m.x * 10 + m.y * 100 + v.yy.x;", 2 + 10 + 1.0078125),
    ("bfloat3", "3.1", "bfloat3 v(1, 2, 3); v.z += 1; v[0] = 5; half3 h = half3(v); out[0] = dot(float3(v), float3(1, 10, 100)) + h.x + sizeof(v);", 425 + 5 + 8),
    ("bfloat", "3.1", "vec<bfloat, 4> v = vec<bfloat, 4>(2); out[0] = v.x + float(numeric_limits<bfloat>::epsilon()) + is_floating_point<bfloat>::value;", 3.0078125),
    ("1.5bf", "3.1", "out[0] = 1.5bf * 2;", 3),
    ("M_PI_BF", "3.1", "out[0] = M_PI_BF;", 3.140625),
    ("a lambda expression", "3.2", "float k = 3; auto f = [k](float x) { return x * k; }; auto g = [&](float x) { k += x; return k; }; out[0] = f(2) + g(1);", 10),
    ("a lambda expression", "3.2", "out[0] = [](int a, int b) -> int { return a - b; }(9, 4);", 5),
    ("simd_shuffle_and_fill_up", "2.4", "out[i] = simd_shuffle_and_fill_up(float(i), 100.0 + i, 2); if (i == 0) out[0] += out[0] - 130;", 130),
    ("simd_shuffle_and_fill_down", "2.4", "float r = simd_shuffle_and_fill_down(float(i), 100.0 + i, 3, 8); threadgroup_barrier(mem_flags::mem_device); out[i] = r; if (i == 7) out[0] = r;", 102),
    ("quad_shuffle_and_fill_up", "2.4", "float r = quad_shuffle_and_fill_up(float(i), 100.0 + i, 1); if (i == 4) out[0] = r;", 107),
    ("quad_shuffle_and_fill_down", "2.4", "float r = quad_shuffle_and_fill_down(float(i), 100.0 + i, 1); if (i == 3) out[0] = r;", 100),
    ("atomic", "2.4", "threadgroup atomic<int> n; if (i == 0) atomic_store_explicit(&n, 5, memory_order_relaxed); threadgroup_barrier(mem_flags::mem_threadgroup);"
     "atomic_fetch_add_explicit(&n, 1, memory_order_relaxed); threadgroup_barrier(mem_flags::mem_threadgroup); if (i == 0) out[0] = atomic_load_explicit(&n, memory_order_relaxed);", 37),
    ("atomic_float", "3.0", "device atomic_float* a = (device atomic_float*)out; atomic_fetch_add_explicit(a, 0.5, memory_order_relaxed);", 16),
    ("atomic_float", "3.0", "device atomic_float* a = (device atomic_float*)out; if (i == 0) { atomic_store_explicit(a, 4.0, memory_order_relaxed); float e = 4; bool ok = atomic_compare_exchange_weak_explicit(a, &e, 6.0, memory_order_relaxed, memory_order_relaxed);"
     " float old = atomic_exchange_explicit(a, atomic_load_explicit(a, memory_order_relaxed) + ok, memory_order_relaxed); atomic_fetch_sub_explicit(a, old / 2, memory_order_relaxed); }", 4),
    ("atomic", "2.4", "device atomic<float>* a = (device atomic<float>*)out; if (i == 0) atomic_fetch_add_explicit(a, 2, memory_order_relaxed);", 2),
    ("os_log_default", "3.2", 'int k = 1; os_log_default.log("k is %d", k++); os_log l("subsystem", "category"); l.log_error("k is %d", k++); out[0] = k;', 3),
    ("atomic_thread_fence", "3.2", "if (i == 0) out[0] = 3; atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);", 3),
]  # fmt: skip

HEAD = (
    "[[max_total_threads_per_threadgroup(32)]] kernel void f(device float* out, uint i [[thread_position_in_threadgroup]]) {\n"
)


@pytest.mark.parametrize(("what", "version", "body", "expected"), LATER, ids=lambda v: v[:60] if isinstance(v, str) else "")
def test_later_versions_on_request(what: str, version: str, body: str, expected: float) -> None:
    source = f"{LIBRARY}{HEAD}{body}\n}}\n"
    needed = "3.0" if "atomic<float>" in body else version
    function = mg.compile(source, language_version=needed).function("f")
    out = np.zeros(32, np.float32)
    function(32, out)
    assert out[0] == np.float32(expected)
    compile_for_cuda(translate(source, "cuda", definitions={"__METAL_VERSION__": needed.replace(".", "") + "0"}).source, "later.metal")
    before = {"2.4": "2.3", "3.0": "2.4", "3.1": "3.0", "3.2": "3.1"}[version]
    for refused in {before, "2.3"}:
        with pytest.raises(ShaderError, match=f"{what}'? needs Metal {version} or later, and this is compiled as {refused}") as raised:
            mg.compile(source, language_version=refused)
        assert raised.value.line == 4
        written = what if what[:2] != "a " else "["
        assert body[raised.value.column - 1 :].startswith(written)


def test_names_of_later_versions_are_the_users_before() -> None:
    source = LIBRARY + (
        "typedef struct { ushort bits; } bfloat; struct atomic_float { float v; };\n"
        "float simd_shuffle_and_fill_up(float x, float y, int n) { return x + y + n; }\n"
        "kernel void f(device float* out) { bfloat b = {3}; atomic_float atomic = {4}; int bfloat2 = 5;\n"
        "  out[0] = b.bits + atomic.v + simd_shuffle_and_fill_up(1, 2, 3) + bfloat2; }\n"
    )
    out = np.zeros(1, np.float32)
    mg.compile(source).function("f")(1, out)
    assert out[0] == 18
    compile_for_cuda(translate(source, "cuda").source, "names.metal")


LOGGING = """
#if __METAL_VERSION__ >= 320
namespace own { using os_log = metal::os_log; }
#else
namespace own {
struct os_log {
  constexpr os_log(constant char*, constant char*) constant {}
  template <typename... A> void log_debug(constant char*, A...) const constant {}
};
}
#endif
constant own::os_log logger("subsystem", "category");
kernel void f(device int* out) { logger.log_debug("it is %d", out[0]++); }
"""


@pytest.mark.parametrize("version", ["3.1", "3.2"])
def test_messages_are_dropped_and_their_arguments_evaluated(version: str) -> None:
    assert not [each for each in lint(LIBRARY + LOGGING, language_version=version) if each.severity == "error"]
    out = np.zeros(1, np.int32)
    mg.compile(LIBRARY + LOGGING, language_version=version).function("f")(1, out)
    assert out[0] == 1
    definitions = {"__METAL_VERSION__": version.replace(".", "") + "0"}
    compile_for_cuda(translate(LIBRARY + LOGGING, "cuda", definitions=definitions).source, "logging.metal")


@pytest.mark.parametrize(("version", "expected"), [("2.3", 230), ("2.4", 240), ("3.0", 301), ("3.2", 321)])
def test_macros_of_a_version(version: str, expected: int) -> None:
    source = (
        "#if defined(__METAL__)\nconstant int later = 1;\n#elif defined(__METAL_MACOS__)\nconstant int later = 0;\n#endif\n"
        "kernel void f(device int* out) { out[0] = __METAL_VERSION__ + later; }"
    )
    out = np.zeros(1, np.int32)
    mg.compile(source, language_version=version).function("f")(1, out)
    assert out[0] == expected


@pytest.mark.parametrize(("version", "expected"), [("2.3", 1), ("3.0", 1), ("3.1", 3)])
def test_macros_of_what_a_version_has(version: str, expected: int) -> None:
    source = LIBRARY + (
        "#if __HAVE_SIMDGROUP_MATRIX__\nconstant int matrices = 1;\n#endif\n"
        "#if defined(__HAVE_BFLOAT__)\nusing T = bfloat;\nconstant int more = 2;\n#else\nusing T = float;\n"
        "constant int more = 0;\n#endif\nkernel void f(device int* out) { out[0] = int(T(matrices + more)); }"
    )
    out = np.zeros(1, np.int32)
    mg.compile(source, language_version=version).function("f")(1, out)
    assert out[0] == expected
