"""Losses and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.functional.arrays import array_like, channels_of, image_of
from mpsgrad.kernels.loss import Loss, LossKernel
from mpsgrad.kernels.loss_descriptor import LossDescriptor, LossReductionType, LossType
from mpsgrad.kernels.loss_gradient import LossGradient
from mpsgrad.kernels.loss_labels import LossLabels
from mpsgrad.kernels.yolo_loss import YOLOLoss, YOLOLossDescriptor


def loss(
    source: Any,
    labels: Any,
    loss_type: str | LossType,
    weights: Any = None,
    *,
    reduction: str = "mean",
    **descriptor: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """The loss of each image, N x 1 x 1 x 1, and the gradient of that loss with respect to ``source``.

    ``loss_type`` is a ``LossType`` or its name, as ``"mean_squared_error"``; ``Loss`` has the formulas. ``reduction``
    is ``"none"`` (a loss of each element), ``"sum"``, ``"mean"`` or ``"sum_by_non_zero_weights"``, over each image by
    itself. ``labels`` (and ``weights``) are float32 of the source's shape: of classes one-hot. ``descriptor`` are
    ``weight``, ``label_smoothing``, ``number_of_classes``, ``epsilon``, ``delta`` and ``reduce_across_batch`` of
    ``LossDescriptor``; unless they are given the classes are as many as the channels, and not 1 as there. Source:
    ``Loss``, and ``LossGradient`` for softmax cross-entropy.
    """
    kernel = Loss(_descriptor(source, loss_type, reduction, descriptor), gradient_follows_reduction=True)
    value, gradient = _loss(kernel, source, labels, weights)
    if kernel.loss_type is LossType.SOFTMAX_CROSS_ENTROPY:
        # That of ``Loss`` is exact only where a pixel's labels add up to 1 and its weights are equal.
        ones = np.ones_like(value)
        gradient = loss_gradient(ones, source, labels, loss_type, weights, reduction=reduction, **descriptor)
    return value, gradient


def _descriptor(source: Any, loss_type: Any, reduction: str, given: dict[str, Any]) -> LossDescriptor:
    """The descriptor with the fields ``given``, whose classes are the channels of ``source`` otherwise."""
    return LossDescriptor(loss_type, reduction, **{"number_of_classes": channels_of("source", source), **given})


def _loss(kernel: LossKernel, source: Any, labels: Any, weights: Any) -> tuple[np.ndarray, np.ndarray]:
    image = image_of("source", source)
    size = (1, 1, 1)
    if kernel.reduction_type is LossReductionType.NONE:
        size = (image.width, image.height, image.feature_channels)
    targets = LossLabels.from_images(
        image_of("labels", labels), None if weights is None else image_of("weights", weights), loss_image_size=size
    )
    with CommandBuffer() as commands:
        result = kernel.encode(commands, image, targets)
    assert result is not None
    return array_like(targets.loss_image, source), array_like(result, source)


def yolo_loss(
    source: Any, labels: Any, anchor_boxes: Any, weights: Any = None, *, reduction: str = "mean", **descriptor: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The loss of an object detector for each image and the gradient of that loss with respect to ``source``.

    ``labels`` (and ``weights``) are float32 of the source's shape, ``anchor_boxes`` are (width, height) in cells;
    ``descriptor`` are fields of ``YOLOLossDescriptor``. Source: ``YOLOLoss``.
    """
    made = YOLOLossDescriptor(anchor_boxes, reduction_type=reduction, **descriptor)
    return _loss(YOLOLoss(made, gradient_follows_reduction=True), source, labels, weights)


def loss_gradient(
    source_gradient: Any,
    source: Any,
    labels: Any,
    loss_type: str | LossType,
    weights: Any = None,
    *,
    for_labels: bool = False,
    reduction: str = "mean",
    **descriptor: Any,
) -> np.ndarray:
    """The gradient with respect to the prediction ``source``, or ``for_labels`` to these, given that of the loss.

    ``source_gradient`` is float32 and has the shape of the loss that ``loss`` returns; the other arguments are those of
    ``loss``. Source: ``LossGradient``.
    """
    made = _descriptor(source, loss_type, reduction, descriptor)
    kernel = LossGradient(made, compute_label_gradients=for_labels)
    weights_image = None if weights is None else image_of("weights", weights)
    with CommandBuffer() as commands:
        gradient, image = image_of("source_gradient", source_gradient), image_of("source", source)
        result = kernel.encode(commands, gradient, image, image_of("labels", labels), weights_image)
    return array_like(result, source)


def softmax_cross_entropy(
    source: Any, labels: Any, weights: Any = None, *, reduction: str = "mean", **descriptor: Any
) -> tuple[np.ndarray, np.ndarray]:
    """``-sum(t log_soft_max(x))`` over the channels: ``loss`` of this type, with its arguments and results.

    ``labels`` are one-hot, or probabilities, not numbers of classes. The mean is that over the pixels. Source:
    ``Loss``.
    """
    return loss(source, labels, LossType.SOFTMAX_CROSS_ENTROPY, weights, reduction=reduction, **descriptor)
