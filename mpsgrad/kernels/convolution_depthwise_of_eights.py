"""Depthwise convolutions and their data gradients on CPUs that compute by eights."""

from __future__ import annotations

from functools import lru_cache

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT
from mpsgrad.kernels.convolution_axis import AXIS, Axis
from mpsgrad.kernels.convolution_gather import Plan, gather
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.kernels.convolution_packing import LANES
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import NEVER, Tunables

PIXELS = 4
TILES = (PIXELS, 8, 2), (PIXELS, 8, 1), (1, 8, 4), (1, 8, 1)
TILES_OF_MANY_REGISTERS = (PIXELS, 16, 2), (PIXELS, 16, 1), (PIXELS, 8, 1), (1, 16, 2), (1, 8, 1)
"""Of so many pixels, channels in a vector and vectors."""
UNROLLED = (2, 1), (3, 1), (3, 2), (5, 2)
"""Taps in a row and strides of the windows for which tiles of sixteens read each pixel once."""
ROWS_PER_THREAD = 8
THREADS_WANTED = 64
"""So many keep every core busy; only above that one goes on to a second row."""

PARAMETERS = ParameterStruct(
    "ConvolutionDepthwiseParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    x=AXIS,
    y=AXIS,
    block_parts="int",
    blocks_per_thread="int",
    rows_per_thread="int",
    highest_row="int",
    biases="int",
    streams="int",
)
FAMILY = ShaderFamily(
    "convolution_depthwise_of_eights",
    (IMAGE_LAYOUT, AXIS, PARAMETERS),
    {"pixels": PIXELS, "unrolled": UNROLLED},
    measured=lambda numbers: {
        "tiles": TILES_OF_MANY_REGISTERS if numbers.has_many_registers else TILES,
    },
    dtypes=("float",),
    ahead_of_time=False,
    device_families=("cpu",),
)


def _highest(axis: Axis) -> int:
    """The highest source pixel that a tap of the first destination pixels of all phases reads."""
    return (axis.origin + axis.divisor - 1 + max(0, axis.step * (axis.taps - 1))) // axis.divisor


@lru_cache(maxsize=4096)
def plan_gather(
    geometry: ConvolutionGeometry, is_gradient: bool, metal_type: str, numbers: Tunables
) -> Plan | None:
    """The dispatch for a depthwise convolution or its data gradient, or None where another kernel is to compute it."""
    if numbers.convolution_by_eights == NEVER or metal_type != "float" or geometry.groups == 1:
        return None
    gathered = gather(geometry, is_gradient)
    if gathered.kernel != "convolution_depthwise":
        return None
    x, y = gathered.x, gathered.y
    rows, blocks = y.size * gathered.destination[7], ceiling_divide(gathered.lanes, LANES)
    block_parts = min(blocks, ceiling_divide(THREADS_WANTED, max(rows, 1)))
    blocks_per_thread = ceiling_divide(blocks, block_parts)
    block_parts = ceiling_divide(blocks, blocks_per_thread)
    rows_per_thread = max(1, min(ROWS_PER_THREAD, rows * block_parts // THREADS_WANTED))
    parameters = PARAMETERS.pack(
        source=gathered.source,
        destination=gathered.destination,
        x=x.packed(),
        y=y.packed(),
        block_parts=block_parts,
        blocks_per_thread=blocks_per_thread,
        rows_per_thread=rows_per_thread,
        highest_row=_highest(y),
        biases=gathered.biases,
        streams=int(gathered.exceeds_caches(numbers)),
    )
    threads = block_parts * ceiling_divide(rows, rows_per_thread)
    return Plan(FAMILY, FAMILY.name, threads, parameters, gathered.packing)
