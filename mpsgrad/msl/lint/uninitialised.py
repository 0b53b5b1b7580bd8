"""Rule 59: variables of threads that are read before they have a value."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import cache

from mpsgrad.msl.analysis.source import WRITING_FUNCTIONS, Function, Source, Variable
from mpsgrad.msl.analysis.statements import DECIDING, LABELS, Range, Statement
from mpsgrad.msl.analysis.types import SIZES, built_in
from mpsgrad.msl.instrument.declarators import DeclaratorReader
from mpsgrad.msl.instrument.tree import Node, NotUnderstood, TreeReader
from mpsgrad.msl.lint.library import LIBRARY_FUNCTIONS
from mpsgrad.msl.lint.rule import Found, rule

_DEEPEST = 60
_JUMPS = frozenset({"break", "continue", "return"})
_SKIPPED = frozenset("using typedef static_assert struct class union enum template".split())
_WRITING_FIRST = frozenset({"simdgroup_load", "simdgroup_multiply", "simdgroup_multiply_accumulate"})
_MATRIX_OF_SIMDGROUP = re.compile(r"simdgroup_(matrix|(half|float|bfloat)8x8)")
_NO_OBJECTS = frozenset({"threadgroup", "extern", "static", "constant"})


@rule(
    59,
    "uninitialised",
    words="variable '...' is uninitialized when used here",
    severity="warning",
    why="A thread's variables begin with any value, on CPUs often with 0 and on GPUs with what a register held before.",
)
def variables_have_values(source: Source) -> Iterator[Found]:
    """Sees variables and arrays of built-in types and simdgroup matrices that no way to the place gives a value; what
    a function may have given one counts as such a way."""
    places = sorted(_without_initialiser(source))
    for function in source.functions:
        has_any = bisect_left(places, function.body_open) < bisect_left(places, function.body_close)
        if has_any and source.text(function.body_open) == "{":
            reader = _Reader(source, function)
            reader.block(function.body_open + 1, function.body_close, {})
            for place, name in reader.found.items():
                yield source.tokens[place], f"variable '{name}' is uninitialized when used here"


def _without_initialiser(source: Source) -> Iterator[int]:
    """The places of the variables of built-in types that are declared without a value."""
    for variables in source.variables.values():
        for variable in variables:
            index = variable.place + 1
            while source.text(index) == "[":
                index = max(source.close(index), index) + 1
            if source.text(index) not in ("=", "(", "{") and _is_built_in(source, variable):
                yield variable.place


def _is_built_in(source: Source, variable: Variable) -> bool:
    """Whether a variable may begin with any value: it is no reference, and no constructor is called."""
    kind = variable.type
    if variable.is_reference:
        return False
    if kind is None:
        return any(map(_MATRIX_OF_SIMDGROUP.fullmatch, source.words_before(variable.place, "(")))
    return kind.known and kind.base in SIZES and not kind.columns


class _Value(Enum):
    """What a variable has when a place is come to: certainly nothing, or perhaps a value."""

    NONE = 0
    SOME = 1


# The variables, by their places; None where no thread comes to.
_State = dict[int, _Value] | None


def _joined(first: _State, second: _State) -> _State:
    """What variables have where two ways meet."""
    if first is None or second is None:
        return second if first is None else first
    return {place: _Value(max(value.value, second.get(place, value).value)) for place, value in first.items()}


class _Reader:
    """One way through the body of a function."""

    def __init__(self, source: Source, function: Function) -> None:
        self.found: dict[int, str] = {}
        self._source = source
        self._text = source.text
        self._function = function
        self._place = function.body_open
        self._declarators = DeclaratorReader(source, self._is_variable)
        trees = TreeReader(source, self._is_variable)
        # What is in a loop is read twice.
        self._expression = cache(trees.expression)
        self._initialiser = cache(trees.initialiser)
        self._arguments = cache(trees.arguments)
        # What variables have where ``break`` and ``continue`` stand, for each of the loops and ``switch`` around.
        self._left: list[_State] = []
        self._turned: list[_State] = []
        self._depth = 0
        self._is_first_turn = False
        self._choices = self._loops = 0

    def _is_variable(self, name: str) -> bool:
        return self._source.variable(name, self._place) is not None

    # Statements.

    def block(self, index: int, end: int, state: _State) -> _State:
        """What variables have behind the statements from ``index`` to ``end``."""
        for each in self._source.statements.between(index, end):
            state = self._statement(each, state)
        return state

    def _statement(self, statement: Statement, state: _State) -> _State:
        index, end = statement.word, statement.end
        self._place = index
        text = self._text(index)
        self._depth += 1
        try:
            if state is None or index >= end or text == ";" or text in _SKIPPED or self._depth > _DEEPEST:
                return state
            if text == "{":
                return self.block(index + 1, end - 1, state)
            if text in DECIDING:
                return self._flow(statement, state)
            if text in _JUMPS:
                if text == "return" and end > index + 2:
                    self._read(self._initialiser(index + 1, end - 1), state)
                ways = {"break": self._left, "continue": self._turned}.get(text)
                if ways:
                    ways[-1] = _joined(ways[-1], state)
                return None
            if text in LABELS:
                return self._part(statement, 0, state)
            return self._simple(index, end - 1, dict(state))
        except NotUnderstood:
            return self._given_up(index, end, state)
        finally:
            self._depth -= 1

    def _given_up(self, start: int, end: int, state: _State) -> _State:
        """Behind what is not understood any variable that it names may have a value."""
        named = {variable.place for index in range(start, end) if (variable := self._variable(index)) is not None}
        return {place: _Value.SOME if place in named else value for place, value in (state or {}).items()}

    def _variable(self, index: int) -> Variable | None:
        return self._source.variable(self._text(index), index) if self._text(index - 1) not in (".", "->") else None

    def _part(self, statement: Statement, number: int, state: _State) -> _State:
        """What variables have behind one of the statements in another; where it is not there, as before."""
        if number >= len(statement.parts):
            return state
        return self._statement(self._source.statements.at(statement.parts[number][0]), state)

    def _flow(self, statement: Statement, state: dict[int, _Value]) -> _State:
        word = self._text(statement.word)
        if not statement.parts or not any(statement.condition):
            raise NotUnderstood(statement.word)
        if word == "if":
            return self._choice(statement, state)
        if word == "switch":
            return self._sections(statement, state)
        turn = [statement.condition, (0, 0)]
        begun = dict(state)
        if word == "for":
            # For one over a range the variable is in none of the parts.
            parts = self._source.statements.clauses(statement.condition)
            if len(parts) != 3:
                raise NotUnderstood(statement.word)
            before, *turn = parts
            begun = self._simple(*before, begun) if before[1] > before[0] else begun
        return self._loop(statement, turn, begun, asks_first=word != "do")

    def _loop(
        self, statement: Statement, turn: Sequence[Range], state: dict[int, _Value], *, asks_first: bool
    ) -> _State:
        """What variables have behind a loop. What one turn leaves behind may be what the next begins with; in the first
        only what no choice decides about is certain to be read."""
        unless_asked = state if asks_first else None
        if self._is_first_turn:
            # What a later turn reads is found in the second way through the outermost loop.
            self._loops += asks_first
            turned, left = self._turn(statement, turn, state, asks_first=asks_first)
            self._loops -= asks_first
            return _joined(_joined(turned, unless_asked), left)
        around = self._choices, self._loops
        self._is_first_turn, self._choices, self._loops = True, 0, 0
        turned, _ = self._turn(statement, turn, state, asks_first=asks_first)
        self._is_first_turn, (self._choices, self._loops) = False, around
        behind, left = self._turn(statement, turn, _joined(state, turned), asks_first=asks_first)
        return _joined(_joined(behind, unless_asked), left)

    def _turn(
        self, statement: Statement, turn: Sequence[Range], state: _State, *, asks_first: bool
    ) -> tuple[_State, _State]:
        """What variables have behind one turn, and where it is left."""
        condition, step = turn
        self._left.append(None)
        self._turned.append(None)
        if asks_first:
            state = self._condition(*condition, state)
        state = _joined(self._part(statement, 0, state), self._turned.pop())
        if not asks_first:
            state = self._condition(*condition, state)
        if state is not None and step[1] > step[0]:
            state = dict(state)
            self._read(self._expression(*step), state)
        return state, self._left.pop()

    def _choice(self, statement: Statement, state: dict[int, _Value]) -> _State:
        asked = self._condition(*statement.condition, dict(state))
        self._choices += 1
        chosen, otherwise = (self._part(statement, number, asked) for number in (0, 1))
        self._choices -= 1
        return _joined(chosen, otherwise)

    def _sections(self, statement: Statement, state: dict[int, _Value]) -> _State:
        """A ``switch``, each of whose labels may be jumped to."""
        asked = self._condition(*statement.condition, dict(state))
        self._left.append(asked)
        self._choices += 1
        reached: _State = None
        for _, start, end in self._source.statements.sections(statement):
            reached = self.block(start, end, _joined(reached, asked))
        self._choices -= 1
        return _joined(reached, self._left.pop())

    def _condition(self, start: int, end: int, state: _State) -> _State:
        if state is None or start >= end:
            return state
        return self._simple(start, end, dict(state))

    # Declarations and expressions.

    def _simple(self, start: int, end: int, state: dict[int, _Value]) -> dict[int, _Value]:
        """A declaration or an expression; changes ``state``."""
        index, words = self._declarators.specifiers(start, end)
        if index is None or not self._declarators.begins(index, end):
            self._read(self._expression(start, end), state)
            return state
        while index < end:
            found = self._declarators.read(index, end)
            place = next(k for k in range(index, found.end) if self._text(k) == found.name)
            index = found.end
            if self._text(index) == "=":
                value = self._initialiser(index + 1, end)
                self._read(value, state, is_bound=found.is_reference)
                index = value.end
            elif self._text(index) in ("(", "{"):
                for argument in self._arguments(index, self._source.close(index)):
                    self._read(argument, state)
                index = self._source.close(index) + 1
            elif not words & _NO_OBJECTS:
                variable = self._source.variable(self._text(place), place + 1)
                if variable is not None and variable.place == place and _is_built_in(self._source, variable):
                    state[place] = _Value.NONE
            if index < end and self._text(index) != ",":
                raise NotUnderstood(index)
            index += 1
        return state

    def _read(self, node: Node, state: dict[int, _Value], *, is_bound: bool = False) -> None:
        """Reads what ``node`` names; of what is only bound to a reference the value is given elsewhere."""
        if node.kind == "name":
            self._name(node, state, is_written=is_bound or self._is_array(node, 0))
        elif node.kind == "subscript":
            base, count = node, 0
            while base.kind == "subscript":
                self._read(base.parts[1], state)
                base, count = base.parts[0].inner, count + 1
            if base.kind == "name":
                self._name(base, state, is_written=is_bound or self._is_array(base, count))
            else:
                self._read(base, state, is_bound=is_bound)
        elif node.kind == "assign":
            target, value = node.parts
            self._read(value, state)
            if node.text == "=":
                self._write(target, state)
            else:
                self._read(target, state)
        elif node.kind == "call":
            self._call(node, state)
        elif node.kind == "unary" and node.text == "&":
            self._write(node.parts[0], state)
        elif node.kind == "ternary" or node.kind == "binary" and node.text in ("&&", "||"):
            self._read(node.parts[0], state)
            self._choices += 1
            ways = [dict(state) for _ in node.parts[1:]]
            for part, way in zip(node.parts[1:], ways, strict=True):
                self._read(part, way, is_bound=is_bound)
                for place, has in way.items():
                    state[place] = _Value(max(has.value, state.get(place, has).value))
            self._choices -= 1
        elif node.kind in ("opaque", "unevaluated"):
            state.update(self._given_up(node.start, node.end, state) or {})
        else:
            for part in node.parts:
                self._read(part, state, is_bound=is_bound)

    def _is_array(self, node: Node, subscripts: int) -> bool:
        """Whether a name with so many subscripts is an array: a pointer, through which it may get values."""
        variable = self._variable(node.place)
        return variable is not None and len(variable.extents) > subscripts

    def _call(self, node: Node, state: dict[int, _Value]) -> None:
        """A function may give a value to what it gets by name, unless it is one that only computes."""
        called = node.parts[0]
        is_library = called.kind == "name" and not self._may_write(called.text)
        if called.kind != "name":
            self._read(called, state, is_bound=True)
        arguments = node.parts[1:]
        if called.text in _WRITING_FIRST and arguments:
            for argument in arguments[1:]:
                self._read(argument, state)
            self._write(arguments[0], state)
            return
        for argument in arguments:
            inner = argument.inner
            if inner.kind in ("name", "member", "subscript") and not is_library:
                self._write(inner, state)
            else:
                self._read(argument, state)

    def _may_write(self, name: str) -> bool:
        source = self._source
        if name not in source.functions_by_name:
            return name in WRITING_FUNCTIONS or name not in LIBRARY_FUNCTIONS and built_in(name) is None
        return any(
            source.places("&", "*", "&&", "[", start=function.opening, end=function.closing)
            for function in source.functions_by_name[name]
        )

    def _write(self, node: Node, state: dict[int, _Value]) -> None:
        """Gives a value to the variable that ``node`` names, or is a part of."""
        target = node.inner
        while target.kind in ("member", "subscript"):
            for index in target.parts[1:]:
                self._read(index, state)
            target = target.parts[0].inner
        if target.kind == "name":
            self._name(target, state, is_written=True)
        else:
            self._read(target, state)

    def _name(self, node: Node, state: dict[int, _Value], *, is_written: bool) -> None:
        variable = self._variable(node.place) if node.end == node.start + 1 else None
        if variable is None or variable.place not in state:
            return
        # Inner loops may not turn at first: where elements are looked for, before there are any.
        is_certain = not self._is_first_turn or not (self._choices or variable.extents and self._loops)
        if not is_written and state[variable.place] is _Value.NONE and is_certain:
            self.found.setdefault(node.place, variable.name)
        state[variable.place] = _Value.SOME
