"""How threadgroups of GPUs share the rows and channels of images that are normalized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpsgrad.kernels.batch_normalization_families import THREADS, VECTORS
from mpsgrad.kernels.pointwise import Layout, values_of_vector

NARROWEST_TILE, WIDEST_TILE, WHOLE_ROW = 32, 256, 512
"""Bytes of a row that a threadgroup reads, where there are so many: what memory delivers at once, and what is ample.
Kernels that add up nothing take rows of so many whole, which else were two tiles. Measured on an H200."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """How threadgroups share the rows and channels of images: ``tiles`` of ``across`` vectors of ``width`` channels
    next to each other, ``row_lanes`` rows at once, and ``splits`` of the rows."""

    width: int
    across: int
    row_lanes: int
    tiles: int
    splits: int


def tile_of(nbytes: int, channels: int, width: int, element_bytes: int) -> tuple[int, int, int]:
    """``across``, ``row_lanes`` and ``tiles`` of tiles of about ``nbytes`` of a row."""
    vectors = channels // width
    tiles = -(-vectors // max(1, nbytes // (width * element_bytes)))
    across = -(-vectors // tiles)
    return across, THREADS // across, tiles


def vector_of(layouts: Sequence[Layout], channels: int, metal_type: str) -> tuple[int, int]:
    """How many channels a thread loads at once, one if the layouts do not allow more, and the bytes of each."""
    width = values_of_vector(metal_type)
    if any(number % width for layout in layouts for number in (channels, *layout[:4])):
        width = 1
    return width, 2 if metal_type == "half" else 4


def widest_of(layouts: Sequence[Layout], channels: int, metal_type: str) -> int:
    """How many channels a thread may load at once that can take parts of vectors, too."""
    width = values_of_vector(metal_type)
    while any(number % width for layout in layouts for number in (channels, *layout[:4])):
        width //= 2
    return width


def rows_of(layout: Layout) -> int:
    """How many pixels there are."""
    _, _, _, _, width, height, _, images = layout
    return width * height * images


def tile_parameters(
    tiles: Tiles, rows: int, rows_of_a_thread: int, layouts: dict[str, Layout]
) -> tuple[dict[str, Any], int]:
    """The values of ``TILES`` that follow from the images, and the number of blocks of rows."""
    block_rows = tiles.row_lanes * rows_of_a_thread
    blocks = -(-rows // block_rows)
    values: dict[str, Any] = {
        name: layouts.get(name, layouts["source"]) for name in ("gradient", "source", "destination")
    }
    values |= {"rows": rows, "across": tiles.across, "row_lanes": tiles.row_lanes, "tiles": tiles.tiles}
    values |= {"splits": tiles.splits, "block_rows": block_rows, "blocks": blocks}
    return values, blocks


def variant(function_name: str, tiles: Tiles) -> str:
    """The name of the function for vectors, or for single channels."""
    return function_name + (VECTORS if tiles.width > 1 else "")
