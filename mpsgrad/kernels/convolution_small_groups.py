"""Convolution and its gradients for groups of few channels, on CPUs: threads that spread the source over lanes."""

from __future__ import annotations

from functools import lru_cache

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT, WINDOW
from mpsgrad.kernels import convolution_weights_gradient
from mpsgrad.kernels.convolution_axis import AXIS, axes_in_order, most_windows, reach
from mpsgrad.kernels.convolution_gather import Plan, packing_in_order
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.kernels.convolution_parts import PARTS, Parts
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import NEVER, WHERE_FEWER, Tunables

CHANNELS = 16
"""Lanes of a thread."""
PIXELS = 6
"""Of a tile."""
VALUES, VALUES_OF_MANY_REGISTERS = 5, 9
"""How many values of windows are multiplied with a gradient at a time, where there are 16 registers and where more."""
SPREADS = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (4, 1), (2, 2), (4, 4), (2, 4), (4, 2))
"""Channels of the source and lanes in a group whose eights are shuffled. Others are copied one by one."""
PATCH_VALUES = 8192
PART_PIXELS = 256
SUM_ROWS = 144
"""What a thread keeps for itself: so many values of the source, pixels of the gradient, and weights of 16 lanes."""
MOST_INPUTS, MOST_LANES = 4, 4
"""Of a group: with more, other kernels waste less."""
MOST_PRODUCTS = 15
"""Up to so many for a tap of a group there may be more lanes, unless windows jump over pixels. Measured."""
EIGHT, MOST_INPUTS_OF_EIGHT = 8, 16
"""The lanes of groups that a thread takes two of, and the most channels of the source that these have. Only data
gradients of strides, which have few products for each pixel that is written, gain by that."""
MOST_LANES_OF_ONE = 8
"""The same for the gradient for weights of groups that have one channel of the source. Measured."""
FEWEST_GROUPS = 4
"""Of up to ``EIGHT`` channels together, which leave half of the lanes empty, where there are registers of 16 floats: of
windows of several channels that overlap others fill them with the channels of neighbouring pixels. Measured."""
APART = 256
"""Depthwise layers need no copy unless pixels of the source lie so many floats apart: simdgroups wait for each."""
MOST_DIVISOR = 4
"""Along one axis."""
THREADS_WANTED = 64
"""So many keep every core busy."""

PARAMETERS = ParameterStruct(
    "ConvolutionSmallGroupsParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    x=AXIS,
    y=AXIS,
    inputs="int",
    group_lanes="int",
    blocks="int",
    **PARTS,
    biases="int",
)
FAMILY = ShaderFamily(
    "convolution_small_groups",
    (IMAGE_LAYOUT, WINDOW, AXIS, PARAMETERS, convolution_weights_gradient.PARAMETERS),
    {
        "spreads": SPREADS,
        "pixels": PIXELS,
        "patch_values": PATCH_VALUES,
        "part_pixels": PART_PIXELS,
        "sum_rows": SUM_ROWS,
        "pixels_ahead": convolution_weights_gradient.PIXELS_AHEAD,
    },
    measured=lambda numbers: {
        "values": VALUES_OF_MANY_REGISTERS if numbers.has_many_registers else VALUES,
    },
    dtypes=("float",),
    ahead_of_time=False,
    device_families=("cpu",),
)


def _part(x: tuple[int, int, int], y: tuple[int, int, int], pixels: int, most: int) -> tuple[int, int] | None:
    """How many results along x and y to compute from ``pixels`` pixels, at most ``most``, so that few are read twice.

    Each axis has a size, a stride, and the number of pixels that one result reads. None if the pixels are too few.
    """
    best, fewest = None, float("inf")
    for rows in range(1, min(y[0], most) + 1):
        read_rows = (rows - 1) * y[1] + y[2]
        columns = min(most_windows(x[2], x[1], pixels // read_rows), x[0], most // rows)
        if columns == 0:
            break
        # Of equal size, as far as possible.
        columns, rows_of_part = _even(x[0], columns), _even(y[0], rows)
        read = ((columns - 1) * x[1] + x[2]) * ((rows_of_part - 1) * y[1] + y[2])
        cost = read / (columns * rows_of_part)
        if cost < fewest:
            best, fewest = (columns, rows_of_part), cost
    return best


def _even(size: int, part: int) -> int:
    return ceiling_divide(size, ceiling_divide(size, part))


def _suits(geometry: ConvolutionGeometry, metal_type: str, numbers: Tunables) -> bool:
    return (
        numbers.convolution_by_eights != NEVER
        and metal_type == "float"
        and geometry.groups > 1
        and geometry.taps > 1
        and not geometry.replicates
    )


@lru_cache(maxsize=4096)
def plan_gather(
    geometry: ConvolutionGeometry, is_gradient: bool, metal_type: str, numbers: Tunables
) -> Plan | None:
    """The dispatch for a convolution or its data gradient, or None where another kernel is to compute it.

    Depthwise ones need no copy, because their lanes are the channels of the source, and with one tap none would pay.
    """
    source, destination = geometry.ends(is_gradient)
    outputs, inputs, lanes = destination[6], source[6] // geometry.groups, destination[6] // geometry.groups
    has_strides = max(geometry.window[2:4]) > 1
    has_phases = has_strides and is_gradient
    most_lanes = max(MOST_LANES, MOST_PRODUCTS // inputs) if has_phases or not has_strides else MOST_LANES
    is_small = inputs <= MOST_INPUTS and lanes <= most_lanes and inputs * lanes > 1
    is_of_eight = has_phases and lanes == EIGHT and inputs <= MOST_INPUTS_OF_EIGHT
    if not (is_small or is_of_eight) or not _suits(geometry, metal_type, numbers):
        return None
    overlaps = geometry.taps > geometry.window[2] * geometry.window[3] or not has_phases
    leaves_lanes_empty = outputs <= EIGHT and geometry.groups < FEWEST_GROUPS
    if numbers.has_many_registers and leaves_lanes_empty and inputs > 1 and overlaps:
        return None
    x, y = axes_in_order(geometry, is_gradient)
    if max(x.divisor, y.divisor) > MOST_DIVISOR:
        return None
    reach_x, reach_y = reach(x), reach(y)
    blocks = ceiling_divide(outputs, CHANNELS)
    wanted = ceiling_divide(x.size * y.size * blocks * destination[7], THREADS_WANTED)
    pixels = PATCH_VALUES // ((2 if is_of_eight else CHANNELS) * inputs)
    part = _part((x.size, x.stride, reach_x[1]), (y.size, y.stride, reach_y[1]), pixels, wanted)
    if part is None:
        return None
    parts = Parts.of(x, y, part, reach_x, reach_y)
    packing, biases = packing_in_order(
        geometry, transposed=is_gradient, outputs=outputs, channels=inputs, biases=outputs, own_channels=True
    )
    parameters = PARAMETERS.pack(
        source=source,
        destination=destination,
        x=x.packed(),
        y=y.packed(),
        inputs=inputs,
        group_lanes=lanes,
        blocks=blocks,
        **parts._asdict(),
        biases=biases,
    )
    threads = blocks * parts.per_image * destination[7]
    kernel = "convolution_groups_of_eight" if is_of_eight else "convolution_small_groups"
    return Plan(FAMILY, kernel, threads, parameters, packing)


@lru_cache(maxsize=4096)
def plan_weights(
    geometry: ConvolutionGeometry, accumulates: bool, metal_type: str, numbers: Tunables
) -> convolution_weights_gradient.Plan | None:
    """The dispatch for the gradients of weights and biases, or None where another kernel is to compute them."""
    channels, outputs = geometry.group_inputs, geometry.outputs
    most_outputs = MOST_LANES_OF_ONE if channels == 1 else MOST_LANES
    is_small = channels <= MOST_INPUTS and geometry.group_outputs <= most_outputs
    # Where windows jump over pixels, copies of patches take less time than one by one to such lanes. Measured.
    is_copied = numbers.has_many_registers and (channels, geometry.group_outputs) not in SPREADS
    if channels == 1 and geometry.window[2] > 1 and is_copied:
        return None
    if not is_small or geometry.window_values > SUM_ROWS or not _suits(geometry, metal_type, numbers):
        return None
    is_apart = geometry.source[1] >= APART
    if geometry.is_depthwise and not (is_apart and numbers.convolution_by_eights == WHERE_FEWER):
        return None
    x, y = geometry.axes
    part = _part(
        (geometry.result[4], x.stride, x.extent),
        (geometry.result[5], y.stride, y.extent),
        PATCH_VALUES // (CHANNELS * channels),
        PART_PIXELS,
    )
    if part is None:
        return None
    columns, rows = part
    blocks = ceiling_divide(outputs, CHANNELS)
    return convolution_weights_gradient.plan_of_rows(
        FAMILY,
        "convolution_gradient_weights_small_groups",
        geometry,
        accumulates,
        row_tiles=columns,
        lane_tiles=rows,
        weight_tiles=blocks,
        tiles=blocks,
        rows_per_split=convolution_weights_gradient.rows_for_threads(geometry, blocks, THREADS_WANTED),
    )
