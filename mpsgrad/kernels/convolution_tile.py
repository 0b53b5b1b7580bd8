"""The tiles in which the matrices of a convolution are multiplied: a small closed set for each family of devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

Kind = Literal["gather", "weights", "planes"]
"""A convolution or its data gradient: rows are destination pixels, columns destination channels. The weight gradient:
rows are output channels, columns the weights of one of them. Or either by Winograd's method, in planes: rows are tiles
or output channels, columns channels."""

STEPS_AT_ENDS = 3
"""A threadgroup's work before the first step and after the last takes as long as so many steps."""


class Tile(NamedTuple):
    """What a threadgroup owns, and for ``depth`` products at a time; a simdgroup owns a part of it.

    ``speed`` is the rate of its products on a busy GPU, that of the fastest tile without stages being 1. A compute
    unit runs ``resident`` threadgroups at a time. With ``stages`` as many copies of the tile are in threadgroup memory,
    which are made while one is multiplied, without registers, and only of aligned images; 0 is without. Simdgroups that
    own 16 rows and all columns multiply them in place, four of them together, where values outside the source are 0;
    the products of the last ``overlap`` tiles go on while the next tile is waited for.
    """

    rows: int
    columns: int
    depth: int
    simd_rows: int
    simd_columns: int
    speed: float
    resident: int
    stages: int = 0
    overlap: int = 0

    @property
    def in_place(self) -> bool:
        """Whether simdgroups multiply a tile where it lies in threadgroup memory."""
        return self.stages > 0 and self.simd_rows == 16

    @property
    def name(self) -> str:
        name = f"{self.rows}x{self.columns}x{self.depth}" + (f"x{self.stages}" if self.stages else "")
        return f"{name}_in_place" + (f"_{self.overlap}" if self.overlap else "") if self.in_place else name

    @property
    def constants(self) -> dict[str, Any]:
        """What the templates call it. Lanes lie in a grid of 8 columns, or of 4 if a simdgroup owns few columns."""
        lane_columns = 4 if self.simd_columns == 32 else 8
        return {
            "tile": self.name,
            "stages": self.stages,
            "in_place": self.in_place,
            "overlap": self.overlap,
            "ahead": self.stages - 1 - self.overlap,
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
    """How a family of devices multiplies: its tiles by kind and Metal type of the images, and what it takes.

    A compute unit does ``products`` a microsecond with the fastest tile for images of a Metal type, but a step of depth
    takes at least ``latency`` microseconds. Several splits of the products, each of ``fewest_steps`` or more, take
    ``sum_time`` microseconds more, and ``value_time`` for each partial sum. A device whose driver does not say how many
    compute units it has is taken to have ``units_unless_known``.
    """

    tiles: Mapping[tuple[Kind, str], tuple[Tile, ...]]
    products: Mapping[str, float]
    latency: float
    sum_time: float
    value_time: float
    fewest_steps: int = 4
    units_unless_known: int = 16

    def step_time(self, tile: Tile, metal_type: str, threadgroups: int, *, is_aligned: bool = True) -> float:
        """The microseconds in which ``threadgroups`` of a compute unit do one step each.

        A last round of few threadgroups takes as long as the others: they do not end together. Unless the images are
        aligned, their values are read one by one.
        """
        latency = self.latency if is_aligned else 1.5 * self.latency
        alone = tile.rows * tile.columns * tile.depth / (tile.speed * self.products[metal_type])
        rounds = math.ceil(threadgroups / tile.resident)
        return rounds * math.hypot(min(threadgroups, tile.resident) * alone, latency)

    def divided(
        self,
        kind: Kind,
        metal_type: str,
        tile_count: Callable[[Tile], int],
        run_length: int,
        values: int,
        units: int,
        *,
        runs: int = 1,
        is_aligned: bool = True,
        has_zeros_outside: bool = True,
    ) -> tuple[Tile, int]:
        """The tile, and the splits of the products, for which ``values`` sums of ``runs * run_length`` take least time.

        ``tile_count`` is the number of tiles that cover the sums.
        """
        units = units or self.units_unless_known
        tiles = [
            tile
            for tile in self.tiles[kind, metal_type]
            if (is_aligned or not tile.stages) and (has_zeros_outside or not tile.in_place)
        ]

        def time(tile: Tile, splits: int) -> float:
            steps = STEPS_AT_ENDS + math.ceil(runs * math.ceil(run_length / tile.depth) / splits)
            threadgroups = math.ceil(tile_count(tile) * splits / units)
            step_time = self.step_time(tile, metal_type, threadgroups, is_aligned=is_aligned)
            return steps * step_time + (self.sum_time + splits * values * self.value_time if splits > 1 else 0)

        def choices(tile: Tile) -> set[int]:
            most = max(runs * math.ceil(run_length / tile.depth) // self.fewest_steps, 1)
            # The threadgroups of a weight gradient, which has many more pixels than sums, can all be there at once.
            step = tile.resident if kind == "weights" else 1
            filling = (share * units // tile_count(tile) for share in range(step, 4 * tile.resident + 1, step))
            return {1} | {min(splits, most) for splits in filling if splits}

        return min(
            ((tile, splits) for tile in tiles for splits in sorted(choices(tile))),
            key=lambda choice: time(*choice),
        )


_SMALL_WEIGHTS_TILE = Tile(64, 64, 16, 32, 64, 0.95, 6)

_GPU = Tiling(
    {
        ("gather", "float"): (
            Tile(128, 64, 16, 32, 64, 1.0, 2),
            Tile(128, 64, 8, 32, 64, 0.95, 3),
            Tile(256, 32, 8, 64, 32, 0.8, 3),
            Tile(64, 64, 16, 32, 32, 0.92, 4),
            Tile(64, 32, 16, 32, 32, 0.72, 6),
        ),
        ("gather", "half"): (
            Tile(128, 128, 16, 64, 64, 1.0, 2),
            Tile(128, 64, 32, 64, 32, 1.0, 3),
            Tile(256, 32, 16, 64, 32, 0.65, 2),
            Tile(64, 64, 32, 32, 32, 0.78, 4),
            Tile(64, 32, 32, 32, 16, 0.58, 5),
        ),
        ("weights", "float"): (Tile(128, 64, 8, 32, 64, 1.0, 3), _SMALL_WEIGHTS_TILE),
        ("weights", "half"): (Tile(128, 64, 32, 64, 32, 1.0, 3), Tile(64, 64, 32, 32, 32, 0.8, 4)),
        ("planes", "float"): (Tile(128, 64, 16, 32, 64, 1.0, 3), Tile(64, 64, 16, 32, 64, 0.98, 6)),
    },
    products={"float": 158e3, "half": 620e3},
    latency=0.35,
    sum_time=4.0,
    value_time=3.2e-6,
)
"""Measured on an H200."""

_NVIDIA = replace(
    _GPU,
    tiles={
        **_GPU.tiles,
        ("gather", "half"): (
            Tile(128, 128, 32, 64, 64, 1.94, 2, stages=2),
            Tile(128, 64, 32, 64, 64, 1.45, 4, stages=3),
            *_GPU.tiles["gather", "half"],
        ),
        ("weights", "half"): (
            Tile(128, 128, 32, 64, 64, 1.94, 2, stages=2),
            Tile(64, 128, 32, 32, 64, 1.88, 2, stages=3),
            *_GPU.tiles["weights", "half"],
        ),
    },
)
"""Measured on an H200. Copies that are made while a tile is multiplied take more memory than Apple GPUs have."""


def _in_place(rows: int, columns: int, stages: int, speed: float, resident: int, overlap: int = 0) -> Tile:
    return Tile(rows, columns, 64, 16, columns, speed, resident, stages, overlap)


_NVIDIA_9_0 = replace(
    _NVIDIA,
    tiles={
        **_NVIDIA.tiles,
        ("gather", "half"): (
            _in_place(192, 128, 3, 3.6, 1),
            _in_place(128, 128, 3, 3.6, 2),
            _in_place(128, 256, 4, 3.6, 1, overlap=1),
            _in_place(256, 128, 3, 3.4, 1),
            _in_place(128, 64, 3, 2.5, 3),
            _in_place(64, 128, 3, 2.9, 3),
            _in_place(64, 64, 4, 2.0, 3),
            *_NVIDIA.tiles["gather", "half"],
        ),
        ("weights", "half"): (
            _in_place(128, 256, 4, 2.4, 1, overlap=1),
            _in_place(128, 128, 3, 2.2, 2),
            _in_place(128, 128, 6, 2.15, 1, overlap=1),
            _in_place(64, 256, 2, 2.0, 2),
            _in_place(64, 128, 4, 1.7, 2),
            *_NVIDIA.tiles["weights", "half"],
        ),
    },
)
"""Measured on an H200."""

_CPU = Tiling(
    {
        ("gather", "float"): (Tile(64, 32, 8, 32, 32, 1.0, 4),),
        ("gather", "half"): (Tile(64, 32, 16, 32, 16, 1.0, 4),),
        ("weights", "float"): (_SMALL_WEIGHTS_TILE,),
        ("weights", "half"): (Tile(64, 32, 32, 32, 16, 1.0, 1),),
        ("planes", "float"): (Tile(64, 32, 8, 32, 32, 1.0, 1),),
    },
    products={"float": 1e9, "half": 1e9},
    latency=1.0,
    sum_time=0.0,
    value_time=0.0,
)
"""CPUs have a faster algorithm; on them tiles only show that they are right, with as many splits as there can be."""


def tiling(name: str) -> Tiling:
    """How the devices with that ``Device.tiling`` multiply."""
    return {"cpu": _CPU, "nvidia": _NVIDIA, "nvidia-9.0": _NVIDIA_9_0}.get(name, _GPU)


def all_tiles() -> set[tuple[Kind, str, Tile]]:
    """Each tile of any family of devices, with its kind and the Metal type of the images."""
    return {
        (kind, metal_type, tile)
        for one in (_GPU, _NVIDIA, _NVIDIA_9_0, _CPU)
        for (kind, metal_type), tiles in one.tiles.items()
        for tile in tiles
    }
