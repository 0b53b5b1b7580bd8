"""Times of ours and PyTorch's, taken in turn so that a drift of the machine's speed hits both."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.case import Case
from mpsgrad import CommandBuffer, Device, Image, ImageDescriptor

SECONDS_PER_SAMPLE = 0.004
"""A sample repeats the op until it takes about this long, so that the clock and one launch weigh little."""


@dataclass(frozen=True)
class Result:
    """Milliseconds for one op; ``ratio`` is PyTorch's time over ours, from neighbouring samples.

    PyTorch's time is that of its fastest layout, ``torch_layout``; ``torch_layouts_ms`` has the medians of all.
    """

    median_ms: float
    p20_ms: float
    p80_ms: float
    torch_ms: float | None
    torch_layout: str | None
    ratio: float | None
    ratio_p20: float | None
    ratio_p80: float | None
    torch_layouts_ms: dict[str, float]


QUIET_SECONDS = 0.02
"""Threads of the library that ran before go on spinning for a while, which would be counted against the next one."""


def _settle(call: Callable[[], Any]) -> None:
    time.sleep(QUIET_SECONDS)
    call()


def _ours(case: Case, repeats: int, device: Device) -> float:
    # One command buffer for each, so that its result is freed before the next, as PyTorch frees its own: otherwise only
    # ours would write to memory that is in no cache.
    started = time.perf_counter()
    for _ in range(repeats):
        with CommandBuffer(device) as commands:
            case.encode(commands)
    return (time.perf_counter() - started) / repeats


def _theirs(call: Callable[[], Any], repeats: int) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats


def _repeats(seconds: float) -> int:
    return max(1, min(200, round(SECONDS_PER_SAMPLE / max(seconds, 1e-9))))


def measure(case: Case, device: Device, samples: int) -> Result:
    """Median and percentiles over ``samples`` rounds; in each round ours and each of PyTorch's layouts runs in turn."""
    ours = lambda n: _ours(case, n, device)  # noqa: E731
    for _ in range(2):
        first = ours(1)
    repeats = _repeats(first)
    layouts = list(case.torch_calls)
    torch_repeats = {}
    for layout in layouts:
        for _ in range(2):
            first = _theirs(case.torch_calls[layout], 1)
        torch_repeats[layout] = _repeats(first)
    times: list[float] = []
    torch_times: dict[str, list[float]] = {layout: [] for layout in layouts}
    for _ in range(samples):
        _settle(lambda: ours(1))
        times.append(ours(repeats))
        for layout in layouts:
            _settle(case.torch_calls[layout])
            torch_times[layout].append(_theirs(case.torch_calls[layout], torch_repeats[layout]))
    p20, median, p80 = (float(t) * 1e3 for t in np.percentile(times, (20, 50, 80)))
    if not layouts:
        return Result(median, p20, p80, None, None, None, None, None, {})
    medians = {layout: float(np.median(torch_times[layout])) * 1e3 for layout in layouts}
    best = min(layouts, key=lambda layout: medians[layout])
    ratios = np.array(torch_times[best]) / np.array(times)
    low, middle, high = (float(r) for r in np.percentile(ratios, (20, 50, 80)))
    return Result(median, p20, p80, medians[best], best, middle, low, high, medians)


def copy_bandwidth(device: Device, samples: int, megabytes: int = 64) -> float:
    """GB/s, read plus written, of a plain copy of an image by a pointwise kernel of this package."""
    from mpsgrad import NeuronLinear

    channels = 64
    pixels = megabytes * 2**20 // 4 // channels
    descriptor = ImageDescriptor(width=1024, height=pixels // 1024, feature_channels=channels)
    source = Image(descriptor, device)
    np.asarray(source)[...] = 1.0
    destination = Image(descriptor, device)
    kernel = NeuronLinear(1.0, 0.0, device=device)

    def encode(commands: CommandBuffer) -> None:
        kernel.encode(commands, source, destination_image=destination)

    case = Case("copy", "", "float32", 2 * source.resource_size, encode, lambda result: None)
    return case.nbytes / (measure(case, device, samples).median_ms * 1e-3) / 1e9
