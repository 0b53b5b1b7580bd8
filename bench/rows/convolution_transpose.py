"""Transposed convolutions that double an image's width and height, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import mpsgrad as mg
from bench.case import Case, Part, TorchCall, Work
from bench.drawn import Draw
from bench.inputs import RandomArray, empty_image
from bench.pytorch import as_image, image_result, layouts
from bench.shapes import in_groups
from bench.tiny_op import SHAPE, TinyOp, tiny_pair
from mpsgrad import reference
from mpsgrad.accuracy import error_bound

STRIDE = 2
CHECKED = 2
"""So many channels of an image, and of the weights for so many others."""


class Row(NamedTuple):
    images: int
    size: int
    inputs: int
    outputs: int
    kernel: int = 4

    @property
    def text(self) -> str:
        shape = f"{self.images}x{self.size}x{self.size}x{self.inputs}"
        return f"{shape} {self.kernel}x{self.kernel}/{STRIDE} -> {self.outputs}"

    @property
    def padding(self) -> int:
        """PyTorch's, for a result of twice the size: its window begins where ours does with an offset of 0."""
        return (self.kernel - STRIDE) // 2


DESIGN: Mapping[str, tuple[Row, ...]] = {"cpu": (Row(16, 28, 64, 32),), "gpu": (Row(64, 56, 128, 64),)}
OTHERS: Mapping[str, tuple[Row, ...]] = {
    "unet": (Row(32, 8, 1024, 512, 2), Row(32, 32, 256, 128, 2)),
    "awkward": (Row(5, 15, 37, 3),),
    "small": (Row(1, 14, 64, 64),),
}


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, row in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(row, dtype, group)


def drawn_shape(draw: Draw) -> Row:
    images, height, width, inputs = draw.shape()
    return Row(images, min(height, width), inputs, draw.channels(), draw.chosen((2, 2, 4, 4, 6)))


def cases_of(row: Row, dtype: str, group: str) -> Iterator[Case]:
    layer = _Layer(row, dtype)
    nbytes = layer.x.nbytes + layer.g.nbytes + 4 * layer.weights.size
    operations = 2 * layer.x.size * layer.weights.size // row.inputs
    for op, prepare in (
        ("convolution_transpose", layer.forward),
        ("convolution_transpose_gradient_data", layer.gradient_data),
        ("convolution_transpose_gradient_weights", layer.gradient_weights),
    ):
        yield Case(op, row.text, dtype, group, nbytes, operations, prepare)


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    channels = SHAPE[3]
    data = mg.ConvolutionDataSource.from_arrays(
        np.ones((channels, 1, 1, channels), np.float32), np.ones(channels, np.float32)
    )
    yield from tiny_pair(
        mg.ConvolutionTranspose(data, device=device), mg.ConvolutionTransposeGradient(data, device=device)
    )


class _Layer:
    def __init__(self, row: Row, dtype: str) -> None:
        self.row, self.dtype = row, dtype
        self.x = RandomArray((row.images, row.size, row.size, row.inputs), dtype)
        self.g = RandomArray((row.images, STRIDE * row.size, STRIDE * row.size, row.outputs), dtype, 1)
        self.weights = RandomArray((row.outputs, row.kernel, row.kernel, row.inputs), dtype, 2)

    def _kernels(self, device: mg.Device) -> tuple[mg.ConvolutionTranspose, mg.ConvolutionTransposeGradient]:
        weights = self.weights.array().astype(np.float32)
        source = mg.ConvolutionDataSource.from_arrays(weights, stride=(STRIDE, STRIDE))
        return mg.ConvolutionTranspose(source, device=device), mg.ConvolutionTransposeGradient(source, device=device)

    def forward(self, device: mg.Device) -> Work:
        source, result = self.x.image(device), empty_image(self.g.shape, self.dtype, device)
        kernel, _ = self._kernels(device)

        def parts() -> list[Part]:
            few = slice(0, CHECKED)
            x, w = self.x.first(), self.weights.array()[few]
            size = (self.g.shape[1], self.g.shape[2])
            exact, magnitude = (
                reference.convolution_transpose(a, b, size=size, stride=(STRIDE, STRIDE))
                for a, b in ((x, w), (np.abs(x), np.abs(w)))
            )
            return [_image_part(few, exact, error_bound(self.dtype, w[0].size + 1, magnitude, exact))]

        def torch_calls(where: Any) -> Mapping[str, TorchCall]:
            return {
                layout: TorchCall(partial(_forward, self.row), tensors, image_result, fuses=False)
                for layout, (tensors, _) in self._tensors(where).items()
            }

        encode = partial(kernel.encode, source_image=source, destination_image=result)
        return Work(encode, lambda: {"result": result}, parts, torch_calls)

    def gradient_data(self, device: mg.Device) -> Work:
        gradient = _Gradient(self, device, mg.ConvolutionGradientOption.GRADIENT_WITH_DATA)

        def parts() -> list[Part]:
            few = slice(0, CHECKED)
            g, w = self.g.first(), self.weights.array()[..., few]
            exact, magnitude = (
                reference.convolution_transpose_gradient(a, self.x.first()[..., few], b, stride=(STRIDE, STRIDE))[0]
                for a, b in ((g, w), (np.abs(g), np.abs(w)))
            )
            terms = self.weights.size // self.row.inputs
            return [_image_part(few, exact, error_bound(self.dtype, terms, magnitude, exact))]

        calls = partial(self._torch_gradient, (True, False, False), image_result)
        return Work(gradient.encode, lambda: {"result": gradient.result}, parts, calls)

    def gradient_weights(self, device: mg.Device) -> Work:
        gradient = _Gradient(self, device, mg.ConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS)

        def parts() -> list[Part]:
            few = slice(0, CHECKED)
            w = self.weights.array()[few, :, :, few]
            g, x = self.g.channels(w.shape[0]), self.x.channels(w.shape[3])
            exact, magnitude = (
                reference.convolution_transpose_gradient(a, b, w, stride=(STRIDE, STRIDE))[1]
                for a, b in ((g, x), (np.abs(g), np.abs(x)))
            )
            bound = error_bound(np.float32, self.x.size // self.row.inputs, magnitude, exact)
            sums, terms = g.sum((0, 1, 2)), g[..., 0].size
            return [
                Part("weights", (few, slice(None), slice(None), few), exact, bound),
                Part("biases", (few,), sums, error_bound(np.float32, terms, np.abs(g).sum((0, 1, 2)), sums)),
            ]

        calls = partial(self._torch_gradient, (False, True, True), _parameter_results)
        return Work(gradient.encode, gradient.parameter_results, parts, calls)

    def _tensors(self, where: Any) -> dict[str, tuple[tuple[Any, Any], Any]]:
        """Source and weights, and the incoming gradient, in each memory format. PyTorch turns the weights."""
        found = {}
        for layout, (x, g, weights) in layouts(where, self.x, self.g, self.weights).items():
            turned = weights.flip((2, 3)).permute(1, 0, 2, 3)
            found[layout] = ((x, turned.contiguous()), g)
        return found

    def _torch_gradient(self, mask: tuple[bool, bool, bool], results: Any, where: Any) -> Mapping[str, TorchCall]:
        return {
            layout: TorchCall(partial(_backward, self.row, mask), (*tensors, g), results, fuses=False)
            for layout, (tensors, g) in self._tensors(where).items()
        }


class _Gradient:
    """Encodes of a gradient. Each has a state of its own, because gradients of parameters add up in a state."""

    def __init__(self, layer: _Layer, device: mg.Device, option: mg.ConvolutionGradientOption) -> None:
        self.source, self.incoming = layer.x.image(device), layer.g.image(device)
        self.forward, self.kernel = layer._kernels(device)
        self.kernel.gradient_option = option
        self.result = empty_image(layer.x.shape, layer.dtype, device)

    def encode(self, commands: mg.CommandBuffer) -> None:
        self.state = self.forward.result_state(self.source, destination_image=self.incoming)
        self.kernel.encode(commands, self.incoming, self.source, self.state, destination_gradient=self.result)

    def parameter_results(self) -> Mapping[str, Any]:
        return {"weights": self.state.gradient_for_weights, "biases": self.state.gradient_for_biases}


def _image_part(channels: slice, exact: np.ndarray, bound: np.ndarray) -> Part:
    return Part("result", (slice(0, 1), slice(None), slice(None), channels), exact, bound)


def _forward(row: Row, x: Any, weights: Any) -> Any:
    import torch

    return torch.nn.functional.conv_transpose2d(x, weights, None, STRIDE, row.padding)


def _backward(row: Row, mask: tuple[bool, bool, bool], x: Any, weights: Any, g: Any) -> Any:
    import torch

    padding, stride = [row.padding] * 2, [STRIDE] * 2
    return torch.ops.aten.convolution_backward(
        g, x, weights, [row.outputs], stride, padding, [1, 1], True, [0, 0], 1, list(mask)
    )


def _parameter_results(returned: Any) -> Mapping[str, Any]:
    _, weights, biases = returned
    return {"weights": as_image(weights.flip((2, 3)).permute(1, 0, 2, 3)), "biases": biases}
