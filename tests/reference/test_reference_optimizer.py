"""The reference of optimizers: first steps written out, and the order of what is done to gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from reference_geometry import seeds

from mpsgrad import reference


def test_preprocessing_clips_then_rescales_then_regularizes():
    g, v = np.array([5.0, -5.0, 0.1]), np.array([2.0, -3.0, 0.0])
    clipping = {"apply_gradient_clipping": True, "gradient_clip_max": 1.0, "gradient_clip_min": -0.5}
    rescaled = {"gradient_rescale": 10.0, "regularization_scale": 0.5}
    for kind, expected in (("none", [10.0, -5.0, 1.0]), ("l1", [10.5, -5.5, 1.0]), ("l2", [11.0, -6.5, 1.0])):
        result = reference.preprocess_gradient(g, v, **clipping, **rescaled, regularization_type=kind)
        np.testing.assert_allclose(result, expected, rtol=1e-15)
    np.testing.assert_array_equal(reference.preprocess_gradient(g, v), g)
    with pytest.raises(ValueError, match="regularization_type is 'l3'"):
        reference.preprocess_gradient(g, v, regularization_type="l3")


@settings(deadline=None)
@given(seeds)
def test_the_first_steps_written_out(seed):
    rng = np.random.default_rng(seed)
    g, v = rng.standard_normal((2, 3, 5))
    lr = 0.1
    zeros = np.zeros_like(v)
    np.testing.assert_allclose(reference.stochastic_gradient_descent(g, v, learning_rate=lr)[0], v - lr * g)
    for nesterov, step in ((False, 1.0), (True, 1.9)):
        values, momentum = reference.stochastic_gradient_descent(
            g, v, zeros, learning_rate=lr, momentum_scale=0.9, use_nesterov_momentum=nesterov
        )
        np.testing.assert_allclose(values, v - lr * step * g)
        np.testing.assert_allclose(momentum, g if nesterov else lr * g)
    values, squares = reference.rms_prop(g, v, zeros, learning_rate=lr, decay=0.75, epsilon=0.5)
    np.testing.assert_allclose(squares, g * g / 4)
    np.testing.assert_allclose(values, v - lr * g / (np.abs(g) / 2 + 0.5))
    values, momentum, velocity, maximum = reference.adam(
        g, v, zeros, zeros, time_step=0, learning_rate=lr, beta1=0.5, beta2=0.75, epsilon=0.5
    )
    np.testing.assert_allclose(momentum, g / 2)
    np.testing.assert_allclose(velocity, g * g / 4)
    np.testing.assert_allclose(values, v - lr * math.sqrt(0.25) / 0.5 * (g / 2) / (np.abs(g) / 2 + 0.5))
    assert maximum is None


def test_the_learning_rate_is_inside_the_plain_momentum():
    values, momentum = [1.0], [0.0]
    for gradient, rate in ((1.0, 1.0), (0.0, 0.0)):
        values, momentum = reference.stochastic_gradient_descent(
            [gradient], values, momentum, learning_rate=rate, momentum_scale=0.5
        )
    np.testing.assert_allclose(values, [-0.5])


def test_a_later_time_step_changes_the_bias_correction():
    zeros = np.zeros(1)
    early = reference.adam([1.0], zeros, zeros, zeros, time_step=0)[0]
    late = reference.adam([1.0], zeros, zeros, zeros, time_step=1000)[0]
    np.testing.assert_allclose(early, [-0.001], rtol=1e-6)
    expected = -0.001 * math.sqrt(1 - 0.999**1001) * 0.1 / math.sqrt(0.001)
    np.testing.assert_allclose(late, [expected], rtol=1e-6)


def test_amsgrad_keeps_the_largest_velocity():
    zeros = np.zeros(1)
    _, _, velocity, maximum = reference.adam([0.1], zeros, zeros, zeros, [7.0], time_step=0)
    assert maximum.item() == 7.0 and velocity.item() < 7.0
    _, _, velocity, maximum = reference.adam([1e3], zeros, zeros, zeros, [7.0], time_step=0)
    assert maximum.item() == velocity.item() > 7.0


def test_nothing_is_changed_in_place():
    arrays = [np.ones(3) for _ in range(5)]
    reference.stochastic_gradient_descent(arrays[0], arrays[1], arrays[2], learning_rate=0.5, momentum_scale=0.5)
    reference.rms_prop(arrays[0], arrays[1], arrays[2], learning_rate=0.5)
    reference.adam(*arrays, time_step=0, learning_rate=0.5)
    for array in arrays:
        np.testing.assert_array_equal(array, np.ones(3))
