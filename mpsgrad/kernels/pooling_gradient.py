"""The gradients of pooling, apart from those of maxima."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import GeometryError
from mpsgrad.geometry import MAXIMUM, EdgeMode, Offset, Size
from mpsgrad.image import Image
from mpsgrad.kernel import GradientKernel, IntegerProperty, Regions, SizeProperty
from mpsgrad.kernels.divisor import divisor
from mpsgrad.kernels.pointwise import dense_layout
from mpsgrad.kernels.pooling import PoolingGradientState
from mpsgrad.kernels.pooling_dispatch import (
    BLOCKS,
    COLUMN_ROWS,
    FAMILIES,
    GRADIENT_PARAMETERS,
    LARGEST_POSITION,
    add_dispatch,
    add_dispatch_of_shares,
    most_in_tile_of_sums,
    require_positions,
    shares_of_channels,
    shares_of_rows,
)
from mpsgrad.kernels.walk import works_by_rows
from mpsgrad.kernels.window_strips import add_gradient
from mpsgrad.shader import family_of
from mpsgrad.state import ForwardSnapshot, GradientState
from mpsgrad.window_properties import WindowProperties

DISJOINT = (2, 2, 2, 2)
"""The size and stride of common windows that share no pixels: GPUs find their L2 norms and gradients in one kernel."""


class PoolingGradient(WindowProperties, GradientKernel):
    """The base of the pooling gradients. Source: ``MPSCNNPoolingGradient``.

    ``dx[y] = sum of g[x] * d out(x - primary_offset) / d in(y)`` over the gradient pixels ``x`` from
    ``primary_offset`` on, ``source_size`` of them along each axis. The window of ``x`` is centred at
    ``secondary_offset + stride * (x - primary_offset)`` in the source image. Pixels that no window covers get 0.

    The state sets all of this, and pixel ``p`` of the result is ``dx[p]``. If a ``clip_rect`` that leaves out columns
    or rows is set by hand, the rule of MPS holds: its first pixel is ``dx`` of the first source pixel of the first
    window that lies inside the image, ``max(0, secondary_offset - floor(extent / 2))`` along each axis.
    """

    remembers_encodes = True
    reads_secondary_edge_mode = True
    _operation: ClassVar[str]

    source_size = SizeProperty(
        Size(), "How many gradient pixels have windows, from primary_offset on; depth is not used.", configures=True
    )

    def __init__(
        self,
        *,
        kernel_width: int,
        kernel_height: int,
        stride_in_pixels_x: int = 1,
        stride_in_pixels_y: int = 1,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(device=device, label=label)
        self._set_window(kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y, 1, 1)

    def _forward_geometry(self, snapshot: ForwardSnapshot) -> dict[str, Any]:
        origin, offset = snapshot.clip_rect.origin, snapshot.offset
        return {
            "primary_offset": Offset(*origin),
            "secondary_offset": offset,
            "source_size": snapshot.clip_rect.size,
        }

    def _configure_geometry(self, snapshot: ForwardSnapshot) -> None:
        self._configure(**self._forward_geometry(snapshot))

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        snapshot = state.snapshot
        forward = (
            snapshot.kernel_width,
            snapshot.kernel_height,
            snapshot.stride_in_pixels_x,
            snapshot.stride_in_pixels_y,
            snapshot.dilation_rate_x,
            snapshot.dilation_rate_y,
        )
        if forward != self._window:
            raise GeometryError(
                f"{type(self).__name__}: the kernel has {_window_text(self._window)} but {snapshot.kernel}, which made "
                f"gradient_state, has {_window_text(forward)}"
            )

    @property
    def _zero_pad_size(self) -> tuple[int, int]:
        return 0, 0

    @property
    def _clamps(self) -> bool:
        return self.secondary_edge_mode is EdgeMode.CLAMP

    def _parameters(self, regions: Regions) -> dict[str, Any]:
        """The fields of ``GRADIENT_PARAMETERS``; ``windows`` is the layout of a dense scratch buffer."""
        start, pixel, row, step, width, height, channels, images = regions.sources[0]
        (x, y, _), size = self.primary_offset, self.source_size
        skipped_x, skipped_y = max(0, -x), max(0, -y)
        width = max(0, min(size.width, width - x) - skipped_x)
        height = max(0, min(size.height, height - y) - skipped_y)
        start += (y + skipped_y) * row + (x + skipped_x) * pixel if width and height else 0
        window = self._window_layout(
            self.secondary_offset.x + skipped_x * self.stride_in_pixels_x,
            self.secondary_offset.y + skipped_y * self.stride_in_pixels_y,
        )
        require_positions(type(self).__name__, window, width, height)
        (clip_x, clip_y, _), clip = self.clip_rect
        first_x = first_y = 0
        if (clip_x, clip_y, clip.width, clip.height) != (0, 0, MAXIMUM, MAXIMUM):
            first_x = max(0, self.secondary_offset.x - self._dilated_width // 2)
            first_y = max(0, self.secondary_offset.y - self._dilated_height // 2)
        zero_pad_x, zero_pad_y = self._zero_pad_size
        return {
            "gradient": (start, pixel, row, step, width, height, channels, images),
            "source": regions.sources[1],
            "destination": regions.destination,
            "windows": dense_layout(width, height, channels, images),
            "window": window,
            "first_x": first_x,
            "first_y": first_y,
            **self._blocks(regions, window[-2] - first_x, window[-1] - first_y),
            "clamp_edge": self._clamps,
            "replicates": False,
            "zero_pad_x": zero_pad_x,
            "zero_pad_y": zero_pad_y,
            "exceeds_caches": False,
            "by_stride_x": divisor(self.stride_in_pixels_x),
            "by_stride_y": divisor(self.stride_in_pixels_y),
        }

    def _blocks(self, regions: Regions, origin_x: int, origin_y: int) -> dict[str, int]:
        """The blocks that cover the destination; ``origin`` is the destination pixel where block 0 begins."""
        width, height = self.stride_in_pixels_x, self.stride_in_pixels_y
        if (self.kernel_width, width) == (3, 1) and not works_by_rows(self.device):
            height = COLUMN_ROWS
        first_x, first_y = -origin_x // width, -origin_y // height
        return {
            "first_block_x": first_x,
            "first_block_y": first_y,
            "blocks_x": (regions.width - 1 - origin_x) // width - first_x + 1,
            "blocks_y": (regions.height - 1 - origin_y) // height - first_y + 1,
        }

    def _has_blocks(self, parameters: dict[str, Any]) -> bool:
        """Whether the window is one of those whose gradients are computed block by block."""
        width, height, stride_x, stride_y, *dilation = self._window
        *_, windows_x, windows_y, _, _ = parameters["windows"]
        *_, source_width, source_height, _, _ = parameters["source"]
        *_, to_width, to_height, _, _ = parameters["destination"]
        return (
            (width, stride_x) in BLOCKS
            and (width, stride_x) == (height, stride_y)
            and dilation == [1, 1]
            and not parameters["replicates"]
            and windows_x * windows_y > 0
            and parameters["first_x"] + to_width <= source_width
            and parameters["first_y"] + to_height <= source_height
        )

    def _add_gradient_dispatch(
        self,
        command_buffer: CommandBuffer,
        name: str,
        metal_type: str,
        buffers: Sequence[Buffer],
        parameters: dict[str, Any],
    ) -> None:
        """Adds the kernel function ``name`` for the window if there is one, else the general one."""
        blocks = self._has_blocks(parameters)
        size, stride = self.kernel_width, self.stride_in_pixels_x
        suffix = f"_{size}x{size}_stride_{stride}" if blocks else ""
        add_dispatch(self.device, command_buffer, name + suffix, metal_type, *buffers, blocks=blocks, **parameters)

    def _add_dispatch_by_sums(
        self,
        command_buffer: CommandBuffer,
        metal_type: str,
        buffers: Sequence[Buffer],
        parameters: dict[str, Any],
        read: tuple[str, ...],
        fewest_stride_of_blocks: int,
    ) -> bool:
        """Adds the kernel of CPUs that adds up windows along one axis after the other, which ``read``s these images.

        False if it does not suit: the common windows with a stride of ``fewest_stride_of_blocks`` at least are faster
        block by block where there are some channels.
        """
        *_, height, channels, images = parameters["destination"]
        *_, windows_x, windows_y, _, _ = parameters["gradient"]
        taps_x, taps_y, stride_x, stride_y, *rest = parameters["window"]
        # A stride does not matter where there is one window only.
        stride_x, stride_y = taps_x if windows_x == 1 else stride_x, taps_y if windows_y == 1 else stride_y
        strides = -(-taps_x // stride_x)
        shares = shares_of_channels(channels, strides, stride_x, most_in_tile_of_sums(channels))
        if (
            shares is None
            or not works_by_rows(self.device)
            or not covers_source(parameters)
            or (channels < 8 and any(parameters[name][1] != channels for name in ("destination", *read)))
            or (channels >= 8 and stride_x >= fewest_stride_of_blocks and self._has_blocks(parameters))
        ):
            return False
        name = f"pooling_{self._operation}"
        function = family_of(FAMILIES, name).function(self.device, f"{name}_gradient_by_sums", metal_type)
        parameters["window"] = (taps_x, taps_y, stride_x, stride_y, *rest)
        rows = shares_of_rows(self.device, images * shares, height)
        add_dispatch_of_shares(command_buffer, function, buffers, GRADIENT_PARAMETERS, parameters, shares, rows)
        return True

    def _pass_over_windows(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """The fields of ``PARAMETERS`` for a pass that writes one element for each window."""
        return {
            "source": parameters["source"],
            "destination": parameters["windows"],
            "windows": parameters["gradient"],
            "window": parameters["window"],
            "clamp_edge": parameters["clamp_edge"],
            "zero_pad_x": 0,
            "zero_pad_y": 0,
            "blocks_x": 0,
            "blocks_y": 0,
        }


def _window_text(window: Sequence[int]) -> str:
    width, height, stride_x, stride_y, dilation_x, dilation_y = window
    stride = f"{stride_x}" if stride_x == stride_y else f"{stride_x}x{stride_y}"
    dilation = f" and dilation {dilation_x}x{dilation_y}" if (dilation_x, dilation_y) != (1, 1) else ""
    return f"a {width}x{height} window with stride {stride}{dilation}"


def covers_source(parameters: dict[str, Any]) -> bool:
    """Whether the pixels of the destination are those of the source."""
    first, extents = (parameters["first_x"], parameters["first_y"]), parameters["destination"][4:6]
    return first == (0, 0) and extents == parameters["source"][4:6]


class PoolingAverageGradient(PoolingGradient):
    """The gradient of ``PoolingAverage``: each pixel of a window gets ``1 / N`` of its gradient.

    Of the source image only the size matters. Source: ``MPSCNNPoolingAverageGradient``.
    """

    forward_kernels = ("PoolingAverage",)
    _operation = "average"

    zero_pad_size_x = IntegerProperty(0, "That of the forward kernel.", configures=True)
    zero_pad_size_y = IntegerProperty(0, "That of the forward kernel.", configures=True)

    @property
    def _zero_pad_size(self) -> tuple[int, int]:
        return min(self.zero_pad_size_x, LARGEST_POSITION), min(self.zero_pad_size_y, LARGEST_POSITION)

    def _configure_from(self, state: GradientState) -> None:
        super()._configure_from(state)
        if isinstance(state, PoolingGradientState):
            x, y = state.zero_pad_size
            self._configure(zero_pad_size_x=x, zero_pad_size_y=y)

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
        metal_type, buffers = source_gradient.channel_format.metal_type, (source_gradient.buffer, destination.buffer)
        if self._add_dispatch_by_sums(command_buffer, metal_type, buffers, parameters, ("gradient",), 2):
            return
        self._add_gradient_dispatch(command_buffer, "pooling_average_gradient", metal_type, buffers, parameters)


class PoolingL2NormGradient(PoolingGradient):
    """The gradient of ``PoolingL2Norm``: ``g * in / out`` for every tap, 0 where ``out`` is 0 (MPS does not say).

    With edge mode CLAMP an edge pixel gathers the share of each tap that replicates it. The norms are recomputed from
    the source image. Source: ``MPSCNNPoolingL2NormGradient``.
    """

    forward_kernels = ("PoolingL2Norm",)
    _operation = "l2_norm"

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
        parameters["replicates"] = self._clamps
        metal_type = source_gradient.channel_format.metal_type
        if self._window[:4] == DISJOINT and not works_by_rows(self.device) and self._has_blocks(parameters):
            add_dispatch(
                self.device,
                command_buffer,
                "pooling_l2_norm_gradient_of_disjoint_windows",
                metal_type,
                source_image.buffer,
                source_gradient.buffer,
                destination.buffer,
                blocks=True,
                **parameters,
            )
            return
        if self._adds_by_strips(command_buffer, source_gradient, source_image, destination, parameters):
            return
        *_, width, height, channels, images = parameters["windows"]
        elements = width * height * channels * images
        ratios = command_buffer.scratch(4 * max(1, elements))
        if elements:
            add_dispatch(
                self.device,
                command_buffer,
                "pooling_l2_norm_ratio",
                metal_type,
                source_image.buffer,
                source_gradient.buffer,
                ratios,
                **self._pass_over_windows(parameters),
            )
        buffers = (source_image.buffer, ratios, destination.buffer)
        read = ("windows", "source")
        if not self._clamps and self._add_dispatch_by_sums(command_buffer, metal_type, buffers, parameters, read, 1):
            return
        self._add_gradient_dispatch(command_buffer, "pooling_l2_norm_gradient", metal_type, buffers, parameters)

    def _adds_by_strips(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        parameters: dict[str, Any],
    ) -> bool:
        """Adds the kernel of GPUs that finds ratios and gradients of neighbouring windows, if it suits."""
        width, height, *steps, origin_x, origin_y = parameters["window"]
        first = parameters["first_x"], parameters["first_y"]
        extents = zip(first, parameters["destination"][4:6], parameters["source"][4:6], strict=True)
        if width != height or steps != [1, 1, 1, 1] or self._clamps or any(at + to > of for at, to, of in extents):
            return False
        offset = origin_x + width // 2, origin_y + height // 2
        return add_gradient(
            command_buffer,
            "pooling_l2_norm",
            width,
            source_gradient.channel_format.metal_type,
            (source_gradient.buffer, source_image.buffer, destination.buffer),
            {name: parameters[name] for name in ("gradient", "source", "destination")},
            offset,
            (first[0] - offset[0], first[1] - offset[1]),
            {},
        )
