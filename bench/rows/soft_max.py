"""Softmax over the feature channels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

import mpsgrad as mg
from bench.case import Case
from bench.inputs import image, random_array, torch_layouts
from mpsgrad import reference
from mpsgrad.accuracy import assert_within, error_bound

SHAPES = ((16, 56, 56, 64), (4096, 1, 1, 1000))


def cases(dtype: str, device: mg.Device) -> Iterator[Case]:
    for shape in SHAPES:
        x, g = random_array(shape, dtype), random_array(shape, dtype, 1)
        y = np.asarray(reference.soft_max(x[:1])).astype(dtype)
        text, nbytes, channels = "x".join(map(str, shape)), x.nbytes, shape[3]
        forward, gradient = mg.SoftMax(device=device), mg.SoftMaxGradient(device=device)
        source, incoming = image(x, device), image(g, device)
        with mg.CommandBuffer(device) as commands:
            result, state = forward.encode(commands, source, return_state=True)
        y = np.asarray(result)

        def check_forward(actual: mg.Image, x: np.ndarray = x, channels: int = channels) -> None:
            exact = reference.soft_max(x[:1])
            bound = error_bound(actual.dtype, channels, exact, exact, function_ulps=8)
            assert_within(np.asarray(actual)[:1], exact, bound)

        def check_gradient(
            actual: mg.Image, g: np.ndarray = g, y: np.ndarray = y, channels: int = channels
        ) -> None:
            exact = reference.soft_max_gradient(g[:1], y[:1])
            magnitude = np.abs(y[:1]) * (np.abs(g[:1]) + np.abs(g[:1] * y[:1]).sum(-1, keepdims=True))
            assert_within(np.asarray(actual)[:1], exact, error_bound(actual.dtype, channels, magnitude, exact))

        torch_x, torch_g = torch_layouts(x), torch_layouts(g, y)
        yield Case(
            "soft_max",
            text,
            dtype,
            2 * nbytes,
            partial(forward.encode, source_image=source),
            check_forward,
            torch_calls={layout: partial(_forward, *tensors) for layout, tensors in torch_x.items()},
        )
        yield Case(
            "soft_max_gradient",
            text,
            dtype,
            3 * nbytes,
            partial(gradient.encode, source_gradient=incoming, source_image=result, gradient_state=state),
            check_gradient,
            torch_calls={layout: partial(_gradient, *tensors) for layout, tensors in torch_g.items()},
        )


def _forward(x):  # type: ignore[no-untyped-def]
    import torch

    return torch.softmax(x, 1)


def _gradient(g, y):  # type: ignore[no-untyped-def]
    import torch

    return torch.ops.aten._softmax_backward_data(g, y, 1, y.dtype)
