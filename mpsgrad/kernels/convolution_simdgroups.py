"""Convolution and its data gradient where each simdgroup, or thread, has its own sums: kernels and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

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
ROW_CHANNELS, GRADIENT_ROW_CHANNELS = 512, 256
"""Whose weights a thread that works on eights has at hand, of a row and of a column."""
SIXTEENS_ROW_OUTPUTS, SIXTEENS_ROW_IMAGES, SIXTEENS_GRADIENT_ROW_CHANNELS = 3, 8, 64
"""The channels and images at a time of such a layer, and the weights of a column at hand, where there are registers of
16 floats."""
MOST_KEPT = 12288
"""So many floats of its sums a thread keeps for what it computes of such a layer, in a near cache."""
FEW_IMAGES, LONE_EIGHTS, ROWS_AHEAD = 3, 8, 8
"""Up to so many images, how many eights of channels of one of them a thread takes, and how far ahead it fetches."""
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
SINGLE_EIGHTS_COST, SINGLE_EIGHTS_COST_OF_MANY_REGISTERS = 1.15, 1.6
"""A product takes so much longer there, because a value of the source is loaded for half as many, and where there are
registers of 16 floats because a CPU that multiplies so many at a time does half of that. Measured."""
SIXTEENS_PIXELS, SIXTEENS_COST = 12, 0.95
THREE_SIXTEENS_PIXELS, THREE_SIXTEENS_COST = 8, 0.75
"""The pixels of a tile of 16 channels where there are registers of 16 floats, and how long a product takes there; the
same of 48 channels. Measured where CPUs multiply 16 at a time."""
THREE_EIGHTS_PIXELS = 4
"""The pixels of a tile of 24 channels where there are 16 registers of eight floats."""
MANY_VALUES, MANY_VALUES_COST = 640, 1.12
"""How long a product takes in tiles of 24 channels there if windows have more values than the first number: their
weights, which are read for each four pixels, leave the near caches. Measured."""
EIGHTS_COST, FOLD_COST = 1.15, 1.35
"""A product of a thread with 16 channels takes so much longer than one of a simdgroup, where a CPU has both, and so
much again where several pixels are joined, whose results a thread stores one by one. Measured."""

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


def _most_kept_tiles(each: int, row_outputs: int, row_images: int) -> int:
    """The sums of so many tiles a thread keeps, which are vectors of ``each`` floats."""
    return MOST_KEPT // (each * row_outputs * row_images)


def _fully_connected(each: int, row_outputs: int, row_images: int, gradient_row_channels: int) -> dict[str, Any]:
    """What the template of threads calls the numbers of fully connected layers, with vectors of ``each`` floats."""
    return {
        "has_rows": True,
        "row_outputs": row_outputs,
        "row_images": row_images,
        "row_channels": ROW_CHANNELS,
        "most_kept_tiles": _most_kept_tiles(each, row_outputs, row_images),
        "gradient_row_channels": gradient_row_channels,
    }


EIGHTS_FAMILY = ShaderFamily(
    "convolution_of_eights",
    (IMAGE_LAYOUT, AXIS, PARAMETERS),
    {
        "unroll": 4,
        "each": 8,
        "vectors": 2,
        "tile_pixels": EIGHTS_PIXELS,
        **_fully_connected(8, ROW_OUTPUTS, ROW_IMAGES, GRADIENT_ROW_CHANNELS),
        "has_few": True,
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


def _family(name: str, each: int, vectors: int, pixels: int, **constants: Any) -> ShaderFamily:
    """That of tiles of ``pixels`` with ``vectors`` of ``each`` floats."""
    vectors_of_tile = {"each": each, "vectors": vectors, "tile_pixels": pixels}
    return ShaderFamily(
        f"convolution_of_{name}",
        (IMAGE_LAYOUT, AXIS, PARAMETERS),
        {"unroll": 4, **vectors_of_tile, "has_rows": False, "has_few": False, **constants},
        dtypes=("float",),
        template="convolution_of_eights",
        ahead_of_time=False,
        device_families=("cpu",),
    )


_SINGLE_EIGHTS = _Width(
    _family("single_eights", 8, 1, SINGLE_EIGHTS_PIXELS), SINGLE_EIGHTS_PIXELS, SINGLE_EIGHTS_COST
)
_THREE_SIXTEENS = _Width(
    _family(
        "three_sixteens",
        16,
        3,
        THREE_SIXTEENS_PIXELS,
        **_fully_connected(16, SIXTEENS_ROW_OUTPUTS, SIXTEENS_ROW_IMAGES, SIXTEENS_GRADIENT_ROW_CHANNELS),
    ),
    THREE_SIXTEENS_PIXELS,
    THREE_SIXTEENS_COST,
)
_WIDTHS = {
    EIGHTS_CHANNELS: _Width(EIGHTS_FAMILY, EIGHTS_PIXELS, 1.0),
    SINGLE_EIGHT: _SINGLE_EIGHTS,
    3 * 8: _Width(_family("three_eights", 8, 3, THREE_EIGHTS_PIXELS), THREE_EIGHTS_PIXELS, 1.0, MANY_VALUES_COST),
}
_WIDTHS_OF_MANY_REGISTERS = {
    EIGHTS_CHANNELS: _Width(_family("single_sixteens", 16, 1, SIXTEENS_PIXELS), SIXTEENS_PIXELS, SIXTEENS_COST),
    SINGLE_EIGHT: _SINGLE_EIGHTS._replace(cost=SINGLE_EIGHTS_COST_OF_MANY_REGISTERS),
    3 * 16: _THREE_SIXTEENS,
}


def _widths(numbers: Tunables) -> Mapping[int, _Width]:
    """Those of the channels that a thread may take at a time."""
    return _WIDTHS_OF_MANY_REGISTERS if numbers.has_many_registers else _WIDTHS


class _Tile(NamedTuple):
    """The kernel that computes tiles of so many ``pixels``, each of one of the blocks of channels.

    Threads of a fully connected layer that keep weights at hand take ``most_blocks`` each, go through all images and
    keep the sums of ``most_kept`` tiles, if they keep any.
    """

    family: ShaderFamily
    kernel: str
    pixels: int
    blocks_per_group: int
    most_blocks: int = 0
    most_kept: int = 0

    @property
    def keeps_weights(self) -> bool:
        return self.most_blocks > 0


def _tile_of_eights(gathered: Gather, width: int, numbers: Tunables) -> _Tile:
    """That of threads which take ``width`` channels at a time."""
    kernel, lanes = gathered.kernel, gathered.lanes
    if gathered.packing is None:
        return _tile_of_rows(gathered, numbers)
    streams = _writes_past_caches(gathered, numbers)
    # Where writing, not past the caches, takes most of the time, it takes longer from larger registers. Measured.
    is_mostly_written = kernel == "convolution_point" and gathered.channels < LANES and lanes > width and not streams
    uses_eights = width == EIGHTS_CHANNELS and is_mostly_written
    tiles = (_WIDTHS if uses_eights else _widths(numbers))[width]
    name = f"{kernel}_of_eights{'_past_caches' if streams else ''}"
    return _Tile(tiles.family, name, tiles.pixels, ceiling_divide(lanes, width))


def _tile_of_rows(gathered: Gather, numbers: Tunables) -> _Tile:
    """That of threads for a fully connected layer with the weights as they are."""
    images, lanes, name = gathered.destination[4], gathered.lanes, f"{gathered.kernel}_of_eights"
    are_few, uses_sixteens = images <= FEW_IMAGES, numbers.has_many_registers and images > FEW_IMAGES
    family = _THREE_SIXTEENS.family if uses_sixteens else EIGHTS_FAMILY
    if gathered.kernel == "convolution_rows":
        each, outputs, of_tile = 8, ROW_OUTPUTS, ROW_IMAGES
        if uses_sixteens:
            each, outputs, of_tile = 16, SIXTEENS_ROW_OUTPUTS, SIXTEENS_ROW_IMAGES
        blocks, most_kept = ceiling_divide(lanes, outputs), _most_kept_tiles(each, outputs, of_tile)
        # Images that a thread does not read again for each of its blocks; of few these stay in a near cache anyway.
        most_blocks = 1 if are_few else ceiling_divide(blocks, COPYING_THREADS_WANTED)
        return _Tile(family, name, of_tile, blocks, most_blocks, most_kept)
    if are_few:
        return _Tile(family, f"{gathered.kernel}_of_few", 1, ceiling_divide(lanes, 8 * LONE_EIGHTS))
    if uses_sixteens:
        return _Tile(family, name, THREE_SIXTEENS_PIXELS, ceiling_divide(lanes, 3 * 16), most_blocks=1)
    most_blocks = MOST_BLOCKS if lanes >= LONG_ROW else 1
    return _Tile(family, name, EIGHTS_PIXELS, ceiling_divide(lanes, EIGHTS_CHANNELS), most_blocks)


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
    blocks_per_thread = 1
    if tile.keeps_weights:
        blocks_per_thread, tiles_per_simdgroup = _share_of_rows(tile, blocks, tiles)
        blocks = ceiling_divide(blocks, blocks_per_thread)
    else:
        tiles_per_simdgroup = max(1, min(TILES_PER_SIMDGROUP, tiles * gathered.phases * blocks // SIMDGROUPS_WANTED))
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


def _share_of_rows(tile: _Tile, blocks: int, tiles: int) -> tuple[int, int]:
    """The blocks and tiles of a thread that keeps weights at hand: all tiles where there are enough blocks."""
    blocks_per_thread = tile.most_blocks
    if tile.most_kept:
        blocks_per_thread = max(1, min(blocks_per_thread, tile.most_kept // tiles))
    parts = max(1, COPYING_THREADS_WANTED // ceiling_divide(blocks, blocks_per_thread))
    tiles_per_thread = ceiling_divide(tiles, parts)
    return blocks_per_thread, min(tiles_per_thread, tile.most_kept) if tile.most_kept else tiles_per_thread


@lru_cache(maxsize=4096)
def plan(
    geometry: ConvolutionGeometry, is_gradient: bool, metal_type: str, numbers: Tunables, *, packs_all: bool = False
) -> Plan:
    """The dispatch of a kernel that gives each simdgroup, or thread, its own destination pixels and channels."""
    computes_by_eights = numbers.convolution_by_eights != NEVER and metal_type == "float"
    width, gathered = 0, gather(geometry, is_gradient, packs_all=packs_all, joins_columns=True)
    if computes_by_eights:
        width, gathered = chosen_gather(geometry, is_gradient, numbers, gathered, packs_all=packs_all)
    is_of_few = gathered.kernel == "convolution_point" and gathered.channels <= FEW_CHANNELS <= gathered.lanes
    if is_of_few and computes_by_eights and geometry.groups == 1:
        tile = _Tile(EIGHTS_FAMILY, "convolution_point_of_few", ROW_PIXELS, 1)
    elif width:
        tile = _tile_of_eights(gathered, width, numbers)
    else:
        pixels = ROW_IMAGES if gathered.kernel == "convolution_rows" else numbers.convolution_pixels_per_tile
        tile = _Tile(FAMILY, gathered.kernel, pixels, gathered.blocks_per_group)
    return _plan_of_tiles(gathered, tile)


def chosen_gather(
    geometry: ConvolutionGeometry,
    is_gradient: bool,
    numbers: Tunables,
    of_simdgroups: Gather,
    *,
    packs_all: bool = False,
) -> tuple[int, Gather]:
    """The channels that threads take at a time, 0 if simdgroups are to compute it, and the gather of floats."""
    width, of_eights, products = gather_by_eights(geometry, is_gradient, numbers, packs_all=packs_all)
    if of_eights.kernel == "convolution_fold":
        products *= FOLD_COST
    if _writes_past_caches(of_eights, numbers) or is_by_eights(numbers, products, of_simdgroups):
        return width, of_eights
    return 0, of_simdgroups


def is_by_eights(numbers: Tunables, products: float, of_simdgroups: Gather) -> bool:
    """Whether threads are to compute, with so many ``products`` for a pixel, and not simdgroups."""
    if numbers.convolution_by_eights != WHERE_FEWER:
        return numbers.convolution_by_eights == ALWAYS
    if of_simdgroups.packing is None:
        return True
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
    gathers = [
        gather(geometry, is_gradient, packs_all=packs_all, lanes=lanes, joins_columns=True) for lanes in FILLED_LANES
    ]
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
