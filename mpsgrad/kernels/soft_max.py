"""SoftMax and LogSoftMax over the feature channels, and their gradients."""

from __future__ import annotations

from typing import Any, ClassVar

from mpsgrad.command import CommandBuffer
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.kernel import IMAGE_LAYOUT, GradientKernel, Kernel, Regions
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.state import ForwardSnapshot

PIXELS_PER_THREADGROUP = 8

FORWARD_PARAMETERS = ParameterStruct(
    "SoftMaxParameters", source=IMAGE_LAYOUT, destination=IMAGE_LAYOUT, source_x="int", source_y="int"
)
FAMILY = ShaderFamily("soft_max", (IMAGE_LAYOUT, FORWARD_PARAMETERS))


class SoftMax(Kernel):
    """``y[k] = exp(x[k]) / sum_j exp(x[j])`` over the feature channels of each pixel. Source: ``MPSCNNSoftMax``.

    Computed with the largest channel subtracted first, so that no finite input overflows.
    """

    _function: ClassVar[str] = "soft_max"

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        function = FAMILY.function(self.device, self._function, source.channel_format.metal_type)
        parameters = FORWARD_PARAMETERS.pack(
            source=regions.sources[0],
            destination=regions.destination,
            source_x=self.offset.x,
            source_y=self.offset.y,
        )
        pixels = regions.width * regions.height * regions.images
        command_buffer.add_dispatch(
            function,
            -(-pixels // PIXELS_PER_THREADGROUP),
            source.buffer,
            destination.buffer,
            self.device.constant_buffer(parameters),
        )


class LogSoftMax(SoftMax):
    """``y[k] = x[k] - log(sum_j exp(x[j]))`` over the feature channels of each pixel. Source: ``MPSCNNLogSoftMax``."""

    _function = "log_soft_max"
