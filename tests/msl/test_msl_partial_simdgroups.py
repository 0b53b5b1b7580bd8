"""Functions of simdgroups, each alone in its kernel, in threadgroups whose last simdgroup is not whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import mpsgrad as mg

Values = np.ndarray


def _reduced(ufunc: np.ufunc) -> Callable[[Values], Values]:
    return lambda v: np.full(v.size, ufunc.reduce(v))


def _exclusive(ufunc: np.ufunc) -> Callable[[Values], Values]:
    return lambda v: np.concatenate([[ufunc.identity], ufunc.accumulate(v)[:-1]])


FUNCTIONS: dict[str, tuple[str, Callable[[Values], Values]]] = {
    "sum": ("simd_sum(v)", _reduced(np.add)),
    "product": ("simd_product(v)", _reduced(np.multiply)),
    "minimum": ("simd_min(v)", _reduced(np.minimum)),
    "maximum": ("simd_max(v)", _reduced(np.maximum)),
    "bits_of_all": ("simd_and(v)", _reduced(np.bitwise_and)),
    "bits_of_any": ("simd_or(v)", _reduced(np.bitwise_or)),
    "parities": ("simd_xor(v)", _reduced(np.bitwise_xor)),
    "sums": ("simd_prefix_inclusive_sum(v)", np.cumsum),
    "sums_before": ("simd_prefix_exclusive_sum(v)", _exclusive(np.add)),
    "products": ("simd_prefix_inclusive_product(v)", np.cumprod),
    "products_before": ("simd_prefix_exclusive_product(v)", _exclusive(np.multiply)),
    "of_first": ("simd_broadcast_first(v)", lambda v: np.full(v.size, v[0])),
    "of_third": ("simd_broadcast(v, 2)", lambda v: np.full(v.size, v[2])),
    "is_first": ("int(simd_is_first())", lambda v: np.arange(v.size) == 0),
    "is_any": ("int(simd_any(v == 3))", lambda v: np.full(v.size, (v == 3).any())),
    "is_all": ("int(simd_all(v < 3))", lambda v: np.full(v.size, (v < 3).all())),
    "neighbours": ("simd_shuffle_xor(v, 1)", lambda v: v.reshape(-1, 2)[:, ::-1].reshape(-1)),
    "product_of_four": ("quad_product(v)", lambda v: np.repeat(v.reshape(-1, 4).prod(1), 4)),
    "of_first_of_four": ("quad_broadcast_first(v)", lambda v: np.repeat(v[::4], 4)),
}
ENDS = {
    "": "y[i] = {};",
    "_behind_barrier": (
        "threadgroup int part[64]; part[t] = v; threadgroup_barrier(mem_flags::mem_threadgroup);"
        " int w = {}; y[i] = part[t] == v ? w : -1;"
    ),
}


@pytest.fixture(scope="module")
def library() -> mg.KernelLibrary:
    source = "#include <metal_stdlib>\nusing namespace metal;\n"
    for name, (expression, _) in FUNCTIONS.items():
        for suffix, end in ENDS.items():
            source += (
                f"kernel void {name}{suffix}(device const int* x, device int* y, uint i [[thread_position_in_grid]],\n"
                f"    uint t [[thread_index_in_threadgroup]]) {{ int v = x[i]; {end.format(expression)} }}\n"
            )
    return mg.compile(source)


@pytest.mark.parametrize("suffix", ENDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_only_threads_that_exist_count(library: mg.KernelLibrary, name: str, suffix: str) -> None:
    expected = FUNCTIONS[name][1]
    function = library.function(name + suffix)
    x = np.random.default_rng(0).choice([1, 1, 1, 2, 3], 192).astype(np.int32)
    for threadgroup in (64, 48, 24):
        y = np.zeros_like(x)
        function(x.size, x, y, threadgroup=threadgroup)
        for threads, found in zip(x.reshape(-1, threadgroup), y.reshape(-1, threadgroup), strict=True):
            for first in range(0, threadgroup, 32):
                simdgroup = slice(first, first + 32)
                np.testing.assert_array_equal(found[simdgroup], expected(threads[simdgroup]))


FILLED = """
#include <metal_stdlib>
using namespace metal;
template <typename T> T total(T value) {
  for (ushort step = 16; step > 0; step /= 2) {
    value += as_type<T>(simd_shuffle_and_fill_down(as_type<int2>(value), int2(0), step));
  }
  return value;
}
kernel void filled(device long* x, device long* some, uint i [[thread_position_in_threadgroup]]) {
  x[i] = total(x[i]);
  threadgroup_barrier(mem_flags::mem_device);
  if (i < 3) some[i] = total(some[i]);
}
"""


@pytest.mark.parametrize("threads", [32, 100, 52])
def test_filling_stands_for_lanes_that_do_not_take_part(device: mg.Device, threads: int) -> None:
    x, some = np.arange(1, threads + 1), np.array([5, 6, 7])
    sums = [part.sum() for part in np.split(x, range(32, threads, 32))]
    mg.compile(FILLED, device=device, language_version="2.4").function("filled")(threads, x, some, threadgroup=threads)
    assert x[::32].tolist() == sums
    assert some[0] == 18
