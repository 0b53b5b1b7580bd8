"""Where the parameters of instance and group normalization come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad.archive import archivable
from mpsgrad.errors import GeometryError
from mpsgrad.geometry import integer
from mpsgrad.kernels.batch_normalization_data_source import (
    SMALLEST_EPSILON,
    ArraysOfChannels,
    GammaAndBetaDataSource,
)

if TYPE_CHECKING:
    from mpsgrad.command import CommandBuffer
    from mpsgrad.kernels.batch_normalization_state import NormalizationGammaAndBetaState
    from mpsgrad.kernels.group_normalization_state import (
        GroupNormalizationGradientState,
        InstanceNormalizationGradientState,
    )

GAMMA_AND_BETA = ("gamma", "beta")


class InstanceNormalizationDataSource(GammaAndBetaDataSource):
    """The protocol of a data source: subclass it, or offer the same attributes.

    Source: ``MPSCNNInstanceNormalizationDataSource``.

    A kernel calls ``load``, reads the attributes, and calls ``purge``, when it is made and at each reload from the data
    source. It copies what it reads. ``from_arrays`` makes a data source of arrays. The ``update`` methods are for
    whoever drives the training to call.
    """

    # objc: -updateGammaAndBetaWithCommandBuffer:instanceNormalizationStateBatch:
    def update_gamma_and_beta_with_command_buffer(
        self,
        command_buffer: CommandBuffer,
        instance_normalization_state_batch: Sequence[InstanceNormalizationGradientState],
    ) -> NormalizationGammaAndBetaState | None:
        """Encodes an update on the device and returns the new gamma and beta, or None for no update.

        Has to add up the gradients of the states, and to lower the read count of temporary states by one.
        """
        return None

    # objc: -updateGammaAndBetaWithInstanceNormalizationStateBatch:
    def update_gamma_and_beta_with_instance_normalization_state_batch(
        self, instance_normalization_state_batch: Sequence[InstanceNormalizationGradientState]
    ) -> bool:
        """Updates the data source's own arrays on the CPU; True makes the kernel reload gamma and beta."""
        return False

    @staticmethod
    def from_arrays(
        gamma: np.ndarray | None = None,
        beta: np.ndarray | None = None,
        *,
        number_of_feature_channels: int | None = None,
        epsilon: float = SMALLEST_EPSILON,
        label: str | None = None,
    ) -> ArrayInstanceNormalizationDataSource:
        """A data source that holds the arrays themselves, so that they can be updated in place.

        Each is float32 with one value for each feature channel; ``number_of_feature_channels`` is needed if both are
        None. Raises ``FormatError`` for an array that is not a NumPy array of native float32, ``GeometryError`` for
        lengths that differ and an epsilon that is not positive.
        """
        return ArrayInstanceNormalizationDataSource(
            gamma, beta, number_of_feature_channels=number_of_feature_channels, epsilon=epsilon, label=label
        )


class GroupNormalizationDataSource(GammaAndBetaDataSource):
    """The protocol of a data source: subclass it, or offer the same attributes.

    Source: ``MPSCNNGroupNormalizationDataSource``. As ``InstanceNormalizationDataSource``, and also says into how many
    groups of equal numbers of channels that follow each other the channels are divided.
    """

    @property
    def number_of_groups(self) -> int:
        """Divides ``number_of_feature_channels``."""
        raise NotImplementedError(f"{type(self).__name__} has to define number_of_groups")

    # objc: -updateGammaAndBetaWithCommandBuffer:groupNormalizationStateBatch:
    def update_gamma_and_beta_with_command_buffer(
        self, command_buffer: CommandBuffer, group_normalization_state_batch: Sequence[GroupNormalizationGradientState]
    ) -> NormalizationGammaAndBetaState | None:
        """Encodes an update on the device and returns the new gamma and beta, or None for no update.

        Has to add up the gradients of the states, and to lower the read count of temporary states by one.
        """
        return None

    # objc: -updateGammaAndBetaWithGroupNormalizationStateBatch:
    def update_gamma_and_beta_with_group_normalization_state_batch(
        self, group_normalization_state_batch: Sequence[GroupNormalizationGradientState]
    ) -> bool:
        """Updates the data source's own arrays on the CPU; True makes the kernel reload gamma and beta."""
        return False

    @staticmethod
    def from_arrays(
        number_of_groups: int,
        gamma: np.ndarray | None = None,
        beta: np.ndarray | None = None,
        *,
        number_of_feature_channels: int | None = None,
        epsilon: float = SMALLEST_EPSILON,
        label: str | None = None,
    ) -> ArrayGroupNormalizationDataSource:
        """As ``InstanceNormalizationDataSource.from_arrays``, with ``number_of_groups``.

        Raises ``GeometryError`` also where that does not divide the number of channels.
        """
        return ArrayGroupNormalizationDataSource(
            number_of_groups,
            gamma,
            beta,
            number_of_feature_channels=number_of_feature_channels,
            epsilon=epsilon,
            label=label,
        )


def checked_groups(owner: str, number_of_groups: int, channels: int) -> int:
    """``number_of_groups``; raises ``GeometryError`` unless it divides ``channels``."""
    groups = integer(owner, "number_of_groups", number_of_groups, 1)
    if channels % groups:
        raise GeometryError(f"{owner}: number_of_groups is {groups} but it has to divide the {channels} channels")
    return groups


@archivable
class ArrayInstanceNormalizationDataSource(ArraysOfChannels, InstanceNormalizationDataSource):
    """Made by ``InstanceNormalizationDataSource.from_arrays``; it can be archived."""

    def __init__(
        self,
        gamma: np.ndarray | None = None,
        beta: np.ndarray | None = None,
        *,
        number_of_feature_channels: int | None = None,
        epsilon: float = SMALLEST_EPSILON,
        label: str | None = None,
    ) -> None:
        owner = "InstanceNormalizationDataSource.from_arrays"
        super().__init__(owner, {"gamma": gamma, "beta": beta}, number_of_feature_channels, epsilon, label)

    def __repr__(self) -> str:
        name = f" {self.label!r}" if self.label else ""
        return f"<InstanceNormalizationDataSource{name} of {self._count} feature channels>"


@archivable
class ArrayGroupNormalizationDataSource(ArraysOfChannels, GroupNormalizationDataSource):
    """Made by ``GroupNormalizationDataSource.from_arrays``; it can be archived."""

    def __init__(
        self,
        number_of_groups: int,
        gamma: np.ndarray | None = None,
        beta: np.ndarray | None = None,
        *,
        number_of_feature_channels: int | None = None,
        epsilon: float = SMALLEST_EPSILON,
        label: str | None = None,
    ) -> None:
        owner = "GroupNormalizationDataSource.from_arrays"
        super().__init__(owner, {"gamma": gamma, "beta": beta}, number_of_feature_channels, epsilon, label)
        self._groups = checked_groups(owner, number_of_groups, self._count)

    @property
    def number_of_groups(self) -> int:
        return self._groups

    def archive_fields(self) -> dict[str, Any]:
        """What the data source is rebuilt from."""
        return {**super().archive_fields(), "number_of_groups": self._groups}

    def __repr__(self) -> str:
        name = f" {self.label!r}" if self.label else ""
        return f"<GroupNormalizationDataSource{name} of {self._count} feature channels in {self._groups} groups>"
