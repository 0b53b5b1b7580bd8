"""``train``: a model of nodes learns a data set, with checkpoints from which the run can go on."""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from mpsgrad.devices import Device
from mpsgrad.errors import CheckpointError, DataError, MPSGradError
from mpsgrad.precompile import compile_once
from mpsgrad.training import data, models
from mpsgrad.training.checkpoint import Checkpoint, CheckpointFolder
from mpsgrad.training.graph_network import GraphNetwork
from mpsgrad.training.optimizers import OPTIMIZERS, SCHEDULES
from mpsgrad.training.pictures import Pictures, as_floats
from mpsgrad.training.report import (
    Epoch,
    can_plot,
    confusion_matrix,
    epoch_table,
    progress_bar,
    write_confusion_matrix,
    write_loss_plot,
    write_metrics,
    write_weights,
)
from mpsgrad.training.tensorboard import TensorBoardLog

LARGEST_HALF = 65504.0


@dataclass(frozen=True)
class Settings:
    """What fixes the bits of a run on one device; a run that goes on has to have the same."""

    model: str
    data: str
    optimizer: str
    learning_rate: float
    schedule: str
    batch_size: int
    epochs: int
    seed: int
    precision: str = "float32"


@dataclass
class Position:
    """How far a run has come: whole epochs, batches of the present one, and what it has summed up there.

    ``generator`` is the state of the generator at the beginning of the epoch, from which the order of the pictures is
    drawn.
    """

    generator: dict[str, Any]
    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    history: list[list[float]] = field(default_factory=list)


def train(
    settings: Settings,
    *,
    device: Device,
    output: Path,
    console: Console,
    resumes: bool = False,
    checkpoint_steps: int | None = None,
    tensorboard: bool = False,
    keeps_checkpoints: bool = True,
) -> GraphNetwork:
    """Trains as ``settings`` say, shows what happens and writes the files to ``output``; returns the network.

    Each epoch goes through the pictures in a new order, in whole batches; the rest of fewer pictures is left out. The
    first step is recorded and replayed. A checkpoint is written to ``output/checkpoints`` at the beginning, at the end
    of each epoch, and with ``checkpoint_steps`` after so many steps, too. With ``resumes`` the run goes on from the
    last one that is whole, if there is any, to the same bits as a run that was not interrupted. With ``tensorboard``
    the numbers of each step and epoch are logged to ``output/tensorboard``. Unless it ``keeps_checkpoints`` there are
    none.

    Raises ``DataError``, ``ModelError`` and ``CheckpointError``, the last also if ``output`` has checkpoints of a run
    that has not come to its end and ``resumes`` is false; and ``MPSGradError`` if the loss is no longer finite.
    """
    pictures = data.load(settings.data)
    count = len(pictures.train_images)
    if count < settings.batch_size:
        raise DataError(f"batches of {settings.batch_size} pictures, but there are {count} to train with")
    if settings.precision == "mixed":
        _require_float16(settings.data, pictures)
    console.print(f"device: {device.name} ({device.identifier}, {device.driver})")
    console.print(
        f"{count} pictures to train with, {len(pictures.test_images)} to test with, seed {settings.seed}"
    )
    plots = can_plot(console)
    identity = _identity(settings, pictures)
    compile_once(device)  # Takes a while: whoever misspelt a file has been told by now.
    folder, last = None, None
    if keeps_checkpoints:
        folder = CheckpointFolder(output / "checkpoints")
        last = _last_checkpoint(folder, identity, resumes, console)
    else:
        output.mkdir(parents=True, exist_ok=True)
    run = _Run(settings, identity, pictures, device, folder, last)
    if last is None:
        run.save()  # A folder that cannot be written is found before anything is computed.
    else:
        console.print(f"goes on after step {last.step} of {run.steps}")
    log = TensorBoardLog(output / "tensorboard", run.step) if tensorboard else None
    with progress_bar(console) as progress, log or contextlib.nullcontext():
        run.go(progress, log, checkpoint_steps)
    history = [Epoch(*each) for each in run.position.history]
    console.print(epoch_table(history))
    try:
        _write_files(output, settings, history, run.network, pictures, run.batches, plots)
    except OSError as error:
        kept = "; the checkpoints are whole, and --resume writes them again" if keeps_checkpoints else ""
        raise MPSGradError(f"{output}: cannot write the results: {error.strerror or error}{kept}") from error
    console.print(f"test accuracy {history[-1].test_accuracy:.4f}; files in {output}")
    return run.network


class _Run:
    """A network on its way through the epochs: ``position`` says how far it has come, also when it goes on."""

    def __init__(
        self,
        settings: Settings,
        identity: dict[str, Any],
        pictures: Pictures,
        device: Device,
        folder: CheckpointFolder | None,
        last: Checkpoint | None,
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.pictures = pictures
        self.folder = folder
        self.batches = len(pictures.train_images) // settings.batch_size
        self.steps = settings.epochs * self.batches
        self.generator = np.random.default_rng([settings.seed, 1])
        self.position = Position(dict(self.generator.bit_generator.state))
        if last is not None:
            self.position = Position(**last.numbers["position"])
        self.network = GraphNetwork(
            settings.model,
            models.load(settings.model),
            shape=pictures.shape,
            classes=pictures.classes,
            batch_size=settings.batch_size,
            optimizer=OPTIMIZERS[settings.optimizer],
            seed=settings.seed,
            device=device,
            mixed_precision=settings.precision == "mixed",
            checkpoint_arrays=None if last is None else last.arrays,
            checkpoint_numbers=None if last is None else last.numbers["network"],
        )

    @property
    def step(self) -> int:
        """Steps done."""
        return self.position.epoch * self.batches + self.position.batch

    def save(self) -> None:
        if self.folder is None:
            return
        numbers = {
            "settings": self.identity,
            "position": asdict(self.position),
            "network": self.network.checkpoint_numbers(),
        }
        self.folder.save(Checkpoint(self.step, self.network.checkpoint_arrays(), numbers))

    def go(self, progress: Progress, log: TensorBoardLog | None, checkpoint_steps: int | None) -> None:
        """Trains to the end of the last epoch."""
        task = progress.add_task(
            "",
            total=self.steps,
            completed=self.step,
            epoch=min(self.position.epoch + 1, self.settings.epochs),
            loss=float("nan"),
            rate=0.0,
        )
        while self.position.epoch < self.settings.epochs:
            self.generator.bit_generator.state = self.position.generator
            order = self.generator.permutation(len(self.pictures.train_images))
            started = time.perf_counter() - self.position.seconds
            while self.position.batch < self.batches:
                loss = self._train_step(order, log)
                self.position.seconds = time.perf_counter() - started
                rate = self.position.batch * self.settings.batch_size / self.position.seconds
                progress.update(task, advance=1, epoch=self.position.epoch + 1, loss=loss, rate=rate)
                if checkpoint_steps and self.step % checkpoint_steps == 0 and self.position.batch < self.batches:
                    self.save()
            self._end_epoch(log)

    def _train_step(self, order: np.ndarray, log: TensorBoardLog | None) -> float:
        """Trains with the next pictures of ``order``; their mean loss."""
        chosen = order[self.position.batch * self.settings.batch_size :][: self.settings.batch_size]
        schedule = SCHEDULES[self.settings.schedule]
        learning_rate = self.settings.learning_rate * schedule(self.step / self.steps)
        loss = self.network.train_step(
            as_floats(self.pictures.train_images[chosen]),
            self.pictures.one_hot(self.pictures.train_classes[chosen]),
            learning_rate,
        )
        self.position.batch += 1
        if log is not None:
            log.write(self.step, loss=loss, learning_rate=learning_rate, **self.network.precision_metrics())
        if not math.isfinite(loss):
            raise MPSGradError(
                f"the loss of step {self.step} is {loss}; begin anew with a learning rate below "
                f"{self.settings.learning_rate}"
            )
        self.position.loss_sum += loss
        return loss

    def _end_epoch(self, log: TensorBoardLog | None) -> None:
        """Tests the network, goes to the beginning of the next epoch and saves that."""
        position = self.position
        train_loss = position.loss_sum / self.batches
        accuracy = float((_predictions(self.network, self.pictures) == self.pictures.test_classes).mean())
        if log is not None:
            log.write(
                self.step,
                train_loss=train_loss,
                test_accuracy=accuracy,
                images_per_second=self.batches * self.settings.batch_size / position.seconds,
            )
        history = [*position.history, [train_loss, accuracy, position.seconds]]
        self.position = Position(dict(self.generator.bit_generator.state), position.epoch + 1, history=history)
        self.save()


def _require_float16(name: str, pictures: Pictures) -> None:
    """Raises ``DataError`` if float16 has no room for a value of ``pictures``."""
    largest = max(float(np.abs(as_floats(images)).max()) for images in (pictures.train_images, pictures.test_images))
    if largest > LARGEST_HALF:
        raise DataError(
            f"{name}: has pictures with values up to {largest:g}, but mixed precision holds them in float16, up to "
            f"{LARGEST_HALF:g}; scale them, or use --precision float32"
        )


def _last_checkpoint(
    folder: CheckpointFolder, identity: dict[str, Any], resumes: bool, console: Console
) -> Checkpoint | None:
    """The checkpoint to go on from, or None to begin anew."""
    last, damaged = folder.last()
    for error in damaged:
        console.print(f"{error}; {'the one before is used' if last else 'there is none before it'}", style="yellow")
    if not resumes:
        if last is not None and last.step and last.numbers["position"]["epoch"] < last.numbers["settings"]["epochs"]:
            raise CheckpointError(
                f"{folder.folder}: has the checkpoints of a run that came to step {last.step}; go on with --resume, or "
                "begin anew with another --output or without these files"
            )
        return None
    if last is None:
        if damaged:
            raise CheckpointError(f"{folder.folder}: none of the {len(damaged)} checkpoints is whole")
        console.print(f"no checkpoint in {folder.folder}: begins at the first step")
        return None
    then = last.numbers["settings"]
    for name in {**then, **identity}:
        if identity.get(name) != then.get(name):
            raise CheckpointError(
                f"{folder.folder}: the run has {name.replace('_', ' ')} {then.get(name)}, but now it is "
                f"{identity.get(name)}; it can only go on as it began"
            )
    return last


def _identity(settings: Settings, pictures: Pictures) -> dict[str, Any]:
    """The settings, and the checksums of the pictures and of the model if it is a file."""
    identity = {**asdict(settings), "data_checksum": pictures.checksum}
    if settings.model not in models.MODELS and Path(settings.model).is_file():
        identity["model_checksum"] = hashlib.sha256(Path(settings.model).read_bytes()).hexdigest()
    return identity


def _predictions(network: GraphNetwork, pictures: Pictures) -> np.ndarray:
    return network.probabilities(as_floats(pictures.test_images)).argmax(1)


def _write_files(
    output: Path,
    settings: Settings,
    history: list[Epoch],
    network: GraphNetwork,
    pictures: Pictures,
    batches: int,
    plots: bool,
) -> None:
    matrix = confusion_matrix(pictures.test_classes, _predictions(network, pictures), pictures.classes)
    accuracies = [epoch.test_accuracy for epoch in history]
    rate = len(history) * batches * settings.batch_size / sum(epoch.seconds for epoch in history)
    write_metrics(
        output,
        history,
        accuracies[-1],
        rate,
        network.device.name,
        test_accuracies=accuracies,
        settings=asdict(settings),
        confusion_matrix=matrix.tolist(),
        **network.precision_metrics(),
    )
    write_weights(output, network.parameters())
    if plots:
        write_loss_plot(output, history, f"{Path(settings.model).stem} on {settings.data}")
        write_confusion_matrix(output, matrix)
