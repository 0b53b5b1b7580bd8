"""Stochastic gradient descent with momentum on one vector of parameters, in place.

PyTorch multiplies by the learning rate after the momentum, we before; both read three vectors and write two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import mpsgrad as mg
from bench.case import Case
from bench.inputs import random_array, torch_tensors
from mpsgrad import reference
from mpsgrad.accuracy import assert_within, error_bound

LENGTHS = (10_000_000,)
LEARNING_RATE, MOMENTUM = 1e-3, 0.9


def cases(dtype: str, device: mg.Device) -> Iterator[Case]:
    """Optimizers work in float32 whatever the dtype of the images: there are no rows for other dtypes."""
    if dtype == "float32":
        for length in LENGTHS:
            yield _case(length, device)


def _case(length: int, device: mg.Device) -> Case:
    values, gradient, momentum = (random_array((length,), "float32", seed) for seed in range(3))
    vectors = {
        "input_values_vector": mg.Vector.from_array(values, device),
        "input_gradient_vector": mg.Vector.from_array(gradient, device),
        "input_momentum_vector": mg.Vector.from_array(momentum, device),
    }
    kernel = mg.OptimizerStochasticGradientDescent(
        mg.OptimizerDescriptor(learning_rate=LEARNING_RATE), momentum_scale=MOMENTUM, device=device
    )
    result = vectors["input_values_vector"]

    def encode(commands: mg.CommandBuffer) -> mg.Vector:
        kernel.encode(commands, **vectors, result_values_vector=result)
        return result

    def check(actual: mg.Vector) -> None:
        few = slice(0, 100_000)
        settings = {"learning_rate": LEARNING_RATE, "momentum_scale": MOMENTUM}
        exact, step = reference.stochastic_gradient_descent(gradient[few], values[few], momentum[few], **settings)
        magnitude = np.abs(values[few]) + np.abs(MOMENTUM * momentum[few]) + np.abs(LEARNING_RATE * gradient[few])
        assert_within(np.asarray(actual)[few], exact, error_bound(np.float32, 3, magnitude, exact))
        bound = error_bound(np.float32, 2, magnitude, step)
        assert_within(np.asarray(vectors["input_momentum_vector"])[few], step, bound, name="momentum")

    return Case(
        "optimizer_sgd_momentum",
        str(length),
        "float32",
        5 * values.nbytes,
        encode,
        check,
        operations=4 * length,
        torch_calls=_torch_calls(values, gradient, momentum),
    )


def _torch_calls(*arrays: np.ndarray) -> dict[str, Callable[[], Any]]:
    tensors = torch_tensors(*arrays)
    if tensors is None:
        return {}
    import torch

    values, gradient, momentum = tensors

    def fused() -> None:
        torch._fused_sgd_(
            [values],
            [gradient],
            [momentum],
            weight_decay=0.0,
            momentum=MOMENTUM,
            lr=LEARNING_RATE,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )

    def unfused() -> None:
        momentum.mul_(MOMENTUM).add_(gradient)
        values.add_(momentum, alpha=-LEARNING_RATE)

    return {"fused": fused, "unfused": unfused}
