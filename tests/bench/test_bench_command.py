"""The benchmark's command: what it writes and prints, and that a wrong result is reported and never timed."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest

import mpsgrad as mg
from bench import __main__ as command_line
from bench import gpu_timing, pytorch, timing
from bench.host_cost import host_costs
from bench.selection import described, hardware, selected
from mpsgrad import reference
from mpsgrad.kernel import BaseKernel

NUMBER = (float, type(None))
ROW_SCHEMA: dict[str, tuple[type, ...]] = {
    "op": (str,),
    "shape": (str,),
    "dtype": (str,),
    "group": (str,),
    "torch_precision": (str,),
    "samples": (int,),
    "median_ms": (float,),
    "p20_ms": (float,),
    "p80_ms": (float,),
    "torch_ms": NUMBER,
    "torch_layout": (str, type(None)),
    "ratio": NUMBER,
    "ratio_p20": NUMBER,
    "ratio_p80": NUMBER,
    "torch_layouts_ms": (dict,),
    "compiled_ms": NUMBER,
    "compiled_ratio": NUMBER,
    "gbps": (float,),
    "fraction_of_copy": (float,),
    "tflops": (float,),
    "fraction_of_peak": NUMBER,
    "cold_ms": NUMBER,
    "cold_torch_ms": NUMBER,
    "cold_ratio": NUMBER,
    "alone_ms": NUMBER,
    "alone_torch_ms": NUMBER,
    "alone_ratio": NUMBER,
    "error": (float,),
    "torch_error": NUMBER,
    "torch_disagrees": (dict,),
    "other_cores": NUMBER,
}
TOP_SCHEMA = {
    "device": str,
    "hardware": str,
    "driver": str,
    "date": str,
    "versions": dict,
    "copy_gbps": float,
    "peak_tflops": dict,
    "rows": list,
    "failures": list,
    "left_out": list,
    "host_cost_us": dict,
}


def _report(tmp_path: Any, *arguments: str, status: int = 0) -> dict[str, Any]:
    path = tmp_path / "deep" / "results.json"
    assert command_line.main(["--quick", "--output", str(path), *arguments]) == status
    return json.loads(path.read_text())


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
            assert row["torch_error"] is not None


def _names(cases: Any) -> list[tuple[str, str, str]]:
    return [(case.op, case.shape, case.dtype) for case in cases]


def test_a_whole_run_writes_a_row_for_each_case_and_the_host_cost(
    tmp_path: Any, device: mg.Device, capsys: pytest.CaptureFixture[str]
) -> None:
    report = _report(tmp_path)
    _assert_schema(report)
    expected = _names(selected(hardware(device), None, None, quick=True))
    assert [(row["op"], row["shape"], row["dtype"]) for row in report["rows"]] == expected
    assert (report["device"], report["hardware"]) == (described(device), hardware(device))
    assert report["failures"] == report["left_out"] == []
    assert gc.get_freeze_count() == 0
    assert report["peak_tflops"]["float32"] > 0
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
    monkeypatch.setattr(pytorch, "is_installed", lambda: False)
    report = _report(tmp_path, "--ops", "pooling", "neuron_relu")
    _assert_schema(report)
    assert report["rows"] and all(row["ratio"] is None for row in report["rows"])
    assert "PyTorch is not installed" in capsys.readouterr().out


def test_a_wrong_result_is_reported_and_not_timed_and_the_others_go_on(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timed: list[str] = []
    exact, measure = reference.soft_max, timing.WallTimer.measure

    def count(self: Any, work: Any, *arguments: Any, **named: Any) -> timing.Measurement:
        timed.append(work)
        return measure(self, work, *arguments, **named)

    monkeypatch.setattr(command_line, "GPUTimer", lambda device, where: timing.WallTimer(device))
    monkeypatch.setattr(timing.WallTimer, "measure", count)
    monkeypatch.setattr(reference, "soft_max", lambda x: exact(x) + 0.01)
    report = _report(tmp_path, "--ops", "soft_max", "--dtype", "float32", status=1)
    _assert_schema(report)
    assert [row["op"] for row in report["rows"]] == ["soft_max_gradient", "log_soft_max", "log_soft_max_gradient"]
    assert len(timed) == 1 + 3, "the copy and the rows that are right"
    (failure,) = report["failures"]
    assert failure["row"] == "soft_max 2x3x3x5 float32"
    assert "elements are out of bounds" in failure["reason"]
    assert "failed: soft_max 2x3x3x5 float32" in capsys.readouterr().out


def test_rows_are_left_out_and_named_when_the_time_is_over(
    tmp_path: Any, device: mg.Device, capsys: pytest.CaptureFixture[str]
) -> None:
    report = _report(tmp_path, "--ops", "soft_max", "--dtype", "float32", "--minutes", "0")
    assert report["rows"] == []
    assert report["left_out"] == [case.name for case in selected(hardware(device), "float32", ["soft_max"], quick=True)]
    assert "The time was over before 4 rows; the first: soft_max 2x3x3x5 float32" in capsys.readouterr().out


def test_a_layout_of_pytorch_that_computes_something_else_is_left_out_and_named(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    matrix_result = pytorch.matrix_result
    monkeypatch.setattr(
        pytorch,
        "matrix_result",
        lambda shape, returned: {name: tensor + 1 for name, tensor in matrix_result(shape, returned).items()},
    )
    (row,) = _report(tmp_path, "--ops", "log_soft_max", "--dtype", "float32")["rows"][:1]
    assert row["torch_disagrees"].keys() == {"matrix"}
    assert "times the bound" in row["torch_disagrees"]["matrix"]
    assert row["torch_layouts_ms"].keys() == {"NCHW", "NHWC"}
    assert "PyTorch's matrix is left out" in capsys.readouterr().out


def test_on_an_nvidia_gpu_the_cold_cache_and_single_calls_are_timed_too(
    tmp_path: Any, device: mg.Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device, "identifier", "cuda:0")
    monkeypatch.setattr(gpu_timing, "ASSUMED_CACHE_BYTES", 1 << 16)
    monkeypatch.setattr(pytorch, "counterpart", lambda device: None)
    report = _report(tmp_path, "--ops", "pooling_average", "neuron_relu_gradient")
    _assert_schema(report)
    for row in report["rows"]:
        assert row["cold_ms"] > 0 and row["alone_ms"] > 0
    assert "cold ms" in capsys.readouterr().out


def test_the_host_cost_of_every_kernel_class_is_measured(device: mg.Device) -> None:
    costs = host_costs(device, 1)
    abstract = {mg.Kernel, mg.BinaryKernel, mg.GradientKernel, mg.Pooling, mg.PoolingGradient}
    abstract |= {mg.Arithmetic, mg.ArithmeticGradient, mg.ReduceBinary, mg.ReduceUnary, mg.Upsampling}
    abstract |= {mg.UpsamplingGradient}
    measured = tuple(BaseKernel.classes[name] for name in costs)
    public = [kind for name, kind in BaseKernel.classes.items() if getattr(mg, name, None) is kind]
    assert [kind for kind in public if not issubclass(kind, measured) and kind not in abstract] == []
    assert all(cost.encode > 0 and cost.run > cost.encode / 100 for cost in costs.values())
