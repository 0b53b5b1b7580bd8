"""Convolution and its gradients against the float64 references, and the laws that belong to them alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, reference
from mpsgrad.testing import (
    FencedImage,
    assert_within,
    batch_sizes,
    channel_counts,
    channel_formats,
    error_bound,
    window_geometries,
)

EDGES = {"zero": mg.EdgeMode.ZERO, "clamp": mg.EdgeMode.CLAMP}


@dataclass(frozen=True)
class Layer:
    """A convolution with everything that goes into it, as arrays, and what the references say about it."""

    source: np.ndarray
    weights: np.ndarray
    biases: np.ndarray | None
    gradient: np.ndarray
    geometry: dict[str, Any]
    groups: int
    edge: str
    depthwise: bool = False

    @property
    def inputs(self) -> int:
        return self.weights.shape[3] * self.groups

    @property
    def dtype(self) -> np.dtype:
        return self.source.dtype

    @property
    def keywords(self) -> dict[str, Any]:
        return self.geometry | {"groups": self.groups, "edge": self.edge}

    def data_source(self) -> mg.ConvolutionDataSource:
        return mg.ConvolutionDataSource.from_arrays(
            self.weights[..., 0].copy() if self.depthwise else self.weights,
            self.biases,
            stride=self.geometry["stride"],
            dilation=self.geometry["dilation"],
            groups=1 if self.depthwise else self.groups,
        )

    def convolution(self) -> mg.Convolution:
        kernel = mg.Convolution(self.data_source())
        kernel.offset = mg.Offset(self.geometry["offset"][1], self.geometry["offset"][0])
        kernel.edge_mode = EDGES[self.edge]
        return kernel

    @property
    def result_shape(self) -> tuple[int, int, int, int]:
        return (len(self.source), *self.geometry["size"], len(self.weights))

    def forward(self, source, weights, biases):
        return reference.convolution(source[..., : self.inputs], weights, biases, **self.keywords)

    @cached_property
    def expected(self) -> np.ndarray:
        return self.forward(self.source, self.weights, self.biases)

    @cached_property
    def forward_bound(self) -> np.ndarray:
        biases = None if self.biases is None else np.abs(self.biases)
        magnitude = self.forward(np.abs(self.source), np.abs(self.weights), biases)
        return error_bound(self.dtype, self.weights[0].size + 1, magnitude, self.expected)

    def data(self, gradient, weights) -> np.ndarray:
        size = self.source.shape[1:3]
        return reference.convolution_gradient_data(gradient, weights, source_size=size, **self.keywords)

    @cached_property
    def expected_data(self) -> np.ndarray:
        """The gradient of the channels that were read; the others have none."""
        full = np.zeros(self.source.shape)
        full[..., : self.inputs] = self.data(self.gradient, self.weights)
        return full

    @cached_property
    def data_bound(self) -> np.ndarray:
        terms = self.data(np.ones_like(self.gradient), np.ones_like(self.weights[..., :1])).max()
        magnitude = self.data(np.abs(self.gradient), np.abs(self.weights))
        bound = np.zeros(self.source.shape)
        exact = self.expected_data[..., : self.inputs]
        bound[..., : self.inputs] = error_bound(self.dtype, terms, magnitude, exact)
        return bound

    def weights_gradient(self, gradient, source) -> np.ndarray:
        return reference.convolution_gradient_weights(
            gradient, source[..., : self.inputs], kernel=self.weights.shape[1:3], **self.keywords
        )

    @cached_property
    def expected_weights(self) -> np.ndarray:
        return self.weights_gradient(self.gradient, self.source)

    @cached_property
    def weights_bound(self) -> np.ndarray:
        terms = self.gradient[..., 0].size
        magnitude = self.weights_gradient(np.abs(self.gradient), np.abs(self.source))
        return error_bound(np.float32, terms, magnitude, self.expected_weights)

    @cached_property
    def biases_bound(self) -> np.ndarray:
        magnitude = reference.convolution_gradient_biases(np.abs(self.gradient))
        return error_bound(np.float32, self.gradient[..., 0].size, magnitude, magnitude)

    def check_state(self, state: mg.ConvolutionGradientState) -> None:
        assert_within(
            state.gradient_for_weights.reshape(self.weights.shape),
            self.expected_weights,
            self.weights_bound,
            name="gradient for the weights",
        )
        assert_within(
            state.gradient_for_biases,
            reference.convolution_gradient_biases(self.gradient),
            self.biases_bound,
            name="gradient for the biases",
        )


@st.composite
def layers(draw: Any, edge: str | None = None, more_channels: bool = True) -> Layer:
    """Any window, groups of any number of channels, depthwise, with and without biases, sources with extra channels."""
    geometry = draw(window_geometries(largest=9, largest_kernel=4))
    depthwise = draw(st.booleans())
    if depthwise:
        groups, inputs, outputs = draw(channel_counts()), 1, 1
    else:
        groups = draw(st.integers(1, 3))
        inputs, outputs = draw(channel_counts()), draw(channel_counts())
        if groups > 1:
            inputs, outputs = min(inputs, 7), min(outputs, 9)
    extra = draw(st.integers(0, 3)) if more_channels else 0
    images = draw(batch_sizes())
    dtype = draw(channel_formats()).dtype
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    channels = groups * inputs + extra
    keywords = geometry.reference
    kernel = keywords.pop("kernel")
    return Layer(
        random.standard_normal((images, geometry.height, geometry.width, channels)).astype(dtype),
        random.standard_normal((groups * outputs, *kernel, inputs)).astype(np.float32),
        random.standard_normal(groups * outputs).astype(np.float32) if draw(st.booleans()) else None,
        random.standard_normal((images, *keywords["size"], groups * outputs)).astype(dtype),
        keywords,
        groups,
        edge or draw(st.sampled_from(sorted(EDGES))),
        depthwise,
    )


def layer(
    size=(7, 6), inputs=6, outputs=8, kernel=(3, 2), groups=1, images=3, edge="zero", dtype=np.float32, **geometry
) -> Layer:
    """A plain layer for tests of one property."""
    random = np.random.default_rng(0)
    geometry = {"stride": (1, 1), "dilation": (1, 1), "offset": (1, 1), "size": size} | geometry
    return Layer(
        random.standard_normal((images, *size, inputs)).astype(dtype),
        random.standard_normal((outputs, *kernel, inputs // groups)).astype(np.float32),
        random.standard_normal(outputs).astype(np.float32),
        random.standard_normal((images, *geometry["size"], outputs)).astype(dtype),
        geometry,
        groups,
        edge,
    )


def run(layer: Layer, gradient_option: int = mg.ConvolutionGradientOption.ALL) -> tuple[np.ndarray, np.ndarray, Any]:
    """Result, data gradient and state by the manual encodes into fenced images."""
    kernel, gradient_kernel = layer.convolution(), mg.ConvolutionGradient(layer.data_source())
    gradient_kernel.gradient_option = gradient_option
    source = mg.Image.from_array(layer.source)
    n, height, width, outputs = layer.result_shape
    result = FencedImage.of(mg.ImageDescriptor(source.channel_format, width, height, outputs, n))
    gradient = FencedImage.of(
        mg.ImageDescriptor(source.channel_format, source.width, source.height, layer.inputs, n)
    )
    state = kernel.result_state(source, destination_image=result.image)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result.image, destination_state=state)
        gradient_kernel.encode(
            commands, mg.Image.from_array(layer.gradient), source, state, destination_gradient=gradient.image
        )
    return result.check(), gradient.check(), state


@given(layers())
@settings(max_examples=60)
def test_against_the_references(layer):
    y, dx, state = run(layer)
    assert_within(y, layer.expected, layer.forward_bound, name="result")
    read = (..., slice(0, layer.inputs))
    assert_within(dx, layer.expected_data[read], layer.data_bound[read], name="gradient for the source")
    layer.check_state(state)


@given(layers())
@settings(max_examples=15)
def test_automatic_and_manual_encodes_give_the_same_bits(layer):
    kernel, gradient_kernel = layer.convolution(), mg.ConvolutionGradient(layer.data_source())
    source = mg.Image.from_array(layer.source)
    with mg.CommandBuffer() as commands:
        y, state = kernel.encode(commands, source, return_state=True)
    n, height, width, outputs = y.shape
    random = np.random.default_rng(1)
    values = random.standard_normal(y.shape).astype(layer.dtype)
    with mg.CommandBuffer() as commands:
        dx = gradient_kernel.encode(commands, mg.Image.from_array(values), source, state)
    geometry = layer.geometry | {"offset": (kernel.offset.y, kernel.offset.x), "size": (height, width)}
    same = Layer(
        layer.source, layer.weights, layer.biases, values, geometry, layer.groups, layer.edge, layer.depthwise
    )
    y2, dx2, state2 = run(same)
    assert np.array_equal(np.asarray(y), y2)
    assert dx.shape == layer.source.shape
    assert np.array_equal(np.asarray(dx)[..., : layer.inputs], dx2)
    assert not np.asarray(dx)[..., layer.inputs :].any(), "channels that were not read have a gradient"
    assert np.array_equal(state.gradient_for_weights, state2.gradient_for_weights)
    assert np.array_equal(state.gradient_for_biases, state2.gradient_for_biases)


@given(layers(more_channels=False))
@settings(max_examples=20)
def test_forward_and_data_gradient_are_adjoint(layer):
    """``<conv(x), g> = <x, gradient(g)>`` for the linear part: every product appears once on either side."""
    linear = Layer(
        layer.source, layer.weights, None, layer.gradient, layer.geometry, layer.groups, layer.edge, layer.depthwise
    )
    y, dx, state = run(linear)
    y, dx, x, g = (a.astype(np.float64) for a in (y, dx, layer.source, layer.gradient))
    weights_side = (state.gradient_for_weights.reshape(layer.weights.shape).astype(np.float64) * layer.weights).sum()
    slack = (np.abs(g) * linear.forward_bound).sum() + (np.abs(x) * linear.data_bound).sum()
    assert abs((y * g).sum() - (x * dx).sum()) <= slack + 1e-9
    slack += (np.abs(layer.weights) * linear.weights_bound).sum()
    assert abs((y * g).sum() - weights_side) <= slack + 1e-9


LINES = [
    # x, weights by tap, stride, dilation, offset, y with bias 0.5, g, dx, dw, db, kernel offset, secondary offset
    ([1, 2, 3, 4, 5], [1, 2, 3], 1, 1, 0, [8.5, 14.5, 20.5, 26.5, 14.5], [1, 0, 2, 0, 3], [2, 5, 4, 9, 6],
     [16, 22, 10], 6, 0, -1),
    ([1, 2, 3, 4, 5], [1, 2, 3], 2, 1, 0, [8.5, 20.5, 14.5], [1, 10, 100], [2, 13, 20, 130, 200], [420, 531, 42], 111,
     0, -1),
    ([1, 2, 3, 4, 5], [1, 2, 3], 2, 1, 1, [14.5, 26.5], [1, 10], [1, 2, 13, 20, 30], [31, 42, 53], 11, -1, 0),
    ([1, 2, 3, 4], [1, 10], 1, 1, 0, [10.5, 21.5, 32.5, 43.5], [1, 2, 3, 4], [12, 23, 34, 40], [20, 30], 10, 1, -1),
    ([1, 2, 3, 4, 5, 6], [1, 10], 2, 1, 1, [21.5, 43.5, 65.5], [1, 2, 3], [1, 10, 2, 20, 3, 30], [22, 28], 6, 0, 0),
    ([1, 2, 3, 4, 5, 6, 7], [1, 10], 1, 3, 2, [41.5, 52.5, 63.5, 74.5], [1, 2, 3, 4], [1, 2, 3, 14, 20, 30, 40],
     [30, 60], 10, -1, 0),
    ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4], 2, 1, 1, [20.5, 40.5, 32.5], [1, -1, 2], [2, 2, 2, -1, 0, 6], [6, 8, 10, -2], 2,
     0, -1),
]


@pytest.mark.parametrize("upright", [False, True], ids=["lying", "upright"])
@pytest.mark.parametrize("line", LINES)
def test_worked_lines(upright, line):
    x, w, stride, dilation, offset, y, g, dx, dw, db, kernel_offset, second = line

    def shaped(values):
        return np.asarray(values, np.float32).reshape((1, -1, 1, 1) if upright else (1, 1, -1, 1))

    def pair(along, across=1):
        return (along, across) if upright else (across, along)

    data = mg.ConvolutionDataSource.from_arrays(
        shaped(w), np.array([0.5], np.float32), stride=pair(stride), dilation=pair(dilation)
    )
    kernel, gradient_kernel = mg.Convolution(data), mg.ConvolutionGradient(data)
    kernel.offset = mg.Offset(0, offset) if upright else mg.Offset(offset, 0)
    source = mg.Image.from_array(shaped(x))
    height, width = pair(len(y))
    result = mg.Image(mg.ImageDescriptor(width=width, height=height))
    state = kernel.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)
        gradient = gradient_kernel.encode(commands, mg.Image.from_array(shaped(g)), source, state)
    np.testing.assert_array_equal(np.asarray(result), shaped(y))
    np.testing.assert_array_equal(np.asarray(gradient), shaped(dx))
    np.testing.assert_array_equal(state.gradient_for_weights, shaped(dw))
    np.testing.assert_array_equal(state.gradient_for_biases, [db])
    along = "y" if upright else "x"
    assert getattr(gradient_kernel, f"kernel_offset_{along}") == kernel_offset
    assert getattr(gradient_kernel.secondary_offset, along) == second
    assert gradient_kernel.primary_offset == mg.Offset()


def test_worked_image():
    weights = (np.arange(1, 17, dtype=np.float32) / 10).reshape(2, 2, 2, 2)
    data = mg.ConvolutionDataSource.from_arrays(weights, np.array([0.1, -0.2], np.float32))
    kernel, gradient_kernel = mg.Convolution(data), mg.ConvolutionGradient(data)
    kernel.offset = mg.Offset(1, 1)
    source = mg.Image.from_array(np.arange(1, 19, dtype=np.float32).reshape(1, 3, 3, 2))
    result = mg.Image(mg.ImageDescriptor(width=2, height=2, feature_channels=2))
    state = kernel.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)
        incoming = mg.Image.from_array(np.arange(1, 9, dtype=np.float32).reshape(1, 2, 2, 2))
        gradient = gradient_kernel.encode(commands, incoming, source, state)
    tolerance = {"rtol": 1e-5, "atol": 0}
    np.testing.assert_allclose(
        np.asarray(result).ravel(), [25.7, 60.6, 32.9, 80.6, 47.3, 120.6, 54.5, 140.6], **tolerance
    )
    np.testing.assert_allclose(
        np.asarray(gradient).ravel(),
        [1.9, 2.2, 6.4, 7.4, 5.3, 6, 9, 10.4, 26.4, 30, 19, 21.2, 10.3, 11.4, 26.4, 29, 16.9, 18.4],
        **tolerance,
    )
    np.testing.assert_allclose(
        state.gradient_for_weights.ravel(),
        [108, 124, 140, 156, 204, 220, 236, 252, 128, 148, 168, 188, 248, 268, 288, 308],
        **tolerance,
    )
    np.testing.assert_allclose(state.gradient_for_biases, [16, 20], **tolerance)


def test_default_padding_keeps_the_size_and_adds_the_remainder_at_the_top_left():
    case = layer(kernel=(2, 3), stride=(2, 1))
    kernel = mg.Convolution(case.data_source())
    with mg.CommandBuffer() as commands:
        result = kernel.encode(commands, mg.Image.from_array(case.source))
    assert result.shape == (3, 4, 6, 8)
    assert kernel.offset == mg.Offset(0, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("edge", sorted(EDGES))
def test_clip_rectangle_and_channel_offsets(dtype, edge):
    """A convolution that reads channels 4 to 9 and writes channels 8 to 15 of rows 1 to 3 of a larger result."""
    case = layer(size=(7, 6), inputs=6, outputs=8, dtype=dtype, edge=edge, images=2)
    clip = mg.Region(mg.Origin(2, 1, 0), mg.Size(4, 3, 2))
    random = np.random.default_rng(5)
    wide = random.standard_normal((2, 7, 6, 12)).astype(dtype)
    wide[..., 4:10] = case.source
    background = random.standard_normal((2, 7, 7, 20)).astype(dtype)
    kernel, gradient_kernel = case.convolution(), mg.ConvolutionGradient(case.data_source())
    kernel.clip_rect = clip
    kernel.source_feature_channel_offset = 4
    kernel.destination_feature_channel_offset = 8
    source, result = mg.Image.from_array(wide), mg.Image.from_array(background)
    state = kernel.result_state(source, destination_image=result)
    incoming = random.standard_normal(background.shape).astype(dtype)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)
        gradient = gradient_kernel.encode(commands, mg.Image.from_array(incoming), source, state)
    window = (slice(None), slice(1, 4), slice(2, 6), slice(8, 16))
    inside = Layer(
        case.source, case.weights, case.biases, incoming[window], case.geometry | {"size": (3, 4)}, 1, edge
    )
    values = np.array(result)
    assert_within(values[window], inside.expected, inside.forward_bound, name="result")
    values[window] = background[window]
    assert np.array_equal(values, background), "pixels or channels outside the clip rectangle changed"
    dx = np.asarray(gradient)
    assert dx.shape == wide.shape
    assert_within(dx[..., 4:10], inside.expected_data, inside.data_bound, name="gradient for the source")
    assert not dx[..., :4].any() and not dx[..., 10:].any()
    inside.check_state(state)
    assert gradient_kernel.primary_offset == mg.Offset(2, 1, 0)


def test_offset_z_selects_the_images():
    case = layer(images=5)
    kernel, gradient_kernel = case.convolution(), mg.ConvolutionGradient(case.data_source())
    kernel.offset = mg.Offset(1, 1, 2)
    source = mg.Image.from_array(case.source)
    with mg.CommandBuffer() as commands:
        result, state = kernel.encode(commands, source, return_state=True)
    part = Layer(
        case.source[2:], case.weights, case.biases, case.gradient[2:],
        case.geometry | {"offset": (kernel.offset.y, kernel.offset.x)}, 1, "zero",
    )
    assert_within(np.asarray(result), part.expected, part.forward_bound)
    with mg.CommandBuffer() as commands:
        gradient = gradient_kernel.encode(commands, mg.Image.from_array(case.gradient[2:]), source, state)
    assert gradient.shape == case.source.shape
    assert not np.asarray(gradient)[:2].any()
    assert_within(np.asarray(gradient)[2:], part.expected_data, part.data_bound)
    part.check_state(state)


def test_gradient_of_a_part_of_the_source():
    """A clip rectangle of the gradient kernel, with kernel_offset moved along, gives that part of dx."""
    for edge in EDGES:
        case = layer(edge=edge, stride=(2, 1), size=(4, 6))
        case = Layer(
            np.random.default_rng(3).standard_normal((3, 7, 6, 6)).astype(np.float32),
            case.weights, case.biases, case.gradient, case.geometry, 1, edge,
        )
        _, _, state = run(case)
        kernel = mg.ConvolutionGradient(case.data_source())
        source, incoming = mg.Image.from_array(case.source), mg.Image.from_array(case.gradient)
        kernel.destination_image_descriptor([incoming, source], [state])
        kernel.gradient_option = mg.ConvolutionGradientOption.GRADIENT_WITH_DATA
        kernel.clip_rect = mg.Region(mg.Origin(3, 2, 0), mg.Size(3, 5, 3))
        kernel.kernel_offset_x += 3
        kernel.kernel_offset_y += 2
        part = mg.Image.from_array(np.full(case.source.shape, 7, np.float32))
        with mg.CommandBuffer() as commands:
            kernel.encode(commands, incoming, source, state, destination_gradient=part)
        values = np.asarray(part)
        clip = np.s_[:, 2:7, 3:6]
        assert_within(values[clip], case.expected_data[clip], case.data_bound[clip])
        assert (values[:, :2] == 7).all() and (values[:, :, :3] == 7).all()


def test_primary_offset_counts_strides():
    case = layer(stride=(1, 2), size=(7, 6))
    _, whole, state = run(case)
    source, incoming = mg.Image.from_array(case.source), mg.Image.from_array(case.gradient)
    results = []
    for offset, kernel_offset in ((1, -3), (0, -1)):
        kernel = mg.ConvolutionGradient(case.data_source())
        kernel.destination_image_descriptor([incoming, source], [state])
        kernel.primary_offset = mg.Offset(offset, 0)
        kernel.kernel_offset_x += kernel_offset
        result = mg.Image(source.descriptor)
        with mg.CommandBuffer() as commands:
            kernel.encode(commands, incoming, source, state, destination_gradient=result)
        results.append(np.array(result))
    assert np.array_equal(*results)
    assert not np.array_equal(results[0], whole)


@given(layers())
@settings(max_examples=8)
def test_same_bits_on_every_run(layer):
    first = run(layer)
    for _ in range(19):
        again = run(layer)
        assert np.array_equal(first[0], again[0]) and np.array_equal(first[1], again[1])
        assert np.array_equal(first[2].gradient_for_weights, again[2].gradient_for_weights)
        assert np.array_equal(first[2].gradient_for_biases, again[2].gradient_for_biases)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_batch_gives_each_image_the_bits_that_it_has_alone(dtype):
    case = layer(images=4, dtype=dtype, groups=2)
    y, dx, _ = run(case)
    for image in range(4):
        alone = Layer(
            case.source[image : image + 1], case.weights, case.biases, case.gradient[image : image + 1],
            case.geometry, 2, "zero",
        )
        one_y, one_dx, _ = run(alone)
        assert np.array_equal(one_y[0], y[image])
        assert np.array_equal(one_dx[0], dx[image])


def test_images_and_batches_agree():
    case = layer(images=4)
    whole_y, whole_dx, whole_state = run(case)
    kernel, gradient_kernel = case.convolution(), mg.ConvolutionGradient(case.data_source())
    sources = mg.ImageBatch(mg.Image.from_array(image[None]) for image in case.source)
    gradients = mg.ImageBatch(mg.Image.from_array(image[None]) for image in case.gradient)
    with mg.CommandBuffer() as commands:
        results, states = kernel.encode_batch(commands, sources, return_state=True)
    assert all(state is states[0] for state in states)
    with mg.CommandBuffer() as commands:
        parts = gradient_kernel.encode_batch(commands, gradients, sources, states)
    case = Layer(
        case.source, case.weights, case.biases, case.gradient,
        case.geometry | {"offset": (kernel.offset.y, kernel.offset.x)}, 1, "zero",
    )
    y, dx, state = run(case)
    assert np.array_equal(np.asarray(results), y)
    assert np.array_equal(np.asarray(parts), dx)
    case.check_state(states[0])


def test_parts_of_a_batch_add_up():
    """Two encodes of two images each leave the sums of the whole batch, in one command buffer or in two."""
    case = layer(images=4)
    source, gradient = mg.Image.from_array(case.source), mg.Image.from_array(case.gradient)
    for command_buffers in (1, 2):
        kernel, gradient_kernel = case.convolution(), mg.ConvolutionGradient(case.data_source())
        result = mg.Image(gradient.descriptor)
        state = kernel.result_state(source, destination_image=result)
        made = [mg.CommandBuffer() for _ in range(command_buffers)]
        for first in (0, 2):
            commands = made[min(first, command_buffers - 1)]
            kernel.encode(
                commands,
                source._images(first, 2),
                destination_image=result._images(first, 2),
                destination_state=state,
            )
        for first in (0, 2):
            commands = made[min(first, command_buffers - 1)]
            part = gradient_kernel.encode(commands, gradient._images(first, 2), source._images(first, 2), state)
            assert part.shape == (2, 7, 6, 6)
            if command_buffers == 2:
                commands.commit()
        if command_buffers == 1:
            made[0].commit()
        case.check_state(state)


def test_nothing_is_added_to_by_a_discarded_command_buffer():
    case = layer()
    kernel, gradient_kernel = case.convolution(), mg.ConvolutionGradient(case.data_source())
    source, gradient = mg.Image.from_array(case.source), mg.Image.from_array(case.gradient)
    result = mg.Image(gradient.descriptor)
    state = kernel.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)
    with pytest.raises(RuntimeError, match="on purpose"), mg.CommandBuffer() as commands:
        gradient_kernel.encode(commands, gradient, source, state)
        raise RuntimeError("on purpose")
    assert not state.has_gradients
    with mg.CommandBuffer() as commands:
        gradient_kernel.encode(commands, gradient, source, state)
    case.check_state(state)


@pytest.mark.parametrize("edge", sorted(EDGES))
def test_gradient_option(edge):
    case = layer(edge=edge)
    _, dx, state = run(case)
    option = mg.ConvolutionGradientOption
    source, incoming = mg.Image.from_array(case.source), mg.Image.from_array(case.gradient)
    kernel, gradient_kernel = case.convolution(), mg.ConvolutionGradient(case.data_source())
    assert gradient_kernel.gradient_option is option.ALL

    gradient_kernel.gradient_option = option.GRADIENT_WITH_DATA
    data_state = kernel.result_state(source, destination_image=incoming)
    with mg.CommandBuffer() as commands:
        only_data = gradient_kernel.encode(commands, incoming, source, data_state)
    assert np.array_equal(np.asarray(only_data), dx)
    assert not data_state.gradient_for_weights.any() and not data_state.gradient_for_biases.any()
    assert not data_state.has_gradients

    gradient_kernel.gradient_option = option.GRADIENT_WITH_WEIGHTS_AND_BIAS
    untouched = mg.Image.from_array(np.full(case.source.shape, 3, np.float32))
    for destination in (None, untouched):
        weights_state = kernel.result_state(source, destination_image=incoming)
        with mg.CommandBuffer() as commands:
            result = gradient_kernel.encode(
                commands, incoming, source, weights_state, destination_gradient=destination
            )
        assert result is None
        assert np.array_equal(weights_state.gradient_for_weights, state.gradient_for_weights)
        assert np.array_equal(weights_state.gradient_for_biases, state.gradient_for_biases)
    assert (np.asarray(untouched) == 3).all()
    batch_state = kernel.result_state(source, destination_image=incoming)
    with mg.CommandBuffer() as commands:
        states = mg.StateBatch([batch_state] * 3)
        result = gradient_kernel.encode_batch(
            commands, incoming.batch_representation(), source.batch_representation(), states
        )
    assert result is None
    assert np.array_equal(batch_state.gradient_for_weights, state.gradient_for_weights)


def test_what_a_state_says():
    case = layer(size=(7, 6))
    kernel = case.convolution()
    source = mg.Image.from_array(case.source)
    with mg.CommandBuffer() as commands:
        _, state = kernel.encode(commands, source, return_state=True)
    assert state.convolution is kernel
    assert (state.source_width, state.source_height) == (6, 7)
    assert state.gradient_for_weights_layout is mg.ConvolutionWeightsLayout.OHWI
    assert state.gradient_for_weights.shape == (8, 3, 2, 6) and state.gradient_for_weights.dtype == np.float32
    assert state.gradient_for_biases.shape == (8,)
    assert not state.gradient_for_weights.any() and not state.gradient_for_biases.any()
    assert [state.buffer_size(i) for i in range(state.resource_count)] == [4 * 8 * 3 * 2 * 6, 4 * 8]
    assert not state.is_temporary
    assert kernel.is_result_state_reused_across_batch


def test_a_temporary_state_carries_gradients_to_an_update_in_the_same_command_buffer():
    case = layer(images=2)
    kernel, gradient_kernel = case.convolution(), mg.ConvolutionGradient(case.data_source())
    sources = mg.ImageBatch(mg.Image.from_array(image[None]) for image in case.source)
    gradients = mg.ImageBatch(mg.Image.from_array(image[None]) for image in case.gradient)
    optimizer = mg.OptimizerStochasticGradientDescent.with_learning_rate(1.0)
    updated = mg.ConvolutionWeightsAndBiasesState.with_descriptor(kernel.descriptor)
    zeros = mg.ConvolutionWeightsAndBiasesState.with_descriptor(kernel.descriptor)
    with mg.CommandBuffer() as commands:
        _, states = kernel.encode_batch(commands, sources, return_state=True, state_is_temporary=True)
        states.increment_read_count(1)
        assert states[0].read_count == 2
        gradient_kernel.encode_batch(commands, gradients, sources, states)
        assert states[0].read_count == 1
        optimizer.encode_convolution(commands, states[0], zeros, result_state=updated)
        assert states[0].read_count == 0
    moved = Layer(
        case.source, case.weights, case.biases, case.gradient,
        case.geometry | {"offset": (kernel.offset.y, kernel.offset.x)}, 1, "zero",
    )
    assert_within(-updated.weights, moved.expected_weights, moved.weights_bound)
    with pytest.raises(mg.StateError, match="temporary"):
        _ = states[0].gradient_for_weights


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("neuron", ["none", "relu", "tanh", "elu", "gelu", "prelu"])
def test_a_fused_neuron_gives_the_bits_of_one_that_follows(neuron, dtype):
    case = layer(dtype=dtype)
    slopes = np.linspace(-1, 1, 8)
    descriptor = mg.NeuronDescriptor.prelu(slopes) if neuron == "prelu" else mg.NeuronDescriptor(neuron)
    data = mg.ConvolutionDataSource.from_arrays(case.weights, case.biases, fused_neuron_descriptor=descriptor)
    fused, plain, following = mg.Convolution(data), case.convolution(), mg.Neuron(descriptor)
    assert fused.fused_neuron_descriptor == (None if neuron == "none" else descriptor)
    source = mg.Image.from_array(case.source)
    wide = np.full((3, 9, 9, 16), 7, dtype)
    written = mg.Image.from_array(wide)
    restored = archive.from_bytes(archive.to_bytes(fused))
    for kernel in (fused, restored):
        kernel.clip_rect = mg.Region(mg.Origin(1, 2, 0), mg.Size(6, 7, 3))
        kernel.destination_feature_channel_offset = 4
    with mg.CommandBuffer() as commands:
        separate = following.encode(commands, plain.encode(commands, source))
        for kernel in (fused, restored):
            kernel.offset = plain.offset
            kernel.encode(commands, source, destination_image=written)
    wide[:, 2:, 1:7, 4:12] = np.asarray(separate)
    assert np.array_equal(np.asarray(written), wide)


@pytest.mark.parametrize("kind", [mg.Convolution, mg.ConvolutionTranspose])
def test_a_fused_neuron_is_applied_once_to_every_element(kind):
    """Of a result whose elements are no multiple of those that a thread or a simdgroup takes at once."""
    generator = np.random.default_rng(41)
    weights = generator.standard_normal((7, 1, 1, 3)).astype(np.float32)
    source = mg.Image.from_array(generator.standard_normal((1, 3, 5, 3)).astype(np.float32))
    leaky = mg.NeuronDescriptor("relu", 0.25)
    fused, plain = (
        kind(mg.ConvolutionDataSource.from_arrays(weights, fused_neuron_descriptor=neuron)) for neuron in (leaky, None)
    )
    with mg.CommandBuffer() as commands:
        result, before = fused.encode(commands, source), plain.encode(commands, source)
        again = fused.encode(commands, source)
    y = np.asarray(before)
    for image in (result, again):
        np.testing.assert_array_equal(np.asarray(image), np.where(y >= 0, y, np.float32(0.25) * y))


def test_even_windows_lean_to_the_top_left():
    data = mg.ConvolutionDataSource.from_arrays(np.array([1, 10], np.float32).reshape(1, 1, 2, 1), dilation=(1, 3))
    kernel = mg.Convolution(data)
    result = mg.Image(mg.ImageDescriptor(width=1))
    kernel.offset = mg.Offset(2, 0)
    with mg.CommandBuffer() as commands:
        source = mg.Image.from_array(np.array([1, 2, 3, 4], np.float32).reshape(1, 1, 4, 1))
        kernel.encode(commands, source, destination_image=result)
    assert np.asarray(result).item() == 1 * 1 + 10 * 4


def test_a_depthwise_convolution_is_one_with_as_many_groups_as_channels():
    random = np.random.default_rng(0)
    weights = random.standard_normal((5, 3, 3)).astype(np.float32)
    source = mg.Image.from_array(random.standard_normal((2, 6, 6, 5)).astype(np.float32))
    results, states = [], []
    for data in (
        mg.ConvolutionDataSource.from_arrays(weights),
        mg.ConvolutionDataSource.from_arrays(weights[..., None].copy(), groups=5),
    ):
        kernel, gradient_kernel = mg.Convolution(data), mg.ConvolutionGradient(data)
        with mg.CommandBuffer() as commands:
            y, state = kernel.encode(commands, source, return_state=True)
            dx = gradient_kernel.encode(commands, y, source, state)
        results.append((np.asarray(y), np.asarray(dx)))
        states.append(state)
        assert kernel.channel_multiplier == (1 if weights.shape == data.weights.shape else 0)
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))
    assert states[0].gradient_for_weights.shape == (5, 3, 3)
    assert np.array_equal(states[0].gradient_for_weights, states[1].gradient_for_weights[..., 0])
