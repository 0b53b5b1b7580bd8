"""Timing by a GPU's clock, with a device that has one and events that stand in for PyTorch's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

import mpsgrad as mg
from bench import gpu_timing
from bench.case import TorchCall, Work
from bench.compiled import Compiler
from bench.gpu_timing import GPUTimer
from bench.timing import COMPILED, FEWEST_SAMPLES

SLOW = 0.002


class _Event:
    """An event that happens when it is recorded."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: _Event) -> float:
        return 1e3 * (end.time - self.time)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """PyTorch whose CPU passes for a GPU."""
    torch = pytest.importorskip("torch")

    @contextlib.contextmanager
    def device(where: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda where: None)
    monkeypatch.setattr(gpu_timing, "cache_bytes", lambda where: 1 << 20)
    return torch


class _Counted:
    """An op that sets the first of 64 numbers, and a call of PyTorch that takes ``SLOW`` seconds; counts both."""

    def __init__(self, device: mg.Device) -> None:
        self.encoded = self.called = 0
        self._image = mg.Image(mg.ImageDescriptor(feature_channels=64), device)
        self._result = mg.Image(mg.ImageDescriptor(feature_channels=64), device)
        self._kernel = mg.NeuronLinear(1.0, 0.0, device=device)

    def encode(self, commands: mg.CommandBuffer) -> None:
        self.encoded += 1
        self._kernel.encode(commands, self._image, destination_image=self._result)

    def call(self) -> None:
        self.called += 1
        time.sleep(SLOW)


def test_every_kind_of_time_of_ours_and_pytorch(torch: Any, device: mg.Device) -> None:
    counted = _Counted(device)
    timer = GPUTimer(device, torch.device("cpu"))
    work = Work(counted.encode, lambda: {}, lambda: [])
    calls = {layout: TorchCall(counted.call, (), lambda returned: {}) for layout in ("NCHW", COMPILED)}
    measured = timer.measure(work, calls, samples=7, seconds=1e9)
    for result in (measured.repeated, measured.cold, measured.alone):
        assert result is not None and result.samples == 7
        assert 0 < result.p20_ms <= result.median_ms <= result.p80_ms
        assert result.torch_layout == "NCHW" and set(result.torch_layouts_ms) == {"NCHW"}
        assert result.torch_ms is not None and result.torch_ms >= 1e3 * SLOW
        assert result.compiled_ms is not None and result.compiled_ms >= 1e3 * SLOW
        assert result.ratio is not None and result.ratio > 0
    # A short op is repeated within a sample, a long one is not: two warm-ups, then once, once and a few times alone.
    assert counted.called >= 2 * 7 * (2 + 1 + gpu_timing.CALLS_ALONE)
    assert counted.encoded > 7 * (2 + 1 + gpu_timing.CALLS_ALONE)


def test_few_samples_are_taken_when_the_time_is_over(torch: Any, device: mg.Device) -> None:
    timer = GPUTimer(device, None)
    work = Work(_Counted(device).encode, lambda: {}, lambda: [])
    measured = timer.measure(work, {}, samples=50, seconds=0.0)
    assert measured.repeated.samples == FEWEST_SAMPLES
    assert measured.repeated.torch_ms is None


def test_the_gpu_is_kept_busy_for_longer_than_the_host_queues(
    torch: Any, device: mg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = GPUTimer(device, None)
    asked: list[float] = []
    monkeypatch.setattr(timer, "occupy", lambda seconds, by_pytorch: asked.append(seconds))
    ours = gpu_timing._Ours(timer, Work(_Counted(device).encode, lambda: {}, lambda: []))
    ours.host_seconds = 0.25
    ours.repeats = 3
    ours.repeated()
    assert asked == [2 * 0.25 * 4]
    assert 0 < ours.host_seconds < 0.25


def test_copies_last_as_long_as_asked(torch: Any, device: mg.Device) -> None:
    timer = GPUTimer(device, torch.device("cpu"))
    copied: list[int] = []
    source, destination = timer._tensors

    class _Destination:
        def copy_(self, tensor: Any) -> None:
            assert tensor is source
            copied.append(1)

    timer._tensors = source, _Destination()
    timer.occupy(3.5 * timer._copy_seconds, by_pytorch=True)
    assert len(copied) == 5
    assert source.numel() * 4 == destination.numel() * 4 == gpu_timing.COPIED_CACHES << 20


def test_a_device_without_a_clock_is_refused(torch: Any, device: mg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    timer = GPUTimer(device, None)
    monkeypatch.setattr(mg.CommandBuffer, "gpu_time", None)
    with pytest.raises(NotImplementedError, match="has no clock"):
        timer.measure(Work(_Counted(device).encode, lambda: {}, lambda: []), {}, samples=1, seconds=1.0)


ignores_warnings_of_pytorch = pytest.mark.filterwarnings("ignore")
"""Some versions warn when their compiler is imported, which is no failure of it."""


def _compilable(layout: str, fuses: bool = True) -> tuple[str, TorchCall]:
    return layout, TorchCall(lambda: layout, (), lambda returned: {}, fuses)


@ignores_warnings_of_pytorch
def test_the_compiler_takes_our_layout_and_stops_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    compiler = Compiler(seconds=1e9)
    calls = dict([_compilable("NCHW"), _compilable("NHWC"), _compilable("unfused")])
    compiled = compiler.compiled(calls)
    assert compiled is not None and compiled() == "NHWC"
    assert compiler.compiled(dict([_compilable("NHWC", fuses=False)])) is None
    assert compiler.compiled({}) is None
    assert compiler.seconds_left < 1e9
    compiler.seconds_left = 0
    assert compiler.compiled(calls) is None


@ignores_warnings_of_pytorch
def test_the_compiler_gives_up_after_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    tried: list[int] = []

    def fail(function: Any, dynamic: bool) -> Any:
        tried.append(1)
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", fail)
    compiler = Compiler(seconds=1e9)
    calls = dict([_compilable("NHWC")])
    assert [compiler.compiled(calls) for _ in range(4)] == [None] * 4
    assert len(tried) == 2
