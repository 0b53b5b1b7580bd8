"""Rule 58: simdgroup functions on the way out of loops that the threads of a simdgroup leave in different turns."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mpsgrad.msl.analysis.calls import reaching
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.statements import LOOPS, Range
from mpsgrad.msl.lint.flow import positions_in_threadgroup, splits_simdgroup
from mpsgrad.msl.lint.lanes import lanes_of
from mpsgrad.msl.lint.rule import Found, rule
from mpsgrad.msl.program import Kernel
from mpsgrad.msl.tokens import ASSIGNMENTS

_TOGETHER = re.compile(r"(?:simd|quad)_\w+")


@rule(
    58,
    "simd-function-at-exit",
    severity="warning",
    why="Before a break or return that some threads of a simdgroup take in other turns of the loop than others, Metal "
    "leaves open whether a simdgroup function sees those of one turn or, behind the loop, all of them.",
)
def simdgroups_leave_loops_together(source: Source) -> Iterator[Found]:
    """Sees if statements around break and return, in kernels, whose condition changes from turn to turn and compares
    the lane or what is read at a place that depends on it; conditions of the loop itself are not seen."""
    called = {source.text(index) for index in source.calls(_TOGETHER)} - source.declared_functions
    if not called:
        return
    together = reaching(source, called)
    for kernel in source.program.kernels:
        if not together.places(kernel.body_open, kernel.body_close):
            continue
        seen: set[int] = set()
        for loop, body in _loops(source, kernel):
            for jump in source.places("break", "return", start=body[0], end=body[1]):
                arm = _divergent_arm(source, kernel, loop, body, jump)
                if arm is None:
                    continue
                end = source.expression_end(jump)
                for index in together.calls(arm, end):
                    if index not in seen:
                        seen.add(index)
                        yield (
                            source.tokens[index],
                            f"'{source.text(index)}' on the way out of a loop that the threads of a simdgroup leave in "
                            f"different turns, by the {source.text(jump)} in line {source.tokens[jump].line}",
                        )


def _loops(source: Source, kernel: Kernel) -> Iterator[tuple[Range, Range]]:
    """All of each loop of a kernel, and its body."""
    for each in source.statements.deciding(*LOOPS, start=kernel.body_open, end=kernel.body_close):
        if each.parts:
            yield (each.word, each.end), each.parts[0]


def _divergent_arm(source: Source, kernel: Kernel, loop: Range, body: Range, jump: int) -> int | None:
    """Where the outermost arm begins that ``jump`` leaves ``loop`` from and that threads take in different turns."""
    around = source.statements.around
    if source.text(jump) == "break" and any(around(jump, *LOOPS, "switch", start=body[0])):
        return None
    for choice, (start, _) in around(jump, "if", start=body[0]):
        if not choice.is_constexpr and _changes(source, loop, choice.condition):
            if _diverges(source, kernel, choice.condition):
                return start
    return None


def _changes(source: Source, loop: Range, condition: Range) -> bool:
    """Whether a turn of the loop may change a condition: it reads memory, calls something or has a variable that the
    loop writes."""
    if source.places("(", "[", start=condition[0], end=condition[1]):
        return True
    written = {source.text(index - 1) for index in source.places(*ASSIGNMENTS, start=loop[0], end=loop[1])}
    for index in source.places("++", "--", start=loop[0], end=loop[1]):
        written |= {source.text(index - 1), source.text(index + 1)}
    return not written.isdisjoint(source.texts[condition[0] : condition[1]])


def _diverges(source: Source, kernel: Kernel, condition: Range) -> bool:
    """Whether lanes of one simdgroup may find different answers."""
    return lanes_of(source, kernel).differ(source, condition) or splits_simdgroup(
        source, condition, positions_in_threadgroup(source, kernel)
    )
