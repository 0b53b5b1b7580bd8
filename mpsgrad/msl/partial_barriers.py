"""Takes all threads of a threadgroup along to barriers that only some of them would reach.

Metal leaves open what happens then. Its GPUs go on with the threads that come: those behind ``if (i >= n) return;`` add
up without the others. A compiler that runs the threads of a threadgroup by turns, from barrier to barrier, follows one
of them, and forgets the results of all that went another way.

Here each thread keeps a mark, ``active_mtl``, that a ``return`` takes away, and is led through the statements that hold
barriers with all others: a loop goes on for as long as any thread would. What stands between is done by the marked ones
only. Functions with barriers get the mark of their caller as their first argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mpsgrad.msl.analysis.divergence import BARRIER, calls_between
from mpsgrad.msl.analysis.source import Function, Source
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.instrument.declarators import DeclaratorReader
from mpsgrad.msl.instrument.tree import Node, NotUnderstood, TreeReader
from mpsgrad.msl.library_marks import ANY_THREAD, WHEN, WHERE
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, OPENING, Token, error, made_at, matching_angle, skip_attributes

_ACTIVE = f"active{RENAMED_SUFFIX}"
_RESULT = f"result{RENAMED_SUFFIX}"
_LOOPS = ("for", "while", "do")
_STATEMENT_WORDS = frozenset({"return", "break", "continue", "if", "switch", *_LOOPS})
_KEPT = frozenset("using typedef static_assert struct class union enum template".split())
# What computes a value of variables' without looking anything up, and can be done by threads that have none.
_HARMLESS = frozenset("+ - * & | ^ ~ ! < > <= >= == != && || << >> . :: ,".split())
_HEAD_WORDS = frozenset({"static", "inline", "constexpr", "METAL_FUNC"})

Range = tuple[int, int]


def with_whole_barriers(source: Source, partial: Sequence[Function]) -> list[Token]:
    """The tokens of ``source`` in which all threads come to the barriers in the functions ``partial``, too; raises
    ``ShaderError`` where what stands around one is not understood."""
    try:
        return _Program(source, partial).tokens()
    except NotUnderstood as found:
        message = "only some threads may come to a barrier, and this has a form in which the others cannot be led to it"
        raise error(message, source.tokens[min(found.place, len(source.tokens) - 1)]) from None


@dataclass(frozen=True, slots=True)
class _Flow:
    """The marks around a statement, the outermost first; which of them ``break`` and ``continue`` take away, from the
    first on, None outside of loops."""

    marks: tuple[str, ...]
    leaves_loop: int | None = None
    leaves_turn: int | None = None

    @property
    def mark(self) -> str:
        return self.marks[-1]

    def inside(self, *marks: str) -> _Flow:
        return replace(self, marks=(*self.marks, *marks))


class _Program:
    """One source, and the functions in it that change."""

    def __init__(self, source: Source, partial: Sequence[Function]) -> None:
        self.source = source
        self.waiting = source.functions_that_reach([BARRIER])
        changed = {function.start: function for function in partial}
        todo = list(partial)
        while todo:
            function = todo.pop()
            for name in self._called(function):
                for other in source.functions_by_name[name]:
                    if other.start not in changed:
                        changed[other.start] = other
                        todo.append(other)
        self.changed = changed
        self.marked = frozenset(each.name for each in changed.values() if each.kernel is None)

    def _called(self, function: Function) -> Iterator[str]:
        for index in calls_between(self.source, self.waiting, function.body_open, function.body_close):
            yield self.source.text(index)

    def tokens(self) -> list[Token]:
        source = self.source
        tokens = source.tokens
        output: list[Token] = []
        position = 0
        bodies = {each.body_open: each for each in self.changed.values()}
        calls = set(calls_between(source, self.marked, 0, len(tokens))) if self.marked else set()
        while position < len(tokens):
            function = bodies.get(position)
            if function is not None:
                output += _Body(self, function).tokens()
                position = function.body_close + 1
                continue
            output.append(tokens[position])
            position += 1
            if position - 1 in calls:
                # Everywhere else all threads are active.
                opening = self.opening(position - 1)
                output += tokens[position : opening + 1]
                word = "true" if source.in_body(position - 1) else f"bool {_ACTIVE}"
                position = opening + 1 + (source.texts[opening + 1 : opening + 3] == ["void", ")"])
                separator = () if source.text(position) == ")" else (",",)
                output += made_at(tokens[opening], *word.split(), *separator)
        return output

    def opening(self, name: int) -> int:
        """The bracket behind the name of a function with its template arguments."""
        opening = name + 1
        if self.source.text(opening) == "<":
            close = matching_angle(self.source.tokens, opening, certain=True)
            opening = len(self.source.tokens) if close is None else close + 1
        if self.source.text(opening) != "(":
            raise NotUnderstood(name)
        return opening


class _Body:
    """The body of one function."""

    def __init__(self, program: _Program, function: Function) -> None:
        self._program = program
        self._source = program.source
        self._tokens = program.source.tokens
        self._text = program.source.text
        self._function = function
        self._place = function.body_open
        self._declarators = DeclaratorReader(self._source, self._is_variable)
        self._trees = TreeReader(self._source, self._is_variable)
        self._waiting = program.waiting | {BARRIER}
        self._count = 0
        self._returned = self._return_type()

    def _is_variable(self, name: str) -> bool:
        return self._source.variable(name, self._place) is not None

    def tokens(self) -> list[Token]:
        """From brace to brace."""
        function = self._function
        first, last = function.body_open, function.body_close
        output = [self._tokens[first]]
        if function.kernel is not None:
            output += self._made(first, f"bool {_ACTIVE} = true ;")
        if self._returned:
            output += [*self._returned, *self._made(first, f"{_RESULT} ;")]
        output += self._statements(first + 1, last, _Flow((_ACTIVE,)))
        if self._returned:
            output += self._made(last, f"return {_RESULT} ;")
        return [*output, self._tokens[last]]

    def _return_type(self) -> list[Token]:
        """The type of what the function returns; nothing where it returns nothing."""
        function, source = self._function, self._source
        if function.kernel is not None:
            return []
        end = function.opening - 1
        while source.text(end - 1) == "::":
            end -= 2
        start = function.start
        while start < end and (source.text(start) in _HEAD_WORDS or skip_attributes(source.tokens, start, end) > start):
            start = max(skip_attributes(source.tokens, start, end), start + 1)
        head = [token for token in source.tokens[start:end] if token.text not in _HEAD_WORDS]
        words = [token.text for token in head]
        if words == ["void"]:
            return []
        if not words or {"auto", "&", "(", "operator", "~"} & set(words) or source.text(end) == "operator":
            raise NotUnderstood(function.opening)
        return [token for token in head if token.text != "const" or "*" in words]

    def _made(self, index: int, words: str) -> list[Token]:
        return made_at(self._tokens[index], *words.split())

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}{RENAMED_SUFFIX}"

    def _waits(self, start: int, end: int) -> bool:
        return bool(calls_between(self._source, self._waiting, start, end))

    # Statements.

    def _statements(self, index: int, end: int, flow: _Flow) -> list[Token]:
        output: list[Token] = []
        while index < end:
            behind = self._source.statement_end(index, end)
            if behind <= index:
                raise NotUnderstood(index)
            output += self._statement(index, behind, flow)
            index = behind
        return output

    def _statement(self, index: int, end: int, flow: _Flow) -> list[Token]:
        first = index
        while first < end and self._is_prefix(first):
            first = self._source.close(first + 1) + 1 if self._text(first) == "_Pragma" else first + 1
            if self._text(first) == "[" and self._text(first + 1) == "[":
                first = self._source.close(first) + 1
        prefix = self._tokens[index:first]
        self._place = first
        text = self._text(first)
        if first >= end or text == ";" or text in _KEPT:
            if text in _KEPT and self._waits(first, end):
                raise NotUnderstood(first)
            return self._tokens[index:end]
        if text == "do" and self._text(first + 1) != "{":
            raise NotUnderstood(first)
        if not self._waits(first, end):
            return self._apart(prefix, first, end, flow)
        if text == "{":
            inner = self._statements(first + 1, end - 1, flow)
            return [*prefix, self._tokens[first], *inner, self._tokens[end - 1]]
        if text == "if":
            return [*prefix, *self._if(first, end, flow)]
        if text in _LOOPS:
            return self._loop(prefix, first, end, flow)
        if text in ("switch", "case", "default") or self._text(end - 1) != ";":
            raise NotUnderstood(first)
        return [*prefix, *self._simple(first, end, flow)]

    def _is_prefix(self, index: int) -> bool:
        is_attribute = self._text(index) == "[" and self._text(index + 1) == "["
        return self._source.kind(index) == "pragma" or self._text(index) == "_Pragma" or is_attribute

    def _apart(self, prefix: Sequence[Token], first: int, end: int, flow: _Flow) -> list[Token]:
        """A statement that threads need not do together."""
        declared = self._declaration(first, end, flow)
        if declared is not None:
            return [*prefix, *declared]
        inner, label = self._with_jumps(first, end, flow)
        output = [*self._made(first, f"if ( {flow.mark} ) {{"), *prefix, *inner, *self._made(end - 1, "}")]
        return output + self._made(end - 1, f"{label} : ;") if label else output

    def _with_jumps(self, start: int, end: int, flow: _Flow) -> tuple[list[Token], str]:
        """``tokens[start:end]`` with jumps that take away marks, and the label behind it that they go to, if any do."""
        output: list[Token] = []
        label = ""
        index = start
        while index < end:
            jump = self._jump(index, start, flow)
            if jump is None:
                output.append(self._tokens[index])
                index += 1
                continue
            behind = self._source.expression_end(index, end) + 1
            output += self._made(index, "{")
            if self._text(index) == "return" and behind > index + 2:
                result = self._made(index, f"{_RESULT} =") if self._returned else []
                output += [*result, *self._tokens[index + 1 : behind]]
            output += self._made(index, _taken(jump))
            if not self._is_last(behind, start, end):
                label = label or self._name("behind")
                output += self._made(index, f"goto {label} ;")
            output += self._made(index, "}")
            index = behind
        return output, label

    def _jump(self, index: int, start: int, flow: _Flow) -> tuple[str, ...] | None:
        """The marks that the jump at ``index`` takes away; None where it is no jump out of what begins at ``start``."""
        text = self._text(index)
        if text == "return":
            if self._is_in_lambda(index, start):
                raise NotUnderstood(index)
            return flow.marks
        if text not in ("break", "continue"):
            return None
        targets = _LOOPS if text == "continue" else (*_LOOPS, "switch")
        for place in self._source.places(*targets, start=start, end=index):
            is_condition = self._text(place) == "while" and self._text(self._source.close(place + 1) + 1) == ";"
            if not is_condition and self._source.statement_end(place, len(self._tokens)) > index:
                return None
        first = flow.leaves_loop if text == "break" else flow.leaves_turn
        if first is None:
            raise NotUnderstood(index)
        return flow.marks[first:]

    def _is_in_lambda(self, index: int, start: int) -> bool:
        for place in self._source.places("]", start=start, end=index):
            body = place + 1
            if self._text(body) == "(" and self._source.close(body) > 0:
                body = self._source.close(body) + 1
            if self._text(body) == "{" and self._source.close(body) > index:
                return True
        return False

    def _is_last(self, index: int, start: int, end: int) -> bool:
        """Whether nothing of what begins at ``start`` is left to be done at ``index``."""
        return all(text == "}" for text in self._source.texts[index:end]) and not self._source.places(
            *_LOOPS, start=start, end=index
        )

    def _if(self, first: int, end: int, flow: _Flow) -> list[Token]:
        source = self._source
        is_constant = self._text(first + 1) == "constexpr"
        opening = first + 1 + is_constant
        close = source.close(opening)
        if self._text(opening) != "(" or close < 0 or ";" in source.texts[opening:close]:
            raise NotUnderstood(first)
        then_end = source.statement_end(close + 1, end)
        arms = [(close + 1, then_end)]
        if self._text(then_end) == "else" and then_end < end:
            arms.append((then_end + 1, end))
        if is_constant:
            output = self._tokens[first : close + 1]
            for number, arm in enumerate(arms):
                if number:
                    output.append(self._tokens[then_end])
                output += [*self._made(arm[0], "{"), *self._statement(*arm, flow), *self._made(arm[1] - 1, "}")]
            return output
        before, condition = self._value(opening + 1, close, flow)
        chosen = self._name("chosen")
        output = [*self._made(first, "{"), *before]
        output += [*self._made(first, f"const bool {chosen} = {flow.mark} && ("), *condition, *self._made(first, ") ;")]
        for number, arm in enumerate(arms):
            mark = self._name("active")
            taken = f"{flow.mark} && ! {chosen}" if number else chosen
            output += self._made(arm[0], f"bool {mark} = {taken} ; if ( {ANY_THREAD} ( {mark} ) ) {{")
            output += [*self._statement(*arm, flow.inside(mark)), *self._made(arm[1] - 1, "}")]
        return [*output, *self._made(end - 1, "}")]

    def _loop(self, prefix: Sequence[Token], first: int, end: int, flow: _Flow) -> list[Token]:
        source = self._source
        word = self._text(first)
        if word == "do":
            body = (first + 1, source.statement_end(first + 1, end))
            opening = body[1] + 1
        else:
            opening = first + 1
            body = (source.close(opening) + 1, end)
        close = source.close(opening)
        if self._text(opening) != "(" or close < 0 or self._waits(opening, close):
            raise NotUnderstood(first)
        parts = [opening, *(k for k in self._semicolons(opening + 1, close)), close]
        if len(parts) != (4 if word == "for" else 2):
            raise NotUnderstood(first)
        mark = self._name("active")
        inner = replace(flow.inside(mark), leaves_loop=len(flow.marks), leaves_turn=None)
        output = [*self._made(first, "{"), *self._made(first, f"bool {mark} = {flow.mark} ;")]
        start: list[Token] = []
        if word == "for" and parts[1] > opening + 1:
            started = self._declaration(opening + 1, parts[1] + 1, flow)
            if started is None:
                output += self._apart((), opening + 1, parts[1] + 1, flow)
            else:
                start = started[:-1]
        condition = range(parts[-3] + 1, parts[-2]) if word == "for" else range(opening + 1, close)
        if self._declaration(condition.start, condition.stop + 1, flow) is not None:
            raise NotUnderstood(condition.start)
        asked = self._made(first, f"{ANY_THREAD} ( {mark}")
        if condition:
            asked = [*asked, *self._made(first, f"= {mark} && ("), *self._tokens[slice(*_ends(condition))]]
            asked += self._made(first, ")")
        asked += self._made(first, ")")
        step = self._tokens[parts[-2] + 1 : close] if word == "for" else []
        turn = self._name("active")
        done = [*self._made(first, "{"), *self._made(first, f"bool {turn} = {mark} ;")]
        done += self._statement(*body, replace(inner.inside(turn), leaves_turn=len(inner.marks)))
        done += self._made(end - 1, "}")
        if word == "do":
            loop = [self._tokens[first], *done, *self._made(end - 1, "while ("), *asked, *self._made(end - 1, ") ;")]
        else:
            loop = [*self._made(first, "for ("), *start, *self._made(first, ";"), *asked, *self._made(first, ";")]
            if step:
                loop += [*self._made(first, f"{mark} ? ( void ) ("), *step, *self._made(first, ") : ( void ) 0")]
            loop += [*self._made(first, ")"), *done]
        return [*output, *prefix, *loop, *self._made(end - 1, "}")]

    def _semicolons(self, index: int, end: int) -> Iterator[int]:
        while index < end:
            if self._text(index) == ";":
                yield index
            index = self._source.close(index) + 1 if self._text(index) in OPENING else index + 1

    # Calls of functions with barriers.

    def _simple(self, first: int, end: int, flow: _Flow) -> list[Token]:
        """A declaration or an expression in which a barrier is waited for."""
        text = self._text(first)
        if text == BARRIER and self._source.close(first + 1) == end - 2:
            return self._tokens[first:end]
        declared = self._declaration(first, end, flow)
        if declared is not None:
            return declared
        is_return = text == "return"
        output, value = self._value(first + is_return, end - 1, flow)
        if not value and not is_return:
            return output
        output += self._made(first, f"if ( {flow.mark} ) {{")
        if value:
            result = self._made(first, f"{_RESULT} =") if is_return and self._returned else []
            output += [*result, *value, *self._made(end - 1, ";")]
        if is_return:
            output += self._made(first, _taken(flow.marks))
        return output + self._made(end - 1, "}")

    def _value(self, start: int, end: int, flow: _Flow) -> tuple[list[Token], list[Token]]:
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
        flow: _Flow,
        before: list[Token],
        replaced: list[tuple[Range, list[Token]]],
        *,
        is_whole: bool = False,
    ) -> None:
        """Moves the calls in ``node`` of functions that wait to ``before``."""
        if not self._waits(node.start, node.end):
            return
        chooses = node.kind == "ternary" or node.kind == "binary" and node.text in ("&&", "||")
        if node.kind in ("opaque", "unevaluated") or chooses and self._waits(node.parts[0].end, node.end):
            raise NotUnderstood(node.start)
        is_call = node.kind == "call" and node.parts[0].text in self._program.waiting
        for part in node.parts[1:] if is_call else node.parts:
            self._take_calls(part, flow, before, replaced)
        if not is_call:
            if node.kind in ("name", "member", "arrow") and not node.parts:
                raise NotUnderstood(node.start)
            return
        opening = node.place
        call = self._tokens[node.start : opening + 1] + self._made(opening, flow.mark)
        functions = self._source.functions_by_name[node.parts[0].text]
        for position, argument in enumerate(node.parts[1:]):
            start, end = argument.start, argument.end
            inner = self._spliced(start, end, replaced)
            is_reference = any(self._takes_reference(function, position) for function in functions)
            call += [*self._made(opening, ","), *self._if_active(start, end, inner, flow, is_reference=is_reference)]
        call.append(self._tokens[node.end - 1])
        replaced[:] = [each for each in replaced if not node.start <= each[0][0] < node.end]
        if all(self._text(function.opening - 2) == "void" for function in functions):
            if not is_whole:
                raise NotUnderstood(node.start)
            before += [*call, *self._made(opening, ";")]
            replaced.append(((node.start, node.end), []))
        else:
            name = self._name("called")
            before += [*self._made(opening, f"auto {name} ="), *call, *self._made(opening, ";")]
            replaced.append(((node.start, node.end), self._made(opening, name)))

    def _takes_reference(self, function: Function, position: int) -> bool:
        parameters = self._source.arguments(function.opening)
        return position < len(parameters) and bool(
            self._source.places("&", start=parameters[position][0], end=parameters[position][1])
        )

    # Values that threads may not have.

    def _declaration(self, first: int, end: int, flow: _Flow) -> list[Token] | None:
        """A declaration of variables with values that only active threads look up; None where there is none."""
        stop = end - 1
        if self._text(first) in _STATEMENT_WORDS:
            return None
        index, words = self._declarators.specifiers(first, stop)
        if index is None:
            if self._text(first) == "auto" and self._text(first + 1) == "[":
                raise NotUnderstood(first)
            return None
        if not self._declarators.begins(index, stop):
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

    def _comma_or(self, index: int, stop: int) -> int:
        """Where the value that begins behind ``index`` ends: the tree of an expression knows its commas."""
        return self._trees.initialiser(index + 1, stop).end

    def _list(self, opening: int, flow: _Flow, before: list[Token]) -> list[Token]:
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
        self, start: int, end: int, flow: _Flow, before: list[Token], *, is_reference: bool = False
    ) -> list[Token]:
        if self._text(start) == "{" and self._source.close(start) == end - 1:
            return self._list(start, flow, before)
        first, value = self._value(start, end, flow)
        before += first
        return self._if_active(start, end, value, flow, is_reference=is_reference)

    def _if_active(
        self, start: int, end: int, value: Sequence[Token], flow: _Flow, *, is_reference: bool = False
    ) -> list[Token]:
        """``value``, which was written at ``start`` to ``end``, as active threads have it, and others anything."""
        if self._is_constant(start, end) or self._is_harmless(start, end, may_name_elements=is_reference):
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
                if variable is not None and variable.place > self._function.opening:
                    initialiser = variable.initialiser
                    if initialiser is None or variable.place >= start or not self._is_fixed(variable.place):
                        return False
                    if not self._is_constant(*initialiser):
                        return False
                elif source.text(index) in source.functions_by_name:
                    return False
        return True

    def _is_fixed(self, place: int) -> bool:
        """Whether the variable that is declared at ``place`` is ``const`` and no pointer."""
        index = place - 1
        words = set()
        while self._text(index) not in (";", "{", "}", "(", ","):
            words.add(self._text(index))
            index -= 1
        return bool({"const", "constexpr"} & words) and not {"*", "&"} & words

    def _is_harmless(self, start: int, end: int, *, may_name_elements: bool) -> bool:
        """Whether threads without values may compute it all the same: it reads no memory, and divides nothing."""
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
                if variable is not None and variable.is_reference and is_local and not may_name_elements:
                    return False
            elif text not in _HARMLESS and kind(index) != NUMBER:
                return False
            index += 1
        return True


def _taken(marks: Sequence[str]) -> str:
    return "".join(f"{mark} = false ; " for mark in marks)


def _ends(part: range) -> Range:
    return part.start, part.stop
