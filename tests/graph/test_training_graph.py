"""``training_graph``: the nodes that it makes, and that their gradients are those of differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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
