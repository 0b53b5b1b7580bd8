"""Instance and group normalization: forward with its statistics, and the gradients for source, gamma and beta."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

import mpsgrad as mg
from bench.case import Case, Part, TorchCall, Work
from bench.drawn import Draw
from bench.inputs import RandomArray, empty_image
from bench.pytorch import as_image, image_result, layouts
from bench.shapes import AWKWARD, RESNET50, SMALL, Shape, in_groups, text
from bench.tiny_op import SHAPE, TinyOp, tiny_pair
from mpsgrad import reference
from mpsgrad.accuracy import error_bound

DESIGN: Mapping[str, tuple[Shape, ...]] = {
    "cpu": ((16, 56, 56, 64), (16, 14, 14, 256)),
    "gpu": ((64, 112, 112, 64), (64, 28, 28, 256)),
}
OTHERS: Mapping[str, tuple[Shape, ...]] = {
    "resnet50": RESNET50,
    "unet": ((32, 128, 128, 64),),
    "awkward": AWKWARD,
    "small": (SMALL,),
}
EPSILON = 1e-5
GROUPS = 32
MOST_ELEMENTS = 2**23
"""More are not drawn: the exact gradients for gamma and beta are those of the whole batch."""


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, shape in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(shape, dtype, group)


def drawn_shape(draw: Draw) -> Shape:
    return draw.shape(smallest=5, most_elements=MOST_ELEMENTS)


def cases_of(shape: Shape, dtype: str, group: str) -> Iterator[Case]:
    for name in ("instance_normalization", "group_normalization"):
        row = _Row(name, shape, dtype)
        # As batch normalization.
        for op, passes, operations, prepare in (
            (name, 3, 5, row.forward),
            (f"{name}_gradient", 5, 10, row.gradient),
        ):
            nbytes, count = passes * row.x.nbytes, operations * row.x.size
            yield Case(op, text(shape), dtype, group, nbytes, count, prepare)


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    channels = SHAPE[3]
    instances = mg.InstanceNormalizationDataSource.from_arrays(number_of_feature_channels=channels, epsilon=1.0)
    groups = mg.GroupNormalizationDataSource.from_arrays(2, number_of_feature_channels=channels, epsilon=1.0)
    yield from tiny_pair(
        mg.InstanceNormalization(instances, device=device), mg.InstanceNormalizationGradient(device=device)
    )
    yield from tiny_pair(mg.GroupNormalization(groups, device=device), mg.GroupNormalizationGradient(device=device))


class _Row:
    def __init__(self, name: str, shape: Shape, dtype: str) -> None:
        self.is_instance = name == "instance_normalization"
        self.x, self.g = RandomArray(shape, dtype), RandomArray(shape, dtype, 1)
        channels = shape[3]
        self.groups = channels if self.is_instance else GROUPS if channels % GROUPS == 0 else 1
        self.gamma = np.linspace(0.5, 1.5, channels).astype(np.float32)
        self.beta = np.linspace(-1, 1, channels).astype(np.float32)

    def _kernels(self, device: mg.Device) -> tuple[Any, Any]:
        if self.is_instance:
            instances = mg.InstanceNormalizationDataSource.from_arrays(self.gamma, self.beta, epsilon=EPSILON)
            return mg.InstanceNormalization(instances, device=device), mg.InstanceNormalizationGradient(device=device)
        data = mg.GroupNormalizationDataSource.from_arrays(self.groups, self.gamma, self.beta, epsilon=EPSILON)
        return mg.GroupNormalization(data, device=device), mg.GroupNormalizationGradient(device=device)

    def forward(self, device: mg.Device) -> Work:
        kernel, _ = self._kernels(device)
        source, result = self.x.image(device), empty_image(self.x.shape, self.x.dtype, device)
        state = kernel.result_state(source, destination_image=result)
        encode = partial(kernel.encode, source_image=source, destination_image=result, destination_state=state)
        return Work(encode, lambda: {"result": result}, self._forward_parts, self._torch_forward)

    def gradient(self, device: mg.Device) -> Work:
        kernel, gradient = self._kernels(device)
        source, incoming = self.x.image(device), self.g.image(device)
        with mg.CommandBuffer(device) as commands:
            _, state = kernel.encode(commands, source, return_state=True)
        result = empty_image(self.x.shape, self.x.dtype, device)
        encode = partial(
            gradient.encode,
            source_gradient=incoming,
            source_image=source,
            gradient_state=state,
            destination_gradient=result,
        )

        def results() -> Mapping[str, Any]:
            return {
                "result": result,
                "gamma": state.gradient_for_gamma.sum(0),
                "beta": state.gradient_for_beta.sum(0),
            }

        return Work(encode, results, self._gradient_parts, self._torch_gradient)

    def _forward_parts(self) -> list[Part]:
        x = self.x.first()
        exact = reference.group_normalization(x, self.gamma, self.beta, self.groups, EPSILON)
        magnitude = np.abs(exact - self.beta) + np.abs(self.beta) + 1
        return [Part("result", (slice(0, 1),), exact, error_bound(self.x.dtype, 16, magnitude, exact))]

    def _gradient_parts(self) -> list[Part]:
        x, g = self.x.first(), self.g.first()
        exact, _, _ = reference.group_normalization_gradient(g, x, self.gamma, self.groups, EPSILON)
        bound = error_bound(self.x.dtype, 32, 4 * (np.abs(g) + 1 + np.abs(x)), exact)
        parts = [Part("result", (slice(0, 1),), exact, bound)]
        x, g = self.x.array().astype(np.float64), self.g.array().astype(np.float64)
        _, for_gamma, for_beta = reference.group_normalization_gradient(g, x, self.gamma, self.groups, EPSILON)
        terms = x[..., 0].size + 16
        for name, sums, magnitude in (
            ("gamma", for_gamma, np.abs(g) * (np.abs(x) + 1) * 2),
            ("beta", for_beta, np.abs(g)),
        ):
            total = sums.sum(0)
            bound = error_bound(np.float32, terms, magnitude.sum((0, 1, 2)), total)
            parts.append(Part(name, (slice(0, total.size),), total, bound))
        return parts

    def _torch_parameters(self, where: Any) -> tuple[Any, Any]:
        import torch

        return torch.from_numpy(self.gamma).to(where), torch.from_numpy(self.beta).to(where)

    def _torch_forward(self, where: Any) -> Mapping[str, TorchCall]:
        call = partial(_forward, self.groups)
        return {
            layout: TorchCall(call, (x, *self._in_dtype(x, where)), image_result)
            for layout, (x,) in layouts(where, self.x).items()
        }

    def _torch_gradient(self, where: Any) -> Mapping[str, TorchCall]:
        calls = {}
        for layout, (g, x) in layouts(where, self.g, self.x).items():
            if x.is_cuda and not x.is_contiguous():
                continue  # PyTorch's kernel for GPUs takes no other layout.
            gamma, beta = self._in_dtype(x, where)
            _, mean, inverse = _forward(self.groups, x, gamma, beta)
            calls[layout] = TorchCall(partial(_backward, self.groups), (g, x, mean, inverse, gamma), _results)
        return calls

    def _in_dtype(self, x: Any, where: Any) -> list[Any]:
        return [each.to(x.dtype) for each in self._torch_parameters(where)]


def _extents(groups: int, x: Any) -> tuple[int, int, int, int]:
    return x.shape[0], x.shape[1], x.shape[2] * x.shape[3], groups


def _forward(groups: int, x: Any, gamma: Any, beta: Any) -> Any:
    """Instance normalization has a group for each channel."""
    import torch

    return torch.ops.aten.native_group_norm(x, gamma, beta, *_extents(groups, x), EPSILON)


def _backward(groups: int, g: Any, x: Any, mean: Any, inverse: Any, gamma: Any) -> Any:
    import torch

    backward = torch.ops.aten.native_group_norm_backward
    return backward(g, x, mean, inverse, gamma, *_extents(groups, x), [True, True, True])


def _results(returned: Any) -> Mapping[str, Any]:
    source, gamma, beta = returned
    return {"result": as_image(source), "gamma": gamma, "beta": beta}
