"""Batches of separate images as one image, for kernels that put something together over a whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mpsgrad.command import CommandBuffer
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.image import Image, ImageBatch, TemporaryImage
from mpsgrad.kernels.copies import add_copy_of_image


def join_batch(owner: str, name: str, command_buffer: CommandBuffer, batch: ImageBatch) -> Image:
    """The image whose parts ``batch`` is, or else a temporary one with copies of them.

    Raises what ``require_one_size`` raises.
    """
    require_one_size(owner, name, batch)
    if batch.whole is not None:
        return batch.whole
    result = TemporaryImage(command_buffer, replace(batch[0].descriptor, number_of_images=len(batch)))
    for index, image in enumerate(batch):
        add_copy_of_image(command_buffer, image, result, 0, index)
    for image in {id(image): image for image in batch}.values():
        image._read_once()
    result._written_by(command_buffer)
    return result


def require_one_size(owner: str, name: str, batch: ImageBatch) -> None:
    """Raises ``GeometryError`` or ``FormatError`` if the images are not of one size and format."""
    first = batch[0]
    for index, image in enumerate(batch):
        if image.shape != first.shape:
            raise GeometryError(
                f"{owner}: {name}[{index}] is {image.descriptor.shape_text} but {name}[0] is "
                f"{first.descriptor.shape_text}; reduce_across_batch takes images of one size"
            )
        if image.channel_format is not first.channel_format:
            raise FormatError(
                f"{owner}: {name}[{index}] is {image.channel_format.name} but {name}[0] is {first.channel_format.name}"
            )


def split_batch(command_buffer: CommandBuffer, joined: Image, images: Sequence[Image]) -> None:
    """Copies each image of ``joined`` to one of ``images``."""
    for index, image in enumerate(images):
        add_copy_of_image(command_buffer, joined, image, index, 0)
        image._written_by(command_buffer)
    joined._read_once()
