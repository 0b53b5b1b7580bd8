"""How a graph has data sources update the parameters of its kernels, and loads what they give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

from mpsgrad.command import CommandBuffer
from mpsgrad.errors import FormatError, StateError
from mpsgrad.graph.convolution import ConvolutionGradientNode
from mpsgrad.graph.nodes import FilterNode, TrainingStyle
from mpsgrad.graph.normalization import (
    BatchNormalizationGradientNode,
    GroupNormalizationGradientNode,
    InstanceNormalizationGradientNode,
)
from mpsgrad.graph.structure import Structure
from mpsgrad.graph.trainable import TrainableGradientNode
from mpsgrad.kernels.batch_normalization_state import (
    NormalizationGammaAndBetaState,
    NormalizationMeanAndVarianceState,
)
from mpsgrad.kernels.convolution_state import ConvolutionWeightsAndBiasesState
from mpsgrad.kernels.normalization_kernel import copy_parameters
from mpsgrad.vector import Vector

NewState = TypeVar("NewState")


class ParameterUpdate:
    """The update of one gradient node's parameters. ``kernel`` is the forward kernel."""

    def __init__(self, node: TrainableGradientNode, kernel: Any, name: str) -> None:
        self.node = node
        self.kernel = kernel
        self.name = name
        self.data_source = kernel.data_source

    def require_gradients(self) -> None:
        """Raises ``StateError`` if the graph computes no gradients for the parameters."""

    def begin(self, command_buffer: CommandBuffer) -> None:
        """Called before the forward pass is encoded."""

    def gradient_vectors(self, state: Any) -> tuple[Vector, ...]:
        """The gradients of the parameters, in whatever parts."""
        return state.gradient_vectors

    def encode(self, command_buffer: CommandBuffer, state: Any) -> Callable[[], None] | None:
        """Has the data source encode an update and loads what it gives, or sees to it that the CPU does so later.

        Returns what is to be called behind all updates, if anything: so their dispatches can be joined.
        """
        if self.node.training_style is TrainingStyle.UPDATE_DEVICE_GPU:
            return self._update_on_device(command_buffer, state)
        if self.node.training_style is TrainingStyle.UPDATE_DEVICE_CPU:
            source_state = self._source_state(command_buffer)

            def update(done: CommandBuffer) -> None:
                if done.is_recorded:
                    raise StateError(
                        f"Graph: the training style of {self.name} is CPU, but its encode was recorded; a replay does "
                        "not load new parameters from the CPU"
                    )
                if done.error is None:
                    self._update_on_cpu(state, source_state)

            command_buffer.add_completed_handler(update)
        return None

    def _source_state(self, command_buffer: CommandBuffer) -> Any:
        """The parameters of this encode as a state, for data sources that are given one."""
        return None

    def _update_on_device(self, command_buffer: CommandBuffer, state: Any) -> Callable[[], None] | None:
        raise NotImplementedError

    def _update_on_cpu(self, state: Any, source_state: Any) -> None:
        raise NotImplementedError

    def reload(self) -> None:
        """Called after the kernels have been loaded from the data source."""

    def _call(self, method: str, *arguments: Any) -> Any:
        """What the data source's ``method`` returns, or None if it has none."""
        found = getattr(self.data_source, method, None)
        return None if found is None else found(*arguments)

    def _call_for(self, kind: type[NewState], method: str, *arguments: Any) -> NewState | None:
        """The same for a method that returns new parameters or None. Raises ``FormatError`` for anything else."""
        updated = self._call(method, *arguments)
        if updated is not None and not isinstance(updated, kind):
            raise FormatError(
                f"{type(self.data_source).__name__}.{method} returned {type(updated).__name__}; it has to be a "
                f"{kind.__name__} or None"
            )
        return updated


class ConvolutionUpdate(ParameterUpdate):
    """The weights and biases of all kernels with one data source.

    ``has_gradients`` says whether the graph computes gradients for them.
    """

    def __init__(
        self, node: TrainableGradientNode, kernel: Any, name: str, sharing: Sequence[Any], has_gradients: bool
    ) -> None:
        super().__init__(node, kernel, name)
        self.sharing = sharing
        self.has_gradients = has_gradients

    def require_gradients(self) -> None:
        if not self.has_gradients:
            raise StateError(
                f"Graph: the training style of {self.name} is {self.node.training_style.name} but was "
                f"{TrainingStyle.UPDATE_DEVICE_NONE.name} when the graph was made, which so computes no gradients for "
                "its parameters; make another graph of the nodes"
            )

    def _source_state(self, command_buffer: CommandBuffer) -> Any:
        return self.kernel.export_weights_and_biases(command_buffer)

    def _update_on_device(self, command_buffer: CommandBuffer, state: Any) -> Callable[[], None] | None:
        if not hasattr(self.data_source, "update_with_command_buffer"):
            return None
        source_state = self.kernel.parameters_to_update(command_buffer)
        updated = self._call_for(
            ConvolutionWeightsAndBiasesState, "update_with_command_buffer", command_buffer, state, source_state
        )
        if updated is None:
            return None
        if updated.is_temporary:
            updated.read_count += len(self.sharing) - 1
        load = partial(self._load, command_buffer, updated)
        if updated is getattr(self.data_source, "weights_and_biases_state", None):
            return load
        load()
        return None

    def _load(self, command_buffer: CommandBuffer, updated: Any) -> None:
        for kernel in self.sharing:
            kernel.reload_weights_and_biases(command_buffer, updated)

    def _update_on_cpu(self, state: Any, source_state: Any) -> None:
        if self._call("update_with_gradient_state", state, source_state):
            for kernel in self.sharing:
                kernel.reload_weights_and_biases_from_data_source()


class NormalizationUpdate(ParameterUpdate):
    """Gamma and beta of instance and group normalization.

    Each encode begins with the gamma and beta that the last one left in ``_present``, so that replays of a recorded
    encode go on from each other's results.
    """

    cpu_method: ClassVar[str]

    def __init__(self, node: TrainableGradientNode, kernel: Any, name: str) -> None:
        super().__init__(node, kernel, name)
        self.reload()

    def reload(self) -> None:
        present, device = self.kernel._gamma_and_beta, self.kernel.device
        if present is not getattr(self.data_source, "gamma_and_beta_state", None):
            present = NormalizationGammaAndBetaState.from_arrays(present.gamma, present.beta, device)
        self._present = present

    def begin(self, command_buffer: CommandBuffer) -> None:
        self.kernel.reload_gamma_and_beta_with_command_buffer(command_buffer, self._present)

    def _argument(self, state: Any) -> Any:
        """What the data source is given for the state."""
        return state.batch_representation()

    def _update_on_device(self, command_buffer: CommandBuffer, state: Any) -> None:
        updated = self._call_for(
            NormalizationGammaAndBetaState,
            "update_gamma_and_beta_with_command_buffer",
            command_buffer,
            self._argument(state),
        )
        if updated is not None and updated is not self._present:
            copy_parameters(command_buffer, updated, self._present)
            updated._read_once()

    def _update_on_cpu(self, state: Any, source_state: Any) -> None:
        if self._call(self.cpu_method, self._argument(state)):
            self.kernel.reload_gamma_and_beta_from_data_source()
            self.reload()


class InstanceNormalizationUpdate(NormalizationUpdate):
    cpu_method = "update_gamma_and_beta_with_instance_normalization_state_batch"

    def gradient_vectors(self, state: Any) -> tuple[Vector, ...]:
        return state.gradient_rows


class GroupNormalizationUpdate(InstanceNormalizationUpdate):
    cpu_method = "update_gamma_and_beta_with_group_normalization_state_batch"


class BatchNormalizationUpdate(NormalizationUpdate):
    """Gamma, beta, and the mean and variance that inference uses."""

    cpu_method = "update_gamma_and_beta_with_batch_normalization_state"

    def _argument(self, state: Any) -> Any:
        return state

    def _update_on_device(self, command_buffer: CommandBuffer, state: Any) -> None:
        statistics = self._call_for(
            NormalizationMeanAndVarianceState, "update_mean_and_variance_with_command_buffer", command_buffer, state
        )
        if statistics is not None:
            self.kernel.reload_mean_and_variance_with_command_buffer(command_buffer, statistics)
        super()._update_on_device(command_buffer, state)

    def _update_on_cpu(self, state: Any, source_state: Any) -> None:
        if self._call("update_mean_and_variance_with_batch_normalization_state", state):
            self.kernel.reload_mean_and_variance_from_data_source()
        super()._update_on_cpu(state, source_state)


_UPDATES: dict[type[TrainableGradientNode], type[NormalizationUpdate]] = {
    InstanceNormalizationGradientNode: InstanceNormalizationUpdate,
    GroupNormalizationGradientNode: GroupNormalizationUpdate,
    BatchNormalizationGradientNode: BatchNormalizationUpdate,
}


def updates_of(
    structure: Structure, kernels: Mapping[FilterNode, Sequence[Any]]
) -> dict[TrainableGradientNode, ParameterUpdate]:
    """The updates of all gradient nodes with parameters, in the order of the filters."""
    found: dict[TrainableGradientNode, ParameterUpdate] = {}
    with_weights = [
        made[0] for made in kernels.values() if hasattr(made[0], "reload_weights_and_biases_from_data_source")
    ]
    for node in structure.filters:
        if not isinstance(node, TrainableGradientNode):
            continue
        kernel, name = kernels[node.inference_node][0], structure.names[node.inference_node]
        if isinstance(node, ConvolutionGradientNode):
            sharing = [each for each in with_weights if each.data_source is kernel.data_source]
            has_gradients = structure.needs_parameter_gradients(node)
            found[node] = ConvolutionUpdate(node, kernel, name, sharing, has_gradients)
        else:
            kind = next(kind for each, kind in _UPDATES.items() if isinstance(node, each))
            found[node] = cast(Any, kind)(node, kernel, name)
    return found
