"""The conditions by which kernels keep out threads beyond their work.

``if (i < n) y[i] = x[i];`` stores under a mask where threads run abreast, and a processor with AVX2 may take ten times
as long for that. If the last thread of a threadgroup meets the condition, all do, so that a short statement may stand
there once more without it. One in which threads may go several ways through loops is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from mpsgrad.msl.analysis.calls import reaching
from mpsgrad.msl.analysis.divergence import BARRIER
from mpsgrad.msl.analysis.loops import loops_of
from mpsgrad.msl.analysis.positions import Positions, changes
from mpsgrad.msl.analysis.source import Function, Source
from mpsgrad.msl.analysis.statements import Range, Statement
from mpsgrad.msl.library_marks import ANY_THREAD
from mpsgrad.msl.tokens import ASSIGNMENTS, Token

SHORT = 80
"""Tokens, each turn of loops counted, from which on the mask is little beside what it guards, which would be long to
compile twice."""
_STAYING = {"<": "<", "<=": "<=", ">": "<", ">=": "<="}
_LEAVING = {">=": "<", ">": "<=", "<=": "<", "<": "<="}
_AXES = {"x": 0, "y": 1, "z": 2}
_ONCE = ("threadgroup", "constant", "static", "goto")
_JUMPING = ("while", "do", "switch", "return", "break", "continue")
_CHOOSING = ("if", "?", "&&", "||")
_TOGETHER = re.compile(rf"(?:simd|quad|simdgroup)_\w+|{BARRIER}|{ANY_THREAD}")
_DEEPEST = 8


class Comparison(NamedTuple):
    """``position operator limit``, with a position in the grid along ``axis`` as a number of type ``kind``."""

    axis: int
    kind: str
    operator: str
    limit: list[Token]


class Guard(NamedTuple):
    """What begins with the word ``if`` lets in threads for which all ``comparisons`` are true, and has them do what
    begins with ``first``; both end before ``end``."""

    word: Token
    first: Token
    end: Token
    comparisons: tuple[Comparison, ...]


def guards_of(source: Source) -> list[Guard]:
    """Such conditions in the bodies of the kernels of ``source`` that a short statement stands behind, by which memory
    is written."""
    return [guard for function in source.functions if function.kernel for guard in _Kernel(source, function).guards()]


def returns_from_outside(source: Source, function: Function) -> bool:
    """Whether a kernel returns nowhere but by ``if (...) return;`` and the like among its outermost statements."""
    outside = 0
    for each in source.statements.between(function.body_open + 1, function.body_close):
        outside += source.text(each.word) == "return" or _leaves(source, each)
    return outside == len(source.places("return", start=function.body_open, end=function.body_close))


def _leaves(source: Source, statement: Statement) -> bool:
    """Whether a statement is ``if (...) return;``."""
    if source.text(statement.word) != "if" or len(statement.parts) != 1:
        return False
    start, end = statement.parts[0]
    return [text for text in source.texts[start:end] if text not in ("{", "}")] == ["return", ";"]


class _Kernel(Positions):
    """The guards of one kernel."""

    def guards(self) -> Iterator[Guard]:
        source, function = self._source, self._function
        if not self.has(["thread_position_in_grid"]):
            return
        tokens = source.tokens
        for each in source.statements.between(function.body_open + 1, function.body_close):
            if source.text(each.word) != "if" or len(each.parts) != 1 or each.is_constexpr or each.start != each.word:
                continue
            leaves = _leaves(source, each)
            guarded = (each.end, function.body_close) if leaves else each.parts[0]
            comparisons = self._comparisons(each.condition, leaves)
            if comparisons and self._may_be_copied(*guarded):
                first, end = guarded
                yield Guard(tokens[each.word], tokens[first], tokens[end], comparisons)
                if leaves:
                    return

    def _may_be_copied(self, start: int, end: int) -> bool:
        source = self._source
        if not any(source.text(index + 1) in ASSIGNMENTS for index in source.places("]", start=start, end=end)):
            return False
        if source.places(*_ONCE, *_JUMPING, start=start, end=end) or any(
            source.kind(index) == "pragma" for index in range(start, end)
        ):
            return False
        if source.places("for", start=start, end=end) and source.places(*_CHOOSING, start=start, end=end):
            return False
        together = [source.text(index) for index in source.matches(_TOGETHER)]
        return not reaching(source, together).places(start, end) and loops_of(source).size(start, end) < SHORT

    def _comparisons(self, condition: Range, leaves: bool) -> tuple[Comparison, ...]:
        """What has to be true for a thread to be let in; nothing if the condition has another form."""
        found = []
        for start, end in self._source.parts(*condition, "||" if leaves else "&&"):
            comparison = self._comparison(start, end, leaves)
            if comparison is None:
                return ()
            found.append(comparison)
        return tuple(found)

    def _comparison(self, start: int, end: int, leaves: bool) -> Comparison | None:
        source = self._source
        while source.text(start) == "(" and source.close(start) == end - 1:
            start, end = start + 1, end - 1
        operators = _LEAVING if leaves else _STAYING
        index = start
        while index < end and source.text(index) not in operators:
            index = max(source.close(index), index) + 1
        left, right = (start, index), (index + 1, end)
        if index >= end:
            return None
        is_turned = source.text(index).startswith("<") == leaves
        place, limit = (right, left) if is_turned else (left, right)
        position = self._position(*place)
        kind = self._expressions.type_of(*limit)
        if position is None or kind is None or not kind.is_scalar or not self.is_uniform(*limit):
            return None
        return Comparison(*position, operators[source.text(index)], source.tokens[limit[0] : limit[1]])

    def _position(self, start: int, end: int, depth: int = 0) -> tuple[int, str] | None:
        """The axis and the type of the position in the grid that stands there, by itself or as a variable's value."""
        source = self._source
        opening = start + (source.text(start) in ("int", "uint"))
        if source.text(opening) == "(" and source.close(opening) == end - 1 and depth < _DEEPEST:
            found = self._position(opening + 1, end - 1, depth + 1)
            return (found[0], source.text(start)) if found and opening > start else found
        variable = source.variable(source.text(start), start)
        if variable is None or variable.type is None or changes(source, variable):
            return None
        component = source.text(start + 2) if source.text(start + 1) == "." else ""
        if end - start != (3 if component else 1) or variable.type.base not in ("int", "uint"):
            return None
        if self.attribute(variable) == "thread_position_in_grid":
            axis = _AXES.get(component or "x")
            is_whole = bool(component) == variable.type.is_vector
            return (axis, "uint") if axis is not None and is_whole else None
        if variable.initialiser is None or component or not variable.type.is_scalar or depth > _DEEPEST:
            return None
        found = self._position(*variable.initialiser, depth + 1)
        return found and (found[0], variable.type.base)
