"""The network of ``mpsgrad train digits`` without a graph: each kernel is made and encoded by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

import mpsgrad as mg
from mpsgrad.training.parameters import running_average


class Layer(Protocol):
    """One layer; it keeps what its part of the present training step needs."""

    def forward(self, commands: mg.CommandBuffer, source: mg.Image) -> mg.Image: ...

    def infer(self, commands: mg.CommandBuffer, source: mg.Image) -> mg.Image: ...

    def backward(self, commands: mg.CommandBuffer, gradient: mg.Image) -> mg.Image: ...

    def update(self, commands: mg.CommandBuffer, optimizer: mg.OptimizerStochasticGradientDescent) -> None: ...

    def parameters(self) -> dict[str, np.ndarray]: ...


class KernelPair:
    """A forward and a gradient kernel without parameters."""

    def __init__(self, forward: Any, gradient: Any) -> None:
        self.forward_kernel, self.gradient_kernel = forward, gradient

    def forward(self, commands: mg.CommandBuffer, source: mg.Image) -> mg.Image:
        result, self.state = self.forward_kernel.encode(commands, source, return_state=True)
        self.source = source
        return result

    def infer(self, commands: mg.CommandBuffer, source: mg.Image) -> mg.Image:
        return self.forward_kernel.encode(commands, source)

    def backward(self, commands: mg.CommandBuffer, gradient: mg.Image) -> mg.Image:
        return self.gradient_kernel.encode(commands, gradient, self.source, self.state)

    def update(self, commands: mg.CommandBuffer, optimizer: mg.OptimizerStochasticGradientDescent) -> None:
        """Nothing to update."""

    def parameters(self) -> dict[str, np.ndarray]:
        return {}


def relu() -> KernelPair:
    forward = mg.NeuronReLU()
    return KernelPair(forward, mg.NeuronGradient(forward.neuron_descriptor))


def pooling(size: int) -> KernelPair:
    window: dict[str, Any] = {"kernel_width": size, "kernel_height": size}
    window |= {"stride_in_pixels_x": size, "stride_in_pixels_y": size}
    return KernelPair(mg.PoolingMax(**window, record_maxima=True), mg.PoolingMaxGradient(**window))


class Weighted(KernelPair):
    """Weights and biases, updated on the device."""

    def __init__(self, forward: Any, gradient: Any, arrays: Mapping[str, np.ndarray]) -> None:
        data_source = mg.ConvolutionDataSource.from_arrays(arrays["weights"], arrays["biases"])
        super().__init__(forward(data_source), gradient(data_source))
        self.momenta = [mg.Vector(arrays[name].size) for name in ("weights", "biases")]

    def update(self, commands: mg.CommandBuffer, optimizer: mg.OptimizerStochasticGradientDescent) -> None:
        values = self.forward_kernel.export_weights_and_biases(commands)
        updated = mg.ConvolutionWeightsAndBiasesState.with_descriptor(self.forward_kernel.descriptor)
        optimizer.encode_convolution(
            commands, self.state, values, input_momentum_vectors=self.momenta, result_state=updated
        )
        self.forward_kernel.reload_weights_and_biases(commands, updated)
        self.gradient_kernel.reload_weights_and_biases(commands, updated)

    def parameters(self) -> dict[str, np.ndarray]:
        weights, biases = self.forward_kernel.weights_and_biases
        return {"weights": weights, "biases": biases}


class BatchNormalization:
    """Batch normalization; evaluation uses running averages of mean and variance, kept on the device."""

    def __init__(self, arrays: Mapping[str, np.ndarray], epsilon: float) -> None:
        self.kernel = mg.BatchNormalization(mg.BatchNormalizationDataSource.from_arrays(**arrays, epsilon=epsilon))
        self.statistics = mg.BatchNormalizationStatistics()
        self.statistics_gradient = mg.BatchNormalizationStatisticsGradient()
        self.gradient = mg.BatchNormalizationGradient()
        self.momenta = [mg.Vector(arrays["gamma"].size) for _ in range(2)]
        self.running = mg.NormalizationMeanAndVarianceState.from_arrays(arrays["mean"], arrays["variance"])
        self.gamma_and_beta = mg.NormalizationGammaAndBetaState.from_arrays(arrays["gamma"], arrays["beta"])
        self.average = running_average(mg.default_device())

    def forward(self, commands: mg.CommandBuffer, source: mg.Image) -> mg.Image:
        # A step begins with what the last one left, so that one that is recorded goes on from its own results.
        self.kernel.reload_gamma_and_beta_with_command_buffer(commands, self.gamma_and_beta)
        self.source, self.state = source, self.kernel.result_state(source)
        self.statistics.encode_batch(commands, source.batch_representation(), self.state)
        return self.kernel.encode(commands, source, batch_normalization_state=self.state)

    def infer(self, commands: mg.CommandBuffer, source: mg.Image) -> mg.Image:
        self.kernel.reload_gamma_and_beta_with_command_buffer(commands, self.gamma_and_beta)
        self.kernel.reload_mean_and_variance_with_command_buffer(commands, self.running)
        return self.kernel.encode(commands, source)

    def backward(self, commands: mg.CommandBuffer, gradient: mg.Image) -> mg.Image:
        images, gradients = self.source.batch_representation(), gradient.batch_representation()
        self.statistics_gradient.encode_batch(commands, gradients, images, self.state)
        return self.gradient.encode(commands, gradient, self.source, self.state)

    def update(self, commands: mg.CommandBuffer, optimizer: mg.OptimizerStochasticGradientDescent) -> None:
        values = self.gamma_and_beta
        optimizer.encode_batch_normalization(
            commands, self.state, values, input_momentum_vectors=self.momenta, result_state=values
        )
        for batch, running in zip(self.state.statistics_vectors, self.running.parameter_vectors, strict=True):
            self.average.encode(
                commands, input_gradient_vector=batch, input_values_vector=running, result_values_vector=running
            )
        self.running._written_by(commands)

    def parameters(self) -> dict[str, np.ndarray]:
        return {
            "gamma": self.gamma_and_beta.gamma,
            "beta": self.gamma_and_beta.beta,
            "mean": self.running.mean,
            "variance": self.running.variance,
        }


class Network:
    """``models.digits`` with these ``parameters``, trained by softmax cross-entropy."""

    def __init__(self, parameters: Mapping[str, np.ndarray], epsilon: float) -> None:
        self.layers: dict[str, Layer] = {}

        def of(name: str) -> dict[str, np.ndarray]:
            lead = f"{name}."
            return {key.removeprefix(lead): array for key, array in parameters.items() if key.startswith(lead)}

        for number in (1, 2):
            name = f"convolution_{number}"
            self.layers[name] = Weighted(mg.Convolution, mg.ConvolutionGradient, of(name))
            name = f"batch_normalization_{number}"
            self.layers[name] = BatchNormalization(of(name), epsilon)
            self.layers[f"relu_{number}"] = relu()
        self.layers["pooling"] = pooling(2)
        name = "fully_connected_1"
        self.layers[name] = Weighted(mg.FullyConnected, mg.FullyConnectedGradient, of(name))
        self.layers["relu_3"] = relu()
        name = "fully_connected_2"
        self.layers[name] = Weighted(mg.FullyConnected, mg.FullyConnectedGradient, of(name))

    def encode_step(
        self,
        commands: mg.CommandBuffer,
        pictures: mg.Image,
        targets: mg.LossLabels,
        optimizer: mg.OptimizerStochasticGradientDescent,
    ) -> None:
        """Adds one step. Encoded after another it can also be recorded: replays go on from the last step."""
        weight = 1.0 / pictures.number_of_images
        loss = mg.Loss(mg.LossDescriptor("softmax_cross_entropy", "sum", weight=weight))
        image = pictures
        for layer in self.layers.values():
            image = layer.forward(commands, image)
        gradient = loss.encode(commands, image, targets)
        assert gradient is not None
        for layer in reversed(self.layers.values()):
            gradient = layer.backward(commands, gradient)
        for layer in self.layers.values():
            layer.update(commands, optimizer)

    def train_step(
        self, pictures: np.ndarray, labels: np.ndarray, optimizer: mg.OptimizerStochasticGradientDescent
    ) -> float:
        """One step on a batch; returns its mean loss."""
        targets = mg.LossLabels.from_array(labels)
        with mg.CommandBuffer() as commands:
            self.encode_step(commands, mg.Image.from_array(pictures), targets, optimizer)
        return float(np.asarray(targets.loss_image).sum())

    def probabilities(self, pictures: np.ndarray) -> np.ndarray:
        with mg.CommandBuffer() as commands:
            image = mg.Image.from_array(pictures)
            for layer in self.layers.values():
                image = layer.infer(commands, image)
            image = mg.SoftMax().encode(commands, image)
        return np.array(image).reshape(len(pictures), -1)

    def parameters(self) -> dict[str, np.ndarray]:
        """Copies of all parameters as ``layer.parameter``."""
        return {
            f"{name}.{each}": value for name, layer in self.layers.items() for each, value in layer.parameters().items()
        }
