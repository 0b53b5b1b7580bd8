"""Which rows a run has: all of the modules in ``bench.rows``, or those that its options and its hardware leave."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence

import bench.rows
import mpsgrad as mg
from bench.case import GROUPS, Case

DTYPES = ("float32", "float16")
LONGEST_SECONDS = 0.025
"""An op on a CPU that would take longer is left out, unless it is one of ``design``: a run ends within minutes."""

INSTRUCTION_SETS = {"cpu": "AVX-512", "cpu-avx2": "AVX2"}
"""Of x86-64 CPUs, by ``Device.tuning``: kernels differ, and so do their figures."""

_CPU_BYTES_PER_SECOND, _CPU_OPERATIONS_PER_SECOND = 15e9, 150e9


def hardware(device: mg.Device) -> str:
    """Which shapes suit ``device``: those for a "cpu" or for a "gpu"."""
    return "cpu" if device.family == "cpu" else "gpu"


def described(device: mg.Device) -> str:
    """The name of ``device``, and of a CPU what its kernels are made for."""
    instructions = INSTRUCTION_SETS.get(device.tuning)
    return f"{device.name}, {instructions}" if instructions else device.name


def modules() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(bench.rows.__path__))


def all_cases(dtype: str, shapes_for: str) -> list[Case]:
    """Every case of ``dtype`` for a "cpu" or a "gpu", those left out that would take too long."""
    cases = [
        case
        for module in modules()
        for case in importlib.import_module(f"bench.rows.{module}").cases(dtype, shapes_for)
    ]
    return cases if shapes_for == "gpu" else [case for case in cases if _is_short(case)]


def _is_short(case: Case) -> bool:
    seconds = case.nbytes / _CPU_BYTES_PER_SECOND + case.operations / _CPU_OPERATIONS_PER_SECOND
    return case.group == "design" or seconds <= LONGEST_SECONDS


def selected(shapes_for: str, dtype: str | None, ops: Sequence[str] | None, quick: bool) -> list[Case]:
    """The rows of a run, the most important first.

    Without ``dtype`` those of float32, and on a GPU the ``design`` shapes in float16. ``quick`` leaves ``design`` only.
    """
    groups = GROUPS[:1] if quick else GROUPS
    cases = [case for case in all_cases(dtype or "float32", shapes_for) if case.group in groups]
    if dtype is None and shapes_for == "gpu":
        cases += [case for case in all_cases("float16", shapes_for) if case.group == "design"]
    chosen = [case for case in cases if not ops or any(name in case.op for name in ops)]
    return sorted(chosen, key=lambda case: (GROUPS.index(case.group), DTYPES.index(case.dtype), case.tf32))
