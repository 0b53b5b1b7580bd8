"""The gather of a convolution, or of its data gradient, along one axis: which pixels the taps of a pixel read."""

from __future__ import annotations

from typing import NamedTuple

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry, WindowAxis
from mpsgrad.shader import ParameterStruct

AXIS = ParameterStruct(
    "GatherAxis",
    size="int",
    taps="int",
    stride="int",
    origin="int",
    step="int",
    divisor="int",
    tap_step="int",
    shift="int",
    fold="int",
)


class Axis(NamedTuple):
    """The gather along one axis, with the fields of ``AXIS``, and how its taps follow from those of the user."""

    size: int
    taps: int
    stride: int
    origin: int
    step: int
    divisor: int
    fold: int
    tap_factor: int
    fold_factor: int
    tap_shift: int

    @property
    def tap_step(self) -> int:
        """From one tap to the next that falls on a source pixel."""
        return _steps_to_multiple(self.step, self.divisor)

    @property
    def phase_taps(self) -> int:
        """The most taps that the pixels of one phase use."""
        return ceiling_divide(self.taps, self.tap_step)

    @property
    def busy_phases(self) -> int:
        """The most phases whose pixels use a tap."""
        return min(self.divisor, self.taps)

    @property
    def taps_of_phases(self) -> list[int]:
        """How many taps the pixels of each phase use."""
        firsts = [self.origin + phase for phase in range(self.divisor)]
        return [sum((first + self.step * tap) % self.divisor == 0 for tap in range(self.taps)) for first in firsts]

    def packed(self) -> tuple[int, ...]:
        tap_step = self.tap_step
        shift = self.step * tap_step // self.divisor
        return (
            self.size,
            self.taps,
            self.stride,
            self.origin,
            self.step,
            self.divisor,
            tap_step,
            shift,
            self.fold,
        )


def _steps_to_multiple(step: int, divisor: int) -> int:
    return next(count for count in range(1, divisor + 1) if count * step % divisor == 0)


def reach(axis: Axis) -> tuple[int, int]:
    """The lowest pixel that taps of a destination pixel read in any phase, and how many there are to the highest."""
    reads = _first_reads(axis)
    return min(reads), max(reads) - min(reads) + 1


def _first_reads(axis: Axis) -> list[int]:
    """The pixel that each tap of the first destination pixel of each phase reads."""
    positions = (axis.origin + phase + axis.step * tap for phase in range(axis.divisor) for tap in range(axis.taps))
    return [position // axis.divisor for position in positions if position % axis.divisor == 0]


def share_inside(axis: Axis, extent: int) -> float:
    """How many of the taps that pixels use, of all phases together, lie inside a source of ``extent`` pixels."""
    firsts = _first_reads(axis)
    ends = [(min(ceiling_divide(extent - first, axis.stride), axis.size), -(first // axis.stride)) for first in firsts]
    inside = sum(max(0, end - max(begin, 0)) for end, begin in ends)
    return inside / max(len(firsts) * axis.size, 1)


def most_windows(span: int, stride: int, pixels: int) -> int:
    """How many windows along one axis can be computed from so many pixels."""
    return max(0, (pixels - span) // stride + 1)


def _with_sizes(geometry: ConvolutionGeometry, is_gradient: bool) -> tuple[tuple[WindowAxis, int], ...]:
    """The window along x and y, each with the size of the destination."""
    return tuple(zip(geometry.axes, geometry.ends(is_gradient)[1][4:6], strict=True))


def axes_in_order(geometry: ConvolutionGeometry, is_gradient: bool) -> tuple[Axis, Axis]:
    """The gather along x and y, with the taps in the order of the user."""
    (x, width), (y, height) = _with_sizes(geometry, is_gradient)
    return _axis_in_order(x, is_gradient, width), _axis_in_order(y, is_gradient, height)


def _axis_in_order(axis: WindowAxis, is_gradient: bool, size: int) -> Axis:
    taps, stride, dilation, origin = axis
    if not is_gradient:
        return Axis(size, taps, stride, origin, dilation, 1, 1, 1, 0, 0)
    return Axis(ceiling_divide(size, stride), taps, 1, -origin, -dilation, stride, 1, 1, 0, 0)


def plain_axes(geometry: ConvolutionGeometry, is_gradient: bool) -> tuple[Axis, Axis]:
    """The gather along x and y, with the taps in the order of source pixels where the stride is 1."""
    (x, width), (y, height) = _with_sizes(geometry, is_gradient)
    return _plain_axis(x, is_gradient, width), _plain_axis(y, is_gradient, height)


def _plain_axis(axis: WindowAxis, is_gradient: bool, size: int) -> Axis:
    taps, stride, dilation, origin = axis
    if not is_gradient:
        return Axis(size, taps, stride, origin, dilation, 1, 1, dilation, 0, 0)
    if stride == 1:
        # The taps are reversed by the packing, so that they run forward through the source.
        extent = dilation * (taps - 1)
        return Axis(size, taps, 1, -origin - extent, dilation, 1, 1, -dilation, 0, extent)
    return Axis(ceiling_divide(size, stride), taps, 1, -origin, -dilation, stride, 1, dilation, 0, 0)


def folded_axes(geometry: ConvolutionGeometry, is_gradient: bool, folds: tuple[int, int]) -> tuple[Axis, Axis]:
    """The gather along x and y where so many neighbouring destination pixels are joined, which read one window."""
    (x, width), (y, height) = _with_sizes(geometry, is_gradient)
    return _folded_axis(x, is_gradient, width, folds[0]), _folded_axis(y, is_gradient, height, folds[1])


def _folded_axis(axis: WindowAxis, is_gradient: bool, size: int, fold: int) -> Axis:
    first, taps = _folded_taps(axis, is_gradient, fold)
    count = ceiling_divide(size, fold)
    if not is_gradient:
        return Axis(count, taps, axis.stride * fold, first, 1, 1, fold, 1, -axis.stride, first - axis.origin)
    shift = -axis.origin - axis.stride * first
    return Axis(count, taps, fold // axis.stride, first, 1, 1, fold, -axis.stride, 1, shift)


def _folded_taps(axis: WindowAxis, is_gradient: bool, fold: int) -> tuple[int, int]:
    """The first source pixel and the number of taps of the joined window of ``fold`` destination pixels."""
    taps, stride, dilation, origin = axis
    if not is_gradient:
        return origin, stride * (fold - 1) + dilation * (taps - 1) + 1
    reads = [
        (pixel - origin - dilation * tap) // stride
        for pixel in range(fold)
        for tap in range(taps)
        if (pixel - origin - dilation * tap) % stride == 0
    ]
    return (min(reads), max(reads) - min(reads) + 1) if reads else (0, 1)


def best_folds(geometry: ConvolutionGeometry, is_gradient: bool, lanes: int) -> tuple[int, int] | None:
    """How many neighbouring pixels along x and y to join in the lanes, or None if joining does not pay.

    The measure is how many taps ``lanes`` lanes multiply for each destination pixel.
    """
    x, y = geometry.axes
    *_, width, height, channels, _ = geometry.ends(is_gradient)[1]
    multiple_x, multiple_y = (x.stride, y.stride) if is_gradient else (1, 1)
    best, fewest = None, 0.9 * (geometry.taps / (multiple_x * multiple_y))
    largest = lanes // (channels // geometry.groups)
    for fold_y in range(multiple_y, min(largest, height + multiple_y) + 1, multiple_y):
        taps_y = _folded_taps(y, is_gradient, fold_y)[1]
        for fold_x in range(multiple_x, min(largest // fold_y, width + multiple_x) + 1, multiple_x):
            taps = taps_y * _folded_taps(x, is_gradient, fold_x)[1] / (fold_y * fold_x)
            if taps < fewest - 1e-9:
                best, fewest = (fold_x, fold_y), taps
    return best
