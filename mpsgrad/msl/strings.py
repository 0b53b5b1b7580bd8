"""String literals where these lie in an address space of the target's own: they become arrays at program scope."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.tokens import IDENTIFIER, OPENING, STRING, Token, matching

_CHARACTERS = frozenset({"char", "uchar", "int8_t", "uint8_t"})
_NOT_VALUES = frozenset({"static_assert", "_Pragma", "asm", "__asm__", "__attribute__", "host_name"})


def move_strings(tokens: list[Token]) -> dict[str, str]:
    """Puts names in the place of literals that are not the initial values of arrays; the names by the literals."""
    names: dict[str, str] = {}
    if not any(_is_literal(token) for token in tokens):
        return names
    has_pointer_members = any(a.text == "char" and b.text == "*" for a, b in pairwise(tokens))
    openers: list[int] = []
    statement = 0
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.text == "[" and index + 1 < len(tokens) and tokens[index + 1].text == "[":
            index = matching(tokens, index) + 1
            continue
        if token.kind == IDENTIFIER and token.text in _NOT_VALUES and index + 1 < len(tokens):
            index = matching(tokens, index + 1) + 1 if tokens[index + 1].text == "(" else index + 1
            continue
        if token.text in OPENING:
            openers.append(index)
            if token.text == "{" and not _is_initialiser(tokens, index):
                statement = index + 1
        elif token.text in (")", "]", "}"):
            if openers:
                openers.pop()
        elif token.text == ";":
            statement = index + 1
        elif _is_literal(token) and not (index and tokens[index - 1].text == "extern"):
            end = index
            while end < len(tokens) and _is_literal(tokens[end]):
                end += 1
            if not _is_array(tokens, statement, index, openers, has_pointer_members):
                literal = " ".join(each.text for each in tokens[index:end])
                token.text = names.setdefault(literal, f"string_{len(names) + 1}{RENAMED_SUFFIX}")
                token.kind = IDENTIFIER
                del tokens[index + 1 : end]
                end = index + 1
            index = end
            continue
        if token.text == "}":
            statement = index + 1 if not openers or not _is_initialiser(tokens, openers[-1]) else statement
        index += 1
    return names


def _is_literal(token: Token) -> bool:
    return token.kind == STRING and token.text.startswith('"')


def _is_initialiser(tokens: Sequence[Token], opening: int) -> bool:
    """Whether the bracket at ``opening`` holds initial values, and not statements or members."""
    if tokens[opening].text != "{":
        return False
    before = tokens[opening - 1].text if opening else ""
    return before in ("=", "{", ",", "]", "(", "return")


def _is_array(
    tokens: Sequence[Token], statement: int, index: int, openers: Sequence[int], has_pointer_members: bool
) -> bool:
    """Whether the literal at ``index`` is the initial value of an array of characters."""
    braces = 0
    for opening in reversed(openers):
        if opening < statement:
            break
        if tokens[opening].text != "{":
            return False
        braces += 1
    declared = [token.text for token in tokens[statement:index]]
    if "=" in declared:
        declared = declared[: declared.index("=")]
    elif not braces:
        return False
    if "*" in declared:
        return False
    return not _CHARACTERS.isdisjoint(declared) or (bool(braces) and not has_pointer_members)
