"""Filters that run as part of others: the same bits as on their own, with fewer dispatches and less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from residual_network import residual_network

import mpsgrad as mg
from mpsgrad.training.optimizers import OPTIMIZERS
from mpsgrad.training.parameters import TrainedNormalization, TrainedWeights

DESCRIPTOR = mg.LossDescriptor("mean_squared_error", "mean")
CHANNELS = 8
SHAPE = (2, 5, 3, CHANNELS)
SHARP = (mg.NeuronReLUNode, mg.NeuronAbsoluteNode, mg.NeuronReLUNNode)
"""Their derivatives are -1, 0 or 1 with these parameters."""
SMOOTH = (mg.NeuronTanHNode, mg.NeuronSigmoidNode, mg.NeuronELUNode)


class RandomNetwork:
    """``count`` filters on the same channels: normalized neurons, of which some are read twice, exported or wrapped."""

    def __init__(self, seed: int, count: int, neurons: tuple[Any, ...], fuses: bool, trains: bool = True) -> None:
        random = np.random.default_rng(seed)
        device = mg.default_device()
        self.sources: list[Any] = []
        kind = OPTIMIZERS["sgd"]
        images = [mg.ImageNode("x")]
        for _ in range(count):
            image = images[-1] if random.random() < 0.7 else images[int(random.integers(len(images)))]
            shape = (CHANNELS, 1, 1, CHANNELS)
            weights = {"weights": random.standard_normal(shape).astype(np.float32)}
            descriptor = mg.ConvolutionDescriptor(1, 1, CHANNELS, CHANNELS)
            self.sources.append(TrainedWeights(kind, descriptor, weights, device))
            arrays = {name: random.uniform(0.5, 1.5, CHANNELS).astype(np.float32) for name in ("gamma", "beta", "mean")}
            arrays |= {"beta": arrays["beta"] - 1, "variance": np.ones(CHANNELS, np.float32)}
            self.sources.append(TrainedNormalization(kind, 1e-5, arrays, device))
            convolution = mg.ConvolutionNode(image, self.sources[-2])
            normalization = mg.BatchNormalizationNode(convolution.result_image, self.sources[-1])
            neuron = neurons[int(random.integers(len(neurons)))](normalization.result_image)
            made = neuron.result_image
            case = int(random.integers(8))
            if case == 0:
                made = mg.AdditionNode(made, normalization.result_image).result_image
            elif case == 1:
                normalization.result_image.export_from_graph = True
            elif case == 2:
                made = mg.AdditionNode(made, images[-1]).result_image
            elif case == 3:
                neuron.result_image.export_from_graph = True
            images.append(made)
        result: Any = images[-1]
        if trains:
            result = mg.LossNode(result, descriptor=DESCRIPTOR).training_graph()
        self.graph = mg.Graph(result, fuses_filters=fuses)

    def run(self, x: np.ndarray, targets: np.ndarray | None) -> list[np.ndarray]:
        """All that two encodes give, the second one of what the first one has made of the parameters."""
        found: list[np.ndarray] = []
        for _ in range(2):
            labels = [] if targets is None else [mg.LossLabels.from_array(targets)]
            exported: list[Any] = []
            with mg.CommandBuffer() as commands:
                result = self.graph.encode(commands, [mg.Image.from_array(x)], labels, intermediate_images=exported)
            assert result is not None
            found += [np.array(result), *map(np.array, exported), *(np.array(each.loss_image) for each in labels)]
        for source in self.sources:
            found += [np.array(array) for _, array in sorted(source.arrays().items())]
        return found

    @property
    def fused(self) -> int:
        assert self.graph.last_plan is not None
        return sum(len(step.fused) for step in self.graph.last_plan.steps)


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.booleans())
def test_fused_filters_compute_the_same_bits(seed: int, count: int, trains: bool) -> None:
    random = np.random.default_rng(seed)
    x, targets = (random.standard_normal(SHAPE).astype(np.float32) for _ in range(2))
    both = [RandomNetwork(seed, count, SHARP, fuses, trains) for fuses in (False, True)]
    separate, fused = (each.run(x, targets if trains else None) for each in both)
    for expected, found in zip(separate, fused, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert both[0].fused == 0
    reports = [each.graph.memory_report() for each in both]
    assert reports[1].largest_live_bytes <= reports[0].largest_live_bytes
    assert len(reports[0].lifetimes) >= len(reports[1].lifetimes) + both[1].fused


@settings(max_examples=8)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_smooth_neurons_are_equal_within_rounding(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    x, targets = (random.standard_normal(SHAPE).astype(np.float32) for _ in range(2))
    separate, fused = (RandomNetwork(seed, count, SMOOTH, fuses).run(x, targets) for fuses in (False, True))
    for expected, found in zip(separate, fused, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def dispatches(graph: mg.Graph, x: np.ndarray, labels: np.ndarray) -> int:
    commands = mg.CommandBuffer()
    graph.encode(commands, [mg.Image.from_array(x)], [mg.LossLabels.from_array(labels)])
    return len(commands._dispatches)


def test_a_residual_network_has_fewer_dispatches_and_needs_less_memory() -> None:
    x = np.zeros((2, 32, 32, 3), np.float32)
    labels = np.eye(10, dtype=np.float32)[[1, 2]].reshape(2, 1, 1, 10)
    graphs = [
        mg.Graph(
            residual_network(width=8, classes=10).training_graph(), results_are_needed=False, fuses_filters=fuses
        )
        for fuses in (False, True)
    ]
    counts = [dispatches(graph, x, labels) for graph in graphs]
    neurons_behind_normalization, additions = 9, 8
    # A gradient of an addition is two filters, each of which only passes the image on. On CPUs the sums of a fused
    # gradient take a dispatch more, for the coefficients of z.
    assert counts[0] - counts[1] >= neurons_behind_normalization + 2 * additions
    plan = graphs[1].last_plan
    assert plan is not None
    assert sum(len(step.fused) for step in plan.steps) == 2 * neurons_behind_normalization
    separate, fused = (graph.memory_report() for graph in graphs)
    assert fused.bytes_without_reuse < separate.bytes_without_reuse
    assert fused.planned_bytes < 0.9 * separate.planned_bytes


def nodes(wraps: str) -> mg.LossNode:
    parameters = mg.BatchNormalizationDataSource.from_arrays(number_of_feature_channels=CHANNELS)
    convolved = mg.ConvolutionNode(
        mg.ImageNode("x"), mg.ConvolutionDataSource.from_arrays(np.ones((CHANNELS, 1, 1, CHANNELS), np.float32))
    )
    normalization = mg.BatchNormalizationNode(convolved.result_image, parameters)
    neuron = mg.NeuronReLUNode(normalization.result_image)
    last = neuron.result_image
    if wraps == "result read twice":
        last = mg.AdditionNode(last, normalization.result_image).result_image
    elif wraps == "exported image":
        normalization.result_image.export_from_graph = True
    elif wraps == "allocator":
        normalization.result_image.image_allocator = mg.Image.default_allocator()
    elif wraps == "exported state" and normalization.result_state is not None:
        normalization.result_state.export_from_graph = True
    elif wraps == "stopped gradient":
        normalization.result_image.stop_gradient = True
    elif wraps == "neuron of its own":
        normalization.fused_neuron_descriptor = mg.NeuronDescriptor(mg.NeuronType.TANH)
    elif wraps == "padding of its own":
        neuron.padding_policy = mg.ExplicitPadding(0, 0)
    return mg.LossNode(last, descriptor=DESCRIPTOR)


@pytest.mark.parametrize(
    ("wraps", "expected"),
    [
        ("nothing", 2),
        ("result read twice", 0),
        ("exported image", 0),
        ("allocator", 0),
        ("exported state", 0),
        ("stopped gradient", 1),
        ("neuron of its own", 0),
        ("padding of its own", 0),
        ("exported gradient", 0),
        ("gradient read twice", 0),
    ],
)
def test_what_somebody_else_needs_is_not_fused(wraps: str, expected: int) -> None:
    made: list[mg.FilterNode] = []
    results = nodes(wraps).training_graph(node_handler=lambda gradient, *others: made.append(gradient))
    needed = [False] * len(results)
    if wraps in ("exported gradient", "gradient read twice"):
        (between,) = (each.result_image for each in made if isinstance(each, mg.NeuronGradientNode))
        between.export_from_graph = wraps == "exported gradient"
        if wraps == "gradient read twice":
            results, needed = [*results, mg.NeuronAbsoluteNode(between)], [*needed, True]
    graph = mg.Graph(results, results_are_needed=needed)
    plan = graph.plan([mg.ImageDescriptor(width=3, height=3, feature_channels=CHANNELS)])
    assert sum(len(step.fused) for step in plan.steps) == expected
    assert len(plan.steps) + expected == len(graph.filters)


def test_a_profile_names_all_filters_of_a_kernel() -> None:
    graph = mg.Graph(nodes("nothing").training_graph(), results_are_needed=False)
    x = mg.Image.from_array(np.ones(SHAPE, np.float32))
    labels = mg.LossLabels.from_array(np.zeros(SHAPE, np.float32))
    names = [each.name for each in graph.profile([x], [labels], repeats=1).filters]
    assert "BatchNormalization + NeuronReLU" in names
    assert "BatchNormalization gradient + NeuronReLU gradient" in names
