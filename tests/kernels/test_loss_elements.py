"""Losses of single elements against the float64 references: values, reductions and gradients."""

from __future__ import annotations

from typing import Any

import gpu_forms
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from loss_bounds import ELEMENT_TYPES, bound, drawn, magnitudes

import mpsgrad as mg
from mpsgrad import reference
from mpsgrad.testing import FencedImage, assert_within, channel_counts, channel_formats

BOUNDS = {"label_smoothing": 0.0, "epsilon": 1e-7, "delta": 1.0}
REDUCTIONS = ("none", "sum", "mean", "sum_by_non_zero_weights")


def run(kernel: mg.Loss, y: np.ndarray, t: np.ndarray, weights: np.ndarray | None = None):
    """The loss image and the gradient, written into a fenced image."""
    size = (t.shape[2], t.shape[1], t.shape[3]) if kernel.reduction_type is mg.LossReductionType.NONE else (1, 1, 1)
    source, labels = mg.Image.from_array(y), mg.LossLabels.from_array(t, weights, loss_image_size=size)
    fenced = FencedImage.of(source.descriptor)
    with mg.CommandBuffer() as commands:
        assert kernel.encode(commands, source, labels, destination_image=fenced.image) is None
    return np.array(labels.loss_image), fenced.check()


@st.composite
def cases(draw: Any) -> tuple[str, Any, tuple[int, ...], str, bool, dict[str, Any]]:
    kind = draw(st.sampled_from(ELEMENT_TYPES))
    images, height, width = draw(st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)))
    shape = (images, height, width, draw(channel_counts()))
    reduction = "sum" if kind == "cosine_distance" else draw(st.sampled_from(REDUCTIONS))
    options = {
        "weight": draw(st.sampled_from([1.0, 0.5, -2.0, 0.0])),
        "label_smoothing": draw(st.sampled_from([0.0, 0.25])),
        "epsilon": draw(st.sampled_from([1e-7, 0.125])),
        "delta": draw(st.sampled_from([0.5, 1.0, 2.0])),
    }
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    weights = None
    if draw(st.booleans()):
        weights = (generator.integers(-1, 3, shape) * (generator.random(shape) < 0.7)).astype(np.float32)
    return kind, draw(channel_formats()).dtype, shape, reduction, draw(st.booleans()), options | {"weights": weights}


def weighted(shape: tuple[int, ...], options: dict[str, Any]) -> np.ndarray:
    weights = options["weights"]
    return np.abs(np.full(shape, options["weight"]) if weights is None else weights).astype(np.float64)


def scales(shape: tuple[int, ...], reduction: str, across: bool, options: dict[str, Any]) -> np.ndarray:
    """What the sum of each image is multiplied by, N x 1 x 1 x 1."""
    used = np.ones(shape) if reduction == "mean" else weighted(shape, options) != 0
    counts = used.sum((1, 2, 3), keepdims=True)
    counts = np.full_like(counts, counts.sum()) if across else counts
    counts = np.ones_like(counts) if reduction in ("none", "sum") else counts
    return np.divide(1.0, counts, out=np.zeros_like(counts, np.float64), where=counts > 0)


# Squares without weights have a loop of their own on CPUs.
SQUARES = ("mean_squared_error", np.float32, (2, 3, 3, 5), "mean", False, {"weight": 0.5, "weights": None} | BOUNDS)


@given(case=cases(), follows=st.booleans(), seed=st.integers(0, 2**32 - 1))
@example(case=SQUARES, follows=True, seed=7)
def test_losses_and_gradients_match_the_reference(case, follows, seed):
    check(case, follows, seed)


def test_certain_predictions_that_are_right_have_no_logarithmic_loss():
    y, t = (np.array(values, np.float32).reshape(1, 1, 1, 4) for values in ([0, 1, 0, 0.5], [0, 1, 1, 0.5]))
    value, gradient = run(mg.Loss(mg.LossDescriptor("log", "none", epsilon=0)), y, t)
    expected, slopes = [0, 0, np.inf, np.log(2)], [1, -1, -np.inf, 0]
    for found in (value, reference.loss_elements(y, t, "log", epsilon=0)):
        np.testing.assert_allclose(found.ravel(), expected, rtol=1e-6)
    for found in (gradient, reference.loss_gradient(y, t, "log", epsilon=0)):
        np.testing.assert_array_equal(found.ravel(), slopes)


@pytest.mark.usefixtures("shaders_of_gpus")
class TestTheShadersOfGPUs:
    @given(case=cases(), follows=st.booleans(), seed=st.integers(0, 2**32 - 1))
    def test_losses_and_gradients_match_the_reference(self, case, follows, seed):
        check(case, follows, seed)

    @pytest.mark.parametrize("kind", ELEMENT_TYPES)
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize("channels", [7, 16])
    @pytest.mark.parametrize("is_weighted", [False, True])
    def test_each_loss_by_elements_and_by_vectors(self, kind, dtype, channels, is_weighted):
        shape = (2, 3, 11, channels)
        weights = np.random.default_rng(3).integers(0, 3, shape).astype(np.float32) if is_weighted else None
        check((kind, dtype, shape, "sum", False, {"weight": 0.5, "weights": weights} | BOUNDS), True, 5)


def check(case: tuple[str, Any, tuple[int, ...], str, bool, dict[str, Any]], follows: bool, seed: int) -> None:
    kind, dtype, shape, reduction, across, options = case
    y, t = drawn(kind, shape, dtype, seed)
    plain = {name: value for name, value in options.items() if name != "weights"}
    descriptor = mg.LossDescriptor(kind, reduction, reduce_across_batch=across, **plain)
    value, gradient = run(mg.Loss(descriptor, gradient_follows_reduction=follows), y, t, options["weights"])

    of_loss, of_source, _ = (
        weighted(shape, options) * part for part in magnitudes(kind, y, t, options["epsilon"], options["delta"])
    )
    expected = reference.loss(y, t, kind, reduction=reduction, reduce_across_batch=across, **options)
    scale = scales(shape, reduction, across, options)
    if reduction != "none":
        of_one = (kind == "cosine_distance") * max(1, abs(options["weight"]))
        of_loss = (of_loss.sum((1, 2, 3), keepdims=True) + of_one) * scale
        if across:
            of_loss = np.concatenate([of_loss.sum(0, keepdims=True), np.zeros_like(of_loss[1:])])
    terms = 1 if reduction == "none" else int(np.prod(shape))
    assert_within(value, expected, bound(np.float32, terms, of_loss, expected), name="loss")

    factor = scale if follows else np.ones_like(scale)
    expected = reference.loss_gradient(y, t, kind, **options) * factor
    assert_within(gradient, expected, bound(dtype, 1, of_source * factor, expected), name="gradient")
