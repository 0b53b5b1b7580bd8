"""The states of batch normalization: what the batch measured, and the parameters that a kernel can load."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.data_type import require_unmasked
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import integer
from mpsgrad.kernels.accumulation import Accumulation
from mpsgrad.state import ForwardSnapshot, SharedGradientState, State, StateBatch
from mpsgrad.vector import Vector

if TYPE_CHECKING:
    from mpsgrad.kernel import BaseKernel
    from mpsgrad.kernels.batch_normalization import BatchNormalization

FLOAT_BYTES = 4
PairState = TypeVar("PairState", bound="_ChannelPairState")


class _ChannelPairState(State):
    """Two float32 values for each feature channel, in ``resource(0)`` and ``resource(1)``."""

    names: ClassVar[tuple[str, str]]

    def __init__(
        self,
        number_of_feature_channels: int,
        device: Device | None = None,
        *,
        command_buffer: CommandBuffer | None = None,
        label: str | None = None,
    ) -> None:
        count = integer(type(self).__name__, "number_of_feature_channels", number_of_feature_channels, 1)
        super().__init__((FLOAT_BYTES * count,) * 2, device, command_buffer=command_buffer, label=label)
        self.number_of_feature_channels = count

    @classmethod
    def temporary(
        cls: type[PairState], command_buffer: CommandBuffer, number_of_feature_channels: int
    ) -> PairState:
        """A temporary state of ``command_buffer`` with undefined contents."""
        return cls(number_of_feature_channels, command_buffer=command_buffer)

    @classmethod
    def _from_pair(cls: type[PairState], first: Any, second: Any, device: Device | None) -> PairState:
        arrays = []
        for name, values in zip(cls.names, (first, second), strict=True):
            require_unmasked(f"{cls.__name__}: {name}", values)
            array = np.asarray(values)
            if array.dtype != np.float32 or not array.dtype.isnative:
                raise FormatError(f"{cls.__name__}: {name} is {array.dtype!r}; it has to be native float32")
            if array.ndim != 1 or array.size == 0:
                raise GeometryError(f"{cls.__name__}: {name} has shape {array.shape}; it has to be a row of values")
            arrays.append(array)
        if arrays[0].shape != arrays[1].shape:
            raise GeometryError(
                f"{cls.__name__}: {cls.names[0]} has {arrays[0].size} values but {cls.names[1]} has {arrays[1].size}"
            )
        state = cls(arrays[0].size, device)
        for index, array in enumerate(arrays):
            state._write(index, array)
        return state

    @property
    def parameter_vectors(self) -> tuple[Vector, ...]:
        """The two rows as vectors, for optimizers."""
        return tuple(Vector.of_buffer(self.resource(index), self.number_of_feature_channels) for index in (0, 1))

    def _require_available(self, owner: str, command_buffer: CommandBuffer) -> None:
        """Raises ``StateError`` unless the contents are there once ``command_buffer`` runs."""
        writer = self._writer
        if writer is None or writer is command_buffer:
            return
        if writer.is_open:
            raise StateError(
                f"{owner}: {' and '.join(self.names)} are written by another command buffer that has not been "
                "committed; commit it first, so that the order is known"
            )
        if not writer._takes_effect:
            raise StateError(
                f"{owner}: the command buffer that writes {' and '.join(self.names)} was discarded or failed; load "
                "them again"
            )


class NormalizationGammaAndBetaState(_ChannelPairState):
    """Gamma and beta in device memory. Source: ``MPSCNNNormalizationGammaAndBetaState``."""

    names = ("gamma", "beta")

    # objc: -initWithGamma:beta:
    @classmethod
    def from_arrays(
        cls, gamma: np.ndarray, beta: np.ndarray, device: Device | None = None
    ) -> NormalizationGammaAndBetaState:
        """A state with a copy of the arrays: float32, one value for each feature channel."""
        return cls._from_pair(gamma, beta, device)

    @property
    def gamma(self) -> np.ndarray:
        """A copy, after the work that writes it. Raises ``StateError`` for a temporary state and before ``commit``."""
        return self._read(0, self.number_of_feature_channels)

    @property
    def beta(self) -> np.ndarray:
        """The same for beta."""
        return self._read(1, self.number_of_feature_channels)


class NormalizationMeanAndVarianceState(_ChannelPairState):
    """Mean and variance in device memory. Source: ``MPSCNNNormalizationMeanAndVarianceState``."""

    names = ("mean", "variance")

    # objc: -initWithMean:variance:
    @classmethod
    def from_arrays(
        cls, mean: np.ndarray, variance: np.ndarray, device: Device | None = None
    ) -> NormalizationMeanAndVarianceState:
        """A state with a copy of the arrays: float32, one value for each feature channel."""
        return cls._from_pair(mean, variance, device)

    @property
    def mean(self) -> np.ndarray:
        """A copy, after the work that writes it. Raises ``StateError`` for a temporary state and before ``commit``."""
        return self._read(0, self.number_of_feature_channels)

    @property
    def variance(self) -> np.ndarray:
        """The same for the variance."""
        return self._read(1, self.number_of_feature_channels)


class BatchNormalizationState(SharedGradientState):
    """What one batch measured: statistics, and the gradients for gamma and beta.

    Source: ``MPSCNNBatchNormalizationState``.

    Made by ``BatchNormalization.result_state``; one for the whole batch. ``BatchNormalizationStatistics`` and
    ``BatchNormalizationStatisticsGradient`` add to it, image by image or all at once, until it is used; the first of
    their encodes after that starts anew:

    * statistics start anew after an encode of ``BatchNormalization`` or of a gradient kernel has read them (and the
      gradients are then gone too);
    * gradients start anew after an encode of ``BatchNormalizationGradient`` has read them.

    So a state can serve one batch after the other without ``reset``. This rule is ours: MPS documents only ``reset``.

    Buffers are float32, one value for each feature channel: ``resource(0)`` to ``resource(5)`` are gamma, beta, mean,
    variance, gradient for gamma and gradient for beta.
    """

    def __init__(
        self,
        batch_normalization: BatchNormalization,
        snapshot: ForwardSnapshot,
        *,
        command_buffer: CommandBuffer | None = None,
    ) -> None:
        count = batch_normalization.number_of_feature_channels
        super().__init__(
            snapshot, (FLOAT_BYTES * count,) * 6, batch_normalization.device, command_buffer=command_buffer
        )
        self._batch_normalization = batch_normalization
        self._count = count
        self._statistics = Accumulation("statistics")
        self._gradients = Accumulation("gradients")
        self._adopt_parameters()
        self.reset()

    @property
    def batch_normalization(self) -> BatchNormalization:
        """The kernel that made the state."""
        return self._batch_normalization

    @property
    def epsilon(self) -> float:
        """The epsilon of the forward encode, or before it of the kernel when the state was made."""
        return self._epsilon

    # objc: -reset
    def reset(self) -> None:
        """Forgets statistics and gradients."""
        self._statistics.clear()
        self._gradients.clear()
        self._statistics_used = False
        self._gradients_used = False
        self._statistics_are_given = False

    def _require_gradients(self, owner: str, command_buffer: CommandBuffer) -> None:
        self._gradients.require_ordered(owner, command_buffer)

    def _adopt_parameters(self) -> None:
        self._gamma_and_beta = self._batch_normalization._gamma_and_beta
        self._epsilon = self._batch_normalization.epsilon

    # objc: -resourceAtIndex:allocateMemory:
    def resource(self, index: int) -> Buffer:
        """The buffer at ``index``; those of gamma and beta belong to the kernel."""
        return self._gamma_and_beta.resource(index) if index in (0, 1) else super().resource(index)

    def _encode_buffers(self) -> Mapping[Any, Buffer]:
        return {**super()._encode_buffers(), 0: self.resource(0), 1: self.resource(1)}

    def _encode_buffer(self, name: Any, command_buffer: CommandBuffer) -> Buffer:
        buffer = (self._gamma_and_beta if name in (0, 1) else self)._buffers[name]
        return self.resource(name) if buffer is None else buffer

    def _encode_buffers_called(self, names: Iterable[Any], command_buffer: CommandBuffer) -> list[Buffer]:
        # Without a call for each: there are up to six.
        own, of_kernel = self._buffers, self._gamma_and_beta._buffers
        found = [(of_kernel if name in (0, 1) else own)[name] for name in names]
        if None in found:
            return super()._encode_buffers_called(names, command_buffer)
        return found  # type: ignore[return-value]

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        made_by = self._batch_normalization
        given = self._statistics_are_given
        return (self.snapshot, self._count, self._epsilon, made_by._neuron_token, made_by is kernel, given)

    @property
    def gamma(self) -> np.ndarray:
        """The gamma of the forward encode, a copy."""
        return self._gamma_and_beta.gamma

    @property
    def beta(self) -> np.ndarray:
        """The beta of the forward encode, a copy."""
        return self._gamma_and_beta.beta

    @property
    def mean(self) -> np.ndarray | None:
        """``sum x / M`` over the pixels of all images so far, a copy; None before statistics were encoded.

        Waits for the work that writes it. Raises ``StateError`` for a temporary state and before ``commit``.
        """
        return self._value(2, self._statistics)

    @property
    def variance(self) -> np.ndarray | None:
        """``sum (x - mean)^2 / M``, without epsilon, a copy; None before statistics were encoded."""
        return self._value(3, self._statistics)

    @property
    def gradient_for_gamma(self) -> np.ndarray | None:
        """``sum g f'(z) (x - mean) / sqrt(variance + epsilon)`` over the batch, a copy; None before it was encoded."""
        return self._value(4, self._gradients)

    @property
    def gradient_for_beta(self) -> np.ndarray | None:
        """``sum g f'(z)`` over the batch, a copy; None before it was encoded."""
        return self._value(5, self._gradients)

    def _value(self, index: int, accumulation: Accumulation) -> np.ndarray | None:
        if accumulation.pixels == 0:
            return None
        if self.is_temporary:
            raise StateError(f"{type(self).__name__}: read on the CPU, but temporary states have no CPU access")
        accumulation.wait(type(self).__name__)
        return self.resource(index).read(0, FLOAT_BYTES * self._count).view(np.float32)

    @property
    def parameter_vectors(self) -> tuple[Vector, ...]:
        """Gamma and beta as vectors, for optimizers."""
        return self._gamma_and_beta.parameter_vectors

    @property
    def gradient_vectors(self) -> tuple[Vector, ...]:
        """The gradients for gamma and beta, for optimizers. Raises ``StateError`` before they were encoded."""
        if self._gradients.pixels == 0:
            raise StateError(
                f"{type(self).__name__}: no gradients yet; encode BatchNormalizationStatisticsGradient first"
            )
        return tuple(Vector.of_buffer(self.resource(index), self._count) for index in (4, 5))

    @property
    def statistics_vectors(self) -> tuple[Vector, ...]:
        """Mean and variance as vectors, for running averages. Raises ``StateError`` before they were encoded."""
        if self._statistics.pixels == 0:
            raise StateError(f"{type(self).__name__}: no statistics yet; encode BatchNormalizationStatistics first")
        return tuple(Vector.of_buffer(self.resource(index), self._count) for index in (2, 3))

    def batch_representation(self) -> StateBatch:
        """This state once for each image."""
        return StateBatch([self] * self.snapshot.source.number_of_images)

    @property
    def statistics_pixels(self) -> int:
        """How many pixels the statistics hold that the next encode of statistics adds to."""
        return 0 if self._statistics_used else self._statistics.pixels

    def begin_statistics(self, owner: str, command_buffer: CommandBuffer) -> None:
        """Called before an encode of ``command_buffer`` adds to the statistics: forgets those that were used."""
        if self._statistics_used:
            self.reset()
        self._statistics_are_given = False
        self._statistics.require_ordered(owner, command_buffer)

    def add_statistics(self, command_buffer: CommandBuffer, pixels: int) -> None:
        """Notes that ``command_buffer`` adds the statistics of ``pixels`` pixels."""
        self._statistics.add(command_buffer, pixels)

    def give_statistics(self, command_buffer: CommandBuffer, pixels: int) -> None:
        """Notes that ``command_buffer`` writes statistics that do not depend on the batch, of ``pixels`` pixels."""
        self.add_statistics(command_buffer, pixels)
        self._statistics_are_given = True

    @property
    def statistics_are_given(self) -> bool:
        """Whether the statistics are those of a data source, so that they have no gradient."""
        return self._statistics_are_given

    @property
    def batch_pixels(self) -> int:
        """How many pixels the statistics are of."""
        return self._statistics.pixels

    def use_statistics(self, owner: str, command_buffer: CommandBuffer) -> int:
        """Called before an encode reads the statistics; of how many pixels they are.

        Raises ``StateError`` if there are none.
        """
        self._statistics.require_ordered(owner, command_buffer)
        pixels = self._statistics.pixels
        if pixels == 0:
            raise StateError(
                f"{owner}: batch_normalization_state holds no statistics; encode BatchNormalizationStatistics first"
            )
        self._gamma_and_beta._require_available(owner, command_buffer)
        if not self._statistics_used:
            command_buffer._if_taken_back(partial(setattr, self, "_statistics_used", False))
            self._statistics_used = True
        return pixels

    @property
    def gradients_pixels(self) -> int:
        """How many pixels the gradients hold that the next encode of gradients adds to."""
        return 0 if self._gradients_used else self._gradients.pixels

    def begin_gradients(self, owner: str, command_buffer: CommandBuffer, pixels: int) -> None:
        """Called before an encode of ``command_buffer`` adds ``pixels`` to the gradients: forgets those that were used.

        Raises ``StateError`` if that makes more than the statistics have.
        """
        batch_pixels = self.use_statistics(owner, command_buffer)
        if self._gradients_used:
            self._gradients.clear()
            self._gradients_used = False
        self._gradients.require_ordered(owner, command_buffer)
        total = self._gradients.pixels + pixels
        if total > batch_pixels:
            raise StateError(
                f"{owner}: gradients of {total} pixels in all, but the statistics of batch_normalization_state are of "
                f"{batch_pixels} pixels"
            )

    def add_gradients(self, command_buffer: CommandBuffer, pixels: int) -> None:
        """Notes that ``command_buffer`` adds the gradients of ``pixels`` pixels."""
        self._gradients.add(command_buffer, pixels)

    def use_gradients(self, owner: str, command_buffer: CommandBuffer) -> None:
        """Called before an encode reads the gradients. Raises ``StateError`` unless they are complete."""
        batch_pixels = self.use_statistics(owner, command_buffer)
        self._gradients.require_ordered(owner, command_buffer)
        pixels = self._gradients.pixels
        if pixels != batch_pixels:
            raise StateError(
                f"{owner}: batch_normalization_state has gradients of {pixels} pixels but statistics "
                f"of {batch_pixels}; encode BatchNormalizationStatisticsGradient for the whole batch first"
            )
        if not self._gradients_used:
            command_buffer._if_taken_back(partial(setattr, self, "_gradients_used", False))
            self._gradients_used = True


def require_batch_state(kernel: BaseKernel, state: Any) -> None:
    """Raises unless ``state`` is one that ``kernel`` can use, of its device and with reads left."""
    owner = type(kernel).__name__
    if not isinstance(state, BatchNormalizationState):
        raise FormatError(
            f"{owner}: batch_normalization_state is {type(state).__name__}; it has to be the BatchNormalizationState "
            "that BatchNormalization.result_state made"
        )
    if state.device is not kernel.device:
        raise StateError(
            f"{owner}: batch_normalization_state is on {state.device.identifier} but the kernel on "
            f"{kernel.device.identifier}"
        )
    state._require_readable(owner, "batch_normalization_state")
