"""Components of constant vectors by their places, ``v[0]`` for ``v.x``: in CUDA only these are constant expressions.

There the components of a vector lie in a union with its array and with its swizzles, and it is the array that a
constructor gives values.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpsgrad.msl.analysis.source import Source, Variable, element_of
from mpsgrad.msl.backend import SWIZZLES, is_swizzle
from mpsgrad.msl.edits import Edits
from mpsgrad.msl.tokens import Token


def with_places_of_components(source: Source) -> list[Token] | None:
    """The tokens of a program that names components of ``constexpr`` vectors by their places; None if it has none."""
    if not source.places("constexpr"):
        return None
    edits = Edits(source.tokens)
    for variable, width in _constant_vectors(source):
        for index in source.places(variable.name, start=variable.first, end=variable.last):
            if source.text(index - 1) in (".", "->") or source.variable(variable.name, index) is not variable:
                continue
            dot = index + 1
            for _ in variable.extents:
                dot = source.close(dot) + 1 if source.text(dot) == "[" else dot
            places, end = [*range(width)], dot
            while source.text(end) == "." and is_swizzle(source.text(end + 1)):
                letters = next(each for each in SWIZZLES if source.text(end + 1)[0] in each)
                chosen = [letters.index(letter) for letter in source.text(end + 1)]
                if max(chosen) >= len(places):
                    break
                places = [places[component] for component in chosen]
                end += 2
            if len(places) == 1:
                edits.replace_range(dot, end, "[", str(places[0]), "]")
    return None if edits.is_empty else edits.applied()


def _constant_vectors(source: Source) -> Iterator[tuple[Variable, int]]:
    """The variables that are ``constexpr`` vectors, or arrays of such, with their components."""
    for variables in source.variables.values():
        for variable in variables:
            kind = element_of(variable.type, variable.extents)
            if kind is not None and kind.is_vector and not variable.is_reference:
                if "constexpr" in source.words_before(variable.place):
                    yield variable, kind.width
