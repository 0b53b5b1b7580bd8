"""Rule 49: member functions and operators say where their object may live."""

from __future__ import annotations

from collections.abc import Iterator

from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.lint.rule import Found, rule
from mpsgrad.msl.lint.statements import object_before
from mpsgrad.msl.tokens import IDENTIFIER, PUNCTUATION


@rule(
    49,
    "member-function-space",
    words="no matching member function for call to 'f'",
    why="Inside a member function 'this' has an address space; without a qualifier behind its parameters it is thread.",
)
def member_functions_match_their_object(source: Source) -> Iterator[Found]:
    """Sees calls and operators on variables and elements whose struct is no template and has one function of that
    name."""
    yield from _operators_match_their_object(source)
    expressions = expressions_of(source)
    for index in source.places(".", "->"):
        token = source.tokens[index]
        if source.kind(index + 1) != IDENTIFIER or source.text(index + 2) != "(":
            continue
        kind = object_before(source, expressions, index)
        if kind is None or kind.base not in source.members:
            continue
        space = kind.space or _own_space(source, index)
        if space is None or kind.pointers != int(token.text == "->"):
            continue
        entries = source.methods.get(kind.base, {}).get(source.text(index + 1), [])
        if len(entries) != 1:
            continue
        place, words = entries[0]
        spaces = words & {"device", "constant", "threadgroup", "thread"}
        before = {source.text(position) for position in range(max(0, place - 8), place)}
        if kind.const and not words & {"const", "static"} and not {"static", "constexpr"} & before:
            message = f"'this' argument to member function '{source.text(index + 1)}' is const, but the function is not"
            yield source.tokens[index + 1], message
        elif space not in (spaces or {"thread"}) and "static" not in before:
            name = source.text(index + 1)
            message = f"no matching member function for call to '{name}': the object is in '{space}' address space"
            yield source.tokens[index + 1], message


_BEFORE_OPERANDS = (";", "{", "}", "=", "(", ",", "return")


def _operators_match_their_object(source: Source) -> Iterator[Found]:
    """Member operators of objects in an address space that their struct's operator does not name."""
    expressions = expressions_of(source)
    free, members = _operators(source)
    for operator, by_struct in members.items():
        # Copies are made by an assignment that each class has.
        for index in source.places(operator[0] if operator in ("()", "[]") else operator, start=1):
            if operator in free or operator == "=" or not source.in_body(index):
                continue
            if source.text(source.chain_start(index) - 1) not in _BEFORE_OPERANDS:
                continue
            kind = object_before(source, expressions, index)
            if kind is None or kind.pointers or kind.space is None or len(by_struct.get(kind.base, ())) != 1:
                continue
            spaces = by_struct[kind.base][0] & {"device", "constant", "threadgroup", "thread"}
            if kind.space not in (spaces or {"thread"}):
                message = f"no viable overloaded '{operator}': the object is in '{kind.space}' address space"
                yield source.tokens[index], message


def _operators(source: Source) -> tuple[set[str], dict[str, dict[str, list[frozenset[str]]]]]:
    """The operators that are no members, and for each other one the words behind its parameters by struct."""
    free: set[str] = set()
    members: dict[str, dict[str, list[frozenset[str]]]] = {}
    for index in source.places("operator"):
        opening = index + 2 if source.kind(index + 1) == PUNCTUATION else index + 1
        operator = source.text(index + 1)
        if operator in ("(", "["):
            operator, opening = operator + source.text(index + 2), index + 3
        if source.text(opening) != "(" or source.close(opening) < 0:
            continue
        position = source.close(opening) + 1
        words = set()
        while source.kind(position) == IDENTIFIER:
            words.add(source.text(position))
            position += 1
        bodies = ((name, each) for name, found in source.struct_bodies.items() for each in found)
        owner = next((name for name, (start, end, _) in bodies if start < index < end), None)
        if owner is None:
            free.add(operator)
        else:
            members.setdefault(operator, {}).setdefault(owner, []).append(frozenset(words))
    return free, members


def _own_space(source: Source, dot: int) -> str | None:
    """The address space of the variable before the ``.`` at ``dot``, if it is the function's own object."""
    name = dot - 1
    variable = source.variable(source.text(name), name)
    if variable is None or source.text(dot) != "." or variable.is_reference or not source.in_body(variable.place):
        return None
    return "thread" if source.text(name - 1) not in (".", "->", "::") else None
