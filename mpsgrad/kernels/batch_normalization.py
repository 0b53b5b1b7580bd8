"""Batch normalization: statistics, forward, and the two phases of its gradient."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from mpsgrad.batch_arguments import require_batch
from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import NO_CLIP, EdgeMode, Offset
from mpsgrad.image import Image
from mpsgrad.kernel import GradientKernel, Kernel, Regions, fill_buffer_with_zeros, source_layout
from mpsgrad.kernels.batch_normalization_data_source import LoadedNormalization
from mpsgrad.kernels.batch_normalization_dispatch import Encoder, encoder_of
from mpsgrad.kernels.batch_normalization_state import (
    BatchNormalizationState,
    NormalizationMeanAndVarianceState,
)
from mpsgrad.kernels.neuron_descriptor import (
    NeuronDescriptor,
    NeuronType,
    require_neuron_descriptor,
)
from mpsgrad.kernels.normalization_kernel import NormalizationKernel, copy_rows
from mpsgrad.kernels.pointwise import Operand, pieces, require_no_clamped_reads
from mpsgrad.repeated_encode import token
from mpsgrad.state import State, StateBatch

NO_NEURON = NeuronDescriptor(NeuronType.NONE)


def _unavailable(owner: str, method: str, instead: str) -> NoReturn:
    raise NotImplementedError(f"{owner}.{method} is unavailable; {instead}")


class BatchNormalization(NormalizationKernel):
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
        self._neuron = _fused(owner, fused_neuron_descriptor)
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
        _require_batch_state(self, state)
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
        return getattr(self, state).resource(index)

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
                destinations = made.batch_representation()
                if len(destinations) > 1:
                    made._read_once()
            else:
                destinations = require_batch(owner, "destination_images", destination_images, len(sources))
            states = StateBatch([batch_normalization_state] * len(sources))
            self._run_batch(command_buffer, [sources], destinations, states)
        batch_normalization_state._read_once()
        return destinations if destination_images is None else None

    def _refuse_destination_states(self, method: str) -> NoReturn:
        _unavailable(
            type(self).__name__,
            f"{method} with a destination state",
            "make the state with result_state, encode BatchNormalizationStatistics into it, and pass it as "
            "batch_normalization_state",
        )

    def _require_batch_state(self, state: Any, source: Image) -> None:
        owner = type(self).__name__
        _require_batch_state(self, state)
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


class BatchNormalizationStatistics(Kernel):
    """Mean and biased variance of each feature channel over a batch. Source: ``MPSCNNBatchNormalizationStatistics``.

    ``mean = sum x / M``, ``variance = sum (x - mean)^2 / M`` over the M pixels of all images: MPS does not say whether
    it divides by M or M - 1. It may be encoded several times with parts of the batch: parts are merged exactly. All
    pixels of the images are read, and of their channels those that ``source_feature_channel_offset`` and
    ``source_feature_channel_max_count`` select.
    """

    remembers_encodes = True

    # objc: -initWithDevice:
    def __init__(self, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(device=device, label=label)

    @property
    def append_batch_barrier(self) -> bool:
        return True

    @property
    def is_state_modified(self) -> bool:
        return True

    @property
    def is_result_state_reused_across_batch(self) -> bool:
        return True

    def encode(self, *arguments: Any, **keywords: Any) -> NoReturn:
        """Unavailable, as in MPS: raises ``NotImplementedError``."""
        _unavailable(type(self).__name__, "encode", "call encode_batch with a batch_normalization_state")

    def _make_state(self, source: Image, destination: Image, command_buffer: CommandBuffer | None) -> NoReturn:
        _unavailable(type(self).__name__, "result_state", "call BatchNormalization.result_state")

    # objc: -encodeBatchToCommandBuffer:sourceImages:batchNormalizationState:
    def encode_batch(  # type: ignore[override]
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        batch_normalization_state: BatchNormalizationState | None = None,
        **unavailable: Any,
    ) -> None:
        """Adds the images to the statistics of ``batch_normalization_state``.

        Encodes with destination images are unavailable, as in MPS, and raise ``NotImplementedError``.
        """
        owner = type(self).__name__
        if unavailable or batch_normalization_state is None:
            _unavailable(
                owner,
                f"encode_batch with {', '.join(unavailable) or 'source_images only'}",
                "call encode_batch(command_buffer, source_images, batch_normalization_state)",
            )
        state = batch_normalization_state
        batch = require_batch(owner, "source_images", source_images)
        whole = batch.whole
        sources = [whole] if whole is not None else list(batch)
        key = self._encode_key(command_buffer, sources, None, state)
        remembered = self._recall(key)
        if remembered is None:
            self._require_statistics(command_buffer, sources, state)
        state.begin_statistics(owner, command_buffer)
        if remembered is not None:
            remembered.work.add_to(command_buffer, sources, self, state)
        else:
            start = command_buffer._position()
            self._add_statistics(command_buffer, sources, state)
            self._remember(key, command_buffer, start, sources, state)
        pixels = sum(source.width * source.height * source.number_of_images for source in sources)
        state.add_statistics(command_buffer, pixels)
        for source in sources:
            source._read_once()
        state._read_once()

    def _encode_aspects(self, state: Any) -> Hashable:
        return state.statistics_pixels if isinstance(state, BatchNormalizationState) else None

    def _require_statistics(self, command_buffer: CommandBuffer, sources: Sequence[Image], state: Any) -> None:
        """Raises unless the statistics of ``sources`` can be added to ``state``."""
        owner = type(self).__name__
        self._require_images(command_buffer, {f"source_images[{i}]": im for i, im in enumerate(sources)}, None)
        _require_batch_state(self, state)
        if self.clip_rect != NO_CLIP or self.offset != Offset():
            raise NotImplementedError(
                f"{owner}: clip_rect is {self.clip_rect} and offset {self.offset}; statistics are of whole images"
            )
        for source in sources:
            channels = self._source_channels(source)
            if channels != state.batch_normalization.number_of_feature_channels:
                raise GeometryError(
                    f"{owner}: {channels} feature channels are read from source_images "
                    f"{source.descriptor.shape_text} but batch_normalization_state has "
                    f"{state.batch_normalization.number_of_feature_channels}"
                )

    def _add_statistics(
        self, command_buffer: CommandBuffer, sources: Sequence[Image], state: BatchNormalizationState
    ) -> None:
        previous = state.statistics_pixels
        encoder = _state_encoder(command_buffer, state, NO_NEURON, sources[0])
        for source in sources:
            images = source.number_of_images
            layout = source_layout(source, self.source_feature_channel_offset, encoder.channels, 0, images)
            encoder.add_statistics(source, layout, previous)
            previous += source.width * source.height * images


class _NormalizationGradientKernel(GradientKernel):
    """What both gradient kernels share: the fused neuron, and the checks."""

    remembers_encodes = True

    forward_kernels = ("BatchNormalization",)

    # objc: -initWithDevice:
    # objc: -initWithDevice:fusedNeuronDescriptor:
    def __init__(
        self,
        *,
        fused_neuron_descriptor: NeuronDescriptor | None = None,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(device=device, label=label)
        self._neuron = _fused(type(self).__name__, fused_neuron_descriptor)
        self._fused_neuron_descriptor = fused_neuron_descriptor

    @property
    def fused_neuron_descriptor(self) -> NeuronDescriptor | None:
        """The neuron behind the normalization, or None; that of the forward kernel."""
        return self._fused_neuron_descriptor

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        owner = type(self).__name__
        if state.batch_normalization._neuron != self._neuron:
            raise StateError(
                f"{owner}: fused_neuron_descriptor is {self._fused_neuron_descriptor} but that of "
                f"batch_normalization_state's kernel is {state.batch_normalization.fused_neuron_descriptor}"
            )
        channels = self._channels_of(source_image, "secondary")
        count = state.batch_normalization.number_of_feature_channels
        if channels != count:
            raise GeometryError(
                f"{owner}: {channels} feature channels are read from source_image "
                f"{source_image.descriptor.shape_text} but batch_normalization_state has {count}"
            )
        require_no_clamped_reads(owner, state.snapshot)


class BatchNormalizationStatisticsGradient(_NormalizationGradientKernel):
    """The gradients for gamma and beta: the first phase. Source: ``MPSCNNBatchNormalizationStatisticsGradient``.

    With ``gz = g f'(z)`` it adds ``gradient_for_beta = sum gz`` and ``gradient_for_gamma = sum gz (x - mean) /
    sqrt(variance + epsilon)`` over all pixels of the images to the state. It may be encoded several times with parts of
    the batch, and is complete when all of it was processed. ``fused_neuron_descriptor`` has to equal the forward
    kernel's.
    """

    @property
    def append_batch_barrier(self) -> bool:
        return True

    @property
    def is_state_modified(self) -> bool:
        return True

    def encode(self, *arguments: Any, **keywords: Any) -> NoReturn:
        """Unavailable, as in MPS: raises ``NotImplementedError``."""
        _unavailable(type(self).__name__, "encode", "call encode_batch with a batch_normalization_state")

    # objc: -encodeBatchToCommandBuffer:sourceGradients:sourceImages:batchNormalizationState:
    def encode_batch(  # type: ignore[override]
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[Image],
        source_images: Sequence[Image],
        batch_normalization_state: BatchNormalizationState,
        **unavailable: Any,
    ) -> None:
        """Adds the images to the gradients in ``batch_normalization_state``.

        The inherited encodes, with gradient states or a destination, are unavailable as in MPS and raise
        ``NotImplementedError``.
        """
        owner = type(self).__name__
        if unavailable or isinstance(batch_normalization_state, Sequence):
            _unavailable(
                owner,
                f"encode_batch with {', '.join(unavailable) or 'gradient states'}",
                "call encode_batch(command_buffer, source_gradients, source_images, batch_normalization_state)",
            )
        state = batch_normalization_state
        gradients = require_batch(owner, "source_gradients", source_gradients)
        sources = require_batch(owner, "source_images", source_images, len(gradients))
        gradient_whole, source_whole = gradients.whole, sources.whole
        if gradient_whole is not None and source_whole is not None:
            pairs = [(gradient_whole, source_whole)]
        else:
            pairs = list(zip(gradients, sources, strict=True))
        images = [image for pair in pairs for image in pair]
        key = self._encode_key(command_buffer, images, None, state)
        remembered = self._recall(key)
        if remembered is None:
            _require_batch_state(self, state)
            for gradient, source in pairs:
                self._require_images(command_buffer, {"source_gradients": gradient, "source_images": source}, None)
                self._require_gradient_state(state, source)
                if not self._configured_by_hand:
                    self._configure_from(state)
                self._validate(gradient, source, state)
                self._require_gradient_size(gradient, state)
        pixels = sum(source.width * source.height * source.number_of_images for _, source in pairs)
        state.begin_gradients(owner, command_buffer, pixels)
        if remembered is not None:
            remembered.work.add_to(command_buffer, images, self, state)
        else:
            start = command_buffer._position()
            self._add_sums_of_batch(command_buffer, pairs, state)
            self._remember(key, command_buffer, start, images, state)
        state.add_gradients(command_buffer, pixels)
        for image in {id(image): image for image in images}.values():
            image._read_once()
        state._read_once()

    def _encode_aspects(self, state: Any) -> Hashable:
        return state.gradients_pixels if isinstance(state, BatchNormalizationState) else None

    def _add_sums_of_batch(
        self, command_buffer: CommandBuffer, pairs: Sequence[tuple[Image, Image]], state: BatchNormalizationState
    ) -> None:
        previous = state.gradients_pixels
        encoder = _state_encoder(command_buffer, state, self._neuron, pairs[0][1])
        for gradient, source in pairs:
            previous += self._add_sums(encoder, gradient, source, state, previous)
        if previous == 0:
            for index in (4, 5):
                fill_buffer_with_zeros(command_buffer, state.resource(index), encoder.channels)

    def _add_sums(
        self, encoder: Encoder, gradient: Image, source: Image, state: BatchNormalizationState, previous: int
    ) -> int:
        """Adds the sums over one image to the state, which holds those of ``previous`` pixels; returns their number."""
        channels, images = encoder.channels, source.number_of_images
        layout = source_layout(source, self.secondary_source_feature_channel_offset, channels, 0, images)
        cut = source_layout(gradient, self.primary_source_feature_channel_offset, channels, 0, images)
        added = 0
        for piece in pieces(layout, (Operand(*self._pointwise_gradient(cut, state)),)):
            part = piece.operands[0]
            if part is None:
                continue
            encoder.add_sums(
                (gradient, source),
                (part, piece.destination),
                (state.resource(4), state.resource(5)),
                previous + added,
            )
            _, _, _, _, width, height, _, count = piece.destination
            added += width * height * count
        return added


class BatchNormalizationGradient(_NormalizationGradientKernel):
    """The gradient for the source: the second phase. Source: ``MPSCNNBatchNormalizationGradient``.

    With ``xhat = (x - mean) / sqrt(variance + epsilon)`` and ``gz = g f'(z)``::

        dx = gamma / sqrt(variance + epsilon) * (gz - (gradient_for_beta + xhat * gradient_for_gamma) / M)

    ``M`` is the number of pixels of the whole batch, which ``BatchNormalizationStatisticsGradient`` has to have
    processed into the state before. ``fused_neuron_descriptor`` has to equal the forward kernel's.
    """

    # objc: -encodeToCommandBuffer:sourceGradient:sourceImage:batchNormalizationState:
    # objc: -encodeToCommandBuffer:sourceGradient:sourceImage:batchNormalizationState:destinationGradient:
    def encode(  # type: ignore[override]
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        batch_normalization_state: BatchNormalizationState,
        *,
        destination_gradient: Image | None = None,
    ) -> Any:
        """Adds the kernel's work to ``command_buffer``; see ``GradientKernel.encode`` for result and destination.

        Raises ``StateError`` if the state lacks statistics or the gradients of the whole batch.
        """
        _require_batch_state(self, batch_normalization_state)
        return super().encode(
            command_buffer,
            source_gradient,
            source_image,
            batch_normalization_state,
            destination_gradient=destination_gradient,
        )

    # objc: -encodeBatchToCommandBuffer:sourceGradients:sourceImages:batchNormalizationState:
    # objc: -encodeBatchToCommandBuffer:sourceGradients:sourceImages:batchNormalizationState:destinationGradients:
    def encode_batch(  # type: ignore[override]
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[Image],
        source_images: Sequence[Image],
        batch_normalization_state: BatchNormalizationState,
        *,
        destination_gradients: Sequence[Image] | None = None,
    ) -> Any:
        """``encode`` for batches of images of one image each; batches made of one image are encoded at once."""
        owner = type(self).__name__
        _require_batch_state(self, batch_normalization_state)
        gradients = require_batch(owner, "source_gradients", source_gradients)
        sources = require_batch(owner, "source_images", source_images, len(gradients))
        return super().encode_batch(
            command_buffer,
            gradients,
            sources,
            StateBatch([batch_normalization_state] * len(gradients)),
            destination_gradients=destination_gradients,
        )

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        super()._validate(source_gradient, source_image, state)
        self._require_gradient_size(source_gradient, state)

    def _encode_aspects(self, state: Any) -> Hashable:
        return state.batch_pixels if isinstance(state, BatchNormalizationState) else None

    def _begin_encode(self, command_buffer: CommandBuffer, state: Any) -> None:
        state.use_gradients(type(self).__name__, command_buffer)

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        encoder = _state_encoder(command_buffer, state, self._neuron, source_image)
        gradient = Operand(*self._pointwise_gradient(regions.sources[0], state))
        source = Operand(regions.sources[1], self.secondary_offset.x, self.secondary_offset.y)
        sums = state.resource(4), state.resource(5)
        if state.statistics_are_given:
            sums = (encoder.zeros(),) * 2
        encoder.stream(
            "normalization_gradient",
            ("gradient", "source"),
            [source_gradient, source_image],
            (gradient, source),
            destination,
            regions.destination,
            sums,
        )


def _fused(owner: str, descriptor: NeuronDescriptor | None) -> NeuronDescriptor:
    if descriptor is None:
        return NO_NEURON
    return require_neuron_descriptor(owner, "fused_neuron_descriptor", descriptor)


def _state_encoder(
    command_buffer: CommandBuffer, state: BatchNormalizationState, neuron: NeuronDescriptor, image: Image
) -> Encoder:
    gamma, beta, mean, variance = map(state.resource, range(4))
    return encoder_of(
        command_buffer,
        image.channel_format.metal_type,
        state.batch_normalization.number_of_feature_channels,
        (mean, variance, gamma, beta),
        state.epsilon,
        neuron=neuron,
        batch_pixels=state.batch_pixels,
    )


def _require_batch_state(kernel: Kernel | GradientKernel, state: Any) -> None:
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


def _require_extents(owner: str, state: BatchNormalizationState, source: Image) -> None:
    made_for = state.snapshot.source
    if made_for.shape[1:] != source.shape[1:]:
        raise StateError(
            f"{owner}: batch_normalization_state was made for a source of {made_for.shape_text} but source_image is "
            f"{source.descriptor.shape_text}"
        )
