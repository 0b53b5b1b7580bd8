"""Saving and restoring kernels: a versioned safetensors file, the counterpart of ``NSSecureCoding``.

The file is in the safetensors format. Its metadata holds ``mpsgrad.archive``, a JSON object with

* ``version``: that of this layout;
* ``class``: the kernel's class name;
* ``arguments``: the keyword arguments of its constructor;
* ``properties``: the properties that were set after construction;
* ``configured_by_hand``: whether one of those is among them that a state sets for a gradient kernel otherwise.

JSON values that are no plain JSON are objects with one key that starts with ``$``: ``{"$tuple": [...]}``,
``{"$array": name}`` for a tensor of the file, and ``{"$object": [class, fields]}`` for enums, data sources, descriptors
and padding policies. Only kernel classes and classes marked ``archivable`` are ever instantiated, so a file cannot run
other code. Equal kernels give equal bytes. The allocator of results is not saved.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mpsgrad import kernels
from mpsgrad.devices import Device
from mpsgrad.errors import ArchiveError, DeviceError, DeviceNotFoundError, MPSGradError
from mpsgrad.geometry import EdgeMode, ImageCoordinate, Offset, Origin, Region, Size
from mpsgrad.kernel import BaseKernel, KernelOptions
from mpsgrad.padding import DefaultPadding, ExplicitPadding, PaddingMethod, TensorflowAveragePooling

VERSION = 1

_ENTRY = "mpsgrad.archive"
_APPLE_NAMES = "mpsgrad.mps"
"""The package of the classes that only have other names."""

AnyType = TypeVar("AnyType", bound=type)
Kind = TypeVar("Kind", bound=BaseKernel)

_REFUSALS = (
    MPSGradError,
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What constructors and property setters raise when a damaged archive gives them something else than they take."""

_classes: dict[str, Any] = {}


def archivable(cls: AnyType) -> AnyType:
    """Registers a class whose instances may stand in an archive, under its name.

    Enums and named tuples are kept by value. Any other class is rebuilt by calling it with the fields that its method
    ``archive_fields()`` returns, or with its dataclass fields.
    """
    _classes[cls.__name__] = cls
    return cls


for _cls in (
    DefaultPadding,
    EdgeMode,
    ExplicitPadding,
    ImageCoordinate,
    KernelOptions,
    Offset,
    Origin,
    PaddingMethod,
    Region,
    Size,
    TensorflowAveragePooling,
):
    archivable(_cls)


def to_bytes(kernel: BaseKernel) -> bytes:
    """``kernel`` with its configuration, parameters and data source as the bytes of an archive.

    Raises ``ArchiveError`` if it is no kernel, as a graph is none, or holds an object of a class that is not
    ``archivable``.
    """
    import safetensors.numpy

    cls = type(kernel)
    if not hasattr(cls, "kernel_name"):
        raise ArchiveError(
            f"{cls.__name__} cannot be saved, as it is no kernel; graphs are made of their nodes again, whose data "
            "sources keep the parameters"
        )
    if not issubclass(cls, BaseKernel.classes[cls.kernel_name]):
        raise ArchiveError(f"{cls.__name__}: another kernel class has the same name")
    arrays: dict[str, np.ndarray] = {}
    names = _arguments(cls)
    header = {
        "version": VERSION,
        "class": cls.kernel_name,
        "label": kernel.label,
        "arguments": {name: _encode(getattr(kernel, name), f"{cls.__name__}.{name}", arrays) for name in names},
        "properties": {
            name: _encode(value, f"{cls.__name__}.{name}", arrays)
            for name, value in _properties(kernel)
            if name != "destination_image_allocator"
        },
        "configured_by_hand": kernel._configured_by_hand,
    }
    # One entry: safetensors writes several in no fixed order.
    return safetensors.numpy.save(arrays, {_ENTRY: json.dumps(header)})


def from_bytes(data: bytes, device: Device | None = None) -> Any:
    """The kernel that ``to_bytes`` saved, on ``device`` (None: the default device).

    Raises ``ArchiveError`` if the bytes are no archive, are damaged, or are of another version, and
    ``DeviceNotFoundError`` or ``DeviceError`` if there is no device or it fails.
    """
    import safetensors
    import safetensors.numpy

    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_ENTRY])
        version = header["version"]
        arrays = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ArchiveError(f"not an archive of a kernel, or damaged: {error}") from error
    if version != VERSION:
        raise ArchiveError(f"the archive has version {version}; this package reads version {VERSION}")
    kernels.import_all()
    try:
        cls = BaseKernel.classes[header["class"]]
        arguments = {name: _decode(value, arrays) for name, value in header["arguments"].items()}
        kernel = cls(**arguments, device=device)
        kernel.label = header["label"]
        for name, value in header["properties"].items():
            if name not in _settable(cls) and name not in kernel._archived_properties():
                raise ArchiveError(f"{cls.__name__} has no property {name!r}")
            setattr(kernel, name, _decode(value, arrays))
        kernel._configured_by_hand = bool(header.get("configured_by_hand", kernel._configured_by_hand))
    except (ArchiveError, DeviceError, DeviceNotFoundError):
        raise
    except _REFUSALS as error:
        raise ArchiveError(f"the archive does not describe a kernel that can be made: {error}") from error
    return kernel


def copied(kernel: Kind, device: Device, **replaced: Any) -> Kind:
    """A copy of ``kernel`` on ``device``, made with the arguments ``replaced`` in place of its own."""
    cls = type(kernel)
    arguments = {name: replaced[name] if name in replaced else getattr(kernel, name) for name in _arguments(cls)}
    made = cls(**arguments, device=device)
    made.label = kernel.label
    for name, value in _properties(kernel):
        setattr(made, name, value)
    made._configured_by_hand = kernel._configured_by_hand
    return made


def _arguments(cls: type[BaseKernel]) -> list[str]:
    """The names of the constructor's arguments that an archive keeps."""
    return [name for name in inspect.signature(cls).parameters if name not in ("device", "label")]


def _properties(kernel: BaseKernel) -> list[tuple[str, Any]]:
    """The properties that were set, and their values."""
    return [*kernel._values.items(), *kernel._archived_properties().items()]


def save(kernel: BaseKernel, path: str | PathLike[str]) -> None:
    """Writes ``to_bytes(kernel)`` to the file ``path``."""
    Path(path).write_bytes(to_bytes(kernel))


def load(path: str | PathLike[str], device: Device | None = None) -> Any:
    """The kernel in the file ``path``; raises what ``from_bytes`` raises."""
    return from_bytes(Path(path).read_bytes(), device)


def _settable(cls: type[BaseKernel]) -> set[str]:
    settable = (name for base in cls.__mro__ for name, value in vars(base).items() if hasattr(value, "__set__"))
    return {name for name in settable if not name.startswith("_")}


def _name_of(kind: type) -> str | None:
    """By which name objects of ``kind`` are saved, that of its own class where it goes by Apple's; None for others."""
    for base in kind.__mro__:
        if _classes.get(base.__name__) is base:
            return base.__name__
        if not base.__module__.startswith(_APPLE_NAMES):
            return None
    return None


def _encode(value: Any, where: str, arrays: dict[str, np.ndarray]) -> Any:
    # A data source with Apple's names stands behind what kernels see of it.
    value = getattr(value, "apple_object", value)
    name = _name_of(type(value))
    if name in _classes:
        if isinstance(value, int):
            return {"$object": [name, int(value)]}
        if isinstance(value, tuple):
            return {"$object": [name, [_encode(part, where, arrays) for part in value]]}
        if hasattr(value, "archive_fields"):
            fields = value.archive_fields()
        else:
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        return {"$object": [name, {key: _encode(v, f"{where}.{key}", arrays) for key, v in fields.items()}]}
    if isinstance(value, np.ndarray):
        arrays[where] = np.ascontiguousarray(value)
        return {"$array": where}
    if isinstance(value, (list, tuple)):
        return {"$tuple": [_encode(part, f"{where}[{i}]", arrays) for i, part in enumerate(value)]}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ArchiveError(
        f"{where} is a {type(value).__name__}, which cannot be saved; mark its class with mpsgrad.archive.archivable"
    )


def _decode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if not isinstance(value, dict):
        return value
    (kind, content), *rest = value.items()
    if rest or kind not in ("$array", "$tuple", "$object"):
        raise ArchiveError(f"unknown entry {value!r}")
    if kind == "$array":
        return arrays[content]
    if kind == "$tuple":
        return tuple(_decode(part, arrays) for part in content)
    name, fields = content
    cls = _classes[name]
    if isinstance(fields, list):
        return cls(*(_decode(part, arrays) for part in fields))
    if isinstance(fields, dict):
        made = cls(**{key: _decode(part, arrays) for key, part in fields.items()})
        return made.to_ours() if hasattr(made, "to_ours") else made
    return cls(fields)
