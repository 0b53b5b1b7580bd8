"""Nodes of the normalizations by neighbouring channels and pixels, and of their gradients."""

from __future__ import annotations

from typing import Any, ClassVar

from mpsgrad.graph.nodes import GradientFilterNode, UnaryNode
from mpsgrad.graph.setting import Setting
from mpsgrad.kernels.response_normalization import (
    CrossChannelNormalization,
    CrossChannelNormalizationGradient,
    LocalContrastNormalization,
    LocalContrastNormalizationGradient,
    SpatialNormalization,
    SpatialNormalizationGradient,
)


class CrossChannelNormalizationGradientNode(GradientFilterNode):
    """``CrossChannelNormalizationGradient``. Source: ``MPSCNNCrossChannelNormalizationGradientNode``."""

    kernel_class = CrossChannelNormalizationGradient
    arguments = ("kernel_size",)
    properties = ("alpha", "beta", "delta")


class SpatialNormalizationGradientNode(GradientFilterNode):
    """``SpatialNormalizationGradient``. Source: ``MPSCNNSpatialNormalizationGradientNode``."""

    kernel_class: ClassVar[Any] = SpatialNormalizationGradient
    arguments = ("kernel_width", "kernel_height")
    properties: ClassVar[tuple[str, ...]] = ("alpha", "beta", "delta")


class LocalContrastNormalizationGradientNode(SpatialNormalizationGradientNode):
    """``LocalContrastNormalizationGradient``. Source: ``MPSCNNLocalContrastNormalizationGradientNode``."""

    kernel_class = LocalContrastNormalizationGradient
    properties = ("alpha", "beta", "delta", "p0", "pm", "ps")


class NormalizationNode(UnaryNode):
    """The base of these normalizations. Source: ``MPSCNNNormalizationNode``."""

    alpha = Setting(1.0, of_kernel=True)
    beta = Setting(5.0, of_kernel=True)
    delta = Setting(1.0, of_kernel=True)


class CrossChannelNormalizationNode(NormalizationNode):
    """``CrossChannelNormalization``. Source: ``MPSCNNCrossChannelNormalizationNode``."""

    kernel_class = CrossChannelNormalization
    gradient_class = CrossChannelNormalizationGradientNode
    kernel_size = Setting(5)


class SpatialNormalizationNode(NormalizationNode):
    """``SpatialNormalization``. Source: ``MPSCNNSpatialNormalizationNode``."""

    kernel_class: ClassVar[Any] = SpatialNormalization
    gradient_class = SpatialNormalizationGradientNode
    kernel_width = Setting(5)
    kernel_height = Setting(5)


class LocalContrastNormalizationNode(SpatialNormalizationNode):
    """``LocalContrastNormalization``. Source: ``MPSCNNLocalContrastNormalizationNode``.

    ``alpha``, ``beta`` and ``delta`` are at first those of all normalization nodes, 1, 5 and 1, where the kernel has 0,
    1/2 and 1/1024.
    """

    kernel_class = LocalContrastNormalization
    gradient_class = LocalContrastNormalizationGradientNode
    p0 = Setting(1.0, of_kernel=True)
    pm = Setting(0.0, of_kernel=True)
    ps = Setting(1.0, of_kernel=True)
