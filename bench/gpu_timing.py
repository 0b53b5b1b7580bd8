"""Times on an NVIDIA GPU, by its own clock: CUDA events around the work of ours and of PyTorch.

Kernels are queued while the GPU is busy with copies, so that it never waits for the host. Those copies go through
memory larger than the L2 cache, so they also empty it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import mpsgrad as mg
from bench.case import TorchCall, Work
from bench.timing import FEWEST_SAMPLES, Measurement, summarize
from mpsgrad import CommandBuffer, Device

SECONDS_PER_SAMPLE = 0.001
MOST_REPEATS = 30
WARM_UP_SECONDS = 0.005
CALLS_ALONE = 2
COPIED_CACHES = 4
"""A copy reads, and writes, so many times what the L2 cache holds."""
ASSUMED_CACHE_BYTES = 64 << 20


def cache_bytes(where: Any) -> int:
    """What the L2 cache of a PyTorch device holds; an assumed size without PyTorch."""
    if where is None:
        return ASSUMED_CACHE_BYTES
    import torch

    return int(torch.cuda.get_device_properties(where).L2_cache_size)


class GPUTimer:
    """``where`` is the PyTorch device of the same GPU, or None without PyTorch."""

    def __init__(self, device: Device, where: Any) -> None:
        self.device, self.where = device, where
        count = COPIED_CACHES * cache_bytes(where) // 4
        pixels = mg.ImageDescriptor(width=1024, height=-(-count // (64 * 1024)), feature_channels=64)
        self._source, self._destination = mg.Image(pixels, device), mg.Image(pixels, device)
        self._copy = mg.NeuronLinear(1.0, 0.0, device=device)
        if where is not None:
            import torch

            self._tensors = torch.zeros(count, device=where), torch.zeros(count, device=where)
        self._copy_seconds = self._time_of_copy()

    def measure(self, work: Work, calls: Mapping[str, TorchCall], samples: int, seconds: float) -> Measurement:
        deadline = time.perf_counter() + seconds
        timed: dict[str, _Timed] = {"": _Ours(self, work)}
        timed |= {layout: _Theirs(self, call) for layout, call in calls.items()}
        for each in timed.values():
            each.warm_up()
        taken: dict[str, dict[str, list[float]]] = {
            kind: {name: [] for name in timed} for kind in ("repeated", "cold", "alone")
        }
        rounds = 0
        while rounds < samples and (rounds < FEWEST_SAMPLES or time.perf_counter() < deadline):
            for kind in taken:
                for name, each in timed.items():
                    taken[kind][name].append(getattr(each, kind)())
            rounds += 1
        return Measurement(**{kind: summarize(times.pop(""), times) for kind, times in taken.items()})

    def occupy(self, seconds: float, by_pytorch: bool) -> None:
        """Queues copies that take the GPU about ``seconds``, at least one."""
        count = 1 + math.ceil(seconds / self._copy_seconds)
        if by_pytorch:
            source, destination = self._tensors
            for _ in range(count):
                destination.copy_(source)
            return
        commands = CommandBuffer(self.device)
        for _ in range(count):
            self._copy.encode(commands, self._source, destination_image=self._destination)
        commands.commit()

    def _time_of_copy(self) -> float:
        shortest = math.inf
        for _ in range(3):
            with CommandBuffer(self.device) as commands:
                self._copy.encode(commands, self._source, destination_image=self._destination)
            shortest = min(shortest, commands.gpu_time or math.inf)
        return shortest


class _Timed:
    """Something that runs on the GPU of ``timer``.

    ``repeats`` is how often a sample runs it; ``host_seconds`` what it takes the host to queue one run.
    """

    def __init__(self, timer: GPUTimer) -> None:
        self.timer = timer
        self.repeats = 1
        self.host_seconds = 0.0

    def warm_up(self) -> None:
        """Runs it until the GPU's clock is up, and finds out how often a sample has to run it."""
        self.repeats = 2
        for _ in range(2):
            seconds = max(self.repeated(), 1e-7)
            self.repeats = max(1, min(MOST_REPEATS, round(WARM_UP_SECONDS / seconds)))
        self.repeats = max(1, min(MOST_REPEATS, round(SECONDS_PER_SAMPLE / seconds)))

    def repeated(self) -> float:
        """Seconds of the GPU for one of ``repeats`` runs without a pause, after one that is not counted."""
        return self._by_events(self.repeats, warm=True)

    def cold(self) -> float:
        """Seconds of the GPU for one run after copies emptied the cache."""
        return self._by_events(1, warm=False)

    def alone(self) -> float:
        """Seconds of the host for one run, from the call until it has waited for the end; the shortest of a few."""
        shortest = math.inf
        for _ in range(CALLS_ALONE):
            started = time.perf_counter()
            self._run_and_wait()
            shortest = min(shortest, time.perf_counter() - started)
        return shortest

    def _head_start(self, repeats: int) -> float:
        """Seconds for which the GPU is kept busy meanwhile."""
        return 2 * self.host_seconds * (repeats + 1)

    def _by_events(self, repeats: int, warm: bool) -> float:
        raise NotImplementedError

    def _run_and_wait(self) -> None:
        raise NotImplementedError


class _Ours(_Timed):
    def __init__(self, timer: GPUTimer, work: Work) -> None:
        super().__init__(timer)
        self.work = work

    def _by_events(self, repeats: int, warm: bool) -> float:
        first, timed = CommandBuffer(self.timer.device), CommandBuffer(self.timer.device)
        if warm:
            self.work.encode(first)
        for _ in range(repeats):
            self.work.encode(timed)
        self.timer.occupy(self._head_start(repeats), by_pytorch=False)
        started = time.perf_counter()
        if warm:
            first.commit()
        timed.commit()
        self.host_seconds = (time.perf_counter() - started) / (repeats + 1)
        seconds = timed.gpu_time
        if seconds is None:
            raise NotImplementedError(f"{self.timer.device.identifier} has no clock")
        return seconds / repeats

    def _run_and_wait(self) -> None:
        with CommandBuffer(self.timer.device) as commands:
            self.work.encode(commands)


class _Theirs(_Timed):
    def __init__(self, timer: GPUTimer, call: Callable[[], Any]) -> None:
        super().__init__(timer)
        self.call = call

    def _by_events(self, repeats: int, warm: bool) -> float:
        import torch

        with torch.cuda.device(self.timer.where):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.timer.occupy(self._head_start(repeats), by_pytorch=True)
            started = time.perf_counter()
            if warm:
                self.call()
            start.record()
            for _ in range(repeats):
                self.call()
            end.record()
            self.host_seconds = (time.perf_counter() - started) / (repeats + 1)
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e-3 / repeats

    def _run_and_wait(self) -> None:
        import torch

        self.call()
        torch.cuda.synchronize(self.timer.where)
