"""Gram matrices of half images and their gradient in tiles of their own, for GPUs that multiply where tiles lie."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernels.convolution_tile import Products, Tile, all_tiles, tiling
from mpsgrad.kernels.gram_matrix_layouts import FIELDS, fields_of
from mpsgrad.kernels.pointwise import Layout
from mpsgrad.shader import ParameterStruct, ShaderFamily

WIDTHS = (8, 4, 2)
"""How many half numbers may be copied at a time, the best first."""
NARROW_STEPS = 8
"""With so many steps for each compute unit large tiles, which copy less, are faster for narrow copies. Measured."""
PARAMETERS = ParameterStruct(
    "GramMatrixTilesParameters",
    **FIELDS,
    row_tiles="int",
    column_tiles="int",
    splits="int",
    pixels_per_split="int",
    split_stride="int",
    row_stride="int",
    leaves_parts="int",
    scale="float",
)
FAMILIES = {
    (kind, tile): ShaderFamily(
        f"{kind}_matrices_{tile.name}",
        (PARAMETERS,),
        {**tile.constants, "unroll": "#pragma unroll", "widths": WIDTHS, "is_gradient": kind == "gram_gradient"},
        # A CPU's compiler takes ten times as long to unroll them.
        {"cpu": {"unroll": "#pragma clang loop unroll(disable)"}},
        dtypes=("half",),
        template="gram_matrix_in_place",
        ahead_of_time=False,
        # More threadgroup memory than Apple GPUs have.
        device_families=("cpu", "nvidia"),
    )
    for kind, _, tile in sorted(all_tiles())
    if kind in ("gram", "gram_gradient")
}


@dataclass(frozen=True)
class Plan:
    """One dispatch of ``kernel``.

    If it ``leaves_parts`` it writes ``splits`` sums of ``split_stride`` floats for each image, whose rows are
    ``row_stride`` apart. ``time`` are the microseconds that it takes.
    """

    family: ShaderFamily
    kernel: str
    threadgroups: int
    parameters: bytes
    splits: int = 1
    split_stride: int = 0
    row_stride: int = 0
    leaves_parts: bool = False
    time: float = 0.0


def has_tiles(tiling_name: str) -> bool:
    """Whether the devices with that ``Device.tiling`` have them."""
    return ("gram", "half") in tiling(tiling_name).tiles


def _width(*numbers: int) -> int | None:
    """How many values at a time are always aligned at multiples of ``numbers``."""
    return next((width for width in WIDTHS if all(number % width == 0 for number in numbers)), None)


def _packed(
    source: Layout,
    matrices: Layout,
    destination: Layout | None,
    alpha: float,
    tile_counts: tuple[int, int],
    **splits: int,
) -> bytes:
    """The parameters; ``destination`` is that of a gradient."""
    return PARAMETERS.pack(
        **fields_of(source, matrices, destination),
        row_tiles=tile_counts[0],
        column_tiles=tile_counts[1],
        scale=alpha,
        **splits,
    )


@lru_cache(maxsize=512)
def plan_products(source: Layout, matrices: Layout | None, alpha: float, tiling_name: str, units: int) -> Plan | None:
    """What adds up the products of each two channels of the half image ``source`` over the pixels of each image.

    Pixels are at even distances. None where the device has no such tiles, or the channels do not fit. Without
    ``matrices`` the sums are left in parts.
    """
    start, pixel, _, image, width, height, channels, images = source
    written = matrices or (0,) * len(source)
    first, column, _, step, *_ = written
    of_device, pixels = tiling(tiling_name), width * height
    width_of_copy = _width(start, pixel, image, first, column, step, channels)
    if width_of_copy is None or not has_tiles(tiling_name):
        return None
    units = units or of_device.units_unless_known

    def squares(tile: Tile) -> int:
        return math.comb(ceiling_divide(channels, tile.rows) + 1, 2) * images

    largest = max(of_device.tiles["gram", "half"], key=lambda tile: tile.rows)
    if width_of_copy < WIDTHS[0] and squares(largest) * pixels > NARROW_STEPS * largest.depth * units:
        of_device = replace(of_device, tiles={("gram", "half"): (largest,)})
    products = Products(
        "gram",
        "half",
        squares,
        run_length=pixels,
        values=images * math.comb(channels + 1, 2),
        is_aligned=width_of_copy == WIDTHS[0],
    )
    tile, splits = of_device.divided(products, units)
    pixels_per_split = ceiling_divide(ceiling_divide(pixels, splits), tile.depth) * tile.depth
    splits = ceiling_divide(pixels, pixels_per_split)
    row_stride = ceiling_divide(channels, 4) * 4
    row_tiles = ceiling_divide(channels, tile.rows)
    leaves_parts = splits > 1 or matrices is None
    parameters = _packed(
        source,
        written,
        None,
        alpha,
        (row_tiles, row_tiles),
        splits=splits,
        pixels_per_split=pixels_per_split,
        split_stride=channels * row_stride,
        row_stride=row_stride,
        leaves_parts=int(leaves_parts),
    )
    return Plan(
        FAMILIES["gram", tile],
        f"gram_matrix_products_{tile.name}_by_{width_of_copy}",
        squares(tile) * splits,
        parameters,
        splits,
        channels * row_stride,
        row_stride,
        leaves_parts,
        of_device.time(products, units, tile, splits),
    )


@lru_cache(maxsize=512)
def plan_gradient(
    gradient: Layout, source: Layout, destination: Layout, alpha: float, tiling_name: str, units: int
) -> Plan | None:
    """What multiplies the pixels of each half image by its matrix and the transpose of it; None as above."""
    start, pixel, _, image, width, height, channels, images = source
    at, across, _, far, *_ = destination
    first, column, _, step, *_ = gradient
    of_device, pixels = tiling(tiling_name), width * height
    width_of_copy = _width(start, pixel, image, first, column, step, channels, at, across, far)
    if width_of_copy is None or not has_tiles(tiling_name):
        return None

    def counts(tile: Tile) -> tuple[int, int]:
        return ceiling_divide(pixels, tile.rows), ceiling_divide(channels, tile.columns)

    products = Products(
        "gram_gradient",
        "half",
        lambda tile: math.prod(counts(tile)) * images,
        run_length=channels,
        values=images * pixels * channels,
        is_aligned=width_of_copy == WIDTHS[0],
    )
    tile, _ = of_device.divided(products, units)
    row_tiles, column_tiles = counts(tile)
    parameters = _packed(
        source,
        gradient,
        destination,
        alpha,
        (row_tiles, column_tiles),
        splits=1,
        pixels_per_split=pixels,
        split_stride=0,
        row_stride=0,
        leaves_parts=0,
    )
    return Plan(
        FAMILIES["gram_gradient", tile],
        f"gram_matrix_gradient_{tile.name}_by_{width_of_copy}",
        row_tiles * column_tiles * images,
        parameters,
    )
