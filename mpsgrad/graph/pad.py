"""The node of padding, and of its gradient."""

from __future__ import annotations

from typing import Any

from mpsgrad.geometry import EdgeMode, ImageCoordinate
from mpsgrad.graph.nodes import GradientFilterNode, ImageNode, UnaryNode
from mpsgrad.graph.setting import Setting
from mpsgrad.kernels.pad import Pad, PadGradient


class PadGradientNode(GradientFilterNode):
    """``PadGradient``. Source: ``MPSNNPadGradientNode``."""

    kernel_class = PadGradient
    reads_source_image = False


class PadNode(UnaryNode):
    """``Pad`` by so many columns, rows and channels before and behind. Source: ``MPSNNPadNode``."""

    kernel_class = Pad
    gradient_class = PadGradientNode
    padding_size_before = Setting()
    padding_size_after = Setting()
    edge_mode = Setting(EdgeMode.ZERO, of_kernel=True)
    fill_value = Setting(0.0, of_kernel=True)

    # objc: -initWithSource:paddingSizeBefore:paddingSizeAfter:edgeMode:
    def __init__(
        self,
        source: ImageNode,
        padding_size_before: tuple[int, int, int] = ImageCoordinate(),
        padding_size_after: tuple[int, int, int] = ImageCoordinate(),
        **others: Any,
    ) -> None:
        super().__init__(
            source, padding_size_before=padding_size_before, padding_size_after=padding_size_after, **others
        )
