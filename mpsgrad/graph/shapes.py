"""The extents of all images of a graph, found without computing anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mpsgrad.devices import Buffer
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.graph.nodes import FilterNode, ImageNode, StateNode, handle_text
from mpsgrad.graph.structure import Structure
from mpsgrad.graph.walk import producers
from mpsgrad.image import FeatureChannelFormat, Image, ImageDescriptor

ENCODE_ERRORS = (GeometryError, FormatError, StateError, NotImplementedError)


@dataclass(frozen=True)
class Shapes:
    """The descriptor of each image.

    ``made`` are the formats of what filters compute, before it is converted to that of the result. ``nothing`` is the
    memory of images that stand for those of which a filter needs the extents only.
    """

    of: dict[ImageNode, ImageDescriptor]
    made: dict[FilterNode, FeatureChannelFormat]
    nothing: Buffer
    _stand_ins: dict[tuple[ImageNode, FeatureChannelFormat], Image] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[ImageDescriptor, ...]:
        return tuple(self.of[image] for image in self.of if image.producer is None)

    def stand_ins_of(self, sources: Sequence[ImageNode]) -> list[Image]:
        """Images that stand for ``sources`` as a filter is given them: in one format, the more precise one of two."""
        formats = {self.of[source].channel_format for source in sources}
        wanted = formats.pop() if len(formats) == 1 else FeatureChannelFormat.FLOAT32
        return [self._stand_in(source, wanted) for source in sources]

    def _stand_in(self, source: ImageNode, wanted: FeatureChannelFormat) -> Image:
        found = self._stand_ins.get((source, wanted))
        if found is None:
            found = Image(replace(self.of[source], channel_format=wanted), self.nothing.device)
            found._buffer = self.nothing
            self._stand_ins[source, wanted] = found
        return found


def infer_shapes(
    structure: Structure,
    kernels: Mapping[FilterNode, Sequence[Any]],
    sources: Sequence[ImageDescriptor],
    nothing: Buffer,
    default_format: FeatureChannelFormat,
) -> Shapes:
    """The descriptors of all images for those of the sources.

    A result has the format that its node says, or else ``default_format``, or else that of what is computed.
    Raises what the filter raises that does not take its sources, with the extents of all images before it.
    """
    shapes = Shapes(dict(zip(structure.sources, sources, strict=True)), {}, nothing)
    for node in structure.filters:
        try:
            shape = node.result_descriptor(kernels[node], shapes.stand_ins_of(node.source_images), shapes.of)
        except ENCODE_ERRORS as error:
            raise in_terms_of_nodes(error, structure, node, shapes.of) from error
        shapes.made[node] = shape.channel_format
        wanted = node.result_image.format or default_format or shape.channel_format
        shapes.of[node.result_image] = replace(shape, channel_format=wanted)
    return shapes


def in_terms_of_nodes(
    error: Exception, structure: Structure, node: FilterNode, shapes: Mapping[ImageNode, ImageDescriptor]
) -> Exception:
    """``error``, which the kernel of ``node`` raised, with the node's name and all that leads to it."""
    return type(error)(f"Graph: {structure.names[node]}: {error}\n{describe_chain(structure, node, shapes)}")


def describe_chain(structure: Structure, node: FilterNode, shapes: Mapping[ImageNode, ImageDescriptor]) -> str:
    """A line for each filter that ``node`` depends on, with the extents of what it reads and computes."""
    before: set[FilterNode] = {node}
    waiting = [node]
    while waiting:
        for producer in producers(waiting.pop()):
            if producer not in before:
                before.add(producer)
                waiting.append(producer)
    lines = []
    for index, source in enumerate(structure.sources):
        if any(source in each.source_images for each in before):
            lines.append(f"  source {source_name(source, index)}: {shapes[source].shape_text}")
    for each in structure.filters:
        if each in before:
            read = " and ".join(shapes[image].shape_text for image in each.source_images)
            result = shapes[each.result_image].shape_text if each is not node else "?"
            lines.append(f"  {structure.names[each]} ({each.description}): {read} -> {result}")
    return "\n".join(lines)


def source_name(source: ImageNode | StateNode, index: int) -> str:
    """The handle of a source image or state, or its number."""
    return str(index) if source.handle is None else handle_text(source.handle)
