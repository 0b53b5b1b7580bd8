"""Nodes of batch, instance and group normalization, and of their gradients."""

from __future__ import annotations

import copy
import enum
from collections.abc import Sequence
from functools import partial
from typing import Any

from mpsgrad.devices import Device
from mpsgrad.geometry import member
from mpsgrad.graph.nodes import GradientStateNode, ImageNode
from mpsgrad.graph.setting import Setting
from mpsgrad.graph.trainable import TrainableGradientNode, TrainableUnaryNode
from mpsgrad.image import Image
from mpsgrad.kernels.batch_normalization import BatchNormalization
from mpsgrad.kernels.batch_normalization_gradient import (
    BatchNormalizationGradient,
    BatchNormalizationStatisticsGradient,
)
from mpsgrad.kernels.batch_normalization_statistics import BatchNormalizationStatistics
from mpsgrad.kernels.group_normalization import (
    GroupNormalization,
    GroupNormalizationGradient,
    InstanceNormalization,
    InstanceNormalizationGradient,
)
from mpsgrad.kernels.neuron_descriptor import NeuronDescriptor
from mpsgrad.repeated_encode import stand_in
from mpsgrad.state import State


class NormalizationNodeWithData(TrainableUnaryNode):
    """What the three share: gamma and beta of a data source."""

    data_source = Setting()

    # objc: -initWithSource:dataSource:
    def __init__(self, source: ImageNode, data_source: Any, *, label: str | None = None, **others: Any) -> None:
        label = getattr(data_source, "label", None) if label is None else label
        super().__init__(source, data_source=data_source, label=label, **others)


class InstanceNormalizationGradientNode(TrainableGradientNode):
    """``InstanceNormalizationGradient``. Source: ``MPSCNNInstanceNormalizationGradientNode``."""

    kernel_class = InstanceNormalizationGradient


class GroupNormalizationGradientNode(TrainableGradientNode):
    """``GroupNormalizationGradient``. Source: ``MPSCNNGroupNormalizationGradientNode``."""

    kernel_class = GroupNormalizationGradient


class InstanceNormalizationNode(NormalizationNodeWithData):
    """``InstanceNormalization``. Source: ``MPSCNNInstanceNormalizationNode``."""

    kernel_class = InstanceNormalization
    gradient_class = InstanceNormalizationGradientNode


class GroupNormalizationNode(NormalizationNodeWithData):
    """``GroupNormalization``. Source: ``MPSCNNGroupNormalizationNode``."""

    kernel_class = GroupNormalization
    gradient_class = GroupNormalizationGradientNode


class BatchNormalizationGradientNode(TrainableGradientNode):
    """``BatchNormalizationStatisticsGradient`` and ``BatchNormalizationGradient``.

    Source: ``MPSCNNBatchNormalizationGradientNode``.
    """

    kernel_class = BatchNormalizationGradient

    def make_kernels(self, device: Device, forward: Sequence[Any]) -> list[Any]:
        neuron = {"fused_neuron_descriptor": forward[0].fused_neuron_descriptor}
        return [
            BatchNormalizationGradient(**neuron, device=device, label=self.label),
            BatchNormalizationStatisticsGradient(**neuron, device=device, label=self.label),
        ]

    def encode(
        self,
        command_buffer: Any,
        kernels: Sequence[Any],
        images: Sequence[Image],
        states: Sequence[State],
        makes_state: bool,
    ) -> tuple[Image | None, State | None]:
        gradient, source = images
        batches = [image.batch_representation() for image in images]
        kernels[1].encode_batch(command_buffer, *batches, states[0])
        return kernels[0].encode(command_buffer, gradient, source, states[0]), None


class BatchNormalizationFlags(enum.IntEnum):
    """Which mean and variance a node normalizes with. Source: ``MPSCNNBatchNormalizationFlags``."""

    DEFAULT = 0
    CALCULATE_STATISTICS_AUTOMATIC = 0
    CALCULATE_STATISTICS_ALWAYS = 1
    CALCULATE_STATISTICS_NEVER = 2
    CALCULATE_STATISTICS_MASK = 3


class BatchNormalizationNode(NormalizationNodeWithData):
    """``BatchNormalization``. Source: ``MPSCNNBatchNormalizationNode``.

    In a graph that has the gradient node, too, or exports the state, mean and variance are measured on each batch; in
    others they are those of the data source. ``flags`` asks for the one or the other whatever else is in the graph;
    with NEVER the gradient is that through fixed statistics, ``gamma / sqrt(variance + epsilon) gz``.
    """

    kernel_class = BatchNormalization
    gradient_class = BatchNormalizationGradientNode
    state_class = GradientStateNode
    fused_neuron_descriptor = Setting(None)
    _flags = BatchNormalizationFlags.DEFAULT

    @property
    def flags(self) -> BatchNormalizationFlags:
        """AUTOMATIC at first. Raises ``FormatError`` or ``GeometryError`` when set to what is no such flag."""
        return self._flags

    @flags.setter
    def flags(self, flags: BatchNormalizationFlags) -> None:
        self._flags = member(type(self).__name__, "flags", BatchNormalizationFlags, flags)

    def make_kernels(self, device: Device, forward: Sequence[Any]) -> list[Any]:
        statistics = BatchNormalizationStatistics(device=device, label=self.label)
        return [*super().make_kernels(device, forward), statistics]

    def make_fused_kernels(self, device: Device, neuron_descriptor: NeuronDescriptor) -> list[Any]:
        """``make_kernels`` of kernels that apply a neuron to the result."""
        fused = copy.copy(self)
        fused.fused_neuron_descriptor = neuron_descriptor
        return fused.make_kernels(device, ())

    def encode(
        self,
        command_buffer: Any,
        kernels: Sequence[Any],
        images: Sequence[Image],
        states: Sequence[State],
        makes_state: bool,
    ) -> tuple[Image | None, State | None]:
        normalization, statistics = kernels
        (source,) = images
        if not makes_state and self.flags is not BatchNormalizationFlags.CALCULATE_STATISTICS_ALWAYS:
            return normalization.encode(command_buffer, source), None
        state = normalization.result_state(source)
        if self.flags is BatchNormalizationFlags.CALCULATE_STATISTICS_NEVER:
            normalization.encode_given_statistics(command_buffer, source, state)
        else:
            statistics.encode_batch(command_buffer, source.batch_representation(), state)
            repeated = command_buffer._repeated
            if repeated and repeated[-1].state is state:
                repeated[-1].make_state = partial(normalization.result_state, stand_in(source))
        made = normalization.encode(command_buffer, source, batch_normalization_state=state)
        return made, state if makes_state else None
