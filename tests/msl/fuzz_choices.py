"""Random programs whose choices ask again what earlier ones asked, in other words.

Truths kept in variables, in arrays, in bits of a number, in a mode that arms set; the same condition negated, compared
with a constant, by De Morgan's laws; functions that change what they are given a reference to and say whether they did,
in conditions, too; lambda expressions in each other; loops whose bounds are the thread's, that have two counters, that
only ``break`` ends; ``switch`` with ``default`` anywhere; pointers that walk through a thread's, the threadgroup's and
the device's memory; structs copied through threadgroup memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from fuzz_constructs import ConstructProgram
from fuzz_flow import TRUTHS, WaitingProgram, nobody, run_block, run_cases, store
from fuzz_parts import LANES, ROLLED, Expression, Statement, Values, indented

_ASKED = ("u[0]", "u[1]", "u[2]", "u[3]")
_MEMBERS = ("v.m", "v.k[0]", "v.k[1]", "v.n")
_SEVENTH = "device const uint& seventh = x[7];"
_LOCALS = f" uint flags = b & 7u, mode = a & 3u; bool u[4] = {{p, q, p, true}}; {_SEVENTH}"


def _first_asked(values: Values) -> Values:
    p, q = values["p"], values["q"]
    return {
        "flags": values["b"] & 7, "mode": values["a"] & 3, "u[0]": p, "u[1]": q, "u[2]": p, "u[3]": ~nobody(),
    }  # fmt: skip


class ChoicesProgram(ConstructProgram):
    """A kernel made from ``seed``, with its functions."""

    kind = "choices"
    numbers = (*ConstructProgram.numbers, "flags", "mode")
    truths = (*TRUTHS, *_ASKED)
    numbers_in_functions = ("a", "b", "c", "d", "flags", "mode")
    truths_in_functions = ("p", "q", *_ASKED)
    more_locals = _LOCALS

    def __init__(self, seed: int) -> None:
        self._setters: list[tuple[str, list[Statement], Expression]] = []
        self._lambdas = 0
        super().__init__(seed)
        self.more = f"{ConstructProgram.more}{_LOCALS} threadgroup {self.name}_v kept[{LANES}];"

    def source(self) -> str:
        reading = f"uint {self.name}_read(device const uint* x, uint place) {{ return x[place & 63u]; }}\n"
        return reading + super().source()

    def _make_more_functions(self) -> None:
        for index in range(self._random.randint(0, 2)):
            self._asked.clear()
            body = [self._statement(2) for _ in range(self._random.randint(1, 3))]
            self._setters.append((f"{self.name}_set{index}", body, self._truth(1)))

    def _more_functions(self) -> list[str]:
        lines = []
        for name, body, truth in self._setters:
            lines += [
                f"bool {name}(thread uint& a, thread uint& flags, thread bool& p, uint b, device const uint* x,",
                f"    int turns{self.more_parameters})\n{{",
                "    uint c = 3, d = b, mode = b & 3u;",
                "    bool q = a > b, u[4] = {p, q, p, true};",
                f"    device const uint* w = x; {_SEVENTH}",
                *indented(body),
                f"    return {truth.text};\n}}",
            ]
        return lines

    def _more_values(self, values: Values) -> Values:
        return super()._more_values(values) | _first_asked(values)

    def _more_values_in_functions(self, values: Values) -> Values:
        return _first_asked(values)

    # Expressions.

    def _number(self, depth: int) -> Expression:
        if depth and not self._in_function and self._functions and self._random.random() < 0.06:
            return self._result(depth)
        if self._random.random() < 0.06:
            return self._of_memory_or_call(depth)
        return super()._number(depth)

    def _of_memory_or_call(self, depth: int) -> Expression:
        """What a compiler does not work out for threads that do not ask for it."""
        kind = self._random.random()
        if not depth or kind < 0.3:
            return Expression("seventh", lambda v: np.full(LANES, v["x"][7]))
        number = self._number(depth - 1)
        if kind < 0.6:
            return Expression(f"{self.name}_read(x, {number.text})", lambda v: v["x"][number.evaluate(v) & 63])
        if kind < 0.8:
            factor = np.uint64(0x9E3779B9)
            text = f"mulhi({number.text}, {factor}u)"
            return Expression(text, lambda v: (number.evaluate(v) * factor >> np.uint64(32)).astype(np.uint32))
        text = f"uint(float({number.text} & 255u) * 1.5f)"
        return Expression(text, lambda v: (number.evaluate(v) & 255) * np.uint32(3) // np.uint32(2))

    def _result(self, depth: int) -> Expression:
        """What a function gives back, which changes nothing."""
        name, body, tail = self._random.choice(self._functions)
        a, b = self._number(depth - 1), self._number(depth - 1)

        def evaluate(values: Values) -> np.ndarray:
            x, y = a.evaluate(values), b.evaluate(values)
            inner = {"a": x, "b": y, "c": np.full(LANES, 3, np.uint32), "d": x, "p": x > y, "q": nobody()}
            inner |= {"w": np.zeros(LANES, np.uint32), "x": values["x"], "turns": values["turns"]}
            inner |= {"broken": nobody(), "continued": nobody(), "returned": nobody(), "result": np.zeros_like(x)}
            inner["shared"] = values["shared"]
            inner |= _first_asked(inner)
            run_block(body, inner, ~nobody())
            return np.where(inner["returned"], inner["result"], tail.evaluate(inner))

        return Expression(f"{name}({a.text}, {b.text}, x, turns{self.more_arguments})", evaluate)

    def _truth(self, depth: int) -> Expression:
        pick = self._random
        if pick.random() > 0.25:
            return super()._truth(depth)
        kind, bit = pick.random(), pick.randrange(3)
        if kind < 0.3:
            text = pick.choice((f"((flags >> {bit} & 1u) != 0)", f"bool(flags & {1 << bit}u)"))
            return Expression(text, lambda v: (v["flags"] >> bit & 1) == 1)
        if kind < 0.6:
            text = pick.choice((f"(mode == {bit}u)", f"!(mode != {bit}u)"))
            return Expression(text, lambda v: v["mode"] == bit)
        index = self._number(0)

        def element(values: Values) -> np.ndarray:
            chosen = (index.evaluate(values) & 3).astype(int)
            return np.choose(chosen, [values[name] for name in _ASKED])

        return Expression(f"u[({index.text}) & 3u]", element)

    def _condition(self) -> Expression:
        pick = self._random
        if not self._asked or pick.random() < 0.4:
            return super()._condition()
        one, two = pick.choice(self._asked), pick.choice(self._asked)
        e, f = one.text, two.text
        is_one, is_two = one.evaluate, two.evaluate
        forms: Sequence[tuple[str, Callable[[Values], np.ndarray]]] = (
            (f"({e}) == false", lambda v: ~is_one(v)),
            (f"({e}) != false", is_one),
            (f"({e} ? 0 : 1) != 0", lambda v: ~is_one(v)),
            (f"int({e}) < 1", lambda v: ~is_one(v)),
            (f"!({e} && {f})", lambda v: ~(is_one(v) & is_two(v))),
            (f"!({e}) || !({f})", lambda v: ~(is_one(v) & is_two(v))),
            (f"!({e} || {f})", lambda v: ~(is_one(v) | is_two(v))),
            (f"!({e}) && !({f})", lambda v: ~(is_one(v) | is_two(v))),
            (f"({e}) ^ true", lambda v: ~is_one(v)),
            (f"({e} ? !{f} : {f})", lambda v: is_one(v) ^ is_two(v)),
            (f"({e}) == ({f})", lambda v: is_one(v) == is_two(v)),
            (f"{e} && {f}", lambda v: is_one(v) & is_two(v)),
            (f"{e} || {f}", lambda v: is_one(v) | is_two(v)),
        )
        return Expression(*pick.choice(forms))

    # Statements.

    def _statement(self, depth: int) -> Statement:
        kind = self._random.random()
        if depth == 0 or kind > 0.3:
            return super()._statement(depth)
        if kind < 0.1:
            return self._remembered(depth)
        if kind < 0.2:
            return self._by_mode(depth)
        if kind < 0.26 and self._setters and not self._in_function:
            return self._of_setter(depth)
        return self._endless(depth)

    def _assignment(self) -> Statement:
        kind = self._random.random()
        if kind < 0.1:
            return self._keep()
        if kind < 0.15 and self._in_function and self._lambdas < 2 and not self._loop_depth:
            return self._lambda()
        if kind < 0.17 and not self._in_function and self._functions:
            return self._set_later()
        if kind < 0.22 and not self._in_function:
            return self._walk_through_array() if kind < 0.195 else self._walk_through_memory()
        return super()._assignment()

    def _set_later(self) -> Statement:
        """A number that is declared without a value is passed on."""
        self._loops += 1
        name, value = f"n{self._loops}", self._number(2)
        kept, self._numbers = self._numbers, [name]
        call = self._call()
        self._numbers = kept

        def run(values: Values, mask: np.ndarray) -> None:
            values[name] = value.evaluate(values)
            call.run(values, mask)

        return Statement(["{", f"    uint {name};", f"    {name} = {value.text};", f"    {call.lines[0]}", "}"], run)

    def _lambda(self) -> Statement:
        self._lambdas += 1
        found = super()._lambda()
        self._lambdas -= 1
        return found

    def _keep(self) -> Statement:
        """A truth is kept in an element, a bit or the mode."""
        pick = self._random
        condition, kind, bit = self._condition(), pick.random(), pick.randrange(3)
        if kind < 0.4:
            return self._set(pick.choice(_ASKED), condition)
        on, off = np.uint32(1 << bit), np.uint32(0xFFFFFFFF ^ (1 << bit))
        if kind < 0.7:
            text = f"flags = ({condition.text}) ? flags | {on}u : flags & ~{on}u;"
            compute: Callable[[Values], np.ndarray] = lambda v: np.where(  # noqa: E731
                condition.evaluate(v), v["flags"] | on, v["flags"] & off
            )
            name = "flags"
        else:
            other = pick.randrange(3)
            text, name = f"mode = ({condition.text}) ? {bit} : {other};", "mode"
            compute = lambda v: np.where(condition.evaluate(v), bit, other).astype(np.uint32)  # noqa: E731
        return Statement([text], lambda values, mask: store(values, name, compute(values), mask))

    def _remembered(self, depth: int) -> Statement:
        """A truth in a variable, which choices behind it ask for."""
        pick = self._random
        condition = self._condition()
        self._loops += 1
        name = f"m{self._loops}"
        kept, self._truths = self._truths, (*self._truths, *[name] * 6)
        if pick.random() < 0.6:
            self._asked.append(Expression(name, lambda v: v[name]))
        body = [self._statement(depth - 1) for _ in range(pick.randint(1, 2))]
        body += [self._branch(1) for _ in range(pick.randint(1, 2))]
        self._truths = kept
        self._asked = [each for each in self._asked if name not in each.text]
        is_changed = pick.random() < 0.2
        flip = self._truth(0)
        where = pick.randrange(len(body))

        def run(values: Values, mask: np.ndarray) -> None:
            values[name] = np.where(mask, condition.evaluate(values), values.get(name, nobody()))

            def change(inside: Values, inner: np.ndarray) -> None:
                inside[name] = np.where(inner, inside[name] ^ flip.evaluate(inside), inside[name])

            block = [*body[:where], Statement([], change), *body[where:]] if is_changed else body
            run_block(block, values, mask)

        lines = [f"bool {name} = {condition.text};"]
        for place, statement in enumerate(body):
            if is_changed and place == where:
                lines.append(f"{name} = {name} != {flip.text};")
            lines += statement.lines
        return Statement(["{", *(line if line[0] == "#" else f"    {line}" for line in lines), "}"], run)

    def _by_mode(self, depth: int) -> Statement:
        """Arms set the mode, and something behind asks for it."""
        pick = self._random
        condition = self._condition()
        yes, no, between = self._block(depth, 2), self._block(depth, 2), self._block(depth, 1)
        one, two, asked = pick.randrange(3), pick.randrange(3), pick.randrange(3)
        later, otherwise = self._block(depth, 2), self._block(depth, 2)
        is_loop = pick.random() < 0.3

        def run(values: Values, mask: np.ndarray) -> None:
            truth = condition.evaluate(values)
            for block, chosen, mode in ((yes, truth, one), (no, ~truth, two)):
                set_mode = self._set("mode", Expression("", lambda v, mode=mode: np.full(LANES, mode, np.uint32)))
                run_block([*block, set_mode], values, mask & chosen)
            left = mask & ~values["broken"] & ~values["continued"] & ~values["returned"]
            run_block(between, values, left)
            left = left & ~values["broken"] & ~values["continued"] & ~values["returned"]
            chosen = values["mode"] == asked
            run_block(later, values, left & chosen)
            run_block(otherwise, values, left & ~chosen)

        lines = [f"if ({condition.text}) {{", *indented(yes), f"    mode = {one};", "} else {", *indented(no)]
        lines += [f"    mode = {two};", "}", *(line for statement in between for line in statement.lines)]
        words = " ".join(line for each in (*later, *otherwise) for line in each.lines)
        if is_loop and "break" not in words and "continue" not in words:
            # What turns once.
            self._loops += 1
            counter = f"k{self._loops}"
            lines += [f"int {counter} = 0;", f"while (mode == {asked} && {counter}++ < 1) {{"]
            lines += [*indented(later), "}", f"if ({counter} == 0) {{", *indented(otherwise), "}"]
            return Statement(lines, run)
        lines += [f"if (mode == {asked}) {{", *indented(later), "} else {", *indented(otherwise), "}"]
        return Statement(lines, run)

    def _of_setter(self, depth: int) -> Statement:
        """A function that changes its arguments, in a condition."""
        pick = self._random
        function, body, truth = pick.choice(self._setters)
        name, asked, value = pick.choice(("a", "b", "c", "d")), pick.choice(("p", "q")), self._number(1)
        flags = pick.choice(("flags", "mode"))
        before = self._condition()
        kind = pick.random()
        yes, no = self._block(depth, 2), self._block(depth, 2)

        def call(values: Values, mask: np.ndarray) -> np.ndarray:
            b = value.evaluate(values)
            a, p = values[name], values[asked]
            inner = {"a": a, "b": b, "c": np.full(LANES, 3, np.uint32), "d": b, "p": p, "q": a > b}
            inner |= {"w": np.zeros(LANES, np.uint32), "x": values["x"], "turns": values["turns"]}
            inner |= {"broken": nobody(), "continued": nobody(), "returned": nobody(), "result": np.zeros_like(a)}
            inner |= {"shared": values["shared"], "flags": values[flags], "mode": b & 3}
            inner |= {"u[0]": p, "u[1]": a > b, "u[2]": p, "u[3]": ~nobody()}
            run_block(body, inner, mask)
            values["shared"] = inner["shared"]
            result = np.where(inner["returned"], inner["result"] != 0, truth.evaluate(inner))
            for outside, inside in ((name, "a"), (flags, "flags"), (asked, "p")):
                values[outside] = np.where(mask, inner[inside], values[outside])
            return result

        text = f"{function}({name}, {flags}, {asked}, {value.text}, x, turns{self.more_arguments})"
        if kind < 0.25:
            other = pick.choice(_ASKED)
            return Statement([f"{other} = {text};"], lambda v, m: store(v, other, call(v, m), m))
        is_first = kind < 0.6

        def run(values: Values, mask: np.ndarray) -> None:
            asking = mask if is_first else mask & before.evaluate(values)
            chosen = asking & call(values, asking)
            run_block(yes, values, mask & chosen)
            run_block(no, values, mask & ~chosen)

        text = text if is_first else f"({before.text}) && {text}"
        return Statement([f"if ({text}) {{", *indented(yes), "} else {", *indented(no), "}"], run)

    def _endless(self, depth: int) -> Statement:
        """A loop that ``break`` ends, one from one of the thread's numbers to another, or one with two counters."""
        pick = self._random
        self._loops += 1
        name, other = f"k{self._loops}", f"j{self._loops}"
        begin, limit, condition, most = self._number(1), self._number(1), self._condition(), pick.randrange(1, 9)
        kind = pick.random()
        is_endless, has_two = kind < 0.35, kind > 0.7
        body = self._body_of_loop(depth) if is_endless else self._body_that_reads(name, depth)

        def run(values: Values, mask: np.ndarray) -> None:
            first = np.zeros(LANES, np.uint32) if is_endless or has_two else begin.evaluate(values) & 3
            values[name] = np.where(mask, first, values.get(name, first))
            second = begin.evaluate(values) & 7
            outer = values["broken"], values["continued"]
            while True:
                if is_endless:
                    mask = mask & (values[name] < most) & ~condition.evaluate(values)
                    values[name] = values[name] + mask
                elif has_two:
                    mask = mask & (values[name] < second)
                else:
                    mask = mask & (values[name] < (limit.evaluate(values) & 7))
                if not mask.any():
                    break
                values["broken"], values["continued"] = nobody(), nobody()
                run_block(body, values, mask)
                mask = mask & ~values["broken"] & ~values["returned"]
                if not is_endless:
                    values[name] = np.where(mask, values[name] + np.uint32(1), values[name])
                second = second - mask
            values["broken"], values["continued"] = outer

        mark = [ROLLED] if pick.random() < 0.5 else []
        if is_endless:
            head = [f"uint {name} = 0;", *mark, pick.choice(("for (;;) {", "while (true) {"))]
            head.append(f"    if ({name} >= {most} || ({condition.text})) break;")
            head.append(f"    {name}++;")
            return Statement([*head, *indented(body), "}"], run)
        if has_two:
            text = f"uint {name} = 0, {other} = {begin.text} & 7u; {name} < {other}; {name}++, {other}--"
        else:
            text = f"uint {name} = {begin.text} & 3u; {name} < ({limit.text} & 7u); ++{name}"
        return Statement([*mark, f"for ({text}) {{", *indented(body), "}"], run)

    def _switch(self, depth: int) -> Statement:
        """``default`` stands anywhere, several labels at one place, and a case asks for the mode."""
        pick = self._random
        text, evaluate = pick.choice(
            (("mode", lambda v: v["mode"]), ("flags & 3u", lambda v: v["flags"] & 3)) * 2
            + ((f"({(number := self._number(1)).text}) & 3u", lambda v: number.evaluate(v) & 3),)
        )
        labels = pick.sample(range(4), pick.randint(1, 4))
        places = sorted(pick.randrange(3) for _ in labels)
        default = pick.randrange(4)
        unnamed = [k for k in range(3) if k not in places and k != default]
        labels, places = [*labels, *(k + 4 for k in unnamed)], [*places, *unnamed]
        self._breakable += 1
        blocks = [(self._block(depth, 2), pick.random() < 0.65) for _ in range(3)]
        self._breakable -= 1

        def run(values: Values, mask: np.ndarray) -> None:
            asked = evaluate(values)
            choice = np.full(LANES, default)
            for label, place in zip(labels, places, strict=True):
                choice = np.where(asked == label, place, choice)
            run_cases(blocks, values, mask, choice)

        lines = [f"switch ({text}) {{"]
        for k, (block, ends) in enumerate(blocks):
            heads = [f"case {label}:" for label, place in zip(labels, places, strict=True) if place == k]
            heads += ["default:"] if default == k else []
            lines += [*heads[:-1], f"{heads[-1]} {{", *indented(block), *(["    break;"] if ends else []), "}"]
        return Statement([*lines, "}"], run)

    def _walk_through_array(self) -> Statement:
        """A pointer walks through a thread's array, up or down, or some threads' further."""
        pick = self._random
        value, more, condition = self._number(1), self._number(1), self._condition()
        kind = pick.random()
        names = ("r[0]", "r[1]", "r[2]")

        def up(values: Values, mask: np.ndarray) -> None:
            for each in names:
                store(values, each, values[each] + value.evaluate(values), mask)

        def down(values: Values, mask: np.ndarray) -> None:
            for each in names[::-1]:
                leaving = condition.evaluate(values)
                mask = mask & ~leaving
                store(values, each, values[each] ^ value.evaluate(values), mask)

        def steps(values: Values, mask: np.ndarray) -> None:
            store(values, "r[0]", value.evaluate(values), mask)
            chosen = condition.evaluate(values)
            new = more.evaluate(values)
            store(values, "r[1]", values["r[1]"] + new, mask & ~chosen)
            store(values, "r[2]", values["r[2]"] + new, mask & chosen)

        if kind < 0.35:
            lines = ["for (thread uint* f = r; f < r + 3; f++) {", f"    *f += {value.text};", "}"]
            return Statement(lines, up)
        if kind < 0.65:
            lines = ["{", "    thread uint* f = r + 3;", "    while (f > r) {", f"        if ({condition.text}) break;"]
            return Statement([*lines, "        --f;", f"        *f ^= {value.text};", "    }", "}"], down)
        lines = ["{", "    thread uint* f = r;", f"    *f++ = {value.text};", f"    f += ({condition.text}) ? 1 : 0;"]
        return Statement([*lines, f"    *f += {more.text};", "}"], steps)

    def _walk_through_memory(self) -> Statement:
        """A pointer walks through the threadgroup's numbers, or the device's."""
        pick = self._random
        name, value, number, condition = pick.choice("abcd"), self._number(1), self._number(1), self._condition()
        if pick.random() < 0.5:
            turns = pick.randrange(1, 6)

            def add(values: Values, mask: np.ndarray) -> None:
                place = value.evaluate(values) & 31
                for _ in range(turns):
                    mask = mask & ~condition.evaluate(values)
                    store(values, name, values[name] + values["shared"][place], mask)
                    place = np.where(mask, place + 1 + (number.evaluate(values) & 1), place)

            lines = ["{", f"    threadgroup uint* f = shared + ({value.text} & 31u);"]
            lines += [f"    for (int j = 0; j < {turns}; j++) {{", f"        if ({condition.text}) break;"]
            lines += [f"        {name} += *f++;", f"        f += {number.text} & 1u;", "    }", "}"]
            return Statement(lines, add)
        place = (len(self.numbers) + len(self.truths) + 1) * LANES

        def write(values: Values, mask: np.ndarray) -> None:
            chosen, new = condition.evaluate(values), value.evaluate(values)
            store(values, "y0", new, mask & ~chosen)
            store(values, "y1", new, mask & chosen)
            store(values, "y2", number.evaluate(values), mask & chosen)

        lines = ["{", f"    device uint* f = y + i + {place};", f"    if ({condition.text}) {{"]
        lines += [f"        f += {LANES};", f"        f[{LANES}] = {number.text};", "    }"]
        lines += [f"    *f = {value.text};", "}"]
        return Statement(lines, write)

    def _exchange(self) -> Statement:
        pick = self._random
        if self._has_simdgroups or self._returns or pick.random() < 0.6:
            return super()._exchange()
        shift, value = pick.randrange(1, 32), self._number(1)

        def rotate(values: Values, mask: np.ndarray) -> None:
            given = values["v.m"] + value.evaluate(values)
            for each in _MEMBERS:
                source = given if each == "v.m" else values[each]
                store(values, each, source[(np.arange(LANES) + shift) % LANES], mask)

        barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
        lines = [barrier, "kept[l] = v;", f"kept[l].m += {value.text};", barrier]
        return Statement([*lines, f"v = kept[(l + {shift}) % {LANES}];"], rotate)


class WaitingChoicesProgram(ChoicesProgram, WaitingProgram):
    """A kernel whose threads wait for each other wherever some of them come; they read what others wrote there only."""

    kind = "waiting_choices"

    def _number(self, depth: int) -> Expression:
        while "shared" in (found := super()._number(depth)).text:
            pass
        return found

    def _truth(self, depth: int) -> Expression:
        while "shared" in (found := super()._truth(depth)).text:
            pass
        return found

    def _lambda(self) -> Statement:
        return self._compound()

    def _walk_through_memory(self) -> Statement:
        return self._walk_through_array()

    def _exchange(self) -> Statement:
        return WaitingProgram._exchange(self)
