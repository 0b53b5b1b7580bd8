"""Tensors of other libraries as arguments of kernels, in the memory that these lend by DLPack."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from mpsgrad.devices import Buffer, Device
from mpsgrad.dlpack import CPU, BorrowedTensor
from mpsgrad.errors import FormatError


@dataclass(frozen=True)
class DeviceTensor:
    """A tensor whose memory is the kernel's device's own, as a buffer that lies there."""

    buffer: Buffer
    dtype: np.dtype


def is_tensor(value: Any) -> TypeGuard[Any]:
    """Whether ``value`` is an array of another library than NumPy and this package."""
    return hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__") and not isinstance(value, np.ndarray)


def place_of(where: str, value: Any) -> tuple[int, int]:
    """The kind and the number of the device that ``value`` is on, in DLPack; raises ``FormatError`` for one without."""
    try:
        kind, number = value.__dlpack_device__()
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise FormatError(f"{where}: {type(value).__name__} does not lend its memory: {error}") from error
    return int(kind), int(number)


def in_place(where: str, device: Device, value: Any, *, is_written: bool) -> np.ndarray | DeviceTensor:
    """The memory of the tensor ``value``: an array over that of the CPU, or a buffer on ``device``.

    Bfloats appear as their bits, in uint16. Raises ``FormatError`` naming ``where`` for memory of another device, for
    what its library does not lend, and for arrays that do not change if ``is_written``.
    """
    place = place_of(where, value)
    if place[0] != CPU and place != device.dlpack_device:
        raise FormatError(
            f"{where} is on the DLPack device {place}, but the kernel was compiled for {device.identifier}, which is "
            f"{device.dlpack_device}"
        )
    try:
        tensor = BorrowedTensor.of(value, device if place[0] != CPU else None)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise FormatError(f"{where}: {type(value).__name__} does not lend its memory: {error}") from error
    dtype = np.dtype(np.uint16) if tensor.is_bfloat else tensor.dtype
    if dtype is None:
        raise FormatError(f"{where} is a {type(value).__name__} with numbers of a kind that NumPy lacks")
    if place[0] != CPU:
        if not tensor.is_dense:
            raise FormatError(
                f"{where} is a {type(value).__name__} of shape {tensor.shape} that has strides {tensor.strides}; on a "
                "GPU it has to be C-contiguous"
            )
        nbytes = int(np.prod(tensor.shape, dtype=np.int64)) * dtype.itemsize
        return DeviceTensor(device.adopt(tensor.address, nbytes, tensor), dtype)
    if is_written and not _changes(value):
        raise FormatError(f"{where} is a {type(value).__name__}, which never changes, but the kernel may write it")
    return _array(tensor, dtype)


def _changes(value: Any) -> bool:
    """Whether a library lets its array be written: those that never do say so to NumPy."""
    try:
        return not hasattr(value, "__array__") or np.asarray(value).flags.writeable
    except TypeError:
        # Numbers of a kind that NumPy lacks.
        return True


def _array(tensor: BorrowedTensor, dtype: np.dtype) -> np.ndarray:
    """An array over the memory of ``tensor``, which it keeps."""
    if 0 in tensor.shape:
        return np.empty(tensor.shape, dtype)
    steps = [
        (extent - 1) * stride * dtype.itemsize for extent, stride in zip(tensor.shape, tensor.strides, strict=True)
    ]
    first = sum(step for step in steps if step < 0)
    nbytes = sum(map(abs, steps)) + dtype.itemsize
    memory = (ctypes.c_uint8 * nbytes).from_address(tensor.address + first)
    memory.owner = tensor  # type: ignore[attr-defined]
    strides = [stride * dtype.itemsize for stride in tensor.strides]
    return np.ndarray(tensor.shape, dtype, memory, -first, strides)
