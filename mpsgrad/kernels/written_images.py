"""Which images of a state forward kernels have written, so that no gradient kernel reads what is not there."""

from __future__ import annotations

from collections.abc import Hashable

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

    def writers(self, images: range) -> set[CommandBuffer] | None:
        """The command buffers that write ``images``, or None if not all of them are written."""
        found = set(self._writers.values(images))
        if all(writer is not None and writer._takes_effect for writer in found):
            return found  # type: ignore[return-value]
        return None

    def _written(self) -> list[range]:
        return [images for images, writer in self._writers.images() if writer._takes_effect]

    def __len__(self) -> int:
        return sum(map(len, self._written()))

    def key(self, images: int) -> Hashable:
        """Equal for equal sets of written images; ``images`` is how many there can be."""
        written = self._written()
        if sum(map(len, written)) == images:
            return images
        return frozenset(image for part in written for image in part)
