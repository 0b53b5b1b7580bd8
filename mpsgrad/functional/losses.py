"""Losses and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.functional.arrays import array_like, image_of
from mpsgrad.kernels.forward_loss import LossGradient
from mpsgrad.kernels.loss import Loss, LossKernel
from mpsgrad.kernels.loss_descriptor import LossDescriptor, LossReductionType, LossType
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
    """The loss of each image (or, for ``reduction="none"``, of each element) and the gradient of that loss (``Loss``).

    ``labels`` (and ``weights``) are float32 of the source's shape; ``descriptor`` are fields of ``LossDescriptor``.
    """
    kernel = Loss(LossDescriptor(loss_type, reduction, **descriptor), gradient_follows_reduction=True)
    return _loss(kernel, source, labels, weights)


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
    """The loss of an object detector and its gradient (``YOLOLoss``).

    ``labels`` (and ``weights``) are float32 of the source's shape, ``anchor_boxes`` are (width, height) in cells;
    ``descriptor`` are fields of ``YOLOLossDescriptor``.
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
    """The gradient with respect to the prediction ``source`` or the labels, given that of the loss (``LossGradient``).

    ``source_gradient`` is float32 and has the shape of the loss that ``loss`` returns.
    """
    kernel = LossGradient(LossDescriptor(loss_type, reduction, **descriptor), compute_label_gradients=for_labels)
    weights_image = None if weights is None else image_of("weights", weights)
    with CommandBuffer() as commands:
        gradient, image = image_of("source_gradient", source_gradient), image_of("source", source)
        result = kernel.encode(commands, gradient, image, image_of("labels", labels), weights_image)
    return array_like(result, source)


def softmax_cross_entropy(
    source: Any, labels: Any, weights: Any = None, *, reduction: str = "mean", **descriptor: Any
) -> tuple[np.ndarray, np.ndarray]:
    """``loss`` of type softmax cross-entropy."""
    return loss(source, labels, LossType.SOFTMAX_CROSS_ENTROPY, weights, reduction=reduction, **descriptor)
