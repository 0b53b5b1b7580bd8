"""One encode of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpsgrad.command import CommandBuffer
from mpsgrad.graph.nodes import ImageNode, StateNode
from mpsgrad.graph.plan import Plan, Step
from mpsgrad.image import Image, RegularImageAllocator, TemporaryImage
from mpsgrad.state import State

if TYPE_CHECKING:
    from mpsgrad.graph.graph import Graph

_MANY_READS = 1 << 30


class Run:
    """One encode: the images and states that there are so far."""

    def __init__(
        self,
        graph: Graph,
        command_buffer: CommandBuffer,
        plan: Plan,
        source_images: Sequence[Image],
        source_states: Sequence[State],
    ) -> None:
        self.graph = graph
        self.command_buffer = command_buffer
        self.plan = plan
        self.images: dict[ImageNode, Image] = dict(zip(graph._structure.sources, source_images, strict=True))
        self.states: dict[StateNode, Any] = dict(zip(graph._structure.source_states, source_states, strict=True))
        self._read_counts: dict[int, tuple[Any, int]] = {}
        for source in source_images:
            if source.command_buffer is not None:
                self._keep_readable(source, source.read_count - 1)

    def encode(self) -> None:
        """Adds the steps and then the updates."""
        graph = self.graph
        for update in graph._updates.values():
            if update.node.is_trained:
                update.begin(self.command_buffer)
        try:
            for step in self.plan.steps:
                self.encode_step(step)
        finally:
            for image, count in self._read_counts.values():
                image.read_count = count
        trained = {node: update for node, update in graph._updates.items() if node.is_trained}
        if graph.loss_scale is not None:
            gradients = [
                vector
                for node, update in trained.items()
                for vector in update.gradient_vectors(self.states[node.source_states[0]])
            ]
            graph.loss_scale.encode_check(self.command_buffer, gradients)
        for node, update in trained.items():
            update.encode(self.command_buffer, self.states[node.source_states[0]])

    def encode_step(self, step: Step) -> None:
        """Adds the work of one filter."""
        graph, node = self.graph, step.node
        if step.passes_on is not None:
            self.images[step.result] = self.images[step.passes_on]
            return
        kernels = graph._kernels[node]
        stand_ins = self.plan.shapes.stand_ins
        images = [self.images[image] if reads else stand_ins[image] for image, reads in step.sources]
        states = [self.states[state] for state in node.source_states]
        graph._allocators[node].handed = self._destination(step, kernels[0])
        made, state = node.encode(self.command_buffer, kernels, images, states, step.makes_state)
        if made is not None:
            self.images[step.result] = made
        if state is not None:
            assert node.result_state is not None
            self.states[node.result_state] = state

    def _destination(self, step: Step, kernel: Any) -> Image:
        graph, image = self.graph, step.result
        is_handed_out = graph._structure.is_handed_out(image)
        is_result = is_handed_out and image in graph._structure.results
        allocator = graph.destination_image_allocator if is_result else image.image_allocator
        if allocator is None:
            if not is_handed_out:
                return self._planned_image(step)
            allocator = RegularImageAllocator()
        made = allocator.image(self.command_buffer, self.plan.shapes.of[image], kernel)
        if isinstance(made, TemporaryImage):
            self._keep_readable(made, 1 if is_handed_out else 0)
        return made

    def _keep_readable(self, image: Any, count: int) -> None:
        """Lets the filters read a temporary image as often as they do; afterwards its read count is ``count``."""
        if id(image) not in self._read_counts:
            self._read_counts[id(image)] = (image, count)
            image.read_count = _MANY_READS

    def _planned_image(self, step: Step) -> Image:
        """The image that a step writes, in the memory that is planned for it."""
        graph, plan = self.graph, self.plan
        image = Image(plan.shapes.of[step.result], graph.device, label=step.node.label)
        if step.planned is not None:
            image._buffer = graph._memory.buffer(plan.memory, step.planned)
        return image
