"""Convolution and its data gradient where each simdgroup, or thread, has its own sums: kernels and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT, WINDOW
from mpsgrad.kernels.convolution_axis import AXIS, share_inside
from mpsgrad.kernels.convolution_gather import DEPTHWISE_BLOCKS, ROW_OUTPUTS, Gather, Plan, gather
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.kernels.convolution_packing import LANES
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import ALWAYS, NEVER, WHERE_FEWER, Tunables

THREADS = 256
DEPTHWISE_PIXELS = 4
ROW_IMAGES = 3
ROW_CHANNELS, GRADIENT_ROW_CHANNELS = 1024, 256
"""Whose weights a thread that works on eights has at hand."""
FEW_IMAGES, LONE_EIGHTS, ROWS_AHEAD = 3, 8, 8
"""Up to so many images, how many eights of channels of one of them a thread takes, and how far ahead it fetches."""
IMAGES_OF_SIMDGROUPS = 16
"""For more images than few, and up to so many, simdgroups take less time than copies of weights do."""
COPYING_THREADS_WANTED = 32
"""So many that keep weights of such a layer at hand go through all images: more would read the same ones."""
MOST_BLOCKS, LONG_ROW = 4, 4096
"""So many blocks of channels each takes of rows of weights that are so long: one block has a short run. Measured."""
FEW_CHANNELS, ROW_PIXELS = 4, 16
"""With so few channels of the source, what windows of one pixel give is written pixel by pixel, so many of a tile."""
TILES_PER_SIMDGROUP = 8
SIMDGROUPS_WANTED = 64
"""So many simdgroups keep every core busy; only above that one goes on to a second tile."""
MOST_INSIDE = 0.97
"""With more of the columns of taps inside the source, the pixels of a tile are neighbours."""

EIGHTS_CHANNELS, EIGHTS_PIXELS = 16, 6
"""Of a tile of a thread that works on eights of channels."""
MOST_STREAMED_CHANNELS = 512
"""Of more channels of the source threads write no results past the caches."""
SINGLE_EIGHT, SINGLE_EIGHTS_PIXELS = 8, 8
"""Of a tile where 16 channels would leave many lanes without one."""
SINGLE_EIGHTS_COST = 1.15
"""A product takes so much longer there, because a value of the source is loaded for half as many. Measured."""
SIXTEENS_PIXELS, SIXTEENS_COST, THREE_EIGHTS_COST, THREE_SIXTEENS_COST = 12, 0.95, 0.93, 0.87
"""The pixels of a tile of 16 channels where there are registers of 16 floats, and how long a product takes there and in
tiles of 24 and 48 channels. Measured."""
THREE_EIGHTS_PIXELS, THREE_EIGHTS_PIXELS_OF_FEW_REGISTERS = 8, 4
"""The pixels of a tile of 24 channels there, and where there are 16 registers of eight floats."""
MANY_VALUES, MANY_VALUES_COST = 640, 1.12
"""How long a product takes in tiles of 24 channels there if windows have more values than the first number: their
weights, which are read for each four pixels, leave the near caches. Measured."""
EIGHTS_COST, FOLD_COST, GROUP_FOLD_COST = 1.15, 1.5, 3.0
"""A product of a thread with 16 channels takes so much longer than one of a simdgroup, where a CPU has both, and so
much again where several pixels are joined, whose results a thread stores one by one, or those of a group. Measured."""

FILLED_LANES = (EIGHTS_CHANNELS, SINGLE_EIGHT, 3 * EIGHTS_CHANNELS)
"""So many that few channels may fill, those of neighbouring pixels side by side: 48 are 4 x 4 pixels of three."""

PARAMETERS = ParameterStruct(
    "ConvolutionParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    x=AXIS,
    y=AXIS,
    channels="int",
    outputs="int",
    fold_channels="int",
    blocks="int",
    blocks_per_group="int",
    blocks_per_thread="int",
    tiles="int",
    tiles_per_simdgroup="int",
    parts="int",
    zeros="int",
    biases="int",
    joins_columns="int",
    replicates="int",
    across_images="int",
)
REPLICATED_PARAMETERS = ParameterStruct(
    "ReplicatedGradientParameters",
    gradient=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    window=WINDOW,
    groups="int",
    first_x="int",
    first_y="int",
    source_width="int",
    source_height="int",
)
FAMILY = ShaderFamily(
    "convolution",
    (IMAGE_LAYOUT, WINDOW, AXIS, PARAMETERS, REPLICATED_PARAMETERS),
    {
        "threads": THREADS,
        "unroll": 4,
        "depthwise_pixels_at_once": DEPTHWISE_PIXELS,
        "depthwise_blocks": DEPTHWISE_BLOCKS,
        "row_outputs": ROW_OUTPUTS,
        "row_images": ROW_IMAGES,
    },
    measured=lambda numbers: {
        "pixels": numbers.convolution_pixels_per_tile,
        "only_by_eights": numbers.convolution_by_eights == ALWAYS,
    },
)
EIGHTS_FAMILY = ShaderFamily(
    "convolution_of_eights",
    (IMAGE_LAYOUT, AXIS, PARAMETERS),
    {
        "unroll": 4,
        "each": 8,
        "vectors": 2,
        "tile_pixels": EIGHTS_PIXELS,
        "has_rows": True,
        "row_outputs": ROW_OUTPUTS,
        "row_images": ROW_IMAGES,
        "row_channels": ROW_CHANNELS,
        "many_tiles": TILES_PER_SIMDGROUP,
        "gradient_row_channels": GRADIENT_ROW_CHANNELS,
        "most_blocks": MOST_BLOCKS,
        "lone_eights": LONE_EIGHTS,
        "rows_ahead": ROWS_AHEAD,
        "row_pixels": ROW_PIXELS,
    },
    dtypes=("float",),
    device_families=("cpu",),
)


class _Width(NamedTuple):
    """Tiles of so many ``pixels`` and of some channels, a product of which takes so much longer than the others'.

    With ``MANY_VALUES`` the cost may be another one.
    """

    family: ShaderFamily
    pixels: int
    cost: float
    cost_of_many_values: float | None = None

    def products(self, gathered: Gather, channels: int) -> float:
        """Those for a pixel of tiles of so many ``channels``, times their cost."""
        has_many_values = gathered.values_per_pixel > MANY_VALUES
        cost = self.cost_of_many_values if has_many_values and self.cost_of_many_values else self.cost
        return cost * gathered.products_per_pixel(channels)


def _family(name: str, each: int, vectors: int, pixels: int, pixels_of_few_registers: int = 0) -> ShaderFamily:
    """That of ``vectors`` of ``each`` floats, and of other ``pixels`` where a CPU has 16 registers if there are any."""
    return ShaderFamily(
        f"convolution_of_{name}",
        (IMAGE_LAYOUT, AXIS, PARAMETERS),
        {"unroll": 4, "each": each, "vectors": vectors, "has_rows": False},
        measured=lambda numbers: {
            "tile_pixels": pixels if numbers.has_many_registers else pixels_of_few_registers or pixels
        },
        dtypes=("float",),
        template="convolution_of_eights",
        ahead_of_time=False,
        device_families=("cpu",),
    )


_SINGLE_EIGHTS = _Width(
    _family("single_eights", 8, 1, SINGLE_EIGHTS_PIXELS), SINGLE_EIGHTS_PIXELS, SINGLE_EIGHTS_COST
)
_THREE_EIGHTS = _family("three_eights", 8, 3, THREE_EIGHTS_PIXELS, THREE_EIGHTS_PIXELS_OF_FEW_REGISTERS)
_WIDTHS = {
    EIGHTS_CHANNELS: _Width(EIGHTS_FAMILY, EIGHTS_PIXELS, 1.0),
    SINGLE_EIGHT: _SINGLE_EIGHTS,
    3 * 8: _Width(_THREE_EIGHTS, THREE_EIGHTS_PIXELS_OF_FEW_REGISTERS, 1.0, MANY_VALUES_COST),
}
_WIDTHS_OF_MANY_REGISTERS = {
    EIGHTS_CHANNELS: _Width(_family("single_sixteens", 16, 1, SIXTEENS_PIXELS), SIXTEENS_PIXELS, SIXTEENS_COST),
    SINGLE_EIGHT: _SINGLE_EIGHTS,
    3 * 8: _Width(_THREE_EIGHTS, THREE_EIGHTS_PIXELS, THREE_EIGHTS_COST),
    3 * 16: _Width(_family("three_sixteens", 16, 3, 8), 8, THREE_SIXTEENS_COST),
}


def _widths(numbers: Tunables) -> Mapping[int, _Width]:
    """Those of the channels that a thread may take at a time."""
    return _WIDTHS_OF_MANY_REGISTERS if numbers.has_many_registers else _WIDTHS


class _Tile(NamedTuple):
    """The kernel that computes tiles of so many ``pixels``, each of one of the blocks of channels."""

    family: ShaderFamily
    kernel: str
    pixels: int
    blocks_per_group: int


def _tile_of_eights(gathered: Gather, width: int, numbers: Tunables) -> _Tile:
    """That of threads which take ``width`` channels at a time."""
    kernel, lanes = gathered.kernel, gathered.lanes
    if kernel == "convolution_rows":
        return _Tile(EIGHTS_FAMILY, f"{kernel}_of_eights", ROW_IMAGES, gathered.blocks_per_group)
    if kernel == "convolution_point_unpacked" and gathered.destination[4] <= FEW_IMAGES:
        return _Tile(EIGHTS_FAMILY, f"{kernel}_of_few", 1, ceiling_divide(lanes, 8 * LONE_EIGHTS))
    streams = _writes_past_caches(gathered, numbers)
    # Where writing, not past the caches, takes most of the time, it takes longer from larger registers. Measured.
    is_mostly_written = kernel == "convolution_point" and gathered.channels < LANES and lanes > width and not streams
    uses_eights = gathered.packing is None or (width == EIGHTS_CHANNELS and is_mostly_written)
    tiles = (_WIDTHS if uses_eights else _widths(numbers))[width]
    name = f"{kernel}_of_eights{'_past_caches' if streams else ''}"
    return _Tile(tiles.family, name, tiles.pixels, ceiling_divide(lanes, width))


def _writes_past_caches(gathered: Gather, numbers: Tunables) -> bool:
    """Whether threads are to compute windows of one pixel, because simdgroups write through the caches.

    Few channels of the source take less time to read again than their results to leave the caches, and many take so
    long to add up that writing hardly counts. Measured.
    """
    has_suitable_channels = EIGHTS_CHANNELS <= gathered.channels <= MOST_STREAMED_CHANNELS
    return gathered.kernel == "convolution_point" and has_suitable_channels and gathered.exceeds_caches(numbers)


def _goes_across_images(gathered: Gather, pixels: int) -> bool:
    """Whether tiles are to have the pixels of one place, of which the same taps are inside the source."""
    images = gathered.destination[7]
    if gathered.kernel not in ("convolution_dense", "convolution_fold") or gathered.replicates or images < pixels:
        return False
    pixels_of_tiles = ceiling_divide(images, pixels) * pixels
    return share_inside(gathered.x, gathered.source[4]) * pixels_of_tiles <= MOST_INSIDE * images


def _plan_of_tiles(gathered: Gather, tile: _Tile) -> Plan:
    x, y = gathered.x, gathered.y
    blocks = gathered.groups * tile.blocks_per_group
    tiles = ceiling_divide(gathered.phase_pixels, tile.pixels)
    across_images = _goes_across_images(gathered, tile.pixels)
    if across_images:
        tiles = ceiling_divide(gathered.destination[7], tile.pixels) * x.size * y.size
    if tile.kernel == "convolution_depthwise":
        tiles = gathered.destination[7] * y.size
        blocks //= DEPTHWISE_BLOCKS
    keeps_weights = tile.kernel in ("convolution_rows_of_eights", "convolution_point_unpacked_of_eights")
    copies_runs = tile.kernel == "convolution_point_unpacked_of_eights" and gathered.lanes >= LONG_ROW
    blocks_per_thread = MOST_BLOCKS if copies_runs else 1
    blocks = ceiling_divide(blocks, blocks_per_thread)
    tiles_per_simdgroup = max(1, min(TILES_PER_SIMDGROUP, tiles * gathered.phases * blocks // SIMDGROUPS_WANTED))
    if keeps_weights and tiles > TILES_PER_SIMDGROUP:
        tiles_per_simdgroup = ceiling_divide(tiles, max(1, COPYING_THREADS_WANTED // blocks))
    parts = ceiling_divide(tiles, tiles_per_simdgroup)
    parameters = PARAMETERS.pack(
        source=gathered.source,
        destination=gathered.destination,
        x=x.packed(),
        y=y.packed(),
        channels=gathered.channels,
        outputs=gathered.lanes,
        fold_channels=gathered.fold_channels,
        blocks=blocks,
        blocks_per_group=tile.blocks_per_group,
        blocks_per_thread=blocks_per_thread,
        tiles=tiles,
        tiles_per_simdgroup=tiles_per_simdgroup,
        parts=parts,
        zeros=gathered.zeros,
        biases=gathered.biases,
        joins_columns=int(gathered.joins_columns),
        replicates=int(gathered.replicates),
        across_images=int(across_images),
    )
    return Plan(tile.family, tile.kernel, blocks * parts * gathered.phases, parameters, gathered.packing)


@lru_cache(maxsize=4096)
def plan(
    geometry: ConvolutionGeometry, is_gradient: bool, metal_type: str, numbers: Tunables, *, packs_all: bool = False
) -> Plan:
    """The dispatch of a kernel that gives each simdgroup, or thread, its own destination pixels and channels."""
    width, gathered = 0, gather(geometry, is_gradient, packs_all=packs_all)
    computes_by_eights = numbers.convolution_by_eights != NEVER and metal_type == "float"
    if computes_by_eights:
        eights_width, of_eights, products = gather_by_eights(geometry, is_gradient, numbers, packs_all=packs_all)
        if of_eights.kernel == "convolution_fold":
            products *= FOLD_COST if geometry.groups == 1 else GROUP_FOLD_COST
        if _writes_past_caches(of_eights, numbers) or is_by_eights(numbers, products, gathered):
            width, gathered = eights_width, of_eights
    is_of_few = gathered.kernel == "convolution_point" and gathered.channels <= FEW_CHANNELS <= gathered.lanes
    if is_of_few and computes_by_eights and geometry.groups == 1:
        tile = _Tile(EIGHTS_FAMILY, "convolution_point_of_few", ROW_PIXELS, 1)
    elif width:
        tile = _tile_of_eights(gathered, width, numbers)
    else:
        pixels = ROW_IMAGES if gathered.kernel == "convolution_rows" else numbers.convolution_pixels_per_tile
        tile = _Tile(FAMILY, gathered.kernel, pixels, gathered.blocks_per_group)
    return _plan_of_tiles(gathered, tile)


def is_by_eights(numbers: Tunables, products: float, of_simdgroups: Gather) -> bool:
    """Whether threads are to compute, with so many ``products`` for a pixel, and not simdgroups."""
    if numbers.convolution_by_eights != WHERE_FEWER:
        return numbers.convolution_by_eights == ALWAYS
    if of_simdgroups.packing is None:
        images = of_simdgroups.destination[4]
        return of_simdgroups.kernel == "convolution_rows" or not FEW_IMAGES < images <= IMAGES_OF_SIMDGROUPS
    return EIGHTS_COST * products < of_simdgroups.products_per_pixel(LANES)


class GatherByEights(NamedTuple):
    """A gather of threads that take ``width`` channels at a time, with so many products for a pixel."""

    width: int
    gathered: Gather
    products: float


def gather_by_eights(
    geometry: ConvolutionGeometry, is_gradient: bool, numbers: Tunables, *, packs_all: bool = False
) -> GatherByEights:
    """The one with the fewest products, or 0 products where weights are not packed."""
    gathers = [gather(geometry, is_gradient, packs_all=packs_all, lanes=lanes) for lanes in FILLED_LANES]
    if gathers[0].packing is None:
        return GatherByEights(EIGHTS_CHANNELS, gathers[0], 0.0)
    return min(
        (
            GatherByEights(width, gathered, tiles.products(gathered, width))
            for gathered in gathers
            for width, tiles in _widths(numbers).items()
        ),
        key=attrgetter("products"),
    )
