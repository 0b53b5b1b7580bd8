"""What a loss is computed of, and the sum of its parts: what all losses have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpsgrad.errors import GeometryError
from mpsgrad.geometry import MAXIMUM, NO_CLIP, Offset
from mpsgrad.image import Image
from mpsgrad.kernel import BaseKernel
from mpsgrad.kernels.loss_descriptor import LossDescriptor, LossReductionType, LossType
from mpsgrad.kernels.pointwise import Layout

NOWHERE: Layout = (0, 0, 0, 0, 0, 0, 0, 0)
"""The layout of an image that is not there."""

_WHOLE_IMAGES: dict[str, Any] = {
    "offset": Offset(),
    "clip_rect": NO_CLIP,
    "feature_channel_offset": 0,
    "feature_channel_max_count": MAXIMUM,
}
_SOURCES = ("", "source_", "destination_", "primary_", "primary_source_", "secondary_", "secondary_source_")


def require_whole_images(kernel: BaseKernel) -> None:
    """Raises ``GeometryError`` if a property of ``kernel`` chooses a part of an image."""
    for source in _SOURCES:
        for name, default in _WHOLE_IMAGES.items():
            value = getattr(kernel, source + name, default)
            if value != default:
                raise GeometryError(f"{type(kernel).__name__}: {source}{name} is {value}; a loss works on whole images")


@dataclass(frozen=True)
class LossTerms:
    """A prediction, its labels and weights, and the descriptor of the loss."""

    descriptor: LossDescriptor
    source: Image
    labels: Image
    weights: Image | None

    @property
    def unreduced(self) -> bool:
        return self.descriptor.reduction_type is LossReductionType.NONE

    @property
    def across_batch(self) -> bool:
        """Whether all images have one value."""
        return self.descriptor.reduce_across_batch and not self.unreduced

    @property
    def count(self) -> int:
        """The elements that a value is computed of; for the MEAN of softmax cross-entropy the pixels."""
        source = self.source
        pixels = source.width * source.height * (source.number_of_images if self.across_batch else 1)
        is_by_pixel = self.descriptor.loss_type is LossType.SOFTMAX_CROSS_ENTROPY and not self._by_weights
        return pixels if is_by_pixel else pixels * source.feature_channels

    @property
    def counts_weights(self) -> bool:
        """Whether the gradient of the reduced loss depends on how many weights are not 0, which the device counts."""
        return self.weights is not None and self._by_weights

    @property
    def _by_weights(self) -> bool:
        return self.descriptor.reduction_type is LossReductionType.SUM_BY_NON_ZERO_WEIGHTS

    @property
    def scale(self) -> float:
        """What the sum of the losses is multiplied by, unless it ``counts_weights``."""
        if self._by_weights and self.descriptor.weight == 0.0:
            return 0.0
        return 1.0 / self.count if self._by_weights or self.descriptor.reduction_type is LossReductionType.MEAN else 1.0

    @property
    def summand(self) -> float:
        """What an image's sum has besides its elements: the weighted 1 of the cosine distance."""
        if self.descriptor.loss_type is not LossType.COSINE_DISTANCE:
            return 0.0
        return self.descriptor.weight if self.weights is None else 1.0

    @property
    def smoothing(self) -> tuple[float, float]:
        """The factor and the summand that smooth a label."""
        amount = self.descriptor.label_smoothing
        if self.descriptor.loss_type is LossType.SOFTMAX_CROSS_ENTROPY:
            return 1.0 - amount, amount / self.descriptor.number_of_classes
        if self.descriptor.loss_type is LossType.SIGMOID_CROSS_ENTROPY:
            return 1.0 - amount, 0.5 * amount
        return 1.0, 0.0

    def layout_of_loss_gradient(self, loss_gradient: Image) -> Layout:
        """The layout that gives each element of the source the gradient of its loss: one for all that share a value."""
        if self.unreduced:
            return loss_gradient.layout
        first, _, _, step, *_ = loss_gradient.layout
        return (first, 0, 0, 0 if self.across_batch else step, 0, 0, 0, 0)
