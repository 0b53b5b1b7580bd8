"""Functions of simdgroups whose result only one thread stores: the compiler may not drop the other threads."""

from __future__ import annotations

import math

import numpy as np
import pytest
from metal_runner import LIBRARY, run

ROWS = [
    ("simd_shuffle(100 + x, ushort(lane ^ 1))", 105),
    ("simd_shuffle_xor(100 + x, 1)", 105),
    ("simd_shuffle_down(100 + x, 3)", 107),
    ("simd_shuffle_up(100 + x, 2)", 102),
    ("simd_shuffle_rotate_down(100 + x, 30)", 102),
    ("simd_shuffle_rotate_up(100 + x, 6)", 130),
    ("simd_broadcast(100 + x, 9)", 109),
    ("simd_broadcast_first(100 + x)", 100),
    ("simd_sum(x)", 496),
    ("simd_max(x)", 31),
    ("simd_min(x + 1)", 1),
    ("simd_product(lane < 9 ? x + 1 : 1)", math.factorial(9)),
    ("simd_or(x)", 31),
    ("simd_and(x | 64)", 64),
    ("simd_xor(lane == 9 ? 5 : 3)", 6),
    ("simd_prefix_inclusive_sum(x)", 10),
    ("simd_prefix_exclusive_sum(x)", 6),
    ("simd_prefix_inclusive_product(x + 1)", 120),
    ("int(ulong(simd_ballot(lane & 1)))", -1431655766),
    ("int(simd_all(x < 32)) + 2 * int(simd_any(x == 20))", 3),
    ("quad_sum(x)", 22),
    ("quad_shuffle_xor(100 + x, 3)", 107),
    ("quad_broadcast(100 + x, 2)", 106),
    ("reduced(x)", 496),
]


@pytest.mark.parametrize("condition", ["i == 4", "p.x == 4", "lane == 4", "g == 36 - 32 * n"])
@pytest.mark.parametrize(("expression", "expected"), ROWS, ids=lambda v: v if isinstance(v, str) else "")
def test_one_thread_stores(expression: str, expected: int, condition: str) -> None:
    two = "uint2" if condition.startswith("p") else "uint"
    source = LIBRARY + (
        "int reduced(int v) { for (ushort d = 16; d > 0; d /= 2) v += simd_shuffle_xor(v, d); return v; }\n"
        "[[max_total_threads_per_threadgroup(32)]]\n"
        f"kernel void f(device int* out, constant uint& n, {two} p [[thread_position_in_grid]],\n"
        f"  {two} q [[thread_position_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {{\n"
        f"  uint i = {'q.x' if two == 'uint2' else 'q'}, g = {'p.x' if two == 'uint2' else 'p'}; int x = int(lane);\n"
        f"  int r = {expression}; if ({condition}) out[0] = r; }}\n"
    )
    assert run(source, "f", np.zeros(1, np.int32), np.uint32(1), threads=32)[0][0] == expected
