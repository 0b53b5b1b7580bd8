"""Random programs of classes: constructors, conversions, operators, and members that are qualified by address spaces.

Objects lie in the thread's, the threadgroup's and the device's memory, in arrays and in other objects. They are copied,
chosen, made for a moment, handed to functions and templates by value, reference and pointer, and referred to by what
these give back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from fuzz_parts import LANES, Expression, ExpressionMaker, Statement, Values, indented

NUMBERS = ("a", "b", "c")
_BASES = {"uint": np.uint32, "ushort": np.uint16, "uchar": np.uint8, "short": np.int16, "char": np.int8}
_OPERATORS = (("+", np.add), ("-", np.subtract), ("^", np.bitwise_xor))
_ELSEWHERE = ("device", "threadgroup")
_WORDS = 16
"""Room for an object in memory that threads share."""

Leaves = Sequence[np.ndarray]


def _wrapped(base: str, number: np.ndarray) -> np.ndarray:
    """``uint(base(number))``."""
    return number.astype(np.uint32).astype(_BASES[base]).astype(np.uint32)


@dataclass(frozen=True)
class Object:
    """An expression for an object: its text, and the values of its members' members, in order."""

    text: str
    evaluate: Callable[[Values], Leaves]


@dataclass
class Kind:
    """A class: its members are ``v`` of ``base``, perhaps ``uint w[2]``, perhaps an object of another class."""

    name: str
    base: str
    is_template: bool
    has_array: bool
    inner: Kind | None
    factor: int
    operator: tuple[str, Callable[..., np.ndarray]]
    conversion: str
    lines: list[str] = field(default_factory=list)

    @property
    def type(self) -> str:
        return f"{self.name}<{self.base}>" if self.is_template else self.name

    @property
    def leaves(self) -> list[str]:
        own = ["v", *(["w[0]", "w[1]"] if self.has_array else [])]
        return own + ([f"m.{each}" for each in self.inner.leaves] if self.inner else [])

    def made(self, number: np.ndarray) -> Leaves:
        """What the constructor makes of a number."""
        found = [_wrapped(self.base, number)]
        if self.has_array:
            found += [number ^ np.uint32(self.factor), np.full(number.shape, 3, np.uint32)]
        return found + ([*self.inner.made(number + 1)] if self.inner else [])

    def key(self, one: Leaves) -> np.ndarray:
        total = one[0] * np.uint32(self.factor)
        if self.has_array:
            total = total + one[2]
        return total ^ self.inner.key(one[3 if self.has_array else 1 :]) if self.inner else total

    def set(self, one: Leaves, number: np.ndarray) -> Leaves:
        changed = [_wrapped(self.base, number), *one[1:]]
        if self.has_array:
            changed[1] = one[1] + one[0]
        return changed

    def joined(self, one: Leaves, other: Leaves) -> Leaves:
        return [_wrapped(self.base, self.operator[1](one[0], self.key(other))), *one[1:]]


class ClassProgram(ExpressionMaker):
    """A kernel made from ``seed``, with its classes."""

    def __init__(self, seed: int) -> None:
        self._random = pick = random.Random(seed)
        self.name = f"classes_{seed}"
        self._variables = 0
        self._kinds: list[Kind] = []
        for k in range(pick.randint(1, 3)):
            inner = pick.choice(self._kinds) if self._kinds and pick.random() < 0.6 else None
            kind = Kind(
                f"{self.name}_{k}", pick.choice([*_BASES]), pick.random() < 0.3, pick.random() < 0.5, inner,
                pick.randrange(1, 40), pick.choice(_OPERATORS), pick.choice(("uint", "ushort", "uchar")),
            )  # fmt: skip
            kind.lines = self._class(kind)
            self._kinds.append(kind)
        self._variables_of = {f"o{k}{letter}": kind for k, kind in enumerate(self._kinds) for letter in "pq"}
        self._objects = dict(self._variables_of)
        for name, kind in self._variables_of.items():
            while kind.inner is not None:
                name, kind = f"{name}.m", kind.inner
                self._objects[name] = kind
        self._statements = [self._statement(2) for _ in range(pick.randint(4, 8))]

    # The classes.

    def _qualified(self, head: str, body: str, is_const: bool) -> list[str]:
        """A member of objects of a thread only, or of those elsewhere, too, with a definition for each."""
        const = "const " if is_const else ""
        spaces = ["thread", *_ELSEWHERE, *(["constant"] if is_const else [])]
        return [f"    {head.replace('SPACE', each)} {const}{each} {{ {body} }}" for each in spaces]

    def _class(self, kind: Kind) -> list[str]:
        pick = self._random
        base, name, sign = ("E" if kind.is_template else kind.base), kind.name, kind.operator[0]
        inits = [f"v({base}(n))", *([f"w{{n ^ {kind.factor}u, 3u}}"] if kind.has_array else [])]
        inits += ["m(n + 1)"] if kind.inner else []
        total = f"uint(v) * {kind.factor}u" + (" + w[1]" if kind.has_array else "")
        total = f"({total}) ^ m.key()" if kind.inner else total
        explicit = pick.choice(("", "explicit "))
        const = pick.choice(("const", "const thread"))
        lines = ["template <typename E>"] if kind.is_template else []
        lines += [f"struct {name} {{", f"    {base} v;"]
        lines += ["    uint w[2];"] if kind.has_array else []
        lines += [f"    {kind.inner.type} m;"] if kind.inner else []
        lines.append(f"    {name}() = default;")
        lines.append(f"    {pick.choice(('', 'explicit '))}{name}(uint n) : {', '.join(inits)} {{}}")
        lines += self._qualified("uint key()", f"return {total};", True)
        update = "w[0] += uint(v); " if kind.has_array else ""
        lines += self._qualified("void set(uint n)", f"{update}v = {base}(n);", False)
        lines += self._qualified("SPACE " + name + "& then(uint n)", "set(n); return *this;", False)
        lines.append(f"    {explicit}operator {kind.conversion}() {const} {{ return {kind.conversion}(key()); }}")
        lines.append(f"    uint operator()(uint n) {pick.choice(('const', 'const thread'))} {{ return key() + n; }}")
        lines.append(f"    bool operator<({name} o) {const} {{ return key() < o.key(); }}")
        joined = f"r.v = {base}(uint(L.v) {sign} O.key()); return r;"
        form = pick.randrange(4)
        of_this = f"{name} r = *this; " + joined.replace("L.", "")
        if form == 0:
            text = of_this.replace("O.", "o.")
            lines.append(f"    {name} operator{sign}({name} o) const {{ {text} }}")
        elif form == 1:
            text = of_this.replace("O.", "o.")
            lines.append(f"    {name} operator{sign}(const thread {name}& o) {const} {{ {text} }}")
        else:
            parameters = f"{name} x, {name} y" if form == 2 else f"const thread {name}& x, const thread {name}& y"
            text = joined.replace("L.", "x.").replace("O.", "y.")
            lines.append(f"    friend {name} operator{sign}({parameters}) {{ {name} r = x; {text} }}")
        text = f"v = {base}(uint(v) {sign} o.key()); return *this;"
        parameter = pick.choice((f"{name} o", f"const thread {name} o", f"const thread {name}& o"))
        lines.append(f"    thread {name}& operator{sign}=({parameter}) thread {{ {text} }}")
        lines.append(f"    static {name} of(uint n) {{ return {name}(n); }}")
        lines.append(f"    thread {name}& operator++() thread {{ set(key()); return *this; }}")
        lines.append(f"    {name} operator++(int) thread {{ {name} old = *this; set(7); return old; }}")
        if kind.has_array:
            lines.append("    thread uint& at(uint k) thread { return w[k & 1u]; }")
        lines.append("};")
        full = kind.type
        lines.append(f"{full} {name}_by_value({full} o, uint n) {{ o.set(n); return o; }}")
        lines.append(f"uint {name}_read(const thread {full}& o, uint n) {{ return o.key() ^ n; }}")
        lines.append(f"uint {name}_read(const device {full}& o, uint n) {{ return o.key() ^ n; }}")
        lines.append(f"void {name}_write(thread {full}& o, uint n) {{ o.set(o.key() + n); }}")
        lines.append(f"void {name}_write(threadgroup {full}* o, uint n) {{ o->set(o->key() + n); }}")
        head, of = ("template <typename T> ", "T") if pick.random() < 0.5 else ("", full)
        lines.append(
            f"{head}const thread {of}& {name}_lesser(const thread {of}& x, const thread {of}& y)"
            " { return y.key() < x.key() ? y : x; }"
        )
        lines += [
            f"struct {name}_view {{",
            f"    thread {full}* p;",
            f"    {name}_view(thread {full}& o) : p(&o) {{}}",
            f"    void set(uint n) {pick.choice(('const', 'const thread', 'thread'))} {{ p->set(n); }}",
            f"    thread {full}& operator*() {const} {{ return *p; }}",
            f"    thread {full}* operator->() {const} {{ return p; }}",
            "};",
            f"{name}_view {name}_seen(thread {full}& o) {{ return {name}_view(o); }}",
            f"struct {name}_look {{ const thread {full}* p; uint n; }};",
            f"{name}_look {name}_looking(const thread {full}& o, uint n) {{ {name}_look l = {{&o, n}}; return l; }}",
        ]
        lines.append(f"template <typename T> T {name}_copied(T o) {{ T p = o; p.set(o.key()); return p; }}")
        lines.append(f"template <typename T> uint {name}_sum(const thread T& x, T y) {{ return x.key() + y.key(); }}")
        return lines

    def source(self) -> str:
        lines = [line for kind in self._kinds for line in kind.lines]
        lines += [
            f"kernel void {self.name}(device const uint* x, device uint* y, constant int& turns,",
            "    uint i [[thread_position_in_grid]], uint l [[thread_index_in_threadgroup]])\n{",
            f"    threadgroup uint shared[{LANES * _WORDS}];",
            f"    uint a = x[i], b = x[i + {LANES}], c = x[i + {2 * LANES}] + uint(turns);",
            *(f"    {kind.type} {name}(a + {k}u);" for k, (name, kind) in enumerate(self._variables_of.items())),
            *indented(self._statements),
            f"    device uint* out = y + i * {_WORDS * 2};",
            f"    for (int k = 0; k < {_WORDS * 2}; k++) out[k] = 0;",
            *(f"    out[{k}] = {name};" for k, name in enumerate(NUMBERS)),
            *(f"    out[{k + 3}] = {name}.key();" for k, name in enumerate(self._variables_of)),
        ]
        return "\n".join([*lines, "}\n"])

    def expected(self, x: np.ndarray, turns: int) -> np.ndarray:
        """What the kernel writes for ``x``."""
        a, b, c = x.reshape(3, LANES)
        values = {"a": a, "b": b, "c": c + np.uint32(turns)}
        for k, (name, kind) in enumerate(self._variables_of.items()):
            self._store(values, name, kind, kind.made(a + np.uint32(k)), np.ones(LANES, bool))
        for statement in self._statements:
            statement.run(values, np.ones(LANES, bool))
        results = [values[name] for name in NUMBERS]
        results += [kind.key(self._load(values, name, kind)) for name, kind in self._variables_of.items()]
        found = np.zeros((LANES, 2 * _WORDS), np.uint32)
        found[:, : len(results)] = np.stack(results, 1)
        return found.ravel()

    @staticmethod
    def _load(values: Values, name: str, kind: Kind) -> Leaves:
        return [values[f"{name}.{leaf}"] for leaf in kind.leaves]

    @staticmethod
    def _store(values: Values, name: str, kind: Kind, one: Leaves, mask: np.ndarray) -> None:
        for leaf, new in zip(kind.leaves, one, strict=True):
            key = f"{name}.{leaf}"
            values[key] = np.where(mask, new, values.get(key, new)).astype(np.uint32)

    # Expressions.

    def _of_kind(self, kind: Kind) -> str:
        return self._random.choice([name for name, each in self._objects.items() if each is kind])

    def _object(self, kind: Kind, depth: int) -> Object:
        form, name = self._random.random(), self._of_kind(kind)
        if depth == 0 or form < 0.25:
            return Object(name, lambda v: self._load(v, name, kind))
        if form < 0.45:
            number = self._number(depth - 1)
            text = self._random.choice(("{}({})", "{}::of({})", "static_cast<{}>({})")).format(kind.type, number.text)
            return Object(text, lambda v: kind.made(number.evaluate(v)))
        one, other = self._object(kind, depth - 1), self._object(kind, depth - 1)
        if form < 0.6:
            text = f"({one.text} {kind.operator[0]} {other.text})"
            return Object(text, lambda v: kind.joined(one.evaluate(v), other.evaluate(v)))
        if form < 0.7:
            truth = self._truth(depth - 1)
            return Object(
                f"({truth.text} ? {one.text} : {other.text})",
                lambda v: [
                    np.where(truth.evaluate(v), *both) for both in zip(one.evaluate(v), other.evaluate(v), strict=True)
                ],
            )
        if form < 0.8:

            def lesser(values: Values) -> Leaves:
                both = one.evaluate(values), other.evaluate(values)
                is_second = kind.key(both[1]) < kind.key(both[0])
                return [np.where(is_second, y, x) for x, y in zip(*both, strict=True)]

            return Object(f"{kind.name}_lesser({one.text}, {other.text})", lesser)
        if form < 0.9:
            number = self._number(depth - 1)
            text = f"{kind.name}_by_value({one.text}, {number.text})"
            return Object(text, lambda v: kind.set(one.evaluate(v), number.evaluate(v)))

        def copied(values: Values) -> Leaves:
            given = one.evaluate(values)
            return kind.set(given, kind.key(given))

        return Object(f"{kind.name}_copied({one.text})", copied)

    def _number(self, depth: int) -> Expression:
        pick = self._random
        form = pick.random()
        if depth == 0 or form < 0.2:
            name, value = pick.choice(NUMBERS), pick.randrange(300)
            if pick.random() < 0.3:
                return Expression(f"{value}u", lambda v: np.full(LANES, value, np.uint32))
            return Expression(name, lambda v: v[name])
        if form > 0.75:
            return self._composed_number(pick.uniform(0.25, 1), depth)
        kind = pick.choice(self._kinds)
        one, number = self._object(kind, depth - 1), self._number(depth - 1)
        if form < 0.3:
            return Expression(f"{one.text}.key()", lambda v: kind.key(one.evaluate(v)))
        if form < 0.4:
            text = pick.choice(("uint({}({}))", "uint(static_cast<{}>({}))", "uint(({})({}))"))
            text = text.format(kind.conversion, one.text)
            return Expression(text, lambda v: _wrapped(kind.conversion, kind.key(one.evaluate(v))))
        if form < 0.5:
            return Expression(f"{one.text}({number.text})", lambda v: kind.key(one.evaluate(v)) + number.evaluate(v))
        if form < 0.6:
            text = f"{kind.name}_read({one.text}, {number.text})"
            return Expression(text, lambda v: kind.key(one.evaluate(v)) ^ number.evaluate(v))
        if form < 0.67:
            return Expression(f"uint({one.text}.v)", lambda v: one.evaluate(v)[0])
        other = self._object(kind, depth - 1)
        text = f"{kind.name}_sum({one.text}, {other.text})"
        return Expression(text, lambda v: kind.key(one.evaluate(v)) + kind.key(other.evaluate(v)))

    def _truth(self, depth: int) -> Expression:
        if depth == 0 or self._random.random() < 0.3:
            return Expression("((a & 1u) != 0)", lambda v: v["a"] & 1 != 0)
        if self._random.random() < 0.4:
            return self._composed_truth(self._random.uniform(0.4, 1), depth)
        kind = self._random.choice(self._kinds)
        one, other = self._object(kind, depth - 1), self._object(kind, depth - 1)
        text = f"({one.text} < {other.text})"
        return Expression(text, lambda v: kind.key(one.evaluate(v)) < kind.key(other.evaluate(v)))

    # Statements.

    def _statement(self, depth: int) -> Statement:
        form = self._random.random()
        if depth and form < 0.15:
            return self._branch(depth)
        if form < 0.3:
            return self._assigned_number()
        if form < 0.55:
            return self._in_memory(self._random.choice(_ELSEWHERE))
        return self._changed_object() if form < 0.85 else self._in_array()

    def _branch(self, depth: int) -> Statement:
        truth = self._truth(1)
        yes, no = [self._statement(depth - 1)], [self._statement(depth - 1)]

        def run(values: Values, mask: np.ndarray) -> None:
            asked = truth.evaluate(values)
            yes[0].run(values, mask & asked)
            no[0].run(values, mask & ~asked)

        return Statement([f"if ({truth.text}) {{", *indented(yes), "} else {", *indented(no), "}"], run)

    def _assigned_number(self) -> Statement:
        name, value = self._random.choice(NUMBERS), self._number(3)

        def run(values: Values, mask: np.ndarray) -> None:
            values[name] = np.where(mask, value.evaluate(values), values[name])

        return Statement([f"{name} = {value.text};"], run)

    def _changed_object(self) -> Statement:
        pick = self._random
        name = pick.choice([*self._objects])
        kind, number = self._objects[name], self._number(2)
        one = self._object(kind, 2)
        form = pick.randrange(10 if kind.has_array else 9)
        sign = kind.operator[0]
        lines = {
            0: f"{name} = {one.text};",
            1: f"{name} {sign}= {one.text};",
            2: f"{name}.then({number.text}).set({name}.key());",
            3: f"{{ thread {kind.type}& r = {name}; {kind.name}_write(r, {number.text}); }}",
            4: f"{{ thread {kind.type}* r = &{name}; r->set({number.text}); *r {sign}= *r; }}",
            5: f"{{ struct Held {{ {kind.type} o; uint n; }} h = {{{one.text}, {number.text}}}; Held g = h;"
               f" g.o.set(g.n); {name} = g.o; }}",
            6: f"{{ {kind.type} t = {name}++; ++{name}; {name} {sign}= t; }}",
            7: f"{kind.name}_seen({name}).set({number.text}); *{kind.name}_seen({name}) {sign}= {one.text};",
            8: f"{{ {kind.name}_view s({name}); {kind.name}_look l = {kind.name}_looking({name}, {number.text});"
               f" s->set(l.n); (*s).set(l.p->key()); }}",
            9: f"{name}.at({number.text}) += 9;",
        }  # fmt: skip

        def changed(values: Values, old: Leaves, mask: np.ndarray) -> Leaves:
            if form == 0:
                return one.evaluate(values)
            if form == 1:
                return kind.joined(old, one.evaluate(values))
            new = number.evaluate(values)
            if form == 6:
                first = kind.set(old, np.full(LANES, 7, np.uint32))
                return kind.joined(kind.set(first, kind.key(first)), old)
            if form == 7:
                # What is on the right is computed with the object as it was set.
                self._store(values, name, kind, kind.set(old, new), mask)
                return kind.joined(self._load(values, name, kind), one.evaluate(values))
            if form == 9:
                places = (np.where(new & 1 == odd, old[1 + odd] + np.uint32(9), old[1 + odd]) for odd in (0, 1))
                return [old[0], *places, *old[3:]]
            if form in (2, 8):
                first = kind.set(old, new)
                return kind.set(first, kind.key(first))
            if form == 3:
                return kind.set(old, kind.key(old) + new)
            if form == 4:
                first = kind.set(old, new)
                return kind.joined(first, first)
            return kind.set(one.evaluate(values), new)

        def run(values: Values, mask: np.ndarray) -> None:
            self._store(values, name, kind, changed(values, self._load(values, name, kind), mask), mask)

        return Statement([lines[form]], run)

    def _in_memory(self, space: str) -> Statement:
        """An object is written to memory that threads share, changed and copied there, and read."""
        pick = self._random
        name, target = pick.choice([*self._objects]), pick.choice(NUMBERS)
        kind, number = self._objects[name], self._number(1)
        one = self._object(kind, 2)
        place = f"y + i * {2 * _WORDS}" if space == "device" else f"shared + l * {_WORDS}"
        lines = [f"{space} {kind.type}* z = reinterpret_cast<{space} {kind.type}*>({place});", f"*z = {one.text};"]
        other = space == "threadgroup" and pick.random() < 0.5
        lines += [f"{kind.name}_write(z, {number.text});" if other else f"z->then({number.text}).set(z[0].key());"]
        read = f"{kind.name}_read(*z, 5u)" if space == "device" else "(*z).key() ^ 5u"
        lines += [f"{space} {kind.type}& r = z[0]; {kind.type} t = r; {name} = t; {target} = {read};"]

        def run(values: Values, mask: np.ndarray) -> None:
            first, new = one.evaluate(values), number.evaluate(values)
            if other:
                last = kind.set(first, kind.key(first) + new)
            else:
                last = kind.set(first, new)
                last = kind.set(last, kind.key(last))
            self._store(values, name, kind, last, mask)
            values[target] = np.where(mask, kind.key(last) ^ np.uint32(5), values[target])

        return Statement(["{", *(f"    {line}" for line in lines), "}"], run)

    def _in_array(self) -> Statement:
        pick = self._random
        name = pick.choice([*self._objects])
        kind, index, number = self._objects[name], self._number(1), self._number(1)
        one, other = self._object(kind, 1), self._object(kind, 1)
        self._variables += 1
        array = f"t{self._variables}"
        lines = [
            f"{kind.type} {array}[2] = {{{one.text}, {other.text}}};",
            f"{array}[{index.text} & 1u].set({number.text});",
            f"{name} = {array}[0] {kind.operator[0]} {array}[1];",
        ]

        def run(values: Values, mask: np.ndarray) -> None:
            both = [one.evaluate(values), other.evaluate(values)]
            odd, new = index.evaluate(values) & 1 == 1, number.evaluate(values)
            for place, given in enumerate(both):
                hit = odd if place else ~odd
                both[place] = [np.where(hit, *pair) for pair in zip(kind.set(given, new), given, strict=True)]
            self._store(values, name, kind, kind.joined(*both), mask)

        return Statement(["{", *(f"    {line}" for line in lines), "}"], run)
