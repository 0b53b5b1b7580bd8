"""Which images of a state forward kernels have written, so that no gradient kernel reads what is not there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from mpsgrad.command import CommandBuffer


class WrittenImages:
    """The command buffers that write what a state keeps of each image. A state shares it with its parts.

    What a command buffer writes that was discarded or failed does not count.
    """

    def __init__(self) -> None:
        self._writers: dict[int, CommandBuffer] = {}

    def add(self, command_buffer: CommandBuffer, images: Iterable[int]) -> None:
        """Notes that ``command_buffer`` writes ``images``."""
        before = self._writers
        command_buffer._if_taken_back(self._go_back_to(before))
        self._writers = {**before, **dict.fromkeys(images, command_buffer)}

    def _go_back_to(self, writers: dict[int, CommandBuffer]) -> Callable[[], None]:
        def undo() -> None:
            self._writers = writers

        return undo

    def writers(self, images: Iterable[int]) -> set[CommandBuffer] | None:
        """The command buffers that write ``images``, or None if not all of them are written."""
        found = set(map(self._writers.get, images))
        if all(writer is not None and writer._takes_effect for writer in found):
            return found  # type: ignore[return-value]
        return None

    def __len__(self) -> int:
        return sum(writer._takes_effect for writer in self._writers.values())

    def key(self, images: int) -> Hashable:
        """Equal for equal sets of written images; ``images`` is how many there can be."""
        writers = self._writers
        if len(writers) == images and all(writer._takes_effect for writer in set(writers.values())):
            return images
        return frozenset(image for image, writer in writers.items() if writer._takes_effect)
