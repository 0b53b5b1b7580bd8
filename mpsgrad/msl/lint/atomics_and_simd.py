"""Rules 35 to 38: atomics, and functions and matrices of simdgroups."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.types import FLOATS, SIZES, built_in
from mpsgrad.msl.lint.flow import (
    depends,
    enclosing_conditions,
    positions_in_threadgroup,
    splits_simdgroup,
    thread_names,
)
from mpsgrad.msl.lint.rule import Found, needs, rule
from mpsgrad.msl.tokens import IDENTIFIER, matching_angle, split_commas
from mpsgrad.msl.versions import came_with

_LATER_ATOMICS = ("atomic_float", "atomic_bool", "atomic_ulong", "atomic_thread_fence")


@rule(
    35,
    "atomic-version",
    words="unknown type name 'atomic_float'",
    why="At Metal 2.3 atomics are int and uint with relaxed order; others came later.",
)
def atomics_are_relaxed_integers(source: Source) -> Iterator[Found]:
    for index in source.words(*_LATER_ATOMICS):
        name = source.text(index)
        since = came_with(name)
        assert since is not None
        if source.version < since and name not in source.declared_functions and name not in source.aliases:
            version = f"{since[0]}.{since[1]}"
            kind = "unknown type name" if name != "atomic_thread_fence" else "use of undeclared identifier"
            yield source.tokens[index], f"{kind} '{name}': {needs(version)}"
    if source.version < (2, 4):
        for index in source.words("atomic"):
            if source.text(index + 1) == "<" and source.text(index - 1) not in ("struct", "class"):
                yield source.tokens[index], f"no template named 'atomic': {needs('2.4')}"
    elif source.version < (3, 0):
        for index in source.words("atomic"):
            if (source.text(index + 1), source.text(index + 2)) == ("<", "float"):
                yield source.tokens[index], f"'atomic<float>' is not supported: {needs('3.0')}"
    if source.version >= (3, 2):
        return
    for index in source.words(
        "memory_order_acquire", "memory_order_release", "memory_order_acq_rel", "memory_order_seq_cst"
    ):
        yield source.tokens[index], "an atomic operation's memory order must be memory_order_relaxed"


@rule(
    36,
    "atomic-object",
    words="no matching function for call to 'atomic_fetch_add_explicit'",
    why="Atomic functions take pointers to atomic types; a plain object must be cast to one.",
)
def atomic_functions_take_atomics(source: Source) -> Iterator[Found]:
    """Sees first arguments whose type is written out, and assignments to variables and elements."""
    expressions = expressions_of(source)
    atomics = {
        variable.place: variable.name
        for variables in source.variables.values()
        for variable in variables
        if (variable.type.base if variable.type is not None else source.text(variable.place - 1)) in _ATOMICS
        or variable.type is None
        and variable.is_reference
        and source.text(variable.place - 2) in _ATOMICS
    }
    for index in source.calls(re.compile(r"atomic_\w+_explicit$")):
        ranges = source.arguments(index + 1)
        if not ranges or source.text(index) in source.declared_functions:
            continue
        kind = expressions.type_of(*ranges[0])
        name = source.text(index)
        is_object = kind is not None and kind.base in _ATOMICS and not kind.pointers
        if is_object or kind is None and _is_element(source, atomics, *ranges[0]):
            message = f"no matching function for call to '{name}': its first argument is a pointer to an atomic object"
            yield source.tokens[index], message
        if _is_threads_own(source, ranges[0][0]):
            message = f"no matching function for call to '{name}': the atomic object is in 'thread' memory"
            yield source.tokens[index], message
        expected = expressions.type_of(*ranges[1]) if "compare_exchange" in name and len(ranges) > 1 else None
        if expected is not None and expected.pointers and expected.space not in (None, "thread"):
            message = f"no matching function for call to '{name}': the expected value is in '{expected.space}' memory"
            yield source.tokens[index], message
        if kind is None or not kind.known or kind.base not in SIZES:
            continue
        message = f"no matching function for call to '{name}': '{kind}' is no pointer to an atomic type"
        yield source.tokens[index], message
    for index in source.places(*atomics.values()):
        token = source.tokens[index]
        variable = source.variable(token.text, index) if token.kind == IDENTIFIER and source.in_body(index) else None
        if variable is None or variable.place == index or variable.place not in atomics:
            continue
        if source.text(index - 1) in (".", "->", "::"):
            continue
        kind = variable.type
        position = index + 1
        subscripts = 0
        while source.text(position) == "[" and source.close(position) > 0:
            position = source.close(position) + 1
            subscripts += 1
        operator = source.text(position)
        if kind is not None and not subscripts and kind.pointers == 1 and source.text(index - 1) == "*":
            is_read = operator in (";", ")", ",", *_OPERATORS) and source.text(index - 2) in ("=", "return", "(", ",")
            is_written = operator in _ASSIGNMENTS | {"="} and source.text(index - 2) in (";", "{", "}")
            subscripts += is_read and source.text(index - 2) in ("=", "return") or is_written
        if subscripts == (kind.pointers if kind is not None else len(variable.extents)) and operator in _ASSIGNMENTS:
            yield token, f"no viable overloaded '{operator}': atomic objects are written by functions only"
        elif subscripts == (kind.pointers if kind is not None else len(variable.extents)):
            reads = operator in _OPERATORS or operator == ";" and source.text(index - 1) in ("=", "return", "*")
            reads = reads and not (source.text(index - 1) == "=" and source.text(index - 3) == "&")
            if reads and source.text(index - 1) != "&" and "&" not in (source.text(index - 2), operator):
                yield token, "invalid operand to expression: atomic objects are read by functions only"


def _is_threads_own(source: Source, start: int) -> bool:
    """Whether the expression that begins at ``start`` is the address of an automatic variable of an atomic type."""
    if source.text(start) != "&" or source.text(start + 2) not in (",", "["):
        return False
    variable = source.variable(source.text(start + 1), start + 1)
    if variable is None or not source.in_body(variable.place) or source.text(variable.place - 1) not in _ATOMICS:
        return False
    return source.text(variable.place - 2) in (";", "{", "}")


def _is_element(source: Source, atomics: Mapping[int, str], start: int, end: int) -> bool:
    """Whether the expression in a range is an atomic variable, or an element of an array of them."""
    variable = source.variable(source.text(start), start) if source.kind(start) == IDENTIFIER else None
    if variable is None or variable.place not in atomics or variable.type is not None:
        return False
    subscripts, position = 0, start + 1
    while position < end and source.text(position) == "[" and source.close(position) > 0:
        position = source.close(position) + 1
        subscripts += 1
    return position == end and subscripts == len(variable.extents)


_ATOMICS = ("atomic_int", "atomic_uint")
_OPERATORS = frozenset("+ - * / % | ^ << >> < > <= >= == != && || ?".split())
_ASSIGNMENTS = frozenset({"=", "+=", "-=", "|=", "&=", "^=", "++", "--"})
_MATRIX_TYPE = re.compile(r"simdgroup_(\w+?)(\d+)x(\d+)")
_MATRIX_NAME = re.compile(rf"{_MATRIX_TYPE.pattern}|simdgroup_matrix|make_filled_simdgroup_matrix")
_LATER_SIMD = re.compile(r"(?:simd|quad)_shuffle_and_fill_(?:up|down)$")
_ARITHMETIC_SIMD = re.compile(
    r"(?:simd|quad)_(?:sum|product|min|max|and|or|xor|shuffle(?:_up|_down|_xor|_rotate_up|_rotate_down)?"
    r"|broadcast(?:_first)?|prefix_(?:in|ex)clusive_(?:sum|product))$"
)


_BITS = re.compile(r"(?:simd|quad)_(?:and|or|xor)$")


@rule(
    37,
    "simd-function",
    words="no matching function for call to 'simd_sum'",
    why="Simdgroup functions carry 8-, 16- and 32-bit numbers; a 64-bit value goes as uint2, a bool as a number.",
)
def simd_functions_take_what_they_can(source: Source) -> Iterator[Found]:
    """Sees arguments whose type is written out; reading an inactive lane is not seen."""
    if source.version < (2, 4):
        for index in source.calls(_LATER_SIMD):
            if source.text(index) not in source.declared_functions:
                yield source.tokens[index], f"use of undeclared identifier '{source.text(index)}': {needs('2.4')}"
    expressions = expressions_of(source)
    for index in source.calls(_ARITHMETIC_SIMD):
        ranges = source.arguments(index + 1)
        if not ranges or source.text(index) in source.declared_functions:
            continue
        kind = expressions.type_of(*ranges[0])
        if kind is not None and not kind.pointers and kind.base in ("bool", "long", "ulong"):
            words = f"no matching function for call to '{source.text(index)}': it does not take '{kind}'"
            yield source.tokens[index], words
        elif kind is not None and not kind.pointers and kind.base in FLOATS and _BITS.match(source.text(index)):
            words = f"no matching function for call to '{source.text(index)}': it takes integers, not '{kind}'"
            yield source.tokens[index], words


@rule(
    38,
    "simdgroup-matrix",
    words="static assertion failed: simdgroup_matrix supports half and float, 8x8",
    why="The hardware multiplies matrices of 8 by 8 half or float elements, and no others.",
)
def simdgroup_matrices_are_8_by_8(source: Source) -> Iterator[Found]:
    """Sees conditions on the lane, and on the index in the threadgroup where they split simdgroups, around functions
    that take matrices; reliance on the lanes' elements is not seen."""
    allowed = {"half", "float"} | ({"bfloat"} if source.version >= (3, 1) else set())
    for index in source.matches(_MATRIX_NAME):
        token = source.tokens[index]
        if token.kind != IDENTIFIER or source.text(index - 1) in ("struct", "class"):
            continue
        named = _MATRIX_TYPE.fullmatch(token.text)
        if named and built_in(named[1]) is not None:
            if named[1] not in allowed or (named[2], named[3]) != ("8", "8"):
                yield token, f"unknown type name '{token.text}': simdgroup matrices are 8x8 of half or float"
            elif source.version < (2, 3):
                yield token, f"unknown type name '{token.text}': {needs('2.3')}"
        if token.text not in ("simdgroup_matrix", "make_filled_simdgroup_matrix") or source.text(index + 1) != "<":
            continue
        close = matching_angle(source.tokens, index + 1)
        parts = split_commas(source.tokens[index + 2 : close]) if close is not None else []
        if len(parts) != 3 or any(not part for part in parts):
            continue
        element = built_in(parts[0][0].text) if len(parts[0]) == 1 else None
        sizes = [source.integer(part) for part in parts[1:]]
        if element is not None and (str(element) not in allowed or any(size not in (8, None) for size in sizes)):
            yield token, "simdgroup matrices are 8x8 of half or float"
    for kernel in source.program.kernels:
        names = thread_names(source, kernel, frozenset({"thread_index_in_simdgroup"}))
        positions = positions_in_threadgroup(source, kernel)
        for index in source.places(*_MATRIX_FUNCTIONS, start=kernel.body_open, end=kernel.body_close):
            if source.text(index + 1) != "(":
                continue
            conditions = enclosing_conditions(source, kernel, index)
            conditions += [
                condition
                for place in source.places("return", start=kernel.body_open, end=index)
                for condition in enclosing_conditions(source, kernel, place)
            ]
            if any(
                depends(source, condition, names.differs) or splits_simdgroup(source, condition, positions)
                for condition in conditions
            ):
                message = f"'{source.text(index)}' in control flow that differs between the threads of a simdgroup"
                yield source.tokens[index], message, "warning"


_MATRIX_FUNCTIONS = frozenset(
    {"simdgroup_load", "simdgroup_store", "simdgroup_multiply", "simdgroup_multiply_accumulate"}
)
