"""Buffers that are picked from a list, always the same places of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

from mpsgrad.devices import Buffer

Pick = Callable[[Sequence[Buffer]], tuple[Buffer, ...]]


def picker(places: Sequence[int]) -> Pick:
    """What picks ``places`` of a list."""
    if not places:
        return lambda buffers: ()
    if len(places) == 1:
        only = places[0]
        return lambda buffers: (buffers[only],)
    return itemgetter(*places)
