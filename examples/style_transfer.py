"""Style transfer's Gram-matrix loss on photographs: a temple painted with the colours and textures of a flower.

    python examples/style_transfer.py --steps 200 --output runs/examples

The features are those of fixed random convolutions at three scales, which is enough for colours and textures. The loss
is the squared distance of the features' Gram matrices from the style's; its gradient goes through the Gram matrix, the
neuron, the convolution and the pooling back to the picture, which Adam then changes. Pictures are scikit-learn's. Needs
``pip install 'mpsgrad[train]'``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_sample_image

import mpsgrad as mg

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

FEATURES = 32
LEARNING_RATE = 0.015
CONTENT_WEIGHT = 1e-3


@dataclass
class Level:
    """Features of the picture at one scale, and the Gram matrix that the style has there."""

    shrink: mg.PoolingAverage | None
    shrink_gradient: mg.PoolingAverageGradient | None
    convolution: mg.Convolution
    convolution_gradient: mg.ConvolutionGradient
    target: mg.LossLabels | None = None


class StyleLoss:
    """``sum over levels of (G(features) - G(style))^2`` with its gradient for the picture."""

    def __init__(self, style: mg.Image, scales: tuple[int, ...] = (1, 2, 4)) -> None:
        generator = np.random.default_rng(0)
        self.neuron, self.neuron_gradient = mg.NeuronReLU(), mg.NeuronGradient(mg.NeuronDescriptor("relu"))
        self.loss = mg.Loss(mg.LossDescriptor("mean_squared_error", "sum"))
        self.add = mg.Add()
        self.levels = []
        for scale in scales:
            window = {"kernel_width": scale, "kernel_height": scale}
            window |= {"stride_in_pixels_x": scale, "stride_in_pixels_y": scale}
            weights = generator.standard_normal((FEATURES, 5, 5, 3))
            # Half of the filters see edges and textures, the others colours as well.
            weights[::2] -= weights[::2].mean((1, 2), keepdims=True)
            source = mg.ConvolutionDataSource.from_arrays((weights / 5).astype(np.float32))
            self.levels.append(
                Level(
                    mg.PoolingAverage(**window) if scale > 1 else None,
                    mg.PoolingAverageGradient(**window) if scale > 1 else None,
                    mg.Convolution(source),
                    mg.ConvolutionGradient(source),
                )
            )
        with mg.CommandBuffer() as commands:
            grams = [self._forward(commands, level, style)[0] for level in self.levels]
        for level, gram in zip(self.levels, grams, strict=True):
            level.target = mg.LossLabels.from_images(gram)

    def _forward(self, commands: mg.CommandBuffer, level: Level, picture: mg.Image) -> tuple:
        """The Gram matrix at ``level``, and what the backward pass needs."""
        small, pooled = picture, None
        if level.shrink is not None:
            small, pooled = level.shrink.encode(commands, picture, return_state=True)
        raw, convolved = level.convolution.encode(commands, small, return_state=True)
        features, rectified = self.neuron.encode(commands, raw, return_state=True)
        gram = mg.GramMatrixCalculation(1 / (features.width * features.height))
        matrix, correlated = gram.encode(commands, features, return_state=True)
        return matrix, (small, pooled, raw, convolved, features, rectified, correlated)

    def gradient(self, commands: mg.CommandBuffer, picture: mg.Image) -> mg.Image:
        """Encodes the loss and its gradient for ``picture``, which is returned."""
        total = None
        for level in self.levels:
            matrix, (small, pooled, raw, convolved, features, rectified, correlated) = self._forward(
                commands, level, picture
            )
            g = self.loss.encode(commands, matrix, level.target)
            g = mg.GramMatrixCalculationGradient().encode(commands, g, features, correlated)
            g = self.neuron_gradient.encode(commands, g, raw, rectified)
            g = level.convolution_gradient.encode(commands, g, small, convolved)
            if level.shrink_gradient is not None:
                g = level.shrink_gradient.encode(commands, g, picture, pooled)
            total = g if total is None else self.add.encode(commands, total, g)
        assert total is not None
        return total

    @property
    def value(self) -> float:
        """The loss of the last encode that has completed."""
        return sum(float(np.asarray(level.target.loss_image).sum()) for level in self.levels if level.target)


def photograph(name: str, size: int) -> np.ndarray:
    """A photograph of scikit-learn, ``size`` pixels high and one and a half times as wide, in -0.5 to 0.5."""
    values = load_sample_image(name).astype(np.float32) / 255 - 0.5
    step = values.shape[0] // size
    values = values[: step * size, : step * size * 3 // 2]
    return values.reshape(1, size, step, size * 3 // 2, step, 3).mean((2, 4), dtype=np.float32)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--size", type=int, default=106, help="height of the pictures in pixels")
    parser.add_argument("--output", type=Path, default=Path("runs/examples"))
    chosen = parser.parse_args(arguments)
    size = chosen.size // 4 * 4
    content, style = photograph("china.jpg", size), photograph("flower.jpg", size)
    loss = StyleLoss(mg.Image.from_array(style))
    picture, wanted = mg.Image.from_array(content), mg.Image.from_array(content)
    difference, weighted = mg.Subtract(), mg.Add()
    weighted.secondary_scale = CONTENT_WEIGHT
    optimizer = mg.OptimizerAdam.with_learning_rate(LEARNING_RATE)
    values = mg.Vector.of_buffer(picture.buffer, content.size)
    momentum, velocity = mg.Vector(content.size), mg.Vector(content.size)
    losses = []
    for _ in track(range(chosen.steps), description="Painting", transient=True):
        with mg.CommandBuffer() as commands:
            gradient = loss.gradient(commands, picture)
            kept = difference.encode(commands, picture, wanted)
            gradient = weighted.encode(commands, gradient, kept)
            optimizer.encode(
                commands,
                input_gradient_vector=mg.Vector.of_buffer(gradient.buffer, content.size),
                input_values_vector=values,
                input_momentum_vector=momentum,
                input_velocity_vector=velocity,
                result_values_vector=values,
            )
        losses.append(loss.value)
    path = chosen.output / "style_transfer.png"
    draw(path, content[0], style[0], np.asarray(picture)[0], losses)
    table = Table(title="Style by Gram matrices", show_header=False)
    table.add_row("device", picture.device.identifier)
    table.add_row("picture", f"{content.shape[2]} x {content.shape[1]} pixels, {len(loss.levels)} scales")
    table.add_row("style loss", f"{losses[0]:.3f} at first, [bold]{losses[-1]:.3f}[/] after {len(losses)} steps")
    table.add_row("picture", str(path))
    Console().print(table)
    return {"first_loss": losses[0], "last_loss": losses[-1]}


def draw(path: Path, content: np.ndarray, style: np.ndarray, result: np.ndarray, losses: list[float]) -> None:
    """Content, style, result and the course of the loss."""
    figure, axes = plt.subplots(1, 4, figsize=(15, 3), layout="constrained", width_ratios=[3, 3, 3, 2.4])
    for each, title, values in zip(axes, ("Content", "Style", "Result"), (content, style, result), strict=False):
        each.imshow(np.clip(values + 0.5, 0, 1))
        each.set_title(title)
        each.set_axis_off()
    axes[3].semilogy(losses, color="#20558a")
    axes[3].set(xlabel="step", title="Style loss")
    axes[3].spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
