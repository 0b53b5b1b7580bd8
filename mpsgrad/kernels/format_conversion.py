"""Images of one format copied into those of another."""

from __future__ import annotations

from mpsgrad.command import CommandBuffer
from mpsgrad.image import Image
from mpsgrad.kernels.strides import EXTENTS, STRIDES, View, add_elementwise, strided_family
from mpsgrad.shader import ParameterStruct

PARAMETERS = ParameterStruct("FormatConversionParameters", source=STRIDES, destination=STRIDES, extents=EXTENTS)
FAMILY = strided_family("format_conversion", (PARAMETERS,))


def convert_format(command_buffer: CommandBuffer, source: Image, destination: Image) -> None:
    """Copies ``source`` into ``destination``, of equal extents: FLOAT32 into FLOAT16, rounded, or the other way."""
    *_, width, height, channels, images = source.layout
    add_elementwise(
        command_buffer,
        FAMILY,
        PARAMETERS,
        "convert",
        source.channel_format.metal_type,
        {
            "source": (source.buffer, View.of(source.layout)),
            "destination": (destination.buffer, View.of(destination.layout)),
        },
        (channels, width, height, images),
    )
    destination._written_by(command_buffer)
