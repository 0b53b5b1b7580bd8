"""Which functions of a program come to a barrier."""

from __future__ import annotations

from collections.abc import Iterator

from mpsgrad.msl.library_marks import ANY_THREAD
from mpsgrad.msl.program import Program
from mpsgrad.msl.tokens import matching_angle

_BARRIERS = frozenset(
    {"threadgroup_barrier", "threadgroup_barrier_checked_mtl", "simdgroup_barrier_checked_mtl", ANY_THREAD}
)


def functions_that_wait(program: Program) -> Iterator[int]:
    """Where functions begin, behind their template's parameters, that come to a barrier themselves or by calls."""
    tokens = program.tokens
    heads = [*program.function_heads, *(head[1:] for head in program.member_heads)]
    names = {opening: tokens[opening - 1].text for _, opening, _ in heads}
    words = {opening: {token.text for token in tokens[opening:end]} for _, opening, end in heads}
    found = {names[opening] for opening, each in words.items() if each & _BARRIERS}
    known = -1
    while len(found) > known:
        known = len(found)
        found |= {names[opening] for opening, each in words.items() if each & found}
    for start, opening, _ in heads:
        if names[opening] in found:
            while tokens[start].text == "template":
                close = matching_angle(tokens, start + 1, certain=True)
                if close is None:
                    break
                start = close + 1
            yield start
