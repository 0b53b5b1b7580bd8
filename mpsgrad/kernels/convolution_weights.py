"""What convolutions and their gradients share: the data source, and its weights and biases in device memory."""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mpsgrad.archive import archivable
from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import EdgeMode
from mpsgrad.image import Image
from mpsgrad.kernel import BaseKernel, EnumProperty, Kernel
from mpsgrad.kernels.convolution_data_source import ConvolutionDataSource, LoadedParameters, load_parameters
from mpsgrad.kernels.convolution_descriptor import ConvolutionDescriptor
from mpsgrad.kernels.convolution_dispatch import Weights, add_copy, algorithm_for
from mpsgrad.kernels.convolution_packing import PackedWeights, Packing
from mpsgrad.kernels.convolution_state import FLOAT_BYTES, ConvolutionWeightsAndBiasesState
from mpsgrad.repeated_encode import token
from mpsgrad.state import ForwardSnapshot, StateType


@archivable
class ConvolutionAccumulatorPrecisionOption(enum.IntEnum):
    """How sums are kept. Source: ``MPSNNConvolutionAccumulatorPrecisionOption``. Here always in float32."""

    HALF = 0
    FLOAT = 1


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
    _shared_state: ConvolutionWeightsAndBiasesState | None
    """The state of the data source, if the kernel uses its buffers itself."""
    _result_biases: Buffer
    _packed: PackedWeights
    _has_biases: bool
    _loaded_from_state: bool
    _rounds: bool

    # objc: -initWithDevice:weights:
    def __init__(
        self, data_source: ConvolutionDataSource, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(device=device, label=label)
        self._set_data_source(data_source)
        self._set_window(*self._descriptor.geometry[:6])

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
            self._shared_state = state
        else:
            self._shared_state = None
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
        try:
            given_weights, given_biases = arrays
            weights = np.asarray(given_weights, np.float32)
            biases = None if given_biases is None else np.asarray(given_biases, np.float32)
        except (TypeError, ValueError):
            raise FormatError(
                f"{type(self).__name__}: weights_and_biases is {type(arrays).__name__}; it has to be two arrays of "
                "numbers, of which the second may be None"
            ) from None
        self._require_sizes("weights_and_biases", weights.size, None if biases is None else biases.size)
        self._set_parameters(weights.reshape(self._descriptor.weights_shape), biases)
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
        self._require_command_buffer(command_buffer, "reload_weights_and_biases")
        if state is not self._shared_state or state.is_temporary or self._has_biases > (state.resource_count == 2):
            self._copy_parameters(command_buffer, state)
        command_buffer._reads(owner, "state", state._writer)
        self._parameters_changed(command_buffer)
        self._has_biases = state.resource_count == 2
        self._parameters._written_by(command_buffer)
        self._loaded_from_state = True
        state._read_once()

    def _copy_parameters(self, command_buffer: CommandBuffer, state: ConvolutionWeightsAndBiasesState) -> None:
        owner = type(self).__name__
        if not isinstance(state, ConvolutionWeightsAndBiasesState):
            raise FormatError(
                f"{owner}: state is {type(state).__name__}; it has to be a ConvolutionWeightsAndBiasesState"
            )
        if state.device is not self.device:
            raise StateError(
                f"{owner}: state is on {state.device.identifier} but the kernel on {self.device.identifier}"
            )
        if state.command_buffer not in (None, command_buffer):
            raise StateError(f"{owner}: state is a temporary state of another command buffer")
        state._require_readable(owner, "state")
        brings_biases = state.resource_count == 2
        self._require_sizes("state", state.weights_count, state.biases_count if brings_biases else None)
        if self._has_biases and not brings_biases:
            raise GeometryError(f"{owner}: state has no biases but the kernel {self._parameters.biases_count}")
        command_buffer._reads(owner, "state", state._writer)
        counts, offsets = (state.weights_count, state.biases_count), (state.weights_offset, state.biases_offset)
        for index in range(state.resource_count):
            source, own = state.resource(index), self._parameters.resource(index)
            if source is not own:
                offset = offsets[index] // FLOAT_BYTES
                add_copy(command_buffer, source, own, counts[index], source_offset=offset)

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
        return self._result_biases if isinstance(name, str) else self._parameters._encode_buffer(name, command_buffer)

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

    def _archived_properties(self) -> dict[str, Any]:
        loaded = {"weights_and_biases": self.weights_and_biases} if self._loaded_from_state else {}
        return {**super()._archived_properties(), **loaded}


class _ForwardKernel(_WeightedKernel, Kernel[StateType]):
    """What a convolution and a transposed one share."""

    accumulator_precision_option = EnumProperty(
        ConvolutionAccumulatorPrecisionOption.FLOAT, "Kept for ported code: sums are always in float32."
    )

    @property
    def input_feature_channels(self) -> int:
        """Channels of the source."""
        return self._descriptor.input_feature_channels

    @property
    def output_feature_channels(self) -> int:
        """Channels of the result."""
        return self._descriptor.output_feature_channels

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

    def _snapshot(self, source: Image, destination: Image) -> ForwardSnapshot:
        return replace(
            super()._snapshot(source, destination),
            source_feature_channel_max_count=self._descriptor.input_feature_channels,
        )

    def _require_state(self, state: Any, source: Image, destination: Image) -> None:
        super()._require_state(state, source, destination)
        owner = type(self).__name__
        if state.has_gradients:
            raise StateError(
                f"{owner}: destination_state already holds the gradients of a batch; it is not re-usable across batches"
            )
        if state.made_by is not self:
            raise StateError(f"{owner}: destination_state was made by another kernel, {state.made_by!r}")

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
