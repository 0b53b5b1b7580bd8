"""Components of ``constexpr`` vectors, and lists in braces that objects are assigned: both compilers know their values."""

# Kernels are easier to read on lines of their own length.
# ruff: noqa: E501

from __future__ import annotations

import numpy as np
import pytest
from cuda_compiler import compile_for_cuda, needs_compiler

import mpsgrad as mg
from mpsgrad.errors import ShaderError

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
KERNEL = "kernel void f(device const uint* x, device uint* y) {"
LISTED = """struct S {
    uint a, b;
    S() : a(0), b(0) {}
    S(uint first, uint second) : a(first), b(second) {}
    void operator=(initializer_list<uint> all) { a = 0; for (uint each : all) a += each; b = uint(all.size()); }
};
struct Plain {
    uint a, b;
    thread Plain& operator=(initializer_list<uint> all) { a = *all.begin(); b = 9; return *this; }
};
struct Holder { S parts[2]; };
"""

SOURCES: dict[str, tuple[str, str, list[int]]] = {
    "an extent": ("", "constexpr uint4 v = uint4(1, 2, 3, 4); constexpr uint a = v.z; uint s[a + 1] = {0, 0, 0, 7}; y[0] = s[v.z] + a;", [10]),
    "several in a row": ("", "constexpr uint4 v = {1, 2, 3, 4}; constexpr uint a = v.y, b = v.zw.y, c = v.bgra.xy.y; y[0] = a + 10 * b + 100 * c;", [242]),
    "an element": ("", "constexpr ushort2 v[2] = {ushort2(1, 2), ushort2(3, 4)}; constexpr uint a = v[1].y; y[0] = a; y[1] = v[x[0] & 1].x;", [4, 3]),
    "a template's argument": ("template <uint N> uint of() { return N; }\n", "constexpr uint2 v = uint2(6, 7); constexpr uint a = v.y; y[0] = of<v.x>() * 10 + of<a>();", [67]),
    "of the program": ("constant constexpr int3 V = int3(1, 2, 5);\n", "constexpr int a = V.x + V.z; threadgroup uint s[a]; s[5] = 8; y[0] = s[5] + a;", [14]),
    "behind a variable of its name": ("struct P { uint x; };\n", "constexpr uint2 v = uint2(6, 7); { P v = {x[1]}; y[0] = v.x; } y[1] = v.x;", [6, 6]),
    "a list": (LISTED, "S s; s = {x[0], x[1]}; y[0] = s.a; y[1] = s.b;", [11, 2]),
    "a list and a copy": (LISTED, "S s = {4, 5}, r; r = s; y[0] = r.a; y[1] = r.b; r = {}; y[2] = r.b;", [4, 5, 0]),
    "a list for a plain struct": (LISTED, "Plain s; s = {x[0], x[1]}; y[0] = s.a; y[1] = s.b;", [5, 9]),
    "a list for a member": (LISTED, "Holder h; if (x[0] == 5) h.parts[1] = {x[0], x[1], 1}; y[0] = h.parts[1].a; y[1] = h.parts[1].b;", [12, 3]),
    "a list by a reference": (LISTED, "S s; thread S& r = s; r = {x[0], x[1]}; y[0] = s.a; y[1] = s.b;", [11, 2]),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_numbers(name: str) -> None:
    declarations, body, expected = SOURCES[name]
    y = np.zeros(3, np.uint32)
    mg.compile(f"{HEAD}{declarations}{KERNEL} {body} }}").function("f")(1, np.array([5, 6], np.uint32), y)
    assert y.tolist() == expected + [0] * (3 - len(expected))


@needs_compiler
@pytest.mark.parametrize("name", SOURCES)
def test_it_compiles_for_nvidia(name: str) -> None:
    declarations, body, _ = SOURCES[name]
    compile_for_cuda(f"{HEAD}{declarations}{KERNEL} {body} }}")


@needs_compiler
@pytest.mark.parametrize("component", ["z", "xy.z"])
def test_components_that_a_vector_has_not_are_refused(component: str) -> None:
    source = f"{HEAD}{KERNEL} constexpr uint2 v = uint2(1, 2); y[0] = v.{component}; }}"
    with pytest.raises(Exception, match="has no member"):
        compile_for_cuda(source)
    with pytest.raises(ShaderError):
        mg.compile(source)
