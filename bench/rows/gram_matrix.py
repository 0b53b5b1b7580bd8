"""Gram matrices of the feature channels, and the gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

import mpsgrad as mg
from bench.case import Case, Part, TorchCall, Work
from bench.drawn import Draw
from bench.inputs import RandomArray, empty_image
from bench.shapes import AWKWARD, SMALL, Shape, in_groups, text
from bench.tiny_op import TinyOp, tiny_pair
from mpsgrad import reference
from mpsgrad.accuracy import error_bound

DESIGN: Mapping[str, tuple[Shape, ...]] = {"cpu": ((4, 56, 56, 64),), "gpu": ((16, 128, 128, 128),)}
OTHERS: Mapping[str, tuple[Shape, ...]] = {"awkward": AWKWARD, "small": (SMALL,)}
MOST_PIXELS = 2**14
"""More are not drawn: the sums of their squares would leave float16."""


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, shape in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(shape, dtype, group)


def drawn_shape(draw: Draw) -> Shape:
    return draw.shape(most_pixels=MOST_PIXELS)


def cases_of(shape: Shape, dtype: str, group: str) -> Iterator[Case]:
    images, _, _, channels = shape
    x, g = RandomArray(shape, dtype), RandomArray((images, 1, channels, channels), dtype, 1)
    operations = 2 * x.size * channels
    forward, gradient = partial(_forward, x, g.shape), partial(_gradient, x, g)
    yield Case("gram_matrix", text(shape), dtype, group, x.nbytes + g.nbytes, operations, forward)
    nbytes = 2 * x.nbytes + g.nbytes
    yield Case("gram_matrix_gradient", text(shape), dtype, group, nbytes, operations, gradient)


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    yield from tiny_pair(mg.GramMatrixCalculation(device=device), mg.GramMatrixCalculationGradient(device=device))


def _forward(x: RandomArray, shape: tuple[int, ...], device: mg.Device) -> Work:
    source, result = x.image(device), empty_image(shape, x.dtype, device)

    def parts() -> list[Part]:
        exact, magnitude = (reference.gram_matrix(each) for each in (x.first(), np.abs(x.first())))
        return [Part("result", (slice(0, 1),), exact, error_bound(x.dtype, x.size // x.shape[3], magnitude, exact))]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        images, height, width, channels = x.shape
        matrices = x.tensor(where).reshape(images, height * width, channels)
        return {"matrix": TorchCall(_product, (matrices,), _with_height, fuses=False)}

    encode = partial(mg.GramMatrixCalculation(device=device).encode, source_image=source, destination_image=result)
    return Work(encode, lambda: {"result": result}, parts, torch_calls)


def _gradient(x: RandomArray, g: RandomArray, device: mg.Device) -> Work:
    source, incoming, result = x.image(device), g.image(device), empty_image(x.shape, x.dtype, device)
    state = mg.GramMatrixCalculation(device=device).result_state(source, destination_image=incoming)

    def parts() -> list[Part]:
        exact = reference.gram_matrix_gradient(g.first(), x.first())
        magnitude = reference.gram_matrix_gradient(np.abs(g.first()), np.abs(x.first()))
        return [Part("result", (slice(0, 1),), exact, error_bound(x.dtype, 2 * x.shape[3] + 4, magnitude, exact))]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        images, height, width, channels = x.shape
        matrices = x.tensor(where).reshape(images, height * width, channels)
        arguments = (g.tensor(where).reshape(images, channels, channels), matrices)
        return {"matrix": TorchCall(_product_gradient, arguments, partial(_as_image, x.shape), fuses=False)}

    encode = partial(
        mg.GramMatrixCalculationGradient(device=device).encode,
        source_gradient=incoming,
        source_image=source,
        gradient_state=state,
        destination_gradient=result,
    )
    return Work(encode, lambda: {"result": result}, parts, torch_calls)


def _product(x: Any) -> Any:
    return x.transpose(1, 2) @ x


def _product_gradient(g: Any, x: Any) -> Any:
    return x @ (g + g.transpose(1, 2))


def _with_height(returned: Any) -> Mapping[str, Any]:
    return {"result": returned[:, None]}


def _as_image(shape: tuple[int, ...], returned: Any) -> Mapping[str, Any]:
    return {"result": returned.reshape(shape)}
