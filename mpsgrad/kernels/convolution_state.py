"""The states of a convolution: its current weights and biases, and the gradients for them."""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import integer
from mpsgrad.kernel import fill_buffer_with_zeros
from mpsgrad.kernels.accumulation import Accumulation
from mpsgrad.kernels.convolution_descriptor import ConvolutionDescriptor, require_descriptor
from mpsgrad.state import ForwardSnapshot, SharedGradientState, State
from mpsgrad.vector import Vector

if TYPE_CHECKING:
    from mpsgrad.kernel import BaseKernel
    from mpsgrad.kernels.convolution import Convolution

FLOAT_BYTES = 4


class ConvolutionWeightsLayout(enum.IntEnum):
    """The order of the axes of weights. Source: ``MPSCNNConvolutionWeightsLayout``."""

    OHWI = 0


class ConvolutionWeightsAndBiasesState(State):
    """Weights and biases in device memory, both float32. Source: ``MPSCNNConvolutionWeightsAndBiasesState``.

    ``resource(0)`` is the buffer of the weights in the order of the data source's array, ``resource(1)`` that of the
    biases, if there are any. Made by ``export_weights_and_biases`` or by one of the class methods.
    """

    def __init__(
        self,
        weights_shape: tuple[int, ...],
        biases_shape: tuple[int, ...] | None,
        device: Device | None = None,
        *,
        buffers: tuple[Buffer, Buffer | None] | None = None,
        weights_offset: int = 0,
        biases_offset: int = 0,
        command_buffer: CommandBuffer | None = None,
        label: str | None = None,
    ) -> None:
        owner = type(self).__name__
        self._shapes = (weights_shape, biases_shape)
        self.weights_offset = integer(owner, "weights_offset", weights_offset, 0)
        self.biases_offset = integer(owner, "biases_offset", biases_offset, 0)
        for name in ("weights_offset", "biases_offset"):
            if getattr(self, name) % FLOAT_BYTES:
                raise GeometryError(f"{owner}: {name} is {getattr(self, name)}; it has to be a multiple of 4 bytes")
        sizes = [self.weights_offset + FLOAT_BYTES * self.weights_count]
        if biases_shape is not None:
            sizes.append(self.biases_offset + FLOAT_BYTES * self.biases_count)
        given = [buffer for buffer in buffers or () if buffer is not None]
        for buffer, size, name in zip(given, sizes, ("weights", "biases"), strict=False):
            if buffer.nbytes < size:
                raise GeometryError(f"{owner}: the buffer of {name} has {buffer.nbytes} bytes but {size} are needed")
        super().__init__(sizes, given[0].device if given else device, command_buffer=command_buffer, label=label)
        if given:
            self._buffers = list(given)

    # objc: -initWithDevice:cnnConvolutionDescriptor:
    @classmethod
    def with_descriptor(
        cls, descriptor: ConvolutionDescriptor, device: Device | None = None, *, label: str | None = None
    ) -> ConvolutionWeightsAndBiasesState:
        """Room for the weights and biases of a convolution; zero until they are written."""
        require_descriptor(cls.__name__, descriptor)
        return cls(descriptor.weights_shape, (descriptor.output_feature_channels,), device, label=label)

    # objc: +temporaryCNNConvolutionWeightsAndBiasesStateWithCommandBuffer:cnnConvolutionDescriptor:
    @classmethod
    def temporary(
        cls, command_buffer: CommandBuffer, descriptor: ConvolutionDescriptor
    ) -> ConvolutionWeightsAndBiasesState:
        """The same as a temporary state of ``command_buffer``."""
        require_descriptor(cls.__name__, descriptor)
        return cls(descriptor.weights_shape, (descriptor.output_feature_channels,), command_buffer=command_buffer)

    # objc: -initWithWeights:biases:
    # objc: -initWithWeights:weightsOffset:biases:biasesOffset:cnnConvolutionDescriptor:
    @classmethod
    def with_buffers(
        cls,
        weights: Buffer,
        biases: Buffer | None = None,
        *,
        weights_offset: int = 0,
        biases_offset: int = 0,
        descriptor: ConvolutionDescriptor | None = None,
    ) -> ConvolutionWeightsAndBiasesState:
        """A state over existing buffers; offsets are in bytes, multiples of 4.

        Without ``descriptor`` the buffers are exactly as large as their contents, and ``weights`` reads as one row.
        """
        for name, buffer in (("weights", weights), ("biases", biases)):
            if not isinstance(buffer, Buffer) and (buffer is not None or name == "weights"):
                kind = type(buffer).__name__
                raise FormatError(f"{cls.__name__}: {name} is {kind}; it has to be a Buffer (from_arrays takes arrays)")
        if descriptor is not None:
            require_descriptor(cls.__name__, descriptor)
            shapes: tuple[Any, Any] = (descriptor.weights_shape, (descriptor.output_feature_channels,))
        else:
            shapes = (
                ((weights.nbytes - weights_offset) // FLOAT_BYTES,),
                None if biases is None else ((biases.nbytes - biases_offset) // FLOAT_BYTES,),
            )
        return cls(
            shapes[0],
            None if biases is None else shapes[1],
            buffers=(weights, biases),
            weights_offset=weights_offset,
            biases_offset=biases_offset,
        )

    @classmethod
    def from_arrays(
        cls, weights: np.ndarray, biases: np.ndarray | None = None, device: Device | None = None
    ) -> ConvolutionWeightsAndBiasesState:
        """A state with a copy of the arrays, converted to float32."""
        state = cls(np.shape(weights), None if biases is None else np.shape(biases), device)
        for index, values in enumerate((weights, biases)):
            if values is not None:
                state._room(index)
                state._write(index, values)
        return state

    def with_biases(self, biases: np.ndarray) -> ConvolutionWeightsAndBiasesState:
        """A state over the same weights, with a copy of ``biases``, float32, in place of its own."""
        buffer = self.device.allocate(biases.nbytes)
        buffer.write(biases)
        return type(self)(self._shapes[0], biases.shape, buffers=(self.resource(0), buffer))

    def _room(self, index: int) -> Buffer:
        """The buffer at ``index`` for something that will write all of it."""
        return State.resource(self, index)

    # objc: -resourceAtIndex:allocateMemory:
    def resource(self, index: int) -> Buffer:
        """The buffer at ``index``; zeros until something is written."""
        fresh = self._buffers[index] is None
        buffer = super().resource(index)
        if fresh:
            self._clear(index, buffer)
        return buffer

    def _clear(self, index: int, buffer: Buffer) -> None:
        if self.command_buffer is not None:
            fill_buffer_with_zeros(self.command_buffer, buffer, self._sizes[index] // FLOAT_BYTES)
        else:
            buffer.write(np.zeros(self._sizes[index], np.uint8))

    @property
    def parameter_vectors(self) -> tuple[Vector, ...]:
        """Weights and biases as vectors, for optimizers. Raises ``NotImplementedError`` if an offset is not 0."""
        if self.weights_offset or self.biases_offset:
            raise NotImplementedError(
                f"{type(self).__name__}: weights_offset is {self.weights_offset} and biases_offset "
                f"{self.biases_offset}; optimizers take buffers from their start"
            )
        return tuple(
            [
                Vector.of_buffer(self.resource(index), self._sizes[index] // FLOAT_BYTES)
                for index in range(len(self._sizes))
            ]
        )

    @property
    def weights_count(self) -> int:
        """The number of weights."""
        return math.prod(self._shapes[0])

    @property
    def biases_count(self) -> int:
        """The number of biases; 0 if there are none."""
        return 0 if self._shapes[1] is None else math.prod(self._shapes[1])

    @property
    def weights(self) -> np.ndarray:
        """A copy of the weights, in the shape of ``ConvolutionDescriptor.weights_shape``.

        Waits for the kernels that write them; for kernels of your own call ``synchronize`` with their command buffer.
        Raises ``StateError`` for a temporary state and before that command buffer is committed.
        """
        return self._read(0, self.weights_count, self.weights_offset).reshape(self._shapes[0])

    @property
    def biases(self) -> np.ndarray | None:
        """A copy of the biases, or None if there are none."""
        if self._shapes[1] is None:
            return None
        return self._read(1, self.biases_count, self.biases_offset).reshape(self._shapes[1])


class ConvolutionGradientState(SharedGradientState):
    """The gradients for the weights and biases of one batch. Source: ``MPSCNNConvolutionGradientState``.

    Both are float32, zero when the state is made (MPS does not say), and grow with every encode of the gradient kernel:
    they are sums over all images of the batch and over its parts. ``resource(0)`` is the buffer of the gradient for the
    weights in the order of the weights, ``resource(1)`` that for the biases. The next batch needs a new state.
    """

    def __init__(
        self,
        convolution: Convolution,
        snapshot: ForwardSnapshot,
        *,
        command_buffer: CommandBuffer | None = None,
    ) -> None:
        descriptor = convolution.descriptor
        self._shapes = (descriptor.weights_shape, (descriptor.output_feature_channels,))
        sizes = [FLOAT_BYTES * math.prod(shape) for shape in self._shapes]
        super().__init__(snapshot, sizes, convolution.device, command_buffer=command_buffer)
        self.made_by = convolution
        self._sums = Accumulation("gradients for weights and biases")

    @property
    def convolution(self) -> Convolution:
        """The kernel that made the state."""
        return self.made_by

    @property
    def gradient_for_weights_layout(self) -> ConvolutionWeightsLayout:
        """The order of the axes of ``gradient_for_weights``."""
        return ConvolutionWeightsLayout.OHWI

    @property
    def gradient_for_weights(self) -> np.ndarray:
        """``dw[o][ky][kx][c] = sum over images and windows of g[o] * x[tap][c]``: a copy, in the shape of the weights.

        Waits for the command buffers that write it. Raises ``StateError`` for a temporary state and before they are
        committed.
        """
        return self._gradient(0)

    @property
    def gradient_for_biases(self) -> np.ndarray:
        """``db[o] = sum over images and pixels of g[o]``, [output channels]: a copy."""
        return self._gradient(1)

    def _gradient(self, index: int) -> np.ndarray:
        return self._read(index, self._sizes[index] // FLOAT_BYTES).reshape(self._shapes[index])

    @property
    def gradient_vectors(self) -> tuple[Vector, Vector]:
        """The two gradients as vectors, for optimizers. Raises ``StateError`` before they were encoded."""
        if not self.has_gradients:
            raise StateError(f"{type(self).__name__}: no gradients yet; encode its gradient kernel first")
        weights, biases = (State.resource(self, index) for index in (0, 1))
        return (
            Vector.of_buffer(weights, self._sizes[0] // FLOAT_BYTES),
            Vector.of_buffer(biases, self._sizes[1] // FLOAT_BYTES),
        )

    def _require_gradients(self, owner: str, command_buffer: CommandBuffer) -> None:
        self._sums.require_ordered(owner, command_buffer)

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        made_by = self.made_by
        return (self.snapshot, made_by._geometry_token, made_by is kernel, self.has_gradients)

    @property
    def has_gradients(self) -> bool:
        """Whether a gradient kernel has been encoded into the state."""
        return self._sums.pixels > 0

    # objc: -resourceAtIndex:allocateMemory:
    def resource(self, index: int) -> Buffer:
        """The buffer at ``index``; zeros as long as no gradient kernel was encoded."""
        buffer = super().resource(index)
        if not self.has_gradients:
            if self.command_buffer is not None:
                fill_buffer_with_zeros(self.command_buffer, buffer, self._sizes[index] // FLOAT_BYTES)
            else:
                buffer.write(np.zeros(self._sizes[index], np.uint8))
        return buffer

    def require_receptive(self, owner: str, command_buffer: CommandBuffer) -> None:
        """Raises ``StateError`` if another command buffer that is not committed yet writes the gradients."""
        self._sums.require_ordered(owner, command_buffer)

    @property
    def accumulators(self) -> tuple[Buffer, Buffer]:
        """The two buffers for a gradient kernel to write, or to add to if the state ``has_gradients``."""
        return State.resource(self, 0), State.resource(self, 1)

    def _encode_buffer(self, name: Any, command_buffer: CommandBuffer) -> Buffer:
        return State.resource(self, name)

    def add_gradients(self, command_buffer: CommandBuffer, pixels: int) -> None:
        """Notes that ``command_buffer`` writes the gradients of ``pixels`` pixels to the accumulators."""
        self._sums.add(command_buffer, pixels)
        self._written_by(command_buffer)
