"""Values that only active threads look up, and calls of functions with barriers, which all threads have to make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpsgrad.msl.analysis.calls import functions_meant, gives_nothing, reaching
from mpsgrad.msl.analysis.divergence import BARRIER
from mpsgrad.msl.analysis.source import Function, Source, Variable
from mpsgrad.msl.analysis.statements import DECIDING, Range, names_of_parts, opening_of_parts
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.instrument.declarators import DeclaratorReader
from mpsgrad.msl.instrument.tree import Node, NotUnderstood, TreeReader
from mpsgrad.msl.library_marks import WHEN, WHERE
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, Token, made_at

_STATEMENT_WORDS = frozenset({"return", "break", "continue", *DECIDING})
_BEFORE_STATEMENTS = frozenset({";", "{", "}", ")", "else", "do", ":"})
# What computes a value of variables' without looking anything up, and can be done by threads that have none.
_HARMLESS = frozenset("+ - * & | ^ ~ ! < > <= >= == != && || << >> . :: ,".split())


@dataclass(frozen=True, slots=True)
class Flow:
    """The marks around a statement, the outermost first; from which one on ``break`` and ``continue`` take them away,
    None where there is nothing to leave."""

    marks: tuple[str, ...]
    at_break: int | None = None
    at_continue: int | None = None

    @property
    def mark(self) -> str:
        return self.marks[-1]

    def inside(self, *marks: str) -> Flow:
        return replace(self, marks=(*self.marks, *marks))


class ValueWriter:
    """Writes the values in the body of one function."""

    def __init__(self, source: Source, function: Function, is_checked: bool) -> None:
        self._source = source
        self._is_checked = is_checked
        self._tokens = source.tokens
        self._text = source.text
        self._function = function
        # A lambda expression's values are also those of the functions around it.
        around = (each for each in source.functions if each.body_open < function.start < each.body_close)
        outermost = min(around, key=lambda each: each.start, default=function)
        self._first, self._body_open = outermost.opening, outermost.body_open
        self._place = function.body_open
        self._declarators = DeclaratorReader(self._source, self._is_variable)
        self._trees = TreeReader(self._source, self._is_variable)
        self._waiting = reaching(source, [BARRIER])
        self._count = 0

    def _is_variable(self, name: str) -> bool:
        return self._source.variable(name, self._place) is not None

    def _made(self, index: int, words: str) -> list[Token]:
        return made_at(self._tokens[index], *words.split())

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}{RENAMED_SUFFIX}"

    def _waits(self, start: int, end: int) -> bool:
        """Whether threads wait there; what is done in a lambda expression is done where that is called."""
        inside = [each for each in self._source.lambdas if start <= each.start < end]
        return any(
            not any(each.body_open < index < each.body_close for each in inside)
            for index in self._waiting.calls(start, end)
        )

    def _barrier(self, start: int, end: int, flow: Flow) -> list[Token]:
        """The call of a barrier that stands there; checks are told whether the thread would come to it."""
        mark = self._made(end - 1, f", {flow.mark}") if self._is_checked else []
        return [*self._tokens[start : end - 1], *mark, self._tokens[end - 1]]

    def _value(self, start: int, end: int, flow: Flow) -> tuple[list[Token], list[Token]]:
        """What is to be done by all threads before an expression, and the expression without it: nothing is left of a
        call of a function without a result."""
        if not self._waits(start, end):
            return [], self._tokens[start:end]
        before: list[Token] = []
        replaced: list[tuple[Range, list[Token]]] = []
        self._take_calls(self._trees.expression(start, end), flow, before, replaced, is_whole=True)
        return before, self._spliced(start, end, replaced)

    def _spliced(self, start: int, end: int, replaced: Sequence[tuple[Range, list[Token]]]) -> list[Token]:
        output: list[Token] = []
        for (first, last), tokens in sorted(replaced, key=lambda each: each[0]):
            if first >= start and last <= end:
                output += [*self._tokens[start:first], *tokens]
                start = last
        return output + self._tokens[start:end]

    def _take_calls(
        self,
        node: Node,
        flow: Flow,
        before: list[Token],
        replaced: list[tuple[Range, list[Token]]],
        *,
        is_whole: bool = False,
    ) -> None:
        """Moves the calls in ``node`` of functions that wait to ``before``."""
        if not self._waits(node.start, node.end):
            return
        if node.kind in ("opaque", "unevaluated"):
            raise NotUnderstood(node.start)
        chooses = node.kind == "ternary" or node.kind == "binary" and node.text in ("&&", "||")
        if (chooses or node.kind == "comma") and self._waits(node.parts[0].end, node.end):
            self._take_in_order(node, flow, before, replaced)
            return
        if node.kind == "call" and node.parts[0].text == BARRIER:
            before += [*self._barrier(node.start, node.end, flow), *self._made(node.place, ";")]
            replaced.append(((node.start, node.end), [] if is_whole else self._made(node.place, "( void ) 0")))
            return
        functions = self._called(node) if node.kind == "call" else []
        for part in node.parts[1:] if functions else node.parts:
            self._take_calls(part, flow, before, replaced)
        if not functions:
            if not any(self._waits(part.start, part.end) for part in node.parts):
                raise NotUnderstood(node.start)
            return
        opening = node.place
        call = self._tokens[node.start : opening + 1] + self._made(opening, flow.mark)
        for position, argument in enumerate(node.parts[1:]):
            start, end = argument.start, argument.end
            inner = self._spliced(start, end, replaced)
            is_reference = any(self._takes_reference(function, position) for function in functions)
            call += [*self._made(opening, ","), *self._if_active(start, end, inner, flow, is_reference=is_reference)]
        call.append(self._tokens[node.end - 1])
        replaced[:] = [each for each in replaced if not node.start <= each[0][0] < node.end]
        # Of functions with and without results those count that can stand there.
        nothing = [gives_nothing(self._source, function) for function in functions]
        is_statement = is_whole and self._text(node.start - 1) in _BEFORE_STATEMENTS
        if all(nothing) or is_statement and any(nothing):
            before += [*call, *self._made(opening, ";")]
            replaced.append(((node.start, node.end), [] if is_whole else self._made(opening, "( void ) 0")))
        else:
            name = self._name("called")
            before += [*self._made(opening, f"auto {name} ="), *call, *self._made(opening, ";")]
            replaced.append(((node.start, node.end), self._made(opening, name)))

    def _take_in_order(
        self, node: Node, flow: Flow, before: list[Token], replaced: list[tuple[Range, list[Token]]]
    ) -> None:
        """Does what stands before ``?``, ``&&``, ``||`` or a comma first, and then what it decides to be done."""
        first, *others = node.parts
        self._take_calls(first, flow, before, replaced)
        value = self._spliced(first.start, first.end, replaced)
        replaced[:] = [each for each in replaced if not first.start <= each[0][0] < first.end]
        made = self._made
        if node.kind == "comma":
            before += [*made(node.place, f"if ( {flow.mark} ) {{"), *value, *made(node.place, "; }")]
            replaced.append(((first.start, first.end), made(node.place, "( void ) 0")))
            self._take_calls(others[0], flow, before, replaced)
            return
        chosen = self._name("chosen")
        before += [*made(node.place, f"const bool {chosen} = {flow.mark} && ("), *value, *made(node.place, ") ;")]
        replaced.append(((first.start, first.end), made(node.place, chosen)))
        for number, part in enumerate(others):
            if not self._waits(part.start, part.end):
                continue
            mark = chosen
            if number or node.text == "||":
                mark = self._name("active")
                before += made(node.place, f"const bool {mark} = {flow.mark} && ! {chosen} ;")
            self._take_calls(part, replace(flow, marks=(*flow.marks, mark)), before, replaced)

    def _called(self, node: Node) -> list[Function]:
        """The functions that may be called there, if any of them waits."""
        called = node.parts[0]
        place = called.place
        if called.kind in ("member", "arrow"):
            place += 1 + (self._text(place + 1) == "template")
        elif called.kind != "name":
            # An object without a name: Sum()(x).
            place = called.end - 1
            if called.kind == "subscript" and not self._is_harmless(called.start, called.end, may_name_elements=True):
                raise NotUnderstood(called.start)
        if called.kind != "name" and self._waits(called.start, place):
            raise NotUnderstood(called.start)
        functions = functions_meant(self._source, place) if self._waits(place, place + 1) else []
        exact = [each for each in functions if len(self._source.arguments(each.opening)) == len(node.parts) - 1]
        return exact or functions

    def _takes_reference(self, function: Function, position: int) -> bool:
        parameters = self._source.arguments(function.opening)
        return position < len(parameters) and bool(
            self._source.places("&", start=parameters[position][0], end=parameters[position][1])
        )

    # Values that threads may not have.

    def _declaration(self, first: int, end: int, flow: Flow) -> list[Token] | None:
        """A declaration of variables with values that only active threads look up; None where there is none."""
        stop = end - 1
        if self._text(first) in _STATEMENT_WORDS:
            return None
        index, words = self._declarators.specifiers(first, stop)
        if index is not None and (opening := opening_of_parts(self._source, index - 1)) > 0:
            return self._parts(first, opening, stop, flow)
        if index is None or not self._declarators.begins(index, stop):
            return None
        if "constexpr" in words:
            return self._tokens[first:end]
        before: list[Token] = []
        output = self._tokens[first:index]
        while index < stop:
            found = self._declarators.read(index, stop)
            output += self._tokens[index : found.end]
            index = found.end
            text = self._text(index)
            if text == "=":
                last = self._comma_or(index, stop)
                output.append(self._tokens[index])
                output += self._initial(index + 1, last, flow, before, is_reference=found.is_reference)
                index = last
            elif text in ("(", "{"):
                last = self._source.close(index) + 1
                output += self._list(index, flow, before)
                index = last
            if index < stop:
                if self._text(index) != ",":
                    raise NotUnderstood(index)
                output.append(self._tokens[index])
                index += 1
        return [*before, *output, self._tokens[stop]]

    def _parts(self, first: int, opening: int, stop: int, flow: Flow) -> list[Token]:
        """``auto [a, b] = pair;``"""
        value = self._source.close(opening) + 1
        before: list[Token] = []
        if self._text(value) == "=":
            is_reference = self._text(opening - 1) == "&"
            parts = self._initial(value + 1, stop, flow, before, is_reference=is_reference)
        else:
            value, parts = value - 1, self._list(value, flow, before)
        return [*before, *self._tokens[first : value + 1], *parts, self._tokens[stop]]

    def _comma_or(self, index: int, stop: int) -> int:
        """Where the value that begins behind ``index`` ends: the tree of an expression knows its commas."""
        return self._trees.initialiser(index + 1, stop).end

    def _list(self, opening: int, flow: Flow, before: list[Token]) -> list[Token]:
        output = [self._tokens[opening]]
        close = self._source.close(opening)
        index = opening + 1
        while index < close:
            if self._text(index) == "." and self._text(index + 2) == "=":
                output += self._tokens[index : index + 3]
                index += 3
            last = self._trees.initialiser(index, close).end
            output += self._initial(index, last, flow, before)
            index = last
            if index < close:
                output.append(self._tokens[index])
                index += 1
        return [*output, self._tokens[close]]

    def _initial(
        self, start: int, end: int, flow: Flow, before: list[Token], *, is_reference: bool = False
    ) -> list[Token]:
        if self._text(start) == "{" and self._source.close(start) == end - 1:
            return self._list(start, flow, before)
        first, value = self._value(start, end, flow)
        before += first
        return self._if_active(start, end, value, flow, is_reference=is_reference)

    def _if_active(
        self, start: int, end: int, value: Sequence[Token], flow: Flow, *, is_reference: bool = False
    ) -> list[Token]:
        """``value``, which was written at ``start`` to ``end``, as active threads have it, and others anything."""
        is_lambda = any(each.start == start and each.body_close == end - 1 for each in self._source.lambdas)
        if is_lambda or self._is_constant(start, end) or self._is_harmless(start, end, may_name_elements=is_reference):
            return [*value]
        maker = WHERE if is_reference else WHEN
        return [*self._made(start, f"{maker} ( {flow.mark} ,"), *value, *self._made(start, ")")]

    def _is_constant(self, start: int, end: int) -> bool:
        """Whether a value is made of nothing that the function declares."""
        source = self._source
        if source.places("[", "->", start=start, end=end):
            return False
        for index in range(start, end):
            if source.kind(index) == IDENTIFIER and source.text(index - 1) not in (".", "->"):
                variable = source.variable(source.text(index), index)
                if variable is not None and variable.place > self._first:
                    initialiser = variable.initialiser
                    if initialiser is None or variable.place >= start or not self._is_fixed(variable.place):
                        return False
                    if not self._is_constant(*initialiser):
                        return False
                elif source.text(index) in source.functions_by_name or self._is_member(index):
                    return False
                elif source.text(index) in names_of_parts(source):
                    return False
        return True

    def _is_fixed(self, place: int) -> bool:
        """Whether the variable that is declared at ``place`` is ``const`` and no pointer."""
        words = set(self._source.words_before(place, "(", ","))
        return bool({"const", "constexpr"} & words) and not {"*", "&"} & words

    def _is_member(self, index: int) -> bool:
        """Whether ``index`` names a member of the object that the function is called for, without saying so."""
        name, function = self._text(index), self._function
        if self._text(index - 1) in (".", "->") or name not in self._source.members.get(function.owner or "", {}):
            return False
        variable = self._source.variable(name, index)
        return variable is None or not self._first < variable.place < function.body_close

    def _is_perhaps_unset(self, variable: Variable | None, index: int) -> bool:
        """Whether what is named at ``index``, ``variable`` or a member, is a number that may be without a value yet, or
        an object that may have such."""
        source, is_of_object = self._source, self._text(index + 1) == "."
        if self._is_member(index):
            kind, extents = source.members[self._function.owner or ""][self._text(index)]
            has_value = False
        elif variable is None or self._text(index - 1) in (".", "->"):
            return False
        else:
            kind, extents = variable.type, variable.extents
            has_value = variable.initialiser is not None or variable.place < self._body_open
        if extents:
            return False
        if is_of_object if kind is None else kind.base in source.struct_bodies and not kind.pointers:
            return is_of_object
        return not has_value

    def _is_harmless(self, start: int, end: int, *, may_name_elements: bool) -> bool:
        """Whether threads without values may compute it all the same: it reads no memory, divides nothing, and names no
        number that is set later. A compiler takes it that whoever passes a number on has one, and forgets the marks."""
        texts, kind = self._source.texts, self._source.kind
        index = start
        while index < end:
            text = texts[index]
            names_address = text == "&" and index == start or may_name_elements and index == start
            if names_address and kind(index + (text == "&")) == IDENTIFIER:
                index += text == "&"
                while texts[index + 1] == "[" and index + 1 < end:
                    close = self._source.close(index + 1)
                    if not self._is_harmless(index + 2, close, may_name_elements=False):
                        return False
                    index = close
            elif text == "*" and (index == start or texts[index - 1] in _HARMLESS):
                return False
            elif kind(index) == IDENTIFIER:
                variable = self._source.variable(text, index)
                is_local = variable is not None and (
                    self._function.kernel is None or variable.place > self._function.body_open
                )
                is_reference = variable is not None and variable.is_reference and is_local
                is_part = text in names_of_parts(self._source)
                if (is_reference or is_part or self._is_perhaps_unset(variable, index)) and not may_name_elements:
                    return False
            elif text not in _HARMLESS and kind(index) != NUMBER:
                return False
            index += 1
        return True
