"""Images: N x height x width x feature channels in device memory, their batches and allocators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Protocol, overload

import numpy as np

from mpsgrad.checked_attribute import fixed
from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device, require_device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.foreign_array import as_array, borrow, descriptor_of_array
from mpsgrad.geometry import integer
from mpsgrad.image_descriptor import FeatureChannelFormat, ImageDescriptor
from mpsgrad.image_memory import ImageMemory
from mpsgrad.read_counts import increment_read_counts


class Image(ImageMemory):
    """``number_of_images`` pictures of height x width pixels with ``feature_channels`` channels each.

    One contiguous device buffer in N, height, width, channel order. Views (``sub_image``, ``batch_representation``)
    share the storage of their ``parent``. Source: ``MPSImage``.
    """

    _parent: Image | None
    parent: Image | None = fixed("_parent", "The image that this one is a view of, or None.")
    _layout: tuple[int, ...] | None = None

    def __init__(self, descriptor: ImageDescriptor, device: Device | None = None, *, label: str | None = None) -> None:
        owner = type(self).__name__
        if not isinstance(descriptor, ImageDescriptor):
            raise FormatError(
                f"{owner}: descriptor is {descriptor!r}; it has to be an ImageDescriptor "
                "(Image.from_array takes arrays)"
            )
        self._set_up(descriptor, require_device(owner, device), label)

    @classmethod
    def _allocated(cls, descriptor: ImageDescriptor, device: Device, token: int) -> Image:
        """A regular image that has its memory and its token, without the checks of what users give."""
        image = cls.__new__(cls)
        image._set_up(descriptor, device, None)
        image._buffer = device.allocate(descriptor.nbytes)
        image._token = token
        return image

    @classmethod
    def from_array(cls, array: Any, device: Device | None = None, *, label: str | None = None) -> Image:
        """An image with a copy of ``array``: N x height x width x channels, or height x width x channels.

        Takes NumPy arrays and whatever has ``__dlpack__`` or ``__array__``. Raises ``FormatError`` for a dtype other
        than native float16 and float32 and for an array that is not C-contiguous, ``GeometryError`` for another
        number of dimensions or an extent of 0.
        """
        owner = "Image.from_array"
        values = as_array(owner, array)
        image = cls(descriptor_of_array(owner, values), device, label=label)
        image.buffer.write(values.reshape(-1).view(np.uint8))
        return image

    @property
    def descriptor(self) -> ImageDescriptor:
        """Extents and format. It cannot be set: the memory is laid out by it."""
        return self._descriptor

    @property
    def channel_format(self) -> FeatureChannelFormat:
        """How the channels are stored."""
        return self._descriptor.channel_format

    @property
    def width(self) -> int:
        """Pixels in a row."""
        return self._descriptor.width

    @property
    def height(self) -> int:
        """Rows."""
        return self._descriptor.height

    @property
    def feature_channels(self) -> int:
        """Channels of a pixel."""
        return self._descriptor.feature_channels

    @property
    def number_of_images(self) -> int:
        """How many images lie one after the other."""
        return self._descriptor.number_of_images

    @property
    def precision(self) -> int:
        """Bits of the significand: 24 for FLOAT32, 11 for FLOAT16."""
        return np.finfo(self.dtype).nmant + 1

    @property
    def resource_size(self) -> int:
        """Bytes of the storage; a view counts its own elements."""
        return self._descriptor.nbytes

    @property
    def layout(self) -> tuple[int, ...]:
        """The fields of the shaders' ``ImageLayout``: first element, three strides, and the four extents."""
        if self._parent is None:
            return self._descriptor.dense_layout
        if self._layout is None:
            self._layout = (self._first_element, *self._strides, *self._descriptor.dense_layout[4:])
        return self._layout

    # objc: -batchRepresentationWithSubRange:
    def batch_representation(self, start: int = 0, count: int | None = None) -> ImageBatch:
        """Views of images ``start`` to ``start + count``, each with one image, as a batch.

        Raises ``GeometryError`` if the range leaves the image.
        """
        start, count = self._checked_range(start, count)
        if isinstance(self, TemporaryImage):
            # Their views share its read count from now on.
            return ImageBatch(self._images(start + index, 1) for index in range(count))
        return ImageBatch._of_views(self, start, count)

    def _checked_range(self, start: int, count: int | None) -> tuple[int, int]:
        start = integer(type(self).__name__, "start", start, 0)
        count = max(self.number_of_images - start, 1) if count is None else integer(
            type(self).__name__, "count", count, 1
        )
        if start + count > self.number_of_images:
            raise GeometryError(
                f"{type(self).__name__}: images {start} to {start + count} of an image with {self.number_of_images}"
            )
        return start, count

    def _images(self, start: int, count: int) -> Image:
        if start == 0 and count == self.number_of_images:
            return self
        return self._view(
            replace(self._descriptor, number_of_images=count), self._first_element + start * self._strides[2]
        )

    # objc: -subImageWithFeatureChannelRange:
    def sub_image(self, first_feature_channel: int, feature_channels: int) -> Image:
        """A view of the channels from ``first_feature_channel``; the count is cut to what the image has.

        Raises ``GeometryError`` unless both are multiples of 4 and a channel is left.
        """
        for name, value in (
            ("first_feature_channel", first_feature_channel),
            ("feature_channels", feature_channels),
        ):
            if integer(type(self).__name__, name, value, 0) % 4:
                raise GeometryError(f"{type(self).__name__}: {name} is {value}; it has to be a multiple of 4")
        available = self.feature_channels - first_feature_channel
        if available <= 0 or feature_channels == 0:
            raise GeometryError(
                f"{type(self).__name__}: channels from {first_feature_channel} of an image with "
                f"{self.feature_channels} leave none"
            )
        return self._view(
            replace(self._descriptor, feature_channels=min(feature_channels, available)),
            self._first_element + first_feature_channel,
        )

    def _view(self, descriptor: ImageDescriptor, first_element: int) -> Image:
        view = self._new_view(descriptor)
        view._parent = self
        view._first_element = first_element
        view._strides = self._strides
        view._is_borrowed = self._is_borrowed
        return view

    def _new_view(self, descriptor: ImageDescriptor) -> Image:
        return type(self)(descriptor, self.device, label=self.label)

    @classmethod
    def from_dlpack(cls, array: Any, device: Device | None = None, *, label: str | None = None) -> Image:
        """An image in the memory of ``array``, N x height x width x channels or height x width x channels.

        Nothing is copied: what kernels write appears in ``array``, and the other way round. On a GPU work of this
        package is ordered with what ``array``'s library does on CUDA's default stream; on another stream let that
        library wait until its work has ended. ``array`` is anything with ``__dlpack__`` on ``device``, None being the
        device that its memory belongs to.

        Raises ``FormatError`` for another device, for a dtype other than float16 and float32, for an array that its
        library does not lend, that is not C-contiguous or whose address is no multiple of 16, ``GeometryError`` for
        another number of dimensions or an extent of 0, and ``NotImplementedError`` where kernels use only memory that
        the driver allocated.
        """
        owner = "Image.from_dlpack"
        chosen, tensor, descriptor = borrow(owner, array, device)
        image = cls(descriptor, chosen, label=label)
        image._buffer = chosen.adopt(tensor.address, image.resource_size, tensor)
        image._is_borrowed = True
        return image

    # objc: -synchronizeOnCommandBuffer:
    def synchronize(self, command_buffer: CommandBuffer) -> None:
        """Nothing to do: ``np.asarray`` waits and copies by itself. Kept for ported code."""

    @property
    def read_count(self) -> int:
        """0: only temporary images count their reads."""
        return 0

    def _read_once(self) -> None:
        """Called once for each encode that reads the image."""

    def _require_readable(self, owner: str, argument: str) -> None:
        """Raises ``StateError`` if the contents are gone."""

    @staticmethod
    def default_allocator() -> ImageAllocator:
        """The allocator that makes regular images."""
        return RegularImageAllocator()

    def __repr__(self) -> str:
        name = f" {self.label!r}" if self.label else ""
        kind = f"{type(self).__name__}{name}"
        return f"<{kind} {self._descriptor.shape_text} {self.dtype.name} on {self.device.identifier}>"


class TemporaryImage(Image):
    """An image that lives on one command buffer; its memory is used again once ``read_count`` reaches 0.

    The count starts at 1 and falls by 1 with each encode that reads the image. The contents cannot be read on the CPU.
    Views are temporary images too: each counts as one read of its parent until it has been read as often as it may be.
    Source: ``MPSTemporaryImage``.
    """

    _command_buffer: CommandBuffer

    def __init__(self, command_buffer: CommandBuffer, descriptor: ImageDescriptor, *, label: str | None = None) -> None:
        if not isinstance(command_buffer, CommandBuffer):
            raise FormatError(f"TemporaryImage: command_buffer is {command_buffer!r}; it has to be a CommandBuffer")
        super().__init__(descriptor, command_buffer.device, label=label)
        self._command_buffer = command_buffer
        self._read_count = 1

    @classmethod
    def from_array(cls, array: Any, device: Device | None = None, *, label: str | None = None) -> Image:
        """Not possible: temporary images have no CPU access. Raises ``StateError``."""
        raise StateError("TemporaryImage: has no CPU access; make an Image from the array")

    @property
    def read_count(self) -> int:
        """How many encodes may still read the image. Setting it to 0 gives the memory back.

        Setting raises ``StateError`` once it is 0 and ``GeometryError`` for a negative value.
        """
        return self._read_count

    @read_count.setter
    def read_count(self, count: int) -> None:
        if self._read_count == 0:
            raise StateError("TemporaryImage: read_count is 0, so the memory is gone and the count cannot be changed")
        self._command_buffer._if_taken_back(partial(setattr, self, "_read_count", self._read_count))
        self._read_count = integer("TemporaryImage", "read_count", count, 0)
        if self._read_count == 0:
            if self._parent is not None:
                self._parent._read_once()
            elif self._buffer is not None:
                self._command_buffer._give_back(self._buffer)

    def _read_once(self) -> None:
        self.read_count = self._read_count - 1

    def _require_readable(self, owner: str, argument: str) -> None:
        if self._read_count == 0:
            raise StateError(
                f"{owner}: {argument} is a temporary image with read_count 0, so its contents are gone; raise "
                "read_count before the earlier encode that read it"
            )

    def _allocate(self) -> Buffer:
        if self._parent is not None:
            return self._parent.buffer
        reused = self._command_buffer._reuse_buffer(self.resource_size)
        self._command_buffer._if_taken_back(partial(setattr, self, "_buffer", None))
        return reused if reused is not None else self.device.allocate(self.resource_size)

    def _new_view(self, descriptor: ImageDescriptor) -> Image:
        self.read_count += 1
        return type(self)(self._command_buffer, descriptor, label=self.label)

    def _require_submitted(self, what: str) -> None:
        self._wait_for_writer(what, needs_result=True)

    def _wait_for_writer(self, what: str, *, needs_result: bool) -> None:
        raise StateError(f"TemporaryImage: {what} on the CPU, but temporary images have no CPU access")

    @staticmethod
    def default_allocator() -> ImageAllocator:
        """The allocator that makes temporary images."""
        return TemporaryImageAllocator()


class ImageAllocator(Protocol):
    """Makes the destination of an encode that returns an image. Source: ``MPSImageAllocator``."""

    def image(self, command_buffer: CommandBuffer, descriptor: ImageDescriptor, kernel: Any) -> Image:
        """A new image of ``descriptor`` for the result of ``kernel``."""
        ...


class RegularImageAllocator:
    """Makes regular images: the default of every kernel here (MPS's default makes temporary ones)."""

    def image(self, command_buffer: CommandBuffer, descriptor: ImageDescriptor, kernel: Any) -> Image:
        return Image(descriptor, command_buffer.device)


class TemporaryImageAllocator:
    """Makes temporary images."""

    def image(self, command_buffer: CommandBuffer, descriptor: ImageDescriptor, kernel: Any) -> Image:
        return TemporaryImage(command_buffer, descriptor)


class HandedImageAllocator:
    """Gives the image that it was handed: for destinations whose memory is planned."""

    def __init__(self) -> None:
        self.handed: Image | None = None

    def image(self, command_buffer: CommandBuffer, descriptor: ImageDescriptor, kernel: Any) -> Image:
        image, self.handed = self.handed, None
        if image is None or image.descriptor != descriptor:
            planned = "none" if image is None else f"one of {image.descriptor}"
            raise StateError(f"{kernel!r}: asks for an image of {descriptor}, but {planned} was planned")
        return image


def require_allocator(owner: str, argument: str, value: Any) -> ImageAllocator:
    """``value``; raises ``FormatError`` if it makes no images."""
    if not callable(getattr(value, "image", None)):
        raise FormatError(f"{owner}: {argument} is {value!r}; it has to have an image() method")
    return value


def allocated(
    allocator: ImageAllocator, command_buffer: CommandBuffer, descriptor: ImageDescriptor, kernel: Any
) -> Image:
    """The image for a result of ``kernel`` from ``allocator``; raises ``FormatError`` if that gives anything else."""
    made = allocator.image(command_buffer, descriptor, kernel)
    if not isinstance(made, Image) or (made.descriptor is not descriptor and made.descriptor != descriptor):
        raise FormatError(
            f"{type(kernel).__name__}: the allocator of the result, {allocator!r}, gave {made!r}; it has to give an "
            f"image of {descriptor.shape_text} {descriptor.channel_format.name}"
        )
    return made


class ImageBatch(Sequence[Image]):
    """A list of images of one image each; a batch made of all views of one image is encoded in one dispatch.

    Raises ``GeometryError`` if it is empty or an image holds more than one. Source: ``MPSImageBatch``.
    """

    def __init__(self, images: Iterable[Image]) -> None:
        if isinstance(images, Image) or not isinstance(images, Iterable):
            raise FormatError(f"ImageBatch: images is {type(images).__name__}; it has to be a list of images")
        self._images = tuple(images)
        if not self._images:
            raise GeometryError("ImageBatch: an empty batch; it has to hold at least one image")
        for index, image in enumerate(self._images):
            if not isinstance(image, Image):
                raise FormatError(f"ImageBatch: element {index} is {image!r}; it has to be an Image")
            if image.number_of_images != 1:
                raise GeometryError(
                    f"ImageBatch: element {index} holds {image.number_of_images} images; each element has to hold 1 "
                    "(batch_representation() gives them one by one)"
                )
        self._range: tuple[Image, int, int] | None = None
        self._count = len(self._images)

    @classmethod
    def _of_views(cls, image: Image, start: int, count: int) -> ImageBatch:
        """Images ``start`` to ``start + count`` of ``image``. Their views are made for those who ask for them."""
        batch = cls.__new__(cls)
        batch._range = image, start, count
        batch._count = count
        return batch

    @cached_property
    def _images(self) -> tuple[Image, ...]:
        assert self._range is not None
        image, start, count = self._range
        return tuple(image._images(start + index, 1) for index in range(count))

    @classmethod
    def from_array(cls, array: Any, device: Device | None = None) -> ImageBatch:
        """The images of ``array`` (N x height x width x channels) as views of one image."""
        return Image.from_array(array, device).batch_representation()

    @property
    def whole(self) -> Image | None:
        """The one image whose parts, in order, are this batch; None if its images are stored apart.

        None also for views of a temporary image, which count their reads one by one.
        """
        if self._count == 1:
            return self._images[0]
        if self._range is not None:
            image, start, count = self._range
            is_all = start == 0 and count == image._descriptor.number_of_images
            return image if is_all else image._images(start, count)
        first = self._images[0]
        parent = first.parent
        if parent is None or isinstance(parent, TemporaryImage):
            return None
        if any(image.parent is not parent for image in self._images):
            return None
        step = parent._strides[2]
        if first.feature_channels != parent.feature_channels:
            return None
        if any(im._first_element != first._first_element + i * step for i, im in enumerate(self._images)):
            return None
        return parent._images((first._first_element - parent._first_element) // step, len(self._images))

    @property
    def _is_of_different_images(self) -> bool:
        """Whether no image stands in the batch twice."""
        if self._range is not None:
            return True
        return len({(id(image._root), image._first_element) for image in self._images}) == self._count

    def _stored(self) -> tuple[Image, ...]:
        """The images that exist already: the whole one where the views were not asked for yet."""
        whole = () if self._range is None else self._range[:1]
        return (*whole, *vars(self).get("_images", ()))

    # objc: MPSImageBatchIncrementReadCount
    def increment_read_count(self, amount: int) -> int:
        """Adds ``amount`` to the read count of each different temporary image; returns the number of images."""
        return increment_read_counts(self._images, amount)

    # objc: MPSImageBatchResourceSize
    def resource_size(self) -> int:
        """Bytes of all different images."""
        return sum(image.resource_size for image in {id(i): i for i in self._images}.values())

    @overload
    def __getitem__(self, index: int) -> Image: ...
    @overload
    def __getitem__(self, index: slice) -> ImageBatch: ...
    def __getitem__(self, index: int | slice) -> Image | ImageBatch:
        return ImageBatch(self._images[index]) if isinstance(index, slice) else self._images[index]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Image]:
        return iter(self._images)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All images as one array of shape (images, height, width, channels)."""
        whole = self.whole
        if whole is not None:
            return whole.__array__(dtype, copy)
        return np.concatenate([np.asarray(image, dtype) for image in self._images])

    def __repr__(self) -> str:
        return f"<ImageBatch of {len(self)} x {self._images[0].descriptor.shape_text}>"


