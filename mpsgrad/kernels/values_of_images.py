"""What is known of each image of a state, which mostly is the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from mpsgrad.command import CommandBuffer

T = TypeVar("T")
Part = tuple[range, T]


class ValuesOfImages(Generic[T]):
    """A value for each image that has one, kept for ranges of images. A state shares it with its parts."""

    def __init__(self) -> None:
        self._parts: tuple[Part[T], ...] = ()

    def get(self, image: int) -> T | None:
        """The value of ``image``, or None."""
        for images, value in self._parts:
            if image in images:
                return value
        return None

    def values(self, images: range) -> Sequence[T | None]:
        """Those of ``images``, in any order, each at least once, and None if some have none."""
        parts, left = self._parts, len(images)
        if left > 0 and len(parts) == 1 and parts[0][0] == images:
            return (parts[0][1],)
        found: list[T | None] = []
        for part, value in parts:
            common = min(part.stop, images.stop) - max(part.start, images.start)
            if common > 0:
                left -= common
                found.append(value)
        if left > 0:
            found.append(None)
        return found

    def images(self) -> Iterator[Part[T]]:
        """The ranges of images that have values, and these."""
        return iter(self._parts)

    def set(self, command_buffer: CommandBuffer, images: range, value: T | None) -> None:
        """Gives ``images`` a value, or none, unless the work of ``command_buffer`` is taken back."""
        before = self._parts
        if command_buffer._undo is not None:
            command_buffer._if_taken_back(self._go_back_to(before))
        if not before or (len(before) == 1 and before[0][0] == images):
            self._parts = () if value is None else ((images, value),)
            return
        parts = _without(before, images)
        self._parts = parts if value is None else (*parts, (images, value))

    def _go_back_to(self, parts: tuple[Part[T], ...]) -> Callable[[], None]:
        def undo() -> None:
            self._parts = parts

        return undo


def _without(parts: tuple[Part[T], ...], images: range) -> tuple[Part[T], ...]:
    """``parts`` less what they have of ``images``."""
    left = (
        (rest, value)
        for part, value in parts
        for rest in (
            range(part.start, min(part.stop, images.start)),
            range(max(part.start, images.stop), part.stop),
        )
        if rest
    )
    return tuple(left)
