"""The loss of object detectors with anchors, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .loss import LossType, Reduction, loss_elements, loss_gradient
from .window import Array, image


@dataclass(frozen=True)
class YOLOOptions:
    """Types, factors and thresholds. `options` are the keywords of `loss_elements` and `loss_gradient` for each part:
    "xy", "wh", "confidence" and "classes"."""

    anchors: Sequence[tuple[float, float]]
    types: tuple[LossType, LossType, LossType, LossType] = (
        "mean_squared_error",
        "huber",
        "sigmoid_cross_entropy",
        "softmax_cross_entropy",
    )
    options: tuple[dict[str, Any], ...] = ({}, {}, {}, {})
    part_weights: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    rescore: bool = True
    scale_xy: float = 10.0
    scale_wh: float = 10.0
    scale_no_object: float = 5.0
    scale_object: float = 100.0
    scale_class: float = 2.0
    least_of_object: float = 0.7
    most_of_nothing: float = 0.3


def _blocks(array: npt.ArrayLike, name: str, anchors: int) -> Array:
    """N x H x W x anchors x channels of a block."""
    values = image(array, name)
    return values.reshape(*values.shape[:3], anchors, -1)


def _sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0.0, -x))


def yolo_overlaps(prediction: npt.ArrayLike, labels: npt.ArrayLike, anchors: Sequence[tuple[float, float]]) -> Array:
    """The intersection over union of each predicted box and its label's, N x H x W x anchors; 0 without an object."""
    y, t = (_blocks(each, name, len(anchors)) for each, name in ((prediction, "prediction"), (labels, "labels")))
    sizes = np.asarray(anchors, np.float64)
    centres, wanted_centres = _sigmoid(y[..., 0:2]), t[..., 0:2]
    extents, wanted_extents = sizes * np.exp(y[..., 2:4]), sizes * np.exp(t[..., 2:4])
    first = np.maximum(centres - extents / 2, wanted_centres - wanted_extents / 2)
    last = np.minimum(centres + extents / 2, wanted_centres + wanted_extents / 2)
    intersection = np.maximum(last - first, 0.0).prod(axis=-1)
    union = extents.prod(axis=-1) + wanted_extents.prod(axis=-1) - intersection
    return np.where(t[..., 4] > 0, intersection / union, 0.0)


def yolo_choices(
    prediction: npt.ArrayLike, labels: npt.ArrayLike, options: YOLOOptions
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], Array]:
    """Which anchors have found an object, which nothing, and the confidences that they are to have."""
    overlaps = yolo_overlaps(prediction, labels, options.anchors)
    has_label = _blocks(labels, "labels", len(options.anchors))[..., 4] > 0
    best = np.argmax(np.where(has_label, overlaps, -1.0), axis=-1)[..., None]
    is_responsible = np.arange(len(options.anchors)) == best
    is_object = has_label & (is_responsible | (overlaps >= options.least_of_object))
    is_nothing = ~is_object & (overlaps <= options.most_of_nothing)
    return is_object, is_nothing, np.where(is_object, overlaps if options.rescore else 1.0, 0.0)


def yolo_loss(
    prediction: npt.ArrayLike,
    labels: npt.ArrayLike,
    options: YOLOOptions,
    *,
    choices: tuple[Any, Any, Any] | None = None,
    weights: npt.ArrayLike | None = None,
    reduction: Reduction = "sum",
    reduce_across_batch: bool = False,
) -> tuple[Array, Array, Array]:
    """The loss image, the gradient of the sum, and what the reduction multiplies each image's sum by
    (MPSCNNYOLOLoss, with choices that are ours: `yolo_choices`, which the gradient takes as constant)."""
    anchors = len(options.anchors)
    y, t = _blocks(prediction, "prediction", anchors), _blocks(labels, "labels", anchors)
    is_object, is_nothing, confidence = choices or yolo_choices(prediction, labels, options)
    seen = _sigmoid(y[..., 0:2])
    t = t.copy()
    t[..., 4] = confidence
    parts = (
        (slice(0, 2), seen, np.where(is_object, options.scale_xy, 0.0)),
        (slice(2, 4), y[..., 2:4], np.where(is_object, options.scale_wh, 0.0)),
        (
            slice(4, 5),
            y[..., 4:5],
            np.where(is_object, options.scale_object, np.where(is_nothing, options.scale_no_object, 0.0)),
        ),
        (slice(5, None), y[..., 5:], np.where(is_object, options.scale_class, 0.0)),
    )
    losses, gradient, factors = np.zeros_like(y), np.zeros_like(y), np.zeros_like(y)
    given = None if weights is None else _blocks(weights, "weights", anchors)
    for number, (part, value, mask) in enumerate(parts):
        kind, keywords = options.types[number], options.options[number]
        flat = value.reshape(-1, 1, 1, value.shape[-1]), t[..., part].reshape(-1, 1, 1, value.shape[-1])
        factor = mask[..., None] * (options.part_weights[number] if given is None else given[..., part])
        factors[..., part] = np.broadcast_to(factor, value.shape)
        losses[..., part] = loss_elements(*flat, kind, **keywords).reshape(value.shape)
        gradient[..., part] = loss_gradient(*flat, kind, **keywords).reshape(value.shape)
    gradient[..., 0:2] *= seen * (1.0 - seen)
    shape = image(prediction, "prediction").shape
    losses, gradient, factors = (
        np.multiply(each, factors, out=np.zeros_like(each), where=factors != 0).reshape(shape)
        if each is not factors
        else each.reshape(shape)
        for each in (losses, gradient, factors)
    )
    if reduction == "none":
        return losses, gradient, np.ones((shape[0], 1, 1, 1))
    axes = (0, 1, 2, 3) if reduce_across_batch else (1, 2, 3)
    counted = factors != 0 if reduction == "sum_by_non_zero_weights" else np.ones(shape)
    counts = np.maximum(counted.sum(axis=axes, keepdims=True), 1) if reduction != "sum" else np.ones((1, 1, 1, 1))
    scales = np.broadcast_to(1.0 / counts, (shape[0], 1, 1, 1))
    sums = losses.sum(axis=(1, 2, 3), keepdims=True)
    if reduce_across_batch:
        total = np.zeros_like(sums)
        total[0] = sums.sum()
        sums = total
    return sums * scales, gradient, scales
