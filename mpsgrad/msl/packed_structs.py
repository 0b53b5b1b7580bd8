"""Structs with the attribute ``packed``, which Intel's compiler does not apply to members that are classes.

Apple's does, and there packed vectors and matrices are none. ``#pragma pack`` goes for members of every type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mpsgrad.msl.tokens import IDENTIFIER, Token

BEFORE_STRUCT = '_Pragma("pack(push, 1)") '
IN_STRUCT = '_Pragma("pack(pop)") '
"""At the beginning of the body, so that structs in it are laid out as they say themselves."""

_PACKED = ("packed", "__packed__")
_BETWEEN_DECLARATIONS = (";", "{", "}", ":")


def packed_structs(tokens: Sequence[Token]) -> Iterator[tuple[Token, Token]]:
    """The tokens that begin the declaration and the body of each packed struct."""
    for index, token in enumerate(tokens):
        if token.text not in _PACKED or tokens[index - 1].text not in ("(", ",", "::"):
            continue
        start = opening = index
        while start and tokens[start - 1].kind != "pragma" and tokens[start - 1].text not in _BETWEEN_DECLARATIONS:
            start -= 1
        while opening < len(tokens) and tokens[opening].text not in (*_BETWEEN_DECLARATIONS, "="):
            opening += 1
        words = {each.text for each in tokens[start:opening] if each.kind == IDENTIFIER}
        if opening + 1 < len(tokens) and tokens[opening].text == "{" and not words.isdisjoint(("struct", "class")):
            yield tokens[start], tokens[opening + 1]
