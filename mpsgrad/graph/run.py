"""One encode of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mpsgrad.command import CommandBuffer
from mpsgrad.graph.nodes import ImageNode, StateNode
from mpsgrad.graph.plan import Plan, Step
from mpsgrad.graph.shapes import ENCODE_ERRORS, in_terms_of_nodes
from mpsgrad.image import FeatureChannelFormat, Image, RegularImageAllocator, TemporaryImage, allocated
from mpsgrad.kernels.format_conversion import convert_format
from mpsgrad.state import State

if TYPE_CHECKING:
    from mpsgrad.graph.graph import Graph
    from mpsgrad.graph.repeated_run import WayToEncode
    from mpsgrad.graph.updates import ParameterUpdate

_MANY_READS = 1 << 30
Result = TypeVar("Result")


def _named(update: ParameterUpdate, run: Callable[[], Result]) -> Result:
    """What ``run`` gives, a part of ``update``; what it raises names the filter."""
    try:
        return run()
    except ENCODE_ERRORS as error:
        raise type(error)(f"Graph: {update.name}: {error}") from error


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
        self._converted: dict[ImageNode, Image] = {}
        self._read_counts: dict[int, tuple[Any, int]] = {}
        for source in source_images:
            if source._command_buffer is not None:
                self._keep_readable(source, source.read_count - 1)

    def encode(self, way: WayToEncode) -> None:
        """Adds the steps, in the ``way`` that was found, and then the updates."""
        graph = self.graph
        for update in graph._updates.values():
            if update.node.is_trained:
                update.require_gradients()
                update.begin(self.command_buffer)
        try:
            way.encode_steps(self)
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
        loads = [
            _named(update, partial(update.encode, self.command_buffer, self.states[node.source_states[0]]))
            for node, update in trained.items()
        ]
        for update, load in zip(trained.values(), loads, strict=True):
            if load is not None:
                _named(update, load)

    def encode_steps(self) -> None:
        """Adds the work of the filters."""
        for _ in self.encode_steps_in_turn():
            pass

    def encode_steps_in_turn(self) -> Iterator[Step]:
        """The same, one by one: each step once it is done."""
        for step in self.plan.steps:
            try:
                self.encode_step(step)
            except ENCODE_ERRORS as error:
                raise in_terms_of_nodes(error, self.graph._structure, step.node, self.plan.shapes.of) from error
            yield step

    def encode_step(self, step: Step) -> None:
        """Adds the work of one filter."""
        graph, node = self.graph, step.node
        if step.passes_on is not None:
            self.images[step.result] = self.images[step.passes_on]
            return
        kernels = graph._kernels[node]
        shapes = self.plan.shapes
        stand_ins = shapes.stand_ins_of([image for image, _ in step.sources])
        images = [
            self._in_format(image, stand_in.channel_format) if reads else stand_in
            for (image, reads), stand_in in zip(step.sources, stand_ins, strict=True)
        ]
        states = [self.states[state] for state in node.source_states]
        result = destination = self._destination(step, kernels[0])
        made_in = stand_ins[0].channel_format if step.fused else shapes.made[node]
        if result.channel_format is not made_in:
            destination = Image(replace(result.descriptor, channel_format=made_in), graph.device)
        graph._allocators[node].handed = destination
        made, state = node.encode(self.command_buffer, kernels, images, states, step.makes_state)
        if made is destination is not result:
            convert_format(self.command_buffer, destination, result)
            made = result
        if made is not None:
            self.images[step.result] = made
        if state is not None:
            assert node.result_state is not None
            self.states[node.result_state] = state

    def _in_format(self, image: ImageNode, wanted: FeatureChannelFormat) -> Image:
        """The image, or a copy of it in the format that a filter reads."""
        found = self.images[image]
        if found.channel_format is wanted:
            return found
        if image not in self._converted:
            copy = Image(replace(found.descriptor, channel_format=wanted), self.graph.device)
            self.command_buffer._reads("Graph", "a source image", found._root._writer)
            convert_format(self.command_buffer, found, copy)
            self._converted[image] = copy
        return self._converted[image]

    def _destination(self, step: Step, kernel: Any) -> Image:
        graph, image = self.graph, step.result
        is_handed_out = graph._structure.is_handed_out(image)
        is_result = is_handed_out and image in graph._structure.results
        allocator = graph.destination_image_allocator if is_result else image.image_allocator
        if allocator is None:
            if not is_handed_out:
                return self._planned_image(step)
            allocator = RegularImageAllocator()
        descriptor = self.plan.shapes.of[image]
        made = allocated(allocator, self.command_buffer, descriptor, kernel)
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
