"""Templates for ``vec<T, n>`` take vectors of every element, also those that are classes on CPUs: of bool and bfloat."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY, evaluate
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.msl import translate

TEMPLATES = """
template <typename T> int width(T) { return 1; }
template <typename T, int n> int width(vec<T, n>) { return n + 10 * sizeof(T) + 100 * is_same_v<T, bool>; }
template <typename T, int n> vec<T, n> turned(vec<T, n> v);
template <typename T, int n> vec<T, n> turned(vec<T, n> v) {
    vec<T, n> w = v;
    for (int i = 0; i < n; i++) { w[i] = v[n - 1 - i]; }
    return w;
}
template <typename T, int n> vec<T, n> zeros(T x) { vec<T, n> a{0}; vec<T, n> b = {0}; return vec<T, n>{0} + a + b + vec<T, 2>{x, 1}.y; }
template <typename T> using four = vec<T, 4>;
template <typename T> T last(four<T> v) { return v.w; }
template <typename T, typename U> int pairs(vec<T, 2> a, vec<U, 2> b) {
    return is_same_v<T, bool> + 2 * is_same_v<U, bool> + 4 * a.x + 8 * b.y;
}
template <typename T> void fill(thread vec<T, 3>& v, T x) { v = vec<T, 3>(x); }
template <typename T> constexpr constant int extent = 1;
template <typename T, int n> constexpr constant int extent<vec<T, n>> = n;
template <int n> int trues(vec<bool, n> b) { int k = 0; for (int i = 0; i < n; i++) { k += b[i]; } return k + 10 * n; }
template <typename T, int n> vec<bool, n> less(vec<T, n> a, vec<T, n> b) { return a < b; }
struct Box {
    int k;
    template <typename T, int n> Box(vec<T, n>) : k{n * 10 + is_same_v<T, bool>} {}
    template <typename T> int plus(vec<T, 2> v) const { return k + v.x; }
};
template <typename T> struct Outer {
    T held;
    int sum(vec<T, 2> v) const;
    template <typename U> int both(vec<T, 2> v, vec<U, 2> w) const;
};
template <typename T> int Outer<T>::sum(vec<T, 2> v) const { return held + v.x + v.y; }
template <typename T> template <typename U> int Outer<T>::both(vec<T, 2> v, vec<U, 2> w) const { return held + v.x + 2 * w.y; }
template <typename T, int n> bool operator%(vec<T, n>, Box b) { return b.k > n; }
template <typename T, typename = enable_if_t<!is_same_v<vec<T, 2>, bool2>>> int marked(vec<T, 2>) { return 5; }
int marked(bool2) { return 6; }
struct Flags { bool3 a = bool3(true, false, true); bool2 b{true, false}; };
"""

ROWS = [
    ("float3 z = zeros<float, 3>(2); out[i] = z.x + 10 * z.z + 100 * zeros<short, 4>(2).w;", 111),
    ("bool3 b = float3(1, 2, 3) > 1.5; out[i] = width(b) + 1000 * width(float3(1)) + 100000 * width(5);", 113 + 43000 + 100000),
    ("out[i] = width(float3(1, 2, 3) > 1.5) + 1000 * width(short2(1));", 113 + 22000),
    ("bool3 b = turned(float3(1, 2, 3) > 2.5); out[i] = b.x + 10 * b.y + 100 * b.z + 1000 * turned(int2(3, 4)).x;", 4001),
    ("out[i] = last(bool4(false, false, false, true)) + 10 * last(float4(5)) + 100 * last<int>(int4(7)) + 1000 * last<bool>(bool4(true));", 1751),
    ("out[i] = pairs(bool2(true), int2(1, 2)) + 100 * pairs(float2(1, 0), bool2(false, true)) + 10000 * pairs(bool2(true), bool2(true));", 151421),
    ("bool3 b; fill(b, true); int3 w; fill(w, 7); out[i] = b.x + b.y + b.z + 10 * w.z;", 73),
    ("out[i] = extent<bool3> + 10 * extent<float2> + 100 * extent<int>;", 123),
    ("out[i] = trues(float4(1, 2, 3, 4) > 1.5) + 100 * trues(less(int2(1, 2), int2(2, 1)));", 43 + 2100),
    ("out[i] = Box(bool2(true)).k + 100 * Box(float4(1)).k; out[i] += Box(int2(1)).plus(bool2(true, false)) + Box(int2(1)).plus(float2(5, 4));", 4021 + 46),
    ("Outer<bool> o{true}; out[i] = o.sum(bool2(true)) + 10 * o.both(bool2(true, false), bool2(true)) + 100 * o.both(bool2(true, false), int2(4));", 1043),
    ("Outer<float> o{1}; out[i] = o.sum(float2(2, 3)) + 10 * o.both(float2(2, 3), bool2(true)) + 1000 * o.both(float2(2, 3), int2(4));", 11056),
    ("out[i] = (bool2(true) % Box(int2(1))) + 2 * (float4(1) % Box(int2(1)));", 3),
    ("out[i] = marked(bool2(true)) + 10 * marked(short2(1));", 56),
    # Swizzles are vectors, too.
    ("bool4 b = bool4(true, false, true, true); out[i] = trues(b.xyz) + 100 * width(b.xzw) + 100000 * width(float4(1).xy);", 32 + 11300 + 4200000),
    ("bool4 t[2] = {bool4(true), bool4(true, false, true, true)}; thread bool4* p = t; out[i] = trues(p[1].xyz) + 100 * trues(p->xy) + 10000 * width((t[0] == t[1]).xyz);", 32 + 2200 + 1130000),
    ("bool4 b = bool4(true, false, true, true); auto v = b.yz; const auto w = b.wx; out[i] = v.y + 10 * v.x + 100 * w.x;", 101),
    ("out[i] = is_same_v<decltype(bool4(true).xy), bool2> + 10 * is_same_v<decltype(float3(1) < 2), bool3> + 100 * is_same_v<vec<bool, 3>, bool3>;", 111),
    # What Metal's compiler has itself is no class.
    ("out[i] = is_class_v<bool3> + 10 * is_class_v<float3> + 100 * is_class_v<half> + 1000 * is_class_v<Flags> + 10000 * is_class_v<packed_float3>;", 1000),
    ("out[i] = is_trivially_copyable_v<bool3> + 10 * is_convertible_v<bool3, int3> + 100 * is_convertible_v<bool, bool3>;", 101),
    ("Flags f; Flags g = f; g.a = float3(1, 2, 3) > 2.5; out[i] = g.a.x + 10 * g.a.z + 100 * f.a.x + 1000 * g.b.x;", 1110),
    ("bool4 b = bool4(true, false, true, false); uchar4 u = as_type<uchar4>(b); out[i] = u.x + 10 * u.y + 100 * u.z + 1000 * as_type<bool4>(0x01000001u).w;", 1101),
    ("bool c = a[i] > 0.5; bool3 v = float3(1, 2, 3) < 2; bool3 r = c ? v : !v; out[i] = r.x + 10 * r.y;", 10),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), ROWS, ids=lambda v: v[:60] if isinstance(v, str) else "")
def test_vectors_of_bools(body: str, expected: float) -> None:
    among = [each for each, _ in ROWS]
    assert evaluate(body, np.zeros(8, np.float32), before=TEMPLATES, among=among)[0] == expected


OF_BFLOAT = """
int kind(short3) { return 1; }
int kind(half3) { return 2; }
int kind(bfloat3) { return 3; }
template <typename T> int kinds(T) { return 0; }
template <typename T> int kinds(vec<T, 3>) { return is_same_v<T, bfloat> ? 7 : is_same_v<T, bool> ? 8 : 1; }
template <typename T, int n> T total(vec<T, n> v) { T s = 0; for (int k = 0; k < n; k++) { s += v[k]; } return s; }
template <typename T, int n> vec<bool, n> less(vec<T, n> a, vec<T, n> b) { return a < b; }
template <typename T, int n> vec<T, n> scaled(vec<T, n> a, T b) { return a * b + vec<T, n>(1); }
template <typename T, int n> vec<float, n> wide(vec<T, n> a) { return vec<float, n>(a); }
template <typename U, typename T> void copy(thread vec<T, 2>& d, vec<U, 2> s) { d = vec<T, 2>(s); }
template <typename T> struct Tile {
    vec<T, 2> held[2];
    thread vec<T, 2>& at(int i) thread { return held[i]; }
    vec<T, 4> all() const { return vec<T, 4>(held[0], held[1]); }
};
"""

BFLOAT_ROWS = [
    ("bfloat3 b = bfloat3(float3(1, 2, 3)); *o = kind(b) + 10 * kind(half3(1)) + 100 * kinds(b) + 1000 * kinds(b < bfloat3(2));", 8723),
    ("bfloat4 b = bfloat4(1, 2, 3, 4); *o = float(total(b)) + 100 * float(total(b.xyz)) + 1000 * kinds(b.xyw);", 7610),
    ("bool3 m = less(bfloat3(1, 2, 3), bfloat3(2)); *o = m.x + 10 * m.y + 100 * m.z;", 1),
    ("float2 w = wide(scaled(bfloat2(1.5bf, 2), bfloat(2))); *o = w.x + 10 * w.y;", 54),
    ("Tile<bfloat> t; t.at(0) = bfloat2(1, 2); copy(t.at(1), float2(3, 4)); float4 a = float4(t.all()); *o = dot(a, float4(1, 10, 100, 1000));", 4321),
    ("Tile<float> t; t.at(0) = float2(1, 2); copy(t.at(1), bfloat2(3, 4)); *o = dot(t.all(), float4(1, 10, 100, 1000));", 4321),
    ("bool4 t = bool4(bfloat4(1, 0, 3, 4)); *o = t.x + 10 * t.y + 100 * t.w;", 101),
    ("bfloat2 a = select(bfloat2(1, 2), bfloat2(3, 4), bool2(true, false)); *o = float(a.x) + 10 * float(a.y) + 100 * float(select(a.x, a.y, true));", 223),
    ("bool c = *o > 0.5; bfloat2 a = bfloat2(1, 2); bfloat2 r = c ? a : -a; *o = float(r.x) + 10 * float(r.y);", -21),
    ("bfloat4 a = as_type<bfloat4>(ulong(0x40803f803f803f80)); *o = float(a.w) + 10 * float(a.x) + 100 * (as_type<uint>(bfloat2(1, 4)) == 0x40803f80);", 114),
    ("*o = is_class_v<bfloat> + 10 * is_class_v<bfloat2> + 100 * is_same_v<vec<bfloat, 2>, bfloat2>;", 100),
]  # fmt: skip


def test_vectors_of_bfloats() -> None:
    kernels = "".join(f"kernel void k{n}(device float* o) {{ {body} }}\n" for n, (body, _) in enumerate(BFLOAT_ROWS))
    source = LIBRARY + OF_BFLOAT + kernels
    compile_for_cuda(translate(source, "cuda", definitions={"__METAL_VERSION__": "310"}).source, "bfloats.metal")
    library = mg.compile(source, language_version="3.1")
    for n, (body, expected) in enumerate(BFLOAT_ROWS):
        o = np.zeros(1, np.float32)
        library.function(f"k{n}")(1, o)
        assert o[0] == expected, body


def test_templates_of_vectors_compile_for_cuda() -> None:
    bodies = "".join(f"{{ {body} }}\n" for body, _ in ROWS)
    arguments = "device const float* a, device float* out, uint i [[thread_position_in_grid]]"
    source = f"{LIBRARY}{TEMPLATES}kernel void f({arguments}) {{\n{bodies}}}\n"
    compile_for_cuda(translate(source, "cuda", filename="vectors.metal").source, "vectors.metal")


OF_EIGHT = LIBRARY + """
template <typename T> float sum_of_eight(float x) {
  vec<T, 8> v(0);
  metal::vec<T, 8> w{0};
  for (int i = 0; i < 8; i++) v[i] = T(x * i > 6);
  w[3] = T(5);
  vec<T, 8> u = v;
  float sum = sizeof(vec<T, 8>) / sizeof(T);
  for (int i = 0; i < 8; i++) sum += float(u[i]) + 10 * float(w[i]);
  return sum;
}
kernel void f(device const float* x, device float* y, uint i [[thread_position_in_grid]]) {
  y[4 * i] = sum_of_eight<float>(x[i]);
  y[4 * i + 1] = sum_of_eight<half>(x[i]);
  y[4 * i + 2] = sum_of_eight<bool>(x[i]);
  y[4 * i + 3] = sum_of_eight<bfloat>(x[i]);
}
"""


def test_threads_have_eight_elements_of_squares() -> None:
    definitions = {"__METAL_VERSION__": "310"}
    compile_for_cuda(translate(OF_EIGHT, "cuda", definitions=definitions).source, "eight.metal")
    x, y = np.arange(6, dtype=np.float32), np.zeros((6, 4), np.float32)
    mg.compile(OF_EIGHT, language_version="3.1").function("f")(6, x, y)
    above = (x[:, None] * np.arange(8) > 6).sum(1)
    np.testing.assert_array_equal(y, above[:, None] + 8 + [50, 50, 10, 50])


ANY_TYPE = LIBRARY + """
namespace tiles { struct Tile { float a, b; }; }
using namespace tiles;
template <typename T> T operator*(const thread T& tile, const thread T& other) { T out; out.a = tile.a * other.a; out.b = tile.b * other.b; return out; }
template <typename T> bool operator<(const thread T& tile, const thread T& other) { return tile.a < other.a; }
template <typename T, typename U> T times(T x, U y) { return T(x) * (T(y) < T(x) ? T(y) : T(x)); }
template <typename T> T operator+(const thread T& tile, float addend) { T out; out.a = tile.a + addend; out.b = tile.b + addend; return out; }
template <typename T, typename U> T more(T x, U y) { return T(x) + y; }
kernel void f(device float* out) { Tile sum = more(Tile{1, 2}, 3.0f); out[0] = sum.a + 10 * sum.b + 100 * more(2.0f, 4.0f) + 1e4f * more(float2(1, 2), 1.0f).y + 1e6f * times(Tile{1, 2}, Tile{2, 4}).b; }
"""


def test_a_programs_operators_may_take_any_type() -> None:
    out = np.zeros(1, np.float32)
    mg.compile(ANY_TYPE).function("f")(1, out)
    assert out[0] == 4 + 50 + 600 + 30000 + 4e6
