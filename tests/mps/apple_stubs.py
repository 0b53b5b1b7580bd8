"""The types of ``mpsgrad.mps``, for type checkers and editors: its classes are made when it is imported."""

from __future__ import annotations

import re

from mpsgrad import mps
from mpsgrad.mps.classes import members_of, metal_names, ours_of
from mpsgrad.mps.manifest import Declaration, Member, declarations

HEADER = '''\
"""Made by ``make docs`` from the manifest: the types of ``mpsgrad.mps``."""

# mypy: disable-error-code="override, misc, overload-overlap, assignment, type-arg"
# ruff: noqa: E501, F401, I001

import enum
from typing import Any, Self, overload

from mpsgrad.base_kernel import BaseKernel
from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
'''
_TYPES = {
    "BOOL": "bool", "NSInteger": "int", "NSString*": "str", "NSUInteger": "int", "bool": "bool", "double": "float",
    "float": "float", "id<MTLCommandBuffer>": "CommandBuffer", "id<MTLDevice>": "Device | None", "size_t": "int",
    "void": "None", "MPSImageReadWriteParams": "MPSImageReadWriteParams", "MPSOffset": "MPSOffset",
    "MTLRegion": "MTLRegion", "MTLSize": "MTLSize", "NSRange": "NSRange",
}  # fmt: skip
_BATCHES = {"MPSImageBatch*": "list[MPSImage] | MPSImageBatch", "MPSStateBatch*": "list[MPSState] | MPSStateBatch"}


def stubs() -> str:
    """mpsgrad/mps/__init__.pyi."""
    lines = [HEADER]
    known = {cls for each in declarations().values() if (cls := _ours(each)) is not None}
    ours = sorted(known, key=lambda cls: cls.__name__)
    for module in sorted({cls.__module__ for cls in ours}):
        names = [cls.__name__ for cls in ours if cls.__module__ == module and f"import {cls.__name__}\n" not in HEADER]
        if names:
            lines.append(f"from {module} import {', '.join(names)}")
    lines.append(f"from mpsgrad.mps.metal import {', '.join(f'{name} as {name}' for name in sorted(metal_names()))}")
    protocols = ("MPSImageAllocator", "MPSNNPadding")
    written = {*protocols, *metal_names()}
    lines.append(f"from mpsgrad.mps.protocols import {', '.join(f'{name} as {name}' for name in protocols)}")
    for declaration in declarations().values():
        if declaration.name in mps.__all__ and declaration.name not in written:
            lines += _constants(declaration) if declaration.is_enumeration else _class(declaration)
    return "\n".join(lines) + "\n"


def _ours(declaration: Declaration) -> type | None:
    return ours_of(declaration) if declaration.status.is_callable else None


def _constants(declaration: Declaration) -> list[str]:
    name, python = declaration.name, declaration.python
    lines = [f"\n{name} = {python}" if python else f"\nclass {name}(enum.IntFlag): ..."]
    return lines + [f"{each.name}: {name}" for each in declaration.members if each.status.is_callable]


def _class(declaration: Declaration) -> list[str]:
    cls = getattr(mps, declaration.name)
    ours = None if declaration.is_protocol else _ours(declaration)
    shown = {*mps.__all__, *([ours.__name__] if ours else [])}
    bases = [each.__name__ for each in cls.__bases__ if each.__name__ in shown]
    lines = [f"\nclass {declaration.name}({', '.join(bases)}):" if bases else f"\nclass {declaration.name}:"]
    lines.append(f'    """{(cls.__doc__ or "").splitlines()[0]}"""')
    for name, members in members_of(declaration).items():
        if name not in vars(cls) and not declaration.is_protocol:
            continue
        usable = [member for member in members if member.status.is_callable]
        for member in usable:
            if member.is_property:
                lines += _property(member)
            elif not declaration.is_protocol or not member.is_optional:
                lines += _method(member, is_one_of_many=len(usable) > 1)
    return lines


def _property(member: Member) -> list[str]:
    kind = _type(member.kind)
    lines = ["    @property", f"    def {member.name}(self) -> {kind}: ..."]
    if not member.is_readonly and "fixed" not in member.annotations:
        lines += [f"    @{member.name}.setter", f"    def {member.name}(self, value: {kind}) -> None: ..."]
    return lines


def _method(member: Member, *, is_one_of_many: bool) -> list[str]:
    receiver = "cls" if member.is_constructor else "self"
    given = [f"{each.name}: {_type(each.type)}" for each in member.inputs]
    if given:
        given.insert(1, "/")
    if len(given) > 2:
        given.insert(2, "*")
    lines = ["    @overload"] * is_one_of_many + ["    @classmethod"] * member.is_constructor
    return [*lines, f"    def {member.name}({', '.join([receiver, *given])}) -> {_result(member)}: ..."]


def _result(member: Member) -> str:
    if member.kind.rstrip("?*") == "instancetype" and member.is_constructor:
        return "Self"
    outputs = ["Any" for each in member.parameters if each.is_output]
    kind = "MPSImageBatch" if member.kind.startswith("MPSImageBatch") else _type(member.kind)
    return f"tuple[{', '.join([kind, *outputs])}]" if outputs else kind


def _type(declared: str) -> str:
    """The type in Python; Any for arrays and for what this package has no class of."""
    kind = declared.rstrip("?")
    optional = " | None" if declared.endswith("?") else ""
    if kind in _TYPES:
        return _TYPES[kind] + (optional if "None" not in _TYPES[kind] else "")
    if kind in _BATCHES:
        return _BATCHES[kind] + optional
    array = re.fullmatch(r"NSArray<(\w+)\*>\*", kind)
    if array and array[1] in mps.__all__:
        return f"list[{array[1]}]{optional}"
    name = re.sub(r"^id<(\w+)>$", r"\1", kind).rstrip("*")
    declaration = declarations().get(name)
    if declaration is not None and name in mps.__all__ and not declaration.is_protocol:
        return name + optional
    return name + optional if name in ("MPSVector",) else "Any"
