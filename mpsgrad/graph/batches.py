"""Batches whose images are stored apart: they are copied into one image before a graph, and their losses back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mpsgrad.batch_arguments import require_batch
from mpsgrad.command import CommandBuffer
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import MAXIMUM, Offset, Origin, Region, Size
from mpsgrad.image import Image
from mpsgrad.kernels.loss_labels import LossLabels
from mpsgrad.kernels.slice import Slice


class BatchJoiner:
    """Makes one image of each batch of an encode."""

    def __init__(self, command_buffer: CommandBuffer) -> None:
        self.command_buffer = command_buffer
        self._copy = Slice(device=command_buffer.device)
        self._losses: list[tuple[LossLabels, Sequence[LossLabels]]] = []

    def image(self, name: str, images: Any) -> Image:
        """The one image that ``images`` are the parts of, or one with copies of them.

        Raises ``FormatError`` or ``GeometryError`` if they are no batch of images of one size.
        """
        batch = require_batch("Graph", name, images)
        whole = batch.whole
        if whole is not None:
            return whole
        first = batch[0].descriptor
        for index, image in enumerate(batch):
            if image.descriptor != first:
                raise GeometryError(
                    f"Graph: {name}[{index}] is {image.descriptor.shape_text} {image.channel_format.name} but "
                    f"{name}[0] {first.shape_text} {first.channel_format.name}"
                )
        joined = Image(replace(first, number_of_images=len(batch)), self.command_buffer.device)
        for index, image in enumerate(batch):
            self._copy_one(image, 0, joined, index)
        return joined

    def labels(self, name: str, labels: Any) -> LossLabels:
        """The labels of all images: ``labels`` itself, or a copy of a list of them, one for each image."""
        if isinstance(labels, LossLabels):
            return labels
        if not isinstance(labels, Sequence) or not all(isinstance(each, LossLabels) for each in labels) or not labels:
            raise FormatError(f"Graph: {name} is {labels!r}; it has to be LossLabels or a list of them")
        if len(labels) == 1:
            return labels[0]
        weights = [each.weights_image for each in labels]
        if any((each is None) != (weights[0] is None) for each in weights):
            raise FormatError(f"Graph: some of {name} have weights and some have not")
        loss = labels[0].loss_image
        joined = LossLabels.from_images(
            self.image(f"{name}.labels_image", [each.labels_image for each in labels]),
            None if weights[0] is None else self.image(f"{name}.weights_image", weights),
            loss_image_size=(loss.width, loss.height, loss.feature_channels),
        )
        self._losses.append((joined, labels))
        return joined

    def hand_back(self) -> None:
        """Copies the losses to the labels that they belong to."""
        for joined, labels in self._losses:
            for index, each in enumerate(labels):
                self._copy_one(joined.loss_image, index, each.loss_image, 0)

    def _copy_one(self, source: Image, source_index: int, destination: Image, index: int) -> None:
        self._copy.offset = Offset(0, 0, source_index)
        self._copy.clip_rect = Region(Origin(0, 0, index), Size(MAXIMUM, MAXIMUM, 1))
        self._copy.encode(self.command_buffer, source, destination_image=destination)
