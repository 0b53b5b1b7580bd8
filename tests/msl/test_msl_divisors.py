"""Divisors that are zero for threads, or for all of them, where none divides."""

from __future__ import annotations

import re

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.msl import translate

LANES = 64
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
QUOTIENT = "uint quotient(uint a, uint b) { return a / b; }\n"
OTHERS = """template <typename T> T rest(T a, T b) { return a % b; }
struct Pair { uint lo, hi; uint per() const { return hi / lo; } };
"""
GUARDED = [
    "h / (c + 1)", "quotient(h, c + 1)", "rest<uint>(h, c + 1)", "Pair{c + 1, h}.per()", "(uint2(h) / (uint2(c) + 1)).y"
]  # fmt: skip


def source(statements: str, functions: str) -> str:
    quotient = QUOTIENT if "quotient" in statements else ""
    return (
        f"{HEAD}{quotient}{functions}kernel void f(device const uint* x, device uint* y, constant uint2& n,\n"
        f"  uint i [[thread_position_in_grid]]) {{ uint c = x[i], h = 3 * i, r = 0; {statements} y[i] = r; }}\n"
    )


def test_nothing_is_divided_where_a_choice_forbids_it() -> None:
    turns = "".join(f"for (uint k = i & 7; k > 0; k--) {{ if (c < 8) r += {value}; }}" for value in GUARDED)
    uniform = "if (n.x < 8) r += n.y / (n.x + 1);"
    x = np.where(np.arange(LANES) % 3 == 0, np.uint32(0xFFFFFFFF), np.arange(LANES, dtype=np.uint32) % 8)
    y, n = np.zeros(LANES, np.uint32), np.array([0xFFFFFFFF, 9], np.uint32)
    mg.compile(source(turns + uniform, OTHERS)).function("f")(LANES, x, y, n, threadgroup=LANES)
    h, divisor = 3 * np.arange(LANES), x.astype(int) + 1
    one = np.where(x < 8, 4 * (h // divisor) + h % divisor, 0)
    np.testing.assert_array_equal(y, np.arange(LANES) % 8 * one)


@pytest.mark.parametrize(
    ("statements", "divisors"),
    [
        ("if (c) r = h / c;", []),
        ("r = h / 8 + h % (2 * LENGTH);", []),
        ("for (uint s = 1; s < 64; s *= 2) r += h % (2 * s);", []),
        ("r = quotient(h, 16);", []),
        ("float v = c + 1; r = uint(h / (v + 1));", []),
        ("r = h / (c + 1) % n.y;", ["((c+1))"]),
        ("uint d = c; d++; r = h; r /= d;", ["(d)"]),
        ("uint d = c; r = h % ++d;", ["(++d)"]),
        ("r = quotient(h, 2 * c);", ["(b)"]),
    ],
)
def test_only_what_is_computed_hides_what_it_is(statements: str, divisors: list[str]) -> None:
    text = translate(source(statements, "constant uint LENGTH = 8;"), "opencl", launch="row").source
    found = re.findall(r"in_place_mtl(\( (?:[^()]|\([^()]*\))*\))", text[text.index('"<metal>"') :])
    assert [each.replace(" ", "") for each in found] == divisors
    assert "in_place_mtl" not in translate(source(statements, "constant uint LENGTH = 8;"), "cuda", launch="row").source
