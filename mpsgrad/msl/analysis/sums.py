"""Kernels whose threads add up one number in a short loop, each term of which waits for the one before.

An addition takes a processor four times as long as it takes to begin another one, and what threads side by side read
comes by whole lines of caches. So such a loop takes a third to four fifths of the time where more threads run abreast
than one vector has. Other kernels have enough to do, would need more registers than there are, or read lines for each
thread by itself, of which the nearest cache holds too few.
"""

from __future__ import annotations

from functools import cached_property

from mpsgrad.msl.analysis.loops import loops_of
from mpsgrad.msl.analysis.neighbours import KernelOfNeighbours
from mpsgrad.msl.analysis.positions import changes
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.statements import Range, Statement
from mpsgrad.msl.analysis.types import Type
from mpsgrad.msl.program import SHARED_SPACES
from mpsgrad.msl.tokens import IDENTIFIER, Token

LONGEST, LARGEST = 64, 400
"""Tokens of such a loop, and of a kernel with nothing else that takes long."""
_FEWEST_TURNS = 8
_DEEPEST = 8
_OTHER_FLOW = frozenset("if switch for while do return break continue goto ? && ||".split())
_GOING_SEVERAL_WAYS = ("while", "do", "switch", "goto")


def kernels_that_add(source: Source) -> list[Token]:
    """The names of such kernels."""
    kernels = [(function.kernel, _Kernel(source, function)) for function in source.functions if function.kernel]
    return [kernel.name for kernel, of_function in kernels if kernel is not None and of_function.adds()]


class _Kernel(KernelOfNeighbours):
    """The loops of one kernel."""

    def adds(self) -> bool:
        source, start, end = self._source, self._function.body_open, self._function.body_close
        if source.places(*_GOING_SEVERAL_WAYS, start=start, end=end) or loops_of(source).size(start, end) > LARGEST:
            return False
        for variable in source.declarations_between(start, end):
            if variable.extents and (variable.type is None or variable.type.space not in SHARED_SPACES):
                return False
        loops = list(source.statements.deciding("for", start=start, end=end))
        are_alike = all(self._turns_alike(each) and self._reads_together(each) for each in loops)
        return are_alike and any(map(self._is_sum, loops))

    def _reads_together(self, loop: Statement) -> bool:
        """Whether threads read side by side in ``loop``, or the same."""
        source = self._source
        for opening in source.places("[", start=loop.start, end=loop.end):
            index = (opening + 1, source.close(opening))
            if self._differs(source.chain_start(opening), opening):
                return False
            if self._differs(*index) and not self.is_position(*index) and self.position_in(index) is None:
                return False
        return True

    def _differs(self, start: int, end: int, depth: int = 0) -> bool:
        """Whether neighbouring threads may find different numbers at ``start`` to ``end``; if loops turn alike."""
        source = self._source
        for index in range(start, end):
            variable = source.variable(source.text(index), index) if source.kind(index) == IDENTIFIER else None
            if variable is None or source.text(index - 1) in (".", "->") or variable.place in self._counters:
                continue
            if self.of_neighbours(variable) is not None:
                if source.text(index + 1) != "." or source.text(index + 2) == "x":
                    return True
            elif self._function.body_open < variable.place:
                if depth > _DEEPEST or changes(source, variable):
                    return True
                if variable.initialiser is not None and self._differs(*variable.initialiser, depth + 1):
                    return True
        return False

    @cached_property
    def _counters(self) -> frozenset[int]:
        """The places of the variables that loops begin with."""
        source, function = self._source, self._function
        loops = source.statements.deciding("for", start=function.body_open, end=function.body_close)
        heads = [source.statements.clauses(loop.condition)[0] for loop in loops]
        return frozenset(place for start, end in heads for place in range(start, end))

    def _turns_alike(self, loop: Statement) -> bool:
        """Whether ``loop`` counts from one number to another that all threads know."""
        source = self._source
        clauses = source.statements.clauses(loop.condition)
        if len(clauses) != 3 or source.text(clauses[1][0] + 1) not in ("<", "<="):
            return False
        left, end = clauses[1]
        number = source.variable(source.text(left), left)
        if number is None or number.initialiser is None or not clauses[0][0] < number.place < clauses[0][1]:
            return False
        return self.is_uniform(*number.initialiser) and self.is_uniform(left + 2, end)

    def _is_sum(self, loop: Statement) -> bool:
        source = self._source
        body, turns = loop.parts[0], loops_of(source).turns(loop.word)
        if (turns is not None and turns < _FEWEST_TURNS) or loops_of(source).size(*body) > LONGEST:
            return False
        if not _OTHER_FLOW.isdisjoint(source.texts[slice(*body)]):
            return False
        start, end = body
        if source.text(start) == "{":
            start, end = start + 1, end - 1
        return sum(self._adds_to(each, body) for each in source.statements.between(start, end)) == 1

    def _adds_to(self, statement: Statement, body: Range) -> bool:
        """Whether a term is added to a float that outlives ``body``: ``sum += a * b;`` or ``sum = fma(a, b, sum);``."""
        source, start, end = self._source, statement.start, statement.end
        variable = source.variable(source.text(start), start)
        if variable is None or variable.type is None or variable.place > body[0]:
            return False
        if variable.type.value != Type("float"):
            return False
        is_fma = source.texts[start + 1 : start + 3] == ["=", "fma"] and source.text(end - 3) == variable.name
        return is_fma or source.text(start + 1) in ("+=", "-=")
