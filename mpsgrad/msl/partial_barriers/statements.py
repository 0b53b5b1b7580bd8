"""Statements that threads do together because there are barriers in them, and those that only active threads do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mpsgrad.msl.analysis.calls import gives_nothing, is_lambda, name_before, name_place, returns_of
from mpsgrad.msl.analysis.divergence import BARRIER
from mpsgrad.msl.analysis.source import Function, Source
from mpsgrad.msl.analysis.statements import LABELS, LOOPS, Range, Section, Statement
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.instrument.tree import NotUnderstood
from mpsgrad.msl.library_marks import ANY_THREAD, RETURNED
from mpsgrad.msl.partial_barriers.values import Flow, ValueWriter
from mpsgrad.msl.tokens import IDENTIFIER, Token, skip_attributes

ACTIVE = f"active{RENAMED_SUFFIX}"
_RESULT = f"result{RENAMED_SUFFIX}"
_KEPT = frozenset("using typedef static_assert struct class union enum template".split())
_HEAD_WORDS = frozenset({"static", "inline", "constexpr", "METAL_FUNC"})


class BodyWriter(ValueWriter):
    """Writes the body of one function."""

    def __init__(self, source: Source, function: Function, is_checked: bool) -> None:
        super().__init__(source, function, is_checked)
        self._deduced_at, self._is_one_variable = -1, False
        self._returned = self._return_type()

    def tokens(self) -> list[Token]:
        """From brace to brace."""
        function = self._function
        first, last = function.body_open, function.body_close
        output = [self._tokens[first]]
        if function.kernel is not None:
            output += self._made(first, f"bool {ACTIVE} = true ;")
        if self._returned:
            output += [*self._returned, *self._made(first, f"{_RESULT} = nothing_mtl ( ) ;")]
        output += self._statements(first + 1, last, Flow((ACTIVE,)))
        if self._returned:
            output += self._made(last, f"return {_RESULT} ;")
        return [*output, self._tokens[last]]

    def _return_type(self) -> list[Token]:
        """The type of what the function returns; nothing where it returns nothing."""
        function, source = self._function, self._source
        if function.kernel is not None or gives_nothing(source, function):
            return []
        if is_lambda(source, function):
            arrow = next(iter(source.places("->", start=function.closing, end=function.body_open)), None)
            return self._deduced() if arrow is None else self._tokens[arrow + 1 : function.body_open]
        end = name_place(function)
        while source.text(end - 1) == "::":
            end -= 2
        start = function.start
        while start < end and (source.text(start) in _HEAD_WORDS or skip_attributes(source.tokens, start, end) > start):
            start = max(skip_attributes(source.tokens, start, end), start + 1)
        head = [token for token in source.tokens[start:end] if token.text not in _HEAD_WORDS]
        words = [token.text for token in head]
        if words == ["auto"]:
            return self._deduced()
        is_conversion = source.text(end) == "operator" and function.name != ")"
        if not words or {"auto", "&", "(", "operator", "~"} & set(words) or is_conversion:
            raise NotUnderstood(function.opening)
        return [token for token in head if token.text != "const" or "*" in words]

    def _deduced(self) -> list[Token]:
        """No type: that of the value is deduced, which is returned in the end only; before that, the same variable."""
        source, function = self._source, self._function
        *_, final = source.statements.between(function.body_open + 1, function.body_close)
        returns = returns_of(source, function)
        variables = {source.variable(source.text(each + 1), each + 1) for each in returns}
        are_names = all(source.text(each + 2) == ";" for each in returns)
        self._is_one_variable = len(returns) > 1 and len(variables) == 1 and None not in variables and are_names
        if returns[-1:] != [final.word] or len(returns) > 1 and not self._is_one_variable:
            raise NotUnderstood(function.opening)
        self._deduced_at = final.word
        return []

    # Statements.

    def _statements(self, start: int, end: int, flow: Flow) -> list[Token]:
        output: list[Token] = []
        for each in self._source.statements.between(start, end):
            if each.end > end:
                raise NotUnderstood(each.word)
            output += self._statement(each, flow)
            start = each.end
        return output + self._tokens[start:end]

    def _part(self, part: Range, flow: Flow) -> list[Token]:
        """The statement that is a part of another."""
        return self._statement(self._source.statements.at(part[0]), flow)

    def _statement(self, statement: Statement, flow: Flow) -> list[Token]:
        first, end = statement.word, statement.end
        prefix = self._tokens[statement.start : first]
        self._place = first
        text = self._text(first)
        if text == ";" or text in _KEPT:
            if text in _KEPT and self._waits(first, end):
                raise NotUnderstood(first)
            return self._tokens[statement.start : end]
        if first == self._deduced_at:
            shared, value = self._value(first + 1, end - 1, flow)
            # A variable may have been returned before, by threads that are no longer active.
            if not self._is_one_variable:
                value = self._if_active(first + 1, end - 1, value, flow)
            return [*prefix, *shared, self._tokens[first], *value, self._tokens[end - 1]]
        if not self._waits(first, end):
            return self._apart(prefix, first, end, flow)
        if text == "{":
            inner = self._statements(first + 1, end - 1, flow)
            return [*prefix, self._tokens[first], *inner, self._tokens[end - 1]]
        if text == "if":
            return [*prefix, *self._if(statement, flow)]
        if text in LOOPS:
            return self._loop(prefix, statement, flow)
        if text == "switch":
            return [*prefix, *self._switch(statement, flow)]
        if text in LABELS or self._text(end - 1) != ";":
            raise NotUnderstood(first)
        return [*prefix, *self._simple(first, end, flow)]

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
            output += [*self._noted_return(index), *self._made(index, _taken(jump))]
            if not self._is_last(behind, start, end):
                label = label or self._name("behind")
                output += self._made(index, f"goto {label} ;")
            output += self._made(index, "}")
            index = behind
        return output, label

    def _noted_return(self, index: int) -> list[Token]:
        """What tells checks that the kernel returns at ``index``, if it does."""
        is_noted = self._is_checked and self._function.kernel is not None and self._text(index) == "return"
        return self._made(index, f"{RETURNED} ( ) ;") if is_noted else []

    def _jump(self, index: int, start: int, flow: Flow) -> tuple[str, ...] | None:
        """The marks that the jump at ``index`` takes away; None where it is no jump out of what begins at ``start``."""
        text = self._text(index)
        if text == "return":
            return None if self._is_in_lambda(index, start) else flow.marks
        if text not in ("break", "continue"):
            return None
        targets = LOOPS if text == "continue" else (*LOOPS, "switch")
        if any(self._source.statements.around(index, *targets, start=start)):
            return None
        first = flow.at_break if text == "break" else flow.at_continue
        if first is None:
            raise NotUnderstood(index)
        return flow.marks[first:]

    def _is_in_lambda(self, index: int, start: int) -> bool:
        return any(start <= each.start < index < each.body_close for each in self._source.lambdas)

    def _is_last(self, index: int, start: int, end: int) -> bool:
        """Whether nothing of what begins at ``start`` is left to be done at ``index``."""
        return all(text == "}" for text in self._source.texts[index:end]) and not self._source.places(
            *LOOPS, start=start, end=index
        )

    def _if(self, statement: Statement, flow: Flow) -> list[Token]:
        source = self._source
        first, start, end = statement.word, *statement.condition
        arms = statement.parts
        if not arms or len(source.statements.clauses(statement.condition)) > 1:
            raise NotUnderstood(first)
        if statement.is_constexpr:
            output = self._tokens[first : arms[0][0]]
            for number, arm in enumerate(arms):
                if number:
                    output.append(self._tokens[arm[0] - 1])
                output += [*self._made(arm[0], "{"), *self._part(arm, flow), *self._made(arm[1] - 1, "}")]
            return output
        before, condition = self._value(start, end, flow)
        chosen = self._name("chosen")
        output = [*self._made(first, "{"), *before]
        output += [*self._made(first, f"const bool {chosen} = {flow.mark} && ("), *condition, *self._made(first, ") ;")]
        for number, arm in enumerate(arms):
            mark = self._name("active")
            taken = f"{flow.mark} && ! {chosen}" if number else chosen
            output += self._made(arm[0], f"bool {mark} = {taken} ; if ( {ANY_THREAD} ( {mark} ) ) {{")
            output += [*self._part(arm, flow.inside(mark)), *self._made(arm[1] - 1, "}")]
        return [*output, *self._made(statement.end - 1, "}")]

    def _switch(self, statement: Statement, flow: Flow) -> list[Token]:
        """A mark for each section: of the threads whose value it has, and of those that come from the one before."""
        source = self._source
        first, (start, end) = statement.word, statement.condition
        sections = source.statements.sections(statement)
        self._refuse_entangled(statement, sections)
        if self._declaration(start, end + 1, flow) is not None or len(source.statements.clauses((start, end))) > 1:
            raise NotUnderstood(start)
        before, value = self._value(start, end, flow)
        chosen = self._name("chosen")
        output = [*self._made(first, "{"), *before, *self._made(first, f"const auto {chosen} =")]
        output += [*self._if_active(start, end, value, flow), *self._made(first, ";")]
        cases = [label for section in sections for label in section.labels if self._text(label) == "case"]
        above = "false"
        for section in sections:
            mark, place = self._name("active"), section.labels[0]
            output += self._made(place, f"bool {mark} = {flow.mark} && ( {above}")
            for label in section.labels:
                output += self._made(label, "||")
                output += self._has_value(label, chosen) if label in cases else self._has_none(label, cases, chosen)
            asked = f"if ( {ANY_THREAD} ( {mark} ) ) {{" if self._waits(section.start, section.end) else "{"
            output += self._made(place, f") ; {asked}")
            inside = replace(flow.inside(mark), at_break=len(flow.marks))
            output += [*self._statements(section.start, section.end, inside), *self._made(place, "}")]
            above = mark
        return [*output, *self._made(statement.end - 1, "}")]

    def _has_value(self, label: int, chosen: str) -> list[Token]:
        """Whether the value is that of the ``case``, or one in its range."""
        end = self._source.statements.colon(label)
        dots = next(iter(self._source.places("...", start=label, end=end)), end)
        output = self._made(label, f"( {chosen} {'==' if dots == end else '>='} (")
        output += [token.at(token) for token in self._tokens[label + 1 : dots]]
        if dots < end:
            output += self._made(label, f") && {chosen} <= (")
            output += [token.at(token) for token in self._tokens[dots + 1 : end]]
        return [*output, *self._made(label, ") )")]

    def _has_none(self, label: int, cases: Sequence[int], chosen: str) -> list[Token]:
        """Whether the value is that of no ``case``."""
        output = self._made(label, "! ( false")
        for case in cases:
            output += [*self._made(label, "||"), *self._has_value(case, chosen)]
        return [*output, *self._made(label, ")")]

    def _refuse_entangled(self, statement: Statement, sections: Sequence[Section]) -> None:
        """Raises where sections are not apart: labels in inner statements, variables of those above."""
        source = self._source
        for body in statement.parts:
            labels = {label for section in sections for label in section.labels}
            inner = source.statements.deciding("switch", start=body[0], end=body[1])
            labels_inside = {k for each in inner for k in source.places(*LABELS, start=each.start, end=each.end)}
            for label in source.places(*LABELS, start=body[0], end=body[1]):
                if label not in labels | labels_inside:
                    raise NotUnderstood(label)
            first = min(labels, default=body[1])
            if first > body[0] + (self._text(body[0]) == "{"):
                raise NotUnderstood(body[0])
            for section in sections:
                for index in range(section.end, body[1]):
                    variable = source.variable(self._text(index), index) if source.kind(index) == IDENTIFIER else None
                    if variable is not None and section.start <= variable.place < section.end:
                        raise NotUnderstood(index)

    def _loop(self, prefix: Sequence[Token], statement: Statement, flow: Flow) -> list[Token]:
        first, end = statement.word, statement.end
        word = self._text(first)
        clauses = self._source.statements.clauses(statement.condition)
        is_over_range = word == "for" and len(clauses) == 1
        if not statement.parts or len(clauses) != (3 if word == "for" and not is_over_range else 1):
            raise NotUnderstood(first)
        mark = self._name("active")
        output = [*self._made(first, "{"), *self._made(first, f"bool {mark} = {flow.mark} ;")]
        if is_over_range:
            self._refuse_other_ranges(*statement.condition)
            loop = [*self._tokens[first : statement.parts[0][0]], *self._turn(statement, mark, flow)]
            return [*output, *prefix, *loop, *self._made(end - 1, "}")]
        start: list[Token] = []
        if word == "for" and clauses[0][1] > clauses[0][0]:
            begin, semicolon = clauses[0]
            started = self._declaration(begin, semicolon + 1, flow)
            if started is None:
                output += self._simple(begin, semicolon + 1, flow)
            elif self._waits(begin, semicolon):
                output += started
            else:
                start = started[:-1]
        condition = clauses[len(clauses) // 2]
        if self._declaration(condition[0], condition[1] + 1, flow) is not None:
            raise NotUnderstood(condition[0])
        asked = self._made(first, f"{ANY_THREAD} ( {mark}")
        before: list[Token] = []
        if condition[1] > condition[0]:
            before, value = self._value(*condition, flow.inside(mark))
            asked = [*asked, *self._made(first, f"= {mark} && ("), *value, *self._made(first, ")")]
        asked += self._made(first, ")")
        step = self._tokens[slice(*clauses[2])] if word == "for" else []
        done = self._turn(statement, mark, flow)
        if word == "for" and self._waits(*clauses[2]):
            shared, step = self._value(*clauses[2], flow.inside(mark))
            done = [*self._made(first, "{"), *done, *shared]
            if step:
                done += [*self._made(first, f"if ( {mark} ) {{"), *step, *self._made(first, "; }")]
            done += self._made(end - 1, "}")
            step = []
        if before:
            # What all threads do for the condition stands with it in the turn.
            before += [*self._made(first, "if ( !"), *asked, *self._made(first, ") break ;")]
            done = [*self._made(first, "{"), *(done + before if word == "do" else before + done)]
            done += self._made(end - 1, "}")
            asked = self._made(first, f"{ANY_THREAD} ( true )" if self._is_checked else "true")
        if word == "do":
            loop = [self._tokens[first], *done, *self._made(end - 1, "while ("), *asked, *self._made(end - 1, ") ;")]
        else:
            loop = [*self._made(first, "for ("), *start, *self._made(first, ";"), *asked, *self._made(first, ";")]
            if step:
                loop += [*self._made(first, f"{mark} ? ( void ) ("), *step, *self._made(first, ") : ( void ) 0")]
            loop += [*self._made(first, ")"), *done]
        return [*output, *prefix, *loop, *self._made(end - 1, "}")]

    def _turn(self, statement: Statement, mark: str, flow: Flow) -> list[Token]:
        """One turn of a loop that the threads with ``mark`` are in."""
        first, end = statement.word, statement.end
        turn = self._name("active")
        inner = replace(flow.inside(mark, turn), at_break=len(flow.marks), at_continue=len(flow.marks) + 1)
        output = [*self._made(first, "{"), *self._made(first, f"bool {turn} = {mark} ;")]
        return [*output, *self._part(statement.parts[0], inner), *self._made(end - 1, "}")]

    def _refuse_other_ranges(self, start: int, end: int) -> None:
        """Raises for a loop over what may not be as long for all threads, or not be there: all but arrays by names."""
        place = end - 1
        variable = self._source.variable(self._text(place), place)
        is_array = variable is not None and (bool(variable.extents) or self._is_array_object(variable.place))
        if self._text(place - 1) != ":" or not is_array or not self._is_harmless(place, end, may_name_elements=False):
            raise NotUnderstood(start)

    def _is_array_object(self, place: int) -> bool:
        """Whether the variable that is declared at ``place`` is of the library's class ``array``."""
        return self._text(place - 1) == ">" and name_before(self._source, place - 1) == "array"

    def _simple(self, first: int, end: int, flow: Flow) -> list[Token]:
        """A declaration or an expression in which a barrier is waited for."""
        text = self._text(first)
        if text == BARRIER and self._source.close(first + 1) == end - 2:
            return [*self._barrier(first, end - 1, flow), self._tokens[end - 1]]
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
            output += [*self._noted_return(first), *self._made(first, _taken(flow.marks))]
        return output + self._made(end - 1, "}")


def _taken(marks: Sequence[str]) -> str:
    return "".join(f"{mark} = false ; " for mark in marks)
