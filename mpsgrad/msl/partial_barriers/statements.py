"""Statements that threads do together because there are barriers in them, and those that only active threads do."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from mpsgrad.msl.analysis.divergence import BARRIER
from mpsgrad.msl.analysis.source import Function, Source
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.instrument.tree import NotUnderstood
from mpsgrad.msl.library_marks import ANY_THREAD
from mpsgrad.msl.partial_barriers.values import LOOPS, Flow, Range, ValueWriter
from mpsgrad.msl.tokens import OPENING, Token, skip_attributes

ACTIVE = f"active{RENAMED_SUFFIX}"
_RESULT = f"result{RENAMED_SUFFIX}"
_KEPT = frozenset("using typedef static_assert struct class union enum template".split())
_HEAD_WORDS = frozenset({"static", "inline", "constexpr", "METAL_FUNC"})


class BodyWriter(ValueWriter):
    """Writes the body of one function."""

    def __init__(self, source: Source, function: Function, waiting: Collection[str]) -> None:
        super().__init__(source, function, waiting)
        self._returned = self._return_type()

    def tokens(self) -> list[Token]:
        """From brace to brace."""
        function = self._function
        first, last = function.body_open, function.body_close
        output = [self._tokens[first]]
        if function.kernel is not None:
            output += self._made(first, f"bool {ACTIVE} = true ;")
        if self._returned:
            output += [*self._returned, *self._made(first, f"{_RESULT} ;")]
        output += self._statements(first + 1, last, Flow((ACTIVE,)))
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

    # Statements.

    def _statements(self, index: int, end: int, flow: Flow) -> list[Token]:
        output: list[Token] = []
        while index < end:
            behind = self._source.statement_end(index, end)
            if behind <= index:
                raise NotUnderstood(index)
            output += self._statement(index, behind, flow)
            index = behind
        return output

    def _statement(self, index: int, end: int, flow: Flow) -> list[Token]:
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
        if text in LOOPS:
            return self._loop(prefix, first, end, flow)
        if text in ("switch", "case", "default") or self._text(end - 1) != ";":
            raise NotUnderstood(first)
        return [*prefix, *self._simple(first, end, flow)]

    def _is_prefix(self, index: int) -> bool:
        is_attribute = self._text(index) == "[" and self._text(index + 1) == "["
        return self._source.kind(index) == "pragma" or self._text(index) == "_Pragma" or is_attribute

    def _apart(self, prefix: Sequence[Token], first: int, end: int, flow: Flow) -> list[Token]:
        """A statement that threads need not do together."""
        declared = self._declaration(first, end, flow)
        if declared is not None:
            return [*prefix, *declared]
        inner, label = self._with_jumps(first, end, flow)
        output = [*self._made(first, f"if ( {flow.mark} ) {{"), *prefix, *inner, *self._made(end - 1, "}")]
        return output + self._made(end - 1, f"{label} : ;") if label else output

    def _with_jumps(self, start: int, end: int, flow: Flow) -> tuple[list[Token], str]:
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

    def _jump(self, index: int, start: int, flow: Flow) -> tuple[str, ...] | None:
        """The marks that the jump at ``index`` takes away; None where it is no jump out of what begins at ``start``."""
        text = self._text(index)
        if text == "return":
            if self._is_in_lambda(index, start):
                raise NotUnderstood(index)
            return flow.marks
        if text not in ("break", "continue"):
            return None
        targets = LOOPS if text == "continue" else (*LOOPS, "switch")
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
            *LOOPS, start=start, end=index
        )

    def _if(self, first: int, end: int, flow: Flow) -> list[Token]:
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

    def _loop(self, prefix: Sequence[Token], first: int, end: int, flow: Flow) -> list[Token]:
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

    def _simple(self, first: int, end: int, flow: Flow) -> list[Token]:
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


def _taken(marks: Sequence[str]) -> str:
    return "".join(f"{mark} = false ; " for mark in marks)


def _ends(part: range) -> Range:
    return part.start, part.stop
