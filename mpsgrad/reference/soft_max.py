"""SoftMax and LogSoftMax over the feature channels (the last axis), each pixel on its own.

Both gradients take the forward pass's *output* y, as MPSCNNSoftMaxGradient and MPSCNNLogSoftMaxGradient do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .window import Array


def log_soft_max(source: npt.ArrayLike) -> Array:
    """y_k = x_k - ln sum_j e^(x_j), computed from x - max(x)."""
    x = np.asarray(source, np.float64)
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def soft_max(source: npt.ArrayLike) -> Array:
    """y_k = e^(x_k) / sum_j e^(x_j), computed from x - max(x)."""
    x = np.asarray(source, np.float64)
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def soft_max_gradient(source_gradient: npt.ArrayLike, output: npt.ArrayLike) -> Array:
    """dx_k = y_k * (g_k - sum_j g_j * y_j)."""
    g, y = np.asarray(source_gradient, np.float64), np.asarray(output, np.float64)
    return y * (g - (g * y).sum(axis=-1, keepdims=True))


def log_soft_max_gradient(source_gradient: npt.ArrayLike, output: npt.ArrayLike) -> Array:
    """dx_k = g_k - e^(y_k) * sum_j g_j."""
    g, y = np.asarray(source_gradient, np.float64), np.asarray(output, np.float64)
    return g - np.exp(y) * g.sum(axis=-1, keepdims=True)
