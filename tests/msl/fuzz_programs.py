"""Random programs of expressions and statements, as Metal source and as what they compute."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import fuzz_values as values
import metal_oracles as oracles
import numpy as np
from fuzz_values import Type, Value

LANES = 64
INTEGERS = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")
_SIGNS = {"char": "uchar", "short": "ushort", "int": "uint", "long": "ulong"}
_OTHER_SIGN = _SIGNS | {unsigned: signed for signed, unsigned in _SIGNS.items()}

Environment = dict[str, Value]


@dataclass(frozen=True)
class Expression:
    """``text`` in Metal, whose value for each lane ``evaluate`` gives."""

    type: Type
    text: str
    evaluate: Callable[[Environment], Value]


@dataclass(frozen=True)
class Statement:
    """Lines of Metal, what they do to the variables, and the variables that they declare, assign and read."""

    lines: Sequence[str]
    run: Callable[[Environment], None]
    declares: str | None = None


@dataclass
class Program:
    """A kernel: its inputs are variables, its statements change them and declare more, its results are all of them."""

    name: str
    inputs: dict[str, Type]
    helpers: list[str] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    variables: dict[str, Type] = field(default_factory=dict)

    def shortened(self, count: int) -> Program:
        """The same program with its first ``count`` statements only."""
        kept = self.statements[:count]
        dropped = {each.declares for each in self.statements[count:]}
        names = {name: kind for name, kind in self.variables.items() if name not in dropped}
        return Program(self.name, self.inputs, self.helpers, kept, names)

    def source(self) -> str:
        """The kernel: ``whole`` and ``real`` have each input's components one after the other, then lanes."""
        lines = [*self.helpers]
        lines.append(
            f"kernel void {self.name}(device const long* whole, device const float* real, device long* wholes,"
            " device float* reals, uint lane [[thread_position_in_grid]])\n{"
        )
        places = {"whole": 0, "real": 0}
        for name, kind in self.inputs.items():
            buffer = "real" if kind.is_float else "whole"
            parts = []
            for _ in range(kind.width):
                loaded = f"{buffer}[{places[buffer]} * {LANES} + lane]"
                parts.append(f"{loaded} != 0" if kind.is_bool else f"{kind.base}({loaded})")
                places[buffer] += 1
            joined = ", ".join(parts)
            lines.append(f"    {kind} {name} = {joined if kind.width == 1 else f'{kind}({joined})'};")
        for statement in self.statements:
            lines += [f"    {line}" for line in statement.lines]
        places = {"wholes": 0, "reals": 0}
        for name, kind in self.variables.items():
            buffer = "reals" if kind.is_float else "wholes"
            for k in range(kind.width):
                component = name if kind.width == 1 else f"{name}.{'xyzw'[k]}"
                stored = f"{'float' if kind.is_float else 'long'}({component})"
                if kind.is_bool:
                    stored = f"({component} ? 1 : 0)"
                lines.append(f"    {buffer}[{places[buffer]} * {LANES} + lane] = {stored};")
                places[buffer] += 1
        return "\n".join([*lines, "}\n"])

    def arguments(self) -> list[np.ndarray]:
        """The inputs of ``LANES`` lanes, and room for the results."""
        generator = np.random.default_rng(sum(map(ord, self.name)))
        whole = [np.zeros((0, LANES), np.int64)]
        real = [np.zeros((0, LANES), np.float32)]
        for kind in self.inputs.values():
            shape = (kind.width, LANES)
            if kind.is_float:
                scale = 2.0 ** generator.integers(-5, 6, shape)
                real.append((generator.normal(size=shape) * scale).astype(np.float16).astype(np.float32))
            elif kind.is_bool:
                whole.append(generator.integers(0, 2, shape))
            else:
                whole.append(_integers(kind.base, shape, generator))
        count = {True: 0, False: 0}
        for kind in self.variables.values():
            count[kind.is_float] += kind.width
        return [
            np.concatenate(whole), np.concatenate(real),
            np.zeros((max(count[False], 1), LANES), np.int64), np.zeros((max(count[True], 1), LANES), np.float32),
        ]  # fmt: skip

    def expected(self, whole: np.ndarray, real: np.ndarray) -> Environment:
        """What the variables are at the end."""
        environment: Environment = {}
        places = {True: 0, False: 0}
        for name, kind in self.inputs.items():
            first = places[kind.is_float]
            data = (real if kind.is_float else whole)[first : first + kind.width]
            if kind.is_integer:
                data = data.astype(object)
                data = np.frompyfunc(oracles.integer_type(kind.base).wrap, 1, 1)(data)
            environment[name] = values.exact(kind, data != 0 if kind.is_bool else data)
            places[kind.is_float] += kind.width
        for statement in self.statements:
            statement.run(environment)
        return environment

    def mistake(self, arrays: Sequence[np.ndarray]) -> str:
        """What the first wrong variable of ``arrays``, as the kernel left them, is and should be; empty if none."""
        environment = self.expected(arrays[0], arrays[1])
        places = {True: 0, False: 0}
        for name, kind in self.variables.items():
            first = places[kind.is_float]
            got = arrays[3 if kind.is_float else 2][first : first + kind.width]
            places[kind.is_float] += kind.width
            value = environment[name]
            if kind.base == "ulong":
                got = got.view(np.uint64)
            wrong = ~values.agrees(value, got)
            if wrong.any():
                component, lane = np.argwhere(wrong)[0]
                given = ", ".join(f"{n} = {environment_value(v, lane)}" for n, v in self._inputs(arrays).items())
                exact = value.data[component, lane]
                return (
                    f"{name}.{'xyzw'[component]} is {got[component, lane]} but should be {exact}"
                    f" (within {value.error[component, lane]:.3g}) where {given}"
                )
        return ""

    def _inputs(self, arrays: Sequence[np.ndarray]) -> Environment:
        return Program(self.name, self.inputs).expected(arrays[0], arrays[1])


def environment_value(value: Value, lane: int) -> str:
    return "(" + ", ".join(str(component) for component in value.data[:, lane]) + ")"


def _integers(base: str, shape: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    kind = oracles.integer_type(base)
    whole = generator.integers(-(2**63), 2**63 - 1, shape)
    small = generator.integers(-9 if kind.signed else 0, 30, shape)
    extreme = generator.choice(np.array([0, 1, kind.high, kind.high - 1, kind.low, kind.low + 1], object), shape)
    extreme = np.frompyfunc(lambda x: x - (1 << 64) if x >> 63 == 1 else x, 1, 1)(extreme).astype(np.int64)
    pick = generator.integers(0, 10, shape)
    middle = whole >> (64 - kind.bits // 2)
    return np.select([pick < 4, pick < 7, pick < 9], [small, middle, whole], extreme)


# The library's functions: what makes the text and the value of a call.


@dataclass(frozen=True)
class Call:
    """A function of ``arguments`` values of one type. ``template`` has their places."""

    template: str
    arguments: int
    evaluate: Callable[..., Value]
    widths: tuple[int, ...] = (1, 2, 3, 4)


def _plain(name: str, arguments: int, function: Callable[..., int]) -> Call:
    places = ", ".join(f"{{{k}}}" for k in range(arguments))
    return Call(f"{name}({places})", arguments, lambda *v: values.apply_integer(function, *v))


def _bits_2_to_6(kind: oracles.IntegerType, x: int) -> int:
    return oracles.extract_bits(kind, x, 2, 5)


_INTEGER_CALLS = [
    _plain("min", 2, lambda t, x, y: min(x, y)),
    _plain("max", 2, lambda t, x, y: max(x, y)),
    _plain("abs", 1, lambda t, x: abs(x)),
    _plain("addsat", 2, lambda t, x, y: t.saturate(x + y)),
    _plain("subsat", 2, lambda t, x, y: t.saturate(x - y)),
    _plain("mulhi", 2, lambda t, x, y: x * y >> t.bits),
    _plain("hadd", 2, lambda t, x, y: (x + y) >> 1),
    _plain("rhadd", 2, lambda t, x, y: (x + y + 1) >> 1),
    _plain("popcount", 1, lambda t, x: t.raw(x).bit_count()),
    _plain("clz", 1, oracles.count_leading_zeros),
    _plain("ctz", 1, oracles.count_trailing_zeros),
    _plain("reverse_bits", 1, oracles.reverse_bits),
    _plain("rotate", 2, oracles.rotate),
    _plain("min3", 3, lambda t, x, y, z: min(x, y, z)),
    _plain("max3", 3, lambda t, x, y, z: max(x, y, z)),
    _plain("median3", 3, lambda t, x, y, z: sorted((x, y, z))[1]),
    _plain("madsat", 3, lambda t, x, y, z: t.saturate(x * y + z)),
    Call("extract_bits({0}, 2, 5)", 1, lambda v: values.apply_integer(_bits_2_to_6, v)),
    Call("clamp({0}, {T}(3), {T}(77))", 1, lambda v: values.apply_integer(lambda t, x: min(max(x, 3), 77), v)),
]


def _smooth(template: str, arguments: int, function: Callable[..., np.ndarray], units: float = 4.0) -> Call:
    return Call(template, arguments, lambda *v: values.apply_float(function, units, *v))


def _step(template: str, function: Callable[..., np.ndarray]) -> Call:
    return Call(template, 1, lambda v: values.apply_step(function, v))


def _dot(left: Value, right: Value) -> Value:
    total = values.binary("*", left.component(0), right.component(0))
    for k in range(1, left.type.width):
        total = values.binary("+", total, values.binary("*", left.component(k), right.component(k)))
    return total


_FLOAT_CALLS = [
    _smooth("fabs({0})", 1, np.abs, 0),
    _smooth("abs({0})", 1, np.abs, 0),
    _smooth("min({0}, {1})", 2, np.minimum, 0),
    _smooth("max({0}, {1})", 2, np.maximum, 0),
    _smooth("fmin({0}, {1})", 2, np.minimum, 0),
    _smooth("fmax({0}, {1})", 2, np.maximum, 0),
    _smooth("clamp({0}, {T}(-1.5), {T}(2))", 1, lambda x: np.clip(x, -1.5, 2), 0),
    _smooth("saturate({0})", 1, lambda x: np.clip(x, 0, 1), 0),
    _smooth("sqrt(fabs({0}))", 1, lambda x: np.sqrt(np.abs(x))),
    _smooth("rsqrt(fabs({0}) + {T}(0.25))", 1, lambda x: 1 / np.sqrt(np.abs(x) + 0.25), 8),
    _smooth("exp(clamp({0}, {T}(-3), {T}(3)))", 1, lambda x: np.exp(np.clip(x, -3, 3))),
    _smooth("exp2(clamp({0}, {T}(-3), {T}(3)))", 1, lambda x: np.exp2(np.clip(x, -3, 3))),
    _smooth("tanh({0})", 1, np.tanh, 6),
    _smooth("atan({0})", 1, np.arctan, 6),
    _smooth("sin(clamp({0}, {T}(-1.5), {T}(1.5)))", 1, lambda x: np.sin(np.clip(x, -1.5, 1.5))),
    _smooth("smoothstep({T}(0), {T}(1), {0})", 1, lambda x: np.clip(x, 0, 1) ** 2 * (3 - 2 * np.clip(x, 0, 1)), 8),
    Call("fma({0}, {1}, {2})", 3, lambda x, y, z: values.binary("+", values.binary("*", x, y), z)),
    Call("mix({0}, {1}, {T}(0.25))", 2, lambda x, y: values.binary(
        "+", x, values.binary("*", values.binary("-", y, x), _same(x, 0.25)))),
    Call("divide({0}, {1})", 2, lambda x, y: values.binary("/", x, y)),
    _step("floor({0})", np.floor),
    _step("ceil({0})", np.ceil),
    _step("trunc({0})", np.trunc),
    _step("rint({0})", np.rint),
    _step("round({0})", oracles.round_half_away),
    _step("sign({0})", np.sign),
    _step("step({T}(0.5), {0})", lambda x: np.where(x < 0.5, 0.0, 1.0)),
]  # fmt: skip
_REDUCTIONS = [
    Call("dot({0}, {1})", 2, _dot, (2, 3, 4)),
    Call("length_squared({0})", 1, lambda v: _dot(v, v), (2, 3, 4)),
]


def _same(value: Value, number: float) -> Value:
    return values.exact(value.type, np.full(value.data.shape, number))


class Generator:
    """Makes one random program; equal seeds make equal ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._program = Program(f"program_{seed}", {})
        self._scope: dict[str, Type] = {}
        self._reserved: set[str] = set()
        self._count = 0

    def program(self) -> Program:
        program, pick = self._program, self._random
        for _ in range(pick.randint(3, 6)):
            name = self._name("in")
            program.inputs[name] = self._scope[name] = self._any_type()
        program.variables.update(program.inputs)
        for _ in range(pick.randint(4, 9)):
            statement = self._statement(2)
            program.statements.append(statement)
            if statement.declares is not None:
                program.variables[statement.declares] = self._scope[statement.declares]
        return program

    # Types and names.

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _any_type(self) -> Type:
        pick = self._random
        base = pick.choice((*INTEGERS, "int", "uint", "float", "float", "float", "half", "half", "bool"))
        return Type(base, pick.choice((1, 1, 2, 3, 4)))

    # Statements.

    def _statement(self, depth: int) -> Statement:
        pick = self._random.random()
        if pick < 0.5 or not self._scope:
            return self._declaration()
        if pick < 0.8 or depth == 0:
            return self._assignment()
        return self._branch(depth) if pick < 0.9 else self._loop(depth)

    def _declaration(self) -> Statement:
        kind = self._any_type()
        expression = self._expression(kind, 3)
        name = self._name("v")
        self._scope[name] = kind

        def run(environment: Environment) -> None:
            environment[name] = expression.evaluate(environment)

        return Statement([f"{kind} {name} = {expression.text};"], run, name)

    def _assignment(self) -> Statement:
        pick = self._random
        candidates = [name for name in self._scope if name not in self._reserved]
        name = pick.choice(candidates)
        kind = self._scope[name]
        places = list(range(kind.width))
        target, part = name, kind
        if kind.width > 1 and pick.random() < 0.6:
            places = pick.sample(places, pick.randint(1, kind.width))
            part = Type(kind.base, len(places))
            letters = pick.choice(("xyzw", "rgba"))
            target = f"{name}.{''.join(letters[k] for k in places)}"
            if len(places) == 1 and pick.random() < 0.3:
                target = f"{name}[{places[0]}]"
        operator = "="
        if not kind.is_bool and pick.random() < 0.6:
            operator = pick.choice(("+=", "-=", "*=") if kind.is_float else ("+=", "-=", "*=", "&=", "|=", "^="))
        right_type = part
        if operator != "=" and part.width > 1 and pick.random() < 0.4:
            right_type = part.element
        right = self._expression(right_type, 2)

        def run(environment: Environment) -> None:
            old = environment[name]
            value = right.evaluate(environment)
            if operator != "=":
                value = values.convert(values.binary(operator[0], old.component(*places), value), kind.base)
            value = value.widened(part.width)
            environment[name] = old.replaced(places, value)

        return Statement([f"{target} {operator} {right.text};"], run)

    def _block(self, depth: int) -> list[Statement]:
        """Statements whose declarations nobody sees outside."""
        outer = dict(self._scope)
        inner = [self._statement(depth - 1) for _ in range(self._random.randint(1, 3))]
        self._scope = outer
        return inner

    def _branch(self, depth: int) -> Statement:
        condition = self._expression(Type("bool"), 2)
        yes, no = self._block(depth), self._block(depth) if self._random.random() < 0.6 else []

        def run(environment: Environment) -> None:
            truth = condition.evaluate(environment)
            ends = []
            for block in (yes, no):
                branch = dict(environment)
                for each in block:
                    each.run(branch)
                ends.append(branch)
            for name, before in environment.items():
                if ends[0][name] is not before or ends[1][name] is not before:
                    environment[name] = values.choose(truth, ends[0][name], ends[1][name])

        lines = [f"if ({condition.text}) {{", *_indented(yes), "}"]
        if no:
            lines += ["else {", *_indented(no), "}"]
        return Statement(lines, run)

    def _loop(self, depth: int) -> Statement:
        name, count = self._name("k"), self._random.randint(2, 4)
        outer = dict(self._scope)
        self._scope[name] = Type("int")
        self._reserved.add(name)
        body = self._block(depth)
        self._scope = outer

        def run(environment: Environment) -> None:
            outside = set(environment)
            for k in range(count):
                environment[name] = values.exact(Type("int"), np.full((1, LANES), k))
                for each in body:
                    each.run(environment)
            for each in set(environment) - outside:
                del environment[each]

        head = f"for (int {name} = 0; {name} < {count}; {name}++) {{"
        return Statement([head, *_indented(body), "}"], run)

    # Expressions.

    def _expression(self, kind: Type, depth: int) -> Expression:
        """An expression whose type is exactly ``kind``."""
        pick = self._random
        if depth == 0 or pick.random() < 0.12:
            return self._leaf(kind)
        makers = [self._conversion, self._ternary, self._selection, self._leaf, self._helper]
        if kind.is_bool:
            makers = [self._comparison, self._comparison, self._logic, self._selection, self._leaf]
            if kind.width == 1:
                makers += [self._reduction_of_truth, self._reduction_of_truth]
        else:
            makers += [self._call, self._call, self._arithmetic, self._arithmetic, self._arithmetic, self._negation]
            if kind.base in _OTHER_SIGN:
                makers.append(self._reinterpretation)
            if kind.is_integer:
                makers.append(self._shift)
            if kind.width == 1 and kind.is_float:
                makers.append(self._vector_reduction)
        if kind.width > 1:
            makers += [self._constructor, self._constructor, self._swizzle]
        else:
            makers.append(self._component)
        return pick.choice(makers)(kind, depth)

    def _leaf(self, kind: Type, depth: int = 0) -> Expression:
        names = [name for name, have in self._scope.items() if have == kind]
        if names and self._random.random() < 0.8:
            name = self._random.choice(names)
            return Expression(kind, name, lambda environment: environment[name])
        return self._literal(kind)

    def _literal(self, kind: Type) -> Expression:
        pick = self._random
        if kind.width > 1:
            parts = [self._literal(kind.element) for _ in range(kind.width if pick.random() < 0.5 else 1)]
            text = f"{kind}({', '.join(part.text for part in parts)})"
            if len(parts) == 1:
                return Expression(kind, text, lambda environment: parts[0].evaluate(environment).widened(kind.width))
            return Expression(kind, text, lambda e: values.joined(kind, [part.evaluate(e) for part in parts]))
        number: float | int | bool
        if kind.is_bool:
            number = pick.random() < 0.5
            text = str(number).lower()
        elif kind.is_float:
            number = pick.choice((0.5, 1.0, -2.0, 0.125, 3.0, 10.0, -0.75, 1.5))
            text = f"{number}h" if kind.base == "half" else pick.choice((f"{number}", f"{number}f"))
        else:
            bounds = oracles.integer_type(kind.base)
            negative = (-1, -5) if bounds.signed else ()
            number = pick.choice((0, 1, 2, 3, 7, 31, 100, bounds.high, bounds.high // 3, *negative))
            text = {"int": f"{number}", "uint": f"{number}u", "long": f"{number}L", "ulong": f"{number}UL"}.get(
                kind.base, f"{kind.base}({number})"
            )
        if text.startswith("-"):
            text = f"({text})"
        return Expression(kind, text, lambda environment: values.exact(kind, np.full((1, LANES), number, object)))

    def _conversion(self, kind: Type, depth: int) -> Expression:
        base = self._random.choice([each for each in (*INTEGERS, "half", "float", "bool") if each != kind.base])
        inner = self._expression(kind.of(base), depth - 1)
        forms = [f"{kind}({inner.text})", f"({kind})({inner.text})", f"static_cast<{kind}>({inner.text})"]
        if base == "bool" and kind.width > 1:
            forms = forms[:1]
        text = self._random.choice(forms)
        return Expression(kind, text, lambda environment: values.convert(inner.evaluate(environment), kind.base))

    def _reinterpretation(self, kind: Type, depth: int) -> Expression:
        inner = self._expression(kind.of(_OTHER_SIGN[kind.base]), depth - 1)
        text = f"as_type<{kind}>({inner.text})"
        return Expression(kind, text, lambda environment: values.convert(inner.evaluate(environment), kind.base))

    def _ternary(self, kind: Type, depth: int) -> Expression:
        condition = self._expression(Type("bool"), depth - 1)
        yes, no = self._expression(kind, depth - 1), self._expression(kind, depth - 1)
        text = f"({condition.text} ? {yes.text} : {no.text})"
        return Expression(
            kind, text, lambda e: values.choose(condition.evaluate(e), yes.evaluate(e), no.evaluate(e))
        )

    def _selection(self, kind: Type, depth: int) -> Expression:
        if kind == Type("bool"):
            return self._ternary(kind, depth)
        no, yes = self._expression(kind, depth - 1), self._expression(kind, depth - 1)
        condition = self._expression(kind.of("bool"), depth - 1)
        text = f"select({no.text}, {yes.text}, {condition.text})"
        return Expression(
            kind, text, lambda e: values.choose(condition.evaluate(e), yes.evaluate(e), no.evaluate(e))
        )

    def _operands(self, kind: Type, depth: int) -> tuple[Expression, Expression] | None:
        """Two operands that Metal computes with in ``kind``; None if there are no such."""
        pick = self._random
        if kind.width > 1:
            one = self._expression(kind, depth - 1)
            if pick.random() < 0.35:
                bases = INTEGERS if kind.is_integer else (kind.base, "int", "half", "float")
                other = self._expression(Type(pick.choice(bases)), depth - 1)
            else:
                other = self._expression(kind, depth - 1)
            return (one, other) if pick.random() < 0.5 else (other, one)
        if kind.base in ("char", "uchar", "short", "ushort"):
            return None
        bases = (*INTEGERS, "bool") if kind.is_integer else (*INTEGERS, "half", "float")
        pairs = [
            (a, b) for a in bases for b in bases if values.arithmetic_type(Type(a), Type(b)) == kind
        ]  # fmt: skip
        a, b = pick.choice(pairs) if pick.random() < 0.5 else (kind.base, kind.base)
        return self._expression(Type(a), depth - 1), self._expression(Type(b), depth - 1)

    def _arithmetic(self, kind: Type, depth: int) -> Expression:
        pair = self._operands(kind, depth)
        if pair is None:
            return self._conversion(kind, depth)
        left, right = pair
        operators = ("+", "-", "*", "/") if kind.is_float else ("+", "-", "*", "/", "%", "&", "|", "^")
        operator = self._random.choice(operators)
        if operator in "/%" and kind.is_integer:
            right = self._divisor(right)
        text = f"({left.text} {operator} {right.text})"
        return Expression(kind, text, lambda e: values.binary(operator, left.evaluate(e), right.evaluate(e)))

    def _divisor(self, number: Expression) -> Expression:
        """``number`` as one that is neither 0 nor -1: dividing by these, a compiler may do anything."""
        one, mask = (values.exact(number.type.element, np.full((1, LANES), n, object)) for n in (1, 15))
        if number.type.is_bool:
            return Expression(number.type, "true", lambda e: values.exact(number.type, np.full((1, LANES), True)))
        kind = values.promoted(number.type)
        text = f"(({number.text} & {number.type.base}(15)) | {number.type.base}(1))"
        return Expression(
            kind, text, lambda e: values.binary("|", values.binary("&", number.evaluate(e), mask), one)
        )

    def _shift(self, kind: Type, depth: int) -> Expression:
        if kind.width == 1 and kind.base in ("char", "uchar", "short", "ushort"):
            return self._conversion(kind, depth)
        left = self._expression(kind, depth - 1)
        right = self._expression(kind, depth - 1) if self._random.random() < 0.5 else self._literal(kind)
        operator = self._random.choice(("<<", ">>"))
        text = f"({left.text} {operator} {right.text})"
        return Expression(kind, text, lambda e: values.binary(operator, left.evaluate(e), right.evaluate(e)))

    def _negation(self, kind: Type, depth: int) -> Expression:
        if values.promoted(kind) != kind:
            return self._conversion(kind, depth)
        inner = self._expression(kind, depth - 1)
        operator = self._random.choice("-" if kind.is_float else "-~")
        return Expression(kind, f"({operator}{inner.text})", lambda e: values.negate(operator, inner.evaluate(e)))

    def _comparison(self, kind: Type, depth: int) -> Expression:
        pick = self._random
        base = pick.choice((*INTEGERS, "half", "float"))
        left = self._expression(kind.of(base), depth - 1)
        if pick.random() < 0.3 and kind.width > 1:
            right = self._expression(Type(pick.choice((base, "int" if left.type.is_integer else "float"))), depth - 1)
        else:
            right = self._expression(kind.of(base), depth - 1)
        operator = pick.choice(("<", ">", "<=", ">=", "==", "!="))
        text = f"({left.text} {operator} {right.text})"
        return Expression(kind, text, lambda e: values.compare(operator, left.evaluate(e), right.evaluate(e)))

    def _logic(self, kind: Type, depth: int) -> Expression:
        left = self._expression(kind, depth - 1)
        if self._random.random() < 0.3:
            return Expression(kind, f"(!{left.text})", lambda e: values.negate("!", left.evaluate(e)))
        right = self._expression(kind, depth - 1)
        operator = self._random.choice(("&&", "||") if kind.width == 1 else ("&", "|", "^", "&&", "||"))
        text = f"({left.text} {operator} {right.text})"
        return Expression(kind, text, lambda e: values.logical(operator, left.evaluate(e), right.evaluate(e)))

    def _reduction_of_truth(self, kind: Type, depth: int) -> Expression:
        name = self._random.choice(("any", "all"))
        inner = self._expression(Type("bool", self._random.randint(2, 4)), depth - 1)
        return Expression(kind, f"{name}({inner.text})", lambda e: values.reduce_truth(name, inner.evaluate(e)))

    def _call(self, kind: Type, depth: int) -> Expression:
        call = self._random.choice(_INTEGER_CALLS if kind.is_integer else _FLOAT_CALLS)
        return self._called(call, kind, kind, depth)

    def _vector_reduction(self, kind: Type, depth: int) -> Expression:
        call = self._random.choice(_REDUCTIONS)
        return self._called(call, Type(kind.base, self._random.choice(call.widths)), kind, depth)

    def _called(self, call: Call, argument: Type, result: Type, depth: int) -> Expression:
        parts = [self._expression(argument, depth - 1) for _ in range(call.arguments)]
        text = call.template.format(*(part.text for part in parts), T=argument)
        return Expression(result, text, lambda e: call.evaluate(*(part.evaluate(e) for part in parts)))

    def _helper(self, kind: Type, depth: int) -> Expression:
        """A call of a function of its own, whose body sees its parameters only."""
        pick = self._random
        outer, reserved = self._scope, self._reserved
        parameters = {self._name("p"): pick.choice((kind, self._any_type())) for _ in range(pick.randint(1, 2))}
        name = self._name(f"{self._program.name}_function")
        self._scope, self._reserved = dict(parameters), set()
        body = self._expression(kind, depth - 1)
        self._scope, self._reserved = outer, reserved
        declared = ", ".join(f"{have} {parameter}" for parameter, have in parameters.items())
        self._program.helpers.append(f"{kind} {name}({declared}) {{ return {body.text}; }}")
        arguments = [self._expression(have, depth - 1) for have in parameters.values()]

        def evaluate(environment: Environment) -> Value:
            given = [argument.evaluate(environment) for argument in arguments]
            return body.evaluate(dict(zip(parameters, given, strict=True)))

        return Expression(kind, f"{name}({', '.join(a.text for a in arguments)})", evaluate)

    def _constructor(self, kind: Type, depth: int) -> Expression:
        pick = self._random
        parts: list[Expression] = []
        while (have := sum(part.type.width for part in parts)) < kind.width:
            width = min(pick.choice((1, 1, 2, 3)), kind.width - have)
            # Only scalars convert on their way into a vector.
            is_kept = width > 1 or kind.is_bool or pick.random() < 0.5
            base = kind.base if is_kept else pick.choice((*INTEGERS, "float", "half"))
            parts.append(self._expression(Type(base, width), depth - 1))
        if len(parts) == 1:
            return self._leaf(kind)
        text = f"{kind}({', '.join(part.text for part in parts)})"
        return Expression(kind, text, lambda e: values.joined(kind, [part.evaluate(e) for part in parts]))

    def _swizzle(self, kind: Type, depth: int) -> Expression:
        pick = self._random
        inner = self._expression(Type(kind.base, pick.randint(2, 4)), depth - 1)
        places = [pick.randrange(inner.type.width) for _ in range(kind.width)]
        letters = pick.choice(("xyzw", "rgba"))
        text = f"{_bracketed(inner)}.{''.join(letters[k] for k in places)}"
        return Expression(kind, text, lambda e: inner.evaluate(e).component(*places))

    def _component(self, kind: Type, depth: int) -> Expression:
        pick = self._random
        inner = self._expression(Type(kind.base, pick.randint(2, 4)), depth - 1)
        place = pick.randrange(inner.type.width)
        suffix = pick.choice((f".{'xyzw'[place]}", f".{'rgba'[place]}", f"[{place}]"))
        return Expression(kind, f"{_bracketed(inner)}{suffix}", lambda e: inner.evaluate(e).component(place))


def _bracketed(expression: Expression) -> str:
    return expression.text if expression.text.isidentifier() else f"({expression.text})"


def _indented(statements: Sequence[Statement]) -> list[str]:
    return [f"    {line}" for statement in statements for line in statement.lines]
