"""The kernels of optimizer steps, each alone and several of them joined."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from mpsgrad.archive import archivable
from mpsgrad.joined_dispatch import JoinableKernel, joined_struct, most_joined
from mpsgrad.shader import ParameterStruct, ShaderFamily

THREADS = 256


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
        {"cpu": {"by_vectors": False, "counts": dict.fromkeys(steps, 0) if joins else counts}},
        dtypes=("float",),
        measured=lambda numbers: {"elements": numbers.optimizer_elements_per_simdgroup},
        template="optimizer",
        ahead_of_time=ahead_of_time,
    )


def _kernels(name: str, steps: Mapping[str, tuple[str, ...]], ahead_of_time: bool) -> dict[str, JoinableKernel]:
    families = _family(name, steps, ahead_of_time, False), _family(f"{name}_joined", steps, False, True)
    return {each: JoinableKernel(each, *families, PARAMETERS, _most(slots)) for each, slots in steps.items()}


STEPS = _kernels("optimizer", DESCENTS, True) | _kernels("optimizer_adaptive", ADAPTIVE_STEPS, False)
