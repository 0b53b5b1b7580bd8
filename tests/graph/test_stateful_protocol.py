"""Hypothesis plays with encodes, states and command buffers: what is allowed gives the right numbers, or an error.

All numbers are small integers, so that float32 computes them exactly and every result can be compared bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule

import mpsgrad as mg

SHAPE = (2, 2, 2, 3)
WEIGHTS = np.array([[1, -2, 0], [3, 1, -1]], np.float32)
MEAN_SQUARED = mg.LossDescriptor("mean_squared_error", "sum")
seeds = st.integers(0, 2**16)


def integers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def source() -> mg.ConvolutionDataSource:
    return mg.ConvolutionDataSource.from_arrays(WEIGHTS.reshape(2, 1, 1, 3).copy(), np.zeros(2, np.float32))


@dataclass
class Buffer:
    """A command buffer that takes work, and what is to be checked once it has run."""

    commands: mg.CommandBuffer = field(default_factory=mg.CommandBuffer)
    results: list[tuple[mg.Image, np.ndarray]] = field(default_factory=list)
    states: list[Forward] = field(default_factory=list)
    collects: list[tuple[Forward, np.ndarray]] = field(default_factory=list)


@dataclass
class Forward:
    """A forward encode with its state, and the gradients for weights that have been collected in it."""

    image: mg.Image
    array: np.ndarray
    state: mg.ConvolutionGradientState
    writer: Buffer
    is_lost: bool = False
    collecting: Buffer | None = None
    gradient: np.ndarray | None = None


class StateProtocol(RuleBasedStateMachine):
    """A convolution and its gradient, in any order, in several command buffers that are open at once."""

    buffers = Bundle("buffers")
    forwards = Bundle("forwards")

    @initialize()
    def make(self) -> None:
        data_source = source()
        self.kernel, self.gradient = mg.Convolution(data_source), mg.ConvolutionGradient(data_source)
        self.open: list[Buffer] = []

    @rule(target=buffers)
    def begin(self) -> Buffer:
        self.open.append(Buffer())
        return self.open[-1]

    @rule(target=forwards, buffer=buffers, seed=seeds)
    def forward(self, buffer: Buffer, seed: int) -> Any:
        array = integers(seed, *SHAPE)
        image = mg.Image.from_array(array)
        result, state = self.kernel.encode(buffer.commands, image, return_state=True)
        buffer.results.append((result, array @ WEIGHTS.T))
        made = Forward(image, array, state, buffer)
        buffer.states.append(made)
        return made

    @rule(buffer=buffers, forward=forwards, seed=seeds)
    def backward(self, buffer: Buffer, forward: Forward, seed: int) -> None:
        """The state may be used again and again: gradients for weights add up. Two open command buffers may not."""
        if forward.is_lost or forward.writer in self.open and forward.writer is not buffer:
            return
        incoming = integers(seed, *SHAPE[:3], 2)
        encode = (buffer.commands, mg.Image.from_array(incoming), forward.image, forward.state)
        if forward.collecting not in (None, buffer) and forward.collecting in self.open:
            with pytest.raises(mg.StateError, match="collected in another command buffer that has not been committed"):
                self.gradient.encode(*encode)
            return
        buffer.results.append((self.gradient.encode(*encode), incoming @ WEIGHTS))
        buffer.collects.append((forward, np.einsum("nhwo,nhwi->oi", incoming, forward.array)))
        forward.collecting = buffer

    @rule(buffer=buffers, forward=forwards, seed=seeds)
    def backward_of_a_wrong_gradient(self, buffer: Buffer, forward: Forward, seed: int) -> None:
        with pytest.raises(mg.GeometryError, match="ConvolutionGradient"):
            wrong = mg.Image.from_array(integers(seed, 2, 2, 1, 2))
            self.gradient.encode(buffer.commands, wrong, forward.image, forward.state)

    @rule(buffer=buffers)
    def read_too_early(self, buffer: Buffer) -> None:
        for image, _ in buffer.results:
            with pytest.raises(mg.StateError, match="before its command buffer was committed"):
                np.asarray(image)
        with pytest.raises(mg.StateError, match="before commit would wait for ever"):
            buffer.commands.wait_until_completed()

    @rule(buffer=consumes(buffers))
    def commit(self, buffer: Buffer) -> None:
        buffer.commands.commit()
        self.open.remove(buffer)
        for forward, gradient in buffer.collects:
            forward.gradient = gradient + (0 if forward.gradient is None else forward.gradient)
        with pytest.raises(mg.StateError, match="has been committed"):
            self.kernel.encode(buffer.commands, mg.Image.from_array(integers(0, *SHAPE)))
        for image, expected in buffer.results:
            np.testing.assert_array_equal(np.asarray(image), expected)

    @rule(buffer=consumes(buffers))
    def discard(self, buffer: Buffer) -> None:
        """An exception in the block takes the work back: as if it had not been encoded."""
        with pytest.raises(RuntimeError, match="on purpose"), buffer.commands:
            raise RuntimeError("on purpose")
        self.open.remove(buffer)
        for forward in buffer.states:
            forward.is_lost = True
        for forward, _ in buffer.collects:
            forward.is_lost = True
        for image, _ in buffer.results:
            with pytest.raises(mg.StateError, match="discarded"):
                np.asarray(image)

    @rule(forward=consumes(forwards))
    def drop(self, forward: Forward) -> None:
        """Nobody needs to use a state; what was collected in it can be read."""
        if forward.gradient is not None and not forward.is_lost and forward.collecting not in self.open:
            found = forward.state.gradient_for_weights.reshape(2, 3)
            np.testing.assert_array_equal(found, forward.gradient)


class GraphProtocol(RuleBasedStateMachine):
    """One training graph that is encoded into several command buffers, which are committed in any order or dropped."""

    buffers = Bundle("buffers")

    @initialize()
    def make(self) -> None:
        convolution = mg.ConvolutionNode(mg.ImageNode("x"), source())
        line = mg.NeuronLinearNode(convolution.result_image, a=2.0, b=1.0)
        total = mg.AdditionNode(line.result_image, convolution.result_image)
        loss = mg.LossNode(total.result_image, mg.LabelsNode("labels"), descriptor=MEAN_SQUARED)
        assert convolution.result_state is not None
        convolution.result_state.export_from_graph = True
        self.graph = mg.Graph(loss.training_graph())

    @rule(target=buffers)
    def begin(self) -> tuple[mg.CommandBuffer, list[Any]]:
        return mg.CommandBuffer(), []

    @rule(buffer=buffers, seed=seeds, size=st.integers(1, 3))
    def encode(self, buffer: tuple[mg.CommandBuffer, list[Any]], seed: int, size: int) -> None:
        commands, encoded = buffer
        array, wanted = integers(seed, 2, size, size, 3), integers(seed + 1, 2, size, size, 2)
        labels, states = mg.LossLabels.from_array(wanted), []
        result = self.graph.encode(commands, [mg.Image.from_array(array)], [labels], destination_states=states)
        y = array @ WEIGHTS.T
        difference = 3 * y + 1 - wanted
        gradient = 6 * difference
        encoded.append((result, gradient @ WEIGHTS))
        encoded.append((labels.loss_image, (difference**2).sum((1, 2, 3), keepdims=True)))
        expected = np.einsum("nhwo,nhwi->oi", gradient, array)
        encoded.append((states[0], expected))

    @rule(buffer=buffers, seed=seeds)
    def encode_what_does_not_fit(self, buffer: tuple[mg.CommandBuffer, list[Any]], seed: int) -> None:
        commands, _ = buffer
        count = len(commands._dispatches)
        labels = mg.LossLabels.from_array(integers(seed, 2, 2, 2, 2))
        for wrong in ((2, 2, 2, 2), (2, 3, 2, 3), (1, 2, 2, 3)):
            with pytest.raises(mg.GeometryError):
                self.graph.encode(commands, [mg.Image.from_array(integers(seed, *wrong))], [labels])
        assert len(commands._dispatches) == count

    @rule(buffer=consumes(buffers))
    def commit(self, buffer: tuple[mg.CommandBuffer, list[Any]]) -> None:
        commands, encoded = buffer
        commands.commit()
        for found, expected in encoded:
            if isinstance(found, mg.State):
                found = found.gradient_for_weights.reshape(2, 3)  # type: ignore[attr-defined]
            np.testing.assert_array_equal(np.asarray(found), expected)

    @rule(buffer=consumes(buffers))
    def discard(self, buffer: tuple[mg.CommandBuffer, list[Any]]) -> None:
        commands, encoded = buffer
        with pytest.raises(RuntimeError, match="on purpose"), commands:
            raise RuntimeError("on purpose")
        for found, _ in encoded[:1]:
            with pytest.raises(mg.StateError, match="discarded"):
                np.asarray(found)


TestStateProtocol = StateProtocol.TestCase
TestGraphProtocol = GraphProtocol.TestCase
TestStateProtocol.settings = TestGraphProtocol.settings = settings(max_examples=20, stateful_step_count=25)
