"""Every neuron type and its gradient.

The gradients take the forward source x, as MPS's do. PyTorch's gradients of sigmoid, tanh and exp start from the saved
result instead, which spares them an exponential: that is what the ratio compares with. Its layout "from x" does the
work that ours does. NCHW would make no difference to these ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import mpsgrad as mg
from bench.case import Case
from bench.inputs import image, random_array, torch_layouts
from mpsgrad import reference
from mpsgrad.accuracy import assert_within, error_bound

SHAPE = (16, 56, 56, 64)
FUNCTION_ULPS = 24

PARAMETERS: dict[str, tuple[float, ...]] = {
    "relu": (0.1,),
    "linear": (0.5, 1.0),
    "hard_sigmoid": (1 / 6, 0.5),
    "elu": (1.0,),
    "relun": (0.0, 6.0),
    "power": (1.0, 8.0, 2.5),
    "logarithm": (1.0, 8.0),
}


def cases(dtype: str, device: mg.Device) -> Iterator[Case]:
    x, g = random_array(SHAPE, dtype), random_array(SHAPE, dtype, 1)
    slopes = np.linspace(-0.5, 0.5, SHAPE[-1]).astype(np.float32)
    text = "x".join(map(str, SHAPE))
    source, incoming = image(x, device), image(g, device)
    # One image takes every result, as PyTorch's allocator hands out the block that the call before gave back.
    result = mg.Image(source.descriptor, device)
    torch_x, torch_g = torch_layouts(x).get("NHWC"), torch_layouts(g, x).get("NHWC")
    for kind in mg.NeuronType:
        name = kind.name.lower()
        data = slopes if kind is mg.NeuronType.PRELU else None
        descriptor = mg.NeuronDescriptor(kind, *PARAMETERS.get(name, ()), data=data)
        forward, gradient = mg.Neuron(descriptor, device=device), mg.NeuronGradient(descriptor, device=device)
        with mg.CommandBuffer(device) as commands:
            _, state = forward.encode(commands, source, return_state=True)
        arguments = {"type": name, "a": descriptor.a, "b": descriptor.b, "c": descriptor.c, "slopes": data}

        def encode_forward(commands: mg.CommandBuffer, kernel: mg.Neuron = forward) -> mg.Image:
            kernel.encode(commands, source, destination_image=result)
            return result

        def encode_gradient(
            commands: mg.CommandBuffer, kernel: mg.NeuronGradient = gradient, state: Any = state
        ) -> mg.Image:
            kernel.encode(commands, incoming, source, state, destination_gradient=result)
            return result

        def check_forward(actual: mg.Image, arguments: dict[str, Any] = arguments) -> None:
            exact = reference.neuron(x[:1], **arguments)
            magnitude = np.abs(exact) + np.abs(x[:1]) + 1
            bound = error_bound(actual.dtype, 1, magnitude, exact, function_ulps=FUNCTION_ULPS)
            assert_within(np.asarray(actual)[:1], exact, bound)

        def check_gradient(actual: mg.Image, arguments: dict[str, Any] = arguments) -> None:
            exact = reference.neuron_gradient(g[:1], x[:1], **arguments)
            magnitude = np.abs(exact) + np.abs(g[:1]) * (1 + np.abs(x[:1]))
            bound = error_bound(actual.dtype, 1, magnitude, exact, function_ulps=FUNCTION_ULPS)
            assert_within(np.asarray(actual)[:1], exact, bound)

        torch_forward, torch_gradient = _torch_calls(name, descriptor, torch_x, torch_g)
        yield Case(
            f"neuron_{name}",
            text,
            dtype,
            2 * x.nbytes,
            encode_forward,
            check_forward,
            torch_calls=torch_forward,
        )
        yield Case(
            f"neuron_{name}_gradient",
            text,
            dtype,
            3 * x.nbytes,
            encode_gradient,
            check_gradient,
            torch_calls=torch_gradient,
        )


def _torch_calls(
    name: str, d: mg.NeuronDescriptor, forward: list[Any] | None, backward: list[Any] | None
) -> tuple[dict[str, Callable[[], Any]], dict[str, Callable[[], Any]]]:
    """PyTorch's calls for the tensors [x] and [g, x], where it has one call for the op; else none."""
    if forward is None or backward is None:
        return {}, {}
    import torch

    aten, functional = torch.ops.aten, torch.nn.functional
    shift = torch.full((), d.b, dtype=forward[0].dtype)
    functions: dict[str, Callable[[Any], Any]] = {
        "relu": lambda x: functional.leaky_relu(x, d.a),
        "linear": lambda x: torch.add(shift, x, alpha=d.a),
        "sigmoid": torch.sigmoid,
        "hard_sigmoid": functional.hardsigmoid,
        "tanh": torch.tanh,
        "absolute": torch.abs,
        "soft_plus": lambda x: functional.softplus(x, 1, 20),
        "elu": lambda x: functional.elu(x, d.a),
        "relun": lambda x: functional.hardtanh(x, 0, d.b),
        "exponential": torch.exp,
        "gelu": functional.gelu,
    }
    from_x: dict[str, Callable[[Any, Any], Any]] = {
        "relu": lambda g, x: aten.leaky_relu_backward(g, x, d.a, False),
        "linear": lambda g, x: g * d.a,
        "hard_sigmoid": aten.hardsigmoid_backward,
        "absolute": lambda g, x: g * x.sgn(),
        "soft_plus": lambda g, x: aten.softplus_backward(g, x, 1, 20),
        "elu": lambda g, x: aten.elu_backward(g, d.a, 1, 1, False, x),
        "relun": lambda g, x: aten.hardtanh_backward(g, x, 0, d.b),
        "gelu": lambda g, x: aten.gelu_backward(g, x),
    }
    from_result: dict[str, Callable[[Any, Any], Any]] = {
        "sigmoid": aten.sigmoid_backward,
        "tanh": aten.tanh_backward,
        "exponential": torch.mul,
    }
    if name not in functions:
        return {}, {}
    function = functions[name]
    ours = {"NHWC": partial(function, *forward)}
    if name in from_x:
        return ours, {"NHWC": partial(from_x[name], *backward)}
    g, x = backward
    gradient, result = from_result[name], function(x)
    return ours, {"NHWC": lambda: gradient(g, result), "from x": lambda: gradient(g, function(x))}
