"""Repeated encodes of a graph: the dispatches of its filters, taken over from an encode of images of the same geometry.

Kernels remember what their encodes found out (``repeated_encode``). A graph whose kernels have all repeated an encode
need not ask them again as long as what their keys say has not changed: the ``key_of`` an encode stands for all of them.
What depends on the moment is done in each encode: states are made, kernels check them and note what they have become,
and data sources update parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mpsgrad.base_kernel import BaseKernel
from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Dispatch
from mpsgrad.graph.callbacks import NodeWithCallback
from mpsgrad.graph.nodes import ImageNode, StateNode
from mpsgrad.graph.normalization import BatchNormalizationNode
from mpsgrad.graph.plan import Plan, Step
from mpsgrad.graph.shapes import ENCODE_ERRORS, in_terms_of_nodes
from mpsgrad.image import Image, RegularImageAllocator
from mpsgrad.kernels.loss_labels import LossLabels
from mpsgrad.repeated_encode import RepeatedEncode, image_token, token_of_whole

if TYPE_CHECKING:
    from mpsgrad.graph.graph import Graph
    from mpsgrad.graph.run import Run

ATTEMPTS = 4
"""So often a graph tries to keep what an encode of one key did; kernels repeat theirs from the second one on."""
RUNS_KEPT = 16


class Settings:
    """What encodes of a graph depend on besides what they are given, as far as it may change between two of them."""

    def __init__(self, graph: Graph) -> None:
        nodes = graph._structure.filters
        self.kernels: list[Any] = [kernel for node in nodes for kernel in graph._kernels[node]]
        kept = BaseKernel._encode_aspects
        self._with_aspects = [kernel for kernel in self.kernels if type(kernel)._encode_aspects is not kept]
        self._normalizations = [node for node in nodes if isinstance(node, BatchNormalizationNode)]
        self._images = [graph._fusion.result_of(node) for node in nodes]
        self._with_callbacks = [node for node in nodes if isinstance(node, NodeWithCallback)]
        own = NodeWithCallback._own_factor
        self._with_factors = [node for node in self._with_callbacks if type(node)._own_factor is not own]
        self._graph = graph
        # What others have written may do anything.
        self.are_known = all(_is_of_this_package(each) for each in [*nodes, *self.kernels])

    def key(self) -> Hashable | None:
        """What stands for them; None if there is something that has to be asked in each encode."""
        if type(self._graph.destination_image_allocator) is not RegularImageAllocator:
            return None
        if any([image.image_allocator is not None for image in self._images]):
            return None
        if any([node._property_call_back is not None for node in self._with_callbacks]):
            return None
        tokens = [kernel._values_token or kernel._token_of_values() for kernel in self.kernels]
        if 0 in tokens:
            return None
        return (
            *tokens,
            *[kernel._configured_by_hand for kernel in self.kernels],
            *[kernel._encode_aspects(None) for kernel in self._with_aspects],
            *[node._flags for node in self._normalizations],
            *[node._own_factor for node in self._with_factors],
        )


def _is_of_this_package(thing: object) -> bool:
    """Whether the class of ``thing`` is one of this package's, by whichever name."""
    return type(thing).__module__.startswith("mpsgrad.")


def images_given(source_images: Sequence[Image], source_states: Sequence[Any]) -> list[Image]:
    """The images that an encode is given, those of labels too."""
    images = [*source_images]
    for labels in source_states:
        images += labels._images
    return images


def key_of(settings: Settings, plan: Plan, given: Sequence[Image], source_states: Sequence[Any]) -> Hashable | None:
    """What decides the outcome of an encode of the images ``given``; None if it is to be looked at from scratch."""
    buffers: list[Buffer] = []
    for image in given:
        if image._command_buffer is not None:
            return None
        buffers.append(image._buffer or image.buffer)
    key = settings.key()
    if key is None:
        return None
    return (
        id(plan),
        key,
        *[image._token or image_token(image) for image in given],
        *map(buffers.index, buffers),
        *[labels.weights_image is None for labels in source_states],
    )


class _Encode:
    """One encode of a kernel, of which ``state`` is the number of its state.

    ``buffers`` are those that its ``RememberedWork`` picks from, without those that are lent, and with None for those
    of images that are given or handed out: ``places`` says which of these is where. ``read`` and ``handed_out`` are
    those that it reads and writes.
    """

    def __init__(self, step: Step, repeated: RepeatedEncode, state: int | None, given: dict[int, int]) -> None:
        self.step = step
        self.owner = type(repeated.kernel).__name__
        self.kernel, self.work, self.begin, self.note = repeated.kernel, repeated.work, repeated.begin, repeated.note
        self.make_state, self.writes_state, self.state = repeated.make_state, repeated.writes_state, state
        self.places = [(place, given[id(image)]) for place, image in enumerate(repeated.images) if id(image) in given]
        is_written = {id(image) for image in repeated.written}
        self.read = [number for place, number in self.places if id(repeated.images[place]) not in is_written]
        self.handed_out = [given[id(image)] for image in repeated.written[:1] if id(image) in given]
        used = self.work.places_used(len(repeated.images))
        self.buffers: list[Any] = [
            image._buffer if id(image) not in given and place in used else None
            for place, image in enumerate(repeated.images)
        ]
        self.buffers += self.work.constants
        work = self.work
        self._keeps_dispatches = not (self.places or work.of_state or work.scratch_sizes or work.workspace_sizes)
        self._last: list[Any] | None = None
        self._dispatches: list[Dispatch] = []

    def add_to(self, command_buffer: CommandBuffer, images: Sequence[Image], state: Any) -> None:
        """Adds the dispatches, the same objects again where they have the same buffers."""
        buffers = self.buffers
        if self.places:
            buffers = buffers.copy()
            for place, number in self.places:
                image = images[number]
                buffers[place] = image._buffer or image.buffer
        if self.work.is_lent:
            buffers = buffers + self.work.lent_buffers(command_buffer, self.kernel, state)
        if not self._keeps_dispatches:
            self.work.add_dispatches(command_buffer._dispatches, buffers)
            return
        if buffers != self._last:
            self._last, self._dispatches = buffers, []
            self.work.add_dispatches(self._dispatches, buffers)
        command_buffer._dispatches += self._dispatches


class KeptRuns:
    """What encodes of a graph did, by their keys."""

    def __init__(self, graph: Graph) -> None:
        self.settings = Settings(graph)
        self._device, self._memory = graph.device, graph._memory
        self._replaced = 0
        self._runs: dict[Hashable, RepeatedRun] = {}
        self._attempts: dict[Hashable, int] = {}

    def forget(self) -> None:
        """Forgets all of them."""
        self._runs.clear()
        self._attempts.clear()

    def way_of(self, plan: Plan, source_images: Sequence[Image], source_states: Sequence[Any]) -> WayToEncode:
        """How the filters are to be encoded, by ``plan``."""
        if not self.settings.are_known:
            return WayToEncode()
        for labels in source_states:
            is_known = isinstance(labels, LossLabels) and _is_of_this_package(labels)
            if not is_known or labels._device is not self._device:
                return WayToEncode()
        if self._replaced != self._memory.replaced:
            # They have the memory that was given back.
            self.forget()
            self._replaced = self._memory.replaced
        given = images_given(source_images, source_states)
        key = key_of(self.settings, plan, given, source_states)
        if key is None:
            return WayToEncode()
        known = self._runs.get(key)
        if known is not None:
            return WayToEncode(given, known)
        if len(self._attempts) >= RUNS_KEPT:
            self.forget()
        attempts = self._attempts[key] = self._attempts.get(key, 0) + 1
        if attempts > ATTEMPTS:
            return WayToEncode()
        return WayToEncode(given, keep=partial(self._runs.__setitem__, key))


@dataclass(frozen=True)
class WayToEncode:
    """As an encode ``known`` did, of the images ``given``; without one filter by filter, and what was done is kept."""

    given: Sequence[Image] = ()
    known: RepeatedRun | None = None
    keep: Callable[[RepeatedRun], Any] | None = None

    def encode_steps(self, run: Run) -> None:
        """Adds the work of the filters in ``run``, which gets their images and states."""
        if self.known is not None:
            self.known.encode_steps(run, self.given)
        elif self.keep is None:
            run.encode_steps()
        else:
            made = self._watched(run)
            if made is not None:
                self.keep(made)

    def _watched(self, run: Run) -> RepeatedRun | None:
        command_buffer = run.command_buffer
        before = len(command_buffer._dispatches)
        repeated = command_buffer._repeated = []
        steps: list[tuple[Step, list[RepeatedEncode]]] = []
        try:
            for step in run.encode_steps_in_turn():
                steps.append((step, repeated[:]))
                repeated.clear()
        finally:
            command_buffer._repeated = None
        return RepeatedRun.of(run, steps, self.given, len(command_buffer._dispatches) - before)


class RepeatedRun:
    """What an encode did, for other images of the same key."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.graph, self.plan = graph, plan
        self._encodes: list[_Encode] = []
        self._made: list[tuple[ImageNode, int]] = []
        self._states: dict[StateNode, int] = {}
        self._values: list[tuple[Any, dict[str, Any], int]] = []

    @classmethod
    def of(
        cls, run: Run, steps: Sequence[tuple[Step, list[RepeatedEncode]]], given: Sequence[Image], dispatches: int
    ) -> RepeatedRun | None:
        """What ``run`` did in its ``steps``, in as many ``dispatches``; None if there is more than kernels told of."""
        graph = run.graph
        made = cls(graph, run.plan)
        if any(not encodes and step.passes_on is None for step, encodes in steps):
            return None
        if sum(len(each.work.dispatches) for _, encodes in steps for each in encodes) != dispatches:
            return None
        numbers = {id(image): number for number, image in reversed([*enumerate(given)])}
        for step, _ in steps:
            if step.passes_on is None and graph._structure.is_handed_out(step.result) and step.result in run.images:
                numbers[id(run.images[step.result])] = len(given) + len(made._made)
                made._made.append((step.result, token_of_whole(run.plan.shapes.of[step.result])))
        labels = [run.states[node] for node in graph._structure.source_states]
        slots = {id(state): slot for slot, state in enumerate(labels)}
        states = len(labels)
        for step, encodes in steps:
            for each in encodes:
                if each.make_state is not None:
                    slots[id(each.state)] = states
                    states += 1
                elif each.state is not None and id(each.state) not in slots:
                    return None
                state = None if each.state is None else slots[id(each.state)]
                made._encodes.append(_Encode(step, each, state, numbers))
        if any(id(state) not in slots for state in run.states.values()):
            return None
        made._states = {node: slots[id(state)] for node, state in run.states.items()}
        made._values = [
            (kernel, kernel._values, kernel._token_of_values()) for kernel in graph._kept_runs.settings.kernels
        ]
        return made

    def encode_steps(self, run: Run, given: Sequence[Image]) -> None:
        """Adds the work of all filters to the command buffer of ``run``, which gets their images and states."""
        graph, shapes, command_buffer = self.graph, self.plan.shapes, run.command_buffer
        images = [*given]
        for node, token in self._made:
            image = run.images[node] = Image._allocated(shapes.of[node], graph.device, token)
            images.append(image)
        states: list[Any] = [run.states[node] for node in graph._structure.source_states]
        state: Any
        for each in self._encodes:
            state = None
            try:
                if each.make_state is not None:
                    state = each.make_state()
                    states.append(state)
                elif each.state is not None:
                    state = states[each.state]
                for number in each.read:
                    writer = images[number]._root._writer
                    if writer is not None:
                        command_buffer._reads(each.owner, "a source image", writer)
                if each.begin is not None:
                    each.begin(command_buffer, state)
                each.add_to(command_buffer, images, state)
                if each.note is not None:
                    each.note(command_buffer, state)
            except ENCODE_ERRORS as error:
                raise in_terms_of_nodes(error, graph._structure, each.step.node, shapes.of) from error
            for number in each.handed_out:
                command_buffer._writes(images[number]._root)
            if each.writes_state:
                state._written_by(command_buffer)
        run.states = {node: states[slot] for node, slot in self._states.items()}
        for kernel, values, token in self._values:
            if kernel._values_token != token:
                kernel._values, kernel._values_token = values, token
