"""Arithmetic of two images and its gradients, of images of one size and of one that is spread over the pixels.

The gradients are those for the secondary image. That of a division starts from the derivative that the forward kernel
recorded; PyTorch's computes it from both images, in the ops that its own backward pass runs.
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
from bench.pytorch import image_result, layouts
from bench.shapes import AWKWARD, SMALL, Shape, in_groups, text
from bench.tiny_op import Call, TinyOp, tiny_image, tiny_pair
from mpsgrad import reference
from mpsgrad.accuracy import error_bound

DESIGN: Mapping[str, tuple[Shape, ...]] = {"cpu": ((16, 56, 56, 64),), "gpu": ((64, 112, 112, 64),)}
OTHERS: Mapping[str, tuple[Shape, ...]] = {"resnet50": ((32, 56, 56, 256),), "awkward": AWKWARD, "small": (SMALL,)}
BIAS = 8.0
"""Added to divisors, which keeps them away from 0 in both libraries."""


class Op(NamedTuple):
    name: str
    forward: Any
    gradient: Any
    torch_forward: Callable[[Any, Any], Any]
    torch_gradient: Callable[[Any, Any, Any], Any]
    gradient_passes: int
    """Images of the size of the result that an ideal gradient reads and writes."""


OPS = (
    Op("add", mg.Add, mg.AddGradient, lambda x, y: x + y, lambda g, x, y: g.clone(), 2),
    Op("multiply", mg.Multiply, mg.MultiplyGradient, lambda x, y: x * y, lambda g, x, y: g * x, 3),
    Op("divide", mg.Divide, mg.DivideGradient, lambda x, y: x / y, lambda g, x, y: -g * ((x / y) / y), 3),
)


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, shape in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(shape, dtype, group)


def drawn_shape(draw: Draw) -> Shape:
    return draw.shape()


def cases_of(shape: Shape, dtype: str, group: str) -> Iterator[Case]:
    for op in OPS:
        for is_spread in (False, True) if op.name != "divide" else (False,):
            yield from _cases(_Row(op, shape, dtype, is_spread), group)
    x, y = RandomArray(shape, dtype), RandomArray(shape, dtype, 2)
    prepare = partial(_compare, x, y)
    yield Case("arithmetic_compare", text(shape), dtype, group, 3 * x.nbytes, x.size, prepare)


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    source = tiny_image(device)
    yield TinyOp("Compare", Call(mg.Compare(device=device).encode, source, source))
    for kind, gradient in (
        (mg.Add, mg.AddGradient),
        (mg.Subtract, mg.SubtractGradient),
        (mg.Multiply, mg.MultiplyGradient),
        (mg.Divide, mg.DivideGradient),
    ):
        yield from tiny_pair(kind(device=device), gradient(device=device), source, source)


def _cases(row: _Row, group: str) -> Iterator[Case]:
    name, nbytes, size = f"arithmetic_{row.op.name}{'_spread' if row.is_spread else ''}", row.x.nbytes, row.x.size
    passes = row.op.gradient_passes - row.is_spread
    shape, dtype = text(row.x.shape), row.x.dtype
    yield Case(name, shape, dtype, group, (3 - row.is_spread) * nbytes, size, row.forward)
    yield Case(f"{name}_gradient", shape, dtype, group, passes * nbytes, 2 * size, row.gradient)


class _Row:
    def __init__(self, op: Op, shape: Shape, dtype: str, is_spread: bool) -> None:
        self.op, self.is_spread = op, is_spread
        self.x, self.g = RandomArray(shape, dtype), RandomArray(shape, dtype, 1)
        self.y = RandomArray((shape[0], 1, 1, shape[3]) if is_spread else shape, dtype, 2)

    def _kernel(self, device: mg.Device) -> Any:
        kernel = self.op.forward(device=device)
        if self.is_spread:
            kernel.secondary_stride_in_pixels_x = kernel.secondary_stride_in_pixels_y = 0
        return kernel

    def _images(self, device: mg.Device) -> tuple[mg.Image, mg.Image]:
        if self.op.name != "divide":
            return self.x.image(device), self.y.image(device)
        divisor = mg.Image.from_array((self.y.array().astype(np.float32) + BIAS).astype(self.y.dtype), device)
        return self.x.image(device), divisor

    def forward(self, device: mg.Device) -> Work:
        x, y = self._images(device)
        result = empty_image(self.x.shape, self.x.dtype, device)
        encode = partial(self._kernel(device).encode, primary_image=x, secondary_image=y, destination_image=result)
        return Work(encode, lambda: {"result": result}, self._forward_parts, self._torch_forward)

    def gradient(self, device: mg.Device) -> Work:
        kernel, (x, y), incoming = self._kernel(device), self._images(device), self.g.image(device)
        with mg.CommandBuffer(device) as commands:
            _, state = kernel.encode(commands, x, y, return_state=True)
        result = empty_image(self.y.shape, self.y.dtype, device)
        gradient = self.op.gradient.of(kernel, is_secondary_source_filter=True)
        encode = partial(
            gradient.encode,
            source_gradient=incoming,
            source_image=y if self.op.name == "add" else x,
            gradient_state=state,
            destination_gradient=result,
        )
        return Work(encode, lambda: {"result": result}, self._gradient_parts, self._torch_gradient)

    def _first(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        y = self.y.first()
        if self.op.name == "divide":
            y = (y.astype(np.float32) + BIAS).astype(self.y.dtype).astype(np.float64)
        return self.g.first(), self.x.first(), y

    def _forward_parts(self) -> list[Part]:
        _, x, y = self._first()
        exact = reference.arithmetic(self.op.name, x, y)  # type: ignore[arg-type]
        bound = error_bound(self.x.dtype, 2, np.abs(x) + np.abs(y) + np.abs(exact), exact)
        return [Part("result", (slice(0, 1),), exact, bound)]

    def _gradient_parts(self) -> list[Part]:
        first = self._first()
        exact = reference.arithmetic_gradient(self.op.name, *first)[1]  # type: ignore[arg-type]
        magnitude = reference.arithmetic_gradient(self.op.name, *map(np.abs, first))[1]  # type: ignore[arg-type]
        terms = first[0][0, ..., 0].size if self.is_spread else 4
        return [Part("result", (slice(0, 1),), exact, error_bound(self.x.dtype, terms, magnitude, exact))]

    def _torch_inputs(self, where: Any) -> dict[str, list[Any]]:
        found = layouts(where, self.g, self.x, self.y)
        if self.op.name == "divide":
            found = {layout: [g, x, (y.float() + BIAS).to(y.dtype)] for layout, (g, x, y) in found.items()}
        return found

    def _torch_forward(self, where: Any) -> Mapping[str, TorchCall]:
        return {
            layout: TorchCall(self.op.torch_forward, (x, y), image_result, fuses=False)
            for layout, (_, x, y) in self._torch_inputs(where).items()
        }

    def _torch_gradient(self, where: Any) -> Mapping[str, TorchCall]:
        function: Callable[..., Any] = self.op.torch_gradient
        if self.is_spread:
            function = partial(_summed, self.op.name == "multiply")
        return {
            layout: TorchCall(function, tuple(inputs), image_result)
            for layout, inputs in self._torch_inputs(where).items()
        }


def _summed(is_product: bool, g: Any, x: Any, y: Any) -> Any:
    return (g * x if is_product else g).sum((2, 3), keepdim=True)


def _compare(x: RandomArray, y: RandomArray, device: mg.Device) -> Work:
    kernel, result = mg.Compare(device=device), empty_image(x.shape, x.dtype, device)
    kernel.comparison_type = mg.ComparisonType.LESS

    def parts() -> list[Part]:
        exact = reference.compare("less", x.first(), y.first())
        return [Part("result", (slice(0, 1),), exact, error_bound(x.dtype, 0, 0.0, 0.0 * exact))]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        return {
            layout: TorchCall(_is_less, tuple(pair), image_result) for layout, pair in layouts(where, x, y).items()
        }

    primary, secondary = x.image(device), y.image(device)
    encode = partial(kernel.encode, primary_image=primary, secondary_image=secondary, destination_image=result)
    return Work(encode, lambda: {"result": result}, parts, torch_calls)


def _is_less(x: Any, y: Any) -> Any:
    return (x < y).to(x.dtype)
