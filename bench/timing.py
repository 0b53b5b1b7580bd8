"""Times of ours and PyTorch's, taken in turn so that a drift of the machine's speed hits both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bench.case import TorchCall, Work
from mpsgrad import CommandBuffer, Device

SECONDS_PER_SAMPLE = 0.004
"""A sample repeats the op until it takes about this long, so that the clock and one launch weigh little."""

FEWEST_SAMPLES = 5
"""So many are taken even if the time for the row is over."""

COMPILED = "torch.compile"
"""The key under which a compiled call is timed beside the memory layouts."""


@dataclass(frozen=True)
class Result:
    """Milliseconds for one op; ``ratio`` is PyTorch's time over ours, from neighbouring samples.

    PyTorch's time is that of its fastest layout, ``torch_layout``; ``torch_layouts_ms`` has the medians of all. Code
    that ``torch.compile`` made is not among these but has a column of its own.
    """

    samples: int
    median_ms: float
    p20_ms: float
    p80_ms: float
    torch_ms: float | None
    torch_layout: str | None
    ratio: float | None
    ratio_p20: float | None
    ratio_p80: float | None
    torch_layouts_ms: dict[str, float]
    compiled_ms: float | None
    compiled_ratio: float | None


@dataclass(frozen=True)
class Measurement:
    """The repeated op; on a GPU also with an emptied cache (``cold``) and alone, with the host's part (``alone``)."""

    repeated: Result
    cold: Result | None = None
    alone: Result | None = None


class Timer(Protocol):
    """Takes times on one kind of hardware."""

    def measure(self, work: Work, calls: Mapping[str, TorchCall], samples: int, seconds: float) -> Measurement:
        """Up to ``samples`` rounds within ``seconds``; in each, ours and each of PyTorch's calls runs in turn."""
        ...


def summarize(times: Sequence[float], torch_times: Mapping[str, Sequence[float]]) -> Result:
    """The medians and percentiles of samples in seconds, of which the k-th were all taken in the same round."""
    ours = np.asarray(times)
    p20, median, p80 = (float(t) * 1e3 for t in np.percentile(ours, (20, 50, 80)))
    medians = {layout: float(np.median(each)) * 1e3 for layout, each in torch_times.items()}
    compiled_ms = medians.pop(COMPILED, None)
    compiled_ratio = None if compiled_ms is None else float(np.median(np.asarray(torch_times[COMPILED]) / ours))
    best = min(medians, key=lambda layout: medians[layout], default=None)
    low = middle = high = None
    if best is not None:
        low, middle, high = (float(r) for r in np.percentile(np.asarray(torch_times[best]) / ours, (20, 50, 80)))
    return Result(
        samples=len(times),
        median_ms=median,
        p20_ms=p20,
        p80_ms=p80,
        torch_ms=None if best is None else medians[best],
        torch_layout=best,
        ratio=middle,
        ratio_p20=low,
        ratio_p80=high,
        torch_layouts_ms=medians,
        compiled_ms=compiled_ms,
        compiled_ratio=compiled_ratio,
    )


QUIET_SECONDS = 0.02
"""Threads of the library that ran before go on spinning for a while, which would be counted against the next one."""

WARM_SECONDS = 0.01
"""After a pause threads take long to wake up, and caches are cold, for about ten calls of a millisecond."""


def settle(call: Callable[[], Any]) -> None:
    """Pauses, and then repeats ``call`` until threads and caches are those of its own work."""
    time.sleep(QUIET_SECONDS)
    started = time.perf_counter()
    call()
    while time.perf_counter() - started < WARM_SECONDS:
        call()


def _ours(work: Work, repeats: int, device: Device) -> float:
    # One command buffer for each, so that what it allocates is freed before the next, as PyTorch frees its own:
    # otherwise only ours would write to memory that is in no cache.
    started = time.perf_counter()
    for _ in range(repeats):
        with CommandBuffer(device) as commands:
            work.encode(commands)
    return (time.perf_counter() - started) / repeats


def _theirs(call: Callable[[], Any], repeats: int) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats


def _repeats(seconds: float) -> int:
    return max(1, min(200, round(SECONDS_PER_SAMPLE / max(seconds, 1e-9))))


class WallTimer:
    """Takes times by the host's clock, which is right where calls return when the work is done."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def measure(self, work: Work, calls: Mapping[str, TorchCall], samples: int, seconds: float) -> Measurement:
        """Median and percentiles; every sample follows a pause and calls that are not counted."""
        deadline = time.perf_counter() + seconds
        ours = lambda n: _ours(work, n, self.device)  # noqa: E731
        for _ in range(2):
            first = ours(1)
        repeats = _repeats(first)
        torch_repeats = {}
        for layout, call in calls.items():
            for _ in range(2):
                first = _theirs(call, 1)
            torch_repeats[layout] = _repeats(first)
        times: list[float] = []
        torch_times: dict[str, list[float]] = {layout: [] for layout in calls}
        while len(times) < samples and (len(times) < FEWEST_SAMPLES or time.perf_counter() < deadline):
            settle(lambda: ours(1))
            times.append(ours(repeats))
            for layout, call in calls.items():
                settle(call)
                torch_times[layout].append(_theirs(call, torch_repeats[layout]))
        return Measurement(summarize(times, torch_times))
