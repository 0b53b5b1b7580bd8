"""How the elements of an image are shared out over threads: the host's part of ``shaders/lib/walks.metal.j2``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mpsgrad.devices import Device
from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernels.divisor import DIVISOR, divisor
from mpsgrad.kernels.pointwise import Layout

CONSTANTS: dict[str, Any] = {"threads": 128, "walks": ("element", "element4")}
CONSTANTS_WITH_PAIRS: dict[str, Any] = {"threads": 128, "walks": ("element", "element2", "element4")}
CPU_CONSTANTS: dict[str, Any] = {"threads": 256, "walks": ("row", "short_pixels")}
CPU_CONSTANTS_WITH_LINES: dict[str, Any] = {"threads": 256, "walks": ("row", "short_pixels", "line")}
CPU_CONSTANTS_WITH_EIGHTS: dict[str, Any] = {"threads": 256, "walks": ("row", "eights", "channels")}
"""What a template that uses the walks takes, where two channels at a time pay, too, and the tunables of CPUs: of three
kinds for fewer than 32 channels."""


def works_by_rows(device: Device) -> bool:
    """Whether a simdgroup of ``device`` owns a whole row of pixels, as suits CPUs, or each thread its own elements."""
    return device.family == "cpu"


def walk_of(
    device: Device,
    layouts: Sequence[Layout],
    *,
    has_element4: bool = True,
    has_element2: bool = False,
    has_eights: bool | None = None,
    has_line: bool = False,
    has_elements: bool = False,
    has_element8: bool = False,
) -> str:
    """Which of the shaders' ways to share out the work suits ``device`` and images of these layouts.

    ``has_element8``, ``has_element4``, ``has_element2``, ``has_eights``, ``has_line`` and ``has_elements`` say whether
    the kernel has these forms; ``has_eights`` is None where the template has the walk of short pixels instead.
    """
    channels = layouts[0][6]
    if works_by_rows(device):
        if channels >= 32:
            return "row"
        if has_line and all(pixel == channels for _, pixel, *_ in layouts):
            return "line"
        if has_eights is None:
            return "short_pixels"
        return "eights" if has_eights and channels >= 8 else "channels"
    has_element8 = has_element8 and math.prod(layouts[0][4:]) >= 8 * FEWEST_THREADS_OF_EIGHTS
    for count, has in ((8, has_element8), (4, has_element4), (2, has_element2)):
        if has and all(value % count == 0 for layout in layouts for value in (*layout[:4], layout[6])):
            return f"element{count}"
    are_many = math.prod(layouts[0][4:]) >= FEWEST_THREADS_BY_TURNS
    return "elements" if has_elements and are_many and channels >= FEWEST_CHANNELS_BY_TURNS else "element"


def channels_of_thread(walk: str) -> int:
    """How many channels of a pixel a thread of a GPU owns in a ``walk`` by elements, or at most owns."""
    return {"element8": 8, "element4": 4, "element2": 2, "elements": 4}.get(walk, 1)


def threads_of_pixel(walk: str, channels: int) -> int:
    """How many threads of a GPU share a pixel of so many ``channels`` in a ``walk`` by elements."""
    return ceiling_divide(channels, channels_of_thread(walk))


def threads_of(walk: str, layout: Layout, width: int | None = None, height: int | None = None) -> int:
    """How many threads a ``walk`` over ``layout`` takes; ``width`` and ``height`` are those of blocks of its pixels."""
    *_, columns, lines, channels, images = layout
    if width is not None and height is not None:
        columns, lines = width, height
    if "element" not in walk:
        return (32 if walk in ("row", "short_pixels", "line") else 1) * lines * images
    return columns * lines * images * threads_of_pixel(walk, channels)


DIVISORS: dict[str, Any] = {"by_channels": DIVISOR, "by_width": DIVISOR, "by_height": DIVISOR}
"""The parameters that walks by elements divide by: the threads of a pixel, and the pixels, or blocks of these, along x
and y."""
_NO_DIVISORS = dict.fromkeys(DIVISORS, divisor(1))


def divisors_of(walk: str, layout: Layout, width: int | None = None, height: int | None = None) -> dict[str, Any]:
    """``DIVISORS`` of a ``walk`` over ``layout``; ``width`` and ``height`` are those of blocks of its pixels."""
    if "element" not in walk:
        return _NO_DIVISORS
    *_, columns, lines, channels, _ = layout
    if width is not None and height is not None:
        columns, lines = width, height
    divided = threads_of_pixel(walk, channels), columns, lines
    return dict(zip(DIVISORS, map(divisor, divided), strict=True))


THREADS_OF_LINES_PER_UNIT = 8
"""Of a CPU, whose threads own some lines of pixels that follow each other: every core is to have work."""


def runs_of(device: Device, source: Layout, destination: Layout) -> tuple[int, int] | None:
    """The threads of the walk ``runs`` over ``destination``, and how many lines each owns.

    None unless ``device`` works by rows and pixels follow each other.
    """
    follow = all(pixel == channels for _, pixel, _, _, _, _, channels, _ in (source, destination))
    return shares_of_lines(device, destination) if works_by_rows(device) and follow else None


def shares_of_lines(device: Device, destination: Layout) -> tuple[int, int]:
    """How many threads of a CPU share the lines of pixels of ``destination``, and how many each owns."""
    lines = destination[5] * destination[7]
    lines_of_thread = ceiling_divide(lines, THREADS_OF_LINES_PER_UNIT * max(1, device.compute_units))
    return ceiling_divide(lines, lines_of_thread), lines_of_thread


FEWEST_THREADS_BY_TURNS, TURNS = 1 << 18, 4
"""So many threads of single elements keep a GPU busy; where there are more, each takes so many elements in turn."""
FEWEST_THREADS_OF_EIGHTS = 1 << 17
"""Fewer threads of a GPU do not take eight channels each."""
FEWEST_CHANNELS_BY_TURNS = 3
"""Of pixels of which a thread takes several channels in turn."""


def turns_of(walk: str, threads: int) -> tuple[int, int]:
    """How many threads do the work of ``threads`` in a ``walk`` that takes turns, and how many elements each owns."""
    if walk != "element" or threads < FEWEST_THREADS_BY_TURNS:
        return threads, 1
    return ceiling_divide(threads, TURNS), TURNS
