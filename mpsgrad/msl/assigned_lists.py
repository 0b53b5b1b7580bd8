"""Lists in braces that objects are assigned whose class takes an ``initializer_list``: ``s = {a, b}``.

In C++ such a list is one without a conversion, which comes before making another object of the class to be copied. The
library's ``initializer_list`` is a class like others, so that a compiler could not tell which of the two is meant.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpsgrad.msl.analysis.expressions import Expressions
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.edits import Edits
from mpsgrad.msl.tokens import Token, matching_angle

_LIST = "initializer_list"
_BEFORE_STATEMENTS = frozenset({";", "{", "}", ")", "else", "do"})


def with_lists_by_name(source: Source) -> list[Token] | None:
    """The tokens of a program in which such lists are of the class that is taken; None if it has none."""
    lists = _lists_by_class(source)
    if not lists:
        return None
    edits = Edits(source.tokens)
    expressions = Expressions(source)
    for index in source.places("="):
        start = source.chain_start(index)
        if source.text(index + 1) != "{" or source.text(start - 1) not in _BEFORE_STATEMENTS:
            continue
        kind = expressions.type_of(start, index)
        if kind is not None and kind.base in lists and not kind.pointers:
            edits.before(index + 1, *(token.at(source.tokens[index]) for token in lists[kind.base]))
    return None if edits.is_empty else edits.applied()


def _lists_by_class(source: Source) -> dict[str, Sequence[Token]]:
    """The list that the objects of a class may be assigned, for classes that are no templates."""
    found: dict[str, Sequence[Token]] = {}
    for function in source.functions:
        is_assignment = [source.text(function.opening - 2), source.text(function.opening - 1)] == ["operator", "="]
        for place in source.places(_LIST, start=function.opening, end=function.closing) if is_assignment else ():
            closing = matching_angle(source.tokens, place + 1, certain=True)
            if closing is not None and function.owner is not None:
                found[function.owner] = source.tokens[place : closing + 1]
    return found
