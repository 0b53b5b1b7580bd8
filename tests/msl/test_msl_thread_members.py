"""Member functions with ``thread`` behind their parameters beside others without an address space: Metal knows no
difference, OpenCL chose between them by it, and had a conversion call itself for ever."""

# Kernels are easier to read on lines of their own length.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np
import pytest
from cuda_compiler import compile_for_cuda, needs_compiler

import mpsgrad as mg

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
EIGHT_BITS = """struct Eight {
    explicit Eight(uchar b) : bits(b) {}
    operator float() const { ushort v = (bits & 127) << 7; half h = as_type<half>(v); h *= 256.0; auto sign = bits & 128; return sign ? -h : h; }
    operator half() const thread { return half(float(*this)); }
    uchar bits;
};"""
CASES: dict[str, tuple[str, str, list[float]]] = {
    "conversions": (EIGHT_BITS, "Eight a(uchar(i + 57)); half h = a; y[0] = a; y[1] = h; y[2] = -float(Eight(185));", [1.125, 1.125, 1.125]),
    "conversions the other way round": (
        "struct A { float v; operator float() const thread { return v; } operator int() const { return int(float(*this)) + 1; } };",
        "A a = {x[0]}; int k = a; y[0] = a; y[1] = k;", [5, 6],
    ),
    "a conversion by a template": (
        "struct A { uint v; operator uint() const { return v; } template <typename T> operator T() const thread { return T(uint(*this)) + 1; } };",
        "A a = {uint(x[0])}; uint b = a; ushort s = a; y[0] = b; y[1] = s;", [5, 6],
    ),
    "methods that differ in their parameters": (
        "struct A { float v; float of(float a) const { return v + a; } float of(int a) const thread { return v * a + of(1.0f); } };",
        "A a = {x[0]}; y[0] = a.of(2.0f); y[1] = a.of(2);", [7, 16],
    ),
    "an operator": (
        "struct A { float v; bool operator==(float a) const { return v == a; } bool operator==(int a) const thread { return a == 7; } };",
        "A a = {x[0]}; y[0] = a == 5.0f; y[1] = a == 5; y[2] = a == 7;", [1, 0, 1],
    ),
    "a function that calls one of threads": (
        "struct A { float v; float next() const { return twice() + 1; } float twice() const thread { return v * 2; } float set(float a) thread { v = a; return next(); } };",
        "A a = {x[0]}; y[0] = a.next(); y[1] = a.set(3); y[2] = a.v;", [11, 7, 3],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str) -> None:
    y = np.zeros(3, np.float32)
    mg.compile(source_of(name)).function("f")(1, np.array([5, 6], np.float32), y)
    expected = CASES[name][2]
    assert y.tolist() == expected + [0] * (3 - len(expected))


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_it_compiles_for_nvidia(name: str) -> None:
    compile_for_cuda(source_of(name))


def source_of(name: str) -> str:
    declarations, body, _ = CASES[name]
    return f"{HEAD}{declarations}\nkernel void f(device const float* x, device float* y, uint i [[thread_position_in_grid]]) {{ {body} }}"


def test_functions_for_device_memory_are_kept_apart() -> None:
    source = f"""{HEAD}struct A {{
    float v;
    float get() const {{ return v; }}
    float get() const device {{ return v + 1; }}
    float get() const threadgroup {{ return v + 2; }}
    float next() const thread {{ return get() * 10; }}
}};
kernel void f(device const A* x, device float* y) {{
    threadgroup A shared; shared.v = x[0].v;
    A a = x[0];
    y[0] = a.next(); y[1] = x[0].get(); y[2] = shared.get();
}}"""
    y = np.zeros(3, np.float32)
    mg.compile(source).function("f")(1, np.array([5], np.float32), y, threadgroup=1)
    assert y.tolist() == [50, 6, 7]
