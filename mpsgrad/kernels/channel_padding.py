"""Copies of images with whole vectors of channels in each pixel, for kernels of GPUs that read vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer
from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT
from mpsgrad.kernels.divisor import DIVISOR, divisor
from mpsgrad.kernels.pointwise import Layout, values_of_vector
from mpsgrad.shader import ParameterStruct, ShaderFamily

THREADS = 128
WIDTHS = {"half": ((4, "uint2"), (2, "uint"), (1, "half")), "float": ((2, "float2"), (1, "float"))}
"""How many channels may be read at a time, and the Metal type of as many, the best first."""
PADDING_TIME, BYTES_PER_UNIT = 4.0, 32e3
"""The microseconds that a copy takes besides those for its bytes, of which a busy compute unit moves so many in one.
Measured on an H200."""
TIME_WITHOUT_VECTORS = 1.5
"""Products of images that are read value by value take about so many times as long as is said. Measured, too."""

PARAMETERS = ParameterStruct(
    "ChannelPaddingParameters",
    source=IMAGE_LAYOUT,
    first_vector="int",
    vectors="int",
    vectors_of_pixel="int",
    by_vectors_of_pixel=DIVISOR,
    by_width=DIVISOR,
    by_height=DIVISOR,
)
FAMILY = ShaderFamily(
    "channel_padding",
    (IMAGE_LAYOUT, DIVISOR, PARAMETERS),
    {"threads": THREADS, "widths_of_types": WIDTHS},
    ahead_of_time=False,
)


class Padding(NamedTuple):
    """A copy of the image of a Metal type that ``source`` describes, from value ``start`` of the workspace on."""

    source: Layout
    metal_type: str
    start: int = 0

    @property
    def channels(self) -> int:
        """Those of a pixel of the copy."""
        vector = values_of_vector(self.metal_type)
        return ceiling_divide(self.source[6], vector) * vector

    @property
    def value_bytes(self) -> int:
        """Of one value."""
        return 16 // values_of_vector(self.metal_type)

    @property
    def destination(self) -> Layout:
        """Where the copy lies in its buffer."""
        *_, width, height, _, images = self.source
        row = width * self.channels
        return self.start, self.channels, row, height * row, width, height, self.channels, images

    @property
    def values(self) -> int:
        """How many the copy has."""
        return math.prod(self.destination[4:])

    def time(self, compute_units: int) -> float:
        """The microseconds that it takes."""
        nbytes = self.value_bytes * (self.values + math.prod(self.source[4:]))
        return PADDING_TIME + nbytes / (BYTES_PER_UNIT * compute_units)


def add_paddings(
    command_buffer: CommandBuffer, images: Sequence[Buffer], paddings: Sequence[Padding | None]
) -> list[Buffer]:
    """Adds a copy of each of ``images`` that has a padding; returns what is to be read in their place."""
    made = [padding for padding in paddings if padding is not None]
    if not made:
        return list(images)
    copies = command_buffer.workspace(max(each.value_bytes * (each.start + each.values) for each in made))
    for image, padding in zip(images, paddings, strict=True):
        if padding is not None:
            _add_copy(command_buffer, padding, image, copies)
    return [copies if padding is not None else image for image, padding in zip(images, paddings, strict=True)]


def _add_copy(command_buffer: CommandBuffer, padding: Padding, image: Buffer, copies: Buffer) -> None:
    device, source, vector = command_buffer.device, padding.source, values_of_vector(padding.metal_type)
    widths = (count for count, _ in WIDTHS[padding.metal_type])
    width = next(count for count in widths if all(value % count == 0 for value in (*source[:4], source[6])))
    vectors, vectors_of_pixel = padding.values // vector, padding.channels // vector
    parameters = PARAMETERS.pack(
        source=source,
        first_vector=padding.start // vector,
        vectors=vectors,
        vectors_of_pixel=vectors_of_pixel,
        by_vectors_of_pixel=divisor(vectors_of_pixel),
        by_width=divisor(source[4]),
        by_height=divisor(source[5]),
    )
    command_buffer.add_dispatch(
        FAMILY.function(device, f"pad_channels_by_{width}", padding.metal_type),
        ceiling_divide(vectors, THREADS),
        image,
        copies,
        device.constant_buffer(parameters),
    )
