#include <metal_stdlib>
using namespace metal;
constant float SCALE = 1.0 + VARIANT * 1e-9;

inline float2 cmul(float2 a, float2 b) { return float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
inline float2 twiddle(float angle) { float c; float s = sincos(angle, c); return float2(c, s); }

template <int R> struct butterfly;

template <> struct butterfly<2> {
    static void run(thread float2* v) {
        float2 t = v[0];
        v[0] = t + v[1];
        v[1] = t - v[1];
    }
};
template <> struct butterfly<4> {
    static void run(thread float2* v) {
        float2 a = v[0] + v[2], b = v[0] - v[2];
        float2 c = v[1] + v[3], d = v[1] - v[3];
        d = float2(d.y, -d.x);
        v[0] = a + c; v[1] = b + d; v[2] = a - c; v[3] = b - d;
    }
};
template <> struct butterfly<8> {
    static void run(thread float2* v) {
        float2 e[4] = {v[0], v[2], v[4], v[6]};
        float2 o[4] = {v[1], v[3], v[5], v[7]};
        butterfly<4>::run(e);
        butterfly<4>::run(o);
        const float h = M_SQRT1_2_F;
        o[1] = cmul(o[1], float2(h, -h));
        o[2] = float2(o[2].y, -o[2].x);
        o[3] = cmul(o[3], float2(-h, -h));
        for (int i = 0; i < 4; i++) { v[i] = e[i] + o[i]; v[i + 4] = e[i] - o[i]; }
    }
};

template <int R>
void stage(threadgroup float2* from, threadgroup float2* to, uint n, uint s, uint tid)
{
    uint m = n / R;
    float2 v[R];
    uint k = tid % s;
    uint j = tid - k;
    for (int r = 0; r < R; r++) v[r] = from[tid + r * m];
    for (int r = 1; r < R; r++) {
        float angle = -2.0f * M_PI_F * float(r) * float(k) / float(R * s);
        v[r] = cmul(v[r], twiddle(angle));
    }
    butterfly<R>::run(v);
    for (int r = 0; r < R; r++) to[j * R + k + r * s] = v[r];
}

#define N 1024
kernel void fft1024(device const float2* in [[buffer(0)]],
                    device float2* out [[buffer(1)]],
                    uint tid [[thread_index_in_threadgroup]],
                    uint group [[threadgroup_position_in_grid]])
{
    threadgroup float2 a[N];
    threadgroup float2 b[N];
    for (uint i = tid; i < N; i += 256) a[i] = in[group * N + i] * SCALE;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage<4>(a, b, N, 1, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage<4>(b, a, N, 4, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage<4>(a, b, N, 16, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage<4>(b, a, N, 64, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage<4>(a, b, N, 256, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < N; i += 256) out[group * N + i] = b[i];
}
kernel void fft512(device const float2* in [[buffer(0)]],
                   device float2* out [[buffer(1)]],
                   uint tid [[thread_index_in_threadgroup]],
                   uint group [[threadgroup_position_in_grid]])
{
    threadgroup float2 a[512];
    threadgroup float2 b[512];
    for (uint i = tid; i < 512; i += 64) a[i] = in[group * 512 + i] * SCALE;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage<8>(a, b, 512, 1, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage<8>(b, a, 512, 8, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage<8>(a, b, 512, 64, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < 512; i += 64) out[group * 512 + i] = b[i];
}
