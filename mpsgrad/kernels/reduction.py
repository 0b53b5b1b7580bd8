"""Reductions over the rows, the columns, the feature channels or all pixels of an image, and their gradients."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import GeometryError
from mpsgrad.geometry import MAXIMUM, NO_CLIP, Offset
from mpsgrad.image import FeatureChannelFormat, Image, ImageDescriptor
from mpsgrad.kernel import BaseKernel, GradientKernel, Kernel, RealProperty, RegionProperty, Regions, clip_layout
from mpsgrad.kernels.pointwise import Layout, Operand, pieces
from mpsgrad.kernels.reduction_extremes import extreme_gradient
from mpsgrad.kernels.reduction_few_channels import add_over_few_channels
from mpsgrad.kernels.reduction_of_runs import add_over_runs
from mpsgrad.kernels.strided_reductions import add_reduction
from mpsgrad.kernels.strides import (
    EXTENTS,
    REDUCED,
    STRIDES,
    View,
    add_elementwise,
    add_work,
    strided_family,
    zeros,
)
from mpsgrad.shader import ParameterStruct
from mpsgrad.state import ForwardSnapshot, GradientState
from mpsgrad.tunables import tunables

PARAMETERS = ParameterStruct(
    "ReductionParameters",
    source=STRIDES,
    parts=STRIDES,
    gradient=STRIDES,
    winner=STRIDES,
    position=STRIDES,
    destination=STRIDES,
    extents=EXTENTS,
    reduced=REDUCED,
    scale="float",
)
FAMILY = strided_family("reduction", (PARAMETERS,))

Kept = tuple[bool, bool, bool, bool]
ROW: Kept = (True, False, True, True)
COLUMN: Kept = (True, True, False, True)
CHANNELS: Kept = (False, True, True, True)
PIXELS: Kept = (True, False, False, True)
"""Which of channels, x, y and images stay."""
LARGEST_WHOLE_HALF = 2048
"""Up to which float16 has every whole number."""


class ReductionGradientState(GradientState):
    """The state of a reduction: what it read (``clip_rect_source``), and the factor of its sum."""

    def __init__(
        self,
        snapshot: ForwardSnapshot,
        box: tuple[int, int, int, int],
        scale: float,
        device: Device,
        *,
        command_buffer: CommandBuffer | None = None,
    ) -> None:
        super().__init__(snapshot, (), device, command_buffer=command_buffer)
        self.box = box
        self.scale = scale

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        return (self.snapshot, self.box, self.scale)


class ReduceUnary(Kernel):
    """The base of reductions of one image. Source: ``MPSNNReduceUnary``.

    ``clip_rect_source`` takes the place of ``offset``, which is ignored: the part of the source that is reduced. The
    result has one pixel along a reduced axis and the extents of that part along the others; ``GeometryError`` is raised
    if the destination's clip rectangle is larger.

    Minima and maxima, and their indices, mostly pass over what is not a number: fast math on a Mac promises nothing of
    NaNs. NumPy and PyTorch hand them on; sums and means do so here too.
    """

    remembers_encodes = True
    operation: ClassVar[str]
    kept: ClassVar[Kept]

    clip_rect_source = RegionProperty(NO_CLIP, "The part of the source that is reduced; it is cut to the image.")

    @property
    def _weight(self) -> float:
        return 1.0

    def _box(self, source: Image) -> tuple[int, int, int, int]:
        """The first column and row of the source that are read, and how many."""
        origin, size = self.clip_rect_source
        width, height = min(size.width, source.width - origin.x), min(size.height, source.height - origin.y)
        if min(width, height, size.depth, source.number_of_images - origin.z) <= 0:
            raise GeometryError(
                f"{type(self).__name__}: clip_rect_source begins at {tuple(origin)} with size {tuple(size)} but the "
                f"source is {source.descriptor.shape_text}: nothing is left to reduce"
            )
        return origin.x, origin.y, width, height

    def _first_images(self) -> set[int]:
        origin, size = self.clip_rect_source
        return {origin.z if size.depth == MAXIMUM else -1}

    def _scale(self, box: tuple[int, int, int, int], channels: int) -> float:
        if self.operation != "mean":
            return self._weight
        keeps_channels, keeps_x, keeps_y, _ = self.kept
        _, _, width, height = box
        return 1 / ((1 if keeps_channels else channels) * (1 if keeps_x else width) * (1 if keeps_y else height))

    def _destination_channels(self, source_channels: int) -> int:
        return source_channels if self.kept[0] else 1

    def _adjust_descriptor(self, source: Image, descriptor: ImageDescriptor) -> ImageDescriptor:
        self._configure(offset=Offset())
        _, _, width, height = self._box(source)
        (_, _, z), size = self.clip_rect_source
        return replace(
            descriptor,
            width=width if self.kept[1] else 1,
            height=height if self.kept[2] else 1,
            number_of_images=min(size.depth, source.number_of_images - z),
        )

    def _snapshot(self, source: Image, destination: Image) -> ForwardSnapshot:
        return replace(super()._snapshot(source, destination), offset=Offset(z=self.clip_rect_source.origin.z))

    def _make_state(self, source: Image, destination: Image, command_buffer: CommandBuffer | None) -> Any:
        box = self._box(source)
        scale = self._scale(box, self._source_channels(source))
        snapshot = self._shared_snapshot(source, destination)
        return ReductionGradientState(snapshot, box, scale, self.device, command_buffer=command_buffer)

    def _regions(self, sources: Any, destination: Image) -> Regions:
        (source,) = sources
        self._require_edge_mode("edge_mode")
        x, y, width, height = self._box(source)
        channels, (origin, size) = self._source_channels(source), self.clip_rect_source
        available = min(size.depth, source.number_of_images - origin.z)
        layout, wide, high, images = self._destination_region(
            destination, self._destination_channels(channels), available
        )
        result = (width if self.kept[1] else 1, height if self.kept[2] else 1)
        if wide > result[0] or high > result[1]:
            raise GeometryError(
                f"{type(self).__name__}: the destination has {wide} x {high} pixels in clip_rect but the result "
                f"{result[0]} x {result[1]}"
            )
        start, pixel, row, image, *_ = source.layout
        start += origin.z * image + y * row + x * pixel + self.source_feature_channel_offset
        read = (start, pixel, row, image, wide if self.kept[1] else width, high if self.kept[2] else height)
        return Regions(((*read, channels, images),), layout, wide, high, images)

    def _dispatch(  # type: ignore[override]
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        (layout,) = regions.sources
        operation = "sum" if self.operation == "mean" else self.operation
        metal_type = destination.channel_format.metal_type
        scale = self._scale(self._box(source), layout[6]) if operation == "sum" else 1.0
        if self.kept == CHANNELS:
            images = {"source": (source.buffer, layout), "destination": (destination.buffer, regions.destination)}
            arguments = command_buffer, operation, metal_type, images, scale
            if add_over_few_channels(*arguments) or add_over_runs(*arguments):
                return
        add_reduction(
            command_buffer,
            FAMILY,
            PARAMETERS,
            operation,
            metal_type,
            {
                "source": (source.buffer, View.of(layout)),
                "destination": (destination.buffer, View.of(regions.destination)),
            },
            (layout[6], layout[4], layout[5], layout[7]),
            self.kept,
            merge=None if operation.startswith("argument") else f"{operation}_parts",
            scale=scale,
        )


class ReduceRowMin(ReduceUnary):
    """The smallest element of each row, for each channel: 1 x H x C. Source: ``MPSNNReduceRowMin``."""

    operation, kept = "min", ROW


class ReduceRowMax(ReduceUnary):
    """The largest element of each row, for each channel: 1 x H x C. Source: ``MPSNNReduceRowMax``."""

    operation, kept = "max", ROW


class ReduceRowMean(ReduceUnary):
    """The mean of each row, for each channel: 1 x H x C. Source: ``MPSNNReduceRowMean``."""

    operation, kept = "mean", ROW


class ReduceRowSum(ReduceUnary):
    """The sum of each row, for each channel: 1 x H x C. Source: ``MPSNNReduceRowSum``."""

    operation, kept = "sum", ROW


class ReduceColumnMin(ReduceUnary):
    """The smallest element of each column, for each channel: W x 1 x C. Source: ``MPSNNReduceColumnMin``."""

    operation, kept = "min", COLUMN


class ReduceColumnMax(ReduceUnary):
    """The largest element of each column, for each channel: W x 1 x C. Source: ``MPSNNReduceColumnMax``."""

    operation, kept = "max", COLUMN


class ReduceColumnMean(ReduceUnary):
    """The mean of each column, for each channel: W x 1 x C. Source: ``MPSNNReduceColumnMean``."""

    operation, kept = "mean", COLUMN


class ReduceColumnSum(ReduceUnary):
    """The sum of each column, for each channel: W x 1 x C. Source: ``MPSNNReduceColumnSum``."""

    operation, kept = "sum", COLUMN


class ReduceFeatureChannelsMin(ReduceUnary):
    """The smallest channel of each pixel: W x H x 1. Source: ``MPSNNReduceFeatureChannelsMin``."""

    operation, kept = "min", CHANNELS


class ReduceFeatureChannelsMax(ReduceUnary):
    """The largest channel of each pixel: W x H x 1. Source: ``MPSNNReduceFeatureChannelsMax``."""

    operation, kept = "max", CHANNELS


class ReduceFeatureChannelsMean(ReduceUnary):
    """The mean of the channels of each pixel: W x H x 1. Source: ``MPSNNReduceFeatureChannelsMean``."""

    operation, kept = "mean", CHANNELS


class ReduceFeatureChannelsSum(ReduceUnary):
    """``weight`` times the sum of the channels of each pixel: W x H x 1. Source: ``MPSNNReduceFeatureChannelsSum``."""

    operation, kept = "sum", CHANNELS

    weight = RealProperty(1.0, "The factor of the sum.")

    @property
    def _weight(self) -> float:
        return self.weight


class _ArgumentOfFeatureChannels(ReduceUnary):
    """What both argument forms share."""

    kept = CHANNELS

    def _validate(self, *sources: Any, **_: Any) -> None:
        (source,) = sources
        channels = self._source_channels(source)
        if source.channel_format is FeatureChannelFormat.FLOAT16 and channels > LARGEST_WHOLE_HALF + 1:
            raise GeometryError(
                f"{type(self).__name__}: {channels} feature channels of source_image are read, but it is FLOAT16, and "
                f"so are the numbers of channels, which are exact up to {LARGEST_WHOLE_HALF} then; a FLOAT32 image has "
                "room for all"
            )

    def _make_state(self, *arguments: Any, **_: Any) -> None:
        return None


class ReduceFeatureChannelsArgumentMin(_ArgumentOfFeatureChannels):
    """The number of the smallest channel of each pixel, of equal ones the first, counted from the first that is read.

    It has no gradient. Raises ``GeometryError`` for more than 2 049 channels of a FLOAT16 image, whose numbers it could
    not hold. Source: ``MPSNNReduceFeatureChannelsArgumentMin``.
    """

    operation = "argument_min"


class ReduceFeatureChannelsArgumentMax(_ArgumentOfFeatureChannels):
    """The number of the largest channel of each pixel, of equal ones the first, counted from the first that is read.

    It has no gradient. Raises ``GeometryError`` for more than 2 049 channels of a FLOAT16 image, whose numbers it could
    not hold. Source: ``MPSNNReduceFeatureChannelsArgumentMax``.
    """

    operation = "argument_max"


class ReductionSpatialMean(ReduceUnary):
    """The mean of all pixels, for each channel: 1 x 1 x C. Source: ``MPSNNReductionSpatialMeanNode``, as a kernel."""

    operation, kept = "mean", PIXELS


WITH_GRADIENT = (
    ReduceRowMin,
    ReduceRowMax,
    ReduceRowMean,
    ReduceRowSum,
    ReduceColumnMin,
    ReduceColumnMax,
    ReduceColumnMean,
    ReduceColumnSum,
    ReduceFeatureChannelsMin,
    ReduceFeatureChannelsMax,
    ReduceFeatureChannelsMean,
    ReduceFeatureChannelsSum,
    ReductionSpatialMean,
)


class ReduceGradient(GradientKernel):
    """The gradient of any reduction but the argument forms; MPS has that of the spatial mean only.

    A sum gives each of its elements ``weight g``, a mean ``g / count``. A minimum or maximum gives its whole gradient
    to the element that won, of equal ones the first. Elements outside ``clip_rect_source`` get 0.
    """

    remembers_encodes = True
    forward_kernels = tuple(kernel.__name__ for kernel in WITH_GRADIENT)
    offsets_of_images = ("primary_offset", "secondary_offset")

    def _forward(self, state: Any) -> Any:
        """The class of the forward kernel."""
        return BaseKernel.classes[state.snapshot.kernel]

    def _configure_geometry(self, snapshot: ForwardSnapshot) -> None:
        origin = snapshot.clip_rect.origin
        self._configure(primary_offset=Offset(z=origin.z), secondary_offset=Offset(z=snapshot.offset.z))

    def _channel_counts(self, source_image: Image, state: Any) -> tuple[int, int, int]:
        channels = self._channels_of(source_image, "secondary")
        return channels, channels if self._forward(state).kept[0] else 1, channels

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        forward, layout = self._forward(state), regions.destination
        _, keeps_x, keeps_y, _ = forward.kept
        metal_type, device = destination.channel_format.metal_type, self.device
        x, y, width, height = state.box
        gradient = clip_layout(regions.sources[0], state.snapshot.clip_rect)
        if forward.kept == CHANNELS and (x, y) == (0, 0):
            images = {"gradient": (source_gradient.buffer, gradient)}
            name = "spread"
            if forward.operation in ("min", "max"):
                images["source"] = (source_image.buffer, regions.sources[1])
                name = f"{forward.operation}_gradient"
            images["destination"] = (destination.buffer, layout)
            arguments = command_buffer, name, metal_type, images, state.scale
            if add_over_few_channels(*arguments) or (name != "spread" and add_over_runs(*arguments)):
                return
        reached = (gradient[4] if keeps_x else width, gradient[5] if keeps_y else height)
        marker = Operand((0, 0, 0, 0, *reached, layout[6], layout[7]), -x, -y)
        for piece in pieces(layout, (marker,)):
            target = (destination.buffer, View.of(piece.destination))
            extents = (layout[6], piece.destination[4], piece.destination[5], layout[7])
            used: dict[str, tuple[Buffer, View]] = {"gradient": zeros(device), "destination": target}
            name, scale = "spread", 0.0
            if piece.operands[0] is not None:
                used["gradient"] = (source_gradient.buffer, _spread(View.of(gradient), forward.kept))
                scale = state.scale
            if piece.operands[0] is not None and forward.operation in ("min", "max"):
                start, pixel, row, *rest = regions.sources[1]
                read = (start + y * row + x * pixel, pixel, row, *rest)
                name = "pick"
                # All that was reduced is searched, also where only a part of it is written.
                searched = (extents[0], extents[1] if keeps_x else width, extents[2] if keeps_y else height, extents[3])
                source = (source_image.buffer, View.of(read))
                used = {"gradient": used["gradient"], "source": source, "destination": target}
                is_whole = searched == extents
                if is_whole and self._add_at_once(command_buffer, used, extents, forward, metal_type, scale):
                    continue
                used = {
                    "gradient": used["gradient"],
                    "winner": self._winners(command_buffer, source_image, read, searched, forward),
                    "position": self._positions(extents, forward.kept),
                    "destination": target,
                }
            add_elementwise(command_buffer, FAMILY, PARAMETERS, name, metal_type, used, extents, scale=scale)

    def _add_at_once(
        self,
        command_buffer: CommandBuffer,
        operands: Mapping[str, tuple[Buffer, View]],
        extents: Any,
        forward: Any,
        metal_type: str,
        scale: float,
    ) -> bool:
        """Adds the kernel that finds winners of rows or columns and writes their gradients; False if there is none."""
        device = self.device
        if device.family != "cpu" or forward.kept not in (ROW, COLUMN):
            return False
        gradient, source, destination = (view for _, view in operands.values())
        views, units = (gradient, source, destination), device.compute_units
        work = extreme_gradient(views, extents, forward.kept, units, tunables(device.tuning))
        if work is None:
            return False
        buffers = [buffer for buffer, _ in operands.values()]
        name = f"{forward.operation}_{work.walk}"
        add_work(command_buffer, FAMILY, PARAMETERS, name, metal_type, buffers, work, {"scale": scale})
        return True

    def _winners(
        self, command_buffer: CommandBuffer, source: Image, layout: Layout, extents: Any, forward: Any
    ) -> tuple[Buffer, View]:
        """The numbers of the elements that won, in scratch memory, spread over those that took part."""
        results = [extent if keeps else 1 for extent, keeps in zip(extents, forward.kept, strict=True)]
        channels, width, height, images = results
        dense = View(0, (1, channels, channels * width, channels * width * height))
        buffer = command_buffer.scratch(4 * channels * width * height * images)
        metal_type = source.channel_format.metal_type
        add_reduction(
            command_buffer,
            FAMILY,
            PARAMETERS,
            f"{'argument' if metal_type == 'float' else 'search'}_{forward.operation}",
            metal_type,
            {"source": (source.buffer, View.of(layout)), "destination": (buffer, dense)},
            extents,
            forward.kept,
            merge=None,
            scale=1.0,
        )
        return buffer, _spread(dense, forward.kept)

    def _positions(self, extents: Any, kept: Kept) -> tuple[Buffer, View]:
        """The number of each element along the axis that was reduced."""
        (count,) = (extent for extent, keeps in zip(extents, kept, strict=True) if not keeps)
        channels, x, y, image = (int(not keeps) for keeps in kept)
        buffer = self.device.constant_buffer(np.arange(count, dtype=np.float32).tobytes())
        return buffer, View(0, (channels, x, y, image))


class ReductionSpatialMeanGradient(ReduceGradient):
    """``g / (H W)`` for each pixel. Source: ``MPSNNReductionSpatialMeanGradientNode``, as a kernel."""

    forward_kernels = ("ReductionSpatialMean",)


def _spread(view: View, kept: Kept) -> View:
    """``view`` with stride 0 along the axes that were reduced."""
    channels, x, y, image = (stride if keeps else 0 for stride, keeps in zip(view.strides, kept, strict=True))
    return View(view.offset, (channels, x, y, image))
