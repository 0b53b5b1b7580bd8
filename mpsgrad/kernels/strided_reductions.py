"""Reductions over axes of any strides: how their kernels are cut into passes, threads and chunks.

The loops over them are in ``shaders/lib/strided_reduction.metal.j2``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer
from mpsgrad.kernels.pointwise import THREADGROUPS_OF_CLUSTER, values_of_vector
from mpsgrad.kernels.strides import (
    EIGHTS_OF_SUMS,
    MOST_COLUMNS,
    ROWS_AT_ONCE,
    THREADS,
    ZEROS,
    Axis,
    View,
    Work,
    add_work,
    axes_of,
    element_count,
    extents_of,
    filled,
    is_even,
    joined_axes,
    strides_of,
)
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import Tunables, tunables

PARTS = "parts"
"""The source of kernels that add up what others left, float32 numbers of several chunks or threadgroups."""
SIMDGROUPS_WANTED = 4096
"""As many as keep a large GPU busy: a reduction to fewer results is cut into chunks."""
THREADS_WANTED_PER_UNIT = 16
"""Of a CPU, so that every core has work, if there are chunks: each costs a pass over what it leaves."""
ENOUGH_THREADS_PER_UNIT, ENOUGH_FOR_FEW_TERMS, FEW_TERMS = 4, 2, 1 << 20
"""Of a CPU: with so many there are no chunks. Of few terms the second pass would take longer than a core that waits."""
FEWEST_TERMS_OF_CHUNKS = 1 << 18
"""Of a CPU: of fewer, the pass over what chunks leave takes longer than one thread takes for all of them."""
FEWEST_TERMS_OF_THREAD = 8192
"""Of a CPU that adds up columns: starting a thread takes about as long as some hundreds of them."""
FEWEST_TERMS_OF_TILE = 256
"""Of a thread of a CPU that has its sums in registers: a shorter chunk would cost more than it has to add up."""
FEWEST_ELEMENTS_PER_CHUNK = 64
"""For one lane."""
FEW_ELEMENTS_PER_CHUNK = 8
"""The same of a GPU where there is more than one chunk: a lane waits for each of its elements."""
FEWEST_ROWS_OF_FOLDS, FEWEST_ROWS_OF_EIGHT = 16, 32
"""On CPUs: of so many short rows that follow each other eight are taken together, as many whole vectors as results.
With few registers so are rows of eight of one image: each fits a vector, but those that are added up one after the
other wait for each other."""
WIDE_TILE, NARROW_TILE, NARROWEST_TILE = 1024, 128, 32
"""Bytes that a threadgroup reads next to each other, where there are so many. Without vectors it may be one element,
or a pair. Narrow tiles are as wide as the second, those of pairs as the first and those of single elements as many as a
simdgroup reads at once, where enough threadgroups have one. Measured on an H200."""
FEW_ROWS_OF_A_LANE, FEWEST_ROWS_OF_A_CHUNK, MOST_ROWS_OF_A_LANE = 16, 8, 64
"""Rows are shared by lanes if each has as many of them as it has on the way at a time. Above the most they are cut into
chunks of several threadgroups; few are not worth a second pass over chunks: tiles are made narrow instead."""
FEWEST_SHARED_ROWS, TILE_OF_SHARED_ROWS = 64, 64
"""So many rows are shared by lanes also where there are enough tiles of single elements, then with so many in a row.
Measured, too."""
LONGEST_OF_LINES, FEWEST_OF_RESULTS, FEWEST_ROWS_OF_A_READER = 32, 3072, 2
"""Bytes of a row, bytes that are reduced to it, and rows of a lane: of many results whose rows are no longer and follow
each other, and have no fewer, a simdgroup of a GPU reads as many side by side as it has lanes. Measured on an H200."""
SIMDGROUP = 32
FEW_VECTORS = 4
"""Threadgroups own one row of results where long runs of fewer vectors follow each other: a tile of several would read
short pieces that lie apart. Measured on an H200."""
THREADGROUPS_WANTED, THREADS_WANTED = 256, 1 << 18
"""As many as keep a large GPU busy."""
MOST_ROWS_IN_CLUSTERS, FEWER_ROWS_IN_CLUSTERS = 32, 15
"""Of a lane, and of one of few threadgroups or of narrow tiles that reads vectors: clusters of threadgroups, which join
what they have in one kernel, then take less time than a second pass, over chunks or over rows that were joined as no
vector fits one. Measured on an H200."""
FEWEST_ROWS_IN_CLUSTERS, MOST_OF_FEW_ROWS = 256, 512
"""From so many rows on clusters also take those that are few enough for narrow tiles, where these would read 32 bytes
or less next to each other: single elements, which pairs are taken as, and fours of halves. With more threadgroups they
took longer. Measured on an H200."""
FEWEST_TILES_OF_PARTS = 4
"""Where no vector fits, a lane of clusters may have the larger number of rows of so many tiles. Measured on an H200."""
FEWEST_FOURS = 2048
"""Of halves: of fewer, threads take pairs, but for those of clusters, of lines and of rows that are few vectors."""
THREADGROUPS_OF_CHUNKS = 512
"""The same of those that read long chunks, and wait for memory most of the time. Measured on an H200."""
LARGEST_TEAM, RESULTS_OF_A_TEAM, LOADS_OF_LANE = 32, 4, 4
FEWEST_ELEMENTS_OF_FOLDS, FEWEST_JOINED_ROWS = 1 << 19, 1024
"""Of so many elements, and so many for each result, several rows are joined to one that vectors fit: the second pass
over what is left of each takes less time than is won."""
FEWEST_RESULTS_ALONG, MOST_TERMS_ALONG = 1 << 14, 256
"""Of a GPU: so many indices, of no more terms each that no vector fits, are found by a thread each. A simdgroup would
wait for a few terms of one after the other."""
FEWEST_RESULTS_OF_TEAMS = 1 << 14
"""Of a GPU: teams of lanes make several of so many results at once that no vectors fit; of fewer they make one each.
Measured on an H200."""
MOST_RESULTS_OF_RUNS = 64
"""Of a GPU: long runs that become so few results are taken as rows, too, of which vectors are added up."""
BYTES_OF_A_FOLD, BYTES_OF_THE_FOLD = 256, 1024
"""About so many bytes are to follow each other then, of the rows of several results and of those of one."""


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
    folds_eights: bool = False,
    cluster: int = 0,
) -> Reduction:
    """The work of a kernel that combines its operands over the axes of ``extents`` that are not ``kept``.

    ``extents`` are channels, width, height and images. The last operand is the result; its strides along axes that are
    reduced do not matter. At least one axis is reduced. ``vector`` is how many elements a thread of a GPU takes at
    most. Unless it ``may_chunk``, a result is made by one thread or simdgroup. ``tile`` are the rows and columns of
    results that a thread of a CPU makes at once, if the kernel can do that: a factor of its products has no rows, and
    the other no columns. A CPU takes rows of eight results together, too, if it ``folds_eights``. A GPU's clusters have
    so many threadgroups, if there are any.
    """
    count, is_cpu = len(views), device_family == "cpu"
    axes = axes_of(extents, _without_reduced_strides(views, kept))
    reduced = joined_axes([axis for axis, keeps in zip(axes, kept, strict=True) if not keeps])
    staying = joined_axes([axis for axis, keeps in zip(axes, kept, strict=True) if keeps] or [Axis(1, (0,) * count)])
    in_chunks = may_chunk and not (is_cpu and math.prod(extents) < FEWEST_TERMS_OF_CHUNKS)
    wanted = THREADS_WANTED_PER_UNIT * max(1, compute_units) if is_cpu else SIMDGROUPS_WANTED
    goes_across = _goes_across(reduced, staying, 8 if is_cpu else 32)
    if goes_across and may_chunk and not is_cpu:
        single = Axis(1, reduced[0].strides)
        axes = [single, *filled(staying, 3, count), *filled(reduced, 2, count)]
        folded = _folded(axes, views, vector) if len(staying) <= 3 and len(reduced) <= 2 else None
        if folded is not None and math.prod(axis.extent for axis in staying) <= MOST_RESULTS_OF_RUNS:
            return _in_folds(names, views, axes, folded, vector)
    if goes_across and (is_cpu or may_chunk or not _are_many_without_vectors(reduced, staying, views, vector)):
        run, inner, outer = filled(reduced, 3, count)
        x, y, z = filled(staying, 3, count)
        axes = [run, x, y, z, inner, outer]
        first, chunks = _across(names, views, axes, vector, is_cpu, wanted, in_chunks)
        left = [Axis(1, (0,) * count), x, y, z]
    else:
        run, x, y, z = filled(staying, 4, count)
        inner, outer = filled(reduced, 2, count)
        folds = is_cpu and may_chunk and _are_folds(run, inner, folds_eights)
        if is_cpu and not folds and tile is None:
            run, x = _longer_first(run, x)
        left, axes = [run, x, y, z], [run, x, y, z, inner, outer]
        if not is_cpu and may_chunk:
            folded = _folded(axes, views, vector)
            if folded is not None:
                shared = _parts_in_clusters(names, views, axes, vector, cluster)
                return _in_folds(names, views, axes, folded, vector) if shared is None else Reduction(shared)
            first, chunks = _along_in_tiles(names, views, axes, vector, cluster=cluster)
        elif is_cpu and tile is not None and _fits_tiles(tile, extents, axes):
            first, chunks = _in_tiles(tile, names, views, axes)
        elif folds:
            first, chunks = _along_by_folds(names, views, axes, compute_units, in_chunks)
        else:
            exceeds_caches = may_chunk and element_count(axes, count - 1) * 4 > cached_bytes
            units = compute_units if is_cpu else None
            first, chunks = _along_in_chunks(names, views, axes, units, wanted, in_chunks, exceeds_caches)
    if chunks == 1:
        return Reduction(first)
    results = math.prod(axis.extent for axis in left)
    return Reduction(first, _second_pass(left, views[-1], (chunks, 1), is_cpu, vector), chunks * results)


def _without_reduced_strides(views: Sequence[View], kept: Sequence[bool]) -> tuple[View, ...]:
    """``views`` with strides of 0 for the result along axes that are not ``kept``, which then may be joined."""
    *sources, result = views
    channels, x, y, image = (stride if keeps else 0 for stride, keeps in zip(result.strides, kept, strict=True))
    return (*sources, replace(result, strides=(channels, x, y, image)))


def _across(
    names: Sequence[str],
    views: Sequence[View],
    axes: Sequence[Axis],
    vector: int,
    is_cpu: bool,
    wanted: int,
    may_chunk: bool,
) -> tuple[Work, int]:
    """Simdgroups, or threads of a CPU, that read the run of a result, and into how many chunks what is reduced is cut.

    ``wanted`` of them are wanted.
    """
    run, x, y, z, inner, outer = axes
    loops, results = inner.extent * outer.extent, x.extent * y.extent * z.extent
    elements = loops * run.extent
    has_chunks = elements > 32 * FEWEST_ELEMENTS_PER_CHUNK
    fewest = FEW_ELEMENTS_PER_CHUNK if has_chunks and not is_cpu else FEWEST_ELEMENTS_PER_CHUNK
    chunks = min(-(-elements // (32 * fewest)), -(-wanted // results)) if may_chunk else 1
    rows_per_chunk = -(-loops // chunks)
    run_per_chunk = -(-run.extent // max(1, chunks // loops))
    run_chunks = -(-run.extent // run_per_chunk)
    chunks = run_chunks * -(-loops // rows_per_chunk)
    sizes = (rows_per_chunk, run_per_chunk, run_chunks, chunks)
    if is_cpu:
        rows_of_thread = -(-results // wanted) if chunks == 1 else 1
        threads = chunks * -(-results // rows_of_thread)
        shares = (1, run.extent, rows_of_thread)
        return _pass("across_by_eights", threads, names, views, axes, sizes, shares=shares), chunks
    if loops == chunks == 1:
        teams = _across_in_teams(names, views, axes, vector, may_chunk)
        if teams is not None:
            return teams, chunks
    return _pass("across", 32 * results * chunks, names, views, axes, sizes), chunks


def _along_in_chunks(
    names: Sequence[str],
    views: Sequence[View],
    axes: Sequence[Axis],
    compute_units: int | None,
    wanted: int,
    may_chunk: bool,
    exceeds_caches: bool,
) -> tuple[Work, int]:
    """Threads that own results that follow each other, and into how many chunks what is reduced is cut.

    ``compute_units`` are those of a CPU, None for GPUs; the others are as for ``_across`` and ``_along``.
    """
    run, x, y, z, inner, outer = axes
    is_cpu = compute_units is not None
    loops, rows = inner.extent * outer.extent, x.extent * y.extent * z.extent
    enough = 0 if compute_units is None else enough_threads(run.extent * rows * loops, compute_units)
    walk, threads, shares = _along(run, rows, loops, enough, is_cpu, exceeds_caches)
    lanes_wanted = (wanted if threads < enough else threads) if is_cpu else 32 * wanted
    chunks = min(-(-loops // FEWEST_ELEMENTS_PER_CHUNK), -(-lanes_wanted // threads)) if may_chunk else 1
    rows_per_chunk = -(-loops // chunks)
    chunks = -(-loops // rows_per_chunk)
    sizes = (rows_per_chunk, run.extent, 1, chunks)
    first = _pass(walk, threads * chunks, names, views, axes, sizes, shares=shares, exceeds_caches=exceeds_caches)
    return first, chunks


def enough_threads(terms: int, compute_units: int) -> int:
    """How many threads of a CPU are enough for so many terms."""
    return (ENOUGH_FOR_FEW_TERMS if terms < FEW_TERMS else ENOUGH_THREADS_PER_UNIT) * max(1, compute_units)


def _across_in_teams(
    names: Sequence[str], views: Sequence[View], axes: Sequence[Axis], vector: int, may_have_parts: bool
) -> Work | None:
    """Teams of lanes that share the run of each result in vectors or, if kernels ``may_have_parts``, in pairs or single
    elements; None if these are not faster."""
    run, x, y, z, *_ = axes
    results = x.extent * y.extent * z.extent
    if is_even(axes, views[:-1], vector):
        loads, walk = run.extent // vector, "vectors"
        team = min(_power_of_two(loads), LARGEST_TEAM)
        has_one = loads >= team * RESULTS_OF_A_TEAM
    elif may_have_parts:
        has_pairs = is_even(axes, views[:-1], 2)
        loads, walk = (run.extent // 2, "pairs") if has_pairs else (run.extent, "elements")
        team = min(_power_of_two(-(-loads // LOADS_OF_LANE)), LARGEST_TEAM)
        has_one = results < FEWEST_RESULTS_OF_TEAMS
    else:
        return None
    at_once = 1 if has_one else RESULTS_OF_A_TEAM
    threads = THREADS * -(-results // (THREADS // team * at_once))
    return _pass(f"across_by_{walk}", threads, names, views, axes, (1, run.extent, 1, 1), (1, 1, 1, 1, team, at_once))


def _folded(axes: Sequence[Axis], views: Sequence[View], vector: int) -> list[Axis] | None:
    """``axes`` with several of the innermost reduced rows joined to one that vectors fit; None if that does not pay.

    The rows follow each other in each operand, or have one and the same element.
    """
    run, x, y, z, inner, outer = axes
    steps = inner.strides[:-1]
    if all(far == near * inner.extent for near, far in zip(steps, outer.strides[:-1], strict=True)):
        inner, outer = Axis(inner.extent * outer.extent, inner.strides), Axis(1, (0,) * len(views))
    are_few = inner.extent * outer.extent < FEWEST_JOINED_ROWS
    if are_few or is_even(axes, views[:-1], vector) or element_count(axes, 1) < FEWEST_ELEMENTS_OF_FOLDS:
        return None
    if any(far != near * run.extent for near, far in zip(run.strides[:-1], steps, strict=True)):
        return None
    folds = vector // math.gcd(run.extent, vector)
    most_bytes = BYTES_OF_A_FOLD if x.extent * y.extent * z.extent > 1 else BYTES_OF_THE_FOLD
    while 2 * folds * run.extent * 16 <= most_bytes * vector and inner.extent % (2 * folds) == 0:
        folds *= 2
    joined = Axis(folds * run.extent, run.strides)
    rows = Axis(inner.extent // folds, tuple(folds * stride for stride in inner.strides))
    folded = [joined, x, y, z, rows, outer]
    return folded if inner.extent % folds == 0 and is_even(folded, views[:-1], vector) else None


def _in_folds(
    names: Sequence[str], views: Sequence[View], axes: Sequence[Axis], folded: Sequence[Axis], vector: int
) -> Reduction:
    """The work of a GPU for the ``folded`` ``axes``."""
    first, chunks = _along_in_tiles(names, views, folded, vector, leaves_parts=True)
    joined, x, y, z, *_ = folded
    folds = joined.extent // axes[0].extent
    second = _second_pass(axes[:4], views[-1], (chunks, folds), False, vector)
    return Reduction(first, second, chunks * joined.extent * x.extent * y.extent * z.extent)


def _along_in_tiles(
    names: Sequence[str],
    views: Sequence[View],
    axes: Sequence[Axis],
    vector: int,
    may_chunk: bool = True,
    leaves_parts: bool = False,
    cluster: int = 0,
    takes_fours: bool = True,
) -> tuple[Work, int]:
    """Threadgroups whose lanes share rows, and into how many chunks these are cut. One ``leaves_parts`` if told.

    There are no chunks if clusters of so many threadgroups share the rows. Halves are read by fours unless told not to.
    """
    run, x, y, z, inner, outer = axes
    widths = (vector, 4, 2) if may_chunk and takes_fours else (vector, 2)
    width = next((count for count in widths if is_even(axes, views[:-1], count)), 1)
    loops, rows = inner.extent * outer.extent, x.extent * y.extent * z.extent
    in_a_row, follow = run.extent // width, _follow_each_other(run, inner)
    is_single = may_chunk and not leaves_parts and _has_single_source(names)
    count = in_a_row * rows
    lines = _in_lines(names, views, axes, vector, width) if width >= 4 and follow and is_single else None
    if lines is not None:
        return lines, 1
    wide = min(count, WIDE_TILE * vector // (16 * width), THREADS)
    narrowest = min(count, NARROWEST_TILE * vector // 16 // width) if width == vector else 1
    narrow_bytes = NARROW_TILE if width == vector else WIDE_TILE
    narrow = min(count, SIMDGROUP if width == 1 else narrow_bytes * vector // 16 // width, wide)
    while narrow > narrowest and -(-count // narrow) < THREADGROUPS_WANTED:
        narrow = max(narrow // 2, narrowest)
    are_few = -(-count // wide) < THREADGROUPS_WANTED
    is_short = loops <= FEW_ROWS_OF_A_LANE * (THREADS // narrowest)
    makes_narrow = are_few and (is_short or not may_chunk)
    makes_chunks = are_few and may_chunk and not makes_narrow
    is_sector = narrow * width * 16 <= NARROWEST_TILE * vector
    shares_few = makes_narrow and is_sector and width < vector and loops >= FEWEST_ROWS_IN_CLUSTERS
    if cluster and is_single and (shares_few or (makes_chunks and width != 2)):
        shared = _in_clusters(names, views, axes, vector, 1 if width == 2 else width, cluster)
        if shared is not None and (makes_chunks or shared.threads <= THREADS * MOST_OF_FEW_ROWS):
            return shared, 1
    useful = min(-(-loops // ROWS_AT_ONCE), -(-THREADS_WANTED // count))
    shares_rows = width == 1 and not are_few and loops >= FEWEST_SHARED_ROWS
    side_by_side = narrow if makes_narrow else min(wide, TILE_OF_SHARED_ROWS) if shares_rows else wide
    if makes_chunks and follow and run.extent < FEW_VECTORS * vector:
        side_by_side = min(side_by_side, in_a_row)
    elif 2 < width < vector and (makes_chunks or count < FEWEST_FOURS):
        return _along_in_tiles(names, views, axes, vector, may_chunk, leaves_parts, takes_fours=False)
    row_lanes = min(_power_of_two(useful), THREADS // side_by_side)
    across = min(count, THREADS // row_lanes)
    tiles = -(-count // across)
    chunks = 1
    if makes_chunks:
        filling = loops * tiles // (row_lanes * THREADGROUPS_OF_CHUNKS)
        rows_of_lane = min(max(filling, FEWEST_ROWS_OF_A_CHUNK), MOST_ROWS_OF_A_LANE)
        chunks = -(-loops // (rows_of_lane * row_lanes))
    rows_per_chunk = -(-loops // chunks)
    chunks = -(-loops // rows_per_chunk)
    # Kernels leave parts where there is more than one chunk.
    sizes = (rows_per_chunk, run.extent, 1, max(chunks, 1 + leaves_parts))
    tile = (across, row_lanes, tiles, 1, 1, 1)
    walk = f"along_in_tiles{_ending(width, vector)}"
    return _pass(walk, THREADS * tiles * chunks, names, views, axes, sizes, tile), chunks


def _ending(width: int, vector: int) -> str:
    """How names of kernels end that take ``width`` values at a time."""
    return {1: "", 2: "_of_pairs", vector: "_of_vectors"}.get(width, "_of_fours")


def _has_single_source(names: Sequence[str]) -> bool:
    """Whether kernels with clusters and lines read it: they have no other, and none of what others left in parts."""
    return len(names) == 2 and names[0] != PARTS


def _parts_in_clusters(
    names: Sequence[str], views: Sequence[View], axes: Sequence[Axis], vector: int, cluster: int
) -> Work | None:
    """Clusters of threadgroups for rows that no vector fits; None where others are faster."""
    if not cluster or not _has_single_source(names):
        return None
    width = 4 if is_even(axes, views[:-1], 4) else 1
    shared = _in_clusters(names, views, axes, vector, width, cluster)
    return shared if shared is not None and shared.threads <= THREADS * MOST_OF_FEW_ROWS else None


def _in_clusters(
    names: Sequence[str], views: Sequence[View], axes: Sequence[Axis], vector: int, width: int, cluster: int
) -> Work | None:
    """Clusters of ``cluster`` threadgroups that share the rows of a tile; None where these would be too many.

    Of two sources they took longer.
    """
    run, x, y, z, inner, outer = axes
    loops, in_a_row = inner.extent * outer.extent, run.extent // width
    count = in_a_row * x.extent * y.extent * z.extent
    across, narrowest = min(in_a_row, THREADS // width), max(1, NARROWEST_TILE * vector // 16 // width)
    while across > narrowest and -(-count // across) * cluster < THREADGROUPS_WANTED:
        across = -(-across // 2)
    row_lanes, tiles = THREADS // across, -(-count // across)
    rows_of_threadgroup = -(-loops // cluster)
    is_wide = across >= 2 * narrowest and tiles * cluster >= THREADGROUPS_WANTED // 2
    takes_more = is_wide or (width < vector and tiles >= FEWEST_TILES_OF_PARTS)
    if rows_of_threadgroup > (MOST_ROWS_IN_CLUSTERS if takes_more else FEWER_ROWS_IN_CLUSTERS) * row_lanes:
        return None
    sizes, tile = (rows_of_threadgroup, run.extent, 1, 1), (across, row_lanes, tiles, 1, 1, 1)
    walk = f"along_in_clusters{_ending(width, vector)}"
    return _pass(walk, THREADS * tiles * cluster, names, views, axes, sizes, tile)


def _in_lines(
    names: Sequence[str], views: Sequence[View], axes: Sequence[Axis], vector: int, width: int
) -> Work | None:
    """Simdgroups that read rows which follow each other; None where results or rows are few, or rows are long."""
    run, x, y, z, inner, outer = axes
    beside, loops = run.extent // width, inner.extent
    if 16 * run.extent > LONGEST_OF_LINES * vector or outer.extent > 1:
        return None
    row_lanes = min(_power_of_two(-(-loops // FEWEST_ROWS_OF_A_READER)), SIMDGROUP // beside)
    count, across = beside * x.extent * y.extent * z.extent, THREADS // (row_lanes * beside) * beside
    if 16 * run.extent * loops < FEWEST_OF_RESULTS * vector or count * row_lanes < THREADS_WANTED:
        return None
    tiles = -(-count // across)
    sizes, tile = (loops, run.extent, 1, 1), (across, row_lanes, tiles, beside, 1, 1)
    return _pass(f"along_in_lines{_ending(width, vector)}", THREADS * tiles, names, views, axes, sizes, tile)


def _fits_tiles(tile: tuple[int, int], extents: Sequence[int], axes: Sequence[Axis]) -> bool:
    rows, columns = tile
    run, x, _, z, _, outer = axes
    # Where the columns or the rows are one, another axis has taken their place, along which both factors may differ.
    are_in_place = (run.extent, x.extent) == tuple(extents[:2])
    return are_in_place and run.extent >= columns and x.extent >= rows and z.extent == outer.extent == 1


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
    return _pass(f"in_tiles_of_{columns}", threads, names, views, axes, sizes, shares=shares), chunks


def _power_of_two(number: int) -> int:
    """The smallest that is not less than ``number``."""
    return 1 << (number - 1).bit_length()


def _follow_each_other(run: Axis, rows: Axis) -> bool:
    """Whether the ``rows`` of a ``run`` do in all sources."""
    pairs = zip(run.strides[:-1], rows.strides[:-1], strict=True)
    return all(step == 1 and far == run.extent for step, far in pairs)


def _are_folds(run: Axis, inner: Axis, folds_eights: bool) -> bool:
    """Whether rows of a short run follow each other, and are so many that a CPU is to take eight of them together."""
    if run.extent >= 8:
        folds = folds_eights and run.extent == 8 and len(run.strides) == 2 and inner.extent >= FEWEST_ROWS_OF_EIGHT
    else:
        folds = inner.extent >= FEWEST_ROWS_OF_FOLDS
    return folds and _follow_each_other(run, inner)


def _longer_first(run: Axis, x: Axis) -> tuple[Axis, Axis]:
    """The two in the order in which the first fills a vector of a CPU, if one does."""
    return (x, run) if run.extent < 8 <= x.extent else (run, x)


def _along_by_folds(
    names: Sequence[str], views: Sequence[View], axes: Sequence[Axis], compute_units: int, may_chunk: bool
) -> tuple[Work, int]:
    """Threads of a CPU that take rows of a short run eight at a time, and into how many chunks these are cut."""
    run, x, y, z, inner, outer = axes
    loops, rows = inner.extent * outer.extent, x.extent * y.extent * z.extent
    enough = enough_threads(loops * rows * run.extent, compute_units)
    chunks = max(1, min(enough // rows, loops * run.extent // FEWEST_TERMS_OF_THREAD)) if may_chunk else 1
    rows_per_chunk = -(-loops // chunks)
    chunks = -(-loops // rows_per_chunk)
    rows_of_thread = -(-rows // enough)
    sizes, shares = (rows_per_chunk, run.extent, 1, chunks), (1, run.extent, rows_of_thread)
    threads = chunks * -(-rows // rows_of_thread)
    return _pass("along_by_folds", threads, names, views, axes, sizes, shares=shares), chunks


def _second_pass(
    left: Sequence[Axis], destination: View, parts: tuple[int, int], is_cpu: bool, vector: int
) -> Work:
    """Over the ``parts`` of results: so many chunks of so many folds each, dense along the axes that are ``left``."""
    run, *others = left
    chunks, folds = parts
    axes, length = [Axis(run.extent, (1, run.strides[-1]))], run.extent * folds
    for axis in others:
        axes.append(Axis(axis.extent, (length, axis.strides[-1])))
        length *= axis.extent
    inner = filled(joined_axes([Axis(folds, (run.extent, 0)), Axis(chunks, (length, 0))]), 2, 2)
    run, x, y, z = filled(joined_axes(axes), 4, 2)
    if is_cpu:
        run, x = _longer_first(run, x)
    axes = [run, x, y, z, *inner]
    names, views = (PARTS, "destination"), (View(0, ZEROS.strides), destination)
    if not is_cpu:
        work, _ = _along_in_tiles(names, views, axes, vector, may_chunk=False)
        return work
    rows = x.extent * y.extent * z.extent
    walk, threads, shares = _along(run, rows, chunks, THREADS_WANTED_PER_UNIT, is_cpu)
    return _pass(walk, threads, names, views, axes, (chunks, 1, 1, 1), shares=shares)


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
    tile: tuple[int, ...] = (1, 1, 1, 1, 1, 1),
    shares: tuple[int, int, int] = (1, 1, 1),
    exceeds_caches: bool = False,
) -> Work:
    run, x, y, z, inner, outer = axes
    parameters = strides_of(names, views, axes)
    parameters["extents"] = extents_of((run, x, y, z), (*shares, int(exceeds_caches)), run.extent)
    parameters["reduced"] = (inner.extent, outer.extent, *sizes, *tile)
    return Work(walk, threads, parameters)


def _goes_across(reduced: Sequence[Axis], staying: Sequence[Axis], fewest: int) -> bool:
    """Whether the innermost reduced axis is read by ``fewest`` elements at once; else these are of so many results."""
    run, lanes = reduced[0], staying[0]
    if len(reduced) > 2:
        return True
    if run.extent < fewest or not all(step in (0, 1) for step in run.strides[:-1]):
        return False
    return lanes.extent < 8 or run.strides[0] < lanes.strides[0]


def _are_many_without_vectors(
    reduced: Sequence[Axis], staying: Sequence[Axis], views: Sequence[View], vector: int
) -> bool:
    """Whether a GPU finds each of many indices in short runs, which no vector fits, by a thread."""
    run, results = reduced[0], math.prod(axis.extent for axis in staying)
    are_many = len(reduced) == 1 and run.extent <= MOST_TERMS_ALONG and results >= FEWEST_RESULTS_ALONG
    return are_many and not is_even([run, *staying], views[:-1], vector)


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
    numbers = tunables(device.tuning)
    tuned = numbers.cached_bytes, not numbers.has_many_registers, THREADGROUPS_OF_CLUSTER if device.has_clusters else 0
    work = reduction(tuple(operands), views, extents, kept, device.family, vector, units, may_chunk, tile, *tuned)
    none = device.constant_buffer(bytes(16))
    partials = command_buffer.scratch(4 * work.partials) if work.partials else none
    buffers = [*(buffer for buffer, _ in sources), partials, destination]
    add_work(command_buffer, family, struct, f"{name}_{work.first.walk}", metal_type, buffers, work.first, parameters)
    if work.second is not None:
        buffers = [partials, none, destination]
        name = f"{merge}_{work.second.walk}"
        add_work(command_buffer, family, struct, name, metal_type, buffers, work.second, parameters)
