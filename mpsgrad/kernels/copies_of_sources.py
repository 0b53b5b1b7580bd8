"""Copies of whole pixels on GPUs, those of several images beside each other in one run of a kernel.

A run for each image would write the result in pieces, of which many begin and end within a line of a cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.kernels import strides
from mpsgrad.kernels.copies_of_pixels import MOST_SOURCES, CopiedPixels
from mpsgrad.kernels.divisor import DIVISOR, divisor
from mpsgrad.kernels.pointwise import values_of_vector
from mpsgrad.kernels.strides import THREADS, View
from mpsgrad.shader import ParameterStruct, ShaderFamily

PIXELS = ParameterStruct("SourcePixels", offset="int", stride="int", first="int")
"""The first element of an image's pixels, which are evenly spaced, and which channel of the result that is."""
PARAMETERS = ParameterStruct(
    "SourceCopiesParameters",
    **{f"source_{k}": PIXELS for k in range(MOST_SOURCES)},
    destination=PIXELS,
    elements="int",
    run="int",
    by_run=DIVISOR,
)
"""``run`` is that of all sources together, of which the result has so many ``elements``."""
FAMILY = ShaderFamily(
    "copies_of_sources",
    (PIXELS, DIVISOR, PARAMETERS),
    {
        "threads": THREADS,
        "counts": tuple(range(2, MOST_SOURCES + 1)),
        "walks": ("element", "element4", "element8", "flat4", "flat4_and_rest"),
    },
    ahead_of_time=False,
    device_families=("apple", "nvidia"),
)


def can_copy_sources(device: Device, count: int) -> bool:
    """Whether ``device`` has a kernel that copies so many sources."""
    return device.family != "cpu" and 2 <= count <= MOST_SOURCES


def add_copies_of_sources(
    command_buffer: CommandBuffer,
    metal_type: str,
    sources: Sequence[CopiedPixels],
    destination: tuple[Buffer, View],
    pixels: int,
) -> None:
    """Copies the channels of all ``sources`` to those of ``destination``, one source after the other."""
    device, (buffer, view) = command_buffer.device, destination
    runs, first = [source.run for source in sources], 0
    parameters: dict[str, tuple[int, ...]] = {f"source_{k}": (0,) * 3 for k in range(MOST_SOURCES)}
    for k, source in enumerate(sources):
        parameters[f"source_{k}"] = (source.view.offset, source.view.strides[1], first)
        first += source.run
    walk, owned = _walk_of(runs, [source.view for source in sources], view, pixels, values_of_vector(metal_type))
    packed = PARAMETERS.pack(
        **parameters,
        destination=(view.offset, view.strides[1], 0),
        elements=first * pixels,
        run=first,
        by_run=divisor(first),
    )
    function = FAMILY.function(device, f"copy_{len(sources)}_by_{walk}", metal_type)
    threadgroups = -(-first * pixels // (owned * function.threadgroup_size))
    buffers = [source.buffer for source in sources]
    command_buffer.add_dispatch(function, threadgroups, *buffers, buffer, device.constant_buffer(packed))


def _walk_of(
    runs: Sequence[int], sources: Sequence[View], destination: View, pixels: int, vector: int
) -> tuple[str, int]:
    """How the shader shares the work out, and how many elements a thread owns."""
    numbers = [*runs, *(number for view in (*sources, destination) for number in (view.offset, view.strides[1]))]
    for count in (vector, 4):
        if not any(number % count for number in numbers):
            return f"element{count}", count
    elements, is_dense = sum(runs) * pixels, destination.strides[1] == sum(runs)
    if elements >= strides.FEWEST_ELEMENTS_OF_FLAT and is_dense and destination.offset % 4 == 0:
        return "flat4_and_rest" if elements % 4 else "flat4", 4
    return "element", 1
