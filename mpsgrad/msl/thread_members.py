"""Member functions of threads' objects that say so, beside others that do not: ``operator half() const thread``.

Metal takes both for the same. In OpenCL one that does not say so is for objects of any address space: it cannot call
those of threads, and where it may choose between conversions it comes second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mpsgrad.msl.program import ADDRESS_SPACES
from mpsgrad.msl.prototypes import bodies_of_classes
from mpsgrad.msl.tokens import OPENING, Token, matching

_QUALIFIERS = frozenset({"const", "volatile", *ADDRESS_SPACES})
_ENDS = frozenset({";", "}", ":"})


def without_thread_beside_others(tokens: list[Token]) -> list[Token]:
    """``tokens`` with no ``thread`` behind the parameters of functions that give values, in classes that have functions
    without an address space, too."""
    if not any(token.text == "thread" and tokens[k - 1].text in (")", "const") for k, token in enumerate(tokens)):
        return tokens
    dropped: set[int] = set()
    for opening, closing, name in bodies_of_classes(tokens):
        members = list(_members(tokens, opening, closing, name))
        if any(space is None for space in members):
            dropped |= {space for space in members if space is not None and tokens[space].text == "thread"}
    return [token for index, token in enumerate(tokens) if index not in dropped]


def _passes_itself(tokens: Sequence[Token], opening: int) -> bool:
    """Whether a function hands on a pointer to its object, whose address space is the function's."""
    inside = range(opening, matching(tokens, opening))
    return any(
        tokens[k].text == "this" and tokens[k - 1].text != "*" and tokens[k + 1].text != "->" for k in inside
    )


def _members(tokens: Sequence[Token], opening: int, closing: int, name: str) -> Iterator[int | None]:
    """The address spaces behind the parameters of the functions of a class that give values; None for none."""
    index = start = opening + 1
    while index < closing:
        text = tokens[index].text
        if text in OPENING and matching(tokens, index) > 0:
            end = matching(tokens, index) + 1
            head = {token.text for token in tokens[start:index]}
            gives_value = not head & {"&", "*", "static", "friend", name}
            if text == "(" and tokens[end].text not in ("(", *_ENDS) and gives_value:
                space = None
                while tokens[end].text in _QUALIFIERS:
                    space = end if tokens[end].text in ADDRESS_SPACES else space
                    end += 1
                if tokens[end].text == "{" and not _passes_itself(tokens, end):
                    yield space
            index = end
            start = index if text == "{" else start
            continue
        index += 1
        start = index if text in _ENDS else start
