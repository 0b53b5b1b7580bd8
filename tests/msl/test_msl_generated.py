"""Metal as other compilers write it: SPIRV-Cross, naga, Tint, Slang."""

from __future__ import annotations

import numpy as np
import pytest
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.errors import FormatError
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
kernel void matrices(device float* out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    Matrices m;
    m.scale(lane);
    out[lane] = m.sum();
}
"""


def test_programs_that_other_compilers_wrote() -> None:
    assert [str(found) for found in lint(SOURCE) if found.severity == "error"] == []
    translated = translate(SOURCE, "cuda", launch="box", function_constants={"has_offsets": False})
    compile_for_cuda(translated.source, "generated.metal")
    storage = np.zeros(4 + 4 * 5, np.float32)
    storage[4:] = np.arange(20)
    rows = np.zeros(5, np.dtype([("scale", "f2"), ("codes", "u1", 6)]))
    rows["codes"] = np.arange(30).reshape(5, 6)
    out = np.zeros(5, np.float32)
    offsets = np.arange(5, dtype=np.float32)
    kernel = mg.compile(SOURCE, function_constants={"has_offsets": True}).function("k")
    assert kernel.check(5, storage, out, rows, offsets, threadgroup=4, undefined=["out"]) == ()
    kernel(5, storage, out, rows, offsets, threadgroup=4)
    i = np.arange(5)
    expected = (np.arange(20).reshape(5, 4) * [1, 2, 4, 8]).sum(1) + np.where(i < 4, 6 * i + 3, 0) + 1000 * i + 20000
    np.testing.assert_array_equal(out, expected + 2 * i + 3 + 1 + offsets)
    (found, *_) = kernel.check(5, storage, out[:4], rows, offsets, threadgroup=4)
    assert found.name == "out-of-bounds" and "element 4 of 'out', which has 4 elements" in str(found)
    with pytest.raises(FormatError, match="has 16 bytes, but a Storage has 32"):
        kernel(5, storage[:4].copy(), out, rows, offsets)


def test_members_reach_the_elements_of_matrices() -> None:
    out = np.zeros(32, np.float32)
    mg.compile(SOURCE, function_constants={"has_offsets": True}).function("matrices")(32, out)
    np.testing.assert_array_equal(out, 5 * np.arange(32))
