"""How the kernels of instance and group normalization are dispatched."""

from __future__ import annotations

from collections.abc import Sequence

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer
from mpsgrad.image import Image
from mpsgrad.kernels.batch_normalization_dispatch import FAMILIES, streaming_pixels_per_row
from mpsgrad.kernels.neuron_descriptor import NeuronType
from mpsgrad.kernels.pointwise import (
    CHUNKED_ROWS,
    ChunkedRows,
    Layout,
    Operand,
    chunked_rows,
    pieces,
    summing_pixels_per_row,
)
from mpsgrad.shader import IMAGE_LAYOUT, ParameterStruct, ShaderFamily
from mpsgrad.tunables import tunables

PARAMETERS = ParameterStruct(
    "NormalizationParameters",
    **CHUNKED_ROWS,
    channels="int",
    groups="int",
    channels_per_group="int",
    pixels="int",
    images="int",
    first_image="int",
    needs_gradients="int",
    epsilon="float",
)
"""``chunks`` and ``pixels`` are those of each image; image 0 has row ``first_image`` of the arrays of a state."""


FAMILY = ShaderFamily(
    "group_normalization",
    (IMAGE_LAYOUT, PARAMETERS),
    {**FAMILIES[NeuronType.NONE].constants, "by_vectors": False, "rows": 64, "per_image": True},
    {"cpu": {"threads": 64}},
    measured=lambda numbers: {"sums": numbers.normalization_sums_per_lane},
    template="batch_normalization",
    ahead_of_time=False,
)
"""The kernels of batch normalization in the form for simdgroups, for each image on its own."""


class ImagePasses:
    """Adds the dispatches of one encode over ``images`` images, image by image on its own."""

    def __init__(
        self,
        command_buffer: CommandBuffer,
        metal_type: str,
        *,
        channels: int,
        channels_per_group: int,
        epsilon: float,
        images: int,
        pixels: int,
    ) -> None:
        self.command_buffer, self.device = command_buffer, command_buffer.device
        self.channels, self.channels_per_group = channels, channels_per_group
        self.groups = self.channels // self.channels_per_group
        self.epsilon, self.metal_type, self.images, self.pixels = epsilon, metal_type, images, pixels

    def rows(
        self, names: tuple[str, ...], layouts: Sequence[Layout], pixels_per_row: int, adds_up: bool
    ) -> ChunkedRows:
        """The rows of one image; the others have as many."""
        single = tuple((*layout[:7], 1) for layout in layouts)
        return chunked_rows(names, single, pixels_per_row, tunables(self.device.tuning), adds_up)

    def parameters(self, work: ChunkedRows, *, first_image: int, needs_gradients: bool = False) -> Buffer:
        return self.device.constant_buffer(
            PARAMETERS.pack(
                **work.parameters,
                channels=self.channels,
                groups=self.groups,
                channels_per_group=self.channels_per_group,
                pixels=self.pixels,
                images=self.images,
                first_image=first_image,
                needs_gradients=int(needs_gradients),
                epsilon=self.epsilon,
            )
        )

    def scratch(self, count: int) -> Buffer:
        return self.command_buffer.scratch(4 * count)

    def add(self, function_name: str, threads: int, *buffers: Buffer) -> None:
        function = FAMILY.function(self.device, function_name, self.metal_type)
        self.command_buffer.add_dispatch(function, -(-threads // function.threadgroup_size), *buffers)

    def add_for_columns(self, function_name: str, columns: int, *buffers: Buffer) -> None:
        """Adds a kernel of which each threadgroup has 32 columns of an image."""
        function = FAMILY.function(self.device, function_name, self.metal_type)
        self.command_buffer.add_dispatch(function, -(-columns // 32) * self.images, *buffers)

    def add_for_groups(self, function_name: str, *buffers: Buffer) -> None:
        """Adds a kernel of which each simdgroup has a group of an image."""
        self.add(function_name, 32 * self.images * self.groups, *buffers)

    def statistics(self, source: Image, layout: Layout, means: Buffer, variances: Buffer, first_image: int) -> None:
        """Fills ``means`` and ``variances`` with those of ``layout``, image 0 in row ``first_image``."""
        work = self.rows(("source",), (layout,), summing_pixels_per_row(self.channels), True)
        partial_means, partial_deviations = (self.scratch(self.images * work.chunks * work.columns) for _ in range(2))
        parameters = self.parameters(work, first_image=first_image)
        threads = work.threads * self.images
        self.add("image_statistics", threads, source.buffer, partial_means, partial_deviations, parameters)
        self.add_for_columns(
            "merge_image_statistics",
            self.channels,
            source.buffer,
            partial_means,
            partial_deviations,
            means,
            variances,
            parameters,
        )
        if self.channels_per_group > 1:
            self.add_for_groups("group_statistics", means, variances, parameters)

    def stream(
        self,
        function_name: str,
        names: tuple[str, ...],
        images: Sequence[Image],
        operands: tuple[Operand, ...],
        destination: Image,
        layout: Layout,
        tables: Sequence[Buffer],
        first_image: int,
        needs_gradients: bool = False,
    ) -> None:
        """Adds a kernel that writes ``layout`` of ``destination`` from ``images``; outside of them it reads zeros.

        ``tables`` are what the coefficients are made of.
        """
        for piece in pieces(layout, operands):
            zeros: Layout = (0, 0, 0, 0, *piece.destination[4:])
            layouts = (*(part or zeros for part in piece.operands), piece.destination)
            buffers = [
                image.buffer if part is not None else self.device.constant_buffer(bytes(4 * self.channels))
                for image, part in zip(images, piece.operands, strict=True)
            ]
            work = self.rows((*names, "destination"), layouts, streaming_pixels_per_row(self.channels), False)
            parameters = self.parameters(work, first_image=first_image, needs_gradients=needs_gradients)
            coefficients = self.scratch(5 * work.columns * self.images)
            self.add_for_columns("image_coefficients", work.columns, *tables, coefficients, parameters)
            threads = work.threads * self.images
            self.add(function_name, threads, *buffers, coefficients, destination.buffer, parameters)
