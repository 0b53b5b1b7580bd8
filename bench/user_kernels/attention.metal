#include <metal_stdlib>
using namespace metal;

// Attention with online softmax: a simdgroup owns rows of queries, lanes own parts of the head.
struct Attention {
    uint queries;
    uint keys;
    uint heads;
    float scale;
    int causal;
};

constant constexpr uint HEAD = 128;
constant constexpr uint BLOCK = 32;
constant constexpr uint SIMDGROUPS = 4;
constant float SCALE = 1.0f + VARIANT * 1e-6f;

template <typename T> struct Four;
template <> struct Four<float> { typedef float4 type; };
template <> struct Four<half> { typedef half4 type; };

struct Running {
    float top;
    float sum;
    float4 value;

    void add(float score, float4 v) thread {
        float higher = max(top, score);
        float old = exp(top - higher);
        float weight = exp(score - higher);
        value = value * old + v * weight;
        sum = sum * old + weight;
        top = higher;
    }

    void join(float other_top, float other_sum, float4 other) thread {
        float higher = max(top, other_top);
        float a = exp(top - higher), b = exp(other_top - higher);
        value = value * a + other * b;
        sum = sum * a + other_sum * b;
        top = higher;
    }
};

template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]]
void attention(device const T* q [[buffer(0)]],
               device const T* k [[buffer(1)]],
               device const T* v [[buffer(2)]],
               device T* out [[buffer(3)]],
               constant Attention& shape [[buffer(4)]],
               uint3 group [[threadgroup_position_in_grid]],
               uint lane [[thread_index_in_simdgroup]],
               uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    using V = typename Four<T>::type;
    threadgroup float tops[SIMDGROUPS];
    threadgroup float sums[SIMDGROUPS];
    threadgroup float4 values[SIMDGROUPS * BLOCK];

    uint row = group.x, head = group.y;
    device const V* query = (device const V*)(q + (head * shape.queries + row) * HEAD);
    device const V* keys = (device const V*)(k + head * shape.keys * HEAD);
    device const V* vs = (device const V*)(v + head * shape.keys * HEAD);
    float4 mine = float4(query[lane]) * shape.scale * SCALE;

    Running running;
    running.top = -3.0e38f;
    running.sum = 0;
    running.value = float4(0);

    uint last = shape.causal ? min(row + 1, shape.keys) : shape.keys;
    for (uint j = simdgroup; j < last; j += SIMDGROUPS) {
        float4 key = float4(keys[j * (HEAD / 4) + lane]);
        float score = simd_sum(dot(mine, key));
        running.add(score, float4(vs[j * (HEAD / 4) + lane]));
    }

    if (lane == 0) {
        tops[simdgroup] = running.top;
        sums[simdgroup] = running.sum;
    }
    values[simdgroup * BLOCK + lane] = running.value;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup == 0) {
        for (uint s = 1; s < SIMDGROUPS; s++) {
            running.join(tops[s], sums[s], values[s * BLOCK + lane]);
        }
        device V* result = (device V*)(out + (head * shape.queries + row) * HEAD);
        result[lane] = V(running.value / running.sum);
    }
}

template [[host_name("attention_float")]] [[kernel]] void attention<float>(
    device const float*, device const float*, device const float*, device float*, constant Attention&, uint3, uint, uint);
template [[host_name("attention_half")]] [[kernel]] void attention<half>(
    device const half*, device const half*, device const half*, device half*, constant Attention&, uint3, uint, uint);

// Blocks of keys: each lane owns one key of the block, the row's maximum goes round by shuffles.
[[max_total_threads_per_threadgroup(128)]]
kernel void attention_blocks(device const float4* q [[buffer(0)]],
                             device const float4* k [[buffer(1)]],
                             device const float4* v [[buffer(2)]],
                             device float4* out [[buffer(3)]],
                             constant Attention& shape [[buffer(4)]],
                             uint2 group [[threadgroup_position_in_grid]],
                             uint lane [[thread_index_in_simdgroup]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    constexpr uint VECTORS = HEAD / 4;
    uint row = group.x * SIMDGROUPS + simdgroup;
    uint head = group.y;
    if (row >= shape.queries) {
        return;
    }
    device const float4* query = q + (head * shape.queries + row) * VECTORS;
    float top = -3.0e38f, sum = 0;
    float4 value = 0;
    for (uint start = 0; start < shape.keys; start += BLOCK) {
        uint j = start + lane;
        float score = -3.0e38f;
        if (j < shape.keys && (!shape.causal || j <= row)) {
            device const float4* key = k + (head * shape.keys + j) * VECTORS;
            float4 partial = 0;
            for (uint c = 0; c < VECTORS; c += 4) {
                partial += query[c] * key[c];
                partial += query[c + 1] * key[c + 1];
                partial += query[c + 2] * key[c + 2];
                partial += query[c + 3] * key[c + 3];
            }
            score = (partial.x + partial.y + partial.z + partial.w) * shape.scale;
        }
        float higher = max(top, simd_max(score));
        float weight = score > -2.9e38f ? exp(score - higher) : 0.0f;
        float old = exp(top - higher);
        sum = sum * old + simd_sum(weight);
        value *= old;
        for (ushort s = 0; s < BLOCK && start + s < shape.keys; s++) {
            float w = simd_shuffle(weight, s);
            value += w * v[(head * shape.keys + start + s) * VECTORS + lane];
        }
        top = higher;
    }
    out[(head * shape.queries + row) * VECTORS + lane] = value / sum;
}

// The logarithm of each row's sum, for the backward pass, and the product of output and its gradient.
[[max_total_threads_per_threadgroup(128)]]
kernel void row_products(device const float4* out [[buffer(0)]],
                         device const float4* gradient [[buffer(1)]],
                         device float* products [[buffer(2)]],
                         constant Attention& shape [[buffer(3)]],
                         uint group [[threadgroup_position_in_grid]],
                         uint lane [[thread_index_in_simdgroup]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    uint row = group * SIMDGROUPS + simdgroup;
    if (row < shape.queries * shape.heads) {
        float product = dot(out[row * (HEAD / 4) + lane], gradient[row * (HEAD / 4) + lane]);
        product = simd_sum(product);
        if (lane == 0) {
            products[row] = product;
        }
    }
}
