"""What a test of a function of metal_stdlib consists of: what it takes, what it should give, and how exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from metal_oracles import Oracle

Draw = Callable[[str, np.random.Generator, int], np.ndarray]
Domain = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Parameter:
    """A parameter: ``type`` is "T" or a type's name; ``scalar`` if vectors take one for all components.

    ``draw(type, generator, count)`` gives its arguments where those of its type's sample do not suit.
    """

    type: str = "T"
    scalar: bool = False
    draw: Draw | None = None


@dataclass(frozen=True)
class Result:
    """A result: ``type`` is "T", "Tu" for the unsigned type of its size, or a type's name."""

    type: str = "T"
    scalar: bool = False


@dataclass(frozen=True)
class Accuracy:
    """The largest errors in units in the last place; ``fast`` is the one of ``float`` under fast math, if another."""

    float: float = 0.0
    half: float = 0.0
    fast: float | None = None


@dataclass(frozen=True)
class Function:
    """A function of the library and its test.

    ``statement`` computes the results r0, r1 ... from the arguments x0, x1 ...; ``domain(type, *arguments)`` says where
    Metal defines the result, ``fast_domain`` where it still does under fast math, and ``scale(*arguments)`` has the
    magnitudes whose last places errors are counted in. Where ``wide_types`` are given, vectors take long to compile and
    share their code: all but the widest of these types are left to the nightly run.
    """

    name: str
    section: str
    types: tuple[str, ...]
    oracle: Oracle
    parameters: tuple[Parameter, ...] = (Parameter(),)
    accuracy: Accuracy = Accuracy()
    results: tuple[Result, ...] = (Result(),)
    widths: tuple[int, ...] = (1, 2, 3, 4)
    variants: tuple[str, ...] = ("",)
    domain: Domain | None = None
    fast_domain: Domain | None = None
    scale: Callable[..., np.ndarray] | None = None
    statement: str = ""
    wide_types: tuple[str, ...] | None = None

    @property
    def identifier(self) -> str:
        """A name that no other function of the manifest has."""
        is_shared = self.section in ("math", "integer", "common", "conversion")
        return self.name + (f" ({self.section}, {self.types[0]})" if is_shared else "")


EXACT = Accuracy()
ROUNDED = Accuracy(0.5, 0.5)
"""Correctly rounded."""
