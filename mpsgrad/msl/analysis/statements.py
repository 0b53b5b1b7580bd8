"""Where statements begin and end, and what they are made of.

A statement may be the body of another without braces, so that an ``else`` belongs to the ``if`` next to it, and what
stands before one (pragmas, attributes) or labels it belongs to it. Nothing here is deep: a chain of ``else if`` may be
as long as it likes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from mpsgrad.msl.tokens import IDENTIFIER

if TYPE_CHECKING:
    from mpsgrad.msl.analysis.source import Source

LOOPS = ("for", "while", "do")
LABELS = ("case", "default")
DECIDING = ("if", "switch", *LOOPS)

_MARKS = frozenset({"_Pragma", "__attribute__"})

Range = tuple[int, int]


class Statement(NamedTuple):
    """The statement ``tokens[start:end]``, what it is by the token ``word`` behind pragmas and attributes.

    ``condition`` is what stands between the brackets of ``if``, ``switch`` and loops; ``parts`` are the statements in
    it: the body, both arms of an ``if``, or what a label stands before.
    """

    start: int
    word: int
    end: int
    condition: Range = (0, 0)
    parts: tuple[Range, ...] = ()

    @property
    def is_constexpr(self) -> bool:
        """Whether it is an ``if`` whose condition is known when it is compiled."""
        return self.condition[0] == self.word + 3


class Section(NamedTuple):
    """What a ``switch`` does from the labels at ``labels`` to the next ones: ``tokens[start:end]``."""

    labels: tuple[int, ...]
    start: int
    end: int


class Statements:
    """The statements of one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kept: dict[int, Statement] = {}

    def at(self, index: int) -> Statement:
        """The statement that begins at ``index``."""
        text, limit = self._source.text, len(self._source.tokens)
        around: list[tuple[int, int, Range, list[Range]]] = []
        while True:
            statement = self._kept.get(index)
            if statement is None:
                word = self._behind_marks(index)
                condition, body = self._head(word)
                if body and body < limit:
                    around.append((index, word, condition, []))
                    index = body
                    continue
                statement = Statement(index, word, self._simple_end(word), condition)
            while True:
                self._kept[statement.start] = statement
                if not around:
                    return statement
                start, word, condition, parts = around[-1]
                end = statement.end
                parts.append((statement.start, end))
                if text(word) == "if" and len(parts) == 1 and text(end) == "else" and end + 1 < limit:
                    index = end + 1
                    break
                around.pop()
                if text(word) == "do" and text(end) == "while" and self._source.close(end + 1) > 0:
                    condition = (end + 2, self._source.close(end + 1))
                    end = self._simple_end(condition[1] + 1)
                statement = Statement(start, word, end, condition, tuple(parts))

    def between(self, start: int, end: int) -> Iterator[Statement]:
        """The statements one behind the other from ``start`` to ``end``."""
        while start < end and (statement := self.at(start)).word < end:
            yield statement
            start = statement.end

    def deciding(self, *words: str, start: int = 0, end: int | None = None) -> Iterator[Statement]:
        """The statements that begin there with ``words``, of ``DECIDING``, in order."""
        for index in self._source.places(*words, start=start, end=end):
            if index not in self._ends_of_do:
                yield self.at(index)

    def around(self, index: int, *words: str, start: int) -> Iterator[tuple[Statement, Range]]:
        """The statements with ``words`` from ``start`` on that ``index`` is in, the outermost first, and in which of
        their parts it is."""
        for each in self.deciding(*words, start=start, end=index):
            for part in each.parts:
                if part[0] <= index < part[1]:
                    yield each, part

    @cached_property
    def _ends_of_do(self) -> frozenset[int]:
        return frozenset(self.at(index).condition[0] - 2 for index in self._source.places("do"))

    def sections(self, statement: Statement) -> list[Section]:
        """The sections of a ``switch``; what stands before its first label is none."""
        text = self._source.text
        found: list[Section] = []
        for body in statement.parts:
            opening = self.at(body[0]).word
            is_block = text(opening) == "{"
            for each in self.between(opening + 1, body[1] - 1) if is_block else [self.at(body[0])]:
                labels: list[int] = []
                first, end = each.start, each.end
                while text(each.word) in LABELS:
                    labels.append(each.word)
                    first = self.colon(each.word) + 1
                    if not each.parts:
                        break
                    each = self.at(first)
                if labels:
                    found.append(Section(tuple(labels), first, end))
                elif found:
                    found[-1] = found[-1]._replace(end=end)
        return found

    def clauses(self, condition: Range) -> list[Range]:
        """What stands between the semicolons there: three parts in a ``for``, one if it is over a range."""
        return self._source.parts(*condition, ";")

    def _head(self, word: int) -> tuple[Range, int]:
        """The condition of a statement that holds others, and where the first of them begins; 0 if there is none."""
        text, source = self._source.text(word), self._source
        if text == "do":
            return (0, 0), word + 1
        if text in DECIDING:
            opening = word + 1 + (source.text(word + 1) == "constexpr")
            close = source.close(opening)
            return ((opening + 1, close), close + 1) if source.text(opening) == "(" and close > 0 else ((0, 0), 0)
        if text in LABELS:
            body = self.colon(word) + 1
            return (0, 0), 0 if source.text(body) in ("}", "") else body
        return (0, 0), 0

    def colon(self, index: int) -> int:
        """The colon of the label at ``index``, or where what it stands in ends."""
        choices = 0
        while self._source.text(index) not in ("", ";", "{", "}"):
            text = self._source.text(index)
            if text == ":" and not choices:
                break
            choices += (text == "?") - (text == ":")
            index = max(self._source.close(index), index) + 1
        return index

    def _behind_marks(self, index: int) -> int:
        """The index behind pragmas and attributes."""
        source = self._source
        while True:
            opening = index + (source.text(index) in _MARKS)
            is_mark = source.text(opening) == "(" and opening > index
            if is_mark or source.text(index) == source.text(index + 1) == "[":
                if source.close(opening) < 0:
                    return index
                index = source.close(opening) + 1
            elif source.kind(index) == "pragma":
                index += 1
            else:
                return index

    def _simple_end(self, index: int) -> int:
        """The index behind the block at ``index``, or behind the next semicolon."""
        source = self._source
        if source.text(index) == "{" and source.close(index) > 0:
            return source.close(index) + 1
        end = source.find_end(index, len(source.tokens))
        return max(end + (source.text(end) == ";"), index + 1)


def opening_of_parts(source: Source, auto: int) -> int:
    """The bracket around the names that ``auto [a, b] = pair`` or ``auto& [a, b]`` declares; -1 if it is none."""
    opening = auto + 1 + (source.text(auto + 1) in ("&", "&&"))
    return opening if source.text(opening) == "[" and source.close(opening) > 0 else -1


def names_of_parts(source: Source) -> frozenset[str]:
    """What is declared so anywhere in ``source``."""

    def names() -> frozenset[str]:
        openings = [opening_of_parts(source, index) for index in source.places("auto")]
        inside = (range(opening + 1, source.close(opening)) for opening in openings if opening > 0)
        return frozenset(source.text(place) for each in inside for place in each) - {","}

    return source.keep(("names of parts",), names)


def declared_in_condition(source: Source, start: int, end: int) -> int | None:
    """The name of the variable that the condition there declares."""
    if source.text(end - 1) == "}":
        name = source.close(end - 1) - 1
        variable = source.variable(source.text(name), name)
        return name if variable is not None and variable.place == name > start else None
    equals = next((k for k in source.places("=", start=start, end=end) if source.find_end(start, k) == k), None)
    if equals is None or equals - start < 2 or source.kind(start) != IDENTIFIER:
        return None
    is_behind_type = source.kind(equals - 2) == IDENTIFIER or source.text(equals - 2) in ("*", "&", ">")
    return equals - 1 if is_behind_type and source.kind(equals - 1) == IDENTIFIER else None
