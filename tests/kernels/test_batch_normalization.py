"""Batch normalization against the float64 reference: statistics, forward, both gradients, states and data sources."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import gpu_forms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, reference
from mpsgrad.devices import Dispatch
from mpsgrad.kernels.batch_normalization_dispatch import plan_at_once, plan_tiles, takes_singles
from mpsgrad.neighbouring_dispatches import with_neighbours_joined
from mpsgrad.testing import (
    FencedImage,
    assert_within,
    batch_sizes,
    channel_counts,
    channel_formats,
    error_bound,
    values,
)
from mpsgrad.tunables import set_tunables, tunables

EPS = float(np.finfo(np.float32).eps)
FLT_MIN = float(np.finfo(np.float32).tiny)
NEURONS: dict[str | None, tuple[float, ...]] = {
    None: (),
    "relu": (0.25,),
    "linear": (0.5, -1.0),
    "sigmoid": (),
    "hard_sigmoid": (0.25, 0.5),
    "tanh": (),
    "absolute": (),
    "soft_plus": (),
    "soft_sign": (),
    "elu": (),
    "prelu": (),
    "relun": (0.5, 1.5),
    "power": (0.25, 4.0, 2.0),
    "exponential": (0.5,),
    "logarithm": (0.125, 9.0),
    "gelu": (),
    "none": (),
}


@dataclass
class Case:
    """A batch with its parameters, the kernels, and the reference's arguments."""

    x: np.ndarray
    g: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    epsilon: float = 1e-3
    neuron: mg.NeuronDescriptor | None = None

    @classmethod
    def draw(cls, shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0, **arguments: Any) -> Case:
        generator = np.random.default_rng(seed)
        x, g = (generator.standard_normal(shape).astype(dtype) for _ in range(2))
        gamma = generator.uniform(0.5, 1.5, shape[-1]).astype(np.float32)
        return cls(x, g, gamma, generator.standard_normal(shape[-1]).astype(np.float32), **arguments)

    @property
    def data_source(self) -> mg.BatchNormalizationDataSource:
        return mg.BatchNormalizationDataSource.from_arrays(self.gamma, self.beta, epsilon=self.epsilon)

    def kernel(self) -> mg.BatchNormalization:
        return mg.BatchNormalization(self.data_source, fused_neuron_descriptor=self.neuron)

    def statistics_gradient(self) -> mg.BatchNormalizationStatisticsGradient:
        return mg.BatchNormalizationStatisticsGradient(fused_neuron_descriptor=self.neuron)

    def gradient(self) -> mg.BatchNormalizationGradient:
        return mg.BatchNormalizationGradient(fused_neuron_descriptor=self.neuron)

    @property
    def fused(self) -> dict[str, Any] | None:
        if self.neuron is None:
            return None
        d = self.neuron
        slopes = None if d.data is None else d.data[: self.x.shape[-1]]
        return {"type": d.neuron_type.name.lower(), "a": d.a, "b": d.b, "c": d.c, "slopes": slopes}

    def expected(self, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, ...]:
        """y, dx, gradient for gamma and for beta."""
        arguments = (self.x, mean, variance, self.gamma, self.beta, float(np.float32(self.epsilon)), self.fused)
        return reference.batch_normalization(*arguments), *reference.batch_normalization_gradient(self.g, *arguments)


def batch(array: np.ndarray, apart: bool = False) -> mg.ImageBatch:
    if apart:
        return mg.ImageBatch([mg.Image.from_array(image) for image in array])
    return mg.ImageBatch.from_array(array)


@dataclass
class Outcome:
    state: mg.BatchNormalizationState
    y: np.ndarray
    dx: np.ndarray


def run(case: Case) -> Outcome:
    """All five steps on one command buffer, with fenced destinations."""
    source, gradient = mg.Image.from_array(case.x), mg.Image.from_array(case.g)
    y, dx = FencedImage.of(source.descriptor), FencedImage.of(source.descriptor)
    kernel = case.kernel()
    state = kernel.result_state(source, destination_image=y.image)
    with mg.CommandBuffer() as commands:
        mg.BatchNormalizationStatistics().encode_batch(commands, source.batch_representation(), state)
        kernel.encode(commands, source, batch_normalization_state=state, destination_image=y.image)
        case.statistics_gradient().encode_batch(
            commands, gradient.batch_representation(), source.batch_representation(), state
        )
        case.gradient().encode(commands, gradient, source, state, destination_gradient=dx.image)
    return Outcome(state, y.check(), dx.check())


def check(case: Case, outcome: Outcome) -> None:
    """Everything against the reference.

    Statistics against those in float64; the rest against the reference with the state's own mean and variance, whose
    rounding to float32 is thereby out of the question.
    """
    mean, variance = reference.batch_normalization_statistics(case.x)
    pixels = case.x[..., 0].size
    axes = (0, 1, 2)
    spread = np.abs(case.x - mean).mean(axes)
    # Deviations are summed from a point inside the data; the mean itself is rounded, and chunks' means with it.
    mean_bound = error_bound(np.float32, pixels, spread, mean) + 4 * EPS * np.abs(mean)
    assert_within(outcome.state.mean, mean, mean_bound, name="mean")
    shift = mean_bound + EPS * np.abs(mean)
    variance_bound = error_bound(np.float32, pixels, variance, variance) + 2 * shift * spread + shift**2
    assert_within(outcome.state.variance, variance, variance_bound, name="variance")

    m, v = outcome.state.mean.astype(np.float64), outcome.state.variance.astype(np.float64)
    y, dx, dgamma, dbeta = case.expected(m, v)
    inverse = 1 / np.sqrt(v + np.float32(case.epsilon))
    xhat = np.abs(case.x - m) * inverse
    gamma, beta = np.abs(case.gamma), np.abs(case.beta)
    z = gamma * xhat + beta
    fused = case.fused
    # f and f' carry the error of z, which is a few eps of |gamma xhat| + |beta|, by a slope of at most `steep`.
    steep = 1.0 if fused is None else steepness(case, m, inverse)
    z_error = 6 * EPS * z
    dtype = case.x.dtype
    y_bound = error_bound(dtype, 1, np.abs(y), y, function_ulps=24) + steep * z_error
    settled = ~near_a_kink(case, m, inverse, z_error)
    assert_within(outcome.y, y, y_bound, name="result")

    g = np.abs(case.g.astype(np.float64))
    slope = np.ones_like(y) if fused is None else np.abs(derivative(case, m, inverse))
    gz = g * slope
    gz_error = g * (26 * EPS * slope + curvature(case, m, inverse) * z_error)
    unsettled = np.where(settled, 0.0, g * jump(case))
    beta_bound = error_bound(np.float32, pixels, gz.sum(axes), dbeta) + (gz_error + unsettled).sum(axes)
    assert_within(outcome.state.gradient_for_beta, dbeta, beta_bound, name="gradient for beta")
    gamma_bound = error_bound(np.float32, pixels + 4, (gz * xhat).sum(axes), dgamma)
    gamma_bound += ((gz_error + unsettled) * xhat).sum(axes)
    assert_within(outcome.state.gradient_for_gamma, dgamma, gamma_bound, name="gradient for gamma")

    scale = gamma * inverse
    magnitude = scale * (gz + (np.abs(dbeta) + xhat * np.abs(dgamma)) / pixels)
    dx_bound = error_bound(dtype, 6, magnitude, dx) + scale * (
        gz_error + unsettled + (beta_bound + xhat * gamma_bound) / pixels
    )
    assert_within(outcome.dx, dx, dx_bound, name="source gradient")


def pre_activation(case: Case, mean: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    return case.gamma.astype(np.float64) * (case.x - mean) * inverse + case.beta


def derivative(case: Case, mean: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    return reference.neuron_derivative(pre_activation(case, mean, inverse), **case.fused)


def steepness(case: Case, mean: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """|f'| near z, with room for a kink."""
    return np.abs(derivative(case, mean, inverse)) + jump(case)


def curvature(case: Case, mean: np.ndarray, inverse: np.ndarray) -> Any:
    """|f''| near z, by differences; kinks are dealt with apart."""
    if case.fused is None:
        return 0.0
    z, h = pre_activation(case, mean, inverse), 1e-4
    up, down = (reference.neuron_derivative(z + s, **case.fused) for s in (h, -h))
    return np.where(near(case, z, 1.1 * h), 0.0, np.abs(up - down) / (2 * h)) + 0.01


KINKS = {"relu": (0.0,), "prelu": (0.0,), "absolute": (0.0,), "elu": (0.0,), "hard_sigmoid": (-2.0, 2.0)}
KINKS["relun"] = (0.0, 1.5)
JUMPS = {"relu": 0.75, "prelu": 3.0, "absolute": 2.0, "elu": 0.0, "hard_sigmoid": 0.25, "relun": 1.0}


def jump(case: Case) -> float:
    """How much f' jumps at a kink."""
    return 0.0 if case.fused is None else JUMPS.get(case.fused["type"], 0.0)


def near(case: Case, z: np.ndarray, distance: Any) -> np.ndarray:
    kinks = () if case.fused is None else KINKS.get(case.fused["type"], ())
    result = np.zeros(z.shape, bool)
    for kink in kinks:
        result |= np.abs(z - kink) <= distance
    return result


def near_a_kink(case: Case, mean: np.ndarray, inverse: np.ndarray, distance: np.ndarray) -> np.ndarray:
    return near(case, pre_activation(case, mean, inverse), distance)


@given(data=st.data())
@settings(max_examples=40)
def test_everything_matches_the_reference(data):
    shape = (data.draw(batch_sizes()), data.draw(st.integers(1, 30)), data.draw(st.integers(1, 30)))
    shape = (*shape, data.draw(channel_counts()))
    dtype = data.draw(channel_formats()).dtype
    x = data.draw(values(shape, dtype, ties=data.draw(st.booleans())))
    case = Case.draw(shape, dtype, seed=data.draw(st.integers(0, 99)), epsilon=data.draw(st.sampled_from([1e-3, 0.1])))
    case.x = x
    check(case, run(case))


@pytest.mark.parametrize("name", NEURONS, ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 4, 37), (2, 8, 7, 5), (2, 3, 5, 64)])
def test_fused_neurons(name, shape):
    if name is None:
        neuron = None
    else:
        slopes = np.linspace(-1, 1, shape[-1]) if name == "prelu" else None
        neuron = mg.NeuronDescriptor(name, *NEURONS[name], data=slopes)
    case = Case.draw(shape, seed=len(str(name)), neuron=neuron)
    check(case, run(case))


@pytest.mark.parametrize("neuron", [None, mg.NeuronDescriptor("relu", 0.25)], ids=["plain", "relu"])
@pytest.mark.parametrize("shape", [(2, 40, 41, 3), (3, 31, 33, 64), (2, 45, 47, 37)])
def test_halves_of_images_of_many_pixels(shape, neuron):
    """CPUs take them by eights: small ones in one kernel, and pixels that no row has on their own."""
    case = Case.draw(shape, np.float16, seed=13, neuron=neuron)
    check(case, run(case))


@pytest.mark.parametrize("shape", [(2, 31, 33, 64), (2, 40, 40, 3), (1, 64, 64, 33), (4, 1, 1, 300), (1, 1, 1, 40)])
@pytest.mark.parametrize("mean, deviation", [(1e3, 1.0), (-1e4, 0.5), (0.0, 1e-3), (1.0, 100.0)])
def test_a_mean_far_above_the_deviation_costs_no_accuracy(shape, mean, deviation):
    case = Case.draw(shape, seed=7)
    case.x = (mean + deviation * case.x).astype(np.float32)
    outcome = run(case)
    check(case, outcome)
    exact_mean, exact_variance = reference.batch_normalization_statistics(case.x)
    if case.x[..., 0].size > 1:
        np.testing.assert_allclose(outcome.state.variance, exact_variance, rtol=1e-5)
    np.testing.assert_allclose(outcome.state.mean, exact_mean, rtol=1e-6, atol=1e-6 * deviation)


def test_the_first_pixels_do_not_decide_the_accuracy():
    """A shift by the first pixel alone would fail here: it is far from all others."""
    case = Case.draw((2, 30, 30, 32), seed=8)
    case.x = (1e4 + case.x).astype(np.float32)
    case.x[0, 0, 0] = 0
    check(case, run(case))
    mean, variance = reference.batch_normalization_statistics(case.x)
    np.testing.assert_allclose(run(case).state.variance, variance, rtol=1e-5)


@pytest.mark.parametrize("value", [0.1, 1e6, -3e-5, 0.0])
@pytest.mark.parametrize("shape", [(3, 20, 21, 40), (1, 50, 50, 3)])
def test_a_constant_channel_has_variance_zero_and_gives_beta_even_with_the_smallest_epsilon(value, shape):
    case = Case.draw(shape, epsilon=FLT_MIN)
    case.x[...] = value
    case.gamma *= 100
    outcome = run(case)
    state = outcome.state
    np.testing.assert_array_equal(state.mean, case.x[0, 0, 0])
    np.testing.assert_array_equal(state.variance, np.zeros(shape[-1]))
    np.testing.assert_array_equal(outcome.y, np.broadcast_to(case.beta, shape))
    np.testing.assert_array_equal(state.gradient_for_gamma, np.zeros(shape[-1]))
    assert np.isfinite(outcome.dx).all()


def test_worked_case():
    x = np.array([1, 2, 3, 5], np.float32).reshape(2, 1, 2, 1)
    g = np.array([1, -1, 2, 3], np.float32).reshape(2, 1, 2, 1)
    case = Case(x, g, np.array([2], np.float32), np.array([0.5], np.float32))
    outcome = run(case)
    np.testing.assert_allclose(outcome.state.mean, [2.75], rtol=1e-6)
    np.testing.assert_allclose(outcome.state.variance, [2.1875], rtol=1e-6)
    np.testing.assert_allclose(outcome.y.ravel(), [-1.865891, -0.513953, 0.837984, 3.54186], rtol=1e-5)
    np.testing.assert_allclose(outcome.state.gradient_for_gamma, [4.224806], rtol=1e-5)
    np.testing.assert_allclose(outcome.state.gradient_for_beta, [5], rtol=1e-6)
    np.testing.assert_allclose(outcome.dx.ravel(), [1.351166, -2.317939, 0.772646, 0.194127], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("parts", [[4, 1, 3], [1] * 8, [8]])
@pytest.mark.parametrize("several", [False, True], ids=["one command buffer", "several"])
@pytest.mark.parametrize("apart", [False, True], ids=["joined", "apart"])
def test_phases_accumulate_over_parts_of_the_batch(parts, several, apart):
    case = Case.draw((8, 5, 7, 33), seed=9, neuron=mg.NeuronDescriptor("relu", 0.25))
    case.x = (case.x + 50).astype(np.float32)
    bounds = np.cumsum([0, *parts])
    slices = [slice(a, b) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    kernel = case.kernel()
    whole = mg.Image.from_array(case.x)
    state = kernel.result_state(whole)
    sources = [batch(case.x[part], apart) for part in slices]
    gradients = [batch(case.g[part], apart) for part in slices]
    results: dict[str, list[Any]] = {"y": [], "dx": []}

    def step(encode):
        if several:
            for index in range(len(parts)):
                with mg.CommandBuffer() as commands:
                    encode(commands, index)
        else:
            with mg.CommandBuffer() as commands:
                for index in range(len(parts)):
                    encode(commands, index)

    statistics, sums, gradient = mg.BatchNormalizationStatistics(), case.statistics_gradient(), case.gradient()
    step(lambda commands, i: statistics.encode_batch(commands, sources[i], state))
    step(
        lambda commands, i: results["y"].append(
            kernel.encode_batch(commands, sources[i], batch_normalization_state=state)
        )
    )
    step(lambda commands, i: sums.encode_batch(commands, gradients[i], sources[i], state))
    step(lambda commands, i: results["dx"].append(gradient.encode_batch(commands, gradients[i], sources[i], state)))
    y, dx = (np.concatenate([np.asarray(part) for part in results[name]]) for name in ("y", "dx"))
    check(case, Outcome(state, y, dx))


def test_batches_and_repetitions_give_the_same_bits():
    case = Case.draw((3, 9, 8, 37), np.float16, seed=10, neuron=mg.NeuronDescriptor("relu", 0.25))
    first = run(case)
    for _ in range(20):
        again = run(case)
        np.testing.assert_array_equal(again.y, first.y)
        np.testing.assert_array_equal(again.dx, first.dx)
        for name in ("mean", "variance", "gradient_for_gamma", "gradient_for_beta"):
            np.testing.assert_array_equal(getattr(again.state, name), getattr(first.state, name))
    kernel, gradient = case.kernel(), case.gradient()
    joined, apart = batch(case.x), batch(case.x, apart=True)
    incoming = batch(case.g)
    state = kernel.result_state(mg.Image.from_array(case.x))
    with mg.CommandBuffer() as commands:
        mg.BatchNormalizationStatistics().encode_batch(commands, joined, state)
        images = [kernel.encode(commands, image, batch_normalization_state=state) for image in apart]
        results = kernel.encode_batch(commands, apart, batch_normalization_state=state)
        case.statistics_gradient().encode_batch(commands, incoming, joined, state)
        gradients = [gradient.encode(commands, g, x, state) for g, x in zip(incoming, apart, strict=True)]
        together = gradient.encode_batch(commands, incoming, apart, state)
    for index in range(3):
        np.testing.assert_array_equal(np.asarray(images[index])[0], first.y[index])
        np.testing.assert_array_equal(np.asarray(gradients[index])[0], first.dx[index])
    np.testing.assert_array_equal(np.asarray(results), first.y)
    np.testing.assert_array_equal(np.asarray(together), first.dx)


@pytest.mark.parametrize("neuron", [None, mg.NeuronDescriptor("prelu", data=np.linspace(-1, 1, 120))])
def test_images_that_caches_do_not_hold_give_the_same_bits(neuron):
    """CPUs add them up in the order of memory, and others some columns after the other."""
    case, device = Case.draw((2, 31, 41, 120), np.float32, neuron=neuron), mg.default_device()
    before, found = tunables(device.tuning), []
    try:
        for cached_bytes in (before.cached_bytes, 1 << 20):
            set_tunables(device.tuning, before.with_number("cached_bytes", cached_bytes))
            found.append(run(case))
    finally:
        set_tunables(device.tuning, before)
    held, not_held = found
    np.testing.assert_array_equal(held.dx, not_held.dx)
    np.testing.assert_array_equal(held.state.gradient_for_gamma, not_held.state.gradient_for_gamma)
    check(case, held)


def test_automatic_encodes_equal_manual_ones():
    case = Case.draw((2, 4, 5, 8), seed=11)
    first = run(case)
    source, incoming = mg.Image.from_array(case.x), mg.Image.from_array(case.g)
    kernel = case.kernel()
    state = kernel.result_state(source)
    with mg.CommandBuffer() as commands:
        mg.BatchNormalizationStatistics().encode_batch(commands, source.batch_representation(), state)
        y = kernel.encode(commands, source, batch_normalization_state=state)
        case.statistics_gradient().encode_batch(
            commands, incoming.batch_representation(), source.batch_representation(), state
        )
        dx = case.gradient().encode(commands, incoming, source, state)
    np.testing.assert_array_equal(np.asarray(y), first.y)
    np.testing.assert_array_equal(np.asarray(dx), first.dx)


@given(data=st.data())
def test_inference_uses_the_statistics_of_the_data_source(data):
    channels = data.draw(channel_counts())
    dtype = data.draw(channel_formats()).dtype
    shape = (data.draw(batch_sizes()), data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9)), channels)
    x = data.draw(values(shape, dtype))
    mean, gamma, beta = (data.draw(values((channels,), np.float32)) for _ in range(3))
    variance = data.draw(values((channels,), np.float32)) ** 2
    given_arrays = {"gamma": gamma, "beta": beta, "mean": mean, "variance": variance}
    present = {name: data.draw(st.booleans()) for name in given_arrays}
    arrays = {name: array if present[name] else None for name, array in given_arrays.items()}
    source = mg.BatchNormalizationDataSource.from_arrays(
        **arrays, number_of_feature_channels=channels, epsilon=1e-3
    )
    kernel = mg.BatchNormalization(source)
    with mg.CommandBuffer() as commands:
        y = kernel.encode(commands, mg.Image.from_array(x))
    defaults = {"gamma": 1.0, "beta": 0.0, "mean": 0.0, "variance": 1.0}
    full = {name: np.full(channels, defaults[name]) if a is None else a for name, a in arrays.items()}
    epsilon = float(np.float32(1e-3))
    expected = reference.batch_normalization(
        x, full["mean"], full["variance"], full["gamma"], full["beta"], epsilon
    )
    scale = np.abs(full["gamma"]) / np.sqrt(full["variance"] + epsilon)
    magnitude = np.abs(x - full["mean"]) * scale + np.abs(full["beta"])
    assert_within(np.asarray(y), expected, error_bound(dtype, 6, magnitude, expected))
    with mg.CommandBuffer() as commands:
        parts = kernel.encode_batch(commands, batch(x, apart=True))
    np.testing.assert_array_equal(np.asarray(parts), np.asarray(y))


@pytest.mark.parametrize("offset", [(0, 0), (2, -1), (-3, 1), (9, 0)])
@pytest.mark.parametrize("neuron", [None, mg.NeuronDescriptor("relu", 0.25)], ids=["plain", "relu"])
def test_offsets_clip_rect_and_channel_ranges(offset, neuron):
    """Result pixels outside the clip rectangle have no gradient; reads outside the source are zeros."""
    generator = np.random.default_rng(12)
    x = generator.standard_normal((2, 5, 6, 12)).astype(np.float32)
    before, g = (generator.standard_normal((2, 7, 6, 16)).astype(np.float32) for _ in range(2))
    inner = Case.draw((2, 5, 6, 8), seed=13, neuron=neuron)
    inner.x = np.ascontiguousarray(x[..., 4:])
    kernel, sums, gradient = inner.kernel(), inner.statistics_gradient(), inner.gradient()
    dx_offset, dy_offset = offset
    kernel.offset = mg.Offset(dx_offset, dy_offset)
    kernel.clip_rect = mg.Region(mg.Origin(1, 2, 0), mg.Size(4, 5, 2))
    kernel.source_feature_channel_offset = 4
    kernel.destination_feature_channel_offset = 8
    statistics = mg.BatchNormalizationStatistics()
    statistics.source_feature_channel_offset = 4
    source, result, incoming = mg.Image.from_array(x), mg.Image.from_array(before), mg.Image.from_array(g)
    state = kernel.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        statistics.encode_batch(commands, source.batch_representation(), state)
        kernel.encode(commands, source, batch_normalization_state=state, destination_image=result)
        sums.encode_batch(commands, incoming.batch_representation(), source.batch_representation(), state)
        dx = gradient.encode(commands, incoming, source, state)

    def moved(array, dy, dx, height, width):
        taken = np.zeros((array.shape[0], height, width, array.shape[3]), np.float32)
        for row in range(height):
            for column in range(width):
                if 0 <= row + dy < array.shape[1] and 0 <= column + dx < array.shape[2]:
                    taken[:, row, column] = array[:, row + dy, column + dx]
        return taken

    m, v = state.mean.astype(np.float64), state.variance.astype(np.float64)
    read = Case(moved(inner.x, dy_offset, dx_offset, 5, 4), g[:, 2:, 1:5, 8:], inner.gamma, inner.beta, neuron=neuron)
    y = read.expected(m, v)[0]
    expected = before.astype(np.float64)
    expected[:, 2:7, 1:5, 8:] = y
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-5)
    outside = np.ones(before.shape, bool)
    outside[:, 2:7, 1:5, 8:] = False
    np.testing.assert_array_equal(np.asarray(result)[outside], before[outside])

    inner.g = moved(g[:, 2:7, 1:5, 8:], -dy_offset, -dx_offset, 5, 6)
    _, dx_expected, dgamma, dbeta = inner.expected(m, v)
    np.testing.assert_allclose(state.gradient_for_gamma, dgamma, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(state.gradient_for_beta, dbeta, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.asarray(dx)[..., 4:], dx_expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(dx)[..., :4], np.zeros((2, 5, 6, 4)))


# States


def encode_statistics(case: Case, commands: mg.CommandBuffer, state: Any, scale: float = 1.0) -> None:
    mg.BatchNormalizationStatistics().encode_batch(commands, batch((scale * case.x).astype(case.x.dtype)), state)


def test_accessors_are_none_until_something_was_produced():
    case = Case.draw((2, 3, 4, 5))
    kernel = case.kernel()
    source = mg.Image.from_array(case.x)
    state = kernel.result_state(source)
    assert state.batch_normalization is kernel
    np.testing.assert_array_equal(state.gamma, case.gamma)
    np.testing.assert_array_equal(state.beta, case.beta)
    names = ("mean", "variance", "gradient_for_gamma", "gradient_for_beta")
    assert [getattr(state, name) for name in names] == [None] * 4
    with mg.CommandBuffer() as commands:
        encode_statistics(case, commands, state)
        with pytest.raises(mg.StateError, match="before its command buffer was committed"):
            _ = state.mean
    assert state.mean is not None and state.variance is not None
    assert state.gradient_for_gamma is None and state.gradient_for_beta is None
    with pytest.raises(mg.StateError, match="no gradients yet"):
        _ = state.gradient_vectors
    with mg.CommandBuffer() as commands:
        case.statistics_gradient().encode_batch(commands, batch(case.g), batch(case.x), state)
    for vector, name in zip(state.gradient_vectors, names[2:], strict=True):
        np.testing.assert_array_equal(np.asarray(vector), getattr(state, name))
    for index, name in enumerate(("gamma", "beta", *names)):
        values = state.resource(index).read(0, 4 * 5).view(np.float32)
        np.testing.assert_array_equal(values, getattr(state, name))
    state.reset()
    assert [getattr(state, name) for name in names] == [None] * 4


def test_a_state_starts_anew_once_it_was_used():
    """Statistics after the forward encode, and gradients after the data gradient, belong to the next batch."""
    first, second = Case.draw((2, 3, 4, 5), seed=1), Case.draw((2, 3, 4, 5), seed=2)
    second.gamma, second.beta = first.gamma, first.beta
    kernel, sums, gradient = first.kernel(), first.statistics_gradient(), first.gradient()
    state = kernel.result_state(mg.Image.from_array(first.x))
    for case in (first, second, first):
        source, incoming = mg.Image.from_array(case.x), mg.Image.from_array(case.g)
        with mg.CommandBuffer() as commands:
            mg.BatchNormalizationStatistics().encode_batch(commands, source.batch_representation(), state)
            y = kernel.encode(commands, source, batch_normalization_state=state)
            for _ in range(2):
                sums.encode_batch(commands, incoming.batch_representation(), source.batch_representation(), state)
                dx = gradient.encode(commands, incoming, source, state)
        check(case, Outcome(state, np.asarray(y), np.asarray(dx)))


def test_without_use_statistics_accumulate_until_reset():
    case = Case.draw((2, 3, 4, 5), seed=3)
    state = case.kernel().result_state(mg.Image.from_array(case.x))
    with mg.CommandBuffer() as commands:
        encode_statistics(case, commands, state)
        encode_statistics(case, commands, state, 3.0)
    both = np.concatenate([case.x, 3 * case.x])
    mean, variance = reference.batch_normalization_statistics(both)
    np.testing.assert_allclose(state.variance, variance, rtol=1e-5)
    state.reset()
    with mg.CommandBuffer() as commands:
        encode_statistics(case, commands, state)
    mean, variance = reference.batch_normalization_statistics(case.x)
    np.testing.assert_allclose(state.mean, mean, atol=1e-6)
    np.testing.assert_allclose(state.variance, variance, rtol=1e-5)


def test_discarded_work_counts_for_nothing():
    case = Case.draw((2, 3, 4, 5), seed=4)
    state = case.kernel().result_state(mg.Image.from_array(case.x))
    with mg.CommandBuffer() as commands:
        encode_statistics(case, commands, state)

    class Stop(Exception):
        pass

    with pytest.raises(Stop), mg.CommandBuffer() as commands:
        encode_statistics(case, commands, state, 9.0)
        raise Stop
    with mg.CommandBuffer() as commands:
        encode_statistics(case, commands, state, 3.0)
    mean, variance = reference.batch_normalization_statistics(np.concatenate([case.x, 3 * case.x]))
    np.testing.assert_allclose(state.mean, mean, atol=1e-6)
    np.testing.assert_allclose(state.variance, variance, rtol=1e-5)


def test_two_open_command_buffers_are_refused():
    case = Case.draw((2, 3, 4, 5))
    kernel, source, incoming = case.kernel(), batch(case.x), batch(case.g)
    state = kernel.result_state(source[0])
    first, second = mg.CommandBuffer(), mg.CommandBuffer()
    encode_statistics(case, first, state)
    words = "collected in another command buffer that has not been committed"
    with pytest.raises(mg.StateError, match=f"BatchNormalizationStatistics: statistics are {words}"):
        encode_statistics(case, second, state)
    with pytest.raises(mg.StateError, match=f"BatchNormalization: statistics are {words}"):
        kernel.encode_batch(second, source, batch_normalization_state=state)
    first.commit()
    kernel.encode_batch(second, source, batch_normalization_state=state)
    case.statistics_gradient().encode_batch(second, incoming, source, state)
    third = mg.CommandBuffer()
    with pytest.raises(mg.StateError, match=f"BatchNormalizationGradient: gradients are {words}"):
        case.gradient().encode_batch(third, incoming, source, state)
    second.commit()
    case.gradient().encode_batch(third, incoming, source, state)
    third.commit()
    third.wait_until_completed()


def test_temporary_states_count_their_reads():
    case = Case.draw((2, 3, 4, 5), seed=5)
    expected = run(case)
    kernel = case.kernel()
    for apart in (False, True):
        source, incoming = batch(case.x, apart), batch(case.g, apart)
        with mg.CommandBuffer() as commands:
            state = kernel.temporary_result_state(commands, source[0])
            assert state.is_temporary and state.read_count == 1
            state.read_count = 4
            mg.BatchNormalizationStatistics().encode_batch(commands, source, state)
            assert state.read_count == 3
            y = kernel.encode_batch(commands, source, batch_normalization_state=state)
            assert state.read_count == 2
            case.statistics_gradient().encode_batch(commands, incoming, source, state)
            assert state.read_count == 1
            with pytest.raises(mg.StateError, match="no CPU access"):
                _ = state.mean
            dx = case.gradient().encode_batch(commands, incoming, source, state)
            assert state.read_count == 0
            with pytest.raises(mg.StateError, match="read_count 0"):
                mg.BatchNormalizationStatistics().encode_batch(commands, source, state)
        np.testing.assert_allclose(np.asarray(y), expected.y, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(np.asarray(dx), expected.dx, rtol=1e-5, atol=1e-5)


def test_the_gradient_uses_the_parameters_of_the_forward_encode():
    """Gamma, beta and epsilon may change between the forward encode and the backward one."""
    case = Case.draw((2, 3, 4, 5), seed=6)
    data_source = case.data_source
    kernel = mg.BatchNormalization(data_source)
    source, incoming = mg.Image.from_array(case.x), mg.Image.from_array(case.g)
    state = kernel.result_state(source)
    expected = run(case)
    with mg.CommandBuffer() as commands:
        mg.BatchNormalizationStatistics().encode_batch(commands, source.batch_representation(), state)
        y = kernel.encode(commands, source, batch_normalization_state=state)
        data_source.gamma[...] = 9
        kernel.reload_gamma_and_beta_from_data_source()
        kernel.epsilon = 5.0
        case.statistics_gradient().encode_batch(
            commands, incoming.batch_representation(), source.batch_representation(), state
        )
        dx = case.gradient().encode(commands, incoming, source, state)
    assert state.epsilon == case.epsilon
    np.testing.assert_array_equal(np.asarray(y), expected.y)
    np.testing.assert_array_equal(np.asarray(dx), expected.dx)


# Data sources and parameters


class Source(mg.BatchNormalizationDataSource):
    """A data source that counts its loads and purges, and has no epsilon of its own."""

    label = "counting"

    def __init__(self, gamma, loads=True):
        self._gamma, self._loads, self.calls = gamma, loads, []

    @property
    def number_of_feature_channels(self):
        return len(self._gamma)

    @property
    def gamma(self):
        assert self.calls[-1] == "load"
        return self._gamma

    def load(self):
        self.calls.append("load")
        return self._loads

    def purge(self):
        self.calls.append("purge")


def test_a_data_source_is_loaded_read_and_purged():
    source = Source(np.ones(4, np.float32))
    kernel = mg.BatchNormalization(source)
    assert source.calls == ["load", "purge"]
    assert kernel.epsilon == FLT_MIN and kernel.number_of_feature_channels == 4 and kernel.data_source is source
    source._gamma = np.full(4, 2, np.float32)
    x = np.ones((1, 1, 1, 4), np.float32)

    def infer():
        with mg.CommandBuffer() as commands:
            return kernel.encode(commands, mg.Image.from_array(x))

    np.testing.assert_array_equal(np.asarray(infer()), x)
    kernel.reload_gamma_and_beta_from_data_source()
    np.testing.assert_array_equal(np.asarray(infer()), 2 * x)
    kernel.reload_mean_and_variance_from_data_source()
    assert source.calls == ["load", "purge"] * 3
    with pytest.raises(mg.StateError, match=r"'counting' could not load \(load\(\) gave False\)"):
        mg.BatchNormalization(Source(np.ones(4, np.float32), loads=False))
    source._gamma = np.ones(5, np.float32)
    with pytest.raises(mg.GeometryError, match="has 5 feature channels now but the kernel 4"):
        kernel.reload_gamma_and_beta_from_data_source()


def test_parameters_reloaded_on_the_device():
    generator = np.random.default_rng(14)
    gamma, beta, mean = (generator.standard_normal(70).astype(np.float32) for _ in range(3))
    variance = mean**2
    x = generator.standard_normal((2, 3, 4, 70)).astype(np.float32)
    image = mg.Image.from_array(x)
    plain = mg.BatchNormalization(mg.BatchNormalizationDataSource.from_arrays(gamma, beta, mean, variance, epsilon=0.1))
    kernel = mg.BatchNormalization(
        mg.BatchNormalizationDataSource.from_arrays(number_of_feature_channels=70, epsilon=0.1)
    )
    with mg.CommandBuffer() as commands:
        expected = plain.encode(commands, image)
        before = kernel.encode(commands, image)
        kernel.reload_gamma_and_beta_with_command_buffer(
            commands, mg.NormalizationGammaAndBetaState.from_arrays(gamma, beta)
        )
        statistics = mg.NormalizationMeanAndVarianceState.from_arrays(mean, variance)
        kernel.reload_mean_and_variance_with_command_buffer(commands, statistics)
        after = kernel.encode(commands, image)
    np.testing.assert_array_equal(np.asarray(after), np.asarray(expected))
    assert not np.array_equal(np.asarray(before), np.asarray(expected))
    # The kernel holds a copy.
    statistics._write(0, 0 * mean)
    with mg.CommandBuffer() as commands:
        again = kernel.encode(commands, image)
    np.testing.assert_array_equal(np.asarray(again), np.asarray(expected))


def test_parameters_from_temporary_states_that_a_kernel_writes():
    x = np.ones((1, 1, 1, 6), np.float32)
    kernel = mg.BatchNormalization(mg.BatchNormalizationDataSource.from_arrays(number_of_feature_channels=6))
    gradient = mg.Vector.from_array(np.full(6, -1, np.float32))
    optimizer = mg.OptimizerStochasticGradientDescent.with_learning_rate(0.5)
    with mg.CommandBuffer() as commands:
        state = mg.NormalizationGammaAndBetaState.temporary(commands, 6)
        for vector in state.parameter_vectors:
            optimizer.encode(
                commands,
                input_gradient_vector=gradient,
                input_values_vector=mg.Vector.from_array(np.ones(6, np.float32)),
                result_values_vector=vector,
            )
        kernel.reload_gamma_and_beta_with_command_buffer(commands, state)
        assert state.read_count == 0
        y = kernel.encode(commands, mg.Image.from_array(x))
    np.testing.assert_allclose(np.asarray(y), 3 * x, rtol=1e-6)


def test_an_optimizer_updates_gamma_and_beta_on_the_device():
    case = Case.draw((2, 3, 4, 5), seed=15)
    outcome = run(case)
    kernel = outcome.state.batch_normalization
    updated = mg.NormalizationGammaAndBetaState(5)
    optimizer = mg.OptimizerStochasticGradientDescent.with_learning_rate(0.1)
    with mg.CommandBuffer() as commands:
        optimizer.encode_batch_normalization(commands, outcome.state, result_state=updated)
        kernel.reload_gamma_and_beta_with_command_buffer(commands, updated)
        y = kernel.encode(commands, mg.Image.from_array(case.x))
    gamma = case.gamma - 0.1 * outcome.state.gradient_for_gamma
    beta = case.beta - 0.1 * outcome.state.gradient_for_beta
    np.testing.assert_allclose(updated.gamma, gamma, rtol=1e-6)
    np.testing.assert_allclose(updated.beta, beta, rtol=1e-6, atol=1e-6)
    expected = reference.batch_normalization(case.x, np.zeros(5), np.ones(5), gamma, beta, case.epsilon)
    np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-5, atol=1e-6)


def test_reloads_of_unfinished_or_discarded_work_are_refused():
    kernel = mg.BatchNormalization(mg.BatchNormalizationDataSource.from_arrays(number_of_feature_channels=2))
    image = mg.Image.from_array(np.ones((1, 1, 1, 2), np.float32))
    ones = np.ones(2, np.float32)
    first = mg.CommandBuffer()
    kernel.reload_gamma_and_beta_with_command_buffer(first, mg.NormalizationGammaAndBetaState.from_arrays(ones, ones))
    with mg.CommandBuffer() as second:
        with pytest.raises(mg.StateError, match="gamma and beta are written by another command buffer"):
            kernel.encode(second, image)
        first.commit()
        kernel.encode(second, image)

    class Stop(Exception):
        pass

    with pytest.raises(Stop), mg.CommandBuffer() as third:
        kernel.reload_mean_and_variance_with_command_buffer(
            third, mg.NormalizationMeanAndVarianceState.from_arrays(ones, ones)
        )
        raise Stop
    words = "mean and variance was discarded or failed"
    with mg.CommandBuffer() as commands, pytest.raises(mg.StateError, match=words):
        kernel.encode(commands, image)


@pytest.mark.parametrize("neuron", [None, mg.NeuronDescriptor("tanh", 0.5, 2), mg.NeuronDescriptor.prelu([0.1] * 5)])
def test_archives_give_the_same_bits(neuron):
    case = Case.draw((2, 3, 4, 5), seed=16, neuron=neuron)
    case.neuron = neuron
    kernel, gradient, sums = case.kernel(), case.gradient(), case.statistics_gradient()
    kernel.epsilon = 0.25
    restored = archive.from_bytes(archive.to_bytes(kernel))
    assert restored.epsilon == 0.25 and restored.fused_neuron_descriptor == neuron
    image = mg.Image.from_array(case.x)
    with mg.CommandBuffer() as commands:
        y, again = kernel.encode(commands, image), restored.encode(commands, image)
    np.testing.assert_array_equal(np.asarray(again), np.asarray(y))
    for one in (gradient, sums):
        copied = archive.from_bytes(archive.to_bytes(one))
        assert type(copied) is type(one) and copied.fused_neuron_descriptor == neuron
    archive.from_bytes(archive.to_bytes(mg.BatchNormalizationStatistics()))


def test_flags_that_a_graph_reads():
    case = Case.draw((1, 1, 1, 4))
    assert case.kernel().is_result_state_reused_across_batch and not case.kernel().append_batch_barrier
    for kernel in (mg.BatchNormalizationStatistics(), case.statistics_gradient()):
        assert kernel.append_batch_barrier and kernel.is_state_modified
    assert not case.gradient().append_batch_barrier
    states = case.kernel().result_state_batch(batch(np.ones((3, 1, 1, 4), np.float32)), destination_images=batch(
        np.ones((3, 1, 1, 4), np.float32)
    ))
    assert len(states) == 3 and states[0] is states[2]


# Bad input


def use(function):
    """Runs ``function`` with a command buffer and the parts of a small case whose statistics are complete."""

    def call():
        case = Case.draw((2, 3, 4, 5))
        kernel, source, incoming = case.kernel(), batch(case.x), batch(case.g)
        state = kernel.result_state(mg.Image.from_array(case.x))
        with mg.CommandBuffer() as commands:
            encode_statistics(case, commands, state)
            function(commands, kernel, source, incoming, state)

    return call


SUMS, GRADIENT, STATISTICS = (
    mg.BatchNormalizationStatisticsGradient,
    mg.BatchNormalizationGradient,
    mg.BatchNormalizationStatistics,
)
FROM_ARRAYS = mg.BatchNormalizationDataSource.from_arrays
ONES = np.ones(5, np.float32)
OTHER = mg.Image.from_array(np.ones((1, 3, 4, 6), np.float32))
UNAVAILABLE = [
    (lambda c, k, x, g, s: STATISTICS().encode(c, x[0]), "BatchNormalizationStatistics.encode .*encode_batch"),
    (lambda c, k, x, g, s: STATISTICS().encode(c, x[0], destination_image=x[1]), "BatchNormalizationStatistics.encode"),
    (lambda c, k, x, g, s: STATISTICS().encode_batch(c, x), "encode_batch with source_images only"),
    (
        lambda c, k, x, g, s: STATISTICS().encode_batch(c, x, destination_images=g),
        "encode_batch with destination_images",
    ),
    (
        lambda c, k, x, g, s: STATISTICS().result_state(x[0], destination_image=x[1]),
        "BatchNormalizationStatistics.result_state .*BatchNormalization.result_state",
    ),
    (lambda c, k, x, g, s: SUMS().encode(c, g[0], x[0], s), "NormalizationStatisticsGradient.encode .*encode_batch"),
    (lambda c, k, x, g, s: SUMS().encode(c, g[0], x[0], s, destination_gradient=x[1]), "StatisticsGradient.encode"),
    (lambda c, k, x, g, s: SUMS().encode_batch(c, g, x, [s, s]), "Gradient.encode_batch with gradient states"),
    (
        lambda c, k, x, g, s: SUMS().encode_batch(c, g, x, s, destination_gradients=x),
        "StatisticsGradient.encode_batch with destination_gradients",
    ),
    (lambda c, k, x, g, s: k.encode(c, x[0], return_state=True), "BatchNormalization.encode with a destination state"),
    (
        lambda c, k, x, g, s: k.encode(c, x[0], destination_image=g[0], destination_state=s),
        "BatchNormalization.encode with a destination state",
    ),
    (
        lambda c, k, x, g, s: k.encode_batch(c, x, return_state=True),
        "BatchNormalization.encode_batch with a destination state .*result_state",
    ),
]


@pytest.mark.parametrize("function, words", UNAVAILABLE)
def test_unavailable_encodes_name_what_to_call(function, words):
    with pytest.raises(NotImplementedError, match=words):
        use(function)()


BAD = [
    (lambda: FROM_ARRAYS(), mg.GeometryError, "no arrays and no number_of_feature_channels"),
    (lambda: FROM_ARRAYS(ONES, ONES[:4]), mg.GeometryError, r"beta has shape \(4,\) but there are 5"),
    (lambda: FROM_ARRAYS(ONES.astype(np.float64)), mg.FormatError, "gamma is dtype.*float32"),
    (lambda: FROM_ARRAYS([1.0, 2.0]), mg.FormatError, "gamma is list.*NumPy array"),
    (lambda: FROM_ARRAYS(ONES.astype(">f4")), mg.FormatError, "gamma is dtype.*native"),
    (lambda: FROM_ARRAYS(variance=-ONES), mg.GeometryError, "variance has the value -1.0"),
    (lambda: FROM_ARRAYS(ONES, epsilon=0), mg.GeometryError, "epsilon is 0.0.*positive"),
    (lambda: FROM_ARRAYS(ONES, epsilon=1e39), mg.GeometryError, "epsilon is 1e\\+39.*finite"),
    (lambda: FROM_ARRAYS(ONES, epsilon="small"), mg.FormatError, "epsilon is 'small'.*number"),
    (lambda: FROM_ARRAYS(number_of_feature_channels=0), mg.GeometryError, "number_of_feature_channels is 0"),
    (lambda: mg.BatchNormalization(ONES), mg.FormatError, "data_source is ndarray, which has no .*gamma"),
    (
        lambda: mg.BatchNormalization(FROM_ARRAYS(ONES), fused_neuron_descriptor="relu"),
        mg.FormatError,
        "BatchNormalization: fused_neuron_descriptor is 'relu'",
    ),
    (
        lambda: mg.BatchNormalization(FROM_ARRAYS(ONES), fused_neuron_descriptor=mg.NeuronDescriptor.prelu([1])),
        mg.GeometryError,
        "BatchNormalization: .*1 slopes but 5",
    ),
    (lambda: setattr(mg.BatchNormalization(FROM_ARRAYS(ONES)), "epsilon", -1), mg.GeometryError, "epsilon is -1.0"),
    (
        lambda: mg.NormalizationGammaAndBetaState.from_arrays(ONES, ONES[:3]),
        mg.GeometryError,
        "NormalizationGammaAndBetaState: gamma has 5 values but beta has 3",
    ),
    (
        lambda: mg.NormalizationMeanAndVarianceState.from_arrays(ONES, ONES.astype(np.float16)),
        mg.FormatError,
        "variance is dtype.*float32",
    ),
    (lambda: mg.NormalizationGammaAndBetaState(0), mg.GeometryError, "number_of_feature_channels is 0"),
    (
        use(lambda c, k, x, g, s: k.reload_gamma_and_beta_with_command_buffer(c, s)),
        mg.FormatError,
        "gamma_and_beta_state is BatchNormalizationState; it has to be a NormalizationGammaAndBetaState",
    ),
    (
        use(
            lambda c, k, x, g, s: k.reload_mean_and_variance_with_command_buffer(
                c, mg.NormalizationMeanAndVarianceState(4)
            )
        ),
        mg.GeometryError,
        "mean_and_variance_state has 4 feature channels but the kernel has 5",
    ),
    (
        use(lambda c, k, x, g, s: k.encode(c, OTHER)),
        mg.GeometryError,
        "BatchNormalization: the data source has 5 feature channels but 6 are read from source_image 1x3x4x6",
    ),
    (
        use(lambda c, k, x, g, s: k.encode(c, x[0], batch_normalization_state=3)),
        mg.FormatError,
        "BatchNormalization: batch_normalization_state is int",
    ),
    (
        use(
            lambda c, k, x, g, s: Case.draw((2, 3, 4, 5)).kernel().encode(c, x[0], batch_normalization_state=s)
        ),
        mg.StateError,
        "BatchNormalization: batch_normalization_state was made by another kernel",
    ),
    (
        use(
            lambda c, k, x, g, s: k.encode(
                c, mg.Image.from_array(np.ones((1, 2, 2, 5), np.float32)), batch_normalization_state=s
            )
        ),
        mg.StateError,
        "made for a source of 2x3x4x5 but source_image is 1x2x2x5",
    ),
    (
        use(lambda c, k, x, g, s: k.encode(c, x[0], batch_normalization_state=k.result_state(x[0]))),
        mg.StateError,
        "BatchNormalization: batch_normalization_state holds no statistics",
    ),
    (
        use(lambda c, k, x, g, s: k.encode(c, x[0], batch_normalization_state=s, destination_image=x[0])),
        mg.GeometryError,
        "alias",
    ),
    (
        use(lambda c, k, x, g, s: STATISTICS().encode_batch(c, [OTHER], s)),
        mg.GeometryError,
        "BatchNormalizationStatistics: 6 feature channels are read from source_images 1x3x4x6.*has 5",
    ),
    (use(lambda c, k, x, g, s: STATISTICS().encode_batch(c, x[0], s)), mg.FormatError, "source_images is Image"),
    (use(lambda c, k, x, g, s: STATISTICS().encode_batch(c, [], s)), mg.GeometryError, "empty batch"),
    (
        use(lambda c, k, x, g, s: STATISTICS().encode_batch(c, x, mg.State([4]))),
        mg.FormatError,
        "batch_normalization_state is State",
    ),
    (
        use(lambda c, k, x, g, s: SUMS().encode_batch(c, g, x[:1], s)),
        mg.GeometryError,
        "source_images has 1 images but the batch has 2",
    ),
    (
        use(lambda c, k, x, g, s: SUMS().encode_batch(c, [OTHER], x[:1], s)),
        mg.GeometryError,
        "source_gradient is 1x3x4x6 but BatchNormalization of a 2x3x4x5 source gives 2x3x4x5",
    ),
    (
        use(lambda c, k, x, g, s: SUMS().encode_batch(c, g, x, k.result_state(x[0]))),
        mg.StateError,
        "BatchNormalizationStatisticsGradient: batch_normalization_state holds no statistics",
    ),
    (
        use(lambda c, k, x, g, s: [SUMS().encode_batch(c, g, x, s) for _ in range(2)]),
        mg.StateError,
        "gradients of 48 pixels in all, but the statistics of batch_normalization_state are of 24 pixels",
    ),
    (
        use(
            lambda c, k, x, g, s: SUMS(fused_neuron_descriptor=mg.NeuronDescriptor("relu")).encode_batch(c, g, x, s)
        ),
        mg.StateError,
        "fused_neuron_descriptor is .*RELU.* but that of batch_normalization_state's kernel is None",
    ),
    (
        use(lambda c, k, x, g, s: GRADIENT().encode(c, g[0], x[0], s)),
        mg.StateError,
        "BatchNormalizationGradient: .*gradients of 0 pixels but statistics of 24; encode .*whole batch",
    ),
    (
        use(lambda c, k, x, g, s: (SUMS().encode_batch(c, g[:1], x[:1], s), GRADIENT().encode_batch(c, g, x, s))),
        mg.StateError,
        "gradients of 12 pixels but statistics of 24",
    ),
    (
        use(lambda c, k, x, g, s: GRADIENT().encode(c, g[0], x[0], mg.State([4]))),
        mg.FormatError,
        "BatchNormalizationGradient: batch_normalization_state is State",
    ),
    (
        use(
            lambda c, k, x, g, s: (
                SUMS().encode_batch(c, g, x, s),
                GRADIENT().encode(c, mg.Image.from_array(np.ones((1, 3, 4, 5), np.float16)), x[0], s),
            )
        ),
        mg.FormatError,
        "FLOAT32 but source_gradient is FLOAT16",
    ),
    (
        use(lambda c, k, x, g, s: GRADIENT(fused_neuron_descriptor=3)),
        mg.FormatError,
        "BatchNormalizationGradient: fused_neuron_descriptor is 3",
    ),
]


@pytest.mark.parametrize("build, error, words", BAD)
def test_bad_input_is_refused(build, error, words):
    with pytest.raises(error, match=words):
        build()


def test_statistics_of_a_part_of_an_image_are_refused():
    kernel = STATISTICS()
    kernel.offset = mg.Offset(1, 0)
    with pytest.raises(NotImplementedError, match="offset Offset.*statistics are of whole images"):
        use(lambda c, k, x, g, s: kernel.encode_batch(c, x, s))()


def test_reads_beyond_a_clamped_edge_have_no_gradient():
    case = Case.draw((2, 3, 4, 5))
    kernel = case.kernel()
    kernel.edge_mode, kernel.offset = mg.EdgeMode.CLAMP, mg.Offset(2, 0)
    state = kernel.result_state(mg.Image.from_array(case.x))
    with mg.CommandBuffer() as commands:
        encode_statistics(case, commands, state)
        with pytest.raises(NotImplementedError, match="Gradient: the forward kernel read pixels 2 to 6 along x"):
            case.statistics_gradient().encode_batch(commands, batch(case.g), batch(case.x), state)


@pytest.mark.usefixtures("shaders_of_gpus")
class TestTheShadersOfGPUs:
    """Vectors and single channels, rows of one threadgroup and of several, contiguous and not."""

    @pytest.mark.parametrize(
        "shape", [(1, 1, 1, 100), (3, 9, 7, 5), (2, 60, 50, 33), (4, 40, 40, 64), (1, 50, 50, 300)]
    )
    @pytest.mark.parametrize("name", [None, "prelu", "sigmoid"])
    def test_everything_matches_the_reference(self, shape, name):
        slopes = np.linspace(-1, 1, shape[-1]) if name == "prelu" else None
        neuron = None if name is None else mg.NeuronDescriptor(name, *NEURONS[name], data=slopes)
        case = Case.draw(shape, seed=11, neuron=neuron)
        check(case, run(case))

    @pytest.mark.parametrize("shape", [(3, 9, 7, 5), (4, 40, 40, 64), (2, 99, 99, 24)])
    @pytest.mark.parametrize("name", ["relu", "prelu"] if gpu_forms.HALVES else ["relu"])
    def test_halves(self, shape, name):
        slopes = np.linspace(-1, 1, shape[-1]) if name == "prelu" else None
        case = Case.draw(shape, np.float16, seed=12, neuron=mg.NeuronDescriptor(name, 0.25, data=slopes))
        check(case, run(case))

    @pytest.mark.parametrize("shape", [(2, 31, 33, 64), (1, 64, 64, 33), (4, 1, 1, 300)])
    def test_a_mean_far_above_the_deviation_costs_no_accuracy(self, shape):
        test_a_mean_far_above_the_deviation_costs_no_accuracy(shape, -1e4, 0.5)

    def test_the_first_pixels_do_not_decide_the_accuracy(self):
        test_the_first_pixels_do_not_decide_the_accuracy()

    @pytest.mark.parametrize("shape", [(3, 20, 21, 40), (1, 50, 50, 3)])
    def test_a_constant_channel(self, shape):
        test_a_constant_channel_has_variance_zero_and_gives_beta_even_with_the_smallest_epsilon(0.1, shape)

    @pytest.mark.parametrize("apart", [False, True], ids=["joined", "apart"])
    def test_phases_accumulate_over_parts_of_the_batch(self, apart):
        test_phases_accumulate_over_parts_of_the_batch([4, 1, 3], False, apart)

    def test_batches_and_repetitions_give_the_same_bits(self):
        test_batches_and_repetitions_give_the_same_bits()

    @pytest.mark.parametrize("offset", [(0, 0), (2, -1), (9, 0)])
    def test_offsets_clip_rect_and_channel_ranges(self, offset):
        test_offsets_clip_rect_and_channel_ranges(offset, mg.NeuronDescriptor("relu", 0.25))

    @pytest.mark.parametrize("shape", [(1, 28, 28, 8), (2, 20, 31, 1), (3, 9, 7, 40), (4, 1, 1, 37)])
    @pytest.mark.parametrize("name", [None, "relu"])
    def test_images_of_few_pixels_are_normalized_at_once(self, shape, name):
        """By one kernel for one or two vectors or channels of a threadgroup, to the same bits as by two."""
        case = Case.draw(shape, seed=13, neuron=name and mg.NeuronDescriptor(name, 0.25))
        at_once = run(case)
        check(case, at_once)
        source, gradient = mg.Image.from_array(case.x), mg.Image.from_array(case.g)
        kernel, images = case.kernel(), source.batch_representation()
        state, results = kernel.result_state(source), {}
        for encodes in (
            lambda commands: mg.BatchNormalizationStatistics().encode_batch(commands, images, state),
            lambda commands: results.update(y=kernel.encode(commands, source, batch_normalization_state=state)),
            lambda commands: case.statistics_gradient().encode_batch(
                commands, gradient.batch_representation(), images, state
            ),
            lambda commands: results.update(dx=case.gradient().encode(commands, gradient, source, state)),
        ):
            with mg.CommandBuffer() as commands:
                encodes(commands)
        for name, exact in (("y", at_once.y), ("dx", at_once.dx)):
            np.testing.assert_array_equal(np.asarray(results[name]), exact)
        with mg.CommandBuffer() as commands:
            mg.BatchNormalizationStatistics().encode_batch(commands, images, state)
            kernel.encode(commands, source, batch_normalization_state=state)
            case.statistics_gradient().encode_batch(commands, gradient.batch_representation(), images, state)
            case.gradient().encode(commands, gradient, source, state)
            (forward, backward) = (each.function.name for each in with_neighbours_joined(commands._dispatches))
            statistics, stream, *_ = commands._dispatches
            foreign = Dispatch(SimpleNamespace(name=stream.function.name), 1, statistics.buffers[:1])
            assert with_neighbours_joined([statistics, foreign]) == [statistics, foreign]
        assert forward.startswith("normalize_at_once_by") and backward.startswith("normalization_gradient_at_once_by")

    @pytest.mark.parametrize("rows, channels", [(802816, 64), (784, 64), (1024, 4096), (1025, 4), (4495, 37), (7, 1)])
    @pytest.mark.parametrize("width", [1, 4])
    def test_threadgroups_that_own_all_pixels_cover_everything_once(self, rows, channels, width):
        if channels % width:
            return
        tiles = plan_at_once(rows, channels, width, 132)
        if tiles is None:
            assert rows > 1024
            return
        assert tiles.across * tiles.row_lanes in (128, 256) and 8 * tiles.row_lanes >= rows
        assert (tiles.tiles - 1) * tiles.across < channels // width <= tiles.tiles * tiles.across

    @pytest.mark.parametrize(
        "rows, channels, width, single",
        [
            (784, 64, 8, True),
            (784, 128, 4, False),
            (196, 320, 8, True),
            (1568, 96, 4, False),
            (3136, 96, 4, True),
            (6272, 64, 8, True),
            (6272, 64, 4, False),
            (12544, 160, 8, False),
            (50176, 256, 8, False),
        ],
    )
    def test_threads_take_single_channels_of_small_images(self, rows, channels, width, single):
        assert takes_singles(rows, channels, width, 132) == single

    @pytest.mark.parametrize("rows, channels", [(802816, 64), (784, 64), (1568, 2048), (4495, 37), (1, 4096), (7, 1)])
    @pytest.mark.parametrize("width", [1, 4])
    @pytest.mark.parametrize("summed_rows", [None, 8])
    def test_tiles_cover_everything_once(self, rows, channels, width, summed_rows):
        if channels % width:
            return
        tiles = plan_tiles(rows, channels, width, 4, 132, summed_rows)
        assert tiles.across * tiles.row_lanes <= 256
        assert (tiles.tiles - 1) * tiles.across < channels // width <= tiles.tiles * tiles.across
        if summed_rows is not None:
            assert 1 <= tiles.splits <= -(-rows // (tiles.row_lanes * summed_rows))
