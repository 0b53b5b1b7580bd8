"""Batch normalization of one training step: statistics and forward, and both phases of the gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import mpsgrad as mg
from bench.case import Case, Part, TorchCall, Work
from bench.drawn import Draw
from bench.inputs import RandomArray, empty_image
from bench.pytorch import as_image, image_result, layouts
from bench.shapes import AWKWARD, RESNET50, SMALL, Shape, in_groups, text
from bench.tiny_op import Call, Encode, TinyOp, tiny_image
from mpsgrad import reference
from mpsgrad.accuracy import error_bound

DESIGN: Mapping[str, tuple[Shape, ...]] = {
    "cpu": ((16, 56, 56, 64), (16, 14, 14, 256)),
    "gpu": ((64, 112, 112, 64), (64, 28, 28, 256)),
}
OTHERS: Mapping[str, tuple[Shape, ...]] = {
    "resnet50": RESNET50,
    "unet": ((32, 128, 128, 64), (32, 32, 32, 256)),
    "awkward": AWKWARD,
    "small": (SMALL,),
}
EPSILON = 1e-5
CHECKED_CHANNELS = 4


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, shape in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(shape, dtype, group)


def drawn_shape(draw: Draw) -> Shape:
    return draw.shape(smallest=5)


def cases_of(shape: Shape, dtype: str, group: str) -> Iterator[Case]:
    row = _Row(shape, dtype)
    # Forward: the sums of x and of its squares, then a multiply and add. Gradient: g minus its mean and minus
    # xhat times another, times a factor, after the sums of g and of g times xhat.
    for op, passes, operations, prepare in (
        ("batch_normalization", 3, 5, row.forward),
        ("batch_normalization_gradient", 5, 10, row.gradient),
    ):
        nbytes, count = passes * row.x.nbytes, operations * row.x.size
        yield Case(op, text(shape), dtype, group, nbytes, count, prepare)


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    # A batch of one image each time: partial sums over ever larger batches are not what these kernels are for.
    source = tiny_image(device)
    ones = np.ones(source.feature_channels, np.float32)
    forward = mg.BatchNormalization(mg.BatchNormalizationDataSource.from_arrays(ones, ones), device=device)
    statistics = mg.BatchNormalizationStatistics(device=device)
    sums = mg.BatchNormalizationStatisticsGradient(device=device)
    state = forward.result_state(source)
    images = source.batch_representation()
    gradient = mg.BatchNormalizationGradient(device=device)

    measure = Call(statistics.encode_batch, images, state)
    normalize = Call(forward.encode, source, batch_normalization_state=state)
    add_up = Call(sums.encode_batch, images, images, state)
    differentiate = Call(gradient.encode, source, source, state)

    def prepare(*earlier: Encode) -> Encode:
        def begin_batch(commands: mg.CommandBuffer) -> None:
            state.reset()
            for encode in earlier:
                encode(commands)

        return begin_batch

    yield TinyOp("BatchNormalizationStatistics", measure, prepare())
    yield TinyOp("BatchNormalization", normalize, prepare(measure))
    yield TinyOp("BatchNormalizationStatisticsGradient", add_up, prepare(measure))
    yield TinyOp("BatchNormalizationGradient", differentiate, prepare(measure, add_up))


class _Row:
    def __init__(self, shape: Shape, dtype: str) -> None:
        self.x, self.g = RandomArray(shape, dtype), RandomArray(shape, dtype, 1)
        self.gamma = np.linspace(0.5, 1.5, shape[3]).astype(np.float32)
        self.beta = np.linspace(-1, 1, shape[3]).astype(np.float32)

    def _kernels(self, device: mg.Device) -> tuple[mg.BatchNormalization, mg.BatchNormalizationStatistics]:
        data = mg.BatchNormalizationDataSource.from_arrays(self.gamma, self.beta, epsilon=EPSILON)
        return mg.BatchNormalization(data, device=device), mg.BatchNormalizationStatistics(device=device)

    def forward(self, device: mg.Device) -> Work:
        kernel, statistics = self._kernels(device)
        source, result = self.x.image(device), empty_image(self.x.shape, self.x.dtype, device)
        sources, state = source.batch_representation(), kernel.result_state(source)

        def encode(commands: mg.CommandBuffer) -> None:
            statistics.encode_batch(commands, sources, state)
            kernel.encode(commands, source, batch_normalization_state=state, destination_image=result)

        return Work(encode, lambda: {"result": result}, self._forward_parts, self._torch_forward)

    def gradient(self, device: mg.Device) -> Work:
        kernel, statistics = self._kernels(device)
        sums = mg.BatchNormalizationStatisticsGradient(device=device)
        gradient = mg.BatchNormalizationGradient(device=device)
        source, incoming = self.x.image(device), self.g.image(device)
        sources, gradients = source.batch_representation(), incoming.batch_representation()
        state, result = kernel.result_state(source), empty_image(self.x.shape, self.x.dtype, device)
        with mg.CommandBuffer(device) as commands:
            statistics.encode_batch(commands, sources, state)

        def encode(commands: mg.CommandBuffer) -> None:
            sums.encode_batch(commands, gradients, sources, state)
            gradient.encode(commands, incoming, source, state, destination_gradient=result)

        def results() -> Mapping[str, Any]:
            return {"result": result, "gamma": state.gradient_for_gamma, "beta": state.gradient_for_beta}

        return Work(encode, results, self._gradient_parts, self._torch_gradient)

    def _few_channels(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """x, g, gamma and beta of the channels that are checked."""
        count = min(CHECKED_CHANNELS, self.x.shape[3])
        return self.x.channels(count), self.g.channels(count), self.gamma[:count], self.beta[:count]

    def _forward_parts(self) -> list[Part]:
        x, _, gamma, beta = self._few_channels()
        mean, variance = reference.batch_normalization_statistics(x)
        exact = reference.batch_normalization(x[:1], mean, variance, gamma, beta, EPSILON)
        magnitude = np.abs(exact - beta) + np.abs(beta) + 1
        return [_image_part(exact, error_bound(self.x.dtype, 16, magnitude, exact))]

    def _gradient_parts(self) -> list[Part]:
        x, g, gamma, beta = self._few_channels()
        mean, variance = reference.batch_normalization_statistics(x)
        exact, for_gamma, for_beta = reference.batch_normalization_gradient(g, x, mean, variance, gamma, beta, EPSILON)
        exact, pixels = exact[:1], x[..., 0].size
        bound = error_bound(self.x.dtype, 16, 2 * (np.abs(g[:1]) + 1 + np.abs(x[:1])), exact)
        parts = [_image_part(exact, bound)]
        normalized = (x - mean) / np.sqrt(variance + EPSILON)
        # The difference from the mean, its product with 1 / sqrt(variance) and that with g round before they are added.
        for name, sums, terms in (("gamma", for_gamma, g * (np.abs(normalized) + 1)), ("beta", for_beta, g)):
            bound = error_bound(np.float32, pixels + 16, np.abs(terms).sum((0, 1, 2)), sums)
            parts.append(Part(name, (slice(0, sums.size),), sums, bound))
        return parts

    def _torch_forward(self, where: Any) -> Mapping[str, TorchCall]:
        parameters = self._torch_parameters(where)
        return {
            f"{layout}{suffix}": TorchCall(forward, (*tensors, *parameters), image_result, fuses=not suffix)
            for layout, tensors in layouts(where, self.x).items()
            for suffix, forward, _ in _variants(where)
        }

    def _torch_gradient(self, where: Any) -> Mapping[str, TorchCall]:
        parameters = self._torch_parameters(where)
        return {
            f"{layout}{suffix}": TorchCall(
                backward, (g, x, parameters[0], *forward(x, *parameters)[1:]), _gradient_results, fuses=not suffix
            )
            for layout, (g, x) in layouts(where, self.g, self.x).items()
            for suffix, forward, backward in _variants(where)
        }

    def _torch_parameters(self, where: Any) -> tuple[Any, Any]:
        import torch

        return torch.from_numpy(self.gamma).to(where), torch.from_numpy(self.beta).to(where)


def _image_part(exact: np.ndarray, bound: np.ndarray) -> Part:
    return Part("result", (slice(0, 1), slice(None), slice(None), slice(0, exact.shape[3])), exact, bound)


def _variants(where: Any) -> list[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """The forward and backward functions that PyTorch has: its own, and on NVIDIA GPUs those of cuDNN."""
    own = ("", _forward, _backward)
    return [own, (" cuDNN", _cudnn_forward, _cudnn_backward)] if where.type == "cuda" else [own]


def _forward(x: Any, weight: Any, bias: Any) -> Any:
    import torch

    return torch.ops.aten.native_batch_norm(x, weight, bias, None, None, True, 0.1, EPSILON)


def _backward(g: Any, x: Any, weight: Any, mean: Any, inverse: Any) -> Any:
    import torch

    backward = torch.ops.aten.native_batch_norm_backward
    return backward(g, x, weight, None, None, mean, inverse, True, EPSILON, [True, True, True])


def _cudnn_forward(x: Any, weight: Any, bias: Any) -> Any:
    import torch

    return torch.ops.aten.cudnn_batch_norm(x, weight, bias, None, None, True, 0.1, EPSILON)


def _cudnn_backward(g: Any, x: Any, weight: Any, mean: Any, inverse: Any, reserve: Any) -> Any:
    import torch

    return torch.ops.aten.cudnn_batch_norm_backward(x, g, weight, None, None, mean, inverse, EPSILON, reserve)


def _gradient_results(returned: Any) -> Mapping[str, Any]:
    source, gamma, beta = returned
    return {"result": as_image(source), "gamma": gamma, "beta": beta}
