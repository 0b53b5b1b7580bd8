"""``training_graph``: the nodes that it makes, and that their gradients are those of PyTorch and of differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpsgrad as mg

RANDOM = np.random.default_rng(2)
MEAN_SQUARED = mg.LossDescriptor("mean_squared_error", "sum")


def values(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def kinds(nodes: Any) -> list[str]:
    return [type(node).__name__.removesuffix("Node") for node in nodes]


def encode(graph: mg.Graph, images: dict[str, np.ndarray], labels: Any = (), **lists: Any) -> Any:
    given_images = [mg.Image.from_array(images[handle]) for handle in graph.source_image_handles]
    with mg.CommandBuffer() as commands:
        return graph.encode(commands, given_images, labels, **lists)


def test_the_result_of_a_loss_node_is_the_first_gradient() -> None:
    x = mg.ImageNode("x")
    relu = mg.NeuronReLUNode(x)
    loss = mg.LossNode(relu.result_image, descriptor=MEAN_SQUARED)
    (last,) = loss.training_graph()
    assert kinds([last]) == ["NeuronGradient"]
    assert last.source_images == (loss.result_image, x)
    assert last.result_image.handle == "x"
    graph = mg.Graph(last)
    a, t = values(2, 3, 3, 4), values(2, 3, 3, 4)
    labels = mg.LossLabels.from_array(t)
    gradient = encode(graph, {"x": a}, [labels])
    np.testing.assert_allclose(np.asarray(gradient), np.where(a > 0, 2 * (np.maximum(a, 0) - t), 0), atol=1e-6)
    np.testing.assert_allclose(
        np.asarray(labels.loss_image).ravel(), ((np.maximum(a, 0) - t) ** 2).sum((1, 2, 3)), 1e-5
    )


def test_two_losses_meet_in_an_addition() -> None:
    x = mg.ImageNode("x")
    trunk = mg.NeuronTanHNode(x)
    heads = [mg.NeuronLinearNode(trunk.result_image, a=factor) for factor in (2.0, -3.0)]
    labels = [mg.ImageNode(name) for name in "ab"]
    losses = [
        mg.ForwardLossNode(head.result_image, label, descriptor=MEAN_SQUARED)
        for head, label in zip(heads, labels, strict=True)
    ]
    total = mg.AdditionNode(losses[0].result_image, losses[1].result_image)
    start = mg.InitialGradientNode(total.result_image)
    calls: list[tuple[Any, Any]] = []
    (last,) = total.training_graph(start.result_image, lambda *nodes: calls.append((nodes[0], nodes[1])))
    assert kinds(forward for _, forward in calls if forward is None) == ["NoneType"]
    additions = [node for node, forward in calls if forward is None]
    assert kinds(additions) == ["Addition"]
    assert last.inference_node is trunk and last.source_images[0] is additions[0].result_image
    assert not any(isinstance(node, mg.LossGradientNode) and node.is_labels_gradient_filter for node, _ in calls)
    arrays = {name: values(2, 3, 3, 2) for name in "xab"}
    result = encode(mg.Graph(last), arrays)
    y = np.tanh(arrays["x"].astype(np.float64))
    expected = (4 * (2 * y - arrays["a"]) - 6 * (-3 * y - arrays["b"])) * (1 - y**2)
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-4)


def test_an_image_that_is_read_twice_by_one_filter_gets_both_gradients() -> None:
    x = mg.ImageNode("x")
    square = mg.MultiplicationNode(x, x)
    (last,) = square.training_graph(mg.InitialGradientNode(square.result_image).result_image)
    assert kinds([last]) == ["Addition"]
    a = values(1, 4, 4, 3)
    np.testing.assert_array_equal(np.asarray(encode(mg.Graph(last), {"x": a})), 2 * a)


def test_gradients_of_additions_are_the_incoming_one() -> None:
    a, b = mg.ImageNode("a"), mg.ImageNode("b")
    first, second = mg.NeuronTanHNode(a), mg.NeuronSigmoidNode(b)
    total = mg.SubtractionNode(mg.AdditionNode(first.result_image, second.result_image).result_image, b)
    loss = mg.LossNode(total.result_image, descriptor=MEAN_SQUARED)
    ends = loss.training_graph()
    arrays, labels = {"a": values(2, 3, 3, 4), "b": values(2, 3, 3, 4)}, [mg.LossLabels.from_array(values(2, 3, 3, 4))]
    found, dispatches, images = [], [], []
    for fuses in (True, False):
        graph = mg.Graph(ends, fuses_filters=fuses)
        made: list[mg.Image | None] = []
        with mg.CommandBuffer() as commands:
            sources = [mg.Image.from_array(arrays[handle]) for handle in graph.source_image_handles]
            made.append(graph.encode(commands, sources, labels, intermediate_images=made))
            dispatches.append(len(commands._dispatches))
        found.append([np.asarray(image) for image in made])
        images.append(len(graph.memory_report().lifetimes))
        assert graph.profile(sources, labels, repeats=1).seconds > 0
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    # Both gradients of the addition, and the primary one of the subtraction.
    assert dispatches[1] - dispatches[0] == images[1] - images[0] == 3


def test_a_stop_gradient_ends_the_pass() -> None:
    x = mg.ImageNode("x")
    first = mg.NeuronTanHNode(x)
    second = mg.NeuronReLUNode(first.result_image)
    first.result_image.stop_gradient = True
    loss = mg.LossNode(second.result_image, descriptor=MEAN_SQUARED)
    ends = loss.training_graph()
    assert [end.inference_node for end in ends if isinstance(end, mg.GradientFilterNode)] == [second]


def test_a_filter_without_gradient_ends_the_pass() -> None:
    x = mg.ImageNode("x")
    largest = mg.ReductionFeatureChannelsArgumentMaxNode(mg.NeuronTanHNode(x).result_image)
    loss = mg.LossNode(mg.NeuronReLUNode(largest.result_image).result_image, descriptor=MEAN_SQUARED)
    assert kinds(loss.training_graph()) == ["NeuronGradient"]
    assert mg.LossNode(x, descriptor=MEAN_SQUARED).training_graph() == []


def test_several_inputs_give_several_ends() -> None:
    x, y = mg.ImageNode("x"), mg.ImageNode("y")
    loss = mg.LossNode(mg.SubtractionNode(x, y).result_image, descriptor=MEAN_SQUARED)
    ends = loss.training_graph()
    assert [end.result_image.handle for end in ends] == ["x", "y"]
    a, b, t = values(1, 2, 2, 3), values(1, 2, 2, 3), values(1, 2, 2, 3)
    made: list[mg.Image] = []
    first = encode(mg.Graph(ends), {"x": a, "y": b}, [mg.LossLabels.from_array(t)], intermediate_images=made)
    np.testing.assert_allclose(np.asarray(first), 2 * (a - b - t), atol=1e-5)
    np.testing.assert_array_equal(np.asarray(made[0]), -np.asarray(first))


def test_the_argument_has_to_be_an_image_node() -> None:
    node = mg.NeuronReLUNode(mg.ImageNode())
    with pytest.raises(mg.FormatError, match="source_gradient is NeuronReLUNode; it has to be an ImageNode; pass its"):
        node.training_graph(node)  # type: ignore[arg-type]


class _Network:
    """A random network of up to ``count`` filters, as nodes and as PyTorch tensors in N, C, H, W order."""

    def __init__(self, torch: Any, seed: int, count: int) -> None:
        self.torch = torch
        self.random = np.random.default_rng(seed)
        self.source = mg.ImageNode("x")
        self.array = self.random.standard_normal((2, 6, 6, 4)).astype(np.float32)
        self.tensor = self._tensor(self.array)
        self.images = [(self.source, self.tensor)]
        self.weights: list[tuple[mg.ConvolutionNode, Any]] = []
        for _ in range(count):
            self._add()
        while len(self.images) > 1:
            self.images[:2] = [self._sum(self.images[0], self.images[1])]
        self.last = self._pooled(self.images[0])

    def _tensor(self, array: np.ndarray) -> Any:
        tensor = self.torch.tensor(array.astype(np.float64).transpose(0, 3, 1, 2))
        return tensor.requires_grad_()

    def _sum(self, one: Any, other: Any) -> Any:
        node = mg.AdditionNode(self._pooled(one)[0], self._pooled(other)[0], primary_scale=0.5)
        return node.result_image, 0.5 * self._pooled(one)[1] + self._pooled(other)[1]

    def _pooled(self, image: Any) -> Any:
        """The image reduced to 1 x 1 pixel and 1 channel, which all have in common."""
        node = mg.ReductionFeatureChannelsMeanNode(mg.ReductionSpatialMeanNode(image[0]).result_image)
        return node.result_image, image[1].mean((1, 2, 3), keepdim=True)

    def _add(self) -> None:
        functional = self.torch.nn.functional
        place = int(self.random.integers(len(self.images)))
        node, tensor = self.images[place]
        kind = self.random.choice(["conv", "tanh", "relu", "pool", "average", "soft_max", "diamond", "concat", "scale"])
        size = tensor.shape[2]
        if kind == "conv":
            weights = (0.3 * self.random.standard_normal((3, 3, 3, tensor.shape[1]))).astype(np.float32)
            made = mg.ConvolutionNode(node, mg.ConvolutionDataSource.from_arrays(weights))
            made.training_style = mg.TrainingStyle.UPDATE_DEVICE_NONE
            kernel = self.torch.tensor(weights.astype(np.float64).transpose(0, 3, 1, 2)).requires_grad_()
            self.weights.append((made, kernel))
            result = functional.conv2d(tensor, kernel, padding=1)
        elif kind == "tanh":
            made, result = mg.NeuronTanHNode(node), self.torch.tanh(tensor)
        elif kind == "relu":
            made, result = mg.NeuronReLUNode(node, a=0.2), functional.leaky_relu(tensor, 0.2)
        elif kind in ("pool", "average") and size % 2 == 0:
            kinds = {
                "pool": (mg.PoolingMaxNode, functional.max_pool2d),
                "average": (mg.PoolingAverageNode, functional.avg_pool2d),
            }
            made, result = kinds[kind][0](node, 2, padding_policy=mg.VALID_ONLY), kinds[kind][1](tensor, 2)
        elif kind == "soft_max":
            made, result = mg.SoftMaxNode(node), self.torch.softmax(tensor, 1)
        elif kind == "concat":
            other = mg.NeuronSigmoidNode(node)
            made = mg.ConcatenationNode([node, other.result_image, node])
            result = self.torch.cat([tensor, self.torch.sigmoid(tensor), tensor], 1)
        elif kind == "diamond":
            left, right = mg.NeuronTanHNode(node), mg.NeuronSigmoidNode(node)
            made = mg.MultiplicationNode(left.result_image, right.result_image)
            result = self.torch.tanh(tensor) * self.torch.sigmoid(tensor)
        else:
            made, result = mg.UpsamplingNearestNode(node), functional.interpolate(tensor, scale_factor=2)
            if size > 12:
                return
        # The image stays for others to read, or makes place for the new one.
        if self.random.random() < 0.6 or len(self.images) > 3:
            self.images[place] = (made.result_image, result)
        else:
            self.images.append((made.result_image, result))


@settings(max_examples=12)
@given(st.integers(0, 2**32 - 1), st.integers(3, 9))
def test_gradients_of_random_graphs_are_those_of_pytorch(seed: int, count: int) -> None:
    torch = pytest.importorskip("torch")
    network = _Network(torch, seed, count)
    image, tensor = network.last
    target = network.random.standard_normal((2, 1, 1, 1)).astype(np.float32)
    ((tensor - torch.tensor(target.astype(np.float64))) ** 2).sum().backward()
    loss = mg.LossNode(image, descriptor=MEAN_SQUARED)
    ends = loss.training_graph()
    for node, _ in network.weights:
        assert node.result_state is not None
        node.result_state.export_from_graph = True
    assert len(ends) == 1
    states: list[Any] = []
    labels = mg.LossLabels.from_array(target)
    gradient = encode(mg.Graph(ends), {"x": network.array}, [labels], destination_states=states)
    expected = network.tensor.grad.numpy().transpose(0, 2, 3, 1)
    largest = max(np.abs(expected).max(), 1e-3)
    np.testing.assert_allclose(np.asarray(gradient), expected, rtol=0, atol=3e-5 * largest)
    used = [pair for pair in network.weights if pair[1].grad is not None]
    assert len(states) == len(used)
    for state in states:
        (kernel,) = [kernel for node, kernel in used if node.data_source is state.convolution.data_source]
        expected = kernel.grad.numpy().transpose(0, 2, 3, 1)
        tolerance = 3e-5 * max(np.abs(expected).max(), 1e-3)
        np.testing.assert_allclose(state.gradient_for_weights, expected, rtol=0, atol=tolerance)


@settings(max_examples=8)
@given(st.integers(0, 2**32 - 1), st.integers(3, 9))
def test_shared_memory_changes_no_bit(seed: int, count: int) -> None:
    """Each image of the graph exported, and so with memory of its own, gives the same numbers."""
    torch = pytest.importorskip("torch")
    network = _Network(torch, seed, count)
    loss = mg.LossNode(network.last[0], descriptor=MEAN_SQUARED)
    ends = loss.training_graph()
    labels = [mg.LossLabels.from_array(values(2, 1, 1, 1))]
    planned = mg.Graph(ends)
    first, second = (np.asarray(encode(planned, {"x": network.array}, labels)) for _ in range(2))
    for node in planned.filters:
        node.result_image.export_from_graph = True
    apart = mg.Graph(ends)
    assert apart.memory_report([mg.Image.from_array(network.array)]).planned_bytes == 0
    np.testing.assert_array_equal(first, np.asarray(encode(apart, {"x": network.array}, labels)))
    np.testing.assert_array_equal(first, second)
    unfused = mg.Graph(ends, fuses_filters=False)
    np.testing.assert_array_equal(first, np.asarray(encode(unfused, {"x": network.array}, labels)))


def test_gradients_are_those_of_central_differences() -> None:
    """Of a float64 reference, along random directions."""
    from mpsgrad import reference

    weights = (0.3 * values(5, 3, 3, 3)).astype(np.float32)
    a, t = values(2, 5, 5, 3), values(2, 5, 5, 5)
    x = mg.ImageNode("x")
    convolution = mg.ConvolutionNode(x, mg.ConvolutionDataSource.from_arrays(weights))
    gate = mg.MultiplicationNode(mg.NeuronTanHNode(convolution.result_image).result_image, convolution.result_image)
    normalized = mg.CrossChannelNormalizationNode(gate.result_image, kernel_size=3, beta=0.75)
    loss = mg.LossNode(normalized.result_image, descriptor=MEAN_SQUARED)
    gradient = np.asarray(encode(mg.Graph(loss.training_graph()), {"x": a}, [mg.LossLabels.from_array(t)]))

    def value(source: np.ndarray) -> float:
        y = reference.convolution(source, weights, size=(5, 5))
        y = np.tanh(y) * y
        y = reference.cross_channel_normalization(y, kernel_size=3, alpha=1.0, beta=0.75, delta=1.0)
        return float(((y - t) ** 2).sum())

    for _ in range(5):
        direction = RANDOM.standard_normal(a.shape)
        step = 1e-5 * direction
        difference = (value(a + step) - value(a - step)) / 2e-5
        assert np.vdot(gradient, direction) == pytest.approx(difference, rel=2e-5, abs=1e-3)
