"""Convolution and its gradients for few channels in a group, on CPUs: threads that copy what their windows read."""

from __future__ import annotations

import math
from functools import lru_cache
from operator import itemgetter

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT, WINDOW
from mpsgrad.kernels import convolution_weights_gradient
from mpsgrad.kernels.convolution_axis import AXIS, most_windows, reach
from mpsgrad.kernels.convolution_gather import Gather, Plan, gather
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.kernels.convolution_packing import LANES
from mpsgrad.kernels.convolution_parts import PARTS, Parts
from mpsgrad.kernels.convolution_simdgroups import (
    EIGHTS_CHANNELS,
    FILLED_LANES,
    FOLD_COST,
    SINGLE_EIGHT,
    chosen_gather,
    is_by_eights,
)
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import NEVER, WHERE_FEWER, Tunables

PIXELS_OF_EIGHTS = {1: 8, 2: 6, 3: 4}
"""Of a tile that has so many eights of channels."""
MANY_EIGHTS = 4
"""Where there are more than 16 registers."""
PIXELS_OF_MANY_REGISTERS = {1: 8, 2: 8, MANY_EIGHTS: 8}
"""The pixels of a tile there, of pixels without phases."""
EIGHTS_IN_PHASES = (1, 2)
"""Of a tile whose pixels have phases."""
TILE_COSTS, TILE_COST_OF_SINGLE_EIGHTS = {2: 1.0, 3: 1.0}, 1.15
"""How long a product takes there. Without groups a single eight has too few products."""
TILE_COSTS_OF_MANY_REGISTERS, TILE_COST_OF_SINGLE_EIGHTS_OF_MANY_REGISTERS = {2: 0.82, MANY_EIGHTS: 0.66}, 1.5
"""The same where there are more, of 16 floats, of which a single eight fills a half. Measured."""
VALUES, VALUES_OF_MANY_REGISTERS = 6, 9
"""How many values of windows are multiplied with 16 channels of a gradient at a time, where there are 16 registers and
where more."""
RUN_VALUES = (16, 15, 14, 12, 11, 10)
"""How many neighbouring values of a row of taps instead where there are more than 16 registers."""
JOINED_COST = 1.5
"""A product takes so much longer there where several pixels are joined."""
MOST_PHASES = 4
"""Along one axis."""
PATCH_VALUES = 4096
PART_PIXELS = 128
SUM_ROWS, SUM_ROWS_OF_FEW_REGISTERS = 512, 1024
"""What a thread keeps for itself: so many values of the source, pixels of the gradient, and weights of 16 channels, of
which more where there are 16 registers."""
MOST_VALUES_OF_PARTS, SHARE_OF_PRODUCTS = 288, 0.75
"""Windows of more values only without groups, where that is at most so large a share of the products that simdgroups
compute, and where there are 16 registers if a thread copies whole rows: of parts, which it copies once for each row of
the gradient, other kernels are as fast there, unless channels are fewer than the eights of other kernels. Measured."""
RESULT_PIXELS = 256
"""So many of a thread share the rows that windows of several read, if there are enough threads."""

MOST_VALUES = 192
MOST_VALUES_OF_GROUP = 300
"""With more values in a window, other kernels are as fast."""
MOST_VALUES_OF_MANY_REGISTERS = 96
"""The same without groups where there are more than 16 registers and all pixels have the same taps. Measured."""
MOST_VALUES_OF_PIXEL, MOST_VALUES_OF_PIXEL_OF_FEW_REGISTERS = 64, 96
"""The same for windows of one pixel where there are more than 16 registers, and where not. Measured."""
FEWEST_DISJOINT_CHANNELS = 16
"""From so many channels on, of windows that do not overlap, copies save nothing where there are more than 16 registers,
unless tiles have many eights, for which each value is read once. Measured."""
FEW_VALUES, FEW_VALUES_COST = 32, 0.8
"""With so few in windows that overlap, simdgroups take longer to find out which of them are inside. Measured."""
MOST_CHANNELS, MOST_CHANNELS_OF_PIXELS = 24, 15
"""With more, or sixteen, and without groups, other kernels compute the gradient for weights; for windows of one pixel,
or with something between their taps, with more than the second number."""
SHARE_OF_BLOCKS = 0.85
"""With more channels also where that is at most so large a share of the products of threads that own whole blocks of
either image. Measured."""
FEWEST_PIXELS_OF_RUNS, RUNS_GAIN = 500, 1.1
"""Of so many pixels simdgroups that own the values of a row of taps take less time for up to so many more products.
Measured."""
NEAR_SHARE = 8
"""Images of no more than the caches' bytes divided by that are read once more for each tap in less time. Measured."""
THREADS_WANTED, SUM_THREADS_WANTED = 64, 32
"""So many keep every core busy; the second number is that of gradients for weights, which leave partial sums each."""

PARAMETERS = ParameterStruct(
    "ConvolutionPatchesParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    x=AXIS,
    y=AXIS,
    groups="int",
    channels="int",
    outputs="int",
    fold_channels="int",
    blocks="int",
    blocks_per_part="int",
    parts="int",
    **PARTS,
    row_step="int",
    biases="int",
    streams="int",
    replicates="int",
)


def _gather_tiles(numbers: Tunables) -> tuple[tuple[int, int, bool], ...]:
    """The eights of channels and the pixels of each tile, and whether these have phases."""
    plain = PIXELS_OF_MANY_REGISTERS if numbers.has_many_registers else PIXELS_OF_EIGHTS
    in_phases = ((eights, PIXELS_OF_EIGHTS[eights], True) for eights in EIGHTS_IN_PHASES)
    return (*((eights, pixels, False) for eights, pixels in plain.items()), *in_phases)


def _sum_rows(numbers: Tunables) -> int:
    return SUM_ROWS if numbers.has_many_registers else SUM_ROWS_OF_FEW_REGISTERS


FAMILY = ShaderFamily(
    "convolution_patches",
    (IMAGE_LAYOUT, WINDOW, AXIS, PARAMETERS, convolution_weights_gradient.PARAMETERS),
    {
        "most_phases": MOST_PHASES,
        "patch_values": PATCH_VALUES,
        "part_pixels": PART_PIXELS,
        "pixels_ahead": convolution_weights_gradient.PIXELS_AHEAD,
    },
    measured=lambda numbers: {
        "sum_rows": _sum_rows(numbers),
        "eight_values": VALUES_OF_MANY_REGISTERS if numbers.has_many_registers else VALUES,
        "run_values": RUN_VALUES if numbers.has_many_registers else (),
        "gather_tiles": _gather_tiles(numbers),
    },
    dtypes=("float",),
    ahead_of_time=False,
    device_families=("cpu",),
)


def _has_phases(gathered: Gather) -> bool:
    """Whether not all pixels have the same taps."""
    return max(gathered.x.divisor, gathered.y.divisor) > 1


def _tile_costs(groups: int, numbers: Tunables) -> dict[int, float]:
    """How long a product takes in tiles of so many eights."""
    costs, of_single = TILE_COSTS, TILE_COST_OF_SINGLE_EIGHTS
    if numbers.has_many_registers:
        costs, of_single = TILE_COSTS_OF_MANY_REGISTERS, TILE_COST_OF_SINGLE_EIGHTS_OF_MANY_REGISTERS
    return costs if groups == 1 else costs | {1: of_single}


def _best(
    geometry: ConvolutionGeometry, is_gradient: bool, numbers: Tunables, *, joins_pixels: bool = True
) -> tuple[float, int, Gather] | None:
    """The products for a pixel, times their cost, the eights of a tile's channels, and the gather of fewest.

    Unless it ``joins_pixels``, no lanes are for channels of neighbouring ones.
    """
    costs = _tile_costs(geometry.groups, numbers)
    return min(
        (
            (cost * (JOINED_COST if is_fold else 1.0) * gathered.products_per_pixel(8 * eights), eights, gathered)
            for gathered in (gather(geometry, is_gradient, lanes=lanes, joins_columns=True) for lanes in FILLED_LANES)
            if (is_fold := joins_pixels and gathered.kernel == "convolution_fold")
            or gathered.kernel == "convolution_dense"
            for eights, cost in costs.items()
            if eights in EIGHTS_IN_PHASES or not _has_phases(gathered)
        ),
        key=itemgetter(0),
        default=None,
    )


def fewest_products(geometry: ConvolutionGeometry, is_gradient: bool, numbers: Tunables) -> float | None:
    """The products for a pixel, times their cost, or None for geometries that other kernels compute."""
    best = _best(geometry, is_gradient, numbers)
    return None if best is None else best[0]


def _reads_disjoint_windows(geometry: ConvolutionGeometry) -> bool:
    """Whether windows of several pixels with many channels do not overlap."""
    x, y = geometry.axes
    is_disjoint = geometry.taps > 1 and x.stride >= x.extent and y.stride >= y.extent
    return is_disjoint and geometry.groups == 1 and geometry.inputs >= FEWEST_DISJOINT_CHANNELS


def _chosen(geometry: ConvolutionGeometry, is_gradient: bool, numbers: Tunables) -> tuple[int, Gather] | None:
    """The eights of a tile's channels and the gather, or None where another kernel is to compute it."""
    groups, values = geometry.groups, geometry.taps * geometry.ends(is_gradient)[0][6] // geometry.groups
    if values > (MOST_VALUES if groups == 1 else MOST_VALUES_OF_GROUP) or geometry.taps == 1 < groups:
        return None
    most_of_pixel = MOST_VALUES_OF_PIXEL if numbers.has_many_registers else MOST_VALUES_OF_PIXEL_OF_FEW_REGISTERS
    if geometry.taps == 1 and values > most_of_pixel:
        return None
    best = _best(geometry, is_gradient, numbers, joins_pixels=groups == 1 or not numbers.has_many_registers)
    if best is None:
        return None
    products, eights, gathered = best
    has_many_values = numbers.has_many_registers and values > MOST_VALUES_OF_MANY_REGISTERS
    if groups == 1 and has_many_values and not _has_phases(gathered):
        return None
    is_reused = eights == MANY_EIGHTS
    if not is_gradient and numbers.has_many_registers and not is_reused and _reads_disjoint_windows(geometry):
        return None
    x, y = gathered.x, gathered.y
    is_fold = gathered.kernel == "convolution_fold"
    if max(x.divisor, y.divisor) > MOST_PHASES:
        return None
    if x.stride < x.taps and values <= FEW_VALUES and not is_fold:
        products *= FEW_VALUES_COST
    of_simdgroups = gather(geometry, is_gradient, joins_columns=True)
    if groups > 1 and gathered.lanes > SINGLE_EIGHT // 2 and of_simdgroups.kernel == "convolution_fold":
        products /= FOLD_COST
    if is_by_eights(numbers, products, of_simdgroups):
        return eights, gathered
    # Of few channels threads that copy nothing would look for a tap more often than they multiply.
    has_few_channels = groups == 1 and gathered.channels < EIGHTS_CHANNELS and not _has_phases(gathered)
    are_others_threads = has_few_channels and chosen_gather(geometry, is_gradient, numbers, of_simdgroups)[0] > 0
    return (eights, gathered) if are_others_threads else None


def _parts(gathered: Gather, row_step: int) -> Parts | None:
    """The parts whose windows a thread can copy; of the rows that these read it copies each of ``row_step``."""
    x, y, channels = gathered.x, gathered.y, gathered.channels
    (lowest_x, span_x), (lowest_y, span_y) = reach(x), reach(y)
    span_y = (span_y - 1) // row_step + 1
    width = min(most_windows(span_x, x.stride, PATCH_VALUES // (span_y * channels)), x.size)
    if width == 0:
        return None
    height = 1
    if width == x.size and row_step == 1:
        columns = (width - 1) * x.stride + span_x
        height = most_windows(span_y, y.stride, PATCH_VALUES // (columns * channels))
        wanted = gathered.destination[7] * y.size * gathered.groups // THREADS_WANTED
        height = max(1, min(height, y.size, RESULT_PIXELS // width, wanted))
    return Parts.of(x, y, (width, height), (lowest_x, span_x), (lowest_y, span_y))


@lru_cache(maxsize=4096)
def plan_gather(
    geometry: ConvolutionGeometry, is_gradient: bool, metal_type: str, numbers: Tunables
) -> Plan | None:
    """The dispatch for a convolution or its data gradient, or None where another kernel is to compute it."""
    if numbers.convolution_by_eights == NEVER or metal_type != "float":
        return None
    chosen = _chosen(geometry, is_gradient, numbers)
    if chosen is None:
        return None
    eights, gathered = chosen
    x, y = gathered.x, gathered.y
    row_step = y.step if y.divisor == 1 else 1
    tiles = _parts(gathered, row_step)
    if tiles is None:
        return None
    image_parts = tiles.per_image * gathered.destination[7] * gathered.groups
    blocks = ceiling_divide(gathered.lanes, 8 * eights)
    blocks_per_part = ceiling_divide(blocks, ceiling_divide(THREADS_WANTED, max(image_parts, 1)))
    parts = ceiling_divide(blocks, blocks_per_part)
    parameters = PARAMETERS.pack(
        source=gathered.source,
        destination=gathered.destination,
        x=x.packed(),
        y=y.packed(),
        groups=gathered.groups,
        channels=gathered.channels,
        outputs=gathered.lanes,
        fold_channels=gathered.fold_channels,
        blocks=blocks,
        blocks_per_part=blocks_per_part,
        parts=parts,
        **tiles._asdict(),
        row_step=row_step,
        biases=gathered.biases,
        streams=int(gathered.exceeds_caches(numbers)),
        replicates=int(geometry.replicates),
    )
    kernel = f"convolution_patches_by_{eights}" + ("_in_phases" if _has_phases(gathered) else "")
    return Plan(FAMILY, kernel, parts * image_parts, parameters, gathered.packing)


def _is_left_to_whole_groups(geometry: ConvolutionGeometry, numbers: Tunables) -> bool:
    """Whether threads are to own 16 channels of either image of a tap, which read the images for each."""
    image_bytes = 4 * sum(math.prod(layout[4:]) for layout in (geometry.source, geometry.result))
    return (
        image_bytes <= numbers.cached_bytes // NEAR_SHARE
        and convolution_weights_gradient.has_whole_groups(geometry)
        and convolution_weights_gradient.is_cached_whole(geometry, numbers)
    )


def _is_left_to_runs(geometry: ConvolutionGeometry, numbers: Tunables) -> bool:
    """Whether simdgroups, which own eight of the values that a row of taps reads, have hardly more products."""
    if not numbers.has_many_registers or not convolution_weights_gradient.reads_runs(geometry):
        return False
    width, height = geometry.window[:2]
    rows, lanes = convolution_weights_gradient.ROWS, ceiling_divide(geometry.outputs, LANES) * LANES
    of_runs = height * ceiling_divide(width * geometry.inputs, rows) * rows * lanes
    of_patches = geometry.taps * convolution_weights_gradient.products(geometry, 1, EIGHTS_CHANNELS)
    is_filled = geometry.outputs > EIGHTS_CHANNELS and of_runs <= RUNS_GAIN * of_patches
    return is_filled and geometry.pixels >= FEWEST_PIXELS_OF_RUNS


def _leaves_fewer_lanes_empty(geometry: ConvolutionGeometry, numbers: Tunables) -> bool:
    """Whether threads that own whole blocks of channels of either image would compute it, with more products."""
    if not numbers.has_many_registers or not convolution_weights_gradient.is_by_blocks(geometry):
        return False
    of_patches = convolution_weights_gradient.products(geometry, 1, EIGHTS_CHANNELS)
    of_blocks = convolution_weights_gradient.products(geometry, EIGHTS_CHANNELS, EIGHTS_CHANNELS)
    return of_patches <= SHARE_OF_BLOCKS * of_blocks


def _has_few_products(geometry: ConvolutionGeometry) -> bool:
    of_patches = convolution_weights_gradient.products(geometry, 1, EIGHTS_CHANNELS)
    of_simdgroups = convolution_weights_gradient.products(geometry, LANES, convolution_weights_gradient.ROWS)
    return of_patches <= SHARE_OF_PRODUCTS * of_simdgroups


@lru_cache(maxsize=4096)
def plan_weights(
    geometry: ConvolutionGeometry, accumulates: bool, metal_type: str, numbers: Tunables
) -> convolution_weights_gradient.Plan | None:
    """The dispatch for the gradients of weights and biases, or None where another kernel is to compute them."""
    x, y = geometry.axes
    groups, channels, pixels = geometry.groups, geometry.group_inputs, geometry.result[4]
    if numbers.convolution_by_eights == NEVER or metal_type != "float" or geometry.is_depthwise:
        return None
    has_runs = geometry.taps > 1 and (x.dilation == 1 or x.taps == 1)
    most_channels = MOST_CHANNELS if has_runs else MOST_CHANNELS_OF_PIXELS
    has_many_channels = channels > most_channels and not (has_runs and _leaves_fewer_lanes_empty(geometry, numbers))
    if groups == 1 and (has_many_channels or channels == EIGHTS_CHANNELS):
        return None
    if geometry.window_values > _sum_rows(numbers) or geometry.taps == 1 < groups:
        return None
    if channels % LANES == 0 and numbers.convolution_by_eights == WHERE_FEWER:
        return None
    if _is_left_to_whole_groups(geometry, numbers) or _is_left_to_runs(geometry, numbers):
        return None
    columns = min(most_windows(x.extent, x.stride, PATCH_VALUES // (y.taps * channels)), PART_PIXELS, pixels)
    copies_few_rows = columns == pixels or numbers.has_many_registers
    leaves_eights_empty = channels < EIGHTS_CHANNELS and not numbers.has_many_registers
    suits_many_values = groups == 1 and (leaves_eights_empty or (copies_few_rows and _has_few_products(geometry)))
    if columns == 0 or (geometry.window_values > MOST_VALUES_OF_PARTS and not suits_many_values):
        return None
    rows = 1
    if columns == pixels and y.dilation == 1:
        patch_row = ((columns - 1) * x.stride + x.extent) * channels
        rows = min(most_windows(y.taps, y.stride, PATCH_VALUES // patch_row), PART_PIXELS // columns)
    group_blocks = ceiling_divide(geometry.group_outputs, EIGHTS_CHANNELS)
    blocks = groups * group_blocks
    return convolution_weights_gradient.plan_of_rows(
        FAMILY,
        "convolution_gradient_weights_patches",
        geometry,
        accumulates,
        row_tiles=columns,
        lane_tiles=rows,
        weight_tiles=group_blocks,
        tiles=blocks,
        rows_per_split=convolution_weights_gradient.rows_for_threads(geometry, blocks, SUM_THREADS_WANTED),
    )
