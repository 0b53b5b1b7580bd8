"""Rules 44 and 45: what the standard library of Metal has, and what its functions take."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.types import INTEGERS
from mpsgrad.msl.lint.rule import Found, needs, rule

LIBRARY_FUNCTIONS = frozenset(
    """
    abs absdiff acos acosh addsat all any asin asinh atan atan2 atanh ceil clamp clz copysign cos cosh cospi cross ctz
    determinant distance distance_squared divide dot exp exp10 exp2 extract_bits fabs faceforward fdim floor fma fmax
    fmedian3 fmin fmod fract frexp hadd ilogb insert_bits isfinite isinf isnan isnormal isordered isunordered ldexp
    length length_squared log log10 log2 mad24 madhi madsat max max3 median3 min min3 mix modf mul24 mulhi nextafter
    normalize popcount pow powr reflect refract reverse_bits rhadd rint rotate round rsqrt saturate select sign signbit
    sin sincos sinh sinpi smoothstep sqrt step subsat tan tanh tanpi transpose trunc
    threadgroup_barrier simdgroup_barrier simdgroup_load simdgroup_store simdgroup_multiply
    simdgroup_multiply_accumulate make_filled_simdgroup_matrix
    simd_sum simd_product simd_max simd_min simd_and simd_or simd_xor simd_all simd_any simd_ballot simd_broadcast
    simd_broadcast_first simd_shuffle simd_shuffle_up simd_shuffle_down simd_shuffle_xor simd_shuffle_rotate_up
    simd_shuffle_rotate_down simd_prefix_inclusive_sum simd_prefix_exclusive_sum simd_prefix_inclusive_product
    simd_prefix_exclusive_product simd_is_first simd_active_threads_mask quad_sum quad_max quad_min quad_broadcast
    quad_shuffle quad_shuffle_up quad_shuffle_down quad_shuffle_xor
    atomic_load_explicit atomic_store_explicit atomic_exchange_explicit atomic_compare_exchange_weak_explicit
    atomic_fetch_add_explicit atomic_fetch_sub_explicit atomic_fetch_and_explicit atomic_fetch_or_explicit
    atomic_fetch_xor_explicit atomic_fetch_max_explicit atomic_fetch_min_explicit
    """.split()
)

_OVERLOADED_ON_ALL = re.compile(r"(?:min|max|clamp)$")
_FLOATING_ONLY = re.compile(
    r"(?:mix|smoothstep|sign|step|exp|exp2|log|log2|log10|sin|cos|tan|tanh|sqrt|rsqrt|floor|ceil|fabs|round|rint|trunc"
    r"|pow|fmin|fmax|fmod)$"
)
_DISTINCT = frozenset({"int", "uint", "long", "ulong", "float"})


@rule(
    44,
    "ambiguous-call",
    words="call to 'min' is ambiguous",
    why="The library has an overload for each type and none for mixtures, and C++ prefers neither conversion.",
)
def arguments_choose_one_overload(source: Source) -> Iterator[Found]:
    """Sees scalars whose types can be told: literals, declared variables, casts and arithmetic on them. Mixtures of
    half and float, small integers and vectors are left to the compiler."""
    expressions = expressions_of(source)
    for index in source.calls(re.compile(f"{_OVERLOADED_ON_ALL.pattern[:-1]}$|{_FLOATING_ONLY.pattern}")):
        name = source.text(index)
        if name in source.declared_functions or not source.in_body(index):
            continue
        if source.text(index - 1) == "::" and source.text(index - 2) not in ("metal", "fast", "precise"):
            continue
        kinds = [expressions.type_of(start, end) for start, end in source.arguments(index + 1)]
        if not kinds or any(kind is None or not kind.is_scalar for kind in kinds):
            continue
        bases = {kind.base for kind in kinds if kind is not None}
        if _OVERLOADED_ON_ALL.match(name):
            if len(bases) > 1 and bases <= _DISTINCT:
                types = ", ".join(str(kind) for kind in kinds)
                yield source.tokens[index], f"call to '{name}' is ambiguous: its arguments are {types}"
        elif bases <= INTEGERS and not (name == "pow" and len(kinds) != 2):
            types = ", ".join(str(kind) for kind in kinds)
            yield (
                source.tokens[index],
                f"call to '{name}' is ambiguous: its arguments are {types}, neither half nor float",
            )


_NOT_IN_METAL = re.compile(
    r"(?:erfc?|lgamma|tgamma|log1p|expm1|cbrt|hypot|remainder|nan|l?lrint|l?lround|printf|memcpy|memset|memmove|scalbn|logb"
    r"|nearbyint|malloc|free|lerp|frac|inversesqrt|rcp|atomicAdd|__syncthreads|get_(?:global|local|group)_(?:id|size)"
    r"|barrier|vload[248]|vstore[248]|native_\w+|convert_\w+|__shfl\w*|atomic_add|atomic_inc|atomic_init"
    r"|atomic_(?:load|store|exchange|compare_exchange_(?:weak|strong|strong_explicit)|fetch_(?:add|sub|and|or|xor|min|max))"
    r"|(?:sin|cos|tan|asin|acos|atan|atan2|exp|exp2|log|log2|log10|sqrt|rsqrt|pow|fabs|floor|ceil|round|trunc|fmod|fma"
    r"|fmin|fmax|tanh|sinh|cosh)[fl])$"
)


@rule(
    45,
    "not-in-library",
    words="use of undeclared identifier 'erf'",
    why="The library has no error and gamma functions, none of C's names with a suffix, and none of other languages.",
)
def called_functions_are_in_the_library(source: Source) -> Iterator[Found]:
    """Looks for names known from C, OpenCL, CUDA and HLSL, not in a header; that any other name is declared is left to
    the compiler."""
    if source.is_header:
        return
    for index in source.calls(_NOT_IN_METAL):
        token = source.tokens[index]
        if token.text in source.declared_functions or source.variable(token.text, index) is not None:
            continue
        if source.text(index - 1) == "::" and source.text(index - 2) != "metal":
            continue
        yield token, f"use of undeclared identifier '{token.text}'"
    if source.version < (3, 2):
        for index in source.words("os_log_default", "os_log"):
            if source.text(index) not in source.variables:
                yield source.tokens[index], f"use of undeclared identifier '{source.text(index)}': {needs('3.2')}"
