"""The statistics of batch normalization: mean and variance of a batch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NoReturn

from mpsgrad.batch_arguments import require_batch
from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Device
from mpsgrad.errors import GeometryError, refuse_unavailable
from mpsgrad.geometry import NO_CLIP, Offset
from mpsgrad.image import Image
from mpsgrad.kernel import Kernel, source_layout
from mpsgrad.kernels.batch_normalization_dispatch import encoder_of_state
from mpsgrad.kernels.batch_normalization_state import BatchNormalizationState, require_batch_state
from mpsgrad.kernels.neuron_descriptor import NO_NEURON
from mpsgrad.read_counts import read_once
from mpsgrad.repeated_encode import RememberedEncode, RepeatedEncode


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
        refuse_unavailable(type(self).__name__, "encode", "call encode_batch with a batch_normalization_state")

    def _make_state(self, source: Image, destination: Image, command_buffer: CommandBuffer | None) -> NoReturn:
        refuse_unavailable(type(self).__name__, "result_state", "call BatchNormalization.result_state")

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
            refuse_unavailable(
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
        pixels = sum([source.descriptor.pixel_count for source in sources])
        state.begin_statistics(owner, command_buffer)
        if remembered is not None:
            remembered.work.add_to(command_buffer, sources, self, state)
            if command_buffer._repeated is not None:
                command_buffer._repeated.append(self._repeated(remembered, sources, state, pixels))
        else:
            start = command_buffer._position()
            self._add_statistics(command_buffer, sources, state)
            self._remember(key, command_buffer, start, sources, state)
        state.add_statistics(command_buffer, pixels)
        read_once((*sources, state))

    def _repeated(
        self, remembered: RememberedEncode, sources: Sequence[Image], state: BatchNormalizationState, pixels: int
    ) -> RepeatedEncode:
        """What is told of an encode of ``sources`` that was repeated."""

        def begin(command_buffer: CommandBuffer, state: BatchNormalizationState) -> None:
            state.begin_statistics(type(self).__name__, command_buffer)

        def note(command_buffer: CommandBuffer, state: BatchNormalizationState) -> None:
            state.add_statistics(command_buffer, pixels)

        return RepeatedEncode(self, remembered.work, tuple(sources), state, (), begin, note)

    def _encode_aspects(self, state: Any) -> Hashable:
        return state.statistics_pixels if isinstance(state, BatchNormalizationState) else None

    def _require_statistics(self, command_buffer: CommandBuffer, sources: Sequence[Image], state: Any) -> None:
        """Raises unless the statistics of ``sources`` can be added to ``state``."""
        owner = type(self).__name__
        self._require_images(command_buffer, {f"source_images[{i}]": im for i, im in enumerate(sources)}, None)
        require_batch_state(self, state)
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
        encoder = encoder_of_state(command_buffer, state, NO_NEURON, sources[0])
        for source in sources:
            images = source.number_of_images
            layout = source_layout(source, self.source_feature_channel_offset, encoder.channels, 0, images)
            encoder.add_statistics(source, layout, previous)
            previous += source.width * source.height * images
