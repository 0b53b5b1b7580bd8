"""What the two kernels of a loss, forward and gradient, have in common."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.image import FeatureChannelFormat, Image, ImageBatch, TemporaryImage
from mpsgrad.kernel import BaseKernel, require_batch, require_state_batch, share_memory
from mpsgrad.kernels import loss_elements, loss_soft_max
from mpsgrad.kernels.joined_batch import join_batch, require_one_size, split_batch
from mpsgrad.kernels.loss_descriptor import LossDescriptor, LossReductionType, LossType, SettableLossProperties
from mpsgrad.kernels.loss_terms import LossTerms, require_whole_images
from mpsgrad.read_counts import count_repeats_once
from mpsgrad.state import State, StateBatch


class HalfOfALoss(SettableLossProperties, BaseKernel):
    """The base of ``ForwardLoss`` and ``LossGradient``."""

    remembers_encodes = True

    def _encode_aspects(self, state: Any) -> Hashable:
        return self._loss_descriptor

    def _terms(
        self, command_buffer: Any, descriptor: LossDescriptor, source: Any, labels: Any, weights: Any
    ) -> LossTerms:
        self._require_images(command_buffer, {"source_image": source}, None)
        require_whole_images(self)
        for name, image in (("labels", labels), ("weights", weights)):
            if image is not None or name == "labels":
                self._require_float_image(command_buffer, name, image, source.shape, source)
        return LossTerms(descriptor, source, labels, weights)

    def _require_float_image(
        self, command_buffer: CommandBuffer, name: str, image: Any, shape: tuple[int, ...], source: Image
    ) -> None:
        """Raises unless ``image`` is a FLOAT32 image of ``shape``, which goes with ``source``, and may be used."""
        owner = type(self).__name__
        self._require_instances(**{name: image})
        self._require_images(command_buffer, {name: image}, None)
        if image.channel_format is not FeatureChannelFormat.FLOAT32:
            raise FormatError(f"{owner}: {name} is {image.channel_format.name}; it has to be FLOAT32")
        if image.shape != shape:
            raise GeometryError(
                f"{owner}: {name} is {image.descriptor.shape_text} but has to be {'x'.join(map(str, shape))} for a "
                f"{source.descriptor.shape_text} source_image and reduction {self.reduction_type.name}"
            )

    def _require_apart(self, destination: Image, terms: LossTerms, **further: Image) -> None:
        """Raises ``GeometryError`` if ``destination`` shares memory with what is read."""
        sources = {**further, "source_image": terms.source, "labels": terms.labels, "weights": terms.weights}
        for name, source in sources.items():
            if source is not None and share_memory(source, destination):
                raise GeometryError(
                    f"{type(self).__name__}: the destination shares memory with {name}; the destination may not alias "
                    "a source"
                )

    def _loss_shape(self, source: Image) -> tuple[int, int, int, int]:
        unreduced = self.reduction_type is LossReductionType.NONE
        return source.shape if unreduced else (source.number_of_images, 1, 1, 1)

    def _family(self) -> Any:
        return loss_soft_max if self.loss_type is LossType.SOFTMAX_CROSS_ENTROPY else loss_elements

    def _batches(self, **given: Any) -> tuple[dict[str, ImageBatch | None], bool]:
        """The batches that are given, and whether each is all images of one image, so that one encode takes them."""
        batches: dict[str, ImageBatch | None] = {}
        count: int | None = None
        for name, images in given.items():
            batches[name] = None if images is None else require_batch(type(self).__name__, name, images, count)
            count = count if images is None else len(images)
        joined = all(batch is None or batch.whole is not None for batch in batches.values())
        return batches, joined

    def _encodes_of_batch(
        self,
        command_buffer: CommandBuffer,
        batches: dict[str, ImageBatch | None],
        joined: bool,
        states_name: str,
        given_states: Sequence[State] | None,
    ) -> list[tuple[dict[str, Any], Any]]:
        """The images by name and the state of each encode of a batch."""
        count = next(len(batch) for batch in batches.values() if batch is not None)
        states: StateBatch | None = None
        if given_states is not None:
            states = require_state_batch(type(self).__name__, states_name, given_states, count)
        if joined and (states is None or states.whole is not None):
            return [({name: batch and batch.whole for name, batch in batches.items()}, states and states.whole)]
        if self.reduce_across_batch and self.reduction_type is not LossReductionType.NONE and count > 1:
            if states is not None and states.whole is None:
                raise NotImplementedError(
                    f"{type(self).__name__}: reduce_across_batch with {states_name} that are no parts of one state"
                )
            wholes = {name: batch and self._whole_of(command_buffer, name, batch) for name, batch in batches.items()}
            return [(wholes, states and states.whole)]
        encodes = [
            ({name: batch and batch[i] for name, batch in batches.items()}, states and states[i]) for i in range(count)
        ]
        count_repeats_once(
            given(
                *(image for name, image in images.items() if not name.startswith("destination")),
                state if states_name == "source_states" else None,
            )
            for images, state in encodes
        )
        return encodes

    def _whole_of(self, command_buffer: CommandBuffer, name: str, batch: ImageBatch) -> Image:
        """``batch`` as one image: one to be split where it is a destination."""
        owner = type(self).__name__
        for index, image in enumerate(batch):
            self._require_images(command_buffer, {f"{name}[{index}]": image}, None)
        if name.startswith("destination") and batch.whole is None:
            require_one_size(owner, name, batch)
            return TemporaryImage(command_buffer, replace(batch[0].descriptor, number_of_images=len(batch)))
        return join_batch(owner, name, command_buffer, batch)

    @staticmethod
    def _split(command_buffer: CommandBuffer, batch: ImageBatch | None, encodes: Sequence[Any], name: str) -> None:
        """Copies what an encode of the whole batch wrote for separate destinations to these."""
        if batch is not None and len(encodes) < len(batch) and batch.whole is None:
            split_batch(command_buffer, encodes[0][0][name], batch)


def given(*items: Any) -> tuple[Any, ...]:
    """Those of ``items`` that are not None."""
    return tuple([item for item in items if item is not None])
