"""Packing of vectors into integers and back, against NumPy."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY, evaluate
from nvrtc import compile_for_cuda

from mpsgrad.msl import translate

# Layout, name after "unorm" or "snorm", bits of each component from the lowest.
LAYOUTS = [("4x8", (8, 8, 8, 8)), ("2x16", (16, 16)), ("10a2", (10, 10, 10, 2)), ("565", (5, 6, 5))]
CASES = [(kind, layout, bits) for layout, bits in LAYOUTS for kind in ("unorm", "snorm") if kind == "unorm" or "x" in layout]


def packed(values: np.ndarray, bits: tuple[int, ...], signed: bool) -> np.ndarray:
    low = -1 if signed else 0
    result = np.zeros(len(values), np.int64)
    shift = 0
    for component, width in zip(values.T, bits, strict=True):
        largest = np.float32(2 ** (width - signed) - 1)
        number = np.rint(np.clip(np.nan_to_num(component), low, 1) * largest).astype(np.int64)
        result |= (number & (2**width - 1)) << shift
        shift += width
    return result


def unpacked(words: np.ndarray, bits: tuple[int, ...], signed: bool) -> np.ndarray:
    columns = []
    shift = 0
    for width in bits:
        number = words.astype(np.int64) >> shift & (2**width - 1)
        if signed:
            number = np.where(number >= 2 ** (width - 1), number - 2**width, number)
        columns.append(np.maximum(number / (2.0 ** (width - signed) - 1), -1))
        shift += width
    return np.stack(columns, 1)


@pytest.mark.parametrize("scalar", ["float", "half"])
@pytest.mark.parametrize(("kind", "layout", "bits"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_pack(kind: str, layout: str, bits: tuple[int, ...], scalar: str) -> None:
    values = np.random.default_rng(1).uniform(-1.3, 1.3, (200, 4)).astype(np.float16 if scalar == "half" else np.float32)
    values[:6] = [[0, 1, -1, 0.5], [2, -2, 0, 1], [np.inf, -np.inf, 1, 0], [np.nan, 1, np.nan, 0.25], [1, 1, 1, 1], [-0.0] * 4]
    n = len(bits)
    components = ", ".join(f"a[4 * i + {k}]" for k in range(n))
    got = evaluate(
        f"out[i] = pack_{scalar}_to_{kind}{layout}({scalar}{n}({components}));", values.ravel(), output=np.uint32, count=200
    )
    expected = packed(values[:, :n].astype(np.float32), bits, kind == "snorm")
    np.testing.assert_array_equal(got, expected.astype(np.uint32))


@pytest.mark.parametrize("scalar", ["float", "half"])
@pytest.mark.parametrize(("kind", "layout", "bits"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_unpack(kind: str, layout: str, bits: tuple[int, ...], scalar: str) -> None:
    words = np.random.default_rng(2).integers(0, 2 ** sum(bits), 200).astype(np.uint32)
    words[:3] = [0, 2 ** sum(bits) - 1, 1 << bits[0] - 1]
    expected = unpacked(words, bits, kind == "snorm")
    bodies = [f"out[i] = unpack_{kind}{layout}_to_{scalar}(a[i])[{k}];" for k in range(len(bits))]
    for k, body in enumerate(bodies):
        got = evaluate(body, words, among=bodies)
        np.testing.assert_allclose(got, expected[:, k], rtol=2.0**-10 if scalar == "half" else 2.0**-23, atol=2.0**-24)


@pytest.mark.parametrize("scalar", ["float", "half"])
def test_srgb_there_and_back(scalar: str) -> None:
    words = np.arange(256, dtype=np.uint32) * 0x01010101
    value = words & 255
    encoded = value / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    tolerance = 2.0**-10 if scalar == "half" else 4e-6
    bodies = [f"out[i] = unpack_unorm4x8_srgb_to_{scalar}(a[i])[{k}];" for k in range(4)]
    for body, expected in zip(bodies, (linear, linear, linear, encoded), strict=True):
        got = evaluate(body, words, among=bodies)
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=1e-7)
    again = evaluate(f"out[i] = pack_{scalar}_to_srgb_unorm4x8(unpack_unorm4x8_srgb_to_{scalar}(a[i]));", words, output=np.uint32)
    np.testing.assert_array_equal(again, words)
    outside = evaluate(f"out[i] = pack_{scalar}_to_srgb_unorm4x8({scalar}4(a[i], -a[i], NAN, 7));", np.full(4, 9, np.float32), output=np.uint32)
    np.testing.assert_array_equal(outside, 0xFF0000FF)


def test_packing_compiles_for_cuda() -> None:
    statements = []
    for scalar in ("float", "half"):
        for kind, layout, _ in [*CASES, ("srgb_unorm", "4x8", ())]:
            back = f"unpack_{kind}{layout}_to_{scalar}" if kind != "srgb_unorm" else f"unpack_unorm4x8_srgb_to_{scalar}"
            statements.append(f"x[0] = pack_{scalar}_to_{kind}{layout}({back}(x[0]));")
    source = f"{LIBRARY}kernel void f(device uint* x) {{ {' '.join(statements)} }}\n"
    compile_for_cuda(translate(source, "cuda", filename="pack.metal").source, "pack.metal")
