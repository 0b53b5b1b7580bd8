"""Random programs of every kind of control flow, thread by thread, and what they compute.

Loops, conditions and ``switch``, ``break``, ``continue`` and ``return``, functions that return early, narrow integers,
members of structs, components of vectors, elements of arrays, pointers that walk; threadgroup memory, simdgroups and
barriers where all threads come.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
from fuzz_parts import LANES, ROLLED, Expression, ExpressionMaker, Statement, Values, indented

_WIDTHS = {"s": 16, "t": 8, "h": 16, "g": 8}
_SIGNED = ("h", "g")
NUMBERS = ("a", "b", "c", "d", "s", "t", "v.m", "z.x", "z.y", "z.w", "r[0]", "r[1]", "r[2]")
TRUTHS = ("p", "q", "v.n")
_TURNS = ("2", "3", "4", "7", "30", "turns", "int(a & 3)")
_WRITTEN = 3
"""Numbers of each thread in memory that statements anywhere write."""


def nobody() -> np.ndarray:
    return np.zeros(LANES, bool)


def store(values: Values, name: str, new: np.ndarray, mask: np.ndarray) -> None:
    if name in _WIDTHS:
        new = new & np.uint32((1 << _WIDTHS[name]) - 1)
    if name in _SIGNED:
        sign = np.uint32(1 << (_WIDTHS[name] - 1))
        new = (new ^ sign) - sign
    values[name] = np.where(mask, new, values[name])


def _left(values: Values, mask: np.ndarray) -> np.ndarray:
    """The threads of ``mask`` that have not jumped away."""
    return mask & ~values["broken"] & ~values["continued"] & ~values["returned"]


def run_block(block: Sequence[Statement], values: Values, mask: np.ndarray) -> None:
    for statement in block:
        now = _left(values, mask)
        if now.any():
            statement.run(values, now)


def run_cases(
    blocks: Sequence[tuple[list[Statement], bool]], values: Values, mask: np.ndarray, first: np.ndarray
) -> None:
    """Runs the cases of a ``switch`` for the threads of ``mask``, each from the ``first`` that it chooses to one that
    ends, as is said behind each block."""
    broken, values["broken"] = values["broken"], nobody()
    entered = nobody()
    for k, (block, ends) in enumerate(blocks):
        entered = entered | mask & (first == k)
        run_block(block, values, entered)
        if ends:
            values["broken"] = values["broken"] | entered
    values["broken"] = broken


class FlowProgram(ExpressionMaker):
    """A kernel made from ``seed``, with its functions."""

    more_parameters = more_arguments = ""
    """What functions get beside numbers, and what the kernel has for it."""
    kind = "flow"
    numbers: Sequence[str] = NUMBERS
    truths: Sequence[str] = TRUTHS
    numbers_in_functions: Sequence[str] = ("a", "b", "c", "d")
    truths_in_functions: Sequence[str] = ("p", "q")
    members = more = more_locals = ""
    """What the struct, the kernel and its functions have beside."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.name = f"{self.kind}_{seed}"
        self._loops = 0
        self._breakable = self._loop_depth = 0
        self._returns = False
        self._may_return = self._random.random() < 0.6
        self._functions: list[tuple[str, list[Statement], Expression]] = []
        self._in_function = True
        self._numbers, self._truths = self.numbers_in_functions, self.truths_in_functions
        self._asked: list[Expression] = []
        for index in range(self._random.randint(0, 2)):
            self._asked.clear()
            body = [self._statement(2) for _ in range(self._random.randint(1, 3))]
            self._functions.append((self._function_name(index), body, self._number(1)))
        self._make_more_functions()
        self._in_function = False
        self._asked.clear()
        self._numbers, self._truths = self.numbers, self.truths
        self._has_simdgroups = self._random.random() < 0.3
        self._body = [self._at_top() for _ in range(self._random.randint(3, 6))]

    def source(self) -> str:
        lines = [f"struct {self.name}_v {{ uint m; bool n;{self.members} }};"]
        for name, body, result in self._functions:
            lines += [
                *self._head(name),
                "{",
                "    uint c = 3, d = a;",
            ]
            lines += [f"    bool p = a > b, q = false;{self.more_locals}", "    device const uint* w = x;"]
            lines += [*indented(body), f"    return {result.text};", "}"]
        lines += self._more_functions()
        lines += [
            f"[[max_total_threads_per_threadgroup({LANES})]]",
            f"kernel void {self.name}(device const uint* x, device uint* y, constant int& turns,",
            "    uint i [[thread_position_in_grid]], uint l [[thread_position_in_threadgroup]])\n{",
            f"    threadgroup uint shared[{LANES}];",
            f"    uint a = x[i], b = x[i + {LANES}], c = x[i + {2 * LANES}], d = i;",
            "    ushort s = ushort(a);",
            "    uchar t = uchar(b);",
            f"    {self.name}_v v = {{ a ^ b, c > 7 }};",
            "    uint4 z = uint4(a, b, c, d);",
            "    uint r[3] = {b, c, d};",
            "    bool p = (a & 1) != 0, q = int(b) > 0;",
            "    device const uint* w = x + i;",
            "    shared[l] = a;",
            *([f"    {self.more}"] if self.more else []),
            *indented(self._body),
        ]
        for k, name in enumerate((*self.numbers, *self.truths)):
            lines.append(f"    y[i + {k * LANES}] = {name};")
        return "\n".join([*lines, "}\n"])

    def _function_name(self, index: int) -> str:
        return f"{self.name}_{index}"

    def _head(self, name: str) -> list[str]:
        return [f"uint {name}(uint a, uint b, device const uint* x, int turns{self.more_parameters})"]

    def _make_more_functions(self) -> None:
        """Draws what the subclass has beside."""

    def _more_functions(self) -> list[str]:
        return []

    def _more_values(self, values: Values) -> Values:
        """What the subclass's names hold at first."""
        return {}

    def _more_values_in_functions(self, values: Values) -> Values:
        """What the subclass's names hold at first in functions, whose other names hold ``values``."""
        return {}

    def expected(self, x: np.ndarray, turns: int) -> np.ndarray:
        """What the kernel writes for ``x``."""
        a, b, c = x.reshape(3, LANES)
        d = np.arange(LANES, dtype=np.uint32)
        values = {"a": a, "b": b, "c": c, "d": d, "s": a & 0xFFFF, "t": b & 0xFF, "v.m": a ^ b, "v.n": c > 7}
        values |= {
            "r[0]": b,
            "r[1]": c,
            "r[2]": d,
            "z.x": a,
            "z.y": b,
            "z.z": c,
            "z.w": d,
            "p": a & 1 != 0,
            "q": b.view(np.int32) > 0,
            "w": d,
        }
        values |= {"broken": nobody(), "continued": nobody(), "returned": nobody(), "x": x, "code": np.zeros_like(a)}
        values |= {f"y{k}": np.zeros_like(a) for k in range(_WRITTEN)}
        values |= {"shared": a, "turns": np.full(LANES, turns, np.uint32), "result": np.zeros_like(a)}
        values |= self._more_values(values)
        run_block(self._body, values, ~nobody())
        done = values["returned"]
        planes = [np.where(done, 0, values[name].astype(np.uint32)) for name in (*self.numbers, *self.truths)]
        planes += [values["code"], *(values[f"y{k}"] for k in range(_WRITTEN))]
        return np.concatenate(planes).astype(np.uint32)

    def _at_top(self) -> Statement:
        """A statement that all threads come to, or a loop of those, before any thread returns."""
        pick = self._random
        kind = pick.random()
        if kind < 0.25:
            return self._exchange()
        if kind < 0.35:
            body = [self._exchange(), self._assignment(), self._exchange()]
            return self._counted(body, pick.choice(("2", "3", "turns")))
        return self._statement(2)

    def _exchange(self) -> Statement:
        """Threads give each other numbers; those that have returned do not take part."""
        pick = self._random
        name, other = pick.choice(NUMBERS[:4]), pick.choice(NUMBERS[:4])
        shift = pick.randrange(1, 32)
        if self._has_simdgroups and self._returns:
            return self._assignment()
        if self._has_simdgroups:
            text, compute = pick.choice(
                (
                    ("simd_sum({})", lambda n: np.repeat(n.reshape(2, 32).sum(1, dtype=np.uint32), 32)),
                    (f"simd_shuffle_xor({{}}, {shift})", lambda n: n[np.arange(LANES) ^ shift]),
                    ("simd_max({})", lambda n: np.repeat(n.reshape(2, 32).max(1), 32)),
                    (f"simd_broadcast({{}}, {shift})", lambda n: np.repeat(n.reshape(2, 32)[:, shift], 32)),
                    (f"uint(simd_any({{}} > {shift}u))", lambda n: np.repeat((n.reshape(2, 32) > shift).any(1), 32)),
                )
            )

            def reduce(values: Values, mask: np.ndarray) -> None:
                store(values, name, compute(values[other]).astype(np.uint32), mask)

            return Statement([f"{name} = {text.format(other)};"], reduce)
        if self._returns:
            return self._assignment()

        def rotate(values: Values, mask: np.ndarray) -> None:
            store(values, "shared", values[other], mask)
            store(values, name, values["shared"][(np.arange(LANES) + shift) % LANES], mask)

        barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
        lines = [barrier, f"shared[l] = {other};", barrier, f"{name} = shared[(l + {shift}) % {LANES}];"]
        return Statement(lines, rotate)

    def _number(self, depth: int) -> Expression:
        pick = self._random
        kind = pick.random()
        if depth == 0 or kind < 0.25:
            choice = pick.random()
            if choice < 0.25:
                value = pick.randrange(10)
                return Expression(f"{value}u", lambda v: np.full(LANES, value, np.uint32))
            if choice < 0.32:
                return Expression("*w", lambda v: v["x"][v["w"]])
            if choice < 0.36:
                return Expression("uint(turns)", lambda v: v["turns"])
            name = pick.choice(self._numbers)
            return Expression(f"uint({name})" if name in _WIDTHS else name, lambda v: v[name])
        return self._composed_number(kind, depth)

    def _truth(self, depth: int) -> Expression:
        pick = self._random
        kind = pick.random()
        if depth == 0 or kind < 0.4:
            name = pick.choice(self._truths)
            return Expression(name, lambda v: v[name])
        return self._composed_truth(kind, depth)

    def _statement(self, depth: int) -> Statement:
        kind = self._random.random()
        if kind < 0.09:
            return self._jump()
        if kind < 0.42 or depth == 0:
            return self._assignment()
        if kind < 0.67:
            return self._loop(depth)
        return self._branch(depth) if kind < 0.9 else self._switch(depth)

    def _block(self, depth: int, most: int) -> list[Statement]:
        return [self._statement(depth - 1) for _ in range(self._random.randint(1, most))]

    def _assignment(self) -> Statement:
        pick = self._random
        kind = pick.random()
        if kind < 0.2:
            return self._constant(pick.choice(self._numbers))
        if kind < 0.28 and not self._in_function:
            return self._write()
        if kind < 0.55:
            return self._set(pick.choice(self._numbers), self._number(2))
        if kind < 0.75:
            return self._set(pick.choice(self._truths), self._truth(2))
        if kind < 0.79:
            return self._walk() if self._in_function else self._element()
        if kind < 0.83:
            return self._walk()
        if kind < 0.9:
            return self._count()
        if self._functions and not self._in_function:
            return self._call()
        return self._set(pick.choice(self._numbers), self._number(2))

    def _set(self, name: str, value: Expression) -> Statement:
        return Statement(
            [f"{name} = {value.text};"], lambda values, mask: store(values, name, value.evaluate(values), mask)
        )

    def _constant(self, name: str) -> Statement:
        value = self._random.randrange(200)
        return self._set(name, Expression(f"{value}", lambda v: np.full(LANES, value, np.uint32)))

    def _write(self) -> Statement:
        """A number of each thread in memory gets a value."""
        pick = self._random
        plane, value = pick.randrange(_WRITTEN), self._number(pick.randrange(2))
        place = (len(self.numbers) + len(self.truths) + 1 + plane) * LANES
        return Statement(
            [f"y[i + {place}] = {value.text};"],
            lambda values, mask: store(values, f"y{plane}", value.evaluate(values), mask),
        )

    def _walk(self) -> Statement:
        """A pointer steps on, or goes somewhere else."""
        if self._random.random() < 0.5:
            value = self._number(1)
            return Statement(
                [f"w = x + ({value.text} & 127);"],
                lambda values, mask: store(values, "w", value.evaluate(values) & 127, mask),
            )

        def step(values: Values, mask: np.ndarray) -> None:
            store(values, "w", values["w"] + 1, mask & (values["w"] < 150))

        return Statement(["if (w < x + 150) {", "    w++;", "}"], step)

    def _element(self) -> Statement:
        """An element of a thread's array is added to: one of two, or any."""
        pick = self._random
        condition, value = self._truth(1), self._number(1)
        first, second = pick.sample(range(3), 2)
        index = Expression(
            f"{condition.text} ? {first} : {second}", lambda v: np.where(condition.evaluate(v), first, second)
        )
        if pick.random() < 0.4:
            number = self._number(1)
            index = Expression(f"({number.text}) % 3", lambda v: number.evaluate(v) % 3)

        def run(values: Values, mask: np.ndarray) -> None:
            chosen, new = index.evaluate(values), value.evaluate(values)
            for place in range(3):
                store(values, f"r[{place}]", values[f"r[{place}]"] + new, mask & (chosen == place))

        return Statement([f"r[{index.text}] += {value.text};"], run)

    def _count(self) -> Statement:
        """A condition counts, and the second half of it only where the first holds."""
        pick = self._random
        one, two = pick.sample(("a", "b", "c", "d"), 2)
        name, limit = pick.choice(self._truths), pick.randrange(20)

        def run(values: Values, mask: np.ndarray) -> None:
            first = values[one] > limit
            store(values, one, values[one] + 1, mask)
            second = (values[two] & 1) == 0
            store(values, two, values[two] - 1, mask & first)
            values[name] = np.where(mask, first & second, values[name])

        return Statement([f"{name} = ({one}++ > {limit}) && (({two}-- & 1) == 0);"], run)

    def _call(self) -> Statement:
        """A function is called, or one of two."""
        pick = self._random
        name = pick.choice(NUMBERS[:4])
        first, second = pick.choice(self._functions), pick.choice(self._functions)
        a, b, condition = self._number(1), self._number(1), self._truth(1)
        chooses = pick.random() < 0.5

        def result(function: tuple[str, list[Statement], Expression], values: Values, mask: np.ndarray) -> np.ndarray:
            x, y = a.evaluate(values), b.evaluate(values)
            inner = {"a": x, "b": y, "c": np.full(LANES, 3, np.uint32), "d": x, "p": x > y, "q": nobody()}
            inner |= {"w": np.zeros(LANES, np.uint32), "x": values["x"], "turns": values["turns"]}
            inner |= {"broken": nobody(), "continued": nobody(), "returned": nobody(), "result": np.zeros_like(x)}
            inner["shared"] = values["shared"]
            inner |= self._more_values_in_functions(inner)
            run_block(function[1], inner, mask)
            values["shared"] = inner["shared"]
            return np.where(inner["returned"], inner["result"], function[2].evaluate(inner))

        def run(values: Values, mask: np.ndarray) -> None:
            chosen = condition.evaluate(values) if chooses else ~nobody()
            new = result(first, values, mask & chosen)
            if chooses:
                new = np.where(chosen, new, result(second, values, mask & ~chosen))
            store(values, name, new, mask)

        text = f"{first[0]}({a.text}, {b.text}, x, turns{self.more_arguments})"
        if chooses:
            text = f"{condition.text} ? {text} : {second[0]}({a.text}, {b.text}, x, turns{self.more_arguments})"
        return Statement([f"{name} = {text};"], run)

    def _jump(self) -> Statement:
        """Some threads leave a loop, a turn of one, a ``switch`` or the function."""
        pick = self._random
        condition, kind = self._condition(), pick.random()
        if self._breakable and kind < 0.5:
            word, kept = "break", "broken"
        elif self._loop_depth and kind < 0.75:
            word, kept = "continue", "continued"
        elif self._in_function:
            value = self._number(1)
            before = [self._counted([self._assignment()], pick.choice(_TURNS))] if pick.random() < 0.5 else []

            def leave(values: Values, mask: np.ndarray) -> None:
                leaving = mask & condition.evaluate(values)
                run_block(before, values, leaving)
                values["result"] = np.where(leaving, value.evaluate(values), values["result"])
                values["returned"] = values["returned"] | leaving

            return Statement([f"if ({condition.text}) {{", *indented(before), f"    return {value.text};", "}"], leave)
        elif not self._may_return:
            return self._assignment()
        else:
            self._returns = True
            code, place = pick.randrange(1, 50), (len(self.numbers) + len(self.truths)) * LANES

            def end(values: Values, mask: np.ndarray) -> None:
                leaving = mask & condition.evaluate(values)
                values["code"] = np.where(leaving, code, values["code"])
                values["returned"] = values["returned"] | leaving

            lines = [f"if ({condition.text}) {{", f"    y[i + {place}] = {code};", "    return;", "}"]
            return Statement(lines, end)

        def jump(values: Values, mask: np.ndarray) -> None:
            values[kept] = values[kept] | mask & condition.evaluate(values)

        return Statement([f"if ({condition.text}) {{", f"    {word};", "}"], jump)

    def _body_of_loop(self, depth: int) -> list[Statement]:
        self._breakable += 1
        self._loop_depth += 1
        body = self._block(depth, 3)
        self._breakable -= 1
        self._loop_depth -= 1
        return body

    def _loop(self, depth: int) -> Statement:
        pick = self._random
        body = self._body_of_loop(depth)
        kind = pick.random()
        if kind < 0.7:
            return self._counted(body, pick.choice(_TURNS))
        return self._while(body, kind < 0.85)

    def _counted(self, body: Sequence[Statement], turns: str) -> Statement:
        self._loops += 1
        name = f"k{self._loops}"
        mark = [ROLLED] if self._random.random() < 0.7 else []

        def limit(values: Values) -> np.ndarray | int:
            return int(turns) if turns.isdigit() else values["turns"] if turns == "turns" else values["a"] & 3

        def run(values: Values, mask: np.ndarray) -> None:
            _turn(values, mask, body, lambda turn: turn < limit(values), False)

        return Statement([*mark, f"for (int {name} = 0; {name} < {turns}; {name}++) {{", *indented(body), "}"], run)

    def _while(self, body: Sequence[Statement], is_first: bool) -> Statement:
        """``while``, or ``do`` and ``while``, whose threads turn as often as they count."""
        self._loops += 1
        name, most, condition = f"k{self._loops}", self._random.randrange(1, 12), self._truth(2)

        def run(values: Values, mask: np.ndarray) -> None:
            _turn(values, mask, body, lambda turn: (turn < most) & condition.evaluate(values), not is_first)

        text = f"{name}++ < {most} && {condition.text}"
        if is_first:
            return Statement([f"int {name} = 0;", f"while ({self._asking(text)}) {{", *indented(body), "}"], run)
        text = f"++{name} < {most} && {condition.text}"
        return Statement([f"int {name} = 0;", "do {", *indented(body), f"}} while ({text});"], run)

    def _condition(self) -> Expression:
        """A new one, one that an earlier choice asked for, or its contrary."""
        pick = self._random
        if self._asked and pick.random() < 0.35:
            earlier = pick.choice(self._asked)
            return earlier if pick.random() < 0.4 else Expression(f"!{earlier.text}", lambda v: ~earlier.evaluate(v))
        self._asked.append(self._truth(2))
        return self._asked[-1]

    def _asking(self, condition: str) -> str:
        """``condition``, or a variable that is declared to be it."""
        pick = self._random
        if pick.random() < 0.8:
            return condition
        self._loops += 1
        name = f"e{self._loops}"
        return f"bool {name}{{{condition}}}" if pick.random() < 0.5 else f"bool {name} = {condition}"

    def _branch(self, depth: int) -> Statement:
        condition = self._condition()
        yes, no = self._block(depth, 3), self._block(depth, 3) if self._random.random() < 0.65 else []
        if no and self._random.random() < 0.6:
            # What threads disagree about though it is the same number for all that come the same way, behind loops.
            name = self._random.choice(self._numbers)
            for block in (yes, no):
                if self._random.random() < 0.8:
                    block.append(self._counted([self._assignment()], self._random.choice(_TURNS)))
                block.append(self._constant(name))

        def run(values: Values, mask: np.ndarray) -> None:
            truth = condition.evaluate(values)
            run_block(yes, values, mask & truth)
            run_block(no, values, mask & ~truth)

        lines = [f"if ({self._asking(condition.text)}) {{", *indented(yes), "}"]
        return Statement([*lines, "else {", *indented(no), "}"] if no else lines, run)

    def _switch(self, depth: int) -> Statement:
        """Cases that end, or go on with the next."""
        pick = self._random
        value = self._number(1)
        self._breakable += 1
        blocks = [(self._block(depth, 2), pick.random() < 0.75) for _ in range(3)]
        self._breakable -= 1

        def run(values: Values, mask: np.ndarray) -> None:
            run_cases(blocks, values, mask, np.minimum(value.evaluate(values) & 3, 2))

        lines = [f"switch ({value.text} & 3) {{"]
        for k, (block, ends) in enumerate(blocks):
            lines += [
                "default: {" if k == 2 else f"case {k}: {{",
                *indented(block),
                *(["    break;"] if ends else []),
                "}",
            ]
        return Statement([*lines, "}"], run)


class WaitingProgram(FlowProgram):
    """A kernel whose threads wait for each other wherever some of them come, those left out that went another way.

    ``leaves_some_out`` says, behind ``expected``, whether there were such threads.
    """

    leaves_some_out = False
    more_parameters, more_arguments = ", threadgroup uint* shared, uint l", ", shared, l"

    def _exchange(self) -> Statement:
        pick = self._random
        name, other = pick.choice(NUMBERS[:4]), pick.choice(NUMBERS[:4])
        shift = pick.randrange(1, 32)

        def rotate(values: Values, mask: np.ndarray) -> None:
            self.leaves_some_out = self.leaves_some_out or mask.any() and not mask.all()
            store(values, "shared", values[other], mask)
            store(values, name, values["shared"][(np.arange(LANES) + shift) % LANES], mask)

        barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
        lines = [barrier, f"shared[l] = {other};", barrier, f"{name} = shared[(l + {shift}) % {LANES}];"]
        return Statement(lines, rotate)

    def _statement(self, depth: int) -> Statement:
        return self._exchange() if self._random.random() < 0.2 else super()._statement(depth)


def _turn(
    values: Values,
    mask: np.ndarray,
    body: Sequence[Statement],
    goes_on: Callable[[int], np.ndarray],
    is_first_free: bool,
) -> None:
    """Has the threads of ``mask`` turn in a loop until each leaves it."""
    kept = values["broken"], values["continued"]
    turn = 0
    while True:
        if turn or not is_first_free:
            mask = mask & goes_on(turn)
        if not mask.any():
            break
        values["broken"], values["continued"] = nobody(), nobody()
        run_block(body, values, mask)
        mask = mask & ~values["broken"] & ~values["returned"]
        turn += 1
    values["broken"], values["continued"] = kept
