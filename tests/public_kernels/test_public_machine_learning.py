"""Kernels of machine-learning libraries, written anew after what they compute, each against NumPy in float64."""

# Shaders are written as they would be in a file of their own.
# ruff: noqa: E501
from __future__ import annotations

import math

import numpy as np
import pytest

import mpsgrad as mg

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"


def test_adam_step() -> None:
    source = HEADER + """
    struct AdamParams { float lr, beta1, beta2, eps; uint step, count; };
    kernel void adam_step(device float* p [[buffer(0)]], device const float* g [[buffer(1)]], device float* m [[buffer(2)]],
                          device float* v [[buffer(3)]], constant AdamParams& a [[buffer(4)]], uint i [[thread_position_in_grid]]) {
        if (i >= a.count) return;
        m[i] = fma(a.beta1, m[i], (1.0f - a.beta1) * g[i]);
        v[i] = fma(a.beta2, v[i], (1.0f - a.beta2) * g[i] * g[i]);
        float mh = m[i] / (1.0f - precise::pow(a.beta1, float(a.step))), vh = v[i] / (1.0f - precise::pow(a.beta2, float(a.step)));
        p[i] -= a.lr * mh / (precise::sqrt(vh) + a.eps);
    }"""
    function = mg.compile(source).function("adam_step")
    generator = np.random.default_rng(1)
    p, m, v = generator.standard_normal(100).astype(np.float32), np.zeros(100, np.float32), np.zeros(100, np.float32)
    ep, em, ev = p.astype(np.float64), np.zeros(100), np.zeros(100)
    layout = np.dtype([(name, "f4") for name in ("lr", "beta1", "beta2", "eps")] + [("step", "u4"), ("count", "u4")])
    for step in range(1, 6):
        g = generator.standard_normal(100).astype(np.float32)
        function(128, p, g, m, v, np.array((0.01, 0.9, 0.999, 1e-8, step, 100), layout)[()])
        em, ev = 0.9 * em + 0.1 * g, 0.999 * ev + 0.001 * g.astype(np.float64) ** 2
        ep -= 0.01 * (em / (1 - 0.9**step)) / (np.sqrt(ev / (1 - 0.999**step)) + 1e-8)
    np.testing.assert_allclose(p, ep, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("scalar", "dtype"), [("float", np.float32), ("half", np.float16)])
def test_softmax_of_rows(scalar: str, dtype: type) -> None:
    source = HEADER + """
    template <typename T, typename AccT, int N_READS = 4> [[kernel]] void softmax_row(
        const device T* in, device T* out, constant int& axis_size, uint gid [[threadgroup_position_in_grid]],
        uint lid [[thread_position_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
        uint group [[simdgroup_index_in_threadgroup]]) {
        threadgroup AccT local_max[32];
        threadgroup AccT local_normalizer[32];
        AccT values[N_READS];
        in += gid * size_t(axis_size) + lid * N_READS;
        out += gid * size_t(axis_size) + lid * N_READS;
        int rest = axis_size - int(lid) * N_READS;
        for (int i = 0; i < N_READS; i++) values[i] = i < rest ? AccT(in[i]) : AccT(-numeric_limits<AccT>::max());
        if (group == 0) { local_max[lane] = -numeric_limits<AccT>::max(); local_normalizer[lane] = 0; }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        AccT largest = values[0];
        for (int i = 1; i < N_READS; i++) largest = (largest < values[i]) ? values[i] : largest;
        largest = simd_max(largest);
        if (lane == 0) local_max[group] = largest;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        largest = simd_max(local_max[lane]);
        AccT normalizer = 0;
        for (int i = 0; i < N_READS; i++) { values[i] = fast::exp(values[i] - largest); normalizer += i < rest ? values[i] : AccT(0); }
        normalizer = simd_sum(normalizer);
        if (lane == 0) local_normalizer[group] = normalizer;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        normalizer = 1 / simd_sum(local_normalizer[lane]);
        for (int i = 0; i < N_READS; i++) if (i < rest) out[i] = T(values[i] * normalizer);
    }
    #define instantiate(name, type) template [[host_name("softmax_" #name)]] [[kernel]] void softmax_row<type, float>( \\
        const device type*, device type*, constant int&, uint, uint, uint, uint);
    instantiate(float, float)
    instantiate(half, half)"""
    x = np.random.default_rng(2).normal(0, 3, (7, 301)).astype(dtype)
    out = np.zeros_like(x)
    function = mg.compile(source).function(f"softmax_{scalar}")
    function(7, x, out, np.int32(301), threadgroup=96, grid_of_threadgroups=True)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=2e-5 if scalar == "float" else 2e-3, atol=1e-6)


def test_rms_norm_with_threadgroup_memory_given_by_the_caller() -> None:
    source = HEADER + """
    #define MIN(x, y) ((x) < (y) ? (x) : (y))
    kernel void kernel_rms_norm(device const void* src0, device float* dst, constant int64_t& ne00, constant uint64_t& nb01,
        constant float& eps, threadgroup float* buf [[threadgroup(0)]], uint tgpig [[threadgroup_position_in_grid]],
        uint tpitg [[thread_position_in_threadgroup]], uint sgitg [[simdgroup_index_in_threadgroup]],
        uint tiisg [[thread_index_in_simdgroup]], uint ntg [[threads_per_threadgroup]]) {
        device const float4* x = (device const float4*)((device const char*)src0 + tgpig * nb01);
        if (sgitg == 0) buf[tiisg] = 0.0f;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float sumf = 0;
        for (int i00 = tpitg; i00 < ne00 / 4; i00 += ntg) sumf += dot(x[i00], x[i00]);
        sumf = simd_sum(sumf);
        if (tiisg == 0) buf[sgitg] = sumf;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        sumf = simd_sum(buf[tiisg]);
        const float scale = 1.0f / sqrt(sumf / ne00 + eps);
        device float4* y = (device float4*)(dst + tgpig * ne00);
        for (int i00 = tpitg; i00 < ne00 / 4; i00 += ntg) y[i00] = x[i00] * scale;
    }"""
    x = np.random.default_rng(3).standard_normal((5, 260)).astype(np.float32)
    out = np.zeros_like(x)
    function = mg.compile(source).function("kernel_rms_norm")
    function(5, x, out, np.int64(260), np.uint64(1040), np.float32(1e-5), threadgroup=64, grid_of_threadgroups=True,
             threadgroup_memory=128)  # fmt: skip
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(out, expected, rtol=1e-5)


def test_matrix_product_in_tiles() -> None:
    source = HEADER + """
    constant uint TILE = 16;
    kernel void matmul(device const float* A, device const float* B, device float* C, constant uint3& size,
                       uint2 t [[thread_position_in_threadgroup]], uint2 g [[threadgroup_position_in_grid]]) {
        threadgroup float a[TILE][TILE + 1], b[TILE][TILE + 1];
        uint row = g.y * TILE + t.y, column = g.x * TILE + t.x;
        float sum = 0.0;
        for (uint k = 0; k < size.z; k += TILE) {
            a[t.y][t.x] = (row < size.x && k + t.x < size.z) ? A[row * size.z + k + t.x] : 0;
            b[t.y][t.x] = (column < size.y && k + t.y < size.z) ? B[(k + t.y) * size.y + column] : 0;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            #pragma unroll
            for (uint i = 0; i < TILE; i++) sum += a[t.y][i] * b[i][t.x];
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        if (row < size.x && column < size.y) C[row * size.y + column] = sum;
    }"""
    generator = np.random.default_rng(4)
    a, b = generator.standard_normal((37, 45), np.float32), generator.standard_normal((45, 29), np.float32)
    c = np.zeros((37, 29), np.float32)
    function = mg.compile(source).function("matmul")
    function((2, 3), a, b, c, (37, 29, 45), threadgroup=(16, 16), grid_of_threadgroups=True)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, atol=1e-5 * math.sqrt(45))


@pytest.mark.parametrize(("scalar", "dtype"), [("float", np.float32), ("half", np.float16)])
def test_matrix_product_by_simdgroups(scalar: str, dtype: type) -> None:
    source = HEADER + f"""
    typedef {scalar} T;
    kernel void gemm(device const T* A, device const T* B, device float* C, constant uint& n, constant uint& k,
                     uint3 g [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {{
        simdgroup_matrix<T, 8, 8> a[2], b;
        simdgroup_float8x8 c[2];
        for (short i = 0; i < 2; i++) c[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.f);
        for (uint at = 0; at < k; at += 8) {{
            simdgroup_load(b, B + at * n + g.x * 8, n);
            for (short i = 0; i < 2; i++) {{
                simdgroup_load(a[i], A + (g.y * 16 + 8 * i) * k + at, k);
                simdgroup_multiply_accumulate(c[i], a[i], b, c[i]);
            }}
        }}
        for (short i = 0; i < 2; i++) {{
            thread auto& e = c[i].thread_elements();
            e[0] *= 2; e[1] *= 2;
            simdgroup_store(c[i], C + (g.y * 16 + 8 * i) * n + g.x * 8, n);
        }}
    }}"""
    generator = np.random.default_rng(5)
    a, b = (generator.standard_normal(shape).astype(dtype) for shape in ((32, 24), (24, 16)))
    c = np.zeros((32, 16), np.float32)
    function = mg.compile(source).function("gemm")
    function((2, 2), a, b, c, np.uint32(16), np.uint32(24), threadgroup=32, grid_of_threadgroups=True)
    expected = 2 * (a.astype(np.float64) @ b.astype(np.float64))
    np.testing.assert_allclose(c, expected, atol=1e-4)


def test_product_of_a_matrix_of_4_bit_blocks_with_a_vector() -> None:
    source = HEADER + """
    #define QK4_0 32
    typedef struct { half d; uint8_t qs[QK4_0 / 2]; } block_q4_0;
    inline float block_q_n_dot_y(device const block_q4_0* qb, thread const float* y) {
        float acc[2] = {0.f, 0.f}, sumy = 0.f;
        for (int i = 0; i < QK4_0 / 2; i++) {
            acc[0] += y[i] * (qb->qs[i] & 0x0F);
            acc[1] += y[i + QK4_0 / 2] * (qb->qs[i] >> 4);
            sumy += y[i] + y[i + QK4_0 / 2];
        }
        return qb->d * (acc[0] + acc[1] - 8.f * sumy);
    }
    kernel void mul_mv(device const void* src0, device const float* src1, device float* dst, constant int& blocks,
                       uint row [[threadgroup_position_in_grid]], ushort tiisg [[thread_index_in_simdgroup]]) {
        device const block_q4_0* x = (device const block_q4_0*)src0 + row * blocks;
        float sumf = 0.f, yl[QK4_0];
        for (int ib = tiisg; ib < blocks; ib += 32) {
            device const float* y = src1 + ib * QK4_0;
            for (int i = 0; i < QK4_0; ++i) { yl[i] = y[i]; }
            sumf += block_q_n_dot_y(x + ib, yl);
        }
        const float tot = simd_sum(sumf);
        if (tiisg == 0) dst[row] = tot;
    }"""
    generator = np.random.default_rng(6)
    blocks = np.zeros((9, 40), [("d", "<f2"), ("qs", "u1", 16)])
    blocks["d"], blocks["qs"] = generator.random(blocks.shape) / 8, generator.integers(0, 256, (9, 40, 16))
    y, out = generator.standard_normal(40 * 32).astype(np.float32), np.zeros(9, np.float32)
    function = mg.compile(source).function("mul_mv")
    function(9, blocks, y, out, np.int32(40), threadgroup=32, grid_of_threadgroups=True)
    weights = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], -1).astype(np.float64) - 8
    expected = ((weights * blocks["d"][..., None]).reshape(9, -1) * y).sum(1)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-3)


def test_rotary_embedding() -> None:
    source = HEADER + """
    kernel void rope(device const float* x, device float* y, constant float& base, constant int& dims, constant int& offset,
                     uint3 pos [[thread_position_in_grid]], uint3 grid [[threads_per_grid]]) {
        float position = float(int(pos.y) + offset);
        float theta = position * precise::pow(base, -2.0 * float(pos.x) / dims);
        float costheta = precise::cos(theta), sintheta = precise::sin(theta);
        uint i = (pos.z * grid.y + pos.y) * dims + pos.x, j = i + dims / 2;
        y[i] = x[i] * costheta - x[j] * sintheta;
        y[j] = x[i] * sintheta + x[j] * costheta;
    }"""
    x = np.random.default_rng(7).standard_normal((2, 5, 16)).astype(np.float32)
    y = np.zeros_like(x)
    mg.compile(source).function("rope")((8, 5, 2), x, y, np.float32(10000), np.int32(16), np.int32(3), threadgroup=(8, 4, 2))
    theta = (np.arange(5) + 3)[:, None] * 10000.0 ** (-np.arange(0, 16, 2) / 16)
    a, b = x[..., :8], x[..., 8:]
    expected = np.concatenate([a * np.cos(theta) - b * np.sin(theta), a * np.sin(theta) + b * np.cos(theta)], -1)
    np.testing.assert_allclose(y, expected, atol=2e-5)


def test_gelu_with_an_error_function_of_its_own() -> None:
    source = HEADER + """
    float erf(float a) {
        float t = fabs(a), s = a * a, r, u;
        if (t > 0.927734375f) {
            r = fma(-1.72853470e-5f, t, 3.83197126e-4f); u = fma(-3.88396438e-3f, t, 2.42546219e-2f);
            r = fma(r, s, u); r = fma(r, t, -1.06777877e-1f); r = fma(r, t, -6.34846687e-1f);
            r = fma(r, t, -1.28717512e-1f); r = fma(r, t, -t);
            r = 1.0f - metal::exp(r); r = metal::copysign(r, a);
        } else {
            r = -5.96761703e-4f; r = fma(r, s, 4.99119423e-3f); r = fma(r, s, -2.67681349e-2f);
            r = fma(r, s, 1.12819925e-1f); r = fma(r, s, -3.76125336e-1f); r = fma(r, s, 1.28379166e-1f); r = fma(r, a, a);
        }
        return r;
    }
    struct Gelu { template <typename T> T operator()(T x) { return T(0.5f * float(x) * (1 + erf(float(x) * M_SQRT1_2_F))); } };
    template <typename T, typename Op> [[kernel]] void unary(device const T* in, device T* out, uint i [[thread_position_in_grid]]) {
        out[i] = Op()(in[i]);
    }
    template [[host_name("gelu_float")]] [[kernel]] decltype(unary<float, Gelu>) unary<float, Gelu>;"""
    x = np.linspace(-6, 6, 301, dtype=np.float32)
    y = np.zeros_like(x)
    mg.compile(source).function("gelu_float")(x.size, x, y)
    expected = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x.astype(float)]
    np.testing.assert_allclose(y, expected, atol=1e-6, rtol=1e-5)


def test_attention_with_an_online_softmax() -> None:
    source = HEADER + """
    constant int DIM [[function_constant(0)]];
    constant bool causal [[function_constant(1)]];
    constant constexpr int MAX_DIM = 64;
    [[max_total_threads_per_threadgroup(32)]]
    kernel void attend(device const half* q, device const half* k, device const half* v, device float* out,
                       constant int& keys, constant float& scale, uint row [[threadgroup_position_in_grid]],
                       uint lane [[thread_index_in_simdgroup]]) {
        float o[MAX_DIM / 32] = {}, top = -INFINITY, sum = 0;
        int last = causal ? int(row) + 1 : keys;
        for (int j = 0; j < last; j++) {
            float s = 0;
            for (int d = lane; d < DIM; d += 32) s += float(q[row * DIM + d]) * float(k[j * DIM + d]);
            s = simd_sum(s) * scale;
            float larger = max(top, s), shrink = exp(top - larger), p = exp(s - larger);
            sum = sum * shrink + p;
            for (int d = lane, i = 0; d < DIM; d += 32, i++) o[i] = o[i] * shrink + p * float(v[j * DIM + d]);
            top = larger;
        }
        for (int d = lane, i = 0; d < DIM; d += 32, i++) out[row * DIM + d] = o[i] / sum;
    }"""
    generator = np.random.default_rng(8)
    q, k, v = (generator.standard_normal((12, 48)).astype(np.float16) for _ in range(3))
    for causal in (False, True):
        out = np.zeros((12, 48), np.float32)
        function = mg.compile(source, function_constants={"DIM": 48, "causal": causal}).function("attend")
        function(12, q, k, v, out, np.int32(12), np.float32(48**-0.5), threadgroup=32, grid_of_threadgroups=True)
        scores = q.astype(np.float64) @ k.T.astype(np.float64) / math.sqrt(48)
        scores = np.where(np.tri(12, dtype=bool) | (not causal), scores, -np.inf)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        np.testing.assert_allclose(out, weights / weights.sum(1, keepdims=True) @ v.astype(np.float64), atol=1e-5)


def test_n_bodies_through_threadgroup_memory() -> None:
    source = HEADER + """
    kernel void accelerate(device const float4* bodies, device packed_float3* out, constant uint& n,
                           uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]],
                           uint width [[threads_per_threadgroup]], threadgroup float4* tile [[threadgroup(0)]]) {
        float3 a = 0.0, me = i < n ? bodies[i].xyz : float3(0);
        for (uint start = 0; start < n; start += width) {
            tile[t] = start + t < n ? bodies[start + t] : float4(0);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint j = 0; j < width; j++) {
                float3 d = tile[j].xyz - me;
                float r = rsqrt(dot(d, d) + 0.01);
                a += d * (tile[j].w * r * r * r);
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        if (i < n) out[i] = a;
    }"""
    bodies = np.random.default_rng(9).random((100, 4), np.float32)
    out = np.zeros((100, 3), np.float32)
    function = mg.compile(source).function("accelerate")
    function(4, bodies, out, np.uint32(100), threadgroup=32, grid_of_threadgroups=True, threadgroup_memory=512)
    d = bodies[None, :, :3].astype(np.float64) - bodies[:, None, :3]
    r = ((d * d).sum(-1) + 0.01) ** -1.5
    np.testing.assert_allclose(out, (d * (bodies[:, 3] * r)[..., None]).sum(1), rtol=1e-4, atol=1e-3)
