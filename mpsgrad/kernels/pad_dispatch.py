"""How pixels around an image are dispatched: one run that finds out for each element what it copies."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.geometry import EdgeMode, ceiling_divide
from mpsgrad.image import Image
from mpsgrad.kernel import IMAGE_LAYOUT
from mpsgrad.kernels.divisor import DIVISOR
from mpsgrad.kernels.pointwise import values_of_vector
from mpsgrad.kernels.walk import (
    CONSTANTS_WITH_PAIRS,
    CPU_CONSTANTS,
    DIVISORS,
    Layout,
    divisors_of,
    runs_of,
    threads_of,
    walk_of,
)
from mpsgrad.shader import ParameterStruct, ShaderFamily

AXIS = ParameterStruct("PadAxis", start="int", size="int", first="int")
"""Output 0 lies at ``start`` in a source of ``size`` elements; a gradient kernel writes from element ``first`` on."""
PARAMETERS = ParameterStruct(
    "PadParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    x=AXIS,
    y=AXIS,
    channels=AXIS,
    edge_mode="int",
    lines_of_thread="int",
    **DIVISORS,
)
"""A gradient's ``source`` is the incoming gradient. The divisors are of the threads of a pixel, and of pixels."""
MIRRORS = EdgeMode.MIRROR, EdgeMode.MIRROR_WITH_EDGE
"""To find the outputs of a pixel of these takes so long that a thread of a GPU does it for eight halves at once."""
FAMILY = ShaderFamily(
    "pad",
    (IMAGE_LAYOUT, AXIS, DIVISOR, PARAMETERS),
    {
        **CONSTANTS_WITH_PAIRS,
        "pad_walks": (*CONSTANTS_WITH_PAIRS["walks"], "elements"),
        "modes": {mode.name.lower(): int(mode) for mode in EdgeMode},
        "by_runs": False,
        "has_flat": True,
    },
    {"cpu": {**CPU_CONSTANTS, "pad_walks": CPU_CONSTANTS["walks"], "by_runs": True, "has_flat": False}},
    ahead_of_time=False,
)


FEWEST_PIXELS_OF_FLAT, FEWEST_PIXELS_OF_FLAT_GRADIENTS = 1 << 19, 1 << 21
"""Of images of one channel of which threads of GPUs own 16 bytes each. Measured on an H200."""


def _is_flat(device: Device, name: str, source: Layout, destination: Layout, vector: int) -> bool:
    """Whether threads of ``device`` own ``vector`` pixels of one channel, wherever lines end, in the place of one."""
    start, pixel, row, image, width, height, channels, images = destination
    follow = source[1] == pixel == channels == 1 and row == width and (images == 1 or image == height * row)
    fewest = FEWEST_PIXELS_OF_FLAT_GRADIENTS if name else FEWEST_PIXELS_OF_FLAT
    is_large = width * height * images >= fewest
    return device.family != "cpu" and follow and is_large and start % vector == 0 and width >= vector


def add_dispatch(
    command_buffer: CommandBuffer,
    name: str,
    metal_type: str,
    buffers: Sequence[Buffer],
    source: Layout,
    destination: Layout,
    axes: tuple[tuple[int, int, int], ...],
    edge_mode: EdgeMode,
) -> None:
    """One run of ``name``; ``axes`` are the values of ``AXIS`` for x, y and the channels."""
    device = command_buffer.device
    start, size, _ = axes[2]
    pads_channels = start != 0 or size != max(source[6], destination[6])
    is_pixel = not pads_channels
    walk = walk_of(
        device,
        (destination, source),
        has_element4=is_pixel,
        has_element2=is_pixel,
        has_elements=is_pixel,
        has_element8=is_pixel and metal_type == "half" and (not name or edge_mode in MIRRORS),
    )
    threads, lines_of_thread, divisors = threads_of(walk, destination), 1, divisors_of(walk, destination)
    vector = values_of_vector(metal_type)
    if is_pixel and _is_flat(device, name, source, destination, vector):
        walk, threads = "flat", ceiling_divide(math.prod(destination[4:]), vector)
    runs = None if pads_channels else runs_of(device, source, destination)
    if runs is not None:
        walk, (threads, lines_of_thread) = "runs", runs
    middle = "_channels" if pads_channels else ""
    function = FAMILY.function(device, f"pad{middle}{name}_by_{walk}", metal_type)
    parameters = PARAMETERS.pack(
        source=source,
        destination=destination,
        x=axes[0],
        y=axes[1],
        channels=axes[2],
        edge_mode=int(edge_mode),
        lines_of_thread=lines_of_thread,
        **divisors,
    )
    command_buffer.add_dispatch(
        function,
        -(-threads // function.threadgroup_size),
        *buffers,
        device.constant_buffer(parameters),
    )


def add_surrounded(
    command_buffer: CommandBuffer,
    source: Image,
    read: Layout,
    destination: Image,
    written: Layout,
    *,
    first_pixel: tuple[int, int],
) -> None:
    """Adds a copy of ``read`` to ``written``, with zeros outside the source. Channels are as many.

    Pixel 0 of ``written`` takes ``first_pixel`` (x, y) of ``read``.
    """
    zeros = command_buffer.device.constant_buffer(bytes(4 * written[6]))
    axes = (first_pixel[0], read[4], 0), (first_pixel[1], read[5], 0), (0, written[6], 0)
    buffers = source.buffer, zeros, destination.buffer
    metal_type = destination.channel_format.metal_type
    add_dispatch(command_buffer, "", metal_type, buffers, read, written, axes, EdgeMode.ZERO)
