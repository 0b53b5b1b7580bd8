"""What a step of ``GraphNetwork`` changes besides weights, and what its checkpoints have to hold."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.training import graph_network, initial
from mpsgrad.training.graph_network import GraphNetwork
from mpsgrad.training.optimizers import OPTIMIZERS
from mpsgrad.training.parameters import taken

RANDOM = np.random.default_rng(6)
PICTURES = (3 * RANDOM.random((8, 4, 4, 3)) - 1).astype(np.float32)
LABELS = np.eye(2, dtype=np.float32)[RANDOM.integers(0, 2, 8)].reshape(8, 1, 1, 2)


def normalized_pictures(pictures: Any, shape: Any, classes: int, generator: Any) -> Any:
    source = mg.BatchNormalizationDataSource.from_arrays(number_of_feature_channels=3, epsilon=1e-3)
    node = mg.BatchNormalizationNode(pictures, source)
    return mg.FullyConnectedNode(node.result_image, initial.weights(generator, classes, shape[:2], shape[2]))


def made_network(**settings: Any) -> GraphNetwork:
    shared = {"shape": (4, 4, 3), "classes": 2, "batch_size": 8, "optimizer": OPTIMIZERS["adam"], "seed": 0}
    return GraphNetwork("normalized", normalized_pictures, device=mg.default_device(), **{**shared, **settings})


def test_running_averages_go_a_tenth_of_the_way_to_those_of_the_batch() -> None:
    network = made_network()
    mean, variance = np.zeros(3), np.ones(3)
    for _ in range(3):
        network.train_step(PICTURES, LABELS, 0.01)
        mean += 0.1 * (PICTURES.mean((0, 1, 2), np.float64) - mean)
        variance += 0.1 * (PICTURES.var((0, 1, 2), np.float64) - variance)
    arrays = network.parameters()
    np.testing.assert_allclose(arrays["batch_normalization_1.mean"], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(arrays["batch_normalization_1.variance"], variance, rtol=1e-5)


def test_parameters_of_a_step_that_was_not_committed_cannot_be_read() -> None:
    network = made_network()
    commands = network.encode_step(*network.batch(PICTURES, LABELS))
    for name, parameter in (
        ("batch_normalization_1", "gamma"),
        ("batch_normalization_1", "mean"),
        ("fully_connected_1", "weights"),
    ):
        with pytest.raises(mg.StateError, match="before its command buffer was committed"):
            getattr(network.trained[name], parameter)
    commands.commit()
    assert (network.parameters()["batch_normalization_1.mean"] != 0).all()


def test_adam_does_not_count_steps_that_were_left_out_nor_do_losses_show_the_scale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graph_network, "LossScale", partial(mg.LossScale, 2.0**24))
    network = made_network(mixed_precision=True)
    losses = [network.train_step(PICTURES, LABELS, 0.01) for _ in range(12)]
    assert losses[0] == pytest.approx(made_network().train_step(PICTURES, LABELS, 0.01), rel=0.01)
    skipped = network.precision_metrics()["skipped_steps"]
    assert 0 < skipped < 12
    assert {trained.optimizer_numbers["time_step"] for trained in network.trained.values()} == {12 - skipped}


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (None, "nothing"),
        (np.zeros((3, 2), np.float32), r"float32 of shape \(3, 2\)"),
        (np.zeros((2, 3), np.float16), r"float16 of shape \(2, 3\)"),
    ],
)
def test_an_array_of_a_checkpoint_that_does_not_fit_the_model_is_named(array: np.ndarray | None, found: str) -> None:
    arrays = {} if array is None else {"first.weights": array}
    with pytest.raises(mg.CheckpointError, match=rf"has {found} for first\.weights; .* float32 of shape \(2, 3\)"):
        taken(arrays, "first.weights", (2, 3))
