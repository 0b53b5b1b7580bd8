"""``ResourceList``: the sizes of the buffers that a state is made with, as ``MPSStateResourceList`` has them."""

from __future__ import annotations

from collections.abc import Iterable

from mpsgrad.geometry import integer


class ResourceList:
    """The bytes of each buffer of a state, in order. Source: ``MPSStateResourceList``.

    Raises ``FormatError`` for a size that is no integer and ``GeometryError`` for one below 1.
    """

    def __init__(self, sizes: Iterable[int] = ()) -> None:
        self._sizes: list[int] = []
        for size in sizes:
            self.append_buffer(size)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of the buffers."""
        return tuple(self._sizes)

    def append_buffer(self, size: int) -> None:
        """Adds a buffer of ``size`` bytes at the end."""
        self._sizes.append(integer(type(self).__name__, "size", size, 1))
