"""Which filters run as part of others: neurons behind batch normalization, and the gradients of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mpsgrad.graph.neuron import NamedNeuronNode, NeuronGradientNode, NeuronNode
from mpsgrad.graph.nodes import FilterNode, ImageNode
from mpsgrad.graph.normalization import BatchNormalizationGradientNode, BatchNormalizationNode
from mpsgrad.graph.structure import Structure


@dataclass
class Fusion:
    """``neurons`` are those that batch normalizations apply to their results, by the normalization.

    ``parts`` are the filters that do not run on their own, by the one that does their work. ``results`` and ``sources``
    are what such a filter writes and reads instead of its own images.
    """

    neurons: dict[FilterNode, FilterNode] = field(default_factory=dict)
    parts: dict[FilterNode, FilterNode] = field(default_factory=dict)
    results: dict[FilterNode, ImageNode] = field(default_factory=dict)
    sources: dict[FilterNode, tuple[ImageNode, ...]] = field(default_factory=dict)

    def __contains__(self, node: FilterNode) -> bool:
        """Whether another filter does the work of ``node``."""
        return node in self.parts.values()

    def result_of(self, node: FilterNode) -> ImageNode:
        """The image that ``node`` writes."""
        return self.results.get(node, node.result_image)

    def sources_of(self, node: FilterNode) -> tuple[ImageNode, ...]:
        """The images that ``node`` reads."""
        return self.sources.get(node, node.source_images)


def find_fusion(structure: Structure) -> Fusion:
    """The neurons of ``structure`` whose source nothing else needs, and with them their gradients.

    The normalization's kernel computes z = scale (x - mean) + beta and applies the neuron f to it, and the gradient
    kernels compute z again for g f'(z). These are the operations of the separate kernels, without the rounding of z and
    g f'(z) to the format of the images in between. So FLOAT32 images of neurons whose derivative is 0 or 1, such as
    ReLU, get the same bits; in others g f'(z) may be added to a sum without having been rounded.
    """
    fusion = Fusion()
    readers: dict[ImageNode, list[FilterNode]] = {}
    users: dict[object, list[FilterNode]] = {}
    for node in structure.filters:
        for image in node.source_images:
            readers.setdefault(image, []).append(node)
        for state in node.source_states:
            users.setdefault(state, []).append(node)
    for node in structure.filters:
        if not isinstance(node, (NeuronNode, NamedNeuronNode)) or node.padding_policy != node.default_padding:
            continue
        normalization = node.source_images[0].producer
        if type(normalization) is not BatchNormalizationNode or normalization.fused_neuron_descriptor is not None:
            continue
        states = (node.result_state, normalization.result_state)
        if any(state is not None and state.export_from_graph for state in states):
            continue
        gradients = users.get(node.result_state, [])
        behind = users.get(normalization.result_state, [])
        between = normalization.result_image
        if _is_private(structure, between) and set(readers[between]) == {node, *gradients}:
            if not gradients and not behind:
                _fuse_forward(fusion, normalization, node)
            elif _is_chain(structure, readers, between, gradients, behind):
                _fuse_forward(fusion, normalization, node)
                (outer,), (inner,) = gradients, behind
                fusion.parts[inner] = outer
                fusion.sources[inner] = (outer.source_images[0], inner.source_images[1])
    return fusion


def _is_private(structure: Structure, image: ImageNode) -> bool:
    """Whether nobody outside sees the image or has a say in it."""
    return not structure.is_handed_out(image) and image.image_allocator is None


def _fuse_forward(fusion: Fusion, normalization: FilterNode, neuron: FilterNode) -> None:
    fusion.neurons[normalization] = fusion.parts[normalization] = neuron
    fusion.results[normalization] = neuron.result_image


def _is_chain(
    structure: Structure,
    readers: dict[ImageNode, list[FilterNode]],
    between: ImageNode,
    gradients: Sequence[FilterNode],
    behind: Sequence[FilterNode],
) -> bool:
    """Whether the gradient of the normalization takes that of the neuron, and nothing else takes either."""
    if len(gradients) != 1 or len(behind) != 1:
        return False
    outer, inner = gradients[0], behind[0]
    return (
        type(outer) is NeuronGradientNode
        and type(inner) is BatchNormalizationGradientNode
        and outer.source_images[1] is between
        and inner.source_images[0] is outer.result_image
        and readers[outer.result_image] == [inner]
        and _is_private(structure, outer.result_image)
    )
