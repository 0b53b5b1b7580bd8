"""Tensors that the host passes: a kernel gets a struct with the pointer, the lengths and the steps of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpsgrad.msl.constant_expressions import integer_value
from mpsgrad.msl.edits import Edits
from mpsgrad.msl.program import ADDRESS_SPACES, Program
from mpsgrad.msl.signature import AddressSpace, HostTensor
from mpsgrad.msl.tokens import Token, error, matching_angle, spell, split_commas
from mpsgrad.msl.type_names import type_names

STRUCT = "passed_tensor_mtl"
"""The struct's name; its template takes what that of a tensor does."""


def carry_host_tensors(program: Program) -> list[Token] | None:
    """A program whose kernels take a struct for each tensor, and make the tensor of it; None if there are none."""
    edits = Edits(program.tokens)
    aliases = {each.name.text: each.meaning for each in type_names(program.tokens) if not each.defines_class}
    places = {id(token): index for index, token in enumerate(program.tokens)}
    for kernel in program.kernels:
        known: list[str | Token] = []
        made: list[str | Token] = []
        for parameter in kernel.parameters:
            written = [token for token in parameter.type if token.text != "const"]
            written = aliases.get(written[0].text, written) if len(written) == 1 else written
            arguments = _arguments(written)
            if arguments is None:
                continue
            element, extents, *rest = arguments
            if rest and spell(rest[0]).removeprefix("metal::") != "tensor_handle":
                raise error("the host passes tensors with tensor_handle only", rest[0][0])
            name, passed = parameter.name, f"{parameter.name}_passed_mtl"
            kind: list[str | Token] = ["<", *element, ",", *extents, ">"]
            struct: list[str | Token] = ["constant", "metal", "::", STRUCT, *kind, "&"]
            first, last = (places[id(parameter.type[at])] for at in (0, -1))
            edits.replace_range(first, last + 1, *struct)
            known += [*struct, passed, "=", name, ";"]
            made += ["metal", "::", "tensor", *kind, name, "(", passed, ")", ";"]
        if made:
            # In a block of their own they may have the names of the parameters.
            edits.after(kernel.body_open, *known, "{", *made)
            edits.before(kernel.body_close, "}")
    return None if edits.is_empty else edits.applied()


def host_tensor(pointee: Sequence[Token], constants: Mapping[str, int]) -> HostTensor | None:
    """What a parameter takes of the host that refers to ``pointee``; None if that is no tensor's struct."""
    arguments = _arguments(pointee, STRUCT)
    if arguments is None:
        return None
    element, extents = arguments
    spaces: list[AddressSpace] = [space for space in ("device", "constant") if space in {t.text for t in element}]
    index = [token.text for token in extents if token.text not in ("metal", "::")]
    close = matching_angle(extents, len(extents) - len(index) + 1) if index[:1] in (["dextents"], ["extents"]) else None
    if close is None or len(spaces) != 1:
        message = "a tensor of the host has elements in device or constant memory, and dextents<...> or extents<...>"
        raise error(message, pointee[-1])
    opening = next(k for k, token in enumerate(extents) if token.text == "<")
    index_type, *lengths = split_commas(list(extents[opening + 1 : close]))
    if index[0] == "dextents":
        known: tuple[int | None, ...] = (None,) * integer_value(lengths[0], lengths[0][0], constants)
    else:
        known = tuple(
            None if spell(each).removeprefix("metal::") == "dynamic_extent" else integer_value(each, each[0], constants)
            for each in lengths
        )
    words = [token for token in element if token.text not in (*ADDRESS_SPACES, "const", "volatile", "metal", "::")]
    is_writable = spaces[0] == "device" and all(token.text != "const" for token in element)
    return HostTensor(spell(words), spaces[0], is_writable, spell(index_type), known)


def _arguments(written: Sequence[Token], name: str = "tensor") -> list[list[Token]] | None:
    """Those of the template, if a type is one of that name."""
    texts = [token.text for token in written]
    start = 2 if texts[:2] == ["metal", "::"] else 0
    if texts[start : start + 2] != [name, "<"] or matching_angle(written, start + 1) != len(written) - 1:
        return None
    arguments = split_commas(list(written[start + 2 : -1]))
    return arguments if len(arguments) > 1 else None
