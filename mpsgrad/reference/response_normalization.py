"""Normalization by the values around: across channels, of pixels, and by local contrast; and the gradients.

Windows lean to the lower side: those of size k reach from k // 2 below to (k - 1) // 2 above. What lies outside the
image is 0, and sums are over a constant number of values.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .window import Array, Pair, image


def _sum_along(x: Array, axis: int, before: int, behind: int) -> Array:
    """The sums over elements i - before to i + behind of an axis."""
    padding = [(0, 0)] * x.ndim
    padding[axis] = (before, behind)
    padded = np.pad(x, padding)
    length = x.shape[axis]
    taps = (np.take(padded, range(k, k + length), axis) for k in range(before + behind + 1))
    return np.sum(list(taps), axis=0)


def _channel_sum(x: Array, size: int) -> Array:
    return _sum_along(x, 3, size // 2, (size - 1) // 2)


def _channel_adjoint(x: Array, size: int) -> Array:
    """The sums over the windows that a channel is in."""
    return _sum_along(x, 3, (size - 1) // 2, size // 2)


def _window_sum(x: Array, kernel: Pair) -> Array:
    height, width = kernel
    return _sum_along(_sum_along(x, 1, height // 2, (height - 1) // 2), 2, width // 2, (width - 1) // 2)


def _window_adjoint(x: Array, kernel: Pair) -> Array:
    height, width = kernel
    return _sum_along(_sum_along(x, 1, (height - 1) // 2, height // 2), 2, (width - 1) // 2, width // 2)


def cross_channel_normalization(
    source: npt.ArrayLike, kernel_size: int, alpha: float, beta: float, delta: float
) -> Array:
    """y_k = x_k L_k^-beta, L_k = delta + alpha / N sum_q x_q^2 (MPSCNNCrossChannelNormalization)."""
    x = image(source, "source")
    return x * (delta + alpha / kernel_size * _channel_sum(x * x, kernel_size)) ** -beta


def cross_channel_normalization_gradient(
    source_gradient: npt.ArrayLike, source: npt.ArrayLike, kernel_size: int, alpha: float, beta: float, delta: float
) -> Array:
    """dx_k = g_k L_k^-beta - 2 alpha beta / N x_k sum_r g_r x_r L_r^(-beta - 1)."""
    x, g = image(source, "source"), image(source_gradient, "source_gradient")
    base = delta + alpha / kernel_size * _channel_sum(x * x, kernel_size)
    sums = _channel_adjoint(g * x * base ** (-beta - 1), kernel_size)
    return g * base**-beta - 2 * alpha * beta / kernel_size * x * sums


def spatial_normalization(source: npt.ArrayLike, kernel: Pair, alpha: float, beta: float, delta: float) -> Array:
    """y_i = x_i T_i^-beta, T_i = delta + alpha / N sum_l x_l^2 (MPSCNNSpatialNormalization); kernel is (y, x)."""
    x = image(source, "source")
    return x * (delta + alpha / np.prod(kernel) * _window_sum(x * x, kernel)) ** -beta


def spatial_normalization_gradient(
    source_gradient: npt.ArrayLike, source: npt.ArrayLike, kernel: Pair, alpha: float, beta: float, delta: float
) -> Array:
    """dx_i = g_i T_i^-beta - 2 alpha beta / N x_i sum_l g_l x_l T_l^(-beta - 1)."""
    x, g = image(source, "source"), image(source_gradient, "source_gradient")
    base = delta + alpha / np.prod(kernel) * _window_sum(x * x, kernel)
    sums = _window_adjoint(g * x * base ** (-beta - 1), kernel)
    return g * base**-beta - 2 * alpha * beta / np.prod(kernel) * x * sums


def local_contrast_statistics(source: npt.ArrayLike, kernel: Pair) -> tuple[Array, Array]:
    """Mean and variance of each window."""
    x = image(source, "source")
    count = np.prod(kernel)
    mean = _window_sum(x, kernel) / count
    return mean, np.maximum(_window_sum(x * x, kernel) / count - mean**2, 0.0)


def local_contrast_normalization(
    source: npt.ArrayLike,
    kernel: Pair,
    alpha: float,
    beta: float,
    delta: float,
    p0: float = 1.0,
    pm: float = 0.0,
    ps: float = 1.0,
) -> Array:
    """y_i = pm + ps (x_i - p0 M_i) (delta + alpha V_i)^-beta (MPSCNNLocalContrastNormalization)."""
    x = image(source, "source")
    mean, variance = local_contrast_statistics(x, kernel)
    return pm + ps * (x - p0 * mean) * (delta + alpha * variance) ** -beta


def local_contrast_normalization_gradient(
    source_gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    kernel: Pair,
    alpha: float,
    beta: float,
    delta: float,
    p0: float = 1.0,
    ps: float = 1.0,
) -> Array:
    """dx_i = ps (g_i T_i^-beta - sum_l g_l (p0 / N T_l^-beta + c (x_l - p0 M_l) (x_i - M_l) T_l^(-beta - 1))).

    c = 2 alpha beta / N.
    """
    x, g = image(source, "source"), image(source_gradient, "source_gradient")
    mean, variance = local_contrast_statistics(x, kernel)
    base = delta + alpha * variance
    direct = g * base**-beta
    factor = 2 * alpha * beta / np.prod(kernel) * direct * (x - p0 * mean) / base
    sums = _window_adjoint(p0 / np.prod(kernel) * direct - factor * mean, kernel) + x * _window_adjoint(factor, kernel)
    return ps * (direct - sums)
