"""Defects in what is a thread's own: each is found at its line, and the same code without it has none."""

# Code is easier to read on lines of its own length.
# ruff: noqa: E501
from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.runtime.findings import KernelFinding

pytestmark = pytest.mark.usefixtures("opencl_device")


class Defect(NamedTuple):
    """The body of a ``float of(device const float* x, uint n)``, where ``n`` is 4 and ``x`` has eight elements. Its parts
    that make the defect and that put it right are ``<<wrong||right>>``, and ``says`` is found in the line of the first;
    ``before`` stands before the function."""

    name: str
    body: str
    says: str
    before: str = ""


PAIR = "struct Pair { float a, b; };"
ONLY = f"{PAIR} Pair only(float v) {{ Pair p; p.a = v; return p; }}"
WRITES = "thread float& r = v[1]; r = 2; "
DEFECTS = [
    # Out of bounds.
    Defect("a pointer and an index", "float v[4] = {1, 2, 3, 4}; thread float* p = v; return p[<<n||n - 1>>];", "read of element 4 of 'v', which has 4 elements"),
    Defect("before the beginning", "float v[4] = {1, 2, 3, 4}; thread float* p = v + 2; p[1 - int(<<n||n - 1>>)] = 1; return p[0];", "write of element -1 of 'v', which has 4 elements"),
    Defect("a sum", "float v[4] = {1, 2, 3, 4}; thread const float* p = &v[2]; return *(p + <<n - 2||1>>);", "read of element 4 of 'v'"),
    Defect("a pointer that walks", "float v[4] = {1, 2, 3, 4}, s = 0; thread float* p = v; for (uint k = 0; k <<<=||<>> n; ++k) s += *p++; return s;", "read of element 4 of 'v'"),
    Defect("a pointer that walks back", "float v[4] = {1, 2, 3, 4}, s = 0; thread float* p = v + 4; while (p <<>=||>>> v<< + 0||>>) s += *--p; return s;", "read of element -1 of 'v'"),
    Defect("a function's pointer", "half v[4] = {1, 2, 3, 4}; return sum_of(v, n<< + 1||>>);", "", "template <typename T> T sum_of(thread const T* p, uint n) { T s = 0; for (uint k = 0; k < n; ++k) s += p[k]; return s; }"),
    Defect("a reference to an array", "float v[4] = {1, 2, 3, 4}; thread float (&all)[4] = v; return all[<<n||n - 1>>];", "read of element 4 of 'all', which has 4 elements"),
    Defect("an array in a struct", "Window w = {{1, 2, 3, 4}, 4}; thread float* p = w.values; return p[<<n + 1||n - 1>>];", "read of 4 bytes from byte 20 on of 'w', which has 20 bytes", "struct Window { float values[4]; uint count; };"),
    Defect("an array in a class", "Stack s; s.top = 0; for (uint k = 0; k < n; ++k) s.push(k); <<s.push(1)||s.top = 4>>; return s.top;", "", "struct Stack { uint values[4]; uint top; void push(uint v) { values[top++] = v; } };"),
    Defect("rows", "float2 v[3][2] = {}; thread float2* p = &v[0][0]; return p[n + <<2||1>>].x;", "read of element 6 of 'v', which has 6 elements"),
    Defect("a pointer to rows", "uint v[2][3] = {}; thread uint (*rows)[3] = v; return rows[<<n / 2||1>>][0];", "access of 12 bytes from byte 24 on of 'v', which has 24 bytes"),
    Defect("structs", "Entry v[4]; thread Entry* p = v; for (uint k = 0; k < n; ++k) (p + k<< + 1||>>)->key = k; return v[1].key;", "write of element 4 of 'v', which has 4 elements", "struct Entry { uint key, value; };"),
    Defect("an array of the library", "array<float, 4> v = {1, 2, 3, 4}; thread float* p = &v[0]; return p[<<n||n - 1>>];", "read of element 4 of 'v', which has 4 elements"),
    Defect("one variable", "float v = 1; thread float* p = &v; return p[n - <<3||4>>];", "read of element 1 of 'v', which has 1 element,"),
    Defect("a vector over the end", "float v[5] = {1, 2, 3, 4}; return (*(thread packed_float3*)(v + n - <<1||2>>)).x;", "read of 12 bytes from byte 12 on of 'v', which has 20 bytes"),
    Defect("bytes", "uchar v[6] = {1, 2, 3, 4}; thread uchar* p = v + n; thread uchar& last = p[<<2||1>>]; return last;", "access of element 6 of 'v'"),
    # Without a value.
    Defect("a loop that fills a part", "float v[4], s = 0; for (uint k = 0; k < n<< - 1||>>; ++k) v[k] = x[k]; for (uint k = 0; k < 4; ++k) { s += v[k]; } return s;", "element 3 of 'v' is read before it has a value"),
    Defect("a function that fills a part", "float v[4]; fill(v, n<< - 1||>>); thread float* p = v; return p[3];", "element 3 of 'v' is read before it has a value", "void fill(thread float* p, uint n) { while (n-- > 0) *p++ = n; }"),
    Defect("a branch", "float v; if (x[0] <<>||<>> 1.5f) v = 2; return v * 2;", "'v' is read before it has a value"),
    Defect("a switch", "uint v; switch (n) { case 3: v = 1; break; <<||default: v = 3;>> } return v;", "'v' is read before it has a value"),
    Defect("sums from nothing", "float v[2]; <<||v[0] = v[1] = 0;>> for (uint k = 0; k < n; ++k) { v[k & 1] += x[k]; } return v[0];", "element 0 of 'v' is read before it has a value"),
    Defect("components", "float4 v; v.xy = 1; <<||v.zw = v.yx;>> return v.x + v.z;", "'v.z' is read before it has a value"),
    Defect("a vector of a table", "half3 v[2][2]; for (uint k = 0; k <<<||<=>> n; k += 2) v[k / 4][k / 2 % 2] = v[1][1] = half3(k); <<||v[0][1] = v[1][0] = 1;>> return v[1][0].y;", "element 2 of 'v' is read before it has a value"),
    Defect("flags", "bool v[4]; for (uint k = 0; k < n; k += <<2||1>>) v[k] = true; return v[0] && v[1];", "element 1 of 'v' is read before it has a value"),
    Defect("a loop of no turns", "int v; for (uint k = n; k < <<4||5>>; ++k) { v = k; } return max(v, 1);", "'v' is read before it has a value"),
    Defect("words of an array of the library", "array<uint, 4> v; for (uint k = 0; k < n<< - 1||>>; ++k) v[k] = k; return as_type<float>(v[3]);", "element 3 of 'v' is read before it has a value"),
    Defect("rows that a function gives values", "float v[3][2]; clear(v, n / 2<<||+ 1>>); thread float (&all)[3][2] = v; return all[2][1];", "element 5 of 'v' is read before it has a value", "template <typename T> void clear_all(thread T& v, uint n) { for (uint k = 0; k < n; ++k) for (uint j = 0; j < 2; ++j) v[k][j] = 0; }\nvoid clear(thread float (&v)[3][2], uint n) { clear_all(v, n); }"),
    Defect("a member", "Pair p; p.a = 1; <<||p.b = 2;>> return p.a + p.b;", "'p.b' is read before it has a value", PAIR),
    Defect("a struct", "Pair p; if (x[0] <<>||<>> 1.5f) p = {1, 2}; Pair q = p; return q.a;", "'p' is read before it has a value", PAIR),
    Defect("a struct through a pointer", "Pair p; thread Pair* q = &p; q->a = 1; <<||q->b = 2;>> return p.b;", "'p.b' is read before it has a value", PAIR),
    Defect("a member that a pointer reads", "Pair p; thread Pair* q = &p; <<||q->b = 2;>> return q->b;", "'p' is read before it has a value", PAIR),
    Defect("structs of an array", "Pair v[4]; for (uint k = 0; k < n<< - 1||>>; ++k) v[k].b = k; return v[3].b;", "element 3 of 'v' is read before it has a value", PAIR),
    Defect("members of members", "Deep d; d.pair.a = d.all[2].b = 1; d.v.xz = 1; <<||d.v.yw = 2; d.all[1].b = 3;>> return d.v.w + d.all[1].b;", "is read before it has a value", "struct Pair { float a, b; }; struct Deep { Pair pair, all[3]; uchar kind; float4 v; };"),
    Defect("what a class keeps to itself", "Own o = Own::of(x[0], <<false||true>>); return o.get();", "'r.last' is read before it has a value", "class Own { float first, last; public: static Own of(float v, bool all) { Own r; r.first = v; if (all) r.last = v; r.first += r.last; return r; } float get() { return first; } };"),
    Defect("an array in a struct that a loop fills", "Row r; for (uint k = 0; k < n<< - 1||>>; ++k) r.values[k] = k; return r.values[3];", "4 bytes from byte 12 on of 'r' is read before it has a value", "struct Row { float values[4]; uint count; };"),
    Defect("a column", "float3x3 m; m[0] = m[1] = 1; <<||m[2][1] = 3;>> return m[2].y;", "'m' is read before it has a value"),
    Defect("a matrix", "half2x2 m; <<||m = half2x2(1);>> return (m * half2(1)).x;", "'m' is read before it has a value"),
    Defect("a packed vector", "packed_float3 p; if (x[0] <<>||<>> 1.5f) p = 1; return p.x;", "'p.x' is read before it has a value"),
    Defect("an enumeration", "Kind k; <<if (x[0] > 1.5f)||>> k = Kind::b; return k == Kind::b;", "'k' is read before it has a value", "enum class Kind : uchar { a, b };"),
    Defect("a union", "Bits b; <<||b.number = 1;>> return b.bits;", "'b.bits' is read before it has a value", "union Bits { float number; uint bits; };"),
    Defect("what a constructor leaves", "Made m; Two t[2]; t[0].b = 1; <<||t[1].b = 2;>> return m.a + t[1].made.a + t[1].begun + t[1].b;", "element 1 of 't' is read before it has a value", "struct Made { float a; Made() : a(2) {} }; struct Two { Made made; float begun = 1, b; };"),
    Defect("what a constructor with arguments leaves", "Begun<float> b(x[0], n), c{x[1]}; c.v.xz = 1; <<||c.v.w = 2;>> return b.a + b.v.y + b.n + c.a + c.v.y + c.v.w;", "'c.v.w' is read before it has a value", "template <typename T> struct Begun { T a; float4 v; uint n; Begun(T x, uint m = 3) : a(x), n(m) { v.y = m; } };"),
    Defect("a type of a template", "return last<float>(x, n<<||- 3>>);", "", "template <typename T> T last(device const T* x, uint n) { T v; for (uint k = n; k < 4; ++k) { v = x[k]; } return v; }"),
    Defect("statements in an expression", "return ({ float v; if (x[0] <<>||<>> 1.5f) v = 2; v * 2; });", "'v' is read before it has a value"),
    Defect("beside a lambda", "auto twice = [](float a) { return 2 * a; }; float v; if (x[0] <<>||<>> 1.5f) v = 2; return twice(1) + v;", "'v' is read before it has a value"),
    Defect("in a lambda", "auto twice = [&](float a) { float v; if (x[0] <<>||<>> 1.5f) v = 2; return v * a; }; return twice(2);", "'v' is read before it has a value"),
    # What is no mistake, though it may look like one.
    Defect("nothing in a class", "Plus plus; Plus other = plus; return apply(other, x[0]) + plus(1, 2);", "", "struct Plus { float operator()(float a, float b) { return a + b; } };\ntemplate <typename F> float apply(F f, float a) { return f(a, a); }"),
    Defect("a member that a method reads", "Total t; t.count = n; <<||t.sum = 0;>> return t.mean();", "'sum' of 't' is read before it has a value", "struct Total { float sum; uint count; float mean() const { return sum / count; } };"),
    Defect("members of bases, of unions and of what is defined outside", "Wide w; w.all(x[0]); <<||w.last = w.sum();>> return w.sum() + w.last;", "'w.last' is read before it has a value", "struct Base { float a, b; void set(float v); }; void Base::set(float v) { a = v; b = a; }\nstruct Wide : Base { union { float c; uint bits; }; float last; void all(float v) { set(v); c = b; } float sum() const { return a + as_type<float>(bits); } };"),
    Defect("members that methods fill in part", "Stack s; s.top = 0; s.push(1); s.push(2); uint v = s.get(<<2||1>>); return v;", "4 bytes from byte 8 on of 's' is read before it has a value", "struct Stack { uint values[4], top; void push(uint v) { values[top++] = v; } uint get(uint k) const { return values[k]; } };"),
    Defect("a member that a constructor reads", "Mean m(x[0]); Mean w = Mean(x[1]), v; return m.get() + v.get() + w.get();", "", "struct Mean { float sum; uint n; float get() const { return sum / n; } Mean(float v) : n(2) { sum = v; } Mean() : Mean(1) { n = 3; } };"),
    Defect("a member that one constructor forgets", "Mean m<<||(2)>>; float s = m.v; return s;", "'sum' of 'm' is read before it has a value", "struct Mean { float sum, v; Mean() { v = sum + 1; } Mean(float s) : sum(s) { v = sum + 1; } };"),
    Defect("a constructor that leaves a member", "Ray r = Ray(x[0]); return r.from.x + <<r.last||r.from.y>>;", "'r.last' is read before it has a value", "struct Ray { float4 from; float last; Ray(float v) : from(v) {} };"),
    Defect("what a function gives in part", "Pair p = only(x[0]), q = both(p, x[1]); float s = q.b; return s + <<p.b||p.a>>;", "'p.b' is read before it has a value", "struct Pair { float a, b; }; Pair only(float v) { Pair p; p.a = v; return p; }\nPair both(Pair p, float v) { p.b = v; return p; }"),
    Defect("a reference that adds", "float s<<|| = 0>>; add(s, x[0]); return s;", "", "void add(thread float& s, float v) { s += v; }"),
    Defect("a struct that a reference reads", "Pair p; p.a = 1; <<||p.b = 2;>> widen(p, x[0]); return p.a;", "", "struct Pair { float a, b; }; void widen(thread Pair& r, float v) { r.a = min(r.a, v); r.b = max(r.b, v); }"),
    Defect("a reference that gets no value", "float v; give(v, n<<||+ 1>>); return v;", "'v' is read before it has a value", "void give(thread float& v, uint n) { if (n > 4) v = n; }"),
    Defect("given by references that functions give", "Four f; f.at(0) = x[0]; f[1] = 2; f.at(2) = f.at(0) + sincos(x[1], f.at(3)); Kept k{f[1]}; k.put(3); float a, b; each(1, a, b); return f.sum() + f.at(3) + a + b;", "", "struct Four { float v[4]; thread float& at(uint k) { return v[k]; } thread float& operator[](uint k) thread { return v[k]; } float sum() const { float s = 0; for (uint k = 0; k < 4; ++k) s += v[k]; return s; } };\nstruct Kept { thread float& r; void put(float v) { r = v; } };\ntemplate <typename... All> void each(float v, thread All&... all) { ((all = v), ...); }"),
    Defect("begun by its class", "Begun b; Made m; Two t; float s = b.a + m.a + t.b.a; return s;", "", "struct Begun { float a = 1, b; }; struct Made { float a; Made() : a(2) {} }; struct Two { Begun b; Made m; };"),
    Defect("given by members", "Sum s; s.clear(); Sum t; t(2); Sum u; sincos(x[0], u.value); Sum v; put(v.value); Number (w) = 1; thread float (*q) = &w; Number (r) = *q + s.value; s.value = r; return s.value + t.value + u.value + v.value;", "", "using Number = float; struct Sum { float value; void clear() { value = 0; } void operator()(float v) { value = v; } };\nvoid put(thread float& r) { r = 3; }"),
    Defect("given as bits", "Flags f; f.low = 1; f.high = 2; Half h; h.v.x = 1; Half c = h; thread half2* p = &c.v; p->y = 2; return f.low + f.high + c.v.y;", "", "struct Flags { uint low : 3, high : 5; }; struct Half { half2 v; uint u; };"),
    Defect("captured", "float v, w, u; Pair p; auto give = [&]() { v = 2; p.a = 3; }; give(); w = 1; auto get = [=]() { return w; }; auto put = [&u](float a) { u = a; }; put(get()); return v + p.a + u;", "", PAIR),
    Defect("behind the end", "float v[4] = {1, 2, 3, 4}, s = 0; thread float* end = v + 4; for (thread float* p = v; p != end; ++p) s += *p; return s + end[-1];", ""),
    Defect("neighbours", "float a = 1, b = 2; thread float* p = &b; thread float* q = &a; *p = *q; return b;", ""),
    Defect("given by functions of templates", "float2x2 m; float2 v; give_all<float2x2, give<float2x2>>(x[0], m); give_all<float2, give<float2>>(x[1], v); return m[1].y + v.x;", "", "template <typename T> void give(float x, thread T& r) { r = T(x); }\ntemplate <typename T, void (*give_one)(float, thread T&)> void give_all(float x, thread T& r) { T t; give_one(x, t); r = t + t; }"),
    Defect("given by what walks", "float v[4], w, u; *at(v) = 1; at(v)[n - 3] = 2; *at(&w) = 3; It it{&u}; *it = 4; return *at(v) + v[<<2||1>>] + w + u;", "element 2 of 'v' is read before it has a value", "struct It { thread float* p; thread float& operator*() { return *p; } thread float& operator[](int i) const { return p[i]; } }; It at(thread float* a) { return It{a}; }"),
    Defect("given by functions", "float v[4], whole, c, r, o; put(v[1], 1); put(r, 1); Give()(o); Give g; g(v[2]); float s = sincos(x[0], c) + modf(x[1], whole); return v[1] + v[2] + r + o + s + c + whole;", "", "void put(thread float& r, float v) { r = v; }\nstruct Give { void operator()(thread float& r) const { r = 3; } };"),
    Defect("given by rows", "float v[2][2]; clear(v); for (thread float (*row)[2] = v; row < v + 2; ++row) { (*row)[1] = 1; } return v[0][0] + v[1][1];", "", "void clear(thread float (&v)[2][2]) { for (uint k = 0; k < 4; ++k) v[k / 2][k % 2] = 0; }"),
    Defect("given by who keeps a reference", "float v[2], w[2], u[2]; Keeper{v}.give(); Keeper k = Keeper(w); k.give(); lend(u); return v[1] + w[1] + u[1];", "", "struct Keeper { thread float (&all)[2]; Keeper(thread float (&a)[2]) : all(a) {} void give() { all[1] = 2; } };\nvoid lend(thread float (&all)[2]) { Keeper k(all); k.give(); }"),
    Defect("names of the library", "float fenced[2] = {1, 2}, watched[2]; int as = 1; watched[as] = 3; float own[1]; own[0] = 1; return fenced[1] + watched[1] + own[0];", ""),
    Defect("given by references", f"float v[2]; {WRITES} for (thread float& each : v) {{ each = 1; }} return v[0] + v[1];", ""),
    Defect("given as other types", "float v[2], w; ((thread uint*)v)[0] = 1; *(thread uchar*)&v[1] = 2; *(thread int*)&w = 3; return v[0] + v[1] + w;", ""),
    Defect("copies of parts", "Half h; h.a = 1; Half c = h; c.b[1] = 2; float4 v, w; v.xyz = 1; w = v; w.w = 1; Bits b; b.number = 1; return c.b[1] + w.w + b.bits;", "", "struct Half { float a, b[2]; };\nunion Bits { float number; uint bits; };"),
    Defect("no values", "float v[4], w; (void)v[0]; (void)w; uint size = sizeof(v) / sizeof(v[0]); return size;", ""),
    Defect("in a loop", "float s = 0; for (uint k = 0; k < n; ++k) { float v[2], w; v[k & 1] = w = k; if (k == 2) continue; s += v[k & 1] + w; } return s;", ""),
    Defect("between labels", "switch (n) { case 3: float v[2], w; v[0] = 1; return v[0]; case 4: w = 2; return w; } return 0;", ""),
    Defect("structs that functions take", "Box b; b.low = x[0]; <<||b.high = 2;>> return size(grown(b), 1);", "'b.high' is read before it has a value", "struct Box { float low, high; }; Box grown(const Box b) { Box c = b; c.low -= 1; return c; }\nfloat size(Box b, float s) { for (uint k = 0; k < 2; ++k) { float b = k; s += b; } b.low += s; return b.high - b.low; }"),
    Defect("a column of a product", "float3x3 m; turn(m, x[0]); <<||m[2] = m[1];>> return (m * float3(1)).x;", "element 2 of 'm' is read before it has a value", "void turn(thread float3x3& r, float a) { float2x2 n; n[0] = n[1] = a; r[0] = float3(n[0], 1); r[1] = float3((n * n)[1], 0); }"),
    Defect("what is assigned in part to an element", "Pair v[2]; v[n - 4] = only(x[0]); <<||v[0].b = 3;>> return v[0].b;", "element 0 of 'v' is read before it has a value", ONLY),
    Defect("what is assigned in part to a member", "Two t; t.first = only(x[0]); t.all[1] = t.first; <<||t.all[1].b = 3;>> return t.all[1].b;", "'t' is read before it has a value", f"{ONLY} struct Two {{ Pair first, all[2]; }};"),
    Defect("what is assigned in part through a pointer", "Two t; thread Two* p = &t; p->first = only(x[0]); <<||p->first.b = 2;>> return t.first.b;", "'t.first.b' is read before it has a value", f"{ONLY} struct Two {{ Pair first, last; }};"),
    Defect("what a reference gets in part", "Two t; give(t, x[0]); <<||t.last.b = 2;>> return t.last.b;", "'t.last.b' is read before it has a value", f"{ONLY} struct Two {{ Pair first, last; }}; void give(thread Two& t, float v) {{ t.last = only(v); }}"),
    Defect("what a method assigns in part", "Two t; t.set(x[0]); <<||t.last.b = 2;>> return t.last.b;", "'t.last.b' is read before it has a value", f"{ONLY} struct Two {{ Pair first, last; void set(float v) {{ last = only(v); first = last; }} }};"),
    Defect("what a method's array gets in part", "Two t; t.set(x[0], n); <<||t.all[1].b = 2;>> return t.all[1].b;", "'t' is read before it has a value", f"{ONLY} struct Two {{ Pair all[2]; void set(float v, uint n) {{ all[n - 3] = only(v); }} }};"),
    Defect("copies of elements and of sums", "Pair v[2]; v[0].a = 1; Pair p = v[n - 4], q = p + v[n - 4], r = n > 2 ? q : p; <<||r.b = 1;>> return r.a + r.b;", "'r.b' is read before it has a value", f"{PAIR} Pair operator+(Pair a, Pair b) {{ a.a += b.a; return a; }}"),
    Defect("what elements of an array of the library get in part", "array<Pair, 2> v; v[0] = v[1] = only(x[0]); <<||v[1].b = 1;>> return v[1].b;", "element 1 of 'v' is read before it has a value", ONLY),
    Defect("small members of copies", "Marks f; f.a = n; Marks g = f; <<||g.b = 3;>> return g.b + g.a;", "'g.b' is read before it has a value", "struct Marks { uchar a, b; };"),
    Defect("a flag of a copy", "Marks f = of(n); <<||f.b = true;>> return f.b;", "'f.b' is read before it has a value", "struct Marks { bool a, b; char c; }; Marks of(uint n) { Marks f; f.a = n > 3; f.c = n; return f; }"),
    Defect("halves of copies", "Halves h = of(n); <<||h.b = 2;>> return h.b;", "'h.b' is read before it has a value", "struct Halves { half a, b; ushort c; }; Halves of(uint n) { Halves h; h.a = n; h.c = n; return h; }"),
    Defect("values that look like none", "float s = 0; for (uint k = 0; k < 256; ++k) { Marks f = of(k); s += f.a + f.b; } return s;", "", "struct Marks { uchar a, b; }; Marks of(uint n) { Marks f; f.a = n; f.b = n; return f; }"),
    Defect("a matrix that a function takes", "float2x2 m; m[0] = x[0]; <<||m[1] = 1;>> return last(m) + x[1];", "", "float last(float2x2 m) { return m[1].y; }"),
    Defect("a matrix that a function gives", "float2x2 m = first(x[0]), q = m; <<||q[1] = 1;>> return q[1].y;", "element 1 of 'q' is read before it has a value", "float2x2 first(float v) { float2x2 m; m[0] = v; return m; }"),
    Defect("a matrix that is assigned", "float3x3 m; m = first(x[0]); <<||m[2] = 1;>> return m[2].z;", "element 2 of 'm' is read before it has a value", "float3x3 first(float v) { float3x3 m; m[0] = v; return m; }"),
    Defect("what is assigned in part", "Pair p, q = {1, 2}, r[2]; p = only(x[0]); if (n > 2) q = p; <<||q.b = 3;>> r[0] = p = {q.a, 1}; give(q, p); return r[0].b + p.b + q.b;", "'q.b' is read before it has a value", "struct Pair { float a, b; }; Pair only(float v) { Pair p; p.a = v; return p; }\nvoid give(thread Pair& to, Pair from) { if (to.a > 9) to = from; }"),
]  # fmt: skip
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
KERNEL = "kernel void f(device const float* x, constant uint& n, device float* y, uint i [[thread_position_in_grid]]) {\n"
ABREAST = "    y[i] = simd_sum(x[i]);\n"


def program(defects: Sequence[Defect], part: int, first: str) -> tuple[str, list[int]]:
    """The defects, or all of them put right, in one kernel that begins with ``first``, and the lines of their functions."""
    source, lines, calls = HEAD, [], []
    for number, defect in enumerate(defects):
        body = re.sub(r"<<(.*?)\|\|(.*?)>>(?!>)", lambda match: match[part + 1], defect.body)
        source += f"namespace d{number} {{\n{defect.before}\n"
        lines.append(1 + source.count("\n"))
        source += f"float of(device const float* x, uint n) {{ {body} }}\n}}\n"
        calls.append(f"    y[i] = d{number}::of(x, n);\n")
    return "".join([source, KERNEL, first, *calls, "}\n"]), lines


def findings(source: str) -> tuple[KernelFinding, ...]:
    x, y = np.arange(1, 9, dtype=np.float32), np.zeros(2, np.float32)
    return mg.compile(source, language_version="3.2").function("f").check(2, x, 4, y)


@pytest.mark.parametrize("defects, first", [(DEFECTS, ""), (DEFECTS[2::3], ABREAST)], ids=["one by one", "abreast"])
def test_each_defect_is_found_at_its_line_and_nothing_without_it(defects: list[Defect], first: str) -> None:
    source, lines = program(defects, 0, first)
    by_line = {each.line: each for each in findings(source)}
    text = source.split("\n")
    for defect, line in zip(defects, lines, strict=True):
        found = [each for at, each in by_line.items() if line - 2 <= at <= line]
        is_planted = "<<" in defect.body
        assert len(found) == is_planted, f"{defect.name}: {[*map(str, found)]} in {text[line - 1]}"
        assert all(defect.says in each.message for each in found), f"{defect.name}: {found[0]}"
    assert [*map(str, findings(program(defects, 1, first)[0]))] == []
