#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
// Flash attention: a simdgroup owns eight queries, all loops over the products of a head of 64 are unrolled.
struct Attention {
    int queries;
    int keys;
    float scale;
};

constant float SCALE = 1.0f + VARIANT * 1e-6f;
#define Q 8
#define C 32
#define D 64
#define D8 (D/8)
#define D4 (D/4)
#define FOR_UNROLL(x) _Pragma("clang loop unroll(full)") for (x)

kernel void flash_attention(constant Attention& args [[buffer(0)]],
        device const float* q [[buffer(1)]],
        device const float* k [[buffer(2)]],
        device const float* v [[buffer(3)]],
        device float* dst [[buffer(4)]],
        threadgroup float* shared [[threadgroup(0)]],
        uint3 group [[threadgroup_position_in_grid]],
        ushort lane [[thread_index_in_simdgroup]]) {
    threadgroup float* sq = shared;              // Q*D
    threadgroup float* ss = shared + Q * D;      // Q*C
    threadgroup float4* sq4 = (threadgroup float4*)sq;
    const int iq = group.x * Q;
    device const float4* q4 = (device const float4*)(q + group.y * args.queries * D);
    for (int i = lane; i < Q * D4; i += 32) {
        int r = i / D4;
        sq4[i] = iq + r < args.queries ? q4[(iq + r) * D4 + (i % D4)] * args.scale * SCALE : float4(0.0f);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_float8x8 mq[D8];
    FOR_UNROLL (short i = 0; i < D8; ++i) simdgroup_load(mq[i], sq + i * 8, D);
    simdgroup_float8x8 lo[D8];
    FOR_UNROLL (short i = 0; i < D8; ++i) lo[i] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    float S[Q];
    float M[Q];
    FOR_UNROLL (short j = 0; j < Q; ++j) { S[j] = 0.0f; M[j] = -FLT_MAX / 2; }
    device const float* pk = k + group.y * args.keys * D;
    device const float* pv = v + group.y * args.keys * D;
    for (int ic = 0; ic < args.keys; ic += C) {
        FOR_UNROLL (short cc = 0; cc < C / 8; ++cc) {
            simdgroup_float8x8 mqk = make_filled_simdgroup_matrix<float, 8>(0.0f);
            FOR_UNROLL (short i = 0; i < D8; ++i) {
                simdgroup_float8x8 mk;
                simdgroup_load(mk, pk + (ic + 8 * cc) * D + i * 8, D, ulong2(0, 0), true);
                simdgroup_multiply_accumulate(mqk, mq[i], mk, mqk);
            }
            simdgroup_store(mqk, ss + 8 * cc, C);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        FOR_UNROLL (short j = 0; j < Q; ++j) {
            const float m = M[j];
            const float s = ss[j * C + lane];
            M[j] = simd_max(max(M[j], s));
            const float ms = exp(m - M[j]);
            const float vs = exp(s - M[j]);
            S[j] = S[j] * ms + simd_sum(vs);
            ss[j * C + lane] = vs;
            if (lane == 0) sq[j] = ms;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        {
            float m0 = sq[((lane >> 4) & 1) * 4 + ((lane >> 1) & 3)];
            FOR_UNROLL (short i = 0; i < D8; ++i) {
                lo[i].thread_elements()[0] *= m0;
                lo[i].thread_elements()[1] *= m0;
            }
        }
        FOR_UNROLL (short cc = 0; cc < C / 8; ++cc) {
            simdgroup_float8x8 ms;
            simdgroup_load(ms, ss + 8 * cc, C);
            FOR_UNROLL (short i = 0; i < D8; ++i) {
                simdgroup_float8x8 mv;
                simdgroup_load(mv, pv + (ic + 8 * cc) * D + i * 8, D);
                simdgroup_multiply_accumulate(lo[i], ms, mv, lo[i]);
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    FOR_UNROLL (short i = 0; i < D8; ++i) simdgroup_store(lo[i], sq + i * 8, D);
    if (lane == 0) {
        FOR_UNROLL (short j = 0; j < Q; ++j) ss[j] = 1.0f / S[j];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    device float4* o4 = (device float4*)(dst + group.y * args.queries * D);
    for (int i = lane; i < Q * D4; i += 32) {
        int r = i / D4;
        if (iq + r < args.queries) o4[(iq + r) * D4 + (i % D4)] = sq4[i] * ss[r];
    }
}
