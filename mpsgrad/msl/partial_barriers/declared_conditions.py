"""Conditions that declare a variable, with the declaration as a statement of its own.

``while (T x = e) S`` is ``while (true) { T x = e; if (!(x)) break; S }``, a ``for`` likewise unless its last clause
names ``x``, and ``if (T x = e) S`` and ``switch`` are the same behind ``T x = e;``, as behind what stands before a
semicolon in their brackets.
"""

from __future__ import annotations

from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.statements import LOOPS, Range, Statement, declared_in_condition
from mpsgrad.msl.edits import Edits
from mpsgrad.msl.tokens import Token, made_at


def without_declared_conditions(source: Source) -> list[Token] | None:
    """The tokens of a program whose conditions declare nothing; None if it has no other ones."""
    edits = Edits(source.tokens)
    for each in source.statements.deciding("while", "for", "if", "switch"):
        if not each.parts or each.is_constexpr:
            continue
        head = _head(source, each)
        if head is None:
            continue
        outside, (start, end), condition, inside = head
        edits.before(each.start, *outside)
        edits.replace_range(start, end, *condition)
        edits.before(each.parts[0][0], *inside)
        edits.after(each.end - 1, *made_at(source.tokens[each.word], "}"))
    return None if edits.is_empty else edits.applied()


def _head(
    source: Source, statement: Statement
) -> tuple[list[Token], Range, list[Token], list[Token]] | None:
    """What stands before the statement, what of its brackets is replaced by what, and what stands before its body; None
    if all may stay."""
    clauses = source.statements.clauses(statement.condition)
    place, tokens = source.tokens[statement.word], source.tokens
    is_for = tokens[statement.word].text == "for"
    if is_for and len(clauses) != 3:
        return None
    *first, (start, end) = clauses[:2] if is_for else clauses
    name = declared_in_condition(source, start, end)
    if name is None and (is_for or not first):
        return None
    condition = tokens[start:end] if name is None else [tokens[name].at(place)]
    declared = [] if name is None else [*tokens[start:end], *made_at(place, ";")]
    if is_for and name is not None and tokens[name].text in source.texts[slice(*clauses[2])]:
        return None
    if tokens[statement.word].text in LOOPS:
        leave = [*made_at(place, "if", "(", "!", "("), *condition, *made_at(place, ")", ")", "break", ";")]
        return [], (start, end), made_at(place, "true"), [*made_at(place, "{"), *declared, *leave]
    outside = made_at(place, "{")
    for begin, stop in first:
        outside += [*tokens[begin:stop], *made_at(place, ";")]
    return [*outside, *declared], statement.condition, condition, []
