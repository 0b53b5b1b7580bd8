"""How the kernels of batch normalization are dispatched: the buffers and threadgroups of each."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Function
from mpsgrad.image import Image
from mpsgrad.kernels.batch_normalization_at_once import join_at_once
from mpsgrad.kernels.batch_normalization_families import (
    AT_ONCE,
    BY_CHANNELS,
    CHANNELS_OF_MERGE,
    FAMILIES_BY_CHANNELS,
    FEW_THREADS,
    GRADIENT_ROWS,
    IN_LARGE_MEMORY,
    IN_MEMORY,
    JOINED_PIXELS,
    KEPT_BYTES,
    LONG_CHANNELS,
    MANY_THREADS,
    MOST_CHANNELS_AT_ONCE,
    NEURONS_AT_ONCE,
    PARAMETERS,
    ROWS_AT_ONCE,
    STATISTICS_ROWS,
    STREAM_ROWS,
    SUMS_ROWS,
    THREADS_OF_CLUSTER,
    THREADS_OF_LARGE_CLUSTER,
    TILE_PARAMETERS,
    WITHOUT_NEURON,
    ending_of,
    families_of,
    most_elements_in_one,
    most_summed_columns,
)
from mpsgrad.kernels.batch_normalization_joins import join_normalization
from mpsgrad.kernels.batch_normalization_state import BatchNormalizationState
from mpsgrad.kernels.neuron_descriptor import NeuronDescriptor, NeuronType
from mpsgrad.kernels.normalization_encoder import NormalizationEncoder, NumbersOfChannels, Streaming
from mpsgrad.kernels.normalization_tiles import (
    NARROWEST_TILE,
    WHOLE_ROW,
    WIDEST_TILE,
    Tiles,
    rows_of,
    tile_of,
    tile_parameters,
    vector_of,
    widest_of,
)
from mpsgrad.kernels.pointwise import (
    ASSUMED_COMPUTE_UNITS,
    FEWEST_CHUNKS,
    THREADGROUPS_OF_CLUSTER,
    ChunkedRows,
    Layout,
    chunked_rows,
    exceed_caches_of_passes,
    merge_pixels,
    summing_pixels_per_row,
    values_of_vector,
)
from mpsgrad.tunables import tunables

MOST_ROWS_OF_A_THREAD = 16
"""Above, rows are split over several threadgroups, whose sums have to be merged."""
THREADGROUPS_PER_UNIT = 2
VALUES_AT_ONCE, VALUES_OF_SPLITS, VECTORS_OF_SPLITS = 485, 3100, 600
"""Of images of no more for each compute unit a thread takes single channels: few threads with several each would leave
compute units idle. The first is for images of few rows, which are added up at once. Measured on an H200."""
FEWEST_VALUES_OF_PARTS, FEWEST_VALUES_JOINED, FEWEST_VALUES_OF_LONG_CHANNELS = 7000, 18500, 23000
"""Of images of so many for each compute unit, threads take parts of vectors, or pixels are joined where channels fit
none; where they cannot be, threads take more of them at a time. Measured, too."""
FEWEST_ROWS_JOINED = 10401
"""So many pixels of that many values there have to be. Of fewer, clusters have them in threadgroup memory, or as they
are they take less time. Measured, too."""
FEWEST_CHANNELS_JOINED, FEWEST_ROWS_OF_PAIRS_JOINED = 300, 13313
"""Of so many channels that two at a time fit, of as many pixels, parts of vectors take longer than joined pixels."""


def streaming_pixels_per_row(channels: int) -> int:
    """So many that a row has at least 256 columns, and if that is cheap a multiple of 32."""
    if channels >= 256:
        return 1
    even = 32 // math.gcd(channels, 32)
    if channels * even > 2048:
        return -(-256 // channels)
    return even * -(-256 // (channels * even))


SUMMED_COLUMNS, STREAMED_COLUMNS = 64, 256
"""About so many columns are to be in a row where pixels have to be joined for whole eights of columns."""


def pixels_of_whole_eights(channels: int, columns: int) -> int:
    """So many pixels to join to rows of whole eights of about ``columns`` columns."""
    fewest = 8 // math.gcd(channels, 8)
    return fewest * max(1, columns // (channels * fewest))


FEWEST_CHANNELS_OF_THREAD, THREADS_BY_CHANNELS_PER_UNIT = 32, 2
BYTES_OF_LINE, BYTES_OF_SETS = 64, 1 << 16
"""On CPUs: memory so far apart has the same place in the nearer caches."""
KEPT_BYTES_BY_CHANNELS, BYTES_OF_PAGES = 5 << 17, 11 << 19
"""On CPUs: the nearer caches hold all pixels of some channels from one pass to the next where two cache lines of each
are no more than this, or four of halves or that begin anywhere, and the pages of so much are known."""


def threads_by_channels(layouts: Sequence[Layout], element_bytes: int, compute_units: int) -> int:
    """How many threads of a CPU share the channels of the images that are read and make all passes over theirs; 0 if
    nearer caches do not hold the pixels from one pass to the next, or others are as fast."""
    channels, bytes_of_pixel = layouts[0][6], max(layout[1] for layout in layouts) * element_bytes
    per_unit = min(channels // (FEWEST_CHANNELS_OF_THREAD * compute_units), THREADS_BY_CHANNELS_PER_UNIT)
    if bytes_of_pixel % BYTES_OF_LINE == 0:
        # Where pixels lie a power of two apart, they have few places.
        lines = max(8 // element_bytes, math.gcd(bytes_of_pixel, BYTES_OF_SETS) // BYTES_OF_LINE)
    else:
        lines, per_unit = 4, per_unit if per_unit == THREADS_BY_CHANNELS_PER_UNIT else 0
    pixels = len(layouts) * rows_of(layouts[0])
    fits = pixels * lines * BYTES_OF_LINE <= KEPT_BYTES_BY_CHANNELS and pixels * bytes_of_pixel <= BYTES_OF_PAGES
    return per_unit * compute_units if fits else 0


def is_of_one_thread(layouts: Sequence[Layout], has_many_registers: bool) -> bool:
    """Whether one thread of a CPU makes all passes over the images that are read."""
    return len(layouts) * math.prod(layouts[0][4:]) <= most_elements_in_one(has_many_registers)


class Encoder(NormalizationEncoder):
    """Adds the dispatches of one encode; its data gradient is that of a batch of ``batch_pixels``."""

    def __init__(
        self,
        command_buffer: CommandBuffer,
        metal_type: str,
        channels: int,
        numbers_of_channels: NumbersOfChannels,
        epsilon: float,
        *,
        neuron: NeuronDescriptor,
        batch_pixels: int = 0,
    ) -> None:
        super().__init__(command_buffer, metal_type, channels, numbers_of_channels, epsilon)
        self.neuron, self.batch_pixels = neuron, batch_pixels
        self.slopes = () if neuron.data is None else (neuron.slope_table(self.device, channels),)

    def function(self, name: str) -> Function:
        kind = NeuronType.NONE if name.startswith(WITHOUT_NEURON) else self.neuron.neuron_type
        return families_of(name)[kind].function(self.device, name, self.metal_type)

    @abstractmethod
    def add_statistics(self, source: Image, layout: Layout, previous: int) -> None:
        """Adds mean and variance of an image to those of ``previous`` pixels."""

    @abstractmethod
    def add_sums(
        self,
        images: tuple[Image, Image],
        layouts: tuple[Layout, Layout],
        gradients: tuple[Buffer, Buffer],
        previous: int,
    ) -> None:
        """Adds the sums over a gradient and its source to ``gradients``, for gamma and beta, of ``previous`` pixels."""


class _SimdgroupEncoder(Encoder):
    """For CPUs: a simdgroup owns a chunk of rows."""

    def _work(self, names: tuple[str, ...], layouts: tuple[Layout, ...], adds_up: bool = True) -> ChunkedRows:
        numbers = tunables(self.device.tuning)
        pixels_per_row = (summing_pixels_per_row if adds_up else streaming_pixels_per_row)(self.channels)
        joined = pixels_of_whole_eights(self.channels, SUMMED_COLUMNS if adds_up else STREAMED_COLUMNS)
        most_summed = most_summed_columns(len(layouts), numbers.has_many_registers)
        # One thread adds up a small image, for which each chunk has a price.
        is_small = adds_up and is_of_one_thread(layouts, numbers.has_many_registers)
        for count in (pixels_per_row, joined):
            if count == pixels_per_row or not adds_up or count * self.channels <= most_summed:
                work = chunked_rows(names, layouts, count, numbers, adds_up, 1 if is_small else FEWEST_CHUNKS)
                if _has_whole_eights(work):
                    return work
        return chunked_rows(names, layouts, pixels_per_row, numbers, adds_up)

    def _parameters(
        self,
        work: ChunkedRows,
        *,
        pixels: int = 0,
        previous: int = 0,
        needs_gradients: int = 0,
        exceeds: bool = False,
    ) -> Buffer:
        return self.device.constant_buffer(
            PARAMETERS.pack(
                **work.parameters,
                channels=self.channels,
                pixels=pixels,
                previous=previous,
                needs_gradients=needs_gradients,
                exceeds_caches=int(exceeds),
                epsilon=self.epsilon,
                neuron=self.neuron.shader_parameters,
            )
        )

    def _partial(self, work: ChunkedRows, rows: int = 0) -> list[Buffer]:
        """Memory for the two results of each chunk, and behind them for ``rows`` of numbers for the columns.

        At least there is room for the channels' numbers repeated for columns.
        """
        count = work.chunks * work.columns
        return [self.scratch(count), self.scratch((1 + max(rows, work.columns != self.channels)) * count)]

    def _threadgroups(self, function_name: str, threads: int) -> int:
        return -(-threads // self.function(function_name).threadgroup_size)

    def _add(self, function_name: str, threads: int, *buffers: Buffer) -> None:
        self.add(function_name, self._threadgroups(function_name, threads), *buffers)

    def _add_by_channels(
        self, function_name: str, names: tuple[str, ...], layouts: tuple[Layout, ...], *buffers: Buffer
    ) -> bool:
        """Adds the kernel whose threads own channels; False if it does not suit."""
        numbers = tunables(self.device.tuning)
        has_kernel = function_name.startswith(WITHOUT_NEURON) or self.neuron.neuron_type in FAMILIES_BY_CHANNELS
        # With few registers threads that own channels are faster than one thread with all of them.
        if not has_kernel or (numbers.has_many_registers and is_of_one_thread(layouts, True)):
            return False
        element_bytes, compute_units = 2 if self.metal_type == "half" else 4, max(1, self.device.compute_units)
        threads = threads_by_channels(layouts, element_bytes, compute_units)
        if threads:
            work = chunked_rows(names, layouts, 1, numbers)
            work = ChunkedRows(work.columns, threads, work.parameters | {"chunks": threads})
            self.add(f"{function_name}{BY_CHANNELS}", threads, *buffers, self._parameters(work))
        return threads > 0

    def add_statistics(self, source: Image, layout: Layout, previous: int) -> None:
        of_channels = source.buffer, self.scratch(self.channels), self.mean, self.variance
        if previous == 0 and self._add_by_channels("batch_statistics", ("source",), (layout,), *of_channels):
            return
        work = self._work(("source",), (layout,))
        _, _, _, _, width, height, _, images = layout
        partial = self._partial(work, 1)
        exceeds = exceed_caches_of_passes((layout, layout), tunables(self.device.tuning))
        parameters = self._parameters(work, pixels=width * height * images, previous=previous, exceeds=exceeds)
        if _has_whole_eights(work):
            self._add("batch_statistics_of_eights", work.chunks, source.buffer, *partial, parameters)
        else:
            self._add("batch_statistics", work.threads, source.buffer, *partial, parameters)
        totals = self.mean, self.variance
        self._add_merge("merge_batch_statistics", work, source.buffer, *partial, *totals, parameters)

    def add_sums(
        self,
        images: tuple[Image, Image],
        layouts: tuple[Layout, Layout],
        gradients: tuple[Buffer, Buffer],
        previous: int,
    ) -> None:
        names, sources = ("gradient", "source"), [image.buffer for image in images]
        of_channels = *sources, *self.numbers_of_channels, *gradients
        if previous == 0 and self._add_by_channels("normalization_gradient_sums", names, layouts, *of_channels):
            return
        work = self._work(names, layouts)
        by_eights = _has_whole_eights(work)
        is_plain = self.neuron.neuron_type is NeuronType.NONE
        partial = self._partial(work, 3 + len(self.slopes) if by_eights and not is_plain else 0)
        exceeds = exceed_caches_of_passes(layouts, tunables(self.device.tuning))
        parameters = self._parameters(work, previous=previous, exceeds=exceeds)
        numbers = *self.numbers_of_channels, *self.slopes
        sums, threads = "normalization_gradient_sums", work.threads
        if by_eights:
            sums, threads = f"{sums}_of_eights", work.chunks
        self._add(sums, threads, *sources, *numbers, *partial, parameters)
        merge = "merge_normalization_gradient_sums"
        self._add_merge(merge, work, *partial, self.variance, *gradients, parameters)

    def _add_merge(self, function_name: str, work: ChunkedRows, *buffers: Buffer) -> None:
        """Adds the kernel that merges the chunks."""
        if not _has_whole_eights(work):
            self._add(function_name, self.channels, *buffers)
            return
        threads = -(-self.channels // CHANNELS_OF_MERGE) if work.columns == self.channels else 1
        self._add(f"{function_name}_of_eights", threads, *buffers)

    def _coefficients(self, work: ChunkedRows, parameters: Buffer, gradients: tuple[Buffer, ...] = ()) -> Buffer:
        """The table of coefficients for the columns."""
        table = self.scratch((5 + len(self.slopes)) * work.columns)
        self._add(
            "slopes_and_coefficients" if self.slopes else "normalization_coefficients",
            work.columns,
            *self.numbers_of_channels,
            *(gradients or (self.mean, self.variance)),
            *self.slopes,
            table,
            parameters,
        )
        return table

    def _streaming(
        self, function_name: str, names: tuple[str, ...], layouts: tuple[Layout, ...], gradients: tuple[Buffer, ...]
    ) -> Streaming:
        work = self._work(names, layouts, adds_up=False)
        exceeds = exceed_caches_of_passes(layouts, tunables(self.device.tuning))
        parameters = self._parameters(
            work, pixels=self.batch_pixels, needs_gradients=int(bool(gradients)), exceeds=exceeds
        )
        table = self._coefficients(work, parameters, gradients)
        if _has_whole_eights(work):
            function_name += "_of_eights"
        return function_name, self._threadgroups(function_name, work.threads), (table,), parameters


def _has_whole_eights(work: ChunkedRows) -> bool:
    """Whether every row has them."""
    return work.columns % 8 == 0


join_normalization()
join_at_once()


def takes_singles(rows: int, channels: int, width: int, compute_units: int, is_part: bool = False) -> bool:
    """Whether images of ``rows`` pixels are so small that vectors of ``width`` channels, or parts, would be too few."""
    if is_part:
        return rows * channels < FEWEST_VALUES_OF_PARTS * compute_units
    if rows <= MANY_THREADS * ROWS_AT_ONCE:
        return rows * channels <= VALUES_AT_ONCE * compute_units
    return rows * channels <= min(VALUES_OF_SPLITS, VECTORS_OF_SPLITS * width) * compute_units


@lru_cache(maxsize=512)
def plan_tiles(
    rows: int, channels: int, width: int, element_bytes: int, compute_units: int, summed_rows: int | None
) -> Tiles:
    """Tiles for images of ``rows`` pixels. ``summed_rows`` is how many a thread of a kernel that adds up takes at once;
    None for other kernels."""
    across, row_lanes, tiles = tile_of(NARROWEST_TILE, channels, width, element_bytes)
    if summed_rows is not None and rows > MOST_ROWS_OF_A_THREAD * row_lanes:
        across, row_lanes, tiles = tile_of(WIDEST_TILE, channels, width, element_bytes)
        blocks = -(-rows // (row_lanes * summed_rows))
        most = max(1, THREADGROUPS_PER_UNIT * compute_units // tiles)
        rounds = -(-blocks // most)
        return Tiles(width, across, row_lanes, tiles, -(-blocks // rounds))
    if summed_rows is None:
        nbytes = WHOLE_ROW if channels * element_bytes <= WHOLE_ROW else WIDEST_TILE
        across, row_lanes, tiles = tile_of(nbytes, channels, width, element_bytes)
    return Tiles(width, across, row_lanes, tiles, 1)


MOST_CHANNELS_OF_PAIRS, CHANNELS_OF_FOURS = 47, range(48, 257)
MOST_VALUES_OF_PARTS = 1 << 23
"""Of images of halves of up to so many channels threads add up two at a time, and of so many four, as fewer threads
then have the same ones and join what each has added up. Larger images take longer so, but for gradients that are
written: of these threads have more parts of vectors on their way. Measured on an H200."""


def width_of_halves(rows: int, channels: int, images: int, adds_up: bool) -> int:
    """How many of eight halves a thread takes at once that reads ``images`` of ``rows`` pixels."""
    has_few, is_small = channels <= MOST_CHANNELS_OF_PAIRS, rows * channels <= MOST_VALUES_OF_PARTS
    if adds_up and has_few:
        return 2 if is_small else 8
    if images == 1:
        return 4 if is_small and channels in CHANNELS_OF_FOURS else 8
    return 8 if adds_up or has_few else 4


def plan_at_once(rows: int, channels: int, width: int, compute_units: int) -> Tiles | None:
    """Tiles for images of ``rows`` pixels whose threadgroups have them all in registers; None if these are too few."""
    vectors = channels // width
    for threads, most_vectors in ((FEW_THREADS, 2 * compute_units), (MANY_THREADS, compute_units)):
        # Of many, two that lie side by side are read in one go.
        across = 1 if vectors <= most_vectors else 2
        row_lanes = threads // across
        if rows <= row_lanes * ROWS_AT_ONCE:
            return Tiles(width, across, row_lanes, -(-vectors // across), 1)
    return None


CHANNELS_OF_SINGLES = 16
"""Of up to so many a cluster takes one each, of up to twice as many two, and of others vectors or parts of these."""
CLUSTERED_SINGLES_PER_UNIT, CLUSTERED_PER_UNIT, LARGE_PER_UNIT = 3, {1: 4.5, 2: 5, 4: 4.5, 8: 3}, {8: 0.8}
"""So many threadgroups of clusters a compute unit may have, by how many channels a thread takes, and of large ones: 1.1
unless it takes that many."""
WIDEST_OF_PARTS, CLUSTERED_OF_PARTS_PER_UNIT, LARGE_OF_PARTS_PER_UNIT = 2, {8: 6.1}, {8: 1.7, 16: 2.5}
"""The same where threads take one channel, or two, by how many lie side by side: then as many are read at once as
memory delivers, and other kernels take longer."""
FEWEST_CLUSTERED = 32
"""So many threadgroups there are to be before more channels are taken side by side."""
FEWEST_ROWS_OF_CLUSTERS, ROWS_OF_LARGE, FEWEST_OF_LARGE = 512, {1: 8, 2: 8, 4: 7, 8: 7}, 4
"""Pixels that clusters share, rows at most of a thread of the large ones, by how many channels it takes, and so many
channels at least that these take side by side."""
FEW_LARGE = 8
"""Of large clusters whose threads take half a vector so few are faster than half as many that take a whole one."""
RUNNING_PER_UNIT = 0.91
"""So many threadgroups of large clusters run at the same time where a compute unit has one."""
FEWEST_NARROW_PER_UNIT, FEWEST_OF_NARROW = 0.5, 8
"""Where threads take four channels, large clusters whose threads take two are faster if so many threadgroups of them
have a compute unit, if all run at the same time, and so many channels lie side by side."""


def _clusters(
    threads: int,
    rows_of_thread: int,
    rows: int,
    channels: int,
    width: int,
    compute_units: int,
    per_unit: float,
    of_parts_per_unit: Mapping[int, float],
) -> Tiles | None:
    """Clusters of so many ``threads`` that take as many channels side by side as leave enough threadgroups for all.

    Compute units have ``per_unit`` threadgroups at most, or ``of_parts_per_unit``.
    """
    across = MOST_CHANNELS_AT_ONCE // width
    while across > 1 and (
        rows > threads // across * rows_of_thread
        or -(-channels // (width * across)) * THREADGROUPS_OF_CLUSTER < FEWEST_CLUSTERED
    ):
        across //= 2
    tiles = -(-channels // (width * across))
    most = of_parts_per_unit.get(width * across, per_unit) if width <= WIDEST_OF_PARTS else per_unit
    fits = rows <= threads // across * rows_of_thread and tiles * THREADGROUPS_OF_CLUSTER <= most * compute_units
    return Tiles(width, across, threads // across, tiles, 1) if fits else None


def _large_clusters(rows: int, channels: int, width: int, compute_units: int) -> Tiles | None:
    per_unit = LARGE_PER_UNIT.get(width, 1.1), LARGE_OF_PARTS_PER_UNIT
    return _clusters(THREADS_OF_LARGE_CLUSTER, ROWS_OF_LARGE[width], rows, channels, width, compute_units, *per_unit)


def plan_in_clusters(rows: int, channels: int, width: int, compute_units: int) -> Tiles | None:
    """Tiles for images of ``rows`` pixels that clusters of threadgroups have in their registers; None where others are
    faster, as one threadgroup is for few pixels. ``width`` is how many channels a thread may take. Measured on an H200.
    """
    most_of_two = THREADS_OF_CLUSTER * ROWS_AT_ONCE // 2
    if channels <= (CHANNELS_OF_SINGLES if rows > most_of_two else 2 * CHANNELS_OF_SINGLES):
        across = 1 if channels <= CHANNELS_OF_SINGLES else 2
        row_lanes, tiles = THREADS_OF_CLUSTER // across, -(-channels // across)
        are_few = tiles * THREADGROUPS_OF_CLUSTER <= CLUSTERED_SINGLES_PER_UNIT * compute_units
        fits = MANY_THREADS * ROWS_AT_ONCE < rows <= row_lanes * ROWS_AT_ONCE and are_few
        return Tiles(1, across, row_lanes, tiles, 1) if fits else None
    has_threadgroups = rows > FEW_THREADS * ROWS_AT_ONCE or channels >= width * compute_units
    if rows <= FEWEST_ROWS_OF_CLUSTERS or not has_threadgroups:
        return None
    per_unit = CLUSTERED_PER_UNIT[width], CLUSTERED_OF_PARTS_PER_UNIT
    found = _clusters(THREADS_OF_CLUSTER, ROWS_AT_ONCE, rows, channels, width, compute_units, *per_unit)
    if found is not None and found.across == 1 and (width == 1 or channels > 2 * width * width):
        found = None
    large = _large_clusters(rows, channels, width, compute_units)
    if width == 8:
        # Threads with four halves of more rows keep as much in registers, and convert fewer at a time.
        narrow = _large_clusters(rows, channels, 4, compute_units)
        if narrow is not None and (large is None or narrow.tiles < 2 * large.tiles or narrow.tiles <= FEW_LARGE):
            large = narrow
    elif width == 4:
        narrow = _large_clusters(rows, channels, 2, compute_units)
        if narrow is not None:
            of_unit, beside = narrow.tiles * THREADGROUPS_OF_CLUSTER / compute_units, 2 * narrow.across
            suits = FEWEST_NARROW_PER_UNIT <= of_unit <= RUNNING_PER_UNIT and beside >= FEWEST_OF_NARROW
            if suits and (found is None or beside >= 2 * found.width * found.across):
                return narrow
    if large is None or large.across == 1 or large.width * large.across < FEWEST_OF_LARGE:
        return found
    is_wide = found is None or large.width * large.across > 2 * found.width * found.across
    return large if is_wide else found


CLUSTERED_IN_MEMORY = (
    (8, IN_MEMORY, 0.91),
    (16, IN_MEMORY, 0.91),
    (32, IN_MEMORY, 1.82),
    (16, IN_LARGE_MEMORY, 0.91),
    (32, IN_LARGE_MEMORY, 0.91),
    (16, IN_MEMORY, 1.34),
)
"""How many channels lie side by side in clusters that have their pixels in threadgroup memory, the fastest first where
they fit, in how much of it, and so many threadgroups of such clusters a compute unit may have."""
FEWEST_ROWS_IN_MEMORY, MOST_ROWS_IN_MEMORY, MOST_ROWS_OF_SINGLE_HALVES = 1025, 10400, 12000
"""Of fewer or more pixels other kernels take less time; those that take single halves of one image take it longer."""
MOST_ROWS_OF_RUNS_IN_MEMORY, BYTES_OF_RUN, MANY_PER_UNIT = 13312, 64, 0.6
"""So many pixels one image may have of which so many bytes lie side by side, where nearly all compute units have a
threadgroup, and none has two."""


def plan_in_memory(
    rows: int, channels: int, width: int, element_bytes: int, images: int, compute_units: int
) -> tuple[Tiles, str] | None:
    """Tiles for ``images`` of ``rows`` pixels that large clusters have in threadgroup memory, and what their kernels
    are called for it; None where others are faster. Measured on an H200.
    """
    channel_bytes = images * element_bytes
    most_rows = MOST_ROWS_OF_SINGLE_HALVES if width * channel_bytes == 2 else MOST_ROWS_IN_MEMORY
    if rows < FEWEST_ROWS_IN_MEMORY or channels <= 2 * CHANNELS_OF_SINGLES:
        return None
    for beside, in_memory, most_per_unit in CLUSTERED_IN_MEMORY:
        across, tiles = beside // width, -(-channels // beside)
        row_lanes = THREADS_OF_LARGE_CLUSTER // across
        kept = -(-rows // row_lanes) * THREADS_OF_LARGE_CLUSTER * width * channel_bytes // THREADGROUPS_OF_CLUSTER
        per_unit = tiles * THREADGROUPS_OF_CLUSTER / compute_units
        is_run = images == 1 and beside * element_bytes == BYTES_OF_RUN
        if rows > most_rows and not (
            is_run and rows <= MOST_ROWS_OF_RUNS_IN_MEMORY and MANY_PER_UNIT <= per_unit <= RUNNING_PER_UNIT
        ):
            continue
        # Two threadgroups of a compute unit that read few vectors side by side are no faster.
        is_wide = most_per_unit <= RUNNING_PER_UNIT or across >= 4
        if kept <= KEPT_BYTES[in_memory] and per_unit <= most_per_unit and is_wide:
            return Tiles(width, across, row_lanes, tiles, 1), in_memory
    return None


class _TileEncoder(Encoder):
    """For GPUs: a threadgroup owns vectors of channels and goes through rows."""

    def _tiles(self, layouts: Sequence[Layout], summed_rows: int | None = None) -> tuple[Tiles, int]:
        """The tiles, and the number of rows."""
        width, element_bytes = self._vector(layouts, takes_parts=True)
        rows, channels = rows_of(layouts[0]), layouts[0][6]
        if width == 8 and not self._is_joined(layouts[0]):
            adds_up = summed_rows is not None
            width = width_of_halves(rows, channels, len(layouts) - (not adds_up), adds_up)
        return plan_tiles(rows, channels, width, element_bytes, self._units, summed_rows), rows

    def _merged(self, layouts: Sequence[Layout]) -> list[Layout]:
        """``layouts`` with rows and images joined, and so many pixels of a large image whose channels fit no part of a
        vector that they have whole ones."""
        merged, width = merge_pixels(layouts), values_of_vector(self.metal_type)
        part, rows = math.gcd(width, self.channels), rows_of(merged[0])
        joined = width // part
        is_run = merged[0][5] == merged[0][7] == 1 and all(
            pixel == self.channels and start % width == 0 for start, pixel, *_ in merged
        )
        is_small = rows < FEWEST_ROWS_JOINED or rows * self.channels < FEWEST_VALUES_JOINED * self._units
        suits = part == 1 or (
            part == 2 and self.channels >= FEWEST_CHANNELS_JOINED and rows >= FEWEST_ROWS_OF_PAIRS_JOINED
        )
        if not suits or rows % joined or is_small or not is_run:
            return merged
        columns = joined * self.channels
        return [(start, columns, 0, 0, rows // joined, 1, columns, 1) for start, *_ in merged]

    def _is_joined(self, layout: Layout) -> bool:
        """Whether it is of joined pixels."""
        return layout[6] != self.channels

    def _has_long_channels(self, tiles: Tiles, layout: Layout) -> bool:
        """Whether single channels are of so many pixels that fewer threads do as much."""
        is_large = rows_of(layout) * self.channels >= FEWEST_VALUES_OF_LONG_CHANNELS * self._units
        return tiles.width == 1 and not self._is_joined(layout) and is_large

    def _variant(self, function_name: str, tiles: Tiles, layout: Layout) -> str:
        """The name of the function for joined pixels, for vectors or parts of these, or for single channels."""
        ending = JOINED_PIXELS if self._is_joined(layout) else ending_of(tiles.width, values_of_vector(self.metal_type))
        return f"{function_name}{ending}"

    def _variant_of_rows(self, function_name: str, tiles: Tiles, layout: Layout) -> str:
        """The same of those that take more rows where single channels are long."""
        long = LONG_CHANNELS if self._has_long_channels(tiles, layout) else ""
        return f"{self._variant(function_name, tiles, layout)}{long}"

    def _rows_of_a_thread(self, rows: int, tiles: Tiles, layout: Layout) -> int:
        """How many a thread has at a time, where it is ``rows`` unless halves are joined, vectors not whole or single
        channels long."""
        is_joined_half = self._is_joined(layout) and self.metal_type == "half"
        has_parts = 1 < tiles.width < values_of_vector(self.metal_type)
        return STATISTICS_ROWS if is_joined_half or has_parts or self._has_long_channels(tiles, layout) else rows

    def _vector(self, layouts: Sequence[Layout], takes_parts: bool = False) -> tuple[int, int]:
        """How many channels a thread takes at once, of parts of vectors, too, if it ``takes_parts``; bytes of each."""
        channels = layouts[0][6]
        width, element_bytes = vector_of(layouts, channels, self.metal_type)
        part = widest_of(layouts, channels, self.metal_type) if takes_parts else width
        singles = takes_singles(rows_of(layouts[0]), channels, part, self._units, is_part=part != width)
        return 1 if singles else part, element_bytes

    @property
    def _units(self) -> int:
        return self.device.compute_units or ASSUMED_COMPUTE_UNITS

    def _add_at_once(
        self, function_name: str, layouts: dict[str, Layout], buffers: tuple[Buffer, ...], previous: int
    ) -> bool:
        """Adds the kernel that adds up all pixels of an image in one go, if there is one for it."""
        is_joined = self._is_joined(layouts["source"])
        if is_joined or previous > 0 or self.neuron.neuron_type not in NEURONS_AT_ONCE:
            return False
        rows, tiles, in_memory = rows_of(layouts["source"]), None, ""
        if self.device.has_clusters:
            tiles, in_memory = self._clusters(rows, [*layouts.values()])
        if tiles is None:
            width, _ = self._vector([*layouts.values()])
            tiles = plan_at_once(rows, self.channels, width, self._units)
        if tiles is None:
            return False
        parameters, _ = self._parameters(tiles, rows, 1, layouts)
        threads = tiles.across * tiles.row_lanes
        ending = ending_of(tiles.width, values_of_vector(self.metal_type))
        name = f"{function_name}{AT_ONCE}{threads}{in_memory}{ending}"
        self.add(name, tiles.tiles * threads // self.function(name).threadgroup_size, *buffers, parameters)
        return True

    def _clusters(self, rows: int, layouts: Sequence[Layout]) -> tuple[Tiles | None, str]:
        """The tiles of clusters that are the fastest, if any are, and what their kernels are called for it."""
        width, vector = widest_of(layouts, self.channels, self.metal_type), values_of_vector(self.metal_type)
        tiles = plan_in_clusters(rows, self.channels, width, self._units)
        if tiles is not None and not self._take_turns(tiles):
            return tiles, ""
        # Threads that take whole vectors have fewer of them on their way.
        half = min(width, vector // 2)
        kept = plan_in_memory(rows, self.channels, half, 16 // vector, len(layouts), self._units)
        if kept is None or (tiles is not None and kept[0].tiles >= tiles.tiles):
            return tiles, ""
        return kept

    def _take_turns(self, tiles: Tiles) -> bool:
        """Whether some large clusters begin when others end: a compute unit has two of their threadgroups, or one where
        threads need registers for vectors of floats."""
        is_large = tiles.across * tiles.row_lanes == THREADS_OF_LARGE_CLUSTER
        of_unit = 1 if self.metal_type == "float" and (tiles.width, tiles.across) == (4, 2) else 2
        return is_large and tiles.tiles * THREADGROUPS_OF_CLUSTER > of_unit * RUNNING_PER_UNIT * self._units

    def _parameters(
        self, tiles: Tiles, rows: int, rows_of_a_thread: int, layouts: dict[str, Layout], **numbers: int
    ) -> tuple[Buffer, int]:
        """The parameters, and the number of blocks of rows."""
        values: dict[str, Any] = {"pixels": 0, "previous": 0, **numbers}
        shared, blocks = tile_parameters(tiles, rows, rows_of_a_thread, layouts)
        channels = layouts["source"][6]
        values |= {"channels": channels, "joined": channels // self.channels}
        parameters = TILE_PARAMETERS.pack(
            **shared, epsilon=self.epsilon, neuron=self.neuron.shader_parameters, **values
        )
        return self.device.constant_buffer(parameters), blocks

    def _partial(self, tiles: Tiles, layout: Layout, totals: tuple[Buffer, Buffer]) -> tuple[Buffer, ...]:
        """Memory for the sums of the parts of channels; where each has one part, that is the ``totals``."""
        count = tiles.splits * layout[6]
        return totals if count == self.channels else tuple(self.scratch(count) for _ in totals)

    def add_statistics(self, source: Image, layout: Layout, previous: int) -> None:
        merged = self._merged([layout])
        totals, named = (self.mean, self.variance), {"source": merged[0]}
        if self._add_at_once("batch_statistics", named, (source.buffer, *totals), previous):
            return
        tiles, rows = self._tiles(merged, STATISTICS_ROWS)
        parameters, _ = self._parameters(tiles, rows, STATISTICS_ROWS, named, previous=previous)
        partial = self._partial(tiles, merged[0], totals)
        name = self._variant("batch_statistics", tiles, merged[0])
        self.add(name, tiles.tiles * tiles.splits, source.buffer, *partial, *totals, parameters)
        if partial != totals:
            self.add("merge_batch_statistics", self.channels, source.buffer, *partial, *totals, parameters)

    def add_sums(
        self,
        images: tuple[Image, Image],
        layouts: tuple[Layout, Layout],
        gradients: tuple[Buffer, Buffer],
        previous: int,
    ) -> None:
        gradient, source = self._merged(layouts)
        named = {"gradient": gradient, "source": source}
        buffers = *(image.buffer for image in images), *self.numbers_of_channels, *gradients
        if self._add_at_once("normalization_gradient_sums", named, buffers, previous):
            return
        tiles, _ = self._tiles((gradient, source), SUMS_ROWS)
        rows_of_a_thread = self._rows_of_a_thread(SUMS_ROWS, tiles, source)
        tiles, rows = self._tiles((gradient, source), rows_of_a_thread)
        parameters, _ = self._parameters(tiles, rows, rows_of_a_thread, named, previous=previous)
        partial = self._partial(tiles, source, gradients)
        self.add(
            self._variant_of_rows("normalization_gradient_sums", tiles, source),
            tiles.tiles * tiles.splits,
            *(image.buffer for image in images),
            *self.numbers_of_channels,
            *self.slopes,
            *partial,
            *gradients,
            parameters,
        )
        if partial != gradients:
            merge = "merge_normalization_gradient_sums"
            self.add(merge, self.channels, *partial, self.variance, *gradients, parameters)

    def _streaming(
        self, function_name: str, names: tuple[str, ...], layouts: tuple[Layout, ...], gradients: tuple[Buffer, ...]
    ) -> Streaming:
        merged = self._merged(layouts)
        tiles, rows = self._tiles(merged)
        rows_of_a_thread = self._rows_of_a_thread(GRADIENT_ROWS if gradients else STREAM_ROWS, tiles, merged[0])
        named = dict(zip(names, merged, strict=True))
        parameters, blocks = self._parameters(tiles, rows, rows_of_a_thread, named, pixels=self.batch_pixels)
        tables = *self.numbers_of_channels, *gradients, *self.slopes
        name = self._variant_of_rows(function_name, tiles, merged[0])
        return name, tiles.tiles * blocks, tables, parameters


def encoder_of(command_buffer: CommandBuffer, *arguments: Any, **numbers: Any) -> Encoder:
    """The encoder for the device of ``command_buffer``; the other arguments are those of ``Encoder``."""
    kind = _SimdgroupEncoder if command_buffer.device.family == "cpu" else _TileEncoder
    return kind(command_buffer, *arguments, **numbers)


def encoder_of_state(
    command_buffer: CommandBuffer, state: BatchNormalizationState, neuron: NeuronDescriptor, image: Image
) -> Encoder:
    """The encoder for images of the format of ``image`` and the parameters and statistics that ``state`` holds."""
    gamma, beta, mean, variance = map(state.resource, range(4))
    return encoder_of(
        command_buffer,
        image.channel_format.metal_type,
        state.batch_normalization.number_of_feature_channels,
        (mean, variance, gamma, beta),
        state.epsilon,
        neuron=neuron,
        batch_pixels=state.batch_pixels,
    )
