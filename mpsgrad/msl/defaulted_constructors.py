"""Constructors and assignments that are defaulted in several address spaces: ``Slot() threadgroup = default;``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mpsgrad.msl.program import ADDRESS_SPACES
from mpsgrad.msl.prototypes import bodies_of_classes
from mpsgrad.msl.tokens import Token

_DEFAULTED = ["=", "default", ";"]
_BEFORE_MEMBER = frozenset("{ } ; :".split())


def one_default_constructor(tokens: list[Token], spellings: Mapping[str, str]) -> list[Token]:
    """``tokens`` with one such constructor for each address space that the target, which spells them so, tells apart.

    It has no constants whose constructors differ, so those of ``constant`` count as those of ``device``; one without an
    address space is that of threads. Where it tells none apart, there is one of those, too, that copy an object.
    """
    if not any(token.text == "default" for token in tokens):
        return tokens
    dropped: set[int] = set()
    for opening, closing, name in bodies_of_classes(tokens):
        seen = {spellings["thread"]} if _has_plain_one(tokens, opening, closing, name) else set()
        for start, space in _defaulted(tokens, opening, closing, name):
            spelling = spellings[tokens[space].text].removeprefix("const").strip()
            head = " ".join(token.text for token in tokens[start:space] if token.text not in ADDRESS_SPACES)
            if not head.endswith("( )"):
                if not spelling and head in seen:
                    dropped.update(range(start, space + 1 + len(_DEFAULTED)))
                seen.add(head)
                continue
            if spelling in seen:
                dropped.update(range(start, space + 1 + len(_DEFAULTED)))
            elif not spelling:
                dropped.add(space)
            elif tokens[space].text == "constant":
                tokens[space].text = "device"
            seen.add(spelling)
    return [token for index, token in enumerate(tokens) if index not in dropped]


def _defaulted(tokens: Sequence[Token], opening: int, closing: int, name: str) -> Iterator[tuple[int, int]]:
    """Where the constructors and assignments of the class ``name`` begin that are defaulted, and their address
    spaces."""
    for space in range(opening + 1, closing):
        if tokens[space].text not in ADDRESS_SPACES or tokens[space - 1].text != ")":
            continue
        start = space
        while tokens[start - 1].text not in _BEFORE_MEMBER:
            start -= 1
        behind = [token.text for token in tokens[space + 1 : space + 1 + len(_DEFAULTED)]]
        words = [token.text for token in tokens[start:space]]
        if behind == _DEFAULTED and name in words:
            yield start, space


def _has_plain_one(tokens: Sequence[Token], opening: int, closing: int, name: str) -> bool:
    """Whether the class has a default constructor without an address space."""
    for index in range(opening + 2, closing):
        if tokens[index].text in ("=", "{", ":") and [token.text for token in tokens[index - 2 : index]] == ["(", ")"]:
            before = index - 3
            while before > opening and tokens[before].text not in (name, *_BEFORE_MEMBER):
                before -= 1
            if tokens[before].text == name and tokens[before - 1].text != "~":
                return True
    return False
