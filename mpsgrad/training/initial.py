"""Data sources with the parameters that training begins with."""

from __future__ import annotations

import numpy as np

from mpsgrad.kernels.batch_normalization_data_source import (
    ArrayBatchNormalizationDataSource,
    BatchNormalizationDataSource,
)
from mpsgrad.kernels.convolution_data_source import ArrayConvolutionDataSource, ConvolutionDataSource

EPSILON = 1e-5


def weights(
    generator: np.random.Generator,
    outputs: int,
    size: int | tuple[int, int],
    inputs: int,
    *,
    stride: int = 1,
    biases: bool = True,
) -> ArrayConvolutionDataSource:
    """Weights of a convolution or a fully connected layer: normal with variance 2 / (height * width * inputs).

    That keeps the size of activations through ReLU (He et al., 2015). ``size`` is that of the window, one number or
    (height, width); biases begin with 0.
    """
    height, width = (size, size) if isinstance(size, int) else size
    deviation = np.sqrt(2.0 / (height * width * inputs))
    values = (deviation * generator.standard_normal((outputs, height, width, inputs))).astype(np.float32)
    zeros = np.zeros(outputs, np.float32) if biases else None
    return ConvolutionDataSource.from_arrays(values, zeros, stride=(stride, stride))


def normalization(channels: int) -> ArrayBatchNormalizationDataSource:
    """Batch normalization with gamma and variance 1, beta and mean 0, and epsilon ``EPSILON``."""
    zeros, ones = np.zeros(channels, np.float32), np.ones(channels, np.float32)
    return BatchNormalizationDataSource.from_arrays(ones, zeros, zeros, ones, epsilon=EPSILON)
