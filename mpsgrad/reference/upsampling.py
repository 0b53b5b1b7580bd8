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


Box = tuple[float, float, float, float]


def crop_matrix(size: int, count: int, start: float, extent: float) -> Array:
    """U[o, i]: what output o takes of pixel i, of a region from `start` on with `extent`, both in parts of size - 1.

    It lies at (start + extent * o / (count - 1)) * (size - 1), a single one in the middle, and takes nothing where that
    is outside by more than a millionth of the size.
    """
    matrix, last = np.zeros((count, size)), size - 1
    for o in range(count):
        position = (start + extent * (o / (count - 1) if count > 1 else 0.5)) * last
        if -1e-6 * max(last, 1) <= position <= last + 1e-6 * max(last, 1):
            position = min(max(position, 0.0), float(last))
            near = int(position)
            matrix[o, near] += 1.0 - (position - near)
            matrix[o, min(near + 1, last)] += position - near
    return matrix


def crop_and_resize(source: npt.ArrayLike, result: Pair, regions: list[Box]) -> Array:
    """Each region (x, y, width, height) resized to `result` (y, x), one after the other in the channels
    (MPSNNCropAndResizeBilinear)."""
    x = image(source, "source")
    crops = []
    for left, top, width, height in regions:
        rows = crop_matrix(x.shape[1], result[0], top, height)
        columns = crop_matrix(x.shape[2], result[1], left, width)
        crops.append(np.einsum("oi,pj,nijc->nopc", rows, columns, x, optimize=True))
    return np.concatenate(crops, axis=3)


def crop_and_resize_gradient(source_gradient: npt.ArrayLike, size: Pair, regions: list[Box]) -> Array:
    """dx = sum over the regions of U^T g along both axes, for a source of `size` (y, x)."""
    g = image(source_gradient, "source_gradient")
    dx = np.zeros((g.shape[0], *size, g.shape[3] // len(regions)))
    for part, (left, top, width, height) in zip(np.split(g, len(regions), axis=3), regions, strict=True):
        rows = crop_matrix(size[0], g.shape[1], top, height)
        columns = crop_matrix(size[1], g.shape[2], left, width)
        dx += np.einsum("oi,pj,nopc->nijc", rows, columns, part, optimize=True)
    return dx
