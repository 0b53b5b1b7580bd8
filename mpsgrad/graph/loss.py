"""Nodes of losses and of what starts a backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import flag
from mpsgrad.graph.callbacks import LossCallback, NodeWithCallback
from mpsgrad.graph.nodes import (
    GradientFilterNode,
    ImageNode,
    LabelsNode,
    StateNode,
    UnaryNode,
)
from mpsgrad.graph.setting import Setting
from mpsgrad.image import FeatureChannelFormat, Image, ImageDescriptor
from mpsgrad.kernels.forward_loss import ForwardLoss
from mpsgrad.kernels.initial_gradient import InitialGradient
from mpsgrad.kernels.loss import Loss
from mpsgrad.kernels.loss_descriptor import LossDescriptor
from mpsgrad.kernels.loss_gradient import LossGradient
from mpsgrad.kernels.yolo_loss import YOLOLoss, YOLOLossDescriptor
from mpsgrad.state import State


class LossNode(UnaryNode):
    """``Loss``, whose result image is the **gradient** with respect to the source. Source: ``MPSCNNLossNode``.

    The labels are a source state of the graph, ``input_labels``, for which encodes are given ``LossLabels``; these
    receive the loss. ``training_graph`` of this node needs no source gradient.
    """

    kernel_class: ClassVar[Any] = Loss
    state_class = None
    descriptor = Setting()

    # objc: -initWithSource:lossDescriptor:
    def __init__(
        self,
        source: ImageNode,
        labels: LabelsNode | None = None,
        *,
        descriptor: LossDescriptor | YOLOLossDescriptor,
        label: str | None = None,
    ) -> None:
        super().__init__(source, descriptor=descriptor, label=label)
        labels = LabelsNode() if labels is None else labels
        if not isinstance(labels, LabelsNode):
            raise FormatError(f"{type(self).__name__}: labels is {type(labels).__name__}; it has to be a LabelsNode")
        self.source_states = (labels,)

    @property
    def input_labels(self) -> StateNode:
        """The node of the labels."""
        return self.source_states[0]

    def make_kernels(self, device: Any, forward: Sequence[Any]) -> list[Any]:
        return [self.kernel_class(self.descriptor, device=device, label=self.label)]

    def result_descriptor(
        self, kernels: Sequence[Any], images: Sequence[Image], shapes: Mapping[ImageNode, ImageDescriptor]
    ) -> ImageDescriptor:
        return images[0].descriptor

    def check_states(self, kernels: Sequence[Any], images: Sequence[Image], states: Sequence[Any]) -> None:
        kernels[0]._require_labels(images[0], states[0])

    def encode(
        self,
        command_buffer: Any,
        kernels: Sequence[Any],
        images: Sequence[Image],
        states: Sequence[State],
        makes_state: bool,
    ) -> tuple[Image | None, State | None]:
        return kernels[0].encode(command_buffer, images[0], states[0]), None


class YOLOLossNode(LossNode):
    """``YOLOLoss``, with a ``YOLOLossDescriptor``; otherwise as ``LossNode``. Source: ``MPSCNNYOLOLossNode``."""

    kernel_class = YOLOLoss


class LossGradientNode(NodeWithCallback, GradientFilterNode):
    """``LossGradient``, for the prediction or the labels. Source: ``MPSNNLossGradientNode``.

    The weight is that of the forward encode, whoever supplied it, unless ``property_call_back``, a ``LossCallback``,
    supplies another.
    """

    kernel_class = LossGradient
    callback_class = LossCallback
    callback_method = "scalar_weight_for_source_image"

    # objc: -initWithSourceGradient:sourceImage:labels:weights:gradientState:lossDescriptor:
    # objc:     isLabelsGradientFilter:
    def __init__(
        self,
        source_gradient: ImageNode,
        source_image: ImageNode,
        labels: ImageNode,
        gradient_state: StateNode,
        *,
        weights: ImageNode | None = None,
        is_labels_gradient_filter: bool = False,
        label: str | None = None,
    ) -> None:
        super().__init__(source_gradient, source_image, gradient_state, label=label)
        self.source_images = (*self.source_images, labels, *(() if weights is None else (weights,)))
        self.is_labels_gradient_filter = flag(
            type(self).__name__, "is_labels_gradient_filter", is_labels_gradient_filter
        )

    @property
    def inference_source(self) -> ImageNode:
        return self.inference_node.source_images[self.is_labels_gradient_filter]

    def make_kernels(self, device: Any, forward: Sequence[Any]) -> list[Any]:
        labels = self.is_labels_gradient_filter
        descriptor = forward[0].loss_descriptor
        return [LossGradient(descriptor, compute_label_gradients=labels, device=device, label=self.label)]

    def result_descriptor(
        self, kernels: Sequence[Any], images: Sequence[Image], shapes: Mapping[ImageNode, ImageDescriptor]
    ) -> ImageDescriptor:
        super().result_descriptor(kernels, images, shapes)
        return kernels[0].destination_image_descriptor(images[:2])

    def encode(
        self,
        command_buffer: Any,
        kernels: Sequence[Any],
        images: Sequence[Image],
        states: Sequence[State],
        makes_state: bool,
    ) -> tuple[Image | None, State | None]:
        gradient, source, labels, *others = images
        weights = others[0] if others else None
        state: State | None = states[0]
        asked = self._asked(kernels[0], source)
        if asked is not None:
            # The state has the weight of the forward encode, and nothing else that this kernel does not have.
            kernels[0].weight, state = asked, None
        return kernels[0].encode(command_buffer, gradient, source, labels, weights, state), None

    def reads_values(self, index: int) -> bool:
        return True


class ForwardLossNode(NodeWithCallback):
    """``ForwardLoss`` of a prediction, labels, and weights if there are any: three images.

    Its result is the loss; the backward pass begins with an ``InitialGradientNode`` of it, or with a gradient of what
    follows. ``gradient_filter`` gives the gradient for the prediction, ``gradient_filters`` also that for the labels.
    ``property_call_back``, a ``LossCallback``, may supply the descriptor's weight. Source: ``MPSNNForwardLossNode``.
    """

    kernel_class = ForwardLoss
    callback_class = LossCallback
    callback_method = "scalar_weight_for_source_image"
    callback_property = "weight"
    descriptor = Setting()

    # objc: -initWithSource:labels:weights:lossDescriptor:
    def __init__(
        self,
        source: ImageNode,
        labels: ImageNode,
        weights: ImageNode | None = None,
        *,
        descriptor: LossDescriptor,
        label: str | None = None,
    ) -> None:
        sources = (source, labels) if weights is None else (source, labels, weights)
        super().__init__(sources, descriptor=descriptor, label=label)
        self.result_image.format = FeatureChannelFormat.NONE

    def make_kernels(self, device: Any, forward: Sequence[Any]) -> list[Any]:
        return [ForwardLoss(self.descriptor, device=device, label=self.label)]

    def result_descriptor(
        self, kernels: Sequence[Any], images: Sequence[Image], shapes: Mapping[ImageNode, ImageDescriptor]
    ) -> ImageDescriptor:
        for name, image in zip(("labels", "weights"), images[1:], strict=False):
            if image.shape != images[0].shape:
                raise GeometryError(
                    f"{name} are {image.descriptor.shape_text} but the prediction {images[0].descriptor.shape_text}"
                )
        return kernels[0].destination_image_descriptor(images[:1])

    @property
    def _own_factor(self) -> float:
        return self.descriptor.weight

    def _gradient_nodes(self, source: ImageNode, is_singular: bool) -> list[GradientFilterNode]:
        assert self.result_state is not None
        prediction, labels, *weights = self.source_images
        return [
            LossGradientNode(
                source,
                prediction,
                labels,
                self.result_state,
                weights=weights[0] if weights else None,
                is_labels_gradient_filter=is_for_labels,
            )
            for is_for_labels in ((False,) if is_singular else (False, True))
        ]


class InitialGradientNode(UnaryNode):
    """``InitialGradient``: ones, with which a backward pass can begin. Source: ``MPSNNInitialGradientNode``."""

    kernel_class = InitialGradient
    state_class = None

    def reads_values(self, index: int) -> bool:
        return False
