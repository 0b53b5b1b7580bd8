"""Convolution and fully connected kernels, and their gradients."""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mpsgrad.archive import archivable
from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import EdgeMode, Offset
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.kernel import (
    BaseKernel,
    EnumProperty,
    GradientKernel,
    Kernel,
    Regions,
    clip_layout,
    require_first_window,
)
from mpsgrad.kernels.convolution_data_source import ConvolutionDataSource, LoadedParameters, load_parameters
from mpsgrad.kernels.convolution_descriptor import ConvolutionDescriptor
from mpsgrad.kernels.convolution_dispatch import (
    ImagePart,
    Weights,
    add_copy,
    add_forward,
    add_gradient_data,
    add_gradient_weights,
    algorithm_for,
)
from mpsgrad.kernels.convolution_neuron import result_before
from mpsgrad.kernels.convolution_packing import PackedWeights, Packing
from mpsgrad.kernels.convolution_state import (
    FLOAT_BYTES,
    ConvolutionGradientState,
    ConvolutionWeightsAndBiasesState,
)
from mpsgrad.kernels.convolution_sub_pixels import add_sub_pixels
from mpsgrad.kernels.neuron_descriptor import NeuronDescriptor
from mpsgrad.padding import VALID_ONLY
from mpsgrad.repeated_encode import token
from mpsgrad.state import ForwardSnapshot


@archivable
class ConvolutionAccumulatorPrecisionOption(enum.IntEnum):
    """How sums are kept. Source: ``MPSNNConvolutionAccumulatorPrecisionOption``. Here always in float32."""

    HALF = 0
    FLOAT = 1


@archivable
class ConvolutionGradientOption(enum.IntFlag):
    """Which gradients an encode computes. Source: ``MPSCNNConvolutionGradientOption``."""

    GRADIENT_WITH_DATA = 1
    GRADIENT_WITH_WEIGHTS_AND_BIAS = 2
    ALL = 3


_OPTIONS_WITH_DATA = (ConvolutionGradientOption.GRADIENT_WITH_DATA, ConvolutionGradientOption.ALL)
_OPTIONS_WITH_WEIGHTS = (ConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS, ConvolutionGradientOption.ALL)


class _WeightedKernel(BaseKernel):
    """What a convolution and its gradient share: the data source, and the weights and biases in device memory.

    Weights are float32 in the kernel whatever the data source holds; MPS rounds them to float16 by default. With
    FLOAT16 images a GPU multiplies by the sum of two float16 numbers for each weight, or by one where that is exact or
    enough for the data source.
    """

    _data_source: Any
    _descriptor: ConvolutionDescriptor
    _geometry_token: int
    _parameters: ConvolutionWeightsAndBiasesState
    _result_biases: Buffer
    _packed: PackedWeights
    _has_biases: bool
    _loaded_from_state: bool
    _is_quantized: bool
    _rounds: bool

    def _set_data_source(self, data_source: Any) -> None:
        loaded = load_parameters(type(self).__name__, data_source)
        self._data_source = data_source
        self._geometry_token = token(loaded.descriptor.geometry)
        self._adopt(loaded)

    def _adopt(self, loaded: LoadedParameters) -> None:
        """Takes over what the data source gave."""
        self._descriptor = loaded.descriptor
        self._set_parameters(loaded.weights, loaded.biases, loaded.state)
        self._loaded_from_state = False
        self._is_quantized = loaded.is_quantized
        self._rounds = loaded.rounds

    def _set_parameters(
        self,
        weights: np.ndarray,
        biases: np.ndarray | None,
        state: ConvolutionWeightsAndBiasesState | None = None,
    ) -> None:
        self._has_biases = biases is not None
        outputs = self._descriptor.output_feature_channels
        values = np.zeros(outputs, np.float32) if biases is None else biases
        if state is not None and state.device is self.device:
            self._require_sizes("weights_and_biases_state", state.weights_count, state.biases_count or None)
            self._parameters = state if self._has_biases else state.with_biases(values)
        else:
            # A new buffer, so that work which was encoded before keeps the weights of that time.
            self._parameters = ConvolutionWeightsAndBiasesState.from_arrays(weights, values, self.device)
        to_pack, self._result_biases = self._weights_and_biases_of_results(weights)
        self._packed = PackedWeights(to_pack, self._result_biases)

    def _weights_and_biases_of_results(self, weights: np.ndarray) -> tuple[Buffer, Buffer]:
        """What results are computed with, for the user's ``weights``, which are on the device already."""
        return self._parameters.resource(0), self._parameters.resource(1)

    @property
    def data_source(self) -> ConvolutionDataSource:
        """What the kernel was made with."""
        return self._data_source

    @property
    def descriptor(self) -> ConvolutionDescriptor:
        """The descriptor as the data source gave it at the last load."""
        return self._descriptor

    @property
    def groups(self) -> int:
        """Into how many independent convolutions the channels are divided."""
        return self._descriptor.groups

    @property
    def channel_multiplier(self) -> int:
        """1 for a depthwise convolution, 0 for any other."""
        return self._descriptor.channel_multiplier

    @property
    def weights_and_biases(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Copies of the numbers that the kernel holds now, float32; None for no biases. Settable with such arrays.

        Reading waits for a reload that is under way, and raises ``StateError`` if that is not committed yet.
        """
        return self._parameters.weights, self._parameters.biases if self._has_biases else None

    @weights_and_biases.setter
    def weights_and_biases(self, arrays: tuple[np.ndarray, np.ndarray | None]) -> None:
        weights, biases = arrays
        self._require_sizes("weights_and_biases", np.size(weights), None if biases is None else np.size(biases))
        self._set_parameters(
            np.asarray(weights, np.float32).reshape(self._descriptor.weights_shape),
            None if biases is None else np.asarray(biases, np.float32),
        )
        self._loaded_from_state = True

    def _require_sizes(self, what: str, weights: int, biases: int | None) -> None:
        owner, outputs = type(self).__name__, self._descriptor.output_feature_channels
        wanted = math.prod(self._descriptor.weights_shape)
        if weights != wanted:
            raise GeometryError(
                f"{owner}: {what} has {weights} weights but the kernel {wanted}, {self._descriptor.weights_shape}"
            )
        if biases is not None and biases != outputs:
            raise GeometryError(f"{owner}: {what} has {biases} biases but the kernel {outputs}")

    # objc: -reloadWeightsAndBiasesFromDataSource
    def reload_weights_and_biases_from_data_source(self) -> None:
        """Reads the data source again. Work that was encoded before keeps the earlier weights.

        Call it on the convolution and on its gradient kernel. Raises what making the kernel raises, and
        ``GeometryError`` if the data source describes another convolution now.
        """
        loaded = load_parameters(type(self).__name__, self._data_source)
        if loaded.descriptor.geometry != self._descriptor.geometry:
            raise GeometryError(
                f"{type(self).__name__}: the data source describes {loaded.descriptor!r} but the kernel was made for "
                f"{self._descriptor!r}"
            )
        self._adopt(loaded)

    # objc: -reloadWeightsAndBiasesWithCommandBuffer:state:
    def reload_weights_and_biases(
        self, command_buffer: CommandBuffer, state: ConvolutionWeightsAndBiasesState
    ) -> None:
        """Encodes a copy of the weights and biases of ``state`` into the kernel; the data source is left as it is.

        Nothing is copied if ``state`` is the data source's ``weights_and_biases_state``, which the kernel uses itself.
        Call it on the convolution and on its gradient kernel; each call takes one from a temporary state's read count.
        Raises ``GeometryError`` if the sizes differ or the state lacks biases that the kernel has.
        """
        owner = type(self).__name__
        if not isinstance(state, ConvolutionWeightsAndBiasesState):
            raise FormatError(
                f"{owner}: state is {type(state).__name__}; it has to be a ConvolutionWeightsAndBiasesState"
            )
        self._require_command_buffer(command_buffer, "reload_weights_and_biases")
        if state.device is not self.device:
            raise StateError(
                f"{owner}: state is on {state.device.identifier} but the kernel on {self.device.identifier}"
            )
        if state.command_buffer not in (None, command_buffer):
            raise StateError(f"{owner}: state is a temporary state of another command buffer")
        state._require_readable(owner, "state")
        command_buffer._reads(owner, "state", state._writer)
        brings_biases = state.resource_count == 2
        self._require_sizes("state", state.weights_count, state.biases_count if brings_biases else None)
        if self._has_biases and not brings_biases:
            raise GeometryError(f"{owner}: state has no biases but the kernel {self._parameters.biases_count}")
        counts, offsets = (state.weights_count, state.biases_count), (state.weights_offset, state.biases_offset)
        for index in range(state.resource_count):
            source, own = state.resource(index), self._parameters.resource(index)
            if source is not own:
                offset = offsets[index] // FLOAT_BYTES
                add_copy(command_buffer, source, own, counts[index], source_offset=offset)
        self._parameters_changed(command_buffer)
        self._has_biases = brings_biases
        self._parameters._written_by(command_buffer)
        self._loaded_from_state = True
        state._read_once()

    def _parameters_changed(self, command_buffer: CommandBuffer) -> None:
        """Called after work in ``command_buffer`` that changes the weights: makes what is made of them once more."""
        self._packed.change_in(command_buffer)

    def _encode_aspects(self, state: Any) -> Hashable:
        return self._descriptor.fused_neuron_descriptor

    def _encode_buffers(self) -> Mapping[Any, Buffer]:
        buffers = {"result biases": self._result_biases} | self._packed.buffers
        return buffers | {index: self._parameters.resource(index) for index in (0, 1)}

    def _encode_buffer(self, name: Any, command_buffer: CommandBuffer) -> Buffer:
        if isinstance(name, Packing):
            return self._packed.buffer(command_buffer, name)
        return self._result_biases if isinstance(name, str) else self._parameters.resource(name)

    def _weights(self, image: Image, window: tuple[int, ...], edge_mode: EdgeMode) -> Weights:
        """What the shaders need to know, for images of the format of ``image``."""
        descriptor = self._descriptor
        return Weights(
            self._parameters.resource(0),
            self._result_biases,
            self._packed,
            window,
            descriptor.output_feature_channels if descriptor.channel_multiplier else descriptor.groups,
            edge_mode is EdgeMode.CLAMP,
            image.channel_format.metal_type,
            algorithm_for(self.device),
            self._rounds,
        )

    def _archived_parameters(self) -> dict[str, Any]:
        return {"weights_and_biases": self.weights_and_biases} if self._loaded_from_state else {}


class _ExportingKernel(_WeightedKernel):
    """A forward kernel, whose weights and biases can be copied to a state."""

    # objc: -exportWeightsAndBiasesWithCommandBuffer:resultStateCanBeTemporary:
    def export_weights_and_biases(
        self, command_buffer: CommandBuffer, *, result_state_can_be_temporary: bool = False
    ) -> ConvolutionWeightsAndBiasesState:
        """A state with a copy of the numbers that the kernel holds, encoded into ``command_buffer``.

        A batch normalization of the descriptor is folded into them. A kernel without biases gives a state without.
        """
        self._require_command_buffer(command_buffer, "export_weights_and_biases")
        count = self._descriptor.output_feature_channels
        temporary = command_buffer if result_state_can_be_temporary else None
        state = ConvolutionWeightsAndBiasesState(
            self._descriptor.weights_shape,
            (count,) if self._has_biases else None,
            self.device,
            command_buffer=temporary,
        )
        for index, length in zip(range(state.resource_count), (state.weights_count, count), strict=False):
            add_copy(command_buffer, self._parameters.resource(index), state._room(index), length)
        state._written_by(command_buffer)
        return state

    def parameters_to_update(self, command_buffer: CommandBuffer) -> ConvolutionWeightsAndBiasesState:
        """The state of the data source that the kernel uses itself, or if there is none an export."""
        shared = getattr(self._data_source, "weights_and_biases_state", None)
        if shared is not None and shared.resource(0) is self._parameters.resource(0):
            return shared
        return self.export_weights_and_biases(command_buffer)


class Convolution(_ExportingKernel, Kernel):
    """``y[o] = act(b[o] + sum over taps t and channels c of w[o][t][c] * x[tap(t)][c])``.

    Cross-correlation: the window is not flipped. ``tap(t)`` follows the window rule of ``Kernel``; ``c`` runs over the
    input channels of the group of ``o``. Outside the source ``x`` is 0, or with ``EdgeMode.CLAMP`` the nearest pixel.
    Of a source with more channels than needed the first ``input_feature_channels`` from
    ``source_feature_channel_offset`` on are read. Weights, biases and sums are float32; any number of channels per
    group is allowed. A fused neuron ``act`` is applied to the result as it is stored, so with FLOAT16 images after
    rounding. Source: ``MPSCNNConvolution``.

    On GPUs a 3 x 3 window of stride 1 over float32 images with a few dozen channels or more is computed by Winograd's
    method, in tiles of 4 x 4 results: errors are about twice those of the plain sum, and a value of ``x`` that is not
    finite reaches all results of its tile. It needs a workspace, which the encodes of a command buffer share; a batch
    for which that would be larger than 256 MiB is computed one part after another. The same holds for its gradients.

    Raises ``StateError`` if the data source cannot load.
    """

    remembers_encodes = True

    accumulator_precision_option = EnumProperty(
        ConvolutionAccumulatorPrecisionOption.FLOAT, "Kept for ported code: sums are always in float32."
    )

    # objc: -initWithDevice:weights:
    def __init__(
        self, data_source: ConvolutionDataSource, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(device=device, label=label)
        self._set_data_source(data_source)
        self._set_window(*self._descriptor.geometry[:6])

    @property
    def input_feature_channels(self) -> int:
        """Channels of the source."""
        return self._descriptor.input_feature_channels

    @property
    def output_feature_channels(self) -> int:
        """Channels of the result."""
        return self._descriptor.output_feature_channels

    @property
    def sub_pixel_scale_factor(self) -> int:
        """How many times as wide and high the result is; 1 unless the descriptor is for sub-pixel convolution."""
        return self._descriptor.sub_pixel_scale_factor

    @property
    def fused_neuron_descriptor(self) -> NeuronDescriptor | None:
        """The neuron applied to the result, or None."""
        return self._descriptor.fused_neuron_descriptor

    @property
    def is_result_state_reused_across_batch(self) -> bool:
        return True

    def _source_channels(self, source: Image) -> int:
        have, need = super()._source_channels(source), self._descriptor.input_feature_channels
        if have < need:
            raise GeometryError(
                f"{type(self).__name__}: source_image has {have} feature channels to read but the weights need {need}"
            )
        return need

    def _destination_channels(self, source_channels: int) -> int:
        return self._descriptor.output_feature_channels // self.sub_pixel_scale_factor**2

    def _adjust_descriptor(self, source: Image, descriptor: ImageDescriptor) -> ImageDescriptor:
        factor = self.sub_pixel_scale_factor
        return replace(descriptor, width=factor * descriptor.width, height=factor * descriptor.height)

    def _snapshot(self, source: Image, destination: Image) -> ForwardSnapshot:
        return replace(
            super()._snapshot(source, destination),
            source_feature_channel_max_count=self._descriptor.input_feature_channels,
        )

    def _make_state(
        self, source: Image, destination: Image, command_buffer: CommandBuffer | None
    ) -> ConvolutionGradientState:
        return ConvolutionGradientState(self, self._shared_snapshot(source, destination), command_buffer=command_buffer)

    def _require_state(self, state: Any, source: Image, destination: Image) -> None:
        super()._require_state(state, source, destination)
        owner = type(self).__name__
        if state.has_gradients:
            raise StateError(
                f"{owner}: destination_state already holds the gradients of a batch; it is not re-usable across batches"
            )
        if state.convolution is not self:
            raise StateError(f"{owner}: destination_state was made by another kernel, {state.convolution!r}")

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        numbers = self._weights(source, self._window_layout(self.offset.x, self.offset.y), self.edge_mode)
        part = ImagePart(source.buffer, regions.sources[0])
        factor = self.sub_pixel_scale_factor
        with result_before(self.fused_neuron_descriptor, command_buffer, destination, regions) as result:
            if factor > 1:
                add_convolution = partial(add_forward, command_buffer, numbers, part)
                add_sub_pixels(command_buffer, result, factor, numbers.metal_type, add_convolution)
            else:
                add_forward(command_buffer, numbers, part, result)

    def _archived_properties(self) -> dict[str, Any]:
        return {**super()._archived_properties(), **self._archived_parameters()}


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

    gradient_option = EnumProperty(
        ConvolutionGradientOption.ALL,
        "Which gradients are computed. Without GRADIENT_WITH_DATA a given destination is left as it is, and encodes "
        "that would return an image return None; without GRADIENT_WITH_WEIGHTS_AND_BIAS the state is left as it is.",
    )

    # objc: -initWithDevice:weights:
    def __init__(
        self, data_source: ConvolutionDataSource, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(device=device, label=label)
        self._set_data_source(data_source)
        self._require_nothing_fused()
        self._set_window(*self._descriptor.geometry[:6])
        self.serialize_weights_and_biases = False
        """Kept for ported code; without effect, as in MPS since macOS 10.14."""

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

    def reload_weights_and_biases_from_data_source(self) -> None:
        super().reload_weights_and_biases_from_data_source()
        self._require_nothing_fused()

    reload_weights_and_biases_from_data_source.__doc__ = (
        _WeightedKernel.reload_weights_and_biases_from_data_source.__doc__
    )

    def _require_nothing_fused(self) -> None:
        if self._descriptor.sub_pixel_scale_factor > 1:
            raise NotImplementedError(
                f"{type(self).__name__}: sub_pixel_scale_factor of the descriptor is "
                f"{self._descriptor.sub_pixel_scale_factor}; sub-pixel convolution has no gradient"
            )
        if self._is_quantized:
            raise NotImplementedError(
                f"{type(self).__name__}: data_type of the data source is UINT8; quantized weights cannot be trained"
            )
        for name in ("fused_neuron_descriptor", "batch_normalization_parameters"):
            if getattr(self._descriptor, name) is not None:
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
            for_weights, for_biases = state.accumulators
            add_gradient_weights(
                command_buffer,
                self._weights(source_gradient, window, self.secondary_edge_mode),
                gradient,
                source,
                for_weights=for_weights,
                for_biases=for_biases,
                accumulates=state.has_gradients,
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

    def _archived_properties(self) -> dict[str, Any]:
        return {**super()._archived_properties(), **self._archived_parameters()}


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
