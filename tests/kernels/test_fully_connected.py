"""Fully connected layers and their gradients against the float64 references."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import reference
from mpsgrad.testing import FencedImage, assert_within, batch_sizes, channel_counts, channel_formats, error_bound


@st.composite
def layers(draw):
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    height, width = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    inputs, outputs, images = draw(channel_counts()), draw(channel_counts()), draw(batch_sizes())
    dtype = draw(channel_formats()).dtype
    return (
        random.standard_normal((images, height, width, inputs)).astype(dtype),
        random.standard_normal((outputs, height, width, inputs)).astype(np.float32),
        random.standard_normal(outputs).astype(np.float32) if draw(st.booleans()) else None,
        random.standard_normal((images, 1, 1, outputs)).astype(dtype),
    )


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@given(layers())
def test_against_the_references(layer):
    check(*layer)


@pytest.mark.parametrize(("images", "inputs"), [(50, 2061), (50, 6), (26, 1030), (5, 299), (12, 777)])
def test_weights_that_are_kept_for_many_images(images, inputs):
    """Where a CPU's threads copy rows of one or more blocks of channels at a time, or keep 512 channels of rows and the
    sums of several blocks, also of a last tile of few images."""
    check(normal(images, 1, 2, inputs), normal(300, 1, 2, inputs), normal(300), normal(images, 1, 1, 300))


def check(x: np.ndarray, w: np.ndarray, b: np.ndarray | None, g: np.ndarray) -> None:
    data = mg.ConvolutionDataSource.from_arrays(w, b)
    kernel, gradient_kernel = mg.FullyConnected(data), mg.FullyConnectedGradient(data)
    source, incoming = mg.Image.from_array(x), mg.Image.from_array(g)
    y, dx = FencedImage.of(incoming.descriptor), FencedImage.of(source.descriptor)
    state = kernel.result_state(source, destination_image=y.image)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=y.image, destination_state=state)
        gradient_kernel.encode(commands, incoming, source, state, destination_gradient=dx.image)
        automatic, automatic_state = kernel.encode(commands, source, return_state=True)
        automatic_gradient = gradient_kernel.encode(commands, incoming, source, automatic_state)
    absolute = np.abs(x), np.abs(w), None if b is None else np.abs(b)
    expected = reference.fully_connected(x, w, b)
    bound = error_bound(x.dtype, w[0].size + 1, reference.fully_connected(*absolute), expected)
    assert_within(y.check(), expected, bound)
    expected = reference.fully_connected_gradient_data(g, w)
    magnitude = reference.fully_connected_gradient_data(np.abs(g), np.abs(w))
    assert_within(dx.check(), expected, error_bound(x.dtype, len(w), magnitude, expected))
    expected = reference.fully_connected_gradient_weights(g, x)
    magnitude = reference.fully_connected_gradient_weights(np.abs(g), np.abs(x))
    assert_within(state.gradient_for_weights, expected, error_bound(np.float32, len(x), magnitude, expected))
    expected = reference.convolution_gradient_biases(g)
    magnitude = reference.convolution_gradient_biases(np.abs(g))
    assert_within(state.gradient_for_biases, expected, error_bound(np.float32, len(x), magnitude, expected))
    assert np.array_equal(np.asarray(automatic), np.asarray(y.image))
    assert np.array_equal(np.asarray(automatic_gradient), np.asarray(dx.image))
    assert np.array_equal(automatic_state.gradient_for_weights, state.gradient_for_weights)


def test_the_offset_is_ignored_and_the_padding_is_valid_only():
    random = np.random.default_rng(0)
    data = mg.ConvolutionDataSource.from_arrays(random.standard_normal((4, 3, 2, 5)).astype(np.float32))
    kernel = mg.FullyConnected(data)
    assert kernel.padding is mg.VALID_ONLY
    source = mg.Image.from_array(random.standard_normal((2, 3, 2, 5)).astype(np.float32))
    results = []
    for offset in (mg.Offset(), mg.Offset(7, -3)):
        kernel.offset = offset
        result = mg.Image(mg.ImageDescriptor(feature_channels=4, number_of_images=2))
        with mg.CommandBuffer() as commands:
            kernel.encode(commands, source, destination_image=result)
        results.append(np.array(result))
    assert np.array_equal(*results) and results[0].any()


def test_one_pixel_of_a_larger_result():
    random = np.random.default_rng(0)
    data = mg.ConvolutionDataSource.from_arrays(random.standard_normal((4, 3, 2, 5)).astype(np.float32))
    kernel, gradient_kernel = mg.FullyConnected(data), mg.FullyConnectedGradient(data)
    source = mg.Image.from_array(random.standard_normal((1, 3, 2, 5)).astype(np.float32))
    wide = mg.Image.from_array(np.zeros((1, 2, 3, 4), np.float32))
    kernel.clip_rect = mg.Region(mg.Origin(2, 1, 0), mg.Size(1, 1, 1))
    state = kernel.result_state(source, destination_image=wide)
    incoming = random.standard_normal((1, 2, 3, 4)).astype(np.float32)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=wide, destination_state=state)
        gradient = gradient_kernel.encode(commands, mg.Image.from_array(incoming), source, state)
    y = np.asarray(wide)
    np.testing.assert_allclose(y[:, 1:, 2:], reference.fully_connected(np.asarray(source), data.weights), atol=1e-5)
    assert np.count_nonzero(y) == 4
    expected = reference.fully_connected_gradient_data(incoming[:, 1:, 2:], data.weights)
    np.testing.assert_allclose(np.asarray(gradient), expected, atol=1e-5)
