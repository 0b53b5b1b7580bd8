"""Indices into threads' arrays that none of the threads may have found.

Where none of the threads that run abreast takes part, Intel's vectorizer neither reads memory nor divides for them. But
elements of their own arrays it reads for all of them at once where they agree about the index, and one from memory or
from a division is then whatever a register had: ``if (p) r[m[k]] += 1;`` in a loop crashed the process. With an index
that they might disagree about each thread reads by itself, and only if it takes part.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.loops import loops_of
from mpsgrad.msl.analysis.source import Function, Source, Variable
from mpsgrad.msl.analysis.statements import DECIDING, Range
from mpsgrad.msl.analysis.types import Type
from mpsgrad.msl.program import SHARED_SPACES
from mpsgrad.msl.tokens import ASSIGNMENTS, IDENTIFIER, NUMBER, Token

_ELSEWHERE = frozenset({*SHARED_SPACES, "auto", "*", "&"})
_CHOOSING = (*(word for word in DECIDING if word != "for"), "?", "&&", "||", "return", "break", "continue", "goto")
_BEHIND_TERMS = frozenset("+ - < > <= >= == != ? : && || & | ^ << >> = , ; ) ] }".split()) | {""}
_DEEPEST = 8
_DIVISIONS = ("/", "%", "/=", "%=")


class IndexOfElement(NamedTuple):
    """Such an index: its first token, and the one behind it."""

    first: Token
    behind: Token


def indices_of_elements(source: Source) -> list[IndexOfElement]:
    """Such indices into arrays and matrices of threads, and what is added to pointers to those."""
    return list(_Elements(source).indices())


class _Elements:
    """The elements of threads' arrays in one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._expressions = expressions_of(source)
        self._loops = loops_of(source)
        self._read: dict[int, bool] = {}
        self._fixed: dict[int, bool] = {}

    def indices(self) -> Iterator[IndexOfElement]:
        source = self._source
        for start, end in [*self._subscripts(), *self._steps()]:
            is_known = end <= start or end == start + 1 and source.kind(start) == NUMBER
            if not is_known and not self._is_for_all(start) and self._is_read_or_divided((start, end)):
                yield IndexOfElement(source.tokens[start], source.tokens[end])

    def _subscripts(self) -> Iterator[Range]:
        """What stands in brackets behind threads' arrays."""
        source = self._source
        for opening in source.places("["):
            if source.in_body(opening) and self._is_near(opening):
                yield opening + 1, source.close(opening)

    def _steps(self) -> Iterator[Range]:
        """What is added to the names of threads' arrays and pointers."""
        source = self._source
        for index in source.places("+", "-", "+=", "-="):
            variable = source.variable(source.text(index - 1), index - 1)
            if variable is None or not source.in_body(index) or source.text(index - 2) in (".", "->"):
                continue
            kind = self._expressions.variable_type(variable)
            if kind is not None and kind.pointers and kind.space not in SHARED_SPACES:
                end = index + 1
                while source.text(end) not in _BEHIND_TERMS:
                    end = max(source.close(end), end) + 1
                if source.text(index) in ASSIGNMENTS:
                    yield index + 1, source.expression_end(index + 1)
                elif source.text(end) not in ("<", ">"):
                    # A bracket of a template's arguments, perhaps.
                    yield index + 1, end

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
                self._is_common((loop + 2, source.close(loop + 1)))
                for loop in source.places("for", start=function.body_open, end=function.body_close)
            )
        ]

    def _is_common(self, head: Range) -> bool:
        """Whether a loop's head names its own variable and what all threads have."""
        source = self._source
        named = (source.variable(source.text(index), index) for index in range(*head))
        return all(
            head[0] <= variable.place < head[1]
            or self._is_of_program(variable)
            or variable.is_reference
            and variable.type is not None
            and variable.type.space in SHARED_SPACES
            for variable in named
            if variable is not None
        ) and not source.places("[", "*", "->", "(", start=head[0], end=head[1])

    def _is_near(self, opening: int) -> bool:
        """Whether the bracket at ``opening`` stands behind a thread's array, a matrix or a pointer to such."""
        source = self._source
        base = self._base(opening)
        if base is not None:
            return bool(base.pointers or base.columns) and base.space not in SHARED_SPACES
        # Of a type that depends on a template, perhaps.
        start = source.chain_start(opening)
        variable = source.variable(source.text(start), start)
        if variable is None or variable.type is not None or not source.in_body(variable.place):
            return False
        begin = variable.place
        while source.text(begin - 1) not in (";", "{", "}", "(", ""):
            begin -= 1
        return _ELSEWHERE.isdisjoint(source.texts[begin : variable.place])

    def _base(self, opening: int) -> Type | None:
        is_in_brackets = self._source.text(opening - 1) == ")"
        start = self._source.close(opening - 1) if is_in_brackets else self._source.chain_start(opening)
        if is_in_brackets and self._source.kind(start - 1) == IDENTIFIER:
            return None
        return self._expressions.type_of(start, opening) if start < opening else None

    def _is_read_or_divided(self, place: Range, depth: int = 0) -> bool:
        """Whether the value of an expression is from memory or from a division, by itself or by a variable."""
        source = self._source
        if any(source.text(index) in _DIVISIONS for index in range(*place)) and not self._is_fixed(place):
            return True
        for index in range(*place):
            text = source.text(index)
            if text == "[":
                base = self._base(index)
                if base is not None and base.space in SHARED_SPACES and self._is_of_function(source.chain_start(index)):
                    return True
            elif source.kind(index) == IDENTIFIER and source.text(index - 1) not in (".", "->"):
                variable = source.variable(text, index)
                if variable is not None and self._is_from_memory(variable, index, depth):
                    return True
        return False

    def _is_from_memory(self, variable: Variable, index: int, depth: int) -> bool:
        source = self._source
        kind = variable.type
        if kind is not None and kind.space in SHARED_SPACES:
            is_object = variable.is_reference or source.text(index + 1) == "->" or source.text(index - 1) == "*"
            return is_object and self._is_of_function(index)
        if depth > _DEEPEST:
            return False
        if variable.place not in self._read:
            self._read[variable.place] = False
            self._read[variable.place] = any(
                self._is_read_or_divided(value, depth + 1) for value in self._values(variable)
            )
        return self._read[variable.place]

    def _is_of_function(self, index: int) -> bool:
        """Whether the name at ``index`` is one of a function's, and not of a table of the program's."""
        variable = self._source.variable(self._source.text(index), index)
        return variable is not None and not self._is_of_program(variable)

    def _is_of_program(self, variable: Variable) -> bool:
        return variable.last == len(self._source.tokens)

    def _is_fixed(self, place: Range, depth: int = 0) -> bool:
        """Whether an expression is a number when loops are unrolled."""
        source = self._source
        for index in range(*place):
            if source.kind(index) != IDENTIFIER or source.text(index - 1) in (".", "->"):
                continue
            variable = source.variable(source.text(index), index)
            if variable is not None and not self._is_number(variable, depth):
                return False
        return True

    def _is_number(self, variable: Variable, depth: int) -> bool:
        source = self._source
        if variable.name in source.template_values or self._is_of_program(variable):
            return True
        if depth > _DEEPEST:
            return False
        if variable.place not in self._fixed:
            self._fixed[variable.place] = True
            loop = next((p - 1 for p in range(variable.place, variable.place - 6, -1) if source.text(p) == "("), -1)
            if source.text(loop) == "for":
                head = (loop + 2, source.close(loop + 1))
                is_number = self._loops.may_be_unrolled(loop) and self._is_fixed(head, depth + 1)
            else:
                values = self._values(variable)
                is_number = bool(values) and all(self._is_fixed(value, depth + 1) for value in values)
            self._fixed[variable.place] = is_number
        return self._fixed[variable.place]

    def _values(self, variable: Variable) -> list[Range]:
        """What a variable gets: at first, later, or from calls."""
        source = self._source
        values = [variable.initialiser] if variable.initialiser is not None else []
        if source.text(variable.place + 1) in ("(", "{"):
            values.append((variable.place + 2, source.close(variable.place + 1)))
        for index in source.places(variable.name, start=variable.place + 1, end=variable.last):
            if source.text(index + 1) in ASSIGNMENTS and source.text(index - 1) not in (".", "->"):
                values.append((index + 2, source.expression_end(index + 2, variable.last)))
        return values + self._passed.get(variable.place, [])

    @cached_property
    def _passed(self) -> dict[int, list[Range]]:
        found: dict[int, list[Range]] = {}
        for _, _, place, start, end in self._source.passed():
            found.setdefault(place, []).append((start, end))
        return found
