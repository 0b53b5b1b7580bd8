"""Images in another shape of as many elements, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.errors import GeometryError
from mpsgrad.geometry import Offset
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.kernel import GradientKernel, IntegerProperty, Kernel, Regions
from mpsgrad.kernels.copies import add_copy
from mpsgrad.kernels.pointwise import Layout, dense_layout
from mpsgrad.kernels.strides import View
from mpsgrad.state import GradientState


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
            dense = dense_layout(width, height, channels, images)
            outside, inside = (buffers[which], View.of(layout)), (scratch, View.of(dense))
            if which == 0:
                add_copy(command_buffer, metal_type, outside, inside, (channels, width, height, images))
                buffers[0], layouts[0] = scratch, dense
            else:
                add_copy(command_buffer, metal_type, (buffers[0], _flat(layouts[0])), (scratch, _flat(dense)),
                          (count, 1, 1, images))
                add_copy(command_buffer, metal_type, inside, outside, (channels, width, height, images))
                return
    first, last = ((buffer, _flat(layout)) for buffer, layout in zip(buffers, layouts, strict=True))
    add_copy(command_buffer, metal_type, first, last, (count, 1, 1, images))


def _is_dense(layout: Layout) -> bool:
    _, pixel, row, _, width, _, channels, _ = layout
    return pixel == channels and row == width * channels


def _flat(layout: Layout) -> View:
    return View(layout[0], (1, 0, 0, layout[3]))


class Reshape(Kernel[GradientState]):
    """The elements of the source in another shape of as many: in the order of rows, columns and feature channels.

    An encode that returns an image takes its extents from ``reshaped_width``, ``reshaped_height`` and
    ``reshaped_feature_channels``; other encodes fill the destination that they are given. Offsets, clip rectangles and
    ranges of channels are refused. Source: ``MPSNNReshape``, which does not say in which order.
    """

    remembers_encodes = True
    supported_edge_modes = Kernel.supported_edge_modes[:1]

    properties_without_use = (
        "offset",
        "clip_rect",
        "source_feature_channel_offset",
        "destination_feature_channel_offset",
        "source_feature_channel_max_count",
    )

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
        self._configure(offset=Offset(z=self.offset.z))
        self._require_defaults()
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
        self._require_defaults()
        self._require_count(source.descriptor, destination.descriptor)
        return Regions.of_whole(destination, source)

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
    offsets_of_images = ("primary_offset", "secondary_offset")

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
