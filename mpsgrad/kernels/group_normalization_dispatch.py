"""How the kernels of instance and group normalization are dispatched."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Function
from mpsgrad.image import Image
from mpsgrad.kernels.batch_normalization_dispatch import streaming_pixels_per_row
from mpsgrad.kernels.batch_normalization_families import (
    FAMILIES,
    GRADIENT_ROWS,
    STATISTICS_ROWS,
    STREAM_ROWS,
    SUMS_ROWS,
    TILES,
)
from mpsgrad.kernels.neuron_descriptor import NeuronType
from mpsgrad.kernels.normalization_encoder import NormalizationEncoder, NumbersOfChannels, Streaming
from mpsgrad.kernels.normalization_tiles import (
    NARROWEST_TILE,
    WIDEST_TILE,
    Tiles,
    rows_of,
    tile_of,
    tile_parameters,
    variant,
    vector_of,
)
from mpsgrad.kernels.pointwise import (
    CHUNKED_ROWS,
    ELEMENTS_OF_LINE,
    THREADS_OF_EIGHTS,
    VECTORS,
    ChunkedRows,
    Layout,
    Operand,
    chunked_rows,
    exceed_caches_of_passes,
    merge_pixels,
    pieces,
    summing_pixels_per_row,
)
from mpsgrad.shader import IMAGE_LAYOUT, ParameterStruct, ShaderFamily
from mpsgrad.tunables import tunables

GROUPS: dict[str, str | ParameterStruct] = {
    "groups": "int",
    "channels_per_group": "int",
    "images": "int",
    "first_image": "int",
}
"""Image 0 has row ``first_image`` of the arrays of a state."""
PARAMETERS = ParameterStruct(
    "NormalizationParameters",
    **CHUNKED_ROWS,
    **GROUPS,
    channels="int",
    pixels="int",
    columns="int",
    blocks="int",
    eights_of_block="int",
    needs_gradients="int",
    exceeds_caches="int",
    epsilon="float",
)
TILE_PARAMETERS = ParameterStruct("NormalizationTiles", **TILES, **GROUPS)
"""In both, rows, pixels and their parts are those of each image."""

MOST_ROWS_OF_A_THREAD = 32
"""As for batch normalization; but how an image is cut does not depend on how many there are, so that the results for it
are the same bits alone and in a batch."""

FEWEST_TILES, FEW_ROWS_OF_A_THREAD = 4, 8
"""An image of fewer tiles with more rows is cut into narrower ones: it may be the only one."""

EIGHTS_OF_THREAD, ROWS_OF_THREAD, FEWEST_ROWS_OF_THREADS, THREADS_OF_CHUNKS = 64, 64, 256, 4
"""On CPUs: so many eights of columns, of rows that are read twice from nearer caches unless there are few. How an
image is cut does not depend on how many there are. The last is of a threadgroup."""
COLUMNS_AT_ONCE, COLUMNS_PER_SUM = 32, 16
"""On CPUs: so many are read at once whose sums fit 16 registers of eight floats; where there are more, so many for each
sum that a lane of a simdgroup has. What is read in the order of memory comes in time."""
FEWEST_ROWS_PER_COLUMN, MOST_CHANNELS_OF_LONGER_ROWS = 2, 12
"""On CPUs: pixels of few channels are longer rows if there are so many of these: each column has a price of its own."""
EIGHTS_OF_TABLE = 5
"""On CPUs: what a thread that makes all passes keeps of eight columns."""
ROWS_OF_TILE, COLUMNS_OF_TILE = 4, 1024
"""On CPUs: a thread that makes all passes reads so many rows in turn, or more of fewer columns."""
ROWS_OF_TILE_OF_FEW_REGISTERS, COLUMNS_OF_TILE_OF_FEW_REGISTERS = 8, 2048
"""The same of CPUs with 16 registers of eight floats."""
COLUMNS_OF_SHORT_ROWS = 4096
"""On CPUs with more of them: statistics of so many are merged at a time where a row is short."""
ELEMENTS_IN_ORDER = 1 << 19
"""Of so many, in all images, they read each row on its own: nearer caches do not hold all of it."""
COLUMNS_OF_PANEL = 64
"""On CPUs: so many columns are gone through from the first row to the last where caches hold the images. Not by those
with few registers, whose sums are of parts of these: parts of rows are what caches are slow to read."""
KEPT_BYTES, FEWEST_CHANNELS_OF_BLOCK = 4 << 20, 64
"""On CPUs: of the images that a thread makes all passes over; threads share one only if there are fewer than cores, and
then have so many channels each: caches read more than a thread's part of a shorter row, and two write to its lines."""
FEWEST_CHANNELS_IN_BLOCKS, BLOCKS_OF_LONG_PIXELS = 1024, 4
"""On CPUs with more registers pixels that take a page of memory are gone through in so many blocks of their channels:
what is kept of these stays in the nearest cache."""

FAMILY = ShaderFamily(
    "group_normalization",
    (IMAGE_LAYOUT, PARAMETERS, TILE_PARAMETERS),
    {
        **FAMILIES[NeuronType.NONE].constants,
        "per_image": True,
        "eights_of_thread": EIGHTS_OF_THREAD,
        "threads_of_chunks": THREADS_OF_CHUNKS,
        "eights_of_table": EIGHTS_OF_TABLE,
        "columns_of_panel": COLUMNS_OF_PANEL,
        "elements_in_order": ELEMENTS_IN_ORDER,
    },
    {"cpu": {"by_vectors": False, "by_eights": True, "threads": 64, "rows": 64}},
    measured=lambda numbers: {
        "sums": numbers.normalization_sums_per_lane,
        "columns_at_once": COLUMNS_PER_SUM * numbers.normalization_sums_per_lane,
        "goes_by_panels": numbers.has_many_registers,
        "by_sixteens": numbers.has_many_registers,
        "rows_of_tile": ROWS_OF_TILE if numbers.has_many_registers else ROWS_OF_TILE_OF_FEW_REGISTERS,
        "columns_of_tile": COLUMNS_OF_TILE if numbers.has_many_registers else COLUMNS_OF_TILE_OF_FEW_REGISTERS,
        "columns_of_short_rows": COLUMNS_OF_SHORT_ROWS
        if numbers.has_many_registers
        else COLUMNS_OF_TILE_OF_FEW_REGISTERS,
    },
    template="batch_normalization",
    ahead_of_time=False,
)
"""The kernels of batch normalization for each image on its own."""


class ImagePasses(NormalizationEncoder):
    """Adds the dispatches of one encode over ``images`` images, image by image on its own.

    Image 0 has row ``first_image`` of mean and variance, and of the gradients for gamma and beta.
    """

    def __init__(
        self,
        command_buffer: CommandBuffer,
        metal_type: str,
        channels: int,
        numbers_of_channels: NumbersOfChannels,
        epsilon: float,
        *,
        channels_per_group: int,
        images: int,
        pixels: int,
        first_image: int,
    ) -> None:
        super().__init__(command_buffer, metal_type, channels, numbers_of_channels, epsilon)
        self.channels_per_group, self.groups = channels_per_group, channels // channels_per_group
        self.images, self.pixels, self.first_image = images, pixels, first_image
        self._images_of_batch = images

    def function(self, name: str) -> Function:
        return FAMILY.function(self.device, name, self.metal_type)

    def scratch_for_channels(self, rows: int = 1) -> tuple[Buffer, Buffer]:
        """Memory for two numbers for each channel of ``rows`` of each image."""
        count = self.images * rows * self.channels
        return self.scratch(count), self.scratch(count)

    def add_for_groups(self, function_name: str, *buffers: Buffer) -> None:
        """Adds a kernel of which each simdgroup has a group of an image."""
        size = self.function(function_name).threadgroup_size
        self.add(function_name, -(-32 * self.images * self.groups // size), *buffers)

    def group_parameters(self) -> dict[str, Any]:
        """The values of ``GROUPS`` and those that both structs have besides."""
        return {
            "groups": self.groups,
            "channels_per_group": self.channels_per_group,
            "images": self.images,
            "first_image": self.first_image,
            "channels": self.channels,
            "pixels": self.pixels,
            "epsilon": self.epsilon,
        }

    def normalize(self, source: Image, operand: Operand, destination: Image, layout: Layout) -> None:
        """Fills mean and variance, and ``layout`` of ``destination``, from ``operand`` of ``source``."""
        parameters = self._add_statistics(source, operand.layout)
        if self.channels_per_group > 1:
            self.add_for_groups("group_statistics", self.mean, self.variance, parameters)
        self.stream("normalize_images", ("source",), [source], (operand,), destination, layout)

    @abstractmethod
    def _add_statistics(self, source: Image, layout: Layout) -> Buffer:
        """Adds mean and variance of the channels of ``layout``; returns the parameters."""

    def differentiate(
        self,
        images: tuple[Image, Image],
        operands: tuple[Operand, Operand],
        destination: Image,
        layout: Layout,
        gradients: tuple[Buffer, Buffer],
    ) -> None:
        """Fills ``gradients``, for gamma and beta, and ``layout``, from a gradient and the forward source."""
        (incoming, image), (gradient, operand) = images, operands
        # Pixels without an incoming gradient add nothing.
        layouts: tuple[Layout, Layout] = ((0, 0, 0, 0, *operand.layout[4:]), operand.layout)
        buffer = self.zeros()
        for piece in pieces(operand.layout, (gradient,)):
            if piece.operands[0] is not None:
                layouts, buffer = (piece.operands[0], piece.destination), incoming.buffer
        parameters = self._add_sums((buffer, image.buffer), layouts, gradients)
        subtracted = gradients
        if self.channels_per_group > 1 or self.needs_means_of_channels:
            _, _, gamma, _ = self.numbers_of_channels
            subtracted = self.scratch_for_channels()
            self.add_for_groups("group_gradient_means", gamma, *gradients, *subtracted, parameters)
        names = ("gradient", "source")
        self.stream("image_normalization_gradient", names, images, operands, destination, layout, subtracted)

    needs_means_of_channels = False
    """Whether the data gradient takes means of groups even if these are single channels."""

    @abstractmethod
    def _add_sums(
        self, buffers: tuple[Buffer, Buffer], layouts: tuple[Layout, Layout], gradients: tuple[Buffer, Buffer]
    ) -> Buffer:
        """Adds the sums over a gradient and its source, which are ``buffers``; returns the parameters."""


class _SimdgroupPasses(ImagePasses):
    """For CPUs: a simdgroup owns a chunk of rows."""

    needs_means_of_channels = True

    def _work(self, names: tuple[str, ...], layouts: Sequence[Layout], adds_up: bool = True) -> ChunkedRows:
        """The rows of one image; the others have as many."""
        pixels_per_row = (summing_pixels_per_row if adds_up else streaming_pixels_per_row)(self.channels)
        return chunked_rows(names, single(layouts), pixels_per_row, tunables(self.device.tuning), adds_up)

    def _parameters(
        self,
        work: ChunkedRows,
        needs_gradients: bool = False,
        exceeds: bool = False,
        **numbers: int,
    ) -> Buffer:
        return self.device.constant_buffer(
            PARAMETERS.pack(
                **work.parameters,
                **self.group_parameters(),
                **{"columns": work.columns, "blocks": 0, "eights_of_block": 0, **numbers},
                needs_gradients=int(needs_gradients),
                exceeds_caches=int(exceeds),
            )
        )

    def _for_chunks(self, function_name: str, work: ChunkedRows) -> tuple[str, int]:
        """The name of a kernel of which each simdgroup has a chunk of an image, and its threadgroups."""
        size = self.function(function_name).threadgroup_size
        return function_name, -(-work.threads * self.images // size)

    def _add_for_columns(self, function_name: str, columns: int, *buffers: Buffer) -> None:
        """Adds a kernel of which each threadgroup has 32 columns of an image."""
        self.add(function_name, -(-columns // 32) * self.images, *buffers)

    def _add_statistics(self, source: Image, layout: Layout) -> Buffer:
        work = self._work(("source",), (layout,))
        partial = [self.scratch(self.images * work.chunks * work.columns) for _ in range(2)]
        parameters = self._parameters(work)
        self.add(*self._for_chunks("image_statistics", work), source.buffer, *partial, parameters)
        totals = self.mean, self.variance
        self._add_for_columns("merge_image_statistics", self.channels, source.buffer, *partial, *totals, parameters)
        return parameters

    def _add_sums(
        self, buffers: tuple[Buffer, Buffer], layouts: tuple[Layout, Layout], gradients: tuple[Buffer, Buffer]
    ) -> Buffer:
        work = self._work(("gradient", "source"), layouts)
        partial = [self.scratch(self.images * work.chunks * work.columns) for _ in range(2)]
        parameters = self._parameters(work)
        numbers = self.numbers_of_channels
        self.add(*self._for_chunks("image_gradient_sums", work), *buffers, *numbers, *partial, parameters)
        totals = self.variance, *gradients
        self._add_for_columns("merge_image_gradient_sums", self.channels, *partial, *totals, parameters)
        return parameters

    def _streaming(
        self, function_name: str, names: tuple[str, ...], layouts: tuple[Layout, ...], gradients: tuple[Buffer, ...]
    ) -> Streaming:
        work = self._work(names, layouts, adds_up=False)
        parameters = self._parameters(work, bool(gradients))
        coefficients = self.scratch(5 * work.columns * self.images)
        numbers = *self.numbers_of_channels, *(gradients or (self.mean, self.variance))
        self._add_for_columns("image_coefficients", work.columns, *numbers, coefficients, parameters)
        return *self._for_chunks(function_name, work), (coefficients,), parameters


class _WholePasses(_SimdgroupPasses):
    """For CPUs: a thread makes all passes over groups of an image, where that is possible."""

    def normalize(self, source: Image, operand: Operand, destination: Image, layout: Layout) -> None:
        blocks = self._blocks((operand,), layout)
        if not blocks:
            super().normalize(source, operand, destination, layout)
            return
        layouts = (operand.layout, layout)
        buffers = source.buffer, *self.numbers_of_channels
        self._add_for_blocks("normalize_images", blocks, ("source", "destination"), layouts, buffers, destination)

    def differentiate(
        self,
        images: tuple[Image, Image],
        operands: tuple[Operand, Operand],
        destination: Image,
        layout: Layout,
        gradients: tuple[Buffer, Buffer],
    ) -> None:
        blocks = self._blocks(operands, layout)
        if not blocks:
            super().differentiate(images, operands, destination, layout, gradients)
            return
        means = self.scratch_for_channels() if self.channels_per_group > 1 else gradients
        sources = (image.buffer for image in images)
        buffers = *sources, *self.numbers_of_channels[:3], *gradients, *means
        layouts = (*(operand.layout for operand in operands), layout)
        names = ("gradient", "source", "destination")
        self._add_for_blocks("image_normalization_gradient", blocks, names, layouts, buffers, destination)

    def _blocks(self, operands: Sequence[Operand], layout: Layout) -> int:
        """How many threads share the groups of an image and make all passes over them; 0 if caches do not hold it from
        one pass to the next, or not all of it is needed. The results are the same bits however many there are."""
        if any(operand.dx or operand.dy or operand.layout[4:] != layout[4:] for operand in operands):
            return 0
        if self.channels < 8:
            layouts = (*(operand.layout for operand in operands), layout)
            return int(self._pixels_of_row(layouts) > 1)
        if 4 * len(operands) * self.pixels * self.channels > KEPT_BYTES:
            return 0
        wanted = -(-self.device.compute_units // self.images)
        blocks = max(1, min(wanted, self.groups, self.channels // FEWEST_CHANNELS_OF_BLOCK))
        return max(blocks, self._blocks_of_long_pixels())

    def _blocks_of_long_pixels(self) -> int:
        """Into how many blocks of whole groups and whole cache lines the channels of pixels are cut that are long."""
        has_many_registers = tunables(self.device.tuning).has_many_registers
        if not has_many_registers or self.channels < FEWEST_CHANNELS_IN_BLOCKS or self.channels % ELEMENTS_OF_LINE:
            return 1
        whole = math.gcd(self.groups, self.channels // ELEMENTS_OF_LINE)
        return max(blocks for blocks in range(1, BLOCKS_OF_LONG_PIXELS + 1) if whole % blocks == 0)

    def _add_for_blocks(
        self,
        function_name: str,
        blocks: int,
        names: tuple[str, ...],
        layouts: tuple[Layout, ...],
        buffers: Sequence[Buffer],
        destination: Image,
    ) -> None:
        exceeds, pixels_of_row = self._exceeds(layouts), self._pixels_of_row(layouts)
        if pixels_of_row > 1:
            work = chunked_rows(names, single(layouts), pixels_of_row, tunables(self.device.tuning))
            columns = work.columns
            lanes = next(lanes for lanes in self._lanes() if columns % lanes == 0)
        else:
            work, columns = self._work(names, layouts), -(-self.groups // blocks) * self.channels_per_group
            fewest = self.groups // blocks * self.channels_per_group
            lanes = next(lanes for lanes in self._lanes() if lanes <= fewest)
        eights = -(-columns // lanes) * lanes // 8
        parameters = self._parameters(work, exceeds=exceeds, blocks=blocks, eights_of_block=eights)
        table = self.scratch(EIGHTS_OF_TABLE * 8 * eights * blocks * self.images)
        buffers = *buffers, table, destination.buffer
        self.add(f"{function_name}_in_one_of_{VECTORS[lanes]}", self.images * blocks, *buffers, parameters)

    def _lanes(self) -> tuple[int, ...]:
        """How many columns such a thread may take at a time, the most first."""
        return (16, 8) if tunables(self.device.tuning).has_many_registers else (8,)

    def _exceeds(self, layouts: Sequence[Layout]) -> bool:
        """Whether results are written past the caches, which takes whole lines of them."""
        exceeds = exceed_caches_of_passes(layouts, tunables(self.device.tuning))
        return exceeds and self.channels % ELEMENTS_OF_LINE == 0

    def _pixels_of_row(self, layouts: Sequence[Layout]) -> int:
        """How many pixels of few channels make a row of whole eights, or of as many as are read at once; 1 if none."""
        if self.channels > MOST_CHANNELS_OF_LONGER_ROWS:
            return 1
        merged = merge_pixels(single(layouts))
        *_, width, height, channels, _ = merged[0]
        if height > 1 or any(layout[1] != channels for layout in merged):
            return 1
        for columns in (COLUMNS_AT_ONCE, *self._lanes()):
            count = columns // math.gcd(columns, channels)
            # Other rows of fewer than eight channels are of single numbers.
            rows_per_column = FEWEST_ROWS_PER_COLUMN if columns > 8 else int(channels >= 8)
            if max(1, rows_per_column * count * channels) * count <= width:
                return count
        return 1


class _EightPasses(_WholePasses):
    """For CPUs and images of eight channels at least: a thread owns channels, and a chunk of rows of an image."""

    needs_means_of_channels = False

    def normalize(self, source: Image, operand: Operand, destination: Image, layout: Layout) -> None:
        for n, passes in self._passes_in_turn(1):
            super(_EightPasses, passes).normalize(source, _of_image(n, operand), destination, _at_image(n, layout))

    def differentiate(
        self,
        images: tuple[Image, Image],
        operands: tuple[Operand, Operand],
        destination: Image,
        layout: Layout,
        gradients: tuple[Buffer, Buffer],
    ) -> None:
        for n, passes in self._passes_in_turn(2):
            gradient, source = (_of_image(n, operand) for operand in operands)
            of_image = _at_image(n, layout)
            super(_EightPasses, passes).differentiate(images, (gradient, source), destination, of_image, gradients)

    def _passes_in_turn(self, sources: int) -> Iterator[tuple[int | None, _EightPasses]]:
        """The passes of each image, one after the other where it is large: caches hold more of it from one to the next.
        Others are taken together, and have number None."""
        if self.images == 1 or 4 * sources * self.pixels * self.channels <= KEPT_BYTES:
            yield None, self
            return
        for n in range(self.images):
            passes = copy(self)
            passes.images, passes.first_image = 1, self.first_image + n
            yield n, passes

    def _exceeds(self, layouts: Sequence[Layout]) -> bool:
        return super()._exceeds([(*layout[:7], self._images_of_batch) for layout in layouts])

    def _work(self, names: tuple[str, ...], layouts: Sequence[Layout], adds_up: bool = True) -> ChunkedRows:
        merged = merge_pixels(single(layouts))
        rows = rows_of(merged[0])
        chunks = 1 if rows < FEWEST_ROWS_OF_THREADS else -(-rows // ROWS_OF_THREAD)
        rows_per_chunk = -(-rows // chunks)
        named = dict(zip(names, merged, strict=True))
        parameters: dict[str, Any] = {"rows": rows, "rows_per_chunk": rows_per_chunk, "tail": 0}
        parameters["chunks"] = -(-rows // rows_per_chunk)
        for name in ("gradient", "source", "destination"):
            parameters[name], parameters[f"{name}_tail"] = named.get(name, named["source"]), 0
        return ChunkedRows(self.channels, parameters["chunks"], parameters)

    def _for_chunks(self, function_name: str, work: ChunkedRows) -> tuple[str, int]:
        threads = self.images * work.chunks * -(-self.channels // (8 * EIGHTS_OF_THREAD))
        return f"{function_name}_of_eights", -(-threads // THREADS_OF_CHUNKS)

    def _partial(self, work: ChunkedRows, totals: tuple[Buffer, Buffer]) -> tuple[Buffer, Buffer]:
        """Memory for the numbers of the chunks; of one chunk they are the ``totals``."""
        return totals if work.chunks == 1 else self.scratch_for_channels(work.chunks)

    def _add_statistics(self, source: Image, layout: Layout) -> Buffer:
        work, totals = self._work(("source",), (layout,)), (self.mean, self.variance)
        partial = self._partial(work, totals)
        parameters = self._parameters(work)
        self.add(*self._for_chunks("image_statistics", work), source.buffer, *partial, *totals, parameters)
        if work.chunks > 1:
            self._add_merge("merge_image_statistics", source.buffer, *partial, *totals, parameters)
        return parameters

    def _add_merge(self, function_name: str, *buffers: Buffer) -> None:
        """Adds a kernel whose threads own eight channels of an image."""
        threads = self.images * -(-self.channels // 8)
        self.add(f"{function_name}_of_eights", -(-threads // THREADS_OF_EIGHTS), *buffers)

    def add_for_groups(self, function_name: str, *buffers: Buffer) -> None:
        self.add(f"{function_name}_of_threads", -(-self.images * self.groups // THREADS_OF_EIGHTS), *buffers)

    def _add_sums(
        self, buffers: tuple[Buffer, Buffer], layouts: tuple[Layout, Layout], gradients: tuple[Buffer, Buffer]
    ) -> Buffer:
        work = self._work(("gradient", "source"), layouts)
        partial = self._partial(work, gradients)
        parameters = self._parameters(work)
        read = *buffers, self.mean, self.variance
        self.add(*self._for_chunks("image_gradient_sums", work), *read, *partial, *gradients, parameters)
        if work.chunks > 1:
            self._add_merge("merge_image_gradient_sums", *partial, self.variance, *gradients, parameters)
        return parameters

    def _streaming(
        self, function_name: str, names: tuple[str, ...], layouts: tuple[Layout, ...], gradients: tuple[Buffer, ...]
    ) -> Streaming:
        work = self._work(names, layouts)
        parameters = self._parameters(work, bool(gradients), self._exceeds(layouts))
        tables = *self.numbers_of_channels, *gradients
        return *self._for_chunks(function_name, work), tables, parameters


def _at_image(n: int | None, layout: Layout) -> Layout:
    """That of image ``n`` alone, or as it is for None."""
    start, pixel, row, image, width, height, channels, _ = layout
    return layout if n is None else (start + n * image, pixel, row, image, width, height, channels, 1)


def _of_image(n: int | None, operand: Operand) -> Operand:
    return replace(operand, layout=_at_image(n, operand.layout))


@lru_cache(maxsize=512)
def plan_image_tiles(rows: int, channels: int, width: int, element_bytes: int, summed_rows: int | None) -> Tiles:
    """Tiles for each of several images of ``rows`` pixels; the arguments are those of ``plan_tiles``."""
    nbytes = WIDEST_TILE
    across, row_lanes, tiles = tile_of(nbytes, channels, width, element_bytes)
    if summed_rows is None:
        return Tiles(width, across, row_lanes, tiles, 1)
    while nbytes > NARROWEST_TILE and (
        rows > MOST_ROWS_OF_A_THREAD * row_lanes or (tiles < FEWEST_TILES and rows > FEW_ROWS_OF_A_THREAD * row_lanes)
    ):
        nbytes //= 2
        across, row_lanes, tiles = tile_of(nbytes, channels, width, element_bytes)
    if rows <= MOST_ROWS_OF_A_THREAD * row_lanes:
        return Tiles(width, across, row_lanes, tiles, 1)
    across, row_lanes, tiles = tile_of(WIDEST_TILE, channels, width, element_bytes)
    return Tiles(width, across, row_lanes, tiles, -(-rows // (MOST_ROWS_OF_A_THREAD * row_lanes)))


class _TilePasses(ImagePasses):
    """For GPUs: a threadgroup owns vectors of channels and goes through rows of an image."""

    def _tiles(self, layouts: Sequence[Layout], summed_rows: int | None = None) -> tuple[Tiles, int]:
        """The tiles, and the number of rows of an image."""
        width, element_bytes = vector_of(layouts, self.channels, self.metal_type)
        rows = rows_of(layouts[0])
        return plan_image_tiles(rows, self.channels, width, element_bytes, summed_rows), rows

    def _parameters(
        self, tiles: Tiles, rows: int, rows_of_a_thread: int, layouts: dict[str, Layout]
    ) -> tuple[Buffer, int]:
        """The parameters, and the number of blocks of rows."""
        shared, blocks = tile_parameters(tiles, rows, rows_of_a_thread, layouts)
        parameters = TILE_PARAMETERS.pack(**shared, **self.group_parameters())
        return self.device.constant_buffer(parameters), blocks

    def _partial(self, tiles: Tiles, totals: tuple[Buffer, Buffer]) -> tuple[Buffer, Buffer]:
        """Memory for the sums of the splits; one split writes the ``totals``."""
        return totals if tiles.splits == 1 else self.scratch_for_channels(tiles.splits)

    def _add_statistics(self, source: Image, layout: Layout) -> Buffer:
        merged = merge_pixels(single((layout,)))
        tiles, rows = self._tiles(merged, STATISTICS_ROWS)
        parameters, _ = self._parameters(tiles, rows, STATISTICS_ROWS, {"source": merged[0]})
        totals = self.mean, self.variance
        partial = self._partial(tiles, totals)
        name = variant("image_statistics", tiles)
        self.add(name, tiles.tiles * tiles.splits * self.images, source.buffer, *partial, *totals, parameters)
        if tiles.splits > 1:
            merge = "merge_image_statistics"
            self.add(merge, self.channels * self.images, source.buffer, *partial, *totals, parameters)
        return parameters

    def _add_sums(
        self, buffers: tuple[Buffer, Buffer], layouts: tuple[Layout, Layout], gradients: tuple[Buffer, Buffer]
    ) -> Buffer:
        gradient, source = merge_pixels(single(layouts))
        tiles, rows = self._tiles((gradient, source), SUMS_ROWS)
        named = {"gradient": gradient, "source": source}
        parameters, _ = self._parameters(tiles, rows, SUMS_ROWS, named)
        partial = self._partial(tiles, gradients)
        self.add(
            variant("image_gradient_sums", tiles),
            tiles.tiles * tiles.splits * self.images,
            *buffers,
            *self.numbers_of_channels,
            *partial,
            *gradients,
            parameters,
        )
        if tiles.splits > 1:
            merge = "merge_image_gradient_sums"
            self.add(merge, self.channels * self.images, *partial, self.variance, *gradients, parameters)
        return parameters

    def _streaming(
        self, function_name: str, names: tuple[str, ...], layouts: tuple[Layout, ...], gradients: tuple[Buffer, ...]
    ) -> Streaming:
        merged = merge_pixels(single(layouts))
        tiles, rows = self._tiles(merged)
        rows_of_a_thread = GRADIENT_ROWS if gradients else STREAM_ROWS
        named = dict(zip(names, merged, strict=True))
        parameters, blocks = self._parameters(tiles, rows, rows_of_a_thread, named)
        tables = *self.numbers_of_channels, *gradients
        return variant(function_name, tiles), tiles.tiles * blocks * self.images, tables, parameters


def single(layouts: Sequence[Layout]) -> tuple[Layout, ...]:
    """The layouts of one image; the others follow at its stride."""
    return tuple((*layout[:7], 1) for layout in layouts)


def passes_of(
    command_buffer: CommandBuffer, metal_type: str, channels: int, *arguments: Any, **numbers: Any
) -> ImagePasses:
    """The passes for the device of ``command_buffer``; the other arguments are those of ``ImagePasses``."""
    kind: type[ImagePasses] = _TilePasses
    if command_buffer.device.family == "cpu":
        kind = _EightPasses if channels >= 8 else _WholePasses
    return kind(command_buffer, metal_type, channels, *arguments, **numbers)
