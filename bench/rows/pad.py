"""Padding by a pixel on each side with zeros, by the nearest pixel and mirrored, and the gradients."""

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
from bench.shapes import AWKWARD, SMALL, Shape, in_groups, text
from bench.tiny_op import TinyOp, tiny_pair
from mpsgrad import reference
from mpsgrad.accuracy import error_bound
from mpsgrad.reference import PadMode

DESIGN: Mapping[str, tuple[Shape, ...]] = {"cpu": ((16, 56, 56, 64),), "gpu": ((64, 112, 112, 64),)}
OTHERS: Mapping[str, tuple[Shape, ...]] = {"awkward": AWKWARD, "small": (SMALL,)}


class Mode(NamedTuple):
    name: PadMode
    torch: str


MODES = (Mode("zero", "constant"), Mode("clamp", "replicate"), Mode("mirror", "reflect"))
AROUND = (1, 1, 0)


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, shape in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(shape, dtype, group)


def drawn_shape(draw: Draw) -> Shape:
    return draw.shape(smallest=2)


def cases_of(shape: Shape, dtype: str, group: str) -> Iterator[Case]:
    images, height, width, channels = shape
    x, g = RandomArray(shape, dtype), RandomArray((images, height + 2, width + 2, channels), dtype, 1)
    for mode in MODES:
        op, nbytes = f"pad_{mode.name}", x.nbytes + g.nbytes
        yield Case(op, text(shape), dtype, group, nbytes, 0, partial(_forward, mode, x, g.shape))
        yield Case(f"{op}_gradient", text(shape), dtype, group, nbytes, g.size, partial(_gradient, mode, x, g))


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    yield from tiny_pair(mg.Pad((1, 1, 0), (1, 1, 0), device=device), mg.PadGradient(device=device))


def _kernel(mode: Mode, device: mg.Device) -> mg.Pad:
    kernel = mg.Pad(AROUND, AROUND, device=device)
    kernel.edge_mode = mg.EdgeMode[mode.name.upper()]
    kernel.offset = mg.Offset(-1, -1)
    return kernel


def _forward(mode: Mode, x: RandomArray, shape: tuple[int, ...], device: mg.Device) -> Work:
    source, result = x.image(device), empty_image(shape, x.dtype, device)

    def parts() -> list[Part]:
        exact = reference.pad(x.first(), AROUND, AROUND, mode.name)
        return [Part("result", (slice(0, 1),), exact, error_bound(x.dtype, 0, 0.0, exact))]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        import torch

        call = partial(torch.nn.functional.pad, pad=(1, 1, 1, 1), mode=mode.torch)
        return {
            layout: TorchCall(call, (tensor,), image_result, fuses=False)
            for layout, (tensor,) in layouts(where, x).items()
        }

    encode = partial(_kernel(mode, device).encode, source_image=source, destination_image=result)
    return Work(encode, lambda: {"result": result}, parts, torch_calls)


def _gradient(mode: Mode, x: RandomArray, g: RandomArray, device: mg.Device) -> Work:
    source, incoming, result = x.image(device), g.image(device), empty_image(x.shape, x.dtype, device)
    state = _kernel(mode, device).result_state(source, destination_image=incoming)

    def parts() -> list[Part]:
        exact, magnitude = (
            reference.pad_gradient(each, AROUND, AROUND, mode.name) for each in (g.first(), np.abs(g.first()))
        )
        return [Part("result", (slice(0, 1),), exact, error_bound(x.dtype, 4, magnitude, exact))]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        import torch

        aten, around = torch.ops.aten, [1, 1, 1, 1]
        if mode.name == "zero":
            return {
                layout: TorchCall(_inner, (tensor,), image_result, fuses=False)
                for layout, (tensor,) in layouts(where, g).items()
            }
        function = aten.replication_pad2d_backward if mode.name == "clamp" else aten.reflection_pad2d_backward
        return {
            layout: TorchCall(partial(function, padding=around), tensors, image_result)
            for layout, tensors in ((name, tuple(pair)) for name, pair in layouts(where, g, x).items())
        }

    encode = partial(
        mg.PadGradient(device=device).encode,
        source_gradient=incoming,
        source_image=source,
        gradient_state=state,
        destination_gradient=result,
    )
    return Work(encode, lambda: {"result": result}, parts, torch_calls)


def _inner(g: Any) -> Any:
    return g[:, :, 1:-1, 1:-1].clone()
