"""Addition, subtraction, multiplication, division and comparison of two images."""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import replace
from typing import Any, ClassVar

from mpsgrad.archive import archivable
from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import GeometryError
from mpsgrad.geometry import LARGEST_FLOAT, EdgeMode, flag
from mpsgrad.image import Image
from mpsgrad.kernel import (
    BaseKernel,
    BinaryKernel,
    EnumProperty,
    IntegerProperty,
    RealProperty,
    Regions,
)
from mpsgrad.kernels.addition_and_neuron import join_neurons
from mpsgrad.kernels.arithmetic_family import FAMILY, GRADIENT_FAMILY, PARAMETERS
from mpsgrad.kernels.arithmetic_operand import channels_and_extents, spread_operand
from mpsgrad.kernels.pointwise import Layout, Operand, pieces
from mpsgrad.kernels.strides import (
    View,
    add_elementwise,
    zeros,
)
from mpsgrad.kernels.written_images import WrittenImages
from mpsgrad.state import BinaryGradientState, ForwardSnapshot

join_neurons()


@archivable
class ComparisonType(enum.IntEnum):
    """What ``Compare`` tests. Source: ``MPSNNComparisonType``."""

    EQUAL = 0
    NOT_EQUAL = 1
    LESS = 2
    LESS_OR_EQUAL = 3
    GREATER = 4
    GREATER_OR_EQUAL = 5


_COMPARISONS = {
    ComparisonType.EQUAL: (1, 0, 0, 0),
    ComparisonType.NOT_EQUAL: (-1, 0, 0, 1),
    ComparisonType.LESS: (0, 1, 0, 0),
    ComparisonType.LESS_OR_EQUAL: (1, 1, 0, 0),
    ComparisonType.GREATER: (0, 0, 1, 0),
    ComparisonType.GREATER_OR_EQUAL: (1, 0, 1, 0),
}
"""What equal, lesser and greater elements count, and what is added."""


class ArithmeticGradientState(BinaryGradientState):
    """The state of an ``Arithmetic`` kernel. Source: ``MPSCNNArithmeticGradientState``.

    That of a ``Divide`` holds the derivative for the secondary image, float32, and with ``records_clamp`` that of any
    kernel one byte for each element of the result: whether it lies between the limits. ``channels`` are those that were
    written.
    """

    def __init__(
        self,
        primary: ForwardSnapshot,
        secondary: ForwardSnapshot,
        channel_strides: tuple[int, int],
        channels: int,
        records_clamp: bool,
        device: Device | None = None,
        *,
        command_buffer: CommandBuffer | None = None,
    ) -> None:
        elements = primary.destination.element_count
        is_division = primary.kernel == "Divide"
        sizes = (elements,) * (records_clamp or is_division) + (4 * elements,) * is_division
        super().__init__(primary, secondary, sizes, device, command_buffer=command_buffer)
        self.channel_strides = channel_strides
        self.channels = channels
        self.records_clamp = records_clamp
        self._recorded = WrittenImages()

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        images = self._recorded.key(self.number_of_images) if self._is_recorded else None
        own = (self.channel_strides, self.channels, self.records_clamp, self._index, images)
        return (super()._encode_key(kernel), own)

    @property
    def _is_recorded(self) -> bool:
        """Whether forward kernels write into the state."""
        return bool(self._sizes)

    def _record_layout(self, first_image: int) -> Layout:
        """The layout of what is recorded of the forward kernel's clip rectangle, from ``first_image`` on."""
        made, clip = self.primary.destination, self.primary.clip_rect
        pixel, row = made.feature_channels, made.feature_channels * made.width
        image = row * made.height
        width = max(min(clip.size.width, made.width - clip.origin.x), 0)
        height = max(min(clip.size.height, made.height - clip.origin.y), 0)
        start = (self._index + first_image) * image + clip.origin.y * row + clip.origin.x * pixel
        start += self.primary.destination_feature_channel_offset
        return (start, pixel, row, image, width, height, self.channels, made.number_of_images)

    def _images(self, first: int, count: int) -> range:
        return range(self._index + first, self._index + first + count)


class Arithmetic(BinaryKernel[ArithmeticGradientState]):
    """The base of arithmetic kernels, ``clamp(f(primary_scale x, secondary_scale y) + bias, minimum, maximum)``.

    A stride of 0 along x, y or the feature channels, of either image, keeps reading at the offset and so spreads an
    image of width, height or channel count 1. Otherwise strides are 1, and the two results have one size: else
    ``GeometryError`` is raised.

    With ``records_clamp`` states hold which elements the limits left alone, and gradients are 0 for the others; MPS
    leaves that to the caller. Source: ``MPSCNNArithmetic``.
    """

    remembers_encodes = True
    _function: ClassVar[str]

    primary_scale = RealProperty(1.0, "The factor of the primary image.")
    secondary_scale = RealProperty(1.0, "The factor of the secondary image.")
    bias = RealProperty(0.0, "Added to the result.")
    minimum_value = RealProperty(-LARGEST_FLOAT, "The smallest result.")
    maximum_value = RealProperty(LARGEST_FLOAT, "The largest result.")
    primary_stride_in_pixels_x = IntegerProperty(1, "0 spreads a column of the primary image.", maximum=1)
    primary_stride_in_pixels_y = IntegerProperty(1, "0 spreads a row of the primary image.", maximum=1)
    primary_stride_in_feature_channels = IntegerProperty(1, "0 spreads a channel of the primary image.", maximum=1)
    secondary_stride_in_pixels_x = IntegerProperty(1, "0 spreads a column of the secondary image.", maximum=1)
    secondary_stride_in_pixels_y = IntegerProperty(1, "0 spreads a row of the secondary image.", maximum=1)
    secondary_stride_in_feature_channels = IntegerProperty(1, "0 spreads a channel of the secondary image.", maximum=1)

    # objc: -initWithDevice:
    def __init__(
        self, *, records_clamp: bool = False, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(device=device, label=label)
        self._records_clamp = flag(type(self).__name__, "records_clamp", records_clamp)

    @property
    def records_clamp(self) -> bool:
        """Whether states record which elements the limits left alone, so that gradients are 0 for the others."""
        return self._records_clamp

    def _channels_of(self, image: Image, which: str) -> int:
        channels = super()._channels_of(image, which)
        return channels if getattr(self, f"{which}_stride_in_feature_channels") else 1

    def _destination_channels(self, primary_channels: int, secondary_channels: int) -> int:
        used = [
            channels
            for channels, stride in (
                (primary_channels, self.primary_stride_in_feature_channels),
                (secondary_channels, self.secondary_stride_in_feature_channels),
            )
            if stride
        ]
        if len(set(used)) > 1:
            raise GeometryError(
                f"{type(self).__name__}: {used[0]} feature channels of primary_image are read but {used[1]} of "
                "secondary_image; a stride_in_feature_channels of 0 spreads one"
            )
        return used[0] if used else 1

    def _validate(self, *sources: Any, **_: Any) -> None:
        if self.minimum_value > self.maximum_value:
            raise GeometryError(
                f"{type(self).__name__}: minimum_value is {self.minimum_value} but maximum_value {self.maximum_value}"
            )

    def _snapshot(self, which: str, source: Image, destination: Image) -> ForwardSnapshot:
        snapshot = super()._snapshot(which, source, destination)
        if getattr(self, f"{which}_stride_in_feature_channels"):
            return snapshot
        return replace(snapshot, source_feature_channel_max_count=1)

    def _make_state(
        self, primary: Image, secondary: Image, destination: Image, command_buffer: CommandBuffer | None
    ) -> Any:
        first, second, steps, channels = self._made_once(self._described, primary, secondary, destination)
        return ArithmeticGradientState(
            first, second, steps, channels, self._records_clamp, self.device, command_buffer=command_buffer
        )

    def _described(
        self, primary: Image, secondary: Image, destination: Image
    ) -> tuple[ForwardSnapshot, ForwardSnapshot, tuple[int, int], int]:
        """What a state holds of the properties and the images."""
        channels = self._destination_channels(
            self._channels_of(primary, "primary"), self._channels_of(secondary, "secondary")
        )
        steps = (self.primary_stride_in_feature_channels, self.secondary_stride_in_feature_channels)
        return (*self._snapshots(primary, secondary, destination), steps, channels)

    def _operand(self, which: str, layout: Layout, width: int, height: int) -> Operand:
        strides = tuple(getattr(self, f"{which}_stride_in_pixels_{axis}") for axis in "xy")
        clamps = getattr(self, f"{which}_edge_mode") is EdgeMode.CLAMP
        return spread_operand(layout, getattr(self, f"{which}_offset"), strides, clamps, width, height)

    def _parameters(self) -> dict[str, Any]:
        return {
            "primary_scale": self.primary_scale,
            "secondary_scale": self.secondary_scale,
            "bias": self.bias,
            "minimum": self.minimum_value,
            "maximum": self.maximum_value,
        }

    def _dispatch(  # type: ignore[override]
        self,
        command_buffer: CommandBuffer,
        primary: Image,
        secondary: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        name, extents = self._function, (regions.width, regions.height)
        names = ["primary", "secondary"]
        buffers: list[Buffer] = [primary.buffer, secondary.buffer]
        steps = [self.primary_stride_in_feature_channels, self.secondary_stride_in_feature_channels]
        operands = [
            self._operand(which, layout, *extents) for which, layout in zip(names, regions.sources, strict=True)
        ]
        records: list[Buffer] = []
        if state is not None and state._is_recorded:
            name += "_recorded"
            records = [state.resource(index) for index in range(state.resource_count)]
            operands += [Operand(state._record_layout(self.clip_rect.origin.z))] * len(records)
        for piece in pieces(regions.destination, tuple(operands)):
            used = {}
            for key, buffer, step, part in zip(names, buffers, steps, piece.operands[:2], strict=True):
                used[key] = (buffer, View.of(part, step)) if part is not None else zeros(self.device)
            used["destination"] = (destination.buffer, View.of(piece.destination))
            for key, buffer, part in zip(("mask", "derivative"), records, piece.operands[2:], strict=False):
                assert part is not None
                used[key] = (buffer, View.of(part))
            add_elementwise(
                command_buffer,
                GRADIENT_FAMILY if records else FAMILY,
                PARAMETERS,
                name,
                destination.channel_format.metal_type,
                used,
                channels_and_extents(piece.destination),
                1 + len(records),
                **self._parameters(),
            )

    def _note_encode(self, command_buffer: CommandBuffer, state: Any, regions: Regions) -> None:
        if state is not None and state._is_recorded:
            state._recorded.add(command_buffer, state._images(self.clip_rect.origin.z, regions.images))


class Add(Arithmetic):
    """``primary_scale x + secondary_scale y + bias``, clamped. Source: ``MPSCNNAdd``."""

    _function = "add"


class Subtract(Arithmetic):
    """``primary_scale x - secondary_scale y + bias``, clamped. Source: ``MPSCNNSubtract``."""

    _function = "subtract"


class Multiply(Arithmetic):
    """``(primary_scale x) (secondary_scale y) + bias``, clamped. Source: ``MPSCNNMultiply``."""

    _function = "multiply"


class Divide(Arithmetic):
    """``(primary_scale x) / (secondary_scale y) + bias``, clamped. Source: ``MPSCNNDivide``.

    Where ``y`` is 0 the result is infinite before the clamp, or not a number. Its state holds ``-x / y^2``, float32.
    """

    _function = "divide"


class Compare(Arithmetic):
    """1 where ``comparison_type`` holds for ``x`` and ``y``, else 0. Source: ``MPSNNCompare``.

    ``x`` and ``y`` are equal if ``|x - y| <= threshold`` or both are one infinity; LESS and GREATER do not look at the
    threshold, of which MPS does not say anything. Scales, bias and limits are not used. It has no gradient, and so no
    state.
    """

    _function = "compare"

    comparison_type = EnumProperty(ComparisonType.EQUAL, "What is tested.")
    threshold = RealProperty(0.0, "The largest difference of elements that are equal.", minimum=0.0)

    # objc: -initWithDevice:
    def __init__(self, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(device=device, label=label)

    def _make_state(self, *arguments: Any, **_: Any) -> None:
        return None

    def _parameters(self) -> dict[str, Any]:
        names = ("of_equal", "of_less", "of_greater", "otherwise")
        return {
            "threshold": self.threshold,
            **dict(zip(names, _COMPARISONS[self.comparison_type], strict=True)),
        }
