"""Graphs for inference that are derived from training graphs, and where dropout stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpsgrad as mg

RANDOM = np.random.default_rng(11)
DESCRIPTOR = mg.LossDescriptor("softmax_cross_entropy")


def values(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


class Trained(mg.ConvolutionDataSource):
    """Weights that a step of gradient descent on the device updates; ``load`` reads them back."""

    def __init__(self, weights: np.ndarray) -> None:
        self._arrays = weights, np.zeros(len(weights), np.float32)
        outputs, height, width, inputs = weights.shape
        self._descriptor = mg.ConvolutionDescriptor(width, height, inputs, outputs)
        self._updated: mg.ConvolutionWeightsAndBiasesState | None = None

    descriptor = property(lambda self: self._descriptor)
    weights = property(lambda self: self._arrays[0])
    bias_terms = property(lambda self: self._arrays[1])

    def load(self) -> bool:
        if self._updated is not None:
            assert self._updated.biases is not None
            self._arrays = self._updated.weights, self._updated.biases
        return True

    def update_with_command_buffer(self, commands: Any, gradient_state: Any, source_state: Any) -> Any:
        self._updated = mg.ConvolutionWeightsAndBiasesState.with_descriptor(self._descriptor)
        descent = mg.OptimizerStochasticGradientDescent.with_learning_rate(0.5)
        descent.encode_convolution(commands, gradient_state, source_state, result_state=self._updated)
        return self._updated


class Network:
    """A convolution, batch normalization and two dropouts with a loss, and the training graph."""

    def __init__(self) -> None:
        self.pictures = mg.ImageNode("pictures")
        self.source = Trained(0.3 * values(6, 3, 3, 2))
        self.statistics = values(6), np.abs(values(6)) + 1
        normalization = mg.BatchNormalizationDataSource.from_arrays(
            values(6), values(6), *self.statistics, epsilon=1e-3
        )
        convolution = mg.ConvolutionNode(self.pictures, self.source, label="first")
        first = mg.DropoutNode(convolution.result_image, keep_probability=0.5, seed=3)
        self.normalized = mg.BatchNormalizationNode(first.result_image, normalization)
        assert self.normalized.result_state is not None
        self.normalized.result_state.export_from_graph = True
        relu = mg.NeuronReLUNode(self.normalized.result_image)
        self.scores = mg.DropoutNode(relu.result_image, keep_probability=0.8).result_image
        self.loss = mg.LossNode(self.scores, descriptor=DESCRIPTOR)
        self.training = mg.Graph(self.loss.training_graph(), results_are_needed=False)

    def step(self, pictures: np.ndarray) -> np.ndarray:
        labels = mg.LossLabels.from_array(np.ones((*pictures.shape[:3], 6), np.float32))
        with mg.CommandBuffer() as commands:
            self.training.encode(commands, [mg.Image.from_array(pictures)], [labels])
        return np.array(labels.loss_image)

    def expected(self, pictures: np.ndarray) -> np.ndarray:
        """The scores by kernels, of the weights that the data source gives."""
        node, relu = mg.BatchNormalization(self.normalized.data_source), mg.NeuronReLU()
        with mg.CommandBuffer() as commands:
            image = mg.Convolution(self.source).encode(commands, mg.Image.from_array(pictures))
            image = relu.encode(commands, node.encode(commands, image))
        return np.array(image)


def infer(graph: mg.Graph, pictures: np.ndarray) -> np.ndarray:
    with mg.CommandBuffer() as commands:
        result = graph.encode(commands, [mg.Image.from_array(pictures)])
    return np.array(result)


def test_a_graph_for_inference_has_the_parameters_that_training_has_made() -> None:
    network, pictures = Network(), values(3, 5, 5, 2)
    inference = network.training.inference_graph(label="evaluation")
    assert [type(node).__name__ for node in inference.filters] == [
        "ConvolutionNode", "BatchNormalizationNode", "NeuronReLUNode",
    ]  # fmt: skip
    assert inference.source_images == (network.pictures,) and inference.result_state_handles == []
    assert inference.filters[0].label == "first" and inference.label == "evaluation"
    before = infer(inference, pictures)
    np.testing.assert_array_equal(before, network.expected(pictures))
    network.step(pictures)
    np.testing.assert_array_equal(infer(inference, pictures), before)
    inference.reload_from_data_sources()
    after = infer(inference, pictures)
    assert not np.array_equal(after, before)
    np.testing.assert_array_equal(after, network.expected(pictures))
    # The nodes of the training graph are as they were.
    assert [type(node).__name__ for node in network.training.filters[:4]] == [
        "ConvolutionNode", "DropoutNode", "BatchNormalizationNode", "NeuronReLUNode",
    ]  # fmt: skip


def test_results_may_be_built_on_the_nodes_of_training() -> None:
    network, pictures = Network(), values(3, 5, 5, 2)
    soft_max = mg.SoftMaxNode(network.scores)
    classes = mg.ReductionFeatureChannelsArgumentMaxNode(soft_max.result_image)
    inference = network.training.inference_graph([soft_max, classes.result_image])
    made: list[mg.Image] = []
    with mg.CommandBuffer() as commands:
        result = inference.encode(commands, [mg.Image.from_array(pictures)], intermediate_images=made)
    scores = network.expected(pictures)
    exponentials = np.exp(scores - scores.max(3, keepdims=True))
    np.testing.assert_allclose(np.asarray(result), exponentials / exponentials.sum(3, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(made[0])[..., 0], scores.argmax(3))


def test_a_transposed_convolution_keeps_the_state_that_sizes_it() -> None:
    down_weights = mg.ConvolutionDataSource.from_arrays(values(4, 2, 2, 3), stride=(2, 2))
    up_weights = mg.ConvolutionDataSource.from_arrays(values(3, 2, 2, 4), stride=(2, 2))
    down = mg.ConvolutionNode(mg.ImageNode("x"), down_weights)
    up = mg.ConvolutionTransposeNode(
        down.result_image, up_weights, convolution_gradient_state=down.convolution_gradient_state
    )
    pictures = values(2, 5, 7, 3)
    inference = mg.Graph(up).inference_graph(up)
    assert len(inference.filters) == 2 and inference.filters[0] is not down
    np.testing.assert_array_equal(infer(inference, pictures), infer(mg.Graph(up), pictures))
    assert infer(inference, pictures).shape == (2, 5, 7, 3)


def test_what_cannot_infer_is_refused() -> None:
    network = Network()
    with pytest.raises(mg.StateError, match="inference_graph without results of a graph that has no loss"):
        mg.Graph(network.normalized).inference_graph()
    with pytest.raises(mg.StateError, match="a result depends on <.*GradientNode"):
        network.training.inference_graph(network.loss.training_graph())
    with pytest.raises(mg.FormatError, match=r"results\[0\] is int"):
        network.training.inference_graph([3])  # type: ignore[list-item]
    with pytest.raises(mg.StateError, match="is produced by no filter: nothing computes it"):
        network.training.inference_graph(mg.DropoutNode(network.pictures))


def test_dropout_goes_on_where_another_graph_stood() -> None:
    network, pictures = Network(), values(3, 5, 5, 2)
    assert network.training.drawn_images == (0, 0)
    network.training.drawn_images = (3, 6)
    first = network.step(pictures)
    assert network.training.drawn_images == (6, 9)
    second = network.step(pictures)
    network.training.drawn_images = [6, 9]
    assert not np.array_equal(first, second)
    network.source._updated = None
    network.training.reload_from_data_sources()
    network.training.drawn_images = (3, 6)
    np.testing.assert_array_equal(network.step(pictures), first)
    with pytest.raises(mg.FormatError, match="drawn_images is .1,.; it has to be 2 integers"):
        network.training.drawn_images = (1,)
    with pytest.raises(mg.GeometryError, match="drawn_images is -1"):
        network.training.drawn_images = (0, -1)
    assert network.training.drawn_images == (6, 9)
