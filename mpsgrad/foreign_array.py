"""Arrays of other libraries, as images take them: what they hold, and on which device."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from mpsgrad.data_type import require_unmasked
from mpsgrad.devices import Device, available_devices, default_device, require_device
from mpsgrad.dlpack import BorrowedTensor
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.image_descriptor import FeatureChannelFormat, ImageDescriptor

_LEAST_ALIGNMENT = 16


def as_array(owner: str, array: Any) -> np.ndarray:
    """``array`` as NumPy sees it; raises ``FormatError`` for what is no array of numbers and for masked ones."""
    require_unmasked(owner, array)
    if isinstance(array, (list, tuple, int, float)):
        raise FormatError(f"{owner}: {type(array).__name__} is not an array; make it one with numpy.asarray")
    try:
        if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__") and not hasattr(array, "__array__"):
            return np.from_dlpack(array)
        values = np.asarray(array)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise FormatError(f"{owner}: {type(array).__name__} cannot be read as a NumPy array: {error}") from error
    if values.dtype == object:
        raise FormatError(f"{owner}: {type(array).__name__} is not an array of numbers")
    return values


def descriptor_of_array(owner: str, values: np.ndarray) -> ImageDescriptor:
    """That of an image with the elements of ``values``: images x height x width x channels, or without images.

    Raises ``FormatError`` for a dtype other than native float16 and float32 and for an array that is not C-contiguous,
    ``GeometryError`` for another number of dimensions or an extent of 0.
    """
    if values.ndim not in (3, 4):
        raise GeometryError(
            f"{owner}: the array has shape {values.shape}; it has to be (images, height, width, channels)"
            " or (height, width, channels)"
        )
    if not values.flags.c_contiguous:
        raise FormatError(
            f"{owner}: the array of shape {values.shape} has strides {values.strides}; it has to be "
            "C-contiguous (numpy.ascontiguousarray makes it so)"
        )
    if 0 in values.shape:
        raise GeometryError(f"{owner}: the array of shape {values.shape} is empty")
    try:
        return _descriptor(values.shape, values.dtype)
    except FormatError as error:
        raise FormatError(f"{owner}: {error}") from None


@lru_cache(maxsize=512)
def _descriptor(shape: tuple[int, ...], dtype: np.dtype) -> ImageDescriptor:
    channel_format = FeatureChannelFormat.from_dtype(dtype)
    images, height, width, channels = shape if len(shape) == 4 else (1, *shape)
    return ImageDescriptor(channel_format, width, height, channels, images)


def borrow(owner: str, array: Any, device: Device | None) -> tuple[Device, BorrowedTensor, ImageDescriptor]:
    """The device that the memory of ``array`` is on, that memory, and the descriptor of an image in it.

    Raises what ``Image.from_dlpack`` raises, apart from what the device does.
    """
    if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
        raise FormatError(f"{owner}: {type(array).__name__} has no __dlpack__")
    chosen = _device_of_dlpack(owner, array, device)
    try:
        tensor = BorrowedTensor.of(array, chosen)
    except BufferError as error:
        raise FormatError(f"{owner}: {error}") from error
    if len(tensor.shape) not in (3, 4) or 0 in tensor.shape:
        raise GeometryError(
            f"{owner}: the array has shape {tensor.shape}; it has to be (images, height, width, channels) or "
            "(height, width, channels), without an extent of 0"
        )
    if not tensor.is_dense:
        raise FormatError(
            f"{owner}: the array of shape {tensor.shape} has strides {tensor.strides}; it has to be C-contiguous"
        )
    if tensor.dtype is None or tensor.dtype not in (np.float16, np.float32):
        raise FormatError(f"{owner}: images hold float16 or float32, not {tensor.dtype or 'another type'}")
    if tensor.address % _LEAST_ALIGNMENT:
        raise FormatError(
            f"{owner}: the array begins at address {tensor.address:#x}, which is no multiple of {_LEAST_ALIGNMENT};"
            " Image.from_array copies it"
        )
    return chosen, tensor, _descriptor(tensor.shape, tensor.dtype)


def _device_of_dlpack(owner: str, array: Any, device: Device | None) -> Device:
    """``device``, or the one that the memory of ``array`` belongs to; raises ``FormatError`` if it is on another."""
    place = tuple(map(int, array.__dlpack_device__()))
    if device is None:
        chosen = default_device()
        if chosen.dlpack_device != place:
            chosen = next((each for each in available_devices() if each.dlpack_device == place), chosen)
    else:
        chosen = require_device("Image", device)
    if chosen.dlpack_device != place:
        raise FormatError(
            f"{owner}: the array is on the DLPack device {place} but {chosen.identifier} is {chosen.dlpack_device}; "
            "Image.from_array copies arrays of the CPU"
        )
    return chosen
