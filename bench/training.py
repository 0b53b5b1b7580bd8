"""Training steps beside PyTorch's eager ones: ``python -m bench.training --help``.

Both train the same network from the same weights on one random batch that stays on the device; their losses are
compared before anything is timed. Mixed precision is float16 images, float32 parameters and a scaled loss here, and
``torch.autocast`` with ``GradScaler`` there.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import mpsgrad as mg
from bench import markdown, pytorch
from bench.__main__ import versions
from bench.gpu_timing import GPUTimer
from bench.selection import described, hardware
from bench.timing import settle
from bench.training_networks import NETWORKS
from mpsgrad.graph import Profile
from mpsgrad.training import models
from mpsgrad.training.graph_network import GraphNetwork
from mpsgrad.training.optimizers import MOMENTUM, OPTIMIZERS

DEFAULT_OUTPUT = Path("bench/output/training.json")
CLASSES, LEARNING_RATE = 10, 0.01
COMPARED_STEPS = 3
LARGEST_DIFFERENCE = {"float32": 0.002, "mixed": 0.02}
"""Of the losses of the first ``COMPARED_STEPS``, as a part of PyTorch's: rounding, which steps make larger."""
INITIAL_SCALE = 2.0**8
"""Of PyTorch's loss, so that no step that is compared is left out: it has the gradients of weights in float16, too."""
SAMPLES, SECONDS_PER_SAMPLE, SECONDS_PER_CASE = 15, 0.03, 12.0
FEWEST_SAMPLES = 3
REPLAYED = "replayed"


@dataclass(frozen=True)
class Case:
    """A network of ``mpsgrad train --model``, pictures of height x width x channels, and how it is trained."""

    network: str
    shape: tuple[int, int, int]
    batch_size: int
    precision: str


LENET, RESNET18 = ("lenet", (28, 28, 1)), ("resnet18", (32, 32, 3))
CASES = {
    "cpu": (Case(*LENET, 64, "float32"), Case(*RESNET18, 64, "float32"), Case(*LENET, 64, "mixed")),
    "gpu": tuple(
        Case(*network, batch_size, precision)
        for network, batch_size in ((LENET, 64), (RESNET18, 64), (RESNET18, 256))
        for precision in ("float32", "mixed")
    ),
}


@dataclass
class Steps:
    """A way to train. ``queue`` hands one step to the device, ``finish`` waits, ``loss`` is the last step's.

    ``gpu_seconds`` is the GPU's time for a step that never waits for the host, where that is known; ``dispatches`` are
    the kernels of a step.
    """

    name: str
    queue: Callable[[], object]
    finish: Callable[[], object]
    loss: Callable[[], float]
    gpu_seconds: Callable[[], float | None]
    dispatches: int | None = None

    def step(self) -> None:
        """One step, and the wait for it."""
        self.queue()
        self.finish()


@dataclass(frozen=True)
class Row:
    """What was measured of one way to train: medians, times in milliseconds for one step.

    ``host`` is what it takes the host to queue a step; ``gpu_idle_share`` the part of ``step`` in which the GPU waits.
    """

    name: str
    images_per_second: float
    step_ms: float
    step_p20_ms: float
    step_p80_ms: float
    host_ms: float
    host_us_per_dispatch: float | None
    gpu_ms: float | None
    gpu_idle_share: float | None


class Data:
    """One batch of random pictures and classes."""

    def __init__(self, case: Case) -> None:
        random = np.random.default_rng(1)
        self.pictures = random.standard_normal((case.batch_size, *case.shape), dtype=np.float32)
        self.classes = random.integers(0, CLASSES, case.batch_size)


class Ours:
    """Our network, which is trained in one of two ways: steps that are encoded each time, or replays of one."""

    def __init__(self, device: mg.Device, case: Case, data: Data) -> None:
        self._device = device
        self.network = GraphNetwork(
            case.network,
            models.load(case.network),
            shape=case.shape,
            classes=CLASSES,
            batch_size=case.batch_size,
            optimizer=OPTIMIZERS["sgd"],
            seed=2,
            device=device,
            mixed_precision=case.precision == "mixed",
        )
        for trained in self.network.trained.values():
            trained.optimizer.learning_rate = LEARNING_RATE
        self.parameters = {name: array.copy() for name, array in self.network.parameters().items()}
        self._data = data
        self._pictures, self._labels = self.network.batch(data.pictures, _one_hot(data.classes))
        self._last: mg.CommandBuffer | None = None

    def profile(self) -> Profile:
        """How long each filter of the training graph takes."""
        return self.network.training.profile([self._pictures], [self._labels], repeats=3)

    def steps(self, recorded: bool) -> Steps:
        """The way to train; nothing is computed yet."""
        commands = self.network.encode_step(self._pictures, self._labels)
        dispatches = len(commands._dispatches)
        if recorded:
            recording = commands.record()
            return Steps(
                REPLAYED,
                lambda: self._ran(recording.replay()),
                self._finish,
                self._loss,
                lambda: self._gpu_seconds(recording),
                dispatches,
            )
        waiting = [commands]

        def queue() -> None:
            step = waiting.pop() if waiting else self.network.encode_step(self._pictures, self._labels)
            step.commit()
            self._ran(step)

        return Steps("encoded", queue, self._finish, self._loss, lambda: None, dispatches)

    def _ran(self, commands: mg.CommandBuffer) -> None:
        self._last = commands

    def _gpu_seconds(self, recording: mg.Recording) -> float | None:
        if not self._device.identifier.startswith("cuda"):
            return None
        # The first of these waits for the host; the others begin when the one before them ends.
        for _ in range(4):
            self._ran(recording.replay())
        assert self._last is not None
        return self._last.gpu_time

    def _finish(self) -> None:
        assert self._last is not None
        self._last.wait_until_completed()

    def _loss(self) -> float:
        return self.network.loss(self._labels)


def _one_hot(classes: np.ndarray) -> np.ndarray:
    return np.eye(CLASSES, dtype=np.float32)[classes].reshape(-1, 1, 1, CLASSES)


def theirs(where: Any, case: Case, data: Data, parameters: Any, timer: GPUTimer | None) -> list[Steps]:
    """PyTorch's eager steps in both memory formats."""
    import torch

    found = []
    for layout, memory_format in (("NCHW", torch.contiguous_format), ("NHWC", torch.channels_last)):
        model = NETWORKS[case.network](parameters).to(where, memory_format=memory_format)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        pictures = torch.from_numpy(data.pictures).permute(0, 3, 1, 2).to(where, memory_format=memory_format)
        classes = torch.from_numpy(data.classes).to(where)
        found.append(_pytorch_steps(layout, case.precision, model, optimizer, pictures, classes, where, timer))
    return found


def _pytorch_steps(
    name: str, precision: str, model: Any, optimizer: Any, pictures: Any, classes: Any, where: Any, timer: Any
) -> Steps:
    import torch

    last: list[Any] = [None]
    is_mixed = precision == "mixed"
    scaler = torch.amp.GradScaler(where.type, init_scale=INITIAL_SCALE, enabled=is_mixed)

    def queue() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(where.type, torch.float16) if is_mixed else contextlib.nullcontext():
            last[0] = torch.nn.functional.cross_entropy(model(pictures), classes)
        scaler.scale(last[0]).backward()
        scaler.step(optimizer)
        scaler.update()

    def finish() -> None:
        if where.type == "cuda":
            torch.cuda.synchronize(where)

    def gpu_seconds() -> float | None:
        if timer is None:
            return None
        started = time.perf_counter()
        queue()
        host = time.perf_counter() - started
        finish()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        timer.occupy(2 * host, by_pytorch=True)
        start.record()
        queue()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    return Steps(f"PyTorch eager, {name}", queue, finish, lambda: float(last[0].detach()), gpu_seconds)


def losses(ways: list[Steps]) -> dict[str, list[float]]:
    """The losses of the first ``COMPARED_STEPS`` of each."""
    found: dict[str, list[float]] = {}
    for way in ways:
        found[way.name] = []
        for _ in range(COMPARED_STEPS):
            way.step()
            found[way.name].append(way.loss())
    return found


def measure(ways: list[Steps], batch_size: int, samples: int, seconds: float) -> list[Row]:
    """Times of all ``ways``, taken in turn, up to ``samples`` of each within ``seconds``.

    A sample is over as many steps as take ``SECONDS_PER_SAMPLE``, which wait for nothing. It follows a pause and steps
    that are not counted: threads of PyTorch spin for a while after its last step.
    """
    taken: dict[str, list[tuple[float, float, float | None]]] = {way.name: [] for way in ways}
    counts: dict[str, int] = {}
    for way in ways:
        started = time.perf_counter()
        for _ in range(2):
            way.queue()
        way.finish()
        counts[way.name] = max(1, round(2 * SECONDS_PER_SAMPLE / (time.perf_counter() - started)))
    deadline = time.perf_counter() + seconds
    rounds = 0
    while rounds < samples and (rounds < FEWEST_SAMPLES or time.perf_counter() < deadline):
        rounds += 1
        for way in ways:
            settle(way.step)
            started = time.perf_counter()
            way.queue()
            host = time.perf_counter() - started
            for _ in range(counts[way.name] - 1):
                way.queue()
            way.finish()
            step = (time.perf_counter() - started) / counts[way.name]
            gpu_seconds = way.gpu_seconds()
            way.finish()
            taken[way.name].append((step, host, gpu_seconds))
    # The kernels of an encoded step are those of a replayed one.
    busy = {name: [each[2] for each in times if each[2] is not None] for name, times in taken.items()}
    rows = []
    for way in ways:
        times = [each[0] for each in taken[way.name]]
        of_gpu = busy[way.name] or (busy[REPLAYED] if way.dispatches else [])
        gpu = float(np.median(of_gpu)) if of_gpu else None
        p20, median, p80 = (float(t) for t in np.percentile(times, (20, 50, 80)))
        queued = float(np.median([each[1] for each in taken[way.name]]))
        rows.append(
            Row(
                name=way.name,
                images_per_second=batch_size / median,
                step_ms=1e3 * median,
                step_p20_ms=1e3 * p20,
                step_p80_ms=1e3 * p80,
                host_ms=1e3 * queued,
                host_us_per_dispatch=1e6 * queued / way.dispatches if way.dispatches else None,
                gpu_ms=None if gpu is None else 1e3 * gpu,
                gpu_idle_share=None if gpu is None else max(0.0, 1 - gpu / median),
            )
        )
    return rows


def run(case: Case, device: mg.Device, where: Any, timer: GPUTimer | None, options: Any) -> dict[str, Any]:
    """The report of one case; no rows if the losses differ."""
    data = Data(case)
    networks = [Ours(device, case, data) for _ in range(2)]
    ways = [network.steps(recorded) for network, recorded in zip(networks, (False, True), strict=True)]
    dispatches = ways[0].dispatches
    if where is not None:
        ways += theirs(where, case, data, networks[0].parameters, timer)
    found = losses(ways)
    expected = np.array(list(found.values())[-1])
    allowed = LARGEST_DIFFERENCE[case.precision] * np.abs(expected)
    agrees = all((np.abs(np.array(each) - expected) <= allowed).all() for each in found.values())
    rows = measure(ways, case.batch_size, options.samples, options.seconds) if agrees else []
    report: dict[str, Any] = {
        **dataclasses.asdict(case),
        "dispatches": dispatches,
        "losses": found,
        "rows": [dataclasses.asdict(row) for row in rows],
        "ratio": None,
        "filters": [],
    }
    if rows:
        ours = {row.name: row.step_ms for row in rows}
        beside = [step_ms for name, step_ms in ours.items() if name.startswith("PyTorch")]
        report["ratio"] = min(beside) / ours[REPLAYED] if beside else None
        report["filters"] = [
            {"name": each.name, "kind": each.description, "result": each.shape, "ms": 1e3 * each.seconds}
            for each in networks[1].profile().filters
        ]
    return report


def main(arguments: list[str] | None = None) -> int:
    """Prints and writes the report; status 1 if losses differ."""
    parser = argparse.ArgumentParser(prog="python -m bench.training", description="Times training beside PyTorch.")
    parser.add_argument("--device", help="a device such as cuda:0 (default: the default device)")
    parser.add_argument("--network", choices=sorted(NETWORKS), help="only this one")
    parser.add_argument("--precision", choices=sorted(LARGEST_DIFFERENCE), help="only this one")
    parser.add_argument("--batch-size", type=int, help="pictures in a step, instead of those of each case")
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"times that are taken (default {SAMPLES})")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS_PER_CASE, help=f"for each case (default {SECONDS_PER_CASE:g})"
    )
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="the JSON file to write")
    options = parser.parse_args(arguments)
    console = Console(width=None if Console().is_terminal else 160)
    device = mg.find_device(options.device) if options.device else mg.default_device()
    mg.set_default_device(device)
    where = pytorch.counterpart(device)
    timer = None
    if where is not None:
        pytorch.use_best_settings()
        timer = GPUTimer(device, where) if where.type == "cuda" else None
    else:
        console.print("there is no PyTorch for this device, so there is nothing beside it")
    cases = [
        dataclasses.replace(case, batch_size=options.batch_size or case.batch_size)
        for case in CASES[hardware(device)]
        if options.network in (None, case.network) and options.precision in (None, case.precision)
    ]
    report: dict[str, Any] = {
        "device": described(device),
        "hardware": hardware(device),
        "driver": device.driver_version,
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "cases": [],
    }
    wrong = False
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for case in dict.fromkeys(cases):
        found = run(case, device, where, timer, options)
        report["cases"].append(found)
        if not found["rows"]:
            wrong = True
            console.print(f"[bold red]{case}: losses differ, so nothing is timed: {found['losses']}[/]")
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    console.print(markdown.training(report), markup=False, soft_wrap=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
