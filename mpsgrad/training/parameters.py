"""Data sources whose parameters an optimizer updates on the device, and which a checkpoint can restore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.data_type import DataType
from mpsgrad.devices import Device
from mpsgrad.errors import CheckpointError
from mpsgrad.kernels.batch_normalization_data_source import BatchNormalizationDataSource
from mpsgrad.kernels.batch_normalization_state import (
    BatchNormalizationState,
    NormalizationGammaAndBetaState,
    NormalizationMeanAndVarianceState,
)
from mpsgrad.kernels.convolution_data_source import ConvolutionDataSource
from mpsgrad.kernels.convolution_descriptor import ConvolutionDescriptor
from mpsgrad.kernels.convolution_state import (
    ConvolutionGradientState,
    ConvolutionWeightsAndBiasesState,
)
from mpsgrad.kernels.group_normalization_data_source import GroupNormalizationDataSource
from mpsgrad.kernels.group_normalization_state import GroupNormalizationGradientState, NormalizationGradientSum
from mpsgrad.kernels.optimizer import (
    Optimizer,
    OptimizerDescriptor,
    OptimizerStochasticGradientDescent,
    RegularizationType,
)
from mpsgrad.kernels.optimizer_adaptive import OptimizerAdam
from mpsgrad.state import State
from mpsgrad.training.optimizers import OptimizerKind
from mpsgrad.vector import Vector

RUNNING_AVERAGE_RATE = 0.1


class _Trained:
    """The optimizer of one node's parameters, with the vectors that it keeps from step to step."""

    parameter_names: tuple[str, ...]

    def __init__(self, kind: OptimizerKind, arrays: Mapping[str, np.ndarray], device: Device) -> None:
        self.optimizer: Optimizer = kind.make(OptimizerDescriptor(learning_rate=kind.learning_rate), device)
        self._sizes = {name: arrays[name].size for name in self.parameter_names if name in arrays}
        self._slots = {slot: [Vector(size, device) for size in self._sizes.values()] for slot in kind.slots}

    def arrays(self) -> dict[str, np.ndarray]:
        """Copies of the parameters by name."""
        raise NotImplementedError

    def optimizer_arrays(self) -> dict[str, np.ndarray]:
        """Copies of what the optimizer keeps, as ``slot.parameter``."""
        return {
            f"{slot}.{name}": np.asarray(vector)
            for slot, vectors in self._slots.items()
            for name, vector in zip(self._sizes, vectors, strict=True)
        }

    @property
    def optimizer_numbers(self) -> dict[str, int]:
        """What the optimizer counts."""
        step = getattr(self.optimizer, "time_step", None)
        return {} if step is None else {"time_step": step}

    def take_step_back(self) -> None:
        """Called if the device left the last step out: what the host counts is as before it."""
        if isinstance(self.optimizer, OptimizerAdam):
            self.optimizer.time_step -= 1

    def restore_optimizer(self, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, int]) -> None:
        """The inverse of ``optimizer_arrays`` and ``optimizer_numbers``."""
        for slot, vectors in self._slots.items():
            for name, vector in zip(self._sizes, vectors, strict=True):
                vector.buffer.write(taken(arrays, f"{slot}.{name}", (vector.length,)))
        for name, value in numbers.items():
            setattr(self.optimizer, name, value)


class TrainedWeights(_Trained, ConvolutionDataSource):
    """Weights and, where there are any, biases; kernels may take weights as ``kernel_weights_data_type``."""

    parameter_names = ("weights", "biases")

    def __init__(
        self,
        kind: OptimizerKind,
        descriptor: ConvolutionDescriptor,
        arrays: Mapping[str, np.ndarray],
        device: Device,
        kernel_weights_data_type: DataType = DataType.FLOAT32,
    ) -> None:
        super().__init__(kind, arrays, device)
        self.kernel_weights_data_type = kernel_weights_data_type
        self._descriptor = descriptor
        self._state = ConvolutionWeightsAndBiasesState.from_arrays(arrays["weights"], arrays.get("biases"), device)

    @property
    def descriptor(self) -> ConvolutionDescriptor:
        return self._descriptor

    @property
    def weights(self) -> np.ndarray:
        return self._state.weights

    @property
    def bias_terms(self) -> np.ndarray | None:
        return self._state.biases

    @property
    def weights_and_biases_state(self) -> ConvolutionWeightsAndBiasesState:
        return self._state

    def arrays(self) -> dict[str, np.ndarray]:
        biases = self.bias_terms
        return {"weights": self.weights} | ({} if biases is None else {"biases": biases})

    def update_with_command_buffer(
        self,
        command_buffer: CommandBuffer,
        gradient_state: ConvolutionGradientState,
        source_state: ConvolutionWeightsAndBiasesState,
    ) -> ConvolutionWeightsAndBiasesState:
        optimizer: Any = self.optimizer
        optimizer.encode_convolution(
            command_buffer, gradient_state, source_state, **self._slots, result_state=self._state
        )
        return self._state


class _TrainedGammaAndBeta(_Trained):
    """Gamma and beta."""

    parameter_names = ("gamma", "beta")

    def __init__(self, kind: OptimizerKind, epsilon: float, arrays: Mapping[str, np.ndarray], device: Device) -> None:
        super().__init__(kind, arrays, device)
        self._epsilon = epsilon
        self._gamma_and_beta = NormalizationGammaAndBetaState.from_arrays(arrays["gamma"], arrays["beta"], device)

    @property
    def number_of_feature_channels(self) -> int:
        return self._gamma_and_beta.number_of_feature_channels

    @property
    def epsilon(self) -> float:
        return self._epsilon

    @property
    def gamma(self) -> np.ndarray:
        return self._gamma_and_beta.gamma

    @property
    def beta(self) -> np.ndarray:
        return self._gamma_and_beta.beta

    @property
    def gamma_and_beta_state(self) -> NormalizationGammaAndBetaState:
        return self._gamma_and_beta

    def arrays(self) -> dict[str, np.ndarray]:
        return {"gamma": self.gamma, "beta": self.beta}

    def _update(self, command_buffer: CommandBuffer, gradients: State) -> NormalizationGammaAndBetaState:
        optimizer: Any = self.optimizer
        optimizer.encode_batch_normalization(
            command_buffer, gradients, self._gamma_and_beta, **self._slots, result_state=self._gamma_and_beta
        )
        return self._gamma_and_beta


class TrainedImageNormalization(_TrainedGammaAndBeta, GroupNormalizationDataSource):
    """Gamma and beta of instance and group normalization."""

    def __init__(
        self,
        kind: OptimizerKind,
        epsilon: float,
        number_of_groups: int,
        arrays: Mapping[str, np.ndarray],
        device: Device,
    ) -> None:
        super().__init__(kind, epsilon, arrays, device)
        self._groups = number_of_groups

    @property
    def number_of_groups(self) -> int:
        return self._groups

    def update_gamma_and_beta_with_command_buffer(
        self, command_buffer: CommandBuffer, group_normalization_state_batch: Sequence[GroupNormalizationGradientState]
    ) -> NormalizationGammaAndBetaState:
        gradients = NormalizationGradientSum.of(command_buffer, group_normalization_state_batch)
        return self._update(command_buffer, gradients)


@cache
def running_average(device: Device) -> OptimizerStochasticGradientDescent:
    """A step of ``-RUNNING_AVERAGE_RATE`` on the "gradient" ``batch - v``, which L2 with scale -1 gives."""
    descriptor = OptimizerDescriptor(
        learning_rate=-RUNNING_AVERAGE_RATE,
        regularization_type=RegularizationType.L2,
        regularization_scale=-1.0,
    )
    return OptimizerStochasticGradientDescent(descriptor, device=device)


class TrainedNormalization(_TrainedGammaAndBeta, BatchNormalizationDataSource):
    """Gamma and beta, and the running averages of mean and variance: ``v + 0.1 (batch - v)`` in each step."""

    def __init__(self, kind: OptimizerKind, epsilon: float, arrays: Mapping[str, np.ndarray], device: Device) -> None:
        super().__init__(kind, epsilon, arrays, device)
        self._running = NormalizationMeanAndVarianceState.from_arrays(arrays["mean"], arrays["variance"], device)
        self._average = running_average(device)

    @property
    def mean(self) -> np.ndarray:
        return self._running.mean

    @property
    def variance(self) -> np.ndarray:
        return self._running.variance

    @property
    def mean_and_variance_state(self) -> NormalizationMeanAndVarianceState:
        return self._running

    def arrays(self) -> dict[str, np.ndarray]:
        return {**super().arrays(), "mean": self.mean, "variance": self.variance}

    def update_gamma_and_beta_with_command_buffer(
        self, command_buffer: CommandBuffer, batch_normalization_state: BatchNormalizationState
    ) -> NormalizationGammaAndBetaState:
        return self._update(command_buffer, batch_normalization_state)

    def update_mean_and_variance_with_command_buffer(
        self, command_buffer: CommandBuffer, batch_normalization_state: BatchNormalizationState
    ) -> NormalizationMeanAndVarianceState:
        vectors = zip(batch_normalization_state.statistics_vectors, self._running.parameter_vectors, strict=True)
        for batch, running in vectors:
            self._average.encode(
                command_buffer, input_gradient_vector=batch, input_values_vector=running, result_values_vector=running
            )
        self._running._written_by(command_buffer)
        return self._running


Trained = TrainedWeights | TrainedNormalization | TrainedImageNormalization


def taken(arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The array of a checkpoint. Raises ``CheckpointError`` if there is none of this name or it has another shape."""
    array = arrays.get(name)
    if array is None or array.shape != shape or array.dtype != np.float32:
        found = "nothing" if array is None else f"{array.dtype.name} of shape {array.shape}"
        raise CheckpointError(f"the checkpoint has {found} for {name}; the model has float32 of shape {shape}")
    return array
