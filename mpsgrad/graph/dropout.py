"""Nodes of dropout, and of its gradient."""

from __future__ import annotations

from mpsgrad.geometry import Size
from mpsgrad.graph.nodes import GradientFilterNode, UnaryNode
from mpsgrad.graph.setting import Setting
from mpsgrad.kernels.dropout import Dropout, DropoutGradient


class DropoutGradientNode(GradientFilterNode):
    """``DropoutGradient``. Source: ``MPSCNNDropoutGradientNode``."""

    kernel_class = DropoutGradient
    arguments = ("keep_probability", "seed", "mask_stride_in_pixels")
    reads_source_image = False


class DropoutNode(UnaryNode):
    """``Dropout``; each encode of the graph draws new masks. Source: ``MPSCNNDropoutNode``."""

    kernel_class = Dropout
    gradient_class = DropoutGradientNode
    keep_probability = Setting(0.5)
    seed = Setting(0)
    mask_stride_in_pixels = Setting(Size(1, 1, 1))
