"""Ranges that lie in each other, such as loops and choices: which of them are around a place."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence


class Nesting:
    """``ranges`` are in the order of their beginnings, and two of them are apart or one in the other."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._starts = [start for start, _ in ranges]
        self._ends = [end for _, end in ranges]
        # The number of the range that each is in, or -1.
        self._outer: list[int] = []
        for number, start in enumerate(self._starts):
            around = number - 1
            while around >= 0 and self._ends[around] <= start:
                around = self._outer[around]
            self._outer.append(around)

    def around(self, index: int) -> Iterator[int]:
        """The numbers of the ranges that begin before ``index`` and end behind it, the innermost first."""
        number = bisect_left(self._starts, index) - 1
        while number >= 0:
            if index < self._ends[number]:
                yield number
            number = self._outer[number]
