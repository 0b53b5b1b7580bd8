"""The reference of reductions: gradients against central differences, ties, and shapes by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_geometry import assert_gradient, seeds

from mpsgrad import reference

AXES = {"row": 2, "column": 1, "feature_channels": 3}
CASES = [(over, operation) for over in AXES for operation in ("min", "max", "mean", "sum")] + [("spatial", "mean")]
shapes = st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))


@pytest.mark.parametrize(("over", "operation"), CASES)
@settings(deadline=None)
@given(shapes, seeds)
def test_gradients_against_central_differences(over, operation, shape, seed):
    rng = np.random.default_rng(seed)
    # No two elements so near each other that the step of the difference changes which one wins.
    x = rng.permutation(np.prod(shape)).reshape(shape) * 0.25
    weight = 1.5 if operation == "sum" else 1.0
    result = reference.reduction(over, operation, x, weight=weight)
    g = rng.standard_normal(result.shape)
    dx = reference.reduction_gradient(over, operation, g, x, weight=weight)
    assert_gradient(lambda x: reference.reduction(over, operation, x, weight=weight), x, g, dx, rng)


@pytest.mark.parametrize("over", AXES)
def test_of_equal_elements_the_first_wins(over):
    x = np.zeros((1, 2, 3, 4))
    for operation in ("argument_min", "argument_max"):
        assert (reference.reduction(over, operation, x) == 0).all()
    for operation in ("min", "max"):
        g = reference.reduction(over, operation, x) + 1
        dx = np.moveaxis(reference.reduction_gradient(over, operation, g, x), AXES[over], 0)
        assert (dx[0] == 1).all() and (dx[1:] == 0).all()


def test_shapes_by_hand():
    x = np.arange(24.0).reshape(1, 2, 3, 4)
    assert reference.reduction("row", "sum", x).shape == (1, 2, 1, 4)
    assert reference.reduction("column", "max", x).shape == (1, 1, 3, 4)
    assert reference.reduction("feature_channels", "argument_max", x).shape == (1, 2, 3, 1)
    np.testing.assert_array_equal(reference.reduction("spatial", "mean", x).ravel(), [10, 11, 12, 13])


@pytest.mark.parametrize("options", [{}, {"mean": True}, {"by_non_zero_weights": True}], ids=str)
@settings(deadline=None)
@given(shapes, seeds)
def test_weighted_gradients_against_central_differences(options, shape, seed):
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(shape), rng.integers(-1, 3, shape).astype(np.float64)
    g = rng.standard_normal((*shape[:3], 1))
    dx, dw = reference.weighted_reduction_gradient(g, x, w, **options)
    assert_gradient(lambda x: reference.weighted_reduction(x, w, **options), x, g, dx, rng)
    if "by_non_zero_weights" not in options:
        assert_gradient(lambda w: reference.weighted_reduction(x, w, **options), w, g, dw, rng)


def test_weighted_sums_by_hand():
    x, w = np.array([1.0, 2.0, 4.0]).reshape(1, 1, 1, 3), np.array([3.0, 0.0, -1.0]).reshape(1, 1, 1, 3)
    assert reference.weighted_reduction(x, w) == -1
    assert reference.weighted_reduction(x, w, by_non_zero_weights=True) == -0.5
    assert reference.weighted_reduction(3 * x, w, mean=True) == -1
    assert reference.weighted_reduction(x, 0 * w, by_non_zero_weights=True) == 0
