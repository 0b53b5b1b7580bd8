"""Arithmetic of two images and its gradients. Extents of 1 are spread, as NumPy does it; the batch is never spread."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from .window import Array

Operation = Literal["add", "subtract", "multiply", "divide"]
Comparison = Literal["equal", "not_equal", "less", "less_or_equal", "greater", "greater_or_equal"]


def arithmetic(
    operation: Operation,
    primary: npt.ArrayLike,
    secondary: npt.ArrayLike,
    *,
    primary_scale: float = 1.0,
    secondary_scale: float = 1.0,
    bias: float = 0.0,
    minimum: float = -np.inf,
    maximum: float = np.inf,
) -> Array:
    """f(primary_scale x, secondary_scale y) + bias, clamped (MPSCNNAdd, Subtract, Multiply, Divide)."""
    x = primary_scale * np.asarray(primary, np.float64)
    y = secondary_scale * np.asarray(secondary, np.float64)
    functions = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}
    return np.clip(functions[operation](x, y) + bias, minimum, maximum)


def compare(
    comparison: Comparison, primary: npt.ArrayLike, secondary: npt.ArrayLike, *, threshold: float = 0.0
) -> Array:
    """1 or 0 (MPSNNCompare); |x - y| <= threshold is equality, and less and greater do not look at the threshold.

    Infinities of one sign are equal.
    """
    x, y = np.asarray(primary, np.float64), np.asarray(secondary, np.float64)
    with np.errstate(invalid="ignore"):
        equal = (x == y) | (np.abs(x - y) <= threshold)
    found = {
        "equal": equal,
        "not_equal": ~equal,
        "less": x < y,
        "less_or_equal": (x < y) | equal,
        "greater": x > y,
        "greater_or_equal": (x > y) | equal,
    }
    return found[comparison].astype(np.float64)


def arithmetic_gradient(
    operation: Operation,
    source_gradient: npt.ArrayLike,
    primary: npt.ArrayLike,
    secondary: npt.ArrayLike,
    *,
    primary_scale: float = 1.0,
    secondary_scale: float = 1.0,
    bias: float = 0.0,
    minimum: float = -np.inf,
    maximum: float = np.inf,
) -> tuple[Array, Array]:
    """The gradients for both images, summed over what was spread; 0 where the result is not between the limits."""
    g = np.asarray(source_gradient, np.float64)
    x, y = np.asarray(primary, np.float64), np.asarray(secondary, np.float64)
    scales = {"primary_scale": primary_scale, "secondary_scale": secondary_scale}
    result = arithmetic(operation, x, y, bias=bias, **scales)
    g = np.where((result > minimum) & (result < maximum), g, 0.0)
    a, b = primary_scale, secondary_scale
    for_x, for_y = {
        "add": lambda: (a * g, b * g),
        "subtract": lambda: (a * g, -b * g),
        "multiply": lambda: (a * b * g * y, a * b * g * x),
        "divide": lambda: (a / b * g / y, -a / b * g * x / y**2),
    }[operation]()
    return _summed_to(for_x, x.shape), _summed_to(for_y, y.shape)


def _summed_to(values: Array, shape: tuple[int, ...]) -> Array:
    axes = tuple(axis for axis in range(1, 4) if shape[axis] == 1 and values.shape[axis] > 1)
    return values.sum(axis=axes, keepdims=True)
