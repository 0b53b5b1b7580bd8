"""Gram matrices and their gradient in tiles of their own, for GPUs that copy these in stages."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernels.convolution_tile import Products, Tile, all_tiles, tiling
from mpsgrad.kernels.gram_matrix_layouts import FIELDS, fields_of
from mpsgrad.kernels.pointwise import Layout
from mpsgrad.shader import ParameterStruct, ShaderFamily

WIDTHS = {"half": (8, 4, 2), "float": (4, 2, 1)}
"""How many numbers may be copied at a time, the best first, by the Metal type of the images."""
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
    (kind, metal_type, tile): ShaderFamily(
        f"{kind}_matrices_{tile.name}",
        (PARAMETERS,),
        {
            **tile.constants,
            "unroll": "#pragma unroll",
            "widths": WIDTHS[metal_type],
            "is_gradient": kind == "gram_gradient",
        },
        # A CPU's compiler takes ten times as long to unroll them.
        {"cpu": {"unroll": "#pragma clang loop unroll(disable)"}},
        dtypes=(metal_type,),
        template="gram_matrix_in_place" if tile.in_place else "gram_matrix_tiles",
        ahead_of_time=False,
        # More threadgroup memory than Apple GPUs have.
        device_families=("cpu", "nvidia"),
    )
    for kind, metal_type, tile in sorted(all_tiles())
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


def has_tiles(tiling_name: str, metal_type: str) -> bool:
    """Whether the devices with that ``Device.tiling`` have them for images of that Metal type."""
    return ("gram", metal_type) in tiling(tiling_name).tiles


def _width(metal_type: str, *numbers: int) -> int | None:
    """How many values at a time are always aligned at multiples of ``numbers``."""
    return next((width for width in WIDTHS[metal_type] if all(number % width == 0 for number in numbers)), None)


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
def plan_products(
    metal_type: str, source: Layout, matrices: Layout | None, alpha: float, tiling_name: str, units: int
) -> Plan | None:
    """What adds up the products of each two channels of ``source`` over the pixels of each image.

    Pixels are at even distances. None where the device has no such tiles, or the channels do not fit. Without
    ``matrices`` the sums are left in parts.
    """
    start, pixel, _, image, width, height, channels, images = source
    written = matrices or (0,) * len(source)
    first, column, _, step, *_ = written
    of_device, pixels = tiling(tiling_name), width * height
    width_of_copy = _width(metal_type, start, pixel, image, first, column, step, channels)
    if width_of_copy is None or not has_tiles(tiling_name, metal_type):
        return None
    units = units or of_device.units_unless_known

    def squares(tile: Tile) -> int:
        return math.comb(ceiling_divide(channels, tile.rows) + 1, 2) * images

    widest, *_ = WIDTHS[metal_type]
    largest = max(of_device.tiles["gram", metal_type], key=lambda tile: tile.rows)
    if width_of_copy < widest and squares(largest) * pixels > NARROW_STEPS * largest.depth * units:
        of_device = replace(of_device, tiles={("gram", metal_type): (largest,)})
    products = Products(
        "gram",
        metal_type,
        squares,
        run_length=pixels,
        values=images * math.comb(channels + 1, 2),
        is_aligned=width_of_copy == widest,
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
        FAMILIES["gram", metal_type, tile],
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
    metal_type: str,
    matrices: Layout,
    source: Layout,
    destination: Layout,
    alpha: float,
    tiling_name: str,
    units: int,
) -> Plan | None:
    """What multiplies the pixels of each image by its matrix; None as above.

    ``matrices`` are gradients, to each of which its transpose is added, or of float images these sums, as
    ``pack_terms`` packs them.
    """
    start, pixel, _, image, width, height, channels, images = source
    at, across, _, far, *_ = destination
    first, column, _, step, *_ = matrices
    of_device, pixels = tiling(tiling_name), width * height
    # Of float images single values of the source are turned, and packed ones are always aligned.
    copied = (start, pixel, image, first, column, step) if metal_type == "half" else ()
    width_of_copy = _width(metal_type, channels, at, across, far, *copied)
    if width_of_copy is None or ("gram_gradient", metal_type) not in of_device.tiles:
        return None

    def counts(tile: Tile) -> tuple[int, int]:
        return ceiling_divide(pixels, tile.rows), ceiling_divide(channels, tile.columns)

    products = Products(
        "gram_gradient",
        metal_type,
        lambda tile: math.prod(counts(tile)) * images,
        run_length=channels,
        values=images * pixels * channels,
        is_aligned=metal_type == "float" or width_of_copy == WIDTHS[metal_type][0],
    )
    units = units or of_device.units_unless_known
    tile, _ = of_device.divided(products, units)
    row_tiles, column_tiles = counts(tile)
    parameters = _packed(
        source,
        matrices,
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
        FAMILIES["gram_gradient", metal_type, tile],
        f"gram_matrix_gradient_{tile.name}_by_{width_of_copy}",
        row_tiles * column_tiles * images,
        parameters,
        time=of_device.time(products, units, tile, 1),
    )
