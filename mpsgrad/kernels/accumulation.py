"""Which command buffers add to sums in device memory, so that partial sums are neither lost nor counted twice."""

from __future__ import annotations

from functools import partial

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
        pixels = self._completed
        for command_buffer, count in self._parts:
            if command_buffer._is_open or command_buffer._takes_effect:
                pixels += count
        return pixels

    def add(self, command_buffer: CommandBuffer, pixels: int) -> None:
        if command_buffer._undo is not None:
            command_buffer._if_taken_back(partial(self._set, self._completed, self._parts))
        waiting = []
        for part, count in self._parts:
            if part is command_buffer:
                pixels += count
            elif part.status is CommandBufferStatus.COMPLETED:
                self._completed += count
            elif part._takes_effect:
                waiting.append((part, count))
        self._parts = [*waiting, (command_buffer, pixels)]

    def _set(self, completed: int, parts: list[tuple[CommandBuffer, int]]) -> None:
        self._completed, self._parts = completed, parts

    def require_ordered(self, owner: str, command_buffer: CommandBuffer) -> None:
        """Raises ``StateError`` if another command buffer that is not committed yet adds to the buffers."""
        for part, _ in self._parts:
            if part is not command_buffer and part._is_open:
                raise StateError(
                    f"{owner}: {self.what} are collected in another command buffer that has not been committed; commit "
                    "it first, so that the order is known"
                )

    def wait(self, owner: str) -> None:
        """Waits for all parts; raises ``StateError`` if one is not committed."""
        for command_buffer, _ in self._parts:
            if command_buffer.is_open:
                raise StateError(
                    f"{owner}: read before its command buffer was committed; leave the 'with' block or call commit() "
                    "first"
                )
            if command_buffer._takes_effect:
                command_buffer.wait_until_completed()
