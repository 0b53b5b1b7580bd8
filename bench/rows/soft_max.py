"""Softmax and log-softmax over the feature channels, and their gradients.

PyTorch also gets the pixels as the rows of a matrix, in which the channels are the last axis: the same memory as NHWC,
and its fastest case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import mpsgrad as mg
from bench.case import Case, Part, TorchCall, Work
from bench.drawn import Draw
from bench.inputs import RandomArray, empty_image
from bench.pytorch import image_result, layouts, matrices, matrix_result, on_images, on_matrices
from bench.shapes import AWKWARD, Shape, in_groups, text
from bench.tiny_op import TinyOp, tiny_pair
from mpsgrad import reference
from mpsgrad.accuracy import error_bound

DESIGN: Mapping[str, tuple[Shape, ...]] = {
    "cpu": ((16, 56, 56, 64), (4096, 1, 1, 1000)),
    "gpu": ((64, 112, 112, 64), (16384, 1, 1, 4096)),
}
OTHERS: Mapping[str, tuple[Shape, ...]] = {
    "resnet50": ((32, 1, 1, 1000),),
    "unet": ((32, 128, 128, 2),),
    "awkward": AWKWARD,
    "small": ((1, 1, 1, 1000),),
}
FUNCTION_ULPS = 8


class Op(NamedTuple):
    name: str
    forward: Any
    gradient: Any


OPS = (
    Op("soft_max", mg.SoftMax, mg.SoftMaxGradient),
    Op("log_soft_max", mg.LogSoftMax, mg.LogSoftMaxGradient),
)


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, shape in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(shape, dtype, group)


def drawn_shape(draw: Draw) -> Shape:
    """Images, and rows of classes."""
    images, height, width, channels = draw.shape()
    return draw.chosen(((images, height, width, channels), (images * height * width, 1, 1, channels)))


def cases_of(shape: Shape, dtype: str, group: str) -> Iterator[Case]:
    for op in OPS:
        x, g = RandomArray(shape, dtype), RandomArray(shape, dtype, 1)
        yield Case(op.name, text(shape), dtype, group, 2 * x.nbytes, 5 * x.size, partial(_forward, op, x))
        yield Case(
            f"{op.name}_gradient",
            text(shape),
            dtype,
            group,
            3 * x.nbytes,
            4 * x.size,
            partial(_gradient, op, x, g),
        )


_FIRST = (slice(0, 1),)


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    yield from tiny_pair(mg.SoftMax(device=device), mg.SoftMaxGradient(device=device), takes_the_result=True)
    yield from tiny_pair(mg.LogSoftMax(device=device), mg.LogSoftMaxGradient(device=device), takes_the_result=True)


def _forward(op: Op, x: RandomArray, device: mg.Device) -> Work:
    source, result = x.image(device), empty_image(x.shape, x.dtype, device)

    def parts() -> list[Part]:
        first = x.first()
        exact = getattr(reference, op.name)(first)
        is_logarithm = op.forward is mg.LogSoftMax
        magnitude = np.abs(exact) + 2 * np.abs(first).max(-1, keepdims=True) if is_logarithm else exact
        bound = error_bound(x.dtype, x.shape[3], magnitude, exact, function_ulps=FUNCTION_ULPS)
        return [Part("result", _FIRST, exact, bound)]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        import torch

        function = torch.log_softmax if op.forward is mg.LogSoftMax else torch.softmax
        call = partial(function, dim=1)
        return on_images(where, call, x) | on_matrices(where, call, x)

    encode = partial(op.forward(device=device).encode, source_image=source, destination_image=result)
    return Work(encode, lambda: {"result": result}, parts, torch_calls)


def _gradient(op: Op, x: RandomArray, g: RandomArray, device: mg.Device) -> Work:
    forward, is_logarithm = op.forward(device=device), op.forward is mg.LogSoftMax
    source, incoming = x.image(device), g.image(device)
    result = empty_image(x.shape, x.dtype, device)
    with mg.CommandBuffer(device) as commands:
        forward_result, state = forward.encode(commands, source, return_state=True)

    def parts() -> list[Part]:
        # The forward result as it was stored is what both gradients start from.
        y, first = np.asarray(forward_result.batch_representation(0, 1)[0], np.float64), g.first()
        exact = getattr(reference, f"{op.name}_gradient")(first, y)
        if is_logarithm:
            magnitude = np.abs(first) + np.exp(y) * np.abs(first).sum(-1, keepdims=True)
        else:
            magnitude = y * (np.abs(first) + np.abs(first * y).sum(-1, keepdims=True))
        bound = error_bound(x.dtype, x.shape[3], magnitude, exact, function_ulps=FUNCTION_ULPS)
        return [Part("result", _FIRST, exact, bound)]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        import torch

        aten = torch.ops.aten
        backward = aten._log_softmax_backward_data if is_logarithm else aten._softmax_backward_data
        own = torch.from_numpy(np.array(forward_result)).to(where)
        call = partial(_backward, backward)
        calls = {}
        for layout, (gradient,) in layouts(where, g).items():
            y = own.permute(0, 3, 1, 2)
            calls[layout] = TorchCall(call, (gradient, y.contiguous() if layout == "NCHW" else y), image_result)
        matrix = (*matrices(where, g), own.reshape(-1, x.shape[3]))
        return calls | {"matrix": TorchCall(call, matrix, partial(matrix_result, x.shape))}

    encode = partial(
        op.gradient(device=device).encode,
        source_gradient=incoming,
        source_image=forward_result,
        gradient_state=state,
        destination_gradient=result,
    )
    return Work(encode, lambda: {"result": result}, parts, torch_calls)


def _backward(function: Any, g: Any, y: Any) -> Any:
    return function(g, y, 1, y.dtype)
