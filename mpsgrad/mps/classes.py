"""The classes by Apple's names, made from the manifest."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

import mpsgrad
from mpsgrad import archive
from mpsgrad.base_kernel import BaseKernel
from mpsgrad.devices import Device
from mpsgrad.errors import ArchiveError, FormatError
from mpsgrad.graph.setting import Setting
from mpsgrad.kernel_property import PaddingProperty
from mpsgrad.kernels.neuron_descriptor import NeuronDescriptor, require_neuron_descriptor
from mpsgrad.kernels.optimizer import Optimizer
from mpsgrad.known_attributes import CheckedCalls, no_such_attribute
from mpsgrad.mps import metal
from mpsgrad.mps.conversion import APPLE_CLASSES, MutableDescriptor, to_apple, to_ours
from mpsgrad.mps.deprecated import DeprecatedConvolution, DeprecatedDescriptor
from mpsgrad.mps.image_bytes import ImageBytes
from mpsgrad.mps.manifest import Declaration, Member, declarations
from mpsgrad.mps.protocols import MPSImageAllocator, MPSNNPadding, data_source_protocol
from mpsgrad.mps.resource_list import ResourceList
from mpsgrad.mps.selectors import apple_property, kept_property, method, usable_calls
from mpsgrad.padding import DefaultPadding
from mpsgrad.state import State

_NOT_PUBLIC: dict[str, type] = {"BaseKernel": BaseKernel, "Optimizer": Optimizer, "ResourceList": ResourceList}


class AppleObject(metaclass=CheckedCalls):
    """What every class here adds to the one of ``mpsgrad`` that it derives from: errors that say what there is."""

    def __getattr__(self, name: str) -> Any:
        raise no_such_attribute(self, name)

    @classmethod
    def _constructors(cls) -> str:
        """Apple's methods that make an object, and the constructor by Python's names."""
        known = next(declarations()[each.__name__] for each in cls.__mro__ if each.__name__ in declarations())
        made = [
            f"{cls.__name__}.{call}"
            for name, members in members_of(known).items()
            if members[0].is_constructor and members[0].parameters and name != "initWithCoder"
            for call in usable_calls(members, cls)
        ]
        by_python = f"{cls.__name__}({', '.join(cls._argument_names())}) by Python's names"
        return f"there is {', '.join([*made, by_python])}"


class _KnownProperties:
    """Refuses to set what looks like one of Apple's properties and is none: it would have no effect."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.islower() and not hasattr(type(self), name):
            raise no_such_attribute(self, name)
        super().__setattr__(name, value)


class _Archived(_KnownProperties):
    """What kernels have of ``NSSecureCoding`` and ``NSCopying``."""

    @classmethod
    def from_archive(cls, data: bytes, device: Device | None = None) -> Any:
        """The kernel of this class that ``mpsgrad.archive.to_bytes`` saved; raises ``ArchiveError`` for another."""
        kernel = to_apple(archive.from_bytes(data, device))
        if not isinstance(kernel, cls):
            raise ArchiveError(f"{cls.__name__}: the archive holds {type(kernel).__name__}")
        return kernel

    def copied(self, device: Device | None = None) -> Any:
        """A copy of the kernel on ``device``, None being the one it is on; its data source is copied too.

        One of a program, by its ``copyWithZone``; without that the copy has the same one, as in MPS.
        """
        assert isinstance(self, BaseKernel)
        device = device or self.device
        source = getattr(getattr(self, "data_source", None), "apple_object", None)
        if source is not None:
            copy_source = getattr(source, "copyWithZone", None)
            if copy_source is not None:
                takes_device = "device" in inspect.signature(copy_source).parameters
                source = copy_source(None, **({"device": device} if takes_device else {}))
            return archive.copied(self, device, data_source=to_ours(source))
        return to_apple(archive.from_bytes(archive.to_bytes(self), device))


class _OfNeuronDescriptor:
    """How neurons of one type are made of a descriptor."""

    @classmethod
    def with_descriptor(cls, descriptor: NeuronDescriptor, device: Device | None) -> Any:
        """The neuron of ``descriptor``. Raises ``FormatError`` if that is of another type than the class."""
        require_neuron_descriptor(cls.__name__, "neuronDescriptor", descriptor)
        kind = cls._type  # type: ignore[attr-defined]
        if descriptor.neuron_type is not kind:
            raise FormatError(
                f"{cls.__name__}: neuronDescriptor is of type {descriptor.neuron_type.name}; it has to be {kind.name}"
            )
        names = {"a", "b", "c", "data"} & inspect.signature(cls).parameters.keys()
        return cls(**{name: getattr(descriptor, name) for name in names}, device=device)  # type: ignore[call-arg]


class _RowsOfImages:
    """How what a state has of each image is laid out in MPS: there is no axis of images."""

    @staticmethod
    def in_a_row(rows: np.ndarray | None) -> np.ndarray | None:
        """``rows``, one image's after the other's: those of one image are a number for each channel."""
        return None if rows is None else rows.reshape(-1)


class _StateOfApple(_KnownProperties):
    """How data sources count down the reads of a state: those of graphs are temporary in MPS, and regular here."""

    @property
    def counted_reads(self) -> int:
        """``read_count``. Setting it has no effect on a state that is not temporary."""
        assert isinstance(self, State)
        return self.read_count

    @counted_reads.setter
    def counted_reads(self, count: int) -> None:
        assert isinstance(self, State)
        if self.is_temporary:
            self.read_count = count


class _ImageOfApple(_KnownProperties, ImageBytes):
    """How the CPU reads and writes images in MPS."""


class _TemporaryImageOfApple:
    """A hint of MPS."""

    @classmethod
    def prefetch_storage(cls, command_buffer: Any, image_descriptors: Any) -> None:
        """Nothing to do: devices keep the memory of earlier images in a pool."""


class _ApplePadding(PaddingProperty):
    """The padding policy of a kernel, which is given back by Apple's names."""

    def __get__(self, kernel: Any, owner: type) -> Any:
        kept = super().__get__(kernel, owner)
        padding = to_apple(kept) if isinstance(kept, DefaultPadding) else kept
        if padding is not kept:
            kernel._values = {**kernel._values, self.name: padding}
        return padding


_ADDITIONS: dict[type, type] = {
    State: _StateOfApple,
    BaseKernel: _Archived,
    mpsgrad.Convolution: DeprecatedConvolution,
    mpsgrad.ConvolutionDescriptor: DeprecatedDescriptor,
    mpsgrad.Image: _ImageOfApple,
    mpsgrad.TemporaryImage: _TemporaryImageOfApple,
    mpsgrad.InstanceNormalizationGradientState: _RowsOfImages,
    mpsgrad.GroupNormalizationGradientState: _RowsOfImages,
    mpsgrad.Neuron: _OfNeuronDescriptor,
    mpsgrad.ImageNode: _KnownProperties,
    mpsgrad.FilterNode: _KnownProperties,
}


def ours_of(declaration: Declaration) -> type | None:
    """The class of this package that does the work of ``declaration``."""
    name = declaration.python
    return None if name is None else _NOT_PUBLIC.get(name) or getattr(mpsgrad, name)


def members_of(declaration: Declaration) -> dict[str, list[Member]]:
    """Every declaration that an object of the class has, inherited ones too, by the names in Python."""
    found: dict[str, Member] = {}
    for each in _line_of(declaration):
        for member in each.members:
            found[member.selector] = member
    grouped: dict[str, list[Member]] = {}
    for member in found.values():
        grouped.setdefault(member.name, []).append(member)
    return grouped


def _line_of(declaration: Declaration) -> Iterator[Declaration]:
    """The classes from the topmost on, each with the protocols that it conforms to before it."""
    if declaration.extends in declarations():
        yield from _line_of(declarations()[declaration.extends])
    for protocol in declaration.conforms:
        yield from _line_of(declarations()[protocol])
    yield declaration


def make_classes() -> dict[str, Any]:
    """Every name of the manifest that can be used, and what it is."""
    made: dict[str, Any] = {
        "MPSNNPadding": MPSNNPadding,
        "MPSImageAllocator": MPSImageAllocator,
        "MPSCommandBuffer": metal.MPSCommandBuffer,
    }
    for member in declarations()["MPSCommandBuffer"].members:
        if member.is_property and not member.status.is_callable:
            setattr(metal.MPSCommandBuffer, member.name, apple_property(member))
    for declaration in declarations().values():
        if declaration.status.is_callable and declaration.name not in made:
            _make(declaration, made)
    return made


def _make(declaration: Declaration, made: dict[str, Any]) -> Any:
    if declaration.name in made:
        return made[declaration.name]
    ours = ours_of(declaration)
    if declaration.is_enumeration:
        made.update(_constants(declaration, ours))
        return made[declaration.name]
    if declaration.is_protocol and ours is not None:
        made[declaration.name] = data_source_protocol(declaration, ours)
        return made[declaration.name]
    parent = AppleObject
    for above in _line_of(declaration):
        if above is declaration or above.is_protocol:
            continue
        theirs = ours_of(above)
        if theirs is None or issubclass(ours or object, theirs):
            parent = _make(above, made)
    cls = _class(declaration, parent, ours)
    made[declaration.name] = cls
    if ours is not None:
        APPLE_CLASSES.setdefault(ours, cls)
    return cls


def _class(declaration: Declaration, parent: type, ours: type | None) -> type:
    bases: list[type] = [parent]
    namespace: dict[str, Any] = {"__module__": "mpsgrad.mps", "__doc__": _documentation(declaration, ours)}
    if ours in _ADDITIONS:
        bases.append(_ADDITIONS[ours])
    if ours is not None and dataclasses.is_dataclass(ours) and not issubclass(parent, MutableDescriptor):
        bases.append(MutableDescriptor)
    if ours is not None and not issubclass(parent, ours):
        bases.append(ours)
        if issubclass(ours, BaseKernel):
            namespace["kernel_name"] = ours.__name__
    elif issubclass(parent, BaseKernel):
        namespace["kernel_name"] = parent.kernel_name
    above = {name for base in parent.__mro__ for name in vars(base)}
    said_here = {member.name for member in declaration.members}
    said_here |= {name for name in members_of(declaration) if name not in above}
    for name, members in members_of(declaration).items():
        member = members[-1]
        if name not in said_here:
            continue
        if "kept" in member.annotations:
            namespace[name] = kept_property(member)
        elif hasattr(ours, name) or (member.status.is_callable and member.call(ours) == name):
            if member.is_readonly and isinstance(getattr(ours, name, None), Setting):
                namespace[name] = _read_only(name)
            kept = inspect.getattr_static(ours, name, None)
            if isinstance(kept, PaddingProperty):
                namespace[name] = _ApplePadding(kept.default, str(kept.__doc__))
            elif isinstance(kept, property) and member.is_readonly and re.fullmatch(r"MPSCNN\w+\*", member.kind):
                namespace[name] = _by_apple_names(kept)
            elif isinstance(kept, property) and not member.is_property:
                namespace[name] = _as_method(kept)
            continue
        elif not member.is_property:
            namespace[name] = method(members, ours)
        else:
            namespace[name] = apple_property(member)
    return type(declaration.name, tuple(bases), namespace)


def _read_only(name: str) -> property:
    """A setting of a node that MPS has as a property which cannot be set."""
    return property(lambda node: vars(node)[name])


def _by_apple_names(kept: property) -> property:
    """The property ``kept`` of this package's class, whose value gets Apple's names."""
    return property(lambda thing: to_apple(kept.__get__(thing)), doc=kept.__doc__)


def _as_method(kept: property) -> Any:
    """The property ``kept`` of this package's class as the method that it is in MPS."""

    def read(thing: Any) -> Any:
        return kept.__get__(thing)

    read.__doc__ = kept.__doc__
    return read


def _documentation(declaration: Declaration, ours: type | None) -> str:
    text = f"``{declaration.name}``"
    if ours is not None:
        text += f": ``mpsgrad.{ours.__name__}`` with Apple's names"
    if declaration.since:
        text += f" (macOS {declaration.since.replace(' / ', ', iOS ')})"
    return f"{text}.\n\n{declaration.reason}\n" if declaration.reason else f"{text}."


def _constants(declaration: Declaration, ours: type | None) -> dict[str, Any]:
    """The enumeration, this package's or one made of the constants' values, and its constants."""
    values = {m.name: m.annotations["value"] for m in declaration.members if m.status.is_callable}
    kind: Any = ours
    if kind is None:
        flags: Any = enum.IntFlag
        cut = {name.removeprefix(declaration.name).lstrip("_"): value for name, value in values.items()}
        kind = flags(declaration.name, cut, module="mpsgrad.mps")
    return {declaration.name: kind, **{name: kind(value) for name, value in values.items()}}


def metal_names() -> dict[str, Any]:
    """What MPS code uses of Metal and Foundation."""
    prefixes = ("MTL", "MPS", "NS")
    return {name: value for name, value in vars(metal).items() if name.startswith(prefixes)}
