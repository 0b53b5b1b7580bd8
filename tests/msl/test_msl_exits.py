"""Functions of simdgroups on the way out of a loop: on CPUs those threads work together that leave it in one turn."""

from __future__ import annotations

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.msl import translate

pytestmark = pytest.mark.skipif(mg.default_device().family != "cpu", reason="Metal leaves it to the compilers of GPUs")

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
FUNCTIONS = """int counted() { return simd_sum(1); }
int of(int v) { while (true) { if (v == simd_min(v)) return simd_sum(1); } }
int searched(int v) {
  for (int k = 0; k < 64; k++) { if (v != simd_broadcast_first(v)) continue; return counted(); }
  return 0;
}
"""
BODIES = [
    "while (true) { int w = simd_min(v); if (v == w) { r = simd_sum(1); break; } }",
    "while (true) { int w = simd_broadcast_first(v); if (v == w) { r = simd_sum(1); break; } }",
    "while (true) { if (v != simd_min(v)) { continue; } else { r = counted(); break; } }",
    "for (int k = 0; k < 64; k++) { int w = simd_min(v); if (v != w) continue; r = simd_sum(1); break; }",
    "for (;;) if (v == simd_max(v)) { r = counted(); if (r > 0) break; else break; }",
    "bool done = false; while (!done) { int w = simd_min(v); if (v == w) { r = simd_sum(1); done = true; } }",
    "bool going = true; do { if (v == simd_broadcast_first(v)) { r = counted(); going = false; } } while (going);",
    "for (int left = 1; left != 0;) { if (v == simd_min(v)) { r = simd_sum(1); left = 0; } }",
    "while (true) { switch (v - simd_min(v)) { case 0: r = simd_sum(1); break; default: break; } if (r) break; }",
    "r = of(v);",
    "r = searched(v);",
]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("run", [1, 4, 32])
def test_threads_that_leave_in_one_turn_are_counted(body: str, run: int) -> None:
    source = (
        f"{HEAD}{FUNCTIONS}kernel void f(device const int* x, device int* y, uint i [[thread_position_in_grid]]) {{\n"
        f"  int v = x[i], r = 0;\n  {body}\n  y[i] = r;\n}}\n"
    )
    x = np.arange(64, dtype=np.int32) // run
    y = np.zeros(64, np.int32)
    mg.compile(source).function("f")(64, x, y, threadgroup=64)
    np.testing.assert_array_equal(y, run)


def test_several_values_are_added_up_one_after_the_other() -> None:
    """As a histogram is, whose threads of one bin add up before one of them writes."""
    source = (
        f"{HEAD}kernel void f(device const int* bins, device const int* x, device int* y,\n"
        "                     uint i [[thread_position_in_grid]]) {\n"
        "  bool is_open = true;\n"
        "  while (is_open) {\n"
        "    int bin = simd_broadcast_first(bins[i]);\n"
        "    if (bins[i] == bin) {\n"
        "      int sum = simd_sum(x[i]);\n"
        "      if (simd_is_first()) y[bin] = sum;\n"
        "      is_open = false;\n"
        "    }\n"
        "  }\n"
        "}\n"
    )
    rng = np.random.default_rng(1)
    bins, x = rng.integers(0, 7, 32).astype(np.int32), rng.integers(0, 100, 32).astype(np.int32)
    y = np.zeros(7, np.int32)
    mg.compile(source).function("f")(32, bins, x, y, threadgroup=32)
    np.testing.assert_array_equal(y, np.bincount(bins, x, 7).astype(np.int32))


def test_only_cpus_are_shown_ways_back() -> None:
    head = f"{HEAD}kernel void f(device int* y, uint i [[thread_position_in_grid]])"
    source = f"{head} {{ int v = int(i), r; {BODIES[0]} y[i] = r; }}"
    for launch, count in (("box", 1), ("row", 1), ("whole", 0)):
        assert translate(source, "opencl", launch=launch).source.count("if (never_mtl())") == count  # type: ignore[arg-type]
    assert "never_mtl" not in translate(source, "cuda", launch="box").source
