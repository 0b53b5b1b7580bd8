"""``check_gradient``: a gradient against central differences of its forward function, over drawn inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

_ELEMENTS_SEARCHED = 256
_FEW = 8

_Arrays = tuple[np.ndarray, ...]


def check_gradient(
    forward: Callable[..., Any],
    gradient: Callable[..., Any],
    strategy: st.SearchStrategy[Any],
    *,
    ulps: float = 4.0,
    max_examples: int | None = None,
) -> None:
    """Fails unless ``gradient`` is the transposed derivative of ``forward`` for the inputs that ``strategy`` draws.

    ``strategy`` draws an array, or a tuple of arrays: the inputs ``u``. ``forward(*u)`` gives an array ``y`` of a
    floating dtype, or a tuple of them. ``gradient(*v, *u)``, with a source gradient ``v`` of the shape of each ``y``,
    gives the gradient ``g`` for each input of a floating dtype, as one array or a tuple; inputs of other dtypes, such
    as labels, are passed on and left alone. All are given copies, which they may write to.

    For random ``v`` and directions ``d``, one input after the other, ``v . J d`` is compared with ``g . d``, where
    ``J d = (forward(u + h d) - forward(u - h d)) / 2h``. In half of the examples ``v`` is 0 but for a few elements, the
    first and the last among them: what the rounding of all others hides shows there. The step is ``h = eps ** (1/3)``
    times the size of the input (at most 1), with ``eps`` of its dtype, and all sums are in float64. The two may differ
    by what rounding does to the differences, ``ulps * eps * |v| . (|y(u + h d)| + |y(u - h d)|) / 2h`` if ``forward``
    is accurate to ``ulps`` units of its result, by ``(ulps * eps + eps ** (2/3)) * |g| . |d|``, and by what the step
    does, judged from the derivative with step ``2h``. So ``forward`` has to be smooth where it is tried: draw inputs
    away from kinks and ties, and of a size of about 1, as rounding hides more where ``y`` is large. float16 shows
    coarse errors only: a gradient that is too large by a hundredth passes.

    Hypothesis draws as its current profile says, or ``max_examples``, and shrinks the inputs of a failure. The message
    has both sides, what is allowed, and for small inputs the element that is furthest off, and whether ``forward`` has
    a kink there. Raises ``TypeError`` for a strategy that is none and for results of another dtype, ``ValueError``
    where no input has a gradient.
    """
    if not isinstance(strategy, st.SearchStrategy):
        raise TypeError(f"check_gradient: strategy is {type(strategy).__name__} but must be a Hypothesis strategy")
    profile = settings() if max_examples is None else settings(max_examples=max_examples)
    # To explain a failure takes Hypothesis longer than to find and shrink it, and says nothing of elements.
    phases = [phase for phase in profile.phases if phase is not Phase.explain]
    profile = settings(profile, deadline=None, phases=phases, report_multiple_bugs=False)

    @profile
    @given(inputs=strategy, seed=st.integers(0, 2**32 - 1))
    def gradient_is_the_transposed_derivative(inputs: Any, seed: int) -> None:
        arrays = inputs if isinstance(inputs, tuple) else (inputs,)
        _check(forward, gradient, tuple(map(np.asarray, arrays)), np.random.default_rng(seed), ulps)

    try:
        gradient_is_the_transposed_derivative()
    except _WrongGradientError as wrong:
        failure = AssertionError(f"{wrong}{wrong.worst_element()}")
        for note in getattr(wrong, "__notes__", ()):
            failure.add_note(note)
        raise failure from None


class _WrongGradientError(AssertionError):
    """A gradient whose product with a direction is wrong. Which element is, is looked for in the smallest inputs."""

    def __init__(self, message: str, difference: _Difference, found: np.ndarray) -> None:
        super().__init__(message)
        self._difference = difference
        self._found = found

    def worst_element(self) -> str:
        return self._difference.worst_element(self._found)


def _check(
    forward: Callable[..., Any],
    gradient: Callable[..., Any],
    inputs: _Arrays,
    generator: np.random.Generator,
    ulps: float,
) -> None:
    positions = [index for index, each in enumerate(inputs) if np.issubdtype(each.dtype, np.floating)]
    if not positions:
        raise ValueError(f"check_gradient: no input has a floating dtype: {_described(inputs)}")
    results = _results(forward, inputs)
    finite = all(np.isfinite(each).all() for each in results)
    assert finite, f"forward gave values that are not finite for {_described(inputs)}"
    is_sparse = generator.random() < 0.5
    weights = tuple(_weights(each, is_sparse, generator) for each in results)
    given_back = gradient(*(each.copy() for each in weights), *(each.copy() for each in inputs))
    is_several = isinstance(given_back, tuple) or (isinstance(given_back, list) and len(positions) > 1)
    gradients: Sequence[Any] = given_back if is_several else (given_back,)
    assert len(gradients) == len(positions), (
        f"gradient gave {len(gradients)} arrays for {len(positions)} inputs of a floating dtype"
    )
    for position, values in zip(positions, gradients, strict=True):
        source = inputs[position]
        what = f"the gradient of input {position}" if len(inputs) > 1 else "the gradient"
        found = _real(what, values).astype(np.float64)
        assert found.shape == source.shape, f"{what} has shape {found.shape}, but the input {source.shape}"
        assert np.isfinite(found).all(), f"{what} is not finite for {_described(inputs)}"
        difference = _Difference(forward, inputs, position, weights, ulps)
        direction = generator.standard_normal(source.shape)
        expected, allowed, moved = difference.along(direction)
        allowed += difference.rounding_of(found, moved)
        product = float((found * moved).sum())
        if abs(product - expected) <= allowed:
            continue
        message = (
            f"{what} is wrong for {_described(inputs)}: along a random direction d, gradient . d is {product:.6g} "
            f"where central differences give {expected:.6g}, off by {abs(product - expected):.3g} where "
            f"{allowed:.3g} is allowed"
        )
        raise _WrongGradientError(message, difference, found)


def _real(what: str, values: Any) -> np.ndarray:
    found = np.array(values)
    if not (np.issubdtype(found.dtype, np.floating) or np.issubdtype(found.dtype, np.integer)):
        kind = f"{type(values).__name__} of dtype {found.dtype}"
        raise TypeError(f"check_gradient: {what} is {kind} but must be an array of real numbers")
    return found


def _results(forward: Callable[..., Any], inputs: _Arrays) -> _Arrays:
    """Copies of what ``forward`` gives."""
    given_back = forward(*(each.copy() for each in inputs))
    results = given_back if isinstance(given_back, tuple) else (given_back,)
    found = tuple(_real("what forward gave", each) for each in results)
    for each in found:
        if not np.issubdtype(each.dtype, np.floating):
            raise TypeError(f"check_gradient: forward gave {each.dtype}, which has no gradient, and no floating dtype")
    return found


def _weights(result: np.ndarray, is_sparse: bool, generator: np.random.Generator) -> np.ndarray:
    """A source gradient."""
    weights = generator.standard_normal(result.shape).astype(result.dtype)
    if is_sparse and result.size > _FEW:
        kept = np.zeros(result.size, bool)
        kept[[0, -1, *generator.integers(0, result.size, _FEW - 2)]] = True
        weights[~kept.reshape(result.shape)] = 0
    return weights


class _Difference:
    """Central differences of ``weights . forward`` in one input."""

    def __init__(
        self,
        forward: Callable[..., Any],
        inputs: _Arrays,
        position: int,
        weights: _Arrays,
        ulps: float,
    ) -> None:
        self._forward = forward
        self._inputs = inputs
        self._position = position
        self._weights = [each.astype(np.float64) for each in weights]
        self._ulps = ulps
        source = inputs[position]
        self._eps = max(float(np.finfo(each.dtype).eps) for each in (source, *weights))
        size = float(np.abs(source).max()) if source.size else 1.0
        self._step = self._eps ** (1 / 3) * min(max(size, 1e-2), 1.0)

    def along(self, direction: np.ndarray) -> tuple[float, float, np.ndarray]:
        """The derivative along ``direction``, how far it may be off, and the direction that was really taken."""
        wide, _, _ = self._quotient(direction, 2 * self._step)
        near, rounding, moved = self._quotient(direction, self._step)
        return near, rounding + abs(wide - near), moved

    def rounding_of(self, found: np.ndarray, moved: np.ndarray) -> float:
        """How far the product of a right gradient may be off: it is rounded to its dtype, and what ``forward`` sums up
        may be larger than the sum."""
        relative = self._ulps * float(np.finfo(self._inputs[self._position].dtype).eps) + self._eps ** (2 / 3)
        return relative * float(np.abs(found * moved).sum())

    def _at(self, direction: np.ndarray, step: float) -> tuple[float, float, np.ndarray]:
        """``weights . forward`` a step away, the same of absolute values, and the place."""
        source = self._inputs[self._position]
        place = (source + step * direction).astype(source.dtype)
        inputs = (*self._inputs[: self._position], place, *self._inputs[self._position + 1 :])
        results = [each.astype(np.float64) for each in _results(self._forward, inputs)]
        pairs = list(zip(self._weights, results, strict=True))
        sum_of = float(sum((weights * result).sum() for weights, result in pairs))
        magnitude = float(sum((np.abs(weights) * np.abs(result)).sum() for weights, result in pairs))
        return sum_of, magnitude, place.astype(np.float64)

    def _quotient(self, direction: np.ndarray, step: float) -> tuple[float, float, np.ndarray]:
        above, behind = (self._at(direction, sign * step) for sign in (1, -1))
        # What is left of the direction after rounding the inputs.
        moved = (above[2] - behind[2]) / (2 * step)
        rounding = self._ulps * self._eps * (above[1] + behind[1]) / (2 * step)
        return (above[0] - behind[0]) / (2 * step), rounding, moved

    def worst_element(self, found: np.ndarray) -> str:
        """A sentence on the element of the gradient that is furthest from its central difference."""
        if not 0 < found.size <= _ELEMENTS_SEARCHED:
            return ""
        worst = (0.0, "", np.zeros(found.shape))
        for index in np.ndindex(found.shape):
            direction = np.zeros(found.shape)
            direction[index] = 1
            expected, allowed, moved = self.along(direction)
            excess = abs(float(found[index] * moved[index]) - expected) - allowed
            if excess > worst[0]:
                place = ", ".join(map(str, index))
                text = f"; furthest off is element ({place}): {found[index]:.6g} instead of {expected:.6g}"
                worst = (excess, text, direction)
        return worst[1] + (self._kink(worst[2]) if worst[1] else "")

    def _kink(self, direction: np.ndarray) -> str:
        """A sentence on ``forward`` if its derivatives to both sides differ, and no less with half the step."""
        apart = []
        for step in (2 * self._step, self._step):
            above, here, behind = (self._at(direction, sign * step) for sign in (1, 0, -1))
            sides = (here[0] - behind[0]) / step, (above[0] - here[0]) / step
            rounding = self._ulps * self._eps * (above[1] + 2 * here[1] + behind[1]) / step
            apart.append(abs(sides[1] - sides[0]))
        if apart[1] <= max(2 * rounding, 0.75 * apart[0]):
            return ""
        return f", where forward has a kink: its derivatives are {sides[0]:.6g} before it and {sides[1]:.6g} behind it"


def _described(inputs: _Arrays) -> str:
    return " and ".join(f"{each.dtype} of shape {each.shape}" for each in inputs)
