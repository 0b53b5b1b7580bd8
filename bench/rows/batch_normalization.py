"""Batch normalization of one training step: statistics and forward, and both phases of the gradient."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import mpsgrad as mg
from bench.case import Case
from bench.inputs import image, random_array, torch_layouts
from mpsgrad import reference
from mpsgrad.accuracy import assert_within, error_bound

SHAPES = ((16, 56, 56, 64), (16, 14, 14, 256))
EPSILON = 1e-5


def cases(dtype: str, device: mg.Device) -> Iterator[Case]:
    for shape in SHAPES:
        x, g = random_array(shape, dtype), random_array(shape, dtype, 1)
        text, pixels = "x".join(map(str, shape)), x[..., 0].size
        gamma = np.linspace(0.5, 1.5, shape[3]).astype(np.float32)
        beta = np.linspace(-1, 1, shape[3]).astype(np.float32)
        data_source = mg.BatchNormalizationDataSource.from_arrays(gamma, beta, epsilon=EPSILON)
        forward = mg.BatchNormalization(data_source, device=device)
        statistics = mg.BatchNormalizationStatistics(device=device)
        sums = mg.BatchNormalizationStatisticsGradient(device=device)
        gradient = mg.BatchNormalizationGradient(device=device)
        source, incoming = image(x, device), image(g, device)
        sources, gradients = source.batch_representation(), incoming.batch_representation()
        # One image takes every result, as PyTorch's allocator hands out the block that the call before gave back.
        result = mg.Image(source.descriptor, device)
        state = forward.result_state(source)
        kept = forward.result_state(source)
        with mg.CommandBuffer(device) as commands:
            statistics.encode_batch(commands, sources, kept)

        encode_forward = partial(_encode_forward, statistics, forward, sources, source, state, result)
        encode_gradient = partial(
            _encode_gradient, sums, gradient, gradients, sources, incoming, source, kept, result
        )

        def check_forward(
            actual: mg.Image, x: np.ndarray = x, gamma: np.ndarray = gamma, beta: np.ndarray = beta
        ) -> None:
            mean, variance = reference.batch_normalization_statistics(x)
            exact = reference.batch_normalization(x, mean, variance, gamma, beta, EPSILON)
            magnitude = np.abs(exact - beta) + np.abs(beta) + 1
            assert_within(np.asarray(actual), exact, error_bound(actual.dtype, 16, magnitude, exact))

        def check_gradient(
            actual: mg.Image,
            x: np.ndarray = x,
            g: np.ndarray = g,
            gamma: np.ndarray = gamma,
            beta: np.ndarray = beta,
            pixels: int = pixels,
        ) -> None:
            mean, variance = reference.batch_normalization_statistics(x)
            exact, _, _ = reference.batch_normalization_gradient(g, x, mean, variance, gamma, beta, EPSILON)
            magnitude = 2 * (np.abs(g) + 1 + np.abs(x))
            assert_within(np.asarray(actual), exact, error_bound(actual.dtype, 16, magnitude, exact))

        torch_x, torch_g = torch_layouts(x), torch_layouts(g, x)
        yield Case(
            "batch_normalization",
            text,
            dtype,
            3 * x.nbytes,
            encode_forward,
            check_forward,
            torch_calls={layout: partial(_forward, *tensors, gamma, beta) for layout, tensors in torch_x.items()},
        )
        yield Case(
            "batch_normalization_gradient",
            text,
            dtype,
            5 * x.nbytes,
            encode_gradient,
            check_gradient,
            torch_calls={layout: _gradient(*tensors, gamma, beta) for layout, tensors in torch_g.items()},
        )


def _encode_forward(
    statistics: Any,
    forward: Any,
    sources: Any,
    source: Any,
    state: Any,
    result: mg.Image,
    commands: mg.CommandBuffer,
) -> mg.Image:
    statistics.encode_batch(commands, sources, state)
    forward.encode(commands, source, batch_normalization_state=state, destination_image=result)
    return result


def _encode_gradient(
    sums: Any,
    gradient: Any,
    gradients: Any,
    sources: Any,
    incoming: Any,
    source: Any,
    state: Any,
    result: mg.Image,
    commands: mg.CommandBuffer,
) -> mg.Image:
    sums.encode_batch(commands, gradients, sources, state)
    gradient.encode(commands, incoming, source, state, destination_gradient=result)
    return result


def _forward(x, gamma, beta):  # type: ignore[no-untyped-def]
    import torch

    weight, bias = torch.from_numpy(gamma), torch.from_numpy(beta)
    return torch.ops.aten.native_batch_norm(x, weight, bias, None, None, True, 0.1, EPSILON)


def _gradient(g, x, gamma, beta):  # type: ignore[no-untyped-def]
    import torch

    _, mean, inverse = _forward(x, gamma, beta)
    weight = torch.from_numpy(gamma)
    backward = torch.ops.aten.native_batch_norm_backward
    return lambda: backward(g, x, weight, None, None, mean, inverse, True, EPSILON, [True, True, True])
