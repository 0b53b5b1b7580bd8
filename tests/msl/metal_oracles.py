"""What functions of the library should give: float64 mathematics for floats, Python's integers for integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from metal_samples import DTYPES

Oracle = Callable[..., object]


@dataclass(frozen=True)
class IntegerType:
    """An integer type of Metal, for arithmetic in Python's integers."""

    bits: int
    signed: bool

    @property
    def low(self) -> int:
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        return (1 << (self.bits - self.signed)) - 1

    def wrap(self, value: int) -> int:
        value &= (1 << self.bits) - 1
        return value - (1 << self.bits) if self.signed and value >> (self.bits - 1) else value

    def saturate(self, value: int) -> int:
        return min(max(value, self.low), self.high)

    def raw(self, value: int) -> int:
        """The bits of ``value`` as a number that is not negative."""
        return value & ((1 << self.bits) - 1)


def integer_type(name: str) -> IntegerType:
    bounds = np.iinfo(DTYPES[name])
    return IntegerType(bounds.bits, bounds.min < 0)


def integers(function: Callable[..., int]) -> Oracle:
    """An oracle that applies ``function(type, x, ...)`` to each element."""

    def oracle(name: str, *arrays: np.ndarray) -> np.ndarray:
        kind = integer_type(name)
        return np.frompyfunc(lambda *values: function(kind, *values), len(arrays), 1)(*arrays)

    return oracle


def floats(function: Callable[..., object]) -> Oracle:
    """An oracle that applies a NumPy function to float64 arrays."""
    return lambda name, *arrays: function(*arrays)


def round_half_away(x: np.ndarray) -> np.ndarray:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def largest_below_one(name: str) -> float:
    return float(np.nextafter(DTYPES[name](1), DTYPES[name](0)))


def fract(name: str, x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.minimum(x - np.floor(x), largest_below_one(name))


def _reduced(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``x`` as quadrants of half a period of one, and what is left, in [-1/4, 1/4]."""
    with np.errstate(invalid="ignore"):
        folded = np.fmod(x, 2)
        quadrant = np.rint(2 * folded)
        return np.where(np.isfinite(folded), quadrant, 0).astype(int) % 4, folded - quadrant / 2


def sinpi(x: np.ndarray) -> np.ndarray:
    quadrant, rest = _reduced(x)
    sine, cosine = np.sin(np.pi * rest), np.cos(np.pi * rest)
    return np.choose(quadrant, [sine, cosine, -sine, -cosine])


def cospi(x: np.ndarray) -> np.ndarray:
    quadrant, rest = _reduced(x)
    sine, cosine = np.sin(np.pi * rest), np.cos(np.pi * rest)
    return np.choose(quadrant, [cosine, -sine, -cosine, sine])


def median3(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return np.maximum(np.minimum(x, y), np.minimum(np.maximum(x, y), z))


def smoothstep(low: np.ndarray, high: np.ndarray, x: np.ndarray) -> np.ndarray:
    t = np.clip((x - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def frexp(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    fraction, exponent = np.frexp(x)
    return fraction, exponent


def modf(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    fraction, whole = np.modf(x)
    return fraction, whole


def ilogb(x: np.ndarray) -> np.ndarray:
    return np.frexp(x)[1] - 1


def nextafter(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    dtype = DTYPES[name]
    return np.nextafter(x.astype(dtype), y.astype(dtype))


def is_normal(name: str, x: np.ndarray) -> np.ndarray:
    return np.isfinite(x) & (np.abs(x) >= np.finfo(DTYPES[name]).smallest_normal)


def dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x * y).sum(-1)


def length(x: np.ndarray) -> np.ndarray:
    return np.sqrt(dot(x, x))


def reflect(i: np.ndarray, n: np.ndarray) -> np.ndarray:
    return i - 2 * dot(n, i)[:, None] * n


def refract(i: np.ndarray, n: np.ndarray, eta: np.ndarray) -> np.ndarray:
    d = dot(n, i)[:, None]
    k = 1 - eta * eta * (1 - d * d)
    return np.where(k < 0, 0.0, eta * i - (eta * d + np.sqrt(np.fmax(k, 0))) * n)


def count_leading_zeros(t: IntegerType, x: int) -> int:
    return t.bits - t.raw(x).bit_length()


def count_trailing_zeros(t: IntegerType, x: int) -> int:
    bits = t.raw(x)
    return (bits & -bits).bit_length() - 1 if bits else t.bits


def reverse_bits(t: IntegerType, x: int) -> int:
    return t.wrap(int(f"{t.raw(x):0{t.bits}b}"[::-1], 2))


def rotate(t: IntegerType, x: int, count: int) -> int:
    count %= t.bits
    return t.wrap(t.raw(x) << count | t.raw(x) >> (t.bits - count))


def extract_bits(t: IntegerType, x: int, offset: int, bits: int) -> int:
    if bits == 0:
        return 0
    field = t.raw(x) >> offset & ((1 << bits) - 1)
    return field - (1 << bits) if t.signed and field >> (bits - 1) else field


def insert_bits(t: IntegerType, base: int, insert: int, offset: int, bits: int) -> int:
    mask = ((1 << bits) - 1) << offset
    return t.wrap(t.raw(base) & ~mask | t.raw(insert) << offset & mask)
