"""References to constant objects of a thread that are made for them: ``const thread T& name = f(x);`` keeps what ``f``
gives. In OpenCL no such reference is to a temporary object, but a constant object is the same."""

from __future__ import annotations

from collections.abc import Iterator

from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.choices import is_object_made
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER

_IN_TYPES = frozenset({"::", "<", ">", ","})


def lasting_temporaries(source: Source) -> Iterator[tuple[int, int]]:
    """Where ``thread`` and ``&`` stand in the declarations of such references."""
    for mark in source.places("&"):
        if source.kind(mark + 1) != IDENTIFIER or source.text(mark + 2) != "=" or not source.in_body(mark):
            continue
        start = mark
        while source.kind(start - 1) in (IDENTIFIER, NUMBER) or source.text(start - 1) in _IN_TYPES:
            start -= 1
        words = source.texts[start:mark]
        if source.text(start - 1) not in (";", "{", "}") or not {"const", "thread"} <= set(words) or "auto" in words:
            continue
        first, end = mark + 3, source.expression_end(mark + 3)
        is_number = end == first + 1 and source.kind(first) == NUMBER
        if source.text(end) == ";" and (is_number or is_object_made(source, first, end)):
            yield start + words.index("thread"), mark
