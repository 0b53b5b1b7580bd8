"""What one kernel function needs of a source: nothing that it names is lost, in whatever layout."""

from __future__ import annotations

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.outline import Outline

SOURCE = """// About all.
#include <metal_stdlib>
using namespace metal;
#define TWICE(x) doubled(x)

// A struct.
struct Pair {
    float first, second;
};
constant struct Named {
    float x;
} named = {3.0f};
enum Color { red, green };
constant float table[2] = {
    1.0f, 2.0f
};
typedef float Four __attribute__((ext_vector_type(4)));

template <typename T>
static inline T doubled(T x) { return x + x; }
float of_pair(Pair pair)
{
    return pair.first; // doubled and } and "
}
float one(float x) { return x; } float two(float x) { return 2 * one(x); }

#if defined(__METAL_VERSION__)
float chosen(float x) { return x; }
#else
float chosen(float x) { return -x; }
#endif

#ifdef NOWHERE
[[unknown]]
#endif
[[max_total_threads_per_threadgroup(32)]]
kernel void a(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]])
{
    out[i] = TWICE(chosen(two(table[i & 1]) + named.x));
}

kernel void b(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    Pair pair = {float(i), 1.0f};
    out[i] = of_pair(pair);
}
template <typename T>
kernel void c(device T* out [[buffer(0)]], uint i [[thread_position_in_grid]])
{
    out[i] = i;
}
template [[host_name("c_float")]] kernel void c<float>(device float*, uint);
"""


def needed(kernel: str, source: str = SOURCE) -> str:
    lines = source.splitlines()
    return "\n".join(lines[index] for index in Outline(lines).lines_for([kernel])) + "\n"


def test_kernels_are_those_that_can_be_had_alone():
    assert Outline(SOURCE.splitlines()).kernels == ("a", "b")


def test_functions_and_structs_that_nobody_names_are_left_out():
    assert "of_pair" not in needed("a") and "struct Pair" not in needed("a") and "// A struct" not in needed("a")
    assert "struct Pair" in needed("b") and "chosen(float x)" in needed("b"), "those under conditions stay"
    assert "kernel void b" not in needed("a") and "[[unknown]]" not in needed("b")
    assert "[[max_total_threads_per_threadgroup(32)]]\nkernel void a" in needed("a")


@pytest.mark.parametrize("kernel", ["a", "b"])
def test_what_is_left_does_the_same(device, kernel):
    results = []
    for source in (SOURCE, needed(kernel)):
        out = mg.Vector.from_array(np.zeros(32, "float32"))
        function = mg.compile(source, device=device).function(kernel)
        function(32, out.buffer)
        results.append(np.asarray(out).tolist())
    assert results[0] == results[1] and any(results[0])


UNDIVIDED = ["", "}", "kernel void a(", "kernel void a() {", "#define JOIN(a, b) a##b\n" + SOURCE]


@pytest.mark.parametrize("source", UNDIVIDED)
def test_sources_that_cannot_be_divided_have_no_kernels(source):
    assert Outline(source.splitlines()).kernels == ()
