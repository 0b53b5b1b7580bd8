"""What functions of metal_stdlib do together, with conversions between their types, and with the lanes of simdgroups."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from metal_runner import LIBRARY, evaluate, run
from nvrtc import compile_for_cuda

from mpsgrad.msl import translate
from mpsgrad.runtime import compile

SAMPLE = np.concatenate([[-3, 3], np.random.default_rng(7).uniform(-3, 3, 255)]).astype(np.float32)


def test_clamp() -> None:
    x = SAMPLE
    np.testing.assert_array_equal(evaluate("out[i] = clamp(a[i], -1.0, 2.0);", x), np.clip(x, -1, 2))
    got = evaluate("out[i] = dot(clamp(float4(a[i]), float4(0.5), float4(1.5)), float4(1, 0, 0, 0));", x)
    np.testing.assert_array_equal(got, np.clip(x, 0.5, 1.5))


def test_functions_with_a_second_result() -> None:
    x = SAMPLE
    sine_and_cosine = evaluate("float c; float s = sincos(a[i], c); out[i] = s + 10.0 * c;", x)
    np.testing.assert_allclose(sine_and_cosine, np.sin(x.astype(float)) + 10 * np.cos(x.astype(float)), atol=2e-5)
    parts = evaluate("float whole; float part = modf(a[i], whole); out[i] = part + 100.0 * whole;", x)
    fraction, whole = np.modf(x.astype(float))
    np.testing.assert_allclose(parts, fraction + 100 * whole, atol=1e-4)
    powers = evaluate("int e; float m = frexp(a[i], e); out[i] = ldexp(m, e + 1);", x)
    np.testing.assert_array_equal(powers, 2 * x)


EXPONENTS = (-200, -149, -130, 127, 130, 200)
# A kernel each: where the steps to two powers have one in common, the compiler makes no constants of them.
POWERS = "".join(
    f"""
kernel void powers_{k}(device const float* x, device float* y, uint i [[thread_position_in_grid]]) {{ y[i] = ldexp(x[i], {e}); }}
kernel void powers_of_2_{k}(device const float* x, device float* y, uint i [[thread_position_in_grid]]) {{
    y[i] = ldexp(float2(x[i]), int2({e})).y;
}}
"""
    for k, e in enumerate(EXPONENTS)
)


def test_powers_of_two_that_no_float_holds() -> None:
    x = np.array([0, 1e-38, 1e-30, 1, -3e38, np.inf], np.float32)
    library = compile(LIBRARY + POWERS)
    for k, exponent in enumerate(EXPONENTS):
        with np.errstate(over="ignore"):
            wanted = np.ldexp(x.astype(float), exponent).astype(np.float32)
        for name in ("powers", "powers_of_2"):
            y = np.zeros_like(x)
            library.function(f"{name}_{k}")(len(x), x, y)
            np.testing.assert_array_equal(y, wanted)


STEPS = """
kernel void steps(device const float* x, device float2* y, uint i [[thread_position_in_grid]]) {
    y[i] = float2(step(0.5f, x[i]), step(float3(0.5f), float3(x[i])).z);
}
"""


def test_a_step_is_down_only_below_its_edge() -> None:
    x, y = np.array([-1, 0.5, 2, np.nan], np.float32), np.zeros((4, 2), np.float32)
    compile(LIBRARY + STEPS, fast_math=False).function("steps")(4, x, y)
    assert y.tolist() == [[0, 0], [1, 1], [1, 1], [1, 1]]


def test_classification() -> None:
    x = np.array([0.0, 1.0, -np.inf, np.inf, np.nan, -0.0], np.float32)
    got = evaluate(
        "out[i] = isnan(a[i]) + 2 * isinf(a[i]) + 4 * isfinite(a[i]) + 8 * signbit(a[i]);", x, output=np.int32
    )
    expected = np.isnan(x) + 2 * np.isinf(x) + 4 * np.isfinite(x) + 8 * np.signbit(x)
    finite = ~np.isnan(x)
    np.testing.assert_array_equal(got[finite], expected[finite])
    assert got[4] & 7 == 1


INTEGERS: list[tuple[str, Callable]] = [
    ("abs(int(a[i]))", lambda a, b: np.abs(a.view(np.int32))),
    ("max(a[i], b[i])", np.maximum),
    ("min(int(a[i]), int(b[i]))", lambda a, b: np.minimum(a.view(np.int32), b.view(np.int32))),
    ("clamp(int(a[i]), -5, 5)", lambda a, b: np.clip(a.view(np.int32), -5, 5)),
    ("clz(a[i])", lambda a, b: [32 - int(x).bit_length() for x in a]),
    ("ctz(a[i])", lambda a, b: [(int(x) & -int(x)).bit_length() - 1 if x else 32 for x in a]),
    ("popcount(a[i])", lambda a, b: [int(x).bit_count() for x in a]),
    ("mulhi(a[i], b[i])", lambda a, b: [int(x) * int(y) >> 32 for x, y in zip(a, b, strict=True)]),
    ("mulhi(int(a[i]), int(b[i]))",
     lambda a, b: [int(x) * int(y) >> 32 for x, y in zip(a.view(np.int32), b.view(np.int32), strict=True)]),
    ("reverse_bits(a[i])", lambda a, b: [int(f"{x:032b}"[::-1], 2) for x in a]),
    ("rotate(a[i], 7u)", lambda a, b: (a << np.uint32(7)) | (a >> np.uint32(25))),
    ("extract_bits(a[i], 5, 9)", lambda a, b: (a >> np.uint32(5)) & np.uint32(511)),
    ("extract_bits(int(a[i]), 5, 9)", lambda a, b: ((a.astype(np.int64) << 18) & 0xFFFFFFFF).astype(np.uint32).view(np.int32) >> 23),
    ("insert_bits(a[i], b[i], 4, 8)", lambda a, b: (a & np.uint32(0xFFFFF00F)) | ((b & np.uint32(255)) << np.uint32(4))),
    ("absdiff(a[i], b[i])", lambda a, b: np.where(a > b, a - b, b - a)),
    ("addsat(a[i], b[i])", lambda a, b: np.minimum(a.astype(np.uint64) + b, 2**32 - 1)),
    ("subsat(a[i], b[i])", lambda a, b: np.where(a > b, a - b, 0)),
    ("hadd(a[i], b[i])", lambda a, b: (a.astype(np.uint64) + b) >> 1),
    ("rhadd(a[i], b[i])", lambda a, b: (a.astype(np.uint64) + b + 1) >> 1),
    ("madhi(a[i], b[i], 3u)", lambda a, b: [((int(x) * int(y) >> 32) + 3) % 2**32 for x, y in zip(a, b, strict=True)]),
    ("a[i] / max(b[i], 1u) + a[i] % max(b[i], 1u)", lambda a, b: a // np.maximum(b, 1) + a % np.maximum(b, 1)),
    ("int(a[i]) >> 3", lambda a, b: a.view(np.int32) >> 3),
    ("uint(uchar(a[i])) + uint(ushort(b[i]))", lambda a, b: a.astype(np.uint8).astype(np.uint32) + b.astype(np.uint16)),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "function"), INTEGERS, ids=lambda v: v if isinstance(v, str) else "")
def test_integer_function(expression: str, function: Callable) -> None:
    generator = np.random.default_rng(3)
    a = generator.integers(0, 2**32, 200, dtype=np.uint32)
    b = generator.integers(0, 2**32, 200, dtype=np.uint32)
    a[:5] = [0, 1, 2**31, 2**32 - 1, 2**31 - 1]
    b[:5] = [0, 2**32 - 1, 1, 2**32 - 1, 2**31]
    with np.errstate(over="ignore"):
        expected = np.asarray(function(a, b)).astype(np.int64) & 0xFFFFFFFF
    among = [f"out[i] = {each};" for each, _ in INTEGERS]
    got = evaluate(f"out[i] = {expression};", a, b, output=np.uint32, among=among)
    np.testing.assert_array_equal(got, expected.astype(np.uint32))


def test_saturated_products_in_simdgroups() -> None:
    a = np.random.default_rng(8).integers(-(2**31), 2**31, (3, 64)).astype(np.int32)
    a[:, :32] >>= 16
    wanted = np.clip(a[0].astype(np.int64) * a[1] + a[2], -(2**31), 2**31 - 1)
    np.testing.assert_array_equal(evaluate("out[i] = madsat(a[i], b[i], c[i]) + 0 * simd_sum(1);", *a, output=np.int32, of_user=True), wanted)
    b = a.view(np.uint32)
    products = [min(int(x) * int(y) + int(z), 2**32 - 1) for x, y, z in b.T]
    np.testing.assert_array_equal(
        evaluate("out[i] = madsat(uint2(a[i]), uint2(b[i]), uint2(c[i])).y + 0 * simd_sum(1);", *b, output=np.uint32, of_user=True), products
    )


def test_geometric_functions() -> None:
    generator = np.random.default_rng(5)
    a, b = generator.normal(size=(2, 3)).astype(np.float32)
    before = "float3 load(device const float* p) { return float3(p[0], p[1], p[2]); }"
    parts = ["dot(x, y)", "length(x)", "length_squared(x)", "distance(x, y)", "distance_squared(x, y)", "normalize(x).y",
             "cross(x, y).x", "cross(x, y).z", "reflect(x, normalize(y)).x", "faceforward(x, x, y).x"]  # fmt: skip
    chain = "".join(f"if (i == {k}) out[i] = {part};" for k, part in enumerate(parts))
    got = evaluate(f"float3 x = load(a), y = load(b); {chain}", a, b, before=before, count=len(parts))
    x, y = a.astype(float), b.astype(float)
    unit = y / np.linalg.norm(y)
    expected = [
        x @ y, np.linalg.norm(x), x @ x, np.linalg.norm(x - y), (x - y) @ (x - y), x[1] / np.linalg.norm(x),
        np.cross(x, y)[0], np.cross(x, y)[2], (x - 2 * (unit @ x) * unit)[0], x[0] if y @ x < 0 else -x[0],
    ]  # fmt: skip
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_vector_selection_and_tests_of_masks() -> None:
    x = np.linspace(-2, 2, 40, dtype=np.float32)
    got = evaluate(
        "float4 v = float4(a[i], -a[i], 1, -1); bool4 m = v > float4(0.0); float4 s = select(v, float4(9), m);"
        "half4 h = select(half4(v), half4(5), v > 1.5);"
        "out[i] = s.x + 10 * s.y + 100 * any(m) + 1000 * all(m) + 10000 * all(v < 3.0) + float(h.x) * 0.5 + any(!m);",
        x,
    )
    v = np.stack([x, -x, np.ones_like(x), -np.ones_like(x)])
    m = v > 0
    s = np.where(m, 9, v)
    h = np.where(x.astype(np.float16) > 1.5, 5, x.astype(np.float16)).astype(np.float32)
    expected = s[0] + 10 * s[1] + 100 * m.any(0) + 1000 * m.all(0) + 10000.0 + h * 0.5 + (~m).any(0)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


SIMD: list[tuple[str, Callable]] = [
    ("simd_sum(x)", lambda x: np.full(32, x.sum())),
    ("simd_max(x)", lambda x: np.full(32, x.max())),
    ("simd_min(x)", lambda x: np.full(32, x.min())),
    ("simd_max(lane == 3 ? NAN : -1.0 - abs(x))", lambda x: np.full(32, -1 - np.abs(np.delete(x, 3)).min())),
    ("simd_min(lane == 3 ? NAN : lane == 4 ? INFINITY : x)", lambda x: np.full(32, np.delete(x, [3, 4]).min())),
    ("simd_max(lane == 3 ? -INFINITY : half(lane))", lambda x: np.full(32, 31.0)),
    ("simd_product(1.0 + x * 0.01)", lambda x: np.full(32, np.prod(1 + x * 0.01))),
    ("simd_prefix_inclusive_sum(x)", np.cumsum),
    ("simd_prefix_exclusive_sum(x)", lambda x: np.cumsum(x) - x),
    ("simd_prefix_inclusive_product(1.0 + x * 0.01)", lambda x: np.cumprod(1 + x * 0.01)),
    ("simd_broadcast(x, 5)", lambda x: np.full(32, x[5])),
    ("simd_broadcast_first(x)", lambda x: np.full(32, x[0])),
    ("simd_shuffle(x, ushort((lane * 7) & 31))", lambda x: x[(np.arange(32) * 7) & 31]),
    ("simd_shuffle_xor(x, 9)", lambda x: x[np.arange(32) ^ 9]),
    ("simd_shuffle_down(x, 3)", lambda x: np.concatenate([x[3:], x[29:]])),
    ("simd_shuffle_up(x, 3)", lambda x: np.concatenate([x[:3], x[:29]])),
    ("simd_shuffle_rotate_down(x, 3)", lambda x: np.roll(x, -3)),
    ("simd_shuffle_rotate_up(x, 3)", lambda x: np.roll(x, 3)),
    ("quad_sum(x)", lambda x: np.repeat(x.reshape(8, 4).sum(1), 4)),
    ("quad_max(x)", lambda x: np.repeat(x.reshape(8, 4).max(1), 4)),
    ("quad_min(x)", lambda x: np.repeat(x.reshape(8, 4).min(1), 4)),
    ("quad_broadcast(x, 2)", lambda x: np.repeat(x.reshape(8, 4)[:, 2], 4)),
    ("quad_shuffle_xor(x, 1)", lambda x: x[np.arange(32) ^ 1]),
    ("quad_shuffle_down(x, 1)", lambda x: x.reshape(8, 4)[:, [1, 2, 3, 3]].ravel()),
    ("quad_shuffle_rotate_up(x, 1)", lambda x: x.reshape(8, 4)[:, [3, 0, 1, 2]].ravel()),
    ("simd_sum(float4(x, 2 * x, 0, 1)).y", lambda x: np.full(32, 2 * x.sum())),
    ("simd_any(x > 100.0) + 2 * simd_all(x < 100.0)", lambda x: np.full(32, 2.0)),
    ("popcount(uint(ulong(simd_ballot(lane % 3 == 0))))", lambda x: np.full(32, 11.0)),
    ("simd_xor(uint(lane) * 5u)", lambda x: np.full(32, np.bitwise_xor.reduce(np.arange(32) * 5))),
    ("simd_sum(half(lane))", lambda x: np.full(32, 496.0)),
    ("simd_max(ushort(lane))", lambda x: np.full(32, 31.0)),
]


@pytest.mark.parametrize(("expression", "function"), SIMD, ids=lambda v: v if isinstance(v, str) else "")
def test_simdgroup_function(expression: str, function: Callable) -> None:
    x = np.random.default_rng(11).normal(size=64).astype(np.float32)
    among = [f"float x = a[i]; out[i] = {each};" for each, _ in SIMD]
    got = evaluate(f"float x = a[i]; out[i] = {expression};", x, among=among)
    expected = np.concatenate([function(half.astype(float)) for half in (x[:32], x[32:])])
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


def test_simdgroup_functions_see_only_the_lanes_that_take_part() -> None:
    """In users' kernels: all lanes take part in the package's own."""
    got = evaluate("out[i] = -1; if (lane % 3 == 0) out[i] = simd_sum(1.0);", np.zeros(64, np.float32), of_user=True)
    lane = np.arange(64) % 32
    np.testing.assert_array_equal(got, np.where(lane % 3 == 0, 11, -1))


def test_simdgroup_matrices_multiply_in_the_documented_layout() -> None:
    generator = np.random.default_rng(2)
    a, b = generator.normal(size=(2, 64)).astype(np.float32)
    body = (
        "simdgroup_float8x8 x, y, z = make_filled_simdgroup_matrix<float, 8, 8>(1.0); simdgroup_load(x, a, 8);"
        "simdgroup_load(y, b, 8, ulong2(0, 0), true); simdgroup_multiply_accumulate(z, x, y, z);"
        "if (i < 32) { simdgroup_store(z, out, 8); } threadgroup_barrier(mem_flags::mem_device);"
    )
    got = evaluate(body, a, b, count=64).reshape(8, 8)
    np.testing.assert_allclose(got, 1 + a.reshape(8, 8) @ b.reshape(8, 8).T, rtol=1e-5, atol=1e-5)
    elements = evaluate(
        "simdgroup_float8x8 x; simdgroup_load(x, a, 8); if (i < 32) {"
        "out[2 * lane] = x.thread_elements()[0]; out[2 * lane + 1] = x.thread_elements()[1]; }",
        a,
    )
    lane = np.arange(32)
    row, column = (lane >> 4 & 1) * 4 + (lane >> 1 & 3), (lane >> 3 & 1) * 4 + (lane & 1) * 2
    np.testing.assert_array_equal(elements.reshape(32, 2)[:, 0], a.reshape(8, 8)[row, column])
    np.testing.assert_array_equal(elements.reshape(32, 2)[:, 1], a.reshape(8, 8)[row, column + 1])


@pytest.mark.parametrize("flow", ["", "if (lane < 40)", "if (i >= 32)", "for (uint k = 0; k < i / 32; k++)"])
@pytest.mark.parametrize("kinds", [("float", "float"), ("half", "float"), ("half", "half")])
def test_matrices_are_multiplied_whatever_flow_a_users_compiler_sees(kinds: tuple[str, str], flow: str) -> None:
    factor, sum_of = kinds
    generator = np.random.default_rng(3)
    a, b = generator.integers(-4, 5, (2, 64)).astype(np.float32)
    body = (
        f"simdgroup_matrix<{factor}, 8, 8> x, y; simdgroup_matrix<{sum_of}, 8, 8> z = simdgroup_matrix<{sum_of}, 8, 8>(0);"
        f"threadgroup {factor} p[64], q[64]; p[i] = a[i]; q[i] = b[i]; threadgroup_barrier(mem_flags::mem_threadgroup);"
        "simdgroup_load(x, p, 8); simdgroup_load(y, q, 8);"
        f"{flow} {{ simdgroup_multiply_accumulate(z, x, y, z); simdgroup_multiply_accumulate(z, y, x, z); }}"
        "out[i] = float(z.thread_elements()[0]) + 4096 * float(z.thread_elements()[1]);"
    )
    got = evaluate(body, a, b, of_user=True).reshape(2, 32)
    x, y = a.reshape(8, 8), b.reshape(8, 8)
    lane = np.arange(32)
    row, column = (lane >> 4 & 1) * 4 + (lane >> 1 & 3), (lane >> 3 & 1) * 4 + (lane & 1) * 2
    product = x @ y + y @ x
    expected = product[row, column] + 4096 * product[row, column + 1]
    np.testing.assert_array_equal(got[0], expected if flow in ("", "if (lane < 40)") else np.zeros(32))
    np.testing.assert_array_equal(got[1], expected)


def test_atomics_count_every_thread() -> None:
    counts = evaluate(
        "device atomic_uint* counts = (device atomic_uint*)out;"
        "atomic_fetch_add_explicit(&counts[i % 4], 1, memory_order_relaxed);"
        "atomic_fetch_max_explicit(&counts[4], i, memory_order_relaxed);"
        "uint seen = atomic_load_explicit(&counts[5], memory_order_relaxed);"
        "while (!atomic_compare_exchange_weak_explicit(&counts[5], &seen, seen + 2, memory_order_relaxed,"
        " memory_order_relaxed)) {}",
        np.zeros(1000, np.float32),
        output=np.uint32,
    )
    np.testing.assert_array_equal(counts[:6], [250, 250, 250, 250, 999, 2000])


def test_atomics_that_are_only_read_may_be_const() -> None:
    source = """
    uint sum(const device atomic_uint* a, uint n) {
        uint s = 0;
        for (uint k = 0; k < n; k++) s += atomic_load_explicit(a + k, memory_order_relaxed);
        return s;
    }
    kernel void k(device const atomic_uint* a, const volatile device atomic_int& b, device int* o) {
        threadgroup atomic_int t;
        const threadgroup atomic_int* p = &t;
        atomic_store_explicit(&t, 100, memory_order_relaxed);
        o[0] = sum(a, 3) + atomic_load_explicit(&b, memory_order_relaxed) + atomic_load_explicit(p, memory_order_relaxed);
    }"""
    a, b, o = np.array([1, 2, 3], np.uint32), np.array([-10], np.int32), np.zeros(1, np.int32)
    assert run(LIBRARY + source, "k", a, b, o, threads=1)[2][0] == 96
    compile_for_cuda(translate(LIBRARY + source, "cuda", filename="atomics.metal").source, "atomics.metal")


def test_the_largest_and_the_smallest_of_atomics_of_64_bits() -> None:
    source = """
    kernel void k(device atomic_ulong* a, device const ulong* x, uint i [[thread_position_in_grid]]) {
        atomic_max_explicit(&a[0], x[i], memory_order_relaxed);
        atomic_min_explicit((device atomic<ulong>*)a + 1, x[i], memory_order_relaxed);
    }"""
    x = np.random.default_rng(3).integers(0, 2**64 - 1, 1000, np.uint64)
    a = np.array([0, 2**64 - 1], np.uint64)
    compile(LIBRARY + source, language_version="2.4").function("k")(x.size, a, x)
    assert a.tolist() == [x.max(), x.min()]
    compile_for_cuda(translate(LIBRARY + source, "cuda", definitions={"__METAL_VERSION__": "240"}).source, "ulong.metal")


def test_packed_vectors_of_bfloat() -> None:
    source = """
    struct S { bfloat tag; packed_bfloat3 v; };
    static_assert(sizeof(S) == 8 && sizeof(packed_bfloat4) == 8 && sizeof(packed_bfloat2) == 4, "");
    kernel void k(device const S* x, device packed_bfloat3* y, device float* z, uint i [[thread_position_in_grid]]) {
        bfloat3 v = x[i].v;
        packed_bfloat3 w = packed_bfloat3(v * bfloat(2));
        w.y = bfloat(7);
        y[i] = w;
        y[i][2] += bfloat(1);
        packed_bfloat2 two(bfloat(1), bfloat(2));
        packed_bfloat4 four = bfloat4(v, bfloat(3));
        z[i] = float(x[i].tag) + float3(x[i].v).z + float((x[i].v + v).y) + float(two.y) + float(four[3]);
    }"""
    x = np.random.default_rng(4).integers(-8, 8, (8, 4)).astype(np.float32)
    y, z = np.zeros((8, 3), np.uint16), np.zeros(8, np.float32)
    compile(LIBRARY + source, language_version="3.1").function("k")(8, upper_halves(x), y, z)
    np.testing.assert_array_equal(y, upper_halves(np.stack([2 * x[:, 1], np.full(8, 7), 2 * x[:, 3] + 1], 1)))
    np.testing.assert_array_equal(z, x[:, 0] + x[:, 3] + 2 * x[:, 2] + 2 + 3)
    compile_for_cuda(translate(LIBRARY + source, "cuda", definitions={"__METAL_VERSION__": "310"}).source, "packed.metal")


def upper_halves(x: np.ndarray) -> np.ndarray:
    """Numbers that a bfloat has, as bfloats."""
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def test_limits_and_traits() -> None:
    parts = ["numeric_limits<float>::max()", "numeric_limits<half>::lowest()", "float(numeric_limits<int>::min())",
             "numeric_limits<float>::epsilon()", "float(is_same_v<float, half>)", "float(is_integral<uint>::value)",
             "conditional_t<true, float, int>(1.5)", "float(metal::is_floating_point_v<half>)", "M_PI_F", "FLT_MAX",
             "float(MAXHALF)", "float(is_unsigned<uint>::value)", "float(sizeof(float3) + sizeof(packed_float3) * 100)",
             "float(sizeof(float3x3) + sizeof(half3) * 100 + sizeof(bool) * 10000 + sizeof(long) * 100000)"]  # fmt: skip
    chain = "".join(f"if (i == {k}) out[i] = {part};" for k, part in enumerate(parts))
    got = evaluate(chain, np.zeros(len(parts), np.float32))
    expected = [3.4028235e38, -65504, -(2.0**31), 2.0**-23, 0, 1, 1.5, 1, np.pi, 3.4028235e38, 65504, 1, 1216, 810848]
    np.testing.assert_array_equal(got, np.array(expected, np.float32))
