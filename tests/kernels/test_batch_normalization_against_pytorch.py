"""Batch normalization beside PyTorch in float64: training, and inference with the application's running statistics."""

from __future__ import annotations

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.testing import assert_within, error_bound

torch = pytest.importorskip("torch")

EPSILON = 1e-3


def nchw(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float64)).permute(0, 3, 1, 2)


def nhwc(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("shape", [(4, 7, 9, 5), (2, 12, 12, 64), (3, 5, 4, 130)])
@pytest.mark.parametrize("relu", [False, True], ids=["plain", "relu"])
def test_a_training_step(shape, relu):
    generator = np.random.default_rng(1)
    x, g = (generator.standard_normal(shape).astype(np.float32) for _ in range(2))
    gamma, beta = (generator.uniform(0.5, 1.5, shape[-1]).astype(np.float32) for _ in range(2))
    neuron = mg.NeuronDescriptor("relu") if relu else None
    kernel = mg.BatchNormalization(
        mg.BatchNormalizationDataSource.from_arrays(gamma, beta, epsilon=EPSILON), fused_neuron_descriptor=neuron
    )
    source, incoming = mg.Image.from_array(x), mg.Image.from_array(g)
    sources, gradients = source.batch_representation(), incoming.batch_representation()
    state = kernel.result_state(source)
    with mg.CommandBuffer() as commands:
        mg.BatchNormalizationStatistics().encode_batch(commands, sources, state)
        y = kernel.encode(commands, source, batch_normalization_state=state)
        mg.BatchNormalizationStatisticsGradient(fused_neuron_descriptor=neuron).encode_batch(
            commands, gradients, sources, state
        )
        dx = mg.BatchNormalizationGradient(fused_neuron_descriptor=neuron).encode(commands, incoming, source, state)

    module = torch.nn.BatchNorm2d(shape[-1], eps=float(np.float32(EPSILON)), dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(gamma))
        module.bias.copy_(torch.from_numpy(beta))
    leaf = nchw(x).requires_grad_(True)
    z = module(leaf)
    result = torch.relu(z) if relu else z
    result.backward(nchw(g))
    if relu:
        assert nhwc(z).__abs__().min() > 1e-6, "an element is too near the kink to compare"
    pixels = x[..., 0].size
    magnitude = np.abs(gamma * x) + np.abs(beta) + 3
    assert_within(y, nhwc(result), error_bound(np.float32, 10, magnitude, nhwc(result)), name="result")
    scale = 3 * (np.abs(g) + np.abs(g).mean((0, 1, 2)) * (1 + np.abs(x)))
    assert_within(dx, nhwc(leaf.grad), error_bound(np.float32, 20, scale, nhwc(leaf.grad)), name="source gradient")
    sums = np.abs(g).sum((0, 1, 2)) * 4
    for name, parameter in (("gamma", module.weight), ("beta", module.bias)):
        actual, expected = getattr(state, f"gradient_for_{name}"), parameter.grad.numpy()
        assert_within(actual, expected, error_bound(np.float32, pixels, sums, expected), name=name)


class RunningStatistics(mg.BatchNormalizationDataSource):
    """What PyTorch does with momentum 0.1: the running variance takes the unbiased one of the batch."""

    def __init__(self, channels: int, pixels: int) -> None:
        self._mean, self._variance = np.zeros(channels, np.float32), np.ones(channels, np.float32)
        self._unbiased = pixels / (pixels - 1)

    number_of_feature_channels = property(lambda self: self._mean.size)
    mean = property(lambda self: self._mean)
    variance = property(lambda self: self._variance)
    epsilon = property(lambda self: EPSILON)

    def update_mean_and_variance_with_batch_normalization_state(self, state: mg.BatchNormalizationState) -> bool:
        self._mean += np.float32(0.1) * (state.mean - self._mean)
        self._variance += np.float32(0.1) * (self._unbiased * state.variance - self._variance).astype(np.float32)
        return True


def test_running_statistics_are_the_applications():
    generator = np.random.default_rng(2)
    channels = 6
    source = RunningStatistics(channels, 2 * 5 * 4)
    kernel, statistics = mg.BatchNormalization(source), mg.BatchNormalizationStatistics()
    module = torch.nn.BatchNorm2d(channels, eps=EPSILON, dtype=torch.float64)
    state = None
    for step in range(5):
        x = (generator.standard_normal((2, 5, 4, channels)) * (step + 1) + step).astype(np.float32)
        images = mg.ImageBatch.from_array(x)
        state = state or kernel.result_state(images[0])
        with mg.CommandBuffer() as commands:
            statistics.encode_batch(commands, images, state)
            kernel.encode_batch(commands, images, batch_normalization_state=state)
        assert source.update_mean_and_variance_with_batch_normalization_state(state)
        kernel.reload_mean_and_variance_from_data_source()
        module(nchw(x))
    module.eval()
    with mg.CommandBuffer() as commands:
        y = kernel.encode_batch(commands, images)
    np.testing.assert_allclose(np.asarray(y), nhwc(module(nchw(x))), rtol=1e-5, atol=1e-5)
