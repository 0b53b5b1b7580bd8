"""``Graph``: kernels for the nodes of a network, encoded together."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpsgrad.base_kernel import KernelOptions
from mpsgrad.checked_attribute import CheckedAttribute, EnumAttribute, Label
from mpsgrad.command import CommandBuffer
from mpsgrad.device_bound import DeviceBound
from mpsgrad.devices import Device, require_device
from mpsgrad.errors import FormatError, GeometryError, MPSGradError, StateError
from mpsgrad.geometry import flag, integer, integers, member
from mpsgrad.graph.batches import BatchJoiner
from mpsgrad.graph.drawing import mermaid, svg
from mpsgrad.graph.dropout import DropoutNode
from mpsgrad.graph.fusion import Fusion, find_fusion
from mpsgrad.graph.inference import inference_images, predictions
from mpsgrad.graph.memory import MemoryPlan
from mpsgrad.graph.nodes import FilterNode, GradientFilterNode, ImageNode, StateNode
from mpsgrad.graph.plan import Plan, make_plan
from mpsgrad.graph.planned_memory import PlannedMemory
from mpsgrad.graph.profile import Profile, measure
from mpsgrad.graph.repeated_run import KeptRuns
from mpsgrad.graph.run import Run
from mpsgrad.graph.shapes import ENCODE_ERRORS, infer_shapes
from mpsgrad.graph.sources import Sources
from mpsgrad.graph.structure import Structure, result_images
from mpsgrad.graph.summary import summary
from mpsgrad.graph.trainable import TrainableGradientNode
from mpsgrad.graph.updates import updates_of
from mpsgrad.image import (
    FeatureChannelFormat,
    HandedImageAllocator,
    Image,
    ImageBatch,
    ImageDescriptor,
    RegularImageAllocator,
    require_allocator,
)
from mpsgrad.kernels.dropout import Dropout
from mpsgrad.kernels.loss_labels import LossLabels
from mpsgrad.kernels.loss_scale import LossScale
from mpsgrad.known_attributes import KnownAttributes
from mpsgrad.state import State

_PLANS_KEPT = 8


class Graph(KnownAttributes, DeviceBound):
    """The filters that ``results`` need, with a kernel for each, encoded by one call. Source: ``MPSNNGraph``.

    ``results`` is an ``ImageNode``, a ``FilterNode`` (its result image), or a list of them; ``results_are_needed`` says
    whether encodes give them, for all or one by one. What no needed result, no exported image or state, no loss and no
    update of parameters depends on is left out.

    An encode runs the filters in order, forward and backward. A forward filter makes its state if a gradient filter of
    the graph reads it. Then, in that order, the data source of each trained gradient filter updates the parameters, and
    what it returns is loaded into the kernels: the whole pass, forward and backward, has the parameters from before.

    With ``loss_scale`` the gradients of all trained parameters are checked by it before the updates.

    With ``fuses_filters`` a filter whose result has every bit of a source image does not run: the gradients of an
    addition are the incoming one. A neuron behind a batch normalization whose result nothing else reads runs as part of
    it, and so do their gradients: to the same bits in FLOAT32 where the neuron's derivative is 0 or 1, as that of ReLU,
    and without the rounding of what lies in between elsewhere.

    Images between filters lie in memory that the graph keeps and shares out by their lifetimes; it is found anew for
    source images of other extents. Results and exported images are new images in each encode. Encodes of images of the
    same geometry take over the work of earlier ones, mostly from the fourth on, if neither a setting has changed nor a
    callback, a node or an allocator of somebody else has to be asked. An encode may be recorded
    (``CommandBuffer.record``); each replay is then a step that goes on from the last one, if the data sources update
    parameters on the device.

    Raises ``StateError`` for a cycle, for two gradient nodes that use one state of a convolution or normalization, and
    if nothing is left to compute; what making the kernels raises; and ``FormatError`` for results that are no nodes.
    """

    _fixed_attributes = ("device",)

    label = Label()
    options = EnumAttribute(KernelOptions.NONE, "Accepted for ported code; validation is never skipped.")
    destination_image_allocator = CheckedAttribute(
        RegularImageAllocator(), require_allocator, "Makes the images of needed results."
    )
    output_state_is_temporary = CheckedAttribute(
        False, flag, "Kept for ported code: exported states are regular ones, which the CPU can read."
    )

    # objc: -initWithDevice:resultImage:
    # objc: -initWithDevice:resultImage:resultImageIsNeeded:
    # objc: -initWithDevice:resultImages:resultsAreNeeded:
    def __init__(
        self,
        results: ImageNode | FilterNode | Sequence[ImageNode | FilterNode],
        *,
        results_are_needed: bool | Sequence[bool] = True,
        fuses_filters: bool = True,
        loss_scale: LossScale | None = None,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        self.device = require_device("Graph", device)
        self.label = label
        if loss_scale is not None and not isinstance(loss_scale, LossScale):
            raise FormatError(f"Graph: loss_scale is {loss_scale!r}; it has to be a LossScale or None")
        self._loss_scale = loss_scale
        self._fuses_filters = flag("Graph", "fuses_filters", fuses_filters)
        self._structure = structure = Structure(results, results_are_needed)
        self._sources = Sources(structure, self.device)
        self._fusion = find_fusion(structure) if self._fuses_filters else Fusion()
        self._kernels: dict[FilterNode, Sequence[Any]] = {}
        self._allocators: dict[FilterNode, HandedImageAllocator] = {}
        for node in structure.filters:
            self._kernels[node] = self._make_kernels(node)
            self._allocators[node] = HandedImageAllocator()
            self._kernels[node][0].destination_image_allocator = self._allocators[node]
        self._updates = updates_of(structure, self._kernels)
        self._format = FeatureChannelFormat.NONE
        self._plans: OrderedDict[tuple[ImageDescriptor, ...], Plan] = OrderedDict()
        self._last_plan: Plan | None = None
        self._memory = PlannedMemory(self.device)
        self._nothing = self.device.allocate(16)
        self._kept_runs = KeptRuns(self)
        self._lock = threading.RLock()

    def _make_kernels(self, node: FilterNode) -> Sequence[Any]:
        forward: Sequence[Any] = ()
        if isinstance(node, GradientFilterNode):
            forward = self._kernels[node.inference_node]
        try:
            kernels = node.make_kernels(self.device, forward)
            neuron = self._fusion.neurons.get(node)
            if neuron is not None:
                (applied,) = neuron.make_kernels(self.device, ())
                kernels = node.make_fused_kernels(self.device, applied.neuron_descriptor)  # type: ignore[attr-defined]
        except ENCODE_ERRORS as error:
            raise type(error)(f"Graph: {self._structure.names[node]}: {error}") from error
        if isinstance(node, TrainableGradientNode):
            structure = self._structure
            node.choose_gradients(
                kernels,
                needs_image=node.result_image in structure.read_images,
                needs_parameters=structure.needs_parameter_gradients(node),
            )
        return kernels

    def inference_graph(
        self,
        results: ImageNode | FilterNode | Sequence[ImageNode | FilterNode] | None = None,
        *,
        device: Device | None = None,
        label: str | None = None,
    ) -> Graph:
        """A graph that infers with what this one trains: the forward filters that ``results`` depend on, copied.

        Without ``results`` these are the images that the losses of this graph compare with labels; others may be built
        on them, ``SoftMaxNode(scores)``. Dropout is left out, and batch normalization uses the mean and variance of its
        data source. Both graphs have the same data sources: ``reload_from_data_sources`` of the new graph loads what
        training has made of the parameters, if the data sources give that. ``device`` is this graph's unless another is
        named.

        Raises ``StateError`` without ``results`` if there is no loss, and for results that depend on a gradient, and
        what ``Graph`` raises.
        """
        images = predictions(self.filters) if results is None else result_images(results)
        return Graph(
            inference_images(images),
            fuses_filters=self._fuses_filters,
            device=self.device if device is None else device,
            label=label,
        )

    @property
    def drawn_images(self) -> tuple[int, ...]:
        """For each dropout, in the order of ``filters``, the ``drawn_images`` of its ``Dropout``.

        So many images' masks were drawn; set it to go on from there, as after a restart, with the masks that follow.
        Raises ``FormatError`` for another number of values, and ``GeometryError`` for negative ones.
        """
        return tuple(kernel.drawn_images for kernel in self._dropouts)

    @drawn_images.setter
    def drawn_images(self, values: Sequence[int]) -> None:
        numbers = integers("Graph", "drawn_images", values, len(self._dropouts), 0)
        for kernel, number in zip(self._dropouts, numbers, strict=True):
            kernel.drawn_images = number

    @property
    def _dropouts(self) -> list[Dropout]:
        return [self._kernels[node][0] for node in self.filters if isinstance(node, DropoutNode)]

    @property
    def loss_scale(self) -> LossScale | None:
        """What checks the gradients of all parameters before the updates."""
        return self._loss_scale

    @property
    def last_plan(self) -> Plan | None:
        """What the last encode, or call of ``plan``, planned; None before the first."""
        return self._last_plan

    def draw(self, path: str | Path | None = None) -> str:
        """A picture of the graph: forward filters on the left, backward ones beside them, extents on the edges.

        Without ``path``, or with one that ends in ``.mmd``, that is a Mermaid flow chart; with one that ends in
        ``.svg`` an SVG. It is written to ``path`` and returned. Extents are those of the last plan. Raises
        ``FormatError`` for another ending.
        """
        ending = ".mmd" if path is None else Path(path).suffix.lower()
        if ending not in (".mmd", ".svg"):
            raise FormatError(f"Graph: draw to {str(path)!r}; the name has to end in .mmd or .svg")
        text = mermaid(self) if ending == ".mmd" else svg(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def profile(
        self, source_images: Sequence[Image], source_states: Sequence[State] = (), *, repeats: int = 5
    ) -> Profile:
        """How long each filter takes: the median of ``repeats`` runs, each filter in a command buffer of its own.

        Takes what ``encode`` takes, but no temporary images. Parameters are not updated. ``print`` shows a table, and
        ``Profile.write_trace`` writes a file for https://ui.perfetto.dev. Raises what ``encode`` raises.
        """
        images = self._sources.images(CommandBuffer(self.device), source_images)
        states = self._sources.states(source_states)
        plan = self._plan_for(tuple(image.descriptor for image in images))
        self._sources.check_states(states, plan.shapes, self._kernels)
        return measure(self, plan, images, states, integer("Graph", "repeats", repeats, 1))

    def __str__(self) -> str:
        return summary(self)

    @property
    def filters(self) -> tuple[FilterNode, ...]:
        """The filters that run, in order: a depth-first walk from the results, what a filter reads before itself.

        It goes through the source images of a filter in their order, and then through its source states.
        """
        return tuple(self._structure.filters)

    @property
    def source_images(self) -> tuple[ImageNode, ...]:
        """The nodes of the images that encodes are given, in the order in which ``filters`` first read them."""
        return tuple(self._structure.sources)

    @property
    def source_image_handles(self) -> list[Any]:
        """The handles of ``source_images``."""
        return [image.handle for image in self._structure.sources]

    @property
    def source_states(self) -> tuple[StateNode, ...]:
        """The nodes of the labels that encodes are given, in the order in which ``filters`` first read them."""
        return tuple(self._structure.source_states)

    @property
    def source_state_handles(self) -> list[Any]:
        """The handles of ``source_states``."""
        return [state.handle for state in self._structure.source_states]

    @property
    def _intermediates(self) -> list[ImageNode]:
        structure = self._structure
        further = zip(structure.results[1:], structure.needed[1:], strict=True)
        return [*(image for image, needed in further if needed), *structure.exported]

    @property
    def intermediate_image_handles(self) -> list[Any]:
        """The handles of the intermediate images: needed results from the second on, then exported images in order."""
        return [image.handle for image in self._intermediates]

    @property
    def result_state_handles(self) -> list[Any]:
        """The handles of the exported states, in the order of the filters."""
        return [state.handle for state in self._structure.exported_states]

    @property
    def result_handle(self) -> Any:
        """The handle of the first result."""
        return self._structure.results[0].handle

    @property
    def result_image_is_needed(self) -> bool:
        """Whether encodes return the first result."""
        return self._structure.needed[0]

    @property
    def format(self) -> FeatureChannelFormat:
        """The format of the images that filters compute, where their nodes say none.

        NONE, as at first, for that of what a filter reads; MPS begins with FLOAT16. A result of another format is
        converted after the filter has computed it, and so is one of two source images of a filter whose formats differ:
        to FLOAT32. Parameters and their gradients are FLOAT32 whatever this is.
        """
        return self._format

    @format.setter
    def format(self, value: FeatureChannelFormat) -> None:
        self._format = member("Graph", "format", FeatureChannelFormat, value)
        self._plans.clear()
        self._kept_runs.forget()

    # objc: -readCountForSourceImageAtIndex:
    def read_count_for_source_image(self, index: int) -> int:
        """By how much an encode lowers the read count of temporary source image ``index``: 1.

        Of the two numbers that MPS gives this is the one for an encode, whatever reads the image in it.
        """
        self._require_index("source image", index, len(self._structure.sources))
        return 1

    # objc: -readCountForSourceStateAtIndex:
    def read_count_for_source_state(self, index: int) -> int:
        """By how much an encode lowers the read count of temporary source state ``index``: 1."""
        self._require_index("source state", index, len(self._structure.source_states))
        return 1

    def _require_index(self, what: str, index: int, count: int) -> None:
        if index not in range(count):
            raise GeometryError(f"Graph: {what} {index} of a graph with {count}")

    # objc: -reloadFromDataSources
    def reload_from_data_sources(self) -> None:
        """Has every kernel with a data source read it again; work that was committed has to have completed.

        A recorded encode keeps the parameters that it has.
        """
        for kernels in self._kernels.values():
            for name in (
                "reload_weights_and_biases_from_data_source",
                "reload_gamma_and_beta_from_data_source",
                "reload_mean_and_variance_from_data_source",
            ):
                if hasattr(kernels[0], name):
                    getattr(kernels[0], name)()
        for update in self._updates.values():
            update.reload()

    def plan(self, source_images: Sequence[Image | ImageDescriptor]) -> Plan:
        """What an encode of such images does: extents, steps and memory. Nothing is computed.

        Raises ``GeometryError`` if extents do not meet, naming the filter, with the extents of all images before it.
        """
        return self._plan_for(self._sources.descriptors(source_images))

    def _plan_for(self, descriptors: tuple[ImageDescriptor, ...]) -> Plan:
        plan = self._plans.get(descriptors)
        if plan is None:
            shapes = infer_shapes(self._structure, self._kernels, descriptors, self._nothing, self._format)
            plan = self._plans[descriptors] = make_plan(
                self._structure, shapes, self._fusion, self._fuses_filters, self.device
            )
            if len(self._plans) > _PLANS_KEPT:
                self._plans.popitem(last=False)
        self._last_plan = plan
        return plan

    def memory_report(self, source_images: Sequence[Image | ImageDescriptor] | None = None) -> MemoryPlan:
        """How images between filters share memory, for such source images, or as in the last encode.

        Raises ``StateError`` if there was none.
        """
        if source_images is not None:
            return self.plan(source_images).memory
        if self._last_plan is None:
            raise StateError("Graph: memory_report without source_images before the first encode")
        return self._last_plan.memory

    # objc: -encodeToCommandBuffer:sourceImages:
    # objc: -encodeToCommandBuffer:sourceImages:sourceStates:intermediateImages:destinationStates:
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        source_states: Sequence[State] = (),
        *,
        intermediate_images: list[Any] | None = None,
        destination_states: list[Any] | None = None,
    ) -> Image | None:
        """Adds all work of the graph to ``command_buffer``; returns the first result, or None if it is not needed.

        ``source_images`` and ``source_states`` are in the order of ``source_images`` and ``source_states`` of the
        graph. An image may hold a batch; so may ``LossLabels``. The lists ``intermediate_images`` and
        ``destination_states``, if given, get what ``intermediate_image_handles`` and ``result_state_handles`` say.

        Several threads may encode one graph, one after the other. Raises ``FormatError``, ``GeometryError`` or
        ``StateError`` before anything is dispatched.
        """
        self._require_command_buffer(command_buffer)
        _require_lists(intermediate_images=intermediate_images, destination_states=destination_states)
        images = self._sources.images(command_buffer, source_images)
        states = self._sources.states(source_states)
        with self._lock:
            plan = self._plan_for(tuple([image.descriptor for image in images]))
            way = self._kept_runs.way_of(plan, images, states)
            if way.known is None:
                self._sources.check_states(states, plan.shapes, self._kernels)
            with command_buffer._all_or_nothing():
                run = Run(self, command_buffer, plan, images, states)
                run.encode(way)
        if intermediate_images is not None:
            intermediate_images += [run.images[image] for image in self._intermediates]
        if destination_states is not None:
            destination_states += [run.states[state] for state in self._structure.exported_states]
        return run.images[self._structure.results[0]] if self.result_image_is_needed else None

    # objc: -encodeBatchToCommandBuffer:sourceImages:sourceStates:
    # objc: -encodeBatchToCommandBuffer:sourceImages:sourceStates:intermediateImages:destinationStates:
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Sequence[Image]],
        source_states: Sequence[LossLabels | Sequence[LossLabels]] = (),
        *,
        intermediate_images: list[Any] | None = None,
        destination_states: list[Any] | None = None,
    ) -> ImageBatch | None:
        """``encode`` of batches of images of one image each, and for each batch of labels a list of ``LossLabels``.

        Results are batches too. A batch that is not made of one image is copied into one first, and the losses are
        copied back to their labels; so the sums are those of ``encode``.
        """
        self._require_command_buffer(command_buffer)
        _require_lists(intermediate_images=intermediate_images, destination_states=destination_states)
        batches = self._sources.list_of_images(source_images)
        labels = self._sources.list_of_states(source_states)
        joiner = BatchJoiner(command_buffer)
        made: list[Any] = []
        states: list[Any] = []
        with command_buffer._all_or_nothing():
            images = [joiner.image(f"source_images[{index}]", batch) for index, batch in enumerate(batches)]
            joined = [joiner.labels(f"source_states[{index}]", each) for index, each in enumerate(labels)]
            result = self.encode(command_buffer, images, joined, intermediate_images=made, destination_states=states)
            joiner.hand_back()
        if intermediate_images is not None:
            intermediate_images += [image.batch_representation() for image in made]
        if destination_states is not None:
            destination_states += [state.batch_representation() for state in states]
        return None if result is None else result.batch_representation()

    # objc: -executeAsyncWithSourceImages:completionHandler:
    def execute_async(
        self,
        source_images: Sequence[Image],
        source_states: Sequence[State] = (),
        *,
        completion_handler: Callable[[Image | None, MPSGradError | None], Any] | None = None,
    ) -> Image | None:
        """``encode`` into a command buffer of its own, which is committed; returns the first result at once.

        Once the work has completed ``completion_handler`` is called on another thread with the result and None, or with
        None and the error that the device reported. Raises what ``encode`` raises.
        """
        command_buffer = CommandBuffer(self.device, label=self.label)
        result = self.encode(command_buffer, source_images, source_states)
        command_buffer.commit()

        def finish() -> None:
            error: MPSGradError | None = None
            try:
                command_buffer.wait_until_completed()
            except MPSGradError as failure:
                error = failure
            if completion_handler is not None:
                completion_handler(None if error is not None else result, error)

        threading.Thread(target=finish, name=f"completion of {self!r}").start()
        return result

    def _require_command_buffer(self, command_buffer: Any) -> None:
        if not isinstance(command_buffer, CommandBuffer):
            raise FormatError(f"Graph: command_buffer is {command_buffer!r}; it has to be a CommandBuffer")
        command_buffer._require_open("Graph.encode")
        if command_buffer.device is not self.device:
            raise StateError(
                f"Graph: command_buffer is for {command_buffer.device.identifier} but the graph for "
                f"{self.device.identifier}"
            )

    def __repr__(self) -> str:
        name = f" {self.label!r}" if self.label else ""
        return f"<Graph{name} of {len(self._structure.filters)} filters on {self.device.identifier}>"


def _require_lists(**given: Any) -> None:
    """Raises ``FormatError`` for what is to be filled and is no list."""
    for name, value in given.items():
        if value is not None and not isinstance(value, list):
            raise FormatError(f"Graph: {name} is {type(value).__name__}; it has to be a list, which is filled, or None")
