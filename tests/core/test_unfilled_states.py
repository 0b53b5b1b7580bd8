"""Gradient kernels and optimizers do not read what a state is to hold before work is sure to write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg

SHAPE = (2, 4, 4, 8)
ONES = np.ones(SHAPE, np.float32)
NO_ORDER = "gradient_state is written by .*, which is "


def group_normalization() -> tuple[Any, Any]:
    gamma, beta = np.ones(8, np.float32), np.zeros(8, np.float32)
    data = mg.GroupNormalizationDataSource.from_arrays(2, gamma, beta)
    return mg.GroupNormalization(data), mg.GroupNormalizationGradient()


PAIRS: dict[str, tuple[Callable[[], tuple[Any, Any]], str | None]] = {
    "recorded maxima": (
        lambda: (
            mg.PoolingMax(kernel_width=2, kernel_height=2, record_maxima=True),
            mg.PoolingMaxGradient(kernel_width=2, kernel_height=2),
        ),
        None,
    ),
    "dropout mask": (lambda: (mg.Dropout(0.5), mg.DropoutGradient(0.5)), "holds no mask"),
    "group statistics": (group_normalization, "holds no statistics"),
    "clamp mask": (
        lambda: (mg.Multiply(records_clamp=True), mg.MultiplyGradient(is_secondary_source_filter=False)),
        "holds records of 0 images",
    ),
}
"""Forward and gradient kernel, and what the error says where the state is empty; maxima can be searched for anew."""


def encode(kernel: Any, commands: mg.CommandBuffer, source: mg.Image) -> tuple[mg.Image, Any]:
    sources = (source, source) if isinstance(kernel, mg.Arithmetic) else (source,)
    return kernel.encode(commands, *sources, return_state=True)


@pytest.mark.parametrize("name", PAIRS)
def test_a_gradient_kernel_reads_only_a_state_that_is_sure_to_be_filled(name: str) -> None:
    make, empty = PAIRS[name]
    forward, gradient = make()
    source = mg.Image.from_array(ONES)
    for times in (1, 2):  # the second encode takes over what the first one found out
        earlier, later = mg.CommandBuffer(), mg.CommandBuffer()
        y, state = encode(forward, earlier, source)
        made = gradient.encode(later, mg.Image.from_array(np.ones(y.shape, np.float32)), source, state)
        with pytest.raises(mg.StateError, match=NO_ORDER + "not committed; commit it first"):
            later.commit()
        earlier.commit()
        later.commit()
        expected = np.array(made)

        earlier, later = mg.CommandBuffer(), mg.CommandBuffer()
        y, state = encode(forward, earlier, source)
        recording = earlier.record()
        gradient.encode(later, mg.Image.from_array(np.ones(y.shape, np.float32)), source, state)
        with pytest.raises(mg.StateError, match=NO_ORDER + "recorded but not replayed; replay it first"):
            later.commit()
        recording.replay()
        later.commit()

        with pytest.raises(ZeroDivisionError), mg.CommandBuffer() as discarded:
            y, state = encode(forward, discarded, source)
            raise ZeroDivisionError
        dy = mg.Image.from_array(np.ones(y.shape, np.float32))
        commands = mg.CommandBuffer()
        if empty is not None:
            with pytest.raises(mg.StateError, match=empty):
                gradient.encode(commands, dy, source, state)
        else:
            made = gradient.encode(commands, dy, source, state)
            commands.commit()
            np.testing.assert_array_equal(made, expected, err_msg=f"encode {times}")


def test_an_optimizer_reads_only_gradients_that_are_sure_to_be_there() -> None:
    data = mg.ConvolutionDataSource.from_arrays(np.ones((8, 1, 1, 8), np.float32), np.zeros(8, np.float32))
    convolution, gradient = mg.Convolution(data), mg.ConvolutionGradient(data)
    optimizer = mg.OptimizerStochasticGradientDescent(mg.OptimizerDescriptor())
    result = mg.ConvolutionWeightsAndBiasesState.with_descriptor(convolution.descriptor)
    source = mg.Image.from_array(ONES)
    before = mg.ConvolutionWeightsAndBiasesState.from_arrays(data.weights, data.bias_terms)
    with mg.CommandBuffer() as commands:
        y, state = convolution.encode(commands, source, return_state=True)
        with pytest.raises(mg.StateError, match="no gradients yet; encode its gradient kernel first"):
            optimizer.encode_convolution(commands, state, before, result_state=result)
    earlier = mg.CommandBuffer()
    gradient.encode(earlier, y, source, state)
    with pytest.raises(mg.StateError, match="not been committed; commit it first"):
        optimizer.encode_convolution(mg.CommandBuffer(), state, before, result_state=result)
    earlier.commit()
    with mg.CommandBuffer() as commands:
        optimizer.encode_convolution(commands, state, before, result_state=result)
    assert result.biases is not None and (result.biases < 0).all()
