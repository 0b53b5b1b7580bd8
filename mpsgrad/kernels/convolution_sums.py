"""Sums over any order of axes that convolutions need besides their kernels: of arrays, and of the pixels of images."""

from __future__ import annotations

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry, in_one_row
from mpsgrad.kernels.pointwise import Layout
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

FEW_OUTPUTS = 4
"""So few output channels are not worth a tile, which would have 64."""
FEWEST_PIXELS = 4096

PARAMETERS = ParameterStruct(
    "AdditionParameters",
    source=STRIDES,
    addend=STRIDES,
    parts=STRIDES,
    destination=STRIDES,
    extents=EXTENTS,
    reduced=REDUCED,
    scale="float",
)
FAMILY = strided_family("convolution_transpose", (PARAMETERS,))


def add_sum(
    command_buffer: CommandBuffer,
    metal_type: str,
    source: tuple[Buffer, View],
    addend: tuple[Buffer, View],
    destination: tuple[Buffer, View],
    extents: tuple[int, int, int, int],
) -> None:
    """Writes ``source + addend``, numbers of ``metal_type`` and float32, over the axes of ``extents``."""
    operands = {"source": source, "addend": addend, "destination": destination}
    add_elementwise(command_buffer, FAMILY, PARAMETERS, "add", metal_type, operands, extents)


def add_zeros(command_buffer: CommandBuffer, metal_type: str, buffer: Buffer, layout: Layout) -> None:
    """Writes 0 to an image, or a part of one, of ``metal_type``."""
    zero, (*_, width, height, channels, images) = zeros(command_buffer.device), layout
    extents = (channels, width, height, images)
    add_sum(command_buffer, metal_type, zero, zero, (buffer, View.of(layout)), extents)


def _add_reduced(
    command_buffer: CommandBuffer,
    metal_type: str,
    name: str,
    sources: dict[str, tuple[Buffer, View]],
    extents: tuple[int, int, int, int],
    kept: tuple[bool, bool, bool, bool],
    sums: Buffer,
    accumulates: bool,
) -> None:
    """Writes ``sums``, dense float32 numbers over the axes that are ``kept``, or adds to them."""
    strides, count = [], 1
    for extent, keeps in zip(extents, kept, strict=True):
        strides.append(count if keeps else 0)
        count *= extent if keeps else 1
    found = command_buffer.scratch(4 * count) if accumulates else sums
    view = View(0, (strides[0], strides[1], strides[2], strides[3]))
    operands = {**sources, "destination": (found, view)}
    add_reduction(
        command_buffer, FAMILY, PARAMETERS, name, metal_type, operands, extents, kept, merge="sum_parts", scale=1.0
    )
    if accumulates:
        _add_to(command_buffer, found, sums, count)


def _add_to(command_buffer: CommandBuffer, found: Buffer, sums: Buffer, count: int) -> None:
    """Adds ``count`` float32 numbers to those in ``sums``."""
    dense = View(0, (1, 0, 0, 0))
    add_sum(command_buffer, "float", (found, dense), (sums, dense), (sums, dense), (count, 1, 1, 1))


def add_sum_of_parts(
    command_buffer: CommandBuffer,
    parts: tuple[Buffer, View],
    sums: tuple[Buffer, View],
    extents: tuple[int, int, int, int],
    accumulates: bool,
) -> None:
    """Adds up ``parts``, float32 numbers, along the last of the axes; ``sums`` has no gaps. Only for GPUs."""
    count, kept = extents[0] * extents[1] * extents[2], (True, True, True, False)
    found = command_buffer.scratch(4 * count) if accumulates else sums[0]
    operands = {"parts": parts, "destination": (found, sums[1])}
    add_reduction(
        command_buffer, FAMILY, PARAMETERS, "sum_parts", "float", operands, extents, kept, merge="sum_parts", scale=1.0
    )
    if accumulates:
        _add_to(command_buffer, found, sums[0], count)


def add_sums_of_pixels(
    command_buffer: CommandBuffer, metal_type: str, image: tuple[Buffer, Layout], sums: Buffer, accumulates: bool
) -> None:
    """The sum of each channel of ``image`` over the pixels of all images."""
    buffer, layout = image
    *_, width, height, channels, images = layout
    extents, kept = (channels, width, height, images), (True, False, False, False)
    sources = {"source": (buffer, View.of(layout))}
    _add_reduced(command_buffer, metal_type, "sum", sources, extents, kept, sums, accumulates)


def has_few_outputs(geometry: ConvolutionGeometry) -> bool:
    """Whether ``add_products_of_pixels`` gives the gradient for weights, and faster than tiles."""
    return (
        geometry.groups == 1
        and (*geometry.window[:4], *geometry.window[6:]) == (1, 1, 1, 1, 0, 0)
        and geometry.source[4:6] == geometry.result[4:6]
        and 0 < geometry.outputs <= FEW_OUTPUTS
        and geometry.pixels >= FEWEST_PIXELS
        and geometry.in_one_row() is not None
    )


def add_products_of_pixels(
    command_buffer: CommandBuffer,
    metal_type: str,
    gradient: tuple[Buffer, Layout],
    source: tuple[Buffer, Layout],
    sums: Buffer,
    accumulates: bool,
) -> None:
    """``sums[o][c]``: the products of two channels over all pixels, which are evenly spaced. Only for GPUs."""
    row_of_gradients, row_of_sources = in_one_row(gradient[1]), in_one_row(source[1])
    assert row_of_gradients is not None and row_of_sources is not None
    first, step, *_, outputs, _ = row_of_gradients
    start, pixel, _, _, pixels, _, channels, _ = row_of_sources
    sources = {
        "source": (source[0], View(start, (1, 0, pixel, 0))),
        "addend": (gradient[0], View(first, (0, 1, step, 0))),
    }
    extents, kept = (channels, outputs, pixels, 1), (True, True, False, False)
    _add_reduced(command_buffer, metal_type, "product", sources, extents, kept, sums, accumulates)
