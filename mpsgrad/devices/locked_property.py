"""Properties of devices that exist once, whichever threads use them first."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from threading import RLock
from typing import Any, TypeVar

T = TypeVar("T")


class locked_property(cached_property[T]):  # noqa: N801
    """A ``cached_property`` that one thread makes while others wait: since Python 3.12 that alone has no lock."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        super().__init__(make)
        self._making = RLock()

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        if instance is None:
            return self
        with self._making:
            return super().__get__(instance, owner)
