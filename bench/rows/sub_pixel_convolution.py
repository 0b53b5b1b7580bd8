"""Sub-pixel convolution by 2: four times the channels, spread over blocks of 2 x 2 pixels."""

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
from bench.shapes import in_groups
from mpsgrad import reference
from mpsgrad.accuracy import error_bound
from mpsgrad.kernels.convolution_data_source import ArrayConvolutionDataSource

FACTOR = 2


class Row(NamedTuple):
    images: int
    size: int
    inputs: int
    outputs: int

    @property
    def text(self) -> str:
        return f"{self.images}x{self.size}x{self.size}x{self.inputs} 3x3 -> {self.outputs} by {FACTOR}"


DESIGN: Mapping[str, tuple[Row, ...]] = {"cpu": (Row(4, 56, 32, 16),), "gpu": (Row(32, 128, 64, 32),)}
OTHERS: Mapping[str, tuple[Row, ...]] = {"awkward": (Row(3, 17, 37, 3),), "small": (Row(1, 28, 32, 3),)}


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, row in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(row, dtype, group)


def drawn_shape(draw: Draw) -> Row:
    images, height, width, inputs = draw.shape()
    return Row(images, min(height, width), inputs, draw.channels())


def cases_of(row: Row, dtype: str, group: str) -> Iterator[Case]:
    x = RandomArray((row.images, row.size, row.size, row.inputs), dtype)
    weights = RandomArray((row.outputs * FACTOR**2, 3, 3, row.inputs), dtype, 1)
    pixels = row.images * row.size**2
    written = pixels * FACTOR**2 * row.outputs
    nbytes = x.nbytes + 4 * weights.size + written * np.dtype(dtype).itemsize
    prepare = partial(_prepare, row, x, weights)
    yield Case("sub_pixel_convolution", row.text, dtype, group, nbytes, 2 * pixels * weights.size, prepare)


def _prepare(row: Row, x: RandomArray, weights: RandomArray, device: mg.Device) -> Work:
    descriptor = mg.SubPixelConvolutionDescriptor(
        3, 3, row.inputs, row.outputs * FACTOR**2, sub_pixel_scale_factor=FACTOR
    )
    numbers = weights.array().astype(np.float32)
    kernel = mg.Convolution(ArrayConvolutionDataSource(descriptor, numbers, None), device=device)
    shape = (row.images, FACTOR * row.size, FACTOR * row.size, row.outputs)
    source, result = x.image(device), empty_image(shape, x.dtype, device)

    def parts() -> list[Part]:
        few, w = slice(0, 1), weights.array()[:: row.outputs]
        exact, magnitude = (
            reference.sub_pixels(reference.convolution(*each, size=(row.size, row.size)), FACTOR)
            for each in ((x.first(), w), (np.abs(x.first()), np.abs(w)))
        )
        bound = error_bound(x.dtype, w[0].size, magnitude, exact)
        return [Part("result", (few, slice(None), slice(None), few), exact, bound)]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        calls = {}
        for layout, (tensor, w) in layouts(where, x, weights).items():
            # PyTorch's blocks are in the channels of each result, ours the other way round.
            blocks = w.reshape(FACTOR**2, row.outputs, *w.shape[1:]).transpose(0, 1).reshape(w.shape)
            calls[layout] = TorchCall(_torch, (tensor, blocks.contiguous()), image_result, fuses=False)
        return calls

    encode = partial(kernel.encode, source_image=source, destination_image=result)
    return Work(encode, lambda: {"result": result}, parts, torch_calls)


def _torch(x: Any, weights: Any) -> Any:
    from torch.nn import functional

    return functional.pixel_shuffle(functional.conv2d(x, weights, None, 1, 1), FACTOR)
