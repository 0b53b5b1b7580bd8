"""The kernels of optimizer steps, each alone and several of them joined."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from mpsgrad.archive import archivable
from mpsgrad.devices import Device
from mpsgrad.geometry import ceiling_divide
from mpsgrad.joined_dispatch import JoinableKernel, joined_struct, most_joined
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import tunables

THREADS, ELEMENTS_OF_A_VECTOR = 256, 4
FEWEST_ELEMENTS_PER_THREAD = 4096
"""On CPUs, unless the vector has fewer."""


@archivable
class RegularizationType(enum.IntEnum):
    """Source: ``MPSNNRegularizationType``."""

    NONE = 0
    L1 = 1
    L2 = 2


PARAMETERS = ParameterStruct(
    "OptimizerParameters",
    count="int",
    momentum_scale="float",
    gradient_scale="float",
    square_decay="float",
    square_scale="float",
    epsilon="float",
    applies_clipping="int",
    gradient_clip_min="float",
    gradient_clip_max="float",
    gradient_rescale="float",
    regularization="int",
    regularization_scale="float",
    elements_per_thread="int",
)


DESCENTS: Mapping[str, tuple[str, ...]] = {
    "stochastic_gradient_descent": (),
    "stochastic_gradient_descent_with_momentum": ("momenta",),
    "stochastic_gradient_descent_with_nesterov": ("momenta",),
}
ADAPTIVE_STEPS: Mapping[str, tuple[str, ...]] = {
    "rms_prop": ("mean_squares",),
    "adam": ("momenta", "mean_squares"),
    "ams_grad": ("momenta", "mean_squares", "largest_squares"),
}
"""The kernels, and what they keep of each value from step to step."""


def shares_of(device: Device, count: int) -> tuple[int, int]:
    """The threadgroups for a step of ``count`` values, and how many of these each of their threads owns.

    On CPUs threads have long shares, which they go through as fast as memory gives them, and every core as many.
    """
    if device.family != "cpu":
        return ceiling_divide(count, THREADS * ELEMENTS_OF_A_VECTOR), ELEMENTS_OF_A_VECTOR
    units, most = max(1, device.compute_units), tunables(device.tuning).optimizer_elements_per_thread
    threads = units * ceiling_divide(count, units * most)
    elements = max(FEWEST_ELEMENTS_PER_THREAD, 8 * ceiling_divide(count, 8 * threads))
    return ceiling_divide(count, elements), elements


def _most(slots: tuple[str, ...]) -> int:
    """How many steps are joined, each with gradients, values, results, slots and a rate; they share the scaling."""
    return most_joined(4 + len(slots), 1)


def _family(name: str, steps: Mapping[str, tuple[str, ...]], ahead_of_time: bool, joins: bool) -> ShaderFamily:
    counts = {name: _most(slots) if joins else 1 for name, slots in steps.items()}
    joined = [joined_struct(PARAMETERS, count) for count in sorted({*counts.values()} - {1})]
    return ShaderFamily(
        name,
        (PARAMETERS, *joined),
        {
            "threads": THREADS,
            "l1": int(RegularizationType.L1),
            "l2": int(RegularizationType.L2),
            "steps": steps,
            "counts": counts,
            "by_vectors": True,
        },
        {"cpu": {"by_vectors": False, "threads": 1, "counts": dict.fromkeys(steps, 0) if joins else counts}},
        measured=lambda numbers: {"by_sixteens": numbers.has_many_registers},
        dtypes=("float",),
        template="optimizer",
        ahead_of_time=ahead_of_time,
    )


def _kernels(name: str, steps: Mapping[str, tuple[str, ...]], ahead_of_time: bool) -> dict[str, JoinableKernel]:
    families = _family(name, steps, ahead_of_time, False), _family(f"{name}_joined", steps, False, True)
    return {each: JoinableKernel(each, *families, PARAMETERS, _most(slots)) for each, slots in steps.items()}


STEPS = _kernels("optimizer", DESCENTS, True) | _kernels("optimizer_adaptive", ADAPTIVE_STEPS, False)
