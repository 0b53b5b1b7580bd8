"""Threadgroup variables declared in inner blocks of a kernel, which OpenCL has in the outermost one only."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY, evaluate, run
from nvrtc import compile_for_cuda

from mpsgrad.msl import translate

SWAP = "t[local_index] = a[i]; threadgroup_barrier(mem_flags::mem_threadgroup); out[i] = t[63 - local_index];"
X = np.arange(64, dtype=np.float32)

BODIES = [
    f"{{ threadgroup float t[64]; {SWAP} }}",
    f"if (count > 0) {{ threadgroup float t[64]; {SWAP} }} else {{ threadgroup float u[64]; u[local_index] = 0; out[i] = u[local_index]; }}",
    f"if (count == 0) {{ out[i] = 0; }} else if (count > 1) {{ {{ threadgroup float t[64]; {SWAP} }} }}",
    f"for (uint k = 0; k < 1; k++) {{ threadgroup float t[64]; {SWAP} }}",
    f"int k = 0; do {{ threadgroup float t[64]; {SWAP} k++; }} while (k < 1);",
    f"#pragma unroll\nfor (uint k = 0; k < 2; k++) {{ threadgroup float t[64]; {SWAP} threadgroup_barrier(mem_flags::mem_threadgroup); }}",
    f"switch (count) {{ case 0: break; default: {{ threadgroup float t[64]; {SWAP} }} }}",
    f"constexpr int n = 32; {{ threadgroup float t[2 * n]; {SWAP} }}",
    f"if (count > 0) {{ constexpr int n = 32; constexpr int m = n * 2; using T = float; threadgroup T t[m]; {SWAP} }}",
    f"constexpr int m = 8, n = m; if (count > 0) {{ constexpr int k = m * n, j = 2 * (k < m ? k : n); threadgroup float t[k + j]; {SWAP} }}",
    f"if (count > 0) {{ enum {{ N = 64 }}; typedef float T; if (count > 1) {{ threadgroup T t[N]; {SWAP} }} }}",
    "{ threadgroup float t[64]; t[local_index] = a[i]; threadgroup_barrier(mem_flags::mem_threadgroup);"
    " { threadgroup float s[64]; threadgroup float* p = s; { threadgroup int t, u[2][32]; if (local_index == 0) t = 5; u[local_index / 32][local_index % 32] = local_index;"
    " threadgroup_barrier(mem_flags::mem_threadgroup); p[local_index] = float(t - 5) + float(u[1][local_index % 32] - u[0][local_index % 32] - 32) + sizeof(u) / 256 - 1; }"
    " out[i] = t[63 - local_index] + s[local_index]; } }",
    "{ threadgroup float t[64]; t[local_index] = a[i]; } { threadgroup float t[64]; t[local_index] = a[i] + 1; threadgroup_barrier(mem_flags::mem_threadgroup); out[i] = t[63 - local_index] - 1; }",
    f"{{ threadgroup float4 v[16]; threadgroup float* t = (threadgroup float*)v; {SWAP} }}",
    f"{{ threadgroup array<float, 64> t; {SWAP} }}",
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=lambda v: v[:60])
def test_inner_blocks(body: str) -> None:
    np.testing.assert_array_equal(evaluate(body, X, among=BODIES), X[::-1])


def test_inner_blocks_compile_for_cuda() -> None:
    kernels = "".join(
        f"kernel void f{k}(device const float* a, device float* out, constant uint& count, uint i [[thread_position_in_grid]],"
        f" uint local_index [[thread_index_in_threadgroup]]) {{\n{body}\n}}\n"
        for k, body in enumerate(BODIES)
    )
    compile_for_cuda(translate(LIBRARY + kernels, "cuda", filename="inner.metal").source, "inner.metal")


def test_an_inner_block_of_a_template_kernel() -> None:
    source = LIBRARY + (
        "template <typename T, int N> kernel void swap(device const T* a, device T* out, uint i [[thread_position_in_threadgroup]]) {\n"
        "  if (N > 0) { constexpr int M = N / 2; threadgroup T t[M * 2]; t[i] = a[i];\n"
        "    threadgroup_barrier(mem_flags::mem_threadgroup); out[i] = t[N - 1 - i]; } }\n"
        '#define SWAP(T) template [[host_name("swap_" #T)]] kernel void swap<T, 64>(device const T*, device T*, uint);\n'
        "SWAP(float) SWAP(short)\n"
    )
    source = source.replace("kernel void swap(", "[[max_total_threads_per_threadgroup(64)]] kernel void swap(")
    for name, dtype in (("float", np.float32), ("short", np.int16)):
        got = run(source, f"swap_{name}", X.astype(dtype), np.zeros(64, dtype), threads=64)[1]
        np.testing.assert_array_equal(got, X[::-1])
