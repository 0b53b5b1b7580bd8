"""What the encoders of batch, instance and group normalization share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Function
from mpsgrad.image import Image
from mpsgrad.kernels.pointwise import Layout, Operand, pieces

NumbersOfChannels = tuple[Buffer, Buffer, Buffer, Buffer]
"""Mean, variance, gamma and beta."""

Streaming = tuple[str, int, Sequence[Buffer], Buffer]
"""The name of a kernel, its threadgroups, what it reads besides images, and its parameters."""


class NormalizationEncoder(ABC):
    """Adds the dispatches of one encode."""

    def __init__(
        self,
        command_buffer: CommandBuffer,
        metal_type: str,
        channels: int,
        numbers_of_channels: NumbersOfChannels,
        epsilon: float,
    ) -> None:
        self.command_buffer, self.device = command_buffer, command_buffer.device
        self.metal_type, self.channels, self.epsilon = metal_type, channels, epsilon
        self.numbers_of_channels = numbers_of_channels
        self.mean, self.variance, *_ = numbers_of_channels

    @abstractmethod
    def function(self, name: str) -> Function:
        """The kernel function of this name."""

    def add(self, function_name: str, threadgroups: int, *buffers: Buffer) -> None:
        """Adds one run of ``function_name``."""
        self.command_buffer.add_dispatch(self.function(function_name), threadgroups, *buffers)

    def scratch(self, count: int) -> Buffer:
        """Memory for ``count`` floats."""
        return self.command_buffer.scratch(4 * count)

    def zeros(self) -> Buffer:
        """A zero for each channel: what is outside of an image."""
        return self.device.constant_buffer(bytes(4 * self.channels))

    def stream(
        self,
        function_name: str,
        names: tuple[str, ...],
        images: Sequence[Image],
        operands: tuple[Operand, ...],
        destination: Image,
        layout: Layout,
        gradients: tuple[Buffer, ...] = (),
    ) -> None:
        """Adds a kernel that writes ``layout`` of ``destination`` from ``images``; outside of them it reads zeros.

        The data gradient takes ``gradients``: the sums or means that it subtracts.
        """
        for piece in pieces(layout, operands):
            zeros: Layout = (0, 0, 0, 0, *piece.destination[4:])
            layouts = (*(part or zeros for part in piece.operands), piece.destination)
            buffers = [
                image.buffer if part is not None else self.zeros()
                for image, part in zip(images, piece.operands, strict=True)
            ]
            name, threadgroups, tables, parameters = self._streaming(
                function_name, (*names, "destination"), layouts, gradients
            )
            self.add(name, threadgroups, *buffers, *tables, destination.buffer, parameters)

    @abstractmethod
    def _streaming(
        self, function_name: str, names: tuple[str, ...], layouts: tuple[Layout, ...], gradients: tuple[Buffer, ...]
    ) -> Streaming:
        """How ``function_name`` runs over images of equal extents, after what it needs before it has been added."""
