"""Layouts for kernels without a window: element by element, with what lies outside the sources cut off beforehand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from mpsgrad.geometry import EdgeMode
from mpsgrad.shader import IMAGE_LAYOUT, ParameterStruct
from mpsgrad.state import ForwardSnapshot
from mpsgrad.tunables import Tunables

Layout = tuple[int, ...]
"""The fields of ``ImageLayout``: first element, strides of pixel, row and image, width, height, channels, images."""


def dense_layout(width: int, height: int, channels: int, images: int) -> Layout:
    """That of images whose elements follow each other from the first one of a buffer on."""
    row = channels * width
    return (0, channels, row, row * height, width, height, channels, images)


ASSUMED_COMPUTE_UNITS = 40
"""Of a device that does not tell: as many as a large Apple GPU has cores."""
THREADGROUPS_OF_CLUSTER = 8
"""Of NVIDIA GPUs, at most on all that have clusters."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A source of a pointwise kernel: destination pixel ``(x, y)`` takes its pixel ``(x + dx, y + dy)``.

    Outside the source the nearest pixel is taken if it ``clamps``, and 0 otherwise.
    """

    layout: Layout
    dx: int = 0
    dy: int = 0
    clamps: bool = False

    def covers(self, width: int, height: int) -> bool:
        """Whether each pixel of a destination of ``width`` x ``height`` has one in the source."""
        return (
            self.dx >= 0
            and self.dy >= 0
            and self.dx + width <= self.layout[4]
            and self.dy + height <= self.layout[5]
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the destination, and for each operand the part that belongs to it; None stands for zeros.

    All layouts have the extents of the destination's.
    """

    destination: Layout
    operands: tuple[Layout | None, ...]


@lru_cache(maxsize=512)
def pieces(destination: Layout, operands: tuple[Operand, ...]) -> tuple[Piece, ...]:
    """``destination`` cut into rectangles in each of which every operand lies wholly inside or outside its source."""
    start, pixel, row, image, width, height, channels, images = destination
    if all(operand.covers(width, height) for operand in operands):
        columns: Sequence[int] = (0, width)
        rows: Sequence[int] = (0, height)
    else:
        columns = _cuts(width, [(operand.dx, operand.layout[4]) for operand in operands])
        rows = _cuts(height, [(operand.dy, operand.layout[5]) for operand in operands])
    found = []
    for top, bottom in pairwise(rows):
        for left, right in pairwise(columns):
            extents = (right - left, bottom - top, channels, images)
            part = (start + top * row + left * pixel, pixel, row, image, *extents)
            found.append(Piece(part, tuple(_part(operand, left, top, *extents) for operand in operands)))
    return tuple(found)


def _cuts(length: int, axes: list[tuple[int, int]]) -> list[int]:
    inner = {min(max(cut, 0), length) for shift, size in axes for cut in (-shift, size - shift)}
    return sorted({0, length} | inner)


def _part(operand: Operand, left: int, top: int, width: int, height: int, channels: int, images: int) -> Layout | None:
    start, pixel, row, image, source_width, source_height, _, _ = operand.layout
    x, y = left + operand.dx, top + operand.dy
    inside_x, inside_y = 0 <= x < source_width, 0 <= y < source_height
    if not (inside_x and inside_y) and not operand.clamps:
        return None
    x, y = min(max(x, 0), source_width - 1), min(max(y, 0), source_height - 1)
    strides = (pixel if inside_x else 0, row if inside_y else 0, image)
    return (start + y * row + x * pixel, *strides, width, height, channels, images)


def merge_pixels(layouts: Sequence[Layout]) -> list[Layout]:
    """Layouts of equal extents with rows, and then images, joined where they follow each other in all of them."""
    _, _, _, _, width, height, channels, images = layouts[0]
    if height > 1 and all(row == width * pixel for _, pixel, row, *_ in layouts):
        width, height = width * height, 1
    if height == 1 and images > 1 and all(image == width * pixel for _, pixel, _, image, *_ in layouts):
        width, images = width * images, 1
    return [(start, pixel, row, image, width, height, channels, images) for start, pixel, row, image, *_ in layouts]


def merge_channels(layouts: Sequence[Layout]) -> list[Layout]:
    """``merge_pixels``, and then the pixels of a row made channels of one pixel where they follow each other."""
    merged = merge_pixels(layouts)
    _, _, _, _, width, height, channels, images = merged[0]
    if any(pixel != channels for _, pixel, *_ in merged):
        return merged
    return [(start, 0, row, image, 1, height, channels * width, images) for start, _, row, image, *_ in merged]


def values_of_vector(metal_type: str) -> int:
    """How many elements a thread of a GPU loads at once: 16 bytes."""
    return 8 if metal_type == "half" else 4


def is_run_of_vectors(layouts: Sequence[Layout], values: int) -> bool:
    """Whether layouts from ``merge_channels`` are one run of elements each that begins at a vector of ``values``."""
    _, _, _, _, width, height, _, images = layouts[0]
    return width == height == images == 1 and all(start % values == 0 for start, *_ in layouts)


def is_run_of_eights(layouts: Sequence[Layout]) -> bool:
    """Whether they are one run each of eight elements at least, as threads of CPUs take."""
    return layouts[0][6] >= 8 and is_run_of_vectors(layouts, 1)


VECTORS = {8: "eights", 16: "sixteens"}
"""How the names of functions of CPUs end whose threads take so many elements at a time."""
THREADS_OF_EIGHTS = 32
"""Of the threadgroups of the kernels that take eights."""
THREADGROUPS_OF_EIGHTS_PER_UNIT = 4
"""As far as there are elements for them: every core is to have work."""
FEWEST_ELEMENTS_OF_THREADGROUP = 8192
"""Of a CPU: to wake another thread takes as long as exponentials of so many, and longer than all else."""
ELEMENTS_OF_LINE = 16
"""Of a CPU's caches. Results are written past these where they fill whole lines."""
WHOLE_LINES = 64
"""Elements: shares of so many begin at a cache line where the first does."""


def elements_per_threadgroup(count: int, compute_units: int, numbers: Tunables) -> int:
    """How many of ``count`` elements that follow each other a threadgroup of a CPU has, in whole lines of its caches.

    Of several threadgroups each core has as many.
    """
    units = max(1, compute_units)
    threadgroups = max(1, min(count // FEWEST_ELEMENTS_OF_THREADGROUP, THREADGROUPS_OF_EIGHTS_PER_UNIT * units))
    if threadgroups > units:
        threadgroups -= threadgroups % units
    return _whole_lines(min(-(-count // threadgroups), numbers.stream_elements))


def elements_per_thread(count: int, compute_units: int, numbers: Tunables) -> int:
    """The same for a thread of ``THREADS_OF_EIGHTS``."""
    return _whole_lines(-(-elements_per_threadgroup(count, compute_units, numbers) // THREADS_OF_EIGHTS))


def _whole_lines(elements: int) -> int:
    return -(-elements // WHOLE_LINES) * WHOLE_LINES


def rows_per_thread(rows: int, channels: int, compute_units: int, numbers: Tunables) -> int:
    """How many of ``rows`` of so many channels a thread of a CPU owns that is a threadgroup of its own."""
    share = -(-rows // (THREADGROUPS_OF_EIGHTS_PER_UNIT * max(1, compute_units)))
    most = numbers.stream_elements // channels
    return max(1, min(max(share, FEWEST_ELEMENTS_OF_THREADGROUP // channels), most))


def are_lines(*elements: int) -> bool:
    """Whether so many elements are whole cache lines, each number of them."""
    return not any(number % ELEMENTS_OF_LINE for number in elements)


def bytes_of_floats(*layouts: Layout) -> int:
    """What images with these layouts take together."""
    return 4 * sum(math.prod(layout[4:]) for layout in layouts)


def exceeds_caches(layout: Layout, images: int, numbers: Tunables) -> bool:
    """Whether so many ``images`` of floats with the extents of ``layout`` are more than caches keep."""
    return images * bytes_of_floats(layout) > numbers.cached_bytes


def exceed_caches_of_passes(layouts: Sequence[Layout], numbers: Tunables) -> bool:
    """Whether images of floats with these ``layouts`` are more than caches keep of what is read again."""
    return bytes_of_floats(*layouts) > numbers.cached_bytes_of_passes


CHUNKED_ROWS: dict[str, str | ParameterStruct] = {
    "gradient": IMAGE_LAYOUT,
    "source": IMAGE_LAYOUT,
    "destination": IMAGE_LAYOUT,
    "gradient_tail": "int",
    "source_tail": "int",
    "destination_tail": "int",
    "rows": "int",
    "rows_per_chunk": "int",
    "chunks": "int",
    "tail": "int",
}
"""The fields of ``ChunkedRows.parameters``, for the parameter structs of kernels that work on rows."""

FEWEST_CHUNKS = 16
"""As far as there are rows for them: every core is to have work."""


@dataclass(frozen=True, slots=True)
class ChunkedRows:
    """Images of equal extents as rows of ``columns`` columns, cut into ``chunks`` for one simdgroup each.

    A row is a pixel, or several in a row; column ``w`` belongs to feature channel ``w % channels``. Pixels that are
    left over are the tail. ``parameters`` are the values of ``CHUNKED_ROWS``.
    """

    columns: int
    chunks: int
    parameters: dict[str, Any]

    @property
    def threads(self) -> int:
        """Enough to give each chunk a simdgroup."""
        return 32 * self.chunks


@lru_cache(maxsize=512)
def chunked_rows(
    names: tuple[str, ...],
    layouts: tuple[Layout, ...],
    pixels_per_row: int,
    numbers: Tunables,
    adds_up: bool = True,
    fewest_chunks: int = FEWEST_CHUNKS,
) -> ChunkedRows:
    """``layouts``, called ``names`` in the parameters, as rows of up to ``pixels_per_row`` pixels each.

    Rows have one pixel unless pixels follow each other in all images. Each chunk leaves a partial sum if the kernel
    ``adds_up``, and there are not too many of them; and not fewer than ``fewest_chunks``, as far as there are rows.
    """
    elements = numbers.chunk_elements if adds_up else numbers.stream_elements
    merged = merge_pixels(layouts)
    _, _, _, _, width, height, channels, images = merged[0]
    fold = 1
    if height == images == 1 and all(pixel == channels for _, pixel, *_ in merged):
        fold = min(pixels_per_row, width)
    length, columns = width // fold, channels * fold
    rows = length * height * images
    rows_per_chunk = max(1, min(elements // columns, -(-rows // fewest_chunks)))
    if adds_up:
        rows_per_chunk = max(rows_per_chunk, -(-rows // numbers.most_chunks))
    chunks = -(-rows // rows_per_chunk)
    folded = {}
    for name, (start, pixel, row, image, *_) in zip(names, merged, strict=True):
        layout = (start, pixel * fold, row, image, length, height, columns, images)
        folded[name] = (layout, start + length * fold * pixel)
    parameters: dict[str, Any] = {"rows": rows, "rows_per_chunk": rows_per_chunk, "chunks": chunks}
    parameters["tail"] = width % fold * channels
    for name in ("gradient", "source", "destination"):
        parameters[name], parameters[f"{name}_tail"] = folded.get(name, folded["source"])
    return ChunkedRows(columns, chunks, parameters)


def summing_pixels_per_row(channels: int) -> int:
    """So many that a row has up to 32 columns, one for each lane."""
    return max(1, 32 // channels)


def require_no_clamped_reads(owner: str, snapshot: ForwardSnapshot, axes: Sequence[str] = ("x", "y")) -> None:
    """Raises ``NotImplementedError`` if a pointwise forward kernel repeated edge pixels, which gradients leave out.

    ``axes`` are those along which it took one pixel after the other.
    """
    if snapshot.edge_mode is not EdgeMode.CLAMP:
        return
    origin, size = snapshot.clip_rect
    for axis, offset, first, extent, destination, source in (
        ("x", snapshot.offset.x, origin.x, size.width, snapshot.destination.width, snapshot.source.width),
        ("y", snapshot.offset.y, origin.y, size.height, snapshot.destination.height, snapshot.source.height),
    ):
        length = min(extent, destination - first)
        if axis in axes and (offset < 0 or offset + length > source):
            raise NotImplementedError(
                f"{owner}: the forward kernel read pixels {offset} to {offset + length} along {axis} of a source with "
                f"{source} with EdgeMode.CLAMP; the gradient of repeated edge pixels is not supported"
            )
