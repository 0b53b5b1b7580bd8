"""Rules 44 and 45: what the standard library of Metal has, and what its functions take."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.types import INTEGERS, SIZES, read_type
from mpsgrad.msl.lint.rule import Found, needs, rule
from mpsgrad.msl.tokens import IDENTIFIER

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

_OVERLOADED_ON_ALL = "min max clamp min3 max3 median3"
_FLOATING_ONLY = """
    acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh cospi exp exp10 exp2 fabs fdim floor fma fmax fmedian3
    fmin fmod fract isfinite isinf isnan isnormal log log10 log2 mix pow powr rint round rsqrt saturate sign signbit sin
    sinh sinpi smoothstep sqrt step tan tanh tanpi trunc
"""
_OF_VECTORS = "cross distance distance_squared dot faceforward reflect"
_INTEGERS_ONLY = "absdiff addsat clz ctz hadd madhi madsat mulhi popcount reverse_bits rhadd rotate subsat"
_NUMBERS = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")
_BARRIERS = frozenset({"threadgroup_barrier", "simdgroup_barrier"})
_PROMOTED = frozenset({"bool", "char", "uchar", "short", "ushort"})


@rule(
    44,
    "ambiguous-call",
    words="call to 'min' is ambiguous",
    why="The library has an overload for each type and none for mixtures, and C++ prefers neither conversion.",
)
def arguments_choose_one_overload(source: Source) -> Iterator[Found]:
    """Sees scalars whose types can be told: literals, declared variables, casts and arithmetic on them; and vectors of
    different types. Mixtures of scalars and vectors are left to the compiler. Of barriers it sees those without flags.
    """
    expressions = expressions_of(source)
    for index in source.calls(_BARRIERS):
        if source.close(index + 1) == index + 2 and source.text(index) not in source.declared_functions:
            yield source.tokens[index], f"no matching function for call to '{source.text(index)}': it takes mem_flags"
    floats = ("half", "float", "bfloat") if source.version >= (3, 1) else ("half", "float")
    overloads = {name: (*_NUMBERS, *floats) for name in _OVERLOADED_ON_ALL.split()}
    overloads |= {name: floats for name in (_FLOATING_ONLY + _OF_VECTORS).split()}
    overloads |= {name: _NUMBERS for name in _INTEGERS_ONLY.split()}
    for index in source.calls(overloads):
        name = source.text(index)
        if name in source.declared_functions or not source.in_body(index):
            continue
        if source.text(index - 1) == "::" and source.text(index - 2) != "metal":
            continue
        kinds = [expressions.type_of(start, end) for start, end in source.arguments(index + 1)]
        known = [kind.value for kind in kinds if kind is not None and not kind.pointers and kind.base in SIZES]
        if not kinds or len(known) < len(kinds):
            continue
        types = ", ".join(str(kind) for kind in known)
        if all(kind.is_scalar for kind in known):
            if not _chooses_one(overloads[name], [kind.base for kind in known]):
                what = ", neither half nor float" if {kind.base for kind in known} <= INTEGERS else ""
                what = what if overloads[name] == floats else ""
                yield source.tokens[index], f"call to '{name}' is ambiguous: its arguments are {types}{what}"
        elif all(kind.is_vector for kind in known) and len(set(known)) > 1:
            yield source.tokens[index], f"no matching function for call to '{name}': its arguments are {types}"


def _chooses_one(overloads: Sequence[str], arguments: Sequence[str]) -> bool:
    """Whether C++ prefers one of the functions that take all arguments as one of the types ``overloads``."""

    def cost(argument: str, parameter: str) -> int:
        return 0 if argument == parameter else 1 if parameter == "int" and argument in _PROMOTED else 2

    costs = [[cost(argument, parameter) for argument in arguments] for parameter in overloads]
    best = [min(column) for column in zip(*costs, strict=True)]
    return costs.count(best) == 1


NOT_IN_METAL = re.compile(
    r"(?:erfc?|lgamma|tgamma|log1p|expm1|cbrt|hypot|remainder|nan|l?lrint|l?lround|printf|memcpy|memset|memmove|scalbn|logb"
    r"|nearbyint|malloc|free|s?rand|abort|exit|memcmp|isnanf|isinff|__(?:popc|clz|brev|ffs)(?:ll)?|__ldg|"
    r"lerp|frac|inversesqrt|rcp|atomicAdd|__syncthreads|get_(?:global|local|group)_(?:id|size)"
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
    """Looks for names known from C, OpenCL, CUDA and HLSL, and for functions of the program of which it has only the
    declaration, not in a header."""
    if source.is_header:
        return
    for index in source.calls(NOT_IN_METAL):
        token = source.tokens[index]
        if token.text in source.declared_functions or source.variable(token.text, index) is not None:
            continue
        if source.text(index - 1) == "::" and source.text(index - 2) != "metal":
            continue
        yield token, f"use of undeclared identifier '{token.text}'"
    for index in source.calls(_declared_only(source)):
        if source.in_body(index) and source.variable(source.text(index), index) is None:
            yield source.tokens[index], f"undefined symbol '{source.text(index)}': it is declared and nowhere defined"
    if source.version < (3, 2):
        for index in source.words("os_log_default", "os_log"):
            own = source.variables.keys() | source.struct_bodies.keys() | source.aliases.keys()
            if source.text(index) not in own:
                yield source.tokens[index], f"use of undeclared identifier '{source.text(index)}': {needs('3.2')}"


def _declared_only(source: Source) -> set[str]:
    """The functions at program scope that are declared and not defined, those of other libraries left out."""
    tokens = source.tokens
    defined = source.program.functions.keys() | source.functions_by_name.keys()
    structs = [(start, close) for bodies in source.struct_bodies.values() for start, close, _ in bodies]
    found = set()
    for opening in source.places("("):
        name, close = opening - 1, source.close(opening)
        if source.text(close + 1) != ";" or source.kind(name) != IDENTIFIER or source.text(name) in defined:
            continue
        if source.in_body(name) or any(start < name < end for start, end in structs):
            continue
        start = name
        while start > 0 and source.text(start - 1) not in (";", "}", "{"):
            start -= 1
        head = source.texts[start:name]
        if head and tokens[start].kind == IDENTIFIER and not _ELSEWHERE & set(head):
            read = read_type(tokens, start, name, source.aliases, source.struct_bodies)
            is_void = head[-1] == "void"
            if is_void or read is not None and read[1] == name and (read[0].known or read[0].pointers):
                found.add(source.text(name))
    return found


_ELSEWHERE = frozenset({"extern", "template", "using", "typedef", "friend", "visible", "stitchable"})
