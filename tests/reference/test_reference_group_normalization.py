"""The reference of group normalization: group by group, central differences, and single channels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_geometry import assert_gradient, seeds

from mpsgrad import reference

EPSILON = 0.1
shapes = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.sampled_from([2, 4, 6]))


def drawn(shape, seed):
    rng = np.random.default_rng(seed)
    x, g = rng.standard_normal(shape), rng.standard_normal(shape)
    return x, g, rng.standard_normal(shape[3]), rng.standard_normal(shape[3]), rng


@settings(deadline=None)
@given(shapes, st.sampled_from([1, 2]), seeds)
def test_statistics_and_result_match_each_group_on_its_own(shape, groups, seed):
    x, _, gamma, beta, _ = drawn(shape, seed)
    mean, variance = reference.group_normalization_statistics(x, groups)
    y = reference.group_normalization(x, gamma, beta, groups, EPSILON)
    size = shape[3] // groups
    for n in range(shape[0]):
        for c in range(shape[3]):
            own = x[n, :, :, c // size * size : (c // size + 1) * size]
            np.testing.assert_allclose([mean[n, c], variance[n, c]], [own.mean(), own.var()], atol=1e-12)
            xhat = (x[n, :, :, c] - own.mean()) / np.sqrt(own.var() + EPSILON)
            np.testing.assert_allclose(y[n, :, :, c], gamma[c] * xhat + beta[c], atol=1e-12)


@settings(deadline=None)
@given(shapes, st.sampled_from([1, 2, None]), seeds)
def test_gradients_against_central_differences(shape, groups, seed):
    x, g, gamma, beta, rng = drawn(shape, seed)
    groups = groups or shape[3]

    def forward(x, gamma, beta):
        return reference.group_normalization(x, gamma, beta, groups, EPSILON)

    dx, dgamma, dbeta = reference.group_normalization_gradient(g, x, gamma, groups, EPSILON)
    assert_gradient(lambda v: forward(v, gamma, beta), x, g, dx, rng)
    assert_gradient(lambda v: forward(x, v, beta), gamma, g, dgamma.sum(0), rng)
    assert_gradient(lambda v: forward(x, gamma, v), beta, g, dbeta.sum(0), rng)


@settings(deadline=None)
@given(shapes, seeds)
def test_instance_normalization_has_a_group_for_each_channel(shape, seed):
    x, g, gamma, beta, _ = drawn(shape, seed)
    np.testing.assert_array_equal(
        reference.instance_normalization(x, gamma, beta, EPSILON),
        reference.group_normalization(x, gamma, beta, shape[3], EPSILON),
    )
    ours = reference.instance_normalization_gradient(g, x, gamma, EPSILON)
    for one, other in zip(ours, reference.group_normalization_gradient(g, x, gamma, shape[3], EPSILON), strict=True):
        np.testing.assert_array_equal(one, other)


def test_groups_have_to_divide_the_channels():
    with pytest.raises(ValueError, match="groups is 2 but has to divide the 3"):
        reference.group_normalization(np.zeros((1, 1, 1, 3)), np.ones(3), np.zeros(3), 2, EPSILON)
