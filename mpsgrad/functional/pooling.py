"""Pooling and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.functional.arrays import Pair, dilated_window_of, pair_of, run_forward, run_gradient, window_of, with_edges
from mpsgrad.functional.kept import kept
from mpsgrad.geometry import EdgeMode
from mpsgrad.kernel import Kernel
from mpsgrad.kernels.pooling import (
    DilatedPoolingMax,
    PoolingAverage,
    PoolingL2Norm,
)
from mpsgrad.kernels.pooling_gradient import PoolingAverageGradient, PoolingL2NormGradient
from mpsgrad.kernels.pooling_max_gradient import DilatedPoolingMaxGradient
from mpsgrad.padding import Padding


def _pooling(cls: type[Kernel], padding: str | Pair | Padding, edge_mode: str | EdgeMode, /, **window: Any) -> Any:
    return with_edges(cls(**window), padding, edge_mode)


def pooling_max(
    source: Any,
    *,
    kernel: Pair,
    stride: Pair = 1,
    dilation: Pair = 1,
    padding: str | Pair | Padding = "same",
    edge_mode: str | EdgeMode = "zero",
) -> np.ndarray:
    """The largest value of each window of ``kernel`` taps, channel by channel.

    With ``edge_mode`` ``"zero"`` taps outside the source are zeros, which may win; with ``"clamp"`` they are ignored,
    as in PyTorch. A NaN is passed over unless it is the first tap. Source: ``PoolingMax``, ``DilatedPoolingMax``.
    """
    window = dilated_window_of(kernel, stride, dilation)
    return run_forward(kept(_pooling, DilatedPoolingMax, padding, edge_mode, **window), source)


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
    """The gradient of ``pooling_max``: each window's goes to its first maximum in row-major order.

    ``source_gradient`` has the shape of the result. Source: ``PoolingMaxGradient``, ``DilatedPoolingMaxGradient``.
    """
    window = dilated_window_of(kernel, stride, dilation)
    forward = kept(_pooling, DilatedPoolingMax, padding, edge_mode, **window)
    return run_gradient(forward, kept(DilatedPoolingMaxGradient, **window), source_gradient, source)[0]


def _average(kernel: Pair, stride: Pair, padding: Any, edge_mode: Any, zero_pad_size: Pair) -> PoolingAverage:
    forward = with_edges(PoolingAverage(**window_of(kernel, stride)), padding, edge_mode)
    forward.zero_pad_size_y, forward.zero_pad_size_x = pair_of("zero_pad_size", zero_pad_size)
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
    """The mean of each window, taps outside the source being zeros.

    With ``edge_mode`` ``"clamp"`` that of its part inside the source and ``zero_pad_size`` pixels (y, x) of zeros
    around it: PyTorch's ``count_include_pad=False`` without any. Source: ``PoolingAverage``.
    """
    return run_forward(kept(_average, kernel, stride, padding, edge_mode, zero_pad_size), source)


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
    """The gradient of ``pooling_average``: each window's is shared out over what it is the mean of.

    ``source_gradient`` has the shape of the result. Source: ``PoolingAverageGradient``.
    """
    forward = kept(_average, kernel, stride, padding, edge_mode, zero_pad_size)
    return run_gradient(forward, kept(PoolingAverageGradient, **window_of(kernel, stride)), source_gradient, source)[0]


def pooling_l2_norm(
    source: Any,
    *,
    kernel: Pair,
    stride: Pair = 1,
    padding: str | Pair | Padding = "same",
    edge_mode: str | EdgeMode = "zero",
) -> np.ndarray:
    """The square root of the sum of squares of each window, channel by channel. Source: ``PoolingL2Norm``."""
    return run_forward(kept(_pooling, PoolingL2Norm, padding, edge_mode, **window_of(kernel, stride)), source)


def pooling_l2_norm_gradient(
    source_gradient: Any,
    source: Any,
    *,
    kernel: Pair,
    stride: Pair = 1,
    padding: str | Pair | Padding = "same",
    edge_mode: str | EdgeMode = "zero",
) -> np.ndarray:
    """The gradient of ``pooling_l2_norm``: ``g x / y`` from each window, 0 where the norm ``y`` is 0.

    ``source_gradient`` has the shape of the result. Source: ``PoolingL2NormGradient``.
    """
    window = window_of(kernel, stride)
    forward = kept(_pooling, PoolingL2Norm, padding, edge_mode, **window)
    return run_gradient(forward, kept(PoolingL2NormGradient, **window), source_gradient, source)[0]
