"""Where numbers with a fraction become integers: Metal makes 0 of NaN, C++ leaves open what it and others become."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.types import FLOATS, INTEGERS, Type, built_in, read_type
from mpsgrad.msl.backend import floating_literal
from mpsgrad.msl.expressions import VectorTypes, begins_operand
from mpsgrad.msl.library_marks import WHOLE_NUMBER
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, PUNCTUATION, Token, tokenize_lines

_COMPOUND = ("+=", "-=", "*=", "/=")
_IN_PLACES = frozenset({".", "->", "[", "]", "(", ")", "+", "-", "*", "&", "%"})


class Conversion(NamedTuple):
    """The tokens of a value that becomes an integer, and the type that it becomes."""

    start: int
    end: int
    type: str


def conversions(source: Source, types: VectorTypes) -> Iterator[Conversion]:
    """The conversions of what has, or in a template may have, a fraction: casts, initialisers, assignments, arguments
    and values that are returned."""
    templates = [(one.body_open, one.body_close) for one in source.functions if one.is_template]
    templates += [(start, close) for bodies in source.struct_bodies.values() for start, close, _ in bodies]
    plain = (*_initialised(source), *_assigned(source), *_returned(source), *_passed(source), *_components(source))
    for found in (*_casts(source, types), *plain):
        if found.end - found.start == 1 and _is_small(source.tokens[found.start]):
            continue
        kind = expressions_of(source).type_of(found.start, found.end)
        if kind is None:
            if found.is_cast and any(start < found.start < close for start, close in templates):
                yield Conversion(found.start, found.end, found.type)
        elif kind.is_scalar and kind.base in FLOATS:
            yield Conversion(found.start, found.end, found.type)


def _is_small(token: Token) -> bool:
    """Whether a literal is less than any integer type's end."""
    parts = floating_literal(token.text) if token.kind == NUMBER else None
    if parts is None or "x" in token.text.lower():
        return token.kind == NUMBER
    return float(parts[0]) < 128


class Change(NamedTuple):
    """The compound assignment at ``operator`` of what has a fraction to an integer of ``type``, from ``start`` to
    ``end``; what stands on its left may be read twice."""

    start: int
    operator: int
    end: int
    type: str


def changes(source: Source) -> Iterator[Change]:
    """The statements ``x += value;`` whose value has a fraction."""
    for index in source.places(*_COMPOUND):
        start = _assigned_place(source, index)
        name = None if start is None else _integer(expressions_of(source).type_of(start, index))
        if start is None or name is None or not _may_be_repeated(source, start, index):
            continue
        end = source.expression_end(index + 1)
        kind = expressions_of(source).type_of(index + 1, end)
        if kind is not None and kind.is_scalar and kind.base in FLOATS:
            yield Change(start, index, end, name)


def _may_be_repeated(source: Source, start: int, end: int) -> bool:
    """Whether what stands there calls nothing and changes nothing."""
    calls = [place for place in source.places("(", start=start + 1, end=end) if source.kind(place - 1) != PUNCTUATION]
    return not calls and all(
        source.text(place) in _IN_PLACES or source.kind(place) in (IDENTIFIER, NUMBER) for place in range(start, end)
    )


def converting(source: Source, types: VectorTypes) -> list[Token]:
    """The tokens of ``source`` with its conversions as calls."""
    opening: dict[int, str] = {}
    closing: dict[int, str] = {}
    for start, end, name in conversions(source, types):
        opening[start] = f"{WHOLE_NUMBER}<{name}>(0, " + opening.get(start, "")
        closing[end] = closing.get(end, "") + ")"
    made = []
    for index, token in enumerate(source.tokens):
        text = closing.get(index, "") + " " + opening.get(index, "")
        made += [each.at(token) for line in tokenize_lines(text, "") for each in line]
        made.append(token)
    return made


class _Candidate(NamedTuple):
    start: int
    end: int
    type: str
    is_cast: bool


def _casts(source: Source, types: VectorTypes) -> Iterator[_Candidate]:
    """``int(x)``, ``(int)x``, and ``static_cast<T>(x)`` also of a template's type."""
    tokens = source.tokens
    for index in source.places("("):
        close = source.close(index)
        # What is referred to may be an array: int (&rows)[4].
        if close < index + 2 or (source.text(index + 1) in ("&", "*") and source.text(close + 1) == "["):
            continue
        before = tokens[index - 1]
        name = _integer(built_in(before.text))
        if name is not None and len(source.arguments(index)) == 1 and source.text(index - 2) not in ("<", ","):
            yield _Candidate(index + 1, close, name, True)
        elif before.text == ">" and (named := _named_cast(source, types, index)) is not None:
            yield _Candidate(index + 1, close, named, True)
        elif close + 1 < len(tokens) and begins_operand(tokens, index, close + 1):
            read = read_type(tokens, index + 1, close, source.aliases, source.members)
            name = _integer(read[0]) if read is not None and read[1] == close else None
            if name is not None:
                yield _Candidate(close + 1, types.end_of_operand(tokens, close + 1), name, True)


def _named_cast(source: Source, types: VectorTypes, opening: int) -> str | None:
    """The type in ``static_cast<type>``, which ends before ``opening``, if it is an integer or a template's type."""
    start = opening - 2
    while start > 0 and source.text(start) not in ("<", ";", "("):
        start -= 1
    if source.text(start) != "<" or source.text(start - 1) != "static_cast":
        return None
    if start == opening - 3 and source.text(start + 1) in types.aliases:
        return source.text(start + 1)
    read = read_type(source.tokens, start + 1, opening - 1, source.aliases, source.members)
    return _integer(read[0]) if read is not None and read[1] == opening - 1 else None


def _initialised(source: Source) -> Iterator[_Candidate]:
    for variables in source.variables.values():
        for variable in variables:
            name = _integer(variable.type)
            if name is None or variable.extents or variable.is_reference or source.text(variable.place + 1) != "=":
                continue
            start = variable.place + 2
            yield _Candidate(start, source.expression_end(start), name, False)


def _assigned(source: Source) -> Iterator[_Candidate]:
    """``x = value;``, ``x[i] = value;`` and ``x.y = value;`` that are statements."""
    for index in source.places("="):
        start = _assigned_place(source, index)
        name = None if start is None else _integer(expressions_of(source).type_of(start, index))
        if name is not None:
            yield _Candidate(index + 1, source.expression_end(index + 1), name, False)


def _assigned_place(source: Source, index: int) -> int | None:
    """Where what the operator at ``index`` assigns to begins, if that begins a statement."""
    start = index - 1
    while True:
        if source.text(start) in ("]", ")") and source.close(start) >= 0:
            start = source.close(start)
            if source.text(start) == "[":
                start -= 1
                continue
        if source.text(start - 1) not in (".", "->"):
            break
        start -= 2
    while source.text(start - 1) == "*":
        start -= 1
    return start if source.text(start - 1) in (";", "{", "}", ")", "else") else None


def _returned(source: Source) -> Iterator[_Candidate]:
    for function in source.functions:
        name = _integer(source.return_type(function))
        if name is None:
            continue
        bodies_inside = _lambdas(source, function.body_open, function.body_close)
        for index in source.places("return", start=function.body_open, end=function.body_close):
            if not any(index in body for body in bodies_inside):
                yield _Candidate(index + 1, source.expression_end(index + 1), name, False)


def _lambdas(source: Source, start: int, end: int) -> list[range]:
    """The ranges from the brackets that begin lambda expressions to the end of their bodies."""
    found = []
    for index in source.places("[", start=start, end=end):
        behind = source.close(index) + 1
        if source.text(index - 1) in ("=", "(", ",", "return") and source.text(behind) in ("(", "{"):
            while source.text(behind) not in ("{", ""):
                behind = max(source.close(behind), behind) + 1
            found.append(range(index, source.close(behind)))
    return found


def _passed(source: Source) -> Iterator[_Candidate]:
    """The arguments of functions of which there is one by the name."""
    for _, kind, place, start, end in source.passed():
        name = _integer(kind) if source.kind(place) == IDENTIFIER else None
        if name is not None and source.text(place + 1) in (",", ")", "="):
            yield _Candidate(start, end, name, False)


def _components(source: Source) -> Iterator[_Candidate]:
    """The values that make a vector of integers."""
    for index in source.places("("):
        kind = built_in(source.text(index - 1))
        if kind is None or not kind.is_vector or _integer(Type(kind.base)) is None:
            continue
        given = source.arguments(index)
        if len(given) > 1:
            yield from (_Candidate(start, end, kind.base, False) for start, end in given)


def _integer(kind: Type | None) -> str | None:
    is_integer = kind is not None and kind.is_scalar and kind.base in INTEGERS and kind.base != "bool"
    return kind.base if is_integer and kind is not None else None
