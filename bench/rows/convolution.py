"""Convolution, fully connected and depthwise layers, and their gradients for the data and for the parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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


class Row(NamedTuple):
    images: int
    size: int
    inputs: int
    kernel: int
    outputs: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def text(self) -> str:
        stride = f"/{self.stride}" if self.stride > 1 else ""
        kind = "" if self.groups == 1 else " depthwise" if self.groups == self.inputs else f" in {self.groups} groups"
        source = f"{self.images}x{self.size}x{self.size}x{self.inputs}"
        return f"{source} {self.kernel}x{self.kernel}{stride} -> {self.outputs}{kind}"

    @property
    def result_size(self) -> int:
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1


DESIGN_LAYERS = (
    Row(1, 56, 64, 3, 64, padding=1),
    Row(1, 28, 128, 3, 128, padding=1),
    Row(1, 14, 256, 3, 256, padding=1),
    Row(1, 56, 256, 1, 64),
    Row(1, 224, 3, 7, 64, stride=2, padding=3),
    Row(1, 7, 512, 7, 1000),
    Row(1, 56, 64, 3, 64, padding=1, groups=64),
)
DESIGN = {
    "cpu": tuple(row._replace(images=8 if row.size == 224 else 16) for row in DESIGN_LAYERS),
    "gpu": tuple(row._replace(images=64) for row in DESIGN_LAYERS),
}
OTHERS: Mapping[str, tuple[Row, ...]] = {
    "resnet50": (
        Row(32, 224, 3, 7, 64, stride=2, padding=3),
        Row(32, 56, 64, 1, 256),
        Row(32, 56, 64, 3, 64, padding=1),
        Row(32, 56, 256, 1, 64),
        Row(32, 56, 128, 3, 128, stride=2, padding=1),
        Row(32, 28, 128, 3, 128, padding=1),
        Row(32, 28, 128, 1, 512),
        Row(32, 28, 512, 1, 1024, stride=2),
        Row(32, 14, 256, 3, 256, padding=1),
        Row(32, 14, 1024, 1, 256),
        Row(32, 7, 512, 3, 512, padding=1),
        Row(32, 7, 512, 1, 2048),
        Row(32, 1, 2048, 1, 1000),
    ),
    "unet": (
        Row(32, 128, 3, 3, 64, padding=1),
        Row(32, 128, 64, 3, 64, padding=1),
        Row(32, 64, 128, 3, 128, padding=1),
        Row(32, 32, 256, 3, 256, padding=1),
        Row(32, 16, 512, 3, 512, padding=1),
        Row(32, 8, 1024, 3, 1024, padding=1),
        Row(32, 128, 128, 3, 64, padding=1),
        Row(32, 128, 64, 1, 2),
    ),
    "awkward": (
        Row(7, 57, 3, 3, 37, stride=2, padding=1),
        Row(5, 31, 37, 3, 37, padding=1),
        Row(3, 17, 37, 5, 3, padding=2),
        Row(64, 28, 1, 5, 6, padding=2),
        Row(64, 14, 6, 5, 16, padding=2),
        Row(64, 32, 3, 3, 16, padding=1),
    ),
    "small": (
        Row(1, 56, 64, 3, 64, padding=1),
        Row(1, 14, 256, 3, 256, padding=1),
        Row(1, 7, 512, 1, 2048),
    ),
}
CHECKED_CHANNELS, CHECKED_WEIGHTS = 8, 2
"""So many channels of an image; the weights of so many output channels for so many input channels, or of groups."""


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, row in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(row, dtype, group)
    if hardware == "gpu" and dtype == "float32":
        for row in DESIGN[hardware]:
            if row.groups == 1:
                yield from cases_of(row, dtype, "design", tf32=True)


def drawn_shape(draw: Draw) -> Row:
    """Dense, grouped and depthwise layers, and some whose window is the whole image."""
    kernel = draw.chosen((1, 1, 2, 3, 3, 5, 7))
    images, height, width, inputs = draw.shape(smallest=kernel)
    outputs, size, stride = draw.channels(), min(height, width), draw.chosen((1, 1, 1, 2, 3))
    padding = draw.chosen(range(kernel // 2 + 1))
    kind = draw.chosen(("dense",) * 4 + ("grouped", "depthwise", "connected"))
    if kind == "connected":
        return Row(images, kernel, inputs, kernel, outputs)
    if kind == "depthwise":
        return Row(images, size, inputs, kernel, inputs, stride, padding, inputs)
    groups = draw.chosen((2, 3, 4, 8)) if kind == "grouped" else 1
    inputs, outputs = (-(-channels // groups) * groups for channels in (inputs, outputs))
    return Row(images, size, inputs, kernel, outputs, stride, padding, groups)


def cases_of(row: Row, dtype: str, group: str, tf32: bool = False) -> Iterator[Case]:
    layer = _Layer(row, dtype)
    images, weights = layer.x.nbytes + layer.g.nbytes, 4 * layer.weights.size
    operations = 2 * layer.g.size * layer.weights.size // row.outputs
    for op, nbytes, prepare in (
        ("convolution", images + weights + 4 * row.outputs, layer.forward),
        ("convolution_gradient_data", images + weights, layer.gradient_data),
        ("convolution_gradient_weights", images + weights + 4 * row.outputs, layer.gradient_weights),
    ):
        yield Case(op, row.text, dtype, group, nbytes, operations, prepare, tf32)


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    channels = SHAPE[3]
    biases = np.ones(channels, np.float32)
    data = mg.ConvolutionDataSource.from_arrays(np.ones((channels, 1, 1, channels), np.float32), biases)
    whole = mg.ConvolutionDataSource.from_arrays(np.ones((channels, *SHAPE[1:]), np.float32), biases)
    yield from tiny_pair(mg.Convolution(data, device=device), mg.ConvolutionGradient(data, device=device))
    yield from tiny_pair(mg.FullyConnected(whole, device=device), mg.FullyConnectedGradient(whole, device=device))


class _Layer:
    def __init__(self, row: Row, dtype: str) -> None:
        size, channels = row.result_size, row.inputs // row.groups
        self.row, self.dtype = row, dtype
        self.x = RandomArray((row.images, row.size, row.size, row.inputs), dtype)
        self.g = RandomArray((row.images, size, size, row.outputs), dtype, 1)
        # In the images' dtype, so that PyTorch, whose weights have it, multiplies by the same numbers.
        self.weights = RandomArray((row.outputs, row.kernel, row.kernel, channels), dtype, 2)
        self.biases = RandomArray((row.outputs,), dtype, 3)

    @property
    def _geometry(self) -> dict[str, Any]:
        row = self.row
        centre = row.kernel // 2 - row.padding
        return {
            "stride": (row.stride, row.stride),
            "offset": (centre, centre),
            "size": (row.result_size, row.result_size),
            "groups": row.groups,
        }

    def _source(self) -> mg.ConvolutionDataSource:
        row = self.row
        weights, biases = self.weights.array().astype(np.float32), self.biases.array().astype(np.float32)
        return mg.ConvolutionDataSource.from_arrays(weights, biases, stride=(row.stride, row.stride), groups=row.groups)

    def _forward_kernel(self, device: mg.Device) -> mg.Convolution:
        kernel = mg.Convolution(self._source(), device=device)
        centre = self.row.kernel // 2 - self.row.padding
        kernel.offset = mg.Offset(centre, centre)
        return kernel

    def forward(self, device: mg.Device) -> Work:
        result = empty_image(self.g.shape, self.dtype, device)
        kernel = self._forward_kernel(device)
        encode = partial(kernel.encode, source_image=self.x.image(device), destination_image=result)
        return Work(encode, lambda: {"result": result}, self._forward_parts, self._torch_forward)

    def _gradient(self, device: mg.Device, option: mg.ConvolutionGradientOption) -> _Gradient:
        source, incoming = self.x.image(device), self.g.image(device)
        kernel = mg.ConvolutionGradient(self._source(), device=device)
        kernel.gradient_option = option
        forward, forward_result = self._forward_kernel(device), empty_image(self.g.shape, self.dtype, device)
        result = empty_image(self.x.shape, self.dtype, device)
        return _Gradient(forward, kernel, source, incoming, forward_result, result)

    def gradient_data(self, device: mg.Device) -> Work:
        gradient = self._gradient(device, mg.ConvolutionGradientOption.GRADIENT_WITH_DATA)
        torch_calls = partial(self._torch_gradient, mask=(True, False, False))
        return Work(gradient.encode, lambda: {"result": gradient.result}, self._data_parts, torch_calls)

    def gradient_weights(self, device: mg.Device) -> Work:
        gradient = self._gradient(device, mg.ConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS)
        torch_calls = partial(self._torch_gradient, mask=(False, True, True))
        return Work(gradient.encode, gradient.parameter_results, self._weights_parts, torch_calls)

    def _forward_parts(self) -> list[Part]:
        few = self._few(self.row.outputs)
        x, w, b = self.x.first(), self.weights.array()[few], self.biases.array()[few]
        exact = reference.convolution(x, w, b, **self._geometry)
        magnitude = reference.convolution(np.abs(x), np.abs(w), np.abs(b), **self._geometry)
        return [_image_part(few, exact, error_bound(self.dtype, w[0].size + 1, magnitude, exact))]

    def _data_parts(self) -> list[Part]:
        row, few = self.row, self._few(self.row.inputs)
        g, w = self.g.first(), self.weights.array()
        if row.groups == 1:
            w = w[..., few]
        geometry = {"source_size": self.x.shape[1:3], **self._geometry}
        exact = reference.convolution_gradient_data(g, w, **geometry)
        magnitude = reference.convolution_gradient_data(np.abs(g), np.abs(w), **geometry)
        terms = row.kernel**2 * row.outputs // row.groups
        return [_image_part(few, exact, error_bound(self.dtype, terms, magnitude, exact))]

    def _few(self, channels: int) -> slice:
        """The channels of an image that are checked: all with groups, because they belong together."""
        return slice(0, channels if self.row.groups > 1 else min(CHECKED_CHANNELS, channels))

    def _weights_parts(self) -> list[Part]:
        row = self.row
        groups = min(CHECKED_WEIGHTS, row.groups)
        outputs, inputs = (
            channels // row.groups * groups if groups > 1 else min(CHECKED_WEIGHTS, channels)
            for channels in (row.outputs, row.inputs)
        )
        g, x = self.g.channels(outputs), self.x.channels(inputs)
        geometry = {"kernel": (row.kernel, row.kernel), **self._geometry, "groups": groups}
        exact, terms = reference.convolution_gradient_weights(g, x, **geometry), g[..., 0].size
        magnitude = reference.convolution_gradient_weights(np.abs(g), np.abs(x), **geometry)
        bound = error_bound(np.float32, terms, magnitude, exact)
        few = slice(0, outputs)
        index = (few, slice(None), slice(None), slice(0, exact.shape[3]))
        sums = g.sum((0, 1, 2))
        return [
            Part("weights", index, exact, bound),
            Part("biases", (few,), sums, error_bound(np.float32, terms, np.abs(g).sum((0, 1, 2)), sums)),
        ]

    def _tensors(self, where: Any) -> dict[str, list[Any]]:
        """x, g and the weights in each memory format."""
        return layouts(where, self.x, self.g, self.weights)

    def _torch_forward(self, where: Any) -> Mapping[str, TorchCall]:
        biases = self.biases.tensor(where)
        return {
            layout: TorchCall(partial(_forward, self.row), (x, weights, biases), image_result, fuses=False)
            for layout, (x, _, weights) in self._tensors(where).items()
        }

    def _torch_gradient(self, where: Any, mask: tuple[bool, bool, bool]) -> Mapping[str, TorchCall]:
        results = image_result if mask[0] else _parameter_results
        return {
            layout: TorchCall(partial(_backward, self.row, mask), tuple(tensors), results, fuses=False)
            for layout, tensors in self._tensors(where).items()
        }


@dataclass
class _Gradient:
    """Encodes of a gradient. Each has a state of its own, because gradients of parameters add up in a state."""

    forward: mg.Convolution
    kernel: mg.ConvolutionGradient
    source: mg.Image
    incoming: mg.Image
    forward_result: mg.Image
    result: mg.Image

    def encode(self, commands: mg.CommandBuffer) -> None:
        self.state = self.forward.result_state(self.source, destination_image=self.forward_result)
        self.kernel.encode(commands, self.incoming, self.source, self.state, destination_gradient=self.result)

    def parameter_results(self) -> Mapping[str, Any]:
        return {"weights": self.state.gradient_for_weights, "biases": self.state.gradient_for_biases}


def _image_part(channels: slice, exact: np.ndarray, bound: np.ndarray) -> Part:
    return Part("result", (slice(0, 1), slice(None), slice(None), channels), exact, bound)


def _forward(row: Row, x: Any, weights: Any, biases: Any) -> Any:
    import torch

    return torch.nn.functional.conv2d(x, weights, biases, row.stride, row.padding, 1, row.groups)


def _backward(row: Row, mask: tuple[bool, bool, bool], x: Any, g: Any, weights: Any) -> Any:
    import torch

    return torch.ops.aten.convolution_backward(
        g,
        x,
        weights,
        [row.outputs],
        [row.stride] * 2,
        [row.padding] * 2,
        [1, 1],
        False,
        [0, 0],
        row.groups,
        list(mask),
    )


def _parameter_results(returned: Any) -> Mapping[str, Any]:
    _, weights, biases = returned
    return {"weights": as_image(weights), "biases": biases}
