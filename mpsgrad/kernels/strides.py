"""Axes of any strides: what kernels without a window do element by element, or add up over some axes.

Each operand of such a kernel has a stride for each axis of the result: 0 where it is spread over the axis. Axes that
follow each other in all operands are joined first, so that the innermost, the run, is long. The loops over them are in
``shaders/lib/strides.metal.j2``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.kernels.divisor import DIVISOR, divisor
from mpsgrad.kernels.pointwise import ELEMENTS_OF_LINE, WHOLE_LINES, values_of_vector
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import Tunables, tunables

THREADS = 256
SIMDGROUPS_WANTED = 1024
"""As many as keep a large GPU busy: a reduction to fewer results is cut into chunks."""
EIGHTS_OF_SUMS = 8
"""On CPUs: how many columns, by eight, a thread of a reduction has in registers at a time."""
MOST_COLUMNS = 512
"""On CPUs: so many have their totals in the nearest cache while a thread reads rows in the order of memory."""
FEWEST_OF_LONG_ROW = 256
"""On CPUs: rows that are reduced have so many elements if each is taken on its own."""
SHORT_RUN, MEDIUM_RUN = 8, 128
"""On CPUs: several runs are taken at once that are short, or medium, without whole eights, and follow each other."""
THREADS_OF_EIGHTS_PER_UNIT = 4
"""Of a CPU that makes element by element: every core is to have work."""
THREADS_WANTED_PER_UNIT = 16
"""Of a CPU, so that every core has work, if there are chunks: each costs a pass over what it leaves."""
ENOUGH_THREADS_PER_UNIT, ENOUGH_FOR_FEW_TERMS, FEW_TERMS = 4, 2, 1 << 20
"""Of a CPU: with so many there are no chunks. Of few terms the second pass would take longer than a core that waits."""
FEWEST_TERMS_OF_THREAD = 8192
"""Of a CPU that adds up columns: starting a thread takes about as long as some hundreds of them."""
FEWEST_TERMS_OF_TILE = 256
"""Of a thread of a CPU that has its sums in registers: a shorter chunk would cost more than it has to add up."""
FEWEST_ELEMENTS_PER_CHUNK = 64
"""For one lane."""
FEWEST_ROWS_OF_FOLDS, MOST_FOLDED, COST_OF_FOLD = 64, 512, 0.5
"""On CPUs: from so many rows of a short run on several of them are taken as one of up to so many elements, which are
added up by a second pass: a term of it costs so much more than the eighth of a vector does in the first."""
WIDE_TILE, NARROWEST_TILE = 1024, 32
"""Bytes that a threadgroup reads next to each other, where there are so many. Without vectors it may be one element."""
ROWS_AT_ONCE, FEW_ROWS_OF_A_LANE, MOST_ROWS_OF_A_LANE = 4, 16, 64
"""Rows are shared by lanes if each has as many of them as it has on the way at a time. Above the most they are cut into
chunks of several threadgroups; few are not worth a second pass over chunks: tiles are made narrow instead."""
THREADGROUPS_WANTED, THREADS_WANTED = 256, 1 << 18
"""As many as keep a large GPU busy."""
LARGEST_TEAM, RESULTS_OF_A_TEAM = 32, 4

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
    to_partials="int",
    across="int",
    row_lanes="int",
    tiles="int",
    team="int",
    rows_at_once="int",
)
"""The axes that are reduced, besides a reduced run, and how they are cut into chunks. Then, for GPUs, how a threadgroup
shares its work out: its threads are ``row_lanes`` times ``across``, and there are ``tiles`` of so many results, or
vectors of them; or they are teams that have ``rows_at_once`` results each."""
STRUCTS = (STRIDES, DIVISOR, EXTENTS, REDUCED)


def strided_family(name: str, parameters: Sequence[ParameterStruct], **constants: Any) -> ShaderFamily:
    """A family of a template that uses ``strides.metal.j2``, compiled at its first use."""
    return ShaderFamily(
        name,
        (*STRUCTS, *parameters),
        {
            "threads": THREADS,
            "walks": ("element", "element4"),
            "by_vectors": True,
            "by_eights": False,
            "eights_of_sums": EIGHTS_OF_SUMS,
            "most_columns": MOST_COLUMNS,
            "fewest_of_long_row": FEWEST_OF_LONG_ROW,
            "rows_at_once": ROWS_AT_ONCE,
            "most_eights_of_pixels": MEDIUM_RUN,
            **constants,
        },
        {"cpu": {"walks": ("eights", "pixels"), "by_vectors": False, "by_eights": True}},
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


def _joined(axes: Sequence[Axis], dense: int = 0) -> list[Axis]:
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


def _filled(axes: Sequence[Axis], count: int, operands: int) -> list[Axis]:
    return [*axes, *[Axis(1, (0,) * operands)] * (count - len(axes))]


def _axes(extents: Sequence[int], views: Sequence[View]) -> list[Axis]:
    return [Axis(extent, tuple(view.strides[k] for view in views)) for k, extent in enumerate(extents)]


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel function's name, how many threads it takes, and the parameters that follow from the strides."""

    walk: str
    threads: int
    parameters: dict[str, tuple[int, ...]]


def _strides_of(names: Sequence[str], views: Sequence[View], axes: Sequence[Axis]) -> dict[str, tuple[int, ...]]:
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
    run, x, y, z, *_ = axes = _filled(_joined(_axes(extents, views), results), 6, len(views))
    rows = x.extent * y.extent * z.extent
    parts, length = (1, run.extent, 1, 0), run.extent
    starts = [
        start
        for operand, view in enumerate(views[-results:], len(views) - results)
        for start in (view.offset, *(axis.strides[operand] for axis in (x, y, z) if axis.extent > 1))
    ]
    has_whole_lines = rows == 1 or not any(number % ELEMENTS_OF_LINE for number in (run.extent, *starts))
    exceeds_caches = has_whole_lines and (_count(axes, len(views)) + elements_beside) * 4 > numbers.cached_bytes
    if device_family == "cpu" and _is_short(run, x) and not exceeds_caches:
        walk, parts, threads = _of_pixels(axes, compute_units, numbers)
    elif device_family == "cpu":
        share = _share(run.extent * rows, compute_units, numbers)
        run_of_thread, rows_of_thread = min(share, run.extent), max(1, share // run.extent)
        chunks = -(-run.extent // run_of_thread)
        parts = (chunks, run_of_thread, rows_of_thread, int(exceeds_caches))
        walk, threads = "eights", chunks * -(-rows // rows_of_thread)
    else:
        fitting = [count for count in (vector, 4) if _is_even(axes, views, count)]
        walk = f"element{fitting[0]}" if fitting else "element"
        length = run.extent // max(fitting, default=1)
        threads = length * rows
    parameters = _strides_of(names, views, axes)
    parameters["extents"] = _extents((run, x, y, z), parts, length)
    return Work(walk, threads, parameters)


def _share(count: int, compute_units: int, numbers: Tunables) -> int:
    """How many of ``count`` elements a thread of a CPU has, in whole lines of its caches."""
    share = min(-(-count // (THREADS_OF_EIGHTS_PER_UNIT * max(1, compute_units))), numbers.stream_elements)
    return -(-share // WHOLE_LINES) * WHOLE_LINES


def _is_short(run: Axis, x: Axis) -> bool:
    """Whether several runs have to be taken at once to fill a vector of a CPU, or fill it better."""
    if run.extent < SHORT_RUN:
        return True
    follow = all(step == 1 and far in (0, run.extent) for step, far in zip(run.strides, x.strides, strict=True))
    return follow and run.extent <= MEDIUM_RUN and (run.extent % 8 != 0 or 0 in x.strides) and x.extent >= 8


def _of_pixels(
    axes: Sequence[Axis], compute_units: int, numbers: Tunables
) -> tuple[str, tuple[int, int, int, int], int]:
    """The walk for short runs, what a thread has of them, and how many threads there are."""
    run, x, y, z, *_ = axes
    lines = y.extent * z.extent
    pixels = -(-_share(run.extent * x.extent * lines, compute_units, numbers) // (run.extent * 8)) * 8
    pixels_of_thread = x.extent if pixels > x.extent // 2 else pixels
    chunks = x.extent // pixels_of_thread
    pixels_of_thread = -(-x.extent // chunks)
    lines_of_thread = max(1, pixels // x.extent)
    return "pixels", (chunks, pixels_of_thread, lines_of_thread, 0), chunks * -(-lines // lines_of_thread)


def _extents(axes: Sequence[Axis], parts: tuple[int, ...], length: int) -> tuple[int, ...]:
    """The values of ``EXTENTS`` for the axes of a result whose runs have ``length`` elements or vectors."""
    _, x, y, _ = extents = [axis.extent for axis in axes]
    return (*extents, *parts, *divisor(length), *divisor(x), *divisor(y))


def _count(axes: Sequence[Axis], operands: int) -> int:
    """How many elements the operands have, each of them counted once."""
    return sum(
        math.prod(axis.extent if axis.strides[operand] else 1 for axis in axes) for operand in range(operands)
    )


def _is_even(axes: Sequence[Axis], views: Sequence[View], count: int) -> bool:
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
    views = tuple(view for _, view in operands.values())
    vector = values_of_vector(metal_type)
    device = command_buffer.device
    work = elementwise(
        tuple(operands),
        views,
        extents,
        results,
        device.family,
        vector,
        device.compute_units,
        tunables(device.tuning),
        elements_beside,
    )
    buffers = [buffer for buffer, _ in operands.values()]
    _add(command_buffer, family, struct, f"{name}_by_{work.walk}", metal_type, buffers, work, parameters)


def _add(
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


@dataclass(frozen=True, slots=True)
class Reduction:
    """The work of a reduction: the first pass and, if that leaves ``partials`` float32 numbers, the one over these."""

    first: Work
    second: Work | None = None
    partials: int = 0


@lru_cache(maxsize=512)
def reduction(
    names: tuple[str, ...],
    views: tuple[View, ...],
    extents: tuple[int, int, int, int],
    kept: tuple[bool, bool, bool, bool],
    device_family: str,
    vector: int,
    compute_units: int,
    may_chunk: bool = True,
    tile: tuple[int, int] | None = None,
    cached_bytes: int = Tunables.cached_bytes,
) -> Reduction:
    """The work of a kernel that combines its operands over the axes of ``extents`` that are not ``kept``.

    ``extents`` are channels, width, height and images. The last operand is the result; its strides along axes that are
    reduced do not matter. At least one axis is reduced. ``vector`` is how many elements a thread of a GPU takes at
    most. Unless it ``may_chunk``, a result is made by one thread or simdgroup. ``tile`` are the rows and columns of
    results that a thread of a CPU makes at once, if the kernel can do that: a factor of its products has no rows, and
    the other no columns.
    """
    count = len(views)
    axes = _axes(extents, views)
    reduced = _joined([axis for axis, keeps in zip(axes, kept, strict=True) if not keeps])
    staying = _joined([axis for axis, keeps in zip(axes, kept, strict=True) if keeps] or [Axis(1, (0,) * count)])
    is_cpu = device_family == "cpu"
    wanted = THREADS_WANTED_PER_UNIT * max(1, compute_units) if is_cpu else SIMDGROUPS_WANTED
    if _goes_across(reduced, staying, 8 if is_cpu else 32):
        run, inner, outer = _filled(reduced, 3, count)
        x, y, z = _filled(staying, 3, count)
        loops, results = inner.extent * outer.extent, x.extent * y.extent * z.extent
        elements = loops * run.extent
        chunks = min(-(-elements // (32 * FEWEST_ELEMENTS_PER_CHUNK)), -(-wanted // results)) if may_chunk else 1
        rows_per_chunk = -(-loops // chunks)
        run_per_chunk = -(-run.extent // max(1, chunks // loops))
        run_chunks = -(-run.extent // run_per_chunk)
        chunks = run_chunks * -(-loops // rows_per_chunk)
        sizes = (rows_per_chunk, run_per_chunk, run_chunks, chunks)
        across_axes = (run, x, y, z, inner, outer)
        if not is_cpu and loops == chunks == 1 and _is_even(across_axes, views[:-1], vector):
            return Reduction(_across_by_vectors(names, views, across_axes, vector))
        if is_cpu:
            rows_of_thread = -(-results // wanted) if chunks == 1 else 1
            threads = chunks * -(-results // rows_of_thread)
            shares = (1, run.extent, rows_of_thread)
            first = _pass("across_by_eights", threads, names, views, across_axes, sizes, shares=shares)
        else:
            first = _pass("across", 32 * results * chunks, names, views, across_axes, sizes)
        left = [Axis(1, (0,) * count), x, y, z]
    else:
        run, x, y, z = _filled(staying, 4, count)
        inner, outer = _filled(reduced, 2, count)
        fold = _fold(run, inner, outer) if is_cpu and may_chunk else 1
        if is_cpu and fold == 1 and tile is None:
            run, x = _longer_first(run, x)
        left = [run, x, y, z]
        loops, rows = inner.extent * outer.extent, x.extent * y.extent * z.extent
        if not is_cpu and may_chunk:
            first, chunks = _along_in_tiles(names, views, (run, x, y, z, inner, outer), vector)
            if chunks == 1:
                return Reduction(first)
            partials = chunks * run.extent * rows
            return Reduction(first, _second_pass(left, views[-1], chunks, is_cpu, vector), partials)
        axes = [run, x, y, z, inner, outer]
        if is_cpu and tile is not None and _fits_tiles(tile, axes):
            first, chunks = _in_tiles(tile, names, views, axes)
            if chunks == 1:
                return Reduction(first)
            partials = chunks * run.extent * rows
            return Reduction(first, _second_pass(left, views[-1], chunks, is_cpu, vector), partials)
        if fold > 1:
            first, second, partials = _folded(names, views, (run, x, y, z, inner, outer), fold, wanted)
            return Reduction(first, second, partials)
        enough = _enough(run.extent * rows * loops, compute_units)
        exceeds_caches = may_chunk and _count(axes, count - 1) * 4 > cached_bytes
        walk, threads, shares = _along(run, rows, loops, enough, is_cpu, exceeds_caches)
        lanes_wanted = (wanted if threads < enough else threads) if is_cpu else 32 * wanted
        chunks = min(-(-loops // FEWEST_ELEMENTS_PER_CHUNK), -(-lanes_wanted // threads)) if may_chunk else 1
        rows_per_chunk = -(-loops // chunks)
        chunks = -(-loops // rows_per_chunk)
        results = run.extent * rows
        sizes = (rows_per_chunk, run.extent, 1, chunks)
        first = _pass(walk, threads * chunks, names, views, axes, sizes, shares=shares, exceeds_caches=exceeds_caches)
    if chunks == 1:
        return Reduction(first)
    return Reduction(first, _second_pass(left, views[-1], chunks, is_cpu, vector), chunks * results)


def _enough(terms: int, compute_units: int) -> int:
    """How many threads of a CPU are enough for so many terms."""
    return (ENOUGH_FOR_FEW_TERMS if terms < FEW_TERMS else ENOUGH_THREADS_PER_UNIT) * max(1, compute_units)


def _across_by_vectors(names: Sequence[str], views: Sequence[View], axes: Sequence[Axis], vector: int) -> Work:
    """Teams of lanes that share the run of each result in vectors."""
    run, x, y, z, *_ = axes
    vectors, results = run.extent // vector, x.extent * y.extent * z.extent
    team = min(_power_of_two(vectors), LARGEST_TEAM)
    at_once = 1 if vectors >= team * RESULTS_OF_A_TEAM else RESULTS_OF_A_TEAM
    threads = THREADS * -(-results // (THREADS // team * at_once))
    return _pass("across_by_vectors", threads, names, views, axes, (1, run.extent, 1, 1), (1, 1, 1, team, at_once))


def _along_in_tiles(
    names: Sequence[str], views: Sequence[View], axes: Sequence[Axis], vector: int, may_chunk: bool = True
) -> tuple[Work, int]:
    """Threadgroups whose lanes share rows, and into how many chunks these are cut."""
    run, x, y, z, inner, outer = axes
    width = vector if _is_even(axes, views[:-1], vector) else 1
    loops, rows = inner.extent * outer.extent, x.extent * y.extent * z.extent
    count = run.extent // width * rows
    wide = min(count, WIDE_TILE * vector // (16 * width), THREADS)
    narrow = min(count, NARROWEST_TILE * vector // 16 // width) if width > 1 else 1
    are_few = -(-count // wide) < THREADGROUPS_WANTED
    makes_narrow = are_few and loops <= FEW_ROWS_OF_A_LANE * (THREADS // narrow)
    useful = min(-(-loops // ROWS_AT_ONCE), -(-THREADS_WANTED // count))
    row_lanes = min(_power_of_two(useful), THREADS // (narrow if makes_narrow else wide))
    across = min(count, THREADS // row_lanes)
    tiles = -(-count // across)
    chunks = -(-loops // (MOST_ROWS_OF_A_LANE * row_lanes)) if are_few and may_chunk and not makes_narrow else 1
    rows_per_chunk = -(-loops // chunks)
    chunks = -(-loops // rows_per_chunk)
    walk = "along_in_tiles" + ("_of_vectors" if width > 1 else "")
    sizes, tile = (rows_per_chunk, run.extent, 1, chunks), (across, row_lanes, tiles, 1, 1)
    return _pass(walk, THREADS * tiles * chunks, names, views, axes, sizes, tile), chunks


def _fits_tiles(tile: tuple[int, int], axes: Sequence[Axis]) -> bool:
    rows, columns = tile
    run, x, _, z, _, outer = axes
    return run.extent >= columns and x.extent >= rows and z.extent == outer.extent == 1


def _in_tiles(
    tile: tuple[int, int], names: Sequence[str], views: Sequence[View], axes: Sequence[Axis]
) -> tuple[Work, int]:
    """Threads of a CPU that own tiles of results, and into how many chunks the reduced axis is cut."""
    rows, columns = tile
    run, x, y, _, inner, _ = axes
    chunks = -(-inner.extent // max(FEWEST_TERMS_OF_TILE, run.extent))
    rows_per_chunk = -(-inner.extent // chunks)
    chunks = -(-inner.extent // rows_per_chunk)
    across = -(-run.extent // columns)
    rows_of_thread = rows * -(-FEWEST_TERMS_OF_TILE // rows_per_chunk)
    threads = chunks * y.extent * across * -(-x.extent // rows_of_thread)
    sizes, shares = (rows_per_chunk, run.extent, 1, chunks), (across, columns, rows_of_thread)
    return _pass("in_tiles", threads, names, views, axes, sizes, shares=shares), chunks


def _power_of_two(number: int) -> int:
    """The smallest that is not less than ``number``."""
    return 1 << (number - 1).bit_length()


def _fold(run: Axis, inner: Axis, outer: Axis) -> int:
    """How many rows of a short run are taken as one on a CPU, for sums of whole vectors; 1 if that does not pay."""
    if run.extent >= 8 or inner.extent * outer.extent < FEWEST_ROWS_OF_FOLDS:
        return 1
    if any(step != 1 or far != run.extent for step, far in zip(run.strides[:-1], inner.strides[:-1], strict=True)):
        return 1
    counts = [k for k in range(2, MOST_FOLDED // run.extent + 1) if inner.extent % k == 0 and k * run.extent >= 8]

    def cost(count: int) -> float:
        whole, left = divmod(count * run.extent, 8 * EIGHTS_OF_SUMS)
        passes = 2 * whole - (-left // 8)
        return passes / (count * run.extent) + COST_OF_FOLD * count / (inner.extent * outer.extent)

    best = min(counts, key=cost, default=1)
    return best if best > 1 and cost(best) < COST_OF_FOLD / 2 else 1


def _longer_first(run: Axis, x: Axis) -> tuple[Axis, Axis]:
    """The two in the order in which the first fills a vector of a CPU, if one does."""
    return (x, run) if run.extent < 8 <= x.extent else (run, x)


def _folded(
    names: Sequence[str], views: Sequence[View], axes: Sequence[Axis], fold: int, wanted: int
) -> tuple[Work, Work, int]:
    """Both passes over sums of short runs, ``fold`` of them taken as one, and how many numbers the first leaves."""
    run, x, y, z, inner, outer = axes
    long = Axis(run.extent * fold, run.strides)
    steps = Axis(inner.extent // fold, tuple(stride * fold for stride in inner.strides))
    rows, loops = x.extent * y.extent * z.extent, steps.extent * outer.extent
    walk, threads, shares = _along(long, rows, loops, wanted, True)
    chunks = max(1, min(loops // FEWEST_ELEMENTS_PER_CHUNK, wanted // threads))
    rows_per_chunk = -(-loops // chunks)
    chunks = -(-loops // rows_per_chunk)
    sizes = (rows_per_chunk, long.extent, 1, chunks)
    first = _pass(
        walk, threads * chunks, names, views, (long, x, y, z, steps, outer), sizes, shares=shares, leaves=True
    )
    second = _second_pass((run, x, y, z), views[-1], chunks, True, 1, fold)
    return first, second, chunks * long.extent * rows


def _second_pass(
    left: Sequence[Axis], destination: View, chunks: int, is_cpu: bool, vector: int, fold: int = 1
) -> Work:
    """Over the ``chunks`` of partial results, each dense along the axes that are ``left``, the first ``fold`` times."""
    run, *others = left
    axes, length = [Axis(run.extent, (1, run.strides[-1]))], run.extent * fold
    for axis in others:
        axes.append(Axis(axis.extent, (length, axis.strides[-1])))
        length *= axis.extent
    inner = [Axis(chunks, (length, 0)), Axis(1, (0, 0))]
    if fold > 1:
        inner = [Axis(fold, (run.extent, 0)), Axis(chunks, (length, 0))]
    run, x, y, z = _filled(_joined(axes), 4, 2)
    if is_cpu:
        run, x = _longer_first(run, x)
    axes = [run, x, y, z, *inner]
    names, views = ("parts", "destination"), (View(0, ZEROS.strides), destination)
    if not is_cpu:
        work, _ = _along_in_tiles(names, views, axes, vector, may_chunk=False)
        return work
    rows, terms = x.extent * y.extent * z.extent, chunks * fold
    walk, threads, shares = _along(run, rows, terms, THREADS_WANTED_PER_UNIT, is_cpu)
    return _pass(walk, threads, names, views, axes, (terms, 1, 1, 1), shares=shares)


def _along(
    run: Axis, rows: int, loops: int, wanted: int, is_cpu: bool, exceeds_caches: bool = False
) -> tuple[str, int, tuple[int, int, int]]:
    """The walk of a kernel whose threads own results that follow each other, its threads, and their shares.

    Of each of ``rows`` of results a thread of a CPU makes those of as many columns as it has in registers, and more of
    them, or of the rows, if ``loops`` terms of each leave it little to do and ``wanted`` threads are left, or if what
    is read ``exceeds_caches``: then chunks give other threads work.
    """
    if not is_cpu or run.extent < 8:
        return "along_by_element", run.extent * rows, (1, 1, 1)
    at_once = 8 * EIGHTS_OF_SUMS
    blocks = -(-run.extent // at_once)
    useful = max(-(-FEWEST_TERMS_OF_THREAD // (at_once * loops)), MOST_COLUMNS // at_once if exceeds_caches else 1)
    more = max(1, min(useful, blocks * rows // (1 if exceeds_caches else wanted)))
    chunks = -(-blocks // more)
    run_of_thread, rows_of_thread = at_once * -(-blocks // chunks), max(1, min(more // blocks, rows))
    chunks = -(-run.extent // run_of_thread)
    return "along_by_eights", chunks * -(-rows // rows_of_thread), (chunks, run_of_thread, rows_of_thread)


def _pass(
    walk: str,
    threads: int,
    names: Sequence[str],
    views: Sequence[View],
    axes: Sequence[Axis],
    sizes: tuple[int, ...],
    tile: tuple[int, ...] = (1, 1, 1, 1, 1),
    shares: tuple[int, int, int] = (1, 1, 1),
    leaves: bool = False,
    exceeds_caches: bool = False,
) -> Work:
    """``leaves`` says that a second pass follows though there is one chunk."""
    run, x, y, z, inner, outer = axes
    parameters = _strides_of(names, views, axes)
    parameters["extents"] = _extents((run, x, y, z), (*shares, int(exceeds_caches)), run.extent)
    parameters["reduced"] = (inner.extent, outer.extent, *sizes, int(leaves or sizes[-1] > 1), *tile)
    return Work(walk, threads, parameters)


def _goes_across(reduced: Sequence[Axis], staying: Sequence[Axis], fewest: int) -> bool:
    """Whether the innermost reduced axis is read by ``fewest`` elements at once; else these are of so many results."""
    run, lanes = reduced[0], staying[0]
    if len(reduced) > 2:
        return True
    if run.extent < fewest or not all(step in (0, 1) for step in run.strides[:-1]):
        return False
    return lanes.extent < 8 or run.strides[0] < lanes.strides[0]


def add_reduction(
    command_buffer: CommandBuffer,
    family: ShaderFamily,
    struct: ParameterStruct,
    name: str,
    metal_type: str,
    operands: Mapping[str, tuple[Buffer, View]],
    extents: tuple[int, int, int, int],
    kept: tuple[bool, bool, bool, bool],
    *,
    merge: str | None,
    tile: tuple[int, int] | None = None,
    **parameters: Any,
) -> None:
    """Adds a run of the kernel ``name``, and one of the kernel ``merge`` over its partial results if there are several.

    The last operand is the result. Without ``merge`` each result is made at once. ``tile`` as for ``reduction``.
    """
    device = command_buffer.device
    *sources, (destination, _) = operands.values()
    views = tuple(view for _, view in operands.values())
    vector = values_of_vector(metal_type)
    may_chunk, units = merge is not None, device.compute_units
    cached = tunables(device.tuning).cached_bytes
    work = reduction(tuple(operands), views, extents, kept, device.family, vector, units, may_chunk, tile, cached)
    none = device.constant_buffer(bytes(16))
    partials = command_buffer.scratch(4 * work.partials) if work.partials else none
    buffers = [*(buffer for buffer, _ in sources), partials, destination]
    _add(command_buffer, family, struct, f"{name}_{work.first.walk}", metal_type, buffers, work.first, parameters)
    if work.second is not None:
        buffers = [partials, none, destination]
        name = f"{merge}_{work.second.walk}"
        _add(command_buffer, family, struct, name, metal_type, buffers, work.second, parameters)
