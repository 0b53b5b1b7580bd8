"""Functions as arguments of functions: ``float twice(float (*f)(float), float x) { return f(f(x)); }``.

Neither target has function pointers. ``f`` gets a type of its own, one more parameter of the function's template, and a
call ``f(x)`` becomes ``type::call_mtl(x)``. At a call ``twice(square, x)`` the argument is an object of a struct whose
``call_mtl`` calls ``square`` with whatever it is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.tokens import IDENTIFIER, OPENING, Token, matching, matching_angle, split_commas, tokenize_lines

CALL = f"call{RENAMED_SUFFIX}"
_A = f"a{RENAMED_SUFFIX}"
_NO_SCOPES = frozenset({"namespace", "extern"})


@dataclass(slots=True)
class _Function:
    """A function that takes others. ``start`` begins its declaration, of which ``template`` is the last ``>`` of the
    template's parameters if it is one; ``pointers`` has the ranges and the names of the parameters that are functions,
    by their positions. The ``body`` of a prototype is empty."""

    name: int
    start: int
    template: int | None
    body: range
    pointers: dict[int, tuple[int, int, str]] = field(default_factory=dict)


def functions_as_types(tokens: list[Token]) -> list[Token]:
    """``tokens`` with types in the place of parameters that are pointers to functions, where these have a body."""
    functions = list(_functions(tokens))
    if not functions:
        return tokens
    edits: list[tuple[int, int, str]] = []
    for function in functions:
        edits += _taking(tokens, function)
    edits += _passing(tokens, functions)
    result: list[Token] = []
    position = 0
    for start, end, text in sorted(edits, key=lambda edit: edit[:2]):
        result += tokens[position:start]
        place = tokens[min(start, len(tokens) - 1)]
        result += [token.at(place) for line in tokenize_lines(text, "") for token in line]
        position = end
    return result + tokens[position:]


def parameters_that_are_functions(tokens: Sequence[Token]) -> frozenset[int]:
    """Where ``(*name)(`` begins in ``tokens`` of those parameters that ``functions_as_types`` makes types of."""
    ranges = [range(start, end) for each in _functions(tokens) for start, end, _ in each.pointers.values()]
    return frozenset(index for each in ranges for index in each if _is_pointer(tokens, index))


def _functions(tokens: Sequence[Token]) -> Iterator[_Function]:
    """The functions that take a pointer to a function, and have a body somewhere."""
    openers: list[int] = []
    found: dict[int, _Function | None] = {}
    for index, token in enumerate(tokens):
        if token.text in (")", "]", "}") and openers:
            openers.pop()
        if token.text not in OPENING:
            continue
        if _is_pointer(tokens, index) and openers and tokens[openers[-1]].text == "(":
            opening = openers[-1]
            if opening not in found:
                found[opening] = _function(tokens, opening)
        openers.append(index)
    functions = [each for each in found.values() if each is not None]
    defined = {(tokens[each.name].text, *each.pointers) for each in functions if each.body}
    yield from (each for each in functions if (tokens[each.name].text, *each.pointers) in defined)


def _is_pointer(tokens: Sequence[Token], index: int) -> bool:
    """Whether ``(*name)(`` begins at ``index``, or the same without a name, as prototypes have it."""
    if index + 4 >= len(tokens) or tokens[index + 1].text != "*" or tokens[index].text != "(":
        return False
    behind = index + 2 + _is_name(tokens[index + 2])
    return (tokens[behind].text, tokens[behind + 1].text) == (")", "(")


def _is_name(token: Token) -> bool:
    return token.kind == IDENTIFIER


def _function(tokens: Sequence[Token], opening: int) -> _Function | None:
    """The function whose parameters begin at ``opening``, if one is defined or declared there."""
    close = matching(tokens, opening)
    body = close + 1
    while body < len(tokens) and tokens[body].text in ("const", "thread", "device", "constant", "threadgroup"):
        body += 1
    if not _is_name(tokens[opening - 1]) or body >= len(tokens) or tokens[body].text not in ("{", ";"):
        return None
    start = opening - 1
    while start and tokens[start - 1].text not in (";", "{", "}", ":"):
        start -= 1
    template = matching_angle(tokens, start + 1, certain=True) if tokens[start].text == "template" else None
    if tokens[start].text == "template" and (template is None or tokens[template].text != ">"):
        return None
    if any(token.text == "kernel" for token in tokens[start:opening]):
        return None
    end = matching(tokens, body) if tokens[body].text == "{" else body
    function = _Function(opening - 1, start, template, range(body, end))
    place = opening + 1
    for position, part in enumerate(split_commas(tokens[place:close])):
        star = next((at for at in range(place, place + len(part)) if _is_pointer(tokens, at)), None)
        if star is not None:
            name = tokens[star + 2].text if _is_name(tokens[star + 2]) else f"unnamed_{position}"
            function.pointers[position] = place, place + len(part), name
        place += len(part) + 1
    return function


def _taking(tokens: Sequence[Token], function: _Function) -> Iterator[tuple[int, int, str]]:
    """What is to stand in the place of ranges of a function that takes others."""
    types = {name: f"{name}_type{RENAMED_SUFFIX}" for _, _, name in function.pointers.values()}
    listed = ", ".join(f"typename {kind}" for kind in types.values())
    if function.template is None:
        yield function.start, function.start, f"template <{listed}>"
    else:
        yield function.template, function.template, f", {listed}"
    for start, end, name in function.pointers.values():
        yield start, end, f"{types[name]} {name}_value{RENAMED_SUFFIX}"
    index = function.body.start
    while index < function.body.stop:
        name = tokens[index].text
        if _is_pointer(tokens, index) and tokens[index + 2].text in types:
            yield index, index + 4, f"{types[tokens[index + 2].text]}::{CALL}"
            index += 4
        elif name in types and tokens[index - 1].text not in (".", "->", "::"):
            called = tokens[index + 1].text == "("
            yield index, index + 1, f"{types[name]}::{CALL}" if called else f"{name}_value{RENAMED_SUFFIX}"
        index += 1


def _passing(tokens: Sequence[Token], functions: Sequence[_Function]) -> Iterator[tuple[int, int, str]]:
    """The structs for functions that are passed, and their objects in the place of the arguments."""
    positions: dict[str, set[int]] = {}
    for function in functions:
        positions.setdefault(tokens[function.name].text, set()).update(function.pointers)
    declared = {function.name for function in functions}
    structs: dict[tuple[str, str], str] = {}
    for index, token in enumerate(tokens[:-1]):
        if token.text not in positions or not _is_name(token) or index in declared:
            continue
        opening = index + 1
        if tokens[opening].text == "<":
            opening = (matching_angle(tokens, opening) or index) + 1
        if tokens[opening].text != "(":
            continue
        inner = {name for each in functions if index in each.body for _, _, name in each.pointers.values()}
        place = opening + 1
        for position, part in enumerate(split_commas(tokens[place : matching(tokens, opening)])):
            start, place = place, place + len(part) + 1
            argument = [each.text for each in part if each.text != "&"]
            if position not in positions[token.text] or not _names_function(part) or argument[0] in inner:
                continue
            scope, parameters = _scope(tokens, index)
            used = {name: text for name, text in parameters.items() if name in argument}
            head = f"template <{', '.join(used.values())}> " if used else ""
            key = " ".join(argument), head
            if key not in structs:
                structs[key] = f"passed_{len(structs) + 1}{RENAMED_SUFFIX}"
                call = f"static inline auto {CALL}({_A} &&...values) {{ return {key[0]}(values...); }}"
                yield scope, scope, f"{head}struct {structs[key]} {{ template <typename... {_A}> {call} }};"
            yield start, start + len(part), structs[key] + (f"<{', '.join(used)}>" if used else "") + "{}"


def _names_function(argument: Sequence[Token]) -> bool:
    """Whether ``argument`` may be the name of a function: ``f``, ``&f``, ``space::f``, ``f<int>``."""
    rest = [token for token in argument if token.text != "&"]
    return bool(rest) and _is_name(rest[0]) and not {"(", "[", "{"} & {token.text for token in rest}


def _scope(tokens: Sequence[Token], index: int) -> tuple[int, dict[str, str]]:
    """Where the outermost declaration around ``index`` begins that is no namespace, and the parameters of the templates
    around it: their names, and how they are declared."""
    openers: list[int] = []
    for at in range(index):
        if tokens[at].text == "{":
            openers.append(at)
        elif tokens[at].text == "}" and openers:
            openers.pop()
    first, parameters = index, dict[str, str]()
    for opener in openers:
        start = opener
        while start and tokens[start - 1].text not in (";", "{", "}"):
            start -= 1
        if _NO_SCOPES & {token.text for token in tokens[start:opener]}:
            continue
        first = min(first, start)
        if tokens[start].text == "template":
            close = matching_angle(tokens, start + 1, certain=True) or start
            for part in split_commas(tokens[start + 2 : close]):
                kind = list(takewhile(lambda token: token.text != "=", part))
                parameters[kind[-1].text] = " ".join(token.text for token in kind)
    return first, parameters
