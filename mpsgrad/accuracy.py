"""How far a kernel's result may lie from the exact one, and the check of it."""

from __future__ import annotations

from typing import Any

import numpy as np


def error_bound(dtype: Any, terms: int, magnitude: Any, result: Any, *, function_ulps: float = 0.0) -> np.ndarray:
    """How far a kernel's result may lie from the exact one.

    A sum of ``terms`` products in float32, in any order, is within ``(terms + 2) * eps * magnitude`` of the exact sum,
    where ``magnitude`` is the sum of the products' absolute values (Higham, Accuracy and Stability, section 3.1);
    ``function_ulps`` adds the accuracy of functions such as ``exp`` in units of eps. Storing rounds once more to
    ``dtype``. ``magnitude`` and ``result`` broadcast.
    """
    single = np.finfo(np.float32)
    storage = np.finfo(dtype)
    bound = (terms + 2 + function_ulps) * float(single.eps) * np.abs(np.asarray(magnitude, np.float64))
    bound = bound + 0.5 * float(storage.eps) * np.abs(np.asarray(result, np.float64))
    return bound + float(storage.tiny)


def assert_within(actual: Any, expected: Any, bound: Any, *, name: str = "result") -> None:
    """Fails unless ``actual`` is finite and within ``bound`` of ``expected`` everywhere, naming the worst element."""
    actual = np.asarray(actual, np.float64)
    expected = np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, f"{name} has shape {actual.shape}, expected {expected.shape}"
    error = np.abs(actual - expected)
    excess = np.where(np.isfinite(error), error - bound, np.inf)
    if excess.size and excess.max() > 0:
        index = np.unravel_index(int(np.argmax(excess)), excess.shape)
        wrong = int((excess > 0).sum())
        allowed = np.broadcast_to(bound, error.shape)[index]
        raise AssertionError(
            f"{name}: {wrong} of {error.size} elements are out of bounds; worst at {tuple(map(int, index))}: "
            f"{actual[index]!r} instead of {expected[index]!r}, off by {error[index]:.3g} where {allowed:.3g} is "
            "allowed"
        )
