"""The training loop: epochs over shuffled batches, evaluation, progress on the screen, and the files at the end."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from rich.console import Console

from mpsgrad.devices import Device
from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernels.optimizer import OptimizerDescriptor, OptimizerStochasticGradientDescent
from mpsgrad.training import digits
from mpsgrad.training.network import Network, TrainingStep
from mpsgrad.training.report import (
    Epoch,
    Verification,
    can_plot,
    epoch_table,
    progress_bar,
    verification_table,
    write_loss_plot,
    write_metrics,
    write_weights,
)
from mpsgrad.training.verification import verify

LEARNING_RATE = 0.05
MOMENTUM = 0.9


def train_digits(
    *, epochs: int, batch_size: int, seed: int, device: Device, output: Path, console: Console
) -> list[Verification]:
    """Trains the network on the digits, shows what happens and writes the files to ``output``.

    The learning rate falls from ``LEARNING_RATE`` to 0 along half a cosine. The same seed on the same device gives the
    same weights, bit for bit. Returns the verification of the last step's gradient kernels.
    """
    output.mkdir(parents=True, exist_ok=True)
    plots = can_plot(console)
    data = digits.load()
    generator = np.random.default_rng(seed)
    network = Network.for_digits(generator)
    optimizer = OptimizerStochasticGradientDescent(
        OptimizerDescriptor(learning_rate=LEARNING_RATE), momentum_scale=MOMENTUM
    )
    console.print(f"device: {device.name} ({device.identifier}, {device.driver})")
    count = len(data.train_images)
    console.print(f"{count} pictures to train with, {len(data.test_images)} to test with, seed {seed}")
    batches = ceiling_divide(count, batch_size)
    history: list[Epoch] = []
    step: TrainingStep | None = None
    with progress_bar(console) as progress:
        task = progress.add_task("", total=epochs * batches, epoch=1, loss=float("nan"), rate=0.0)
        for number in range(epochs):
            started = time.perf_counter()
            total = 0.0
            for batch, chosen in enumerate(np.array_split(generator.permutation(count), batches)):
                position = (number + batch / batches) / epochs
                optimizer.learning_rate = 0.5 * LEARNING_RATE * (1.0 + np.cos(np.pi * position))
                step = network.train_step(
                    data.train_images[chosen], digits.one_hot(data.train_classes[chosen]), optimizer
                )
                total += step.loss * len(chosen)
                seconds = time.perf_counter() - started
                progress.update(
                    task,
                    advance=1,
                    epoch=number + 1,
                    loss=step.loss,
                    rate=(batch + 1) * batch_size / seconds,
                )
            seconds = time.perf_counter() - started
            accuracy = _accuracy(network, data.test_images, data.test_classes)
            history.append(Epoch(total / count, accuracy, seconds))
    assert step is not None
    verifications = verify(network.layers, np.array(step.prediction), step.labels, np.array(step.gradient))
    console.print(epoch_table(history))
    console.print(verification_table(verifications))
    rate = epochs * count / sum(epoch.seconds for epoch in history)
    write_metrics(output, history, history[-1].test_accuracy, rate, device.name)
    write_weights(output, network.parameters())
    if plots:
        write_loss_plot(output, history)
    console.print(f"test accuracy {history[-1].test_accuracy:.4f}, {rate:.0f} images/s; files in {output}")
    return verifications


def _accuracy(network: Network, pictures: np.ndarray, classes: np.ndarray) -> float:
    return float((network.probabilities(pictures).argmax(1) == classes).mean())
