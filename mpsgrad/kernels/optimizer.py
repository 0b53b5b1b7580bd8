"""Optimizers: parameter updates that stay on the device."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpsgrad.archive import archivable
from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import member, real
from mpsgrad.kernel import BaseKernel
from mpsgrad.kernels.convolution_dispatch import add_copy
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.state import State
from mpsgrad.tunables import tunables
from mpsgrad.vector import Vector

THREADS = 256


@archivable
class RegularizationType(enum.IntEnum):
    """Source: ``MPSNNRegularizationType``."""

    NONE = 0
    L1 = 1
    L2 = 2


PARAMETERS = ParameterStruct(
    "OptimizerParameters",
    count="int",
    learning_rate="float",
    momentum_scale="float",
    applies_clipping="int",
    gradient_clip_min="float",
    gradient_clip_max="float",
    gradient_rescale="float",
    regularization="int",
    regularization_scale="float",
)
FAMILY = ShaderFamily(
    "optimizer",
    (PARAMETERS,),
    {
        "threads": THREADS,
        "l1": int(RegularizationType.L1),
        "l2": int(RegularizationType.L2),
    },
    dtypes=("float",),
    measured=lambda numbers: {"elements": numbers.optimizer_elements_per_simdgroup},
)


@archivable
@dataclass(frozen=True)
class OptimizerDescriptor:
    """What every optimizer does to a gradient before its step. Source: ``MPSNNOptimizerDescriptor``.

    In this order: clipping to [``gradient_clip_min``, ``gradient_clip_max``], multiplication by ``gradient_rescale``,
    and adding ``regularization_scale`` times the value's sign (L1) or the value (L2).
    """

    learning_rate: float = 0.001
    gradient_rescale: float = 1.0
    apply_gradient_clipping: bool = False
    gradient_clip_max: float = 0.0
    gradient_clip_min: float = 0.0
    regularization_type: RegularizationType = RegularizationType.NONE
    regularization_scale: float = 0.0

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for name in (
            "learning_rate",
            "gradient_rescale",
            "gradient_clip_max",
            "gradient_clip_min",
            "regularization_scale",
        ):
            object.__setattr__(self, name, real(owner, name, getattr(self, name)))
        object.__setattr__(
            self,
            "regularization_type",
            member(owner, "regularization_type", RegularizationType, self.regularization_type),
        )
        object.__setattr__(self, "apply_gradient_clipping", bool(self.apply_gradient_clipping))
        if self.apply_gradient_clipping and self.gradient_clip_min > self.gradient_clip_max:
            raise GeometryError(
                f"OptimizerDescriptor: gradient_clip_min is {self.gradient_clip_min} but gradient_clip_max "
                f"{self.gradient_clip_max}"
            )


class Optimizer(BaseKernel):
    """The base of the optimizers. Source: ``MPSNNOptimizer``. All arithmetic is in float32."""

    def __init__(self, optimizer_descriptor: OptimizerDescriptor, *, device: Device | None, label: str | None) -> None:
        super().__init__(device=device, label=label)
        if not isinstance(optimizer_descriptor, OptimizerDescriptor):
            raise FormatError(
                f"{type(self).__name__}: optimizer_descriptor is {optimizer_descriptor!r}; it has to be an "
                "OptimizerDescriptor"
            )
        self._optimizer_descriptor = optimizer_descriptor
        self._learning_rate = optimizer_descriptor.learning_rate

    @property
    def optimizer_descriptor(self) -> OptimizerDescriptor:
        return self._optimizer_descriptor

    @property
    def learning_rate(self) -> float:
        """The rate of the next encodes; it starts as the descriptor's."""
        return self._learning_rate

    # objc: -setLearningRate:
    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._learning_rate = real(type(self).__name__, "learning_rate", rate)

    def _archived_properties(self) -> dict[str, Any]:
        return {**super()._archived_properties(), "learning_rate": self._learning_rate}

    def _require_vectors(self, command_buffer: Any, **vectors: Vector | None) -> None:
        owner = type(self).__name__
        self._require_command_buffer(command_buffer, "encode")
        given = {name: vector for name, vector in vectors.items() if vector is not None}
        for name, vector in given.items():
            if not isinstance(vector, Vector):
                raise FormatError(f"{owner}: {name} is {type(vector).__name__}; it has to be a Vector")
            if vector.device is not self.device:
                raise StateError(
                    f"{owner}: {name} is on {vector.device.identifier} but the kernel on {self.device.identifier}"
                )
        first_name, first = next(iter(given.items()))
        for name, vector in given.items():
            if vector.length != first.length:
                raise GeometryError(
                    f"{owner}: {name} has {vector.length} values but {first_name} has {first.length}"
                )


class OptimizerStochasticGradientDescent(Optimizer):
    """Stochastic gradient descent. Source: ``MPSNNOptimizerStochasticGradientDescent``.

    ::

        no momentum vector   v = v - learning_rate * g
        plain                m = momentum_scale * m + learning_rate * g    v = v - m
        Nesterov             m = momentum_scale * m + g
                             v = v - learning_rate * (g + momentum_scale * m)

    ``g`` is the gradient after the steps of ``OptimizerDescriptor``. Momentum vectors are read and overwritten.
    """

    def __init__(
        self,
        optimizer_descriptor: OptimizerDescriptor,
        *,
        momentum_scale: float = 0.0,
        use_nesterov_momentum: bool = False,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(optimizer_descriptor, device=device, label=label)
        self._momentum_scale = real(type(self).__name__, "momentum_scale", momentum_scale)
        self._use_nesterov_momentum = bool(use_nesterov_momentum)

    # objc: -initWithDevice:learningRate:
    @classmethod
    def with_learning_rate(cls, learning_rate: float, *, device: Device | None = None) -> Any:
        """Plain descent with ``learning_rate``."""
        return cls(OptimizerDescriptor(learning_rate=learning_rate), device=device)

    @property
    def momentum_scale(self) -> float:
        return self._momentum_scale

    @property
    def use_nesterov_momentum(self) -> bool:
        return self._use_nesterov_momentum

    # objc: -encodeToCommandBuffer:inputGradientVector:inputValuesVector:inputMomentumVector:resultValuesVector:
    def encode(
        self,
        command_buffer: CommandBuffer,
        *,
        input_gradient_vector: Vector,
        input_values_vector: Vector,
        input_momentum_vector: Vector | None = None,
        result_values_vector: Vector,
    ) -> None:
        """Writes the updated values to ``result_values_vector``, which may be ``input_values_vector``.

        Raises ``GeometryError`` unless all vectors have one length and the momentum has a buffer of its own.
        """
        vectors = {
            "input_gradient_vector": input_gradient_vector,
            "input_values_vector": input_values_vector,
            "result_values_vector": result_values_vector,
        }
        self._require_vectors(command_buffer, **vectors, input_momentum_vector=input_momentum_vector)
        for vector_name, vector in vectors.items():
            if input_momentum_vector is not None and input_momentum_vector.buffer is vector.buffer:
                raise GeometryError(
                    f"{type(self).__name__}: input_momentum_vector is overwritten, so it may not share the buffer of "
                    f"{vector_name}"
                )
        descriptor = self.optimizer_descriptor
        count = input_values_vector.length
        name = "stochastic_gradient_descent"
        buffers = [input_gradient_vector.buffer, input_values_vector.buffer, result_values_vector.buffer]
        if input_momentum_vector is not None:
            name += "_with_nesterov" if self.use_nesterov_momentum else "_with_momentum"
            buffers.append(input_momentum_vector.buffer)
            command_buffer._writes(input_momentum_vector)
        parameters = PARAMETERS.pack(
            count=count,
            learning_rate=self.learning_rate,
            momentum_scale=self.momentum_scale,
            applies_clipping=int(descriptor.apply_gradient_clipping),
            gradient_clip_min=descriptor.gradient_clip_min,
            gradient_clip_max=descriptor.gradient_clip_max,
            gradient_rescale=descriptor.gradient_rescale,
            regularization=int(descriptor.regularization_type),
            regularization_scale=descriptor.regularization_scale,
        )
        function = FAMILY.function(self.device, name, "float")
        constants = self.device.constant_buffer(parameters)
        elements = tunables(self.device.tuning).optimizer_elements_per_simdgroup * (THREADS // 32)
        command_buffer.add_dispatch(function, -(-count // elements), *buffers, constants)
        command_buffer._writes(result_values_vector)

    # objc: -encodeToCommandBuffer:convolutionGradientState:convolutionSourceState:inputMomentumVectors:resultState:
    def encode_convolution(
        self,
        command_buffer: CommandBuffer,
        convolution_gradient_state: Any,
        convolution_source_state: Any,
        *,
        input_momentum_vectors: Sequence[Vector] | None = None,
        result_state: Any,
    ) -> None:
        """Updates weights and biases: the gradients of a ``ConvolutionGradientState`` applied to the parameters of
        ``convolution_source_state`` (``ConvolutionWeightsAndBiasesState``), written to ``result_state``.

        With a single momentum vector the biases are left as they are; ``result_state`` gets a copy of them.
        """
        self._encode_states(
            command_buffer, convolution_gradient_state, convolution_source_state, input_momentum_vectors, result_state
        )

    # objc: -encodeToCommandBuffer:batchNormalizationState:inputMomentumVectors:resultState:
    # objc: -encodeToCommandBuffer:batchNormalizationGradientState:batchNormalizationSourceState:
    # objc:     inputMomentumVectors:resultState:
    def encode_batch_normalization(
        self,
        command_buffer: CommandBuffer,
        batch_normalization_gradient_state: Any,
        batch_normalization_source_state: Any = None,
        *,
        input_momentum_vectors: Sequence[Vector] | None = None,
        result_state: Any,
    ) -> None:
        """Updates gamma and beta: the gradients of a ``BatchNormalizationState`` applied to the gamma and beta of
        ``batch_normalization_source_state`` (or of the same state), written to ``result_state``."""
        source = batch_normalization_source_state or batch_normalization_gradient_state
        self._encode_states(
            command_buffer, batch_normalization_gradient_state, source, input_momentum_vectors, result_state
        )

    def _encode_states(
        self,
        command_buffer: CommandBuffer,
        gradient_state: Any,
        source_state: Any,
        momentum_vectors: Sequence[Vector] | None,
        result_state: Any,
    ) -> None:
        owner = type(self).__name__
        self._require_command_buffer(command_buffer, "encode")
        for name, state, attribute in (
            ("gradient state", gradient_state, "gradient_vectors"),
            ("source state", source_state, "parameter_vectors"),
            ("result_state", result_state, "parameter_vectors"),
        ):
            if not isinstance(state, State) or not hasattr(type(state), attribute):
                raise FormatError(f"{owner}: the {name} is {type(state).__name__}; it has to be a state of parameters")
            self._require_usable(command_buffer, f"the {name}", state)
        if momentum_vectors is not None and (isinstance(momentum_vectors, Vector) or not momentum_vectors):
            raise FormatError(f"{owner}: input_momentum_vectors is {momentum_vectors!r}; it has to be 1 or 2 vectors")
        gradients, values, results = (
            gradient_state.gradient_vectors,
            source_state.parameter_vectors,
            result_state.parameter_vectors,
        )
        count = min(len(gradients), len(values))
        if len(results) < count:
            raise GeometryError(f"{owner}: the source state has {count} parameters but result_state {len(results)}")
        momenta: list[Vector | None] = [*momentum_vectors] if momentum_vectors is not None else [None] * count
        with command_buffer._all_or_nothing():
            for gradient, value, momentum, result in zip(gradients, values, momenta, results, strict=False):
                self.encode(
                    command_buffer,
                    input_gradient_vector=gradient,
                    input_values_vector=value,
                    input_momentum_vector=momentum,
                    result_values_vector=result,
                )
            for value, result in list(zip(values, results, strict=False))[min(len(momenta), len(gradients)) :]:
                self._require_vectors(command_buffer, source_state=value, result_state=result)
                if result.buffer is not value.buffer:
                    add_copy(command_buffer, value.buffer, result.buffer, value.length)
        result_state._written_by(command_buffer)
        for state in {id(s): s for s in (gradient_state, source_state)}.values():
            state._read_once()
