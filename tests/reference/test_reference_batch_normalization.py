"""The reference of batch normalization: channel by channel, central differences, and what leaves no gradient."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_geometry import assert_gradient, seeds

from mpsgrad import reference

shapes = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
neurons = st.sampled_from(
    [None, {"type": "tanh", "a": 1.3, "b": 0.7}, {"type": "sigmoid"}, {"type": "linear", "a": -2.0}]
)
EPSILON = 0.1


def drawn(shape, seed):
    rng = np.random.default_rng(seed)
    x, g = rng.standard_normal(shape), rng.standard_normal(shape)
    gamma, beta = rng.standard_normal(shape[3]), rng.standard_normal(shape[3])
    return x, g, gamma, beta, rng


@settings(deadline=None)
@given(shapes, seeds)
def test_statistics_match_each_channel_on_its_own(shape, seed):
    x, *_ = drawn(shape, seed)
    mean, variance = reference.batch_normalization_statistics(x + 1e3)
    for c in range(shape[3]):
        np.testing.assert_allclose(mean[c], 1e3 + np.mean(x[..., c]), rtol=1e-14)
        np.testing.assert_allclose(variance[c], np.var(x[..., c], ddof=0), atol=1e-12)


@settings(deadline=None)
@given(shapes, neurons, seeds)
def test_training_gradient_against_central_differences(shape, neuron, seed):
    x, g, gamma, beta, rng = drawn(shape, seed)

    def forward(x, gamma, beta):
        return reference.batch_normalization(
            x, *reference.batch_normalization_statistics(x), gamma, beta, EPSILON, neuron
        )

    statistics = reference.batch_normalization_statistics(x)
    dx, dgamma, dbeta = reference.batch_normalization_gradient(g, x, *statistics, gamma, beta, EPSILON, neuron)
    assert_gradient(lambda v: forward(v, gamma, beta), x, g, dx, rng)
    assert_gradient(lambda v: forward(x, v, beta), gamma, g, dgamma, rng)
    assert_gradient(lambda v: forward(x, gamma, v), beta, g, dbeta, rng)


@settings(deadline=None)
@given(shapes, neurons, seeds)
def test_inference_gradient_against_central_differences(shape, neuron, seed):
    x, g, gamma, beta, rng = drawn(shape, seed)
    mean, variance = rng.standard_normal(shape[3]), rng.uniform(0.5, 2.0, shape[3])

    def forward(x, gamma, beta):
        return reference.batch_normalization(x, mean, variance, gamma, beta, EPSILON, neuron)

    dx, dgamma, dbeta = reference.batch_normalization_inference_gradient(
        g, x, mean, variance, gamma, beta, EPSILON, neuron
    )
    assert_gradient(lambda v: forward(v, gamma, beta), x, g, dx, rng)
    assert_gradient(lambda v: forward(x, v, beta), gamma, g, dgamma, rng)
    assert_gradient(lambda v: forward(x, gamma, v), beta, g, dbeta, rng)


@settings(deadline=None)
@given(shapes, seeds)
def test_a_shift_of_the_source_has_no_gradient_in_training(shape, seed):
    x, g, gamma, beta, _ = drawn(shape, seed)
    statistics = reference.batch_normalization_statistics(x)
    dx, _, _ = reference.batch_normalization_gradient(g, x, *statistics, gamma, beta, EPSILON)
    np.testing.assert_allclose(dx.sum(axis=(0, 1, 2)), 0.0, atol=1e-11)


@settings(deadline=None)
@given(shapes, seeds)
def test_missing_gamma_and_beta_are_one_and_zero(shape, seed):
    x, g, _, _, _ = drawn(shape, seed)
    statistics = reference.batch_normalization_statistics(x)
    ones, zeros = np.ones(shape[3]), np.zeros(shape[3])
    np.testing.assert_array_equal(
        reference.batch_normalization(x, *statistics, None, None, EPSILON),
        reference.batch_normalization(x, *statistics, ones, zeros, EPSILON),
    )
    for with_none, explicit in zip(
        reference.batch_normalization_gradient(g, x, *statistics, None, None, EPSILON),
        reference.batch_normalization_gradient(g, x, *statistics, ones, zeros, EPSILON),
        strict=True,
    ):
        np.testing.assert_array_equal(with_none, explicit)


def test_a_constant_channel_gives_beta_with_the_smallest_epsilon():
    x = np.full((2, 3, 3, 1), 0.5)
    mean, variance = reference.batch_normalization_statistics(x)
    y = reference.batch_normalization(x, mean, variance, [3.0], [0.25], 1.1754944e-38)
    np.testing.assert_array_equal(y, np.full_like(x, 0.25))


def test_wrong_shapes_are_named():
    x = np.ones((1, 2, 2, 3))
    with pytest.raises(ValueError, match=r"gamma has shape \(2,\) but source has 3 feature channels"):
        reference.batch_normalization(x, np.zeros(3), np.ones(3), np.ones(2), None, EPSILON)
    with pytest.raises(ValueError, match=r"source_gradient is \(1, 2, 1, 3\) but source is \(1, 2, 2, 3\)"):
        reference.batch_normalization_gradient(x[:, :, :1], x, np.zeros(3), np.ones(3), None, None, EPSILON)
