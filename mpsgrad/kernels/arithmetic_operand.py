"""Sources of arithmetic kernels that are spread along axes."""

from __future__ import annotations

from mpsgrad.geometry import Offset
from mpsgrad.kernels.pointwise import Layout, Operand


def spread_operand(
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


def channels_and_extents(layout: Layout) -> tuple[int, int, int, int]:
    """Channels, width, height and images."""
    return layout[6], layout[4], layout[5], layout[7]
