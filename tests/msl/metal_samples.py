"""Arguments for functions of the standard library: the special values of a type and random ones of every magnitude."""

from __future__ import annotations

from functools import cache

import numpy as np

COUNT = 1536
"""Elements of a sample: whole vectors of 2, 3 and 4, and a whole number of simdgroups for each."""

DTYPES: dict[str, type] = {
    "half": np.float16, "float": np.float32, "char": np.int8, "uchar": np.uint8, "short": np.int16,
    "ushort": np.uint16, "int": np.int32, "uint": np.uint32, "long": np.int64, "ulong": np.uint64, "bool": np.bool_,
}  # fmt: skip
FLOATS = ("half", "float")
INTEGERS = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")
UNSIGNED = {"char": "uchar", "short": "ushort", "int": "uint", "long": "ulong"}


def special_values(name: str) -> np.ndarray:
    """Zeros, extremes and their neighbours of the type called ``name``; for floating types also NaN and infinities."""
    dtype = DTYPES[name]
    if name in FLOATS:
        limits = np.finfo(dtype)
        positive = [
            0.0, limits.smallest_subnormal, limits.smallest_normal - limits.smallest_subnormal, limits.smallest_normal,
            limits.eps, 0.25, 0.5, 1 - limits.epsneg, 1.0, 1 + limits.eps, 1.5, 2.0, 2.5, 3.0, np.pi / 2, np.pi, 100.0,
            limits.max, np.inf,
        ]  # fmt: skip
        return np.array([*positive, *(-value for value in positive), np.nan]).astype(dtype)
    bounds = np.iinfo(dtype)
    bits = bounds.bits
    values = {0, 1, 2, 3, 7, 8, bits - 1, bits, bounds.max, bounds.max - 1, bounds.max // 2, bounds.max // 2 + 1}
    values |= {bounds.min, bounds.min + 1, 0x55 % (bounds.max + 1)}
    if bounds.min < 0:
        values |= {-1, -2, -3, -7, -bits, bounds.min // 2}
    return np.array(sorted(values), dtype)


def _random(name: str, count: int, generator: np.random.Generator) -> np.ndarray:
    dtype = DTYPES[name]
    kind = generator.integers(0, 6, count)
    sign = generator.choice([-1.0, 1.0], count)
    if name in FLOATS:
        lowest, highest = (-24, 15.9) if name == "half" else (-148, 127.9)
        values = np.select(
            [kind == 0, kind == 1, kind == 2, kind == 3, kind == 4],
            [
                generator.uniform(-1, 1, count),
                generator.uniform(-10, 10, count),
                sign * 2.0 ** generator.uniform(lowest, highest, count),
                generator.uniform(-110, 110, count),
                generator.integers(-40, 40, count) / 4,
            ],
            generator.uniform(0, 4, count),
        )
        return values.astype(dtype)
    bounds = np.iinfo(dtype)
    whole = generator.integers(bounds.min, bounds.max, count, dtype=dtype, endpoint=True)
    shifted = whole >> generator.integers(0, bounds.bits, count).astype(dtype)
    small = generator.integers(-9 if bounds.min < 0 else 0, 10, count).astype(dtype)
    return np.select([kind < 2, kind < 5], [whole, shifted], small).astype(dtype)


@cache
def sample(name: str, arguments: int) -> tuple[np.ndarray, ...]:
    """``COUNT`` values for each of up to three arguments: special values with each other, then random ones."""
    generator = np.random.default_rng(sum(map(ord, name)) + arguments)
    special = special_values(name)
    drawn = [_random(name, COUNT, generator) for _ in range(arguments)]
    if arguments == 1:
        drawn[0][: len(special)] = special
    else:
        places = COUNT // 2
        for each in drawn:
            each[:places] = generator.choice(special, places)
        # Equal and neighbouring arguments are rare by chance.
        ties = generator.choice(COUNT, COUNT // 10, replace=False)
        drawn[1][ties] = drawn[0][ties]
    return tuple(np.ascontiguousarray(each) for each in drawn)
