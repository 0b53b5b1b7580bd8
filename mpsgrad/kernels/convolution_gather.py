"""Convolution and its data gradient as one gather: how pixels and channels fill lanes, and how weights are packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernels.channel_padding import Padding
from mpsgrad.kernels.convolution_axis import Axis, best_folds, folded_axes, plain_axes
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.kernels.convolution_packing import LANES, PACK_PARAMETERS, PACK_ROWS, PLAIN, Packing, require_packable
from mpsgrad.kernels.pointwise import Layout, are_lines, bytes_of_floats
from mpsgrad.shader import ShaderFamily
from mpsgrad.tunables import Tunables

DEPTHWISE_BLOCKS = 2
"""So many of a depthwise gather are computed at a time."""
ROW_OUTPUTS = 4
"""So many channels of the result are computed at a time from weights that are not packed."""
UNPACKED_CHANNELS = 512
"""From so many values of a source on, a fully connected layer reads its weights as they are."""


STREAMED_BYTES = 12 << 20
"""Where both images have more, also in larger caches, results that are written past them take less time, with that in
which the next layer reads them. Measured."""


@dataclass(frozen=True)
class Gather:
    """A convolution or its data gradient as one gather, whatever kernel computes it.

    ``lanes`` are the destination channels of a packed group, for all pixels that are folded into one; ``channels``
    those of the source. A pixel of the destination may be ``joined_columns`` of the user's. ``zeros`` and ``biases``
    are places in the packed weights. ``pack_fields`` are those of ``PACK_PARAMETERS``.
    """

    kernel: str
    source: Layout
    destination: Layout
    x: Axis
    y: Axis
    packing: Packing | None
    pack_fields: Mapping[str, Any]
    channels: int
    lanes: int
    fold_channels: int
    groups: int
    blocks_per_group: int
    zeros: int
    biases: int
    replicates: bool
    joined_columns: int = 1

    @property
    def phases(self) -> int:
        """The destination pixels that differ in their taps, of a gradient of strides."""
        return self.x.divisor * self.y.divisor

    @property
    def phase_pixels(self) -> int:
        """Destination pixels of a phase, or what several of them are folded into, in all images."""
        return self.destination[7] * self.y.size * self.x.size

    def exceeds_caches(self, numbers: Tunables) -> bool:
        """Whether pixels, which are whole lines, are written past the caches: these would not keep both images."""
        layout, channels = self.destination, self.destination[6]
        has_lines = are_lines(*layout[:4], channels, channels // self.groups)
        return has_lines and bytes_of_floats(self.source, layout) > min(STREAMED_BYTES, numbers.cached_bytes)

    @property
    def joins_columns(self) -> bool:
        """Whether a row of taps reads consecutive values."""
        return self.x.step == self.x.divisor == 1 and self.source[1] == self.channels

    @property
    def values_per_pixel(self) -> float:
        """How many values of the source a pixel, or what several are folded into, is the sum of in a group."""
        return self.x.taps * self.y.taps / (self.x.tap_step * self.y.tap_step) * self.channels

    def products_per_pixel(self, width: int) -> float:
        """For a pixel of the destination, also of lanes without a channel, where ``width`` lanes go together."""
        lanes = self.groups * ceiling_divide(self.lanes, width) * width
        return self.values_per_pixel * lanes / (self.x.fold * self.y.fold * self.joined_columns)


@dataclass(frozen=True)
class Sums:
    """The dispatch that adds up partial sums of ``partial_bytes``, with the parameters of the one that made them."""

    family: ShaderFamily
    kernel: str
    threadgroups: int
    partial_bytes: int


@dataclass(frozen=True)
class Plan:
    """One dispatch of a kernel of ``family``: ``packing`` is None for a kernel that reads the user's weights.

    Unless ``sums`` is None, it writes partial sums. Unless ``padding`` is None, it reads that copy of the source.
    Of tiles ``time`` are the microseconds that all of this should take.
    """

    family: ShaderFamily
    kernel: str
    threadgroups: int
    parameters: bytes
    packing: Packing | None
    sums: Sums | None = None
    padding: Padding | None = None
    time: float = 0.0


def packing_in_order(
    geometry: ConvolutionGeometry, *, transposed: bool, outputs: int, channels: int, biases: int, own_channels: bool
) -> tuple[Packing, int]:
    """Weights packed for the lanes of ``outputs``, with the taps in the order of the user, and where the biases begin.

    ``transposed`` says that the lanes are the input channels of the user's weights, which then are joined over groups.
    Each has as many ``channels``: those of all groups, or its group's ``own_channels``.
    """
    blocks = ceiling_divide(outputs, LANES)
    runs = blocks * geometry.taps
    first_bias = runs * channels * LANES
    count = first_bias + blocks * LANES
    require_packable(count)
    pack_x, pack_y = ((axis.taps, axis.taps, axis.dilation, 0, 0, axis.dilation, 1) for axis in geometry.axes)
    parameters = PACK_PARAMETERS.pack(
        x=pack_x,
        y=pack_y,
        blocks_per_group=blocks,
        outputs=outputs,
        channels=channels,
        user_outputs=geometry.group_outputs,
        user_inputs=geometry.group_inputs,
        transposed=int(transposed),
        fold_channels=outputs,
        merged=geometry.groups,
        runs=runs,
        zero_rows=0,
        blocks=blocks,
        biases=biases,
        groups=1,
        joins_columns=0,
        rounds=0,
        own_channels=int(own_channels),
    )
    kernel, threadgroups = "pack_joined" if transposed else PLAIN, runs * ceiling_divide(channels, PACK_ROWS) + blocks
    return Packing(kernel, threadgroups, parameters, count), first_bias


class _Spread(NamedTuple):
    """How the channels of each group, and neighbouring pixels or ``merged`` groups, are spread over lanes.

    ``inputs`` and ``outputs`` are the channels of one of the merged groups, and ``groups`` counts those after merging.
    """

    kernel: str
    x: Axis
    y: Axis
    groups: int
    inputs: int
    outputs: int
    merged: int = 1

    @property
    def channels(self) -> int:
        return self.inputs * self.merged

    @property
    def fold_channels(self) -> int:
        return self.outputs * self.merged

    @property
    def lanes(self) -> int:
        return self.fold_channels * self.x.fold * self.y.fold

    @property
    def blocks_per_group(self) -> int:
        blocks = ceiling_divide(self.lanes, LANES)
        if self.kernel != "convolution_depthwise":
            return blocks
        return ceiling_divide(blocks, DEPTHWISE_BLOCKS) * DEPTHWISE_BLOCKS


def _spread(geometry: ConvolutionGeometry, is_gradient: bool, lanes: int, joins_pixels: bool) -> _Spread:
    source, destination = geometry.ends(is_gradient)
    groups, (x, y) = geometry.groups, plain_axes(geometry, is_gradient)
    if geometry.is_depthwise and not geometry.replicates:
        return _Spread("convolution_depthwise", x, y, 1, 1, groups)
    dense = _Spread("convolution_dense", x, y, groups, source[6] // groups, destination[6] // groups)
    if dense.outputs > lanes // 2:
        return dense
    folds = best_folds(geometry, is_gradient, lanes) if joins_pixels else None
    if folds is None:
        merged = max(m for m in range(1, groups + 1) if groups % m == 0 and m * dense.outputs <= lanes)
        return dense._replace(groups=groups // merged, merged=merged)
    x, y = folded_axes(geometry, is_gradient, folds)
    return dense._replace(kernel="convolution_fold", x=x, y=y)


class _Packed(NamedTuple):
    """The packing of a gather, with the values of ``PACK_PARAMETERS``, and where zeros and biases begin in it."""

    packing: Packing
    fields: dict[str, Any]
    zeros: int
    biases: int


def _packed(geometry: ConvolutionGeometry, is_gradient: bool, spread: _Spread, biases: int) -> _Packed:
    """The packing for the lanes of ``spread``, of a result with so many ``biases``."""
    is_depthwise, channels = spread.kernel == "convolution_depthwise", spread.channels
    user_inputs, user_outputs = spread.inputs, spread.outputs
    if is_gradient:
        user_inputs, user_outputs = user_outputs, user_inputs
    blocks = spread.groups * spread.blocks_per_group
    runs = blocks * spread.x.taps * spread.y.taps
    # As many zeros as one run of columns reads.
    zero_rows = ceiling_divide(spread.x.taps * channels, LANES)
    rows = runs * channels
    count = (rows + zero_rows + blocks) * LANES
    require_packable(count)
    pack_x, pack_y = (
        (axis.taps, of_user.taps, axis.tap_factor, axis.fold_factor, axis.tap_shift, of_user.dilation, axis.fold)
        for axis, of_user in zip((spread.x, spread.y), geometry.axes, strict=True)
    )
    fields = {
        "x": pack_x,
        "y": pack_y,
        "blocks_per_group": spread.blocks_per_group,
        "outputs": spread.lanes,
        "channels": channels,
        "user_outputs": user_outputs,
        "user_inputs": user_inputs,
        "transposed": int(is_gradient and not is_depthwise),
        "fold_channels": spread.fold_channels,
        "merged": spread.merged,
        "groups": spread.groups,
        "runs": runs,
        "zero_rows": zero_rows,
        "blocks": blocks,
        "biases": biases,
        "joins_columns": 0,
        "rounds": 0,
        "own_channels": 0,
    }
    is_joined = spread.kernel == "convolution_fold" or spread.merged > 1
    packing = Packing(
        kernel="pack_joined" if is_joined else PLAIN,
        threadgroups=runs * ceiling_divide(channels, PACK_ROWS) + zero_rows + blocks,
        parameters=PACK_PARAMETERS.pack(**fields),
        count=count,
    )
    return _Packed(packing, fields, zeros=rows * LANES, biases=(rows + zero_rows) * LANES)


def gather(
    geometry: ConvolutionGeometry,
    is_gradient: bool,
    *,
    packs_all: bool = False,
    lanes: int = LANES,
    joins_pixels: bool = True,
    joins_columns: bool = False,
) -> Gather:
    """What gives the result from the source, or the data gradient in the place of the source from the result's.

    With ``packs_all`` the weights of large fully connected layers are packed too. ``lanes`` are those that few channels
    should fill: those of neighbouring pixels, or unless it ``joins_pixels`` those of several groups. If it
    ``joins_columns``, a data gradient has the pixels of a row of taps as one where windows lie side by side.
    """
    biases = geometry.ends(is_gradient)[1][6]
    long_pixels = geometry.with_long_pixels()
    rows = None if long_pixels is None else long_pixels.in_one_row()
    if rows is not None:
        geometry = rows
        if geometry.inputs >= UNPACKED_CHANNELS and not packs_all:
            return _unpacked_gather(geometry, is_gradient)
    # Channels that fill the lanes of a simdgroup are computed as fast alone.
    joined = geometry.with_joined_columns() if joins_columns and is_gradient and geometry.inputs < LANES else None
    joined_columns = 1 if joined is None else geometry.window[0]
    geometry = joined or geometry
    spread = _spread(geometry, is_gradient, lanes, joins_pixels)
    rows = geometry.in_one_row() if geometry.is_pointwise and spread.kernel == "convolution_dense" else None
    if rows is not None:
        geometry = rows
        spread = spread._replace(
            kernel="convolution_point", x=spread.x._replace(size=rows.result[4]), y=spread.y._replace(size=1)
        )
    packed = _packed(geometry, is_gradient, spread, biases)
    source, destination = geometry.ends(is_gradient)
    return Gather(
        spread.kernel,
        source,
        destination,
        spread.x,
        spread.y,
        packed.packing,
        packed.fields,
        channels=spread.channels,
        lanes=spread.lanes,
        fold_channels=spread.fold_channels,
        groups=spread.groups,
        blocks_per_group=spread.blocks_per_group,
        zeros=packed.zeros,
        biases=packed.biases,
        replicates=geometry.replicates,
        joined_columns=joined_columns,
    )


def _unpacked_gather(geometry: ConvolutionGeometry, is_gradient: bool) -> Gather:
    source, destination = geometry.ends(is_gradient)
    axis = Axis(1, 1, 1, 0, 1, 1, 1, 1, 0, 0)
    return Gather(
        "convolution_point_unpacked" if is_gradient else "convolution_rows",
        source,
        destination,
        axis._replace(size=destination[4]),
        axis,
        None,
        {},
        channels=source[6],
        lanes=destination[6],
        fold_channels=destination[6],
        groups=1,
        blocks_per_group=ceiling_divide(destination[6], LANES if is_gradient else ROW_OUTPUTS),
        zeros=0,
        biases=0,
        replicates=False,
    )
