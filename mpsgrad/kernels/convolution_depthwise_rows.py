"""Depthwise convolutions and their gradients on CPUs whose threads keep the rows that windows reach."""

from __future__ import annotations

from functools import lru_cache

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT, WINDOW
from mpsgrad.kernels import convolution_weights_gradient
from mpsgrad.kernels.convolution_axis import AXIS, most_windows, reach
from mpsgrad.kernels.convolution_gather import Plan, gather
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import NEVER, WHERE_FEWER, Tunables

PIXELS = 7
"""Of a tile: images are often 7, 14, 28, 56 or 112 pixels wide."""
CHANNELS, MOST_BLOCKS = 16, 2
"""Of a tile, and how many times as many a thread takes."""
KEPT_VALUES = 16384
"""So many values of the source a thread has at hand."""
MOST_WEIGHTS_BLOCKS, KEPT_WEIGHTS_VALUES = 4, 49152
"""The same for gradients for weights, whose sums stay in registers while the source comes from the second cache."""
LARGEST_PLANE = 8192
"""With more values of a block's rows than the nearest cache holds, other kernels take less time for these. Measured."""
FEW_TAPS, FEW_CHANNELS = 9, 32
"""Up to so many taps of more channels than few, copies take longer than what they save. Measured."""
THREADS_WANTED = 64
"""So many keep every core busy."""

PARAMETERS = ParameterStruct(
    "ConvolutionDepthwiseRowsParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    x=AXIS,
    y=AXIS,
    blocks="int",
    block_channels="int",
    part_pixels="int",
    parts_x="int",
    part_rows="int",
    parts_y="int",
    low_x="int",
    low_y="int",
    span_x="int",
    span_y="int",
    biases="int",
    streams="int",
)
FAMILY = ShaderFamily(
    "convolution_depthwise_rows",
    (IMAGE_LAYOUT, WINDOW, AXIS, PARAMETERS, convolution_weights_gradient.PARAMETERS),
    {
        "pixels": PIXELS,
        "kept_values": KEPT_VALUES,
        "most_weights_blocks": MOST_WEIGHTS_BLOCKS,
        "kept_weights_values": KEPT_WEIGHTS_VALUES,
    },
    # What neighbouring taps read in turn fits beside the sums of a tile where there are more than 16 registers.
    measured=lambda numbers: {"unrolled_taps": (2, 3, 4, 5, 7) if numbers.has_many_registers else ()},
    dtypes=("float",),
    ahead_of_time=False,
    device_families=("cpu",),
)


@lru_cache(maxsize=4096)
def plan_gather(
    geometry: ConvolutionGeometry, is_gradient: bool, metal_type: str, numbers: Tunables
) -> Plan | None:
    """The dispatch for a convolution or its data gradient, or None where another kernel is to compute it.

    That is the case for strides, unless it is a gradient of few channels, whose pixels are fewer than those that it
    computes, and where copies would not pay, and for windows that reach more than a thread can keep.
    """
    if not geometry.is_depthwise or geometry.replicates:
        return None
    if max(geometry.window[2:4]) > 1:
        suits = is_gradient and geometry.inputs <= CHANNELS
    else:
        suits = geometry.taps > FEW_TAPS or geometry.inputs <= FEW_CHANNELS
    if not suits or numbers.convolution_by_eights == NEVER or metal_type != "float":
        return None
    gathered = gather(geometry, is_gradient)
    x, y, lanes, images = gathered.x, gathered.y, gathered.lanes, gathered.destination[7]
    (low_x, span_x), (low_y, span_y) = reach(x), reach(y)
    tiles = ceiling_divide(x.size, PIXELS)
    most_tiles = most_windows(span_x, 1, KEPT_VALUES // (CHANNELS * span_y)) // PIXELS
    if most_tiles <= 0:
        return None
    part_pixels = PIXELS * ceiling_divide(tiles, ceiling_divide(tiles, most_tiles))
    parts_x = ceiling_divide(x.size, part_pixels)
    # Several blocks of channels to a thread, if they fit there and other threads have enough to do.
    kept_blocks = KEPT_VALUES // (CHANNELS * span_y * (part_pixels + span_x - 1))
    shared_blocks = ceiling_divide(lanes, CHANNELS) * parts_x * images * y.size // THREADS_WANTED
    block_channels = CHANNELS * max(1, min(MOST_BLOCKS, kept_blocks, shared_blocks))
    blocks = ceiling_divide(lanes, block_channels)
    image_parts = blocks * parts_x * images
    part_rows = ceiling_divide(y.size, ceiling_divide(THREADS_WANTED, max(image_parts, 1)))
    parts_y = ceiling_divide(y.size, max(part_rows, 1))
    parameters = PARAMETERS.pack(
        source=gathered.source,
        destination=gathered.destination,
        x=x.packed(),
        y=y.packed(),
        blocks=blocks,
        block_channels=block_channels,
        part_pixels=part_pixels,
        parts_x=parts_x,
        part_rows=part_rows,
        parts_y=parts_y,
        low_x=low_x,
        low_y=low_y,
        span_x=span_x,
        span_y=span_y,
        biases=gathered.biases,
        streams=int(gathered.exceeds_caches(numbers)),
    )
    return Plan(FAMILY, FAMILY.name, image_parts * parts_y, parameters, gathered.packing)


@lru_cache(maxsize=4096)
def plan_weights(
    geometry: ConvolutionGeometry, accumulates: bool, metal_type: str, numbers: Tunables
) -> convolution_weights_gradient.Plan | None:
    """The dispatch for the gradients of weights and biases of windows of 3x3, or None where another one computes them.

    Nine sums of 16 channels and what they are made of need registers of 16 floats.
    """
    if not geometry.is_depthwise or geometry.replicates or geometry.window[:2] != (3, 3):
        return None
    if numbers.convolution_by_eights != WHERE_FEWER or metal_type != "float":
        return None
    x, y = geometry.axes
    plane = CHANNELS * y.extent * ((geometry.result[4] - 1) * x.stride + x.extent)
    most_blocks = min(MOST_WEIGHTS_BLOCKS, KEPT_WEIGHTS_VALUES // plane, geometry.inputs // CHANNELS)
    if plane > LARGEST_PLANE or most_blocks == 0:
        return None
    all_blocks = ceiling_divide(geometry.inputs, CHANNELS)
    block_channels = CHANNELS * ceiling_divide(all_blocks, ceiling_divide(all_blocks, most_blocks))
    blocks = ceiling_divide(geometry.inputs, block_channels)
    return convolution_weights_gradient.plan_of_rows(
        FAMILY,
        "convolution_gradient_weights_depthwise_rows",
        geometry,
        accumulates,
        row_tiles=block_channels,
        lane_tiles=1,
        weight_tiles=blocks,
        tiles=blocks,
        rows_per_split=convolution_weights_gradient.rows_for_threads(geometry, blocks, THREADS_WANTED),
    )
