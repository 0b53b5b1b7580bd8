"""Images of one format copied into those of another."""

from __future__ import annotations

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer
from mpsgrad.image import Image
from mpsgrad.kernels.pointwise import Layout
from mpsgrad.kernels.strides import EXTENTS, STRIDES, View, add_elementwise, strided_family
from mpsgrad.shader import ParameterStruct

PARAMETERS = ParameterStruct("FormatConversionParameters", source=STRIDES, destination=STRIDES, extents=EXTENTS)
FAMILY = strided_family("format_conversion", (PARAMETERS,))


def add_conversion(
    command_buffer: CommandBuffer, metal_type: str, source: tuple[Buffer, Layout], destination: tuple[Buffer, Layout]
) -> None:
    """Copies an image of ``metal_type``, given by its layout in a buffer, into one of the other type."""
    *_, width, height, channels, images = source[1]
    operands = {"source": (source[0], View.of(source[1])), "destination": (destination[0], View.of(destination[1]))}
    add_elementwise(
        command_buffer, FAMILY, PARAMETERS, "convert", metal_type, operands, (channels, width, height, images)
    )


def convert_format(command_buffer: CommandBuffer, source: Image, destination: Image) -> None:
    """Copies ``source`` into ``destination``, of equal extents: FLOAT32 into FLOAT16, rounded, or the other way."""
    metal_type = source.channel_format.metal_type
    add_conversion(
        command_buffer, metal_type, (source.buffer, source.layout), (destination.buffer, destination.layout)
    )
    destination._written_by(command_buffer)
