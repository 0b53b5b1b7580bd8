"""Sorts, scans and reductions over threadgroups and simdgroups, written anew."""

# Shaders are written as they would be in a file of their own.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np

import mpsgrad as mg

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"


def test_bitonic_sort_in_place() -> None:
    source = HEADER + """
    kernel void bitonic_step(device uint* data, constant uint& stage, constant uint& pass, uint id [[thread_position_in_grid]]) {
        uint distance = 1 << (stage - pass), width = 2 * distance;
        uint left = (id & (distance - 1)) + (id >> (stage - pass)) * width, right = left + distance;
        bool ascending = ((id >> stage) & 1) == 0;
        uint a = data[left], b = data[right];
        if ((a > b) == ascending) { data[left] = b; data[right] = a; }
    }"""
    step = mg.compile(source).function("bitonic_step")
    data = np.random.default_rng(1).integers(0, 2**32, 1024, dtype=np.uint32)
    expected = np.sort(data)
    for stage in range(10):
        for turn in range(stage + 1):
            step(512, data, np.uint32(stage), np.uint32(turn))
    np.testing.assert_array_equal(data, expected)


def test_inclusive_scan_of_a_threadgroup() -> None:
    source = HEADER + """
    constant constexpr uint SIMD = 32;
    template <typename T> T scan_of_threadgroup(T x, threadgroup T* sums, uint lane, uint group, uint groups) {
        T inclusive = simd_prefix_inclusive_sum(x);
        if (lane == SIMD - 1) sums[group] = inclusive;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (group == 0) { T s = lane < groups ? sums[lane] : T(0); sums[lane] = simd_prefix_exclusive_sum(s); }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        return inclusive + sums[group];
    }
    template <typename T> [[kernel, max_total_threads_per_threadgroup(256)]] void scan(
        device const T* in, device T* out, uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
        uint group [[simdgroup_index_in_threadgroup]], uint groups [[simdgroups_per_threadgroup]]) {
        threadgroup T sums[SIMD];
        out[i] = scan_of_threadgroup(in[i], sums, lane, group, groups);
    }
    template [[host_name("scan_int")]] kernel decltype(scan<int>) scan<int>;
    template [[host_name("scan_float")]] kernel decltype(scan<float>) scan<float>;"""
    library = mg.compile(source)
    generator = np.random.default_rng(2)
    for name, values in (("int", generator.integers(-9, 9, 512)), ("float", generator.integers(-9, 9, 512) / 4)):
        x = values.astype(np.int32 if name == "int" else np.float32)
        out = np.zeros_like(x)
        library.function(f"scan_{name}")(512, x, out, threadgroup=256)
        np.testing.assert_array_equal(out, x.reshape(2, 256).cumsum(1).ravel())


def test_reduction_with_vector_loads_and_shuffles() -> None:
    """Loads float4 through a pointer cast, also where the data is not aligned to it, and adds by shuffles."""
    source = HEADER + """
    float sum_of(float4 v) { return v.x + v.y + v.z + v.w; }
    kernel void reduce_sum(device const float* x, device float* partial, constant uint& n, constant uint& skip,
                           uint t [[thread_position_in_threadgroup]], uint g [[threadgroup_position_in_grid]],
                           uint size [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                           uint group [[simdgroup_index_in_threadgroup]]) {
        threadgroup float sums[32];
        float sum = 0;
        for (uint i = g * size + t; 4 * i + 3 < n; i += 2 * size) {
            float4 v = *reinterpret_cast<device const float4*>(x + skip + 4 * i);
            sum += sum_of(v);
        }
        for (ushort offset = 16; offset > 0; offset >>= 1) sum += simd_shuffle_down(sum, offset);
        if (lane == 0) sums[group] = sum;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (group == 0) {
            sum = lane < (size + 31) / 32 ? sums[lane] : 0.0f;
            sum = simd_sum(sum);
            if (lane == 0) partial[g] = sum;
        }
    }
    kernel void largest_difference(device const float* a, device const float* b, device float* out, constant uint& n,
                                   uint t [[thread_position_in_threadgroup]], uint size [[threads_per_threadgroup]],
                                   threadgroup float* best [[threadgroup(0)]]) {
        float mine = 0;
        for (uint i = t; i < n; i += size) mine = max(mine, fabs(a[i] - b[i]));
        best[t] = mine;
        for (uint s = size / 2; s > 0; s /= 2) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (t < s) best[t] = max(best[t], best[t + s]);
        }
        if (t == 0) out[0] = best[0];
    }"""
    library = mg.compile(source)
    x = np.random.default_rng(3).random(5001, np.float32)
    for skip in (0, 1):
        partial = np.zeros(2, np.float32)
        library.function("reduce_sum")(
            2, x, partial, np.uint32(5000), np.uint32(skip), threadgroup=128, grid_of_threadgroups=True
        )
        np.testing.assert_allclose(partial.sum(), x[skip : skip + 5000].sum(dtype=np.float64), rtol=1e-5)
    y, out = x[::-1].copy(), np.zeros(1, np.float32)
    library.function("largest_difference")(128, x, y, out, np.uint32(x.size), threadgroup=128, threadgroup_memory=512)
    assert out[0] == np.abs(x - y).max()


def test_the_place_of_the_maximum() -> None:
    source = HEADER + """
    template <typename U> struct IndexValPair { uint index; U val; };
    template <typename U> struct ArgMax {
        static constexpr constant U init = numeric_limits<U>::lowest();
        IndexValPair<U> reduce(IndexValPair<U> a, IndexValPair<U> b) {
            return (b.val > a.val || (b.val == a.val && b.index < a.index)) ? b : a;
        }
    };
    template <typename U> IndexValPair<U> simd_shuffle_down(IndexValPair<U> data, uint16_t delta) {
        return IndexValPair<U>{metal::simd_shuffle_down(data.index, delta), metal::simd_shuffle_down(data.val, delta)};
    }
    template <typename T, typename Op> [[kernel]] void arg_reduce(
        const device T* in, device uint* out, constant int& size, uint row [[thread_position_in_grid]],
        uint lane [[thread_index_in_simdgroup]]) {
        Op op;
        IndexValPair<T> best{0, Op::init};
        uint r = row / 32;
        for (int i = lane; i < size; i += 32) best = op.reduce(best, IndexValPair<T>{uint(i), in[r * size + i]});
        for (uint16_t offset = 16; offset > 0; offset /= 2) best = op.reduce(best, simd_shuffle_down(best, offset));
        if (lane == 0) out[r] = best.index;
    }
    template [[host_name("argmax_float")]] [[kernel]] decltype(arg_reduce<float, ArgMax<float>>) arg_reduce<float, ArgMax<float>>;
    template [[host_name("argmax_int")]] [[kernel]] decltype(arg_reduce<int, ArgMax<int>>) arg_reduce<int, ArgMax<int>>;"""
    library = mg.compile(source)
    for name, dtype in (("float", np.float32), ("int", np.int32)):
        x = np.random.default_rng(4).integers(-50, 50, (6, 77)).astype(dtype)
        out = np.zeros(6, np.uint32)
        library.function(f"argmax_{name}")(6 * 32, x, out, np.int32(77), threadgroup=64)
        np.testing.assert_array_equal(out, x.argmax(1))


def test_radix_two_fourier_transform() -> None:
    source = HEADER + """
    float2 times(float2 a, float2 b) { return float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
    [[max_total_threads_per_threadgroup(64)]]
    kernel void fft(device const float2* in, device float2* out, uint g [[threadgroup_position_in_grid]],
                    uint t [[thread_position_in_threadgroup]]) {
        threadgroup float2 data[2][128];
        data[0][t] = in[128 * g + t];
        data[0][t + 64] = in[128 * g + t + 64];
        uint now = 0;
        for (uint half_size = 1; half_size < 128; half_size *= 2) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            uint k = t & (half_size - 1);
            float angle = -M_PI_F * float(k) / half_size, c;
            float s = sincos(angle, c);
            float2 a = data[now][t], b = times(data[now][t + 64], float2(c, s));
            uint place = ((t - k) << 1) + k;
            data[1 - now][place] = a + b;
            data[1 - now][place + half_size] = a - b;
            now = 1 - now;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        out[128 * g + t] = data[now][t];
        out[128 * g + t + 64] = data[now][t + 64];
    }"""
    generator = np.random.default_rng(5)
    x = (generator.standard_normal((3, 128)) + 1j * generator.standard_normal((3, 128))).astype(np.complex64)
    out = np.zeros((3, 128, 2), np.float32)
    function = mg.compile(source).function("fft")
    function(3, x.view(np.float32).reshape(3, 128, 2), out, threadgroup=64, grid_of_threadgroups=True)
    np.testing.assert_allclose(out[..., 0] + 1j * out[..., 1], np.fft.fft(x), atol=2e-5 * np.sqrt(128))
