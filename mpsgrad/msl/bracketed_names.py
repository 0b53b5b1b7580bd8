"""``F (a), (b) = 2;`` as ``F a, b = 2;``: a name in brackets of its own behind a type looks like a construction."""

from __future__ import annotations

from collections.abc import Sequence

from mpsgrad.msl.analysis.source import BUILT_IN_TYPE
from mpsgrad.msl.program import ADDRESS_SPACES
from mpsgrad.msl.tokens import IDENTIFIER, OPENING, Token, matching, matching_angle
from mpsgrad.msl.type_names import type_names

_BEHIND = frozenset({";", "=", ",", "[", "{", "("})
_SPECIFIERS = ADDRESS_SPACES | {"const", "constexpr", "volatile", "static", "unsigned", "signed", "metal", "::"}
_NO_TYPES = frozenset({"if", "while", "for", "switch", "return"})
_CLASSES = frozenset({"struct", "class", "union", "enum"})


def without_bracketed_names(tokens: list[Token]) -> list[Token]:
    """``tokens`` without the brackets around names that statements declare."""
    openings = [index for index, token in enumerate(tokens) if token.text == "("]
    following = (index for index in openings if index and _follows_name(tokens, index))
    places = [each for each in following if _is_bracketed(tokens, each) and _begins_statement(tokens, each - 1)]
    if not places:
        return tokens
    types = _types(tokens)
    dropped: set[int] = set()
    for index in places:
        is_declared = _is_type(tokens, index - 1, types) and tokens[index + 1].text not in types
        if is_declared and index not in dropped:
            dropped |= _brackets(tokens, index)
    return [token for index, token in enumerate(tokens) if index not in dropped]


def _is_bracketed(tokens: Sequence[Token], index: int) -> bool:
    """Whether a name in brackets, perhaps with extents, opens at ``index`` that may be declared there."""
    end = index + 2
    if end >= len(tokens) or tokens[index].text != "(" or tokens[index + 1].kind != IDENTIFIER:
        return False
    while end < len(tokens) and tokens[end].text == "[":
        end = matching(tokens, end) + 1
    return end + 1 < len(tokens) and tokens[end].text == ")" and tokens[end + 1].text in _BEHIND


def _follows_name(tokens: Sequence[Token], index: int) -> bool:
    before = tokens[index - 1]
    return before.kind == IDENTIFIER and before.text not in _NO_TYPES or before.text == ">"


def _types(tokens: Sequence[Token]) -> set[str]:
    names = {each.name.text for each in type_names(tokens)} | {"auto"}
    names |= {token.text for token in tokens if token.kind == IDENTIFIER and BUILT_IN_TYPE.match(token.text)}
    for index in range(len(tokens) - 1):
        if tokens[index].text in _CLASSES and tokens[index + 1].kind == IDENTIFIER:
            names.add(tokens[index + 1].text)
    return names


def _is_type(tokens: Sequence[Token], index: int, types: set[str]) -> bool:
    """Whether what ends at ``index`` is a type."""
    return tokens[_name(tokens, index)].text in types


def _name(tokens: Sequence[Token], index: int) -> int:
    """The name of the type that ends at ``index``, whose template's arguments may stand behind it."""
    if tokens[index].text != ">":
        return index
    return next((k - 1 for k in range(index, 0, -1) if tokens[k].text == "<" and matching_angle(tokens, k) == index), 0)


def _begins_statement(tokens: Sequence[Token], index: int) -> bool:
    """Whether a statement begins with the type that ends at ``index``."""
    start = _name(tokens, index) - 1
    while start > 0 and tokens[start].text in _SPECIFIERS:
        start -= 1
    if start < 0:
        return False
    before = tokens[start].text
    return before in (";", "}") or before == "(" and tokens[start - 1].text == "for" or _opens_block(tokens, start)


def _opens_block(tokens: Sequence[Token], index: int) -> bool:
    """Whether the brace at ``index`` begins statements, and no values or members."""
    first = index
    while first >= 0 and tokens[first].text == "{":
        first -= 1
    before = tokens[first].text if 0 <= first < index else ""
    return before in (")", ";", "}", "else", "do", "const", "(") or before in ADDRESS_SPACES


def _brackets(tokens: Sequence[Token], index: int) -> set[int]:
    """Those around the name at ``index`` and around others of the same declaration."""
    found: set[int] = set()
    while index < len(tokens) and tokens[index].text != ";":
        if (tokens[index - 1].text == "," or not found) and _is_bracketed(tokens, index):
            found |= {index, matching(tokens, index)}
        index = matching(tokens, index) + 1 if tokens[index].text in OPENING else index + 1
    return found

