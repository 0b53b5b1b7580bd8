"""Data gradients of convolutions whose source has few channels, on GPUs: which kernel, with which parameters."""

from __future__ import annotations

import math

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT
from mpsgrad.kernels.convolution_axis import AXIS, axes_in_order
from mpsgrad.kernels.convolution_gather import Plan as GatherPlan
from mpsgrad.kernels.convolution_gather import packing_in_order
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.kernels.convolution_packing import LANES
from mpsgrad.kernels.divisor import DIVISOR, divisor
from mpsgrad.shader import ParameterStruct, ShaderFamily

THREADS = 128
TEAM = 8
"""So many lanes own so many neighbouring pixels."""
TEAM_COLUMNS = 2
"""Teams of a threadgroup side by side; the others lie below them, so that most reads of a row find it in a cache."""
TEAM_ROWS = THREADS // TEAM // TEAM_COLUMNS
MOST_CHANNELS = 6
TAPS = (2, 3, 4)
"""How many neighbouring taps a thread may multiply at a time."""
ENDINGS = {4: "", 2: "_of_pairs", 1: "_of_singles"}
"""How names of kernels end, by how many channels of the gradient they load at a time."""
FEW_STEPS = 6
"""Rows of taps times 32 channels of the gradient that a thread takes, one after another. With more, a GPU that is not
full takes longer than for tiles whose products several threadgroups share. Measured on an H200, like the next one."""
MOST_LANES, FEWEST_PER_UNIT = {4: 2.5, 2: 1.8, 1: 1.8}, {4: 1.0, 2: 1.3, 1: 1.3}
"""For each one with a pixel and a channel of its own: with more, tiles waste less. And with so many threadgroups for
each compute unit a GPU is full. By how many channels are loaded at a time."""

PARAMETERS = ParameterStruct(
    "ConvolutionToFewParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    x=AXIS,
    y=AXIS,
    rows="int",
    tile_columns="int",
    block_size="int",
    biases="int",
    by_height=DIVISOR,
    by_phases=DIVISOR,
    by_tile_columns=DIVISOR,
    by_divisor=DIVISOR,
)
FAMILIES = {
    channels: ShaderFamily(
        f"convolution_to_few_{channels}",
        (IMAGE_LAYOUT, AXIS, DIVISOR, PARAMETERS),
        {
            "channels": channels,
            "threads": THREADS,
            "team_columns": TEAM_COLUMNS,
            "most_taps": TAPS,
            "unroll": "#pragma unroll",
        },
        {"cpu": {"unroll": "#pragma clang loop unroll(disable)"}},
        dtypes=("float",),
        template="convolution_to_few",
        ahead_of_time=False,
    )
    for channels in range(1, MOST_CHANNELS + 1)
}


def plan_gradient(geometry: ConvolutionGeometry, metal_type: str, compute_units: int) -> GatherPlan | None:
    """What computes the data gradient, or None where tiles are to do it.

    Neighbouring taps read neighbouring pixels.
    """
    gradient, destination = geometry.ends(is_gradient=True)
    outputs, channels = geometry.outputs, geometry.inputs
    has_lanes, width = channels <= MOST_CHANNELS and outputs >= LANES, math.gcd(4, outputs, *gradient[:4])
    if geometry.groups > 1 or metal_type != "float" or not has_lanes:
        return None
    x, y = axes_in_order(geometry, is_gradient=True)
    slides = x.step * x.tap_step == -x.divisor
    if not slides or x.phase_taps < min(TAPS):
        return None
    rows, phases = y.size * destination[7], x.divisor * y.divisor
    blocks, tile_columns = ceiling_divide(outputs, LANES), ceiling_divide(x.size, TEAM * TEAM_COLUMNS)
    threadgroups = tile_columns * ceiling_divide(rows, TEAM_ROWS) * phases
    chunks = ceiling_divide(x.phase_taps, max(TAPS))
    is_short = blocks * y.phase_taps * chunks <= FEW_STEPS
    is_full = tile_columns * TEAM * TEAM_COLUMNS * blocks * LANES <= MOST_LANES[width] * x.size * outputs
    if not (is_full and (is_short or threadgroups >= FEWEST_PER_UNIT[width] * compute_units)):
        return None
    packing, biases = packing_in_order(
        geometry, transposed=False, outputs=outputs, channels=channels, biases=channels, own_channels=False
    )
    parameters = PARAMETERS.pack(
        source=gradient,
        destination=destination,
        x=x.packed(),
        y=y.packed(),
        rows=rows,
        tile_columns=tile_columns,
        block_size=x.taps * y.taps * channels * LANES,
        biases=biases,
        by_height=divisor(y.size),
        by_phases=divisor(phases),
        by_tile_columns=divisor(tile_columns),
        by_divisor=divisor(x.divisor),
    )
    taps = ceiling_divide(x.phase_taps, chunks)
    kernel = f"convolution_to_few_{channels}_by_{taps}{ENDINGS[width]}"
    return GatherPlan(FAMILIES[channels], kernel, threadgroups, parameters, packing)
