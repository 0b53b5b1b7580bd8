"""Attributes where compilers, and what reads the outline of a program here, look for them.

``void f [[host_name("g")]] (...)`` is ``[[host_name("g")]] void f(...)``, and ``[[function_constant(0)]] constant int
n;`` is ``constant int n [[function_constant(0)]];``.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpsgrad.msl.edits import Edits
from mpsgrad.msl.tokens import IDENTIFIER, PUNCTUATION, STRING, Token, error, matching, matching_angle

_STATEMENTS = frozenset({"else", "do", "return"})
_ENDS = frozenset({";", "{", "}"})


def with_attributes_in_place(tokens: list[Token]) -> list[Token]:
    """``tokens`` with each attribute at the one place of a declaration where all can have it."""
    return _before_functions(_before_members(tokens))


def _before_functions(tokens: list[Token]) -> list[Token]:
    """Attributes behind the names of functions stand before the declarations, those of function constants behind their
    names, and those of namespaces, which say nothing to a compiler of kernels, nowhere. Behind parameters they are a
    type's, which is none of a kernel."""
    groups = [k for k, token in enumerate(tokens[:-1]) if token.text == "[" and tokens[k + 1].text == "["]
    edits = Edits(tokens)
    for start in groups:
        end = matching(tokens, start) + 1
        behind = tokens[end].text if end < len(tokens) else ""
        if tokens[start + 2].text == "kernel" and start and tokens[start - 1].text == ")" and behind in ("{", ";"):
            raise error("'kernel' attribute cannot be applied to types", tokens[start + 2])
        if start and tokens[start - 1].text == "namespace":
            edits.replace_range(start, end)
        elif behind == "(" and _names_function(tokens, start):
            place = _beginning(tokens, start)
            if place > start:
                continue
            edits.replace_range(start, end)
            edits.before(place, *(token.at(tokens[place]) for token in tokens[start:end]))
        elif tokens[start + 2].text == "function_constant" and behind and _beginning(tokens, start) == start:
            place = _behind_name(tokens, end)
            edits.replace_range(start, end)
            edits.before(place, *(token.at(tokens[place]) for token in tokens[start:end]))
    return edits.applied()


def _names_function(tokens: Sequence[Token], index: int) -> bool:
    """Whether what ends before ``index`` may be the name of a function."""
    if not index:
        return False
    before = tokens[index - 1]
    is_operator = "operator" in [token.text for token in tokens[max(index - 3, 0) : index]]
    return is_operator or before.text == ">" or before.kind == IDENTIFIER and before.text not in _STATEMENTS


def _beginning(tokens: Sequence[Token], index: int) -> int:
    """Where the declaration begins that ``index`` is in, behind the parameters of templates and ``extern "C"``."""
    start = index
    while start and not (tokens[start - 1].text in _ENDS or tokens[start - 1].kind == "pragma"):
        is_access = tokens[start - 1].text == ":" and tokens[start - 2].text in ("public", "private", "protected")
        if is_access:
            break
        start -= 1
    while tokens[start].text == "template" and tokens[start + 1].text == "<":
        close = matching_angle(tokens, start + 1, certain=True)
        if close is None:
            break
        start = close + 1
    return start + 2 if tokens[start].text == "extern" and tokens[start + 1].kind == STRING else start


def _behind_name(tokens: Sequence[Token], index: int) -> int:
    while index < len(tokens) - 1 and tokens[index].text not in (";", "=", "{", "(", ","):
        index += 1
    return index


def _before_members(tokens: list[Token]) -> list[Token]:
    """``struct __attribute__((packed)) {...}`` for ``struct {...} __attribute__((packed))``, which NVIDIA's compiler
    does not take for the same."""
    edits = Edits(tokens)
    openings: list[int] = []
    for index, token in enumerate(tokens):
        if token.kind == PUNCTUATION and token.text == "{":
            openings.append(index)
        elif token.kind == PUNCTUATION and token.text == "}" and openings:
            head = openings.pop()
            if index + 2 >= len(tokens) or tokens[index + 1].text != "__attribute__" or tokens[index + 2].text != "(":
                continue
            while head > 0 and tokens[head].text not in ("struct", "union", ";", "}", ")"):
                head -= 1
            if tokens[head].text in ("struct", "union"):
                end = matching(tokens, index + 2) + 1
                edits.replace_range(index + 1, end)
                edits.before(head + 1, *(each.at(tokens[head], spaced=True) for each in tokens[index + 1 : end]))
    return edits.applied()
