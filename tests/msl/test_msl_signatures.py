"""How kernel functions are found, what is read from their signatures, and that they run as signed."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY, run

from mpsgrad.errors import ShaderError
from mpsgrad.msl import Argument, translate


def signatures(source: str) -> dict:
    return dict(translate(LIBRARY + source, "opencl", filename="k.metal").kernels)


@pytest.mark.parametrize(
    "head",
    [
        "kernel void twice",
        "[[kernel]] void twice",
        "[[kernel]] [[max_total_threads_per_threadgroup(64)]] void twice",
        "[[max_total_threads_per_threadgroup(64)]] kernel void twice",
        "[[max_total_threads_per_threadgroup(32 * 2), kernel]] void twice",
        "kernel void [[max_total_threads_per_threadgroup(WIDTH)]] twice",
        "static inline kernel void twice",
    ],
)
def test_attributes_may_stand_anywhere(head: str) -> None:
    source = (
        f"constant constexpr int WIDTH = 64;\n{head}(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],\n"
        "  uint i [[thread_position_in_grid]]) { if (i < 100) y[i] = 2.0 * x[i]; }"
    )
    assert signatures(source)["twice"].threadgroup_size == (64 if "max_total" in head else None)
    x = np.arange(100, dtype=np.float32)
    np.testing.assert_array_equal(run(LIBRARY + source, "twice", x, np.zeros_like(x), threads=100)[1], 2 * x)


def test_an_attribute_after_the_parameters() -> None:
    found = signatures("kernel void f(device float* x) [[max_total_threads_per_threadgroup(128)]] { x[0] = 1; }")
    assert found["f"].threadgroup_size == 128


def test_arguments_are_ordered_by_index_and_described() -> None:
    source = (
        "struct Params { uint count; float scale; };\n"
        "kernel void f(constant Params& params [[buffer(2)]], device float* out [[buffer(0)]],\n"
        "  const device half4* in [[ buffer(1) ]], threadgroup float* scratch [[threadgroup(0)]],\n"
        "  device const metal::vec<float, 2>& pair [[buffer(4)]], ushort2 g [[thread_position_in_threadgroup]]) {}"
    )
    found = signatures(source)["f"]
    assert found.arguments == (
        Argument("out", 0, "device", "float", False, True),
        Argument("in", 1, "device", "half4", False, False),
        Argument("params", 2, "constant", "Params", True, False),
        Argument("pair", 4, "device", "vec<float, 2>", True, False),
        Argument("scratch", 0, "threadgroup", "float", False, True),
    )
    assert (found.line, found.file, found.entry_point) == (4, "k.metal", "f")


@pytest.mark.parametrize(
    ("before", "index", "expected"),
    [
        ("enum { A, B };", "B", 1),
        ("typedef enum E { A, B = 5, C } E;", "E::C", 6),
        ("enum class E : uint { A = 20, B, };", "int(E::B) - 1", 20),
        ("namespace n { struct S { static constant constexpr int k = 4; }; enum E { A = S::k, B }; }", "static_cast<int>(n::E::B)", 5),
        ("void g() { int K = 5; const int L = 6; }\nconstant int J = 1, K = 010, L = K / 4;", "(uint)L", 2),
        ("void g(constant int* p) { const uint K = p[0]; }\nconstant int K = -7 / 2 + 4;", "K", 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("attribute", ["device float* x [[buffer(%s)]]", "device float* x [[function_constant(on), buffer(0)]]"])
def test_indices_are_constant_expressions(before: str, index: str, expected: int, attribute: str) -> None:
    if "%s" in attribute:
        found = signatures(f"{before}\nkernel void f({attribute % index}) {{ const int K = 9; }}")
        assert found["f"].arguments[0].index == expected
    else:
        source = f"{LIBRARY}{before}\nconstant bool on [[function_constant({index})]];\nkernel void f({attribute}) {{}}"
        assert translate(source, "opencl", function_constants={expected: False}).kernels["f"].arguments == ()


def test_a_constant_with_two_values_is_no_index() -> None:
    source = "constant int A = 1;\nnamespace n { constant int A = 2; }\nkernel void f(device float* x [[buffer(A)]]) {}"
    with pytest.raises(ShaderError, match="expected an integer constant, found 'A'"):
        signatures(source)


def test_missing_buffer_attributes_take_the_first_free_index() -> None:
    found = signatures(
        "kernel void f(device float* a, device float* b [[buffer(1)]], device float* c, constant int& d [[buffer(0)]],"
        " uint i [[thread_position_in_grid]], device float* e) {}"
    )["f"]
    assert {argument.name: argument.index for argument in found.arguments} == {"d": 0, "b": 1, "a": 2, "c": 3, "e": 4}
    assert [argument.name for argument in found.arguments] == ["d", "b", "a", "c", "e"]
    found = signatures("kernel void f(device float* a, device float* b [[buffer(3)]], device float* c) {}")["f"]
    assert {argument.name: argument.index for argument in found.arguments} == {"a": 0, "c": 1, "b": 3}


def test_references_scalars_and_structs_by_reference_run() -> None:
    source = LIBRARY + (
        "struct Params { uint count; packed_float3 offset; };\n"
        "kernel void f(device float* out, constant Params& p, constant const float& scale, device int& hits,\n"
        "  uint i [[thread_position_in_grid]]) {\n"
        "  if (i >= p.count) return; Params copy = p; out[i] = scale * (copy.offset.z + i); if (i == 0) hits = 7; }"
    )
    params = np.array([(5, (1.0, 2.0, 3.0))], [("count", "u4"), ("offset", "f4", 3)])
    out, _, _, hits = run(
        source, "f", np.zeros(8, np.float32), params, np.float32(0.5), np.zeros(1, np.int32), threads=8
    )
    np.testing.assert_array_equal(out, [1.5, 2, 2.5, 3, 3.5, 0, 0, 0])
    assert hits[0] == 7


def test_positions_of_every_width() -> None:
    names = ["thread_position_in_grid", "thread_position_in_threadgroup", "threadgroup_position_in_grid", "threads_per_grid",
             "threads_per_threadgroup", "threadgroups_per_grid", "dispatch_threads_per_threadgroup"]  # fmt: skip
    expected = [70, 6, 1, 128, 64, 2, 64]
    for kind, suffix in (
        ("uint", ""),
        ("ushort", ""),
        ("uint2", ".x"),
        ("uint3", ".x"),
        ("ushort2", ".x"),
        ("ushort3", ".x"),
    ):
        parameters = ", ".join(f"{kind} p{k} [[{name}]]" for k, name in enumerate(names))
        stores = "".join(f"out[{k}] = p{k}{suffix};" for k in range(len(names)))
        source = (
            f"{LIBRARY}[[max_total_threads_per_threadgroup(64)]]\nkernel void f(device uint* out, {parameters}) {{"
            f" if (p0{suffix} == 70) {{ {stores} }} }}"
        )
        if kind not in ("uint", "ushort"):
            # A size is a limit where positions have several axes; the launch decides.
            source = source.replace("[[max_total_threads_per_threadgroup(64)]]\n", "")
            out = run(source, "f", np.zeros(7, np.uint32), threads=512)[0]
            np.testing.assert_array_equal(out, [70, 70, 0, 512, 256, 2, 256])
        else:
            out = run(source, "f", np.zeros(7, np.uint32), threads=128)[0]
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("size", ["[[max_total_threads_per_threadgroup(256)]]", ""])
def test_simdgroup_indices(size: str) -> None:
    names = ["thread_index_in_threadgroup", "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup",
             "simdgroups_per_threadgroup", "threads_per_simdgroup", "thread_execution_width", "thread_index_in_quadgroup",
             "quadgroup_index_in_threadgroup", "quadgroups_per_threadgroup", "dispatch_simdgroups_per_threadgroup"]  # fmt: skip
    parameters = ", ".join(f"uint p{k} [[{name}]]" for k, name in enumerate(names))
    stores = "".join(f"out[10 * i + {k}] = p{k};" for k in range(10))
    source = f"{LIBRARY}{size}\nkernel void f(device uint* out, {parameters}, uint i [[thread_position_in_grid]]) {{ {stores} }}"
    out = run(source, "f", np.zeros((512, 10), np.uint32), threads=512)[0]
    local = np.arange(512) % 256
    full = np.ones(512)
    expected = [
        local,
        local % 32,
        local // 32,
        8 * full,
        32 * full,
        32 * full,
        local % 4,
        local // 4,
        64 * full,
        8 * full,
    ]
    np.testing.assert_array_equal(out, np.stack(expected, 1))


TEMPLATE = """
template <typename T, int N = 3, bool ADD = false>
[[kernel, max_total_threads_per_threadgroup(N * 0 + 64)]] void fill(device T* out [[buffer(0)]],
    constant uint& count [[buffer(1)]], uint i [[thread_position_in_grid]], uint l [[thread_index_in_threadgroup]])
{
    threadgroup T shared[64];
    shared[l] = T(N);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (i < count) { out[i] = shared[63 - l] + (ADD ? T(i) : T(0)); }
}
"""


def test_templates_are_instantiated_under_their_host_names() -> None:
    source = LIBRARY + TEMPLATE + (
        'template [[host_name("fill_float")]] [[kernel]] void fill<float>(device float*, constant uint&, uint, uint);\n'
        'template [[host_name("fill_int_5")]] kernel void fill<int, 5, true>(device int* out [[buffer(0)]],\n'
        "   constant uint& count [[buffer(1)]], uint i [[thread_position_in_grid]], uint l [[thread_index_in_threadgroup]]);\n"
        "typedef decltype(fill<half, 2>) fill_t;\n"
        'template [[host_name("fill_half")]] kernel fill_t fill<half, 2>;\n'
        "#define MAKE(name, ...) template [[host_name(#name)]] [[kernel]] decltype(fill<__VA_ARGS__>) fill<__VA_ARGS__>;\n"
        "MAKE(fill_uchar, uchar, 9)\n"
    )  # fmt: skip
    kernels = translate(source, "opencl").kernels
    assert list(kernels) == ["fill_float", "fill_int_5", "fill_half", "fill_uchar"]
    assert [kernel.arguments[0].type for kernel in kernels.values()] == ["float", "int", "half", "uchar"]
    for name, dtype, expected in (
        ("fill_float", np.float32, [3, 3, 3, 0]),
        ("fill_int_5", np.int32, [5, 6, 7, 0]),
        ("fill_half", np.float16, [2, 2, 2, 0]),
        ("fill_uchar", np.uint8, [9, 9, 9, 0]),
    ):
        np.testing.assert_array_equal(run(source, name, np.zeros(4, dtype), np.uint32(3), threads=3)[0], expected)


def test_kernels_made_by_macros() -> None:
    source = LIBRARY + (
        "#define UNARY(name, T, expression) \\\n"
        "  kernel void name##_##T(device const T* x [[buffer(0)]], device T* y [[buffer(1)]], \\\n"
        "      uint i [[thread_position_in_grid]]) { if (i < 4) { T v = x[i]; y[i] = expression; } }\n"
        "UNARY(square, float, v * v)\nUNARY(negate, int, -v)\n"
    )
    x = np.arange(4)
    np.testing.assert_array_equal(
        run(source, "square_float", x.astype(np.float32), np.zeros(4, np.float32), threads=4)[1], x * x
    )
    np.testing.assert_array_equal(
        run(source, "negate_int", x.astype(np.int32), np.zeros(4, np.int32), threads=4)[1], -x
    )


def test_a_kernel_in_a_namespace_is_looked_up_by_its_qualified_name() -> None:
    source = LIBRARY + (
        "namespace a { constant float k = 2.0; kernel void f(device float* x) { x[0] = k; } }\n"
        "namespace b { constant float k = 3.0; kernel void f(device float* x) { x[0] = k; } }\n"
        "kernel void f(device float* x) { x[0] = 4.0; }\n"
    )
    for name, value in (("a::f", 2), ("b::f", 3), ("f", 4)):
        assert run(source, name, np.zeros(1, np.float32), threads=1)[0][0] == value


@pytest.mark.parametrize(
    "name",
    ["add", "init", "test", "merge", "number", "select", "step", "sum", "barrier", "printf", "sub_group_reduce_add", "abs",
     "simd_sum", "fract", "convert_int", "distance"],
)  # fmt: skip
def test_a_kernel_may_have_a_name_of_the_targets_library(name: str) -> None:
    source = f"#include <metal_stdlib>\nkernel void {name}(device float* x) {{ x[0] = 5.0; }}"
    assert run(source, name, np.zeros(1, np.float32), threads=1)[0][0] == 5


def test_users_names_that_opencl_or_cuda_define() -> None:
    source = LIBRARY + (
        "float erf(float x) { return x + 1.0; } float log1p(float x) { return x + 2.0; } float expm1(float x) { return 8.0; }\n"
        "float hypot(float a, float b) { return a - b; } int get_global_id(int axis) { return 100 + axis; }\n"
        "constant float M_PI = 3.0; struct local { float global; };\n"
        "kernel void f(device float* generic) { float uniform = 1.0, pipe = 2.0; uint3 threadIdx = uint3(4, 5, 6);\n"
        "  local private_ = { 7.0 }; int blockDim = 9;\n"
        "  generic[0] = erf(uniform) + 10.0 * log1p(pipe) + 100.0 * threadIdx.y + 1000.0 * private_.global;\n"
        "  generic[1] = M_PI + hypot(5.0, 3.0) + get_global_id(2) + blockDim + expm1(0.0); }\n"
    )
    np.testing.assert_array_equal(run(source, "f", np.zeros(2, np.float32), threads=1)[0], [7542, 124])


@pytest.mark.parametrize("declaration", ["typedef void R;", "using R = void;"])
def test_void_may_have_another_name(declaration: str) -> None:
    source = f"{declaration}\nkernel R f(device float* x) {{ x[0] = 1; }}"
    assert run(source, "f", np.zeros(1, np.float32), threads=1)[0] == [1]


MALFORMED = [
    ("kernel int f(device float* x) {}", "invalid return type 'int' for kernel function", 1, 12),
    ("typedef int R;\nkernel R f(device float* x) {}", "invalid return type 'R' for kernel function", 2, 10),
    ("kernel void main(device float* x) {}", "cannot be called 'main'", 1, 13),
    ("kernel void f(float* x) {}", "pointer type must have explicit address space", 1, 22),
    ("kernel void f(device float* x,\n  float& y) {}", "reference type must have explicit address space", 2, 10),
    ("kernel void f(uint n [[buffer(1)]]) {}", "type 'uint' is not valid for attribute 'buffer'", 1, 20),
    ("kernel void f(uint n) {}", "invalid type 'uint' for input declaration in a kernel function", 1, 20),
    ("kernel void f(device float* x [[buffer(31)]]) {}", "must be between 0 and 30", 1, 33),
    ("kernel void f(device float* x [[buffer(0)]],\n device float* y [[buffer(0)]]) {}", "location at index 0", 2, 20),
    ("kernel void f(device float* x [[buffer(N)]]) {}", "expected an integer constant, found 'N'", 1, 33),
    ("kernel void f(float i [[thread_position_in_grid]]) {}", "not valid for attribute 'thread_position_in_grid'", 1, 21),
    ("kernel void f(constant uint& i [[thread_position_in_grid]]) {}", "not valid for attribute", 1, 30),
    ("kernel void f(uint4 i [[thread_position_in_grid]]) {}", "type 'uint4' is not valid", 1, 21),
    ("kernel void f(uint2 i [[thread_index_in_simdgroup]]) {}", "type 'uint2' is not valid", 1, 21),
    ("kernel void f(threadgroup float* t [[buffer(0)]]) {}", "invalid address space qualification", 1, 34),
    ("kernel void f(device float* x [[colour(0)]]) {}", "unknown attribute 'colour'", 1, 33),
    ("kernel void f(texture2d<float> t [[texture(0)]]) {}", "'texture2d' is not supported", 1, 15),
    ("kernel void f(device float* x) { bool flag [[function_constant(0)]]; }", "a constant at program scope", 1, 46),
    ("constant bool a [[function_constant(0)]];\nconstant int b [[function_constant(0)]];", "declared twice", 2, 18),
    ("constant Flag flag [[function_constant(0)]];", "type 'Flag' is not valid", 1, 22),
    ("constant bool flag [[function_constant(65536)]];", "between 0 and 65535", 1, 22),
    ("kernel void f(device float* x [[function_constant(flag)]]) {}", "'flag' is no function constant", 1, 51),
    ("kernel void f(Vertex v [[stage_in]]) {}", "[[stage_in]] is not supported", 1, 26),
    ("vertex float4 f(uint i [[vertex_id]]) { return 0; }", "only compute kernels", 1, 1),
    ("kernel void f(device float* x) { x[0] = 1;", "expected '}' to match this '{'", 1, 32),
    ("kernel void f(device float* x { x[0] = 1; }", "expected ')' to match this '('", 1, 14),
    ("kernel void f(device float* x) {} }", "unexpected '}'", 1, 35),
    ("kernel void f(device float* x) {}\nkernel void f(device int* x) {}", "two kernel functions are called 'f'", 2, 13),
    ('template [[host_name("a")]] kernel void g<float>(device float*);', "no kernel function template defined", 1, 41),
    ("[[max_total_threads_per_threadgroup(2048)]] kernel void f(device float* x) {}", "must lie in 1..1024", 1, 3),
    ("kernel void f(device float (*x)(int)) {}", "such a parameter of a kernel is not supported; use a pointer", 1, 28),
    ("kernel void f(device float* x = 0) {}", "cannot have a default value", 1, 31),
    ("kernel void f(device float* x, ...) {}", "cannot be variadic", 1, 32),
    ("/* never closed\nkernel void f(device float* x) {}", "unterminated comment", 1, 1),
    ("#if 1\nkernel void f(device float* x) {}", "unterminated conditional directive", 1, 2),
    ("#include <cmath>\n", "Metal has only <metal_stdlib>", 1, 10),
    ('#include "other.h"\n', "'other.h' file not found", 1, 10),
    ("#define F(a) a\nkernel void f(device float* x) { F(1, 2); }", "too many arguments for macro 'F'", 2, 34),
    ("#error not here\n", "#error not here", 1, 2),
    ("#error \"here\", don't\n", "#error \"here\", don't", 1, 2),
    ("#if 0\nit's @ `text`\n#error no \"\n#endif\n#warning don't\n#define X don't\n", "missing terminating quote", 6, 14),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "message", "line", "column"), MALFORMED, ids=lambda v: v[:40] if isinstance(v, str) else ""
)
@pytest.mark.parametrize("target", ["opencl", "cuda"])
def test_malformed_source_is_refused_where_it_is_wrong(
    source: str, message: str, line: int, column: int, target: str
) -> None:
    with pytest.raises(ShaderError) as raised:
        translate(source, target, filename="bad.metal")  # type: ignore[arg-type]
    error = raised.value
    assert message in error.message
    assert (error.file, error.line, error.column) == ("bad.metal", line, column)
    assert error.source_line == source.split("\n")[line - 1]


@pytest.mark.parametrize(
    ("declared", "type_name", "keeps_threads_apart"),
    [
        ("typedef float Eight __attribute__((ext_vector_type(8)));", "Eight", True),
        ("typedef float Eight __attribute__((ext_vector_type(8), aligned(4)));", "Eight", True),
        ("using Eight = float __attribute__((ext_vector_type(8)));", "Eight", True),
        ("typedef float Four __attribute__((ext_vector_type(4)));", "Four", False),
        ("typedef float Eight __attribute__((ext_vector_type(8)));", "float", False),
    ],
)
def test_threads_whose_vectors_fill_registers_are_not_joined(declared, type_name, keeps_threads_apart) -> None:
    """What a kernel's functions use counts too."""
    source = f"""{LIBRARY}{declared}
    static inline void copy(device {type_name}* to, device const float* from) {{ {type_name} x = from[0]; *to = x; }}
    kernel void f(device const float* from [[buffer(0)]], device {type_name}* to [[buffer(1)]],
        uint i [[thread_position_in_grid]]) {{ copy(to + i, from + i); }}"""
    assert ("intel_vec_len_hint(1)" in translate(source, "opencl").source) == keeps_threads_apart


def test_a_program_that_begins_with_a_vector_type() -> None:
    source = "float __attribute__((ext_vector_type(8))) eight();\nkernel void f(device float* x [[buffer(0)]]) { x[0] = 1; }"
    assert "intel_vec_len_hint" not in translate(source, "opencl").source
