"""Programs that extend Metal's own headers, as libraries of kernels do, and what else these are made of."""

from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.msl import translate

FOR_BFLOAT = """
#define EXTEND(mode)                                                                                             \\
    METAL_FUNC bfloat abs(bfloat x) { return bfloat(__metal_fabs(float(x), mode)); }                              \\
    METAL_FUNC bfloat max(bfloat x, bfloat y) { return bfloat(__metal_fmax(float(x), float(y), mode)); }          \\
    METAL_FUNC bfloat frexp(bfloat x, thread int& e) { return bfloat(__metal_frexp(float(x), &e, mode)); }
namespace metal {
EXTEND(__METAL_MAYBE_FAST_MATH__);
METAL_FUNC bfloat simd_sum(bfloat x) { return bfloat(__metal_simd_sum(float(x))); }
METAL_FUNC bfloat simd_xor(bfloat x) { return bfloat(__metal_simd_xor(float(x))); }
METAL_FUNC bfloat simd_shuffle_and_fill_down(bfloat x, bfloat y, ushort by) {
    return as_type<bfloat>(__metal_simd_shuffle_and_fill_down(
        as_type<ushort>(x), as_type<ushort>(y), by, __metal_get_simdgroup_size(ushort())));
}
namespace fast { EXTEND(__METAL_FAST_MATH__); }
namespace precise { EXTEND(__METAL_PRECISE_MATH__); }
}
template <typename T> void fill(device T* o, uint i) {
    const ushort lane = __metal_get_thread_index_in_simdgroup(ushort());
    T v = o[i];
    int e;
    T m = metal::frexp(v, e);
    o[i] = abs(v) + metal::fast::abs(v) + metal::precise::max(v, T(8)) + m + T(e) + simd_sum(v) + T(lane)
        + simd_shuffle_and_fill_down(v, T(5), 1);
}
kernel void k(device bfloat* b, device float* f, uint i [[thread_position_in_grid]]) { fill(b, i); fill(f, i); }
"""


@pytest.mark.parametrize("fast_math", [True, False])
def test_functions_for_another_type_in_the_librarys_namespaces(fast_math: bool) -> None:
    source = LIBRARY + FOR_BFLOAT
    translation = translate(
        source, "cuda", launch="box", definitions={"__METAL_VERSION__": "310"}, fast_math=fast_math
    )
    compile_for_cuda(translation.source, "extensions.metal")
    x = np.arange(32, dtype=np.float32) - 15
    f, b = x.copy(), (x.view(np.uint32) >> 16).astype(np.uint16)
    mg.compile(source, language_version="3.1", fast_math=fast_math).function("k")(32, b, f)
    mantissa, exponent = np.frexp(x)
    expected = 2 * abs(x) + np.maximum(x, 8) + mantissa + exponent + x.sum() + np.arange(32) + np.append(x[1:], 5)
    np.testing.assert_array_equal(f, expected)
    np.testing.assert_allclose((b.astype(np.uint32) << 16).view(np.float32), expected, atol=2)


CONVERTED = """
template <typename T> struct Pair {
    T first, second;
    constexpr Pair(T a, T b) thread : first(a), second(b) {}
    constexpr Pair(vec<T, 2> v) thread : first(v.x), second(v.y) {}
    constexpr operator vec<T, 2>() const thread { return vec<T, 2>(first, second); }
    constexpr operator vec<T, 2>() const threadgroup { return vec<T, 2>(first, second); }
    constexpr operator vec<T, 2>() const device { return vec<T, 2>(first, second); }
    constexpr operator vec<T, 2>() const constant { return vec<T, 2>(first, second); }
};
template <typename T> void advance(const device Pair<T>*& p, device float*& o, int by) { p += by; o += by; }
static constant constexpr const int stride [[function_constant(3)]];
kernel void k(const device Pair<float>* p, device float* o, uint i [[thread_position_in_grid]]) {
    advance(p, o, stride * int(i));
    float2 v = *p;
    Pair<float> twice(v * 2);
    float2 w = twice;
    *o = w.x + 100 * w.y;
}
"""


def test_conversions_to_vectors_of_a_template_and_references_to_pointers() -> None:
    source = LIBRARY + CONVERTED
    compile_for_cuda(translate(source, "cuda", function_constants={"stride": 2}).source, "extensions.metal")
    p, o = np.arange(32, dtype=np.float32), np.zeros(16, np.float32)
    mg.compile(source, function_constants={"stride": 2}).function("k")(8, p, o)
    np.testing.assert_array_equal(o[::2], 2 * p[0::4] + 200 * p[1::4])
    assert not o[1::2].any()


PASSED = """
typedef void (plain_t)(device float* o, uint i);
typedef void scaled_t(device float* o, uint i, float x);
using value_t = float(float);
struct Scale { float by; };
template <typename T> void plain(device float* o, uint i) { o[i] = i + sizeof(T); }
template <typename T> void scaled(device float* o, uint i, float x) { o[i] = i * x + sizeof(T); }
template <typename T> void summed(device float* o, uint i, float x) { o[i] = simd_sum(x) + sizeof(T); }
template <int N> float power(float x) { return N == 2 ? x * x : x; }
template <plain_t f> void with_scale(device float* o, uint i, float x) { f(o, i); }
template <scaled_t f> void with_scale(device float* o, uint i, float x) { f(o, i, x); }
template <value_t f> float twice(float x) { return f(f(x)); }
typedef decltype(with_scale<plain<half>>) with_scale_t;
template <with_scale_t f, int N>
kernel void k(device float* o, constant Scale& s, uint i [[thread_position_in_grid]]) { f(o, i, s.by); o[i] += N; }
template <value_t f> kernel void v(device float* o, uint i [[thread_position_in_grid]]) { o[i] = twice<f>(i) + f(3); }
typedef decltype(k<with_scale<plain<half>>, 1>) k_t;
template [[host_name("plain")]] kernel k_t k<with_scale<plain<float>>, 1>;
template [[host_name("scaled")]] kernel k_t k<with_scale<scaled<half>>, 2>;
template [[host_name("summed")]] kernel k_t k<with_scale<summed<char>>, 3>;
template [[host_name("power")]] kernel decltype(v<power<2>>) v<power<2>>;
"""


def test_functions_as_arguments_whose_type_has_a_name() -> None:
    source = LIBRARY + PASSED
    compile_for_cuda(translate(source, "cuda", launch="box").source, "extensions.metal")
    library = mg.compile(source)
    i = np.arange(32)
    for name, expected in (("plain", i + 5), ("scaled", i / 2 + 4), ("summed", 0 * i + 20)):
        o = np.zeros(32, np.float32)
        library.function(name)(32, o, {"by": 0.5})
        np.testing.assert_array_equal(o, expected)
    o = np.zeros(8, np.float32)
    library.function("power")(8, o)
    np.testing.assert_array_equal(o, i[:8] ** 4 + 9)


CHOSEN = """
template <typename T> void fill(device float* o, device const T* m, float by, bool flag, uint i) {
    device const T* p = flag ? m : nullptr;
    T t = m[i];
    auto u = flag ? t : 0.5, w = i > 2 ? 7 : t;
    half4 h = flag ? half4(2) : 0.25;
    o[4 * i] = float4(p ? by * p[i] : 0.0f).x;
    o[4 * i + 1] = float4(flag ? 1.0f : m[i]).y;
    o[4 * i + 2] = u.x + w.z;
    o[4 * i + 3] = h.x;
}
kernel void halves(device float* o, device const half4* m, constant float& by, constant bool& flag,
    uint i [[thread_position_in_grid]]) { fill(o, m, by, flag, i); }
kernel void floats(device float* o, device const float4* m, constant float& by, constant bool& flag,
    uint i [[thread_position_in_grid]]) { fill(o, m, by, flag, i); }
"""


def test_scalars_as_arms_beside_vectors_of_a_template() -> None:
    source = LIBRARY + CHOSEN
    compile_for_cuda(translate(source, "cuda", launch="box").source, "extensions.metal")
    library = mg.compile(source)
    i = np.arange(8)
    for name, dtype in (("halves", np.float16), ("floats", np.float32)):
        m = np.arange(32, dtype=dtype).reshape(8, 4)
        for flag in (True, False):
            o = np.zeros((8, 4), np.float32)
            library.function(name)(8, o, m, np.float32(0.5), np.bool_(flag))
            np.testing.assert_array_equal(o[:, 0], m[:, 0] * 0.5 if flag else 0 * i)
            np.testing.assert_array_equal(o[:, 1], 0 * i + 1 if flag else m[:, 1])
            np.testing.assert_array_equal(o[:, 2], (m[:, 0] if flag else 0.5) + np.where(i > 2, 7, m[:, 2]))
            np.testing.assert_array_equal(o[:, 3], 2 if flag else 0.25)


MEMBERS = """
struct Both { float a, b; };
struct Left {
    template <typename T> T operator()(T x) thread { return x * 2; }
    Both operator()(Both x) thread;
    float shifted(float x) const thread;
};
struct Right { Both operator()(Both x) thread; float operator()(float x) thread { return x; } };
struct Nested { Both operator()(Both x) thread { return Left{}(x); } };
Both Left::operator()(Both x) thread { return {x.b, x.a}; }
Both Right::operator()(Both x) thread { x.a += 5; return x; }
float Left::shifted(float x) const thread { return x + 1; }
template <typename I = long> I place(I x, constant const int* by) { return x + by[0]; }
template <typename I = long> I place(uint3 x, constant const int* by) { return x.x + I(x.y) * by[1] + x.z; }
template <typename I> I placed(uint3 x, constant const int* by) { return place<I>({2 * x.x, x.y + 1, x.z}, by); }
#pragma METAL internals : enable
template <typename T> constexpr constant bool is_wide = _disjunction<is_same<T, long>, is_same<T, float4>>::value;
#pragma METAL internals : disable
kernel void k(device float4* o, constant int* by, uint3 i [[thread_position_in_grid]]) {
    constexpr const uniform<int> step = make_uniform(4);
    const metal::uniform<int> n = metal::make_uniform(by[1]);
    const uniform<int> turns = n / step;
    Both both = Nested{}(Both{1, float(i.x)});
    o[i.x] = float4(both.a + 10 * Right{}(both).a + Right{}(2.0f), Left{}(3.0f) + Left{}.shifted(1),
                    placed<long>(i, by), turns + 100 * (n - step * turns) + 1000 * is_wide<float4>);
}
"""


def test_members_defined_outside_braces_for_vectors_and_uniform_values() -> None:
    source = LIBRARY + MEMBERS
    compile_for_cuda(translate(source, "cuda", launch="box").source, "extensions.metal")
    o, i = np.zeros((8, 4), np.float32), np.arange(8)
    mg.compile(source).function("k")((8, 1, 1), o, np.array([3, 7], np.int32))
    np.testing.assert_array_equal(o[:, 0], i + 10 * (i + 5) + 2)
    np.testing.assert_array_equal(o[:, 1], 8)
    np.testing.assert_array_equal(o[:, 2], 2 * i + 7)
    np.testing.assert_array_equal(o[:, 3], 1 + 300 + 1000)


TRAITS = """
namespace metal {
template <typename T> struct is_empty : metal::bool_constant<__is_empty(T)> {};
template <typename T> constexpr constant bool is_empty_v = is_empty<T>::value;
template <typename... T> struct make_void { typedef void type; };
template <typename... T> using void_t = typename make_void<T...>::type;
template <typename T> struct target {};
template <typename T> struct target<device T*> { using type = remove_cv_t<T>; };
}
namespace own {
template <typename T> struct is_integral : bool_constant<metal::is_integral<T>::value> {};
template <> struct is_integral<float> : true_type {};
}
struct Nothing {};
template <typename T, typename = void> struct has_type : false_type {};
template <typename T> struct has_type<T, void_t<typename T::type>> : true_type {};
kernel void k(device float* o) {
    typename target<device const float*>::type x = 2;
    o[0] = x + 10 * metal::is_empty_v<Nothing> + 100 * is_empty<float>::value + 1000 * is_convertible_v<int, float>;
    o[1] = has_type<target<device float*>>::value + 10 * has_type<Nothing>::value
        + 100 * own::is_integral<float>::value + 1000 * own::is_integral<int>::value + 10000 * is_integral_v<float>;
}
"""


def test_traits_in_the_librarys_namespace_are_the_programs() -> None:
    source = LIBRARY + TRAITS
    compile_for_cuda(translate(source, "cuda", launch="box").source, "extensions.metal")
    o = np.zeros(2, np.float32)
    mg.compile(source).function("k")(1, o)
    np.testing.assert_array_equal(o, [1012, 1101])


CONSTANTS = """
template <typename T, T v> struct known {
    static constexpr constant T value = v;
    METAL_FUNC constexpr operator T() const thread noexcept { return value; }
};
template <int n> using count = known<int, n>;
template <typename T, T a, typename U, U b> METAL_FUNC constexpr auto operator+(known<T, a>, known<U, b>) {
    constexpr auto sum = a + b;
    return known<metal::remove_addrspace_t<decltype(sum)>, sum>{};
}
template <typename T> using vec_t = typename metal::vec<T, 4>;
template <typename P, typename S> float strided(P x, short i, S by) {
    x += by;
    x -= by;
    return vec_t<float>(x[i * by]).w;
}
struct Total {
    float sum = 0;
    void add(float x) thread { sum += x; }
    static void all(threadgroup const float* x, thread Total& total, thread int& last, thread const short& n,
                    const thread short& by) {
        for (short i = 0; i < n; i += by) { total.add(x[i]); last = i + short2(by, n).x; }
    }
};
template <typename T> struct address { using type = remove_addrspace_t<T>; };
kernel void k(device float* o, const device float* x, constant int& n, uint i [[thread_position_in_grid]]) {
    threadgroup float copy[8];
    copy[i] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Total total;
    int last = 0;
    const int by = 2;
    Total::all(copy, total, last, n, by);
    typename address<decltype(count<3>{} + count<4>{})>::type seven;
    o[i] = strided(x, 1, count<3>{}) + 10 * (count<1>{} + count<2>{}) + 100 * seven;
    o[i] += 1000 * total.sum + 10000 * last + 1000000 * is_same_v<remove_addrspace_t<device float>, float>;
}
"""


def test_constants_in_types_and_numbers_for_references_to_them() -> None:
    source = LIBRARY + CONSTANTS
    compile_for_cuda(translate(source, "cuda", definitions={"__METAL_VERSION__": "310"}).source, "extensions.metal")
    o, x = np.zeros(8, np.float32), np.arange(8, dtype=np.float32) + 1
    mg.compile(source, language_version="3.1").function("k")(8, o, x, np.int32(6), threadgroup=8)
    np.testing.assert_array_equal(o, 4 + 30 + 700 + 1000 * (1 + 3 + 5) + 10000 * 6 + 1000000)


CALLED = """
struct Both { float a, b; };
METAL_FUNC Both operator*(Both x, Both y) { return {x.a * y.a - x.b * y.b, x.a * y.b + x.b * y.a}; }
struct Log { void note(float) const constant {} };
constant Log log_of_calls;
struct Power {
    static constexpr constant int most = 3;
    template <typename T> enable_if_t<!is_integral_v<T>, T> operator()(T x, T y) thread { return pow(x, y); }
    template <typename T> enable_if_t<is_integral_v<T>, T> operator()(T x, T y) thread {
        if (y > most) { log_of_calls.note(y); return -1; }
        T product = 1;
        for (T i = 0; i < y; ++i) product *= x;
        return product;
    }
    template <> Both operator()(Both x, Both y) thread {
        auto square = x * x;
        return square * y;
    }
};
struct Turn {
    template <typename T> T operator()(T x) thread { return -x; };
    Both operator()(Both x) thread;
};
struct Twice { template <typename T> T operator()(T x) thread { return Turn()(Turn{}(x)); } };
Both Turn::operator()(Both x) thread {
    auto i = Both{0, 1};
    return x * i;
};
template <typename T, typename Op> void apply(device T* o, uint i) { o[i] = Op()(o[i]); }
template <typename T, typename Op> void combine(device T* o, uint i) { Op op; o[i] = op(o[i], o[i]); }
kernel void floats(device float* o, uint i [[thread_position_in_grid]]) {
    combine<float, Power>(o, i);
    apply<float, Turn>(o, i);
}
kernel void integers(device int* o, uint i [[thread_position_in_grid]]) {
    combine<int, Power>(o, i);
    apply<int, Twice>(o, i);
}
kernel void both(device Both* o, uint i [[thread_position_in_grid]]) {
    combine<Both, Power>(o, i);
    apply<Both, Turn>(o, i);
    apply<Both, Twice>(o, i);
}
"""


def test_calls_of_objects_by_templates_and_for_one_type() -> None:
    source = LIBRARY + CALLED
    compile_for_cuda(translate(source, "cuda", launch="box").source, "extensions.metal")
    library = mg.compile(source)
    floats = np.linspace(0.5, 3, 8, dtype=np.float32)
    o = floats.copy()
    library.function("floats")(8, o)
    np.testing.assert_allclose(o, -(floats.astype(np.float64) ** floats), rtol=1e-5)
    integers = np.arange(6, dtype=np.int32)
    library.function("integers")(6, integers)
    np.testing.assert_array_equal(integers, [1, 1, 4, 27, -1, -1])
    o = np.arange(8, dtype=np.float32)
    z = o.view(np.complex64).copy()
    library.function("both")(4, o)
    np.testing.assert_allclose(o.view(np.complex64), z**3 * 1j * 1j * 1j, rtol=1e-6)


APART = """
template <typename T> struct Pair {
    T first, second;
    constexpr Pair(T a, T b) thread : first(a), second(b) {}
    constexpr Pair() thread : first(0), second(0) {}
    constexpr Pair() threadgroup : first(0), second(0) {}
    template <typename U> constexpr Pair(U a) thread : first(a), second(0) {}
    template <typename U> constexpr Pair(U a) constant : first(a), second(0) {}
};
template <typename T> Pair<T> operator+(Pair<T> x, Pair<T> y) {
    return Pair<T>(x.first + y.first, x.second + y.second);
}
template <typename T> struct Sum {
    static constexpr constant T none = T(0);
    T operator()(T x, T y) thread { return x + y; }
};
template <typename T, typename Op> kernel void fold(device T* o, const device T* x,
    uint i [[thread_position_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup T kept[32];
    Op op;
    kept[i] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    T other = lane % 2 ? kept[i - 1] : op.none;
    T own = lane > 4 ? kept[i] : x[0];
    T last = lane < 8 ? Op::none : other;
    o[i] = op(other, op(own, last));
}
using pair_t = Pair<float>;
template [[host_name("pairs")]] kernel decltype(fold<pair_t, Sum<pair_t>>) fold<pair_t, Sum<pair_t>>;
template [[host_name("floats")]] kernel decltype(fold<float, Sum<float>>) fold<float, Sum<float>>;
"""


def test_choices_between_objects_in_two_address_spaces() -> None:
    source = LIBRARY + APART
    compile_for_cuda(translate(source, "cuda", launch="box").source, "extensions.metal")
    library = mg.compile(source)
    x, i = np.arange(64, dtype=np.float32).reshape(32, 2) + 1, np.arange(32)[:, None]
    for name, values in (("pairs", x), ("floats", x[:, :1].copy())):
        o = np.zeros_like(values)
        library.function(name)(32, o, values, threadgroup=32)
        other = np.where(i % 2, np.roll(values, 1, axis=0), 0)
        np.testing.assert_array_equal(o, other + np.where(i > 4, values, values[0]) + np.where(i < 8, 0, other))


PLAIN = """
typedef float (one_t)(float);
using two_t = void(thread float&, constant float* by);
METAL_FUNC float square(float x) { return x * x; }
inline float half_of(float);
static void increase(thread float& x, constant float*) { x += 1; }
namespace own { void scale(thread float& x, constant float* by) { x *= *by; } }
template <typename T> void decrease(thread T& x, constant float* by) { x -= *by; }
template <one_t f> float twice(float x) { return f(f(x)); }
template <one_t f, two_t g> struct Both {
    float operator()(float x, constant float* by) const thread { g(x, by); return f(x); }
};
template <two_t g, typename T> kernel void k(device T* o, constant float* by, uint i [[thread_position_in_grid]]) {
    Both<square, g> both;
    o[i] = both(i, by) + 1000 * twice<half_of>(8) + 10000 * twice<square>(i);
}
inline float half_of(float x) { return x / 2; }
template [[host_name("increase")]] kernel decltype(k<increase, float>) k<increase, float>;
template [[host_name("scale")]] kernel decltype(k<own::scale, float>) k<own::scale, float>;
template [[host_name("decrease")]] kernel decltype(k<decrease<float>, float>) k<decrease<float>, float>;
"""


def test_functions_that_are_no_templates_as_arguments_whose_type_has_a_name() -> None:
    source = LIBRARY + PLAIN
    compile_for_cuda(translate(source, "cuda", launch="box").source, "extensions.metal")
    library = mg.compile(source)
    i = np.arange(4)
    for name, changed in (("increase", i + 1), ("scale", 3 * i), ("decrease", i - 3)):
        o = np.zeros(4, np.float32)
        library.function(name)(4, o, np.float32(3))
        np.testing.assert_array_equal(o, changed**2 + 2000 + 10000 * i**4)


ELEMENTS = """
template <typename T> struct Tile {
    vec<T, 2> held[2];
    METAL_FUNC thread vec<T, 2>& at(short i) thread { return held[i]; }
};
template <typename T, typename M> void mask(device T* o, const device vec<M, 2>* m, uint i) {
    Tile<T> tile;
    tile.at(1) = vec<T, 2>(i);
    vec<M, 2> flags = m[i];
    constexpr auto least = numeric_limits<T>::lowest();
    for (short j = 0; j < 2; j++) {
        tile.at(1)[j] = flags[j] ? tile.at(1)[j] : least;
        const auto other = flags[j] ? tile.at(1)[j] : tile.held[1][1 - j];
        o[2 * i + j] = tile.held[1][j] + other;
    }
}
kernel void halves(device half* o, const device int2* m, uint i [[thread_position_in_grid]]) {
    mask<half, int>(o, m, i);
}
kernel void floats(device float* o, const device int2* m, uint i [[thread_position_in_grid]]) {
    mask<float, int>(o, m, i);
}
kernel void bfloats(device bfloat* o, const device int2* m, uint i [[thread_position_in_grid]]) {
    o[i] = m[i].x ? o[i] : bfloat(2);
}
"""


def test_choices_between_elements_of_vectors_beside_bfloat() -> None:
    source = LIBRARY + ELEMENTS
    definitions = {"__METAL_VERSION__": "310"}
    compile_for_cuda(translate(source, "cuda", launch="box", definitions=definitions).source, "extensions.metal")
    library = mg.compile(source, language_version="3.1")
    m = np.array([[1, 0], [1, 1], [0, 1], [1, 1]], np.int32)
    i = np.arange(4)[:, None]
    for name, dtype in (("halves", np.float16), ("floats", np.float32)):
        o = np.zeros((4, 2), dtype)
        library.function(name)(4, o, m)
        least = np.finfo(dtype).min
        kept = np.where(m, i, least)
        first = kept[:, 0] + np.where(m[:, 0], kept[:, 0], i[:, 0])
        second = kept[:, 1] + np.where(m[:, 1], kept[:, 1], kept[:, 0])
        np.testing.assert_array_equal(o, np.stack([first, second], 1).astype(dtype))


SPECIALISED = """
template <typename T> struct shape { using element = T; static constexpr constant int size = 1; };
template <typename T, int n> struct shape<vec<T, n>> {
    using element = T;
    static constexpr constant int size = n;
    static T last(vec<T, n> v) { return v[n - 1]; }
};
template <typename T, typename U> struct is_pair_of : false_type {};
template <typename T> struct bytes { static constexpr constant int value = 0; };
template <typename T> struct bytes<vec<T, 2>> { static constexpr constant int value = 2 * sizeof(T); };
template <> struct bytes<bool2> { static constexpr constant int value = 7; };
template <typename T> struct is_pair_of<T, metal::vec<T, 2>> : true_type {};
kernel void k(device int* o) {
    o[0] = shape<float2>::size + 10 * shape<bool3>::size + 100 * shape<vec<bool, 4>>::size + 1000 * shape<int>::size;
    o[1] = is_same_v<shape<bool2>::element, bool> + 10 * is_same_v<shape<half4>::element, half>;
    o[1] += 100 * bytes<bool2>::value + 1000 * bytes<float2>::value;
    o[2] = shape<bool3>::last(float3(1, 2, 3) > 2) + 10 * shape<int2>::last(int2(4, 5));
    o[3] = is_pair_of<bool, bool2>::value + 10 * is_pair_of<half, half2>::value + 100 * is_pair_of<int, float2>::value;
}
"""
OF_BFLOATS = """
kernel void b(device int* o, device bfloat* x) {
    o[0] = shape<bfloat4>::size + 10 * shape<vec<float, 3>>::size + 100 * shape<bool3>::size;
    o[1] = is_same_v<shape<bfloat2>::element, bfloat> + 10 * is_pair_of<bfloat, vec<bfloat, 2>>::value;
    *x = shape<bfloat2>::last(bfloat2(1, 2));
}
"""


def test_classes_specialised_for_vectors_of_any_element() -> None:
    compile_for_cuda(translate(LIBRARY + SPECIALISED, "cuda", launch="box").source, "extensions.metal")
    for version, source in (("2.3", SPECIALISED), ("3.1", SPECIALISED + OF_BFLOATS)):
        o = np.zeros(4, np.int32)
        library = mg.compile(LIBRARY + source, language_version=version)
        library.function("k")(1, o)
        np.testing.assert_array_equal(o, [2 + 30 + 400 + 1000, 11 + 700 + 8000, 1 + 50, 11])
    x = np.zeros(1, np.uint16)
    library.function("b")(1, o, x)
    np.testing.assert_array_equal(o[:2], [4 + 30 + 300, 11])
    assert (x.astype(np.uint32) << 16).view(np.float32)[0] == 2


BRANCHES = """
template <int n> struct Walk {
    device float* o;
    float at;
    METAL_FUNC void step(thread const float* by) thread { at += *by; }
    METAL_FUNC void run(float by) thread {
        if constexpr (n > 1) {
            step(&by);
            step(&by);
        } else if constexpr (n == 1) {
            step(&by);
        }
        *o = at;
    }
};
kernel void k(device float* o) {
    Walk<1> one{o, 1};
    Walk<2> two{o + 1, 1};
    Walk<0> none{o + 2, 1};
    one.run(5);
    two.run(5);
    none.run(5);
}
"""


def test_members_that_choose_at_compile_time_which_others_they_call() -> None:
    compile_for_cuda(translate(LIBRARY + BRANCHES, "cuda", launch="box").source, "extensions.metal")
    o = np.zeros(3, np.float32)
    mg.compile(LIBRARY + BRANCHES).function("k")(1, o)
    np.testing.assert_array_equal(o, [6, 11, 1])


SPECIALISED_MEMBERS = """
template <typename T> struct Reader {
    const device T* x;
    float load(int i) const thread { auto p = x + i; return *p; }
    float last(int n) const thread { return x[n - 1]; }
    float twice(int i) const thread { return 2 * load(i); }
};
template <> float Reader<int>::load(int i) const thread { return x[i] / 2; }
template <> float Reader<int>::last(int n) const thread { return -x[n - 1]; }
kernel void k(device float* o, const device int* a, const device float* b) {
    Reader<int> ints{a};
    Reader<float> floats{b};
    o[0] = ints.twice(1);
    o[1] = floats.twice(1);
    o[2] = Reader<int>{a}.last(2);
    o[3] = Reader<float>{b}.last(2);
}
"""


def test_members_of_templates_specialised_outside() -> None:
    source = LIBRARY + SPECIALISED_MEMBERS
    compile_for_cuda(translate(source, "cuda", launch="box").source, "extensions.metal")
    o = np.zeros(4, np.float32)
    mg.compile(source).function("k")(1, o, np.array([4, 7], np.int32), np.array([1, 2.5], np.float32))
    np.testing.assert_array_equal(o, [6, 5, -7, 2.5])


OF_CLANG = """
template <typename T> struct pointee { using type = uint; };
template <typename T> struct pointee<thread T*> { using type = T; };
template <typename T> struct pointee<device T*> { using type = T; };
template <typename T> struct pointee<constant T*> { using type = T; };
template <typename T> struct pointee<threadgroup T*> { using type = T; };
typedef half2 pair_t;
struct Block {
    __extension__ union {
        struct { half d, m; };
        pair_t dm;
    };
};
template <typename T> struct Tile {
    static constant constexpr const short width = 3;
    static constexpr constant const int depth = 2;
};
template <typename T, int n> T total(const device T* x) {
    T sums[n] = { [0 ... n - 1] = T(2) };
    T sum = 0;
    for (int i = 0; i < n; i++) { sum += sums[i] + x[i]; }
    return sum;
}
kernel void k(device float* o, const device float* x, device Block* blocks) {
    constexpr int bits = __builtin_ctz(8) + 10 * __builtin_popcount(7) + 100 * __builtin_clz(1);
    typename pointee<device float*>::type sum = total<float, 3>(x);
    Block b = blocks[0];
    blocks[1] = b;
    o[0] = sum + 100 * Tile<float>::width * Tile<int>::depth + 1000 * is_same_v<pointee<threadgroup int*>::type, int>;
    o[1] = bits + float(b.dm.y);
    // Statements in an expression.
    #define LARGER(a, b) ({ auto a_ = (a); auto b_ = (b); a_ > b_ ? a_ : b_; })
    if (LARGER(LARGER(x[1], 0.5f), x[2]) > 1)
        o[2] = ({ float s = 0; for (int k = 0; k < 3; k++) { if (k == 2) break; s += x[k + 1]; } s; }) * LARGER(2, 3);
    ({ o[3] = 1; if (x[1] > 0) o[3] = 2; });
}
"""


def test_constants_that_are_no_numbers_are_true() -> None:
    """Of them NVIDIA's compiler made false where vectors of bool were made of constants."""
    source = LIBRARY + """
    constant constexpr bool2 of_two = bool2(NAN, 0.0f), of_vector = bool2(float2(0.0f, NAN)), of_one = bool2(NAN);
    static_assert(of_two[0] && !of_two[1] && !of_vector[0] && of_vector[1] && of_one[0] && of_one[1], "");
    kernel void k(device float* o) { o[0] = of_two.x; }"""
    compile_for_cuda(translate(source, "cuda", launch="box").source, "not_a_number.metal")


def test_what_only_clang_knows() -> None:
    compile_for_cuda(translate(LIBRARY + OF_CLANG, "cuda", launch="box").source, "clang.metal")
    o, blocks = np.zeros(4, np.float32), np.array([[1, 2], [0, 0]], np.float16)
    mg.compile(LIBRARY + OF_CLANG).function("k")(1, o, np.arange(3, dtype=np.float32), blocks)
    np.testing.assert_array_equal(o, [9 + 600 + 1000, 3 + 30 + 3100 + 2, 9, 2])
    np.testing.assert_array_equal(blocks, [[1, 2], [1, 2]])


FUNCTION_NAMES = """
uint copy(constant const char* text, device char* o) {
    uint n = 0;
    for (; text[n]; n++) o[n] = text[n];
    return n;
}
struct Teller { static uint tell(device char* o) { if (true) { return copy(__FUNCTION__, o); } return 0; } };
template <typename T> uint of_template(T start, device char* o) {
    constant const char* p = __func__;
    return copy(p, o);
}
kernel void k(device char* o) {
    for (uint i = 0; i < 1; i++) { o += copy(__func__, o); }
    *o++ = ' ';
    o += Teller::tell(o);
    *o++ = ' ';
    of_template(1, o);
}
"""


def test_functions_know_their_names() -> None:
    compile_for_cuda(translate(LIBRARY + FUNCTION_NAMES, "cuda", launch="box").source, "names.metal")
    o = np.zeros(40, np.int8)
    mg.compile(LIBRARY + FUNCTION_NAMES).function("k")(1, o)
    assert o.tobytes().rstrip(b"\0") == b"k tell of_template"
