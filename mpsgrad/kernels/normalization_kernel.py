"""``NormalizationKernel``: the gamma, beta and epsilon of a data source, and how they are exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.image import Image
from mpsgrad.kernel import Kernel
from mpsgrad.kernels.batch_normalization_data_source import (
    BATCH_NORMALIZATION_ARRAYS,
    LoadedNormalization,
    checked_epsilon,
    load_normalization,
)
from mpsgrad.kernels.batch_normalization_families import COPY_PARAMETERS, FAMILIES
from mpsgrad.kernels.batch_normalization_state import NormalizationGammaAndBetaState, PairState
from mpsgrad.kernels.neuron_descriptor import NeuronType
from mpsgrad.state import StateType


class NormalizationKernel(Kernel[StateType]):
    """What batch, instance and group normalization share: parameters from a data source, one for each channel."""

    data_source_name: ClassVar[str] = "BatchNormalizationDataSource"
    data_source_arrays: ClassVar[tuple[str, ...]] = BATCH_NORMALIZATION_ARRAYS
    data_source_properties: ClassVar[tuple[str, ...]] = ()

    _data_source: Any
    _count: int
    _epsilon: float
    _gamma_and_beta: NormalizationGammaAndBetaState

    def _load(self, data_source: Any) -> LoadedNormalization:
        """Takes over the data source with its channels, epsilon, gamma and beta; returns all that it has."""
        self._data_source = data_source
        loaded = self._loaded(data_source)
        self._count = loaded.number_of_feature_channels
        self._epsilon = loaded.epsilon
        self._gamma_and_beta = self._gamma_and_beta_of(loaded)
        return loaded

    def _gamma_and_beta_of(self, loaded: LoadedNormalization) -> NormalizationGammaAndBetaState:
        shared = self._shared("gamma_and_beta_state", NormalizationGammaAndBetaState)
        return shared or NormalizationGammaAndBetaState.from_arrays(loaded.gamma, loaded.beta, self.device)

    def _shared(self, name: str, kind: type[PairState]) -> PairState | None:
        """The state that the data source has for kernels of its device to use as it is."""
        state = getattr(self._data_source, name, None)
        if state is None or state.device is not self.device:
            return None
        self._require_fitting(name, state, kind)
        return state

    def _loaded(self, data_source: Any) -> LoadedNormalization:
        return load_normalization(
            type(self).__name__,
            data_source,
            arrays=self.data_source_arrays,
            protocol=self.data_source_name,
            further=self.data_source_properties,
        )

    @property
    def data_source(self) -> Any:
        """What the parameters are loaded from."""
        return self._data_source

    @property
    def number_of_feature_channels(self) -> int:
        """How many channels the data source has parameters for."""
        return self._count

    @property
    def epsilon(self) -> float:
        """Added to the variance before its root is taken; the data source's at first (``FLT_MIN`` if it has none)."""
        return self._epsilon

    @epsilon.setter
    def epsilon(self, value: float) -> None:
        self._epsilon = checked_epsilon(type(self).__name__, value)

    def _archived_properties(self) -> dict[str, Any]:
        return {**super()._archived_properties(), "epsilon": self._epsilon}

    # objc: -reloadGammaAndBetaFromDataSource
    def reload_gamma_and_beta_from_data_source(self) -> None:
        """Takes gamma and beta from the data source, for encodes from now on."""
        loaded = self._reload()
        self._gamma_and_beta = self._gamma_and_beta_of(loaded)

    def _reload(self) -> LoadedNormalization:
        owner = type(self).__name__
        loaded = self._loaded(self._data_source)
        if loaded.number_of_feature_channels != self._count:
            raise GeometryError(
                f"{owner}: the data source has {loaded.number_of_feature_channels} feature channels now but the kernel "
                f"{self._count}"
            )
        return loaded

    # objc: -reloadGammaAndBetaWithCommandBuffer:gammaAndBetaState:
    def reload_gamma_and_beta_with_command_buffer(
        self, command_buffer: CommandBuffer, gamma_and_beta_state: NormalizationGammaAndBetaState
    ) -> None:
        """Copies gamma and beta from the state on the device, for encodes from now on.

        Nothing is copied if that is the data source's ``gamma_and_beta_state``, which the kernel uses itself.
        ``command_buffer`` has to be committed before theirs. Lowers the read count of a temporary state.
        """
        self._gamma_and_beta = self._copied(
            command_buffer,
            "gamma_and_beta_state",
            gamma_and_beta_state,
            NormalizationGammaAndBetaState,
            self._gamma_and_beta,
        )

    def _copied(
        self, command_buffer: CommandBuffer, argument: str, state: Any, kind: type[PairState], own: PairState
    ) -> PairState:
        """A copy of ``state``, or that itself if it is the kernel's ``own``."""
        owner = type(self).__name__
        self._require_command_buffer(command_buffer, f"reload_{argument.removesuffix('_state')}_with_command_buffer")
        self._require_fitting(argument, state, kind)
        if state.device is not self.device:
            raise StateError(
                f"{owner}: {argument} is on {state.device.identifier} but the kernel on {self.device.identifier}"
            )
        state._require_readable(owner, argument)
        state._require_available(owner, command_buffer)
        if state is own:
            return own
        copied = kind(self._count, self.device)
        copy_parameters(command_buffer, state, copied)
        state._read_once()
        return copied

    def _require_fitting(self, argument: str, state: Any, kind: type[Any]) -> None:
        owner = type(self).__name__
        if not isinstance(state, kind):
            raise FormatError(f"{owner}: {argument} is {type(state).__name__}; it has to be a {kind.__name__}")
        if state.number_of_feature_channels != self._count:
            raise GeometryError(
                f"{owner}: {argument} has {state.number_of_feature_channels} feature channels but the kernel has "
                f"{self._count}"
            )

    def _validate(self, source: Image) -> None:
        channels = self._source_channels(source)
        if channels != self._count:
            raise GeometryError(
                f"{type(self).__name__}: the data source has {self._count} feature channels but {channels} are read "
                f"from source_image {source.descriptor.shape_text}"
            )


def copy_parameters(command_buffer: CommandBuffer, source: Any, destination: Any) -> None:
    """Copies gamma and beta, or mean and variance, from one state to another of as many channels, on the device."""
    count = source.number_of_feature_channels
    rows = [state.resource(index) for state in (source, destination) for index in (0, 1)]
    copy_rows(command_buffer, rows[:2], rows[2:], count)
    destination._written_by(command_buffer)


def copy_rows(
    command_buffer: CommandBuffer, sources: Sequence[Buffer], destinations: Sequence[Buffer], count: int
) -> None:
    """Copies ``count`` float32 values from each of two buffers to two others."""
    device = command_buffer.device
    command_buffer.add_dispatch(
        FAMILIES[NeuronType.NONE].function(device, "copy_normalization_parameters", "float"),
        -(-count // 32),
        *sources,
        *destinations,
        device.constant_buffer(COPY_PARAMETERS.pack(count=count)),
    )
