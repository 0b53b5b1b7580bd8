"""Divisors that a compiler takes for other than zero where no thread divides, or the process ends.

Behind ``if (c < 8)`` a compiler knows that ``c + 1`` is no sum that begins anew at zero, and notes that in the sum. Of
a sum with such a note Intel's knows that it is not zero, and divides by it where it is the same in all turns of a loop,
or for all threads, before it asks whether any of them divides: ``if (c < 8) r += h / (c + 1);`` ended the process where
``c`` was 0xffffffff. Of a divisor with a bit that might change, for all it knows, it knows nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpsgrad.msl.analysis.calls import functions_meant
from mpsgrad.msl.analysis.defined_values import DefinedValues, defined_values
from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.source import Source, Variable
from mpsgrad.msl.analysis.statements import Range
from mpsgrad.msl.analysis.types import FLOATS
from mpsgrad.msl.program import SHARED_SPACES
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, Span, matching_angle

_STEPS = frozenset("++ -- += -= *= <<=".split())
_COMPUTING = _STEPS | frozenset("+ - * <<".split())
_PREFIXES = frozenset("+ - ~ ! * & ++ --".split())
_DEEPEST = 8


def divisors_of(source: Source) -> Iterator[Span]:
    """Such divisors: those that are computed from what is no number once loops are unrolled."""
    finder = _Divisors(source)
    for index in source.places("/", "%", "/=", "%="):
        if source.in_body(index):
            place = index + 1, finder.end(index)
            if finder.is_found(place):
                yield Span(source.tokens[place[0]], source.tokens[place[1]])


class _Divisors:
    """The divisors in one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._values: DefinedValues = defined_values(source)
        self._known: dict[int, bool] = {}

    def end(self, index: int) -> int:
        """The end of what the operator at ``index`` divides by."""
        source = self._source
        if source.text(index).endswith("="):
            return source.expression_end(index + 1)
        end = index + 1
        while source.text(end) in _PREFIXES:
            end += 1
        while source.text(end) == "(" or source.kind(end) in (IDENTIFIER, NUMBER):
            end = self._behind_operand(end)
        return end

    def _behind_operand(self, index: int) -> int:
        """The end of one operand, or of a cast."""
        source = self._source
        end = source.close(index) + 1 if source.text(index) == "(" else index + 1
        while True:
            text = source.text(end)
            if text in ("(", "[", "{") and source.close(end) > 0 and (text != "{" or source.is_type(end - 1)):
                end = source.close(end) + 1
            elif text in (".", "->", "::"):
                end += 2
            elif text == "<" and source.kind(end - 1) == IDENTIFIER:
                close = matching_angle(source.tokens, end, certain=True)
                if close is None:
                    return end
                end = close + 1
            else:
                return end

    def is_found(self, place: Range) -> bool:
        if self._values.is_fixed(place) or not self._is_computed(place, 0):
            return False
        kind = expressions_of(self._source).type_of(*place)
        return kind is None or kind.base not in FLOATS

    def _is_computed(self, place: Range, depth: int) -> bool:
        """Whether an integer may be computed there from others."""
        source = self._source
        if depth > _DEEPEST or source.places(*_COMPUTING, start=place[0], end=place[1]):
            return True
        for index in range(*place):
            if source.kind(index) != IDENTIFIER or source.text(index - 1) in (".", "->"):
                continue
            variable = source.variable(source.text(index), index)
            if variable is None:
                if functions_meant(source, index):
                    return True
            elif self._is_variable_computed(variable, source.text(index + 1), depth):
                return True
        return False

    def _is_from_elsewhere(self, variable: Variable) -> bool:
        """Whether it is a member, or a parameter of a function that is no kernel and of which no call is known."""
        source = self._source
        if variable.first < variable.place:
            is_of_kernel = any(each.kernel is not None and each.opening == variable.first for each in source.functions)
            return not is_of_kernel and not self._values.given_to(variable)
        return not source.in_body(variable.place) and variable.last < len(source.tokens)

    def _is_variable_computed(self, variable: Variable, behind: str, depth: int) -> bool:
        source = self._source
        if variable.type is not None and variable.type.space in SHARED_SPACES:
            return False
        if behind in (".", "->", "[", "(") or self._is_from_elsewhere(variable):
            # Something of it may be.
            return True
        if variable.place not in self._known:
            self._known[variable.place] = False
            steps = (
                source.text(index - 1) in ("++", "--") or source.text(index + 1) in _STEPS
                for index in source.places(variable.name, start=variable.place + 1, end=variable.last)
            )
            self._known[variable.place] = any(steps) or any(
                self._is_computed(value, depth + 1) for value in self._values.values_of(variable)
            )
        return self._known[variable.place]
