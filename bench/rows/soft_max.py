"""Softmax and log-softmax over the feature channels, and their gradients.

PyTorch also gets the pixels as the rows of a matrix, in which the channels are the last axis: the same memory as NHWC,
and its fastest case.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import mpsgrad as mg
from bench.case import Case
from bench.inputs import image, random_array, torch_layouts, torch_matrices
from mpsgrad import reference
from mpsgrad.accuracy import assert_within, error_bound

SHAPES = ((16, 56, 56, 64), (4096, 1, 1, 1000))
FUNCTION_ULPS = 8


def cases(dtype: str, device: mg.Device) -> Iterator[Case]:
    for shape in SHAPES:
        source = image(random_array(shape, dtype), device)
        incoming = image(random_array(shape, dtype, 1), device)
        for op, forward, gradient in (
            ("soft_max", mg.SoftMax, mg.SoftMaxGradient),
            ("log_soft_max", mg.LogSoftMax, mg.LogSoftMaxGradient),
        ):
            yield from _cases(op, forward(device=device), gradient(device=device), source, incoming)


def _cases(
    op: str, forward: mg.SoftMax, gradient: mg.SoftMaxGradient, source: mg.Image, incoming: mg.Image
) -> Iterator[Case]:
    x, g = np.asarray(source), np.asarray(incoming)
    text, dtype, channels = "x".join(map(str, x.shape)), x.dtype.name, x.shape[3]
    with mg.CommandBuffer(source.device) as commands:
        result, state = forward.encode(commands, source, return_state=True)
    y = np.asarray(result)
    is_logarithm = op == "log_soft_max"
    value, derivative = getattr(reference, op), getattr(reference, f"{op}_gradient")

    def check_forward(actual: mg.Image) -> None:
        exact = value(x[:1])
        magnitude = np.abs(exact) + 2 * np.abs(x[:1]).max(-1, keepdims=True) if is_logarithm else exact
        bound = error_bound(actual.dtype, channels, magnitude, exact, function_ulps=FUNCTION_ULPS)
        assert_within(np.asarray(actual)[:1], exact, bound)

    def check_gradient(actual: mg.Image) -> None:
        exact = derivative(g[:1], y[:1])
        if is_logarithm:
            magnitude = np.abs(g[:1]) + np.exp(y[:1].astype(np.float64)) * np.abs(g[:1]).sum(-1, keepdims=True)
        else:
            magnitude = y[:1] * (np.abs(g[:1]) + np.abs(g[:1] * y[:1]).sum(-1, keepdims=True))
        bound = error_bound(actual.dtype, channels, magnitude, exact, function_ulps=FUNCTION_ULPS)
        assert_within(np.asarray(actual)[:1], exact, bound)

    yield Case(
        op,
        text,
        dtype,
        2 * x.nbytes,
        partial(forward.encode, source_image=source),
        check_forward,
        torch_calls={layout: partial(_forward, op, *t) for layout, t in _layouts(x).items()},
    )
    yield Case(
        f"{op}_gradient",
        text,
        dtype,
        3 * x.nbytes,
        partial(gradient.encode, source_gradient=incoming, source_image=result, gradient_state=state),
        check_gradient,
        torch_calls={layout: partial(_gradient, op, *t) for layout, t in _layouts(g, y).items()},
    )


def _layouts(*arrays: np.ndarray) -> dict[str, list[Any]]:
    return torch_layouts(*arrays) | torch_matrices(*arrays)


def _forward(op, x):  # type: ignore[no-untyped-def]
    import torch

    return torch.log_softmax(x, 1) if op == "log_soft_max" else torch.softmax(x, 1)


def _gradient(op, g, y):  # type: ignore[no-untyped-def]
    import torch

    aten = torch.ops.aten
    backward = aten._log_softmax_backward_data if op == "log_soft_max" else aten._softmax_backward_data
    return backward(g, y, 1, y.dtype)
