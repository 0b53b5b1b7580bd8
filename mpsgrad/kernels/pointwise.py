"""Layouts for kernels without a window: element by element, with what lies outside the sources cut off beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

Layout = tuple[int, ...]
"""The fields of ``ImageLayout``: first element, strides of pixel, row and image, width, height, channels, images."""


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


def pieces(destination: Layout, operands: Sequence[Operand]) -> Iterator[Piece]:
    """``destination`` cut into rectangles in each of which every operand lies wholly inside or outside its source."""
    start, pixel, row, image, width, height, channels, images = destination
    if all(operand.covers(width, height) for operand in operands):
        columns: Sequence[int] = (0, width)
        rows: Sequence[int] = (0, height)
    else:
        columns = _cuts(width, [(operand.dx, operand.layout[4]) for operand in operands])
        rows = _cuts(height, [(operand.dy, operand.layout[5]) for operand in operands])
    for top, bottom in pairwise(rows):
        for left, right in pairwise(columns):
            extents = (right - left, bottom - top, channels, images)
            yield Piece(
                (start + top * row + left * pixel, pixel, row, image, *extents),
                tuple(_part(operand, left, top, *extents) for operand in operands),
            )


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
    """Layouts of equal extents with rows joined to one, and then images, where they follow each other in all of them."""
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


@dataclass(frozen=True, slots=True)
class Rows:
    """Images of equal extents as ``rows`` rows of ``columns`` columns, and ``tail`` elements more behind the last row.

    A row is a pixel, or several in a row; column ``w`` belongs to feature channel ``w % channels``. ``tails`` are the
    indices of the first elements of the tails.
    """

    layouts: tuple[Layout, ...]
    tails: tuple[int, ...]
    rows: int
    columns: int
    tail: int


def rows_of(layouts: Sequence[Layout], pixels_per_row: int) -> Rows:
    """``layouts`` as rows of up to ``pixels_per_row`` pixels each, if these are contiguous in all images, else of one."""
    merged = merge_pixels(layouts)
    _, _, _, _, width, height, channels, images = merged[0]
    fold = 1
    if height == images == 1 and all(pixel == channels for _, pixel, *_ in merged):
        fold = min(pixels_per_row, width)
    length = width // fold
    columns = channels * fold
    return Rows(
        tuple((start, pixel * fold, row, image, length, height, columns, images)
              for start, pixel, row, image, *_ in merged),
        tuple(start + length * fold * pixel for start, pixel, *_ in merged),
        length * height * images,
        columns,
        width % fold * channels,
    )
