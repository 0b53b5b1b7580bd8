"""Vectors that are made of the values in brackets behind a name: of variables, and of members in constructors."""

# A line of source for each way to write it.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np
from metal_runner import LIBRARY, run
from nvrtc import compile_for_cuda

from mpsgrad.msl import translate

SOURCE = """
using F4 = vec<float, 4>;
template <typename T> using V2 = vec<T, 2>;
template <typename T, int N = 4> using V = vec<T, N>;
template <typename T> struct Traits { using V4 = vec<T, 4>; typedef vec<T, 2> V2; using S = T; };
template <typename T, int N> struct VectorOf { typedef vec<T, N> type; };
template <typename T, int N> using vec_t = typename VectorOf<T, N>::type;
struct Names { typedef float4 F; using I = int2; using H = half2; };
struct Line { half4 from; int2 at; float3 to; const float2 both; Line(float4 a, float b) : from(a), at(a.xy), to(b, 2, at.y), both(at) {} };
template <typename T> struct Held { vec<T, 4> v; typedef vec<T, 3> V3; V3 w; vec_t<T, 2> u; T s; Held(vec<T, 4> a, T b) : v(a.xy, 1, b), w(b, a.xy), u(w.xz), s(b) {} };
struct Tile { threadgroup float* t; uint n; Tile(threadgroup float (&a)[4], uint m) : t(a), n(m) {} };
using Alias = Tile;
typedef Alias Again;
template <typename T> T in_template(T x) {
    typename Traits<T>::V4 v(x, 1, 2, 3);
    typename Traits<T>::V2 w(x, 2);
    vec_t<T, 3> u(w, 5);
    return v.x + w.y + u.z;
}
kernel void made(device float* out, device const float4* in) {
    int k = 0;
    float4 f(in[0]);
    half2 h(f.zw); out[k++] = h.y;
    F4 g(f.xy, 5, 6); out[k++] = g.z;
    V2<half> v2(f.zw); out[k++] = v2.x + v2.y;
    V<float> v4(1, 2, 3, f.w); out[k++] = v4.w;
    const V<int, 2> a(1, 2), b(v4.xy), c = a; out[k++] = a.y * 100 + b.x * 10 + c.x;
    V<float> s(3); out[k++] = s.w;
    vec<int, 4> q(f); out[k++] = q.y;
    const vec<float, 3> x(1, 2, 3), y(f.xyz); out[k++] = x.z + y.x;
    Traits<float>::V4 t4(1, 2, 3, f.w); out[k++] = t4.w;
    Traits<int>::V2 t2(t4.xy); out[k++] = t2.y;
    Traits<half>::S one(2.5f); out[k++] = one;
    Names::F nf(1, 2, 3, f.w), nz(2); out[k++] = nf.w + nz.y;
    Names::I ni(nf.xy); out[k++] = ni.y;
    Names::H nh(nf.xz); out[k++] = nh.y;
    out[k++] = in_template(f.x) * 100 + in_template(int(f.y));
    Line line(f, 4); out[k++] = line.from.w * 1000 + line.at.y * 100 + line.to.x * 10 + line.to.z + line.both.x;
    Held<half> held(half4(f), 4); out[k++] = held.v.w * 100 + held.w.y * 10 + held.u.y;
    threadgroup float memory[4]; memory[2] = 5;
    Alias m(memory, 2); Again n(memory, 1); out[k++] = m.t[m.n] * 10 + n.n;
    bool2 truth(ni); uint2 of_truth(truth); out[k++] = of_truth.x;
    packed_float3 packed(1, 2, f.w); float3 whole(packed); out[k++] = whole.z;
    typedef float Named; using One = uint4; Named (u); One (a4), (b4) = 2, (c4[2]) = {3, f.w}; float4 (whole_one)(f);
    u = f.y; a4 = b4; for (uint (j) = 0; j < 2; ++j) u += c4[j].z; out[k++] = u + a4.w + whole_one.w;
    float2 of_braces = -(float2)half2{1.5h, 2.0h}; out[k++] = of_braces.x - (int)float2{f.w, 1}.x + -(int)V<float>{f}.x;
    thread float4* pointer(&f); thread F4& same(f); same.x = 8; out[k++] = pointer->x;
}
"""
WANTED = [4, 5, 7, 4, 211, 3, 2, 4, 4, 2, 2.5, 6, 2, 3, 809, 4243, 412, 51, 1, 4, 15, -6.5, 8]


def test_values_in_brackets_behind_names() -> None:
    out = run(LIBRARY + SOURCE, "made", np.zeros(len(WANTED), np.float32), np.float32([1, 2, 3, 4]), threads=1)[0]
    assert out.tolist() == WANTED
    compile_for_cuda(translate(LIBRARY + SOURCE, "cuda").source, "made.metal")


PACKS = """
template <typename... A> float4 named(A... a) { return float4(a...); }
template <typename... A> float4 of_template(A... a) { return vec<float, 4>(a...); }
template <typename... A> float4 declared(A... a) { float4 v((a + 1)...); return v; }
template <typename T, typename... A> T made(A... a) { return T(a...); }
template <typename T, typename... A> T variable(A... a) { T v(a...); return v; }
template <typename T> struct Box { T v; template <typename... A> Box(A... a) : v(a...) {} };
template <typename T, typename... A> T boxed(A... a) { return Box<T>(a...).v; }
template <int... I> float total(thread const float (&v)[3]) { return ((v[I] * I) + ... + 0); }
kernel void packs(device float4* out, device const float* x) {
    float v[3] = {x[0], x[1], x[2]};
    out[0] = named(x[0], 2, 3, 4) + named(x[0]);
    out[1] = of_template(x[0], 2, 3, 4) + of_template(x[0]);
    out[2] = declared(x[0], 2, 3, 4) + declared(x[0]);
    out[3] = float4(made<float2>(x[0], 2), made<int>(x[1]), made<half2>(x[2]).y);
    out[4] = float4(variable<float2>(x[0], 2), variable<int>(x[1]), variable<half2>(x[2]).y);
    out[5] = float4(boxed<float2>(x[0], 2), boxed<int>(x[1]), boxed<half2>(x[2]).y) + made<float>();
    out[6] = total<1, 2>(v);
}
"""


def test_values_of_a_pack_in_brackets() -> None:
    out = run(LIBRARY + PACKS, "packs", np.zeros((7, 4), np.float32), np.float32([8, 5.5, 6]), threads=1)[0]
    whole, mixed = [16, 10, 11, 12], [8, 2, 5, 6]
    assert out.tolist() == [whole, whole, [18, 12, 13, 14], mixed, mixed, mixed, [17.5] * 4]
    compile_for_cuda(translate(LIBRARY + PACKS, "cuda").source, "packs.metal")
