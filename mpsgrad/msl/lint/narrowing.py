"""Rule 48: braces refuse values that may be lost, and arrays without elements."""

from __future__ import annotations

from collections.abc import Iterator

from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.types import FLOATS, INTEGERS, SIZES, Type
from mpsgrad.msl.lint.rule import Found, rule
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER


def _holds(integer: str, value: int) -> bool:
    """Whether an integer type has a value."""
    if integer == "bool":
        return value in (0, 1)
    bits = 8 * SIZES[integer] - (not integer.startswith("u"))
    return (0 if integer.startswith("u") else -(1 << bits)) <= value < 1 << bits


@rule(
    48,
    "narrowing",
    words="type 'float' cannot be narrowed to 'int' in initializer list",
    why="Braces refuse conversions that can lose a value, and an array has at least one element.",
)
def braces_do_not_narrow(source: Source) -> Iterator[Found]:
    """Sees what ``values_are_not_narrowed`` does, and arrays without elements."""
    tokens = source.tokens
    for bodies in source.struct_bodies.values():
        for start, close, _ in bodies:
            for index in source.places("[", start=start, end=close - 2):
                is_empty = source.text(index + 1) == "]" and source.text(index + 2) == ";"
                if is_empty and source.kind(index - 1) == IDENTIFIER:
                    yield tokens[index - 1], "flexible array members are not permitted in C++"
    for variables in source.variables.values():
        for variable in variables:
            kind = variable.type
            if kind is None or not kind.known or kind.base not in SIZES:
                continue
            if 0 in variable.extents:
                yield tokens[variable.place], "zero-length arrays are not permitted in C++"
    yield from values_are_not_narrowed(source)
    for index in source.words("struct", "union"):
        close = source.close(index + 1) if source.text(index + 1) == "{" else -1
        if close > 0 and source.text(close + 1) == ";" and source.text(index - 1) in (";", "}", ""):
            if not any(_ends_behind(source, p, close) for p in source.places("struct", "class", "union", end=index)):
                yield tokens[index], "anonymous structs and unions must be class members"


def values_are_not_narrowed(source: Source) -> Iterator[Found]:
    """Floating values and literals out of range in the braces of integers, and variables of types that hold more; the
    braces are those of variables, of temporaries of structs and of what functions return."""
    for variables in source.variables.values():
        for variable in variables:
            kind = variable.type
            if kind is None or not kind.known or kind.base not in SIZES or kind.pointers > len(variable.extents):
                continue
            opening = _brace_after(source, variable.place)
            if opening is not None:
                yield from _narrowed_components(source, kind, opening)
    yield from _narrowed_members(source)
    for function in source.functions:
        kind = source.return_type(function)
        if kind is None or kind.pointers:
            continue
        for index in source.places("return", start=function.body_open, end=function.body_close):
            if source.text(index + 1) == "{" and kind.base in SIZES:
                yield from _narrowed_components(source, kind, index + 1)
            elif source.text(index + 1) == "{":
                yield from _narrowed_to_members(source, kind, index + 1)


def _ends_behind(source: Source, index: int, close: int) -> bool:
    """Whether the class that is defined at ``index`` ends behind ``close``."""
    while source.text(index) not in ("{", ";", "(", ")", "=", ""):
        index += 1
    return source.text(index) == "{" and source.close(index) > close


def _narrowed_components(source: Source, kind: Type, opening: int) -> Iterator[Found]:
    """The values in the braces at ``opening`` that the elements of ``kind`` may not hold."""
    if not kind.columns:
        for start, end in source.arguments(opening):
            yield from _narrowed_value(source, Type(kind.base), start, end)


def _narrowed_value(source: Source, target: Type, start: int, end: int) -> Iterator[Found]:
    """The expression from ``start`` to ``end``, if a scalar of the type ``target`` may not hold its value."""
    value = expressions_of(source).type_of(start, end)
    token = source.tokens[start]
    if target.base in INTEGERS:
        if value is not None and value.is_scalar and value.base in FLOATS:
            yield token, f"type '{value}' cannot be narrowed to '{target}' in initializer list"
            return
        is_constant = source.kind(end - 1) == NUMBER and end <= start + 2
        constant = source.integer(source.tokens[start:end]) if is_constant else None
        if constant is not None and not _holds(target.base, constant):
            yield token, f"constant expression evaluates to {constant} which cannot be narrowed to type '{target}'"
    if _narrows(source, value, target, start, end):
        words = f"non-constant-expression cannot be narrowed from type '{value}' to '{target}'"
        yield token, f"{words} in initializer list"


def _narrows(source: Source, value: Type | None, target: Type, start: int, end: int) -> bool:
    """Whether a variable's value, or one that it leads to, may be none of ``target``: a constant's is known to the
    compiler."""
    variable = source.variable(source.text(start), start)
    if value is None or not value.is_scalar or variable is None or not _is_access(source, start, end):
        return False
    if variable.last >= len(source.tokens) or source.text(variable.first) == "template":
        return False
    leads_on = variable.is_reference or variable.type is not None and variable.type.pointers > len(variable.extents)
    if value.const if end == start + 1 else not leads_on:
        return False
    if "bool" in (target.base, value.base):
        return False
    if target.base in FLOATS:
        is_wider = SIZES[value.base] > SIZES[target.base]
        return value.base in INTEGERS or is_wider
    if value.base in FLOATS:
        return True
    bits = [8 * SIZES[kind.base] - (not kind.base.startswith("u")) for kind in (value, target)]
    return bits[0] > bits[1] or target.base.startswith("u") and not value.base.startswith("u")


def _is_access(source: Source, start: int, end: int) -> bool:
    """Whether an expression is a name, or what its members and subscripts lead to."""
    position = start + 1
    while position < end:
        if source.text(position) == "[" and source.close(position) > 0:
            position = source.close(position) + 1
        elif source.text(position) in (".", "->") and source.kind(position + 1) == IDENTIFIER:
            position += 2
        else:
            return False
    return source.kind(start) == IDENTIFIER


def _narrowed_members(source: Source) -> Iterator[Found]:
    """What the members of a struct or union may not hold in the braces of its variables and temporaries."""
    for variables in source.variables.values():
        for variable in variables:
            kind = variable.type
            opening = _brace_after(source, variable.place)
            if kind is None or opening is None or kind.pointers or variable.extents:
                continue
            yield from _narrowed_to_members(source, kind, opening)
    for index in source.words(*source.union_members):
        opening = _brace_after(source, index + 1) if source.text(index + 2) in ("=", "{") else None
        if opening is not None and source.kind(index + 1) == IDENTIFIER and source.in_body(index):
            yield from _narrowed_to_members(source, Type(source.text(index)), opening)
    for index in source.places("{", start=2):
        name = source.text(index - 1)
        is_class = name in source.members or name in source.union_members
        if is_class and source.text(index - 2) not in ("struct", "class", "union") and source.in_body(index):
            if source.variable(name, index) is None:
                yield from _narrowed_to_members(source, Type(name), index)


def _narrowed_to_members(source: Source, kind: Type, opening: int) -> Iterator[Found]:
    """The values in the braces at ``opening`` that the members of a struct, or the first of a union, may not hold."""
    entries = [*source.members.get(kind.base, {}).values()] or [*source.union_members.get(kind.base, {}).values()][:1]
    for (member, extents), (start, end) in zip(entries, source.arguments(opening), strict=False):
        is_list = source.text(start) == "{" and source.close(start) == end - 1
        if member is None or member.pointers > len(extents) or extents and not is_list:
            # From here on values without braces of their own may belong to any member.
            return
        if is_list and len(extents) < 2 and member.base in SIZES:
            yield from _narrowed_components(source, member, start)
        elif is_list and not extents:
            yield from _narrowed_to_members(source, member, start)
        elif member.is_scalar and not is_list:
            yield from _narrowed_value(source, Type(member.base), start, end)


def _brace_after(source: Source, name: int) -> int | None:
    """The index of the brace that opens the initialiser of the variable at ``name``."""
    index = name + 1
    while source.text(index) == "[" and source.close(index) > 0:
        index = source.close(index) + 1
    index += source.text(index) == "="
    return index if source.text(index) == "{" else None
