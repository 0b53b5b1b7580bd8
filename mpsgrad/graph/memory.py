"""Which images of a graph share memory: those that are never needed at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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


@dataclass(frozen=True)
class MemoryPlan:
    """Buffers for ``lifetimes``: image ``i`` lies in buffer ``buffer_of[i]``; ``buffer_sizes`` are in bytes."""

    lifetimes: tuple[Lifetime, ...]
    buffer_of: tuple[int, ...]
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
        changes: dict[int, int] = {}
        for each in self.lifetimes:
            changes[each.first] = changes.get(each.first, 0) + each.nbytes
            changes[each.last + 1] = changes.get(each.last + 1, 0) - each.nbytes
        live = largest = 0
        for step in sorted(changes):
            live += changes[step]
            largest = max(largest, live)
        return largest

    def __str__(self) -> str:
        planned, apart, least = map(bytes_text, (self.planned_bytes, self.bytes_without_reuse, self.largest_live_bytes))
        text = f"{len(self.lifetimes)} images in {len(self.buffer_sizes)} buffers, {planned}"
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


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Shares out buffers, the largest images first.

    Each image takes, of the buffers that none of their images needs at the same time, the smallest; all are large
    enough, because of the order. If there is none it gets a new one. Source: "greedy by size" for shared objects of
    Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020.
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
    return MemoryPlan(tuple(lifetimes), tuple(chosen), tuple(sizes))
