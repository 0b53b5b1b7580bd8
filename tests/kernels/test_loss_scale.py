"""Loss scaling: the scale follows what the gradients bear, and steps that overflow leave everything as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad.kernels.loss_scale import LARGEST_SCALE, SMALLEST_SCALE

DESCRIPTOR = mg.OptimizerDescriptor(learning_rate=0.125, regularization_type=mg.RegularizationType.L2)
lengths = st.one_of(st.integers(1, 70), st.sampled_from([2047, 2048, 2049, 16384, 16385, 40000]))


def check(scale: mg.LossScale, *gradients: np.ndarray) -> None:
    with mg.CommandBuffer() as commands:
        scale.encode_check(commands, [mg.Vector.from_array(each) for each in gradients])


@given(data=st.data())
def test_the_scale_follows_the_gradients(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(lengths, min_size=1, max_size=4))
    interval = data.draw(st.integers(1, 3))
    initial = data.draw(st.sampled_from([1.0, 2.0**16, LARGEST_SCALE, SMALLEST_SCALE]))
    scale = mg.LossScale(initial, growth_interval=interval, growth_factor=4.0, backoff_factor=0.25)
    expected, good, skipped = initial, 0, 0
    for _ in range(4):
        arrays = [np.full(size, np.finfo(np.float32).max, np.float32) for size in sizes]
        is_finite = data.draw(st.booleans())
        if not is_finite:
            array = arrays[data.draw(st.integers(0, len(sizes) - 1))]
            array[data.draw(st.integers(0, array.size - 1))] = data.draw(st.sampled_from([np.inf, -np.inf, np.nan]))
        before = expected
        check(scale, *arrays)
        good = good + 1 if is_finite else 0
        skipped += not is_finite
        if not is_finite:
            expected = max(expected * 0.25, SMALLEST_SCALE)
        elif good == interval:
            expected, good = min(expected * 4.0, LARGEST_SCALE), 0
        assert scale.last_step == (1.0 / before, is_finite)
        assert (scale.scale, scale.skipped_steps) == (expected, skipped)
    restored = mg.LossScale(growth_interval=interval)
    restored.state = scale.state
    np.testing.assert_array_equal(restored.state, scale.state)


OPTIMIZERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "plain": (lambda: mg.OptimizerStochasticGradientDescent(DESCRIPTOR), ()),
    "momentum": (
        lambda: mg.OptimizerStochasticGradientDescent(DESCRIPTOR, momentum_scale=0.5),
        ("input_momentum_vector",),
    ),
    "nesterov": (
        lambda: mg.OptimizerStochasticGradientDescent(DESCRIPTOR, momentum_scale=0.5, use_nesterov_momentum=True),
        ("input_momentum_vector",),
    ),
    "rms_prop": (lambda: mg.OptimizerRMSProp(DESCRIPTOR), ("input_sum_of_squares_vector",)),
    "adam": (lambda: mg.OptimizerAdam(DESCRIPTOR), ("input_momentum_vector", "input_velocity_vector")),
    "ams_grad": (
        lambda: mg.OptimizerAdam(DESCRIPTOR),
        ("input_momentum_vector", "input_velocity_vector", "maximum_velocity_vector"),
    ),
}


@pytest.mark.parametrize(("make", "slots"), OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("length", [5, 1000])
def test_gradients_are_divided_and_steps_that_overflowed_change_nothing(
    make: Any, slots: tuple[str, ...], length: int
) -> None:
    random = np.random.default_rng(length)
    gradient, values, *kept = (random.random(length, np.float32) + np.float32(0.5) for _ in range(2 + len(slots)))

    def step(gradient: np.ndarray, loss_scale: mg.LossScale | None) -> list[np.ndarray]:
        kernel, result = make(), mg.Vector(length)
        kernel.loss_scale = loss_scale
        assert kernel.loss_scale is loss_scale
        vectors = {name: mg.Vector.from_array(array) for name, array in zip(slots, kept, strict=True)}
        source = mg.Vector.from_array(gradient)
        with mg.CommandBuffer() as commands:
            if loss_scale is not None:
                loss_scale.encode_check(commands, [source])
            kernel.encode(
                commands,
                input_gradient_vector=source,
                input_values_vector=mg.Vector.from_array(values),
                **vectors,
                result_values_vector=result,
            )
        return [np.asarray(each) for each in (result, *vectors.values())]

    plain = step(gradient, None)
    assert all((after != before).any() for after, before in zip(plain, (values, *kept), strict=True))
    for found, expected in zip(step(gradient * np.float32(1024), mg.LossScale(1024.0)), plain, strict=True):
        np.testing.assert_array_equal(found, expected)
    gradient[length // 2] = np.nan
    for found, expected in zip(step(gradient, mg.LossScale()), (values, *kept), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_weights_of_the_loss_get_the_scale_of_the_step() -> None:
    scale = mg.LossScale(8.0)
    labels = mg.LossLabels.from_array(np.zeros((3, 1, 1, 100), np.float32), np.zeros((3, 1, 1, 100), np.float32))
    assert labels.weights_image is not None
    for expected in (2.0, 1.0):
        with mg.CommandBuffer() as commands:
            scale.encode_weights(commands, labels.weights_image, 0.25)
            scale.encode_check(commands, [mg.Vector.from_array(np.float32([np.inf]))])
        assert (np.asarray(labels.weights_image) == expected).all()


def test_what_is_wrong_is_said() -> None:
    scale = mg.LossScale()
    image = mg.Image.from_array(np.zeros((2, 1, 1, 1), np.float32))
    half = mg.Image.from_array(np.zeros((2, 1, 1, 1), np.float16))
    with mg.CommandBuffer() as commands:
        with pytest.raises(mg.FormatError, match=r"gradients\[1\] is ndarray; it has to be a Vector"):
            scale.encode_check(commands, [mg.Vector(1), np.zeros(1)])  # type: ignore[list-item]
        with pytest.raises(mg.FormatError, match="it has to be a FLOAT32 image"):
            scale.encode_weights(commands, half)
        with pytest.raises(mg.GeometryError, match="a part of another image"):
            scale.encode_weights(commands, image.batch_representation()[0])
    with pytest.raises(mg.StateError, match="LossScale.encode_check is not possible"):
        scale.encode_check(commands, [])
    with pytest.raises(mg.FormatError, match="it has to be a CommandBuffer"):
        scale.encode_weights(None, image)  # type: ignore[arg-type]
    with pytest.raises(mg.FormatError, match="one that was read from a LossScale"):
        scale.state = np.float32([1, 1, 0, 0, 0])
    with pytest.raises(mg.GeometryError, match="backoff_factor"):
        mg.LossScale(backoff_factor=2.0)
    with pytest.raises(mg.GeometryError, match="initial_scale"):
        mg.LossScale(0.0)
    with pytest.raises(mg.FormatError, match="loss_scale is 2; it has to be a LossScale or None"):
        mg.OptimizerStochasticGradientDescent(DESCRIPTOR).loss_scale = 2  # type: ignore[assignment]
