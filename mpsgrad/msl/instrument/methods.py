"""Which functions get checks, the classes that they belong to, and the members that these name."""

from __future__ import annotations

from collections.abc import Iterator

from mpsgrad.msl.analysis.calls import name_place
from mpsgrad.msl.analysis.source import Function, Source
from mpsgrad.msl.tokens import IDENTIFIER, matching_angle

_CLASS_WORDS = frozenset({"struct", "class", "union"})


def owner_of(source: Source, function: Function) -> str | None:
    """The class of a function that is a member, also where it is defined outside of it; empty for a union's."""
    if function.owner is not None or function.kernel is not None:
        return function.owner
    place = name_place(function)
    if source.text(place - 1) != "::":
        return None
    place -= 2
    if source.text(place) == ">":
        openings = source.places("<", start=function.start, end=place)
        matching = [index for index in openings if matching_angle(source.tokens, index) == place]
        if not matching:
            return None
        place = matching[0] - 1
    name = source.text(place)
    return name if name in source.struct_bodies else None


def is_constructor(source: Source, function: Function) -> bool:
    return owner_of(source, function) == function.name != "" and source.text(function.opening - 2) != "~"


def gets_checks(source: Source, function: Function) -> bool:
    """Whether checks are put into a function: into one that the compiler may call only if it may access memory that
    they know, other than to read what is its thread's own."""
    if not source.places("constexpr", start=function.start, end=function.opening):
        return True
    parameters = [set(source.texts[start:end]) for start, end in source.arguments(function.opening)]
    return any(
        words & {"device", "threadgroup"} or ("thread" in words and "const" not in words) for words in parameters
    )


def has_followed_methods(source: Source, name: str) -> bool:
    """Whether all methods of this name have checks where they read and write the members of their object."""
    return source.keep((has_followed_methods, name), lambda: _has_followed_methods(source, name))


def _has_followed_methods(source: Source, name: str) -> bool:
    owners = [(each, owner_of(source, each)) for each in source.functions_by_name.get(name, ())]
    methods = [(each, owner) for each, owner in owners if owner is not None]
    return bool(methods) and all(
        gets_checks(source, each) and is_known(source, owner, frozenset()) for each, owner in methods
    )


def is_known(source: Source, owner: str, below: frozenset[str]) -> bool:
    """Whether the members of a class, those of its bases included, are known by name."""
    bodies = source.struct_bodies.get(owner, ())
    return bool(bodies) and all(
        base not in below and is_known(source, base, below | {owner})
        for start, _, _ in bodies
        for base in _bases(source, start)
    )


def _bases(source: Source, opening: int) -> Iterator[str]:
    """The names of the classes between a class's colon and the bracket of its body at ``opening``."""
    start = opening - 1
    while start > 0 and source.text(start) not in (":", ";", "}", "{") and source.text(start) not in _CLASS_WORDS:
        start -= 1
    if source.text(start) != ":":
        return
    depth = 0
    for index in range(start + 1, opening):
        depth += {"<": 1, ">": -1, ">>": -2}.get(source.text(index), 0)
        if depth == 0 and source.text(index + 1) in (",", "<", "{") and source.kind(index) == IDENTIFIER:
            yield source.text(index)


def members_of(source: Source, owner: str, below: frozenset[str] = frozenset()) -> Iterator[tuple[str, bool]]:
    """The names of a class's data members, those of its bases and of unions without a name too, and whether each object
    has one."""
    for start, end, _ in source.struct_bodies.get(owner, ()):
        for base in _bases(source, start):
            if base not in below:
                yield from members_of(source, base, below | {owner})
        yield from _members_between(source, start, end, owner)


def _members_between(source: Source, start: int, end: int, owner: str) -> Iterator[tuple[str, bool]]:
    for variable in source.declarations_between(start, end, depth_limit=True):
        # A constructor looks like a variable of that name.
        if variable.name != owner:
            yield variable.name, {"static", "constexpr"}.isdisjoint(source.words_before(variable.place, ":"))
    for opening in source.places("{", start=start + 1, end=end):
        close = source.close(opening)
        if source.text(opening - 1) in _CLASS_WORDS and source.text(close + 1) == ";":
            yield from _members_between(source, opening, close, owner)


def holds_references(source: Source, owner: str) -> bool:
    """Whether objects of a class may hold references, as far as its body tells."""
    return any(
        source.kind(k + 1) == IDENTIFIER and source.text(k + 2) in (";", ",")
        for start, end, _ in source.struct_bodies.get(owner, ())
        for k in source.places("&", start=start, end=end)
    )
