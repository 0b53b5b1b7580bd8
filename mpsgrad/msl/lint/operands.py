"""Rule 57: operators have operands that they can take."""

from __future__ import annotations

from collections.abc import Iterator

from mpsgrad.msl.analysis.expressions import Expressions, expressions_of
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.types import FLOATS, SIZES, Type
from mpsgrad.msl.lint.library import LIBRARY_FUNCTIONS
from mpsgrad.msl.lint.rule import Found, rule
from mpsgrad.msl.lint.statements import object_before
from mpsgrad.msl.tokens import IDENTIFIER

_BYTES = frozenset({"char", "uchar"})
_BEFORE_OPERANDS = frozenset("= ( , + - / return ? << >> += -= *= /= && ||".split())


@rule(
    57,
    "operand",
    words="member reference type 'device S *' is a pointer; did you mean to use '->'?",
    why="Pointers convert to no other pointers, have no members, indices are integers, and calls fit their functions.",
)
def operands_fit(source: Source) -> Iterator[Found]:
    """Sees initialisations, members, subscripts and calls of variables whose types are written out or follow from such,
    and how many arguments functions get that are neither overloaded nor have defaults; templates and classes with
    operators are left to the compiler."""
    expressions = expressions_of(source)
    yield from _pointers(source, expressions)
    yield from _members(source, expressions)
    yield from _subscripts(source, expressions)
    yield from _called(source, expressions)
    yield from _counted(source)


def _pointers(source: Source, expressions: Expressions) -> Iterator[Found]:
    for variables in source.variables.values():
        for variable in variables:
            target = variable.type
            if target is None or variable.initialiser is None or variable.extents or variable.is_reference:
                continue
            value = expressions.type_of(*variable.initialiser)
            if value is not None and not _may_point(target, value):
                message = f"cannot initialize a variable of type '{target}' with an expression of type '{value}'"
                yield source.tokens[variable.place], message


def _may_point(target: Type, value: Type) -> bool:
    """Whether ``value`` converts to ``target`` as far as pointers go; True where it is not certain."""
    if target.pointers > 1 or value.pointers > 1 or not target.known or not value.known or value.pointers == 0:
        return True
    if target.base not in SIZES or value.base not in SIZES:
        return True
    if not target.pointers:
        return not target.is_scalar or target.base == "bool"
    if (target.width, target.columns, target.packed) != (value.width, value.columns, value.packed):
        return False
    if target.base != value.base and not {target.base, value.base} <= _BYTES:
        return False
    return target.const or not value.const or target.space == "constant"


def _members(source: Source, expressions: Expressions) -> Iterator[Found]:
    for index in source.places(".", "->"):
        if source.kind(index + 1) != IDENTIFIER or not source.in_body(index) or source.text(index + 1) == "template":
            continue
        kind = object_before(source, expressions, index)
        if kind is None or not kind.known:
            continue
        place, is_arrow = source.tokens[index], source.text(index) == "->"
        if not is_arrow and kind.pointers == 1 and (kind.base in source.members or kind.base in SIZES):
            yield place, f"member reference type '{kind}' is a pointer; did you mean to use '->'?"
        elif is_arrow and not kind.pointers and kind.base in source.members and not _has_arrow(source, kind.base):
            yield place, f"member reference type '{kind}' is not a pointer; did you mean to use '.'?"
        elif kind.is_scalar and kind.base != "bfloat":
            yield place, f"member reference base type '{kind}' is not a structure or union"


def _has_arrow(source: Source, name: str) -> bool:
    start, end, _ = source.struct_bodies[name][0]
    return any(source.text(index - 1) == "operator" for index in source.places("->", start=start, end=end))


def _subscripts(source: Source, expressions: Expressions) -> Iterator[Found]:
    for index in source.places("["):
        close = source.close(index)
        if close < 0 or not source.in_body(index) or source.text(index + 1) == "[" or source.kind(index - 1) == "":
            continue
        start = source.chain_start(index)
        if source.kind(start) != IDENTIFIER or source.text(start - 1) == "::":
            continue
        subscripted = expressions.type_of(start, index)
        if subscripted is None or not (subscripted.pointers or subscripted.base in SIZES):
            continue
        by = expressions.type_of(index + 1, close)
        if by is None or by.pointers or by.base not in SIZES:
            continue
        if by.is_vector or by.columns or by.base in FLOATS:
            yield source.tokens[index], f"array subscript is not an integer: it is '{by}'"
        elif subscripted.is_scalar:
            yield source.tokens[index], f"subscripted value is not an array, pointer, or vector: it is '{subscripted}'"


def _called(source: Source, expressions: Expressions) -> Iterator[Found]:
    initialisers = [each for each in source.program.implicit if source.text(each[0]) == ")"]
    for opening in source.places("(", start=2):
        name = opening - 1
        if source.kind(name) != IDENTIFIER or not source.in_body(name):
            continue
        if any(start < name < end for start, end in initialisers):
            continue
        if source.text(name - 1) not in _BEFORE_OPERANDS:
            continue
        variable = source.variable(source.text(name), name)
        if variable is None or source.text(variable.place + 1) == "(":
            continue
        kind = expressions.variable_type(variable)
        if kind is not None and (kind.is_scalar or kind.is_vector) and kind.base in SIZES:
            yield source.tokens[name], f"called object type '{kind}' is not a function or function pointer"


def _counted(source: Source) -> Iterator[Found]:
    """Calls of functions that are not overloaded with more or fewer arguments than they take."""
    taken = {name: _parameter_count(source, name) for name in source.functions_by_name}
    for index in source.calls(name for name, count in taken.items() if count is not None):
        name = source.text(index)
        if not source.in_body(index) or source.text(index - 1) == "::" or source.variable(name, index) is not None:
            continue
        given = len(source.arguments(index + 1))
        if given != taken[name]:
            takes = f"{taken[name]} argument{'s' * (taken[name] != 1)}"
            message = f"no matching function for call to '{name}': it takes {takes}, not {given}"
            yield source.tokens[index], message


def _parameter_count(source: Source, name: str) -> int | None:
    """How many arguments all calls of ``name`` have; None unless one function that is no template has this name."""
    function, *others = source.functions_by_name[name]
    if others or function.owner is not None or function.is_template or name in LIBRARY_FUNCTIONS:
        return None
    if [place for place in source.places(name) if not source.in_body(place)] != [function.opening - 1]:
        return None
    head = source.texts[function.opening : function.closing]
    if "..." in head or "=" in head or head[1:] == ["void"]:
        return None
    return len(source.arguments(function.opening))
