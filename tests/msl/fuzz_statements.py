"""Random statements: declarations of every kind, assignments, choices, loops, ``switch`` and jumps."""

from __future__ import annotations

from dataclasses import replace

from fuzz_ranges import (
    AND,
    COMPARISONS,
    FLOATS,
    INTEGERS,
    PREFIX,
    Typed,
    binary,
    fits,
    held,
    implicit,
    is_unsigned,
    type_name,
)
from fuzz_typed import BASES, VECTOR_BASES, Function, Parameter, Place, Struct, TypedExpressions


class Statements(TypedExpressions):
    """The statements of functions, and of a kernel."""

    has_lambdas = False

    def _condition(self, depth: int = 2) -> str:
        with self._full_expression(has_effects=self._chance(0.2)):
            return self._truth(depth).text

    def _block(self, depth: int, most: int = 3) -> list[str]:
        with self._scope():
            lines = [line for _ in range(self._random.randint(1, most)) for line in self._statement(depth)]
        return [f"    {line}" for line in lines]

    def _statement(self, depth: int) -> list[str]:
        kind = self._random.random()
        self._steps += 4**self._loops
        if kind < 0.22:
            return self._declaration()
        if kind < 0.62 or depth == 0:
            return self._assignment()
        if kind < 0.72:
            return self._if(depth)
        if kind < 0.82:
            return self._loop(depth)
        if kind < 0.88:
            return self._switch(depth)
        if kind < 0.92 and (self._breakable or self._loops or self._can_return):
            return self._jump()
        if kind < 0.94:
            return ["{", *self._block(depth - 1), "}"]
        return self._each_element(depth) if kind < 0.97 else self._call_statement()

    def _declaration(self) -> list[str]:
        pick = self._random
        kind = pick.random()
        if kind < 0.4:
            return self._scalars()
        if kind < 0.6:
            return self._vector()
        if kind < 0.72:
            return self._array()
        if kind < 0.84 and self._structs:
            return self._object()
        if kind < 0.88:
            return self._masks()
        if kind < 0.93 and self.has_lambdas:
            return self._lambda()
        return self._alias()

    def _scalars(self) -> list[str]:
        pick = self._random
        base = pick.choice(BASES)
        value = self._value(base, 1, has_effects=True)
        name = self._name("a")
        forms = [
            "{0} {1} = {2};",
            "{0} {1}(({0})({2}));",
            "auto {1} = {0}({2});",
            "{0} {1} {{ {0}({2}) }};",
            "const {0} {1} = {2};",
        ]
        if base == "bool":
            forms = forms[:1]
        form = pick.choice(forms)
        lines = [form.format(base, name, value.text)]
        self._add(name, base, is_writable="const" not in form)
        if pick.random() < 0.2:
            second, third = self._value(base, 1), self._value(base, 1)
            more, other = self._name("a"), self._name("a")
            lines.append(f"{base} {more} = {second.text}, {other} = {third.text};")
            self._add(more, base)
            self._add(other, base)
        return lines

    def _vector(self) -> list[str]:
        pick = self._random
        base, width = pick.choice(VECTOR_BASES), pick.choice((2, 3, 4))
        kind, name = type_name(base, width), self._name("v")
        value = self._value(base, width)
        form = pick.choice(
            ("{0} {1} = {2};", "{0} {1}(({2}));", "auto {1} = {0}({2});", "const {0} {1} = {2};", "list", "single")
        )
        if form == "list":
            parts = [self._small(base, width) for _ in range(width)]
            line = f"{kind} {name} = {{{', '.join(parts)}}};"
        elif form == "single":
            line = f"{kind} {name} = {self._small(base, width)};"
        else:
            line = form.format(kind, name, value.text)
        self._add(name, base, width, is_writable="const" not in form)
        return [line]

    def _small(self, base: str, width: int) -> str:
        """A scalar that an element of a vector may hold."""
        with self._full_expression():
            value = self._fitting(self._leaf(base), base, width)
        return f"{base}({value.text})"

    def _array(self) -> list[str]:
        pick = self._random
        width = pick.choice((1, 1, 1, 2, 4))
        base = pick.choice(BASES[:-1] if width == 1 else VECTOR_BASES)
        kind, name, length = type_name(base, width), self._name("r"), pick.choice((2, 3, 4))
        element = held("", base, width)
        values = [", ".join(self._element(base, width) for _ in range(length)) for _ in range(2)]
        lines = [f"{kind} {name}[{length}] = {{{values[0]}}};"]
        path = lambda: f"{name}[{self._index(length)}]"  # noqa: E731
        form = pick.random()
        if form < 0.25:
            lines = [f"{kind} {name}[2][{length}] = {{{{{values[0]}}}, {{{values[1]}}}}};"]
            path = lambda: f"{name}[{self._index(2)}][{self._index(length)}]"  # noqa: E731
        elif form < 0.4:
            value = self._element(base, width)
            lines = [f"{kind} {name}[{length}];", f"for (uint k = 0; k < {length}; k++) {name}[k] = {value};"]
        elif form < 0.6:
            pointed = Place(lambda: f"*({name} + ({self._index(length)}))", replace(element, level=PREFIX), name)
            self._places.append(pointed)
        if form >= 0.25:
            self._arrays.append((name, length, element, name))
        self._places.append(Place(path, element, name, is_variable=True))
        return lines

    def _masks(self) -> list[str]:
        """Truth values side by side."""
        pick = self._random
        width, base = pick.choice((2, 3, 4)), pick.choice(VECTOR_BASES)
        with self._full_expression():
            compared = binary(pick.choice(COMPARISONS), self._number(base, 1, width), self._number(base, 1, width))
        if compared is None:
            return self._scalars()
        name = self._name("b")
        self._places.append(Place(lambda: name, Typed("", "bool", width, 0, 1), name, is_named=True))
        return [f"bool{width} {name} = {pick.choice(('', '!'))}({compared.text});"]

    def _lambda(self) -> list[str]:
        pick = self._random
        name, base = self._name("l"), pick.choice(("int", "uint", "float", "bool", "short"))
        parameters = [(self._name("q"), pick.choice(BASES)) for _ in range(pick.randint(0, 2))]
        with self._scope():
            for own, kind in parameters:
                self._add(own, kind)
            value = self._value(base, 1)
        texts = ", ".join(f"{kind} {own}" for own, kind in parameters)
        result = pick.choice(("", f" -> {base}"))
        self._lambdas.append(Function(name, [Parameter("value", kind, 1) for _, kind in parameters], held("", base)))
        text = value.text if result else f"{base}({value.text})"
        return [f"auto {name} = [{pick.choice('&=')}]({texts}){result} {{ return {text}; }};"]

    def _element(self, base: str, width: int) -> str:
        return f"{type_name(base, width)}({self._value(base, width, 1).text})"

    def _object(self) -> list[str]:
        pick = self._random
        struct = pick.choice(self._structs)
        name = self._name("s")
        values = []
        for _, base, width, length in struct.fields:
            if length:
                values.append("{" + ", ".join(self._element(base, width) for _ in range(length)) + "}")
            else:
                values.append(self._element(base, width))
        if struct.has_constructor:
            form = pick.choice(("{0} {1}({2});", "{0} {1} = {0}({2});", "{0} {1}{{{2}}};", "auto {1} = {0}({2});"))
        else:
            form = pick.choice(
                ("{0} {1} = {{{2}}};", "{0} {1}{{{2}}};", "{0} {1} = {0}{{{2}}};", "auto {1} = {0}{{{2}}};")
            )
        lines = [form.format(struct.name, name, ", ".join(values))]
        self._add_members(name, ".", name, struct)
        if pick.random() < 0.2:
            pointer = self._name("p")
            lines.append(f"thread {struct.name}* {pointer} = &{name};")
            self._add_members(pointer, "->", name, struct)
        if pick.random() < 0.2:
            copy = self._name("s")
            lines.append(f"{struct.name} {copy} = {name};")
            self._add_members(copy, ".", copy, struct)
        return lines

    def _add_members(self, name: str, dot: str, root: str, struct: Struct, *, is_writable: bool = True) -> None:
        for field, base, width, length in struct.fields:
            self._add_member(f"{name}{dot}{field}", root, base, width, length, is_writable)
        if is_writable:
            self._objects.append((f"{name}{dot}", root, struct))
        for method in struct.methods:
            form, base, width, *lengths = method.split(":")
            if form == "()":
                continue
            if lengths:
                whole = name if dot == "." else f"(*{name})"
                length = int(lengths[0])
                self._add_member(whole, root, base, int(width), length, True)
                continue
            value = replace(held("", base, int(width)))
            text = f"{name}{dot}{form}"
            self._places.append(Place(lambda text=text: text, value, root, is_writable=False))  # type: ignore[misc]

    def _add_member(self, text: str, root: str, base: str, width: int, length: int, is_writable: bool) -> None:
        path = (lambda: f"{text}[{self._index(length)}]") if length else (lambda: text)
        self._places.append(Place(path, held("", base, width), root, is_writable, is_variable=True))

    def _alias(self) -> list[str]:
        """A reference, or a pointer, to something that there is."""
        pick = self._random
        width = pick.choice((1, 1, 1, 2, 3, 4))
        places = [p for p in self._writable(width=width, is_variable=True)]
        if not places:
            return self._scalars()
        place = pick.choice(places)
        with self._full_expression():
            text = place.path()
        kind, name = type_name(place.value.base, width), self._name("p")
        if pick.random() < 0.5:
            self._places.append(replace(place, path=lambda: name, is_named=True))
            return [f"thread {kind}& {name} = {text};"]
        self._places.append(
            replace(
                place,
                path=lambda: pick.choice((f"(*{name})", f"{name}[0]")),
                value=replace(place.value, level=0),
                is_named=False,
            )
        )
        if pick.random() < 0.4:
            same = [p for p in self._writable(place.value.base, width=width, is_variable=True) if p.root == place.root]
            if same:
                with self._full_expression():
                    other = pick.choice(same).path()
                return [f"thread {kind}* {name} = &{text};", f"if ({self._condition(1)}) {name} = &{other};"]
        return [f"thread {kind}* {name} = &{text};"]

    def _target(self) -> tuple[Place, str, str, int] | None:
        """A place, its text or that of some of its components, with type and width."""
        pick = self._random
        width = pick.choice((1, 1, 1, 1, 2, 3, 4))
        places = self._writable(width=width)
        if not places:
            return None
        place = pick.choice(places)
        text, base = place.path(), place.value.base
        self._touched.add(place.root)
        if place.value.level:
            text = f"({text})"
        if width > 1 and pick.random() < 0.6:
            size = pick.randint(1, width)
            if size == 1 and pick.random() < 0.4:
                return place, f"{text}[{self._index(width)}]", base, 1
            names = "".join(pick.sample("xyzw"[:width], size))
            return place, f"{text}.{names}", base, size
        return place, text, base, width

    def _assignment(self) -> list[str]:
        pick = self._random
        kind = pick.random()
        if kind < 0.08:
            return self._comma()
        if kind < 0.14:
            return self._chained()
        if kind < 0.2:
            return self._chosen_target()
        if kind < 0.25:
            return self._call_statement()
        if kind < 0.3 and self._objects:
            return self._set_members()
        with self._full_expression(has_effects=pick.random() < 0.3):
            target = self._target()
            if target is None:
                return self._scalars()
            place, text, base, width = target
            holder = place.value.width
            if kind < 0.6:
                value = self._fitting(self._number(base, 3, width), base, holder)
                if width > 1 and pick.random() < 0.1:
                    value = self._fitting(self._number(base, 1), base, holder)
                return [f"{text} = {value.text};"]
            return self._compound(text, base, width, holder)

    def _compound(self, text: str, base: str, width: int, holder: int) -> list[str]:
        pick = self._random
        if is_unsigned(base) and pick.random() < 0.25:
            return [
                f"{text}{pick.choice(('++', '--'))};" if pick.random() < 0.6 else f"{pick.choice(('++', '--'))}{text};"
            ]
        operators = ("+", "-", "*", "+", "-", *(() if base in FLOATS else ("&", "|", "^", ">>", "/")))
        operator = "&|^"[pick.randrange(3)] if base == "bool" else pick.choice(operators)
        whole = replace(held("", base, holder), width=width)
        if operator in (">>", "/"):
            value = Typed(str(pick.randint(1, 3)), "int", 1, 1, 3)
            if width > 1:
                value = replace(value, text=f"{type_name(base, width)}({value.text})", base=base, width=width)
        elif width > 1 and pick.random() < 0.3:
            value = self._fitting(self._leaf(base), base, holder)
        elif width == 1 and pick.random() < 0.25:
            value = self._other(2, 1)
        else:
            value = self._fitting(self._number(base, 2, width), base, holder)
        result = binary(operator, whole, value)
        result = result and implicit(result, base)
        if result is None:
            return [f"{text} = {self._fitting(value, base, holder).text};"] if value.width in (1, width) else []
        lines = [f"{text} {operator}= {value.text};"]
        if not fits(result, base, holder):
            # What the variable has got may be too much for the next statement.
            self._has_effects = False
            reduced = self._reduced(replace(result, text=text, base=base, level=0, is_part=False), base, holder)
            lines.append(f"{text} = {reduced.text};")
        return lines

    def _comma(self) -> list[str]:
        pick = self._random
        lines = [self._plain() for _ in range(pick.randint(2, 3))]
        return [", ".join(line for line in lines if line) + ";"] if any(lines) else []

    def _plain(self) -> str:
        """An assignment without its semicolon."""
        with self._full_expression():
            target = self._target()
            if target is None:
                return ""
            place, text, base, width = target
            return f"{text} = {self._fitting(self._number(base, 2, width), base, place.value.width).text}"

    def _chained(self) -> list[str]:
        pick = self._random
        base = pick.choice(BASES)
        with self._full_expression():
            places = self._writable(base)
            if len(places) < 2:
                return self._scalars()
            first, second = pick.sample(places, 2)
            texts = first.path(), second.path()
            return [f"{texts[0]} = {texts[1]} = {self._fitting(self._number(base, 2), base, 1).text};"]

    def _set_members(self) -> list[str]:
        """Methods that change an object, one behind the other."""
        pick = self._random
        path, _, struct = pick.choice(self._objects)
        text = path[: -1 if path[-1] == "." else -2]
        if not struct.setters:
            return []
        for k in range(pick.randint(1, 2)):
            method, base, width = pick.choice(struct.setters)
            value = self._value(base, width)
            text += f"{path[len(text) :] if not k else '.'}{method}({self._exact(value)})"
        return [f"{text};"]

    def _chosen_target(self) -> list[str]:
        pick = self._random
        base = pick.choice(("int", "uint", "float"))
        with self._full_expression():
            places = self._writable(base, is_variable=True)
            if len(places) < 2:
                return self._scalars()
            first, second = pick.sample(places, 2)
            condition = self._truth(1).inner
            value = self._fitting(self._number(base, 2), base, 1)
            return [f"({condition} ? {first.path()} : {second.path()}) = {value.text};"]

    def _call_statement(self) -> list[str]:
        found = [function for function in self._functions if function.result is None]
        if not found:
            return self._scalars()
        with self._full_expression(has_effects=True):
            text = self._call(self._random.choice(found), 2)
        return [f"{text};"] if text else []

    def _if(self, depth: int) -> list[str]:
        pick = self._random
        condition = self._condition(3)
        if pick.random() < 0.3:
            with self._scope():
                lines = [line for line in self._assignment() if line]
            if len(lines) == 1 and not lines[0].startswith(_DECLARES):
                lines = [f"if ({condition}) {lines[0]}"]
                if pick.random() < 0.4:
                    other = self._plain()
                    lines += [f"else {other};"] if other else []
                return lines
        lines = [f"if ({condition}) {{", *self._block(depth - 1)]
        while pick.random() < 0.3:
            lines += [f"}} else if ({self._condition(2)}) {{", *self._block(depth - 1)]
        if pick.random() < 0.5:
            lines += ["} else {", *self._block(depth - 1)]
        return [*lines, "}"]

    def _loop(self, depth: int) -> list[str]:
        pick = self._random
        if self._loops >= 2:
            return self._if(depth)
        name, turns = self._name("k"), str(pick.randint(1, 4))
        if pick.random() < 0.3:
            with self._full_expression():
                places = self._readable("int", "uint")
                if places:
                    place = pick.choice(places)
                    turns = f"int({self._read(place).text} & 3)"
        with self._scope():
            counter = Typed("", "int", 1, -1, 5)
            self._places.append(Place(lambda: name, counter, name, is_writable=False))
            self._loops += 1
            self._breakable += 1
            body = self._block(depth - 1)
            self._loops -= 1
            self._breakable -= 1
        kind = pick.randrange(9)
        if kind < 2:
            step = pick.choice(("{0}++", "++{0}", "{0} += 1", "{0} = {0} + 1"))
            return [f"for (int {name} = 0; {name} < {turns}; {step.format(name)}) {{", *body, "}"]
        if kind == 2:
            return [f"for (int {name} = {turns}; {name}-- > 0;) {{", *body, "}"]
        if kind == 3:
            return [f"int {name} = 0;", f"while ({name}++ < {turns}) {{", *body, "}"]
        if kind == 4:
            return [f"int {name} = 0;", "do {", *body, f"}} while (++{name} < {turns});"]
        if kind == 5:
            return [
                "{",
                f"    int {name} = 0;",
                "    for (;;) {",
                f"        if ({name} >= {turns}) break;",
                f"        ++{name};",
                *(f"    {line}" for line in body),
                "    }",
                "}",
            ]
        if kind == 6:
            extra = self._name("m")
            return [f"for (int {name} = 0, {extra} = {turns}; {name} < {extra}; {name}++, {extra}--) {{", *body, "}"]
        if kind == 7:
            return [f"int {name};", f"for ({name} = 0; {name} != 3 && ({self._condition(1)}); {name}++) {{", *body, "}"]
        return [f"for (int {name} = 4; {name}; {name} >>= 1) {{", *body, "}"]

    def _each_element(self, depth: int) -> list[str]:
        """A loop over the elements of an array, by reference, by value or by pointer."""
        pick = self._random
        if not self._arrays or self._loops >= 2:
            return self._assignment()
        array, length, element, root = pick.choice(self._arrays)
        kind, name = element.type, self._name("e")
        form = pick.choice(
            ("{0} {1} : {2}", "thread {0}& {1} : {2}", "const {0} {1} : {2}", "auto {1} : {2}", "pointer")
        )
        with self._scope():
            own = root if "&" in form or form == "pointer" else name
            text = f"(*{name})" if form == "pointer" else name
            self._places.append(Place(lambda: text, element, own, "const" not in form, is_variable="const" not in form))
            self._loops += 1
            self._breakable += 1
            body = self._block(depth - 1, 2)
            self._loops -= 1
            self._breakable -= 1
        if form == "pointer":
            step = pick.choice((f"++{name}", f"{name}++", f"{name} += 1"))
            return [f"for (thread {kind}* {name} = {array}; {name} != {array} + {length}; {step}) {{", *body, "}"]
        return [f"for ({form.format(kind, name, array)}) {{", *body, "}"]

    def _switch(self, depth: int) -> list[str]:
        pick = self._random
        base = pick.choice(("int", "uint", "uchar", "short"))
        with self._full_expression(has_effects=pick.random() < 0.2):
            value = self._number(base, 2)
        if value.base in FLOATS:
            value = self._reduced(value, "int", 1)
        labels = [0, 1, 2]
        pick.shuffle(labels)
        default = pick.randrange(-1, 4)
        lines = [f"switch ({value.operand(AND)} & 3) {{"]
        self._breakable += 1
        for place in range(4):
            if place == default:
                lines.append("default:")
                if pick.random() < 0.7:
                    lines += self._case(depth)
            if place < 3:
                lines.append(f"case {labels[place]}:")
                if pick.random() < 0.85:
                    lines += self._case(depth)
        self._breakable -= 1
        if lines[-1].endswith(":"):
            lines.append("    break;")
        return [*lines, "}"]

    def _case(self, depth: int) -> list[str]:
        body = self._block(depth - 1, 2)
        end = ["    break;"] if self._chance(0.7) else []
        if self._chance(0.5):
            return [*(["    {"]), *body, "    }", *end]
        return ["    {", *body, *end, "    }"]

    def _jump(self) -> list[str]:
        pick = self._random
        words = [word for word, may in (("break;", self._breakable), ("continue;", self._loops)) if may]
        if self._can_return:
            words.append("return")
        word = pick.choice(words)
        if word == "return":
            word = "return;"
            if self._result is not None:
                value = self._value(self._result.base, self._result.width)
                word = f"return {value.text};"
        condition = self._condition(2)
        return [pick.choice((f"if ({condition}) {word}", f"if ({condition}) {{ {word} }}"))]


_DECLARES = tuple(f"{word} " for word in ("const", "auto", "thread", "for", *INTEGERS, *FLOATS, "bool"))
