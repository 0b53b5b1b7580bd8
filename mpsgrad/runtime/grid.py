"""Grids and threadgroups of 1 to 3 dimensions, checked before anything is dispatched."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from mpsgrad.devices.contract import LARGEST_THREADGROUP, THREADGROUP_MEMORY_BYTES, Dispatch, Extents, Function
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import ceiling_divide

LARGEST_GRID = 2**31 - 1
"""Threads along an axis: positions are computed in 32 bits."""
MOST_THREADS = 2**40
"""Threads in all. More take hours; a Mac stops what takes some seconds."""
THREADGROUP_MEMORY_STEP = 16
ROW = 32


def extents(owner: str, name: str, value: Any) -> Extents:
    """``value``, an integer or up to three, as three extents; raises ``FormatError`` or ``GeometryError``."""
    given = tuple(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else (value,)
    try:
        numbers = tuple(operator.index(each) for each in given)
    except TypeError:
        raise FormatError(f"{owner}: {name} is {value!r}; it has to be an integer or up to three of them") from None
    if not 1 <= len(numbers) <= 3:
        raise GeometryError(f"{owner}: {name} is {value!r}; it has to have 1 to 3 dimensions")
    if min(numbers) < 1:
        raise GeometryError(f"{owner}: {name} is {value!r}; every extent has to be at least 1")
    return (*numbers, 1, 1)[:3]  # type: ignore[return-value]


def threadgroup_extents(owner: str, function: Function, grid: Extents, value: Any, *, whole: bool) -> Extents:
    """``value`` as a threadgroup, or one that suits ``grid`` for None.

    That is what the kernel requires, or else as many threads as it declares (or the driver prefers), in a row for a
    grid of one dimension and in rows of 32 for others; threads that the grid does not have are left out unless it
    counts threadgroups (``whole``).
    """
    declared, required = function.signature.threadgroup_size, function.signature.required_threadgroup
    if required is not None:
        given = required if value is None else extents(owner, "threadgroup", value)
        if given != required:
            raise GeometryError(
                f"{owner}: threadgroup is {value!r} but the kernel's required_threads_per_threadgroup is {required}"
            )
        return required
    if value is None:
        size = declared or function.threadgroup_size
        if grid[1:] == (1, 1):
            return (size if whole else min(size, grid[0]), 1, 1)
        width = min(ROW, size)
        if whole:
            return (width, size // width, 1)
        width = min(width, grid[0])
        return (width, min(max(size // width, 1), grid[1]), 1)
    threadgroup = extents(owner, "threadgroup", value)
    threads = math.prod(threadgroup)
    largest = min(declared or LARGEST_THREADGROUP, LARGEST_THREADGROUP)
    if threads > largest:
        source = "the kernel's max_total_threads_per_threadgroup" if declared else "the device's limit"
        raise GeometryError(
            f"{owner}: threadgroup {value!r} has {threads} threads, which is above {source} of {largest}"
        )
    return threadgroup


def threadgroup_memory_lengths(owner: str, function: Function, value: Any) -> tuple[int, ...]:
    """The bytes of each ``[[threadgroup(n)]]`` argument, in order of their indices."""
    arguments = [each for each in function.signature.arguments if each.address_space == "threadgroup"]
    given = () if value is None else value if isinstance(value, Sequence) else (value,)
    if len(given) != len(arguments):
        names = ", ".join(f"'{each.name}'" for each in arguments) or "none"
        raise FormatError(
            f"{owner}: threadgroup_memory has {len(given)} lengths but the kernel's threadgroup arguments are "
            f"{names}; it takes the bytes of each"
        )
    lengths = []
    for argument, length in zip(arguments, given, strict=True):
        try:
            lengths.append(operator.index(length))
        except TypeError:
            raise FormatError(f"{owner}: threadgroup_memory of '{argument.name}' is {length!r}, not a number") from None
        if lengths[-1] < 1 or lengths[-1] % THREADGROUP_MEMORY_STEP:
            raise GeometryError(
                f"{owner}: threadgroup_memory of '{argument.name}' is {length} bytes; Metal takes multiples of "
                f"{THREADGROUP_MEMORY_STEP}"
            )
    if sum(lengths) > THREADGROUP_MEMORY_BYTES:
        raise GeometryError(
            f"{owner}: threadgroup_memory is {sum(lengths)} bytes in all, above the device's {THREADGROUP_MEMORY_BYTES}"
        )
    return tuple(lengths)


def dispatch(
    owner: str,
    function: Function,
    grid: Any,
    threadgroup: Any,
    *,
    threadgroups: bool,
    buffers: tuple[Any, ...],
    threadgroup_memory: tuple[int, ...],
    held: tuple[Any, ...] = (),
) -> Dispatch:
    """The dispatch over ``grid``, which counts threads, or threadgroups with ``threadgroups``.

    ``held`` are buffers that the kernel finds by addresses in those of ``buffers``.
    """
    counts = extents(owner, "grid", grid)
    shape = threadgroup_extents(owner, function, counts, threadgroup, whole=threadgroups)
    threads = tuple(count * size for count, size in zip(counts, shape, strict=True)) if threadgroups else counts
    if max(threads) > LARGEST_GRID:
        raise GeometryError(
            f"{owner}: grid {grid!r} has {max(threads)} threads along an axis; the device's limit is {LARGEST_GRID}"
        )
    if math.prod(threads) > MOST_THREADS:
        raise GeometryError(
            f"{owner}: grid {grid!r} has {math.prod(threads)} threads in all; the device's limit is {MOST_THREADS}"
        )
    groups = tuple(ceiling_divide(count, size) for count, size in zip(threads, shape, strict=True))
    if function.pointee_sizes is None and groups[1:] == (1, 1) == shape[1:]:
        # A driver that dispatches whole threadgroups in a row and nothing else.
        size = function.threadgroup_size
        if threads[0] % size == 0 and (threadgroup is None or shape[0] == size):
            return Dispatch(function, threads[0] // size, buffers, threadgroup_memory=threadgroup_memory, held=held)
    return Dispatch(function, groups, buffers, shape, None if threadgroups else threads, threadgroup_memory, held)  # type: ignore[arg-type]
