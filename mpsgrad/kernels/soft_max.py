"""SoftMax and LogSoftMax over the feature channels of each pixel, and their gradients."""

from __future__ import annotations

from typing import Any, ClassVar

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer
from mpsgrad.geometry import Offset
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.kernel import IMAGE_LAYOUT, GradientKernel, Kernel, Regions
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.state import ForwardSnapshot

THREADS = 256
PIXELS_PER_SIMDGROUP = 4

PARAMETERS = ParameterStruct(
    "SoftMaxParameters",
    gradient=IMAGE_LAYOUT,
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    gradient_x="int",
    gradient_y="int",
    source_x="int",
    source_y="int",
)
FAMILY = ShaderFamily("soft_max", (IMAGE_LAYOUT, PARAMETERS), {"threads": THREADS, "pixels": PIXELS_PER_SIMDGROUP})


def _add_dispatch(
    kernel: Kernel | GradientKernel,
    command_buffer: CommandBuffer,
    function_name: str,
    destination: Image,
    regions: Regions,
    buffers: tuple[Buffer, ...],
    **parameters: Any,
) -> None:
    function = FAMILY.function(kernel.device, function_name, destination.channel_format.metal_type)
    pixels = regions.width * regions.height * regions.images
    pixels_per_threadgroup = THREADS // 32 * PIXELS_PER_SIMDGROUP
    command_buffer.add_dispatch(
        function,
        -(-pixels // pixels_per_threadgroup),
        *buffers,
        destination.buffer,
        kernel.device.constant_buffer(PARAMETERS.pack(destination=regions.destination, **parameters)),
    )


class SoftMax(Kernel):
    """``y[k] = exp(x[k]) / sum_j exp(x[j])`` over the feature channels of each pixel. Source: ``MPSCNNSoftMax``.

    The largest channel is subtracted first, so no finite input overflows. A pixel outside the source reads as zeros.
    """

    _function: ClassVar[str] = "soft_max"

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        layout = regions.sources[0]
        _add_dispatch(
            self,
            command_buffer,
            self._function,
            destination,
            regions,
            (source.buffer,),
            gradient=layout,
            source=layout,
            gradient_x=0,
            gradient_y=0,
            source_x=self.offset.x,
            source_y=self.offset.y,
        )


class LogSoftMax(SoftMax):
    """``y[k] = x[k] - log(sum_j exp(x[j]))`` over the feature channels of each pixel. Source: ``MPSCNNLogSoftMax``."""

    _function = "log_soft_max"


class SoftMaxGradient(GradientKernel):
    """``dx[k] = y[k] * (g[k] - sum_j g[j] * y[j])``. Source: ``MPSCNNSoftMaxGradient``.

    ``source_image`` of ``encode`` is the forward **result** ``y``, not its source: with the log variant the only
    gradient kernels for which that is so.
    """

    forward_kernels = ("SoftMax",)
    _function: ClassVar[str] = "soft_max_gradient"

    def _forward_image(self, snapshot: ForwardSnapshot) -> ImageDescriptor:
        return snapshot.destination

    def _configure_geometry(self, snapshot: ForwardSnapshot) -> None:
        # Gradient and forward result share their pixels, so both are addressed from the forward clip rectangle.
        super()._configure_geometry(snapshot)
        self._configure(
            secondary_offset=Offset(self.primary_offset.x, self.primary_offset.y, snapshot.clip_rect.origin.z),
            secondary_source_feature_channel_offset=snapshot.destination_feature_channel_offset,
            secondary_source_feature_channel_max_count=snapshot.source_channels,
        )

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        gradient, gradient_x, gradient_y = self._pointwise_gradient(regions.sources[0], state)
        _add_dispatch(
            self,
            command_buffer,
            self._function,
            destination,
            regions,
            (source_gradient.buffer, source_image.buffer),
            gradient=gradient,
            source=regions.sources[1],
            gradient_x=gradient_x,
            gradient_y=gradient_y,
            source_x=self.secondary_offset.x,
            source_y=self.secondary_offset.y,
        )


class LogSoftMaxGradient(SoftMaxGradient):
    """``dx[k] = g[k] - exp(y[k]) * sum_j g[j]``, ``y`` the forward **result**. Source: ``MPSCNNLogSoftMaxGradient``."""

    forward_kernels = ("LogSoftMax",)
    _function = "log_soft_max_gradient"
