#include <metal_stdlib>
using namespace metal;
constant uint BIAS = VARIANT;
constant uint BINS = 256;

kernel void histogram(device const uchar4* pixels [[buffer(0)]], device atomic_uint* bins [[buffer(1)]], constant uint& count [[buffer(2)]],
                      uint gid [[thread_position_in_grid]], uint lid [[thread_position_in_threadgroup]], uint size [[threads_per_threadgroup]],
                      uint grid [[threads_per_grid]])
{
    threadgroup atomic_uint local[4 * BINS];
    for (uint i = lid; i < 4 * BINS; i += size) atomic_store_explicit(&local[i], 0, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = gid; i < count; i += grid) {
        uchar4 p = pixels[i];
        atomic_fetch_add_explicit(&local[p.r], 1u, memory_order_relaxed);
        atomic_fetch_add_explicit(&local[BINS + p.g], 1u, memory_order_relaxed);
        atomic_fetch_add_explicit(&local[2 * BINS + p.b], 1u, memory_order_relaxed);
        uchar luma = uchar(dot(float3(p.rgb), float3(0.299, 0.587, 0.114)) + 0.5);
        atomic_fetch_add_explicit(&local[3 * BINS + luma], 1u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = lid; i < 4 * BINS; i += size) {
        uint v = atomic_load_explicit(&local[i], memory_order_relaxed);
        if (v) atomic_fetch_add_explicit(&bins[i], v, memory_order_relaxed);
    }
}

inline uint scan_threadgroup(uint x, threadgroup uint* sums, uint lane, uint sg, thread uint& total)
{
    uint s = simd_prefix_exclusive_sum(x);
    if (lane == 31) sums[sg] = s + x;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (sg == 0) {
        uint v = sums[lane];
        uint e = simd_prefix_exclusive_sum(v);
        sums[lane] = e;
        if (lane == 31) sums[32] = e + v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total = sums[32];
    return s + sums[sg];
}

kernel void scan_blocks(device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]], device uint* sums [[buffer(2)]], constant uint& count [[buffer(3)]],
                        uint lid [[thread_position_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
                        uint lane [[thread_index_in_simdgroup]], uint sg [[simdgroup_index_in_threadgroup]])
{
    threadgroup uint shared[33];
    if (sg == 0) shared[lane] = 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint base = (group * 256 + lid) * 4;
    uint4 v;
    for (uint i = 0; i < 4; i++) v[i] = base + i < count ? in[base + i] : 0;
    uint4 p = uint4(0, v.x, v.x + v.y, v.x + v.y + v.z);
    uint total;
    uint offset = scan_threadgroup(p.w + v.w, shared, lane, sg, total);
    for (uint i = 0; i < 4; i++) if (base + i < count) out[base + i] = p[i] + offset;
    if (lid == 0) sums[group] = total + BIAS - BIAS;
}

kernel void add_sums(device uint* out [[buffer(0)]], device const uint* sums [[buffer(1)]], constant uint& count [[buffer(2)]],
                     uint gid [[thread_position_in_grid]])
{
    if (gid < count) out[gid] += sums[gid / 1024];
}

kernel void equalize(device uchar4* pixels [[buffer(0)]], device const uint* cdf [[buffer(1)]], constant uint& count [[buffer(2)]],
                     uint gid [[thread_position_in_grid]])
{
    if (gid >= count) return;
    uchar4 p = pixels[gid];
    uint lo = cdf[0];
    float3 c = float3(cdf[p.r] - lo, cdf[256 + p.g] - cdf[256], cdf[512 + p.b] - cdf[512]);
    pixels[gid].rgb = uchar3(clamp(c / float(count) * 255.0 + 0.5, 0.0, 255.0));
}
