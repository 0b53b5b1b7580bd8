"""Constructs of the Metal language that C++ for OpenCL spells otherwise, run on the CPU."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY, evaluate, run

from mpsgrad.errors import ShaderError
from mpsgrad.msl import translate

ZERO = np.zeros(8, np.float32)


def value(body: str, before: str = "", inputs: tuple = (ZERO,), output: type = np.float32) -> float:
    return evaluate(body, *inputs, before=before, output=output)[0]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1.0 / 3.0", np.float32(1) / np.float32(3)),
        ("sizeof(1.0) + sizeof(.5) * 10 + sizeof(1e3) * 100 + sizeof(1.0h) * 1000 + sizeof(0x1p3) * 10000", 42444),
        ("1'000.0 + 0b11 + 0xFF + 017 + 2.5e-1 + 1.f", 1274.25),
        ("16777216.4 - 16777216.0", 0),
        ("1.0h + 0.5h", 1.5),
        ("float(7 / 2) + 7 % 3 + (-7 / 2) + (1u << 31 >> 31)", 3 + 1 - 3 + 1),
    ],
)
def test_literals(expression: str, expected: float) -> None:
    assert value(f"out[i] = {expression};") == np.float32(expected)


STATEMENTS = [
    ("float4 v = float4(1, 2.0, 3u, true); out[i] = v.x + 10 * v.y + 100 * v.z + 1000 * v.w;", 1321),
    ("float4 v(1, 2, 3, 4); out[i] = v.w;", 4),
    ("float4 v = float4(float2(1, 2), float2(3)); out[i] = v.y * 10 + v.z;", 23),
    ("float4 v = float4(9.0, float3(1, 2, 3)); out[i] = v.x * 10 + v.w;", 93),
    ("int4 v = int4(float4(1.9, -1.9, 3, 4)); out[i] = v.x * 10 + v.y;", 9),
    ("float3 v = float3(uchar3(1, 2, 255)); out[i] = v.z;", 255),
    ("float2 v = (float2)int2(3, 4) * 2.0; out[i] = v.x * 10 + v.y;", 68),
    ("float4 v = (float4)(2); out[i] = v.w - ((float4)1.0).x;", 1),
    ("float2 v = static_cast<float2>(float2(3, 4)); out[i] = v.x;", 3),
    ("vec<float, 4> v = vec<float, 4>(1, 2, 3, 4); vec<int, 2> w = vec<int, 2>(7); out[i] = v.z + w.y;", 10),
    ("metal::float3 v = metal::float3(1, 2, 3); out[i] = v.zyx.x;", 3),
    ("float4 v = 0; v.xz = float2(1, 2); v.w += 3; v[1] = 5; out[i] = dot(v, float4(1, 10, 100, 1000));", 3251),
    ("float4 v = float4(1, 2, 3, 4); v = v.wzyx; v.rgb *= 2; out[i] = v.x * 100 + v.g * 10 + v.a;", 861),
    ("half4 h = half4(float4(0.1)); out[i] = float(h.x);", np.float16(0.1)),
    ("float4 v = float4(half4(1.5h)); out[i] = v.y;", 1.5),
    ("bool3 m = bool3(true, false, true); out[i] = float(m.x) + 10 * any(m) + 100 * all(m);", 11),
    ("uint2 u = uint2(1, 2) << 3; int2 v = -int2(u); out[i] = u.y + v.x + (~v).y;", 16 - 8 + 15),
    ("packed_float3 p = packed_float3(1, 2, 3); float3 v = float3(p) * 2.0; p = v; out[i] = p.y + p[2];", 10),
    ("packed_uchar2 p = {255, 1}; packed_int4 q = {1, 2, 3, 4}; packed_uchar2 r = p++; --q; q++; out[i] = q.w + r.x + p.y + (--p).x;", 516),
    ("packed_float3 p = float3(1, 2, 3); p += p * 2.0; out[i] = dot(float3(p), float3(1));", 18),
    ("out[i] = as_type<float>(0x40490fdbu) + as_type<int>(1.0) * 0.0;", np.float32(np.pi)),
    ("half2 h = as_type<half2>(0x3c004000u); out[i] = float(h.x) * 10 + float(h.y);", 21),
    ("float3x3 m = float3x3(float3(1, 2, 3), float3(4, 5, 6), float3(7, 8, 9));"
     "float3 v = m * float3(1, 0, 2), w = float3(1, 0, 2) * m; out[i] = v.x * 100 + w.y + m[1][2] + m[2].x;", 15 * 100 + 16 + 6 + 7),
    ("float2x2 m = float2x2(1, 2, 3, 4); m = m * m; out[i] = m[0][0] + m[1][1] * 100 + transpose(m)[0][1] * 0.5;", 7 + 2200 + 7.5),
    ("float4x4 m = float4x4(2.0); m[3] = float4(1, 2, 3, 4); out[i] = determinant(m) + m[3].y;", 34),
    ("array<float, 3> v = {1, 2, 3}; v[1] = 7; out[i] = v[0] + v[1] + v.size();", 11),
    ("float x = i > 3 ? 1.0 : 2; out[i] = x;", 2),
    ("enum { A = 3, B }; enum class C : int { X = 5 }; out[i] = A + B + int(C::X);", 12),
    ("int n = 0; do { n++; } while (n < 5); switch (n) { case 5: n = 9; break; default: n = 0; } out[i] = n;", 9),
    ("#pragma unroll\nfor (int k = 0; k < 4; k++) { out[i] += k; }", 6),
    ("constexpr int K = 4; float t[K]; for (int k = 0; k < K; k++) t[k] = k; thread float* p = t + 1; out[i] = p[2];", 3),
    ("uint8_t small = uint8_t(300); int64_t wide = int64_t(1) << 40; out[i] = small + float(wide >> 38);", 48),
    ("float2 v = float2(1, 2); thread float2& r = v; r.y = 5; out[i] = v.y;", 5),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), STATEMENTS, ids=lambda v: v[:50] if isinstance(v, str) else "")
def test_vectors_matrices_and_statements(body: str, expected: float) -> None:
    among = [each for each, _ in STATEMENTS]
    assert evaluate(body, ZERO, among=among)[0] == np.float32(expected)


@pytest.mark.parametrize(
    ("before", "expression", "expected"),
    [
        ("template <typename T> T twice(T x) { return x * T(2); }", "twice(1.5) + twice(3)", 9),
        ("template <typename T> T make(float x) { return T(x, x, x, x); }", "make<float4>(2.0).w + make<int4>(3.7).x", 5),
        ("template <typename V> V shift(V v) { return V(v.x + 1); }", "shift(float4(1)).z + shift(half2(4)).y", 7),
        ("template <typename T, int N> T total(thread const T* p) { T s = 0; for (int k = 0; k < N; k++) s += p[k]; return s; }"
         "float three() { float v[3] = {1, 2, 3}; return total<float, 3>(v); }", "three()", 6),
        ("template <typename T, typename... A> float total(vec<T, 2> v, A... a) { return v.x + (float(a) + ...); }", "total(float2(4), 1, 2.5f)", 7.5),
        ("template <bool B, typename T = float, typename F = half> struct choose { typedef T type; };", "choose<true>::type(7) + choose<true, float4>::type(2).w", 9),
        ("template <typename T> struct of { typedef T type; };\ntemplate <typename T> T made(float x) { auto y = typename of<T>::type(x); return y; }", "made<float>(3) + made<float4>(4).w", 7),
        ("namespace n { using v = float3; }", "n::v(5).y + n::v(1, 2, 3).z", 8),
        ("template <typename... A> float number(A... a) { return sizeof...(a); }", "number(1, 2.0, 3u)", 3),
        ("template <typename T> struct Sum { T operator()(T a, T b) const { return a + b; } };"
         "template <typename O, typename T> T apply(O o, T a, T b) { return o(a, b); }", "apply(Sum<float>(), 1.0, 2.0)", 3),
        ("template <typename T, typename = enable_if_t<is_integral<T>::value>> float kind(T) { return 1; }"
         "template <typename T, enable_if_t<is_floating_point<T>::value, bool> = true> float kind(T) { return 2; }",
         "kind(1) * 10 + kind(1.0)", 12),
        ("struct Complex { float re, im; Complex(float r, float i) : re(r), im(i) {} };"
         "Complex operator*(Complex a, Complex b) { return Complex(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re); }",
         "(Complex(1, 2) * Complex(3, 4)).im", 10),
        ("struct Box { float v; float get() const thread { return v; } float get() const device { return v; }"
         " void set(float x) thread { v = x; } };", "Box{3.0}.v", 3),
        ("union Bits { float f; uint u; }; uint bits(float f) { Bits b; b.f = f; return b.u; }", "float(bits(1.0) >> 23)", 127),
        ("namespace outer { namespace inner { float k(float x) { return x + 1; } } }", "outer::inner::k(2.0)", 3),
        ("namespace metal { float mine(float x) { return x * 3.0; } }", "metal::mine(2.0) + mine(1.0)", 9),
        ("#define SQUARE(x) ((x) * (x))\n#define CAT(a, b) a##b", "SQUARE(CAT(1, .5))", 2.25),
        ("#if __METAL_VERSION__ >= 300\nconstant float V = 1;\n#elif defined(__METAL_MACOS__) && !defined(__METAL__)\n"
         "constant float V = 2;\n#else\nconstant float V = 3;\n#endif", "V", 2),
        ("constant float table[4] = {1, 2, 3, 4}; constant int A = 1, B = 2; static constant constexpr float C = 0.5;",
         "table[A + B] + C", 4.5),
        ("typedef float4 F; using G = int2;", "F(1, 2, 3, 4).w + G(5, 6).y", 10),
        ("float shadow(float exp) { float sin = exp * 2; return sin; }", "shadow(2.0)", 4),
        ("inline __attribute__((always_inline)) float quick(float x) { return metal::fma(x, 2.0, 1.0); }", "quick(2.0)", 5),
        ("float load(constant float* p) { return p[0]; } float load(device const float* p) { return p[0]; }"
         "constant float stored[1] = {6};", "load(stored) + load(a)", 6),
        ("void bump(thread float& x, thread int* n) { x += 1; *n += 2; }"
         "float bumped() { float x = 1; int n = 3; bump(x, &n); return x * 10 + n; }", "bumped()", 25),
        ("struct Inner { packed_float3 p; half h; }; struct Outer { Inner in[2]; bool b; };",
         "float(sizeof(Inner)) + 100 * sizeof(Outer)", 3616),
        ("float y_and_z(packed_float3 p) { float3 v = p; return v.y * 10 + v.z; }", "y_and_z(packed_float3(1, 2, 3))", 23),
        ("struct Pair { float a; float get() const constant { return a; } }; constant Pair stored = {6};", "stored.get()", 6),
        ("#if 1\nconstant float V = 1;\n#elif 1\nconstant float W = 2;\n#elif 1 / 0\n#else\n#error no\n#endif", "V", 1),
        ("float A(float x) { return x * 10; }\n#define A(x) (A(x) + B(x))\n#define B(x) A(x * 2)", "A(1)", 30),
        ("METAL_FUNC float marked(float x) { return x; }", "marked(4.0)", 4),
        ("float typedef F, G[2]; float twice(float (x)) { float (y) = x; G z = {x, y}; return z[0] + z[1]; }", "twice(4)", 8),
    ],
    ids=lambda v: v[:50] if isinstance(v, str) else "",
)  # fmt: skip
def test_declarations(before: str, expression: str, expected: float) -> None:
    assert value(f"out[i] = {expression};", before) == np.float32(expected)


def test_member_functions_by_address_space() -> None:
    source = LIBRARY + (
        "struct Box { float v; float get() const thread { return v; } float get() const device { return v + 10; }\n"
        "  void set(float x) device { v = x; } };\n"
        "kernel void f(device Box* boxes, device float* out) {\n"
        "  Box mine = boxes[0]; out[0] = mine.get(); out[1] = boxes[0].get(); boxes[1].set(7); }\n"
    )
    boxes, out = run(source, "f", np.array([3, 4], np.float32), np.zeros(2, np.float32), threads=1)
    np.testing.assert_array_equal(out, [3, 13])
    np.testing.assert_array_equal(boxes, [3, 7])


def test_threadgroup_arrays_of_every_shape() -> None:
    got = evaluate(
        "threadgroup float line[64]; threadgroup float2 square[8][8]; threadgroup int one; threadgroup atomic_uint seen;"
        "line[local_index] = a[i]; square[local_index / 8][local_index % 8] = float2(a[i], 1);"
        "if (local_index == 0) { one = 5; atomic_store_explicit(&seen, 0, memory_order_relaxed); }"
        "threadgroup_barrier(mem_flags::mem_threadgroup);"
        "atomic_fetch_add_explicit(&seen, 1u, memory_order_relaxed);"
        "threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);"
        "out[i] = line[63 - local_index] + square[local_index % 8][local_index / 8].x * 100 + one * 0.5"
        " + atomic_load_explicit(&seen, memory_order_relaxed);",
        np.arange(64, dtype=np.float32),
    )
    local = np.arange(64)
    np.testing.assert_array_equal(got, (63 - local) + (local % 8 * 8 + local // 8) * 100 + 2.5 + 64)


def test_threadgroup_memory_passed_to_functions() -> None:
    got = evaluate(
        "threadgroup float shared[64]; shared[local_index] = a[i]; threadgroup_barrier(mem_flags::mem_threadgroup);"
        "out[i] = neighbour(shared, local_index);",
        np.arange(64, dtype=np.float32),
        before="float neighbour(threadgroup const float* t, uint k) { return t[k ^ 1]; }",
    )
    np.testing.assert_array_equal(got, np.arange(64) ^ 1)


def test_vectors_in_buffers() -> None:
    source = LIBRARY + (
        "kernel void f(device const float3* a, device packed_float3* b, device float4* c, device const uchar4* d,\n"
        "  device half2* e, uint i [[thread_position_in_grid]]) {\n"
        "  if (i >= 4) return; b[i] = a[i] * 2.0; c[i] = float4(d[i]) / 255.0; e[i] = half2(a[i].xy); }\n"
    )
    a = np.arange(16, dtype=np.float32).reshape(4, 4)
    d = np.arange(16, dtype=np.uint8).reshape(4, 4)
    _, b, c, _, e = run(
        source,
        "f",
        a,
        np.zeros((4, 3), np.float32),
        np.zeros((4, 4), np.float32),
        d,
        np.zeros((4, 2), np.float16),
        threads=4,
    )
    np.testing.assert_array_equal(b, a[:, :3] * 2)
    np.testing.assert_allclose(c, d / 255, rtol=1e-6)
    np.testing.assert_array_equal(e, a[:, :2].astype(np.float16))


def test_overloads_that_only_an_address_space_tells_apart() -> None:
    source = LIBRARY + (
        "struct Box { float v; float get() const thread { return v; } float get() const device { return v; } };\n"
        "float first(constant float* p) { return p[0]; } float first(device const float* p) { return p[0]; }\n"
        "kernel void f(device Box* boxes, device float* out, constant float& c) {\n"
        "  Box mine = boxes[1]; out[0] = mine.get() + boxes[0].get() + first(out + 1) + first(&c); }\n"
    )
    for target in ("opencl", "cuda"):
        assert translate(source, target).source.count("float first") == 1  # type: ignore[arg-type]
    out = run(source, "f", np.array([3, 4], np.float32), np.array([0, 5], np.float32), np.float32(8), threads=1)[1]
    assert out[0] == 20
    with pytest.raises(ShaderError, match="'first' does something else for another address space"):
        translate(
            source.replace("device const float* p) { return p[0]", "device const float* p) { return p[1]"), "opencl"
        )
