"""Encodes in any order: batches of changing sizes, several command buffers in flight, failures in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpsgrad as mg

RANDOM = np.random.default_rng(7)
WEIGHTS = mg.ConvolutionDataSource.from_arrays(
    (0.3 * RANDOM.standard_normal((6, 3, 3, 4))).astype(np.float32), RANDOM.standard_normal(6).astype(np.float32)
)
GROUPS = mg.GroupNormalizationDataSource.from_arrays(2, number_of_feature_channels=6, epsilon=1e-3)


def make() -> mg.Graph:
    """A training graph with a short cut, whose parameters nothing updates."""
    first = mg.ConvolutionNode(mg.ImageNode("x"), WEIGHTS)
    normalized = mg.GroupNormalizationNode(mg.NeuronTanHNode(first.result_image).result_image, GROUPS)
    total = mg.AdditionNode(normalized.result_image, first.result_image)
    pooled = mg.PoolingMaxNode(total.result_image, 2)
    loss = mg.LossNode(mg.SoftMaxNode(pooled.result_image).result_image, descriptor=mg.LossDescriptor("huber"))
    assert first.result_state is not None
    first.result_state.export_from_graph = True
    return mg.Graph(loss.training_graph())


class Batch:
    """Source images and labels, and what a graph of its own makes of them."""

    def __init__(self, images: int, size: int) -> None:
        self.source = mg.Image.from_array(RANDOM.standard_normal((images, size, size, 4)).astype(np.float32))
        half = (size + 1) // 2
        self.labels = RANDOM.standard_normal((images, half, half, 6)).astype(np.float32)
        with mg.CommandBuffer() as commands:
            made = self.encode(make(), commands)
        self.expected = self.values(made)

    def encode(self, graph: mg.Graph, commands: mg.CommandBuffer) -> Any:
        states: list[Any] = []
        labels = mg.LossLabels.from_array(self.labels)
        gradient = graph.encode(commands, [self.source], [labels], destination_states=states)
        return gradient, states[0], labels

    @staticmethod
    def values(made: Any) -> list[np.ndarray]:
        gradient, state, labels = made
        return [np.asarray(gradient), state.gradient_for_weights, np.asarray(labels.loss_image)]

    def require(self, made: Any) -> None:
        for found, expected in zip(self.values(made), self.expected, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.fixture(scope="module")
def batches() -> list[Batch]:
    return [Batch(2, 6), Batch(5, 6), Batch(1, 9)]


def test_batches_of_changing_sizes(batches: list[Batch]) -> None:
    graph = make()
    for index in (0, 1, 0, 2, 2, 1, 0):
        with mg.CommandBuffer() as commands:
            made = batches[index].encode(graph, commands)
        batches[index].require(made)


def test_several_encodes_in_one_command_buffer_and_several_in_flight(batches: list[Batch]) -> None:
    graph = make()
    buffers = [mg.CommandBuffer() for _ in range(3)]
    made = [[batch.encode(graph, commands) for batch in batches] for commands in buffers]
    for commands in reversed(buffers):
        commands.commit()
    for results in made:
        for batch, each in zip(batches, results, strict=True):
            batch.require(each)


def test_a_refused_encode_leaves_nothing_behind(batches: list[Batch]) -> None:
    graph = make()
    with mg.CommandBuffer() as commands:
        first = batches[0].encode(graph, commands)
        count = len(commands._dispatches)
        wrong = mg.Image.from_array(np.zeros((2, 6, 6, 3), np.float32))
        with pytest.raises(mg.GeometryError, match="Convolution"):
            graph.encode(commands, [wrong], [first[2]])
        assert len(commands._dispatches) == count
        second = batches[1].encode(graph, commands)
    batches[0].require(first)
    batches[1].require(second)


def test_a_discarded_command_buffer_changes_nothing(batches: list[Batch]) -> None:
    graph = make()
    with pytest.raises(RuntimeError, match="on purpose"), mg.CommandBuffer() as commands:
        lost = batches[0].encode(graph, commands)
        raise RuntimeError("on purpose")
    with pytest.raises(mg.StateError, match="discarded"):
        np.asarray(lost[0])
    with mg.CommandBuffer() as commands:
        made = batches[0].encode(graph, commands)
    batches[0].require(made)


def test_replays_read_what_the_sources_hold_then(batches: list[Batch]) -> None:
    batch = batches[0]
    x, labels = mg.Image(batch.source.descriptor), mg.LossLabels.from_array(batch.labels)
    x.write(np.zeros(x.shape, np.float32))
    states: list[Any] = []
    commands = mg.CommandBuffer()
    gradient = make().encode(commands, [x], [labels], destination_states=states)
    recording = commands.record()
    recording.replay().wait_until_completed()
    x.write(np.array(batch.source))
    for _ in range(2):
        recording.replay()
        batch.require((gradient, states[0], labels))
