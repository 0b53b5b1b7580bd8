"""Operators for brackets that only ``thread`` objects have, applied to constant references to such."""

# A line of source for each way to write it.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.msl import translate

SOURCE = """
#include <metal_stdlib>
using namespace metal;
template <typename T, size_t N> struct Generated {
    T elements[N ? N : 1];
    thread T& operator [] (size_t pos) thread { return elements[pos]; }
    constexpr const thread T& operator [] (size_t pos) const thread { return elements[pos]; }
    device T& operator [] (size_t pos) device { return elements[pos]; }
    constexpr const device T& operator [] (size_t pos) const device { return elements[pos]; }
    constexpr const constant T& operator [] (size_t pos) const constant { return elements[pos]; }
};
struct Inner { Generated<float, 3> a; uint n; };
static inline float of_array(thread const Generated<float, 3>& v, thread const int& j) { return v[j] + v[0]; }
static inline float of_member(thread const Inner& n) { return n.a[1] + float(n.n); }
static inline Generated<float, 3> made(float x) { return Generated<float, 3>({ x, 1.0, 2.0 }); }
struct Held { float d[3]; thread float& operator[](int j) { return d[j]; } const thread float& operator[](int j) const { return d[j]; } };
float of_held(const thread Held& b) { return b[1]; }
float copied(const thread Held& b, thread Held& o) { o[0] = b[2]; return o[0]; }
Held operator+(const thread Held& x, const thread Held& y) { Held r; for (int j = 0; j < 3; j++) r[j] = x[j] + y[j]; return r; }
struct Square { float m[4]; thread float& operator()(int r, int c) { return m[r * 2 + c]; } const thread float& operator()(int r, int c) const { return m[r * 2 + c]; } };
float trace(const thread Square& a) { return a(0, 0) + a(1, 1); }
kernel void bracketed(device float* out, device const float* in) {
    int k = 0, two = 2;
    Generated<float, 3> v = made(in[0]);
    out[k++] = of_array(v, 1) * 10 + of_array(v, two) + of_array(made(in[1]), 2);
    Inner inner; inner.a = v; inner.n = 3u;
    out[k++] = of_member(inner);
    Held held = {{1, in[1], 3}}, other;
    out[k++] = of_held(held) + of_held(Held{{1, 5, 3}}) * 10 + copied(held, other) * 100;
    Held sum = held + held;
    out[k++] = sum[1] + of_held(held + sum) * 10;
    Square square = {{1, 2, 3, in[1]}};
    out[k++] = trace(square);
}
"""


VALUES = np.float32([4, 7])


def test_brackets_of_thread_objects(device: mg.Device) -> None:
    out = np.zeros(5, np.float32)
    mg.compile(SOURCE, device=device).function("bracketed")(1, out, VALUES)
    assert out.tolist() == [50 + 6 + 9, 4, 7 + 50 + 300, 14 + 210, 8]
    compile_for_cuda(translate(SOURCE, "cuda").source, "bracketed.metal")


def test_brackets_of_thread_objects_in_checked_runs(opencl_device: mg.Device) -> None:
    bracketed = mg.compile(SOURCE, device=opencl_device).function("bracketed")
    assert bracketed.check(1, np.zeros(5, np.float32), VALUES) == ()
