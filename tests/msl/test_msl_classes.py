"""Classes of the user's own: address spaces of constructors and member functions, temporary objects, unions."""

from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.errors import ShaderError
from mpsgrad.msl import translate

COMPLEX = """
struct complex64_t {
    float real, imag;
    complex64_t() = default;
    constexpr complex64_t(float r, float i) : real(r), imag(i) {}
    template <typename T, typename = enable_if_t<is_convertible<T, float>::value && !is_same_v<T, complex64_t>>>
    constexpr complex64_t(T x) thread : real(x), imag(0) {}
    template <typename T, typename = enable_if_t<is_convertible<T, float>::value && !is_same_v<T, complex64_t>>>
    constexpr complex64_t(T x) device : real(x), imag(0) {}
    template <typename T, typename = enable_if_t<is_convertible<T, float>::value && !is_same_v<T, complex64_t>>>
    constexpr complex64_t(T x) constant : real(x), imag(0) {}
    float size() const thread { return sqrt(real * real + imag * imag); }
    float size() const device { return sqrt(real * real + imag * imag); }
    float size() const constant { return sqrt(real * real + imag * imag); }
    float operator()(float x) const thread { return real * x; }
    float operator()(float x) const device { return real * x; }
};
complex64_t operator+(complex64_t a, complex64_t b) { return {a.real + b.real, a.imag + b.imag}; }
complex64_t operator*(const thread complex64_t& a, const thread complex64_t& b) {
    return {a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};
}
thread complex64_t& operator+=(thread complex64_t& a, const thread complex64_t& b) { a = a + b; return a; }
float cube(const thread float& x) { return x * x * x; }
kernel void k(device complex64_t* x, constant complex64_t& c, device float* o, uint i [[thread_position_in_grid]]) {
    complex64_t z = x[i], one(1.0f);
    z += z * complex64_t(2.0f);
    o[i] = (z + one).size() + x[i].size() + c.size() + x[i](10) + z(100) + cube(2.0f + i);
    x[i] = (z + one) * c;
}
"""

UNIONS = """
union Bits { float f; uint u; uchar4 b; };
typedef union { float4 v; float a[4]; } Quad;
struct Box { int n; union { float4 v; float a[4]; }; };
struct Inner { float2 p; };
union Deep { Inner inner; float f[2]; };
template <typename T> union Cast { vec<T, 4> v; T a[4]; };
kernel void k(device const float* x, device Bits* bits, device Quad* quads, device Box* boxes, device Deep* deeps,
              uint i [[thread_position_in_grid]]) {
    Bits b; b.f = x[i]; b.b.x ^= 1; bits[i] = b;
    Quad q = {float4(1, 2, 3, 4)}; q.a[2] = x[i]; quads[i] = q;
    Box box; box.n = 2; box.v = q.v; box.a[0] = 7; boxes[i] = box;
    Cast<float> s, t; s.v = float4(0); s.a[1] = 3; t = s;
    Deep d; d.inner.p = float2(t.v.y, x[i]); deeps[i] = d;
}
"""

VIEWS = """
template <typename T> T second(vec<T, 2> v) { return v.y; }
template <typename T> float sum(T v) { T w = v; return w.x + w[1]; }
kernel void k(device const float4* x, device float* o, uint i [[thread_position_in_grid]]) {
    float4 v = x[i];
    auto p = v.zw;
    v.zw += p;
    float2 turned = v.xy;
    turned.yx = turned;
    v.xy = turned.yx;
    ulong bits = as_type<ulong>(v.zw);
    bool4 positive = v > 0;
    o[4 * i] = p.y + second(v.xy) + sum(v.yz) + sum(p);
    o[4 * i + 1] = as_type<float>(uint(bits >> 32));
    o[4 * i + 2] = any(positive.xy) + 2 * all(positive.yz) + 4 * any(v.zw > 1);
    o[4 * i + 3] = simd_max(v.yx).x;
}
"""


def compiled(source: str) -> mg.KernelLibrary:
    source = LIBRARY + source
    compile_for_cuda(translate(source, "cuda", filename="classes.metal", launch="box").source, "classes.metal")
    return mg.compile(source)


def test_constructors_and_member_functions_of_several_address_spaces() -> None:
    generator = np.random.default_rng(1)
    x = (generator.standard_normal(9) + 1j * generator.standard_normal(9)).astype(np.complex64)
    c = np.complex64(0.2 - 1j)
    given, o = x.view(np.float32).reshape(9, 2).copy(), np.zeros(9, np.float32)
    layout = np.dtype([("real", "f4"), ("imag", "f4")])
    compiled(COMPLEX).function("k")(9, given, np.array((c.real, c.imag), layout)[()], o)
    z = 3 * x
    expected = abs(z + 1) + abs(x) + abs(c) + 10 * x.real + 100 * z.real + (2.0 + np.arange(9)) ** 3
    np.testing.assert_allclose(o, expected, rtol=1e-5)
    np.testing.assert_allclose(given.view(np.complex64)[:, 0], (z + 1) * c, rtol=1e-5)


DISPATCHED = """
float first(thread float* p) { return *p; }
float first(const device float* p) { return 2 * *p; }
float first(threadgroup const float* p) { return 3 * *p; }
template <typename T, int N> T load(const device T* p, T s) { return p[N] + s; }
template <typename T, int N> T load(threadgroup T* p, T s) { return p[N] - s; }
void put(thread float& r, float v) { r = v; }
void put(device float& r, float v) { r = v + 1; }
float both(device float* a, threadgroup float* b) { return *a - *b; }
float both(threadgroup float* a, device float* b) { return *a + *b; }
namespace own { float first(threadgroup float* p) { return -*p; } }
struct Pair {
    float v[2];
    device float& at(int i) device { return v[i]; }
    const device float& at(int i) const device { return v[i]; }
    threadgroup float& at(int i) threadgroup { return v[i]; }
    float operator[](int i) const thread { return v[i]; }
    float operator[](int i) const device { return 10 * v[i]; }
};
device float* next(device float* p) { return p + 1; }
threadgroup float* next(threadgroup float* p) { return p + 1; }
kernel void k(device float* o, device Pair* pairs, const device Pair* given) {
    threadgroup float t[2];
    threadgroup Pair tp;
    float z = 5;
    Pair mine = {{2, 3}};
    t[0] = 7, t[1] = 11, o[0] = 13, tp.at(1) = 17;
    pairs->at(0) = tp.at(1);
    o[1] = first(&z), o[2] = first(o), o[3] = first(t), o[4] = own::first(t);
    o[5] = load<float, 0>(o, 1) + 100 * load<float, 1>(t, 1);
    put(o[6], 1), put(z, 1), o[7] = z;
    o[8] = both(o, t), o[9] = both(t, o), o[10] = mine[1], o[11] = pairs[0][0], o[12] = given->at(1), o[13] = *next(t);
    *next(o + 13) = 4;
}
"""


def test_overloads_by_address_space_that_do_different_things() -> None:
    """CUDA's pointers have no address space to tell them by."""
    o, given = np.zeros(15, np.float32), np.array([0, 19], np.float32)
    compiled(DISPATCHED).function("k")(1, o, np.zeros(2, np.float32), given)
    np.testing.assert_array_equal(o, [13, 5, 26, 21, -7, 14 + 1000, 2, 1, 6, 20, 3, 170, 19, 11, 4])


@pytest.mark.parametrize(
    "second",
    [
        "float first(constant float* p) { return *p; }",
        "float first(threadgroup const float* p = nullptr) { return 1; }",
    ],
)
def test_overloads_that_nothing_tells_apart_are_refused(second: str) -> None:
    source = f"float first(const device float* p) {{ return 2 * *p; }}\n{second}\nkernel void k(device float* x) {{}}"
    with pytest.raises(ShaderError, match="2:7: 'first' does something else for another address space"):
        translate(source, "cuda", filename="s.metal")


def test_a_function_defined_twice_is_named() -> None:
    source = "void put(device float* p) { *p = 1; }\nvoid put(device float* p) { *p = 2; }"
    with pytest.raises(ShaderError, match="2:6: redefinition of 'put'"):
        translate(source, "opencl", filename="s.metal")


def test_matrices_at_program_scope() -> None:
    """CUDA takes only constants there, so that a matrix has to be one however it is made."""
    source = """
    constant float3x2 columns = float3x2(float2(1, 2), float2(3, 4), float2(5, 6));
    constant float2x2 elements(0, 1, -1, 0), diagonal = float2x2(7.0);
    kernel void k(device float* o) {
        float2 p = elements * columns[2] + diagonal * float2(1, 2);
        o[0] = p.x, o[1] = p.y, o[2] = columns[1].x, o[3] = diagonal[0].y;
    }
    """
    o = np.zeros(4, np.float32)
    compiled(source).function("k")(1, o)
    np.testing.assert_array_equal(o, [-6 + 7, 5 + 14, 3, 0])


def test_functions_that_differ_in_const_only_are_told_apart() -> None:
    source = "struct S { float v; float get() { return v; } float get() const { return 2 * v; } };"
    source += "kernel void k(device float* o) { S a = {1}; const S b = {2}; o[0] = a.get() + b.get(); }"
    o = np.zeros(1, np.float32)
    compiled(source).function("k")(1, o)
    assert o[0] == 5


def test_parameters_may_have_named_pointer_types() -> None:
    source = """
    typedef device float* Output;
    using Input = device const float*;
    kernel void k(Input x [[buffer(0)]], Output o [[buffer(1)]], uint i [[thread_position_in_grid]]) { o[i] = x[i]; }
    """
    o = np.zeros(4, np.float32)
    compiled(source).function("k")(4, np.ones(4, np.float32), o)
    np.testing.assert_array_equal(o, 1)


def test_constructors_that_do_different_things_are_refused() -> None:
    source = "struct S { float v; S() thread : v(1) {} S() threadgroup : v(2) {} };\nkernel void k(device S* s) {}"
    with pytest.raises(ShaderError, match="1:42: 'S' does something else for another address space"):
        translate(source, "cuda", filename="s.metal")


def test_an_argument_that_is_written_to_meanwhile_stays_a_reference() -> None:
    source = """
    float first(const thread float& x) { return x; }
    void move(const thread float& from, thread float& to) { to = 0; to += first(from); }
    kernel void k(device float* o) { float x = 3; move(x, x); o[0] = x; }"""
    o = np.ones(1, np.float32)
    compiled(source).function("k")(1, o)
    assert o[0] == 0


def test_templates_take_temporaries_beside_those_of_another_address_space() -> None:
    source = """
    namespace n {
    template <typename T> T square(const thread T& x) { return x * x; }
    template <typename T> T square(const device T& x) { return x * x; }
    template <typename T> T square(const constant T& x) { return x * x; }
    }
    template <typename T, typename U> T sum(const thread T& x, const thread U& y) { return x + y; }
    template <typename T, typename U> T sum(const device T& x, const thread U& y) { return x - y; }
    kernel void k(device float* o, constant int& c) {
        float x = 3;
        o[0] = n::square(x) + n::square(o[0]) + n::square(c) + n::square(x + 1) + n::square(5) + n::square(float2(6).x);
        o[1] = sum(x, x) + sum(x + 1, 2) + sum(o[1], x);
    }"""
    o = np.array([2, 50], np.float32)
    compiled(source).function("k")(1, o, 1)
    np.testing.assert_array_equal(o, [9 + 4 + 1 + 16 + 25 + 36, 6 + 6 + 47])


def test_templates_without_a_body_are_specialised() -> None:
    source = """
    struct Pair { float key; };
    template <typename T> bool precedes(const thread T& a, const thread T& b);
    template <> bool precedes<Pair>(const thread Pair& a, const thread Pair& b) { return a.key < b.key; }
    template <typename T> float keyed(const thread T& x) { return x; }
    template <> float keyed<Pair>(const thread Pair& x) { return x.key; }
    kernel void k(device Pair* p, device float* o) {
        Pair a = p[0], b = p[1];
        o[0] = precedes(a, b);
        o[1] = keyed(Pair{5}) + keyed(a);
    }"""
    o = np.zeros(2, np.float32)
    compiled(source).function("k")(1, np.float32([1, 2]), o)
    assert o.tolist() == [1, 6]


def test_functions_of_device_memory_that_call_others_take_temporaries() -> None:
    source = """
    struct Ray { float3 o, d; };
    bool reaches(const thread Ray& r, float x, thread float& near) { near = r.o.x; return r.d.x > x; }
    template <bool TWICE> float walk(const thread Ray& r, const device float* nodes, device float& seen) {
        float near = 0;
        bool is_hit = reaches(r, nodes[0], near);
        seen = near;
        return is_hit ? (TWICE ? 2 : 1) * near : 0;
    }
    Ray along(float3 o) { return Ray{o, o + 1}; }
    kernel void k(device float* o, const device float* nodes) {
        Ray ray = along(float3(3));
        o[0] = walk<false>(ray, nodes, o[2]);
        o[1] = walk<true>(along(float3(4)), nodes, o[3]);
    }"""
    o = np.zeros(4, np.float32)
    compiled(source).function("k")(1, o, np.float32([2]))
    assert o.tolist() == [3, 8, 3, 4]


ELSEWHERE = """
struct Complex {
    float re, im;
    constexpr Complex(float r = 0, float i = 0) : re(r), im(i) {}
    Complex operator+(Complex o) const { return Complex(re + o.re, im + o.im); }
    device Complex& operator=(thread const Complex& o) device { re = o.re; im = o.im; return *this; }
    operator float2() const { return float2(re, im); }
};
kernel void k(device Complex* x, device float2* y) {
    Complex a = x[0];
    x[0] = a + Complex(1, 2);
    x[1] = a;
    y[0] = float2(a + Complex(3)) + float2(a);
}
"""


def test_objects_elsewhere_are_assigned_temporaries_and_converted_to_vectors() -> None:
    x, y = np.float32([[5, 6], [0, 0]]), np.zeros(2, np.float32)
    mg.compile(LIBRARY + ELSEWHERE).function("k")(1, x, y)
    assert x.tolist() == [[6, 8], [5, 6]] and y.tolist() == [13, 12]
    compile_for_cuda(translate(LIBRARY + ELSEWHERE, "cuda").source, "elsewhere.metal")


RANGES = """
struct Weights { array<float, 4> w; };
constant array<float, 3> table = {{1, 2, 4}};
array<float, 2> both(float x) { return {{x, 2 * x}}; }
kernel void k(device const Weights* x, device array<float, 4>& y, device float* out,
              uint i [[thread_position_in_grid]]) {
    array<float, 4> mine = x[i].w;
    threadgroup array<float, 4> shared;
    float s = 0;
    for (float v : mine) s += v;
    for (thread float& v : mine) v *= 2;
    for (auto v : mine) s += v;
    for (device const float& v : x[i].w) s += v;
    for (constant float& v : table) s += v;
    for (const float v : both(10)) s += v;
    if (i == 0) {
        for (device float& v : y) v += 1;
        for (threadgroup float& v : shared) v = 2;
        for (threadgroup const float& v : shared) s += v;
    }
    device const float* in_device = x[i].w.data();
    constant float* in_constant = table.data();
    thread float* in_thread = mine.data();
    device const float* third_in_device = &x[i].w[2];
    constant float* second_in_constant = &table[1];
    in_thread[1] += in_device[0] + in_constant[2] + *third_in_device + *second_in_constant;
    s += 1000 * mine[1];
    out[i] = s;
}
"""


def test_loops_over_the_elements_of_arrays() -> None:
    x, y, out = np.arange(8, dtype=np.float32), np.zeros(4, np.float32), np.zeros(2, np.float32)
    mg.compile(LIBRARY + RANGES).function("k")(2, x, y, out)
    of_elements = [1000 * (2 + 0 + 4 + 2 + 2), 1000 * (10 + 4 + 4 + 6 + 2)]
    assert y.tolist() == [1] * 4
    assert out.tolist() == [4 * 6 + 7 + 30 + 8 + of_elements[0], 4 * 22 + 7 + 30 + of_elements[1]]
    compile_for_cuda(translate(LIBRARY + RANGES, "cuda").source, "ranges.metal")


def test_increments_make_bools_true() -> None:
    source = """
    struct S { bool seen; };
    kernel void k(device int* o) {
        bool f = false, g = f;
        S s{false};
        thread S* p = &s;
        o[0] = f++ + 2 * g++;
        o[1] = (f ? 1 : 0) + 2 * (g ? 1 : 0) + s.seen++;
        o[2] = p->seen + ++f;
        { int f = 3; f++; ++f; o[3] = f; }
    }"""
    o = np.zeros(4, np.int32)
    compiled(source).function("k")(1, o)
    np.testing.assert_array_equal(o, [0, 3, 2, 5])


def test_unions() -> None:
    x = np.linspace(-3, 3, 16).astype(np.float32)
    bits, quads, deeps = np.zeros(16, np.uint32), np.zeros((16, 4), np.float32), np.zeros((16, 2), np.float32)
    layout = np.dtype({"names": ["n", "v"], "formats": ["i4", ("f4", 4)], "offsets": [0, 16], "itemsize": 32})
    boxes = np.zeros(16, layout)
    compiled(UNIONS).function("k")(16, x, bits, quads, boxes, deeps)
    np.testing.assert_array_equal(bits, x.view(np.uint32) ^ 1)
    np.testing.assert_array_equal(quads, np.stack([x * 0 + 1, x * 0 + 2, x, x * 0 + 4], 1))
    np.testing.assert_array_equal(boxes["v"], np.stack([x * 0 + 7, x * 0 + 2, x, x * 0 + 4], 1))
    np.testing.assert_array_equal(deeps, np.stack([x * 0 + 3, x], 1))


def test_swizzles_are_vectors_to_templates() -> None:
    x = np.random.default_rng(2).standard_normal((32, 4)).astype(np.float32)
    o = np.zeros_like(x)
    compiled(VIEWS).function("k")(32, x, o)
    z, w = 2 * x[:, 2], 2 * x[:, 3]
    np.testing.assert_allclose(o[:, 0], x[:, 3] + x[:, 1] + (x[:, 1] + z) + (x[:, 2] + x[:, 3]), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(o[:, 1], w)
    any_all = (x[:, :2] > 0).any(1) + 2 * ((x[:, 1] > 0) & (z > 0)) + 4 * ((z > 1) | (w > 1))
    np.testing.assert_array_equal(o[:, 2], any_all)
    np.testing.assert_array_equal(o[:, 3], x[:, 1].max())


def test_copy_constructors_for_each_address_space(opencl_device: mg.Device) -> None:
    source = LIBRARY + """
template <typename T> struct complex {
    T x;
    constexpr complex(T r = 0) thread : x(r) {}
    constexpr complex(T r = 0) constant : x(r) {}
    complex(const device complex& o) thread : x(o.x + 1) {}
    complex(const threadgroup complex& o) thread : x(o.x + 10) {}
    complex(const thread complex& o) thread = default;
};
template <typename T> complex<T> operator*(complex<T> a, complex<T> b) { return {a.x * b.x}; }
kernel void f(device complex<float>* out, uint i [[thread_position_in_grid]]) {
    threadgroup float shared[32];
    threadgroup complex<float>* others = (threadgroup complex<float>*)shared;
    others[i].x = 5;
    complex<float> v = out[i], w = v, s = others[i];
    out[i].x = (v * w * complex<float>(2) * s).x;
}
"""
    out = np.arange(8, dtype=np.float32)
    mg.compile(source, device=opencl_device).function("f")(8, out)
    np.testing.assert_array_equal(out, (np.arange(8) + 1) ** 2 * 2 * 15)


THIS = """
template <typename D> struct Base {
    float run(float x) const { return static_cast<const thread D*>(this)->of(x) + 1; }
    void grow() { thread D& self = static_cast<thread D&>(*this); self.n += 1; }
};
struct Square : Base<Square> { float n = 1; float of(float x) const { return n * x * x; } };
struct Item {
    int id;
    thread Item* next;
    int last() const { const thread Item* p = this; while (p->next != nullptr) p = p->next; return p->id; }
    Item twice() const { Item other = *this; other.id *= 2; return other; }
};
kernel void k(device float* o, device const float* x) {
    Square square;
    square.grow();
    o[0] = square.run(x[0]);
    Item second{7, nullptr}, first{5, &second};
    o[1] = first.last();
    o[2] = first.twice().twice().id;
}"""


def test_an_object_points_to_itself() -> None:
    o = np.zeros(3, np.float32)
    mg.compile(LIBRARY + THIS, language_version="3.1").function("k")(1, o, np.array([3], np.float32))
    assert o.tolist() == [19, 7, 20]
    compile_for_cuda(translate(LIBRARY + THIS, "cuda", filename="this.metal").source, "this.metal")


LENT = """
uint pcg(thread uint& s) {
    s = s * 747796405u + 2891336453u;
    uint w = ((s >> ((s >> 28u) + 4u)) ^ s) * 277803737u;
    return (w >> 22u) ^ w;
}
float total(thread const float* p, int n) { float s = 0; for (int i = 0; i < n; i++) s += p[i]; return s; }
float total(threadgroup const float* p, int n) { return p[n - 1]; }
struct Random {
    uint state;
    Random(uint seed) : state(seed) {}
    uint next() { return pcg(state); }
    uint third() { this->next(); next(); return next(); }
    bool operator==(Random other) const { return state == other.state; }
};
struct Twice { void operator()(thread float& v) const { v *= 2; } };
struct Few {
    float x[4];
    int count = 4;
    static void order(thread float& a, thread float& b) { float least = min(a, b); b = max(a, b); a = least; }
    void sort() { for (int k = 0; k < 3; k++) for (int i = 0; i < 3; i++) order(x[i], x[i + 1]); }
    float sum() const { return total(x, count); }
    void twice() { for (thread float& v : x) v *= 2; }
    float largest() { thread float* p = x; sort(); return p[count - 1]; }
    template <typename F> void each(F f) { for (int i = 0; i < count; i++) f(x[i]); }
    float of(threadgroup float* shared) const { float mine[2] = {1, 2}; return total(shared, count) + total(mine, 2); }
    float cosine(float a) { float sine = sincos(a, x[0]); return x[0] + 0 * sine; }
};
kernel void k(device uint* out, device float* y) {
    threadgroup float shared[4];
    shared[3] = 5;
    Random random(7);
    out[0] = random.third();
    out[1] = Random(9).third();
    out[2] = random == random;
    Few few{{3, 1, 4, 2}};
    y[0] = few.sum();
    few.twice();
    few.each(Twice());
    y[1] = few.largest(); y[2] = few.x[0];
    y[3] = Few{{1, 1, 1, 1}}.of(shared); y[4] = few.cosine(0);
}
"""


def test_members_are_lent_to_functions_for_threads() -> None:
    def third(state: int) -> int:
        for _ in range(3):
            state = (state * 747796405 + 2891336453) % 2**32
            word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737 % 2**32
        return word >> 22 ^ word

    out, y = np.zeros(3, np.uint32), np.zeros(5, np.float32)
    mg.compile(LIBRARY + LENT).function("k")(1, out, y, threadgroup=1)
    assert out.tolist() == [third(7), third(9), 1]
    assert y.tolist() == [10, 16, 4, 8, 1]
    compile_for_cuda(translate(LIBRARY + LENT, "cuda").source, "lent.metal")


ITERATORS = """
namespace own { template <class T, int N> struct Row { T values[N]; typedef vec<T, 2> pair_type; }; }
template <class Row> struct Sum;
template <class T, int N> struct Sum<own::Row<T, N>> {
    T total;
    Sum(own::Row<T, N> row) : total(0) { for (int i = 0; i < N; ++i) total += row.values[i]; }
};
struct Counter {
    int at;
    thread Counter& operator++() { at += 1; return *this; }
    Counter operator++(int) { Counter before = *this; at += 1; return before; }
};
struct Key { int row, column; };
struct Grid {
    float values[6];
    float operator[](Key key) const { return values[key.row * 3 + key.column]; }
};
template <class Any> float picked(thread const Any& grid, int i) {
    float sum = 0;
    for (int k = 0; k < i; ++k) {
        Key key = {k & 1, i % 3};
        if (i > 1) sum += grid[key] + grid[Key{0, k % 3}];
    }
    return sum;
}
kernel void k(device const float* x, device float* o, uint i [[thread_position_in_grid]]) {
    own::Row<float, 3> row = {{x[i], 1, 2}};
    Counter counter = {int(i)};
    int before = (counter++).at;
    ++counter;
    Grid grid = {{1, 2, 3, 4, 5, 6}};
    metal::vec<float, 2> pair = typename own::Row<float, 3>::pair_type(x[i], before);
    o[i] = Sum<own::Row<float, 3>>(row).total + 100 * (counter.at - before) + 1000 * pair.y + 10000 * picked(grid, i);
}
"""


def test_operators_behind_operands_keys_and_specialisations_by_qualified_types() -> None:
    x, o = np.arange(1, 5, dtype=np.float32), np.zeros(4, np.float32)
    mg.compile(LIBRARY + ITERATORS).function("k")(4, x, o)
    values = np.arange(1, 7).reshape(2, 3)
    picked = [sum(values[k & 1, i % 3] + values[0, k % 3] for k in range(i)) if i > 1 else 0 for i in range(4)]
    assert o.tolist() == [x[i] + 3 + 200 + 1000 * i + 10000 * picked[i] for i in range(4)]
    compile_for_cuda(translate(LIBRARY + ITERATORS, "cuda", launch="box").source, "iterators.metal")


CONSTANT_OBJECTS = """
struct Tile {
    int4 size; float2 scale;
    constexpr Tile(int4 s, int2 f) : size(s), scale(f) {}
    constexpr int count() const { return size[0] * size[1]; }
};
constant constexpr Tile TILE(int4(3, 2, 1, 5), int2(7, 8));
kernel void k(device float* o) {
    constexpr Tile tile(int4(4, 5, 6, 7), int2(1, 2));
    float values[tile.count()];
    for (int i = 0; i < tile.count(); ++i) values[i] = i;
    o[0] = values[19] + tile.scale.y + TILE.size.w + TILE.scale.x;
}
"""


def test_constants_of_classes_may_begin_with_vectors() -> None:
    out = np.zeros(1, np.float32)
    mg.compile(LIBRARY + CONSTANT_OBJECTS).function("k")(1, out)
    assert out[0] == 19 + 2 + 5 + 7
    compile_for_cuda(translate(LIBRARY + CONSTANT_OBJECTS, "cuda", launch="box").source, "tile.metal")


WALKERS = """
struct Walker {
    thread float* p;
    thread float& operator*() { return *p; }
    thread float& operator[](int i) const { return p[i]; }
    thread float* operator->() const { return p; }
    thread Walker& operator++() { ++p; return *this; }
    bool operator!=(Walker other) const { return p != other.p; }
    thread float& last() const thread { return p[3]; }
};
struct Range { thread float* a; int n; Walker begin() { return {a}; } Walker end() { return {a + n}; } };
Walker at(thread float* a) { return Walker{a}; }
kernel void k(device float* o) {
    float v[4] = {1, 2, 3, 4};
    Range range{v, 4};
    *range.begin() = 5;
    *at(v + 1) += 3;
    at(v)[2] *= 10;
    at(v).last() = 6;
    float s = *Walker{v + 2};
    for (auto x : range) s += x;
    Walker w{v};
    *++w -= 1;
    w[1] += 0.5;
    o[0] = s;
    o[1] = v[1] + v[2];
}
"""


def test_temporary_objects_give_what_their_pointers_lead_to() -> None:
    out = np.zeros(2, np.float32)
    mg.compile(LIBRARY + WALKERS).function("k")(1, out)
    assert out.tolist() == [30 + 5 + 5 + 30 + 6, 4 + 30.5]
    compile_for_cuda(translate(LIBRARY + WALKERS, "cuda", launch="box").source, "walkers.metal")
