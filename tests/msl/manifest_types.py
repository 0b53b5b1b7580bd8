"""What metal_stdlib says of types: conversions, limits, traits, constants, and packing of normalized numbers."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from manifest_elementwise import TRUTH
from metal_functions import EXACT, ROUNDED, Accuracy, Draw, Function, Parameter, Result
from metal_oracles import Oracle, integer_type
from metal_samples import DTYPES, FLOATS, INTEGERS

_TYPES = (*FLOATS, *INTEGERS)


# Conversions.


def _converted(target: str) -> Oracle:
    def oracle(name: str, x: np.ndarray) -> np.ndarray:
        if target == "bool":
            return x != 0
        if target in FLOATS:
            return x.astype(np.float64)
        if name in FLOATS:
            return np.frompyfunc(lambda v: int(v) if math.isfinite(v) else 0, 1, 1)(x)
        return np.frompyfunc(lambda v: integer_type(target).wrap(int(v)), 1, 1)(x)

    return oracle


def _is_representable(target: str) -> Callable[..., np.ndarray]:
    """Where a floating value has a place in an integer type after rounding towards zero."""

    def domain(name: str, x: np.ndarray) -> np.ndarray:
        if target in FLOATS or target == "bool" or name not in FLOATS:
            return np.True_
        kind = integer_type(target)
        return np.isfinite(x) & (np.trunc(x) >= kind.low) & (np.trunc(x) < float(kind.high + 1))

    return domain


CONVERSIONS = [
    Function(f"{target}(T)", "conversion", _TYPES, _converted(target), (Parameter(),), ROUNDED, (Result(target),),
             domain=_is_representable(target), statement="{R0} r0 = {R0}(x0);")
    for target in (*_TYPES, "bool")
] + [
    Function(f"{target}(T)", "conversion", ("bool",), lambda name, x: x.astype(np.float64), (TRUTH,), EXACT, (Result(target),), statement="{R0} r0 = {R0}(x0);")
    for target in _TYPES
]  # fmt: skip

_SAME_SIZE = (("char", "uchar"), ("short", "ushort", "half"), ("int", "uint", "float"), ("long", "ulong"))


def _bits_of(target: str) -> Oracle:
    def oracle(name: str, x: np.ndarray) -> np.ndarray:
        raw = np.ascontiguousarray(x.astype(DTYPES[name])).view(DTYPES[target])
        return raw.astype(np.float64) if target in FLOATS else raw

    return oracle


CASTS = [
    Function(f"as_type<{target}>", "conversion", tuple(name for name in family if name != target), _bits_of(target), (Parameter(),), EXACT,
             (Result(target),), statement="{R0} r0 = as_type<{R0}>(x0);")
    for family in _SAME_SIZE
    for target in family
]  # fmt: skip


# Limits and constants.


def _constant(name: str, kind: str, value: float | int, section: str = "constant", accuracy: Accuracy = ROUNDED) -> Function:
    return Function(name, section, (kind,), lambda _: np.asarray(value), (), accuracy, widths=(1,), statement=f"{{R0}} r0 = {name};")


_MATHEMATICAL = {
    "E": math.e, "LOG2E": math.log2(math.e), "LOG10E": math.log10(math.e), "LN2": math.log(2), "LN10": math.log(10),
    "PI": math.pi, "PI_2": math.pi / 2, "PI_4": math.pi / 4, "1_PI": 1 / math.pi, "2_PI": 2 / math.pi,
    "2_SQRTPI": 2 / math.sqrt(math.pi), "SQRT2": math.sqrt(2), "SQRT1_2": math.sqrt(0.5),
}  # fmt: skip


def _limits_of_floats(prefix: str, name: str) -> list[Function]:
    limits = np.finfo(DTYPES[name])
    exact = {"MAX": float(limits.max), "MIN": float(limits.smallest_normal), "EPSILON": float(limits.eps)}
    digits = {
        "DIG": int(limits.precision), "MANT_DIG": limits.nmant + 1, "MAX_10_EXP": int(math.log10(limits.max)), "MAX_EXP": int(limits.maxexp),
        "MIN_10_EXP": math.ceil(math.log10(limits.smallest_normal)), "MIN_EXP": int(limits.minexp) + 1, "RADIX": 2,
    }  # fmt: skip
    return [_constant(f"{prefix}_{key}", name, value) for key, value in exact.items()] + [
        _constant(f"{prefix}_{key}", "int", value) for key, value in digits.items()
    ]


_INTEGER_LIMITS = {
    "CHAR_BIT": ("int", 8), "SCHAR_MAX": ("int", 127), "SCHAR_MIN": ("int", -128), "CHAR_MAX": ("int", 127), "CHAR_MIN": ("int", -128),
    "UCHAR_MAX": ("int", 255), "SHRT_MAX": ("int", 32767), "SHRT_MIN": ("int", -32768), "USHRT_MAX": ("int", 65535),
    "INT_MAX": ("int", 2**31 - 1), "INT_MIN": ("int", -(2**31)), "UINT_MAX": ("uint", 2**32 - 1), "LONG_MAX": ("long", 2**63 - 1),
    "LONG_MIN": ("long", -(2**63)), "ULONG_MAX": ("ulong", 2**64 - 1),
}  # fmt: skip

CONSTANTS = [
    *(_constant(f"M_{key}_{letter}", kind, value) for letter, kind in (("F", "float"), ("H", "half")) for key, value in _MATHEMATICAL.items()),
    _constant("MAXFLOAT", "float", float(np.finfo(np.float32).max)),
    _constant("MAXHALF", "half", 65504.0),
    _constant("HUGE_VALF", "float", math.inf),
    _constant("HUGE_VALH", "half", math.inf),
    _constant("INFINITY", "float", math.inf),
    _constant("NAN", "float", math.nan),
    *_limits_of_floats("FLT", "float"),
    *_limits_of_floats("HALF", "half"),
    *(_constant(name, kind, value) for name, (kind, value) in _INTEGER_LIMITS.items()),
]  # fmt: skip


def _limit(member: str, value: Callable[[str], float | int], types: tuple[str, ...] = _TYPES, result: str = "T") -> Function:
    return Function(f"numeric_limits<T>::{member}", "limit", types, lambda name: np.asarray(value(name)), (), EXACT, (Result(result),), (1,),
                    statement=f"{{R0}} r0 = numeric_limits<{{T}}>::{member};")  # fmt: skip


def _float_or_integer(of_float: Callable[[np.finfo], float], of_integer: Callable[[int, int, int], float]) -> Callable[[str], float]:
    def value(name: str) -> float:
        if name in FLOATS:
            return of_float(np.finfo(DTYPES[name]))
        kind = integer_type(name)
        return of_integer(kind.low, kind.high, kind.bits - kind.signed)

    return value


LIMITS = [
    _limit("max()", _float_or_integer(lambda f: float(f.max), lambda low, high, digits: high)),
    _limit("min()", _float_or_integer(lambda f: float(f.smallest_normal), lambda low, high, digits: low)),
    _limit("lowest()", _float_or_integer(lambda f: float(f.min), lambda low, high, digits: low)),
    _limit("digits", _float_or_integer(lambda f: f.nmant + 1, lambda low, high, digits: digits), result="int"),
    _limit("digits10", _float_or_integer(lambda f: f.precision, lambda low, high, digits: int(digits * math.log10(2))), result="int"),
    _limit("is_signed", lambda name: name in FLOATS or integer_type(name).signed, result="bool"),
    _limit("is_integer", lambda name: name in INTEGERS, result="bool"),
    _limit("is_exact", lambda name: name in INTEGERS, result="bool"),
    _limit("is_specialized", lambda name: True, result="bool"),
    _limit("has_infinity", lambda name: name in FLOATS, result="bool"),
    _limit("has_quiet_NaN", lambda name: name in FLOATS, result="bool"),
    _limit("radix", lambda name: 2, result="int"),
    _limit("epsilon()", lambda name: float(np.finfo(DTYPES[name]).eps), FLOATS),
    _limit("round_error()", lambda name: 0.5, FLOATS),
    _limit("infinity()", lambda name: math.inf, FLOATS),
    _limit("quiet_NaN()", lambda name: math.nan, FLOATS),
    _limit("denorm_min()", lambda name: float(np.finfo(DTYPES[name]).smallest_subnormal), FLOATS),
    _limit("max_digits10", lambda name: {"half": 5, "float": 9}[name], FLOATS, "int"),
    _limit("max_exponent", lambda name: int(np.finfo(DTYPES[name]).maxexp), FLOATS, "int"),
    _limit("min_exponent", lambda name: int(np.finfo(DTYPES[name]).minexp) + 1, FLOATS, "int"),
    _limit("max_exponent10", lambda name: int(math.log10(np.finfo(DTYPES[name]).max)), FLOATS, "int"),
    _limit("min_exponent10", lambda name: math.ceil(math.log10(np.finfo(DTYPES[name]).smallest_normal)), FLOATS, "int"),
]  # fmt: skip

# Expressions that have to be true, and others that have to be false.
_TRAITS: dict[str, tuple[str, ...]] = {
    "integral_constant": ("integral_constant<int, 3>::value == 3", "integral_constant<int, 3>() == 3", "!(integral_constant<uint, 4>::value == 3)"),
    "bool_constant": ("bool_constant<true>::value", "!bool_constant<false>::value"),
    "true_type": ("true_type::value",),
    "false_type": ("!false_type::value",),
    "enable_if": ("is_same<enable_if<true, float>::type, float>::value",),
    "enable_if_t": ("is_same_v<enable_if_t<true, half>, half>",),
    "conditional": ("is_same_v<conditional<true, int, float>::type, int>", "is_same_v<conditional<false, int, float>::type, float>"),
    "conditional_t": ("is_same_v<conditional_t<false, int, half>, half>", "!is_same_v<conditional_t<true, int, half>, half>"),
    "void_t": ("is_same_v<void_t<int, float>, void>",),
    "remove_const": ("is_same_v<remove_const<const int>::type, int>", "is_same_v<remove_const<int>::type, int>"),
    "remove_const_t": ("is_same_v<remove_const_t<const float>, float>",),
    "remove_volatile": ("is_same_v<remove_volatile<volatile int>::type, int>",),
    "remove_volatile_t": ("is_same_v<remove_volatile_t<volatile int>, int>",),
    "remove_cv": ("is_same_v<remove_cv<const volatile int>::type, int>",),
    "remove_cv_t": ("is_same_v<remove_cv_t<const half>, half>",),
    "remove_reference": ("is_same_v<remove_reference<int>::type, int>", "is_same_v<remove_reference<thread int&>::type, int>"),
    "remove_reference_t": ("is_same_v<remove_reference_t<thread int&>, int>",),
    "remove_addrspace": (
        "is_same_v<remove_addrspace<device float>::type, float>",
        "is_same_v<remove_addrspace<const int>::type, const int>",
    ),
    "remove_addrspace_t": ("is_same_v<remove_addrspace_t<threadgroup half>, half>",),
    "decay": ("is_same_v<decay<const int>::type, int>",),
    "decay_t": ("is_same_v<decay_t<const thread int&>, int>",),
    "is_same": ("is_same<int, int>::value", "!is_same<int, uint>::value", "is_same<float4, vec<float, 4>>::value"),
    "is_same_v": ("is_same_v<uchar, uint8_t>", "!is_same_v<half, float>"),
    "is_integral": ("is_integral<int>::value", "is_integral<bool>::value", "is_integral<ulong>::value", "!is_integral<half>::value"),
    "is_integral_v": ("is_integral_v<char>", "is_integral_v<const ushort>", "!is_integral_v<float>"),
    "is_floating_point": ("is_floating_point<half>::value", "!is_floating_point<int>::value"),
    "is_floating_point_v": ("is_floating_point_v<float>", "is_floating_point_v<const float>", "!is_floating_point_v<uint>"),
    "is_arithmetic": ("is_arithmetic<half>::value", "is_arithmetic<long>::value", "!is_arithmetic<float2>::value"),
    "is_arithmetic_v": ("is_arithmetic_v<uchar>",),
    "is_signed": ("is_signed<char>::value", "is_signed<half>::value", "!is_signed<uint>::value"),
    "is_signed_v": ("is_signed_v<int>", "!is_signed_v<ulong>"),
    "is_unsigned": ("is_unsigned<uchar>::value", "is_unsigned<bool>::value", "!is_unsigned<float>::value"),
    "is_unsigned_v": ("is_unsigned_v<uint>", "!is_unsigned_v<short>"),
    "make_signed": ("is_same_v<make_signed<uint>::type, int>", "is_same_v<make_signed<long>::type, long>"),
    "make_signed_t": ("is_same_v<make_signed_t<uchar>, char>",),
    "make_unsigned": ("is_same_v<make_unsigned<int>::type, uint>", "is_same_v<make_unsigned<ulong>::type, ulong>"),
    "make_unsigned_t": ("is_same_v<make_unsigned_t<short>, ushort>",),
    "is_pointer": ("is_pointer<thread int*>::value", "is_pointer<device float*>::value", "!is_pointer<int>::value"),
    "is_pointer_v": ("is_pointer_v<constant int*>", "!is_pointer_v<float>"),
    "is_const": ("is_const<const int>::value", "!is_const<int>::value"),
    "is_const_v": ("is_const_v<const float>", "!is_const_v<float>"),
    "is_void": ("is_void<void>::value", "!is_void<int>::value"),
    "is_void_v": ("is_void_v<void>", "!is_void_v<int>"),
    "is_empty": ("is_empty<true_type>::value", "!is_empty<float>::value"),
    "is_convertible": ("is_convertible<int, float>::value", "!is_convertible<float4, float>::value"),
    "is_empty_v": ("is_empty_v<true_type>", "!is_empty_v<int>"),
    "is_convertible_v": ("is_convertible_v<uchar, half>", "!is_convertible_v<thread int*, float>"),
    "is_enum": ("is_enum<mem_flags>::value", "!is_enum<int>::value"),
    "is_enum_v": ("is_enum_v<mem_flags>", "!is_enum_v<true_type>"),
    "is_class": ("is_class<true_type>::value", "!is_class<int>::value"),
    "is_class_v": ("is_class_v<true_type>", "!is_class_v<float>"),
    "is_trivially_copyable": ("is_trivially_copyable<float>::value", "is_trivially_copyable<true_type>::value"),
    "is_trivially_copyable_v": ("is_trivially_copyable_v<thread int*>",),
    "is_scalar": ("is_scalar<half>::value", "is_scalar<device int*>::value", "!is_scalar<true_type>::value"),
    "is_scalar_v": ("is_scalar_v<bool>", "!is_scalar_v<float4x4>"),
    "vec_elements": ("vec_elements<half3>::value == 3", "vec_elements<bool2>::value == 2", "!vec_elements<int>::value"),
    "is_vector": ("is_vector<const float4>::value", "!is_vector<float>::value"),
    "is_vector_v": ("is_vector_v<uint2>", "!is_vector_v<float3x3>"),
    "__is_valid_simdgroup_type": ("__is_valid_simdgroup_type<half>::value", "!__is_valid_simdgroup_type<long>::value"),
    "_numeric_limits_impl": ("!_numeric_limits_impl<true_type>::is_specialized",),
    "underlying_type": ("is_integral<underlying_type<mem_flags>::type>::value",),
    "underlying_type_t": ("is_integral_v<underlying_type_t<mem_flags>>",),
    "conjunction": ("conjunction<true_type, true_type>::value", "!conjunction<true_type, false_type>::value"),
    "conjunction_v": ("conjunction_v<>", "!conjunction_v<false_type, true_type>"),
    "disjunction": ("disjunction<false_type, true_type>::value", "!disjunction<false_type>::value"),
    "disjunction_v": ("!disjunction_v<>", "disjunction_v<true_type, false_type>"),
    "negation": ("negation<false_type>::value", "!negation<true_type>::value"),
    "negation_v": ("negation_v<is_pointer<int>>", "!negation_v<true_type>"),
    "declval": ("is_same_v<decltype(declval<float>() + 1), float>",),
    "array": ("(array<int, 3>{{1, 2, 3}})[1] == 2", "array<float, 5>().size() == 5", "sizeof(array<short, 6>) == 12"),
    "vec": ("is_same_v<vec<half, 3>, half3>", "sizeof(vec<int, 3>) == 16"),
}  # fmt: skip


def _trait(name: str, claims: tuple[str, ...]) -> Function:
    tests = "".join(f" r0 |= ({claim}) ? 1ul << {k} : 0ul;" for k, claim in enumerate(claims))
    statement = "ulong r0 = 0;" + tests.replace("{", "{{").replace("}", "}}")
    all_true = np.uint64((1 << len(claims)) - 1)
    return Function(name, "trait", ("bool",), lambda _: all_true, (), EXACT, (Result("ulong"),), (1,), statement=statement)


TRAITS = [_trait(name, claims) for name, claims in _TRAITS.items()]


# Normalized numbers.

_LAYOUTS = {"4x8": (8, 8, 8, 8), "2x16": (16, 16), "10a2": (10, 10, 10, 2), "565": (5, 6, 5)}


def _fields(bits: tuple[int, ...]) -> list[tuple[int, int]]:
    """The offset and the width of each component, the first one in the lowest bits."""
    return [(sum(bits[:k]), width) for k, width in enumerate(bits)]


def _to_srgb(x: np.ndarray) -> np.ndarray:
    return np.where(x <= 0.0031308, 12.92 * x, 1.055 * np.maximum(x, 0) ** (1 / 2.4) - 0.055)


def _from_srgb(x: np.ndarray) -> np.ndarray:
    return np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)


def _scaled(x: np.ndarray, bits: tuple[int, ...], signed: bool, srgb: bool) -> np.ndarray:
    """The components as numbers to be rounded; the product is one of floats, as in Metal."""
    limited = np.clip(np.nan_to_num(x, nan=0.0, posinf=1, neginf=-1), -1 if signed else 0, 1)
    if srgb:
        return 255 * np.concatenate([_to_srgb(limited[:, :3]), limited[:, 3:]], axis=1)
    largest = [(1 << width - signed) - 1 for width in bits]
    return (limited.astype(np.float32) * np.array(largest, np.float32)).astype(np.float64)


def _pack(layout: str, kind: str) -> Function:
    bits, signed, srgb = _LAYOUTS[layout], kind == "snorm", kind == "srgb_unorm"

    def oracle(name: str, x: np.ndarray) -> np.ndarray:
        numbers = np.rint(_scaled(x, bits, signed, srgb)).astype(np.int64)
        packed = np.zeros(len(x), np.int64)
        for k, (offset, width) in enumerate(_fields(bits)):
            packed |= (numbers[:, k] & ((1 << width) - 1)) << offset
        return packed

    def is_no_tie(name: str, x: np.ndarray) -> np.ndarray:
        scaled = _scaled(x, bits, signed, srgb)
        return (np.abs(scaled - np.floor(scaled) - 0.5) > 1e-3).all(axis=1)

    return Function("pack_{T}_to_" + kind + layout, "pack", FLOATS, oracle, (Parameter(draw=_colours),), EXACT,
                    (Result("ushort" if layout == "565" else "uint", True),), (len(bits),), domain=is_no_tie if srgb else None)  # fmt: skip


def _unpack(layout: str, kind: str) -> Function:
    bits, signed, srgb = _LAYOUTS[layout], kind == "snorm", kind.endswith("srgb")
    stored = "ushort" if layout == "565" else "uint"

    def oracle(name: str, x: np.ndarray) -> np.ndarray:
        columns = []
        for k, (offset, width) in enumerate(_fields(bits)):
            field = x.astype(np.int64)[:, 0] >> offset & ((1 << width) - 1)
            if signed:
                field = np.where(field >> width - 1, field - (1 << width), field)
            value = np.maximum(field / ((1 << width - signed) - 1), -1)
            columns.append(_from_srgb(value) if srgb and k < 3 else value)
        return np.stack(columns, axis=1)

    name = f"unpack_{kind}{layout}_to_" if not srgb else f"unpack_unorm{layout}_srgb_to_"
    draw: Draw = lambda _, generator, count: generator.integers(0, 2 ** sum(bits), count).astype(DTYPES[stored])  # noqa: E731
    accuracy = Accuracy(8, 1) if srgb else Accuracy(1, 1, 2.5)
    return Function(name + "{T}", "pack", FLOATS, oracle, (Parameter(stored, True, draw),), accuracy, (Result(),), (len(bits),))


def _colours(name: str, generator: np.random.Generator, count: int) -> np.ndarray:
    values = generator.uniform(-1.2, 1.2, count)
    values[: count // 4] = generator.integers(-512, 513, count // 4) / 510
    values[:8] = [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 0.5]
    return values.astype(DTYPES[name])


PACKING = [
    *(_pack(layout, kind) for layout, kind in (("4x8", "unorm"), ("4x8", "snorm"), ("4x8", "srgb_unorm"), ("2x16", "unorm"), ("2x16", "snorm"), ("10a2", "unorm"), ("565", "unorm"))),
    *(_unpack(layout, kind) for layout, kind in (("4x8", "unorm"), ("4x8", "snorm"), ("4x8", "unorm_srgb"), ("2x16", "unorm"), ("2x16", "snorm"), ("10a2", "unorm"), ("565", "unorm"))),
]  # fmt: skip
