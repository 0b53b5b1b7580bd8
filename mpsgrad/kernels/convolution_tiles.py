"""Convolution and its gradients as products of matrices in tiles, for GPUs: which kernel, with which parameters."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

from mpsgrad.geometry import ceiling_divide
from mpsgrad.image_descriptor import LARGEST_ELEMENT_COUNT
from mpsgrad.kernel import IMAGE_LAYOUT, WINDOW
from mpsgrad.kernels import convolution_depthwise, convolution_direct, convolution_to_few
from mpsgrad.kernels.channel_padding import TIME_WITHOUT_VECTORS, Padding
from mpsgrad.kernels.convolution_axis import AXIS
from mpsgrad.kernels.convolution_gather import Gather, gather
from mpsgrad.kernels.convolution_gather import Plan as GatherPlan
from mpsgrad.kernels.convolution_gather import Sums as GatherSums
from mpsgrad.kernels.convolution_geometry import POINT, ConvolutionGeometry
from mpsgrad.kernels.convolution_packing import LANES, half_packing
from mpsgrad.kernels.convolution_tile import Kind, Products, Tile, Tiling, all_tiles, fits_every_gpu, tiling
from mpsgrad.kernels.convolution_weights_gradient import Plan as WeightsPlan
from mpsgrad.kernels.convolution_weights_gradient import plan_of_splits
from mpsgrad.kernels.divisor import DIVISOR, divisor
from mpsgrad.kernels.pointwise import Layout, values_of_vector
from mpsgrad.shader import DEVICE_FAMILIES, ParameterStruct, ShaderFamily

GATHER_PARAMETERS = ParameterStruct(
    "ConvolutionTilesParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    x=AXIS,
    y=AXIS,
    channels="int",
    lanes="int",
    fold_channels="int",
    groups="int",
    source_group_stride="int",
    destination_group_stride="int",
    blocks_per_group="int",
    row_tiles="int",
    column_tiles="int",
    rows="int",
    splits="int",
    partial_lanes="int",
    biases="int",
    joins_columns="int",
    replicates="int",
    stores_vectors="int",
    tiles_of_phase="int",
    first_phase_x="int",
    first_phase_y="int",
    by_width=DIVISOR,
    by_height=DIVISOR,
    by_column_tiles=DIVISOR,
)
WEIGHTS_PARAMETERS = ParameterStruct(
    "ConvolutionWeightsTilesParameters",
    gradient=IMAGE_LAYOUT,
    source=IMAGE_LAYOUT,
    window=WINDOW,
    channels="int",
    stored_channels="int",
    group_outputs="int",
    joined_outputs="int",
    groups="int",
    row_tiles="int",
    column_tiles="int",
    chunk_x="int",
    chunk_y="int",
    chunk_n="int",
    pixels_per_part="int",
    pixels_per_split="int",
    splits_per_part="int",
    splits="int",
    split_stride="int",
    weights="int",
    replicates="int",
    accumulates="int",
    are_symmetric="int",
)
_TEMPLATES = {
    ("gather", "float"): "convolution_tiles",
    ("gather", "half"): "convolution_matrices",
    ("weights", "float"): "convolution_weights_tiles",
    ("weights", "half"): "convolution_weights_matrices",
}
GATHER_WIDTHS = {"float": (4, 1), "half": (8, 4, 1)}
"""How many values of the source a thread may read at a time for the result or the data gradient, the best first."""
TIME_BY_FOURS = 1.3
"""Products of halves that are read by fours take about so many times as long as is said. Measured on an H200."""
WEIGHTS_WIDTHS = {
    "float": ((4, 4), (4, 1), (1, 4), (2, 2), (1, 1)),
    "half": ((8, 8), (8, 1), (1, 8), (2, 2), (1, 1)),
}
"""How many values of the gradient and of the source a thread may read at a time for the weights, the best first."""
TIME_OF_FLOATS = {(4, 1): 1.0, (1, 4): 1.0, (2, 2): 1.0, (1, 1): 1.5}
"""Products of floats that are read so take about so many times as long as is said. Measured on an H200."""
SUM_THREADS = 128
SPLITS_AT_ONCE = 8
"""So many partial sums a thread that adds them up has on their way."""
JOINED_LANES, MOST_JOINED_PRODUCTS = 64, 0.6
"""The columns of a tile for the pixels of one stride, which need more than one only where no windows overlap. Their
results are scattered, so it has to save the rest of the products that one phase after the other would take."""
JOINED_GROUP_LANES = (64, 128)
"""As many lanes, or rows of weights, groups of few channels are joined to, where their products with each other, which
are zeros or not stored, take less time than tiles that are mostly empty."""
_STRUCTS = {
    "gather": (IMAGE_LAYOUT, AXIS, DIVISOR, GATHER_PARAMETERS),
    "weights": (IMAGE_LAYOUT, WINDOW, WEIGHTS_PARAMETERS),
}


def _family(kind: Kind, metal_type: str, tile: Tile, *, is_scattered: bool = False) -> ShaderFamily:
    """If it ``is_scattered`` it stores the channels of a pixel one by one, of results that vectors do not fit."""
    return ShaderFamily(
        f"{_TEMPLATES[kind, metal_type]}_{tile.name}" + ("_scattered" if is_scattered else ""),
        _STRUCTS[kind],
        {
            **tile.constants,
            "unroll": "#pragma unroll",
            "widths": [widths for widths in WEIGHTS_WIDTHS[metal_type] if tile.columns // widths[1] <= tile.threads],
            "is_scattered": is_scattered,
        },
        # Sums need registers, which CPUs have not enough of, and compile in a tenth of the time without.
        {"cpu": {"unroll": "#pragma clang loop unroll(disable)"}},
        dtypes=(metal_type,),
        template=_TEMPLATES[kind, metal_type] + ("_in_place" if tile.in_place else ""),
        # A device compiles the tiles that it uses, at their first use.
        ahead_of_time=False,
        # More threadgroup memory than Apple GPUs have.
        device_families=DEVICE_FAMILIES if fits_every_gpu(kind, metal_type, tile) else ("cpu", "nvidia"),
    )


FAMILIES = {
    (kind, metal_type, tile): _family(kind, metal_type, tile)
    for kind, metal_type, tile in sorted(all_tiles())
    if kind in _STRUCTS
}
SCATTERED_FAMILIES = {
    tile: _family(kind, metal_type, tile, is_scattered=True)
    for kind, metal_type, tile in sorted(all_tiles())
    if (kind, metal_type) == ("gather", "half") and not tile.in_place
}
"""Those of halves: in one kernel with the others they would make these longer, and slower."""
SUMS_FAMILY = ShaderFamily(
    "convolution_tile_sums",
    _STRUCTS["gather"],
    {"threads": SUM_THREADS, "splits_at_once": SPLITS_AT_ONCE},
    ahead_of_time=False,
)


def _threadgroups_of_rows(row_tiles: int, resident: int) -> int:
    """How many threadgroups share ``row_tiles`` evenly if ``resident`` run at a time."""
    return ceiling_divide(row_tiles, ceiling_divide(row_tiles, resident)) if 0 < resident < row_tiles else row_tiles


def _is_aligned(layout: Layout, channels: int, values: int) -> bool:
    """Whether ``values`` channels of an image, from a multiple of that on, are always one aligned vector."""
    return all(n % values == 0 for n in (channels, *layout[:4]))


@lru_cache(maxsize=4096)
def plan_gather(
    geometry: ConvolutionGeometry,
    is_gradient: bool,
    metal_type: str,
    tiling_name: str,
    compute_units: int,
    *,
    rounds: bool = False,
) -> GatherPlan | None:
    """What computes the result, or the data gradient.

    None if the weights would be too many when they are packed. If it ``rounds``, weights are packed as one half number.
    """
    # As pairs of half numbers.
    if geometry.is_fully_connected and 2 * geometry.weights_count > LARGEST_ELEMENT_COUNT:
        return None
    units = compute_units or tiling(tiling_name).units_unless_known
    if is_gradient:
        to_few = convolution_to_few.plan_gradient(geometry, metal_type, units)
        if to_few is not None:
            return to_few
    direct = convolution_direct.plan_gather(geometry, is_gradient, metal_type, units)
    if direct is not None:
        return direct
    gathered = _gather(geometry, is_gradient, metal_type)
    if gathered.kernel == "convolution_depthwise":
        return convolution_depthwise.plan_gather(gathered)
    gathers = [gathered]
    if metal_type == "half" and geometry.groups > 1:
        gathers += (
            gather(geometry, is_gradient, packs_all=True, lanes=lanes, joins_pixels=False)
            for lanes in JOINED_GROUP_LANES
        )
    plans = (
        _plan_of_gather(
            each, (each.channels, each.fold_channels), metal_type, tiling_name, compute_units, rounds=rounds
        )
        for each in gathers
    )
    return min(plans, key=lambda plan: plan.time)


@lru_cache(maxsize=512)
def plan_sub_pixels(
    geometry: ConvolutionGeometry,
    destination: Layout,
    factor: int,
    metal_type: str,
    tiling_name: str,
    compute_units: int,
    *,
    rounds: bool = False,
) -> GatherPlan | None:
    """What computes the result and writes the channels of each pixel to a square of ``factor`` pixels a side.

    None where the result is not computed in tiles whose lanes are the channels of one pixel.
    """
    units = compute_units or tiling(tiling_name).units_unless_known
    gathered = _gather(geometry, False, metal_type)
    is_dense = geometry.groups == 1 and gathered.kernel == "convolution_dense"
    if not is_dense or convolution_direct.plan_gather(geometry, False, metal_type, units) is not None:
        return None
    x, y = (axis._replace(fold=factor) for axis in (gathered.x, gathered.y))
    spread = replace(gathered, destination=destination, x=x, y=y, fold_channels=destination[6])
    strides = spread.channels, spread.fold_channels
    return _plan_of_gather(spread, strides, metal_type, tiling_name, compute_units, rounds=rounds)


def _gather(geometry: ConvolutionGeometry, is_gradient: bool, metal_type: str) -> Gather:
    """The gather with the least that tiles multiply in vain."""
    values = values_of_vector(metal_type)
    # Groups side by side are read as vectors; that their products are mostly with zeros costs little for half numbers.
    channels = geometry.ends(is_gradient)[0][6] // geometry.groups
    joins_groups = metal_type == "half" and geometry.groups > 1 and channels % values != 0
    gathered = gather(geometry, is_gradient, packs_all=True, joins_pixels=not joins_groups)
    x, y = geometry.axes
    if not is_gradient or geometry.groups > 1 or gathered.kernel != "convolution_dense" or x.stride * y.stride == 1:
        return gathered
    # Pixels of each phase would leave most columns of a tile without a channel.
    lanes, is_of_patches = geometry.inputs * x.stride * y.stride, (x.taps, y.taps) == (x.stride, y.stride)
    if geometry.inputs > LANES // 2 or not (lanes <= JOINED_LANES or is_of_patches):
        return gathered
    joined = gather(geometry, is_gradient, packs_all=True, lanes=lanes)
    products = joined.x.taps * joined.y.taps * ceiling_divide(lanes, JOINED_LANES) * JOINED_LANES
    return joined if products < MOST_JOINED_PRODUCTS * geometry.taps * LANES else gathered


@lru_cache(maxsize=512)
def plan_products_with_matrices(
    source: Layout, destination: Layout, metal_type: str, tiling_name: str, compute_units: int
) -> GatherPlan:
    """What multiplies the pixels of each image by a matrix of its own, [image][channel of source][channel], float32.

    Images have more than ``LANES // 2`` channels, and pixels at even distances.
    """
    of_source, of_destination = (
        (*layout[:4], layout[4] * layout[5], 1, layout[6] * layout[7], 1) for layout in (source, destination)
    )
    geometry = ConvolutionGeometry(of_destination, of_source, POINT, groups=source[7])
    gathered = gather(geometry, is_gradient=True, packs_all=True)
    start, pixel, _, image, width, height, channels, images = source
    pixels = width * height
    copy = Padding((start, pixel, pixels * pixel, image, pixels, 1, channels, images), metal_type)
    return _plan_of_gather(gathered, (image, destination[3]), metal_type, tiling_name, compute_units, copy=copy)


class _Division(NamedTuple):
    """How sums are divided into tiles, those of one matrix into so many along rows and columns, and their products.

    ``time`` are the microseconds that they take, ``store_time`` those of them in which results are stored one by one,
    which are left out of ``time`` for a tile in place.
    """

    tile: Tile
    row_tiles: int
    column_tiles: int
    splits: int
    time: float
    store_time: float = 0.0

    def time_without_vectors(self, width: int = 1) -> float:
        """The microseconds if values are read one by one, or ``width`` at a time."""
        longer = TIME_BY_FOURS if width == 4 else TIME_WITHOUT_VECTORS
        return longer * (self.time - self.store_time) + self.store_time


def _division_of_gather(
    gathered: Gather, metal_type: str, of_device: Tiling, units: int, *, is_aligned: bool, joins_columns: bool
) -> _Division:
    def counts(tile: Tile) -> tuple[int, int]:
        return ceiling_divide(gathered.phase_pixels, tile.rows), ceiling_divide(gathered.lanes, tile.columns)

    # Of the matrices of a gradient, those of pixels that no window reads take no time.
    busy_matrices = gathered.groups * gathered.x.busy_phases * gathered.y.busy_phases
    products = Products(
        "gather",
        metal_type,
        lambda tile: math.prod(counts(tile)) * busy_matrices,
        run_length=gathered.channels * (gathered.x.taps if joins_columns else 1),
        values=_partial_sums(gathered, metal_type),
        runs=gathered.y.phase_taps * (1 if joins_columns else gathered.x.phase_taps),
        is_aligned=is_aligned,
        has_zeros_outside=not gathered.replicates,
        are_scattered=not _stores_vectors(gathered, metal_type),
    )
    tile, splits = of_device.divided(products, units)
    row_tiles, column_tiles = counts(tile)
    if tile.weight_stages:
        matrices = gathered.groups * gathered.phases
        row_tiles = _threadgroups_of_rows(row_tiles, units * tile.resident // (column_tiles * matrices))
    store_time = of_device.store_time(products, units, tile) if splits == 1 else 0.0
    return _Division(tile, row_tiles, column_tiles, splits, of_device.time(products, units, tile, splits), store_time)


def _has_longer_phases(gathered: Gather) -> bool:
    """Whether the pixels of some phases use more taps than those of others."""
    return any(len(set(axis.taps_of_phases)) > 1 for axis in (gathered.x, gathered.y))


def _first_phase(taps_of_phases: list[int]) -> int:
    """The first one of those with the most taps, which follow each other and may go round."""
    most = max(taps_of_phases)
    return next((n for n, taps in enumerate(taps_of_phases) if taps == most > taps_of_phases[n - 1]), 0)


def _stores_vectors(gathered: Gather, metal_type: str) -> bool:
    is_folded = gathered.lanes != gathered.fold_channels
    return not is_folded and _is_aligned(gathered.destination, gathered.lanes, values_of_vector(metal_type))


def _partial_lanes(gathered: Gather, metal_type: str) -> int:
    """The lanes of a partial sum, which is stored in whole vectors."""
    values = values_of_vector(metal_type)
    return ceiling_divide(gathered.lanes, values) * values


def _partial_sums(gathered: Gather, metal_type: str) -> int:
    """How many values there are in each split."""
    return gathered.groups * gathered.phases * gathered.phase_pixels * _partial_lanes(gathered, metal_type)


class _Reads(NamedTuple):
    """How tiles read the source of what they gather: ``width`` values at once, of it or of a copy with ``padding``."""

    gathered: Gather
    division: _Division
    width: int
    joins_columns: bool
    padding: Padding | None


def _faster_reads(
    gathered: Gather, metal_type: str, of_device: Tiling, units: int, copy: Padding | None
) -> _Reads:
    """Of the source as it is; or of a copy of halves that vectors fit, where that takes less time with the copy.

    Images that are groups have one if that is given.
    """
    values = values_of_vector(metal_type)
    is_aligned = _is_aligned(gathered.source, gathered.channels, values)
    joins_columns = not is_aligned and gathered.joins_columns and not gathered.replicates
    division = _division_of_gather(
        gathered, metal_type, of_device, units, is_aligned=is_aligned, joins_columns=joins_columns
    )
    widths = GATHER_WIDTHS[metal_type]
    width = next(count for count in widths if _is_aligned(gathered.source, gathered.channels, count))
    as_it_is = _Reads(gathered, division, width, joins_columns, None)
    padding = Padding(gathered.source, metal_type) if gathered.groups == 1 and copy is None else copy
    if is_aligned or metal_type != "half" or padding is None:
        return as_it_is
    copied = (*padding.destination[:6], padding.channels * gathered.groups, padding.source[7] // gathered.groups)
    padded = replace(gathered, source=copied, channels=padding.channels)
    of_padded = _division_of_gather(padded, metal_type, of_device, units, is_aligned=True, joins_columns=False)
    of_padded = of_padded._replace(time=of_padded.time + padding.time(units))
    left_out = of_padded.store_time if width > 1 and of_padded.tile.in_place else 0.0
    is_faster = of_padded.time + left_out < division.time_without_vectors(width)
    return _Reads(padded, of_padded, values, False, padding) if is_faster else as_it_is


def _plan_of_gather(
    gathered: Gather,
    group_strides: tuple[int, int],
    metal_type: str,
    tiling_name: str,
    compute_units: int,
    *,
    rounds: bool = False,
    copy: Padding | None = None,
) -> GatherPlan:
    """``group_strides`` are from one group's first channel to the next one's, of source and destination.

    ``copy`` is one of halves that vectors fit, if images are groups.
    """
    assert gathered.packing is not None
    of_device = tiling(tiling_name)
    chosen = _faster_reads(gathered, metal_type, of_device, compute_units or of_device.units_unless_known, copy)
    gathered, joins_columns = chosen.gathered, chosen.joins_columns
    tile, row_tiles, column_tiles, splits, time, _ = chosen.division
    packing, biases = gathered.packing, gathered.biases
    if metal_type == "half":
        packing, biases = half_packing(gathered.pack_fields, joins_columns, rounds)
    parameters = GATHER_PARAMETERS.pack(
        source=gathered.source,
        destination=gathered.destination,
        x=gathered.x.packed(),
        y=gathered.y.packed(),
        channels=gathered.channels,
        lanes=gathered.lanes,
        fold_channels=gathered.fold_channels,
        groups=gathered.groups,
        source_group_stride=group_strides[0] if copy is None or chosen.padding is None else gathered.source[3],
        destination_group_stride=group_strides[1],
        blocks_per_group=gathered.blocks_per_group,
        row_tiles=row_tiles,
        column_tiles=column_tiles,
        rows=gathered.phase_pixels,
        splits=splits,
        partial_lanes=_partial_lanes(gathered, metal_type),
        biases=biases,
        joins_columns=int(joins_columns),
        replicates=int(gathered.replicates),
        stores_vectors=int(_stores_vectors(gathered, metal_type)),
        # Long tiles that begin last would leave a GPU half idle.
        tiles_of_phase=row_tiles * gathered.groups * splits if _has_longer_phases(gathered) else 0,
        first_phase_x=_first_phase(gathered.x.taps_of_phases),
        first_phase_y=_first_phase(gathered.y.taps_of_phases),
        by_width=divisor(gathered.x.size),
        by_height=divisor(gathered.y.size),
        by_column_tiles=divisor(column_tiles),
    )
    sums = None
    if splits > 1:
        count = _partial_sums(gathered, metal_type)
        sums = GatherSums(SUMS_FAMILY, "sum_of_tiles", ceiling_divide(count // 4, SUM_THREADS), 4 * splits * count)
    family, is_folded = FAMILIES["gather", metal_type, tile], gathered.lanes != gathered.fold_channels
    is_scattered = splits == 1 and gathered.lanes > LANES and not (is_folded or _stores_vectors(gathered, metal_type))
    if is_scattered and metal_type == "half" and not tile.in_place:
        family = SCATTERED_FAMILIES[tile]
    return GatherPlan(
        family,
        f"{_TEMPLATES['gather', metal_type]}_{tile.name}_by_{chosen.width}",
        row_tiles * column_tiles * gathered.groups * gathered.phases * splits,
        parameters,
        packing,
        sums,
        chosen.padding,
        time,
    )


@lru_cache(maxsize=4096)
def plan_weights(
    geometry: ConvolutionGeometry, accumulates: bool, metal_type: str, tiling_name: str, compute_units: int
) -> WeightsPlan | None:
    """What computes the gradients for weights and biases; None where there are no pixels."""
    if not geometry.pixels:
        return None
    units = compute_units or tiling(tiling_name).units_unless_known
    if geometry.is_depthwise:
        return convolution_depthwise.plan_weights(geometry, accumulates, units)
    geometry = geometry.with_long_pixels() or geometry
    return _plan_of_weights(geometry, accumulates, metal_type, tiling_name, units)


@lru_cache(maxsize=512)
def plan_products_of_channels(image: Layout, metal_type: str, tiling_name: str, compute_units: int) -> WeightsPlan:
    """What adds up the products of each two channels over the pixels of each image, which has some.

    Each image has as many splits, one after the other, and of each square of sums on or right of the diagonal.
    """
    units = compute_units or tiling(tiling_name).units_unless_known
    geometry = ConvolutionGeometry(image, image, POINT)
    return _plan_of_weights(geometry, False, metal_type, tiling_name, units, parts=image[7], are_symmetric=True)


def _tile_count(row_tiles: int, column_tiles: int, are_symmetric: bool) -> int:
    """The tiles of a matrix; of symmetric sums those on or right of the diagonal."""
    return math.comb(row_tiles + 1, 2) if are_symmetric else row_tiles * column_tiles


def _division_of_weights(
    geometry: ConvolutionGeometry,
    metal_type: str,
    of_device: Tiling,
    units: int,
    *,
    channels: int,
    parts: int,
    is_aligned: bool,
    are_symmetric: bool,
    joined: int = 1,
) -> _Division:
    """``channels`` are those of ``joined`` groups of the source."""

    def counts(tile: Tile) -> tuple[int, int]:
        columns = geometry.taps * channels
        return ceiling_divide(joined * geometry.group_outputs, tile.rows), ceiling_divide(columns, tile.columns)

    products = Products(
        "weights",
        metal_type,
        lambda tile: _tile_count(*counts(tile), are_symmetric) * (geometry.groups // joined) * parts,
        run_length=geometry.pixels // parts,
        values=geometry.weights_count * parts // (2 if are_symmetric else 1),
        is_aligned=is_aligned,
        has_zeros_outside=not geometry.replicates,
        are_symmetric=are_symmetric,
    )
    tile, splits = of_device.divided(products, units)
    return _Division(tile, *counts(tile), splits, of_device.time(products, units, tile, splits))


def _with_padding(
    geometry: ConvolutionGeometry, metal_type: str, of_device: Tiling, units: int
) -> tuple[ConvolutionGeometry, _Division, tuple[Padding | None, Padding | None]]:
    """``geometry`` of images without groups, with copies of those that vectors do not fit, and its products."""
    paddings: list[Padding | None] = []
    layouts, start = [], 0
    for layout in (geometry.result, geometry.source):
        fits = _is_aligned(layout, layout[6], values_of_vector(metal_type))
        padding = None if fits else Padding(layout, metal_type, start)
        if padding is not None:
            layout = (*padding.destination[:6], *layout[6:])
            start += padding.values
        paddings.append(padding)
        layouts.append(layout)
    of_result, of_source = paddings
    padded = replace(geometry, result=layouts[0], source=layouts[1])
    division = _division_of_weights(
        padded,
        metal_type,
        of_device,
        units,
        channels=of_source.channels if of_source else geometry.inputs,
        parts=1,
        is_aligned=True,
        are_symmetric=False,
    )
    time = division.time + sum(padding.time(units) for padding in paddings if padding)
    return padded, division._replace(time=time), (of_result, of_source)


def _joined_groups(geometry: ConvolutionGeometry, metal_type: str) -> list[int]:
    """How many groups may be joined, so that vectors fit both images."""
    values = values_of_vector(metal_type)
    sizes = ((geometry.result, geometry.group_outputs), (geometry.source, geometry.group_inputs))
    return [
        count
        for count in range(2, geometry.groups + 1)
        if geometry.groups % count == 0
        and count * max(geometry.group_outputs, geometry.group_inputs) <= max(JOINED_GROUP_LANES)
        and all(_is_aligned(layout, count * channels, values) for layout, channels in sizes)
    ]


class _Blocks(NamedTuple):
    """What tiles of gradients for weights read: ``channels`` of each of ``joined`` groups, so many values at once.

    The images of ``geometry`` are copies where there are ``paddings``, of the result and of the source.
    """

    geometry: ConvolutionGeometry
    division: _Division
    row_width: int
    column_width: int
    channels: int
    joined: int = 1
    paddings: tuple[Padding | None, Padding | None] = (None, None)


def _fastest_blocks(
    geometry: ConvolutionGeometry,
    metal_type: str,
    of_device: Tiling,
    units: int,
    *,
    parts: int,
    are_symmetric: bool,
) -> _Blocks:
    """Of the images as they are, of copies that vectors fit, or of groups that are joined."""
    channels, values = geometry.group_inputs, values_of_vector(metal_type)
    widths = next(
        widths
        for widths in WEIGHTS_WIDTHS[metal_type]
        if _is_aligned(geometry.result, geometry.group_outputs, widths[0])
        and _is_aligned(geometry.source, channels, widths[1])
    )
    is_aligned = widths == (values, values)
    division_of = partial(
        _division_of_weights, geometry, metal_type, of_device, units, parts=parts, are_symmetric=are_symmetric
    )
    blocks = [_Blocks(geometry, division_of(channels=channels, is_aligned=is_aligned), *widths, channels)]
    if geometry.groups == 1 and not (is_aligned or are_symmetric):
        padded, division, paddings = _with_padding(geometry, metal_type, of_device, units)
        padded_channels = paddings[1].channels if paddings[1] else channels
        as_it_is = blocks[0].division
        longer = as_it_is.time_without_vectors() if metal_type == "half" else TIME_OF_FLOATS[widths] * as_it_is.time
        if division.time < longer:
            return _Blocks(padded, division, values, values, padded_channels, 1, paddings)
    for count in _joined_groups(geometry, metal_type) if not are_symmetric else ():
        division = division_of(channels=count * channels, is_aligned=True, joined=count)
        blocks.append(_Blocks(geometry, division, values, values, channels, count))
    return min(blocks, key=lambda each: each.division.time)


def _plan_of_weights(
    geometry: ConvolutionGeometry,
    accumulates: bool,
    metal_type: str,
    tiling_name: str,
    units: int,
    *,
    parts: int = 1,
    are_symmetric: bool = False,
) -> WeightsPlan:
    """``parts`` of the images have sums of their own, of as many splits each, even one if they ``are_symmetric``."""
    group_outputs, stored_channels = geometry.group_outputs, geometry.group_inputs
    chosen = _fastest_blocks(
        geometry, metal_type, tiling(tiling_name), units, parts=parts, are_symmetric=are_symmetric
    )
    geometry, joined = chosen.geometry, chosen.joined
    width, height = geometry.result[4:6]
    pixels = geometry.pixels // parts
    tile, row_tiles, column_tiles, splits, time, _ = chosen.division
    pixels_per_split = ceiling_divide(ceiling_divide(pixels, splits), tile.depth) * tile.depth
    splits_per_part = ceiling_divide(pixels, pixels_per_split)
    splits = parts * splits_per_part
    plan = plan_of_splits(
        FAMILIES["weights", metal_type, tile],
        f"convolution_gradient_weights_{_TEMPLATES['weights', metal_type].removeprefix('convolution_weights_')}"
        f"_{tile.name}_by_{chosen.row_width}_{chosen.column_width}",
        _tile_count(row_tiles, column_tiles, are_symmetric) * (geometry.groups // joined) * splits,
        WEIGHTS_PARAMETERS,
        geometry,
        accumulates,
        splits=splits,
        channels=joined * chosen.channels,
        stored_channels=stored_channels,
        group_outputs=joined * group_outputs,
        joined_outputs=group_outputs,
        groups=geometry.groups // joined,
        row_tiles=row_tiles,
        column_tiles=column_tiles,
        chunk_x=tile.depth % width,
        chunk_y=tile.depth // width % height,
        chunk_n=tile.depth // width // height,
        pixels_per_part=pixels,
        pixels_per_split=pixels_per_split,
        splits_per_part=splits_per_part,
        are_symmetric=int(are_symmetric),
    )
    return replace(plan, paddings=chosen.paddings, time=time)
