"""The gradients of max pooling: each window gives its gradient to its maximum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.geometry import ceiling_divide
from mpsgrad.image import Image
from mpsgrad.kernel import Regions
from mpsgrad.kernels.pointwise import ELEMENTS_OF_LINE, are_lines, bytes_of_floats
from mpsgrad.kernels.pooling_dispatch import (
    AT_ONCE_FAMILIES,
    BLOCKS_AT_ONCE,
    CHANNELS_AT_ONCE,
    COLUMNS_OF_TAPS,
    DISJOINT_FAMILY,
    FEW_CHANNELS_FAMILY,
    GRADIENT_PARAMETERS,
    LARGE_WINDOWS_FAMILY,
    LARGEST_OF_HALVES_AT_ONCE,
    LARGEST_RECORDED_WINDOW,
    MOST_CHANNELS_BY_TILES,
    MOST_IN_TILE,
    MOST_ROWS_OF_WINDOW,
    PARAMETERS,
    RECORDED_BLOCKS,
    ROWS_FAMILY,
    SEARCH_FAMILY,
    SEARCHED_BLOCKS,
    WINDOWS_FAMILY,
    add_dispatch,
    add_dispatch_of_shares,
    shares_of_channels,
    shares_of_images,
    shares_with_edges,
)
from mpsgrad.kernels.pooling_gradient import PoolingGradient, covers_source
from mpsgrad.kernels.walk import works_by_rows
from mpsgrad.tunables import tunables

LEAST_CHANNELS_BY_BLOCKS = 8
"""Gradients of max pooling with fewer channels visit each window once on CPUs, rather than each pixel or block."""
LEAST_CHANNELS_BY_WINDOWS = 16
"""Where they do, a thread has so many at least: a cache line."""
LEAST_HALVES_OF_RECORDED_WINDOWS = 3
"""Eights of fewer channels of short pixels would write most numbers several times."""
THREADS_BY_WINDOWS_PER_UNIT = 4
LEAST_CHANNELS_AT_ONCE = 64
"""A thread that searches windows and adds them up at once has so many, if there are more."""
CHANNELS_BY_SIMDGROUPS, ELEMENTS_BY_SIMDGROUPS = 128, 1 << 18
"""Of 3 x 3 taps in float32 two passes by simdgroups are faster than one, from so many channels and elements on; with
few registers where channels are more than those of a tile."""
COST_OF_TAP, COST_OF_ROW, SHARE_BY_ROWS = 4, 5, 0.7
"""Of searches row by row: what a tap of a row of pixels takes, and a row of a window, which is read again. They pay if
they take no more than this share of what all taps of windows take."""
SHARE_OF_CACHES = 0.75
"""Caches whose sets are filled unevenly keep about so much."""
BYTES_BETWEEN_ROWS = 2048
"""Rows a multiple of that apart, of which a thread writes halves of lines in turn, are not written past the caches by
CPUs with few registers: one half would leave before the other comes, which takes up to four times as long."""
FEWEST_TAPS_BY_COLUMNS, ROWS_BY_COLUMNS = 16, {"float": (1, 3), "half": (2, 3)}
"""Windows of eight channels and more are searched column by column if they have so many taps, and if a row of pixels is
in so many rows of windows, each of which goes through it again. Others are sooner searched tap by tap or row by row."""
FEWEST_OF_ROW_SEARCHED_BEFORE = 320
"""Rows of so many numbers, of few channels, are searched in a pass of their own by CPUs with few registers where
windows have 3 x 3 taps at stride 1: one kernel for both takes up to 1.7 times as long, and less of shorter rows."""
MOST_CHANNELS_OF_COLUMNS = 23
"""With more, rows of blocks are faster than these tiles where there are blocks."""


class PoolingMaxGradient(PoolingGradient):
    """The gradient of ``PoolingMax``: each window gives all of its gradient to its maximum.

    Of equal maxima the first in row-major order takes it; a zero outside the source that wins strictly takes it
    nowhere. If the state recorded the maxima and the kernel has the forward geometry, the record is used; else each
    window is searched once. Source: ``MPSCNNPoolingMaxGradient``.
    """

    forward_kernels = ("PoolingMax",)
    _operation = "max"

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        parameters = self._parameters(regions)
        metal_type = source_gradient.channel_format.metal_type
        parameters["replicates"] = self._clamps and self._has_windows_outside(parameters)
        is_large = self.kernel_width * self.kernel_height > LARGEST_RECORDED_WINDOW
        name = LARGE_WINDOWS_FAMILY.name if is_large else "pooling_max"
        if self._is_recorded(source_gradient, regions, state):
            taps = state.resource(0)
            first, pixel, row, image, *_ = state._record_layout()
            x, y, z = self.primary_offset
            first += z * image + y * row + x * pixel + self.primary_source_feature_channel_offset
            parameters["windows"] = (first, pixel, row, image, *parameters["windows"][4:])
            parameters["exceeds_caches"] = self._exceeds_caches(parameters)
            read = source_gradient.buffer, taps, destination.buffer
            if self._add_dispatch_of_recorded_windows(command_buffer, read, metal_type, parameters):
                return
        elif self._add_dispatch_with_search(
            command_buffer, (source_gradient.buffer, source_image.buffer, destination.buffer), metal_type, parameters
        ):
            return
        else:
            *_, width, height, channels, images = parameters["windows"]
            elements = width * height * channels * images
            taps = command_buffer.scratch(max(1, elements) * (4 if is_large else 1))
            by_rows = not is_large and self._add_search_by_rows(
                command_buffer, (source_image.buffer, taps), metal_type, parameters
            )
            if elements and not by_rows:
                add_dispatch(
                    self.device,
                    command_buffer,
                    f"{name}_search",
                    metal_type,
                    source_image.buffer,
                    taps,
                    **self._pass_over_windows(parameters),
                )
            parameters["exceeds_caches"] = self._exceeds_caches(parameters, "source")
        buffers = (source_gradient.buffer, taps, destination.buffer)
        if not is_large and self._can_visit_windows(parameters):
            if metal_type == "float" and self._add_dispatch_by_columns(command_buffer, buffers, parameters):
                return
            if parameters["destination"][6] < LEAST_CHANNELS_BY_BLOCKS or not self._has_blocks(parameters):
                self._add_dispatch_by_windows(command_buffer, buffers, metal_type, parameters)
                return
        self._add_gradient_dispatch(command_buffer, f"{name}_gradient", metal_type, buffers, parameters)

    def _exceeds_caches(
        self,
        parameters: dict[str, Any],
        *searched: str,
        share: float = SHARE_OF_CACHES,
        writes_rows_in_turn: bool = True,
    ) -> bool:
        """Whether pixels, which are whole lines, are written past a CPU's caches: these would not keep the images.

        ``searched`` is what this pass reads, too, or one before it; ``share`` is what the caches keep.
        """
        images = [parameters[name] for name in ("destination", "gradient", *searched)]
        numbers = tunables(self.device.tuning)
        loses_lines = writes_rows_in_turn and not numbers.has_many_registers
        return (
            works_by_rows(self.device)
            and are_lines(*images[0][:4], images[0][6])
            and bytes_of_floats(*images) > share * numbers.cached_bytes
            and not (loses_lines and 4 * images[0][2] % BYTES_BETWEEN_ROWS == 0)
        )

    def _can_visit_windows(self, parameters: dict[str, Any]) -> bool:
        """Whether each window may be visited once: on CPUs, if all taps inside the source lie in the destination."""
        return works_by_rows(self.device) and not parameters["replicates"] and covers_source(parameters)

    def _can_search_few_channels(self, parameters: dict[str, Any]) -> bool:
        """Whether the kernel suits that searches for the winners of a few channels and takes them at once."""
        images = [parameters[name] for name in ("destination", "gradient", "source")]
        *_, width, _, channels, _ = parameters["destination"]
        has_few_registers = not tunables(self.device.tuning).has_many_registers
        is_faster_in_two = has_few_registers and width * channels >= FEWEST_OF_ROW_SEARCHED_BEFORE
        return (
            channels < 8
            and self._can_search_blocks(parameters, SEARCHED_BLOCKS)
            and not (is_faster_in_two and (self.kernel_width, self.stride_in_pixels_x) == (3, 1))
            and all(pixel == channels for _, pixel, *_ in images)
        )

    def _can_search_blocks(self, parameters: dict[str, Any], blocks: Sequence[tuple[int, int]]) -> bool:
        """Whether each window may be visited once, and its size and stride are some of ``blocks``."""
        width, height, stride_x, stride_y, *dilation = self._window
        *_, windows_x, windows_y, _, _ = parameters["gradient"]
        return (
            self._can_visit_windows(parameters)
            and (width, stride_x) in blocks
            and (width, stride_x) == (height, stride_y)
            and dilation == [1, 1]
            and windows_x * windows_y > 0
        )

    def _add_dispatch_of_blocks(
        self,
        command_buffer: CommandBuffer,
        buffers: Sequence[Buffer],
        metal_type: str,
        parameters: dict[str, Any],
        winners: str = "at_once",
    ) -> bool:
        """Adds the kernel that searches windows row by row and adds them up at once; False if it does not suit.

        It takes the winners ``from_record`` where they are known.
        """
        size, stride, numbers = self.kernel_width, self.stride_in_pixels_x, tunables(self.device.tuning)
        *_, width, height, channels, images = parameters["destination"]
        is_recorded = winners == "from_record"
        fewest_by_simdgroups = CHANNELS_BY_SIMDGROUPS if numbers.has_many_registers else CHANNELS_AT_ONCE + 1
        suits_simdgroups = (size, stride) == (3, 2) and metal_type == "float" and channels >= fewest_by_simdgroups
        if (
            channels < LEAST_CHANNELS_BY_BLOCKS
            or (metal_type == "half" and size > LARGEST_OF_HALVES_AT_ONCE)
            or (suits_simdgroups and width * height * channels * images >= ELEMENTS_BY_SIMDGROUPS)
            or not self._can_search_blocks(parameters, RECORDED_BLOCKS if is_recorded else BLOCKS_AT_ONCE)
        ):
            return False
        if not is_recorded:
            exceeds = self._exceeds_caches(parameters, "source", writes_rows_in_turn=stride == 1)
            parameters["exceeds_caches"] = metal_type == "float" and exceeds
        function = AT_ONCE_FAMILIES[size].function(
            self.device, f"pooling_max_gradient_{size}x{size}_stride_{stride}_{winners}", metal_type
        )
        # The windows at the edge of a share of the rows are searched for both shares.
        shares = shares_of_images(self.device, images, height // (4 * size), channels, LEAST_CHANNELS_AT_ONCE)
        add_dispatch_of_shares(command_buffer, function, buffers, GRADIENT_PARAMETERS, parameters, *shares)
        return True

    def _add_search_by_rows(
        self, command_buffer: CommandBuffer, buffers: Sequence[Buffer], metal_type: str, parameters: dict[str, Any]
    ) -> bool:
        """Adds the kernel of CPUs that searches each row of pixels of windows once; False if it does not suit."""
        taps_x, taps_y, _, stride_y, _, dilation_y, *_ = parameters["window"]
        *_, width, height, channels, images = parameters["windows"]
        rows_of_window = (taps_y - 1) * dilation_y + 1
        new_rows = min(taps_y, stride_y // math.gcd(stride_y, dilation_y))
        by_rows = COST_OF_TAP * taps_x * new_rows + COST_OF_ROW * taps_y
        if (
            not works_by_rows(self.device)
            or width * height * channels * images == 0
            or rows_of_window > MOST_ROWS_OF_WINDOW
            or self._has_windows_outside(parameters)
            or (channels >= 8 and by_rows > SHARE_BY_ROWS * COST_OF_TAP * taps_x * taps_y)
        ):
            return False
        most_rows = height * stride_y // rows_of_window
        shares = shares_of_images(self.device, images, most_rows, channels, LEAST_CHANNELS_AT_ONCE)
        function = ROWS_FAMILY.function(self.device, "pooling_max_search_by_rows", metal_type)
        packed = self._pass_over_windows(parameters)
        add_dispatch_of_shares(command_buffer, function, buffers, PARAMETERS, packed, *shares)
        return True

    def _add_dispatch_with_search(
        self, command_buffer: CommandBuffer, buffers: Sequence[Buffer], metal_type: str, parameters: dict[str, Any]
    ) -> bool:
        """Adds a kernel that searches for the winners and takes them at once; False if none suits."""
        if metal_type == "float" and self._can_search_few_channels(parameters):
            self._add_dispatch_of_few_channels(command_buffer, buffers, parameters)
            return True
        arguments = command_buffer, buffers, metal_type, parameters
        return (
            self._add_dispatch_by_columns_of_pixels(*arguments)
            or self._add_dispatch_of_disjoint_windows(*arguments)
            or self._add_dispatch_of_blocks(*arguments)
        )

    def _add_dispatch_by_columns_of_pixels(
        self, command_buffer: CommandBuffer, buffers: Sequence[Buffer], metal_type: str, parameters: dict[str, Any]
    ) -> bool:
        """Adds the kernel that searches windows of few channels column by column; False if it does not suit."""
        taps_x, taps_y, _, stride_y, dilation_x, *_ = parameters["window"]
        *_, height, channels, images = parameters["destination"]
        extent = (taps_x - 1) * dilation_x + 1
        fewest_rows, most_rows = ROWS_BY_COLUMNS[metal_type]
        suits_some_channels = (
            taps_x * taps_y >= FEWEST_TAPS_BY_COLUMNS and fewest_rows <= ceiling_divide(taps_y, stride_y) <= most_rows
        )
        if (
            channels >= tunables(self.device.tuning).floats_of_register
            or (channels >= 8 and not suits_some_channels)
            or not self._can_visit_windows(parameters)
            or 2 * extent * channels > MOST_IN_TILE
            or any(parameters[name][1] != channels for name in ("destination", "gradient", "source"))
        ):
            return False
        if metal_type != "float":
            buffers = (*buffers, self._scratch_of_sums(command_buffer, parameters))
        # The windows at the edge of a share of the rows are searched for both shares.
        rows = shares_with_edges(self.device, images, height // (4 * self._dilated_height))
        function = FEW_CHANNELS_FAMILY.function(self.device, "pooling_max_gradient_of_few_channels", metal_type)
        add_dispatch_of_shares(command_buffer, function, buffers, GRADIENT_PARAMETERS, parameters, 1, rows)
        return True

    def _scratch_of_sums(self, command_buffer: CommandBuffer, parameters: dict[str, Any]) -> Buffer:
        """Floats that have the places of the destination's elements."""
        start, pixel, row, image, width, height, channels, images = parameters["destination"]
        last = start + (images - 1) * image + (height - 1) * row + (width - 1) * pixel + channels
        return command_buffer.scratch(4 * last)

    def _add_dispatch_of_few_channels(
        self, command_buffer: CommandBuffer, buffers: Sequence[Buffer], parameters: dict[str, Any]
    ) -> None:
        *_, height, _, images = parameters["destination"]
        size, stride = self.kernel_width, self.stride_in_pixels_x
        # The windows at the edge of a share of the rows are searched for both shares.
        rows = shares_with_edges(self.device, images, height // (4 * size))
        name = f"pooling_max_gradient_{size}x{size}_stride_{stride}_and_search"
        function = SEARCH_FAMILY.function(self.device, name, "float")
        add_dispatch_of_shares(command_buffer, function, buffers, GRADIENT_PARAMETERS, parameters, 1, rows)

    def _add_dispatch_of_recorded_windows(
        self, command_buffer: CommandBuffer, buffers: Sequence[Buffer], metal_type: str, parameters: dict[str, Any]
    ) -> bool:
        """Adds a kernel that takes recorded windows block by block or that share no pixels; False if none suits.

        CPUs with many registers leave them to others.
        """
        channels = parameters["destination"][6]
        least = LEAST_HALVES_OF_RECORDED_WINDOWS if metal_type == "half" else LEAST_CHANNELS_BY_BLOCKS
        numbers = tunables(self.device.tuning)
        if not numbers.pooling_gradient_by_eights:
            return False
        arguments = command_buffer, buffers, metal_type, parameters
        if not numbers.has_many_registers and self._add_dispatch_of_blocks(*arguments, "from_record"):
            return True
        if channels < least or (channels >= LEAST_CHANNELS_BY_BLOCKS and self._has_blocks(parameters)):
            return False
        return self._add_dispatch_of_disjoint_windows(*arguments, "windows")

    def _add_dispatch_of_disjoint_windows(
        self,
        command_buffer: CommandBuffer,
        buffers: Sequence[Buffer],
        metal_type: str,
        parameters: dict[str, Any],
        searched: str = "source",
    ) -> bool:
        """Adds the kernel that searches windows sharing no pixels and takes each at once; False if it does not suit.

        Of ``windows`` the winners are known, and not ``searched``.
        """
        taps_x, taps_y, stride_x, stride_y, *dilation, origin_x, origin_y = parameters["window"]
        *_, windows_x, windows_y, _, _ = parameters["gradient"]
        *_, height, channels, images = parameters["destination"]
        # A stride does not matter where there is one window only.
        stride_x, stride_y = max(stride_x, taps_x * (windows_x == 1)), max(stride_y, taps_y * (windows_y == 1))
        are_runs = all(parameters[name][1] == channels for name in ("destination", "gradient", searched))
        if (
            not self._can_visit_windows(parameters)
            or stride_x < taps_x
            or stride_y < taps_y
            or dilation != [1, 1]
            or (channels < 8 and not are_runs)
        ):
            return False
        parameters["window"] = (taps_x, taps_y, stride_x, stride_y, *dilation, origin_x, origin_y)
        function_name = "pooling_max_gradient_of_disjoint_windows"
        if searched == "windows":
            function_name += "_recorded"
        else:
            exceeds = self._exceeds_caches(parameters, "source", share=1, writes_rows_in_turn=False)
            parameters["exceeds_caches"] = metal_type == "float" and exceeds
        function = DISJOINT_FAMILY.function(self.device, function_name, metal_type)
        shares = shares_of_images(self.device, images, -(-height // stride_y), channels, LEAST_CHANNELS_BY_WINDOWS)
        add_dispatch_of_shares(command_buffer, function, buffers, GRADIENT_PARAMETERS, parameters, *shares)
        return True

    def _add_dispatch_by_columns(
        self, command_buffer: CommandBuffer, buffers: Sequence[Buffer], parameters: dict[str, Any]
    ) -> bool:
        """Adds the kernel that compares tiles of columns with the winners of windows; False if it does not suit."""
        taps_x, taps_y, stride_x, _, *dilation, _, _ = parameters["window"]
        _, pixel, *_, height, channels, images = parameters["destination"]
        shares = shares_of_channels(channels, taps_x, 1)
        if (
            shares is None
            or taps_x not in COLUMNS_OF_TAPS
            or taps_y > taps_x
            or stride_x != 1
            or dilation != [1, 1]
            or channels > MOST_CHANNELS_BY_TILES
            or (channels > MOST_CHANNELS_OF_COLUMNS and self._has_blocks(parameters))
            or (channels < 8 and not pixel == parameters["gradient"][1] == parameters["windows"][1] == channels)
        ):
            return False
        function = WINDOWS_FAMILY.function(self.device, f"pooling_max_gradient_of_{taps_x}_columns", "float")
        rows = shares_with_edges(self.device, images * shares, height // taps_y)
        add_dispatch_of_shares(command_buffer, function, buffers, GRADIENT_PARAMETERS, parameters, shares, rows)
        return True

    def _add_dispatch_by_windows(
        self, command_buffer: CommandBuffer, buffers: Sequence[Buffer], metal_type: str, parameters: dict[str, Any]
    ) -> None:
        *_, height, channels, images = parameters["destination"]
        if metal_type != "float":
            buffers = (*buffers, self._scratch_of_sums(command_buffer, parameters))
        wanted = shares_with_edges(self.device, images, height * channels, THREADS_BY_WINDOWS_PER_UNIT)
        # Threads with other channels of the same pixels are to write to other lines of caches, and the windows at the
        # edge of a share of the rows are visited for both shares: a quarter more of them at most.
        lines = channels // ELEMENTS_OF_LINE if channels % ELEMENTS_OF_LINE == 0 else 1
        shares = max(count for count in range(1, wanted + 1) if lines % count == 0)
        rows = max(1, min(-(-wanted // shares), 1 + height // (4 * max(1, self._dilated_height - 1))))
        if shares * rows < wanted:
            shares = max(shares, min(-(-wanted // rows), channels // LEAST_CHANNELS_BY_WINDOWS))
        function = WINDOWS_FAMILY.function(self.device, "pooling_max_gradient_by_windows", metal_type)
        add_dispatch_of_shares(command_buffer, function, buffers, GRADIENT_PARAMETERS, parameters, shares, rows)

    def _note_encode(self, command_buffer: CommandBuffer, state: Any, regions: Regions) -> None:
        if state.records_maxima:
            writers = state._recorded.writers(state._images(self.primary_offset.z, regions.images))
            command_buffer._reads_from(type(self).__name__, "gradient_state", writers or ())

    def _has_windows_outside(self, parameters: dict[str, Any]) -> bool:
        """Whether some window has no tap inside the source."""
        *_, width, height, _, _ = parameters["gradient"]
        *_, source_width, source_height, _, _ = parameters["source"]
        taps_x, taps_y, stride_x, stride_y, dilation_x, dilation_y, origin_x, origin_y = parameters["window"]
        return _misses(origin_x, stride_x, width, taps_x, dilation_x, source_width) or _misses(
            origin_y, stride_y, height, taps_y, dilation_y, source_height
        )

    def _is_recorded(self, source_gradient: Image, regions: Regions, state: Any) -> bool:
        """Whether the state's record holds the maxima of exactly the windows that this encode needs."""
        snapshot = state.snapshot
        forward = self._forward_geometry(snapshot) | {
            "secondary_edge_mode": snapshot.edge_mode,
            "primary_source_feature_channel_offset": snapshot.destination_feature_channel_offset,
            "secondary_source_feature_channel_offset": snapshot.source_feature_channel_offset,
        }
        return (
            state.records_maxima
            and all(getattr(self, name) == value for name, value in forward.items())
            and regions.sources[0][6] <= snapshot.source_channels
            and source_gradient.shape[1:] == snapshot.destination.shape[1:]
            and state._recorded.writers(state._images(self.primary_offset.z, regions.images)) is not None
        )


@lru_cache(1024)
def _misses(origin: int, stride: int, count: int, taps: int, dilation: int, size: int) -> bool:
    """Whether one of ``count`` windows has no tap at 0 .. size - 1 of one axis."""
    for index in range(count):
        first = origin + index * stride
        inside = range(first, first + taps * dilation, dilation)
        below = -(-max(0, -first) // dilation)
        if below >= taps or inside[below] >= size:
            return True
    return False


class DilatedPoolingMaxGradient(PoolingMaxGradient):
    """The gradient of ``DilatedPoolingMax``, by the rules of ``PoolingMaxGradient``.

    Source: ``MPSCNNDilatedPoolingMaxGradient``.
    """

    forward_kernels = ("DilatedPoolingMax",)

    def __init__(
        self,
        *,
        kernel_width: int,
        kernel_height: int,
        dilation_rate_x: int = 1,
        dilation_rate_y: int = 1,
        stride_in_pixels_x: int = 1,
        stride_in_pixels_y: int = 1,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(kernel_width=kernel_width, kernel_height=kernel_height, device=device, label=label)
        self._set_window(
            kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y, dilation_rate_x, dilation_rate_y
        )
