"""Steps on different vectors become one dispatch, and have the bits of steps one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.joined_dispatch import JoinableKernel

LENGTHS = (1, 31, 70_000, 5, 2048, 3, 257)
Encode = Callable[[mg.CommandBuffer, int], None]


def vectors(seed: int, lengths: tuple[int, ...] = LENGTHS) -> list[mg.Vector]:
    random = np.random.default_rng(seed)
    return [mg.Vector.from_array(random.random(length, np.float32)) for length in lengths]


def descents(count: int, **options: Any) -> list[Any]:
    return [
        mg.OptimizerStochasticGradientDescent(
            mg.OptimizerDescriptor(learning_rate=0.1 * (k + 1), gradient_rescale=k + 1.0), momentum_scale=0.5, **options
        )
        for k in range(count)
    ]


def momentum_steps(**options: Any) -> tuple[Encode, list[mg.Vector]]:
    gradients, values, momenta = (vectors(seed) for seed in range(3))
    optimizers = descents(len(LENGTHS), **options)

    def encode(commands: mg.CommandBuffer, k: int) -> None:
        optimizers[k].encode(
            commands,
            input_gradient_vector=gradients[k],
            input_values_vector=values[k],
            input_momentum_vector=momenta[k],
            result_values_vector=values[k],
        )

    return encode, [*values, *momenta]


def adam_steps() -> tuple[Encode, list[mg.Vector]]:
    gradients, values, momenta, velocities = (vectors(seed) for seed in range(4))
    results = vectors(4)
    adam = mg.OptimizerAdam(mg.OptimizerDescriptor(learning_rate=0.1))

    def encode(commands: mg.CommandBuffer, k: int) -> None:
        adam.encode(
            commands,
            input_gradient_vector=gradients[k],
            input_values_vector=values[k],
            input_momentum_vector=momenta[k],
            input_velocity_vector=velocities[k],
            result_values_vector=results[k],
        )

    return encode, [*results, *momenta, *velocities]


def nesterov_steps() -> tuple[Encode, list[mg.Vector]]:
    return momentum_steps(use_nesterov_momentum=True)


@pytest.mark.parametrize("make", [momentum_steps, nesterov_steps, adam_steps])
def test_joined_steps_have_the_bits_of_steps_one_by_one(make: Callable[[], tuple[Encode, list[mg.Vector]]]) -> None:
    (joined, got), (alone, wanted) = make(), make()
    with mg.CommandBuffer() as commands:
        for k in range(len(LENGTHS)):
            joined(commands, k)
        assert len(commands._dispatches) == (1 if mg.default_device().family == "cpu" else 2)
    for k in range(len(LENGTHS)):
        with mg.CommandBuffer() as commands:
            alone(commands, k)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_steps_that_depend_on_each_other_stay_in_order() -> None:
    def run(*parts: list[int]) -> list[np.ndarray]:
        gradients, values, momenta = (vectors(seed, (40, 40, 40)) for seed in range(3))
        plain, with_momentum, other = descents(3)
        steps = [
            lambda commands: with_momentum.encode(
                commands, input_gradient_vector=gradients[0], input_values_vector=values[0],
                input_momentum_vector=momenta[0], result_values_vector=values[1],
            ),
            lambda commands: plain.encode(
                commands, input_gradient_vector=values[1], input_values_vector=values[2],
                result_values_vector=gradients[1],
            ),
            lambda commands: other.encode(
                commands, input_gradient_vector=gradients[1], input_values_vector=values[0],
                input_momentum_vector=momenta[1], result_values_vector=values[0],
            ),
            lambda commands: plain.encode(
                commands, input_gradient_vector=gradients[2], input_values_vector=values[2],
                result_values_vector=values[2],
            ),
        ]
        for part in parts:
            with mg.CommandBuffer() as commands:
                for index in part:
                    steps[index](commands)
        return [np.asarray(vector) for vector in (*gradients, *values, *momenta)]

    for got, wanted in zip(run([0, 1, 2, 3]), run([0], [1], [2], [3]), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("second", "dispatches"),
    [("abd", 1), ("cbd", 2), ("dba", 2), ("abc", 2)],
    ids=["depends on nothing", "reads what was written", "overwrites what was read", "overwrites what was written"],
)
def test_a_step_does_not_join_one_that_has_to_precede_it(second: str, dispatches: int) -> None:
    """Runs of one dispatch happen in any order, whatever order this device happens to have."""
    named = dict(zip("abcd", vectors(0, (40, 40, 40, 40)), strict=True))
    (descent,) = descents(1)
    with mg.CommandBuffer() as commands:
        for gradient, values, result in ("abc", second):
            descent.encode(
                commands,
                input_gradient_vector=named[gradient],
                input_values_vector=named[values],
                result_values_vector=named[result],
            )
        assert len(commands._dispatches) == dispatches


def test_a_dispatch_has_no_more_steps_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JoinableKernel, "most_on", lambda kernel, device: 3)
    (encode, got), (alone, wanted) = momentum_steps(), momentum_steps()
    with mg.CommandBuffer() as commands:
        for k in range(7):
            encode(commands, k)
        assert [len(dispatch.runs) for dispatch in commands._dispatches] == [3, 3, 1]
    for k in range(7):
        with mg.CommandBuffer() as commands:
            alone(commands, k)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_step_that_is_taken_back_leaves_the_ones_it_had_joined() -> None:
    data = mg.ConvolutionDataSource.from_arrays(np.ones((8, 1, 1, 8), np.float32), np.zeros(8, np.float32))
    convolution, gradient = mg.Convolution(data), mg.ConvolutionGradient(data)
    before = mg.ConvolutionWeightsAndBiasesState.from_arrays(data.weights, data.bias_terms)
    (optimizer,) = descents(1)
    source = mg.Image.from_array(np.ones((1, 2, 2, 8), np.float32))
    first = mg.Vector.from_array(np.ones(64, np.float32))
    with mg.CommandBuffer() as commands:
        y, state = convolution.encode(commands, source, return_state=True)
        gradient.encode(commands, y, source, state)
        optimizer.encode(
            commands, input_gradient_vector=first, input_values_vector=first,
            input_momentum_vector=mg.Vector(64), result_values_vector=first,
        )
        momenta = [mg.Vector(64), mg.Vector(7)]
        with pytest.raises(mg.GeometryError, match="7 values"):
            optimizer.encode_convolution(
                commands, state, before, input_momentum_vectors=momenta, result_state=before
            )
    np.testing.assert_array_equal(before.weights, data.weights)
    np.testing.assert_array_equal(np.asarray(momenta[0]), 0)
    np.testing.assert_array_equal(np.asarray(first), np.float32(1.0) - np.float32(0.1))


class OnDevice(mg.ConvolutionDataSource):
    """Weights and biases that stay in the device's memory."""

    def __init__(self, outputs: int) -> None:
        random = np.random.default_rng(outputs)
        weights = random.standard_normal((outputs, 1, 1, 8), np.float32)
        self.state = mg.ConvolutionWeightsAndBiasesState.from_arrays(weights, random.random(outputs, np.float32))

    @property
    def descriptor(self) -> mg.ConvolutionDescriptor:
        return mg.ConvolutionDescriptor(1, 1, 8, self.bias_terms.size)

    @property
    def weights(self) -> np.ndarray:
        return self.state.weights

    @property
    def bias_terms(self) -> np.ndarray:
        return self.state.biases

    @property
    def weights_and_biases_state(self) -> mg.ConvolutionWeightsAndBiasesState:
        return self.state


def test_steps_and_packings_of_several_layers_are_a_dispatch_each() -> None:
    layers = [OnDevice(outputs) for outputs in (8, 5, 24)]
    image = mg.Image.from_array(np.random.default_rng(0).random((2, 3, 3, 8), np.float32))
    kernels = [mg.Convolution(layer) for layer in layers]
    with mg.CommandBuffer() as commands:
        before = [kernel.encode(commands, image) for kernel in kernels]
    descent = mg.OptimizerStochasticGradientDescent.with_learning_rate(0.5)
    with mg.CommandBuffer() as commands:
        for layer, kernel in zip(layers, kernels, strict=True):
            for values in layer.state.parameter_vectors:
                descent.encode(
                    commands, input_gradient_vector=values, input_values_vector=values, result_values_vector=values
                )
            kernel.reload_weights_and_biases(commands, layer.state)
        names = [dispatch.function.name for dispatch in commands._dispatches]
        assert len(names) == len(set(names)) <= 2
        after = [kernel.encode(commands, image) for kernel in kernels]
    for earlier, later in zip(before, after, strict=True):
        np.testing.assert_array_equal(np.asarray(later), np.asarray(earlier) / 2)
