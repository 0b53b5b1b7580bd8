"""Ways to write Metal that other people have, in few kernels: each line of output is one of them."""

# Foreign code keeps its own line lengths.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY, run
from nvrtc import compile_for_cuda

from mpsgrad.errors import FormatError, ShaderError
from mpsgrad.msl import translate
from mpsgrad.msl.lint import lint
from mpsgrad.runtime import compile

STYLES = """
#define HAS_METAL defined(__METAL_VERSION__) && __METAL_VERSION__ >= 220
#if HAS_METAL && !defined(NOWHERE)
constant constexpr int VERSION = 1;
#endif
struct Entry { constant char* name; int value; };
constant Entry TABLE[] = {{"one", 1}, {"three" "!", 3}};
constant char LETTERS[2][3] = {"ab", "cd"};
constant uchar DIGITS[] = "01";
int length(constant char* text) { int n = 0; while (*text++) n++; return n; }
template <size_t N> int last(constant const char (&text)[N]) { return text[N - 2]; }
template <typename T, uint N> T sum(thread const T (&values)[N]) { T s = 0; for (uint i = 0; i < N; i++) s += values[i]; return s; }
template <typename T, uint R, uint C> T corner(const thread T (&m)[R][C]) { return m[R - 1][C - 1]; }
struct Counter {
  int n = 0;
  thread Counter& operator++() { n += 1; return *this; }
  const thread int* where() const { return &n; }
};
struct Complex { float re, im; explicit operator float2() const { return float2(re, im); } };
namespace mine { int max(int a, int b) { return a > b ? -a : -b; } }
struct Range { int low, high; int min() const { return low; } };
enum class Level : ushort { low, high };
kernel void styles(device int* out) {
  int k = 0;
  out[k++] = VERSION;
  out[k++] = length(TABLE[1].name) + length("four") + "xyz"[1] + LETTERS[1][1];
  constant char* chosen = k > 1 ? "yes" : "no";
  out[k++] = chosen[0] + last("end");
  int flat[3] = {1, 2, 3}, table[2][2] = {{1, 2}, {3, 4}};
  out[k++] = sum(flat) * 10 + corner(table);
  Counter counter;
  thread Counter& same = ++counter;
  ++same;
  out[k++] = counter.n + *counter.where();
  Complex z{2, 3};
  out[k++] = int(((float2)z).y);
  out[k++] = mine::max(3, 4) * 100 + max(3, 4) * 10 + metal::max(1, 2);
  out[k++] = Range{5, 6}.min() + min(7, 8) + metal::min(1, 2);
  packed_float3 packed = packed_float3(1, 2, 3);
  float3 full = packed;
  full += packed;
  full *= packed.zyx;
  out[k++] = int(full.z + full.x);
  float3x3 m(float3(1), {4, 5, 6}, float3(2));
  float2x2 rotation = {{1, 2}, {3, 4}};
  out[k++] = int(m[1].z * 10 + rotation[1].x);
  out[k++] = (is_convertible_v<int, float>) + is_enum_v<Level> * 2 + 4 * (is_same_v<underlying_type_t<Level>, ushort>) + 8 * is_trivially_copyable_v<Complex>;
  out[k++] = 42 + 100 * (conjunction_v<is_integral<int>, negation<is_pointer<int>>>);
  array<int, 3> held = {1, 2, 3};
  thread int& third = held[2];
  third = 9;
  thread float3& column = m[2];
  column.x = 7;
  thread float& packed_y = packed[1];
  packed_y = 5;
  out[k++] = held[2] * 100 + int(m[2][0] * 10 + packed.y + (m - m)[1].z + packed_float3(1)[0]);
  constexpr memory_order order = memory_order::memory_order_relaxed;
  out[k++] = order == memory_order_relaxed;
  using metal::precise::exp2;
  using metal::fast::log2;
  out[k++] = int(exp2(5.0f) + log2(8.0f));
}
"""
WANTED = [
    1, 6 + 4 + ord("y") + ord("d"), ord("y") + ord("d"), 64, 4, 3, -400 + 40 + 2, 5 + 7 + 1, 6 + 6, 63, 15, 142, 976, 1, 35,
]  # fmt: skip


def test_styles_of_other_people_give_the_right_numbers() -> None:
    out = run(LIBRARY + STYLES, "styles", np.zeros(len(WANTED), np.int32), threads=1, of_user=True)[0]
    assert out.tolist() == WANTED


VALUES = """
constant array<float, 3> TABLE = {10, 20, 30};
template <typename T> array<T, 3> made(T x) { return {x, x + 1, x * 2}; }
template <typename T, size_t N> T total(array<T, N> a) { T s = 0; for (uint k = 0; k < a.size(); k++) s += a[k]; return s; }
array<float, 3> doubled(array<float, 3> a) { for (int k = 0; k < 3; k++) a[k] *= 2; return a; }
struct Pair { array<int, 2> both; array<int, 2> get() const { return both; } };
float nested(const array<array<float, 2>, 2> a) { return a[1][0]; }
template <typename T> struct kind { static constexpr constant int value = 0; };
template <> struct kind<float> { static constexpr constant int value = 1; };
template <typename T, int N> struct kind<vec<T, N>> { static constexpr constant int value = 10 * N; };
template <typename T> int kind_of_referred(const thread T& x) { return kind<T>::value; }
template <typename T> int kind_of(T x) { return kind<decltype(x)>::value + is_same_v<decltype(x), T>; }
struct Turn {
  float2 v;
  explicit Turn(float2 x) : v(x) {}
  Turn operator*(const thread Turn& o) const thread { return Turn(float2(v.x * o.v.x - v.y * o.v.y, v.x * o.v.y + v.y * o.v.x)); }
};
uint2 two(uint i) { return {i, i + 7}; }
template <int A, int B> float grown(float x) { return x + A * B; }
float2 scaled(float a, float2 v) { return a * v; }
kernel void values(device float* out, device const array<float, 2>* pairs) {
  int k = 0;
  out[k++] = total(made(1.0f)) * 100 + total(doubled(made(1.0f)));
  array<float, 3> kept = TABLE, copied = kept;
  kept[0] = 1;
  out[k++] = total(copied) + kept[0];
  Pair pair;
  pair.both = array<int, 2>{{7, 8}};
  out[k++] = total(pair.get()) + nested({{{1, 2}, {3, 4}}}) + total(pairs[1]);
  float x = 1;
  const float y = 1;
  float4 v = 1;
  out[k++] = kind<decltype(x)>::value + kind<decltype(v)>::value + kind_of(x) * 100 + kind_of(v) * 1000 + is_same_v<decltype(y), const float> * 100000;
  out[k - 1] += kind_of_referred(x) + kind_of_referred(v + 1);
  Turn turn(float2(0, 1));
  out[k++] = (turn * turn * turn * Turn(float2(2, 3))).v.x;
  float3 none{0}, also = {0.0f};
  uint i = k - 5;
  uint2 braced{i, i + 2}, zero = uint2{0u};
  packed_float3 packed{0};
  out[k++] = (none + also).z + braced.y + two(i).y + zero.x + packed.y + 10 * (3 > 2 > 0);
  out[k++] = scaled(grown<1, 2>(3), {1, 2}).y;
}
"""


def test_values_of_classes_and_vectors() -> None:
    pairs = np.array([[1, 2], [3, 4]], np.float32)
    out = run(LIBRARY + VALUES, "values", np.zeros(7, np.float32), pairs, threads=1, of_user=True)[0]
    assert out.tolist() == [500 + 10, 60 + 1, 15 + 3 + 7, 1 + 40 + 200 + 41000 + 100000 + 41, 3, 2 + 7 + 10, 10]
    compile_for_cuda(translate(LIBRARY + VALUES, "cuda", launch="box").source, "values.metal")


PACKED = """
#pragma pack(push, 1)
struct Record { uchar tag; uint length; float2 v; };
#pragma pack(pop)
struct Padded { uchar tag; uint length; };
struct __attribute__((packed)) Early { uchar tag; float x; };
typedef struct { uchar tag; float x; } __attribute__((packed)) Late;
struct Last { uchar tag; struct { uchar a; uint b; } __attribute__((packed)) inner; uchar end; } __attribute__((packed));
struct alignas(16) Fields { uint low : 5, high : 11; };
static_assert(sizeof(Record) == 13 && sizeof(Padded) == 8 && sizeof(Early) == 5 && sizeof(Late) == 5 && sizeof(Last) == 7, "");
static_assert(sizeof(Fields) == 16, "");
struct Made { ushort v; Made() = default; Made(ushort w) : v(w) {} };
struct Loose { ushort t; packed_float2 x; };
struct __attribute__((packed)) Classes { uchar tag; packed_short3 d; float3x3 m; bool2 b; Made made; Loose loose[2]; };
typedef struct { uchar a; struct { uchar x; uint y; } in; packed_float2 z; } __attribute__((packed)) Inside;
template <typename T> struct __attribute__((__packed__)) Of { uchar a; T v; struct In { uchar a; float b; }; In w; };
struct Around { public: struct __attribute__((packed)) { uchar t; packed_half3 v; } x; uchar y; };
static_assert(sizeof(Classes) == 1 + 6 + 48 + 2 + 2 + 24 && alignof(Classes) == 1 && sizeof(Inside) == 1 + 8 + 8, "");
static_assert(sizeof(Of<packed_float2>) == 1 + 8 + 8 && sizeof(Around) == 8, "");
constexpr array<uint, 2> sums(uint n) { array<uint, 2> r = {}; for (uint k = 0; k < n; k++) r[k & 1] += k; return r; }
[[function_constant(0)]] constant int unset;
namespace [[maybe_unused]] kept { template <int N> int times [[gnu::const]] (int n) { return N * n; } }
struct Half { int n; public: int of [[nodiscard]] () const { return n; } int operator()[[nodiscard]](int k) const { return k * n / 2; } };
extern "C" __attribute__((flatten)) kernel void packed_structs [[host_name("packed"), max_total_threads_per_threadgroup(64)]] (
    device const Record* records [[maybe_unused]], device const Late* late, device float* __attribute__((unused)) out) {
  [[maybe_unused]] (void)late;
  out[3] = is_function_constant_defined(unset) + kept::times<3>(2) + Half{8}.of() + Half{8}(25);
  out[0] = records[1].length + records[1].v.y + late[1].x;
  Fields fields;
  fields.low = 17, fields.high = 1234;
  out[1] = fields.low + fields.high;
  out[2] = sums(5)[0] * 10 + absdiff(3, -4) + length(float2(3, 4));
}
"""


def test_packed_structs_lie_in_memory_as_they_say_and_attributes_stand_anywhere() -> None:
    record = np.dtype([("tag", "u1"), ("length", "<u4"), ("v", "<f4", 2)])
    records, late = np.zeros(2, record), np.zeros(2, np.dtype([("tag", "u1"), ("x", "<f4")]))
    records[1] = (1, 5, (6, 7))
    late[1] = (1, 8)
    out = np.zeros(4, np.float32)
    function = compile(LIBRARY + PACKED).function("packed")
    function(1, records, late, out)
    assert function.max_total_threads_per_threadgroup == 64
    assert out.tolist() == [5 + 7 + 8, 17 + 1234, 60 + 7 + 5, 6 + 8 + 100]
    assert lint(LIBRARY + PACKED) == []
    compile_for_cuda(translate(LIBRARY + PACKED, "cuda", launch="box").source, "packed.metal")


def test_strict_sums_are_taken_in_order() -> None:
    source = LIBRARY + """typedef uint index_type;
struct Sum { float v; Sum(float x) : v(x) {} thread Sum& operator+=(Sum o) { return *this = *this + o; }
  friend Sum operator+(const thread Sum& a, const thread Sum& b) { return Sum(a.v + b.v); } };
kernel void f(device const float* x, device float* y, constant uint& n, index_type i [[thread_position_in_grid]]) {
  float sum = 0;
  for (uint k = 0; k < n; k++) sum += x[k];
  Sum whole(sum);
  whole += Sum(0) + whole;
  y[i] = whole.v;
}
"""
    x, y = np.full(64, 3, np.float32), np.zeros(1, np.float32)
    x[0] = 1e8
    compile(source, fast_math=False).function("f")(1, x, y, 64)
    assert y == np.float32(2e8)


def test_what_clang_adds_to_the_language_runs_and_compiles_for_cuda() -> None:
    source = LIBRARY + """struct Ray { float3 from, to; int kind[2]; };
using Number = float;
template <int N> void fill(thread bfloat (&values)[N]) { for (int i = 0; i < N; i++) values[i] = bfloat(i); }
class Sum { float v; friend float added(float a, Sum b); template <typename T> friend T value(Sum s); public: Sum(float x) : v(x) {} };
float added(float a, Sum b) { return a + b.v; }
template <typename T> T value(Sum s) { return T(s.v); }
kernel void f(device float* out, constant int (&weights)[2][2], const device float (*rows)[3],
              uint i [[thread_position_in_grid]]) {
  Ray ray = {.from = float3(1), .kind = {1, 2}};
  ray.to = (float3){3, 4, 5};
  float parts[4] = {(const Ray){ray.to}.from.y, added(1, Sum(2)) - value<half>(3)};
  reinterpret_cast<thread float4&>(parts).x -= 1.0;
  Number (one) = 1;
  float3 (three) = float3(3) * one;
  ray.to.x = parts[0] + parts[1] - three.x;
  bfloat values[3];
  fill(values);
  float result = ray.kind[1] + max(values[1], values[2]) + (__FLT_MAX__ > 1e38) + (__INT_MAX__ >> 30);
  switch (i) {
    case 0: result += 100; break;
    case 1 ... 1 + 2: result += 200; break;
    case 'a' ... 'c': result += 300; break;
  }
  out[i] = result + weights[i % 2][1] + rows[i][2] + sizeof(weights) + ray.to.x;
}
"""
    out, weights, rows = np.zeros(6, np.float32), np.int32([[1, 2], [3, 4]]), np.arange(18, dtype=np.float32).reshape(6, 3)
    function = compile(source, language_version="3.1").function("f")
    function(6, out, weights, rows)
    assert out.tolist() == [6 + [100, 200, 200, 200, 0, 0][i] + [2, 4][i % 2] + rows[i, 2] + 16 for i in range(6)]
    with pytest.raises(FormatError, match=r"constant int\[2\]\[2\]& weights. has 4 bytes"):
        function(6, out, weights[0, :1], rows)
    compile_for_cuda(translate(source, "cuda", definitions={"__METAL_VERSION__": "310"}).source, "clang.metal")


def test_an_error_inside_the_library_is_placed_where_the_program_asked_for_it() -> None:
    source = LIBRARY + "struct A { int x; };\nkernel void f(device float2* out) {\n  A a;\n  out[0] = (float2)a;\n}"
    words = "cannot convert 'A' to 'float'|no suitable user-defined conversion from \"A\""
    with pytest.raises(ShaderError, match=words) as caught:
        compile(source)
    assert (caught.value.file, caught.value.line) == ("<metal>", 6)


def test_parameters_of_functions_may_be_restrict() -> None:
    body = "void twice(device float* restrict y, const device float *__restrict x) { y[0] = 2 * x[0]; }\n"
    source = LIBRARY + body + "kernel void f(device float* restrict y, const device float* x) { twice(y, x); }"
    out = np.zeros(1, np.float32)
    compile(source).function("f")(1, out, np.float32([3]))
    assert out[0] == 6
    compile_for_cuda(translate(source, "cuda").source, "restrict.metal")


def test_a_function_may_be_named_as_unused() -> None:
    body = "int g(int n) { return n + 1; }\ninline int h(int n) { return n; }\n"
    source = LIBRARY + body + "kernel void f(device int* x) { (void)g; x[0] = h(2); if (x[0] > 1) (void)h; else x[0] = 9; }"
    out = np.zeros(1, np.int32)
    compile(source).function("f")(1, out)
    assert out[0] == 2
    compile_for_cuda(translate(source, "cuda").source, "unused.metal")


def test_opening_precise_functions_makes_calls_without_a_qualifier_precise() -> None:
    body = "kernel void f(device float* x) {{ {}; x[0] = max(x[0], 1.0f); }}"
    for opened in ("using metal::precise::max", "using namespace metal::precise"):
        assert "= precise_max_mtl(" in translate(LIBRARY + body.format(opened), "opencl").source
    assert "= precise_max_mtl(" not in translate(LIBRARY + body.format("using metal::fast::max"), "opencl").source


def findings(source: str) -> list[tuple[int, str, str]]:
    return [(found.line, found.severity, found.message) for found in lint(LIBRARY + source)]


def test_attributes_that_are_misspelt_are_warned_of() -> None:
    source = "[[max_total_threads_per_threadgrup(64)]] kernel void f(device float* x [[bufer(0)]], uint i {}) {{ if (i < 4) x[i] = 1; }}"
    assert findings(source.format("[[thread_position_in_grid]]")) == [
        (3, "warning", "unknown attribute 'max_total_threads_per_threadgrup' ignored; did you mean 'max_total_threads_per_threadgroup'?"),
        (3, "warning", "unknown attribute 'bufer' ignored; did you mean 'buffer'?"),
    ]  # fmt: skip
    misspelt = (3, "error", "unknown attribute 'thread_position_in_gird'; did you mean 'thread_position_in_grid'?")
    assert misspelt in findings(source.format("[[thread_position_in_gird]]"))


def test_what_other_people_write_is_no_finding() -> None:
    assert not findings(
        "const device char typedef* text;\n"
        "static int parse(thread text& p) { int v = 0; while (*p) v = v * 10 + *p++ - 48; return v; }\n"
        "constexpr int factorial(int (n)) { int (m) = n; return m < 2 ? 1 : n * factorial(n - 1); }\n"
        "kernel void f(text x, device int* out, ushort2 t [[thread_position_in_threadgroup]]) {\n"
        "  threadgroup int tile[9][9];\n"
        "  for (int y = t.y; y < 9; y += 8)\n"
        "    for (int x = t.x; x < 9; x += 8) { tile[y][x] = y; }\n"
        "  if (t.x == 0)\n"
        "    for (int i = 0; i < 2; ++i) { tile[0][i] = 0; }\n"
        "  else\n"
        "    tile[1][1] = 1;\n"
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        "  text p = x;\n"
        "  if (t.x < 8) out[t.x] = tile[t.y][t.x] + parse(p) + factorial(4);\n"
        "}\n"
    )
    twice = "kernel void f(device float* x) { auto g = [](auto f, float v) { return f(f(v)); }; }"
    assert lint(LIBRARY + twice, language_version="3.2") == []
    divergent = (
        "kernel void f(ushort t [[thread_position_in_threadgroup]]) { for (int i = 0; i < 2; ++i) if (t < 4) { i++; }"
        " else for (;;) threadgroup_barrier(mem_flags::mem_none); }"
    )
    assert [message.split(" in ")[0] for _, _, message in findings(divergent)] == ["threadgroup_barrier"]


def test_characters_are_numbers_and_swizzles_stand_behind_arrows() -> None:
    source = LIBRARY + """enum Token : char { ZERO = '0', LINE = '\\n', LAST = '\\xff' };
int kind(char c) {
  switch (c) { case ZERO ... '9': return 1; case LINE ... '\\r': return 2; case LAST: return 3; case 'a' ... 'a' + 5: return 4; default: return 0; }
}
kernel void f(device int* out, constant char* text, constant float4* v, uint i [[thread_position_in_grid]]) {
  out[i] = kind(text[i]) + 10 * int(v->wzyx.x + v->yx.y + (v + 1)->xy.x);
}
"""
    out, text = np.zeros(8, np.int32), np.frombuffer(b"05\n\rf\xff\0g", np.int8)
    compile(source).function("f")(8, out, text, np.arange(8, dtype=np.float32))
    assert out.tolist() == [70 + kind for kind in (1, 1, 2, 2, 4, 3, 0, 0)]
    translated = translate(source, "cuda").source
    assert [f"case ({value})" in translated for value in (0, 9, 10, 13, 48, 57, 97, 102)] == [False, False] + [True] * 6
    compile_for_cuda(translated, "characters.metal")


def test_the_library_takes_packed_vectors() -> None:
    source = LIBRARY + """kernel void f(device packed_float3* p, device packed_int3* q, device float* out) {
  packed_float3 a = p[0], b = p[1];
  packed_int3 c = q[0];
  float3 all[] = {cross(a, b), max(a, b), mix(a, b, 0.5), clamp(a, 0.0, 2.0), abs(-a), select(a, b, a > b), fma(a, b, a),
                  float3(half3(a)), float3(int3(b)), float3(c), float3(max(c, c * 2)), reflect(a, normalize(b - a)), step(a, b)};
  for (int k = 0; k < 39; k++) out[k] = all[k / 3][k % 3];
  out[39] = dot(a, b) + 100 * length(a) + 1000 * distance_squared(a, b);
}
"""
    a, b, c = np.float32([[3, 4, 0], [1, 5, 0]]), np.int32([1, -2, 3]), np.zeros(40, np.float32)
    compile(source).function("f")(1, a, b, c)
    x, y = a.astype(float)
    turned = x - 2 * np.dot(x, y - x) * (y - x) / np.dot(y - x, y - x)
    larger = np.where(x > y, y, x)
    wanted = [np.cross(x, y), np.maximum(x, y), (x + y) / 2, np.clip(x, 0, 2), x, larger, x * y + x, x, y, b, np.maximum(b, 2 * b), turned, y >= x]
    np.testing.assert_allclose(c, [*np.ravel(wanted), 23 + 500 + 5000], rtol=1e-5, atol=1e-5)
    compile_for_cuda(translate(source, "cuda").source, "packed.metal")
