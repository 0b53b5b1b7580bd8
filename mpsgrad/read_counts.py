"""The read counts of images and states: temporary ones give their memory back when the last read has been encoded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def read_once(items: Iterable[Any]) -> None:
    """Counts one read of each different temporary object among ``items``, images and states."""
    temporary = None
    for item in items:
        if item._command_buffer is not None:
            if temporary is None:
                temporary = {}
            temporary[id(item)] = item
    if temporary is not None:
        for item in temporary.values():
            item._read_once()


def parts_in_place_of(whole: Any) -> Any:
    """The batch of the parts of ``whole``, an image or a state, whose reads count for it from now on."""
    parts = whole.batch_representation()
    if len(parts) > 1:
        whole._read_once()
    return parts


def increment_read_counts(objects: Iterable[Any], amount: int) -> int:
    """Adds ``amount`` to the read count of each different temporary object that still has one; returns their number."""
    unique = {id(item): item for item in objects}
    for item in unique.values():
        if item.read_count > 0:
            item.read_count += amount
    return len(unique)


def count_repeats_once(encodes: Iterable[Iterable[Any]]) -> None:
    """Raises read counts, so that what several ``encodes`` of one batch read is given up only once for all of them."""
    reads: dict[int, tuple[Any, int]] = {}
    for objects in encodes:
        for item in {id(item): item for item in objects}.values():
            reads[id(item)] = item, reads.get(id(item), (item, 0))[1] + 1
    for item, count in reads.values():
        if count > 1 and item.read_count > 0:
            item.read_count += count - 1
