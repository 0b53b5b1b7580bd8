"""One step of training, written out: the calls, their order, and the three ways to update the weights.

The network is a 3x3 convolution, a ReLU, 2x2 max pooling and a fully connected layer; the loss is softmax
cross-entropy.
"""

from __future__ import annotations

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad import reference

CLASSES = 5
LEARNING_RATE = 0.05


class Network:
    """The kernels, their gradient kernels, and the data sources that hold the weights."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)

        def weights(*shape: int) -> np.ndarray:
            return (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

        self.data_sources = [
            mg.ConvolutionDataSource.from_arrays(weights(8, 3, 3, 2), np.zeros(8, np.float32), label="convolution"),
            mg.ConvolutionDataSource.from_arrays(weights(CLASSES, 4, 4, 8), np.zeros(CLASSES, np.float32), label="top"),
        ]
        self.convolution = mg.Convolution(self.data_sources[0])
        self.neuron = mg.NeuronReLU(a=0.1)
        self.pooling = mg.PoolingMax(kernel_width=2, kernel_height=2, stride_in_pixels_x=2, stride_in_pixels_y=2)
        self.top = mg.FullyConnected(self.data_sources[1])
        self.loss = mg.Loss(mg.LossDescriptor("softmax_cross_entropy", weight=1 / 6, reduction_type="sum"))
        self.convolution_gradient = mg.ConvolutionGradient(self.data_sources[0])
        self.neuron_gradient = mg.NeuronGradient(self.neuron.neuron_descriptor)
        self.pooling_gradient = mg.PoolingMaxGradient(
            kernel_width=2, kernel_height=2, stride_in_pixels_x=2, stride_in_pixels_y=2
        )
        self.top_gradient = mg.FullyConnectedGradient(self.data_sources[1])

    @property
    def layers(self):
        """Forward kernel and gradient kernel of each layer, in forward order."""
        return [
            (self.convolution, self.convolution_gradient),
            (self.neuron, self.neuron_gradient),
            (self.pooling, self.pooling_gradient),
            (self.top, self.top_gradient),
        ]

    @property
    def trained(self):
        """The layers that have weights, each with its data source."""
        return [
            (self.convolution, self.convolution_gradient, self.data_sources[0]),
            (self.top, self.top_gradient, self.data_sources[1]),
        ]


def batch(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Six images of 8x8 pixels with 2 channels, and their labels as one-hot rows."""
    random = np.random.default_rng(seed)
    labels = np.eye(CLASSES, dtype=np.float32)[random.integers(0, CLASSES, 6)]
    return random.standard_normal((6, 8, 8, 2)).astype(np.float32), labels.reshape(6, 1, 1, CLASSES)


def spelled_out(network: Network, images: np.ndarray, labels: np.ndarray):
    """Steps 1a to 6, one call at a time. Returns the loss, the gradient of the images, and the states."""
    loss_labels = mg.LossLabels.from_array(labels)
    with mg.CommandBuffer() as commands:
        tape = []
        x = mg.Image.from_array(images)
        for kernel, gradient_kernel in network.layers:
            # 1a. The padding policy sizes the result and sets kernel.offset.
            descriptor = kernel.destination_image_descriptor([x])
            # 1b. Make the result, and the state: a snapshot of the kernel as it is now.
            y = mg.Image(descriptor)
            state = kernel.result_state(x, destination_image=y)
            # 1c. Encode.
            kernel.encode(commands, x, destination_image=y, destination_state=state)
            tape.append((gradient_kernel, x, state))
            # 2. Go on with the next layer.
            x = y
        # 3. The loss kernel gives the first gradient.
        gradient = mg.Image(x.descriptor)
        network.loss.encode(commands, x, loss_labels, destination_image=gradient)
        # 4. Repeat step 5 for the layers in reverse order.
        for gradient_kernel, x, state in reversed(tape):
            # 5a. The state sets the gradient kernel's offsets and the result's size, that of the forward source.
            descriptor = gradient_kernel.destination_image_descriptor([gradient, x], [state])
            # 5b. Make the result.
            result = mg.Image(descriptor)
            # 5c. Encode; the gradients for the weights are added to the state.
            gradient_kernel.encode(commands, gradient, x, state, destination_gradient=result)
            # 6. The result is the gradient of the layer to the left.
            gradient = result
    states = [state for _, _, state in tape]
    return np.asarray(loss_labels.loss_image), np.asarray(gradient), (states[0], states[3])


def encode_step(network: Network, commands: mg.CommandBuffer, images: np.ndarray, labels: mg.LossLabels):
    """Forward and backward pass on ``commands``: the gradient for the images, and the states of layers with weights."""
    x0 = mg.Image.from_array(images)
    x1, s1 = network.convolution.encode(commands, x0, return_state=True)
    x2, s2 = network.neuron.encode(commands, x1, return_state=True)
    x3, s3 = network.pooling.encode(commands, x2, return_state=True)
    x4, s4 = network.top.encode(commands, x3, return_state=True)
    g4 = network.loss.encode(commands, x4, labels)
    g3 = network.top_gradient.encode(commands, g4, x3, s4)
    g2 = network.pooling_gradient.encode(commands, g3, x2, s3)
    g1 = network.neuron_gradient.encode(commands, g2, x1, s2)
    return network.convolution_gradient.encode(commands, g1, x0, s1), (s1, s4)


def combined(network: Network, images: np.ndarray, labels: np.ndarray):
    """The same with the encodes that make results and states by themselves."""
    loss_labels = mg.LossLabels.from_array(labels)
    with mg.CommandBuffer() as commands:
        gradient, states = encode_step(network, commands, images, loss_labels)
    return np.asarray(loss_labels.loss_image), np.asarray(gradient), states


def in_batches(network: Network, images: np.ndarray, labels: np.ndarray):
    """The same with a list of images: a convolution has one state for all of them, a pooling one for each."""
    loss_labels = [mg.LossLabels.from_array(one[None]) for one in labels]
    with mg.CommandBuffer() as commands:
        x0 = mg.ImageBatch(mg.Image.from_array(one[None]) for one in images)
        x1, s1 = network.convolution.encode_batch(commands, x0, return_state=True)
        x2, s2 = network.neuron.encode_batch(commands, x1, return_state=True)
        x3, s3 = network.pooling.encode_batch(commands, x2, return_state=True)
        x4, s4 = network.top.encode_batch(commands, x3, return_state=True)
        g4 = network.loss.encode_batch(commands, x4, loss_labels)
        g3 = network.top_gradient.encode_batch(commands, g4, x3, s4)
        g2 = network.pooling_gradient.encode_batch(commands, g3, x2, s3)
        g1 = network.neuron_gradient.encode_batch(commands, g2, x1, s2)
        g0 = network.convolution_gradient.encode_batch(commands, g1, x0, s1)
    assert len(set(map(id, s1))) == 1 and len(set(map(id, s2))) == 6
    losses = sum(np.asarray(one.loss_image) for one in loss_labels)
    return losses, np.asarray(g0), (s1[0], s4[0])


def by_reference(network: Network, images: np.ndarray, labels: np.ndarray):
    """The same in float64: the gradient of the images, and the gradients for weights and biases of both layers."""
    w1, w4 = (data.weights for data in network.data_sources)
    b1, b4 = (data.bias_terms for data in network.data_sources)
    window = {"kernel": (2, 2), "stride": (2, 2), "offset": (1, 1), "size": (4, 4), "edge": "zero"}
    x1 = reference.convolution(images, w1, b1, size=(8, 8))
    x2 = np.where(x1 >= 0, x1, 0.1 * x1)
    x3 = reference.pooling_max(x2, **window)
    x4 = reference.fully_connected(x3, w4, b4)
    soft_max = np.exp(x4 - x4.max(axis=3, keepdims=True))
    g4 = (soft_max / soft_max.sum(axis=3, keepdims=True) - labels) / 6
    g3 = reference.fully_connected_gradient_data(g4, w4)
    g2 = reference.pooling_max_gradient(g3, x2, **window)
    g1 = np.where(x1 >= 0, g2, 0.1 * g2)
    g0 = reference.convolution_gradient_data(g1, w1, source_size=(8, 8))
    return g0, [
        (reference.convolution_gradient_weights(g1, images, kernel=(3, 3)), g1.sum((0, 1, 2))),
        (reference.fully_connected_gradient_weights(g4, x3), g4.sum((0, 1, 2))),
    ]


@pytest.mark.parametrize("step", [spelled_out, combined, in_batches])
def test_a_step_gives_the_gradients_of_the_references(step):
    network, (images, labels) = Network(), batch()
    _, gradient, states = step(network, images, labels)
    expected, parameters = by_reference(network, images, labels)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=2e-6)
    for state, (weights, biases) in zip(states, parameters, strict=True):
        np.testing.assert_allclose(state.gradient_for_weights, weights, rtol=0, atol=5e-6)
        np.testing.assert_allclose(state.gradient_for_biases, biases, rtol=0, atol=5e-6)


def test_spelled_out_and_combined_give_the_same_bits():
    network, (images, labels) = Network(), batch()
    loss, gradient, states = spelled_out(network, images, labels)
    loss2, gradient2, states2 = combined(network, images, labels)
    assert np.array_equal(loss.sum(), loss2.sum())
    assert np.array_equal(gradient, gradient2)
    for one, two in zip(states, states2, strict=True):
        assert np.array_equal(one.gradient_for_weights, two.gradient_for_weights)
        assert np.array_equal(one.gradient_for_biases, two.gradient_for_biases)


def test_changing_a_kernel_after_its_encode_does_not_change_the_gradient():
    """The state holds its own copy of the forward kernel's properties."""
    network, (images, labels) = Network(), batch()
    _, expected, _ = spelled_out(network, images, labels)
    with mg.CommandBuffer() as commands:
        x0 = mg.Image.from_array(images)
        x1, s1 = network.convolution.encode(commands, x0, return_state=True)
        network.convolution.offset = mg.Offset(5, 5)
        network.convolution.edge_mode = mg.EdgeMode.CLAMP
        x2, s2 = network.neuron.encode(commands, x1, return_state=True)
        x3, s3 = network.pooling.encode(commands, x2, return_state=True)
        network.pooling.offset = mg.Offset(0, 3)
        x4, s4 = network.top.encode(commands, x3, return_state=True)
        g4 = network.loss.encode(commands, x4, mg.LossLabels.from_array(labels))
        g3 = network.top_gradient.encode(commands, g4, x3, s4)
        g2 = network.pooling_gradient.encode(commands, g3, x2, s3)
        g1 = network.neuron_gradient.encode(commands, g2, x1, s2)
        g0 = network.convolution_gradient.encode(commands, g1, x0, s1)
    assert np.array_equal(np.asarray(g0), expected)


def update_own_copy(network: Network, images: np.ndarray, labels: mg.LossLabels) -> list[np.ndarray]:
    """First way: read the gradients on the CPU and change weights of your own, for instance for a checkpoint.

    The kernels keep the weights that they have.
    """
    with mg.CommandBuffer() as commands:
        _, states = encode_step(network, commands, images, labels)
        for state in states:
            state.synchronize(commands)
    return [
        data.weights - np.float32(LEARNING_RATE) * state.gradient_for_weights
        for state, data in zip(states, network.data_sources, strict=True)
    ]


def update_on_the_cpu(network: Network, images: np.ndarray, labels: mg.LossLabels) -> None:
    """Second way: change the data source, and have both kernels of each layer read it again."""
    with mg.CommandBuffer() as commands:
        _, states = encode_step(network, commands, images, labels)
        for state in states:
            state.synchronize(commands)
    for state, (kernel, gradient_kernel, data) in zip(states, network.trained, strict=True):
        data.weights[...] -= np.float32(LEARNING_RATE) * state.gradient_for_weights
        data.bias_terms[...] -= np.float32(LEARNING_RATE) * state.gradient_for_biases
        kernel.reload_weights_and_biases_from_data_source()
        gradient_kernel.reload_weights_and_biases_from_data_source()


DESCENT = """
#include <metal_stdlib>
using namespace metal;

[[max_total_threads_per_threadgroup(64)]]
kernel void descend(
    device const float* value [[buffer(0)]],
    device const float* gradient [[buffer(1)]],
    device float* result [[buffer(2)]],
    constant int& count [[buffer(3)]],
    uint index [[thread_position_in_grid]])
{
    if (int(index) < count) {
        result[index] = value[index] - 0.05f * gradient[index];
    }
}
"""


def update_by_a_kernel_of_your_own(network: Network, images: np.ndarray, labels: mg.LossLabels) -> None:
    """Third way: everything on the device. A Metal kernel reads the gradients and writes the new weights."""
    device = mg.default_device()
    descend = device.compile(DESCENT, name="descend.metal").function("descend")
    with mg.CommandBuffer() as commands:
        _, states = encode_step(network, commands, images, labels)
        for state, (kernel, gradient_kernel, _) in zip(states, network.trained, strict=True):
            now = kernel.export_weights_and_biases(commands, result_state_can_be_temporary=True)
            then = mg.ConvolutionWeightsAndBiasesState.temporary(commands, kernel.descriptor)
            then.read_count = 2
            for index in (0, 1):
                count = state.buffer_size(index) // 4
                commands.add_dispatch(
                    descend,
                    -(-count // 64),
                    now.resource(index),
                    state.resource(index),
                    then.resource(index),
                    device.constant_buffer(np.int32(count).tobytes()),
                )
            now.read_count -= 1
            kernel.reload_weights_and_biases(commands, then)
            gradient_kernel.reload_weights_and_biases(commands, then)
            assert (now.read_count, then.read_count) == (0, 0)


def update_by_an_optimizer(network: Network, images: np.ndarray, labels: mg.LossLabels) -> None:
    """Third way, with the optimizer of this package."""
    optimizer = mg.OptimizerStochasticGradientDescent.with_learning_rate(LEARNING_RATE)
    with mg.CommandBuffer() as commands:
        _, states = encode_step(network, commands, images, labels)
        for state, (kernel, gradient_kernel, _) in zip(states, network.trained, strict=True):
            now = kernel.export_weights_and_biases(commands)
            then = mg.ConvolutionWeightsAndBiasesState.with_descriptor(kernel.descriptor)
            optimizer.encode_convolution(commands, state, now, result_state=then)
            kernel.reload_weights_and_biases(commands, then)
            gradient_kernel.reload_weights_and_biases(commands, then)


def test_an_own_copy_leaves_the_kernels_alone():
    network, (images, labels) = Network(), batch()
    before = [kernel.weights_and_biases[0] for kernel, _, _ in network.trained]
    updated = update_own_copy(network, images, mg.LossLabels.from_array(labels))
    _, parameters = by_reference(network, images, labels)
    for (kernel, _, data), old, new, (gradient, _) in zip(network.trained, before, updated, parameters, strict=True):
        assert np.array_equal(kernel.weights_and_biases[0], old)
        np.testing.assert_allclose(new, data.weights - LEARNING_RATE * gradient, rtol=0, atol=1e-6)
        assert not np.array_equal(new, old)


UPDATES = [update_on_the_cpu, update_by_a_kernel_of_your_own, update_by_an_optimizer]


@pytest.mark.parametrize("update", UPDATES)
def test_an_update_reaches_both_kernels(update):
    network, (images, labels) = Network(), batch()
    before = [data.weights.copy() for data in network.data_sources]
    _, parameters = by_reference(network, images, labels)
    update(network, images, mg.LossLabels.from_array(labels))
    for (kernel, gradient_kernel, data), old, (weights, biases) in zip(
        network.trained, before, parameters, strict=True
    ):
        new_weights, new_biases = kernel.weights_and_biases
        np.testing.assert_allclose(new_weights, old - LEARNING_RATE * weights, rtol=0, atol=1e-6)
        np.testing.assert_allclose(new_biases, -LEARNING_RATE * biases, rtol=0, atol=1e-6)
        assert np.array_equal(gradient_kernel.weights_and_biases[0], new_weights)
        assert np.array_equal(gradient_kernel.weights_and_biases[1], new_biases)
        assert np.array_equal(data.weights, new_weights if update is update_on_the_cpu else old)


def test_all_ways_to_update_learn_the_same():
    """Thirty steps on one batch: the loss falls below a tenth, and the ways differ only by rounding."""
    losses, weights = [], []
    for update in UPDATES:
        network, (images, labels) = Network(), batch()
        history = []
        for _ in range(30):
            loss_labels = mg.LossLabels.from_array(labels)
            update(network, images, loss_labels)
            history.append(float(np.asarray(loss_labels.loss_image).sum()))
        losses.append(history)
        weights.append([kernel.weights_and_biases[0] for kernel, _, _ in network.trained])
    for history in losses:
        assert history[-1] < 0.1 * history[0], history
        np.testing.assert_allclose(history, losses[0], rtol=1e-3)
    for others in weights[1:]:
        for one, other in zip(weights[0], others, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)


def test_a_state_is_for_one_batch():
    network, (images, labels) = Network(), batch()
    with mg.CommandBuffer() as commands:
        _, states = encode_step(network, commands, images, mg.LossLabels.from_array(labels))
    source, result = mg.Image.from_array(images), mg.Image(states[0].snapshot.destination)
    with pytest.raises(mg.StateError, match="not re-usable across batches"), mg.CommandBuffer() as commands:
        network.convolution.encode(commands, source, destination_image=result, destination_state=states[0])
