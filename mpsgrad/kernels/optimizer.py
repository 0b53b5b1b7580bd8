"""Optimizers: parameter updates that stay on the device."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self
from weakref import ref

from mpsgrad.archive import archivable
from mpsgrad.command import CommandBuffer, SteadyNumbers
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import flag, member, real
from mpsgrad.joined_dispatch import JoinableKernel, JoinableRun, add_run
from mpsgrad.kernel import BaseKernel
from mpsgrad.kernels.convolution_dispatch import add_copy
from mpsgrad.kernels.loss_scale import LossScale
from mpsgrad.kernels.optimizer_steps import PARAMETERS, STEPS, RegularizationType, shares_of
from mpsgrad.state import State
from mpsgrad.vector import Vector

FLOAT = struct.Struct("<f")
_VECTOR_NAMES = ("input_gradient_vector", "input_values_vector", "result_values_vector")


@archivable
@dataclass(frozen=True)
class OptimizerDescriptor:
    """What every optimizer does to a gradient before its step. Source: ``MPSNNOptimizerDescriptor``.

    In this order: clipping to [``gradient_clip_min``, ``gradient_clip_max``], which leaves NaN as it is, multiplication
    by ``gradient_rescale``, and adding ``regularization_scale`` times the value's sign (L1) or the value (L2). The sign
    is ours: Apple's text speaks of 1, whatever the value.

    Raises ``GeometryError`` for numbers that are not finite in float32, and where clipping is applied for limits the
    wrong way round or both 0, as they are unless they are given: no gradient would be left.
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
        object.__setattr__(
            self, "apply_gradient_clipping", flag(owner, "apply_gradient_clipping", self.apply_gradient_clipping)
        )
        least, most = self.gradient_clip_min, self.gradient_clip_max
        if self.apply_gradient_clipping and (least > most or least == most == 0):
            why = "" if least > most else ", and no gradient is left: apply_gradient_clipping needs limits"
            raise GeometryError(f"{owner}: gradient_clip_min is {least} but gradient_clip_max {most}{why}")


@dataclass(frozen=True, slots=True)
class _StepOfStates:
    """A step of all parameters of ``state``, in place, with the gradients of a ``gradient_kind`` and with ``slots``.

    ``vectors`` are those of the slots. ``steps`` has for each parameter its length, the buffers that are overwritten,
    the parameter's first, and the kernel with its threadgroups and parameters.
    """

    gradient_kind: type[State]
    state: ref[State]
    slots: Mapping[str, Sequence[Vector] | None]
    vectors: Sequence[Vector]
    steps: Sequence[tuple[int, tuple[Buffer, ...], JoinableKernel, int, bytes]]

    def is_for(self, gradient_state: Any, source_state: Any, result_state: Any, slots: Mapping[str, Any]) -> bool:
        """Whether a step with these states and slots is the same but for the gradients."""
        if source_state is not result_state or self.state() is not source_state:
            return False
        if type(gradient_state) is not self.gradient_kind or gradient_state.command_buffer is not None:
            return False
        for name, known in self.slots.items():
            given = slots[name]
            if given is known:
                continue
            if type(given) not in (list, tuple) or known is None or len(given) != len(known):
                return False
            if any([one is not other for one, other in zip(given, known, strict=True)]):
                return False
        return True

    def gradients(self, owner: str, command_buffer: CommandBuffer, gradient_state: Any) -> Sequence[Vector] | None:
        """Those of ``gradient_state``, or None if these or the slots have to be looked at closely."""
        if gradient_state.device is not command_buffer.device:
            return None
        for vector in self.vectors:
            writer = vector._writer
            if writer is not None and not command_buffer._reads_freely(writer):
                return None
        gradient_state._require_gradients(owner, command_buffer)
        gradients: Sequence[Vector] = gradient_state.gradient_vectors
        if len(gradients) < len(self.steps):
            return None
        for gradient, (length, written, *_) in zip(gradients, self.steps, strict=False):
            if gradient.length != length or gradient.buffer in written:
                return None
        return gradients


class Optimizer(BaseKernel):
    """The base of the optimizers. Source: ``MPSNNOptimizer``. All arithmetic is in float32.

    What MPS takes as matrices are vectors of their elements here: an optimizer treats each by itself.
    """

    optional_slots: ClassVar[tuple[str, ...]] = ()
    """The vectors of what is kept from step to step that may be left out."""

    def __init__(self, optimizer_descriptor: OptimizerDescriptor, *, device: Device | None, label: str | None) -> None:
        super().__init__(device=device, label=label)
        if not isinstance(optimizer_descriptor, OptimizerDescriptor):
            raise FormatError(
                f"{type(self).__name__}: optimizer_descriptor is {optimizer_descriptor!r}; it has to be an "
                "OptimizerDescriptor"
            )
        self._optimizer_descriptor = optimizer_descriptor
        self.learning_rate = optimizer_descriptor.learning_rate
        self._loss_scale: LossScale | None = None
        self._steady_rate = SteadyNumbers(self.device)
        self._unscaled = self.device.constant_buffer(struct.pack("<2f", 1.0, 1.0))
        self._steps: dict[tuple[int, int], tuple[JoinableKernel, int, bytes]] = {}
        self._of_states: dict[int, _StepOfStates] = {}

    # objc: -initWithDevice:learningRate:
    @classmethod
    def with_learning_rate(cls, learning_rate: float, *, device: Device | None = None) -> Self:
        """An optimizer with ``learning_rate`` and the defaults for the rest."""
        return cls(OptimizerDescriptor(learning_rate=learning_rate), device=device, label=None)

    @property
    def optimizer_descriptor(self) -> OptimizerDescriptor:
        """The descriptor, with ``apply_gradient_clipping`` as it is now."""
        return self._optimizer_descriptor

    @property
    def learning_rate(self) -> float:
        """The rate of the next encodes and replays; it starts as the descriptor's."""
        return self._learning_rate

    # objc: -setLearningRate:
    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._learning_rate = real(type(self).__name__, "learning_rate", rate)
        self._packed_learning_rate = FLOAT.pack(self._learning_rate)

    @property
    def loss_scale(self) -> LossScale | None:
        """The scale of the loss whose gradients the next encodes get; None, as at first, for 1.

        Gradients are divided by it before all else. Where it found that they overflowed nothing is updated.
        Raises ``FormatError`` or ``StateError`` when set to something else or to one of another device.
        """
        return self._loss_scale

    @loss_scale.setter
    def loss_scale(self, loss_scale: LossScale | None) -> None:
        owner = type(self).__name__
        if loss_scale is not None and not isinstance(loss_scale, LossScale):
            raise FormatError(f"{owner}: loss_scale is {loss_scale!r}; it has to be a LossScale or None")
        if loss_scale is not None and loss_scale.device is not self.device:
            raise StateError(
                f"{owner}: loss_scale is on {loss_scale.device.identifier} but the kernel on {self.device.identifier}"
            )
        self._loss_scale = loss_scale

    @property
    def gradient_rescale(self) -> float:
        """What gradients are multiplied by."""
        return self._optimizer_descriptor.gradient_rescale

    @property
    def apply_gradient_clipping(self) -> bool:
        """Whether the next encodes clip gradients; it starts as the descriptor's.

        Raises ``GeometryError`` if it is set while ``gradient_clip_min`` is above ``gradient_clip_max``, or both are 0.
        """
        return self._optimizer_descriptor.apply_gradient_clipping

    # objc: -setApplyGradientClipping:
    @apply_gradient_clipping.setter
    def apply_gradient_clipping(self, applies: bool) -> None:
        self._optimizer_descriptor = replace(self._optimizer_descriptor, apply_gradient_clipping=applies)
        self._steps.clear()
        self._of_states.clear()

    @property
    def gradient_clip_max(self) -> float:
        """The largest gradient that clipping leaves as it is."""
        return self._optimizer_descriptor.gradient_clip_max

    @property
    def gradient_clip_min(self) -> float:
        """The smallest gradient that clipping leaves as it is."""
        return self._optimizer_descriptor.gradient_clip_min

    @property
    def regularization_type(self) -> RegularizationType:
        """Whether the value's sign (L1), the value (L2) or nothing is added to the gradient."""
        return self._optimizer_descriptor.regularization_type

    @property
    def regularization_scale(self) -> float:
        """What is added is multiplied by this."""
        return self._optimizer_descriptor.regularization_scale

    def _archived_properties(self) -> dict[str, Any]:
        return {**super()._archived_properties(), "learning_rate": self._learning_rate}

    def _require_vectors(self, command_buffer: Any, vectors: Mapping[str, Vector]) -> None:
        """Raises unless ``vectors``, by the names of the arguments, are of one length and may be used by an encode."""
        owner = type(self).__name__
        self._require_command_buffer(command_buffer, "encode")
        device, first = self.device, None
        for name, vector in vectors.items():
            if not isinstance(vector, Vector):
                raise FormatError(f"{owner}: {name} is {type(vector).__name__}; it has to be a Vector")
            if vector.device is not device:
                raise StateError(
                    f"{owner}: {name} is on {vector.device.identifier} but the kernel on {device.identifier}"
                )
            if first is None:
                first = vector
            elif vector.length != first.length:
                first_name = next(iter(vectors))
                raise GeometryError(
                    f"{owner}: {name} has {vector.length} values but {first_name} has {first.length}"
                )
            writer = vector._writer
            if writer is not None and writer is not command_buffer:
                command_buffer._reads(owner, name, writer, vector.buffer)

    def _encode_vectors(
        self,
        command_buffer: CommandBuffer,
        gradient: Vector,
        values: Vector,
        slots: Mapping[str, Vector | None],
        result: Vector,
        rate: Buffer | None = None,
    ) -> None:
        """Adds one step; ``slots``, by the names of the arguments, are read and overwritten.

        ``rate`` is for a step that several dispatches make together.
        """
        given: Any = slots
        for name in self.optional_slots:
            if name in given and given[name] is None:
                given = {other: slot for other, slot in given.items() if other != name}
        vectors = (gradient, values, result, *given.values())
        if not self._are_usable(command_buffer, vectors):
            self._require_vectors(command_buffer, dict(zip((*_VECTOR_NAMES, *given), vectors, strict=True)))
        buffers = [vector._buffer for vector in vectors]
        # The result may be the values, and mostly is.
        if len({*buffers}) < len(buffers) - (result is values):
            self._require_buffers_of_their_own(dict(zip((*_VECTOR_NAMES, *given), vectors, strict=True)), given)
        kernel, threadgroups, parameters = self._prepared(given, values._length)
        overwritten = tuple(buffers[2:])
        buffers.append(rate if rate is not None else self._learning_rate_buffer(command_buffer))
        run = JoinableRun(tuple(buffers), overwritten, threadgroups, parameters)
        scaling = self._unscaled if self._loss_scale is None else self._loss_scale.buffer
        add_run(command_buffer, kernel, run, (scaling,))
        command_buffer._writes(result)
        for slot in given.values():
            command_buffer._writes(slot)

    def _are_usable(self, command_buffer: Any, vectors: Sequence[Any]) -> bool:
        """Whether ``_require_vectors`` would find nothing to object to or to note; it says what is wrong otherwise."""
        device, length = self.device, getattr(vectors[0], "_length", None)
        if type(command_buffer) is not CommandBuffer or not command_buffer._is_open:
            return False
        if command_buffer._device is not device:
            return False
        previous = command_buffer
        for vector in vectors:
            if type(vector) is not Vector or vector._device is not device or vector._length != length:
                return False
            writer = vector._writer
            # Mostly the step before wrote all of them.
            if writer is not None and writer is not previous:
                if not command_buffer._reads_freely(writer):
                    return False
                previous = writer
        return True

    def _require_buffers_of_their_own(self, vectors: Mapping[str, Vector], slots: Mapping[str, Vector]) -> None:
        """Raises ``GeometryError`` if one of ``slots``, the last of ``vectors``, shares the buffer of one before it."""
        for name, slot in slots.items():
            for other_name, other in vectors.items():
                if other_name == name:
                    break
                if slot.buffer is other.buffer:
                    raise GeometryError(
                        f"{type(self).__name__}: {name} is overwritten, so it may not share the buffer of {other_name}"
                    )

    def _prepared(self, slots: Collection[str], count: int) -> tuple[JoinableKernel, int, bytes]:
        """The kernel for a step of ``count`` values with these slots, its threadgroups and its parameters."""
        # No two choices of slots are as many.
        key = len(slots), count
        found = self._steps.get(key)
        if found is None:
            kernel, numbers = self._step(tuple(slots))
            descriptor = self.optimizer_descriptor
            parameters = {
                "count": count,
                "momentum_scale": 0.0,
                "gradient_scale": 0.0,
                "square_decay": 0.0,
                "square_scale": 0.0,
                "epsilon": 0.0,
                "applies_clipping": int(descriptor.apply_gradient_clipping),
                "gradient_clip_min": descriptor.gradient_clip_min,
                "gradient_clip_max": descriptor.gradient_clip_max,
                "gradient_rescale": descriptor.gradient_rescale,
                "regularization": int(descriptor.regularization_type),
                "regularization_scale": descriptor.regularization_scale,
            }
            parameters |= numbers
            threadgroups, parameters["elements_per_thread"] = shares_of(self.device, count)
            found = self._steps[key] = kernel, threadgroups, PARAMETERS.pack(**parameters)
        return found

    def _step(self, slots: tuple[str, ...]) -> tuple[JoinableKernel, dict[str, float]]:
        """The kernel for a step with these slots, and its own parameters."""
        raise NotImplementedError

    def _learning_rate_buffer(self, command_buffer: CommandBuffer) -> Buffer:
        """The rate of a step that is encoded to ``command_buffer``."""
        return command_buffer.steady(self._steady_rate, self._learning_rate_bytes)

    def _learning_rate_bytes(self) -> bytes:
        return self._packed_learning_rate

    def _encode_states(
        self,
        command_buffer: CommandBuffer,
        gradient_state: Any,
        source_state: Any,
        slots: Mapping[str, Sequence[Vector] | None],
        result_state: Any,
    ) -> None:
        """One step for each parameter of ``source_state``, with the vectors of ``slots`` in order.

        With one vector only the first parameter is updated; ``result_state`` gets a copy of the other.
        """
        owner = type(self).__name__
        self._require_command_buffer(command_buffer, "encode")
        known = self._of_states.get(id(source_state))
        if known is not None and known.is_for(gradient_state, source_state, result_state, slots):
            given_gradients = known.gradients(owner, command_buffer, gradient_state)
            if given_gradients is not None:
                self._encode_states_again(command_buffer, known, given_gradients, source_state)
                return
        for name, state, held in (
            ("gradient state", gradient_state, "gradient"),
            ("source state", source_state, "parameter"),
            ("result_state", result_state, "parameter"),
        ):
            if not isinstance(state, State) or not hasattr(type(state), f"{held}_vectors"):
                raise FormatError(f"{owner}: the {name} is {type(state).__name__}; it has to be a state of {held}s")
            self._require_usable(command_buffer, f"the {name}", state)
        given = self._given_slots(slots)
        gradient_state._require_gradients(owner, command_buffer)
        gradients, values = gradient_state.gradient_vectors, source_state.parameter_vectors
        results = values if result_state is source_state else result_state.parameter_vectors
        updated = min(len(gradients), len(values))
        if len(results) < updated:
            raise GeometryError(f"{owner}: the source state has {updated} parameters but result_state {len(results)}")
        updated = min(updated, *map(len, given.values())) if given else updated
        with command_buffer._all_or_nothing():
            command_buffer._reads(owner, "the source state", source_state._writer)
            rate = self._learning_rate_buffer(command_buffer)
            for index in range(updated):
                self._encode_vectors(
                    command_buffer,
                    gradients[index],
                    values[index],
                    {name: vectors[index] for name, vectors in given.items()},
                    results[index],
                    rate,
                )
            for value, result in list(zip(values, results, strict=False))[updated:]:
                self._require_vectors(command_buffer, {"source_state": value, "result_state": result})
                if result.buffer is not value.buffer:
                    add_copy(command_buffer, value.buffer, result.buffer, value.length)
        result_state._written_by(command_buffer)
        for state in {id(s): s for s in (gradient_state, source_state)}.values():
            state._read_once()
        if source_state is result_state is not gradient_state and updated == len(values):
            self._remember_states(gradient_state, source_state, slots, given)

    def _remember_states(
        self,
        gradient_state: Any,
        state: State,
        slots: Mapping[str, Sequence[Vector] | None],
        given: Mapping[str, Sequence[Vector]],
    ) -> None:
        """Keeps what was found out of a step of all parameters of ``state``, as long as there is ``state``."""
        if gradient_state.command_buffer is not None or state.command_buffer is not None:
            return
        steps = []
        for index, values in enumerate(state.parameter_vectors):  # type: ignore[attr-defined]
            written = [values, *[vectors[index] for vectors in given.values()]]
            kernel, threadgroups, parameters = self._prepared(given, values.length)
            steps.append((values.length, tuple([each.buffer for each in written]), kernel, threadgroups, parameters))
        name, forget = id(state), self._of_states.pop
        reference = ref(state, lambda _: forget(name, None))
        flat = [vector for vectors in given.values() for vector in vectors]
        flat_slots = {each: None if vectors is None else tuple(vectors) for each, vectors in slots.items()}
        self._of_states[name] = _StepOfStates(type(gradient_state), reference, flat_slots, flat, steps)

    def _encode_states_again(
        self,
        command_buffer: CommandBuffer,
        known: _StepOfStates,
        gradients: Sequence[Vector],
        state: State,
    ) -> None:
        """One step of all parameters of ``state`` like the one before, with other gradients."""
        command_buffer._reads(type(self).__name__, "the source state", state._writer)
        rate = self._learning_rate_buffer(command_buffer)
        scaling = (self._unscaled if self._loss_scale is None else self._loss_scale.buffer,)
        for gradient, (_, written, kernel, threadgroups, parameters) in zip(gradients, known.steps, strict=False):
            run = JoinableRun((gradient.buffer, written[0], *written, rate), written, threadgroups, parameters)
            add_run(command_buffer, kernel, run, scaling)
        for slot in known.vectors:
            command_buffer._writes(slot)
        state._written_by(command_buffer)

    def _given_slots(self, slots: Mapping[str, Sequence[Vector] | None]) -> dict[str, Sequence[Vector]]:
        """The vectors of the slots that there are; raises unless each has as many, and none is missing."""
        owner = type(self).__name__
        given: dict[str, Sequence[Vector]] = {}
        for name, vectors in slots.items():
            if vectors is None and name in self.optional_slots:
                continue
            if isinstance(vectors, Vector) or not isinstance(vectors, Sequence) or not vectors:
                raise FormatError(f"{owner}: {name}s is {vectors!r}; it has to be 1 or 2 vectors")
            given[name] = vectors
            first, count = next((f"{n}s", len(v)) for n, v in given.items())
            if len(vectors) != count:
                raise GeometryError(f"{owner}: {name}s has {len(vectors)} vectors but {first} has {count}")
        return given


class OptimizerStochasticGradientDescent(Optimizer):
    """Stochastic gradient descent. Source: ``MPSNNOptimizerStochasticGradientDescent``.

    ::

        no momentum vector   v = v - learning_rate * g
        plain                m = momentum_scale * m + learning_rate * g    v = v - m
        Nesterov             m = momentum_scale * m + g
                             v = v - learning_rate * (g + momentum_scale * m)

    ``g`` is the gradient after the steps of ``OptimizerDescriptor``. Momentum vectors are read and overwritten.
    """

    optional_slots = ("input_momentum_vector",)

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
        self._use_nesterov_momentum = flag(type(self).__name__, "use_nesterov_momentum", use_nesterov_momentum)

    @property
    def momentum_scale(self) -> float:
        """How much of the momentum is kept in a step."""
        return self._momentum_scale

    @property
    def use_nesterov_momentum(self) -> bool:
        """Whether a step looks ahead by the momentum."""
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
        slots = {"input_momentum_vector": input_momentum_vector}
        self._encode_vectors(command_buffer, input_gradient_vector, input_values_vector, slots, result_values_vector)

    def _step(self, slots: tuple[str, ...]) -> tuple[JoinableKernel, dict[str, float]]:
        name = "stochastic_gradient_descent"
        if slots:
            name += "_with_nesterov" if self.use_nesterov_momentum else "_with_momentum"
        return STEPS[name], {"momentum_scale": self.momentum_scale}

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
        slots = {"input_momentum_vector": input_momentum_vectors}
        self._encode_states(
            command_buffer, convolution_gradient_state, convolution_source_state, slots, result_state
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
        slots = {"input_momentum_vector": input_momentum_vectors}
        self._encode_states(command_buffer, batch_normalization_gradient_state, source, slots, result_state)
