"""References to constant objects of a thread: what has their addresses, and what sees them written to meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.msl import translate

HEADER = "#include <metal_stdlib>\nusing namespace metal;\nstruct S { float a, b; float row[2]; };\n"

# Declarations; what is done with S s = {1, 2, {3, 4}} and its copy t; and what y has then.
GIVEN = {
    "a pointer": ("const thread float* f(const thread S& s) { return &s.b; }",
                  "auto p = f(s); s.b = 7; y[0] = *p;", 7),
    "a reference": ("const thread float& f(const thread S& s) { return s.b; }",
                    "const thread float& r = f(s); s.b = 7; y[0] = r;", 7),
    "names for their types": (
        "typedef const thread float* P; using R = const thread float&;\n"
        "P f(const thread S& s) { return &s.a; } R g(const thread S& s) { return s.b; }",
        "P p = f(s); R r = g(s); s = {5, 6}; y[0] = 10 * *p + r;", 56),
    "a deduced type": ("auto f(const thread S& s) { return &s.b; } auto g(const thread S& s) { return s.row; }",
                       "auto p = f(s); auto q = g(s); s = {5, 6, {7, 8}}; y[0] = 10 * *p + q[1];", 68),
    "the type behind an arrow": ("auto f(const thread S& s) -> const thread S* { return &s; }",
                                 "auto p = f(s); s.b = 7; y[0] = p->b;", 7),
    "the larger of two": (
        "template <typename T> const thread T& f(const thread T& x, const thread T& y) { return x.b < y.b ? y : x; }",
        "t.b = 5; const thread S& r = f(s, t); t.b = 9; y[0] = r.b;", 9),
    "the larger of two numbers": (
        "const thread float* f(const thread float& x, const thread float& y) { return x < y ? &y : &x; }",
        "float v[3] = {1, 2, 3}; auto p = f(v[0], v[2]); v[2] = 9; y[0] = *p + (p - v);", 11),
    "what another function gives": (
        "const thread S* g(const thread S& s) { return &s; }\nauto f(const thread S& s) { return g(s); }",
        "auto p = f(s); s.b = 7; y[0] = p->b;", 7),
    "members": (
        "struct M { float c; const thread float* f(const thread S& s) const thread { return &s.b; }\n"
        "static const thread float& g(const thread S& s) { return s.a; } };",
        "M m; auto p = m.f(s); const thread float& r = M::g(s); s = {5, 6}; y[0] = 10 * *p + r;", 65),
    "an object": ("struct View { const thread S* p; }; View f(const thread S& s) { View v; v.p = &s; return v; }",
                  "View v = f(s); s.b = 7; y[0] = v.p->b;", 7),
    "a constructor": ("struct View { const thread float* p; View(const thread S& s) : p(&s.b) {} };",
                      "View v(s); s.b = 7; y[0] = *v.p;", 7),
    "the body of a constructor": ("struct View { const thread S* p; View(const thread S& s) thread { p = &s; } };",
                                  "View v(s); s.b = 7; y[0] = v.p->b;", 7),
    "a constructor of a reference": (
        "template <typename T> struct View { const thread T& r; View(const thread T& s) : r(s) {} };",
        "View<S> v(s); thread View<S>* p = &v; s.b = 7; y[0] = v.r.b + p->r.a - 1;", 7),
    "a comparison": (
        "bool f(const thread S& s, const thread S& t) { return &s == &t; }\n"
        "bool g(const thread S& s, const thread S* p) { return p != &s; }",
        "y[0] = 1000 * f(s, s) + 100 * f(s, t) + 10 * g(s, &s) + g(s, &t);", 1001),
}  # fmt: skip

WRITTEN = {
    "through a pointer": (
        "struct Holder { thread S* p; void set(float v) const { p->b = v; } };\n"
        "float f(const thread S& s, Holder h) { h.set(5); return s.b; }",
        "Holder h{&s}; y[0] = f(s, h);", 5),
    "through what its object holds": (
        "struct Writer { thread S* p; float f(const thread S& s) const { p->b = 5; return s.b; } };",
        "Writer w{&s}; y[0] = w.f(s);", 5),
    "through a pointer of a member": (
        "struct Inner { thread float* p; }; struct Holder { float x; Inner inner; };\n"
        "void set(thread float& x) { x = 5; }\n"
        "float f(const thread S& s, const thread Holder& h) { set(*h.inner.p); return s.b; }",
        "Holder h{1, {&s.b}}; y[0] = f(s, h);", 5),
}  # fmt: skip

READ = {
    "beside a pointer that is only read": (
        "float get(const thread S& s) { const thread float* p = &s.a; return p[0]; }\n"
        "template <typename T> T f(const thread T& s, const thread float* v)\n"
        "{ T r; r.a = get(s) * v[0]; r.b = get(s) * v[1]; return r; }\n"
        "S operator-(const thread S& s) { return S{-s.a, -s.b}; }",
        "S r = f(-s, s.row); y[0] = 10 * r.a + r.b;", -34),
    "temporary": (
        "template <typename T> const thread T& f(const thread T& x, const thread T& y) { return x.b < y.b ? y : x; }",
        "y[0] = f(S{1, 2}, S{3, 4}).a;", 3),
}  # fmt: skip

CLASS = """struct C {
    float v;
    C() = default;
    C(float a) : v(a) {}
    void set(float a) thread { v = a; }
    float twice() const thread { set_to(v); return 2 * v; }
    static void set_to(float) {}
    C operator^(const thread C& o) const thread { C r = *this; r.set(v + o.twice()); return r; }
    thread C& operator-=(const thread C& o) thread { v -= o.v; v -= o.v; return *this; }
    C made() { set(v + 1); return *this; }
};
C copied(C o) { return o; }
struct D { float v; thread D& operator=(const thread D& o) thread { v = 2 * o.v; return *this; } };
D d(float v) { return D{v}; }
float read(const thread C& o, thread float& n) { n += o.v; return n; }
float read(const device C& o, thread float& n) { n -= o.v; return n; }
template <typename T> const thread T& least(const thread T& x, const thread T& y) { return y.v < x.v ? y : x; }
struct E { float v; float kept(float n) const thread; E less(const thread E& o) const thread; };
float E::kept(float n) const thread { const thread float* p = &v; return *p + n; }
E E::less(const thread E& o) const thread { E r = *this; r.v -= o.kept(0); return r; }
template <typename T> struct Of { static T made(float v) { return T(v); } };
const thread C& most(const thread C& x, const thread C& y) { return y.v < x.v ? x : y; }
"""

VECTORS = """struct V {
    float x, y;
    thread V& operator+=(const thread V& o) thread { x += o.x; y += o.y; return *this; }
    const thread float& at(int k) const thread { return k ? y : x; }
};
V operator+(const thread V& a, const thread V& b) { V r = a; r += b; return r; }
V operator-(const thread V& a) { return V{-a.x, -a.y}; }
V operator-(const thread V& a, const thread V& b) { return a + -b; }
V of(float x) { return V{x, 2 * x}; }
template <typename T> struct Held { T v; static Held of(T v) { return Held{v}; } };
"""

CHAINS = {
    "operators by operators that write": (
        "V a = of(1), b = of(3); a += b += V{1, 1}; a += a - b - of(2); y[0] = 10 * a.x + b.y;", 47),
    "parts of temporary objects": ("V a = of(1); y[0] = (a + of(3)).at(1) + of(5).at(0) + (a += a).at(1);", 17),
    "references that keep temporary objects": (
        "const thread V& a = of(1); thread const Held<V>& h = Held<V>::of(a + of(2)); const thread float& n = 10;"
        "V b = of(7); const thread V& c = b; b.x = 8; y[0] = a.y + h.v.at(0) + n + c.x;", 23),
}  # fmt: skip

TEMPORARY = {
    "operators that write": (
        "C a(10), b(1); a -= copied(b); a -= 1; (a -= C(0.5f)).set(a.v + 3); a -= b; y[0] = a.v;", 6),
    "operators that read what they write": ("C a(10); a -= a; a -= copied(a); y[0] = a.v + 4;", 4),
    "operators of temporary objects": ("C a(1); y[0] = (C(2) ^ a ^ copied(a)).twice();", 12),
    "assignments": (
        "D p = {1}, q; q = p; p = d(q.v); q = p = d(5); D r = q; r = d(1); y[0] = 100 * p.v + q.v + r.v;", 1022),
    "functions for other memory, too": (
        "float n = 1; device C* z = (device C*)y; z[0] = C(7); y[0] = read(C(9), n) + read(*z, n);", 13),
    "the lesser and the larger": (
        "C a(3); y[0] = least(C(5), a).twice() + 10 * most(a, C(4)).v + 100 * least(copied(a), C(2)).v;", 246),
    "members defined outside": ("E e = {5}; y[0] = e.less(E{2}).less(e).less(e.less(e)).kept(1);", -1),
    "what members make": ("y[0] = C(4).made().v + C(1).twice();", 7),
    "arms of choices": (
        "C a(3), b(4); bool p = y[0] > 50; a = p ? a : (a ^ b) ^ a; b = p ? static_cast<C>(9) : b;"
        "b = p ? b : Of<C>::made(b.v); y[0] = (p ? (a ^ b) : b).v + a.v;", 21),
}  # fmt: skip

CASES = {
    **GIVEN, **WRITTEN, **READ, **{case: (CLASS, body, expected) for case, (body, expected) in TEMPORARY.items()},
    **{case: (VECTORS, body, expected) for case, (body, expected) in CHAINS.items()},
}  # fmt: skip


def kernels() -> str:
    return "".join(
        f"namespace n{k} {{\n{declarations}\n"
        f"kernel void k(device float* y) {{ S s = {{1, 2, {{3, 4}}}}, t = s; {body} }}\n}}\n"
        for k, (declarations, body, _) in enumerate(CASES.values())
    )


DERIVED = """
template <typename T> struct Base {
    float w;
    float twice() const thread { return 2 * static_cast<const thread T&>(*this).get(); }
};
struct Derived : Base<Derived> { float v; float get() const { return v + w; } };
struct Plain { float a; float first() const thread { return a; } };
struct More : Plain { float b; };
template <typename T> float call(const thread Base<T>& b) { return b.twice(); }
float last(const thread Plain& p) { const thread More& m = static_cast<const thread More&>(p); return m.b + p.first(); }
struct N { float a; };
template <typename T> struct Tag {};
struct OfN : Tag<N> {};
float get(const thread N& n) { const thread float* p = &n.a; return *p; }
N operator-(const thread N& n) { return N{-get(n)}; }
template <typename T> T scaled(const thread T& n, const thread float* s) { return T{get(n) * s[1]}; }
kernel void k(device float* y) {
    Derived d;
    d.v = y[0], d.w = 1;
    More m;
    m.a = 3, m.b = 4;
    y[0] = call(d);
    y[1] = last(m);
    float s[2] = {2, 3};
    y[2] = scaled(-N{4}, s).a;
}"""


def test_references_to_bases_are_to_the_whole_object() -> None:
    y = np.float32([5, 0, 0])
    mg.compile(HEADER + DERIVED, language_version="3.2").function("k")(1, y)
    assert y.tolist() == [12, 7, -12]


CAPTURING = """
template <typename F, typename T> T called(F f, const thread T& s) { f(5); return s; }
template <typename F> float also_called(const thread F& f, const thread S& s) { f(7); return s.b; }
kernel void k(device float* y) {
    S s{1, 2};
    float n = 3;
    auto set = [&s](float v) { s.b = v; };
    y[0] = called([&](float v) { n = v; }, n);
    y[1] = also_called(set, s) + called(set, s).b;
    y[2] = called([](float) {}, n + 1);
}"""


def test_references_see_what_lambda_expressions_write() -> None:
    y = np.zeros(3, np.float32)
    mg.compile(HEADER + CAPTURING, language_version="3.2").function("k")(1, y)
    assert y.tolist() == [5, 12, 6]


@pytest.fixture(scope="module")
def library() -> mg.KernelLibrary:
    return mg.compile(HEADER + kernels())


@pytest.mark.parametrize("case", CASES)
def test_references_are_to_the_objects_themselves(library: mg.KernelLibrary, case: str) -> None:
    y = np.zeros(1, np.float32)
    library.function(f"n{[*CASES].index(case)}::k")(1, y)
    assert y[0] == CASES[case][2]


@pytest.mark.parametrize("case", ["a constructor of a reference", "an object", "members defined outside"])
def test_checked_runs_find_nothing(library: mg.KernelLibrary, case: str) -> None:
    assert not library.function(f"n{[*CASES].index(case)}::k").check(1, np.zeros(1, np.float32))


def test_they_compile_for_cuda() -> None:
    compile_for_cuda(translate(HEADER + kernels(), "cuda").source, "kept.metal")
