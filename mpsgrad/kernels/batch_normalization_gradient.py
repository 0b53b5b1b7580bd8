"""The two phases of the gradient of batch normalization."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NoReturn, overload

from mpsgrad.batch_arguments import require_batch
from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Device
from mpsgrad.errors import GeometryError, StateError, refuse_unavailable
from mpsgrad.image import Image, ImageBatch
from mpsgrad.kernel import GradientKernel, Regions, fill_buffer_with_zeros, source_layout
from mpsgrad.kernels.batch_normalization_dispatch import Encoder, encoder_of_state
from mpsgrad.kernels.batch_normalization_state import BatchNormalizationState, require_batch_state
from mpsgrad.kernels.neuron_descriptor import NeuronDescriptor, neuron_or_none
from mpsgrad.kernels.pointwise import Operand, pieces, require_no_clamped_reads
from mpsgrad.read_counts import read_once
from mpsgrad.repeated_encode import RememberedEncode, RepeatedEncode
from mpsgrad.state import StateBatch


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
        self._neuron = neuron_or_none(type(self).__name__, "fused_neuron_descriptor", fused_neuron_descriptor)
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
        refuse_unavailable(type(self).__name__, "encode", "call encode_batch with a batch_normalization_state")

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
        state = batch_normalization_state
        if unavailable or (not isinstance(state, BatchNormalizationState) and isinstance(state, Sequence)):
            refuse_unavailable(
                owner,
                f"encode_batch with {', '.join(unavailable) or 'gradient states'}",
                "call encode_batch(command_buffer, source_gradients, source_images, batch_normalization_state)",
            )
        gradients = require_batch(owner, "source_gradients", source_gradients)
        sources = require_batch(owner, "source_images", source_images, len(gradients))
        gradient_whole, source_whole = gradients.whole, sources.whole
        if gradient_whole is not None and source_whole is not None:
            pairs, images = [(gradient_whole, source_whole)], [gradient_whole, source_whole]
            pixels = source_whole.descriptor.pixel_count
        else:
            pairs = list(zip(gradients, sources, strict=True))
            images = [image for pair in pairs for image in pair]
            pixels = sum([source.descriptor.pixel_count for _, source in pairs])
        key = self._encode_key(command_buffer, images, None, state)
        remembered = self._recall(key)
        if remembered is None:
            require_batch_state(self, state)
            for gradient, source in pairs:
                self._require_images(command_buffer, {"source_gradients": gradient, "source_images": source}, None)
                self._require_gradient_state(state, source)
                if not self._configured_by_hand:
                    self._configure_from(state)
                self._validate(gradient, source, state)
                self._require_gradient_size(gradient, state)
        state.begin_gradients(owner, command_buffer, pixels)
        if remembered is not None:
            remembered.work.add_to(command_buffer, images, self, state)
            if command_buffer._repeated is not None:
                command_buffer._repeated.append(self._repeated(remembered, images, state, pixels))
        else:
            start = command_buffer._position()
            self._add_sums_of_batch(command_buffer, pairs, state)
            self._remember(key, command_buffer, start, images, state)
        state.add_gradients(command_buffer, pixels)
        read_once((*images, state))

    def _repeated(
        self, remembered: RememberedEncode, images: Sequence[Image], state: BatchNormalizationState, pixels: int
    ) -> RepeatedEncode:
        """What is told of an encode of ``images`` that was repeated."""

        def begin(command_buffer: CommandBuffer, state: BatchNormalizationState) -> None:
            state.begin_gradients(type(self).__name__, command_buffer, pixels)

        def note(command_buffer: CommandBuffer, state: BatchNormalizationState) -> None:
            state.add_gradients(command_buffer, pixels)

        return RepeatedEncode(self, remembered.work, tuple(images), state, (), begin, note)

    def _encode_aspects(self, state: Any) -> Hashable:
        return state.gradients_pixels if isinstance(state, BatchNormalizationState) else None

    def _add_sums_of_batch(
        self, command_buffer: CommandBuffer, pairs: Sequence[tuple[Image, Image]], state: BatchNormalizationState
    ) -> None:
        previous = state.gradients_pixels
        encoder = encoder_of_state(command_buffer, state, self._neuron, pairs[0][1])
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
    @overload  # type: ignore[override]
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        batch_normalization_state: BatchNormalizationState,
    ) -> Image: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        batch_normalization_state: BatchNormalizationState,
        *,
        destination_gradient: Image,
    ) -> None: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        batch_normalization_state: BatchNormalizationState,
        *,
        destination_gradient: Image | None = None,
    ) -> Any: ...

    def encode(
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
        require_batch_state(self, batch_normalization_state)
        return super().encode(
            command_buffer,
            source_gradient,
            source_image,
            batch_normalization_state,
            destination_gradient=destination_gradient,
        )

    # objc: -encodeBatchToCommandBuffer:sourceGradients:sourceImages:batchNormalizationState:
    # objc: -encodeBatchToCommandBuffer:sourceGradients:sourceImages:batchNormalizationState:destinationGradients:
    @overload  # type: ignore[override]
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[Image],
        source_images: Sequence[Image],
        batch_normalization_state: BatchNormalizationState,
    ) -> ImageBatch: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[Image],
        source_images: Sequence[Image],
        batch_normalization_state: BatchNormalizationState,
        *,
        destination_gradients: Sequence[Image],
    ) -> None: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[Image],
        source_images: Sequence[Image],
        batch_normalization_state: BatchNormalizationState,
        *,
        destination_gradients: Sequence[Image] | None = None,
    ) -> Any: ...

    def encode_batch(
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
        require_batch_state(self, batch_normalization_state)
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
        encoder = encoder_of_state(command_buffer, state, self._neuron, source_image)
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
