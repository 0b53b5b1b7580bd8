"""What constructors give members in brackets: ``Ray(float x) : origin(x, 0, 1) {}``, where ``origin`` is a vector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mpsgrad.msl.declarations import end_of_initialisers
from mpsgrad.msl.expressions import VectorTypes
from mpsgrad.msl.program import ADDRESS_SPACES, Program
from mpsgrad.msl.tokens import IDENTIFIER, OPENING, Token, matching

_CLASSES = ("struct", "class", "union")


class Member(NamedTuple):
    """The type of a member as it is written, and whether that is a vector for certain."""

    type: Sequence[Token]
    is_vector: bool


def initialised_members(program: Program, types: VectorTypes) -> Mapping[int, Member]:
    """The members that may be vectors where constructors give them values in brackets, by the identity of the name."""
    tokens = program.tokens
    bodies = list(_class_bodies(tokens)) if program.constructors else []
    found = {}
    for opening in sorted(program.constructors):
        colon = matching(tokens, opening) + 1
        while tokens[colon].text in ADDRESS_SPACES or tokens[colon].text == "const":
            colon += 1
        if tokens[colon].text != ":":
            continue
        around = [(start, end) for start, end in bodies if start < opening < end]
        if not around:
            continue
        members = dict(_members(tokens, *around[-1], types))
        for index in range(colon, end_of_initialisers(tokens, colon, len(tokens))):
            is_first = tokens[index - 1].text in (":", ",") and tokens[index + 1].text == "("
            member = members.get(tokens[index].text)
            if is_first and member is not None:
                found[id(tokens[index])] = member
    return found


def _class_bodies(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """The brackets around the members of each class; those of inner ones follow those around them."""
    for index, token in enumerate(tokens):
        if token.text in _CLASSES and token.kind == IDENTIFIER:
            opening = index
            while opening < len(tokens) and tokens[opening].text not in ("{", ";", "(", ")", ">", ","):
                opening += 1
                if opening < len(tokens) and tokens[opening].text == "<":
                    while opening < len(tokens) and tokens[opening].text not in ("{", ";"):
                        opening += 1
            if opening < len(tokens) and tokens[opening].text == "{":
                yield opening, matching(tokens, opening)


def _members(tokens: Sequence[Token], opening: int, close: int, types: VectorTypes) -> Iterator[tuple[str, Member]]:
    """The names and types of members between the brackets of a class."""
    start = index = opening + 1
    while index < close:
        text = tokens[index].text
        if text in OPENING:
            end = matching(tokens, index)
            is_body = text == "{" and tokens[index - 1].text == ")"
            index = end + 1
            start = index if is_body else start
        elif text == ";":
            yield from _declared(tokens[start:index], types)
            start = index = index + 1
        elif text == ":" and tokens[index - 1].text in ("public", "private", "protected"):
            start = index = index + 1
        else:
            index += 1


def _declared(declaration: Sequence[Token], types: VectorTypes) -> Iterator[tuple[str, Member]]:
    first = 0
    while first < len(declaration) and declaration[first].text in ("const", "mutable", "volatile"):
        first += 1
    read = types.qualified_type(declaration, first)
    if read is None:
        return
    end, is_vector = read
    member = Member(declaration[first:end], is_vector)
    for index in range(end, len(declaration)):
        before = declaration[index - 1].text
        following = declaration[index + 1].text if index + 1 < len(declaration) else ";"
        is_name = declaration[index].kind == IDENTIFIER and (index == end or before == ",")
        if is_name and following in (";", ",", "=", "{"):
            yield declaration[index].text, member
