"""What nodes with parameters share: the training style, and which gradients are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from mpsgrad.geometry import member
from mpsgrad.graph.nodes import FilterNode, GradientFilterNode, ImageNode, StateNode, TrainingStyle, UnaryNode


class TrainableNode(FilterNode):
    """A node whose parameters can be trained. Source: ``MPSNNTrainableNode``."""

    _training_style = TrainingStyle.UPDATE_DEVICE_GPU

    @property
    def training_style(self) -> TrainingStyle:
        """Where the parameters are updated; GPU at first. Gradient nodes take over that of their forward node.

        A graph leaves out what is not needed as it is made: what is NONE then cannot be trained by it later.
        """
        return self._training_style

    @training_style.setter
    def training_style(self, style: TrainingStyle) -> None:
        self._training_style = member(type(self).__name__, "training_style", TrainingStyle, style)


class TrainableGradientNode(TrainableNode, GradientFilterNode):
    """The gradient node of a node with parameters.

    While its ``training_style`` is GPU, each encode of the graph has the data source encode an update, with the state
    and the present parameters, and loads what that returns. With CPU that happens when the command buffer has
    completed.
    """

    leaves_out_the_image: ClassVar[bool] = False
    """Whether nothing is written to the result if ``choose_gradients`` says that it is not needed."""

    def __init__(
        self,
        source_gradient: ImageNode,
        source_image: ImageNode,
        gradient_state: StateNode,
        *,
        label: str | None = None,
    ) -> None:
        super().__init__(source_gradient, source_image, gradient_state, label=label)
        forward = self.inference_node
        if isinstance(forward, TrainableNode):
            self.training_style = forward.training_style

    @property
    def is_trained(self) -> bool:
        """Whether the parameters are updated."""
        return self.training_style != TrainingStyle.UPDATE_DEVICE_NONE

    def choose_gradients(self, kernels: Sequence[Any], needs_image: bool, needs_parameters: bool) -> None:
        """Has the kernels leave out gradients that nothing needs, as far as they can."""


class TrainableUnaryNode(TrainableNode, UnaryNode):
    """A node with one source image and parameters."""
