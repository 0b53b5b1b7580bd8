"""The extents of all images of a graph, found without computing anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpsgrad.devices import Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.graph.nodes import FilterNode, ImageNode, StateNode, handle_text
from mpsgrad.graph.structure import Structure
from mpsgrad.graph.walk import producers
from mpsgrad.image import FeatureChannelFormat, Image, ImageDescriptor

_ERRORS = (GeometryError, FormatError, StateError, NotImplementedError)


@dataclass(frozen=True)
class Shapes:
    """The descriptor of each image, and an image of each that has no memory."""

    of: Mapping[ImageNode, ImageDescriptor]
    stand_ins: Mapping[ImageNode, Image]

    @property
    def sources(self) -> tuple[ImageDescriptor, ...]:
        return tuple(self.of[image] for image in self.of if image.producer is None)


def infer_shapes(
    structure: Structure,
    kernels: Mapping[FilterNode, Sequence[Any]],
    sources: Sequence[ImageDescriptor],
    device: Device,
    default_format: FeatureChannelFormat,
) -> Shapes:
    """The descriptors of all images for those of the sources.

    Raises what the filter raises that does not take its sources, with the extents of all images before it.
    """
    shapes = dict(zip(structure.sources, sources, strict=True))
    images = {node: Image(descriptor, device) for node, descriptor in shapes.items()}
    for node in structure.filters:
        try:
            shape = node.result_descriptor(kernels[node], [images[source] for source in node.source_images], shapes)
            wanted = node.result_image.format or default_format
            if wanted not in (FeatureChannelFormat.NONE, shape.channel_format):
                raise NotImplementedError(
                    f"the format of the result is set to {wanted.name} but that of its sources is "
                    f"{shape.channel_format.name}; images are not converted"
                )
        except _ERRORS as error:
            chain = describe_chain(structure, node, shapes)
            raise type(error)(f"Graph: {structure.names[node]}: {error}\n{chain}") from error
        shapes[node.result_image] = shape
        images[node.result_image] = Image(shape, device)
    return Shapes(shapes, images)


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
