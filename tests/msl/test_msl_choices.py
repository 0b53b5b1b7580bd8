"""``c ? a : b`` where one arm is a half or a bfloat, which are classes on some targets."""

from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY, evaluate
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.msl import translate

BEFORE = """
template <typename T> T larger(T x) { return x > 0 ? x : 0; }
template <typename T> T larger_still(T x) { return x > 0 ? (x > 1 ? x : 1) : 0.25f; }
template <typename T, int N> thread T& chosen(thread T& x, thread T& y) { return N > 2 ? x : y; }
"""
HALF = np.array([-2.5, -0.5, 0.5, 3], np.float16)
FLOAT = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
CASES = {
    "a[i] > 0 ? a[i] : 0": np.where(HALF > 0, HALF, 0),
    "a[i] > 0 ? 1 : a[i]": np.where(HALF > 0, 1, HALF),
    "a[i] > 0 ? b[i] : a[i]": np.where(HALF > 0, FLOAT, HALF),
    "(a[i] > 0 ? a[i] : b[i]) * 3": np.where(HALF > 0, HALF.astype(np.float32), FLOAT) * np.float32(3),
    "a[i] > 0 ? -INFINITY : half(i)": np.where(HALF > 0, -np.inf, np.arange(4)),
    "a[i] > 0 ? b[i] > 0.35f ? a[i] : 7 : 0.1f": np.where(HALF > 0, np.where(FLOAT > 0.35, HALF, 7), np.float32(0.1)),
    "larger(a[i]) + larger(b[i])": np.maximum(HALF, 0) + FLOAT,
    "float(larger_still(a[i]))": np.where(HALF > 0, np.maximum(HALF, 1), 0.25),
    "(i > 1 ? half4(a[i]) : half4(1)).y": np.where(np.arange(4) > 1, HALF, 1),
    "((half2(a[i], 1)).yx).y > 0 ? b[i] : half(1)": np.where(HALF > 0, FLOAT, 1),
    "vec<half, 2>(a[i], 1)[i > 1 ? 0 : 1]": np.where(np.arange(4) > 1, HALF, 1),
}


@pytest.mark.parametrize("expression", CASES)
def test_halves(expression: str) -> None:
    among = [f"out[i] = {each};" for each in CASES]
    got = evaluate(f"out[i] = {expression};", HALF, FLOAT, before=BEFORE, among=among)
    np.testing.assert_array_equal(got, CASES[expression].astype(np.float32))


def test_a_choice_of_objects_is_an_object() -> None:
    body = "float x = b[i], y = 1; chosen<float, 3>(x, y) = 5; half h = a[i]; h++; out[i] = x + y + --h;"
    np.testing.assert_array_equal(evaluate(body, HALF, FLOAT, before=BEFORE), 6 + HALF.astype(np.float32))


def test_pointers_and_statements_are_left_alone() -> None:
    body = "device half* p = i > 1 ? (device half*)out : nullptr; if (p) out[i] = 1.0h; i > 2 ? out[i]++ : out[i]--;"
    np.testing.assert_array_equal(evaluate(body, HALF), [-1, -1, 0, 2])


def test_they_compile_for_cuda() -> None:
    statements = "".join(f"o[{k}] = {case};" for k, case in enumerate(CASES))
    statements += "o[i] += simd_max(lane == 3 ? -INFINITY : a[i]);"
    source = f"""{LIBRARY}{BEFORE}
    kernel void k(device half* a, device float* b, device float* o, uint i [[thread_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {{ {statements} }}"""
    compile_for_cuda(translate(source, "cuda", filename="choices.metal", launch="box").source, "choices.metal")


def test_bfloats() -> None:
    source = LIBRARY + """
    template <typename T> T larger(T x) { return x > 1 ? x : 0; }
    kernel void k(device float* o, uint i [[thread_position_in_grid]]) {
        bfloat x = bfloat(i); x++; o[i] = float(x > 2 ? x : 0) + float(larger(x)) + (x > 3 ? x : 0.5f); }"""
    compile_for_cuda(translate(source, "cuda", definitions={"__METAL_VERSION__": "310"}).source, "bfloat.metal")
    o = np.zeros(4, np.float32)
    mg.compile(source, language_version="3.1").function("k")(4, o)
    np.testing.assert_array_equal(o, [0.5, 2 + 0.5, 3 + 3 + 0.5, 4 + 4 + 4])


OBJECTS = LIBRARY + """
struct V { float x, y; V operator+(V o) const { return {x + o.x, y + o.y}; } };
inline V make(float x) { return V{x, -x}; }
template <typename T> T larger(bool c, T a, T b) { return c ? a : b; }
kernel void k(device float4* out, uint i [[thread_position_in_grid]]) {
    V a{1, 2}, b = make(3);
    V c = i & 1 ? make(5) : a, d = i & 2 ? V{6, 7} : make(8);
    V e = i & 1 ? a + b : c, f = i & 2 ? larger(i > 2, a, b) : a;
    (i & 1 ? a : b).x = 9;
    thread V& g = i & 2 ? a : b;
    float2x2 m(2), n = i & 1 ? m : float2x2(3), o = i & 2 ? m * m : m;
    out[i] = float4(c.x + 10 * d.x, e.x + 10 * f.x, g.x, n[0][0] + 10 * o[1][1]);
}
"""


def test_objects_of_classes_and_matrices() -> None:
    out = np.zeros((4, 4), np.float32)
    mg.compile(OBJECTS).function("k")(4, out)
    np.testing.assert_array_equal(out, [[81, 11, 9, 23], [85, 14, 3, 22], [61, 31, 1, 43], [65, 14, 9, 42]])


def test_objects_compile_for_cuda() -> None:
    compile_for_cuda(translate(OBJECTS, "cuda", filename="objects.metal", launch="box").source, "objects.metal")


LIMITS = """
kernel void limits(device float* x, device half4* h, uint i [[thread_position_in_grid]]) {
  using T = float;
  T y = x[i] > 0.0f ? x[i] : -metal::numeric_limits<T>::infinity();
  x[i] = y < -1.0f ? numeric_limits<T>::lowest() : x[i] + 1.0f;
  h[i] = h[i] + half(x[i] > 0.0f ? x[i] : numeric_limits<T>::digits - T(22));
}
"""


def test_arms_that_name_members_of_templates() -> None:
    source = LIBRARY + LIMITS
    x, h = np.array([1, -1], np.float32), np.zeros((2, 4), np.float16)
    mg.compile(source).function("limits")(2, x, h)
    assert x.tolist() == [2, np.finfo(np.float32).min]
    assert h.tolist() == [[2] * 4, [2] * 4]
    compile_for_cuda(translate(source, "cuda", launch="box").source, "test.metal")


ALTERNATIVES = """
int count(thread int& n) { return n++; }
kernel void k(device float* o, device const float* x, device const bfloat* h) {
  bfloat b = h[0];
  int n = 0;
  o[0] = x[0] ?: 7.0f;
  o[1] = int(x[1]) ?: x[0] ?: 5;
  o[2] = 10 * (x[2] ?: x[1] > 0 ? 2.0f : 3.0f);
  bfloat c = b ?: bfloat(9);
  o[3] = c;
  o[4] = x[0] ? b : bfloat(2);
  o[5] = half(x[0]) ?: 2.5h;
  o[6] = count(n) ?: count(n) ?: count(n);
  o[7] = n;
}
"""


def test_alternatives_beside_bfloat() -> None:
    source = LIBRARY + ALTERNATIVES
    o = np.zeros(8, np.float32)
    x, h = np.array([0, 0.5, 0], np.float32), np.zeros(1, np.uint16)
    mg.compile(source, language_version="3.1").function("k")(1, o, x, h)
    assert o.tolist() == [7, 5, 20, 9, 2, 2.5, 1, 2]
    definitions = {"__METAL_VERSION__": "310"}
    compile_for_cuda(translate(source, "cuda", definitions=definitions, launch="box").source, "alternatives.metal")


APART = """
template <typename T, typename U> T next(T x) {
  constexpr T one = as_type<T>(static_cast<U>(0x3f800000));
  return x + one;
}
kernel void k(device bfloat* p, device float2x2* m, device float* o, uint i [[thread_position_in_grid]]) {
  threadgroup bfloat t[4];
  t[i] = p[i];
  float2x2 s(5);
  bfloat a = i < 2 ? *(p + i) : ((bfloat)(7.0f)), b = i & 1 ? as_type<bfloat>(ushort(0x4000)) : p[i];
  bfloat c = i < 1 ? (p[1]) : (t[i]), d = i < 3 ? -t[i] : 0.5bf, e = i > 2 ? static_cast<bfloat>(9) : (*p);
  float2x2 x = i < 2 ? *(m + i) : s, y = i & 1 ? transpose(s) : (*m);
  o[i] = a + 10.0f * b + 100.0f * c + 1000.0f * d + 10000.0f * e + next<float, uint>(x[0][0] + 10 * y[1][1]) / 16;
}
"""


def test_arms_in_two_address_spaces() -> None:
    source = LIBRARY + APART
    bits = (np.array([1, 2, 3, 4], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    o, m = np.zeros(4, np.float32), np.arange(1, 9, dtype=np.float32).reshape(2, 2, 2)
    mg.compile(source, language_version="3.1").function("k")(4, bits, m, o)
    assert o.tolist() == [9211 + 42 / 16, 8222 + 56 / 16, 7337 + 46 / 16, 90927 + 56 / 16]
    translation = translate(source, "cuda", launch="box", definitions={"__METAL_VERSION__": "310"})
    compile_for_cuda(translation.source, "test.metal")


def test_what_called_objects_of_unknown_classes_give() -> None:
    source = """#include <metal_stdlib>
using namespace metal;
struct Pair { float a; float b; Pair(float x, float y) : a(x), b(y) {} Pair() : a(0), b(0) {} };
struct Sum { Pair operator()(Pair x, Pair y) const { return Pair(x.a + y.a, x.b + y.b); } };
template <typename T, typename Op, int N = 2> [[kernel]] void scan(device const float* x, device float* y,
    uint i [[thread_position_in_grid]]) {
  Op op;
  T values[N];
  for (int k = 0; k < N; k++) values[k] = T(x[2 * i + k], k);
  const T last = i == 0 ? values[N - 1] : op(values[0], values[1]);
  const T first = i != 0 ? op(values[1], last) : values[0];
  y[i] = last.a + 10 * last.b + 100 * first.a + 1000 * first.b;
}
template [[host_name("scan_pairs")]] [[kernel]] decltype(scan<Pair, Sum>) scan<Pair, Sum>;
"""
    y = np.zeros(2, np.float32)
    mg.compile(source).function("scan_pairs")(2, np.array([1, 2, 3, 4], np.float32), y)
    np.testing.assert_array_equal(y, [2 + 10 + 100, 7 + 10 + 1100 + 2000])
    compile_for_cuda(translate(source, "cuda", launch="box").source, "test.metal")
