"""The elementwise and geometric functions of metal_stdlib.

The bounds are the specification's: for ``float`` those of section 8.4 without fast math, which ``precise::`` promises
always, and for ``fast::`` and plain names under fast math ``fast`` where it is given; for ``half`` those of its own table.
"""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

from collections.abc import Callable

import metal_oracles as oracles
import numpy as np
from metal_functions import EXACT, ROUNDED, Accuracy, Domain, Function, Parameter, Result
from metal_oracles import IntegerType, Oracle, floats, integer_type, integers
from metal_samples import DTYPES, FLOATS, INTEGERS

VARIANTS = ("", "precise::", "fast::")


def ulps(precise: float, fast: float | None = None) -> Accuracy:
    return Accuracy(precise, 1.0, fast)


def _math(
    name: str,
    function: Callable[..., object],
    accuracy: Accuracy,
    arguments: int = 1,
    *,
    domain: Domain | None = None,
    **more: object,
) -> Function:
    return Function(
        name, "math", FLOATS, floats(function), (Parameter(),) * arguments, accuracy, variants=VARIANTS, domain=domain, **more
    )  # type: ignore[arg-type]


def _not_nan(name: str, *arguments: np.ndarray) -> np.ndarray:
    return np.logical_and.reduce([~np.isnan(each) for each in arguments])


def _finite(name: str, *arguments: np.ndarray) -> np.ndarray:
    return np.logical_and.reduce([np.isfinite(each) for each in arguments])


def _powr_is_defined(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return ~np.signbit(x) & ~((x == 0) & (y == 0)) & ~(np.isinf(x) & (y == 0)) & ~((x == 1) & np.isinf(y)) & ~np.isnan(x) & ~np.isnan(y)


def _small_exponents(name: str, generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.integers(-30 if name == "half" else -160, 31 if name == "half" else 161, count).astype(np.int32)


MATH = [
    _math("acos", np.arccos, ulps(4, 5)),
    _math("acosh", np.arccosh, ulps(4)),
    _math("asin", np.arcsin, ulps(4, 5)),
    _math("asinh", np.arcsinh, ulps(4)),
    _math("atan", np.arctan, ulps(5, 5)),
    _math("atan2", np.arctan2, ulps(6), 2),
    _math("atanh", np.arctanh, ulps(5)),
    _math("ceil", np.ceil, ROUNDED),
    _math("copysign", np.copysign, EXACT, 2, domain=_not_nan),
    _math("cos", np.cos, ulps(4)),
    _math("cosh", np.cosh, ulps(4)),
    _math("cospi", oracles.cospi, ulps(4)),
    _math("divide", np.divide, Accuracy(0.5, 0.5, 2.5), 2),
    _math("exp", np.exp, ulps(4)),
    _math("exp2", np.exp2, ulps(4)),
    _math("exp10", lambda x: 10.0**x, ulps(4)),
    _math("fabs", np.abs, EXACT),
    _math("abs", np.abs, EXACT),
    _math("fdim", lambda x, y: np.where(x > y, x - y, np.where(np.isnan(x) | np.isnan(y), np.nan, 0)), ROUNDED, 2),
    _math("floor", np.floor, ROUNDED),
    _math("fma", lambda x, y, z: x * y + z, ROUNDED, 3),
    _math("fmax", np.fmax, EXACT, 2),
    _math("max", np.fmax, EXACT, 2, fast_domain=_not_nan),
    _math("fmax3", lambda x, y, z: np.fmax(x, np.fmax(y, z)), EXACT, 3),
    _math("max3", lambda x, y, z: np.fmax(x, np.fmax(y, z)), EXACT, 3, fast_domain=_not_nan),
    _math("fmedian3", oracles.median3, EXACT, 3, domain=_not_nan),
    _math("median3", oracles.median3, EXACT, 3, domain=_not_nan),
    _math("fmin", np.fmin, EXACT, 2),
    _math("min", np.fmin, EXACT, 2, fast_domain=_not_nan),
    _math("fmin3", lambda x, y, z: np.fmin(x, np.fmin(y, z)), EXACT, 3),
    _math("min3", lambda x, y, z: np.fmin(x, np.fmin(y, z)), EXACT, 3, fast_domain=_not_nan),
    _math("fmod", np.fmod, EXACT, 2),
    Function("fract", "math", FLOATS, oracles.fract, accuracy=ROUNDED, variants=VARIANTS),
    _math("frexp", oracles.frexp, EXACT, domain=_finite, results=(Result(), Result("int")), statement="{R1} r1; {R0} r0 = {f}(x0, r1);"),
    _math("ilogb", oracles.ilogb, EXACT, domain=lambda name, x: np.isfinite(x) & (x != 0), results=(Result("int"),)),
    Function("ldexp", "math", FLOATS, floats(lambda x, k: np.ldexp(x, k.astype(int))), (Parameter(), Parameter("int", draw=_small_exponents)), ROUNDED, variants=VARIANTS),
    _math("log", np.log, ulps(4)),
    _math("log2", np.log2, ulps(4)),
    _math("log10", np.log10, ulps(4)),
    _math("modf", oracles.modf, EXACT, results=(Result(), Result()), statement="{R1} r1; {R0} r0 = {f}(x0, r1);"),
    Function("nextafter", "math", FLOATS, oracles.nextafter, (Parameter(), Parameter()), EXACT, variants=VARIANTS),
    _math("pow", np.power, ulps(16), 2, domain=lambda name, x, y: ~((x == 0) & (y == 0))),
    _math("powr", np.power, ulps(16), 2, domain=_powr_is_defined),
    _math("rint", np.rint, ROUNDED),
    _math("round", oracles.round_half_away, ROUNDED),
    _math("rsqrt", lambda x: 1 / np.sqrt(x), Accuracy(0.5, 0.5, 2)),
    _math("sin", np.sin, ulps(4)),
    _math("sincos", lambda x: (np.sin(x), np.cos(x)), ulps(4), results=(Result(), Result()), statement="{R1} r1; {R0} r0 = {f}(x0, r1);"),
    _math("sinh", np.sinh, ulps(4)),
    _math("sinpi", oracles.sinpi, ulps(4)),
    _math("sqrt", np.sqrt, Accuracy(0.5, 0.5, 3)),
    _math("tan", np.tan, ulps(6)),
    _math("tanh", np.tanh, ulps(5)),
    _math("tanpi", lambda x: oracles.sinpi(x) / oracles.cospi(x), ulps(6), domain=lambda name, x: oracles.cospi(x) != 0),
    _math("trunc", np.trunc, ROUNDED),
]  # fmt: skip


def _common(name: str, function: Callable[..., object], accuracy: Accuracy, arguments: int = 1, **more: object) -> Function:
    return Function(name, "common", FLOATS, floats(function), (Parameter(),) * arguments, accuracy, **more)  # type: ignore[arg-type]


def _unit_interval(name: str, generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.integers(0, 65, count).astype(DTYPES[name]) / 64


COMMON = [
    _common("clamp", lambda x, low, high: np.fmin(np.fmax(x, low), high), EXACT, 3, variants=VARIANTS, domain=lambda name, x, low, high: low <= high, fast_domain=_not_nan),
    Function("mix", "common", FLOATS, floats(lambda x, y, a: x + (y - x) * a), (Parameter(), Parameter(), Parameter(draw=_unit_interval)), Accuracy(3, 3),
             domain=lambda name, x, y, a: np.abs(x) + np.abs(y) < np.finfo(DTYPES[name]).max, scale=lambda x, y, a: np.abs(x) + np.abs(y)),
    _common("saturate", lambda x: np.fmin(np.fmax(x, 0), 1), EXACT, variants=VARIANTS, fast_domain=_not_nan),
    _common("sign", lambda x: np.where(np.isnan(x), 0, np.sign(x)), EXACT),
    _common("smoothstep", oracles.smoothstep, Accuracy(10, 10), 3,
            domain=lambda name, low, high, x: (low < high) & _finite(name, low, high, x) & (high - low < np.finfo(DTYPES[name]).max) & (high - low > 100 * np.finfo(DTYPES[name]).tiny) & (np.abs(x - low) < np.finfo(DTYPES[name]).max),
            scale=lambda low, high, x: np.ones_like(x)),
    _common("step", lambda edge, x: np.where(x < edge, 0.0, 1.0), EXACT, 2, domain=_not_nan),
]  # fmt: skip


def _integer(name: str, function: Callable[..., int], arguments: int = 1, **more: object) -> Function:
    more.setdefault("types", INTEGERS)
    return Function(name, "integer", oracle=integers(function), parameters=(Parameter(),) * arguments, **more)  # type: ignore[arg-type]


def _where(test: Callable[..., bool]) -> Domain:
    """A domain by a test of each element, given its type and the arguments."""

    def domain(name: str, *arguments: np.ndarray) -> np.ndarray:
        kind = integer_type(name)
        return np.frompyfunc(lambda *values: test(kind, *values), len(arguments), 1)(*arguments).astype(bool)

    return domain


def _fits(t: IntegerType, value: int) -> bool:
    """Whether Metal defines an operation whose exact result is ``value``: signed overflow is undefined."""
    return not t.signed or t.low <= value <= t.high


def _24_bits(name: str, generator: np.random.Generator, count: int) -> np.ndarray:
    low = -(1 << 23) if name == "int" else 0
    return (generator.integers(low, low + (1 << 24), count) >> generator.integers(0, 24, count)).astype(DTYPES[name])


def _offsets(name: str, generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.integers(0, integer_type(name).bits, count).astype(np.uint32)


def _widths(name: str, generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.integers(0, integer_type(name).bits + 1, count).astype(np.uint32)


_FIELD = (Parameter("uint", True, _offsets), Parameter("uint", True, _widths))
_FOUR_24_BITS = (Parameter(draw=_24_bits), Parameter(draw=_24_bits))

INTEGER = [
    _integer("abs", lambda t, x: abs(x), domain=_where(lambda t, x: _fits(t, abs(x)))),
    _integer("absdiff", lambda t, x, y: abs(x - y), 2, results=(Result("Tu"),)),
    _integer("addsat", lambda t, x, y: t.saturate(x + y), 2),
    _integer("clamp", lambda t, x, low, high: min(max(x, low), high), 3, domain=_where(lambda t, x, low, high: low <= high)),
    _integer("clz", oracles.count_leading_zeros),
    _integer("ctz", oracles.count_trailing_zeros),
    Function("extract_bits", "integer", INTEGERS, integers(oracles.extract_bits), (Parameter(), *_FIELD),
             domain=_where(lambda t, x, offset, bits: offset + bits <= t.bits)),
    _integer("hadd", lambda t, x, y: (x + y) >> 1, 2),
    Function("insert_bits", "integer", INTEGERS, integers(oracles.insert_bits), (Parameter(), Parameter(), *_FIELD),
             domain=_where(lambda t, x, y, offset, bits: offset + bits <= t.bits)),
    Function("mad24", "integer", ("int", "uint"), integers(lambda t, x, y, z: t.wrap(x * y + z)), (*_FOUR_24_BITS, Parameter()),
             domain=_where(lambda t, x, y, z: _fits(t, x * y) and _fits(t, x * y + z))),
    _integer("madhi", lambda t, x, y, z: t.wrap((x * y >> t.bits) + z), 3, domain=_where(lambda t, x, y, z: _fits(t, (x * y >> t.bits) + z))),
    _integer("madsat", lambda t, x, y, z: t.saturate(x * y + z), 3),
    _integer("max", lambda t, x, y: max(x, y), 2),
    _integer("max3", lambda t, x, y, z: max(x, y, z), 3),
    _integer("median3", lambda t, x, y, z: sorted((x, y, z))[1], 3),
    _integer("min", lambda t, x, y: min(x, y), 2),
    _integer("min3", lambda t, x, y, z: min(x, y, z), 3),
    Function("mul24", "integer", ("int", "uint"), integers(lambda t, x, y: t.wrap(x * y)), _FOUR_24_BITS, domain=_where(lambda t, x, y: _fits(t, x * y))),
    _integer("mulhi", lambda t, x, y: x * y >> t.bits, 2),
    _integer("popcount", lambda t, x: t.raw(x).bit_count()),
    _integer("reverse_bits", oracles.reverse_bits),
    _integer("rhadd", lambda t, x, y: (x + y + 1) >> 1, 2),
    _integer("rotate", oracles.rotate, 2),
    _integer("subsat", lambda t, x, y: t.saturate(x - y), 2),
]  # fmt: skip


def _test(name: str, function: Callable[..., object], arguments: int = 1, oracle: Oracle | None = None) -> Function:
    return Function(name, "relational", FLOATS, oracle or floats(function), (Parameter(),) * arguments, results=(Result("bool"),))


def _truths(name: str, generator: np.random.Generator, count: int) -> np.ndarray:
    # Long runs, so that whole vectors are of one kind often enough.
    return np.repeat(generator.integers(0, 2, count // 3 + 1), 3)[:count].astype(np.bool_)


TRUTH = Parameter("bool", draw=_truths)

RELATIONAL = [
    Function("all", "relational", ("bool",), floats(lambda x: x.astype(bool).all(-1)), (TRUTH,), results=(Result("bool", True),)),
    Function("any", "relational", ("bool",), floats(lambda x: x.astype(bool).any(-1)), (TRUTH,), results=(Result("bool", True),)),
    _test("isfinite", np.isfinite),
    _test("isinf", np.isinf),
    _test("isnan", np.isnan),
    _test("isnormal", np.isfinite, oracle=oracles.is_normal),
    _test("isordered", lambda x, y: ~np.isnan(x) & ~np.isnan(y), 2),
    _test("isunordered", lambda x, y: np.isnan(x) | np.isnan(y), 2),
    Function("not", "relational", ("bool",), floats(lambda x: ~x.astype(bool)), (TRUTH,), results=(Result("bool"),)),
    Function("select", "relational", (*FLOATS, *INTEGERS), lambda name, x, y, c: np.where(c.astype(bool), y, x), (Parameter(), Parameter(), TRUTH)),
    _test("signbit", np.signbit),
]  # fmt: skip


def _moderate(name: str, generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.normal(size=count).astype(DTYPES[name])


def _unit(name: str, generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.uniform(0.5, 2, count).astype(DTYPES[name])


def _geometric(
    name: str, oracle: Oracle, arguments: int, error: float, scale: Callable[..., np.ndarray] | None = None, **more: object
) -> Function:
    more.setdefault("widths", (2, 3, 4))
    parameters = (Parameter(draw=_moderate),) * arguments
    return Function(name, "geometric", FLOATS, oracle, parameters, Accuracy(error, error), scale=scale, **more)  # type: ignore[arg-type]


def _magnitude(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return oracles.dot(np.abs(x), np.abs(y))


_SCALAR = (Result(scalar=True),)

# The specification leaves their accuracy open: the bounds are those of a sum of as many terms as a vector has.
GEOMETRIC = [
    _geometric("cross", floats(np.cross), 2, 2, lambda x, y: np.abs(x[:, [1, 2, 0]] * y[:, [2, 0, 1]]) + np.abs(x[:, [2, 0, 1]] * y[:, [1, 2, 0]]), widths=(3,)),
    _geometric("distance", floats(lambda x, y: oracles.length(x - y)), 2, 6, lambda x, y: oracles.length(np.abs(x) + np.abs(y)), results=_SCALAR),
    _geometric("distance_squared", floats(lambda x, y: oracles.dot(x - y, x - y)), 2, 6, lambda x, y: oracles.dot(np.abs(x) + np.abs(y), np.abs(x) + np.abs(y)), results=_SCALAR),
    _geometric("dot", floats(oracles.dot), 2, 4, _magnitude, results=_SCALAR),
    _geometric("faceforward", floats(lambda n, i, r: np.where(oracles.dot(r, i)[:, None] < 0, n, -n)), 3, 0,
               domain=lambda name, n, i, r: (np.abs(oracles.dot(r, i)) > 8 * np.finfo(DTYPES[name]).eps * _magnitude(r, i))[:, None] & (n == n)),
    _geometric("length", floats(oracles.length), 1, 5, results=_SCALAR),
    _geometric("length_squared", floats(lambda x: oracles.dot(x, x)), 1, 4, results=_SCALAR),
    _geometric("normalize", floats(lambda x: x / oracles.length(x)[:, None]), 1, 6),
    _geometric("reflect", floats(oracles.reflect), 2, 8, lambda i, n: np.abs(i) + 2 * _magnitude(i, n)[:, None] * np.abs(n)),
    Function("refract", "geometric", FLOATS, floats(oracles.refract), (Parameter(draw=_moderate), Parameter(draw=_moderate), Parameter(scalar=True, draw=_unit)), Accuracy(64, 64), widths=(2, 3, 4),
             domain=lambda name, i, n, eta: np.abs(1 - eta * eta * (1 - oracles.dot(n, i)[:, None] ** 2)) + 0 * i > 0.05,
             scale=lambda i, n, eta: np.abs(eta * i) + np.abs(n) * (1 + 2 * eta * _magnitude(n, i)[:, None]) ** 2),
]  # fmt: skip
