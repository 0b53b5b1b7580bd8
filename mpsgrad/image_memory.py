"""The memory of images: how the CPU and other libraries read, write and share it."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.checked_attribute import Label, fixed
from mpsgrad.command import CommandBuffer
from mpsgrad.device_bound import DeviceBound
from mpsgrad.devices import Buffer, Device
from mpsgrad.dlpack import CUDA, LEGACY_STREAM, capsule_of
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.foreign_array import as_array
from mpsgrad.image_descriptor import ImageDescriptor


class ImageMemory(DeviceBound):
    """The elements that ``descriptor`` speaks of, in a buffer of their own or, with ``parent``, in that one's."""

    device: Device = fixed("_device", "Where the memory is.")
    label = Label()
    parent: ImageMemory | None = fixed("_parent", "The image that this one is a view of.")
    command_buffer: CommandBuffer | None = fixed("_command_buffer", "What a temporary image lives on, or None.")
    _descriptor: ImageDescriptor
    _is_borrowed: bool
    """Whether the memory is that of another library's array, which further images may be over too."""
    _buffer: Buffer | None
    _first_element: int
    _strides: tuple[int, int, int]
    """Those of pixels, rows and images, in elements."""
    _writer: CommandBuffer | None
    _token: int
    """What ``repeated_encode.image_token`` gives, once somebody asked for it."""

    def _set_up(self, descriptor: ImageDescriptor, device: Device, label: str | None) -> None:
        # Not defaults of the class: Python would look for each of them in the object first.
        self._descriptor = descriptor
        self._device = device
        if label is not None:
            self.label = label
        self._parent: ImageMemory | None = None
        self._command_buffer: CommandBuffer | None = None
        self._is_borrowed = False
        self._buffer = None
        self._first_element = 0
        self._strides = descriptor.dense_strides
        self._writer = None
        self._token = 0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(number_of_images, height, width, feature_channels)."""
        return self._descriptor.shape

    @property
    def dtype(self) -> np.dtype:
        """The NumPy dtype of the elements."""
        return self._descriptor.channel_format.dtype

    @property
    def buffer(self) -> Buffer:
        """The device memory, allocated at the first use; a view's is its parent's."""
        if self._buffer is None:
            self._buffer = self._allocate()
        return self._buffer

    def _allocate(self) -> Buffer:
        if self._parent is not None:
            return self._parent.buffer
        return self.device.allocate(self._descriptor.nbytes)

    @property
    def _root(self) -> ImageMemory:
        image = self
        while image._parent is not None:
            image = image._parent
        return image

    def _written_by(self, command_buffer: CommandBuffer) -> None:
        command_buffer._writes(self if self._parent is None else self._root)

    def _wait_for_writer(self, what: str, *, needs_result: bool) -> None:
        writer = self._root._writer
        if writer is not None:
            name = f"{type(self).__name__}{f' {self.label!r}' if self.label else ''}"
            writer._wait_for(name, what, needs_result=needs_result)
            writer._is_done_with(self._root)

    @property
    def _span(self) -> int:
        """How many elements there are from the first to the last, with all that lie between them."""
        if self._parent is None:
            return self._descriptor.element_count
        return 1 + sum((n - 1) * stride for n, stride in zip(self.shape, self._element_strides, strict=True))

    @property
    def _addresses(self) -> range:
        """The addresses from the first element to the last."""
        memory, itemsize = self.buffer.memory, self.dtype.itemsize
        begin = memory.ctypes.data if memory is not None else self.buffer.address  # type: ignore[attr-defined]
        begin += self._first_element * itemsize
        return range(begin, begin + self._span * itemsize)

    def _storage(self) -> np.ndarray:
        """The elements from the first to the last, with all that lie between them: a copy without unified memory."""
        itemsize = self.dtype.itemsize
        span = self._span
        memory = self.buffer.memory
        if memory is None:
            return self.buffer.read(self._first_element * itemsize, span * itemsize).view(self.dtype)
        return memory[self._first_element * itemsize :][: span * itemsize].view(self.dtype)

    def _array_of(self, storage: np.ndarray) -> np.ndarray:
        if self._parent is None:
            return storage.reshape(self.shape)
        strides = tuple(stride * storage.itemsize for stride in self._element_strides)
        return np.lib.stride_tricks.as_strided(storage, self.shape, strides)

    @property
    def _element_strides(self) -> tuple[int, int, int, int]:
        """The strides of images, rows, pixels and channels, in elements."""
        pixel, row, image = self._strides
        return image, row, pixel, 1

    def _array(self) -> np.ndarray:
        return self._array_of(self._storage())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The image as an array of shape (images, height, width, channels).

        Waits for the command buffer that writes the image. On unified memory this is a view of the live storage unless
        a copy is asked for; elsewhere it is a copy, which cannot be written unless it was asked for, because that would
        not change the image. Raises ``StateError`` if that command buffer has not been committed.
        """
        self._wait_for_writer("read", needs_result=True)
        values = self._array()
        if dtype is not None and np.dtype(dtype) != values.dtype:
            if copy is False:
                raise ValueError(f"an image of {values.dtype} cannot be read as {np.dtype(dtype)} without a copy")
            return values.astype(dtype)
        if copy is False and self.buffer.memory is None:
            raise ValueError(f"an image on {self.device.identifier} cannot be read without a copy")
        if copy:
            return values.copy()
        if self.buffer.memory is None:
            values.flags.writeable = False
        return values

    def __dlpack__(self, *, stream: int | None = None, **arguments: Any) -> Any:
        """A capsule with the image's memory, for ``from_dlpack`` of other libraries; nothing is copied.

        On a GPU ``stream`` is the other library's, which waits for the work that writes the image: None, 0 and 1 are
        CUDA's default stream, 2 the thread's, -1 waits for nothing. Raises ``StateError`` if that work has not been
        committed, ``BufferError`` for another device or a copy.
        """
        if self.buffer.memory is not None:
            return np.asarray(self).__dlpack__(stream=stream, **arguments)
        if arguments.get("copy"):
            raise BufferError("an image is not copied on its way; copy what comes out")
        if arguments.get("dl_device") not in (None, self.__dlpack_device__()):
            raise BufferError(f"the image is on {self.device.identifier}, and it is not copied to another device")
        self._require_submitted("lent")
        self.buffer.lend(stream if stream not in (None, 0, -1) else LEGACY_STREAM, waits=stream != -1)  # type: ignore[attr-defined]
        address = self.buffer.address + self._first_element * self.dtype.itemsize  # type: ignore[attr-defined]
        return capsule_of(
            self.buffer, address, self.device.dlpack_device, self.dtype, self.shape, self._element_strides
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.dlpack_device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the interface, on NVIDIA GPUs; the stream in it is that of the work that writes the image."""
        if self.device.dlpack_device[0] != CUDA:
            raise AttributeError(f"an image on {self.device.identifier} has no __cuda_array_interface__")
        self._require_submitted("lent")
        stream = int(self.device.stream)  # type: ignore[attr-defined]
        # The other library does not say on which stream it uses the memory, so that all of them are waited for.
        self.buffer.lend(stream, waits=False)  # type: ignore[attr-defined]
        itemsize = self.dtype.itemsize
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.buffer.address + self._first_element * itemsize, False),  # type: ignore[attr-defined]
            "strides": tuple(stride * itemsize for stride in self._element_strides),
            "version": 3,
            "stream": stream,
        }

    def _require_submitted(self, what: str) -> None:
        """Raises ``StateError`` unless the work that writes the image was committed, and what it reported if it failed.

        Does not wait for it."""
        writer = self._root._writer
        if writer is not None:
            writer._require_submitted(type(self).__name__, what)

    # objc: -writeBytes:dataLayout:imageIndex:
    def write(self, array: Any) -> None:
        """Replaces the contents by ``array``, which has the image's shape and dtype.

        Waits for the command buffer that writes the image and, on CPUs, for committed work that reads it; on a Mac let
        that complete first. Raises ``GeometryError`` for another shape and ``FormatError`` for another dtype.
        """
        values = as_array("Image.write", array)
        if values.shape != self.shape:
            raise GeometryError(f"Image.write: the array has shape {values.shape} but the image {self.shape}")
        if values.dtype != self.dtype or not values.dtype.isnative:
            raise FormatError(f"Image.write: the array is {values.dtype!r} but the image {self.dtype!r}")
        self._wait_for_writer("written", needs_result=False)
        self.device.wait_until_unused(self.buffer)
        if self.buffer.memory is None and self._parent is None:
            self.buffer.write(np.ascontiguousarray(values))
            return
        storage = self._storage()
        self._array_of(storage)[...] = values
        if self.buffer.memory is None:
            # What lies between the elements of a view is written as it was read.
            self.buffer.write(storage, self._first_element * storage.itemsize)
