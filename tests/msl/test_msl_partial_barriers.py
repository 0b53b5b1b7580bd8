"""Barriers that only some threads of a threadgroup come to: those that come go on with each other's values."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.errors import ShaderError
from mpsgrad.msl import translate
from mpsgrad.msl.cuda import CUDABackend

LANES = 64
HEAD = """#include <metal_stdlib>
using namespace metal;
"""
PARAMETERS = """device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant uint& n [[buffer(2)]],
    uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]"""
WAIT = "threadgroup_barrier(mem_flags::mem_threadgroup);"
# The sum of all values before the first barrier: those of threads that are gone are 0.
CLEARED = f"threadgroup float s[64]; s[t] = 0; {WAIT}"
TREE = f"for (uint k = 32; k > 0; k /= 2) {{ if (t < k) s[t] += s[t + k]; {WAIT} }}"
BLOCK_SUM = f"""float block_sum(float v, threadgroup float* s, uint t) {{
  s[t] = v;
  {WAIT}
  {TREE}
  float r = s[0];
  {WAIT}
  return r;
}}
"""
# The sum of the values of those that come, by name and before the call.
OF_THOSE = f"""float summed(threadgroup float* s, uint t) {{
  {WAIT}
  float r = 0;
  for (int k = 0; k < 64; k++) r += s[k];
  {WAIT} s[t] = 0; {WAIT}
  return r;
}}
float of_those(float v, threadgroup float* s, uint t) {{ s[t] = v; return summed(s, t); }}
void add_those(float v, threadgroup float* s, uint t, thread float& r) {{ r += of_those(v, s, t); }}
"""
Values = NDArray[np.float32]


def run(functions: str, body: str, x: Values, n: int) -> Values:
    y = np.zeros(LANES, np.float32)
    source = f"{HEAD}{functions}kernel void f({PARAMETERS}) {{\n{body}\n}}\n"
    mg.compile(source, language_version="3.2").function("f")(LANES, x, y, np.uint32(n), threadgroup=LANES)
    return y


def normalized(x: Values) -> Values:
    centred = x - x.mean()
    return centred / np.sqrt((centred * centred).mean())


def chosen(x: Values) -> Values:
    big, above, low = x > 1, x > 0.75, x <= 1.25
    r = np.where(big, x[big].sum(), 2 * (~big).sum())
    r = r + (above & (above.sum() > 1)) + 10 * (~low | (x[low].sum() > 5))
    return r + np.where(big, big.sum(), 3 * (~big).sum())


def divided(x: Values) -> Values:
    """Sums over those that are above 1 and the others, of which the odd ones and the last ones leave earlier."""
    big, t = x > 1, np.arange(x.size)
    of_others = np.where(t % 2, 0, 2 * (~big & (t % 2 == 0)).sum()) + np.where(t > 20, 0, 100)
    return 3 + np.where(big, 2 * (x[big].sum() + big.sum()) + 100, 2 * x[~big].sum() + of_others)


def turned(x: Values) -> Values:
    """Loops that go on for as long as enough threads are there."""
    turns = np.zeros(x.size)
    for first in (0, 1):
        there = np.ones(x.size, bool)
        turns += first
        while there.any():
            there &= there.sum() > turns + np.arange(x.size) % 8
            turns += there
    return turns + 9


SUMS: dict[str, tuple[str, str, Callable[[Values], Values]]] = {
    "return before a tree": (
        "",
        f"{CLEARED} if (i >= n) return; s[t] = x[i]; {WAIT} {TREE} y[i] = s[0];",
        lambda x: np.full_like(x, x.sum()),
    ),
    "return in a block": (
        "",
        f"{CLEARED} if (i >= n) {{ y[i] = 0; return; }} else {{ s[t] = x[i]; }} {WAIT} {TREE} y[i] = s[0] * x[i];",
        lambda x: x.sum() * x,
    ),
    "return out of loops": (
        "",
        f"{CLEARED} for (uint k = 0; k < 9; k++) for (uint m = 0; m < 8; m++) if (k * 8 + m == i && i >= n) return;"
        f"s[t] = x[i]; {WAIT} {TREE} y[i] = s[0];",
        lambda x: np.full_like(x, x.sum()),
    ),
    "functions": (
        BLOCK_SUM,
        f"{CLEARED} if (i >= n) return; const float mean = block_sum(x[i], s, t) / n; float d = x[i] - mean;"
        "y[i] = d * rsqrt(block_sum(d * d, s, t) / n);",
        normalized,
    ),
    "a function in a function": (
        f"{BLOCK_SUM} float mean(float v, threadgroup float* s, uint t, uint n) {{ return block_sum(v, s, t) / n; }}",
        f"{CLEARED} if (i >= n) return; y[i] = mean(x[i] - mean(x[i], s, t, n), s, t, n) + mean(x[i], s, t, n);",
        lambda x: np.full_like(x, x.mean()),
    ),
    "a template that takes a reference": (
        "template <typename T, int N> void add_up(thread T& v, threadgroup T (&s)[N], uint t) {"
        f"s[t] = v; {WAIT} T r = 0; for (int k = 0; k < N; k++) r += s[k]; {WAIT} v = r; }}\n",
        f"{CLEARED} if (i >= n) return; float v = x[i]; add_up(v, s, t); y[i] = v;",
        lambda x: np.full_like(x, x.sum()),
    ),
    "a function that returns early": (
        "float first(float v, threadgroup float* s, uint t, uint n) {"
        f"if (t >= n) return -1; s[t] = v; {WAIT} {TREE} return s[0]; }}\n",
        f"{CLEARED} float r = first(x[i], s, t, n); {WAIT} y[i] = t < n ? r : r + 1;",
        lambda x: np.full_like(x, x.sum()),
    ),
    "a variable with a function's name": (
        f"{BLOCK_SUM} void all_wait(void) {{ {WAIT} }} float twice(float block_sum) {{ return 2 * block_sum; }}\n",
        f"{CLEARED} if (i >= n) return; float r = block_sum(x[i], s, t); all_wait(); y[i] = twice(r);",
        lambda x: np.full_like(x, 2 * x.sum()),
    ),
    "a member function": (
        "struct Adder { threadgroup float* s; uint t; float sum(float v) thread {"
        f"s[t] = v; {WAIT} {TREE} float r = s[0]; {WAIT} return r; }} }};\n",
        f"{CLEARED} if (i >= n) return; Adder adder = {{s, t}}; y[i] = x[i] + adder.sum(x[i]);",
        lambda x: x + x.sum(),
    ),
    "choices at compile time": (
        "",
        f"{CLEARED} if (i >= n) return; if constexpr (sizeof(int) == 4) {{ y[i] = 1; }} else {{ s[t] = 7; }}"
        f"s[t] = x[i]; if constexpr (sizeof(uint) == 4) {{ {WAIT} {TREE} }} else {{ s[t] = 0; }}"
        "y[i] += s[0]; y[i] += x[i];",
        lambda x: 1 + x.sum() + x,
    ),
    "statements without braces, and with attributes": (
        "",
        f"{CLEARED} int k = 0; if (i >= n) return; do k++; while (k < 3); __attribute__((opencl_unroll_hint(1)))"
        f"for (int j = 0; j < 3; j++) {{ k++; }} s[t] = x[i]; if (n > 0) [[likely]] {{ {WAIT} }}"
        f"for (uint h = 32; h > 0; h /= 2) {{ if (t < h) s[t] += s[t + h]; do {WAIT} while (k++ < 6); }} y[i] = s[0];",
        lambda x: np.full_like(x, x.sum()),
    ),
    "objects that are called": (
        "struct Summed { threadgroup float* s; uint t; float operator()(float v) thread {"
        f"s[t] = v; {WAIT} {TREE} float r = s[0]; {WAIT} return r; }}"
        f"void operator()(float v, thread float& r) thread {{ s[t] = v; {WAIT} {TREE} r += s[0]; {WAIT} }} }};"
        "struct Holder { Summed all; float of(float v) thread { return all(v); } };\n",
        f"{CLEARED} if (i >= n) return; Summed sum = {{s, t}}; Holder holder = {{sum}};"
        "float r = x[i] > 0 ? sum(x[i]) : 0; sum(x[i], r); y[i] = r + holder.of(x[i]) + holder.all(x[i]);",
        lambda x: np.full_like(x, 4 * x.sum()),
    ),
    "objects of classes that templates are given": (
        f"struct Summed {{ float operator()(float v, threadgroup float* s, uint t) const {{ s[t] = v; {WAIT} {TREE}"
        f"float r = s[0]; {WAIT} return r; }} }};"
        "template <typename T> struct Of { T operator()(T v, threadgroup T* s, uint t) const {"
        f"s[t] = v; {WAIT} {TREE} T r = s[0]; {WAIT} return r; }} }};"
        "template <typename F> float applied(F f, float v, threadgroup float* s, uint t) { return f(v, s, t); }"
        "template <typename F> float made(float v, threadgroup float* s, uint t) {"
        "return F()(v, s, t) + F{}(v, s, t); }"
        "template <template <typename> class F, typename T> T chosen(T v, threadgroup T* s, uint t) {"
        "F<T> f; return (T)(f(v, s, t)); }"
        "template <typename F> struct Holder { F f; float of(float v, threadgroup float* s, uint t) const {"
        "return f(v, s, t); } };\n",
        f"{CLEARED} if (i >= n) return; Holder<Summed> holder; Of<float> both[2]; float v = x[i];"
        "float r = applied(Summed(), v, s, t) + made<Summed>(v, s, t); r += chosen<Of>(v, s, t);"
        "y[i] = r + holder.of(v, s, t) + both[1](v, s, t) + (holder.f)(v, s, t);",
        lambda x: np.full_like(x, 7 * x.sum()),
    ),
    "loops over arrays": (
        OF_THOSE,
        f"{CLEARED} if (i >= n) return; float a[3] = {{x[i], 1, x[i]}}; array<float, 2> b = {{x[i], 2}}; float r = 0;"
        f"for (float v : a) {{ s[t] = v; r += summed(s, t); {WAIT} if (i == 3) break; }}"
        "for (thread const float& v : b) { if (v == 2) continue; r += of_those(v, s, t); } y[i] = r;",
        lambda x: np.where(np.arange(x.size) == 3, 2 * x.sum(), 3 * x.sum() + x.size - 1 - x[3]),
    ),
    "steps of loops": (
        OF_THOSE,
        f"{CLEARED} if (i >= n) return; float r = 0, v = x[i];"
        f"for (uint k = 0; k < 1 + t % 2; s[t] = r, {WAIT.removesuffix(';')}, k += uint(of_those(1, s, t) > 0)) r += v;"
        "for (float k = 0; k < 9; k += of_those(3, s, t)) { if (v < 0.75f) continue; r += 1; } y[i] = r;",
        lambda x: x * (1 + np.arange(x.size) % 2) + (x >= 0.75),
    ),
    "lambda expressions": (
        f"{OF_THOSE}template <typename F> auto applied(float v, F f) {{ return f(v); }}\n",
        f"{CLEARED} auto sum = [&](float v) {{ s[t] = v; {WAIT} {TREE} float r = s[0]; {WAIT} return r; }};"
        "auto part = [=](float v, int k) { if (k < 1) return v; return v / k; }; if (i >= n) return;"
        "float r = sum(x[i]) + applied(x[i], sum) + applied(x[i], [&](auto v) { return 2 * sum(v); });"
        f"auto clear = [&] {{ {WAIT} s[t] = 0; {WAIT} }}; clear();"
        "auto of_few = [&](float v, uint k) -> float { if (t >= k) return 0; return of_those(part(2 * v, 2), s, t); };"
        "auto twice = [&](float v, thread float& all) { auto again = [&](float w) { all += of_those(w, s, t); };"
        "again(v); again(1); if (t > 2) return; again(v); };"
        "float two = 0; twice(x[i], two); y[i] = r + of_few(x[i], 4) + two + [&](float v) { return sum(v); }(x[i]);",
        lambda x: 6 * x.sum() + x.size + np.where(np.arange(x.size) < 4, x[:4].sum(), 0)
        + np.where(np.arange(x.size) < 3, x[:3].sum(), 0),
    ),
    "a lambda expression with attributes": (
        f"{OF_THOSE}template <typename T> constexpr constant uint width = sizeof(T);\n",
        f"{CLEARED} if (i >= n) return; float r = 0;"
        "auto add = [&](float v, auto twice) __attribute__((always_inline)) {"
        "if (x[i] > 1) { uint k = n / width<float>; r += of_those(v, s, t) + k; }"
        "r += decltype(twice)::value * of_those(1, s, t); };"
        "add(x[i], true_type{}); add(2, false_type{}); y[i] = r;",
        lambda x: x.size + np.where(x > 1, x[x > 1].sum() + 2 * (x > 1).sum() + 2 * (x.size // 4), 0),
    ),
    "two lambda expressions that one function is given": (
        f"{OF_THOSE}template <typename A, typename B> void apply(A a, B b, float v) {{ a(v); b(v); }}\n",
        f"{CLEARED} if (i >= n) return; float r = 0, z = 0;"
        "apply([&](float v) { z += v; }, [&](float v) { r += of_those(v, s, t); }, x[i]); y[i] = r + 2 * z;",
        lambda x: x.sum() + 2 * x,
    ),
    "a variable that is returned at several places": (
        f"{OF_THOSE}template <typename T> struct Sums {{\n"
        "T real, imag; Sums(T real, T imag) : real(real), imag(imag) {} };\n"
        "template <bool all> auto sums(float v, threadgroup float* s, uint t) {\n"
        "Sums<float> r(0, 0); for (int k = 0; k < 2; k++) { r.real += of_those(v, s, t);"
        "if constexpr (!all) { if (t % 2) continue; } r.imag += of_those(1, s, t); }"
        f"if constexpr (!all) {{ {WAIT} if (t > 20) return r; }} r.imag += 100; return r; }}\n"
        "template <typename F> void divided(bool v, F f) { if (v) f(true_type{}); else f(false_type{}); }\n"
        "template <int first, int last, typename F> void each(F f) {\n"
        "if constexpr (first < last) { f(first); each<first + 1, last>(f); } }\n",
        f"{CLEARED} if (i >= n) return; Sums<float> r(0, 0); int z = 0;"
        "each<0, 2>([&](auto k) { each<0, 3>([&](auto j) { z += k * j; }); });"
        "divided(x[i] > 1, [&](auto all) { r = sums<all.value>(x[i], s, t); }); y[i] = r.real + r.imag + z;",
        divided,
    ),
    "a switch": (
        "",
        f"{CLEARED} if (i >= n) return; switch (int(n) % 3) {{ case 0: y[i] = 1; case 1: s[t] = x[i]; {WAIT} {TREE}"
        f"y[i] += s[0]; break; case 2: {{ s[t] = x[i]; {WAIT} {TREE} }} default: y[i] = s[0] + 2; }}",
        lambda x: np.full_like(x, x.sum() + (1, 0, 2)[x.size % 3]),
    ),
    "threads that leave a switch": (
        "",
        f"{CLEARED} switch (n / 65) {{ case 0: if (i >= n) break; s[t] = x[i]; {WAIT} {TREE} y[i] = s[0]; }}",
        lambda x: np.full_like(x, x.sum()),
    ),
    "functions behind ?, && and ||": (
        OF_THOSE,
        f"{CLEARED} if (i >= n) return; float r = x[i] > 1 ? of_those(x[i], s, t) : of_those(2, s, t);"
        "if (x[i] > 0.75f && of_those(1, s, t) > 0 && of_those(3, s, t) > 3) r += 1;"
        "bool is_far = x[i] > 1.25f || of_those(x[i], s, t) > 5; r += is_far ? 10 : 0;"
        "x[i] > 1 ? add_those(1, s, t, r) : add_those(3, s, t, r); y[i] = r;",
        chosen,
    ),
    "functions in conditions of loops": (
        OF_THOSE,
        f"{CLEARED} if (i >= n) return; int k = 0; while (of_those(1, s, t) > k + t % 8) k++;"
        "do k++; while (of_those(1, s, t) > k + t % 8);"
        "float r = 0; for (float m = of_those(1, s, t); r < 9 && of_those(1, s, t) == m; r++) ; y[i] = k + r;",
        turned,
    ),
    "a function behind a comma": (
        OF_THOSE,
        f"{CLEARED} if (i >= n) return; y[i] = (s[t] = x[i], summed(s, t));",
        lambda x: np.full_like(x, x.sum()),
    ),
    "declarations": (
        "struct Pair { float a; int b; };\n",
        f"{CLEARED} const int width = 64 / 2; float kept[width]; if (i >= n) return; int j = 0;"
        "float4 v = float4(x[i], 1, 2, 3); float2 w(x[i], 2.0f); float a[3] = {x[i], 1, x[i] * 2};"
        "Pair p = {x[i], 3}; Pair q{x[i]}; device const float& r = x[i]; device const float* at = x + i; auto z = *at;"
        "threadgroup float& own = s[t]; bool4 above = v > 0.5f; own = 0;"
        "do { own += v.x + w.y + a[2] + p.a + q.a + r + z + float(above.z);"
        f"{WAIT} kept[j] = s[0]; j++; }} while (j < 3); y[i] = own + s[0] + kept[0];",
        lambda x: 3 * (8 * x - x + 3) + 4 * (7 * x[0] + 3),
    ),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("n", [64, 63, 40, 33, 32, 5])
def test_threads_that_returned_are_not_waited_for(name: str, n: int) -> None:
    functions, body, expected = SUMS[name]
    x = np.random.default_rng(n).random(LANES, np.float32) + 0.5
    y = run(functions, body, x, n)
    np.testing.assert_allclose(y[:n], expected(x[:n]), rtol=64 * 2.0**-22, atol=2.0**-18)
    assert not y[n:].any()


def test_loops_may_have_different_lengths() -> None:
    """Each thread counts its turns in its neighbour's element; those that are still there wait for each other."""
    body = (
        f"threadgroup int s[64]; s[t] = 0; {WAIT} int turns = 0; while (true) {{ {WAIT} if (turns >= int(t % 4)) break;"
        f"turns++; if (turns == 2) continue; s[(t + 1) % 64] += 1; }} {WAIT} y[i] = s[t];"
    )
    before = (np.arange(LANES) - 1) % 4
    np.testing.assert_array_equal(run("", body, np.zeros(LANES, np.float32), 0), before - (before > 1))


# Functions that turn as often as they are told, and are told so by what only the thread knows: functions and a call.
TURN = f"{{ int turns = 0; for (int k = a & 3; k > 0; k--) {{ {WAIT} turns++; }} return turns + (a > b ? 10 : 0); }}"
OWN = "struct Turning { int a; int turn(int b) const " + TURN + " };\n"
OBJECT = f"struct Turning {{ int operator()(int a, int b) const {TURN} }};\n"
TURNING = {
    "a template's type": (f"template <typename T> int turn(T a, int b) {TURN}", "turn<int>(a, 3)"),
    "a template's number": (f"template <int N> int turn(int a, int b) {TURN}", "turn<2>(a, 3)"),
    "a template in a namespace": (
        f"namespace n {{ template <int N> int turn(int a, int b) {TURN} }}",
        "n::turn<2>(a, 3)",
    ),
    "a template's template": (
        f"template <int N> int of(int a, int b) {TURN} template <int N> int turn(int a) {{ return of<N>(a, N); }}",
        "turn<3>(a)",
    ),
    "a member": (OWN, "0; Turning of; of.a = a; r = of.turn(3)"),
    "a member of an initialised object": (OWN, "0; Turning of{a}; r = of.turn(3)"),
    "a member of a temporary": (OWN, "Turning{a}.turn(3)"),
    "a member through this": (OWN.replace("= a", "= this->a").replace("(a >", "(this->a >"), "Turning{a}.turn(3)"),
    "a member set by a constructor": (
        OWN.replace("int a;", "int a; Turning(int of) : a(of) {}"),
        "0; Turning of(a); r = of.turn(3)",
    ),
    "an object": (OBJECT, "0; Turning turn; r = turn(a, 3)"),
    "an object that is passed": (
        OBJECT + "template <typename F> int apply(F turn, int a) { return turn(a, 3); }",
        "apply(Turning(), a)",
    ),
}


@pytest.mark.parametrize("name", TURNING)
def test_functions_are_told_what_differs(name: str) -> None:
    functions, call = TURNING[name]
    body = f"int a = t / 5, r = {call}; {WAIT} y[i] = r;"
    source = f"{HEAD}{functions}\nkernel void f({PARAMETERS}) {{\n{body}\n}}\n"
    translated = translate(source, "opencl", launch="row", definitions={"__METAL_VERSION__": "320"}).source
    assert "any_thread_mtl" in translated
    told = np.arange(LANES) // 5
    turned = run(f"{functions}\n", body, np.zeros(LANES, np.float32), 0)
    np.testing.assert_array_equal(turned, told % 4 + 10 * (told > 3))


# Ways in which the number n gets v, which only the thread knows.
OWN_NUMBER = "struct Own { int a; void set(int v) { a = v; } int get() const { return a; } };\n"
SETTING = "void set(thread int& to, int v) { to = v; }\n"
GIVEN = {
    "a pointer": ("", "thread int* to = &n; *to = v;"),
    "a pointer to another": ("", "thread int* to = &n; thread int* also = to; also[0] = v;"),
    "a pointer that is set later": ("", "thread int* to; to = &n; *to = v;"),
    "a reference": ("", "thread int& to = n; to = v;"),
    "a reference to an element": ("", "int a[2]; thread int& to = a[1]; to = v; n = a[1];"),
    "a reference to a member": (OWN_NUMBER, "Own own; thread int& to = own.a; to = v; n = own.a;"),
    "a pointer to an object": (OWN_NUMBER, "Own own; thread Own* to = &own; to->a = v; n = own.a;"),
    "an object's function": (OWN_NUMBER, "Own own; own.set(v); n = own.a;"),
    "two functions of an object": (OWN_NUMBER, "Own own; own.set(v); n = own.get();"),
    "an element that a function sets": (SETTING, "int a[2]; set(a[1], v); n = a[1];"),
    "a member that a function sets": (OWN_NUMBER + SETTING, "Own own; set(own.a, v); n = own.a;"),
    "elements that a function sets": (
        "void set(thread int* to, int v) { *to = v; }\n",
        "int a[2]; set(a + 1, v); n = a[1];",
    ),
    "a lambda's argument": ("", "auto set = [](thread int& to, int v) { to = v; }; set(n, v);"),
    "a reference that is given": (
        "thread int& of(thread int& a, thread int& b, bool p) { return p ? a : b; }\n",
        "int m = 0; of(n, m, true) = v;",
    ),
    "a choice": ("", "v > 0 ? (void)(n = 3) : (void)(n = 0); n = n ? v : 0;"),
    "a condition": ("", "n = 0; v > 0 && (n = 1); v > 1 && (n = 2); v > 2 && (n = 3);"),
    "the value that an exchange finds": (
        "",
        f"threadgroup atomic_int s[64]; atomic_store_explicit(s + t, v, memory_order_relaxed); {WAIT} n = -1;"
        "atomic_compare_exchange_weak_explicit(s + t, &n, 7, memory_order_relaxed, memory_order_relaxed);",
    ),
    "lanes": ("", "n = quad_prefix_exclusive_sum(1); v = t % 4;"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_what_differs_is_known_by_its_other_names(name: str) -> None:
    functions, code = GIVEN[name]
    turning = f"int k = 0; for (; k < n; k++) {{ {WAIT} }} {WAIT} y[i] = k + 10 * v;"
    body = f"{{ int n = 3, v = t / 5 & 3; {code} {turning} }}"
    source = f"{HEAD}{functions}kernel void f({PARAMETERS}) {{\n{body}\n}}\n"
    translated = translate(source, "opencl", launch="row", definitions={"__METAL_VERSION__": "320"}).source
    assert "any_thread_mtl" in translated
    given = np.arange(LANES) % 4 if name == "lanes" else np.arange(LANES) // 5 % 4
    np.testing.assert_array_equal(run(functions, body, np.zeros(LANES, np.float32), 0), 11 * given)


def test_members_of_classes_are_the_same_for_all_threads() -> None:
    functions = f"struct Turning {{ static constant constexpr int a = 3; int turn(int b) const {TURN} }};\n"
    source = f"{HEAD}{functions}kernel void f({PARAMETERS}) {{ Turning of; y[i] = of.turn(3); }}\n"
    assert "any_thread_mtl" not in translate(source, "opencl", launch="row").source


def test_choices_may_hold_barriers() -> None:
    body = (
        f"threadgroup float s[64]; s[t] = x[i]; {WAIT} float r = 0; if (t < 32) {{ r = s[t + 32]; {WAIT} s[t] = r + 1;"
        f"{WAIT} r = s[31 - t]; }} else if (t < 48) {{ s[t] = -1; {WAIT} r = s[95 - t]; }} y[i] = r;"
    )
    x = np.arange(LANES, dtype=np.float32)
    expected = np.concatenate([x[63:31:-1] + 1, np.where(x[63:47:-1] < 48, -1, x[63:47:-1]), np.zeros(16)])
    np.testing.assert_array_equal(run("", body, x, 0), expected)


def test_conditions_with_barriers_behind_them_may_declare() -> None:
    functions = "bool more(thread int& n) { return --n > 0; }\nint above(int t) { return t - 20; }\n"
    body = (
        f"int left = t / 32 + 2; float r = 0; while (bool m = more(left)) {{ int k = t % 3 + 1;"
        f"while (bool j = more(k)) {{ {WAIT} r += j; if (r > 3) break; }}"
        f"if (k == 1) continue; r += 0.25f * m; }} if (int m = above(t); m > 0) {{"
        f"{WAIT} r += m; }} else r += 1; if (int q = above(t)) {{ {WAIT} r += q; }} switch (int z = t % 3) {{"
        f"case 1: {WAIT} r += 10 * z; break; default: r += 0.5f; }} left = t % 5 + 1;"
        f"for (int k = 0; bool m = more(left); k++) {{ {WAIT} if (k == 1) continue; r += m + k; }} y[i] = r;"
    )
    expected = np.zeros(LANES)
    for i in range(LANES):
        t, r = i % 64, 0.0
        for _ in range(t // 32 + 1):
            k = t % 3
            while k > 0:
                r += 1
                if r > 3:
                    break
                k -= 1
            r += 0.25 if k != 1 else 0
        r += t - 20 if t > 20 else 1
        expected[i] = r + t - 20 + (10 if t % 3 == 1 else 0.5) + sum(k + 1 for k in range(t % 5) if k != 1)
    np.testing.assert_array_equal(run(functions, body, np.zeros(LANES, np.float32), 0), expected)


def test_threads_may_take_different_cases() -> None:
    body = (
        f"threadgroup float s[64]; s[t] = x[i]; {WAIT} float r = 0; switch (t / 16) {{ case 0: r = s[t + 48]; {WAIT}"
        f"s[t] = r + 1; {WAIT} r = s[15 - t]; break; case 1: s[t] = -1; case 2: {WAIT} r = s[63 - t]; break;"
        f"default: if (t < 56) break; {WAIT} r = 5; }} y[i] = r;"
    )
    x = np.arange(LANES, dtype=np.float32)
    expected = np.concatenate([x[:47:-1] + 1, x[47:31:-1], np.full(16, -1), np.repeat([0, 5], 8)])
    np.testing.assert_array_equal(run("", body, x, 0), expected)


def test_returned_threads_take_no_part_in_simdgroups() -> None:
    body = (
        f"{CLEARED} if (i >= n) return; float v = simd_sum(x[i]); if (t % 32 == 0) s[t / 32] = v; {WAIT}"
        "if (t < 32) { v = simd_sum(t < 2 ? s[t] : 0.0f); if (t == 0) y[0] = v; }"
    )
    x = np.arange(1, LANES + 1, dtype=np.float32)
    for n in (64, 50, 33, 20, 2):
        assert run("", body, x, n)[0] == x[:n].sum()


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="Metal leaves it to the compilers of GPUs")
@pytest.mark.parametrize("run_length", [1, 4, 32])
def test_simdgroups_stay_inside_loops_that_are_returned_from(run_length: int) -> None:
    body = (
        f"threadgroup int s[2]; if (x[i] < 0) return; {WAIT} float v = x[i];"
        "while (true) { float w = simd_min(v); if (v == w) { y[i] = simd_sum(1); return; } }"
        f"{WAIT} y[i] = s[0];"
    )
    x = (np.arange(LANES) // run_length).astype(np.float32)
    np.testing.assert_array_equal(run("", body, x, 0), run_length)


def test_only_what_only_some_threads_reach_changes() -> None:
    head = f"{HEAD}kernel void f({PARAMETERS}, uint g [[threadgroup_position_in_grid]]) {{ threadgroup float s[64];"
    for condition, changes in (("g >= n", False), ("n > 3", False), ("i >= n", True), ("x[t] > 1", True)):
        source = f"{head} if ({condition}) return; s[t] = x[i]; {WAIT} y[i] = s[0]; }}"
        assert ("any_thread_mtl" in translate(source, "opencl", launch="row").source) is changes
        assert "any_thread_mtl" not in translate(source, "cuda", launch="row").source
        source = f"{head} if (!({condition})) {{ s[t] = x[i]; {WAIT} y[i] = s[0]; }} }}"
        for target in ("opencl", "cuda"):
            assert ("any_thread_mtl" in translate(source, target, launch="row").source) is changes  # type: ignore[arg-type]
    source = f"{head} s[t] = x[i]; {WAIT} if (i >= n) return; y[i] = s[0]; }}"
    assert "any_thread_mtl" not in translate(source, "opencl", launch="row").source


@pytest.mark.parametrize(
    ("call", "changes"),
    [
        ("Lane<2>::sum(v)", False),
        ("Block<2>::sum(v)", True),
        ("Block<2>::own(v)", False),
        ("lane.sum(v, 1)", False),
        ("block.sum(v, 1)", True),
        ("sum(v)", False),
        ("Other<2>::sum(v)", False),
        ("of<Block<2>>(v)", True),
        ("x[i] > 0 ? Block<2>::sum(v) : v", True),
    ],
)
def test_functions_with_barriers_are_known_by_their_class(call: str, changes: bool) -> None:
    functions = (
        "float sum(float v) { return v; } template <int N> struct Lane { static float sum(float v) { return v * N; }"
        "float sum(float v, int k) const { return v * k; } };"
        f"template <int N> struct Block {{ using Inner = Lane<N>; static float sum(float v) {{ {WAIT} return v * N; }}"
        f"static float own(float v) {{ return Inner::sum(v); }} float sum(float v, int k) {{ {WAIT} return v; }} }};"
        "template <int N> using Other = Lane<N>; struct One { float sum(float v, int k) const { return v; } };"
        f"struct All {{ float sum(float v, int k) const {{ {WAIT} return v; }} }};"
        "template <typename T> float of(float v) { return T::sum(v); }\n"
    )
    source = f"{HEAD}{functions}kernel void f({PARAMETERS}) {{ One lane; All block; float v = x[i];"
    for before, after in (("", ""), ("Block<2>::sum(v); v = ", "lane.sum(v, 1);")):
        body = f"if (t < n) {{ y[i] = {call}; }}" if not before else f"{before}{after} if (t < n) {{ y[i] = {call}; }}"
        translated = translate(f"{source} {body} }}", "opencl", launch="row").source
        assert ("any_thread_mtl" in translated) is changes


@pytest.mark.parametrize("name", SUMS)
def test_it_compiles_for_nvidia(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CUDABackend, "waits_for_returned", True)
    functions, body, _ = SUMS[name]
    source = f"{HEAD}{functions}kernel void f({PARAMETERS}) {{\n{body}\n}}\n"
    definitions = {"__METAL_VERSION__": "320"}
    translated = translate(source, "cuda", launch="box", definitions=definitions).source
    assert "any_thread_mtl" in translated
    compile_for_cuda(translated, "f.cu")


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="GPUs do not wait for threads that have returned")
@pytest.mark.parametrize(
    "body",
    [
        f"if (i >= n) return; switch (n) {{ case 0: {{ case 1: {WAIT} break; }} }}",
        f"if (i >= n) return; switch (n) {{ case 0: float r; {WAIT} case 1: r = 2; y[i] = r; }}",
        f"if (i >= n) return; float a[2][2] = {{{{1, 2}}}}; for (float v : a[t & 1]) {{ {WAIT} y[i] += v; }}",
        f"auto wait = [&](float v) {{ if (v > 0) {{ {WAIT} return v; }} return x[0]; }}; y[i] = wait(x[i]);",
        f"struct Own {{ Own(float v) {{ if (v > 0) {{ {WAIT} }} }} }}; Own own(x[i]);",
    ],
)
def test_what_threads_cannot_be_led_through_is_refused(body: str) -> None:
    source = f"{HEAD}{BLOCK_SUM}kernel void f({PARAMETERS}) {{ threadgroup float s[64];\n{body} }}"
    with pytest.raises(ShaderError, match="only some threads may come to a barrier") as caught:
        mg.compile(source, language_version="3.2")
    assert caught.value.line == 13


@pytest.mark.parametrize(
    "declaration",
    [
        "auto [part, k] = pair;",
        "const auto [part, k] = pair;",
        "auto [part, k] = pair_of(x, i);",
        "auto [part, k]{pair_of(x, i)};",
        "auto [part, k] = Pair{x[i], t & 3};",
        "thread auto& [part, k] = pair;",
        "thread const auto& [part, k] = pairs[i & 1];",
        "device const auto& [part, k] = *(device const Pair*)&kept[2 * i];",
    ],
)
def test_parts_of_objects_beside_barriers(declaration: str) -> None:
    """Threads that have returned, or go another way, have no such objects."""
    functions = (
        "struct Pair { float a; uint b; };\n"
        "Pair pair_of(device const float* x, uint i) { return {x[i], i & 3}; }\n"
    )
    body = f"""threadgroup float s[64]; s[t] = 0; Pair pair = {{x[i], t & 3}}, pairs[2] = {{pair, pair}};
    y[2 * i] = x[i]; ((device uint*)y)[2 * i + 1] = t & 3; device const float* kept = y;
    {WAIT}
    if (t >= n) return;
    if (t & 1) {{
        {declaration}
        float twice = part + part;
        for (uint turn = 0; turn <= k; turn++) {{
            {WAIT}
            s[t] = twice;
        }}
        auto [r, some] = Pair{{s[t ^ 2] + k, 1}};
        {WAIT}
        y[2 * i] = r + some;
    }}"""
    source = f"{HEAD}{functions}kernel void f({PARAMETERS}) {{\n{body}\n}}\n"
    x = np.arange(LANES, dtype=np.float32) + 2
    y = np.zeros(2 * LANES, np.float32)
    n = 40
    library = mg.compile(source, language_version="3.2")
    library.function("f")(LANES, x, y, np.uint32(n), threadgroup=LANES)
    k = np.arange(LANES)
    there = (k < n) & (k & 1 == 1)
    np.testing.assert_array_equal(y[::2], np.where(there, 2 * x[k ^ 2] + (k & 3) + 1, x))
    found = library.function("f").check(LANES, x, np.zeros_like(y), np.uint32(LANES), threadgroup=LANES)
    assert {each.name for each in found} <= {"divergent-barrier"}, "\n".join(map(str, found))
    translated = translate(source, "cuda", launch="box", definitions={"__METAL_VERSION__": "320"}).source
    compile_for_cuda(translated, "f.cu")


def test_functions_may_give_objects_that_begin_with_a_value() -> None:
    functions = (
        "struct Begun { float a; Begun(float v) : a(v) {} };\n"
        f"Begun next(float v, threadgroup float* s, uint t) {{ if (v > 5) return Begun(v); s[t] = v; {WAIT}"
        "return Begun(s[(t + 1) % 4]); }\n"
    )
    body = "threadgroup float s[64]; Begun begun = next(x[i], s, t); y[i] = begun.a;"
    x = np.arange(LANES, dtype=np.float32) + 2
    np.testing.assert_array_equal(run(functions, body, x, 0)[:8], [3, 4, 5, 2, 6, 7, 8, 9])


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="GPUs do not wait for threads that have returned")
def test_functions_with_barriers_that_templates_are_given_are_refused() -> None:
    functions = f"int turn(int a, int b) {TURN} template <int (*F)(int, int)> int apply(int a) {{ return F(a, 3); }}"
    source = f"{HEAD}{functions}\nkernel void f({PARAMETERS}) {{\ny[i] = apply<turn>(t);\n}}"
    with pytest.raises(ShaderError, match="only some threads may come to a barrier") as caught:
        mg.compile(source)
    assert caught.value.line == 6


def test_steps_of_loops_beside_bfloats() -> None:
    source = HEAD + (
        f"kernel void k({PARAMETERS}, device bfloat* z [[buffer(3)]]) {{\n"
        f"  {CLEARED}\n  if (i >= n) return;\n"
        f"  for (uint k = 0; k < 3; k++) {{ s[t] += x[i]; {WAIT} z[i] = bfloat(s[t]); {WAIT} }}\n"
        "  y[i] = z[i]; }\n"
    )
    x, y, z = np.full(LANES, 2, np.float32), np.zeros(LANES, np.float32), np.zeros(LANES, np.uint16)
    mg.compile(source, language_version="3.1").function("k")(LANES, x, y, np.uint32(40), z, threadgroup=LANES)
    assert y.tolist() == [6] * 40 + [0] * (LANES - 40)


def test_loops_under_a_pragma_in_loops() -> None:
    unrolled = '_Pragma("clang loop unroll(full)")'
    body = (
        f"{CLEARED} if (i >= n) return; {unrolled} for (uint k = 0; k < 2; k++) {{ {WAIT} {unrolled}"
        " for (uint j = 0; j < 2; j++) { if (x[i] > 0) s[t] += x[i]; else s[t] -= x[i]; }"
        f" {WAIT} y[i] = s[0] + s[t]; }}"
    )
    x = np.resize(np.array([2, -1], np.float32), LANES)
    wanted = np.where(np.arange(LANES) < 40, 8 + 4 * np.abs(x), 0)
    np.testing.assert_array_equal(run("", body, x, 40), wanted)


def test_short_ways_stand_in_the_bodies_of_functions_that_are_chosen_from() -> None:
    waiting = f"if (a > 2) {{ {WAIT} return s[0]; }} while (a > b) {{ a -= b; if (a == 3) return b; }} return a;"
    body = "threadgroup uint s[4]; y[i] = n > 2 ? one(i, 3, s) : one(i, 5, s);"
    source = f"{HEAD}uint one(uint a, uint b, threadgroup uint* s) {{ {waiting} }}\n"
    source += f"kernel void f({PARAMETERS}) {{ {body} }}"
    translated = translate(source, "opencl", launch="row").source
    assert re.search(r"s\) {\s*if \(never_mtl\(\)\) return {};", translated)
    assert not re.search(r"never_mtl\(\)\) return {};\s*uint one", translated)


GIVEN_BACK = f"""struct Pair {{ float a, b; }};
float passed(float v, threadgroup float* s, uint t) {{ {WAIT} s[t] = v; {WAIT} v += s[t ^ 1]; s[t] = -1; return v; }}
float2 passed(float2 v, threadgroup float* s, uint t) {{ return float2(v.x, passed(v.y, s, t)); }}
float of_pair(Pair v, threadgroup float* s, uint t) {{ return passed(v.a, s, t); }}
template <typename T> float of_any(T v, threadgroup float* s, uint t) {{ return passed(v.a, s, t); }}
struct Owner {{
  float a;
  float given(threadgroup float* s, uint t) {{ return passed(a, s, t); }}
  float own(threadgroup float* s, uint t) {{ return passed(this->a, s, t); }}
}};
"""


@pytest.mark.parametrize(
    "body",
    [
        "y[i] = passed(x[i], s, t);",
        "float v; v = x[i]; y[i] = passed(v, s, t);",
        "float2 v; v.y = x[i]; y[i] = passed(v, s, t).y;",
        "float v; v = x[i]; float w = v * 2 - v; y[i] = passed(w, s, t);",
        "Pair v; v.a = x[i]; y[i] = passed(v.a, s, t);",
        "Pair v; v.a = x[i]; Pair w = v; y[i] = passed(w.a, s, t);",
        "Pair v; v.a = x[i]; y[i] = of_pair(v, s, t);",
        "Pair v; v.a = x[i]; y[i] = of_any(v, s, t);",
        "Owner v; v.a = x[i]; y[i] = v.given(s, t);",
        "Owner v; v.a = x[i]; y[i] = v.own(s, t);",
        "float v; auto f = [&](float w) -> float { return passed(v + w, s, t); }; v = x[i] - 1; y[i] = f(1);",
        "float v; v = x[i]; while (passed(v, s, t) < -100) v = 0; y[i] = v + x[i ^ 1];",
    ],
)
def test_threads_that_do_not_come_store_nothing(body: str) -> None:
    x, i = np.arange(LANES, dtype=np.float32) * 3 % 17, np.arange(LANES)
    start = f"threadgroup float s[64]; s[t] = 5; {WAIT} y[i] = 7;"
    before = run(GIVEN_BACK, f"{start} if (i % 4 >= 2) return; y[i] = 1; {body} y[i] -= s[t];", x, 0)
    np.testing.assert_array_equal(before, np.where(i % 4 < 2, x + x[i ^ 1] + 1, 7))
    behind = run(GIVEN_BACK, f"{start} if (i % 4 < 2) {{ {body} }} {WAIT} y[i] = s[t];", x, 0)
    np.testing.assert_array_equal(behind, np.where(i % 4 < 2, -1, 5))
