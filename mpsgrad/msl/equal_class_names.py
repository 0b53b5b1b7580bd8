"""Classes of one name in several namespaces, classes or functions, told apart by names of their own.

What is known of a class is known by its name without what stands before ``::``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.tokens import IDENTIFIER, Token
from mpsgrad.msl.unions import class_bodies, name_place


class _Scope(NamedTuple):
    """A pair of braces: the name of the namespace or class that they are the body of, or the index of a block's."""

    name: str | int


_Path = tuple[_Scope, ...]


def tell_classes_apart(source: Source) -> list[Token] | None:
    """The tokens of ``source`` with another name for each class but the first of those that share one; None if none
    do. A name is left as it is where several classes may be meant."""
    places: dict[str, list[int]] = defaultdict(list)
    for start, _ in class_bodies(source):
        place = name_place(source, start)
        if source.kind(place) == IDENTIFIER and source.text(place + 1) != "<":
            places[source.text(place)].append(place)
    shared = {name: found for name, found in places.items() if len(found) > 1}
    if not shared:
        return None
    paths = _paths(source, frozenset(shared))
    tokens = [*source.tokens]
    for name, found in shared.items():
        classes = {paths[place]: number for number, place in enumerate(found)}
        for index in source.places(name):
            number = _meant(source, index, paths[index], classes)
            if number:
                tokens[index] = tokens[index].replaced(f"{name}_{number}{RENAMED_SUFFIX}", IDENTIFIER)
    return tokens


def _paths(source: Source, names: frozenset[str]) -> dict[int, _Path]:
    """What each of ``names`` stands in, wherever it stands."""
    bodies: dict[int, str] = {}
    for start, _ in class_bodies(source):
        place = name_place(source, start)
        bodies[next(iter(source.places("{", start=place)))] = source.text(place)
    for index in source.places("namespace"):
        opening = next(iter(source.places("{", start=index)), -1)
        if opening > 0 and not source.places(";", start=index, end=opening):
            bodies[opening] = source.text(opening - 1)
    found: dict[int, _Path] = {}
    path: list[_Scope] = []
    for index in source.places("{", "}", *names):
        text = source.text(index)
        if text == "{":
            path.append(_Scope(bodies.get(index, index)))
        elif text == "}":
            path = path[:-1]
        else:
            found[index] = tuple(path)
    return found


def _meant(source: Source, index: int, path: _Path, classes: dict[_Path, int]) -> int:
    """The number of the class that is meant at ``index`` in ``path``; 0, the first one's, if that is not known."""
    if source.text(index - 1) == "::":
        qualifier = source.text(index - 2)
        return _only([number for place, number in classes.items() if place[-1:] == (_Scope(qualifier),)])
    if source.text(index - 1) in (".", "->"):
        return 0
    for length in range(len(path), -1, -1):
        if path[:length] in classes:
            return classes[path[:length]]
    used = {source.text(at + 2) for at in source.places("using") if source.text(at + 1) == "namespace"}
    used |= {source.text(at + 1) for at in source.places("using") if source.text(at + 2) == "::"}
    return _only([number for place, number in classes.items() if place and place[-1].name in used])


def _only(numbers: Sequence[int]) -> int:
    return numbers[0] if len(numbers) == 1 else 0
