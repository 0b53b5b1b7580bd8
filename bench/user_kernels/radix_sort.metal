#include <metal_stdlib>
using namespace metal;

// A stable radix sort: keys of floats, counts of digits, their running sums, and the move of keys and values.

constant constexpr uint BITS = 4;
constant constexpr uint DIGITS = 1 << BITS;
constant constexpr uint THREADS = 256;
constant constexpr uint SIMDGROUPS = THREADS / 32;
constant constexpr uint PER_THREAD = 4;
constant constexpr uint TILE = THREADS * PER_THREAD;
constant float SCALE = 1.0f + VARIANT * 1e-6f;

struct Pass {
    uint count;
    uint shift;
    uint groups;
};

// Floats in the order of unsigned integers.
inline uint key_of(float x)
{
    uint bits = as_type<uint>(x);
    return bits ^ ((bits >> 31) ? 0xffffffffu : 0x80000000u);
}

inline float value_of(uint key)
{
    return as_type<float>(key ^ ((key >> 31) ? 0x80000000u : 0xffffffffu));
}

inline uint digit_of(uint key, uint shift) { return extract_bits(key, shift, BITS); }

kernel void to_keys(device const float4* x [[buffer(0)]],
                    device uint4* keys [[buffer(1)]],
                    constant Pass& pass [[buffer(2)]],
                    uint i [[thread_position_in_grid]])
{
    if (i < pass.count / 4) {
        float4 v = SCALE * x[i];
        keys[i] = uint4(key_of(v.x), key_of(v.y), key_of(v.z), key_of(v.w));
    }
}

kernel void from_keys(device const uint4* keys [[buffer(0)]],
                      device float4* x [[buffer(1)]],
                      constant Pass& pass [[buffer(2)]],
                      uint i [[thread_position_in_grid]])
{
    if (i < pass.count / 4) {
        uint4 k = keys[i];
        x[i] = float4(value_of(k.x), value_of(k.y), value_of(k.z), value_of(k.w));
    }
}

[[max_total_threads_per_threadgroup(256)]]
kernel void count_digits(device const uint* keys [[buffer(0)]],
                         device uint* counts [[buffer(1)]],
                         constant Pass& pass [[buffer(2)]],
                         uint group [[threadgroup_position_in_grid]],
                         uint t [[thread_index_in_threadgroup]])
{
    threadgroup atomic_uint found[DIGITS];
    if (t < DIGITS) {
        atomic_store_explicit(&found[t], 0u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 0; k < PER_THREAD; k++) {
        uint i = group * TILE + k * THREADS + t;
        if (i < pass.count) {
            atomic_fetch_add_explicit(&found[digit_of(keys[i], pass.shift)], 1u, memory_order_relaxed);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t < DIGITS) {
        counts[t * pass.groups + group] = atomic_load_explicit(&found[t], memory_order_relaxed);
    }
}

template <typename T>
inline T group_exclusive_sum(T x, threadgroup T* partial, uint lane, uint simdgroup, thread T& total)
{
    T before = simd_prefix_exclusive_sum(x);
    if (lane == 31) {
        partial[simdgroup] = before + x;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    T sum = lane < SIMDGROUPS ? partial[lane] : T(0);
    T offset = simd_prefix_exclusive_sum(sum);
    total = simd_sum(sum);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return before + simd_shuffle(offset, ushort(simdgroup));
}

[[max_total_threads_per_threadgroup(256)]]
kernel void scan_counts(device uint* counts [[buffer(0)]],
                        constant Pass& pass [[buffer(1)]],
                        uint t [[thread_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup uint partial[SIMDGROUPS];
    uint carry = 0;
    uint count = DIGITS * pass.groups;
    for (uint start = 0; start < count; start += THREADS) {
        uint i = start + t;
        uint total = 0;
        uint before = group_exclusive_sum(i < count ? counts[i] : 0u, partial, lane, simdgroup, total);
        if (i < count) {
            counts[i] = before + carry;
        }
        carry += total;
    }
}

// Each tile is sorted by its digit, one bit after another, and then written where its digits begin.
[[max_total_threads_per_threadgroup(256)]]
kernel void scatter(device const uint* keys [[buffer(0)]],
                    device const uint* values [[buffer(1)]],
                    device const uint* starts [[buffer(2)]],
                    device uint* sorted_keys [[buffer(3)]],
                    device uint* sorted_values [[buffer(4)]],
                    constant Pass& pass [[buffer(5)]],
                    uint group [[threadgroup_position_in_grid]],
                    uint t [[thread_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup uint partial[SIMDGROUPS];
    threadgroup uint2 tile[TILE];
    threadgroup uint firsts[DIGITS];
    uint2 mine[PER_THREAD];
    for (uint k = 0; k < PER_THREAD; k++) {
        uint i = group * TILE + t * PER_THREAD + k;
        mine[k] = i < pass.count ? uint2(keys[i], values[i]) : uint2(0xffffffffu, 0);
    }
    for (uint bit = 0; bit < BITS; bit++) {
        uint zeros = 0;
        for (uint k = 0; k < PER_THREAD; k++) {
            zeros += ((mine[k].x >> (pass.shift + bit)) & 1) == 0;
        }
        uint total = 0;
        uint before = group_exclusive_sum(zeros, partial, lane, simdgroup, total);
        uint ones = total + t * PER_THREAD - before;
        for (uint k = 0; k < PER_THREAD; k++) {
            bool is_one = (mine[k].x >> (pass.shift + bit)) & 1;
            tile[is_one ? ones : before] = mine[k];
            ones += is_one;
            before += !is_one;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < PER_THREAD; k++) {
            mine[k] = tile[t * PER_THREAD + k];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint k = 0; k < PER_THREAD; k++) {
        uint place = t * PER_THREAD + k;
        uint digit = digit_of(mine[k].x, pass.shift);
        if (place == 0 || digit_of(tile[place - 1].x, pass.shift) != digit) {
            firsts[digit] = place;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 0; k < PER_THREAD; k++) {
        uint place = t * PER_THREAD + k;
        if (group * TILE + place < pass.count) {
            uint digit = digit_of(mine[k].x, pass.shift);
            uint target = starts[digit * pass.groups + group] + place - firsts[digit];
            if (target < pass.count) {
                sorted_keys[target] = mine[k].x;
                sorted_values[target] = mine[k].y;
            }
        }
    }
}
