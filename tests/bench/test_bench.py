"""The benchmark on tiny shapes: what it writes, that a wrong result stops it, and how it takes times."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import bench.rows
import mpsgrad as mg
from bench import __main__ as command_line
from bench import load, timing
from bench.case import Case
from bench.host_cost import host_costs
from mpsgrad import reference
from mpsgrad.kernel import BaseKernel
from mpsgrad.vector import Vector

MODULES = {
    name: importlib.import_module(f"bench.rows.{name}")
    for name in sorted(module.name for module in pkgutil.iter_modules(bench.rows.__path__))
}
TINY: dict[str, dict[str, Any]] = {
    "batch_normalization": {"SHAPES": ((2, 3, 3, 5),)},
    "convolution": {"ROWS": (MODULES["convolution"].Row(1, 5, 3, 3, 4, padding=1),)},
    "loss": {"SHAPES": ((3, 1, 1, 5),)},
    "neuron": {"SHAPE": (2, 3, 3, 5)},
    "optimizer": {"LENGTHS": (37,)},
    "pooling": {"ROWS": (MODULES["pooling"].Row((2, 5, 5, 3), 3, 2),)},
    "soft_max": {"SHAPES": ((2, 3, 3, 5),)},
}
"""The constants of each module that set its shapes, and what they are here."""


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, constants in TINY.items():
        for name, value in constants.items():
            monkeypatch.setattr(MODULES[module], name, value)
    monkeypatch.setattr(timing, "SECONDS_PER_SAMPLE", 0.0)
    monkeypatch.setattr(timing, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(command_line, "copy_bandwidth", lambda device, samples: timing.copy_bandwidth(device, 1, 1))


def _cases(module: str, dtype: str, device: mg.Device) -> Iterator[Case]:
    return MODULES[module].cases(dtype, device)


def _run(case: Case, device: mg.Device) -> Any:
    with mg.CommandBuffer(device) as commands:
        return case.encode(commands)


def _report(tmp_path: Any, *arguments: str) -> dict[str, Any]:
    path = tmp_path / "deep" / "results.json"
    assert command_line.main(["--quick", "--output", str(path), *arguments]) == 0
    return json.loads(path.read_text())


ROW_SCHEMA: dict[str, tuple[type, ...]] = {
    "op": (str,),
    "shape": (str,),
    "dtype": (str,),
    "median_ms": (float,),
    "p20_ms": (float,),
    "p80_ms": (float,),
    "torch_ms": (float, type(None)),
    "torch_layout": (str, type(None)),
    "ratio": (float, type(None)),
    "ratio_p20": (float, type(None)),
    "ratio_p80": (float, type(None)),
    "torch_layouts_ms": (dict,),
    "gbps": (float,),
    "fraction_of_copy": (float,),
    "other_cores": (float, type(None)),
    "tflops": (float, type(None)),
}
TOP_SCHEMA = {
    "device": str,
    "driver": str,
    "date": str,
    "versions": dict,
    "copy_gbps": float,
    "rows": list,
    "host_cost_us": dict,
}


def _assert_schema(report: dict[str, Any]) -> None:
    assert {name: type(value) for name, value in report.items()} == TOP_SCHEMA
    for row in report["rows"]:
        assert row.keys() == ROW_SCHEMA.keys()
        for name, kinds in ROW_SCHEMA.items():
            assert isinstance(row[name], kinds), (row["op"], name, row[name])
        assert 0 < row["p20_ms"] <= row["median_ms"] <= row["p80_ms"]
        assert row["fraction_of_copy"] == pytest.approx(row["gbps"] / report["copy_gbps"])
        assert (row["torch_ms"] is None) == (row["ratio"] is None) == (not row["torch_layouts_ms"])
        if row["torch_ms"] is not None:
            assert row["torch_ms"] == row["torch_layouts_ms"][row["torch_layout"]]
            assert row["torch_ms"] == min(row["torch_layouts_ms"].values())


def test_every_module_of_rows_is_tried_on_tiny_shapes() -> None:
    assert TINY.keys() == MODULES.keys()


def test_a_whole_run_writes_a_row_for_each_case_and_the_host_cost(
    tmp_path: Any, device: mg.Device, capsys: pytest.CaptureFixture[str]
) -> None:
    report = _report(tmp_path)
    _assert_schema(report)
    expected = [(c.op, c.shape, c.dtype) for module in MODULES for c in _cases(module, "float32", device)]
    assert [(row["op"], row["shape"], row["dtype"]) for row in report["rows"]] == expected
    assert report["device"] == device.name
    assert report["host_cost_us"].keys() == host_costs(device, 1).keys()
    printed = capsys.readouterr().out
    assert all(op in printed for op, *_ in expected)
    assert all(kernel in printed for kernel in report["host_cost_us"])


def test_options_choose_ops_and_dtype(tmp_path: Any) -> None:
    report = _report(tmp_path, "--ops", "soft_max_gradient", "--dtype", "float16")
    _assert_schema(report)
    assert {row["op"] for row in report["rows"]} == {"soft_max_gradient", "log_soft_max_gradient"}
    assert {row["dtype"] for row in report["rows"]} == {"float16"}
    assert report["host_cost_us"] == {}


def test_an_unknown_op_fails_and_writes_nothing(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.json"
    assert command_line.main(["--quick", "--output", str(path), "--ops", "no_such_op"]) == 2
    assert "no op contains no_such_op" in capsys.readouterr().out
    assert not path.exists()


def test_without_pytorch_only_ours_is_timed(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    report = _report(tmp_path)
    _assert_schema(report)
    assert all(row["ratio"] is None for row in report["rows"])
    assert "PyTorch is not installed" in capsys.readouterr().out


def test_a_wrong_result_stops_the_run_before_it_is_timed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []
    exact = reference.soft_max

    def measure(case: Case, device: mg.Device, samples: int) -> timing.Result:
        timed.append(case.op)
        return timing.measure(case, device, samples)

    monkeypatch.setattr(command_line, "measure", measure)
    monkeypatch.setattr(reference, "soft_max", lambda x: exact(x) + 0.01)
    path = tmp_path / "results.json"
    with pytest.raises(AssertionError, match=r"soft_max 2x3x3x5 float32: result: .* elements are out of bounds"):
        command_line.main(["--quick", "--output", str(path), "--ops", "soft_max"])
    assert timed == []
    assert not path.exists()


def _spoil(result: Any) -> None:
    """Adds 1 to the first element of an image, a vector, or the first gradient in a state."""
    if isinstance(result, mg.Image):
        np.asarray(result)[0, 0, 0, 0] += 1
        return
    vector = result if isinstance(result, Vector) else result.gradient_vectors[0]
    values = np.array(vector)
    values[0] += 1
    vector.buffer.write(values)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("module", MODULES)
def test_every_check_accepts_the_kernel_and_rejects_a_wrong_element(
    module: str, dtype: str, device: mg.Device
) -> None:
    for case in _cases(module, dtype, device):
        result = _run(case, device)
        case.check(result)
        _spoil(result)
        with pytest.raises(AssertionError, match="out of bounds"):
            case.check(result)


@pytest.mark.parametrize("module", MODULES)
def test_pytorch_computes_what_the_row_computes(module: str, device: mg.Device) -> None:
    """Sums of a result and of its magnitudes agree: wrong windows, operands or left out terms show."""
    torch = pytest.importorskip("torch")
    for case in _cases(module, "float32", device):
        result = _run(case, device)
        if not isinstance(result, mg.Image):
            continue
        ours = np.asarray(result, np.float64)
        for layout, call in case.torch_calls.items():
            returned = call()
            tensors = [returned] if isinstance(returned, torch.Tensor) else [t for t in returned if t is not None]
            theirs = next(t for t in tensors if t.numel() == ours.size).double()
            size = np.abs(ours).sum()
            assert float(theirs.abs().sum()) == pytest.approx(size, rel=1e-3), (case.op, layout)
            assert float(theirs.sum()) == pytest.approx(ours.sum(), abs=1e-3 * size), (case.op, layout)


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


def test_samples_alternate_and_each_follows_quiet_and_a_discarded_call(
    device: mg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = _Clock()
    monkeypatch.setattr(timing, "time", clock)
    case = Case(
        "op",
        "shape",
        "float32",
        1,
        lambda commands: clock.work("ours", 0.002),
        lambda result: None,
        torch_calls={
            "NCHW": lambda: clock.work("NCHW", 0.006),
            "NHWC": lambda: clock.work("NHWC", 0.004),
        },
    )
    result = timing.measure(case, device, samples=3)
    assert result.median_ms == pytest.approx(2.0)
    assert (result.torch_layout, result.torch_ms) == ("NHWC", pytest.approx(4.0))
    assert result.torch_layouts_ms == {"NCHW": pytest.approx(6.0), "NHWC": pytest.approx(4.0)}
    assert result.ratio == pytest.approx(2.0)
    one_round = [entry for name in ("ours", "NCHW", "NHWC") for entry in ("quiet", name, name)]
    assert clock.log[-len(one_round) * 3 :] == one_round * 3


def test_a_slow_machine_slows_both_so_that_the_ratio_stays(device: mg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr(timing, "time", clock)
    slowness = {"now": 1.0}

    def ours(commands: mg.CommandBuffer) -> None:
        slowness["now"] *= 1.1
        clock.work("ours", 0.002 * slowness["now"])

    torch_calls = {"NHWC": lambda: clock.work("NHWC", 0.006 * slowness["now"])}
    case = Case("op", "shape", "float32", 1, ours, lambda result: None, torch_calls=torch_calls)
    result = timing.measure(case, device, samples=9)
    assert result.p80_ms > 2 * result.p20_ms
    assert (result.ratio_p20, result.ratio_p80) == (pytest.approx(3.0), pytest.approx(3.0))


def test_the_host_cost_of_every_kernel_class_is_measured(device: mg.Device) -> None:
    costs = host_costs(device, 1)
    abstract = {mg.Kernel, mg.BinaryKernel, mg.GradientKernel, mg.Pooling, mg.PoolingGradient}
    measured = tuple(BaseKernel.classes[name] for name in costs)
    public = [kind for name, kind in BaseKernel.classes.items() if getattr(mg, name, None) is kind]
    assert [kind for kind in public if not issubclass(kind, measured) and kind not in abstract] == []
    assert all(cost.encode > 0 and cost.run > cost.encode / 100 for cost in costs.values())


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
