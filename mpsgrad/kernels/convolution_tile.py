"""The tiles in which the matrices of a convolution are multiplied: a small closed set for each family of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["gather", "weights"]
"""A convolution or its data gradient: rows are destination pixels, columns destination channels. Or the weight
gradient: rows are output channels, columns the weights of one of them."""


class Tile(NamedTuple):
    """What a threadgroup owns, and for ``depth`` products at a time; a simdgroup owns a part of it.

    ``speed`` is the rate of its products on a busy GPU, that of the fastest tile being 1. A compute unit runs
    ``resident`` threadgroups at a time.
    """

    rows: int
    columns: int
    depth: int
    simd_rows: int
    simd_columns: int
    speed: float
    resident: int

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def time(self) -> float:
        """What a threadgroup takes for one step of depth, in products of the fastest tile."""
        return self.rows * self.columns / self.speed

    @property
    def constants(self) -> dict[str, int]:
        """What the templates call it. Lanes lie in a grid of 8 columns, or of 4 if a simdgroup owns few columns."""
        lane_columns = 4 if self.simd_columns == 32 else 8
        return {
            "rows": self.rows,
            "columns": self.columns,
            "depth": self.depth,
            "simd_rows": self.simd_rows,
            "simd_columns": self.simd_columns,
            "threads": self.rows * self.columns // (self.simd_rows * self.simd_columns) * 32,
            "simdgroup_columns": self.columns // self.simd_columns,
            "lane_rows": 32 // lane_columns,
            "lane_columns": lane_columns,
            "thread_rows": self.simd_rows * lane_columns // 32,
            "thread_columns": self.simd_columns // lane_columns,
        }


@dataclass(frozen=True)
class Tiling:
    """How a family of devices multiplies: its tiles by kind and Metal type of the images.

    The pixels of a weight gradient are split so that threadgroups fill a device at most ``rounds`` times, but not into
    splits of less than ``pixels_per_split``. ``units_unless_known`` are the compute units of a device whose driver does
    not say how many it has.
    """

    tiles: Mapping[tuple[Kind, str], tuple[Tile, ...]]
    rounds: int = 4
    pixels_per_split: int = 256
    units_unless_known: int = 16


_SMALL_WEIGHTS_TILE = Tile(64, 64, 16, 32, 64, 0.95, 6)

_GPU = Tiling(
    {
        ("gather", "float"): (Tile(128, 64, 8, 32, 64, 1.0, 3), Tile(256, 32, 8, 64, 32, 0.8, 2)),
        ("gather", "half"): (
            Tile(128, 128, 16, 64, 64, 1.0, 2),
            Tile(256, 64, 16, 64, 64, 0.85, 2),
            Tile(256, 32, 16, 64, 32, 0.6, 2),
        ),
        ("weights", "float"): (Tile(128, 64, 8, 32, 64, 1.0, 3), _SMALL_WEIGHTS_TILE),
        ("weights", "half"): (Tile(128, 64, 32, 64, 32, 1.0, 3), Tile(64, 64, 32, 32, 32, 0.8, 4)),
    }
)
"""Measured on an H200."""

_CPU = Tiling(
    {
        ("gather", "float"): (Tile(64, 32, 8, 32, 32, 1.0, 1),),
        ("gather", "half"): (Tile(64, 32, 16, 32, 16, 1.0, 1),),
        ("weights", "float"): (_SMALL_WEIGHTS_TILE,),
        ("weights", "half"): (Tile(64, 32, 32, 32, 16, 1.0, 1),),
    },
    rounds=1,
    pixels_per_split=64,
)
"""CPUs have a faster algorithm; on them tiles only show that they are right."""


def tiling(device_family: str) -> Tiling:
    """How devices of a family multiply."""
    return _CPU if device_family == "cpu" else _GPU


def all_tiles() -> set[tuple[Kind, str, Tile]]:
    """Each tile of any family of devices, with its kind and the Metal type of the images."""
    return {
        (kind, metal_type, tile)
        for one in (_GPU, _CPU)
        for (kind, metal_type), tiles in one.tiles.items()
        for tile in tiles
    }
