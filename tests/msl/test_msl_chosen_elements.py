"""Elements of threads' arrays that a condition chooses: each thread writes its own."""

from __future__ import annotations

from collections.abc import Callable

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
