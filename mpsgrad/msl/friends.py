"""Declarations of functions as friends.

Intel's compiler takes the function that is defined outside of the class for another one. So what only declares one is
left out, and classes that have friends are open to everybody.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpsgrad.msl.tokens import IDENTIFIER, OPENING, Token, matching

_ACCESS = frozenset({"private", "protected"})


def open_to_friends(tokens: list[Token]) -> list[Token]:
    """``tokens`` without ``friend T f(...);``."""
    dropped: set[int] = set()
    for index, token in enumerate(tokens):
        if token.text == "friend":
            end = index
            has_parameters = False
            while end < len(tokens) and tokens[end].text not in (";", "{"):
                has_parameters = has_parameters or tokens[end].text == "("
                end = matching(tokens, end) + 1 if tokens[end].text in OPENING else end + 1
            if has_parameters and end < len(tokens) and tokens[end].text == ";":
                dropped |= set(range(_template_start(tokens, index), end + 1))
    if not dropped:
        return tokens
    open_classes(tokens)
    return [token for index, token in enumerate(tokens) if index not in dropped]


def open_classes(tokens: Sequence[Token]) -> None:
    """Makes all members of classes public."""
    for index, token in enumerate(tokens):
        if token.text in _ACCESS:
            token.text = "public"
        elif token.text == "class" and index + 2 < len(tokens) and tokens[index + 1].kind == IDENTIFIER:
            is_parameter = tokens[index + 2].text in (",", ">", "=")
            if not is_parameter and (not index or tokens[index - 1].text not in ("enum", "<", ",")):
                token.text = "struct"


def _template_start(tokens: Sequence[Token], index: int) -> int:
    """Where the ``template <...>`` before ``index`` begins, or ``index`` where there is none."""
    start = index - 1
    while start >= 0 and tokens[start].text not in (";", "{", "}", ":", "template"):
        start -= 1
    return start if start >= 0 and tokens[start].text == "template" else index
