"""Convolution and its gradient."""

from __future__ import annotations

import enum
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mpsgrad.archive import archivable
from mpsgrad.checked_attribute import CheckedAttribute
from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer
from mpsgrad.errors import GeometryError, StateError
from mpsgrad.geometry import Offset, flag
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.kernel import EnumProperty, GradientKernel, Regions, clip_layout, require_first_window
from mpsgrad.kernels.convolution_data_source import LoadedParameters
from mpsgrad.kernels.convolution_dispatch import (
    GradientSums,
    ImagePart,
    add_forward,
    add_forward_by_blocks,
    add_gradient_data,
    add_gradient_weights,
)
from mpsgrad.kernels.convolution_neuron import result_before
from mpsgrad.kernels.convolution_state import FLOAT_BYTES, ConvolutionGradientState
from mpsgrad.kernels.convolution_sub_pixels import add_sub_pixels
from mpsgrad.kernels.convolution_weights import _ForwardKernel, _WeightedKernel
from mpsgrad.kernels.neuron_descriptor import NeuronDescriptor
from mpsgrad.state import ForwardSnapshot


@archivable
class ConvolutionGradientOption(enum.IntFlag):
    """Which gradients an encode computes. Source: ``MPSCNNConvolutionGradientOption``."""

    GRADIENT_WITH_DATA = 1
    GRADIENT_WITH_WEIGHTS_AND_BIAS = 2
    ALL = 3


_OPTIONS_WITH_DATA = (ConvolutionGradientOption.GRADIENT_WITH_DATA, ConvolutionGradientOption.ALL)
_OPTIONS_WITH_WEIGHTS = (ConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS, ConvolutionGradientOption.ALL)


class Convolution(_ForwardKernel[ConvolutionGradientState]):
    """``y[o] = act(b[o] + sum over taps t and channels c of w[o][t][c] * x[tap(t)][c])``.

    Cross-correlation: the window is not flipped. ``tap(t)`` follows the window rule of ``Kernel``; ``c`` runs over the
    input channels of the group of ``o``. Outside the source ``x`` is 0, or with ``EdgeMode.CLAMP`` the nearest pixel.
    Of a source with more channels than needed the first ``input_feature_channels`` from
    ``source_feature_channel_offset`` on are read. Weights, biases and sums are float32; any number of channels per
    group is allowed. A fused neuron ``act`` is applied to the result as it is stored, so with FLOAT16 images after
    rounding. Source: ``MPSCNNConvolution``.

    On GPUs a 3 x 3 or 5 x 5 window of stride 1 over float32 images with a few dozen channels or more is computed by
    Winograd's method, in tiles of 4 x 4 or 2 x 2 results: errors are about twice those of the plain sum, or up to four
    times in gradients for 5 x 5 weights, and a value of ``x`` that is not finite reaches all results of its tile. It
    needs a workspace, which the encodes of a command buffer share; a batch for which that would be larger than 256 MiB
    is computed one part after another. The same holds for its gradients.
    On CPUs, where the result has a few channels, several of its pixels are computed together, and what is not finite
    reaches all of those too.

    Raises ``StateError`` if the data source cannot load.
    """

    remembers_encodes = True

    @property
    def sub_pixel_scale_factor(self) -> int:
        """How many times as wide and high the result is; 1 unless the descriptor is for sub-pixel convolution."""
        return self._descriptor.sub_pixel_scale_factor

    @property
    def fused_neuron_descriptor(self) -> NeuronDescriptor | None:
        """The neuron applied to the result, or None."""
        return self._descriptor.fused_neuron_descriptor

    def _destination_channels(self, source_channels: int) -> int:
        return self._descriptor.output_feature_channels // self.sub_pixel_scale_factor**2

    def _adjust_descriptor(self, source: Image, descriptor: ImageDescriptor) -> ImageDescriptor:
        factor = self.sub_pixel_scale_factor
        return replace(descriptor, width=factor * descriptor.width, height=factor * descriptor.height)

    def _make_state(
        self, source: Image, destination: Image, command_buffer: CommandBuffer | None
    ) -> ConvolutionGradientState:
        return ConvolutionGradientState(self, self._shared_snapshot(source, destination), command_buffer=command_buffer)

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        numbers = self._weights(source, self._window_layout(self.offset.x, self.offset.y), self.edge_mode)
        part = ImagePart(source.buffer, regions.sources[0])
        factor = self.sub_pixel_scale_factor
        with result_before(self.fused_neuron_descriptor, command_buffer, destination, regions) as result:
            if factor == 1:
                add_forward(command_buffer, numbers, part, result)
            elif not add_forward_by_blocks(command_buffer, numbers, part, result, factor):
                add_convolution = partial(add_forward, command_buffer, numbers, part)
                add_sub_pixels(command_buffer, result, factor, numbers.metal_type, add_convolution)


class ConvolutionGradient(_WeightedKernel, GradientKernel):
    """The gradients of ``Convolution`` for its source, weights and biases. Source: ``MPSCNNConvolutionGradient``.

    ::

        dx[y][c]    = sum over o, t and windows i with tap(i, t) == y of w[o][t][c] * g[i][o]     the result
        dw[o][t][c] = sum over images and windows i of g[i][o] * x[tap(i, t)][c]                  in the state
        db[o]       = sum over images and windows i of g[i][o]                                    in the state

    Source pixels that no window read get 0. With ``EdgeMode.CLAMP`` all three are the exact derivatives: an edge pixel
    also collects the gradients of the reads outside that it stands for (MPS does not say what it does there).

    The state configures the kernel: with ``kd = (k - 1) * dilation + 1`` along each axis

    * ``primary_offset`` is the origin of the forward clip rectangle, so 0 without one;
    * ``kernel_offset`` is ``-offset``, plus 1 if ``kd`` is even;
    * ``secondary_offset`` is ``offset - floor(kd / 2)``, the source pixel of the first tap of the first window (the
      convention of macOS 10.15; earlier versions put the half window inside).

    With properties set by hand, ``dx`` of the clip rectangle's pixel ``y`` collects the windows ``i`` and taps ``t``
    with ``stride * i = y + primary_offset * stride + kernel_offset + kd - 1 - floor(kd / 2) - dilation * t``, where
    ``i`` counts pixels of the gradient image, and ``dw`` reads ``x`` at ``stride * i + secondary_offset + dilation *
    t``, where ``i`` counts from the forward clip rectangle.

    ``data_source`` has to give the same numbers as the forward kernel's. The neuron and the batch normalization of a
    descriptor are not differentiated: a descriptor that has one raises ``NotImplementedError``. Use kernels of their
    own.
    """

    remembers_encodes = True

    forward_kernels = ("Convolution",)
    reads_secondary_edge_mode = True
    properties_without_use = ("primary_edge_mode",)

    gradient_option = EnumProperty(
        ConvolutionGradientOption.ALL,
        "Which gradients are computed. Without GRADIENT_WITH_DATA a given destination is left as it is, and encodes "
        "that would return an image return None; without GRADIENT_WITH_WEIGHTS_AND_BIAS the state is left as it is.",
    )

    serialize_weights_and_biases = CheckedAttribute(
        False, flag, "Kept for ported code; without effect, as in MPS since macOS 10.14."
    )

    def _weights_and_biases_of_results(self, weights: np.ndarray) -> tuple[Buffer, Buffer]:
        own, _ = super()._weights_and_biases_of_results(weights)
        nbytes = FLOAT_BYTES * self._descriptor.input_feature_channels
        no_biases = self.device.allocate(nbytes)
        no_biases.write(bytes(nbytes))
        return own, no_biases

    @property
    def _computes_data_gradient(self) -> bool:
        return self.gradient_option in _OPTIONS_WITH_DATA

    @property
    def _computes_weights_gradient(self) -> bool:
        return self.gradient_option in _OPTIONS_WITH_WEIGHTS

    @property
    def source_gradient_feature_channels(self) -> int:
        """Channels of the incoming gradient: the output channels of the convolution."""
        return self._descriptor.output_feature_channels

    @property
    def source_image_feature_channels(self) -> int:
        """Channels of the source that get a gradient: the input channels of the convolution."""
        return self._descriptor.input_feature_channels

    def _adopt(self, loaded: LoadedParameters) -> None:
        self._require_nothing_fused(loaded)
        super()._adopt(loaded)

    def _require_nothing_fused(self, loaded: LoadedParameters) -> None:
        if loaded.descriptor.sub_pixel_scale_factor > 1:
            raise NotImplementedError(
                f"{type(self).__name__}: sub_pixel_scale_factor of the descriptor is "
                f"{loaded.descriptor.sub_pixel_scale_factor}; sub-pixel convolution has no gradient"
            )
        if loaded.is_quantized:
            raise NotImplementedError(
                f"{type(self).__name__}: data_type of the data source is UINT8; quantized weights cannot be trained"
            )
        for name in ("fused_neuron_descriptor", "batch_normalization_parameters"):
            if getattr(loaded.descriptor, name) is not None:
                raise NotImplementedError(
                    f"{type(self).__name__}: the descriptor has {name}, which this kernel does not differentiate; "
                    "train with a kernel of its own instead"
                )

    def encode(  # type: ignore[override]
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        gradient_state: Any,
        *,
        destination_gradient: Image | None = None,
    ) -> Any:
        result = super().encode(
            command_buffer, source_gradient, source_image, gradient_state, destination_gradient=destination_gradient
        )
        return result if self._computes_data_gradient else None

    encode.__doc__ = GradientKernel.encode.__doc__

    def _configure_geometry(self, snapshot: ForwardSnapshot) -> None:
        origin, offset = snapshot.clip_rect.origin, snapshot.offset
        width, height = self._dilated_width, self._dilated_height
        self._configure(
            primary_offset=Offset(origin.x, origin.y, origin.z),
            secondary_offset=Offset(offset.x - width // 2, offset.y - height // 2, offset.z),
            kernel_offset_x=-offset.x + (1 if width % 2 == 0 else 0),
            kernel_offset_y=-offset.y + (1 if height % 2 == 0 else 0),
        )

    def _primary_channels(self, secondary_channels: int) -> int:
        return self._descriptor.output_feature_channels

    def _channels_of(self, image: Image, which: str) -> int:
        have = super()._channels_of(image, which)
        if which == "primary":
            return have
        need = self._descriptor.input_feature_channels
        if have < need:
            raise GeometryError(
                f"{type(self).__name__}: source_image has {have} feature channels to read but the weights need {need}"
            )
        return need

    def _require_gradient_state(self, state: Any, source_image: Image) -> None:
        super()._require_gradient_state(state, source_image)
        forward = state.made_by.descriptor
        if forward.geometry != self._descriptor.geometry:
            raise StateError(
                f"{type(self).__name__}: gradient_state was made by a kernel for {forward!r} but this one is for "
                f"{self._descriptor!r}"
            )

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        self._require_gradient_size(source_gradient, state)

    def _begin_encode(self, command_buffer: CommandBuffer, state: Any) -> None:
        if self._computes_weights_gradient:
            state.require_receptive(type(self).__name__, command_buffer)

    def _note_encode(self, command_buffer: CommandBuffer, state: Any, regions: Regions) -> None:
        if self._computes_weights_gradient:
            state.add_gradients(command_buffer, regions.width * regions.height * regions.images)

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        forward_clip = state.snapshot.clip_rect
        gradient = ImagePart(source_gradient.buffer, clip_layout(regions.sources[0], forward_clip))
        source = ImagePart(source_image.buffer, regions.sources[1])
        data_window = self._data_window(forward_clip.origin)
        if self._computes_weights_gradient:
            window = (*self._window, self.secondary_offset.x, self.secondary_offset.y)
            weights, biases = state.accumulators
            add_gradient_weights(
                command_buffer,
                self._weights(source_gradient, window, self.secondary_edge_mode),
                gradient,
                source,
                GradientSums(weights, biases, state.has_gradients),
            )
        if self._computes_data_gradient:
            add_gradient_data(
                command_buffer,
                self._weights(source_gradient, data_window, self.secondary_edge_mode),
                gradient,
                ImagePart(destination.buffer, regions.destination),
                first_pixel=self.clip_rect.origin[:2],
                source_size=(source_image.width, source_image.height),
            )

    def _data_window(self, forward_origin: tuple[int, int, int]) -> tuple[int, ...]:
        """The window with the source pixel of the first tap of the first window inside the forward clip rectangle."""
        width, height, stride_x, stride_y, dilation_x, dilation_y = self._window
        kernel_width, kernel_height = self._dilated_width, self._dilated_height
        upsampled_x = (self.primary_offset.x - forward_origin[0]) * stride_x + self.kernel_offset_x
        upsampled_y = (self.primary_offset.y - forward_origin[1]) * stride_y + self.kernel_offset_y
        first_x = kernel_width // 2 - (kernel_width - 1) - upsampled_x
        first_y = kernel_height // 2 - (kernel_height - 1) - upsampled_y
        require_first_window(type(self).__name__, first_x, first_y)
        return (*self._window, first_x, first_y)
