"""Nodes of arithmetic on two images, and of its gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mpsgrad.devices import Device
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import LARGEST_FLOAT
from mpsgrad.graph.nodes import (
    BinaryGradientStateNode,
    FilterNode,
    GradientFilterNode,
    GradientOfOneImageNode,
    ImageNode,
    StateNode,
)
from mpsgrad.graph.setting import Setting
from mpsgrad.image import ImageDescriptor
from mpsgrad.kernels import arithmetic, arithmetic_gradient
from mpsgrad.padding import Padding


class ArithmeticGradientStateNode(BinaryGradientStateNode):
    """The state of arithmetic. Source: ``MPSNNArithmeticGradientStateNode``."""


class ArithmeticGradientNode(GradientOfOneImageNode):
    """The base of the gradients of arithmetic. Source: ``MPSNNArithmeticGradientNode``.

    Its scales are the forward node's.
    """

    def _passes_gradient_on(self, shapes: Mapping[ImageNode, ImageDescriptor]) -> ImageNode | None:
        """The incoming gradient if it is the result: the forward filter neither scales nor spreads nor clamps."""
        forward, which = self.inference_node, "secondary" if self.is_secondary_source_filter else "primary"
        steps = ("in_pixels_x", "in_pixels_y", "in_feature_channels")
        is_plain = (
            isinstance(forward, DifferentiableArithmeticNode)
            and not forward.records_clamp
            and getattr(forward, f"{which}_scale") == 1.0
            and all(getattr(forward, f"{which}_stride_{step}") == 1 for step in steps)
        )
        gradient = self.source_images[0]
        return gradient if is_plain and shapes[gradient] == shapes[self.inference_source] else None

    def make_kernels(self, device: Device, forward: Sequence[Any]) -> list[Any]:
        kernel = self.kernel_class.of(forward[0], is_secondary_source_filter=self.is_secondary_source_filter)
        kernel.label = self.label
        return [kernel]


class AdditionGradientNode(ArithmeticGradientNode):
    """``AddGradient``. Source: ``MPSNNAdditionGradientNode``."""

    kernel_class = arithmetic_gradient.AddGradient
    reads_source_image = False

    def passed_on(self, shapes: Mapping[ImageNode, ImageDescriptor]) -> ImageNode | None:
        return self._passes_gradient_on(shapes)


class SubtractionGradientNode(ArithmeticGradientNode):
    """``SubtractGradient``. Source: ``MPSNNSubtractionGradientNode``."""

    kernel_class = arithmetic_gradient.SubtractGradient
    reads_source_image = False

    def passed_on(self, shapes: Mapping[ImageNode, ImageDescriptor]) -> ImageNode | None:
        return None if self.is_secondary_source_filter else self._passes_gradient_on(shapes)


class MultiplicationGradientNode(ArithmeticGradientNode):
    """``MultiplyGradient``. Source: ``MPSNNMultiplicationGradientNode``."""

    kernel_class = arithmetic_gradient.MultiplyGradient


class DivisionGradientNode(ArithmeticGradientNode):
    """``DivideGradient``; MPS has none."""

    kernel_class = arithmetic_gradient.DivideGradient

    def reads_values(self, index: int) -> bool:
        return index == 0 or not self.is_secondary_source_filter


class BinaryArithmeticNode(FilterNode):
    """The base of arithmetic on a primary and a secondary image. Source: ``MPSNNBinaryArithmeticNode``.

    The attributes are those of the kernels. ``gradient_filters`` gives the gradients for the primary and for the
    secondary image; the singular ``gradient_filter`` is unavailable, as in MPS.
    """

    gradient_class: ClassVar[type[ArithmeticGradientNode] | None] = None
    state_class: ClassVar[type[StateNode] | None] = ArithmeticGradientStateNode
    primary_scale = Setting(1.0, of_kernel=True)
    secondary_scale = Setting(1.0, of_kernel=True)
    bias = Setting(0.0, of_kernel=True)
    minimum_value = Setting(-LARGEST_FLOAT, of_kernel=True)
    maximum_value = Setting(LARGEST_FLOAT, of_kernel=True)
    primary_stride_in_pixels_x = Setting(1, of_kernel=True)
    primary_stride_in_pixels_y = Setting(1, of_kernel=True)
    primary_stride_in_feature_channels = Setting(1, of_kernel=True)
    secondary_stride_in_pixels_x = Setting(1, of_kernel=True)
    secondary_stride_in_pixels_y = Setting(1, of_kernel=True)
    secondary_stride_in_feature_channels = Setting(1, of_kernel=True)

    # objc: -initWithLeftSource:rightSource:
    def __init__(
        self,
        primary: ImageNode,
        secondary: ImageNode,
        *,
        padding_policy: Padding | None = None,
        label: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__((primary, secondary), padding_policy=padding_policy, label=label, **settings)

    # objc: -initWithSources:
    @classmethod
    def of_sources(cls, sources: Sequence[ImageNode], **others: Any) -> Any:
        """The node of a list of two images."""
        if isinstance(sources, ImageNode) or not isinstance(sources, Sequence):
            raise FormatError(f"{cls.__name__}: sources is {type(sources).__name__}; it has to be a list of two images")
        if len(sources) != 2:
            raise GeometryError(f"{cls.__name__}: sources has {len(sources)} images; it has to have 2")
        return cls(*sources, **others)

    @property
    def has_gradient(self) -> bool:
        return self.gradient_class is not None

    def _gradient_nodes(self, source: ImageNode, is_singular: bool) -> list[GradientFilterNode]:
        if self.gradient_class is None or self.result_state is None:
            return super()._gradient_nodes(source, is_singular)
        made: list[GradientFilterNode] = []
        for which in (False, True):
            other = self.gradient_class.kernel_class.takes_the_other_image
            image = self.source_images[which != other]
            made.append(self.gradient_class(source, image, self.result_state, is_secondary_source_filter=which))
        return made


class DifferentiableArithmeticNode(BinaryArithmeticNode):
    """Arithmetic with a gradient. With ``records_clamp`` that is 0 where a result was clamped."""

    records_clamp = Setting(False)


class AdditionNode(DifferentiableArithmeticNode):
    """``Add``. Source: ``MPSNNAdditionNode``."""

    kernel_class = arithmetic.Add
    gradient_class = AdditionGradientNode


class SubtractionNode(DifferentiableArithmeticNode):
    """``Subtract``. Source: ``MPSNNSubtractionNode``."""

    kernel_class = arithmetic.Subtract
    gradient_class = SubtractionGradientNode


class MultiplicationNode(DifferentiableArithmeticNode):
    """``Multiply``. Source: ``MPSNNMultiplicationNode``."""

    kernel_class = arithmetic.Multiply
    gradient_class = MultiplicationGradientNode


class DivisionNode(DifferentiableArithmeticNode):
    """``Divide``, here with a gradient. Source: ``MPSNNDivisionNode``."""

    kernel_class = arithmetic.Divide
    gradient_class = DivisionGradientNode


class ComparisonNode(BinaryArithmeticNode):
    """``Compare``, without gradient. Source: ``MPSNNComparisonNode``."""

    kernel_class = arithmetic.Compare
    state_class = None
    comparison_type = Setting(arithmetic.ComparisonType.EQUAL, of_kernel=True)
    threshold = Setting(0.0, of_kernel=True)
