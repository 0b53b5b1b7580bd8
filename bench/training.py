"""Training on synthetic pictures of CIFAR's shape, beside PyTorch's eager steps: ``python -m bench.training --help``.

Both train the same network from the same weights on one batch that stays on the device; their losses are compared
before anything is timed.
"""

from __future__ import annotations

import argparse
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
from rich.table import Table

import mpsgrad as mg
from bench import pytorch
from bench.__main__ import versions
from bench.gpu_timing import GPUTimer
from bench.screen import number
from bench.selection import hardware
from mpsgrad.training import digits
from mpsgrad.training.layers import BatchNormalizationLayer, PoolingMaxLayer, ReLULayer
from mpsgrad.training.network import Network

DEFAULT_OUTPUT = Path("bench/output/training.json")
BATCH_SIZE = 256
LEARNING_RATE, MOMENTUM = 0.05, 0.9
COMPARED_STEPS = 5
LARGEST_DIFFERENCE = 0.01
"""Of the losses after ``COMPARED_STEPS``, as a part of PyTorch's: rounding, which steps make larger."""
SAMPLES, STEPS = 15, 20


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

    def __init__(self, batch_size: int) -> None:
        random = np.random.default_rng(1)
        self.pictures = random.standard_normal((batch_size, 32, 32, 3), dtype=np.float32)
        self.classes = random.integers(0, digits.CLASSES, batch_size)


def network() -> Network:
    """The network with the same weights each time."""
    return Network.for_color_pictures(np.random.default_rng(2))


def ours(device: mg.Device, data: Data) -> list[Steps]:
    """Steps that are encoded each time, and the same step recorded and replayed, each with a network of its own."""
    return [_Ours(device, data).steps(recorded) for recorded in (False, True)]


class _Ours:
    def __init__(self, device: mg.Device, data: Data) -> None:
        self._device = device
        self._network = network()
        descriptor = mg.OptimizerDescriptor(learning_rate=LEARNING_RATE)
        self._optimizer = mg.OptimizerStochasticGradientDescent(descriptor, momentum_scale=MOMENTUM)
        self._pictures = mg.Image.from_array(data.pictures, device)
        self._targets = mg.LossLabels.from_array(digits.one_hot(data.classes))
        self._last: mg.CommandBuffer | None = None

    def steps(self, recorded: bool) -> Steps:
        self._encode()
        commands = self._encoded()
        dispatches = len(commands._dispatches)
        if not recorded:
            commands.commit()
            self._last = commands
            return Steps("mpsgrad, encoded", self._encode, self._finish, self._loss, lambda: None, dispatches)
        recording = commands.record()

        def replay() -> None:
            self._last = recording.replay()

        def gpu_seconds() -> float | None:
            # The first of these waits for the host; the others begin when the one before them ends.
            for _ in range(4):
                replay()
            assert self._last is not None
            return self._last.gpu_time if self._device.identifier.startswith("cuda") else None

        replay()
        return Steps("mpsgrad, replayed", replay, self._finish, self._loss, gpu_seconds, dispatches)

    def _encoded(self) -> mg.CommandBuffer:
        commands = mg.CommandBuffer(self._device)
        self._network.encode_step(commands, self._pictures, self._targets, self._optimizer)
        return commands

    def _encode(self) -> None:
        self._last = self._encoded()
        self._last.commit()

    def _finish(self) -> None:
        assert self._last is not None
        self._last.wait_until_completed()

    def _loss(self) -> float:
        return float(np.asarray(self._targets.loss_image).sum())


def theirs(where: Any, data: Data, timer: GPUTimer | None) -> list[Steps]:
    """PyTorch's eager steps in both memory formats."""
    import torch

    found = []
    for layout, memory_format in (("NCHW", torch.contiguous_format), ("NHWC", torch.channels_last)):
        model = pytorch_model(network()).to(where, memory_format=memory_format)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        pictures = torch.from_numpy(data.pictures).permute(0, 3, 1, 2).to(where, memory_format=memory_format)
        classes = torch.from_numpy(data.classes).to(where)
        found.append(_pytorch_steps(f"PyTorch eager, {layout}", model, optimizer, pictures, classes, where, timer))
    return found


def _pytorch_steps(
    name: str, model: Any, optimizer: Any, pictures: Any, classes: Any, where: Any, timer: GPUTimer | None
) -> Steps:
    import torch

    last: list[Any] = [None]

    def queue() -> None:
        optimizer.zero_grad(set_to_none=True)
        last[0] = torch.nn.functional.cross_entropy(model(pictures), classes)
        last[0].backward()
        optimizer.step()

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

    for _ in range(2):
        queue()
    return Steps(name, queue, finish, lambda: float(last[0].detach()), gpu_seconds)


def pytorch_model(source: Network) -> Any:
    """The same network in PyTorch, with copies of the weights, for N x C x H x W tensors."""
    import torch

    layers: list[Any] = []
    for layer in source.layers:
        if isinstance(layer, ReLULayer):
            layers.append(torch.nn.ReLU())
            continue
        if isinstance(layer, PoolingMaxLayer):
            kernel = layer.forward_kernel
            layers.append(torch.nn.MaxPool2d(kernel.kernel_width, kernel.stride_in_pixels_x))
            continue
        if isinstance(layer, BatchNormalizationLayer):
            layers.append(torch.nn.BatchNorm2d(len(layer.parameters()["gamma"]), eps=layer.epsilon))
            continue
        values = layer.parameters()
        weights = torch.from_numpy(np.ascontiguousarray(values["weights"].transpose(0, 3, 1, 2)))
        outputs, inputs, height, width = weights.shape
        if layer is source.layers[-1]:
            layers += [torch.nn.Flatten(), torch.nn.Linear(inputs * height * width, outputs)]
            weights = weights.reshape(outputs, -1)
        else:
            layers.append(torch.nn.Conv2d(inputs, outputs, height, padding=height // 2))
        with torch.no_grad():
            layers[-1].weight.copy_(weights)
            layers[-1].bias.copy_(torch.from_numpy(values["biases"]))
    return torch.nn.Sequential(*layers)


def losses(ways: list[Steps]) -> dict[str, float]:
    """The loss after ``COMPARED_STEPS`` of each; two were taken when it was made."""
    found = {}
    for way in ways:
        for _ in range(COMPARED_STEPS - 2):
            way.queue()
        way.finish()
        found[way.name] = way.loss()
    return found


def measure(ways: list[Steps], batch_size: int, samples: int, steps: int) -> list[Row]:
    """Times of all ``ways``, taken in turn; each of the ``samples`` is over ``steps``, which wait for nothing."""
    taken: dict[str, list[tuple[float, float, float | None]]] = {way.name: [] for way in ways}
    for sample in range(samples + 1):
        for way in ways:
            way.finish()
            started = time.perf_counter()
            way.queue()
            host = time.perf_counter() - started
            way.finish()
            started = time.perf_counter()
            for _ in range(steps):
                way.queue()
            way.finish()
            seconds = (time.perf_counter() - started) / steps
            gpu_seconds = way.gpu_seconds()
            way.finish()
            if sample:
                taken[way.name].append((seconds, host, gpu_seconds))
    rows = []
    replayed_busy = None
    for way in reversed(ways):
        times = [each[0] for each in taken[way.name]]
        busy = [each[2] for each in taken[way.name] if each[2] is not None]
        gpu = float(np.median(busy)) if busy else None
        # The kernels of an encoded step are those of a replayed one, which is before it in this order.
        if way.dispatches is not None:
            gpu = replayed_busy = gpu if gpu is not None else replayed_busy
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
    return rows[::-1]


def table(report: dict[str, Any]) -> Table:
    title = f"{report['device']}: batches of {report['batch_size']} pictures of 32 x 32 x 3, float32"
    found = Table(title=f"{title}; {report['dispatches']} dispatches a step")
    found.add_column("")
    for heading in ("images/s", "ms a step", "p20-p80", "host ms", "host us a dispatch", "GPU ms", "GPU idle"):
        found.add_column(heading, justify="right")
    for row in report["rows"]:
        found.add_row(
            row["name"],
            f"{row['images_per_second']:,.0f}",
            f"{row['step_ms']:.3f}",
            f"{row['step_p20_ms']:.3f}-{row['step_p80_ms']:.3f}",
            f"{row['host_ms']:.3f}",
            number(row["host_us_per_dispatch"], ".2f"),
            number(row["gpu_ms"], ".3f"),
            number(row["gpu_idle_share"], ".1%"),
        )
    return found


def main(arguments: list[str] | None = None) -> int:
    """Prints and writes the report; status 1 if the losses differ."""
    parser = argparse.ArgumentParser(prog="python -m bench.training", description="Times training beside PyTorch.")
    parser.add_argument("--device", help="a device such as cuda:0 (default: the default device)")
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE, help=f"pictures in a step (default {BATCH_SIZE})")
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"times that are taken (default {SAMPLES})")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps for each (default {STEPS})")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="the JSON file to write")
    options = parser.parse_args(arguments)
    console = Console(width=None if Console().is_terminal else 160)
    device = mg.find_device(options.device) if options.device else mg.default_device()
    mg.set_default_device(device)
    data = Data(options.batch_size)
    ways = ours(device, data)
    dispatches = ways[0].dispatches
    where = pytorch.counterpart(device)
    if where is not None:
        pytorch.use_best_settings()
        ways += theirs(where, data, GPUTimer(device, where) if where.type == "cuda" else None)
    else:
        console.print("there is no PyTorch for this device, so there is nothing beside it")
    found = losses(ways)
    report: dict[str, Any] = {
        "device": device.name,
        "hardware": hardware(device),
        "driver": device.driver_version,
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "batch_size": options.batch_size,
        "dispatches": dispatches,
        "losses": found,
        "rows": [],
    }
    expected = list(found.values())[-1]
    wrong = {name: loss for name, loss in found.items() if abs(loss - expected) > LARGEST_DIFFERENCE * expected}
    if wrong:
        console.print(f"[bold red]the losses after {COMPARED_STEPS} steps differ, so nothing is timed: {found}[/]")
    else:
        rows = measure(ways, options.batch_size, options.samples, options.steps)
        report["rows"] = [dataclasses.asdict(row) for row in rows]
        console.print(table(report))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
