"""Nodes of slices, concatenation, reshaping and Gram matrices, and of their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mpsgrad.devices import Device
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import MAXIMUM, NO_CLIP, Offset
from mpsgrad.graph.callbacks import GramMatrixCallback, NodeWithCallback
from mpsgrad.graph.nodes import (
    FilterNode,
    GradientFilterNode,
    ImageNode,
    MultiaryGradientStateNode,
    StateNode,
    UnaryNode,
)
from mpsgrad.graph.setting import Setting
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.kernels.concatenation import Concatenation, ConcatenationGradient
from mpsgrad.kernels.gram_matrix import GramMatrixCalculation, GramMatrixCalculationGradient
from mpsgrad.kernels.reshape import Reshape, ReshapeGradient
from mpsgrad.kernels.slice import Slice, SliceGradient
from mpsgrad.state import State


class ConcatenationGradientNode(GradientFilterNode):
    """``ConcatenationGradient`` for source number ``source_index``. Source: ``MPSNNConcatenationGradientNode``."""

    kernel_class = ConcatenationGradient
    reads_source_image = False

    # objc: -initWithSourceGradient:sourceImage:gradientState:
    def __init__(
        self,
        source_gradient: ImageNode,
        source_image: ImageNode,
        gradient_state: StateNode,
        *,
        source_index: int,
        label: str | None = None,
    ) -> None:
        super().__init__(source_gradient, source_image, gradient_state, label=label)
        count = len(self.inference_node.source_images)
        if source_index not in range(count):
            raise GeometryError(f"{type(self).__name__}: source_index is {source_index} but there are {count} sources")
        self.source_index = source_index

    @property
    def inference_source(self) -> ImageNode:
        return self.inference_node.source_images[self.source_index]

    def make_kernels(self, device: Device, forward: Sequence[Any]) -> list[Any]:
        return [ConcatenationGradient(self.source_index, device=device, label=self.label)]


class ConcatenationNode(FilterNode):
    """``Concatenation``: the channels of several images. Source: ``MPSNNConcatenationNode``.

    ``aligns_channels`` lets each image begin at a multiple of 4 channels, as MPS does. ``gradient_filters`` gives the
    gradient of each image; the singular ``gradient_filter`` is unavailable, as in MPS.
    """

    kernel_class = Concatenation
    state_class = MultiaryGradientStateNode
    aligns_channels = Setting(False)

    # objc: -initWithSources:
    def __init__(self, sources: Sequence[ImageNode], *, label: str | None = None, **settings: Any) -> None:
        if isinstance(sources, ImageNode) or not isinstance(sources, Sequence):
            raise FormatError(
                f"{type(self).__name__}: sources is {type(sources).__name__}; it has to be a list of ImageNodes"
            )
        if not sources:
            raise GeometryError(f"{type(self).__name__}: sources is empty; it has to have at least one image")
        super().__init__(sources, label=label, **settings)

    def gradient_filter(self, source: ImageNode | Sequence[ImageNode]) -> GradientFilterNode:
        """Unavailable, as in MPS: raises ``NotImplementedError``."""
        raise NotImplementedError(f"{self!r}: gradient_filter is unavailable; call gradient_filters")

    def _gradient_nodes(self, source: ImageNode, is_singular: bool) -> list[GradientFilterNode]:
        assert self.result_state is not None
        return [
            ConcatenationGradientNode(source, image, self.result_state, source_index=index)
            for index, image in enumerate(self.source_images)
        ]

    def result_descriptor(
        self, kernels: Sequence[Any], images: Sequence[Image], shapes: Mapping[ImageNode, ImageDescriptor]
    ) -> ImageDescriptor:
        return kernels[0].destination_image_descriptor(images)

    def encode(
        self,
        command_buffer: Any,
        kernels: Sequence[Any],
        images: Sequence[Image],
        states: Sequence[State],
        makes_state: bool,
    ) -> tuple[Image | None, State | None]:
        made = kernels[0].encode(command_buffer, list(images), return_state=makes_state)
        return made if makes_state else (made, None)


class SliceGradientNode(GradientFilterNode):
    """``SliceGradient``; MPS has none."""

    kernel_class = SliceGradient
    reads_source_image = False


class SliceNode(UnaryNode):
    """``Slice``: a box of the image; MPS has the kernel only.

    It begins at ``offset`` and channel ``source_feature_channel_offset``, with the size of ``clip_rect`` and at most
    ``source_feature_channel_max_count`` channels.
    """

    kernel_class = Slice
    gradient_class = SliceGradientNode
    offset = Setting(Offset(), of_kernel=True)
    clip_rect = Setting(NO_CLIP, of_kernel=True)
    source_feature_channel_offset = Setting(0, of_kernel=True)
    source_feature_channel_max_count = Setting(MAXIMUM, of_kernel=True)


class ReshapeGradientNode(GradientFilterNode):
    """``ReshapeGradient``. Source: ``MPSNNReshapeGradientNode``."""

    kernel_class = ReshapeGradient
    reads_source_image = False


class ReshapeNode(UnaryNode):
    """``Reshape`` to the given extents. Source: ``MPSNNReshapeNode``."""

    kernel_class = Reshape
    gradient_class = ReshapeGradientNode
    reshaped_width = Setting(of_kernel=True)
    reshaped_height = Setting(of_kernel=True)
    reshaped_feature_channels = Setting(of_kernel=True)


class GramMatrixCalculationGradientNode(GradientFilterNode):
    """``GramMatrixCalculationGradient``. Source: ``MPSNNGramMatrixCalculationGradientNode``."""

    kernel_class = GramMatrixCalculationGradient


class GramMatrixCalculationNode(NodeWithCallback, UnaryNode):
    """``GramMatrixCalculation``. Source: ``MPSNNGramMatrixCalculationNode``.

    ``property_call_back``, a ``GramMatrixCallback``, may supply ``alpha``.
    """

    kernel_class = GramMatrixCalculation
    gradient_class = GramMatrixCalculationGradientNode
    callback_class = GramMatrixCallback
    callback_method = "alpha_for_source_image"
    callback_property = "alpha"
    alpha = Setting(1.0)

    @property
    def _own_factor(self) -> float:
        return self.alpha
