"""Indices into threads' arrays that none of the threads may have found.

Where none of the threads that run abreast takes part, Intel's vectorizer neither reads memory nor divides for them. But
elements of their own arrays it reads for all of them at once where they agree about the index, and one from memory or
from a division is then whatever a register had: ``if (p) r[m[k]] += 1;`` in a loop crashed the process. With an index
that they might disagree about each thread reads by itself, and only if it takes part. All indices are made such that
are not surely defined: see ``defined_values``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from mpsgrad.msl.analysis.defined_values import defined_values
from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.loops import is_common
from mpsgrad.msl.analysis.source import Function, Source
from mpsgrad.msl.analysis.statements import DECIDING, Range
from mpsgrad.msl.analysis.template_brackets import template_brackets
from mpsgrad.msl.program import SHARED_SPACES
from mpsgrad.msl.tokens import ASSIGNMENTS, NUMBER, Span

_ELSEWHERE = frozenset({*SHARED_SPACES, "auto", "*", "&"})
_CHOOSING = (*(word for word in DECIDING if word != "for"), "?", "&&", "||", "return", "break", "continue", "goto")
_BEHIND_TERMS = frozenset("+ - < > <= >= == != ? : && || & | ^ << >> = , ; ) ] }".split()) | {""}


def indices_of_elements(source: Source) -> list[Span]:
    """Such indices into arrays and matrices of threads, and what is added to pointers to those."""
    return list(_Elements(source).indices())


class _Elements:
    """The elements of threads' arrays in one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._expressions = expressions_of(source)
        self._values = defined_values(source)

    def indices(self) -> Iterator[Span]:
        source = self._source
        for start, end in [*self._subscripts(), *self._steps()]:
            is_known = end <= start or end == start + 1 and source.kind(start) == NUMBER
            if is_known or self._is_object(start, end) or self._is_for_all(start):
                continue
            if not self._values.are_defined((start, end)):
                yield Span(source.tokens[start], source.tokens[end])

    def _subscripts(self) -> Iterator[Range]:
        """What stands in brackets behind threads' arrays."""
        source = self._source
        for opening in source.places("["):
            if source.in_body(opening) and self._is_near(opening):
                yield opening + 1, source.close(opening)

    def _steps(self) -> Iterator[Range]:
        """What is added to the names of threads' arrays and pointers."""
        source, brackets = self._source, template_brackets(self._source)
        for index in source.places("+", "-", "+=", "-="):
            variable = source.variable(source.text(index - 1), index - 1)
            if variable is None or not source.in_body(index) or source.text(index - 2) in (".", "->", "*"):
                continue
            kind = self._expressions.variable_type(variable)
            if kind is not None and kind.pointers and kind.space not in SHARED_SPACES:
                end = index + 1
                while source.text(end) not in _BEHIND_TERMS or end in brackets:
                    end = max(source.close(end), brackets.get(end, end)) + 1
                if source.text(index) in ASSIGNMENTS:
                    yield index + 1, source.expression_end(index + 1)
                elif source.text(end) not in ("<", ">"):
                    # A bracket of a template's arguments, perhaps.
                    yield index + 1, end

    def _is_object(self, start: int, end: int) -> bool:
        """Whether an object of a class stands there, as far as that is written: an operator says what it means."""
        source = self._source
        variable = source.variable(source.text(start), start) if end == start + 1 else None
        kind = variable.type if variable is not None else None
        is_object = kind is not None and kind.base in source.struct_bodies
        return is_object or bool(source.places("{", start=start, end=end))

    def _is_for_all(self, index: int) -> bool:
        """Whether all threads come there: the kernel chooses nothing, and its loops count to what all threads have."""
        return any(function.body_open < index < function.body_close for function in self._without_choice)

    @cached_property
    def _without_choice(self) -> list[Function]:
        source = self._source
        return [
            function
            for function in source.functions
            if function.kernel is not None
            and not source.places(*_CHOOSING, start=function.body_open, end=function.body_close)
            and all(
                is_common(source, (loop + 2, source.close(loop + 1)))
                for loop in source.places("for", start=function.body_open, end=function.body_close)
            )
        ]

    def _is_near(self, opening: int) -> bool:
        """Whether the bracket at ``opening`` stands behind a thread's array, a matrix or a pointer to such."""
        source = self._source
        base = self._values.base(opening)
        if base is not None:
            return bool(base.pointers or base.columns) and base.space not in SHARED_SPACES
        # Of a type that depends on a template, perhaps.
        start = source.chain_start(opening)
        variable = source.variable(source.text(start), start)
        if variable is None or variable.type is not None or variable.last == len(source.tokens):
            return False
        words = source.words_before(variable.place, "(")
        return "thread" in words or _ELSEWHERE.isdisjoint(words)
