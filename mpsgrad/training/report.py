"""The files that a training run leaves, and the tables on the screen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

LARGEST_MATRIX_WITH_COUNTS = 20


@dataclass(frozen=True)
class Epoch:
    """Mean training loss per image, test accuracy, and seconds of one pass over the training data."""

    train_loss: float
    test_accuracy: float
    seconds: float


@dataclass(frozen=True)
class Verification:
    """The largest error of one gradient kernel, in parts of what is allowed where it occurs."""

    kernel: str
    quantity: str
    largest_error: float
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.largest_error <= self.tolerance


def progress_bar(console: Console) -> Progress:
    """A bar of steps, whose tasks have the fields ``epoch``, ``loss`` and ``rate`` in images per second."""
    return Progress(
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TextColumn("{task.fields[rate]:.0f} images/s"),
        TimeElapsedColumn(),
        console=console,
    )


def epoch_table(epochs: Sequence[Epoch]) -> Table:
    """Accuracy and loss of each epoch."""
    table = Table(title="Training")
    for heading in ("epoch", "loss", "test accuracy", "seconds"):
        table.add_column(heading, justify="right")
    for number, epoch in enumerate(epochs, 1):
        table.add_row(
            str(number), f"{epoch.train_loss:.4f}", f"{epoch.test_accuracy:.4f}", f"{epoch.seconds:.2f}"
        )
    return table


def verification_table(verifications: Sequence[Verification]) -> Table:
    """Each gradient kernel's largest error on the network's own activations, beside the tolerance there."""
    table = Table(title="Gradient kernels against the float64 reference")
    for heading in ("kernel", "quantity"):
        table.add_column(heading)
    for heading in ("largest error", "tolerance", ""):
        table.add_column(heading, justify="right")
    for row in verifications:
        mark = "[green]ok[/]" if row.holds else "[red]out of bounds[/]"
        table.add_row(row.kernel, row.quantity, f"{row.largest_error:.2e}", f"{row.tolerance:.2e}", mark)
    return table


def write_metrics(
    folder: Path, epochs: Sequence[Epoch], test_accuracy: float, images_per_second: float, device: str, **others: Any
) -> None:
    """``metrics.json``; ``others`` are further entries."""
    metrics = {
        "test_accuracy": test_accuracy,
        "train_loss": [epoch.train_loss for epoch in epochs],
        "seconds": sum(epoch.seconds for epoch in epochs),
        "images_per_second": images_per_second,
        "device": device,
        **others,
    }
    (folder / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")


def write_weights(folder: Path, parameters: dict[str, np.ndarray]) -> None:
    """``weights.safetensors``."""
    from safetensors.numpy import save

    data = save({name: np.ascontiguousarray(value) for name, value in parameters.items()})
    (folder / "weights.safetensors").write_bytes(data)


def can_plot(console: Console) -> bool:
    """Whether matplotlib is there; says so if it is not."""
    if find_spec("matplotlib") is not None:
        return True
    console.print("no plots: matplotlib is not installed: pip install 'mpsgrad\\[train]'", style="yellow")
    return False


def write_loss_plot(folder: Path, epochs: Sequence[Epoch], title: str = "Handwritten digits") -> None:
    """``loss.png``: the loss of each epoch on a logarithmic axis, and the test accuracy."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    numbers = np.arange(1, len(epochs) + 1)
    loss = figure.add_subplot()
    loss.plot(numbers, [epoch.train_loss for epoch in epochs], color="tab:blue", marker=".")
    loss.set_yscale("log")
    loss.set_xlabel("epoch")
    loss.set_ylabel("training loss", color="tab:blue")
    accuracy = loss.twinx()
    accuracy.plot(numbers, [epoch.test_accuracy for epoch in epochs], color="tab:orange", marker=".")
    accuracy.set_ylabel("test accuracy", color="tab:orange")
    loss.set_title(title)
    loss.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(folder / "loss.png", dpi=150)


def confusion_matrix(classes: np.ndarray, predicted: np.ndarray, count: int) -> np.ndarray:
    """How many pictures of each class (row) were taken for each class (column): ``count`` x ``count``."""
    matrix = np.zeros((count, count), np.int64)
    np.add.at(matrix, (classes, predicted), 1)
    return matrix


def write_confusion_matrix(folder: Path, matrix: np.ndarray) -> None:
    """``confusion.png``: each row in parts of its pictures as colors, with the counts where there is room for them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(matrix)
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    figure = Figure(figsize=(6, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("class")
    axes.set_title(f"{np.trace(matrix)} of {matrix.sum()} test pictures are right")
    if count <= LARGEST_MATRIX_WITH_COUNTS:
        axes.set_xticks(range(count))
        axes.set_yticks(range(count))
        for row, column in zip(*np.nonzero(matrix), strict=True):
            color = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(matrix[row, column]), ha="center", va="center", color=color)
    figure.savefig(folder / "confusion.png", dpi=150)
