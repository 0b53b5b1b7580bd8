"""Two regions of an image resized to its size, and the gradient; PyTorch samples it at a grid for each region."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
OTHERS: Mapping[str, tuple[Shape, ...]] = {"awkward": AWKWARD, "small": (SMALL,)}
REGIONS = [(0.1, 0.2, 0.6, 0.5), (0.5, 0.25, 0.5, 0.75)]


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, shape in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(shape, dtype, group)


def drawn_shape(draw: Draw) -> Shape:
    return draw.shape(smallest=2)


def cases_of(shape: Shape, dtype: str, group: str) -> Iterator[Case]:
    x = RandomArray(shape, dtype)
    g = RandomArray((*shape[:3], len(REGIONS) * shape[3]), dtype, 1)
    op, nbytes = "crop_and_resize", x.nbytes + g.nbytes
    yield Case(op, text(shape), dtype, group, nbytes, 8 * g.size, partial(_forward, x, g.shape))
    yield Case(f"{op}_gradient", text(shape), dtype, group, nbytes, 8 * g.size, partial(_gradient, x, g))


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    size: dict[str, Any] = {"resize_width": 3, "resize_height": 3, "device": device}
    regions = [(0, 0, 1, 1), (0.25, 0.25, 0.5, 0.5)]
    yield from tiny_pair(
        mg.CropAndResizeBilinear(**size, regions=regions), mg.CropAndResizeBilinearGradient(device=device)
    )


def _kernel(x: RandomArray, device: mg.Device) -> mg.CropAndResizeBilinear:
    _, height, width, _ = x.shape
    return mg.CropAndResizeBilinear(resize_width=width, resize_height=height, regions=REGIONS, device=device)


def _forward(x: RandomArray, shape: tuple[int, ...], device: mg.Device) -> Work:
    source, result = x.image(device), empty_image(shape, x.dtype, device)

    def parts() -> list[Part]:
        size = (x.shape[1], x.shape[2])
        exact, magnitude = (
            reference.crop_and_resize(each, size, REGIONS) for each in (x.first(), np.abs(x.first()))
        )
        return [Part("result", (slice(0, 1),), exact, error_bound(x.dtype, 8, magnitude, exact))]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        return {
            layout: TorchCall(_sampled, (tensor, _grids(tensor)), image_result)
            for layout, (tensor,) in layouts(where, x).items()
        }

    encode = partial(_kernel(x, device).encode, source_image=source, destination_image=result)
    return Work(encode, lambda: {"result": result}, parts, torch_calls)


def _gradient(x: RandomArray, g: RandomArray, device: mg.Device) -> Work:
    source, incoming, result = x.image(device), g.image(device), empty_image(x.shape, x.dtype, device)
    state = _kernel(x, device).result_state(source, destination_image=incoming)

    def parts() -> list[Part]:
        size = (x.shape[1], x.shape[2])
        exact, magnitude = (
            reference.crop_and_resize_gradient(each, size, REGIONS) for each in (g.first(), np.abs(g.first()))
        )
        bound = error_bound(x.dtype, 64, magnitude + np.abs(g.first()).max(), exact)
        return [Part("result", (slice(0, 1),), exact, bound)]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        if where.type == "cpu" and x.dtype == "float16":
            # With coordinates in halves PyTorch's gradient writes outside the tensor there, and the process may end.
            return {}
        return {
            layout: TorchCall(_sampled_gradient, (incoming, tensor, _grids(tensor)), image_result)
            for layout, (tensor, incoming) in layouts(where, x, g).items()
        }

    encode = partial(
        mg.CropAndResizeBilinearGradient(device=device).encode,
        source_gradient=incoming,
        source_image=source,
        gradient_state=state,
        destination_gradient=result,
    )
    return Work(encode, lambda: {"result": result}, parts, torch_calls)


def _grids(x: Any) -> list[Any]:
    """Where PyTorch samples each region of ``x``: (x, y) for each output, from -1 to 1."""
    import torch

    images, _, height, width = x.shape
    grids = []
    for left, top, across, down in REGIONS:
        axes = (
            torch.linspace(2 * start - 1, 2 * (start + extent) - 1, count)
            for start, extent, count in ((top, down, height), (left, across, width))
        )
        rows, columns = torch.meshgrid(*axes, indexing="ij")
        grid = torch.stack((columns, rows), 2).to(x.device, x.dtype)
        grids.append(grid.expand(images, -1, -1, -1).contiguous())
    return grids


def _sampled(x: Any, grids: list[Any]) -> Any:
    import torch

    return torch.cat([torch.nn.functional.grid_sample(x, grid, align_corners=True) for grid in grids], 1)


def _sampled_gradient(g: Any, x: Any, grids: list[Any]) -> Any:
    import torch

    backward = torch.ops.aten.grid_sampler_2d_backward
    first, second = (
        backward(part, x, grid, 0, 0, True, [True, False])[0]
        for part, grid in zip(g.chunk(len(grids), 1), grids, strict=True)
    )
    return first + second
