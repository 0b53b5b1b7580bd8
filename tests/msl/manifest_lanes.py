"""The functions of metal_stdlib through which the lanes of a simdgroup or a quadgroup see each other's values."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

from collections.abc import Callable

import numpy as np
from manifest_elementwise import TRUTH
from metal_functions import EXACT, Accuracy, Draw, Function, Parameter, Result
from metal_oracles import Oracle, integer_type
from metal_samples import COUNT, DTYPES, FLOATS

SIMD, QUAD = 32, 4
_INTEGERS = ("char", "uchar", "short", "ushort", "int", "uint")
_TYPES = (*FLOATS, *_INTEGERS)
_WIDE_TYPES = ("float",)


def _among(size: int, function: Callable[..., np.ndarray]) -> Oracle:
    """An oracle that gives ``function`` the arguments as groups x lanes x components, and wraps integers."""

    def oracle(name: str, *arrays: np.ndarray) -> np.ndarray:
        found = np.asarray(function(*(each.reshape(-1, size, each.shape[-1]) for each in arrays)))
        if name not in FLOATS and name != "bool":
            found = np.frompyfunc(integer_type(name).wrap, 1, 1)(found)
        return found.reshape(arrays[0].shape)

    return oracle


def _terms(name: str, generator: np.random.Generator, count: int) -> np.ndarray:
    if name in FLOATS:
        return generator.normal(size=count).astype(DTYPES[name])
    kind = integer_type(name)
    # Signed overflow is undefined.
    low, high = (-(1 << kind.bits - 7), 1 << kind.bits - 7) if kind.signed else (0, kind.high)
    return generator.integers(low, high, count, endpoint=True).astype(DTYPES[name])


def _factors(name: str, generator: np.random.Generator, count: int) -> np.ndarray:
    if name in FLOATS:
        return (generator.uniform(0.8, 1.25, count) * generator.choice([-1, 1], count)).astype(DTYPES[name])
    if integer_type(name).signed:
        return np.where(generator.random(count) < 0.1, 2, generator.choice([-1, 1], count)).astype(DTYPES[name])
    return generator.integers(1, integer_type(name).high, count, endpoint=True).astype(DTYPES[name])


def _numbers(name: str, generator: np.random.Generator, count: int) -> np.ndarray:
    if name in FLOATS:
        return generator.normal(size=count).astype(DTYPES[name])
    kind = integer_type(name)
    return generator.integers(kind.low, kind.high, count, endpoint=True).astype(DTYPES[name])


def _product_fits(size: int) -> Callable[..., np.ndarray]:
    def domain(name: str, x: np.ndarray) -> np.ndarray:
        if name in FLOATS or not integer_type(name).signed:
            return np.True_
        products = np.multiply.accumulate(np.abs(x.reshape(-1, size, x.shape[-1])), axis=1)
        return np.broadcast_to(products[:, -1:] <= integer_type(name).high, products.shape).reshape(x.shape)

    return domain


def _uniform(size: int, count_of_values: int) -> Draw:
    """One number for each group."""
    return lambda name, generator, count: np.repeat(generator.integers(0, count_of_values, count // size), size).astype(np.uint16)


def _any_lane(size: int) -> Draw:
    return lambda name, generator, count: generator.integers(0, size, count).astype(np.uint16)


def _all_lanes(reduce: Callable[..., np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.broadcast_to(reduce(x, axis=1, keepdims=True), x.shape)


def _exclusive(accumulate: Callable[..., np.ndarray], neutral: int) -> Callable[[np.ndarray], np.ndarray]:
    def function(x: np.ndarray) -> np.ndarray:
        inclusive = accumulate(x, axis=1)
        return np.concatenate([np.full_like(inclusive[:, :1], neutral), inclusive[:, :-1]], axis=1)

    return function


def _from_lanes(size: int, source: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A function that takes for each lane the value of lane ``source(lane, *arguments)``."""

    def function(x: np.ndarray, *arguments: np.ndarray) -> np.ndarray:
        lane = np.arange(size)[None, :, None]
        chosen = source(lane, *(each.astype(int) for each in arguments)).astype(int)
        return np.take_along_axis(x, np.broadcast_to(chosen, (x.shape[0], size, 1)) + np.zeros_like(x, int), axis=1)

    return function


def _group(prefix: str, size: int) -> list[Function]:
    inside = size - 1
    last = _all_lanes

    def reduction(name: str, function: Callable[..., np.ndarray], types: tuple[str, ...], draw: Draw, **more: object) -> Function:
        return Function(f"{prefix}_{name}", prefix, types, _among(size, function), (Parameter(draw=draw),), wide_types=_WIDE_TYPES, **more)  # type: ignore[arg-type]

    def scale(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        return lambda x: function(np.abs(x).reshape(-1, size, x.shape[-1])).reshape(x.shape)

    def movement(name: str, source: Callable[..., np.ndarray], *parameters: Parameter) -> Function:
        oracle = _among(size, _from_lanes(size, source))
        return Function(f"{prefix}_{name}", prefix, _TYPES, oracle, (Parameter(draw=_numbers), *parameters), wide_types=_WIDE_TYPES)

    def distance(high: int = size) -> Parameter:
        return Parameter("ushort", True, _uniform(size, high))

    def test(name: str, function: Callable[..., np.ndarray]) -> Function:
        return Function(f"{prefix}_{name}", prefix, ("bool",), _among(size, function), (TRUTH,), results=(Result("bool"),), widths=(1,))

    def mask(x: np.ndarray) -> np.ndarray:
        bits = (x.astype(bool) * (1 << np.arange(size, dtype=np.uint64))[None, :, None]).sum(axis=1, keepdims=True)
        return np.broadcast_to(bits, x.shape)

    rounding = Accuracy(size / 2, size / 2)
    vote = f"{prefix}_vote"
    return [
        reduction("sum", last(np.sum), _TYPES, _terms, accuracy=rounding, scale=scale(last(np.sum))),
        reduction("product", last(np.prod), _TYPES, _factors, accuracy=rounding, domain=_product_fits(size)),
        reduction("max", last(np.max), _TYPES, _numbers),
        reduction("min", last(np.min), _TYPES, _numbers),
        reduction("and", last(np.bitwise_and.reduce), _INTEGERS, _numbers),
        reduction("or", last(np.bitwise_or.reduce), _INTEGERS, _numbers),
        reduction("xor", last(np.bitwise_xor.reduce), _INTEGERS, _numbers),
        reduction("prefix_inclusive_sum", lambda x: np.add.accumulate(x, axis=1), _TYPES, _terms, accuracy=rounding, scale=scale(lambda x: np.add.accumulate(x, axis=1))),
        reduction("prefix_exclusive_sum", _exclusive(np.add.accumulate, 0), _TYPES, _terms, accuracy=rounding, scale=scale(_exclusive(np.add.accumulate, 0))),
        reduction("prefix_inclusive_product", lambda x: np.multiply.accumulate(x, axis=1), _TYPES, _factors, accuracy=rounding, domain=_product_fits(size)),
        reduction("prefix_exclusive_product", _exclusive(np.multiply.accumulate, 1), _TYPES, _factors, accuracy=rounding, domain=_product_fits(size)),
        movement("broadcast", lambda lane, n: n, distance()),
        movement("broadcast_first", lambda lane: lane * 0),
        movement("shuffle", lambda lane, n: n, Parameter("ushort", True, _any_lane(size))),
        movement("shuffle_xor", lambda lane, n: lane ^ n, distance()),
        movement("shuffle_down", lambda lane, n: np.where(lane + n < size, lane + n, lane), distance()),
        movement("shuffle_up", lambda lane, n: np.where(lane >= n, lane - n, lane), distance()),
        movement("shuffle_rotate_down", lambda lane, n: (lane + n) & inside, distance()),
        movement("shuffle_rotate_up", lambda lane, n: (lane - n) & inside, distance()),
        test("all", last(np.min)),
        test("any", last(np.max)),
        Function(f"{prefix}_is_first", prefix, ("bool",), lambda name: np.arange(COUNT) % size == 0, (), results=(Result("bool"),), widths=(1,)),
        Function(f"{prefix}_ballot", prefix, ("bool",), _among(size, mask), (TRUTH,), results=(Result("ulong"),), widths=(1,), statement=f"ulong r0 = ({vote}::vote_t){prefix}_ballot(x0);"),
        Function(vote, prefix, ("bool",), lambda name, x: (_among(size, last(np.min))(name, x), _among(size, last(np.max))(name, x)), (TRUTH,), EXACT,
                 (Result("bool"), Result("bool")), (1,), statement=f"{vote} v = {prefix}_ballot(x0); bool r0 = v.all(), r1 = v.any();"),
        Function(f"{prefix}_active_threads_mask", prefix, ("bool",), lambda name: np.uint64((1 << size) - 1), (), results=(Result("ulong"),), widths=(1,),
                 statement=f"ulong r0 = ({vote}::vote_t){prefix}_active_threads_mask();"),
    ]  # fmt: skip


LANES = _group("simd", SIMD) + _group("quad", QUAD)
