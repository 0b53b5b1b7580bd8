"""Sums and means of the feature channels of each pixel with a weight for each channel, and their gradients."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import GeometryError
from mpsgrad.geometry import MAXIMUM, NO_CLIP, Offset, flag
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.kernel import (
    BaseKernel,
    BinaryKernel,
    RegionProperty,
    Regions,
)
from mpsgrad.kernels.gradient_of_one_image import _GradientOfOneImage
from mpsgrad.kernels.pointwise import Layout, Operand, pieces
from mpsgrad.kernels.reduction import CHANNELS
from mpsgrad.kernels.reduction_few_channels import add_over_few_channels
from mpsgrad.kernels.reduction_of_runs import add_over_runs
from mpsgrad.kernels.strided_reductions import add_reduction
from mpsgrad.kernels.strides import (
    EXTENTS,
    REDUCED,
    STRIDES,
    View,
    add_elementwise,
    strided_family,
    zeros,
)
from mpsgrad.shader import ParameterStruct
from mpsgrad.state import BinaryGradientState, ForwardSnapshot, State

PARAMETERS = ParameterStruct(
    "WeightedReductionParameters",
    source=STRIDES,
    weights=STRIDES,
    parts=STRIDES,
    counts=STRIDES,
    gradient=STRIDES,
    destination=STRIDES,
    extents=EXTENTS,
    reduced=REDUCED,
    scale="float",
)
FAMILY = strided_family("weighted_reduction", (PARAMETERS,))

Box = tuple[int, int, int, int, int, int]
"""The first column, row and image that are read, and how many."""


class ReduceBinaryGradientState(BinaryGradientState):
    """The state of a ``ReduceBinary`` kernel: what it read, by what it multiplied, and how it divided."""

    def __init__(
        self,
        primary: ForwardSnapshot,
        secondary: ForwardSnapshot,
        scale: float,
        counts_weights: bool,
        device: Device,
        *,
        command_buffer: CommandBuffer | None = None,
    ) -> None:
        super().__init__(primary, secondary, (), device, command_buffer=command_buffer)
        self.scale = scale
        self.counts_weights = counts_weights

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        return (self.primary, self.secondary, self.scale, self.counts_weights)


class ReduceBinary(BinaryKernel[ReduceBinaryGradientState]):
    """The base of reductions of an image with weights. Source: ``MPSNNReduceBinary``.

    ``primary_source_clip_rect`` and ``secondary_source_clip_rect`` take the place of the offsets, which are ignored:
    the parts of the image and of its weights that are read, of one size. The result has its width and height and one
    channel. Raises ``GeometryError`` if the parts, or the channels that are read, differ in number, or if the
    destination's clip rectangle is larger. Strides other than 1 raise ``NotImplementedError``.
    """

    remembers_encodes = True
    supported_edge_modes = BinaryKernel.supported_edge_modes[:1]

    primary_source_clip_rect = RegionProperty(NO_CLIP, "The part of the image that is read; it is cut to the image.")
    secondary_source_clip_rect = RegionProperty(NO_CLIP, "The part of the weights that is read.")

    @property
    def _counts_weights(self) -> bool:
        """Whether sums are divided by the number of weights that are not 0."""
        return False

    def _scale(self, channels: int) -> float:
        return 1.0

    def _box(self, which: str, image: Image) -> Box:
        name = f"{which}_source_clip_rect"
        origin, size = getattr(self, name)
        width, height = min(size.width, image.width - origin.x), min(size.height, image.height - origin.y)
        images = min(size.depth, image.number_of_images - origin.z)
        if min(width, height, images) <= 0:
            raise GeometryError(
                f"{type(self).__name__}: {name} begins at {tuple(origin)} with size {tuple(size)} but the image is "
                f"{image.descriptor.shape_text}: nothing is left to reduce"
            )
        return (*origin, width, height, images)

    def _boxes(self, primary: Image, secondary: Image) -> tuple[Box, Box]:
        owner = type(self).__name__
        boxes = self._box("primary", primary), self._box("secondary", secondary)
        if boxes[0][3:] != boxes[1][3:]:
            (*_, width, height, images), (*_, columns, rows, others) = boxes
            raise GeometryError(
                f"{owner}: {images} images of {width} x {height} pixels of primary_image are read but {others} of "
                f"{columns} x {rows} of secondary_image"
            )
        channels = self._channels_of(primary, "primary"), self._channels_of(secondary, "secondary")
        if channels[0] != channels[1]:
            raise GeometryError(
                f"{owner}: {channels[0]} feature channels of primary_image are read but {channels[1]} of "
                "secondary_image"
            )
        return boxes

    def destination_image_descriptor(
        self, source_images: Sequence[Image], source_states: Sequence[State] | None = None
    ) -> ImageDescriptor:
        """The descriptor of the result for ``[image, weights]``; raises ``GeometryError`` if they do not fit."""
        sources = self._list_of_sources(source_images)
        (*_, width, height, images), _ = self._boxes(*sources)
        self._configure(primary_offset=Offset(), secondary_offset=Offset())
        descriptor = ImageDescriptor(sources[0].channel_format, width, height, 1, images)
        return self._negotiate(sources, source_states, descriptor)

    def _first_images(self) -> set[int]:
        regions = self.primary_source_clip_rect, self.secondary_source_clip_rect
        return {origin.z if size.depth == MAXIMUM else -1 for origin, size in regions}

    def _snapshot(self, which: str, source: Image, destination: Image) -> ForwardSnapshot:
        x, y, z, *_ = self._box(which, source)
        return replace(super()._snapshot(which, source, destination), offset=Offset(x, y, z))

    def _make_state(
        self, primary: Image, secondary: Image, destination: Image, command_buffer: CommandBuffer | None
    ) -> ReduceBinaryGradientState:
        first, second = self._shared_snapshots(primary, secondary, destination)
        return ReduceBinaryGradientState(
            first,
            second,
            self._scale(self._channels_of(primary, "primary")),
            self._counts_weights,
            self.device,
            command_buffer=command_buffer,
        )

    def _regions(self, sources: Any, destination: Image) -> Regions:
        owner = type(self).__name__
        for which in ("primary", "secondary"):
            self._require_edge_mode(f"{which}_edge_mode")
            for axis in "xy":
                name = f"{which}_stride_in_pixels_{axis}"
                if getattr(self, name) != 1:
                    raise NotImplementedError(f"{owner}: {name} is {getattr(self, name)}; only 1 is supported")
        boxes = self._boxes(*sources)
        *_, width, height, available = boxes[0]
        layout, columns, rows, images = self._destination_region(destination, 1, available)
        if columns > width or rows > height:
            raise GeometryError(
                f"{owner}: the destination has {columns} x {rows} pixels in clip_rect but the result {width} x {height}"
            )
        channels, read = self._channels_of(sources[0], "primary"), []
        for which, source, (x, y, z, *_) in zip(("primary", "secondary"), sources, boxes, strict=True):
            start, pixel, row, image, *_ = source.layout
            start += z * image + y * row + x * pixel + getattr(self, f"{which}_source_feature_channel_offset")
            read.append((start, pixel, row, image, columns, rows, channels, images))
        return Regions(tuple(read), layout, columns, rows, images)

    def _dispatch(  # type: ignore[override]
        self,
        command_buffer: CommandBuffer,
        primary: Image,
        secondary: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        first, second = regions.sources
        metal_type = destination.channel_format.metal_type
        operands = {"source": (primary.buffer, View.of(first)), "weights": (secondary.buffer, View.of(second))}
        target = (destination.buffer, View.of(regions.destination))
        extents = _extents(first)
        if not self._counts_weights:
            scale = self._scale(first[6])
            images = {
                "source": (primary.buffer, first),
                "weights": (secondary.buffer, second),
                "destination": (destination.buffer, regions.destination),
            }
            arguments = command_buffer, "product", metal_type, images, scale
            if add_over_few_channels(*arguments) or add_over_runs(*arguments):
                return
            _add_sums(command_buffer, "product", metal_type, {**operands, "destination": target}, extents, scale)
            return
        _, width, height, count = extents
        sums = _dense(command_buffer, width, height, count)
        name = "product" if metal_type == "float" else "exact_product"
        _add_sums(command_buffer, name, metal_type, {**operands, "destination": sums}, extents)
        counts = _counts(command_buffer, operands["weights"], metal_type, extents)
        used = {"parts": sums, "counts": counts, "destination": target}
        add_elementwise(
            command_buffer, FAMILY, PARAMETERS, "quotient", metal_type, used, (1, width, height, count), scale=1.0
        )


def _add_sums(
    command_buffer: CommandBuffer,
    name: str,
    metal_type: str,
    operands: dict[str, tuple[Buffer, View]],
    extents: tuple[int, int, int, int],
    scale: float = 1.0,
) -> None:
    add_reduction(
        command_buffer,
        FAMILY,
        PARAMETERS,
        name,
        metal_type,
        operands,
        extents,
        CHANNELS,
        merge=f"{name}_parts",
        scale=scale,
    )


def _dense(command_buffer: CommandBuffer, width: int, height: int, images: int) -> tuple[Buffer, View]:
    """Scratch memory for a number for each pixel."""
    return command_buffer.scratch(4 * width * height * images), View(0, (0, 1, width, width * height))


def _counts(
    command_buffer: CommandBuffer, weights: tuple[Buffer, View], metal_type: str, extents: tuple[int, int, int, int]
) -> tuple[Buffer, View]:
    """How many weights of each pixel are not 0."""
    counts = _dense(command_buffer, *extents[1:])
    _add_sums(command_buffer, "count", metal_type, {"weights": weights, "destination": counts}, extents)
    return counts


class ReduceFeatureChannelsAndWeightsSum(ReduceBinary):
    """``sum_c x[c] w[c]`` of each pixel: W x H x 1; ``w`` are the channels of the secondary image.

    With ``do_weighted_sum_by_non_zero_weights`` it is divided by the number of weights of the pixel that are not 0, and
    0 where all are. Source: ``MPSNNReduceFeatureChannelsAndWeightsSum``.
    """

    # objc: -initWithDevice:
    # objc: -initWithDevice:doWeightedSumByNonZeroWeights:
    def __init__(
        self,
        do_weighted_sum_by_non_zero_weights: bool = False,
        *,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(device=device, label=label)
        self._do_weighted_sum_by_non_zero_weights = flag(
            type(self).__name__, "do_weighted_sum_by_non_zero_weights", do_weighted_sum_by_non_zero_weights
        )

    @property
    def do_weighted_sum_by_non_zero_weights(self) -> bool:
        """Whether the sum is divided by the number of weights that are not 0."""
        return self._do_weighted_sum_by_non_zero_weights

    @property
    def _counts_weights(self) -> bool:
        return self._do_weighted_sum_by_non_zero_weights


class ReduceFeatureChannelsAndWeightsMean(ReduceBinary):
    """``sum_c x[c] w[c] / C`` of each pixel, with ``C`` the channels that are read: W x H x 1.

    By what MPS divides is not published. Source: ``MPSNNReduceFeatureChannelsAndWeightsMean``.
    """

    def _scale(self, channels: int) -> float:
        return 1.0 / channels


class ReduceFeatureChannelsAndWeightsGradient(_GradientOfOneImage):
    """The gradient of a ``ReduceBinary`` kernel for one of its images; MPS has none.

    ``s g w`` for the primary image and, with ``is_secondary_source_filter``, ``s g x`` for the weights, where ``s`` is
    1, ``1 / C``, or one over the number of weights that are not 0. Elements that were not read get 0. ``source_image``
    of ``encode`` is the forward image that is **not** differentiated, as for ``MultiplyGradient``. Raises
    ``NotImplementedError`` for the weights of a sum that is divided by their number: it jumps where one is 0.
    """

    remembers_encodes = True
    takes_the_other_image = True
    forward_kernels = ("ReduceFeatureChannelsAndWeightsSum", "ReduceFeatureChannelsAndWeightsMean")

    def _channel_counts(self, source_image: Image, state: Any) -> tuple[int, int, int]:
        channels = self._channels_of(source_image, "secondary")
        return channels, 1, channels

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        if self._is_secondary and state.counts_weights:
            raise NotImplementedError(
                f"{type(self).__name__}: is_secondary_source_filter is True but gradient_state was made by a sum that "
                "is divided by the number of weights that are not 0, which has no derivative for them"
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
        gradient, dx, dy = self._pointwise_gradient(regions.sources[0], state)
        offset, other, device = self._other_snapshot(state).offset, regions.sources[1], self.device
        metal_type = destination.channel_format.metal_type
        operands = (Operand(gradient, dx, dy), Operand(other, dx + offset.x, dy + offset.y))
        for piece in pieces(regions.destination, operands):
            incoming, factor = piece.operands
            extents, name = _extents(piece.destination), "weigh"
            used = {"gradient": zeros(device), "source": zeros(device)}
            if incoming is not None and factor is not None:
                images = {
                    "gradient": (source_gradient.buffer, (*incoming[:6], 1, incoming[7])),
                    "source": (source_image.buffer, factor),
                    "destination": (destination.buffer, piece.destination),
                }
                if not state.counts_weights and add_over_few_channels(
                    command_buffer, name, metal_type, images, state.scale
                ):
                    continue
                used["gradient"] = (source_gradient.buffer, View.of(incoming, 0))
                used["source"] = (source_image.buffer, View.of(factor))
                if state.counts_weights:
                    name = "spread"
                    used["counts"] = _counts(command_buffer, used["source"], metal_type, extents)
            used["destination"] = (destination.buffer, View.of(piece.destination))
            add_elementwise(command_buffer, FAMILY, PARAMETERS, name, metal_type, used, extents, scale=state.scale)


def _extents(layout: Layout) -> tuple[int, int, int, int]:
    """Channels, width, height and images."""
    return layout[6], layout[4], layout[5], layout[7]
