"""The angle brackets of a source that hold template arguments or parameters, and do not compare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpsgrad.msl.tokens import IDENTIFIER, matching_angle, skip_attributes

if TYPE_CHECKING:
    from mpsgrad.msl.analysis.source import Source

_TEMPLATES = frozenset(
    """
    vec packed_vec array initializer_list matrix simdgroup_matrix make_filled_simdgroup_matrix as_type static_cast
    reinterpret_cast const_cast atomic numeric_limits enable_if enable_if_t conditional conditional_t is_same
    is_same_v integral_constant bool_constant is_integral is_integral_v is_floating_point is_floating_point_v
    is_signed is_signed_v is_unsigned is_unsigned_v is_arithmetic is_arithmetic_v make_unsigned make_unsigned_t
    make_signed make_signed_t remove_cv remove_cv_t remove_reference remove_reference_t remove_const remove_const_t
    remove_volatile remove_volatile_t decay decay_t is_pointer is_pointer_v is_const is_const_v is_void is_void_v
    is_empty is_empty_v is_convertible is_convertible_v is_enum is_enum_v is_class is_class_v is_trivially_copyable
    is_trivially_copyable_v is_scalar is_scalar_v vec_elements is_vector is_vector_v underlying_type
    underlying_type_t conjunction conjunction_v disjunction disjunction_v negation negation_v void_t declval
    remove_addrspace remove_addrspace_t vec_mtl class_vector_mtl matrix_storage_mtl whole_number_mtl
    _numeric_limits_impl __is_valid_simdgroup_type texture1d texture1d_array texture2d texture2d_array texture2d_ms
    texture2d_ms_array texture3d texturecube texturecube_array texture_buffer depth2d depth2d_array depth2d_ms
    depth2d_ms_array depthcube depthcube_array visible_function_table intersection_function_table intersector
    intersection_result intersection_query array_ref
    """.split()
)


def template_brackets(source: Source) -> dict[int, int]:
    """The angle brackets of templates, each with its partner."""
    return source.keep(template_brackets, lambda: _found(source))


def _found(source: Source) -> dict[int, int]:
    tokens = source.tokens
    names = set(_TEMPLATES)
    for index, token in enumerate(tokens):
        if token.text == "template" and source.text(index + 1) == "<":
            close = matching_angle(tokens, index + 1, certain=True)
            if close is not None:
                names.update(_declared(source, close + 1))
    found: dict[int, int] = {}
    for index, token in enumerate(tokens):
        if token.text != "<" or index in found or index == 0:
            continue
        before = tokens[index - 1]
        is_named = before.kind == IDENTIFIER and before.text in names
        if before.text == "template" or is_named:
            is_variable = is_named and source.variable(before.text, index) is not None
            close = matching_angle(tokens, index, certain=not is_variable)
            if close is not None and tokens[close].text == ">":
                found[index], found[close] = close, index
    return found


def _declared(source: Source, index: int) -> Iterator[str]:
    """The name that a template declaration starting at ``index`` gives."""
    while (index := skip_attributes(source.tokens, index, len(source.tokens))) < len(source.tokens):
        text = source.text(index)
        if text in ("struct", "class", "union", "using"):
            name = skip_attributes(source.tokens, index + 1, len(source.tokens))
            if source.kind(name) == IDENTIFIER:
                yield source.text(name)
            return
        if text in ("(", "=", ";", "{"):
            if source.kind(index - 1) == IDENTIFIER:
                yield source.text(index - 1)
            if text != "(" or source.text(index - 1) != "decltype":
                return
            index = source.close(index)
            if index < 0:
                return
        if text == "<" and source.kind(index - 1) == IDENTIFIER:
            close = matching_angle(source.tokens, index)
            if close is not None:
                # A specialisation, or a template in the type that a function returns.
                yield source.text(index - 1)
                index = close
        index += 1
