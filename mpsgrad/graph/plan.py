"""What an encode of a graph does for source images of certain extents: steps, their images, and the memory."""

from __future__ import annotations

from dataclasses import dataclass

from mpsgrad.devices import Device
from mpsgrad.graph.memory import Lifetime, MemoryPlan, plan_memory
from mpsgrad.graph.nodes import FilterNode, ImageNode
from mpsgrad.graph.shapes import Shapes
from mpsgrad.graph.structure import Structure
from mpsgrad.graph.trainable import TrainableGradientNode


@dataclass(frozen=True)
class Step:
    """One filter's part of an encode.

    ``sources`` are its source images, each with whether its elements are read. ``planned`` is the number of the result
    in the memory plan; None for a result that is handed out, and one that is never written. With ``passes_on`` that
    image is the result, and nothing runs.
    """

    node: FilterNode
    sources: tuple[tuple[ImageNode, bool], ...]
    makes_state: bool
    planned: int | None
    passes_on: ImageNode | None = None


@dataclass(frozen=True)
class Plan:
    """All steps, for sources of the descriptors in ``shapes``."""

    shapes: Shapes
    memory: MemoryPlan
    steps: tuple[Step, ...]


def make_plan(structure: Structure, shapes: Shapes, fuses_filters: bool, device: Device) -> Plan:
    """The steps of ``structure``, and buffers for the images that are not handed out."""
    same_as: dict[ImageNode, ImageNode] = {}
    last_read: dict[ImageNode, int] = {}
    for step, node in enumerate(structure.filters):
        passed_on = node.passed_on(shapes.of) if fuses_filters else None
        if passed_on is not None and not _has_an_image_of_its_own(structure, node):
            same_as[node.result_image] = same_as.get(passed_on, passed_on)
        for index, image in enumerate(node.source_images):
            if node.reads_values(index):
                last_read[same_as.get(image, image)] = step
    alignment = device.part_alignment
    planned: dict[ImageNode, int] = {}
    lifetimes: list[Lifetime] = []
    for step, node in enumerate(structure.filters):
        image = node.result_image
        if image in same_as or _has_an_image_of_its_own(structure, node) or not writes_result(structure, node):
            continue
        planned[image] = len(lifetimes)
        nbytes = -(-shapes.of[image].nbytes // (alignment or 1)) * (alignment or 1)
        lifetimes.append(Lifetime(structure.names[node], nbytes, step, max(last_read.get(image, step), step)))
    memory = plan_memory(lifetimes, divides_buffers=alignment is not None, largest_buffer=device.largest_buffer)
    steps = []
    for node in structure.filters:
        sources = tuple(
            (image, node.reads_values(index) or same_as.get(image, image) not in planned)
            for index, image in enumerate(node.source_images)
        )
        makes_state = node.result_state is not None and node.result_state in structure.made_states
        steps.append(Step(node, sources, makes_state, planned.get(node.result_image), same_as.get(node.result_image)))
    return Plan(shapes, memory, tuple(steps))


def _has_an_image_of_its_own(structure: Structure, node: FilterNode) -> bool:
    """Whether the result is an image that callers get or that they have a say in."""
    return structure.is_handed_out(node.result_image) or node.result_image.image_allocator is not None


def writes_result(structure: Structure, node: FilterNode) -> bool:
    """Whether the result is computed at all: gradients for weights alone have none."""
    if not isinstance(node, TrainableGradientNode) or node.result_image in structure.read_images:
        return True
    return not node.leaves_out_the_image
