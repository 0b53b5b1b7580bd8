"""Where a program defines classes, and which of them copies the members of a union."""

from __future__ import annotations

from collections.abc import Iterator

from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.tokens import IDENTIFIER

Extent = tuple[int, int]
"""The word that begins a class's definition, and the bracket that ends its body."""

_CLASSES = ("struct", "class", "union")


def class_bodies(source: Source) -> Iterator[Extent]:
    """The classes that ``source`` defines."""
    for index, token in enumerate(source.tokens):
        if token.text in _CLASSES and token.kind == IDENTIFIER:
            opening = index + 1
            while source.kind(opening) == IDENTIFIER or source.text(opening) in (":", "::"):
                opening += 1
            if source.text(opening) == "{" and source.close(opening) > opening:
                yield index, source.close(opening)


def owner_of_copies(source: Source, start: int, end: int) -> Extent | None:
    """The class that is copied where the union in this range is: itself, or what an anonymous one is a member of."""
    while _is_anonymous(source, start, end):
        around = [(first, last) for first, last in class_bodies(source) if first < start and last > end]
        if not around:
            return None
        start, end = around[-1]
    return (start, end) if source.text(start + 1) != "{" or source.text(start - 1) == "typedef" else None


def _is_anonymous(source: Source, start: int, end: int) -> bool:
    return source.text(start + 1) == "{" and source.text(end + 1) == ";"
