"""Depthwise convolutions and their data gradients on CPUs whose threads keep the rows that windows reach."""

from __future__ import annotations

from functools import lru_cache

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT
from mpsgrad.kernels.convolution_axis import AXIS
from mpsgrad.kernels.convolution_gather import Plan, gather
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import NEVER, Tunables

PIXELS = 7
"""Of a tile: images are often 7, 14, 28, 56 or 112 pixels wide."""
CHANNELS, MOST_BLOCKS = 16, 2
"""Of a tile, and how many times as many a thread takes."""
KEPT_VALUES = 16384
"""So many values of the source a thread has at hand."""
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
    biases="int",
)
FAMILY = ShaderFamily(
    "convolution_depthwise_rows",
    (IMAGE_LAYOUT, AXIS, PARAMETERS),
    {"pixels": PIXELS, "kept_values": KEPT_VALUES, "unrolled_taps": (3, 5, 7)},
    dtypes=("float",),
    ahead_of_time=False,
    device_families=("cpu",),
)


@lru_cache(maxsize=4096)
def plan_gather(
    geometry: ConvolutionGeometry, is_gradient: bool, metal_type: str, numbers: Tunables
) -> Plan | None:
    """The dispatch for a convolution or its data gradient, or None where another kernel is to compute it.

    That is the case for strides, where copies would not pay, and for windows that reach more than a thread can keep.
    """
    is_few = geometry.taps <= FEW_TAPS and geometry.inputs > FEW_CHANNELS
    if not geometry.is_depthwise or geometry.replicates or max(geometry.window[2:4]) > 1 or is_few:
        return None
    if numbers.convolution_by_eights == NEVER or metal_type != "float":
        return None
    gathered = gather(geometry, is_gradient)
    x, y, lanes, images = gathered.x, gathered.y, gathered.lanes, gathered.destination[7]
    span_x, span_y = ((axis.taps - 1) * axis.step + 1 for axis in (x, y))
    tiles = ceiling_divide(x.size, PIXELS)
    most_tiles = (KEPT_VALUES // (CHANNELS * span_y) - span_x + 1) // PIXELS
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
        biases=gathered.biases,
    )
    return Plan(FAMILY, FAMILY.name, image_parts * parts_y, parameters, gathered.packing)
