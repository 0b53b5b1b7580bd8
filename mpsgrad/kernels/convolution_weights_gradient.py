"""The gradients of a convolution for its weights and biases: which kernel computes them, with which parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT, WINDOW
from mpsgrad.kernels.channel_padding import Padding
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry, in_one_row
from mpsgrad.kernels.convolution_packing import LANES, SUM_PARAMETERS
from mpsgrad.kernels.convolution_simdgroups import EIGHTS_COST
from mpsgrad.kernels.pointwise import Layout
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import ALWAYS, NEVER, WHERE_FEWER, Tunables

ROWS = 8
DEPTHWISE_TAPS = 3
SPLIT_BYTES = 800_000
"""The image rows of one split, which all its simdgroups read, should stay in a core's cache."""

EIGHTS_CHANNELS, EIGHTS_OUTPUTS, EIGHTS_PIXELS, EIGHTS_RUNS = 16, 6, 112, 16
"""Of a thread that works on eights of channels: what it owns at a time, and how many pixels in how many rows."""
WHOLE_OUTPUTS = 16
"""The output channels at a time where registers hold 16 floats, and a line of the caches has as many."""
MOST_BLOCKS = 8
"""Of a thread that copies several times ``EIGHTS_CHANNELS``."""
FEWEST_BLOCK_CHANNELS, BLOCKS_GAIN = 32, 1.1
"""From so many channels of both images on such threads compute, unless they have more products than simdgroups by this
factor: they read the gradient less often. Measured."""
FEWEST_CHANNELS_OF_FEW_PIXELS, FEW_PIXELS_OF_BLOCKS = 128, 256
"""And from so many channels of the source on where there are up to so many pixels: weights, most of what is read and
written, lie in longer runs there. Measured."""
FEWEST_BLOCK_OUTPUTS, BLOCK_THREADS_WANTED = 64, 16
"""So many threads keep every core busy. Down to so many output channels of each there is one split."""
PART_BYTES = 3 << 20
"""But no more of the images to a split, which are read for each tap from near caches then. Measured."""
FEWEST_TILES, CACHED_SHARE, MANY_CHANNELS = 16, 4, 128
"""With so many tiles there, and a gradient image of at most the caches' bytes divided by the second number, threads
go through all rows: partial sums would take longer than reading the image again for each tile. Then they are also
faster than simdgroups from so many channels of the source on. Measured."""
FEW_PIXELS_OF_TILES = 512
"""Up to so many they are also faster than simdgroups that leave some of their lanes or rows empty. Measured."""
MOST_CHANNELS_OF_GROUP = 32
"""Of the source, that such threads take of groups: with more, simdgroups are as fast. Measured."""
SINGLE_EIGHT, SINGLE_OUTPUTS = 8, 8
"""The same where it owns a single eight of channels."""
FEW_OUTPUTS, FEW_TAPS = 4, 16
"""So many output channels at a time where there are fewer than ``SINGLE_OUTPUTS``, and for so many taps."""
MOST_FEW_OUTPUTS, MOST_FEW_OF_ONE_TAP, FEWEST_COLUMNS = 12, 8, 12
"""Up to so many, or so many for one tap, where there are 16 registers and rows have so many pixels. Measured."""
FEWEST_CHANNELS_OF_FEW = 64
"""Of the source, with which threads for few output channels compute unless simdgroups have fewer products. Measured."""
FEW_PIXELS, FEW_PIXELS_APART, APART, ROW_OUTPUTS = 8, 64, 256, 4
"""Up to so many pixels, or so many whose distance is no multiple of the third number of floats, a thread writes all
weights of so many output channels: what lies that far apart shares few places in the nearest cache."""
FEW_REGISTERS_APART, FEWEST_APART_CHANNELS = 128, 64
"""Where there are 16 registers, threads copy pixels of the gradient that lie a multiple of so many floats apart, if
both images have so many channels. Measured."""
EVICTING_STRIDE = 512
"""Values that lie a multiple of so many floats apart evict each other from the nearest cache unless they are copied."""
PIXELS_AHEAD = 16
"""So far ahead a core fetches what it will copy: lines that lie a pixel apart it does not foresee."""
EIGHTS_THREADS_WANTED = 256
"""So many keep every core busy; more splits would only make more partial sums."""
MOST_PIXELS_OF_FEW_THREADS, FEW_THREADS_WANTED = 1024, 32
"""The same for up to so many pixels where there are 16 registers: splits of fewer take longer to add up. Measured."""
FEW_PRODUCTS = 65536
"""Up to so many of pixels and weights are added up in one split: a second dispatch would take longer. Measured."""

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
        "few_taps": FEW_TAPS,
        "row_outputs": ROW_OUTPUTS,
        "pixels_ahead": PIXELS_AHEAD,
        "eight_pixels": EIGHTS_PIXELS,
        "eight_runs": EIGHTS_RUNS,
        "most_blocks": MOST_BLOCKS,
    },
    measured=lambda numbers: {
        "rows_at_once": numbers.convolution_weights_rows_at_once,
        "by_eights": numbers.convolution_by_eights != NEVER,
        "whole_outputs": WHOLE_OUTPUTS if numbers.convolution_by_eights == WHERE_FEWER else 0,
    },
)


@dataclass(frozen=True)
class Plan:
    """One dispatch of a kernel of ``family`` that writes ``splits`` partial sums of ``split_stride`` floats, and one
    that adds these up.

    With one split the first writes the gradients themselves. It reads copies of the gradient and the source where they
    have ``paddings``. Of tiles ``time`` are the microseconds that all of this should take.
    """

    family: ShaderFamily
    kernel: str
    threadgroups: int
    parameters: bytes
    splits: int
    split_stride: int
    sum_parameters: bytes
    paddings: tuple[Padding | None, Padding | None] = (None, None)
    time: float = 0.0


def rows_for_threads(geometry: ConvolutionGeometry, tiles: int, threads_wanted: int) -> int:
    """The rows of a split for ``threads_wanted`` threads, but partial sums of no more values than the images."""
    gradient, source = geometry.result, geometry.source
    row_values = gradient[4] * gradient[6] + source[4] * source[6]
    rows = ceiling_divide(gradient[5] * gradient[7], ceiling_divide(threads_wanted, tiles))
    return max(rows, ceiling_divide(geometry.weights_count + geometry.outputs, max(row_values, 1)), 1)


class _Tiles(NamedTuple):
    """A kernel's tiles of weights, and of so many channels of the result for the biases.

    A kernel with ``threads_wanted`` makes that many threads, as far as there are rows for them.
    """

    kernel: str
    row_tiles: int
    lane_tiles: int
    weight_tiles: int
    result_channels: int = LANES
    threads_wanted: int | None = None


@lru_cache(maxsize=4096)
def plan(geometry: ConvolutionGeometry, accumulates: bool, metal_type: str, numbers: Tunables) -> Plan:
    """What computes the gradients, from the gradient in the place of the result and the source."""
    geometry = geometry.with_long_pixels() or geometry
    if geometry.is_pointwise:
        geometry = _with_longer_rows(geometry)
    if numbers.convolution_by_eights != NEVER and metal_type == "float" and _is_of_few_pixels(geometry):
        tiles = ceiling_divide(geometry.outputs, ROW_OUTPUTS)
        return plan_of_rows(
            FAMILY,
            "convolution_gradient_weights_dense_of_few",
            geometry,
            accumulates,
            row_tiles=tiles,
            lane_tiles=1,
            weight_tiles=tiles,
            tiles=tiles,
            rows_per_split=1,
        )
    by_eights = numbers.convolution_by_eights if metal_type == "float" else NEVER
    if by_eights == WHERE_FEWER and is_by_blocks(geometry):
        return _plan_of_blocks(geometry, accumulates, WHOLE_OUTPUTS)
    if by_eights == ALWAYS and _reads_gradients_apart(geometry):
        return _plan_of_blocks(geometry, accumulates, EIGHTS_OUTPUTS)
    is_cached = metal_type == "float" and is_cached_whole(geometry, numbers)
    of_weights = _tiles(geometry, by_eights, is_cached)
    goes_through_all = is_cached and of_weights.kernel == "dense_of_eights" and not _reads_from_afar(geometry)
    return plan_of_rows(
        FAMILY,
        f"convolution_gradient_weights_{of_weights.kernel}",
        geometry,
        accumulates,
        row_tiles=of_weights.row_tiles,
        lane_tiles=of_weights.lane_tiles,
        weight_tiles=of_weights.weight_tiles,
        tiles=of_weights.weight_tiles + ceiling_divide(geometry.outputs, of_weights.result_channels),
        rows_per_split=_image_rows(geometry) if goes_through_all else _rows_per_split(geometry, of_weights),
    )


def _parts_in_near_caches(geometry: ConvolutionGeometry) -> int:
    """Into how many parts to divide the images, so that near caches hold one for all of its taps, or less than 2.

    Partial sums should take no longer than what they save.
    """
    image_bytes = 4 * sum(math.prod(layout[4:]) for layout in (geometry.source, geometry.result))
    return image_bytes // max(PART_BYTES, 16 * geometry.weights_count)


def _reads_from_afar(geometry: ConvolutionGeometry) -> bool:
    """Whether each of several taps would read images that near caches do not hold."""
    return geometry.taps > 1 and _parts_in_near_caches(geometry) > 1


def is_by_blocks(geometry: ConvolutionGeometry) -> bool:
    """Whether threads are to own many channels of either image."""
    if geometry.groups > 1 or geometry.replicates:
        return False
    if geometry.inputs >= FEWEST_CHANNELS_OF_FEW_PIXELS and geometry.pixels <= FEW_PIXELS_OF_BLOCKS:
        return True
    if min(geometry.inputs, geometry.outputs) < FEWEST_BLOCK_CHANNELS:
        return False
    return products(geometry, EIGHTS_CHANNELS, WHOLE_OUTPUTS) <= BLOCKS_GAIN * products(geometry, LANES, ROWS)


def _reads_gradients_apart(geometry: ConvolutionGeometry) -> bool:
    """Whether threads with 16 registers are to copy the gradient, too, whose pixels share few places in the caches."""
    is_apart = geometry.result[1] % FEW_REGISTERS_APART == 0 and geometry.outputs >= FEWEST_APART_CHANNELS
    fills_blocks = geometry.inputs % EIGHTS_CHANNELS == 0 and geometry.inputs >= FEWEST_APART_CHANNELS
    return is_apart and fills_blocks and geometry.groups == 1 and not geometry.replicates


def _plan_of_blocks(geometry: ConvolutionGeometry, accumulates: bool, outputs_together: int) -> Plan:
    """With splits only where fewer output channels for each thread do not make enough of them."""
    blocks = ceiling_divide(geometry.inputs, EIGHTS_CHANNELS)
    lane_tiles = ceiling_divide(blocks, MOST_BLOCKS)
    output_blocks = ceiling_divide(geometry.outputs, outputs_together)
    most_output_tiles = ceiling_divide(geometry.outputs, FEWEST_BLOCK_OUTPUTS)
    output_tiles = min(ceiling_divide(BLOCK_THREADS_WANTED, geometry.taps * lane_tiles), most_output_tiles)
    output_tiles = ceiling_divide(output_blocks, ceiling_divide(output_blocks, output_tiles))
    weight_tiles = geometry.taps * lane_tiles * output_tiles
    reads_all = geometry.taps == 1 and not geometry.reaches_outside((0, 0), geometry.source[4:6])
    threads_wanted = max(BLOCK_THREADS_WANTED, weight_tiles * _parts_in_near_caches(geometry))
    return plan_of_rows(
        FAMILY,
        "convolution_gradient_weights_dense_of_blocks",
        geometry,
        accumulates,
        row_tiles=EIGHTS_CHANNELS * ceiling_divide(blocks, lane_tiles),
        lane_tiles=lane_tiles,
        weight_tiles=weight_tiles,
        tiles=weight_tiles + (0 if reads_all else ceiling_divide(geometry.outputs, EIGHTS_CHANNELS)),
        rows_per_split=rows_for_threads(geometry, weight_tiles, threads_wanted),
    )


def _is_of_few_pixels(geometry: ConvolutionGeometry) -> bool:
    """Whether a thread is to write all weights of a few output channels, from the few pixels of one row."""
    few_pixels = FEW_PIXELS if geometry.source[1] % APART == 0 else FEW_PIXELS_APART
    return (
        geometry.is_pointwise
        and geometry.groups == 1
        and not geometry.replicates
        and _image_rows(geometry) == 1
        and geometry.result[4] <= few_pixels
    )


def _image_rows(geometry: ConvolutionGeometry) -> int:
    """The rows of all gradient images."""
    return geometry.result[5] * geometry.result[7]


def is_cached_whole(geometry: ConvolutionGeometry, numbers: Tunables) -> bool:
    """Whether threads with 16 channels of either image, if they compute it, are to have one split."""
    tiles = geometry.taps * ceiling_divide(geometry.inputs, EIGHTS_CHANNELS)
    return (
        numbers.convolution_by_eights == WHERE_FEWER
        and not geometry.replicates
        and tiles >= FEWEST_TILES
        and geometry.outputs >= WHOLE_OUTPUTS
        and 4 * geometry.pixels * geometry.outputs <= numbers.cached_bytes // CACHED_SHARE
    )


def has_whole_groups(geometry: ConvolutionGeometry) -> bool:
    """Whether groups are a few times what such threads own."""
    channels, outputs = geometry.group_inputs, geometry.group_outputs
    return channels % EIGHTS_CHANNELS == outputs % WHOLE_OUTPUTS == 0 and channels <= MOST_CHANNELS_OF_GROUP


def reads_runs(geometry: ConvolutionGeometry) -> bool:
    """Whether what the taps of a row read lies side by side, of few channels."""
    width, _, _, _, dilation_x, *_ = geometry.window
    is_one_run = geometry.groups == dilation_x == 1 < width and geometry.source[1] == geometry.inputs < FEW_CHANNELS
    return is_one_run and not geometry.replicates


def _tiles(geometry: ConvolutionGeometry, by_eights: int, is_cached: bool) -> _Tiles:
    """Those of the kernel to use, where threads are to compute ``by_eights``, which is one of ``ALWAYS`` and others.

    ``is_cached`` says whether these would have one split.
    """
    width, height = geometry.window[:2]
    groups, channels, outputs = geometry.groups, geometry.group_inputs, geometry.outputs
    if geometry.is_depthwise and not geometry.replicates:
        row_tiles = ceiling_divide(width, DEPTHWISE_TAPS)
        if by_eights == ALWAYS and outputs >= EIGHTS_CHANNELS:
            lane_tiles = ceiling_divide(outputs, EIGHTS_CHANNELS)
            weight_tiles = ceiling_divide(height, DEPTHWISE_TAPS) * row_tiles * lane_tiles
            of_eights = EIGHTS_CHANNELS, EIGHTS_THREADS_WANTED
            return _Tiles("depthwise_of_eights", row_tiles, lane_tiles, weight_tiles, *of_eights)
        lane_tiles = ceiling_divide(outputs, LANES)
        return _Tiles("depthwise", row_tiles, lane_tiles, height * row_tiles * lane_tiles)
    if reads_runs(geometry):
        row_tiles, lane_tiles = ceiling_divide(width * channels, ROWS), ceiling_divide(outputs, LANES)
        return _Tiles("few", row_tiles, lane_tiles, height * row_tiles * lane_tiles)
    if not geometry.replicates and _is_by_eights(geometry, by_eights, is_cached):
        needs_few_threads = by_eights == ALWAYS and geometry.pixels <= MOST_PIXELS_OF_FEW_THREADS
        of_eights = EIGHTS_CHANNELS, FEW_THREADS_WANTED if needs_few_threads else EIGHTS_THREADS_WANTED
        if outputs < SINGLE_OUTPUTS or (by_eights == ALWAYS and _has_few_outputs(geometry)):
            lane_tiles = ceiling_divide(geometry.inputs, EIGHTS_CHANNELS)
            weight_tiles = ceiling_divide(geometry.taps, FEW_TAPS) * lane_tiles
            return _Tiles("dense_few_outputs_of_eights", 1, lane_tiles, weight_tiles, *of_eights)
        row_tiles = SINGLE_EIGHT if channels <= SINGLE_EIGHT else EIGHTS_CHANNELS
        lane_tiles = ceiling_divide(geometry.inputs, row_tiles)
        return _Tiles("dense_of_eights", row_tiles, lane_tiles, geometry.taps * lane_tiles, *of_eights)
    row_tiles = ceiling_divide(outputs, ROWS)
    lane_tiles = ceiling_divide(_groups_in_rows(groups, geometry.group_outputs) * channels, LANES)
    return _Tiles("dense", row_tiles, lane_tiles, geometry.taps * row_tiles * lane_tiles)


def _has_few_outputs(geometry: ConvolutionGeometry) -> bool:
    """Whether all taps are to read a row of pixels in turn where there are 16 registers."""
    most = MOST_FEW_OUTPUTS if geometry.taps > 1 else MOST_FEW_OF_ONE_TAP
    return geometry.outputs <= most and geometry.result[4] >= FEWEST_COLUMNS


def _rows_per_split(geometry: ConvolutionGeometry, of_weights: _Tiles) -> int:
    """At least two splits, but partial sums of no more than twice the bytes of the images."""
    gradient, source = geometry.result, geometry.source
    image_rows = _image_rows(geometry)
    rows_read = min(geometry.axes[1].stride, geometry.axes[1].taps)
    row_bytes = max(4 * (gradient[4] * gradient[6] + source[4] * source[6] * rows_read), 1)
    rows = min(SPLIT_BYTES // row_bytes, ceiling_divide(image_rows, 2))
    rows = max(rows, ceiling_divide(2 * geometry.weights_count, row_bytes), 1)
    if of_weights.threads_wanted is None:
        return rows
    splits = ceiling_divide(of_weights.threads_wanted, of_weights.weight_tiles)
    if of_weights.kernel == "dense_of_eights" and _reads_from_afar(geometry):
        splits = max(splits, _parts_in_near_caches(geometry))
    return max(rows, ceiling_divide(image_rows, splits))


def _is_by_eights(geometry: ConvolutionGeometry, by_eights: int, is_cached: bool) -> bool:
    """Whether threads are to compute what is not depthwise, rather than simdgroups."""
    groups, channels, outputs = geometry.groups, geometry.inputs, geometry.outputs
    if by_eights == NEVER or channels < EIGHTS_CHANNELS:
        return False
    if by_eights == ALWAYS or (groups > 1 and channels // groups % LANES != 0):
        return True
    if groups > 1:
        return is_cached and has_whole_groups(geometry)
    if outputs < SINGLE_OUTPUTS:
        return _has_fewer_products_of_few(geometry)
    if geometry.source[1] * geometry.window[2] % EVICTING_STRIDE == 0:
        return True
    of_simdgroups = products(geometry, LANES, ROWS)
    of_whole = products(geometry, EIGHTS_CHANNELS, WHOLE_OUTPUTS)
    leaves_lanes_empty = channels % LANES != 0 or outputs % ROWS != 0
    if is_cached and leaves_lanes_empty and geometry.pixels <= FEW_PIXELS_OF_TILES:
        return True
    if is_cached and channels >= MANY_CHANNELS and of_whole <= of_simdgroups:
        return True
    return EIGHTS_COST * products(geometry, EIGHTS_CHANNELS, EIGHTS_OUTPUTS) < of_simdgroups


def _has_fewer_products_of_few(geometry: ConvolutionGeometry) -> bool:
    """Whether threads for few output channels have no more products than simdgroups, which go through all rows of a
    tap before those of the next one."""
    outputs_together = FEW_OUTPUTS if geometry.outputs <= FEW_OUTPUTS else SINGLE_OUTPUTS
    of_few = products(geometry, EIGHTS_CHANNELS, outputs_together)
    of_simdgroups = products(geometry, LANES, ROWS)
    reads_again = geometry.taps > 1 and geometry.inputs >= FEWEST_CHANNELS_OF_FEW
    return of_few < of_simdgroups or (reads_again and of_few == of_simdgroups)


def products(geometry: ConvolutionGeometry, channels_together: int, outputs_together: int) -> int:
    """For a pixel and a tap without groups, also of lanes without a channel."""
    outputs = ceiling_divide(geometry.outputs, outputs_together) * outputs_together
    return ceiling_divide(geometry.inputs, channels_together) * channels_together * outputs


def plan_of_rows(
    family: ShaderFamily,
    kernel: str,
    geometry: ConvolutionGeometry,
    accumulates: bool,
    *,
    tiles: int,
    rows_per_split: int,
    **others: int,
) -> Plan:
    """The dispatch of a kernel that takes ``PARAMETERS``, ``others`` being fields of these, and has ``tiles`` for each
    split of the gradient image's rows: for few products there is one."""
    if geometry.pixels * geometry.weights_count <= FEW_PRODUCTS:
        rows_per_split = max(_image_rows(geometry), 1)
    splits = max(ceiling_divide(_image_rows(geometry), rows_per_split), 1)
    return plan_of_splits(
        family,
        kernel,
        splits * tiles,
        PARAMETERS,
        geometry,
        accumulates,
        splits=splits,
        channels=geometry.group_inputs,
        group_outputs=geometry.group_outputs,
        tiles=tiles,
        rows_per_split=rows_per_split,
        **others,
    )


def plan_of_splits(
    family: ShaderFamily,
    kernel: str,
    threadgroups: int,
    struct: ParameterStruct,
    geometry: ConvolutionGeometry,
    accumulates: bool,
    *,
    splits: int,
    **others: int | tuple[int, int],
) -> Plan:
    """The dispatch of a kernel that takes ``struct``, with ``others`` among its fields, and writes ``splits`` sums."""
    weights = geometry.weights_count
    split_stride = weights + geometry.outputs
    parameters = struct.pack(
        gradient=geometry.result,
        source=geometry.source,
        window=geometry.window,
        splits=splits,
        split_stride=split_stride,
        weights=weights,
        replicates=int(geometry.replicates),
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


def _with_longer_rows(geometry: ConvolutionGeometry) -> ConvolutionGeometry:
    """A pointwise one with the rows of an image joined where they are short, and then those of all images."""
    pixels = geometry.result[4] * geometry.result[5]
    for count, join in ((pixels, _with_images_in_rows), (geometry.pixels, in_one_row)):
        source, result = join(geometry.source), join(geometry.result)
        if count <= SHORT_ROW and source is not None and result is not None:
            geometry = replace(geometry, source=source, result=result)
    return geometry


def _with_images_in_rows(layout: Layout) -> Layout | None:
    """``layout`` with each image as one row, or None if its pixels are not evenly spaced."""
    row = in_one_row((*layout[:7], 1))
    return None if row is None else (*row[:3], layout[3], *row[4:7], layout[7])
