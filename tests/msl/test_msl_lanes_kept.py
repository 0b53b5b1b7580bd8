"""Functions of simdgroups whose result only one thread stores: the compiler may not drop the other threads."""

from __future__ import annotations

import math

import numpy as np
import pytest
from by_turns import by_turns
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


@pytest.mark.parametrize(
    ("row", "condition"), by_turns(ROWS, ("i == 4", "p.x == 4", "lane == 4", "g == 36 - 32 * n"), of=4)
)
def test_one_thread_stores(row: tuple[str, int], condition: str) -> None:
    expression, expected = row
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


LANES = np.arange(32)


@pytest.mark.parametrize(
    ("condition", "call", "source_lane"),
    [
        ("lane & 1", "simd_shuffle(v, ushort(lane ^ 2))", LANES ^ 2),
        ("lane > 9", "simd_shuffle_xor(v, 1)", LANES ^ 1),
        ("lane % 5 == 2", "simd_shuffle_up(v, 5)", np.where(LANES >= 5, LANES - 5, LANES)),
        ("lane >= 4", "quad_shuffle_xor(v, 3)", LANES ^ 3),
        ("i / 32 == 1", "simd_shuffle_rotate_down(v, 3)", (LANES + 3) % 32),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32])
def test_shuffles_among_some_lanes(condition: str, call: str, source_lane: np.ndarray, dtype: type) -> None:
    """Those that take part read each other, also where the first lane is none of them."""
    name = {np.uint8: "uchar", np.float16: "half", np.float32: "float"}[dtype]
    source = LIBRARY + (
        "[[max_total_threads_per_threadgroup(64)]]\n"
        f"kernel void f(device const {name}* x, device {name}* out, uint i [[thread_position_in_grid]],\n"
        f"  uint lane [[thread_index_in_simdgroup]]) {{\n"
        f"  {name} v = x[i], r = 0; if ({condition}) r = {call}; out[i] = r; }}\n"
    )
    x = np.random.default_rng(0).integers(1, 100, 64).astype(dtype)
    i = np.arange(64)
    mask = eval(condition.replace("/ 32", "// 32"), {"lane": i % 32, "i": i})
    lanes = np.broadcast_to(x.reshape(2, 32)[:, source_lane], (2, 32)).reshape(-1)
    out = run(source, "f", x, np.zeros(64, dtype), threads=64)[1]
    taking_part = np.broadcast_to(mask, 64).astype(bool)
    shared = taking_part & taking_part.reshape(2, 32)[:, source_lane].reshape(-1)
    np.testing.assert_array_equal(out[shared], lanes[shared])
    assert not out[~taking_part].any()


@pytest.mark.parametrize(
    ("dtype", "distances"),
    by_turns(
        (np.int8, np.uint16, np.int32, np.uint64, np.float16, np.float32),
        (("true", 6), ("true", 31), ("lane % 3 != 1", 1), ("lane > 9", 0), ("i >= 32", 16)),
        of=3,
    ),
)
def test_users_shuffle_by_distances_that_are_known_and_that_are_read(dtype: type, distances: tuple[str, int]) -> None:
    condition, distance = distances
    kind_of_number = np.dtype(dtype).name
    name = {"int8": "char", "float16": "half", "float32": "float"}.get(kind_of_number, f"{kind_of_number}_t")
    near = np.array([distance], np.uint16)
    sources = {
        "xor": LANES ^ distance,
        "down": np.where(LANES + distance < 32, LANES + distance, LANES),
        "up": np.where(LANES >= distance, LANES - distance, LANES),
        "rotate_down": (LANES + distance) % 32,
        "rotate_up": (LANES - distance) % 32,
    }
    calls = [f"simd_shuffle_{kind}(v, {value})" for kind in sources for value in (distance, "*near")]
    calls.append(f"{name}(simd_shuffle_xor(v > {name}(50), {distance}))")
    stores = "".join(f" out[{64 * place} + i] = {call};" for place, call in enumerate(calls))
    source = LIBRARY + (
        "[[max_total_threads_per_threadgroup(64)]]\n"
        f"kernel void f(device const {name}* x, device {name}* out, constant ushort* near,\n"
        "  uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {\n"
        f"  {name} v = x[i]; if ({condition}) {{{stores} }} }}\n"
    )
    x = np.random.default_rng(0).integers(1, 100, 64).astype(dtype)
    out = run(source, "f", x, np.zeros(64 * len(calls), dtype), near, threads=64, of_user=True)[1].reshape(-1, 2, 32)
    i = np.arange(64)
    taking_part = np.broadcast_to(eval(condition, {"lane": i % 32, "i": i, "true": True}), 64).reshape(2, 32)
    for place, kind in enumerate((*(kind for kind in sources for _ in range(2)), "xor")):
        read = x.reshape(2, 32)[:, sources[kind]]
        shared = taking_part & taking_part[:, sources[kind]]
        expected = read > 50 if place == len(calls) - 1 else read
        np.testing.assert_array_equal(out[place][shared], expected[shared], calls[place])
        assert not out[place][~taking_part].any()


def test_loops_whose_turns_know_how_the_next_begins_keep_simdgroups_together() -> None:
    """Entered behind its first condition such a loop has two entries, and its threads would run one after the other."""
    source = LIBRARY + (
        "[[max_total_threads_per_threadgroup(64)]]\n"
        "kernel void f(device const uint* x, device uint* y, uint i [[thread_position_in_grid]]) {\n"
        "  uint a = x[i], d = a, c = simd_max(a); bool p = false; device const uint* w = x;\n"
        "  for (uint k = 0; k < 4; k++) {\n"
        "    switch (d & 3) { case 0: case 1: p = (d++ > 6) && ((c-- & 1) == 0); }\n"
        "    switch ((c * *w) & 3) { case 0: w = x + 8; d = 1; break; default: c = 26; }\n"
        "  }\n  y[i] = p; y[i + 64] = c; y[i + 128] = d; }\n"
    )
    x = np.random.default_rng(0).integers(0, 40, 64).astype(np.uint32)
    expected = np.zeros((3, 64), np.uint32)
    for i, a in enumerate(x):
        d, c, p, w = int(a), int(x[i // 32 * 32 : i // 32 * 32 + 32].max()), False, 0
        for _ in range(4):
            if (d & 3) < 2:
                p = d > 6 and (c & 1) == 0
                c -= d > 6
                d += 1
            if (c * int(x[w])) & 3 == 0:
                w, d = 8, 1
            else:
                c = 26
        expected[:, i] = p, c, d
    y = run(source, "f", x, np.zeros((3, 64), np.uint32), threads=64, of_user=True)[1]
    np.testing.assert_array_equal(y, expected)
