"""Which command buffers add to sums in device memory, so that partial sums are neither lost nor counted twice."""

from __future__ import annotations

from mpsgrad.command import CommandBuffer, CommandBufferStatus
from mpsgrad.errors import StateError


class Accumulation:
    """Which command buffers add how many pixels to a pair of buffers; discarded ones count for nothing."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.clear()

    def clear(self) -> None:
        self._completed = 0
        self._parts: list[tuple[CommandBuffer, int]] = []

    @property
    def pixels(self) -> int:
        return self._completed + sum(pixels for command_buffer, pixels in self._parts if will_run(command_buffer))

    def add(self, command_buffer: CommandBuffer, pixels: int) -> None:
        waiting = []
        for part in self._parts:
            if part[0].status is CommandBufferStatus.COMPLETED:
                self._completed += part[1]
            elif will_run(part[0]):
                waiting.append(part)
        self._parts = [*waiting, (command_buffer, pixels)]

    def require_ordered(self, owner: str, command_buffer: CommandBuffer) -> None:
        """Raises ``StateError`` if another command buffer that is not committed yet adds to the buffers."""
        if any(part is not command_buffer and part.is_open for part, _ in self._parts):
            raise StateError(
                f"{owner}: {self.what} are collected in another command buffer that has not been committed; commit it "
                "first, so that the order is known"
            )

    def wait(self, owner: str) -> None:
        """Waits for all parts; raises ``StateError`` if one is not committed."""
        for command_buffer, _ in self._parts:
            if command_buffer.is_open:
                raise StateError(
                    f"{owner}: read before its command buffer was committed; leave the 'with' block or call commit() "
                    "first"
                )
            if will_run(command_buffer):
                command_buffer.wait_until_completed()


def will_run(command_buffer: CommandBuffer) -> bool:
    """Whether the work of ``command_buffer`` has run or can still run."""
    return (
        command_buffer.is_open
        or command_buffer.is_recorded
        or command_buffer.status in (CommandBufferStatus.COMMITTED, CommandBufferStatus.COMPLETED)
    )
