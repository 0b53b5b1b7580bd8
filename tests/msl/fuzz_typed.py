"""Typed expressions of what a random program has: variables, elements, members, components, calls, casts and choices,
and now and then an assignment in the midst of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fuzz_ranges import (
    AND,
    ARITHMETIC,
    BITWISE,
    CHOICE,
    COMPARISONS,
    FLOATS,
    INTEGERS,
    LEVELS,
    ORDERED,
    PREFIX,
    Typed,
    binary,
    fits,
    held,
    implicit,
    is_unsigned,
    span,
    type_name,
)

LANES = 64
MOST_STEPS = 2000
SLOTS = 48
INPUTS = 8
BASES = ("int", "int", "int", "uint", "uint", "float", "float", "bool", *INTEGERS, "half")
VECTOR_BASES = ("int", "int", "uint", "float", "uchar", "short", "ushort", "char", "half")


@dataclass(frozen=True)
class Place:
    """Something that has a value. ``path`` draws its text; places of one ``root`` may be the same memory."""

    path: Callable[[], str]
    value: Typed
    root: str
    is_writable: bool = True
    is_variable: bool = False
    """Whether a reference and a pointer of a thread may be made of it."""
    is_named: bool = False
    """Whether its name is all of its text."""


@dataclass(frozen=True)
class Parameter:
    form: str
    base: str
    width: int

    @property
    def type(self) -> str:
        return type_name(self.base, self.width)


@dataclass(frozen=True)
class Function:
    name: str
    parameters: Sequence[Parameter]
    result: Typed | None
    template: str = ""
    steps: int = 0
    """About how many statements run in it."""
    deduces: bool = False
    """Whether values have to be of exactly their types."""


@dataclass(frozen=True)
class Struct:
    """``fields`` are names, types and lengths of arrays (0 for none); methods are forms of calls."""

    name: str
    fields: Sequence[tuple[str, str, int, int]]
    methods: Sequence[str]
    setters: Sequence[tuple[str, str, int]]
    has_constructor: bool


class TypedExpressions:
    """What expressions are made of, and those that can be drawn."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._count = 0
        self._places: list[Place] = []
        self._touched: set[str] = set()
        self._busy: set[str] = set()
        self._functions: list[Function] = []
        self._structs: list[Struct] = []
        self._result: Typed | None = None
        self._can_return = self._has_effects = False
        self._breakable = self._loops = self._steps = 0
        self._in_kernel = False
        self._arrays: list[tuple[str, int, Typed, str]] = []
        self._lambdas: list[Function] = []
        self._objects: list[tuple[str, str, Struct]] = []
        self._tables: list[Place] = []
        self._squares: list[str] = []
        self._pointers: dict[str, str] = {}
        """Pointers to the kernel's input, which may be its output in functions, and to its output."""

    @contextmanager
    def _full_expression(self, *, has_effects: bool = False) -> Iterator[None]:
        self._touched, self._busy, self._has_effects = set(), set(), has_effects
        yield
        self._touched, self._busy, self._has_effects = set(), set(), False

    @contextmanager
    def _scope(self) -> Iterator[None]:
        lists: tuple[list[Any], ...] = (self._places, self._arrays, self._lambdas, self._objects)
        sizes = [len(each) for each in lists]
        yield
        for each, size in zip(lists, sizes, strict=True):
            del each[size:]

    def _name(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _readable(self, *bases: str, width: int = 1) -> list[Place]:
        return [
            place
            for place in self._places
            if place.value.width == width and place.root not in self._busy and (not bases or place.value.base in bases)
        ]

    def _writable(self, *bases: str, width: int = 1, is_variable: bool = False) -> list[Place]:
        return [
            place
            for place in self._readable(*bases, width=width)
            if place.is_writable and (place.is_variable or not is_variable)
        ]

    def _read(self, place: Place) -> Typed:
        self._touched.add(place.root)
        return replace(place.value, text=place.path())

    def _literal(self, base: str) -> Typed:
        pick = self._random
        if base == "bool":
            value = pick.randrange(2)
            return Typed("true" if value else "false", "bool", 1, value, value)
        if base in FLOATS:
            value = pick.randrange(8)
            text = {"half": f"{value}.5h", "float": pick.choice((f"{value}.5f", f"{value}.5"))}[base]
            return Typed(text, base, 1, value, value + 1, 1)
        value = pick.choice((0, 1, 2, 3, 5, 7, 15, 31, 100, 255))
        text = pick.choice((str(value), str(value), f"{value:#x}"))
        if base == "uint":
            return Typed(f"{text}u", base, 1, value, value)
        if base == "int":
            return Typed(text, base, 1, value, value)
        value = min(value, span(base)[1])
        return Typed(f"{base}({value})", base, 1, value, value)

    def _leaf(self, base: str, width: int = 1) -> Typed:
        places = self._readable(base, width=width)
        if width == 1:
            tables = [place for place in self._tables if place.value.base == base]
            if tables and self._chance(0.2):
                return self._read(self._random.choice(tables))
            if places and self._chance(0.75):
                return self._read(self._random.choice(places))
            wide = [p for w in (2, 3, 4) for p in self._readable(base, width=w)]
            if wide and self._chance(0.6):
                return self._component(self._random.choice(wide))
            return self._literal(base)
        if places and self._chance(0.6):
            return self._read(self._random.choice(places))
        wide = [p for w in (2, 3, 4) for p in self._readable(base, width=w)]
        if wide and self._chance(0.6):
            return self._swizzled(self._random.choice(wide), width)
        if self._chance(0.3):
            single = self._fitting(self._leaf(base), base, width)
            return Typed(
                f"{type_name(base, width)}({single.text})", base, width, single.low, single.high, single.places
            )
        parts: list[Typed] = []
        left = width
        while left:
            size = self._random.randint(1, left) if left < width else self._random.randint(1, width - 1)
            parts.append(self._fitting(self._leaf(base, size), base, width))
            left -= size
        low, high = min(p.low for p in parts), max(p.high for p in parts)
        text = f"{type_name(base, width)}({', '.join(p.text for p in parts)})"
        return Typed(text, base, width, low, high, max(p.places for p in parts))

    def _component(self, place: Place) -> Typed:
        whole = self._read(place)
        k = self._random.randrange(whole.width)
        text = self._random.choice((f"{whole.inner}.{'xyzw'[k]}", f"{whole.inner}[{k}]", f"{whole.inner}.{'rgba'[k]}"))
        if self._chance(0.2):
            text = f"{whole.inner}[{self._index(whole.width)}]"
        return replace(whole, text=text, width=1)

    def _swizzled(self, place: Place, width: int) -> Typed:
        whole = self._read(place)
        names = "".join(self._random.choice("xyzw"[: whole.width]) for _ in range(width))
        return replace(whole, text=f"{whole.inner}.{names}", width=width, is_part=True)

    def _index(self, length: int) -> str:
        """The index of one of ``length`` elements."""
        pick = self._random
        places = [place for place in self._readable("uint", "uchar", "ushort") if place.is_named]
        if pick.random() < 0.45 or not places:
            return str(pick.randrange(length))
        text = self._read(pick.choice(places)).text
        if length & (length - 1) == 0 and pick.random() < 0.5:
            return f"{text} & {length - 1}"
        return f"{text} % {length}"

    def _number(self, base: str, depth: int, width: int = 1) -> Typed:
        """An expression whose type is a ``base`` or, of scalars, what C++ makes of it."""
        pick = self._random
        if depth == 0 or pick.random() < 0.15:
            return self._leaf(base, width)
        if base == "bool":
            return self._truth(depth)
        kind = pick.random()
        if kind < 0.5:
            found = self._combined(base, depth, width)
        elif kind < 0.62:
            found = self._chosen(base, depth, width)
        elif kind < 0.7:
            found = self._changed_sign(base, depth, width)
        elif kind < 0.8:
            found = self._called(base, depth, width)
        elif kind < 0.9:
            found = self._converted(self._other(depth, width), base)
        elif kind < 0.95 and self._has_effects:
            found = self._effect(base, depth, width)
        else:
            found = self._library(base, depth, width)
        return found or self._leaf(base, width)

    def _other(self, depth: int, width: int) -> Typed:
        return self._number(self._random.choice(BASES if width == 1 else VECTOR_BASES), depth - 1, width)

    def _combined(self, base: str, depth: int, width: int) -> Typed | None:
        pick = self._random
        left = self._number(base, depth - 1, width)
        if pick.random() < 0.25:
            operator = pick.choice(("/", "%", "<<", ">>"))
            if operator in ("<<", ">>"):
                right = self._literal("int" if width == 1 else base)
                right = replace(right, text=f"{pick.randrange(1, 7)}", low=1, high=6, base="int")
                if width > 1:
                    right = replace(right, text=f"{left.type}({right.text})", base=left.base, width=width)
            elif base in FLOATS:
                operator, right = "/", Typed("2.0f" if base == "float" else "2.0h", base, 1, 2, 2)
            else:
                value = pick.choice((3, 7, 10))
                right = Typed(
                    f"{value}u" if base == "uint" else f"{value}", "uint" if base == "uint" else "int", 1, value, value
                )
            return binary(operator, left, right)
        operator = pick.choice((*ARITHMETIC, *ARITHMETIC, *BITWISE) if base not in FLOATS else ARITHMETIC)
        if width > 1 and pick.random() < 0.25:
            return binary(operator, left, self._leaf(left.base))
        if width == 1 and pick.random() < 0.2:
            return binary(operator, left, self._other(depth, 1))
        found = binary(operator, left, self._number(base, depth - 1, width))
        return found or binary(operator, left, self._leaf(base, width))

    def _whole(self, value: Typed) -> Typed:
        """``value``, which C++ takes for a vector where it may be a part of one."""
        return replace(value, text=f"+{value.text}", is_part=False, level=PREFIX) if value.is_part else value

    def _chosen(self, base: str, depth: int, width: int) -> Typed | None:
        condition = self._truth(depth - 1)
        yes, no = (self._converted(self._number(base, depth - 1, width), base) for _ in range(2))
        if yes is None or no is None:
            return None
        text = f"{condition.operand(CHOICE - 1)} ? {self._whole(yes).text} : {self._whole(no).text}"
        low, high = min(yes.low, no.low), max(yes.high, no.high)
        return Typed(text, base, width, low, high, max(yes.places, no.places), level=CHOICE)

    def _changed_sign(self, base: str, depth: int, width: int) -> Typed | None:
        value = self._number(base, depth - 1, width)
        zero = Typed("0", value.base, width, 0, 0)
        if value.base in FLOATS or self._chance(0.5):
            found = binary("-", zero, value)
            return found and replace(found, text=f"-{value.inner}", level=PREFIX)
        found = binary("-", binary("-", zero, value) or zero, replace(zero, low=1, high=1)) and binary("-", zero, value)
        if found is None:
            return None
        low, high = span(found.base) if is_unsigned(found.base) else (found.low - 1, found.high)
        return replace(found, text=f"~{value.inner}", low=low, high=high, level=PREFIX)

    def _fitting(self, value: Typed, base: str, width: int) -> Typed:
        """``value`` as a ``base`` that a variable of this width may hold."""
        converted = self._converted(value, base)
        if converted is not None and fits(converted, base, width):
            return converted
        return self._reduced(value if converted is None else converted, base, width)

    def _reduced(self, value: Typed, base: str, width: int) -> Typed:
        pick = self._random
        room = held("", base, width)
        kind = type_name(value.base, value.width)
        if value.base in FLOATS:
            if value.places > room.places:
                value = replace(
                    value,
                    text=f"{pick.choice(('floor', 'trunc', 'ceil'))}({value.text})",
                    places=0,
                    low=value.low - 1,
                    high=value.high + 1,
                    is_part=False,
                    level=0,
                )
            most = 16 if base == "half" else 64
            if base not in FLOATS:
                most = min(room.high, 100)
            least = 0 if base not in FLOATS and is_unsigned(base) else -most
            value = replace(
                value,
                text=f"clamp({value.text}, {kind}({least}), {kind}({most}))",
                low=least,
                high=most,
                is_part=False,
                level=0,
            )
        else:
            most = {"half": 15, "float": 31, "char": 7, "short": 63}.get(base, 511)
            if base == "char" and width > 1 or base in ("half",):
                most = 7
            name = promoted_name(value)
            if pick.random() < 0.5 or value.width > 1:
                text = f"{value.operand(AND)} & {most if value.width == 1 else f'{kind}({most})'}"
                value = replace(value, text=text, base=name, low=0, high=most, is_part=False, level=AND)
            else:
                least = 0 if is_unsigned(name) else -most
                text = f"clamp({name}({value.text}), {name}({least}), {name}({most}))"
                value = replace(value, text=text, base=name, low=least, high=most, level=0)
        converted = self._converted(value, base)
        assert converted is not None and fits(converted, base, width), (value, base, width)
        return converted

    def _converted(self, value: Typed, base: str) -> Typed | None:
        """``value`` as a ``base``, by a cast of one of its forms."""
        if value.base == base:
            return value
        found = implicit(value, base)
        if found is None:
            return None
        kind = type_name(base, value.width)
        if {base, value.base} in ({"int", "uint"}, {"long", "ulong"}) and value.low >= 0 and self._chance(0.3):
            return replace(found, text=f"as_type<{kind}>({self._whole(value).text})", is_part=False, level=0)
        if self._chance(0.3):
            return replace(found, text=f"({kind}){value.inner}", is_part=False, level=PREFIX)
        text = self._random.choice(
            (f"{kind}({value.text})", f"{kind}({value.text})", f"static_cast<{kind}>({value.text})")
        )
        return replace(found, text=text, is_part=False, level=0)

    def _truth(self, depth: int) -> Typed:
        pick = self._random
        kind = pick.random()
        if depth <= 0 or kind < 0.1:
            return self._leaf("bool")
        if kind < 0.6:
            base = pick.choice(ORDERED)
            left = self._number(base, depth - 1)
            right = self._number(left.base, depth - 1)
            if not is_unsigned(left.base) and is_unsigned(right.base):
                right = self._literal("int")
            found = binary(pick.choice(COMPARISONS), left, right)
            return found or self._leaf("bool")
        if kind < 0.75:
            left = self._truth(depth - 1)
            touched = set(self._touched)
            right = self._truth(depth - 1)
            self._touched |= touched
            operator = pick.choice(("&&", "||"))
            level = LEVELS[operator]
            text = f"{left.operand(level)} {operator} {right.operand(level - 1)}"
            return Typed(text, "bool", 1, 0, 1, level=level)
        if kind < 0.85:
            return Typed(f"!{self._truth(depth - 1).inner}", "bool", 1, 0, 1, level=PREFIX)
        width = pick.choice((2, 3, 4))
        base = pick.choice(VECTOR_BASES)
        found = binary(pick.choice(COMPARISONS), self._number(base, 1, width), self._number(base, 0, width))
        if found is None:
            return self._leaf("bool")
        return Typed(f"{pick.choice(('any', 'all'))}({found.text})", "bool", 1, 0, 1)

    def _library(self, base: str, depth: int, width: int) -> Typed | None:
        pick = self._random
        a, b = (self._fitting(self._number(base, depth - 1, width), base, width) for _ in range(2))
        kind = type_name(base, width)
        a, b = (
            each if each.type == kind and not each.is_part else replace(each, text=f"{kind}({each.text})")
            for each in (a, b)
        )
        if base not in ("int", "uint", "float", "half"):
            a, b = (replace(each, text=f"{kind}({each.text})") for each in (a, b))
        if pick.random() < 0.6:
            name = pick.choice(("min", "max"))
            low, high = min(a.low, b.low), max(a.high, b.high)
            return Typed(f"{name}({a.text}, {b.text})", base, width, low, high, max(a.places, b.places))
        condition = f"{self._truth(1).text}"
        if width > 1:
            compared = binary("<", replace(a, text=f"({a.text})"), self._leaf(base, width))
            if compared is None:
                return None
            condition = compared.text
        low, high = min(a.low, b.low), max(a.high, b.high)
        return Typed(f"select({a.text}, {b.text}, {condition})", base, width, low, high, max(a.places, b.places))

    def _effect(self, base: str, depth: int, width: int) -> Typed | None:
        """A variable that nothing else here names gets a value, which is the value of the expression."""
        places = [place for place in self._writable(base, width=width) if place.root not in self._touched]
        if not places or base == "bool":
            return None
        place = self._random.choice(places)
        self._busy.add(place.root)
        value = self._fitting(self._number(base, depth - 1, width), base, width)
        self._busy.discard(place.root)
        if place.root in self._touched:
            return None
        text = place.path()
        self._busy.add(place.root)
        self._touched.add(place.root)
        if is_unsigned(base) and width == 1 and self._chance(0.6):
            form = self._random.choice(
                ("{0}++", "++{0}", "{0}--", "--{0}", "({0} += {1})", "({0} ^= {1})", "({0} -= {1})")
            )
            return replace(place.value, text=form.format(text, value.text), level=0 if form[0] == "(" else PREFIX)
        return replace(value, text=f"{text} = {value.text}", base=base, level=CHOICE, is_part=False)

    def _called(self, base: str, depth: int, width: int) -> Typed | None:
        pick = self._random
        if width == 1 and base == "int" and self._squares and pick.random() < 0.3:
            value = self._fitting(self._leaf("int"), "int", 1)
            return Typed(f"{pick.choice(self._squares)}({value.text})", "int", 1, -(10**6), 10**6)
        functions = [*self._functions, *self._lambdas]
        found = [f for f in functions if f.result is not None and (f.result.base, f.result.width) == (base, width)]
        if not found:
            return None
        function = pick.choice(found)
        text = self._call(function, depth)
        return None if text is None or function.result is None else replace(function.result, text=text)

    def _call(self, function: Function, depth: int) -> str | None:
        arguments = []
        steps = 4**self._loops * function.steps
        if self._steps + steps > MOST_STEPS:
            return None
        self._steps += steps
        for parameter in function.parameters:
            text = self._argument(parameter, depth)
            if text is None:
                return None
            if function.deduces and parameter.form == "value":
                text = f"{parameter.type}({text})"
            arguments.append(text)
        return f"{function.name}{function.template}({', '.join(arguments)})"

    def _argument(self, parameter: Parameter, depth: int) -> str | None:
        pick = self._random
        base, width = parameter.base, parameter.width
        if parameter.form == "value":
            return self._exact(self._fitting(self._number(base, depth - 1, width), base, width))
        if parameter.form in ("in", "out"):
            pointers = [name for name, form in self._pointers.items() if parameter.form in (form, "in")]
            if not pointers or parameter.form == "out" and (not self._has_effects or {"out", "in"} & self._touched):
                return None
            name = pick.choice(pointers)
            self._touched.add(self._pointers[name])
            if parameter.form == "out":
                self._busy |= {"out", "in"}
            return name + (pick.choice(("", f" + {pick.randrange(4)}")) if self._in_kernel else "")
        places = self._readable(base, width=width) if "const" in parameter.form else self._writable(base, width=width)
        places = [p for p in places if p.is_variable and (p.root not in self._touched or "const" in parameter.form)]
        if not places:
            return None
        place = pick.choice(places)
        text = place.path()
        if place.root in self._busy or place.root in self._touched and "const" not in parameter.form:
            return None
        self._touched.add(place.root)
        if "const" not in parameter.form:
            if not self._has_effects:
                return None
            self._busy.add(place.root)
        return f"&{text}" if "*" in parameter.form else text

    def _exact(self, value: Typed) -> str:
        """The text of ``value`` as something of exactly its type, for templates and braces."""
        return self._whole(value).text

    def _add(self, name: str, base: str, width: int = 1, **more: bool) -> None:
        self._places.append(Place(lambda: name, held("", base, width), name, is_variable=True, is_named=True, **more))

    def _value(self, base: str, width: int, depth: int = 2, *, has_effects: bool = False) -> Typed:
        with self._full_expression(has_effects=has_effects):
            return self._fitting(self._number(base, depth, width), base, width)


def promoted_name(value: Typed) -> str:
    """The type that ``value`` has as an operand."""
    return value.base if value.width > 1 or value.base in ("int", "uint", "long", "ulong") else "int"
