"""Concatenations of feature channels, and their gradients."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import MAXIMUM, Offset, flag, integer
from mpsgrad.image import Image, ImageBatch, ImageDescriptor
from mpsgrad.kernel import BaseKernel, GradientKernel, Kernel, Regions
from mpsgrad.kernels.copies import add_copy, add_pieces
from mpsgrad.kernels.copies_of_pixels import CopiedPixels, add_copies_of_pixels, can_copy_pixels
from mpsgrad.kernels.copies_of_sources import add_copies_of_sources, can_copy_sources
from mpsgrad.kernels.pointwise import Operand, exceeds_caches
from mpsgrad.kernels.strides import View, zeros
from mpsgrad.read_counts import read_once
from mpsgrad.repeated_encode import RepeatedEncode
from mpsgrad.state import ForwardSnapshot, GradientState
from mpsgrad.tunables import tunables


class ConcatenationGradientState(GradientState):
    """Where each source of a ``Concatenation`` begins in the result, ``first_channels``, and the sources' extents."""

    def __init__(
        self,
        snapshot: ForwardSnapshot,
        sources: tuple[ImageDescriptor, ...],
        first_channels: tuple[int, ...],
        device: Device,
    ) -> None:
        super().__init__(snapshot, (), device)
        self.sources = sources
        self.first_channels = first_channels

    def _keep_one_image(self) -> None:
        super()._keep_one_image()
        self.sources = tuple(replace(source, number_of_images=1) for source in self.sources)

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        return (self.snapshot, self.sources, self.first_channels)


class Concatenation(BaseKernel):
    """The feature channels of several images of one size, one image after the other.

    MPS lets each source begin at a multiple of 4 channels, with zeros in the gaps and behind the last one; with
    ``aligns_channels`` so does this kernel, which otherwise leaves no gaps. Source: ``MPSNNConcatenationNode``, as a
    kernel. Raises ``FormatError`` or ``GeometryError`` for sources that do not fit each other.
    """

    remembers_encodes = True
    properties_without_use = ("clip_rect", "destination_feature_channel_offset", "padding")

    def __init__(
        self, *, aligns_channels: bool = False, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(device=device, label=label)
        self._aligns_channels = flag(type(self).__name__, "aligns_channels", aligns_channels)

    @property
    def aligns_channels(self) -> bool:
        """Whether each source takes a multiple of 4 channels."""
        return self._aligns_channels

    def _first_channels(self, sources: Sequence[Image]) -> tuple[int, ...]:
        """Where each source begins, and where the last one ends."""
        first = [0]
        for image in sources:
            channels = image.feature_channels
            first.append(first[-1] + (-(-channels // 4) * 4 if self._aligns_channels else channels))
        return tuple(first)

    def _require_sources(self, source_images: Any) -> list[Image]:
        owner = type(self).__name__
        if isinstance(source_images, (Image, ImageBatch)) or not isinstance(source_images, Sequence):
            kind = type(source_images).__name__
            raise FormatError(f"{owner}: source_images is {kind}; it has to be a list of images")
        if not source_images:
            raise GeometryError(f"{owner}: source_images is empty; it has to have at least one image")
        self._require_instances(**{f"source_images[{k}]": image for k, image in enumerate(source_images)})
        for index, image in enumerate(source_images):
            if image.shape[:3] != source_images[0].shape[:3]:
                raise GeometryError(
                    f"{owner}: source_images[{index}] is {image.descriptor.shape_text} but source_images[0] "
                    f"{source_images[0].descriptor.shape_text}; only the feature channels may differ"
                )
        return list(source_images)

    def destination_image_descriptor(self, source_images: Sequence[Image]) -> ImageDescriptor:
        """The descriptor of the result for ``source_images``."""
        sources = self._require_sources(source_images)
        return replace(sources[0].descriptor, feature_channels=self._first_channels(sources)[-1])

    def encode(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        *,
        destination_image: Image | None = None,
        return_state: bool = False,
    ) -> Any:
        """Adds the copies to ``command_buffer``; returns the result, or fills ``destination_image`` and returns None.

        With ``return_state`` the pair (image, state), or the state alone, is returned.
        """
        key = None
        if type(source_images) in (list, tuple):
            key = self._encode_key(command_buffer, source_images, destination_image, None)
        remembered = self._recall(key)
        if remembered is not None:
            made = self._encode_again(remembered, command_buffer, source_images, destination_image, None)
            repeated = command_buffer._repeated[-1] if command_buffer._repeated is not None else None
            return self._finished(source_images, made, destination_image is None, return_state, repeated)
        sources = self._require_sources(source_images)
        descriptor = self.destination_image_descriptor(sources)
        named = {f"source_images[{index}]": image for index, image in enumerate(sources)}
        self._require_images(command_buffer, named, None)
        self._require_defaults()
        before = command_buffer._position()
        destination = destination_image
        if destination is None:
            destination = self._new_image(command_buffer, descriptor)
        self._require_images(command_buffer, {**named, "destination_image": destination}, destination)
        if destination.shape != descriptor.shape:
            raise GeometryError(
                f"{type(self).__name__}: destination_image is {destination.descriptor.shape_text} but the sources give "
                f"{descriptor.shape_text}"
            )
        self._add_copies(command_buffer, sources, destination)
        destination._written_by(command_buffer)
        regions = Regions.of_whole(destination)
        self._remember(key, command_buffer, before, (*sources, destination), None, descriptor, regions)
        return self._finished(sources, destination, destination_image is None, return_state)

    def _copies_pixels(self, destination: Image) -> bool:
        """Whether one kernel copies all sources.

        With registers of sixteen floats that suits results of an eighth of the caches at most.
        """
        device, layout = self.device, destination.layout
        numbers = tunables(device.tuning)
        is_large = numbers.has_many_registers and exceeds_caches(layout, 8, numbers)
        return can_copy_pixels(device, layout[6]) and not is_large

    def _add_copies(self, command_buffer: CommandBuffer, sources: list[Image], destination: Image) -> None:
        first = self._first_channels(sources)
        metal_type, (start, pixel, row, step, width, height, _, images) = (
            destination.channel_format.metal_type, destination.layout)
        copied = []
        for index, image in enumerate(sources):
            copied.append(CopiedPixels(image.buffer, View.of(image.layout), image.feature_channels))
            gap = first[index + 1] - first[index] - image.feature_channels
            if gap:
                buffer, _ = zeros(self.device)
                copied.append(CopiedPixels(buffer, View(0, (1, 0, 0, 0)), gap))
        written = destination.buffer, View.of(destination.layout)
        if can_copy_sources(self.device, len(copied)):
            add_copies_of_sources(command_buffer, metal_type, copied, written, width * height * images)
            return
        if len(sources) > 1 and self._copies_pixels(destination):
            add_copies_of_pixels(command_buffer, metal_type, copied, written, (width, height, images))
            return
        for index, image in enumerate(sources):
            channels, end = image.feature_channels, first[index + 1]
            target = View(start + first[index], (1, pixel, row, step))
            read = (image.buffer, View.of(image.layout))
            extents = (channels, width, height, images)
            beside = 2 * (first[-1] - channels) * width * height * images
            add_copy(command_buffer, metal_type, read, (destination.buffer, target), extents, beside)
            gap = end - first[index] - channels
            if gap:
                target = View(start + end - gap, target.strides)
                extents = (gap, width, height, images)
                add_copy(command_buffer, metal_type, zeros(self.device), (destination.buffer, target), extents)

    def _finished(
        self,
        sources: Sequence[Image],
        destination: Image,
        is_new: bool,
        return_state: bool,
        repeated: RepeatedEncode | None = None,
    ) -> Any:
        """What an encode returns whose dispatches were added, and which ``repeated`` tells of if it was repeated."""
        read_once(sources)
        state = None
        if return_state:
            snapshot = ForwardSnapshot(
                self.kernel_name, Offset(), self.clip_rect, Kernel.supported_edge_modes[0], 1, 1, 1, 1, 1, 1, 0,
                MAXIMUM, 0, sources[0].descriptor, destination.descriptor,
            )  # fmt: skip
            described = tuple(image.descriptor for image in sources)
            firsts = self._first_channels(sources)[:-1]
            make = partial(ConcatenationGradientState, snapshot, described, firsts, self.device)
            state = make()
            if repeated is not None:
                repeated.state, repeated.make_state = state, make
        if not is_new:
            return state
        return (destination, state) if return_state else destination


class ConcatenationGradient(GradientKernel):
    """The gradient for source number ``source_index`` of a ``Concatenation``: its channels of the incoming gradient.

    Of the source image only the size matters. Source: ``MPSNNConcatenationGradientNode``, as a kernel.
    """

    remembers_encodes = True
    forward_kernels = ("Concatenation",)

    def __init__(self, source_index: int = 0, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(device=device, label=label)
        self._source_index = integer(type(self).__name__, "source_index", source_index, 0)

    @property
    def source_index(self) -> int:
        """Which source the gradient is for, from 0."""
        return self._source_index

    def _snapshot_of(self, state: Any) -> ForwardSnapshot:
        sources = getattr(state, "sources", None)
        if sources is None:
            return state.snapshot
        if self._source_index >= len(sources):
            raise StateError(
                f"{type(self).__name__}: source_index is {self._source_index} but gradient_state was made of "
                f"{len(sources)} sources"
            )
        return replace(state.snapshot, source=sources[self._source_index])

    def _channel_counts(self, source_image: Image, state: Any) -> tuple[int, int, int]:
        channels = self._channels_of(source_image, "secondary")
        return channels, state.snapshot.destination.feature_channels, channels

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        layout, dx, dy = self._pointwise_gradient(regions.sources[0], state)
        start, pixel, row, step, width, height, _, images = layout
        channels = regions.destination[6]
        first = state.first_channels[self._source_index]
        part = Operand((start + first, pixel, row, step, width, height, channels, images), dx, dy)
        add_pieces(command_buffer, destination, regions.destination, source_gradient, part)
