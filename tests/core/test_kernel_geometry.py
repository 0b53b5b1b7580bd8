"""The base classes of kernels: where windows lie, what is written, the encode forms, and what an encode copies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from window_kernels import WindowDifference, WindowSum, window_sum

import mpsgrad as mg
from mpsgrad.testing import FencedImage, assert_within, channel_formats, error_bound, values, window_geometries

EDGES = {"zero": mg.EdgeMode.ZERO, "clamp": mg.EdgeMode.CLAMP}
edges = st.sampled_from(sorted(EDGES))
RANDOM = np.random.default_rng(7)


def array(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def run(kernel, source, destination, **keywords):
    with mg.CommandBuffer() as commands:
        return kernel.encode(commands, source, destination_image=destination, **keywords)


def kernel_for(geometry, edge="zero") -> WindowSum:
    kernel = WindowSum(
        kernel_width=geometry.kernel_width,
        kernel_height=geometry.kernel_height,
        stride_in_pixels_x=geometry.stride_x,
        stride_in_pixels_y=geometry.stride_y,
        dilation_rate_x=geometry.dilation_x,
        dilation_rate_y=geometry.dilation_y,
    )
    kernel.offset = mg.Offset(geometry.offset_x, geometry.offset_y)
    kernel.edge_mode = EDGES[edge]
    return kernel


def assert_sum(actual, expected, source, taps, dtype=np.float32) -> None:
    magnitude = np.abs(source).max() * taps * (taps + 1) / 2
    assert_within(actual, expected, error_bound(dtype, taps, magnitude, expected))


@given(st.data())
def test_windows_lie_where_the_addressing_rule_says(data):
    geometry, edge = data.draw(window_geometries()), data.draw(edges)
    dtype = data.draw(channel_formats()).dtype
    x = data.draw(values((data.draw(st.integers(1, 3)), geometry.height, geometry.width, 5), dtype))
    source = mg.Image.from_array(x)
    fenced = FencedImage.of(replace(source.descriptor, width=geometry.result_width, height=geometry.result_height))
    run(kernel_for(geometry, edge), source, fenced.image)
    expected = window_sum(x, **geometry.reference, edge=edge)
    assert_sum(fenced.check(), expected, x, geometry.kernel_width * geometry.kernel_height, dtype)


@pytest.mark.parametrize(
    ("taps", "dilation", "positions"), [(3, 1, (-1, 0, 1)), (2, 1, (-1, 0)), (4, 1, (-2, -1, 0, 1)), (2, 3, (-2, 1))]
)
def test_the_examples_of_the_addressing_rule(taps, dilation, positions):
    """Even and dilated windows lean to the top left by half of the dilated extent, rounded down."""
    x = np.zeros((1, 1, 9, 1), np.float32)
    kernel = WindowSum(kernel_width=taps, kernel_height=1, dilation_rate_x=dilation)
    kernel.offset = mg.Offset(4, 0)
    for number, position in enumerate(positions):
        x[:] = 0
        x[0, 0, 4 + position] = 1
        result = mg.Image(mg.ImageDescriptor())
        run(kernel, mg.Image.from_array(x), result)
        assert np.asarray(result).item() == number + 1


@given(st.data())
def test_only_the_clip_rectangle_and_its_channels_are_written(data):
    """The offset is where the clip rectangle begins, z counts images, and channels have ranges of their own."""
    width, height, images = 7, 6, 4
    left, top, first = (data.draw(st.integers(0, n + 1)) for n in (width, height, images))
    size = [data.draw(st.one_of(st.integers(0, n + 2), st.just(mg.Size().width))) for n in (width, height)]
    first_source = data.draw(st.integers(0, 3))
    processed = min(images - first, 4 - first_source)
    depth = data.draw(st.integers(0, max(processed, 0)))
    source_channel, destination_channel = (data.draw(st.sampled_from([0, 4, 8])) for _ in range(2))
    count = data.draw(st.one_of(st.integers(1, 20), st.just(mg.Size().width)))
    channels = min(count, 13 - source_channel)
    x, before = array(4, 5, 8, 13), array(images, height, width, 24)

    kernel = WindowSum(kernel_width=3, kernel_height=2, stride_in_pixels_x=2)
    kernel.offset = mg.Offset(data.draw(st.integers(-3, 9)), data.draw(st.integers(-3, 9)), first_source)
    kernel.clip_rect = mg.Region(mg.Origin(left, top, first), mg.Size(*size, depth))
    kernel.source_feature_channel_offset = source_channel
    kernel.source_feature_channel_max_count = count
    kernel.destination_feature_channel_offset = destination_channel
    result = mg.Image.from_array(before)
    run(kernel, mg.Image.from_array(x), result)

    columns, rows = (max(min(s, n - o), 0) for s, n, o in zip(size, (width, height), (left, top), strict=True))
    expected = before.astype(np.float64)
    if columns and rows and depth:
        part = x[first_source : first_source + depth, :, :, source_channel : source_channel + channels]
        expected[
            first : first + depth,
            top : top + rows,
            left : left + columns,
            destination_channel : destination_channel + channels,
        ] = window_sum(
            part, kernel=(2, 3), stride=(1, 2), offset=(kernel.offset.y, kernel.offset.x), size=(rows, columns)
        )
    written = expected != before
    assert_sum(np.asarray(result), expected, x, 6)
    np.testing.assert_array_equal(np.asarray(result)[~written], before[~written])


def test_a_new_result_is_zero_outside_the_clip_rectangle():
    class NotANumber:
        """Makes images of NaN, which new memory may hold."""

        def image(self, command_buffer, descriptor, kernel):
            return mg.Image.from_array(np.full(descriptor.shape, np.nan, np.float32))

    x = np.ones((3, 4, 5, 2), np.float32)
    kernel = WindowSum(kernel_width=1, kernel_height=1)
    kernel.destination_image_allocator = NotANumber()
    kernel.clip_rect = mg.Region(mg.Origin(1, 2, 1), mg.Size(3, 1, 1))
    expected = np.zeros_like(x)
    expected[1, 2, 1:4] = 1
    with mg.CommandBuffer() as commands:
        y = kernel.encode(commands, mg.Image.from_array(x))
    np.testing.assert_array_equal(np.asarray(y), expected)
    kernel.clip_rect = mg.Region(mg.Origin(1, 2, 0), mg.Size(3, 1, 1))
    expected[:] = 0
    expected[:, 2, 1:4] = 1
    with mg.CommandBuffer() as commands:
        y = kernel.encode_batch(commands, mg.ImageBatch.from_array(x))
    np.testing.assert_array_equal(np.asarray(y), expected)


def four_forms(kernel, sources, *, gathered: bool):
    """The result of automatic and manual encodes, with and without a state, and of the batches of each."""
    images = [mg.Image.from_array(x) for x in sources]
    batches = [
        mg.ImageBatch([mg.Image.from_array(one[None]) for one in x]) if gathered else image.batch_representation()
        for x, image in zip(sources, images, strict=True)
    ]
    results = {}
    with mg.CommandBuffer() as commands:
        y = results["automatic"] = kernel.encode(commands, *images)
        results["automatic, state"], state = kernel.encode(commands, *images, return_state=True)
        results["manual"] = mg.Image(y.descriptor)
        assert kernel.encode(commands, *images, destination_image=results["manual"]) is None
        results["manual, state"] = mg.Image(y.descriptor)
        made = kernel.result_state(*images, destination_image=results["manual, state"])
        kernel.encode(commands, *images, destination_image=results["manual, state"], destination_state=made)
        assert type(made) is type(state)
        results["batch"] = kernel.encode_batch(commands, *batches)
        results["batch, state"], states = kernel.encode_batch(commands, *batches, return_state=True)
        assert len(states) == len(sources[0])
        for name in ("manual batch", "manual batch, states"):
            whole = mg.Image(y.descriptor)
            results[name] = (
                mg.ImageBatch([mg.Image(replace(y.descriptor, number_of_images=1)) for _ in sources[0]])
                if gathered
                else whole.batch_representation()
            )
            states = None
            if name.endswith("states"):
                states = kernel.result_state_batch(*batches, destination_images=results[name])
            kernel.encode_batch(
                commands, *batches, destination_images=results[name], destination_states=states
            )
    return {name: np.array(image) for name, image in results.items()}


@pytest.mark.parametrize("gathered", [False, True], ids=["views", "separate images"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_all_encode_forms_give_the_same_bits(gathered, dtype):
    x = array(4, 6, 7, 5).astype(dtype)
    kernel = WindowSum(kernel_width=3, kernel_height=2, stride_in_pixels_x=2, dilation_rate_y=2)
    results = four_forms(kernel, [x], gathered=gathered)
    for name, result in results.items():
        np.testing.assert_array_equal(result, results["automatic"], err_msg=name)
    offset = (kernel.offset.y, kernel.offset.x)
    expected = window_sum(x, kernel=(2, 3), stride=(1, 2), dilation=(2, 1), offset=offset, size=(6, 4))
    assert_sum(results["automatic"], expected, x, 6, dtype)


@pytest.mark.parametrize("gathered", [False, True], ids=["views", "separate images"])
def test_all_encode_forms_of_two_sources_give_the_same_bits(gathered):
    x, y = array(3, 5, 6, 4), array(3, 5, 6, 4)
    results = four_forms(WindowDifference(kernel_width=3, kernel_height=3), [x, y], gathered=gathered)
    for name, result in results.items():
        np.testing.assert_array_equal(result, results["automatic"], err_msg=name)
    expected = [window_sum(image, kernel=(3, 3), size=(5, 6)) for image in (x, y)]
    assert_sum(results["automatic"], expected[0] - expected[1], np.abs(x) + np.abs(y), 18)


def test_automatic_is_the_descriptor_the_state_and_a_manual_encode():
    """Steps 2 to 5 of an automatic encode, one by one: the policy overwrites the offset first."""
    x = mg.Image.from_array(array(2, 7, 8, 3))
    automatic, by_hand = (WindowSum(kernel_width=4, kernel_height=3, stride_in_pixels_x=2) for _ in range(2))
    for kernel in (automatic, by_hand):
        kernel.offset = mg.Offset(5, 5)
    descriptor = by_hand.destination_image_descriptor([x])
    assert by_hand.offset == mg.Offset(1, 0)
    destination = mg.Image(descriptor)
    state = by_hand.result_state(x, destination_image=destination)
    with mg.CommandBuffer() as commands:
        y, made = automatic.encode(commands, x, return_state=True)
        by_hand.encode(commands, x, destination_image=destination, destination_state=state)
    np.testing.assert_array_equal(np.asarray(y), np.asarray(destination))
    assert automatic.offset == by_hand.offset
    assert made.snapshot == state.snapshot
    assert made.snapshot.offset == mg.Offset(1, 0)
    assert (made.source_width, made.source_height) == (8, 7)


def test_a_manual_encode_ignores_the_padding_policy():
    x = mg.Image.from_array(np.arange(5, dtype=np.float32).reshape(1, 1, 5, 1))
    kernel = WindowSum(kernel_width=1, kernel_height=1)
    kernel.padding = mg.VALID_ONLY
    kernel.offset = mg.Offset(2, 0)
    result = mg.Image(replace(x.descriptor, width=2))
    run(kernel, x, result)
    np.testing.assert_array_equal(np.asarray(result).ravel(), [2, 3])
    assert kernel.offset == mg.Offset(2, 0)


def test_changing_a_kernel_after_encode_does_not_change_what_was_encoded():
    x = array(3, 6, 6, 8)
    kernel = WindowSum(kernel_width=3, kernel_height=3)

    def encode(commands, change: bool):
        kernel.offset, kernel.clip_rect, kernel.edge_mode = mg.Offset(1, 1), mg.NO_CLIP, mg.EdgeMode.CLAMP
        kernel.source_feature_channel_offset = kernel.destination_feature_channel_offset = 0
        kernel.source_feature_channel_max_count = 8
        result = mg.Image.from_array(np.zeros((3, 6, 6, 8), np.float32))
        state = kernel.result_state(source, destination_image=result)
        kernel.encode(commands, source, destination_image=result, destination_state=state)
        if change:
            kernel.offset, kernel.edge_mode = mg.Offset(-2, 4), mg.EdgeMode.ZERO
            kernel.clip_rect = mg.Region(mg.Origin(3, 3, 0), mg.Size(1, 1, 1))
            kernel.source_feature_channel_offset = kernel.destination_feature_channel_offset = 4
            kernel.source_feature_channel_max_count = 1
        return result, state

    source = mg.Image.from_array(x)
    with mg.CommandBuffer() as commands:
        results = [encode(commands, change) for change in (False, True)]
    np.testing.assert_array_equal(np.asarray(results[0][0]), np.asarray(results[1][0]))
    assert results[0][1].snapshot == results[1][1].snapshot


def test_each_encode_of_a_reused_kernel_keeps_its_own_offset():
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 6, 1)
    source, kernel = mg.Image.from_array(x), WindowSum(kernel_width=1, kernel_height=1)
    results = []
    with mg.CommandBuffer() as commands:
        for position in range(6):
            kernel.offset = mg.Offset(position, 0)
            results.append(mg.Image(mg.ImageDescriptor()))
            kernel.encode(commands, source, destination_image=results[-1])
    assert [np.asarray(result).item() for result in results] == [0, 1, 2, 3, 4, 5]


@given(st.data())
def test_two_sources_have_their_own_offsets_strides_edges_and_channels(data):
    """A stride of 0 spreads the pixel at the offset over the whole result."""
    x, y = array(2, 5, 6, 12), array(3, 4, 7, 9)
    kernel = WindowDifference(kernel_width=data.draw(st.integers(1, 3)), kernel_height=data.draw(st.integers(1, 3)))
    size = (data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6)))
    parts = []
    for which, source, images in (("primary", x, 0), ("secondary", y, 1)):
        offset = (data.draw(st.integers(-3, 6)), data.draw(st.integers(-3, 6)))
        stride = (data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3)))
        edge, channel = data.draw(edges), data.draw(st.sampled_from([0, 4]))
        setattr(kernel, f"{which}_offset", mg.Offset(offset[1], offset[0], images))
        setattr(kernel, f"{which}_stride_in_pixels_x", stride[1])
        setattr(kernel, f"{which}_stride_in_pixels_y", stride[0])
        setattr(kernel, f"{which}_edge_mode", EDGES[edge])
        setattr(kernel, f"{which}_source_feature_channel_offset", channel)
        setattr(kernel, f"{which}_source_feature_channel_max_count", 5)
        parts.append(
            window_sum(
                source[images : images + 2, :, :, channel : channel + 5],
                kernel=(kernel.primary_kernel_height, kernel.primary_kernel_width),
                stride=stride,
                offset=offset,
                size=size,
                edge=edge,
            )
        )
    kernel.destination_feature_channel_offset = 4
    kernel.clip_rect = mg.Region(mg.Origin(1, 1, 1), mg.Size(size[1], size[0], 2))
    before = array(4, size[0] + 2, size[1] + 2, 12)
    result = mg.Image.from_array(before)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, mg.Image.from_array(x), mg.Image.from_array(y), destination_image=result)
    expected = before.astype(np.float64)
    expected[1:3, 1 : 1 + size[0], 1 : 1 + size[1], 4:9] = parts[0] - parts[1]
    assert_sum(np.asarray(result), expected, np.concatenate([x.ravel(), y.ravel()]), 18)
    outside = np.ones(before.shape, bool)
    outside[1:3, 1 : 1 + size[0], 1 : 1 + size[1], 4:9] = False
    np.testing.assert_array_equal(np.asarray(result)[outside], before[outside])


def test_a_broadcast_source_does_not_size_the_result():
    x, y = array(2, 5, 6, 3), array(2, 1, 1, 3)
    kernel = WindowDifference()
    kernel.secondary_stride_in_pixels_x = kernel.secondary_stride_in_pixels_y = 0
    with mg.CommandBuffer() as commands:
        result, state = kernel.encode(commands, mg.Image.from_array(x), mg.Image.from_array(y), return_state=True)
    np.testing.assert_array_equal(np.asarray(result), x - y)
    assert isinstance(state, mg.BinaryGradientState)
    assert state.primary.source.shape == x.shape and state.secondary.source.shape == y.shape
    assert state.secondary.stride_in_pixels_x == 0


def test_a_binary_state_is_a_snapshot_with_parts():
    x, y = mg.Image.from_array(array(3, 5, 5, 4)), mg.Image.from_array(array(3, 5, 5, 4))
    kernel = WindowDifference(kernel_width=3, kernel_height=3)
    kernel.primary_offset, kernel.secondary_offset = mg.Offset(1, 2), mg.Offset(3, 4)
    kernel.secondary_edge_mode = mg.EdgeMode.CLAMP
    state = kernel.result_state(x, y, destination_image=mg.Image(x.descriptor))
    kernel.primary_offset = mg.Offset(9, 9)
    assert (state.primary.offset, state.secondary.offset) == (mg.Offset(1, 2), mg.Offset(3, 4))
    assert (state.primary.edge_mode, state.secondary.edge_mode) == (mg.EdgeMode.ZERO, mg.EdgeMode.CLAMP)
    parts = state.batch_representation()
    assert len(parts) == 3 and parts.whole is state
    assert parts[1].primary.source.number_of_images == 1 and parts[1].secondary.offset == mg.Offset(3, 4)
    with mg.CommandBuffer() as commands:
        temporary = kernel.temporary_result_state(commands, x, y, destination_image=mg.Image(x.descriptor))
        assert temporary.is_temporary and temporary.read_count == 1


def test_all_images_of_a_source_may_become_some_of_a_longer_result():
    """The gradient is that of the images that were written, and belongs to the source's first to last one."""
    descriptor = mg.NeuronDescriptor(mg.NeuronType.LINEAR, a=2.0)
    kernel, gradient = mg.Neuron(descriptor), mg.NeuronGradient(descriptor)
    kernel.clip_rect = mg.Region(mg.Origin(0, 0, 1), mg.Size(4, 3, 2))
    source, result = mg.Image.from_array(array(2, 3, 4, 5)), mg.Image.from_array(array(4, 3, 4, 5))
    state, incoming = kernel.result_state(source, destination_image=result), array(*result.shape)
    run(kernel, source, result, destination_state=state)
    with mg.CommandBuffer() as commands:
        dx = gradient.encode(commands, mg.Image.from_array(incoming), source, state)
    np.testing.assert_array_equal(np.asarray(dx), 2 * incoming[1:3])


def test_a_gradient_kernel_has_no_state_of_its_own():
    x = mg.Image.from_array(array(1, 2, 2, 4))
    assert mg.SoftMaxGradient().result_state(x, x, destination_image=mg.Image(x.descriptor)) is None


def test_sizes_of_sources_that_disagree_are_refused():
    kernel = WindowDifference()
    sources = [mg.Image.from_array(array(1, 5, 6, 3)), mg.Image.from_array(array(1, 5, 7, 3))]
    words = "6 pixels along x for the primary_image of 1x5x6x3 but 7 for the secondary_image of 1x5x7x3"
    with pytest.raises(mg.GeometryError, match=words), mg.CommandBuffer() as commands:
        kernel.encode(commands, *sources)


@pytest.mark.parametrize("allocator", [mg.Image.default_allocator(), mg.TemporaryImage.default_allocator()])
def test_batches_through_either_allocator(allocator):
    """Views of a temporary image are read one by one, so a batch of them gives what one image gives."""
    x = array(4, 5, 5, 3)
    first, second = (WindowSum(kernel_width=3, kernel_height=3) for _ in range(2))
    first.destination_image_allocator = allocator
    with mg.CommandBuffer() as commands:
        middle, states = first.encode_batch(
            commands, mg.ImageBatch.from_array(x), return_state=True, state_is_temporary=True
        )
        temporary = isinstance(middle[0], mg.TemporaryImage)
        assert [image.read_count for image in middle] == [int(temporary)] * 4
        assert [state.read_count for state in states] == [1] * 4
        y = second.encode_batch(commands, middle)
        assert [image.read_count for image in middle] == [0] * 4
    expected = window_sum(window_sum(x, kernel=(3, 3), size=(5, 5)), kernel=(3, 3), size=(5, 5))
    assert_sum(np.asarray(y), expected, np.abs(x) * 45, 9)
