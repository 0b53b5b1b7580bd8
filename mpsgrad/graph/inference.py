"""The forward filters of a graph on their own, for inference."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from mpsgrad.errors import StateError
from mpsgrad.graph.dropout import DropoutNode
from mpsgrad.graph.loss import ForwardLossNode, LossNode
from mpsgrad.graph.nodes import FilterNode, GradientFilterNode, ImageNode, StateNode
from mpsgrad.graph.walk import in_order


def predictions(filters: Sequence[FilterNode]) -> list[ImageNode]:
    """What the losses compare with labels, in order. Raises ``StateError`` if there are no losses."""
    found = {node.source_images[0]: None for node in filters if isinstance(node, (LossNode, ForwardLossNode))}
    if not found:
        raise StateError("Graph: inference_graph without results of a graph that has no loss")
    return list(found)


def inference_images(results: Sequence[ImageNode]) -> list[ImageNode]:
    """``results`` of copies of the filters that they depend on, dropout apart.

    The copies have the settings, labels, handles and data sources of the originals, and read the same source images.
    No state is exported. Raises ``StateError`` for a result that depends on a gradient.
    """
    images: dict[ImageNode, ImageNode] = {}
    states: dict[StateNode, StateNode] = {}
    for node in in_order(image.producer for image in results if image.producer is not None):
        if isinstance(node, GradientFilterNode):
            raise StateError(f"Graph: inference_graph, but a result depends on {node!r}")
        sources = tuple(images.get(image, image) for image in node.source_images)
        if isinstance(node, DropoutNode):
            images[node.result_image] = sources[0]
            continue
        made = copy.copy(node)
        made.source_images = sources
        made.source_states = tuple(states.get(state, state) for state in node.source_states)
        made.result_image = images[node.result_image] = copy.copy(node.result_image)
        made.result_image.producer = made
        if node.result_state is not None:
            made.result_state = states[node.result_state] = copy.copy(node.result_state)
            made.result_state.producer = made
            made.result_state.export_from_graph = False
    return [images.get(image, image) for image in results]
