"""The loops that a compiler has to find a way past, or it takes a number that threads disagree about for all of them.

Where each way through a choice leads through a loop that is known to turn, Intel's vectorizer does not see that the
ways meet: ``if (x) { loop; r = 1; } else { loop; r = 2; }`` gave all threads that run abreast the ``r`` of the first.
One way past a loop, which is never gone but not known to be, is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from mpsgrad.msl.analysis.loops import loops_of
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.tokens import Token

_LOOPS = ("for", "while", "do")
_CHOICES = ("?", "&&", "||")
_JUMPS = ("return", "break", "continue")

Range = tuple[int, int]


def loops_to_pass_by(source: Source) -> list[Token]:
    """What begins such loops of ``source``: the word, or what stands before it and says how to compile the loop."""
    return [source.tokens[index] for index in sorted(_Detours(source).found)]


class _Detours:
    """The loops of one source that only some of the threads come to."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._loops = loops_of(source)
        self.found: set[int] = set()
        self._passed: set[int] = set()
        """Where the functions begin whose loops were looked at."""
        found = list(self._arms())
        count = sum(self._has_loop(*arm) for arms in found for arm in arms)
        for arms in found:
            turning = [arm for arm in arms if self._has_loop(*arm)]
            if len(turning) > 1:
                # A way past one of them is enough.
                self._pass_by(*min(turning, key=lambda arm: self._loops.size(*arm)))
            for arm in turning:
                if self._jumps(arm):
                    self._pass_by(*arm)
                elif count > 1:
                    self._pass_by(*arm, with_calls=False)
        for name in self._calls_in_choices():
            self._pass_by_function(name)

    def _arms(self) -> Iterator[list[Range]]:
        """What stands under each condition that is not known when the source is compiled."""
        source = self._source
        for index in source.places("if", "switch"):
            arms = source.arms(index) if source.in_body(index) else []
            if arms:
                yield arms

    def _jumps(self, arm: Range) -> bool:
        return bool(self._source.places(*_JUMPS, start=arm[0], end=arm[1]))

    def _calls_in_choices(self) -> list[str]:
        """Of each statement that chooses among calls of functions with loops, a function that is called."""
        source = self._source
        by_statement: dict[int, list[str]] = {}
        for place in self._calls(0, len(source.tokens)):
            start = place
            while start > 0 and source.text(start - 1) not in (";", "{", "}"):
                start -= 1
            by_statement.setdefault(start, []).append(source.text(place))
        return [
            names[-1]
            for start, names in by_statement.items()
            if len(names) > 1
            and source.places(*_CHOICES, start=start, end=source.statement_end(start, len(source.tokens)))
        ]

    def _calls(self, start: int, end: int) -> list[int]:
        """Where functions with loops are called there."""
        source = self._source
        places = source.places(*self._with_loops, start=start, end=end) if self._with_loops else []
        return [place for place in places if source.text(place + 1) in ("(", "<") and source.in_body(place)]

    def _has_loop(self, start: int, end: int) -> bool:
        return bool(self._source.places(*_LOOPS, start=start, end=end) or self._calls(start, end))

    def _pass_by(self, start: int, end: int, with_calls: bool = True) -> None:
        """Has the outermost loops there passed by, and those of the functions that are called there."""
        source = self._source
        place = start
        for index in source.places(*_LOOPS, *self._with_loops, start=start, end=end):
            if index < place:
                continue
            if source.text(index) not in _LOOPS:
                if with_calls and source.text(index + 1) in ("(", "<"):
                    self._pass_by_function(source.text(index))
            elif source.text(index) == "do" or source.close(index + 1) > 0:
                place = source.statement_end(index, len(source.tokens))
                if not self._loops.is_surely_unrolled(index):
                    self.found.add(self._loops.beginning(index))

    def _pass_by_function(self, name: str) -> None:
        for function in self._source.functions_by_name[name]:
            if function.kernel is None and function.body_open not in self._passed:
                self._passed.add(function.body_open)
                self._pass_by(function.body_open + 1, function.body_close)

    @cached_property
    def _with_loops(self) -> frozenset[str]:
        """The names of functions that have a loop, or call one that has."""
        return self._source.functions_that_reach(_LOOPS)
