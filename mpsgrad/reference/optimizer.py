"""Optimizer steps on arrays of one shape. Each returns new values and new slots; nothing is changed in place."""

from __future__ import annotations

import math
from typing import Literal, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from .window import Array


class Preprocessing(TypedDict, total=False):
    """What MPSNNOptimizerDescriptor does to every gradient before the update."""

    gradient_rescale: float
    apply_gradient_clipping: bool
    gradient_clip_max: float
    gradient_clip_min: float
    regularization_type: Literal["none", "l1", "l2"]
    regularization_scale: float


def preprocess_gradient(
    gradient: npt.ArrayLike, values: npt.ArrayLike, **preprocessing: Unpack[Preprocessing]
) -> Array:
    """Clip, then rescale, then add the regularization.

        g1 = apply_gradient_clipping ? min(max(g, gradient_clip_min), gradient_clip_max) : g
        g2 = g1 * gradient_rescale
        g3 = g2 + regularization_scale * (l2: value | l1: sign(value) | none: 0)

    Defaults: no clipping, gradient_rescale 1, regularization_type "none".
    """
    g, v = np.asarray(gradient, np.float64), np.asarray(values, np.float64)
    if preprocessing.get("apply_gradient_clipping", False):
        g = np.minimum(np.maximum(g, preprocessing["gradient_clip_min"]), preprocessing["gradient_clip_max"])
    g = g * preprocessing.get("gradient_rescale", 1.0)
    scale = preprocessing.get("regularization_scale", 0.0)
    match preprocessing.get("regularization_type", "none"):
        case "none":
            return g
        case "l1":
            return g + scale * np.sign(v)
        case "l2":
            return g + scale * v
        case unknown:
            raise ValueError(f"regularization_type is {unknown!r} but must be 'none', 'l1' or 'l2'")


def stochastic_gradient_descent(
    gradient: npt.ArrayLike,
    values: npt.ArrayLike,
    momentum: npt.ArrayLike | None = None,
    *,
    learning_rate: float = 0.001,
    momentum_scale: float = 0.0,
    use_nesterov_momentum: bool = False,
    **preprocessing: Unpack[Preprocessing],
) -> tuple[Array, Array | None]:
    """New values and momentum (None when none is given) (MPSNNOptimizerStochasticGradientDescent).

        no momentum array:  v' = v - lr * g
        plain:              m' = momentum_scale * m + lr * g     v' = v - m'
        Nesterov:           m' = momentum_scale * m + g          v' = v - lr * (g + momentum_scale * m')
    """
    v = np.asarray(values, np.float64)
    g = preprocess_gradient(gradient, v, **preprocessing)
    if momentum is None:
        return v - learning_rate * g, None
    m = momentum_scale * np.asarray(momentum, np.float64)
    if use_nesterov_momentum:
        m = m + g
        return v - learning_rate * (g + momentum_scale * m), m
    m = m + learning_rate * g
    return v - m, m


def rms_prop(
    gradient: npt.ArrayLike,
    values: npt.ArrayLike,
    sum_of_squares: npt.ArrayLike,
    *,
    learning_rate: float = 0.001,
    decay: float = 0.9,
    epsilon: float = 1e-8,
    **preprocessing: Unpack[Preprocessing],
) -> tuple[Array, Array]:
    """New values and sum of squares: s' = decay * s + (1 - decay) * g^2, v' = v - lr * g / (sqrt(s') + epsilon)."""
    v = np.asarray(values, np.float64)
    g = preprocess_gradient(gradient, v, **preprocessing)
    s = decay * np.asarray(sum_of_squares, np.float64) + (1.0 - decay) * g * g
    return v - learning_rate * g / (np.sqrt(s) + epsilon), s


def adam(
    gradient: npt.ArrayLike,
    values: npt.ArrayLike,
    momentum: npt.ArrayLike,
    velocity: npt.ArrayLike,
    maximum_velocity: npt.ArrayLike | None = None,
    *,
    time_step: int,
    learning_rate: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    **preprocessing: Unpack[Preprocessing],
) -> tuple[Array, Array, Array, Array | None]:
    """New values, momentum, velocity and maximum velocity (None unless given, which makes it AMSGrad).

        t  = time_step + 1                     time_step counts the steps already taken: 0 at the first
        lt = lr * sqrt(1 - beta2^t) / (1 - beta1^t)
        m' = beta1 * m + (1 - beta1) * g       u' = beta2 * u + (1 - beta2) * g^2
        v' = v - lt * m' / (sqrt(u') + epsilon)            AMSGrad: max(maximum_velocity, u') for u'

    epsilon lies outside the bias correction, unlike PyTorch's (MPSNNOptimizerAdam).
    """
    v = np.asarray(values, np.float64)
    g = preprocess_gradient(gradient, v, **preprocessing)
    t = time_step + 1
    rate = learning_rate * math.sqrt(1.0 - beta2**t) / (1.0 - beta1**t)
    m = beta1 * np.asarray(momentum, np.float64) + (1.0 - beta1) * g
    u = beta2 * np.asarray(velocity, np.float64) + (1.0 - beta2) * g * g
    if maximum_velocity is None:
        return v - rate * m / (np.sqrt(u) + epsilon), m, u, None
    largest = np.maximum(np.asarray(maximum_velocity, np.float64), u)
    return v - rate * m / (np.sqrt(largest) + epsilon), m, u, largest
