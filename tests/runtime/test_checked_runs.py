"""Planted defects, each found at its line, and the same kernel without the defect, where nothing is found."""

# Kernels are easier to read on lines of their own length.
# ruff: noqa: E501
from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from by_turns import by_turns

import mpsgrad as mg
from mpsgrad.runtime.findings import KernelFinding

pytestmark = pytest.mark.usefixtures("opencl_device")

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
I = "uint i [[thread_position_in_grid]]"  # noqa: E741
T = "uint t [[thread_index_in_threadgroup]]"
G = "uint g [[threadgroup_position_in_grid]]"
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup)"


@dataclass(frozen=True)
class Defect:
    """``source`` has the parts that make the defect and that put it right as ``<<wrong||right>>``; the finding is in
    the line with ``// here``. ``found`` are the names of all findings, ``says`` is part of the first message."""

    name: str
    source: str
    grid: Any
    arguments: Callable[[], tuple[Any, ...]]
    found: tuple[str, ...]
    says: str
    options: dict[str, Any] = field(default_factory=dict)
    language_version: str = "2.3"

    def check(self, part: int) -> tuple[str, tuple[KernelFinding, ...]]:
        source = HEAD + re.sub(r"<<(.*?)\|\|(.*?)>>", lambda match: match[part + 1], self.source.strip(), flags=re.DOTALL)
        library = mg.compile(source, language_version=self.language_version)
        function = library.function(library.function_names[0])
        return source, function.check(self.grid, *self.arguments(), **self.options)


def floats(*counts: int) -> Callable[[], tuple[np.ndarray, ...]]:
    """Arrays of these lengths with 1, 2, 3, ..."""
    return lambda: tuple(np.arange(1, count + 1, dtype=np.float32) for count in counts)


def with_integers(counts: tuple[int, ...], *integers: tuple[int, int]) -> Callable[[], tuple[Any, ...]]:
    return lambda: (*floats(*counts)(), *(np.full(size, value, np.uint32) for size, value in integers))


TREE = f"""
kernel void tree(device const float* x, device float* y, {I}, {T}, {G}) {{
    threadgroup float sums[64];
    sums[t] = x[i];
    <<%s||{BARRIER};>>
    for (uint s = 32; s > 0; s /= 2) {{
        if (t < s) sums[t] += sums[t + s];%s
        <<%s||{BARRIER};>>
    }}
    if (t == 0) y[g] = sums[0];%s
}}"""

DEFECTS = [
    # Out of bounds.
    Defect("one past the end", f"""
kernel void f(device const float* x, device float* y, constant uint& n, {I}) {{
    if (i <<<=||<>> n) {{
        y[i] = 2 * x[i]; // here
    }}
}}""", 65, lambda: (*floats(64, 64)(), 64), ("out-of-bounds", "out-of-bounds"), "out-of-bounds write of element 64 of 'y', which has 64 elements, by thread 64"),
    Defect("a negative index", f"""
kernel void f(device const float* x, device float* y, {I}) {{
    y[i] = x[<<int(i) - 1||max(int(i) - 1, 0)>>]; // here
}}""", 64, floats(64, 64), ("out-of-bounds",), "out-of-bounds read of element -1 of 'x', which has 64 elements, by thread 0"),
    Defect("a vector over the end", f"""
kernel void f(device const float* x, device float* y, {I}) {{
    float4 v = <<((device const float4*)x)[i]||float4(x[4 * i], x[min(4 * i + 1, 9u)], x[min(4 * i + 2, 9u)], x[min(4 * i + 3, 9u)])>>; // here
    y[i] = dot(v, v);
}}""", 3, floats(10, 3), ("out-of-bounds",), "out-of-bounds read of 16 bytes from byte 32 on of 'x', which has 40 bytes, by thread 2"),
    Defect("an unaligned vector over the end", f"""
kernel void f(device const float* x, device float* y, {I}) {{
    y[i] = dot(*reinterpret_cast<device const packed_float3*>(x + <<i||min(i, 7u)>>), float3(1)); // here
}}""", 10, floats(10, 10), ("out-of-bounds",), "out-of-bounds read of 12 bytes from byte 32 on of 'x', which has 40 bytes, by thread 8"),
    Defect("the end of a threadgroup array", f"""
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    threadgroup float part[64], other[64];
    part[t] = x[i];
    other[t] = 0;
    {BARRIER};
    y[i] = part[<<t + 1||min(t + 1, 63u)>>] + other[t]; // here
}}""", 128, floats(128, 128), ("out-of-bounds",), "out-of-bounds read of element 64 of 'part', which has 64 elements, by thread 63", {"threadgroup": 64}),
    Defect("a halo that is too small", f"""
kernel void f(device const float* x, device float* y, uint2 p [[thread_position_in_grid]], uint2 l [[thread_position_in_threadgroup]], {T}) {{
    threadgroup float tile[10][<<9||10>>];
    for (uint k = t; k < 100; k += 64) {{
        tile[k / 10][k % 10] = 1; // here
    }}
    {BARRIER};
    y[p.y * 16 + p.x] = tile[l.y][l.x] + x[p.y * 16 + p.x];
}}""", (16, 16), floats(256, 256), ("out-of-bounds",), "out-of-bounds write of element 9 of 'tile[k / 10]', which has 9 elements, by thread (5, 0)", {"threadgroup": (8, 8)}),
    Defect("the wrong stride", """
kernel void f(device const float* x, device float* y, constant uint2& size, uint2 p [[thread_position_in_grid]]) {
    y[p.y * size.x + p.x] = x[p.x * <<size.x||size.y>> + p.y]; // here
}""", (10, 6), lambda: (*floats(60, 60)(), (10, 6)), ("out-of-bounds",), "out-of-bounds read of element 60 of 'x', which has 60 elements, by thread (6, 0)"),
    Defect("stray threads", f"""
kernel void f(device float* y, constant uint& n, {I}) {{
    <<||if (i >= n) return;>>
    y[i] = 1; // here
}}""", 100, lambda: (*floats(100)(), 100), ("out-of-bounds",), "by thread 100, a stray one: the grid of 100 threads is rounded up to 128", {"threadgroup": 64, "rounded_up": True}),
    Defect("a helper's pointer", f"""
static float both(device const float* x, uint i) {{
    return x[i] + x[<<i + 1||i ^ 1>>]; // here
}}
kernel void f(device const float* x, device float* y, {I}) {{
    y[i] = both(x, i);
}}""", 64, floats(64, 64), ("out-of-bounds",), "element 64 of 'x'"),
    Defect("a function for constant expressions", f"""
constexpr float at(device const float* x, uint i) {{ return x[i]; }} // here
constexpr uint next(uint i) {{ return i + 1; }}
kernel void f(device const float* x, device float* y, {I}) {{
    constexpr uint one = next(0);
    y[i] = at(x, i + <<one||one - 1>>);
}}""", 8, floats(8, 8), ("out-of-bounds",), "out-of-bounds read of element 8 of 'x', which has 8 elements, by thread 7"),
    Defect("a lambda expression", f"""
kernel void f(device const float* x, device float* y, {I}) {{
    auto at = [&](uint k) {{ if (k > 100) return 0.0f; return x[k]; }}; // here
    auto put = [=](device float& to, float v) {{ if (v < 0) return; to = v; }};
    put(y[i], at(i<< + 1||>>));
}}""", 8, floats(8, 8), ("out-of-bounds",), "out-of-bounds read of element 8 of 'x', which has 8 elements, by thread 7", language_version="3.2"),
    Defect("a pointer that walks too far", f"""
kernel void f(device const float* x, device float* y, constant uint& n, {I}) {{
    device const float* p = x + i * n;
    float sum = 0;
    for (uint k = 0; k <<<=||<>> n; ++k) {{
        sum += *p++; // here
    }}
    y[i] = sum;
}}""", 4, lambda: (*floats(32, 4)(), 8), ("out-of-bounds",), "out-of-bounds read of element 32 of 'x', which has 32 elements, by thread 3"),
    Defect("pointer arithmetic over a neighbour", f"""
kernel void f(device const float* x, device float* y, device float* z, {I}) {{
    y[i] = *(x + i + <<1000000||0>>); // here
    z[i] = 0;
}}""", 4, floats(4, 4, 4), ("out-of-bounds",), "out-of-bounds read of element 1000000 of 'x'"),
    Defect("an array in a struct", f"""
struct Item {{ float weight[4]; uint count; }};
kernel void f(device Item* items, {I}) {{
    for (uint k = 0; k < <<5||4>>; ++k) {{
        items[i].weight[k] = 0; // here
    }}
}}""", 4, lambda: (np.zeros(4, [("weight", np.float32, 4), ("count", np.uint32)]),), ("out-of-bounds",), "out-of-bounds write of element 4 of 'items[i].weight', which has 4 elements, by thread 0"),
    Defect("an array of the thread's own", f"""
kernel void f(device const float* x, device float* y, {I}) {{
    float window[4];
    for (uint k = 0; k < 4; ++k) window[k] = x[i + k];
    y[i] = window[<<i||i % 4>>]; // here
}}""", 8, floats(11, 8), ("out-of-bounds",), "out-of-bounds read of element 4 of 'window', which has 4 elements, by thread 4"),
    Defect("a column of a matrix", f"""
kernel void f(device const float4x3* x, device float* y, {I}) {{
    float3x2 m = float3x2(float2(1), float2(2), float2(3));
    y[i] = m[i % 3].y + x[0][i<<||%4>>].z; // here
}}""", 5, floats(16, 5), ("out-of-bounds",), "out-of-bounds read of element 4 of 'x[0]', which has 4 elements, by thread 4"),
    Defect("tables of constants", f"""
constant float table[] = {{1, 2, 3}};
constant float3 tints[] = {{float3(1), float3(2, 3, 4)}};
constant array<array<float, 2>, 1> kinds = {{1, 2}};
float sum(constant float* first, uint count) {{
    float s = 0;
    while (count-- > 0) s += *first++; // here
    return s;
}}
int letter(constant char* text, uint i) {{ return text[i]; }}
kernel void f(constant float* more, device float* y, {I}) {{
    y[i] = sum(table, <<4||3>>) + tints[i % 2].y + more[i % 3] + letter("abc", i % 4) + kinds[0][i % 2];
}}""", 8, floats(3, 8), ("out-of-bounds",), "out-of-bounds read of element 3 of 'table', which has 3 elements, by thread 0"),
    Defect("a string literal", f"""
constant float least = as_type<float>(0x00800000);
struct Kind {{ int id, count; int of(int n) {{ if (n < 0) {{ return count; }} else if (n > id) {{ id = n; }} return id; }} }};
kernel void f(device float* y, {I}) {{
    constant char* text = "ab";
    Kind kind{{1, 2}};
    auto [id, count] = kind;
    y[i] = kind.of(id) + is_same_v<int, uint> * count + least + text[<<i||i % 3>>]; // here
}}""", 8, floats(8), ("out-of-bounds",), "out-of-bounds read of element 3 of '\"ab\"', which has 3 elements, by thread"),
    Defect("a reference to an element", f"""
kernel void f(device float* y, {I}) {{
    device float& mine = y[i + <<1||0>>]; // here
    mine = 1;
}}""", 8, floats(8), ("out-of-bounds",), "out-of-bounds access of element 8 of 'y'"),
    Defect("too little threadgroup memory at the launch", f"""
kernel void f(device float* y, threadgroup float* shared [[threadgroup(0)]], {I}, {T}) {{
    shared[<<t||t % 32>> ] = t % 32; // here
    y[i] = 0;
}}""", 64, floats(64), ("out-of-bounds",), "out-of-bounds write of element 32 of 'shared', which has 32 elements", {"threadgroup": 64, "threadgroup_memory": 128}),
    Defect("an atomic counter", f"""
kernel void f(device atomic_uint* counts, device const uint* keys, {I}) {{
    atomic_fetch_add_explicit(&counts[keys[i]<<||%4>>], 1, memory_order_relaxed); // here
}}""", 8, lambda: (np.zeros(4, np.uint32), np.arange(8, dtype=np.uint32)), ("out-of-bounds",), "out-of-bounds atomic update of element 4 of 'counts', which has 4 elements, by thread 4"),
    Defect("a matrix load", f"""
kernel void f(device const float* x, device float* y, {G}) {{
    simdgroup_float8x8 m;
    simdgroup_load(m, x + <<4||0>>, 8); // here
    simdgroup_store(m, y, 8);
}}""", 32, floats(64, 64), ("out-of-bounds",), "out-of-bounds read of element 64 of 'x', which has 64 elements", {"threadgroup": 32}),
    # Uninitialised memory.
    Defect("threadgroup memory that half of the threads fill", f"""
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    threadgroup float part[64];
    if (t < <<32||64>>) part[t] = x[i];
    {BARRIER};
    y[i] = part[63 - t]; // here
}}""", 64, floats(64, 64), ("uninitialised-memory",), "element 63 of 'part' is read before it has a value, by thread 0", {"threadgroup": 64}),
    Defect("threadgroup memory of the threadgroup before", f"""
kernel void f(device const float* x, device float* y, {I}, {T}, {G}) {{
    threadgroup float part[32];
    <<if (g == 0) >>||>>part[t] = x[i];
    y[i] = part[t]; // here
}}""".replace("<<if (g == 0) >>||>>", "<<if (g == 0)||>> "), 64, floats(64, 64), ("uninitialised-memory",), "by thread 32", {"threadgroup": 32}),
    Defect("an accumulator in device memory", f"""
kernel void f(device const float* x, device float* y, {I}) {{
    <<||y[i] = 0;>>
    for (uint k = 0; k < 4; ++k) y[i] += x[4 * i + k]; // here
}}""", 8, floats(32, 8), ("uninitialised-memory",), "element 0 of 'y' is read before it has a value, by thread 0", {"undefined": ["y"]}),
    Defect("a histogram that nobody clears", f"""
kernel void f(device const uint* keys, device uint* y, {I}, {T}) {{
    threadgroup atomic_uint bins[4];
    <<||if (t < 4) atomic_store_explicit(&bins[t], 0, memory_order_relaxed);
    {BARRIER};>>
    atomic_fetch_add_explicit(&bins[keys[i]], 1, memory_order_relaxed); // here
    {BARRIER};
    if (t < 4) y[t] = atomic_load_explicit(&bins[t], memory_order_relaxed);
}}""", 32, lambda: (np.arange(32, dtype=np.uint32) % 4, np.zeros(4, np.uint32)), ("uninitialised-memory",), "element 0 of 'bins' is read before it has a value, by thread 0", {"threadgroup": 32}),
    Defect("an output that is not filled", f"""
kernel void f(device const float* x, device float* y, constant uint& n, {I}) {{ // here
    if (i < n <<- 1||>>) y[i] = x[i];
}}""", 8, lambda: (*floats(8, 8)(), 8), ("unwritten-output",), "1 of 8 elements of 'y' were never written, the first is 7", {"undefined": [1]}),
    # Races.
    Defect("a barrier in a function that some threads call", """
void meet() { threadgroup_barrier(mem_flags::mem_threadgroup); } // here
template <typename T> void twice(T) { meet(); }
kernel void f(device float* out, uint t [[thread_index_in_threadgroup]]) {
    if (<<t < 10||t < 64>>) { twice(1); }
    out[t] = 1;
}""", 64, floats(64), ("divergent-barrier",), "only 10 of 64 threads of the threadgroup come to this barrier: thread 10 does not", {"threadgroup": 64}),
    Defect("a tree without a barrier", TREE % ("", " // here", "", ""), 128, floats(128, 2), ("data-race", "data-race"), "data race on element 1 of 'sums': thread 1 updates it, thread 0 reads it in this line", {"threadgroup": 64}),
    Defect("no barrier behind the loads", f"""
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    threadgroup float part[64];
    part[t] = x[i]; // here
    <<||{BARRIER};>>
    y[i] = part[63 - t];
}}""", 64, floats(64, 64), ("data-race",), "data race on element 32 of 'part': thread 32 writes it, thread 31 reads it in line 7, with no barrier between them", {"threadgroup": 64}),
    Defect("a barrier for no memory", f"""
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    threadgroup float part[64];
    part[t] = x[i];
    threadgroup_barrier(mem_flags::<<mem_none||mem_threadgroup>>);
    y[i] = part[63 - t]; // here
}}""", 64, floats(64, 64), ("data-race",), "data race on element 63 of 'part': thread 0 reads it, thread 63 writes it in line 5, and the barrier between them does not have mem_flags::mem_threadgroup", {"threadgroup": 64}),
    Defect("a barrier for the other memory", f"""
kernel void f(device float* x, device float* y, {I}, {T}) {{
    x[i] = i;
    threadgroup_barrier(mem_flags::<<mem_threadgroup||mem_device>>);
    y[i] = x[63 - i]; // here
}}""", 64, floats(64, 64), ("data-race",), "data race on element 63 of 'x': thread 0 reads it, thread 63 writes it in line 4, and the barrier between them does not have mem_flags::mem_device", {"threadgroup": 64}),
    Defect("all threads write one place", f"""
kernel void f(device float* y, {I}) {{
    y[<<0||i>>] = i; // here
}}""", 64, floats(64), ("data-race",), "data race on element 0 of 'y': thread 1 writes it, thread 0 writes it here too, with no barrier between them", {"threadgroup": 32}),
    Defect("threadgroups write one place", f"""
kernel void f(device float* y, {G}, {T}) {{
    if (t == 0) y[<<0||g>>] = g; // here
}}""", 64, floats(64), ("data-race",), "data race on element 0 of 'y': thread 32 writes it, thread 0 writes it here too, and nothing orders their threadgroups", {"threadgroup": 32}),
    Defect("in place over a neighbour", f"""
kernel void f(device float* x, device float* y, {I}) {{
    <<x||y>>[i] = x[i] + x[min(i + 1, 63u)]; // here
}}""", 64, floats(64, 64), ("data-race",), "data race on element 1 of 'x': thread 1 writes it, thread 0 reads it in this line", {"threadgroup": 64}),
    Defect("one buffer twice", f"""
kernel void f(device const float* x, device float* y, {I}) {{ // here
    y[i] = x[min(i + 1, 63u)];
}}""", 64, lambda: floats(64)() * 2, ("aliased-arguments", "data-race"), "'x' and 'y' are the same memory, and the kernel may write it", {"threadgroup": 64}),
    Defect("atomic and plain", f"""
kernel void f(device atomic_uint* count, device uint* y, {I}) {{
    atomic_fetch_add_explicit(count, 1, memory_order_relaxed); // here
    y[i] = <<*(device uint*)count||atomic_load_explicit(count, memory_order_relaxed)>>;
}}""", 32, lambda: (np.zeros(1, np.uint32), np.zeros(32, np.uint32)), ("data-race",), "data race on element 0 of 'count': thread 1 updates it atomically, thread 0 reads it in line 5", {"threadgroup": 32}),
    Defect("a histogram without atomics", f"""
kernel void f(device const uint* keys, device uint* y, {I}, {T}) {{
    threadgroup <<uint||atomic_uint>> bins[4];
    if (t < 4) <<bins[t] = 0||atomic_store_explicit(&bins[t], 0, memory_order_relaxed)>>;
    {BARRIER};
    <<bins[keys[i]] += 1||atomic_fetch_add_explicit(&bins[keys[i]], 1, memory_order_relaxed)>>; // here
    {BARRIER};
    if (t < 4) y[t] = <<bins[t]||atomic_load_explicit(&bins[t], memory_order_relaxed)>>;
}}""", 32, lambda: (np.arange(32, dtype=np.uint32) % 4, np.zeros(4, np.uint32)), ("data-race",), "data race on element 0 of 'bins': thread 4 updates it, thread 0 writes it here too", {"threadgroup": 32}),
    Defect("a counter's beginning", f"""
kernel void f(device uint* y, {I}, {T}) {{
    threadgroup atomic_uint count;
    if (t < 2) atomic_store_explicit(&count, 0, memory_order_relaxed);
    <<||{BARRIER};>>
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed); // here
    {BARRIER};
    y[i] = atomic_load_explicit(&count, memory_order_relaxed);
}}""", 32, lambda: (np.zeros(32, np.uint32),), ("data-race",), "data race on element 0 of 'count': thread 1 updates it atomically, thread 0 stores it atomically in line 5, with no barrier", {"threadgroup": 32}),
    Defect("a counter that one thread clears", f"""
kernel void f(device atomic_uint* count, device atomic_uint* done, device atomic_uint* lock, device uint* y, {I}, {T}, {G}) {{
    <<if (i == 0) atomic_store_explicit(count, 0, memory_order_relaxed);||>>
    threadgroup_barrier(mem_flags::mem_device);
    atomic_fetch_add_explicit(count, 1, memory_order_relaxed); // here
    if (t > 0) return;
    uint last = 3, is_held = 0;
    if (atomic_fetch_add_explicit(done, 1, memory_order_relaxed) == last) atomic_store_explicit(done, 0, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(lock, &is_held, 1, memory_order_relaxed, memory_order_relaxed)) is_held = 0;
    y[g] = last;
    atomic_store_explicit(lock, 0, memory_order_relaxed);
}}""", 128, lambda: (*np.zeros((3, 1), np.uint32), np.zeros(4, np.uint32)), ("data-race",), "data race on element 0 of 'count': thread 32 updates it atomically, thread 0 stores it atomically in line 4, and nothing orders their threadgroups", {"threadgroup": 32}),
    Defect("a queue that shows in the other order of threads", f"""
kernel void f(device const uint* x, device uint* y, uint2 t2 [[thread_position_in_threadgroup]], {T}) {{
    threadgroup atomic_uint count;
    threadgroup uint queue[32];
    if (t == 0) atomic_store_explicit(&count, 0, memory_order_relaxed);
    {BARRIER};
    if (x[t] % 2 == 0) queue[atomic_fetch_add_explicit(&count, 1, memory_order_relaxed)] = x[t];
    <<||{BARRIER};>>
    uint n = atomic_load_explicit(&count, memory_order_relaxed);
    y[8 * t2.y + t2.x] = t < n ? queue[n - 1 - t] : 0; // here
}}""", (8, 4), lambda: (np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)), ("data-race",), "data race on element 0 of 'queue': thread (2, 1) reads it, thread (6, 3) writes it in line 8", {"threadgroup": (8, 4)}),
    Defect("a queue of simdgroups that shows in their other order", f"""
kernel void f(device const uint* x, device uint* y, {T}, uint g [[simdgroup_index_in_threadgroup]], uint l [[thread_index_in_simdgroup]]) {{
    threadgroup atomic_uint count;
    threadgroup uint queue[4];
    if (t == 0) atomic_store_explicit(&count, 0, memory_order_relaxed);
    {BARRIER};
    uint sum = simd_sum(x[t]);
    if (l == 0) queue[atomic_fetch_add_explicit(&count, 1, memory_order_relaxed)] = sum + g;
    <<||{BARRIER};>>
    uint n = atomic_load_explicit(&count, memory_order_relaxed);
    if (l == 0) y[g] = g < n ? queue[g] : 0; // here
}}""", (32, 4), lambda: (np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)), ("data-race",), "data race on element 1 of 'queue': thread (0, 1) reads it, thread (0, 2) writes it in line 9", {"threadgroup": (32, 4)}),
    Defect("what is stored in part", f"""
struct Pair {{ float a, b; }};
Pair only(float v) {{ Pair p; p.a = v; return p; }}
kernel void f(device const float* x, device Pair* y, device float* z, {I}, {T}) {{
    threadgroup Pair shared[32];
    shared[t] = only(x[i]);
    y[i] = only(x[i]);
    <<||shared[t].b = y[i].b = 2;>>
    {BARRIER};
    z[i] = shared[t ^ 1].a + shared[t ^ 1].b; // here
    z[i] += y[i].b;
}}""", 32, lambda: (*floats(32)(), np.zeros((32, 2), np.float32), *floats(32)()), ("uninitialised-memory", "uninitialised-memory"), "element 1 of 'shared' is read before it has a value", {"threadgroup": 32, "undefined": ["y"]}),
    Defect("a counter that is cleared too late", f"""
kernel void f(device uint* y, {T}) {{
    threadgroup atomic_uint count;
    if (t == 0) atomic_store_explicit(&count, 0, memory_order_relaxed);
    {BARRIER};
    for (uint k = 0; k < 3; ++k) {{
        atomic_fetch_add_explicit(&count, t > k, memory_order_relaxed); // here
        {BARRIER};
        if (t == 0) {{ y[k] = atomic_load_explicit(&count, memory_order_relaxed); atomic_store_explicit(&count, 0, memory_order_relaxed); }}
        <<||{BARRIER};>>
    }}
}}""", 32, lambda: (np.zeros(3, np.uint32),), ("data-race",), "data race on element 0 of 'count': thread 1 updates it atomically, thread 0 stores it atomically in line 10, with no barrier between them", {"threadgroup": 32}),
    Defect("one thread's result", f"""
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    threadgroup float scale;
    if (t == 0) scale = x[0];
    <<||{BARRIER};>>
    y[i] = scale * x[i]; // here
}}""", 64, floats(64, 64), ("data-race",), "data race on element 0 of 'scale': thread 1 reads it, thread 0 writes it in line 5", {"threadgroup": 64}),
    Defect("a scan with one barrier of two", f"""
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    threadgroup float part[64];
    part[t] = x[i];
    for (uint d = 1; d < 64; d *= 2) {{
        {BARRIER};
        float sum = part[t] + (t >= d ? part[t - d] : 0); // here
        <<||{BARRIER};>>
        part[t] = sum;
    }}
    y[i] = part[t];
}}""", 64, floats(64, 64), ("data-race",), "data race on element", {"threadgroup": 64}),
    Defect("a simdgroup's barrier for two simdgroups", f"""
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    threadgroup float part[64];
    part[t] = x[i]; // here
    simdgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = part[t ^ <<32||1>>];
}}""", 64, floats(64, 64), ("data-race",), "data race on element 32 of 'part': thread 32 writes it, thread 0 reads it in line 7", {"threadgroup": 64}),
    # Barriers and simdgroups.
    Defect("a barrier for some threads", f"""
static float swapped(threadgroup float* s, uint t) {{
    s[t] = t;
    {BARRIER}; // here
    return s[t ^ 1];
}}
kernel void f(device float* y, {I}, {T}) {{
    threadgroup float s[64];
    y[i] = <<t >= 16||i < 1000>> ? swapped(s, t) : 1;
}}""", 64, floats(64), ("divergent-barrier",), "only 48 of 64 threads of the threadgroup come to this barrier: thread 0 does not", {"threadgroup": 64}),
    Defect("barriers in both branches", f"""
kernel void f(device float* y, {I}, {T}) {{
    if (<<t % 2 == 0||i < 1000>>) {{
        {BARRIER}; // here
    }} else {{
        {BARRIER};
    }}
    y[i] = 1;
}}""", 64, floats(64), ("divergent-barrier",), "only 32 of 64 threads of the threadgroup come to this barrier: thread 1 does not", {"threadgroup": 64}),
    Defect("a barrier in a loop of different lengths", f"""
kernel void f(device float* y, {I}, {T}) {{
    for (uint k = 0; k < <<t||63u>> / 16; ++k) {{
        {BARRIER}; // here
    }}
    y[i] = 1;
}}""", 64, floats(64), ("divergent-barrier",), "only 48 of 64 threads of the threadgroup come to this barrier: thread 0 does not", {"threadgroup": 64}),
    Defect("a return before a barrier", f"""
kernel void f(device const float* x, device float* y, constant uint& n, {I}, {T}) {{
    threadgroup float part[64];
    <<if (i >= n) return;||part[t] = 0;>>
    <<||if (i < n) >> part[t] = x[i];
    {BARRIER}; // here
    if (i < n) y[i] = part[t];
}}""", 128, lambda: (*floats(100, 100)(), 100), ("divergent-barrier",), "only 36 of 64 threads of the threadgroup come to this barrier: thread 100 returned in line 5", {"threadgroup": 64}),
    Defect("a barrier in a helper", f"""
static void wait(uint t) {{
    <<if (t < 63)||>> {BARRIER}; // here
}}
kernel void f(device float* y, {I}, {T}) {{
    wait(t);
    y[i] = 1;
}}""", 64, floats(64), ("divergent-barrier",), "only 63 of 64 threads of the threadgroup come to this barrier: thread 63 does not", {"threadgroup": 64}),
    Defect("a shuffle from a lane that is not there", f"""
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    float v = x[i];
    <<if (t < 16)||>> v += simd_shuffle_xor(v, 16); // here
    y[i] = simd_sum(v);
}}""", 64, floats(64, 64), ("inactive-lane",), "only 16 of 32 threads of the simdgroup call 'simd_shuffle_xor' here: thread 16, which thread 0 needs, does not", {"threadgroup": 64}),
    Defect("a shuffle beyond the threadgroup", f"""
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    y[i] = simd_shuffle<<_down||_xor>>(x[i], 1); // here
}}""", 48, floats(48, 48), ("inactive-lane",), "only 16 of 16 threads of the simdgroup call 'simd_shuffle_down' here: thread 47 reads from one that does not exist", {"threadgroup": 48}),
    Defect("a matrix that half of the lanes load", f"""
kernel void f(device const float* x, device float* y, {T}) {{
    simdgroup_float8x8 m = simdgroup_float8x8(0);
    if (<<t < 16||x[0] > 0>>) {{
        simdgroup_load(m, x, 8); // here
    }}
    simdgroup_store(m, y, 8);
}}""", 32, floats(64, 64), ("inactive-lane",), "only 16 of 32 threads of the simdgroup call 'simdgroup_load' here", {"threadgroup": 32}),
    # Arithmetic and loops.
    Defect("a division by zero", f"""
kernel void f(device const uint* x, device uint* y, constant uint& n, {I}) {{
    y[i] = x[i] / <<x[i] % n||(x[i] % n + 1)>>; // here
}}""", 8, lambda: (np.arange(8, dtype=np.uint32), np.zeros(8, np.uint32), 4), ("division-by-zero",), "integer division by zero, by thread 0"),
    Defect("a loop that waits", f"""
kernel void f(device atomic_uint* ready, device uint* y, {I}) {{
    if (i == 63) atomic_store_explicit(ready, 1, memory_order_relaxed);
    <<while (atomic_load_explicit(ready, memory_order_relaxed) == 0) {{}}||>> // here
    y[i] = 1;
}}""", 64, lambda: (np.zeros(1, np.uint32), np.zeros(64, np.uint32)), ("endless-loop",), "this loop had not ended after 10000000 steps, by thread 0; the run was stopped", {"threadgroup": 64}),
]  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_is_found_at_its_line(defect: Defect) -> None:
    source, found = defect.check(0)
    assert tuple(each.name for each in found) == defect.found, "\n".join(map(str, found))
    line = 1 + source[: source.index("// here")].count("\n")
    messages = [each.message for each in found if each.line == line]
    assert any(defect.says in message for message in messages), "\n".join(map(str, found))


@pytest.mark.parametrize(
    "defect", by_turns((each for each in DEFECTS if each.name != "one buffer twice"), of=2), ids=lambda defect: defect.name
)
def test_nothing_is_found_without_the_defect(defect: Defect) -> None:
    found = defect.check(1)[1]
    assert found == (), "\n".join(map(str, found))


def test_every_way_to_declare_is_understood() -> None:
    source = f"""{HEAD}
enum class Event : uint {{ none, Hit = 2 }};
struct Hit {{
    long int depth;
    constexpr explicit Hit(long d) : depth(d) {{}}
    Hit() = default;
    Hit twice() {{ thread Hit& self = static_cast<thread Hit&>(*this); Hit t = *this; t.depth += self.depth; return t; }}
}};
template <typename T, int N> class Held {{ public: T v[N]; }};
template <template <typename, int> class V, typename T> T head_of(V<T, 2> held) {{ return held.v[0]; }}
template <typename P> struct Rows {{ P p; auto at(int k) const -> decltype(p[0]) {{ return p[4 * k + 3]; }} }};
kernel void f(device int* x, device long* y, {I}) {{
    Hit best;
    unsigned long int first = 1; long int second = 2; short int third = 3; unsigned fourth = i;
    device int (*rows)[4] = (device int (*)[4])(x + 4 * i);
    decltype(rows[0][0] + 1) fifth = Rows<device int*>{{x}}.at(0);
    if (({{ int (a) = 2; a + 1; }}) > 4) first = head_of(Held<int, 2>{{{{0, 1}}}});
    best.depth = first + second + third + rows[fourth][3] + fifth;
    y[i] = best.twice().depth + long(uint(Event::Hit));
}}"""
    found = mg.compile(source).function("f").check(2, np.arange(8, dtype=np.int32), np.zeros(2, np.int64))
    assert [(each.name, each.line) for each in found] == [("out-of-bounds", 20)], "\n".join(map(str, found))


def test_what_functions_refer_to_is_checked_where_it_is_read() -> None:
    source = f"""{HEAD}
struct Cell {{ float hot, cold; }};
template <int N> struct Tile {{
    Cell cells[N];
    threadgroup Cell& operator()(int k) threadgroup {{ return cells[k]; }}
    threadgroup Cell& at(int k) threadgroup {{ return cells[k]; }}
    Cell operator()(int k) const threadgroup {{ return cells[k]; }}
}};
threadgroup float& hot_of(threadgroup Cell* p, int k) {{ return p[k].hot; }}
float hot_of(Cell cell) {{ return cell.hot; }}
kernel void f(device float* y, {I}) {{
    threadgroup Tile<32> tile;
    tile.at(i).hot = 1;
    y[i] = tile.at(i).hot;
    y[i] += tile(31 - i).hot;
    threadgroup Cell others[32];
    others[i].hot = 1;
    y[i] += hot_of(others, i ^ 2) + hot_of(tile(i));
}}"""
    found = mg.compile(source).function("f").check(32, np.zeros(32, np.float32), threadgroup=32)
    text = "\n".join(map(str, found))
    assert {each.name for each in found} == {"data-race"}, text
    assert all(f":{line}:" in text or f" line {line}," in text for line in (15, 17, 19, 20)), text


def test_several_threads_check_one_function() -> None:
    source = f"{HEAD}kernel void f(device const float* x, device float* y, {I}) {{ y[i] = x[i] + x[i ^ 1]; }}"
    function = mg.compile(source).function("f")
    with ThreadPoolExecutor(4) as pool:
        checks = [pool.submit(function.check, 2048, *floats(2048, 2048)(), threadgroup=32) for _ in range(8)]
    assert [check.result() for check in checks] == [()] * 8


def test_arguments_of_members_that_are_templates_are_looked_at() -> None:
    source = f"""{HEAD}
struct Scale {{ float by; template <class To, class From> To of(From v) const {{ return To(v * by); }} }};
kernel void f(device const float* x, device float* y, {I}) {{
    Scale twice = {{2}};
    y[i] = twice.of<float, decltype(twice.by)>(x[i + 1]);
}}"""
    found = mg.compile(source).function("f").check(4, *floats(4, 4)())
    assert [(each.name, each.line, each.message.split(",")[0]) for each in found] == [
        ("out-of-bounds", 7, "out-of-bounds read of element 4 of 'x'")
    ]


def test_members_of_types_and_values_of_templates_are_understood() -> None:
    source = f"""{HEAD}
template <typename T> constexpr constant uint in_a_word = sizeof(uint) / sizeof(T);
template <typename T> union Word {{ uint whole; T parts[in_a_word<T>]; }};
struct Four {{ static constant constexpr uint count = 4; static uint of(uint k) {{ return k % count; }} }};
template <typename T> uint part_of(device const uint* x, uint at) {{
    Word<T> word; word.whole = x[at / in_a_word<T>]; at = at % in_a_word<T>;
    return in_a_word<T> > 1 ? word.parts[at] : word.whole;
}}
kernel void f(device const uint* x, device uint* y, {I}) {{
    Four four;
    constexpr uint n = decltype(four)::count;
    uint sum = 0;
    for (uint k = 0; k < decltype(four)::count; ++k) sum += part_of<ushort>(x, k + i);
    y[i] = sum + n + decltype(four)::of(x[i + 1]);
}}"""
    x, y = np.arange(1, 5, dtype=np.uint32), np.zeros(4, np.uint32)
    library = mg.compile(source)
    found = library.function("f").check(4, x, y)
    assert [(each.name, each.line) for each in found] == [("out-of-bounds", 16)], "\n".join(map(str, found))
    library.function("f")(3, x, y)
    assert y.tolist() == [1 + 2 + 4 + 2, 2 + 3 + 4 + 3, 2 + 3 + 4 + 0, 0]


def test_bytes_of_copied_structs_that_look_as_if_they_had_no_value() -> None:
    """Vectors of bytes carry floats to threadgroup memory: in some of these other bytes look so in each of two runs."""
    source = f"""{HEAD}
struct alignas(16) Bytes {{ uchar v[16]; }};
static float sum_of(threadgroup const float* s, uint t) {{
    float sum = 0;
    for (uint k = t; k < 1024; k += 64) sum += s[k];
    return sum;
}}
kernel void f(device const float* x, device float* y, constant uint& n, {I}, {T}) {{
    threadgroup float a[1024], b[1024];
    for (uint k = 4 * t; k < 1024; k += 256) *(threadgroup Bytes*)&a[k] = *(device const Bytes*)&x[1024 * (i / 64) + k];
    for (uint k = 4 * t; k < n; k += 256) *(threadgroup Bytes*)&b[k] = *(device const Bytes*)&x[1024 * (i / 64) + k];
    {BARRIER};
    y[i] = sum_of(a, t) + sum_of(b, t);
}}"""
    x = np.random.default_rng(1).integers(0, 1 << 30, 64 * 1024, np.uint32).view(np.float32)
    function = mg.compile(source).function("f")
    check = partial(function.check, 4096, x, np.zeros(4096, np.float32), threadgroup=64)
    assert check(np.uint32(1024)) == ()
    (found,) = check(np.uint32(1020))
    assert found.name == "uninitialised-memory"
    assert "element 1020 of 'b'" in found.message
