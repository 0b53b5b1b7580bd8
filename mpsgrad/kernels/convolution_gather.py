"""Convolution and its data gradient as one gather: which kernel computes them, with which parameters and weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT, WINDOW
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry, WindowAxis
from mpsgrad.kernels.convolution_packing import LANES, PACK_PARAMETERS, PACK_ROWS, PLAIN, Packing, require_packable
from mpsgrad.kernels.pointwise import Layout
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import ALWAYS, NEVER, WHERE_FEWER, Tunables

THREADS = 256
DEPTHWISE_PIXELS = 4
DEPTHWISE_BLOCKS = 2
ROW_OUTPUTS, ROW_IMAGES = 4, 3
ROW_CHANNELS, GRADIENT_ROW_CHANNELS = 1024, 256
"""Whose weights a thread that works on eights has at hand."""
FEW_IMAGES, LONE_EIGHTS, ROWS_AHEAD = 3, 8, 8
"""Up to so many images, how many eights of channels of one of them a thread takes, and how far ahead it fetches."""
IMAGES_OF_SIMDGROUPS = 16
"""For more images than few, and up to so many, simdgroups take less time than copies of weights do."""
FEW_CHANNELS, ROW_PIXELS = 4, 16
"""With so few channels of the source, what windows of one pixel give is written pixel by pixel, so many of a tile."""
TILES_PER_SIMDGROUP = 8
SIMDGROUPS_WANTED = 64
"""So many simdgroups keep every core busy; only above that one goes on to a second tile."""

EIGHTS_CHANNELS, EIGHTS_PIXELS = 16, 6
"""Of a tile of a thread that works on eights of channels."""
SINGLE_EIGHT, SINGLE_EIGHTS_PIXELS = 8, 8
"""Of a tile where 16 channels would leave many lanes without one."""
SINGLE_EIGHTS_COST = 1.15
"""A product takes so much longer there, because a value of the source is loaded for half as many. Measured."""
EIGHTS_COST, FOLD_COST, GROUP_FOLD_COST = 1.15, 1.5, 3.0
"""A product of a thread with 16 channels takes so much longer than one of a simdgroup, where a CPU has both, and so
much again where several pixels are joined, whose results a thread stores one by one, or those of a group. Measured."""

UNPACKED_CHANNELS = 512
"""From so many values of a source on, a fully connected layer reads its weights as they are."""
FILLED_LANES = (EIGHTS_CHANNELS, SINGLE_EIGHT, 3 * EIGHTS_CHANNELS)
"""So many that few channels may fill, those of neighbouring pixels side by side: 48 are 4 x 4 pixels of three."""

AXIS = ParameterStruct(
    "GatherAxis",
    size="int",
    taps="int",
    stride="int",
    origin="int",
    step="int",
    divisor="int",
    tap_step="int",
    shift="int",
    fold="int",
)
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
    tiles="int",
    tiles_per_simdgroup="int",
    parts="int",
    zeros="int",
    biases="int",
    joins_columns="int",
    replicates="int",
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
        "eights": 2,
        "eight_pixels": EIGHTS_PIXELS,
        "row_outputs": ROW_OUTPUTS,
        "row_images": ROW_IMAGES,
        "row_channels": ROW_CHANNELS,
        "gradient_row_channels": GRADIENT_ROW_CHANNELS,
        "lone_eights": LONE_EIGHTS,
        "rows_ahead": ROWS_AHEAD,
        "row_pixels": ROW_PIXELS,
    },
    dtypes=("float",),
    device_families=("cpu",),
)
SINGLE_EIGHTS_FAMILY = ShaderFamily(
    "convolution_of_single_eights",
    (IMAGE_LAYOUT, AXIS, PARAMETERS),
    {"unroll": 4, "eights": 1, "eight_pixels": SINGLE_EIGHTS_PIXELS},
    dtypes=("float",),
    template="convolution_of_eights",
    ahead_of_time=False,
    device_families=("cpu",),
)


class Axis(NamedTuple):
    """The gather along one axis, with the fields of ``AXIS``, and how its taps follow from those of the user."""

    size: int
    taps: int
    stride: int
    origin: int
    step: int
    divisor: int
    fold: int
    tap_factor: int
    fold_factor: int
    tap_shift: int

    @property
    def tap_step(self) -> int:
        """From one tap to the next that falls on a source pixel."""
        return _steps_to_multiple(self.step, self.divisor)

    @property
    def phase_taps(self) -> int:
        """The most taps that the pixels of one phase use."""
        return ceiling_divide(self.taps, self.tap_step)

    @property
    def busy_phases(self) -> int:
        """The most phases whose pixels use a tap."""
        return min(self.divisor, self.taps)

    def packed(self) -> tuple[int, ...]:
        tap_step = self.tap_step
        shift = self.step * tap_step // self.divisor
        return (
            self.size,
            self.taps,
            self.stride,
            self.origin,
            self.step,
            self.divisor,
            tap_step,
            shift,
            self.fold,
        )


def most_windows(span: int, stride: int, pixels: int) -> int:
    """How many windows along one axis can be computed from so many pixels."""
    return max(0, (pixels - span) // stride + 1)


def axes_in_order(geometry: ConvolutionGeometry, is_gradient: bool) -> tuple[Axis, Axis]:
    """The gather along x and y, with the taps in the order of the user."""
    _, destination = geometry.ends(is_gradient)
    x, y = geometry.axes
    return _axis_in_order(x, is_gradient, destination[4]), _axis_in_order(y, is_gradient, destination[5])


def _axis_in_order(axis: WindowAxis, is_gradient: bool, size: int) -> Axis:
    taps, stride, dilation, origin = axis
    if not is_gradient:
        return Axis(size, taps, stride, origin, dilation, 1, 1, 1, 0, 0)
    return Axis(ceiling_divide(size, stride), taps, 1, -origin, -dilation, stride, 1, 1, 0, 0)


def packing_in_order(
    geometry: ConvolutionGeometry, *, transposed: bool, outputs: int, channels: int, biases: int, own_channels: bool
) -> tuple[Packing, int]:
    """Weights packed for the lanes of ``outputs``, with the taps in the order of the user, and where the biases begin.

    ``transposed`` says that the lanes are the input channels of the user's weights, which then are joined over groups.
    Each has as many ``channels``: those of all groups, or its group's ``own_channels``.
    """
    blocks = ceiling_divide(outputs, LANES)
    runs = blocks * geometry.taps
    first_bias = runs * channels * LANES
    count = first_bias + blocks * LANES
    require_packable(count)
    pack_x, pack_y = ((axis.taps, axis.taps, axis.dilation, 0, 0, axis.dilation, 1) for axis in geometry.axes)
    parameters = PACK_PARAMETERS.pack(
        x=pack_x,
        y=pack_y,
        blocks_per_group=blocks,
        outputs=outputs,
        channels=channels,
        user_outputs=geometry.group_outputs,
        user_inputs=geometry.group_inputs,
        transposed=int(transposed),
        fold_channels=outputs,
        merged=geometry.groups,
        runs=runs,
        zero_rows=0,
        blocks=blocks,
        biases=biases,
        groups=1,
        joins_columns=0,
        rounds=0,
        own_channels=int(own_channels),
    )
    kernel, threadgroups = "pack_joined" if transposed else PLAIN, runs * ceiling_divide(channels, PACK_ROWS) + blocks
    return Packing(kernel, threadgroups, parameters, count), first_bias


def reach(axis: Axis) -> tuple[int, int]:
    """The lowest pixel that taps of a destination pixel read in any phase, and how many there are to the highest."""
    reads = [
        (axis.origin + phase + axis.step * tap) // axis.divisor
        for phase in range(axis.divisor)
        for tap in range(axis.taps)
        if (axis.origin + phase + axis.step * tap) % axis.divisor == 0
    ]
    return min(reads), max(reads) - min(reads) + 1


def _steps_to_multiple(step: int, divisor: int) -> int:
    return next(count for count in range(1, divisor + 1) if count * step % divisor == 0)


@dataclass(frozen=True)
class Gather:
    """A convolution or its data gradient as one gather, whatever kernel computes it.

    ``lanes`` are the destination channels of a packed group, for all pixels that are folded into one; ``channels``
    those of the source. ``zeros`` and ``biases`` are places in the packed weights. ``pack_fields`` are those of
    ``PACK_PARAMETERS``.
    """

    kernel: str
    source: Layout
    destination: Layout
    x: Axis
    y: Axis
    packing: Packing | None
    pack_fields: Mapping[str, Any]
    channels: int
    lanes: int
    fold_channels: int
    groups: int
    blocks_per_group: int
    zeros: int
    biases: int
    replicates: bool

    @property
    def joins_columns(self) -> bool:
        """Whether a row of taps reads consecutive values."""
        return self.x.step == self.x.divisor == 1 and self.source[1] == self.channels

    def products_per_pixel(self, width: int) -> float:
        """For a pixel of the destination, also of lanes without a channel, where ``width`` lanes go together."""
        lanes = self.groups * ceiling_divide(self.lanes, width) * width
        taps = self.x.taps * self.y.taps / (self.x.tap_step * self.y.tap_step)
        return taps * self.channels * lanes / (self.x.fold * self.y.fold)


@dataclass(frozen=True)
class Sums:
    """The dispatch that adds up partial sums of ``partial_bytes``, with the parameters of the one that made them."""

    family: ShaderFamily
    kernel: str
    threadgroups: int
    partial_bytes: int


@dataclass(frozen=True)
class Plan:
    """One dispatch of a kernel of ``family``: ``packing`` is None for a kernel that reads the user's weights.

    Unless ``sums`` is None, it writes partial sums.
    """

    family: ShaderFamily
    kernel: str
    threadgroups: int
    parameters: bytes
    packing: Packing | None
    sums: Sums | None = None


def _folded_taps(axis: WindowAxis, is_gradient: bool, fold: int) -> tuple[int, int]:
    """The first source pixel and the number of taps of the joined window of ``fold`` destination pixels."""
    taps, stride, dilation, origin = axis
    if not is_gradient:
        return origin, stride * (fold - 1) + dilation * (taps - 1) + 1
    reads = [
        (pixel - origin - dilation * tap) // stride
        for pixel in range(fold)
        for tap in range(taps)
        if (pixel - origin - dilation * tap) % stride == 0
    ]
    return (min(reads), max(reads) - min(reads) + 1) if reads else (0, 1)


def _best_fold(geometry: ConvolutionGeometry, is_gradient: bool, lanes: int) -> tuple[int, int] | None:
    """How many neighbouring pixels along x and y to join in the lanes, or None if joining does not pay.

    The measure is how many taps ``lanes`` lanes multiply for each destination pixel.
    """
    x, y = geometry.axes
    *_, width, height, channels, _ = geometry.ends(is_gradient)[1]
    multiple_x, multiple_y = (x.stride, y.stride) if is_gradient else (1, 1)
    best, fewest = None, 0.9 * (geometry.taps / (multiple_x * multiple_y))
    largest = lanes // (channels // geometry.groups)
    for fold_y in range(multiple_y, min(largest, height + multiple_y) + 1, multiple_y):
        taps_y = _folded_taps(y, is_gradient, fold_y)[1]
        for fold_x in range(multiple_x, min(largest // fold_y, width + multiple_x) + 1, multiple_x):
            taps = taps_y * _folded_taps(x, is_gradient, fold_x)[1] / (fold_y * fold_x)
            if taps < fewest - 1e-9:
                best, fewest = (fold_x, fold_y), taps
    return best


def _plain_axis(axis: WindowAxis, is_gradient: bool, size: int) -> Axis:
    taps, stride, dilation, origin = axis
    if not is_gradient:
        return Axis(size, taps, stride, origin, dilation, 1, 1, dilation, 0, 0)
    if stride == 1:
        # The taps are reversed by the packing, so that they run forward through the source.
        extent = dilation * (taps - 1)
        return Axis(size, taps, 1, -origin - extent, dilation, 1, 1, -dilation, 0, extent)
    return Axis(ceiling_divide(size, stride), taps, 1, -origin, -dilation, stride, 1, dilation, 0, 0)


def _folded_axis(axis: WindowAxis, is_gradient: bool, size: int, fold: int) -> Axis:
    first, taps = _folded_taps(axis, is_gradient, fold)
    count = ceiling_divide(size, fold)
    if not is_gradient:
        return Axis(count, taps, axis.stride * fold, first, 1, 1, fold, 1, -axis.stride, first - axis.origin)
    shift = -axis.origin - axis.stride * first
    return Axis(count, taps, fold // axis.stride, first, 1, 1, fold, -axis.stride, 1, shift)


class _Spread(NamedTuple):
    """How the channels of each group, and neighbouring pixels or ``merged`` groups, are spread over lanes.

    ``inputs`` and ``outputs`` are the channels of one of the merged groups, and ``groups`` counts those after merging.
    """

    kernel: str
    x: Axis
    y: Axis
    groups: int
    inputs: int
    outputs: int
    merged: int = 1

    @property
    def channels(self) -> int:
        return self.inputs * self.merged

    @property
    def fold_channels(self) -> int:
        return self.outputs * self.merged

    @property
    def lanes(self) -> int:
        return self.fold_channels * self.x.fold * self.y.fold

    @property
    def blocks_per_group(self) -> int:
        blocks = ceiling_divide(self.lanes, LANES)
        if self.kernel != "convolution_depthwise":
            return blocks
        return ceiling_divide(blocks, DEPTHWISE_BLOCKS) * DEPTHWISE_BLOCKS


def _spread(geometry: ConvolutionGeometry, is_gradient: bool, lanes: int) -> _Spread:
    source, destination = geometry.ends(is_gradient)
    size, groups = destination[4:6], geometry.groups
    x, y = (_plain_axis(axis, is_gradient, count) for axis, count in zip(geometry.axes, size, strict=True))
    if geometry.is_depthwise and not geometry.replicates:
        return _Spread("convolution_depthwise", x, y, 1, 1, groups)
    dense = _Spread("convolution_dense", x, y, groups, source[6] // groups, destination[6] // groups)
    if dense.outputs > lanes // 2:
        return dense
    folds = _best_fold(geometry, is_gradient, lanes)
    if folds is None:
        merged = max(m for m in range(1, groups + 1) if groups % m == 0 and m * dense.outputs <= lanes)
        return dense._replace(groups=groups // merged, merged=merged)
    x, y = (
        _folded_axis(axis, is_gradient, count, fold)
        for axis, count, fold in zip(geometry.axes, size, folds, strict=True)
    )
    return dense._replace(kernel="convolution_fold", x=x, y=y)


class _Packed(NamedTuple):
    """The packing of a gather, with the values of ``PACK_PARAMETERS``, and where zeros and biases begin in it."""

    packing: Packing
    fields: dict[str, Any]
    zeros: int
    biases: int


def _packed(geometry: ConvolutionGeometry, is_gradient: bool, spread: _Spread, biases: int) -> _Packed:
    """The packing for the lanes of ``spread``, of a result with so many ``biases``."""
    is_depthwise, channels = spread.kernel == "convolution_depthwise", spread.channels
    user_inputs, user_outputs = spread.inputs, spread.outputs
    if is_gradient:
        user_inputs, user_outputs = user_outputs, user_inputs
    blocks = spread.groups * spread.blocks_per_group
    runs = blocks * spread.x.taps * spread.y.taps
    # As many zeros as one run of columns reads.
    zero_rows = ceiling_divide(spread.x.taps * channels, LANES)
    rows = runs * channels
    count = (rows + zero_rows + blocks) * LANES
    require_packable(count)
    pack_x, pack_y = (
        (axis.taps, of_user.taps, axis.tap_factor, axis.fold_factor, axis.tap_shift, of_user.dilation, axis.fold)
        for axis, of_user in zip((spread.x, spread.y), geometry.axes, strict=True)
    )
    fields = {
        "x": pack_x,
        "y": pack_y,
        "blocks_per_group": spread.blocks_per_group,
        "outputs": spread.lanes,
        "channels": channels,
        "user_outputs": user_outputs,
        "user_inputs": user_inputs,
        "transposed": int(is_gradient and not is_depthwise),
        "fold_channels": spread.fold_channels,
        "merged": spread.merged,
        "groups": spread.groups,
        "runs": runs,
        "zero_rows": zero_rows,
        "blocks": blocks,
        "biases": biases,
        "joins_columns": 0,
        "rounds": 0,
        "own_channels": 0,
    }
    is_joined = spread.kernel == "convolution_fold" or spread.merged > 1
    packing = Packing(
        kernel="pack_joined" if is_joined else PLAIN,
        threadgroups=runs * ceiling_divide(channels, PACK_ROWS) + zero_rows + blocks,
        parameters=PACK_PARAMETERS.pack(**fields),
        count=count,
    )
    return _Packed(packing, fields, zeros=rows * LANES, biases=(rows + zero_rows) * LANES)


def gather(
    geometry: ConvolutionGeometry, is_gradient: bool, *, packs_all: bool = False, lanes: int = LANES
) -> Gather:
    """What gives the result from the source, or the data gradient in the place of the source from the result's.

    With ``packs_all`` the weights of large fully connected layers are packed too. ``lanes`` are those that few channels
    should fill.
    """
    biases = geometry.ends(is_gradient)[1][6]
    long_pixels = geometry.with_long_pixels()
    rows = None if long_pixels is None else long_pixels.in_one_row()
    if rows is not None:
        geometry = rows
        if geometry.inputs >= UNPACKED_CHANNELS and not packs_all:
            return _unpacked_gather(geometry, is_gradient)
    spread = _spread(geometry, is_gradient, lanes)
    rows = geometry.in_one_row() if geometry.is_pointwise and spread.kernel == "convolution_dense" else None
    if rows is not None:
        geometry = rows
        spread = spread._replace(
            kernel="convolution_point", x=spread.x._replace(size=rows.result[4]), y=spread.y._replace(size=1)
        )
    packed = _packed(geometry, is_gradient, spread, biases)
    source, destination = geometry.ends(is_gradient)
    return Gather(
        spread.kernel,
        source,
        destination,
        spread.x,
        spread.y,
        packed.packing,
        packed.fields,
        channels=spread.channels,
        lanes=spread.lanes,
        fold_channels=spread.fold_channels,
        groups=spread.groups,
        blocks_per_group=spread.blocks_per_group,
        zeros=packed.zeros,
        biases=packed.biases,
        replicates=geometry.replicates,
    )


def _unpacked_gather(geometry: ConvolutionGeometry, is_gradient: bool) -> Gather:
    source, destination = geometry.ends(is_gradient)
    axis = Axis(1, 1, 1, 0, 1, 1, 1, 1, 0, 0)
    return Gather(
        "convolution_point_unpacked" if is_gradient else "convolution_rows",
        source,
        destination,
        axis._replace(size=destination[4]),
        axis,
        None,
        {},
        channels=source[6],
        lanes=destination[6],
        fold_channels=destination[6],
        groups=1,
        blocks_per_group=ceiling_divide(destination[6], LANES if is_gradient else ROW_OUTPUTS),
        zeros=0,
        biases=0,
        replicates=False,
    )


class _Tile(NamedTuple):
    """The kernel that computes tiles of so many ``pixels``, each of one of the blocks of channels."""

    family: ShaderFamily
    kernel: str
    pixels: int
    blocks_per_group: int


def _tile_of_eights(gathered: Gather, width: int) -> _Tile:
    """That of threads which take ``width`` channels at a time."""
    kernel, lanes = gathered.kernel, gathered.lanes
    if kernel == "convolution_rows":
        return _Tile(EIGHTS_FAMILY, f"{kernel}_of_eights", ROW_IMAGES, gathered.blocks_per_group)
    if kernel == "convolution_point_unpacked" and gathered.destination[4] <= FEW_IMAGES:
        return _Tile(EIGHTS_FAMILY, f"{kernel}_of_few", 1, ceiling_divide(lanes, 8 * LONE_EIGHTS))
    if width == SINGLE_EIGHT:
        family, pixels = SINGLE_EIGHTS_FAMILY, SINGLE_EIGHTS_PIXELS
    else:
        family, pixels = EIGHTS_FAMILY, EIGHTS_PIXELS
    return _Tile(family, f"{kernel}_of_eights", pixels, ceiling_divide(lanes, width))


def _plan_of_tiles(gathered: Gather, tile: _Tile) -> Plan:
    x, y = gathered.x, gathered.y
    blocks = gathered.groups * tile.blocks_per_group
    rows = gathered.destination[7] * y.size
    tiles = ceiling_divide(rows * x.size, tile.pixels)
    if tile.kernel == "convolution_depthwise":
        tiles = rows
        blocks //= DEPTHWISE_BLOCKS
    phases = x.divisor * y.divisor
    tiles_per_simdgroup = max(1, min(TILES_PER_SIMDGROUP, tiles * phases * blocks // SIMDGROUPS_WANTED))
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
        tiles=tiles,
        tiles_per_simdgroup=tiles_per_simdgroup,
        parts=parts,
        zeros=gathered.zeros,
        biases=gathered.biases,
        joins_columns=int(gathered.joins_columns),
        replicates=int(gathered.replicates),
    )
    return Plan(tile.family, tile.kernel, blocks * parts * phases, parameters, gathered.packing)


@lru_cache(maxsize=4096)
def plan(
    geometry: ConvolutionGeometry, is_gradient: bool, metal_type: str, numbers: Tunables, *, packs_all: bool = False
) -> Plan:
    """The dispatch of a kernel that gives each simdgroup, or thread, its own destination pixels and channels."""
    width, gathered = LANES, gather(geometry, is_gradient, packs_all=packs_all)
    computes_by_eights = numbers.convolution_by_eights != NEVER and metal_type == "float"
    if computes_by_eights:
        eights_width, of_eights, products = _gather_by_eights(geometry, is_gradient, packs_all)
        if of_eights.kernel == "convolution_fold":
            products *= FOLD_COST if geometry.groups == 1 else GROUP_FOLD_COST
        if is_by_eights(numbers, products, gathered):
            width, gathered = eights_width, of_eights
    is_of_few = gathered.kernel == "convolution_point" and gathered.channels <= FEW_CHANNELS <= gathered.lanes
    if is_of_few and computes_by_eights and geometry.groups == 1:
        tile = _Tile(EIGHTS_FAMILY, "convolution_point_of_few", ROW_PIXELS, 1)
    elif width < LANES:
        tile = _tile_of_eights(gathered, width)
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


def _gather_by_eights(
    geometry: ConvolutionGeometry, is_gradient: bool, packs_all: bool
) -> tuple[int, Gather, float]:
    """How many channels a thread takes at a time, the gather with the fewest products for that, and their number."""
    gathers = [gather(geometry, is_gradient, packs_all=packs_all, lanes=lanes) for lanes in FILLED_LANES]
    if gathers[0].packing is None:
        return EIGHTS_CHANNELS, gathers[0], 0.0
    products, width, gathered = min(
        (
            (cost * gathered.products_per_pixel(width), width, gathered)
            for gathered in gathers
            for width, cost in ((EIGHTS_CHANNELS, 1.0), (SINGLE_EIGHT, SINGLE_EIGHTS_COST))
        ),
        key=itemgetter(0),
    )
    return width, gathered, products
