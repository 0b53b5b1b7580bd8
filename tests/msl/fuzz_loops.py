"""Random programs of integers and bools that loops and conditions change, thread by thread, and what they compute."""

from __future__ import annotations

import random

import numpy as np
from fuzz_parts import LANES, ROLLED, Compute, Expression, ExpressionMaker, Statement, Values, indented

NUMBERS = ("a", "b", "c", "d")
TRUTHS = ("p", "q")
_ASSIGNMENTS: dict[str, Compute] = {
    "=": lambda old, new: new, "+=": np.add, "^=": np.bitwise_xor, "|=": np.bitwise_or,
}  # fmt: skip


class LoopProgram(ExpressionMaker):
    """A kernel made from ``seed``: numbers and bools are read, changed by a few statements, and written."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._loops = 0
        self.name = f"loops_{seed}"
        self._statements = [self._statement(2) for _ in range(self._random.randint(3, 6))]

    def source(self) -> str:
        lines = [
            f"kernel void {self.name}(device const uint* x, device uint* y, constant int& turns,",
            "    uint i [[thread_position_in_grid]])\n{",
            f"    uint a = x[i], b = x[i + {LANES}], c = x[i + {2 * LANES}], d = i;",
            "    bool p = (a & 1) != 0, q = int(b) > 0;",
            *indented(self._statements),
        ]
        for k, name in enumerate((*NUMBERS, *TRUTHS)):
            lines.append(f"    y[i + {k * LANES}] = {name};")
        return "\n".join([*lines, "}\n"])

    def expected(self, x: np.ndarray, turns: int) -> np.ndarray:
        """What the kernel writes for ``x``."""
        a, b, c = x.reshape(3, LANES)
        d = np.arange(LANES, dtype=np.uint32)
        variables = {"a": a, "b": b, "c": c, "d": d, "p": a & 1 != 0, "q": b.view(np.int32) > 0}
        variables["turns"] = np.full(LANES, turns, np.uint32)
        for statement in self._statements:
            statement.run(variables, np.ones(LANES, bool))
        return np.concatenate([variables[name].astype(np.uint32) for name in (*NUMBERS, *TRUTHS)])

    def _number(self, depth: int) -> Expression:
        pick = self._random
        kind = pick.random()
        if depth == 0 or kind < 0.25:
            name, value = pick.choice(NUMBERS), pick.randrange(10)
            if pick.random() < 0.3:
                return Expression(f"{value}u", lambda v: np.full(LANES, value, np.uint32))
            return Expression(name, lambda v: v[name])
        return self._composed_number(kind, depth)

    def _truth(self, depth: int) -> Expression:
        pick = self._random
        kind = pick.random()
        if kind < 0.1:
            value = pick.random() < 0.5
            return Expression(str(value).lower(), lambda v: np.full(LANES, value))
        if depth == 0 or kind < 0.5:
            name = pick.choice(TRUTHS)
            return Expression(name, lambda v: v[name])
        return self._composed_truth(kind, depth)

    def _statement(self, depth: int) -> Statement:
        kind = self._random.random()
        if kind < 0.5 or depth == 0:
            return self._assignment(kind < 0.35)
        return self._loop(depth) if kind < 0.75 else self._branch(depth)

    def _assignment(self, is_number: bool) -> Statement:
        name = self._random.choice(NUMBERS if is_number else TRUTHS)
        value = self._number(2) if is_number else self._truth(2)
        operator = self._random.choice(tuple(_ASSIGNMENTS)) if is_number else "="
        computed = _ASSIGNMENTS[operator]

        def run(variables: Values, mask: np.ndarray) -> None:
            new = computed(variables[name], value.evaluate(variables))
            variables[name] = np.where(mask, new, variables[name])

        return Statement([f"{name} {operator} {value.text};"], run)

    def _block(self, depth: int, most: int) -> list[Statement]:
        return [self._statement(depth - 1) for _ in range(self._random.randint(1, most))]

    def _loop(self, depth: int) -> Statement:
        pick = self._random
        self._loops += 1
        name = f"k{self._loops}"
        turns = pick.choice(("2", "3", "4", "7", "30", "turns", "int(a & 3)"))
        mark = [ROLLED] if pick.random() < 0.7 else []
        body = self._block(depth, 3)

        def limit(variables: Values) -> np.ndarray | int:
            if turns == "turns":
                return variables["turns"]
            return int(turns) if turns.isdigit() else variables["a"] & 3

        def run(variables: Values, mask: np.ndarray) -> None:
            turn = 0
            while True:
                mask = mask & (turn < limit(variables))
                if not mask.any():
                    return
                for statement in body:
                    statement.run(variables, mask)
                turn += 1

        head = f"for (int {name} = 0; {name} < {turns}; {name}++) {{"
        return Statement([*mark, head, *indented(body), "}"], run)

    def _branch(self, depth: int) -> Statement:
        condition = self._truth(2)
        yes, no = self._block(depth, 2), self._block(depth, 2) if self._random.random() < 0.5 else []

        def run(variables: Values, mask: np.ndarray) -> None:
            truth = condition.evaluate(variables)
            for block, chosen in ((yes, truth), (no, ~truth)):
                for statement in block:
                    statement.run(variables, mask & chosen)

        lines = [f"if ({condition.text}) {{", *indented(yes), "}"]
        return Statement([*lines, "else {", *indented(no), "}"] if no else lines, run)
