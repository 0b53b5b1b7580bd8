"""One call for each op and each gradient: NumPy arrays in, NumPy arrays out.

Arrays are images x height x width x channels (or height x width x channels), float32 or float16, in any memory order;
results have the input's dtype, parameter gradients are float32. Windows take

* ``kernel``, ``stride``, ``dilation``: one integer, or a pair (y, x);
* ``padding``: ``"same"`` (the default: the remainder goes to the top left), ``"valid"``, ``"full"``, or pixels on each
  side as one integer or a pair (y, x), PyTorch's rule;
* ``edge_mode``: ``"zero"`` or ``"clamp"``, what lies outside the source.

Gradients take the gradient with respect to the forward result first. Errors are those of the kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import EdgeMode, Offset, Origin, Region, Size
from mpsgrad.image import Image
from mpsgrad.kernel import BaseKernel, GradientKernel, Kernel
from mpsgrad.kernels.arithmetic import (
    Add,
    AddGradient,
    Arithmetic,
    ArithmeticGradient,
    Compare,
    ComparisonType,
    Divide,
    DivideGradient,
    Multiply,
    MultiplyGradient,
    Subtract,
    SubtractGradient,
)
from mpsgrad.kernels.batch_normalization import (
    BatchNormalization,
    BatchNormalizationGradient,
    BatchNormalizationStatistics,
    BatchNormalizationStatisticsGradient,
)
from mpsgrad.kernels.batch_normalization_data_source import BatchNormalizationDataSource
from mpsgrad.kernels.convolution import Convolution, ConvolutionGradient, FullyConnected, FullyConnectedGradient
from mpsgrad.kernels.convolution_data_source import ArrayConvolutionDataSource, ConvolutionDataSource
from mpsgrad.kernels.convolution_descriptor import SubPixelConvolutionDescriptor
from mpsgrad.kernels.convolution_transpose import ConvolutionTranspose, ConvolutionTransposeGradient
from mpsgrad.kernels.copies import (
    Concatenation,
    ConcatenationGradient,
    Reshape,
    ReshapeGradient,
    Slice,
    SliceGradient,
)
from mpsgrad.kernels.crop_and_resize import CropAndResizeBilinear, CropAndResizeBilinearGradient
from mpsgrad.kernels.dropout import Dropout, DropoutGradient
from mpsgrad.kernels.forward_loss import LossGradient
from mpsgrad.kernels.gram_matrix import GramMatrixCalculation, GramMatrixCalculationGradient
from mpsgrad.kernels.group_normalization import (
    GroupNormalization,
    GroupNormalizationGradient,
    InstanceNormalization,
    InstanceNormalizationGradient,
)
from mpsgrad.kernels.group_normalization_data_source import (
    GroupNormalizationDataSource,
    InstanceNormalizationDataSource,
)
from mpsgrad.kernels.loss import Loss, LossKernel
from mpsgrad.kernels.loss_descriptor import LossDescriptor, LossReductionType, LossType
from mpsgrad.kernels.loss_labels import LossLabels
from mpsgrad.kernels.neuron import Neuron, NeuronGradient
from mpsgrad.kernels.neuron_descriptor import NeuronDescriptor, NeuronType
from mpsgrad.kernels.pad import Pad, PadGradient
from mpsgrad.kernels.pooling import (
    DilatedPoolingMax,
    DilatedPoolingMaxGradient,
    PoolingAverage,
    PoolingAverageGradient,
    PoolingL2Norm,
    PoolingL2NormGradient,
)
from mpsgrad.kernels.reduction import ReduceGradient, ReduceUnary
from mpsgrad.kernels.response_normalization import (
    CrossChannelNormalization,
    CrossChannelNormalizationGradient,
    LocalContrastNormalization,
    LocalContrastNormalizationGradient,
    SpatialNormalization,
    SpatialNormalizationGradient,
)
from mpsgrad.kernels.soft_max import LogSoftMax, LogSoftMaxGradient, SoftMax, SoftMaxGradient
from mpsgrad.kernels.upsampling import (
    ResizeBilinear,
    ResizeBilinearGradient,
    UpsamplingBilinear,
    UpsamplingBilinearGradient,
    UpsamplingNearest,
    UpsamplingNearestGradient,
)
from mpsgrad.kernels.weighted_reduction import (
    ReduceFeatureChannelsAndWeightsGradient,
    ReduceFeatureChannelsAndWeightsMean,
    ReduceFeatureChannelsAndWeightsSum,
)
from mpsgrad.kernels.yolo_loss import YOLOLoss, YOLOLossDescriptor
from mpsgrad.padding import DefaultPadding, ExplicitPadding, Padding, PaddingMethod

Pair = int | tuple[int, int]

_SIZES = {
    "same": PaddingMethod.SIZE_SAME,
    "valid": PaddingMethod.SIZE_VALID_ONLY,
    "full": PaddingMethod.SIZE_FULL,
}


def _pair(name: str, value: Pair) -> tuple[int, int]:
    if isinstance(value, (int, np.integer)):
        return value, value
    try:
        y, x = value
    except (TypeError, ValueError):
        raise FormatError(f"{name} is {value!r}; it has to be an integer or a pair (y, x)") from None
    return y, x


def _padding(value: str | Pair | Padding) -> Padding:
    if isinstance(value, str):
        if value not in _SIZES:
            raise FormatError(f"padding is {value!r}; it has to be 'same', 'valid', 'full', or pixels")
        return DefaultPadding(_SIZES[value])
    if isinstance(value, (int, np.integer, tuple)):
        y, x = _pair("padding", value)
        return ExplicitPadding(x=x, y=y)
    return value


def _edge_mode(value: str | EdgeMode) -> EdgeMode:
    if isinstance(value, str):
        if value.upper() not in ("ZERO", "CLAMP"):
            raise FormatError(f"edge_mode is {value!r}; it has to be 'zero' or 'clamp'")
        return EdgeMode[value.upper()]
    return value


def _image(array: Any) -> Image:
    return Image.from_array(np.ascontiguousarray(array))


def _channels(name: str, array: Any) -> int:
    shape = np.shape(array)
    if len(shape) not in (3, 4):
        raise GeometryError(
            f"{name} has shape {shape}; it has to be (images, height, width, channels) or (height, width, channels)"
        )
    return shape[-1]


def _like(image: Image, array: Any) -> np.ndarray:
    values = np.array(image)
    return values[0] if np.ndim(array) == 3 else values


def _forward(kernel: Kernel, source: Any) -> np.ndarray:
    with CommandBuffer() as commands:
        result = kernel.encode(commands, _image(source))
    return _like(result, source)


def _gradient(forward: Kernel, gradient: GradientKernel, source_gradient: Any, source: Any) -> tuple[np.ndarray, Any]:
    """The gradient's result and the state, made without running the forward kernel."""
    image = _image(source)
    destination = Image(forward.destination_image_descriptor([image]))
    state = forward.result_state(image, destination_image=destination)
    with CommandBuffer() as commands:
        result = gradient.encode(commands, _image(source_gradient), image, state)
    return _like(result, source), state


def _window(kernel: Pair, stride: Pair) -> dict[str, Any]:
    (height, width), (stride_y, stride_x) = _pair("kernel", kernel), _pair("stride", stride)
    return {
        "kernel_width": width,
        "kernel_height": height,
        "stride_in_pixels_x": stride_x,
        "stride_in_pixels_y": stride_y,
    }


def _dilated(kernel: Pair, stride: Pair, dilation: Pair) -> dict[str, Any]:
    y, x = _pair("dilation", dilation)
    return {**_window(kernel, stride), "dilation_rate_x": x, "dilation_rate_y": y}


def _with_edges(kernel: Any, padding: str | Pair | Padding, edge_mode: str | EdgeMode) -> Any:
    kernel.padding = _padding(padding)
    kernel.edge_mode = _edge_mode(edge_mode)
    return kernel


def pooling_max(
    source: Any,
    *,
    kernel: Pair,
    stride: Pair = 1,
    dilation: Pair = 1,
    padding: str | Pair | Padding = "same",
    edge_mode: str | EdgeMode = "zero",
) -> np.ndarray:
    """The largest value of each window (``PoolingMax``, ``DilatedPoolingMax``)."""
    window = _dilated(kernel, stride, dilation)
    return _forward(_with_edges(DilatedPoolingMax(**window), padding, edge_mode), source)


def pooling_max_gradient(
    source_gradient: Any,
    source: Any,
    *,
    kernel: Pair,
    stride: Pair = 1,
    dilation: Pair = 1,
    padding: str | Pair | Padding = "same",
    edge_mode: str | EdgeMode = "zero",
) -> np.ndarray:
    """Each window's gradient at its first maximum in row-major order (``PoolingMaxGradient``)."""
    window = _dilated(kernel, stride, dilation)
    forward = _with_edges(DilatedPoolingMax(**window), padding, edge_mode)
    return _gradient(forward, DilatedPoolingMaxGradient(**window), source_gradient, source)[0]


def _average(kernel: Pair, stride: Pair, padding: Any, edge_mode: Any, zero_pad_size: Pair) -> PoolingAverage:
    forward = _with_edges(PoolingAverage(**_window(kernel, stride)), padding, edge_mode)
    forward.zero_pad_size_y, forward.zero_pad_size_x = _pair("zero_pad_size", zero_pad_size)
    return forward


def pooling_average(
    source: Any,
    *,
    kernel: Pair,
    stride: Pair = 1,
    padding: str | Pair | Padding = "same",
    edge_mode: str | EdgeMode = "zero",
    zero_pad_size: Pair = 0,
) -> np.ndarray:
    """The mean of each window; with ``edge_mode="clamp"`` of its part inside the image (``PoolingAverage``)."""
    return _forward(_average(kernel, stride, padding, edge_mode, zero_pad_size), source)


def pooling_average_gradient(
    source_gradient: Any,
    source: Any,
    *,
    kernel: Pair,
    stride: Pair = 1,
    padding: str | Pair | Padding = "same",
    edge_mode: str | EdgeMode = "zero",
    zero_pad_size: Pair = 0,
) -> np.ndarray:
    """Each window's gradient shared out over its pixels (``PoolingAverageGradient``)."""
    forward = _average(kernel, stride, padding, edge_mode, zero_pad_size)
    return _gradient(forward, PoolingAverageGradient(**_window(kernel, stride)), source_gradient, source)[0]


def pooling_l2_norm(
    source: Any,
    *,
    kernel: Pair,
    stride: Pair = 1,
    padding: str | Pair | Padding = "same",
    edge_mode: str | EdgeMode = "zero",
) -> np.ndarray:
    """The square root of the sum of squares of each window (``PoolingL2Norm``)."""
    return _forward(_with_edges(PoolingL2Norm(**_window(kernel, stride)), padding, edge_mode), source)


def pooling_l2_norm_gradient(
    source_gradient: Any,
    source: Any,
    *,
    kernel: Pair,
    stride: Pair = 1,
    padding: str | Pair | Padding = "same",
    edge_mode: str | EdgeMode = "zero",
) -> np.ndarray:
    """``g * x / y`` for each window, 0 where the norm ``y`` is 0 (``PoolingL2NormGradient``)."""
    window = _window(kernel, stride)
    forward = _with_edges(PoolingL2Norm(**window), padding, edge_mode)
    return _gradient(forward, PoolingL2NormGradient(**window), source_gradient, source)[0]


def _convolution_data_source(
    source: Any, weights: Any, biases: Any, stride: Pair, dilation: Pair, groups: int
) -> ConvolutionDataSource:
    channels = _channels("source", source)
    if np.ndim(weights) == 4 and channels != np.shape(weights)[3] * groups:
        raise GeometryError(
            f"source has {channels} feature channels but weights of shape {np.shape(weights)} in {groups} groups take "
            f"{np.shape(weights)[3] * groups}"
        )
    return ConvolutionDataSource.from_arrays(
        np.ascontiguousarray(weights),
        None if biases is None else np.ascontiguousarray(biases),
        stride=_pair("stride", stride),
        dilation=_pair("dilation", dilation),
        groups=groups,
    )


def convolution(
    source: Any,
    weights: Any,
    biases: Any = None,
    *,
    stride: Pair = 1,
    dilation: Pair = 1,
    groups: int = 1,
    padding: str | Pair | Padding = "same",
    edge_mode: str | EdgeMode = "zero",
) -> np.ndarray:
    """Cross-correlation with ``weights`` [O][kH][kW][I/groups] plus ``biases`` [O], float32 (``Convolution``)."""
    data_source = _convolution_data_source(source, weights, biases, stride, dilation, groups)
    return _forward(_with_edges(Convolution(data_source), padding, edge_mode), source)


def convolution_gradient(
    source_gradient: Any,
    source: Any,
    weights: Any,
    *,
    stride: Pair = 1,
    dilation: Pair = 1,
    groups: int = 1,
    padding: str | Pair | Padding = "same",
    edge_mode: str | EdgeMode = "zero",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients with respect to source, weights and biases; the last two summed over the batch
    (``ConvolutionGradient``)."""
    data_source = _convolution_data_source(source, weights, None, stride, dilation, groups)
    forward = _with_edges(Convolution(data_source), padding, edge_mode)
    result, state = _gradient(forward, ConvolutionGradient(data_source), source_gradient, source)
    return result, np.array(state.gradient_for_weights), np.array(state.gradient_for_biases)


def sub_pixel_convolution(
    source: Any,
    weights: Any,
    biases: Any = None,
    *,
    factor: int,
    stride: Pair = 1,
    dilation: Pair = 1,
    groups: int = 1,
    padding: str | Pair | Padding = "same",
    edge_mode: str | EdgeMode = "zero",
) -> np.ndarray:
    """``convolution`` with its channels spread over blocks of ``factor`` x ``factor`` pixels (``Convolution`` with a
    ``SubPixelConvolutionDescriptor``)."""
    made = _convolution_data_source(source, weights, biases, stride, dilation, groups)
    ordinary = made.descriptor
    descriptor = SubPixelConvolutionDescriptor(
        ordinary.kernel_width,
        ordinary.kernel_height,
        ordinary.input_feature_channels,
        ordinary.output_feature_channels,
        sub_pixel_scale_factor=factor,
        stride_in_pixels_x=ordinary.stride_in_pixels_x,
        stride_in_pixels_y=ordinary.stride_in_pixels_y,
        groups=groups,
        dilation_rate_x=ordinary.dilation_rate_x,
        dilation_rate_y=ordinary.dilation_rate_y,
    )
    data_source = ArrayConvolutionDataSource(descriptor, made.weights, made.bias_terms)
    return _forward(_with_edges(Convolution(data_source), padding, edge_mode), source)


def convolution_transpose(
    source: Any,
    weights: Any,
    biases: Any = None,
    *,
    stride: Pair = 1,
    dilation: Pair = 1,
    groups: int = 1,
    padding: str | Pair | Padding = "same",
) -> np.ndarray:
    """Transposed convolution with ``weights`` [O][kH][kW][I/groups], not turned, plus ``biases`` [O]
    (``ConvolutionTranspose``)."""
    kernel = ConvolutionTranspose(_convolution_data_source(source, weights, biases, stride, dilation, groups))
    kernel.padding = _padding(padding)
    return _forward(kernel, source)


def convolution_transpose_gradient(
    source_gradient: Any,
    source: Any,
    weights: Any,
    *,
    stride: Pair = 1,
    dilation: Pair = 1,
    groups: int = 1,
    padding: str | Pair | Padding = "same",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients with respect to source, weights and biases; the last two summed over the batch
    (``ConvolutionTransposeGradient``)."""
    data_source = _convolution_data_source(source, weights, None, stride, dilation, groups)
    forward = ConvolutionTranspose(data_source)
    forward.padding = _padding(padding)
    result, state = _gradient(forward, ConvolutionTransposeGradient(data_source), source_gradient, source)
    return result, np.array(state.gradient_for_weights), np.array(state.gradient_for_biases)


def fully_connected(source: Any, weights: Any, biases: Any = None) -> np.ndarray:
    """``sum(w[o] * x) + b[o]`` with ``weights`` [O][H][W][C] of the size of the source (``FullyConnected``)."""
    return _forward(FullyConnected(_convolution_data_source(source, weights, biases, 1, 1, 1)), source)


def fully_connected_gradient(
    source_gradient: Any, source: Any, weights: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients with respect to source, weights and biases (``FullyConnectedGradient``)."""
    data_source = _convolution_data_source(source, weights, None, 1, 1, 1)
    forward = FullyConnected(data_source)
    result, state = _gradient(forward, FullyConnectedGradient(data_source), source_gradient, source)
    return result, np.array(state.gradient_for_weights), np.array(state.gradient_for_biases)


def _normalization(source: Any, gamma: Any, beta: Any, epsilon: float, mean: Any = None, variance: Any = None) -> Any:
    channels = _channels("source", source)
    data_source = BatchNormalizationDataSource.from_arrays(
        gamma=np.ones(channels, np.float32) if gamma is None else np.ascontiguousarray(gamma),
        beta=np.zeros(channels, np.float32) if beta is None else np.ascontiguousarray(beta),
        mean=np.zeros(channels, np.float32) if mean is None else np.ascontiguousarray(mean),
        variance=np.ones(channels, np.float32) if variance is None else np.ascontiguousarray(variance),
        epsilon=epsilon,
    )
    return BatchNormalization(data_source)


def batch_normalization(
    source: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    mean: Any = None,
    variance: Any = None,
    epsilon: float = 1e-5,
) -> np.ndarray:
    """``gamma * (x - mean) / sqrt(variance + epsilon) + beta`` for each channel (``BatchNormalization``).

    Without ``mean`` and ``variance`` those of the batch are used (the variance divided by the count). ``gamma`` None is
    1, ``beta`` None is 0.
    """
    if (mean is None) != (variance is None):
        raise FormatError("batch_normalization: mean and variance have to be given both or not at all")
    kernel = _normalization(source, gamma, beta, epsilon, mean, variance)
    if mean is not None:
        return _forward(kernel, source)
    image = _image(source)
    destination = Image(image.descriptor)
    state = kernel.result_state(image, destination_image=destination)
    with CommandBuffer() as commands:
        BatchNormalizationStatistics().encode_batch(commands, image.batch_representation(), state)
        kernel.encode(commands, image, batch_normalization_state=state, destination_image=destination)
    return _like(destination, source)


def batch_normalization_gradient(
    source_gradient: Any, source: Any, gamma: Any = None, beta: Any = None, *, epsilon: float = 1e-5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients with respect to source, gamma and beta, through the batch's own statistics
    (``BatchNormalizationStatisticsGradient``, ``BatchNormalizationGradient``)."""
    kernel = _normalization(source, gamma, beta, epsilon)
    image, incoming = _image(source), _image(source_gradient)
    state = kernel.result_state(image, destination_image=Image(image.descriptor))
    images, gradients = image.batch_representation(), incoming.batch_representation()
    with CommandBuffer() as commands:
        BatchNormalizationStatistics().encode_batch(commands, images, state)
        BatchNormalizationStatisticsGradient().encode_batch(commands, gradients, images, state)
        result = BatchNormalizationGradient().encode(commands, incoming, image, state)
    return _like(result, source), np.array(state.gradient_for_gamma), np.array(state.gradient_for_beta)


def _gamma_and_beta(source: Any, gamma: Any, beta: Any) -> dict[str, Any]:
    channels = _channels("source", source)
    return {
        "gamma": np.ones(channels, np.float32) if gamma is None else np.ascontiguousarray(gamma),
        "beta": np.zeros(channels, np.float32) if beta is None else np.ascontiguousarray(beta),
    }


def _instance_normalization(source: Any, gamma: Any, beta: Any, epsilon: float) -> InstanceNormalization:
    parameters = _gamma_and_beta(source, gamma, beta)
    return InstanceNormalization(InstanceNormalizationDataSource.from_arrays(**parameters, epsilon=epsilon))


def _group_normalization(source: Any, groups: int, gamma: Any, beta: Any, epsilon: float) -> GroupNormalization:
    parameters = _gamma_and_beta(source, gamma, beta)
    return GroupNormalization(GroupNormalizationDataSource.from_arrays(groups, **parameters, epsilon=epsilon))


def _filled_gradient(forward: Any, gradient: Any, source_gradient: Any, source: Any) -> tuple[np.ndarray, Any]:
    """The gradient's result and the state, which the forward kernel has filled."""
    image = _image(source)
    with CommandBuffer() as commands:
        _, state = forward.encode(commands, image, return_state=True)
        result = gradient.encode(commands, _image(source_gradient), image, state)
    return _like(result, source), state


def instance_normalization(source: Any, gamma: Any = None, beta: Any = None, *, epsilon: float = 1e-5) -> np.ndarray:
    """``gamma * (x - mean) / sqrt(variance + epsilon) + beta``, the statistics those of each image and channel
    (``InstanceNormalization``)."""
    return _forward(_instance_normalization(source, gamma, beta, epsilon), source)


def instance_normalization_gradient(
    source_gradient: Any, source: Any, gamma: Any = None, *, epsilon: float = 1e-5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients with respect to source, gamma and beta, the last two summed over the batch
    (``InstanceNormalizationGradient``)."""
    kernel = _instance_normalization(source, gamma, None, epsilon)
    result, state = _filled_gradient(kernel, InstanceNormalizationGradient(), source_gradient, source)
    return result, state.gradient_for_gamma.sum(0), state.gradient_for_beta.sum(0)


def group_normalization(
    source: Any, groups: int, gamma: Any = None, beta: Any = None, *, epsilon: float = 1e-5
) -> np.ndarray:
    """The same with the statistics of each image and group of channels (``GroupNormalization``)."""
    return _forward(_group_normalization(source, groups, gamma, beta, epsilon), source)


def group_normalization_gradient(
    source_gradient: Any, source: Any, groups: int, gamma: Any = None, *, epsilon: float = 1e-5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients with respect to source, gamma and beta, the last two summed over the batch
    (``GroupNormalizationGradient``)."""
    kernel = _group_normalization(source, groups, gamma, None, epsilon)
    result, state = _filled_gradient(kernel, GroupNormalizationGradient(), source_gradient, source)
    return result, state.gradient_for_gamma.sum(0), state.gradient_for_beta.sum(0)


def dropout(source: Any, keep_probability: float, *, seed: int = 0) -> np.ndarray:
    """``x / keep_probability`` where the mask that ``seed`` draws keeps it, else 0 (``Dropout``)."""
    return _forward(Dropout(keep_probability, seed=seed), source)


def dropout_gradient(source_gradient: Any, keep_probability: float, *, seed: int = 0) -> np.ndarray:
    """``g / keep_probability`` with the same mask (``DropoutGradient``)."""
    forward, gradient = Dropout(keep_probability, seed=seed), DropoutGradient(keep_probability, seed=seed)
    return _filled_gradient(forward, gradient, source_gradient, source_gradient)[0]


def _with_values(kernel: Any, parameters: dict[str, float]) -> Any:
    for name, value in parameters.items():
        if name not in kernel._parameter_names:
            known = ", ".join(kernel._parameter_names)
            raise FormatError(f"{type(kernel).__name__}: there is no {name}; it has {known}")
        setattr(kernel, name, value)
    return kernel


def cross_channel_normalization(source: Any, *, kernel: int = 5, **parameters: float) -> np.ndarray:
    """``x / (delta + alpha / N * sum(x**2)) ** beta`` over ``kernel`` channels (``CrossChannelNormalization``)."""
    return _forward(_with_values(CrossChannelNormalization(kernel), parameters), source)


def cross_channel_normalization_gradient(
    source_gradient: Any, source: Any, *, kernel: int = 5, **parameters: float
) -> np.ndarray:
    """Its gradient (``CrossChannelNormalizationGradient``)."""
    forward, gradient = CrossChannelNormalization(kernel), CrossChannelNormalizationGradient(kernel)
    kernels = _with_values(forward, parameters), _with_values(gradient, parameters)
    return _gradient(*kernels, source_gradient, source)[0]


def spatial_normalization(source: Any, *, kernel: Pair, **parameters: float) -> np.ndarray:
    """The same over a window of pixels of each channel (``SpatialNormalization``)."""
    height, width = _pair("kernel", kernel)
    return _forward(_with_values(SpatialNormalization(kernel_width=width, kernel_height=height), parameters), source)


def spatial_normalization_gradient(
    source_gradient: Any, source: Any, *, kernel: Pair, **parameters: float
) -> np.ndarray:
    """Its gradient (``SpatialNormalizationGradient``)."""
    height, width = _pair("kernel", kernel)
    window: dict[str, Any] = {"kernel_width": width, "kernel_height": height}
    forward = _with_values(SpatialNormalization(**window), parameters)
    gradient = _with_values(SpatialNormalizationGradient(**window), parameters)
    return _gradient(forward, gradient, source_gradient, source)[0]


def local_contrast_normalization(source: Any, *, kernel: Pair, **parameters: float) -> np.ndarray:
    """``pm + ps * (x - p0 * mean) / (delta + alpha * variance) ** beta`` (``LocalContrastNormalization``)."""
    height, width = _pair("kernel", kernel)
    forward = LocalContrastNormalization(kernel_width=width, kernel_height=height)
    return _forward(_with_values(forward, parameters), source)


def local_contrast_normalization_gradient(
    source_gradient: Any, source: Any, *, kernel: Pair, **parameters: float
) -> np.ndarray:
    """Its gradient (``LocalContrastNormalizationGradient``)."""
    height, width = _pair("kernel", kernel)
    window: dict[str, Any] = {"kernel_width": width, "kernel_height": height}
    forward = _with_values(LocalContrastNormalization(**window), parameters)
    gradient = _with_values(LocalContrastNormalizationGradient(**window), parameters)
    return _gradient(forward, gradient, source_gradient, source)[0]


def _factors(factor: Any) -> dict[str, Any]:
    y, x = factor if isinstance(factor, tuple) and len(factor) == 2 else (factor, factor)
    return {"scale_factor_x": x, "scale_factor_y": y}


def upsampling_nearest(source: Any, *, factor: float | tuple[float, float]) -> np.ndarray:
    """``x[floor(o / factor)]``; a pair of factors is (y, x) (``UpsamplingNearest``)."""
    return _forward(UpsamplingNearest(**_factors(factor)), source)


def upsampling_nearest_gradient(
    source_gradient: Any, source: Any, *, factor: float | tuple[float, float]
) -> np.ndarray:
    """The sum over the pixels that were copied from each (``UpsamplingNearestGradient``)."""
    factors = _factors(factor)
    return _gradient(UpsamplingNearest(**factors), UpsamplingNearestGradient(**factors), source_gradient, source)[0]


def upsampling_bilinear(
    source: Any, *, factor: float | tuple[float, float], align_corners: bool = False
) -> np.ndarray:
    """Bilinear interpolation at ``o / factor``, without a shift by half a pixel (``UpsamplingBilinear``)."""
    return _forward(UpsamplingBilinear(**_factors(factor), align_corners=align_corners), source)


def upsampling_bilinear_gradient(
    source_gradient: Any, source: Any, *, factor: float | tuple[float, float], align_corners: bool = False
) -> np.ndarray:
    """Its transpose (``UpsamplingBilinearGradient``)."""
    factors = _factors(factor)
    forward = UpsamplingBilinear(**factors, align_corners=align_corners)
    return _gradient(forward, UpsamplingBilinearGradient(**factors), source_gradient, source)[0]


def resize_bilinear(source: Any, *, size: Pair, align_corners: bool = False) -> np.ndarray:
    """Bilinear interpolation to ``size`` (y, x) (``ResizeBilinear``)."""
    height, width = _pair("size", size)
    kernel = ResizeBilinear(resize_width=width, resize_height=height, align_corners=align_corners)
    return _forward(kernel, source)


def resize_bilinear_gradient(
    source_gradient: Any, source: Any, *, size: Pair, align_corners: bool = False
) -> np.ndarray:
    """Its transpose (``ResizeBilinearGradient``)."""
    height, width = _pair("size", size)
    arguments: dict[str, Any] = {"resize_width": width, "resize_height": height, "align_corners": align_corners}
    return _gradient(ResizeBilinear(**arguments), ResizeBilinearGradient(**arguments), source_gradient, source)[0]


def _crops(size: Pair, regions: Any) -> CropAndResizeBilinear:
    height, width = _pair("size", size)
    return CropAndResizeBilinear(resize_width=width, resize_height=height, regions=regions)


def crop_and_resize(source: Any, regions: Any, *, size: Pair) -> np.ndarray:
    """Each of ``regions``, (x, y, width, height) in parts of the image, resized to ``size`` (y, x), one after the other
    in the channels (``CropAndResizeBilinear``)."""
    return _forward(_crops(size, regions), source)


def crop_and_resize_gradient(source_gradient: Any, source: Any, regions: Any) -> np.ndarray:
    """Each pixel adds up what read it (``CropAndResizeBilinearGradient``)."""
    forward = _crops(np.shape(source_gradient)[-3:-1], regions)
    return _gradient(forward, CropAndResizeBilinearGradient(), source_gradient, source)[0]


def soft_max(source: Any) -> np.ndarray:
    """``exp(x) / sum(exp(x))`` over the channels (``SoftMax``)."""
    return _forward(SoftMax(), source)


def soft_max_gradient(source_gradient: Any, result: Any) -> np.ndarray:
    """``y * (g - sum(g * y))``; takes the forward **result** ``y`` (``SoftMaxGradient``)."""
    return _gradient(SoftMax(), SoftMaxGradient(), source_gradient, result)[0]


def log_soft_max(source: Any) -> np.ndarray:
    """``x - log(sum(exp(x)))`` over the channels (``LogSoftMax``)."""
    return _forward(LogSoftMax(), source)


def log_soft_max_gradient(source_gradient: Any, result: Any) -> np.ndarray:
    """``g - exp(y) * sum(g)``; takes the forward **result** ``y`` (``LogSoftMaxGradient``)."""
    return _gradient(LogSoftMax(), LogSoftMaxGradient(), source_gradient, result)[0]


def _arithmetic(cls: type[Arithmetic], primary: Any, secondary: Any, properties: dict[str, float]) -> Any:
    """The kernel, which spreads extents of 1 over the other image's, and both images."""
    images = _image(primary), _image(secondary)
    kernel = cls(records_clamp=True) if {"minimum_value", "maximum_value"} & properties.keys() else cls()
    for which, own, other in (("primary", *images), ("secondary", *images[::-1])):
        for name, extent in (("pixels_x", "width"), ("pixels_y", "height"), ("feature_channels", "feature_channels")):
            if getattr(own, extent) == 1 and getattr(other, extent) > 1:
                setattr(kernel, f"{which}_stride_in_{name}", 0)
    for name, value in properties.items():
        if name not in ("primary_scale", "secondary_scale", "bias", "minimum_value", "maximum_value"):
            raise FormatError(f"{cls.__name__}: {name!r} is not a property that can be given")
        setattr(kernel, name, value)
    return kernel, *images


def _arithmetic_result(cls: type[Arithmetic], primary: Any, secondary: Any, properties: dict[str, float]) -> np.ndarray:
    kernel, *images = _arithmetic(cls, primary, secondary, properties)
    with CommandBuffer() as commands:
        result = kernel.encode(commands, *images)
    return _like(result, primary)


def _arithmetic_gradients(
    cls: type[Arithmetic],
    gradient: type[ArithmeticGradient],
    source_gradient: Any,
    primary: Any,
    secondary: Any,
    properties: dict[str, float],
) -> tuple[np.ndarray, np.ndarray]:
    kernel, *images = _arithmetic(cls, primary, secondary, properties)
    incoming, results = _image(source_gradient), []
    with CommandBuffer() as commands:
        _, state = kernel.encode(commands, *images, return_state=True)
        for is_secondary in (False, True):
            image = images[is_secondary ^ gradient.takes_the_other_image]
            made = gradient.of(kernel, is_secondary_source_filter=is_secondary)
            results.append(made.encode(commands, incoming, image, state))
    return _like(results[0], primary), _like(results[1], secondary)


def add(primary: Any, secondary: Any, **properties: float) -> np.ndarray:
    """``x + y`` (``Add``). Extents of 1 are spread over the other image's, but not the batch.

    ``properties`` are ``primary_scale``, ``secondary_scale``, ``bias``, ``minimum_value`` and ``maximum_value``.
    """
    return _arithmetic_result(Add, primary, secondary, properties)


def add_gradient(
    source_gradient: Any, primary: Any, secondary: Any, **properties: float
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients for both images; 0 for results that the limits changed (``AddGradient``)."""
    return _arithmetic_gradients(Add, AddGradient, source_gradient, primary, secondary, properties)


def subtract(primary: Any, secondary: Any, **properties: float) -> np.ndarray:
    """``x - y``, as ``add`` (``Subtract``)."""
    return _arithmetic_result(Subtract, primary, secondary, properties)


def subtract_gradient(
    source_gradient: Any, primary: Any, secondary: Any, **properties: float
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients for both images (``SubtractGradient``)."""
    return _arithmetic_gradients(Subtract, SubtractGradient, source_gradient, primary, secondary, properties)


def multiply(primary: Any, secondary: Any, **properties: float) -> np.ndarray:
    """``x y``, as ``add`` (``Multiply``)."""
    return _arithmetic_result(Multiply, primary, secondary, properties)


def multiply_gradient(
    source_gradient: Any, primary: Any, secondary: Any, **properties: float
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients for both images (``MultiplyGradient``)."""
    return _arithmetic_gradients(Multiply, MultiplyGradient, source_gradient, primary, secondary, properties)


def divide(primary: Any, secondary: Any, **properties: float) -> np.ndarray:
    """``x / y``, as ``add`` (``Divide``)."""
    return _arithmetic_result(Divide, primary, secondary, properties)


def divide_gradient(
    source_gradient: Any, primary: Any, secondary: Any, **properties: float
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients for both images (``DivideGradient``)."""
    return _arithmetic_gradients(Divide, DivideGradient, source_gradient, primary, secondary, properties)


def compare(
    primary: Any, secondary: Any, comparison: str | ComparisonType = "equal", *, threshold: float = 0.0
) -> np.ndarray:
    """1 where the ``comparison`` holds, else 0; ``|x - y| <= threshold`` is equality (``Compare``)."""
    if isinstance(comparison, str):
        if comparison.upper() not in ComparisonType.__members__:
            names = ", ".join(name.lower() for name in ComparisonType.__members__)
            raise FormatError(f"compare: comparison is {comparison!r}; it has to be one of {names}")
        comparison = ComparisonType[comparison.upper()]
    kernel, *images = _arithmetic(Compare, primary, secondary, {})
    kernel.comparison_type, kernel.threshold = comparison, threshold
    with CommandBuffer() as commands:
        result = kernel.encode(commands, *images)
    return _like(result, primary)


def _slice(source: Any, offset: Pair, size: Pair | None, first_channel: int, channels: int | None) -> Slice:
    kernel = Slice()
    y, x = _pair("offset", offset)
    kernel.offset, kernel.source_feature_channel_offset = Offset(x, y), first_channel
    if channels is not None:
        kernel.source_feature_channel_max_count = channels
    if size is not None:
        height, width = _pair("size", size)
        kernel.clip_rect = Region(Origin(), Size(width, height))
    return kernel


def slice_image(
    source: Any, *, offset: Pair = 0, size: Pair | None = None, first_channel: int = 0, channels: int | None = None
) -> np.ndarray:
    """The box of ``size`` pixels from ``offset`` on, and ``channels`` from ``first_channel``, a multiple of 4
    (``Slice``); None: all that there are."""
    return _forward(_slice(source, offset, size, first_channel, channels), source)


def slice_image_gradient(
    source_gradient: Any,
    source: Any,
    *,
    offset: Pair = 0,
    size: Pair | None = None,
    first_channel: int = 0,
    channels: int | None = None,
) -> np.ndarray:
    """The gradient where the slice was, zeros elsewhere (``SliceGradient``)."""
    forward = _slice(source, offset, size, first_channel, channels)
    return _gradient(forward, SliceGradient(), source_gradient, source)[0]


def reshape(source: Any, height: int, width: int, channels: int) -> np.ndarray:
    """The elements of each image in another shape, in their order (``Reshape``)."""
    kernel = Reshape()
    kernel.reshaped_height, kernel.reshaped_width, kernel.reshaped_feature_channels = height, width, channels
    return _forward(kernel, source)


def reshape_gradient(source_gradient: Any, source: Any) -> np.ndarray:
    """The gradient in the shape of the source (``ReshapeGradient``)."""
    kernel = Reshape()
    names = ("reshaped_height", "reshaped_width", "reshaped_feature_channels")
    for name, extent in zip(names, np.shape(source_gradient)[-3:], strict=True):
        setattr(kernel, name, extent)
    return _gradient(kernel, ReshapeGradient(), source_gradient, source)[0]


def concatenation(*sources: Any, aligns_channels: bool = False) -> np.ndarray:
    """The channels of all ``sources``; each begins at a multiple of 4 if it ``aligns_channels`` (``Concatenation``)."""
    with CommandBuffer() as commands:
        result = Concatenation(aligns_channels=aligns_channels).encode(commands, [_image(each) for each in sources])
    return _like(result, sources[0])


def concatenation_gradient(source_gradient: Any, *sources: Any, aligns_channels: bool = False) -> list[np.ndarray]:
    """The gradient for each of the ``sources`` (``ConcatenationGradient``)."""
    images, incoming = [_image(each) for each in sources], _image(source_gradient)
    with CommandBuffer() as commands:
        _, state = Concatenation(aligns_channels=aligns_channels).encode(commands, images, return_state=True)
        results = [
            ConcatenationGradient(index).encode(commands, incoming, image, state) for index, image in enumerate(images)
        ]
    return [_like(result, source) for result, source in zip(results, sources, strict=True)]


def _pad(before: Any, after: Any, edge_mode: str | EdgeMode, fill: Any) -> Pad:
    sizes = []
    for name, value in (("before", before), ("after", after)):
        try:
            y, x, *channels = value
            (channel,) = channels or (0,)
        except (TypeError, ValueError):
            raise FormatError(f"{name} is {value!r}; it has to be (y, x) or (y, x, channels)") from None
        sizes.append((x, y, channel))
    fills = None if np.ndim(fill) == 0 else fill
    kernel = Pad(sizes[0], sizes[1], fills)
    if isinstance(edge_mode, str) and edge_mode.upper() not in EdgeMode.__members__:
        names = ", ".join(name.lower() for name in EdgeMode.__members__)
        raise FormatError(f"edge_mode is {edge_mode!r}; it has to be one of {names}")
    kernel.edge_mode = EdgeMode[edge_mode.upper()] if isinstance(edge_mode, str) else edge_mode
    if fills is None:
        kernel.fill_value = fill
    return kernel


def pad(
    source: Any,
    before: tuple[int, ...],
    after: tuple[int, ...],
    *,
    edge_mode: str | EdgeMode = "zero",
    fill: Any = 0.0,
) -> np.ndarray:
    """``source`` with so many rows, columns and, if given, channels (y, x, channels) before and after it (``Pad``).

    ``edge_mode`` is ``"zero"``, ``"constant"``, ``"clamp"``, ``"mirror"`` or ``"mirror_with_edge"``; ``fill``, for
    ``"constant"``, a number or one for each channel of the result.
    """
    return _forward(_pad(before, after, edge_mode, fill), source)


def pad_gradient(
    source_gradient: Any,
    source: Any,
    before: tuple[int, ...],
    after: tuple[int, ...],
    *,
    edge_mode: str | EdgeMode = "zero",
) -> np.ndarray:
    """The sum of the gradients of each element's copies (``PadGradient``)."""
    return _gradient(_pad(before, after, edge_mode, 0.0), PadGradient(), source_gradient, source)[0]


def gram_matrix(source: Any, *, alpha: float = 1.0) -> np.ndarray:
    """``alpha sum_p x[p][f] x[p][c]`` over the pixels of each image, 1 x C x C (``GramMatrixCalculation``)."""
    return _forward(GramMatrixCalculation(alpha), source)


def gram_matrix_gradient(source_gradient: Any, source: Any, *, alpha: float = 1.0) -> np.ndarray:
    """``alpha sum_f x[p][f] (g[f][c] + g[c][f])`` (``GramMatrixCalculationGradient``)."""
    forward = GramMatrixCalculation(alpha)
    return _gradient(forward, GramMatrixCalculationGradient(), source_gradient, source)[0]


def _weighted_reduction(mean: bool, by_non_zero_weights: bool) -> Any:
    if mean and by_non_zero_weights:
        raise FormatError("mean and by_non_zero_weights are True; a sum is divided by one number only")
    if mean:
        return ReduceFeatureChannelsAndWeightsMean()
    return ReduceFeatureChannelsAndWeightsSum(by_non_zero_weights)


def weighted_reduction(
    source: Any, weights: Any, *, mean: bool = False, by_non_zero_weights: bool = False
) -> np.ndarray:
    """``sum_c x[c] w[c]`` of each pixel, divided by the number of channels for a ``mean``, or of weights that are not 0
    (``ReduceFeatureChannelsAndWeightsSum``, ``ReduceFeatureChannelsAndWeightsMean``)."""
    with CommandBuffer() as commands:
        result = _weighted_reduction(mean, by_non_zero_weights).encode(commands, _image(source), _image(weights))
    return _like(result, source)


def weighted_reduction_gradient(
    source_gradient: Any, source: Any, weights: Any, *, mean: bool = False, by_non_zero_weights: bool = False
) -> tuple[np.ndarray, np.ndarray | None]:
    """The gradients for source and weights (``ReduceFeatureChannelsAndWeightsGradient``); ``by_non_zero_weights`` there
    is none for the weights."""
    x, w, incoming = _image(source), _image(weights), _image(source_gradient)
    forward, of_weights = _weighted_reduction(mean, by_non_zero_weights), None
    state = forward.result_state(x, w, destination_image=Image(forward.destination_image_descriptor([x, w])))
    with CommandBuffer() as commands:
        of_source = ReduceFeatureChannelsAndWeightsGradient().encode(commands, incoming, w, state)
        if not by_non_zero_weights:
            gradient = ReduceFeatureChannelsAndWeightsGradient(is_secondary_source_filter=True)
            of_weights = gradient.encode(commands, incoming, x, state)
    return _like(of_source, source), None if of_weights is None else _like(of_weights, weights)


def _reduction(over: str, operation: str, weight: float) -> ReduceUnary:
    words = "".join(word.capitalize() for word in f"{over}_{operation}".split("_"))
    name = "ReductionSpatialMean" if words == "SpatialMean" else f"Reduce{words}"
    cls = BaseKernel.classes.get(name)
    if cls is None or not issubclass(cls, ReduceUnary):
        raise FormatError(
            f"reduction: there is no {operation!r} over {over!r}; min, max, mean and sum go over 'row', 'column' or "
            "'feature_channels', argument_min and argument_max over 'feature_channels', and mean over 'spatial'"
        )
    kernel = cls()
    if weight != 1.0:
        if not hasattr(kernel, "weight"):
            raise FormatError(f"reduction: weight is {weight} but {name} has none; ReduceFeatureChannelsSum has")
        kernel.weight = weight
    return kernel


def reduction(source: Any, over: str, operation: str, *, weight: float = 1.0) -> np.ndarray:
    """The ``operation`` (min, max, mean, sum) of each "row" (over x), "column" (over y) or pixel's "feature_channels".

    Over the feature channels also argument_min and argument_max, and ``weight`` times their sum; over all pixels,
    "spatial", the mean (``ReduceRowMin`` and its like, ``ReductionSpatialMean``).
    """
    return _forward(_reduction(over, operation, weight), source)


def reduction_gradient(
    source_gradient: Any, source: Any, over: str, operation: str, *, weight: float = 1.0
) -> np.ndarray:
    """The gradient for the source; a minimum or maximum gives it to the first that won (``ReduceGradient``)."""
    return _gradient(_reduction(over, operation, weight), ReduceGradient(), source_gradient, source)[0]


def _neuron_descriptor(neuron_type: str | NeuronType, parameters: dict[str, Any]) -> NeuronDescriptor:
    if isinstance(neuron_type, str):
        if neuron_type.upper() not in NeuronType.__members__:
            names = ", ".join(name.lower() for name in NeuronType.__members__)
            raise FormatError(f"neuron: neuron_type is {neuron_type!r}; it has to be one of {names}")
        neuron_type = NeuronType[neuron_type.upper()]
    return NeuronDescriptor(neuron_type, **parameters)


def neuron(source: Any, neuron_type: str | NeuronType, **parameters: Any) -> np.ndarray:
    """The activation ``neuron_type`` with the ``parameters`` a, b, c or data of ``NeuronDescriptor`` (``Neuron``)."""
    return _forward(Neuron(_neuron_descriptor(neuron_type, parameters)), source)


def neuron_gradient(source_gradient: Any, source: Any, neuron_type: str | NeuronType, **parameters: Any) -> np.ndarray:
    """``g * f'(x)`` for the forward source ``x`` (``NeuronGradient``)."""
    descriptor = _neuron_descriptor(neuron_type, parameters)
    return _gradient(Neuron(descriptor), NeuronGradient(descriptor), source_gradient, source)[0]


def loss(
    source: Any,
    labels: Any,
    loss_type: str | LossType,
    weights: Any = None,
    *,
    reduction: str = "mean",
    **descriptor: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """The loss of each image (or, for ``reduction="none"``, of each element) and the gradient of that loss (``Loss``).

    ``labels`` (and ``weights``) are float32 of the source's shape; ``descriptor`` are fields of ``LossDescriptor``.
    """
    kernel = Loss(LossDescriptor(loss_type, reduction, **descriptor), gradient_follows_reduction=True)
    return _loss(kernel, source, labels, weights)


def _loss(kernel: LossKernel, source: Any, labels: Any, weights: Any) -> tuple[np.ndarray, np.ndarray]:
    image = _image(source)
    size = (1, 1, 1)
    if kernel.reduction_type is LossReductionType.NONE:
        size = (image.width, image.height, image.feature_channels)
    targets = LossLabels.from_images(
        _image(labels), None if weights is None else _image(weights), loss_image_size=size
    )
    with CommandBuffer() as commands:
        result = kernel.encode(commands, image, targets)
    assert result is not None
    return _like(targets.loss_image, source), _like(result, source)


def yolo_loss(
    source: Any, labels: Any, anchor_boxes: Any, weights: Any = None, *, reduction: str = "mean", **descriptor: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The loss of an object detector and its gradient (``YOLOLoss``).

    ``labels`` (and ``weights``) are float32 of the source's shape, ``anchor_boxes`` are (width, height) in cells;
    ``descriptor`` are fields of ``YOLOLossDescriptor``.
    """
    made = YOLOLossDescriptor(anchor_boxes, reduction_type=reduction, **descriptor)
    return _loss(YOLOLoss(made, gradient_follows_reduction=True), source, labels, weights)


def loss_gradient(
    source_gradient: Any,
    source: Any,
    labels: Any,
    loss_type: str | LossType,
    weights: Any = None,
    *,
    for_labels: bool = False,
    reduction: str = "mean",
    **descriptor: Any,
) -> np.ndarray:
    """The gradient with respect to the prediction ``source`` or the labels, given that of the loss (``LossGradient``).

    ``source_gradient`` is float32 and has the shape of the loss that ``loss`` returns.
    """
    kernel = LossGradient(LossDescriptor(loss_type, reduction, **descriptor), compute_label_gradients=for_labels)
    weights_image = None if weights is None else _image(weights)
    with CommandBuffer() as commands:
        result = kernel.encode(commands, _image(source_gradient), _image(source), _image(labels), weights_image)
    return _like(result, source)


def softmax_cross_entropy(
    source: Any, labels: Any, weights: Any = None, *, reduction: str = "mean", **descriptor: Any
) -> tuple[np.ndarray, np.ndarray]:
    """``loss`` of type softmax cross-entropy."""
    return loss(source, labels, LossType.SOFTMAX_CROSS_ENTROPY, weights, reduction=reduction, **descriptor)
