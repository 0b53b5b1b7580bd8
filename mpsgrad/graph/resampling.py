"""Nodes of upsampling, resizing and cropping, and of their gradients."""

from __future__ import annotations

from typing import Any, ClassVar

from mpsgrad.graph.nodes import GradientFilterNode, UnaryNode
from mpsgrad.graph.setting import Setting
from mpsgrad.kernels.crop_and_resize import CropAndResizeBilinear, CropAndResizeBilinearGradient
from mpsgrad.kernels.upsampling import (
    ResizeBilinear,
    ResizeBilinearGradient,
    UpsamplingBilinear,
    UpsamplingBilinearGradient,
    UpsamplingNearest,
    UpsamplingNearestGradient,
)


class UpsamplingNearestGradientNode(GradientFilterNode):
    """``UpsamplingNearestGradient``. Source: ``MPSCNNUpsamplingNearestGradientNode``."""

    kernel_class: ClassVar[Any] = UpsamplingNearestGradient
    arguments: ClassVar[tuple[str, ...]] = ("scale_factor_x", "scale_factor_y")
    reads_source_image = False


class UpsamplingBilinearGradientNode(UpsamplingNearestGradientNode):
    """``UpsamplingBilinearGradient``. Source: ``MPSCNNUpsamplingBilinearGradientNode``."""

    kernel_class = UpsamplingBilinearGradient


class BilinearScaleGradientNode(UpsamplingNearestGradientNode):
    """``ResizeBilinearGradient``; MPS has none."""

    kernel_class = ResizeBilinearGradient
    arguments = ("resize_width", "resize_height", "align_corners")


class UpsamplingNearestNode(UnaryNode):
    """``UpsamplingNearest``. Source: ``MPSCNNUpsamplingNearestNode``."""

    kernel_class: ClassVar[Any] = UpsamplingNearest
    gradient_class = UpsamplingNearestGradientNode
    scale_factor_x = Setting(2)
    scale_factor_y = Setting(2)


class UpsamplingBilinearNode(UpsamplingNearestNode):
    """``UpsamplingBilinear``. Source: ``MPSCNNUpsamplingBilinearNode``."""

    kernel_class = UpsamplingBilinear
    gradient_class = UpsamplingBilinearGradientNode
    align_corners = Setting(False)


class BilinearScaleNode(UnaryNode):
    """``ResizeBilinear`` to ``resize_width`` x ``resize_height`` pixels. Source: ``MPSNNBilinearScaleNode``."""

    kernel_class = ResizeBilinear
    gradient_class = BilinearScaleGradientNode
    resize_width = Setting()
    resize_height = Setting()
    align_corners = Setting(False)


class CropAndResizeBilinearGradientNode(GradientFilterNode):
    """``CropAndResizeBilinearGradient``; MPS has none."""

    kernel_class = CropAndResizeBilinearGradient
    reads_source_image = False


class CropAndResizeBilinearNode(UnaryNode):
    """``CropAndResizeBilinear``: ``regions`` of the image, each resized; MPS has the kernel only."""

    kernel_class = CropAndResizeBilinear
    gradient_class = CropAndResizeBilinearGradientNode
    resize_width = Setting()
    resize_height = Setting()
    regions = Setting()
    aligns_channels = Setting(False)
