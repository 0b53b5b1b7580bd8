"""ResNet-18 follows PyTorch's float64 losses, step by step, from the same weights and batches.

How far float32 may stray is measured in float64: a sum of n terms in float32 is the exact one with each term off by a
factor of the order of 1 + sqrt(n) u with u = eps / 2 (Higham and Mary, A New Approach to Probabilistic Rounding Error
Analysis, 2019). So the float64 training is run again with what each layer computes off by
such a factor, forward and backward; what that does to the losses, through all steps, is what float32 may do.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
from bench.training_networks import resnet18
from mpsgrad.training import models
from mpsgrad.training.graph_network import GraphNetwork
from mpsgrad.training.optimizers import MOMENTUM, OPTIMIZERS

STEPS = 20
RATE = 0.01
SINGLE = float(np.finfo(np.float32).eps)
DRAWS = 2
MARGIN = 4.0
"""Over the largest of so many draws: rounding is bounded by four times its standard deviation almost surely."""


class Float64:
    """The network of ``models.resnet18`` in PyTorch; ``seed`` is that of the factors, None for none."""

    def __init__(self, torch: Any, parameters: dict[str, np.ndarray], seed: int | None) -> None:
        self.torch = torch
        self.network = resnet18(parameters).double()
        self.descent = torch.optim.SGD(self.network.parameters(), lr=RATE, momentum=MOMENTUM)
        if seed is not None:
            self.generator = torch.Generator().manual_seed(seed)
            for layer in self.network.modules():
                if isinstance(layer, (torch.nn.Conv2d, torch.nn.BatchNorm2d, torch.nn.Linear)):
                    layer.register_forward_hook(self._rounded)

    def _rounded(self, layer: Any, _: Any, result: Any) -> Any:
        """Forward the result and backward its gradient, off by factors of at most 1 + sqrt(terms) eps / 2."""
        is_normalization = isinstance(layer, self.torch.nn.BatchNorm2d)
        terms = result.numel() // result.shape[1] if is_normalization else layer.weight[0].numel()

        def off(values: Any) -> Any:
            signs = 2 * self.torch.rand(values.shape, generator=self.generator, dtype=self.torch.float64) - 1
            return values * (1 + 0.5 * terms**0.5 * SINGLE * signs)

        made = result + (off(result) - result).detach()
        made.register_hook(off)
        return made

    def step(self, pictures: np.ndarray, classes: np.ndarray) -> float:
        """The loss of the batch before the step."""
        scores = self.network(self.torch.tensor(pictures.transpose(0, 3, 1, 2).astype(np.float64)))
        loss = self.torch.nn.functional.cross_entropy(scores, self.torch.tensor(classes))
        self.descent.zero_grad()
        loss.backward()
        self.descent.step()
        return float(loss.detach())


def follow(width: int, size: int, batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The losses in float64, how far float32 may lie from them, and the losses of the graph."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(1)
    network = GraphNetwork(
        "resnet18",
        partial(models.resnet18, width=width),
        shape=(size, size, 3),
        classes=10,
        batch_size=batch,
        optimizer=OPTIMIZERS["sgd"],
        seed=0,
        device=mg.default_device(),
    )
    parameters = network.parameters()
    pairs = [(random.random((batch, size, size, 3), np.float32), random.integers(0, 10, batch)) for _ in range(2)]
    batches = pairs * (STEPS // 2)
    one_hot = np.eye(10, dtype=np.float32)
    found = [network.train_step(x, one_hot[t].reshape(batch, 1, 1, 10), RATE) for x, t in batches]

    def losses(seed: int | None) -> np.ndarray:
        float64 = Float64(torch, parameters, seed)
        return np.array([float64.step(*each) for each in batches])

    threads = torch.get_num_threads()
    # Layers are so small that threads would wait for each other most of the time.
    torch.set_num_threads(1)
    exact = losses(None)
    strays = np.max([np.abs(losses(seed) - exact) for seed in range(DRAWS)], axis=0)
    torch.set_num_threads(threads)
    return exact, MARGIN * np.maximum.accumulate(strays) + 8 * SINGLE * exact, np.array(found)


def require(width: int, size: int, batch: int) -> None:
    exact, bound, found = follow(width, size, batch)
    assert exact[-1] < 0.5 * exact[0], "nothing is learnt"
    assert bound.max() < 0.05 * exact[0], "the bound says nothing"
    np.testing.assert_array_less(np.abs(found - exact), bound)


def test_a_narrow_residual_network_follows_float64() -> None:
    require(width=4, size=16, batch=8)


@pytest.mark.nightly
def test_the_whole_residual_network_follows_float64() -> None:
    require(width=64, size=32, batch=4)
