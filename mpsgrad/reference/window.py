"""Where the taps of a window fall: the addressing model that convolution and pooling share.

For one axis, with kernel size k, dilation d and extent kd = (k - 1) * d + 1, output pixel i reads the source pixels

    tap(i, p) = offset + stride * i - floor(kd / 2) + d * p        p = 0 .. k - 1

so `offset` is the source position of the centre tap of the first output pixel, and an even window leans to the top and
left. Reads outside the source follow the edge mode: "zero" reads 0, "clamp" reads the nearest edge pixel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Pair = tuple[int, int]
Edge = Literal["zero", "clamp"]


def window_extent(kernel: int, dilation: int = 1) -> int:
    """Number of source pixels from the first to the last tap of one axis: (kernel - 1) * dilation + 1."""
    return (kernel - 1) * dilation + 1


@dataclass(frozen=True)
class Window:
    """A window sliding over an N x H x W x C image; every pair is (y, x).

    The source is thought of as extended on each side as far as any tap reaches. `extend` builds that image, the slices
    of `taps` pick from it what tap (ky, kx) reads for all output pixels at once, and `fold` is the transpose of
    `extend`.
    """

    source_size: Pair
    kernel: Pair
    stride: Pair
    dilation: Pair
    offset: Pair
    size: Pair
    edge: Edge

    def __post_init__(self) -> None:
        if self.edge not in ("zero", "clamp"):
            raise ValueError(f"edge is {self.edge!r} but must be 'zero' or 'clamp'")
        for name in ("source_size", "kernel", "stride", "dilation", "size"):
            if min(getattr(self, name)) < 1:
                raise ValueError(f"{name} is {getattr(self, name)} but both numbers must be at least 1")

    def first_tap(self, axis: int) -> int:
        """Source coordinate of tap 0 of output pixel 0 along axis 0 (y) or 1 (x)."""
        return self.offset[axis] - window_extent(self.kernel[axis], self.dilation[axis]) // 2

    def positions(self, axis: int) -> npt.NDArray[np.int64]:
        """Source coordinates [output pixel][tap] along one axis, before any edge rule."""
        pixels = np.arange(self.size[axis], dtype=np.int64)[:, None] * self.stride[axis]
        taps = np.arange(self.kernel[axis], dtype=np.int64)[None, :] * self.dilation[axis]
        return self.first_tap(axis) + pixels + taps

    def borders(self, axis: int) -> Pair:
        """How many pixels the extended image adds before and after the source along one axis."""
        positions = self.positions(axis)
        return max(0, -int(positions[0, 0])), max(0, int(positions[-1, -1]) + 1 - self.source_size[axis])

    def inside(self) -> npt.NDArray[np.bool_]:
        """Whether a tap reads a pixel of the source, [tap number ky * kw + kx][output y][output x]."""
        positions = self.positions(0), self.positions(1)
        y, x = ((p >= 0) & (p < n) for p, n in zip(positions, self.source_size, strict=True))
        return (y.T[:, None, :, None] & x.T[None, :, None, :]).reshape(-1, *self.size)

    def taps(self) -> Iterator[tuple[Pair, tuple[slice, slice, slice]]]:
        """For each tap in row-major order, (ky, kx) and the index of its reads in the extended image (N, y, x)."""
        for ky in range(self.kernel[0]):
            for kx in range(self.kernel[1]):
                yield (ky, kx), (slice(None), self._slice(0, ky), self._slice(1, kx))

    def _slice(self, axis: int, tap: int) -> slice:
        start = self.borders(axis)[0] + self.first_tap(axis) + self.dilation[axis] * tap
        return slice(start, start + self.stride[axis] * (self.size[axis] - 1) + 1, self.stride[axis])

    def extend(self, source: Array) -> Array:
        """The source with the borders that the taps reach, filled by the edge rule."""
        borders = ((0, 0), self.borders(0), self.borders(1), (0, 0))
        return np.pad(source, borders, mode="edge") if self.edge == "clamp" else np.pad(source, borders)

    def fold(self, extended: Array) -> Array:
        """Transpose of `extend`: borders are dropped (zero) or added to the edge pixels that they replicate (clamp)."""
        for axis in (0, 1):
            before, _ = self.borders(axis)
            end = before + self.source_size[axis]
            lines = np.moveaxis(extended, axis + 1, 0)
            folded = lines[before:end].copy()
            if self.edge == "clamp":
                folded[0] += lines[:before].sum(axis=0)
                folded[-1] += lines[end:].sum(axis=0)
            extended = np.moveaxis(folded, 0, axis + 1)
        return np.ascontiguousarray(extended)


def image(array: npt.ArrayLike, name: str) -> Array:
    """`array` as a float64 N x H x W x C image."""
    result = np.asarray(array, np.float64)
    if result.ndim != 4:
        raise ValueError(f"{name} has shape {result.shape} but must be N x H x W x C")
    return result


def gradient_image(array: npt.ArrayLike, size: Pair | None) -> Array:
    """`array` as the source gradient of a result of `size` (y, x); None takes the gradient's own size."""
    result = image(array, "source_gradient")
    if size is not None and result.shape[1:3] != tuple(size):
        raise ValueError(f"source_gradient is {result.shape[1:3]} but size is {tuple(size)}")
    return result
