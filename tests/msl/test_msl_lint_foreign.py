"""Kernels in the styles of the code bases that run on Apple GPUs: the rules find no error in them, and never crash."""

# Foreign code keeps its own line lengths.
# ruff: noqa: E501
from __future__ import annotations

import random

import pytest
from test_msl_diagnostics import edited

from mpsgrad.commands.compiled_check import FrontEnd
from mpsgrad.devices import opencl
from mpsgrad.devices.contract import CompileOptions
from mpsgrad.msl.lint import lint

SAXPY = """#include <metal_stdlib>
using namespace metal;
// No guard and no attribute on the last buffer: the host launches whole threadgroups.
kernel void saxpy(const device float *uniform [[ buffer(0) ]],
                  const device float *x [[ buffer(1) ]],
                  device float *out [[ buffer(2) ]],
                  uint id [[ thread_position_in_grid ]]) {
    float scale = uniform[0], t = 2.0 * uniform[1];
    out[id] = scale * x[id] + sin(t) + pow(x[id], 2.0);
}
"""

MANDELBROT = """#include <metal_stdlib>
using namespace metal;
kernel void mandelbrot(const device float *uniform [[ buffer(0) ]], device uchar4 *out [[ buffer(1) ]],
                       uint id [[ thread_position_in_grid ]]) {
    float width = uniform[0];
    float2 p = float2(id % int(width), id / int(width)) / width - 0.5;
    float2 z = 0, c = p * 3.0 - float2(0.5, 0);
    int steps = 0;
    for (int i = 0; i < 64; i++) {
        z = float2(z.x * z.x - z.y * z.y, 2.0 * z.x * z.y) + c;
        if (dot(z, z) > 4.0) { break; }
        steps++;
    }
    float shade = float(steps) / 64.0;
    float3 colour = mix(float3(0.1, 0.2, 0.4), float3(1.0, 0.9, 0.6), shade);
    colour = steps == 64 ? float3(0) : clamp(colour, 0.0, 1.0);
    out[id] = uchar4(uchar3(colour * 255.0), 255);
}
"""

TEMPLATE_AND_HOST_NAME = """#include <metal_stdlib>
#include <metal_simdgroup>
using namespace metal;
#define instantiate(name, T, U) \\
  template [[host_name("row_sum_" #name)]] [[kernel]] void row_sum<T, U, 4>( \\
      const device T* in, device U* out, constant const size_t& axis_size, uint gid [[threadgroup_position_in_grid]], \\
      uint lid [[thread_position_in_threadgroup]], uint lane [[thread_index_in_simdgroup]], \\
      uint group [[simdgroup_index_in_threadgroup]]);
struct Add {
  template <typename T> T operator()(T a, T b) { return a + b; }
  static constexpr constant int init = 0;
};
template <typename T, typename U = float> struct Cast { METAL_FUNC U operator()(T x) const thread { return U(x); } };
template <typename T> METAL_FUNC T log1p_approx(T x) {
  T u = T(1) + x;
  return u == T(1) ? x : x * (metal::log(u) / (u - T(1)));
}
template <typename T, typename U, int N_READS = 4>
[[kernel, max_total_threads_per_threadgroup(256)]] void row_sum(
    const device T* in [[buffer(0)]],
    device U* out [[buffer(1)]],
    constant const size_t& axis_size [[buffer(2)]],
    uint gid [[threadgroup_position_in_grid]],
    uint lid [[thread_position_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint group [[simdgroup_index_in_threadgroup]]) {
  constexpr int SIMD_SIZE = 32;
  threadgroup U local_sums[SIMD_SIZE];
  U acc = Add::init;
  Add op;
  in += gid * axis_size + lid * N_READS;
  if (lid * N_READS + N_READS <= axis_size) {
#pragma unroll
    for (int i = 0; i < N_READS; i++) { acc = op(acc, Cast<T, U>{}(in[i])); }
  } else {
    for (int i = 0; i < N_READS; i++) { acc += lid * N_READS + i < axis_size ? static_cast<U>(in[i]) : U(0); }
  }
  acc = simd_sum(acc);
  if (group == 0) { local_sums[lane] = 0; }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) { local_sums[group] = log1p_approx(acc); }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (group == 0 && lane == 0) { out[gid] = simd_sum(local_sums[lane]); }
}
instantiate(float32, float, float)
instantiate(float16, half, float)
"""

QUANTIZED = """#include <metal_stdlib>
using namespace metal;
#define QK4_0 32
#define N_SIMDWIDTH 32
#define MAX(x, y) ((x) > (y) ? (x) : (y))
#define FOR_UNROLL(x) _Pragma("clang loop unroll(full)") for (x)
typedef struct { half d; uint8_t qs[QK4_0 / 2]; } block_q4_0;
static_assert(sizeof(block_q4_0) == sizeof(half) + QK4_0 / 2, "wrong q4_0 block size");
typedef struct { int32_t ne00; uint64_t nb01; float eps; } ggml_args;
template <typename type4x4>
void dequantize_q4_0(device const block_q4_0 * xb, short il, thread type4x4 & reg) {
    device const uint16_t * qs = ((device const uint16_t *)xb + 1);
    const float d1 = il ? (xb->d / 16.h) : xb->d;
    const float d2 = d1 / 256.f;
    const ushort mask0 = il ? 0x00F0 : 0x000F;
    const ushort mask1 = mask0 << 8;
    float4x4 reg_f;
    for (int i = 0; i < 8; i++) {
        reg_f[i/2][2*(i%2) + 0] = d1 * (qs[i] & mask0) - 8.f * xb->d;
        reg_f[i/2][2*(i%2) + 1] = d2 * (qs[i] & mask1) - 8.f * xb->d;
    }
    reg = (type4x4) reg_f;
}
inline float block_dot(device const block_q4_0 * qb, float sumy, thread float * yl, int il) {
    float d = qb->d;
    float acc[4] = { 0.f, 0.f, 0.f, 0.f };
    device const uint16_t * qs = ((device const uint16_t *) qb + 1 + il/2);
    for (int i = 0; i < 8; i += 2) {
        acc[0] += yl[i + 0] * (qs[i / 2] & 0x000F);
        acc[1] += yl[i + 1] * (qs[i / 2] & 0x0F00);
    }
    return d * (sumy * -8.f + acc[0] + acc[1] + acc[2] + acc[3]);
}
kernel void kernel_rms_norm(
        constant ggml_args & args, device const char * src0, device char * dst,
        threadgroup float * shmem_f32 [[threadgroup(0)]],
        uint tgpig[[threadgroup_position_in_grid]], ushort tpitg[[thread_position_in_threadgroup]],
        ushort sgitg[[simdgroup_index_in_threadgroup]], ushort tiisg[[thread_index_in_simdgroup]],
        ushort ntg[[threads_per_threadgroup]]) {
    if (sgitg == 0) { shmem_f32[tiisg] = 0.0f; }
    device const float4 * x = (device const float4 *) (src0 + tgpig*args.nb01);
    float sumf = 0.0f;
    for (int i00 = tpitg; i00 < args.ne00 / 4; i00 += ntg) { sumf += dot(x[i00], x[i00]); }
    sumf = simd_sum(sumf);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tiisg == 0) { shmem_f32[sgitg] = sumf; }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sumf = simd_sum(shmem_f32[tiisg]);
    const float scale = 1.0f/sqrt(sumf/args.ne00 + args.eps);
    device float4 * y = (device float4 *) (dst + tgpig*args.nb01);
    FOR_UNROLL (int i00 = tpitg; i00 < args.ne00/4; i00 += ntg) { y[i00] = x[i00] * scale; }
}
typedef decltype(kernel_rms_norm) kernel_norm_t;
template<typename block_q, short nl, void (*dequantize_func)(device const block_q *, short, thread float4x4 &)>
kernel void kernel_get_rows_q(device const void * src0, device const int * src1, device float * dst,
        constant int64_t & ne00, uint3 tgpig[[threadgroup_position_in_grid]],
        ushort3 tptg[[threads_per_threadgroup]], ushort3 tpitg[[thread_position_in_threadgroup]]) {
    for (int64_t ind = tpitg.x; ind < ne00/16; ind += tptg.x) {
        float4x4 temp;
        dequantize_func(((device const block_q *)((const device char *)src0)) + ind/nl, ind%nl, temp);
        *(((device float4x4 *)dst) + ind) = temp;
    }
}
typedef decltype(kernel_get_rows_q<block_q4_0, 2, dequantize_q4_0>) get_rows_q_t;
template [[host_name("kernel_get_rows_q4_0")]] kernel get_rows_q_t kernel_get_rows_q<block_q4_0, 2, dequantize_q4_0>;
"""

GENERATED = """#include <metal_stdlib>
using namespace metal;
kernel void r_32_8(device float* data0, device half* data1, device int* data2, uint3 gid [[threadgroup_position_in_grid]], uint3 lid [[thread_position_in_threadgroup]]) {
  threadgroup __attribute__((aligned(16))) float temp0[8];
  int gidx0 = gid.x; /* 32 */
  int lidx0 = lid.x; /* 8 */
  bool alu0 = ((gidx0*8+lidx0)<250);
  float acc0 = 0.0f;
  for (int ridx0 = 0; ridx0 < 4; ridx0++) {
    half4 val0 = *((device half4*)((data1+((gidx0<<7)+(lidx0<<4)+(ridx0<<2)))));
    float val1 = (alu0?*(data0+ridx0):0.0f);
    acc0 = (acc0+((float)(val0.x)*val1)+(float)((val0.y+val0.z)));
    acc0 = (acc0+((bool)(data2[ridx0])?(float)(1):(float)(0)));
  }
  *(temp0+lidx0) = acc0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (((bool)(lidx0)!=1)) {
    float acc1 = 0.0f;
    for (int ridx1 = 0; ridx1 < 8; ridx1++) { acc1 = (acc1+(*(temp0+ridx1))); }
    *((device float4*)((data0+(gidx0<<2)))) = float4(acc1,acc1,exp2(acc1),as_type<float>((int)(as_type<int>(acc1)+(int)(1))));
  }
}
"""

GEMM = """#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
constant uint BM = 32, BN = 32, BK = 8;
kernel void gemm(device const half *A [[buffer(0)]], device const half *B [[buffer(1)]], device float *C [[buffer(2)]],
                 constant uint3 &shape [[buffer(3)]], uint2 group [[threadgroup_position_in_grid]],
                 uint lane [[thread_index_in_simdgroup]], uint warp [[simdgroup_index_in_threadgroup]]) {
    threadgroup half As[BM][BK], Bs[BK][BN];
    const uint K = shape.z, N = shape.y;
    simdgroup_matrix<float, 8, 8> acc[2] = {simdgroup_matrix<float, 8, 8>(0), make_filled_simdgroup_matrix<float, 8, 8>(0.f)};
    simdgroup_half8x8 a, b;
    for (uint k0 = 0; k0 < K; k0 += BK) {
        for (uint i = lane; i < BM * BK / 4; i += 32) {
            *(threadgroup half2*)&As[i / BK][i % BK] = *(device const half2*)(A + (group.y * BM + i / BK) * K + k0);
            Bs[i % BK][i / BK] = B[(k0 + i % BK) * N + group.x * BN + i / BK];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_load(a, &As[warp * 8][0], BK);
        for (short j = 0; j < 2; ++j) {
            simdgroup_load(b, &Bs[0][j * 8], BN);
            simdgroup_multiply_accumulate(acc[j], a, b, acc[j]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    acc[0].thread_elements()[0] = max(acc[0].thread_elements()[0], 0.0f);
    simdgroup_store(acc[0], C + group.y * BM * N + group.x * BN, N, ulong2(0, 0), false);
}
"""

COMPLEX_NUMBERS = """#include <metal_stdlib>
struct complex64_t {
  float real;
  float imag;
  constexpr complex64_t(float r, float i) : real(r), imag(i) {}
  constexpr complex64_t() thread : real(0), imag(0) {}
  constexpr complex64_t() threadgroup : real(0), imag(0) {}
  template <typename T, typename = typename metal::enable_if<metal::is_convertible<T, float>::value>::type>
  constexpr complex64_t(T x) thread : real(x), imag(0) {}
  constexpr operator float() const thread { return real; }
  constexpr operator float() const device { return real; }
};
constexpr complex64_t operator*(complex64_t a, complex64_t b) {
  return {a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};
}
template <typename T, typename = metal::enable_if_t<metal::is_same_v<T, float> && !metal::is_same_v<T, int>>>
constexpr complex64_t operator+(complex64_t a, T b) { return {a.real + b, a.imag}; }
inline bool operator<(complex64_t a, complex64_t b) { return (a.real < b.real) || (a.real == b.real && a.imag < b.imag); }
template <> struct metal::numeric_limits<complex64_t> { static constexpr constant bool is_specialized = true; };
namespace fft {
METAL_FUNC metal::float2 twiddle(int k, int n) {
  float theta = -2.0f * k * M_PI_F / n;
  return metal::float2{metal::fast::cos(theta), metal::precise::sin(theta)};
}
}
[[kernel]] void fft_step(const device complex64_t* in, device complex64_t* out, constant int& n,
                         constant const int64_t strides[2] [[buffer(3)]], metal::uint2 pos [[thread_position_in_grid]]) {
  if (int(pos.x) >= n) { return; }
  metal::float2 w = fft::twiddle(pos.x, n);
  complex64_t t = in[pos.x * strides[0]];
  out[pos.x] = t * complex64_t(w.x, w.y);
}
"""

ATOMICS = """#include <metal_stdlib>
#include <metal_atomic>
using namespace metal;
template <typename T> union bits { T value; uint raw; };
inline void atomic_add_float(volatile device atomic_uint *address, float value) {
    uint expected = atomic_load_explicit(address, memory_order_relaxed);
    uint desired = as_type<uint>(as_type<float>(expected) + value);
    while (!atomic_compare_exchange_weak_explicit(address, &expected, desired, memory_order_relaxed, memory_order_relaxed)) {
        desired = as_type<uint>(as_type<float>(expected) + value);
    }
}
inline uint find_root(device uint *parent, uint i) {
    while (parent[i] != i) { i = parent[i]; }
    return i;
}
kernel void histogram(device const uchar4 *pixels, device uint *bins, device atomic_uint *sum, constant uint &count,
                      uint i [[thread_position_in_grid]], uint stride [[threads_per_grid]],
                      ushort l [[thread_index_in_threadgroup]]) {
    threadgroup atomic_uint local[256];
    for (uint k = l; k < 256; k += 64) { atomic_store_explicit(&local[k], 0, memory_order_relaxed); }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (; i < count; i += stride) {
        uchar4 p = pixels[i];
        uint grey = (uint(p.r) * 77 + uint(p.g) * 151 + uint(p.b) * 28) >> 8;
        atomic_fetch_add_explicit(&local[min(grey, 255u)], 1, memory_order_relaxed);
        bits<float> b;
        b.value = float(grey) / 255.0;
        if (b.raw & 1) { atomic_add_float(sum, b.value); }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = l; k < 256; k += 64) {
        uint n = atomic_load_explicit(&local[k], memory_order_relaxed);
        atomic_fetch_add_explicit((device atomic_uint *)&bins[k], n, memory_order_relaxed);
        atomic_fetch_max_explicit((device atomic_int *)(bins + 256), int(find_root(bins, k)), memory_order_relaxed);
    }
}
"""

REDUCTION = """#include <metal_stdlib>
using namespace metal;
struct Params { uint n; float scale; packed_float3 origin; uint flags[4]; };
constant float pi = 3.14159265;
constant float4 table[2] = {float4(0.25), {1, 2, 3, 4}};
constant int A = 1, B = A << 2;
enum class Mode : uint { sum = 0, mean };
static inline float3 to_float3(packed_float3 p) { return float3(p.x, p.y, p.z); }
kernel void reduce(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                   constant Params& p [[buffer(2)]], uint gid [[thread_position_in_grid]],
                   uint tid [[thread_index_in_threadgroup]], uint tgsize [[threads_per_threadgroup]],
                   uint simd_lane [[thread_index_in_simdgroup]], uint simd_id [[simdgroup_index_in_threadgroup]]) {
    threadgroup float partial[32];
    float acc = 0.0f;
    const uint n4 = p.n / 4;
    device const float4* x4 = reinterpret_cast<device const float4*>(x);
    for (uint i = gid; i < n4; i += tgsize) { float4 v = x4[i]; acc += dot(v, v) + v.x * v[1]; v.xy += v.wz; }
    acc = simd_sum(acc) + length(to_float3(p.origin)) * table[0].w + (p.flags[0] & (1u << (B & 3)) ? pi : -INFINITY);
    if (simd_lane == 0) partial[simd_id] = acc;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid == 0) {
        for (uint s = 1; s < (tgsize + 31) / 32; ++s) acc += partial[s];
        Mode mode = Mode(p.flags[1]);
        switch (mode) { case Mode::sum: break; default: acc /= float(max(p.n, 1u)); }
        out[0] = (mode == Mode::sum) ? acc : fast::exp(acc) * precise::rsqrt(p.scale);
        uint active = uint(ulong(simd_ballot(acc > 0))), c = popcount(active) + ctz(active), shifted = active >> 31;
        out[1] = float(c + (shifted ^ ~active)) * (acc < 0 ? -1.0 : +1.0);
    }
}
"""

SORT = """#include <metal_stdlib>
using namespace metal;
template <typename T> inline void swap_if(device T &a, device T &b, bool up) {
    if ((a > b) == up) { T t = a; a = b; b = t; }
}
template <typename K, typename V> struct pair { K key; V value; bool operator<(const thread pair &o) const thread { return key < o.key; } };
kernel void bitonic_sort(device uint *data [[buffer(0)]], constant uint &k [[buffer(1)]], constant uint *j_ptr [[buffer(2)]],
                         uint gid [[thread_position_in_grid]]) {
    uint j = *j_ptr, partner = gid ^ j;
    if (partner > gid) swap_if(data[gid], data[partner], (gid & k) == 0);
}
kernel void init(device uint *data, uint gid [[thread_position_in_grid]], uint total [[threads_per_grid]]) { data[gid] = total - gid; }
kernel void test(device float2 *data, constant float2x2 &m, uint gid [[thread_position_in_grid]]) {
    float2x2 r = m * float2x2(1.0);
    r[0] = data[gid] * r;
    data[gid] = r * data[gid] + transpose(r)[1].yx;
}
"""

MACROS = """#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 310
typedef bfloat storage_t;
#else
typedef half storage_t;
#endif
#define KERNEL(NAME, T, EXPR) \\
kernel void NAME##_##T(device const T *x [[buffer(0)]], device T *y [[buffer(1)]], constant int &n [[buffer(2)]], \\
                       uint i [[thread_position_in_grid]]) { if (i < (uint)n) { T v = x[i]; y[i] = T(EXPR); } }
#define FOR_TYPES(NAME, EXPR) KERNEL(NAME, float, EXPR) KERNEL(NAME, half, EXPR)
#define erf_poly(x) (1.0f - (((1.061405429f * (x) - 1.453152027f) * (x) + 1.421413741f) * (x)))
FOR_TYPES(relu, max(v, decltype(v)(0)))
FOR_TYPES(gelu, 0.5f * v * (1.0f + precise::tanh(0.79788456f * (v + 0.044715f * v * v * v))))
FOR_TYPES(silu, v / (1.0f + exp(-v)))
FOR_TYPES(erf, erf_poly(float(v)))
kernel void convert(device const float *x, device storage_t *y, uint i [[thread_position_in_grid]]) {
    y[i] = static_cast<storage_t>(clamp(x[i], -65504.0f, 65504.0f));
}
"""

ACTIVATIONS = """#include <metal_stdlib>
#include <simd/simd.h>
using namespace metal;
typedef struct { vector_float4 mean; simd::float3 scale; } legacy_t;
float erf(float x) { return copysign(1.0f - exp(-x * x), x); }
float log1p(float x) { return log(1.0f + x); }
half2 swap(half2 v) { return v.yx; }
float softplus(float x) { return x > 20.0f ? x : log1p(exp(x)); }
kernel void activations(texture2d<float, access::read> source [[texture(0)]], sampler s [[sampler(0)]],
                        device float *out [[buffer(0)]], constant bool &flip [[buffer(1)]],
                        ushort2 position [[thread_position_in_grid]]) {
    float4 c = source.read(uint2(position));
    bool4 positive = c > 0.0;
    float4 selected = select(c * 0.01, c, positive);
    half4 h = half4(selected);
    h.xy = swap(h.zw);
    uint bits = as_type<uint>(h.xy), other = as_type<uint>(half2(h.z, 1.0h));
    int shifted = int(bits >> 16) - (other & 0xFFFF), index = position.y * source.get_width() + position.x;
    out[index] = all(positive) && any(c < 1.0) ? erf(softplus(float(h.x))) : float(shifted) * (flip ? -1 : 1);
}
"""

FOREIGN = {
    "saxpy": SAXPY, "mandelbrot": MANDELBROT, "template_and_host_name": TEMPLATE_AND_HOST_NAME, "quantized": QUANTIZED,
    "generated": GENERATED, "gemm": GEMM, "complex_numbers": COMPLEX_NUMBERS, "atomics": ATOMICS,
    "reduction": REDUCTION, "sort": SORT, "macros": MACROS, "activations": ACTIVATIONS,
}  # fmt: skip


@pytest.mark.parametrize("version", ["2.3", "2.4", "3.0", "3.1", "3.2"])
@pytest.mark.parametrize("name", FOREIGN)
def test_no_error_in_a_foreign_kernel(name: str, version: str) -> None:
    found = lint(FOREIGN[name], filename=f"{name}.metal", language_version=version)
    assert [str(finding) for finding in found if finding.severity == "error"] == []


@pytest.mark.skipif(not opencl.devices(), reason="asks the OpenCL compiler")
def test_the_compiler_finds_no_error_in_foreign_kernels() -> None:
    front_end = FrontEnd()
    for name, source in FOREIGN.items():
        options = CompileOptions(language_version="3.2" if "bfloat" in source else "2.3")
        found = front_end.errors(source, f"{name}.metal", options)
        assert [str(finding) for finding in found if finding.severity == "error"] == []


# size_t as an argument.
WARNED = {"template_and_host_name": {22}}


@pytest.mark.parametrize("name", FOREIGN)
def test_warnings_are_few(name: str) -> None:
    assert {finding.rule for finding in lint(FOREIGN[name], filename=f"{name}.metal")} <= WARNED.get(name, set())


def survives(source: str) -> None:
    for finding in lint(source, metalcompute=True):
        assert finding.line >= 1 and finding.message


@pytest.mark.parametrize("name", FOREIGN)
def test_truncations_and_random_edits_never_crash(name: str) -> None:
    source = FOREIGN[name]
    choose = random.Random(name)
    for _ in range(12):
        survives(source[: choose.randrange(len(source))])
    for _ in range(25):
        survives(edited(source, choose))


@pytest.mark.nightly
@pytest.mark.parametrize("name", FOREIGN)
def test_truncations_and_random_edits_never_crash_all_night(name: str) -> None:
    choose = random.Random(f"{name} at night")
    for _ in range(850):
        survives(edited(FOREIGN[name], choose))
