"""Convolutions, transposed ones and fully connected layers, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.errors import GeometryError
from mpsgrad.functional.arrays import (
    Pair,
    array_of,
    channels_of,
    padding_of,
    pair_of,
    run_forward,
    run_gradient,
    with_edges,
)
from mpsgrad.geometry import EdgeMode
from mpsgrad.kernels.convolution import Convolution, ConvolutionGradient
from mpsgrad.kernels.convolution_data_source import ArrayConvolutionDataSource, ConvolutionDataSource
from mpsgrad.kernels.convolution_descriptor import SubPixelConvolutionDescriptor
from mpsgrad.kernels.convolution_transpose import ConvolutionTranspose, ConvolutionTransposeGradient
from mpsgrad.kernels.fully_connected import FullyConnected, FullyConnectedGradient
from mpsgrad.padding import Padding


def _convolution_data_source(
    source: Any, weights: Any, biases: Any, stride: Pair, dilation: Pair, groups: int
) -> ConvolutionDataSource:
    channels = channels_of("source", source)
    made = ConvolutionDataSource.from_arrays(
        array_of("weights", weights),
        None if biases is None else array_of("biases", biases),
        stride=pair_of("stride", stride),
        dilation=pair_of("dilation", dilation),
        groups=groups,
    )
    taken, shape = made.descriptor.input_feature_channels, made.weights.shape
    if channels != taken:
        raise GeometryError(
            f"source has {channels} feature channels but weights of shape {shape} in {groups} groups take {taken}; "
            "weights are [O][kH][kW][I / groups], or [O][kH][kW] for a depthwise convolution"
        )
    return made


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
    """Cross-correlation with ``weights`` plus ``biases`` [O], of N x H x W x I a result of N x H' x W' x O.

    ``weights`` are [O][kH][kW][I / groups], PyTorch's transposed by (0, 2, 3, 1), or [I][kH][kW] for a depthwise
    convolution; weights are float32 or float16, biases float32. Raises ``GeometryError`` for other channels. Source:
    ``Convolution``.
    """
    data_source = _convolution_data_source(source, weights, biases, stride, dilation, groups)
    return run_forward(with_edges(Convolution(data_source), padding, edge_mode), source)


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
    """The gradients of ``convolution`` with respect to source, weights and biases.

    ``source_gradient`` has the shape of the result. The last two are float32, summed over the batch, and have the
    shapes of the weights and [O]. Source: ``ConvolutionGradient``.
    """
    data_source = _convolution_data_source(source, weights, None, stride, dilation, groups)
    forward = with_edges(Convolution(data_source), padding, edge_mode)
    result, state = run_gradient(forward, ConvolutionGradient(data_source), source_gradient, source)
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
    """``convolution`` with its channels spread over blocks of ``factor`` x ``factor`` pixels.

    The result is N x ``factor`` H' x ``factor`` W' x O / ``factor``^2; channel ``(factor y + x) O / factor^2 + c``
    becomes channel ``c`` of pixel (y, x) of a block, which is not the order of PyTorch's ``pixel_shuffle``. Source:
    ``Convolution``, with a sub-pixel descriptor.
    """
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
    return run_forward(with_edges(Convolution(data_source), padding, edge_mode), source)


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
    """Transposed convolution with ``weights`` [O][kH][kW][I / groups] plus ``biases`` [O]; ``stride`` enlarges.

    The weights are not turned, so they are PyTorch's [I][O][kH][kW] with both window axes reversed, transposed by
    (1, 2, 3, 0). ``padding`` in pixels is cut off on each side, as there, and ``"full"`` cuts off none: a result of
    ``(H - 1) stride + dilation (kH - 1) + 1`` rows. Source: ``ConvolutionTranspose``.
    """
    kernel = ConvolutionTranspose(_convolution_data_source(source, weights, biases, stride, dilation, groups))
    kernel.padding = padding_of(padding)
    return run_forward(kernel, source)


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
    """The gradients of ``convolution_transpose`` with respect to source, weights and biases.

    ``source_gradient`` has the shape of the result; the last two are float32 and summed over the batch. Source:
    ``ConvolutionTransposeGradient``.
    """
    data_source = _convolution_data_source(source, weights, None, stride, dilation, groups)
    forward = ConvolutionTranspose(data_source)
    forward.padding = padding_of(padding)
    result, state = run_gradient(forward, ConvolutionTransposeGradient(data_source), source_gradient, source)
    return result, np.array(state.gradient_for_weights), np.array(state.gradient_for_biases)


def fully_connected(source: Any, weights: Any, biases: Any = None) -> np.ndarray:
    """``sum(w[o] * x) + b[o]`` over all of an image, N x 1 x 1 x O.

    ``weights`` are [O][H][W][C] for a source of N x H x W x C, else ``GeometryError`` is raised. Source:
    ``FullyConnected``.
    """
    return run_forward(FullyConnected(_convolution_data_source(source, weights, biases, 1, 1, 1)), source)


def fully_connected_gradient(
    source_gradient: Any, source: Any, weights: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients of ``fully_connected`` with respect to source, weights and biases.

    ``source_gradient`` is N x 1 x 1 x O; the last two are float32 and summed over the batch. Source:
    ``FullyConnectedGradient``.
    """
    data_source = _convolution_data_source(source, weights, None, 1, 1, 1)
    forward = FullyConnected(data_source)
    result, state = run_gradient(forward, FullyConnectedGradient(data_source), source_gradient, source)
    return result, np.array(state.gradient_for_weights), np.array(state.gradient_for_biases)
