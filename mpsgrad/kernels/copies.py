"""Slices, reshaped images and concatenations, and their gradients: kernels that only move elements."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.fill import fill_with_zeros
from mpsgrad.geometry import MAXIMUM, Offset, Origin, integer
from mpsgrad.image import Image, ImageBatch, ImageDescriptor
from mpsgrad.kernel import BaseKernel, GradientKernel, IntegerProperty, Kernel, Regions
from mpsgrad.kernels.copies_of_pixels import CopiedPixels, add_copies_of_pixels, can_copy_pixels
from mpsgrad.kernels.pad_dispatch import add_surrounded
from mpsgrad.kernels.pointwise import Layout, Operand, exceeds_caches, pieces
from mpsgrad.kernels.strides import EXTENTS, STRIDES, View, Work, add_work, elementwise_on, strided_family, zeros
from mpsgrad.read_counts import read_once
from mpsgrad.shader import ParameterStruct
from mpsgrad.state import ForwardSnapshot, GradientState
from mpsgrad.tunables import tunables

PARAMETERS = ParameterStruct("CopiesParameters", source=STRIDES, destination=STRIDES, extents=EXTENTS)
FAMILY = strided_family("copies", (PARAMETERS,))


def _add_copy(
    command_buffer: CommandBuffer,
    metal_type: str,
    source: tuple[Buffer, View],
    destination: tuple[Buffer, View],
    extents: tuple[int, int, int, int],
    elements_beside: int = 0,
) -> None:
    operands = {"source": source, "destination": destination}
    work = elementwise_on(command_buffer.device, metal_type, operands, extents, elements_beside=elements_beside)
    if _takes_pixels(command_buffer.device, work, source[1], destination[1], extents):
        copied = [CopiedPixels(*source, extents[0])]
        add_copies_of_pixels(command_buffer, metal_type, copied, destination, extents[1:])
        return
    buffers = source[0], destination[0]
    add_work(command_buffer, FAMILY, PARAMETERS, f"copy_by_{work.walk}", metal_type, buffers, work, {})


def _takes_pixels(
    device: Device, work: Work, source: View, destination: View, extents: tuple[int, int, int, int]
) -> bool:
    """Whether pixels are copied one by one that ``work`` would copy: they do not follow each other everywhere."""
    channels = extents[0]
    are_joined = channels == 1 or source.strides[1] == destination.strides[1] == channels
    if source.strides[0] != 1 or (are_joined and work.walk != "pixels"):
        return False
    return can_copy_pixels(device, channels) and not work.exceeds_caches


def add_copy_of_image(
    command_buffer: CommandBuffer, source: Image, destination: Image, source_index: int, destination_index: int
) -> None:
    """Copies one image of ``source`` to the place of one of ``destination``, of the same size and format."""
    views = []
    for image, index in ((source, source_index), (destination, destination_index)):
        start, pixel, row, step, *_ = image.layout
        views.append((image.buffer, View(start + index * step, (1, pixel, row, step))))
    extents = (source.feature_channels, source.width, source.height, 1)
    _add_copy(command_buffer, source.channel_format.metal_type, views[0], views[1], extents)


def add_pieces(
    command_buffer: CommandBuffer, destination: Image, layout: Layout, source: Image, part: Operand
) -> None:
    """Copies ``part`` of ``source`` to ``layout`` of ``destination``, and zeros to what lies outside it."""
    found_pieces, device = pieces(layout, (part,)), command_buffer.device
    # Copies write past the caches of CPUs what these do not hold.
    goes_past_caches = device.family == "cpu" and exceeds_caches(layout, 2, tunables(device.tuning))
    if len(found_pieces) > 1 and not goes_past_caches:
        add_surrounded(
            command_buffer, source, part.layout, destination, layout, first_pixel=(part.dx, part.dy)
        )
        return
    for piece in found_pieces:
        (found,) = piece.operands
        read = zeros(device) if found is None else (source.buffer, View.of(found))
        _, _, _, _, width, height, channels, images = piece.destination
        target = (destination.buffer, View.of(piece.destination))
        metal_type = destination.channel_format.metal_type
        _add_copy(command_buffer, metal_type, read, target, (channels, width, height, images))


class Slice(Kernel):
    """A box of the source: from pixel ``offset`` and channel ``source_feature_channel_offset`` on.

    Its size is that of the destination's ``clip_rect``, and its channels are at most
    ``source_feature_channel_max_count``. An encode that returns an image keeps ``offset``, and gives as many of the
    pixels that ``clip_rect`` asks for as the source has. What is read outside the source is 0. Source: ``MPSNNSlice``.
    """

    remembers_encodes = True
    supported_edge_modes = Kernel.supported_edge_modes[:1]

    def destination_image_descriptor(self, source_images: Any, source_states: Any = None) -> ImageDescriptor:
        """The descriptor of the result for ``[source image]``; raises ``GeometryError`` if nothing is left of it."""
        sources = self._list_of_sources(source_images)
        (source,), (origin, size) = sources, self.clip_rect
        width = min(size.width, source.width - self.offset.x)
        height = min(size.height, source.height - self.offset.y)
        images = min(size.depth, self._images_from(source, "offset", "source"))
        if width <= 0 or height <= 0 or images <= 0:
            raise GeometryError(
                f"{type(self).__name__}: offset is {tuple(self.offset)} and clip_rect.size {tuple(size)} but the "
                f"source is {source.descriptor.shape_text}: nothing is left"
            )
        descriptor = ImageDescriptor(
            source.channel_format,
            origin.x + width,
            origin.y + height,
            self.destination_feature_channel_offset + self._source_channels(source),
            origin.z + images,
        )
        return self._negotiate(sources, source_states, descriptor)

    def _fill_what_is_clipped(self, command_buffer: CommandBuffer, destination: Image) -> None:
        if self.clip_rect.origin != Origin() or self.destination_feature_channel_offset:
            fill_with_zeros(command_buffer, destination)

    def _dispatch(  # type: ignore[override]
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        part = Operand(regions.sources[0], self.offset.x, self.offset.y)
        add_pieces(command_buffer, destination, regions.destination, source, part)


class SliceGradient(GradientKernel):
    """The gradient of ``Slice``: the incoming one where the slice was, 0 elsewhere. MPS has none.

    Of the source image only the size matters.
    """

    remembers_encodes = True
    forward_kernels = ("Slice",)

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        part = Operand(*self._pointwise_gradient(regions.sources[0], state))
        add_pieces(command_buffer, destination, regions.destination, source_gradient, part)


def _reshape(command_buffer: CommandBuffer, source: Image, destination: Image, read: Layout, written: Layout) -> None:
    """Copies element after element, row by row with the channels fastest; ``read`` has as many as ``written``."""
    _, _, _, step, width, height, channels, images = read
    count, metal_type = width * height * channels, destination.channel_format.metal_type
    buffers = [source.buffer, destination.buffer]
    layouts = [read, written]
    for which, layout in enumerate(layouts):
        if not _is_dense(layout):
            # Elements that do not follow each other are copied to, or from, scratch memory where they do.
            scratch = command_buffer.scratch(count * images * source.dtype.itemsize)
            _, _, _, _, width, height, channels, _ = layout
            dense = (0, channels, channels * width, count, width, height, channels, images)
            outside, inside = (buffers[which], View.of(layout)), (scratch, View.of(dense))
            if which == 0:
                _add_copy(command_buffer, metal_type, outside, inside, (channels, width, height, images))
                buffers[0], layouts[0] = scratch, dense
            else:
                _add_copy(command_buffer, metal_type, (buffers[0], _flat(layouts[0])), (scratch, _flat(dense)),
                          (count, 1, 1, images))
                _add_copy(command_buffer, metal_type, inside, outside, (channels, width, height, images))
                return
    first, last = ((buffer, _flat(layout)) for buffer, layout in zip(buffers, layouts, strict=True))
    _add_copy(command_buffer, metal_type, first, last, (count, 1, 1, images))


def _is_dense(layout: Layout) -> bool:
    _, pixel, row, _, width, _, channels, _ = layout
    return pixel == channels and row == width * channels


def _flat(layout: Layout) -> View:
    return View(layout[0], (1, 0, 0, layout[3]))


class Reshape(Kernel):
    """The elements of the source in another shape of as many: in the order of rows, columns and feature channels.

    An encode that returns an image takes its extents from ``reshaped_width``, ``reshaped_height`` and
    ``reshaped_feature_channels``; other encodes fill the destination that they are given. Offsets, clip rectangles and
    ranges of channels are refused. Source: ``MPSNNReshape``, which does not say in which order.
    """

    remembers_encodes = True
    supported_edge_modes = Kernel.supported_edge_modes[:1]

    reshaped_width = IntegerProperty(1, "The width of results.", minimum=1)
    reshaped_height = IntegerProperty(1, "The height of results.", minimum=1)
    reshaped_feature_channels = IntegerProperty(1, "The feature channels of results.", minimum=1)

    # objc: -encodeToCommandBuffer:sourceImage:reshapedWidth:reshapedHeight:reshapedFeatureChannels:
    # objc: -encodeToCommandBuffer:sourceImage:destinationState:destinationStateIsTemporary:reshapedWidth:
    # objc:     reshapedHeight:reshapedFeatureChannels:
    def encode_reshaped(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        *,
        reshaped_width: int,
        reshaped_height: int,
        reshaped_feature_channels: int,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any:
        """``encode`` after setting the three extents; raises ``GeometryError`` if they do not fit the source."""
        self._set_extents(reshaped_width, reshaped_height, reshaped_feature_channels)
        return self.encode(
            command_buffer, source_image, return_state=return_state, state_is_temporary=state_is_temporary
        )

    # objc: -encodeBatchToCommandBuffer:sourceImages:reshapedWidth:reshapedHeight:reshapedFeatureChannels:
    # objc: -encodeBatchToCommandBuffer:sourceImages:destinationStates:destinationStateIsTemporary:reshapedWidth:
    # objc:     reshapedHeight:reshapedFeatureChannels:
    def encode_batch_reshaped(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        *,
        reshaped_width: int,
        reshaped_height: int,
        reshaped_feature_channels: int,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any:
        """``encode_batch`` after setting the three extents; raises ``GeometryError`` if they do not fit the sources."""
        self._set_extents(reshaped_width, reshaped_height, reshaped_feature_channels)
        return self.encode_batch(
            command_buffer, source_images, return_state=return_state, state_is_temporary=state_is_temporary
        )

    def _set_extents(self, width: int, height: int, feature_channels: int) -> None:
        self.reshaped_width, self.reshaped_height = width, height
        self.reshaped_feature_channels = feature_channels

    def _adjust_descriptor(self, source: Image, descriptor: ImageDescriptor) -> ImageDescriptor:
        self._configure(offset=Offset())
        made = replace(
            descriptor,
            width=self.reshaped_width,
            height=self.reshaped_height,
            feature_channels=self.reshaped_feature_channels,
        )
        self._require_count(source.descriptor, made)
        return made

    def _require_count(self, source: ImageDescriptor, destination: ImageDescriptor) -> None:
        counts = [each.element_count // each.number_of_images for each in (source, destination)]
        if counts[0] != counts[1] or source.number_of_images != destination.number_of_images:
            raise GeometryError(
                f"{type(self).__name__}: the source is {source.shape_text} with {counts[0]} elements in each image but "
                f"the result {destination.shape_text} with {counts[1]}"
            )

    def _regions(self, sources: Any, destination: Image) -> Regions:
        (source,) = sources
        self._require_edge_mode("edge_mode")
        for name in ("offset", "clip_rect", "source_feature_channel_offset", "destination_feature_channel_offset",
                     "source_feature_channel_max_count"):
            value, default = getattr(self, name), getattr(type(self), name).default
            if value != default:
                raise NotImplementedError(f"{type(self).__name__}: {name} is {value}; only {default} is supported")
        self._require_count(source.descriptor, destination.descriptor)
        width, height, images = destination.width, destination.height, destination.number_of_images
        return Regions((source.layout,), destination.layout, width, height, images)

    def _dispatch(  # type: ignore[override]
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        _reshape(command_buffer, source, destination, regions.sources[0], regions.destination)


class ReshapeGradient(GradientKernel):
    """The gradient of ``Reshape``: the incoming one in the shape of the forward source.

    Of the source image only the size matters. Source: ``MPSNNReshapeGradient``.
    """

    remembers_encodes = True
    forward_kernels = ("Reshape",)

    def _channel_counts(self, source_image: Image, state: Any) -> tuple[int, int, int]:
        channels = self._channels_of(source_image, "secondary")
        return channels, state.snapshot.destination.feature_channels, channels

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        self._require_gradient_size(source_gradient, state)
        if source_gradient.number_of_images != source_image.number_of_images:
            raise GeometryError(
                f"{type(self).__name__}: source_gradient has {source_gradient.number_of_images} images but "
                f"source_image {source_image.number_of_images}"
            )

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        read, written = regions.sources[0], regions.destination
        if written[4] * written[5] * written[6] != read[4] * read[5] * read[6]:
            raise NotImplementedError(
                f"{type(self).__name__}: only all of the source gradient and of the destination are supported"
            )
        _reshape(command_buffer, source_gradient, destination, read, written)


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

    def __init__(
        self, *, aligns_channels: bool = False, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(device=device, label=label)
        self._aligns_channels = bool(aligns_channels)

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
        sources = self._require_sources(source_images)
        key = self._encode_key(command_buffer, sources, destination_image, None)
        remembered = self._recall(key)
        if remembered is not None:
            made = self._encode_again(remembered, command_buffer, sources, destination_image, None)
            return self._finished(sources, made, destination_image is None, return_state)
        descriptor = self.destination_image_descriptor(sources)
        named = {f"source_images[{index}]": image for index, image in enumerate(sources)}
        self._require_images(command_buffer, named, None)
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
        regions = Regions((), destination.layout, destination.width, destination.height, destination.number_of_images)
        self._remember(key, command_buffer, before, (*sources, destination), None, descriptor, regions)
        return self._finished(sources, destination, destination_image is None, return_state)

    def _copies_pixels(self, destination: Image) -> bool:
        """Whether one kernel copies all sources, as suits results of an eighth of the caches of CPUs at most."""
        device, layout = self.device, destination.layout
        return can_copy_pixels(device, layout[6]) and not exceeds_caches(layout, 8, tunables(device.tuning))

    def _add_copies(self, command_buffer: CommandBuffer, sources: list[Image], destination: Image) -> None:
        first = self._first_channels(sources)
        metal_type, (start, pixel, row, step, width, height, _, images) = (
            destination.channel_format.metal_type, destination.layout)
        if len(sources) > 1 and self._copies_pixels(destination):
            copied = []
            for index, image in enumerate(sources):
                copied.append(CopiedPixels(image.buffer, View.of(image.layout), image.feature_channels))
                gap = first[index + 1] - first[index] - image.feature_channels
                if gap:
                    buffer, _ = zeros(self.device)
                    copied.append(CopiedPixels(buffer, View(0, (1, 0, 0, 0)), gap))
            written = destination.buffer, View.of(destination.layout)
            add_copies_of_pixels(command_buffer, metal_type, copied, written, (width, height, images))
            return
        for index, image in enumerate(sources):
            channels, end = image.feature_channels, first[index + 1]
            target = View(start + first[index], (1, pixel, row, step))
            read = (image.buffer, View.of(image.layout))
            extents = (channels, width, height, images)
            beside = 2 * (first[-1] - channels) * width * height * images
            _add_copy(command_buffer, metal_type, read, (destination.buffer, target), extents, beside)
            gap = end - first[index] - channels
            if gap:
                target = View(start + end - gap, target.strides)
                extents = (gap, width, height, images)
                _add_copy(command_buffer, metal_type, zeros(self.device), (destination.buffer, target), extents)

    def _finished(self, sources: list[Image], destination: Image, is_new: bool, return_state: bool) -> Any:
        """What an encode returns whose dispatches were added."""
        read_once(sources)
        state = None
        if return_state:
            snapshot = ForwardSnapshot(
                self.kernel_name, Offset(), self.clip_rect, Kernel.supported_edge_modes[0], 1, 1, 1, 1, 1, 1, 0,
                MAXIMUM, 0, sources[0].descriptor, destination.descriptor,
            )  # fmt: skip
            described = tuple(image.descriptor for image in sources)
            state = ConcatenationGradientState(snapshot, described, self._first_channels(sources)[:-1], self.device)
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
