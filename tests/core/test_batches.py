"""Batches: one dispatch for views of one image, the same bits for images stored apart, and all or nothing."""

from __future__ import annotations

import numpy as np
import pytest
from fake_device import FakeDevice
from window_kernels import WindowSum, window_sum

import mpsgrad as mg

X = np.random.default_rng(13).standard_normal((4, 5, 6, 8)).astype(np.float32)


def separate(x: np.ndarray, device=None) -> mg.ImageBatch:
    return mg.ImageBatch([mg.Image.from_array(one, device) for one in x])


def test_a_batch_is_a_sequence():
    batch = mg.ImageBatch.from_array(X)
    assert len(batch) == 4 and list(batch) == [batch[i] for i in range(4)] and batch[-1] in batch
    assert repr(batch) == "<ImageBatch of 4 x 1x5x6x8>"
    np.testing.assert_array_equal(np.asarray(batch), X)
    np.testing.assert_array_equal(np.asarray(separate(X)), X)


def test_views_of_one_image_are_one_dispatch_and_others_one_each():
    device = FakeDevice()
    kernel = WindowSum(kernel_width=1, kernel_height=1, device=device)
    for batch, dispatches in (
        (mg.ImageBatch.from_array(X, device), 1),
        (mg.ImageBatch.from_array(X, device)[1:3], 1),
        (separate(X, device), 4),
        (mg.ImageBatch(reversed(mg.ImageBatch.from_array(X, device))), 4),
    ):
        with mg.CommandBuffer(device) as commands:
            result = kernel.encode_batch(commands, batch)
        assert len(device.submitted[-1]) == dispatches
        assert result.whole is not None and len(result) == len(batch)


@pytest.mark.parametrize("kernel", [mg.SoftMax(), WindowSum(kernel_width=3, kernel_height=2)], ids=["pixel", "window"])
def test_a_batch_gives_the_bits_of_its_images(kernel):
    with mg.CommandBuffer() as commands:
        ones = [kernel.encode(commands, mg.Image.from_array(x)) for x in X]
        batches = [
            kernel.encode_batch(commands, batch)
            for batch in (mg.ImageBatch.from_array(X), separate(X), mg.ImageBatch.from_array(X)[1:3], [*separate(X)])
        ]
    expected = np.concatenate([np.asarray(one) for one in ones])
    for batch, part in zip(batches, (slice(None), slice(None), slice(1, 3), slice(None)), strict=True):
        np.testing.assert_array_equal(np.asarray(batch), expected[part])


@pytest.mark.parametrize("gather", [mg.ImageBatch.from_array, separate], ids=["views", "separate images"])
def test_gradients_of_batches(gather):
    kernel, gradient = mg.SoftMax(), mg.SoftMaxGradient()
    g = np.random.default_rng(17).standard_normal(X.shape).astype(np.float32)
    with mg.CommandBuffer() as commands:
        y, state = kernel.encode(commands, mg.Image.from_array(X), return_state=True)
        whole = gradient.encode(commands, mg.Image.from_array(g), y, state)
        results, states = kernel.encode_batch(commands, gather(X), return_state=True)
        parts = gradient.encode_batch(commands, gather(g), results, states)
        mixed = gradient.encode_batch(commands, gather(g), gather(np.zeros_like(X)), states)
        destinations = gather(np.full_like(X, np.nan))
        gradient.encode_batch(commands, gather(g), results, states, destination_gradients=destinations)
    for result in (parts, destinations):
        np.testing.assert_array_equal(np.asarray(result), np.asarray(whole))
    assert len(states) == 4 and np.asarray(mixed).shape == X.shape


def test_losses_and_statistics_give_up_a_temporary_image_that_stands_twice_in_a_batch_once():
    shape = (1, 1, 1, 4)
    labels = mg.Image.from_array(np.ones(shape, np.float32))
    descriptor = mg.LossDescriptor("mean_squared_error", "sum")
    forward = mg.ForwardLoss(descriptor)
    norm = mg.BatchNormalization(mg.BatchNormalizationDataSource.from_arrays(np.ones(4, np.float32)))
    with mg.CommandBuffer() as commands:
        made = []
        for _ in range(4):
            made.append(mg.TemporaryImage(commands, labels.descriptor))
            mg.NeuronLinear(a=3.0).encode(commands, labels, destination_image=made[-1])
        twice = [[image, image] for image in made]
        gradients = mg.Loss(descriptor).encode_batch(
            commands, twice[0], [mg.LossLabels.from_images(labels) for _ in twice[0]]
        )
        values, states = forward.encode_batch(commands, twice[1], [labels, labels], return_state=True)
        further = mg.LossGradient(descriptor).encode_batch(commands, values, twice[2], [labels, labels], None, states)
        state = norm.result_state(made[3], destination_image=made[3])
        mg.BatchNormalizationStatistics().encode_batch(commands, twice[3], state)
    assert [image.read_count for image in made] == [0, 0, 0, 0]
    for batch, value in ((gradients, 4), (values, 16), (further, 4 * 16)):
        for result in batch:
            np.testing.assert_array_equal(result, np.full(result.shape, value))
    np.testing.assert_array_equal(state.mean, np.full(4, 3))


def test_a_temporary_image_that_stands_in_a_batch_twice_is_given_up_once():
    kernel, gradient = mg.SoftMax(), mg.SoftMaxGradient()
    with mg.CommandBuffer() as commands:
        source = mg.TemporaryImage(commands, mg.ImageDescriptor(width=6, height=5, feature_channels=8))
        kernel.encode(commands, mg.Image.from_array(X[0]), destination_image=source)
        source.read_count = 2
        results, states = kernel.encode_batch(commands, [source, source], return_state=True)
        assert source.read_count == 1
        twice = gradient.encode_batch(commands, [source, source], results, states)
        assert source.read_count == 0
        once = gradient.encode(commands, kernel.encode(commands, mg.Image.from_array(X[0])), results[1], states[1])
    for image in twice:
        np.testing.assert_array_equal(np.asarray(image), np.asarray(once))


def test_a_batch_clipped_in_z_is_clipped_image_by_image():
    kernel = WindowSum(kernel_width=1, kernel_height=1)
    kernel.clip_rect = mg.Region(mg.Origin(0, 0, 0), mg.Size(2, 5, 1))
    with mg.CommandBuffer() as commands:
        results = [kernel.encode_batch(commands, batch) for batch in (mg.ImageBatch.from_array(X), separate(X))]
    expected = np.zeros_like(X)
    expected[:, :, :2] = X[:, :, :2]
    for result in results:
        np.testing.assert_array_equal(np.asarray(result), expected)


def test_batches_of_one():
    kernel = WindowSum(kernel_width=2, kernel_height=2)
    with mg.CommandBuffer() as commands:
        y, states = kernel.encode_batch(commands, [mg.Image.from_array(X[0])], return_state=True)
    expected = window_sum(X[:1], kernel=(2, 2), size=(5, 6))
    np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-5, atol=1e-5)
    assert len(y) == len(states) == 1


def test_a_batch_that_fails_at_its_last_image_dispatches_nothing():
    device = FakeDevice()
    images = [*separate(X[:3], device), mg.Image.from_array(X[3, :, :, :2].copy(), device)]
    results = [mg.Image(images[0].descriptor, device) for _ in images]
    kernel = WindowSum(kernel_width=1, kernel_height=1, device=device)
    kernel.source_feature_channel_offset = 4
    commands = mg.CommandBuffer(device)
    with pytest.raises(mg.GeometryError, match="source_feature_channel_offset is 4 .* 2 feature channels"):
        kernel.encode_batch(commands, images, destination_images=results)
    assert commands._dispatches == []
    y, states = mg.SoftMax(device=device).encode_batch(commands, separate(X, device), return_state=True)
    before = len(commands._dispatches)
    with pytest.raises(mg.GeometryError, match="source_gradient is 1x2x2x8"):
        mg.SoftMaxGradient(device=device).encode_batch(
            commands, [*y[:3], mg.Image.from_array(X[:1, :2, :2].copy(), device)], y, states
        )
    commands.commit()
    assert len(device.submitted[0]) == before


def test_separate_images_need_no_common_size_in_a_manual_batch():
    sources = [mg.Image.from_array(X[:1]), mg.Image.from_array(X[:1, :2, :3].copy())]
    results = [mg.Image(source.descriptor) for source in sources]
    with mg.CommandBuffer() as commands:
        words = r"source_images\[1\] is 1x2x3x8 but source_images\[0\] is 1x5x6x8"
        with pytest.raises(mg.GeometryError, match=words):
            mg.SoftMax().encode_batch(commands, sources)
        mg.SoftMax().encode_batch(commands, sources, destination_images=results)
    for source, result in zip(sources, results, strict=True):
        powers = np.exp(np.asarray(source, np.float64))
        np.testing.assert_allclose(np.asarray(result), powers / powers.sum(-1, keepdims=True), rtol=1e-5)
