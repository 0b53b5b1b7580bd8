"""Random networks: graphs compute what the float64 references and PyTorch's autograd do, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from random_network import Network, Nodes, Results, analysed, by_pytorch, networks

import mpsgrad as mg

FLOAT64_ROUNDING = 1e-11
"""Of the largest element, for sums of at most a few thousand terms in a dozen steps."""


def computed(network: Network) -> Results:
    """What the graph of the network gives."""
    nodes = Nodes(network)
    of_source = [end for end in nodes.ends if end.result_image.handle == "x"]
    others = [end for end in nodes.ends if end not in of_source]
    for image in nodes.images[1:]:
        image.export_from_graph = True
    needed = [True] * (1 + len(of_source)) + [False] * len(others)
    graph = mg.Graph([nodes.loss, *of_source, *others], results_are_needed=needed)
    made, states, labels = nodes.encode(graph)
    arrays = [np.asarray(image) for image in made]
    handed_out = dict(zip([nodes.loss.result_image, *graph._intermediates], arrays, strict=True))
    gradients = dict(enumerate(handed_out[end.result_image] for end in of_source))
    number_of = {id(node.data_source): number for number, node in nodes.convolutions.items()}
    weights = {
        number_of[id(state.convolution.data_source)]: (state.gradient_for_weights, state.gradient_for_biases)
        for state in states
        if state.has_gradients
    }
    images = [network.source, *(handed_out.get(image) for image in nodes.images[1:])]
    loss = np.asarray(labels.loss_image) if labels is not None else handed_out[nodes.loss.result_image]
    return Results(images, [loss], gradients, weights)


@given(networks())
def test_graphs_compute_what_the_references_do(network: Network) -> None:
    found, expected = computed(network), analysed(network)
    for number, (image, exact) in enumerate(zip(found.images, expected.images, strict=True)):
        if image is not None:
            exact.require(image, f"image {number}")
    assert found.gradients.keys() == expected.gradients.keys()
    for number, exact in expected.gradients.items():
        exact.require(found.gradients[number], f"the gradient of image {number}")
    assert found.weights.keys() == expected.weights.keys()
    for number, pair in expected.weights.items():
        for name, exact, values in zip(("weights", "biases"), pair, found.weights[number], strict=True):
            exact.require(values, f"the gradient for the {name} of {number}")
    loss = sum(each.value for each in expected.losses)
    error = sum(each.error + 1e-6 * each.size for each in expected.losses)
    np.testing.assert_array_less(np.abs(found.losses[0] - loss), error)


@settings(max_examples=40)
@given(networks())
def test_the_references_compute_what_pytorch_does(network: Network) -> None:
    """Together with the test above: graphs compute what PyTorch does."""
    torch = pytest.importorskip("torch")
    expected, found = by_pytorch(torch, network), analysed(network)

    def require(one: Any, other: np.ndarray) -> None:
        np.testing.assert_allclose(one.value, other, rtol=0, atol=FLOAT64_ROUNDING * max(np.abs(other).max(), 1))

    for one, other in zip(found.images, expected.images, strict=True):
        require(one, other)
    for one, other in zip(found.losses, expected.losses, strict=True):
        require(one, other)
    assert found.gradients.keys() == expected.gradients.keys()
    assert found.weights.keys() == expected.weights.keys()
    for number, exact in found.gradients.items():
        require(exact, expected.gradients[number])
    for number, pair in found.weights.items():
        for exact, other in zip(pair, expected.weights[number], strict=True):
            require(exact, other)


@settings(max_examples=8)
@given(networks())
def test_shared_memory_and_fusion_change_no_bit(network: Network) -> None:
    """Each image of the graph exported, and so with memory of its own, gives the same numbers."""
    nodes = Nodes(network)
    results = [*nodes.ends, nodes.loss]
    planned = mg.Graph(results)
    first, *again = (nodes.encode(planned)[0] for _ in range(5))
    unfused = nodes.encode(mg.Graph(results, fuses_filters=False))[0]
    for node in planned.filters:
        node.result_image.export_from_graph = True
    apart = mg.Graph(results)
    everything = nodes.encode(apart)[0]
    assert apart.last_plan is not None and apart.last_plan.memory.planned_bytes == 0
    for others in (*again, unfused, everything):
        for one, other in zip(first, others, strict=False):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
