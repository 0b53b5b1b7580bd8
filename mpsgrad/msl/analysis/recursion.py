"""Functions that call themselves, as far as names and the types of arguments tell."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.source import Function, Source
from mpsgrad.msl.analysis.types import Type, read_type
from mpsgrad.msl.tokens import IDENTIFIER, matching_angle, split_commas

_LIBRARY_NAMESPACES = ("metal", "fast", "precise")


def recursive_calls(source: Source, library: Collection[str]) -> Iterator[int]:
    """Where a function is called that thereby calls itself, the first place for each: the indices of the name.

    Leaves out what is ``constexpr``, which may be done by the compiler, names of ``library``, templates that may be
    another one at each call, and calls of overloaded functions unless the types of all arguments are those of the
    caller's own parameters.
    """
    found = set()
    plain = {
        name: functions[0]
        for name, functions in source.functions_by_name.items()
        if len(functions) == 1 and functions[0].owner is None and functions[0].kernel is None
        if name not in library
        and len(source.program.functions.get(name, ())) <= 1
        and _may_recurse(source, functions[0])
    }
    calls: dict[str, list[tuple[int, str]]] = {}
    for name, function in plain.items():
        count = len(source.arguments(function.opening))
        calls[name] = []
        for index in source.places(*plain, start=function.body_open, end=function.body_close):
            called = source.text(index)
            is_call = _is_call(source, index, plain[called]) and source.variable(called, index) is None
            if is_call and (called != name or _count(source, index) == count):
                calls[name].append((index, called))
    for name in plain:
        if name in _reached(calls, name):
            places = (index for index, called in calls[name] if called == name or name in _reached(calls, called))
            found.update([next(places)])
    for function in source.functions:
        place = None
        if function.owner is not None:
            place = _call_of_own_member(source, function)
        elif function.kernel is None and function.name not in library and function.name not in plain:
            place = _call_of_own_overload(source, function)
        if place is not None:
            found.add(place)
    yield from sorted(found)


def _may_recurse(source: Source, function: Function) -> bool:
    """Whether a function that calls one of its name calls itself: no other instance of a template, say."""
    if (
        "constexpr" in source.texts[function.start : function.opening]
        or source.kind(function.opening - 1) != IDENTIFIER
    ):
        return False
    if not function.is_template:
        return True
    words = source.texts[function.opening : function.body_close]
    return "constexpr" not in words and "..." not in words and function.name not in _specialised(source)


def _specialised(source: Source) -> frozenset[str]:
    """The names of functions of which the program has specialisations: ``template <> int f<0>(int n)``."""

    def found() -> frozenset[str]:
        names = set()
        for function in source.functions_by_name.get(">", ()):
            opening = function.opening - 1
            while opening > function.start and source.text(opening) != "<":
                opening -= 1
            names.add(source.text(opening - 1))
        return frozenset(names)

    return source.keep(_specialised, found)


def _is_call(source: Source, index: int, called: Function) -> bool:
    """Whether the free function ``called`` is called at ``index``, a template as the instance that the caller is."""
    if source.text(index - 1) in (".", "->"):
        return False
    if source.text(index - 1) == "::" and source.text(index - 2) in _LIBRARY_NAMESPACES:
        return False
    if source.text(index + 1) == "(":
        return True
    close = matching_angle(source.tokens, index + 1) if called.is_template and source.text(index + 1) == "<" else None
    if close is None or source.text(close + 1) != "(":
        return False
    # Numbers count down in such calls; types are handed on.
    arguments = split_commas(source.tokens[index + 2 : close])
    return all(len(part) == 1 and part[0].kind == IDENTIFIER for part in arguments)


def _count(source: Source, index: int) -> int:
    """The number of arguments of the call at ``index``."""
    opening = index + 1
    if source.text(opening) == "<":
        opening = (matching_angle(source.tokens, opening) or opening) + 1
    return len(source.arguments(opening))


def _reached(calls: dict[str, list[tuple[int, str]]], start: str) -> set[str]:
    """The names of what is called from ``start`` on."""
    reached: set[str] = set()
    todo = [start]
    while todo:
        for _, called in calls[todo.pop()]:
            if called not in reached:
                reached.add(called)
                todo.append(called)
    return reached


def _call_of_own_member(source: Source, function: Function) -> int | None:
    name, owner = function.name, function.owner
    if len(source.methods.get(owner or "", {}).get(name, ())) != 1 or not _may_recurse(source, function):
        return None
    count = len(source.arguments(function.opening))
    for index in source.places(name, start=function.body_open, end=function.body_close):
        variable = source.variable(name, index)
        before = source.text(index - 1)
        is_own = variable is None or variable.place == function.opening - 1
        is_own = is_own and before not in (".", "->", "::") or before == "->" and source.text(index - 2) == "this"
        if source.text(index + 1) == "(" and is_own and _count(source, index) == count:
            return index
    return None


def _call_of_own_overload(source: Source, function: Function) -> int | None:
    if function.is_template or not _may_recurse(source, function):
        return None
    parameters = [_parameter_type(source, *part) for part in source.arguments(function.opening)]
    if any(kind is None or kind.pointers or not kind.known for kind in parameters):
        return None
    expressions = expressions_of(source)
    for index in source.places(function.name, start=function.body_open, end=function.body_close):
        if source.text(index - 1) in (".", "->", "::") or source.text(index + 1) != "(":
            continue
        if source.variable(function.name, index) is not None:
            continue
        given = [expressions.type_of(*part) for part in source.arguments(index + 1)]
        if [kind.value if kind is not None else None for kind in given] == parameters:
            return index
    return None


def _parameter_type(source: Source, start: int, end: int) -> Type | None:
    read = read_type(source.tokens, start, end, source.aliases, source.members)
    return read[0].value if read is not None and read[1] >= end - 1 else None
