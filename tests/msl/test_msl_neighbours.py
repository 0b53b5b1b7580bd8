"""Indices of neighbouring threads as sums of 64 bits, by which Intel's vectorizer sees that they are neighbours."""

from __future__ import annotations

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.devices import opencl_launch
from mpsgrad.msl import translate

HEAD = """#include <metal_stdlib>
using namespace metal;
struct Sizes { uint rows, columns; };
struct Table { float of[4]; float operator[](uint k) const constant { return of[k & 3]; } };
"""
PARAMETERS = """device const float* x, device float* y, constant Sizes& sizes, constant uint& offset,
  uint2 p [[thread_position_in_grid]], uint2 l [[thread_position_in_threadgroup]],
  uint2 g [[threadgroup_position_in_grid]], uint t [[thread_index_in_threadgroup]]"""
MARK = "(long)(int)(("

FOUND = [
    "y[p.y * sizes.columns + p.x] = 1;",
    "uint column = g.x * 8 + l.x; y[p.y * sizes.columns + column] = 1;",
    "uint column = (g.x * 8u) + l.x, place = p.y * sizes.columns + column; y[place] = 1;",
    "const uint2 at = p; y[at.y * sizes.columns + uint(at.x)] = 1;",
    "device float* row = y + p.y * sizes.columns; row[p.x + offset - offset] = 1;",
    "y[(p.y * sizes.columns + (p.x))] = x[0];",
    "threadgroup float shared[64]; shared[l.y * 8 + l.x] = 1; y[0] = shared[0];",
    "threadgroup float shared[8][9]; shared[l.y][l.x + 1] = 1; y[0] = shared[0][0];",
    "for (uint k = p.x; k < sizes.columns; k += 8) y[p.y * sizes.columns + k] = 1;",
    "for (uint k = l.x + 1; k < 64; k += 8) y[k] = 1;",
    "if (p.x >= sizes.columns) return; if (p.y >= sizes.rows) { return; } y[p.y * sizes.columns + p.x] = 1; return;",
]
LEFT = [
    "y[p.x] = 1;",
    "y[int(p.y * sizes.columns) + int(p.x)] = 1;",
    "y[ulong(p.y * sizes.columns) + p.x] = 1;",
    "y[p.x * sizes.rows + p.y] = 1;",
    "y[offset - p.x] = 1;",
    "y[(p.y + p.x) & 7] = 1;",
    "for (uint k = p.x; k < sizes.columns; k *= 8) y[p.y * sizes.columns + k] = 1;",
    "for (uint k = p.x; k < sizes.columns; k += 8) { y[k + offset] = 1; k += 1; }",
    "for (uint k = p.x; k < sizes.columns; k += k) y[k + offset] = 1;",
    "for (uint k = p.x; k < sizes.columns; k += 8, k++) y[k + offset] = 1;",
    "for (uint k = p.x, m = 0; k < sizes.columns; k += 8) y[k + m] = 1;",
    "for (ushort k = p.x; k < sizes.columns; k += 8) y[k + offset] = 1;",
    "for (uint k = p.x; (k += 1) < sizes.columns; k += 8) y[k + offset] = 1;",
    "for (uint k = p.x; k < sizes.columns; k += 8.5f) y[k + offset] = 1;",
    "if (x[0] > 0) { y[p.x + 64] = 1; return; } y[p.x + offset] = 2;",
    "for (int k = 0; k < 4; k++) { if (x[k] > 0) return; } y[p.x + offset] = 2;",
    "float own[64] = {}; own[l.y * 8 + l.x] = 1; y[0] = own[offset];",
]


def kernel(body: str) -> str:
    return f"{HEAD}kernel void f({PARAMETERS}) {{ {body} }}\n"


@pytest.mark.parametrize("body", FOUND)
def test_sums_with_a_position_are_found(body: str) -> None:
    assert MARK in translate(kernel(body), "opencl", launch="row").source
    # Where threads that run abreast are in several rows they are no neighbours, and GPUs do not look for any.
    assert MARK not in translate(kernel(body), "opencl", launch="box").source
    assert MARK not in translate(kernel(body), "cuda", launch="box").source


@pytest.mark.parametrize("body", LEFT)
def test_other_indices_are_left(body: str) -> None:
    assert MARK not in translate(kernel(body), "opencl", launch="row").source


STRIDED = """
    for (uint local = p.x; local < n; local += 8) y[local] = x[local];
    for (int k = int(l.x) - 8; k < int(n); k += 16) { if (k < 0) continue; y[uint(k) + 100] = x[k]; }
    for (uint k = l.x + 1; k <= n; k += sizes.columns) { if (k > 40) break; y[199 + k] = x[k - 1]; }
    for (uint k = l.x; k < 8; k += 5 + l.x) for (uint m = k; m < n; m += 8) { uint place = m + 300; y[place] = x[m]; }
    for (uint k = offset + p.x; k + 8 < 24; k += 8) y[400 + k + 8] = 7;
"""


def test_loops_that_begin_at_a_position(opencl_device: mg.Device) -> None:
    source = kernel(f"const uint n = sizes.rows; {STRIDED}")
    assert translate(source, "opencl", launch="row").source.count("first_mtl +") == 6
    f = mg.compile(source, device=opencl_device).function("f")
    x = np.arange(1, 61, dtype=np.float32)
    y = np.zeros(500, np.float32)
    f((8, 1), x, y, {"rows": 53, "columns": 8}, 2**32 - 8, threadgroup=(8, 1))
    expected = np.zeros(500, np.float32)
    for first, count in ((0, 53), (200, 40), (300, 53)):
        expected[first : first + count] = x[:count]
    places = np.arange(-8, 53) % 16 < 8
    expected[100:153] = np.where(places[8:], 0, x[:53])
    expected[400:424] = 7
    assert y.tolist() == expected.tolist()


def test_operators_are_left() -> None:
    source = f"{HEAD}kernel void f(constant Table& x, device float* y, uint i [[thread_position_in_grid]]) "
    assert MARK not in translate(source + "{ y[i] = x[i + 1]; }", "opencl", launch="row").source


WRAPPING = {
    "offset + p.x": lambda p, offset: offset + p,
    "p.x - offset": lambda p, offset: p - offset,
    "offset - 1 - p.y + p.x": lambda p, offset: offset - 1 + p,
    "(offset ^ 0x80000000u) + p.x + 0x80000000u": lambda p, offset: offset + p,
    "3000000000u + p.x - (3000000000u - offset)": lambda p, offset: offset + p,
}


@pytest.mark.parametrize("index", WRAPPING)
@pytest.mark.parametrize("offset", [0, 5, 2**32 - 3])
@pytest.mark.parametrize("largest", [0, opencl_launch.MOST_BYTES])
def test_sums_wrap(
    opencl_device: mg.Device, index: str, offset: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With buffers that count as large, too: kernels for such have no sums of 64 bits."""
    monkeypatch.setattr(opencl_launch, "MOST_BYTES", largest)
    body = f"uint k = {index}; y[p.x] = {index} < sizes.columns ? x[{index}] + x[k] : -1;"
    x = np.arange(1, 81, dtype=np.float32)
    y = np.zeros(70, np.float32)
    f = mg.compile(kernel(body), device=opencl_device).function("f")
    f((70, 1), x, y, {"rows": 1, "columns": 80}, offset, threadgroup=(32, 1))
    places = WRAPPING[index](np.arange(70), offset) % 2**32
    assert y.tolist() == np.where(places < 80, 2 * x[np.minimum(places, 79)], -1).tolist()


@pytest.mark.parametrize("threadgroup", [(8, 4), (32, 2), (5, 1)])
def test_grids_with_large_buffers(
    opencl_device: mg.Device, threadgroup: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    f = mg.compile(kernel("y[p.y * 13 + p.x] = x[t] + 100 * l.y + 1000 * g.x;"), device=opencl_device).function("f")
    x = np.arange(64, dtype=np.float32)
    row, column = np.indices((9, 13))
    group, inside = divmod(column, threadgroup[0])
    widths = np.minimum(threadgroup[0], 13 - group * threadgroup[0])
    expected = row % threadgroup[1] * (widths + 100) + inside + 1000 * group
    for largest in (opencl_launch.MOST_BYTES, 0):
        monkeypatch.setattr(opencl_launch, "MOST_BYTES", largest)
        y = np.zeros((9, 13), np.float32)
        f((13, 9), x, y, {"rows": 9, "columns": 13}, 0, threadgroup=threadgroup)
        np.testing.assert_array_equal(y, expected)
