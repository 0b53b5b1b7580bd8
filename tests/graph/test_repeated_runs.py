"""Graphs that take over what earlier encodes did give the bits of those whose kernels are asked anew each time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad import mps
from mpsgrad.graph.repeated_run import RepeatedRun
from mpsgrad.training.optimizers import OPTIMIZERS
from mpsgrad.training.parameters import TrainedNormalization, TrainedWeights

BATCH, SIZE, CHANNELS, CLASSES = 3, 6, 8, 4
STEPS = 4
"""From the fourth one on encodes are taken over."""


class Trained:
    """A network that is trained: convolution, batch normalization, ReLU, pooling, dropout, a layer of scores, a loss.

    With ``asks_kernels`` neither its graph nor its optimizers take anything over from earlier encodes.
    """

    def __init__(self, optimizer: str = "sgd", *, asks_kernels: bool, exports: bool = True) -> None:
        random = np.random.default_rng(5)
        self.kind = OPTIMIZERS[optimizer].of_one_network()
        self.source = mg.ImageNode("pictures")
        self.first = mg.ConvolutionNode(self.source, self._weights(random, 8, 3, CHANNELS), label="first")
        values = {name: random.random(8, np.float32) + 0.5 for name in ("gamma", "beta", "mean", "variance")}
        trained = TrainedNormalization(self.kind, 1e-3, values, mg.default_device())
        self.normalization = mg.BatchNormalizationNode(self.first.result_image, trained, label="normalized")
        relu = mg.NeuronReLUNode(self.normalization.result_image)
        pool = mg.PoolingMaxNode(relu.result_image, 2)
        dropped = mg.DropoutNode(pool.result_image, keep_probability=0.5, seed=3)
        self.top = mg.FullyConnectedNode(dropped.result_image, self._weights(random, CLASSES, 3, 8), label="top")
        if exports:
            self.first.result_image.export_from_graph = True
            assert self.first.result_state is not None
            self.first.result_state.export_from_graph = True
        self.loss = mg.LossNode(
            self.top.result_image, descriptor=mg.LossDescriptor("softmax_cross_entropy", weight=0.1)
        )
        self.graph = mg.Graph(self.loss.training_graph(), results_are_needed=False)
        self.graph._kept_runs.settings.are_known = not asks_kernels
        if asks_kernels:
            for source in self.sources:
                source.optimizer._remember_states = lambda *_: None

    def _weights(self, random: np.random.Generator, outputs: int, size: int, inputs: int) -> TrainedWeights:
        descriptor = mg.ConvolutionDescriptor(size, size, inputs, outputs)
        arrays = {
            "weights": random.standard_normal((outputs, size, size, inputs)).astype(np.float32),
            "biases": random.standard_normal(outputs).astype(np.float32),
        }
        return TrainedWeights(self.kind, descriptor, arrays, mg.default_device())

    @property
    def sources(self) -> list[Any]:
        return [node.data_source for node in (self.first, self.normalization, self.top)]

    def kernel(self, node: Any) -> Any:
        return self.graph._kernels[node][0]

    def step(self, image: mg.Image, labels: mg.LossLabels) -> list[np.ndarray]:
        """All that a step gives and changes."""
        images: list[Any] = []
        states: list[Any] = []
        with mg.CommandBuffer() as commands:
            self.graph.encode(commands, [image], [labels], intermediate_images=images, destination_states=states)
        found = [np.array(labels.loss_image), *map(np.array, images)]
        found += [state.gradient_for_weights for state in states] + [state.gradient_for_biases for state in states]
        return found + self.parameters()

    def parameters(self) -> list[np.ndarray]:
        slots = [array for source in self.sources for array in source.optimizer_arrays().values()]
        return [array for source in self.sources for array in source.arrays().values()] + slots


def batch(number: int, images: int = BATCH, *, has_weights: bool = False) -> tuple[mg.Image, mg.LossLabels]:
    random = np.random.default_rng(number)
    shape = (images, 1, 1, CLASSES)
    answers = np.eye(CLASSES, dtype=np.float32)[random.integers(0, CLASSES, images)].reshape(shape)
    weights = random.random(shape, np.float32) if has_weights else None
    pictures = random.standard_normal((images, SIZE, SIZE, CHANNELS), np.float32)
    return mg.Image.from_array(pictures), mg.LossLabels.from_array(answers, weights)


@pytest.fixture
def taken_over(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Grows by an element with each encode that takes over what an earlier one did."""
    found: list[int] = []
    encode_steps = RepeatedRun.encode_steps

    def counted(self: RepeatedRun, *arguments: Any) -> None:
        found.append(1)
        encode_steps(self, *arguments)

    monkeypatch.setattr(RepeatedRun, "encode_steps", counted)
    yield found


def twins(optimizer: str = "sgd", **options: Any) -> list[Trained]:
    return [Trained(optimizer, asks_kernels=asks, **options) for asks in (False, True)]


def require_same(networks: list[Trained], steps: range, make: Callable[..., Any] = batch, **options: Any) -> None:
    for number in steps:
        one, other = (network.step(*make(number, **options)) for network in networks)
        for found, expected in zip(one, other, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("exports", [True, False])
def test_steps_are_those_of_kernels_that_are_asked(optimizer: str, exports: bool, taken_over: list[int]) -> None:
    require_same(twins(optimizer, exports=exports), range(STEPS + 3))
    assert len(taken_over) >= 3


def set_rate(network: Trained) -> None:
    for source in network.sources:
        source.optimizer.learning_rate = 0.3


def set_clipping(network: Trained) -> None:
    for source in network.sources:
        described = replace(source.optimizer.optimizer_descriptor, gradient_clip_max=1e-3, gradient_clip_min=-1e-3)
        source.optimizer._optimizer_descriptor = described
        source.optimizer.apply_gradient_clipping = True


def set_weights(network: Trained) -> None:
    state = network.first.data_source.weights_and_biases_state
    state._write(0, np.zeros(state.weights.shape, np.float32))
    network.graph.reload_from_data_sources()


def set_parameters_of_kernel(network: Trained) -> None:
    weights, biases = network.kernel(network.top).weights_and_biases
    network.kernel(network.top).weights_and_biases = (2 * weights, biases)


def set_new_slots(network: Trained) -> None:
    slots = network.first.data_source._slots
    for name, vectors in slots.items():
        slots[name] = [mg.Vector(len(vector)) for vector in vectors]


def set_momentum_of_a_user(network: Trained) -> None:
    source = network.first.data_source
    source.optimizer = mg.OptimizerStochasticGradientDescent(mg.OptimizerDescriptor(), momentum_scale=0.25)


def set_format_of_a_node(network: Trained) -> None:
    network.top.result_image.format = mg.FeatureChannelFormat.FLOAT16
    # As if there had been encodes of many other geometries.
    network.graph._plans.clear()


CHANGES: dict[str, Callable[[Trained], Any]] = {
    "nothing": lambda network: None,
    "a property": lambda network: setattr(network.kernel(network.first), "edge_mode", mg.EdgeMode.CLAMP),
    "epsilon": lambda network: setattr(network.kernel(network.normalization), "epsilon", 0.5),
    "flags": lambda network: setattr(
        network.normalization, "flags", mg.BatchNormalizationFlags.CALCULATE_STATISTICS_NEVER
    ),
    "draws": lambda network: setattr(network.graph, "drawn_images", (7,)),
    "learning rate": set_rate,
    "clipping": set_clipping,
    "weights": set_weights,
    "parameters of a kernel": set_parameters_of_kernel,
    "slots": set_new_slots,
    "optimizer": set_momentum_of_a_user,
    "training style": lambda network: setattr(
        network.graph.filters[-1], "training_style", mg.TrainingStyle.UPDATE_DEVICE_NONE
    ),
    "format": lambda network: setattr(network.graph, "format", mg.FeatureChannelFormat.FLOAT16),
    "format of a node": set_format_of_a_node,
    "allocator": lambda network: setattr(
        network.top.result_image, "image_allocator", mg.Image.default_allocator()
    ),
    "a larger batch": lambda network: network.step(*batch(50, 2 * BATCH)),
    "a smaller batch": lambda network: network.step(*batch(50, 1)),
}

WITHOUT_EFFECT = {"nothing", "allocator"}
OF_FURTHER_STEPS = {"a larger batch", "a smaller batch"}
ASKED_ANEW = {"flags", "format", "format of a node", "allocator"}
"""After these kernels are asked in each encode."""


@pytest.mark.parametrize("change", CHANGES)
def test_changes_between_steps_count(change: str, taken_over: list[int]) -> None:
    networks = twins()
    require_same(networks, range(STEPS))
    before = len(taken_over)
    assert before
    for network in networks:
        CHANGES[change](network)
    require_same(networks, range(STEPS, 2 * STEPS + 1))
    assert (len(taken_over) > before) == (change not in ASKED_ANEW)


def test_changes_show() -> None:
    """The steps of the test before depend on the change, so that it would fail if encodes missed it."""
    plain = Trained(asks_kernels=True)
    for number in range(STEPS + 1):
        expected = plain.step(*batch(number))
    for name in CHANGES.keys() - OF_FURTHER_STEPS:
        network = Trained(asks_kernels=True)
        for number in range(STEPS):
            network.step(*batch(number))
        CHANGES[name](network)
        found = network.step(*batch(STEPS))
        same = all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))
        assert same == (name in WITHOUT_EFFECT), name


def view_of_channels(number: int) -> tuple[mg.Image, mg.LossLabels]:
    image, labels = batch(number)
    wide = mg.Image.from_array(np.concatenate([np.full(image.shape, 9, np.float32), np.asarray(image)], axis=3))
    return wide.sub_image(CHANNELS, CHANNELS), labels


def of_another_library(number: int) -> tuple[mg.Image, mg.LossLabels]:
    image, labels = batch(number)
    return mg.Image.from_dlpack(image), labels


def view_of_images(number: int) -> tuple[mg.Image, mg.LossLabels]:
    image, labels = batch(number)
    values = np.asarray(image)
    return mg.Image.from_array(np.concatenate([values + 1, values]))._images(BATCH, BATCH), labels


@pytest.mark.parametrize("make", [view_of_channels, view_of_images, of_another_library])
def test_views_are_read_where_they_lie(make: Callable[..., Any], taken_over: list[int]) -> None:
    networks = twins()
    require_same(networks, range(STEPS))
    require_same(networks, range(STEPS, STEPS + 2), make)
    require_same(networks, range(STEPS + 2, STEPS + 4))
    assert len(taken_over) >= 2


def test_labels_with_weights_and_without(taken_over: list[int]) -> None:
    networks = twins()
    for has_weights in (False, True, False, True):
        require_same(networks, range(STEPS), has_weights=has_weights)
    assert len(taken_over) >= 2 * STEPS


def test_labels_are_compared_with_the_scores(taken_over: list[int]) -> None:
    for network in twins():
        for number in range(STEPS):
            network.step(*batch(number))
        image, _ = batch(0)
        wrong = mg.LossLabels.from_array(np.zeros((BATCH, 1, 1, CLASSES + 1), np.float32))
        before = network.parameters()
        with pytest.raises(mg.GeometryError, match="labels are 3x1x1x5 but source_image is 3x1x1x4"):
            network.step(image, wrong)
        for found, expected in zip(network.parameters(), before, strict=True):
            np.testing.assert_array_equal(found, expected)
    assert taken_over


def adding_graph(*, asks_kernels: bool) -> mg.Graph:
    left, right = mg.ImageNode("left"), mg.ImageNode("right")
    total = mg.AdditionNode(mg.NeuronReLUNode(left).result_image, mg.NeuronReLUNode(right).result_image)
    graph = mg.Graph(mg.NeuronLinearNode(total.result_image, a=2.0))
    graph._kept_runs.settings.are_known = not asks_kernels
    return graph


def test_what_is_set_by_hand_counts() -> None:
    """Gradient kernels then keep what their states would set, here to what it is anyway."""
    network = Trained(asks_kernels=False)
    network.step(*batch(0))
    settings = network.graph._kept_runs.settings
    before = settings.key()
    kernel = network.kernel(network.graph.filters[-1])
    kernel.clip_rect = kernel.clip_rect
    assert settings.key() != before


def test_of_several_labels_it_counts_which_have_weights() -> None:
    """Labels, weights and losses may be images of one geometry each."""
    nodes = [
        mg.LossNode(
            mg.ImageNode(name),
            descriptor=mg.LossDescriptor("mean_squared_error", "none", weight=0.5),
        )
        for name in "ab"
    ]
    graphs = [mg.Graph(nodes) for _ in range(2)]
    graphs[1]._kept_runs.settings.are_known = False
    ones = np.ones((1, 1, 1, 4), np.float32)
    for weighted in [0] * STEPS + [1, 0] * STEPS:
        found = []
        for graph in graphs:
            labels = [
                mg.LossLabels.from_array(
                    3 * ones, 2 * ones if number == weighted else None, loss_image_size=(1, 1, 4)
                )
                for number in range(2)
            ]
            with mg.CommandBuffer() as commands:
                graph.encode(commands, [mg.Image.from_array(ones)] * 2, labels)
            found.append([np.array(each.loss_image) for each in labels])
        np.testing.assert_array_equal(found[0], found[1])
        assert found[0][weighted].max() > found[0][1 - weighted].max()


def test_memory_that_was_given_back_is_forgotten(taken_over: list[int]) -> None:
    network = Trained(asks_kernels=False, exports=False)
    for number in range(STEPS):
        network.step(*batch(number))
    kept = [weakref.ref(buffer) for buffer in network.graph._memory._buffers]
    for number in range(STEPS):
        network.step(*batch(number, 4 * BATCH))
    gc.collect()
    assert taken_over
    assert kept and [each() for each in kept] == [None] * len(kept)


def test_results_are_new_images(taken_over: list[int]) -> None:
    graph = adding_graph(asks_kernels=False)
    arrays = [np.full((1, 2, 2, 4), number, np.float32) for number in range(STEPS + 2)]
    made = []
    for array in arrays:
        with mg.CommandBuffer() as commands:
            image = mg.Image.from_array(array)
            made.append(graph.encode(commands, [image, image]))
    for result, array in zip(made, arrays, strict=True):
        np.testing.assert_array_equal(np.asarray(result), 4 * array)
    assert taken_over
    other = mg.Image.from_array(arrays[3])
    for _ in range(STEPS):
        with mg.CommandBuffer() as commands:
            result = graph.encode(commands, [other, mg.Image.from_array(arrays[1])])
        np.testing.assert_array_equal(np.asarray(result), 2 * arrays[4])


def test_allocators_of_results_are_asked(taken_over: list[int]) -> None:
    class Counting:
        made = 0

        def image(self, command_buffer: mg.CommandBuffer, descriptor: mg.ImageDescriptor, kernel: Any) -> mg.Image:
            self.made += 1
            return mg.Image(descriptor)

    graph, allocator = adding_graph(asks_kernels=False), Counting()
    image = mg.Image.from_array(np.ones((1, 2, 2, 4), np.float32))
    for number in range(2 * STEPS):
        if number == STEPS:
            assert taken_over
            graph.destination_image_allocator = allocator
        with mg.CommandBuffer() as commands:
            graph.encode(commands, [image, image])
    assert allocator.made == STEPS


def test_the_same_image_twice_and_two_images() -> None:
    """Which images are the same one belongs to what encodes depend on."""
    graph = adding_graph(asks_kernels=False)
    image, other = (mg.Image.from_array(np.full((1, 2, 2, 4), value, np.float32)) for value in (1, 5))
    for images, expected in [([image, image], 4)] * 5 + [([image, other], 12), ([other, image], 12)] * 3:
        with mg.CommandBuffer() as commands:
            result = graph.encode(commands, images)
        np.testing.assert_array_equal(np.asarray(result), np.full(image.shape, expected))


def test_temporary_sources_count_their_reads(taken_over: list[int]) -> None:
    graph = adding_graph(asks_kernels=False)
    image, other = (mg.Image.from_array(np.ones((1, 2, 2, 4), np.float32)) for _ in range(2))
    for _ in range(STEPS):
        with mg.CommandBuffer() as commands:
            graph.encode(commands, [other, image])
    assert taken_over
    before = len(taken_over)
    with mg.CommandBuffer() as commands:
        temporary = mg.TemporaryImage(commands, image.descriptor)
        mg.NeuronLinear(a=3.0).encode(commands, image, destination_image=temporary)
        result = graph.encode(commands, [temporary, image])
        assert temporary.read_count == 0
    np.testing.assert_array_equal(np.asarray(result), np.full(image.shape, 8))
    assert len(taken_over) == before


def test_work_that_writes_a_source_is_waited_for(taken_over: list[int]) -> None:
    graph = adding_graph(asks_kernels=False)
    image = mg.Image.from_array(np.ones((1, 2, 2, 4), np.float32))
    for _ in range(STEPS):
        with mg.CommandBuffer() as commands:
            graph.encode(commands, [mg.Image.from_array(np.asarray(image)), image])
    before = len(taken_over)
    writes = mg.CommandBuffer()
    scaled = mg.NeuronLinear(a=3.0).encode(writes, image)
    commands = mg.CommandBuffer()
    result = graph.encode(commands, [scaled, image])
    with pytest.raises(mg.StateError, match="not committed; commit it first"):
        commands.commit()
    with pytest.raises(mg.StateError, match="before its command buffer was committed"):
        np.asarray(result)
    writes.commit()
    commands.commit()
    np.testing.assert_array_equal(np.asarray(result), np.full(image.shape, 8))
    assert len(taken_over) == before + 1


def test_two_steps_in_flight() -> None:
    networks = twins()
    require_same(networks, range(STEPS))
    found: list[list[np.ndarray]] = []
    for network in networks:
        steps = []
        for number in range(3):
            commands = mg.CommandBuffer()
            image, labels = batch(number)
            states: list[Any] = []
            network.graph.encode(commands, [image], [labels], destination_states=states)
            commands.commit()
            steps.append((commands, labels, states))
        for commands, _, _ in steps:
            commands.wait_until_completed()
        given: list[np.ndarray] = []
        for _, labels, (state,) in steps:
            given += np.array(labels.loss_image), state.gradient_for_weights
        found.append(given)
    one, other = found
    for each, expected in zip(one, other, strict=True):
        np.testing.assert_array_equal(each, expected)
    assert not np.array_equal(one[1], one[3])
    require_same(networks, range(2))


def test_a_step_that_fails_leaves_nothing(taken_over: list[int]) -> None:
    """The name of the filter is told, and neither draws nor parameters go on."""
    for network in twins():
        for number in range(STEPS):
            network.step(*batch(number))
        before, drawn = network.parameters(), network.graph.drawn_images
        running = network.normalization.data_source.gamma_and_beta_state
        other = mg.CommandBuffer()
        other._writes(running)
        commands = mg.CommandBuffer()
        with pytest.raises(mg.StateError, match=r"gamma and beta are written by another command buffer"):
            network.graph.encode(commands, *([each] for each in batch(0)))
        assert not commands._dispatches
        assert network.graph.drawn_images == drawn
        other.commit()
        for found, expected in zip(network.parameters(), before, strict=True):
            np.testing.assert_array_equal(found, expected)
        assert np.isfinite(network.step(*batch(0))[0]).all()
    assert taken_over


def test_errors_of_the_moment_name_the_filter(taken_over: list[int]) -> None:
    network = Trained(asks_kernels=True)
    inference = network.graph.inference_graph()
    image, _ = batch(0)
    for _ in range(STEPS):
        with mg.CommandBuffer() as commands:
            inference.encode(commands, [image])
    assert taken_over
    before = len(taken_over)
    training = mg.CommandBuffer()
    network.graph.encode(training, *([each] for each in batch(1)))
    with pytest.raises(mg.StateError, match=r"Graph: normalized.*: BatchNormalization: gamma and beta are written by"):
        inference.encode(mg.CommandBuffer(), [image])
    training.commit()
    with mg.CommandBuffer() as commands:
        inference.encode(commands, [image])
    assert len(taken_over) == before + 2


def test_what_an_optimizer_keeps_waits_for_its_step() -> None:
    network = Trained(asks_kernels=False)
    for number in range(STEPS):
        network.step(*batch(number))
    commands = mg.CommandBuffer()
    network.graph.encode(commands, *([each] for each in batch(0)))
    (momentum, _), *_ = network.first.data_source._slots.values()
    with pytest.raises(mg.StateError, match="before its command buffer was committed"):
        np.asarray(momentum)
    commands.commit()
    assert np.asarray(momentum).any()


def test_callbacks_are_asked_in_each_encode(taken_over: list[int]) -> None:
    class Counting(mg.GramMatrixCallback):
        asked = 0

        def alpha_for_source_image(self, source_image: mg.Image, destination_image: mg.Image) -> float:
            self.asked += 1
            return float(self.asked)

    node = mg.GramMatrixCalculationNode(mg.ImageNode("image"))
    graph = mg.Graph(node)
    image = mg.Image.from_array(np.ones((1, 2, 2, 4), np.float32))
    for alpha in [1.0] * STEPS + [3.0, 1.0]:
        node.alpha = alpha
        with mg.CommandBuffer() as commands:
            result = graph.encode(commands, [image])
        np.testing.assert_array_equal(np.asarray(result), np.full((1, 1, 4, 4), 4 * alpha))
    assert taken_over
    node.property_call_back = callback = Counting()
    for number in range(1, STEPS + 2):
        with mg.CommandBuffer() as commands:
            result = graph.encode(commands, [image])
        np.testing.assert_array_equal(np.asarray(result), np.full((1, 1, 4, 4), 4 * number))
    assert callback.asked == STEPS + 1


@pytest.mark.parametrize("base", [mg.NeuronReLUNode, mps.MPSCNNNeuronReLUNode])
def test_nodes_of_users_are_encoded_each_time(base: Any) -> None:
    class Mine(base):
        encodes = 0

        def encode(self, *arguments: Any) -> Any:
            Mine.encodes += 1
            return super().encode(*arguments)

    graph = mg.Graph(Mine(mg.ImageNode("image")))
    for _ in range(STEPS + 1):
        with mg.CommandBuffer() as commands:
            graph.encode(commands, [mg.Image.from_array(np.ones((1, 2, 2, 4), np.float32))])
    assert Mine.encodes == STEPS + 1


def test_labels_of_users_are_asked_each_time(taken_over: list[int]) -> None:
    class Mine(mg.LossLabels):
        pass

    network = Trained(asks_kernels=False)
    for number in range(STEPS):
        image, labels = batch(number)
        labels.__class__ = Mine
        network.step(image, labels)
    assert not taken_over


def test_nothing_that_was_given_is_kept() -> None:
    network = Trained(asks_kernels=False)
    for number in range(STEPS):
        network.step(*batch(number))
    image, labels = batch(0)
    states: list[Any] = []
    with mg.CommandBuffer() as commands:
        network.graph.encode(commands, [image], [labels], destination_states=states)
    kept = [weakref.ref(each) for each in (image.buffer, labels, states[0], states[0].resource(0))]
    del image, labels, states, commands
    gc.collect()
    assert [each() for each in kept] == [None] * len(kept)


def weights(number: int, size: int = 3) -> mg.ConvolutionDataSource:
    random = np.random.default_rng(number)
    arrays = random.standard_normal((CHANNELS, size, size, CHANNELS)), random.standard_normal(CHANNELS)
    return mg.ConvolutionDataSource.from_arrays(*(array.astype(np.float32) for array in arrays), stride=(1, 1))


def coupled(image: mg.ImageNode) -> mg.FilterNode:
    forward = mg.ConvolutionNode(image, weights(1))
    return mg.ConvolutionTransposeNode(
        forward.result_image, weights(2), convolution_gradient_state=forward.result_state
    )


ROWS = np.random.default_rng(4).random((2, CHANNELS), np.float32) + 0.5
LAYERS: dict[str, Callable[[mg.ImageNode], mg.FilterNode]] = {
    "group normalization": lambda image: mg.GroupNormalizationNode(
        image, mg.GroupNormalizationDataSource.from_arrays(2, *ROWS)
    ),
    "instance normalization": lambda image: mg.InstanceNormalizationNode(
        image, mg.InstanceNormalizationDataSource.from_arrays(*ROWS)
    ),
    "transposed convolution": lambda image: mg.ConvolutionTransposeNode(image, weights(3)),
    "coupled convolutions": coupled,
    "concatenation": lambda image: mg.ConcatenationNode([image, mg.ConvolutionNode(image, weights(1)).result_image]),
    "multiplication": lambda image: mg.MultiplicationNode(image, mg.NeuronTanHNode(image).result_image),
    "pooling": lambda image: mg.PoolingAverageNode(image, 3, 2),
    "response normalization": lambda image: mg.CrossChannelNormalizationNode(image, kernel_size=3),
    "softmax": lambda image: mg.SoftMaxNode(image),
    "mean": lambda image: mg.ReductionSpatialMeanNode(image),
    "gram matrix": lambda image: mg.GramMatrixCalculationNode(image),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_are_taken_over(layer: str, taken_over: list[int]) -> None:
    """Between two convolutions, whose states show the gradients that pass through the layer."""
    graphs = []
    for asks_kernels in (False, True):
        first = mg.ConvolutionNode(mg.ImageNode("image"), weights(5))
        assert first.result_state is not None
        first.result_state.export_from_graph = True
        made = LAYERS[layer](first.result_image)
        made.result_image.export_from_graph = True
        loss = mg.ForwardLossNode(
            made.result_image, mg.ImageNode("answers"), descriptor=mg.LossDescriptor("mean_squared_error", weight=0.1)
        )
        graph = mg.Graph(
            loss.training_graph(mg.InitialGradientNode(loss.result_image).result_image), results_are_needed=False
        )
        graph._kept_runs.settings.are_known = not asks_kernels
        graphs.append(graph)
        forward = mg.Graph(made)
    for number in range(STEPS + 1):
        found = []
        for graph in graphs:
            random = np.random.default_rng(number)
            image = mg.Image.from_array(random.standard_normal((2, SIZE, SIZE, CHANNELS), np.float32))
            shape = forward.plan([image]).shapes.of[made.result_image].shape
            answers = mg.Image.from_array(random.standard_normal(shape, np.float32))
            images: list[Any] = []
            states: list[Any] = []
            with mg.CommandBuffer() as commands:
                graph.encode(commands, [image, answers], intermediate_images=images, destination_states=states)
            found.append([np.array(images[0]), states[0].gradient_for_weights, states[0].gradient_for_biases])
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)
        assert found[0][1].any()
    assert len(taken_over) >= 2
