"""Convolution and its data gradient for results with few channels, on CPUs: threads with pixels in their lanes."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT, WINDOW
from mpsgrad.kernels import convolution_patches, convolution_simdgroups, convolution_weights_gradient
from mpsgrad.kernels.convolution_axis import AXIS, Axis, axes_in_order, reach
from mpsgrad.kernels.convolution_gather import Plan, packing_in_order
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.kernels.convolution_packing import LANES
from mpsgrad.kernels.convolution_parts import PARTS, Parts
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import NEVER, Tunables

TILES = ((1, 8, 4), (2, 4, 4), (3, 4, 4))
TILES_OF_MANY_REGISTERS = ((1, 8, 2), (2, 8, 2), (3, 6, 2), (4, 4, 2))
"""So many channels of the result are computed at a time for so many registers of pixels, and for so many at the end."""
WEIGHT_TILES = tuple((o, t, 1) for o in (1, 2) for t in (1, 2, 3))
WEIGHT_TILES_OF_MANY_REGISTERS = tuple(
    (o, t, lines) for o in (1, 2, 3, 4) for t, lines in ((1, 4), (2, 3), (3, 2), (4, 1), (5, 1))
)
"""So many channels of the gradient are multiplied at a time with so many neighbouring taps of so many rows."""
STEP = 32
"""The pixels of the last ones."""
PLANE_VALUES, SUM_VALUES = 16384, 8192
"""What a thread keeps for itself: so many values of the source, and of the result."""
NEAR_VALUES = 8192
"""So many of the source are multiplied before the next ones are copied: the nearest cache holds them."""
WEIGHT_SUMS = 512
"""And so many sixteens of sums for weights."""
MOST_GRADIENTS, MOST_GRADIENTS_OF_FEW, MANY_VALUES = 10, 8, 25
"""Channels of the result for windows of so many values, and for smaller ones: with more, others waste few lanes."""
MOST_GRADIENTS_OF_FEW_REGISTERS = 6
"""The same for windows of any size where there are 16 registers."""
MOST_GRADIENTS_OF_MANY, FEW_CHANNELS = 4, 16
"""The same for so many channels of the source, at least ``FEW_CHANNELS``, that others have these in the lanes."""
MOST_GRADIENTS_OF_MANY_OF_FEW_REGISTERS = 7
"""Of these no more where there are 16 registers. Measured."""
MOST_LANES = 12
"""For each pixel, with those that belong to none."""
CHUNK = 16
"""Channels of the source are copied by so many."""
MOST_OUTPUTS_OF_FEW_VALUES, MOST_OUTPUTS = 12, 48
"""Channels of the result: with more and few values in a window, memory is written in shorter runs than by others where
there are 16 registers."""
MOST_PHASES = 4
"""Along one axis."""
THREADS_WANTED = 64
"""So many keep every core busy."""
FEWEST_RESULTS, FEWEST_COLUMNS = 64, 8
"""Of a thread, even if there are fewer threads; and so many of its columns."""
MOST_INSIDE, FEWEST_VALUES_AT_ONCE = 0.85, 32
"""With less of the rows of taps inside the source, those outside are left out, if a row has so many values."""
FEWEST_GRADIENT_PIXELS = 128
"""Of a thread."""
COPY_COST, ROW_COST = 1.1, 20
"""To copy a value takes so much longer than to multiply sixteen, and to begin a row of planes or of the result as long
as so many of these products where there are more than 16 registers."""
MOST_JOINED, JOIN_COST = 8, 5
"""Up to so many channels without gaps are divided and joined by sixteens there; with more, to store a value of the
result takes as long as so many of these products."""
COST_OF_OTHERS, PIXEL_COST_OF_OTHERS, VALUE_COST_OF_OTHERS = 1.2, 20, 3
"""How long others take there for a product, and besides for each pixel and each value of the result. Measured."""
EIGHTS_COST, EIGHTS_COST_OF_FEW_VALUES = 1.12, 1.25
"""A product of several channels takes threads that copy nothing so much longer, and one of small windows where there
are more than 16 registers. Measured."""
FEW_OUTPUTS, FEW_OUTPUTS_COST = 3, 1.4
"""One of so few channels takes others so much longer where there are 16 registers. Measured."""

PARAMETERS = ParameterStruct(
    "ConvolutionPlanesParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    x=AXIS,
    y=AXIS,
    channels="int",
    chunk="int",
    tap_rows="int",
    **PARTS,
    residues_x="int",
    residues_y="int",
    biases="int",
    replicates="int",
)


FAMILY = ShaderFamily(
    "convolution_planes",
    (IMAGE_LAYOUT, WINDOW, AXIS, PARAMETERS, convolution_weights_gradient.PARAMETERS),
    {
        "step": STEP,
        # What lies behind the last position, and behind the last plane, is read but does not matter.
        "plane_values": PLANE_VALUES + 2 * STEP,
        "sum_values": SUM_VALUES,
        "weight_sums": WEIGHT_SUMS,
        "most_gradients": MOST_GRADIENTS,
        "pixels_ahead": convolution_weights_gradient.PIXELS_AHEAD,
    },
    measured=lambda numbers: {
        "has_many_registers": numbers.has_many_registers,
        "tiles": TILES_OF_MANY_REGISTERS if numbers.has_many_registers else TILES,
        "weight_tiles": WEIGHT_TILES_OF_MANY_REGISTERS if numbers.has_many_registers else WEIGHT_TILES,
        "counts_of_run": range(2, MOST_JOINED + 1) if numbers.has_many_registers else (),
        "gradients_at_once": 4 if numbers.has_many_registers else 2,
        "most_taps": 5 if numbers.has_many_registers else 3,
    },
    dtypes=("float",),
    ahead_of_time=False,
    device_families=("cpu",),
)


class _Work(NamedTuple):
    """The results along x and y that a thread computes at a time, and the work for a pixel, in products of sixteens."""

    part: tuple[int, int]
    for_pixel: float


def _steps(axis: Axis) -> tuple[int, int]:
    """The span of what a window reads, in steps from one window to the next, and how many pixels it reads in each."""
    _, span = reach(axis)
    return ceiling_divide(span, axis.stride), min(span, axis.stride)


def _least_work(x: Axis, y: Axis, channels: int, outputs: int, most_results: int, numbers: Tunables) -> _Work | None:
    """For at most ``most_results`` results at a time, each of which has a pixel of every phase.

    None if what one result reads, or its channels, are too many.
    """
    (span_x, residues_x), (span_y, residues_y) = _steps(x), _steps(y)
    phases, residues = x.divisor * y.divisor, residues_x * residues_y
    best: _Work | None = None
    most_plane = PLANE_VALUES // (min(channels, CHUNK) * residues)
    most_positions = SUM_VALUES // (outputs * phases) // STEP * STEP
    row_cost = load_cost = joining = 0.0
    if numbers.has_many_registers:
        # Each register of pixels is loaded once for all channels of the result that are computed at a time.
        row_cost, load_cost = ROW_COST, 1 / min(outputs, len(TILES_OF_MANY_REGISTERS))
        joining = JOIN_COST * outputs if outputs > MOST_JOINED else 0.0
    for parts_x in range(1, ceiling_divide(x.size, FEWEST_COLUMNS) + 1):
        width = ceiling_divide(x.size, parts_x)
        columns = width + span_x - 1
        most_rows = min(most_plane // columns - span_y + 1, (most_positions - width) // columns + 1)
        height = min(most_rows, most_results // width, y.size)
        if height >= 1:
            height = ceiling_divide(y.size, ceiling_divide(y.size, height))
            copied = (height + span_y - 1) * columns
            positions = ceiling_divide((height - 1) * columns + width, STEP) * STEP
            products = positions * x.taps * y.taps * outputs / 16 * (1 + load_cost)
            rows = (height + span_y - 1) * residues_y * ceiling_divide(channels, CHUNK) + height * phases
            work = channels * (COPY_COST * copied * residues + products) + row_cost * rows
            work = work / (width * height * phases) + joining
            if best is None or work < best.for_pixel:
                best = _Work((width, height), work)
    return best


def _share_inside(y: Axis, source_rows: int) -> float:
    """How many of the rows of taps, of all rows of the result without phases, lie inside the source."""
    firsts = [y.origin + y.step * tap for tap in range(y.taps)]
    inside = sum(max(0, min(source_rows - first, y.size) - max(-first, 0)) for first in firsts)
    return inside / (y.taps * y.size)


def _divides_runs(numbers: Tunables) -> bool:
    """Whether runs of pixels are divided by sixteens: without overlapping windows copies are most of the work."""
    return numbers.has_many_registers


def _work_of_others(geometry: ConvolutionGeometry, is_gradient: bool, has_few_values: bool, numbers: Tunables) -> float:
    """For a pixel, by the kernels that have channels in their lanes."""
    products = _products_of_others(geometry, is_gradient, has_few_values, numbers)
    if not numbers.has_many_registers:
        return products
    outputs = geometry.ends(is_gradient)[1][6]
    return COST_OF_OTHERS * products + PIXEL_COST_OF_OTHERS + VALUE_COST_OF_OTHERS * outputs


def _products_of_others(
    geometry: ConvolutionGeometry, is_gradient: bool, has_few_values: bool, numbers: Tunables
) -> float:
    """Those of sixteens for a pixel."""
    outputs = geometry.ends(is_gradient)[1][6]
    of_patches = convolution_patches.fewest_products(geometry, is_gradient, numbers) if has_few_values else None
    of_eights = convolution_simdgroups.gather_by_eights(geometry, is_gradient, numbers).products
    if outputs <= FEW_OUTPUTS and not numbers.has_many_registers:
        return FEW_OUTPUTS_COST * (of_eights if of_patches is None else min(of_patches, of_eights)) / 16
    if of_patches is not None:
        cost = EIGHTS_COST_OF_FEW_VALUES if numbers.has_many_registers else 1.0
        return min(of_patches, cost * of_eights) / 16
    return (1.0 if outputs == 1 else EIGHTS_COST) * of_eights / 16


@lru_cache(maxsize=4096)
def plan_gather(
    geometry: ConvolutionGeometry, is_gradient: bool, metal_type: str, numbers: Tunables
) -> Plan | None:
    """The dispatch for a convolution or its data gradient, or None where another kernel is to compute it."""
    if numbers.convolution_by_eights == NEVER or metal_type != "float" or geometry.groups > 1:
        return None
    if geometry.is_fully_connected:
        return None
    if geometry.is_pointwise:
        geometry = geometry.in_one_row() or geometry
    source, destination = geometry.ends(is_gradient)
    channels, outputs, images = source[6], destination[6], destination[7]
    has_few_values = geometry.taps * channels <= convolution_patches.MOST_VALUES
    x, y = axes_in_order(geometry, is_gradient)
    phases = x.divisor * y.divisor
    has_short_runs = has_few_values and not numbers.has_many_registers
    if outputs > (MOST_OUTPUTS_OF_FEW_VALUES if has_short_runs else MOST_OUTPUTS) or phases > outputs == 1:
        return None
    if max(x.divisor, y.divisor) > MOST_PHASES:
        return None
    if (geometry.taps == 1 or max(x.stride, y.stride) > 1) and not _divides_runs(numbers):
        return None
    most_results = max(ceiling_divide(x.size * y.size * images, THREADS_WANTED), FEWEST_RESULTS)
    has_runs = x.taps * min(channels, CHUNK) >= FEWEST_VALUES_AT_ONCE
    may_skip = has_runs and phases == x.stride == y.stride == 1 and not geometry.replicates
    inside = _share_inside(y, source[5]) if may_skip else 1.0
    work = _least_work(x, y, channels, outputs, most_results, numbers)
    if work is None or work.for_pixel > _work_of_others(geometry, is_gradient, has_few_values, numbers):
        return None
    (span_x, residues_x), (span_y, residues_y) = _steps(x), _steps(y)
    parts = Parts.of(x, y, work.part, (reach(x)[0], span_x), (reach(y)[0], span_y))
    plane = (parts.part_pixels + span_x - 1) * (parts.part_rows + span_y - 1) * residues_x * residues_y
    near_chunk = max(CHUNK, min(NEAR_VALUES, PLANE_VALUES) // plane // CHUNK * CHUNK)
    packing, biases = packing_in_order(
        geometry, transposed=is_gradient, outputs=outputs, channels=channels, biases=outputs, own_channels=True
    )
    parameters = PARAMETERS.pack(
        source=source,
        destination=destination,
        x=x.packed(),
        y=y.packed(),
        channels=channels,
        chunk=min(channels, near_chunk),
        tap_rows=1 if inside < MOST_INSIDE else y.taps,
        **parts._asdict(),
        residues_x=residues_x,
        residues_y=residues_y,
        biases=biases,
        replicates=int(geometry.replicates),
    )
    return Plan(FAMILY, "convolution_planes", parts.per_image * images, parameters, packing)


def _suits_gradients(geometry: ConvolutionGeometry, numbers: Tunables) -> bool:
    """Whether the gradient has so few channels that other kernels leave more lanes without one."""
    channels, outputs = geometry.inputs, geometry.outputs
    if channels >= FEW_CHANNELS:
        if outputs > MOST_GRADIENTS_OF_MANY_OF_FEW_REGISTERS and not numbers.has_many_registers:
            return False
        lanes = ceiling_divide(channels, LANES) * LANES
        return geometry.taps > 1 and outputs * channels <= MOST_GRADIENTS_OF_MANY * lanes
    if not numbers.has_many_registers:
        return outputs <= MOST_GRADIENTS_OF_FEW_REGISTERS
    return outputs <= (MOST_GRADIENTS if geometry.window_values >= MANY_VALUES else MOST_GRADIENTS_OF_FEW)


def _part_of_gradient(geometry: ConvolutionGeometry, channels: int) -> tuple[int, int] | None:
    """The columns and rows of the gradient whose windows, of so many channels, a thread copies.

    None if one window is too large, or if most of what it copies are edges of windows.
    """
    x, y = geometry.axes
    most_plane, most_positions = PLANE_VALUES // channels - STEP, SUM_VALUES // geometry.outputs // STEP * STEP
    pixels, height = geometry.result[4:6]
    width = min(pixels, most_plane // y.extent - x.extent + 1, most_positions)
    if width < 1 or height < 1:
        return None
    width = ceiling_divide(pixels, ceiling_divide(pixels, width))
    columns = width + x.extent - 1
    rows = min(most_plane // columns - y.extent + 1, (most_positions - width) // columns + 1, height)
    positions = ceiling_divide((rows - 1) * columns + width, 16) * 16
    return (width, rows) if geometry.outputs * positions <= MOST_LANES * width * rows else None


@lru_cache(maxsize=4096)
def plan_weights(
    geometry: ConvolutionGeometry, accumulates: bool, metal_type: str, numbers: Tunables
) -> convolution_weights_gradient.Plan | None:
    """The dispatch for the gradients of weights and biases, or None where another kernel is to compute them."""
    x, y = geometry.axes
    if numbers.convolution_by_eights == NEVER or metal_type != "float" or geometry.groups > 1:
        return None
    most_chunk = min(WEIGHT_SUMS // (geometry.outputs * geometry.taps), CHUNK)
    if not x.stride == y.stride == 1 or most_chunk == 0 or not _suits_gradients(geometry, numbers):
        return None
    tiles = ceiling_divide(geometry.inputs, most_chunk)
    chunk = ceiling_divide(geometry.inputs, tiles)
    part = _part_of_gradient(geometry, chunk)
    if part is None:
        return None
    threads = max(1, min(THREADS_WANTED, geometry.pixels // FEWEST_GRADIENT_PIXELS))
    return convolution_weights_gradient.plan_of_rows(
        FAMILY,
        "convolution_gradient_weights_planes",
        geometry,
        accumulates,
        row_tiles=part[0],
        lane_tiles=part[1],
        weight_tiles=chunk,
        tiles=tiles,
        rows_per_split=convolution_weights_gradient.rows_for_threads(geometry, tiles, threads),
    )
