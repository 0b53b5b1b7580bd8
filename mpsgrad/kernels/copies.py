"""Copies of parts of images: what slices, reshaped images, concatenations and other kernels move elements by."""

from __future__ import annotations

from functools import lru_cache

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.image import Image
from mpsgrad.kernels.copies_of_pixels import CopiedPixels, add_copies_of_pixels, can_copy_pixels
from mpsgrad.kernels.pad_dispatch import add_surrounded
from mpsgrad.kernels.pointwise import Layout, Operand, bytes_of_floats, pieces
from mpsgrad.kernels.strides import (
    EXTENTS,
    STRIDES,
    View,
    Work,
    add_work,
    axes_of,
    elementwise_on,
    filled,
    joined_axes,
    strided_family,
    zeros,
)
from mpsgrad.shader import ParameterStruct
from mpsgrad.tunables import tunables

PARAMETERS = ParameterStruct("CopiesParameters", source=STRIDES, destination=STRIDES, extents=EXTENTS)
FAMILY = strided_family("copies", (PARAMETERS,))


def add_copy(
    command_buffer: CommandBuffer,
    metal_type: str,
    source: tuple[Buffer, View],
    destination: tuple[Buffer, View],
    extents: tuple[int, int, int, int],
    elements_beside: int = 0,
) -> None:
    """Copies the elements of ``source`` at ``extents``, channels first, to ``destination``.

    ``elements_beside`` is how many are read and written by what makes the rest of the same images.
    """
    if metal_type == "half" and command_buffer.device.family == "cpu":
        size, views, extents = _joined_halves((source[1], destination[1]), extents)
        metal_type = "half" if size == 1 else "float"
        source, destination = (source[0], views[0]), (destination[0], views[1])
        elements_beside //= size
    operands = {"source": source, "destination": destination}
    work = elementwise_on(command_buffer.device, metal_type, operands, extents, elements_beside=elements_beside)
    if _takes_pixels(command_buffer.device, work, source[1], destination[1], extents):
        copied = [CopiedPixels(*source, extents[0])]
        add_copies_of_pixels(command_buffer, metal_type, copied, destination, extents[1:])
        return
    buffers = source[0], destination[0]
    add_work(command_buffer, FAMILY, PARAMETERS, f"copy_by_{work.walk}", metal_type, buffers, work, {})


@lru_cache(maxsize=512)
def _joined_halves(
    given: tuple[View, View], extents: tuple[int, int, int, int]
) -> tuple[int, tuple[View, View], tuple[int, int, int, int]]:
    """How many halves are one element of the same copy in runs that are as long as possible, and its views and extents.

    CPUs move as many floats at a time as halves, so that pairs of these are copied as floats where there are no others.
    """
    run, *others = filled(joined_axes(axes_of(extents, given), 1), 4, 2)
    if run.strides != (1, 1):
        return 1, given, extents
    starts = [view.offset for view in given]
    for axis in others:
        starts += axis.strides if axis.extent > 1 else ()
    size = 1 if any(number % 2 for number in (run.extent, *starts)) else 2
    x, y, z = others
    source, destination = (
        View(view.offset // size, (1, x.strides[k] // size, y.strides[k] // size, z.strides[k] // size))
        for k, view in enumerate(given)
    )
    return size, (source, destination), (run.extent // size, x.extent, y.extent, z.extent)


def _takes_pixels(
    device: Device, work: Work, source: View, destination: View, extents: tuple[int, int, int, int]
) -> bool:
    """Whether pixels are copied one by one that ``work`` would copy: they do not follow each other everywhere."""
    channels = extents[0]
    are_joined = channels == 1 or source.strides[1] == destination.strides[1] == channels
    if source.strides[0] != 1 or (are_joined and work.walk != "pixels"):
        return False
    return can_copy_pixels(device, channels) and not work.exceeds_caches


def add_copy_of_image(
    command_buffer: CommandBuffer, source: Image, destination: Image, source_index: int, destination_index: int
) -> None:
    """Copies one image of ``source`` to the place of one of ``destination``, of the same size and format."""
    views = []
    for image, index in ((source, source_index), (destination, destination_index)):
        start, pixel, row, step, *_ = image.layout
        views.append((image.buffer, View(start + index * step, (1, pixel, row, step))))
    extents = (source.feature_channels, source.width, source.height, 1)
    add_copy(command_buffer, source.channel_format.metal_type, views[0], views[1], extents)


def add_pieces(
    command_buffer: CommandBuffer, destination: Image, layout: Layout, source: Image, part: Operand
) -> None:
    """Copies ``part`` of ``source`` to ``layout`` of ``destination``, and zeros to what lies outside it."""
    found_pieces, device = pieces(layout, (part,)), command_buffer.device
    # Copies write past the caches of CPUs what these do not hold.
    goes_past_caches = device.family == "cpu" and 2 * bytes_of_floats(layout) > tunables(device.tuning).streamed_bytes
    if len(found_pieces) > 1 and not goes_past_caches:
        add_surrounded(
            command_buffer, source, part.layout, destination, layout, first_pixel=(part.dx, part.dy)
        )
        return
    for piece in found_pieces:
        (found,) = piece.operands
        read = zeros(device) if found is None else (source.buffer, View.of(found))
        _, _, _, _, width, height, channels, images = piece.destination
        target = (destination.buffer, View.of(piece.destination))
        metal_type = destination.channel_format.metal_type
        add_copy(command_buffer, metal_type, read, target, (channels, width, height, images))
