"""Statements that a condition keeps threads out of, written once more without it for threadgroups that are all in."""

# A line of source for each way to write it.
# ruff: noqa: E501

from __future__ import annotations

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.msl import translate

HEAD = "#include <metal_stdlib>\nusing namespace metal;\nstruct Sizes { uint rows, columns; };\n"
HEAD += "void advance(uint by, thread uint& k) { k += by; }\nuint same(uint by, uint k) { return k; }\n"
PARAMETERS = "device const float* x, device float* y, constant Sizes& sizes, constant uint& n,"
ROW = f"{PARAMETERS} uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]"
BOX = f"{PARAMETERS} uint2 p [[thread_position_in_grid]]"
MARK = "} while (never_mtl()); else {"

OF_ROWS = [
    "if (i < n) y[i] = x[i];",
    "if (i >= n) return; y[i] = x[i];",
    "if (i >= n) { return; } float v = x[i]; y[i] = v;",
    "if (n > i) { const float v = x[i]; y[i] = v; }",
    "if (i <= n - 1) y[same(n, i)] = x[i];",
    "uint k = i; if ((k < n)) { if (x[k] > 0) y[k] = x[k]; } if (n <= k) return; y[k] += 0;",
    "const uint rest = n % 64, whole = n - rest; int k = int(i); if (int(whole + rest) <= k) return; y[k] = x[k];",
    "if (i < n) y[i] = 0; if (i < n) for (uint k = 0; k < 2; k++) y[i] += 0.5f * x[i];",
]
OF_BOXES = [
    "if (p.x < sizes.columns && p.y < sizes.rows) y[p.y * sizes.columns + p.x] = x[p.y * sizes.columns + p.x];",
    "uint c = p.x, r = p.y; if (r >= sizes.rows || sizes.columns <= c) return; y[r * sizes.columns + c] = x[r * sizes.columns + c];",
]
LEFT = [
    "if (i < uint(x[0])) y[i] = x[i];",
    "if (i > n) y[i] = x[i];",
    "if (i < n) y[i] = x[i]; else y[i] = 0;",
    "if (i < n && x[i] > 0) y[i] = x[i];",
    "if (i < n || n == 3) y[i] = x[i];",
    "if (i != n) y[i] = x[i];",
    "if (i < n - t) y[i] = x[i];",
    "i += 1; if (i < n) y[i] = x[i];",
    "uint limit = n; limit -= t; if (i < limit) y[i] = x[i];",
    "if (t < n) y[i] = x[i];",
    "thread uint& k = i; k += t; if (i < n) y[i] = x[i];",
    "advance(n, i); if (i < n) y[i] = x[i];",
    "if (i < n) { float v = simd_sum(x[i]); y[i] = v; }",
    "if (i >= n) return; threadgroup float s[64]; s[t] = x[i]; y[i] = s[t];",
    "if (i < n) { threadgroup_barrier(mem_flags::mem_device); y[i] = x[i]; }",
    "if (i < n) { if (x[i] < 0) return; y[i] = x[i]; }",
    "if (i < n) { for (uint k = 0; k < 2; k++) if (x[k] < 0) y[i] = x[i]; }",
    "if (i < n) { float v = x[i]; " + "v = fma(v, x[0], x[1]); " * 12 + "y[i] = v; }",
]


def kernel(body: str, parameters: str) -> str:
    return f"{HEAD}kernel void f({parameters}) {{ {body} }}\n"


@pytest.mark.parametrize("body", LEFT)
def test_what_is_not_surely_the_same_is_left(body: str) -> None:
    assert MARK not in translate(kernel(body, ROW), "opencl", launch="row").source
    narrow = ROW.replace("uint i", "ushort i").replace("uint t", "ushort t")
    assert MARK not in translate(kernel(OF_ROWS[0], narrow), "opencl", launch="row").source


@pytest.mark.parametrize("body", [*OF_ROWS, *OF_BOXES])
def test_threads_beyond_the_work_are_kept_out(opencl_device: mg.Device, body: str) -> None:
    is_row = body in OF_ROWS
    source = kernel(body, ROW if is_row else BOX)
    assert MARK in translate(source, "opencl", launch="row").source
    assert MARK not in translate(source, "cuda", launch="box").source
    f = mg.compile(source, device=opencl_device).function("f")
    x = np.arange(1, 641, dtype=np.float32)
    extents = ((1, 1), (1, 63), (1, 64), (1, 65), (1, 320)) if is_row else ((3, 5), (8, 64), (9, 65), (5, 70))
    for rows, columns in extents:
        count = rows * columns
        sizes = {"rows": rows, "columns": columns}
        expected = np.where(np.arange(640) < count, x, -1)
        for grid in ((columns,), (columns + 37,), (320,)) if is_row else ((columns, rows), (columns + 3, rows + 9)):
            y = np.full(640, -1, np.float32)
            f(grid, x, y, sizes, count, threadgroup=(64,) if is_row else (8, 4))
            np.testing.assert_array_equal(y, expected)
        y = np.full(640, -1, np.float32)
        threadgroups = (-(-columns // 64),) if is_row else (-(-columns // 16), -(-rows // 4))
        f(threadgroups, x, y, sizes, count, threadgroup=(64,) if is_row else (16, 4), grid_of_threadgroups=True)
        np.testing.assert_array_equal(y, expected)


def test_copies_in_templates_have_their_functions(opencl_device: mg.Device) -> None:
    source = f"""{HEAD}struct Twice {{ float operator()(float v) {{ return 2 * v; }} }};
    float negated(float v) {{ return -v; }}
    template <typename T, typename F, float (*G)(float)> kernel void f({ROW}) {{
        if (i >= n) return;
        y[i] = T(G(F()(x[i])));
    }}
    template [[host_name("g")]] kernel void f<half, Twice, negated>({ROW});
    """
    assert MARK in translate(source, "opencl", launch="row").source
    y = np.zeros(300, np.float32)
    x = np.arange(300, dtype=np.float32)
    g = mg.compile(source, device=opencl_device).function("g")
    g(300, x, y, {"rows": 0, "columns": 0}, 290, threadgroup=64)
    np.testing.assert_array_equal(y, np.where(x < 290, -2 * x, 0))


def test_errors_are_found_once_and_in_their_line() -> None:
    source = kernel("if (i < n) {\n y[i] = x[i];\n y[i] = missing;\n }", ROW)
    with pytest.raises(mg.ShaderError) as found:
        mg.compile(source)
    assert found.value.line == HEAD.count("\n") + 3
    assert str(found.value).count("missing") == 2
