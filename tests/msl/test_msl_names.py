"""Names that mean something to a target and nothing to Metal belong to the program, for both targets."""

from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY, run
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.msl import translate

FUNCTIONS = """
    erf erfc lgamma tgamma log1p expm1 cbrt hypot remainder logb nan mad degrees radians rootn pown bitselect shuffle
    upsample vload4 convert_int as_float get_global_id barrier mem_fence printf atomic_add atomicAdd native_sin half_exp
    sinf powf fmaf rsqrtf __expf make_float4 lrint llround normcdf norm3d clock assert malloc memcpy sub_group_all
    work_group_barrier lift cast construct unpack vector test init merge number add
""".split()
VARIABLES = """
    generic global local private_ pipe uniform complex event_t sampler_t threadIdx blockIdx blockDim gridDim warpSize dim3
    double2 longlong2 half8 float16 M_PI M_E HUGE_VAL kernel_exec host shared lane_index place launch size_x cl_mem
    lift cast construct swizzle truth
""".split()
KERNELS = """
    add init test merge number main0 select abs step barrier printf erf fract simd_sum convert_int distance threadIdx
    half2x clamp min max exp sizes launch atomicAdd make_float4 shuffle lift
""".split()

# Rows are easier to read on one line each.
# ruff: noqa: E501
# Names of the library's own namespace, which a program may use for its own things.
OWN = (
    LIBRARY
    + "float sqr(float exp) { float sin = exp * exp, half_ = 1, dot = 2; return sin + half_ + dot; }\n"
    + "struct half2_t { float x; }; struct array_t { float size; };\n"
    + "kernel void f(device float* out, device float* length) { float min = sqr(3), clamp = min; half2_t float5 = {clamp};\n"
    + "  int array = 4, matrix = 5, vec = 6; bool less = array < matrix && vec > array; out[0] = float5.x + array + vec + less; }\n"
)


@pytest.mark.parametrize("target", ["opencl", "cuda"])
def test_functions_and_variables(target: str) -> None:
    names = [name for name in FUNCTIONS if not name.startswith("__")]
    functions = "".join(f"float {name}(float x) {{ return x + {k}.0; }}\n" for k, name in enumerate(names))
    calls = "".join(f"  out[{k}] = {name}(0.5);\n" for k, name in enumerate(names))
    variables = "".join(f"  float {name} = {k}; sum += {name};\n" for k, name in enumerate(VARIABLES))
    source = (
        f"{LIBRARY}{functions}kernel void f(device float* out) {{\n{calls}}}\n"
        f"kernel void g(device float* out) {{\n  float sum = 0;\n{variables}  out[0] = sum; }}\n"
    )
    if target == "cuda":
        compile_for_cuda(translate(source, "cuda", filename="names.metal").source, "names.metal")
        return
    out = run(source, "f", np.zeros(len(names), np.float32), threads=1)[0]
    np.testing.assert_array_equal(out, np.arange(len(names)) + 0.5)
    assert run(source, "g", np.zeros(1, np.float32), threads=1)[0][0] == sum(range(len(VARIABLES)))


def test_kernels() -> None:
    kernels = [f"kernel void {name}(device float* x) {{ x[0] = {k}; }}\n" for k, name in enumerate(KERNELS)]
    source = LIBRARY + "".join(kernels)
    compile_for_cuda(translate(source, "cuda", filename="kernels.metal").source, "kernels.metal")
    for k, name in enumerate(KERNELS):
        assert run(source, name, np.zeros(1, np.float32), threads=1)[0][0] == k


def test_names_of_the_library_for_other_things() -> None:
    compile_for_cuda(translate(OWN, "cuda", filename="own.metal").source, "own.metal")
    assert run(OWN, "f", np.zeros(1, np.float32), np.zeros(1, np.float32), threads=1)[0][0] == 12 + 4 + 6 + 1


BESIDE = LIBRARY + """
namespace my { float exp(float x) { return metal::exp(x) * 2; } float fract(float x) { return ::metal::fract(x) + 1; } }
float max(float a, float b) { return metal::max(a, b) + 10; }
struct Sign { float sign(float x) const { return metal::sign(x) * 3; } };
struct Pair { float a, b; };
Pair simd_sum(Pair p) { return Pair{metal::simd_sum(p.a), metal::simd_sum(p.b)}; }
template <typename T> T saturate(T x, T y) { return metal::saturate(x) + y; }
struct Range { float min, max, length; float inside(float x) const { return metal::clamp(metal::min(x, max), min, max) + metal::length(float2(length, 0)); } };
float nearest(float exp, float2 dot) { float length = metal::length(dot), pow(2); return metal::exp(exp) + length + metal::dot(dot, dot) + metal::pow(pow, pow); }
kernel void f(device float* out, uint i [[thread_position_in_grid]]) {
  Pair p = simd_sum(Pair{1, 2});
  if (i == 0) {
    out[0] = my::exp(0) + my::fract(1.25); out[1] = max(1, 2); out[2] = Sign().sign(-2);
    out[5] = Range{0, 4, -3}.inside(9); out[6] = nearest(0, float2(3, 4));
    out[3] = p.a + p.b + simd_sum(0.0f); out[4] = saturate(3.0, 5.0) + saturate(7.0);
  }
}
"""


def test_functions_beside_the_librarys_that_they_call() -> None:
    compile_for_cuda(translate(BESIDE, "cuda", filename="beside.metal").source, "beside.metal")
    out = run(BESIDE, "f", np.zeros(7, np.float32), threads=32)[0]
    np.testing.assert_array_equal(out, [2 + 1.25, 12, -3, 96, 6 + 1, 4 + 3, 1 + 5 + 25 + 4])


CLOSED = """
#include <metal_stdlib>
float sqrt(float x) { return x + 1; }
int min(int a, int b) { return 7; }
template <typename T> T rsqrt(T x) { return x + 2; }
kernel void step(device float* out) {
  out[0] = sqrt(4.0) + metal::precise::sqrt(4.0); out[1] = min(1, 2) + metal::min(1, 2); out[2] = rsqrt(4.0) + metal::fast::rsqrt(4.0);
}
"""


@pytest.mark.parametrize("fast_math", [True, False])
def test_functions_called_like_the_librarys_that_no_one_opened(fast_math: bool) -> None:
    closed = translate(CLOSED, "cuda", filename="closed.metal", fast_math=fast_math)
    compile_for_cuda(closed.source, "closed.metal")
    out = np.zeros(3, np.float32)
    mg.compile(CLOSED, fast_math=fast_math).function("step")(1, out)
    np.testing.assert_array_equal(out, [5 + 2, 7 + 1, 6.5])


OWN_TYPES = """
#include <metal_stdlib>
template <typename T> struct numeric_limits { static constexpr int digits() { return 3; } };
template <typename A, typename B> struct is_same { static constant constexpr int value = 7; };
template <typename... T> struct nothing { typedef void type; };
template <typename... T> using void_t = typename nothing<T...>::type;
template <typename T, typename = void> struct counts { static constant constexpr int value = 1; };
template <typename T> struct counts<T, void_t<typename T::element>> { static constant constexpr int value = 2; };
struct atomic { int element; };
struct Row { typedef float element; };
kernel void f(device int* out, constant atomic& first) {
  atomic last = {first.element + 1};
  out[0] = is_same<int, float>::value + metal::is_same<int, int>::value; out[1] = counts<Row>::value * 10 + counts<float>::value;
  out[2] = numeric_limits<int>::digits() + metal::numeric_limits<uchar>::max(); out[3] = last.element + ::atomic{5}.element;
}
namespace constants {
template <typename T, T v> struct integral { static constant constexpr T value = v; static int kind() { return 1; } };
template <bool v> using bool_constant = integral<bool, v>;
template <bool v> int kind_of(metal::bool_constant<v>) { return 2; }
}
using namespace constants;
kernel void g(device int* out) {
  out[0] = constants::bool_constant<true>::kind() + 10 * kind_of(metal::bool_constant<true>{}) + 100 * metal::bool_constant<true>::value;
}
"""


def test_types_called_like_the_librarys() -> None:
    compile_for_cuda(translate(OWN_TYPES, "cuda", filename="types.metal").source, "types.metal")
    out = np.zeros(4, np.int32)
    mg.compile(OWN_TYPES, language_version="2.4").function("f")(1, out, {"element": 3})
    np.testing.assert_array_equal(out, [7 + 1, 21, 3 + 255, 4 + 5])
    mg.compile(OWN_TYPES, language_version="2.4").function("g")(1, out)
    assert out[0] == 121


@pytest.mark.parametrize("target", ["opencl", "cuda"])
def test_ways_to_open_the_library(target: str) -> None:
    source = "#include <metal_stdlib>\nnamespace m = metal;\nnamespace p = m::precise;\n" + "".join(
        f"kernel void {kernel}(device float* x) {{ {body} }}\n"
        for kernel, body in {
            "a": "using namespace metal; x[0] = exp(x[0]);",
            "b": "using namespace ::metal; x[0] = exp(x[0]);",
            "c": "using ::metal::exp; x[0] = exp(x[0]);",
            "d": "float p = 1; x[0] = p * p::exp(x[0]) + m::fast::exp(x[0]) - m::exp(x[0]);",
            "e": "namespace n = m; using namespace n; x[0] = exp(x[0]); int m = 1; x[0] *= m;",
        }.items()
    )
    if target == "cuda":
        compile_for_cuda(translate(source, "cuda", filename="names.metal").source, "names.metal")
        return
    for kernel in "abcde":
        assert run(source, kernel, np.ones(1, np.float32), threads=1)[0][0] == pytest.approx(np.e)


VALUES_OF_TEMPLATES = """#include <metal_stdlib>
using namespace metal;
namespace own {
namespace metal {
template <typename T> constexpr constant bool is_integral_v = ::metal::is_integral_v<T> || ::metal::is_same_v<T, half>;
}
template <typename T> constexpr constant bool is_signed_v = ::metal::is_signed_v<T> && sizeof(T) > 2;
}
kernel void f(device int* o) {
  o[0] = own::metal::is_integral_v<int> + 10 * own::metal::is_integral_v<half> + 100 * own::metal::is_integral_v<float>;
  o[1] = is_integral_v<int> + 10 * is_integral_v<half> + 100 * is_signed_v<short> + 1000 * own::is_signed_v<short>;
  o[2] = own::is_signed_v<int> + 10 * own::is_signed_v<uint>;
}
"""


def test_values_of_templates_called_like_the_librarys() -> None:
    compile_for_cuda(translate(VALUES_OF_TEMPLATES, "cuda", filename="values.metal").source, "values.metal")
    out = np.zeros(3, np.int32)
    mg.compile(VALUES_OF_TEMPLATES).function("f")(1, out)
    np.testing.assert_array_equal(out, [11, 101, 1])
