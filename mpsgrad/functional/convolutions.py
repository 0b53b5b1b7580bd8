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
from mpsgrad.kernels.convolution import Convolution, ConvolutionGradient, FullyConnected, FullyConnectedGradient
from mpsgrad.kernels.convolution_data_source import ArrayConvolutionDataSource, ConvolutionDataSource
from mpsgrad.kernels.convolution_descriptor import SubPixelConvolutionDescriptor
from mpsgrad.kernels.convolution_transpose import ConvolutionTranspose, ConvolutionTransposeGradient
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
    """Cross-correlation with ``weights`` [O][kH][kW][I/groups] plus ``biases`` [O], float32 (``Convolution``)."""
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
    """The gradients with respect to source, weights and biases; the last two summed over the batch
    (``ConvolutionGradient``)."""
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
    """Transposed convolution with ``weights`` [O][kH][kW][I/groups], not turned, plus ``biases`` [O]
    (``ConvolutionTranspose``)."""
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
    """The gradients with respect to source, weights and biases; the last two summed over the batch
    (``ConvolutionTransposeGradient``)."""
    data_source = _convolution_data_source(source, weights, None, stride, dilation, groups)
    forward = ConvolutionTranspose(data_source)
    forward.padding = padding_of(padding)
    result, state = run_gradient(forward, ConvolutionTransposeGradient(data_source), source_gradient, source)
    return result, np.array(state.gradient_for_weights), np.array(state.gradient_for_biases)


def fully_connected(source: Any, weights: Any, biases: Any = None) -> np.ndarray:
    """``sum(w[o] * x) + b[o]`` with ``weights`` [O][H][W][C] of the size of the source (``FullyConnected``)."""
    return run_forward(FullyConnected(_convolution_data_source(source, weights, biases, 1, 1, 1)), source)


def fully_connected_gradient(
    source_gradient: Any, source: Any, weights: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients with respect to source, weights and biases (``FullyConnectedGradient``)."""
    data_source = _convolution_data_source(source, weights, None, 1, 1, 1)
    forward = FullyConnected(data_source)
    result, state = run_gradient(forward, FullyConnectedGradient(data_source), source_gradient, source)
    return result, np.array(state.gradient_for_weights), np.array(state.gradient_for_biases)
