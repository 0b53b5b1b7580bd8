"""Where a program defines classes, and which of them copies the members of a union."""

from __future__ import annotations

from collections.abc import Iterator

from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.tokens import IDENTIFIER, skip_attributes

Extent = tuple[int, int]
"""The word that begins a class's definition, and the bracket that ends its body."""

_CLASSES = ("struct", "class", "union")


def class_bodies(source: Source) -> Iterator[Extent]:
    """The classes that ``source`` defines."""
    for index, token in enumerate(source.tokens):
        if token.text in _CLASSES and token.kind == IDENTIFIER:
            opening = name_place(source, index)
            while source.kind(opening) == IDENTIFIER or source.text(opening) in (":", "::"):
                opening += 1
            if source.text(opening) == "{" and source.close(opening) > opening:
                yield index, source.close(opening)


def name_place(source: Source, start: int) -> int:
    """The index of the name of the class whose definition begins at ``start``, or of its brace if it has none."""
    return skip_attributes(source.tokens, start + 1, len(source.tokens))


def owner_of_copies(source: Source, start: int, end: int) -> Extent | None:
    """The class that is copied where the union in this range is: itself, or what an anonymous one is a member of."""
    while _is_anonymous(source, start, end):
        around = [(first, last) for first, last in class_bodies(source) if first < start and last > end]
        if not around:
            return None
        start, end = around[-1]
    has_name = source.text(name_place(source, start)) != "{" or source.text(start - 1) == "typedef"
    return (start, end) if has_name else None


def _is_anonymous(source: Source, start: int, end: int) -> bool:
    return source.text(name_place(source, start)) == "{" and source.text(end + 1) == ";"
