"""Upsampling by 2, by the nearest pixel and bilinear with aligned corners, which PyTorch has too, and the gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

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

DESIGN: Mapping[str, tuple[Shape, ...]] = {"cpu": ((16, 28, 28, 64),), "gpu": ((64, 56, 56, 64),)}
OTHERS: Mapping[str, tuple[Shape, ...]] = {"unet": ((32, 32, 32, 256),), "awkward": AWKWARD, "small": (SMALL,)}
KINDS = ("nearest", "bilinear")
RATIO = (Fraction(1, 2), Fraction(1, 2))


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, shape in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(shape, dtype, group)


def drawn_shape(draw: Draw) -> Shape:
    return draw.shape(smallest=2)


def cases_of(shape: Shape, dtype: str, group: str) -> Iterator[Case]:
    images, height, width, channels = shape
    x, g = RandomArray(shape, dtype), RandomArray((images, 2 * height, 2 * width, channels), dtype, 1)
    for kind in KINDS:
        # Bilinear: a multiply and add for each of two pixels along each axis.
        operations = (8 if kind == "bilinear" else 1) * g.size
        forward, gradient = partial(_forward, kind, x, g.shape), partial(_gradient, kind, x, g)
        op, nbytes = f"upsampling_{kind}", x.nbytes + g.nbytes
        yield Case(op, text(shape), dtype, group, nbytes, operations, forward)
        yield Case(f"{op}_gradient", text(shape), dtype, group, nbytes, operations, gradient)


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    twice: dict[str, Any] = {"scale_factor_x": 2, "scale_factor_y": 2, "device": device}
    size: dict[str, Any] = {"resize_width": 3, "resize_height": 3, "device": device}
    yield from tiny_pair(mg.UpsamplingNearest(**twice), mg.UpsamplingNearestGradient(**twice))
    yield from tiny_pair(mg.UpsamplingBilinear(**twice), mg.UpsamplingBilinearGradient(**twice))
    yield from tiny_pair(mg.ResizeBilinear(**size), mg.ResizeBilinearGradient(**size))


def _kernels(kind: str, device: mg.Device) -> tuple[Any, Any]:
    factors: dict[str, Any] = {"scale_factor_x": 2, "scale_factor_y": 2, "device": device}
    if kind == "nearest":
        return mg.UpsamplingNearest(**factors), mg.UpsamplingNearestGradient(**factors)
    return mg.UpsamplingBilinear(**factors, align_corners=True), mg.UpsamplingBilinearGradient(**factors)


def _forward(kind: str, x: RandomArray, shape: tuple[int, ...], device: mg.Device) -> Work:
    kernel, _ = _kernels(kind, device)
    source, result = x.image(device), empty_image(shape, x.dtype, device)

    def parts() -> list[Part]:
        exact = reference.resample(x.first(), (shape[1], shape[2]), RATIO, kind, kind == "bilinear")
        magnitude = reference.resample(np.abs(x.first()), (shape[1], shape[2]), RATIO, kind, kind == "bilinear")
        # A weight of 1 - share is rounded where the share is, so by half an epsilon for each axis, however small it is.
        weights = float(np.finfo(np.float32).eps) * np.abs(x.first()).max() if kind == "bilinear" else 0.0
        return [Part("result", (slice(0, 1),), exact, error_bound(x.dtype, 16, magnitude, exact) + weights)]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        import torch

        aten, size = torch.ops.aten, list(shape[1:3])
        call = (
            partial(aten.upsample_nearest2d, output_size=size)
            if kind == "nearest"
            else partial(aten.upsample_bilinear2d, output_size=size, align_corners=True)
        )
        return {layout: TorchCall(call, (tensor,), image_result) for layout, (tensor,) in layouts(where, x).items()}

    encode = partial(kernel.encode, source_image=source, destination_image=result)
    return Work(encode, lambda: {"result": result}, parts, torch_calls)


def _gradient(kind: str, x: RandomArray, g: RandomArray, device: mg.Device) -> Work:
    kernel, gradient = _kernels(kind, device)
    source, incoming, result = x.image(device), g.image(device), empty_image(x.shape, x.dtype, device)
    state = kernel.result_state(source, destination_image=incoming)

    def parts() -> list[Part]:
        size = (x.shape[1], x.shape[2])
        exact, magnitude = (
            reference.resample_gradient(each, size, RATIO, kind, kind == "bilinear")
            for each in (g.first(), np.abs(g.first()))
        )
        bound = error_bound(x.dtype, 32, magnitude + np.abs(g.first()).max(), exact)
        return [Part("result", (slice(0, 1),), exact, bound)]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        import torch

        aten = torch.ops.aten
        images, height, width, channels = x.shape
        sizes = {"output_size": [2 * height, 2 * width], "input_size": [images, channels, height, width]}
        call = (
            partial(aten.upsample_nearest2d_backward, **sizes)
            if kind == "nearest"
            else partial(aten.upsample_bilinear2d_backward, **sizes, align_corners=True)
        )
        return {layout: TorchCall(call, (tensor,), image_result) for layout, (tensor,) in layouts(where, g).items()}

    encode = partial(
        gradient.encode,
        source_gradient=incoming,
        source_image=source,
        gradient_state=state,
        destination_gradient=result,
    )
    return Work(encode, lambda: {"result": result}, parts, torch_calls)
