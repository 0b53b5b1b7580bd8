"""The backward pass of a graph: from the last filter back through the producers of its sources."""

from __future__ import annotations

from mpsgrad.errors import FormatError
from mpsgrad.graph.arithmetic import AdditionNode
from mpsgrad.graph.loss import ForwardLossNode
from mpsgrad.graph.nodes import FilterNode, ImageNode, NodeHandler
from mpsgrad.graph.walk import in_order


def copy_handle(
    gradient_node: FilterNode,
    inference_node: FilterNode | None,
    inference_source: ImageNode,
    gradient_source: ImageNode,
) -> None:
    """The handler that ``training_graph`` has unless it is given another: a gradient gets the handle of its image."""
    gradient_node.result_image.handle = inference_source.handle


def training_graph(
    last: FilterNode, source_gradient: ImageNode | None, node_handler: NodeHandler | None
) -> list[FilterNode]:
    """What ``FilterNode.training_graph`` says."""
    if source_gradient is not None and not isinstance(source_gradient, ImageNode):
        hint = "; pass its result_image" if isinstance(source_gradient, FilterNode) else ""
        raise FormatError(
            f"{last!r}: source_gradient is {type(source_gradient).__name__}; it has to be an ImageNode{hint}"
        )
    if node_handler is not None and not callable(node_handler):
        raise FormatError(f"{last!r}: node_handler is {node_handler!r}; it has to be a function or None")
    backward = _BackwardPass(copy_handle if node_handler is None else node_handler)
    if source_gradient is not None:
        backward.contributions[last.result_image] = [source_gradient]
    else:
        backward.contributions[last.source_images[0]] = [last.result_image]
    order = in_order([last])
    for node in reversed(order):
        if node is not last or source_gradient is not None:
            backward.differentiate(node)
    for image in {image: None for node in order for image in node.source_images}:
        if image.producer is None:
            backward.gradient_of(image)
    return backward.ends()


class _BackwardPass:
    """The nodes that were made, and which gradients each image has got from the filters that read it."""

    def __init__(self, handler: NodeHandler) -> None:
        self.handler = handler
        self.contributions: dict[ImageNode, list[ImageNode]] = {}
        self.made: list[FilterNode] = []

    def differentiate(self, node: FilterNode) -> None:
        """Makes the gradient nodes of ``node``, all readers of whose result have been differentiated."""
        if node.result_image.stop_gradient:
            return
        gradient = self.gradient_of(node.result_image)
        if gradient is None or not node.has_gradient:
            return
        if isinstance(node, ForwardLossNode) and node.source_images[1].producer is None:
            # Nothing is computed before labels that come from outside.
            gradient_nodes = [node.gradient_filter(gradient)]
        else:
            gradient_nodes = node.gradient_filters(gradient)
        for gradient_node in gradient_nodes:
            source = gradient_node.inference_source
            self._add(gradient_node, node, source, gradient)
            self.contributions.setdefault(source, []).append(gradient_node.result_image)

    def gradient_of(self, image: ImageNode) -> ImageNode | None:
        """The sum of the gradients that ``image`` has got, or None if it has none."""
        parts = self.contributions.get(image, [])
        while len(parts) > 1:
            addition = AdditionNode(parts[0], parts[1])
            self._add(addition, None, image, parts[0])
            parts[:2] = [addition.result_image]
        return parts[0] if parts else None

    def _add(self, node: FilterNode, forward: FilterNode | None, source: ImageNode, gradient: ImageNode) -> None:
        self.made.append(node)
        self.handler(node, forward, source, gradient)

    def ends(self) -> list[FilterNode]:
        """The nodes whose results no other of them reads."""
        read = {image for node in self.made for image in node.source_images}
        return [node for node in self.made if node.result_image not in read]
