"""The parts into which a result is divided where threads copy the part of the source that each of them reads."""

from __future__ import annotations

from typing import NamedTuple

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernels.convolution_axis import Axis


class Parts(NamedTuple):
    """Parts of ``part_pixels`` x ``part_rows`` destination pixels, ``parts_x`` and ``parts_y`` of them in an image.

    Taps of a pixel read ``span`` pixels along an axis, from pixel ``lowest`` on.
    """

    part_pixels: int
    parts_x: int
    part_rows: int
    parts_y: int
    lowest_x: int
    span_x: int
    lowest_y: int
    span_y: int

    @classmethod
    def of(cls, x: Axis, y: Axis, part: tuple[int, int], reach_x: tuple[int, int], reach_y: tuple[int, int]) -> Parts:
        """Those of ``part`` pixels along x and y, with the lowest pixel and the span along each axis."""
        width, height = part
        return cls(width, ceiling_divide(x.size, width), height, ceiling_divide(y.size, height), *reach_x, *reach_y)

    @property
    def per_image(self) -> int:
        """How many parts an image has."""
        return self.parts_x * self.parts_y


PARTS = dict.fromkeys(Parts._fields, "int")
"""The fields of ``Parts``, for parameter structs."""
