"""Functions that are declared before they are defined, and members that are defined outside of their class."""

# A line of source for each way to write it.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np
from metal_runner import LIBRARY, run
from nvrtc import compile_for_cuda

from mpsgrad.msl import translate

SOURCE = """
struct Mesh { int q; float v; };
float of_struct(thread const Mesh& m);
float of_number(const thread float& x, float);
float by_address(thread const Mesh&);
void written(thread Mesh& m, const thread float& x);
template <typename T> T of_template(thread const T& x);
template <typename T, int N> vec<T, N> of_vector(thread const vec<T, N>& v, T k);
namespace inner { float of(thread const float& x); float of(const thread int& x, int y = 2); float of(device const float& x); thread float& same(thread float& x); }
float of_array(const thread float* p, uint n);
static float two(Mesh m) { return of_struct(m) + of_struct(Mesh{1, 2}); }

float of_struct(const thread Mesh& mesh) { return mesh.q + mesh.v; }
float of_number(const thread float& a, float b) { return a * b; }
float by_address(thread const Mesh& m) { thread const float* p = &m.v; return *p; }
void written(thread Mesh& m, const thread float& x) { m.v = x; }
template <typename T> T of_template(thread const T& x) { return x * 2; }
template <typename T, int N> vec<T, N> of_vector(thread const vec<T, N>& v, T k) { return v * k; }
namespace inner {
float of(thread const float& x) { return x; }
float of(const thread int& x, int y) { return x * y; }
float of(device const float& x) { return x + 100; }
}
thread float& inner::same(thread float& x) { return x; }
float of_array(const thread float* p, uint n) { float s = 0; for (uint j = 0; j < n; j++) s += p[j]; return s; }

struct Held {
    float a; float values[3]; uint state;
    Held(thread const float& q);
    float get(thread const float2& v) const;
    float two() const thread;
    void set(thread const float& x) thread;
    Held operator+(thread const Held& o) const;
    static float of(thread const Held& o);
    thread float& at(int j);
    thread Held& me();
    uint next();
    uint twice();
};
uint advance(thread uint& s);
Held::Held(thread const float& q) : a(q), state(1) {}
float Held::get(thread const float2& v) const { return a + v.x; }
float Held::two() const thread { return a * 2; }
void Held::set(thread const float& x) thread { a = x; }
Held Held::operator+(thread const Held& o) const { return Held(a + o.a); }
float Held::of(thread const Held& o) { return o.a; }
thread float& Held::at(int j) { return values[j]; }
thread Held& Held::me() { return *this; }
uint advance(thread uint& s) { s = s * 3 + 1; return s; }
uint Held::next() { return advance(state); }
uint Held::twice() { next(); return next(); }
template <typename T> struct Generic { T v; Generic(T x); T plus(thread const T& o) const; template <typename U> U as(thread const U& u) const; };
template <typename T> Generic<T>::Generic(T x) : v(x) {}
template <typename T> T Generic<T>::plus(thread const T& o) const { return v + o; }
template <typename T> template <typename U> U Generic<T>::as(thread const U& u) const { return u + U(v); }

kernel void declared(device float* out, device const float* in) {
    int k = 0;
    Mesh m{9, in[0]};
    out[k++] = two(m);
    float x = in[1];
    out[k++] = of_number(x, 2) + of_number(x + 1, 3) + of_number(4, 5);
    written(m, x + 4); out[k++] = by_address(m);
    out[k++] = of_template(x) + of_template(3) + of_vector(float3(1, 2, x), 2.0f).z;
    inner::same(x) = 7;
    out[k++] = inner::of(x) + inner::of(3) + inner::of(in[0]);
    float three[3] = {1, 2, x};
    out[k++] = of_array(three, 3);
    Held held(1.5f);
    out[k++] = held.get(float2(x, 2)) + held.two();
    held.set(x + 1); out[k++] = held.a;
    out[k++] = (held + Held(2.0f)).a * 10 + Held::of(held) + Held::of(Held(3.0f));
    held.at(2) = 4; held.me().at(1) = 5; out[k++] = held.values[1] * 10 + held.values[2];
    out[k++] = held.next() * 1000 + held.twice();
    Generic<float> one(2.5f); Generic<float2> pair(float2(1, 2));
    out[k++] = one.plus(2) * 100 + one.as(3) * 10 + pair.plus(float2(x)).y;
}
"""
WANTED = [10 + 3, 4 + 9 + 20, 6, 4 + 6 + 4, 7 + 6 + 101, 10, 8.5 + 3, 8, 100 + 8 + 3, 54, 4040, 450 + 50 + 9]


def test_what_is_declared_before_it_is_defined() -> None:
    arrays = np.zeros(len(WANTED), np.float32), np.float32([1, 2])
    assert run(LIBRARY + SOURCE, "declared", *arrays, threads=1)[0].tolist() == WANTED
    compile_for_cuda(translate(LIBRARY + SOURCE, "cuda").source, "declared.metal")
