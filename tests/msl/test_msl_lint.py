"""Apple's rules: what breaks one is reported with the rule's number and place, and its nearest neighbour is not."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

import pytest
from metal_runner import LIBRARY

from mpsgrad.msl.lint import RULES, lint

HEAD = "kernel void f(device float* x [[buffer(0)]]"


GRID = "uint i [[thread_position_in_grid]]"
LANE = "uint l [[thread_index_in_simdgroup]]"
INDEX = "uint t [[thread_index_in_threadgroup]]"
# Rules that are about metalcompute, or say more where it is meant.
METALCOMPUTE = {19, 41, 50, 51}


# Rule, source that breaks it on its last line, Apple's words, and the near miss that keeps it.
CASES = [
    (1, "float g(float* p) { return *p; }", "pointer type must have explicit address space", "float g(thread float* p) { return *p; }"),
    (1, "struct S { int n; };\nint g(S* p) { return p->n; }", "pointer type", "struct S { int n; };\nint g(device S* p) { return p->n; }"),
    (1, f"{HEAD}) {{ float* p = x; }}", "pointer type", f"{HEAD}) {{ device float* p = x; float y = 2 * x[0] * p[1]; }}"),
    (1, f"{HEAD}) {{ x[0] = *(int*)x; }}", "pointer type", f"{HEAD}) {{ x[0] = *(device int*)x; }}"),
    (1, "template <typename T> T g(T* p) { return *p; }", "pointer type", "template <typename T> T g(const device T* p) { return *p * sizeof(T); }"),
    (1, f"{HEAD}) {{ auto* p = x; }}", "pointer type", f"{HEAD}) {{ device auto* p = x; const device auto* q = x + 1; auto r = q; p[0] = *r; }}"),
    (2, "void g(float& x) { x = 1; }", "reference type must have explicit address space", "void g(thread float& x) { x = 1; }"),
    (2, "struct S { int n; };\nint g(const S& s) { return s.n; }", "reference type", "struct S { int n; };\nint g(const thread S& s) { return s.n & 3; }"),
    (2, "template <typename... A> void g(A&... a) {}", "reference type must have explicit address space", "template <typename... A> void g(thread A&... a) {}\ntemplate <typename... B> float h(B... b) { return (b * ...); }"),
    (4, "int counter = 0;", "program scope variable must reside in constant address space", "constant int counter = 0;"),
    (4, "constexpr float k[2] = {1, 2};", "program scope variable", "static constant constexpr float k[2] = {1, 2};"),
    (5, "constant int limit;", "must be initialized", "constant int limit = 3;"),
    (6, "int g() { static int n = 0; return n; }", "cannot be declared static", "static int g() { int n = 0; return n; }"),
    (7, "void g() { threadgroup float t[4]; t[0] = 1; }", "automatic variable qualified", "void g(threadgroup float* t) { threadgroup float* u = t; u[0] = 1; }"),
    (8, "float g(double d) { return d; }", "'double' is not supported in Metal", "float g(float doubled) { return doubled; }"),
    (8, "void g() { char16_t c = 3; }", "'char16_t' is not supported in Metal", "void g() { short char16 = 3; }"),
    (8, "float g(_Float16 v) { return v; }", "'_Float16' is not supported in Metal", "float g(half v) { return v; }"),
    (8, "constant long long k = 1;", "'long long' is not supported", "constant long k = 1;"),
    (8, "constant float k = 1.0l;", "'long double' is not supported", "constant float k = 1.0f;"),
    (9, "float g(bfloat b) { return b; }", "needs Metal 3.1", "float g(half bfloats) { return bfloats; }"),
    (10, "int g() { auto h = [](int n) { return n; }; return h(1); }", "lambda expressions are not supported", "int g(thread int* h) { return h[(1)] + h[0]; }"),
    (13, "int g() { goto end; }", "goto", "int g() { switch (1) { case 1: default: break; } return 0; }"),
    (13, "void g() noexcept {}", "'noexcept' is not supported", "void g() {}"),
    (13, "struct S { virtual void g() {} };", "virtual member functions", "struct S { void g() {} S() = default; };"),
    (13, "void g() { again: ; }", "labeled statements", "int g(bool b) { return b ? 1 : 2; }"),
    (13, "void g() { register int n = 0; }", "'register' storage class", "void g() { int n = 0; }"),
    (14, "struct A {}; struct B : A {};", "derived classes are not supported", "struct A {}; struct B { A a; int n : 3; };"),
    (17, "float g(float x) { return std::exp(x); }", "'std'", "float g(float x) { return metal::exp(x); }"),
    (18, "kernel void f(device float* x [[buffer(31)]]) {}", "must be between 0 and 30", "kernel void f(device float* x [[buffer(0)]]) {}"),
    (18, f"{HEAD}, device float* y [[buffer(0)]]) {{}}", "at index 0", f"{HEAD}, device float* y [[buffer(1)]]) {{}}"),
    (19, f"{HEAD}, device float* y [[buffer(2)]]) {{}}", "from 0 without gaps", f"{HEAD}, device float* y) {{}}"),
    (20, f"{HEAD}, uint n [[buffer(1)]]) {{}}", "not valid for attribute 'buffer'", f"{HEAD}, constant uint& n [[buffer(1)]]) {{}}"),
    (20, f"{HEAD}, int n) {{}}", "for input declaration in a kernel function", f"{HEAD}, constant int& n) {{}}"),
    (25, f"{HEAD}, int i [[thread_position_in_grid]]) {{}}", "not valid for attribute", f"{HEAD}, uint i [[thread_position_in_grid]]) {{}}"),
    (25, f"{HEAD}, uint2 i [[thread_position_in_grid]], uint n [[threads_per_threadgroup]]) {{}}", "same number of components",
     f"{HEAD}, uint2 i [[thread_position_in_grid]], uint2 n [[threads_per_threadgroup]], uint l [[thread_index_in_threadgroup]]) {{}}"),
    (25, f"{HEAD}, uint i [[thread_position_in_grid]], ushort n [[threads_per_grid]]) {{}}", "same type",
     f"{HEAD}, uint i [[thread_position_in_grid]], ushort n [[threads_per_threadgroup]]) {{}}"),
    (25, f"{HEAD}, uint i [[thread_index_in_simdgroup]], ushort n [[simdgroup_index_in_threadgroup]]) {{}}", "same type",
     f"{HEAD}, ushort i [[thread_index_in_simdgroup]], ushort n [[simdgroup_index_in_threadgroup]]) {{}}"),
    (35, "void g(device atomic_float* a) {}", "needs Metal 3.0", "void g(device atomic_int* a) {}"),
    (35, "void g(device atomic<int>* a) {}", "needs Metal 2.4", "void g(device atomic_uint* atomic) {}"),
    (35, "int g(device atomic_int* a) { return atomic_load_explicit(a, memory_order_acquire); }", "must be memory_order_relaxed",
     "int g(device atomic_int* a) { return atomic_load_explicit(a, memory_order_relaxed); }"),
    (36, "void g(device atomic_int& a) { atomic_fetch_add_explicit(a, 1, memory_order_relaxed); }", "its first argument is a pointer to an atomic object",
     "void g(device atomic_int& a) { device atomic_int& b = a; atomic_fetch_add_explicit(&b, 1, memory_order_relaxed); }"),
    (36, "kernel void f() { threadgroup atomic_uint t[2][4]; atomic_store_explicit(t[0][1], 1, memory_order_relaxed); }", "its first argument is a pointer to an atomic object",
     "kernel void f() { threadgroup atomic_uint t[2][4]; threadgroup atomic_uint& u = t[0][1]; atomic_store_explicit(t[0], 1, memory_order_relaxed); atomic_store_explicit(&u, 1, memory_order_relaxed); }"),
    (37, "float g(float v) { return simd_shuffle_and_fill_down(v, v, 1); }", "needs Metal 2.4", "float g(float v) { return simd_shuffle_down(v, 1); }"),
    (41, f"[[max_total_threads_per_threadgroup(48)]] {HEAD}) {{}}", "multiples of 32", f"[[max_total_threads_per_threadgroup(96)]] {HEAD}) {{}}"),
    (41, f"[[max_total_threads_per_threadgroup(16)]] {HEAD}) {{}}", "multiples of 32", f"[[max_total_threads_per_threadgroup(32)]] {HEAD}) {{}}"),
    (41, f"[[max_total_threads_per_threadgroup(1056)]] {HEAD}) {{}}", "must be <= 1024", f"[[max_total_threads_per_threadgroup(1024)]] {HEAD}) {{}}"),
    (45, "float g(float x) { return erf(x); }", "use of undeclared identifier 'erf'", "float erf(float x) { return x; } float g(float x) { return erf(x); }"),
    (45, "float g(float x) { return sqrtf(x); }", "use of undeclared identifier 'sqrtf'", "float g(float x) { return sqrt(x); }"),
    (50, f"{HEAD}, threadgroup float* t [[threadgroup(0)]]) {{}}", "metalcompute cannot pass", f"{HEAD}) {{ threadgroup float t[4]; t[0] = 1; }}"),
    (50, "constant bool flag [[function_constant(0)]];", "metalcompute cannot pass", "constant bool flag = true;"),
    (3, "float g(threadgroup float* t) { return *(device float*)t; }", "C-style cast from 'threadgroup float *' to 'device float *' converts between mismatching", "float g(threadgroup float4* t) { return *(threadgroup float*)t; }"),
    (3, f"{HEAD}) {{ threadgroup float t[4]; device float* p = reinterpret_cast<device float*>(t); }}", "reinterpret_cast from 'threadgroup float *' to 'device float *' is not allowed",
     f"{HEAD}) {{ threadgroup float t[4]; threadgroup uint* p = reinterpret_cast<threadgroup uint*>(&t[1]); p[0] = 1; }}"),
    (3, "void g(device float* x) { thread float* p = x; }", "cannot initialize a variable of type 'thread float *' with an expression of type 'device float *'",
     "void g(device float* x) { float v = x[0]; thread float* p = &v; device float* q = x + 1; q[0] = *p; }"),
    (3, f"{HEAD}) {{ float v = 1; device float* p = &v; }}", "cannot initialize a variable of type 'device float *' with an expression of type 'thread float *'",
     f"{HEAD}) {{ float v = 1; thread float* p = &v; device float& r = x[0]; device float* q = &r; }}"),
    (3, f"void g(threadgroup float* t) {{ t[0] = 1; }}\n{HEAD}) {{ g(x); }}", "no matching function for call to 'g': 'device float *' is no 'threadgroup' pointer",
     f"void g(threadgroup float* t) {{ t[0] = 1; }}\nvoid g(device float* t) {{ t[0] = 1; }}\n{HEAD}) {{ g(x); }}"),
    (3, f"void g(device int* n) {{ n[0] = 1; }}\n{HEAD}) {{ int n[2]; g(n); }}", "'thread int *' is no 'device' pointer",
     f"void g(thread int* n) {{ n[0] = 1; }}\n{HEAD}) {{ int n[2]; g(n); g(&n[1]); }}"),
    (3, f"void g(threadgroup float* t) {{ t[0] = 1; }}\n{HEAD}, {GRID}) {{ g(i + x); }}", "'device float *' is no 'threadgroup' pointer",
     f"void g(threadgroup float* t) {{ t[0] = 1; }}\n{HEAD}) {{ threadgroup float t[2][4]; g(t[1] + 1); device float* y = x + 1; }}"),
    (11, "float tri(float n) { return n < 1 ? 0 : n * tri(n - 1); }", "calls itself", "float tri(float n) { return n < 1 ? 0 : n * n; }"),
    (11, "float tri(float n) { if (n < 1) return 0; return (float)n * tri(n - 1); }", "calls itself", "float two(float n) { float f = 2; return (float)n * f; }"),
    (11, "template <typename T> T g(T n) { return n < 1 ? T(1) : n * g<T>(n - 1); }", "'g' calls itself", "template <typename T> T g(T n) { return n; }\ntemplate <typename T> T g(T n, T m) { return g(n) + g(m); }"),
    (36, f"kernel void f(device atomic_int* x, {GRID}) {{ x[i] += 1; }}", "no viable overloaded '+='", f"kernel void f(device atomic_int* x, {GRID}) {{ x += i; device atomic_int* y = x; y = x; }}"),
    (36, "kernel void f() { threadgroup atomic_uint n; n = 0; }", "no viable overloaded '='", "kernel void f() { threadgroup uint n; n = 0; }"),
    (45, "void g(device atomic_int* x) { atomic_fetch_add(x, 1); }", "undeclared identifier 'atomic_fetch_add'", "void g(device atomic_int* x) { atomic_fetch_add_explicit(x, 1, memory_order_relaxed); }"),
    (48, "struct S { int n; float v[]; };", "flexible array members are not permitted", "struct S { int n; float v[1]; int operator[](int i) const; };"),
    (11, "struct T { int d(int n) { return n ? d(n - 1) : 0; } };", "'d' calls itself", "struct T { int d(int n) { return n; } }; struct U { T t; int d(int n) { return t.d(n - 1); } };"),
    (16, '[[host_name("z")]] kernel void f(device int* x) {}\nkernel void f(device float* x) {}', "cannot be overloaded", '[[host_name("z")]] kernel void f(device int* x) {}\n[[host_name("y")]] kernel void g(device int* x) {}'),
    (20, "enum Mode { a, b };\nkernel void f(Mode m [[buffer(1)]]) {}", "type 'Mode' is not valid for attribute 'buffer'", "enum Mode : uint { a, b };\nkernel void f(constant Mode& m [[buffer(1)]]) {}"),
    (23, "kernel void f(constant sampler* s [[buffer(0)]]) {}", "type 'sampler' cannot be used", "kernel void f(sampler s [[sampler(0)]]) {}"),
    (27, '[[host_name("z")]] kernel void f(device int* x) {}\n[[host_name("z")]] kernel void g(device int* x) {}', "host_name 'z' is taken", '[[host_name("z")]] kernel void f(device int* x) {}\n[[host_name("y")]] kernel void g(device int* x) {}'),
    (28, "float h(float4 v) { return v.x; }\nfloat g(float3 v) { return h(v); }", "no matching function for call to 'h': 'float3' does not convert to 'float4'", "float h(float4 v) { return v.x; }\nfloat g(float3 v) { return h(float4(v, 1)) + h(v.xyzz) + h(2.0); }"),
    (29, "int3 g(int2 v) { return int3(v); }", "too few elements in vector initialization (expected 3 elements, have 2)", "int3 g(int2 v) { return int3(v, 0) + int3(v.x) + int3(v.xyx); }"),
    (36, "int g(device atomic_int* a) { return a[0] * 2; }", "atomic objects are read by functions only", "int g(device atomic_int* a, int n) { return n & atomic_load_explicit(a + 0, memory_order_relaxed) * 2 + atomic_load_explicit(&a[1], memory_order_relaxed); }"),
    (47, "struct fragment { int a; };", "'fragment' is a keyword", "struct fragments { int a; };"),
    (47, "float half(float x) { return x; }", "'half' is a keyword", "float halve(float x) { return float(half(x)); }"),
    (48, "struct S { char c; int n; };\nvoid g() { S s = {300, 1}; }", "evaluates to 300 which cannot be narrowed to type 'char'", "struct S { char c; int n; };\nvoid g() { S s = {100, 300}; }"),
    (48, "union U { int n; float v; };\nvoid g(float x) { U u = {x}; }", "cannot be narrowed", "union U { float v; int n; };\nvoid g(float x, float2 y) { U u = {x}; U w{y.x}; U v = {1}; }"),
    (48, "struct A { short v[2]; }; struct S { char c; A a; };\nvoid g(int n) { S s = {1, {{n, 1}}}; }", "cannot be narrowed from type 'int' to 'short'", "struct A { short v[2]; float2 w; }; struct S { char c; A a; int m[2][2]; };\nvoid g(int n, short k) { S s = {1, {{k, 1}, {1, 2}}, {{n, 2}, {3, n}}}; A a = {k, 1, {1, 2}}; }"),
    (48, "typedef struct { char c; } S;\nS g(int n) { return S{n}; }", "cannot be narrowed", "typedef struct { char c; } S;\nS g(int n) { return S{char(n)}; }"),
    (48, "void g(int n) { char b[] = {n}; }", "non-constant-expression cannot be narrowed from type 'int' to 'char'", "constant int N = 3;\nvoid g(int n) { char b[] = {char(n), N}; long c[] = {n}; }"),
    (49, "struct S { float v; float get() const device { return v; } };\nfloat g() { S s; return s.get(); }", "the object is in 'thread' address space", "struct S { float v; float get() const device { return v; } };\nfloat g(device S& s) { return s.get(); }"),
    (50, f"{HEAD}, sampler s) {{}}", "metalcompute cannot pass samplers", f"{HEAD}) {{ int sampler_ = 1; x[0] = sampler_; }}"),
    (3, "struct S { float v; };\nfloat g(constant S& s) { return *(device float*)&s.v; }", "mismatching address spaces", "struct S { float v; };\nfloat g(constant S& s) { return *(constant int*)&s.v; }"),
    (5, "constant float k[2] = {1, 2};\nvoid g() { k[0] = 3; }", "read-only variable is not assignable", "constant float k[2] = {1, 2};\nfloat g() { float v = k[0]; v = 3; return v; }"),
    (5, "kernel void f(constant float& n, device float* x) { n += 1; }", "read-only variable is not assignable", "kernel void f(constant float& n, device float* x) { x[0] = n; }"),
    (5, "void g(const device float* x, int n) { x[n] = 1; }", "read-only variable is not assignable", "void g(device float* const x, const device float* y, int n) { x[n] = 1; y = y + 1; y++; }"),
    (5, "struct S { int n; float v[2]; };\nvoid g(constant S& s) { s.v[1] = 2; }", "read-only variable", "struct S { int n; device float* v; };\nvoid g(constant S& s) { s.v[1] = 2; }"),
    (7, "float g(threadgroup float t) { return t; }", "parameter may not be qualified with an address space", "float g(threadgroup float& t, threadgroup float (&u)[4]) { return t + u[0]; }"),
    (11, "int g(int n) { return n < 2 ? n : g(n - 1) + g(n - 2); }", "'g' calls itself: recursion is not supported; it needs Metal 2.4", "int g(int n) { return n; } int g(int n, int m) { return g(n); } int h(int n) { return g(n, n); }"),
    (11, "int h(int n); int g(int n) { return h(n); } int h(int n) { return g(n); }", "recursion is not supported", "template <int N> int g(int n) { return N ? g<N - 1>(n) : n; }"),
    (11, "int g(int n) {\n    return g(n); }", "recursion is not supported", "float max(float a, float b, float c) { return max(a, max(b, c)); }"),
    (14, "struct A { int n; };\nstruct B : public A {};", "derived classes", "template <typename T> struct is_small : metal::false_type {};\ntemplate <> struct is_small<char> : metal::true_type {};"),
    (15, "union U { int n; device int& r; };", "union member 'r' has reference type 'device int &'", "union U { int n; device int* p; float4 v[2]; };\nunion { float a; uint b; } pun(float x);"),
    (15, "struct A { int n; };\nunion U : A { int m; };", "unions cannot have base classes", "struct A { int n; };\nunion U { A a; int m; };"),
    (16, "int main() { return 0; }", "non-qualified function cannot be called 'main'", "int main_sum() { return 0; } struct S { int main() { return 1; } };"),
    (16, "kernel int f() { return 1; }", "invalid return type 'int' for kernel function", "kernel void f() {}"),
    (16, "struct S { kernel void f() {} };", "kernel function cannot be a member function", "struct S { void kernel_f() {} };"),
    (16, "kernel void f(device float* x) {}\nkernel void f(device int* x) {}", "'f' cannot be overloaded", "namespace a { kernel void f(device float* x) {} }\nnamespace b { kernel void f(device int* x) {} }"),
    (16, "kernel void f(device float* x) {}\nkernel void g(device float* x) { f(x); }", "kernel function 'f' cannot be called", "kernel void f(device float* x) {}\nvoid h(device float* x) {} kernel void g(device float* x) { h(x); }"),
    (16, "int main(int n) { return n; }", "cannot be called 'main'", "namespace n { int main(int n) { return n; } }"),
    (16, "int g(int n, ...) { return n; }", "variadic functions", "template <typename... T> int g(T... n) { return sizeof...(n); }"),
    (13, "void g() { enum : int { N = 8 }; again: ; }", "labeled statements", "void g() { enum : int { N = 8 }; enum class E : uint { e }; float x[N]; x[0] = N; }"),
    (26, "[[mesh]] void f() {}", "'mesh' attribute requires Metal language standard macos-metal3.0", "kernel void mesh() {}"),
    (27, "template <typename T> kernel void f(device T* x, constant uint& n) {}\n" + 'template [[host_name("a")]] kernel void f<float>(device int* x, constant uint& n);', "its parameters are others",
     "template <typename T> kernel void f(device T* x, constant uint& n) {}\n" + 'template [[host_name("a")]] kernel void f<float>(device float*, constant uint32_t&);\ntemplate [[host_name("b")]] kernel void f<int>(device decltype(1)* x, constant unsigned int& n);'),
    (27, "template <typename T> kernel void f(device T* x, constant uint& n) {}\n" + 'template [[host_name("a")]] kernel void f<float>(device float* x);', "its parameters are others",
     "template <typename T, int N> kernel void f(const device vec<T, N>* x, constant int x_[3], uint i [[thread_position_in_grid]]) {}\n" + 'template [[host_name("a")]] kernel void f<half, 2>(device const half2* x, constant int*, const uint);'),
    (17, "#include <vector>", "C++ standard library header", "#include <metal_math>"),
    (18, "kernel void f(texture2d<float> t [[texture(128)]]) {}", "must be between 0 and 127", "kernel void f(texture2d<float> t [[texture(127)]], sampler s [[sampler(15)]]) {}"),
    (18, "kernel void f(sampler s [[sampler(16)]]) {}", "must be between 0 and 15", "kernel void f(texture2d<float> t [[texture(0)]], device float* x [[buffer(0)]]) {}"),
    (20, "kernel void f(threadgroup float* t [[buffer(0)]]) {}", "invalid address space qualification for buffer pointee type", "kernel void f(threadgroup float* t [[threadgroup(0)]]) {}"),
    (20, "struct P { int n; };\nkernel void f(P p [[buffer(0)]]) {}", "type 'P' is not valid", "struct P { int n; };\nkernel void f(constant P& p [[buffer(0)]]) {}"),
    (23, "kernel void f(device texture2d<float>* t [[buffer(0)]]) {}", "type 'texture2d<float>' cannot be used in buffer pointee type", "kernel void f(texture2d<float> t [[texture(0)]]) {}"),
    (26, f"{HEAD}, uint i [[thread_postion_in_grid]]) {{}}", "unknown attribute 'thread_postion_in_grid'", f"{HEAD}, uint i [[thread_index_in_threadgroup]]) {{}}"),
    (26, "uint i [[thread_position_in_grid]];", "requires Metal language standard macos-metal3.1", "constant uint i = 0;"),
    (27, "template <typename T> kernel void f(device T* x) {}\n" + 'template [[host_name("a")]] kernel void f<float>(device float*);\ntemplate [[host_name("a")]] kernel void f<half>(device half*);', "host_name 'a' is taken",
     "template <typename T> kernel void f(device T* x) {}\n" + 'template [[host_name("a")]] kernel void f<float>(device float*);\ntemplate [[host_name("b")]] kernel void f<half>(device half*);'),
    (27, "void f();\n" + 'template [[host_name("a")]] kernel void f<float>(device float*);', "does not refer to a kernel function template", "template <typename T> kernel void f(device T* x) {}\n" + 'template [[host_name("a")]] kernel void f<float>(device float*);'),
    (28, "void g(int4 n) { float4 v = n; }", "cannot initialize a variable of type 'float4' with an expression of type 'int4'", "void g(int4 n, packed_float4 p) { float4 v = float4(n), w = 2, u = p; packed_float4 q = w; }"),
    (28, "void g(float4 v) { float x = v * 2; }", "cannot initialize a variable of type 'float'", "void g(float4 v) { float x = v.x * 2, y = v[1], z = dot(v, v); bool b = any(v > 0); }"),
    (28, "float2 g(float3 v) { return v.xyz; }", "cannot initialize return object of type 'float2'", "float2 g(float3 v) { return v.zy; }"),
    (28, "void g(device half4* x, float4 v) { x[0] = v; }", "assigning to 'half4' from incompatible type 'float4'", "void g(device half4* x, float4 v) { x[0] = half4(v); x[1] = 0.5; x[2].xy = x[3].zw; }"),
    (28, "float4 g(float4 v, float3 w) { return v + w; }", "vector values of different size ('float4' and 'float3')", "float4 g(float4 v, float3 w) { return v + w.xyzz * 2 - w.x; }"),
    (28, "float4 g(float4 v, half4 w) { return v * w; }", "invalid operands to binary expression ('float4' and 'half4')", "float4 g(float4 v, half4 w) { return v * float4(w) * 2.0h; }"),
    (29, "float g(float2 v) { return v.z; }", "vector component access exceeds type 'float2'", "float g(float2 v) { return v.y + v.g + v.yx.x; }"),
    (29, "float g(float4 v) { return v.q; }", "illegal vector component name 'q'", "struct S { float q; };\nfloat g(thread S& v) { return v.q; }"),
    (29, "float2 g(float4 v) { return v.xg; }", "it mixes xyzw and rgba", "float2 g(float4 v) { return v.rg; }"),
    (29, "void g(float4 v) { v.xx = float2(1); }", "duplicate components", "void g(float4 v) { v.xy = v.xx; }"),
    (29, "void h(thread float* p) {}\nvoid g(float4 v) { h(&v.x); }", "address of vector element requested", "void h(thread float4* p) {}\nvoid g(float4 v, packed_float3 u) { h(&v); bool b = 3 & v.x > 0; }"),
    (29, "float4 g(float2 v) { return float4(v, 1); }", "too few elements in vector initialization (expected 4 elements, have 3)", "float4 g(float2 v) { return float4(v, 1, 2) + float4(1) + float4(v, v); }"),
    (29, "float3 g(float2 v) { return float3(v, v.xy); }", "too many elements in vector initialization (expected 3 elements, have 4)", "float3 g(float2 v) { return float3(v, v.x); }"),
    (30, "int g(half h) { return as_type<int>(h); }", "as_type cast from 'half' to 'int' is not allowed", "int g(half2 h, float3 v) { float4 w = as_type<float4>(v); return as_type<int>(h) + as_type<short>(h.x); }"),
    (30, "uint g(device int* p) { return as_type<uint>(p); }", "as_type cast from 'device int *' to 'uint'", "uint g(device int* p) { return as_type<uint>(p[0]); }"),
    (30, "float g() { return as_type<float>(1L); }", "as_type cast from 'long' to 'float'", "float g() { return as_type<float>(0x3f800000); }"),
    (31, "struct S { float3 v; };\nstatic_assert(sizeof(S) == 12, \"packed\");", "static assertion failed due to requirement 'sizeof(S) == 12': it is 16", "struct S { packed_float3 v; };\nstatic_assert(sizeof(S) == 12, \"packed\");\nstatic_assert(sizeof(float3) == 16);"),
    (31, "struct S { float3 v; };\nstatic_assert(sizeof(S) == 12);", "it is 16", "struct __attribute__((packed)) S { float v; ushort n; };\nstatic_assert(sizeof(S) == 6);"),
    (32, f"{HEAD}) {{ threadgroup half4x4 t[8]; }}", "no matching constructor for initialization of 'half4x4'", f"{HEAD}) {{ threadgroup half4 t[32]; half4x4 m[2]; threadgroup half4x4* p = (threadgroup half4x4*)t; }}"),
    (33, "float4 g(float4 a, float4 b) { return a < b ? a : b; }", "must be a scalar, not 'bool4'", "float4 g(float4 a, float4 b) { return any(a < b) ? a : select(b, a, a < b); }"),
    (36, "void g(device int* x) { atomic_fetch_add_explicit(x, 1, memory_order_relaxed); }", "no matching function for call to 'atomic_fetch_add_explicit'",
     "void g(device int* x) { atomic_fetch_add_explicit((device atomic_int*)x, 1, memory_order_relaxed); }"),
    (36, "void g(device uint* x, uint i) { atomic_store_explicit(&x[i], 1u, memory_order_relaxed); }", "no matching function", "void g(device atomic_uint* x, uint i) { atomic_store_explicit(&x[i], 1u, memory_order_relaxed); }"),
    (37, "ulong g(ulong v) { return simd_sum(v); }", "no matching function for call to 'simd_sum': it does not take 'ulong'", "uint2 g(ulong v) { return simd_shuffle(as_type<uint2>(v), 3) + simd_sum(uint(v)); }"),
    (37, "bool g(float v) { return simd_max(v > 0); }", "it does not take 'bool'", "bool g(float v) { return simd_any(v > 0) || simd_max(v) > 0; }"),
    (38, "void g() { simdgroup_matrix<int, 8, 8> m; }", "8x8 of half or float", "void g() { simdgroup_matrix<half, 8, 8> m; }"),
    (38, "void g() { simdgroup_float4x4 m; }", "8x8 of half or float", "constant int N = 8; void g() { simdgroup_float8x8 m; simdgroup_matrix<float, N, N> n; }"),
    (44, "int g(int a, uint b) { return min(a, b); }", "call to 'min' is ambiguous: its arguments are int, uint", "int g(int a, uint b) { return min(a, int(b)) + min(b, 4u); }"),
    (44, "float g(float a) { return max(a, 0); }", "call to 'max' is ambiguous", "float g(float a, short s) { return max(a, 0.0) + max(s, short(0)) + max(true, 0); }"),
    (44, "float g(device float* a) { return clamp(a[2], 0, 1); }", "call to 'clamp' is ambiguous", "float g(device float* a) { return clamp(a[2], 0.0, 1.0); }"),
    (44, "float g(int a) { return sqrt(a); }", "neither half nor float", "float g(int a) { return sqrt(float(a)) + pow(2.0, a); }"),
    (44, "float g(half a, float b) { return max(a, b); }", "call to 'max' is ambiguous: its arguments are half, float", "float g(half a, float b) { return max(float(a), b) + pow(b, 2) + fast::max(a, b) + mix(b, b, 1.0); }"),
    (44, "float g(half a, float b) { return pow(b, a); }", "call to 'pow' is ambiguous: its arguments are float, half", "half g(half a, int b) { return pow(a, b) + mix(a, a, 0.5h); }"),
    (44, "int g(uint a, short b, int c) { return clamp(a, b, c); }", "its arguments are uint, short, int", "int g(short b, int c) { return clamp(c, int(b), c) + clamp(b, b, b) + max(b + b, c); }"),
    (44, "uint g(uint a, int b) { return mulhi(a, b); }", "call to 'mulhi' is ambiguous", "uint g(uint a, short b) { return mulhi(a, a) + clz(b) + popcount(true) + mul24(a, 3u); }"),
    (44, "bool g(uint a) { return isfinite(a); }", "neither half nor float", "int g(float a) { return clz(as_type<uint>(a)); }"),
    (44, f"{HEAD}) {{ threadgroup_barrier(); }}", "no matching function for call to 'threadgroup_barrier'", f"{HEAD}) {{ threadgroup_barrier(mem_flags::mem_none); }}"),
    (44, "float4 g(float4 a, half4 b) { return max(a, b); }", "no matching function for call to 'max': its arguments are float4, half4", "float4 g(float4 a, half4 b) { return max(a, float4(b)) + max(a, 0.0); }"),
    (45, "float h(float v);\nfloat g(float v) { return h(v); }", "undefined symbol 'h'", "float h(float v);\nfloat g(float v) { return h(v); }\nfloat h(float v) { return v; }\nextern float elsewhere(float v);\nfloat k(float v) { float h(v); return elsewhere(h); }"),
    (47, "float g() { float vertex = 1; return 2; }", "expected unqualified-id: 'vertex' is a keyword", "float g() { float vertices = 1; return vertices; }"),
    (47, "enum { vertices = 1, fragment };", "'fragment' is a keyword", "enum { vertices = 1, fragments };\nvoid g(device float* x) { float y[] = {half(1), 2}; x[0] = y[1]; }"),
    (47, "namespace half { int n(); }", "'half' is a keyword", "namespace halves { int n(); }"),
    (47, "void g(device packed_bool2* x) {}", "unknown type name 'packed_bool2'", "void g(device packed_char2* x) {}"),
    (48, "void g() { int a[2] = {1, 2.5}; }", "type 'float' cannot be narrowed to 'int' in initializer list", "void g() { int a[2] = {1, int(2.5)}; float b[] = {1, 2}; }"),
    (48, "void g() { uint n{-1}; }", "constant expression evaluates to -1 which cannot be narrowed to type 'uint'", "void g() { uint n = -1; int m{-1}; }"),
    (48, "void g() { uchar a[] = {255, 256}; }", "constant expression evaluates to 256 which cannot be narrowed to type 'uchar'", "void g() { uchar a[] = {255}; char b[] = {-128, 127}; ulong c[] = {0xffffffffffffffff}; uint d[] = {0xffffffff}; }"),
    (48, "void g(uint i) { ushort2 v{i, 1}; }", "cannot be narrowed from type 'uint' to 'ushort'", "void g(uint i, float x, float2 y) { uint2 v{i, i}; float4 w = {x, 2, 3}; ushort2 u{ushort(i), 1}; float2 z{y}; }"),
    (48, "void g() { float a[0]; }", "zero-length arrays", "void g() { float a[1]; }"),
    (48, "struct { int n; };", "anonymous structs and unions must be class members", "struct S { union { int n; float v; }; struct { int m; }; };"),
    (49, "struct S { int n; int get() { return n; } };\nint g(device S* s) { return s->get(); }", "no matching member function for call to 'get'", "struct S { int n; int get() const device { return n; } };\nint g(device S* s) { return s[1].get(); }"),
    (49, "struct S { int n; int get() const { return n; } };\nint g(constant S& s) { return s.get(); }", "the object is in 'constant' address space", "struct S { int n; int get() const { return n; } };\nint g(constant S& s) { S t = s; return t.get(); }"),
    (50, f"{HEAD}, texture2d<float> t) {{}}", "metalcompute cannot pass textures", f"{HEAD}) {{ float texture = 1; x[0] = texture; }}"),
    (54, "void g(device float* x, uint count) { x[coutn] = 1; }", "use of undeclared identifier 'coutn'; did you mean 'count'?",
     "enum Kind { first, second = 3 };\nvoid g(device float* x, uint count) { x[count * second] = first; }"),
    (54, "void g(thread float* x) { for (int i = 0; i < 4; i++) { x[i] = 0; } x[i] = 1; }", "use of undeclared identifier 'i'",
     "void g(thread float* x) { int j = 0, i, *p = &j; for (i = 0; i < 4; i++) x[i] = *p; x[i] = j; }"),
    (54, "void g() { flaot x = 1; }", "unknown type name 'flaot'; did you mean 'float'?",
     "typedef struct { float v; } flaot;\nvoid g() { flaot x; struct { float v; } y; y.v = x.v = 1; }"),
    (54, "typedef struct __attribute__((aligned(16))) { float x; } One; float g(device One* o) { device On& p = o[0]; return p.x; }", "'On'",
     "typedef struct __attribute__((aligned(16))) { float x; } One; typedef struct alignas(16) Tag { float x; } Two; typedef struct { float x; } __attribute__((packed)) Three;"
     " float g(device One* o, Two t) { device One& p = o[0]; Two q = t; Three r; r.x = 1; return p.x + q.x + r.x; }"),
    (54, "float g(float x) { return sqtr(x); }", "use of undeclared identifier 'sqtr'; did you mean 'sqrt'?",
     "template <typename T> T sqtr(T x) { T y(x), z{y}; const T w = y * z; return w; }\nfloat g(float x) { return sqtr(x); }"),
    (54, "struct P { float mass; };\nfloat g(device P* p) { return p->maas; }", "no member named 'maas' in 'P'; did you mean 'mass'?",
     "struct P { union { float mass; int maas; }; };\nfloat g(device P* p) { return p->maas + (*p).mass; }"),
    (54, "float g(float x) { return late(x); } float late(float x) { return x; }", "use of undeclared identifier 'late'",
     "float late(float x);\nfloat g(float x) { return late(x); }\nfloat late(float x) { return x; }"),
    (28, "float g(float x) { return x % 2.0f; }", "invalid operands to binary expression ('float' and 'float')", "int g(int x) { return x % 2 ^ 1; }"),
    (54, "struct S { int n; };\nint g(S s) { { int inner = 1; } return s.n + inner; }", "use of undeclared identifier 'inner'",
     "struct S { int n; int m() const { return n; } };\nint g(S s) { int inner = 1; { int n = s.m(); return n + inner; } }"),
    (54, "template <typename T> T g(T x, int n) { return n ? x : y; }", "use of undeclared identifier 'y'",
     "constant int y[] = {1, 2};\ntemplate <typename T, int... I> T g(T x, int n) { return n ? x : T(y[n] + sizeof...(I)); }"),
    (55, "float g(float x) { float y = x; float y = 2; return y; }", "redefinition of 'y'",
     "float g(float x) { float y = x; { float y = 2; x += y; } for (int k = 0; k < 2; k++) x++; for (int k = 0; k < 2; k++) x++; return x + y; }"),
    (55, "float g(float x) { int x = 2; return x; }", "redefinition of 'x'",
     "float g(float x) { { int x = 2; return x; } }\nfloat h(float x) { if (int y = x) return y; else if (int y = x + 1) return y; return 0; }"),
    (55, "float g(float x, int x) { return x; }", "redefinition of 'x'", "float g(float x, int);\nfloat h(float x, int y) { return x + y; }"),
    (55, "struct S { float a; int a; };", "duplicate member 'a'", "struct S { float a; float b() { return a; } float b(int) { return a; } union { float c; int d; }; struct { int e; } f; };"),
    (56, "void g(int x) { if (x > 2) break; }", "'break' statement not in loop or switch statement", "void g(int x) { for (;;) if (x++ > 2) break; do { switch (x) { case 1: break; } } while (x); }"),
    (56, "void g(int x) { switch (x) { case 1: continue; } }", "'continue' statement not in loop statement", "void g(int x) { while (x--) switch (x) { case 1: continue; } }"),
    (56, "void g(int x) { switch (x) { case 2: x = 1; break; case 1 + 1: x = 2; } }", "duplicate case value '2'",
     "void g(int x) { switch (x) { case 1: switch (x + 1) { case 2: x = 1; } break; case 2: x = 2; } switch (x) { case 2: x = 3; } }"),
    (56, "float g(float x) { if (x > 1) return; return x; }", "non-void function 'g' should return a value", "void g(thread float& x) { if (x > 1) return; x = 1; }"),
    (56, f"{HEAD}) {{ return 1; }}", "void function 'f' should not return a value", f"void g(device float* x) {{ x[0] = 1; }}\n{HEAD}) {{ return g(x); }}"),
    (57, "struct S { float a; };\nfloat g(device S* s) { return s.a; }", "member reference type 'device S *' is a pointer; did you mean to use '->'?",
     "struct S { float a; };\nfloat g(device S* s, device S& t) { return s->a + (*s).a + s[1].a + t.a; }"),
    (57, "struct S { float a; };\nfloat g(device S& s) { return s->a; }", "is not a pointer; did you mean to use '.'?",
     "struct T { float b; };\nstruct S { float a; T t; thread T* operator->() { return &t; } };\nfloat g(S s) { return s->b + s.a; }"),
    (57, "float g(float x) { return x.y; }", "member reference base type 'float' is not a structure or union", "float g(float2 x) { return x.y + x.xy.y; }"),
    (57, "float g(device float* x, float n) { return x[n]; }", "array subscript is not an integer: it is 'float'",
     "struct S { float v; float operator[](float i) const { return v * i; } };\nfloat g(device float* x, float n, S s) { return x[int(n)] + s[n]; }"),
    (57, "float g(float x) { return x[0]; }", "subscripted value is not an array, pointer, or vector: it is 'float'", "float g(float3 x, float2x2 m) { return x[0] + m[1][0] + m[0].y; }"),
    (57, "void g(device float* x) { device int* y = x; y[0] = 1; }", "cannot initialize a variable of type 'device int *' with an expression of type 'device float *'",
     "void g(device float* x, device const void* v) { device int* y = (device int*)x; device const float* z = x + 2, *w = nullptr; y[0] = z[0]; }"),
    (57, "void g(device const float* x) { device float* y = x; y[0] = 1; }", "cannot initialize a variable of type 'device float *'", "void g(device float* x) { device const float* y = x; device float* z = &x[1]; z[0] = y[0]; }"),
    (57, "void g(device float* x) { ulong n = x; x[0] = n; }", "cannot initialize a variable of type 'ulong'", "void g(device float* x) { ulong n = (ulong)x; bool is = x; x[0] = n + is; }"),
    (57, "float h(float x) { return x; }\nfloat g(float x) { return h(x, 2); }", "no matching function for call to 'h': it takes 1 argument, not 2",
     "float h(float x, float y = 1) { return x + y; }\nfloat k(float x) { return x; }\nfloat k(float x, float y) { return x + y; }\nfloat g(float x) { return h(x) + k(x, 2) + k(x); }"),
    (57, "float h(float x, float y) { return x; }\nfloat g(float x) { return h(x); }", "no matching function for call to 'h': it takes 2 arguments, not 1",
     "float h(float x, float y = 2);\nfloat h(float x, float y) { return x + y; }\nfloat n() { return 1; }\nfloat g(float x) { return h(x) + h(max(x, 2.0f), float2(x, 1).y) + n(); }"),
    (57, "float g(float h) { return h(2); }", "called object type 'float' is not a function", "float h(float x) { return x; }\nfloat g(float x) { float y(x), z = h(y); return z + h(2); }"),
]  # fmt: skip

# The same for what compiles and bites.
WARNINGS = [
    (28, "float4 g(float x) { return (float4)(x, 0, 0, 1); }", "a cast to 'float4' takes the last value alone", "float4 g(float x) { float4 v = (float4)(x); return (float4)max(v, 0.0) + float4(x, 0, 0, 1); }"),
    (12, "struct S { float (*h)(float); };", "run on Apple GPUs only", "void g(thread float (*h)[2], float (*f)(float)) { (*h)[0] = f(1); }"),
    (22, f"{HEAD}, constant size_t& n) {{}}", "'size_t' is not specified for kernel arguments", f"{HEAD}, constant ulong& n) {{ size_t m = n; }}"),
    (22, "struct P { ptrdiff_t n; };\nkernel void f(constant P& p, device float* x) { x[0] = p.n; }", "'ptrdiff_t', which 'p' holds", "struct P { long n; };\nkernel void f(constant P& p, device float* x) { x[0] = ptrdiff_t(p.n); }"),
    (34, f"{HEAD}, constant int& n, {GRID}) {{ x[i] = int(x[i]) % n; }}", "division by 'n'", f"{HEAD}, constant int& n, {GRID}) {{ x[i] = i % n; }}"),
    (39, f"{HEAD}, uint l [[thread_index_in_simdgroup]]) {{ switch (l) {{ case 0: threadgroup_barrier(mem_flags::mem_none); break; }} }}", "differs between the threads", f"{HEAD}, uint l [[thread_index_in_simdgroup]]) {{ switch (l) {{ case 0: x[0] = 1; break; }} threadgroup_barrier(mem_flags::mem_none); }}"),
    (51, f"{HEAD}, {GRID}) {{ device float& y = x[i]; y = 2; }}", "without a bounds check", f"{HEAD}, device float* out, {GRID}) {{ const device float& y = x[i]; out[0] = y; }}"),
    (51, f"{HEAD}, {GRID}) {{ *(x + i) = 2; }}", "without a bounds check", f"{HEAD}, constant uint& n, {GRID}) {{ if (i >= n) {{ return; }} *(x + i) = 2; }}"),
    (24, "void h(device float* restrict a, const device float* b) { a[0] = b[0]; }\nvoid g(device float* x) { h(x, x); }", "'x' is passed twice to 'h'",
     "void h(device float* restrict a, const device float* b) { a[0] = b[0]; }\nvoid g(device float* x, device float* y) { h(x, y); }"),
    (27, "template <typename T> kernel void f(device T* x) {}", "is never instantiated", "template <typename T> kernel void f(device T* x) {}\n" + 'template [[host_name("f")]] kernel void f<float>(device float*);'),
    (31, "kernel void f(device float* x) { device float3* v = (device float3*)x; v[0] = 1; }", "a float3 takes 16 bytes, so its elements are four numbers apart", "kernel void f(device float* x, device float3* y) { device packed_float3* v = (device packed_float3*)x; v[0] = y[0]; }"),
    (31, "kernel void f(device half* x, constant uint& n) { device half3& v = *reinterpret_cast<device half3*>(x + n); v = 1; }", "a half3 takes 8 bytes", "kernel void f(device half* x) { device half4& v = *reinterpret_cast<device half4*>(x); v = 1; }"),
    (31, "struct P { float3 place;\n  float mass; };\nkernel void f(device P* p) { p[0].mass = 1; }".replace("\n  ", " ").replace("};\n", "}; "), "'mass' begins at byte 16 of 'P': a float3 takes 16 bytes, a packed_float3 12",
     "struct P { packed_float3 place; float mass; float3 speed; };\nstruct Q { float3 a; float b; };\nkernel void f(device P* p) { Q q; q.b = 1; p[0].mass = q.b; }"),
    (34, "int g(int n) { return n / 0; }", "division by zero is undefined", "float g(float n) { return n / 0.5; }"),
    (34, "int g(int n) { return n % -3; }", "% with a negative operand", "int g(int n) { return n % 3 - 3; }"),
    (34, "uint g(uint n) { return n >> 32; }", "shift count 32 of 'uint' counts modulo 32, so it shifts by 0", "ulong g(ulong n, uint m) { return (n >> 32) + (m >> 31) + (n << 40 >> 38) + (n + 3 >> 35); }"),
    (34, "uint g(uint n) { return n << -1; }", "shift count -1 of 'uint' counts modulo 32, so it shifts by 31", "uint g(uint n) { return n << 1 - 1; }"),
    (34, f"{HEAD}, constant uint& n, {GRID}) {{ x[i] = 1024 / n; }}", "division by 'n', which may be zero", f"{HEAD}, constant uint& n, {GRID}) {{ if (i < n) x[i] = 1024 / n; }}"),
    (34, f"struct P {{ int n; }};\n{HEAD}, constant P& p, {GRID}) {{ x[i] = 1024 % p.n; }}", "division by 'p.n'", f"struct P {{ int n; float v; }};\n{HEAD}, constant P& p, {GRID}) {{ x[i] = i / p.n + 2 / p.v + (p.n > 0 ? 8 / p.n : 0); }}"),
    (34, "int g(int n) { const int z = 0; return n % z; }", "division by zero is undefined", "float g(float v, int n, int z) { const int y = 3; { const int z = 0; v += z; } return v / 0 + n % y + n % z; }"),
    (34, "enum { zero };\nconstant uint k = 4 - 4;\nuint g(uint n) { return n / (k * 2); }", "division by zero is undefined", "constant uint k = 4;\nuint g(uint n) { return n / (k - 3) + n / k; }"),
    (34, "int g(int n) { constexpr int z = -4; return n % z; }", "% with a negative operand", "int g(int n) { constexpr int z = -4; return n / z; }"),
    (34, f"{HEAD}, constant uint* n, {GRID}) {{ x[i] = 1024 / *n; }}", "division by '*n', which may be zero", f"{HEAD}, constant uint* n, {GRID}) {{ x[i] = 1024 / n[i] + 1024 / (*n + 1) + 1.f / *n + 2 * x[0] / *n; if (*n > 0) x[i] = 1024 / *n; }}"),
    (34, f"{HEAD}, constant uint* n, {GRID}) {{ x[i] = 1024 % n[1]; }}", "division by 'n[1]'", f"{HEAD}, constant uint* n, {GRID}) {{ x[i] = n[1] == 0 ? 0 : 1024 % n[1]; }}"),
    (34, f"struct P {{ int n; }};\n{HEAD}, constant P* p, {GRID}) {{ x[i] = 1024 / p->n; }}", "division by 'p->n'", f"struct P {{ int n; }};\n{HEAD}, constant P* p, {GRID}) {{ x[i] = max(p->n, 1) + 1024 / p->n; }}"),
    (34, f"{HEAD}, constant int* n, {GRID}) {{ constant int& m = n[2]; x[i] = 7 / m; }}", "division by 'm'", f"{HEAD}, constant int* n, {GRID}) {{ constant int& m = n[i]; int k = 3; thread int& l = k; x[i] = 7 / m + 7 / l; }}"),
    (38, f"{HEAD}, uint t [[thread_index_in_threadgroup]]) {{ simdgroup_float8x8 m; for (uint k = 0; k < t; k++) simdgroup_load(m, x, 8); }}", "'simdgroup_load' in control flow that differs",
     f"{HEAD}, uint t [[thread_index_in_threadgroup]], constant uint& n) {{ simdgroup_float8x8 m; if (t < 64 && t / 32 == 1 && t >> 5 == n) simdgroup_load(m, x, 8); for (uint k = t / 32; k < n; k += 8) simdgroup_store(m, x); if (t < n && x[t % 2] > 0) simdgroup_store(m, x); if (t < 8) x[t] = 1; }}"),
    (38, f"{HEAD}, uint2 g [[threadgroup_position_in_grid]], ushort t [[thread_index_in_threadgroup]]) {{ simdgroup_half8x8 m(0); const ushort i = t; if (i % 8 == 0) simdgroup_multiply(m, m, m); }}", "'simdgroup_multiply' in control flow that differs",
     f"{HEAD}, uint2 g [[threadgroup_position_in_grid]], ushort t [[thread_index_in_threadgroup]]) {{ simdgroup_half8x8 m(0); const ushort i = t; if (i >= 32 && g.x % 8 == 0) simdgroup_multiply(m, m, m); }}"),
    (38, f"{HEAD}, uint t [[thread_position_in_threadgroup]]) {{ simdgroup_float8x8 m(0); if (t < 48) simdgroup_store(m, x); }}", "'simdgroup_store' in control flow", f"{HEAD}, uint t [[thread_position_in_threadgroup]]) {{ simdgroup_float8x8 m(0); if (31 < t || 96 > t) simdgroup_store(m, x); }}"),
    (39, f"{HEAD}, uint l [[thread_position_in_threadgroup]]) {{ const uint n = l * 2; for (uint k = 0; k < n; k++) threadgroup_barrier(mem_flags::mem_device); }}", "differs between the threads",
     f"{HEAD}, uint l [[thread_position_in_threadgroup]], constant uint& m) {{ const uint n = l * m + x[l], o = l & 64; for (uint k = 0; k < n && k < o; k++) threadgroup_barrier(mem_flags::mem_device); }}"),
    (39, f"{HEAD}, uint3 l [[thread_position_in_threadgroup]]) {{ int n = int(l.x - 1); if (31 - n > 0) threadgroup_barrier(mem_flags::mem_device); }}", "differs between the threads",
     f"{HEAD}, uint3 l [[thread_position_in_threadgroup]]) {{ int n = 0 * int(l.x); if (n - l.y > l.y / 32 - 1) threadgroup_barrier(mem_flags::mem_device); }}"),
    (39, f"{HEAD}, uint l [[thread_position_in_threadgroup]]) {{\n if (l < 16) {{ x[l] = 1; threadgroup_barrier(mem_flags::mem_device); }} }}", "differs between the threads",
     f"{HEAD}, uint l [[thread_position_in_threadgroup]], uint n [[threads_per_threadgroup]]) {{\n for (uint s = n / 2; s > 0; s /= 2) {{ if (l < s) x[l] += x[l + s]; threadgroup_barrier(mem_flags::mem_device); }} }}"),
    (39, f"{HEAD}, {GRID}, constant uint& n) {{ if (i >= n) return; x[i] = 1;\n threadgroup_barrier(mem_flags::mem_device); }}", "behind the return in line",
     f"{HEAD}, uint i [[threadgroup_position_in_grid]], constant uint& n) {{ if (i >= n) return; x[i] = 1;\n threadgroup_barrier(mem_flags::mem_device); }}"),
    (39, f"{HEAD}, uint l [[thread_position_in_threadgroup]]) {{ l < 3 ? threadgroup_barrier(mem_flags::mem_device) : void(0); }}", "differs between the threads",
     f"{HEAD}, uint l [[thread_position_in_threadgroup]], constant uint& n) {{ n < 3 ? threadgroup_barrier(mem_flags::mem_device) : void(0); x[l < 3 ? l : 0] = 1, threadgroup_barrier(mem_flags::mem_device); }}"),
    (39, f"bool sync() {{ threadgroup_barrier(mem_flags::mem_device); return true; }}\n{HEAD}, uint l [[thread_position_in_threadgroup]]) {{ x[l] = (l == 0 && sync()); }}", "differs between the threads",
     f"bool sync() {{ threadgroup_barrier(mem_flags::mem_device); return true; }}\n{HEAD}, uint l [[thread_position_in_threadgroup]]) {{ x[l] = (sync() && l == 0); }}"),
    (38, f"{HEAD}, uint lane [[thread_index_in_simdgroup]]) {{ simdgroup_float8x8 m(0); if (lane == 0) simdgroup_store(m, x); }}", "'simdgroup_store' in control flow that differs",
     f"{HEAD}, uint s [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {{ simdgroup_float8x8 m(0); if (s == 0) simdgroup_store(m, x); if (lane == 0) x[64] = 1; }}"),
    (39, f"{HEAD}, uint l [[thread_index_in_threadgroup]]) {{ threadgroup float t[64]; t[l] = x[l]; threadgroup_barrier(mem_flags::mem_device); x[l] = t[63 - l]; }}", "does not order 't'",
     f"{HEAD}, uint l [[thread_index_in_threadgroup]]) {{ threadgroup float t[64]; t[l] = x[l]; threadgroup_barrier(mem_flags::mem_threadgroup); x[l] = t[63 - l]; threadgroup_barrier(mem_flags::mem_none); t[l] = 1; }}"),
    (40, f"struct Sum {{ float value; }};\n{HEAD}) {{ threadgroup Sum sums[8200]; }}", "'f' declares 32800 bytes", f"struct Sum {{ float value; static constant int limit = 2; float twice() thread const {{ return 2 * value; }} }};\n{HEAD}) {{ threadgroup Sum sums[8190]; }}"),
    (40, f"{HEAD}) {{ threadgroup float4 a[16][128]; threadgroup half b[2]; }}", "'f' declares 32772 bytes of threadgroup memory", f"constant int N = 128;\n{HEAD}) {{ threadgroup float4 a[16][N]; }}"),
    (42, "bool g(float v) { return isnan(v); }", "'isnan' may be folded away", "bool isnan(float v) { return as_type<uint>(v) > 0x7f800000u; } bool g(float v) { return isnan(v); }"),
    (42, "bool g(float v) { return v == -INFINITY; }", "comparison with INFINITY", "float g(float v) { float m = -INFINITY; return max(m, v); }"),
    (42, "bool g(float v) { return v != v; }", "'v != v' may be folded away", "bool g(int v, float w, float u) { return v != v || w != u; }"),
    (43, "float g(float x, float y) { return fmod(x, y); }", "no error bound", "float g(float x, float y) { return precise::fmod(x, y) + x - y * trunc(x / y); }"),
    (43, "float g(float x) { return pow(-2.0, x); }", "'pow' of -2 is undefined under fast math", "float g(float x) { return pow(2.0, x) + pow(x, 0.0) + precise::pow(-2.0, x); }"),
    (43, "float g(float x) { return atan2(x, 0.0f); }", "'atan2' of 0 is undefined", "float g(float x) { return atan2(x, 1.0f) + atan2(x, x); }"),
    (43, "float g() { return log(-1.0) + 2; }", "-1 is outside the domain of 'log'", "float g(float x) { return log(1.0) + sqrt(0.0) + log(-x) + asin(0.5); }"),
    (58, f"{HEAD}, {LANE}) {{ float v = x[l], r = 0; while (true) {{ if (v == simd_min(v)) {{ r = simd_sum(1.0f); break; }} }} x[l] = r; }}", "'simd_sum' on the way out of a loop that the threads of a simdgroup leave in different turns, by the break in line",
     f"{HEAD}, {LANE}) {{ float v = x[l], r = 0; while (true) {{ float m = simd_min(v); if (m > 3) {{ r = simd_sum(1.0f); break; }} v += 1; }} x[l] = r; }}"),
    (58, f"{HEAD}, {GRID}, constant uint& n) {{ uint k = uint(x[i]) & 7; for (uint j = 0; j < n; j++) {{ if (k != j) {{ x[i] = 1; }} else {{ x[i] = simd_max(2.0f); return; }} }} }}", "'simd_max' on the way out",
     f"{HEAD}, {GRID}, constant uint& n) {{ uint k = uint(x[i]); k = simd_min(k); for (uint j = 0; j < n; j++) {{ if (k != j) {{ x[i] = 1; }} else {{ x[i] = simd_max(2.0f); return; }} }} }}"),
    (58, f"uint those() {{ return simd_sum(1u); }}\n{HEAD}, {LANE}, constant uint& n) {{ for (uint j = l; j < n; j += 32) {{ if (j * j > n) {{ if (n > 3) {{ x[l] = those(); break; }} }} }} }}", "'those' on the way out",
     f"uint those() {{ return simd_sum(1u); }}\n{HEAD}, {LANE}, constant uint& n) {{ for (uint j = l; j < n; j += 32) {{ uint m = those(); if (j * j > n) {{ if (n > 3) {{ x[l] = m; break; }} }} }} x[l] = those(); }}"),
    (58, f"{HEAD}, {INDEX}) {{ for (uint j = 0; j < 256; j += 16) {{ if (t - j == 16 || t == j) {{ x[t] = simd_sum(1.0f); break; }} }} }}", "'simd_sum' on the way out",
     f"{HEAD}, {INDEX}) {{ for (uint j = 0; j < 256; j += 16) {{ if (t / 32 == j) {{ x[t] = simd_sum(1.0f); break; }} if (t == 3) {{ x[t] = simd_sum(2.0f); return; }} }} }}"),
    (58, f"{HEAD}, {LANE}, uint2 g [[thread_position_in_grid]], constant uint& n) {{ float v = x[g.x]; for (uint j = 0; j < n; j++) {{ if (v > j) {{ x[l] = simd_or(l); break; }} }} }}", "'simd_or' on the way out",
     f"{HEAD}, {LANE}, uint2 g [[thread_position_in_grid]], constant uint& n) {{ float v = x[g.y]; for (uint j = 0; j < n; j++) {{ if (v > j || x[g.y + j] > 3) {{ x[l] = simd_or(l); break; }} }} }}"),
    (58, f"{HEAD}, {LANE}, constant uint& n) {{ float v = x[l]; for (uint j = 0; j < n; j++) {{ if (v > j) {{ while (j > n) {{ x[l] = simd_min(v); }} break; }} }} }}", "'simd_min' on the way out",
     f"{HEAD}, {LANE}, constant uint& n) {{ float v = x[l]; for (uint j = 0; j < n; j++) {{ if (v > j) {{ while (true) {{ x[l] = simd_min(v); break; }} switch (n) {{ case 3: x[l] = simd_max(v); break; }} }} }} if (v > 3) {{ x[l] = simd_sum(v); return; }} }}"),
    (58, f"{HEAD}, {LANE}, constant uint& n) {{ float v = x[l]; do {{ v *= 2; if (v > n) return void(x[l] = simd_sum(v)); }} while (v > 0); }}", "by the return in line",
     f"{HEAD}, {LANE}, constant uint& n) {{ float v = x[l]; do {{ v *= 2; if (simd_any(v > n)) return void(x[l] = simd_sum(v)); }} while (v > 0); }}"),
    (59, f"{HEAD}) {{ float sum; for (int k = 0; k < 4; k++) sum += x[k]; x[0] = sum; }}", "variable 'sum' is uninitialized when used here",
     f"{HEAD}) {{ float sum; for (int k = 0; k < 4; k++) sum = x[k]; x[0] = sum; }}"),
    (52, "float g(float x) { if (x > 0) return 1; }", "does not return a value in all control paths",
     "float g(float x) { if (x > 0) return 1; else { return 2; } }\nint h(int n) { for (;;) { if (n > 9) return n; n *= 2; } }\nint k(int n) { switch (n) { case 0: return 1; default: return 2; } }"),
    (52, "template <typename T> T g(T x) { while (x > 1) { return x; } }", "does not return a value",
     "template <int N> int g() { if (N > 0) { return N; } else return 0; }\nstruct S { int n; S(int m) : n(m) {} void set(int m) { n = m; } operator int() const { return n; } int get() const { do { return n; } while (n); } };"),
    (52, "auto g(int n) -> int { n++; }", "does not return a value", "auto g(int n) -> int { return n; }\nauto h(thread int& n) -> void { n++; }\nauto k(thread int& n) { n++; }"),
    (52, "int g(int n) { for (int k = 0; k < n; k++) return k; }", "does not return a value", "int g(int n) { while (true) { if (n++ > 9) return n; } }\nint f(int n) { for (;;) switch (n++) { case 3: break; case 4: return n; } }\nint h(int n) { if (n) [[likely]] { return 1; } else { return 2; } }\nint k(int n) { _Pragma(\"clang loop unroll(disable)\") while (true) { if (n++ > 9) return n; } }"),
    (53, "template <int N> int g(int n) { if constexpr (N > 0) return n; else return 0; }", "constexpr if is a C++17 extension", "template <int N> int g(int n) { if (N > 0) return n; else return 0; }"),
    (51, f"{HEAD}, {GRID}) {{ x[i] = 1; }}", "'x' is written without a bounds check of 'i'", f"{HEAD}, constant uint& n, {GRID}) {{ if (i >= n) return; x[i] = 1; }}"),
    (51, f"{HEAD}, {GRID}) {{ device float* p = x + i; *p = 1; }}", "'p' is written without a bounds check", f"{HEAD}, constant uint& n, {GRID}) {{ if (i >= n) return; device float* p = x + i; *p++ = 1; p[0] = 2; }}"),
    (51, f"struct S {{ float4 v; }};\nkernel void f(device S* x, {GRID}) {{ device S* p = &x[i]; p->v.x = 1; }}", "'p' is written without a bounds check",
     f"struct S {{ float4 v; }};\nkernel void f(device S* x, {GRID}) {{ device S* p = x; uint j = i; j = 2; p->v.x = x[i].v.y; }}"),
    (51, f"{HEAD}, {GRID}) {{ uint j = i * 2; x[j + 1] += 1; }}", "without a bounds check", f"{HEAD}, {GRID}) {{ uint j = min(i, 7u); x[j] += 1; }}"),
]  # fmt: skip

# Rule, source, the words, the version that still refuses it, the version that does not.
VERSIONS = [
    (4, "device int counter;", "'device' needs Metal 3.2", "3.1", "3.2"),
    (9, "float g(bfloat b) { return b; }", "needs Metal 3.1", "3.0", "3.1"),
    (10, "int g() { auto h = [](int n) { return n; }; return h(1); }", "needs Metal 3.2", "3.1", "3.2"),
    (11, "int g(int n) { return n < 1 ? 0 : g(n - 1); }", "needs Metal 2.4", "2.3", "2.4"),
    (12, "void g(float (*h)(float)) {}", "pointers to functions are not allowed", "2.2", "2.3"),
    (13, "void g() noexcept {}", "'noexcept'", "2.4", "3.0"),
    (14, "struct A {};\nstruct B : A {};", "derived classes", "2.4", "3.0"),
    (21, "kernel void f(device ulong* x) {}", "type 'ulong' cannot be used in buffer pointee type", "2.2", "2.3"),
    (21, "struct P { int a; ulong n; };\nkernel void f(device P* x) {}", "type 'ulong' cannot be used in buffer pointee type", "2.2", "2.3"),
    (9, "void g() { int bfloat4 = 1; bfloat b; }", "unknown type name 'bfloat'", "3.0", "3.1"),
    (35, "void g(device atomic<float>* a) {}", "needs Metal 3.0", "2.4", "3.0"),
    (26, "uint i [[thread_position_in_grid]];", "macos-metal3.1", "3.0", "3.1"),
    (4, "uint i;", "must reside in constant address space", "3.2", None),
    (26, "[[kernel]] void f(device float* x) {}", "'kernel' attribute requires Metal language standard macos-metal2.3 or higher", "2.2", "2.3"),
    (26, f"[[max_total_threads_per_threadgroup(64)]] {HEAD}) {{}}", "macos-metal2.1", "2.0", "2.1"),
    (26, "template <typename T> kernel void f(device T* x) {}\n" + 'template [[host_name("a")]] kernel void f<float>(device float*);', "macos-metal2.2", "2.1", "2.2"),
    (35, "void g(device atomic_float* a) {}", "unknown type name 'atomic_float': it needs Metal 3.0", "2.4", "3.0"),
    (35, "void g(device atomic<int>* a) {}", "needs Metal 2.4", "2.3", "2.4"),
    (37, "float g(float v) { return simd_shuffle_and_fill_down(v, v, 1); }", "needs Metal 2.4", "2.3", "2.4"),
    (38, "void g() { simdgroup_matrix<bfloat, 8, 8> m; }", "8x8 of half or float", "3.0", "3.1"),
    (38, "void g() { simdgroup_half8x8 m; }", "needs Metal 2.3", "2.2", "2.3"),
    (45, "void g() { os_log_default.log(\"x\"); }", "needs Metal 3.2", "3.1", "3.2"),
]  # fmt: skip


def ids(value: object) -> str:
    return f"rule{value}" if isinstance(value, int) else ""


@pytest.mark.parametrize(("rule", "broken", "words", "near_miss"), CASES, ids=ids)
def test_rule(rule: int, broken: str, words: str, near_miss: str) -> None:
    check(rule, broken, words, near_miss, "error")


@pytest.mark.parametrize(("rule", "broken", "words", "near_miss"), WARNINGS, ids=ids)
def test_warning(rule: int, broken: str, words: str, near_miss: str) -> None:
    check(rule, broken, words, near_miss, "warning")


def check(rule: int, broken: str, words: str, near_miss: str, severity: str) -> None:
    metalcompute = rule in METALCOMPUTE
    everything = lint(LIBRARY + broken, filename="k.metal", metalcompute=metalcompute)
    found = [finding for finding in everything if finding.rule == rule]
    assert found, everything
    assert words in found[0].message
    assert (found[0].file, found[0].severity) == ("k.metal", severity)
    assert found[-1].line == 2 + len(broken.split("\n"))
    assert found[0].column is not None
    assert lint(LIBRARY + near_miss, metalcompute=metalcompute) == []


@pytest.mark.parametrize(("rule", "source", "words", "refused", "accepted"), VERSIONS, ids=ids)
def test_version(rule: int, source: str, words: str, refused: str, accepted: str | None) -> None:
    found = [f for f in lint(LIBRARY + source, language_version=refused) if f.rule == rule and f.severity == "error"]
    assert found and words in found[0].message
    if accepted is not None:
        assert [f for f in lint(LIBRARY + source, language_version=accepted) if f.rule == rule] == []


@pytest.mark.parametrize("include", ["#include <metal_stdlib>\n", "#import <metal_math>\n"])
def test_names_of_the_library_need_their_namespace(include: str) -> None:
    kernel = "kernel void f(device float* x) {{ x[0] = {}exp(x[0]); }}"
    found = lint(include + kernel.format(""), filename="k.metal")
    assert [(f.rule, f.message) for f in found] == [
        (46, "use of undeclared identifier 'exp'; did you mean 'metal::exp'?")
    ]
    assert lint(include + kernel.format("metal::")) == []
    assert lint(include + "using metal::exp;\n" + kernel.format("")) == []
    assert lint(include + "using ::metal::exp;\n" + kernel.format("")) == []
    for opened in ("namespace m = metal;\n", "using metal::atomic_uint;\n", "using namespace metal;\n"):
        prefix = "m::" if opened[0] == "n" else ""
        assert lint(include + opened + f"kernel void f(device {prefix}atomic_uint* x) {{}}") == []
    for name in ("atomic_uint", "float4x4", "half2x3"):
        assert [f.rule for f in lint(include + f"kernel void f(device {name}* x) {{}}")] == [46]
        assert lint(include + f"kernel void f(device metal::{name}* x) {{}}") == []
    assert [f.rule for f in lint(include + kernel.format("fast::"))] == [46]
    assert lint(include + kernel.format("metal::precise::")) == []
    assert lint(include + "namespace precise = metal::fast;\n" + kernel.format("precise::")) == []
    assert lint(include + "float exp(float x) { return x; }\n" + kernel.format("")) == []
    found_by_arguments = (
        "kernel void f(device metal::atomic_uint* n, device float* x) {{\n"
        "  metal::simdgroup_float8x8 m; simdgroup_load(m, x, 8);\n"
        "  threadgroup_barrier({0}mem_flags::mem_none); simdgroup_store(m, x, 8);\n"
        "  atomic_store_explicit(n, 0u, {0}memory_order_relaxed); }}"
    )
    assert lint(include + found_by_arguments.format("metal::")) == []
    assert [f.line for f in lint(include + found_by_arguments.format("")) if f.rule == 46] == [4, 5]


def test_safe_math_silences_the_warnings_about_fast_math() -> None:
    source = "bool g(float v) { return isnan(v); }"
    assert lint("#pragma METAL fp math_mode(safe)\n" + LIBRARY + source) == []


def test_rules_of_metalcompute_are_silent_without_it() -> None:
    silent = METALCOMPUTE - {41}
    broken = [(rule, source) for rule, source, _, _ in CASES + WARNINGS if rule in silent]
    assert {rule for rule, _ in broken} == silent
    for rule, source in broken:
        assert rule not in [finding.rule for finding in lint(LIBRARY + source)], source


@pytest.mark.parametrize(("metalcompute", "severity"), [(False, "warning"), (True, "error")])
def test_idle_lanes_are_an_error_to_metalcompute_only(metalcompute: bool, severity: str) -> None:
    source = f"[[max_total_threads_per_threadgroup(48)]] {HEAD}) {{}}"
    found = lint(LIBRARY + source, metalcompute=metalcompute)
    assert [(finding.rule, finding.severity) for finding in found] == [(41, severity)]


@pytest.mark.parametrize("between", range(3))
def test_a_comparison_is_no_template_of_what_stands_far_before_it(between: int) -> None:
    """What begins the template was looked for a hundred tokens back at most, and then taken as found, here at uint."""
    declared = "".join(f"uint v{k};" for k in range(50)) + ";" * between
    source = f"{HEAD}) {{ {declared} uint d = 1; device float* w = x; bool q = ((d != 2) || (d > *w)); x[0] = q; }}"
    assert 1 not in [finding.rule for finding in lint(LIBRARY + source)]


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(ValueError, match=r"language_version is '2.9' but must be one of 2.0, "):
        lint("", language_version="2.9")


def test_every_rule_has_a_case() -> None:
    tested = {case[0] for case in (*CASES, *WARNINGS, *VERSIONS)} | {46}
    assert tested == set(RULES) == set(range(1, 60))


def test_every_rule_says_why_in_one_sentence() -> None:
    for number, rule in RULES.items():
        assert rule.number == number
        assert rule.why.endswith(".") and len(rule.why) > 20
    assert len({rule.name for rule in RULES.values()}) == len(RULES)


def test_source_that_cannot_be_read_is_rule_zero() -> None:
    found = lint("kernel void f(device float* x) {", filename="k.metal")
    assert [(finding.rule, finding.line, finding.column) for finding in found] == [(0, 1, 32)]
    assert str(found[0]) == "k.metal:1:32: error: expected '}' to match this '{'"


def test_sources_with_textures_keep_the_rules() -> None:
    """Metal's own templates, which nothing here declares, declare variables."""
    sources = (
        "constexpr sampler s(coord::normalized, mag_filter::linear);\n"
        "kernel void f(texture2d<half, access::sample> in [[texture(0)]], texture2d_array<half, access::write> out "
        "[[texture(1)]], uint2 p [[thread_position_in_grid]]) {\n"
        "    if (p.x >= out.get_width()) return;\n"
        "    half4 c = in.sample(s, float2(p), level(0)) + in.sample(s, float2(p), bias(1));\n"
        "    texture2d<half> same = in;\n"
        "    out.write(c + same.read(p), p, 0);\n}",
        "template <typename T> T first(texture2d<T> t) { return t.read(uint2(0)).x; }\n"
        "struct All { array<texture2d<float>, 4> all [[id(0)]]; texture3d<float> v [[id(4)]]; };\n"
        "kernel void f(constant All& a [[buffer(0)]], texture_buffer<float> b [[texture(0)]], device float* x) {\n"
        "    x[0] = first(a.all[1]) + a.v.read(uint3(0)).x + b.read(0u).x;\n}",
        "#include <metal_raytracing>\nusing namespace raytracing;\n"
        "kernel void f(primitive_acceleration_structure a [[buffer(0)]], device float* x [[buffer(1)]]) {\n"
        "    ray r(float3(0), float3(0, 0, 1));\n"
        "    intersector<triangle_data> search;\n"
        "    intersection_result<triangle_data> hit = search.intersect(r, a);\n"
        "    x[0] = hit.distance;\n}",
    )
    for source in sources:
        assert [*map(str, lint(LIBRARY + source, language_version="3.1"))] == []
    misspelt = lint(LIBRARY + sources[0].replace("(c + ", "(c + bias + ").replace("same.read", "sume.read"))
    assert [each.message for each in misspelt] == [
        "use of undeclared identifier 'bias'", "use of undeclared identifier 'sume'; did you mean 'same'?"
    ]  # fmt: skip
