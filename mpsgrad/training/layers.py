"""Layers of a network: a forward kernel, its gradient kernel, and the update of its parameters on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.image import Image
from mpsgrad.kernels.batch_normalization import (
    BatchNormalization,
    BatchNormalizationGradient,
    BatchNormalizationStatistics,
    BatchNormalizationStatisticsGradient,
)
from mpsgrad.kernels.batch_normalization_data_source import BatchNormalizationDataSource
from mpsgrad.kernels.batch_normalization_state import (
    BatchNormalizationState,
    NormalizationGammaAndBetaState,
    NormalizationMeanAndVarianceState,
)
from mpsgrad.kernels.convolution import (
    Convolution,
    ConvolutionGradient,
    ConvolutionGradientOption,
    FullyConnected,
    FullyConnectedGradient,
)
from mpsgrad.kernels.convolution_data_source import ConvolutionDataSource
from mpsgrad.kernels.convolution_state import ConvolutionWeightsAndBiasesState
from mpsgrad.kernels.neuron import NeuronGradient, NeuronReLU
from mpsgrad.kernels.optimizer import OptimizerDescriptor, OptimizerStochasticGradientDescent, RegularizationType
from mpsgrad.kernels.pooling import PoolingMax
from mpsgrad.kernels.pooling_gradient import PoolingMaxGradient
from mpsgrad.vector import Vector

RUNNING_AVERAGE_RATE = 0.1
BATCH_NORMALIZATION_EPSILON = 1e-5


@dataclass(frozen=True)
class Step:
    """What one layer did in one training step: the images and the state of its forward and backward encodes."""

    source: Image
    result: Image
    state: Any
    source_gradient: Image | None = None
    destination_gradient: Image | None = None


class Layer(Protocol):
    """One layer. ``step`` is its part of the present training step."""

    name: str
    step: Step | None

    def forward(self, commands: CommandBuffer, source: Image) -> Image:
        """The result for training; keeps what ``backward`` needs."""
        ...

    def infer(self, commands: CommandBuffer, source: Image) -> Image:
        """The result for evaluation."""
        ...

    def backward(self, commands: CommandBuffer, source_gradient: Image) -> Image | None:
        """The gradient with respect to the source, if anything needs it, and inside the state those of the parameters.
        """
        ...

    def update(self, commands: CommandBuffer, optimizer: OptimizerStochasticGradientDescent) -> None:
        """Encodes one optimizer step and loads the new parameters into the kernels."""
        ...

    def parameters(self) -> dict[str, np.ndarray]:
        """Copies of the parameters by name."""
        ...


class _KernelPair:
    """A forward and a gradient kernel without parameters."""

    def __init__(self, name: str, forward: Any, gradient: Any) -> None:
        self.name = name
        self.forward_kernel = forward
        self.gradient_kernel = gradient
        self.step: Step | None = None

    def forward(self, commands: CommandBuffer, source: Image) -> Image:
        result, state = self.forward_kernel.encode(commands, source, return_state=True)
        self.step = Step(source, result, state)
        return result

    def infer(self, commands: CommandBuffer, source: Image) -> Image:
        return self.forward_kernel.encode(commands, source)

    def backward(self, commands: CommandBuffer, source_gradient: Image) -> Image | None:
        step = self.step
        assert step is not None
        gradient = self.gradient_kernel.encode(commands, source_gradient, step.source, step.state)
        self.step = Step(step.source, step.result, step.state, source_gradient, gradient)
        return gradient

    def update(self, commands: CommandBuffer, optimizer: OptimizerStochasticGradientDescent) -> None:
        """Nothing to update."""

    def parameters(self) -> dict[str, np.ndarray]:
        return {}


class ReLULayer(_KernelPair):
    """max(x, 0)."""

    def __init__(self, name: str) -> None:
        forward = NeuronReLU()
        super().__init__(name, forward, NeuronGradient(forward.neuron_descriptor))


class PoolingMaxLayer(_KernelPair):
    """Max pooling over windows of ``size`` pixels side by side, with recorded maxima."""

    def __init__(self, name: str, size: int) -> None:
        window: dict[str, Any] = {
            "kernel_width": size,
            "kernel_height": size,
            "stride_in_pixels_x": size,
            "stride_in_pixels_y": size,
        }
        super().__init__(name, PoolingMax(**window, record_maxima=True), PoolingMaxGradient(**window))


class _WeightedLayer(_KernelPair):
    """A layer with weights and biases, updated on the device: the third way of the class text."""

    def __init__(self, name: str, forward_class: Any, gradient_class: Any, weights: np.ndarray) -> None:
        biases = np.zeros(weights.shape[0], np.float32)
        data_source = ConvolutionDataSource.from_arrays(weights, biases)
        super().__init__(name, forward_class(data_source), gradient_class(data_source))
        self.before_update: ConvolutionWeightsAndBiasesState | None = None
        self._momenta = [Vector(weights.size), Vector(biases.size)]

    def update(self, commands: CommandBuffer, optimizer: OptimizerStochasticGradientDescent) -> None:
        assert self.step is not None
        values = self.before_update = self.forward_kernel.export_weights_and_biases(commands)
        updated = ConvolutionWeightsAndBiasesState.with_descriptor(self.forward_kernel.descriptor)
        optimizer.encode_convolution(
            commands, self.step.state, values, input_momentum_vectors=self._momenta, result_state=updated
        )
        self.forward_kernel.reload_weights_and_biases(commands, updated)
        self.gradient_kernel.reload_weights_and_biases(commands, updated)

    def parameters(self) -> dict[str, np.ndarray]:
        weights, biases = self.forward_kernel.weights_and_biases
        return {"weights": weights, "biases": biases}


class BatchNormalizationLayer:
    """Batch normalization; evaluation uses running averages of mean and variance, kept on the device."""

    def __init__(self, name: str, channels: int) -> None:
        self.name = name
        self.step: Step | None = None
        zeros, ones = np.zeros(channels, np.float32), np.ones(channels, np.float32)
        data_source = BatchNormalizationDataSource.from_arrays(
            gamma=ones, beta=zeros, mean=zeros, variance=ones, epsilon=BATCH_NORMALIZATION_EPSILON
        )
        self.kernel = BatchNormalization(data_source)
        self._statistics = BatchNormalizationStatistics()
        self._statistics_gradient = BatchNormalizationStatisticsGradient()
        self._gradient = BatchNormalizationGradient()
        self._momenta = [Vector(channels), Vector(channels)]
        self._running = NormalizationMeanAndVarianceState.from_arrays(zeros, ones)
        # v + rate * (batch - v): a step of rate -rate on the "gradient" batch - v, which L2 with scale -1 gives.
        self._average = OptimizerStochasticGradientDescent(
            OptimizerDescriptor(
                learning_rate=-RUNNING_AVERAGE_RATE,
                regularization_type=RegularizationType.L2,
                regularization_scale=-1.0,
            )
        )
        self._gamma_and_beta = NormalizationGammaAndBetaState.from_arrays(ones, zeros)

    @property
    def epsilon(self) -> float:
        return self.kernel.epsilon

    def forward(self, commands: CommandBuffer, source: Image) -> Image:
        # A step begins with what the last one left, so that one that is recorded goes on from its own results.
        self.kernel.reload_gamma_and_beta_with_command_buffer(commands, self._gamma_and_beta)
        state = self.kernel.result_state(source)
        self._statistics.encode_batch(commands, source.batch_representation(), state)
        result = self.kernel.encode(commands, source, batch_normalization_state=state)
        self.step = Step(source, result, state)
        return result

    def infer(self, commands: CommandBuffer, source: Image) -> Image:
        self.kernel.reload_gamma_and_beta_with_command_buffer(commands, self._gamma_and_beta)
        self.kernel.reload_mean_and_variance_with_command_buffer(commands, self._running)
        return self.kernel.encode(commands, source)

    def backward(self, commands: CommandBuffer, source_gradient: Image) -> Image:
        step = self.step
        assert step is not None
        images, gradients = step.source.batch_representation(), source_gradient.batch_representation()
        self._statistics_gradient.encode_batch(commands, gradients, images, step.state)
        gradient = self._gradient.encode(commands, source_gradient, step.source, step.state)
        self.step = Step(step.source, step.result, step.state, source_gradient, gradient)
        return gradient

    def update(self, commands: CommandBuffer, optimizer: OptimizerStochasticGradientDescent) -> None:
        assert self.step is not None
        state: BatchNormalizationState = self.step.state
        values = self._gamma_and_beta
        optimizer.encode_batch_normalization(
            commands, state, values, input_momentum_vectors=self._momenta, result_state=values
        )
        for batch, running in zip(state.statistics_vectors, self._running.parameter_vectors, strict=True):
            self._average.encode(
                commands, input_gradient_vector=batch, input_values_vector=running, result_values_vector=running
            )
        self._running._written_by(commands)

    def parameters(self) -> dict[str, np.ndarray]:
        return {
            "gamma": self._gamma_and_beta.gamma,
            "beta": self._gamma_and_beta.beta,
            "mean": self._running.mean,
            "variance": self._running.variance,
        }


class ConvolutionLayer(_WeightedLayer):
    """A convolution of the same size with a ``size`` x ``size`` window.

    Of pictures themselves (``is_first``) nothing needs the gradient.
    """

    def __init__(
        self,
        name: str,
        size: int,
        inputs: int,
        outputs: int,
        generator: np.random.Generator,
        *,
        is_first: bool = False,
    ) -> None:
        weights = _initial_weights((outputs, size, size, inputs), generator)
        super().__init__(name, Convolution, ConvolutionGradient, weights)
        if is_first:
            self.gradient_kernel.gradient_option = ConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS


class FullyConnectedLayer(_WeightedLayer):
    """A fully connected layer over pictures of ``height`` x ``width`` pixels."""

    def __init__(
        self, name: str, height: int, width: int, inputs: int, outputs: int, generator: np.random.Generator
    ) -> None:
        weights = _initial_weights((outputs, height, width, inputs), generator)
        super().__init__(name, FullyConnected, FullyConnectedGradient, weights)


def _initial_weights(shape: tuple[int, int, int, int], generator: np.random.Generator) -> np.ndarray:
    """Normal with variance 2 / inputs, which keeps activations' size through ReLU (He et al., 2015)."""
    deviation = np.sqrt(2.0 / np.prod(shape[1:]))
    return (deviation * generator.standard_normal(shape)).astype(np.float32)
