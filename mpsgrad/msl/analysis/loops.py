"""The loops that a compiler had better not unroll.

A loop over registers has to be unrolled: an array, a vector or a matrix of a thread stays in registers only where each
index into it is a number. Any other loop that is unrolled is only longer to compile, by as much as its body is long.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from functools import cached_property

from mpsgrad.msl.analysis.calls import function_taking, opening_of_call
from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.source import Function, Source, Variable
from mpsgrad.msl.analysis.statements import Range
from mpsgrad.msl.analysis.types import INTEGERS, SIZES
from mpsgrad.msl.program import SHARED_SPACES
from mpsgrad.msl.tokens import ASSIGNMENTS, IDENTIFIER, NUMBER, Token

_CONSTANT = frozenset({"const", "constexpr", "constant"})
_CONDITIONS = frozenset({"for", "if", "while", "switch"})
_FULLY = re.compile(r'(?:#pragma|")(?:clangloop)?unroll(?:\((?:full|enable)\))?"?')
_MARKS = ("_Pragma", "__attribute__")
_LOOPS_AND_JUMPS = ("for", "while", "do", "break", "return")
_POSITIONS = frozenset(
    {
        "thread_position_in_grid", "thread_position_in_threadgroup", "thread_index_in_threadgroup",
        "thread_index_in_simdgroup", "thread_index_in_quadgroup",
    }
)  # fmt: skip
_OF_LANES = re.compile(r"(?:simd|quad)_(?:shuffle\w*|broadcast)")

LARGE = 160
"""Tokens that a loop comes to, with those of the functions that it calls, each turn counted, from which on it is long
to compile."""
HUGE = 600
"""The same for a loop that is marked to be unrolled, as GPUs have it."""
GUARDED = 60
"""What an access to memory under a condition adds to a loop that is marked to be unrolled: each of the threads that run
abreast has a branch of its own."""
LARGE_TURN = 40
"""The same for a loop that turns as often as data say."""
NARROW = 8
"""Elements of less than four bytes that each thread reads one after the other in a turn of a loop, from which on they
are much work: threads that run abreast read each by itself. A register beside them may as well be memory."""
SHORT = 30
"""What each of so many adds to a loop that is marked to be unrolled."""
_UNKNOWN_TURNS = 8
"""What a loop is taken to have that counts to a template's parameter."""
_MOST_TURNS = 1024
_DEEPEST = 40

_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "!=": operator.ne,
}  # fmt: skip
_STEPS: dict[str, Callable[[int, int], int]] = {
    "++": operator.add, "+=": operator.add, "--": operator.sub, "-=": operator.sub, "*=": operator.mul,
    "/=": operator.floordiv, "<<=": operator.lshift, ">>=": operator.rshift,
}  # fmt: skip


def loops_to_keep_rolled(source: Source) -> list[Token]:
    """The words that begin such loops of ``source``, or the pragmas that would have them unrolled."""
    loops = loops_of(source)
    # Inner loops before those around them, and functions before those that call them: neither is a deep recursion.
    rolled = [index for index in reversed(source.places("for")) if source.in_body(index) and loops.is_rolled(index)]
    return [loops.mark(index) or source.tokens[index] for index in reversed(rolled)]


def loops_of(source: Source) -> Loops:
    """What can be told of the loops of ``source``, once for all who ask."""
    return source.keep(Loops, lambda: Loops(source))


def is_common(source: Source, head: Range) -> bool:
    """Whether a loop's head names its own variable and what all threads have."""
    return names_are_common(source, head) and not source.places("[", "*", "->", "(", start=head[0], end=head[1])


def names_are_common(source: Source, head: Range) -> bool:
    """Whether the variables that a loop's head names are its own and such that all threads have."""
    named = [(index, source.variable(source.text(index), index)) for index in range(*head)]
    own = {variable for index, variable in named if variable is not None and _begins(source, variable, index, head)}
    return all(
        variable in own
        or variable.last == len(source.tokens)
        or variable.name in source.template_values
        or "constexpr" in source.words_before(variable.place, "(")
        or _names_common_memory(source, variable)
        for _, variable in named
        if variable is not None
    )


def _names_common_memory(source: Source, variable: Variable) -> bool:
    """Whether the variable is a reference that a kernel is given, or a function in all calls of it."""
    return source.keep((_names_common_memory, variable.place), lambda: _is_given_common_memory(source, variable))


def _is_given_common_memory(source: Source, variable: Variable) -> bool:
    todo, seen = [variable], {variable.place}
    while todo:
        given = _given(source, todo.pop())
        if given is None:
            return False
        todo += [each for each in given if each.place not in seen]
        seen.update(each.place for each in given)
    return True


def _given(source: Source, variable: Variable) -> list[Variable] | None:
    """What calls of a function give for its parameter, a reference to memory that threads share; nothing for a
    kernel's; None for another variable, or where a call gives something else than a variable."""
    if not variable.is_reference or variable.type is None or variable.type.space not in SHARED_SPACES:
        return None
    parameter = function_taking(source, variable)
    if parameter is None:
        return None
    function, number = parameter
    if function.kernel is not None:
        return []
    found = []
    for index in source.places(function.name):
        opening = opening_of_call(source, index)
        if opening == function.opening or opening < 0 and not source.in_body(index):
            continue
        start, end = source.arguments(opening)[number] if opening >= 0 else (0, 0)
        given = source.variable(source.text(start), start) if end == start + 1 else None
        if given is None:
            return None
        found.append(given)
    return found


def _begins(source: Source, variable: Variable, index: int, head: Range) -> bool:
    """Whether a variable that a loop's head names at ``index`` is declared there, or set first of all."""
    return head[0] <= variable.place < head[1] or (index == head[0] and source.text(index + 1) == "=")


class Loops:
    """What can be told of the loops of one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._expressions = expressions_of(source)
        self._registers: dict[int, bool] = {}
        self._sizes: dict[int, int] = {}
        self._rolled: dict[int, bool] = {}
        self._deep = 0

    def is_rolled(self, index: int) -> bool:
        """Whether the loop at ``index`` had better not be unrolled."""
        if index not in self._rolled:
            self._rolled[index] = self._decide(index)
        return self._rolled[index]

    def is_surely_unrolled(self, index: int) -> bool:
        """Whether any compiler would unroll the loop at ``index``: it is short or marked, and has none inside."""
        source = self._source
        if source.text(index) != "for" or self.is_rolled(index):
            return False
        mark, turns, (start, end) = self.mark(index), self.turns(index), self._body(index)
        if turns is None or source.places(*_LOOPS_AND_JUMPS, start=start, end=end):
            return False
        if any(map(self._has_loop, self._called(start, end))):
            return False
        if mark is not None:
            return _FULLY.fullmatch(mark.text.replace(" ", "")) is not None
        return turns * self.size(start, end) < LARGE

    def may_be_unrolled(self, index: int) -> bool:
        """Whether a compiler might unroll the loop at ``index`` if it knows how often that turns."""
        mark, turns = self.mark(index), self.turns(index)
        if self.is_rolled(index) or (turns is not None and turns > LARGE):
            return False
        return mark is None or _FULLY.fullmatch(mark.text.replace(" ", "")) is not None

    def beginning(self, index: int) -> int:
        """Where the loop at ``index`` begins, with what says how it is to be compiled."""
        source = self._source
        while True:
            if source.kind(index - 1) == "pragma":
                index -= 1
            elif source.text(index - 1) == "]" and source.close(index - 1) > 0:
                index = source.close(index - 1)
            elif source.text(index - 1) == ")" and source.text(source.close(index - 1) - 1) in _MARKS:
                index = source.close(index - 1) - 1
            else:
                return index

    def _decide(self, index: int) -> bool:
        if self._source.close(index + 1) < 0:
            return False
        mark, turns = self.mark(index), self.turns(index)
        if mark is not None and (turns is None or not _FULLY.fullmatch(mark.text.replace(" ", ""))):
            return False
        start, end = self._body(index)
        size = self.size(start, end)
        if turns is None:
            return size >= LARGE_TURN
        if mark is None:
            return turns * size >= LARGE and not self._needs_numbers(index, end)
        narrow = self._narrow(start, end)
        size += GUARDED * self._guarded(start, end) + (SHORT * narrow if narrow >= NARROW else 0)
        return turns * size >= HUGE and not self._needs_numbers(index, end)

    def _body(self, index: int) -> tuple[int, int]:
        """Where the body of the loop at ``index`` stands."""
        start = self._source.close(index + 1) + 1
        return start, self._source.statements.at(start).end

    def mark(self, index: int) -> Token | None:
        """What stands before the loop at ``index`` and says how it is to be compiled, if something does."""
        source = self._source
        before = index - 1
        if source.kind(before) == "pragma" or source.text(before) == "]":
            return source.tokens[before]
        opening = source.close(before) if source.text(before) == ")" else -1
        if opening > 0 and source.text(opening - 1) in _MARKS:
            return source.tokens[opening + 1]
        return None

    def turns(self, index: int) -> int | None:
        """How often the loop at ``index`` turns if that is known when it is compiled, or None."""
        source = self._source
        parts = self._head(index)
        if len(parts) != 3 or not all(parts) or len(parts[1]) < 3 or parts[1][0].kind != IDENTIFIER:
            return None
        first = _behind(parts[0], "=")
        start, limit = source.integer(first), source.integer(parts[1][2:])
        step = source.integer(parts[2][2:]) if len(parts[2]) > 2 else 1
        advance = next((_STEPS[token.text] for token in parts[2] if token.text in _STEPS), None)
        comparison = parts[1][1].text
        if advance is None or comparison not in _COMPARISONS:
            return None
        if start is not None and limit is not None and step is not None and 0 < step < _MOST_TURNS:
            return _count(start, comparison, limit, lambda value: advance(value, step))
        names = {token.text for part in (first, *parts[1:]) for token in part if token.kind == IDENTIFIER}
        return _UNKNOWN_TURNS if first and names <= self._constants | {parts[1][0].text} else None

    @cached_property
    def _constants(self) -> set[str]:
        """The names of integers that are known when each instance of a template is compiled."""
        source = self._source
        found = set(source.constants) | source.template_values
        found.update(source.text(index - 3) for index in source.places("function_constant"))
        for index in source.places("="):
            start = index - 1
            while start > 0 and source.text(start - 1) not in (";", "{", "}", "(", "<"):
                start = source.close(start - 1) if source.text(start - 1) == ")" else start - 1
            if not _CONSTANT.isdisjoint(source.texts[start:index]):
                value = source.tokens[index + 1 : source.expression_end(index + 1)]
                if all(token.text in found for token in value if token.kind == IDENTIFIER):
                    found.add(source.text(index - 1))
        return found

    def _head(self, index: int) -> list[list[Token]]:
        parts: list[list[Token]] = [[]]
        for token in self._source.tokens[index + 2 : self._source.close(index + 1)]:
            if token.text == ";":
                parts.append([])
            else:
                parts[-1].append(token)
        return parts

    def size(self, start: int, end: int) -> int:
        """How many tokens stand there, and in the functions that are called there, each turn of loops counted."""
        if start in self._sizes or self._deep > _DEEPEST:
            return self._sizes.get(start, 0)
        self._sizes[start] = 0
        self._deep += 1
        source = self._source
        count = end - start
        for function in self._called(start, end):
            count += self.size(function.body_open, function.body_close)
        place = start
        for loop in source.places("for", start=start, end=end):
            if loop < place or source.close(loop + 1) < 0:
                continue
            first, place = self._body(loop)
            turns = 1 if self.is_rolled(loop) else self.turns(loop) or 1
            count += (turns - 1) * self.size(first, place)
        self._deep -= 1
        self._sizes[start] = count
        return count

    def _guarded(self, start: int, end: int) -> int:
        """How many choices and conditions there decide whether memory is read or written."""
        source = self._source
        count = 0
        for place in source.places("?", "if", start=start, end=end):
            first = source.close(place + 1) if source.text(place) == "if" else place
            accesses = source.places("[", start=first, end=source.statements.at(place).end) if first > 0 else []
            count += any(map(self._is_memory, accesses))
        return count

    def _needs_numbers(self, start: int, end: int) -> bool:
        """Whether what depends on the variables of the loop there chooses among registers or lanes."""
        source = self._source
        moving = self._moving(start, end)
        for opening in source.places("[", start=start, end=end):
            close = source.close(opening)
            if close > 0 and self._names(opening + 1, close) & moving and not self._is_memory(opening):
                if not self._is_beside_work(opening, start, end):
                    return True
        for opening in source.places("(", start=start, end=end):
            close, name = source.close(opening), source.text(opening - 1)
            if close < 0 or source.kind(opening - 1) != IDENTIFIER or name in _CONDITIONS:
                continue
            first = opening + 1
            if _OF_LANES.fullmatch(name) and len(arguments := source.arguments(opening)) > 1:
                first = arguments[1][0]
            if self._names(first, close, False) & moving and self._chooses(name, opening - 1):
                return True
        return any(self._walks_registers(name, start, end) for name in moving)

    def _is_beside_work(self, place: int, start: int, end: int) -> bool:
        """Whether what has a subscript at ``place``, in the loop there but in none inside, is used nowhere more often,
        and the loop does much else: then it may as well be in memory."""
        source = self._source
        if self._depth(place) != self._depth(start) + 1:
            return False
        inner = source.places("for", start=start + 1, end=end)
        if not any(map(self.is_rolled, inner)) and not any(map(self._has_loop, self._called(start, end))):
            if self._narrow(*self._body(start)) < NARROW:
                return False
        first = self._operand(place)
        return source.kind(first) == IDENTIFIER and all(
            self._depth(other) <= self._depth(place) for other in source.places(source.text(first))
        )

    def _narrow(self, start: int, end: int) -> int:
        """How many such elements are read or written there, each turn of loops counted."""
        source = self._source
        count = 0
        for loop in source.places("for", start=start, end=end):
            close = source.close(loop + 1)
            first, stop = self._body(loop) if close > 0 else (0, 0)
            if close < 0 or source.places("for", start=first, end=stop):
                continue
            counters = {variable.name for variable in source.declarations_between(loop + 1, close)}
            found = [place for place in source.places("[", start=first, end=stop) if self._is_narrow(place, counters)]
            count += len(found) * (1 if self.is_rolled(loop) else self.turns(loop) or 1)
        return count

    def _is_narrow(self, opening: int, counters: set[str]) -> bool:
        """Whether the bracket at ``opening`` is behind a pointer to elements of less than four bytes that threads have
        each its own of, and only ``counters`` choose one, by small steps: threads read no elements side by side."""
        source = self._source
        close, first = source.close(opening), self._operand(opening)
        names = self._names(opening + 1, close)
        if close < 0 or first < 0 or not names or not names <= counters:
            return False
        steps = [source.integer([token]) for token in source.tokens[opening + 1 : close] if token.kind == NUMBER]
        if any(step is None or step > NARROW for step in steps):
            return False
        kind = self._expressions.type_of(first, opening)
        if kind is None or kind.space != "device" or kind.pointers != 1 or kind.columns:
            return False
        return SIZES.get(kind.base, 4) * kind.width < 4 and self._variable(source.text(first), first) in self._own

    @cached_property
    def _own(self) -> set[int]:
        """The places of variables that depend on a thread's position."""
        source = self._source
        own = {
            self._variable(parameter.name, kernel.body_close - 1)
            for kernel in source.program.kernels
            for parameter in kernel.parameters
            if any(map(parameter.attribute, _POSITIONS))
        } - {-1}
        values = []
        for index in source.places(*ASSIGNMENTS):
            if source.kind(index - 1) == IDENTIFIER:
                end = source.expression_end(index + 1)
                names = [place for place in range(index + 1, end) if source.kind(place) == IDENTIFIER]
                of_names = {self._variable(source.text(place), place) for place in names}
                values.append((self._variable(source.text(index - 1), end), of_names - {-1}))
        values += self._passed()
        while more := {place for place, of_names in values if place not in own and of_names & own}:
            own |= more
        return own

    def _passed(self) -> Iterator[tuple[int, set[int]]]:
        """The places of functions' parameters, each with those of variables that some call passes there."""
        source = self._source
        for function in source.functions:
            parameters = source.arguments(function.opening) if function.kernel is None else []
            for index in source.places(function.name) if parameters else ():
                opening = opening_of_call(source, index)
                if opening < 0 or not source.in_body(index):
                    continue
                for (_, end), (first, last) in zip(parameters, source.arguments(opening), strict=False):
                    names = [place for place in range(first, last) if source.kind(place) == IDENTIFIER]
                    passed = {self._variable(source.text(place), place) for place in names}
                    yield self._variable(source.text(end - 1), function.body_open + 1), passed - {-1}

    def _variable(self, name: str, index: int) -> int:
        """Where the variable is declared that ``name`` means at ``index``, or -1."""
        variable = self._source.variable(name, index)
        return variable.place if variable is not None else -1

    def _depth(self, index: int) -> int:
        """In how many loops ``index`` stands."""
        return sum(start < index < end for start, end in self._loop_ranges)

    @cached_property
    def _loop_ranges(self) -> list[tuple[int, int]]:
        source = self._source
        return [
            (index, self._body(index)[1])
            for index in source.places("for", "while")
            if source.text(index + 1) == "(" and source.close(index + 1) > 0
        ]

    def _has_loop(self, function: Function) -> bool:
        return bool(self._source.places("for", "while", start=function.body_open, end=function.body_close))

    def _called(self, start: int, end: int) -> list[Function]:
        """The functions that may be called there."""
        source = self._source
        names = {
            source.text(place)
            for place in source.places(*self._names_of_functions, start=start, end=end)
            if source.text(place + 1) in ("(", "<")
        }
        return [function for name in names for function in source.functions_by_name[name] if function.kernel is None]

    @cached_property
    def _names_of_functions(self) -> list[str]:
        return [name for name in self._source.functions_by_name if name.isidentifier()]

    def _chooses(self, name: str, index: int) -> bool:
        """Whether the function ``name`` may choose among registers or lanes by its arguments."""
        source = self._source
        if _OF_LANES.fullmatch(name):
            return True
        if source.text(index - 1) in (".", "->") or source.variable(name, index) is not None:
            return True
        return any(map(self._has_registers, source.functions_by_name.get(name, ())))

    def _has_registers(self, function: Function) -> bool:
        """Whether the function has a subscript into registers that is no number, or calls one that has."""
        source = self._source
        start, end = function.opening, function.body_close
        if start in self._registers or self._deep > _DEEPEST:
            return self._registers.get(start, True)
        self._registers[start] = False
        self._deep += 1
        found = any(map(_OF_LANES.fullmatch, source.texts[start:end])) or any(
            any(map(self._is_variable, range(opening + 1, source.close(opening)))) and not self._is_memory(opening)
            for opening in source.places("[", start=start, end=end)
        )
        self._registers[start] = found or any(map(self._has_registers, self._called(start, end)))
        self._deep -= 1
        return self._registers[start]

    def _is_variable(self, index: int) -> bool:
        return self._source.kind(index) == IDENTIFIER and self._source.text(index) not in self._source.constants

    def _moving(self, start: int, end: int) -> set[str]:
        """The names of what has another value in each turn of the loop because the loop counts."""
        source = self._source
        close = source.close(start + 1)
        moving = {variable.name for variable in source.declarations_between(start + 1, close)}
        dependent: list[tuple[str, set[str]]] = []
        for index in range(start, end):
            text = source.text(index)
            if text in ("++", "--"):
                named = index - 1 if source.kind(index - 1) == IDENTIFIER else index + 1
                if self._is_from_before(named, close):
                    moving.add(source.text(named))
            elif text in ASSIGNMENTS and source.kind(index - 1) == IDENTIFIER and self._counts(index - 1):
                stop = source.expression_end(index + 1, end)
                is_step = index < close or all(source.kind(place) == NUMBER for place in range(index + 1, stop))
                if text != "=" and is_step and self._is_from_before(index - 1, close):
                    moving.add(source.text(index - 1))
                dependent.append((source.text(index - 1), self._names(index + 1, stop)))
        while more := {name for name, names in dependent if name not in moving and names & moving}:
            moving |= more
        return moving

    def _is_from_before(self, index: int, body: int) -> bool:
        """Whether the name at ``index`` means a variable that was there before the loop's ``body``."""
        variable = self._source.variable(self._source.text(index), index)
        return variable is None or variable.place < body

    def _counts(self, index: int) -> bool:
        """Whether the name at ``index`` may be that of an integer or a pointer."""
        variable = self._source.variable(self._source.text(index), index)
        if variable is None:
            return True
        kind = self._expressions.variable_type(variable)
        return kind is None or bool(kind.pointers) or not kind.known or kind.is_scalar and kind.base in INTEGERS

    def _names(self, start: int, end: int, in_subscripts: bool = True) -> set[str]:
        source = self._source
        names = set()
        index = start
        while index < end:
            if source.text(index) == "[" and not in_subscripts:
                index = max(source.close(index), index)
            elif source.kind(index) == IDENTIFIER and source.text(index - 1) not in (".", "->"):
                names.add(source.text(index))
            index += 1
        return names

    def _is_memory(self, opening: int) -> bool:
        """Whether what the bracket at ``opening`` is behind is certain to be no thread's own."""
        first = self._operand(opening)
        kind = self._expressions.type_of(first, opening) if first >= 0 else None
        if kind is None and first == opening - 1:
            return self._is_declared_in_memory(first)
        return kind is not None and kind.space in SHARED_SPACES

    def _is_declared_in_memory(self, index: int) -> bool:
        """Whether the variable at ``index``, of an unknown type, is declared with an address space of memory."""
        variable = self._source.variable(self._source.text(index), index)
        words = () if variable is None else self._source.words_before(variable.place, "(", ",")
        return not SHARED_SPACES.isdisjoint(words)

    def _operand(self, opening: int) -> int:
        """Where what the bracket at ``opening`` is behind begins, or -1."""
        source = self._source
        first = opening
        while True:
            before = source.text(first - 1)
            if before in ("]", ")"):
                first = source.close(first - 1)
                if first < 0:
                    return -1
            elif source.kind(first - 1) == IDENTIFIER:
                first -= 1
                if source.text(first - 1) not in (".", "->"):
                    return first
                first -= 1
            else:
                return first

    def _walks_registers(self, name: str, start: int, end: int) -> bool:
        """Whether ``name`` is a pointer there that may be one to a thread's own variables."""
        source = self._source
        places = source.places(name, start=start, end=end)
        variable: Variable | None = source.variable(name, places[0]) if places else None
        if variable is None:
            return False
        kind = self._expressions.variable_type(variable)
        return kind is not None and bool(kind.pointers) and kind.space not in SHARED_SPACES


def _behind(tokens: list[Token], text: str) -> list[Token]:
    """The tokens behind the first that reads ``text``."""
    return next((tokens[place + 1 :] for place, token in enumerate(tokens) if token.text == text), [])


def _count(value: int, comparison: str, limit: int, step: Callable[[int], int]) -> int:
    """How often a loop turns that counts like that."""
    goes_on = _COMPARISONS[comparison]
    turns = 0
    while turns < _MOST_TURNS and goes_on(value, limit):
        value = step(value)
        turns += 1
    return turns
