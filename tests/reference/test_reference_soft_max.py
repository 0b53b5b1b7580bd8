"""The reference of softmax: central differences, transposed Jacobians, shifts and large inputs."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_geometry import assert_gradient, seeds

from mpsgrad import reference

shapes = st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.integers(1, 9))


@settings(deadline=None)
@given(shapes, seeds)
def test_gradients_against_central_differences(shape, seed):
    rng = np.random.default_rng(seed)
    x, g = 2.0 * rng.standard_normal(shape), rng.standard_normal(shape)
    dx = reference.soft_max_gradient(g, reference.soft_max(x))
    assert_gradient(reference.soft_max, x, g, dx, rng)
    dx = reference.log_soft_max_gradient(g, reference.log_soft_max(x))
    assert_gradient(reference.log_soft_max, x, g, dx, rng)


@settings(deadline=None)
@given(shapes, seeds)
def test_gradients_are_transposes_of_the_jacobian(shape, seed):
    rng = np.random.default_rng(seed)
    x, g, v = (rng.standard_normal(shape) for _ in range(3))
    y = reference.soft_max(x)
    jacobian = np.einsum("nhwi,ij->nhwij", y, np.eye(shape[3])) - np.einsum("nhwi,nhwj->nhwij", y, y)
    forward = np.einsum("nhwij,nhwj->nhwi", jacobian, v)
    np.testing.assert_allclose((forward * g).sum(), (v * reference.soft_max_gradient(g, y)).sum(), atol=1e-12)


@settings(deadline=None)
@given(shapes, seeds, st.floats(-1e4, 1e4))
def test_a_common_shift_changes_nothing_and_has_no_gradient(shape, seed, shift):
    rng = np.random.default_rng(seed)
    x, g = rng.standard_normal(shape), rng.standard_normal(shape)
    y, logarithm = reference.soft_max(x), reference.log_soft_max(x)
    np.testing.assert_allclose(reference.soft_max(x + shift), y, rtol=1e-10)
    np.testing.assert_allclose(reference.log_soft_max(x + shift), logarithm, atol=1e-10)
    np.testing.assert_allclose(y.sum(axis=3), 1.0, rtol=1e-14)
    np.testing.assert_allclose(np.exp(logarithm), y, rtol=1e-13)
    np.testing.assert_allclose(reference.soft_max_gradient(g, y).sum(axis=3), 0.0, atol=1e-13)
    np.testing.assert_allclose(reference.log_soft_max_gradient(g, logarithm).sum(axis=3), 0.0, atol=1e-12)


def test_large_inputs_stay_finite():
    x = np.array([[1e300, -1e300, 0.0]])
    np.testing.assert_array_equal(reference.soft_max(x), [[1.0, 0.0, 0.0]])
    np.testing.assert_array_equal(reference.log_soft_max(x), [[0.0, -2e300, -1e300]])
