"""What expressions of Metal are worth: exact integers and truth values, floats with a bound on their error.

A value is known where Metal defines it: not after a signed overflow, a conversion out of range, or a choice that
depends on floats which are closer to each other than their error bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from metal_oracles import IntegerType, integer_type
from ulps import FORMATS

RANKS = ("bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")
FLOATS = ("half", "float")


@dataclass(frozen=True)
class Type:
    """A scalar or vector type: ``int`` is Type("int"), ``int3`` is Type("int", 3)."""

    base: str
    width: int = 1

    def __str__(self) -> str:
        return self.base + (str(self.width) if self.width > 1 else "")

    @property
    def is_float(self) -> bool:
        return self.base in FLOATS

    @property
    def is_bool(self) -> bool:
        return self.base == "bool"

    @property
    def is_integer(self) -> bool:
        return not self.is_float and not self.is_bool

    @property
    def element(self) -> Type:
        return Type(self.base)

    def of(self, base: str) -> Type:
        return Type(base, self.width)


@dataclass(frozen=True)
class Value:
    """``data`` has components x lanes: Python's integers, float64 or bool. Floats are off by ``error`` at most.

    Fast math may compute the sums and products that a float was made of in another order: ``largest`` and ``smallest``
    bound what is met on the way.
    """

    type: Type
    data: np.ndarray
    error: np.ndarray
    known: np.ndarray
    largest: np.ndarray = field(default_factory=lambda: np.zeros(0))
    smallest: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if self.type.is_float and self.largest.shape != self.data.shape:
            magnitude = np.abs(self.data)
            object.__setattr__(self, "largest", magnitude)
            object.__setattr__(self, "smallest", np.where(magnitude > 0, magnitude, 1.0))

    def component(self, *places: int) -> Value:
        chosen = list(places)
        return Value(
            Type(self.type.base, len(chosen)),
            self.data[chosen],
            self.error[chosen],
            self.known[chosen],
            *((self.largest[chosen], self.smallest[chosen]) if self.type.is_float else ()),
        )

    def replaced(self, places: list[int], part: Value) -> Value:
        """The vector with other components in some places."""
        arrays = []
        for mine, other in zip(self._arrays(), part._arrays(), strict=True):
            changed = mine.copy()
            changed[places] = other
            arrays.append(changed)
        return Value(self.type, *arrays)

    def _arrays(self) -> list[np.ndarray]:
        arrays = [self.data, self.error, self.known]
        return [*arrays, self.largest, self.smallest] if self.type.is_float else arrays

    def widened(self, width: int) -> Value:
        """A scalar as a vector."""
        if self.type.width == width:
            return self
        return self.component(*[0] * width)


def exact(kind: Type, data: np.ndarray) -> Value:
    """A value without error. ``data`` is what a buffer holds: components x lanes."""
    data = data.astype(object if kind.is_integer else np.float64 if kind.is_float else bool)
    return Value(kind, data, np.zeros(data.shape), np.ones(data.shape, bool))


def arithmetic_type(left: Type, right: Type) -> Type:
    """The type in which Metal computes with two operands: that of the vector, else C++'s."""
    if left.width > 1 or right.width > 1:
        return left if left.width > 1 else right
    if left.is_float or right.is_float:
        return Type("float" if "float" in (left.base, right.base) else "half")
    return Type(RANKS[max(RANKS.index(left.base), RANKS.index(right.base), RANKS.index("int"))])


def promoted(kind: Type) -> Type:
    """The type of ``-x`` and ``~x``."""
    if kind.width == 1 and not kind.is_float:
        return Type(RANKS[max(RANKS.index(kind.base), RANKS.index("int"))])
    return kind


def _rounding(kind: Type, magnitude: np.ndarray) -> np.ndarray:
    """Two units in the last place of ``magnitude``, or of the smallest normal number, which may count as zero."""
    form = FORMATS[kind.base]
    return 2 * np.maximum(np.abs(magnitude) * 2.0**-form.fraction_bits, form.smallest_normal)


def _checked(value: Value) -> Value:
    """``value``, unknown where it, or what it is made of, may overflow or be too small to be normal."""
    form = FORMATS[value.type.base]
    with np.errstate(invalid="ignore"):
        reach = np.maximum(np.abs(value.data), value.largest) + value.error
        fits = np.isfinite(value.data) & (reach < form.overflow / 8)
        fits &= value.smallest > 8 * form.smallest_normal
    return Value(
        value.type,
        np.where(fits, value.data, 0.0),
        np.where(fits, value.error, 0.0),
        value.known & fits,
        np.where(fits, value.largest, 0.0),
        np.where(fits, value.smallest, 1.0),
    )


def _wrap(kind: IntegerType, data: np.ndarray) -> np.ndarray:
    return np.frompyfunc(kind.wrap, 1, 1)(data)


def _in_range(kind: IntegerType, data: np.ndarray) -> np.ndarray:
    return ((data >= kind.low) & (data <= kind.high)).astype(bool)


def convert(value: Value, base: str) -> Value:
    """The components of ``value`` as elements of another type."""
    source, target = value.type, value.type.of(base)
    if base == source.base:
        return value
    nothing = np.zeros(value.data.shape)
    if base == "bool":
        if source.is_float:
            is_sure = (np.abs(value.data) > value.error) | (value.error == 0)
            return Value(target, value.data != 0, nothing, value.known & is_sure)
        return Value(target, (value.data != 0).astype(bool), nothing, value.known)
    if target.is_float:
        data = value.data.astype(np.float64)
        rounding = np.zeros(data.shape)
        if not (source.base == "half" or source.is_bool):
            rounding = _rounding(target, data)
        reach = (value.largest, value.smallest) if source.is_float else ()
        return _checked(Value(target, data, value.error + rounding, value.known, *reach))
    kind = integer_type(base)
    if source.is_float:
        low, high = np.trunc(value.data - value.error), np.trunc(value.data + value.error)
        fits = (low == high) & (low >= kind.low) & (low <= kind.high - 1024 if kind.bits == 64 else low <= kind.high)
        whole = np.where(fits, low, 0.0)
        return Value(target, np.frompyfunc(int, 1, 1)(whole), nothing, value.known & fits)
    if source.is_bool:
        return Value(target, value.data.astype(np.int64).astype(object), nothing, value.known)
    return Value(target, _wrap(kind, value.data), nothing, value.known)


def binary(operator: str, left: Value, right: Value) -> Value:
    """``left operator right`` for arithmetic, bitwise and shift operators."""
    if operator in ("<<", ">>"):
        kind = left.type if left.type.width > 1 else promoted(left.type)
        right = right.widened(kind.width)
        left = convert(left, kind.base)
    else:
        kind = arithmetic_type(left.type, right.type)
        left, right = convert(left, kind.base).widened(kind.width), convert(right, kind.base).widened(kind.width)
    if kind.is_float:
        return _float_binary(operator, left, right)
    return _integer_binary(operator, left, right)


def _float_binary(operator: str, left: Value, right: Value) -> Value:
    a, b, kind = left.data, right.data, left.type
    known = left.known & right.known
    largest, smallest = left.largest + right.largest, np.minimum(left.smallest, right.smallest)
    if operator == "*":
        largest = np.maximum(left.largest, 1) * np.maximum(right.largest, 1)
        smallest = np.minimum(left.smallest, 1) * np.minimum(right.smallest, 1)
    elif operator == "/":
        largest = np.maximum(left.largest, 1) * np.maximum(1 / right.smallest, 1)
        smallest = np.minimum(left.smallest, 1) / np.maximum(right.largest, 1)
    with np.errstate(all="ignore"):
        if operator in "+-":
            data = a + b if operator == "+" else a - b
            error = left.error + right.error + _rounding(kind, np.abs(a) + np.abs(b))
        elif operator == "*":
            data = a * b
            error = np.abs(a) * right.error + np.abs(b) * left.error + left.error * right.error + _rounding(kind, data)
        else:
            form = FORMATS[kind.base]
            known &= (far := (np.abs(b) > 4 * right.error) & (np.abs(b) > 4 * form.smallest_normal))
            divisor = np.where(far, b, 1.0)
            data = a / divisor
            error = (left.error + np.abs(data) * right.error) / (np.abs(divisor) - right.error * far)
            error += 2 * _rounding(kind, data)
    return _checked(Value(kind, data, error, known, largest, smallest))


def _integer_binary(operator: str, left: Value, right: Value) -> Value:
    kind = integer_type(left.type.base)
    a, b, known = left.data, right.data, left.known & right.known
    if operator in ("/", "%"):
        if operator == "%":
            known = known & ((a >= 0) & (b > 0)).astype(bool)
        quotient = np.frompyfunc(lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1), 2, 1)(a, b)
        data = quotient if operator == "/" else a - quotient * b
    elif operator in ("<<", ">>"):
        counts = np.frompyfunc(lambda n: n % kind.bits, 1, 1)(b)
        data = a << counts if operator == "<<" else a >> counts
        if operator == "<<":
            # A bit may be shifted into or past the sign.
            return Value(left.type, _wrap(kind, data), np.zeros(data.shape), known)
    else:
        functions = {
            "+": np.add, "-": np.subtract, "*": np.multiply, "&": np.bitwise_and, "|": np.bitwise_or,
            "^": np.bitwise_xor,
        }  # fmt: skip
        data = functions[operator](a, b)
    if kind.signed:
        # Small vectors wrap element by element; Metal promises nothing of signed overflow.
        known = known & _in_range(kind, data)
    return Value(left.type, _wrap(kind, data), np.zeros(data.shape), known)


def compare(operator: str, left: Value, right: Value) -> Value:
    """A comparison, component by component."""
    kind = arithmetic_type(left.type, right.type)
    left, right = convert(left, kind.base).widened(kind.width), convert(right, kind.base).widened(kind.width)
    functions: dict[str, Callable[..., np.ndarray]] = {
        "<": np.less, ">": np.greater, "<=": np.less_equal, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
    }  # fmt: skip
    data = functions[operator](left.data, right.data).astype(bool)
    known = left.known & right.known
    if kind.is_float:
        margin = left.error + right.error
        known &= (np.abs(left.data - right.data) > margin) | (margin == 0)
    return Value(kind.of("bool"), data, np.zeros(data.shape), known)


def logical(operator: str, left: Value, right: Value) -> Value:
    """``&&`` and ``||`` of scalars, ``&``, ``|`` and ``^`` of vectors of truth values."""
    functions = {
        "&&": np.logical_and, "||": np.logical_or, "&": np.logical_and, "|": np.logical_or, "^": np.logical_xor,
    }  # fmt: skip
    known = left.known & right.known
    data = functions[operator](left.data.astype(bool), right.data.astype(bool))
    return Value(left.type, data, np.zeros(data.shape), known)


def negate(operator: str, value: Value) -> Value:
    """``-x``, ``~x`` or ``!x``."""
    if operator == "!":
        return Value(value.type, ~value.data, value.error, value.known)
    kind = promoted(value.type)
    value = convert(value, kind.base)
    if kind.is_float:
        return Value(kind, -value.data, value.error, value.known, value.largest, value.smallest)
    bits = integer_type(kind.base)
    data = -value.data if operator == "-" else ~value.data
    known = value.known & _in_range(bits, data) if bits.signed else value.known
    return Value(kind, _wrap(bits, data), value.error, known)


def choose(condition: Value, yes: Value, no: Value) -> Value:
    """``yes`` where the condition holds, else ``no``; a scalar condition chooses whole vectors."""
    mask = np.broadcast_to(condition.data, yes.data.shape)
    sure = np.broadcast_to(condition.known, yes.data.shape)
    return Value(
        yes.type,
        np.where(mask, yes.data, no.data),
        np.where(mask, yes.error, no.error),
        sure & np.where(mask, yes.known, no.known),
    )


def reduce_truth(name: str, value: Value) -> Value:
    """``any`` or ``all`` of a vector of truth values."""
    function = np.any if name == "any" else np.all
    known = value.known.all(0, keepdims=True)
    data = function(value.data, 0, keepdims=True)
    return Value(Type("bool"), data, np.zeros(data.shape), known)


def joined(kind: Type, parts: list[Value]) -> Value:
    """A vector constructor from scalars and vectors."""
    pieces = [convert(part, kind.base) for part in parts]
    data, error, known = (np.concatenate([getattr(p, name) for p in pieces]) for name in ("data", "error", "known"))
    return Value(kind, data, error, known)


def apply_float(function: Callable[..., np.ndarray], units: float, *arguments: Value) -> Value:
    """A smooth or piecewise linear function of floats, with ``units`` in the last place of its own error.

    What the errors of the arguments do is measured at their ends; the function has to be monotonic in between.
    """
    kind = arguments[0].type
    with np.errstate(all="ignore"):
        data = function(*(each.data for each in arguments))
        spread = np.zeros(data.shape)
        for k in range(len(arguments)):
            for sign in (-1, 1):
                moved = [a.data + (sign * a.error if i == k else 0) for i, a in enumerate(arguments)]
                spread += 2 * np.abs(function(*moved) - data)
        error = spread + (units / 2) * _rounding(kind, data) if units else spread
    known = np.logical_and.reduce([each.known for each in arguments])
    return _checked(Value(kind, data, np.where(np.isfinite(error), error, np.inf), known))


def apply_step(function: Callable[..., np.ndarray], *arguments: Value) -> Value:
    """A function of floats that jumps, such as ``floor``: unknown where the arguments' errors reach a jump."""
    kind = arguments[0].type
    ends = []
    for sign in (-1, 1):
        ends.append(function(*(each.data + sign * each.error for each in arguments)))
    data = function(*(each.data for each in arguments))
    known = np.logical_and.reduce([each.known for each in arguments]) & (ends[0] == data) & (ends[1] == data)
    return Value(kind, data, np.zeros(data.shape), known)


def apply_integer(function: Callable[..., int], *arguments: Value, result: Type | None = None) -> Value:
    """``function(type, x, ...)`` of each component; what leaves the range of the type is unknown."""
    kind = integer_type(arguments[0].type.base)
    data = np.frompyfunc(lambda *values: function(kind, *values), len(arguments), 1)(*(a.data for a in arguments))
    target = result or arguments[0].type
    bits = integer_type(target.base)
    known = np.logical_and.reduce([each.known for each in arguments]) & _in_range(bits, data)
    return Value(target, _wrap(bits, data), np.zeros(data.shape), known)


def agrees(value: Value, got: np.ndarray) -> np.ndarray:
    """Where ``got`` is what it should be or where nothing is known. ``got`` has components x lanes."""
    if value.type.is_float:
        slack = 2 * value.error + np.abs(value.data) * 1e-12
        with np.errstate(invalid="ignore"):
            return ~value.known | (np.abs(got.astype(np.float64) - value.data) <= slack)
    return ~value.known | (got.astype(object) == value.data).astype(bool)
