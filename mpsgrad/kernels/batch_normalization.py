"""Batch normalization, the forward kernel."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, overload

from mpsgrad.batch_arguments import require_batch
from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import StateError, refuse_unavailable
from mpsgrad.geometry import EdgeMode
from mpsgrad.image import Image, ImageBatch
from mpsgrad.kernel import Regions
from mpsgrad.kernels.batch_normalization_data_source import LoadedNormalization
from mpsgrad.kernels.batch_normalization_dispatch import encoder_of
from mpsgrad.kernels.batch_normalization_state import (
    BatchNormalizationState,
    NormalizationMeanAndVarianceState,
    require_batch_state,
)
from mpsgrad.kernels.neuron_descriptor import NeuronDescriptor, neuron_or_none
from mpsgrad.kernels.normalization_kernel import NormalizationKernel, copy_rows
from mpsgrad.kernels.pointwise import Operand
from mpsgrad.read_counts import parts_in_place_of
from mpsgrad.repeated_encode import token
from mpsgrad.state import State, StateBatch


class BatchNormalization(NormalizationKernel[BatchNormalizationState]):
    """``y = f(gamma (x - mean) / sqrt(variance + epsilon) + beta)`` for each feature channel.

    Source: ``MPSCNNBatchNormalization``.

    With a ``BatchNormalizationState`` mean and variance are those that ``BatchNormalizationStatistics`` measured on the
    batch; without, those of ``data_source`` (inference). ``f`` is the neuron of ``fused_neuron_descriptor``, or x.

    An archive holds the data source as it is then; parameters that came from a state are not in it.

    Raises ``FormatError``, ``GeometryError`` or ``StateError`` for an unusable data source.
    """

    remembers_encodes = True

    # objc: -initWithDevice:dataSource:
    # objc: -initWithDevice:dataSource:fusedNeuronDescriptor:
    def __init__(
        self,
        data_source: Any,
        *,
        fused_neuron_descriptor: NeuronDescriptor | None = None,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(device=device, label=label)
        owner = type(self).__name__
        self._neuron = neuron_or_none(owner, "fused_neuron_descriptor", fused_neuron_descriptor)
        self._neuron_token = token(self._neuron)
        self._fused_neuron_descriptor = fused_neuron_descriptor
        self._mean_and_variance = self._mean_and_variance_of(self._load(data_source))
        self._neuron.require_channels(owner, self._count)

    @property
    def fused_neuron_descriptor(self) -> NeuronDescriptor | None:
        """The neuron behind the normalization, or None."""
        return self._fused_neuron_descriptor

    @property
    def is_result_state_reused_across_batch(self) -> bool:
        return True

    # objc: -reloadMeanAndVarianceFromDataSource
    def reload_mean_and_variance_from_data_source(self) -> None:
        """Takes the statistics for inference from the data source, for encodes from now on."""
        self._mean_and_variance = self._mean_and_variance_of(self._reload())

    def _mean_and_variance_of(self, loaded: LoadedNormalization) -> NormalizationMeanAndVarianceState:
        shared = self._shared("mean_and_variance_state", NormalizationMeanAndVarianceState)
        return shared or NormalizationMeanAndVarianceState.from_arrays(loaded.mean, loaded.variance, self.device)

    # objc: -reloadMeanAndVarianceWithCommandBuffer:meanAndVarianceState:
    def reload_mean_and_variance_with_command_buffer(
        self, command_buffer: CommandBuffer, mean_and_variance_state: NormalizationMeanAndVarianceState
    ) -> None:
        """The same for the statistics that inference uses."""
        self._mean_and_variance = self._copied(
            command_buffer,
            "mean_and_variance_state",
            mean_and_variance_state,
            NormalizationMeanAndVarianceState,
            self._mean_and_variance,
        )

    # objc: -resultStateForSourceImage:sourceStates:destinationImage:
    def result_state(
        self,
        source_image: Image,
        *,
        source_states: Sequence[State] | None = None,
        destination_image: Image | None = None,
    ) -> BatchNormalizationState:
        """A state for one batch, to be filled by ``BatchNormalizationStatistics``.

        ``source_image`` may be the whole batch or one image of it. Without ``destination_image`` the result is taken to
        have the extents of the source.
        """
        self._require_instances(source_image=source_image)
        return self._make_state(source_image, destination_image or source_image, None)

    # objc: -temporaryResultStateForCommandBuffer:sourceImage:sourceStates:destinationImage:
    def temporary_result_state(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        *,
        source_states: Sequence[State] | None = None,
        destination_image: Image | None = None,
    ) -> BatchNormalizationState:
        """As ``result_state``, but a temporary state of ``command_buffer``; every encode lowers its read count."""
        self._require_instances(source_image=source_image)
        return self._make_state(source_image, destination_image or source_image, command_buffer)

    def encode_given_statistics(
        self, command_buffer: CommandBuffer, source_image: Image, batch_normalization_state: BatchNormalizationState
    ) -> None:
        """Fills the state with the mean and variance for inference, in place of ``BatchNormalizationStatistics``.

        They do not depend on ``source_image``, so its gradient is ``gamma / sqrt(variance + epsilon) gz``. Ours: MPS
        offers that as a flag of graph nodes.
        """
        owner, state = type(self).__name__, batch_normalization_state
        self._require_command_buffer(command_buffer, "encode_given_statistics")
        require_batch_state(self, state)
        _require_extents(owner, state, source_image)
        state.begin_statistics(owner, command_buffer)
        statistics = self._mean_and_variance
        statistics._require_available(owner, command_buffer)
        sources, destinations = map(statistics.resource, (0, 1)), map(state.resource, (2, 3))
        copy_rows(command_buffer, [*sources], [*destinations], self._count)
        state.give_statistics(command_buffer, math.prod(source_image.shape[:3]))

    def _make_state(
        self, source: Image, destination: Image, command_buffer: CommandBuffer | None
    ) -> BatchNormalizationState:
        return BatchNormalizationState(self, self._shared_snapshot(source, destination), command_buffer=command_buffer)

    def _encode_aspects(self, state: Any) -> Hashable:
        return self._epsilon

    def _encode_buffers(self) -> Mapping[Any, Buffer]:
        names = [(state, index) for state in ("_gamma_and_beta", "_mean_and_variance") for index in (0, 1)]
        return {(state, index): getattr(self, state).resource(index) for state, index in names}

    def _encode_buffer(self, name: Any, command_buffer: CommandBuffer) -> Buffer:
        state, index = name
        return getattr(self, state)._encode_buffer(index, command_buffer)

    def _begin_encode(self, command_buffer: CommandBuffer, state: Any) -> None:
        owner = type(self).__name__
        self._gamma_and_beta._require_available(owner, command_buffer)
        if state is None:
            self._mean_and_variance._require_available(owner, command_buffer)
        else:
            state._adopt_parameters()
            state.use_statistics(owner, command_buffer)

    # objc: -encodeToCommandBuffer:sourceImage:
    # objc: -encodeToCommandBuffer:sourceImage:destinationImage:
    # objc: -encodeToCommandBuffer:sourceImage:batchNormalizationState:destinationImage:
    @overload  # type: ignore[override]
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        *,
        batch_normalization_state: BatchNormalizationState | None = None,
    ) -> Image: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        *,
        batch_normalization_state: BatchNormalizationState | None = None,
        destination_image: Image,
    ) -> None: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        *,
        batch_normalization_state: BatchNormalizationState | None = None,
        destination_image: Image | None = None,
        destination_state: State | None = None,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any: ...

    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        *,
        batch_normalization_state: BatchNormalizationState | None = None,
        destination_image: Image | None = None,
        destination_state: State | None = None,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any:
        """Adds the kernel's work to ``command_buffer``; see ``Kernel.encode`` for results and destinations.

        With ``batch_normalization_state`` the statistics of the batch are used, which have to be complete. The encodes
        that make or fill a ``destination_state`` are unavailable, as in MPS, and raise ``NotImplementedError``: the
        statistics of a batch need all of it first.
        """
        if destination_state is not None or return_state or state_is_temporary:
            self._refuse_destination_states("encode")
        state = batch_normalization_state
        if state is None:
            return super().encode(command_buffer, source_image, destination_image=destination_image)
        key = self._encode_key(command_buffer, (source_image,), destination_image, state)
        remembered = self._recall(key)
        if remembered is not None:
            made = self._encode_again(remembered, command_buffer, (source_image,), destination_image, state)
            source_image._read_once()
            state._read_once()
            return made if destination_image is None else None
        self._require_images(command_buffer, {"source_image": source_image}, None)
        start = command_buffer._position()
        self._validate(source_image)
        self._require_batch_state(state, source_image)
        destination = destination_image
        with command_buffer._all_or_nothing():
            if destination is None:
                descriptor = self.destination_image_descriptor([source_image])
                destination = self._new_image(command_buffer, descriptor)
                self._fill_what_is_clipped(command_buffer, destination)
            regions = self._run(command_buffer, source_image, destination, state)
        self._remember(key, command_buffer, start, (source_image, destination), state, destination.descriptor, regions)
        state._read_once()
        return destination if destination_image is None else None

    # objc: -encodeBatchToCommandBuffer:sourceImages:
    # objc: -encodeBatchToCommandBuffer:sourceImages:destinationImages:
    # objc: -encodeBatchToCommandBuffer:sourceImages:batchNormalizationState:destinationImages:
    @overload  # type: ignore[override]
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        *,
        batch_normalization_state: BatchNormalizationState | None = None,
    ) -> ImageBatch: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        *,
        batch_normalization_state: BatchNormalizationState | None = None,
        destination_images: Sequence[Image],
    ) -> None: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        *,
        batch_normalization_state: BatchNormalizationState | None = None,
        destination_images: Sequence[Image] | None = None,
        destination_states: Sequence[State] | None = None,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any: ...

    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        *,
        batch_normalization_state: BatchNormalizationState | None = None,
        destination_images: Sequence[Image] | None = None,
        destination_states: Sequence[State] | None = None,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any:
        """``encode`` for a batch of images of one image each; batches made of one image are encoded at once."""
        if destination_states is not None or return_state or state_is_temporary:
            self._refuse_destination_states("encode_batch")
        if batch_normalization_state is None:
            return super().encode_batch(command_buffer, source_images, destination_images=destination_images)
        owner = type(self).__name__
        sources = require_batch(owner, "source_images", source_images)
        self._require_images(command_buffer, {f"source_images[{i}]": im for i, im in enumerate(sources)}, None)
        for source in sources:
            self._validate(source)
            self._require_batch_state(batch_normalization_state, source)
        with command_buffer._all_or_nothing():
            if destination_images is None:
                descriptor = replace(self.destination_image_descriptor([sources[0]]), number_of_images=len(sources))
                made = self._new_image(command_buffer, descriptor)
                self._fill_what_is_clipped(command_buffer, made)
                destinations = parts_in_place_of(made)
            else:
                destinations = require_batch(owner, "destination_images", destination_images, len(sources))
            states = StateBatch([batch_normalization_state] * len(sources))
            self._run_batch(command_buffer, [sources], destinations, states)
        batch_normalization_state._read_once()
        return destinations if destination_images is None else None

    def _refuse_destination_states(self, method: str) -> NoReturn:
        refuse_unavailable(
            type(self).__name__,
            f"{method} with a destination state",
            "make the state with result_state, encode BatchNormalizationStatistics into it, and pass it as "
            "batch_normalization_state",
        )

    def _require_batch_state(self, state: Any, source: Image) -> None:
        owner = type(self).__name__
        require_batch_state(self, state)
        if state.batch_normalization is not self:
            raise StateError(
                f"{owner}: batch_normalization_state was made by another kernel, {state.batch_normalization}"
            )
        _require_extents(owner, state, source)

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        statistics: State = self._mean_and_variance
        indices = (0, 1)
        if state is not None:
            statistics, indices = state, (2, 3)
        mean, variance = map(statistics.resource, indices)
        gamma, beta = map(self._gamma_and_beta.resource, (0, 1))
        encoder = encoder_of(
            command_buffer,
            source.channel_format.metal_type,
            self._count,
            (mean, variance, gamma, beta),
            self._epsilon,
            neuron=self._neuron,
        )
        operand = Operand(regions.sources[0], self.offset.x, self.offset.y, self.edge_mode is EdgeMode.CLAMP)
        encoder.stream("normalize", ("source",), [source], (operand,), destination, regions.destination)


def _require_extents(owner: str, state: BatchNormalizationState, source: Image) -> None:
    made_for = state.snapshot.source
    if made_for.shape[1:] != source.shape[1:]:
        raise StateError(
            f"{owner}: batch_normalization_state was made for a source of {made_for.shape_text} but source_image is "
            f"{source.descriptor.shape_text}"
        )
