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
