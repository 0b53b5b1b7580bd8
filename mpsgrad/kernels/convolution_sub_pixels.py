"""Sub-pixel convolution: the result's feature channels spread over blocks of pixels."""

from __future__ import annotations

from collections.abc import Callable

from mpsgrad.command import CommandBuffer
from mpsgrad.kernels.convolution_dispatch import ImagePart
from mpsgrad.kernels.convolution_sums import add_sum
from mpsgrad.kernels.strides import View, zeros


def add_sub_pixels(
    command_buffer: CommandBuffer,
    destination: ImagePart,
    factor: int,
    metal_type: str,
    add_convolution: Callable[[ImagePart], None],
) -> None:
    """Adds ``add_convolution`` to scratch memory, and then the spread of what it leaves there over ``destination``.

    Pixel ``(x, y)`` takes the channels of block ``factor * (y % factor) + x % factor`` of pixel ``(x / factor, y /
    factor)``.
    """
    start, pixel, row, image, width, height, channels, images = destination.layout
    columns, rows, all_channels = -(-width // factor), -(-height // factor), channels * factor * factor
    strides = (all_channels, columns * all_channels, rows * columns * all_channels)
    scratch = command_buffer.scratch(strides[2] * images * (2 if metal_type == "half" else 4))
    add_convolution(ImagePart(scratch, (0, *strides, columns, rows, all_channels, images)))
    addend = zeros(command_buffer.device)
    # Where the pixels of a block's row follow each other in the destination too, they are one run.
    run = factor if pixel == channels and width % factor == 0 else 1
    if run == factor and height % factor == 0 and (images == 1 or image == height * row):
        part = View(start, (1, factor * pixel, row, factor * row))
        block = View(0, (1, all_channels, run * channels, strides[1]))
        extents = (run * channels, columns, factor, rows * images)
        add_sum(command_buffer, metal_type, (scratch, block), addend, (destination.buffer, part), extents)
        return
    for y in range(min(factor, height)):
        for x in range(0, min(factor, width), run):
            part = View(start + y * row + x * pixel, (1, factor * pixel, factor * row, image))
            block = View(channels * (factor * y + x), (1, *strides))
            extents = (run * channels, -(-(width - x) // factor), -(-(height - y) // factor), images)
            add_sum(command_buffer, metal_type, (scratch, block), addend, (destination.buffer, part), extents)
