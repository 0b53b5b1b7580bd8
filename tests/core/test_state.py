"""States: their buffers, read counts, snapshots and parts, and what reading them waits for."""

from __future__ import annotations

import numpy as np
import pytest
from fake_device import FakeDevice
from window_kernels import WindowSum

import mpsgrad as mg
from mpsgrad.state import ForwardSnapshot

X = np.random.default_rng(5).standard_normal((3, 4, 5, 8)).astype(np.float32)


def forward_state(images: int = 3, **keywords) -> mg.GradientState:
    kernel = WindowSum(kernel_width=3, kernel_height=2, stride_in_pixels_x=2, dilation_rate_y=3)
    kernel.offset, kernel.edge_mode = mg.Offset(1, -2), mg.EdgeMode.CLAMP
    source = mg.Image.from_array(X[:images])
    return kernel.result_state(source, destination_image=mg.Image(source.descriptor), **keywords)


def test_buffers_are_allocated_at_their_first_use():
    device = FakeDevice()
    state = mg.State([16, 5], device, label="slots")
    assert (state.resource_count, state.buffer_size(1), state.resource_size) == (2, 5, 21)
    assert device.allocated == []
    assert state.resource(1).nbytes == 5 and device.allocated == [5]
    assert state.resource(1) is state.resource(1)
    assert "'slots'" in repr(state) and not state.is_temporary


def test_what_is_written_is_read():
    state = mg.State([16])
    state._write(0, [1, 2, 3, 4])
    np.testing.assert_array_equal(state._read(0, 4), np.float32([1, 2, 3, 4]))


def test_reading_waits_for_the_command_buffer_that_synchronizes():
    state, commands = mg.State([8]), mg.CommandBuffer()
    state._write(0, [1, 2])
    state.synchronize(commands)
    with pytest.raises(mg.StateError, match="State: read before its command buffer was committed"):
        state._read(0, 2)
    commands.commit()
    np.testing.assert_array_equal(state._read(0, 2), np.float32([1, 2]))
    with pytest.raises(mg.StateError, match="synchronize is not possible.*has been committed"):
        state.synchronize(commands)


def test_a_regular_state_counts_no_reads():
    state = mg.State([4])
    assert state.read_count == 0
    state._read_once()
    assert state.read_count == 0
    with pytest.raises(mg.StateError, match="read_count is 2, but only temporary states count"):
        state.read_count = 2


def test_a_temporary_state_is_read_as_often_as_it_says():
    commands = mg.CommandBuffer()
    state = mg.State([64], command_buffer=commands)
    assert state.is_temporary and state.read_count == 1 and "temporary, read_count 1" in repr(state)
    buffer = state.resource(0)
    state.read_count += 1
    state._read_once()
    assert commands._reuse_buffer(64) is None
    state._read_once()
    assert state.read_count == 0
    assert mg.State([64], command_buffer=commands).resource(0) is buffer
    for call in (lambda: state.resource(0), lambda: setattr(state, "read_count", 1)):
        with pytest.raises(mg.StateError, match="read_count.* 0"):
            call()


def test_a_temporary_state_has_no_access_from_the_cpu():
    commands = mg.CommandBuffer()
    state = mg.State([8], command_buffer=commands)
    with pytest.raises(mg.StateError, match="temporary states have no CPU access"):
        state._read(0, 2)
    with pytest.raises(mg.StateError, match="temporary states have no CPU access"):
        state.synchronize(commands)


def test_a_snapshot_holds_the_kernel_at_the_time_and_the_extents():
    kernel = WindowSum(kernel_width=3, kernel_height=2, stride_in_pixels_x=2, dilation_rate_y=3)
    kernel.offset, kernel.edge_mode = mg.Offset(1, -2, 1), mg.EdgeMode.CLAMP
    kernel.clip_rect = mg.Region(mg.Origin(1, 0, 0), mg.Size(2, 3, 2))
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 4, 3
    kernel.destination_feature_channel_offset = 8
    source, destination = mg.Image.from_array(X), mg.Image(mg.ImageDescriptor(4, 9, 8, 12, 3))
    state = kernel.result_state(source, destination_image=destination)
    assert state.snapshot == ForwardSnapshot(
        "WindowSum", mg.Offset(1, -2, 1), kernel.clip_rect, mg.EdgeMode.CLAMP, 3, 2, 2, 1, 1, 3, 4, 3, 8,
        source.descriptor, destination.descriptor,
    )  # fmt: skip
    assert (state.snapshot.source_channels, state.snapshot.images) == (3, 2)
    assert (state.source_width, state.source_height, state.number_of_images) == (5, 4, 3)


def test_the_parts_of_a_state_are_those_of_its_images():
    state = forward_state()
    parts = state.batch_representation()
    assert len(parts) == 3 and parts.whole is state
    for index, part in enumerate(parts):
        assert part.parent is state and part._index == index and part.number_of_images == 1
        assert part.snapshot.offset == state.snapshot.offset
        assert part.snapshot.source.shape == (1, 4, 5, 8)
    assert mg.StateBatch([parts[1], parts[0], parts[2]]).whole is None
    assert parts[:2].whole is None and isinstance(parts[:2], mg.StateBatch)
    single = forward_state(1)
    assert single.batch_representation()[0] is single


def test_the_parts_of_a_temporary_state_each_count_as_a_read():
    commands = mg.CommandBuffer()
    kernel = WindowSum(kernel_width=1, kernel_height=1)
    source = mg.Image.from_array(X)
    state = kernel.temporary_result_state(commands, source, destination_image=mg.Image(source.descriptor))
    state._sizes, state._buffers = (32,), [None]
    buffer = state.resource(0)
    parts = state.batch_representation()
    assert state.read_count == 4 and [part.read_count for part in parts] == [1, 1, 1]
    assert parts.whole is None and parts[1].resource(0) is buffer
    state._read_once()
    for part in parts:
        assert commands._reuse_buffer(32) is None
        part._read_once()
    assert state.read_count == 0
    assert commands._reuse_buffer(32) is buffer and commands._reuse_buffer(32) is None


def test_a_batch_may_repeat_one_state():
    commands = mg.CommandBuffer()
    state, other = mg.State([4], command_buffer=commands), mg.State([8])
    batch = mg.StateBatch([state, other, state])
    assert batch.resource_size() == 12 and batch.whole is None
    assert mg.StateBatch([state, state]).whole is state
    assert batch.increment_read_count(2) == 2
    assert (state.read_count, other.read_count) == (3, 0)
    with pytest.raises(mg.StateError, match="temporary states have no CPU access"):
        batch.synchronize(commands)
    regular = mg.StateBatch([other, other])
    regular.synchronize(commands)
    with pytest.raises(mg.StateError, match="before its command buffer was committed"):
        other._read(0, 2)


def test_a_state_configures_the_gradient_kernel_and_sizes_its_result():
    kernel, gradient = mg.SoftMax(), mg.SoftMaxGradient()
    kernel.offset = mg.Offset(1, 2)
    kernel.clip_rect = mg.Region(mg.Origin(3, 1, 0), mg.Size(2, 2, 3))
    kernel.source_feature_channel_offset, kernel.destination_feature_channel_offset = 4, 8
    source, result = mg.Image.from_array(X), mg.Image(mg.ImageDescriptor(4, 6, 5, 12, 3))
    state = kernel.result_state(source, destination_image=result)
    descriptor = gradient.destination_image_descriptor([result, result], [state])
    assert descriptor.shape == source.shape
    assert gradient.primary_offset == mg.Offset(2, -1) == gradient.secondary_offset
    assert gradient.clip_rect == mg.NO_CLIP
    assert gradient.primary_source_feature_channel_offset == gradient.secondary_source_feature_channel_offset == 8
    assert gradient.destination_feature_channel_offset == 4
    assert not gradient._configured_by_hand


def test_a_gradient_encode_reads_its_state():
    with mg.CommandBuffer() as commands:
        y, state = mg.SoftMax().encode(commands, mg.Image.from_array(X), return_state=True, state_is_temporary=True)
        gradient = mg.SoftMaxGradient()
        gradient.encode(commands, y, y, state)
        assert state.read_count == 0
        with pytest.raises(mg.StateError, match="gradient_state is temporary with read_count 0"):
            gradient.encode(commands, y, y, state)


def test_a_batch_of_temporary_states_is_read_one_by_one():
    with mg.CommandBuffer() as commands:
        batch = mg.ImageBatch.from_array(X)
        y, states = mg.SoftMax().encode_batch(commands, batch, return_state=True, state_is_temporary=True)
        whole = mg.SoftMaxGradient().encode_batch(commands, y, y, states)
        assert [state.read_count for state in states] == [0, 0, 0]
        regular = mg.SoftMax().encode_batch(commands, batch, return_state=True)
        expected = mg.SoftMaxGradient().encode_batch(commands, regular[0], regular[0], regular[1])
    np.testing.assert_array_equal(np.asarray(whole), np.asarray(expected))
