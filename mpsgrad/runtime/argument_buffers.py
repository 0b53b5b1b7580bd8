"""Arguments that hold pointers: what the pointers are to point to is bound, and its addresses are filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad.errors import FormatError
from mpsgrad.msl import Argument
from mpsgrad.msl.signature import AddressSpace
from mpsgrad.runtime.arguments import BoundArguments, shown
from mpsgrad.runtime.element_types import POINTEE
from mpsgrad.runtime.host_tensors import tensor_members
from mpsgrad.runtime.struct_values import from_mapping, of_member
from mpsgrad.runtime.tensors import in_place, is_tensor

if TYPE_CHECKING:
    from mpsgrad.msl.analysis.types import Type


def add_with_pointers(bound: BoundArguments, argument: Argument, dtype: np.dtype | None, value: Any) -> None:
    """Binds an argument that holds pointers, whose layout is ``dtype``, to ``value``.

    That is a dict for a struct and a sequence for an array, with arrays, tensors, device memory or None for pointers,
    and for a tensor of the host an array, or what else has a shape.
    Raises ``FormatError`` for what does not fit.
    """
    where = bound.place(argument)
    if argument.is_writable:
        raise FormatError(f"{where} holds pointers, so the kernel may only read it: it has to be constant or const")
    if dtype is None:
        raise FormatError(f"{where} holds pointers, and its layout cannot be told")
    if argument.tensor is not None:
        members = tensor_members(where, argument.tensor, value)
        pointer = _pointer(dtype["first"])
        assert pointer is not None
        members["first"] = _address(bound, where, argument.name, pointer, members["first"])
        bound.buffers.append(bound.device.constant_buffer(from_mapping(where, dtype, members).tobytes()))
        return
    if not argument.is_reference and _is_sequence(value):
        dtype = np.dtype((dtype, (len(value),)))
    if not _is_sequence(value) if dtype.shape else not isinstance(value, Mapping):
        kind = f"{dtype.shape[0]} values" if dtype.shape else f"a dict with {', '.join(dtype.names or ())}"
        raise FormatError(f"{where} is {shown(value)}; it has to be {kind}: arrays or device memory for its pointers")
    if dtype.shape == (0,):
        raise FormatError(f"{where} is empty")
    data = of_member(where, dtype, _with_addresses(bound, where, argument.name, dtype, value))
    bound.buffers.append(bound.device.constant_buffer(data.tobytes()))


def places_of_pointers(dtype: np.dtype, nbytes: int) -> Iterator[int]:
    """Where the pointers lie in ``nbytes`` that hold objects of the type ``dtype`` one behind another."""
    for start in range(0, nbytes, dtype.itemsize):
        yield from (start + place for place in _places(dtype))


def _places(dtype: np.dtype) -> Iterator[int]:
    if dtype.shape:
        for start in range(0, dtype.itemsize, dtype.base.itemsize):
            yield from (start + place for place in _places(dtype.base))
    elif dtype.fields is not None:
        for kind, start, *_ in dtype.fields.values():
            yield from (start + place for place in _places(kind))
    elif _pointer(dtype) is not None:
        yield 0


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _with_addresses(bound: BoundArguments, where: str, name: str, dtype: np.dtype, value: Any) -> Any:
    """``value`` for the object ``name`` of the type ``dtype``, with addresses for its pointers; what does not fit
    stays."""
    if dtype.shape:
        inner = np.dtype((dtype.base, dtype.shape[1:]))
        if not _holds_pointers(inner):
            return value
        if not _is_sequence(value) or len(value) != dtype.shape[0]:
            given = f"has {len(value)} values" if _is_sequence(value) else f"is {shown(value)}"
            raise FormatError(f"{where} {given}; it has to have {dtype.shape[0]}")
        return [
            _with_addresses(bound, f"{where}[{place}]", f"{name}[{place}]", inner, each)
            for place, each in enumerate(value)
        ]
    if dtype.fields is not None:
        if not isinstance(value, Mapping):
            return value
        members = {each: dtype.fields[each][0] for each in value if each in dtype.fields}
        return {
            each: _with_addresses(bound, f"{where}.{each}", f"{name}.{each}", members[each], inner)
            if each in members
            else inner
            for each, inner in value.items()
        }
    pointer = _pointer(dtype)
    return value if pointer is None else _address(bound, where, name, pointer, value)


def _pointer(dtype: np.dtype) -> Type | None:
    """The type of the pointer that an object of the type ``dtype`` is, if it is one."""
    metadata: Mapping[str, Any] | None = dtype.metadata
    return metadata.get(POINTEE) if metadata is not None else None


def _holds_pointers(dtype: np.dtype) -> bool:
    if dtype.base.fields is not None:
        return any(_holds_pointers(member[0]) for member in dtype.base.fields.values())
    return _pointer(dtype.base) is not None


def _address(bound: BoundArguments, where: str, name: str, pointer: Type, value: Any) -> int:
    """That of ``value`` as the kernel's memory."""
    if value is None:
        return 0
    where = f"{where} ({pointer})"
    space: AddressSpace = "constant" if pointer.space == "constant" else "device"
    pointee = str(pointer._replace(pointers=0, space=None, const=False))
    is_writable = space == "device" and not pointer.const
    if is_tensor(value):
        value = in_place(where, bound.device, value, is_written=is_writable)
    argument = Argument(name, 0, space, pointee, False, is_writable)
    buffer = bound.memory(where, argument, value)
    if buffer is None:
        raise FormatError(f"{where} is {shown(value)}; it has to be an array, device memory or None")
    bound.pointed.append((argument, buffer))
    return buffer.address
