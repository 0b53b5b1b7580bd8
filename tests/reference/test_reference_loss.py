"""The reference of losses: gradients against central differences, reductions by their definitions, and limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_geometry import assert_gradient, seeds

from mpsgrad import reference
from mpsgrad.reference.loss import LOSS_TYPES, REDUCTIONS

shapes = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5))
weightings = st.sampled_from(["one", "scalar", "element", "pixel", "some are zero"])
OPTIONS = {"label_smoothing": 0.3, "number_of_classes": 4, "epsilon": 1e-3, "delta": 0.7}


def drawn(type: str, shape: tuple[int, ...], seed: int):
    """Predictions and labels inside the domain of the loss (probabilities where it takes logarithms of them).

    They keep away from the kinks, where the derivatives jump and a central difference means nothing.
    """
    rng = np.random.default_rng(seed)
    t = rng.uniform(0.1, 0.9, shape)
    match type:
        case "categorical_cross_entropy" | "log":
            y = rng.uniform(0.1, 0.9, shape)
        case "mean_absolute_error" | "huber":
            y = t + rng.choice([-1.0, 1.0], shape) * (rng.uniform(0.01, 0.69, shape) + rng.choice([0.0, 0.7], shape))
        case "hinge":
            y = rng.uniform(-3.0, 3.0, shape)
            y = np.where(np.abs(1.0 - (2.0 * t - 1.0) * y) < 1e-3, 0.0, y)
        case _:
            y = 2.0 * rng.standard_normal(shape)
    return y, t, rng


def drawn_weights(weighting: str, shape: tuple[int, ...], rng: np.random.Generator) -> dict:
    match weighting:
        case "one":
            return {}
        case "scalar":
            return {"weight": 0.7}
        case "pixel":
            return {"weights": rng.uniform(0.5, 2.0, (*shape[:3], 1))}
        case "element":
            return {"weights": rng.uniform(0.5, 2.0, shape)}
        case _:
            return {"weights": rng.integers(0, 2, shape) * 1.5}


@pytest.mark.parametrize("type", LOSS_TYPES)
@settings(deadline=None)
@given(shape=shapes, reduction=st.sampled_from(REDUCTIONS), weighting=weightings, across=st.booleans(), seed=seeds)
def test_exact_gradients_against_central_differences(type, shape, reduction, weighting, across, seed):
    y, t, rng = drawn(type, shape, seed)
    keywords = OPTIONS | drawn_weights(weighting, shape, rng)
    keywords |= {"reduction": "sum" if type == "cosine_distance" else reduction, "reduce_across_batch": across}
    value = reference.loss(y, t, type, **keywords)
    g = rng.standard_normal(value.shape)
    dy = reference.reduced_loss_gradient(g, y, t, type, **keywords)
    assert_gradient(lambda v: reference.loss(v, t, type, **keywords), y, g, dy, rng, step=1e-6)
    dt = reference.reduced_loss_gradient_labels(g, y, t, type, **keywords)
    assert_gradient(lambda v: reference.loss(y, v, type, **keywords), t, g, dt, rng, step=1e-6)


@pytest.mark.parametrize("type", LOSS_TYPES)
@settings(deadline=None)
@given(shape=shapes, weighting=st.sampled_from(["one", "scalar", "pixel"]), seed=seeds)
def test_the_gradient_of_mps_is_that_of_the_sum(type, shape, weighting, seed):
    y, t, rng = drawn(type, shape, seed)
    t /= t.sum(axis=3, keepdims=True)
    keywords = {"label_smoothing": 0.3, "number_of_classes": shape[3]} | drawn_weights(weighting, shape, rng)
    exact = reference.reduced_loss_gradient(np.ones((shape[0], 1, 1, 1)), y, t, type, **keywords)
    np.testing.assert_allclose(reference.loss_gradient(y, t, type, **keywords), exact, rtol=1e-13, atol=1e-14)


def test_softmax_cross_entropy_subtracts_the_labels_as_printed_when_they_do_not_add_up_to_one():
    y, t = np.array([0.2, -0.4, 1.5]).reshape(1, 1, 1, 3), np.array([1.0, 1.0, 0.0]).reshape(1, 1, 1, 3)
    p = reference.soft_max(y)
    np.testing.assert_array_equal(reference.loss_gradient(y, t, "softmax_cross_entropy"), p - t)
    one = np.ones((1, 1, 1, 1))
    np.testing.assert_allclose(reference.reduced_loss_gradient(one, y, t, "softmax_cross_entropy"), 2 * p - t)


@pytest.mark.parametrize("type", [type for type in LOSS_TYPES if type != "cosine_distance"])
@settings(deadline=None)
@given(shape=shapes, weighting=weightings, seed=seeds)
def test_reductions_agree_with_their_definitions(type, shape, weighting, seed):
    y, t, rng = drawn(type, shape, seed)
    keywords = OPTIONS | drawn_weights(weighting, shape, rng)
    w = np.broadcast_to(keywords.get("weights", keywords.get("weight", 1.0)), shape)
    options = {name: OPTIONS[name] for name in ("label_smoothing", "number_of_classes", "epsilon", "delta")}
    elements = reference.loss_elements(y, t, type, **options) * w
    units = shape[1] * shape[2] * (1 if type == "softmax_cross_entropy" else shape[3])
    used = w != 0
    per_image = elements.reshape(shape[0], -1).sum(axis=1)
    used_per_image = used.reshape(shape[0], -1).sum(axis=1)

    def value(reduction, across=False):
        return reference.loss(y, t, type, reduction=reduction, reduce_across_batch=across, **keywords)

    np.testing.assert_array_equal(value("none"), elements)
    np.testing.assert_array_equal(value("none", True), elements)
    np.testing.assert_allclose(value("sum").ravel(), per_image)
    np.testing.assert_allclose(value("mean").ravel(), per_image / units)
    np.testing.assert_allclose(value("sum_by_non_zero_weights").ravel(), per_image / np.maximum(used_per_image, 1))
    rest = [0.0] * (shape[0] - 1)
    total = per_image.sum()
    np.testing.assert_allclose(value("sum", True).ravel(), [total, *rest])
    np.testing.assert_allclose(value("mean", True).ravel(), [total / (units * shape[0]), *rest])
    np.testing.assert_allclose(
        value("sum_by_non_zero_weights", True).ravel(), [total / max(used.sum(), 1), *rest]
    )
    assert value("sum").shape == (shape[0], 1, 1, 1)


def test_cosine_distance_counts_one_per_image():
    y, t = np.ones((2, 1, 1, 3)) / 3, np.ones((2, 1, 1, 3)) / 2
    np.testing.assert_allclose(reference.loss(y, t, "cosine_distance").ravel(), [0.5, 0.5])
    np.testing.assert_allclose(reference.loss(y, t, "cosine_distance", reduce_across_batch=True).ravel(), [1.0, 0.0])
    np.testing.assert_allclose(reference.loss(y, t, "cosine_distance", weight=3.0).ravel(), [1.5, 1.5])
    weights = np.full(y.shape, 3.0)
    np.testing.assert_allclose(reference.loss(y, t, "cosine_distance", weights=weights).ravel(), [-0.5, -0.5])
    with pytest.raises(ValueError, match="cosine_distance can only be reduced by 'sum', not 'mean'"):
        reference.loss(y, t, "cosine_distance", reduction="mean")


def test_labels_of_zero_ask_nothing_of_a_probability_of_zero():
    y, t = np.array([0.0, 0.5]).reshape(1, 1, 1, 2), np.array([0.0, 1.0]).reshape(1, 1, 1, 2)
    np.testing.assert_allclose(reference.loss_elements(y, t, "categorical_cross_entropy").ravel(), [0.0, np.log(2.0)])
    np.testing.assert_array_equal(reference.loss_gradient(y, t, "categorical_cross_entropy").ravel(), [0.0, -2.0])
    y = np.log(np.array([0.5, 0.5])).reshape(1, 1, 1, 2)
    np.testing.assert_allclose(
        reference.loss_elements(y, t, "kullback_leibler_divergence").ravel(), [0.0, np.log(2.0)]
    )


def test_absolute_error_has_no_gradient_at_equality():
    y = np.array([1.0, 2.0, 3.0]).reshape(1, 1, 1, 3)
    t = np.array([2.0, 2.0, 2.0]).reshape(1, 1, 1, 3)
    np.testing.assert_array_equal(reference.loss_gradient(y, t, "mean_absolute_error").ravel(), [-1.0, 0.0, 1.0])


def test_large_logits_stay_finite():
    y = np.array([1e3, -1e3, 0.0]).reshape(1, 1, 1, 3)
    t = np.array([0.0, 1.0, 0.0]).reshape(1, 1, 1, 3)
    for type in ("softmax_cross_entropy", "sigmoid_cross_entropy"):
        assert np.isfinite(reference.loss_elements(y, t, type)).all()
        assert np.isfinite(reference.loss_gradient(y, t, type)).all()


def test_bad_arguments_are_named():
    y = np.ones((2, 1, 1, 3))
    for function in (reference.loss, reference.loss_gradient):
        with pytest.raises(ValueError, match="loss type is 'squared'"):
            function(y, y, "squared")
    with pytest.raises(ValueError, match="reduction is 'average'"):
        reference.loss(y, y, "huber", reduction="average")
    with pytest.raises(ValueError, match=r"prediction is \(2, 1, 1, 3\) but labels are \(1, 1, 1, 3\)"):
        reference.loss(y, y[:1], "huber")
    with pytest.raises(ValueError, match=r"source_gradient is \(2, 1, 1, 3\) but the loss image is \(2, 1, 1, 1\)"):
        reference.reduced_loss_gradient(y, y, y, "huber")
