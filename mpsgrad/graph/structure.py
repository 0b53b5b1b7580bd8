"""Which filters a graph runs, in which order, what it takes from outside, and what it hands out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import flag
from mpsgrad.graph.convolution import ConvolutionGradientNode
from mpsgrad.graph.loss import LossNode
from mpsgrad.graph.nodes import FilterNode, GradientFilterNode, ImageNode, LabelsNode, StateNode
from mpsgrad.graph.trainable import TrainableGradientNode
from mpsgrad.graph.walk import in_order, producers


class Structure:
    """The filters that the results of a graph need.

    ``filters`` are those that run, in order. Left out are filters that neither a needed result nor an exported image or
    state nor an update of parameters depends on. ``sources`` and ``source_states`` are taken from outside, in the order
    in which the filters read them.
    """

    def __init__(self, results: Any, results_are_needed: Any) -> None:
        self.results = result_images(results)
        self.needed = _flags(results_are_needed, len(self.results))
        reachable = in_order(image.producer for image in self.results if image.producer is not None)
        self._require_single_use_of_states(reachable)
        kept = self._needed_filters(reachable)
        self.filters = [node for node in reachable if node in kept]
        if not self.filters:
            raise StateError(
                "Graph: nothing is left to compute: no result is needed, nothing is exported, and no parameters are "
                "trained"
            )
        self.names = _names(self.filters)
        images = {image: None for node in self.filters for image in node.source_images}
        states = {state: None for node in self.filters for state in node.source_states}
        self.sources = [image for image in images if image.producer is None]
        self.source_states = [state for state in states if state.producer is None]
        for state in self.source_states:
            if not isinstance(state, LabelsNode):
                raise StateError(f"Graph: {state!r} has no producer; only a LabelsNode may come from outside")
        made = [node.result_image for node in self.filters]
        is_result = {image for image, needed in zip(self.results, self.needed, strict=True) if needed}
        self.exported = [image for image in made if image.export_from_graph and image not in is_result]
        self.exported_states = [
            state for node in self.filters for state in node.result_states if state.export_from_graph
        ]
        self.read_states = {state for state in states if state.producer is not None}
        self.made_states = self.read_states | set(self.exported_states)
        read = {image for node in self.filters for image in node.source_images}
        self.read_images = read | is_result | set(self.exported)
        self._handed_out = is_result | set(self.exported)

    def is_handed_out(self, image: ImageNode) -> bool:
        """Whether encodes give the image to the caller."""
        return image in self._handed_out

    def needs_parameter_gradients(self, node: TrainableGradientNode) -> bool:
        """Whether the gradients for the parameters of ``node`` are used: for training, or in an exported state."""
        return node.is_trained or node.source_states[0].export_from_graph

    def _needed_filters(self, reachable: Sequence[FilterNode]) -> set[FilterNode]:
        wanted = {image.producer for image, needed in zip(self.results, self.needed, strict=True) if needed}
        for node in reachable:
            exports = node.result_image.export_from_graph or any(s.export_from_graph for s in node.result_states)
            fills = isinstance(node, GradientFilterNode) and any(s.export_from_graph for s in node.source_states)
            trains = isinstance(node, TrainableGradientNode) and node.is_trained
            if exports or fills or trains or isinstance(node, LossNode):
                wanted.add(node)
        kept: set[FilterNode] = set()
        waiting = [node for node in wanted if node is not None]
        while waiting:
            node = waiting.pop()
            if node not in kept:
                kept.add(node)
                waiting += producers(node)
        return kept

    @staticmethod
    def _require_single_use_of_states(filters: Sequence[FilterNode]) -> None:
        """Raises ``StateError`` if two gradient nodes would add to the sums of one state."""
        users: dict[StateNode, FilterNode] = {}
        for node in filters:
            if not isinstance(node, TrainableGradientNode):
                continue
            state = node.source_states[0]
            if state in users:
                kind = "convolution" if isinstance(node, ConvolutionGradientNode) else "normalization"
                raise StateError(
                    f"Graph: {users[state]!r} and {node!r} both use the state of {state.producer!r}; the state of a "
                    f"{kind} serves one gradient node, which adds the gradients for the parameters to it. Several "
                    "losses are added up (ForwardLossNode, AdditionNode) before one call of training_graph"
                )
            users[state] = node


def result_images(results: Any) -> list[ImageNode]:
    """The images of ``results`` as ``Graph`` takes them: a node, or a list of nodes."""
    if isinstance(results, (ImageNode, FilterNode)):
        results = [results]
    if not isinstance(results, Sequence) or isinstance(results, str):
        raise FormatError(f"Graph: results is {results!r}; it has to be an ImageNode, a FilterNode, or a list of them")
    if not results:
        raise GeometryError(
            "Graph: results is empty; it has to have at least one node (a training_graph has none if nothing before "
            "the loss has a gradient)"
        )
    images = []
    for index, each in enumerate(results):
        image = each.result_image if isinstance(each, FilterNode) else each
        if not isinstance(image, ImageNode):
            raise FormatError(
                f"Graph: results[{index}] is {type(each).__name__}; it has to be an ImageNode or a FilterNode"
            )
        if image.producer is None:
            raise StateError(f"Graph: results[{index}], {image!r}, is produced by no filter: nothing computes it")
        images.append(image)
    return images


def _flags(results_are_needed: Any, count: int) -> list[bool]:
    if isinstance(results_are_needed, bool):
        return [results_are_needed] * count
    if not isinstance(results_are_needed, Sequence):
        raise FormatError(f"Graph: results_are_needed is {results_are_needed!r}; it has to be a bool or a list of them")
    if len(results_are_needed) != count:
        raise GeometryError(
            f"Graph: results_are_needed has {len(results_are_needed)} values but there are {count} results"
        )
    return [flag("Graph", "results_are_needed", needed) for needed in results_are_needed]


def _names(filters: Sequence[FilterNode]) -> dict[FilterNode, str]:
    """A name for each filter that no other has: its label, or its class, or that of the filter it differentiates."""
    names: dict[FilterNode, str] = {}
    forward = [node for node in filters if not isinstance(node, GradientFilterNode)]
    backward = [node for node in filters if isinstance(node, GradientFilterNode)]
    _number(names, {node: _text(node.label) or type(node).__name__.removesuffix("Node") for node in forward})
    _number(names, {node: _text(node.label) or f"{names[node.inference_node]} gradient" for node in backward})
    return names


def _text(label: Any) -> str:
    """A label as text of one line."""
    return "" if label is None else " ".join(str(label).split())


def _number(names: dict[FilterNode, str], wanted: Mapping[FilterNode, str]) -> None:
    """Adds the ``wanted`` names to ``names``, with numbers behind those that are wanted by several."""
    counts, seen = Counter(wanted.values()), Counter[str]()
    for node, name in wanted.items():
        seen[name] += 1
        names[node] = f"{name} {seen[name]}" if counts[name] > 1 else name
