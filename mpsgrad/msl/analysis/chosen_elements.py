"""Elements of threads' vectors that are written by an index about which threads may disagree.

Where all threads that run abreast have the same vector and the same new element, Intel's vectorizer takes it that they
have the same vector afterwards, too: the index of the first thread counts for all. After ``float3 v = 0;`` and
``v[i % 3] = 1;`` sums and products of ``v`` were those of 1, 0, 0. With an element that might differ among them each
has a vector of its own.

A truth value as an index is one bit, which the vectorizer takes for the sign of a number.
"""

from __future__ import annotations

from typing import NamedTuple

from mpsgrad.msl.analysis.defined_values import defined_values
from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.program import SHARED_SPACES
from mpsgrad.msl.tokens import ASSIGNMENTS, IDENTIFIER, Span, Token

_STEPS = frozenset({"++", "--"})


class Step(NamedTuple):
    """``++`` or ``--`` at ``sign``, applied to the ``element``, of the ``type`` by that name if it is known.

    What stands behind both is ``behind``.
    """

    sign: Token
    element: Span
    behind: Token
    is_prefix: bool
    type: str


class ChosenElements(NamedTuple):
    """The new elements that are assigned, those that are counted up or down, and indices that may be truth values."""

    assigned: list[Span]
    stepped: list[Step]
    indices: list[Span]


def chosen_elements(source: Source) -> ChosenElements:
    """All of a program."""
    found = ChosenElements([], [], [])
    values, expressions = defined_values(source), expressions_of(source)
    tokens = source.tokens
    for opening in source.places("["):
        closing = source.close(opening)
        if not source.in_body(opening) or closing < 0 or values.is_fixed((opening + 1, closing)):
            continue
        kind = values.base(opening)
        if kind is None:
            if not _may_be_vector_of_template(source, opening):
                continue
        elif not kind.is_vector or kind.packed:
            continue
        else:
            index = expressions.type_of(opening + 1, closing)
            if index is None or index.base == "bool":
                found.indices.append(Span(tokens[opening + 1], tokens[closing]))
        if kind is not None and kind.space in SHARED_SPACES:
            continue
        if source.text(closing + 1) not in ASSIGNMENTS:
            step = _step(source, opening, kind.base if kind is not None else "")
            found.stepped.extend([] if step is None else [step])
        elif source.text(closing + 2) != "{":
            found.assigned.append(Span(tokens[closing + 2], tokens[source.expression_end(closing + 2)]))
    return found


def _step(source: Source, opening: int, name: str) -> Step | None:
    """What counts the element of the bracket at ``opening``, of the type by that ``name``, if anything does."""
    tokens, behind = source.tokens, source.close(opening) + 1
    start = source.chain_start(opening)
    start = source.close(start) if source.text(start) == ")" else start
    element = Span(tokens[start], tokens[behind])
    if source.text(behind) in _STEPS:
        return Step(tokens[behind], element, tokens[behind + 1], False, name)
    before = source.kind(start - 2) == IDENTIFIER and source.text(start - 2) != "return"
    if source.text(start - 1) in _STEPS and not before and source.text(start - 2) not in (")", "]"):
        return Step(tokens[start - 1], element, tokens[behind], True, name)
    return None


def _may_be_vector_of_template(source: Source, opening: int) -> bool:
    """Whether what stands before the bracket may be a vector whose type depends on a template's arguments."""
    start = source.chain_start(opening)
    variable = source.variable(source.text(start), start)
    if variable is not None and start == opening - 1:
        is_object = not variable.extents and "*" not in source.words_before(variable.place, "(")
        if not is_object:
            return False
    return any(
        function.is_template and function.body_open < opening < function.body_close for function in source.functions
    )
