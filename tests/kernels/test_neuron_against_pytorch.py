"""Neurons beside PyTorch in float64, where the semantics agree."""

from __future__ import annotations

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.testing import assert_within, error_bound

torch = pytest.importorskip("torch")
functional = torch.nn.functional

SLOPES = np.linspace(-1, 1, 7).astype(np.float32)
CASES = {
    "relu": (mg.NeuronDescriptor("relu", 0.25), lambda x: functional.leaky_relu(x, 0.25)),
    "sigmoid": (mg.NeuronDescriptor("sigmoid"), torch.sigmoid),
    "hard_sigmoid": (mg.NeuronDescriptor("hard_sigmoid", 1 / 6, 0.5), functional.hardsigmoid),
    "tanh": (mg.NeuronDescriptor("tanh"), torch.tanh),
    "absolute": (mg.NeuronDescriptor("absolute"), torch.abs),
    "soft_plus": (
        mg.NeuronDescriptor("soft_plus", 0.5, 2.0),
        lambda x: functional.softplus(x, beta=2.0, threshold=1e9),
    ),
    "soft_sign": (mg.NeuronDescriptor("soft_sign"), functional.softsign),
    "elu": (mg.NeuronDescriptor("elu", 0.75), lambda x: functional.elu(x, 0.75)),
    "prelu": (
        mg.NeuronDescriptor.prelu(SLOPES),
        lambda x: functional.prelu(x.permute(0, 3, 1, 2), torch.from_numpy(SLOPES).double()).permute(0, 2, 3, 1),
    ),
    "relun": (mg.NeuronDescriptor("relun", 0.0, 6.0), functional.relu6),
    "power": (mg.NeuronDescriptor("power", 1.0, 8.0, 2.5), lambda x: (x + 8.0) ** 2.5),
    "exponential": (mg.NeuronDescriptor("exponential", 1.0, 0.0, 2.0), torch.exp2),
    "logarithm": (mg.NeuronDescriptor("logarithm", 1.0, 9.0, 2.0), lambda x: torch.log2(x + 9.0)),
    "gelu": (mg.NeuronDescriptor("gelu"), functional.gelu),
}


@pytest.mark.parametrize("name", CASES)
def test_forward_and_gradient(name):
    descriptor, function = CASES[name]
    generator = np.random.default_rng(1)
    x = np.clip(2 * generator.standard_normal((3, 5, 6, 7)), -7, 7).astype(np.float32)
    g = generator.standard_normal(x.shape).astype(np.float32)
    source = mg.Image.from_array(x)
    with mg.CommandBuffer() as commands:
        y, state = mg.Neuron(descriptor).encode(commands, source, return_state=True)
        dx = mg.NeuronGradient(descriptor).encode(commands, mg.Image.from_array(g), source, state)

    leaf = torch.from_numpy(x.astype(np.float64)).requires_grad_(True)
    result = function(leaf)
    result.backward(torch.from_numpy(g.astype(np.float64)))
    expected, gradient = result.detach().numpy(), leaf.grad.numpy()
    # Logarithms and powers near 0 magnify the rounding of a x + b; gelu's tails that of x^2 / 2.
    assert_within(y, expected, error_bound(np.float32, 1, np.abs(expected) + np.abs(x), expected, function_ulps=24))
    magnitude = np.abs(gradient) + np.abs(g) * (1 + np.abs(x))
    assert_within(dx, gradient, error_bound(np.float32, 1, magnitude, gradient, function_ulps=24))


def test_the_gradient_for_slopes_of_prelu():
    generator = np.random.default_rng(2)
    x, g = (generator.standard_normal((4, 9, 8, 7)).astype(np.float32) for _ in range(2))
    descriptor = mg.NeuronDescriptor.prelu(SLOPES)
    source = mg.Image.from_array(x)
    with mg.CommandBuffer() as commands:
        _, state = mg.Neuron(descriptor).encode(commands, source, return_state=True)
        gradient = mg.NeuronGradient(descriptor, computes_gradient_for_slopes=True)
        gradient.encode(commands, mg.Image.from_array(g), source, state)
    slopes = torch.from_numpy(SLOPES.astype(np.float64)).requires_grad_(True)
    images = torch.from_numpy(x.astype(np.float64)).permute(0, 3, 1, 2)
    functional.prelu(images, slopes).backward(torch.from_numpy(g.astype(np.float64)).permute(0, 3, 1, 2))
    magnitude = np.abs(x * g).sum((0, 1, 2))
    expected = slopes.grad.numpy()
    assert_within(state.gradient_for_slopes, expected, error_bound(np.float32, 288, magnitude, expected))
