"""Depthwise convolutions and their gradients for few channels on CPUs: lanes are those of neighbouring pixels."""

from __future__ import annotations

import math
from functools import lru_cache

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT, WINDOW
from mpsgrad.kernels import convolution_weights_gradient
from mpsgrad.kernels.convolution_axis import AXIS, most_windows
from mpsgrad.kernels.convolution_gather import Plan, gather
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import NEVER, Tunables

LANES = 16
MOST_CHANNELS, MOST_CHANNELS_OF_SUMS = 8, 15
"""With more, lanes that have the channels of one pixel leave few empty; the second number is that of gradients for
weights. Measured."""
FEW_TAPS, MOST_CHANNELS_OF_FEW_TAPS = 6, 24
"""With so few taps, and so many channels but for sixteen, what empty lanes copy and store takes longer. Measured."""
SIXTEENS = 6
"""Of a tile."""
KEPT_VALUES, WEIGHT_SIXTEENS = 16384, 1024
"""What a thread keeps for itself: so many values of the source, and so many sixteens of weights or their sums."""
MOST_TAPS = 5
"""Of a row, whose sums for weights stay in registers."""
TAP_SHAPES = tuple((1, taps) for taps in range(1, MOST_TAPS + 1))
TAP_SHAPES_OF_MANY_REGISTERS = ((3, 3), *TAP_SHAPES)
"""So many lines of so many neighbouring taps are added up at a time; all of 3x3 need more than 16 registers."""
THREADS_WANTED, FEWEST_ROWS = 64, 4
"""So many keep every core busy, but spreading weights takes each as long as half a row of results."""

PARAMETERS = ParameterStruct(
    "ConvolutionDepthwiseRunsParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    x=AXIS,
    y=AXIS,
    period="int",
    part_pixels="int",
    parts_x="int",
    part_rows="int",
    parts_y="int",
    biases="int",
)
FAMILY = ShaderFamily(
    "convolution_depthwise_runs",
    (IMAGE_LAYOUT, WINDOW, AXIS, PARAMETERS, convolution_weights_gradient.PARAMETERS),
    {
        "sixteens": SIXTEENS,
        "kept_values": KEPT_VALUES,
        "weight_sixteens": WEIGHT_SIXTEENS,
        "most_period": MOST_CHANNELS_OF_FEW_TAPS - 1,
        "most_taps": MOST_TAPS,
        "pixels_ahead": convolution_weights_gradient.PIXELS_AHEAD,
    },
    measured=lambda numbers: {
        "square_lines": 3 if numbers.has_many_registers else 1,
        "tap_shapes": TAP_SHAPES_OF_MANY_REGISTERS if numbers.has_many_registers else TAP_SHAPES,
    },
    dtypes=("float",),
    ahead_of_time=False,
    device_families=("cpu",),
)


def _suits(geometry: ConvolutionGeometry, metal_type: str, numbers: Tunables, most_channels: int) -> bool:
    return (
        numbers.convolution_by_eights != NEVER
        and metal_type == "float"
        and geometry.is_depthwise
        and geometry.inputs <= most_channels
        and geometry.window[2:4] == (1, 1)
        and not geometry.replicates
    )


def _period(channels: int) -> int:
    """The sixteens of values after which their channels are the same again."""
    return channels // math.gcd(channels, LANES)


@lru_cache(maxsize=4096)
def plan_gather(
    geometry: ConvolutionGeometry, is_gradient: bool, metal_type: str, numbers: Tunables
) -> Plan | None:
    """The dispatch for a convolution or its data gradient, or None where another kernel is to compute it."""
    channels, period = geometry.inputs, _period(geometry.inputs)
    destination = geometry.ends(is_gradient)[1]
    has_few_taps = geometry.taps <= FEW_TAPS and channels % LANES > 0
    most_channels = MOST_CHANNELS_OF_FEW_TAPS if has_few_taps else MOST_CHANNELS
    if not _suits(geometry, metal_type, numbers, most_channels) or destination[1] != channels:
        return None
    gathered = gather(geometry, is_gradient)
    x, y, images = gathered.x, gathered.y, destination[7]
    span_x, span_y = ((axis.taps - 1) * axis.step + 1 for axis in (x, y))
    most_pixels = most_windows(span_x, 1, KEPT_VALUES // (span_y * channels))
    if most_pixels == 0 or geometry.taps * (period + SIXTEENS - 1) > WEIGHT_SIXTEENS:
        return None
    parts_x = ceiling_divide(x.size, most_pixels)
    part_rows = ceiling_divide(y.size, ceiling_divide(THREADS_WANTED, max(parts_x * images, 1)))
    part_rows = min(max(part_rows, FEWEST_ROWS), y.size)
    parts_y = ceiling_divide(y.size, max(part_rows, 1))
    parameters = PARAMETERS.pack(
        source=gathered.source,
        destination=gathered.destination,
        x=x.packed(),
        y=y.packed(),
        period=period,
        part_pixels=ceiling_divide(x.size, max(parts_x, 1)),
        parts_x=parts_x,
        part_rows=part_rows,
        parts_y=parts_y,
        biases=gathered.biases,
    )
    return Plan(FAMILY, FAMILY.name, parts_x * parts_y * images, parameters, gathered.packing)


@lru_cache(maxsize=4096)
def plan_weights(
    geometry: ConvolutionGeometry, accumulates: bool, metal_type: str, numbers: Tunables
) -> convolution_weights_gradient.Plan | None:
    """The dispatch for the gradients of weights and biases, or None where another kernel is to compute them."""
    channels, period = geometry.inputs, _period(geometry.inputs)
    if not _suits(geometry, metal_type, numbers, MOST_CHANNELS_OF_SUMS):
        return None
    if (geometry.taps + 1) * period > WEIGHT_SIXTEENS:
        return None
    x, y = geometry.axes
    columns = min(most_windows(x.extent, 1, KEPT_VALUES // (y.extent * channels)), geometry.result[4])
    if columns == 0:
        return None
    rows = most_windows(y.extent, 1, KEPT_VALUES // ((columns + x.extent - 1) * channels))
    return convolution_weights_gradient.plan_of_rows(
        FAMILY,
        "convolution_gradient_weights_depthwise_runs",
        geometry,
        accumulates,
        row_tiles=columns,
        lane_tiles=min(rows, KEPT_VALUES // (ceiling_divide(columns * channels, LANES) * LANES)),
        weight_tiles=period,
        tiles=1,
        rows_per_split=convolution_weights_gradient.rows_for_threads(geometry, 1, THREADS_WANTED),
    )
