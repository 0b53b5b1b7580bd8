"""The sum of each pixel's channels with a weight for each, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

import mpsgrad as mg
from bench.case import Case, Part, TorchCall, Work
from bench.drawn import Draw
from bench.inputs import RandomArray, empty_image
from bench.pytorch import on_images
from bench.shapes import AWKWARD, SMALL, Shape, in_groups, text
from bench.tiny_op import TinyOp, tiny_image, tiny_pair
from mpsgrad import reference
from mpsgrad.accuracy import error_bound

DESIGN: Mapping[str, tuple[Shape, ...]] = {"cpu": ((16, 56, 56, 64),), "gpu": ((64, 112, 112, 64),)}
OTHERS: Mapping[str, tuple[Shape, ...]] = {"awkward": AWKWARD, "small": (SMALL,)}


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, shape in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(shape, dtype, group)


def drawn_shape(draw: Draw) -> Shape:
    return draw.shape()


def cases_of(shape: Shape, dtype: str, group: str) -> Iterator[Case]:
    x, w = RandomArray(shape, dtype), RandomArray(shape, dtype, 1)
    g = RandomArray((*shape[:3], 1), dtype, 2)
    nbytes = 2 * x.nbytes + g.nbytes
    op = "reduction_feature_channels_and_weights_sum"
    yield Case(op, text(shape), dtype, group, nbytes, 2 * x.size, partial(_forward, x, w))
    yield Case(f"{op}_gradient", text(shape), dtype, group, nbytes, x.size, partial(_gradient, x, w, g))


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    source = tiny_image(device)
    for kind in (mg.ReduceFeatureChannelsAndWeightsSum, mg.ReduceFeatureChannelsAndWeightsMean):
        gradient = mg.ReduceFeatureChannelsAndWeightsGradient(device=device)
        yield from tiny_pair(kind(device=device), gradient, source, source)


def _forward(x: RandomArray, w: RandomArray, device: mg.Device) -> Work:
    images, result = (x.image(device), w.image(device)), empty_image((*x.shape[:3], 1), x.dtype, device)

    def parts() -> list[Part]:
        exact = reference.weighted_reduction(x.first(), w.first())
        magnitude = reference.weighted_reduction(np.abs(x.first()), np.abs(w.first()))
        return [Part("result", (slice(0, 1),), exact, error_bound(x.dtype, x.shape[3] + 1, magnitude, exact))]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        return on_images(where, _weighted_sum, x, w)

    kernel = mg.ReduceFeatureChannelsAndWeightsSum(device=device)
    encode = partial(kernel.encode, primary_image=images[0], secondary_image=images[1], destination_image=result)
    return Work(encode, lambda: {"result": result}, parts, torch_calls)


def _gradient(x: RandomArray, w: RandomArray, g: RandomArray, device: mg.Device) -> Work:
    weights, incoming, result = w.image(device), g.image(device), empty_image(x.shape, x.dtype, device)
    forward = mg.ReduceFeatureChannelsAndWeightsSum(device=device)
    state = forward.result_state(x.image(device), weights, destination_image=incoming)

    def parts() -> list[Part]:
        exact, _ = reference.weighted_reduction_gradient(g.first(), x.first(), w.first())
        return [Part("result", (slice(0, 1),), exact, error_bound(x.dtype, 2, exact, exact))]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        return on_images(where, _product, g, w)

    encode = partial(
        mg.ReduceFeatureChannelsAndWeightsGradient(device=device).encode,
        source_gradient=incoming,
        source_image=weights,
        gradient_state=state,
        destination_gradient=result,
    )
    return Work(encode, lambda: {"result": result}, parts, torch_calls)


def _weighted_sum(x: Any, w: Any) -> Any:
    return (x * w).sum(1, keepdim=True)


def _product(g: Any, w: Any) -> Any:
    return g * w
