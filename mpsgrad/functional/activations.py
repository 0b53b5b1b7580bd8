"""Neurons, softmax and dropout, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.functional.arrays import run_both, run_forward, run_gradient
from mpsgrad.functional.kept import kept
from mpsgrad.geometry import member
from mpsgrad.kernels.dropout import Dropout, DropoutGradient
from mpsgrad.kernels.neuron import Neuron
from mpsgrad.kernels.neuron_descriptor import NeuronDescriptor, NeuronType
from mpsgrad.kernels.neuron_gradient import NeuronGradient
from mpsgrad.kernels.soft_max import LogSoftMax, LogSoftMaxGradient, SoftMax, SoftMaxGradient


def dropout(source: Any, keep_probability: float, *, seed: int = 0) -> np.ndarray:
    """``x / keep_probability`` where the mask that ``seed`` draws keeps it, else 0.

    ``keep_probability`` is 1 less PyTorch's ``p``. One seed draws one mask for a shape, on every device. Source:
    ``Dropout``.
    """
    return run_forward(Dropout(keep_probability, seed=seed), source)


def dropout_gradient(source_gradient: Any, keep_probability: float, *, seed: int = 0) -> np.ndarray:
    """The gradient of ``dropout`` with the same ``seed``: ``g / keep_probability`` where the mask kept it, else 0.

    Source: ``DropoutGradient``.
    """
    forward, gradient = Dropout(keep_probability, seed=seed), DropoutGradient(keep_probability, seed=seed)
    return run_both(forward, gradient, source_gradient, source_gradient)[0]


def soft_max(source: Any) -> np.ndarray:
    """``exp(x) / sum(exp(x))`` over the channels of each pixel. Source: ``SoftMax``."""
    return run_forward(kept(SoftMax), source)


def soft_max_gradient(source_gradient: Any, result: Any) -> np.ndarray:
    """The gradient of ``soft_max``, ``y (g - sum(g y))``; takes the forward **result** ``y``, not the source.

    Source: ``SoftMaxGradient``.
    """
    return run_gradient(kept(SoftMax), kept(SoftMaxGradient), source_gradient, result)[0]


def log_soft_max(source: Any) -> np.ndarray:
    """``x - log(sum(exp(x)))`` over the channels of each pixel. Source: ``LogSoftMax``."""
    return run_forward(kept(LogSoftMax), source)


def log_soft_max_gradient(source_gradient: Any, result: Any) -> np.ndarray:
    """The gradient of ``log_soft_max``, ``g - exp(y) sum(g)``; takes the forward **result** ``y``, not the source.

    Source: ``LogSoftMaxGradient``.
    """
    return run_gradient(kept(LogSoftMax), kept(LogSoftMaxGradient), source_gradient, result)[0]


def _neuron(cls: type[Neuron | NeuronGradient], neuron_type: str | NeuronType, /, **parameters: Any) -> Any:
    return cls(NeuronDescriptor(member("neuron", "neuron_type", NeuronType, neuron_type), **parameters))


def neuron(source: Any, neuron_type: str | NeuronType, **parameters: Any) -> np.ndarray:
    """The activation ``neuron_type``: none, relu, linear, sigmoid, hard_sigmoid, tanh, absolute, soft_plus, soft_sign,
    elu, prelu, relun, power, exponential, logarithm or gelu.

    ``parameters`` are its ``a``, ``b``, ``c`` or, for prelu, ``data`` with a slope for each channel;
    ``NeuronDescriptor`` has the formulas and what they are at first. Source: ``Neuron``.
    """
    return run_forward(kept(_neuron, Neuron, neuron_type, **parameters), source)


def neuron_gradient(source_gradient: Any, source: Any, neuron_type: str | NeuronType, **parameters: Any) -> np.ndarray:
    """The gradient of ``neuron``, ``g f'(x)`` for its source ``x``. Source: ``NeuronGradient``."""
    forward, gradient = (kept(_neuron, cls, neuron_type, **parameters) for cls in (Neuron, NeuronGradient))
    return run_gradient(forward, gradient, source_gradient, source)[0]
