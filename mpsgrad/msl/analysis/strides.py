"""Loops in which each thread has its own elements, at the same distance from each other for all threads.

Of ``for (uint i = t; i < n; i += size)`` a compiler knows in no turn but the first that neighbouring threads have
neighbouring ``i``. As the sum of what the loop began with and of all the steps since, which threads agree about, ``i``
shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.positions import changes
from mpsgrad.msl.analysis.source import Function, Source, Variable
from mpsgrad.msl.analysis.statements import Range
from mpsgrad.msl.analysis.types import INTEGERS
from mpsgrad.msl.tokens import ASSIGNMENTS, Token


class Stride(NamedTuple):
    """The head of ``for (uint i = first; condition; i += step)``: both tokens ``i``, and what begins the condition and
    what ends both parts before it."""

    name: Token
    declared: Token
    condition: Token
    tested: Token
    stepped: Token


def strides_of(source: Source, function: Function) -> Iterator[tuple[Variable, Stride]]:
    """The loops of ``function`` with such a head whose variable, one of 32 bits, gets no other value."""
    for each in source.statements.deciding("for", start=function.body_open, end=function.body_close):
        clauses = source.statements.clauses(each.condition)
        if len(clauses) == 3 and all(start < end for start, end in clauses):
            found = _stride(source, *clauses)
            if found is not None:
                yield found


def _stride(source: Source, first: Range, condition: Range, step: Range) -> tuple[Variable, Stride] | None:
    variable = source.variable(source.text(step[0]), step[0])
    if variable is None or variable.initialiser is None or variable.initialiser[1] != first[1]:
        return None
    is_declared_here = first[0] < variable.place < first[1] and "," not in source.texts[slice(*first)]
    is_number = variable.type is not None and variable.type.is_scalar and variable.type.base in ("int", "uint")
    if not (is_declared_here and is_number) or source.text(step[0] + 1) != "+=":
        return None
    if not ASSIGNMENTS.isdisjoint(source.texts[slice(*condition)]) or "," in source.texts[slice(*step)]:
        return None
    distance = expressions_of(source).type_of(step[0] + 2, step[1])
    if distance is None or not distance.is_scalar or distance.base not in INTEGERS:
        return None
    if variable.name in source.texts[step[0] + 1 : step[1]] or changes(source, variable, step[0]):
        return None
    tokens = source.tokens
    places = (variable.place, first[1], condition[0], condition[1], step[0])
    return variable, Stride(*(tokens[index] for index in places))
