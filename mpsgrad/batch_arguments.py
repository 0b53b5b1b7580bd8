"""The checks of batches that encodes are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.image import Image, ImageBatch
from mpsgrad.state import State, StateBatch


def require_batch(owner: str, argument: str, images: Any, count: int | None = None) -> ImageBatch:
    """``images`` as a batch; raises ``FormatError`` if they are none and ``GeometryError`` unless there are ``count``.

    Results, whose ``argument`` begins with ``destination``, have to be different images.
    """
    batch = images
    if not isinstance(images, ImageBatch):
        if isinstance(images, Image) or not isinstance(images, Sequence):
            raise FormatError(
                f"{owner}: {argument} is {type(images).__name__}; it has to be an ImageBatch or a list of images"
            )
        batch = ImageBatch(images)
    if count is not None and batch._count != count:
        raise GeometryError(f"{owner}: {argument} has {batch._count} images but the batch has {count}")
    if argument.startswith("destination") and not batch._is_of_different_images:
        raise GeometryError(f"{owner}: {argument} has an image twice; each result needs one of its own")
    return batch


def require_state_batch(owner: str, argument: str, states: Any, count: int) -> StateBatch:
    """``states`` as a batch; raises ``FormatError`` if they are none, ``GeometryError`` unless there are ``count``."""
    if isinstance(states, State) or not isinstance(states, Sequence):
        raise FormatError(
            f"{owner}: {argument} is {type(states).__name__}; it has to be a StateBatch or a list of states"
        )
    batch = states if isinstance(states, StateBatch) else StateBatch(states)
    if len(batch) != count:
        raise GeometryError(f"{owner}: {argument} has {len(batch)} states but the batch has {count} images")
    return batch
