"""Normalization across channels, of pixels and by local contrast, and the gradients.

PyTorch has the first; the other two are put together from its average pooling.
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
from bench.pytorch import image_result, layouts
from bench.shapes import AWKWARD, SMALL, Shape, in_groups, text
from bench.tiny_op import TinyOp, tiny_pair
from mpsgrad import reference
from mpsgrad.accuracy import error_bound

DESIGN: Mapping[str, tuple[Shape, ...]] = {"cpu": ((16, 28, 28, 96),), "gpu": ((64, 56, 56, 96),)}
OTHERS: Mapping[str, tuple[Shape, ...]] = {"awkward": AWKWARD, "small": (SMALL,)}
SIZE, ALPHA, BETA, DELTA = 5, 1.0, 0.75, 1.0


class Op(NamedTuple):
    name: str
    forward: Any
    gradient: Any
    taps: int

    def kernels(self, device: mg.Device) -> list[Any]:
        across = self.forward is mg.CrossChannelNormalization
        window = {"kernel_size": SIZE} if across else {"kernel_width": SIZE, "kernel_height": SIZE}
        made = [kind(**window, device=device) for kind in (self.forward, self.gradient)]
        for kernel in made:
            kernel.alpha, kernel.beta, kernel.delta = ALPHA, BETA, DELTA
        return made

    @property
    def window(self) -> Any:
        return SIZE if self.forward is mg.CrossChannelNormalization else (SIZE, SIZE)


OPS = (
    Op("cross_channel_normalization", mg.CrossChannelNormalization, mg.CrossChannelNormalizationGradient, SIZE),
    Op("spatial_normalization", mg.SpatialNormalization, mg.SpatialNormalizationGradient, SIZE**2),
    Op(
        "local_contrast_normalization",
        mg.LocalContrastNormalization,
        mg.LocalContrastNormalizationGradient,
        SIZE**2,
    ),
)


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, shape in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(shape, dtype, group)


def drawn_shape(draw: Draw) -> Shape:
    return draw.shape()


def cases_of(shape: Shape, dtype: str, group: str) -> Iterator[Case]:
    for op in OPS:
        x, g = RandomArray(shape, dtype), RandomArray(shape, dtype, 1)
        forward, gradient = partial(_forward, op, x), partial(_gradient, op, x, g)
        yield Case(op.name, text(shape), dtype, group, 2 * x.nbytes, 2 * op.taps * x.size, forward)
        name, operations = f"{op.name}_gradient", 4 * op.taps * x.size
        yield Case(name, text(shape), dtype, group, 3 * x.nbytes, operations, gradient)


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    window: dict[str, Any] = {"kernel_width": 3, "kernel_height": 3, "device": device}
    yield from tiny_pair(
        mg.CrossChannelNormalization(device=device), mg.CrossChannelNormalizationGradient(device=device)
    )
    yield from tiny_pair(mg.SpatialNormalization(**window), mg.SpatialNormalizationGradient(**window))
    yield from tiny_pair(mg.LocalContrastNormalization(**window), mg.LocalContrastNormalizationGradient(**window))


def _bound(op: Op, dtype: str, first: np.ndarray, exact: np.ndarray) -> np.ndarray:
    return error_bound(dtype, 4 * op.taps, 4 * (np.abs(first).max() + 1) ** 2, exact, function_ulps=32)


def _forward(op: Op, x: RandomArray, device: mg.Device) -> Work:
    kernel, _ = op.kernels(device)
    source, result = x.image(device), empty_image(x.shape, x.dtype, device)

    def parts() -> list[Part]:
        first = x.first()
        exact = getattr(reference, op.name)(first, op.window, ALPHA, BETA, DELTA)
        return [Part("result", (slice(0, 1),), exact, _bound(op, x.dtype, first, exact))]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        call = partial(_TORCH[op.name])
        return {
            layout: TorchCall(call, (tensor,), image_result) for layout, (tensor,) in layouts(where, x).items()
        }

    encode = partial(kernel.encode, source_image=source, destination_image=result)
    return Work(encode, lambda: {"result": result}, parts, torch_calls)


def _gradient(op: Op, x: RandomArray, g: RandomArray, device: mg.Device) -> Work:
    kernel, gradient = op.kernels(device)
    source, incoming, result = x.image(device), g.image(device), empty_image(x.shape, x.dtype, device)
    state = kernel.result_state(source, destination_image=result)

    def parts() -> list[Part]:
        first, g_first = x.first(), g.first()
        exact = getattr(reference, f"{op.name}_gradient")(g_first, first, op.window, ALPHA, BETA, DELTA)
        return [Part("result", (slice(0, 1),), exact, 4 * _bound(op, x.dtype, first, exact))]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        calls = {}
        for layout, (values, given) in layouts(where, x, g).items():
            tracked = values.detach().requires_grad_(True)
            made = _TORCH[op.name](tracked)
            calls[layout] = TorchCall(_backward, (given, made, tracked), image_result, fuses=False)
        return calls

    encode = partial(
        gradient.encode,
        source_gradient=incoming,
        source_image=source,
        gradient_state=state,
        destination_gradient=result,
    )
    return Work(encode, lambda: {"result": result}, parts, torch_calls)


def _backward(g: Any, result: Any, source: Any) -> Any:
    import torch

    return torch.autograd.grad(result, source, g, retain_graph=True)


def _across(x: Any) -> Any:
    import torch

    if x.dtype is torch.float16 and x.device.type == "cpu":
        # PyTorch has no average pooling of halves there.
        padded = torch.nn.functional.pad(x * x, (0, 0, 0, 0, SIZE // 2, (SIZE - 1) // 2))
        return x * (DELTA + ALPHA * padded.unfold(1, SIZE, 1).mean(-1)) ** -BETA
    return torch.nn.functional.local_response_norm(x, SIZE, ALPHA, BETA, DELTA)


def _mean(x: Any) -> Any:
    import torch

    return torch.nn.functional.avg_pool2d(x, SIZE, 1, SIZE // 2)


def _spatial(x: Any) -> Any:
    return x * (DELTA + ALPHA * _mean(x * x)) ** -BETA


def _local_contrast(x: Any) -> Any:
    mean = _mean(x)
    return (x - mean) * (DELTA + ALPHA * (_mean(x * x) - mean * mean)) ** -BETA


_TORCH = {
    "cross_channel_normalization": _across,
    "spatial_normalization": _spatial,
    "local_contrast_normalization": _local_contrast,
}
