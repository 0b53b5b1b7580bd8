"""Where numbers with a fraction become integers: Metal makes 0 of NaN, C++ leaves open what it and others become."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.types import FLOATS, INTEGERS, Type, built_in, read_type
from mpsgrad.msl.expressions import VectorTypes, begins_operand
from mpsgrad.msl.tokens import NUMBER


class Conversion(NamedTuple):
    """The tokens of a value that becomes an integer, and the type that it becomes."""

    start: int
    end: int
    type: str


def conversions(source: Source, types: VectorTypes) -> Iterator[Conversion]:
    """The conversions of what has, or in a template may have, a fraction: casts, initialisers and assignments."""
    templates = [(one.body_open, one.body_close) for one in source.functions if one.is_template]
    templates += [(start, close) for bodies in source.struct_bodies.values() for start, close, _ in bodies]
    for found in (*_casts(source, types), *_initialised(source), *_assigned(source)):
        if found.end - found.start == 1 and source.kind(found.start) == NUMBER:
            continue
        kind = expressions_of(source).type_of(found.start, found.end)
        if kind is None:
            if found.is_cast and any(start < found.start < close for start, close in templates):
                yield Conversion(found.start, found.end, found.type)
        elif kind.is_scalar and kind.base in FLOATS:
            yield Conversion(found.start, found.end, found.type)


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
        if close < index + 2:
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
        start = index - 1
        while True:
            if source.text(start) == "]" and source.close(start) >= 0:
                start = source.close(start) - 1
            elif source.text(start - 1) in (".", "->"):
                start -= 2
            else:
                break
        if source.text(start - 1) not in (";", "{", "}", ")"):
            continue
        name = _integer(expressions_of(source).type_of(start, index))
        if name is not None:
            yield _Candidate(index + 1, source.expression_end(index + 1), name, False)


def _integer(kind: Type | None) -> str | None:
    is_integer = kind is not None and kind.is_scalar and kind.base in INTEGERS and kind.base != "bool"
    return kind.base if is_integer and kind is not None else None
