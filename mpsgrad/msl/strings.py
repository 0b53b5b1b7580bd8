"""String literals where these lie in an address space of the target's own: they become arrays at program scope.

So does ``__func__``, the name of the function around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.tokens import IDENTIFIER, OPENING, STRING, Token, matching

_CHARACTERS = frozenset({"char", "uchar", "int8_t", "uint8_t"})
_FUNCTION_NAMES = frozenset({"__func__", "__FUNCTION__", "__PRETTY_FUNCTION__"})
_STATEMENTS = frozenset({"if", "for", "while", "switch"})
_NOT_VALUES = frozenset({"static_assert", "_Pragma", "asm", "__asm__", "__attribute__", "host_name"})


def move_strings(tokens: list[Token]) -> dict[str, str]:
    """Puts names in the place of literals that are not the initial values of arrays; the names by the literals."""
    names: dict[str, str] = {}
    if not any(_is_literal(token) or token.text in _FUNCTION_NAMES for token in tokens):
        return names
    has_pointer_members = any(a.text == "char" and b.text == "*" for a, b in pairwise(tokens))
    openers: list[int] = []
    bodies: dict[int, str] = {}
    closed = statement = 0
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
            if token.text == "{" and _has_body(tokens, index, closed):
                bodies[index] = tokens[closed - 1].text
        elif token.text in (")", "]", "}"):
            if openers:
                closed = openers.pop()
        elif token.text == ";":
            statement = index + 1
        elif token.text in _FUNCTION_NAMES and token.kind == IDENTIFIER:
            around = next((bodies[each] for each in openers if each in bodies), "")
            _name_by_literal(token, f'"{around}"', names)
        elif _is_literal(token) and not (index and tokens[index - 1].text == "extern"):
            end = index
            while end < len(tokens) and _is_literal(tokens[end]):
                end += 1
            if not _is_array(tokens, statement, index, openers, has_pointer_members):
                literal = " ".join(each.text for each in tokens[index:end])
                _name_by_literal(token, literal, names)
                del tokens[index + 1 : end]
                end = index + 1
            index = end
            continue
        if token.text == "}":
            statement = index + 1 if not openers or not _is_initialiser(tokens, openers[-1]) else statement
        index += 1
    return names


def _name_by_literal(token: Token, literal: str, names: dict[str, str]) -> None:
    token.text = names.setdefault(literal, f"string_{len(names) + 1}{RENAMED_SUFFIX}")
    token.kind = IDENTIFIER


def _has_body(tokens: Sequence[Token], opener: int, parameters: int) -> bool:
    """Whether the brace ``opener`` begins the body of a function, if ``parameters`` opened the last parentheses."""
    before = opener - 1
    while before > 0 and tokens[before].kind == IDENTIFIER:
        before -= 1
    name = tokens[parameters - 1] if parameters else None
    is_call = tokens[before].text == ")" and tokens[parameters].text == "("
    return is_call and name is not None and name.kind == IDENTIFIER and name.text not in _STATEMENTS


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
