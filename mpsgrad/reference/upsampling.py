"""Resampling by the nearest pixel and bilinear, forward and gradient: a matrix along each axis, and its transpose."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from .window import Array, Pair, image


def interpolation_matrix(size: int, count: int, ratio: Fraction, kind: str, align_corners: bool = False) -> Array:
    """U[o, i]: what output o takes of pixel i. It lies at s = o * ratio, or with aligned corners at
    o * (size - 1) / (count - 1)."""
    if align_corners:
        ratio = Fraction(size - 1, count - 1) if count > 1 else Fraction(0)
    matrix = np.zeros((count, size))
    for o in range(count):
        position = o * ratio
        near = int(position)
        share = float(position - near) if kind == "bilinear" else 0.0
        matrix[o, near] += 1.0 - share
        matrix[o, min(near + 1, size - 1)] += share
    return matrix


def _matrices(
    size: Pair, result: Pair, ratio: tuple[Fraction, Fraction], kind: str, align_corners: bool
) -> tuple[Array, Array]:
    y, x = (
        interpolation_matrix(n, count, step, kind, align_corners)
        for n, count, step in zip(size, result, ratio, strict=True)
    )
    return y, x


def resample(
    source: npt.ArrayLike,
    result: Pair,
    ratio: tuple[Fraction, Fraction],
    kind: str = "bilinear",
    align_corners: bool = False,
) -> Array:
    """y = U x along both axes; pairs are (y, x), kind is "nearest" or "bilinear".

    MPSCNNUpsamplingNearest and MPSCNNUpsamplingBilinear have the ratio 1 / scale factor, MPSNNResizeBilinear size /
    result.
    """
    x = image(source, "source")
    rows, columns = _matrices((x.shape[1], x.shape[2]), result, ratio, kind, align_corners)
    return np.einsum("oi,pj,nijc->nopc", rows, columns, x, optimize=True)


def resample_gradient(
    source_gradient: npt.ArrayLike,
    size: Pair,
    ratio: tuple[Fraction, Fraction],
    kind: str = "bilinear",
    align_corners: bool = False,
) -> Array:
    """dx = U^T g along both axes, for a source of `size` (y, x)."""
    g = image(source_gradient, "source_gradient")
    rows, columns = _matrices(size, (g.shape[1], g.shape[2]), ratio, kind, align_corners)
    return np.einsum("oi,pj,nopc->nijc", rows, columns, g, optimize=True)
