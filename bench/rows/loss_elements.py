"""Losses of single elements: the mean over the batch, and its gradient with respect to the prediction.

Labels are float32, as MPS takes them; PyTorch gets them in the dtype of the prediction, which is less to read for
float16. It runs the calls that its autograd would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import mpsgrad as mg
from bench.case import Case, Part, TorchCall, Work
from bench.drawn import Draw
from bench.inputs import RandomArray, empty_image
from bench.shapes import AWKWARD, SMALL, Shape, in_groups, text
from mpsgrad import reference
from mpsgrad.accuracy import error_bound

DESIGN: Mapping[str, tuple[Shape, ...]] = {"cpu": ((16, 56, 56, 64),), "gpu": ((32, 112, 112, 64),)}
OTHERS: Mapping[str, tuple[Shape, ...]] = {"unet": ((32, 128, 128, 2),), "awkward": AWKWARD, "small": (SMALL,)}
FUNCTION_ULPS = 12
DELTA = 1.0
MOST_ELEMENTS = 2**23
"""More are not drawn: the exact mean loss is that of the whole batch."""


class Op(NamedTuple):
    """``torch_call`` takes prediction, labels and a 1, and returns the mean loss and its gradient."""

    kind: Any
    torch_call: Callable[..., Any]
    operations: int


def _mean_squared_error(x: Any, t: Any, one: Any) -> Any:
    import torch

    aten, mean = torch.ops.aten, 1
    return aten.mse_loss(x, t, mean), aten.mse_loss_backward(one, x, t, mean)


def _huber(x: Any, t: Any, one: Any) -> Any:
    import torch

    aten, mean = torch.ops.aten, 1
    return aten.huber_loss(x, t, mean, DELTA), aten.huber_loss_backward(one, x, t, mean, DELTA)


def _sigmoid_cross_entropy(x: Any, t: Any, one: Any) -> Any:
    import torch

    loss = torch.nn.functional.binary_cross_entropy_with_logits(x, t)
    return loss, (torch.sigmoid(x) - t) * (one / x.numel())


OPS = (
    Op("mean_squared_error", _mean_squared_error, 5),
    Op("huber", _huber, 8),
    Op("sigmoid_cross_entropy", _sigmoid_cross_entropy, 10),
)


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, shape in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(shape, dtype, group)


def drawn_shape(draw: Draw) -> Shape:
    return draw.shape(most_elements=MOST_ELEMENTS)


def cases_of(shape: Shape, dtype: str, group: str) -> Iterator[Case]:
    for op in OPS:
        x, t = RandomArray(shape, dtype), RandomArray(shape, dtype, 1)
        nbytes, operations = 2 * x.nbytes + 4 * x.size, op.operations * x.size
        prepare = partial(_prepare, op, x, t)
        yield Case(f"loss_{op.kind}", text(shape), dtype, group, nbytes, operations, prepare)
    x, t = RandomArray(shape, dtype), RandomArray(shape, dtype, 1)
    read = x.nbytes + 4 * x.size
    forward, gradient = partial(_forward_loss, x, t), partial(_loss_gradient, x, t)
    yield Case("forward_loss_mean_squared_error", text(shape), dtype, group, read, 3 * x.size, forward)
    moved = read + x.nbytes
    yield Case("loss_gradient_mean_squared_error", text(shape), dtype, group, moved, 3 * x.size, gradient)


def _prepare(op: Op, x: RandomArray, t: RandomArray, device: mg.Device) -> Work:
    source, result = x.image(device), empty_image(x.shape, x.dtype, device)
    labels = mg.LossLabels.from_images(mg.Image.from_array(t.array().astype(np.float32), device))
    descriptor = mg.LossDescriptor(op.kind, "mean", delta=DELTA, reduce_across_batch=True)
    kernel = mg.Loss(descriptor, gradient_follows_reduction=True, device=device)

    def parts() -> list[Part]:
        y, targets = x.array(), t.array()
        exact = reference.loss(y, targets, op.kind, reduction="mean", reduce_across_batch=True, delta=DELTA)
        size = np.abs(y.astype(np.float64)) + np.abs(targets) + 1
        bound = error_bound(np.float32, x.size, (size**2).mean(), exact, function_ulps=FUNCTION_ULPS)
        loss = Part("loss", (slice(0, 1),), exact[:1], bound[:1])
        first = reference.loss_gradient(y[:1], targets[:1], op.kind, delta=DELTA) / x.size
        bound = error_bound(x.dtype, 1, 2 * size[:1] / x.size, first, function_ulps=FUNCTION_ULPS)
        return [Part("gradient", (slice(0, 1),), first, bound), loss]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        import torch

        prediction, targets = x.tensor(where), t.tensor(where)
        one = torch.ones((), dtype=prediction.dtype, device=where)
        return {"dense": TorchCall(op.torch_call, (prediction, targets, one), _results)}

    return Work(
        partial(kernel.encode, source_image=source, labels=labels, destination_image=result),
        lambda: {"gradient": result, "loss": labels.loss_image},
        parts,
        torch_calls,
    )


def _results(returned: Any) -> Mapping[str, Any]:
    loss, gradient = returned
    return {"loss": loss.reshape(1, 1, 1, 1), "gradient": gradient}


DESCRIPTOR = mg.LossDescriptor("mean_squared_error", "mean", reduce_across_batch=True)
MEAN = 1
"""PyTorch's number for that reduction."""


def _images(x: RandomArray, t: RandomArray, device: mg.Device) -> tuple[mg.Image, mg.Image]:
    return x.image(device), mg.Image.from_array(t.array().astype(np.float32), device)


def _forward_loss(x: RandomArray, t: RandomArray, device: mg.Device) -> Work:
    (source, labels), result = _images(x, t, device), empty_image((x.shape[0], 1, 1, 1), "float32", device)

    def parts() -> list[Part]:
        exact = reference.loss(x.array(), t.array(), "mean_squared_error", reduction="mean", reduce_across_batch=True)
        return [Part("loss", (slice(0, 1),), exact[:1], error_bound(np.float32, x.size, exact[:1], exact[:1]))]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        import torch

        call = partial(torch.nn.functional.mse_loss, reduction="mean")
        tensors = x.tensor(where).float(), t.tensor(where).float()
        return {"dense": TorchCall(call, tensors, lambda loss: {"loss": loss.reshape(1, 1, 1, 1)})}

    kernel = mg.ForwardLoss(DESCRIPTOR, device=device)
    encode = partial(kernel.encode, source_image=source, labels=labels, destination_image=result)
    return Work(encode, lambda: {"loss": result}, parts, torch_calls)


def _loss_gradient(x: RandomArray, t: RandomArray, device: mg.Device) -> Work:
    (source, labels), result = _images(x, t, device), empty_image(x.shape, x.dtype, device)
    ones = mg.Image.from_array(np.ones((x.shape[0], 1, 1, 1), np.float32), device)

    def parts() -> list[Part]:
        y, targets = x.first(), t.first()
        exact = reference.loss_gradient(y, targets, "mean_squared_error") / x.size
        bound = error_bound(x.dtype, 4, 2 * (np.abs(y) + np.abs(targets)) / x.size, exact)
        return [Part("gradient", (slice(0, 1),), exact, bound)]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        import torch

        prediction = x.tensor(where)
        arguments = (torch.ones((), dtype=prediction.dtype, device=where), prediction, t.tensor(where), MEAN)
        call = torch.ops.aten.mse_loss_backward
        return {"dense": TorchCall(call, arguments, lambda gradient: {"gradient": gradient})}

    kernel = mg.LossGradient(DESCRIPTOR, device=device)
    encode = partial(
        kernel.encode, source_gradient=ones, source_image=source, labels=labels, destination_gradient=result
    )
    return Work(encode, lambda: {"gradient": result}, parts, torch_calls)
