"""Softmax cross-entropy: the mean loss over the batch, and its gradient with respect to the prediction.

Labels are a probability for each class, as MPS takes them. PyTorch runs the calls that its autograd would: once with
the same labels, and once with a class index for each row, which is less to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import mpsgrad as mg
from bench.case import Case
from bench.inputs import image, random_array, torch_tensors
from mpsgrad import reference
from mpsgrad.accuracy import assert_within, error_bound

SHAPES = ((4096, 1, 1, 1000),)
FUNCTION_ULPS = 8


def cases(dtype: str, device: mg.Device) -> Iterator[Case]:
    for shape in SHAPES:
        yield _case(shape, dtype, device)


def _case(shape: tuple[int, ...], dtype: str, device: mg.Device) -> Case:
    x, channels = random_array(shape, dtype), shape[3]
    classes = np.random.default_rng(1).integers(0, channels, x[..., 0].size)
    labels = np.eye(channels, dtype=np.float32)[classes].reshape(shape)
    source = image(x, device)
    targets = mg.LossLabels.from_images(image(labels, device))
    descriptor = mg.LossDescriptor("softmax_cross_entropy", "mean", reduce_across_batch=True)
    kernel = mg.Loss(descriptor, gradient_follows_reduction=True, device=device)

    def encode(commands: mg.CommandBuffer) -> Any:
        return kernel.encode(commands, source, targets)

    def check(actual: mg.Image) -> None:
        exact = reference.loss(x, labels, "softmax_cross_entropy", reduction="mean", reduce_across_batch=True)
        magnitude = np.abs(exact) + np.abs(x).max()
        terms = channels + x[..., 0].size
        bound = error_bound(np.float32, terms, magnitude, exact, function_ulps=FUNCTION_ULPS)
        assert_within(np.asarray(targets.loss_image), exact, bound, name="loss")
        few = slice(0, 64)
        scale = 1 / x[..., 0].size
        powers = reference.soft_max(x[few])
        exact = scale * (powers - labels[few])
        magnitude = scale * (powers + labels[few])
        bound = error_bound(actual.dtype, channels, magnitude, exact, function_ulps=FUNCTION_ULPS)
        assert_within(np.asarray(actual)[few], exact, bound, name="gradient")

    return Case(
        "loss_softmax_cross_entropy",
        "x".join(map(str, shape)),
        dtype,
        2 * x.nbytes + labels.nbytes,
        encode,
        check,
        torch_calls=_torch_calls(x.reshape(-1, channels), labels.reshape(-1, channels), classes),
    )


def _torch_calls(x: np.ndarray, labels: np.ndarray, classes: np.ndarray) -> dict[str, Callable[[], Any]]:
    tensors = torch_tensors(x, labels.astype(x.dtype), classes)
    if tensors is None:
        return {}
    import torch

    aten, (prediction, probabilities, indices) = torch.ops.aten, tensors
    mean = 1
    one = torch.ones((), dtype=prediction.dtype)

    def with_probabilities() -> Any:
        result = torch.log_softmax(prediction, 1)
        loss = (probabilities * result).sum() / -len(result)
        gradient = aten._log_softmax_backward_data(probabilities / -len(result), result, 1, result.dtype)
        return loss, gradient

    def with_indices() -> Any:
        result = torch.log_softmax(prediction, 1)
        loss, total_weight = aten.nll_loss_forward(result, indices, None, mean, -100)
        gradient = aten.nll_loss_backward(one, result, indices, None, mean, -100, total_weight)
        return loss, aten._log_softmax_backward_data(gradient, result, 1, result.dtype)

    return {"probabilities": with_probabilities, "class indices": with_indices}
