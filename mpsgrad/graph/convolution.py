"""Nodes of convolutions, fully connected layers and transposed convolutions, and of their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from mpsgrad.errors import FormatError
from mpsgrad.graph.nodes import GradientStateNode, ImageNode, StateNode, UnaryNode
from mpsgrad.graph.setting import Setting
from mpsgrad.graph.trainable import TrainableGradientNode, TrainableNode
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.kernels.convolution import Convolution, ConvolutionGradient, ConvolutionGradientOption
from mpsgrad.kernels.convolution_transpose import ConvolutionTranspose, ConvolutionTransposeGradient
from mpsgrad.kernels.convolution_weights import ConvolutionAccumulatorPrecisionOption
from mpsgrad.kernels.fully_connected import FullyConnected, FullyConnectedGradient
from mpsgrad.padding import VALID_ONLY, Padding
from mpsgrad.state import State


class ConvolutionGradientStateNode(GradientStateNode):
    """The state of a convolution. Source: ``MPSCNNConvolutionGradientStateNode``."""


class ConvolutionTransposeGradientStateNode(ConvolutionGradientStateNode):
    """The state of a transposed convolution. Source: ``MPSCNNConvolutionTransposeGradientStateNode``."""


class ConvolutionGradientNode(TrainableGradientNode):
    """``ConvolutionGradient``: the gradients for source, weights and biases. Source: ``MPSCNNConvolutionGradientNode``.

    Of the three only those are computed that the graph needs.
    """

    kernel_class = ConvolutionGradient
    arguments = ("data_source",)
    leaves_out_the_image = True

    def choose_gradients(self, kernels: Sequence[Any], needs_image: bool, needs_parameters: bool) -> None:
        option = ConvolutionGradientOption
        if needs_image and needs_parameters:
            kernels[0].gradient_option = option.ALL
        else:
            kernels[0].gradient_option = (
                option.GRADIENT_WITH_DATA if needs_image else option.GRADIENT_WITH_WEIGHTS_AND_BIAS
            )


class FullyConnectedGradientNode(ConvolutionGradientNode):
    """``FullyConnectedGradient``. Source: ``MPSCNNFullyConnectedGradientNode``."""

    kernel_class = FullyConnectedGradient


class ConvolutionTransposeGradientNode(ConvolutionGradientNode):
    """``ConvolutionTransposeGradient``. Source: ``MPSCNNConvolutionTransposeGradientNode``."""

    kernel_class = ConvolutionTransposeGradient


class ConvolutionNode(TrainableNode, UnaryNode):
    """``Convolution`` with the weights of a ``ConvolutionDataSource``. Source: ``MPSCNNConvolutionNode``.

    The data source is the ``weights`` of MPS; with ``training_style`` GPU or CPU the graph calls its update methods.
    """

    kernel_class: ClassVar[Any] = Convolution
    gradient_class = ConvolutionGradientNode
    state_class = ConvolutionGradientStateNode
    data_source = Setting()
    accumulator_precision_option = Setting(ConvolutionAccumulatorPrecisionOption.FLOAT, of_kernel=True)

    # objc: -initWithSource:weights:
    def __init__(
        self,
        source: ImageNode,
        data_source: Any,
        *,
        padding_policy: Padding | None = None,
        label: str | None = None,
        **settings: Any,
    ) -> None:
        label = getattr(data_source, "label", None) if label is None else label
        super().__init__(source, data_source=data_source, padding_policy=padding_policy, label=label, **settings)

    @property
    def convolution_gradient_state(self) -> StateNode | None:
        """The ``result_state``."""
        return self.result_state

    @property
    def description(self) -> str:
        descriptor = getattr(self.data_source, "descriptor", None)
        if descriptor is None:
            return super().description
        size = f"{descriptor.kernel_width}x{descriptor.kernel_height}"
        strides = descriptor.stride_in_pixels_x, descriptor.stride_in_pixels_y
        return f"{super().description} {size}" + (f" / {strides[0]}x{strides[1]}" if strides != (1, 1) else "")


class FullyConnectedNode(ConvolutionNode):
    """``FullyConnected``. Source: ``MPSCNNFullyConnectedNode``."""

    kernel_class = FullyConnected
    gradient_class = FullyConnectedGradientNode
    default_padding = VALID_ONLY
    accumulator_precision_option = Setting(ConvolutionAccumulatorPrecisionOption.FLOAT, of_kernel=True)


class ConvolutionTransposeNode(ConvolutionNode):
    """``ConvolutionTranspose``. Source: ``MPSCNNConvolutionTransposeNode``.

    With the ``convolution_gradient_state`` of a ``ConvolutionNode`` the result has the size of that one's source.
    Without, the padding policy sizes it as that of ``ConvolutionTranspose``: at stride 2 SIZE_SAME, the default, makes
    15 pixels of 8, SIZE_FULL with a window of two 16.
    """

    kernel_class = ConvolutionTranspose
    gradient_class = ConvolutionTransposeGradientNode
    state_class = ConvolutionTransposeGradientStateNode

    # objc: -initWithSource:convolutionGradientState:weights:
    def __init__(
        self,
        source: ImageNode,
        data_source: Any,
        *,
        convolution_gradient_state: StateNode | None = None,
        padding_policy: Padding | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(source, data_source, padding_policy=padding_policy, label=label)
        if convolution_gradient_state is not None:
            producer = getattr(convolution_gradient_state, "producer", None)
            if not isinstance(producer, ConvolutionNode):
                raise FormatError(
                    f"{type(self).__name__}: convolution_gradient_state is {convolution_gradient_state!r}; it has to "
                    "be the result_state of a ConvolutionNode"
                )
            self.source_states = (convolution_gradient_state,)

    def result_descriptor(
        self, kernels: Sequence[Any], images: Sequence[Image], shapes: Mapping[ImageNode, ImageDescriptor]
    ) -> ImageDescriptor:
        made = super().result_descriptor(kernels, images, shapes)
        if not self.source_states:
            return made
        producer = self.source_states[0].producer
        assert producer is not None
        undone = shapes[producer.source_images[0]]
        return replace(made, width=undone.width, height=undone.height, feature_channels=undone.feature_channels)

    def encode(
        self,
        command_buffer: Any,
        kernels: Sequence[Any],
        images: Sequence[Image],
        states: Sequence[State],
        makes_state: bool,
    ) -> tuple[Image | None, State | None]:
        made = kernels[0].encode(command_buffer, images[0], *states, return_state=makes_state)
        return made if makes_state else (made, None)
