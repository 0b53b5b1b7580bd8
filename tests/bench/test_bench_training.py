"""The benchmark of training: what it writes, and that different losses are never timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mpsgrad as mg
from bench import training
from bench.markdown import training as as_markdown
from bench.selection import described

# What PyTorch warns of in its own code, such as plans of cuDNN that fail when it tries them all.
pytestmark = pytest.mark.filterwarnings("ignore:::torch")

SMALL = ("--network", "lenet", "--batch-size", "2", "--samples", "1", "--seconds", "0")


@pytest.fixture(autouse=True)
def default_device(monkeypatch: pytest.MonkeyPatch) -> mg.Device:
    """The benchmark sets it."""
    monkeypatch.setattr("mpsgrad.devices._default", mg.default_device())
    return mg.default_device()


def report(tmp_path: Path, *options: str, status: int = 0) -> dict[str, Any]:
    path = tmp_path / "deep" / "training.json"
    assert training.main([*SMALL, *options, "--output", str(path)]) == status
    return json.loads(path.read_text())


def test_all_ways_to_train_are_compared_and_timed(
    tmp_path: Path, default_device: mg.Device, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    found = report(tmp_path)
    printed = capsys.readouterr().out
    names = ["encoded", "replayed", "PyTorch eager, NCHW", "PyTorch eager, NHWC"]
    assert found["device"] == described(default_device)
    assert [case["precision"] for case in found["cases"]] == ["float32", "mixed"]
    on_gpu = default_device.identifier.startswith("cuda")
    for case in found["cases"]:
        assert [row["name"] for row in case["rows"]] == list(case["losses"]) == names
        assert case["losses"][names[0]] == case["losses"][names[1]]
        assert case["batch_size"] == 2 and case["dispatches"] > 20
        for row in case["rows"]:
            assert 0 < row["step_p20_ms"] <= row["step_ms"] <= row["step_p80_ms"]
            assert row["images_per_second"] == pytest.approx(2e3 / row["step_ms"])
            assert (row["host_us_per_dispatch"] is None) == row["name"].startswith("PyTorch")
            assert (row["gpu_ms"] is not None) == (row["gpu_idle_share"] is not None) == on_gpu
            assert row["gpu_idle_share"] is None or 0 <= row["gpu_idle_share"] < 1
        _, replayed, *beside = [row["step_ms"] for row in case["rows"]]
        assert case["ratio"] == pytest.approx(min(beside) / replayed)
        assert [each["name"] for each in case["filters"]][:2] == ["convolution_1", "NeuronReLU 1"]
        assert all(each["ms"] > 0 for each in case["filters"])
    lines = as_markdown(found).splitlines()
    assert [line.split(" | ")[2] for line in lines[4:6]] == ["float32", "mixed"]
    assert lines[4] in printed


def test_where_pytorch_is_faster_the_slowest_filters_are_named() -> None:
    row = {"images_per_second": 1.0, "step_ms": 2.0, "host_ms": 0.1, "gpu_idle_share": None}
    rows = [{**row, "name": name} for name in ("encoded", "replayed", "PyTorch eager, NCHW")]
    filters = [{"name": f"f{ms}", "kind": "K", "result": "1x1", "ms": ms} for ms in (1.0, 3.0, 2.0)]
    case = {"network": "n", "shape": [1, 2, 3], "batch_size": 4, "precision": "float32", "rows": rows}
    reported: dict[str, Any] = {"date": "today", "versions": {"torch": "2"}}
    for ratio, mark in ((0.5, "the slowest are f3.0 (K, 1x1) 3, f2.0 (K, 1x1) 2, f1.0"), (1.5, "**1.50** |")):
        text = as_markdown({**reported, "cases": [{**case, "ratio": ratio, "filters": filters}]})
        assert mark in text and ("Where PyTorch is faster" in text) == (ratio < 1)


@pytest.mark.parametrize("network", ["lenet", pytest.param("resnet18", marks=pytest.mark.nightly)])
def test_different_losses_are_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str) -> None:
    torch = pytest.importorskip("torch")
    model = training.NETWORKS[network]

    def other(parameters: Any) -> Any:
        return torch.nn.Sequential(model(parameters), torch.nn.Softmax(1))

    monkeypatch.setitem(training.NETWORKS, network, other)
    found = report(tmp_path, "--network", network, "--precision", "float32", status=1)
    (case,) = found["cases"]
    assert case["rows"] == [] and case["ratio"] is None
    ours, _, theirs, also_theirs = case["losses"].values()
    assert ours != pytest.approx(theirs, rel=0.01) and theirs == pytest.approx(also_theirs, rel=0.01)
