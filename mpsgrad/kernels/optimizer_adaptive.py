"""Optimizers that scale each value's step by the size of its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import GeometryError
from mpsgrad.geometry import integer, real
from mpsgrad.joined_dispatch import JoinableKernel
from mpsgrad.kernels.optimizer import FLOAT, Optimizer, OptimizerDescriptor
from mpsgrad.kernels.optimizer_steps import STEPS
from mpsgrad.vector import Vector


def _below_one(owner: str, argument: str, value: float) -> float:
    """``value`` as the factor of an average: 1 would keep what it began with."""
    number = real(owner, argument, value, 0.0, 1.0)
    if number == 1.0:
        raise GeometryError(f"{owner}: {argument} is {value}; it has to be below 1")
    return number


class OptimizerRMSProp(Optimizer):
    """Root mean square propagation. Source: ``MPSNNOptimizerRMSProp``.

    ::

        s = decay * s + (1 - decay) * g^2
        v = v - learning_rate * g / (sqrt(s) + epsilon)

    ``g`` is the gradient after the steps of ``OptimizerDescriptor``. Vectors of ``s`` are read and overwritten; they
    begin with zeros.
    """

    # objc: -initWithDevice:decay:epsilon:optimizerDescriptor:
    def __init__(
        self,
        optimizer_descriptor: OptimizerDescriptor,
        *,
        decay: float = 0.9,
        epsilon: float = 1e-8,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(optimizer_descriptor, device=device, label=label)
        self._decay = real(type(self).__name__, "decay", decay, 0.0, 1.0)
        self._epsilon = real(type(self).__name__, "epsilon", epsilon, 0.0)

    @property
    def decay(self) -> float:
        """How much of the sum of squares is kept in a step."""
        return self._decay

    @property
    def epsilon(self) -> float:
        """What is added to its square root."""
        return self._epsilon

    def _step(self, slots: tuple[str, ...]) -> tuple[JoinableKernel, dict[str, float]]:
        return STEPS["rms_prop"], {
            "square_decay": self.decay,
            "square_scale": 1.0 - self.decay,
            "epsilon": self.epsilon,
        }

    # objc: -encodeToCommandBuffer:inputGradientVector:inputValuesVector:inputSumOfSquaresVector:resultValuesVector:
    def encode(
        self,
        command_buffer: CommandBuffer,
        *,
        input_gradient_vector: Vector,
        input_values_vector: Vector,
        input_sum_of_squares_vector: Vector,
        result_values_vector: Vector,
    ) -> None:
        """Writes the updated values to ``result_values_vector``, which may be ``input_values_vector``.

        Raises ``GeometryError`` unless all vectors have one length and the sum of squares has a buffer of its own.
        """
        slots = {"input_sum_of_squares_vector": input_sum_of_squares_vector}
        self._encode_vectors(command_buffer, input_gradient_vector, input_values_vector, slots, result_values_vector)

    # objc: -encodeToCommandBuffer:convolutionGradientState:convolutionSourceState:inputSumOfSquaresVectors:resultState:
    def encode_convolution(
        self,
        command_buffer: CommandBuffer,
        convolution_gradient_state: Any,
        convolution_source_state: Any,
        *,
        input_sum_of_squares_vectors: Sequence[Vector],
        result_state: Any,
    ) -> None:
        """Updates weights and biases: the gradients of a ``ConvolutionGradientState`` applied to the parameters of
        ``convolution_source_state`` (``ConvolutionWeightsAndBiasesState``), written to ``result_state``.

        With a single vector the biases are left as they are; ``result_state`` gets a copy of them.
        """
        slots = {"input_sum_of_squares_vector": input_sum_of_squares_vectors}
        self._encode_states(
            command_buffer, convolution_gradient_state, convolution_source_state, slots, result_state
        )

    # objc: -encodeToCommandBuffer:batchNormalizationState:inputSumOfSquaresVectors:resultState:
    # objc: -encodeToCommandBuffer:batchNormalizationGradientState:batchNormalizationSourceState:
    # objc:     inputSumOfSquaresVectors:resultState:
    def encode_batch_normalization(
        self,
        command_buffer: CommandBuffer,
        batch_normalization_gradient_state: Any,
        batch_normalization_source_state: Any = None,
        *,
        input_sum_of_squares_vectors: Sequence[Vector],
        result_state: Any,
    ) -> None:
        """Updates gamma and beta: the gradients of a ``BatchNormalizationState`` applied to the gamma and beta of
        ``batch_normalization_source_state`` (or of the same state), written to ``result_state``."""
        source = batch_normalization_source_state or batch_normalization_gradient_state
        slots = {"input_sum_of_squares_vector": input_sum_of_squares_vectors}
        self._encode_states(command_buffer, batch_normalization_gradient_state, source, slots, result_state)


class OptimizerAdam(Optimizer):
    """Adaptive moment estimation, and AMSGrad where vectors of maxima are given. Source: ``MPSNNOptimizerAdam``.

    ::

        t  = t + 1                                                 once for each encode of any form, and each replay
        lr = learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t)
        m  = beta1 * m + (1 - beta1) * g
        u  = beta2 * u + (1 - beta2) * g^2
        v  = v - lr * m / (sqrt(u) + epsilon)                            AMSGrad: x = max(x, u), in the place of u

    ``g`` is the gradient after the steps of ``OptimizerDescriptor``. Vectors of momenta ``m``, velocities ``u`` and
    maximum velocities ``x`` are read and overwritten; they begin with zeros. ``epsilon`` stands outside the correction
    of the averages, unlike in PyTorch. One object for several layers counts a step for each of them: use one for each,
    or set ``time_step``.
    """

    optional_slots = ("maximum_velocity_vector",)

    # objc: -initWithDevice:beta1:beta2:epsilon:timeStep:optimizerDescriptor:
    def __init__(
        self,
        optimizer_descriptor: OptimizerDescriptor,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        time_step: int = 0,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(optimizer_descriptor, device=device, label=label)
        self._beta1 = _below_one(type(self).__name__, "beta1", beta1)
        self._beta2 = _below_one(type(self).__name__, "beta2", beta2)
        self._epsilon = real(type(self).__name__, "epsilon", epsilon, 0.0)
        self.time_step = time_step

    @property
    def beta1(self) -> float:
        """How much of the momentum is kept in a step."""
        return self._beta1

    @property
    def beta2(self) -> float:
        """How much of the velocity is kept in a step."""
        return self._beta2

    @property
    def epsilon(self) -> float:
        """What is added to the square root of the velocity."""
        return self._epsilon

    @property
    def time_step(self) -> int:
        """How many steps were made; each encode adds 1, and each replay after the first."""
        return self._time_step

    # objc: -setTimeStep:
    @time_step.setter
    def time_step(self, time_step: int) -> None:
        self._time_step = integer(type(self).__name__, "time_step", time_step, 0)

    def _step(self, slots: tuple[str, ...]) -> tuple[JoinableKernel, dict[str, float]]:
        name = "ams_grad" if "maximum_velocity_vector" in slots else "adam"
        return STEPS[name], {
            "momentum_scale": self.beta1,
            "gradient_scale": 1.0 - self.beta1,
            "square_decay": self.beta2,
            "square_scale": 1.0 - self.beta2,
            "epsilon": self.epsilon,
        }

    # objc: -encodeToCommandBuffer:inputGradientVector:inputValuesVector:inputMomentumVector:inputVelocityVector:
    # objc:     resultValuesVector:
    # objc: -encodeToCommandBuffer:inputGradientVector:inputValuesVector:inputMomentumVector:inputVelocityVector:
    # objc:     maximumVelocityVector:resultValuesVector:
    def encode(
        self,
        command_buffer: CommandBuffer,
        *,
        input_gradient_vector: Vector,
        input_values_vector: Vector,
        input_momentum_vector: Vector,
        input_velocity_vector: Vector,
        maximum_velocity_vector: Vector | None = None,
        result_values_vector: Vector,
    ) -> None:
        """Writes the updated values to ``result_values_vector``, which may be ``input_values_vector``.

        Raises ``GeometryError`` unless all vectors have one length and the slots have buffers of their own.
        """
        slots = {
            "input_momentum_vector": input_momentum_vector,
            "input_velocity_vector": input_velocity_vector,
            "maximum_velocity_vector": maximum_velocity_vector,
        }
        self._encode_vectors(command_buffer, input_gradient_vector, input_values_vector, slots, result_values_vector)

    # objc: -encodeToCommandBuffer:convolutionGradientState:convolutionSourceState:inputMomentumVectors:
    # objc:     inputVelocityVectors:resultState:
    # objc: -encodeToCommandBuffer:convolutionGradientState:convolutionSourceState:inputMomentumVectors:
    # objc:     inputVelocityVectors:maximumVelocityVectors:resultState:
    def encode_convolution(
        self,
        command_buffer: CommandBuffer,
        convolution_gradient_state: Any,
        convolution_source_state: Any,
        *,
        input_momentum_vectors: Sequence[Vector],
        input_velocity_vectors: Sequence[Vector],
        maximum_velocity_vectors: Sequence[Vector] | None = None,
        result_state: Any,
    ) -> None:
        """Updates weights and biases: the gradients of a ``ConvolutionGradientState`` applied to the parameters of
        ``convolution_source_state`` (``ConvolutionWeightsAndBiasesState``), written to ``result_state``.

        Weights and biases make one step. With a single vector of each kind the biases are left as they are;
        ``result_state`` gets a copy of them.
        """
        slots = {
            "input_momentum_vector": input_momentum_vectors,
            "input_velocity_vector": input_velocity_vectors,
            "maximum_velocity_vector": maximum_velocity_vectors,
        }
        self._encode_states(
            command_buffer, convolution_gradient_state, convolution_source_state, slots, result_state
        )

    # objc: -encodeToCommandBuffer:batchNormalizationState:inputMomentumVectors:inputVelocityVectors:resultState:
    # objc: -encodeToCommandBuffer:batchNormalizationState:inputMomentumVectors:inputVelocityVectors:
    # objc:     maximumVelocityVectors:resultState:
    # objc: -encodeToCommandBuffer:batchNormalizationGradientState:batchNormalizationSourceState:
    # objc:     inputMomentumVectors:inputVelocityVectors:resultState:
    # objc: -encodeToCommandBuffer:batchNormalizationGradientState:batchNormalizationSourceState:
    # objc:     inputMomentumVectors:inputVelocityVectors:maximumVelocityVectors:resultState:
    def encode_batch_normalization(
        self,
        command_buffer: CommandBuffer,
        batch_normalization_gradient_state: Any,
        batch_normalization_source_state: Any = None,
        *,
        input_momentum_vectors: Sequence[Vector],
        input_velocity_vectors: Sequence[Vector],
        maximum_velocity_vectors: Sequence[Vector] | None = None,
        result_state: Any,
    ) -> None:
        """Updates gamma and beta: the gradients of a ``BatchNormalizationState`` applied to the gamma and beta of
        ``batch_normalization_source_state`` (or of the same state), written to ``result_state``, in one step."""
        source = batch_normalization_source_state or batch_normalization_gradient_state
        slots = {
            "input_momentum_vector": input_momentum_vectors,
            "input_velocity_vector": input_velocity_vectors,
            "maximum_velocity_vector": maximum_velocity_vectors,
        }
        self._encode_states(command_buffer, batch_normalization_gradient_state, source, slots, result_state)

    def _learning_rate_buffer(self, command_buffer: CommandBuffer) -> Buffer:
        if command_buffer._undo is not None:
            command_buffer._if_taken_back(partial(setattr, self, "_time_step", self._time_step))
        return command_buffer.varying(self._next_learning_rate)

    def _next_learning_rate(self) -> bytes:
        # Past the checks of attributes that users set, which would take as long as the rest.
        vars(self)["_time_step"] = step = self._time_step + 1
        return FLOAT.pack(self._learning_rate * math.sqrt(1.0 - self._beta2**step) / (1.0 - self._beta1**step))
