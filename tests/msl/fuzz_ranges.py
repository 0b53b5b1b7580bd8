"""Expressions of C++ and Metal with their types and the values that they can have, so that random programs mean
something: no signed integer overflows, no number is divided by 0, and floats and halves hold every value exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace

_BITS = {"char": 8, "uchar": 8, "short": 16, "ushort": 16, "int": 32, "uint": 32, "long": 64, "ulong": 64}
_RANKS = ("int", "uint", "long", "ulong", "half", "float")
_PRECISIONS = {"half": 11, "float": 24}
INTEGERS = tuple(_BITS)
FLOATS = ("half", "float")
ORDERED = (*INTEGERS, *FLOATS)
ARITHMETIC = ("+", "-", "*")
BITWISE = ("&", "|", "^")
POSTFIX, PREFIX, AND, CHOICE = 1, 2, 8, 13
LEVELS = {"*": 3, "/": 3, "%": 3, "+": 4, "-": 4, "<<": 5, ">>": 5, "<": 6, ">": 6, "<=": 6, ">=": 6, "==": 7, "!=": 7,
          "&": AND, "^": 9, "|": 10, "&&": 11, "||": 12}  # fmt: skip
COMPARISONS = ("<", ">", "<=", ">=", "==", "!=")
# What variables hold: sums and products of them fit.
_HELD = {"int": 1000, "long": 10**6, "half": 16, "float": 64}
_HELD_BY_VECTORS = {"char": 7, "short": 100} | _HELD


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression of ``width`` numbers from ``low`` to ``high``, floats with ``places`` binary digits behind the
    point. Components that are taken from a vector are a part of it, and an enumerator is one, too."""

    text: str
    base: str
    width: int
    low: int
    high: int
    places: int = 0
    is_part: bool = False
    level: int = 0
    """The precedence of its operator, 0 for what has none."""

    @property
    def type(self) -> str:
        return type_name(self.base, self.width)

    @property
    def inner(self) -> str:
        """The text as what stands before or behind any operator."""
        return self.text if self.level <= POSTFIX else f"({self.text})"

    def operand(self, level: int) -> str:
        """The text as an operand of an operator of that precedence, or on the left of one of its own."""
        return self.text if self.level <= level else f"({self.text})"


def type_name(base: str, width: int) -> str:
    return base if width == 1 else f"{base}{width}"


def is_unsigned(base: str) -> bool:
    return base[0] == "u"


def span(base: str) -> tuple[int, int]:
    """All values of an integer type."""
    if base == "bool":
        return 0, 1
    bits = _BITS[base]
    return (0, 2**bits - 1) if is_unsigned(base) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def held(text: str, base: str, width: int = 1) -> Typed:
    """A variable."""
    most = (_HELD if width == 1 else _HELD_BY_VECTORS).get(base)
    low, high = span(base) if most is None else (-most, most)
    return Typed(text, base, width, low, high, int(base in FLOATS))


def _checked(value: Typed) -> Typed | None:
    """The value with what its type makes of it; None where that is left open or inexact."""
    if value.base in FLOATS:
        most = max(-value.low, value.high)
        return value if most << value.places <= 2 ** _PRECISIONS[value.base] and value.places < 8 else None
    low, high = span(value.base)
    if low <= value.low and value.high <= high:
        return value
    return replace(value, low=low, high=high) if is_unsigned(value.base) else None


def implicit(value: Typed, base: str) -> Typed | None:
    """What becomes of ``value`` where a ``base`` is needed; None where that is left open or inexact."""
    if base == value.base:
        return value
    if base == "bool":
        return replace(value, base=base, low=0, high=1, places=0)
    low, high = value.low, value.high
    if value.base in FLOATS:
        if base in FLOATS:
            return _checked(replace(value, base=base))
        first, last = span(base)
        return replace(value, base=base, places=0) if first <= low and high <= last else None
    if base in FLOATS:
        return _checked(replace(value, base=base))
    first, last = span(base)
    if first <= low and high <= last:
        return replace(value, base=base)
    return replace(value, base=base, low=first, high=last)


def fits(value: Typed, base: str, width: int) -> bool:
    """Whether a variable may hold ``value``, which is of its type."""
    variable = held("", base, width)
    return variable.low <= value.low and value.high <= variable.high and value.places <= variable.places


def promoted(base: str) -> str:
    return base if base in _RANKS else "int"


def common(first: str, second: str) -> str:
    """The type in which C++ computes with both."""
    return max(promoted(first), promoted(second), key=_RANKS.index)


def binary(operator: str, left: Typed, right: Typed) -> Typed | None:
    """``left operator right``; None where that is not defined, or not exact."""
    width = max(left.width, right.width)
    if width > 1:
        base = left.base if left.width > 1 else right.base
        scalar = right if left.width > 1 else left
        if left.width > 1 and right.width > 1 and left.type != right.type:
            return None
        # A scalar of a greater rank is one of the vector's elements, too.
        kept = implicit(scalar, base)
        if scalar.width == 1 and (kept is None or (kept.low, kept.high) != (scalar.low, scalar.high)):
            return None
    else:
        base = common(left.base, right.base)
    if width == 1 and "half" in (left.base, right.base):
        # Compilers choose among operators where an enumerator stands, and know none of halves.
        left, right = (
            replace(each, text=f"+{each.inner}", is_part=False, level=PREFIX) if each.is_part else each
            for each in (left, right)
        )
    level = LEVELS[operator]
    text = f"{left.operand(level)} {operator} {right.operand(level - 1)}"
    a, b = implicit(left, base), implicit(right, base)
    if a is None or b is None or base in FLOATS and operator in (*BITWISE, "%", "<<", ">>"):
        return None
    if operator in COMPARISONS:
        return Typed(text, "bool", width, 0, 1, level=level)
    if base == "bool" and operator not in BITWISE:
        return None
    limits = _limits(operator, a, b)
    if limits is None:
        return None
    places = a.places + b.places if operator == "*" else max(a.places, b.places)
    if operator == "/" and base in FLOATS:
        places = a.places + b.high.bit_length() - 1
    return _checked(Typed(text, base, width, *limits, places, level=level))


def _limits(operator: str, a: Typed, b: Typed) -> tuple[int, int] | None:
    if operator == "+":
        return a.low + b.low, a.high + b.high
    if operator == "-":
        return a.low - b.high, a.high - b.low
    if operator == "*":
        corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        return min(corners), max(corners)
    if operator in BITWISE:
        if operator == "&" and (a.low >= 0 or b.low >= 0):
            return 0, min(each.high for each in (a, b) if each.low >= 0)
        most = 2 ** max(abs(end).bit_length() for each in (a, b) for end in (each.low, each.high)) - 1
        return (0 if a.low >= 0 and b.low >= 0 else -most - 1), most
    if operator == "/":
        if b.low <= 0 or a.base in FLOATS and (b.low != b.high or b.low & (b.low - 1) or b.places):
            return None
        return min(a.low, 0), max(a.high, 0)
    if operator == "%":
        return (0, min(a.high, b.high - 1)) if a.low >= 0 and b.low > 0 else None
    if not 0 <= b.low <= b.high < (_BITS[a.base]):
        return None
    if operator == ">>":
        return min(a.low, 0), max(a.high, 0)
    return (a.low << b.low, a.high << b.high) if a.low >= 0 else None
