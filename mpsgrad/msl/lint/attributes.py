"""Rules 18, 25, 26 and 41: attributes, their values, types and versions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from mpsgrad.errors import ShaderError
from mpsgrad.msl.analysis.source import Source, position_attribute
from mpsgrad.msl.backend import INDEX_ATTRIBUTES, POSITION_ATTRIBUTES, position_dimensions
from mpsgrad.msl.lint.near_names import did_you_mean, nearest
from mpsgrad.msl.lint.rule import Found, rule
from mpsgrad.msl.program import Kernel, Parameter
from mpsgrad.msl.tokens import spell

_LAST_INDEX = {"buffer": 30, "threadgroup": 30, "texture": 127, "sampler": 15}


@rule(
    18,
    "resource-index",
    words="'buffer' attribute parameter is out of bounds: must be between 0 and 30",
    why="The argument tables of a compute encoder have 31 buffers, 128 textures and 16 samplers.",
)
def resource_indices_are_in_range_and_unique(source: Source) -> Iterator[Found]:
    for kernel in source.program.kernels:
        taken: set[tuple[str, int]] = set()
        for parameter in kernel.parameters:
            attribute = parameter.attribute(*_LAST_INDEX)
            index = source.attribute_value(attribute)
            if attribute is None or index is None or parameter.attribute("function_constant"):
                continue
            last = _LAST_INDEX[attribute.name]
            if not 0 <= index <= last:
                bounds = f"must be between 0 and {last}"
                yield attribute.token, f"'{attribute.name}' attribute parameter is out of bounds: {bounds}"
            elif (attribute.name, index) in taken:
                yield attribute.token, f"cannot reserve '{attribute.name}' resource location at index {index}"
            taken.add((attribute.name, index))


_SAME_TYPE = (
    ("thread_position_in_grid", "threads_per_grid"),
    ("thread_position_in_threadgroup", "threads_per_threadgroup", "dispatch_threads_per_threadgroup"),
)


@rule(
    25,
    "position-types",
    words="type 'constant uint &' is not valid for attribute 'thread_position_in_grid'",
    why="Positions are ushort or uint, by value, and those of one kernel describe one grid.",
)
def positions_agree(source: Source) -> Iterator[Found]:
    for kernel in source.program.kernels:
        typed: list[tuple[str, int, str, Parameter]] = []
        for parameter in kernel.parameters:
            attribute = position_attribute(parameter)
            if attribute is None or _is_template_type(kernel, parameter):
                continue
            try:
                dimensions = position_dimensions(parameter, attribute)
            except ShaderError as found:
                yield parameter.place, found.message
                continue
            base = "ushort" if "short" in spell(parameter.type) or "16" in spell(parameter.type) else "uint"
            typed.append((attribute.name, dimensions, base, parameter))
        positions = [entry for entry in typed if entry[0] in POSITION_ATTRIBUTES]
        for first, second in pairwise(positions):
            if first[1] != second[1]:
                message = f"'{first[0]}' and '{second[0]}' must have the same number of components"
                yield second[3].place, message
        for group in _SAME_TYPE:
            members = [entry for entry in typed if entry[0] in group]
            for first, second in pairwise(members):
                if first[2] != second[2]:
                    yield second[3].place, f"'{first[0]}' and '{second[0]}' must have the same type"
        lanes = [entry for entry in typed if re.search("simdgroup|quadgroup", entry[0])]
        for first, second in pairwise(lanes):
            if first[2] != second[2]:
                yield second[3].place, f"'{first[0]}' and '{second[0]}' must have the same type"


def _is_template_type(kernel: Kernel, parameter: Parameter) -> bool:
    names = {entry.name for entry in kernel.template or ()}
    return any(token.text in names for token in parameter.type)


_SINCE = {
    "threads_per_simdgroup": (2, 0),
    "thread_index_in_simdgroup": (2, 0),
    "simdgroup_index_in_threadgroup": (2, 0),
    "simdgroups_per_threadgroup": (2, 0),
    "dispatch_simdgroups_per_threadgroup": (2, 0),
    "thread_index_in_quadgroup": (2, 0),
    "quadgroup_index_in_threadgroup": (2, 0),
    "quadgroups_per_threadgroup": (2, 0),
    "dispatch_quadgroups_per_threadgroup": (2, 0),
    "max_total_threads_per_threadgroup": (2, 1),
    "host_name": (2, 2),
    "kernel": (2, 3),
    "visible": (2, 3),
    "stitchable": (2, 4),
    "mesh": (3, 0),
    "object": (3, 0),
    "required_threads_per_threadgroup": (4, 0),
    "user_annotation": (4, 0),
}
_KNOWN = frozenset(
    {
        *POSITION_ATTRIBUTES,
        *INDEX_ATTRIBUTES,
        *_SINCE,
        *_LAST_INDEX,
        *("access", "maybe_unused", "function_constant", "alias", "raster_order_group", "stage_in", "imageblock_data"),
        *("id", "grid_origin", "grid_size", "user", "early_fragment_tests", "payload", "patch", "unused", "nodiscard"),
    }
)
_OF_FUNCTIONS = frozenset(
    {
        *_SINCE,
        *("always_inline", "noinline", "flatten", "hot", "cold", "optnone", "noreturn", "deprecated", "nodiscard"),
        *("unused", "maybe_unused", "user", "gnu", "clang"),
    }
)


@rule(
    26,
    "attribute-version",
    words="'X' attribute requires Metal language standard macos-metalN.N or higher",
    why="Attributes came one by one; an older compiler, or one that finds a name misspelt, passes nothing.",
)
def attributes_are_known_at_this_version(source: Source) -> Iterator[Found]:
    for kernel in source.program.kernels:
        attributes = list(kernel.attributes)
        for parameter in kernel.parameters:
            attributes += parameter.attributes
            names = [attribute.name for attribute in parameter.attributes]
            by_value = not parameter.is_pointer and not parameter.is_reference
            if names and by_value and not _KNOWN & set(names) and source.is_type(_last_word(source, parameter)):
                yield parameter.attributes[0].token, _unknown(names[0], "")
                continue
            for attribute in parameter.attributes:
                if attribute.name not in _KNOWN:
                    yield attribute.token, _unknown(attribute.name, " ignored"), "warning"
        for attribute in kernel.attributes:
            if attribute.name not in _OF_FUNCTIONS:
                yield attribute.token, _unknown(attribute.name, " ignored", _OF_FUNCTIONS), "warning"
        if kernel.template is not None and source.version < (2, 2):
            yield kernel.name, "template kernel functions require Metal language standard macos-metal2.2 or higher"
        for attribute in attributes:
            since = _SINCE.get(attribute.name)
            if since is not None and source.version < since:
                standard = f"macos-metal{since[0]}.{since[1]}"
                message = f"'{attribute.name}' attribute requires Metal language standard {standard} or higher"
                yield attribute.token, message
    if source.version < (3, 1):
        for start, stop in source.program.variables:
            for index in range(start, stop):
                if source.text(index) in POSITION_ATTRIBUTES | INDEX_ATTRIBUTES and source.text(index - 1) == "[":
                    name = source.text(index)
                    standard = "'{}' attribute on a variable requires Metal language standard macos-metal3.1 or higher"
                    yield source.tokens[index], standard.format(name)


def _unknown(name: str, what: str, known: frozenset[str] = _KNOWN) -> str:
    return f"unknown attribute '{name}'{what}{did_you_mean(nearest(name, known))}"


def _last_word(source: Source, parameter: Parameter) -> int:
    """The index in the source of the last token of the parameter's type."""
    last = parameter.type[-1]
    return next((index for index, token in enumerate(source.tokens) if token is last), -1)


@rule(
    41,
    "threadgroup-size",
    words="(1025) must be <= 1024. (device threadgroup size limit)",
    why="A threadgroup has at most 1024 threads, and metalcompute launches whole simdgroups of 32 only.",
)
def threadgroup_sizes_can_be_launched(source: Source) -> Iterator[Found]:
    for kernel in source.program.kernels:
        attribute = kernel.attribute("max_total_threads_per_threadgroup")
        size = source.attribute_value(attribute)
        if attribute is None or size is None:
            continue
        if size > 1024:
            yield attribute.token, f"({size}) must be <= 1024. (device threadgroup size limit)"
        elif size < 1:
            yield attribute.token, f"'max_total_threads_per_threadgroup' attribute must be greater than 0, not {size}"
        elif source.metalcompute and (size < 32 or size % 32):
            message = f"{size} threads per threadgroup: metalcompute launches multiples of 32 from 32 to 1024"
            yield attribute.token, message
        elif size % 32:
            message = (
                f"{size} threads per threadgroup leave lanes of the last simdgroup idle; metalcompute cannot launch it"
            )
            yield attribute.token, message, "warning"
