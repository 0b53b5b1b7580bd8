"""Which images of a state forward kernels have written, so that no gradient kernel reads what is not there."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from mpsgrad.command import CommandBuffer
from mpsgrad.kernels.values_of_images import ValuesOfImages


class WrittenImages:
    """The command buffers that write what a state keeps of each image. A state shares it with its parts.

    What a command buffer writes that was discarded or failed does not count.
    """

    def __init__(self) -> None:
        self._writers: ValuesOfImages[CommandBuffer] = ValuesOfImages()

    def add(self, command_buffer: CommandBuffer, images: range) -> None:
        """Notes that ``command_buffer`` writes ``images``."""
        self._writers.set(command_buffer, images, command_buffer)

    def writers(self, images: range) -> Sequence[CommandBuffer] | None:
        """The command buffers that write ``images``, each at least once, or None if not all of them are written."""
        found = self._writers.values(images)
        for writer in found:
            if writer is None or not writer._takes_effect:
                return None
        return found  # type: ignore[return-value]

    def _written(self) -> list[range]:
        return [images for images, writer in self._writers.images() if writer._takes_effect]

    def __len__(self) -> int:
        written = 0
        for images, writer in self._writers.images():
            if writer._takes_effect:
                written += len(images)
        return written

    def key(self, images: int) -> Hashable:
        """Equal for equal sets of written images; ``images`` is how many there can be."""
        if len(self) == images:
            return images
        return frozenset(image for part in self._written() for image in part)
