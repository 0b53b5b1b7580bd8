"""What an encode of a graph does for source images of certain extents: steps, their images, and the memory."""

from __future__ import annotations

from dataclasses import dataclass

from mpsgrad.devices import Device
from mpsgrad.geometry import ceiling_divide
from mpsgrad.graph.fusion import Fusion
from mpsgrad.graph.memory import Lifetime, MemoryPlan, plan_memory
from mpsgrad.graph.nodes import FilterNode, ImageNode
from mpsgrad.graph.shapes import Shapes
from mpsgrad.graph.structure import Structure
from mpsgrad.graph.trainable import TrainableGradientNode


@dataclass(frozen=True)
class Step:
    """One filter's part of an encode.

    ``sources`` are the images that it reads, each with whether its elements are read, and ``result`` is the one that it
    writes; ``fused`` are the filters whose work it does besides its own. ``planned`` is the number of the result in the
    memory plan; None for a result that is handed out, and one that is never written. With ``passes_on`` that image is
    the result, and nothing runs.
    """

    node: FilterNode
    sources: tuple[tuple[ImageNode, bool], ...]
    result: ImageNode
    makes_state: bool
    planned: int | None
    passes_on: ImageNode | None = None
    fused: tuple[FilterNode, ...] = ()


@dataclass(frozen=True)
class Plan:
    """All steps, for sources of the descriptors in ``shapes``."""

    shapes: Shapes
    memory: MemoryPlan
    steps: tuple[Step, ...]


def make_plan(structure: Structure, shapes: Shapes, fusion: Fusion, passes_images_on: bool, device: Device) -> Plan:
    """The steps of ``structure``, and memory for the images that are not handed out."""
    filters = [node for node in structure.filters if node not in fusion]
    same_as: dict[ImageNode, ImageNode] = {}
    last_read: dict[ImageNode, int] = {}
    for step, node in enumerate(filters):
        passed_on = node.passed_on(shapes.of) if passes_images_on else None
        result = fusion.result_of(node)
        if passed_on is not None and shapes.of[passed_on].channel_format is not shapes.of[result].channel_format:
            passed_on = None
        if passed_on is not None and not _has_an_image_of_its_own(structure, result):
            same_as[result] = same_as.get(passed_on, passed_on)
        for index, image in enumerate(fusion.sources_of(node)):
            if node.reads_values(index):
                last_read[same_as.get(image, image)] = step
    alignment = device.part_alignment
    planned: dict[ImageNode, int] = {}
    lifetimes: list[Lifetime] = []
    for step, node in enumerate(filters):
        image = fusion.result_of(node)
        if image in same_as or _has_an_image_of_its_own(structure, image) or not writes_result(structure, node):
            continue
        planned[image] = len(lifetimes)
        nbytes = ceiling_divide(shapes.of[image].nbytes, alignment or 1) * (alignment or 1)
        lifetimes.append(Lifetime(structure.names[node], nbytes, step, max(last_read.get(image, step), step)))
    memory = plan_memory(lifetimes, divides_buffers=alignment is not None, largest_buffer=device.largest_buffer)
    steps = []
    for node in filters:
        result = fusion.result_of(node)
        sources = tuple(
            (image, node.reads_values(index) or same_as.get(image, image) not in planned)
            for index, image in enumerate(fusion.sources_of(node))
        )
        makes_state = node.result_state is not None and node.result_state in structure.made_states
        fused = tuple(each for each in [fusion.parts.get(node)] if each is not None)
        steps.append(Step(node, sources, result, makes_state, planned.get(result), same_as.get(result), fused))
    return Plan(shapes, memory, tuple(steps))


def _has_an_image_of_its_own(structure: Structure, image: ImageNode) -> bool:
    """Whether callers get the image or have a say in it."""
    return structure.is_handed_out(image) or image.image_allocator is not None


def writes_result(structure: Structure, node: FilterNode) -> bool:
    """Whether the result is computed at all: gradients for weights alone have none."""
    if not isinstance(node, TrainableGradientNode) or node.result_image in structure.read_images:
        return True
    return not node.leaves_out_the_image
