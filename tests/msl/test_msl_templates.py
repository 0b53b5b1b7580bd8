"""Templates as kernels in the wild use them: functions as arguments, typedef'd instantiations, every kind of parameter."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY, run
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.errors import ShaderError
from mpsgrad.msl import translate

# Blocks of eight numbers with a scale, in the way that quantized weights are stored.
QUANTIZED = (
    LIBRARY
    + """
#define QK 8
typedef struct { half d; int8_t qs[QK]; } block_q8;
typedef struct { half d; half m; uint8_t qs[QK / 2]; } block_q4;

template <typename type4x2>
void dequantize_q8(device const block_q8* xb, short il, thread type4x2& reg) {
    device const int8_t* qs = xb->qs;
    const float d = xb->d;
    for (int i = 0; i < QK; i++) { reg[i / 4][i % 4] = d * qs[i + 0 * il]; }
}
template <typename type4x2>
void dequantize_q4(device const block_q4* xb, short il, thread type4x2& reg) {
    for (int i = 0; i < QK / 2; i++) {
        reg[i / 4][i % 4] = (xb->qs[i] & 0x0F) * float(xb->d) + float(xb->m);
        reg[i / 4 + 1][i % 4] = (xb->qs[i] >> 4) * float(xb->d) + float(xb->m);
    }
}
template <typename block_q, short nl, void (*dequantize_func)(device const block_q*, short, thread float2x4&)>
float sum_of_row(device const block_q* row, int blocks, float scale) {
    float sum = 0;
    for (int b = 0; b < blocks; ++b) {
        float2x4 temp;
        dequantize_func(row + b / nl, b % nl, temp);
        sum += scale * dot(temp[0] + temp[1], float4(1));
    }
    return sum;
}
template <typename block_q, short nl, void (*dequantize_func)(device const block_q*, short, thread float2x4&)>
kernel void kernel_get_rows(device const void* src0 [[buffer(0)]], device float* dst [[buffer(1)]], constant int& blocks [[buffer(2)]],
        uint tgpig [[thread_position_in_grid]]) {
    if (int(tgpig) >= blocks) return;
    float2x4 temp;
    dequantize_func(((device const block_q*)src0) + tgpig / nl, tgpig % nl, temp);
    *(((device float2x4*)dst) + tgpig) = temp;
    if (tgpig == 0) dst[8 * blocks] = sum_of_row<block_q, nl, dequantize_func>((device const block_q*)src0, blocks, 2.0f);
}
typedef decltype(kernel_get_rows<block_q4, 1, dequantize_q4>) get_rows_t;
template [[host_name("kernel_get_rows_q4")]] kernel get_rows_t kernel_get_rows<block_q4, 1, dequantize_q4>;
template [[host_name("kernel_get_rows_q8")]] kernel get_rows_t kernel_get_rows<block_q8, 1, &dequantize_q8<float2x4>>;
"""
)


def test_functions_as_template_arguments() -> None:
    generator = np.random.default_rng(5)
    q8 = np.zeros(3, [("d", "<f2"), ("qs", "i1", 8)])
    q8["d"], q8["qs"] = generator.random(3), generator.integers(-128, 128, (3, 8))
    q4 = np.zeros(3, [("d", "<f2"), ("m", "<f2"), ("qs", "u1", 4)])
    q4["d"], q4["m"], q4["qs"] = generator.random(3), generator.random(3), generator.integers(0, 256, (3, 4))
    low, high = q4["qs"] & 15, q4["qs"] >> 4
    expected = {
        "q8": q8["d"].astype(np.float32)[:, None] * q8["qs"],
        "q4": np.hstack([low, high]) * q4["d"].astype(np.float32)[:, None] + q4["m"].astype(np.float32)[:, None],
    }
    for name, blocks in (("q8", q8), ("q4", q4)):
        out = run(QUANTIZED, f"kernel_get_rows_{name}", blocks, np.zeros(25, np.float32), np.int32(3), threads=3)[1]
        np.testing.assert_allclose(out[:24].reshape(3, 8), expected[name], rtol=1e-6)
        np.testing.assert_allclose(out[24], 2 * expected[name].sum(dtype=np.float64), rtol=1e-5)
    compile_for_cuda(translate(QUANTIZED, "cuda", filename="quantized.metal").source, "quantized.metal")


def test_simdgroups_in_a_function_passed_to_a_kernel() -> None:
    source = LIBRARY + (
        "float summed(float x) { return simd_sum(x); }\n"
        "template <float (*f)(float)> [[max_total_threads_per_threadgroup(64)]] kernel void apply(device float* x, uint i [[thread_position_in_threadgroup]]) { x[i] = f(x[i]); }\n"
        'template [[host_name("apply_sum")]] kernel decltype(apply<summed>) apply<summed>;\n'
    )
    assert translate(source, "opencl").kernels["apply_sum"].uses_simdgroups
    np.testing.assert_array_equal(run(source, "apply_sum", np.ones(64, np.float32), threads=64)[0], 32)


@pytest.mark.parametrize(
    ("before", "sum_of_x"),
    [
        ("struct Sum { float operator()(float x) const { return simd_sum(x); } };", "Sum{}(x)"),
        ("struct Sum { template <typename T> T operator()(T x, uint) { return simd_sum(x); } };\n"
         "template <typename F> float apply(float x) { F f; return f(x, 1u); }", "apply<Sum>(x)"),
        ("struct Sum { threadgroup float* kept; Sum(threadgroup float* k) : kept(k) {} float operator()(float x, uint i) {"
         " x = simd_sum(x); if (i == 0) kept[0] = x; threadgroup_barrier(mem_flags::mem_threadgroup); return kept[0]; } };",
         "Sum(memory)(x, i)"),
        ("struct Sum { auto of(float x) const -> float { return simd_sum(x); } };", "Sum{}.of(x)"),
        ("struct Sum { float operator()(float x) const; };\nfloat Sum::operator()(float x) const { return simd_sum(x); }", "Sum{}(x)"),
        ("struct Number { float v; }; Number operator+(Number a, Number b) { return {simd_sum(a.v) + b.v}; }", "(Number{x} + Number{0}).v"),
        ("struct Number { float v; Number operator+=(float a) { v += simd_sum(a); return *this; } };\n"
         "float added(float x) { Number n = {0}; n += x; return n.v; }", "added(x)"),
        ("struct Number { float v; operator float() const { return simd_sum(v); } };", "1 * Number{x}"),
        ("struct Number { float v; operator float() const; };\nNumber::operator float() const { return simd_sum(v); }", "1 * Number{x}"),
        ("struct Number { float v; Number(float x) : v(simd_sum(x)) {} };", "Number(x).v"),
        ("struct Number { float v; float operator[](uint) const { return simd_sum(v); } };", "Number{x}[0]"),
    ],
)  # fmt: skip
def test_simdgroups_in_operators(before: str, sum_of_x: str) -> None:
    source = LIBRARY + before + (
        "\n[[max_total_threads_per_threadgroup(32)]] kernel void sums(device float* out, uint i [[thread_position_in_threadgroup]]) {\n"
        "  threadgroup float memory[1]; memory[0] = 0; threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        f"  float x = out[i]; out[i] = {sum_of_x};\n}}\n"
    )  # fmt: skip
    np.testing.assert_array_equal(run(source, "sums", np.arange(32, dtype=np.float32), threads=32)[0], 496)


def test_template_arguments_that_parameters_tell() -> None:
    source = LIBRARY + """
    namespace inner {
    template <typename T, typename U, uint N = 3>
    [[max_total_threads_per_threadgroup(32)]] kernel void scaled(constant T* x [[buffer(0)]], device U* y [[buffer(1)]], constant vec<T, 2>& s, uint i [[thread_position_in_grid]]) {
        if (i < 2) y[i] = static_cast<U>(x[i] * s.y * T(N));
    }
    }
    #define SCALED(T, U) template [[host_name("scaled_" #T "_" #U)]] kernel void scaled( \\
        T constant* x [[buffer(0)]], device U* y [[buffer(1)]], constant vec<T, 2>& s, uint i [[thread_position_in_grid]]);
    namespace inner { SCALED(float, int) SCALED(uchar, half); }
    template <int N> kernel void filled(device int* x) { x[0] = N; }
    """
    np.testing.assert_array_equal(run(source, "scaled_float_int", np.float32([1, 2.5]), np.int32([0, 0]), np.float32([0, 2]), threads=2)[1], [6, 15])
    np.testing.assert_array_equal(run(source, "scaled_uchar_half", np.uint8([1, 2]), np.float16([0, 0]), np.uint8([0, 4]), threads=2)[1], [12, 24])
    compile_for_cuda(translate(source, "cuda", filename="scaled.metal").source, "scaled.metal")
    for wrong in ("filled(device int* x);", "scaled(constant float* x, device int* y, constant half2& s, uint i);"):
        with pytest.raises(ShaderError, match="an explicit instantiation of a kernel needs its template arguments"):
            translate(f"{source}\ntemplate [[host_name(\"other\")]] kernel void {wrong}", "opencl")


def test_a_function_that_is_not_defined_is_refused() -> None:
    source = "template <float (*f)(float)> float twice(float x) { return f(f(x)); }\nkernel void k(device float* x) { x[0] = twice<missing>(x[0]); }"
    for target in ("opencl", "cuda"):
        with pytest.raises(ShaderError, match="'missing' is no function defined above") as raised:
            translate(source, target)  # type: ignore[arg-type]
        assert (raised.value.line, raised.value.column) == (2, 47)


FORMS = LIBRARY + """
enum class Mode : int { add, multiply };
template <int N> struct Tile { static constexpr constant int size = N; float v[N]; };
template <typename T, typename U = T, int N = 2, bool ADD = true, Mode MODE = Mode::add, typename TILE = Tile<N>>
[[kernel]] void k(device T* x [[buffer(0)]], constant U& y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    if (i > 0) return;
    TILE t = {};
    t.v[N - 1] = ADD ? float(y) : -float(y);
    x[0] = MODE == Mode::multiply ? T(t.v[N - 1] * N) : T(t.v[N - 1] + TILE::size);
}
template [[host_name("plain")]] [[kernel]] void k<float>(device float*, constant float&, uint);
template [[host_name("typed")]] kernel decltype(k<float, int, 3>) k<float, int, 3>;
#define instantiate(name, ...) template [[host_name(name)]] [[kernel]] decltype(k<__VA_ARGS__>) k<__VA_ARGS__>;
#define each(type) instantiate("multiply_" #type, type, type, 4, true, Mode::multiply) instantiate("minus_" #type, type, type, 4, false)
each(half) each(int) each(ushort)
typedef decltype(k<float, float, 5>) k_t;
template [[host_name("aliased")]] kernel k_t k<float, float, 5>;
namespace inner { template <typename T> kernel void n(device T* x) { x[0] = T(7); } template [[host_name("nested")]] kernel void n<float>(device float*); }
struct Twice { template <typename T> T operator()(T x) { return ::metal::max(x + x, x); } };
namespace own { namespace metal {
constant int base = 4;
template <typename F, typename T>
kernel void q(device decltype(::metal::declval<F>()(T(0)))* x [[buffer(0)]]) { x[0] = F()(T(base)); }
} }
template [[host_name("qualified")]] kernel void ::own::metal::q<Twice, float>(device float* x);
"""


@pytest.mark.parametrize(
    ("name", "dtype", "second", "expected"),
    [
        ("plain", np.float32, np.float32(1.5), 3.5),
        ("typed", np.float32, np.int32(4), 7),
        ("multiply_half", np.float16, np.float16(1.5), 6),
        ("minus_half", np.float16, np.float16(1.5), 2.5),
        ("multiply_int", np.int32, np.int32(3), 12),
        ("minus_ushort", np.uint16, np.uint16(3), 1),
        ("aliased", np.float32, np.float32(2), 7),
        ("nested", np.float32, None, 7),
        ("qualified", np.float32, None, 8),
    ],
)
def test_forms_of_instantiation(name: str, dtype: type, second: np.generic | None, expected: float) -> None:
    arguments = [np.zeros(1, dtype)] + ([np.array([second])] if second is not None else [])
    assert run(FORMS, name, *arguments, threads=1)[0][0] == expected


def test_forms_of_instantiation_compile_for_cuda() -> None:
    compile_for_cuda(translate(FORMS, "cuda", filename="forms.metal").source, "forms.metal")


ATTRIBUTE_BEFORE_KERNEL = (
    LIBRARY
    + """
template <int R, int N> [[max_total_threads_per_threadgroup(N * 32)]]
kernel void scaled(device char* x, device half4* h, uint i [[thread_position_in_grid]]) { x[i] += R * N; h[i] *= 0.5; }
typedef decltype(scaled<4, 2>) scaled_t;
template [[host_name("scaled_8")]] kernel scaled_t scaled<4, 2>;
"""
)


def test_a_template_with_an_attribute_of_its_parameters() -> None:
    x = run(ATTRIBUTE_BEFORE_KERNEL, "scaled_8", np.zeros(64, np.int8), np.ones((64, 4), np.float16), threads=64)[0]
    assert (x == 8).all()
    compile_for_cuda(translate(ATTRIBUTE_BEFORE_KERNEL, "cuda", filename="attributes.metal").source, "attributes.metal")


STEPS = """
template <typename T> using step_of = void (*)(thread vec<T, 2>*, thread vec<T, 2>*);
typedef float (*plain_t)(float, float);
using other_t = float (*)(float, float);
template <typename T> void swapped(thread vec<T, 2>* x, thread vec<T, 2>* y) { y[0] = x[1]; y[1] = x[0]; }
template <typename T> void summed(thread vec<T, 2>* x, thread vec<T, 2>* y) { y[0] = x[0] + x[1]; y[1] = x[0] - x[1]; }
template <typename T, int n> void scaled(thread vec<T, 2>* x, thread vec<T, 2>* y) { y[0] = x[0] * T(n); y[1] = x[1]; }
float difference(float a, float b) { return a - b; }
template <int n> float sum(float a, float b) { return a + n * b; }
template <typename T, bool twice, step_of<T> step> void walk(thread vec<T, 2>* x) {
    vec<T, 2> y[2];
    step(x, y);
    if (twice) { step(y, x); } else { x[0] = y[0]; x[1] = y[1]; }
}
template <typename T, int n, step_of<T> step> void walks(thread vec<T, 2>* x) {
    for (int i = 0; i < n; i++) { walk<T, false, step>(x); }
}
template <plain_t f> float apply(float a, float b) { return f(a, b); }
template <int n, other_t f> float apply_times(float a, float b) { return n * f(a, b); }
template <typename T> void all_steps(thread vec<T, 2>* x) {
    walks<T, 3, summed<T>>(x);
    walk<T, true, swapped<T>>(x);
    walk<T, false, scaled<T, 3>>(x);
}
kernel void k(device float* o) {
    float2 x[2] = {float2(1, 2), float2(3, 4)};
    all_steps<float>(x);
    half2 y[2] = {half2(1, 2), half2(3, 4)};
    walk<half, false, swapped<half>>(y);
    o[0] = x[0].x + 100 * x[0].y;
    o[1] = x[1].x + 100 * x[1].y;
    o[2] = y[0].x + 100 * y[1].y;
    o[3] = apply<difference>(5, 2) + 10 * apply_times<2, difference>(5, 2) + 100 * apply<sum<2>>(1, 2);
}
template <plain_t f> kernel void of(device float* o, uint i [[thread_position_in_grid]]) { o[i] = f(o[i], 2); }
template [[host_name("of_difference")]] kernel void of<difference>(device float*, uint);
"""


def test_functions_whose_type_has_a_name_for_pointers_to_them() -> None:
    source = LIBRARY + STEPS
    library = mg.compile(source)
    out = np.zeros(4, np.float32)
    library.function("k")(1, out)
    np.testing.assert_array_equal(out, [24 + 3600, -4 - 400, 3 + 200, 3 + 60 + 500])
    library.function("of_difference")(4, out)
    np.testing.assert_array_equal(out, [3622, -406, 201, 561])
    compile_for_cuda(translate(source, "cuda", filename="steps.metal").source, "steps.metal")


SAME_NAMES = """
template <typename T> struct Pair { T first, second; };
template <typename T> struct Reader {
    const device vec<T, 2>* from;
    bool turned;
    METAL_FUNC vec<T, 2> read(vec<T, 2> v) const thread { return turned ? vec<T, 2>(v.y, v.x) : v; }
    METAL_FUNC vec<T, 2> read(Pair<T> v) const thread { return read(vec<T, 2>(v.first, v.second)); }
    METAL_FUNC vec<T, 2> read(T v) const thread { return read(vec<T, 2>(v, 0)); }
    METAL_FUNC vec<T, 2> at(int i) const thread { return read(from[i]) + read(T(i)); }
};
template <typename T, int n, bool adds> kernel void move(device T* o, const device vec<T, 2>* x, uint i [[thread_position_in_grid]]) {
    Reader<T> reader = {x, true};
    o[i] = reader.at(i).x * n + adds;
}
template <int n, typename T, typename U = T> kernel void move(device T* o, const device vec<T, 2>* x, uint i [[thread_position_in_grid]]) {
    Reader<U> reader = {x, false};
    o[i] = reader.at(i).x * n;
}
template [[host_name("turned")]] kernel void move<float, 2, true>(device float*, const device float2*, uint);
template [[host_name("straight")]] kernel void move<3, float>(device float*, const device float2*, uint);
"""


def test_members_and_kernels_of_one_name() -> None:
    x, i = np.arange(8, dtype=np.float32).reshape(4, 2), np.arange(4)
    source = LIBRARY + SAME_NAMES
    library, out = mg.compile(source), np.zeros(4, np.float32)
    library.function("turned")(4, out, x)
    np.testing.assert_array_equal(out, 2 * x[:, 1] + 1)
    library.function("straight")(4, out, x)
    np.testing.assert_array_equal(out, 3 * (x[:, 0] + i))
    compile_for_cuda(translate(source, "cuda", filename="names.metal").source, "names.metal")
