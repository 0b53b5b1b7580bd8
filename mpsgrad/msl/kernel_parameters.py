"""What the parameters of kernel functions are: buffers and threadgroup memory, each with its index, or positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from mpsgrad.msl.argument_buffers import PointerMembers
from mpsgrad.msl.backend import INDEX_ATTRIBUTES, POSITION_ATTRIBUTES
from mpsgrad.msl.constant_expressions import constants_of, integer_value
from mpsgrad.msl.declarations import ARRAY_TYPE
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.host_tensors import host_tensor
from mpsgrad.msl.program import ADDRESS_SPACES, Attribute, Kernel, Parameter, Program, outside_angles
from mpsgrad.msl.signature import AddressSpace, Argument
from mpsgrad.msl.tokens import Token, error, spell, split_commas
from mpsgrad.msl.type_names import type_names

LAST_BUFFER_INDEX = 30
_MOST_THREADS = 1024

_UNSUPPORTED_ATTRIBUTES = {
    "texture": "textures are not supported",
    "sampler": "samplers are not supported",
    "stage_in": "[[stage_in]] is not supported: kernels take buffers only",
    "imageblock_data": "imageblocks are not supported",
    "id": "[[id]] belongs to the members of a struct",
    "grid_origin": "[[grid_origin]] is not supported: it belongs to [[stage_in]]",
    "grid_size": "[[grid_size]] is not supported: it belongs to [[stage_in]]",
}
_ATTRIBUTES_OF_RESOURCES = (
    "buffer",
    "threadgroup",
    "access",
    "host_name",
    "maybe_unused",
    "unused",
    "deprecated",
    "function_constant",
    "alias",
    "raster_order_group",
)


class KernelParameters:
    """Reads the attributes of one program's kernel functions.

    ``substitution`` has the template arguments, as they are written, by the names of the template's parameters.
    """

    def __init__(self, program: Program) -> None:
        self._tokens = program.tokens

    def threadgroup_size(self, kernel: Kernel, substitution: Mapping[str, str]) -> int | None:
        """The threads of a threadgroup that ``kernel`` declares; raises ``ShaderError`` outside 1 to 1024."""
        required = self.required_threadgroup(kernel, substitution)
        if required is not None:
            return math.prod(required)
        attribute = kernel.attribute("max_total_threads_per_threadgroup")
        if attribute is None:
            return None
        size = self._integer(attribute, attribute.arguments, substitution)
        if not 1 <= size <= _MOST_THREADS:
            raise error(f"max_total_threads_per_threadgroup({size}) must lie in 1..1024", attribute.token)
        return size

    def required_threadgroup(self, kernel: Kernel, substitution: Mapping[str, str]) -> tuple[int, int, int] | None:
        """The extents that a threadgroup of ``kernel`` has to have, if it says; raises ``ShaderError`` for others."""
        attribute = kernel.attribute("required_threads_per_threadgroup")
        if attribute is None:
            return None
        parts = split_commas(attribute.arguments)
        extents = [self._integer(attribute, part, substitution) for part in parts]
        if not 1 <= len(extents) <= 3 or min(extents) < 1 or math.prod(extents) > _MOST_THREADS:
            text = ", ".join(map(str, extents))
            message = f"required_threads_per_threadgroup({text}) must have 1 to 3 extents of 1 to 1024 threads in all"
            raise error(message, attribute.token)
        width, height, depth, *_ = (*extents, 1, 1)
        return width, height, depth

    def arguments(
        self, kernel: Kernel, substitution: Mapping[str, str], is_present: Callable[[Parameter], bool]
    ) -> list[tuple[Argument, Parameter]]:
        """The parameters of ``kernel`` that are buffers or threadgroup memory.

        Those that function constants leave out, as ``is_present`` says, may have the index of another one. Raises
        ``ShaderError`` for what a kernel cannot take and for indices that are taken.
        """
        resources = [parameter for parameter in kernel.parameters if _is_resource(parameter)]
        taken = self._explicit_indices(list(filter(is_present, resources)), substitution)
        return [(self._argument(parameter, taken, substitution), parameter) for parameter in resources]

    def _integer(self, attribute: Attribute, argument: Sequence[Token], substitution: Mapping[str, str]) -> int:
        """The value of an attribute's argument."""
        literal = argument[0].text if len(argument) == 1 else ""
        if literal.isdecimal() and literal.isascii():
            return int(literal)
        bound = {name: int(text) for name, text in substitution.items() if text.isdecimal() and text.isascii()}
        return integer_value(argument, attribute.token, {**self.constants, **bound})

    @cached_property
    def constants(self) -> dict[str, int]:
        """Integer constants that attributes may name: ``constant int n = 3;``, ``constexpr``, and enumerators."""
        return constants_of(self._tokens)

    def _holds_pointers(self, parameter: Parameter, substitution: Mapping[str, str]) -> bool:
        """Whether a buffer has pointers in what it consists of."""
        named = [token.replaced(substitution.get(token.text, token.text)) for token in parameter.pointee]
        return self._pointer_members.are_in(named)

    @cached_property
    def _pointer_members(self) -> PointerMembers:
        return PointerMembers(self._tokens)

    def _explicit_indices(self, resources: Sequence[Parameter], substitution: Mapping[str, str]) -> dict[str, set[int]]:
        taken: dict[str, set[int]] = {"buffer": set(), "threadgroup": set()}
        for parameter in resources:
            attribute = parameter.attribute("buffer", "threadgroup")
            if attribute is None:
                continue
            index = self._integer(attribute, attribute.arguments, substitution)
            if not 0 <= index <= LAST_BUFFER_INDEX:
                bounds = f"must be between 0 and {LAST_BUFFER_INDEX}"
                raise error(f"'{attribute.name}' attribute parameter is out of bounds: {bounds}", attribute.token)
            if index in taken[attribute.name]:
                raise error(
                    f"cannot reserve '{attribute.name}' resource location at index {index}: it is taken",
                    attribute.token,
                )
            taken[attribute.name].add(index)
        return taken

    def _argument(self, parameter: Parameter, taken: dict[str, set[int]], substitution: Mapping[str, str]) -> Argument:
        space = parameter.address_space
        assert space is not None
        kind = "threadgroup" if space.text == "threadgroup" else "buffer"
        attribute = parameter.attribute(kind)
        if attribute is not None:
            index = self._integer(attribute, attribute.arguments, substitution)
        else:
            index = next(i for i in range(len(taken[kind]) + 1) if i not in taken[kind])
            if index > LAST_BUFFER_INDEX:
                raise error(f"more than {LAST_BUFFER_INDEX + 1} buffers", parameter.place)
            taken[kind].add(index)
        pointee: list[Token] = []
        const = False
        for place, token in enumerate(parameter.pointee):
            if not outside_angles(parameter.pointee, place):
                pointee.append(token.replaced(substitution.get(token.text, token.text)))
            elif token.text == "const":
                const = True
            elif token.text not in ADDRESS_SPACES and token.text != "volatile":
                pointee.append(token.replaced(substitution.get(token.text, token.text)))
        address_space: AddressSpace = (
            "device" if space.text == "device" else "constant" if space.text == "constant" else "threadgroup"
        )
        written = _written(spell(pointee).replace("metal::", "").replace(f"metal{RENAMED_SUFFIX}::", "metal::"))
        tensor = host_tensor(pointee, self.constants)
        return Argument(
            name=parameter.name,
            index=index,
            address_space=address_space,
            type=written,
            is_reference=parameter.is_reference,
            is_writable=address_space != "constant" and not const,
            alias_of=self._aliases.get(written),
            holds_pointers=tensor is not None or (kind == "buffer" and self._holds_pointers(parameter, substitution)),
            tensor=tensor,
        )

    @cached_property
    def _aliases(self) -> dict[str, str]:
        """The names that the program gives to other types, and the last one in each chain of names.

        Left out are those that it gives to two types, and those of pointers.
        """
        meanings: dict[str, set[str]] = {}
        for each in type_names(self._tokens):
            if not each.defines_class:
                meanings.setdefault(each.name.text, set()).add(spell(each.meaning).replace("metal::", ""))
        found = {}
        for name in meanings:
            last = name
            for _ in range(len(meanings)):
                if len(meanings.get(last, ())) != 1:
                    break
                (last,) = meanings[last]
            if last not in meanings and "*" not in last:
                found[name] = last
        return found


def position_attribute(parameter: Parameter) -> Attribute | None:
    """The attribute that makes ``parameter`` a position in the grid or in its threadgroup, if one does."""
    return parameter.attribute(*POSITION_ATTRIBUTES, *INDEX_ATTRIBUTES)


def _written(kind: str) -> str:
    """A type as C++ writes it: ``int[4]``."""
    extents = ""
    while kind.startswith(ARRAY_TYPE):
        kind, _, extent = kind.removeprefix(ARRAY_TYPE).strip(" <>").rpartition(",")
        kind, extents = kind.strip(), f"{extents}[{extent.strip()}]"
    return kind + extents


def _is_resource(parameter: Parameter) -> bool:
    """Whether ``parameter`` is a buffer or threadgroup memory; raises for what a kernel cannot take."""
    for attribute in parameter.attributes:
        if attribute.name in _UNSUPPORTED_ATTRIBUTES:
            raise error(_UNSUPPORTED_ATTRIBUTES[attribute.name], attribute.token)
    position = position_attribute(parameter)
    if position is not None:
        if position.arguments:
            raise error(f"attribute '{position.name}' takes no argument", position.token)
        return False
    for attribute in parameter.attributes:
        if attribute.name not in _ATTRIBUTES_OF_RESOURCES:
            raise error(f"unknown attribute '{attribute.name}'", attribute.token)
    written = spell(parameter.type)
    if not parameter.is_pointer and not parameter.is_reference:
        if parameter.attribute("buffer"):
            raise error(
                f"type '{written}' is not valid for attribute 'buffer'; it takes a pointer or a reference",
                parameter.place,
            )
        message = f"invalid type '{written}' for input declaration in a kernel function"
        raise error(message, parameter.place)
    space = parameter.address_space
    if space is None:
        kind = "reference" if parameter.is_reference else "pointer"
        raise error(f"{kind} type must have explicit address space qualifier", parameter.place)
    if space.text == "thread" or (space.text == "threadgroup" and parameter.attribute("buffer")):
        raise error(f"invalid address space qualification for buffer pointee type '{written}'", parameter.place)
    if space.text != "threadgroup" and parameter.attribute("threadgroup"):
        raise error(f"type '{written}' is not valid for attribute 'threadgroup'", parameter.place)
    return True
