"""Numbers that are the same for all threads that come one way, where each way leads through a loop."""

from __future__ import annotations

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.msl import translate

LANES = 64
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
LONG = "for (int k = 0; k < 30; k++) a = a * 5 + b;"
SHORT = "for (int k = 0; k < 4; k++) a = a * 7 + b;"
ROLLED = f'_Pragma("clang loop unroll(disable)") {SHORT}'
FUNCTION = f"""uint of(uint a, uint b, thread uint& out) {{
  if (a & 1) {{ {LONG} out = a; return 10; }}
  {ROLLED} out = a; return 20;
}}
"""
CALLED = f"""uint one(thread uint& a, uint b) {{ {LONG} return 10; }}
uint two(thread uint& a, uint b) {{ {ROLLED} return 20; }}
"""


def kernel(body: str, functions: str = "") -> str:
    return (
        f"{HEAD}{functions}kernel void f(device const uint* x, device uint* y, constant uint& n,\n"
        f"  uint i [[thread_position_in_grid]]) {{\n  uint a = x[i], b = x[i + {LANES}], r = 0;\n  {body}\n"
        f"  y[i] = r; y[i + {LANES}] = a;\n}}\n"
    )


def turned(a: np.ndarray, b: np.ndarray, factor: int, turns: int) -> np.ndarray:
    for _ in range(turns):
        a = a * np.uint32(factor) + b
    return a


@pytest.mark.parametrize(
    ("body", "functions"),
    [
        (f"if (a & 1) {{ {LONG} r = 10; }} else {{ {ROLLED} r = 20; }}", ""),
        (f"if (a & 1) {{ {LONG} r = 10; }} else if (n > 0) {{ {ROLLED} r = 20; }} else {{ {LONG} r = 30; }}", ""),
        (f"for (uint t = 0; t < n; t++) {{ if (a & 1) {{ {LONG} r = 10; break; }} {ROLLED} r = 20; break; }}", ""),
        (f"if (a & 1) {{ {LONG} y[i] = 10; y[i + {LANES}] = a; return; }} {ROLLED} r = 20;", ""),
        ("uint out; r = of(a, b, out); a = out;", FUNCTION),
        ("r = (a & 1) ? one(a, b) : two(a, b);", CALLED),
        ("if (a & 1) r = one(a, b); else r = two(a, b);", CALLED),
    ],
)
def test_each_thread_has_the_number_of_its_way(body: str, functions: str) -> None:
    x = np.random.default_rng(0).integers(0, 1000, 2 * LANES).astype(np.uint32)
    y = np.zeros(2 * LANES, np.uint32)
    mg.compile(kernel(body, functions)).function("f")(LANES, x, y, np.uint32(3))
    a, b = x.reshape(2, LANES)
    odd = a & 1 == 1
    np.testing.assert_array_equal(y[:LANES], np.where(odd, 10, 20))
    np.testing.assert_array_equal(y[LANES:], np.where(odd, turned(a, b, 5, 30), turned(a, b, 7, 4)))


def passed_by(body: str, functions: str) -> int:
    text = translate(kernel(body, functions), "opencl", launch="row").source
    return text.count("if (never_mtl()) {} else")


@pytest.mark.parametrize(
    ("body", "functions", "count"),
    [
        (f"if (a & 1) {{ {LONG} r = 10; }}", "", 0),
        (f"if (a & 1) {{ {LONG} r = 10; }} {LONG}", "", 0),
        (f"if (a & 1) {{ {LONG} return; }} {LONG}", "", 1),
        (f"{LONG} {ROLLED}", "", 0),
        (f"if (a & 1) {{ {SHORT} r = 1; }} else {{ {SHORT} r = 2; }}", "", 0),
        ("uint out; r = of(a, b, out);", FUNCTION, 1),
        ("r = one(a, b) + two(a, b);", CALLED, 0),
        ("r = (a & 1) ? one(a, b) : two(a, b);", CALLED, 1),
    ],
)
def test_loops_are_passed_by_in_choices(body: str, functions: str, count: int) -> None:
    assert passed_by(body, functions) == count


def test_only_cpus_pass_loops_by() -> None:
    source = kernel(f"if (a & 1) {{ {LONG} r = 10; }} else {{ {ROLLED} r = 20; }}")
    assert "never_mtl" not in translate(source, "cuda", launch="row").source
    assert "never_mtl" not in translate(source, "opencl").source


def test_an_else_stays_with_its_if() -> None:
    body = f"if (a & 1) {LONG} else {ROLLED} if (n > 2) r = 5;"
    x = np.random.default_rng(1).integers(0, 1000, 2 * LANES).astype(np.uint32)
    y = np.zeros(2 * LANES, np.uint32)
    mg.compile(kernel(body)).function("f")(LANES, x, y, np.uint32(3))
    a, b = x.reshape(2, LANES)
    np.testing.assert_array_equal(y[:LANES], np.full(LANES, 5))
    np.testing.assert_array_equal(y[LANES:], np.where(a & 1 == 1, turned(a, b, 5, 30), turned(a, b, 7, 4)))
