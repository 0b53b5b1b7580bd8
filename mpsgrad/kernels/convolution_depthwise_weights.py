"""Gradients for the weights of depthwise convolutions at stride 1 on GPUs, whose threads go along runs of pixels."""

from __future__ import annotations

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT, WINDOW
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.kernels.convolution_packing import LANES
from mpsgrad.kernels.convolution_weights_gradient import Plan, plan_of_splits
from mpsgrad.kernels.divisor import DIVISOR, divisor
from mpsgrad.shader import ParameterStruct, ShaderFamily

THREADS = 128
SIZES = (3, 5, 7)
ROWS = {3: 3, 5: 5, 7: 4}
"""Of a window, by its size, that a thread owns: more would not fit its registers."""
THREADGROUPS_PER_UNIT = {3: 8, 5: 5, 7: 5}
"""As many as a unit of NVIDIA's has registers for at once."""
SHORTEST_RUN = 16
"""Pixels of a run, where there are so many: each run begins with the columns of a whole window."""
FEWEST_RUNS = 2
"""Of a thread, where there are so many: its sums are added up with those of others afterwards."""

PARAMETERS = ParameterStruct(
    "ConvolutionDepthwiseRunsOfWeightsParameters",
    gradient=IMAGE_LAYOUT,
    source=IMAGE_LAYOUT,
    window=WINDOW,
    channels="int",
    lanes="int",
    groups="int",
    blocks="int",
    run="int",
    runs="int",
    runs_of_row="int",
    runs_per_split="int",
    splits="int",
    split_stride="int",
    weights="int",
    replicates="int",
    accumulates="int",
    by_lanes=DIVISOR,
    by_blocks=DIVISOR,
    by_runs_of_row=DIVISOR,
    by_height=DIVISOR,
)
FAMILIES = {
    size: ShaderFamily(
        f"convolution_depthwise_weights_{size}x{size}",
        (IMAGE_LAYOUT, WINDOW, DIVISOR, PARAMETERS),
        {"threads": THREADS, "size": size, "rows": ROWS[size], "parts": ceiling_divide(size, ROWS[size])},
        template="convolution_depthwise_weights",
        ahead_of_time=False,
        device_families=("gpu",),
    )
    for size in SIZES
}


def plan_runs(geometry: ConvolutionGeometry, accumulates: bool, compute_units: int) -> Plan | None:
    """What computes the gradients; None for other windows, and for edges that are replicated."""
    width, height, *steps, _, _ = geometry.window
    if width != height or width not in SIZES or steps != [1, 1, 1, 1] or geometry.replicates or geometry.pixels < 1:
        return None
    columns, rows, _, images = geometry.result[4:]
    channels = geometry.outputs
    blocks = ceiling_divide(channels, LANES)
    lanes = ceiling_divide(channels, blocks)
    groups, parts = THREADS // lanes, ceiling_divide(height, ROWS[height])
    wanted = max(1, THREADGROUPS_PER_UNIT[width] * compute_units // (blocks * parts))
    runs_of_row = min(
        ceiling_divide(FEWEST_RUNS * wanted * groups, rows * images), max(1, columns // SHORTEST_RUN)
    )
    run = ceiling_divide(columns, runs_of_row)
    runs_of_row = ceiling_divide(columns, run)
    runs = runs_of_row * rows * images
    splits = max(1, min(wanted, runs // (FEWEST_RUNS * groups)))
    runs_per_split = ceiling_divide(runs, splits)
    splits = ceiling_divide(runs, runs_per_split)
    return plan_of_splits(
        FAMILIES[width],
        f"convolution_gradient_weights_depthwise_of_runs_{width}x{height}",
        blocks * parts * splits,
        PARAMETERS,
        geometry,
        accumulates,
        splits=splits,
        channels=channels,
        lanes=lanes,
        groups=groups,
        blocks=blocks,
        run=run,
        runs=runs,
        runs_of_row=runs_of_row,
        runs_per_split=runs_per_split,
        by_lanes=divisor(lanes),
        by_blocks=divisor(blocks),
        by_runs_of_row=divisor(runs_of_row),
        by_height=divisor(rows),
    )
