"""Kernels that add up in short loops, of which more threads run abreast than a vector has."""

# A line of source for each way to write it.
# ruff: noqa: E501

from __future__ import annotations

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.msl import translate

HEAD = "#include <metal_stdlib>\nusing namespace metal;\nstruct Sizes { uint rows, columns, inner; };\n"
PARAMETERS = """device const float* a, device const float* b, device float* c, constant Sizes& s,
  uint2 p [[thread_position_in_grid]], uint2 l [[thread_position_in_threadgroup]]"""
PRODUCT = "a[p.y * s.inner + k] * b[k * s.columns + p.x]"
SUM = f"float t = 0; for (uint k = 0; k < s.inner; k++) t += {PRODUCT};"
STORE = "c[p.y * s.columns + p.x] = t;"

WIDE = [
    f"{SUM} {STORE}",
    f"if (p.x >= s.columns || p.y >= s.rows) return; {SUM} {STORE}",
    f"uint row = p.y, column = p.x; float t = 1; for (int k = 0; k <= int(s.inner) - 1; ++k) {{ float v = a[row * s.inner + k]; t = fma(v, b[k * s.columns + column], t); }} {STORE}",
    "threadgroup float x[8][8], y[64]; float t = 0; for (uint i = 0; i < s.inner; i += 8) { x[l.y][l.x] = a[p.y * s.inner + i + l.x]; y[l.y * 8 + l.x] = b[(i + l.y) * s.columns + p.x]; threadgroup_barrier(mem_flags::mem_threadgroup); for (uint k = 0; k < 8; k++) t += x[l.y][k] * y[k * 8 + l.x]; threadgroup_barrier(mem_flags::mem_threadgroup); } " + STORE,
]
LEFT = [
    STORE.replace("= t", "= a[p.x]"),
    f"{SUM.replace('p.y *', 'p.x *')} {STORE}",
    f"device const float* from = a + p.x * s.inner; {SUM.replace(PRODUCT, 'from[k]')} {STORE}",
    f"uint place = p.x; place *= 2; {SUM.replace('p.y *', 'place *')} {STORE}",
    f"{SUM.replace('k < s.inner', 'k < p.x')} {STORE}",
    f"{SUM.replace('t +=', 'if (a[k] > 0) t +=')} {STORE}",
    f"{SUM} while (t > 1) t /= 2; {STORE}",
    f"{SUM.replace('s.inner; k++', '4; k++')} {STORE}",
    f"{SUM} t = simd_sum(t); {STORE}",
    f"float own[4]; {SUM} own[s.rows & 3] = t; t = own[s.columns & 3]; {STORE}",
    f"{SUM.replace('t +=', 't *=')} {STORE}",
]


def kernel(body: str, name: str = "f") -> str:
    return f"kernel void {name}({PARAMETERS}) {{ {body} }}\n"


def is_wide(body: str, launch: str = "row") -> bool:
    return translate(HEAD + kernel(body), "opencl", launch=launch).kernels["f"].is_wide  # type: ignore[arg-type]


@pytest.mark.parametrize("body", LEFT)
def test_other_kernels_are_left(body: str) -> None:
    assert not is_wide(body)


@pytest.mark.parametrize("body", WIDE)
def test_sums_are_found(body: str) -> None:
    assert [is_wide(body, launch) for launch in ("row", "narrow", "box")] == [True, False, False]


def test_rows_of_any_length(opencl_device: mg.Device) -> None:
    names = ["guarded", "tiled"]
    library = mg.compile(HEAD + "".join(map(kernel, (WIDE[1], WIDE[-1]), names)), device=opencl_device)
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, shape).astype(np.float32) for shape in ((16, 24), (24, 56)))
    sizes = {"rows": 16, "columns": 56, "inner": 24}
    for name in names:
        for threadgroup in ((16, 2), (24, 4), (8, 8), (3, 1), (56, 1)) if name == "guarded" else ((8, 8),):
            c = np.zeros((16, 56), np.float32)
            library.function(name)((56, 16), a, b, c, sizes, threadgroup=threadgroup)
            np.testing.assert_array_equal(c, a @ b)
