"""Stochastic gradient descent with momentum, RMSProp and Adam, on one vector of parameters, in place.

PyTorch multiplies by the learning rate after the momentum, we before, so its momentum is ours over the learning rate;
both read three vectors and write two, as RMSProp does. Adam reads four and writes three.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

import mpsgrad as mg
from bench.case import Case, Part, TorchCall, Work
from bench.drawn import Draw
from bench.inputs import RandomArray
from bench.shapes import in_groups
from bench.tiny_op import Call, TinyOp
from mpsgrad import reference
from mpsgrad.accuracy import error_bound

DESIGN: Mapping[str, tuple[int, ...]] = {"cpu": (10_000_000,), "gpu": (100_000_000,)}
OTHERS: Mapping[str, tuple[int, ...]] = {"resnet50": (25_557_032,), "awkward": (1_000_003,), "small": (4096,)}
"""ResNet-50 has 25 557 032 parameters."""
LEARNING_RATE, MOMENTUM = 1e-3, 0.9
CHECKED = 100_000


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, length in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(length, dtype, group)


def drawn_shape(draw: Draw) -> int:
    return draw.elements()


def cases_of(length: int, dtype: str, group: str) -> Iterator[Case]:
    """Optimizers work in float32 whatever the dtype of the images: there are no rows for other dtypes."""
    if dtype == "float32":
        for op, nbytes, operations, prepare in (
            ("optimizer_sgd_momentum", 20, 4, _prepare),
            ("optimizer_rms_prop", 20, 8, _prepare_rms_prop),
            ("optimizer_adam", 28, 12, _prepare_adam),
        ):
            yield Case(op, str(length), dtype, group, nbytes * length, operations * length, partial(prepare, length))


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    vectors = {f"{name}_vector": mg.Vector(4, device) for name in ("input_gradient", "input_values", "result_values")}
    momentum, squares = ({name: mg.Vector(4, device)} for name in ("input_momentum_vector", "input_velocity_vector"))
    for kind, slots in (
        (mg.OptimizerStochasticGradientDescent, momentum),
        (mg.OptimizerRMSProp, {"input_sum_of_squares_vector": mg.Vector(4, device)}),
        (mg.OptimizerAdam, momentum | squares),
    ):
        optimizer = kind.with_learning_rate(0.01, device=device)
        yield TinyOp(kind.__name__, Call(optimizer.encode, **vectors, **slots))


def _inputs(length: int) -> list[RandomArray]:
    """Values, gradient and momentum."""
    return [RandomArray((length,), "float32", seed) for seed in range(3)]


def _prepare(length: int, device: mg.Device) -> Work:
    values, gradient, momentum = (mg.Vector(length, device) for _ in range(3))
    inputs = _inputs(length)
    for array, vector in zip(inputs, (values, gradient, momentum), strict=True):
        array.fill(vector.buffer)
    kernel = mg.OptimizerStochasticGradientDescent(
        mg.OptimizerDescriptor(learning_rate=LEARNING_RATE), momentum_scale=MOMENTUM, device=device
    )
    encode = partial(
        kernel.encode,
        input_values_vector=values,
        input_gradient_vector=gradient,
        input_momentum_vector=momentum,
        result_values_vector=values,
    )

    def parts() -> list[Part]:
        v, g, m = (array.first(CHECKED) for array in inputs)
        exact, step = reference.stochastic_gradient_descent(
            g, v, m, learning_rate=LEARNING_RATE, momentum_scale=MOMENTUM
        )
        assert step is not None
        magnitude = np.abs(v) + np.abs(MOMENTUM * m) + np.abs(LEARNING_RATE * g)
        few = (slice(0, len(v)),)
        return [
            Part("values", few, exact, error_bound(np.float32, 3, magnitude, exact)),
            Part("momentum", few, step, error_bound(np.float32, 2, magnitude, step)),
        ]

    return Work(encode, lambda: {"values": values, "momentum": momentum}, parts, partial(_torch_calls, length))


def _prepare_rms_prop(length: int, device: mg.Device) -> Work:
    values, gradient = (mg.Vector(length, device) for _ in range(2))
    squares = mg.Vector.from_array(np.ones(length, np.float32), device)
    inputs = _inputs(length)[:2]
    for array, vector in zip(inputs, (values, gradient), strict=True):
        array.fill(vector.buffer)
    kernel = mg.OptimizerRMSProp.with_learning_rate(LEARNING_RATE, device=device)
    encode = partial(
        kernel.encode,
        input_values_vector=values,
        input_gradient_vector=gradient,
        input_sum_of_squares_vector=squares,
        result_values_vector=values,
    )

    def parts() -> list[Part]:
        v, g = (array.first(CHECKED) for array in inputs)
        exact, sums = reference.rms_prop(g, v, np.ones(len(v)), learning_rate=LEARNING_RATE)
        few = (slice(0, len(v)),)
        return [
            Part("values", few, exact, error_bound(np.float32, 8, np.abs(v) + np.abs(g), exact)),
            Part("squares", few, sums, error_bound(np.float32, 4, 1 + g * g, sums)),
        ]

    return Work(encode, lambda: {"values": values, "squares": squares}, parts, partial(_torch_rms_prop, length))


def _torch_rms_prop(length: int, where: Any) -> Mapping[str, TorchCall]:
    """PyTorch's fastest for all parameters at once; it has no fused one."""
    import torch

    values, gradient = (array.tensor(where).clone() for array in _inputs(length)[:2])
    squares, steps = torch.ones_like(values), torch.zeros(())

    def results(returned: Any) -> Mapping[str, Any]:
        return {"values": values, "squares": squares}

    return {"foreach": TorchCall(_foreach_rms_prop, (values, gradient, squares, steps), results, fuses=False)}


def _foreach_rms_prop(values: Any, gradient: Any, squares: Any, steps: Any) -> None:
    from torch.optim.rmsprop import rmsprop

    rmsprop(
        [values],
        [gradient],
        [squares],
        [],
        [],
        [steps],
        foreach=True,
        lr=LEARNING_RATE,
        alpha=0.9,
        eps=1e-8,
        weight_decay=0.0,
        momentum=0.0,
        centered=False,
    )


def _prepare_adam(length: int, device: mg.Device) -> Work:
    values, gradient, momentum = (mg.Vector(length, device) for _ in range(3))
    velocity = mg.Vector.from_array(np.ones(length, np.float32), device)
    inputs = _inputs(length)
    for array, vector in zip(inputs, (values, gradient, momentum), strict=True):
        array.fill(vector.buffer)
    kernel = mg.OptimizerAdam.with_learning_rate(LEARNING_RATE, device=device)
    encode = partial(
        kernel.encode,
        input_values_vector=values,
        input_gradient_vector=gradient,
        input_momentum_vector=momentum,
        input_velocity_vector=velocity,
        result_values_vector=values,
    )

    def parts() -> list[Part]:
        v, g, m = (array.first(CHECKED) for array in inputs)
        exact, step, squares, _ = reference.adam(g, v, m, np.ones(len(v)), time_step=0, learning_rate=LEARNING_RATE)
        few = (slice(0, len(v)),)
        magnitude = np.abs(v) + np.abs(m) + np.abs(g)
        return [
            Part("values", few, exact, error_bound(np.float32, 8, magnitude, exact)),
            Part("momentum", few, step, error_bound(np.float32, 4, magnitude, step)),
            Part("velocity", few, squares, error_bound(np.float32, 4, 1 + g * g, squares)),
        ]

    results = {"values": values, "momentum": momentum, "velocity": velocity}
    return Work(encode, lambda: results, parts, partial(_torch_adam, length))


def _torch_adam(length: int, where: Any) -> Mapping[str, TorchCall]:
    import torch

    values, gradient, momentum = (array.tensor(where).clone() for array in _inputs(length))
    velocity, steps = torch.ones_like(values), torch.zeros((), device=where)

    def results(returned: Any) -> Mapping[str, Any]:
        return {"values": values, "momentum": momentum, "velocity": velocity}

    return {"fused": TorchCall(_fused_adam, (values, gradient, momentum, velocity, steps), results, fuses=False)}


def _fused_adam(values: Any, gradient: Any, momentum: Any, velocity: Any, steps: Any) -> None:
    import torch

    steps += 1
    torch._fused_adam_(
        [values],
        [gradient],
        [momentum],
        [velocity],
        [],
        [steps],
        lr=LEARNING_RATE,
        beta1=0.9,
        beta2=0.999,
        weight_decay=0.0,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    )


def _torch_calls(length: int, where: Any) -> Mapping[str, TorchCall]:
    calls = {}
    for name, function in (("fused", _fused), ("unfused", _unfused)):
        values, gradient, momentum = (array.tensor(where).clone() for array in _inputs(length))
        momentum /= LEARNING_RATE
        results = partial(_torch_results, values, momentum)
        # Not compiled: compiling runs the function, which changes what it is checked with.
        calls[name] = TorchCall(function, (values, gradient, momentum), results, fuses=False)
    return calls


def _torch_results(values: Any, momentum: Any, returned: Any) -> Mapping[str, Any]:
    return {"values": values, "momentum": momentum[:CHECKED] * LEARNING_RATE}


def _fused(values: Any, gradient: Any, momentum: Any) -> None:
    import torch

    torch._fused_sgd_(
        [values],
        [gradient],
        [momentum],
        weight_decay=0.0,
        momentum=MOMENTUM,
        lr=LEARNING_RATE,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def _unfused(values: Any, gradient: Any, momentum: Any) -> None:
    momentum.mul_(MOMENTUM).add_(gradient)
    values.add_(momentum, alpha=-LEARNING_RATE)
