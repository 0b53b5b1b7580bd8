"""What leads out of loops from where simdgroups work together, and so decides which of their threads do.

A compiler moves what stands before such a jump behind the loop, where threads that left it in other turns take part,
too: ``while (true) { if (v == simd_min(v)) { r = simd_sum(1); break; } }`` gave the number of all. Metal does not say
that they do not, but whoever writes a loop over the values of a simdgroup means those of one turn. A way back into the
loop, which no thread takes although the compiler does not know that, keeps it there. NVIDIA's compiler makes two loops
of that, and counts all of them whatever it is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from mpsgrad.msl.analysis.calls import Reaching, reaching
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.statements import LOOPS, Range
from mpsgrad.msl.tokens import IDENTIFIER, Token

_OF_SIMDGROUPS = re.compile(r"(?:simd|quad)_\w+")
_BEFORE_STATEMENTS = frozenset({";", "{", "}", ")", "else", "do"})


class Exits(NamedTuple):
    """The words that begin such jumps; those of returned values for which simdgroups work together, with the tokens
    behind them; and literals that end a loop, with the names of the variables that they are assigned to."""

    jumps: Sequence[Token] = ()
    values: Sequence[tuple[Token, Token]] = ()
    literals: Sequence[tuple[Token, str]] = ()


def exits_to_keep_inside(source: Source) -> Exits:
    """What leads out of loops of ``source`` so."""
    ways = _Ways(source)
    if not source.matches(_OF_SIMDGROUPS):
        return Exits()
    tokens = source.tokens
    jumps: dict[int, bool] = {}
    literals: set[int] = set()
    # Inner loops before those around them: a jump belongs to the innermost one.
    for condition, body in sorted(ways.loops(), key=lambda loop: loop[1][1] - loop[1][0]):
        for index in source.places("break", "goto", "return", start=body[0], end=body[1]):
            if index not in jumps:
                jumps[index] = ways.are_together(ways.way(body, index))
        literals |= {index for index in ways.ends(condition, body) if ways.are_together(ways.way(body, index))}
    marked = sorted(index for index, is_marked in jumps.items() if is_marked)
    ends = {index: source.expression_end(index) for index in marked}
    values = [index for index in marked if ways.are_together((index, ends[index]))]
    return Exits(
        [tokens[index] for index in marked if index not in values],
        [(tokens[index], tokens[ends[index] + 1]) for index in values],
        [(tokens[index], source.text(index - 2)) for index in sorted(literals)],
    )


class _Ways:
    """The loops of one source and the ways out of them."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @cached_property
    def _together(self) -> Reaching:
        source = self._source
        return reaching(source, {source.text(index) for index in source.matches(_OF_SIMDGROUPS)})

    def are_together(self, part: Range) -> bool:
        """Whether a function of simdgroups is called there."""
        return bool(self._together.places(*part))

    def loops(self) -> Iterator[tuple[Range, Range]]:
        """The condition and the body of each loop."""
        for each in self._source.statements.deciding(*LOOPS):
            if each.parts and self._source.in_body(each.word):
                yield each.condition, each.parts[0]

    def way(self, body: Range, index: int) -> Range:
        """The outermost arm of a choice in ``body`` that ``index`` is in, or all of the body up to it."""
        arms = (arm for _, arm in self._source.statements.around(index, "if", "switch", start=body[0]))
        return next(arms, (body[0], self._source.expression_end(index, body[1])))

    def ends(self, condition: Range, body: Range) -> Iterator[int]:
        """The literals in ``body`` that are assigned to variables in the ``condition``."""
        source = self._source
        names = {source.text(index) for index in range(*condition) if source.kind(index) == IDENTIFIER}
        for index in source.places("=", start=body[0], end=body[1]):
            is_literal = source.text(index + 1) in ("true", "false") or source.text(index + 1).isdigit()
            is_variable = source.text(index - 1) in names and source.text(index - 2) in _BEFORE_STATEMENTS
            if is_literal and is_variable and source.text(index + 2) == ";":
                yield index + 1
