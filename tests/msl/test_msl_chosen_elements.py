"""Elements of threads' arrays and vectors that a condition or an index chooses: each thread writes its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import mpsgrad as mg

LANES = 64
HEAD = """#include <metal_stdlib>
using namespace metal;
struct Three { int a[3]; };
void set(thread int* a, int k) { a[k] = 99; }
"""


def add(array: list[int], index: int, value: int) -> None:
    array[index] += value


def put(array: list[int], index: int, value: int = 99) -> None:
    array[index] = value


BODIES: dict[str, Callable[[list[int], int], None]] = {
    "a[x > 0 ? 1 : 0] -= 1;": lambda a, x: add(a, int(x > 0), -1),
    "a[x > 0] = 99;": lambda a, x: put(a, int(x > 0)),
    "a[3 + (x > 0)] += 5;": lambda a, x: add(a, 3 + (x > 0), 5),
    "int s = x > 0; a[s & 7]--;": lambda a, x: add(a, int(x > 0), -1),
    "int s = 2; if (x > 0) s = 5; a[s] = 99;": lambda a, x: put(a, 5 if x > 0 else 2),
    "thread int* p = x > 0 ? &a[5] : &a[2]; *p = 99;": lambda a, x: put(a, 5 if x > 0 else 2),
    "thread int& r = x > 0 ? a[5] : a[2]; r = 99;": lambda a, x: put(a, 5 if x > 0 else 2),
    "thread int* p = a; if (x > 0) p += 4; p[1] = 99;": lambda a, x: put(a, 5 if x > 0 else 1),
    "int s = x > 0 ? 1 : 4; a[s] += a[s + 1];": lambda a, x: add(a, 1 if x > 0 else 4, a[2 if x > 0 else 5]),
    "set(a, x > 0 ? 6 : 3);": lambda a, x: put(a, 6 if x > 0 else 3),
    "for (int k = 0; k < 4; k++) a[k + (x > k)] += 1;": lambda a, x: [add(a, k + (x > k), 1) for k in range(4)][0],
    "float f[4] = {1, 2, 3, 4}; f[x > 0] *= 2; a[0] = int(f[0] + 8 * f[1]);": lambda a, x: put(a, 0, (18, 33)[x > 0]),
    "Three t = {{1, 2, 3}}; t.a[x > 0 ? 2 : 1] = 50; a[0] = t.a[1] - t.a[2];": lambda a, x: put(a, 0, (47, -48)[x > 0]),
    "int4 v = 1; v[x > 0 ? 1 : 2] = 9; a[0] = v.y - v.z;": lambda a, x: put(a, 0, 8 if x > 0 else -8),
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
def test_each_thread_writes_its_own_element(body: str) -> None:
    source = (
        f"{HEAD}kernel void f(device const int* in, device int* out, uint i [[thread_position_in_grid]]) {{\n"
        "  int x = in[i], a[8];\n  for (int k = 0; k < 8; k++) a[k] = k * 7;\n"
        f"  int seen = a[x & 7];\n  {body}\n"
        "  for (int k = 0; k < 8; k++) out[i * 9 + k] = a[k];\n  out[i * 9 + 8] = seen;\n}\n"
    )
    x = np.random.default_rng(3).integers(-4, 9, LANES).astype(np.int32)
    out = np.zeros((LANES, 9), np.int32)
    mg.compile(source).function("f")(LANES, x, out, threadgroup=LANES)
    expected = []
    for value in x.tolist():
        array = [7 * k for k in range(8)]
        BODIES[body](array, value)
        expected.append([*array, 7 * (value & 7)])
    np.testing.assert_array_equal(out, expected)


def chosen(values: Sequence[int], *writes: tuple[int, int]) -> list[int]:
    found = list(values)
    for index, value in writes:
        found[index] = value
    return found


MADE = """
template <typename T, int N> T hot(uint k) { T v = T(0); v[k % N] = 1; return v; }
template <typename T> void raise(thread T& v, uint k) { v[k] += 1; ++v[(k + 1) & 3]; }
template <typename T> struct Kept { T v; void set(uint k, float x) thread { v[k] = x; } };
struct Plain { float4 v; };
static float4 one(uint k) { float4 v = 0; v[k] = 1; return v; }
"""
# What a thread with the number i has in v, after which each vector is part of a sum: alone they would be right.
VECTORS: dict[str, Callable[[int], list[int]]] = {
    "int4 v = int4(0, 4, 2, 5); v[i & 3] = 7;": lambda i: chosen([0, 4, 2, 5], (i & 3, 7)),
    "int4 v = n; v[i & 3] = n * 2;": lambda i: chosen([3] * 4, (i & 3, 6)),
    "float4 w = 1; w[i & 3] += 1; w[i >> 2 & 3] *= 0; int4 v = int4(w * 2);":
        lambda i: [2 * (1 + (k == i & 3)) * (k != (i >> 2 & 3)) for k in range(4)],
    "float3 w = 0; w[i % 3] = 1; int4 v = int(dot(w, float3(1, 2, 3)));": lambda i: [i % 3 + 1] * 4,
    "half3 w = half3(hot<half3, 3>(i)); int4 v = int(dot(w, half3(1, 2, 3)));": lambda i: [i % 3 + 1] * 4,
    "uint4 c = 0; for (uint k = 0; k < 5; k++) c[(i + k) & 3]++; int4 v = int4(c);":
        lambda i: [1 + (k == i & 3) for k in range(4)],
    "uchar4 c = 255; uchar q = c[i & 3]++; int4 v = int4(c) + q;": lambda i: chosen([510] * 4, (i & 3, 255)),
    "int4 v = 0; int q = ++v[i & 3]; --v[i >> 2 & 3]; v += q;":
        lambda i: [1 + (k == i & 3) - (k == (i >> 2 & 3)) for k in range(4)],
    "float4 w = 1; raise(w, i & 3); int4 v = int4(w);": lambda i: chosen([1] * 4, (i & 3, 2), ((i + 1) & 3, 2)),
    "int4 v = int4(one(i & 3) * 3);": lambda i: chosen([0] * 4, (i & 3, 3)),
    "Kept<float4> s; s.v = 2; s.set(i & 3, 5); int4 v = int4(s.v);": lambda i: chosen([2] * 4, (i & 3, 5)),
    "Plain s; s.v = 0; thread Plain* p = &s; p->v[i & 3] = 1; (*p).v[i >> 2 & 3] += 2; int4 v = int4(s.v);":
        lambda i: [(k == i & 3) + 2 * (k == (i >> 2 & 3)) for k in range(4)],
    "int4 v = 0, w = 0; v[i & 3] = w[i >> 2 & 3] = 1; v += w * 2;":
        lambda i: [(k == i & 3) + 2 * (k == (i >> 2 & 3)) for k in range(4)],
    "float3x3 m = float3x3(1); m[1][i % 3] = 5; int4 v = int4(int3(m[1] * 2), 0);":
        lambda i: chosen([0, 2, 0, 0], (i % 3, 10)),
    "float2 w = 0; w[i > 7] = n; int4 v = int(dot(w, float2(1, 10)));": lambda i: [30 if i > 7 else 3] * 4,
    "float2 w = float2(3, i); bool b = i > 7; int4 v = int(w[b] * 10);": lambda i: [10 * i if i > 7 else 30] * 4,
    "device int4* o = (device int4*)out + i; *o = 0; o[0][i > 7] = 3; int4 v = *o;":
        lambda i: chosen([0] * 4, (i > 7, 3)),
    "auto w = float4(n); w[i & 3] = 7; int4 v = int4(w);": lambda i: chosen([3] * 4, (i & 3, 7)),
    "ulong2 w = 0; w[i & 1] = 1ul << 40; w >>= 38; int4 v = int(w.x) + 2 * int(w.y);":
        lambda i: [8 if i & 1 else 4] * 4,
}  # fmt: skip


@pytest.mark.parametrize("body", VECTORS)
def test_each_thread_writes_its_own_element_of_a_vector(body: str) -> None:
    kernels = [
        f"kernel void f{k}(device int* out, constant int& n, uint i [[thread_position_in_grid]]) {{\n"
        f"  {each}\n  v = v * 3 + 1;\n"
        "  out[4 * i] = v.x; out[4 * i + 1] = v.y; out[4 * i + 2] = v.z; out[4 * i + 3] = v.w;\n}\n"
        for k, each in enumerate(VECTORS)
    ]
    function = mg.compile(HEAD + MADE + "".join(kernels)).function(f"f{list(VECTORS).index(body)}")
    out = np.zeros((LANES, 4), np.int32)
    function(LANES, out, np.int32(3), threadgroup=LANES)
    np.testing.assert_array_equal(out, [[3 * v + 1 for v in VECTORS[body](i)] for i in range(LANES)])
