"""Neurons (activations): the function, its derivative, and the gradient of the PReLU slopes.

`type` is MPS's name in snake case. Parameters a, b, c left as None take the type's default from `NEURON_DEFAULTS`.
"""

from __future__ import annotations

import math
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from .window import Array

NEURON_DEFAULTS: dict[str, tuple[float, float, float]] = {
    "none": (0.0, 0.0, 0.0),
    "relu": (0.0, 0.0, 0.0),
    "linear": (1.0, 0.0, 0.0),
    "sigmoid": (0.0, 0.0, 0.0),
    "hard_sigmoid": (0.2, 0.5, 0.0),
    "tanh": (1.0, 1.0, 0.0),
    "absolute": (0.0, 0.0, 0.0),
    "soft_plus": (1.0, 1.0, 0.0),
    "soft_sign": (0.0, 0.0, 0.0),
    "elu": (1.0, 0.0, 0.0),
    "prelu": (0.0, 0.0, 0.0),
    "relun": (1.0, 6.0, 0.0),
    "power": (1.0, 0.0, 1.0),
    "exponential": (1.0, 0.0, -1.0),
    "logarithm": (1.0, 0.0, -1.0),
    "gelu": (0.0, 0.0, 0.0),
}
"""Parameters (a, b, c) of each type when none are given; 0 where the type has no such parameter."""

BASE_E = -1.0
"""The value of c that stands for base e in "exponential" and "logarithm"."""


class NeuronArguments(TypedDict, total=False):
    """A fused neuron: the keyword arguments of `neuron`."""

    type: str
    a: float | None
    b: float | None
    c: float | None
    slopes: npt.ArrayLike | None


def _parameters(
    x: Array, type: str, a: float | None, b: float | None, c: float | None, slopes: npt.ArrayLike | None
) -> tuple[float, float, float, Array]:
    """The parameters with the defaults filled in; the slopes are empty unless the type is "prelu"."""
    if type not in NEURON_DEFAULTS:
        raise ValueError(f"neuron type is {type!r} but must be one of {', '.join(NEURON_DEFAULTS)}")
    if (type == "prelu") != (slopes is not None):
        raise ValueError(f"slopes go with neuron type 'prelu' only, and it needs them; type is {type!r}")
    s = np.asarray([] if slopes is None else slopes, np.float64)
    if slopes is not None and s.shape != x.shape[-1:]:
        raise ValueError(f"slopes have shape {s.shape} but x has {x.shape[-1]} feature channels")
    given = zip((a, b, c), NEURON_DEFAULTS[type], strict=True)
    a, b, c = (default if value is None else float(value) for value, default in given)
    return a, b, c, s


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow and with full relative accuracy for very negative x."""
    return np.exp(-np.logaddexp(0.0, -x))


def _leaky(x: Array, a: float) -> Array:
    """x >= 0 ? x : a x, where 0 times -infinity is 0."""
    return np.where(x >= 0, x, a * (np.maximum(x, np.finfo(x.dtype).min) if a == 0 else x))


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def neuron(
    source: npt.ArrayLike,
    type: str,
    a: float | None = None,
    b: float | None = None,
    c: float | None = None,
    slopes: npt.ArrayLike | None = None,
) -> Array:
    """f(x) for every element (MPSCNNNeuron).

    source: any shape with the feature channels last. slopes: one a[c] per feature channel, for "prelu".

        none          x                              soft_sign    x / (1 + |x|)
        relu          x >= 0 ? x : a x               elu          x >= 0 ? x : a (e^x - 1)
        linear        a x + b                        prelu        x >= 0 ? x : a[c] x
        sigmoid       1 / (1 + e^-x)                 relun        min(x >= 0 ? x : a x, b)
        hard_sigmoid  clamp(a x + b, 0, 1)           power        (a x + b)^c
        tanh          a tanh(b x)                    exponential  c^(a x + b), c = -1: e^(a x + b)
        absolute      |x|                            logarithm    log_c(a x + b), c = -1: ln(a x + b)
        soft_plus     a ln(1 + e^(b x))              gelu         x (1 + erf(x / sqrt 2)) / 2
    """
    x = np.asarray(source, np.float64)
    a, b, c, s = _parameters(x, type, a, b, c, slopes)
    with np.errstate(all="ignore"):
        match type:
            case "none":
                return x.copy()
            case "relu":
                return _leaky(x, a)
            case "linear":
                return a * x + b
            case "sigmoid":
                return _sigmoid(x)
            case "hard_sigmoid":
                return np.clip(a * x + b, 0.0, 1.0)
            case "tanh":
                return a * np.tanh(b * x)
            case "absolute":
                return np.abs(x)
            case "soft_plus":
                return a * np.logaddexp(0.0, b * x)
            case "soft_sign":
                return x / (1.0 + np.abs(x))
            case "elu":
                return np.where(x >= 0, x, a * np.expm1(x))
            case "prelu":
                return np.where(x >= 0, x, s * x)
            case "relun":
                return np.minimum(_leaky(x, a), b)
            case "power":
                return np.power(a * x + b, c)
            case "exponential":
                return np.exp(a * x + b) if c == BASE_E else np.power(c, a * x + b)
            case "logarithm":
                return np.log(a * x + b) if c == BASE_E else np.log(a * x + b) / np.log(c)
            case _:
                return 0.5 * x * (1.0 + _erf(x * math.sqrt(0.5)))


def neuron_derivative(
    source: npt.ArrayLike,
    type: str,
    a: float | None = None,
    b: float | None = None,
    c: float | None = None,
    slopes: npt.ArrayLike | None = None,
) -> Array:
    """f'(x) for every element; `source` is the forward pass's input.

    At a kink the value is MPS's: the upper piece of relu, elu and prelu at 0, a at both ends of hard_sigmoid, 0 for
    absolute at 0. relun is 0 wherever the forward result is cut at b (Apple prints b there, and tests x >= b, which is
    the same for b >= 0 and a >= 0). The second term of gelu is half of what Apple prints.
    """
    x = np.asarray(source, np.float64)
    a, b, c, s = _parameters(x, type, a, b, c, slopes)
    with np.errstate(all="ignore"):
        match type:
            case "none":
                return np.ones_like(x)
            case "relu":
                return np.where(x >= 0, 1.0, a)
            case "linear":
                return np.full_like(x, a)
            case "sigmoid":
                return _sigmoid(x) * _sigmoid(-x)
            case "hard_sigmoid":
                return np.where((a * x + b >= 0) & (a * x + b <= 1), a, 0.0)
            case "tanh":
                return a * b * (1.0 - np.tanh(b * x) ** 2)
            case "absolute":
                return np.sign(x)
            case "soft_plus":
                return a * b * _sigmoid(b * x)
            case "soft_sign":
                return 1.0 / (1.0 + np.abs(x)) ** 2
            case "elu":
                return np.where(x >= 0, 1.0, a * np.exp(x))
            case "prelu":
                return np.where(x >= 0, 1.0, s)
            case "relun":
                return np.where(np.where(x >= 0, x, a * x) >= b, 0.0, np.where(x >= 0, 1.0, a))
            case "power":
                return np.zeros_like(x) if c == 0 else a * c * np.power(a * x + b, c - 1.0)
            case "exponential":
                return a * np.exp(a * x + b) if c == BASE_E else a * np.log(c) * np.power(c, a * x + b)
            case "logarithm":
                return a / (a * x + b) if c == BASE_E else a / (np.log(c) * (a * x + b))
            case _:
                density = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
                return 0.5 * (1.0 + _erf(x * math.sqrt(0.5))) + x * density


def neuron_gradient(
    source_gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    type: str,
    a: float | None = None,
    b: float | None = None,
    c: float | None = None,
    slopes: npt.ArrayLike | None = None,
) -> Array:
    """dx = g * f'(x), x being the forward pass's input (MPSCNNNeuronGradient)."""
    return np.asarray(source_gradient, np.float64) * neuron_derivative(source, type, a, b, c, slopes)


def prelu_gradient_slopes(source_gradient: npt.ArrayLike, source: npt.ArrayLike) -> Array:
    """da[c] = sum over images and pixels with x < 0 of g * x; MPS has no counterpart."""
    g, x = np.asarray(source_gradient, np.float64), np.asarray(source, np.float64)
    return np.where(x < 0, g * x, 0.0).reshape(-1, x.shape[-1]).sum(axis=0)
