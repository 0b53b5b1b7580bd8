"""Names for types: ``typedef`` of several at once, of arrays, functions and classes, and ``using``, on both targets."""

from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.msl import translate
from mpsgrad.msl.preprocessor import Preprocessor
from mpsgrad.msl.tokens import Token
from mpsgrad.msl.type_names import one_name_each, type_names

KERNEL = "kernel void f({x} x, {y} y, {i} i [[thread_position_in_grid]]) {{ {body} }}"
PROGRAMS = {
    "two pointers": ("typedef device float *P, *Q;", "P", "Q", "uint", "P a = x + i; Q b = y + i; *b = *a * 2;"),
    "a number and a pointer": ("typedef device float F, *P;", "P", "P", "uint", "y[i] = x[i] * 2;"),
    "two positions": ("typedef uint Index, Other;", "device float*", "device float*", "Other", "y[i] = x[i] * 2;"),
    "an array": ("typedef float Row[1];", "device Row*", "device Row*", "uint", "y[i][0] = x[i][0] * 2;"),
    "a class, its name and another": (
        "typedef struct S { float a; } T, U;", "device S*", "device U*", "uint", "T t = x[i]; y[i].a = t.a * 2;"
    ),
    "a class without a name": (
        "typedef struct { float a; } T, U;", "device T*", "device U*", "uint", "y[i].a = x[i].a * 2;"
    ),
    "numbers that are saturated": (
        "typedef uchar Byte, Other;", "device float*", "device float*", "uint",
        "Other a = 300.0f * (x[i] + 1); y[i] = x[i] * 2 + (a == 255 ? 0 : 1);",
    ),
}  # fmt: skip


def read(source: str) -> list[Token]:
    return Preprocessor().run(source, "<metal>")


def texts(tokens: list[Token]) -> list[str]:
    return [token.text for token in tokens]


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_with_names_for_types(name: str, device: mg.Device) -> None:
    declarations, x, y, i, body = PROGRAMS[name]
    source = f"{LIBRARY}{declarations}\n{KERNEL.format(x=x, y=y, i=i, body=body)}"
    given, found = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    mg.compile(source, device=device).function("f")(8, given, found)
    np.testing.assert_array_equal(found, 2 * given)
    compile_for_cuda(translate(source, "cuda").source, name)


@pytest.mark.parametrize(
    ("source", "name", "meaning"),
    [
        ("typedef const unsigned int Number;", "Number", "const unsigned int"),
        ("typedef float Rows[2][N];", "Rows", "float[2][N]"),
        ("using Rows = float[2][N];", "Rows", "float[2][N]"),
        ("typedef vec<array<float, 2>, 3> V;", "V", "vec<array<float,2>,3>"),
        ("typedef void Function(thread float& x);", "Function", "void(thread float& x)"),
        ("typedef void (Function)(int);", "Function", "void()(int)"),
        ("typedef void (*Pointer)(int, float);", "Pointer", "void(*)(int,float)"),
        ("typedef float (*Rows)[4];", "Rows", "float(*)[4]"),
        ("typedef decltype(f(1)) Result;", "Result", "decltype(f(1))"),
        ("typedef int Long __attribute__((ext_vector_type(8)));", "Long", "int __attribute__((ext_vector_type(8)))"),
        ("using Pair [[maybe_unused]] = float2;", "Pair", "float2"),
        ("template <typename T, int n> using V = vec<T, n>;", "V", "vec<T,n>"),
        ("typedef struct S { int a, b; } T;", "T", "struct S{int a,b;}"),
    ],
)
def test_what_a_name_stands_for(source: str, name: str, meaning: str) -> None:
    (found,) = type_names(read(source))
    assert (found.name.text, texts(found.meaning), found.place.start) == (name, texts(read(meaning)), 0)


@pytest.mark.parametrize("source", ["using namespace metal;", "using metal::exp;", "struct S { using B::f; };"])
def test_what_gives_no_name(source: str) -> None:
    assert not list(type_names(read(source)))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("typedef float A, *B;", "typedef float A;typedef float*B;"),
        ("typedef const device float *A, * const B, C[2];", "typedef const device float*A;"
         "typedef const device float* const B;typedef const device float C[2];"),
        ("typedef vec<float, 4> A, B;", "typedef vec<float,4> A;typedef vec<float,4> B;"),
        ("typedef void (*A)(int, int), B(int);", "typedef void(*A)(int,int);typedef void B(int);"),
        ("typedef struct S { int a, b; } T, *P;", "typedef struct S{int a,b;}T;typedef S*P;"),
        ("typedef struct { int a, b; } T, *P;", "typedef struct{int a,b;}T;typedef T*P;"),
        ("typedef float A; float b, c;", "typedef float A;float b,c;"),
    ],
)  # fmt: skip
def test_typedefs_of_several_names_become_one_each(source: str, expected: str) -> None:
    assert texts(one_name_each(read(source))) == texts(read(expected))
