"""Integers that are defined even where none of the threads that run abreast takes part.

Those are numbers, positions, and what is computed from such without memory and without division, which Intel's
vectorizer leaves out where no thread needs them. What is not understood here counts as not defined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

from mpsgrad.msl.analysis.calls import functions_meant, places_of_names, returns_of
from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.loops import loops_of
from mpsgrad.msl.analysis.plain_structs import is_plain
from mpsgrad.msl.analysis.source import WRITING_FUNCTIONS, Function, Source, Variable
from mpsgrad.msl.analysis.statements import Range
from mpsgrad.msl.analysis.types import Type
from mpsgrad.msl.program import SHARED_SPACES
from mpsgrad.msl.tokens import ASSIGNMENTS, IDENTIFIER, matching_angle

BEFORE_OPERANDS = frozenset("( [ { , ; = ? : + - * / % & | ^ ! ~ < > && || == != <= >= << >> return case".split())
_DIVISIONS = ("/", "%", "/=", "%=")
_DEEPEST = 24
_OF_LIBRARY = frozenset(
    "min max clamp abs absdiff select as_type popcount clz ctz mad24 mul24 mulhi madhi extract_bits insert_bits rotate"
    " reverse_bits any all min3 max3 median3 static_cast metal".split()
)
_WORDS = frozenset("const thread constexpr unsigned signed true false sizeof alignof typename template".split())


def defined_values(source: Source) -> DefinedValues:
    """The one of ``source``."""
    return source.keep(DefinedValues, lambda: DefinedValues(source))


class DefinedValues:
    """Tells of expressions of one source whether their values are defined for all."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._expressions = expressions_of(source)
        self._loops = loops_of(source)
        self._known: dict[int, bool] = {}
        self._fixed: dict[int, bool] = {}

    def are_defined(self, place: Range, depth: int = 0) -> bool:
        """Whether that holds of the expression at ``place``."""
        source = self._source
        if depth > _DEEPEST:
            return False
        if any(source.text(index) in _DIVISIONS for index in range(*place)) and not self.is_fixed(place):
            return False
        return all(self._is_part_defined(index, place, depth) for index in range(*place))

    def base(self, opening: int) -> Type | None:
        """The type of what stands before the bracket at ``opening``; None where it is not certain."""
        is_in_brackets = self._source.text(opening - 1) == ")"
        start = self._source.close(opening - 1) if is_in_brackets else self._source.chain_start(opening)
        if is_in_brackets and self._source.kind(start - 1) == IDENTIFIER:
            return None
        return self._expressions.type_of(start, opening) if start < opening else None

    def _is_part_defined(self, index: int, place: Range, depth: int) -> bool:
        source = self._source
        text = source.text(index)
        if text == "[":
            variable = source.variable(source.text(source.chain_start(index)), source.chain_start(index))
            if variable is None or variable.extents and self._is_of_program(variable):
                return variable is not None
            base = self.base(index)
            is_pointer = variable.type is None or bool(variable.type.pointers) and not variable.extents
            return base is not None and base.space not in SHARED_SPACES and not is_pointer
        if text == "->":
            return self._is_member_defined(index, depth)
        if text == "*" and (index == place[0] or source.text(index - 1) in BEFORE_OPERANDS):
            return False
        if source.kind(index) != IDENTIFIER or text in _WORDS:
            return True
        if self._opening(index) > 0:
            return self._is_result_defined(index, depth)
        if source.text(index - 1) in (".", "->", "::"):
            return True
        variable = source.variable(text, index)
        if variable is None:
            return source.is_type(index) or text in source.constants or source.text(index + 1) == "::"
        return self._is_variable_defined(variable, index, depth)

    def _opening(self, index: int) -> int:
        """The bracket before the arguments of what is called by the name at ``index``; 0 if nothing is."""
        source = self._source
        behind = index + 1
        if source.text(behind) == "<":
            close = matching_angle(source.tokens, behind)
            behind = close + 1 if close is not None else behind
        return behind if source.text(behind) == "(" else 0

    # What functions give.

    def _is_result_defined(self, index: int, depth: int) -> bool:
        source = self._source
        functions = functions_meant(source, index)
        if not functions:
            text = source.text(index)
            if source.text(index - 1) in (".", "->") or source.variable(text, index) is not None:
                return False
            return text in _OF_LIBRARY or source.is_type(index) and text not in source.struct_bodies
        return all(self._are_returned_defined(function, depth) for function in functions)

    def _are_returned_defined(self, function: Function, depth: int) -> bool:
        return self._settled(
            function.start,
            lambda: all(
                self.are_defined((index + 1, self._source.expression_end(index + 1)), depth + 1)
                for index in returns_of(self._source, function)
            ),
        )

    def _settled(self, place: int, holds: Callable[[], bool]) -> bool:
        """Whether it ``holds`` of the variable or the function at ``place``; what depends on itself may."""
        if place not in self._known:
            self._known[place] = True
            if not holds():
                later = [*self._known]
                for other in later[later.index(place) + 1 :]:
                    # Perhaps only because this one was taken for defined.
                    if self._known[other]:
                        del self._known[other]
                self._known[place] = False
        return self._known[place]

    # What variables hold.

    def _is_variable_defined(self, variable: Variable, index: int, depth: int) -> bool:
        kind = variable.type
        if self._is_of_program(variable) or variable.name in self._source.template_values:
            return True
        if kind is not None and kind.space in SHARED_SPACES:
            # A pointer's name alone reads nothing.
            return bool(kind.pointers) and not variable.is_reference
        if kind is not None and kind.pointers and not variable.extents:
            return True
        if kind is not None and kind.base in self._source.struct_bodies and self._source.text(index + 1) != ".":
            # It is converted by a function.
            return self._source.text(index - 1) in ("(", ",") and self._source.text(index + 1) in (")", ",")
        return self._holds_defined(variable, depth) or self._is_member_defined(index + 1, depth)

    def _holds_defined(self, variable: Variable, depth: int) -> bool:
        return self._settled(variable.place, lambda: depth < _DEEPEST and self._gets_defined(variable, depth + 1))

    def _gets_defined(self, variable: Variable, depth: int) -> bool:
        source = self._source
        function = self._function_of_parameter(variable)
        if function is None and not source.in_body(variable.place):
            # A member of a class.
            return False
        if function is not None and function.kernel is None and not self._are_given_defined(function, variable, depth):
            return False
        if variable.type is not None and variable.type.base in source.functions_by_name:
            # A constructor may read memory.
            return False
        if not all(self.are_defined(value, depth) for value in self.beginnings(variable)):
            return False
        return all(
            self._leaves_defined(index, index, depth)
            for index in source.places(variable.name, start=variable.place + 1, end=variable.last)
            if source.text(index - 1) not in (".", "->", "::") and source.variable(variable.name, index) is variable
        )

    def beginnings(self, variable: Variable) -> Iterator[Range]:
        """What the variable is made from."""
        source = self._source
        index = variable.place + 1
        while source.text(index) == "[" and source.close(index) > 0:
            index = source.close(index) + 1
        if source.text(index) == "=" or source.text(index) == ":" and source.text(index + 1) != ":":
            yield index + 1, source.expression_end(index + 1, variable.last)
        elif source.text(index) in ("(", "{") and source.close(index) > 0:
            yield index + 1, source.close(index)

    def _is_member_defined(self, index: int, depth: int) -> bool:
        """Whether the member of a thread's object that is named behind ``index`` holds what is defined."""
        source, name = self._source, self._source.text(index + 1)
        kind = self._expressions.type_of(source.chain_start(index), index)
        if source.text(index) not in (".", "->") or kind is None or kind.space in SHARED_SPACES:
            return False
        member, extents = source.members.get(kind.base, {}).get(name, (None, ()))
        place = source.member_place(kind.base, name) if member is not None and is_plain(source, kind.base) else None
        if member is None or place is None or not member.is_scalar or extents:
            return False
        return self._settled(
            place,
            lambda: depth < _DEEPEST
            and all(
                self._leaves_defined(source.chain_start(each + 1), each, depth + 1)
                for each in source.places(name)
                if source.text(each - 1) in (".", "->")
            ),
        )

    def _leaves_defined(self, index: int, name: int, depth: int) -> bool:
        """Whether what is done with the variable, or the member from ``index`` on, that is named at ``name`` leaves it
        defined."""
        source = self._source
        before, end = source.text(index - 1), name + 1
        while source.text(end) in (".", "["):
            end = source.close(end) + 1 if source.text(end) == "[" else end + 2
        if source.text(end) in ASSIGNMENTS:
            return source.text(end) not in _DIVISIONS and self.are_defined(
                (end + 1, source.expression_end(end + 1)), depth
            )
        if end > name + 1 and source.text(end) == "(" and source.text(end - 2) == ".":
            methods = functions_meant(source, end - 1)
            return all(source.text(each.closing + 1) == "const" for each in methods)
        if before == "&" and source.text(index - 2) in BEFORE_OPERANDS:
            return False
        if before in ("=", "(", "{") and source.text(index - 3) == "&":
            # A reference's declaration.
            return False
        if before in ("(", ",") and source.text(end) in (")", ","):
            return self._is_passed_defined(index, depth)
        return True

    def _is_passed_defined(self, index: int, depth: int) -> bool:
        """Whether a call with the variable at ``index`` as one of its arguments leaves it defined."""
        source = self._source
        opening = index - 1
        while opening > 0 and source.text(opening) not in ("(", ";", "{", "["):
            opening = max(source.close(opening), 0) - 1 if source.text(opening) in (")", "]", "}") else opening - 1
        number = next((n for n, part in enumerate(source.arguments(opening)) if part[0] == index), -1)
        called = self._called_by_opening.get(opening)
        if called is None:
            return source.text(opening - 1) not in WRITING_FUNCTIONS
        for function in called:
            parameters = source.arguments(function.opening)
            if number >= len(parameters):
                return False
            start, end = parameters[number]
            if source.places("&", start=start, end=end) and "const" not in source.texts[start:end]:
                named = next((source.variable(source.text(k), function.body_open) for k in range(end - 1, start, -1)
                              if source.kind(k) == IDENTIFIER), None)  # fmt: skip
                if named is None or not self._holds_defined(named, depth):
                    return False
        return True

    # What calls pass.

    def _are_given_defined(self, function: Function, variable: Variable, depth: int) -> bool:
        """Whether all calls of ``function`` pass what is defined for its parameter."""
        source = self._source
        openings = self._openings.get(function.start, [])
        if not openings:
            # By another name, or never.
            return len(source.places(function.name)) == len(source.functions_by_name.get(function.name, ()))
        given = self.given_to(variable)
        return len(given) == len(openings) and all(self.are_defined(value, depth) for value in given)

    @cached_property
    def _openings(self) -> dict[int, list[int]]:
        """Where the arguments of calls begin, by where functions do."""
        found: dict[int, list[int]] = {}
        for opening, functions in self._called_by_opening.items():
            for function in functions:
                found.setdefault(function.start, []).append(opening)
        return found

    @cached_property
    def _called_by_opening(self) -> dict[int, list[Function]]:
        source = self._source
        found: dict[int, list[Function]] = {}
        heads = {function.opening for function in source.functions}
        for index in places_of_names(source, [*source.functions, *source.lambdas]):
            opening = self._opening(index)
            if opening and opening not in heads and source.in_body(index):
                found.setdefault(opening, []).extend(functions_meant(source, index))
        return {opening: functions for opening, functions in found.items() if functions}

    def _function_of_parameter(self, variable: Variable) -> Function | None:
        return self._functions_by_opening.get(variable.first) if variable.first < variable.place else None

    @cached_property
    def _functions_by_opening(self) -> dict[int, Function]:
        return {each.opening: each for each in [*self._source.functions, *self._source.lambdas]}

    def _is_of_program(self, variable: Variable) -> bool:
        return variable.last == len(self._source.tokens)

    # Numbers where loops are unrolled.

    def is_fixed(self, place: Range, depth: int = 0) -> bool:
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
                is_number = self._loops.may_be_unrolled(loop) and self.is_fixed(head, depth + 1)
            else:
                values = self.values_of(variable)
                is_number = bool(values) and all(self.is_fixed(value, depth + 1) for value in values)
            self._fixed[variable.place] = is_number
        return self._fixed[variable.place]

    def values_of(self, variable: Variable) -> list[Range]:
        """What a variable gets: at first, later, or from calls."""
        source = self._source
        values = [*self.beginnings(variable), *self.given_to(variable)]
        for index in source.places(variable.name, start=variable.place + 1, end=variable.last):
            if source.text(index + 1) in ASSIGNMENTS and source.text(index - 1) not in (".", "->"):
                values.append((index + 2, source.expression_end(index + 2, variable.last)))
        return values

    def given_to(self, parameter: Variable) -> list[Range]:
        """What calls pass for a function's parameter; nothing for other variables."""
        function = self._function_of_parameter(parameter)
        if function is None:
            return []
        source = self._source
        heads = source.arguments(function.opening)
        number = next((n for n, (start, end) in enumerate(heads) if start <= parameter.place < end), len(heads))
        given = (source.arguments(opening) for opening in self._openings.get(function.start, []))
        return [each[number] for each in given if len(each) > number]
