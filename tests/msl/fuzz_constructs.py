"""Random programs of control flow with more of the language's constructs.

Lambda expressions, member functions, templates, functions that call others, references and pointers to elements,
arrays in structs, packed vectors, signed narrow integers, assignments that compute, divisions and shifts, conditions
that all threads agree about, loops whose bodies count on their counters, threadgroup memory at any index, and barriers
in the conditions of loops.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from fuzz_flow import NUMBERS, FlowProgram, nobody, run_block, store
from fuzz_parts import LANES, ROLLED, Expression, Statement, Values, indented

_OPERATORS: tuple[tuple[str, Callable[..., np.ndarray]], ...] = (
    ("+", np.add), ("-", np.subtract), ("*", np.multiply), ("&", np.bitwise_and), ("|", np.bitwise_or),
    ("^", np.bitwise_xor),
)  # fmt: skip
_ELEMENTS = {"r": 3, "v.k": 2, "e": 2, "z": 4}
_NAMES = {"e": ("e.x", "e.y"), "z": ("z.x", "z.y", "z.z", "z.w")}


def _element_names(array: str) -> tuple[str, ...]:
    return _NAMES.get(array) or tuple(f"{array}[{k}]" for k in range(_ELEMENTS[array]))


class ConstructProgram(FlowProgram):
    """A kernel made from ``seed``, with its functions."""

    kind = "constructs"
    numbers = (*NUMBERS, "h", "g", "v.k[0]", "v.k[1]", "e.x", "e.y")
    members = " uint k[2]; uint step(uint n) { m += n; if (m & 1) { k[0] += n; return k[1]; } return m; }"
    more = (
        "short h = short(a); char g = char(b); packed_uint2 e = packed_uint2(uint2(b, a)); v.k[0] = c; v.k[1] = i;"
        " threadgroup_barrier(mem_flags::mem_threadgroup);"
    )

    def __init__(self, seed: int) -> None:
        self._counters: list[str] = []
        super().__init__(seed)

    def _more_values(self, values: Values) -> Values:
        found = {"h": values["a"], "g": values["b"], "v.k[0]": values["c"], "v.k[1]": values["d"]}
        found |= {"e.x": values["b"], "e.y": values["a"]}
        for name in ("h", "g"):
            store(found, name, found[name], ~nobody())
        return found

    def source(self) -> str:
        swap = f"uint {self.name}_swap(uint n, threadgroup uint* shared, uint l) {{\n"
        barrier = "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        swap += f"{barrier}    shared[l] = n;\n{barrier}    return shared[(l + 5) % {LANES}];\n}}\n"
        return swap + super().source()

    def _function_name(self, index: int) -> str:
        name = super()._function_name(index)
        return f"{name}<uint, {index + 2}>" if self._random.random() < 0.5 else name

    def _head(self, name: str) -> list[str]:
        plain, template, _ = name.partition("<")
        return [*(["template <typename T, uint N>"] if template else []), *super()._head(plain)]

    def _at_top(self) -> Statement:
        if self._random.random() < 0.12 and not self._returns and not self._has_simdgroups:
            return self._waiting_loop()
        return super()._at_top()

    def _waiting_loop(self) -> Statement:
        """Threads give each other numbers in the condition of a loop."""
        self._loops += 1
        name, (target, other) = f"k{self._loops}", self._random.sample(("a", "b", "c", "d"), 2)
        body = self._compound()

        def run(values: Values, mask: np.ndarray) -> None:
            for turn in range(4):
                store(values, "shared", values[other], mask)
                store(values, target, values["shared"][(np.arange(LANES) + 5) % LANES], mask)
                if turn < 3:
                    body.run(values, mask)

        head = f"int {name} = 0; ({target} = {self.name}_swap({other}, shared, l), {name} < 3); {name}++"
        return Statement([f"for ({head}) {{", *indented([body]), "}"], run)

    # Expressions.

    def _number(self, depth: int) -> Expression:
        pick = self._random
        kind = pick.random()
        if self._counters and kind < 0.12:
            name = pick.choice(self._counters)
            return Expression(f"uint({name})", lambda v: v[name])
        if depth == 0 or kind > 0.36:
            return super()._number(depth)
        x, y = self._number(depth - 1), self._number(depth - 1)
        if kind < 0.16:
            return Expression(f"({x.text} / ({y.text} | 1u))", lambda v: x.evaluate(v) // (y.evaluate(v) | 1))
        if kind < 0.2:
            text = f"({x.text} % (({y.text} & 7u) + 1u))"
            return Expression(text, lambda v: x.evaluate(v) % ((y.evaluate(v) & 7) + 1))
        if kind < 0.23:
            return Expression(f"({x.text} << ({y.text} & 31u))", lambda v: x.evaluate(v) << (y.evaluate(v) & 31))
        if kind < 0.26:
            return Expression(f"min({x.text}, {y.text})", lambda v: np.minimum(x.evaluate(v), y.evaluate(v)))
        if kind < 0.29:
            truth = self._truth(depth - 1)
            return Expression(
                f"select({x.text}, {y.text}, {truth.text})",
                lambda v: np.where(truth.evaluate(v), y.evaluate(v), x.evaluate(v)),
            )
        if self._in_function:
            return x
        if kind < 0.32:
            return Expression(f"shared[{x.text} & 63u]", lambda v: v["shared"][x.evaluate(v) & 63])
        array = pick.choice([*_ELEMENTS])
        count, names = _ELEMENTS[array], _element_names(array)
        return Expression(
            f"{array}[{x.text} % {count}u]",
            lambda v: np.choose((x.evaluate(v) % count).astype(int), [v[name] for name in names]).astype(np.uint32),
        )

    def _truth(self, depth: int) -> Expression:
        """Often one that all threads agree about."""
        pick = self._random
        kind, place = pick.random(), pick.randrange(3 * LANES)
        if kind < 0.2:
            return Expression(f"(x[{place}] > 7u)", lambda v: np.full(LANES, v["x"][place] > 7))
        if kind < 0.3:
            most = pick.randrange(2, 4)
            return Expression(f"(turns > {most})", lambda v: v["turns"] > most)
        return super()._truth(depth)

    # Statements.

    def _assignment(self) -> Statement:
        kind = self._random.random()
        if kind < 0.14:
            return self._compound()
        if self._in_function:
            return self._call() if kind < 0.2 and self._functions and not self._counters else super()._assignment()
        if kind < 0.2:
            return self._through_reference()
        if kind < 0.24:
            return self._of_any_element()
        if kind < 0.28:
            return self._step()
        if kind < 0.33:
            return self._lambda()
        return self._chain() if kind < 0.36 else super()._assignment()

    def _compound(self) -> Statement:
        pick = self._random
        name, value = pick.choice(self._numbers), self._number(1)
        operator, compute = pick.choice(_OPERATORS)
        return Statement(
            [f"{name} {operator}= {value.text};"],
            lambda values, mask: store(values, name, compute(values[name], value.evaluate(values)), mask),
        )

    def _chain(self) -> Statement:
        first, second = self._random.sample(("a", "b", "c", "d"), 2)
        value = self._number(1)

        def run(values: Values, mask: np.ndarray) -> None:
            new = value.evaluate(values)
            store(values, second, new, mask)
            store(values, first, new, mask)

        return Statement([f"{first} = {second} = {value.text};"], run)

    def _through_reference(self) -> Statement:
        """An element is chosen once, and written twice."""
        pick = self._random
        array = pick.choice(("r", "v.k"))
        names, index, value, more = _element_names(array), self._number(1), self._number(1), self._number(1)
        is_pointer = pick.random() < 0.4

        def run(values: Values, mask: np.ndarray) -> None:
            chosen = index.evaluate(values) % len(names)
            for compute, each in ((np.add, value), (np.bitwise_xor, more)):
                new = each.evaluate(values)
                for place, name in enumerate(names):
                    store(values, name, compute(values[name], new), mask & (chosen == place))

        element = f"{array}[({index.text}) % {len(names)}u]"
        if is_pointer:
            lines = [f"thread uint* f = &{element};", f"*f += {value.text};", f"*f ^= {more.text};"]
        else:
            lines = [f"thread uint& f = {element};", f"f += {value.text};", f"f ^= {more.text};"]
        return Statement(["{", *(f"    {line}" for line in lines), "}"], run)

    def _of_any_element(self) -> Statement:
        array = self._random.choice([*_ELEMENTS])
        names, index, value = _element_names(array), self._number(1), self._number(1)

        def run(values: Values, mask: np.ndarray) -> None:
            chosen, new = index.evaluate(values) % len(names), value.evaluate(values)
            for place, name in enumerate(names):
                store(values, name, new, mask & (chosen == place))

        return Statement([f"{array}[({index.text}) % {len(names)}u] = {value.text};"], run)

    def _step(self) -> Statement:
        """A member function, which returns early."""
        name, value = self._random.choice(NUMBERS[:4]), self._number(1)

        def run(values: Values, mask: np.ndarray) -> None:
            number = value.evaluate(values)
            store(values, "v.m", values["v.m"] + number, mask)
            odd = (values["v.m"] & 1) == 1
            store(values, "v.k[0]", values["v.k[0]"] + number, mask & odd)
            store(values, name, np.where(odd, values["v.k[1]"], values["v.m"]), mask)

        return Statement([f"{name} = v.step({value.text});"], run)

    def _lambda(self) -> Statement:
        """A lambda expression with flow, called at once, and perhaps in a condition."""
        self._loops += 1
        function, name = f"f{self._loops}", self._random.choice(NUMBERS[:4])
        kept = self._in_function, self._breakable, self._loop_depth
        self._in_function, self._breakable, self._loop_depth = True, 0, 0
        body = [self._statement(1) for _ in range(self._random.randint(1, 2))]
        tail, value = self._number(1), self._number(1)
        self._in_function, self._breakable, self._loop_depth = kept
        is_condition = self._random.random() < 0.4

        def run(values: Values, mask: np.ndarray) -> None:
            number = value.evaluate(values)
            outer = {each: values[each] for each in ("returned", "broken", "continued", "result")}
            values |= {each: nobody() for each in ("returned", "broken", "continued")}
            run_block(body, values, mask)
            result = np.where(values["returned"], values["result"], tail.evaluate(values) + number)
            values |= outer
            if is_condition:
                store(values, name, values[name] + 1, mask & (result > 9))
            else:
                store(values, name, result, mask)

        called = f"{function}({value.text})"
        use = f"if ({called} > 9) {{ {name}++; }}" if is_condition else f"{name} = {called};"
        lines = [f"auto {function} = [&](uint n) {{", *indented(body), f"    return {tail.text} + n;", "};", use]
        return Statement(["{", *(line if line[0] == "#" else f"    {line}" for line in lines), "}"], run)

    def _body_that_reads(self, counter: str, depth: int) -> list[Statement]:
        """The body of a loop with this counter, which nothing behind the loop reads."""
        self._counters.append(counter)
        body = self._body_of_loop(depth)
        self._counters.remove(counter)
        self._asked = [each for each in self._asked if f"({counter})" not in each.text]
        return body

    def _loop(self, depth: int) -> Statement:
        """Half of the loops have counters that their bodies read, which begin or step as the threads say."""
        pick = self._random
        if pick.random() < 0.5:
            return super()._loop(depth)
        self._loops += 1
        name, kind, number = f"k{self._loops}", pick.random(), pick.choice(("a", "b", "d"))
        body = self._body_that_reads(name, depth)
        if kind < 0.4:
            head = f"uint {name} = 0; {name} < uint(turns); {name}++"
        elif kind < 0.7:
            head = f"uint {name} = {number} & 7; {name} > 0; {name}--"
        else:
            head = f"uint {name} = 0; {name} < 9; {name} += 1 + ({number} & 1)"

        def run(values: Values, mask: np.ndarray) -> None:
            begin = values[number] & 7 if 0.4 <= kind < 0.7 else np.zeros(LANES, np.uint32)
            values[name] = np.where(mask, begin, values.get(name, begin))
            outer = values["broken"], values["continued"]
            while True:
                counter = values[name]
                limit = values["turns"] if kind < 0.4 else 9
                mask = mask & (counter > 0 if 0.4 <= kind < 0.7 else counter < limit)
                if not mask.any():
                    break
                values["broken"], values["continued"] = nobody(), nobody()
                run_block(body, values, mask)
                mask = mask & ~values["broken"] & ~values["returned"]
                by = 1 if kind < 0.4 else np.uint32(0xFFFFFFFF) if kind < 0.7 else 1 + (values[number] & 1)
                values[name] = np.where(mask, values[name] + by, values[name]).astype(np.uint32)
            values["broken"], values["continued"] = outer

        mark = [ROLLED] if pick.random() < 0.5 else []
        return Statement([*mark, f"for ({head}) {{", *indented(body), "}"], run)
