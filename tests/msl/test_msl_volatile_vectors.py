"""Vectors in volatile memory: read, written, computed with, and their components."""

from __future__ import annotations

import numpy as np
from metal_runner import LIBRARY
from nvrtc import compile_for_cuda

from mpsgrad.msl import translate
from mpsgrad.runtime import compile

SOURCE = """
struct Item { float4 v; int n; };
static float4 loaded(const volatile device float4* p) { return *p; }
static void store(volatile device float4* p, float4 v) { *p = v; }
kernel void vectors(volatile device float4* x, device float4* y, volatile device Item* items, volatile device int3* n,
                    uint i [[thread_position_in_threadgroup]]) {
  threadgroup volatile float4 shared[32];
  threadgroup float4 others[32];
  float4 before = x[i];
  shared[i] = before;
  volatile threadgroup float4* p = others;
  p[i] = shared[i] * 2.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[i] = shared[31 - i];
  y[i] = x[i] + p[31 - i];
  y[i] += x[i];
  y[i] = -(x[i] - y[i]) * 0.5f + 1.0f / float4(x[i]);
  x[i] += y[i];
  x[i] *= 2.0f;
  x[i].x = y[i].y;
  x[i].y += 1.0f;
  x[i].zw = y[i].xy;
  float2 ends = x[i].xw;
  y[i].zw = ends;
  x[i][3] = float(items[i].n) + x[i][2];
  items[i].v = loaded(x + i);
  items[i].n = 3;
  store(x + i, items[i].v + 1.0f);
  volatile device float4& r = y[i];
  r = r * r;
  volatile float4 own = before;
  own = own + own;
  y[i] = select(y[i], float4(own), x[i] == y[i]);
  n[i] = (n[i] << 2) ^ int3(x[i].xyz);
  n[i] >>= n[i] & 1;
  y[i].x += float(as_type<uint3>(n[i]).x);
}
"""


def test_vectors_in_volatile_memory() -> None:
    rng = np.random.default_rng(0)
    first = rng.integers(1, 5, (32, 4)).astype(np.float32)
    x, y, n = first.copy(), np.zeros((32, 4), np.float32), rng.integers(0, 9, (32, 4)).astype(np.int32)
    counts = n.copy()
    function = compile(LIBRARY + SOURCE).function("vectors")
    items = np.zeros(32, function.dtype("items"))
    items["n"] = np.arange(32)
    function(32, x, y, items, n, threadgroup=32)

    turned = first[::-1].astype(float)
    sums = turned * 4
    second = (sums - turned) * 0.5 + 1 / turned
    third = (turned + second) * 2
    third[:, 0] = second[:, 1]
    third[:, 1] += 1
    third[:, 2:] = second[:, :2]
    second[:, 2], second[:, 3] = third[:, 0], third[:, 3]
    third[:, 3] = np.arange(32) + third[:, 2]
    assert np.allclose(items["v"], third, rtol=1e-5)
    assert (items["n"] == 3).all()
    assert np.allclose(x, third + 1, rtol=1e-5)
    moved = (counts[:, :3] << 2) ^ x[:, :3].astype(np.int32)
    assert np.array_equal(n[:, :3], moved >> (moved & 1))
    assert np.allclose(y, second**2 + np.array([1, 0, 0, 0]) * n[:, :1], rtol=1e-5)


def test_vectors_in_volatile_memory_for_nvidia() -> None:
    compile_for_cuda(translate(LIBRARY + SOURCE, "cuda", launch="box").source, "test.metal")
