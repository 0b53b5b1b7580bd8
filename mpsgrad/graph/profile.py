"""How long the filters of a graph take, as a table and as a trace that Perfetto shows."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Device
from mpsgrad.graph.drawing import Picture
from mpsgrad.graph.memory import bytes_text
from mpsgrad.graph.plan import Plan, Step, writes_result
from mpsgrad.graph.run import Run
from mpsgrad.graph.summary import parameter_count, table
from mpsgrad.graph.trainable import TrainableGradientNode
from mpsgrad.image import FeatureChannelFormat, Image, ImageDescriptor
from mpsgrad.kernels.slice import Slice
from mpsgrad.state import State

if TYPE_CHECKING:
    from mpsgrad.graph.graph import Graph

COPIED_ELEMENTS = 1 << 24
"""Of the image whose copying gives the limit: 64 MiB."""


@dataclass(frozen=True)
class FilterProfile:
    """One filter: ``seconds`` that it takes, and the ``nbytes`` of the images and parameters it reads and writes."""

    name: str
    description: str
    shape: str
    is_backward: bool
    seconds: float
    nbytes: int


@dataclass(frozen=True)
class Profile:
    """The filters in order, and how many bytes a second a large copy moves, which is the limit of most of them."""

    device: str
    filters: tuple[FilterProfile, ...]
    copied_bytes_per_second: float

    @property
    def seconds(self) -> float:
        """All filters together."""
        return sum(each.seconds for each in self.filters)

    def __str__(self) -> str:
        total = self.seconds
        rows = [
            (
                each.name,
                each.description,
                each.shape,
                f"{1e3 * each.seconds:.3f}",
                f"{each.seconds / total:.1%}" if total else "",
                bytes_text(each.nbytes),
                f"{self.share_of_limit(each):.0%}",
            )
            for each in self.filters
        ]
        header = ("filter", "kind", "result", "ms", "share", "bytes", "of copy")
        text = table(header, rows, frozenset({3, 4, 5, 6}))
        speed = f"{self.copied_bytes_per_second / 1e9:.1f} GB/s"
        return f"{text}\n{1e3 * total:.3f} ms on {self.device}; a copy moves {speed}"

    def share_of_limit(self, each: FilterProfile) -> float:
        """The speed at which a filter moves its bytes, as a part of that of a copy."""
        return each.nbytes / each.seconds / self.copied_bytes_per_second if each.seconds else 0.0

    def write_trace(self, path: str | Path) -> None:
        """Writes the filters one after the other as a trace in Chrome's JSON format, which Perfetto reads.

        Forward and backward filters have a track each. Source: "Trace Event Format", Google, 2016.
        """
        tracks = {False: (1, "forward"), True: (2, "backward")}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": self.device}},
            *(
                {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": name}}
                for number, name in tracks.values()
            ),
        ]
        start = 0.0
        for each in self.filters:
            events.append(
                {
                    "ph": "X",
                    "name": each.name,
                    "cat": each.description,
                    "pid": 1,
                    "tid": tracks[each.is_backward][0],
                    "ts": 1e6 * start,
                    "dur": 1e6 * each.seconds,
                    "args": {"result": each.shape, "bytes": each.nbytes, "of copy": self.share_of_limit(each)},
                }
            )
            start += each.seconds
        trace = {"traceEvents": events, "displayTimeUnit": "ms"}
        Path(path).write_text(json.dumps(trace, allow_nan=False), encoding="utf-8")


class _ProfiledRun(Run):
    """A run whose images may be read from one command buffer after the other."""

    def _destination(self, step: Step, kernel: Any) -> Image:
        return self._planned_image(step)

    def timed(self, step: Step, repeats: int) -> float:
        """Encodes and runs one filter; the seconds that it takes."""
        if step.passes_on is not None:
            self.encode_step(step)
            return 0.0
        self.command_buffer = CommandBuffer(self.graph.device)
        self.encode_step(step)
        return median_seconds(self.command_buffer, repeats)


def median_seconds(command_buffer: CommandBuffer, repeats: int) -> float:
    """The median of ``repeats`` runs by the device's clock, or where it has none by the host's.

    The device is kept busy while the host starts the run that is timed, so that the pauses between kernels are the
    device's own.
    """
    recording = command_buffer.record()
    recording.replay()
    has_clock = command_buffer.gpu_time is not None
    found = []
    for _ in range(repeats):
        if has_clock:
            recording.replay()
        started = time.perf_counter()
        measured = recording.replay().gpu_time
        found.append(time.perf_counter() - started if measured is None else measured)
    return statistics.median(found)


def measure(
    graph: Graph, plan: Plan, source_images: Sequence[Image], source_states: Sequence[State], repeats: int
) -> Profile:
    """Runs each filter in its turn, one time more than ``repeats``."""
    run = _ProfiledRun(graph, CommandBuffer(graph.device), plan, source_images, source_states)
    backward = Picture(graph).backward
    filters = tuple(
        FilterProfile(
            " + ".join(graph._structure.names[node] for node in (step.node, *step.fused)),
            step.node.description,
            plan.shapes.of[step.result].shape_text,
            step.node in backward,
            run.timed(step, repeats),
            _bytes_of(graph, plan, step),
        )
        for step in plan.steps
    )
    return Profile(graph.device.name, filters, _copied_bytes_per_second(graph.device, repeats))


def _bytes_of(graph: Graph, plan: Plan, step: Step) -> int:
    """Each image that is read or written, and the parameters: those read, and the gradients written for them."""
    shapes, structure, node = plan.shapes.of, graph._structure, step.node
    if step.passes_on is not None:
        return 0
    nbytes = sum(shapes[image].nbytes for index, (image, _) in enumerate(step.sources) if node.reads_values(index))
    writes = writes_result(structure, node)
    nbytes += shapes[step.result].nbytes if writes else 0
    if not isinstance(node, TrainableGradientNode):
        return nbytes + 4 * parameter_count(graph._kernels[node])
    times = int(writes) + int(structure.needs_parameter_gradients(node))
    return nbytes + 4 * times * parameter_count(graph._kernels[node.inference_node])


def _copied_bytes_per_second(device: Device, repeats: int) -> float:
    descriptor = ImageDescriptor(FeatureChannelFormat.FLOAT32, COPIED_ELEMENTS // 64, 1, 64)
    source, destination, kernel = Image(descriptor, device), Image(descriptor, device), Slice(device=device)
    commands = CommandBuffer(device)
    kernel.encode(commands, source, destination_image=destination)
    return 2 * descriptor.nbytes / median_seconds(commands, repeats)
