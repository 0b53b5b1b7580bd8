"""Batch normalization with an optional fused neuron: statistics, forward, and both gradients.

Images are N x H x W x C; mean, variance, gamma and beta have one value per feature channel. `neuron` holds the keyword
arguments of `neuron.neuron`, for example {"type": "relu", "a": 0.1}.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .neuron import NeuronArguments, neuron_gradient
from .neuron import neuron as apply_neuron
from .window import Array, gradient_image, image


def _channels(values: npt.ArrayLike, x: Array, name: str) -> Array:
    result = np.asarray(values, np.float64)
    if result.shape != x.shape[3:]:
        raise ValueError(f"{name} has shape {result.shape} but source has {x.shape[3]} feature channels")
    return result


def _normalize(
    x: Array,
    mean: npt.ArrayLike,
    variance: npt.ArrayLike,
    gamma: npt.ArrayLike | None,
    beta: npt.ArrayLike | None,
    epsilon: float,
) -> tuple[Array, Array, Array]:
    """xhat, the pre-activation z = gamma * xhat + beta, and gamma / sqrt(variance + epsilon)."""
    inverse = 1.0 / np.sqrt(_channels(variance, x, "variance") + epsilon)
    scale = np.ones(x.shape[3]) if gamma is None else _channels(gamma, x, "gamma")
    shift = np.zeros(x.shape[3]) if beta is None else _channels(beta, x, "beta")
    xhat = (x - _channels(mean, x, "mean")) * inverse
    return xhat, scale * xhat + shift, scale * inverse


def batch_normalization_statistics(source: npt.ArrayLike) -> tuple[Array, Array]:
    """Mean and biased variance, sum((x - mean)^2) / M with M = N * H * W, of each feature channel over the batch."""
    x = image(source, "source")
    mean = x.mean(axis=(0, 1, 2))
    return mean, ((x - mean) ** 2).mean(axis=(0, 1, 2))


def batch_normalization(
    source: npt.ArrayLike,
    mean: npt.ArrayLike,
    variance: npt.ArrayLike,
    gamma: npt.ArrayLike | None,
    beta: npt.ArrayLike | None,
    epsilon: float,
    neuron: NeuronArguments | None = None,
) -> Array:
    """y = f(gamma * (x - mean) / sqrt(variance + epsilon) + beta) (MPSCNNBatchNormalization).

    gamma None is 1, beta None is 0, neuron None is the identity.
    """
    _, z, _ = _normalize(image(source, "source"), mean, variance, gamma, beta, epsilon)
    return z if neuron is None else apply_neuron(z, **neuron)


def _parameter_gradients(
    source_gradient: npt.ArrayLike, xhat: Array, z: Array, neuron: NeuronArguments | None
) -> tuple[Array, Array, Array]:
    """gz = g * f'(z), dgamma and dbeta."""
    g = gradient_image(source_gradient, None)
    if g.shape != z.shape:
        raise ValueError(f"source_gradient is {g.shape} but source is {z.shape}")
    gz = g if neuron is None else neuron_gradient(g, z, **neuron)
    return gz, (gz * xhat).sum(axis=(0, 1, 2)), gz.sum(axis=(0, 1, 2))


def batch_normalization_gradient(
    source_gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    mean: npt.ArrayLike,
    variance: npt.ArrayLike,
    gamma: npt.ArrayLike | None,
    beta: npt.ArrayLike | None,
    epsilon: float,
    neuron: NeuronArguments | None = None,
) -> tuple[Array, Array, Array]:
    """dx, dgamma and dbeta when mean and variance are the statistics of this very batch (training).

        gz = g * f'(z)      dgamma = sum(gz * xhat)      dbeta = sum(gz)
        dx = gamma / sqrt(variance + epsilon) * (gz - (dbeta + xhat * dgamma) / M),  M = N * H * W

    (MPSCNNBatchNormalizationStatisticsGradient and MPSCNNBatchNormalizationGradient.)
    """
    x = image(source, "source")
    xhat, z, slope = _normalize(x, mean, variance, gamma, beta, epsilon)
    gz, dgamma, dbeta = _parameter_gradients(source_gradient, xhat, z, neuron)
    count = x.shape[0] * x.shape[1] * x.shape[2]
    return slope * (gz - (dbeta + xhat * dgamma) / count), dgamma, dbeta


def batch_normalization_inference_gradient(
    source_gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    mean: npt.ArrayLike,
    variance: npt.ArrayLike,
    gamma: npt.ArrayLike | None,
    beta: npt.ArrayLike | None,
    epsilon: float,
    neuron: NeuronArguments | None = None,
) -> tuple[Array, Array, Array]:
    """dx, dgamma and dbeta when mean and variance are constants: dx = gamma / sqrt(variance + epsilon) * gz."""
    xhat, z, slope = _normalize(image(source, "source"), mean, variance, gamma, beta, epsilon)
    gz, dgamma, dbeta = _parameter_gradients(source_gradient, xhat, z, neuron)
    return slope * gz, dgamma, dbeta
