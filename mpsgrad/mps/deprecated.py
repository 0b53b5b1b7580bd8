"""What Apple's headers keep from before neuron descriptors and data sources; deprecated there, and here too."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

import mpsgrad
from mpsgrad.data_type import float_values
from mpsgrad.devices import Device
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.kernels.convolution_data_source import ArrayConvolutionDataSource
from mpsgrad.kernels.convolution_descriptor import require_descriptor
from mpsgrad.kernels.neuron_descriptor import NeuronDescriptor, NeuronType
from mpsgrad.mps.conversion import CopiedDescriptor


class FusedNeuron:
    """The neuron that a convolution applies to its result, as a kernel, or as a type and its parameters."""

    fused_neuron_descriptor: NeuronDescriptor | None

    @property
    def neuron_in_use(self) -> NeuronDescriptor:
        """The descriptor of the neuron; of type NONE if there is none."""
        return self.fused_neuron_descriptor or NeuronDescriptor(NeuronType.NONE)

    @property
    def neuron_kernel(self) -> mpsgrad.Neuron | None:
        """A kernel of the neuron, or None if there is none; setting raises ``FormatError`` for anything else."""
        descriptor = self.fused_neuron_descriptor
        return None if descriptor is None else mpsgrad.Neuron(descriptor, device=getattr(self, "device", None))

    @neuron_kernel.setter
    def neuron_kernel(self, neuron: mpsgrad.Neuron | None) -> None:
        self.fused_neuron_descriptor = _descriptor_of(type(self).__name__, neuron)


class DeprecatedDescriptor(CopiedDescriptor, FusedNeuron):
    """What descriptors of convolutions had before ``fusedNeuronDescriptor``, and their copies."""

    @classmethod
    def with_neuron_filter(cls, width: int, height: int, inputs: int, outputs: int, neuron: Any) -> Self:
        """A descriptor of a convolution with the neuron of a kernel, or None. Raises ``FormatError`` for others."""
        return cls(  # type: ignore[call-arg]
            width, height, inputs, outputs, fused_neuron_descriptor=_descriptor_of(cls.__name__, neuron)
        )

    def set_neuron_type(self, neuron_type: NeuronType, a: float, b: float) -> None:
        """Sets the neuron; raises what making a ``NeuronDescriptor`` raises."""
        self.fused_neuron_descriptor = NeuronDescriptor(neuron_type, a, b)

    def set_neuron_to_prelu(self, slopes: Any) -> None:
        """Sets a PRELU of ``slopes``, an array or the bytes of one; raises what making its descriptor raises."""
        self.fused_neuron_descriptor = NeuronDescriptor(NeuronType.PRELU, data=slopes)


class DeprecatedConvolution(FusedNeuron):
    """What convolutions had before data sources."""

    @classmethod
    def with_weights(cls, descriptor: Any, weights: Any, biases: Any, device: Device | None) -> Self:
        """A convolution with copies of arrays, or of the bytes of some, of float32 values.

        Raises ``FormatError`` for other values, ``GeometryError`` for another number than the descriptor asks for, and
        what making the kernel raises.
        """
        require_descriptor(cls.__name__, descriptor)
        shape, outputs = descriptor.weights_shape, (descriptor.output_feature_channels,)
        arrays = [_floats(cls.__name__, "kernelWeights", weights, shape)]
        if biases is not None:
            arrays.append(_floats(cls.__name__, "biasTerms", biases, outputs))
        return cls(ArrayConvolutionDataSource(descriptor, *arrays), device=device)  # type: ignore[call-arg]


def _descriptor_of(owner: str, neuron: Any) -> NeuronDescriptor | None:
    if neuron is not None and not isinstance(neuron, mpsgrad.Neuron):
        raise FormatError(f"{owner}: neuron is {type(neuron).__name__}; it has to be an MPSCNNNeuron or None")
    return None if neuron is None else neuron.neuron_descriptor


def _floats(owner: str, argument: str, data: Any, shape: tuple[int, ...]) -> np.ndarray:
    values = float_values(owner, data)
    if values.dtype != np.float32:
        raise FormatError(f"{owner}: {argument} is {values.dtype}; it has to be float32")
    if values.size != np.prod(shape):
        raise GeometryError(f"{owner}: {argument} has {values.size} values but the descriptor asks for {shape}")
    return np.array(values, order="C").reshape(shape)
