"""Fills memory with zeros, as part of the work of a command buffer."""

from __future__ import annotations

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer
from mpsgrad.geometry import ceiling_divide
from mpsgrad.image import Image
from mpsgrad.shader import ParameterStruct, ShaderFamily

FILL_PARAMETERS = ParameterStruct("FillParameters", count="int")
FILL_THREADS, ELEMENTS_OF_FILL_THREAD = 256, 16
FILL = ShaderFamily("fill", (FILL_PARAMETERS,), {"threads": FILL_THREADS, "elements": ELEMENTS_OF_FILL_THREAD})


def fill_with_zeros(command_buffer: CommandBuffer, image: Image) -> None:
    """Writes 0 to every element of ``image``, which is no view."""
    fill_buffer_with_zeros(
        command_buffer, image.buffer, image.descriptor.element_count, image.channel_format.metal_type
    )


def fill_buffer_with_zeros(
    command_buffer: CommandBuffer, buffer: Buffer, count: int, metal_type: str = "float"
) -> None:
    """Writes 0 to the first ``count`` elements of ``metal_type`` in ``buffer``."""
    function = FILL.function(command_buffer.device, "fill_with_zeros", metal_type)
    parameters = command_buffer.device.constant_buffer(FILL_PARAMETERS.pack(count=count))
    threadgroups = ceiling_divide(count, FILL_THREADS * ELEMENTS_OF_FILL_THREAD)
    command_buffer.add_dispatch(function, threadgroups, buffer, parameters)
