#include <metal_stdlib>
using namespace metal;
constant float EPS = 1e-3f + VARIANT * 1e-12f;
struct Body { packed_float3 position; float mass; packed_float3 velocity; float padding; };
struct Sim { uint count; float dt; float damping; uint steps; };
#define TILE 256

static inline float3 interaction(float4 bi, float4 bj, float3 ai)
{
    float3 r = bj.xyz - bi.xyz;
    float d2 = dot(r, r) + EPS * EPS;
    float inv = rsqrt(d2);
    float inv3 = inv * inv * inv;
    return ai + r * (bj.w * inv3);
}

kernel void gravity_tiled(device const float4* positions [[buffer(0)]],
                          device const float4* velocities [[buffer(1)]],
                          device float4* new_positions [[buffer(2)]],
                          device float4* new_velocities [[buffer(3)]],
                          device float* energy [[buffer(4)]],
                          constant Sim& sim [[buffer(5)]],
                          uint gid [[thread_position_in_grid]],
                          uint lid [[thread_position_in_threadgroup]],
                          uint group [[threadgroup_position_in_grid]],
                          uint simd_lane [[thread_index_in_simdgroup]],
                          uint simd_group [[simdgroup_index_in_threadgroup]])
{
    threadgroup float4 tile[TILE];
    threadgroup float partial[TILE / 32];
    float4 me = gid < sim.count ? positions[gid] : float4(0);
    float3 acc = float3(0);
    float potential = 0;
    for (uint base = 0; base < sim.count; base += TILE) {
        uint j = base + lid;
        tile[lid] = j < sim.count ? positions[j] : float4(0);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < TILE; k += 4) {
            acc = interaction(me, tile[k + 0], acc);
            acc = interaction(me, tile[k + 1], acc);
            acc = interaction(me, tile[k + 2], acc);
            acc = interaction(me, tile[k + 3], acc);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    float4 v = gid < sim.count ? velocities[gid] : float4(0);
    v.xyz += acc * sim.dt;
    v.xyz *= sim.damping;
    me.xyz += v.xyz * sim.dt;
    if (gid < sim.count) {
        new_positions[gid] = me;
        new_velocities[gid] = v;
    }
    float kinetic = 0.5f * me.w * length_squared(v.xyz);
    kinetic = simd_sum(kinetic);
    if (simd_lane == 0) partial[simd_group] = kinetic;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd_group == 0) {
        float x = simd_lane < TILE / 32 ? partial[simd_lane] : 0;
        x = simd_sum(x);
        if (simd_lane == 0) energy[group] = x;
    }
}

kernel void collide(device Body* bodies [[buffer(0)]],
                    constant Sim& sim [[buffer(1)]],
                    constant float3& low [[buffer(2)]],
                    constant float3& high [[buffer(3)]],
                    uint gid [[thread_position_in_grid]])
{
    if (gid >= sim.count) return;
    device Body& b = bodies[gid];
    float3 p = float3(b.position), v = b.velocity;
    for (uint s = 0; s < sim.steps; s++) {
        v.y -= 9.81 * sim.dt;
        p += v * sim.dt;
        bool3 below = p < low, above = p > high;
        v = select(v, -v * sim.damping, below || above);
        p = clamp(p, low, high);
        if (any(below)) { v *= 0.99; }
    }
    b.position = p;
    b.velocity = packed_float3(v);
}
