"""Nodes of reductions, and of their gradients."""

from __future__ import annotations

from typing import ClassVar

from mpsgrad.geometry import NO_CLIP
from mpsgrad.graph.nodes import GradientFilterNode, UnaryNode
from mpsgrad.graph.setting import Setting
from mpsgrad.kernels import reduction


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
