"""Constant references to ``thread`` objects that have to stay references: the function gives the address of what they
refer to, or may write to that meanwhile, so that a copy in their place would be something else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mpsgrad.msl.analysis.types import built_in
from mpsgrad.msl.argument_buffers import PointerMembers
from mpsgrad.msl.declarations import operator_before
from mpsgrad.msl.program import SHARED_SPACES, Program
from mpsgrad.msl.prototypes import bodies_of_classes, class_of
from mpsgrad.msl.tokens import (
    IDENTIFIER,
    NUMBER,
    Token,
    made_at,
    matching,
    matching_angle,
    skip_attributes,
    split_commas,
)

_MARKS = frozenset({"*", "&"})
_OPERANDS = (IDENTIFIER, NUMBER)


class KeptReferences:
    """Which parameters of a program's functions these are. ``positions`` has those that no temporary object can be
    given to, by the brackets that open the parameters; ``prototypes`` are the declarations of functions."""

    def __init__(self, program: Program, prototypes: Mapping[int, Sequence[int]]) -> None:
        self.positions: dict[int, list[int]] = {}
        self.prototypes = prototypes
        self._tokens = tokens = program.tokens
        self._program = program
        self._bases = _base_classes(tokens)
        self._members = PointerMembers(tokens)
        self._bodies = list(bodies_of_classes(tokens))
        self._captures = any(
            tokens[index].text == "[" and _captures_references(tokens, index) for index in range(1, len(tokens))
        )
        members = [
            (tokens[index].text, tokens[index - 1].text, tokens[index + 1].text)
            for opening, closing, _ in self._bodies
            for index in _own_names(tokens, opening, closing)
        ]
        self._pointers = {name for name, before, _ in members if before in _MARKS}
        self._arrays = {name for name, before, behind in members if behind == "[" and before not in _MARKS}
        heads = [head[:2] for head in program.function_heads] + [head[1:3] for head in program.member_heads]
        self._giving = {tokens[opening - 1].text for start, opening in heads if self.gives_addresses(start, opening)}

    def is_base(self, words: Iterable[Token]) -> bool:
        """Whether a type, written with ``words``, is one that others are derived from: a copy has only that part."""
        return any(token.text in self._bases for token in words)

    def may_be_written_meanwhile(self, opening: int, end: int) -> bool:
        """Whether a function may write to ``thread`` objects through what its object holds, or what an argument that it
        calls has captured."""
        tokens = self._tokens
        around = [name for first, last, name in self._bodies if first < opening < last]
        owner = around[-1] if around else class_of(tokens, opening, {name for _, _, name in self._bodies})
        if owner is not None and self._members.of(made_at(tokens[opening], owner), _writes_to_thread):
            return True
        if not self._captures:
            return False
        names = {each[-1].text for each in split_commas(tokens[opening + 1 : matching(tokens, opening)]) if each}
        body = range(matching(tokens, opening), end)
        return any(tokens[at].text in names and tokens[at + 1].text == "(" for at in body)

    def may_write(self, parameter: Sequence[Token]) -> bool:
        """Whether ``thread`` objects can be written to through pointers or references in a parameter's object."""
        return bool(self._members.of(parameter, _writes_to_thread))

    def gives_address(self, start: int, opening: int, end: int, reference: Sequence[Token]) -> bool:
        """Whether a function gives or keeps an address of what its parameter ``reference`` refers to, or compares
        it."""
        tokens = self._tokens
        gives = self.gives_addresses(start, opening)
        name = reference[-1].text
        first = matching(tokens, opening) + 1
        return reference[-1].kind == IDENTIFIER and any(
            self._is_compared(index) or (gives and self._is_given(index, start, opening))
            for index in range(first, end)
            if tokens[index].text == name and tokens[index - 1].text not in (".", "->", "::")
        )

    def gives_addresses(self, start: int, opening: int) -> bool:
        """Whether what a function returns or constructs may lead to ``thread`` objects."""
        tokens = self._tokens
        if opening in self._program.constructors:
            return bool(self._members.of([tokens[opening - 1]], _leads_to_thread))
        kind = self._returned(start, opening)
        words = {token.text for token in kind}
        if "auto" in words:
            return True
        leads = _MARKS & words and (not SHARED_SPACES & words or "thread" in words)
        return bool(leads or self._members.of(kind, _leads_to_thread))

    def _returned(self, start: int, opening: int) -> list[Token]:
        """The type that a function returns."""
        tokens = self._tokens
        first = start
        while tokens[first].text == "template":
            first = (matching_angle(tokens, first + 1, certain=True) or opening) + 1
        operator = operator_before(tokens, opening)
        name = opening - 1 if operator is None else operator
        behind = matching(tokens, opening) + 1
        while tokens[behind].text not in ("{", ";", ":", "->"):
            behind += 1
        if tokens[behind].text == "->":
            last = next(at for at in range(behind, len(tokens)) if tokens[at].text in ("{", ";"))
            return list(tokens[behind + 1 : last])
        return list(tokens[skip_attributes(tokens, first, name) : name])

    def _is_compared(self, index: int) -> bool:
        tokens = self._tokens
        around = {tokens[index - 2].text, tokens[index + 1].text}
        return _takes_address(tokens, index - 1) and bool(around & {"==", "!="})

    def _is_given(self, index: int, start: int, opening: int) -> bool:
        """Whether the address of the object that is named at ``index``, or of a part of it, may be given away there."""
        tokens = self._tokens
        last = index
        while True:
            behind = tokens[last + 1].text
            if behind == "->" or (behind == "[" and tokens[last].text in self._pointers):
                # What a pointer leads to is no part of the object.
                return False
            if behind == "[":
                last = matching(tokens, last + 1)
            elif behind == "." and tokens[last + 2].kind == IDENTIFIER:
                last += 2
            else:
                break
        if behind == "(" and tokens[last].text in self._giving:
            return True
        before = index - 1
        if tokens[before].text == "*":
            return False
        if tokens[last].text in self._arrays and last > index or _takes_address(tokens, before):
            return True
        return self._is_bound(index) or self._is_passed_on(index, last) or self._is_returned(index, start, opening)

    def _is_bound(self, index: int) -> bool:
        """Whether a variable that is a reference, or a member of a constructor's object, is initialised here."""
        tokens = self._tokens
        if tokens[index - 1].text != "=":
            return False
        statement = index
        while tokens[statement - 1].text not in (";", "{", "}", "("):
            statement -= 1
        return any(token.text == "&" for token in tokens[statement:index])

    def _is_passed_on(self, index: int, last: int) -> bool:
        """Whether an object is an argument of what gives addresses, or initialises an object that may keep one."""
        tokens = self._tokens
        if tokens[index - 1].text not in ("(", ",", "{") or tokens[last + 1].text not in (")", ",", "}"):
            return False
        depth, first = 0, index - 1
        while depth or tokens[first].text not in ("(", "{", "["):
            depth += (tokens[first].text in ")]}") - (tokens[first].text in "([{")
            first -= 1
        called = tokens[first - 1]
        if called.text == ">":
            return True
        if called.kind != IDENTIFIER or called.text == "return":
            return tokens[first].text == "{"
        if built_in(called.text) is not None or called.text in ("if", "while", "for", "switch"):
            return False
        keeps = called.text in self._giving or called.text in self._pointers
        return keeps or bool(self._members.of([called], _leads_to_thread))

    def _is_returned(self, index: int, start: int, opening: int) -> bool:
        tokens = self._tokens
        kind = self._returned(start, opening)
        if all(token.text != "&" for each in (kind, *self._members.of(kind, _leads_to_thread)) for token in each):
            return False
        statement = index
        while tokens[statement - 1].text not in (";", "{", "}"):
            statement -= 1
        return any(token.text == "return" for token in tokens[statement:index])


def _leads_to_thread(member: Sequence[Token]) -> bool:
    words = {token.text for token in member}
    return "thread" in words and bool(words & _MARKS)


def _writes_to_thread(member: Sequence[Token]) -> bool:
    first = next((index for index, token in enumerate(member) if token.text in _MARKS), 0)
    return _leads_to_thread(member) and all(token.text != "const" for token in member[:first])


def _captures_references(tokens: Sequence[Token], opening: int) -> bool:
    """Whether a lambda expression begins at a bracket, and has references to variables around it."""
    before = tokens[opening - 1]
    if before.kind == IDENTIFIER and before.text != "return" or before.text in (")", "]", "[", ">"):
        return False
    return any(token.text == "&" for token in tokens[opening + 1 : matching(tokens, opening)])


def _base_classes(tokens: Sequence[Token]) -> set[str]:
    """The names of the program's classes that others are derived from."""
    found, classes = set(), set()
    for index, token in enumerate(tokens):
        if token.text not in ("struct", "class", "union") or tokens[index - 1].text in ("<", ","):
            continue
        colon = name = skip_attributes(tokens, index + 1, len(tokens) - 1)
        classes.add(tokens[name].text)
        while colon < len(tokens) and tokens[colon].text not in (":", "{", ";", "(", ")", "=", ","):
            colon += 1
        if colon < len(tokens) and tokens[colon].text == ":":
            opening = next((at for at in range(colon, len(tokens)) if tokens[at].text in ("{", ";")), colon)
            for base in split_commas(tokens[colon + 1 : opening]):
                end = next((at for at, each in enumerate(base) if each.text == "<"), len(base))
                found |= {each.text for each in base[:end][-1:]}
    return found & classes


def _own_names(tokens: Sequence[Token], opening: int, closing: int) -> Iterator[int]:
    """The names of the data members that are declared in the body of a class."""
    index = opening + 1
    while index < closing:
        if tokens[index].text in ("(", "{"):
            index = matching(tokens, index)
        elif tokens[index].kind == IDENTIFIER and tokens[index + 1].text in (";", "[", "=", ",", "{"):
            yield index
        index += 1


def _takes_address(tokens: Sequence[Token], index: int) -> bool:
    """Whether the token at ``index`` is the ``&`` that takes an address."""
    before = tokens[index - 1]
    is_operand = (before.kind in _OPERANDS and before.text != "return") or before.text in (")", "]")
    return tokens[index].text == "&" and not is_operand
