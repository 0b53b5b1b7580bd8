"""What encodes of a graph are given: images and labels for its sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.graph.nodes import FilterNode, ImageNode, StateNode
from mpsgrad.graph.shapes import ENCODE_ERRORS, Shapes, source_name
from mpsgrad.graph.structure import Structure
from mpsgrad.image import Image, ImageBatch, ImageDescriptor
from mpsgrad.kernels.loss_labels import LossLabels
from mpsgrad.state import State


class Sources:
    """Compares what is given with the nodes that it is for, of the graph of ``structure`` on ``device``."""

    def __init__(self, structure: Structure, device: Device) -> None:
        self._structure = structure
        self._device = device

    def list_of_images(self, given: Any) -> list[Any]:
        """``given`` as a list; raises ``FormatError`` or ``GeometryError`` unless that has one item for each image."""
        return self._list_of("source_images", given, self._structure.sources)

    def list_of_states(self, given: Any) -> list[Any]:
        """The same for the source states."""
        return self._list_of("source_states", given, self._structure.source_states)

    def _list_of(self, name: str, given: Any, nodes: Sequence[Any]) -> list[Any]:
        if isinstance(given, (Image, State, ImageDescriptor)) or not isinstance(given, Sequence):
            raise FormatError(f"Graph: {name} is {type(given).__name__}; it has to be a list")
        if len(given) != len(nodes):
            wanted = ", ".join(self._wanted(node, index) for index, node in enumerate(nodes)) or "none"
            raise GeometryError(f"Graph: {name} has {len(given)} but the graph takes {len(nodes)}: {wanted}")
        return list(given)

    def _wanted(self, source: ImageNode | StateNode, index: int) -> str:
        """The handle of a source, or without one who reads it."""
        if source.handle is not None:
            return source_name(source, index)
        readers = [
            self._structure.names[node]
            for node in self._structure.filters
            if source in (*node.source_images, *node.source_states)
        ]
        return f"one for {' and '.join(readers)}"

    def descriptors(self, given: Any) -> tuple[ImageDescriptor, ...]:
        """Those of images or descriptors; raises ``FormatError`` for anything else."""
        found = []
        for index, each in enumerate(self.list_of_images(given)):
            if not isinstance(each, (Image, ImageDescriptor)):
                raise FormatError(
                    f"Graph: source_images[{index}] is {type(each).__name__}; it has to be an Image or an "
                    "ImageDescriptor"
                )
            found.append(each if isinstance(each, ImageDescriptor) else each.descriptor)
        return tuple(found)

    def images(self, command_buffer: CommandBuffer, given: Any) -> list[Image]:
        """``given`` as a list of images that ``command_buffer`` can read; raises what ``Graph.encode`` raises."""
        images = self.list_of_images(given)
        for index, (image, node) in enumerate(zip(images, self._structure.sources, strict=True)):
            name = f"source image {source_name(node, index)}"
            if not isinstance(image, Image):
                hint = "; encode_batch takes batches" if isinstance(image, ImageBatch) else ""
                raise FormatError(f"Graph: {name} is {type(image).__name__}; it has to be an Image{hint}")
            if image.device is not self._device:
                raise StateError(
                    f"Graph: {name} is on {image.device.identifier} but the graph on {self._device.identifier}"
                )
            if image.command_buffer not in (None, command_buffer):
                raise StateError(f"Graph: {name} is temporary and belongs to {image.command_buffer}")
            image._require_readable("Graph", name)
            if image.number_of_images != images[0].number_of_images:
                raise GeometryError(
                    f"Graph: {name} has {image.number_of_images} images but the first source image "
                    f"{images[0].number_of_images}"
                )
        return images

    def states(self, given: Any) -> list[State]:
        """``given`` as a list of labels; raises ``FormatError`` for anything else."""
        states = self.list_of_states(given)
        for index, (state, node) in enumerate(zip(states, self._structure.source_states, strict=True)):
            if not isinstance(state, LossLabels):
                name = source_name(node, index)
                raise FormatError(f"Graph: source state {name} is {type(state).__name__}; it has to be LossLabels")
        return states

    def check_states(
        self, states: Sequence[State], shapes: Shapes, kernels: Mapping[FilterNode, Sequence[Any]]
    ) -> None:
        """Has the filters that read source states compare them with their source images."""
        given = dict(zip(self._structure.source_states, states, strict=True))
        for node in self._structure.filters:
            if any(state in given for state in node.source_states):
                images = shapes.stand_ins_of(node.source_images)
                try:
                    node.check_states(kernels[node], images, [given[state] for state in node.source_states])
                except ENCODE_ERRORS as error:
                    raise type(error)(f"Graph: {self._structure.names[node]}: {error}") from error
