"""The geometry of a convolution: the images, the window that joins their pixels, and what follows from these."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from mpsgrad.kernels.pointwise import Layout

POINT: Layout = (1, 1, 1, 1, 1, 1, 0, 0)
"""The window of one pixel that takes each pixel of the source to the same one of the result."""


class WindowAxis(NamedTuple):
    """A window along one axis: the first tap of window ``i`` is at pixel ``origin + stride * i`` of the source."""

    taps: int
    stride: int
    dilation: int
    origin: int

    @property
    def extent(self) -> int:
        """The pixels from the first tap to the last one."""
        return self.dilation * (self.taps - 1) + 1


@dataclass(frozen=True, slots=True)
class ConvolutionGeometry:
    """What the windows of a convolution read and where their results lie; all that its plans follow from.

    Windows lie on ``source``, and ``result`` has a pixel for each of them; in the place of either may be its gradient.
    ``window`` has the fields of ``WINDOW``, with the origin counted from pixel 0 of ``source``. Outside of that there
    are zeros, or if it ``replicates`` the nearest pixel.
    """

    source: Layout
    result: Layout
    window: Layout
    groups: int = 1
    replicates: bool = False

    @property
    def axes(self) -> tuple[WindowAxis, WindowAxis]:
        """The window along x and along y."""
        width, height, stride_x, stride_y, dilation_x, dilation_y, origin_x, origin_y = self.window
        return WindowAxis(width, stride_x, dilation_x, origin_x), WindowAxis(height, stride_y, dilation_y, origin_y)

    @property
    def taps(self) -> int:
        """Pixels in a window."""
        return self.window[0] * self.window[1]

    @property
    def inputs(self) -> int:
        """Channels of the source."""
        return self.source[6]

    @property
    def outputs(self) -> int:
        """Channels of the result."""
        return self.result[6]

    @property
    def group_inputs(self) -> int:
        """Channels of the source in one group."""
        return self.source[6] // self.groups

    @property
    def group_outputs(self) -> int:
        """Channels of the result in one group."""
        return self.result[6] // self.groups

    @property
    def window_values(self) -> int:
        """How many values of the source, and weights, one value of the result is the sum of."""
        return self.taps * self.group_inputs

    @property
    def weights_count(self) -> int:
        """How many weights there are."""
        return self.outputs * self.window_values

    @property
    def pixels(self) -> int:
        """Pixels of the result, in all images."""
        return self.result[4] * self.result[5] * self.result[7]

    @property
    def is_depthwise(self) -> bool:
        """Whether each group has one channel of either image, and there are several."""
        return self.groups == self.inputs == self.outputs > 1

    @property
    def is_pointwise(self) -> bool:
        """Whether each value of the result is a sum over channels of the same pixel of the source.

        Nothing is between the taps where there is one, whatever the dilation.
        """
        return (*self.window[:4], *self.window[6:]) == (*POINT[:4], *POINT[6:]) and self.source[4:6] == self.result[4:6]

    def without_stride(self) -> ConvolutionGeometry | None:
        """The pointwise one of the source's pixels that are read, where windows have one pixel and jump over others."""
        start, pixel, row, image, width, height, *others = self.source
        (x, y), (columns, rows) = self.axes, self.result[4:6]
        if self.taps > 1 or x.stride * y.stride == 1 or min(x.origin, y.origin) < 0:
            return None
        if (columns - 1) * x.stride + x.origin >= width or (rows - 1) * y.stride + y.origin >= height:
            return None
        first, steps = start + x.origin * pixel + y.origin * row, (pixel * x.stride, row * y.stride)
        read: Layout = (first, *steps, image, columns, rows, *others)
        return ConvolutionGeometry(read, self.result, POINT, self.groups)

    @property
    def is_fully_connected(self) -> bool:
        """Whether the one window is the whole source."""
        return (
            self.groups == 1
            and self.result[4:6] == (1, 1)
            and self.source[4:6] == self.window[:2]
            and self.window[4:] == (1, 1, 0, 0)
        )

    def ends(self, is_gradient: bool) -> tuple[Layout, Layout]:
        """What a gather reads and what it writes: the source and the result, or for a data gradient the opposite."""
        return (self.result, self.source) if is_gradient else (self.source, self.result)

    def reaches_outside(self, first_pixel: tuple[int, int], size: tuple[int, ...]) -> bool:
        """Whether a window reads outside an image of ``size``, where pixel 0 of the source is pixel ``first_pixel``."""
        for axis, count, first, extent in zip(self.axes, self.result[4:6], first_pixel, size, strict=True):
            start = axis.origin + first
            last = start + axis.stride * (count - 1) + axis.extent - 1
            if count and (start < 0 or last >= extent):
                return True
        return False

    def with_long_pixels(self) -> ConvolutionGeometry | None:
        """A fully connected one as a window of one pixel with all values of its image; None if it cannot be that."""
        source = as_long_pixels(self.source) if self.is_fully_connected else None
        return None if source is None else replace(self, source=source, window=POINT, replicates=False)

    def with_joined_columns(self) -> ConvolutionGeometry | None:
        """One whose pixels have the values of a row of taps, where such rows lie side by side; None if it has others.

        Weights are the same, for the taps of a row follow each other there, too.
        """
        start, pixel, row, image, width, height, channels, images = self.source
        x, columns = self.axes[0], self.result[4]
        if self.groups > 1 or self.replicates or pixel != channels or (x.dilation, x.origin) != (1, 0):
            return None
        if x.taps == 1 or x.taps != x.stride or width != columns * x.taps:
            return None
        joined = channels * x.taps
        source: Layout = (start, joined, row, image, columns, height, joined, images)
        _, taps_y, _, stride_y, _, dilation_y, _, origin_y = self.window
        return replace(self, source=source, window=(1, taps_y, 1, stride_y, 1, dilation_y, 0, origin_y))

    def in_one_row(self) -> ConvolutionGeometry | None:
        """A pointwise one with both images as one row, or None if the pixels of one are not evenly spaced."""
        source, result = in_one_row(self.source), in_one_row(self.result)
        return None if source is None or result is None else replace(self, source=source, result=result)


def in_one_row(layout: Layout) -> Layout | None:
    """``layout`` as one row of one image, or None if its pixels are not evenly spaced."""
    offset, pixel, row, image, width, height, channels, images = layout
    steps = [(count, step) for count, step in ((width, pixel), (height, row), (images, image)) if count != 1]
    if any(outer != count * step for (count, step), (_, outer) in pairwise(steps)):
        return None
    step = steps[0][1] if steps else channels
    total = width * height * images
    return offset, step, step * total, step * total, total, 1, channels, 1


def as_long_pixels(layout: Layout) -> Layout | None:
    """Each image of ``layout`` as one pixel with all its values, or None if these are not contiguous."""
    offset, pixel, row, image, width, height, channels, images = layout
    if (pixel != channels and width * height > 1) or (row != width * channels and height > 1):
        return None
    return offset, image, image, image, 1, 1, width * height * channels, images
