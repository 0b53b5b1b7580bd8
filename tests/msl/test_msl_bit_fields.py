"""Bit-fields lie where clang's layout has them, and read and write as C++ says, in every address space."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from metal_runner import LIBRARY
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.errors import ShaderError
from mpsgrad.msl import translate

DECLARATION = """
struct Packed {
    uint head;
    uint a : 3, b : 7;
    int c : 9;
    uint : 4;
    int d : 12;
    uint e : 32;
    ulong wide : 40;
    ulong rest : 20;
    uchar small : 5;
    bool flag : 1;
    float tail;
};
"""


class Packed(ctypes.Structure):
    """The same, laid out by the host's C compiler."""

    _fields_ = [
        ("head", ctypes.c_uint32), ("a", ctypes.c_uint32, 3), ("b", ctypes.c_uint32, 7), ("c", ctypes.c_int32, 9),
        ("gap", ctypes.c_uint32, 4), ("d", ctypes.c_int32, 12), ("e", ctypes.c_uint32, 32),
        ("wide", ctypes.c_uint64, 40), ("rest", ctypes.c_uint64, 20), ("small", ctypes.c_uint8, 5),
        ("flag", ctypes.c_uint8, 1), ("tail", ctypes.c_float),
    ]  # fmt: skip


FIELDS = ("a", "b", "c", "d", "e", "wide", "rest", "small", "flag")
KERNEL = LIBRARY + DECLARATION + """
union Word { uint all; struct { uint low : 12; uint high : 20; }; uint byte : 8; };
union Other { uint all; uchar4 b; };
struct Leaf { enum Kind : uchar { red, green } kind; uint value; };
struct Colour { enum Depth : uint { five = 5 };
  ushort r : 5; ushort g : 6; ushort b : 5; uint mix(uint k) const thread { return r * k + g; } };
kernel void k(device Packed* x, constant Packed& from, device long* o, device Word* w, device Colour* colours,
              uint i [[thread_position_in_grid]]) {
    threadgroup Packed shared;
    Packed p = x[i];
    LOADS
    o[9] = p.a - 5;                     // promoted to int
    o[10] = from.c + int(max(from.a, 2u));
    p.a += 3; p.b = from.b; p.c = -p.c; p.d--; p.e ^= 0xffff0000u; p.wide <<= 1; p.rest = p.rest * 3 + 1;
    p.small = 33; p.flag = !p.flag; p.head++;
    shared = p; shared.b = shared.a = from.small;
    o[11] = shared.b; o[12] = ++shared.c; o[13] = (p.e == 3 ? p.a : p.d) + sizeof(Packed);
    x[i] = p;
    x[i + 1].d = 100; x[i + 1].flag = true;
    o[14] = w[0].high; w[0].low = 5; w[1].byte = 300;
    Colour c = colours[0]; float4 v = float4(c.r, c.g, c.b, 1);
    o[15] = c.mix(2) + v.r + v.b; c.g = 63; colours[1] = c;
    Leaf leaf; leaf.kind = Leaf::green;
    Other other; other.all = 0x01020304; o[16] = other.b.y + p.b + leaf.kind - 1;   // of a union, and of bit-fields
}
""".replace("LOADS", " ".join(f"o[{k}] = p.{name};" for k, name in enumerate(FIELDS)))


def test_bit_fields_lie_and_count_as_in_c() -> None:
    assert ctypes.sizeof(Packed) % 8 == 0
    generator = np.random.default_rng(3)
    raw = bytearray(generator.integers(0, 256, 2 * ctypes.sizeof(Packed), np.uint8).tobytes())
    p, other = (Packed.from_buffer(raw, k * ctypes.sizeof(Packed)) for k in range(2))
    p.tail = other.tail = 1
    constant = Packed(a=1, b=99, c=-200, small=21)
    before = bytes(raw)
    o = np.zeros(17, np.int64)
    words, colours = np.array([0xABCDE123, 0xFFFFFFFF], np.uint32), np.array([0b10011_100001_00111, 0], np.uint16)
    memory = np.frombuffer(before, np.uint8).copy()
    function = mg.compile(KERNEL).function("k")
    function(1, memory, np.frombuffer(bytes(constant), np.uint8).copy(), o, words, colours)
    fields = [getattr(p, name) for name in FIELDS]
    expected = [*fields, p.a - 5, constant.c + max(constant.a, 2)]
    p.a += 3
    p.b, p.c, p.d, p.e = constant.b, -p.c, p.d - 1, p.e ^ 0xFFFF0000
    p.wide, p.rest, p.small, p.flag, p.head = p.wide << 1, p.rest * 3 + 1, 33, not p.flag, p.head + 1
    third = p.c + 1 if p.c + 1 < 256 else -256
    expected += [constant.small & 7, third, (p.a if p.e == 3 else p.d) + ctypes.sizeof(Packed)]
    other.d, other.flag = 100, 1
    assert memory.tobytes() == bytes(raw) != before
    assert o.tolist() == [*expected, 0xABCDE, 7 * 2 + 33 + 7 + 0b10011, 3 + p.b]
    assert words.tolist() == [0xABCDE005, 0xFFFFFF00 | (300 & 255)]
    assert colours[1] == 0b10011_111111_00111


def test_members_of_other_classes_may_have_the_name_of_a_bit_field() -> None:
    source = """
    typedef union { float f; metal::uchar4 b; } number_t;
    struct Flags { ushort a : 3, b : 5; };
    kernel void k(device float* x, device Flags* flags) {
        number_t n = {x[0]};
        n.b.w ^= 0x80;
        x[0] = n.f + flags->b;
    }"""
    x = np.array([5], np.float32)
    mg.compile(source).function("k")(1, x, np.array([3 << 3], np.uint16))
    assert x[0] == -2


REFUSED = [
    ("struct S { uint a : 3; uchar b; };", "shares its type's bytes"),
    ("struct S { uchar b; uint a : 3; };", "shares its type's bytes"),
    ("struct S { uint a : 3; float v[2]; };\nvoid g() { S s = {1, {2, 3}}; }", "values in braces for 'S'"),
    ("typedef struct { uint a : 3; uint b : 4; } S;\nvoid g() { S s = {1, 2}; }", "values in braces for 'S'"),
    ("struct S { uint a : 3; uint b : 4; };\nconstant S s = {1, 2};", "constants of 'S'"),
    ("template <typename T> struct S { T v; uint a : 3; };", "behind members of unknown size"),
    ("enum E : uint { p, q };\nstruct S { E a : 3; };", "other types than integers"),
    ("struct S { float a : 3; };", "non-integral type 'float'"),
    ("struct S { uint a : 40; };", "at most its type's bits"),
]


@pytest.mark.parametrize(("source", "words"), REFUSED)
def test_other_forms_are_refused_by_name(source: str, words: str) -> None:
    with pytest.raises(ShaderError, match=words):
        translate(LIBRARY + source, "opencl")


def test_values_in_braces() -> None:
    source = """
    struct S { uint low : 4; int deep : 12; float3 v; uchar flags : 3; };
    struct T { S s; float f; };
    S made(int b) { return {15, b}; }
    T both(int b) { T t{{2, b, float3(1), 3}, 0.5f}; return t; }
    kernel void k(device float* o, device S* kept) {
        S s = {3, -100, float3(1, 2, 3), 9}, u{};
        S each[2] = {{1, 2}, {3, 4}};
        T t = {{1, 2}, 3.0f};
        s.low += 14;
        o[0] = s.low; o[1] = s.deep; o[2] = s.v.z; o[3] = s.flags;
        o[4] = u.low + u.deep + u.v.x + u.flags;
        o[5] = each[1].low * 10 + each[1].deep + each[1].v.y;
        o[6] = t.s.deep + t.f;
        o[7] = made(-7).deep + S{5, 6}.low;
        o[8] = both(9).s.deep + both(9).f + both(9).s.flags;
        kept[0] = {7, -1, float3(4), 1};
        kept[1] = s;
    }"""
    o = np.zeros(9, np.float32)
    kept = np.zeros(2, np.dtype([("word", "u4"), ("gap", "u4", 3), ("v", "f4", 4), ("c", "u4", 4)]))
    mg.compile(LIBRARY + source).function("k")(1, o, kept)
    assert o.tolist() == [1, -100, 3, 1, 0, 34, 5, -2, 12.5]
    assert (kept["word"] & 0xFFFF).tolist() == [7 | 0xFFF << 4, 1 | (-100 & 0xFFF) << 4]
    compile_for_cuda(translate(LIBRARY + source, "cuda", launch="box").source, "braces.metal")


OF_ONE_NAME = {
    "bit-fields in both": (
        "namespace a { struct P { uint u : 3, v : 5; }; } namespace b { struct P { uint w : 4, v : 9; }; }"
    ),
    "one of them has none": "namespace a { struct P { uint u : 3, v : 5; }; } namespace b { struct P { uint w, v; }; }",
    "in classes": "struct a { struct P { uint u : 3, v : 5; }; }; struct b { struct P { uint w, v; }; };",
    "by other names": (
        "namespace c { struct P { uint w, v; }; } namespace a { struct P { uint u : 3, v : 5; }; }"
        "namespace b { using P = c::P; }"
    ),
    "in inner namespaces": (
        "namespace a { namespace c { struct P { uint u : 3, v : 5; }; } using c::P; }"
        "namespace b { struct P { uint w : 4, v : 12; P next() const { P p = *this; p.v += 1; return p; } }; }"
    ),
}
USES_OF_ONE_NAME = {
    "members": "a::P p; p.u = x[0]; p.v = x[1]; b::P q; q.w = x[2]; q.v = x[3];",
    "braces": "a::P p = {x[0], x[1]}; b::P q = {x[2], x[3]};",
    "temporary objects": "a::P p = a::P{x[0], x[1]}; b::P q = b::P{x[2], x[3]};",
    "pointers": (
        "a::P first; b::P second; thread a::P* r = &first; thread b::P* s = &second;"
        "r->u = x[0]; r->v = x[1]; s->w = x[2]; s->v = x[3]; a::P p = *r; b::P q = *s;"
    ),
}


@pytest.mark.parametrize("declarations", OF_ONE_NAME)
@pytest.mark.parametrize("use", USES_OF_ONE_NAME)
def test_classes_of_one_name_have_bit_fields_of_their_own(declarations: str, use: str) -> None:
    source = f"""#include <metal_stdlib>
using namespace metal;
{OF_ONE_NAME[declarations]}
inline uint sum(a::P p) {{ return p.v + p.u; }}
inline uint sum(b::P p) {{ return p.v * 10 + p.w; }}
kernel void f(device const uint* x, device uint* y) {{
    {USES_OF_ONE_NAME[use]}
    y[0] = p.u; y[1] = p.v; y[2] = q.w; y[3] = q.v; y[4] = p.v + 1; y[5] = q.v + 1; y[6] = sum(p); y[7] = sum(q);
    p.v--; q.v += 2; y[8] = p.v; y[9] = q.v;
}}"""
    y = np.zeros(10, np.uint32)
    mg.compile(source).function("f")(1, np.array([5, 3, 11, 300], np.uint32), y)
    assert y.tolist() == [5, 3, 11, 300, 4, 301, 8, 3011, 2, 302]
