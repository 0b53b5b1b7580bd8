"""How times are taken by the host's clock, and how busy other processes are meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mpsgrad as mg
from bench import load, timing
from bench.case import TorchCall, Work


class _Clock:
    """Time that passes only when somebody sleeps or works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.log.append("quiet")
        self.now += seconds

    def work(self, name: str, seconds: float) -> None:
        self.log.append(name)
        self.now += seconds


def _work(encode: Callable[[mg.CommandBuffer], Any]) -> Work:
    return Work(encode, lambda: {}, lambda: [])


def _call(function: Callable[[], Any]) -> TorchCall:
    return TorchCall(function, (), lambda returned: {})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def _measure(device: mg.Device, work: Work, calls: dict[str, TorchCall], samples: int, seconds: float = 1e9) -> Any:
    measurement = timing.WallTimer(device).measure(work, calls, samples, seconds)
    assert measurement.cold is None and measurement.alone is None
    return measurement.repeated


def test_samples_alternate_and_each_follows_quiet_and_a_discarded_call(device: mg.Device, clock: _Clock) -> None:
    names = {"NCHW": 0.006, "NHWC": 0.004, timing.COMPILED: 0.003}
    calls = {name: _call(lambda name=name: clock.work(name, names[name])) for name in names}
    result = _measure(device, _work(lambda commands: clock.work("ours", 0.002)), calls, samples=3)
    assert (result.samples, result.median_ms) == (3, pytest.approx(2.0))
    assert (result.torch_layout, result.torch_ms) == ("NHWC", pytest.approx(4.0))
    assert result.torch_layouts_ms == {"NCHW": pytest.approx(6.0), "NHWC": pytest.approx(4.0)}
    assert (result.ratio, result.compiled_ms, result.compiled_ratio) == (
        pytest.approx(2.0),
        pytest.approx(3.0),
        pytest.approx(1.5),
    )
    one_round = [entry for name in ("ours", *names) for entry in ("quiet", name, name)]
    assert clock.log[-len(one_round) * 3 :] == one_round * 3


def test_a_slow_machine_slows_both_so_that_the_ratio_stays(device: mg.Device, clock: _Clock) -> None:
    slowness = {"now": 1.0}

    def ours(commands: mg.CommandBuffer) -> None:
        slowness["now"] *= 1.1
        clock.work("ours", 0.002 * slowness["now"])

    calls = {"NHWC": _call(lambda: clock.work("NHWC", 0.006 * slowness["now"]))}
    result = _measure(device, _work(ours), calls, samples=9)
    assert result.p80_ms > 2 * result.p20_ms
    assert (result.ratio_p20, result.ratio_p80) == (pytest.approx(3.0), pytest.approx(3.0))


def test_no_more_samples_are_taken_when_the_time_is_over(device: mg.Device, clock: _Clock) -> None:
    work = _work(lambda commands: clock.work("ours", 0.01))
    assert _measure(device, work, {}, samples=50, seconds=0.2).samples == 9
    assert _measure(device, work, {}, samples=50, seconds=0.0).samples == timing.FEWEST_SAMPLES
    assert _measure(device, work, {}, samples=50).samples == 50


def test_without_pytorch_there_is_no_ratio(device: mg.Device, clock: _Clock) -> None:
    result = _measure(device, _work(lambda commands: clock.work("ours", 0.01)), {}, samples=5)
    assert result.torch_ms is result.torch_layout is result.ratio is result.compiled_ratio is None
    assert result.torch_layouts_ms == {}


def test_other_processes_are_counted_in_cores(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr(load, "time", clock)
    monkeypatch.setattr(clock, "process_time", lambda: clock.now * 0.5, raising=False)
    monkeypatch.setattr(load.os, "sysconf", lambda name: 100)
    statistics = tmp_path / "stat"
    monkeypatch.setattr(load, "_STATISTICS", statistics)
    statistics.write_text("cpu  1000 0 200 5000 70 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n")
    others = load.OtherProcesses()
    clock.now += 10.0
    statistics.write_text("cpu  2000 0 300 9000 90 0 0 100 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n")
    assert others.cores() == pytest.approx((12.0 - 5.0) / 10.0)


def test_other_processes_are_unknown_where_the_system_does_not_tell(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_STATISTICS", tmp_path / "missing")
    assert load.OtherProcesses().cores() is None
