"""Atomic objects of each type: as what templates deduce, in structs and arrays, in device and threadgroup memory."""

from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.msl import translate

ORDER = "memory_order_relaxed"
HEAD = f"""
template <typename T> void raise(device atomic<T>* p, T v) {{
    T old = atomic_load_explicit(p, {ORDER});
    while (old < v && !atomic_compare_exchange_weak_explicit(p, &old, v, {ORDER}, {ORDER})) {{}}
}}
template <typename T> void raise(threadgroup metal::atomic<T>& p, T v) {{
    T old = atomic_load_explicit(&p, {ORDER});
    while (old < v && !atomic_compare_exchange_weak_explicit(&p, &old, v, {ORDER}, {ORDER})) {{}}
}}
template <typename A, typename T> void fold(device ::metal::atomic<A>* data, long offset, T value, T (*op)(T, T)) {{
    auto place = data + offset;
    auto old = metal::atomic_load_explicit(place, metal::{ORDER});
    while (!atomic_compare_exchange_weak_explicit(place, &old, op(old, value), metal::{ORDER}, metal::{ORDER})) {{}}
}}
template <typename T> struct Kind {{ static constant constexpr int number = 0; }};
template <> struct Kind<atomic<uint>> {{ static constant constexpr int number = 1; }};
template <> struct Kind<atomic<float>> {{ static constant constexpr int number = 2; }};
template <> struct Kind<uint> {{ static constant constexpr int number = 3; }};
template <> struct Kind<atomic_int> {{ static constant constexpr int number = 4; }};
int which(device atomic_uint*) {{ return 10; }}
int which(device uint*) {{ return 20; }}
int which(device atomic_float*) {{ return 30; }}
"""


def run(source: str, *arrays: np.ndarray, threads: int = 64, version: str = "3.0") -> tuple[np.ndarray, ...]:
    source = f"{LIBRARY}{HEAD}{source}"
    definitions = {"__METAL_VERSION__": version.replace(".", "") + "0"}
    compile_for_cuda(translate(source, "cuda", definitions=definitions, launch="box").source, "atomics.metal")
    given = tuple(each.copy() for each in arrays)
    function = mg.compile(source, language_version=version).function("k")
    function(threads, *given)
    if mg.default_device().family == "cpu":
        assert not function.check(threads, *arrays)
    return given


@pytest.mark.parametrize("name", ["int", "uint", "float"])
def test_templates_deduce_the_type_of_atomic_objects(name: str) -> None:
    source = f"""
    template <typename T> T larger(T a, T b) {{ return a > b ? a : b; }}
    kernel void k(device atomic<{name}>* o, device const {name}* x, uint i [[thread_position_in_grid]],
                  uint t [[thread_index_in_threadgroup]]) {{
        threadgroup atomic<{name}> most[2];
        if (t < 2) atomic_store_explicit(&most[t], {name}(0), {ORDER});
        threadgroup_barrier(mem_flags::mem_threadgroup);
        raise(o, x[i]);
        raise(most[1], x[i]);
        fold(o, 1, x[i], larger<{name}>);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (t == 0) raise<{name}>(o + 2, atomic_load_explicit(most + 1, {ORDER}));
    }}"""
    dtype = np.dtype({"int": np.int32, "uint": np.uint32, "float": np.float32}[name])
    x = np.random.default_rng(1).permutation(64).astype(dtype)
    o, _ = run(source, np.zeros(3, dtype), x)
    assert o.tolist() == [63, 63, 63]


def test_atomic_objects_in_structs_and_arrays() -> None:
    source = f"""
    struct Bin {{ uint first; atomic<uint> count; atomic<float> total; atomic_int most[2]; }};
    void put(device Bin& bin, float v, int i) {{
        device atomic<float>& total = bin.total;
        atomic_fetch_add_explicit(&bin.count, 1, {ORDER});
        atomic_fetch_add_explicit(&total, v, {ORDER});
        atomic_fetch_max_explicit(&bin.most[i & 1], i, {ORDER});
        device atomic_int* all = bin.most;
        atomic_fetch_min_explicit(all + 1, 40, {ORDER});
    }}
    kernel void k(device Bin* bins, device const float* x, uint i [[thread_position_in_grid]]) {{
        put(bins[i % 4], x[i], int(i));
    }}"""
    kind = np.dtype([("first", "u4"), ("count", "u4"), ("total", "f4"), ("most", "i4", 2)])
    x = np.random.default_rng(2).integers(-50, 50, 64).astype(np.float32)
    bins, _ = run(source, np.zeros(4, kind), x)
    assert bins["count"].tolist() == [16] * 4
    np.testing.assert_array_equal(bins["total"], x.reshape(16, 4).sum(0))
    assert bins["most"][:, 0].tolist() == [60, 0, 62, 0]
    assert all(each in (40, 61, 63) for each in bins["most"][1::2, 1].tolist())


def test_atomic_types_differ_from_each_other_and_from_their_values() -> None:
    source = f"""
    kernel void k(device int* o, device atomic_uint* a, device uint* b, device atomic<float>* c) {{
        o[0] = Kind<atomic_uint>::number;
        o[1] = Kind<atomic_float>::number;
        o[2] = Kind<uint>::number;
        o[3] = Kind<atomic<int>>::number;
        o[4] = which(a) + which(b) + which(c);
        o[5] = is_same_v<atomic_int, atomic<int>> + sizeof(atomic<float>) + alignof(atomic_ulong);
        threadgroup atomic<bool> seen;
        atomic_store_explicit(&seen, true, {ORDER});
        bool expected = false;
        o[6] = atomic_compare_exchange_weak_explicit(&seen, &expected, false, {ORDER}, {ORDER});
        o[6] = o[6] * 10 + expected;
        o[6] = o[6] * 10 + atomic_exchange_explicit(&seen, false, {ORDER});
        o[6] = o[6] * 10 + atomic_load_explicit(&seen, {ORDER}) + sizeof(atomic_bool) * 1000;
        device float* values = (device float*)c;
        device atomic_float* again = reinterpret_cast<device atomic_float*>(values + 1);
        atomic_fetch_sub_explicit(again, 1, {ORDER});
    }}"""
    c = np.array([1, 5], np.float32)
    o, *_, c = run(source, np.zeros(7, np.int32), np.zeros(1, np.uint32), np.zeros(1, np.uint32), c, threads=1)
    assert o.tolist() == [1, 2, 3, 4, 60, 1 + 4 + 8, 4110]
    assert c.tolist() == [1, 4]


def test_flags_take_four_bytes() -> None:
    source = f"""
    kernel void k(device atomic_bool* o, device const int* x, uint i [[thread_position_in_grid]]) {{
        if (x[i] > 5) atomic_store_explicit(&o[i % 3], true, {ORDER});
    }}"""
    o, _ = run(source, np.zeros(3, np.uint32), np.array([1, 9, 2, 3, 2, 9], np.int32), threads=6)
    assert o.tolist() == [0, 1, 1]


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="NVIDIA's compiler takes some of them")
@pytest.mark.parametrize(
    "text",
    [
        f"void f(device atomic_float* a) {{ atomic_fetch_max_explicit(a, 1.0f, {ORDER}); }}",
        f"void f(threadgroup atomic<float>* a) {{ atomic_fetch_add_explicit(a, 1.0f, {ORDER}); }}",
        f"void f(device atomic_bool* a) {{ atomic_fetch_or_explicit(a, true, {ORDER}); }}",
    ],
)
def test_what_an_atomic_type_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(mg.ShaderError):
        mg.compile(f"{LIBRARY}{text} kernel void k(device float* o) {{ o[0] = 0; }}", language_version="3.0")
