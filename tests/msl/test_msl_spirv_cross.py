"""Compute shaders as SPIRV-Cross writes them: its arrays that are values, products that are not contracted, and matrices that
may lie in threadgroup memory."""

# Code is easier to read on lines of its own length.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.msl import translate
from mpsgrad.msl.lint import lint
from mpsgrad.runtime import KernelFunction

HEAD = """#include <metal_stdlib>
#include <simd/simd.h>
using namespace metal;
"""


def function(source: str) -> KernelFunction:
    """The kernel ``main0`` of a source that is right to lint and to NVIDIA's compiler."""
    assert lint(source) == []
    compile_for_cuda(translate(source, "cuda", launch="box").source, "spirv_cross.metal")
    return mg.compile(source).function("main0")


ARRAYS = (
    HEAD
    + """template<typename T, size_t Num>
struct spvUnsafeArray { T elements[Num ? Num : 1];
    thread T& operator [] (size_t pos) thread { return elements[pos]; }
    constexpr const thread T& operator [] (size_t pos) const thread { return elements[pos]; }
    device T& operator [] (size_t pos) device { return elements[pos]; }
    constexpr const device T& operator [] (size_t pos) const device { return elements[pos]; }
    constexpr const constant T& operator [] (size_t pos) const constant { return elements[pos]; }
    threadgroup T& operator [] (size_t pos) threadgroup { return elements[pos]; }
    constexpr const threadgroup T& operator [] (size_t pos) const threadgroup { return elements[pos]; }
};
struct SSBO { float4 data[1]; };
struct Particle { packed_float3 position; float mass; spvUnsafeArray<float2, 3> hist; };
struct Particles { Particle p[1]; };
struct UBO { float4x4 mvp; float4 weights[4]; int count; };
constant spvUnsafeArray<float, 5> _18 = spvUnsafeArray<float, 5>({ 0.0625, 0.25, 0.375, 0.25, 0.0625 });
constant spvUnsafeArray<float2, 2> _19 = spvUnsafeArray<float2, 2>({ float2(1.0, 2.0), float2(3.0) });
constant spvUnsafeArray<spvUnsafeArray<int, 2>, 2> _20 = spvUnsafeArray<spvUnsafeArray<int, 2>, 2>({ spvUnsafeArray<int, 2>({ 1, 2 }), spvUnsafeArray<int, 2>({ 3, 4 }) });
constant uint3 gl_WorkGroupSize [[maybe_unused]] = uint3(64u, 1u, 1u);
static inline __attribute__((always_inline))
float sum_of(thread const spvUnsafeArray<float, 4>& v) { float r = 0.0;
    for (int i = 0; i < 4; i++) { r += v[i]; }
    return r; }
static inline __attribute__((always_inline))
spvUnsafeArray<float, 4> make_it(thread const float& x) { spvUnsafeArray<float, 4> v = spvUnsafeArray<float, 4>({ x, x * 2.0, x * 3.0, x * 4.0 });
    return v; }
kernel void main0(device SSBO& ssbo [[buffer(0)]], device Particles& parts [[buffer(1)]], constant UBO& ubo [[buffer(2)]], uint3 gl_GlobalInvocationID [[thread_position_in_grid]], uint gl_LocalInvocationIndex [[thread_index_in_threadgroup]], uint3 gl_NumWorkGroups [[threadgroups_per_grid]]) { threadgroup spvUnsafeArray<float4, 64> cache;
    uint i = gl_GlobalInvocationID.x;
    cache[gl_LocalInvocationIndex] = ssbo.data[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float _30 = float(i);
    spvUnsafeArray<float, 4> param = make_it(_30);
    float4 acc = cache[gl_WorkGroupSize.x - 1u - gl_LocalInvocationIndex] * sum_of(param);
    for (int j = 0; j < ubo.count; j++) { acc += (ubo.mvp * ubo.weights[j]) * _18[j]; }
    spvUnsafeArray<spvUnsafeArray<int, 2>, 2> idx = _20;
    idx[1][0] += 1;
    parts.p[i].position = (float3(parts.p[i].position) + float3(acc.xyz));
    parts.p[i].mass += float(idx[1][0]) + _19[1].x;
    parts.p[i].hist[2] = float2(parts.p[i].hist[1].yx);
    ssbo.data[i] = acc; }
"""
)


def test_arrays_that_are_values() -> None:
    count, rng = 64, np.random.default_rng(0)
    main = function(ARRAYS)
    data = rng.random((count, 4), dtype=np.float32)
    particles = np.zeros(count, main.dtype("parts")["p"].base)
    particles["position"], particles["mass"] = rng.random((count, 3)), 1
    particles["hist"]["elements"] = rng.random((count, 3, 2))
    matrix, weights = rng.random((4, 4), dtype=np.float32), rng.random((4, 4), dtype=np.float32)
    before, old = data.copy(), particles.copy()
    main(count, data, particles, {"mvp": matrix, "weights": weights, "count": 3}, threadgroup=64)
    sums = before[::-1] * (10.0 * np.arange(count))[:, None]
    for k, factor in enumerate((0.0625, 0.25, 0.375)):
        sums = sums + factor * (matrix.T @ weights[k])
    assert np.allclose(data, sums, rtol=1e-5)
    assert np.allclose(particles["position"], old["position"] + sums[:, :3], rtol=1e-5)
    assert np.all(particles["mass"] == 1 + 4 + 3)
    assert np.array_equal(particles["hist"]["elements"][:, 2], old["hist"]["elements"][:, 1, ::-1])


PRODUCTS = (
    HEAD
    + """template<typename T>
[[clang::optnone]] T spvFMul(T l, T r) { return fma(l, r, T(0)); }
template<typename T, int Cols, int Rows>
[[clang::optnone]] vec<T, Cols> spvFMulVectorMatrix(vec<T, Rows> v, matrix<T, Cols, Rows> m) { vec<T, Cols> res = vec<T, Cols>(0);
    for (uint i = Rows; i > 0; --i) { vec<T, Cols> tmp(0);
        for (uint j = 0; j < Cols; ++j) { tmp[j] = m[j][i - 1]; }
        res = fma(tmp, vec<T, Cols>(v[i - 1]), res); }
    return res; }
template<typename T, int Cols, int Rows>
[[clang::optnone]] vec<T, Rows> spvFMulMatrixVector(matrix<T, Cols, Rows> m, vec<T, Cols> v) { vec<T, Rows> res = vec<T, Rows>(0);
    for (uint i = Cols; i > 0; --i) { res = fma(m[i - 1], vec<T, Rows>(v[i - 1]), res); }
    return res; }
template<typename T, int LCols, int LRows, int RCols, int RRows>
[[clang::optnone]] matrix<T, RCols, LRows> spvFMulMatrixMatrix(matrix<T, LCols, LRows> l, matrix<T, RCols, RRows> r) { matrix<T, RCols, LRows> res;
    for (uint i = 0; i < RCols; i++) { vec<T, RCols> tmp(0);
        for (uint j = 0; j < LCols; j++) { tmp = fma(vec<T, RCols>(r[i][j]), l[j], tmp); }
        res[i] = tmp; }
    return res; }
template<typename T>
[[clang::optnone]] T spvFAdd(T l, T r) { return fma(T(1), l, r); }
template<typename T>
[[clang::optnone]] T spvFSub(T l, T r) { return fma(T(-1), r, l); }
struct SSBO { float a;
    float b;
    float c;
    float4 v;
    float4x4 m;
    float4x4 n;
    float4 o;
    float4x4 p;
};
kernel void main0(device SSBO& _1 [[buffer(0)]]) { _1.c = spvFAdd(spvFMul(_1.a, _1.b), spvFSub(_1.a, _1.b));
    _1.o = spvFAdd(spvFMulVectorMatrix(_1.v, _1.m), spvFMulMatrixVector(_1.m, _1.v));
    _1.p = spvFMulMatrixMatrix(_1.m, _1.n); }
"""
)


def test_products_that_are_not_contracted() -> None:
    main, rng = function(PRODUCTS), np.random.default_rng(1)
    values = np.zeros(1, main.dtype("_1"))
    m, n, v = rng.random((4, 4)), rng.random((4, 4)), rng.random(4)
    values["a"], values["b"], values["v"], values["m"], values["n"] = 2, 0.7, v, m, n
    main(1, values)
    assert np.isclose(values["c"][0], 1.4 + 1.3)
    assert np.allclose(values["o"][0], v @ m.T + m.T @ v, rtol=1e-5)
    assert np.allclose(values["p"][0].T, m.T @ n.T, rtol=1e-5)


MATRICES = (
    HEAD
    + """template<typename T, int Cols, int Rows=Cols>
struct spvStorageMatrix { vec<T, Rows> columns[Cols];
    spvStorageMatrix() thread = default;
    thread spvStorageMatrix& operator=(initializer_list<vec<T, Rows>> cols) thread { size_t i;
        thread vec<T, Rows>* col;
        for (i = 0, col = cols.begin(); i < Cols; ++i, ++col)
            columns[i] = *col;
        return *this; }
    spvStorageMatrix(const thread matrix<T, Cols, Rows>& m) thread { for (size_t i = 0; i < Cols; ++i)
            columns[i] = m.columns[i]; }
    spvStorageMatrix(const thread spvStorageMatrix& m) thread = default;
    thread spvStorageMatrix& operator=(const thread spvStorageMatrix& m) thread = default;
    operator matrix<T, Cols, Rows>() const thread { matrix<T, Cols, Rows> m;
        for (int i = 0; i < Cols; ++i)
            m.columns[i] = columns[i];
        return m; }
    vec<T, Rows> operator[](size_t idx) const thread { return columns[idx]; }
    thread vec<T, Rows>& operator[](size_t idx) thread { return columns[idx]; }
    spvStorageMatrix() threadgroup = default;
    spvStorageMatrix(const thread matrix<T, Cols, Rows>& m) threadgroup { for (size_t i = 0; i < Cols; ++i)
            columns[i] = m.columns[i]; }
    spvStorageMatrix(const threadgroup spvStorageMatrix& m) threadgroup = default;
    threadgroup spvStorageMatrix& operator=(const threadgroup spvStorageMatrix& m) threadgroup = default;
    threadgroup spvStorageMatrix& operator=(const thread matrix<T, Cols, Rows>& m) threadgroup { for (size_t i = 0; i < Cols; ++i)
            columns[i] = m.columns[i];
        return *this; }
    operator matrix<T, Cols, Rows>() const threadgroup { matrix<T, Cols, Rows> m;
        for (int i = 0; i < Cols; ++i)
            m.columns[i] = columns[i];
        return m; }
    vec<T, Rows> operator[](size_t idx) const threadgroup { return columns[idx]; }
    threadgroup vec<T, Rows>& operator[](size_t idx) threadgroup { return columns[idx]; }
    spvStorageMatrix() device = default;
    spvStorageMatrix(const thread matrix<T, Cols, Rows>& m) device { for (size_t i = 0; i < Cols; ++i)
            columns[i] = m.columns[i]; }
    device spvStorageMatrix& operator=(const device spvStorageMatrix& m) device = default;
    operator matrix<T, Cols, Rows>() const device { matrix<T, Cols, Rows> m;
        for (int i = 0; i < Cols; ++i)
            m.columns[i] = columns[i];
        return m; }
    vec<T, Rows> operator[](size_t idx) const device { return columns[idx]; }
    device vec<T, Rows>& operator[](size_t idx) device { return columns[idx]; }
    operator matrix<T, Cols, Rows>() const constant { matrix<T, Cols, Rows> m;
        for (int i = 0; i < Cols; ++i)
            m.columns[i] = columns[i];
        return m; }
    vec<T, Rows> operator[](size_t idx) const constant { return columns[idx]; }
};
template<typename T, int Cols, int Rows>
matrix<T, Rows, Cols> transpose(spvStorageMatrix<T, Cols, Rows> m) { return transpose(matrix<T, Cols, Rows>(m)); }
typedef spvStorageMatrix<float, 2, 2> spvStorage_float2x2;
typedef spvStorageMatrix<float, 3, 3> spvStorage_float3x3;
typedef spvStorageMatrix<float, 4, 4> spvStorage_float4x4;
constant uint3 gl_WorkGroupSize [[maybe_unused]] = uint3(4u, 1u, 1u);
kernel void main0(device float4x4* out [[buffer(0)]], device const float4x4* in [[buffer(1)]], uint gl_LocalInvocationIndex [[thread_index_in_threadgroup]]) { threadgroup spvStorage_float4x4 var[4];
    var[gl_LocalInvocationIndex] = in[gl_LocalInvocationIndex];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float4x4 m = float4x4(var[3u - gl_LocalInvocationIndex]);
    m[1] += var[gl_LocalInvocationIndex][2];
    out[gl_LocalInvocationIndex] = m * transpose(float4x4(var[gl_LocalInvocationIndex])); }
"""
)


def test_matrices_in_threadgroup_memory() -> None:
    given = np.random.default_rng(2).random((4, 4, 4), dtype=np.float32)
    out = np.zeros_like(given)
    function(MATRICES)(4, out, given, threadgroup=4)
    for k in range(4):
        m = given[3 - k].copy()
        m[1] += given[k][2]
        assert np.allclose(out[k].T, m.T @ given[k], rtol=1e-5)


LISTS = (
    HEAD
    + """
struct Row { float2 parts[2]; void set(initializer_list<float2> all) { for (size_t i = 0; i < all.size(); ++i) parts[i] = all.begin()[i]; } };
float sum(initializer_list<float> all) { float s = 0; for (float each : all) s += each; return s; }
kernel void main0(device float* y) {
  Row row;
  row.set({float2(1, 2), float2(y[1], 4)});
  y[0] = sum({1.0f, y[0], 3.0f}) + sum({4.0f}) + row.parts[1].x;
}
"""
)


def test_lists_in_braces() -> None:
    y = np.array([2, 10], np.float32)
    function(LISTS)(1, y)
    assert y[0] == 6 + 4 + 10
