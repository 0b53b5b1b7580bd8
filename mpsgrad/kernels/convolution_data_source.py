"""Where the weights and biases of a convolution come from."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad.archive import archivable
from mpsgrad.checked_attribute import text_or_none
from mpsgrad.data_type import DataType, require_unmasked
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import integers
from mpsgrad.kernels.convolution_descriptor import (
    ConvolutionDescriptor,
    DepthWiseConvolutionDescriptor,
    require_descriptor,
)
from mpsgrad.kernels.convolution_quantization import dequantized
from mpsgrad.kernels.data_source_members import require_members
from mpsgrad.kernels.neuron_descriptor import NeuronDescriptor

if TYPE_CHECKING:
    from mpsgrad.command import CommandBuffer
    from mpsgrad.kernels.convolution_state import ConvolutionGradientState, ConvolutionWeightsAndBiasesState


class ConvolutionDataSource:
    """The protocol of a data source: subclass it, or offer the same attributes.

    A kernel calls ``load``, reads the attributes, and calls ``purge``, when it is made and at each
    ``reload_weights_and_biases_from_data_source``; nothing else is read outside these two calls. The kernel copies what
    it reads. ``from_arrays`` makes a data source of two arrays. Source: ``MPSCNNConvolutionDataSource``.

    A data source may also have ``kernel_weights_data_type``: with FLOAT16 weights are rounded to float16 when they are
    loaded, as MPS does by default; here the default is FLOAT32. Weights of a ``weights_and_biases_state``, and those of
    later reloads, keep their values, but a GPU then multiplies FLOAT16 images by their float16 neighbours, in half the
    time. One with weights of type UINT8, which only forward kernels take, has ``ranges_for_uint8_kernel``, a
    minimum and a maximum for each output channel that stand for 0 and 255, or ``lookup_table_for_uint8_kernel`` of 256
    numbers, and may say in ``weights_quantization_type`` which to use.
    """

    label: str | None = None

    @property
    def data_type(self) -> DataType:
        """FLOAT32, FLOAT16 or UINT8: the dtype of ``weights``."""
        return DataType.FLOAT32

    @property
    def descriptor(self) -> ConvolutionDescriptor:
        """The window and the channels."""
        raise NotImplementedError(f"{type(self).__name__} has to define descriptor")

    @property
    def weights(self) -> np.ndarray:
        """A C-contiguous array of ``descriptor.weights_shape``."""
        raise NotImplementedError(f"{type(self).__name__} has to define weights")

    @property
    def bias_terms(self) -> np.ndarray | None:
        """A float32 array with one value for each output channel, whatever ``data_type`` is; None for no biases."""
        return None

    @property
    def weights_and_biases_state(self) -> ConvolutionWeightsAndBiasesState | None:
        """The same numbers in device memory, for kernels of that device to use as they are; None for copies.

        A graph then gives ``update_with_command_buffer`` this state itself, which the update may overwrite and return:
        nothing is copied. Kernels have to be given it (``reload_weights_and_biases``) after each change. Not in MPS.
        """
        return None

    def load(self) -> bool:
        """Makes the attributes readable. False makes the kernel's construction or reload fail."""
        return True

    def purge(self) -> None:
        """Called once after each ``load``: memory may be given back."""

    # objc: -updateWithCommandBuffer:gradientState:sourceState:
    def update_with_command_buffer(
        self,
        command_buffer: CommandBuffer,
        gradient_state: ConvolutionGradientState,
        source_state: ConvolutionWeightsAndBiasesState,
    ) -> ConvolutionWeightsAndBiasesState | None:
        """Encodes an update on the device and returns the new weights, or None for no update.

        Has to lower the read count of both states by one.
        """
        return None

    # objc: -updateWithGradientState:sourceState:
    def update_with_gradient_state(
        self, gradient_state: ConvolutionGradientState, source_state: ConvolutionWeightsAndBiasesState
    ) -> bool:
        """Updates the data source's own arrays on the CPU; True makes the kernels reload from it."""
        return False

    @staticmethod
    def from_arrays(
        weights: np.ndarray,
        bias_terms: np.ndarray | None = None,
        *,
        stride: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
        groups: int = 1,
        fused_neuron_descriptor: NeuronDescriptor | None = None,
        label: str | None = None,
    ) -> ArrayConvolutionDataSource:
        """A data source that holds ``weights`` and ``bias_terms`` themselves, so that they can be updated in place.

        ``weights`` is [output channels][kernel height][kernel width][input channels / groups], or for a depthwise
        convolution [channels][kernel height][kernel width]; float32 or float16. ``stride`` and ``dilation`` are in
        pixels, ordered (y, x) like the array's axes. Raises ``FormatError`` for an array that is not C-contiguous, of
        native byte order and of these dtypes, ``GeometryError`` for shapes that do not fit.
        """
        owner = "ConvolutionDataSource.from_arrays"
        if not isinstance(weights, np.ndarray):
            raise FormatError(f"{owner}: weights is {type(weights).__name__}; it has to be a NumPy array")
        if weights.ndim not in (3, 4):
            raise GeometryError(
                f"{owner}: weights have shape {weights.shape}; they have to be (output channels, kernel height, kernel "
                "width, input channels / groups), or without the last axis for a depthwise convolution"
            )
        if 0 in weights.shape:
            raise GeometryError(f"{owner}: weights of shape {weights.shape} are empty")
        stride_y, stride_x = integers(owner, "stride", stride, 2, 1)
        dilation_y, dilation_x = integers(owner, "dilation", dilation, 2, 1)
        (groups,) = integers(owner, "groups", (groups,), 1, 1)
        depthwise = weights.ndim == 3
        outputs, height, width = weights.shape[:3]
        kind = DepthWiseConvolutionDescriptor if depthwise else ConvolutionDescriptor
        descriptor = kind(
            width,
            height,
            outputs if depthwise else weights.shape[3] * groups,
            outputs,
            stride_in_pixels_x=stride_x,
            stride_in_pixels_y=stride_y,
            groups=groups,
            dilation_rate_x=dilation_x,
            dilation_rate_y=dilation_y,
            fused_neuron_descriptor=fused_neuron_descriptor,
        )
        return ArrayConvolutionDataSource(descriptor, weights, bias_terms, label=label)


@archivable
class ArrayConvolutionDataSource(ConvolutionDataSource):
    """A data source of two arrays in memory, made by ``ConvolutionDataSource.from_arrays``; it can be archived."""

    def __init__(
        self,
        descriptor: ConvolutionDescriptor,
        weights: np.ndarray,
        bias_terms: np.ndarray | None = None,
        *,
        label: str | None = None,
    ) -> None:
        owner = "ConvolutionDataSource.from_arrays"
        self._descriptor = require_descriptor(owner, descriptor)
        self._weights = weights
        self._bias_terms = bias_terms
        self.label = text_or_none(owner, "label", label)
        if self.data_type == DataType.UINT8:
            raise NotImplementedError(f"{owner}: UINT8 weights need ranges or a table: subclass ConvolutionDataSource")
        _check_weights(owner, descriptor, weights, self.data_type)
        _check_biases(owner, descriptor, bias_terms)

    @property
    def data_type(self) -> DataType:
        return {"float16": DataType.FLOAT16, "uint8": DataType.UINT8}.get(self._weights.dtype.name, DataType.FLOAT32)

    @property
    def descriptor(self) -> ConvolutionDescriptor:
        return self._descriptor

    @property
    def weights(self) -> np.ndarray:
        return self._weights

    @property
    def bias_terms(self) -> np.ndarray | None:
        return self._bias_terms

    def archive_fields(self) -> dict[str, Any]:
        """What the data source is rebuilt from."""
        return {
            "descriptor": self._descriptor,
            "weights": self._weights,
            "bias_terms": self._bias_terms,
            "label": self.label,
        }

    def __repr__(self) -> str:
        return f"<ConvolutionDataSource{f' {self.label!r}' if self.label else ''} of {self._descriptor!r}>"


@dataclass(frozen=True)
class LoadedParameters:
    """What one ``load`` gave: copies of the descriptor and of the numbers, float32, batch normalization folded in."""

    descriptor: ConvolutionDescriptor
    weights: np.ndarray
    biases: np.ndarray | None
    is_quantized: bool
    rounds: bool
    """Whether FLOAT16 is precise enough for the weights in a kernel."""
    state: ConvolutionWeightsAndBiasesState | None
    """The same numbers in the data source's device memory, if it has them there."""


_REQUIRED = ("data_type", "descriptor", "weights", "bias_terms", "load", "purge", "label")
_DTYPES: dict[Any, np.dtype] = {
    DataType.FLOAT32: np.dtype(np.float32),
    DataType.FLOAT16: np.dtype(np.float16),
    DataType.UINT8: np.dtype(np.uint8),
}


def load_parameters(owner: str, data_source: Any) -> LoadedParameters:
    """Loads, checks, copies and purges ``data_source``; every ``load`` is followed by a ``purge``, whatever happens.

    Raises ``FormatError`` if it is no data source, ``StateError`` if it cannot load, ``NotImplementedError`` for UINT8
    weights that nothing says how to read, and what ``from_arrays`` raises.
    """
    require_members(owner, data_source, _REQUIRED, "ConvolutionDataSource")
    loaded = data_source.load()
    try:
        if not loaded:
            raise StateError(f"{owner}: the data source {data_source.label!r} could not load (load() gave {loaded!r})")
        descriptor = copy.copy(require_descriptor(owner, data_source.descriptor))
        weights, biases = data_source.weights, data_source.bias_terms
        _check_weights(owner, descriptor, weights, data_source.data_type)
        _check_biases(owner, descriptor, biases)
        is_quantized = data_source.data_type == DataType.UINT8
        copied = dequantized(owner, data_source, weights) if is_quantized else np.array(weights, np.float32)
        rounds = _rounds(owner, data_source)
        shared = getattr(data_source, "weights_and_biases_state", None)
        rounded = copied.astype(np.float16).astype(np.float32) if rounds and shared is None else copied
        folded, shifts = descriptor.fold(rounded, None if biases is None else np.array(biases, np.float32))
        state = shared if folded is copied else None
        return LoadedParameters(descriptor, folded, shifts, is_quantized, rounds, state)
    finally:
        data_source.purge()


def _rounds(owner: str, data_source: Any) -> bool:
    """Whether the data source wants weights in the kernel to be float16."""
    kind = getattr(data_source, "kernel_weights_data_type", None)
    if kind not in (None, DataType.FLOAT32, DataType.FLOAT16):
        raise FormatError(f"{owner}: kernel_weights_data_type is {kind!r}; it has to be FLOAT32 or FLOAT16")
    return kind == DataType.FLOAT16


def _check_weights(owner: str, descriptor: ConvolutionDescriptor, weights: Any, data_type: Any) -> None:
    if data_type not in _DTYPES:
        raise FormatError(f"{owner}: data_type is {data_type!r}; it has to be FLOAT32, FLOAT16 or UINT8")
    _check_array(owner, "weights", weights, descriptor.weights_shape, _DTYPES[data_type])


def _check_biases(owner: str, descriptor: ConvolutionDescriptor, biases: Any) -> None:
    if biases is not None:
        _check_array(owner, "bias_terms", biases, (descriptor.output_feature_channels,), np.dtype(np.float32))


def _check_array(owner: str, name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if not isinstance(array, np.ndarray):
        raise FormatError(f"{owner}: {name} is {type(array).__name__}; it has to be a NumPy array")
    require_unmasked(f"{owner}: {name}", array)
    if array.dtype != dtype or not array.dtype.isnative:
        raise FormatError(f"{owner}: {name} is {array.dtype!r}; it has to be {dtype.name} in native byte order")
    if array.shape != shape:
        raise GeometryError(f"{owner}: {name} has shape {array.shape} but the descriptor asks for {shape}")
    if not array.flags.c_contiguous:
        raise FormatError(f"{owner}: {name} of shape {shape} has strides {array.strides}; it has to be C-contiguous")
