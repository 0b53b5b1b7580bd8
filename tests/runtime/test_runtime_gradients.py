"""``check_gradient`` on operations of the package and on a user's own pair of kernels, right and wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import functional as mf
from mpsgrad.testing import check_gradient, values

SWISH = """
#include <metal_stdlib>
using namespace metal;

kernel void swish(device const float* x, device float* y, uint i [[thread_position_in_grid]]) {
    y[i] = x[i] / (1 + exp(-x[i]));
}

kernel void swish_gradient(device const float* dy, device const float* x, device float* dx,
                           constant float& error, uint i [[thread_position_in_grid]]) {
    float s = 1 / (1 + exp(-x[i]));
    dx[i] = dy[i] * (s + x[i] * s * (1 - s)) + (i == 2 ? error : 0);
}
"""


@pytest.fixture(scope="module")
def swish() -> mg.KernelLibrary:
    return mg.compile(SWISH)


@pytest.fixture
def failures_are_not_shrunk() -> Iterator[None]:
    """Shrinking takes longer than all else, and these failures are the same for all inputs."""
    before = settings.get_current_profile_name()
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("failures are not shrunk", settings.get_profile(before), phases=phases)
    settings.load_profile("failures are not shrunk")
    yield
    settings.load_profile(before)


def vectors(longest: int = 300) -> st.SearchStrategy[np.ndarray]:
    return st.integers(1, longest).flatmap(lambda length: values((length,), np.float32))


def forward_of(library: mg.KernelLibrary) -> Any:
    def forward(x: np.ndarray) -> np.ndarray:
        y = np.zeros_like(x)
        library.function("swish")(x.size, x, y)
        return y

    return forward


def gradient_of(library: mg.KernelLibrary, error: float = 0.0) -> Any:
    def gradient(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
        dx = np.zeros_like(x)
        library.function("swish_gradient")(x.size, dy, x, dx, error)
        return dx

    return gradient


def test_a_users_own_kernels(swish: mg.KernelLibrary) -> None:
    check_gradient(forward_of(swish), gradient_of(swish), vectors())


def test_one_wrong_element_is_found_and_named(swish: mg.KernelLibrary) -> None:
    with pytest.raises(AssertionError, match=r"the gradient is wrong for float32 of shape \(3,\)") as caught:
        check_gradient(forward_of(swish), gradient_of(swish, error=0.5), vectors(8))
    assert "furthest off is element (2)" in str(caught.value)


def test_softmax() -> None:
    images = st.integers(1, 40).flatmap(lambda channels: values((2, 1, 3, channels), np.float32))
    check_gradient(mf.soft_max, lambda dy, x: mf.soft_max_gradient(dy, mf.soft_max(x)), images, ulps=8)


def test_convolution_in_source_weights_and_biases() -> None:
    inputs = st.tuples(values((2, 5, 4, 3), np.float32), values((4, 3, 3, 3), np.float32), values((4,), np.float32))
    check_gradient(
        mf.convolution, lambda dy, x, w, b: mf.convolution_gradient(dy, x, w), inputs, ulps=27, max_examples=10
    )


@pytest.mark.usefixtures("failures_are_not_shrunk")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-2, 1.0, 30.0])
def test_several_inputs_and_labels(dtype: Any, scale: float) -> None:
    def forward(x: np.ndarray, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return np.tanh(x[rows]) @ weights

    def gradient(dy: np.ndarray, x: np.ndarray, rows: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
        dx = np.zeros_like(x)
        np.add.at(dx, rows, (dy @ weights.T) * (1 - np.tanh(x[rows]) ** 2))
        return dx, np.tanh(x[rows]).T @ dy

    inputs = st.tuples(
        values((3, 4), dtype, scale=scale), st.just(np.array([0, 2, 2])), values((4, 5), dtype, scale=scale)
    )
    check_gradient(forward, gradient, inputs, ulps=16, max_examples=10)
    with pytest.raises(AssertionError, match="the gradient of input 2 is wrong"):
        check_gradient(
            forward, lambda *given: (gradient(*given)[0], 1.05 * gradient(*given)[1]), inputs, ulps=16, max_examples=10
        )


@pytest.mark.usefixtures("failures_are_not_shrunk")
def test_gradients_of_another_shape_or_number_or_not_finite() -> None:
    with pytest.raises(AssertionError, match=r"the gradient has shape \(2,\), but the input \(3,\)"):
        check_gradient(lambda x: x, lambda dy, x: dy[:2], values((3,), np.float32))
    with pytest.raises(AssertionError, match="gradient gave 2 arrays for 1 inputs"):
        check_gradient(lambda x: x, lambda dy, x: (dy, dy), values((3,), np.float32))
    with pytest.raises(AssertionError, match="the gradient is not finite"):
        check_gradient(lambda x: x, lambda dy, x: dy * np.nan, values((3,), np.float32))
    with pytest.raises(AssertionError, match="forward gave values that are not finite"):
        check_gradient(lambda x: x * np.inf, lambda dy, x: dy, values((3,), np.float32))


@pytest.mark.usefixtures("failures_are_not_shrunk")
def test_results_without_gradients_are_named() -> None:
    vector = values((3,), np.float32)
    with pytest.raises(TypeError, match="strategy is ndarray but must be a Hypothesis strategy"):
        check_gradient(np.sin, lambda dy, x: dy, np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="what forward gave is NoneType of dtype object"):
        check_gradient(lambda x: None, lambda dy, x: dy, vector)
    with pytest.raises(TypeError, match="the gradient is NoneType of dtype object"):
        check_gradient(np.sin, lambda dy, x: None, vector)
    with pytest.raises(TypeError, match="forward gave int64, which has no gradient"):
        check_gradient(lambda x: x.argsort(), lambda dy, x: dy, vector)
    with pytest.raises(ValueError, match=r"no input has a floating dtype: int64 of shape \(2,\)"):
        check_gradient(np.sin, lambda dy, x: dy, st.just(np.arange(2)))


@pytest.mark.usefixtures("failures_are_not_shrunk")
def test_several_results_and_writing_to_what_is_given() -> None:
    def forward(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x *= x
        return x, x.sum(keepdims=True)

    def gradient(dy: np.ndarray, dsum: np.ndarray, x: np.ndarray) -> np.ndarray:
        dy += dsum
        dy *= 2 * x
        return dy

    check_gradient(forward, gradient, vectors())
    with pytest.raises(AssertionError, match="the gradient is wrong"):
        check_gradient(forward, lambda dy, dsum, x: gradient(dy, 0 * dsum, x), vectors())


@pytest.mark.usefixtures("failures_are_not_shrunk")
@pytest.mark.parametrize(("dtype", "length"), [(np.float32, 100_000), (np.float16, 1000)])
def test_one_wrong_element_at_the_end_of_many(dtype: Any, length: int) -> None:
    def gradient(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
        dy[-1] = 0
        return dy * np.cos(x)

    vector = values((length,), dtype)
    check_gradient(np.sin, lambda dy, x: dy * np.cos(x), vector, max_examples=20)
    with pytest.raises(AssertionError, match="the gradient is wrong"):
        check_gradient(np.sin, gradient, vector, max_examples=40)


def test_sums_of_what_cancels() -> None:
    def forward(x: np.ndarray) -> np.ndarray:
        return (x - x.mean()).sum(keepdims=True) + x.sum(keepdims=True)

    check_gradient(forward, lambda dy, x: np.full_like(x, dy[0]), values((1000,), np.float64))


@pytest.mark.usefixtures("failures_are_not_shrunk")
def test_kinks_are_named() -> None:
    kink = r"element \(1\): .* where forward has a kink: its derivatives are .*0 before it and .* behind it"
    with pytest.raises(AssertionError, match=kink):
        check_gradient(
            lambda x: np.maximum(x, 0), lambda dy, x: dy * (x > 0), st.just(np.array([1, 0, -1], np.float32))
        )
    with pytest.raises(AssertionError, match=r"instead of [-\d.e]+\n"):
        check_gradient(np.sin, lambda dy, x: -dy * np.cos(x), st.just(np.array([1, 0, -1], np.float32)))


def test_the_number_of_examples() -> None:
    seen = []
    check_gradient(lambda x: seen.append(x) or x, lambda dy, x: dy, values((3,), np.float32), max_examples=7)
    assert len(seen) == 7 * 5


def test_elements_are_looked_for_in_the_smallest_inputs_only() -> None:
    seen: list[np.ndarray] = []
    with pytest.raises(AssertionError, match="furthest off"):
        check_gradient(lambda x: seen.append(x) or x, lambda dy, x: 1.01 * dy, values((100,), np.float32))
    of_all_elements = 4 * 100
    assert of_all_elements < len(seen) < 1.5 * of_all_elements
