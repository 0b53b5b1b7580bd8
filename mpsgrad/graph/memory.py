"""Which images of a graph share memory: those that are never needed at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Lifetime:
    """An image that is written by step ``first`` and last read by step ``last``, both included."""

    name: str
    nbytes: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both are needed at some step."""
        return self.first <= other.last and other.first <= self.last


class Place(NamedTuple):
    """Where an image lies: from byte ``offset`` of buffer ``buffer`` on."""

    buffer: int
    offset: int


@dataclass(frozen=True)
class MemoryPlan:
    """Buffers for ``lifetimes``: image ``i`` lies at ``places[i]``; ``buffer_sizes`` are in bytes."""

    lifetimes: tuple[Lifetime, ...]
    places: tuple[Place, ...]
    buffer_sizes: tuple[int, ...]

    @property
    def planned_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(self.buffer_sizes)

    @property
    def bytes_without_reuse(self) -> int:
        """Bytes if each image had memory of its own."""
        return sum(each.nbytes for each in self.lifetimes)

    @property
    def largest_live_bytes(self) -> int:
        """The most bytes that are needed at one step: no plan has less."""
        return _largest_live_bytes(self.lifetimes)

    def __str__(self) -> str:
        planned, apart, least = map(bytes_text, (self.planned_bytes, self.bytes_without_reuse, self.largest_live_bytes))
        buffers = f"{len(self.buffer_sizes)} {'buffer' if len(self.buffer_sizes) == 1 else 'buffers'}"
        text = f"{len(self.lifetimes)} images in {buffers}, {planned}"
        if self.planned_bytes:
            text += f"; {apart} without sharing, {self.bytes_without_reuse / self.planned_bytes:.1f} times as much"
        return f"{text}; at most {least} are in use at once"


def bytes_text(count: int) -> str:
    """``count`` bytes for people: ``3.0 MiB``."""
    size, unit = count / 1024, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if size >= 1000:
            size, unit = size / 1024, larger
    return f"{size:.1f} {unit}"


def plan_memory(lifetimes: Sequence[Lifetime], *, divides_buffers: bool, largest_buffer: int) -> MemoryPlan:
    """Shares out buffers of at most ``largest_buffer`` bytes, of which only an image that is larger gets one.

    With ``divides_buffers`` images may begin anywhere in a buffer, next to each other; the sizes of all of them have to
    be multiples of the device's alignment. Without it a buffer holds one image at a time.
    """
    if divides_buffers:
        return _divided(tuple(lifetimes), largest_buffer)
    return _whole(tuple(lifetimes))


def _largest_live_bytes(lifetimes: Sequence[Lifetime]) -> int:
    changes: dict[int, int] = {}
    for each in lifetimes:
        changes[each.first] = changes.get(each.first, 0) + each.nbytes
        changes[each.last + 1] = changes.get(each.last + 1, 0) - each.nbytes
    live = largest = 0
    for step in sorted(changes):
        live += changes[step]
        largest = max(largest, live)
    return largest


def _whole(lifetimes: tuple[Lifetime, ...]) -> MemoryPlan:
    """Each image takes, of the buffers that none of their images needs at the same time, the smallest.

    All are large enough, because the largest images come first. If there is none it gets a new one. Source: "greedy by
    size" for shared objects of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020.
    """
    order = sorted(range(len(lifetimes)), key=lambda index: (-lifetimes[index].nbytes, index))
    sizes: list[int] = []
    tenants: list[list[Lifetime]] = []
    chosen = [0] * len(lifetimes)
    for index in order:
        image = lifetimes[index]
        fitting = [
            buffer for buffer, others in enumerate(tenants) if not any(image.overlaps(other) for other in others)
        ]
        if not fitting:
            fitting = [len(sizes)]
            sizes.append(image.nbytes)
            tenants.append([])
        best = min(fitting, key=lambda buffer: (sizes[buffer], buffer))
        tenants[best].append(image)
        chosen[index] = best
    return MemoryPlan(lifetimes, tuple(Place(buffer, 0) for buffer in chosen), tuple(sizes))


def _divided(lifetimes: tuple[Lifetime, ...], largest_buffer: int) -> MemoryPlan:
    """Places the images one after the other, each in the narrowest gap between those that are needed with it.

    That is done in three orders, largest images, largest products of size and lifetime, and longest lifetimes first,
    until the outcome needs no more than the bound; the best is kept. The first is "greedy by size for offset
    calculation" of Pisarchyk and Lee (2020).
    """
    bound = _largest_live_bytes(lifetimes)
    conflicts = [[index for index, other in enumerate(lifetimes) if image.overlaps(other)] for image in lifetimes]
    best: MemoryPlan | None = None
    for key in _ORDERS:
        order = sorted(range(len(lifetimes)), key=lambda index: key(lifetimes[index]), reverse=True)
        found = _placed(order, lifetimes, conflicts, largest_buffer)
        if best is None or found.planned_bytes < best.planned_bytes:
            best = found
        if best.planned_bytes <= bound:
            break
    assert best is not None
    return best


def _placed(
    order: Sequence[int], lifetimes: tuple[Lifetime, ...], conflicts: Sequence[Sequence[int]], largest_buffer: int
) -> MemoryPlan:
    """``conflicts`` has for each image those that are needed at the same time."""
    places: dict[int, Place] = {}
    sizes: list[int] = []
    for index in order:
        nbytes = lifetimes[index].nbytes
        taken: list[list[tuple[int, int]]] = [[] for _ in sizes]
        for other in conflicts[index]:
            if other in places:
                buffer, offset = places[other]
                taken[buffer].append((offset, offset + lifetimes[other].nbytes))
        place = Place(len(sizes), 0)
        for buffer, ranges in enumerate(taken):
            offset = _narrowest_gap(sorted(ranges), nbytes)
            if offset + nbytes <= max(largest_buffer, sizes[buffer]):
                place = Place(buffer, offset)
                break
        else:
            sizes.append(0)
        sizes[place.buffer] = max(sizes[place.buffer], place.offset + nbytes)
        places[index] = place
    return MemoryPlan(lifetimes, tuple(places[index] for index in range(len(lifetimes))), tuple(sizes))


def _narrowest_gap(taken: Sequence[tuple[int, int]], nbytes: int) -> int:
    """Where the smallest gap of at least ``nbytes`` between the sorted ranges begins; behind all if there is none."""
    end, best, smallest = 0, -1, 0
    for start, stop in taken:
        gap = start - end
        if gap >= nbytes and (best < 0 or gap < smallest):
            best, smallest = end, gap
        end = max(end, stop)
    return end if best < 0 else best


_ORDERS: tuple[Callable[[Lifetime], int], ...] = (
    lambda image: image.nbytes,
    lambda image: image.nbytes * (image.last - image.first + 1),
    lambda image: image.last - image.first,
)
