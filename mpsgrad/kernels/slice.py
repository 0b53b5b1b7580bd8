"""Slices of images, and their gradients."""

from __future__ import annotations

from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.errors import GeometryError
from mpsgrad.fill import fill_with_zeros
from mpsgrad.geometry import Origin
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.kernel import GradientKernel, Kernel, Regions
from mpsgrad.kernels.copies import add_pieces
from mpsgrad.kernels.pointwise import Operand
from mpsgrad.state import GradientState


class Slice(Kernel[GradientState]):
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
    offsets_of_images = ("secondary_offset",)

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
