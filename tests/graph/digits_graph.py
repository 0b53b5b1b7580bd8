"""The network of ``mpsgrad train digits`` as a graph: data sources that train on the device, and its nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

import mpsgrad as mg
from mpsgrad.training.layers import BATCH_NORMALIZATION_EPSILON, RUNNING_AVERAGE_RATE
from mpsgrad.training.network import Network


class Weights(mg.ConvolutionDataSource):
    """Weights and biases that stochastic gradient descent with momentum updates on the device."""

    def __init__(self, weights: np.ndarray, optimizer: mg.OptimizerStochasticGradientDescent) -> None:
        self._arrays = weights, np.zeros(weights.shape[0], np.float32)
        outputs, height, width, inputs = weights.shape
        self._descriptor = mg.ConvolutionDescriptor(width, height, inputs, outputs)
        self._optimizer = optimizer
        self._momenta = [mg.Vector(array.size) for array in self._arrays]
        self._updated = mg.ConvolutionWeightsAndBiasesState.with_descriptor(self._descriptor)

    descriptor = property(lambda self: self._descriptor)
    weights = property(lambda self: self._arrays[0])
    bias_terms = property(lambda self: self._arrays[1])

    def load(self) -> bool:
        if self._updated._writer is not None:
            biases = self._updated.biases
            assert biases is not None
            self._arrays = self._updated.weights, biases
        return True

    def update_with_command_buffer(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
        self._optimizer.encode_convolution(
            command_buffer,
            gradient_state,
            source_state,
            input_momentum_vectors=self._momenta,
            result_state=self._updated,
        )
        return self._updated


class Normalization(mg.BatchNormalizationDataSource):
    """Gamma and beta that are updated on the device, and running averages of mean and variance."""

    def __init__(self, channels: int, optimizer: mg.OptimizerStochasticGradientDescent) -> None:
        zeros, ones = np.zeros(channels, np.float32), np.ones(channels, np.float32)
        self._optimizer = optimizer
        self._momenta = [mg.Vector(channels), mg.Vector(channels)]
        self.gamma_and_beta = mg.NormalizationGammaAndBetaState.from_arrays(ones, zeros)
        self.running = mg.NormalizationMeanAndVarianceState.from_arrays(zeros, ones)
        self._average = mg.OptimizerStochasticGradientDescent(
            mg.OptimizerDescriptor(
                learning_rate=-RUNNING_AVERAGE_RATE,
                regularization_type=mg.RegularizationType.L2,
                regularization_scale=-1.0,
            )
        )

    number_of_feature_channels = property(lambda self: self.gamma_and_beta.number_of_feature_channels)
    gamma = property(lambda self: self.gamma_and_beta.gamma)
    beta = property(lambda self: self.gamma_and_beta.beta)
    mean = property(lambda self: self.running.mean)
    variance = property(lambda self: self.running.variance)
    epsilon = BATCH_NORMALIZATION_EPSILON

    def update_gamma_and_beta_with_command_buffer(self, command_buffer: Any, batch_normalization_state: Any) -> Any:
        self._optimizer.encode_batch_normalization(
            command_buffer,
            batch_normalization_state,
            input_momentum_vectors=self._momenta,
            result_state=self.gamma_and_beta,
        )
        return self.gamma_and_beta

    def update_mean_and_variance_with_command_buffer(self, command_buffer: Any, batch_normalization_state: Any) -> Any:
        vectors = zip(batch_normalization_state.statistics_vectors, self.running.parameter_vectors, strict=True)
        for batch, running in vectors:
            self._average.encode(
                command_buffer, input_gradient_vector=batch, input_values_vector=running, result_values_vector=running
            )
        self.running._written_by(command_buffer)
        return self.running


class DigitsGraph:
    """The graphs of training and inference of ``network``, which is left as it is."""

    def __init__(self, network: Network, optimizer: mg.OptimizerStochasticGradientDescent, batch_size: int) -> None:
        self.sources: dict[str, Any] = {}
        image: mg.ImageNode = mg.ImageNode("pictures")
        for layer in network.layers:
            parameters = layer.parameters()
            node: mg.FilterNode
            if layer.name.startswith("batch"):
                source = self.sources[layer.name] = Normalization(parameters["gamma"].size, optimizer)
                node = mg.BatchNormalizationNode(image, source)
            elif parameters:
                weights = self.sources[layer.name] = Weights(parameters["weights"], optimizer)
                kind = mg.ConvolutionNode if layer.name.startswith("convolution") else mg.FullyConnectedNode
                node = kind(image, weights)
            elif layer.name == "pooling":
                node = mg.PoolingMaxNode(image, 2)
            else:
                node = mg.NeuronReLUNode(image)
            node.label = layer.name
            image = node.result_image
        self.scores = image
        descriptor = mg.LossDescriptor("softmax_cross_entropy", "sum", weight=1.0 / batch_size)
        self.loss = mg.LossNode(image, descriptor=descriptor)
        self.training = mg.Graph(self.loss.training_graph(), results_are_needed=False)
        self.inference = mg.Graph(mg.SoftMaxNode(image))

    def train_step(self, pictures: np.ndarray, labels: np.ndarray) -> float:
        targets = mg.LossLabels.from_array(labels)
        with mg.CommandBuffer() as commands:
            assert self.training.encode(commands, [mg.Image.from_array(pictures)], [targets]) is None
        return float(np.asarray(targets.loss_image).sum())

    def probabilities(self, pictures: np.ndarray) -> np.ndarray:
        self.inference.reload_from_data_sources()
        with mg.CommandBuffer() as commands:
            result = self.inference.encode(commands, [mg.Image.from_array(pictures)])
        return np.asarray(result).reshape(len(pictures), -1)

    def parameters(self) -> dict[str, np.ndarray]:
        found = {}
        for name, source in self.sources.items():
            assert source.load()
            for own in ("gamma", "beta", "mean", "variance"):
                if hasattr(source, own):
                    found[f"{name}.{own}"] = getattr(source, own)
            if hasattr(source, "bias_terms"):
                found |= {f"{name}.weights": source.weights, f"{name}.biases": source.bias_terms}
        return found
