"""The places of memory that neighbouring threads read or write side by side, where a compiler does not see it.

``x[row * n + i]`` is one access to a whole vector for threads that run abreast if ``i`` is their position, and they
agree about ``row * n``. But sums of unsigned numbers may wrap, and then the places would be far from each other: a
compiler has each thread find its own. As a sum of 64 bits, of what the threads agree about and of their position, it
does not wrap. Let ``p`` be the position, at most 2^31 - 1, and ``s`` the sum without it, taken as a signed number:
``s + p`` is the index wherever that is below 2^31, so that this is for memory with no more elements.

Kernels that return from inside of other statements are left: the compiler makes one access of those at which their ways
end, and Intel's vectorizer would take what threads disagree about for the same, as ``analysis.detours`` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from mpsgrad.msl.analysis.guards import returns_from_outside
from mpsgrad.msl.analysis.positions import Positions, changes
from mpsgrad.msl.analysis.source import Source, Variable
from mpsgrad.msl.analysis.statements import Range
from mpsgrad.msl.analysis.strides import Stride, strides_of
from mpsgrad.msl.analysis.types import Type, built_in
from mpsgrad.msl.program import SHARED_SPACES
from mpsgrad.msl.tokens import PUNCTUATION, Token

_OF_NEIGHBOURS = frozenset(
    {
        "thread_position_in_grid", "thread_position_in_threadgroup", "thread_index_in_threadgroup",
        "thread_index_in_simdgroup",
    }
)  # fmt: skip
_WITHIN_TERMS = frozenset("( [ . -> * / % ~ ::".split())
_DEEPEST = 8


class IndexOfNeighbours(NamedTuple):
    """An index that is a sum with a position in it: its first token, the bracket behind it, and that attribute."""

    first: Token
    closing: Token
    attribute: str


class Neighbours(NamedTuple):
    """The indices of neighbouring threads, and the loops whose variables begin with a position."""

    indices: list[IndexOfNeighbours]
    strides: list[Stride]


def neighbours_of(source: Source) -> Neighbours:
    """All of them in the kernels of ``source``; the indices are those into memory that threads share."""
    kernels = [KernelOfNeighbours(source, function) for function in source.functions if function.kernel]
    kernels = [kernel for kernel in kernels if kernel.is_told()]
    return Neighbours(
        [found for kernel in kernels for found in kernel.indices()],
        [found for kernel in kernels for found in kernel.strides()],
    )


class KernelOfNeighbours(Positions):
    """The indices and the loops of one kernel."""

    def is_told(self) -> bool:
        """Whether it gets a position, and a compiler may be told of its neighbours."""
        return self.has(_OF_NEIGHBOURS) and returns_from_outside(self._source, self._function)

    def strides(self) -> Iterator[Stride]:
        for variable, stride in self._strides.values():
            if variable.initialiser is not None and self.position_in(variable.initialiser) is not None:
                yield stride

    @cached_property
    def _strides(self) -> dict[int, tuple[Variable, Stride]]:
        """The loops that may be such, by the places of their variables."""
        return {found[0].place: found for found in strides_of(self._source, self._function)}

    def indices(self) -> Iterator[IndexOfNeighbours]:
        source = self._source
        for opening in source.places("[", start=self._function.body_open, end=self._function.body_close):
            start, end = opening + 1, source.close(opening)
            if end < 0 or self.is_position(start, end) or not self._is_shared(opening):
                continue
            kind = self._expressions.type_of(start, end)
            attribute = self.position_in((start, end))
            if kind is not None and kind.value == Type("uint") and attribute is not None:
                yield IndexOfNeighbours(source.tokens[start], source.tokens[end], attribute)

    def _is_shared(self, opening: int) -> bool:
        """Whether the bracket at ``opening`` stands behind a pointer to memory that threads share, or such an array."""
        base = self._expressions.type_of(self._source.chain_start(opening), opening)
        return base is not None and base.pointers > 0 and base.space in SHARED_SPACES

    def position_in(self, place: Range, depth: int = 0) -> str | None:
        """The attribute of a position that is a term of the sum at ``place``, by itself or in a variable."""
        return next(filter(None, (self._position_of(*term, depth) for term in self._terms(*place))), None)

    def _terms(self, start: int, end: int) -> Iterator[Range]:
        """What is added at ``start`` to ``end``: nothing unless that is a sum."""
        source = self._source
        terms = []
        sign, first, index = "+", start, start
        while index < end:
            text = source.text(index)
            if text in ("+", "-") and index > first:
                terms.append((sign, first, index))
                sign, first = text, index + 1
            elif source.kind(index) == PUNCTUATION and text not in _WITHIN_TERMS:
                return
            index = max(source.close(index), index) + 1
        terms.append((sign, first, end))
        yield from ((first, last) for sign, first, last in terms if sign == "+" and first < last)

    def _position_of(self, start: int, end: int, depth: int) -> str | None:
        """The attribute of the position that the term at ``start`` to ``end`` is, or is the sum of one with others."""
        source = self._source
        if depth > _DEEPEST:
            return None
        opening = start + (built_in(source.text(start)) is not None)
        if source.text(opening) == "(" and source.close(opening) == end - 1:
            return self.position_in((opening + 1, end - 1), depth + 1)
        variable = source.variable(source.text(start), start)
        components = source.texts[start + 1 : end]
        if variable is None or components not in ([], [".", "x"]):
            return None
        attribute = self.of_neighbours(variable)
        if attribute is not None or variable.initialiser is None:
            return attribute
        if variable.place not in self._strides and changes(source, variable):
            return None
        first, last = variable.initialiser
        if components:
            # A position with several components has no other terms.
            return self._position_of(first, last, depth + 1) if last == first + 1 else None
        return self.position_in((first, last), depth + 1)

    def is_position(self, start: int, end: int) -> bool:
        """Whether a position alone stands at ``start`` to ``end``."""
        variable = self._source.variable(self._source.text(start), start)
        is_one_component = self._source.texts[start + 1 : end] in ([], [".", "x"])
        return is_one_component and variable is not None and self.of_neighbours(variable) is not None

    def of_neighbours(self, variable: Variable) -> str | None:
        """The attribute that makes a parameter one more in the next thread."""
        attribute = self.attribute(variable)
        return attribute if attribute in _OF_NEIGHBOURS else None
