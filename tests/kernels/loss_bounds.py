"""Predictions and labels for the tests of losses, and how far float32 may lie from the exact losses of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.testing import error_bound

ELEMENT_TYPES = (
    "mean_absolute_error",
    "mean_squared_error",
    "sigmoid_cross_entropy",
    "categorical_cross_entropy",
    "hinge",
    "huber",
    "cosine_distance",
    "log",
    "kullback_leibler_divergence",
)
FUNCTION_ULPS = 12
"""What ``exp``, ``log`` and a division may be off together, in units of the last place of float32."""


def drawn(kind: str, shape: tuple[int, ...], dtype: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and labels inside the domain of the loss, probabilities where it takes logarithms of them.

    The edge of a hinge, where the derivative jumps, is avoided: rounding decides the side.
    """
    rng = np.random.default_rng(seed)
    t = rng.uniform(0.1, 0.9, shape).astype(np.float32)
    if kind in ("categorical_cross_entropy", "log"):
        return rng.uniform(0.1, 0.9, shape).astype(dtype), t
    y = (2 * rng.standard_normal(shape)).astype(dtype)
    if kind == "hinge":
        y[np.abs(1 - (2 * t - 1) * y) < 1e-3] = 0
    return y, t


def magnitudes(kind: str, y: np.ndarray, t: np.ndarray, epsilon: float, delta: float) -> tuple[np.ndarray, ...]:
    """The sizes of what is added up for a loss, its derivative for predictions, and that for labels."""
    y, t = np.abs(np.asarray(y, np.float64)), np.abs(np.asarray(t, np.float64))
    one = np.ones_like(y)
    match kind:
        case "mean_absolute_error":
            return y + t, one, one
        case "mean_squared_error":
            return (y + t) ** 2, 2 * (y + t), 2 * (y + t)
        case "sigmoid_cross_entropy":
            return 1 + y * (1 + t), 1 + t, y
        case "categorical_cross_entropy":
            return t * (1 - np.log(y)), t / y, 1 - np.log(y)
        case "hinge":
            return 1 + y * (1 + 2 * t), 1 + 2 * t, 2 * y
        case "huber":
            return delta * (delta + y + t), y + t, y + t
        case "cosine_distance":
            return y * t, t, y
        case "log":
            inverse = 1 / (1 - y + epsilon)
            logarithms = 2 * inverse - np.log(y + epsilon) - np.log(1 - y + epsilon)
            return (1 + t) * logarithms, t / (y + epsilon) + 2 * (1 + t) * inverse**2, logarithms
        case _:
            return t * (1 + y - np.log(t)), t, 1 + y - np.log(t)


def bound(dtype: Any, terms: int, magnitude: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return error_bound(dtype, terms, magnitude, expected, function_ulps=FUNCTION_ULPS)
