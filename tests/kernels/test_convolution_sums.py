"""The gradients of a 1 x 1 convolution with few output channels, which are sums over pixels on GPUs."""

from __future__ import annotations

import gpu_forms
import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.kernels import convolution_sums
from mpsgrad.kernels.convolution_dispatch import Algorithm, GradientSums, ImagePart, Weights, add_gradient_weights
from mpsgrad.kernels.convolution_packing import PackedWeights
from mpsgrad.testing import assert_within, error_bound


@pytest.mark.usefixtures("shaders_of_gpus")
@pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
@pytest.mark.parametrize(
    ("size", "channels", "outputs", "part"),
    [
        ((15, 31), 64, 2, slice(None)),
        ((15, 31), 5, 1, slice(None)),
        ((15, 31), 8, 3, slice(4)),
        ((15, 31), 1, 1, slice(None)),
        ((16, 31), 1, 1, slice(None)),
        ((33, 32), 1, 1, slice(None)),
        ((33, 32), 256, 1, slice(None)),
    ],
)
def test_weights_and_biases_against_the_sums(device, monkeypatch, size, channels, outputs, part, dtype):
    monkeypatch.setattr(convolution_sums, "FEWEST_PIXELS", 900)
    random = np.random.default_rng(channels)
    x, g = (random.standard_normal((2, *size, n)).astype(dtype) for n in (channels, outputs))
    images = mg.Image.from_array(x), mg.Image.from_array(g)
    read = x[..., part].astype(np.float64).reshape(-1, x[..., part].shape[3])
    pixels = len(read)
    given = g.astype(np.float64).reshape(-1, outputs)
    view = images[0] if part == slice(None) else images[0].sub_image(0, part.stop)
    found = [device.allocate(4 * count) for count in (outputs * read.shape[1], outputs)]
    numbers = Weights(
        *found, PackedWeights(*found), (1, 1, 1, 1, 1, 1, 0, 0), 1, False, images[0].channel_format.metal_type,
        Algorithm.TILES,
    )  # fmt: skip
    for times in (1, 2):
        with mg.CommandBuffer() as commands:
            add_gradient_weights(
                commands,
                numbers,
                ImagePart(images[1].buffer, images[1].layout),
                ImagePart(view.buffer, view.layout),
                GradientSums(*found, accumulates=times > 1),
            )
        names = [dispatch.function.name.partition("_")[0] for dispatch in commands._dispatches]
        assert set(names) <= {"product", "sum", "add"}
        weights, biases = (buffer.read(0, buffer.nbytes).view(np.float32) for buffer in found)
        exact, magnitude = given.T @ read, np.abs(given).T @ np.abs(read)
        bound = error_bound(np.float32, pixels + times, times * magnitude, times * exact)
        assert_within(weights.reshape(exact.shape), times * exact, bound, name="weights")
        exact, magnitude = given.sum(0), np.abs(given).sum(0)
        assert_within(biases, times * exact, error_bound(np.float32, pixels + times, times * magnitude, times * exact))
