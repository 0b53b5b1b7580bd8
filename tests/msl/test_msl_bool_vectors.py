"""Truth values of vectors: a comparison gives true and false, one byte each, whatever the target's compiler makes of it."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY, evaluate, run
from nvrtc import compile_for_cuda

from mpsgrad.errors import ShaderError
from mpsgrad.msl import translate

ROWS = [
    # A comparison as a number, in each form of a conversion.
    ("float4 v = float4(1, 2, 3, 4); float4 r = float4(v < 3.0); out[i] = r.x + 10 * r.y + 100 * r.z + 1000 * r.w;", 11),
    ("int4 v = int4(1, 2, 3, 4); int4 r = int4(v >= int4(2, 2, 4, 4)); out[i] = r.x + 10 * r.y + 100 * r.z + 1000 * r.w;", 1010),
    ("half2 v = half2(1, 2); half2 r = half2(v == 2.0h); out[i] = r.x + 10 * r.y;", 10),
    ("float3 v = float3(1, 2, 3); out[i] = dot(float3(v != 2.0), float3(1, 10, 100));", 101),
    ("uint2 v = uint2(5, 6); uchar2 r = uchar2(v > 5); out[i] = r.x + 10 * r.y;", 10),
    ("long2 v = long2(1L << 40, 3); ulong2 r = ulong2(v <= 3L); out[i] = r.x + 10 * r.y;", 10),
    ("short4 v = short4(-1, 0, 1, 2); ushort4 r = ushort4(v < short4(0)); out[i] = r.x + 10 * r.y;", 1),
    ("char3 v = char3(-1, 0, 1); char3 r = char3(v > 0); out[i] = r.x + 10 * r.y + 100 * r.z;", 100),
    ("float2 v = float2(1, 2); float2 r = (float2)(v < 2.0); out[i] = r.x + 10 * r.y;", 1),
    ("float2 v = float2(1, 2); float2 r = static_cast<float2>(v < 2.0); out[i] = r.x + 10 * r.y;", 1),
    ("float2 v = float2(1, 2); auto m = v < 2.0; float2 r = float2(m); out[i] = r.x + 10 * r.y + 100 * m.x;", 101),
    ("float2 v = float2(1, 2); out[i] = vec<float, 2>(v > 1.5).y;", 1),
    ("typedef float2 F; F v = F(1, 2); out[i] = F(v > 1.5).y - F(v > 1.5).x;", 1),
    # Components, swizzles and assignment.
    ("float4 v = float4(1, 2, 3, 4); out[i] = (v > 2.0).z + 10 * (v > 2.0).x;", 1),
    ("float4 v = float4(1, 2, 3, 4); bool3 b = (v > 2.0).wzy; out[i] = b.x + 10 * b.y + 100 * b.z;", 11),
    ("bool4 b = bool4(true, false, true, false); bool2 c = b.xz; b.yw = c; b.rg = b.gr; out[i] = b.x + 10 * b.y + 100 * b.z + 1000 * b.w;", 1111),
    ("bool4 b = false; b.zx = bool2(true, false); b[3] = true; out[i] = b.x + 10 * b.y + 100 * b.z + 1000 * b.w;", 1100),
    ("bool3 b = bool3(true, bool2(false, true)); out[i] = b[0] + 10 * b[1] + 100 * b[2];", 101),
    ("bool3 b(true, true, false); bool4 c = bool4(b, true); out[i] = c.x + 10 * c.z + 100 * c.w;", 101),
    ("bool2 b = bool2(int2(3, 0)), c = bool2(float2(0.0, 0.5)); out[i] = b.x + 10 * b.y + 100 * c.x + 1000 * c.y;", 1001),
    ("bool4 b = bool4(2); out[i] = b.x + b.w;", 2),
    ("bool4 b = bool4(true); float4 v = float4(b.xyz, 0.5); out[i] = v.x + v.w;", None),
    ("float3 r = float3(bool4(true, false, true, true).xyz); out[i] = r.x + 10 * r.y + 100 * r.z;", 101),
    # Operators.
    ("float2 v = float2(1, 2); bool2 b = !(v < 2.0); out[i] = b.x + 10 * b.y;", 10),
    ("float2 v = float2(1, 2); bool2 b = not(v < 2.0); out[i] = b.x + 10 * b.y;", 10),
    ("float4 v = float4(1, 2, 3, 4); bool4 b = v > 1.0 && v < 4.0; out[i] = b.x + 10 * b.y + 100 * b.z + 1000 * b.w;", 110),
    ("float4 v = float4(1, 2, 3, 4); bool4 b = v <= 1.0 || v == float4(4.0); out[i] = b.x + 10 * b.y + 100 * b.z + 1000 * b.w;", 1001),
    ("bool2 m = bool2(true, false); bool2 b = m & true, c = m | bool2(false), d = m ^ bool2(true); out[i] = b.x + 10 * c.y + 100 * d.y;", 101),
    ("bool2 m = bool2(true, false); m &= bool2(false, true); m |= bool2(false, true); m ^= bool2(true); out[i] = m.x + 10 * m.y;", 1),
    ("bool2 m = bool2(true, false); bool2 b = m == bool2(true), c = m != true; out[i] = b.x + 10 * b.y + 100 * c.x + 1000 * c.y;", 1001),
    # Functions.
    ("float4 v = float4(1, 2, 3, 4); out[i] = any(v > 3.0) + 10 * all(v > 3.0) + 100 * any(v > 9.0) + 1000 * all(v > 0.0);", 1001),
    ("float4 v = float4(1, 2, 3, 4); float4 r = select(v, -v, v > 2.0); out[i] = dot(r, float4(1, 10, 100, 1000));", 21 - 4300),
    ("half3 v = half3(1, 2, 3); half3 r = select(v, half3(0), v > 1.0h); out[i] = r.x + r.y + r.z;", 1),
    ("uchar4 v = uchar4(1, 2, 3, 4); uchar4 r = select(v, uchar4(9), v == uchar4(2)); out[i] = r.x + r.y * 10;", 91),
    ("long2 v = long2(1, 2); long2 r = select(v, long2(7L), v > 1L); out[i] = r.x + r.y * 10;", 71),
    ("int2 v = select(int2(1), int2(2), true), w = select(int2(1), int2(2), bool2(false, true)); out[i] = v.x + w.x * 10 + w.y * 100;", 212),
    ("float2 v = select(float2(1), 5.0, bool2(true, false)); out[i] = v.x + v.y;", 6),
    ("bool2 b = select(bool2(true, false), bool2(false, true), bool2(true, false)); out[i] = b.x + 10 * b.y;", 0),
    ("float4 v = float4(NAN, 1, INFINITY, -0.0); bool4 n = isnan(v), f = isinf(v), g = isfinite(v), s = signbit(v);"
     "out[i] = n.x + 2 * n.y + 4 * f.z + 8 * f.y + 16 * g.w + 32 * g.x + 64 * s.w + 128 * s.y;", 1 + 4 + 16 + 64),
    ("float2 v = float2(NAN, 1); float2 r = float2(isnan(v)); out[i] = r.x + 10 * r.y + 100 * float(isnan(v.x));", 101),
    ("float2 v = float2(NAN, 1); bool2 o = isordered(v, v), u = isunordered(v, float2(2)); out[i] = o.x + 10 * o.y + 100 * u.x + 1000 * u.y;", 110),
    # Types, sizes, constants, threadgroup memory, templates.
    ("out[i] = largest(float4(1, 7, 3, 4)) + 10 * largest(int2(5, 2)) + 100 * largest(6.5);", 7 + 50 + 650),
    ("out[i] = same_as(uint3(1, 2, 3), 2u) + 10 * same(half4(1), half4(1.0h));", 1 + 40),
    ("out[i] = sizeof(bool) + 10 * sizeof(bool2) + 100 * sizeof(bool3) + 1000 * sizeof(bool4) + 10000 * alignof(bool3);", 44421),
    ("vec<bool, 3> b = vec<bool, 3>(true, false, true); out[i] = b.x + 10 * b.y + 100 * b.z;", 101),
    ("struct S { bool a; bool4 b; float c; }; S s = {true, bool4(false, true, true, false), 3.0}; out[i] = s.a + 10 * s.b.y + 100 * s.b.x + sizeof(S) * 1000;", 12011),
    ("bool4 t[2] = {bool4(true), bool4(false)}; out[i] = t[0].w + t[1].w;", 1),
    ("float v = 2; bool b = v > 1.0; int n = b + (v < 1.0) + true; out[i] = n * (v == 2.0) + -b;", 1),
    ("int2 v = int2(1, 0); bool2 b = bool2(v) && bool2(true); out[i] = b.x + 10 * b.y;", 1),
]  # fmt: skip


BEFORE = """
template <typename T> float largest(T v) { T w = v; auto m = w > T(4); return dot_or_self(select(T(0), w, m)); }
template <typename T, int N> float same(vec<T, N> a, vec<T, N> b) {
  int n = 0; vec<bool, N> m = a == b; for (int k = 0; k < N; k++) { if (m[k] == true) n += 1; } return n; }
template <typename T> float same_as(uint3 a, T b) { return same(a, uint3(b)); }
"""
BEFORE = (
    "float dot_or_self(float x) { return x; } float dot_or_self(float4 x) { return x.x + x.y + x.z + x.w; }"
    " float dot_or_self(int2 x) { return x.x + x.y; }" + BEFORE
)


@pytest.mark.parametrize(("body", "expected"), ROWS, ids=lambda v: v[:60] if isinstance(v, str) else "")
def test_truth_values(body: str, expected: float | None) -> None:
    if expected is None:
        with pytest.raises(ShaderError):
            evaluate(body, np.zeros(8, np.float32), before=BEFORE)
    else:
        among = [each for each, value in ROWS if value is not None]
        assert evaluate(body, np.zeros(8, np.float32), before=BEFORE, among=among)[0] == expected


def test_truth_values_in_buffers() -> None:
    source = LIBRARY + (
        "struct S { bool a; bool3 b; ushort c; };\n"
        "kernel void f(device const float4* x, device bool4* m, device bool* any_of, device S* s, constant bool2& flags,\n"
        "  device bool2* out, uint i [[thread_position_in_grid]]) {\n"
        "  if (i >= 5) return; bool4 b = x[i] > 0.5; m[i] = b; any_of[i] = any(b); s[i].a = !any_of[i]; s[i].b = b.yzw;\n"
        "  s[i].b.x ^= flags.y; s[i].c = ushort(s[i].a) + 2 * ushort(s[i].b.z); out[i].x = m[i].w; out[i].y = flags.x && b.x; }\n"
    )
    x = np.random.default_rng(3).random((5, 4), np.float32)
    layout = np.dtype([("a", "?"), ("pad", "u1", 3), ("b", "?", 3), ("pad2", "u1"), ("c", "<u2"), ("end", "u2")])
    zeros = [np.zeros((5, 4), bool), np.zeros(5, bool), np.zeros(5, layout), np.array([True, True]), np.zeros((5, 2), bool)]
    _, m, any_of, s, _, out = run(source, "f", x, *zeros, threads=5)
    expected = x > 0.5
    np.testing.assert_array_equal(m.view(np.uint8), expected.view(np.uint8))
    np.testing.assert_array_equal(any_of, expected.any(1))
    np.testing.assert_array_equal(s["a"], ~expected.any(1))
    np.testing.assert_array_equal(s["b"], expected[:, 1:] ^ np.array([True, False, False]))
    np.testing.assert_array_equal(s["c"], ~expected.any(1) + 2 * expected[:, 3])
    np.testing.assert_array_equal(out, expected[:, [3, 0]])
    compile_for_cuda(translate(source, "cuda", filename="buffers.metal").source, "buffers.metal")


@pytest.mark.parametrize("vector", ["bool2", "bool3", "bool4"])
def test_truth_values_in_buffers_alone(vector: str) -> None:
    source = LIBRARY + f"kernel void f(constant {vector}& x, device bool* y) {{ y[0] = x.y; }}"
    x = np.arange(4) == 1  # A bool3 takes four bytes.
    assert run(source, "f", x, np.zeros(1, bool), threads=1)[1].all()


def test_truth_values_compile_for_cuda() -> None:
    bodies = "".join(f"{{ {body} }}\n" for body, expected in ROWS if expected is not None)
    source = f"{LIBRARY}{BEFORE}kernel void f(device float* out, uint i [[thread_position_in_grid]]) {{\n{bodies}}}\n"
    compile_for_cuda(translate(source, "cuda", filename="truth.metal").source, "truth.metal")


def test_vectors_are_not_converted_on_their_way_into_a_vector_for_cuda() -> None:
    for vector in ("bool4(true).xyz", "int3(1)", "packed_half3(1)"):
        source = f"{LIBRARY}kernel void f(device float4* out) {{ out[0] = float4({vector}, 0.5); }}"
        with pytest.raises(AssertionError, match="no instance of constructor"):
            compile_for_cuda(translate(source, "cuda", filename="parts.metal").source, "parts.metal")
