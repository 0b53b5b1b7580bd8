"""``check_gradient``: a gradient against central differences of its forward function, over drawn inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

_ELEMENTS_SEARCHED = 256


def check_gradient(
    forward: Callable[..., Any],
    gradient: Callable[..., Any],
    strategy: st.SearchStrategy[Any],
    *,
    ulps: float = 4.0,
    max_examples: int | None = None,
) -> None:
    """Fails unless ``gradient`` is the transposed derivative of ``forward`` for the inputs that ``strategy`` draws.

    ``strategy`` draws an array, or a tuple of arrays: the inputs ``u``. ``forward(*u)`` gives an array ``y``.
    ``gradient(v, *u)``, with the source gradient ``v`` of the shape of ``y``, gives the gradient ``g`` for each input
    of a floating dtype, as one array or a tuple; inputs of other dtypes, such as labels, are passed on and left alone.

    For random ``v`` and directions ``d``, one input after the other, ``v . J d`` is compared with ``g . d``, where
    ``J d = (forward(u + h d) - forward(u - h d)) / 2h``. The step is ``h = eps ** (1/3)`` times the size of the input
    (at most 1), with ``eps`` of its dtype, and all sums are in float64. The two may differ by what rounding does to the
    differences, ``ulps * eps * |v| . (|y(u + h d)| + |y(u - h d)|) / 2h`` if ``forward`` is accurate to ``ulps`` units
    of its result, and to ``g``, plus what the step does, judged from the derivative with step ``2h``. So ``forward``
    has to be smooth where it is tried: draw inputs away from kinks and ties.

    Hypothesis draws as its current profile says, or ``max_examples``, and shrinks the inputs of a failure. The message
    has both sides, what is allowed, and for small inputs the element that is furthest off.
    """

    profile = settings(deadline=None)
    profile = profile if max_examples is None else settings(profile, max_examples=max_examples)

    @profile
    @given(inputs=strategy, seed=st.integers(0, 2**32 - 1))
    def gradient_is_the_transposed_derivative(inputs: Any, seed: int) -> None:
        arrays = inputs if isinstance(inputs, tuple) else (inputs,)
        _check(forward, gradient, tuple(map(np.asarray, arrays)), np.random.default_rng(seed), ulps)

    gradient_is_the_transposed_derivative()


def _check(
    forward: Callable[..., Any],
    gradient: Callable[..., Any],
    inputs: tuple[np.ndarray, ...],
    generator: np.random.Generator,
    ulps: float,
) -> None:
    result = np.array(forward(*inputs))
    assert np.isfinite(result).all(), f"forward gave values that are not finite for {_described(inputs)}"
    weights = generator.standard_normal(result.shape).astype(result.dtype)
    given_back = gradient(weights, *inputs)
    gradients = given_back if isinstance(given_back, tuple) else (given_back,)
    positions = [index for index, each in enumerate(inputs) if np.issubdtype(each.dtype, np.floating)]
    assert len(gradients) == len(positions), (
        f"gradient gave {len(gradients)} arrays for {len(positions)} inputs of a floating dtype"
    )
    for position, values in zip(positions, gradients, strict=True):
        found = np.array(values, np.float64)
        source = inputs[position]
        what = f"the gradient of input {position}" if len(inputs) > 1 else "the gradient"
        assert found.shape == source.shape, f"{what} has shape {found.shape}, but the input {source.shape}"
        assert np.isfinite(found).all(), f"{what} is not finite for {_described(inputs)}"
        difference = _Difference(forward, inputs, position, weights, ulps)
        direction = generator.standard_normal(source.shape)
        expected, allowed, moved = difference.along(direction)
        product = float((found * moved).sum())
        # Each product and the sum of a gradient's terms are rounded to its dtype too.
        rounding = ulps * float(np.finfo(source.dtype).eps) * float(np.abs(found * moved).sum())
        if abs(product - expected) <= allowed + rounding:
            continue
        message = (
            f"{what} is wrong for {_described(inputs)}: along a random direction d, gradient . d is {product:.6g} "
            f"where central differences give {expected:.6g}, off by {abs(product - expected):.3g} where "
            f"{allowed + rounding:.3g} is allowed"
        )
        raise AssertionError(message + difference.worst_element(found))


class _Difference:
    """Central differences of ``weights . forward`` in one input."""

    def __init__(
        self,
        forward: Callable[..., Any],
        inputs: tuple[np.ndarray, ...],
        position: int,
        weights: np.ndarray,
        ulps: float,
    ) -> None:
        self._forward = forward
        self._inputs = inputs
        self._position = position
        self._weights = weights.astype(np.float64)
        self._ulps = ulps
        source = inputs[position]
        self._eps = max(float(np.finfo(source.dtype).eps), float(np.finfo(weights.dtype).eps))
        size = float(np.abs(source).max()) if source.size else 1.0
        self._step = self._eps ** (1 / 3) * min(max(size, 1e-2), 1.0)

    def along(self, direction: np.ndarray) -> tuple[float, float, np.ndarray]:
        """The derivative along ``direction``, how far it may be off, and the direction that was really taken."""
        wide, _, _ = self._quotient(direction, 2 * self._step)
        near, rounding, moved = self._quotient(direction, self._step)
        return near, rounding + abs(wide - near), moved

    def _quotient(self, direction: np.ndarray, step: float) -> tuple[float, float, np.ndarray]:
        source = self._inputs[self._position]
        sides = [(source + sign * step * direction).astype(source.dtype) for sign in (1, -1)]
        # What is left of the direction after rounding the inputs.
        moved = (sides[0].astype(np.float64) - sides[1].astype(np.float64)) / (2 * step)
        results = []
        for side in sides:
            inputs = (*self._inputs[: self._position], side, *self._inputs[self._position + 1 :])
            results.append(np.array(self._forward(*inputs), np.float64))
        magnitude = float((np.abs(self._weights) * (np.abs(results[0]) + np.abs(results[1]))).sum())
        quotient = float((self._weights * (results[0] - results[1])).sum()) / (2 * step)
        return quotient, self._ulps * self._eps * magnitude / (2 * step), moved

    def worst_element(self, found: np.ndarray) -> str:
        """A sentence on the element of the gradient that is furthest from its central difference."""
        if not 0 < found.size <= _ELEMENTS_SEARCHED:
            return ""
        worst = (0.0, "")
        for index in np.ndindex(found.shape):
            direction = np.zeros(found.shape)
            direction[index] = 1
            expected, allowed, moved = self.along(direction)
            excess = abs(float(found[index] * moved[index]) - expected) - allowed
            if excess > worst[0]:
                place = ", ".join(map(str, index))
                worst = (excess, f"; furthest off is element ({place}): {found[index]:.6g} instead of {expected:.6g}")
        return worst[1]


def _described(inputs: tuple[np.ndarray, ...]) -> str:
    return " and ".join(f"{each.dtype} of shape {each.shape}" for each in inputs)
