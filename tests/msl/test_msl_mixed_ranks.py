"""A scalar beside a vector becomes an element of it, whatever its own type: Metal's rule for every operator."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY, evaluate, run
from nvrtc import compile_for_cuda

from mpsgrad.errors import ShaderError
from mpsgrad.msl import translate
from mpsgrad.msl.diagnostics import parse_compiler_log
from mpsgrad.runtime import compile

HALF = float(np.float16(1.5) * np.float16(1.1))

ROWS = [
    # half with float literals and variables: the scalar is rounded first.
    ("half4 h = half4(1.5h); half4 r = h * 1.1; out[i] = r.x;", HALF),
    ("half4 h = half4(1.5h); float s = 1.1; half4 r = s * h; out[i] = r.w;", HALF),
    ("half2 h = half2(1, 2); out[i] = (h + 0.5).y + (0.5 - h).x + (h / 2.0).x + (3.0 / h).y;", 2.5 - 0.5 + 0.5 + 1.5),
    ("half3 h = half3(1, 2, 3); h = 2.0 * h - 1.0 * h.zyx; out[i] = h.x + 10 * h.y + 100 * h.z;", -1 + 20 + 500),
    ("half4 h = half4(2); h *= 1.5; h += 0.5; h -= float(local_index) + 1.0; h /= 2.0; out[i] = h.x;", 1.25),
    ("half4 h = half4(2); h.xz *= 1.5; h.yw += 1; out[i] = h.x + 10 * h.y + 100 * h.w;", 3 + 30 + 300),
    ("half4 h = local_index > 9 ? 1.0 : half4(2.0h), g = local_index > 9 ? half4(3.0h) : 0.25; out[i] = h.x + g.y;", 2.25),
    ("half4 h = half4(1, 2, 3, 4); out[i] = any(h > 3.5) + 10 * all(h >= 1.0) + 100 * any(h == 2.5);", 11),
    ("half4 h[2] = {half4(1), half4(2)}; h[1] *= 0.5; thread half4* p = h; p[0] += 2.5; *p *= 2.0; out[i] = h[0].x + 10 * h[1].y;", 17),
    ("half2 h = 2.0; h = 3.0; h.x = 1.0; out[i] = h.x + h.y;", 4),
    # Integers narrower than int, and of the other sign.
    ("uchar4 u = uchar4(250); uchar4 r = u + 10; out[i] = r.x;", 4),
    ("uchar4 u = uchar4(10); int n = 300; uchar4 r = u * n; out[i] = r.x;", (10 * 44) % 256),
    ("uchar2 u = uchar2(7); u += 250; u |= 0x300; u ^= 5u; u &= 0xff; out[i] = u.x;", 1 ^ 5),
    ("char4 c = char4(-100); c = c - 100; out[i] = c.y;", 56),
    ("short2 s = short2(1); s = s << 3; s = s | 1; s <<= 1u; s = s >> 1; out[i] = s.x;", 9),
    ("ushort4 s = ushort4(40000); s = s + 30000; s = s % 1000u; out[i] = s.x;", 70000 % 65536 % 1000),
    ("int4 v = int4(-1, 2, 3, 4); v = v + 1u; v = v * 2L; v = v & 0xffu; out[i] = v.x + 10 * v.y;", 60),
    ("uint2 v = uint2(5); v = v - 1; v = v * 3L; v = v / 2ul; out[i] = v.x;", 6),
    ("int2 v = int2(5); v -= 1u; v *= 2ul; v = ~v & 0xfL; out[i] = v.x;", ~8 & 15),
    ("long2 v = long2(5); v = v + 1; v = v * 2u; out[i] = v.x;", 12),
    ("uint2 v = uint2(7, 9); bool2 b = v == 7L, c = v > 8; out[i] = b.x + 10 * b.y + 100 * c.x + 1000 * c.y;", 1001),
    ("char2 c = char2(-1, 1); bool2 b = c < 0, d = c == 255; out[i] = b.x + 10 * b.y + 100 * d.x;", 101),
    ("short2 v = short2(3); bool b = true; v = v + b; v += b; out[i] = v.x;", 5),
    ("int2 v = int2(1, 2); v = v % 2ul + (v << 1ul); out[i] = v.x + 10 * v.y;", 3 + 40),
    # Through functions, templates, aliases, structs and pointers.
    ("out[i] = scaled(half4(2)).x + scaled(float2(2)).y + scaled(2.0h);", 9),
    ("out[i] = sum<half4>(half4(1), 0.5).x + sum<uchar2>(uchar2(255), 2).x + sum<float>(1, 2);", 1.5 + 1 + 3),
    ("Number n = {3}; char2 c = 1; uint d = i > 99 ? false ? n.get() : 0u : 2u, e = d * 3u; out[i] = e + c.x;", 7),
    ("int4 v = 1; v++; --v; v.xy++; --v.zw; int2 w = v.xy++; uchar2 u = 0; out[i] = v.x + 10 * w.y + 100 * v.z + (--u).y;", 3 + 20 + 255),
    ("int4 v[2] = {1, 2}; thread int4* p = v; ++v[1].zw; --(*p).xy; --p->zw; int n = 3; v[0].xz += n-- * v[1].zy; out[i] = v[0].x + 10 * v[0].z + 100 * v[1].w + 1000 * v[0].y + n;", 9 + 60 + 300 + 2),
    ("int2 v = int2(FIVE), w = FIVE; float3 f = float3(FIVE); out[i] = v.x + 10 * w.y + 100 * f.z;", 555),
    ("using H = half2; H h = H(1, 2); h = h * 1.5 + 1; out[i] = h.x + 10 * h.y;", 2.5 + 40),
    ("struct P { half2 p; float s; }; P v = {half2(1, 2), 0.5}; half2 r = v.p * v.s; v.p *= v.s; out[i] = r.x + v.p.y;", 1.5),
    ("packed_half3 p = packed_half3(1, 2, 3); half3 r = p * 1.5 + 0.5; p *= 2.0; out[i] = r.x + p.z;", 8),
    ("packed_uchar4 p = packed_uchar4(250, 1, 2, 3); uchar4 r = p + 10; bool4 b = p > 1; out[i] = r.x + 10 * b.x + 100 * b.y + 1000 * b.z;", 1014),
    ("packed_float3 p = packed_float3(1, 2, 3); float4 v = float4(p, 4), w(0.5, p); out[i] = v.z + v.w + w.x + w.w * 10;", 37.5),
    ("packed_float4 p = packed_float4(float2(1, 2), 3, 4); p.xz = p.wy; p.rgb *= 2.0; float3 v = p.zyx; out[i] = v.x + 10 * v.y + 100 * v.z + 1000 * p.a;", 4844),
    ("packed_float3 p = 2.0, q = float3(1); p = p + q; p = q - p; p += 1.0; p = -p; out[i] = p.x + length(float3(p)) + dot(float3(p), float3(q));", 1 + np.sqrt(3.0) + 3),
    ("packed_int3 p = packed_int3(5, -6, 7); p %= 4; p = p << 1; p |= 1; p = ~p; out[i] = p.x + 10 * (p & 7).z + 100 * any(p == int3(-4));", -4 + 0 + 100),
    ("packed_vec<ushort, 2> p = packed_vec<ushort, 2>(ushort2(7, 8)); packed_long2 q = packed_long2(1L << 33, 2); out[i] = p.y + float(q.x >> 32) + sizeof(q) + sizeof(packed_vec<half, 3>);", 8 + 2 + 16 + 6),
    ("packed_half3 p = packed_half3(float3(0.1)); packed_float3 q = packed_float3(p); out[i] = q.y;", float(np.float16(0.1))),
    ("packed_float2 t[2] = {packed_float2(1, 2), float2(3, 4)}; t[0][1] = 9; thread packed_float2* s = t; float2 v = s[1] + *s; out[i] = v.x + 10 * v.y;", 4 + 130),
    ("constant packed_float3* p = points; float4 v = float4(p[1], 1); out[i] = v.z + v.w;", 7),
    ("float3x3 m = float3x3(2); m[0][1] = 1; packed_float3 p = float3(1, 2, 3); p = m * p; float3 v = m * p.zyx, w = p * m, x = p.zyx * m; out[i] = p.y + 10 * v.y + 100 * w.x + 1000 * x.x;", 5 + 160 + 900 + 17000),
    ("half2x2 m = half2x2(2.0h); packed_half2 p = packed_half2(1, 2); half2 v = m * p + p * m; out[i] = v.x + 10 * v.y;", 4 + 80),
    ("float2x2 m = float2x2(2.0); m *= 0.5; m += m; m *= m; m -= float2x2(1.0); out[i] = m[0][0] + m[1][0];", 3),
    ("float2 v(1, 2), w(v.yx), x(3, 4), y = x; using F = float3; F a3(x, 5), b3 = a3; out[i] = v.y + w.x + x.y + y.x + a3.z + b3.y;", 2 + 2 + 4 + 3 + 5 + 4),
    ("half2x2 m = half2x2(2.0h); m = m * 1.5; m = 2.0 * m; out[i] = m[0][0] + m[0][1];", 6),
    ("auto h = half2(1) * 1.5; auto g = h + 1; out[i] = g.x + sizeof(g);", 6.5),
    ("constexpr int n = 2 * 3 < 7 ? 2 : 9; float t[n * 2]; out[i] = sizeof(t) / sizeof(float) + (n << 1);", 8),
    ("uint2 g = uint2(3, 4); uint k = g.x * 4 + g.y; half w = half(k) * 0.5; out[i] = k + w;", 24),
    ("int2 v = (int2(1, 2) | FIVE) + FIVE; uchar2 u = uchar2(2) * FIVE; bool2 b = v == FIVE; out[i] = v.x + 10 * v.y + 100 * u.x + 10000 * b.x;", 10 + 120 + 1000),
    ("half2 h = 1; thread half2* p = &h; if (i < 9) (*p) *= 2.5; for (int k = 0; k < 2; k++) (*p) -= 0.5; out[i] = h.x;", 1.5),
    # Choices that are written, whose arms may be vectors for all that is known of one of them.
    ("uchar2 c = 1; auto m = made(1u); thread auto* p = &m; (i > 9 ? m.v : p->w) = 7u; (i < 9 ? p->w : p->v) += 2u; ((i > 9) ? (m.v) : p->w) <<= 1u; out[i] = m.w + c.x;", 19),
    ("uchar2 c = 1; auto m = made(1u); thread auto* p = &m; (i > 9 ? m.v : p->w)++; --(i < 9 ? p->v : m.w); *&(i < 9 ? p->v : m.w) += 5u; thread uint& r = i < 9 ? m.v : p->w; r *= 10; out[i] = m.v + m.w + c.x;", 50 + 3 + 1),
    ("uchar2 c = 1; auto m = Number{1}; auto n = Number{3}; thread Number* q = &n; bump(i > 9 ? m.n : q->n); bump(i < 9 ? n.n : q->n); out[i] = n.n + c.x;", 14),
    ("uchar4 u = uchar4(1); if (local_index < 64) u += 1; else u += 2; for (int k = 0; k < 2; k++) u *= 2; out[i] = u.x;", 8),
]  # fmt: skip

BEFORE = (
    "constant packed_float3 points[2] = {packed_float3(1, 2, 3), packed_float3(4, 5, 6)};"
    "enum { FIVE = 5 };"
    "struct Number { uint n; uint get() const { return n; } };"
    "template <typename T> struct Made { T v; T w; };"
    "template <typename T> Made<T> made(T x) { return {x, x + 1}; }"
    "static void bump(thread uint& x) { x += 5; }"
    "template <typename T> T scaled(T x) { T r = x * 1.5; return r; }"
    "template <typename T, typename U> T sum(T x, U y) { T r = x; r += y; return r; }"
)


@pytest.mark.parametrize(("body", "expected"), ROWS, ids=lambda v: v[:60] if isinstance(v, str) else "")
def test_a_scalar_becomes_an_element(body: str, expected: float) -> None:
    among = [each for each, _ in ROWS]
    assert evaluate(body, np.zeros(8, np.float32), before=BEFORE, among=among)[0] == np.float32(expected)


def test_every_row_compiles_for_cuda() -> None:
    bodies = "".join(f"{{ {body} }}\n" for body, _ in ROWS)
    source = (
        f"{LIBRARY}{BEFORE}kernel void f(device float* out, uint i [[thread_position_in_grid]],"
        f" uint local_index [[thread_index_in_threadgroup]]) {{\n{bodies}}}\n"
    )
    compile_for_cuda(translate(source, "cuda", filename="mixed.metal").source, "mixed.metal")


REFUSED = ["int4(1) * 1.5", "uchar2(1) + 0.5h", "2.0 < int3(1)"]


@pytest.mark.parametrize("expression", REFUSED)
def test_a_real_beside_a_vector_of_integers_is_refused_for_cuda(expression: str) -> None:
    source = f"{LIBRARY}kernel void f(device float* out) {{ auto r = {expression}; out[0] = r.x; }}"
    translation = translate(source, "cuda", filename="mixed.metal")
    with pytest.raises(AssertionError) as raised:
        compile_for_cuda(translation.source, "mixed.metal")
    found = parse_compiler_log(str(raised.value), "cuda", translation)
    assert (found[0].line, found[0].message) == (3, "invalid operands to binary expression")


@pytest.mark.parametrize("expression", REFUSED)
def test_a_real_beside_a_vector_of_integers_is_refused(expression: str) -> None:
    with pytest.raises(ShaderError, match="invalid operands to binary expression|scalar operand type has greater rank"):
        evaluate(f"auto r = {expression}; out[i] = r.x;", np.zeros(8, np.float32))


def test_vectors_in_device_memory() -> None:
    source = LIBRARY + (
        "kernel void f(device half4* h, device uchar2* u, constant float& s, uint i [[thread_position_in_grid]]) {\n"
        "  if (i >= 4) return; h[i] *= s; h[i].xy += 0.5; u[i] += 250; u[i].y -= 1; device half4& r = h[i]; r -= s * 2; }\n"
    )
    h = np.arange(16, dtype=np.float16).reshape(4, 4)
    u = np.arange(8, dtype=np.uint8).reshape(4, 2)
    got_h, got_u, _ = run(source, "f", h, u, np.float32(1.5), threads=4)
    np.testing.assert_array_equal(got_h, h * np.float16(1.5) + np.float16([0.5, 0.5, 0, 0]) - np.float16(3))
    np.testing.assert_array_equal(got_u, u + np.uint8(250) - np.uint8([0, 1]))


def test_addresses_of_vectors_as_pointers_to_bfloats() -> None:
    source = LIBRARY + (
        "kernel void f(device float* x, uint i [[thread_position_in_grid]]) {\n"
        "  bfloat4 v = bfloat4(1), w = bfloat4(x[i]);\n"
        "  ((thread bfloat*)&v)[1] = bfloat(2); ((thread ushort*)&w)[2] = 0;\n"
        "  *(thread bfloat*)&v = (bfloat)-2.0f; v = v * 0.5f; x[i] = v.x + 10 * v.y + float(w.z) + float(w.w); }\n"
    )
    x = np.array([3, 4], np.float32)
    compile(source, language_version="3.1").function("f")(2, x)
    assert x.tolist() == [12, 13]
    compile_for_cuda(translate(source, "cuda", definitions={"__METAL_VERSION__": "310"}).source, "test.metal")


def test_what_is_incremented_stays_a_view_for_cuda() -> None:
    """Components that are read are copied there, and a copy would be incremented in silence."""
    body = "int4 v[2]; thread int4* p = v; ++v[1].zw; --(*p).xy; --p->zw; v[0].xy++; v[0].xz += 2 - -v[1].zy;"
    text = translate(f"{LIBRARY}kernel void f(device float* out) {{ {body} }}", "cuda").source
    for step in ("++v[1].zw;", "--(*p).xy;", "--p->zw;", "v[0].xy++;"):
        assert step in text
    assert "-v[1].zy.value_mtl();" in text
