"""Running error analysis: float64 values beside bounds of how far a float32 computation may lie from them.

Each function takes over the errors of what it reads, spread as the derivative or the Lipschitz constant of its formula
spreads them, and adds the rounding of one kernel, ``mpsgrad.accuracy.error_bound`` (Higham, Accuracy and Stability of
Numerical Algorithms, section 3.3). Nothing is fitted to results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpsgrad import reference
from mpsgrad.accuracy import assert_within, error_bound

FUNCTION_ULPS = 8
"""The accuracy of ``exp``, ``tanh`` and divisions by a kernel, in units of the last place of float32."""
STEEPEST = {"tanh": (1.0, 4 / 27**0.5), "sigmoid": (0.25, 1 / (6 * 3**0.5))}
"""The largest absolute values of a function's first and second derivative."""


@dataclass(frozen=True)
class Bounded:
    """What float32 computes lies within ``error`` of ``value``."""

    value: np.ndarray
    error: np.ndarray

    @classmethod
    def exact(cls, value: Any) -> Bounded:
        array = np.asarray(value, np.float64)
        return cls(array, np.zeros_like(array))

    @property
    def size(self) -> np.ndarray:
        """The largest absolute value that it may have."""
        return np.abs(self.value) + self.error

    def require(self, found: Any, name: str) -> None:
        """Fails unless ``found`` lies within the bounds."""
        assert_within(np.asarray(found), self.value, self.error, name=name)


def rounded(value: np.ndarray, error: np.ndarray, terms: int, magnitude: Any, ulps: float = 0.0) -> Bounded:
    """``value`` off by ``error`` before a kernel that adds ``terms`` terms of ``magnitude`` together rounds it."""
    return Bounded(value, error + error_bound(np.float32, terms, magnitude, value, function_ulps=ulps))


def linear(form: Callable[[Any], np.ndarray], source: Bounded, terms: int, factor: float = 1.0) -> Bounded:
    """``factor`` times ``form``, which adds up ``terms`` elements with coefficients that are not negative."""
    return rounded(
        factor * form(source.value), abs(factor) * form(source.error), terms, abs(factor) * form(source.size)
    )


def bilinear(
    form: Callable[[Any, Any], np.ndarray], one: Bounded, other: Bounded, terms: int, ulps: float = 0.0
) -> Bounded:
    """``form``, which adds up ``terms`` products of an element of each."""
    largest = form(one.size, other.size)
    error = largest - form(np.abs(one.value), np.abs(other.value))
    return rounded(form(one.value, other.value), error, terms, largest, ulps)


def total(parts: Sequence[Bounded], factors: Sequence[float] | None = None) -> Bounded:
    """The sum of ``factors[i] * parts[i]``, in any order."""
    factors = [1.0] * len(parts) if factors is None else factors
    weighted = list(zip(factors, parts, strict=True))
    value = sum((factor * part.value for factor, part in weighted), np.zeros(()))
    error = sum((abs(factor) * part.error for factor, part in weighted), np.zeros(()))
    size = sum((abs(factor) * part.size for factor, part in weighted), np.zeros(()))
    return rounded(value, error, 2 * len(parts), size) if len(parts) > 1 or factors[0] != 1 else parts[0]


def convolution(source: Bounded, weights: np.ndarray, biases: np.ndarray) -> Bounded:
    """A convolution that keeps the size of its source."""
    geometry = {"size": source.value.shape[1:3]}
    spread = reference.convolution(source.error, np.abs(weights), **geometry)
    size = reference.convolution(source.size, np.abs(weights), np.abs(biases), **geometry)
    value = reference.convolution(source.value, weights, biases, **geometry)
    return rounded(value, spread, weights[0].size + 1, size)


def convolution_gradients(
    gradient: Bounded, source: Bounded, weights: np.ndarray
) -> tuple[Bounded, Bounded, Bounded]:
    """For the source, the weights and the biases."""
    size, kernel = source.value.shape[1:3], weights.shape[1:3]

    def data(one: Any, other: Any) -> np.ndarray:
        return reference.convolution_gradient_data(one, other, source_size=size)

    def of_weights(one: Any, other: Any) -> np.ndarray:
        return reference.convolution_gradient_weights(one, other, kernel=kernel)

    pixels = gradient.value[..., 0].size
    return (
        bilinear(data, gradient, Bounded.exact(weights), weights[..., 0].size),
        bilinear(of_weights, gradient, source, pixels),
        linear(reference.convolution_gradient_biases, gradient, pixels),
    )


def smooth(kind: str, source: Bounded) -> Bounded:
    """A neuron of ``STEEPEST``."""
    value = reference.neuron(source.value, kind)
    slope, _ = STEEPEST[kind]
    return rounded(value, slope * source.error, 1, np.abs(value) + slope * source.size, FUNCTION_ULPS)


def smooth_gradient(kind: str, gradient: Bounded, source: Bounded) -> Bounded:
    slope, bend = STEEPEST[kind]
    derivative = rounded(
        reference.neuron_derivative(source.value, kind), bend * source.error, 1, slope, FUNCTION_ULPS
    )
    return bilinear(np.multiply, gradient, derivative, 1)


def leaky(source: Bounded, a: float) -> Bounded:
    """``max(x, a x)`` with ``0 <= a <= 1``."""
    value = reference.neuron(source.value, "relu", a=a)
    return rounded(value, source.error, 1, np.abs(value))


def leaky_gradient(gradient: Bounded, source: Bounded, a: float) -> Bounded:
    """The derivative is uncertain where the sign of the source is."""
    derivative = reference.neuron_derivative(source.value, "relu", a=a)
    uncertain = np.where(np.abs(source.value) <= source.error, 1 - a, 0.0)
    return bilinear(np.multiply, gradient, Bounded(derivative, uncertain), 1)


_HALVES: dict[str, Any] = {"kernel": (2, 2), "stride": (2, 2), "offset": (1, 1)}


def _halved(source: np.ndarray) -> dict[str, Any]:
    return {**_HALVES, "size": (source.shape[1] // 2, source.shape[2] // 2)}


def pooling_max(source: Bounded) -> Bounded:
    """Windows of 2 x 2 pixels side by side: the largest is off by at most the largest error."""
    value = reference.pooling_max(source.value, **_halved(source.value))
    return Bounded(value, reference.pooling_max(source.error, **_halved(source.value)))


def pooling_max_gradient(gradient: Bounded, source: Bounded) -> Bounded:
    """Which pixel of a window gets the gradient is uncertain where two may be the largest."""
    value = reference.pooling_max_gradient(gradient.value, source.value, **_halved(source.value))
    largest = reference.pooling_max(source.value - source.error, **_halved(source.value))
    may_win = source.value + source.error >= _spread(largest)
    count = reference.pooling_average(may_win.astype(float), **_halved(source.value)) * 4
    error = np.where(_spread(count) > 1, _spread(gradient.size), _spread(gradient.error))
    # Neither the pixel that wins in float64 nor the others may get more than the whole gradient.
    return Bounded(value, np.where(may_win, error, 0.0))


def _spread(array: np.ndarray) -> np.ndarray:
    return array.repeat(2, axis=1).repeat(2, axis=2)


def pooling_average(source: Bounded) -> Bounded:
    return linear(lambda x: reference.pooling_average(x, **_halved(x)), source, 4)


def pooling_average_gradient(gradient: Bounded) -> Bounded:
    return linear(lambda g: _spread(g) / 4, gradient, 1)


def soft_max(source: Bounded) -> Bounded:
    """If all sources are off by at most e, each power and their sum are off by factors between exp(-e) and exp(e)."""
    value = reference.soft_max(source.value)
    largest = source.error.max(axis=-1, keepdims=True)
    spread = np.ptp(source.value, axis=-1, keepdims=True) + 2 * largest
    factor = np.exp(2 * largest)
    return rounded(
        value, value * (factor - 1), value.shape[-1], value * factor * (1 + spread), FUNCTION_ULPS
    )


def soft_max_gradient(gradient: Bounded, result: Bounded) -> Bounded:
    """``y (g - sum g y)`` of the ``result`` y."""
    inner = bilinear(lambda g, y: (g * y).sum(axis=-1, keepdims=True), gradient, result, result.value.shape[-1])
    return bilinear(np.multiply, result, total([gradient, inner], [1.0, -1.0]), 1)


def upsampling(source: Bounded) -> Bounded:
    return Bounded(_spread(source.value), _spread(source.error))


def upsampling_gradient(gradient: Bounded) -> Bounded:
    return linear(lambda g: reference.pooling_average(g, **_halved(g)) * 4, gradient, 4)


def spatial_mean(source: Bounded) -> Bounded:
    pixels = source.value.shape[1] * source.value.shape[2]
    return linear(lambda x: x.mean(axis=(1, 2), keepdims=True), source, pixels)


def spatial_mean_gradient(gradient: Bounded, size: int) -> Bounded:
    shape = (gradient.value.shape[0], size, size, gradient.value.shape[3])
    return linear(lambda g: np.broadcast_to(g / size**2, shape).copy(), gradient, 1)


def concatenation(sources: Sequence[Bounded]) -> Bounded:
    parts = [[getattr(source, name) for source in sources] for name in ("value", "error")]
    return Bounded(*(reference.concatenation(each) for each in parts))


def concatenation_gradients(gradient: Bounded, channels: Sequence[int]) -> list[Bounded]:
    values, errors = (reference.concatenation_gradient(each, channels) for each in (gradient.value, gradient.error))
    return [Bounded(*pair) for pair in zip(values, errors, strict=True)]


def squared_error(prediction: Bounded, labels: np.ndarray) -> tuple[Bounded, Bounded]:
    """The sum of the squared differences of each image, and its gradient for the prediction."""
    difference = total([prediction, Bounded.exact(labels)], [1.0, -1.0])
    loss = bilinear(
        lambda one, other: (one * other).sum(axis=(1, 2, 3), keepdims=True), difference, difference, labels[0].size
    )
    return loss, linear(lambda d: d, difference, 1, 2.0)
