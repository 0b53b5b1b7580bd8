"""The optimizers of ``mpsgrad train --optimizer``, and the schedules of their learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from mpsgrad.devices import Device
from mpsgrad.kernels.optimizer import Optimizer, OptimizerDescriptor, OptimizerStochasticGradientDescent
from mpsgrad.kernels.optimizer_adaptive import OptimizerAdam, OptimizerRMSProp

MOMENTUM = 0.9


@dataclass(frozen=True)
class OptimizerKind:
    """How to make an optimizer, what it keeps of each parameter from step to step, and its usual learning rate.

    ``slots`` are the names of the vectors that its encodes take. One that ``counts_steps`` serves one node only.
    """

    make: Callable[[OptimizerDescriptor, Device], Optimizer]
    slots: tuple[str, ...]
    learning_rate: float
    counts_steps: bool = False

    def of_one_network(self) -> OptimizerKind:
        """The same kind, whose optimizers are one object where that can be, so that replays look at its rate once."""
        return self if self.counts_steps else replace(self, make=cache(self.make))


OPTIMIZERS = {
    "sgd": OptimizerKind(
        lambda descriptor, device: OptimizerStochasticGradientDescent(
            descriptor, momentum_scale=MOMENTUM, device=device
        ),
        ("input_momentum_vectors",),
        0.05,
    ),
    "adam": OptimizerKind(
        lambda descriptor, device: OptimizerAdam(descriptor, device=device),
        ("input_momentum_vectors", "input_velocity_vectors"),
        0.001,
        counts_steps=True,
    ),
    "rmsprop": OptimizerKind(
        lambda descriptor, device: OptimizerRMSProp(descriptor, device=device),
        ("input_sum_of_squares_vectors",),
        0.001,
    ),
}

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda position: 1.0,
    "cosine": lambda position: 0.5 * (1.0 + math.cos(math.pi * position)),
    "step": lambda position: 1.0 if position < 0.5 else 0.1 if position < 0.75 else 0.01,
}
"""The learning rate in parts of the first one, at a position in the run from 0 to 1.

``cosine`` falls to 0 along half a cosine; ``step`` falls to a tenth at one half and again at three quarters.
"""
