"""Nodes of reductions, and of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from mpsgrad.devices import Device
from mpsgrad.geometry import NO_CLIP
from mpsgrad.graph.nodes import (
    BinaryGradientStateNode,
    FilterNode,
    GradientFilterNode,
    GradientOfOneImageNode,
    ImageNode,
    UnaryNode,
)
from mpsgrad.graph.setting import Setting
from mpsgrad.kernels import reduction, weighted_reduction
from mpsgrad.padding import Padding


class ReductionGradientNode(GradientFilterNode):
    """``ReduceGradient``: the gradient of any reduction with one; MPS has that of the spatial mean only."""

    kernel_class = reduction.ReduceGradient

    def reads_values(self, index: int) -> bool:
        return index == 0 or getattr(self.inference_node.kernel_class, "operation", None) in ("min", "max")


class ReductionSpatialMeanGradientNode(ReductionGradientNode):
    """``ReductionSpatialMeanGradient``. Source: ``MPSNNReductionSpatialMeanGradientNode``."""

    kernel_class = reduction.ReductionSpatialMeanGradient


class ReductionNode(UnaryNode):
    """The base of reductions. Source: ``MPSNNUnaryReductionNode``."""

    gradient_class: ClassVar[type[GradientFilterNode] | None] = ReductionGradientNode
    clip_rect_source = Setting(NO_CLIP, of_kernel=True)


class ReductionSpatialMeanNode(ReductionNode):
    """``ReductionSpatialMean``: global average pooling. Source: ``MPSNNReductionSpatialMeanNode``."""

    kernel_class = reduction.ReductionSpatialMean
    gradient_class = ReductionSpatialMeanGradientNode


class ReductionRowMinNode(ReductionNode):
    """``ReduceRowMin``. Source: ``MPSNNReductionRowMinNode``."""

    kernel_class = reduction.ReduceRowMin


class ReductionRowMaxNode(ReductionNode):
    """``ReduceRowMax``. Source: ``MPSNNReductionRowMaxNode``."""

    kernel_class = reduction.ReduceRowMax


class ReductionRowMeanNode(ReductionNode):
    """``ReduceRowMean``. Source: ``MPSNNReductionRowMeanNode``."""

    kernel_class = reduction.ReduceRowMean


class ReductionRowSumNode(ReductionNode):
    """``ReduceRowSum``. Source: ``MPSNNReductionRowSumNode``."""

    kernel_class = reduction.ReduceRowSum


class ReductionColumnMinNode(ReductionNode):
    """``ReduceColumnMin``. Source: ``MPSNNReductionColumnMinNode``."""

    kernel_class = reduction.ReduceColumnMin


class ReductionColumnMaxNode(ReductionNode):
    """``ReduceColumnMax``. Source: ``MPSNNReductionColumnMaxNode``."""

    kernel_class = reduction.ReduceColumnMax


class ReductionColumnMeanNode(ReductionNode):
    """``ReduceColumnMean``. Source: ``MPSNNReductionColumnMeanNode``."""

    kernel_class = reduction.ReduceColumnMean


class ReductionColumnSumNode(ReductionNode):
    """``ReduceColumnSum``. Source: ``MPSNNReductionColumnSumNode``."""

    kernel_class = reduction.ReduceColumnSum


class ReductionFeatureChannelsMinNode(ReductionNode):
    """``ReduceFeatureChannelsMin``. Source: ``MPSNNReductionFeatureChannelsMinNode``."""

    kernel_class = reduction.ReduceFeatureChannelsMin


class ReductionFeatureChannelsMaxNode(ReductionNode):
    """``ReduceFeatureChannelsMax``. Source: ``MPSNNReductionFeatureChannelsMaxNode``."""

    kernel_class = reduction.ReduceFeatureChannelsMax


class ReductionFeatureChannelsMeanNode(ReductionNode):
    """``ReduceFeatureChannelsMean``. Source: ``MPSNNReductionFeatureChannelsMeanNode``."""

    kernel_class = reduction.ReduceFeatureChannelsMean


class ReductionFeatureChannelsSumNode(ReductionNode):
    """``ReduceFeatureChannelsSum``. Source: ``MPSNNReductionFeatureChannelsSumNode``."""

    kernel_class = reduction.ReduceFeatureChannelsSum
    weight = Setting(1.0, of_kernel=True)


class ReductionFeatureChannelsArgumentMinNode(ReductionNode):
    """``ReduceFeatureChannelsArgumentMin``; it has no gradient.

    Source: ``MPSNNReductionFeatureChannelsArgumentMinNode``.
    """

    kernel_class = reduction.ReduceFeatureChannelsArgumentMin
    gradient_class = None
    state_class = None


class ReductionFeatureChannelsArgumentMaxNode(ReductionNode):
    """``ReduceFeatureChannelsArgumentMax``; it has no gradient.

    Source: ``MPSNNReductionFeatureChannelsArgumentMaxNode``.
    """

    kernel_class = reduction.ReduceFeatureChannelsArgumentMax
    gradient_class = None
    state_class = None


class ReductionFeatureChannelsAndWeightsGradientNode(GradientOfOneImageNode):
    """``ReduceFeatureChannelsAndWeightsGradient``; MPS has none.

    ``is_secondary_source_filter`` says whether the gradient is that of the weights.
    """

    kernel_class = weighted_reduction.ReduceFeatureChannelsAndWeightsGradient

    def make_kernels(self, device: Device, forward: Sequence[Any]) -> list[Any]:
        which = self.is_secondary_source_filter
        return [self.kernel_class(is_secondary_source_filter=which, device=device, label=self.label)]


class ReductionWithWeightsNode(FilterNode):
    """The base of reductions of an image with weights, which are an image too."""

    state_class = BinaryGradientStateNode
    primary_source_clip_rect = Setting(NO_CLIP, of_kernel=True)
    secondary_source_clip_rect = Setting(NO_CLIP, of_kernel=True)

    def __init__(
        self,
        source: ImageNode,
        weights: ImageNode,
        *,
        padding_policy: Padding | None = None,
        label: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__((source, weights), padding_policy=padding_policy, label=label, **settings)

    @property
    def _weights_have_a_gradient(self) -> bool:
        return True

    def _gradient_nodes(self, source: ImageNode, is_singular: bool) -> list[GradientFilterNode]:
        assert self.result_state is not None
        image, weights = self.source_images
        gradient_class = ReductionFeatureChannelsAndWeightsGradientNode
        made: list[GradientFilterNode] = [
            gradient_class(source, weights, self.result_state, is_secondary_source_filter=False)
        ]
        if self._weights_have_a_gradient:
            made.append(gradient_class(source, image, self.result_state, is_secondary_source_filter=True))
        return made


class ReductionFeatureChannelsAndWeightsSumNode(ReductionWithWeightsNode):
    """``ReduceFeatureChannelsAndWeightsSum``; MPS has the kernel only.

    ``gradient_filters`` gives the gradients for the image and for its weights. With
    ``do_weighted_sum_by_non_zero_weights`` there is none for the weights, and ``gradient_filter`` gives the other.
    """

    kernel_class = weighted_reduction.ReduceFeatureChannelsAndWeightsSum
    do_weighted_sum_by_non_zero_weights = Setting(False)

    @property
    def _weights_have_a_gradient(self) -> bool:
        return not self.do_weighted_sum_by_non_zero_weights


class ReductionFeatureChannelsAndWeightsMeanNode(ReductionWithWeightsNode):
    """``ReduceFeatureChannelsAndWeightsMean``; MPS has the kernel only.

    ``gradient_filters`` gives the gradients for the image and for its weights.
    """

    kernel_class = weighted_reduction.ReduceFeatureChannelsAndWeightsMean
