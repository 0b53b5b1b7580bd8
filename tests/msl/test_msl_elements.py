"""Elements of threads' arrays where none of the threads that run abreast takes part."""

from __future__ import annotations

import re

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.msl import translate

LANES = 64
FUNCTIONS = """void add(thread uint* r, uint k, uint b) { r[k] += b; }
constant uint TABLE[3] = {2, 0, 1};
void get(constant uint* m, thread uint& out) { out = m[1]; }
uint at(constant uint* m, uint k) { return m[k]; }
template <typename T, uint N> T nth(T a, uint b) { return min(a * b, N); }
template <typename A, typename K> void put(thread A& r, K k, uint b) { r[k] += b; }
struct Adder {
  uint k, e[3];
  static void to(thread uint* r, uint k, uint b) { r[k] += b; }
  void own(uint k, uint b) { e[k] += b; }
};
"""


def kernel(body: str) -> str:
    return (
        f"#include <metal_stdlib>\nusing namespace metal;\n{FUNCTIONS}"
        "kernel void f(device const uint* x, device uint* y, constant uint& turns, constant uint* m,\n"
        "  uint i [[thread_position_in_grid]]) {\n"
        f"  uint a = x[i], b = x[i + {LANES}], c = x[i + {2 * LANES}];\n"
        "  uint r[3] = {a, b, c}; array<uint, 3> s = {a, b, c}; float2x2 z = float2x2(1.0f);\n"
        f"  bool p = a & 1, q = b > 20;\n  {body}\n"
        f"  y[i] = r[0]; y[i + {LANES}] = r[1]; y[i + {2 * LANES}] = r[2] + s[0] - a + uint(z[0].x) - 1;\n}}\n"
    )


@pytest.mark.parametrize(
    ("body", "elements"),
    [
        ("for (uint k = 0; k < turns; k++) { if (c < 8) if (q) if (p) r[k % 3] += b; }", (0, 1, 2)),
        ("if (c < 8) { if (q) { if (p) r[m[1]] += b; } }", (1,)),
        ("if (c < 8) { if (q) { if (p) { uint j = m[1]; r[j] += b; } } }", (1,)),
        ("if (c < 8) { if (q) { if (p) *(r + m[2]) += b; } }", (2,)),
        ("if (c < 8) { if (q) { if (p) add(r, turns % 3, b); } }", (0,)),
        (
            "Adder d; if (c < 8) { if (q) { if (p) { uint j; get(m, j); r[j] += b; d.k = j; Adder::to(r, d.k, b);"
            " uint t[2]; t[0] = m[1]; r[t[0]] += b; r[at(m, 2)] += b; put<uint[3], uint>(r, m[2], b); } } }",
            (1, 1, 1, 2, 2),
        ),
        (
            "if (c < 8) { if (q) { if (p) { thread uint* v = r; v += nth<uint, 1>(m[1], 2u);"
            " *v += nth<uint, 40>(b, 1u); *(r + nth<uint, 2>(m[2], 3u)) += b; } } }",
            (1, 2),
        ),
    ],
)
def test_elements_that_no_thread_uses(body: str, elements: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).integers(0, 40, 3 * LANES).astype(np.uint32)
    y = np.zeros(3 * LANES, np.uint32)
    mg.compile(kernel(body)).function("f")(LANES, x, y, np.uint32(3), np.arange(3, dtype=np.uint32))
    expected = x.reshape(3, LANES).copy()
    a, b, c = x.reshape(3, LANES)
    for element in elements:
        expected[element] += np.where((a & 1 == 1) & (b > 20) & (c < 8), b, 0).astype(np.uint32)
    np.testing.assert_array_equal(y.reshape(3, LANES), expected)


@pytest.mark.parametrize(
    ("body", "indices"),
    [
        ("if (p) { r[m[1]] = 1; r[turns] = 2; r[turns * 2 - 1] = 3; }", ["m[1]", "turns", "turns * 2 - 1"]),
        ("if (p) { uint j = m[0]; r[j] = 1; uint k(j + 1); r[k] = 2; uint l; l = k; r[l] = 3; }", ["j", "k", "l"]),
        ("if (p) { thread uint* v = r; v[*m] = 1; s[m[1]] = 2; z[m[0]].x = 3; }", ["*m", "m[1]", "m[0]"]),
        ("if (p) { for (uint k = 0; k < turns; k++) r[k % 3] = r[k / 2]; }", ["k % 3", "k / 2"]),
        ("if (p) { add(r, m[1], b); }", ["k"]),
        ("if (p) { thread uint* v = r + m[1]; a = (v + turns * 2 - 1)[m[0]]; }", ["m[1]", "turns * 2", "m[0]"]),
        ("if (p) { thread uint* v = r; v -= turns; *(v + int(turns)) = 1; }", ["turns", "int(turns)"]),
        ("for (uint k = 0; k < a; k++) r[m[k]] = 1;", ["m[k]"]),
        (
            "if (p) { thread uint* v = r; *v += nth<uint, 2>(*m, 2); v += nth<uint, 2>(*m, 2);"
            " *(v - nth<uint, 2>(a, b)) = 1; }",
            ["nth<uint, 2>(*m, 2)", "nth<uint, 2>(a, b)"],
        ),
        ("if (p) { uint j; get(m, j); r[j] = 1; }", ["j"]),
        ("if (p) { uint j = 0; thread uint* v = &j; *v = m[1]; r[j] = 1; }", ["j"]),
        ("if (p) { Adder d; d.k = m[1]; d.own(m[1], b); r[d.k] = d.e[1]; Adder::to(r, 1, b); }", ["k", "d.k"]),
        ("if (p) { Adder::to(r, m[1], b); }", ["k"]),
        ("if (p) { uint j = 0, k = 0; j = k; k = j; r[j] = 1; r[k] = 2; j = m[1]; }", ["j", "k"]),
        ("if (p) { put(s, m[1], b); }", ["k"]),
        ("if (p) { uint t[3]; t[0] = m[1]; r[t[0]] = 1; uint2 v = *(constant uint2*)m; r[v.x] = 2; }", ["t[0]", "v.x"]),
        ("if (p) { r[at(m, 1)] = 1; r[min(i, 2u)] = r[popcount(i) & 1]; }", ["at(m, 1)"]),
        ("auto f = [&](uint k) { r[k] += b; }; if (p) f(m[1]);", ["k"]),
        ("if (p) r[turns] = 1;", ["turns"]),
        # All threads come to it.
        ("for (uint k = 0; k < turns; k++) r[m[k]] = 1;", []),
        # Numbers where loops are unrolled, and what all threads have.
        ("for (uint k = 0; k < 3; k++) { uint j = (k + 1) % 3; if (p) r[j] = r[TABLE[k]]; }", []),
        ("for (uint k = 0; k < turns; k++) if (p) r[k] = r[2 - k];", []),
        ("if (p) add(r, 1, b);", []),
        ("if (p) y[m[1]] = m[m[2]] + TABLE[m[0]];", []),
    ],
)
def test_such_indices_are_those_that_are_not_surely_defined(body: str, indices: list[str]) -> None:
    definitions = {"__METAL_VERSION__": "320"}
    text = translate(kernel(body), "opencl", launch="row", definitions=definitions).source
    found = re.findall(r"\(\(((?:(?!\+ zero_mtl|\(\().)*)\) \+ zero_mtl\(\)\)", text)
    assert [index.strip() for index in found] == indices
    assert "zero_mtl" not in translate(kernel(body), "cuda", launch="row", definitions=definitions).source


def of_state(functions: str, body: str) -> str:
    return (
        "#include <metal_stdlib>\nusing namespace metal;\nstruct State { uint data[3]; uint k; };\n"
        f"void put(thread State* s, uint b) {{ s->data[s->k] += b; }}\n{functions}\n"
        "kernel void f(device const uint* x, device uint* y, constant uint& turns, constant uint* m,\n"
        "  uint i [[thread_position_in_grid]]) {\n"
        f"  uint a = x[i], b = x[i + {LANES}], c = x[i + {2 * LANES}];\n"
        "  State s; s.data[0] = a; s.data[1] = b; s.data[2] = c;\n"
        f"  if (c < 8) {{ if (b > 20) {{ if (a & 1) {{ {body} }} }} }}\n"
        f"  y[i] = s.data[0]; y[i + {LANES}] = s.data[1]; y[i + {2 * LANES}] = s.data[2];\n}}\n"
    )


@pytest.mark.parametrize(
    ("functions", "body"),
    [
        ("void start(thread State* s) { s->k = 1; }", "start(&s); put(&s, b);"),
        ("void step(thread State& s, uint b) { s.data[s.k] += b; if (++s.k == 3) s.k = 0; }", "s.k = 1; step(s, b);"),
        ("void last(thread State* s, uint b) { uint j = s->k; s->data[j++] += b; }", "s.k = 1; last(&s, b);"),
        (
            "void to(thread State& s, uint b) { put(&s, b); } void on(thread State* s, uint b) { to(*s, b); }",
            "s.k = 1; on(&s, b);",
        ),
    ],
)
def test_members_of_a_threads_structs_are_defined_if_all_that_they_get_is(functions: str, body: str) -> None:
    source = of_state(functions, body)
    assert "+ zero_mtl()" not in translate(source, "opencl", launch="row").source
    x = np.random.default_rng(2).integers(0, 40, 3 * LANES).astype(np.uint32)
    y = np.zeros(3 * LANES, np.uint32)
    mg.compile(source).function("f")(LANES, x, y, np.uint32(3), np.arange(3, dtype=np.uint32))
    expected, (a, b, c) = x.copy(), x.reshape(3, LANES)
    expected[LANES : 2 * LANES] += np.where((a & 1 == 1) & (b > 20) & (c < 8), b, 0).astype(np.uint32)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("functions", "body"),
    [
        ("", "s.k = m[1];"),
        ("", "s.k = turns / 3;"),
        ("", "State t; t.k = m[1]; s.k = t.k;"),
        ("", "State t; t.k = 1; s = t;"),
        ("", "State t = {{a, b, c}, m[1]}; put(&t, b);"),
        ("", "thread uint& k = s.k; k = m[1];"),
        ("", "s.k = 1; thread State* t = &s;"),
        ("void get(constant uint* m, thread uint& k) { k = m[1]; }", "get(m, s.k);"),
        ("void get(constant uint* m, thread uint* k) { *k = m[1]; }", "get(m, &s.k);"),
        ("void get(constant uint* m, thread State* s) { ((thread uint*)s)[3] = m[1]; }", "get(m, &s);"),
        ("void get(constant uint* m, thread void* s) { ((thread uint*)s)[3] = m[1]; }", "get(m, &s);"),
        ("template <typename T> void get(constant uint* m, thread T* s) { s->k = m[1]; }", "get(m, &s);"),
        ("struct Outer { State inner; };", "Outer o; o.inner.k = m[1]; put(&o.inner, b);"),
    ],
)
def test_members_that_may_get_what_is_not_are_not(functions: str, body: str) -> None:
    text = translate(of_state(functions, f"{body} put(&s, b);"), "opencl", launch="row").source
    assert re.search(r"s->data\[\(\(s->k\) \+ zero_mtl\(\)\)\]", text)
