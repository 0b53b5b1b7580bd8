"""Sub-pixel convolution: the channels of an ordinary one, spread over blocks of pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, reference
from mpsgrad.kernels.convolution_data_source import ArrayConvolutionDataSource
from mpsgrad.testing import FencedImage, assert_within, channel_formats, error_bound, values


def source_of(weights: np.ndarray, biases: np.ndarray, factor: int, **options: Any) -> ArrayConvolutionDataSource:
    outputs, height, width, inputs = weights.shape
    descriptor = mg.SubPixelConvolutionDescriptor(
        width, height, inputs, outputs, sub_pixel_scale_factor=factor, **options
    )
    return ArrayConvolutionDataSource(descriptor, weights, biases)


def array(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@given(data=st.data(), factor=st.integers(1, 3), channels=st.sampled_from([1, 3, 8]), stride=st.integers(1, 2))
def test_the_result_is_that_of_the_convolution_in_blocks(data, factor, channels, stride):
    dtype = data.draw(channel_formats()).dtype
    x = data.draw(values((2, data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5)), 3), dtype))
    w = data.draw(values((channels * factor**2, 3, 2, 3), np.float32))
    b = data.draw(values((len(w),), np.float32))
    kernel = mg.Convolution(source_of(w, b, factor, stride_in_pixels_x=stride, stride_in_pixels_y=stride))
    kernel.padding = data.draw(st.sampled_from([mg.SAME, mg.ExplicitPadding(1, 2)]))
    image = mg.Image.from_array(x)
    y = FencedImage.of(kernel.destination_image_descriptor([image]))
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, image, destination_image=y.image)
    size = (y.image.height // factor, y.image.width // factor)
    if isinstance(kernel.padding, mg.ExplicitPadding):
        assert size == ((x.shape[1] + 1) // stride + 1, x.shape[2] // stride + 1)
    keywords: Any = {"size": size, "stride": (stride, stride), "offset": (kernel.offset.y, kernel.offset.x)}
    exact = reference.sub_pixels(reference.convolution(x, w, b, **keywords), factor)
    magnitude = reference.sub_pixels(reference.convolution(np.abs(x), np.abs(w), np.abs(b), **keywords), factor)
    assert y.image.shape[3] == channels
    assert_within(y.check(), exact, error_bound(dtype, 19, magnitude, exact))


def test_part_of_a_block_is_written_where_the_clip_rectangle_ends():
    x, w = array(0, 1, 4, 4, 2), array(1, 8, 3, 3, 2)
    kernel = mg.Convolution(source_of(w, np.zeros(8, np.float32), 2))
    kernel.clip_rect = mg.Region(mg.Origin(1, 2, 0), mg.Size(5, 3, 1))
    with mg.CommandBuffer() as commands:
        y = kernel.encode(commands, mg.Image.from_array(x))
    expected = np.zeros((1, 8, 8, 2))
    result = reference.sub_pixels(reference.convolution(x, w, size=(2, 3)), 2)
    expected[:, 2:5, 1:6] = result[:, :3, :5]
    np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-4, atol=1e-5)


def test_a_kernel_from_an_archive_and_a_fused_neuron():
    x, w = array(2, 1, 3, 3, 2), array(3, 4, 3, 3, 2)
    source = source_of(w, np.zeros(4, np.float32), 2, fused_neuron_descriptor=mg.NeuronDescriptor("relu"))
    kernel, results = mg.Convolution(source), []
    for one in (kernel, archive.from_bytes(archive.to_bytes(kernel))):
        assert one.sub_pixel_scale_factor == 2
        with mg.CommandBuffer() as commands:
            results.append(one.encode(commands, mg.Image.from_array(x)))
    exact = np.maximum(reference.sub_pixels(reference.convolution(x, w, size=(3, 3)), 2), 0)
    np.testing.assert_allclose(np.asarray(results[0]), exact, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(results[1]), np.asarray(results[0]))


NUMBERS = np.ones((4, 3, 3, 2), np.float32), np.ones(4, np.float32)
BAD_INPUT = {
    "channels that fill no block": (
        lambda: source_of(np.ones((6, 3, 3, 2), np.float32), np.ones(6, np.float32), 2), mg.GeometryError,
        "output_feature_channels is 6; .* a multiple of 4"),
    "a factor of 0": (lambda: source_of(*NUMBERS, 0), mg.GeometryError, "sub_pixel_scale_factor is 0"),
    "a factor that is no integer": (lambda: source_of(*NUMBERS, 1.5), mg.FormatError, "sub_pixel_scale_factor is 1.5"),
    "a fused PReLU": (
        lambda: source_of(*NUMBERS, 2, fused_neuron_descriptor=mg.NeuronDescriptor("prelu", data=[1, 2, 3, 4])),
        NotImplementedError, "PRELU with sub_pixel_scale_factor 2"),
    "a gradient": (
        lambda: mg.ConvolutionGradient(source_of(*NUMBERS, 2)), NotImplementedError, "sub-pixel .* has no gradient"),
    "a transposed convolution": (
        lambda: mg.ConvolutionTranspose(source_of(*NUMBERS, 2)), mg.GeometryError, "is for sub-pixel convolution"),
    "a fully connected layer": (
        lambda: mg.FullyConnected(source_of(*NUMBERS, 2)), mg.GeometryError, "is for sub-pixel convolution"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error, match=words):
        build()
