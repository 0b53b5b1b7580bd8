"""The benchmark of training: what it writes, and that different losses are never timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mpsgrad as mg
from bench import training
from bench.markdown import training as as_markdown

# What PyTorch warns of in its own code, such as plans of cuDNN that fail when it tries them all.
pytestmark = pytest.mark.filterwarnings("ignore:::torch")

SMALL = ("--batch-size", "2", "--samples", "1", "--steps", "2")


@pytest.fixture(autouse=True)
def default_device(monkeypatch: pytest.MonkeyPatch) -> mg.Device:
    """The benchmark sets it."""
    monkeypatch.setattr("mpsgrad.devices._default", mg.default_device())
    return mg.default_device()


def report(tmp_path: Path, status: int = 0) -> dict[str, Any]:
    path = tmp_path / "deep" / "training.json"
    assert training.main([*SMALL, "--output", str(path)]) == status
    return json.loads(path.read_text())


def test_all_ways_to_train_are_compared_and_timed(
    tmp_path: Path, default_device: mg.Device, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    found = report(tmp_path)
    printed = capsys.readouterr().out
    names = ["mpsgrad, encoded", "mpsgrad, replayed", "PyTorch eager, NCHW", "PyTorch eager, NHWC"]
    assert [row["name"] for row in found["rows"]] == list(found["losses"]) == names
    assert found["losses"][names[0]] == found["losses"][names[1]] == pytest.approx(found["losses"][names[3]], rel=0.01)
    assert found["device"] == default_device.name and found["batch_size"] == 2 and found["dispatches"] > 50
    on_gpu = default_device.identifier.startswith("cuda")
    for row in found["rows"]:
        assert 0 < row["step_p20_ms"] <= row["step_ms"] <= row["step_p80_ms"]
        assert row["images_per_second"] == pytest.approx(2e3 / row["step_ms"])
        assert (row["host_us_per_dispatch"] is None) == row["name"].startswith("PyTorch")
        assert (row["gpu_ms"] is not None) == (row["gpu_idle_share"] is not None) == on_gpu
        assert row["gpu_idle_share"] is None or 0 <= row["gpu_idle_share"] < 1
        assert f"│ {row['name']}" in printed
    lines = as_markdown(found).splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[4:]] == names


def test_different_losses_are_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    model = training.pytorch_model

    def other(source: Any) -> Any:
        return torch.nn.Sequential(*model(source), torch.nn.Softmax(1))

    monkeypatch.setattr(training, "pytorch_model", other)
    found = report(tmp_path, status=1)
    assert found["rows"] == [] and len(found["losses"]) == 4
