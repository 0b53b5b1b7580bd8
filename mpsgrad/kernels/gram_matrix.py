"""The Gram matrix of the feature channels of an image, and its gradient."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Device
from mpsgrad.geometry import NO_CLIP, Offset, real
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.kernel import BaseKernel, GradientKernel, Kernel, RealProperty, Regions
from mpsgrad.kernels import gram_matrix_dispatch
from mpsgrad.kernels.convolution_dispatch import ImagePart
from mpsgrad.state import ForwardSnapshot, GradientState


def _require_whole_images(kernel: Any, source: Image) -> None:
    """Raises ``NotImplementedError`` for offsets and clip rectangles, and for rows that do not follow each other."""
    owner = type(kernel).__name__
    if kernel.clip_rect != NO_CLIP:
        raise NotImplementedError(f"{owner}: clip_rect is {kernel.clip_rect}; only all of the destination is supported")
    _, pixel, row, _, width, height, _, _ = source.layout
    if height > 1 and row != width * pixel:
        raise NotImplementedError(f"{owner}: the rows of the source are {row} elements apart; only {width * pixel} is "
                                  "supported")


class GramMatrixGradientState(GradientState):
    """The state of a ``GramMatrixCalculation``, which remembers ``alpha``."""

    def __init__(
        self, snapshot: ForwardSnapshot, alpha: float, device: Device, *, command_buffer: CommandBuffer | None = None
    ) -> None:
        super().__init__(snapshot, (), device, command_buffer=command_buffer)
        self.alpha = alpha

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        return (self.snapshot, self.alpha)


class GramMatrixCalculation(Kernel[GramMatrixGradientState]):
    """``y[f][c] = alpha sum_p x[p][f] x[p][c]`` over the pixels ``p`` of each image: 1 high, C wide, C channels.

    ``f`` is the column of the result. Offsets and clip rectangles are refused. Source: ``MPSNNGramMatrixCalculation``.
    """

    remembers_encodes = True
    supported_edge_modes = Kernel.supported_edge_modes[:1]

    alpha = RealProperty(1.0, "The factor of the sums.")

    # objc: -initWithDevice:alpha:
    def __init__(self, alpha: float = 1.0, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(device=device, label=label)
        self.alpha = real(type(self).__name__, "alpha", alpha)

    def _adjust_descriptor(self, source: Image, descriptor: ImageDescriptor) -> ImageDescriptor:
        self._configure(offset=Offset(z=self.offset.z))
        return replace(descriptor, width=descriptor.feature_channels, height=1)

    def _make_state(self, source: Image, destination: Image, command_buffer: CommandBuffer | None) -> Any:
        snapshot = self._shared_snapshot(source, destination)
        return GramMatrixGradientState(snapshot, self.alpha, self.device, command_buffer=command_buffer)

    def _validate(self, *sources: Any, **_: Any) -> None:
        _require_whole_images(self, sources[0])

    def _regions(self, sources: Any, destination: Image) -> Regions:
        regions = super()._regions(sources, destination)
        channels = regions.destination[6]
        if (regions.width, regions.height) != (channels, 1) or self.offset != Offset():
            raise NotImplementedError(
                f"{type(self).__name__}: the destination is {destination.descriptor.shape_text} and offset "
                f"{tuple(self.offset)}; it has to be 1 pixel high and {channels} wide, and the offset 0"
            )
        return regions

    def _dispatch(  # type: ignore[override]
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        gram_matrix_dispatch.add_products(
            command_buffer,
            self.alpha,
            destination.channel_format.metal_type,
            ImagePart(source.buffer, regions.sources[0]),
            ImagePart(destination.buffer, regions.destination),
        )


class GramMatrixCalculationGradient(GradientKernel):
    """``dx[p][c] = alpha sum_f x[p][f] (g[f][c] + g[c][f])``.

    The state sets ``alpha`` to that of the forward kernel, unless a property was set by hand and the destination is
    given. Source: ``MPSNNGramMatrixCalculationGradient``.
    """

    remembers_encodes = True
    forward_kernels = ("GramMatrixCalculation",)
    offsets_of_images = ("primary_offset", "secondary_offset")

    alpha = RealProperty(1.0, "The factor of the sums.")

    # objc: -initWithDevice:
    # objc: -initWithDevice:alpha:
    def __init__(self, alpha: float = 1.0, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(device=device, label=label)
        self.alpha = real(type(self).__name__, "alpha", alpha)

    def _configure_from(self, state: Any) -> None:
        super()._configure_from(state)
        self._configure(alpha=state.alpha)

    def _configure_geometry(self, snapshot: ForwardSnapshot) -> None:
        self._configure(primary_offset=Offset(), secondary_offset=Offset())

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        _require_whole_images(self, source_image)
        self._require_gradient_size(source_gradient, state)

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        self._require_whole_destination(regions, source_image)
        gram_matrix_dispatch.add_gradient(
            command_buffer,
            self.alpha,
            destination.channel_format.metal_type,
            ImagePart(source_gradient.buffer, regions.sources[0]),
            ImagePart(source_image.buffer, regions.sources[1]),
            ImagePart(destination.buffer, regions.destination),
        )
