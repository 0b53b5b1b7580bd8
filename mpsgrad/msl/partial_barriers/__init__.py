"""Takes all threads of a threadgroup along to barriers that only some of them would reach.

Metal leaves open what happens then. Its GPUs go on with the threads that come: those behind ``if (i >= n) return;`` add
up without the others. A compiler that runs the threads of a threadgroup by turns, from barrier to barrier, follows one
of them, and forgets the results of all that went another way.

Here each thread keeps a mark, ``active_mtl``, that a ``return`` takes away, and is led through the statements that hold
barriers with all others: a loop goes on for as long as any thread would. What stands between is done by the marked ones
only. Functions with barriers get the mark of their caller as their first argument.

A program that is to be checked says at each barrier whether a thread would come to it, and where it returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mpsgrad.msl.analysis.calls import functions_meant, is_lambda, opening_of_call, places_of_names, reaching
from mpsgrad.msl.analysis.divergence import BARRIER
from mpsgrad.msl.analysis.source import Function, Source
from mpsgrad.msl.instrument.tree import NotUnderstood
from mpsgrad.msl.partial_barriers.declared_conditions import without_declared_conditions
from mpsgrad.msl.partial_barriers.statements import ACTIVE, BodyWriter
from mpsgrad.msl.tokens import Token, error, made_at

__all__ = ["with_whole_barriers", "without_declared_conditions"]


def with_whole_barriers(source: Source, partial: Sequence[Function], *, is_checked: bool) -> list[Token]:
    """The tokens of ``source`` in which all threads come to the barriers in the functions ``partial``, too, for checks
    to be put in if it ``is_checked``; raises ``ShaderError`` where what stands around one is not understood."""
    try:
        return _Program(source, partial, is_checked).tokens()
    except NotUnderstood as found:
        message = "only some threads may come to a barrier, and this has a form in which the others cannot be led to it"
        raise error(message, source.tokens[min(found.place, len(source.tokens) - 1)]) from None


class _Program:
    """One source, and the functions in it that change."""

    def __init__(self, source: Source, partial: Sequence[Function], is_checked: bool) -> None:
        self.source = source
        self._is_checked = is_checked
        self._waiting = reaching(source, [BARRIER])
        self.changed = {function.start: function for function in partial}
        todo = list(partial)
        while todo:
            more = {each.start: each for function in todo for each in self._beside(function)}
            todo = [each for start, each in more.items() if start not in self.changed]
            self.changed |= more

    def _beside(self, function: Function) -> Iterator[Function]:
        """The functions that wait and may be called in ``function``, and those that may be called in its place."""
        source = self.source
        for index in self._waiting.calls(function.body_open, function.body_close):
            yield from functions_meant(source, index)
        for each in source.lambdas:
            if function.start < each.start < function.body_close and self._waiting.calls(each.start, each.body_close):
                yield each
        for index in places_of_names(source, [function]):
            meant = functions_meant(source, index)
            if function in meant and source.in_body(index):
                yield from meant

    def _calls(self) -> set[int]:
        """Where the names of functions stand that get a mark: where they are called or declared."""
        source = self.source
        changed = [each for each in self.changed.values() if each.kernel is None]
        heads = {each.opening - 1: each for each in source.functions}
        for index in source.places(*{each.name for each in changed} - {")"}):
            if opening_of_call(source, index) < 0 and not set(functions_meant(source, index)).isdisjoint(changed):
                raise NotUnderstood(index)
        return {
            index
            for index in places_of_names(source, changed)
            if source.text(index + 1) in ("(", "<")
            and any(each in changed for each in ([heads[index]] if index in heads else functions_meant(source, index)))
        }

    def tokens(self) -> list[Token]:
        source = self.source
        tokens = source.tokens
        output: list[Token] = []
        position = 0
        bodies = {each.body_open: each for each in self.changed.values() if not is_lambda(source, each)}
        calls = self._calls()
        while position < len(tokens):
            function = bodies.get(position)
            if function is not None:
                output += BodyWriter(source, function, self._is_checked).tokens()
                position = function.body_close + 1
                continue
            output.append(tokens[position])
            position += 1
            if position - 1 in calls:
                # Everywhere else all threads are active.
                opening = self.opening(position - 1)
                output += tokens[position : opening + 1]
                word = "true" if source.in_body(position - 1) else f"bool {ACTIVE}"
                position = opening + 1 + (source.texts[opening + 1 : opening + 3] == ["void", ")"])
                separator = () if source.text(position) == ")" else (",",)
                output += made_at(tokens[opening], *word.split(), *separator)
        return self._with_lambdas(output)

    def _with_lambdas(self, written: list[Token]) -> list[Token]:
        """``written`` with the bodies of lambda expressions, which their functions leave as they are."""
        tokens = self.source.tokens
        changed = {id(tokens[each.start]): each for each in self.changed.values() if is_lambda(self.source, each)}
        output: list[Token] = []
        index = 0
        while index < len(written):
            function = changed.get(id(written[index]))
            index += 1
            if function is None:
                output.append(written[index - 1])
                continue
            while written[index - 1] is not tokens[function.body_close]:
                index += 1
            opening, body = function.opening, function.body_open
            has_parameters = self.source.text(opening) == "("
            first = opening + 1 + (self.source.texts[opening + 1 : opening + 3] == ["void", ")"])
            output += tokens[function.start : opening + (not has_parameters)]
            output += made_at(tokens[opening], "(", "bool", ACTIVE)
            if not has_parameters or self.source.text(first) == ")":
                output += made_at(tokens[opening], ")")
                first += has_parameters
            else:
                output += made_at(tokens[opening], ",")
            output += tokens[first:body]
            output += self._with_lambdas(BodyWriter(self.source, function, self._is_checked).tokens())
        return output

    def opening(self, name: int) -> int:
        """The bracket behind the name of a function with its template arguments."""
        opening = opening_of_call(self.source, name)
        if opening < 0:
            raise NotUnderstood(name)
        return opening
