"""Reductions over the axes of an N x H x W x C image, and their gradients. The result keeps reduced axes as 1."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from .window import Array

Reduced = Literal["row", "column", "feature_channels", "spatial"]
ReductionOperation = Literal["min", "max", "mean", "sum", "argument_min", "argument_max"]

AXES: dict[str, tuple[int, ...]] = {"row": (2,), "column": (1,), "feature_channels": (3,), "spatial": (1, 2)}


def reduction(over: Reduced, operation: ReductionOperation, source: npt.ArrayLike, *, weight: float = 1.0) -> Array:
    """The reduction of each row (over x), column (over y), pixel (over channels) or image (over x and y).

    `weight` is a factor of sums. The argument forms give the first index, along one axis (MPSNNReduce...).
    """
    x, axes = np.asarray(source, np.float64), AXES[over]
    if operation in ("argument_min", "argument_max"):
        ordered = x if operation == "argument_min" else -x
        return np.argmin(ordered, axis=axes[0], keepdims=True).astype(np.float64)
    if operation == "sum":
        return weight * x.sum(axis=axes, keepdims=True)
    if operation == "mean":
        return x.mean(axis=axes, keepdims=True)
    return x.min(axis=axes, keepdims=True) if operation == "min" else x.max(axis=axes, keepdims=True)


def reduction_gradient(
    over: Reduced,
    operation: ReductionOperation,
    source_gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    *,
    weight: float = 1.0,
) -> Array:
    """`weight` g for sums, g / count for means; all of g for the first of the smallest or largest elements."""
    g, x, axes = np.asarray(source_gradient, np.float64), np.asarray(source, np.float64), AXES[over]
    if operation == "sum":
        return np.broadcast_to(weight * g, x.shape).copy()
    if operation == "mean":
        return np.broadcast_to(g / np.prod([x.shape[axis] for axis in axes]), x.shape).copy()
    result, (axis,) = np.zeros_like(x), axes
    winners = reduction(over, "argument_min" if operation == "min" else "argument_max", x).astype(np.int64)
    np.put_along_axis(result, winners, g, axis)
    return result


def weighted_reduction(
    source: npt.ArrayLike, weights: npt.ArrayLike, *, mean: bool = False, by_non_zero_weights: bool = False
) -> Array:
    """sum_c x[c] w[c] of each pixel, over C for a `mean`, or over the number of weights that are not 0, if there are
    any (MPSNNReduceFeatureChannelsAndWeightsSum, -Mean)."""
    x, w = np.asarray(source, np.float64), np.asarray(weights, np.float64)
    return (x * w).sum(axis=3, keepdims=True) / _divisor(w, mean, by_non_zero_weights)


def _divisor(weights: Array, mean: bool, by_non_zero_weights: bool) -> Array:
    if by_non_zero_weights:
        return np.maximum((weights != 0).sum(axis=3, keepdims=True), 1).astype(np.float64)
    return np.float64(weights.shape[3] if mean else 1).reshape(1, 1, 1, 1)


def weighted_reduction_gradient(
    source_gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    weights: npt.ArrayLike,
    *,
    mean: bool = False,
    by_non_zero_weights: bool = False,
) -> tuple[Array, Array]:
    """The gradients for source and weights, whose number does not change."""
    g, x, w = (np.asarray(each, np.float64) for each in (source_gradient, source, weights))
    scaled = g / _divisor(w, mean, by_non_zero_weights)
    return scaled * w, scaled * x
