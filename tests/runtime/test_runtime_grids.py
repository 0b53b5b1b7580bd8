"""Grids of 1 to 3 dimensions: every thread of the grid runs once, no other does, and its positions are Metal's."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import mpsgrad as mg

POSITIONS = """
#include <metal_stdlib>
using namespace metal;

struct Record {
    uint runs;
    packed_uint3 grid, position, threads, group, groups, extents, dispatched;
    uint index, lane, simdgroup, simdgroups, lanes_before, active;
};

kernel void plain(device Record* records, uint3 g [[thread_position_in_grid]], uint3 n [[threads_per_grid]],
                  uint3 t [[thread_position_in_threadgroup]], uint3 group [[threadgroup_position_in_grid]],
                  uint3 groups [[threadgroups_per_grid]], uint3 extents [[threads_per_threadgroup]],
                  uint3 dispatched [[dispatch_threads_per_threadgroup]], uint i [[thread_index_in_threadgroup]]) {
    device Record& r = records[(g.z * n.y + g.y) * n.x + g.x];
    r.runs += 1; r.grid = g; r.threads = n; r.position = t; r.group = group; r.groups = groups; r.extents = extents;
    r.dispatched = dispatched; r.index = i;
}

kernel void simdgroups(device Record* records, uint3 g [[thread_position_in_grid]], uint3 n [[threads_per_grid]],
                       uint3 t [[thread_position_in_threadgroup]], uint3 group [[threadgroup_position_in_grid]],
                       uint3 groups [[threadgroups_per_grid]], uint3 extents [[threads_per_threadgroup]],
                       uint3 dispatched [[dispatch_threads_per_threadgroup]],
                       uint i [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint count [[simdgroups_per_threadgroup]]) {
    threadgroup uint sums[32];
    device Record& r = records[(g.z * n.y + g.y) * n.x + g.x];
    r.runs += 1; r.grid = g; r.threads = n; r.position = t; r.group = group; r.groups = groups; r.extents = extents;
    r.dispatched = dispatched; r.index = i;
    r.lane = lane; r.simdgroup = simdgroup; r.simdgroups = count; r.lanes_before = simd_prefix_exclusive_sum(1u);
    uint sum = simd_sum(1u);
    if (lane == 0) sums[simdgroup] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    r.active = 0;
    for (uint s = 0; s < count; ++s) r.active += sums[s];
}

kernel void row(device uint* runs, uint i [[thread_position_in_grid]], uint n [[threads_per_grid]]) {
    runs[i] += n;
}

[[max_total_threads_per_threadgroup(64)]]
kernel void small(device uint* groups, uint i [[thread_position_in_grid]], uint n [[threads_per_threadgroup]]) {
    groups[i] = n;
}

kernel void slow(device float* x, uint i [[thread_position_in_grid]]) {
    float value = x[i];
    for (int k = 0; k < 400000; ++k) value = sin(value + 1.0f);
    x[i] = value;
}
"""

THREE = ("u4", 3)
FIELDS = "grid position threads group groups extents dispatched".split()
NUMBERS = "index lane simdgroup simdgroups lanes_before active".split()
RECORD = np.dtype([("runs", "u4"), *((name, *THREE) for name in FIELDS), *((name, "u4") for name in NUMBERS)])


@pytest.fixture(scope="module")
def library() -> mg.KernelLibrary:
    return mg.compile(POSITIONS)


def expected_records(grid: tuple[int, ...], threadgroup: tuple[int, ...], *, simdgroups: bool) -> np.ndarray:
    """What each thread of ``grid`` finds, worked out from Metal's specification."""
    n, t = ((*extents, 1, 1)[:3] for extents in (grid, threadgroup))
    records = np.zeros((n[2], n[1], n[0]), RECORD)
    z, y, x = np.indices((n[2], n[1], n[0]))
    position = np.stack([x, y, z], axis=-1)
    records["runs"] = 1
    records["grid"], records["threads"], records["dispatched"] = position, n, t
    records["position"], records["group"] = position % t, position // t
    records["groups"] = [-(-a // b) for a, b in zip(n, t, strict=True)]
    extents = np.minimum(np.array(t), np.array(n) - position // t * t)
    records["extents"] = extents
    local = position % t
    index = local[..., 0] + extents[..., 0] * (local[..., 1] + extents[..., 1] * local[..., 2])
    records["index"] = index
    if simdgroups:
        size = extents.prod(axis=-1)
        records["lane"] = records["lanes_before"] = index % 32
        records["simdgroup"], records["simdgroups"], records["active"] = index // 32, -(-size // 32), size
    return records


def run(library: mg.KernelLibrary, kernel: str, grid: Any, threadgroup: Any, **options: Any) -> np.ndarray:
    extents = (*grid, 1, 1)[:3]
    records = np.zeros(extents[::-1], RECORD)
    library.function(kernel)(grid, records, threadgroup=threadgroup, **options)
    return records


@st.composite
def grids(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A grid and a threadgroup of up to 1024 threads, of as many dimensions or not."""
    grid = tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
    threadgroup = draw(
        st.lists(st.integers(1, 70), min_size=1, max_size=3).filter(lambda sizes: math.prod(sizes) <= 1024)
    )
    return grid, tuple(threadgroup)


@pytest.mark.parametrize("kernel", ["plain", "simdgroups"])
@given(shapes=grids())
@example(shapes=((9, 7, 5), (4, 3, 2)))
@example(shapes=((70, 5, 3), (32, 4, 8)))
@example(shapes=((100,), (8, 8)))
def test_every_thread_runs_once_and_knows_its_place(library: mg.KernelLibrary, kernel: str, shapes: Any) -> None:
    grid, threadgroup = shapes
    found = run(library, kernel, grid, threadgroup)
    expected = expected_records(grid, threadgroup, simdgroups=kernel == "simdgroups")
    for name in RECORD.names or ():
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.parametrize("kernel", ["plain", "simdgroups"])
def test_grids_of_whole_threadgroups(library: mg.KernelLibrary, kernel: str) -> None:
    records = np.zeros((1, 2 * 4, 3 * 12), RECORD)
    library.function(kernel)((3, 2), records, threadgroup=(12, 4), grid_of_threadgroups=True)
    expected = expected_records((36, 8), (12, 4), simdgroups=kernel == "simdgroups")
    np.testing.assert_array_equal(records, expected)


def test_the_default_threadgroup(library: mg.KernelLibrary) -> None:
    groups = np.zeros(70, np.uint32)
    library.function("small")(70, groups)
    assert groups.tolist() == [64] * 64 + [6] * 6
    groups = np.zeros(192, np.uint32)
    library.function("small")(3, groups, grid_of_threadgroups=True)
    assert groups.tolist() == [64] * 192
    found = run(library, "plain", (100, 50), None)
    assert found["dispatched"][0, 0, 0].tolist() == [32, 8, 1]
    assert (found["runs"] == 1).all()


def test_a_large_grid(library: mg.KernelLibrary) -> None:
    runs = np.zeros(3_000_001, np.uint32)
    library.function("row")(3_000_000, runs)
    assert (runs[:-1] == 3_000_000).all()
    assert runs[-1] == 0


BAD_GRIDS = [
    ((0, {}), mg.GeometryError, "grid is 0; every extent has to be at least 1"),
    ((-3, {}), mg.GeometryError, "grid is -3"),
    (((4, 0), {}), mg.GeometryError, r"grid is \(4, 0\)"),
    (((1, 1, 1, 1), {}), mg.GeometryError, "1 to 3 dimensions"),
    (((), {}), mg.GeometryError, "1 to 3 dimensions"),
    ((2.5, {}), mg.FormatError, "grid is 2.5; it has to be an integer"),
    (("4", {}), mg.FormatError, "grid is '4'"),
    (((2**16, 2**16, 2**16), {}), mg.GeometryError, "threads in all; the device's limit is 1099511627776"),
    ((2**31, {}), mg.GeometryError, "2147483648 threads along an axis; the device's limit is 2147483647"),
    ((2**24, {"threadgroup": 128, "grid_of_threadgroups": True}), mg.GeometryError, "the device's limit"),
    ((4, {"threadgroup": 65}), mg.GeometryError, "65 threads, which is above the kernel's max_total_threads"),
    ((4, {"threadgroup": (16, 8)}), mg.GeometryError, r"threadgroup \(16, 8\) has 128 threads"),
    ((4, {"threadgroup": 0}), mg.GeometryError, "threadgroup is 0"),
    ((4, {"threadgroup_memory": 64}), mg.FormatError, "threadgroup_memory has 1 lengths but"),
]


@pytest.mark.parametrize(("call", "error", "words"), BAD_GRIDS)
def test_bad_grids_are_refused(library: mg.KernelLibrary, call: Any, error: type[Exception], words: str) -> None:
    groups = np.zeros(4, np.uint32)
    grid, options = call
    kernel = "row" if options.get("grid_of_threadgroups") else "small"
    with pytest.raises(error, match=words):
        library.function(kernel)(grid, groups, **options)
    assert not groups.any()


def test_a_threadgroup_above_the_devices_limit(library: mg.KernelLibrary) -> None:
    with pytest.raises(mg.GeometryError, match="1025 threads, which is above the device's limit of 1024"):
        library.function("row")(4, np.zeros(4, np.uint32), threadgroup=1025)


def test_other_threads_run_while_a_kernel_does(library: mg.KernelLibrary) -> None:
    ended = threading.Event()
    ticks: list[float] = []
    x = np.zeros(1 << 11, np.float32)
    function = library.function("slow")

    def tick() -> None:
        while not ended.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    started = time.perf_counter()
    run = function(x.size, x)
    stopped = time.perf_counter()
    ended.set()
    ticker.join()
    assert run.gpu_time is not None
    assert 0 < run.gpu_time < stopped - started
    middle = started + 0.2 * run.gpu_time, started + 0.8 * run.gpu_time
    assert sum(middle[0] < at < middle[1] for at in ticks) > 1, f"the kernel took {run.gpu_time} s"
