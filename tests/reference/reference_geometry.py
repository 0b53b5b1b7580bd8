"""Drawn geometry, and the plainest possible statement of what a window reads, for the tests of the references."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st

seeds = st.integers(0, 2**32 - 1)
edges = st.sampled_from(["zero", "clamp"])


@dataclass(frozen=True)
class Geometry:
    """Source size and the keyword arguments of a windowed operation, all (y, x)."""

    source_size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    offset: tuple[int, int]
    size: tuple[int, int]
    edge: str

    def keywords(self, *without: str) -> dict[str, Any]:
        names = ("kernel", "stride", "dilation", "offset", "size", "edge")
        return {name: getattr(self, name) for name in names if name not in without}

    def reads(self, y: int, x: int) -> Iterator[tuple[int, int, int, int, bool]]:
        """For output pixel (y, x), each tap in row-major order: ky, kx, clamped source row and column, inside or not.

        tap = offset + stride * i - floor(kd / 2) + dilation * p
        """
        for ky, kx in product(range(self.kernel[0]), range(self.kernel[1])):
            position, clamped = [], []
            for axis, (i, p) in enumerate(((y, ky), (x, kx))):
                extent = (self.kernel[axis] - 1) * self.dilation[axis] + 1
                tap = self.offset[axis] + self.stride[axis] * i - extent // 2 + self.dilation[axis] * p
                position.append(tap)
                clamped.append(min(max(tap, 0), self.source_size[axis] - 1))
            yield ky, kx, clamped[0], clamped[1], clamped == position


@st.composite
def geometries(draw: st.DrawFn, dilated: bool = True) -> Geometry:
    """Odd sizes, windows larger than the image, strides above the window, windows wholly outside."""

    def pair(low: int, high: int) -> tuple[int, int]:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    return Geometry(
        source_size=pair(1, 6),
        kernel=pair(1, 4),
        stride=pair(1, 5),
        dilation=pair(1, 3) if dilated else (1, 1),
        offset=pair(-5, 8),
        size=pair(1, 4),
        edge=draw(edges),
    )


def directional_difference(
    function: Callable[[np.ndarray], np.ndarray], at: np.ndarray, direction: np.ndarray, step: float = 1e-5
) -> np.ndarray:
    """Central difference of `function` at `at` along `direction`. Its error is of order step^2 + 1e-16 / step."""
    return (function(at + step * direction) - function(at - step * direction)) / (2.0 * step)


def assert_gradient(
    function: Callable[[np.ndarray], np.ndarray],
    at: np.ndarray,
    source_gradient: np.ndarray,
    gradient: np.ndarray,
    rng: np.random.Generator,
    step: float = 1e-5,
) -> None:
    """<gradient, v> = d/dt <source_gradient, function(at + t v)> for three random directions v.

    A wrong element of the gradient shows in a random direction with certainty. The tolerance allows for the step^2 of
    the difference (times third derivatives, which the callers keep below a few hundred) and for rounding / step.
    """
    assert gradient.shape == at.shape
    for _ in range(3):
        v = rng.standard_normal(at.shape)
        slopes = directional_difference(function, at, v, step)
        scale = np.abs(source_gradient * slopes).sum() + np.abs(source_gradient).sum() + np.abs(gradient * v).sum()
        np.testing.assert_allclose(
            (gradient * v).sum(), (source_gradient * slopes).sum(), rtol=0, atol=1e-7 * scale + 1e-12
        )
