"""The neurons and their gradients against the float64 references, and the laws that belong to them alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from fenced import encode, encode_gradient
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, reference
from mpsgrad.kernels import neuron_dispatch
from mpsgrad.kernels.neuron import NEURON_CLASSES
from mpsgrad.shader import use_tunables
from mpsgrad.testing import (
    assert_within,
    batch_sizes,
    channel_counts,
    channel_formats,
    error_bound,
    values,
)
from mpsgrad.tunables import tunables

pytestmark = pytest.mark.usefixtures("several_kernels_at_a_time")

# Accuracy in units of eps. Metal guarantees 4 for its precise logarithm and 16 for powers; the shaders' own functions
# are within 2. Each result takes one of them, and a few roundings more.
FUNCTION_ULPS = 5
POWER_ULPS = 20
X = [-3, -0.5, 0, 0.5, 2, 7]


@dataclass(frozen=True)
class Kind:
    """A type of neuron with the parameters to try; what is not exact in binary could fall on either side of a kink."""

    name: str
    parameters: tuple[tuple[float, ...], ...] = ((),)

    def descriptor(self, parameters: tuple[float, ...] = (), slopes: Any = None) -> mg.NeuronDescriptor:
        return mg.NeuronDescriptor(self.name, *parameters, data=slopes)

    def arguments(self, descriptor: mg.NeuronDescriptor) -> dict[str, Any]:
        """The keywords of the references; parameters rounded to float32, as the shaders have them."""
        a, b, c = (float(np.float32(value)) for value in (descriptor.a, descriptor.b, descriptor.c))
        return {"type": self.name, "a": a, "b": b, "c": c, "slopes": descriptor.data}


KINDS = [
    Kind("none"),
    Kind("relu", ((), (0.3,), (-0.5,))),
    Kind("linear", ((), (0.3, -0.7))),
    Kind("sigmoid"),
    Kind("hard_sigmoid", ((0.25, 0.5), (-0.5, 0.25), (1.0, 0.0))),
    Kind("tanh", ((), (0.3, 0.7), (-2.0, 3.0))),
    Kind("absolute"),
    Kind("soft_plus", ((), (0.3, 0.7), (2.0, -3.0))),
    Kind("soft_sign"),
    Kind("elu", ((), (0.3,))),
    Kind("prelu"),
    Kind("relun", ((), (0.25, 1.0), (0.5, -0.5), (-1.0, 2.0))),
    Kind("power", ((), (0.3, 0.7, 2.0), (0.5, -0.25, 3.0), (0.1, 5.0, -1.5), (0.3, 0.7, 0.0))),
    Kind("exponential", ((), (0.3, 0.7), (0.3, 0.7, 2.0), (-0.3, 0.1, 0.5))),
    Kind("logarithm", ((0.1, 9.0), (0.1, 9.0, 2.0), (0.1, 9.0, 0.5))),
    Kind("gelu"),
]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def sensitivity(x: np.ndarray, kind: Kind, d: mg.NeuronDescriptor, slopes: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """For f and f': the result's size, larger where a rounding before the last function is magnified by it."""
    x = np.asarray(x, np.float64)
    f = np.abs(reference.neuron(x, **kind.arguments(d)))
    slope = np.abs(exact(kind, x, d)[1])
    terms = np.abs(d.a * x) + abs(d.b)
    match kind.name:
        case "linear" | "hard_sigmoid":
            return terms, slope
        case "tanh" | "soft_plus":
            return f * (1 + np.abs(d.b * x)), slope * (1 + 2 * np.abs(d.b * x))
        case "power":
            magnified = 1 + (1 + abs(d.c)) * terms / np.abs(d.a * x + d.b)
            return f * magnified, slope * magnified
        case "exponential":
            magnified = 1 + (1 if d.c == -1 else abs(math.log(d.c))) * terms
            return f * magnified, slope * magnified
        case "logarithm":
            magnified = terms / np.abs(d.a * x + d.b)
            scale = 1 if d.c == -1 else 1 / abs(math.log(d.c))
            return f + scale * magnified, slope * (1 + magnified)
        case "gelu":
            tail = np.vectorize(lambda v: math.erfc(-v / math.sqrt(2)) / 2)(x) * (1 + x * x)
            density = np.abs(x) * np.exp(-x * x / 2) * (1 + x * x) / math.sqrt(2 * math.pi)
            return np.abs(x) * tail, tail + density
    return f, slope


def exact(kind: Kind, x: np.ndarray, d: mg.NeuronDescriptor) -> tuple[np.ndarray, np.ndarray]:
    """f and f' in float64; without the cancellations in gelu's 1 + erf and in 1 - tanh^2."""
    x = np.asarray(x, np.float64)
    if kind.name == "gelu":
        below = np.vectorize(lambda v: math.erfc(-v / math.sqrt(2)) / 2)(x)
        return x * below, below + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    arguments = kind.arguments(d)
    derivative = reference.neuron_derivative(x, **arguments)
    if kind.name == "tanh":
        e = np.exp(-2 * np.abs(arguments["b"] * x))
        derivative = arguments["a"] * arguments["b"] * 4 * e / (1 + e) ** 2
    return reference.neuron(x, **arguments), derivative


def underflow(d: mg.NeuronDescriptor) -> float:
    """How far off a result may be because e^-x was below the ordinary numbers, whatever multiplies it."""
    return 8 * (1 + abs(d.a)) * (1 + abs(d.b)) * float(np.finfo(np.float32).tiny)


def near_a_kink(kind: Kind, x: np.ndarray, d: mg.NeuronDescriptor) -> np.ndarray:
    """Where rounding a x + b once moves it over an end of hard_sigmoid, or a x over the b of relun."""
    x = np.asarray(x, np.float64)
    eps = float(np.finfo(np.float32).eps)
    near = np.zeros(x.shape, bool)
    edges = {"hard_sigmoid": (0.0, 1.0), "relun": (d.b,)}.get(kind.name, ())
    for edge in edges:
        value = d.a * x + (d.b if kind.name == "hard_sigmoid" else 0.0)
        near |= (np.abs(value - edge) < 2 * eps * (np.abs(d.a * x) + abs(d.b))) & (value != edge)
    return near


def check_against_the_reference(kind: Kind, descriptor: mg.NeuronDescriptor, x: np.ndarray, g: np.ndarray) -> None:
    reference_descriptor = descriptor
    if descriptor.data is not None:
        reference_descriptor = kind.descriptor((), descriptor.data[: x.shape[3]])
    dtype = x.dtype
    y_exact, derivative = exact(kind, x, reference_descriptor)
    with np.errstate(all="ignore"):
        size, slope_size = sensitivity(x, kind, reference_descriptor)
    # Powers at their pole, and what lies beyond the range of the storage type, are not numbers to compare.
    limit = float(np.finfo(dtype).max) / 2
    comparable = np.isfinite(y_exact) & np.isfinite(derivative) & np.isfinite(size) & np.isfinite(slope_size)
    comparable &= (np.abs(y_exact) < limit) & (np.abs(derivative * g) < limit)
    ulps = POWER_ULPS if kind.name == "power" else FUNCTION_ULPS

    source = mg.Image.from_array(x)
    result, dx = mg.Image(source.descriptor), mg.Image(source.descriptor)
    kernel, gradient = mg.Neuron(descriptor), mg.NeuronGradient(descriptor)
    state = kernel.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)
        gradient.encode(commands, mg.Image.from_array(g), source, state, destination_gradient=dx)
    bound = error_bound(dtype, 1, size, y_exact, function_ulps=ulps) + underflow(descriptor)
    assert_within(
        np.asarray(result)[comparable], y_exact[comparable], bound[comparable], name="result"
    )
    comparable &= ~near_a_kink(kind, x, reference_descriptor)
    bound = error_bound(dtype, 1, np.abs(g) * slope_size, g * derivative, function_ulps=ulps)
    bound += np.abs(g) * underflow(descriptor)
    assert_within(
        np.asarray(dx)[comparable], (g * derivative)[comparable], bound[comparable], name="gradient"
    )


@each_kind
@given(data=st.data())
def test_forward_and_gradient_match_the_reference(kind, data):
    images, channels = data.draw(batch_sizes()), data.draw(channel_counts())
    dtype = data.draw(channel_formats()).dtype
    shape = (images, data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9)), channels)
    x = data.draw(values(shape, dtype, ties=data.draw(st.booleans()), scale=data.draw(st.sampled_from([1.0, 4.0]))))
    g = data.draw(values(shape, dtype))
    slopes = data.draw(values((channels + 3,), np.float32)) if kind.name == "prelu" else None
    descriptor = kind.descriptor(data.draw(st.sampled_from(kind.parameters)), slopes)
    if kind.name == "power" and not float(descriptor.c).is_integer():
        x = np.clip(x, -20, None)
    check_against_the_reference(kind, descriptor, x, g)


def test_powers_by_eights(monkeypatch):
    """CPUs with AVX2 take them so."""
    monkeypatch.setattr(neuron_dispatch, "BY_LANES", frozenset())
    x, g = (np.random.default_rng(seed).standard_normal((2, 9, 7, 13), np.float32) for seed in range(2))
    kind = next(kind for kind in KINDS if kind.name == "power")
    check_against_the_reference(kind, kind.descriptor(kind.parameters[0], None), x, g)


@each_kind
@given(channels=channel_counts(), images=batch_sizes(), format=channel_formats())
def test_every_element_is_written_and_no_other(kind, channels, images, format):
    x = np.ones((images, 3, 5, channels), format.dtype)
    descriptor = kind.descriptor(kind.parameters[0], np.ones(channels) if kind.name == "prelu" else None)
    source, _, state = encode(mg.Neuron(descriptor), x)
    encode_gradient(mg.NeuronGradient(descriptor), x, source, state)


WORKED = [
    ("relu", (0.3,), [-0.9, -0.15, 0, 0.5, 2, 7], [0.3, 0.3, 1, 1, 1, 1]),
    ("hard_sigmoid", (0.2, 0.5), [0, 0.4, 0.5, 0.6, 0.9, 1], [0, 0.2, 0.2, 0.2, 0.2, 0]),
    (
        "tanh",
        (0.3, 0.7),
        [-0.29114, -0.10091, 0, 0.10091, 0.26561, 0.29997],
        [0.01223, 0.18624, 0.21, 0.18624, 0.04539, 0.00005],
    ),
    (
        "sigmoid",
        (),
        [0.04743, 0.37754, 0.5, 0.62246, 0.8808, 0.99909],
        [0.04518, 0.235, 0.25, 0.235, 0.10499, 0.00091],
    ),
    ("absolute", (), [3, 0.5, 0, 0.5, 2, 7], [-1, -1, 0, 1, 1, 1]),
    (
        "soft_plus",
        (0.3, 0.7),
        [0.03466, 0.16001, 0.20794, 0.26501, 0.48613, 1.47223],
        [0.02291, 0.08681, 0.105, 0.12319, 0.16846, 0.20845],
    ),
    ("soft_sign", (), [-0.75, -0.33333, 0, 0.33333, 0.66667, 0.875], [0.0625, 0.44444, 1, 0.44444, 0.11111, 0.01562]),
    ("elu", (0.3,), [-0.28506, -0.11804, 0, 0.5, 2, 7], [0.01494, 0.18196, 1, 1, 1, 1]),
    ("relun", (0.3, 6.0), [-0.9, -0.15, 0, 0.5, 2, 6], [0.3, 0.3, 1, 1, 1, 0]),
    ("power", (0.3, 0.7, 2.0), [0.04, 0.3025, 0.49, 0.7225, 1.69, 7.84], [-0.12, 0.33, 0.42, 0.51, 0.78, 1.68]),
    (
        "exponential",
        (0.3, 0.7, -1.0),
        [0.81873, 1.73325, 2.01375, 2.33965, 3.6693, 16.44465],
        [0.24562, 0.51998, 0.60413, 0.70189, 1.10079, 4.93339],
    ),
    (
        "exponential",
        (0.3, 0.7, 2.0),
        [0.87055, 1.46409, 1.6245, 1.8025, 2.46229, 6.9644],
        [0.18103, 0.30445, 0.33781, 0.37482, 0.51202, 1.44821],
    ),
    (
        "logarithm",
        (0.3, 2.0, -1.0),
        [0.09531, 0.61519, 0.69315, 0.76547, 0.95551, 1.41099],
        [0.27273, 0.16216, 0.15, 0.13953, 0.11538, 0.07317],
    ),
    ("gelu", (), [-0.00405, -0.15427, 0, 0.34573, 1.9545, 7], [-0.01195, 0.1325, 0.5, 0.8675, 1.08523, 1]),
]


@pytest.mark.parametrize("name, parameters, f, derivative", WORKED)
def test_worked_cases(name, parameters, f, derivative):
    x = np.array(X, np.float32).reshape(1, 2, 3, 1)
    descriptor = mg.NeuronDescriptor(name, *parameters)
    source, y, state = encode(mg.Neuron(descriptor), x)
    dx = encode_gradient(mg.NeuronGradient(descriptor), np.ones_like(x), source, state)
    np.testing.assert_allclose(y.reshape(-1), f, rtol=1e-5, atol=6e-6)
    np.testing.assert_allclose(dx.reshape(-1), derivative, rtol=1e-5, atol=6e-6)


KINKS = [
    ("relu", (0.25,), [0.0, -0.0], [1, 1]),
    ("elu", (0.25,), [0.0, -0.0], [1, 1]),
    ("absolute", (), [0.0, -0.0], [0, 0]),
    ("hard_sigmoid", (0.25, 0.5), [-2, 2, -2.5, 2.5], [0.25, 0.25, 0, 0]),
    ("relun", (0.5, 6.0), [6, 5.75, 0, -1], [0, 1, 1, 0.5]),
    ("relun", (0.5, -1.0), [-2, -1.75, -2.5], [0, 0, 0.5]),
    ("relun", (-1.0, 2.0), [-2, -3, -1, 1], [0, 0, -1, 1]),
]


@pytest.mark.parametrize("name, parameters, x, derivative", KINKS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_derivative_at_a_kink(name, parameters, x, derivative, dtype):
    x = np.array(x, dtype).reshape(1, 1, -1, 1)
    descriptor = mg.NeuronDescriptor(name, *parameters)
    source, _, state = encode(mg.Neuron(descriptor), x)
    dx = encode_gradient(mg.NeuronGradient(descriptor), np.full_like(x, 2), source, state)
    np.testing.assert_array_equal(dx.reshape(-1), 2 * np.array(derivative))


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "soft_plus", "soft_sign", "elu", "gelu", "hard_sigmoid"])
def test_nothing_overflows_or_cancels(name):
    """Over the whole range of float32, down to relative accuracy in the tails."""
    kind = next(kind for kind in KINDS if kind.name == name)
    exponents = np.linspace(-30, 30, 601)
    x = np.concatenate([2.0**exponents, np.linspace(0, 100, 2001), [1e-38, 3e38]])
    x = np.concatenate([x, -x]).astype(np.float32).reshape(1, 1, -1, 1)
    descriptor = kind.descriptor((0.25, 0.5) if name == "hard_sigmoid" else ())
    source, y, state = encode(mg.Neuron(descriptor), x)
    dx = encode_gradient(mg.NeuronGradient(descriptor), np.ones_like(x), source, state)
    with np.errstate(all="ignore"):
        f, derivative = exact(kind, x, descriptor)
        size, slope_size = (np.nan_to_num(part) for part in sensitivity(x, kind, descriptor))
    bound = error_bound(np.float32, 1, size, f, function_ulps=FUNCTION_ULPS) + underflow(descriptor)
    assert_within(y, f, bound, name="result")
    bound = error_bound(np.float32, 1, slope_size, derivative, function_ulps=FUNCTION_ULPS) + underflow(descriptor)
    inexact = near_a_kink(kind, x, descriptor)
    assert_within(dx[~inexact], derivative[~inexact], bound[~inexact], name="derivative")


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "soft_plus", "soft_sign", "elu", "exponential"])
def test_functions_are_accurate_to_the_last_digits(name):
    x = np.linspace(-6, 6, 24001).astype(np.float32).reshape(1, 1, -1, 1)
    descriptor = mg.NeuronDescriptor(name)
    source, y, state = encode(mg.Neuron(descriptor), x)
    dx = encode_gradient(mg.NeuronGradient(descriptor), np.ones_like(x), source, state)
    f, derivative = exact(Kind(name), x, descriptor)
    eps = float(np.finfo(np.float32).eps)
    assert (np.abs(y - f) <= 2 * eps * np.abs(f)).all()
    assert (np.abs(dx - derivative) <= 3 * eps * np.abs(derivative)).all()


def test_exponentials_over_the_whole_range():
    x = np.concatenate([np.linspace(-86, 88.7, 4001), [-110, -1e30, 89, 1e30]]).astype(np.float32).reshape(1, 1, -1, 1)
    descriptor = mg.NeuronDescriptor("exponential")
    _, y, _ = encode(mg.Neuron(descriptor), x)
    np.testing.assert_allclose(y[..., :-4, :], np.exp(x[..., :-4, :].astype(np.float64)), rtol=3e-7)
    np.testing.assert_array_equal(y[0, 0, -4:, 0], [0, 0, np.inf, np.inf])


@pytest.mark.parametrize(("name", "a", "expected"), [("relu", 0, 0), ("relu", 0.5, -np.inf), ("relun", 0, 0)])
def test_a_slope_of_0_makes_0_of_minus_infinity(name, a, expected):
    x = np.full((1, 1, 9, 1), -np.inf, np.float32)
    _, y, _ = encode(mg.Neuron(mg.NeuronDescriptor(name, a)), x)
    np.testing.assert_array_equal(y, np.full_like(x, expected))
    np.testing.assert_array_equal(reference.neuron(x, name, a), np.full_like(x, expected))


def test_gelu_is_accurate_to_the_rounding_of_float32():
    x = np.linspace(-5, 10, 20001).astype(np.float32).reshape(1, 1, -1, 1)
    descriptor = mg.NeuronDescriptor("gelu")
    source, y, state = encode(mg.Neuron(descriptor), x)
    dx = encode_gradient(mg.NeuronGradient(descriptor), np.ones_like(x), source, state)
    f, derivative = exact(Kind("gelu"), x, descriptor)
    eps = np.finfo(np.float32).eps
    assert np.abs(y - f).max() < 1.5 * eps * max(1, np.abs(f).max())
    assert (np.abs(y - f)[np.abs(x) < 1] < 2 * eps * np.abs(x)[np.abs(x) < 1] + 1e-30).all()
    assert np.abs(dx - derivative).max() < 2.5 * eps


@each_kind
def test_a_nan_stays_one(kind, device):
    """On CPUs and NVIDIA GPUs; Metal's fast math promises nothing about NaNs."""
    x = np.array([np.nan, 1.0], np.float32).reshape(1, 1, 2, 1)
    descriptor = kind.descriptor(kind.parameters[-1], [0.5] if kind.name == "prelu" else None)
    if kind.name == "power":
        descriptor = mg.NeuronDescriptor("power", 0.3, 0.7, 2.0)
    source, state = mg.Image.from_array(x), None
    result = mg.Image(source.descriptor)
    kernel = mg.Neuron(descriptor)
    state = kernel.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)
        dx = mg.NeuronGradient(descriptor).encode(commands, source, source, state)
    stays = device.family in ("cpu", "nvidia")
    np.testing.assert_array_equal(np.isnan(np.asarray(result)).reshape(-1), [stays, False])
    np.testing.assert_array_equal(np.isnan(np.asarray(dx)).reshape(-1), [stays, False])


def test_a_negative_base_needs_a_whole_exponent():
    x = np.array([-2, -1, 0, 1], np.float32).reshape(1, 1, -1, 1)
    for exponent, expected in ((3, [-8, -1, 0, 1]), (2, [4, 1, 0, 1]), (0, [1, 1, 1, 1]), (1, [-2, -1, 0, 1])):
        result = mg.Image(mg.Image.from_array(x).descriptor)
        with mg.CommandBuffer() as commands:
            mg.NeuronPower(1, 0, exponent).encode(commands, mg.Image.from_array(x), destination_image=result)
        np.testing.assert_allclose(np.asarray(result).reshape(-1), expected, rtol=2e-6)
    with mg.CommandBuffer() as commands:
        result = mg.NeuronPower(1, 0, 0.5).encode(commands, mg.Image.from_array(x))
    np.testing.assert_array_equal(np.isnan(np.asarray(result)).reshape(-1), [True, True, False, False])


def check_powers_of_exponent_0(dtype):
    x = mg.Image.from_array(np.array([-1, 0, 6e-8, 2, np.inf], dtype).reshape(1, 1, -1, 1))
    g = mg.Image.from_array(np.ones(x.shape, dtype))
    kernel = mg.NeuronPower(1, 0, 0)
    with mg.CommandBuffer() as commands:
        y, state = kernel.encode(commands, x, return_state=True)
        dx = mg.NeuronGradient(kernel.neuron_descriptor).encode(commands, g, x, state)
    np.testing.assert_array_equal(np.asarray(y), np.ones(x.shape))
    np.testing.assert_array_equal(np.asarray(dx), np.zeros(x.shape))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_power_of_exponent_0_has_no_slope_at_its_pole(dtype):
    check_powers_of_exponent_0(dtype)


SUBCLASSES = [
    (lambda: mg.NeuronLinear(0.3, -0.7), mg.NeuronDescriptor("linear", 0.3, -0.7)),
    (lambda: mg.NeuronReLU(0.3), mg.NeuronDescriptor("relu", 0.3)),
    (lambda: mg.NeuronPReLU([0.1, -0.2, 0.3, 0.4, 0.5]), mg.NeuronDescriptor.prelu([0.1, -0.2, 0.3, 0.4, 0.5])),
    (lambda: mg.NeuronSigmoid(), mg.NeuronDescriptor("sigmoid")),
    (lambda: mg.NeuronHardSigmoid(0.3, 0.4), mg.NeuronDescriptor("hard_sigmoid", 0.3, 0.4)),
    (lambda: mg.NeuronTanH(0.3, 0.7), mg.NeuronDescriptor("tanh", 0.3, 0.7)),
    (lambda: mg.NeuronAbsolute(), mg.NeuronDescriptor("absolute")),
    (lambda: mg.NeuronSoftPlus(0.3, 0.7), mg.NeuronDescriptor("soft_plus", 0.3, 0.7)),
    (lambda: mg.NeuronSoftSign(), mg.NeuronDescriptor("soft_sign")),
    (lambda: mg.NeuronELU(0.3), mg.NeuronDescriptor("elu", 0.3)),
    (lambda: mg.NeuronReLUN(0.3, 2.0), mg.NeuronDescriptor("relun", 0.3, 2.0)),
    (lambda: mg.NeuronPower(0.3, 0.7, 2.0), mg.NeuronDescriptor("power", 0.3, 0.7, 2.0)),
    (lambda: mg.NeuronExponential(0.3, 0.7, 2.0), mg.NeuronDescriptor("exponential", 0.3, 0.7, 2.0)),
    (lambda: mg.NeuronLogarithm(0.3, 9.0, 2.0), mg.NeuronDescriptor("logarithm", 0.3, 9.0, 2.0)),
]


@pytest.mark.parametrize("build, descriptor", SUBCLASSES, ids=[d.neuron_type.name for _, d in SUBCLASSES])
def test_subclasses_and_archives_give_the_bits_of_the_descriptor(build, descriptor):
    kernel = build()
    assert kernel.neuron_descriptor == descriptor
    assert (kernel.neuron_type, kernel.a, kernel.b, kernel.c) == (
        descriptor.neuron_type,
        descriptor.a,
        descriptor.b,
        descriptor.c,
    )
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 5)).astype(np.float32)
    source, y, state = encode(kernel, x)
    np.testing.assert_array_equal(encode(mg.Neuron(descriptor), x)[1], y)
    restored = archive.from_bytes(archive.to_bytes(kernel))
    assert type(restored) is type(kernel) and restored.neuron_descriptor == descriptor
    np.testing.assert_array_equal(encode(restored, x)[1], y)
    gradient = mg.NeuronGradient(descriptor)
    restored = archive.from_bytes(archive.to_bytes(gradient))
    g = np.random.default_rng(2).standard_normal(x.shape).astype(np.float32)
    dx = encode_gradient(gradient, g, source, state)
    np.testing.assert_array_equal(encode_gradient(restored, g, source, state), dx)


def test_every_type_has_a_class_but_none_and_gelu():
    types = {build().neuron_type for build, _ in SUBCLASSES}
    assert types == set(mg.NeuronType) - {mg.NeuronType.NONE, mg.NeuronType.GELU}
    assert len(NEURON_CLASSES) == len(SUBCLASSES) + 1
    assert [int(kind) for kind in mg.NeuronType] == list(range(16))


def test_defaults_are_those_of_the_reference():
    from mpsgrad.reference.neuron import NEURON_DEFAULTS

    for kind in KINDS:
        if kind.name != "prelu":
            descriptor = mg.NeuronDescriptor(kind.name)
            assert (descriptor.a, descriptor.b, descriptor.c) == NEURON_DEFAULTS[kind.name]


def moved(x: np.ndarray, dy: int, dx: int, height: int, width: int, edge: str) -> np.ndarray:
    """Pixels (y + dy, x + dx) of ``x`` for a result of ``height`` x ``width``, by the edge's rule outside."""
    rows, columns = np.arange(height) + dy, np.arange(width) + dx
    inside = ((rows >= 0) & (rows < x.shape[1]))[:, None] & ((columns >= 0) & (columns < x.shape[2]))
    taken = x[:, np.clip(rows, 0, x.shape[1] - 1)][:, :, np.clip(columns, 0, x.shape[2] - 1)]
    return taken if edge == "clamp" else np.where(inside[None, :, :, None], taken, 0)


@pytest.mark.parametrize("edge", ["zero", "clamp"])
@pytest.mark.parametrize("kind", [KINDS[3], KINDS[10]], ids=["sigmoid", "prelu"])
@given(data=st.data())
def test_offsets_clip_rect_and_channel_ranges(kind, edge, data):
    """The forward kernel writes only its part of a larger image, and the gradient gets back what belongs to it."""
    generator = np.random.default_rng(data.draw(st.integers(0, 1000)))
    x = generator.standard_normal((3, 4, 5, 12)).astype(np.float32)
    before = generator.standard_normal((3, 8, 7, 16)).astype(np.float32)
    dy, dx = data.draw(st.integers(-9, 9)), data.draw(st.integers(-9, 9))
    top, left = data.draw(st.integers(0, 7)), data.draw(st.integers(0, 6))
    height, width = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    channels = data.draw(st.integers(1, 8))
    slopes = generator.standard_normal(8).astype(np.float32) if kind.name == "prelu" else None
    descriptor = kind.descriptor((), slopes)
    kernel = mg.Neuron(descriptor)
    kernel.offset = mg.Offset(dx, dy, 1)
    kernel.edge_mode = mg.EdgeMode.CLAMP if edge == "clamp" else mg.EdgeMode.ZERO
    kernel.clip_rect = mg.Region(mg.Origin(left, top, 1), mg.Size(width, height, 2))
    kernel.source_feature_channel_offset = 4
    kernel.source_feature_channel_max_count = channels
    kernel.destination_feature_channel_offset = 8
    source, result = mg.Image.from_array(x), mg.Image.from_array(before)
    state = kernel.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)

    height, width = min(height, 8 - top), min(width, 7 - left)
    part = x[1:3, :, :, 4 : 4 + channels]
    arguments = kind.arguments(kind.descriptor((), None if slopes is None else slopes[:channels]))
    expected = before.astype(np.float64)
    y = reference.neuron(moved(part, dy, dx, height, width, edge), **arguments)
    expected[1:3, top : top + height, left : left + width, 8 : 8 + channels] = y
    assert_within(np.asarray(result), expected, error_bound(np.float32, 1, expected, 0, function_ulps=FUNCTION_ULPS))

    g = generator.standard_normal(before.shape).astype(np.float32)
    gradient = mg.NeuronGradient(descriptor)
    inside = dx >= 0 and dy >= 0 and dx + width <= 5 and dy + height <= 4
    with mg.CommandBuffer() as commands:
        if edge == "clamp" and not inside:
            with pytest.raises(NotImplementedError, match="NeuronGradient.*EdgeMode.CLAMP"):
                gradient.encode(commands, mg.Image.from_array(g), source, state)
            return
        result = gradient.encode(commands, mg.Image.from_array(g), source, state)
    g_part = g[1:3, top : top + height, left : left + width, 8 : 8 + channels]
    expected = np.zeros(x.shape)
    expected[1:3, :, :, 4 : 4 + channels] = reference.neuron_gradient(
        moved(g_part, -dy, -dx, 4, 5, "zero"), part, **arguments
    )
    assert_within(np.asarray(result), expected, error_bound(np.float32, 1, expected, 0, function_ulps=FUNCTION_ULPS))


@each_kind
def test_automatic_manual_batched_and_repeated_encodes_give_the_same_bits(kind):
    generator = np.random.default_rng(3)
    x = generator.standard_normal((3, 4, 5, 37)).astype(np.float16)
    g = generator.standard_normal(x.shape).astype(np.float16)
    descriptor = kind.descriptor(kind.parameters[-1], generator.standard_normal(37) if kind.name == "prelu" else None)
    kernel, gradient = mg.Neuron(descriptor), mg.NeuronGradient(descriptor)
    source, y, state = encode(kernel, x)
    dx = encode_gradient(gradient, g, source, state)
    for _ in range(20):
        with mg.CommandBuffer() as commands:
            result, made = kernel.encode(commands, source, return_state=True)
            gradients = gradient.encode(commands, mg.Image.from_array(g), source, made)
        np.testing.assert_array_equal(np.asarray(result), y)
        np.testing.assert_array_equal(np.asarray(gradients), dx)
    joined = mg.ImageBatch.from_array(x), mg.ImageBatch.from_array(g)
    apart = tuple(mg.ImageBatch([mg.Image.from_array(image) for image in array]) for array in (x, g))
    for sources, incoming in (joined, apart):
        with mg.CommandBuffer() as commands:
            results, states = kernel.encode_batch(commands, sources, return_state=True)
            gradients = gradient.encode_batch(commands, incoming, sources, states)
        np.testing.assert_array_equal(np.asarray(results), y)
        np.testing.assert_array_equal(np.asarray(gradients), dx)


def test_views_of_channels_are_read_and_written_in_place():
    generator = np.random.default_rng(4)
    x, before = (generator.standard_normal((2, 3, 4, 24)).astype(np.float32) for _ in range(2))
    source, result = mg.Image.from_array(x), mg.Image.from_array(before)
    with mg.CommandBuffer() as commands:
        mg.NeuronAbsolute().encode(commands, source.sub_image(4, 8), destination_image=result.sub_image(16, 8))
    before[..., 16:] = np.abs(x[..., 4:12])
    np.testing.assert_array_equal(np.asarray(result), before)


@given(data=st.data())
def test_the_gradient_for_slopes_matches_the_reference(data):
    images, channels = data.draw(batch_sizes()), data.draw(channel_counts())
    dtype = data.draw(channel_formats()).dtype
    shape = (images, data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40)), channels)
    x = data.draw(values(shape, dtype, ties=data.draw(st.booleans())))
    g = data.draw(values(shape, dtype))
    descriptor = mg.NeuronDescriptor.prelu(data.draw(values((channels,), np.float32)))
    source, _, state = encode(mg.Neuron(descriptor), x)
    gradient = mg.NeuronGradient(descriptor, computes_gradient_for_slopes=True)
    assert state.gradient_for_slopes is None
    dx = encode_gradient(gradient, g, source, state)
    expected = reference.prelu_gradient_slopes(g, x)
    magnitude = reference.prelu_gradient_slopes(np.abs(g), -np.abs(x.astype(np.float64)))
    pixels = shape[0] * shape[1] * shape[2]
    assert_within(state.gradient_for_slopes, expected, error_bound(np.float32, pixels, magnitude, expected))
    np.testing.assert_array_equal(encode_gradient(mg.NeuronGradient(descriptor), g, source, state), dx)


def test_the_gradient_for_slopes_accumulates_over_encodes_and_over_the_batch():
    generator = np.random.default_rng(5)
    x, g = (generator.standard_normal((4, 9, 7, 6)).astype(np.float32) for _ in range(2))
    descriptor = mg.NeuronDescriptor.prelu(generator.standard_normal(6))
    kernel, gradient = mg.Neuron(descriptor), mg.NeuronGradient(descriptor, computes_gradient_for_slopes=True)
    sources, gradients = mg.ImageBatch.from_array(x), mg.ImageBatch.from_array(g)
    with mg.CommandBuffer() as commands:
        _, states = kernel.encode_batch(commands, sources, return_state=True)
        gradient.encode_batch(commands, gradients, sources, states)
    expected = reference.prelu_gradient_slopes(g, x)
    bound = error_bound(np.float32, x.size, reference.prelu_gradient_slopes(np.abs(g), -np.abs(x)), expected)
    assert_within(states[0].gradient_for_slopes, expected, bound)
    assert_within(states[3].gradient_for_slopes, expected, bound)
    (vector,) = states.whole.gradient_vectors
    np.testing.assert_array_equal(np.asarray(vector), states.whole.gradient_for_slopes)
    with mg.CommandBuffer() as commands:
        gradient.encode(commands, gradients[1], sources[1], states[1])
    again = expected + reference.prelu_gradient_slopes(g[1], x[1])
    assert_within(states.whole.gradient_for_slopes, again, 2 * bound)

    class Stop(Exception):
        pass

    before = states.whole.gradient_for_slopes
    with pytest.raises(Stop), mg.CommandBuffer() as commands:
        gradient.encode(commands, gradients[1], sources[1], states[1])
        raise Stop
    np.testing.assert_array_equal(states.whole.gradient_for_slopes, before)


def test_the_gradient_for_slopes_takes_the_forward_clip_rectangle():
    generator = np.random.default_rng(6)
    x, g = (generator.standard_normal((1, 6, 7, 3)).astype(np.float32) for _ in range(2))
    descriptor = mg.NeuronDescriptor.prelu(generator.standard_normal(3))
    kernel, gradient = mg.Neuron(descriptor), mg.NeuronGradient(descriptor, computes_gradient_for_slopes=True)
    kernel.offset = mg.Offset(2, -1)
    kernel.clip_rect = mg.Region(mg.Origin(1, 2, 0), mg.Size(3, 4, 1))
    source = mg.Image.from_array(x)
    state = kernel.result_state(source, destination_image=mg.Image.from_array(g))
    with mg.CommandBuffer() as commands:
        gradient.encode(commands, mg.Image.from_array(g), source, state)
    cut = moved(g[:, 2:6, 1:4], 1, -2, 6, 7, "zero")
    magnitude = reference.prelu_gradient_slopes(np.abs(cut), -np.abs(x))
    assert_within(
        state.gradient_for_slopes,
        reference.prelu_gradient_slopes(cut, x),
        error_bound(np.float32, 42, magnitude, magnitude),
    )


def states(descriptor: mg.NeuronDescriptor, shape: tuple[int, ...] = (1, 3, 4, 5)) -> tuple[mg.Image, Any]:
    source = mg.Image.from_array(np.zeros(shape, np.float32))
    return source, mg.Neuron(descriptor).result_state(source, destination_image=mg.Image(source.descriptor))


def run_gradient(gradient: mg.NeuronGradient, descriptor: mg.NeuronDescriptor, shape=(1, 3, 4, 5)) -> None:
    source, state = states(descriptor, shape)
    with mg.CommandBuffer() as commands:
        gradient.encode(commands, mg.Image(source.descriptor), source, state)


def run_forward(kernel: mg.Neuron, shape=(1, 3, 4, 5)) -> None:
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, mg.Image.from_array(np.zeros(shape, np.float32)))


RELU = mg.NeuronDescriptor("relu", 0.1)
BAD = [
    (lambda: mg.NeuronDescriptor("swish"), mg.FormatError, "neuron_type is 'swish'.*relu"),
    (lambda: mg.NeuronDescriptor(16), mg.FormatError, "neuron_type is 16"),
    (lambda: mg.NeuronDescriptor(None), mg.FormatError, "neuron_type is None"),
    (lambda: mg.NeuronDescriptor("relu", "0.1"), mg.FormatError, "a is '0.1'.*number"),
    (lambda: mg.NeuronDescriptor("linear", 1, [2]), mg.FormatError, r"b is \[2\].*number"),
    (lambda: mg.NeuronDescriptor("relu", float("nan")), mg.GeometryError, "a is nan.*finite"),
    (lambda: mg.NeuronDescriptor("linear", 1, float("inf")), mg.GeometryError, "b is inf.*finite"),
    (lambda: mg.NeuronDescriptor("linear", 1e39), mg.GeometryError, "a is 1e\\+39.*finite"),
    (lambda: mg.NeuronDescriptor.prelu([1e39]), mg.GeometryError, "slopes that are not finite"),
    (lambda: mg.NeuronDescriptor("exponential", 1, 0, 0), mg.GeometryError, "EXPONENTIAL, is 0.0.*positive.*-1"),
    (lambda: mg.NeuronDescriptor("exponential", 1, 0, -2), mg.GeometryError, "EXPONENTIAL, is -2.0"),
    (lambda: mg.NeuronDescriptor("logarithm", 1, 0, 1), mg.GeometryError, "LOGARITHM, is 1.0.*not 1"),
    (lambda: mg.NeuronDescriptor("prelu"), mg.GeometryError, "data is None.*PRELU"),
    (lambda: mg.NeuronDescriptor("relu", data=[1.0]), mg.GeometryError, "data is given but RELU"),
    (lambda: mg.NeuronDescriptor.prelu([]), mg.GeometryError, r"data has shape \(0,\)"),
    (lambda: mg.NeuronDescriptor.prelu(np.ones((2, 2))), mg.GeometryError, r"data has shape \(2, 2\)"),
    (lambda: mg.NeuronDescriptor.prelu(["x"]), mg.FormatError, "data is .*numbers"),
    (lambda: mg.NeuronDescriptor.prelu([np.nan]), mg.GeometryError, "data.*not finite"),
    (lambda: mg.Neuron("relu"), mg.FormatError, "Neuron: neuron_descriptor is 'relu'"),
    (lambda: mg.NeuronGradient(None), mg.FormatError, "NeuronGradient: neuron_descriptor is None"),
    (lambda: run_forward(mg.NeuronPReLU([1, 2, 3])), mg.GeometryError, "NeuronPReLU: .*3 slopes but 5"),
    (
        lambda: mg.NeuronGradient(RELU, computes_gradient_for_slopes=True),
        mg.GeometryError,
        "computes_gradient_for_slopes is True but RELU",
    ),
    (
        lambda: run_gradient(mg.NeuronGradient(mg.NeuronDescriptor("relu", 0.2)), RELU),
        mg.StateError,
        "NeuronGradient: neuron_descriptor is .*0.2.*made with .*0.1",
    ),
    (
        lambda: run_gradient(mg.NeuronGradient(mg.NeuronDescriptor.prelu([1] * 5)), mg.NeuronDescriptor.prelu([2] * 5)),
        mg.StateError,
        "neuron_descriptor is .*made with",
    ),
]


@pytest.mark.parametrize("build, error, words", BAD)
def test_bad_input_is_refused(build, error, words):
    with pytest.raises(error, match=words):
        build()


def test_a_gradient_of_another_size_is_refused():
    source, state = states(RELU)
    other = mg.Image(replace(source.descriptor, width=5))
    with mg.CommandBuffer() as commands, pytest.raises(mg.GeometryError, match="source_gradient is 1x3x5x5 but"):
        mg.NeuronGradient(RELU).encode(commands, other, source, state)


def test_slope_gradients_of_two_open_command_buffers_are_refused():
    descriptor = mg.NeuronDescriptor.prelu([1] * 5)
    source, state = states(descriptor)
    gradient = mg.NeuronGradient(descriptor, computes_gradient_for_slopes=True)
    first, second = mg.CommandBuffer(), mg.CommandBuffer()
    incoming = mg.Image.from_array(np.zeros(source.shape, np.float32))
    gradient.encode(first, incoming, source, state)
    with pytest.raises(mg.StateError, match="before its command buffer was committed"):
        _ = state.gradient_for_slopes
    with pytest.raises(mg.StateError, match="another command buffer that has not been committed"):
        gradient.encode(second, incoming, source, state)
    first.commit()
    gradient.encode(second, incoming, source, state)
    second.commit()
    np.testing.assert_array_equal(state.gradient_for_slopes, np.zeros(5, np.float32))


def test_descriptors_compare_by_value_and_are_not_changed_by_their_data():
    data = np.array([0.5, 2.0], np.float32)
    descriptor = mg.NeuronDescriptor.prelu(data)
    data[0] = 9
    assert descriptor == mg.NeuronDescriptor.prelu([0.5, 2.0])
    assert descriptor != mg.NeuronDescriptor.prelu([0.5, 3.0])
    assert descriptor != mg.NeuronDescriptor("relu", 0.5)
    assert hash(descriptor) == hash(mg.NeuronDescriptor.prelu([0.5, 2.0]))
    assert mg.NeuronDescriptor("relu") == mg.NeuronDescriptor(mg.NeuronType.RELU, 0.0)


@pytest.mark.parametrize("start", [0, 4])
@pytest.mark.parametrize("name", ["tanh", "prelu"])
def test_results_that_exceed_the_caches(name, start):
    """They are written past the caches where a destination begins at a vector, and as others where it does not."""
    device = mg.default_device()
    if device.family != "cpu":
        pytest.skip("only CPUs have kernels that write past the caches")
    before = tunables(device.tuning)
    use_tunables(device.tuning, before.with_number("cached_bytes", 1 << 20))
    try:
        shape = (1, 1, 18725, 7)
        x, g = (np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) for seed in range(2))
        slopes = np.linspace(-1, 1, 7).astype(np.float32) if name == "prelu" else None
        descriptor = mg.NeuronDescriptor(mg.NeuronType[name.upper()], data=slopes)
        memory = np.full(x.size + 32, np.nan, np.float32)
        start += -memory.ctypes.data // 4 % 16
        end = start + x.size
        result = mg.Image.from_dlpack(memory[start:end].reshape(shape))
        source, _, state = encode(mg.Neuron(descriptor), x)
        with mg.CommandBuffer() as commands:
            mg.NeuronGradient(descriptor).encode(
                commands, mg.Image.from_array(g), source, state, destination_gradient=result
            )
    finally:
        use_tunables(device.tuning, before)
    a, b, c = descriptor.a, descriptor.b, descriptor.c
    wanted = reference.neuron_gradient(g.astype(np.float64), x, type=name, a=a, b=b, c=c, slopes=slopes)
    np.testing.assert_allclose(memory[start:end].reshape(shape), wanted, rtol=2e-6)
    assert np.isnan(memory[:start]).all()
    assert np.isnan(memory[end:]).all()


class TestTheShadersOfGPUs:
    @pytest.mark.parametrize("dtype", [np.float32, np.float16])
    def test_powers_of_exponent_0(self, dtype):
        check_powers_of_exponent_0(dtype)

    @each_kind
    @pytest.mark.parametrize("dtype", [np.float32, np.float16])
    @pytest.mark.parametrize("shape", [(1, 1, 1, 3), (2, 3, 5, 33), (3, 9, 11, 45), (2, 2, 3, 64)])
    def test_forward_and_gradient_match_the_reference(self, kind, dtype, shape):
        x, g = (np.random.default_rng(seed).standard_normal(shape).astype(dtype) for seed in (1, 2))
        slopes = np.linspace(-1, 1, shape[-1] + 3).astype(np.float32) if kind.name == "prelu" else None
        check_against_the_reference(kind, kind.descriptor(kind.parameters[0], slopes), x, g)

    @pytest.mark.parametrize("name", ["sigmoid", "tanh", "soft_plus", "soft_sign", "elu", "gelu", "hard_sigmoid"])
    def test_nothing_overflows_or_cancels(self, name):
        test_nothing_overflows_or_cancels(name)

    @pytest.mark.parametrize("dtype", [np.float32, np.float16])
    @pytest.mark.parametrize("count", [1, 4, 7, 1024, 2049, 6000])
    @pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name in ("relu", "prelu")], ids=lambda k: k.name)
    def test_every_element_is_written_and_no_other(self, kind, count, dtype):
        x = np.ones((1, 1, count, 3), dtype)
        descriptor = kind.descriptor(kind.parameters[0], np.ones(3) if kind.name == "prelu" else None)
        source, _, state = encode(mg.Neuron(descriptor), x)
        encode_gradient(mg.NeuronGradient(descriptor), x, source, state)

    @pytest.mark.parametrize("shape", [(2, 3, 3, 40), (1, 1, 1, 40)])
    def test_views_that_are_no_runs_of_vectors(self, shape):
        """Pixels apart from each other, and a pixel that begins in the middle of a vector."""
        storage = mg.Image.from_array(np.random.default_rng(3).standard_normal(shape).astype(np.float16))
        with mg.CommandBuffer() as commands:
            y = mg.NeuronReLU(0.5).encode(commands, storage.sub_image(4, 32))
        x = np.asarray(storage)[..., 4:36]
        np.testing.assert_array_equal(np.asarray(y), np.where(x >= 0, x, x / 2))
