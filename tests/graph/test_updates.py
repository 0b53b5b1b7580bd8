"""Training by graphs: the same bits as by hand, both update styles, and replays of recorded steps."""

from __future__ import annotations

from typing import Any

import by_hand
import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.kernels.normalization_kernel import copy_parameters
from mpsgrad.training import digits, initial, models
from mpsgrad.training.graph_network import GraphNetwork
from mpsgrad.training.optimizers import MOMENTUM, OPTIMIZERS

RANDOM = np.random.default_rng(3)
MEAN_SQUARED = mg.LossDescriptor("mean_squared_error", "sum")


def values(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def digits_network(batch_size: int = 16) -> GraphNetwork:
    return GraphNetwork(
        "digits",
        models.digits,
        shape=(8, 8, 1),
        classes=digits.CLASSES,
        batch_size=batch_size,
        optimizer=OPTIMIZERS["sgd"],
        seed=4,
        device=mg.default_device(),
    )


@pytest.mark.parametrize("replays", [0, 3])
def test_the_digits_network_trains_to_the_same_bits_as_by_hand(replays: int) -> None:
    """By hand and by graph the last ``replays`` steps are those of recorded ones."""
    batches = [(values(16, 8, 8, 1), digits.one_hot(RANDOM.integers(0, digits.CLASSES, 16))) for _ in range(4)]
    graph = digits_network()
    network = by_hand.Network(graph.parameters(), initial.EPSILON)
    rates = mg.OptimizerStochasticGradientDescent(
        mg.OptimizerDescriptor(learning_rate=0.05), momentum_scale=MOMENTUM
    )
    losses = [network.train_step(*batch, rates) for batch in batches[: len(batches) - replays]]
    if replays:
        image, targets = mg.Image.from_array(batches[0][0]), mg.LossLabels.from_array(batches[0][1])
        commands = mg.CommandBuffer()
        network.encode_step(commands, image, targets, rates)
        recording = commands.record()
        for pictures, labels in batches[-replays:]:
            image.write(pictures)
            targets.labels_image.write(labels)
            recording.replay()
            losses.append(float(np.asarray(targets.loss_image).sum()))
    assert [graph.train_step(*batch, 0.05) for batch in batches] == losses
    expected, found = network.parameters(), graph.parameters()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    np.testing.assert_array_equal(graph.probabilities(batches[0][0]), network.probabilities(batches[0][0]))


def test_replays_allocate_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = digits_network()
    image, targets = graph.batch(
        values(16, 8, 8, 1), digits.one_hot(RANDOM.integers(0, digits.CLASSES, 16))
    )
    recording = graph.encode_step(image, targets).record()
    recording.replay().wait_until_completed()
    device = type(image.device)
    taken: list[int] = []
    whole, constant = device.allocate, device.constant_buffer

    def allocate(self: Any, nbytes: int) -> Any:
        taken.append(nbytes)
        return whole(self, nbytes)

    def constant_buffer(self: Any, data: bytes) -> Any:
        taken.append(len(data))
        return constant(self, data)

    monkeypatch.setattr(device, "allocate", allocate)
    monkeypatch.setattr(device, "constant_buffer", constant_buffer)
    before = float(np.asarray(targets.loss_image).sum())
    for step in range(20):
        for trained in graph.trained.values():
            trained.optimizer.learning_rate = 0.05 / (1 + step)
        recording.replay()
    after = float(np.asarray(targets.loss_image).sum())
    assert taken == [] and after < before
    graph.encode_step(image, targets)
    assert taken


class OnCPU(mg.ConvolutionDataSource):
    """Weights that gradient descent updates on the CPU; counts the calls."""

    def __init__(self, weights: np.ndarray) -> None:
        self._weights, self._biases = weights, np.zeros(weights.shape[0], np.float32)
        self.calls: list[tuple[np.ndarray, np.ndarray]] = []

    @property
    def descriptor(self) -> mg.ConvolutionDescriptor:
        outputs, height, width, inputs = self._weights.shape
        return mg.ConvolutionDescriptor(width, height, inputs, outputs)

    weights = property(lambda self: self._weights)
    bias_terms = property(lambda self: self._biases)

    def update_with_command_buffer(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> None:
        raise AssertionError("the training style is CPU")

    def update_with_gradient_state(self, gradient_state: Any, source_state: Any) -> bool:
        self.calls.append((gradient_state.gradient_for_weights, source_state.weights))
        self._weights = self._weights - np.float32(0.1) * gradient_state.gradient_for_weights
        return True


def test_parameters_are_updated_on_the_cpu_when_the_work_has_completed() -> None:
    source = OnCPU(0.3 * values(4, 3, 3, 2))
    x = mg.ImageNode("x")
    node = mg.ConvolutionNode(x, source)
    node.training_style = mg.TrainingStyle.UPDATE_DEVICE_CPU
    loss = mg.LossNode(node.result_image, descriptor=MEAN_SQUARED)
    (last,) = loss.training_graph()
    assert isinstance(last, mg.ConvolutionGradientNode) and last.training_style == mg.TrainingStyle.UPDATE_DEVICE_CPU
    assert node.result_state is not None
    node.result_state.export_from_graph = True
    graph = mg.Graph([last, node])
    image, labels = mg.Image.from_array(values(2, 5, 5, 2)), mg.LossLabels.from_array(values(2, 5, 5, 4))
    kernel, gradient_kernel = mg.Convolution(source), mg.ConvolutionGradient(source)
    squared = mg.Loss(MEAN_SQUARED)
    for step in range(3):
        before = source.weights
        kernel.reload_weights_and_biases_from_data_source()
        gradient_kernel.reload_weights_and_biases_from_data_source()
        with mg.CommandBuffer() as commands:
            y, state = kernel.encode(commands, image, return_state=True)
            expected = gradient_kernel.encode(commands, squared.encode(commands, y, labels), image, state)
        with mg.CommandBuffer() as commands:
            found = graph.encode(commands, [image], [labels])
            assert len(source.calls) == step
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
        gradient, used = source.calls[-1]
        np.testing.assert_array_equal(gradient, state.gradient_for_weights)
        np.testing.assert_array_equal(used, before)
        assert len(source.calls) == step + 1
    commands = mg.CommandBuffer()
    graph.encode(commands, [image], [labels])
    commands._error = mg.DeviceError("lost")
    commands._call_handlers()
    assert len(source.calls) == 3, "an update from gradients that were not computed"
    commands = mg.CommandBuffer()
    graph.encode(commands, [image], [labels])
    recording = commands.record()
    with pytest.raises(mg.StateError, match="training style of Convolution is CPU, but its encode was recorded"):
        recording.replay().wait_until_completed()


@pytest.mark.parametrize("style", [mg.TrainingStyle.UPDATE_DEVICE_CPU, mg.TrainingStyle.UPDATE_DEVICE_GPU])
@pytest.mark.parametrize("kind", ["Instance", "Group", "Batch"])
def test_normalizations_have_their_data_sources_called(kind: str, style: mg.TrainingStyle) -> None:
    base: Any = getattr(mg, f"{kind}NormalizationDataSource")
    calls: list[str] = []
    temporary: list[mg.NormalizationGammaAndBetaState] = []

    class Source(base):  # type: ignore[misc]
        number_of_feature_channels, number_of_groups, epsilon = 4, 2, 1e-3
        gamma, beta = np.ones(4, np.float32), np.zeros(4, np.float32)

        def load(self) -> bool:
            calls.append("load")
            return True

        def _step(self, states: Any) -> None:
            states = [states] if isinstance(states, mg.BatchNormalizationState) else states
            gradients = [np.atleast_2d(state.gradient_for_gamma).sum(0) for state in states]
            self.gamma = (self.gamma - 0.1 * np.sum(gradients, 0)).astype(np.float32)

        def update_gamma_and_beta_with_command_buffer(self, commands: Any, state: Any) -> Any:
            calls.append("device")
            made = mg.NormalizationGammaAndBetaState.temporary(commands, 4)
            copy_parameters(commands, mg.NormalizationGammaAndBetaState.from_arrays(self.gamma * 2, self.beta), made)
            temporary.append(made)
            return made

        def update_mean_and_variance_with_command_buffer(self, commands: Any, state: Any) -> Any:
            calls.append("statistics")

        def update_mean_and_variance_with_batch_normalization_state(self, state: Any) -> bool:
            calls.append("statistics")
            return True

        def update_gamma_and_beta_with_batch_normalization_state(self, states: Any) -> bool:
            calls.append("cpu")
            self._step(states)
            return True

        update_gamma_and_beta_with_instance_normalization_state_batch = (
            update_gamma_and_beta_with_batch_normalization_state
        )
        update_gamma_and_beta_with_group_normalization_state_batch = (
            update_gamma_and_beta_with_batch_normalization_state
        )

    source = Source()
    node = getattr(mg, f"{kind}NormalizationNode")(mg.ImageNode(), source)
    node.training_style = style
    node.result_state.export_from_graph = True
    loss = mg.LossNode(node.result_image, descriptor=MEAN_SQUARED)
    graph = mg.Graph([*loss.training_graph(), node])
    calls.clear()
    image, labels = mg.Image.from_array(values(3, 4, 4, 4)), mg.LossLabels.from_array(values(3, 4, 4, 4))
    results = []
    on_device = style == mg.TrainingStyle.UPDATE_DEVICE_GPU
    for step in range(2):
        made: list[mg.Image] = []
        states: list[Any] = []
        gamma = source.gamma
        with mg.CommandBuffer() as commands:
            graph.encode(commands, [image], [labels], intermediate_images=made, destination_states=states)
        results.append(np.asarray(made[0]))
        # The update does not reach into what the pass was computed with.
        np.testing.assert_array_equal(states[0].gamma, gamma * (2**step if on_device else 1))
    statistics = ["statistics"] if kind == "Batch" else []
    if on_device:
        assert calls == 2 * [*statistics, "device"] and [state.read_count for state in temporary] == [0, 0]
    else:
        assert calls == 2 * [*statistics, *["load"] * len(statistics), "cpu", "load"]
    factor = 2.0 if on_device else gamma
    np.testing.assert_allclose(results[1], factor * results[0], rtol=1e-5, atol=1e-6)


def test_the_mean_and_variance_that_a_data_source_returns_are_those_of_the_next_encode() -> None:
    class Source(mg.BatchNormalizationDataSource):
        number_of_feature_channels, epsilon = 4, 1e-3

        def load(self) -> bool:
            return True

        def update_mean_and_variance_with_command_buffer(self, command_buffer: Any, state: Any) -> Any:
            mean, variance = (np.full(4, value, np.float32) for value in (2, 9))
            return mg.NormalizationMeanAndVarianceState.from_arrays(mean, variance)

        def update_gamma_and_beta_with_command_buffer(self, command_buffer: Any, state: Any) -> None:
            return None

    node = mg.BatchNormalizationNode(mg.ImageNode(), Source())
    node.flags = mg.BatchNormalizationFlags.CALCULATE_STATISTICS_NEVER
    loss = mg.LossNode(node.result_image, descriptor=MEAN_SQUARED)
    graph = mg.Graph([*loss.training_graph(), node])
    x, t = values(2, 3, 3, 4), values(2, 3, 3, 4)
    for mean, variance in ((0, 1), (2, 9)):
        made: list[mg.Image] = []
        with mg.CommandBuffer() as commands:
            graph.encode(commands, [mg.Image.from_array(x)], [mg.LossLabels.from_array(t)], intermediate_images=made)
        np.testing.assert_allclose(np.asarray(made[0]), (x - mean) / np.sqrt(variance + 1e-3), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["Instance", "Group", "Batch"])
def test_gamma_that_is_loaded_anew_is_that_of_the_next_encode(kind: str) -> None:
    gamma = np.ones(4, np.float32)
    groups = (2,) if kind == "Group" else ()
    source = getattr(mg, f"{kind}NormalizationDataSource").from_arrays(*groups, gamma, np.zeros(4, np.float32))
    node = getattr(mg, f"{kind}NormalizationNode")(mg.ImageNode(), source)
    node.training_style = mg.TrainingStyle.UPDATE_DEVICE_GPU
    loss = mg.LossNode(node.result_image, descriptor=MEAN_SQUARED)
    graph = mg.Graph([*loss.training_graph(), node])
    image, labels = mg.Image.from_array(values(3, 4, 4, 4)), mg.LossLabels.from_array(values(3, 4, 4, 4))
    results = []
    for _ in range(2):
        made: list[mg.Image] = []
        with mg.CommandBuffer() as commands:
            graph.encode(commands, [image], [labels], intermediate_images=made)
        results.append(np.array(made[0]))
        gamma *= 2
        graph.reload_from_data_sources()
    np.testing.assert_array_equal(results[1], 2 * results[0])


def test_frozen_parameters_are_neither_updated_nor_differentiated() -> None:
    source = OnCPU(values(4, 3, 3, 2))
    node = mg.ConvolutionNode(mg.ImageNode(), source)
    node.training_style = mg.TrainingStyle.UPDATE_DEVICE_NONE
    loss = mg.LossNode(node.result_image, descriptor=MEAN_SQUARED)
    graph = mg.Graph(loss.training_graph())
    image, labels = mg.Image.from_array(values(2, 5, 5, 2)), mg.LossLabels.from_array(values(2, 5, 5, 4))
    with mg.CommandBuffer() as commands:
        result = graph.encode(commands, [image], [labels])
    assert result is not None and result.shape == image.shape
    gradient: Any = graph.filters[-1]
    gradient.training_style = mg.TrainingStyle.UPDATE_DEVICE_CPU
    commands = mg.CommandBuffer()
    with pytest.raises(mg.StateError, match="style of Convolution is UPDATE_DEVICE_CPU but was .*_NONE when the graph"):
        graph.encode(commands, [image], [labels])
    assert source.calls == [] and not commands._dispatches
    with pytest.raises(mg.FormatError, match="training_style is 7"):
        node.training_style = 7  # type: ignore[assignment]


@pytest.mark.parametrize("is_temporary", [False, True])
def test_two_filters_with_one_data_source_are_updated_one_after_the_other(is_temporary: bool) -> None:
    rate = 0.125
    states: list[mg.ConvolutionWeightsAndBiasesState] = []

    class Shared(OnCPU):
        def update_with_command_buffer(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
            if is_temporary:
                updated = mg.ConvolutionWeightsAndBiasesState.temporary(command_buffer, self.descriptor)
            else:
                updated = mg.ConvolutionWeightsAndBiasesState.with_descriptor(self.descriptor)
            states.append(updated)
            descent = mg.OptimizerStochasticGradientDescent.with_learning_rate(rate)
            descent.encode_convolution(command_buffer, gradient_state, source_state, result_state=updated)
            return updated

    weights = 0.3 * values(2, 1, 1, 2)
    source = Shared(weights)
    x = mg.ImageNode("x")
    first = mg.ConvolutionNode(x, source)
    second = mg.ConvolutionNode(first.result_image, source)
    loss = mg.LossNode(second.result_image, descriptor=MEAN_SQUARED)
    training = mg.Graph([*loss.training_graph(), second])
    a, t = values(2, 3, 3, 2), values(2, 3, 3, 2)
    outputs = []
    for _ in range(2):
        made: list[mg.Image] = []
        with mg.CommandBuffer() as commands:
            training.encode(commands, [mg.Image.from_array(a)], [mg.LossLabels.from_array(t)], intermediate_images=made)
        outputs.append(np.asarray(made[0]))
    assert len(states) == 4 and all(state.read_count == 0 for state in states)
    w = weights.reshape(2, 2).astype(np.float64)
    y = a @ w.T
    z = y @ w.T
    np.testing.assert_allclose(outputs[0], z, atol=1e-5)
    g = 2 * (z - t)
    total = np.einsum("nhwo,nhwc->oc", g, y) + np.einsum("nhwo,nhwc->oc", g @ w, a)
    w = w - rate * total
    # The biases have moved, too.
    bias = -rate * (g.sum((0, 1, 2)) + (g @ w * 0 + g @ weights.reshape(2, 2)).sum((0, 1, 2)))
    np.testing.assert_allclose(outputs[1], (a @ w.T + bias) @ w.T + bias, rtol=1e-4, atol=1e-4)


def test_an_update_that_returns_something_else_is_named() -> None:
    returned: Any = None

    class Wrong(OnCPU):
        def update_with_command_buffer(self, *_: Any) -> Any:
            return returned

    node = mg.ConvolutionNode(mg.ImageNode(), Wrong(values(4, 1, 1, 4)), label="first")
    loss = mg.LossNode(node.result_image, descriptor=MEAN_SQUARED)
    graph = mg.Graph(loss.training_graph(), results_are_needed=False)
    labels = mg.LossLabels.from_array(values(1, 2, 2, 4))
    kind = "ConvolutionWeightsAndBiasesState"
    larger = mg.ConvolutionWeightsAndBiasesState.with_descriptor(mg.ConvolutionDescriptor(1, 1, 4, 8))
    for returned, message in (  # noqa: B007
        (values(4), rf"Graph: first: Wrong\.update_with_command_buffer returned ndarray; .* {kind} or None"),
        (larger, "Graph: first: Convolution: state has 32 weights but the kernel 16"),
    ):
        commands = mg.CommandBuffer()
        with pytest.raises(mg.MPSGradError, match=message):
            graph.encode(commands, [mg.Image.from_array(values(1, 2, 2, 4))], [labels])
        assert not commands._dispatches
