"""What kernels of other projects are made of and few others use."""

# ruff: noqa: E501
from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY
from nvrtc import compile_for_cuda

from mpsgrad.errors import ShaderError
from mpsgrad.msl import translate
from mpsgrad.msl.lint import lint
from mpsgrad.runtime import compile

THREADS = 32
THREAD = "uint i [[thread_position_in_threadgroup]]"


def compiles_for_cuda(source: str, version: str = "310") -> None:
    translation = translate(source, "cuda", definitions={"__METAL_VERSION__": version}, launch="box")
    compile_for_cuda(translation.source, "test.metal")


def errors(source: str, version: str = "3.1") -> list[str]:
    return [each.message for each in lint(source, language_version=version) if each.severity == "error"]


CONSTRUCTORS = f"""
struct Best {{
  float value; uint at;
  Best() thread = default;
  Best() threadgroup = default;
  Best() device = default;
  Best() constant = default;
  Best(float v, uint a) : value(v), at(a) {{}}
}};
template <typename T> struct Two {{
  T first, second;
  constexpr Two<T>() = default;
  constexpr Two<T>() threadgroup = default;
  constexpr Two(T a, T b) : first(a), second(b) {{}}
}};
kernel void constructors(device float* out, {THREAD}) {{
  threadgroup Best best[32];
  threadgroup Two<float> twos[32];
  best[i] = Best(float(i) * 2, i);
  twos[i] = Two<float>(1, i);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  Best other = best[31 - i];
  Two<float> two;
  two = twos[31 - i];
  out[i] = other.value + other.at + two.second * 100;
}}
"""


def test_constructors_may_be_defaulted_for_each_address_space() -> None:
    out = np.zeros(THREADS, np.float32)
    compile(LIBRARY + CONSTRUCTORS).function("constructors")(THREADS, out, threadgroup=THREADS)
    assert np.array_equal(out, 103.0 * np.arange(THREADS)[::-1])
    compiles_for_cuda(LIBRARY + CONSTRUCTORS)


ARRAYS = f"""
template <typename T, uint N> struct Sum {{
  threadgroup T* kept;
  Sum(threadgroup T shared[N]) : kept(shared) {{}}
  T of(T x, uint i) {{
    kept[i] = x;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    T s = 0;
    for (uint k = 0; k < N; k++) s += kept[k];
    return s;
  }}
}};
template <typename T, uint N> T sum(device const T* in, threadgroup T shared[N], uint i) {{ return Sum<T, N>(shared).of(in[i], i); }}
kernel void arrays(device float* out, device const float* in, {THREAD}) {{
  threadgroup float shared[32];
  out[i] = sum<float, 32>(in, shared, i);
}}
"""


def test_threadgroup_arrays_are_pointers_where_they_are_parameters() -> None:
    x = np.arange(THREADS, dtype=np.float32)
    out = np.zeros_like(x)
    compile(LIBRARY + ARRAYS).function("arrays")(THREADS, out, x, threadgroup=THREADS)
    assert np.array_equal(out, np.full(THREADS, x.sum()))
    compiles_for_cuda(LIBRARY + ARRAYS)


INTERNAL_NAMES = """
struct Ranked { float value; int rank; };
template <> struct _numeric_limits_impl<Ranked> {
  static constexpr Ranked lowest() { return Ranked{numeric_limits<float>::lowest(), 7}; }
};
template <typename T> constant constexpr bool reduces = __is_valid_simdgroup_type<T>::value;
template <typename T> uint lanes() { return is_vector_v<T> ? vec_elements<T>::value : 1; }
kernel void internal_names(device int* out) {
  out[0] = vec_elements<half3>::value * 100 + vec_elements<const bool4>::value * 10 + vec_elements<int>::value;
  out[1] = is_vector_v<float2> + 2 * is_vector_v<float> + 4 * is_vector<bfloat4>::value;
  out[2] = numeric_limits<Ranked>::lowest().rank + (numeric_limits<int>::max() == 2147483647);
  out[3] = reduces<half> + 2 * reduces<uint3> + 4 * reduces<long> + 8 * reduces<bool> + 16 * reduces<Ranked>;
  out[4] = lanes<float>() + 10 * lanes<ushort2>();
}
"""


def test_names_inside_of_metals_own_headers() -> None:
    source = LIBRARY + INTERNAL_NAMES
    assert errors(source) == []
    out = np.zeros(5, np.int32)
    compile(source, language_version="3.1").function("internal_names")(1, out)
    assert out.tolist() == [340, 5, 8, 3, 21]
    compiles_for_cuda(source)


OVERLOADS = """
inline int dot(int3 a, int3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
inline int3 cross(int3 a, int3 b) { return int3(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x); }
inline bfloat length(vec<bfloat, 2> a) { return a.x; }
template <typename T> kernel void fmax(device T* out, constant T* other) { out[0] = fmax(out[0], other[0]); }
template [[host_name("fmax_float")]] kernel void fmax<float>(device float*, constant float*);
kernel void overloads(device int* out) {
  int3 a = int3(1, 2, 3), b = int3(-4, 5, 6);
  float3 c = float3(a), d = float3(b);
  packed_float3 e = packed_float3(3, 4, 0);
  out[0] = dot(a, b) == dot(c, d);
  out[1] = all(cross(a, b) == int3(cross(c, d)));
  out[2] = int(length(e) + length(float2(6, 8)) + dot(c.xy, d.yz));
}
"""


def test_programs_own_overloads_stand_beside_the_librarys() -> None:
    source = LIBRARY + OVERLOADS
    assert errors(source) == []
    library = compile(source, language_version="3.1")
    out, larger = np.zeros(3, np.int32), np.array([1], np.float32)
    library.function("overloads")(1, out)
    library.function("fmax_float")(1, larger, np.array([3], np.float32))
    assert out.tolist() == [1, 1, 32] and larger[0] == 3
    compiles_for_cuda(source)


COHERENT = """
uint one_more(device coherent(device) const uint* p) { return p[0] + 1; }
kernel void counted(volatile device coherent(device) uint* a [[buffer(0)]], coherent(device) device uint* b [[buffer(1)]]) {
  device coherent(device) uint* q = b;
  a[0] = one_more(q);
}
"""


def test_coherent_memory_needs_metal_3_2() -> None:
    out = np.zeros(1, np.uint32)
    compile(LIBRARY + COHERENT, language_version="3.2").function("counted")(1, out, np.array([41], np.uint32))
    assert out[0] == 42 and errors(LIBRARY + COHERENT, "3.2") == []
    compiles_for_cuda(LIBRARY + COHERENT, "320")
    assert errors(LIBRARY + COHERENT, "3.1")
    with pytest.raises(ShaderError, match="3.2"):
        translate(LIBRARY + COHERENT, "opencl", definitions={"__METAL_VERSION__": "310"})


MATRICES = """
kernel void matrices(device const float* a, device const float* b, device float* sum, device float* product) {
  threadgroup bfloat left[64], right[64];
  threadgroup bfloat rounded[64];
  if (a != b) for (uint k = 0; k < 64; k++) { left[k] = bfloat(a[k]); right[k] = bfloat(b[k]); }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_bfloat8x8 x, y;
  simdgroup_matrix<bfloat, 8> z;
  simdgroup_matrix<float, 8> total = make_filled_simdgroup_matrix<float, 8>(1);
  simdgroup_load(x, left, 8);
  simdgroup_load(y, right, 8, ulong2(0), true);
  simdgroup_multiply_accumulate(total, x, y, total);
  simdgroup_multiply(z, x, y);
  z.thread_elements()[0] = z.thread_elements()[0] * bfloat(2);
  simdgroup_store(total, sum, 8);
  simdgroup_store(z, rounded, 8);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint k = 0; k < 64; k++) product[k] = float(rounded[k]);
}
"""


def test_matrices_of_bfloat_and_matrices_with_one_extent() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-8, 8, (2, 8, 8)).astype(np.float32)
    total, product = np.zeros((8, 8), np.float32), np.zeros((8, 8), np.float32)
    compile(LIBRARY + MATRICES, language_version="3.1").function("matrices")(32, a, b, total, product, threadgroup=32)
    wanted = a @ b.T
    assert np.array_equal(total, wanted + 1)
    assert np.allclose(product[:, 1::2], wanted[:, 1::2], rtol=2**-8) and np.allclose(product[:, ::2], 2 * wanted[:, ::2], rtol=2**-8)
    compiles_for_cuda(LIBRARY + MATRICES)


COLUMNS = """
typedef matrix<bfloat, 4, 4> bfloat4x4;
template <typename M> void read(device const bfloat4x4* from, thread M& to) { to = (M)(*from); }
kernel void columns(device bfloat4x4* x, device float4x4* y) {
  half4x4 a;
  float4x4 b;
  bfloat4x4 c;
  read(x, a);
  read(x, b);
  read(x, c);
  for (int k = 0; k < 4; k++) { c[k] = c[k] + c[k]; c[k][1] = bfloat(b[k][1] * 5); }
  *x = c;
  *y = float4x4(a) + b + float4x4(c);
}
"""


def test_matrices_of_bfloat_columns() -> None:
    values = np.arange(16, dtype=np.float32)
    x, y = (values.view(np.uint32) >> 16).astype(np.uint16), np.zeros(16, np.float32)
    compile(LIBRARY + COLUMNS, language_version="3.1").function("columns")(1, x, y)
    wanted = np.where(np.arange(16) % 4 == 1, 5 * values, 2 * values)
    assert np.array_equal((x.astype(np.uint32) << 16).view(np.float32), wanted) and np.array_equal(y, wanted + 2 * values)
    compiles_for_cuda(LIBRARY + COLUMNS)


LANES_OF_BFLOAT = """
template <typename T> void shared(device const T* x, device T* y, uint i) {
  T v = x[i];
  y[i] = simd_sum(v); y[32 + i] = simd_max(v); y[64 + i] = simd_min(v); y[96 + i] = simd_product(v);
  y[128 + i] = simd_prefix_inclusive_sum(v); y[160 + i] = quad_sum(v); y[192 + i] = quad_prefix_exclusive_sum(v);
  y[224 + i] = simd_shuffle_down(v, 3); y[256 + i] = simd_shuffle_xor(v, 5); y[288 + i] = simd_broadcast(v, 7);
  y[320 + i] = quad_broadcast(v, 2);
}
kernel void scalars(device const bfloat* x, device bfloat* y, uint i [[thread_position_in_grid]]) { shared(x, y, i); }
kernel void vectors(device const bfloat2* x, device bfloat2* y, uint i [[thread_position_in_grid]]) { shared(x, y, i); }
"""


@pytest.mark.parametrize(("kernel", "width"), [("scalars", 1), ("vectors", 2)])
def test_bfloats_of_other_lanes(kernel: str, width: int) -> None:
    values = np.where(np.arange(32 * width) % 11 < 10, 1, 2).astype(np.float32).reshape(32, width)
    lane = np.arange(32)
    quads = values.reshape(8, 4, width)
    wanted = [np.broadcast_to(value, (32, width)) for value in (values.sum(0), values.max(0), values.min(0), values.prod(0))]
    wanted += [values.cumsum(0), quads.sum(1).repeat(4, 0), (quads.cumsum(1) - quads).reshape(32, width)]
    wanted += [values[np.where(lane + 3 < 32, lane + 3, lane)], values[lane ^ 5], np.broadcast_to(values[7], (32, width))]
    wanted += [quads[:, 2].repeat(4, 0)]
    x, y = (values.view(np.uint32) >> 16).astype(np.uint16), np.zeros((32 * len(wanted), width), np.uint16)
    compile(LIBRARY + LANES_OF_BFLOAT, language_version="3.1").function(kernel)(32, x, y, threadgroup=32)
    assert np.array_equal((y.astype(np.uint32) << 16).view(np.float32), np.concatenate(wanted))
    compiles_for_cuda(LIBRARY + LANES_OF_BFLOAT)


MIXED = """
template <typename T> float4 scaled(T s, float4 v) { float4 a = s * v; a += v - s; a *= s; return a / s; }
kernel void mixed(device float4* out, device const ushort* bits) { out[0] = scaled(as_type<bfloat>(bits[0]), out[0]); }
"""


def test_vectors_of_float_times_bfloat() -> None:
    out = np.array([1, 2, 3, 4], np.float32)
    library = compile(LIBRARY + MIXED, language_version="3.1")
    library.function("mixed")(1, out, np.array([0x4040], np.uint16))  # 3
    assert out.tolist() == [1, 5, 9, 13]
    compiles_for_cuda(LIBRARY + MIXED)


def test_shifts_of_what_a_template_cast_widens_are_not_too_far() -> None:
    source = "kernel void k(device ulong* p, device const uint* q) { p[0] = static_cast<ulong>(q[0]) << 32 | q[1]; }"
    assert [each.message for each in lint(LIBRARY + source)] == []
    narrow = source.replace("static_cast<ulong>", "static_cast<uint>")
    assert any("counts modulo 32" in each.message for each in lint(LIBRARY + narrow))


BITS = """
namespace { constexpr float from_bits(uint x) { return as_type<float>(x); }
constexpr half half_from_bits(ushort x) { return as_type<half>(x); }
constexpr float most_negative() { return from_bits(0xff7fffff); } }
kernel void bits(device float* out) {
  out[0] = most_negative();
  out[1] = half_from_bits(0x3e00);
  out[2] = from_bits(as_type<uint>(out[2]) + 1);
}
"""


def test_constexpr_functions_that_take_values_by_their_bits() -> None:
    out = np.array([0, 0, 2], np.float32)
    compile(LIBRARY + BITS).function("bits")(1, out)
    assert out.tolist() == [np.finfo(np.float32).min, 1.5, np.nextafter(np.float32(2), np.float32(3))]
    compiles_for_cuda(LIBRARY + BITS)


NAMESPACES = """
namespace {
constant float scale = 2;
}
namespace own { namespace metal { namespace detail {
template <typename T> struct widened { using t = T; };
template <typename T> using widened_t = typename widened<T>::t;
template <> struct widened<half> { using t = float; };
}
template <typename T, ::metal::enable_if_t<::metal::is_floating_point_v<T>, bool> = true> T max(T a, T b) { return ::metal::max(a, b); }
template <typename T, ::metal::enable_if_t<::metal::is_integral_v<T>, bool> = true> T max(T a, T b) { return ::metal::max(a, b); }
inline float min(float2 a) { return ::metal::min(a.x, a.y); }
template <typename T> T total(T a) { return T(::metal::simd_sum(detail::widened_t<T>(a))); }
template <typename T> T largest() { return ::metal::numeric_limits<T>::max(); }
template <typename T> T smallest() { return ::metal::numeric_limits<T>::min(); }
inline float2 roots(float2 a) { return {::metal::sqrt(a.x), scale}; }
} }
kernel void namespaces(device float* out, device half* halves, uint i [[thread_position_in_threadgroup]]) {
  half sum = own::metal::total(halves[i]);
  if (i == 0) {
    out[0] = sum;
    out[1] = own::metal::max(3, 4) + own::metal::max(2.5f, 0.5f);
    out[2] = own::metal::largest<short>();
    out[3] = own::metal::smallest<float>();
    out[4] = own::metal::min(float2(7, 6));
    float2 r = own::metal::roots(float2(9, 1));
    out[5] = r.x + r.y;
  }
}
"""


def test_namespaces_called_metal_beside_one_without_a_name() -> None:
    out, halves = np.zeros(6, np.float32), np.ones(32, np.float16)
    source = "#include <metal_stdlib>\n" + NAMESPACES
    for fast_math in (True, False):
        compile(source, language_version="3.1", fast_math=fast_math).function("namespaces")(32, out, halves, threadgroup=32)
        assert out.tolist() == [32, 6.5, 32767, np.finfo(np.float32).tiny, 6, 5]
    compiles_for_cuda(source)


VOLATILE = """
template <typename T> void exchange(device T* x, threadgroup T* both, uint i) {
  T own[1] = {x[i]};
  ((volatile threadgroup T*)both)[i] = own[0];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[i] = ((volatile threadgroup T*)both)[31 - i];
  volatile device T* p = x;
  p[i] += T(1.0f);
  p[i] *= T(2.0f);
  p[i] = p[i] * p[i] - T(1.0f);
  T q = p[i];
  x[i] = q / T(2.0f);
}
kernel void halves(device half* x, uint i [[thread_position_in_threadgroup]]) {
  threadgroup half both[32];
  exchange(x, both, i);
}
kernel void bfloats(device bfloat* x, uint i [[thread_position_in_threadgroup]]) {
  threadgroup bfloat both[32];
  exchange(x, both, i);
}
"""


def test_volatile_numbers_of_two_bytes() -> None:
    library = compile(LIBRARY + VOLATILE, language_version="3.1")
    wanted = ((np.arange(8)[::-1] + 1) * 2.0) ** 2 / 2 - 0.5
    halves = np.tile(np.arange(8), 4).astype(np.float16)
    library.function("halves")(32, halves, threadgroup=32)
    assert np.array_equal(halves, np.tile(wanted, 4).astype(np.float16))
    bfloats = (np.tile(np.arange(8), 4).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    library.function("bfloats")(32, bfloats, threadgroup=32)
    assert np.allclose((bfloats.astype(np.uint32) << 16).view(np.float32), np.tile(wanted, 4), rtol=2**-8)
    compiles_for_cuda(LIBRARY + VOLATILE)


LITERALS = """
namespace own { namespace metal { struct Value { ulong v; }; } }
kernel void literals(device ulong* out, constant own::metal::Value& value, uint i [[thread_position_in_grid]]) {
  out[0] = (value.v & 4294967295ULL) + (1ull << 40);
  out[1] = max(value.v, 0xFFFFFFFFLLU) + min(long(5), 3LL) + clamp(7LL, 0L, 4L);
}
"""


def test_literals_of_64_bits() -> None:
    source = "#include <metal_stdlib>\nusing namespace metal;\n" + LITERALS
    assert errors(source) == []
    out, function = np.zeros(2, np.uint64), compile(source).function("literals")
    function(1, out, {"v": 2**32 + 3})
    assert out.tolist() == [3 + 2**40, 2**32 + 3 + 3 + 4]
    assert function.arguments[1].type == "own::metal::Value"
    compiles_for_cuda(source)


CONDITIONAL = """
constant bool is_scaled [[function_constant(3)]];
template <typename T> kernel void scale(
    device T* x [[buffer(0)]], const constant T& factor [[function_constant(is_scaled)]], uint i [[thread_position_in_grid]]) {
  x[i] = is_scaled ? x[i] * factor : x[i] + 1;
}
template [[host_name("scale_float")]] [[kernel]] void scale<float>(
    device float* x [[buffer(0)]], const constant float& factor [[function_constant(is_scaled)]], uint i [[thread_position_in_grid]]);
"""


@pytest.mark.parametrize("is_scaled", [False, True])
def test_parameters_under_function_constants_in_instantiations(is_scaled: bool) -> None:
    x = np.arange(THREADS, dtype=np.float32)
    wanted = x * 3 if is_scaled else x + 1
    library = compile(LIBRARY + CONDITIONAL, function_constants={"is_scaled": is_scaled})
    library.function("scale_float")(THREADS, x, *([np.float32(3)] if is_scaled else []))
    assert np.array_equal(x, wanted)
    compiles_for_cuda(LIBRARY + CONDITIONAL)
