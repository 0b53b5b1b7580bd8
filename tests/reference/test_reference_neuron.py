"""The reference of neurons: gradients against central differences, kinks, defaults and large inputs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_geometry import assert_gradient, directional_difference, seeds

from mpsgrad import reference

# Parameters that are not the defaults, so that none of them can be dropped or swapped unseen.
PARAMETERS = {
    "none": {},
    "relu": {"a": 0.3},
    "linear": {"a": -1.7, "b": 0.4},
    "sigmoid": {},
    "hard_sigmoid": {"a": 0.3, "b": 0.6},
    "tanh": {"a": 1.3, "b": 0.7},
    "absolute": {},
    "soft_plus": {"a": 1.3, "b": 0.7},
    "soft_sign": {},
    "elu": {"a": 0.8},
    "prelu": {"slopes": [0.3, -0.2, 0.0]},
    "relun": {"a": 0.3, "b": 1.5},
    "power": {"a": 0.3, "b": 2.7, "c": 2.5},
    "exponential": {"a": 0.3, "b": 0.7, "c": 1.9},
    "logarithm": {"a": 0.3, "b": 2.7, "c": 3.1},
    "gelu": {},
}
# Where the first or second derivative jumps and a central difference means nothing.
KINKS = {
    "relu": [0.0],
    "hard_sigmoid": [-2.0, 0.4 / 0.3],
    "absolute": [0.0],
    "elu": [0.0],
    "prelu": [0.0],
    "relun": [0.0, 1.5],
    "soft_sign": [0.0],
}


def away_from_kinks(type: str, x: np.ndarray, distance: float) -> np.ndarray:
    for kink in KINKS.get(type, []):
        x = np.where(np.abs(x - kink) < distance, kink + distance, x)
    return x


def test_every_type_has_parameters_here():
    assert set(PARAMETERS) == set(reference.NEURON_DEFAULTS) and len(PARAMETERS) == 16


@pytest.mark.parametrize("type", PARAMETERS)
@settings(deadline=None)
@given(seed=seeds)
def test_gradient_against_central_differences(type, seed):
    rng = np.random.default_rng(seed)
    x = away_from_kinks(type, rng.uniform(-4.0, 4.0, (2, 3, 4, 3)), 1e-3)
    g = rng.standard_normal(x.shape)
    dx = reference.neuron_gradient(g, x, type, **PARAMETERS[type])
    assert_gradient(lambda v: reference.neuron(v, type, **PARAMETERS[type]), x, g, dx, rng)
    slopes = directional_difference(lambda v: reference.neuron(v, type, **PARAMETERS[type]), x, np.ones_like(x))
    np.testing.assert_allclose(reference.neuron_derivative(x, type, **PARAMETERS[type]), slopes, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("type", ["exponential", "logarithm"])
def test_c_of_minus_one_means_base_e(type):
    x = np.linspace(0.5, 4.0, 9)
    for function in (reference.neuron, reference.neuron_derivative):
        np.testing.assert_allclose(function(x, type, 0.3, 0.7), function(x, type, 0.3, 0.7, math.e), rtol=1e-14)
        np.testing.assert_array_equal(function(x, type, 0.3, 0.7), function(x, type, 0.3, 0.7, -1.0))


AT_THE_KINK = [
    ("relu", {"a": 0.3}, 0.0, 1.0),
    ("relu", {"a": 0.3}, -0.0, 1.0),
    ("elu", {"a": 0.3}, 0.0, 1.0),
    ("prelu", {"slopes": [0.3]}, 0.0, 1.0),
    ("absolute", {}, 0.0, 0.0),
    ("hard_sigmoid", {"a": 0.5, "b": 0.5}, -1.0, 0.5),
    ("hard_sigmoid", {"a": 0.5, "b": 0.5}, 1.0, 0.5),
    ("relun", {"a": 0.3, "b": 6.0}, 6.0, 0.0),
    ("relun", {"a": 0.3, "b": 6.0}, 0.0, 1.0),
    ("relun", {"a": -1.0, "b": 6.0}, -8.0, 0.0),
    ("relun", {"a": 0.5, "b": -1.0}, -1.5, 0.0),
]


@pytest.mark.parametrize(("type", "parameters", "x", "slope"), AT_THE_KINK)
def test_derivative_at_the_kink(type, parameters, x, slope):
    assert reference.neuron_derivative([x], type, **parameters).item() == slope


@pytest.mark.parametrize("type", ["sigmoid", "tanh", "soft_plus", "soft_sign", "elu", "gelu"])
@pytest.mark.parametrize("x", [1e3, -1e3, 1e30, -1e30])
def test_large_inputs_stay_finite(type, x):
    assert np.isfinite(reference.neuron([x], type)).all()
    assert np.isfinite(reference.neuron_derivative([x], type)).all()


def test_sigmoid_keeps_its_relative_accuracy_in_the_tail():
    np.testing.assert_allclose(reference.neuron([-700.0], "sigmoid"), [math.exp(-700.0)], rtol=1e-12)
    np.testing.assert_allclose(reference.neuron_derivative([700.0], "sigmoid"), [math.exp(-700.0)], rtol=1e-12)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), seeds)
def test_gradient_of_the_slopes_against_central_differences(batch, height, width, channels, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, height, width, channels))
    g = rng.standard_normal(x.shape)
    slopes = rng.standard_normal(channels)
    da = reference.prelu_gradient_slopes(g, x)
    assert_gradient(lambda v: reference.neuron(x, "prelu", slopes=v), slopes, g, da, rng)


def test_defaults_are_those_of_the_type():
    x = np.array([-3.0, 2.0, 8.0])
    np.testing.assert_array_equal(reference.neuron(x, "relu"), [0.0, 2.0, 8.0])
    np.testing.assert_array_equal(reference.neuron(x, "relun"), [-3.0, 2.0, 6.0])
    np.testing.assert_allclose(reference.neuron(x, "hard_sigmoid"), [0.0, 0.9, 1.0])
    np.testing.assert_array_equal(reference.neuron(x, "power"), x)
    np.testing.assert_array_equal(reference.neuron(x, "linear"), x)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="neuron type is 'swish'"):
        reference.neuron([1.0], "swish")
    with pytest.raises(ValueError, match="type is 'prelu'"):
        reference.neuron([1.0], "prelu")
    with pytest.raises(ValueError, match="type is 'relu'"):
        reference.neuron([1.0], "relu", slopes=[1.0])
    with pytest.raises(ValueError, match=r"slopes have shape \(2,\) but x has 3 feature channels"):
        reference.neuron(np.ones((1, 1, 1, 3)), "prelu", slopes=[1.0, 2.0])
