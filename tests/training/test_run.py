"""``mpsgrad train --model --data``: it learns, goes on to the same bits after a stop, and says what is wrong."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import mpsgrad as mg
from mpsgrad import cli
from mpsgrad.training import graph_network, initial, models, report, run
from mpsgrad.training.checkpoint import CheckpointFolder
from mpsgrad.training.optimizers import OPTIMIZERS
from mpsgrad.training.report import confusion_matrix

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_network.py"
SMALL_MODEL = """
import mpsgrad as mg
from mpsgrad.training import initial

def build(pictures, shape, classes, generator):
    height, width, channels = shape
    return mg.FullyConnectedNode(pictures, initial.weights(generator, classes, (height, width), channels))
"""


@pytest.fixture(autouse=True)
def without_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots take longer than the training of these tests: one test looks at them."""
    if request.node.name != "test_a_model_of_a_file_learns_and_the_files_say_so":
        for name in ("write_loss_plot", "write_confusion_matrix"):
            monkeypatch.setattr(run, name, lambda *_: None)


@pytest.fixture(scope="module")
def stripes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of 6 x 6 pixels of which one of three columns is bright: 80 to train with, 40 to test with."""
    random = np.random.default_rng(8)
    file = tmp_path_factory.mktemp("data") / "stripes.npz"
    arrays = {}
    for part, count in (("train", 80), ("test", 40)):
        classes = random.integers(0, 3, count)
        images = random.random((count, 6, 6, 1), np.float32)
        images[np.arange(count), :, 2 * classes] += 1.0
        arrays |= {f"x_{part}": images, f"y_{part}": classes}
    np.savez(file, **arrays)
    return file


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "small.py"
    file.write_text(SMALL_MODEL)
    return file


def command(output: Path, model: Any, stripes: Path, *options: str) -> list[str]:
    shared = ["train", "--model", str(model), "--data", f"npz:{stripes}", "--batch-size", "16", "--epochs", "3"]
    return [*shared, "--output", str(output), *options]


def steps(output: Path) -> list[int]:
    return list(CheckpointFolder(output / "checkpoints").files())


def result(output: Path) -> tuple[bytes, list[float]]:
    metrics = json.loads((output / "metrics.json").read_text())
    return (output / "weights.safetensors").read_bytes(), metrics["train_loss"]


class Stopped(Exception):
    """The process ends here."""


def stop_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Has training end in the middle of step ``count`` + 1 of this process."""
    train_step = graph_network.GraphNetwork.train_step
    done = 0

    def train_until(self: Any, *arguments: Any) -> float:
        nonlocal done
        if done == count:
            raise Stopped
        done += 1
        return train_step(self, *arguments)

    monkeypatch.setattr(graph_network.GraphNetwork, "train_step", train_until)


@pytest.mark.parametrize(
    ("optimizer", "precision"), [("sgd", "float32"), ("adam", "mixed"), ("rmsprop", "float32"), ("sgd", "mixed")]
)
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    tmp_path: Path,
    stripes: Path,
    optimizer: str,
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--optimizer", optimizer, "--learning-rate", "0.01", "--checkpoint-steps", "3")
    if precision == "mixed":
        # So large that gradients overflow in the first steps and again after the scale has grown.
        monkeypatch.setattr(graph_network, "LossScale", partial(mg.LossScale, 2.0**24, growth_interval=2))
        options += ("--precision", "mixed")
    assert cli.main(command(tmp_path / "whole", EXAMPLE, stripes, *options)) == 0
    for count in (1, 4, 4):
        with monkeypatch.context() as patch:
            stop_after(patch, count)
            with pytest.raises(Stopped):
                cli.main(command(tmp_path / "parts", EXAMPLE, stripes, *options, "--resume"))
    assert steps(tmp_path / "parts") == [6, 5]
    assert cli.main(command(tmp_path / "parts", EXAMPLE, stripes, *options)) == 1
    assert "came to step 6; go on with --resume" in capsys.readouterr().err
    assert cli.main(command(tmp_path / "parts", EXAMPLE, stripes, *options, "--resume")) == 0
    assert "goes on after step 6 of 15" in capsys.readouterr().out
    assert result(tmp_path / "parts") == result(tmp_path / "whole")
    assert steps(tmp_path / "parts") == [15, 12]
    if precision == "mixed":
        metrics = [json.loads((tmp_path / each / "metrics.json").read_text()) for each in ("parts", "whole")]
        assert metrics[0]["skipped_steps"] == metrics[1]["skipped_steps"] > 1
        assert metrics[0]["loss_scale"] == metrics[1]["loss_scale"] < 2.0**24


def test_a_model_of_a_file_learns_and_the_files_say_so(
    tmp_path: Path, stripes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(command(tmp_path, EXAMPLE, stripes, "--epochs", "6", "--schedule", "step")) == 0
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["test_accuracy"] == metrics["test_accuracies"][-1] >= 0.9
    assert metrics["train_loss"][-1] < 0.2 * metrics["train_loss"][0]
    assert metrics["settings"]["schedule"] == "step" and metrics["settings"]["learning_rate"] == 0.05
    weights = load_file(tmp_path / "weights.safetensors")
    assert {name: array.shape for name, array in weights.items()} == {
        "convolution_1.weights": (16, 3, 3, 1),
        **{f"batch_normalization_1.{name}": (16,) for name in ("gamma", "beta", "mean", "variance")},
        "fully_connected_1.weights": (3, 3, 3, 16),
        "fully_connected_1.biases": (3,),
    }
    assert (weights["batch_normalization_1.gamma"] != 1).any() and (weights["batch_normalization_1.mean"] != 0).any()
    for name in ("loss.png", "confusion.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert "test accuracy" in capsys.readouterr().out
    # A run that came to its end writes the same files again, and makes place for another one.
    before = result(tmp_path)
    assert cli.main(command(tmp_path, EXAMPLE, stripes, "--epochs", "6", "--schedule", "step", "--resume")) == 0
    assert result(tmp_path) == before
    assert cli.main(command(tmp_path, EXAMPLE, stripes, "--epochs", "1", "--seed", "1")) == 0
    assert steps(tmp_path) == [5, 0]


NORMALIZED_MODEL = """
import mpsgrad as mg
from mpsgrad.training import initial

def build(pictures, shape, classes, generator):
    height, width, channels = shape
    image = mg.ConvolutionNode(pictures, initial.weights(generator, 8, 3, channels)).result_image
    groups = mg.GroupNormalizationDataSource.from_arrays(2, number_of_feature_channels=8, epsilon=1e-5)
    image = mg.NeuronReLUNode(mg.GroupNormalizationNode(image, groups).result_image).result_image
    image = mg.ConvolutionNode(image, initial.weights(generator, 8, 3, 8)).result_image
    instances = mg.InstanceNormalizationDataSource.from_arrays(number_of_feature_channels=8, epsilon=1e-5)
    image = mg.NeuronReLUNode(mg.InstanceNormalizationNode(image, instances).result_image).result_image
    return mg.FullyConnectedNode(image, initial.weights(generator, classes, (height, width), 8))
"""


def test_instance_and_group_normalization_are_trained(tmp_path: Path, stripes: Path) -> None:
    file = tmp_path / "normalized.py"
    file.write_text(NORMALIZED_MODEL)
    assert cli.main(command(tmp_path, file, stripes, "--epochs", "4", "--learning-rate", "0.02")) == 0
    assert json.loads((tmp_path / "metrics.json").read_text())["test_accuracy"] >= 0.9
    weights = load_file(tmp_path / "weights.safetensors")
    for name in ("group_normalization_1", "instance_normalization_1"):
        assert (weights[f"{name}.gamma"] != 1).all() and (weights[f"{name}.beta"] != 0).all()


def test_the_update_of_group_normalization_is_that_of_the_sum_over_the_images(device: mg.Device) -> None:
    random = np.random.default_rng(10)

    def build(pictures: Any, shape: Any, classes: int, generator: Any) -> Any:
        gamma, beta = (np.random.default_rng(seed).random(6, np.float32) for seed in (1, 2))
        source = mg.GroupNormalizationDataSource.from_arrays(3, gamma, beta, epsilon=1e-3)
        node = mg.GroupNormalizationNode(pictures, source)
        return mg.FullyConnectedNode(node.result_image, initial.weights(generator, classes, 4, 6))

    network = graph_network.GraphNetwork(
        "normalized",
        build,
        shape=(4, 4, 6),
        classes=3,
        batch_size=20,
        optimizer=OPTIMIZERS["sgd"],
        seed=0,
        device=device,
    )
    before = network.parameters()
    pictures = random.random((20, 4, 4, 6), np.float32)
    labels = np.eye(3, dtype=np.float32)[random.integers(0, 3, 20)].reshape(20, 1, 1, 3)
    network.train_step(pictures, labels, 1.0)
    after = network.parameters()
    gamma, beta, weights = (
        before[name].astype(np.float64)
        for name in ("group_normalization_1.gamma", "group_normalization_1.beta", "fully_connected_1.weights")
    )
    groups = pictures.astype(np.float64).reshape(20, 16, 3, 2)
    mean, variance = (getattr(groups, each)((1, 3), keepdims=True) for each in ("mean", "var"))
    normalized = ((groups - mean) / np.sqrt(variance + 1e-3)).reshape(20, 4, 4, 6)
    scores = np.einsum("nhwc,khwc->nk", normalized * gamma + beta, weights)
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    gradient = np.einsum("nk,khwc->nhwc", (chances - labels.reshape(20, 3)) / 20, weights)
    for name, expected in (("gamma", (gradient * normalized).sum((0, 1, 2))), ("beta", gradient.sum((0, 1, 2)))):
        full = f"group_normalization_1.{name}"
        np.testing.assert_allclose(before[full] - after[full], expected, rtol=2e-5, atol=2e-6)


def test_lenet_learns_digits(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    options = ("--epochs", "10", "--batch-size", "64", "--output", str(tmp_path))
    assert cli.main(["train", "--model", "lenet", "--data", "digits", *options]) == 0
    assert json.loads((tmp_path / "metrics.json").read_text())["test_accuracy"] >= 0.98


def test_resnet18_has_its_shapes_and_learns_a_batch(device: mg.Device) -> None:
    random = np.random.default_rng(9)
    network = graph_network.GraphNetwork(
        "resnet18",
        models.load("resnet18"),
        shape=(8, 8, 3),
        classes=100,
        batch_size=4,
        optimizer=OPTIMIZERS["sgd"],
        seed=0,
        device=device,
    )
    arrays = network.parameters()
    trained = {name: array for name, array in arrays.items() if not name.endswith((".mean", ".variance"))}
    assert sum(array.size for array in trained.values()) == 11_220_132
    pictures = random.random((4, 8, 8, 3), np.float32)
    labels = np.eye(100, dtype=np.float32)[[3, 50, 7, 99]].reshape(4, 1, 1, 100)
    losses = [network.train_step(pictures, labels, 0.05) for _ in range(4)]
    assert losses[0] == pytest.approx(np.log(100), rel=0.3) and losses[-1] < 0.5 * losses[0]


def test_what_float16_cannot_hold_is_said(
    tmp_path: Path, stripes: Path, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with np.load(stripes) as archive:
        arrays = {name: archive[name] for name in archive.files}
    np.savez(tmp_path / "bright.npz", **{**arrays, "x_test": arrays["x_test"] * np.float32(1e5)})
    assert cli.main(command(tmp_path, small_model, tmp_path / "bright.npz", "--precision", "mixed")) == 1
    assert "but mixed precision holds them in float16, up to 65504" in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_network, "SMALLEST_SCALE", 2.0**30)
        patch.setattr(graph_network, "LossScale", partial(mg.LossScale, 2.0**24))
        assert cli.main(command(tmp_path, small_model, stripes, "--precision", "mixed")) == 1
    assert "gradients overflow in float16 whatever the scale of the loss" in capsys.readouterr().err


def test_what_tensorboard_is_told(
    tmp_path: Path,
    stripes: Path,
    small_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a stand-in for tensorboardX."""
    told: list[tuple[Any, ...]] = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int) -> None:
            told.append((folder, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            told.append((name, value, step))

        def close(self) -> None:
            told.append(("close",))

    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=SummaryWriter))
    arguments = command(tmp_path, small_model, stripes, "--tensorboard", "--checkpoint-steps", "2")
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(Stopped):
            cli.main(arguments)
    assert told.pop() == ("close",)
    folder = str(tmp_path / "tensorboard")
    assert told[0] == (folder, 0) and told[-1][::2] == ("learning_rate", 7)
    told.clear()
    assert cli.main([*arguments, "--resume"]) == 0
    assert told[0] == (folder, 6) and told[-1] == ("close",)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    scalars = {(name, step): value for name, value, step in told[1:-1]}
    assert [step for name, step in scalars if name == "loss"] == list(range(7, 16))
    assert scalars["test_accuracy", 15] == metrics["test_accuracy"]
    assert scalars["train_loss", 15] == metrics["train_loss"][-1]
    assert scalars["train_loss", 15] == pytest.approx(np.mean([scalars["loss", step] for step in range(11, 16)]))
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert cli.main([*arguments, "--resume"]) == 1
    assert "--tensorboard needs tensorboardX: pip install 'mpsgrad[tensorboard]'" in capsys.readouterr().err


@pytest.mark.parametrize("failing", ["weights.safetensors", "metrics.json"])
def test_a_disk_that_is_full_at_the_end_is_an_error_and_the_results_can_be_written_later(
    tmp_path: Path,
    stripes: Path,
    small_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failing: str,
) -> None:
    arguments = command(tmp_path, small_model, stripes)
    write_bytes, write_text = Path.write_bytes, Path.write_text

    def full(write: Any, path: Path, data: Any) -> Any:
        if path.name == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", lambda path, data: full(write_bytes, path, data))
        patch.setattr(Path, "write_text", lambda path, data: full(write_text, path, data))
        assert cli.main(arguments) == 1
    said = capsys.readouterr().err
    assert f"cannot write the results: {os.strerror(errno.ENOSPC)}" in said and "--resume writes them again" in said
    assert cli.main([*arguments, "--resume"]) == 0
    assert result(tmp_path)[0]


def test_a_run_without_matplotlib_has_no_plots(
    tmp_path: Path,
    stripes: Path,
    small_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    monkeypatch.setattr(run, "write_loss_plot", lambda *_: pytest.fail("a plot without matplotlib"))
    assert cli.main(command(tmp_path, small_model, stripes, "--epochs", "1")) == 0
    assert "no plots: matplotlib is not installed: pip install 'mpsgrad[train]'" in capsys.readouterr().out
    assert result(tmp_path)[0]


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, stripes: Path, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("whole", "damaged"):
        assert cli.main(command(tmp_path / name, small_model, stripes)) == 0
    files = CheckpointFolder(tmp_path / "damaged" / "checkpoints").files()
    content = bytearray(files[15].read_bytes())
    content[-3] ^= 4
    files[15].write_bytes(content)
    capsys.readouterr()
    assert cli.main(command(tmp_path / "damaged", small_model, stripes, "--resume")) == 0
    said = capsys.readouterr().out.replace("\n", "")
    assert "checkpoint-00000015.safetensors: is damaged" in said and "the one before is used" in said
    assert "goes on after step 10 of 15" in said
    assert result(tmp_path / "damaged") == result(tmp_path / "whole")
    for file in CheckpointFolder(tmp_path / "damaged" / "checkpoints").files().values():
        file.write_bytes(b"junk")
    assert cli.main(command(tmp_path / "damaged", small_model, stripes, "--resume")) == 1
    assert "none of the 2 checkpoints is whole" in capsys.readouterr().err


def test_a_run_goes_on_as_it_began(
    tmp_path: Path, stripes: Path, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.py"
    model.write_text(small_model.read_text())
    assert cli.main(command(tmp_path, model, stripes)) == 0
    for options, message in (
        (("--seed", "1"), "the run has seed 0, but now it is 1"),
        (("--optimizer", "adam", "--learning-rate", "0.05"), "the run has optimizer sgd, but now it is adam"),
        (("--epochs", "4"), "the run has epochs 3, but now it is 4"),
    ):
        assert cli.main(command(tmp_path, model, stripes, "--resume", *options)) == 1
        assert message in capsys.readouterr().err
    other = tmp_path / "other.npz"
    arrays = dict(np.load(stripes))
    arrays["x_train"][7, 0, 0] += 1
    np.savez(other, **arrays)
    whole = stripes.read_bytes()
    stripes.write_bytes(other.read_bytes())
    try:
        assert cli.main(command(tmp_path, model, stripes, "--resume")) == 1
    finally:
        stripes.write_bytes(whole)
    assert "the run has data checksum" in capsys.readouterr().err
    model.write_text(f"{small_model.read_text()}# changed")
    assert cli.main(command(tmp_path, model, stripes, "--resume")) == 1
    assert "the run has model checksum" in capsys.readouterr().err


MODEL_START = """
import mpsgrad as mg
from mpsgrad.training.initial import weights
def build(pictures, shape, classes, generator):
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "has no function build(pictures, shape, classes, generator)"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def build(", "SyntaxError"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        (MODEL_START + "    raise SystemExit(0)", "build: SystemExit: 0"),
        (
            MODEL_START + "    node = mg.FullyConnectedNode(pictures, weights(generator, 3, 6, 1))\n"
            "    node.training_style = mg.TrainingStyle.UPDATE_DEVICE_NONE\n"
            "    return node",
            "has no parameters that are trained",
        ),
        (MODEL_START + "    raise KeyError('x')", "build: KeyError: 'x'"),
        (MODEL_START + "    return 3", "build returned 3; it has to be the last node"),
        (MODEL_START + "    return pictures", "it has to be the last node"),
        (MODEL_START + "    return mg.SoftMaxNode(pictures)", "leave it out: the loss applies the softmax"),
        (MODEL_START + "    return mg.NeuronReLUNode(mg.ImageNode('other'))", "it has to be the pictures alone"),
        (
            MODEL_START + "    return mg.ConvolutionNode(pictures, weights(generator, 4, 3, 1))",
            "the scores of a picture are 1x6x6x4; they have to be 1x1x1x3",
        ),
        (
            MODEL_START + "    return mg.ConvolutionNode(pictures, weights(generator, 4, 3, 2))",
            "has 1 feature channels",
        ),
        (
            MODEL_START + "    first = mg.ConvolutionNode(pictures, weights(generator, 1, 3, 1), label='a')\n"
            "    return mg.ConvolutionNode(first.result_image, weights(generator, 1, 3, 1), label='a')",
            "two nodes have the label 'a'",
        ),
    ],
)
def test_what_is_wrong_with_a_model_is_said(
    tmp_path: Path, stripes: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    file = tmp_path / "model.py"
    file.write_text(text)
    assert cli.main(command(tmp_path, file, stripes)) == 1
    said = capsys.readouterr().err
    assert message in said and "model.py" in said
    assert not steps(tmp_path)


def test_an_interrupt_is_one_line(
    tmp_path: Path,
    stripes: Path,
    small_model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(graph_network.GraphNetwork, "train_step", interrupted)
    assert cli.main(command(tmp_path, small_model, stripes)) == 130
    assert capsys.readouterr().err == "mpsgrad: interrupted; --resume goes on from the last checkpoint\n"
    assert steps(tmp_path) == [0]


def test_a_model_may_import_what_lies_beside_it(
    tmp_path: Path, stripes: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_the_model.py").write_text(small_model.read_text())
    model = tmp_path / "model.py"
    model.write_text("from beside_the_model import build")
    assert callable(models.load(str(model)))


def test_wrong_options_are_refused(
    tmp_path: Path, stripes: Path, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ["train"],
        ["train", "--model", "lenet"],
        ["train", "digits", "--resume"],
        ["train", "digits", "--model", "lenet", "--data", "digits"],
        command(tmp_path, "lenet", stripes, "--learning-rate", "0"),
        command(tmp_path, "lenet", stripes, "--learning-rate", "4e38"),
        command(tmp_path, "lenet", stripes, "--learning-rate", "fast"),
        command(tmp_path, "lenet", stripes, "--seed", "-1"),
    ):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 2
    assert "--model is for --model and --data, not for 'train digits'" in capsys.readouterr().err
    for arguments, message in (
        (command(tmp_path, "alexnet", stripes), "no model 'alexnet'; it has to be one of lenet"),
        (command(tmp_path, tmp_path / "none.py", stripes), "none.py: there is no such file"),
        (command(tmp_path, "lenet", stripes, "--batch-size", "81"), "batches of 81 pictures, but there are 80"),
        (command(small_model / "x", small_model, stripes), "cannot write"),
        (command(tmp_path, small_model, stripes, "--learning-rate", "3e38"), "begin anew with a learning rate below"),
    ):
        assert cli.main(arguments) == 1
        assert message in capsys.readouterr().err


def test_the_model_of_the_readme_is_the_example() -> None:
    assert f"```python\n{EXAMPLE.read_text()}```" in (EXAMPLE.parents[1] / "README.md").read_text()


def test_the_confusion_matrix_has_classes_as_rows() -> None:
    matrix = confusion_matrix(np.array([0, 0, 2]), np.array([0, 1, 2]), 3)
    np.testing.assert_array_equal(matrix, [[1, 1, 0], [0, 0, 0], [0, 0, 1]])


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.nightly)])
def test_kills_at_random_moments_leave_the_last_checkpoint(
    tmp_path: Path, stripes: Path, small_model: Path, kills: int
) -> None:
    random = np.random.default_rng(kills)
    options = ("--epochs", str(30 * kills), "--checkpoint-steps", "2")
    arguments = command(tmp_path / "killed", small_model, stripes, *options, "--resume")
    folder = CheckpointFolder(tmp_path / "killed" / "checkpoints")
    reached = 0
    for _ in range(kills):
        process = subprocess.Popen([sys.executable, "-m", "mpsgrad", *arguments], stdout=subprocess.DEVNULL)
        while process.poll() is None and max(folder.files(), default=0) <= reached:
            time.sleep(0.005)
        time.sleep(random.random() * 0.1)
        assert process.poll() is None, "the run came to its end before it was killed"
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        last, damaged = folder.last()
        assert last is not None and last.step > reached and not damaged
        reached = last.step
    assert cli.main(arguments) == 0
    assert cli.main(command(tmp_path / "whole", small_model, stripes, *options)) == 0
    assert result(tmp_path / "killed") == result(tmp_path / "whole")
