"""Losses: element losses, their reductions, and the gradients for the prediction and for the labels.

Predictions y and labels t are N x H x W x C. `weights` (anything that broadcasts to that) replaces the scalar `weight`.
Label smoothing, when > 0, replaces the labels of "softmax_cross_entropy" by t (1 - ls) + ls / number_of_classes and
those of "sigmoid_cross_entropy" by t (1 - ls) + ls / 2; the other types ignore it.

Where Apple's printed gradient is not the derivative of the loss, the derivative stands here: huber has the sign of
y - t on its outer branch, kullback_leibler_divergence has -t and not -t / y, and hinge maps labels 0/1 to -1/+1 in the
loss too.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from .soft_max import log_soft_max, soft_max
from .window import Array, image

LossType = Literal[
    "mean_absolute_error",
    "mean_squared_error",
    "softmax_cross_entropy",
    "sigmoid_cross_entropy",
    "categorical_cross_entropy",
    "hinge",
    "huber",
    "cosine_distance",
    "log",
    "kullback_leibler_divergence",
]
Reduction = Literal["none", "sum", "mean", "sum_by_non_zero_weights"]

LOSS_TYPES: tuple[str, ...] = get_args(LossType)
REDUCTIONS: tuple[str, ...] = get_args(Reduction)


def _inputs(prediction: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Array, Array]:
    y, t = image(prediction, "prediction"), image(labels, "labels")
    if y.shape != t.shape:
        raise ValueError(f"prediction is {y.shape} but labels are {t.shape}")
    return y, t


def _element_weights(y: Array, weights: npt.ArrayLike | None, weight: float) -> Array:
    return np.broadcast_to(np.asarray(weight if weights is None else weights, np.float64), y.shape)


def _smooth(t: Array, type: LossType, label_smoothing: float, number_of_classes: int) -> tuple[Array, float]:
    """Smoothed labels and the factor d smoothed / d t."""
    if label_smoothing > 0 and type == "softmax_cross_entropy":
        return t * (1.0 - label_smoothing) + label_smoothing / number_of_classes, 1.0 - label_smoothing
    if label_smoothing > 0 and type == "sigmoid_cross_entropy":
        return t * (1.0 - label_smoothing) + 0.5 * label_smoothing, 1.0 - label_smoothing
    return t, 1.0


def _times(factor: Array, value: Array) -> Array:
    """factor * value, with 0 wherever factor is 0 even if value is infinite."""
    return np.multiply(factor, value, out=np.zeros_like(value), where=factor != 0)


def loss_elements(
    prediction: npt.ArrayLike,
    labels: npt.ArrayLike,
    type: LossType,
    *,
    label_smoothing: float = 0.0,
    number_of_classes: int = 1,
    epsilon: float = 1e-7,
    delta: float = 1.0,
) -> Array:
    """The loss of every element, before weights and reduction. Shape of the prediction.

        mean_absolute_error         |y - t|
        mean_squared_error          (y - t)^2
        softmax_cross_entropy       -t log_soft_max(y)                     0 where t is 0
        sigmoid_cross_entropy       max(y, 0) - y t + ln(1 + e^-|y|)
        categorical_cross_entropy   -t ln y                                0 where t is 0
        hinge                       max(1 - (2 t - 1) y, 0)
        huber                       d^2 / 2 for |d| <= delta, else delta^2 / 2 + delta (|d| - delta); d = y - t
        cosine_distance             -y t                                   `loss` adds a weighted 1 per image
        log                         -t ln(y + epsilon) - (1 - t) ln(1 - y + epsilon)
        kullback_leibler_divergence t (ln t - y), y = log-probabilities    0 where t is 0
    """
    y, t = _inputs(prediction, labels)
    t, _ = _smooth(t, type, label_smoothing, number_of_classes)
    with np.errstate(divide="ignore", invalid="ignore"):
        match type:
            case "mean_absolute_error":
                return np.abs(y - t)
            case "mean_squared_error":
                return (y - t) ** 2
            case "softmax_cross_entropy":
                return -_times(t, log_soft_max(y))
            case "sigmoid_cross_entropy":
                return np.maximum(y, 0.0) - y * t + np.log1p(np.exp(-np.abs(y)))
            case "categorical_cross_entropy":
                return -_times(t, np.log(y))
            case "hinge":
                return np.maximum(1.0 - (2.0 * t - 1.0) * y, 0.0)
            case "huber":
                d = np.abs(y - t)
                return np.where(d <= delta, 0.5 * d * d, 0.5 * delta * delta + delta * (d - delta))
            case "cosine_distance":
                return -y * t
            case "log":
                return -_times(t, np.log(y + epsilon)) - _times(1.0 - t, np.log(1.0 - y + epsilon))
            case "kullback_leibler_divergence":
                return _times(t, np.log(t) - y)
            case _:
                raise ValueError(f"loss type is {type!r} but must be one of {', '.join(LOSS_TYPES)}")


def _reduction_scale(
    weights: Array, type: LossType, reduction: Reduction, reduce_across_batch: bool
) -> Array:
    """What the sum of an image (N x 1 x 1 x 1) or of the batch (1 x 1 x 1 x 1) is multiplied by.

    "mean" counts elements, of softmax_cross_entropy pixels; "sum_by_non_zero_weights" counts the elements whose weight
    is not zero. None at all gives 0.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r} but must be one of {', '.join(REDUCTIONS)}")
    if type == "cosine_distance" and reduction != "sum":
        raise ValueError(f"cosine_distance can only be reduced by 'sum', not {reduction!r}")
    if reduction in ("none", "sum"):
        return np.ones((1, 1, 1, 1))
    units = weights != 0
    if reduction == "mean":
        units = np.ones_like(units[..., :1] if type == "softmax_cross_entropy" else units)
    counts = units.sum(axis=(0, 1, 2, 3) if reduce_across_batch else (1, 2, 3), keepdims=True).astype(np.float64)
    return np.divide(1.0, counts, out=np.zeros_like(counts), where=counts > 0)


def loss(
    prediction: npt.ArrayLike,
    labels: npt.ArrayLike,
    type: LossType,
    *,
    reduction: Reduction = "sum",
    weights: npt.ArrayLike | None = None,
    weight: float = 1.0,
    label_smoothing: float = 0.0,
    number_of_classes: int = 1,
    epsilon: float = 1e-7,
    delta: float = 1.0,
    reduce_across_batch: bool = False,
) -> Array:
    """The loss image: reduce(weight * element loss), N x 1 x 1 x 1, or the prediction's shape for reduction "none".

    "mean" divides an image's sum by H * W * C, for softmax_cross_entropy by H * W; "sum_by_non_zero_weights" by the
    number of elements whose weight is not zero. `reduce_across_batch` counts and sums over all images, puts the result
    into the first and 0 into the others; it does nothing to "none". cosine_distance is weight * (1 - sum(y * t)) per
    image, with `weights` 1 - sum(weights * y * t) (MPSCNNLoss's lossImage, MPSNNForwardLoss).
    """
    elements = loss_elements(
        prediction,
        labels,
        type,
        label_smoothing=label_smoothing,
        number_of_classes=number_of_classes,
        epsilon=epsilon,
        delta=delta,
    )
    w = _element_weights(elements, weights, weight)
    scale = _reduction_scale(w, type, reduction, reduce_across_batch)
    weighted = _times(w, elements)
    if reduction == "none":
        return weighted
    sums = weighted.sum(axis=(1, 2, 3), keepdims=True)
    if type == "cosine_distance":
        sums += weight if weights is None else 1.0
    if reduce_across_batch:
        total = np.zeros_like(sums)
        total[:1] = sums.sum(axis=0) * scale
        return total
    return sums * scale


def _element_gradient(y: Array, t: Array, w: Array, type: LossType, epsilon: float, delta: float) -> Array:
    """w * d element loss / dy; softmax_cross_entropy is treated in `loss_gradient` and `reduced_loss_gradient`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        match type:
            case "mean_absolute_error":
                slope = np.sign(y - t)
            case "mean_squared_error":
                slope = 2.0 * (y - t)
            case "sigmoid_cross_entropy":
                slope = np.exp(-np.logaddexp(0.0, -y)) - t
            case "categorical_cross_entropy":
                slope = -_times(t, 1.0 / y)
            case "hinge":
                slope = np.where(1.0 - (2.0 * t - 1.0) * y > 0, 1.0 - 2.0 * t, 0.0)
            case "huber":
                slope = np.clip(y - t, -delta, delta)
            case "log":
                slope = _times(1.0 - t, 1.0 / (1.0 - y + epsilon)) - _times(t, 1.0 / (y + epsilon))
            case "cosine_distance" | "kullback_leibler_divergence":
                slope = -t
            case _:
                raise ValueError(f"loss type is {type!r} but must be one of {', '.join(LOSS_TYPES)}")
    return _times(w, slope)


def loss_gradient(
    prediction: npt.ArrayLike,
    labels: npt.ArrayLike,
    type: LossType,
    *,
    weights: npt.ArrayLike | None = None,
    weight: float = 1.0,
    label_smoothing: float = 0.0,
    number_of_classes: int = 1,
    epsilon: float = 1e-7,
    delta: float = 1.0,
) -> Array:
    """The gradient as MPSCNNLoss writes it: weight * d element loss / dy, whatever the reduction.

    softmax_cross_entropy gives weight * (soft_max(y) - t), which is the derivative of the sum of the losses only if the
    labels of every pixel add up to 1 and have one weight; `reduced_loss_gradient` is exact in general.
    mean_absolute_error gives 0 where y = t.
    """
    y, t = _inputs(prediction, labels)
    t, _ = _smooth(t, type, label_smoothing, number_of_classes)
    w = _element_weights(y, weights, weight)
    if type == "softmax_cross_entropy":
        return w * (soft_max(y) - t)
    return _element_gradient(y, t, w, type, epsilon, delta)


def _chain(
    source_gradient: npt.ArrayLike, weights: Array, type: LossType, reduction: Reduction, reduce_across_batch: bool
) -> Array:
    """source_gradient * scale, in the prediction's shape."""
    g = image(source_gradient, "source_gradient")
    expected = weights.shape if reduction == "none" else (weights.shape[0], 1, 1, 1)
    if g.shape != expected:
        raise ValueError(f"source_gradient is {g.shape} but the loss image is {expected}")
    if reduce_across_batch and reduction != "none":
        g = g[:1]
    return np.broadcast_to(g * _reduction_scale(weights, type, reduction, reduce_across_batch), weights.shape)


def reduced_loss_gradient(
    source_gradient: npt.ArrayLike,
    prediction: npt.ArrayLike,
    labels: npt.ArrayLike,
    type: LossType,
    *,
    reduction: Reduction = "sum",
    weights: npt.ArrayLike | None = None,
    weight: float = 1.0,
    label_smoothing: float = 0.0,
    number_of_classes: int = 1,
    epsilon: float = 1e-7,
    delta: float = 1.0,
    reduce_across_batch: bool = False,
) -> Array:
    """The exact chain rule through `loss`: dy = source_gradient * scale * weight * d element loss / dy.

    source_gradient has the shape of the loss image; with `reduce_across_batch` only its first image is read. scale is 1
    for "none" and "sum" and one over the count that `loss` divides by otherwise. softmax_cross_entropy gives
    soft_max(y) * sum_c(f t) - f t with f = source_gradient * scale * weight, exact for any labels and weights
    (MPSNNLossGradient).
    """
    y, t = _inputs(prediction, labels)
    t, _ = _smooth(t, type, label_smoothing, number_of_classes)
    w = _element_weights(y, weights, weight)
    factor = w * _chain(source_gradient, w, type, reduction, reduce_across_batch)
    if type == "softmax_cross_entropy":
        return soft_max(y) * (factor * t).sum(axis=3, keepdims=True) - factor * t
    return _element_gradient(y, t, factor, type, epsilon, delta)


def reduced_loss_gradient_labels(
    source_gradient: npt.ArrayLike,
    prediction: npt.ArrayLike,
    labels: npt.ArrayLike,
    type: LossType,
    *,
    reduction: Reduction = "sum",
    weights: npt.ArrayLike | None = None,
    weight: float = 1.0,
    label_smoothing: float = 0.0,
    number_of_classes: int = 1,
    epsilon: float = 1e-7,
    delta: float = 1.0,
    reduce_across_batch: bool = False,
) -> Array:
    """The same chain rule for the labels: dt = source_gradient * scale * weight * d element loss / dt.

    (MPSNNLossGradient with computeLabelGradients.)
    """
    y, given = _inputs(prediction, labels)
    t, smoothing = _smooth(given, type, label_smoothing, number_of_classes)
    w = _element_weights(y, weights, weight)
    factor = w * _chain(source_gradient, w, type, reduction, reduce_across_batch)
    with np.errstate(divide="ignore", invalid="ignore"):
        match type:
            case "mean_absolute_error":
                slope = -np.sign(y - t)
            case "mean_squared_error":
                slope = -2.0 * (y - t)
            case "softmax_cross_entropy":
                slope = -log_soft_max(y) * smoothing
            case "sigmoid_cross_entropy":
                slope = -y * smoothing
            case "categorical_cross_entropy":
                slope = -np.log(y)
            case "hinge":
                slope = np.where(1.0 - (2.0 * t - 1.0) * y > 0, -2.0 * y, 0.0)
            case "huber":
                slope = -np.clip(y - t, -delta, delta)
            case "cosine_distance":
                slope = -y
            case "log":
                slope = -np.log(y + epsilon) + np.log(1.0 - y + epsilon)
            case "kullback_leibler_divergence":
                slope = np.log(t) + 1.0 - y
            case _:
                raise ValueError(f"loss type is {type!r} but must be one of {', '.join(LOSS_TYPES)}")
    return _times(factor, slope)
