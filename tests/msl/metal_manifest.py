"""Every function of metal_stdlib that is tested element by element."""

from __future__ import annotations

import re

from manifest_elementwise import COMMON, GEOMETRIC, INTEGER, MATH, RELATIONAL
from manifest_lanes import LANES
from manifest_types import CASTS, CONSTANTS, CONVERSIONS, LIMITS, PACKING, TRAITS
from metal_functions import Function
from metal_probes import PROBES

FUNCTIONS: list[Function] = [
    *MATH, *COMMON, *INTEGER, *RELATIONAL, *GEOMETRIC, *LANES, *CONVERSIONS, *CASTS, *CONSTANTS, *LIMITS, *TRAITS,
    *PACKING,
]  # fmt: skip


def names_of(function: Function) -> set[str]:
    """The names of the library that a function of the manifest tests."""
    plain = re.match(r"[A-Za-z_]\w*(?:\{T\}\w*)?", function.name)
    assert plain is not None
    return {plain[0].replace("{T}", name) for name in function.types}


def names_with_tests() -> set[str]:
    """Every name of the library that has a test."""
    found = {name for function in FUNCTIONS for name in names_of(function)}
    return found | {name for probe in PROBES for name in probe.names}
