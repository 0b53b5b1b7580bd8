"""Slices and the gradient, concatenations and reshaped images; their gradients are copies the other way round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import mpsgrad as mg
from bench.case import Case, Part, TorchCall, Work
from bench.drawn import Draw
from bench.inputs import RandomArray, empty_image
from bench.pytorch import image_result, layouts
from bench.shapes import AWKWARD, SMALL, Shape, in_groups, text
from bench.tiny_op import Call, TinyOp, tiny_image, tiny_pair

DESIGN: Mapping[str, tuple[Shape, ...]] = {"cpu": ((16, 56, 56, 64),), "gpu": ((64, 112, 112, 64),)}
OTHERS: Mapping[str, tuple[Shape, ...]] = {"awkward": AWKWARD, "small": (SMALL,)}
EXACT = float(np.finfo(np.float32).tiny)
"""A bound that no error is within but 0."""


class Op(NamedTuple):
    name: str
    result: Callable[[Shape], Shape]
    encode: Callable[[mg.Device, mg.Image, mg.Image], Callable[[mg.CommandBuffer], Any]]
    exact: Callable[[np.ndarray], np.ndarray]
    torch: Callable[[Any], Any]


def _slice(device: mg.Device, source: mg.Image, result: mg.Image) -> Callable[[mg.CommandBuffer], Any]:
    kernel = mg.Slice(device=device)
    kernel.offset = mg.Offset(1, 1)
    return partial(kernel.encode, source_image=source, destination_image=result)


def _slice_gradient(device: mg.Device, source: mg.Image, result: mg.Image) -> Callable[[mg.CommandBuffer], Any]:
    kernel = mg.Slice(device=device)
    kernel.offset = mg.Offset(1, 1)
    state = kernel.result_state(result, destination_image=source)
    # Of the forward source, which has the size of the result, nothing is read.
    whole = mg.Image(result.descriptor, device)
    return partial(
        mg.SliceGradient(device=device).encode,
        source_gradient=source,
        source_image=whole,
        gradient_state=state,
        destination_gradient=result,
    )


def _concatenation(device: mg.Device, source: mg.Image, result: mg.Image) -> Callable[[mg.CommandBuffer], Any]:
    kernel = mg.Concatenation(device=device)
    return partial(kernel.encode, source_images=[source, source], destination_image=result)


def _reshape(device: mg.Device, source: mg.Image, result: mg.Image) -> Callable[[mg.CommandBuffer], Any]:
    return partial(mg.Reshape(device=device).encode, source_image=source, destination_image=result)


def _torch_slice(x: Any) -> Any:
    return x[:, :, 1:-1, 1:-1].clone()


def _torch_slice_gradient(x: Any) -> Any:
    import torch

    return torch.nn.functional.pad(x, (1, 1, 1, 1))


def _torch_concatenation(x: Any) -> Any:
    import torch

    return torch.cat((x, x), 1)


def _torch_reshape(x: Any) -> Any:
    images, channels, height, width = x.shape
    return x.permute(0, 2, 3, 1).reshape(images, 1, height * width, channels).permute(0, 3, 1, 2).clone()


OPS = (
    Op("slice", lambda s: (s[0], s[1] - 2, s[2] - 2, s[3]), _slice, lambda x: x[:, 1:-1, 1:-1], _torch_slice),
    Op(
        "slice_gradient",
        lambda s: (s[0], s[1] + 2, s[2] + 2, s[3]),
        _slice_gradient,
        lambda x: np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))),
        _torch_slice_gradient,
    ),
    Op(
        "concatenation",
        lambda s: (*s[:3], 2 * s[3]),
        _concatenation,
        lambda x: np.concatenate((x, x), 3),
        _torch_concatenation,
    ),
    Op(
        "reshape",
        lambda s: (s[0], 1, s[1] * s[2], s[3]),
        _reshape,
        lambda x: x.reshape(x.shape[0], 1, -1, x.shape[3]),
        _torch_reshape,
    ),
)


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, shape in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(shape, dtype, group)


def drawn_shape(draw: Draw) -> Shape:
    return draw.shape(smallest=3)


def cases_of(shape: Shape, dtype: str, group: str) -> Iterator[Case]:
    for op in OPS:
        x, result = RandomArray(shape, dtype), RandomArray(op.result(shape), dtype)
        # Each element is read, and written, once.
        yield Case(
            f"copies_{op.name}",
            text(shape),
            dtype,
            group,
            2 * result.nbytes,
            0,
            partial(_prepare, op, x, op.result(shape)),
        )


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    yield from tiny_pair(mg.Slice(device=device), mg.SliceGradient(device=device))
    reshape, source = mg.Reshape(device=device), tiny_image(device)
    reshape.reshaped_width, reshape.reshaped_height = source.feature_channels, source.height
    reshape.reshaped_feature_channels = source.width
    yield from tiny_pair(reshape, mg.ReshapeGradient(device=device), source)
    forward, gradient = mg.Concatenation(device=device), mg.ConcatenationGradient(device=device)
    yield TinyOp("Concatenation", Call(forward.encode, [source, source]))
    with mg.CommandBuffer(device) as commands:
        result, state = forward.encode(commands, [source, source], return_state=True)
    yield TinyOp("ConcatenationGradient", Call(gradient.encode, result, source, state))


def _prepare(op: Op, x: RandomArray, shape: Shape, device: mg.Device) -> Work:
    source, result = x.image(device), empty_image(shape, x.dtype, device)

    def parts() -> list[Part]:
        exact = op.exact(x.first())
        return [Part("result", (slice(0, 1),), exact, np.full(exact.shape, EXACT))]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        return {
            layout: TorchCall(op.torch, (tensor,), image_result, fuses=False)
            for layout, (tensor,) in layouts(where, x).items()
        }

    return Work(op.encode(device, source, result), lambda: {"result": result}, parts, torch_calls)
