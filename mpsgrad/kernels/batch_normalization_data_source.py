"""Where the parameters and the statistics of a batch normalization come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad.archive import archivable
from mpsgrad.checked_attribute import text_or_none
from mpsgrad.data_type import require_unmasked
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import integer, real
from mpsgrad.kernels.data_source_members import require_members

if TYPE_CHECKING:
    from mpsgrad.command import CommandBuffer
    from mpsgrad.kernels.batch_normalization_state import (
        BatchNormalizationState,
        NormalizationGammaAndBetaState,
        NormalizationMeanAndVarianceState,
    )

SMALLEST_EPSILON = float(np.finfo(np.float32).tiny)
"""``FLT_MIN``: the epsilon of a data source that has none."""


class GammaAndBetaDataSource:
    """What the protocols of batch, instance and group normalization share."""

    label: str | None = None

    @property
    def number_of_feature_channels(self) -> int:
        """The length of the arrays."""
        raise NotImplementedError(f"{type(self).__name__} has to define number_of_feature_channels")

    @property
    def gamma(self) -> np.ndarray | None:
        """The scale of each feature channel, float32; None for 1."""
        return None

    @property
    def beta(self) -> np.ndarray | None:
        """The shift of each feature channel, float32; None for 0."""
        return None

    @property
    def epsilon(self) -> float:
        """Added to the variance before its root is taken. The kernel's property starts with it."""
        return SMALLEST_EPSILON

    @property
    def gamma_and_beta_state(self) -> NormalizationGammaAndBetaState | None:
        """Gamma and beta in device memory, for kernels of that device to use as they are; None for copies.

        An update may overwrite this state and return it: nothing is copied. Not in MPS.
        """
        return None

    def load(self) -> bool:
        """Makes the attributes readable. False makes the kernel's construction or reload fail."""
        return True

    def purge(self) -> None:
        """Called once after each ``load``: memory may be given back."""


class BatchNormalizationDataSource(GammaAndBetaDataSource):
    """The protocol of a data source: subclass it, or offer the same attributes.

    Source: ``MPSCNNBatchNormalizationDataSource``.

    A kernel calls ``load``, reads the attributes, and calls ``purge``, when it is made and at each reload from the data
    source. It copies what it reads. ``from_arrays`` makes a data source of arrays. The four ``update`` methods are for
    whoever drives the training to call; neither MPS nor this package blends running statistics by itself.
    """

    @property
    def mean(self) -> np.ndarray | None:
        """The mean of each feature channel for inference, float32; None for 0."""
        return None

    @property
    def variance(self) -> np.ndarray | None:
        """The variance of each feature channel for inference, float32; None for 1."""
        return None

    @property
    def mean_and_variance_state(self) -> NormalizationMeanAndVarianceState | None:
        """The same for ``mean`` and ``variance``."""
        return None

    # objc: -updateGammaAndBetaWithCommandBuffer:batchNormalizationState:
    def update_gamma_and_beta_with_command_buffer(
        self, command_buffer: CommandBuffer, batch_normalization_state: BatchNormalizationState
    ) -> NormalizationGammaAndBetaState | None:
        """Encodes an update on the device and returns the new gamma and beta, or None for no update.

        Has to lower the read count of a temporary state by one.
        """
        return None

    # objc: -updateMeanAndVarianceWithCommandBuffer:batchNormalizationState:
    def update_mean_and_variance_with_command_buffer(
        self, command_buffer: CommandBuffer, batch_normalization_state: BatchNormalizationState
    ) -> NormalizationMeanAndVarianceState | None:
        """The same for the statistics that inference uses."""
        return None

    # objc: -updateGammaAndBetaWithBatchNormalizationState:
    def update_gamma_and_beta_with_batch_normalization_state(
        self, batch_normalization_state: BatchNormalizationState
    ) -> bool:
        """Updates the data source's own arrays on the CPU; True makes the kernel reload gamma and beta."""
        return False

    # objc: -updateMeanAndVarianceWithBatchNormalizationState:
    def update_mean_and_variance_with_batch_normalization_state(
        self, batch_normalization_state: BatchNormalizationState
    ) -> bool:
        """The same for the statistics that inference uses, for example ``0.9 * running + 0.1 * batch``."""
        return False

    @staticmethod
    def from_arrays(
        gamma: np.ndarray | None = None,
        beta: np.ndarray | None = None,
        mean: np.ndarray | None = None,
        variance: np.ndarray | None = None,
        *,
        number_of_feature_channels: int | None = None,
        epsilon: float = SMALLEST_EPSILON,
        label: str | None = None,
    ) -> ArrayBatchNormalizationDataSource:
        """A data source that holds the arrays themselves, so that they can be updated in place.

        Each is float32 with one value for each feature channel; ``number_of_feature_channels`` is needed if all are
        None. Raises ``FormatError`` for an array that is not a NumPy array of native float32, ``GeometryError`` for
        lengths that differ, negative variances and an epsilon that is not positive.
        """
        return ArrayBatchNormalizationDataSource(
            gamma,
            beta,
            mean,
            variance,
            number_of_feature_channels=number_of_feature_channels,
            epsilon=epsilon,
            label=label,
        )


class ArraysOfChannels:
    """The arrays of a data source in memory."""

    def __init__(
        self,
        owner: str,
        arrays: dict[str, np.ndarray | None],
        number_of_feature_channels: int | None,
        epsilon: float,
        label: str | None,
    ) -> None:
        self._arrays, self._count = checked_arrays(owner, arrays, number_of_feature_channels)
        self._epsilon = checked_epsilon(owner, epsilon)
        self.label = text_or_none(owner, "label", label)

    @property
    def number_of_feature_channels(self) -> int:
        return self._count

    @property
    def gamma(self) -> np.ndarray | None:
        return self._arrays["gamma"]

    @property
    def beta(self) -> np.ndarray | None:
        return self._arrays["beta"]

    @property
    def epsilon(self) -> float:
        return self._epsilon

    def archive_fields(self) -> dict[str, Any]:
        """What the data source is rebuilt from."""
        return {
            **self._arrays,
            "number_of_feature_channels": self._count,
            "epsilon": self._epsilon,
            "label": self.label,
        }


@archivable
class ArrayBatchNormalizationDataSource(ArraysOfChannels, BatchNormalizationDataSource):
    """A data source of arrays in memory, made by ``BatchNormalizationDataSource.from_arrays``; it can be archived."""

    def __init__(
        self,
        gamma: np.ndarray | None = None,
        beta: np.ndarray | None = None,
        mean: np.ndarray | None = None,
        variance: np.ndarray | None = None,
        *,
        number_of_feature_channels: int | None = None,
        epsilon: float = SMALLEST_EPSILON,
        label: str | None = None,
    ) -> None:
        owner = "BatchNormalizationDataSource.from_arrays"
        arrays = {"gamma": gamma, "beta": beta, "mean": mean, "variance": variance}
        super().__init__(owner, arrays, number_of_feature_channels, epsilon, label)

    @property
    def mean(self) -> np.ndarray | None:
        return self._arrays["mean"]

    @property
    def variance(self) -> np.ndarray | None:
        return self._arrays["variance"]

    def __repr__(self) -> str:
        name = f" {self.label!r}" if self.label else ""
        return f"<BatchNormalizationDataSource{name} of {self._count} feature channels>"


@dataclass(frozen=True)
class LoadedNormalization:
    """What one ``load`` gave: float32 copies, with the defaults filled in."""

    number_of_feature_channels: int
    gamma: np.ndarray
    beta: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    epsilon: float


BATCH_NORMALIZATION_ARRAYS = ("gamma", "beta", "mean", "variance")
_DEFAULTS = {"gamma": 1.0, "beta": 0.0, "mean": 0.0, "variance": 1.0}


def load_normalization(
    owner: str, data_source: Any, *, arrays: tuple[str, ...], protocol: str, further: tuple[str, ...] = ()
) -> LoadedNormalization:
    """Loads, checks, copies and purges ``data_source``; every ``load`` is followed by a ``purge``, whatever happens.

    It has to have the attributes ``arrays`` and ``further``, as ``protocol`` says. Raises ``FormatError`` if it has
    not, ``StateError`` if it cannot load, and what ``from_arrays`` raises.
    """
    required = ("number_of_feature_channels", *further, *arrays, "load", "purge", "label")
    require_members(owner, data_source, required, protocol)
    loaded = data_source.load()
    try:
        if not loaded:
            raise StateError(f"{owner}: the data source {data_source.label!r} could not load (load() gave {loaded!r})")
        count = integer(owner, "number_of_feature_channels", data_source.number_of_feature_channels, 1)
        copies = {}
        for name, default in _DEFAULTS.items():
            array = _checked(owner, name, getattr(data_source, name), count) if name in arrays else None
            copies[name] = np.full(count, default, np.float32) if array is None else array.copy()
        epsilon = checked_epsilon(owner, getattr(data_source, "epsilon", SMALLEST_EPSILON))
        return LoadedNormalization(count, **copies, epsilon=epsilon)
    finally:
        data_source.purge()


def checked_arrays(
    owner: str, arrays: dict[str, np.ndarray | None], number_of_feature_channels: int | None
) -> tuple[dict[str, np.ndarray | None], int]:
    """``arrays`` and their common length, which is ``number_of_feature_channels`` unless that is None.

    Raises ``FormatError`` for an array that is not of native float32, ``GeometryError`` for another length, or if
    nothing tells the length.
    """
    given = {name: np.asarray(array) for name, array in arrays.items() if array is not None}
    if number_of_feature_channels is None:
        if not given:
            raise GeometryError(f"{owner}: no arrays and no number_of_feature_channels; one of them is needed")
        number_of_feature_channels = next(iter(given.values())).size
    count = integer(owner, "number_of_feature_channels", number_of_feature_channels, 1)
    return {name: _checked(owner, name, array, count) for name, array in arrays.items()}, count


def checked_epsilon(owner: str, value: Any) -> float:
    """``value`` as a float; raises ``FormatError`` if it is no number, ``GeometryError`` unless positive and finite."""
    epsilon = real(owner, "epsilon", value)
    if not np.float32(epsilon) > 0.0:
        raise GeometryError(f"{owner}: epsilon is {epsilon}; it has to be positive in float32")
    return epsilon


def _checked(owner: str, name: str, array: Any, count: int) -> np.ndarray | None:
    if array is None:
        return None
    if not isinstance(array, np.ndarray):
        raise FormatError(f"{owner}: {name} is {type(array).__name__}; it has to be a NumPy array")
    require_unmasked(f"{owner}: {name}", array)
    if array.dtype != np.float32 or not array.dtype.isnative:
        raise FormatError(f"{owner}: {name} is {array.dtype!r}; it has to be float32 in native byte order")
    if array.shape != (count,):
        raise GeometryError(f"{owner}: {name} has shape {array.shape} but there are {count} feature channels")
    if name == "variance" and (array < 0).any():
        raise GeometryError(f"{owner}: variance has the value {array.min()}; variances are not negative")
    return array
