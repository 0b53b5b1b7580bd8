"""Padding of images along x, y and the feature channels, and its gradient: a matrix along each axis."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from .window import Array, image

PadMode = Literal["zero", "constant", "clamp", "mirror", "mirror_with_edge"]
Triple = tuple[int, int, int]


def pad_matrix(size: int, before: int, after: int, mode: PadMode) -> Array:
    """U[o, i]: 1 where output o is a copy of element i. A negative number of elements is cut off.

    Mirrored positions are found step by step: outside, a position goes to the other side of the nearer edge (which is
    the last element's centre for "mirror", its end for "mirror_with_edge") until it is inside.
    """
    matrix = np.zeros((before + size + after, size))
    repeat = 1 if mode == "mirror_with_edge" else 0
    for o in range(matrix.shape[0]):
        i = o - before
        if mode == "clamp" or (mode == "mirror" and size == 1):
            i = min(max(i, 0), size - 1)
        while mode in ("mirror", "mirror_with_edge") and not 0 <= i < size:
            i = -i - repeat if i < 0 else 2 * (size - 1) + repeat - i
        if 0 <= i < size:
            matrix[o, i] = 1.0
    return matrix


def _matrices(shape: tuple[int, ...], before: Triple, after: Triple, mode: PadMode) -> tuple[Array, Array, Array]:
    y, x, c = (pad_matrix(n, b, a, mode) for n, b, a in zip(shape, before, after, strict=True))
    return y, x, c


def pad(
    source: npt.ArrayLike, before: Triple, after: Triple, mode: PadMode = "zero", fill: npt.ArrayLike = 0.0
) -> Array:
    """`source` with as many rows, columns and channels (y, x, c) `before` and `after` it (MPSNNPad).

    `fill`, for "constant", is one value or one for each channel of the result.
    """
    x = image(source, "source")
    rows, columns, channels = _matrices(x.shape[1:], before, after, mode)
    result = np.einsum("oi,pj,qc,nijc->nopq", rows, columns, channels, x, optimize=True)
    if mode == "constant":
        copied = np.einsum("oi,pj,qc->opq", rows, columns, channels)
        result += (1.0 - copied) * np.asarray(fill, np.float64)
    return result


def pad_gradient(
    source_gradient: npt.ArrayLike, before: Triple, after: Triple, mode: PadMode = "zero"
) -> Array:
    """dx = U^T g along each axis: each element's copies are added up (MPSNNPadGradient)."""
    g = image(source_gradient, "source_gradient")
    shape = tuple(n - b - a for n, b, a in zip(g.shape[1:], before, after, strict=True))
    rows, columns, channels = _matrices(shape, before, after, mode)
    return np.einsum("oi,pj,qc,nopq->nijc", rows, columns, channels, g, optimize=True)
