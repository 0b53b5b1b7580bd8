#include <metal_stdlib>
using namespace metal;

// Reductions over the rows of a matrix by simdgroups, as templates for several types.

constant uint LANES = 32;
constant uint GROUP = 256;
constant float SCALE = 1.0f + VARIANT * 1e-6f;

struct Rows {
    uint count;
    uint length;
    uint stride;
    float epsilon;
};

template <typename T>
struct Sum {
    static T start() { return T(0); }
    static T join(T x, T y) { return x + y; }
    static T across(T x) { return simd_sum(x); }
};

template <typename T>
struct Largest {
    static T start() { return T(-3.0e38f); }
    static T join(T x, T y) { return max(x, y); }
    static T across(T x) { return simd_max(x); }
};

template <typename Operation>
float reduced(float value, threadgroup float* shared, uint lane, uint simdgroup) {
    value = Operation::across(value);
    if (lane == 0) {
        shared[simdgroup] = value;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    value = lane < GROUP / LANES ? shared[lane] : Operation::start();
    value = Operation::across(value);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return value;
}

template <typename T>
[[max_total_threads_per_threadgroup(GROUP)]]
kernel void soft_max(device const T* source [[buffer(0)]],
                     device T* destination [[buffer(1)]],
                     constant Rows& rows [[buffer(2)]],
                     uint row [[threadgroup_position_in_grid]],
                     uint index [[thread_position_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float shared[LANES];
    device const T* from = source + row * rows.stride;
    device T* to = destination + row * rows.stride;
    float largest = -3.0e38f;
    for (uint k = index; k < rows.length; k += GROUP) {
        largest = max(largest, float(from[k]));
    }
    largest = reduced<Largest<float>>(largest, shared, lane, simdgroup);
    float sum = 0;
    for (uint k = index; k < rows.length; k += GROUP) {
        sum += exp(float(from[k]) - largest);
    }
    sum = reduced<Sum<float>>(sum, shared, lane, simdgroup);
    float factor = SCALE / sum;
    for (uint k = index; k < rows.length; k += GROUP) {
        to[k] = T(exp(float(from[k]) - largest) * factor);
    }
}

template [[host_name("soft_max_float")]] kernel void soft_max<float>(device const float*, device float*, constant Rows&,
    uint, uint, uint, uint);
template [[host_name("soft_max_half")]] kernel void soft_max<half>(device const half*, device half*, constant Rows&,
    uint, uint, uint, uint);

template <typename T>
[[max_total_threads_per_threadgroup(GROUP)]]
kernel void normalized(device const T* source [[buffer(0)]],
                       device const float* gamma [[buffer(1)]],
                       device const float* beta [[buffer(2)]],
                       device T* destination [[buffer(3)]],
                       device float2* statistics [[buffer(4)]],
                       constant Rows& rows [[buffer(5)]],
                       uint row [[threadgroup_position_in_grid]],
                       uint index [[thread_position_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float shared[LANES];
    device const T* from = source + row * rows.stride;
    device T* to = destination + row * rows.stride;
    float sum = 0;
    for (uint k = index; k < rows.length; k += GROUP) {
        sum += float(from[k]);
    }
    float mean = reduced<Sum<float>>(sum, shared, lane, simdgroup) / rows.length;
    float squares = 0;
    for (uint k = index; k < rows.length; k += GROUP) {
        float difference = float(from[k]) - mean;
        squares += difference * difference;
    }
    float variance = reduced<Sum<float>>(squares, shared, lane, simdgroup) / rows.length;
    float factor = rsqrt(variance + rows.epsilon);
    for (uint k = index; k < rows.length; k += GROUP) {
        to[k] = T((float(from[k]) - mean) * factor * gamma[k] * SCALE + beta[k]);
    }
    if (index == 0) {
        statistics[row] = float2(mean, factor);
    }
}

template [[host_name("normalized_float")]] kernel void normalized<float>(device const float*, device const float*,
    device const float*, device float*, device float2*, constant Rows&, uint, uint, uint, uint);
template [[host_name("normalized_half")]] kernel void normalized<half>(device const half*, device const float*,
    device const float*, device half*, device float2*, constant Rows&, uint, uint, uint, uint);

[[max_total_threads_per_threadgroup(GROUP)]]
kernel void normalized_gradient(device const float* gradient [[buffer(0)]],
                                device const float* source [[buffer(1)]],
                                device const float* gamma [[buffer(2)]],
                                device const float2* statistics [[buffer(3)]],
                                device float* destination [[buffer(4)]],
                                constant Rows& rows [[buffer(5)]],
                                uint row [[threadgroup_position_in_grid]],
                                uint index [[thread_position_in_threadgroup]],
                                uint lane [[thread_index_in_simdgroup]],
                                uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float shared[LANES];
    uint first = row * rows.stride;
    float mean = statistics[row].x;
    float factor = statistics[row].y;
    float sum = 0;
    float projected = 0;
    for (uint k = index; k < rows.length; k += GROUP) {
        float scaled = gradient[first + k] * gamma[k];
        sum += scaled;
        projected += scaled * (source[first + k] - mean) * factor;
    }
    sum = reduced<Sum<float>>(sum, shared, lane, simdgroup) / rows.length;
    projected = reduced<Sum<float>>(projected, shared, lane, simdgroup) / rows.length;
    for (uint k = index; k < rows.length; k += GROUP) {
        float centred = (source[first + k] - mean) * factor;
        destination[first + k] = factor * SCALE * (gradient[first + k] * gamma[k] - sum - centred * projected);
    }
}

[[max_total_threads_per_threadgroup(GROUP)]]
kernel void running_sum(device const float* source [[buffer(0)]],
                        device float* destination [[buffer(1)]],
                        constant Rows& rows [[buffer(2)]],
                        uint row [[threadgroup_position_in_grid]],
                        uint index [[thread_position_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float sums[LANES];
    float before = 0;
    for (uint start = 0; start < rows.length; start += GROUP) {
        uint k = start + index;
        float value = k < rows.length ? source[row * rows.stride + k] : 0.0f;
        float scanned = simd_prefix_inclusive_sum(value);
        if (lane == LANES - 1) {
            sums[simdgroup] = scanned;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float total = lane < GROUP / LANES ? sums[lane] : 0.0f;
        float offsets = simd_prefix_exclusive_sum(total);
        float all = simd_sum(total);
        scanned += before + simd_shuffle(offsets, ushort(simdgroup));
        before += all;
        if (k < rows.length) {
            destination[row * rows.stride + k] = scanned * SCALE;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}
