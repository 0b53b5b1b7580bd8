"""Nodes of pooling, and of its gradients."""

from __future__ import annotations

from typing import Any, ClassVar

from mpsgrad.errors import FormatError
from mpsgrad.geometry import EdgeMode, integer
from mpsgrad.graph.nodes import GradientFilterNode, ImageNode, UnaryNode
from mpsgrad.graph.setting import Setting
from mpsgrad.kernels.pooling import (
    LARGEST_RECORDED_WINDOW,
    DilatedPoolingMax,
    PoolingAverage,
    PoolingL2Norm,
    PoolingMax,
)
from mpsgrad.kernels.pooling_gradient import PoolingAverageGradient, PoolingL2NormGradient
from mpsgrad.kernels.pooling_max_gradient import DilatedPoolingMaxGradient, PoolingMaxGradient
from mpsgrad.padding import Padding

WINDOW = ("kernel_width", "kernel_height", "stride_in_pixels_x", "stride_in_pixels_y")


class PoolingGradientNode(GradientFilterNode):
    """The base of the gradients of pooling. Source: ``MPSCNNPoolingGradientNode``."""

    arguments: ClassVar[tuple[str, ...]] = WINDOW


class PoolingMaxGradientNode(PoolingGradientNode):
    """``PoolingMaxGradient``. Source: ``MPSCNNPoolingMaxGradientNode``."""

    kernel_class = PoolingMaxGradient

    def reads_values(self, index: int) -> bool:
        return index == 0 or not getattr(self.inference_node, "record_maxima", False)


class DilatedPoolingMaxGradientNode(PoolingMaxGradientNode):
    """``DilatedPoolingMaxGradient``. Source: ``MPSCNNDilatedPoolingMaxGradientNode``."""

    kernel_class = DilatedPoolingMaxGradient
    arguments = (*WINDOW, "dilation_rate_x", "dilation_rate_y")


class PoolingAverageGradientNode(PoolingGradientNode):
    """``PoolingAverageGradient``. Source: ``MPSCNNPoolingAverageGradientNode``."""

    kernel_class = PoolingAverageGradient
    reads_source_image = False


class PoolingL2NormGradientNode(PoolingGradientNode):
    """``PoolingL2NormGradient``. Source: ``MPSCNNPoolingL2NormGradientNode``."""

    kernel_class = PoolingL2NormGradient


class PoolingNode(UnaryNode):
    """The base of pooling nodes. Source: ``MPSCNNPoolingNode``.

    ``filter_size`` is the window's width and height, and unless ``stride`` is given also the distance of windows; or
    each is given by the name that the kernel has. The edge mode is CLAMP at first, other than that of the kernels.
    """

    kernel_width = Setting()
    kernel_height = Setting()
    stride_in_pixels_x = Setting()
    stride_in_pixels_y = Setting()
    edge_mode = Setting(EdgeMode.CLAMP, of_kernel=True)

    # objc: -initWithSource:filterSize:
    # objc: -initWithSource:filterSize:stride:
    # objc: -initWithSource:kernelWidth:kernelHeight:strideInPixelsX:strideInPixelsY:
    def __init__(
        self,
        source: ImageNode,
        filter_size: int | None = None,
        stride: int | None = None,
        *,
        padding_policy: Padding | None = None,
        label: str | None = None,
        **settings: Any,
    ) -> None:
        if filter_size is None and stride is not None:
            raise FormatError(f"{type(self).__name__}: stride is {stride} but filter_size is missing")
        if filter_size is not None:
            size = integer(type(self).__name__, "filter_size", filter_size, 1)
            step = size if stride is None else integer(type(self).__name__, "stride", stride, 1)
            settings = dict(zip(WINDOW, (size, size, step, step), strict=True)) | settings
        settings = {"stride_in_pixels_x": 1, "stride_in_pixels_y": 1} | settings
        super().__init__(source, padding_policy=padding_policy, label=label, **settings)

    @property
    def description(self) -> str:
        size, step = f"{self.kernel_width}x{self.kernel_height}", (self.stride_in_pixels_x, self.stride_in_pixels_y)
        return f"{super().description} {size} / {step[0]}x{step[1]}"


class PoolingMaxNode(PoolingNode):
    """``PoolingMax``; for the gradient the winners are recorded. Source: ``MPSCNNPoolingMaxNode``."""

    kernel_class: ClassVar[Any] = PoolingMax
    gradient_class = PoolingMaxGradientNode

    def __init__(self, source: ImageNode, filter_size: int | None = None, stride: int | None = None, **others: Any):
        super().__init__(source, filter_size, stride, **others)
        taps = self.kernel_width * self.kernel_height
        self.record_maxima = taps <= LARGEST_RECORDED_WINDOW

    record_maxima = Setting(True)


class DilatedPoolingMaxNode(PoolingMaxNode):
    """``DilatedPoolingMax``. Source: ``MPSCNNDilatedPoolingMaxNode``."""

    kernel_class = DilatedPoolingMax
    gradient_class = DilatedPoolingMaxGradientNode
    dilation_rate_x = Setting(1)
    dilation_rate_y = Setting(1)


class PoolingAverageNode(PoolingNode):
    """``PoolingAverage``. Source: ``MPSCNNPoolingAverageNode``."""

    kernel_class = PoolingAverage
    gradient_class = PoolingAverageGradientNode
    zero_pad_size_x = Setting(0, of_kernel=True)
    zero_pad_size_y = Setting(0, of_kernel=True)


class PoolingL2NormNode(PoolingNode):
    """``PoolingL2Norm``. Source: ``MPSCNNPoolingL2NormNode``."""

    kernel_class = PoolingL2Norm
    gradient_class = PoolingL2NormGradientNode
