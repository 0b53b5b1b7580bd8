"""Copies of whole pixels on CPUs, those of several images beside each other in one run of a kernel."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernels.strides import Axis, View, axes_of, filled, joined_axes, pixels_of_threads
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import tunables

MOST_SOURCES = 4
"""Of one run of the kernel."""
ELEMENTS_AT_ONCE = 4096
"""What a thread makes from one source before it comes to the next: a part of its nearest cache."""
BYTES_OF_PAIRS = (8, 16, 32, 64, 96)
"""On CPUs with few registers: so many of a pixel are copied without a loop from each of two sources. What is too much
the copies after it overwrite."""
LONG_RUNS = {"float": 40, "half": 128}
"""Where each source has so many elements of a pixel, these are made one after the other: memory is filled in order."""

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
    elements_of_pairs="int",
    pixels_after_pairs="int",
    are_long="int",
)
FAMILY = ShaderFamily(
    "copies_of_pixels",
    (PLACES, SOURCE, PARAMETERS),
    {"most_sources": MOST_SOURCES, "bytes_of_pairs": BYTES_OF_PAIRS},
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
    operands, numbers = len(views), tunables(device.tuning)
    pixels = joined_axes(axes_of((1, *extents), views)[1:])
    x, y, z = axes = filled(pixels, 3, operands)
    run = sum(source.run for source in sources)
    _, (chunks, pixels_of_thread, lines_of_thread, _), threads = pixels_of_threads(
        (Axis(run, (1,) * operands), *axes), device.compute_units, numbers
    )
    places = [(each.offset, *(axis.strides[k] for axis in axes)) for k, each in enumerate(views)]
    parameters: dict[str, tuple[int, ...] | int] = {f"source_{k}": (0,) * 6 for k in range(MOST_SOURCES)}
    first = 0
    for k, source in enumerate(sources):
        parameters[f"source_{k}"] = (*places[k], source.run, first)
        first += source.run
    elements_of_pairs, pixels_after_pairs = 0, 0
    if len(sources) == 2 and not numbers.has_many_registers:
        runs = sources[0].run, sources[1].run
        elements_of_pairs, pixels_after_pairs = _pairs(runs, x.strides, 2 if metal_type == "half" else 4)
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
        elements_of_pairs=elements_of_pairs,
        pixels_after_pairs=pixels_after_pairs,
        are_long=int(min(source.run for source in sources) >= LONG_RUNS[metal_type]),
    )
    function = FAMILY.function(device, "copy_pixels", metal_type)
    command_buffer.add_dispatch(function, threads, *buffers, buffer, device.constant_buffer(packed))


def _pairs(runs: tuple[int, int], strides: Sequence[int], element_bytes: int) -> tuple[int, int]:
    """How many elements of both sources are copied without a loop, for all pixels but so many at the end of a thread's.

    0 if that does not suit the ``runs``, or the sources do not fill the result. ``strides`` are those of the pixels of
    the sources and of the result.
    """
    fitting = [size // element_bytes for size in BYTES_OF_PAIRS if size >= max(runs) * element_bytes]
    if not fitting or strides[2] != sum(runs) or any(map(operator.lt, strides, runs)):
        return 0, 0
    elements = fitting[0]
    # What is read, and written, behind a pixel has to lie in the thread's own ones.
    behind = [(elements - runs[0], strides[0]), (elements - runs[1], strides[1]), (elements - runs[1], strides[2])]
    return elements, max(ceiling_divide(count, stride) for count, stride in behind)
