"""What random programs of loops and conditions are made of: expressions and statements that run for all threads."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

LANES = 64
ROLLED = "#pragma clang loop unroll(disable)"

Values = dict[str, np.ndarray]
Compute = Callable[..., np.ndarray]

_ARITHMETIC: Sequence[tuple[str, Compute]] = (
    ("+", np.add), ("-", np.subtract), ("*", np.multiply), ("&", np.bitwise_and), ("|", np.bitwise_or),
    ("^", np.bitwise_xor),
)  # fmt: skip
_COMPARISONS: Sequence[tuple[str, Compute]] = (
    ("<", np.less), (">", np.greater), ("==", np.equal), ("!=", np.not_equal),
)  # fmt: skip
_LOGIC: Sequence[tuple[str, Compute]] = (("&&", np.logical_and), ("||", np.logical_or))


@dataclass(frozen=True)
class Expression:
    text: str
    evaluate: Callable[[Values], np.ndarray]


@dataclass(frozen=True)
class Statement:
    """Lines of Metal, and what they do to the values of the threads in a mask."""

    lines: Sequence[str]
    run: Callable[[Values, np.ndarray], None]


def indented(block: Sequence[Statement]) -> list[str]:
    return [line if line[0] == "#" else f"    {line}" for statement in block for line in statement.lines]


class ExpressionMaker:
    """Expressions of several parts, which ``_number`` and ``_truth`` draw with one level less of them."""

    _random: random.Random

    def _number(self, depth: int) -> Expression:
        raise NotImplementedError

    def _truth(self, depth: int) -> Expression:
        raise NotImplementedError

    def _composed_number(self, kind: float, depth: int) -> Expression:
        """A sum or the like, a choice, or a shift: ``kind`` tells, from .25 to 1."""
        left, right = self._number(depth - 1), self._number(depth - 1)
        if kind < 0.6:
            operator, compute = self._random.choice(_ARITHMETIC)
            text = f"({left.text} {operator} {right.text})"
            return Expression(text, lambda v: compute(left.evaluate(v), right.evaluate(v)))
        if kind < 0.85:
            condition = self._truth(depth - 1)
            text = f"({condition.text} ? {left.text} : {right.text})"
            return Expression(text, lambda v: np.where(condition.evaluate(v), left.evaluate(v), right.evaluate(v)))
        return Expression(f"({left.text} >> 3)", lambda v: left.evaluate(v) >> np.uint32(3))

    def _composed_truth(self, kind: float, depth: int) -> Expression:
        """A comparison, two truths, or the contrary of one: ``kind`` tells, from .4 to 1."""
        if kind < 0.75:
            x, y = self._number(depth - 1), self._number(depth - 1)
            operator, compute = self._random.choice(_COMPARISONS)
            return Expression(f"({x.text} {operator} {y.text})", lambda v: compute(x.evaluate(v), y.evaluate(v)))
        left = self._truth(depth - 1)
        if kind > 0.9:
            return Expression(f"(!{left.text})", lambda v: ~left.evaluate(v))
        right = self._truth(depth - 1)
        operator, compute = self._random.choice(_LOGIC)
        text = f"({left.text} {operator} {right.text})"
        return Expression(text, lambda v: compute(left.evaluate(v), right.evaluate(v)))
