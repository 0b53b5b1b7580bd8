"""Fully connected layers and their gradients: convolutions whose one window is the whole source."""

from __future__ import annotations

from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Device
from mpsgrad.errors import GeometryError
from mpsgrad.geometry import Offset
from mpsgrad.image import Image
from mpsgrad.kernel import Regions
from mpsgrad.kernels.convolution import Convolution, ConvolutionGradient
from mpsgrad.kernels.convolution_data_source import ConvolutionDataSource
from mpsgrad.kernels.convolution_descriptor import ConvolutionDescriptor
from mpsgrad.padding import VALID_ONLY
from mpsgrad.state import ForwardSnapshot


class FullyConnected(Convolution):
    """``y[o] = act(b[o] + sum over ky, kx, c of w[o][ky][kx][c] * x[ky][kx][c])``.

    The source is exactly as large as the kernel, and the result 1 x 1 pixel. ``offset`` is ignored; stride, dilation
    and groups have to be 1. Source: ``MPSCNNFullyConnected``.
    """

    def __init__(
        self, data_source: ConvolutionDataSource, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(data_source, device=device, label=label)
        _require_fully_connected(type(self).__name__, self._descriptor)
        self._configure(padding=VALID_ONLY)

    def _validate(self, source: Image) -> None:
        width, height = self._window[:2]
        if (source.width, source.height) != (width, height):
            raise GeometryError(
                f"{type(self).__name__}: source_image is {source.width}x{source.height} pixels but the weights are for "
                f"{width}x{height}"
            )
        # The one window lies on the whole source: its centre tap on the source's centre.
        self._configure(offset=Offset(width // 2, height // 2, self.offset.z))

    def _snapshot(self, source: Image, destination: Image) -> ForwardSnapshot:
        self._validate(source)
        return super()._snapshot(source, destination)

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        if (regions.width, regions.height) != (1, 1):
            raise GeometryError(
                f"{type(self).__name__}: {regions.width}x{regions.height} pixels of the destination are to be written "
                "but the result is 1x1; clip_rect says which pixel"
            )
        super()._dispatch(command_buffer, source, destination, regions, state)


class FullyConnectedGradient(ConvolutionGradient):
    """The gradients of ``FullyConnected``. Source: ``MPSCNNFullyConnectedGradient``.

    ``dx[ky][kx][c] = sum_o w[o][ky][kx][c] * g[o]``; into the state ``dw[o][ky][kx][c] = sum over images of g[o] *
    x[ky][kx][c]`` and ``db[o] = sum over images of g[o]``.
    """

    forward_kernels = ("FullyConnected",)

    def __init__(
        self, data_source: ConvolutionDataSource, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(data_source, device=device, label=label)
        _require_fully_connected(type(self).__name__, self._descriptor)


def _require_fully_connected(owner: str, descriptor: ConvolutionDescriptor) -> None:
    for name in ("stride_in_pixels_x", "stride_in_pixels_y", "dilation_rate_x", "dilation_rate_y", "groups"):
        if getattr(descriptor, name) != 1:
            raise GeometryError(f"{owner}: {name} is {getattr(descriptor, name)}; a fully connected layer has 1")
    if descriptor.sub_pixel_scale_factor > 1:
        raise GeometryError(f"{owner}: the descriptor is for sub-pixel convolution; a fully connected layer is not")
    if descriptor.channel_multiplier:
        raise GeometryError(f"{owner}: the descriptor is depthwise; a fully connected layer joins all channels")
