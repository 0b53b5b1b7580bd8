"""Axes of any strides: what kernels without a window do element by element, or add up over some axes.

Each operand of such a kernel has a stride for each axis of the result: 0 where it is spread over the axis. Axes that
follow each other in all operands are joined first, so that the innermost, the run, is long. The loops over them are in
``shaders/lib/elementwise.metal.j2`` and ``shaders/lib/strided_reduction.metal.j2``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.kernels.divisor import DIVISOR, divisor
from mpsgrad.kernels.pointwise import THREADGROUPS_OF_CLUSTER, are_lines, elements_per_threadgroup, values_of_vector
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import Tunables, tunables

THREADS = 256
EIGHTS_OF_SUMS = 8
"""On CPUs: how many columns, by eight, a thread of a reduction has in registers at a time."""
MOST_COLUMNS = 512
"""On CPUs: so many have their totals in the nearest cache while a thread reads rows in the order of memory."""
MOST_IN_ORDER = 4096
"""On CPUs: so many elements the nearest cache keeps until each eight of several short rows has been read."""
FEWEST_OF_LONG_ROW = 256
"""On CPUs: rows that are reduced have so many elements if each is taken on its own."""
SHORT_RUN, MEDIUM_RUN = 8, 128
"""On CPUs: several runs are taken at once that are short, or medium, without whole eights, and follow each other."""
ROWS_AT_ONCE, MORE_ROWS_AT_ONCE = 4, 8
"""Of a threadgroup of a GPU that adds up rows: what a lane has on the way at a time, and of single elements and pairs
while there are as many."""
FEWEST_ELEMENTS_OF_FLAT = 1 << 18
"""Of a GPU: of fewer a thread takes one at a time, so that more of them are on their way."""
ELEMENTS_OF_BLOCK = 1024
"""On CPUs: so many a thread spreads of each source that has fewer elements, in its nearest cache."""
STRIDES = ParameterStruct("Strides", offset="int", step="int", x="int", y="int", z="int", inner="int", outer="int")
"""Where an operand's elements lie: ``step`` is the stride of the run; ``inner`` and ``outer`` are of reduced axes."""
EXTENTS = ParameterStruct(
    "Extents",
    run="int",
    x="int",
    y="int",
    z="int",
    chunks="int",
    run_of_thread="int",
    rows_of_thread="int",
    exceeds_caches="int",
    by_run=DIVISOR,
    by_x=DIVISOR,
    by_y=DIVISOR,
)
"""The axes of the result, and what a thread of a CPU has of them: one of the ``chunks`` of a run, of ``run_of_thread``
elements, in ``rows_of_thread`` rows. Divisors are of the elements, or vectors, of a run, and of two axes."""
REDUCED = ParameterStruct(
    "Reduced",
    inner="int",
    outer="int",
    rows_per_chunk="int",
    run_per_chunk="int",
    run_chunks="int",
    chunks="int",
    across="int",
    row_lanes="int",
    tiles="int",
    beside="int",
    team="int",
    rows_at_once="int",
)
"""The axes that are reduced, besides a reduced run, and how they are cut into chunks. Then, for GPUs, how a threadgroup
shares its work out: its threads are ``row_lanes`` times ``across``, and there are ``tiles`` of so many results, or
vectors of them, of which ``beside`` lie side by side in lines; or they are teams that have ``rows_at_once`` results
each."""
STRUCTS = (STRIDES, DIVISOR, EXTENTS, REDUCED)


def strided_family(name: str, parameters: Sequence[ParameterStruct], **constants: Any) -> ShaderFamily:
    """A family of a template that uses ``strides.metal.j2``, compiled at its first use."""
    return ShaderFamily(
        name,
        (*STRUCTS, *parameters),
        {
            "threads": THREADS,
            "walks": ("element", "element4", "flat", "flat_and_rest"),
            "by_vectors": True,
            "by_eights": False,
            "eights_of_sums": EIGHTS_OF_SUMS,
            "most_columns": MOST_COLUMNS,
            "most_in_order": MOST_IN_ORDER,
            "fewest_of_long_row": FEWEST_OF_LONG_ROW,
            "rows_at_once": ROWS_AT_ONCE,
            "more_rows_at_once": MORE_ROWS_AT_ONCE,
            "most_eights_of_pixels": MEDIUM_RUN,
            "elements_of_block": ELEMENTS_OF_BLOCK,
            "threadgroups_of_cluster": 1,
            **constants,
        },
        {
            "cpu": {"walks": ("eights", "pixels", "blocks"), "by_vectors": False, "by_eights": True},
            "nvidia": {"threadgroups_of_cluster": THREADGROUPS_OF_CLUSTER},
        },
        measured=lambda numbers: {"by_sixteens": numbers.has_many_registers},
        ahead_of_time=False,
    )


@dataclass(frozen=True, slots=True)
class View:
    """An operand: its first element, and its strides along the channels, x, y and the images."""

    offset: int
    strides: tuple[int, int, int, int]

    @classmethod
    def of(cls, layout: Sequence[int], step: int = 1) -> View:
        """The operand with the layout of an image (the fields of ``ImageLayout``)."""
        start, pixel, row, image, *_ = layout
        return cls(start, (step, pixel, row, image))


ZEROS = View(0, (0, 0, 0, 0))
"""Of a buffer of one element."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis with a stride for each operand."""

    extent: int
    strides: tuple[int, ...]

    def joined(self, outer: Axis) -> Axis | None:
        """This axis and the next outer one as one, or None where an operand does not allow it."""
        if self.extent == 1:
            return outer
        if outer.extent == 1:
            return self
        if all(far == near * self.extent for near, far in zip(self.strides, outer.strides, strict=True)):
            return Axis(self.extent * outer.extent, self.strides)
        return None


def joined_axes(axes: Sequence[Axis], dense: int = 0) -> list[Axis]:
    """``axes``, the innermost first, with those joined that can be.

    In the first of them the strides of the last ``dense`` operands stay 1.
    """
    found = [axes[0]]
    for axis in axes[1:]:
        joined = found[-1].joined(axis)
        if joined is not None and dense and len(found) == 1 and any(k != 1 for k in joined.strides[-dense:]):
            joined = None
        if joined is None:
            found.append(axis)
        else:
            found[-1] = joined
    return found


def filled(axes: Sequence[Axis], count: int, operands: int) -> list[Axis]:
    return [*axes, *[Axis(1, (0,) * operands)] * (count - len(axes))]


def axes_of(extents: Sequence[int], views: Sequence[View]) -> list[Axis]:
    return [Axis(extent, tuple(view.strides[k] for view in views)) for k, extent in enumerate(extents)]


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel function's name, how many threads it takes, and the parameters that follow from the strides.

    ``exceeds_caches`` says whether CPUs write its results past their caches.
    """

    walk: str
    threads: int
    parameters: dict[str, tuple[int, ...]]
    exceeds_caches: bool = False


def strides_of(names: Sequence[str], views: Sequence[View], axes: Sequence[Axis]) -> dict[str, tuple[int, ...]]:
    """The values of ``STRIDES`` for each operand; ``axes`` are the run, x, y, z, and the two reduced ones."""
    return {
        name: (view.offset, *(axis.strides[k] for axis in axes))
        for k, (name, view) in enumerate(zip(names, views, strict=True))
    }


@lru_cache(maxsize=512)
def elementwise(
    names: tuple[str, ...],
    views: tuple[View, ...],
    extents: tuple[int, int, int, int],
    results: int,
    device_family: str,
    vector: int,
    compute_units: int,
    numbers: Tunables,
    elements_beside: int = 0,
) -> Work:
    """The work of a kernel that makes each element of the last ``results`` operands, whose channels follow each other.

    ``extents`` are channels, width, height and images; ``vector`` is how many elements a thread of a GPU takes at most;
    ``elements_beside`` is how many are read and written by what makes the rest of the same images.
    """
    run, x, y, z, *_ = axes = filled(joined_axes(axes_of(extents, views), results), 6, len(views))
    rows = x.extent * y.extent * z.extent
    parts, length = (1, run.extent, 1, 0), run.extent
    starts = [
        start
        for operand, view in enumerate(views[-results:], len(views) - results)
        for start in (view.offset, *(axis.strides[operand] for axis in (x, y, z) if axis.extent > 1))
    ]
    has_whole_lines = rows == 1 or are_lines(run.extent, *starts)
    nbytes = (element_count(axes, len(views)) + elements_beside) * 4
    exceeds_caches = has_whole_lines and nbytes > numbers.streamed_bytes
    is_spread = _is_spread(run, x, results)
    if device_family == "cpu" and (is_spread or _is_short(run, x)) and not exceeds_caches:
        walk, parts, threads = pixels_of_threads(axes, compute_units, numbers)
        walk = "blocks" if is_spread else walk
    elif device_family == "cpu":
        share = elements_per_threadgroup(run.extent * rows, compute_units, numbers)
        run_of_thread, rows_of_thread = min(share, run.extent), max(1, share // run.extent)
        chunks = -(-run.extent // run_of_thread)
        parts = (chunks, run_of_thread, rows_of_thread, int(exceeds_caches))
        walk, threads = "eights", chunks * -(-rows // rows_of_thread)
    else:
        fitting = [count for count in (vector, 4) if is_even(axes, views, count)]
        walk = f"element{fitting[0]}" if fitting else "element"
        length = run.extent // max(fitting, default=1)
        threads = length * rows
        are_many = not fitting and threads >= FEWEST_ELEMENTS_OF_FLAT
        if are_many and rows == 1 and is_even((_whole(run, vector), *axes[1:]), views, vector):
            length = threads = -(-run.extent // vector)
            walk = f"element{vector}_and_rest"
        elif are_many and _are_flat(axes[:4], views, results, vector):
            walk, threads = "flat_and_rest" if threads % vector else "flat", -(-threads // vector)
    parameters = strides_of(names, views, axes)
    parameters["extents"] = extents_of((run, x, y, z), parts, length)
    return Work(walk, threads, parameters, exceeds_caches)


def _whole(run: Axis, count: int) -> Axis:
    """``run`` with elements behind the last that make its extent a multiple of ``count``."""
    return Axis(-(-run.extent // count) * count, run.strides)


def _is_spread(run: Axis, x: Axis, results: int) -> bool:
    """Whether one of two sources, or both, has a pixel for all of a row, or a value for each, and all else follows."""
    pairs = list(zip(run.strides, x.strides, strict=True))
    follow = [pair == (1, run.extent) for pair in pairs]
    has_fewer = [step == 0 or (step, far) == (1, 0) for step, far in pairs]
    if len(pairs) != results + 2 or not all(follow[2:]) or all(follow[:2]):
        return False
    return all(map(operator.or_, follow, has_fewer)) and run.extent <= ELEMENTS_OF_BLOCK and x.extent >= 8


def _is_short(run: Axis, x: Axis) -> bool:
    """Whether several runs have to be taken at once to fill a vector of a CPU, or fill it better."""
    if run.extent < SHORT_RUN:
        return True
    follow = all(step == 1 and far in (0, run.extent) for step, far in zip(run.strides, x.strides, strict=True))
    return follow and run.extent <= MEDIUM_RUN and (run.extent % 8 != 0 or 0 in x.strides) and x.extent >= 8


def pixels_of_threads(
    axes: Sequence[Axis], compute_units: int, numbers: Tunables
) -> tuple[str, tuple[int, int, int, int], int]:
    """The walk for short runs, what a thread has of them, and how many threads there are."""
    run, x, y, z, *_ = axes
    lines = y.extent * z.extent
    share = elements_per_threadgroup(run.extent * x.extent * lines, compute_units, numbers)
    pixels = -(-share // (run.extent * 8)) * 8
    pixels_of_thread = x.extent if pixels > x.extent // 2 else pixels
    chunks = x.extent // pixels_of_thread
    pixels_of_thread = -(-x.extent // chunks)
    lines_of_thread = max(1, pixels // x.extent)
    return "pixels", (chunks, pixels_of_thread, lines_of_thread, 0), chunks * -(-lines // lines_of_thread)


def extents_of(axes: Sequence[Axis], parts: tuple[int, ...], length: int) -> tuple[int, ...]:
    """The values of ``EXTENTS`` for the axes of a result whose runs have ``length`` elements or vectors."""
    _, x, y, _ = extents = [axis.extent for axis in axes]
    return (*extents, *parts, *divisor(length), *divisor(x), *divisor(y))


def element_count(axes: Sequence[Axis], operands: int) -> int:
    """How many elements the operands have, each of them counted once."""
    return sum(
        math.prod(axis.extent if axis.strides[operand] else 1 for axis in axes) for operand in range(operands)
    )


def is_even(axes: Sequence[Axis], views: Sequence[View], count: int) -> bool:
    """Whether every ``count`` elements of the run of each operand are one and the same, or can be loaded together."""
    run, *others = axes
    if run.extent % count:
        return False
    for k, view in enumerate(views):
        step = run.strides[k]
        if step == 1 and (view.offset % count or any(axis.strides[k] % count for axis in others if axis.extent > 1)):
            return False
        if step not in (0, 1):
            return False
    return True


def _are_flat(axes: Sequence[Axis], views: Sequence[View], results: int, vector: int) -> bool:
    """Whether the elements of each of the last ``results`` operands follow each other, from a whole vector on, and
    those of the others do in a run, or are one and the same."""
    if any(step not in (0, 1) for step in axes[0].strides):
        return False
    for k in range(len(views) - results, len(views)):
        step = 1
        for axis in axes:
            if axis.extent > 1 and axis.strides[k] != step:
                return False
            step *= axis.extent
    return all(view.offset % vector == 0 for view in views[-results:])


def elementwise_on(
    device: Device,
    metal_type: str,
    operands: Mapping[str, tuple[Buffer, View]],
    extents: tuple[int, int, int, int],
    results: int = 1,
    elements_beside: int = 0,
) -> Work:
    """``elementwise`` of ``operands`` for ``device``."""
    return elementwise(
        tuple(operands),
        tuple(view for _, view in operands.values()),
        extents,
        results,
        device.family,
        values_of_vector(metal_type),
        device.compute_units,
        tunables(device.tuning),
        elements_beside,
    )


def add_elementwise(
    command_buffer: CommandBuffer,
    family: ShaderFamily,
    struct: ParameterStruct,
    name: str,
    metal_type: str,
    operands: Mapping[str, tuple[Buffer, View]],
    extents: tuple[int, int, int, int],
    results: int = 1,
    elements_beside: int = 0,
    **parameters: Any,
) -> None:
    """Adds one run of the kernel ``name``; the last ``results`` operands are what it makes.

    ``elements_beside`` is as for ``elementwise``; ``parameters`` are those of ``struct`` that do not follow from the
    strides.
    """
    work = elementwise_on(command_buffer.device, metal_type, operands, extents, results, elements_beside)
    buffers = [buffer for buffer, _ in operands.values()]
    add_work(command_buffer, family, struct, f"{name}_by_{work.walk}", metal_type, buffers, work, parameters)


def add_work(
    command_buffer: CommandBuffer,
    family: ShaderFamily,
    struct: ParameterStruct,
    name: str,
    metal_type: str,
    buffers: Sequence[Buffer],
    work: Work,
    parameters: Mapping[str, Any],
) -> None:
    device = command_buffer.device
    function = family.function(device, name, metal_type)
    values: dict[str, Any] = {
        field: 0 if isinstance(kind, str) else (0,) * len(kind.fields) for field, kind in struct.fields.items()
    }
    values |= work.parameters
    values |= parameters
    command_buffer.add_dispatch(
        function,
        -(-work.threads // function.threadgroup_size),
        *buffers,
        device.constant_buffer(struct.pack(**values)),
    )


def zeros(device: Device) -> tuple[Buffer, View]:
    """The operand that is 0 everywhere, of any dtype."""
    return device.constant_buffer(bytes(16)), ZEROS
