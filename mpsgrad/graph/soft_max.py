"""Nodes of soft max, and of its gradients."""

from __future__ import annotations

from mpsgrad.graph.nodes import GradientFilterNode, UnaryNode
from mpsgrad.kernels.soft_max import LogSoftMax, LogSoftMaxGradient, SoftMax, SoftMaxGradient


class SoftMaxGradientNode(GradientFilterNode):
    """``SoftMaxGradient``. Source: ``MPSCNNSoftMaxGradientNode``.

    It takes the result of the forward node, as the kernel does; MPS does not say which image its node takes.
    """

    kernel_class = SoftMaxGradient
    takes_the_result = True


class LogSoftMaxGradientNode(SoftMaxGradientNode):
    """``LogSoftMaxGradient``, of the forward result. Source: ``MPSCNNLogSoftMaxGradientNode``."""

    kernel_class = LogSoftMaxGradient


class SoftMaxNode(UnaryNode):
    """``SoftMax``. Source: ``MPSCNNSoftMaxNode``."""

    kernel_class = SoftMax
    gradient_class = SoftMaxGradientNode


class LogSoftMaxNode(UnaryNode):
    """``LogSoftMax``. Source: ``MPSCNNLogSoftMaxNode``."""

    kernel_class = LogSoftMax
    gradient_class = LogSoftMaxGradientNode
