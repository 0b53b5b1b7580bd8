"""A batch that fails at its last image takes back what the images before it added, and what was noted of that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg

SHAPE = (1, 4, 5, 8)
SMALLER = (1, 3, 5, 8)
ROW = np.linspace(0.5, 2, 8, dtype=np.float32)


def _image(seed: int, shape: tuple[int, ...] = SHAPE) -> mg.Image:
    return mg.Image.from_array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def _fill_free_memory() -> None:
    """So that a buffer that nothing was written to does not hold zeros by chance."""
    vectors = [mg.Vector.from_array(np.full(length, 7e7, np.float32)) for length in (8, 32, 288, 1024) for _ in "12345"]
    del vectors


def _convolutions() -> tuple[mg.Convolution, mg.ConvolutionGradient]:
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 8)).astype(np.float32)
    data = mg.ConvolutionDataSource.from_arrays(weights, np.ones(4, np.float32))
    return mg.Convolution(data), mg.ConvolutionGradient(data)


def _fail(function: Any, *arguments: Any, **named: Any) -> None:
    with pytest.raises(mg.MPSGradError):
        function(*arguments, **named)


def test_weights_are_packed_again() -> None:
    kernel, fresh = _convolutions()[0], _convolutions()[0]
    images, narrow = [_image(1), _image(2)], mg.ImageDescriptor(mg.FeatureChannelFormat.FLOAT32, 5, 4, 2, 1)
    _fill_free_memory()
    with mg.CommandBuffer() as commands:
        wanted = fresh.encode(commands, images[0])
        results = [mg.Image(wanted.descriptor), mg.Image(narrow)]
        _fail(kernel.encode_batch, commands, images, destination_images=results)
        got = kernel.encode(commands, images[0])
    np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))


@pytest.mark.parametrize("gives_destinations", [False, True])
@pytest.mark.parametrize("uses", [0, 2])
def test_sums_for_weights_are_begun_again(gives_destinations: bool, uses: int) -> None:
    forward, gradient = _convolutions()
    x, g = _image(1), _image(2, (1, 4, 5, 4))
    with mg.CommandBuffer() as commands:
        (_, wanted), (_, state), (_, other) = (forward.encode(commands, x, return_state=True) for _ in range(3))
        gradient.encode(commands, g, x, wanted)
        for _ in range(uses):
            gradient.encode(commands, g, x, other)
    given: dict[str, Any] = {}
    if gives_destinations:
        given["destination_gradients"] = [mg.Image(x.descriptor) for _ in range(2)]
    _fill_free_memory()
    with mg.CommandBuffer() as commands:
        _fail(gradient.encode_batch, commands, [g, g], [x, _image(3, SMALLER)], [state, state], **given)
        assert not state.has_gradients
        gradient.encode(commands, g, x, state)
    np.testing.assert_array_equal(state.gradient_for_weights, wanted.gradient_for_weights)


def test_sums_for_slopes_are_begun_again() -> None:
    descriptor = mg.NeuronDescriptor.prelu(ROW)
    forward, gradient = mg.Neuron(descriptor), mg.NeuronGradient(descriptor, computes_gradient_for_slopes=True)
    x, g = _image(1), _image(2)
    with mg.CommandBuffer() as commands:
        (_, wanted), (_, state) = (forward.encode(commands, x, return_state=True) for _ in range(2))
        gradient.encode(commands, g, x, wanted)
        _fail(gradient.encode_batch, commands, [g, g], [x, _image(3, SMALLER)], [state, state])
        gradient.encode(commands, g, x, state)
    np.testing.assert_array_equal(state.gradient_for_slopes, wanted.gradient_for_slopes)


def test_maxima_were_not_recorded() -> None:
    forward = mg.PoolingMax(kernel_width=2, kernel_height=2, record_maxima=True)
    gradient = mg.PoolingMaxGradient(kernel_width=2, kernel_height=2)
    images, g = [_image(1), _image(2)], _image(3)
    half = replace(images[0].descriptor, channel_format=mg.FeatureChannelFormat.FLOAT16)
    with mg.CommandBuffer() as commands:
        y, recorded = forward.encode(commands, images[0], return_state=True)
        results = [mg.Image(y.descriptor), mg.Image(half)]
        states = [forward.result_state(image, destination_image=y) for image in images]
        _fail(forward.encode_batch, commands, images, destination_images=results, destination_states=states)
        got = gradient.encode(commands, g, images[0], states[0])
        wanted = gradient.encode(commands, g, images[0], recorded)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))


def test_statistics_were_not_used() -> None:
    kernel = mg.BatchNormalization(mg.BatchNormalizationDataSource.from_arrays(ROW, ROW))
    statistics = mg.BatchNormalizationStatistics()
    images = [_image(1), _image(2)]
    state = kernel.result_state(images[0])
    results = [mg.Image(images[0].descriptor), mg.Image(mg.ImageDescriptor(mg.FeatureChannelFormat.FLOAT32, 5, 4, 4))]
    with mg.CommandBuffer() as commands:
        statistics.encode_batch(commands, images[:1], state)
        _fail(
            kernel.encode_batch, commands, images, batch_normalization_state=state, destination_images=results
        )
        statistics.encode_batch(commands, images[1:], state)
    pixels = np.concatenate([np.asarray(image) for image in images]).reshape(-1, 8)
    np.testing.assert_allclose(state.mean, pixels.mean(0), atol=1e-5)


def test_gradients_were_not_used() -> None:
    kernel = mg.BatchNormalization(mg.BatchNormalizationDataSource.from_arrays(ROW, ROW))
    statistics, sums = mg.BatchNormalizationStatistics(), mg.BatchNormalizationStatisticsGradient()
    gradient = mg.BatchNormalizationGradient()
    x, g = _image(1), _image(2)
    state = kernel.result_state(x)
    with mg.CommandBuffer() as commands:
        statistics.encode_batch(commands, [x], state)
        sums.encode_batch(commands, [g], [x], state)
        _fail(gradient.encode_batch, commands, [g, g], [x, _image(3, SMALLER)], state)
        with pytest.raises(mg.StateError, match="gradients of 40 pixels in all"):
            sums.encode_batch(commands, [g], [x], state)


def _temporary(commands: mg.CommandBuffer, seed: int) -> mg.TemporaryImage:
    image = _image(seed)
    made = mg.TemporaryImage(commands, image.descriptor)
    mg.NeuronLinear().encode(commands, image, destination_image=made)
    return made


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 0, 1), (1, 1, 1)])
def test_temporary_sources_were_not_read(order: tuple[int, ...]) -> None:
    """Their memory is theirs again, also where the failed encode wrote a temporary result there."""
    pool = mg.PoolingMax(kernel_width=2, kernel_height=2)
    with mg.CommandBuffer() as commands:
        sources = [_temporary(commands, seed) for seed in range(3)]
        batch = [sources[index] for index in order]
        results = [mg.TemporaryImage(commands, sources[0].descriptor) for _ in order]
        smaller = mg.Image(replace(results[0].descriptor, feature_channels=2))
        _fail(pool.encode_batch, commands, batch, destination_images=[*results[:2], smaller])
        assert [image.read_count for image in sources] == [1, 1, 1]
        pool.encode_batch(commands, batch, destination_images=results)
        assert [image.read_count for image in sources] == [int(index not in order) for index in range(3)]
        kept = [mg.NeuronLinear().encode(commands, result) for result in results]
        wanted = [pool.encode(commands, _image(index)) for index in order]
    np.testing.assert_array_equal([np.asarray(image) for image in kept], [np.asarray(image) for image in wanted])


def test_temporary_gradients_and_states_were_not_read() -> None:
    pool = mg.PoolingMax(kernel_width=2, kernel_height=2, record_maxima=True)
    gradient = mg.PoolingMaxGradient(kernel_width=2, kernel_height=2)
    sources = [_image(1), _image(2)]
    with mg.CommandBuffer() as commands:
        made = [pool.encode(commands, x, return_state=True, state_is_temporary=True) for x in sources]
        states = [state for _, state in made]
        gradients = [_temporary(commands, seed) for seed in (3, 4)]
        _fail(gradient.encode_batch, commands, gradients, [sources[0], _image(5, SMALLER)], states)
        assert [each.read_count for each in (*gradients, *states)] == [1, 1, 1, 1]
        got = gradient.encode_batch(commands, gradients, sources, states)
        assert [each.read_count for each in (*gradients, *states)] == [0, 0, 0, 0]
    wanted = []
    with mg.CommandBuffer() as commands:
        for x, seed in zip(sources, (3, 4), strict=True):
            _, state = pool.encode(commands, x, return_state=True)
            wanted.append(gradient.encode(commands, _image(seed), x, state))
    np.testing.assert_array_equal([np.asarray(image) for image in got], [np.asarray(image) for image in wanted])


def test_work_of_another_command_buffer_was_not_replaced() -> None:
    other, result = mg.CommandBuffer(), mg.Image(_image(1).descriptor)
    neuron = mg.NeuronLinear(a=2)
    neuron.encode(other, _image(2), destination_image=result)
    with mg.CommandBuffer() as commands:
        narrow = mg.Image(replace(result.descriptor, feature_channels=2))
        _fail(neuron.encode_batch, commands, [_image(1), _image(1)], destination_images=[result, narrow])
    with pytest.raises(mg.StateError, match="before its command buffer was committed"):
        np.asarray(result)
    other.commit()
    np.testing.assert_array_equal(np.asarray(result), 2 * np.asarray(_image(2)))


def test_sources_of_a_graph_were_not_read() -> None:
    class Refused(mg.DefaultPadding):
        def destination_image_descriptor(self, *arguments: Any) -> mg.ImageDescriptor:
            if refuses:
                raise mg.GeometryError("refused")
            return arguments[-1]

    refuses = False
    node = mg.PoolingMaxNode(mg.NeuronReLUNode(mg.ImageNode()).result_image, 2)
    node.padding_policy = Refused(mg.PaddingMethod.CUSTOM | mg.PaddingMethod.SIZE_SAME)
    graph = mg.Graph(node.result_image)
    with mg.CommandBuffer() as commands:
        wanted = graph.encode(commands, [_image(1)])
        x = _temporary(commands, 1)
        refuses = True
        _fail(graph.encode, commands, [x])
        assert x.read_count == 1
        # What is not committed would have to be before this command buffer if that read it.
        _fail(graph.encode, commands, [mg.NeuronLinear().encode(mg.CommandBuffer(), _image(1))])
        refuses = False
        got = graph.encode(commands, [x])
        assert x.read_count == 0
    np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))
