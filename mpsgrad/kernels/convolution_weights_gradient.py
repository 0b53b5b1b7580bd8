"""The gradients of a convolution for its weights and biases: which kernel computes them, with which parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT, WINDOW
from mpsgrad.kernels.convolution_gather import EIGHTS_COST, Layout, as_long_pixels, in_one_row, is_fully_connected
from mpsgrad.kernels.convolution_packing import LANES, SUM_PARAMETERS
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import ALWAYS, NEVER, Tunables

ROWS = 8
DEPTHWISE_TAPS = 3
SPLIT_BYTES = 800_000
"""The image rows of one split, which all its simdgroups read, should stay in a core's cache."""

EIGHTS_CHANNELS, EIGHTS_OUTPUTS, EIGHTS_PIXELS, EIGHTS_RUNS = 16, 6, 112, 16
"""Of a thread that works on eights of channels: what it owns at a time, and how many pixels in how many rows."""
SINGLE_EIGHT, SINGLE_OUTPUTS = 8, 8
"""The same where it owns a single eight of channels."""
FEW_OUTPUTS = 4
"""So many output channels at a time where there are fewer than ``SINGLE_OUTPUTS``."""
FEW_PIXELS, FEW_PIXELS_APART, APART, ROW_OUTPUTS = 8, 64, 256, 4
"""Up to so many pixels, or so many whose distance is no multiple of the third number of floats, a thread writes all
weights of so many output channels: what lies that far apart shares few places in the nearest cache."""
EVICTING_STRIDE = 512
"""Values that lie a multiple of so many floats apart evict each other from the nearest cache unless they are copied."""
PIXELS_AHEAD = 16
"""So far ahead a core fetches what it will copy: lines that lie a pixel apart it does not foresee."""
EIGHTS_THREADS_WANTED = 256
"""So many keep every core busy; more splits would only make more partial sums."""

FEW_CHANNELS = 16
SHORT_ROW = 256
"""Rows of so few pixels are joined where possible, so that the inner loop is long."""

PARAMETERS = ParameterStruct(
    "ConvolutionGradientWeightsParameters",
    gradient=IMAGE_LAYOUT,
    source=IMAGE_LAYOUT,
    window=WINDOW,
    channels="int",
    group_outputs="int",
    row_tiles="int",
    lane_tiles="int",
    weight_tiles="int",
    tiles="int",
    rows_per_split="int",
    splits="int",
    split_stride="int",
    weights="int",
    replicates="int",
    accumulates="int",
)
FAMILY = ShaderFamily(
    "convolution_weights",
    (IMAGE_LAYOUT, WINDOW, PARAMETERS),
    {
        "rows": ROWS,
        "depthwise_taps": DEPTHWISE_TAPS,
        "eight_outputs": EIGHTS_OUTPUTS,
        "single_outputs": SINGLE_OUTPUTS,
        "few_outputs": FEW_OUTPUTS,
        "row_outputs": ROW_OUTPUTS,
        "pixels_ahead": PIXELS_AHEAD,
        "eight_pixels": EIGHTS_PIXELS,
        "eight_runs": EIGHTS_RUNS,
    },
    measured=lambda numbers: {
        "rows_at_once": numbers.convolution_weights_rows_at_once,
        "by_eights": numbers.convolution_by_eights != NEVER,
    },
)


@dataclass(frozen=True)
class Plan:
    """One dispatch of a kernel of ``family`` that writes ``splits`` partial sums of ``split_stride`` floats, and one
    that adds these up.

    With one split the first writes the gradients themselves.
    """

    family: ShaderFamily
    kernel: str
    threadgroups: int
    parameters: bytes
    splits: int
    split_stride: int
    sum_parameters: bytes


def rows_for_threads(gradient: Layout, source: Layout, *, tiles: int, sums: int, threads_wanted: int) -> int:
    """The rows of a split for ``threads_wanted`` threads, but partial ``sums`` of no more values than the images."""
    splits_wanted = ceiling_divide(threads_wanted, tiles)
    row_values = gradient[4] * gradient[6] + source[4] * source[6]
    rows = ceiling_divide(gradient[5] * gradient[7], splits_wanted)
    return max(rows, ceiling_divide(sums, max(row_values, 1)), 1)


@lru_cache(maxsize=4096)
def plan(
    gradient: Layout,
    source: Layout,
    window: Layout,
    groups: int,
    replicates: bool,
    accumulates: bool,
    metal_type: str,
    numbers: Tunables,
) -> Plan:
    """What computes the gradients from ``gradient`` and ``source``."""
    if is_fully_connected(window, source, gradient, groups):
        pixels = as_long_pixels(source)
        if pixels is not None:
            source, window = pixels, (1, 1, 1, 1, 1, 1, 0, 0)
    if window == (1, 1, 1, 1, 1, 1, 0, 0) and source[4:6] == gradient[4:6]:
        gradient, source = _with_longer_rows(gradient, source)
    width, height, _, stride_y, dilation_x, _, _, _ = window
    channels, outputs = source[6] // groups, gradient[6]
    group_outputs, taps = outputs // groups, width * height
    is_by_eights = numbers.convolution_by_eights != NEVER and metal_type == "float" and not replicates
    is_one_row = window == (1, 1, 1, 1, 1, 1, 0, 0) and source[4:6] == gradient[4:6] and gradient[5] * gradient[7] == 1
    few_pixels = FEW_PIXELS if source[1] % APART == 0 else FEW_PIXELS_APART
    if is_by_eights and is_one_row and groups == 1 and gradient[4] <= few_pixels:
        tiles = ceiling_divide(outputs, ROW_OUTPUTS)
        return plan_of_rows(
            FAMILY,
            "convolution_gradient_weights_dense_of_few",
            gradient,
            source,
            window,
            channels=channels,
            group_outputs=outputs,
            row_tiles=tiles,
            lane_tiles=1,
            weight_tiles=tiles,
            tiles=tiles,
            rows_per_split=1,
            replicates=replicates,
            accumulates=accumulates,
        )
    threads_wanted, result_channels = None, LANES
    if groups == outputs == source[6] > 1 and not replicates:
        kernel, tap_rows = "depthwise", height
        if numbers.convolution_by_eights == ALWAYS and metal_type == "float" and outputs >= EIGHTS_CHANNELS:
            kernel, threads_wanted, result_channels = "depthwise_of_eights", EIGHTS_THREADS_WANTED, EIGHTS_CHANNELS
            tap_rows = ceiling_divide(height, DEPTHWISE_TAPS)
        row_tiles, lane_tiles = ceiling_divide(width, DEPTHWISE_TAPS), ceiling_divide(outputs, result_channels)
        weight_tiles = tap_rows * row_tiles * lane_tiles
    elif (
        groups == dilation_x == 1 and width > 1 and channels < FEW_CHANNELS and source[1] == channels and not replicates
    ):
        kernel = "few"
        row_tiles, lane_tiles = ceiling_divide(width * channels, ROWS), ceiling_divide(outputs, LANES)
        weight_tiles = height * row_tiles * lane_tiles
    elif metal_type == "float" and not replicates and _is_by_eights(numbers, gradient, source, window, groups):
        kernel, threads_wanted, result_channels = "dense_of_eights", EIGHTS_THREADS_WANTED, EIGHTS_CHANNELS
        is_single = channels <= SINGLE_EIGHT and outputs >= SINGLE_OUTPUTS
        row_tiles = SINGLE_EIGHT if is_single else EIGHTS_CHANNELS
        lane_tiles = ceiling_divide(source[6], row_tiles)
        weight_tiles = taps * lane_tiles
    else:
        kernel = "dense"
        row_tiles = ceiling_divide(outputs, ROWS)
        lane_tiles = ceiling_divide(_groups_in_rows(groups, group_outputs) * channels, LANES)
        weight_tiles = taps * row_tiles * lane_tiles
    weights = outputs * taps * channels
    image_rows = gradient[5] * gradient[7]
    row_bytes = 4 * (gradient[4] * outputs + source[4] * source[6] * min(stride_y, height))
    # At least two splits, but partial sums of no more than twice the bytes of the images.
    rows_per_split = min(SPLIT_BYTES // max(row_bytes, 1), ceiling_divide(image_rows, 2))
    rows_per_split = max(rows_per_split, ceiling_divide(2 * weights, max(row_bytes, 1)), 1)
    if threads_wanted is not None:
        splits_wanted = ceiling_divide(threads_wanted, weight_tiles)
        rows_per_split = max(rows_per_split, ceiling_divide(image_rows, splits_wanted))
    return plan_of_rows(
        FAMILY,
        f"convolution_gradient_weights_{kernel}",
        gradient,
        source,
        window,
        channels=channels,
        group_outputs=group_outputs,
        row_tiles=row_tiles,
        lane_tiles=lane_tiles,
        weight_tiles=weight_tiles,
        tiles=weight_tiles + ceiling_divide(outputs, result_channels),
        rows_per_split=rows_per_split,
        replicates=replicates,
        accumulates=accumulates,
    )


def _is_by_eights(numbers: Tunables, gradient: Layout, source: Layout, window: Layout, groups: int) -> bool:
    """Whether threads are to compute what is not depthwise, rather than simdgroups."""
    channels, outputs = source[6], gradient[6]
    if numbers.convolution_by_eights == NEVER or channels < EIGHTS_CHANNELS:
        return False
    if numbers.convolution_by_eights == ALWAYS or (groups > 1 and channels // groups % LANES != 0):
        return True
    if groups > 1 or outputs < SINGLE_OUTPUTS:
        return False
    if source[1] * window[2] % EVICTING_STRIDE == 0:
        return True

    def products(channels_together: int, outputs_together: int) -> int:
        rows = ceiling_divide(outputs, outputs_together) * outputs_together
        return ceiling_divide(channels, channels_together) * channels_together * rows

    return EIGHTS_COST * products(EIGHTS_CHANNELS, EIGHTS_OUTPUTS) < products(LANES, ROWS)


def plan_of_rows(
    family: ShaderFamily,
    kernel: str,
    gradient: Layout,
    source: Layout,
    window: Layout,
    *,
    channels: int,
    tiles: int,
    rows_per_split: int,
    replicates: bool,
    accumulates: bool,
    **others: int,
) -> Plan:
    """The dispatch of a kernel that takes ``PARAMETERS``, ``others`` being fields of these, and has ``tiles`` for each
    split of the gradient image's rows."""
    splits = max(ceiling_divide(gradient[5] * gradient[7], rows_per_split), 1)
    return plan_of_splits(
        family,
        kernel,
        splits * tiles,
        PARAMETERS,
        splits=splits,
        weights=gradient[6] * window[0] * window[1] * channels,
        outputs=gradient[6],
        replicates=replicates,
        accumulates=accumulates,
        gradient=gradient,
        source=source,
        window=window,
        channels=channels,
        tiles=tiles,
        rows_per_split=rows_per_split,
        **others,
    )


def plan_of_splits(
    family: ShaderFamily,
    kernel: str,
    threadgroups: int,
    struct: ParameterStruct,
    *,
    splits: int,
    weights: int,
    outputs: int,
    replicates: bool,
    accumulates: bool,
    **others: int | Layout,
) -> Plan:
    """The dispatch of a kernel that takes ``struct``, with ``others`` among its fields, and writes ``splits`` sums of
    ``weights`` and ``outputs`` biases."""
    split_stride = weights + outputs
    parameters = struct.pack(
        splits=splits,
        split_stride=split_stride,
        weights=weights,
        replicates=int(replicates),
        accumulates=int(accumulates and splits == 1),
        **others,
    )
    sum_parameters = SUM_PARAMETERS.pack(
        weights=weights, splits=splits, split_stride=split_stride, accumulates=int(accumulates)
    )
    return Plan(family, kernel, threadgroups, parameters, splits, split_stride, sum_parameters)


def _groups_in_rows(groups: int, group_outputs: int) -> int:
    """The largest number of groups that ``ROWS`` neighbouring output channels belong to."""
    if groups == 1 or group_outputs % ROWS == 0:
        return 1
    if ROWS % group_outputs == 0:
        return min(groups, ROWS // group_outputs)
    return min(groups, (ROWS - 1) // group_outputs + 2)


def _with_longer_rows(gradient: Layout, source: Layout) -> tuple[Layout, Layout]:
    """For a window of one pixel: short rows of an image joined to one, and those of all images where that is short."""
    pixels = gradient[4] * gradient[5]
    for count, join in ((pixels, _with_images_in_rows), (pixels * gradient[7], in_one_row)):
        joined_gradient, joined_source = join(gradient), join(source)
        if count <= SHORT_ROW and joined_gradient is not None and joined_source is not None:
            gradient, source = joined_gradient, joined_source
    return gradient, source


def _with_images_in_rows(layout: Layout) -> Layout | None:
    """``layout`` with each image as one row, or None if its pixels are not evenly spaced."""
    row = in_one_row((*layout[:7], 1))
    return None if row is None else (*row[:3], layout[3], *row[4:7], layout[7])
