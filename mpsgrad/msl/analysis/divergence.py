"""Which variables may differ between the threads of a threadgroup, and which barriers only some of them may reach.

What may differ is found too often rather than too seldom: all that a thread's position goes into, and all that is
assigned where such a value decides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from mpsgrad.msl.analysis.calls import functions_meant, opening_of_call, places_of_names, reaching, returns_of
from mpsgrad.msl.analysis.nesting import Nesting
from mpsgrad.msl.analysis.source import WRITING_FUNCTIONS, Function, Source, Variable
from mpsgrad.msl.analysis.statements import DECIDING, LOOPS, Range, names_of_parts
from mpsgrad.msl.backend import THREAD_ATTRIBUTES
from mpsgrad.msl.program import SHARED_SPACES
from mpsgrad.msl.tokens import ASSIGNMENTS, IDENTIFIER

BARRIER = "threadgroup_barrier"
_OF_CLASSES = frozenset({"static", "constexpr"})
_STEPS = frozenset({"++", "--"})
_RESULTS_OF_THREADS = ("atomic_fetch_", "atomic_exchange_", "atomic_compare_", "simd_", "quad_")
_EXPECTING = "atomic_compare_exchange_weak_explicit"


class _Choice(NamedTuple):
    """A statement that decides: its word, its condition, and all of it."""

    word: int
    condition: Range
    whole: Range


class _Assignment(NamedTuple):
    """The place of a variable that gets a value, where that is said, what the value is made of, and what decides in the
    same expression whether it gets it."""

    target: int
    place: int
    value: Range
    conditions: Sequence[Range] = ()


def functions_with_partial_barriers(source: Source, *, waits_for_returned: bool) -> list[Function]:
    """The functions of ``source``, kernels among them, in which only some threads may reach a barrier that others of
    their threadgroup wait at: where a condition decides that threads may disagree about, and behind a ``return`` of a
    function that others call, or of a kernel if it ``waits_for_returned`` threads."""
    if not source.places(BARRIER):
        return []
    return _Divergence(source).partial(waits_for_returned)


def choosing_conditions(source: Source, index: int) -> list[Range]:
    """The conditions of ``?:``, ``&&`` and ``||`` that decide whether the call at ``index`` is made."""
    found = []
    position = index - 1
    while position > 0:
        text = source.text(position)
        if text in (";", "{", "}"):
            break
        if text in ("?", "&&", "||"):
            found.append((_operand_start(source, position), position))
        elif text in (")", "]") and source.close(position) >= 0:
            position = source.close(position)
        elif text == ",":
            # What stands before a comma chooses only between what does so too.
            while position > 0 and source.text(position - 1) not in ("(", "[", ";", "{", "}"):
                position -= 1
                if source.text(position) in (")", "]") and source.close(position) >= 0:
                    position = source.close(position)
        position -= 1
    return found


def _operand_start(source: Source, end: int) -> int:
    """Where the condition that ends before ``end`` begins."""
    position = end - 1
    while position > 0:
        text = source.text(position)
        if text in (")", "]") and source.close(position) >= 0:
            position = source.close(position)
        elif text in (";", "{", "}", "(", "[", ",", "?", ":", "return") or text in ASSIGNMENTS:
            break
        position -= 1
    return position + 1


class _Divergence:
    """What may differ in one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._waiting = reaching(source, [BARRIER])
        self._bodies = [
            (each.body_open, each.body_close)
            for each in source.functions
            if self._waiting.calls(each.body_open, each.body_close)
        ]
        self._differs: set[int] = set()
        self._disagreeing: set[int] = set()
        self._follow()

    def partial(self, waits_for_returned: bool) -> list[Function]:
        found = []
        for function in [*self._source.functions, *self._source.lambdas]:
            barriers = self._waiting.calls(function.body_open, function.body_close)
            if barriers and self._is_partial(function, barriers, waits_for_returned or function.kernel is None):
                found.append(function)
        return found

    def _is_partial(self, function: Function, barriers: list[int], waits_for_returned: bool) -> bool:
        for barrier in barriers:
            if self._is_for_some(barrier) or any(map(self._differ, choosing_conditions(self._source, barrier))):
                return True
        for index in returns_of(self._source, function) if waits_for_returned else ():
            if self._is_for_some(index):
                loops = [choice.whole for choice in self._around(index) if self._source.text(choice.word) in LOOPS]
                if any(index < place or any(start < place < end for start, end in loops) for place in barriers):
                    return True
        return False

    # What differs.

    def _follow(self) -> None:
        """Marks what differs until nothing more is found."""
        for kernel in self._source.program.kernels:
            for parameter in kernel.parameters:
                if parameter.attribute(*THREAD_ATTRIBUTES):
                    variable = self._source.variable(parameter.name, kernel.body_open)
                    if variable is not None:
                        self._differs.add(variable.place)
        for function in [*self._source.lambdas, *filter(self._may_be_called_unseen, self._source.functions)]:
            for start, end in self._source.arguments(function.opening):
                for index in range(start, end):
                    variable = self._source.variable(self._source.text(index), function.body_open)
                    if variable is not None and variable.place == index:
                        self._differs.add(index)
        known = -1
        while known != (known := len(self._differs) + len(self._disagreeing)):
            for choice in self._choices:
                if choice.word not in self._disagreeing and self._disagree(choice):
                    self._disagreeing.add(choice.word)
            for assignment in self._assignments:
                if assignment.target not in self._differs and (
                    self._differ(assignment.value)
                    or self._is_for_some(assignment.place)
                    or any(map(self._differ, assignment.conditions))
                ):
                    self._differs.add(assignment.target)

    def _may_be_called_unseen(self, function: Function) -> bool:
        """Whether the function has no name that it is called by, or is passed on by its name."""
        source = self._source
        if function.kernel is not None or not self._waiting.calls(function.body_open, function.body_close):
            return False
        if function.name in (")", function.owner):
            return True
        return any(opening_of_call(source, index) < 0 for index in source.places(function.name))

    def _disagree(self, choice: _Choice) -> bool:
        """Whether threads may go different ways at ``choice``: by its condition, or by jumps out of a loop."""
        if self._differ(choice.condition):
            return True
        return any(
            self._is_for_some(jump, inside=choice)
            for jump in self._jumps_by_target.get(choice.word, ())
            if self._source.text(jump) == "break" and self._source.text(choice.word) != "switch"
        )

    def _is_for_some(self, index: int, inside: _Choice | None = None) -> bool:
        """Whether only some threads may come to ``index``, or only some of those that come to ``inside``."""
        for choice in self._around(index):
            if choice is inside:
                return False
            if choice.word in self._disagreeing:
                return True
            # What continues, or leaves a switch, passes by what is behind it.
            is_switch = self._source.text(choice.word) == "switch"
            if any(
                (is_switch or self._source.text(jump) == "continue")
                and jump < index
                and self._is_for_some(jump, inside=choice)
                for jump in self._jumps_by_target.get(choice.word, ())
            ):
                return True
        return False

    def _differ(self, part: Range) -> bool:
        """Whether a value that may differ stands there."""
        places = self._places_in(part)
        return places is None or not self._differs.isdisjoint(places)

    def _places_in(self, part: Range) -> frozenset[int] | None:
        """The places of the variables that are named there; None where a function gives each thread another value."""
        return self._source.keep(("divergence", part), lambda: self._read_places(part))

    def _read_places(self, part: Range) -> frozenset[int] | None:
        source = self._source
        found = set()
        for index in range(*part):
            if source.kind(index) != IDENTIFIER or source.text(index - 1) in (".", "->"):
                continue
            text = source.text(index)
            variable = source.variable(text, index)
            if variable is None and (text.startswith(_RESULTS_OF_THREADS) or text in names_of_parts(source)):
                return None
            if text == "this" or variable is not None and self._is_of_object(variable):
                return None
            if variable is not None:
                found.add(variable.place)
        return frozenset(found)

    def _is_of_object(self, variable: Variable) -> bool:
        """Whether the variable is a member, of which each object has its own."""
        source = self._source
        words = source.words_before(variable.place, ":")
        return variable.first in source.starts_of_classes and _OF_CLASSES.isdisjoint(words)

    # What decides, in functions that come to a barrier.

    def _places(self, *texts: str) -> list[int]:
        return [k for start, end in self._bodies for k in self._source.places(*texts, start=start, end=end)]

    def _is_in_body(self, index: int) -> bool:
        number = bisect_left(self._bodies, (index, index)) - 1
        return number >= 0 and index < self._bodies[number][1]

    @cached_property
    def _choices(self) -> list[_Choice]:
        source = self._source
        found = []
        for start, end in self._bodies:
            for each in source.statements.deciding(*DECIDING, start=start, end=end):
                if each.parts and not each.is_constexpr:
                    found.append(_Choice(each.word, each.condition, (each.word, each.end)))
        return found

    @cached_property
    def _nesting(self) -> Nesting:
        return Nesting([choice.whole for choice in self._choices])

    def _around(self, index: int) -> Iterator[_Choice]:
        """What decides whether ``index`` is got to, the innermost first; a loop's condition is part of the loop."""
        return (self._choices[number] for number in self._nesting.around(index))

    @cached_property
    def _jumps_by_target(self) -> dict[int, list[int]]:
        """Where ``break`` and ``continue`` stand, by the words of the loops that they belong to."""
        found: dict[int, list[int]] = {}
        for index in self._places("break", "continue"):
            words = (*LOOPS, "switch") if self._source.text(index) == "break" else LOOPS
            target = next((choice for choice in self._around(index) if self._source.text(choice.word) in words), None)
            if target is not None:
                found.setdefault(target.word, []).append(index)
        return found

    # What gets values.

    @cached_property
    def _assignments(self) -> list[_Assignment]:
        return [*self._initialisers(), *self._expressions(), *self._arguments(), *self._other_names()]

    def _initialisers(self) -> Iterator[_Assignment]:
        source = self._source
        for variables in source.variables.values():
            for variable in variables:
                if not self._is_in_body(variable.place):
                    continue
                index = variable.place + 1
                while source.text(index) == "[" and source.close(index) > 0:
                    index = source.close(index) + 1
                if source.text(index) in ("=", ":"):
                    yield _Assignment(variable.place, variable.place, (index + 1, source.expression_end(index + 1)))
                elif source.text(index) in ("(", "{") and source.close(index) > 0:
                    yield _Assignment(variable.place, variable.place, (index + 1, source.close(index)))

    def _expressions(self) -> Iterator[_Assignment]:
        source = self._source
        for index in self._places(*ASSIGNMENTS, *_STEPS):
            is_step = source.text(index) in _STEPS
            first = index + 1 if is_step and source.kind(index + 1) == IDENTIFIER else source.chain_start(index)
            value = (index, index) if is_step else (index + 1, source.expression_end(index + 1))
            conditions = choosing_conditions(source, first)
            if source.text(first) == ")":
                # Of a reference that a function gives, or of what is in brackets.
                for named in self._named(source.close(first), first):
                    yield _Assignment(named.place, index, value, conditions)
                continue
            variable = source.variable(source.text(first), first)
            if variable is None or self._is_shared(variable) and first + 1 < index:
                continue
            yield _Assignment(variable.place, index, value, conditions)
            if first + 1 < index:
                # An element that differs is another one.
                yield _Assignment(variable.place, index, (first + 1, index), conditions)

    def _arguments(self) -> Iterator[_Assignment]:
        """Functions' parameters, and the arguments and objects that functions may write to."""
        source = self._source
        for index, functions in self._calls():
            opening = opening_of_call(source, index)
            whole = (opening + 1, source.close(opening))
            for function in functions:
                parameters = source.arguments(function.opening)
                for (start, end), argument in zip(parameters, source.arguments(opening), strict=False):
                    named = [k for k in range(start, end) if source.kind(k) == IDENTIFIER]
                    if named:
                        yield _Assignment(named[-1], index, argument)
                    if source.places("&", "*", start=start, end=end) and "const" not in source.texts[start:end]:
                        yield from self._written(index, argument, whole)
                qualifiers = source.texts[function.closing : function.body_open]
                if source.text(index - 1) in (".", "->") and "const" not in qualifiers:
                    yield from self._written(index, (source.chain_start(index - 1), index - 1), whole)
        for index in source.calls({*WRITING_FUNCTIONS, _EXPECTING}):
            if self._is_in_body(index):
                for argument in source.arguments(index + 1):
                    yield from self._written(index, argument, (index, source.close(index + 1)))

    def _calls(self) -> Iterator[tuple[int, list[Function]]]:
        """Where functions are called, each with those that may be meant."""
        source = self._source
        for index in places_of_names(source, [*source.functions, *source.lambdas]):
            if self._is_in_body(index) and opening_of_call(source, index) >= 0:
                yield index, functions_meant(source, index)

    def _other_names(self) -> Iterator[_Assignment]:
        """Variables that references and pointers of threads stand for, or may: what is written there is theirs."""
        source = self._source
        for variables in source.variables.values():
            for variable in variables:
                is_other = variable.is_reference or variable.type is not None and variable.type.pointers
                if is_other and self._is_in_body(variable.place) and not self._is_shared(variable):
                    end = source.expression_end(variable.place)
                    for named in self._named(variable.place + 1, end):
                        yield _Assignment(named.place, variable.place, (variable.place, variable.place + 1))
        for index in self._places("="):
            if source.text(index + 1) == "&" and source.kind(index + 2) == IDENTIFIER:
                first = source.chain_start(index)
                for named in self._named(index + 2, index + 3):
                    yield _Assignment(named.place, index, (first, first + 1))

    def _written(self, index: int, argument: Range, value: Range) -> Iterator[_Assignment]:
        """That a function called at ``index`` may write what it makes of ``value`` to what ``argument`` names."""
        for variable in self._named(*argument):
            yield _Assignment(variable.place, index, value)

    def _named(self, start: int, end: int) -> Iterator[Variable]:
        """The variables of threads that are named there, those that only count elements left out."""
        source = self._source
        index = start
        while index < end:
            if source.text(index) == "[" and source.close(index) > 0:
                index = source.close(index)
            elif source.kind(index) == IDENTIFIER and source.text(index - 1) not in (".", "->"):
                variable = source.variable(source.text(index), index)
                if variable is not None and not self._is_shared(variable):
                    yield variable
            index += 1

    def _is_shared(self, variable: Variable) -> bool:
        """Whether the variable is, or points to, memory that threads share."""
        return not SHARED_SPACES.isdisjoint(self._source.words_before(variable.place, "(", ","))
