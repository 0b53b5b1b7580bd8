"""Every neuron type and its gradient.

The gradients take the forward source x, as MPS's do. PyTorch's gradients of sigmoid, tanh and exp start from the saved
result instead, which spares them an exponential: that is what the ratio compares with. Its layout "from x" does the
work that ours does. NCHW would make no difference to these ops. Where PyTorch has no op for a neuron, its time is that
of the ops that it is written with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

import mpsgrad as mg
from bench.case import Case, Part, TorchCall, Work
from bench.drawn import Draw
from bench.inputs import RandomArray, empty_image
from bench.pytorch import image_result, layouts
from bench.shapes import AWKWARD, RESNET50, SMALL, Shape, in_groups, scan, text
from bench.tiny_op import TinyOp, tiny_pair
from mpsgrad import reference
from mpsgrad.accuracy import error_bound

DESIGN: Mapping[str, tuple[Shape, ...]] = {"cpu": ((16, 56, 56, 64),), "gpu": ((64, 112, 112, 64),)}
OTHERS: Mapping[str, tuple[Shape, ...]] = {"resnet50": RESNET50, "awkward": AWKWARD, "small": (SMALL,)}
TYPES = tuple(kind.name.lower() for kind in mg.NeuronType)
TYPES_OF_GROUPS: Mapping[str, tuple[str, ...]] = {
    "resnet50": ("relu",),
    "awkward": ("relu", "sigmoid"),
    "small": ("relu", "sigmoid"),
    "scan": ("relu",),
}
"""Other groups have every type."""
WITHOUT_SOURCE = ("none", "linear")
"""Types whose gradients do not depend on the source."""
COMPOSED = {
    "forward": ("linear", "soft_sign", "power", "logarithm"),
    "gradient": ("absolute", "prelu"),
}
"""What takes PyTorch several kernels unless they are compiled to one."""
FUNCTION_ULPS = 24
CHECKED_ROWS = 8

PARAMETERS: dict[str, tuple[float, ...]] = {
    "relu": (0.1,),
    "linear": (0.5, 1.0),
    "hard_sigmoid": (1 / 6, 0.5),
    "elu": (1.0,),
    "relun": (0.0, 6.0),
    "power": (1.0, 8.0, 2.5),
    "logarithm": (1.0, 8.0),
}


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, shape in in_groups(DESIGN[hardware], {**OTHERS, "scan": tuple(scan(hardware))}):
        yield from cases_of(shape, dtype, group)


def drawn_shape(draw: Draw) -> Shape:
    return draw.shape()


def cases_of(shape: Shape, dtype: str, group: str) -> Iterator[Case]:
    for name in TYPES_OF_GROUPS.get(group, TYPES):
        row = _Row(name, RandomArray(shape, dtype), RandomArray(shape, dtype, 1))
        nbytes, size = row.x.nbytes, row.x.size
        gradient_nbytes = (2 if name in WITHOUT_SOURCE else 3) * nbytes
        yield Case(f"neuron_{name}", text(shape), dtype, group, 2 * nbytes, size, row.forward)
        yield Case(f"neuron_{name}_gradient", text(shape), dtype, group, gradient_nbytes, 2 * size, row.gradient)


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    descriptor = mg.NeuronDescriptor(mg.NeuronType.SIGMOID)
    yield from tiny_pair(mg.Neuron(descriptor, device=device), mg.NeuronGradient(descriptor, device=device))


class _Row:
    def __init__(self, name: str, x: RandomArray, g: RandomArray) -> None:
        self.name, self.x, self.g = name, x, g
        self.slopes = np.linspace(-0.5, 0.5, x.shape[3]).astype(np.float32) if name == "prelu" else None
        parameters = dict(zip("abc", PARAMETERS.get(name, ()), strict=False))
        self.descriptor = mg.NeuronDescriptor(mg.NeuronType[name.upper()], data=self.slopes, **parameters)

    @property
    def _arguments(self) -> dict[str, Any]:
        d = self.descriptor
        return {"type": self.name, "a": d.a, "b": d.b, "c": d.c, "slopes": self.slopes}

    def forward(self, device: mg.Device) -> Work:
        source, result = self.x.image(device), empty_image(self.x.shape, self.x.dtype, device)
        kernel = mg.Neuron(self.descriptor, device=device)

        def parts() -> list[Part]:
            x = self.x.first()[:, :CHECKED_ROWS]
            exact = reference.neuron(x, **self._arguments)
            return [self._part(exact, np.abs(exact) + np.abs(x) + 1)]

        encode = partial(kernel.encode, source_image=source, destination_image=result)
        return Work(encode, lambda: {"result": result}, parts, self._torch_forward)

    def gradient(self, device: mg.Device) -> Work:
        source, incoming = self.x.image(device), self.g.image(device)
        result = empty_image(self.x.shape, self.x.dtype, device)
        state = mg.Neuron(self.descriptor, device=device).result_state(source, destination_image=result)
        kernel = mg.NeuronGradient(self.descriptor, device=device)

        def parts() -> list[Part]:
            x, g = self.x.first()[:, :CHECKED_ROWS], self.g.first()[:, :CHECKED_ROWS]
            exact = reference.neuron_gradient(g, x, **self._arguments)
            return [self._part(exact, np.abs(exact) + np.abs(g) * (1 + np.abs(x)))]

        encode = partial(
            kernel.encode,
            source_gradient=incoming,
            source_image=source,
            gradient_state=state,
            destination_gradient=result,
        )
        return Work(encode, lambda: {"result": result}, parts, self._torch_gradient)

    def _part(self, exact: np.ndarray, magnitude: np.ndarray) -> Part:
        bound = error_bound(self.x.dtype, 1, magnitude, exact, function_ulps=FUNCTION_ULPS)
        return Part("result", (slice(0, 1), slice(0, CHECKED_ROWS)), exact, bound)

    def _torch_forward(self, where: Any) -> Mapping[str, TorchCall]:
        (x,) = layouts(where, self.x)["NHWC"]
        fuses = self.name in COMPOSED["forward"]
        return {"NHWC": TorchCall(_forward_function(self, where), (x,), image_result, fuses)}

    def _torch_gradient(self, where: Any) -> Mapping[str, TorchCall]:
        g, x = layouts(where, self.g, self.x)["NHWC"]
        forward = _forward_function(self, where)
        if self.name in (from_result := _gradients_from_result()):
            gradient = from_result[self.name]
            return {
                "NHWC": TorchCall(gradient, (g, forward(x)), image_result, fuses=False),
                "from x": TorchCall(lambda g, x: gradient(g, forward(x)), (g, x), image_result, fuses=False),
            }
        if self.name in (from_x := _gradients_from_x(self, where)):
            fuses = self.name in COMPOSED["gradient"]
            return {"NHWC": TorchCall(from_x[self.name], (g, x), image_result, fuses)}
        import torch

        source = x.detach().requires_grad_(True)
        backward = partial(torch.autograd.grad, retain_graph=True)
        return {
            "NHWC": TorchCall(
                lambda result, source, g: backward(result, source, g), (forward(source), source, g), image_result, False
            )
        }


def _torch_slopes(row: _Row, where: Any) -> Any:
    import torch

    return None if row.slopes is None else torch.from_numpy(row.slopes.astype(row.x.dtype)).to(where)


def _forward_function(row: _Row, where: Any) -> Callable[[Any], Any]:
    import torch

    functional, d = torch.nn.functional, row.descriptor
    slopes = _torch_slopes(row, where)
    shift = torch.full((), d.b, dtype=getattr(torch, row.x.dtype), device=where)
    functions: dict[str, Callable[[Any], Any]] = {
        "none": torch.clone,
        "relu": lambda x: functional.leaky_relu(x, d.a),
        "linear": lambda x: torch.add(shift, x, alpha=d.a),
        "sigmoid": torch.sigmoid,
        "hard_sigmoid": functional.hardsigmoid,
        "tanh": torch.tanh,
        "absolute": torch.abs,
        "soft_plus": lambda x: functional.softplus(x, 1, 20),
        "soft_sign": functional.softsign,
        "elu": lambda x: functional.elu(x, d.a),
        "prelu": lambda x: functional.prelu(x, slopes),
        "relun": lambda x: functional.hardtanh(x, 0, d.b),
        "power": lambda x: (x + d.b).pow(d.c),
        "exponential": torch.exp,
        "logarithm": lambda x: (x + d.b).log(),
        "gelu": functional.gelu,
    }
    return functions[row.name]


def _gradients_from_x(row: _Row, where: Any) -> dict[str, Callable[[Any, Any], Any]]:
    import torch

    aten, d = torch.ops.aten, row.descriptor
    slopes = _torch_slopes(row, where)
    return {
        "none": lambda g, x: g.clone(),
        "relu": lambda g, x: aten.leaky_relu_backward(g, x, d.a, False),
        "linear": lambda g, x: g * d.a,
        "hard_sigmoid": aten.hardsigmoid_backward,
        "absolute": lambda g, x: g * x.sgn(),
        "soft_plus": lambda g, x: aten.softplus_backward(g, x, 1, 20),
        "elu": lambda g, x: aten.elu_backward(g, d.a, 1, 1, False, x),
        "prelu": lambda g, x: torch.where(x >= 0, g, g * slopes.reshape(1, -1, 1, 1)),
        "relun": lambda g, x: aten.hardtanh_backward(g, x, 0, d.b),
        "gelu": lambda g, x: aten.gelu_backward(g, x),
    }


def _gradients_from_result() -> dict[str, Callable[[Any, Any], Any]]:
    import torch

    aten = torch.ops.aten
    return {"sigmoid": aten.sigmoid_backward, "tanh": aten.tanh_backward, "exponential": torch.mul}
