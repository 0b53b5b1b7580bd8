"""Upsampling by the nearest pixel and bilinear, resizing, and the gradients."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import GeometryError, StateError
from mpsgrad.geometry import MAXIMUM, Offset, ceiling_divide, flag, integer, real
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.kernel import IMAGE_LAYOUT, BaseKernel, GradientKernel, Kernel, Regions
from mpsgrad.kernels.divisor import DIVISOR, divisor
from mpsgrad.kernels.walk import (
    CONSTANTS_WITH_PAIRS,
    CPU_CONSTANTS,
    CPU_CONSTANTS_WITH_EIGHTS,
    DIVISORS,
    Layout,
    divisors_of,
    runs_of,
    shares_of_lines,
    threads_of,
    turns_of,
    walk_of,
    works_by_rows,
)
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.state import ForwardSnapshot, GradientState

PARAMETERS = ParameterStruct(
    "UpsamplingParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    step_x="int",
    steps_x="int",
    step_y="int",
    steps_y="int",
    lines_of_thread="int",
    columns_of_tile="int",
    threads="int",
    turns="int",
    blocks="int",
    **DIVISORS,
    by_step_x=DIVISOR,
    by_steps_x=DIVISOR,
    by_step_y=DIVISOR,
    by_steps_y=DIVISOR,
)
"""Output ``o`` reads the source at ``o * step / steps``. A gradient's ``source`` is the incoming gradient. Columns of
threads of a GPU have ``blocks`` of rows."""
ROWS_OF_COLUMNS, FEWEST_THREADS_OF_COLUMNS = 4, 1 << 16
"""A thread of a GPU owns so many pixels below each other of what is interpolated, where that leaves so many threads."""
MOST_IN_ROW = 4096
"""Numbers of a row of pixels that a thread of a CPU keeps in its nearest cache."""
MOST_IN_TILE, MOST_COLUMNS, MOST_READERS = 8192, 1024, 64
"""Of gradients on CPUs: numbers of a row of outputs, added up along y, and pixels that a thread makes of these at a
time; and rows of outputs that read a pixel."""
FEWEST_CHANNELS_ALONE, MOST_OUTPUTS_ALONE = 48, 3
"""On CPUs: without weights pixels of so many channels add up so few outputs along each axis faster by themselves."""
CHANNELS_OF_BLOCK = 512
"""It takes no more channels at once: tiles are to have some columns, as the outputs at both ends are read twice."""
FAMILY = ShaderFamily(
    "upsampling",
    (IMAGE_LAYOUT, DIVISOR, PARAMETERS),
    {
        **CONSTANTS_WITH_PAIRS,
        "by_runs": False,
        "rows_of_columns": ROWS_OF_COLUMNS,
        "bilinear_walks": (*CONSTANTS_WITH_PAIRS["walks"], "elements"),
        "most_in_row": MOST_IN_ROW,
        "most_in_tile": MOST_IN_TILE,
        "most_columns": MOST_COLUMNS,
        "most_readers": MOST_READERS,
        "channels_of_block": CHANNELS_OF_BLOCK,
    },
    {
        "cpu": {
            **CPU_CONSTANTS,
            "by_runs": True,
            "rows_of_columns": 0,
            "bilinear_walks": CPU_CONSTANTS_WITH_EIGHTS["walks"],
        }
    },
    ahead_of_time=False,
)

LARGEST_DENOMINATOR = 1024
"""Scale factors are taken as the nearest fraction with a denominator of at most so many."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of ``count`` outputs: output ``o`` reads the source at ``o * step / steps``."""

    count: int
    step: int
    steps: int

    @classmethod
    def resized(cls, size: int, count: int, align_corners: bool, ratio: Fraction) -> Axis:
        """``count`` outputs from ``size`` pixels, ``ratio`` apart unless the corners are aligned."""
        if align_corners:
            ratio = Fraction(size - 1, count - 1) if count > 1 else Fraction(0)
        return cls(count, ratio.numerator, ratio.denominator)


class UpsamplingGradientState(GradientState):
    """The state of upsampling or resizing: its snapshot, and where the outputs lie in the source.

    Source: ``MPSNNGradientState``.
    """

    def __init__(
        self, kernel: _Resampling, snapshot: ForwardSnapshot, *, command_buffer: CommandBuffer | None = None
    ) -> None:
        super().__init__(snapshot, (), kernel.device, command_buffer=command_buffer)
        self.settings = kernel._settings
        self.axes = kernel._axes(snapshot.source)

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        return (self.snapshot, tuple(self.settings.items()), self.axes)


def _add_dispatch(
    command_buffer: CommandBuffer,
    function_name: str,
    metal_type: str,
    buffers: tuple[Buffer, Buffer],
    source: Layout,
    destination: Layout,
    axes: tuple[Axis, Axis],
) -> None:
    device = command_buffer.device
    interpolates = function_name == "upsampling_bilinear"
    has_eights = True if interpolates else None
    walk = walk_of(
        device,
        (destination, source),
        has_element2=True,
        has_eights=has_eights,
        has_elements=True,
        has_element8=metal_type == "half",
    )
    *_, width, height, _, _ = destination
    threads, turns, lines_of_thread, columns, blocks = threads_of(walk, destination), 1, 1, 0, height
    runs = None
    if function_name == "upsampling_nearest":
        threads, turns = turns_of(walk, threads)
        runs = runs_of(device, source, destination)
    elif function_name.endswith("_gradient"):
        is_alone = function_name.startswith("upsampling_nearest") and _adds_up_alone(destination[6], axes)
        columns = 0 if is_alone else _columns_of_tile(destination[6], axes)
        runs = shares_of_lines(device, destination) if works_by_rows(device) and columns > 0 else None
    elif interpolates and walk == "channels" and source[4] * source[6] <= MOST_IN_ROW:
        runs = runs_of(device, source, destination)
    if runs is not None:
        walk, (threads, lines_of_thread) = "runs", runs
    if "bilinear" in function_name and not works_by_rows(device) and (interpolates or walk != "element8"):
        blocks_of_columns = ceiling_divide(height, ROWS_OF_COLUMNS)
        threads_of_columns = threads_of(walk, destination, width, blocks_of_columns)
        if threads_of_columns >= FEWEST_THREADS_OF_COLUMNS:
            function_name, blocks, threads = f"{function_name}_of_columns", blocks_of_columns, threads_of_columns
    function = FAMILY.function(device, f"{function_name}_by_{walk}", metal_type)
    x, y = axes
    parameters = PARAMETERS.pack(
        source=source,
        destination=destination,
        step_x=x.step,
        steps_x=x.steps,
        step_y=y.step,
        steps_y=y.steps,
        lines_of_thread=lines_of_thread,
        columns_of_tile=columns,
        threads=threads,
        turns=turns,
        blocks=blocks,
        **divisors_of(walk, destination, width, blocks),
        by_step_x=divisor(x.step),
        by_steps_x=divisor(x.steps),
        by_step_y=divisor(y.step),
        by_steps_y=divisor(y.steps),
    )
    command_buffer.add_dispatch(
        function,
        -(-threads // function.threadgroup_size),
        *buffers,
        device.constant_buffer(parameters),
    )


def _adds_up_alone(channels: int, axes: tuple[Axis, Axis]) -> bool:
    """Whether each pixel of a nearest gradient visits the outputs that read it, instead of rows of outputs first."""
    return channels >= FEWEST_CHANNELS_ALONE and all(axis.steps <= MOST_OUTPUTS_ALONE * axis.step for axis in axes)


def _columns_of_tile(channels: int, axes: tuple[Axis, Axis]) -> int:
    """Of how many columns of pixels a thread of a CPU takes gradients at once; 0 or less if outputs are too many."""
    x, y = axes
    if 2 * y.steps > (MOST_READERS - 2) * y.step:
        return 0
    outputs = MOST_IN_TILE // ceiling_divide(channels, ceiling_divide(channels, CHANNELS_OF_BLOCK))
    # Pixels a to b are read by the outputs from pixel a - 1 to b + 1.
    return min((outputs - 2) * x.step // x.steps - 1, MOST_COLUMNS)


def require_whole_images(kernel: BaseKernel, offset_name: str) -> None:
    """Raises ``NotImplementedError`` if ``clip_rect``, or the offset called so, chooses a part of the pixels."""
    clip, offset = kernel.clip_rect, getattr(kernel, offset_name)
    if clip.origin[:2] != (0, 0) or clip.size[:2] != (MAXIMUM, MAXIMUM) or offset[:2] != (0, 0):
        raise NotImplementedError(
            f"{type(kernel).__name__}: clip_rect is {clip} and {offset_name} {offset}; whole images are resampled"
        )


class _Resampling(Kernel[UpsamplingGradientState]):
    """A forward kernel, whose result has another size than the padding policy says."""

    remembers_encodes = True
    _function: ClassVar[str] = "upsampling_bilinear"

    @property
    def _settings(self) -> dict[str, Any]:
        """The constructor's arguments that a gradient kernel has to share."""
        raise NotImplementedError

    def _axes(self, source: Image | ImageDescriptor) -> tuple[Axis, Axis]:
        """The outputs along x and y."""
        raise NotImplementedError

    def _checked_axes(self, source: Image | ImageDescriptor) -> tuple[Axis, Axis]:
        axes = self._axes(source)
        for name, size, axis in (("width", source.width, axes[0]), ("height", source.height, axes[1])):
            if axis.count < 1:
                raise GeometryError(f"{type(self).__name__}: the result of a source of {name} {size} would be empty")
            if max(axis.count * axis.step, (size + 1) * axis.steps + axis.step) >= 2**31:
                raise GeometryError(
                    f"{type(self).__name__}: {axis.count} pixels of {name} from {size} by steps of "
                    f"{axis.step}/{axis.steps} need positions of more than 31 bits"
                )
        return axes

    def _adjust_descriptor(self, source: Image, descriptor: ImageDescriptor) -> ImageDescriptor:
        x, y = self._checked_axes(source)
        self._configure(offset=Offset(0, 0, self.offset.z))
        return replace(descriptor, width=x.count, height=y.count)

    def _make_state(
        self, source: Image, destination: Image, command_buffer: CommandBuffer | None
    ) -> UpsamplingGradientState:
        self._checked_axes(source)
        return UpsamplingGradientState(self, self._shared_snapshot(source, destination), command_buffer=command_buffer)

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        owner = type(self).__name__
        x, y = axes = self._checked_axes(source)
        require_whole_images(self, "offset")
        if (regions.width, regions.height) != (x.count, y.count):
            raise GeometryError(
                f"{owner}: the destination is {regions.width} wide and {regions.height} high but the result of "
                f"{source.width} x {source.height} pixels is {x.count} x {y.count}"
            )
        _add_dispatch(
            command_buffer,
            self._function,
            source.channel_format.metal_type,
            (source.buffer, destination.buffer),
            regions.sources[0],
            regions.destination,
            axes,
        )


class _ResamplingGradient(GradientKernel):
    """A gradient kernel. The values of ``source_image`` are not read."""

    remembers_encodes = True
    offsets_of_images = ("primary_offset", "secondary_offset")
    _function: ClassVar[str] = "upsampling_bilinear"

    @property
    def _settings(self) -> dict[str, Any]:
        raise NotImplementedError

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        for name, value in self._settings.items():
            if state.settings[name] != value:
                raise StateError(
                    f"{type(self).__name__}: {name} is {value} but that of gradient_state's kernel is "
                    f"{state.settings[name]}"
                )
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
        require_whole_images(self, "primary_offset")
        self._require_whole_destination(regions, source_image)
        _add_dispatch(
            command_buffer,
            f"{self._function}_gradient",
            source_gradient.channel_format.metal_type,
            (source_gradient.buffer, destination.buffer),
            regions.sources[0],
            regions.destination,
            state.axes,
        )


def _factor(owner: str, name: str, value: Any) -> float:
    factor = real(owner, name, value)
    if factor < 1.0:
        raise GeometryError(f"{owner}: {name} is {factor}; it has to be at least 1")
    return factor


class _Factors:
    """The scale factors, which a forward kernel and its gradient kernel share."""

    _factors: tuple[float, float]

    @property
    def scale_factor_x(self) -> float:
        """How many times as wide as the source the result is."""
        return self._factors[0]

    @property
    def scale_factor_y(self) -> float:
        """How many times as high as the source the result is."""
        return self._factors[1]

    @property
    def _settings(self) -> dict[str, Any]:
        return {"scale_factor_x": self._factors[0], "scale_factor_y": self._factors[1]}

    def _take_factors(self, x: Any, y: Any) -> None:
        owner = type(self).__name__
        self._factors = _factor(owner, "scale_factor_x", x), _factor(owner, "scale_factor_y", y)


class Upsampling(_Factors, _Resampling):
    """The base of the upsampling kernels. Source: ``MPSCNNUpsampling``.

    The result has ``floor(scale_factor * size)`` pixels along each axis. MPS takes whole factors only; others are taken
    as the nearest fraction with a denominator of at most 1024. Whole images are resampled: encodes with a ``clip_rect``
    or an ``offset`` in pixels raise ``NotImplementedError``. The edge mode has no influence. Raises ``GeometryError``
    for factors below 1.
    """

    _align_corners = False

    @property
    def align_corners(self) -> bool:
        """Whether the corner pixels of source and result lie on each other."""
        return self._align_corners

    def _axes(self, source: Image | ImageDescriptor) -> tuple[Axis, Axis]:
        axes = []
        for size, factor in zip((source.width, source.height), self._factors, strict=True):
            fraction = Fraction(factor).limit_denominator(LARGEST_DENOMINATOR)
            axes.append(Axis.resized(size, int(size * fraction), self._align_corners, 1 / fraction))
        return axes[0], axes[1]


class UpsamplingNearest(Upsampling):
    """``y[o] = x[floor(o / scale_factor)]`` along both axes. Source: ``MPSCNNUpsamplingNearest``."""

    _function = "upsampling_nearest"

    # objc: -initWithDevice:integerScaleFactorX:integerScaleFactorY:
    def __init__(
        self, *, scale_factor_x: float, scale_factor_y: float, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(device=device, label=label)
        self._take_factors(scale_factor_x, scale_factor_y)


class UpsamplingBilinear(Upsampling):
    """Bilinear interpolation at ``s = o / scale_factor``. Source: ``MPSCNNUpsamplingBilinear``.

    ``y[o] = (1 - f) x[i] + f x[min(i + 1, size - 1)]`` with ``i = floor(s)`` and ``f = s - i`` along both axes; there
    is no shift by half a pixel. With ``align_corners`` ``s = o (size - 1) / (result's size - 1)``.
    """

    # objc: -initWithDevice:integerScaleFactorX:integerScaleFactorY:
    # objc: -initWithDevice:integerScaleFactorX:integerScaleFactorY:alignCorners:
    def __init__(
        self,
        *,
        scale_factor_x: float,
        scale_factor_y: float,
        align_corners: bool = False,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(device=device, label=label)
        self._take_factors(scale_factor_x, scale_factor_y)
        self._align_corners = flag(type(self).__name__, "align_corners", align_corners)


class UpsamplingGradient(_Factors, _ResamplingGradient):
    """The base of the gradients of upsampling: each source pixel adds up what read it.

    Source: ``MPSCNNUpsamplingGradient``. Whether corners were aligned is in the state.
    """

    # objc: -initWithDevice:integerScaleFactorX:integerScaleFactorY:
    def __init__(
        self, *, scale_factor_x: float, scale_factor_y: float, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(device=device, label=label)
        self._take_factors(scale_factor_x, scale_factor_y)


class UpsamplingNearestGradient(UpsamplingGradient):
    """``dx[i] = sum g[o]`` over the outputs that took pixel ``i``. Source: ``MPSCNNUpsamplingNearestGradient``."""

    forward_kernels = ("UpsamplingNearest",)
    _function = "upsampling_nearest"


class UpsamplingBilinearGradient(UpsamplingGradient):
    """``dx[i] = sum g[o] weight[o, i]`` with the forward weights, of ``align_corners`` too, which the state has: MPS
    does not say. Source: ``MPSCNNUpsamplingBilinearGradient``."""

    forward_kernels = ("UpsamplingBilinear",)


class _Size(BaseKernel):
    """The size of a resized image."""

    # objc: -initWithDevice:resizeWidth:resizeHeight:alignCorners:
    def __init__(
        self,
        *,
        resize_width: int,
        resize_height: int,
        align_corners: bool = False,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(device=device, label=label)
        owner = type(self).__name__
        self._resized = (
            integer(owner, "resize_width", resize_width, 1),
            integer(owner, "resize_height", resize_height, 1),
        )
        self._align_corners = flag(owner, "align_corners", align_corners)

    @property
    def resize_width(self) -> int:
        """Width of the result in pixels."""
        return self._resized[0]

    @property
    def resize_height(self) -> int:
        """Height of the result in pixels."""
        return self._resized[1]

    @property
    def align_corners(self) -> bool:
        """Whether the corner pixels of source and result lie on each other."""
        return self._align_corners

    @property
    def _settings(self) -> dict[str, Any]:
        return {
            "resize_width": self._resized[0],
            "resize_height": self._resized[1],
            "align_corners": self._align_corners,
        }


class ResizeBilinear(_Size, _Resampling):
    """Bilinear interpolation to a size, larger or smaller. Source: ``MPSNNResizeBilinear``.

    As ``UpsamplingBilinear`` with ``s = o size / result's size``, or with ``align_corners`` ``s = o (size - 1) /
    (result's size - 1)``.
    """

    def _axes(self, source: Image | ImageDescriptor) -> tuple[Axis, Axis]:
        x, y = (
            Axis.resized(size, count, self._align_corners, Fraction(size, count))
            for size, count in zip((source.width, source.height), self._resized, strict=True)
        )
        return x, y


class ResizeBilinearGradient(_Size, _ResamplingGradient):
    """The gradient of ``ResizeBilinear``, which MPS lacks. Its arguments have to be the forward kernel's."""

    forward_kernels = ("ResizeBilinear",)
