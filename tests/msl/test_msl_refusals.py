"""What cannot be carried is refused where it stands, with the reason, for both targets."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from metal_runner import LIBRARY, run
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.errors import ShaderError
from mpsgrad.msl import translate

# The place of the error is marked by @.
REFUSED = [
    ("kernel void f(@texture2d<float> t [[texture(0)]]) {}", "kernels take buffers only"),
    ("kernel void f(@texture2d<half, access::write> t [[texture(0)]], uint2 i [[thread_position_in_grid]]) {}", "kernels take buffers only"),
    ("float g(@texture3d<float> t) { return 0; }", "'texture3d' is not supported"),
    ("float g(metal::@texture_buffer<float> t) { return 0; }", "'texture_buffer' is not supported"),
    ("float g(@depth2d<float> t) { return 0; }", "'depth2d' is not supported"),
    ("constexpr @sampler s(filter::linear);", "samplers are not supported"),
    ("kernel void f(@sampler s [[sampler(0)]]) {}", "samplers are not supported"),
    ("kernel void f(device float* x, @visible_function_table<float(float)> t [[buffer(1)]]) {}", "'visible_function_table' is not supported"),
    ("kernel void f(device float* x) { @intersector<triangle_data> i; }", "'intersector' is not supported"),
    ("kernel void f(device float* x, @instance_acceleration_structure s [[buffer(1)]]) {}", "acceleration structures are not supported"),
    ("kernel void f(device float* x, raytracing::@primitive_acceleration_structure s [[buffer(1)]]) {}", "acceleration structures are not supported"),
    ("uint3 p [[@thread_position_in_grid]];\nkernel void f(device float* x) { x[p.x] = 1; }", "[[thread_position_in_grid]] at program scope is not supported"),
    ("namespace n { const ushort l [[@thread_index_in_simdgroup]]; }", "[[thread_index_in_simdgroup]] at program scope is not supported"),
    ("[[@visible]] float g(float x) { return x; }", "only compute kernels"),
    ("[[@stitchable]] float g(float x) { return x; }", "only compute kernels"),
    ("[[@intersection(triangle)]] bool g() { return true; }", "only compute kernels"),
    ("[[@mesh]] void g() {}", "only compute kernels"),
    ("[[@object]] void g() {}", "only compute kernels"),
    ("[[@vertex]] float4 g(uint i [[vertex_id]]) { return 0; }", "only compute kernels"),
    ("@fragment float4 g() { return 0; }", "only compute kernels"),
    ("void f(device float* x) [[@kernel]] { *x = 1; }", "'kernel' attribute cannot be applied to types"),
    ("kernel void f(@imageblock<float4> b) {}", "'imageblock' is not supported"),
    ("struct A { threadgroup float* @p; };\nkernel void f(constant A& a) {}", "a buffer can hold pointers to device and constant memory only"),
    ("struct A { device float* device* @p; };\nkernel void f(constant A& a) { a.p[0][0] = 1; }", "argument buffers in argument buffers are not supported"),
    ("struct A { int n; device A* @next [[id(1)]]; };\nkernel void f(constant A& a) {}", "argument buffers in argument buffers are not supported"),
    ("struct A { @command_buffer c; };\nkernel void f(device A& a) {}", "'command_buffer' is not supported"),
    ("kernel void f(device float* x) { @render_command c; }", "'render_command' is not supported"),
    ("float g(float x) { return x; }\nkernel void f(device float* x) { float (@*p)(float) = g; x[0] = p(1); }", "function pointers are not supported"),
    ("typedef float (@*F)(float);", "function pointers are not supported"),
    ("struct S { float (@*f)(float); };", "function pointers are not supported"),
    ("kernel void f(device float* x, uint v [[@vertex_id]]) {}", "unknown attribute 'vertex_id'"),
    ("kernel void f(device float* x, float4 c [[@payload]]) {}", "unknown attribute 'payload'"),
    ("typedef struct { int n; threadgroup float* @p; } A;\nkernel void f(constant A& a) {}", "a buffer can hold pointers to device and constant memory only"),
    ("struct I { device float* p; };\nstruct __attribute__((packed)) A { int n; constant I* @i; };\nkernel void f(device A* a) {}", "argument buffers in argument buffers are not supported"),
    ("kernel void f(device float* device* @p) { p[0][0] = 1; }", "pointers to pointers are not supported as arguments"),
    ("kernel void f(device float* x, device float* y [[@id(0)]]) {}", "[[id]] belongs to the members of a struct"),
    ("kernel void f(device float* x) { @discard_fragment(); }", "'discard_fragment' is not supported"),
    ("kernel void f(device float* x) { x[0] = @dfdx(x[1]); }", "'dfdx' is not supported"),
    ("kernel void f(device float* x) { x[0] = @simd_is_helper_thread(); }", "'simd_is_helper_thread' is not supported"),
    ("kernel void f(device float* x) { float3 v{@x[0]}; x[1] = v.y; }", "write float3(x) to have it in all components"),
    ("kernel void f(device float* x) { vec<float, 3> v{@x[0]}; x[1] = v.y; }", "in parentheses to have it in all components"),
    ("kernel void f(device float* x) { vec<float, 3> v = {@2}; x[1] = v.y; }", "in parentheses to have it in all components"),
    ("template <typename T, int n> vec<T, n> g(T x) { return metal::vec<T, n>{@x}; }\nkernel void f(device float* x) { x[1] = g<float, 3>(x[0]).y; }", "in parentheses to have it in all components"),
    ("kernel void f(device packed_float3* x) { x[0] = packed_float3{@1.5}; }", "write packed_float3(x)"),
    ("kernel void f(device uint2* x, uint i [[thread_position_in_grid]]) { const uint2 v = {@i}; x[i] = v; }", "write uint2(x)"),
    ("kernel void f(device float* x) { @double y = x[0]; x[0] = y; }", "'double' is not supported in Metal"),
    ("kernel void f(device float* x) { const @wchar_t c = 3; x[0] = c; }", "'wchar_t' is not supported in Metal"),
    ("kernel void f(device float* x) { @__private float c = 3; x[0] = c; }", "unknown type name '__private'"),
    ("kernel void f(device float* x) { @__shared__ float c[3]; x[0] = c[0]; }", "unknown type name '__shared__'"),
    ("#define REAL float\nfloat g(float x) { return (long @double)x; }", "'double' is not supported in Metal"),
    ("kernel void f(device ulong* x) { x[0] = @18446744073709551616; }", "integer literal is too large to be represented in any integer type"),
    ("kernel void f(device float* x) { x[0] = @1.0q; }", "invalid suffix 'q' on floating constant"),
    ("kernel void f(device int* x) { x[0] = 0b11 + 0x1p3f + 1'000ul + @2h; }", "invalid suffix 'h' on integer constant"),
    ("kernel void f(device float* x) { x[0] = @(1 + 2; }", "expected ')' to match this '('"),
    ("kernel void f(device float2* x) { float2 z = x[0]; x[1] = z - z.@operator * z.y; }", "'operator' is called by name, but the program declares none"),
    ("int g(int n) { return n < 1 ? 0 : @g(n - 1) + 1; }", "'g' calls itself: recursion needs Metal 2.4 or later"),
    ("template <typename T> T g(T n) { return n < 1 ? T(1) : n * @g(n - 1); }", "'g' calls itself"),
    ("template <typename T, int N> T g(T n) { return n < 1 ? T(N) : n * @g<T, N>(n - 1); }", "'g' calls itself"),
    ("template <typename T> T h(T n);\ntemplate <typename T> T g(T n) { return @h(n); }\ntemplate <typename T> T h(T n) { return n < 1 ? n : g<T>(n - 1); }", "'h' calls itself"),
    ("struct S { int n; int g(int m) { return m ? n + this->@g(m - 1) : 0; } };", "'g' calls itself"),
    ("template <typename T> struct S { T n; T g(T m) { return m ? n + @g(m - 1) : T(0); } };", "'g' calls itself"),
    ("float g(float x) { return x; }\nint g(int n) { return n < 1 ? 0 : @g(n - 1); }", "'g' calls itself"),
]  # fmt: skip


def refusal_at_the_mark(marked: str, target: str, **options: Any) -> ShaderError:
    """The error of translating ``marked``, whose place is where it has an @."""
    before = marked.split("@")[0]
    line, column = before.count("\n") + 3, len(before) - before.rfind("\n")
    with pytest.raises(ShaderError) as raised:
        translate(LIBRARY + marked.replace("@", ""), target, **options)  # type: ignore[arg-type]
    assert (raised.value.line, raised.value.column) == (line, column)
    return raised.value


@pytest.mark.parametrize("target", ["opencl", "cuda"])
@pytest.mark.parametrize(("marked", "message"), REFUSED, ids=lambda v: v[:70])
def test_what_cannot_be_carried(marked: str, message: str, target: str) -> None:
    error = refusal_at_the_mark(marked, target, filename="no.metal")
    assert message in error.message
    assert error.file == "no.metal"


# What the targets' compilers take and Apple's does not; the package's own shaders are checked by the lint.
REFUSED_IN_USERS_SOURCES = [
    ("kernel void f(device float* x) { float @*p = x; p[0] = 1; }", "pointer type must have explicit address space qualifier"),
    ("kernel void f(device float* x) { x[0] = *(float @*)(x + 1); }", "pointer type must have explicit address space qualifier"),
    ("struct S { float @*p; };\nkernel void f(device float* x) { }", "pointer type must have explicit address space qualifier"),
    ("float g(float @&x) { return x; }\nkernel void f(device float* x) { float y = 1; x[0] = g(y); }", "reference type must have explicit address space qualifier"),
    ("const float @scale = 2;\nkernel void f(device float* x) { x[0] = scale; }", "program scope variable must reside in constant address space"),
    ("static constexpr int @n = 2;\nkernel void f(device float* x) { x[0] = n; }", "program scope variable must reside in constant address space"),
    ("kernel void f(device float* x) { @static float sum = 0; sum += x[0]; x[0] = sum; }", "variables in function scope cannot be declared static"),
    ("kernel void f(device float* x) { @goto end; end: x[0] = 1; }", "'goto' is not supported in Metal"),
    ("kernel void f(device float* x) { @end: x[0] = 1; }", "labeled statements are not supported in Metal"),
    ("kernel void f(device float4* x) { x[0].x = x[0].@s1; }", "illegal vector component name 's'"),
    ("kernel void f(device float4* x) { float4 v = x[0]; x[0].xy = v.@lo; }", "illegal vector component name 'l'"),
    ("kernel void f(device float4* x) { float3 v = @(float3)x[0]; x[0].xyz = v; }", "invalid conversion between vector type 'float4' and 'float3'"),
    ("kernel void f(device float* x) { device float* @* p; }", "pointer type must have explicit address space qualifier"),
    ("kernel void f(device float* x) { @long long n = 3; x[0] = n; }", "'long long' is not supported in Metal"),
    ("struct A { float v; };\nstruct @B : A { float w; };\nkernel void f(device float* x) { B b; b.v = x[0]; x[0] = b.v; }", "derived classes are not supported in Metal"),
    ("struct A { @virtual float g() { return 1; } };\nkernel void f(device float* x) { }", "virtual member functions are not supported in Metal"),
    ("float g() @noexcept { return 1; }\nkernel void f(device float* x) { x[0] = g(); }", "'noexcept' is not supported in Metal"),
    ("kernel void f(device float* x) { auto @&y = x[1]; x[0] = y; }", "reference type must have explicit address space qualifier"),
    ("template <typename T> float g(T @&&y) { return y; }\nkernel void f(device float* x) { x[0] = g(1.0f); }", "reference type must have explicit address space qualifier"),
    ("kernel void f(device int* x) { switch (x[0]) { case 1: @here: x[0] = 2; } }", "labeled statements are not supported in Metal"),
    ("kernel void f(device float* x) { int n{@x[0]}; x[0] = n; }", "type 'float' cannot be narrowed to 'int' in initializer list"),
    ("struct S { float v; };\nkernel void f(device int* x) { x[0] = S{@x[1]}.v; }", "non-constant-expression cannot be narrowed from type 'int' to 'float' in initializer list"),
    ("extern constant float c;\nkernel void f(device float* x) { x[0] = @c; }", "undefined symbol 'c': it is declared and nowhere defined"),
    ("kernel void f(device float* x) { @extern int c; x[0] = 1; }", "extern variable must reside in constant address space"),
    ("extern int @c;\nkernel void f(device float* x) { x[0] = 1; }", "extern variable must reside in constant address space"),
    ("template <typename T> struct S { T v; };\nkernel void f(device float* x) { @S s{x[0]}; x[0] = s.v; }", "use of class template 'S' requires template arguments: their deduction is C++17"),
]  # fmt: skip


@pytest.mark.parametrize("target", ["opencl", "cuda"])
@pytest.mark.parametrize(("marked", "message"), REFUSED_IN_USERS_SOURCES, ids=lambda v: v[:70])
def test_what_apple_refuses_in_users_sources(marked: str, message: str, target: str) -> None:
    assert refusal_at_the_mark(marked, target, launch="row").message == message


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("@float3(float4(x[0])).x", "too many elements in vector initialization"),
        ("@half2(uint3(1)).x", "too many elements in vector initialization"),
        ("@float4(float2(x[0])).x", "too few elements in vector initialization"),
        ("braced{@{x[0]}}.v.x", "one value in the braces of a vector: write it in parentheses to have it in all components"),
        ("@native_sin(x[0])", "use of undeclared identifier 'native_sin'"),
    ],
)
def test_words_of_the_compiler(expression: str, message: str) -> None:
    before = "kernel void f(device float* x) { x[0] = "
    with pytest.raises(ShaderError) as raised:
        mg.compile(LIBRARY + "struct braced { float4 v; };\n" + before + expression.replace("@", "") + "; }").function("f")
    assert "did you mean" not in raised.value.message
    if mg.default_device().identifier.startswith("opencl"):
        assert (raised.value.message, raised.value.column) == (message, len(before) + expression.index("@") + 1)
    else:  # NVRTC, which says of vectors that no constructor takes so many elements.
        assert message in raised.value.message or "no instance of constructor" in raised.value.message


def test_what_is_near_to_that_compiles() -> None:
    source = LIBRARY + (
        "typedef device float* pointer; using reference = thread float&; template <typename T> struct N { T v; };\n"
        "constant constexpr int count = 2; constexpr constant float table[count] = {1, 2}; enum { one = 1 };\n"
        "float g(reference x) { return x; }\n"
        "kernel void f(pointer x, constant uint& n, uint i [[thread_position_in_grid]]) {\n"
        "  static constant float half_ = 0.5f; N<float> a = {1}, b = {2}; pointer p = x + i * n; auto q = p; device auto *r = p;\n"
        "  switch (i) { case one: p[0] = a.v * b.v; break; default: q[0] = (a.v) * (b.v) + half_ * table[1] + g(a.v); }\n"
        "  r[0] += i ? one : count; }\n"
    )
    found = mg.compile(source).function("f")
    x = np.zeros(2, np.float32)
    found(2, x, np.uint32(1))
    assert x.tolist() == [2 + 1 + 1 + 2, 2 + 1]


def test_users_names_that_stand_for_nothing_refused() -> None:
    source = LIBRARY + (
        "struct Sampler { float x; }; float dfdx(float x) { return 2 * x; } struct command_buffer { int n; };\n"
        "kernel void f(device float* sampler, uint color [[thread_position_in_grid]]) {\n"
        "  command_buffer vertex = {3}; int fragment = 4, visible = 5, mesh = 6, object = 7;\n"
        "  sampler[color] = dfdx(sampler[0]) + vertex.n + fragment + visible + mesh + object; }\n"
    )
    for target in ("opencl", "cuda"):
        assert translate(source, target).kernels  # type: ignore[arg-type]


# What ends when the source is compiled, and calls of others with the same name.
NO_RECURSION = """
template <int N> int down(int x) { return x + down<N - 1>(x); }
template <> int down<0>(int x) { return x; }
template <int N> int until(int x) { if constexpr (N == 0) return x; else return x + until<N - 1>(x); }
template <typename T> T total(T x) { return x; }
template <typename T, typename... R> T total(T x, R... rest) { return x + total(rest...); }
template <typename T> int rank(T x) { return 1 + rank(x.inner); }
template <> int rank<int>(int x) { return 0; }
struct Inner { int inner; }; struct Outer { Inner inner; };
float twice(float x) { return 2 * x; }
float2 twice(float2 v) { return float2(twice(v.x), twice(v.y)); }
namespace one { int same(int x) { return x + 1; } }
namespace two { int same(int x) { return one::same(x) * 2; } }
float max(float a, float b, float c) { return max(a, max(b, c)); }
struct Leaf { int n; int count(int m) { return n + m; } };
struct Tree { Leaf leaf; int count(int m) { return leaf.count(m) + 1; } };
kernel void f(device float* out) {
  Tree tree = {{3}};
  Outer outer = {{0}};
  out[0] = down<3>(2) + until<3>(2) + total(1, 2, 3) + rank(outer) + twice(float2(1)).x + two::same(1) + tree.count(2) + max(1.0f, 2.0f, 3.0f);
}
"""


def test_calls_that_end_are_no_recursion() -> None:
    assert run(LIBRARY + NO_RECURSION, "f", np.zeros(1, np.float32), threads=1)[0] == 8 + 8 + 6 + 2 + 2 + 4 + 6 + 3
    compile_for_cuda(translate(LIBRARY + NO_RECURSION, "cuda").source, "no.metal")


def test_later_versions_have_recursion_where_the_target_has() -> None:
    source = LIBRARY + (
        "template <typename T> T fib(T n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }\n"
        "kernel void f(device int* out) { out[0] = fib(out[0]); }\n"
    )
    compile_for_cuda(translate(source, "cuda", definitions={"__METAL_VERSION__": "240"}).source, "fib.metal")
    if mg.default_device().identifier.startswith("opencl"):
        with pytest.raises(ShaderError, match="'fib' calls itself: OpenCL has no recursion on CPUs") as raised:
            mg.compile(source, language_version="2.4").function("f")
        assert (raised.value.line, raised.value.column) == (3, 25)
