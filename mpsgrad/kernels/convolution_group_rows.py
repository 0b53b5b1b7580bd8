"""Convolutions with groups of 8 or a few times 16 channels on CPUs whose threads keep the rows that windows reach."""

from __future__ import annotations

from functools import lru_cache

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT
from mpsgrad.kernels.convolution_axis import AXIS, axes_in_order, reach
from mpsgrad.kernels.convolution_gather import Plan, packing_in_order
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
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


@lru_cache(maxsize=4096)
def plan_gather(
    geometry: ConvolutionGeometry, is_gradient: bool, metal_type: str, numbers: Tunables
) -> Plan | None:
    """The dispatch for a convolution or its data gradient, or None where another kernel is to compute it.

    Sums of 16 channels of 14 pixels need registers of 16 floats.
    """
    source, destination = geometry.ends(is_gradient)
    inputs, lanes = source[6] // geometry.groups, destination[6] // geometry.groups
    is_of_eight = inputs == lanes == EIGHT
    is_of_sixteen = inputs % CHANNELS == lanes % CHANNELS == 0 and inputs <= MOST_INPUTS
    if geometry.groups == 1 or geometry.taps == 1 or geometry.replicates or not (is_of_eight or is_of_sixteen):
        return None
    if numbers.convolution_by_eights != WHERE_FEWER or metal_type != "float":
        return None
    x, y = axes_in_order(geometry, is_gradient)
    (lowest_x, span_x), (lowest_y, span_y) = reach(x), reach(y)
    # Behind the last pixel, tiles go on.
    columns = (ceiling_divide(x.size, PIXELS) * PIXELS - 1) * x.stride + span_x
    if x.stride not in STRIDES or columns * span_y * max(inputs, CHANNELS) > KEPT_VALUES:
        return None
    blocks, images = ceiling_divide(destination[6], CHANNELS), destination[7]
    part_rows = ceiling_divide(y.size, ceiling_divide(THREADS_WANTED, max(blocks * images, 1)))
    parts_y = ceiling_divide(y.size, max(part_rows, 1))
    packing, biases = packing_in_order(
        geometry,
        transposed=is_gradient,
        outputs=destination[6],
        channels=inputs,
        biases=destination[6],
        own_channels=True,
    )
    parameters = PARAMETERS.pack(
        source=source,
        destination=destination,
        x=x.packed(),
        y=y.packed(),
        channels=inputs,
        group_lanes=lanes,
        blocks=blocks,
        part_rows=part_rows,
        parts_y=parts_y,
        columns=columns,
        lowest_x=lowest_x,
        lowest_y=lowest_y,
        span_y=span_y,
        biases=biases,
    )
    kernel = f"{FAMILY.name}_of_{'eight' if is_of_eight else 'sixteen'}_by_{x.stride}"
    return Plan(FAMILY, kernel, blocks * parts_y * images, parameters, packing)
