"""Max, average and L2 norm pooling and their gradients; of max pooling with and without the record of the maxima."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import mpsgrad as mg
from bench.case import Case
from bench.inputs import image, random_array, torch_layouts
from mpsgrad import reference
from mpsgrad.accuracy import assert_within, error_bound


class Row(NamedTuple):
    shape: tuple[int, int, int, int]
    kernel: int
    stride: int

    @property
    def padding(self) -> int:
        return (self.kernel - 1) // 2

    @property
    def text(self) -> str:
        return f"{'x'.join(map(str, self.shape))} {self.kernel}x{self.kernel}/{self.stride}"


class Kind(NamedTuple):
    """A forward kernel with its gradient and the name of their references; ``suffix`` tells rows apart."""

    op: str
    forward: Any
    gradient: Any
    suffix: str = ""
    options: tuple[tuple[str, Any], ...] = ()


ROWS = (Row((16, 56, 56, 64), 3, 2), Row((16, 56, 56, 64), 2, 2), Row((16, 28, 28, 128), 3, 1))
KINDS = (
    Kind("pooling_max", mg.PoolingMax, mg.PoolingMaxGradient, "_recorded", (("record_maxima", True),)),
    Kind("pooling_max", mg.PoolingMax, mg.PoolingMaxGradient),
    Kind("pooling_average", mg.PoolingAverage, mg.PoolingAverageGradient),
    Kind("pooling_l2_norm", mg.PoolingL2Norm, mg.PoolingL2NormGradient),
)


def cases(dtype: str, device: mg.Device) -> Iterator[Case]:
    for row in ROWS:
        for kind in KINDS:
            yield from _cases(row, kind, dtype, device)


def _cases(row: Row, kind: Kind, dtype: str, device: mg.Device) -> Iterator[Case]:
    window = {
        "kernel_width": row.kernel,
        "kernel_height": row.kernel,
        "stride_in_pixels_x": row.stride,
        "stride_in_pixels_y": row.stride,
    }
    is_max = kind.op == "pooling_max"
    forward = kind.forward(**window, **dict(kind.options), device=device)
    forward.edge_mode = mg.EdgeMode.CLAMP if is_max else mg.EdgeMode.ZERO
    gradient = kind.gradient(**window, device=device)
    x = random_array(row.shape, dtype)
    source = image(x, device)
    with mg.CommandBuffer(device) as commands:
        result, state = forward.encode(commands, source, return_state=True)
    g = random_array(result.shape, dtype, 1)
    record = g.size if state.records_maxima else 0
    keywords = {
        "kernel": (row.kernel, row.kernel),
        "stride": (row.stride, row.stride),
        "offset": (row.kernel // 2 - row.padding, row.kernel // 2 - row.padding),
        "size": result.shape[1:3],
        "edge": "clamp" if is_max else "zero",
    }
    exact_forward, exact_gradient = getattr(reference, kind.op), getattr(reference, f"{kind.op}_gradient")

    def check_forward(actual: mg.Image) -> None:
        exact, magnitude = exact_forward(x[:1], **keywords), exact_forward(np.abs(x[:1]), **keywords)
        assert_within(np.asarray(actual)[:1], exact, error_bound(actual.dtype, row.kernel**2, magnitude, exact))

    def check_gradient(actual: mg.Image) -> None:
        exact = exact_gradient(g[:1], x[:1], **keywords)
        magnitude = exact_gradient(np.abs(g[:1]), x[:1] if is_max else np.abs(x[:1]), **keywords)
        assert_within(np.asarray(actual)[:1], exact, error_bound(actual.dtype, 2 * row.kernel**2, magnitude, exact))

    encode_forward: Callable[[mg.CommandBuffer], Any] = partial(forward.encode, source_image=source)
    if record:
        encode_forward = partial(_encode_recorded, forward, source)
    yield Case(
        f"{kind.op}{kind.suffix}",
        row.text,
        dtype,
        x.nbytes + g.nbytes + record,
        encode_forward,
        check_forward,
        torch_calls={k: partial(_FORWARD[kind.op], row, *t) for k, t in torch_layouts(x).items()},
    )
    reads = {"pooling_max": 0 if record else x.nbytes, "pooling_average": 0, "pooling_l2_norm": x.nbytes}[kind.op]
    yield Case(
        f"{kind.op}_gradient{kind.suffix}",
        row.text,
        dtype,
        x.nbytes + g.nbytes + record + reads,
        partial(gradient.encode, source_gradient=image(g, device), source_image=source, gradient_state=state),
        check_gradient,
        torch_calls={k: _GRADIENT[kind.op](row, *t) for k, t in torch_layouts(x, g).items()},
    )


def _encode_recorded(forward: Any, source: mg.Image, commands: mg.CommandBuffer) -> mg.Image:
    result, _ = forward.encode(commands, source, return_state=True)
    return result


def _window(row: Row) -> tuple[list[int], list[int], list[int]]:
    return [row.kernel] * 2, [row.stride] * 2, [row.padding] * 2


def _max(row: Row, x):  # type: ignore[no-untyped-def]
    import torch

    return torch.ops.aten.max_pool2d_with_indices(x, *_window(row))


def _max_gradient(row: Row, x, g):  # type: ignore[no-untyped-def]
    import torch

    _, indices = _max(row, x)
    backward = torch.ops.aten.max_pool2d_with_indices_backward
    return lambda: backward(g, x, *_window(row), [1, 1], False, indices)


def _average(row: Row, x):  # type: ignore[no-untyped-def]
    import torch

    return torch.ops.aten.avg_pool2d(x, *_window(row))


def _average_gradient(row: Row, x, g):  # type: ignore[no-untyped-def]
    import torch

    backward = torch.ops.aten.avg_pool2d_backward
    return lambda: backward(g, x, *_window(row), False, True, None)


def _l2_norm(row: Row, x):  # type: ignore[no-untyped-def]
    return (_average(row, x * x) * row.kernel**2).sqrt()


def _l2_norm_gradient(row: Row, x, g):  # type: ignore[no-untyped-def]
    import torch

    source = x.detach().requires_grad_(True)
    result = _l2_norm(row, source)
    return lambda: torch.autograd.grad(result, source, g, retain_graph=True)


_FORWARD = {"pooling_max": _max, "pooling_average": _average, "pooling_l2_norm": _l2_norm}
_GRADIENT = {
    "pooling_max": _max_gradient,
    "pooling_average": _average_gradient,
    "pooling_l2_norm": _l2_norm_gradient,
}
