"""Dropout and its gradient.

PyTorch draws other masks: in what its forward pass gives, its mask is exchanged for ours before the check. Its gradient
gets our mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

import mpsgrad as mg
from bench.case import Case, Part, TorchCall, Work
from bench.drawn import Draw
from bench.inputs import RandomArray, empty_image
from bench.pytorch import as_image, image_result, layouts
from bench.shapes import AWKWARD, SMALL, Shape, in_groups, text
from bench.tiny_op import TinyOp, tiny_pair
from mpsgrad import reference
from mpsgrad.accuracy import error_bound

DESIGN: Mapping[str, tuple[Shape, ...]] = {"cpu": ((16, 56, 56, 64),), "gpu": ((64, 112, 112, 64),)}
OTHERS: Mapping[str, tuple[Shape, ...]] = {"awkward": AWKWARD, "small": (SMALL,)}
KEEP = 0.75


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, shape in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(shape, dtype, group)


def drawn_shape(draw: Draw) -> Shape:
    return draw.shape()


def cases_of(shape: Shape, dtype: str, group: str) -> Iterator[Case]:
    x, g = RandomArray(shape, dtype), RandomArray(shape, dtype, 1)
    # Images in and out, and a byte of the mask. Of the operations only the product is counted, not Philox.
    nbytes = 2 * x.nbytes + x.size
    for op, prepare in (("dropout", partial(_forward, x)), ("dropout_gradient", partial(_gradient, x, g))):
        yield Case(op, text(shape), dtype, group, nbytes, x.size, prepare)


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    yield from tiny_pair(mg.Dropout(KEEP, device=device), mg.DropoutGradient(KEEP, device=device))


def _forward(x: RandomArray, device: mg.Device) -> Work:
    kernel = mg.Dropout(KEEP, device=device)
    source, result = x.image(device), empty_image(x.shape, x.dtype, device)
    state = kernel.result_state(source, destination_image=result)

    def encode(commands: mg.CommandBuffer) -> None:
        kernel.drawn_images = 0
        kernel.encode(commands, source, destination_image=result, destination_state=state)

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        import torch

        mask = torch.from_numpy(state.mask_data).to(where)
        function = torch.ops.aten.native_dropout
        return {
            layout: TorchCall(function, (tensor, 1 - KEEP, True), partial(_exchanged, tensor, mask))
            for layout, (tensor,) in layouts(where, x).items()
        }

    return Work(encode, lambda: {"result": result}, partial(_parts, x), torch_calls)


def _exchanged(x: Any, mask: Any, returned: Any) -> Mapping[str, Any]:
    """What PyTorch returned, with our mask instead of its own."""
    result, own = (as_image(each) for each in returned)
    return {"result": result + (mask.to(result.dtype) - own.to(result.dtype)) * as_image(x) / KEEP}


def _gradient(x: RandomArray, g: RandomArray, device: mg.Device) -> Work:
    kernel, gradient = mg.Dropout(KEEP, device=device), mg.DropoutGradient(KEEP, device=device)
    source, incoming, result = x.image(device), g.image(device), empty_image(x.shape, x.dtype, device)
    with mg.CommandBuffer(device) as commands:
        _, state = kernel.encode(commands, source, return_state=True)

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        import torch

        mask = torch.from_numpy(np.array(state.mask_data, bool)).to(where).permute(0, 3, 1, 2)
        return {
            layout: TorchCall(
                torch.ops.aten.native_dropout_backward,
                (gradient, mask.contiguous() if layout == "NCHW" else mask, 1.0 / KEEP),
                image_result,
            )
            for layout, (gradient,) in layouts(where, g).items()
        }

    encode = partial(
        gradient.encode,
        source_gradient=incoming,
        source_image=source,
        gradient_state=state,
        destination_gradient=result,
    )
    return Work(encode, lambda: {"result": result}, partial(_parts, g), torch_calls)


def _parts(values: RandomArray) -> list[Part]:
    first = values.first()
    height, width, channels = first.shape[1:]
    exact = reference.dropout(first, reference.dropout_mask((1, height, width, channels), KEEP), KEEP)
    return [Part("result", (slice(0, 1),), exact, error_bound(values.dtype, 1, np.abs(first) / KEEP, first))]
