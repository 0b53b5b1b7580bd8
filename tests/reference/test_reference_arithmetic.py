"""The reference of arithmetic: gradients against central differences, limits, and comparisons by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_geometry import assert_gradient, seeds

from mpsgrad import reference

OPERATIONS = ("add", "subtract", "multiply", "divide")
extents = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))
spreads = st.tuples(st.booleans(), st.booleans(), st.booleans())


def spread(shape: tuple[int, ...], axes: tuple[bool, ...]) -> tuple[int, ...]:
    """``shape`` with extents of 1 where ``axes`` say so."""
    return (shape[0], *(1 if is_spread else extent for extent, is_spread in zip(shape[1:], axes, strict=True)))


@pytest.mark.parametrize("operation", OPERATIONS)
@settings(deadline=None)
@given(extents, spreads, spreads, seeds)
def test_gradients_against_central_differences(operation, shape, x_axes, y_axes, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal(spread(shape, x_axes)), rng.standard_normal(spread(shape, y_axes))
    y = np.where(y < 0, y - 1, y + 1)
    settings = {"primary_scale": 1.5, "secondary_scale": -0.5, "bias": 0.25}
    g = rng.standard_normal(reference.arithmetic(operation, x, y).shape)
    dx, dy = reference.arithmetic_gradient(operation, g, x, y, **settings)
    assert_gradient(lambda x: reference.arithmetic(operation, x, y, **settings), x, g, dx, rng)
    assert_gradient(lambda y: reference.arithmetic(operation, x, y, **settings), y, g, dy, rng)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_elements_beyond_the_limits_have_no_gradient(operation):
    rng = np.random.default_rng(1)
    x, y, g = (rng.standard_normal((2, 3, 4, 5)) for _ in range(3))
    y = np.where(y < 0, y - 1, y + 1)
    limits = {"minimum": -0.5, "maximum": 0.5}
    result = reference.arithmetic(operation, x, y)
    inside = np.abs(result) < 0.5
    assert inside.any() and not inside.all()
    assert (np.abs(reference.arithmetic(operation, x, y, **limits)) <= 0.5).all()
    for clamped, free in zip(
        reference.arithmetic_gradient(operation, g, x, y, **limits),
        reference.arithmetic_gradient(operation, g, x, y),
        strict=True,
    ):
        np.testing.assert_array_equal(clamped, np.where(inside, free, 0))


def test_comparisons_by_hand():
    x, y = np.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 1, 4), np.array([1.5, 2.0, 2.5, 9.0]).reshape(1, 1, 1, 4)
    expected = {
        "equal": [1, 1, 1, 0],
        "not_equal": [0, 0, 0, 1],
        "less": [1, 0, 0, 1],
        "less_or_equal": [1, 1, 1, 1],
        "greater": [0, 0, 1, 0],
        "greater_or_equal": [1, 1, 1, 0],
    }
    for comparison, values in expected.items():
        np.testing.assert_array_equal(reference.compare(comparison, x, y, threshold=0.5).ravel(), values)
