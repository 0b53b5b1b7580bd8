"""What a kernel is called with, as buffers: arrays are copied in and out, device memory is used in place."""

from __future__ import annotations

import numbers
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from mpsgrad.data_type import require_unmasked
from mpsgrad.device_bound import DeviceBound
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import FormatError, with_article
from mpsgrad.msl import Argument
from mpsgrad.runtime.element_types import ElementType, bfloat_bits, bfloat_type, element_type, fitting
from mpsgrad.runtime.tensors import DeviceTensor

if TYPE_CHECKING:
    from mpsgrad.image import Image
    from mpsgrad.vector import Vector


def element_of(argument: Argument) -> ElementType | None:
    """The numbers that ``argument`` points to; None for structs and other types of the user's."""
    return element_type(argument.built_in_type) or bfloat_type(argument.built_in_type)


def is_device_memory(value: Any) -> TypeGuard[Buffer | DeviceTensor | Vector | Image]:
    """Whether a kernel can use ``value`` as it is."""
    if isinstance(value, (Buffer, DeviceTensor)) or not isinstance(value, DeviceBound):
        return isinstance(value, (Buffer, DeviceTensor))
    # Whoever has neither needs neither module, which take long to import.
    from mpsgrad.image import Image
    from mpsgrad.vector import Vector

    return isinstance(value, (Vector, Image))


def has_bytes(value: Any) -> bool:
    """Whether an argument has its bytes in memory, as numbers and dicts have not."""
    return isinstance(value, (np.ndarray, np.generic)) or is_device_memory(value)


def declared(argument: Argument) -> str:
    """An argument's declaration, as messages show it."""
    tensor = argument.tensor
    if tensor is not None:
        const = "const " if tensor.address_space == "device" and not tensor.is_writable else ""
        kind, lengths = "dextents", str(len(tensor.lengths))
        if tensor.lengths != (None,) * len(tensor.lengths):
            kind, lengths = "extents", ", ".join(str(length or "dynamic_extent") for length in tensor.lengths)
        element = f"{tensor.address_space} {const}{tensor.element}"
        return f"tensor<{element}, {kind}<{tensor.index_type}, {lengths}>> {argument.name}"
    const = "const " if argument.address_space == "device" and not argument.is_writable else ""
    return f"{argument.address_space} {const}{argument.type}{'&' if argument.is_reference else '*'} {argument.name}"


@dataclass
class BoundArguments:
    """The buffers of one call, and the arrays that take what the kernel writes.

    ``pointed`` are those that the kernel finds by their addresses in others, and what it knows each as.
    """

    owner: str
    device: Device
    buffers: list[Buffer] = field(default_factory=list)
    pointed: list[tuple[Argument, Buffer]] = field(default_factory=list)
    _arrays: list[tuple[np.ndarray, Buffer, bool]] = field(default_factory=list)

    def add(self, argument: Argument, size: int | None, value: Any) -> None:
        """Binds ``value``; ``size`` has the bytes of what ``argument`` points to, if known.

        Raises ``FormatError`` naming the argument, its declaration and what was given.
        """
        where = self.place(argument)
        require_unmasked(where, value)
        if is_device_memory(value):
            self.buffers.append(self._device_memory(where, argument, size, value))
        elif isinstance(value, np.ndarray) and not _is_value(argument, value):
            self.buffers.append(self._array(where, argument, size, value))
        elif argument.is_writable:
            raise FormatError(
                f"{where} is {shown(value)}; the kernel may write it, so it has to be an array or device memory"
            )
        else:
            data = np.ascontiguousarray(_by_value(where, argument, size, value))
            self.buffers.append(self.device.constant_buffer(data.tobytes()))

    def place(self, argument: Argument) -> str:
        """What messages say about the argument that is to be bound next."""
        return f"{self.owner}: argument {len(self.buffers)} ({declared(argument)})"

    def memory(self, where: str, argument: Argument, value: Any) -> Buffer | None:
        """``value`` as a buffer, if it is an array or device memory; raises what ``add`` does."""
        require_unmasked(where, value)
        if is_device_memory(value):
            return self._device_memory(where, argument, None, value)
        return self._array(where, argument, None, value) if isinstance(value, np.ndarray) else None

    def _device_memory(
        self, where: str, argument: Argument, size: int | None, value: Buffer | DeviceTensor | Vector | Image
    ) -> Buffer:
        from mpsgrad.image import TemporaryImage
        from mpsgrad.vector import Vector

        element = element_of(argument)
        if isinstance(value, Buffer):
            buffer, nbytes = value, value.nbytes
        elif isinstance(value, DeviceTensor):
            _require_dtype(where, element, value.dtype, f"a tensor of {value.dtype}")
            buffer, nbytes = value.buffer, value.buffer.nbytes
        elif isinstance(value, Vector):
            _require_dtype(where, element, np.dtype(np.float32), "a Vector of float32")
            if value._writer is not None:
                value._writer._wait_for("Vector", "read", needs_result=True)
            buffer, nbytes = value.buffer, 4 * value.length
        else:
            if value.parent is not None or isinstance(value, TemporaryImage):
                raise FormatError(f"{where} is {value!r}; it has to be an image that is no view and not temporary")
            _require_dtype(where, element, value.dtype, f"an Image of {value.dtype}")
            value._wait_for_writer("read", needs_result=True)
            buffer, nbytes = value.buffer, value.resource_size
        if buffer.device is not self.device:
            raise FormatError(
                f"{where} is on {buffer.device.identifier} but the kernel was compiled for {self.device.identifier}"
            )
        _require_size(where, argument, element, size, nbytes)
        return buffer

    def _array(self, where: str, argument: Argument, size: int | None, value: np.ndarray) -> Buffer:
        element = element_of(argument)
        if value.dtype.hasobject or not value.dtype.isnative:
            raise FormatError(f"{where} is {shown(value)}; it has to hold numbers in native byte order")
        if not value.flags.c_contiguous:
            raise FormatError(f"{where} is {shown(value)} that is not contiguous; use numpy.ascontiguousarray")
        if argument.is_writable and not value.flags.writeable:
            raise FormatError(f"{where} is {shown(value)} that is read-only, but the kernel may write it")
        _require_dtype(where, element, value.dtype, shown(value))
        _require_size(where, argument, element, size, value.nbytes)
        if element is not None and element.lanes == 3 < element.size // element.dtype.itemsize:
            if value.ndim > 1 and value.shape[-1] == 3:
                packed = f"three without a gap are a packed_{argument.type}"
                room = f"{with_article(argument.type)} takes the room of four numbers; {packed}"
                raise FormatError(f"{where} is {shown(value)}, but {room}")
        for index, (other, buffer, written) in enumerate(self._arrays):
            if not value.nbytes or not np.may_share_memory(value, other):
                continue
            if value.nbytes == other.nbytes and _address(value) == _address(other):
                self._arrays[index] = (other, buffer, written) if written else (value, buffer, argument.is_writable)
                return buffer
            if argument.is_writable or written:
                raise FormatError(f"{where} overlaps another argument, and the kernel may write one of them")
        buffer = self.device.allocate(max(value.nbytes, 1))
        if value.nbytes:
            buffer.write(value.reshape(-1).view(np.uint8))
        self._arrays.append((value, buffer, argument.is_writable))
        return buffer

    def write_back(self) -> None:
        """Copies what the kernel wrote into the arrays. The kernel must have run."""
        for array, buffer, written in self._arrays:
            if written and array.nbytes:
                memory = buffer.memory
                data = buffer.read(0, array.nbytes) if memory is None else memory[: array.nbytes]
                array.reshape(-1).view(np.uint8)[...] = data


def _is_value(argument: Argument, array: np.ndarray) -> bool:
    """Whether an array stands for one number or one vector that is only read."""
    if argument.is_writable:
        return False
    element = element_of(argument)
    lanes = element.lanes if element is not None and argument.is_reference else 1
    return array.ndim == 0 or (lanes > 1 and array.shape == (lanes,))


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def shown(value: Any) -> str:
    if isinstance(value, (np.ndarray, np.generic)):
        shape = "x".join(map(str, value.shape))
        return f"{with_article(value.dtype)} array of shape {shape}" if value.shape else f"the {value.dtype} {value}"
    return f"{value!r}" if isinstance(value, numbers.Number) else with_article(type(value).__name__)


def _require_dtype(where: str, element: ElementType | None, dtype: np.dtype, shown: str) -> None:
    """Raises ``FormatError`` unless numbers of ``dtype`` mean the same to the kernel, signs apart; complex ones are
    vectors of two."""
    is_bfloat = dtype.name == "bfloat16"
    if element is None or dtype == element.dtype or dtype.names is not None or (dtype.kind == "V" and not is_bfloat):
        return
    if element.is_bfloat:
        if not is_bfloat and dtype != np.int16:
            raise FormatError(f"{where} is {shown}; it has to be bfloat16, or uint16 with the bits of bfloats")
        return
    if dtype == np.complex64 and element.dtype == np.float32 and element.lanes == 2:
        return
    integers = dtype.kind in "iu" and element.dtype.kind in "iu"
    truths = {dtype.kind, element.dtype.kind} <= {"b", "u", "i"} and dtype.itemsize == 1
    if is_bfloat or dtype.itemsize != element.dtype.itemsize or not (integers or truths):
        hint = f"; its bytes are its view(np.{element.dtype})" if element.dtype.itemsize == 1 else ""
        raise FormatError(f"{where} is {shown}; it has to be {element.dtype}{hint}")


def _require_size(where: str, argument: Argument, element: ElementType | None, size: int | None, nbytes: int) -> None:
    """Raises ``FormatError`` unless ``nbytes`` are a whole number of what the argument points to.

    More are taken for a reference to a struct in device memory: it may end in an array without a known extent.
    """
    size = element.size if element is not None else size
    if size is None:
        return
    may_grow = element is None and argument.is_reference and argument.address_space == "device"
    if may_grow and nbytes >= size:
        return
    if nbytes % size or (argument.is_reference and nbytes < size):
        hint = ""
        if element is not None and element.lanes == 3 and element.size == 4 * element.dtype.itemsize:
            hint = f"; three numbers without a gap are a packed_{argument.type}"
        raise FormatError(f"{where} has {nbytes} bytes, but {with_article(argument.type)} has {size}{hint}")


def _by_value(where: str, argument: Argument, size: int | None, value: Any) -> np.ndarray:
    """``value`` as the bytes of what ``argument`` points to."""
    element = element_of(argument)
    if element is None:
        data = np.asarray(value)
        if data.dtype.hasobject or not data.dtype.isnative:
            raise FormatError(f"{where} is {shown(value)}; it has to hold numbers in native byte order")
        _require_size(where, argument, None, size, data.nbytes)
        if size is not None and data.ndim == 0 and data.nbytes != size:
            raise FormatError(f"{where} has {data.nbytes} bytes, but {with_article(argument.type)} has {size}")
        return data
    is_known = isinstance(value, (numbers.Number, np.generic, np.ndarray, Sequence))
    given = _numbers(element, value) if is_known else None
    if given is None:
        wanted = "" if argument.is_reference else "an array, device memory or "
        wanted += with_article(argument.built_in_type)
        raise FormatError(f"{where} is {reprlib.repr(value) if is_known else shown(value)}; it has to be {wanted}")
    data = np.zeros(element.size // element.dtype.itemsize, element.dtype)
    data[: element.lanes] = given
    return data


def _numbers(element: ElementType, value: Any) -> np.ndarray | None:
    """``value`` as ``element`` has it; None if it has another shape, or numbers that do not fit."""
    shape = () if element.lanes == 1 else (element.lanes,)
    if not element.is_bfloat:
        return fitting(value, element.dtype, shape)
    if isinstance(value, (np.ndarray, np.generic)) and (value.dtype == np.uint16 or value.dtype.name == "bfloat16"):
        return fitting(value.view(np.uint16), element.dtype, shape)
    numbers = fitting(value, np.dtype(np.float32), shape)
    return None if numbers is None else bfloat_bits(numbers)
