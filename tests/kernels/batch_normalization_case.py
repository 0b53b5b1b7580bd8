"""Cases of batch normalization, their encodes, and the comparison with the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import mpsgrad as mg
from mpsgrad import reference
from mpsgrad.testing import (
    FencedImage,
    assert_within,
    error_bound,
)

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


def encode_statistics(case: Case, commands: mg.CommandBuffer, state: Any, scale: float = 1.0) -> None:
    mg.BatchNormalizationStatistics().encode_batch(commands, batch((scale * case.x).astype(case.x.dtype)), state)
