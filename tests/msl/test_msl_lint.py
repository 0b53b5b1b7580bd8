"""Apple's rules: what breaks one is reported with the rule's number and place, and its nearest neighbour is not."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

import pytest
from metal_runner import LIBRARY

from mpsgrad.msl.lint import RULES, lint

HEAD = "kernel void f(device float* x [[buffer(0)]]"


def findings(source: str) -> list[tuple[int, int]]:
    return [(found.rule, found.line - 2) for found in lint(LIBRARY + source, filename="k.metal")]


# Rule, source that breaks it on its last line, Apple's words, and the near miss that keeps it.
CASES = [
    (1, "float g(float* p) { return *p; }", "pointer type must have explicit address space", "float g(thread float* p) { return *p; }"),
    (1, "struct S { int n; };\nint g(S* p) { return p->n; }", "pointer type", "struct S { int n; };\nint g(device S* p) { return p->n; }"),
    (1, f"{HEAD}) {{ float* p = x; }}", "pointer type", f"{HEAD}) {{ device float* p = x; float y = 2 * x[0] * p[1]; }}"),
    (1, f"{HEAD}) {{ x[0] = *(int*)x; }}", "pointer type", f"{HEAD}) {{ x[0] = *(device int*)x; }}"),
    (1, "template <typename T> T g(T* p) { return *p; }", "pointer type", "template <typename T> T g(const device T* p) { return *p * sizeof(T); }"),
    (2, "void g(float& x) { x = 1; }", "reference type must have explicit address space", "void g(thread float& x) { x = 1; }"),
    (2, "struct S { int n; };\nint g(const S& s) { return s.n; }", "reference type", "struct S { int n; };\nint g(const thread S& s) { return s.n & 3; }"),
    (4, "int counter = 0;", "program scope variable must reside in constant address space", "constant int counter = 0;"),
    (4, "constexpr float k[2] = {1, 2};", "program scope variable", "static constant constexpr float k[2] = {1, 2};"),
    (5, "constant int limit;", "must be initialized", "constant int limit = 3;"),
    (6, "int g() { static int n = 0; return n; }", "cannot be declared static", "static int g() { int n = 0; return n; }"),
    (7, "void g() { threadgroup float t[4]; t[0] = 1; }", "automatic variable qualified", "void g(threadgroup float* t) { threadgroup float* u = t; u[0] = 1; }"),
    (8, "float g(double d) { return d; }", "'double' is not supported in Metal", "float g(float doubled) { return doubled; }"),
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
    (37, "float g(float v) { return simd_shuffle_and_fill_down(v, v, 1); }", "needs Metal 2.4", "float g(float v) { return simd_shuffle_down(v, 1); }"),
    (41, f"[[max_total_threads_per_threadgroup(48)]] {HEAD}) {{}}", "multiples of 32", f"[[max_total_threads_per_threadgroup(96)]] {HEAD}) {{}}"),
    (41, f"[[max_total_threads_per_threadgroup(16)]] {HEAD}) {{}}", "multiples of 32", f"[[max_total_threads_per_threadgroup(32)]] {HEAD}) {{}}"),
    (41, f"[[max_total_threads_per_threadgroup(1056)]] {HEAD}) {{}}", "must be <= 1024", f"[[max_total_threads_per_threadgroup(1024)]] {HEAD}) {{}}"),
    (45, "float g(float x) { return erf(x); }", "use of undeclared identifier 'erf'", "float erf(float x) { return x; } float g(float x) { return erf(x); }"),
    (45, "float g(float x) { return sqrtf(x); }", "use of undeclared identifier 'sqrtf'", "float g(float x) { return sqrt(x); }"),
    (50, f"{HEAD}, threadgroup float* t [[threadgroup(0)]]) {{}}", "metalcompute cannot pass", f"{HEAD}) {{ threadgroup float t[4]; t[0] = 1; }}"),
    (50, "constant bool flag [[function_constant(0)]];", "metalcompute cannot pass", "constant bool flag = true;"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "broken", "words", "near_miss"), CASES, ids=lambda v: f"rule{v}" if isinstance(v, int) else ""
)
def test_rule(rule: int, broken: str, words: str, near_miss: str) -> None:
    found = [finding for finding in lint(LIBRARY + broken, filename="k.metal") if finding.rule == rule]
    assert found, lint(LIBRARY + broken)
    assert words in found[0].message
    assert (found[0].file, found[0].severity) == ("k.metal", "error")
    assert found[0].line == 2 + len(broken.split("\n"))
    assert found[0].column is not None
    assert lint(LIBRARY + near_miss) == []


def test_every_rule_has_a_case() -> None:
    assert {case[0] for case in CASES} == set(RULES)


def test_source_that_cannot_be_read_is_rule_zero() -> None:
    found = lint("kernel void f(device float* x) {", filename="k.metal")
    assert [(finding.rule, finding.line, finding.column) for finding in found] == [(0, 1, 32)]
    assert str(found[0]) == "k.metal:1:32: error: expected '}' to match this '{'"
