"""Each gradient kernel of a training step against the float64 reference, on the step's own activations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mpsgrad import reference
from mpsgrad.accuracy import error_bound
from mpsgrad.training.layers import (
    BatchNormalizationLayer,
    ConvolutionLayer,
    FullyConnectedLayer,
    Layer,
    PoolingMaxLayer,
    ReLULayer,
    Step,
)
from mpsgrad.training.report import Verification

_FUNCTION_ULPS = 8.0


def verify(layers: list[Layer], prediction: np.ndarray, labels: np.ndarray, gradient: np.ndarray) -> list[Verification]:
    """The errors of all gradient kernels in the layers' last step, the worst for each kernel and quantity.

    ``prediction``, ``labels`` and ``gradient`` are those of the loss. Every quantity is compared with the reference's
    result from the same float32 inputs; the tolerance is ``error_bound`` for the length of its longest sum.
    """
    rows = [_loss(prediction, labels, gradient)]
    for layer in layers:
        rows += _VERIFIERS[type(layer)](layer)
    worst: dict[tuple[str, str], Verification] = {}
    for row in rows:
        key = (row.kernel, row.quantity)
        if key not in worst or row.largest_error / row.tolerance > worst[key].largest_error / worst[key].tolerance:
            worst[key] = row
    return list(worst.values())


def _compare(kernel: str, quantity: str, actual: Any, expected: Any, terms: int, magnitude: Any) -> Verification:
    """The element whose error is the largest part of its bound."""
    actual = np.asarray(actual)
    bound = np.broadcast_to(error_bound(actual.dtype, terms, magnitude, expected, function_ulps=_FUNCTION_ULPS),
                            actual.shape)
    error = np.abs(actual.astype(np.float64) - expected)
    error = np.where(np.isfinite(error), error, np.inf)
    index = np.unravel_index(int(np.argmax(error / bound)), error.shape)
    return Verification(kernel, quantity, float(error[index]), float(bound[index]))


def _loss(prediction: np.ndarray, labels: np.ndarray, gradient: np.ndarray) -> Verification:
    weight = 1.0 / len(prediction)
    exact = reference.loss_gradient(prediction, labels, "softmax_cross_entropy", weight=weight)
    classes = prediction.shape[-1]
    return _compare("Loss", "prediction", gradient, exact, classes, weight * (reference.soft_max(prediction) + labels))


def _arrays(step: Step | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    assert step is not None
    return np.array(step.source), np.array(step.source_gradient), np.array(step.destination_gradient)


def _relu(layer: ReLULayer) -> Iterator[Verification]:
    x, g, dx = _arrays(layer.step)
    yield _compare("NeuronGradient (ReLU)", "source", dx, reference.neuron_gradient(g, x, "relu"), 1, np.abs(g))


def _pooling(layer: PoolingMaxLayer) -> Iterator[Verification]:
    x, g, dx = _arrays(layer.step)
    kernel = layer.forward_kernel
    offset = layer.step.state.snapshot.offset  # type: ignore[union-attr]
    window: dict[str, Any] = {
        "kernel": (kernel.kernel_height, kernel.kernel_width),
        "stride": (kernel.stride_in_pixels_y, kernel.stride_in_pixels_x),
        "offset": (offset.y, offset.x),
        "size": g.shape[1:3],
    }
    exact = reference.pooling_max_gradient(g, x, **window)
    magnitude = reference.pooling_max_gradient(np.abs(g), x, **window)
    yield _compare("PoolingMaxGradient", "source", dx, exact, kernel.kernel_width * kernel.kernel_height, magnitude)


def _weighted(layer: ConvolutionLayer | FullyConnectedLayer) -> Iterator[Verification]:
    x, g, dx = _arrays(layer.step)
    name = type(layer.gradient_kernel).__name__
    state = layer.step.state  # type: ignore[union-attr]
    weights = np.asarray(layer.before_update.weights)  # type: ignore[union-attr]
    offset = state.snapshot.offset
    window: dict[str, Any] = {"offset": (offset.y, offset.x)}
    outputs, height, width, _ = weights.shape
    kernel = (height, width)
    data = {"source_size": x.shape[1:3], **window}
    yield _compare(
        name,
        "source",
        dx,
        reference.convolution_gradient_data(g, weights, **data),
        outputs * height * width,
        reference.convolution_gradient_data(np.abs(g), np.abs(weights), **data),
    )
    sums = g.shape[0] * g.shape[1] * g.shape[2]
    yield _compare(
        name,
        "weights",
        state.gradient_for_weights,
        reference.convolution_gradient_weights(g, x, kernel=kernel, **window),
        sums,
        reference.convolution_gradient_weights(np.abs(g), np.abs(x), kernel=kernel, **window),
    )
    yield _compare(
        name,
        "biases",
        state.gradient_for_biases,
        reference.convolution_gradient_biases(g),
        sums,
        reference.convolution_gradient_biases(np.abs(g)),
    )


def _normalization(layer: BatchNormalizationLayer) -> Iterator[Verification]:
    x, g, dx = _arrays(layer.step)
    state = layer.step.state  # type: ignore[union-attr]
    mean, variance = np.asarray(state.mean, np.float64), np.asarray(state.variance, np.float64)
    exact, exact_gamma, exact_beta = reference.batch_normalization_gradient(
        g, x, mean, variance, state.gamma, state.beta, layer.epsilon
    )
    count = x.shape[0] * x.shape[1] * x.shape[2]
    inverse = 1.0 / np.sqrt(variance + layer.epsilon)
    # x - mean is formed in float32, so its error is relative to the larger of the two and not to the difference.
    normalized = (np.abs(x) + np.abs(mean)) * inverse
    beta_magnitude = np.abs(g).sum((0, 1, 2), dtype=np.float64)
    gamma_magnitude = (np.abs(g) * normalized).sum((0, 1, 2))
    magnitude = np.abs(state.gamma) * inverse * (np.abs(g) + (beta_magnitude + normalized * gamma_magnitude) / count)
    statistics = "BatchNormalizationStatisticsGradient"
    yield _compare(statistics, "gamma", state.gradient_for_gamma, exact_gamma, count, gamma_magnitude)
    yield _compare(statistics, "beta", state.gradient_for_beta, exact_beta, count, beta_magnitude)
    yield _compare("BatchNormalizationGradient", "source", dx, exact, count, magnitude)


_VERIFIERS: dict[type, Any] = {
    ReLULayer: _relu,
    PoolingMaxLayer: _pooling,
    ConvolutionLayer: _weighted,
    FullyConnectedLayer: _weighted,
    BatchNormalizationLayer: _normalization,
}
