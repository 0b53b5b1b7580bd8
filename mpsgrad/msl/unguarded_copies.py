"""Statements that a kernel's condition keeps threads out of, once more without it: see ``analysis.guards``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mpsgrad.msl.rewriting import Rewriter
from mpsgrad.msl.tokens import IDENTIFIER, Token

if TYPE_CHECKING:
    from mpsgrad.msl.analysis.guards import Guard


def rewritten_with_copies(
    body: Sequence[Token], guards: Mapping[int, Guard], rewriter: Rewriter, last_position: str
) -> list[Token]:
    """``body`` in the target's language; ``guards`` are by the identities of their words. ``last_position`` gives the
    position of the last thread of a threadgroup along an axis.

    The compiler would make one of the statement and its copy, was the statement not in a loop of one turn.
    """
    if not guards:
        return rewriter.rewrite(body)
    places = {id(token): index for index, token in enumerate(body)}
    output: list[Token] = []
    position = 0
    for index, token in enumerate(body):
        guard = guards.get(id(token))
        first = places.get(id(guard.first)) if guard is not None else None
        if guard is None or first is None:
            continue
        # What ends with the body ends before its brace.
        end = places.get(id(guard.end), len(body))
        conditions = [
            f"({each.kind}){last_position.format(each.axis)} {each.operator} ({rewriter.text(each.limit)})"
            for each in guard.comparisons
        ]
        output += rewriter.rewrite(body[position:index])
        output.append(token.replaced(f"if (!({' && '.join(conditions)})) do {{", IDENTIFIER))
        output += rewriter.rewrite(body[index:end])
        output.append(body[end - 1].replaced("} while (never_mtl()); else {", IDENTIFIER))
        output += rewriter.rewrite(body[first:end])
        output.append(body[end - 1].replaced("}", IDENTIFIER))
        position = end
    return output + rewriter.rewrite(body[position:])
