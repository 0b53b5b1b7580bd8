"""Images with more pixels and feature channels around them, by any edge mode, and the gradient."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import EdgeMode, ImageCoordinate, Offset, real
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.kernel import (
    BaseKernel,
    CoordinateProperty,
    GradientKernel,
    IntegerProperty,
    Kernel,
    RealProperty,
    Regions,
)
from mpsgrad.kernels import pad_dispatch
from mpsgrad.kernels.copies import add_pieces
from mpsgrad.kernels.pointwise import Operand
from mpsgrad.state import ForwardSnapshot, GradientState


class PadGradientState(GradientState):
    """The state of a ``Pad``, which remembers how many channels were put before and behind those of the source."""

    def __init__(
        self,
        snapshot: ForwardSnapshot,
        channels: tuple[int, int],
        device: Device,
        *,
        command_buffer: CommandBuffer | None = None,
    ) -> None:
        super().__init__(snapshot, (), device, command_buffer=command_buffer)
        self.channels = channels

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        return (self.snapshot, self.channels)


class Pad(Kernel[PadGradientState]):
    """The source with ``padding_size_before`` and ``padding_size_after`` more columns, rows and channels.

    With ``n`` elements along an axis, position ``i`` outside 0 to ``n - 1`` has, by ``edge_mode``::

        ZERO               0
        CONSTANT           fill_value, or fill_values[j] in the j-th channel that is written
        CLAMP              element 0 or n - 1, the nearer one
        MIRROR             ... 2 1 | 0 1 2 | 1 0 ...    with period 2 (n - 1); of one element that one
        MIRROR_WITH_EDGE   ... 1 0 | 0 1 2 | 2 1 ...    with period 2 n

    The channels are those that are read: the source's from ``source_feature_channel_offset`` on, which may be any, and
    at most ``source_feature_channel_max_count``. An encode that returns an image sets ``offset`` to minus the padding
    before. One with a ``destination_image`` reads from pixel ``offset`` on as much as ``clip_rect`` has, whatever the
    padding along x and y; the channels are padded in both.

    Raises ``GeometryError`` if ``fill_values`` are not as many as the channels written, and ``StateError`` for a state
    of another padding of the channels. Source: ``MPSNNPad``.
    """

    remembers_encodes = True
    supported_edge_modes = tuple(EdgeMode)

    padding_size_before = CoordinateProperty(
        ImageCoordinate(), "Columns (x), rows (y) and channels before those of the source."
    )
    padding_size_after = CoordinateProperty(
        ImageCoordinate(), "Columns (x), rows (y) and channels behind those of the source."
    )
    fill_value = RealProperty(0.0, "What edge mode CONSTANT gives.")
    source_feature_channel_offset = IntegerProperty(0, "The first source channel that is read; any.")

    # objc: -initWithDevice:
    # objc: -initWithDevice:paddingSizeBefore:paddingSizeAfter:
    # objc: -initWithDevice:paddingSizeBefore:paddingSizeAfter:fillValueArray:
    def __init__(
        self,
        padding_size_before: tuple[int, int, int] = ImageCoordinate(),
        padding_size_after: tuple[int, int, int] = ImageCoordinate(),
        fill_values: Sequence[float] | None = None,
        *,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(device=device, label=label)
        self.padding_size_before = padding_size_before
        self.padding_size_after = padding_size_after
        self._fill_values = None if fill_values is None else _numbers(type(self).__name__, fill_values)

    @property
    def fill_values(self) -> tuple[float, ...] | None:
        """A fill value for each channel that is written, in place of ``fill_value``."""
        return self._fill_values

    @property
    def _channels(self) -> tuple[int, int]:
        return self.padding_size_before.channel, self.padding_size_after.channel

    def _destination_channels(self, source_channels: int) -> int:
        return source_channels + sum(self._channels)

    def _adjust_descriptor(self, source: Image, descriptor: ImageDescriptor) -> ImageDescriptor:
        before, after = self.padding_size_before, self.padding_size_after
        self._configure(offset=Offset(-before.x, -before.y, self.offset.z))
        return replace(
            descriptor, width=before.x + source.width + after.x, height=before.y + source.height + after.y
        )

    def _make_state(self, source: Image, destination: Image, command_buffer: CommandBuffer | None) -> PadGradientState:
        snapshot = self._shared_snapshot(source, destination)
        return PadGradientState(snapshot, self._channels, self.device, command_buffer=command_buffer)

    def _require_state(self, state: Any, source: Image, destination: Image) -> None:
        super()._require_state(state, source, destination)
        if state.channels != self._channels:
            raise StateError(
                f"{type(self).__name__}: {self._channels[0]} channels are put before the source's and "
                f"{self._channels[1]} behind them, but destination_state was made for {state.channels[0]} and "
                f"{state.channels[1]}"
            )

    def _fills(self, channels: int) -> Buffer:
        values = (self.fill_value,) * channels if self._fill_values is None else self._fill_values
        if len(values) != channels:
            raise GeometryError(
                f"{type(self).__name__}: fill_values has {len(values)} values but {channels} feature channels are "
                "written"
            )
        if self.edge_mode is not EdgeMode.CONSTANT:
            values = (0.0,) * channels
        return self.device.constant_buffer(np.array(values, np.float32).tobytes())

    def _dispatch(  # type: ignore[override]
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        (read,), written = regions.sources, regions.destination
        axes = (
            (self.offset.x, source.width, 0),
            (self.offset.y, source.height, 0),
            (-self._channels[0], read[6], 0),
        )
        buffers = (source.buffer, self._fills(written[6]), destination.buffer)
        metal_type = source.channel_format.metal_type
        pad_dispatch.add_dispatch(command_buffer, "", metal_type, buffers, read, written, axes, self.edge_mode)


class PadGradient(GradientKernel):
    """For each element of the source the sum of the gradients of its copies, in float32 and in a fixed order.

    With edge modes ZERO and CONSTANT that is the part of the incoming gradient where the source lies. Channels that the
    forward kernel did not read get 0 in encodes that return an image. Of the source image only the size matters.
    Source: ``MPSNNPadGradient``.
    """

    remembers_encodes = True
    supported_edge_modes = tuple(EdgeMode)
    forward_kernels = ("Pad",)
    reads_secondary_edge_mode = True

    def _channel_counts(self, source_image: Image, state: Any) -> tuple[int, int, int]:
        channels = self._channels_of(source_image, "secondary")
        return channels, channels + sum(state.channels), channels

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        gradient, across, down = self._pointwise_gradient(regions.sources[0], state)
        if self.secondary_edge_mode in (EdgeMode.ZERO, EdgeMode.CONSTANT):
            start, *strides, width, height, _, images = gradient
            layout = (start + state.channels[0], *strides, width, height, regions.destination[6], images)
            part = Operand(layout, across, down)
            add_pieces(command_buffer, destination, regions.destination, source_gradient, part)
            return
        first = self.secondary_offset
        axes = (
            (first.x - across, source_image.width, first.x),
            (first.y - down, source_image.height, first.y),
            (-state.channels[0], regions.destination[6], 0),
        )
        pad_dispatch.add_dispatch(
            command_buffer,
            "_gradient",
            destination.channel_format.metal_type,
            (source_gradient.buffer, destination.buffer),
            gradient,
            regions.destination,
            axes,
            self.secondary_edge_mode,
        )


def _numbers(owner: str, values: Any) -> tuple[float, ...]:
    try:
        numbers = tuple(values)
    except TypeError:
        raise FormatError(f"{owner}: fill_values is {values!r}; it has to be a list of numbers") from None
    return tuple(real(owner, f"fill_values[{index}]", value) for index, value in enumerate(numbers))
