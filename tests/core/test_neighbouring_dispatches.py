"""Dispatches that follow each other and become one: the same bits, and only where they belong together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad import neighbouring_dispatches
from mpsgrad.neighbouring_dispatches import with_neighbours_joined

RANDOM = np.random.default_rng(5)
CHANNELS = 24
X, OTHER, G = (RANDOM.standard_normal((2, 5, 3, CHANNELS)).astype(np.float32) for _ in range(3))
# Of as many rows that several chunks add them up.
LARGER = tuple(RANDOM.standard_normal((3, 43, 33, CHANNELS)).astype(np.float32) for _ in range(2))
RELU = mg.NeuronDescriptor("relu", 0.25)


class Step:
    """The kernels of one batch normalization, and a state for each call of ``state``."""

    def __init__(self, neuron: mg.NeuronDescriptor | None) -> None:
        self.gamma, self.beta = RANDOM.standard_normal((2, CHANNELS)).astype(np.float32)
        source = mg.BatchNormalizationDataSource.from_arrays(self.gamma, self.beta)
        self.forward = mg.BatchNormalization(source, fused_neuron_descriptor=neuron)
        self.statistics = mg.BatchNormalizationStatistics()
        self.sums = mg.BatchNormalizationStatisticsGradient(fused_neuron_descriptor=neuron)
        self.gradient = mg.BatchNormalizationGradient(fused_neuron_descriptor=neuron)

    def results(self, joins: bool, arrays: tuple[np.ndarray, np.ndarray]) -> tuple[list[np.ndarray], int]:
        """The bits of a step, in one command buffer or in one for each encode, and how many fewer dispatches."""
        x, g = map(mg.Image.from_array, arrays)
        state = self.forward.result_state(x)
        images = x.batch_representation()
        encodes = [
            lambda commands: self.statistics.encode_batch(commands, images, state),
            lambda commands: self.forward.encode(commands, x, batch_normalization_state=state),
            lambda commands: self.sums.encode_batch(commands, g.batch_representation(), images, state),
            lambda commands: self.gradient.encode(commands, g, x, state),
        ]
        made, joined = [], 0
        for together in [encodes] if joins else [[encode] for encode in encodes]:
            with mg.CommandBuffer() as commands:
                made += [encode(commands) for encode in together]
                joined += len(commands._dispatches) - len(with_neighbours_joined(commands._dispatches))
        _, y, _, dx = made
        found = y, dx, state.mean, state.variance, state.gradient_for_gamma, state.gradient_for_beta
        return [np.asarray(each) for each in found], joined


@pytest.mark.parametrize("neuron", [None, RELU], ids=["plain", "relu"])
@pytest.mark.parametrize(("arrays", "needs_clusters"), [((X, G), False), (LARGER, True)], ids=["small", "larger"])
def test_joined_neighbours_have_the_bits_of_separate_ones(
    neuron: mg.NeuronDescriptor | None, arrays: tuple[np.ndarray, np.ndarray], needs_clusters: bool
) -> None:
    step, device = Step(neuron), mg.default_device()
    on_gpus = 2 if device.has_clusters or not needs_clusters else 0
    apart, none = step.results(False, arrays)
    for _ in range(4):  # Later times take over what earlier ones found out, of encodes and of neighbours.
        together, joined = step.results(True, arrays)
        assert (none, joined) == (0, 6 if device.family == "cpu" else on_gpus)
        for a, b in zip(apart, together, strict=True):
            np.testing.assert_array_equal(a, b)


def test_numbers_of_another_state_are_not_joined() -> None:
    step = Step(None)
    x, other = mg.Image.from_array(X), mg.Image.from_array(OTHER)
    for with_its_own in (False, True, True, True, False):
        states = [step.forward.result_state(image) for image in (x, other)]
        with mg.CommandBuffer() as commands:
            for image, state in zip((x, other), states, strict=True):
                step.statistics.encode_batch(commands, image.batch_representation(), state)
            y = step.forward.encode(commands, (x, other)[with_its_own], batch_normalization_state=states[with_its_own])
            is_joined = len(with_neighbours_joined(commands._dispatches)) < len(commands._dispatches)
            assert is_joined == with_its_own
    x_hat = (X - X.mean((0, 1, 2))) / np.sqrt(X.var((0, 1, 2)) + states[0].epsilon)
    np.testing.assert_allclose(np.asarray(y), step.gamma * x_hat + step.beta, rtol=1e-4, atol=1e-4)


def sums_and_neurons(joins: bool, scale: float, of_the_sum: bool) -> tuple[list[np.ndarray], int]:
    """The bits of a sum that enters a neuron, and of gradients that are added up and enter its gradient.

    In one command buffer or in one for each encode; and how many fewer dispatches. ``scale`` is of the first image; not
    ``of_the_sum``, the neuron takes another image than the sum.
    """
    # Eights, and a rest of an element, of the second image of each batch.
    batches = (mg.Image.from_array(array[..., :7].copy()) for array in (X, OTHER, G, G))
    x, y, g, total = (batch.batch_representation()[1] for batch in batches)
    add, neuron, gradient = mg.Add(), mg.Neuron(RELU), mg.NeuronGradient(RELU)
    add.primary_scale = scale
    made: dict[str, Any] = {"x": x, "sum": total}
    first, second = ("sum", "gradients") if of_the_sum else ("x", "x")

    def apply_neuron(commands: mg.CommandBuffer) -> None:
        made["result"], made["state"] = neuron.encode(commands, made[first], return_state=True)

    encodes = [
        lambda commands: add.encode(commands, x, y, destination_image=total),
        apply_neuron,
        lambda commands: made.update(gradients=add.encode(commands, g, y)),
        lambda commands: made.update(gradient=gradient.encode(commands, made[second], made["sum"], made["state"])),
    ]
    joined = 0
    for together in [encodes] if joins else [[encode] for encode in encodes]:
        with mg.CommandBuffer() as commands:
            for encode in together:
                encode(commands)
            joined += len(commands._dispatches) - len(with_neighbours_joined(commands._dispatches))
    return [np.asarray(made[name]) for name in ("sum", "result", "gradients", "gradient")], joined


@pytest.mark.parametrize(("scale", "of_the_sum", "fewer"), [(1.0, True, 2), (2.0, True, 0), (1.0, False, 0)])
def test_sums_join_the_neuron_behind_them(scale: float, of_the_sum: bool, fewer: int) -> None:
    apart, none = sums_and_neurons(False, scale, of_the_sum)
    together, joined = sums_and_neurons(True, scale, of_the_sum)
    assert (none, joined) == (0, fewer if mg.default_device().family == "cpu" else 0)
    for a, b in zip(apart, together, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_lies_between_joined_runs_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of optimizers are joined as they are encoded; what precedes and follows them is joined as before."""
    step = Step(RELU)
    x, g = mg.Image.from_array(X), mg.Image.from_array(G)
    descent = mg.OptimizerStochasticGradientDescent.with_learning_rate(0.5)
    asked: list[int] = []
    joined = neighbouring_dispatches._joined
    monkeypatch.setattr(
        neighbouring_dispatches, "_joined", lambda given: asked.append(len(given)) or joined(given)
    )
    found, of_runs = [], []
    for _ in range(4):
        vectors = [mg.Vector.from_array(np.full(40, value, np.float32)) for value in (1, 2, 5)]
        made = []
        asked.clear()
        with mg.CommandBuffer() as commands:
            for vector in vectors[1:]:
                state = step.forward.result_state(x)
                step.statistics.encode_batch(commands, x.batch_representation(), state)
                made.append(step.forward.encode(commands, x, batch_normalization_state=state))
                step.sums.encode_batch(commands, g.batch_representation(), x.batch_representation(), state)
                made.append(step.gradient.encode(commands, g, x, state))
                descent.encode(
                    commands,
                    input_gradient_vector=vectors[0],
                    input_values_vector=vector,
                    result_values_vector=vector,
                )
        found.append([*map(np.asarray, [*made, *vectors])])
        of_runs.append([*asked])
    assert max(of_runs[0]) > 1
    assert of_runs[-1] == [1, 1]
    for each in found:
        for one, other in zip(each, found[0], strict=True):
            np.testing.assert_array_equal(one, other)
    assert found[0][-1][0] == 4.5
