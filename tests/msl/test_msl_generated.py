"""Metal as other compilers write it: SPIRV-Cross, naga, Tint, Slang."""

from __future__ import annotations

import re

import numpy as np
import pytest
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.errors import FormatError, ShaderError
from mpsgrad.msl import translate
from mpsgrad.msl.lint import lint

SOURCE = """
#include <metal_stdlib>
using namespace metal;
template <typename T, size_t N> struct Elements {
    T elements[N ? N : 1];
    device T& operator[](size_t i) device { return elements[i]; }
    constexpr const device T& operator[](size_t i) const device { return elements[i]; }
    constexpr const constant T& operator[](size_t i) const constant { return elements[i]; }
    thread T& operator[](size_t i) thread { return elements[i]; }
    threadgroup T& operator[](size_t i) threadgroup { return elements[i]; }
};
typedef float Numbers[1];
struct Storage { uint count; char pad[12]; Elements<float4, 1> rows; };
struct Row { half scale; uchar codes[6]; };
struct Memory { device Storage* storage; threadgroup Elements<float, 4>* tile; };
class View {
public:
    View(const device Row* rows) : rows_{rows} {}
    const device uchar* codes(int i) { return rows_[i].codes + 2; }
private:
    const device Row* rows_;
};
constant Elements<float, 4> weights = Elements<float, 4>({1, 2, 4, 8});
matrix<float, int(2), int(2)> turned(vec<float, int(2)> v) { return matrix<float, int(2), int(2)>(v.y, v.x, v.x, v.y); }
float weighted(Memory memory, int row, View view) {
    float sum = 0;
    _Pragma("clang loop unroll(full)") for (int k = 0; k < 4; ++k) { sum += memory.storage->rows[row][k] * weights[k]; }
    const device uchar* codes = view.codes(row < 4 ? row : 1000);
    if (row < 4) sum += codes[1];
    return sum;
}
typedef enum Index : int Index; enum Index : int { IndexOut = 1 };
constant bool has_offsets [[function_constant(0)]];
constant bool has_offset = !has_offsets;
namespace own {
struct Number { float hi, lo; };
Number sum(float a, float b) { float s = a + b; return Number{s, b - (s - a)}; }
Number operator+(Number a, Number b) { return sum(a.hi, b.hi); }
template <typename T, enable_if_t<sizeof(T) < 8, bool> = true> T small(T v) { return v; }
float total(const thread own::Number* n, uint3 v, int k) { return n->hi + n->lo + v.x + v.y + v.z + k; }
}
kernel void k(device Storage& storage [[buffer(0)]], device Numbers& out [[buffer(IndexOut)]],
              const device Row* rows [[buffer(2)]],
              const device float* offsets [[buffer(3), function_constant(has_offsets)]],
              constant float& offset [[buffer(3), function_constant(has_offset)]],
              uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
    threadgroup Elements<float, 4> tile;
    Memory const memory = Memory{.storage = &storage, .tile = &tile};
    (*memory.tile)[t] = float(i);
    float2 v = turned(float2(1, 2)) * float2(1, 0);
    out[i] = weighted(memory, i, View(rows)) + tile[t] * 1000 + v.x * 10000;
    uint4 filled = {i, 2u * i, t - t};
    own::Number number = own::Number{1, 0} + own::Number{2, 0};
    out[i] += own::total(&number, {filled.y, filled.w, own::small(0u)}, 1) + (has_offsets ? offsets[i] : offset);
}
class Matrices {
    simdgroup_float8x8 all[2];
public:
    Matrices() { for (int k = 0; k < 2; ++k) { all[k].thread_elements()[0] = k; all[k].thread_elements()[1] = 2; } }
    void scale(float s) { for (int k = 0; k < 2; ++k) all[k].thread_elements() *= s; }
    float sum() const {
        float s = 0;
        for (int k = 0; k < 2; ++k) { thread const auto& e = all[k].thread_elements(); s += e[0] + e[1]; }
        return s;
    }
};
kernel void matrices(device float* out [[buffer(0)]], const device float* given [[buffer(1)]],
                     uint lane [[thread_index_in_simdgroup]]) {
    threadgroup __attribute__((aligned(16))) float last[1];
    Matrices m;
    m.scale(lane);
    simdgroup_float8x8 loaded, product(0.0f);
    simdgroup_load(loaded, given, 8);
    simdgroup_multiply_accumulate(product, loaded, simdgroup_float8x8(1.0f), product);
    if (lane == 31) last[0] = 1000;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane % 3 == 0) return;
    out[lane] = m.sum() + product.thread_elements()[0] + last[0];
}
"""


def arguments_of_k() -> tuple[np.ndarray, ...]:
    """storage, out, rows and offsets of the kernel ``k``."""
    storage = np.zeros(4 + 4 * 5, np.float32)
    storage[4:] = np.arange(20)
    rows = np.zeros(5, np.dtype([("scale", "f2"), ("codes", "u1", 6)]))
    rows["codes"] = np.arange(30).reshape(5, 6)
    return storage, np.zeros(5, np.float32), rows, np.arange(5, dtype=np.float32)


def test_programs_that_other_compilers_wrote() -> None:
    assert [str(found) for found in lint(SOURCE) if found.severity == "error"] == []
    translated = translate(SOURCE, "cuda", launch="box", function_constants={"has_offsets": False})
    compile_for_cuda(translated.source, "generated.metal")
    assert re.search(r"__shared__\s+__attribute__\(\(aligned\(16\)\)\) float last\[1\]", translated.source)
    storage, out, rows, offsets = arguments_of_k()
    kernel = mg.compile(SOURCE, function_constants={"has_offsets": True}).function("k")
    kernel(5, storage, out, rows, offsets, threadgroup=4)
    i = np.arange(5)
    expected = (np.arange(20).reshape(5, 4) * [1, 2, 4, 8]).sum(1) + np.where(i < 4, 6 * i + 3, 0) + 1000 * i + 20000
    np.testing.assert_array_equal(out, expected + 2 * i + 3 + 1 + offsets)
    with pytest.raises(FormatError, match="has 16 bytes, but a Storage has 32"):
        kernel(5, storage[:4].copy(), out, rows, offsets)


@pytest.mark.usefixtures("opencl_device")
def test_checked_runs_of_programs_that_other_compilers_wrote() -> None:
    storage, out, rows, offsets = arguments_of_k()
    kernel = mg.compile(SOURCE, function_constants={"has_offsets": True}).function("k")
    assert kernel.check(5, storage, out, rows, offsets, threadgroup=4, undefined=["out"]) == ()
    (found, *_) = kernel.check(5, storage, out[:4], rows, offsets, threadgroup=4)
    assert found.name == "out-of-bounds" and "element 4 of 'out', which has 4 elements" in str(found)


def test_some_threads_ask_for_the_elements_of_matrices() -> None:
    out, given, lane = np.zeros(32, np.float32), np.arange(64, dtype=np.float32), np.arange(32)
    mg.compile(SOURCE, function_constants={"has_offsets": True}).function("matrices")(32, out, given)
    row, column = (lane >> 4 & 1) * 4 + (lane >> 1 & 3), (lane >> 3 & 1) * 4 + (lane & 1) * 2
    np.testing.assert_array_equal(out, np.where(lane % 3, 5 * lane + 8 * row + column + 1000, 0))


CLASSES = """
#include <metal_stdlib>
#include <simd/simd.h>
using namespace metal;
half rounded(float v) { return half(v); }
struct Code {
    uchar bits;
    explicit Code(uchar b) : bits(b) {}
    operator float() const thread { return float(bits) * 0.5f; }
    operator half() const thread { return rounded(float(*this)); }
};
struct Pair { float hi, lo; Pair(float h) : hi(h), lo(0) {} };
Pair operator+(Pair a, Pair b) { a.hi += b.hi; a.lo += b.lo; return a; }
thread Pair& operator+=(thread Pair& a, Pair b) { return a = a + b; }
struct Delay {
    float last = 0;
    float next(float x, constant float& gain) thread { float y = x + last; last = y * gain; return y; }
};
template <uint N> struct Chain {
    Delay all[N];
    float operator()(float x, constant float* g) { for (uint k = 0; k < N; ++k) x = all[k].next(x, g[k]); return x; }
};
struct Table { uchar at[4]; constexpr Table() : at() { for (int k = 0; k < 4; ++k) at[k] = uchar(7 * k % 4); } };
constant constexpr Table table = Table();
struct Context {
    const device float* lookup;
    __attribute__((noinline)) float mixed(thread float3* p, thread const float& u) const {
        return p->x + 10 * p->y + 100 * p->z + u;
    }
};
kernel void k(device float* out, const device float* x, constant float* gains, uint i [[thread_position_in_grid]]) {
    simd_float3 p = vector_float3(x[i], i, 1);
    matrix_float2x2 m = simd_float2x2(2);
    Context context{x};
    Pair pair = Pair(1);
    pair += Pair(2);
    Chain<2> chain;
    const float u = x[i];
    out[6 * i] = context.mixed(&p, u);
    Code code(uchar(i & 255));
    out[6 * i + 1] = float(code);
    out[6 * i + 2] = half(code);
    out[6 * i + 3] = pair.hi + m[1][1];
    out[6 * i + 4] = chain(1, gains);
    out[6 * i + 4] += 100 * chain(1, gains);
    out[6 * i + 5] = table.at[i % 4];
}
constant int after[] = {1, 2};
kernel void later(device int* out) { out[0] = after[1]; }
"""


def test_classes_made_of_classes() -> None:
    compile_for_cuda(translate(CLASSES, "cuda", launch="box").source, "classes.metal")
    x, gains, out = np.arange(40, dtype=np.float32), np.array([0.5, 0.25], np.float32), np.zeros((40, 6), np.float32)
    kernel = mg.compile(CLASSES).function("k")
    kernel(40, out, x, gains)
    i = np.arange(40)
    columns = [12 * i + 100, i / 2, i / 2, i * 0 + 5, i * 0 + 1 + 100 * (1.5 + 0.25), 7 * i % 4]
    np.testing.assert_array_equal(out, np.stack(columns, 1))


@pytest.mark.usefixtures("opencl_device")
def test_checked_runs_of_classes_made_of_classes() -> None:
    x, gains, out = np.arange(40, dtype=np.float32), np.array([0.5, 0.25], np.float32), np.zeros((40, 6), np.float32)
    assert mg.compile(CLASSES).function("k").check(40, out, x, gains) == ()


RETURNED = """
#include <metal_stdlib>
using namespace metal;
struct Pair { float a, b; };
struct Holder { Pair pair; };
thread Pair& of_name(thread Pair& one, Pair other) { return one = other; }
thread Pair& in_brackets(thread Pair& one, Pair other) { return (one = other); }
thread Pair& of_member(thread Holder& holder, Pair other) { return holder.pair = other; }
thread float& of_number(thread float& one, float other) { return one = other; }
kernel void k(device float* out, uint i [[thread_position_in_grid]]) {
    Pair p = {1, 2}, q = {float(i), 4};
    Holder holder = {p};
    of_name(p, q).b += 1;
    of_member(holder, in_brackets(q, p)).a += 1;
    of_number(q.a, p.b) += 2;
    out[4 * i] = p.a; out[4 * i + 1] = p.b; out[4 * i + 2] = holder.pair.a; out[4 * i + 3] = q.a;
}
"""


@pytest.mark.usefixtures("opencl_device")
def test_references_to_what_was_assigned_are_given_back() -> None:
    out = np.zeros((8, 4), np.float32)
    function = mg.compile(RETURNED).function("k")
    function(8, out)
    np.testing.assert_array_equal(out, [[i, 5, i + 1, 7] for i in range(8)])
    assert function.check(8, out) == ()


def test_designators_of_elements_are_refused_by_name_for_cuda() -> None:
    with pytest.raises(ShaderError, match=r":1:23: designators of array elements are not supported for CUDA"):
        translate("constant int t[2] = { [1] = 2 };\nkernel void k(device int* o) { *o = t[1]; }", "cuda")
