"""Max, dilated max, average and L2 norm pooling, and the states that they leave."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import GeometryError, StateError
from mpsgrad.geometry import EdgeMode, flag
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.kernel import BaseKernel, IntegerProperty, Kernel, Regions
from mpsgrad.kernels.pooling_dispatch import (
    FAMILIES,
    LARGEST_POSITION,
    LARGEST_RECORDED_WINDOW,
    MOST_CHANNELS_BY_TILES,
    MOST_IN_TILE,
    PARAMETERS,
    THREADS_BY_TILES_PER_UNIT,
    add_dispatch,
    add_dispatch_of_shares,
    most_in_tile_of_sums,
    require_positions,
    shares_of_channels,
    shares_of_rows,
)
from mpsgrad.kernels.walk import works_by_rows
from mpsgrad.kernels.written_images import WrittenImages
from mpsgrad.padding import PaddingMethod
from mpsgrad.shader import family_of
from mpsgrad.state import ForwardSnapshot, GradientState
from mpsgrad.tunables import tunables

LEAST_TAPS_OF_SUMS, LEAST_TAPS_OF_STRIDED_SUMS = 9, 25
"""Average pooling adds up windows of so many taps along one axis after the other, if strides are 1 or not."""
MANY_CHANNELS, LEAST_TAPS_OF_MANY_CHANNELS = 128, 16
"""CPUs with few registers do so for more channels than others where windows overlap: for more than these if windows
have so many taps."""
LEAST_TAPS_OF_PIXELS, LEAST_CHANNELS_OF_PIXELS = 16, 512
"""Average pooling adds up windows of so many taps and channels pixel by pixel if they do not overlap."""
FEWEST_CHANNELS_OF_SHARE = 128
"""Of these a thread has so many at least."""


class PoolingGradientState(GradientState):
    """The state of a pooling kernel; with ``record_maxima`` it also holds which tap won each window.

    The record is one byte for each element of the forward result: the tap's number ``ky * kernel_width + kx``, or
    ``kernel_width * kernel_height`` where a zero outside the source won. Source: ``MPSNNGradientState`` (whose pooling
    states hold no maxima).
    """

    def __init__(
        self,
        snapshot: ForwardSnapshot,
        zero_pad_size: tuple[int, int],
        records_maxima: bool,
        device: Device | None = None,
        *,
        command_buffer: CommandBuffer | None = None,
    ) -> None:
        sizes = (snapshot.destination.element_count,) if records_maxima else ()
        super().__init__(snapshot, sizes, device, command_buffer=command_buffer)
        self.zero_pad_size = zero_pad_size
        self._recorded = WrittenImages()

    @property
    def records_maxima(self) -> bool:
        """Whether the state has room for the winning taps."""
        return self.resource_count == 1

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        images = self._recorded.key(self.number_of_images)
        return (self.snapshot, self.zero_pad_size, self._index, self.records_maxima, images)

    def _record_layout(self) -> tuple[int, ...]:
        _, pixel, row, image, *extents = self.snapshot.destination.dense_layout
        return (self._index * image, pixel, row, image, *extents)

    def _images(self, first: int, count: int) -> range:
        return range(self._index + first, self._index + first + count)


class Pooling(Kernel[PoolingGradientState]):
    """The base of the pooling kernels: each result element depends on one window of one channel.

    ``kernel_width`` and ``kernel_height`` count taps; the strides are in source pixels. All are at least 1, else
    ``GeometryError`` is raised. Source: ``MPSCNNPooling``.
    """

    remembers_encodes = True

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

    @property
    def _zero_pad_size(self) -> tuple[int, int]:
        return 0, 0

    @property
    def _records_maxima(self) -> bool:
        return False

    def _make_state(
        self, source: Image, destination: Image, command_buffer: CommandBuffer | None
    ) -> PoolingGradientState:
        return PoolingGradientState(
            self._shared_snapshot(source, destination),
            self._zero_pad_size,
            self._records_maxima,
            self.device,
            command_buffer=command_buffer,
        )

    def _parameters(self, regions: Regions) -> dict[str, Any]:
        window = self._window_layout(self.offset.x, self.offset.y)
        require_positions(type(self).__name__, window, regions.width, regions.height)
        zero_pad_x, zero_pad_y = self._zero_pad_size
        return {
            "source": regions.sources[0],
            "destination": regions.destination,
            "windows": regions.destination,
            "window": window,
            "clamp_edge": self.edge_mode is EdgeMode.CLAMP,
            "zero_pad_x": zero_pad_x,
            "zero_pad_y": zero_pad_y,
            "blocks_x": 0,
            "blocks_y": 0,
        }


class _MaximumPooling(Pooling):
    """What plain and dilated max pooling share."""

    def __init__(self, record_maxima: bool, device: Device | None, label: str | None, **window: int) -> None:
        super().__init__(
            kernel_width=window["kernel_width"],
            kernel_height=window["kernel_height"],
            device=device,
            label=label,
        )
        self._set_window(*window.values())
        width, height = self.kernel_width, self.kernel_height
        if record_maxima and width * height > LARGEST_RECORDED_WINDOW:
            raise GeometryError(
                f"{type(self).__name__}: record_maxima is set but a {width}x{height} window has {width * height} taps; "
                f"the record holds windows of at most {LARGEST_RECORDED_WINDOW}"
            )
        self._record_maxima = flag(type(self).__name__, "record_maxima", record_maxima)

    @property
    def record_maxima(self) -> bool:
        """Whether states record which tap won each window, so that the gradient does not search for it."""
        return self._record_maxima

    @property
    def _records_maxima(self) -> bool:
        return self._record_maxima

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        parameters = self._parameters(regions)
        metal_type = source.channel_format.metal_type
        if state is None or not state.records_maxima:
            add_dispatch(
                self.device, command_buffer, "pooling_max", metal_type, source.buffer, destination.buffer, **parameters
            )
            return
        origin = self.clip_rect.origin
        first, pixel, row, image, _, _, _, images = state._record_layout()
        if origin.z + regions.images > images:
            raise StateError(
                f"{type(self).__name__}: destination_state holds maxima of {images} images but images {origin.z} to "
                f"{origin.z + regions.images} are written"
            )
        first += origin.z * image + origin.y * row + origin.x * pixel + self.destination_feature_channel_offset
        parameters["windows"] = (first, pixel, row, image, *regions.destination[4:])
        add_dispatch(
            self.device,
            command_buffer,
            "pooling_max_recorded",
            metal_type,
            source.buffer,
            destination.buffer,
            state.resource(0),
            **parameters,
        )

    def _note_encode(self, command_buffer: CommandBuffer, state: Any, regions: Regions) -> None:
        if state is not None and state.records_maxima:
            state._recorded.add(command_buffer, state._images(self.clip_rect.origin.z, regions.images))


class PoolingMax(_MaximumPooling):
    """The largest value of each window. Source: ``MPSCNNPoolingMax``.

    Edge mode ZERO: taps outside the source count as the value 0. CLAMP: taps outside are ignored (for dilated windows
    MPS does not say); a window with none inside takes its taps at their nearest edge pixels.

    A tap that is not a number is no maximum unless it is the window's first: fast math on a Mac promises nothing of
    NaNs. PyTorch passes them on. To a gradient that searches, on GPUs, and where large windows lie side by side, one
    that begins a row of the window may hide that row, and one that begins a column that column.

    ``record_maxima`` (not in MPS) makes states record which tap won each window, one byte for each result element;
    the gradient then reads no value of the source image, and takes a CPU half of the time or less. Nodes of graphs and
    layers for training record where a window has no more than 254 taps. A kernel by itself does so on demand only: by
    MPS's rules its gradient is that of the source image which it is given, also where that is another. Raises
    ``GeometryError`` with it if the window has more than 254 taps, and for a window or stride below 1.
    """

    def __init__(
        self,
        *,
        kernel_width: int,
        kernel_height: int,
        stride_in_pixels_x: int = 1,
        stride_in_pixels_y: int = 1,
        record_maxima: bool = False,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(
            record_maxima,
            device,
            label,
            kernel_width=kernel_width,
            kernel_height=kernel_height,
            stride_in_pixels_x=stride_in_pixels_x,
            stride_in_pixels_y=stride_in_pixels_y,
            dilation_rate_x=1,
            dilation_rate_y=1,
        )


class DilatedPoolingMax(_MaximumPooling):
    """Max pooling whose taps are ``dilation_rate`` pixels apart. Source: ``MPSCNNDilatedPoolingMax``.

    Edge modes, ``record_maxima`` and errors are those of ``PoolingMax``.
    """

    def __init__(
        self,
        *,
        kernel_width: int,
        kernel_height: int,
        dilation_rate_x: int = 1,
        dilation_rate_y: int = 1,
        stride_in_pixels_x: int = 1,
        stride_in_pixels_y: int = 1,
        record_maxima: bool = False,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(
            record_maxima,
            device,
            label,
            kernel_width=kernel_width,
            kernel_height=kernel_height,
            stride_in_pixels_x=stride_in_pixels_x,
            stride_in_pixels_y=stride_in_pixels_y,
            dilation_rate_x=dilation_rate_x,
            dilation_rate_y=dilation_rate_y,
        )


class PoolingAverage(Pooling):
    """The sum of each window's pixels inside the source, over N. Source: ``MPSCNNPoolingAverage``.

    Edge mode ZERO: N is ``kernel_width * kernel_height``, and ``zero_pad_size`` is ignored. CLAMP: the window shrinks;
    N counts its taps in the source grown by ``zero_pad_size_x`` and ``zero_pad_size_y`` pixels on each side, and the
    result is 0 where N is 0.

    A padding policy with the EXCLUDE_EDGES bit sets the edge mode to CLAMP and ``zero_pad_size`` to the padding on the
    top left, as Caffe normalizes.
    """

    zero_pad_size_x = IntegerProperty(0, "Pixels on the left and right that count in N with edge mode CLAMP.")
    zero_pad_size_y = IntegerProperty(0, "Pixels above and below that count in N with edge mode CLAMP.")

    @property
    def _zero_pad_size(self) -> tuple[int, int]:
        return min(self.zero_pad_size_x, LARGEST_POSITION), min(self.zero_pad_size_y, LARGEST_POSITION)

    def _adjust_descriptor(self, source: Image, descriptor: ImageDescriptor) -> ImageDescriptor:
        if self.padding.padding_method & PaddingMethod.EXCLUDE_EDGES:
            self.edge_mode = EdgeMode.CLAMP
            self.zero_pad_size_x = max(0, self._dilated_width // 2 - self.offset.x)
            self.zero_pad_size_y = max(0, self._dilated_height // 2 - self.offset.y)
        return super()._adjust_descriptor(source, descriptor)

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        metal_type, parameters = source.channel_format.metal_type, self._parameters(regions)
        buffers = source.buffer, destination.buffer
        if metal_type == "float" and works_by_rows(self.device):
            by_sums = self._add_dispatch_by_sums(command_buffer, buffers, parameters)
            if by_sums or self._add_dispatch_by_pixels(command_buffer, buffers, parameters):
                return
        add_dispatch(self.device, command_buffer, "pooling_average", metal_type, *buffers, **parameters)

    def _add_dispatch_by_pixels(
        self, command_buffer: CommandBuffer, buffers: Sequence[Buffer], parameters: dict[str, Any]
    ) -> bool:
        """Adds the kernel of CPUs that adds up pixel by pixel, if windows are large and do not overlap."""
        taps_x, taps_y, stride_x, stride_y, *_ = parameters["window"]
        *_, width, height, channels, images = parameters["destination"]
        overlap = (width > 1 and stride_x < taps_x) or (height > 1 and stride_y < taps_y)
        if channels < LEAST_CHANNELS_OF_PIXELS or taps_x * taps_y < LEAST_TAPS_OF_PIXELS or overlap:
            return False
        wanted = -(-THREADS_BY_TILES_PER_UNIT * max(1, self.device.compute_units) // images)
        rows = min(height, wanted)
        enough = min(-(-wanted // rows), channels // FEWEST_CHANNELS_OF_SHARE)
        shares = max(-(-channels // MOST_IN_TILE), enough)
        function = family_of(FAMILIES, "pooling_average").function(self.device, "pooling_average_by_pixels", "float")
        add_dispatch_of_shares(command_buffer, function, buffers, PARAMETERS, parameters, shares, rows)
        return True

    def _add_dispatch_by_sums(
        self, command_buffer: CommandBuffer, buffers: Sequence[Buffer], parameters: dict[str, Any]
    ) -> bool:
        """Adds the kernel of CPUs that adds up pixels along one axis after the other, unless windows are small."""
        taps_x, taps_y, stride_x, *_ = parameters["window"]
        _, pixel, *_, height, channels, images = parameters["destination"]
        suits_more_channels = (
            not tunables(self.device.tuning).has_many_registers
            and stride_x < taps_x
            and (channels <= MANY_CHANNELS or taps_x * taps_y >= LEAST_TAPS_OF_MANY_CHANNELS)
        )
        shares = shares_of_channels(channels, taps_x, 1, most_in_tile_of_sums(channels))
        if (
            shares is None
            or (channels > MOST_CHANNELS_BY_TILES and not suits_more_channels)
            or taps_x * taps_y < (LEAST_TAPS_OF_SUMS if stride_x == 1 else LEAST_TAPS_OF_STRIDED_SUMS)
            or (channels < 8 and not pixel == parameters["source"][1] == channels)
        ):
            return False
        function = family_of(FAMILIES, "pooling_average").function(self.device, "pooling_average_by_sums", "float")
        rows = shares_of_rows(self.device, images * shares, height)
        add_dispatch_of_shares(command_buffer, function, buffers, PARAMETERS, parameters, shares, rows)
        return True


class PoolingL2Norm(Pooling):
    """``y = sqrt(sum of x ** 2)`` over each window. Source: ``MPSCNNPoolingL2Norm``.

    Edge mode ZERO: taps outside the source count as 0; CLAMP: as the nearest edge pixel.
    """

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        add_dispatch(
            self.device,
            command_buffer,
            "pooling_l2_norm",
            source.channel_format.metal_type,
            source.buffer,
            destination.buffer,
            **self._parameters(regions),
        )
