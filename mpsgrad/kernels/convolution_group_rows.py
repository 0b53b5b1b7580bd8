"""Convolutions of groups, to 8 to 16 or a few times 16 channels, on CPUs whose threads keep the rows that they read."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT
from mpsgrad.kernels.convolution_axis import AXIS, Axis, axes_in_order, reach
from mpsgrad.kernels.convolution_gather import Plan, gather, packing_in_order
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.kernels.convolution_packing import LANES, Packing
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import WHERE_FEWER, Tunables

PIXELS = 7
"""Of a tile, or half of one: images are often 7, 14, 28 or 56 pixels wide."""
STRIDES = 1, 2
"""Along x, of the gather."""
CHANNELS, EIGHT = 16, 8
"""Of a thread, and of the groups of which it takes two."""
MOST_INPUTS = 32
"""Of a group: with more, other kernels are as fast. Measured."""
FEWEST_LANES, FEWEST_INPUTS, FEWEST_COLUMNS = 9, 8, 6
"""Fewer channels of the result are left to others, for several blocks fewer of the source, and for less
than ``CHANNELS`` of these, or ``EIGHT`` in groups to as many, narrower results. Measured."""
KEPT_VALUES = 16384
"""So many values of the source a thread has at hand."""
THREADS_WANTED = 64
"""So many keep every core busy."""

PARAMETERS = ParameterStruct(
    "ConvolutionGroupRowsParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    x=AXIS,
    y=AXIS,
    channels="int",
    group_lanes="int",
    group_blocks="int",
    packed_lanes="int",
    blocks="int",
    part_rows="int",
    parts_y="int",
    columns="int",
    lowest_x="int",
    lowest_y="int",
    span_y="int",
    biases="int",
)
FAMILY = ShaderFamily(
    "convolution_group_rows",
    (IMAGE_LAYOUT, AXIS, PARAMETERS),
    {"pixels": PIXELS, "strides": STRIDES, "kept_values": KEPT_VALUES},
    dtypes=("float",),
    ahead_of_time=False,
    device_families=("cpu",),
)


class _Packed(NamedTuple):
    """The gather along both axes, and the weights packed for it, with so many ``lanes`` from one group to the next."""

    x: Axis
    y: Axis
    packing: Packing | None
    biases: int
    lanes: int


def _packed(geometry: ConvolutionGeometry, is_gradient: bool, inputs: int, lanes: int) -> _Packed:
    """Without gaps where groups fill whole eights."""
    if lanes % EIGHT == 0:
        outputs = geometry.groups * lanes
        packing, biases = packing_in_order(
            geometry, transposed=is_gradient, outputs=outputs, channels=inputs, biases=outputs, own_channels=True
        )
        return _Packed(*axes_in_order(geometry, is_gradient), packing, biases, lanes)
    gathered = gather(geometry, is_gradient, lanes=CHANNELS, joins_pixels=False)
    return _Packed(gathered.x, gathered.y, gathered.packing, gathered.biases, LANES)


@lru_cache(maxsize=4096)
def plan_gather(
    geometry: ConvolutionGeometry, is_gradient: bool, metal_type: str, numbers: Tunables
) -> Plan | None:
    """The dispatch for a convolution or its data gradient, or None where another kernel is to compute it.

    Sums of 16 channels of 14 pixels need registers of 16 floats.
    """
    source, destination = geometry.ends(is_gradient)
    inputs, lanes = source[6] // geometry.groups, destination[6] // geometry.groups
    is_of_eight, group_blocks = inputs <= lanes == EIGHT, ceiling_divide(lanes, CHANNELS)
    suits_blocks = FEWEST_LANES <= lanes <= CHANNELS or (lanes % CHANNELS == 0 and inputs >= FEWEST_INPUTS)
    is_of_sixteen = suits_blocks and inputs <= MOST_INPUTS
    if geometry.groups == 1 or geometry.taps == 1 or geometry.replicates or not (is_of_eight or is_of_sixteen):
        return None
    if numbers.convolution_by_eights != WHERE_FEWER or metal_type != "float":
        return None
    blocks = ceiling_divide(destination[6], CHANNELS) if is_of_eight else geometry.groups * group_blocks
    x, y, packing, biases, packed_lanes = _packed(geometry, is_gradient, inputs, lanes)
    (lowest_x, span_x), (lowest_y, span_y) = reach(x), reach(y)
    if inputs < (EIGHT if is_of_eight else CHANNELS) and x.size < FEWEST_COLUMNS:
        return None
    # Behind the last pixel, tiles go on.
    columns = (ceiling_divide(x.size, PIXELS) * PIXELS - 1) * x.stride + span_x
    if x.stride not in STRIDES or columns * span_y * ceiling_divide(inputs, CHANNELS) * CHANNELS > KEPT_VALUES:
        return None
    images = destination[7]
    part_rows = ceiling_divide(y.size, ceiling_divide(THREADS_WANTED, max(blocks * images, 1)))
    parts_y = ceiling_divide(y.size, max(part_rows, 1))
    parameters = PARAMETERS.pack(
        source=source,
        destination=destination,
        x=x.packed(),
        y=y.packed(),
        channels=inputs,
        group_lanes=lanes,
        group_blocks=group_blocks,
        packed_lanes=packed_lanes,
        blocks=blocks,
        part_rows=part_rows,
        parts_y=parts_y,
        columns=columns,
        lowest_x=lowest_x,
        lowest_y=lowest_y,
        span_y=span_y,
        biases=biases,
    )
    kind = "sixteen" if not is_of_eight else "eight" if inputs == EIGHT else "few"
    kernel = f"{FAMILY.name}_of_{kind}_by_{x.stride}"
    return Plan(FAMILY, kernel, blocks * parts_y * images, parameters, packing)
