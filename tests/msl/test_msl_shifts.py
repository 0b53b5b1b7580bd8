"""Shift counts are taken modulo the width of what is shifted."""

from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY, evaluate
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.msl import translate

# Of constants, so that the compiler itself tells what they are.
EQUAL = [
    ("2 << 100", "32"),
    ("1 << 32", "1"),
    ("1u << 33", "2u"),
    ("1L << 64", "1L"),
    ("1L << 40", "1099511627776L"),
    ("5L >> 65", "2L"),
    ("-8 >> 33", "-4"),
    ("uchar(3) << 9", "1536"),
    ("short(1) << 35", "8"),
    ("1 << 2 << 33", "8"),
    ("1 << 1 + 32", "2"),
    ("(1 << 3) | 1 << 36", "24"),
    ("256 >> COUNT", "8"),
    ("COUNT << 33", "74"),
]


def test_constant_shifts_on_cuda() -> None:
    lines = [f'static_assert(({left}) == {right}, "{left}");' for left, right in EQUAL]
    source = f"{LIBRARY}constexpr constant int COUNT = 37;\n" + "\n".join(lines) + "\nkernel void k(device int* x) {}\n"
    compile_for_cuda(translate(source, "cuda", filename="shifts.metal").source, "shifts.metal")


def wrapped(x: np.ndarray, bits: int) -> np.ndarray:
    """The integers ``x`` modulo 2^bits, as signed ones."""
    return np.array([((int(each) + (1 << bits - 1)) % (1 << bits)) - (1 << bits - 1) for each in x])


@pytest.mark.parametrize(
    ("body", "bits", "is_left", "first"),
    [
        ("out[i] = a[i] << b[i];", 32, True, 32),
        ("out[i] = a[i] >> b[i];", 32, False, 32),
        ("out[i] = a[i]; out[i] <<= b[i];", 32, True, 32),
        ("out[i] = a[i]; out[i] >>= b[i] + 0;", 32, False, 32),
        ("out[i] = (long(a[i]) << b[i]);", 64, True, 32),
        ("out[i] = long2(a[i], 1).x >> b[i];", 64, False, 32),
        ("out[i] = (int3(a[i]) << int3(b[i])).y;", 32, True, 32),
        ("out[i] = (short2(a[i]) >> short2(b[i])).y;", 16, False, 16),
        ("char4 v = char4(a[i]); v <<= char4(b[i]); out[i] = v.w;", 8, True, 8),
        ("short4 v = short4(a[i]); v.zx >>= short(b[i]); out[i] = v.x;", 16, False, 16),
        ("packed_int2 v = packed_int2(a[i]); out[i] = (v << b[i]).y;", 32, True, 32),
    ],
)
def test_shifts(body: str, bits: int, is_left: bool, first: int) -> None:
    generator = np.random.default_rng(1)
    a = generator.integers(-(2**31), 2**31, 100).astype(np.int32)
    b = generator.integers(-70, 100, 100).astype(np.int32)
    x, count = wrapped(a, first).astype(object), b & (bits - 1)
    exact = [int(v) << int(n) if is_left else int(v) >> int(n) for v, n in zip(x, count, strict=True)]
    expected = wrapped(np.array(exact, object), bits) if is_left else np.array(exact, object)
    got = evaluate(body, a, b, output=np.int64 if bits == 64 else np.int32)
    np.testing.assert_array_equal(got, expected.astype(np.int64))


OWN = """
struct Stream { int total; };
thread Stream& operator<<(thread Stream& s, int x) { s.total = 10 * s.total + x; return s; }
struct Bits { uint b; Bits operator<<(int n) const { return Bits{b * uint(n)}; } };
enum Place { third = 3 };
"""


def test_operators_of_the_users_own() -> None:
    body = "Stream s = {0}; s << a[i] << 2; Bits b = {5}; out[i] = s.total + int((b << 40).b) + (1 << third);"
    head = "kernel void k(device int* a, device int* out, uint i [[thread_position_in_grid]])"
    source = f"{LIBRARY}{OWN}{head} {{ {body} }}"
    compile_for_cuda(translate(source, "cuda", filename="own.metal").source, "own.metal")
    a = np.array([1, 4], np.int32)
    np.testing.assert_array_equal(evaluate(body, a, output=np.int32, before=OWN), 10 * a + 2 + 200 + 8)


def test_a_template_is_written_the_same_for_each_instance() -> None:
    source = LIBRARY + """
template <typename T> kernel void f(device T* x, device float4* y, uint i [[thread_position_in_grid]]) {
    x[i] <<= 2 * (i % 4);
    y[i] = -(float4)x[i] + 1;
}
template [[host_name("f_int")]] kernel void f<int>(device int*, device float4*, uint);
template [[host_name("f_uint")]] kernel void f<uint>(device uint*, device float4*, uint);
template [[host_name("f_short")]] kernel void f<short>(device short*, device float4*, uint);
"""
    compile_for_cuda(translate(source, "cuda").source, "shifts.metal")
    library = mg.compile(source)
    for name, dtype in (("f_int", np.int32), ("f_uint", np.uint32), ("f_short", np.int16)):
        x, y = np.arange(1, 9, dtype=dtype), np.zeros((8, 4), np.float32)
        library.function(name)(8, x, y)
        shifted = np.arange(1, 9) << 2 * (np.arange(8) % 4)
        np.testing.assert_array_equal(x, shifted)
        np.testing.assert_array_equal(y, 1.0 - np.stack([shifted] * 4, axis=1))
