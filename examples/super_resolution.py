"""Twice as many pixels: a small network with a transposed convolution learns what bilinear upsampling leaves out.

    python examples/super_resolution.py --steps 600 --output runs/examples

``y = bilinear(x) + transposed(relu(convolution(x)))`` is trained on patches of the left side of a temple and
measured on its right side. The photograph is scikit-learn's. Needs ``pip install 'mpsgrad[train]'``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_sample_image

import mpsgrad as mg

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

HIDDEN = 24
PATCH = 16
BATCH = 16
LEARNING_RATE = 3e-3


class TrainedKernel:
    """A kernel with weights, its gradient, and Adam's slots for them."""

    def __init__(self, kernel: Any, gradient: Any, weights: np.ndarray, stride: int = 1) -> None:
        biases = np.zeros(len(weights), np.float32)
        source = mg.ConvolutionDataSource.from_arrays(weights.astype(np.float32), biases, stride=(stride, stride))
        self.forward, self.gradient = kernel(source), gradient(source)
        self.parameters = mg.ConvolutionWeightsAndBiasesState.from_arrays(source.weights, biases)
        self.optimizer = mg.OptimizerAdam.with_learning_rate(LEARNING_RATE)
        self.momenta, self.velocities = (
            [mg.Vector(weights.size), mg.Vector(biases.size)] for _ in ("momentum", "velocity")
        )

    def update(self, commands: mg.CommandBuffer, state: Any) -> None:
        """Encodes one step of Adam with the gradients in ``state``."""
        self.optimizer.encode_convolution(
            commands,
            state,
            self.parameters,
            input_momentum_vectors=self.momenta,
            input_velocity_vectors=self.velocities,
            result_state=self.parameters,
        )
        self.forward.reload_weights_and_biases(commands, self.parameters)
        self.gradient.reload_weights_and_biases(commands, self.parameters)


class Network:
    """Doubles the width and the height of pictures with three channels."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self.extract = TrainedKernel(
            mg.Convolution, mg.ConvolutionGradient, 0.2 * generator.standard_normal((HIDDEN, 5, 5, 3))
        )
        self.expand = TrainedKernel(
            mg.ConvolutionTranspose,
            mg.ConvolutionTransposeGradient,
            0.01 * generator.standard_normal((3, 4, 4, HIDDEN)),
            stride=2,
        )
        # Two pixels of the result for each of the source: 4 taps, 1 pixel of padding, as in PyTorch.
        self.expand.forward.padding = mg.ExplicitPadding(1, 1)
        self.neuron, self.neuron_gradient = mg.NeuronReLU(0.1), mg.NeuronGradient(mg.NeuronDescriptor("relu", 0.1))
        self.upsample, self.add = mg.UpsamplingBilinear(scale_factor_x=2, scale_factor_y=2), mg.Add()
        self.loss = mg.Loss(mg.LossDescriptor("mean_squared_error", "mean"))

    def encode(self, commands: mg.CommandBuffer, x: mg.Image) -> tuple[mg.Image, tuple]:
        """The enlarged picture, and what the backward pass needs."""
        raw, extracted = self.extract.forward.encode(commands, x, return_state=True)
        features, rectified = self.neuron.encode(commands, raw, return_state=True)
        details, expanded = self.expand.forward.encode(commands, features, return_state=True)
        y = self.add.encode(commands, self.upsample.encode(commands, x), details)
        return y, (raw, extracted, features, rectified, expanded)

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """One step of training; returns the mean squared error before it."""
        image, labels = mg.Image.from_array(x), mg.LossLabels.from_array(target)
        with mg.CommandBuffer() as commands:
            y, (raw, extracted, features, rectified, expanded) = self.encode(commands, image)
            g = self.loss.encode(commands, y, labels)
            g = self.expand.gradient.encode(commands, g, features, expanded)
            g = self.neuron_gradient.encode(commands, g, raw, rectified)
            self.extract.gradient.encode(commands, g, image, extracted)
            self.expand.update(commands, expanded)
            self.extract.update(commands, extracted)
        return float(np.asarray(labels.loss_image).mean())

    def enlarge(self, x: np.ndarray) -> np.ndarray:
        with mg.CommandBuffer() as commands:
            y, _ = self.encode(commands, mg.Image.from_array(x))
        return np.asarray(y)


def halved(values: np.ndarray) -> np.ndarray:
    """The picture with half as many pixels along both axes, each the mean of four."""
    height, width = values.shape[0] // 2, values.shape[1] // 2
    return values[: 2 * height, : 2 * width].reshape(height, 2, width, 2, 3).mean((1, 3), dtype=np.float32)


def decibels(values: np.ndarray, truth: np.ndarray) -> float:
    """The peak signal-to-noise ratio, for values from 0 to 1."""
    return float(-10 * np.log10(np.mean((np.clip(values, 0, 1) - truth) ** 2)))


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--output", type=Path, default=Path("runs/examples"))
    chosen = parser.parse_args(arguments)
    picture = load_sample_image("china.jpg").astype(np.float32)[:426] / 255
    train, test = picture[:, :230], picture[60:320, 234:394]
    small_train, small_test = halved(train), halved(test)
    network, generator, losses = Network(), np.random.default_rng(1), []
    for _ in track(range(chosen.steps), description="Training", transient=True):
        rows = generator.integers(0, small_train.shape[0] - PATCH, BATCH)
        columns = generator.integers(0, small_train.shape[1] - PATCH, BATCH)
        places = list(zip(rows, columns, strict=True))
        x = np.stack([small_train[r : r + PATCH, c : c + PATCH] for r, c in places])
        y = np.stack([train[2 * r : 2 * (r + PATCH), 2 * c : 2 * (c + PATCH)] for r, c in places])
        losses.append(network.step(x, y))
    with mg.CommandBuffer() as commands:
        bilinear = network.upsample.encode(commands, mg.Image.from_array(small_test[None]))
    plain, learned = np.asarray(bilinear)[0], network.enlarge(small_test[None])[0]
    scores = {"bilinear": decibels(plain, test), "learned": decibels(learned, test)}
    path = chosen.output / "super_resolution.png"
    draw(path, small_test, plain, learned, test, scores)
    table = Table(title="Twice as many pixels")
    table.add_column("")
    table.add_column("PSNR, dB", justify="right")
    table.add_row("bilinear upsampling", f"{scores['bilinear']:.2f}")
    table.add_row(f"after {chosen.steps} steps", f"[bold]{scores['learned']:.2f}[/]")
    console = Console()
    console.print(table)
    console.print(f"on {bilinear.device.identifier}; {path}")
    return {**scores, "first_loss": losses[0], "last_loss": float(np.mean(losses[-10:]))}


def draw(
    path: Path, small: np.ndarray, plain: np.ndarray, learned: np.ndarray, truth: np.ndarray, scores: dict[str, float]
) -> None:
    """The same part of the small picture, of both enlargements and of the truth."""
    figure, axes = plt.subplots(1, 4, figsize=(15, 4), layout="constrained")
    window = (slice(60, 140), slice(20, 120))
    half = tuple(slice(each.start // 2, each.stop // 2) for each in window)
    shown = (
        ("Given", small[half]),
        (f"Bilinear, {scores['bilinear']:.2f} dB", plain[window]),
        (f"Learned, {scores['learned']:.2f} dB", learned[window]),
        ("Truth", truth[window]),
    )
    for each, (title, values) in zip(axes, shown, strict=True):
        each.imshow(np.clip(values, 0, 1), interpolation="nearest")
        each.set_title(title)
        each.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
