"""The tiles in which the matrices of a convolution are multiplied: a small closed set for each family of devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from mpsgrad.image_descriptor import LARGEST_ELEMENT_COUNT

Kind = Literal["gather", "weights", "planes", "gram", "gram_gradient"]
"""A convolution or its data gradient: rows are destination pixels, columns destination channels. The weight gradient:
rows are output channels, columns the weights of one of them. Or either by Winograd's method, in planes: rows are tiles
or output channels, columns channels. Gram matrices, whose rows and columns are channels, on one side of the diagonal.
Or their gradient: rows are pixels, columns channels, and two products are one."""

KINDS_OF_ANY_WIDTH: tuple[Kind, ...] = "gram", "gram_gradient"
"""Their tiles are copied in stages from any images."""


class Tile(NamedTuple):
    """What a threadgroup owns, and for ``depth`` products at a time; a simdgroup owns a part of it.

    ``speed`` is the rate of its products on a busy GPU, that of the fastest tile without stages being 1. A compute
    unit runs ``resident`` threadgroups at a time. With ``stages`` as many copies of the tile are in threadgroup memory,
    which are made while one is multiplied, without registers, and only of aligned images; 0 is without. Simdgroups that
    own 16 rows and all columns multiply them in place, four of them together, where values outside the source are 0;
    the products of the last ``overlap`` tiles go on while the next tile is waited for.

    With ``weight_stages``, which are ``stages`` or more, a threadgroup has one tile after the other, and copies are
    made while results are stored; weights of no more steps are copied once. Without splits only.
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
    weight_stages: int = 0

    @property
    def in_place(self) -> bool:
        """Whether simdgroups multiply a tile where it lies in threadgroup memory."""
        return self.stages > 0 and self.simd_rows == 16

    @property
    def name(self) -> str:
        name = f"{self.rows}x{self.columns}x{self.depth}" + (f"x{self.stages}" if self.stages else "")
        if self.in_place:
            name += "_in_place" + (f"_{self.overlap}" if self.overlap else "")
        return name + (f"_{self.weight_stages}_of_weights" if self.weight_stages else "")

    @property
    def threads(self) -> int:
        return self.rows * self.columns // (self.simd_rows * self.simd_columns) * 32

    @property
    def needs_vectors(self) -> bool:
        """Whether only aligned images are copied: by stages, or by fewer threads than there are columns."""
        return self.stages > 0 or self.columns > self.threads

    @property
    def copies_of_thread(self) -> float:
        """How many values a thread copies to threadgroup memory in a step."""
        return self.depth * (self.rows + self.columns) / self.threads

    @property
    def constants(self) -> dict[str, Any]:
        """What the templates call it. Lanes lie in a grid of 8 columns, or of 4 if a simdgroup owns fewer than rows; of
        fewer if it does not own as many channels for each of these."""
        lane_columns = 4 if self.simd_columns <= min(self.simd_rows, 32) else 8
        while self.simd_columns % (4 * lane_columns):
            lane_columns //= 2
        return {
            "tile": self.name,
            "stages": self.stages,
            "in_place": self.in_place,
            "overlap": self.overlap,
            "ahead": self.stages - 1 - self.overlap,
            "weight_stages": self.weight_stages,
            "rows": self.rows,
            "columns": self.columns,
            "depth": self.depth,
            "simd_rows": self.simd_rows,
            "simd_columns": self.simd_columns,
            "threads": self.threads,
            "simdgroup_columns": self.columns // self.simd_columns,
            "lane_rows": 32 // lane_columns,
            "lane_columns": lane_columns,
            "thread_rows": self.simd_rows * lane_columns // 32,
            "thread_columns": self.simd_columns // lane_columns,
        }


class Costs(NamedTuple):
    """Times in microseconds that are no multiplications.

    A step of depth takes at least ``latency``, and ``copy_latency`` for each value that a thread copies in it, and
    ``unaligned`` times as long if values are read one by one. A threadgroup's work before the first step and after the
    last takes as long as ``steps_at_ends``. Several splits of the products, each of ``fewest_steps`` or more, take
    ``sum_time`` more, and each of them ``split_time`` and ``value_time`` for each of its sums. Results that are stored
    one by one take ``store_time`` for each of a thread, unless they were multiplied in place.
    """

    latency: float
    copy_latency: float
    unaligned: float
    steps_at_ends: float
    sum_time: float
    split_time: float
    value_time: float
    fewest_steps: int
    store_time: float = 0.0


@dataclass(frozen=True)
class Products:
    """What is to be multiplied: ``values`` sums of ``runs * run_length`` products, which ``tile_count`` tiles cover.

    Values are read one by one unless the images are aligned, and outside of them are zeros or other values. Results
    ``are_scattered`` if they are stored one by one. Sums that ``are_symmetric`` are computed in squares on one side of
    the diagonal, and a kernel adds up their splits even if it is one.
    """

    kind: Kind
    metal_type: str
    tile_count: Callable[[Tile], int]
    run_length: int
    values: int
    runs: int = 1
    is_aligned: bool = True
    has_zeros_outside: bool = True
    are_scattered: bool = False
    are_symmetric: bool = False

    def can_use(self, tile: Tile) -> bool:
        """Whether ``tile`` can read the images, and covers the sums."""
        reads = self.is_aligned or not tile.needs_vectors or self.kind in KINDS_OF_ANY_WIDTH
        reads = reads and (self.has_zeros_outside or not tile.in_place)
        return reads and (tile.rows == tile.columns or not self.are_symmetric)

    def steps(self, tile: Tile) -> int:
        """How many steps of its depth ``tile`` takes for a sum."""
        return self.runs * math.ceil(self.run_length / tile.depth)


@dataclass(frozen=True)
class Tiling:
    """How a family of devices multiplies: its tiles by kind and Metal type of the images, and what it takes.

    A compute unit does ``products`` a microsecond with the fastest tile for images of a Metal type. Kinds and types
    that are not among ``costs`` have ``common_costs``. A device whose driver does not say how many compute units it has
    is taken to have ``units_unless_known``.
    """

    tiles: Mapping[tuple[Kind, str], tuple[Tile, ...]]
    products: Mapping[str, float]
    common_costs: Costs
    costs: Mapping[tuple[Kind, str], Costs]
    units_unless_known: int = 16

    def costs_of(self, kind: Kind, metal_type: str) -> Costs:
        return self.costs.get((kind, metal_type), self.common_costs)

    def step_time(
        self, kind: Kind, tile: Tile, metal_type: str, threadgroups: int, *, is_aligned: bool = True
    ) -> float:
        """The microseconds in which ``threadgroups`` of a compute unit do one step each.

        A last round of few threadgroups takes as long as the others: they do not end together. Unless the images are
        aligned, their values are read one by one.
        """
        costs = self.costs_of(kind, metal_type)
        latency = costs.latency + costs.copy_latency * tile.copies_of_thread
        latency *= 1.0 if is_aligned else costs.unaligned
        alone = tile.rows * tile.columns * tile.depth / (tile.speed * self.products[metal_type])
        rounds = math.ceil(threadgroups / tile.resident)
        return rounds * math.hypot(min(threadgroups, tile.resident) * alone, latency)

    def divided(self, products: Products, units: int) -> tuple[Tile, int]:
        """The tile, and the splits of ``products``, with which ``units`` take least time; 0 are not known."""
        units = units or self.units_unless_known
        return min(
            (
                (tile, splits)
                for tile in self.tiles[products.kind, products.metal_type]
                if products.can_use(tile)
                for splits in sorted(self._splits(products, units, tile))
            ),
            key=lambda choice: self.time(products, units, *choice),
        )

    def _splits(self, products: Products, units: int, tile: Tile) -> set[int]:
        """How many may take least time."""
        if tile.weight_stages:
            return {1}
        most = max(products.steps(tile) // self.costs_of(products.kind, products.metal_type).fewest_steps, 1)
        # The threadgroups of a weight gradient, which has many more pixels than sums, can all be there at once.
        step = tile.resident if products.kind == "weights" else 1
        tile_count = products.tile_count(tile)
        filling = (share * units // tile_count for share in range(step, 4 * tile.resident + 1, step))
        return {1} | {min(splits, most) for splits in filling if splits}

    def time(self, products: Products, units: int, tile: Tile, splits: int) -> float:
        """The microseconds that ``units`` compute units take."""
        costs = self.costs_of(products.kind, products.metal_type)
        steps: float = math.ceil(products.steps(tile) / splits)
        threadgroups = math.ceil(products.tile_count(tile) * splits / units)
        rounds = math.ceil(threadgroups / tile.resident)
        if tile.weight_stages:
            if steps > tile.weight_stages:
                return math.inf
            # It begins once, and takes as long as a step to store a tile.
            steps += 1 + costs.steps_at_ends / rounds
        else:
            steps += costs.steps_at_ends
        is_aligned = products.is_aligned
        step_time = self.step_time(products.kind, tile, products.metal_type, threadgroups, is_aligned=is_aligned)
        of_splits = splits * (costs.split_time + products.values * costs.value_time)
        if not products.are_symmetric:
            of_splits += costs.sum_time
        of_stores = 0.0 if tile.in_place else self.store_time(products, units, tile)
        return steps * step_time + (of_splits if splits > 1 else of_stores)

    def store_time(self, products: Products, units: int, tile: Tile) -> float:
        """The microseconds in which results are stored one by one; ``time`` leaves out those of tiles in place."""
        if not products.are_scattered:
            return 0.0
        rounds = math.ceil(math.ceil(products.tile_count(tile) / units) / tile.resident)
        store_time = self.costs_of(products.kind, products.metal_type).store_time
        return rounds * store_time * tile.rows * tile.columns / tile.threads


_SMALL_WEIGHTS_TILE = Tile(64, 64, 16, 32, 64, 1.1, 6)
_SMALL_HALF_WEIGHTS_TILE = Tile(64, 64, 32, 32, 32, 0.8, 4)
_COMMON_COSTS = Costs(
    0.35, 0.0, 1.5, steps_at_ends=3, sum_time=4.0, split_time=0.0, value_time=3.2e-6, fewest_steps=4
)
_COSTS: Mapping[tuple[Kind, str], Costs] = {
    ("gather", "float"): Costs(
        0.25, 0.02, 1.2, steps_at_ends=1, sum_time=3.0, split_time=0.03, value_time=1.8e-6, fewest_steps=2
    ),
    ("gather", "half"): _COMMON_COSTS._replace(store_time=0.08),
    ("weights", "float"): Costs(
        1.1, 0.0, 1.6, steps_at_ends=1, sum_time=3.0, split_time=0.004, value_time=3e-6, fewest_steps=2
    ),
    ("weights", "half"): _COMMON_COSTS._replace(latency=0.56),
}

_GPU = Tiling(
    {
        ("gather", "float"): (
            Tile(128, 64, 16, 32, 64, 1.0, 2),
            Tile(128, 64, 8, 32, 64, 1.0, 3),
            Tile(256, 32, 8, 64, 32, 0.8, 2),
            Tile(64, 64, 16, 32, 32, 0.93, 4),
            Tile(64, 32, 16, 32, 32, 0.72, 6),
        ),
        ("gather", "half"): (
            Tile(128, 128, 16, 64, 64, 1.0, 2),
            Tile(128, 64, 32, 64, 32, 1.0, 3),
            Tile(256, 32, 16, 64, 32, 0.75, 3),
            Tile(64, 64, 32, 32, 32, 0.78, 4),
            Tile(64, 32, 32, 32, 16, 0.58, 5),
        ),
        ("weights", "float"): (
            Tile(128, 64, 8, 32, 64, 0.85, 3),
            _SMALL_WEIGHTS_TILE,
            Tile(32, 128, 16, 32, 64, 0.72, 6),
        ),
        ("weights", "half"): (Tile(128, 64, 32, 64, 32, 1.0, 3), _SMALL_HALF_WEIGHTS_TILE),
        ("planes", "float"): (Tile(128, 64, 16, 32, 64, 1.0, 3), Tile(64, 64, 16, 32, 64, 0.98, 6)),
    },
    products={"float": 158e3, "half": 620e3},
    common_costs=_COMMON_COSTS,
    costs=_COSTS,
)
"""Measured on an H200."""

_NVIDIA = replace(
    _GPU,
    costs={
        **_COSTS,
        ("gram", "float"): Costs(
            0.29, 0.0025, 1.7, steps_at_ends=1.3, sum_time=0.5, split_time=0.007, value_time=1.1e-6, fewest_steps=1
        ),
        # They have no splits.
        ("gram_gradient", "float"): _COMMON_COSTS._replace(
            latency=0.37, copy_latency=0.0042, steps_at_ends=0, fewest_steps=LARGEST_ELEMENT_COUNT
        ),
    },
    tiles={
        **_GPU.tiles,
        ("gather", "float"): (
            Tile(128, 128, 16, 32, 64, 1.1, 1),
            *_GPU.tiles["gather", "float"],
            Tile(128, 16, 16, 32, 16, 0.5, 6),
            Tile(256, 24, 16, 64, 24, 0.75, 3),
            Tile(256, 24, 8, 64, 24, 0.65, 2),
            Tile(128, 48, 16, 32, 48, 0.8, 3),
            Tile(256, 48, 8, 64, 48, 0.85, 2),
            Tile(128, 96, 16, 64, 48, 1.0, 2),
            Tile(128, 96, 8, 64, 48, 0.9, 2),
        ),
        ("weights", "float"): (
            *_GPU.tiles["weights", "float"],
            Tile(16, 128, 32, 16, 32, 0.5, 5),
            Tile(128, 16, 32, 32, 16, 0.5, 5),
            Tile(16, 32, 32, 16, 32, 0.52, 16),
        ),
        ("gram", "float"): (Tile(64, 64, 16, 32, 32, 1.15, 5, stages=3),),
        ("gram_gradient", "float"): (
            Tile(128, 64, 16, 64, 32, 0.93, 1, stages=3),
            Tile(64, 64, 16, 32, 32, 0.83, 6, stages=3),
            Tile(32, 64, 16, 32, 16, 0.83, 10, stages=3),
        ),
        ("gather", "half"): (
            Tile(128, 128, 32, 64, 64, 1.94, 2, stages=2),
            Tile(128, 64, 32, 64, 64, 1.16, 4, stages=3),
            *_GPU.tiles["gather", "half"],
        ),
        ("weights", "half"): (
            Tile(128, 128, 32, 64, 64, 1.8, 2, stages=2),
            Tile(64, 128, 32, 32, 64, 1.88, 2, stages=3),
            *_GPU.tiles["weights", "half"],
        ),
    },
)
"""Measured on an H200. Large tiles, and copies that are made while one is multiplied, take more memory than Apple GPUs
have."""


def _in_place(
    rows: int, columns: int, stages: int, speed: float, resident: int, overlap: int = 0, weight_stages: int = 0
) -> Tile:
    return Tile(rows, columns, 64, 16, columns, speed, resident, stages, overlap, weight_stages)


_NVIDIA_9_0 = replace(
    _NVIDIA,
    tiles={
        **_NVIDIA.tiles,
        ("gather", "half"): (
            _in_place(192, 128, 3, 3.6, 1),
            _in_place(128, 128, 3, 3.6, 2),
            _in_place(128, 256, 4, 3.8, 1, overlap=1),
            _in_place(256, 128, 3, 3.4, 1),
            _in_place(128, 64, 3, 2.5, 4),
            _in_place(64, 128, 3, 2.9, 3),
            _in_place(64, 64, 4, 2.0, 3),
            _in_place(128, 128, 3, 3.6, 2, weight_stages=3),
            _in_place(128, 64, 3, 2.5, 2, weight_stages=8),
            *_NVIDIA.tiles["gather", "half"],
        ),
        ("weights", "half"): (
            _in_place(128, 256, 4, 3.8, 1, overlap=1),
            _in_place(128, 128, 3, 3.33, 2),
            _in_place(128, 128, 6, 3.23, 1, overlap=1),
            _in_place(64, 256, 2, 2.73, 2),
            _in_place(64, 128, 4, 2.36, 2),
            *_NVIDIA.tiles["weights", "half"],
        ),
        ("gram", "half"): (_in_place(128, 128, 3, 2.8, 2), _in_place(64, 64, 4, 2.3, 3)),
        ("gram_gradient", "half"): (_in_place(128, 128, 2, 2.45, 2), _in_place(128, 64, 3, 2.25, 2)),
    },
    costs={
        **_NVIDIA.costs,
        ("gram", "half"): Costs(
            0.12, 0.0, 4.0, steps_at_ends=9, sum_time=1.5, split_time=0.008, value_time=8.6e-7, fewest_steps=1
        ),
        # They have no splits.
        ("gram_gradient", "half"): _COMMON_COSTS._replace(latency=0.36, fewest_steps=LARGEST_ELEMENT_COUNT),
        ("weights", "half"): _COMMON_COSTS._replace(
            latency=0.4, steps_at_ends=4.6, sum_time=2.7, split_time=0.008, value_time=8.6e-7
        ),
    },
)
"""Measured on an H200."""

_CPU = Tiling(
    {
        ("gather", "float"): (Tile(64, 32, 8, 32, 32, 1.0, 4),),
        ("gather", "half"): (Tile(64, 32, 16, 32, 16, 1.0, 4),),
        ("weights", "float"): (_SMALL_WEIGHTS_TILE,),
        ("weights", "half"): (_SMALL_HALF_WEIGHTS_TILE,),
        ("planes", "float"): (Tile(64, 32, 8, 32, 32, 1.0, 1),),
        ("gram", "half"): (_in_place(64, 64, 4, 1.0, 1),),
        ("gram", "float"): (Tile(64, 64, 16, 32, 32, 1.0, 1, stages=3),),
        ("gram_gradient", "float"): (Tile(64, 64, 16, 32, 32, 1.0, 1, stages=3),),
        ("gram_gradient", "half"): (_in_place(128, 64, 3, 1.0, 1),),
    },
    products={"float": 1e9, "half": 1e9},
    common_costs=Costs(1.0, 0.0, 1.5, steps_at_ends=3, sum_time=0.0, split_time=0.0, value_time=0.0, fewest_steps=4),
    costs={},
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


def fits_every_gpu(kind: Kind, metal_type: str, tile: Tile) -> bool:
    """Whether no GPU has too little threadgroup memory for it."""
    return any(tile in one.tiles[kind, metal_type] for one in (_GPU, _CPU))
