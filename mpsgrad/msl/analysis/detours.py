"""Short ways through choices, or a compiler takes a number that threads disagree about for all of them.

Intel's vectorizer looks for the places where the ways that threads take meet again. It follows the ways block by block,
and gives up behind the last of the blocks that a way's first one leads to. ``if (x) { loop; r = 1; } else { loop; r =
2; }`` gave all threads that run abreast the ``r`` of the first. Where the ways lead at once to the meeting place, too,
or to where a jump goes, the vectorizer finds that place and all before it. All of the ways have to lead there: where
only the first did, ``if (x) { if (z) return; } else loop;`` in a loop had threads return that came the second. What
stands behind a choice or a loop that threads jump out of is one of the ways, too, and so is a value that a ``?:``
chooses in an arm. No thread takes such a short way, but that is not known when the source is compiled.

Of two choices, one behind the other, the compiler makes one where the first decides about the second: ``if (x) loop; if
(!x) { loop; r = 1; } else r = 2;``, or ``if (!x) break;``. The first may be a ``?:`` that reads memory or chooses
again, too. Conditions of which it does not know what they depend on keep that from it. The turns of a loop that is
unrolled stand one behind the other, too, so that loops around such choices stay loops.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from mpsgrad.msl.analysis.calls import Reaching, functions_meant, reaching
from mpsgrad.msl.analysis.chosen_values import CHOICES, may_branch, statement_around
from mpsgrad.msl.analysis.loops import loops_of, names_are_common
from mpsgrad.msl.analysis.nesting import Nesting
from mpsgrad.msl.analysis.source import Function, Source
from mpsgrad.msl.analysis.statements import (
    DECIDING,
    LOOPS,
    Range,
    Section,
    Statement,
    declared_in_condition,
)
from mpsgrad.msl.analysis.types import read_type
from mpsgrad.msl.library_marks import ANY_THREAD
from mpsgrad.msl.tokens import Token

_TARGETS = {"break": (*LOOPS, "switch"), "continue": LOOPS}
_JUMPS = ("return", "goto", *_TARGETS)
_BARRIERS = ("threadgroup_barrier", "simdgroup_barrier", ANY_THREAD)


class Detour(NamedTuple):
    """A way past what ``token`` begins, which no thread takes: ``jump``, or nothing where the way only leaves that out.

    Behind a jump that ``is_alone`` more than one statement may be left out.
    """

    token: Token
    jump: str = ""
    is_alone: bool = False


class Condition(NamedTuple):
    """What stands from ``first`` to ``behind`` in the brackets of a choice or a loop; ``name`` is declared there."""

    first: Token
    behind: Token
    name: str | None


def detours_of(source: Source) -> list[Detour]:
    """The detours that ``source`` needs."""
    found = _finder_of(source).found
    return [found[index] for index in sorted(found)]


def conditions_to_keep_apart(source: Source) -> list[Condition]:
    """The conditions of choices that other choices may decide about before."""
    return _finder_of(source).conditions()


def has_loops_that_declare(source: Source) -> bool:
    """Whether a loop's condition declares a variable: what it asks of that is kept apart where it is a statement."""
    loops = source.statements.deciding("for", "while")
    clauses = (source.statements.clauses(loop.condition) for loop in loops)
    asked = (found[len(found) // 2] for found in clauses if len(found) != 2)
    return any(declared_in_condition(source, start, stop) is not None for start, stop in asked)


def loops_around_choices(source: Source) -> list[Token]:
    """The words of loops whose turns the compiler might write one behind the other, with choices with flow in them."""
    return _finder_of(source).loops_around_choices()


def _finder_of(source: Source) -> _Finder:
    return source.keep(_Finder, lambda: _Finder(source))


class _Finder:
    """The choices of one source that threads that run abreast may disagree about."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._loops = loops_of(source)
        self.found: dict[int, Detour] = {}
        self._with_flow = reaching(source, DECIDING)
        branching = [place for place in source.places(*CHOICES) if may_branch(source, place)]
        self._with_branches = Reaching(source, branching)
        barriers = reaching(source, _BARRIERS)
        for choice in source.statements.deciding("if", "switch"):
            arms = choice.parts
            if choice.is_constexpr or not source.in_body(choice.word):
                continue
            if any(barriers.places(*arm) for arm in arms):
                # All threads choose the same.
                continue
            if source.text(choice.word) == "switch":
                self._pass_by_sections(source.statements.sections(choice))
            else:
                self._pass_by_arms(arms)
        for function in self._called_in_choices():
            self._pass_by_body(function)
        for each in source.statements.deciding(*DECIDING):
            if source.in_body(each.word) and not barriers.places(each.word, each.end) and not each.is_constexpr:
                self._jump_behind(each)
        self._deciding = [
            each
            for each in source.statements.deciding("if", "for", "while", "switch")
            if source.in_body(each.word) and not each.is_constexpr and not barriers.places(each.word, each.end)
            if any(self._flow(*part) or source.places(*_JUMPS, start=part[0], end=part[1]) for part in each.parts)
        ]

    def conditions(self) -> list[Condition]:
        """The conditions of choices and loops with flow, or with jumps, behind others with flow, or in functions, which
        may be called there."""
        source = self._source
        chosen = self._ends_of_chosen_values()
        ends = {**chosen}
        found = []
        flowing = {each.word for each in self._deciding if any(self._flow(*part) for part in each.parts)}
        for each in self._deciding:
            function = self._function_around(each.word)
            if function is None:
                continue
            has_flow = each.word in flowing
            end = ends.get(function.start, each.end)
            if has_flow:
                end = ends[function.start] = min(each.end, end)
            if source.text(each.word) == "switch" or flowing == {each.word} and function.start not in chosen:
                continue
            clauses = source.statements.clauses(each.condition)
            is_choice = source.text(each.word) == "if"
            start, stop = clauses[-1 if is_choice else len(clauses) // 2]
            may_be_first = function.kernel is not None or not has_flow
            if start == stop or (may_be_first and end > each.start) or self._agrees(each):
                continue
            place = declared_in_condition(source, start, stop)
            if place is None and not self._declares(start, stop):
                found.append(Condition(source.tokens[start], source.tokens[stop], None))
            elif place is not None and is_choice and len(clauses) == 1:
                found.append(Condition(source.tokens[start], source.tokens[stop], source.text(place)))
        return found

    def _ends_of_chosen_values(self) -> dict[int, int]:
        """Where the first statement ends that reads memory or calls a function with flow for some threads only, or that
        chooses a value by choices in each other, by the function that it is in."""
        source = self._source
        flows = frozenset(self._flows[0])
        ends: dict[int, int] = {}
        for place in sorted({*flows, *source.places(*CHOICES)}):
            function = self._function_around(place)
            if source.text(place) in (*DECIDING, "else") or function is None or function.start in ends:
                continue
            start = statement_around(source, place)[0]
            end = source.statements.at(start).end
            choices = [source.text(index) for index in source.places(*CHOICES, start=start, end=end)]
            is_nested = len(choices) > 1 and "?" in choices and source.text(start) not in DECIDING
            if choices and place in flows or is_nested:
                ends[function.start] = end
        for each in source.statements.deciding("if"):
            function = self._function_around(each.word)
            if function is not None and any(source.places("?", start=arm[0], end=arm[1]) for arm in each.parts):
                ends[function.start] = min(each.end, ends.get(function.start, each.end))
        return ends

    def loops_around_choices(self) -> list[Token]:
        """The loops that turn a few times around a choice with loops, and say nothing of how they are compiled."""
        source, loops = self._source, self._loops
        choices = [each for each in self._deciding if source.text(each.word) == "if"]
        choices = [each for each in choices if any(self._flow(*arm) > 1 for arm in each.parts)]
        return [
            source.tokens[index]
            for index in source.places("for")
            if loops.mark(index) is None and loops.may_be_unrolled(index) and loops.turns(index) is not None
            if any(index < each.word < self._end(index) for each in choices)
        ]

    def _declares(self, start: int, end: int) -> bool:
        """Whether a variable is declared there, those of lambda expressions left out."""
        within = [each for each in self._source.lambdas if start <= each.start < end]
        named = ((index, self._source.variable(self._source.text(index), index)) for index in range(start, end))
        return any(
            variable is not None
            and variable.place == index
            and not any(each.start <= index < each.body_close for each in within)
            for index, variable in named
        )

    def _agrees(self, loop: Statement) -> bool:
        """Whether all threads make the same turns, as far as names tell."""
        return self._source.text(loop.word) == "for" and names_are_common(self._source, loop.condition)

    def _pass_by_arms(self, arms: Sequence[Range]) -> None:
        has_ways = len(arms) > 1 and all(self._flow(*arm) for arm in arms)
        if has_ways and any(self._flow(*arm) > 1 or self._with_branches.places(*arm) for arm in arms):
            ways = self._ways_of(arms)
            for arm in arms:
                self._pass_by(arm, ways)
            return
        for arm in arms:
            jump = self._farthest_jump(*arm) if self._flow(*arm) else None
            if jump is not None:
                self._jump_past(arm, jump)

    def _ways_of(self, arms: Sequence[Range]) -> str:
        """A way to where each of ``arms`` may jump; empty if none does."""
        jumps = dict.fromkeys(filter(None, (self._farthest_jump(*arm) for arm in arms)))
        tests = (f"if (never_mtl({number})) {jump}" for number, jump in enumerate(jumps, 1))
        return f"{{ {' '.join(tests)} }}" if jumps else ""

    def _jump_past(self, part: Range, jump: str, *, is_alone: bool = False) -> None:
        """A way that jumps; where the jump cannot be written, ways past the loops before it."""
        if jump:
            self._pass_by(part, jump, is_alone=is_alone)
            return
        source = self._source
        place = part[0]
        for index in source.places(*LOOPS, start=part[0], end=part[1]):
            if index >= place and (source.text(index) == "do" or source.close(index + 1) > 0):
                place = self._end(index)
                if not self._loops.is_surely_unrolled(index):
                    start = self._loops.beginning(index)
                    self._pass_by((start, place), "")

    def _pass_by_sections(self, sections: Sequence[Section]) -> None:
        for _, start, end in sections:
            if len(sections) > 1 and self._flow(start, end):
                self._pass_by((start, end), self._farthest_jump(start, end) or "break;", is_alone=True)

    def _pass_by_body(self, function: Function) -> None:
        body = (function.body_open + 1, function.body_close)
        self._jump_past(body, self._return_from(function, function.body_open), is_alone=True)

    def _jump_behind(self, statement: Statement) -> None:
        """A way from behind a statement to where threads go that jump out of it, unless what it is in ends there."""
        source, end = self._source, self._end_of_blocks(statement.end)
        before = source.text(self._loops.beginning(statement.start) - 1)
        if before not in (";", "{", "}") or source.text(end) == "}" or end in self.found:
            return
        if source.text(end) in ("return", *_TARGETS) and not self._flow(end, self._end(end)):
            return
        jump = self._farthest_jump(statement.word, end) if any(self._flow(*part) for part in statement.parts) else None
        if jump:
            self._pass_by((end, end), jump, is_alone=True)

    def _end_of_blocks(self, index: int) -> int:
        """What stands behind the blocks that end at ``index``, those of choices, loops and functions left out."""
        while index in self._plain_blocks:
            index += 1
        return index

    @cached_property
    def _plain_blocks(self) -> frozenset[int]:
        """Where blocks end that are statements themselves."""
        source = self._source
        openings = (at for at in source.places("{", start=1) if source.text(at - 1) in (";", "{", "}"))
        return frozenset(map(source.close, openings))

    def _pass_by(self, part: Range, jump: str, *, is_alone: bool = False) -> None:
        self.found[part[0]] = Detour(self._source.tokens[part[0]], jump, is_alone)

    def _called_in_choices(self) -> list[Function]:
        """The functions with flow that are called in statements that choose among several such calls."""
        source = self._source
        by_statement: dict[int, list[int]] = {}
        for place in self._with_flow.calls(0, len(source.tokens)):
            if source.text(place) not in DECIDING and source.in_body(place):
                by_statement.setdefault(statement_around(source, place)[0], []).append(place)
        return [
            function
            for start, places in by_statement.items()
            if len(places) > 1
            and source.places(*CHOICES, start=start, end=source.statements.at(start).end)
            for place in places
            for function in functions_meant(source, place)
            if function.kernel is None
        ]

    def _flow(self, start: int, end: int) -> int:
        """How much flow there is: nothing, one condition, or more."""
        places, amounts = self._flows
        first = bisect_left(places, start)
        return sum(amounts[first : bisect_left(places, end, first, min(first + 2, len(places)))])

    @cached_property
    def _flows(self) -> tuple[list[int], list[int]]:
        """Where there is flow, and how much."""
        source = self._source
        places: list[int] = []
        amounts: list[int] = []
        flows, branches = (set(each.places(0, len(source.tokens))) for each in (self._with_flow, self._with_branches))
        for index in sorted({*source.places("else"), *flows, *branches}):
            text = source.text(index)
            if text == "if":
                amount = 1
            elif text in DECIDING or text == "else":
                amount = 0 if self._loops.is_surely_unrolled(index) else 2
            elif text in CHOICES:
                amount = 1
            else:
                amount = (2 if index in flows else 1) if source.text(index + 1) in ("(", "<") else 0
            if amount:
                places.append(index)
                amounts.append(amount)
        return places, amounts

    def _farthest_jump(self, start: int, end: int) -> str | None:
        """The jump out of what stands there that goes farthest, if one does; empty if it cannot be written."""
        source = self._source
        function = self._function_around(start)
        if function is not None and any(
            self._lambda_around(index) == self._lambda_around(start)
            for index in source.places("return", start=start, end=end)
        ):
            return self._return_from(function, start)
        for index in source.places("goto", start=start, end=end):
            if source.text(index + 1) not in source.texts[index + 2 : end]:
                return self._with_marks(index)
        leaves = {
            word: any(
                not any(target >= start and source.text(target) in targets for target in self._around(place))
                for place in source.places(word, start=start, end=end)
            )
            for word, targets in _TARGETS.items()
        }
        innermost = next(self._around(start), -1)
        is_in_switch = innermost >= 0 and source.text(innermost) == "switch"
        for word in ("continue", "break") if is_in_switch else ("break", "continue"):
            if leaves[word]:
                return f"{word};"
        return None

    def _around(self, index: int) -> Iterator[int]:
        """Where the loops and ``switch`` begin that ``index`` is in, the innermost first."""
        places, nesting = self._nesting
        return (places[number] for number in nesting.around(index))

    @cached_property
    def _nesting(self) -> tuple[list[int], Nesting]:
        """Where loops and ``switch`` begin, and how they lie in each other."""
        places = self._source.places(*_TARGETS["break"])
        return places, Nesting([(place, self._end(place)) for place in places])

    def _end(self, index: int) -> int:
        return self._source.statements.at(index).end

    def _function_around(self, index: int) -> Function | None:
        number = bisect_left(self._bodies, index, key=_body_open) - 1
        return self._bodies[number] if number >= 0 and index < self._bodies[number].body_close else None

    @cached_property
    def _bodies(self) -> list[Function]:
        """The functions, in order, those in bodies of others left out."""
        outermost: list[Function] = []
        for function in sorted(self._source.functions, key=_body_open):
            if not outermost or outermost[-1].body_close <= function.body_open:
                outermost.append(function)
        return outermost

    def _with_marks(self, index: int) -> str:
        """The jump at ``index``, which is this package's, with the marks that it takes away from threads."""
        source = self._source
        start = index
        while source.texts[start - 3 : start] == ["=", "false", ";"]:
            start -= 4
        return f"{{ {' '.join(source.texts[start : index + 3])} }}"

    def _lambda_around(self, index: int) -> int:
        """Where the body of the innermost lambda expression begins that ``index`` is in, or -1."""
        return max(
            (each.body_open for each in self._source.lambdas if each.body_open < index < each.body_close), default=-1
        )

    def _return_from(self, function: Function, index: int) -> str:
        """What leaves ``function`` at ``index`` with any value, or nothing if that cannot be said."""
        source = self._source
        if self._lambda_around(index) >= 0:
            return ""
        if function.kernel is not None or source.text(function.opening - 2) == "void":
            return "return;"
        start = function.start
        if source.text(start) == "template" and source.text(start + 1) == "<":
            start = source.close(start + 1) + 1 if source.close(start + 1) > 0 else function.opening
        read = read_type(source.tokens, start, function.opening - 1, source.aliases, source.struct_bodies)
        if read is None or read[1] != function.opening - 1 or source.text(function.opening - 2) == "&":
            return ""
        kind = read[0]
        has_value = kind.pointers or kind.known and kind.base not in source.struct_bodies and kind.base != "auto"
        return "return {};" if has_value else ""


def _body_open(function: Function) -> int:
    return function.body_open
