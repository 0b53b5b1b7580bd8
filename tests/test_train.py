"""``mpsgrad train digits``: it learns, it writes its files, and a seed fixes every bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import mpsgrad as mg
from mpsgrad import cli, reference
from mpsgrad.training import digits


def train(output: Path, *options: str) -> int:
    return cli.main(["train", "digits", "--output", str(output), *options])


def test_digits_are_learned_and_the_files_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "--epochs", "6") == 0
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert {"test_accuracy", "train_loss", "seconds", "images_per_second", "device"} < set(metrics)
    assert not (tmp_path / "checkpoints").exists()
    assert metrics["test_accuracy"] >= 0.97
    assert len(metrics["train_loss"]) == 6
    assert metrics["train_loss"][-1] < 0.1 * metrics["train_loss"][0]
    assert metrics["device"] == mg.default_device().name
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    weights = load_file(tmp_path / "weights.safetensors")
    assert weights["convolution_1.weights"].shape == (16, 3, 3, 1)
    assert all(np.isfinite(value).all() for value in weights.values())
    printed = capsys.readouterr().out
    for kernel in (
        "Loss",
        "ConvolutionGradient",
        "BatchNormalizationStatisticsG",
        "BatchNormalizationGradient",
        "NeuronGradient",
        "PoolingMaxGradient",
        "FullyConnectedGradient",
    ):
        assert kernel in printed
    assert "out of bounds" not in printed


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        assert train(tmp_path / name, "--epochs", "1", "--batch-size", "100", "--seed", seed) == 0
    first, second, other = ((tmp_path / name / "weights.safetensors").read_bytes() for name in "abc")
    assert first == second
    assert first != other
    losses = [json.loads((tmp_path / name / "metrics.json").read_text())["train_loss"] for name in "abc"]
    assert losses[0] == losses[1] != losses[2]


def test_missing_data_are_named_before_anything_is_compiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr("mpsgrad.training.run.compile_once", compiled.append)
    options = ["--data", f"idx:{tmp_path / 'nowhere'}", "--output", str(tmp_path / "run")]
    assert cli.main(["train", "--model", "lenet", *options]) == 1
    assert "nowhere: is no folder" in capsys.readouterr().err and not compiled
    assert train(tmp_path / "digits", "--epochs", "1") == 0
    assert len(compiled) == 1


def test_an_unknown_device_is_an_error_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "--device", "opencl:99") == 1
    assert "no device 'opencl:99'" in capsys.readouterr().err
    assert not (tmp_path / "metrics.json").exists()


def test_an_output_that_is_no_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert train(tmp_path / "file") == 1
    assert capsys.readouterr().err.startswith("mpsgrad: [Errno 17] File exists")


@pytest.mark.parametrize("options", [("--epochs", "0"), ("--batch-size", "-1"), ("--seed", "x")])
def test_bad_options_are_refused(tmp_path: Path, options: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as caught:
        train(tmp_path, *options)
    assert caught.value.code == 2


@pytest.mark.parametrize("name", ["loss_gradient", "neuron_gradient", "convolution_gradient_data"])
def test_a_wrong_gradient_is_out_of_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    exact = getattr(reference, name)
    monkeypatch.setattr(reference, name, lambda *arguments, **options: 1.01 * exact(*arguments, **options))
    assert train(tmp_path, "--epochs", "1", "--batch-size", "700") == 1
    assert "out of bounds" in capsys.readouterr().out


def test_the_split_is_fixed_and_covers_all_digits() -> None:
    data = digits.load()
    assert len(data.train_images) + len(data.test_images) == 1797
    assert data.train_images.shape[1:] == (8, 8, 1)
    assert data.train_images.max() == 1.0
    again = digits.load()
    np.testing.assert_array_equal(data.test_images, again.test_images)
    assert digits.one_hot(np.array([3])).argmax() == 3
