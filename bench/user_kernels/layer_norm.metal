#include <metal_stdlib>
#include <metal_simdgroup>
using namespace metal;
constant float SCALE = 1.0f + VARIANT * 1e-9f;
#define SIMD 32
struct LNArgs { uint rows; uint cols; float eps; };

template <typename T> struct Welford { T mean; T m2; T n; };
template <typename T> inline Welford<T> combine(Welford<T> a, Welford<T> b)
{
    T n = a.n + b.n;
    if (n == 0) return a;
    T d = b.mean - a.mean;
    return {a.mean + d * b.n / n, a.m2 + b.m2 + d * d * a.n * b.n / n, n};
}
template <typename T> inline Welford<T> simd_welford(Welford<T> w)
{
    for (ushort o = SIMD / 2; o > 0; o >>= 1) {
        Welford<T> x = {simd_shuffle_down(w.mean, o), simd_shuffle_down(w.m2, o), simd_shuffle_down(w.n, o)};
        w = combine(w, x);
    }
    return {simd_broadcast_first(w.mean), simd_broadcast_first(w.m2), simd_broadcast_first(w.n)};
}

template <typename T>
kernel void layer_norm(device const T* x [[buffer(0)]], device const T* gamma [[buffer(1)]], device const T* beta [[buffer(2)]],
                       device T* y [[buffer(3)]], device float2* stats [[buffer(4)]], constant LNArgs& args [[buffer(5)]],
                       uint row [[threadgroup_position_in_grid]], uint tid [[thread_position_in_threadgroup]],
                       uint tpg [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                       uint sg [[simdgroup_index_in_threadgroup]], uint nsg [[simdgroups_per_threadgroup]])
{
    threadgroup Welford<float> shared[32];
    Welford<float> w = {0, 0, 0};
    const device vec<T, 4>* x4 = (const device vec<T, 4>*)(x + row * args.cols);
    for (uint i = tid; i < args.cols / 4; i += tpg) {
        float4 v = float4(x4[i]);
        for (int k = 0; k < 4; k++) {
            w.n += 1;
            float d = v[k] - w.mean;
            w.mean += d / w.n;
            w.m2 += d * (v[k] - w.mean);
        }
    }
    w = simd_welford(w);
    if (lane == 0) shared[sg] = w;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (sg == 0) {
        w = {0, 0, 0};
        if (lane < nsg) w = shared[lane];
        w = simd_welford(w);
        if (lane == 0) shared[0] = w;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    w = shared[0];
    float mean = w.mean, inv = precise::rsqrt(w.m2 / w.n + args.eps) * SCALE;
    if (tid == 0) stats[row] = float2(mean, inv);
    device vec<T, 4>* y4 = (device vec<T, 4>*)(y + row * args.cols);
    const device vec<T, 4>* g4 = (const device vec<T, 4>*)gamma;
    const device vec<T, 4>* b4 = (const device vec<T, 4>*)beta;
    for (uint i = tid; i < args.cols / 4; i += tpg) {
        y4[i] = vec<T, 4>((float4(x4[i]) - mean) * inv * float4(g4[i]) + float4(b4[i]));
    }
}
#define LN(T) template [[host_name("layer_norm_" #T)]] kernel void layer_norm<T>(device const T*, device const T*, device const T*, device T*, device float2*, constant LNArgs&, uint, uint, uint, uint, uint, uint);
LN(float)
LN(half)

kernel void layer_norm_backward(device const float4* x [[buffer(0)]], device const float4* dy [[buffer(1)]], device const float4* gamma [[buffer(2)]],
                                device const float2* stats [[buffer(3)]], device float4* dx [[buffer(4)]], constant LNArgs& args [[buffer(5)]],
                                uint row [[threadgroup_position_in_grid]], uint tid [[thread_position_in_threadgroup]],
                                uint tpg [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]], uint sg [[simdgroup_index_in_threadgroup]])
{
    threadgroup float sa[32], sb[32];
    float mean = stats[row].x, inv = stats[row].y;
    float a = 0, b = 0;
    uint n = args.cols / 4;
    for (uint i = tid; i < n; i += tpg) {
        float4 h = (x[row * n + i] - mean) * inv;
        float4 g = dy[row * n + i] * gamma[i];
        a += dot(g, float4(1));
        b += dot(g, h);
    }
    a = simd_sum(a);
    b = simd_sum(b);
    if (lane == 0) { sa[sg] = a; sb[sg] = b; }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    a = 0; b = 0;
    for (uint i = 0; i < (tpg + 31) / 32; i++) { a += sa[i]; b += sb[i]; }
    a /= args.cols; b /= args.cols;
    for (uint i = tid; i < n; i += tpg) {
        float4 h = (x[row * n + i] - mean) * inv;
        dx[row * n + i] = inv * (dy[row * n + i] * gamma[i] - a - h * b);
    }
}
