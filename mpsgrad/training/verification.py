"""Each gradient kernel of a training step against the float64 reference, on the step's own activations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpsgrad import reference
from mpsgrad.accuracy import error_bound
from mpsgrad.command import CommandBuffer
from mpsgrad.graph import (
    BatchNormalizationNode,
    ConvolutionNode,
    FilterNode,
    FullyConnectedNode,
    Graph,
    ImageNode,
    LossNode,
    NeuronReLUNode,
    PoolingMaxNode,
    StateNode,
    TrainingStyle,
)
from mpsgrad.graph.trainable import TrainableGradientNode
from mpsgrad.kernels.loss_descriptor import LossDescriptor
from mpsgrad.training.graph_network import GraphNetwork
from mpsgrad.training.report import Verification

_FUNCTION_ULPS = 8.0


@dataclass(frozen=True)
class _Step:
    """What the filter ``node`` and its gradient did: x, g, dx, and their state."""

    node: Any
    source: np.ndarray
    source_gradient: np.ndarray
    destination_gradient: np.ndarray
    state: Any

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """x, g and dx."""
        return self.source, self.source_gradient, self.destination_gradient


def verify(network: GraphNetwork, pictures: np.ndarray, labels: np.ndarray) -> list[Verification]:
    """The errors of all gradient kernels in a step that updates nothing, the worst for each kernel and quantity.

    The filters are those of ``models.digits``, and each runs by itself. Every quantity is compared with the reference's
    result from the same float32 inputs; the tolerance is ``error_bound`` for the length of its longest sum.
    """
    weight = 1.0 / len(pictures)
    loss = LossNode(network.scores, descriptor=LossDescriptor("softmax_cross_entropy", "sum", weight=weight))
    made: list[tuple[FilterNode, FilterNode, ImageNode, ImageNode]] = []

    def export(*given: ImageNode | StateNode) -> None:
        for each in given:
            each.export_from_graph, each.handle = True, id(each)

    def note(node: FilterNode, forward: FilterNode | None, source: ImageNode, gradient: ImageNode) -> None:
        assert forward is not None and forward.result_state is not None
        if isinstance(node, TrainableGradientNode):
            node.training_style = TrainingStyle.UPDATE_DEVICE_NONE
        export(source, gradient, node.result_image, forward.result_state)
        made.append((node, forward, source, gradient))

    export(network.scores)
    graph = Graph(loss.training_graph(node_handler=note), device=network.device, fuses_filters=False)
    image, targets = network.batch(pictures, labels)
    images: list[Any] = []
    states: list[Any] = []
    with CommandBuffer(network.device, label="verification") as commands:
        last = graph.encode(commands, [image], [targets], intermediate_images=images, destination_states=states)
    handles = [graph.result_handle, *graph.intermediate_image_handles, *graph.source_image_handles]
    arrays = {handle: np.array(each) for handle, each in zip(handles, [last, *images, image], strict=True)}
    state_of = dict(zip(graph.result_state_handles, states, strict=True))
    rows = [_loss(arrays[id(network.scores)], labels, arrays[id(loss.result_image)])]
    for node, forward, source, gradient in made:
        x, g, dx = (arrays[id(each)] for each in (source, gradient, node.result_image))
        rows += _VERIFIERS[type(forward)](_Step(forward, x, g, dx, state_of[id(forward.result_state)]))
    worst: dict[tuple[str, str], Verification] = {}
    for row in rows:
        key = (row.kernel, row.quantity)
        if key not in worst or row.largest_error / row.tolerance > worst[key].largest_error / worst[key].tolerance:
            worst[key] = row
    return list(worst.values())


def _compare(kernel: str, quantity: str, actual: Any, expected: Any, terms: int, magnitude: Any) -> Verification:
    """The element whose error is the largest part of its bound."""
    actual = np.asarray(actual)
    bound = np.broadcast_to(
        error_bound(actual.dtype, terms, magnitude, expected, function_ulps=_FUNCTION_ULPS), actual.shape
    )
    error = np.abs(actual.astype(np.float64) - expected)
    error = np.where(np.isfinite(error), error, np.inf)
    index = np.unravel_index(int(np.argmax(error / bound)), error.shape)
    return Verification(kernel, quantity, float(error[index]), float(bound[index]))


def _loss(prediction: np.ndarray, labels: np.ndarray, gradient: np.ndarray) -> Verification:
    weight = 1.0 / len(prediction)
    exact = reference.loss_gradient(prediction, labels, "softmax_cross_entropy", weight=weight)
    classes = prediction.shape[-1]
    return _compare("Loss", "prediction", gradient, exact, classes, weight * (reference.soft_max(prediction) + labels))


def _relu(step: _Step) -> Iterator[Verification]:
    x, g, dx = step.arrays
    yield _compare("NeuronGradient (ReLU)", "source", dx, reference.neuron_gradient(g, x, "relu"), 1, np.abs(g))


def _pooling(step: _Step) -> Iterator[Verification]:
    x, g, dx = step.arrays
    kernel = step.state.snapshot
    window: dict[str, Any] = {
        "kernel": (kernel.kernel_height, kernel.kernel_width),
        "stride": (kernel.stride_in_pixels_y, kernel.stride_in_pixels_x),
        "offset": (kernel.offset.y, kernel.offset.x),
        "size": g.shape[1:3],
    }
    exact = reference.pooling_max_gradient(g, x, **window)
    magnitude = reference.pooling_max_gradient(np.abs(g), x, **window)
    yield _compare("PoolingMaxGradient", "source", dx, exact, kernel.kernel_width * kernel.kernel_height, magnitude)


def _weighted(step: _Step) -> Iterator[Verification]:
    x, g, dx = step.arrays
    name = f"{step.node.kernel_class.__name__}Gradient"
    state = step.state
    weights = step.node.data_source.weights
    offset = state.snapshot.offset
    window: dict[str, Any] = {"offset": (offset.y, offset.x)}
    outputs, height, width, _ = weights.shape
    kernel = (height, width)
    data = {"source_size": x.shape[1:3], **window}
    yield _compare(
        name,
        "source",
        dx,
        reference.convolution_gradient_data(g, weights, **data),
        outputs * height * width,
        reference.convolution_gradient_data(np.abs(g), np.abs(weights), **data),
    )
    sums = g.shape[0] * g.shape[1] * g.shape[2]
    yield _compare(
        name,
        "weights",
        state.gradient_for_weights,
        reference.convolution_gradient_weights(g, x, kernel=kernel, **window),
        sums,
        reference.convolution_gradient_weights(np.abs(g), np.abs(x), kernel=kernel, **window),
    )
    yield _compare(
        name,
        "biases",
        state.gradient_for_biases,
        reference.convolution_gradient_biases(g),
        sums,
        reference.convolution_gradient_biases(np.abs(g)),
    )


def _normalization(step: _Step) -> Iterator[Verification]:
    x, g, dx = step.arrays
    state, epsilon = step.state, step.node.data_source.epsilon
    mean, variance = np.asarray(state.mean, np.float64), np.asarray(state.variance, np.float64)
    exact, exact_gamma, exact_beta = reference.batch_normalization_gradient(
        g, x, mean, variance, state.gamma, state.beta, epsilon
    )
    count = x.shape[0] * x.shape[1] * x.shape[2]
    inverse = 1.0 / np.sqrt(variance + epsilon)
    # x - mean is formed in float32, so its error is relative to the larger of the two and not to the difference.
    normalized = (np.abs(x) + np.abs(mean)) * inverse
    beta_magnitude = np.abs(g).sum((0, 1, 2), dtype=np.float64)
    gamma_magnitude = (np.abs(g) * normalized).sum((0, 1, 2))
    magnitude = np.abs(state.gamma) * inverse * (np.abs(g) + (beta_magnitude + normalized * gamma_magnitude) / count)
    statistics = "BatchNormalizationStatisticsGradient"
    yield _compare(statistics, "gamma", state.gradient_for_gamma, exact_gamma, count, gamma_magnitude)
    yield _compare(statistics, "beta", state.gradient_for_beta, exact_beta, count, beta_magnitude)
    yield _compare("BatchNormalizationGradient", "source", dx, exact, count, magnitude)


_VERIFIERS: dict[type[FilterNode], Any] = {
    NeuronReLUNode: _relu,
    PoolingMaxNode: _pooling,
    ConvolutionNode: _weighted,
    FullyConnectedNode: _weighted,
    BatchNormalizationNode: _normalization,
}
