"""``flag++``, which makes a ``bool`` true: C++17 has it no more, and Metal's C++14 does."""

from __future__ import annotations

from collections.abc import Sequence

from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, OPENING, Token, matching

_SIGNS = frozenset({"!", "~", "-", "+", "*", "&"})


def names_of_bools(tokens: Sequence[Token]) -> frozenset[str]:
    """The names of variables, members and parameters that ``tokens`` declare as ``bool``, in some place."""
    names = set()
    for index, token in enumerate(tokens):
        if token.text != "bool":
            continue
        at = index + 1
        while at + 1 < len(tokens):
            at += tokens[at].text == "&"
            if tokens[at].kind != IDENTIFIER or tokens[at + 1].text not in (";", ",", "=", ")", "{", "["):
                break
            names.add(tokens[at].text)
            while at < len(tokens) and tokens[at].text not in (";", ",", ")", "}"):
                at = matching(tokens, at) + 1 if tokens[at].text in OPENING else at + 1
            if at >= len(tokens) or tokens[at].text != ",":
                break
            at += 1
    return frozenset(names)


def increments_a_bool(tokens: Sequence[Token], index: int, names: frozenset[str]) -> str:
    """Whether the ``++`` at ``index`` stands "behind" or "before" what may be a bool with one of these ``names``; empty
    where another operator binds tighter."""
    if index and tokens[index - 1].text in names:
        start = index - 1
        while start > 1 and tokens[start - 1].text in (".", "->") and tokens[start - 2].kind == IDENTIFIER:
            start -= 2
        binds_tighter = _is_sign(tokens, start - 1) or tokens[index + 1].text in (".", "->", "[")
        return "" if binds_tighter else "behind"
    end = index + 1
    while end + 2 < len(tokens) and tokens[end].kind == IDENTIFIER and tokens[end + 1].text in (".", "->"):
        end += 2
    is_bool = end < len(tokens) and tokens[end].text in names
    return "before" if is_bool and not _is_sign(tokens, index - 1) else ""


def _is_sign(tokens: Sequence[Token], index: int) -> bool:
    if index < 0 or tokens[index].text not in _SIGNS:
        return False
    before = tokens[index - 1] if index else tokens[index]
    return before.kind not in (IDENTIFIER, NUMBER) and before.text not in (")", "]") or before.text == "return"
