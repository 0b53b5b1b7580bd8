"""Copies of whole pixels on CPUs, those of several images beside each other in one run of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.kernels.strides import Axis, View, axes_of, filled, joined_axes, pixels_of_threads
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import tunables

MOST_SOURCES = 4
"""Of one run of the kernel."""
ELEMENTS_AT_ONCE = 4096
"""What a thread makes from one source before it comes to the next: a part of its nearest cache."""

PLACES = ParameterStruct("PixelPlaces", offset="int", x="int", y="int", z="int")
"""The first element of an image, and the strides of its pixels, rows and images."""
SOURCE = ParameterStruct("PixelSource", places=PLACES, run="int", first="int")
"""Of each pixel ``run`` elements are copied, to those of the result's pixel from ``first`` on."""
PARAMETERS = ParameterStruct(
    "PixelCopiesParameters",
    **{f"source_{k}": SOURCE for k in range(MOST_SOURCES)},
    destination=PLACES,
    width="int",
    height="int",
    lines="int",
    chunks="int",
    pixels_of_thread="int",
    lines_of_thread="int",
    pixels_at_once="int",
)
FAMILY = ShaderFamily(
    "copies_of_pixels",
    (PLACES, SOURCE, PARAMETERS),
    {"most_sources": MOST_SOURCES},
    ahead_of_time=False,
    device_families=("cpu",),
)


@dataclass(frozen=True, slots=True)
class CopiedPixels:
    """The first ``run`` channels of each pixel of an image, which follow each other."""

    buffer: Buffer
    view: View
    run: int


def can_copy_pixels(device: Device, channels: int) -> bool:
    """Whether ``device`` has the kernel, and its threads, of at least eight pixels each, suit so many ``channels``."""
    return device.family == "cpu" and 8 * channels <= tunables(device.tuning).stream_elements


def add_copies_of_pixels(
    command_buffer: CommandBuffer,
    metal_type: str,
    sources: Sequence[CopiedPixels],
    destination: tuple[Buffer, View],
    extents: tuple[int, int, int],
) -> None:
    """Copies the channels of all ``sources`` to those of ``destination``, one source after the other.

    ``extents`` are width, height and images of all of them.
    """
    buffer, view = destination
    for index in range(0, len(sources), MOST_SOURCES):
        some = sources[index : index + MOST_SOURCES]
        _add(command_buffer, metal_type, some, buffer, view, extents)
        view = View(view.offset + sum(source.run for source in some), view.strides)


def _add(
    command_buffer: CommandBuffer,
    metal_type: str,
    sources: Sequence[CopiedPixels],
    buffer: Buffer,
    view: View,
    extents: tuple[int, int, int],
) -> None:
    device, views = command_buffer.device, [*(source.view for source in sources), view]
    operands = len(views)
    pixels = joined_axes(axes_of((1, *extents), views)[1:])
    x, y, z = axes = filled(pixels, 3, operands)
    run = sum(source.run for source in sources)
    _, (chunks, pixels_of_thread, lines_of_thread, _), threads = pixels_of_threads(
        (Axis(run, (1,) * operands), *axes), device.compute_units, tunables(device.tuning)
    )
    places = [(each.offset, *(axis.strides[k] for axis in axes)) for k, each in enumerate(views)]
    parameters: dict[str, tuple[int, ...] | int] = {f"source_{k}": (0,) * 6 for k in range(MOST_SOURCES)}
    first = 0
    for k, source in enumerate(sources):
        parameters[f"source_{k}"] = (*places[k], source.run, first)
        first += source.run
    buffers = [source.buffer for source in sources]
    buffers += buffers[:1] * (MOST_SOURCES - len(buffers))
    packed = PARAMETERS.pack(
        **parameters,
        destination=places[-1],
        width=x.extent,
        height=y.extent,
        lines=y.extent * z.extent,
        chunks=chunks,
        pixels_of_thread=pixels_of_thread,
        lines_of_thread=lines_of_thread,
        pixels_at_once=-(-ELEMENTS_AT_ONCE // run),
    )
    function = FAMILY.function(device, "copy_pixels", metal_type)
    command_buffer.add_dispatch(function, threads, *buffers, buffer, device.constant_buffer(packed))
