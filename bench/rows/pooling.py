"""Max, average and L2 norm pooling and their gradients; of max pooling with and without the record of the maxima.

The zero edge divides an average by the whole window, as PyTorch does with ``count_include_pad`` where no window reaches
past the padding, which is so in all rows; the clamped edge divides by the pixels inside, as PyTorch does without it.
PyTorch's gradient of average pooling for channels-last tensors on CUDA is wrong with padding before its pull request
188345 of July 2026: the kernel takes the windows of pixels as if there were no padding (issues 107201 and 188344; NCHW,
the forward pass and the CPU are right). The check against float64 finds it and leaves that layout out, also of the L2
norm's gradient, which goes through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import mpsgrad as mg
from bench.case import Case, Part, TorchCall, Work
from bench.drawn import Draw
from bench.inputs import RandomArray, empty_image
from bench.pytorch import image_result, layouts, on_images
from bench.shapes import Shape, in_groups, scan, text
from bench.tiny_op import TinyOp, tiny_pair
from mpsgrad import reference
from mpsgrad.accuracy import error_bound


class Kind(NamedTuple):
    """A forward kernel with its gradient; ``op`` is the name of their references.

    ``suffix`` tells the ops of rows apart, ``note`` their shapes.
    """

    op: str
    forward: Any
    gradient: Any
    edge: str
    suffix: str = ""
    note: str = ""


RECORDED = Kind("pooling_max", mg.PoolingMax, mg.PoolingMaxGradient, "clamp", "_recorded")
SEARCHING = Kind("pooling_max", mg.PoolingMax, mg.PoolingMaxGradient, "clamp")
AVERAGE = Kind("pooling_average", mg.PoolingAverage, mg.PoolingAverageGradient, "zero")
AVERAGE_INSIDE = AVERAGE._replace(edge="clamp", note=" without padding")
L2_NORM = Kind("pooling_l2_norm", mg.PoolingL2Norm, mg.PoolingL2NormGradient, "zero")
EVERY = (RECORDED, SEARCHING, AVERAGE, L2_NORM)


class Row(NamedTuple):
    shape: Shape
    kernel: int
    stride: int
    kinds: tuple[Kind, ...] = EVERY
    is_padded: bool = True

    @property
    def padding(self) -> int:
        return (self.kernel - 1) // 2 if self.is_padded else 0

    @property
    def result_shape(self) -> Shape:
        images, height, width, channels = self.shape
        height, width = ((size + 2 * self.padding - self.kernel) // self.stride + 1 for size in (height, width))
        return images, height, width, channels

    @property
    def text(self) -> str:
        return f"{text(self.shape)} {self.kernel}x{self.kernel}/{self.stride}"


DESIGN: Mapping[str, tuple[Row, ...]] = {
    "cpu": (Row((16, 56, 56, 64), 3, 2), Row((16, 56, 56, 64), 2, 2), Row((16, 28, 28, 128), 3, 1)),
    "gpu": (Row((64, 112, 112, 64), 3, 2), Row((64, 112, 112, 64), 2, 2), Row((64, 56, 56, 128), 3, 1)),
}
OTHERS: Mapping[str, tuple[Row, ...]] = {
    "resnet50": (
        Row((32, 112, 112, 64), 3, 2, (RECORDED, SEARCHING)),
        Row((32, 7, 7, 2048), 7, 1, (AVERAGE,), is_padded=False),
    ),
    "unet": (
        Row((32, 128, 128, 64), 2, 2, (RECORDED, SEARCHING)),
        Row((32, 64, 64, 128), 2, 2, (RECORDED,)),
        Row((32, 32, 32, 256), 2, 2, (RECORDED,)),
        Row((32, 16, 16, 512), 2, 2, (RECORDED,)),
    ),
    "awkward": (
        Row((7, 57, 55, 3), 3, 2, (*EVERY, AVERAGE_INSIDE)),
        Row((5, 31, 29, 37), 3, 2, (*EVERY, AVERAGE_INSIDE)),
        Row((3, 33, 35, 37), 2, 1, (RECORDED, AVERAGE)),
    ),
    "small": (Row((1, 28, 28, 64), 3, 2),),
}


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    scanned = tuple(Row(shape, 2, 2, (RECORDED, SEARCHING, AVERAGE)) for shape in scan(hardware))
    for group, row in in_groups(DESIGN[hardware], {**OTHERS, "scan": scanned}):
        yield from cases_of(row, dtype, group)


def drawn_shape(draw: Draw) -> Row:
    kernel = draw.chosen((2, 2, 3, 3, 4, 5, 7))
    stride = draw.chosen((1, 2, 2, 3, kernel))
    shape = draw.shape(smallest=kernel)
    return Row(shape, kernel, stride, (*EVERY, AVERAGE_INSIDE), is_padded=draw.chosen((True, True, False)))


def cases_of(row: Row, dtype: str, group: str) -> Iterator[Case]:
    for kind in row.kinds:
        yield from _cases(row, kind, dtype, group)


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    window: dict[str, Any] = {"kernel_width": 2, "kernel_height": 2, "device": device}
    yield from tiny_pair(mg.PoolingMax(record_maxima=True, **window), mg.PoolingMaxGradient(**window))
    yield from tiny_pair(mg.DilatedPoolingMax(**window), mg.DilatedPoolingMaxGradient(**window))
    yield from tiny_pair(mg.PoolingAverage(**window), mg.PoolingAverageGradient(**window))
    yield from tiny_pair(mg.PoolingL2Norm(**window), mg.PoolingL2NormGradient(**window))


def _cases(row: Row, kind: Kind, dtype: str, group: str) -> Iterator[Case]:
    x, g = RandomArray(row.shape, dtype), RandomArray(row.result_shape, dtype, 1)
    record = g.size if kind is RECORDED else 0
    read_again = x.nbytes if kind in (SEARCHING, L2_NORM) else 0
    operations = g.size * row.kernel**2 * (2 if kind is L2_NORM else 1)
    for op, nbytes, prepare in (
        (f"{kind.op}{kind.suffix}", x.nbytes + g.nbytes + record, _prepare_forward),
        (f"{kind.op}_gradient{kind.suffix}", x.nbytes + g.nbytes + record + read_again, _prepare_gradient),
    ):
        yield Case(op, row.text + kind.note, dtype, group, nbytes, operations, partial(prepare, row, kind, x, g))


def _geometry(row: Row, kind: Kind) -> dict[str, Any]:
    centre = row.kernel // 2 - row.padding
    return {
        "kernel": (row.kernel, row.kernel),
        "stride": (row.stride, row.stride),
        "offset": (centre, centre),
        "size": row.result_shape[1:3],
        "edge": kind.edge,
    }


def _kernels(row: Row, kind: Kind, device: mg.Device) -> tuple[Any, Any]:
    window = {
        "kernel_width": row.kernel,
        "kernel_height": row.kernel,
        "stride_in_pixels_x": row.stride,
        "stride_in_pixels_y": row.stride,
        "device": device,
    }
    options = {"record_maxima": True} if kind is RECORDED else {}
    forward = kind.forward(**window, **options)
    forward.edge_mode = mg.EdgeMode[kind.edge.upper()]
    centre = row.kernel // 2 - row.padding
    forward.offset = mg.Offset(centre, centre)
    return forward, kind.gradient(**window)


def _prepare_forward(row: Row, kind: Kind, x: RandomArray, g: RandomArray, device: mg.Device) -> Work:
    forward, _ = _kernels(row, kind, device)
    source, result = x.image(device), empty_image(g.shape, g.dtype, device)
    state = forward.result_state(source, destination_image=result) if kind is RECORDED else None

    def parts() -> list[Part]:
        value, geometry, first = getattr(reference, kind.op), _geometry(row, kind), x.first()
        exact, magnitude = value(first, **geometry), value(np.abs(first), **geometry)
        return [Part("result", _FIRST, exact, error_bound(x.dtype, row.kernel**2, magnitude, exact))]

    return Work(
        partial(forward.encode, source_image=source, destination_image=result, destination_state=state),
        lambda: {"result": result},
        parts,
        lambda where: on_images(where, partial(_FORWARD[kind.op], row, kind), x),
    )


def _prepare_gradient(row: Row, kind: Kind, x: RandomArray, g: RandomArray, device: mg.Device) -> Work:
    forward, gradient = _kernels(row, kind, device)
    source, incoming = x.image(device), g.image(device)
    forward_result, result = empty_image(g.shape, g.dtype, device), empty_image(x.shape, x.dtype, device)
    state = forward.result_state(source, destination_image=forward_result)
    with mg.CommandBuffer(device) as commands:
        forward.encode(commands, source, destination_image=forward_result, destination_state=state)

    def parts() -> list[Part]:
        is_max = kind.op == "pooling_max"
        value, geometry = getattr(reference, f"{kind.op}_gradient"), _geometry(row, kind)
        first, incoming_first = x.first(), g.first()
        exact = value(incoming_first, first, **geometry)
        magnitude = value(np.abs(incoming_first), first if is_max else np.abs(first), **geometry)
        return [Part("result", _FIRST, exact, error_bound(x.dtype, 2 * row.kernel**2, magnitude, exact))]

    return Work(
        partial(
            gradient.encode,
            source_gradient=incoming,
            source_image=source,
            gradient_state=state,
            destination_gradient=result,
        ),
        lambda: {"result": result},
        parts,
        lambda where: {
            layout: TorchCall(*_GRADIENT[kind.op](row, kind, *tensors), image_result, fuses=kind is not L2_NORM)
            for layout, tensors in layouts(where, x, g).items()
        },
    )


_FIRST = (slice(0, 1),)


def _window(row: Row) -> tuple[list[int], list[int], list[int]]:
    return [row.kernel] * 2, [row.stride] * 2, [row.padding] * 2


def _max(row: Row, kind: Kind, x: Any) -> Any:
    import torch

    return torch.ops.aten.max_pool2d_with_indices(x, *_window(row))


def _average(row: Row, kind: Kind, x: Any) -> Any:
    import torch

    return torch.ops.aten.avg_pool2d(x, *_window(row), False, kind.edge == "zero")


def _l2_norm(row: Row, kind: Kind, x: Any) -> Any:
    return (_average(row, kind, x * x) * row.kernel**2).sqrt()


# What a call of the gradient needs from the forward pass is computed here, before it is timed.
_Prepared = tuple[Callable[..., Any], tuple[Any, ...]]


def _max_gradient(row: Row, kind: Kind, x: Any, g: Any) -> _Prepared:
    import torch

    _, indices = _max(row, kind, x)
    backward = torch.ops.aten.max_pool2d_with_indices_backward
    return lambda g, x, indices: backward(g, x, *_window(row), [1, 1], False, indices), (g, x, indices)


def _average_gradient(row: Row, kind: Kind, x: Any, g: Any) -> _Prepared:
    import torch

    backward = torch.ops.aten.avg_pool2d_backward
    return lambda g, x: backward(g, x, *_window(row), False, kind.edge == "zero", None), (g, x)


def _l2_norm_gradient(row: Row, kind: Kind, x: Any, g: Any) -> _Prepared:
    import torch

    source = x.detach().requires_grad_(True)
    result = _l2_norm(row, kind, source)
    return lambda g, result, source: torch.autograd.grad(result, source, g, retain_graph=True), (g, result, source)


_FORWARD = {"pooling_max": _max, "pooling_average": _average, "pooling_l2_norm": _l2_norm}
_GRADIENT = {
    "pooling_max": _max_gradient,
    "pooling_average": _average_gradient,
    "pooling_l2_norm": _l2_norm_gradient,
}
