"""Convolution, fully connected and depthwise layers, and their gradients for the data and for the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import mpsgrad as mg
from bench.case import Case
from bench.inputs import image, random_array, torch_layouts, torch_tensors
from mpsgrad import reference
from mpsgrad.accuracy import assert_within, error_bound


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
        kind = " depthwise" if self.groups > 1 else ""
        source = f"{self.images}x{self.size}x{self.size}x{self.inputs}"
        return f"{source} {self.kernel}x{self.kernel}{stride} -> {self.outputs}{kind}"

    @property
    def result_size(self) -> int:
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1


ROWS = (
    Row(16, 56, 64, 3, 64, padding=1),
    Row(16, 28, 128, 3, 128, padding=1),
    Row(16, 14, 256, 3, 256, padding=1),
    Row(16, 56, 256, 1, 64),
    Row(8, 224, 3, 7, 64, stride=2, padding=3),
    Row(16, 7, 512, 7, 1000),
    Row(16, 56, 64, 3, 64, padding=1, groups=64),
)


def cases(dtype: str, device: mg.Device) -> Iterator[Case]:
    for row in ROWS:
        yield from _cases(row, dtype, device)


def _cases(row: Row, dtype: str, device: mg.Device) -> Iterator[Case]:
    size, channels = row.result_size, row.inputs // row.groups
    x = random_array((row.images, row.size, row.size, row.inputs), dtype)
    g = random_array((row.images, size, size, row.outputs), dtype, 1)
    weights = random_array((row.outputs, row.kernel, row.kernel, channels), "float32", 2)
    biases = random_array((row.outputs,), "float32", 3)
    data = mg.ConvolutionDataSource.from_arrays(weights, biases, stride=(row.stride, row.stride), groups=row.groups)
    forward, gradient = mg.Convolution(data, device=device), mg.ConvolutionGradient(data, device=device)
    centre = row.kernel // 2 - row.padding
    forward.offset = mg.Offset(centre, centre)
    source, incoming = image(x, device), image(g, device)
    result = mg.Image(incoming.descriptor, device)
    destination = mg.Image(source.descriptor, device)

    def encode_forward(commands: mg.CommandBuffer) -> mg.Image:
        forward.encode(commands, source, destination_image=result)
        return result

    def encode_gradient(commands: mg.CommandBuffer, option: mg.ConvolutionGradientOption) -> Any:
        state = forward.result_state(source, destination_image=result)
        gradient.gradient_option = option
        gradient.encode(commands, incoming, source, state, destination_gradient=destination)
        return destination if option is mg.ConvolutionGradientOption.GRADIENT_WITH_DATA else state

    first = (slice(0, 1),)
    geometry = {
        "stride": (row.stride, row.stride),
        "offset": (centre, centre),
        "size": (size, size),
        "groups": row.groups,
    }

    def check_forward(actual: mg.Image) -> None:
        exact = reference.convolution(x[first], weights, biases, **geometry)
        magnitude = reference.convolution(np.abs(x[first]), np.abs(weights), np.abs(biases), **geometry)
        bound = error_bound(actual.dtype, weights[0].size + 1, magnitude, exact)
        assert_within(np.asarray(actual)[first], exact, bound)

    def check_data(actual: mg.Image) -> None:
        gradient_of = partial(reference.convolution_gradient_data, source_size=x.shape[1:3], **geometry)
        exact = gradient_of(g[first], weights)
        terms = row.kernel**2 * row.outputs // row.groups
        bound = error_bound(actual.dtype, terms, gradient_of(np.abs(g[first]), np.abs(weights)), exact)
        assert_within(np.asarray(actual)[first], exact, bound)

    def check_weights(state: mg.ConvolutionGradientState) -> None:
        few, groups = min(4, row.outputs), min(4, row.groups)
        some_g, some_x = g[..., :few], x[..., : groups * channels]
        few_geometry = {**geometry, "groups": groups}
        gradient_of = partial(reference.convolution_gradient_weights, kernel=weights.shape[1:3], **few_geometry)
        exact, terms = gradient_of(some_g, some_x), g[..., 0].size
        bound = error_bound(np.dtype("float32"), terms, gradient_of(np.abs(some_g), np.abs(some_x)), exact)
        assert_within(state.gradient_for_weights[:few], exact, bound)
        sums = np.abs(g).sum((0, 1, 2), np.float64)
        assert_within(
            state.gradient_for_biases,
            g.sum((0, 1, 2), np.float64),
            error_bound(np.dtype("float32"), terms, sums, sums),
        )

    operations = 2 * g.size * weights[0].size
    parameter_bytes = weights.nbytes + biases.nbytes
    layouts = torch_layouts(x, g, weights.astype(dtype))
    torch_biases = torch_tensors(biases.astype(dtype)) or []
    option = mg.ConvolutionGradientOption
    for op, nbytes, encode, check, call in (
        ("convolution", x.nbytes + parameter_bytes + g.nbytes, encode_forward, check_forward, _forward),
        (
            "convolution_gradient_data",
            g.nbytes + weights.nbytes + x.nbytes,
            partial(encode_gradient, option=option.GRADIENT_WITH_DATA),
            check_data,
            partial(_backward, mask=[True, False, False]),
        ),
        (
            "convolution_gradient_weights",
            g.nbytes + x.nbytes + parameter_bytes,
            partial(encode_gradient, option=option.GRADIENT_WITH_WEIGHTS_AND_BIAS),
            check_weights,
            partial(_backward, mask=[False, True, True]),
        ),
    ):
        yield Case(
            op,
            row.text,
            dtype,
            nbytes,
            encode,
            check,
            operations,
            {layout: partial(call, row, *tensors, *torch_biases) for layout, tensors in layouts.items()},
        )


def _forward(row: Row, x, g, weights, biases):  # type: ignore[no-untyped-def]
    import torch

    return torch.nn.functional.conv2d(x, weights, biases, row.stride, row.padding, 1, row.groups)


def _backward(row: Row, x, g, weights, biases, mask):  # type: ignore[no-untyped-def]
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
        mask,
    )
