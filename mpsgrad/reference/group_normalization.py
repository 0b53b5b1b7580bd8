"""Instance and group normalization, forward and gradient.

Images are N x H x W x C; gamma and beta have one value per feature channel. Channel c is in group c * groups // C, and
instance normalization is that with as many groups as channels.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .window import Array, image


def _grouped(x: Array, groups: int) -> Array:
    """N x H x W x groups x channels of a group."""
    if groups < 1 or x.shape[3] % groups:
        raise ValueError(f"groups is {groups} but has to divide the {x.shape[3]} feature channels")
    return x.reshape(*x.shape[:3], groups, x.shape[3] // groups)


def _mean(x: Array, groups: int) -> Array:
    """The mean of each image and group, in each place."""
    grouped = _grouped(x, groups)
    return np.broadcast_to(grouped.mean(axis=(1, 2, 4), keepdims=True), grouped.shape).reshape(x.shape)


def _normalized(x: Array, groups: int, epsilon: float) -> tuple[Array, Array]:
    """xhat and 1 / sqrt(variance + epsilon)."""
    centred = x - _mean(x, groups)
    inverse = 1.0 / np.sqrt(_mean(centred**2, groups) + epsilon)
    return centred * inverse, inverse


def group_normalization_statistics(source: npt.ArrayLike, groups: int) -> tuple[Array, Array]:
    """Mean and biased variance of each image (row), as one value for each feature channel."""
    x = image(source, "source")
    mean = _mean(x, groups)
    return mean[:, 0, 0], _mean((x - mean) ** 2, groups)[:, 0, 0]


def group_normalization(
    source: npt.ArrayLike,
    gamma: npt.ArrayLike,
    beta: npt.ArrayLike,
    groups: int,
    epsilon: float,
) -> Array:
    """y = gamma * (x - mean) / sqrt(variance + epsilon) + beta (MPSCNNGroupNormalization)."""
    xhat, _ = _normalized(image(source, "source"), groups, epsilon)
    return np.asarray(gamma, np.float64) * xhat + np.asarray(beta, np.float64)


def group_normalization_gradient(
    source_gradient: npt.ArrayLike, source: npt.ArrayLike, gamma: npt.ArrayLike, groups: int, epsilon: float
) -> tuple[Array, Array, Array]:
    """dx, and dgamma and dbeta of each image (row) (MPSCNNGroupNormalizationGradient).

    dx = (h - mean(h) - xhat * mean(h * xhat)) / sqrt(variance + epsilon) with h = gamma * g.
    """
    xhat, inverse = _normalized(image(source, "source"), groups, epsilon)
    g = image(source_gradient, "source_gradient")
    h = g * np.asarray(gamma, np.float64)
    dx = inverse * (h - _mean(h, groups) - xhat * _mean(h * xhat, groups))
    return dx, (g * xhat).sum(axis=(1, 2)), g.sum(axis=(1, 2))


def instance_normalization(
    source: npt.ArrayLike, gamma: npt.ArrayLike, beta: npt.ArrayLike, epsilon: float
) -> Array:
    """The same with statistics of each channel on its own (MPSCNNInstanceNormalization)."""
    return group_normalization(source, gamma, beta, np.shape(source)[3], epsilon)


def instance_normalization_gradient(
    source_gradient: npt.ArrayLike, source: npt.ArrayLike, gamma: npt.ArrayLike, epsilon: float
) -> tuple[Array, Array, Array]:
    """dx, and dgamma and dbeta of each image (row) (MPSCNNInstanceNormalizationGradient)."""
    return group_normalization_gradient(source_gradient, source, gamma, np.shape(source)[3], epsilon)
