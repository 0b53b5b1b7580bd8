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

from mpsgrad.devices import Device
from mpsgrad.errors import CheckpointError, DataError, MPSGradError
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
) -> None:
    """Trains as ``settings`` say, shows what happens and writes the files to ``output``.

    Each epoch goes through the pictures in a new order, in whole batches; the rest of fewer pictures is left out. The
    first step is recorded and replayed. A checkpoint is written to ``output/checkpoints`` at the beginning, at the end
    of each epoch, and with ``checkpoint_steps`` after so many steps, too. With ``resumes`` the run goes on from the
    last one that is whole, if there is any, to the same bits as a run that was not interrupted. With ``tensorboard``
    the numbers of each step and epoch are logged to ``output/tensorboard``.

    Raises ``DataError``, ``ModelError`` and ``CheckpointError``, the last also if ``output`` has checkpoints of a run
    that has not come to its end and ``resumes`` is false; and ``MPSGradError`` if the loss is no longer finite.
    """
    pictures = data.load(settings.data)
    count = len(pictures.train_images)
    batches = count // settings.batch_size
    if batches == 0:
        raise DataError(f"batches of {settings.batch_size} pictures, but there are {count} to train with")
    if settings.precision == "mixed":
        _require_float16(settings.data, pictures)
    console.print(f"device: {device.name} ({device.identifier}, {device.driver})")
    console.print(
        f"{count} pictures to train with, {len(pictures.test_images)} to test with, seed {settings.seed}"
    )
    plots = can_plot(console)
    folder = CheckpointFolder(output / "checkpoints")
    identity = _identity(settings, pictures)
    last = _last_checkpoint(folder, identity, resumes, console)
    generator = np.random.default_rng([settings.seed, 1])
    position = Position(dict(generator.bit_generator.state))
    if last is not None:
        position = Position(**last.numbers["position"])
        console.print(f"goes on after step {last.step} of {settings.epochs * batches}")
    arrays, numbers = (None, None) if last is None else (last.arrays, last.numbers["network"])
    network = GraphNetwork(
        settings.model,
        models.load(settings.model),
        shape=pictures.shape,
        classes=pictures.classes,
        batch_size=settings.batch_size,
        optimizer=OPTIMIZERS[settings.optimizer],
        seed=settings.seed,
        device=device,
        mixed_precision=settings.precision == "mixed",
        checkpoint_arrays=arrays,
        checkpoint_numbers=numbers,
    )

    def save() -> None:
        step = position.epoch * batches + position.batch
        made: dict[str, Any] = {"settings": identity, "position": asdict(position)}
        made["network"] = network.checkpoint_numbers()
        folder.save(Checkpoint(step, network.checkpoint_arrays(), made))

    begun = position.epoch * batches + position.batch
    log = TensorBoardLog(output / "tensorboard", begun) if tensorboard else None
    if last is None:
        save()  # A folder that cannot be written is found before anything is computed.
    with progress_bar(console) as progress, log or contextlib.nullcontext():
        task = progress.add_task(
            "",
            total=settings.epochs * batches,
            completed=begun,
            epoch=min(position.epoch + 1, settings.epochs),
            loss=float("nan"),
            rate=0.0,
        )
        while position.epoch < settings.epochs:
            generator.bit_generator.state = position.generator
            order = generator.permutation(count)
            started = time.perf_counter() - position.seconds
            while position.batch < batches:
                step = position.epoch * batches + position.batch
                chosen = order[position.batch * settings.batch_size :][: settings.batch_size]
                part_of_run = step / (settings.epochs * batches)
                learning_rate = settings.learning_rate * SCHEDULES[settings.schedule](part_of_run)
                loss = network.train_step(
                    as_floats(pictures.train_images[chosen]),
                    pictures.one_hot(pictures.train_classes[chosen]),
                    learning_rate,
                )
                if log is not None:
                    log.write(step + 1, loss=loss, learning_rate=learning_rate, **network.precision_metrics())
                if not math.isfinite(loss):
                    raise MPSGradError(
                        f"the loss of step {step + 1} is {loss}; begin anew with a learning rate below "
                        f"{settings.learning_rate}"
                    )
                position.batch += 1
                position.loss_sum += loss
                position.seconds = time.perf_counter() - started
                rate = position.batch * settings.batch_size / position.seconds
                progress.update(task, advance=1, epoch=position.epoch + 1, loss=loss, rate=rate)
                if checkpoint_steps and (step + 1) % checkpoint_steps == 0 and position.batch < batches:
                    save()
            accuracy = float((_predictions(network, pictures) == pictures.test_classes).mean())
            if log is not None:
                log.write(
                    (position.epoch + 1) * batches,
                    train_loss=position.loss_sum / batches,
                    test_accuracy=accuracy,
                    images_per_second=batches * settings.batch_size / position.seconds,
                )
            position.history.append([position.loss_sum / batches, accuracy, position.seconds])
            position = Position(
                dict(generator.bit_generator.state), position.epoch + 1, history=position.history
            )
            save()
    history = [Epoch(*each) for each in position.history]
    console.print(epoch_table(history))
    try:
        _write_files(output, settings, history, network, pictures, batches, plots)
    except OSError as error:
        raise MPSGradError(
            f"{output}: cannot write the results: {error.strerror or error}; the checkpoints are whole, and --resume "
            "writes them again"
        ) from error
    console.print(f"test accuracy {history[-1].test_accuracy:.4f}; files in {output}")


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
