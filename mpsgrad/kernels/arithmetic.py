"""Addition, subtraction, multiplication, division and comparison of two images, and the gradients of the first four."""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mpsgrad.archive import archivable
from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import GeometryError, StateError
from mpsgrad.geometry import LARGEST_FLOAT, EdgeMode, Offset
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
from mpsgrad.kernels.arithmetic_family import FAMILY, PARAMETERS
from mpsgrad.kernels.gradient_of_one_image import _GradientOfOneImage
from mpsgrad.kernels.neuron import require_no_clamped_reads
from mpsgrad.kernels.pointwise import Layout, Operand, pieces
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
from mpsgrad.kernels.written_images import WrittenImages
from mpsgrad.shader import ParameterStruct
from mpsgrad.state import BinaryGradientState, ForwardSnapshot

GRADIENT_PARAMETERS = ParameterStruct(
    "ArithmeticGradientParameters",
    gradient=STRIDES,
    other=STRIDES,
    mask=STRIDES,
    parts=STRIDES,
    destination=STRIDES,
    extents=EXTENTS,
    reduced=REDUCED,
    scale="float",
)
GRADIENT_FAMILY = strided_family("arithmetic_gradient", (PARAMETERS, GRADIENT_PARAMETERS))
"""Those of the gradients, and of forward kernels that record something for them."""
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


def _spread_operand(
    layout: Layout, offset: Offset, strides: tuple[int, int], clamps: bool, width: int, height: int
) -> Operand:
    """A source for a result of ``width`` x ``height``; one with stride 0 along an axis is the same all along it."""
    start, pixel, row, image, source_width, source_height, channels, images = layout
    x, y, _ = offset
    if strides[0] == 0:
        start, inside = _fixed(start, x, pixel, source_width, clamps)
        x, pixel, source_width = 0, 0, width if inside else 0
    if strides[1] == 0:
        start, inside = _fixed(start, y, row, source_height, clamps)
        y, row, source_height = 0, 0, height if inside else 0
    return Operand((start, pixel, row, image, source_width, source_height, channels, images), x, y, clamps)


def _fixed(start: int, position: int, stride: int, size: int, clamps: bool) -> tuple[int, bool]:
    """``start`` moved to ``position``, and whether there is an element."""
    inside = clamps or 0 <= position < size
    return start + min(max(position, 0), size - 1) * stride, inside


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
        images = self._recorded.key(self.number_of_images)
        own = (self.channel_strides, self.channels, self.records_clamp, self._index, images)
        return (super()._encode_key(kernel), own)

    @property
    def _is_recorded(self) -> bool:
        """Whether forward kernels write into the state."""
        return self.resource_count > 0

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


class Arithmetic(BinaryKernel):
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
        self._records_clamp = bool(records_clamp)

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
        return ArithmeticGradientState(
            self._snapshot("primary", primary, destination),
            self._snapshot("secondary", secondary, destination),
            (self.primary_stride_in_feature_channels, self.secondary_stride_in_feature_channels),
            self._destination_channels(
                self._channels_of(primary, "primary"), self._channels_of(secondary, "secondary")
            ),
            self._records_clamp,
            self.device,
            command_buffer=command_buffer,
        )

    def _operand(self, which: str, layout: Layout, width: int, height: int) -> Operand:
        strides = tuple(getattr(self, f"{which}_stride_in_pixels_{axis}") for axis in "xy")
        clamps = getattr(self, f"{which}_edge_mode") is EdgeMode.CLAMP
        return _spread_operand(layout, getattr(self, f"{which}_offset"), strides, clamps, width, height)

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
                _extents(piece.destination),
                1 + len(records),
                **self._parameters(),
            )

    def _note_encode(self, command_buffer: CommandBuffer, state: Any, regions: Regions) -> None:
        if state is not None and state._is_recorded:
            state._recorded.add(command_buffer, state._images(self.clip_rect.origin.z, regions.images))


def _extents(layout: Layout) -> tuple[int, int, int, int]:
    """Channels, width, height and images."""
    return layout[6], layout[4], layout[5], layout[7]


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


class ArithmeticGradient(_GradientOfOneImage):
    """The base of the gradients of ``Arithmetic`` kernels with respect to one of the two images.

    ``is_secondary_source_filter`` says which: the primary image (False) or the secondary. ``g`` being the incoming
    gradient, and ``other`` the forward image that is not differentiated, it is::

        AddGradient, SubtractGradient   primary_scale g
        MultiplyGradient                (primary_scale g) (secondary_scale other)
        DivideGradient                  (primary_scale g) / (secondary_scale y), or for the secondary image
                                        -(primary_scale g) x / (secondary_scale y^2)

    and is summed along each axis over which the forward kernel spread the image (strides of 0), in float32 and in a
    fixed order; never over the batch. ``source_image`` of ``encode`` is the forward image that is differentiated for
    the first two (of which only the size matters), and the other one for the last two.

    As in MPS the scales are this kernel's own, not those of the forward kernel; ``of`` makes a kernel with those that
    give the gradient of a forward kernel. ``bias`` and the limits have no effect. Source: ``MPSCNNArithmeticGradient``.
    """

    remembers_encodes = True

    primary_scale = RealProperty(1.0, "The factor of the incoming gradient.")
    secondary_scale = RealProperty(1.0, "The factor of the other image.")
    bias = RealProperty(0.0, "Has no effect.")
    minimum_value = RealProperty(-LARGEST_FLOAT, "Has no effect.")
    maximum_value = RealProperty(LARGEST_FLOAT, "Has no effect.")
    secondary_stride_in_pixels_x = IntegerProperty(1, "The state's; a 0 is compared with it.", maximum=1)
    secondary_stride_in_pixels_y = IntegerProperty(1, "The same along y.", maximum=1)
    secondary_stride_in_feature_channels = IntegerProperty(1, "The same for the channels.", maximum=1)

    @classmethod
    def of(cls, forward: Arithmetic, *, is_secondary_source_filter: bool = False) -> Any:
        """A kernel with the scales that make it the derivative of ``forward``; not in MPS.

        Raises ``StateError`` if ``forward`` is of another kind.
        """
        kernel = cls(is_secondary_source_filter=is_secondary_source_filter, device=forward.device)
        if forward.kernel_name not in cls.forward_kernels:
            raise StateError(
                f"{cls.__name__}: forward is {type(forward).__name__}; it has to be {' or '.join(cls.forward_kernels)}"
            )
        kernel._take_scales(forward.primary_scale, forward.secondary_scale)
        return kernel

    def _take_scales(self, primary: float, secondary: float) -> None:
        self.primary_scale = secondary if self._is_secondary else primary

    def _strides(self, state: Any, snapshot: ForwardSnapshot) -> tuple[int, int, int]:
        """The forward kernel's strides in the image of ``snapshot``: along the channels, x and y."""
        channel_stride = state.channel_strides[snapshot is state.secondary]
        return channel_stride, snapshot.stride_in_pixels_x, snapshot.stride_in_pixels_y

    def _channel_counts(self, source_image: Image, state: Any) -> tuple[int, int, int]:
        own = self._strides(state, self._snapshot_of(state))[0]
        return self._channels_of(source_image, "secondary"), state.channels, state.channels if own else 1

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        owner, snapshot = type(self).__name__, self._snapshot_of(state)
        strides = self._strides(state, self._source_snapshot(state))
        names = ("feature_channels", "pixels_x", "pixels_y")
        for name, stride in zip(names, strides, strict=True):
            if getattr(self, f"secondary_stride_in_{name}") == 0 and stride:
                raise StateError(
                    f"{owner}: secondary_stride_in_{name} is 0 but gradient_state was made when that of the image was "
                    f"{stride}"
                )
        _, x, y = self._strides(state, snapshot)
        require_no_clamped_reads(owner, snapshot, ("x",) * x + ("y",) * y)

    def _begin_encode(self, command_buffer: CommandBuffer, state: Any) -> None:
        if not state._is_recorded:
            return
        owner, snapshot = type(self).__name__, self._snapshot_of(state)
        writers = state._recorded.writers(state._images(snapshot.clip_rect.origin.z, snapshot.images))
        if writers is None:
            raise StateError(
                f"{owner}: gradient_state holds records of {len(state._recorded)} images but its forward kernel has "
                f"{snapshot.images}; encode the forward kernel with the state first"
            )
        command_buffer._reads_from(owner, "gradient_state", writers)

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        snapshot = self._snapshot_of(state)
        layout, dx, dy = self._pointwise_gradient(regions.sources[0], state)
        record = state._record_layout(self.primary_offset.z) if state._is_recorded else None
        work = _GradientWork(command_buffer, source_gradient, layout, self._scale)
        if record is not None and state.records_clamp:
            work.mask(state.resource(0), record)
        work.name, work.factor = self._factor(source_image, regions.sources[1], state, record)
        strides = self._strides(state, snapshot)
        if 0 in strides:
            clamps = snapshot.edge_mode is EdgeMode.CLAMP
            work.add_sums(destination, regions.destination, strides, snapshot.offset, dx, dy, clamps)
        else:
            work.add_elements(destination, regions.destination, dx, dy)

    @property
    def _scale(self) -> float:
        return self.primary_scale

    def _factor(
        self, source_image: Image, layout: Layout, state: Any, record: Layout | None
    ) -> tuple[str, _Factor | None]:
        """The end of the kernels' names, and what the incoming gradient is multiplied or divided by."""
        return "", None

    def _other_image(self, source_image: Image, layout: Layout, state: Any) -> _Factor:
        snapshot = self._other_snapshot(state)
        clamps = snapshot.edge_mode is EdgeMode.CLAMP
        return _Factor(source_image.buffer, layout, snapshot.offset, self._strides(state, snapshot), clamps)


class AddGradient(ArithmeticGradient):
    """``primary_scale g``, summed over the axes along which the image was spread. Source: ``MPSCNNAddGradient``."""

    forward_kernels = ("Add",)


class SubtractGradient(ArithmeticGradient):
    """``primary_scale g``, summed over the axes along which the image was spread. Source: ``MPSCNNSubtractGradient``.

    As in MPS, ``primary_scale`` has to be negative for the secondary image; ``of`` sets it so.
    """

    forward_kernels = ("Subtract",)

    def _take_scales(self, primary: float, secondary: float) -> None:
        self.primary_scale = -secondary if self._is_secondary else primary


class MultiplyGradient(ArithmeticGradient):
    """``(primary_scale g) (secondary_scale other)``, summed over the axes along which the image was spread.

    ``source_image`` is the forward image that is **not** differentiated. Source: ``MPSCNNMultiplyGradient``.
    """

    forward_kernels = ("Multiply",)
    takes_the_other_image = True

    def _take_scales(self, primary: float, secondary: float) -> None:
        self.primary_scale, self.secondary_scale = primary, secondary

    @property
    def _scale(self) -> float:
        return self.primary_scale * self.secondary_scale

    def _factor(
        self, source_image: Image, layout: Layout, state: Any, record: Layout | None
    ) -> tuple[str, _Factor | None]:
        return "_product", self._other_image(source_image, layout, state)


class DivideGradient(ArithmeticGradient):
    """``(primary_scale g) / (secondary_scale y)``, or ``-(primary_scale g) x / (secondary_scale y^2)``; not in MPS.

    The second is that for the secondary image; the state of the forward kernel has it but for ``g``, and of
    ``source_image``, the primary image, only the size matters. Summed as the others are.
    """

    forward_kernels = ("Divide",)
    takes_the_other_image = True

    def _take_scales(self, primary: float, secondary: float) -> None:
        self.primary_scale, self.secondary_scale = primary, secondary

    @property
    def _scale(self) -> float:
        return self.primary_scale / self.secondary_scale

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        super()._validate(source_gradient, source_image, state)
        if self.secondary_scale == 0:
            raise GeometryError(f"{type(self).__name__}: secondary_scale is {self.secondary_scale}; it divides")

    def _factor(
        self, source_image: Image, layout: Layout, state: Any, record: Layout | None
    ) -> tuple[str, _Factor | None]:
        if not self._is_secondary:
            return "_quotient", self._other_image(source_image, layout, state)
        assert record is not None
        return "_product_recorded", _Factor(state.resource(1), record, Offset(), (1, 1, 1), False)


@dataclass(frozen=True, slots=True)
class _Factor:
    """What the incoming gradient is multiplied or divided by, addressed as a forward kernel addresses a source."""

    buffer: Buffer
    layout: Layout
    offset: Offset
    strides: tuple[int, int, int]
    clamps: bool

    def operand(self, dx: int, dy: int, width: int, height: int) -> Operand:
        """The operand of an image of ``width`` x ``height`` whose pixel 0 is pixel ``(dx, dy)`` of the gradient."""
        _, x, y = self.strides
        offset = Offset(self.offset.x + x * dx, self.offset.y + y * dy)
        return _spread_operand(self.layout, offset, (x, y), self.clamps, width, height)

    def used(self, part: Layout | None, device: Device) -> tuple[Buffer, View]:
        return zeros(device) if part is None else (self.buffer, View.of(part, self.strides[0]))


class _GradientWork:
    """Adds the dispatches of one gradient; ``layout`` is that of the incoming gradient's pixels that were produced."""

    def __init__(self, command_buffer: CommandBuffer, gradient: Image, layout: Layout, scale: float) -> None:
        self.command_buffer = command_buffer
        self.device = command_buffer.device
        self.metal_type = gradient.channel_format.metal_type
        self.itemsize = gradient.dtype.itemsize
        self.buffer, self.layout, self.scale = gradient.buffer, layout, scale
        self.name = ""
        self.factor: _Factor | None = None

    def _add(self, name: str, operands: dict[str, tuple[Buffer, View]], layout: Layout) -> None:
        add_elementwise(
            self.command_buffer,
            GRADIENT_FAMILY,
            GRADIENT_PARAMETERS,
            name,
            self.metal_type,
            operands,
            _extents(layout),
            scale=self.scale,
        )

    def _dense(self, width: int, height: int, images: int, itemsize: int) -> tuple[Buffer, Layout]:
        """Scratch memory for all channels of so many pixels."""
        channels = self.layout[6]
        row, image = channels * width, channels * width * height
        buffer = self.command_buffer.scratch(itemsize * image * images)
        return buffer, (0, channels, row, image, width, height, channels, images)

    def mask(self, buffer: Buffer, record: Layout) -> None:
        """Sets the incoming gradient to 0 where the mask in ``buffer`` is."""
        _, _, _, _, width, height, _, images = self.layout
        result, dense = self._dense(width, height, images, self.itemsize)
        operands = {
            "gradient": (self.buffer, View.of(self.layout)),
            "mask": (buffer, View.of(record)),
            "destination": (result, View.of(dense)),
        }
        self._add("mask", operands, dense)
        self.buffer, self.layout = result, dense

    def add_elements(self, destination: Image, layout: Layout, dx: int, dy: int) -> None:
        """The gradient of an image that was not spread. Its pixel 0 is pixel ``(dx, dy)`` of the incoming gradient."""
        operands = [Operand(self.layout, dx, dy)]
        if self.factor is not None:
            operands.append(self.factor.operand(dx, dy, *layout[4:6]))
        for piece in pieces(layout, tuple(operands)):
            part, *factors = piece.operands
            if part is None:
                self._add_zeros(destination, piece.destination)
                continue
            used = {"gradient": (self.buffer, View.of(part))}
            if self.factor is not None:
                used["other"] = self.factor.used(factors[0], self.device)
            used["destination"] = (destination.buffer, View.of(piece.destination))
            self._add("gradient" + self.name, used, piece.destination)

    def _add_zeros(self, destination: Image, layout: Layout) -> None:
        operands = {"gradient": zeros(self.device), "destination": (destination.buffer, View.of(layout))}
        self._add("gradient", operands, layout)

    def add_sums(
        self,
        destination: Image,
        layout: Layout,
        strides: tuple[int, int, int],
        offset: Offset,
        dx: int,
        dy: int,
        clamps: bool,
    ) -> None:
        """The gradient of an image that was spread from ``offset`` where ``strides`` are 0; other pixels get 0."""
        _, _, _, _, width, height, channels, images = self.layout
        x, across, columns = _box(layout[4], width, strides[1], offset.x, dx, clamps)
        y, down, rows = _box(layout[5], height, strides[2], offset.y, dy, clamps)
        reached = (0, 0, 0, 0, columns if strides[1] else 1, rows if strides[2] else 1, layout[6], layout[7])
        if not columns or not rows:
            reached = (0, 0, 0, 0, 0, 0, *reached[6:])
        for piece in pieces(layout, (Operand(reached, -x, -y),)):
            if piece.operands[0] is None:
                self._add_zeros(destination, piece.destination)
            else:
                target = (destination.buffer, View.of(piece.destination))
                self._add_box(target, (across, down), (channels, columns, rows, layout[7]), strides)

    def _add_box(
        self,
        destination: tuple[Buffer, View],
        first: tuple[int, int],
        extents: tuple[int, int, int, int],
        strides: tuple[int, int, int],
    ) -> None:
        """The sums over the incoming gradient from pixel ``first`` on along the axes where ``strides`` are 0."""
        x, y = first
        _, columns, rows, images = extents
        start, pixel, row, *_ = self.layout
        used = {"gradient": (self.buffer, replace(View.of(self.layout), offset=start + x * pixel + y * row))}
        name = "sum" + self.name
        if self.factor is not None:
            operand = self.factor.operand(x, y, columns, rows)
            if operand.covers(columns, rows):
                begin, pixel, row, *_ = operand.layout
                part = (begin + operand.dx * pixel + operand.dy * row, *operand.layout[1:])
                used["other"] = self.factor.used(part, self.device)
            else:
                name, used = "sum_parts", {"parts": self._terms(operand, x, y, columns, rows, images)}
        add_reduction(
            self.command_buffer,
            GRADIENT_FAMILY,
            GRADIENT_PARAMETERS,
            name,
            self.metal_type,
            {**used, "destination": destination},
            extents,
            (bool(strides[0]), bool(strides[1]), bool(strides[2]), True),
            merge="sum_parts",
            scale=self.scale,
        )

    def _terms(self, operand: Operand, x: int, y: int, columns: int, rows: int, images: int) -> tuple[Buffer, View]:
        """The products or quotients in scratch memory, for a factor that does not have all pixels."""
        assert self.factor is not None
        result, dense = self._dense(columns, rows, images, 4)
        for piece in pieces(dense, (Operand(self.layout, x, y), operand)):
            part, factor = piece.operands
            assert part is not None
            used = {
                "gradient": (self.buffer, View.of(part)),
                "other": self.factor.used(factor, self.device),
                "parts": (result, View.of(piece.destination)),
            }
            self._add("term" + self.name, used, piece.destination)
        return result, View.of(dense)


def _box(size: int, length: int, stride: int, offset: int, shift: int, clamps: bool) -> tuple[int, int, int]:
    """Along one axis: the first pixel of ``size`` that has a gradient, the first of its ``length`` that it takes, and
    how many there are: of both for a stride of 1, of the gradient for one of 0."""
    if stride:
        first = max(0, -shift)
        return first, first + shift, max(0, min(size, length - shift) - first)
    position = min(max(offset, 0), size - 1) if clamps else offset
    return position, 0, length if 0 <= position < size else 0
