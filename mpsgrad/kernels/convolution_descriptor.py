"""What a convolution computes, apart from its numbers: window, channels, groups, and what is fused into it."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.archive import archivable
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import real
from mpsgrad.image_descriptor import LARGEST_ELEMENT_COUNT
from mpsgrad.kernel import IntegerProperty
from mpsgrad.kernels.neuron_descriptor import NeuronDescriptor, NeuronType, require_neuron_descriptor
from mpsgrad.known_attributes import KnownAttributes


@archivable
class ConvolutionDescriptor(KnownAttributes):
    """The window, the channels and the groups of a convolution. Source: ``MPSCNNConvolutionDescriptor``.

    Sizes, strides and dilation rates are in pixels; any size from 1 on is allowed, even ones too. Both channel counts
    have to be divisible by ``groups``; the channels per group may be any number (MPS wants a multiple of 4).

    ``fused_neuron_descriptor`` is a neuron applied to the result of the forward kernel; the gradient kernel refuses it.
    None and a neuron of type NONE mean the same. Raises ``FormatError`` and ``GeometryError`` for arguments of another
    kind and for those that do not fit each other; what is set later is held against the rest when a kernel is made.
    """

    kernel_width = IntegerProperty(3, "Taps along x.", minimum=1)
    kernel_height = IntegerProperty(3, "Taps along y.", minimum=1)
    input_feature_channels = IntegerProperty(1, "Channels of the source.", minimum=1)
    output_feature_channels = IntegerProperty(1, "Channels of the result.", minimum=1)
    stride_in_pixels_x = IntegerProperty(1, "Source pixels between neighbouring windows along x.", minimum=1)
    stride_in_pixels_y = IntegerProperty(1, "The same along y.", minimum=1)
    groups = IntegerProperty(1, "Into how many independent convolutions the channels are divided.", minimum=1)
    dilation_rate_x = IntegerProperty(1, "Source pixels between neighbouring taps along x.", minimum=1)
    dilation_rate_y = IntegerProperty(1, "The same along y.", minimum=1)

    # objc: +cnnConvolutionDescriptorWithKernelWidth:kernelHeight:inputFeatureChannels:outputFeatureChannels:
    def __init__(
        self,
        kernel_width: int,
        kernel_height: int,
        input_feature_channels: int,
        output_feature_channels: int,
        *,
        stride_in_pixels_x: int = 1,
        stride_in_pixels_y: int = 1,
        groups: int = 1,
        dilation_rate_x: int = 1,
        dilation_rate_y: int = 1,
        fused_neuron_descriptor: NeuronDescriptor | None = None,
        batch_normalization_parameters: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float] | None = None,
    ) -> None:
        self._values: dict[str, Any] = {}
        self.kernel_width = kernel_width
        self.kernel_height = kernel_height
        self.input_feature_channels = input_feature_channels
        self.output_feature_channels = output_feature_channels
        self.stride_in_pixels_x = stride_in_pixels_x
        self.stride_in_pixels_y = stride_in_pixels_y
        self.groups = groups
        self.dilation_rate_x = dilation_rate_x
        self.dilation_rate_y = dilation_rate_y
        self.fused_neuron_descriptor = fused_neuron_descriptor
        self.batch_normalization_parameters: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float] | None = None
        if batch_normalization_parameters is not None:
            self.set_batch_normalization_parameters_for_inference(*batch_normalization_parameters)
        self.validate(type(self).__name__)

    def _configure(self, **values: Any) -> None:
        """Sets checked properties; a copy of the descriptor keeps its own."""
        self._values = {**self._values, **values}

    @property
    def fused_neuron_descriptor(self) -> NeuronDescriptor | None:
        """The neuron applied to the result, or None. Setting raises ``FormatError`` for anything else."""
        return self._fused_neuron_descriptor

    @fused_neuron_descriptor.setter
    def fused_neuron_descriptor(self, descriptor: NeuronDescriptor | None) -> None:
        if descriptor is not None:
            require_neuron_descriptor(type(self).__name__, "fused_neuron_descriptor", descriptor)
            if descriptor.neuron_type is NeuronType.NONE:
                descriptor = None
        self._fused_neuron_descriptor = descriptor

    # objc: -setBatchNormalizationParametersForInferenceWithMean:variance:gamma:beta:epsilon:
    def set_batch_normalization_parameters_for_inference(
        self, mean: Any, variance: Any, gamma: Any, beta: Any, epsilon: float
    ) -> None:
        """Folds a batch normalization with fixed statistics into the weights, in front of the fused neuron.

        With ``I = gamma / sqrt(variance + epsilon)`` for each output channel the kernel uses the weights ``w * I`` and
        the biases ``b * I + beta - I * mean``. The four arrays have ``output_feature_channels`` values; None stands for
        0, 1, 1 and 0. Raises ``FormatError`` for what is no array of numbers, and ``GeometryError`` for other lengths
        and where ``variance + epsilon`` is not positive.
        """
        owner, count = type(self).__name__, self.output_feature_channels
        arrays = []
        given = {"mean": (mean, 0), "variance": (variance, 1), "gamma": (gamma, 1), "beta": (beta, 0)}
        for name, (values, default) in given.items():
            try:
                array = np.full(count, default, np.float32) if values is None else np.array(values, np.float32)
            except (TypeError, ValueError):
                raise FormatError(
                    f"{owner}: {name} is {type(values).__name__}; it has to be an array of {count} numbers"
                ) from None
            if array.shape != (count,):
                raise GeometryError(
                    f"{owner}: {name} has shape {array.shape} but there are {count} output feature channels"
                )
            arrays.append(array)
        epsilon = real(owner, "epsilon", epsilon, 0.0)
        if not (arrays[1] + epsilon > 0).all():
            raise GeometryError(
                f"{owner}: variance is {arrays[1].min()} with epsilon {epsilon}; their sum has to be positive"
            )
        self.batch_normalization_parameters = (*arrays, epsilon)  # type: ignore[assignment]

    sub_pixel_scale_factor: Any = 1

    @property
    def channel_multiplier(self) -> int:
        """0: an ordinary convolution."""
        return 0

    @property
    def weights_shape(self) -> tuple[int, ...]:
        """The shape of the weights: [output channels][kernel height][kernel width][input channels / groups]."""
        return (
            self.output_feature_channels,
            self.kernel_height,
            self.kernel_width,
            self.input_feature_channels // self.groups,
        )

    @property
    def geometry(self) -> tuple[int, ...]:
        """Everything that has to be the same for a kernel and its gradient kernel."""
        return (
            self.kernel_width,
            self.kernel_height,
            self.stride_in_pixels_x,
            self.stride_in_pixels_y,
            self.dilation_rate_x,
            self.dilation_rate_y,
            self.input_feature_channels,
            self.output_feature_channels,
            self.groups,
            self.channel_multiplier,
        )

    def validate(self, owner: str) -> None:
        """Raises ``GeometryError`` if the properties do not fit each other."""
        for name in ("input_feature_channels", "output_feature_channels"):
            count = getattr(self, name)
            if count % self.groups:
                raise GeometryError(f"{owner}: {name} is {count}, which is not divisible into groups = {self.groups}")
        if self.fused_neuron_descriptor is not None:
            self.fused_neuron_descriptor.require_channels(owner, self.output_feature_channels)
        count = int(np.prod(self.weights_shape, dtype=object))
        if count > LARGEST_ELEMENT_COUNT:
            raise GeometryError(
                f"{owner}: weights of shape {self.weights_shape} have {count} elements; the largest array has "
                f"{LARGEST_ELEMENT_COUNT}"
            )

    def fold(self, weights: np.ndarray, biases: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        """``weights`` and ``biases`` with the batch normalization folded in, if one was set."""
        if self.batch_normalization_parameters is None:
            return weights, biases
        mean, variance, gamma, beta, epsilon = self.batch_normalization_parameters
        if len(mean) != len(weights):
            raise GeometryError(
                f"{type(self).__name__}: the batch normalization has {len(mean)} channels but there are {len(weights)} "
                "output feature channels"
            )
        scale = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
        folded = weights * scale.reshape(-1, *[1] * (weights.ndim - 1))
        shift = (0.0 if biases is None else biases * scale) + (beta - scale * mean)
        return folded.astype(np.float32), shift.astype(np.float32)

    def archive_fields(self) -> dict[str, Any]:
        """What the descriptor is rebuilt from."""
        return {
            "kernel_width": self.kernel_width,
            "kernel_height": self.kernel_height,
            "input_feature_channels": self.input_feature_channels,
            "output_feature_channels": self.output_feature_channels,
            "stride_in_pixels_x": self.stride_in_pixels_x,
            "stride_in_pixels_y": self.stride_in_pixels_y,
            "groups": self.groups,
            "dilation_rate_x": self.dilation_rate_x,
            "dilation_rate_y": self.dilation_rate_y,
            "fused_neuron_descriptor": self.fused_neuron_descriptor,
            "batch_normalization_parameters": self.batch_normalization_parameters,
        }

    def __repr__(self) -> str:
        parts = [
            f"{self.kernel_width}x{self.kernel_height}",
            f"{self.input_feature_channels} to {self.output_feature_channels} channels",
            f"stride {self.stride_in_pixels_x}x{self.stride_in_pixels_y}",
            f"dilation {self.dilation_rate_x}x{self.dilation_rate_y}",
            f"{self.groups} groups",
        ]
        trivial = {"stride 1x1", "dilation 1x1", "1 groups"}
        return f"<{type(self).__name__} {', '.join(part for part in parts if part not in trivial)}>"


@archivable
class DepthWiseConvolutionDescriptor(ConvolutionDescriptor):
    """One window for each channel: ``y[c] = x[c] * w[c]``. Source: ``MPSCNNDepthWiseConvolutionDescriptor``.

    Weights are [channels][kernel height][kernel width]. As in MPS the channel multiplier is 1, so input and output have
    the same number of channels, and ``groups`` stays 1.
    """

    @property
    def channel_multiplier(self) -> int:
        """Output channels for each input channel: 1."""
        return 1

    @property
    def weights_shape(self) -> tuple[int, ...]:
        """[channels][kernel height][kernel width]."""
        return self.output_feature_channels, self.kernel_height, self.kernel_width

    def validate(self, owner: str) -> None:
        """Raises ``GeometryError`` for groups and ``NotImplementedError`` for a channel multiplier other than 1."""
        if self.groups != 1:
            raise GeometryError(f"{owner}: groups is {self.groups}; a depthwise convolution has groups = 1")
        if self.output_feature_channels != self.input_feature_channels:
            raise NotImplementedError(
                f"{owner}: output_feature_channels is {self.output_feature_channels} and input_feature_channels "
                f"{self.input_feature_channels}; only a channel multiplier of 1 is supported"
            )
        super().validate(owner)


@archivable
class SubPixelConvolutionDescriptor(ConvolutionDescriptor):
    """A convolution whose channels become blocks of pixels. Source: ``MPSCNNSubPixelConvolutionDescriptor``.

    With ``r = sub_pixel_scale_factor`` the result is r times as wide and high and has ``output_feature_channels / r^2``
    channels: pixel ``(x, y)`` has channels ``(output_feature_channels / r^2) * (r * (y % r) + x % r) + c`` of the
    convolution's pixel ``(x / r, y / r)``. That is not the order of PyTorch's ``pixel_shuffle``. Forward only.
    """

    sub_pixel_scale_factor = IntegerProperty(1, "How many times as wide and high the result is.", minimum=1)

    def __init__(self, *arguments: Any, sub_pixel_scale_factor: int = 1, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.sub_pixel_scale_factor = sub_pixel_scale_factor

    def validate(self, owner: str) -> None:
        """Raises ``GeometryError`` unless the output channels fill the blocks, ``NotImplementedError`` for PReLU."""
        factor, count = self.sub_pixel_scale_factor, self.output_feature_channels
        if count % factor**2:
            raise GeometryError(
                f"{owner}: output_feature_channels is {count}; with sub_pixel_scale_factor {factor} it has to be a "
                f"multiple of {factor**2}"
            )
        neuron = self.fused_neuron_descriptor
        if factor > 1 and neuron is not None and neuron.neuron_type is NeuronType.PRELU:
            raise NotImplementedError(f"{owner}: a fused PRELU with sub_pixel_scale_factor {factor}")
        super().validate(owner)

    @property
    def geometry(self) -> tuple[int, ...]:
        """Everything that has to be the same for a kernel and its gradient kernel."""
        return (*super().geometry, self.sub_pixel_scale_factor)

    def archive_fields(self) -> dict[str, Any]:
        """What the descriptor is rebuilt from."""
        return {**super().archive_fields(), "sub_pixel_scale_factor": self.sub_pixel_scale_factor}


def require_descriptor(owner: str, value: Any) -> ConvolutionDescriptor:
    """``value`` if it is a valid descriptor; raises ``FormatError`` or ``GeometryError`` otherwise."""
    if not isinstance(value, ConvolutionDescriptor):
        raise FormatError(f"{owner}: descriptor is {value!r}; it has to be a ConvolutionDescriptor")
    value.validate(owner)
    return value
