"""Which rows a run has: those of the modules in ``bench.rows`` that options and hardware leave, or drawn ones."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import bench.rows
import mpsgrad as mg
from bench import drawn
from bench.case import GROUPS, Case
from bench.drawn import Draw

DTYPES = ("float32", "float16")
LONGEST_SECONDS = 0.025
"""An op on a CPU that would take longer is left out, unless it is one of ``design``: a run ends within minutes."""

INSTRUCTION_SETS = {"cpu": "AVX-512", "cpu-avx2": "AVX2"}
"""Of x86-64 CPUs, by ``Device.tuning``: kernels differ, and so do their figures."""

DRAWN_SHAPES = 12
"""So many shapes are drawn for each module and dtype."""
MOST_DRAWS = 20
"""So many times as many are drawn at most: optimizers have no cases of float16."""
CASES_OF_A_SHAPE = 2
"""So many cases are kept of each, so that modules with many ops weigh no more than the others."""
LONGEST_DRAWN_SECONDS = {"cpu": 0.004, "gpu": 0.0005}

_BYTES_PER_SECOND = {"cpu": 15e9, "gpu": 2e12}
_OPERATIONS_PER_SECOND = {"cpu": 150e9, "gpu": 30e12}


def hardware(device: mg.Device) -> str:
    """Which shapes suit ``device``: those for a "cpu" or for a "gpu"."""
    return "cpu" if device.family == "cpu" else "gpu"


def described(device: mg.Device) -> str:
    """The name of ``device``, and of a CPU what its kernels are made for."""
    instructions = INSTRUCTION_SETS.get(device.tuning)
    return f"{device.name}, {instructions}" if instructions else device.name


def modules() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(bench.rows.__path__))


def _module(name: str) -> Any:
    return importlib.import_module(f"bench.rows.{name}")


def all_cases(dtype: str, shapes_for: str) -> list[Case]:
    """Every case of ``dtype`` for a "cpu" or a "gpu", those left out that would take too long."""
    cases = [case for module in modules() for case in _module(module).cases(dtype, shapes_for)]
    if shapes_for == "gpu":
        return cases
    return [case for case in cases if case.group == "design" or _seconds(case, "cpu") <= LONGEST_SECONDS]


def _seconds(case: Case, shapes_for: str) -> float:
    """What ``case`` takes on usual hardware, roughly."""
    return case.nbytes / _BYTES_PER_SECOND[shapes_for] + case.operations / _OPERATIONS_PER_SECOND[shapes_for]


def selected(shapes_for: str, dtype: str | None, ops: Sequence[str] | None, quick: bool) -> list[Case]:
    """The rows of a run, the most important first.

    Without ``dtype`` those of float32, and on a GPU the ``design`` shapes in float16. ``quick`` leaves ``design`` only.
    """
    groups = GROUPS[:1] if quick else GROUPS
    cases = [case for case in all_cases(dtype or "float32", shapes_for) if case.group in groups]
    if dtype is None and shapes_for == "gpu":
        cases += [case for case in all_cases("float16", shapes_for) if case.group == "design"]
    return sorted(_of(ops, cases), key=lambda case: (GROUPS.index(case.group), DTYPES.index(case.dtype), case.tf32))


def selected_drawn(shapes_for: str, dtype: str | None, ops: Sequence[str] | None, seed: int) -> list[Case]:
    """The rows of a run with shapes drawn from ``seed``, in any order: what a run gets to in time is a fair sample.

    Without ``dtype`` those of both. What is drawn does not depend on ``dtype`` or ``ops``.
    """
    cases = [case for name in DTYPES for module in modules() for case in drawn_cases(module, name, shapes_for, seed)]
    shuffled = Draw(seed, "order", "", shapes_for).shuffled(cases)
    return _of(ops, [case for case in shuffled if dtype in (None, case.dtype)])


def drawn_cases(module: str, dtype: str, shapes_for: str, seed: int) -> list[Case]:
    """Cases of ``DRAWN_SHAPES`` shapes; a shape is drawn again if all that it makes would take too long."""
    rows, draw = _module(module), Draw(seed, module, dtype, shapes_for)

    def candidates() -> Iterator[list[Case]]:
        for _ in range(MOST_DRAWS * DRAWN_SHAPES):
            made = draw.some(list(rows.cases_of(rows.drawn_shape(draw), dtype, drawn.GROUP)), CASES_OF_A_SHAPE)
            short = [case for case in made if _seconds(case, shapes_for) <= LONGEST_DRAWN_SECONDS[shapes_for]]
            if short:
                yield short

    return [case for cases in islice(candidates(), DRAWN_SHAPES) for case in cases]


def _of(ops: Sequence[str] | None, cases: Sequence[Case]) -> list[Case]:
    """The ``cases`` whose ops have one of the names in theirs; all without names."""
    return [case for case in cases if not ops or any(name in case.op for name in ops)]
