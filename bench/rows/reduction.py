"""Reductions over rows, columns, feature channels and all pixels, and their gradients, of one operation each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import mpsgrad as mg
from bench.case import Case, Part, TorchCall, Work
from bench.drawn import Draw
from bench.inputs import RandomArray, empty_image
from bench.pytorch import image_result, layouts
from bench.shapes import AWKWARD, SMALL, Shape, in_groups, text
from bench.tiny_op import Call, TinyOp, tiny_image, tiny_pair
from mpsgrad import reference
from mpsgrad.accuracy import error_bound
from mpsgrad.kernels.reduction import WITH_GRADIENT

DESIGN: Mapping[str, tuple[Shape, ...]] = {"cpu": ((16, 56, 56, 64),), "gpu": ((64, 112, 112, 64),)}
OTHERS: Mapping[str, tuple[Shape, ...]] = {"resnet50": ((32, 7, 7, 2048),), "awkward": AWKWARD, "small": (SMALL,)}


class Op(NamedTuple):
    name: str
    kernel: Any
    over: Any
    operation: Any
    axes: tuple[int, ...]
    """Of PyTorch's N x C x H x W."""


OPS = (
    Op("row_sum", mg.ReduceRowSum, "row", "sum", (3,)),
    Op("column_mean", mg.ReduceColumnMean, "column", "mean", (2,)),
    Op("feature_channels_max", mg.ReduceFeatureChannelsMax, "feature_channels", "max", (1,)),
    Op("spatial_mean", mg.ReductionSpatialMean, "spatial", "mean", (2, 3)),
)
ARGUMENT = Op(
    "feature_channels_argument_max", mg.ReduceFeatureChannelsArgumentMax, "feature_channels", "argument_max", (1,)
)
"""It has no gradient, and rows in float32 only: of equal elements, which float16 has many, PyTorch may take any."""


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, shape in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(shape, dtype, group)


def drawn_shape(draw: Draw) -> Shape:
    return draw.shape()


def cases_of(shape: Shape, dtype: str, group: str) -> Iterator[Case]:
    for op in OPS:
        row = _Row(op, shape, dtype)
        nbytes, size = row.x.nbytes, row.x.size
        passes = 2 if op.operation == "max" else 1
        name = f"reduction_{op.name}"
        yield Case(name, text(shape), dtype, group, nbytes + row.g.nbytes, size, row.forward)
        moved = passes * nbytes + row.g.nbytes
        yield Case(f"{name}_gradient", text(shape), dtype, group, moved, size, row.gradient)
    if dtype == "float32":
        row = _Row(ARGUMENT, shape, dtype)
        nbytes, size = row.x.nbytes + row.g.nbytes, row.x.size
        yield Case(f"reduction_{ARGUMENT.name}", text(shape), dtype, group, nbytes, size, row.forward)


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    yield from tiny_pair(mg.ReductionSpatialMean(device=device), mg.ReductionSpatialMeanGradient(device=device))
    for kind in WITH_GRADIENT[:-1]:
        yield from tiny_pair(kind(device=device), mg.ReduceGradient(device=device))
    for argument in (mg.ReduceFeatureChannelsArgumentMin, mg.ReduceFeatureChannelsArgumentMax):
        yield TinyOp(argument.__name__, Call(argument(device=device).encode, tiny_image(device)))


class _Row:
    def __init__(self, op: Op, shape: Shape, dtype: str) -> None:
        self.op, self.x = op, RandomArray(shape, dtype)
        images, height, width, channels = shape
        result = {
            "row": (images, height, 1, channels),
            "column": (images, 1, width, channels),
            "feature_channels": (images, height, width, 1),
            "spatial": (images, 1, 1, channels),
        }[op.over]
        self.g = RandomArray(result, dtype, 1)

    def forward(self, device: mg.Device) -> Work:
        source, result = self.x.image(device), empty_image(self.g.shape, self.g.dtype, device)
        encode = partial(self.op.kernel(device=device).encode, source_image=source, destination_image=result)
        return Work(encode, lambda: {"result": result}, self._forward_parts, self._torch_forward)

    def gradient(self, device: mg.Device) -> Work:
        source, incoming = self.x.image(device), self.g.image(device)
        result = empty_image(self.x.shape, self.x.dtype, device)
        state = self.op.kernel(device=device).result_state(source, destination_image=incoming)
        encode = partial(
            mg.ReduceGradient(device=device).encode,
            source_gradient=incoming,
            source_image=source,
            gradient_state=state,
            destination_gradient=result,
        )
        return Work(encode, lambda: {"result": result}, self._gradient_parts, self._torch_gradient)

    def _forward_parts(self) -> list[Part]:
        x = self.x.first()
        exact = reference.reduction(self.op.over, self.op.operation, x)
        magnitude = reference.reduction(self.op.over, self.op.operation, np.abs(x))
        bound = error_bound(self.x.dtype, x.size // exact.size, magnitude, exact)
        if self.op is ARGUMENT:
            bound = error_bound(self.x.dtype, 0, 0.0, 0.0 * exact)
        return [Part("result", (slice(0, 1),), exact, bound)]

    def _gradient_parts(self) -> list[Part]:
        exact = reference.reduction_gradient(self.op.over, self.op.operation, self.g.first(), self.x.first())
        return [Part("result", (slice(0, 1),), exact, error_bound(self.x.dtype, 2, exact, exact))]

    def _torch_forward(self, where: Any) -> Mapping[str, TorchCall]:
        import torch

        functions: dict[str, Any] = {
            "sum": torch.sum,
            "mean": torch.mean,
            "max": torch.amax,
            "argument_max": _argument,
        }
        call = partial(_reduced, functions[self.op.operation], self.op.axes)
        return {
            layout: TorchCall(call, (x,), image_result, fuses=False) for layout, (x,) in layouts(where, self.x).items()
        }

    def _torch_gradient(self, where: Any) -> Mapping[str, TorchCall]:
        calls = {}
        for layout, (x, g) in layouts(where, self.x, self.g).items():
            function: Callable[..., Any] = _spread
            arguments: tuple[Any, ...] = (g, x.shape, x.numel() // g.numel() if self.op.operation == "mean" else 1)
            if self.op.operation == "max":
                function, arguments = _picked, (g, x.max(dim=1, keepdim=True).indices, x.shape)
            calls[layout] = TorchCall(function, arguments, image_result)
        return calls


def _reduced(function: Callable[..., Any], axes: tuple[int, ...], x: Any) -> Any:
    return function(x, dim=axes, keepdim=True)


def _argument(x: Any, dim: tuple[int, ...], keepdim: bool) -> Any:
    return x.argmax(dim[0], keepdim=keepdim).to(x.dtype)


def _spread(g: Any, shape: Any, count: int) -> Any:
    return (g / count).expand(shape).clone()


def _picked(g: Any, indices: Any, shape: Any) -> Any:
    return g.new_zeros(shape).scatter(1, indices, g)
