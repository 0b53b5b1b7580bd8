"""Random programs of every kind of statement, which are Metal and C++: functions with pointers and references, structs
with members, methods and constructors, templates, arrays, vectors with components on both sides, conversions, compound
and chained assignments, choices, commas, ``switch``, loops, jumps, and threads that exchange values.

A C++ compiler says what they compute (``host_programs``).
"""

from __future__ import annotations

from dataclasses import replace

from fuzz_ranges import FLOATS, Typed, held, type_name
from fuzz_statements import Statements
from fuzz_typed import BASES, INPUTS, LANES, SLOTS, VECTOR_BASES, Function, Parameter, Place, Struct


class StatementProgram(Statements):
    """A kernel made from ``seed``, with its functions, structs and constants: ``source``."""

    def __init__(self, seed: int, *, has_lambdas: bool = False) -> None:
        super().__init__(seed)
        self.name = f"statements_{seed}"
        self.has_lambdas = has_lambdas
        self.source = "\n".join([*self._preamble(), *self._kernel(), ""])

    def _preamble(self) -> list[str]:
        pick = self._random
        lines = []
        for _ in range(pick.randint(0, 2)):
            lines += self._table()
        if pick.random() < 0.3:
            self._squares.append(f"{self.name}_SQUARE")
            lines.append(f"#define {self._squares[0]}(a) ((a) * (a))")
        for _ in range(pick.randint(0, 2)):
            lines += self._struct()
        for _ in range(pick.randint(1, 4)):
            lines += self._function()
        return lines

    def _table(self) -> list[str]:
        """Constants: one, several, or those of an enumeration."""
        pick = self._random
        name, base = f"{self.name}_{self._name('T')}", pick.choice(("int", "uint", "uchar", "short", "float"))
        kind = pick.random()
        if kind < 0.3:
            self._tables.append(Place(lambda: name + "_B", Typed("", "int", 1, 5, 5, is_part=True), name, False))
            return [f"enum {name} {{ {name}_A, {name}_B = 5, {name}_C }};"]
        values = [self._literal(base).text for _ in range(4)]
        element = replace(held("", base), low=0)
        if kind < 0.5:
            self._tables.append(Place(lambda: name, element, name, False))
            return [f"constant {base} {name} = {values[0]};"]
        self._tables.append(Place(lambda: f"{name}[{self._index(4)}]", element, name, False))
        return [f"constant {base} {name}[4] = {{{', '.join(values)}}};"]

    def _struct(self) -> list[str]:
        pick = self._random
        name = f"{self.name}_{self._name('S')}"
        fields = []
        for _ in range(pick.randint(1, 4)):
            width = pick.choice((1, 1, 1, 2, 3, 4))
            base = pick.choice(BASES if width == 1 else VECTOR_BASES)
            fields.append((self._name("f"), base, width, pick.choice((0, 0, 0, 2, 3))))
        has_constructor = pick.random() < 0.4 and all(not length for *_, length in fields)
        lines = [f"struct {name} {{"]
        for field, base, width, length in fields:
            lines.append(f"    {type_name(base, width)} {field}{f'[{length}]' if length else ''};")
        if has_constructor:
            parameters = ", ".join(f"{type_name(base, width)} {field}_" for field, base, width, _ in fields)
            values = ", ".join(f"{field}({field}_)" for field, *_ in fields)
            lines.append(f"    {name}({parameters}) : {values} {{}}")
        methods = []
        for _ in range(pick.randint(0, 2)):
            method, base = self._name("g"), pick.choice(BASES)
            with self._scope():
                self._places.clear()
                for field, b, w, length in fields:
                    self._add_member(field, field, b, w, length, False)
                value = self._value(base, 1)
            lines.append(f"    {base} {method}() const {{ return {value.text}; }}")
            methods.append(f"{method}():{base}:1")
        setters = []
        field, base, width, length = pick.choice(fields)
        if not length and pick.random() < 0.5:
            method = self._name("m")
            kind = type_name(base, width)
            lines.append(f"    thread {name}& {method}({kind} v) thread {{ {field} = v; return *this; }}")
            setters.append((method, base, width))
        field, base, width, length = fields[0]
        if length and pick.random() < 0.7:
            lines.append(f"    thread {type_name(base, width)}& operator[](uint k) thread {{ return {field}[k]; }}")
            methods.append(f"[]:{base}:{width}:{length}")
        elif pick.random() < 0.5 and base != "bool" and width == 1 and not length:
            lines.append(f"    {base} operator()({base} v) const {{ return min(v, {field}); }}")
            methods.append(f"():{base}:1")
        lines.append("};")
        self._structs.append(Struct(name, fields, methods, setters, has_constructor))
        return lines

    def _function(self) -> list[str]:
        pick = self._random
        name = f"{self.name}_{self._name('f')}"
        parameters, texts = [], []
        self._places, self._pointers, self._arrays, self._lambdas, self._objects = [], {}, [], [], []
        self._can_return, self._steps = True, 0
        for _ in range(pick.randint(0, 3)):
            form = pick.choice(
                ("value", "value", "value", "thread &", "thread *", "const thread &", "const thread *", "in", "out")
            )
            width = pick.choice((1, 1, 1, 2, 3, 4))
            base = pick.choice(BASES if width == 1 else VECTOR_BASES)
            kind, own = type_name(base, width), self._name("q")
            parameters.append(Parameter(form, base, width))
            if form == "value":
                texts.append(f"{kind} {own}")
                self._add(own, base, width)
            elif form in ("in", "out"):
                texts.append(f"device {'const ' if form == 'in' else ''}int* {own}")
                self._pointers[own] = form
                self._places.append(
                    Place(lambda own=own: f"{own}[{self._index(4)}]", held("", "int"), "out", form == "out")  # type: ignore[misc]
                )
            else:
                texts.append(f"{form[:-1]}{kind}{form[-1]} {own}")
                path = (lambda own=own: f"(*{own})") if form[-1] == "*" else (lambda own=own: own)  # type: ignore[misc]
                self._places.append(
                    Place(path, held("", base, width), "given", "const" not in form, is_variable="const" not in form)
                )
        self._result = None
        if pick.random() < 0.75:
            width = pick.choice((1, 1, 1, 2, 3, 4))
            self._result = held("", pick.choice(BASES if width == 1 else VECTOR_BASES), width)
        body = [line for _ in range(pick.randint(1, 4)) for line in self._statement(2)]
        if self._result is not None:
            body.append(f"return {self._value(self._result.base, self._result.width).text};")
        kind = self._result.type if self._result else "void"
        self._functions.append(Function(name, parameters, self._result, steps=self._steps))
        self._can_return, self._result = False, None
        template, self._functions[-1] = self._template(self._functions[-1])
        if template:
            texts = [
                text if parameter.form != "value" or parameter.type != own else f"T {text.split()[-1]}"
                for text, parameter in zip(texts, parameters, strict=True)
                for own in (template[1],)
            ]
        return [*template[:1], f"{kind} {name}({', '.join(texts)}) {{", *(f"    {line}" for line in body), "}"]

    def _template(self, function: Function) -> tuple[list[str], Function]:
        """The function as a template of the type of its first parameter, which calls name or leave to be found."""
        pick = self._random
        kinds = [each.type for each in function.parameters if each.form == "value"]
        if not kinds or pick.random() < 0.6:
            return [], function
        named = pick.choice(("", f"<{kinds[0]}>", f"<{kinds[0]}, 3>"))
        more = ", int N" if "3" in named[-2:] and "," in named else ", int N = 2" if pick.random() < 0.3 else ""
        exact = not named
        return [f"template <typename T{more}>", kinds[0]], replace(function, template=named, deduces=exact)

    def _kernel(self) -> list[str]:
        pick = self._random
        lines = [
            f"kernel void {self.name}(device const int* x, device int* y, uint i [[thread_position_in_grid]]) {{",
            f"    device const int* ip = x + i * {INPUTS};",
            f"    device int* op = y + i * {SLOTS};",
            "    for (int k = 0; k < 8; k++) op[k] = int(i) + k;",
            f"    threadgroup int shared[{LANES}];",
        ]
        self._arrays, self._lambdas, self._objects, self._steps = [], [], [], 0
        self._in_kernel, self._pointers = True, {"ip": "in", "op": "out"}
        self._places = [Place(lambda: f"ip[{self._index(8)}]", held("", "int"), "in", False)]
        self._places.append(Place(lambda: f"op[{self._index(8)}]", held("", "int"), "out"))
        self._places.append(Place(lambda: "i", Typed("", "uint", 1, 0, LANES), "i", False, is_named=True))
        body = [line for _ in range(4) for line in self._declaration()]
        for _ in range(pick.randint(4, 9)):
            body += self._exchange() if pick.random() < 0.12 else self._statement(3)
        body += self._results()
        return [*lines, *(f"    {line}" for line in body), "}"]

    def _exchange(self) -> list[str]:
        """All threads give each other numbers, through memory or in their simdgroups."""
        pick = self._random
        places = self._writable("int", is_variable=True)
        value, small = self._value("int", 1), self._value("short", 1)
        if not places:
            return []
        with self._full_expression():
            text = pick.choice(places).path()
        if pick.random() < 0.5:
            barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
            return [
                barrier,
                f"shared[i] = {value.text};",
                barrier,
                f"{text} = shared[(i + {pick.randrange(64)}) % 64];",
            ]
        function = pick.choice((
            "simd_max({0})", "simd_min({0})", f"simd_shuffle_xor({{0}}, {pick.randrange(1, 32)})",
            f"simd_broadcast({{0}}, {pick.randrange(32)})", "simd_sum({1} & 15)", "simd_prefix_inclusive_sum({1} & 15)",
            "int(simd_any(({0}) > 500))", "int(simd_all(({0}) < 500))",
        ))  # fmt: skip
        return [f"{text} = {function.format(f'int({value.text})', f'({small.text})')};"]

    def _results(self) -> list[str]:
        lines, slot = [], 8
        for place in self._places[3:]:
            with self._full_expression():
                text = place.path()
            for k in range(place.value.width):
                if slot == SLOTS:
                    return lines
                part = text if place.value.width == 1 else f"{text if not place.value.level else f'({text})'}[{k}]"
                scaled = f"({part}) * 2" if place.value.base in FLOATS else part
                lines.append(f"op[{slot}] = int({scaled});")
                slot += 1
        return lines
