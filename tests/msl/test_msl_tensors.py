"""Metal 4's tensors and products of matrices, against NumPy in float64."""

# Code is easier to read on lines of its own length.
# ruff: noqa: E501
from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.errors import GeometryError, ShaderError
from mpsgrad.msl import translate
from mpsgrad.msl.lint import lint

HEAD = """#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
"""


class Product(NamedTuple):
    """A product by tiles of ``m`` x ``n``, of numbers of these types, by so many simdgroups, in ``steps`` of terms or
    in one; ``at_once`` keeps the sums in registers."""

    left: str
    right: str
    sums: str
    m: int
    n: int
    simdgroups: int
    transposes: tuple[bool, bool] = (False, False)
    step: int | None = None
    at_once: bool = False


PRODUCTS = [
    Product("half", "half", "float", 64, 32, 4),
    Product("float", "float", "float", 32, 48, 2, (True, False), step=16, at_once=True),
    Product("half", "half", "half", 16, 16, 1, (False, True)),
    Product("bfloat", "bfloat", "float", 9, 7, 1, (True, True), step=5, at_once=True),
    Product("char", "uchar", "int", 40, 24, 3, (False, True), step=8),
    Product("uchar", "char", "float", 32, 16, 3, at_once=True),
]
FORMATS = {"half": np.float16, "float": np.float32, "bfloat": np.uint16, "char": np.int8, "uchar": np.uint8, "int": np.int32}


def source_of(product: Product) -> str:
    """A kernel for ``size`` = (rows, columns, terms), a tile for each threadgroup."""
    left, right, sums, m, n, simdgroups, (turned_left, turned_right), step, at_once = product
    a, b = ("{size.x, size.z}" if turned_left else "{size.z, size.x}"), ("{size.z, size.y}" if turned_right else "{size.y, size.z}")
    first = "k" if step else "0"
    slice_a = f"A.slice(tile.y * {m}, {first})" if turned_left else f"A.slice({first}, tile.y * {m})"
    slice_b = f"B.slice({first}, tile.x * {n})" if turned_right else f"B.slice(tile.x * {n}, {first})"
    mode = "multiply_accumulate" if step else "multiply"
    terms = step if step else "static_cast<int>(dynamic_extent)"
    loop = f"for (int k = 0; k < size.z; k += {step})" if step else ""
    flags = ", ".join("true" if each else "false" for each in product.transposes)
    begin, end, target = f"auto c = C.slice(tile.x * {n}, tile.y * {m});", "", "c"
    if at_once:
        begin += f"""
      auto registers = op.template get_destination_cooperative_tensor<decltype(A), decltype(B), {sums}>();
      for (ushort i = 0; i < registers.get_capacity(); ++i) if (registers.is_valid_element(i)) registers[i] = 0;"""
        end, target = "registers.store(c);", "registers"
    return f"""{HEAD}kernel void f(device const {left}* a, device const {right}* b, device {sums}* out, constant int3& size, uint2 tile [[threadgroup_position_in_grid]]) {{
      tensor<device const {left}, dextents<int32_t, 2>, tensor_inline> A(a, dextents<int32_t, 2>{a});
      auto B = tensor(b, dextents<int, 2>{b});
      tensor C(out, dextents<int, 2>{{size.y, size.x}}, array<int, 2>{{1, size.y}});
      constexpr auto descriptor = matmul2d_descriptor({m}, {n}, {terms}, {flags}, false, matmul2d_descriptor::mode::{mode});
      matmul2d<descriptor, execution_simdgroups<{simdgroups}>> op;
      {begin}
      {loop} {{
        auto tile_a = {slice_a};
        auto tile_b = {slice_b};
        op.run(tile_a, tile_b, {target});
      }}
      {end}
    }}"""


def numbers(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Random numbers as a kernel gets them, and in float64."""
    if kind in ("char", "uchar"):
        info = np.iinfo(FORMATS[kind])
        stored = rng.integers(info.min, info.max, shape, FORMATS[kind], endpoint=True)
        return stored, stored.astype(np.float64)
    if kind == "bfloat":
        bits = rng.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16
        return bits.astype(np.uint16), (bits << 16).view(np.float32).astype(np.float64)
    stored = rng.standard_normal(shape).astype(FORMATS[kind])
    return stored, stored.astype(np.float64)


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda p: f"{p.left} {p.right} {p.sums}")
@given(rows=st.integers(1, 90), columns=st.integers(1, 90), terms=st.integers(1, 40), seed=st.integers(0, 99))
def test_products(product: Product, rows: int, columns: int, terms: int, seed: int) -> None:
    function = mg.compile(source_of(product), language_version="4.0").function("f")
    rng = np.random.default_rng(seed)
    a, exact_a = numbers(rng, product.left, (rows, terms))
    b, exact_b = numbers(rng, product.right, (terms, columns))
    turned_a, turned_b = (np.ascontiguousarray(x.T if turned else x) for x, turned in zip((a, b), product.transposes, strict=True))
    out = np.zeros((rows, columns), FORMATS[product.sums])
    if not product.step:
        out += 7  # which is written over
    grid = (-(-columns // product.n), -(-rows // product.m))
    size = np.array([rows, columns, terms], np.int32)
    arguments = grid, turned_a, turned_b, out, size
    function(*arguments, threadgroup=32 * product.simdgroups, grid_of_threadgroups=True)
    bound = 0.0
    if product.sums != "int":
        kinds = {"float": 2.0**-24, "half": 2.0**-11}
        bound = (terms + 1) * 2.0**-24 + kinds[product.sums]
    assert np.all(np.abs(out - exact_a @ exact_b) <= bound * (np.abs(exact_a) @ np.abs(exact_b)) + 1e-7 * (bound > 0))
    again = np.zeros_like(out)
    function(grid, turned_a, turned_b, again, size, threadgroup=32 * product.simdgroups, grid_of_threadgroups=True)
    assert np.array_equal(out.view(np.uint8), again.view(np.uint8))


@pytest.mark.usefixtures("opencl_device")
@pytest.mark.parametrize("product", PRODUCTS, ids=lambda p: f"{p.left} {p.right} {p.sums}")
def test_products_are_right_to_lint_checks_and_cuda(product: Product) -> None:
    source = source_of(product)
    assert lint(source, language_version="4.0") == []
    compile_for_cuda(translate(source, "cuda", launch="box", definitions={"__METAL_VERSION__": "400"}).source, "product.metal")
    rng = np.random.default_rng(1)
    a, b = (numbers(rng, kind, (10, 10))[0] for kind in (product.left, product.right))
    out, size = np.zeros((10, 10), FORMATS[product.sums]), np.full(3, 10, np.int32)
    function = mg.compile(source, language_version="4.0").function("f")
    options = {"threadgroup": 32 * product.simdgroups, "grid_of_threadgroups": True}
    assert function.check((1, 1), a, b, out, size, **options) == ()
    beyond = [*map(str, function.check((1, 1), a[:8], b, out, size, **options))]
    assert any("out-of-bounds" in each and "element 80 of 'a'" in each for each in beyond), beyond


FRAGMENTS = HEAD + """
template <bool turned_left, bool turned_right, typename T = float, typename Sum = float> void multiply(device const T* a, device const T* b, device Sum* c, uint lane) {
  constexpr auto descriptor = matmul2d_descriptor(16, 32, 16, turned_left, turned_right, true, matmul2d_descriptor::mode::multiply_accumulate);
  matmul2d<descriptor, execution_simdgroup> op;
  auto left = op.template get_left_input_cooperative_tensor<T, T, Sum>();
  auto right = op.template get_right_input_cooperative_tensor<T, T, Sum>();
  auto sums = op.template get_destination_cooperative_tensor<decltype(left), decltype(right), Sum>();
  short quad = lane >> 2, row = (quad & 4) | ((lane >> 1) & 3), column = ((quad & 2) | (lane & 1)) * 4;
  for (short i = 0; i < 8; ++i) {
    short y = row + i / 4 * 8, x = column + i % 4;
    left[i] = a[y * 16 + x];
    right[i] = turned_right ? b[y * 16 + x] : b[y * 32 + x];
    right[8 + i] = turned_right ? b[(16 + y) * 16 + x] : b[y * 32 + 16 + x];
    sums[i] = 1;
    sums[8 + i] = 2;
  }
  op.run(left, right, sums);
  for (short i = 0; i < 8; ++i) {
    short y = row + i / 4 * 8, x = column + i % 4;
    c[y * 32 + x] = sums[i];
    c[y * 32 + 16 + x] = sums[8 + i];
  }
}
kernel void plain(device const float* a, device const float* b, device float* c, uint lane [[thread_index_in_simdgroup]]) { multiply<false, false>(a, b, c, lane); }
kernel void turned(device const float* a, device const float* b, device float* c, uint lane [[thread_index_in_simdgroup]]) { multiply<true, true>(a, b, c, lane); }
kernel void of_bytes(device const char* a, device const char* b, device int* c, uint lane [[thread_index_in_simdgroup]]) { multiply<true, false>(a, b, c, lane); }
kernel void of_halves(device const half* a, device const half* b, device float* c, uint lane [[thread_index_in_simdgroup]]) { multiply<false, true>(a, b, c, lane); }
"""


FRAGMENT_KERNELS = [
    ("plain", "float", False, False),
    ("turned", "float", True, True),
    ("of_bytes", "char", True, False),
    ("of_halves", "half", False, True),
]


@pytest.mark.parametrize("name, kind, turns_left, turns_right", FRAGMENT_KERNELS)
def test_operands_in_registers_lie_as_on_apples_gpus(name: str, kind: str, turns_left: bool, turns_right: bool) -> None:
    (a, exact_a), (b, exact_b) = (numbers(np.random.default_rng(2), kind, shape) for shape in ((16, 16), (16, 32)))
    wanted = exact_a @ exact_b + np.repeat([1, 2], 16)
    left, right = (np.ascontiguousarray(x.T if turns else x) for x, turns in ((a, turns_left), (b, turns_right)))
    c = np.zeros((16, 32), np.int32 if kind == "char" else np.float32)
    mg.compile(FRAGMENTS, language_version="4.0").function(name)(32, left, right, c, threadgroup=32)
    assert np.abs(c - wanted).max() <= (0 if kind == "char" else 1e-5)


def test_operands_in_registers_compile_for_nvidia() -> None:
    translation = translate(FRAGMENTS, "cuda", launch="box", definitions={"__METAL_VERSION__": "400"})
    compile_for_cuda(translation.source, "fragments.metal")


REDUCTIONS = HEAD + """
kernel void soft_max(device half* a, device half* b, device float* y, device float* columns, constant int& k) {
  auto A = tensor(a, dextents<int, 2>{k, 16});
  auto B = tensor(b, dextents<int, 2>{k, 32});
  constexpr auto descriptor = matmul2d_descriptor(16, 32, dynamic_length_v<int>, false, true);
  matmul2d<descriptor, execution_simdgroup> op;
  auto scores = op.get_destination_cooperative_tensor<decltype(A), decltype(B), float>();
  op.run(A, B, scores);
  auto least = op.get_column_reduction_destination_cooperative_tensor<decltype(A), decltype(B), float>();
  reduce_columns(scores, least, reduction_operation::min, reduction_operation_identity<float>::min_identity);
  tensor Columns(columns, dextents<int, 1>{32});
  least.store(Columns);
  auto most = op.get_row_reduction_destination_cooperative_tensor<decltype(A), decltype(B), float>();
  reduce_rows(scores, most, reduction_operation::max, reduction_operation_identity<float>::max_identity);
  for (auto it = scores.begin(); it != scores.end(); ++it) *it = exp(*it - *most.map_iterator(it));
  auto sums = op.get_row_reduction_destination_cooperative_tensor<decltype(A), decltype(B), float>();
  reduce_rows(scores, sums);
  for (auto it = scores.begin(); it != scores.end(); it++) *it /= *sums.map_iterator(it);
  tensor Y(y, dextents<int, 2>{32, 16});
  scores.store(Y);
}
kernel void chained(device half* a, device half* b, device half* v, device float* y, device int* fits) {
  tensor<device half, extents<int, 32, 16>, tensor_inline> A(a, {});
  tensor<device half, extents<int, 32, 48>, tensor_inline> B(b, {});
  tensor<device half, extents<int, 16, 48>, tensor_inline> V(v, {});
  constexpr auto first = matmul2d_descriptor(16, 48, 32, false, true), second = matmul2d_descriptor(16, 16, 48);
  matmul2d<first, execution_simdgroup> scores_of;
  matmul2d<second, execution_simdgroup> sums_of;
  auto scores = scores_of.get_destination_cooperative_tensor<decltype(A), decltype(B), float>();
  scores_of.run(A, B, scores);
  auto of_rows = scores_of.get_row_reduction_destination_cooperative_tensor<decltype(A), decltype(B), float>();
  fits[1] = is_iterator_compatible(scores, of_rows) + 2 * is_iterator_compatible(of_rows, scores) + 4 * is_iterator_compatible(scores, scores);
  fits[0] = sums_of.is_compatible_as_left_input<half, half, float>(scores) + 2 * sums_of.is_compatible_as_right_input<half, half, float>(scores);
  auto weights = sums_of.get_left_input_cooperative_tensor<half, half, float>(scores);
  auto sums = sums_of.get_destination_cooperative_tensor<decltype(weights), decltype(V), float>();
  sums_of.run(weights, V, sums);
  tensor Y(y, dextents<int, 2>{16, 16});
  sums.store(Y);
}
kernel void places(device const float* x, device float* y) {
  constexpr auto descriptor = matmul2d_descriptor(6, 10, 4);
  matmul2d<descriptor, execution_simdgroup> op;
  tensor X(x, dextents<int, 2>{10, 5});
  auto c = op.get_destination_cooperative_tensor<decltype(X), decltype(X), float>();
  c.load(X);
  for (ushort i = 0; i < c.get_capacity(); ++i) {
    if (!c.get_mask(i)) continue;
    auto place = c.get_multidimensional_index(i);
    y[place[1] * 10 + place[0]] = c[i] + 100 * place[1] + 1000 * place[0];
  }
}
"""


def test_rows_and_columns_of_what_lies_in_registers() -> None:
    rng = np.random.default_rng(3)
    library = mg.compile(REDUCTIONS, language_version="4.0")
    a, b = rng.standard_normal((16, 21)).astype(np.float16), rng.standard_normal((32, 21)).astype(np.float16)
    y, columns = np.zeros((16, 32), np.float32), np.zeros(32, np.float32)
    library.function("soft_max")(32, a, b, y, columns, np.int32(21), threadgroup=32)
    scores = a.astype(np.float64) @ b.astype(np.float64).T
    powers = np.exp(scores - scores.max(1, keepdims=True))
    assert np.abs(y - powers / powers.sum(1, keepdims=True)).max() < 1e-5
    assert np.abs(columns - scores.min(0)).max() < 1e-5
    a, b, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((16, 32), (48, 32), (48, 16)))
    y, fits = np.zeros((16, 16), np.float32), np.zeros(2, np.int32)
    library.function("chained")(32, a, b, v, y, fits, threadgroup=32)
    weights = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float32).astype(np.float16).astype(np.float64)
    bound = 2.0**-10 * (np.abs(weights) @ np.abs(v.astype(np.float64)))
    assert np.all(np.abs(y - weights @ v.astype(np.float64)) <= bound) and fits.tolist() == [1, 5]
    x, found = rng.standard_normal((5, 10)).astype(np.float32), np.zeros((6, 10), np.float32)
    library.function("places")(32, x, found, threadgroup=32)
    wanted = np.vstack([x, np.zeros((1, 10))]) + 100 * np.arange(6)[:, None] + 1000 * np.arange(10)
    assert np.allclose(found, wanted)
    compile_for_cuda(translate(REDUCTIONS, "cuda", launch="box", definitions={"__METAL_VERSION__": "400"}).source, "reductions.metal")


OTHERS = HEAD + """
kernel void alone(device char* a, device uchar* b, device int* c, uint i [[thread_position_in_grid]]) {
  tensor<device char, extents<int, 5, 3>, tensor_inline> A(a + 15 * i, extents<int, 5, 3>());
  tensor<device uchar, extents<int, 4, 5>, tensor_inline> B(b + 20 * i, {});
  tensor<device int, extents<int, 4, 3>, tensor_inline> C(c + 12 * i, {});
  constexpr auto descriptor = matmul2d_descriptor(3, 4, 5, false, false, false, matmul2d_descriptor::mode::multiply_accumulate);
  matmul2d<descriptor, execution_thread> op;
  op.run(A, B, C);
}
kernel void tiles(device const float* a, device const float* b, device float* c, uint t [[thread_index_in_threadgroup]]) {
  threadgroup float left[24 * 8], right[8 * 40];
  for (uint k = t; k < 192; k += 64) left[k] = a[k];
  for (uint k = t; k < 320; k += 64) right[k] = b[k];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  tensor<threadgroup float, extents<int, 8, 24>, tensor_inline> A(left, {});
  tensor<threadgroup float, extents<int, 40, 8>, tensor_inline> B(right, {});
  tensor C(c, dextents<int, 2>{40, 24});
  constexpr auto descriptor = matmul2d_descriptor(24, 40, 8);
  matmul2d<descriptor, execution_simdgroups<2>> op;
  op.run(A, B, C);
}
kernel void parts(device float* x, device float* y) {
  tensor<device float, dextents<int32_t, 3>, tensor_inline> t(x, dextents<int32_t, 3>(4, 3, 2));
  auto s = t.slice(1, 1, 1);
  auto u = t.template slice<2, dynamic_extent, 1>(2, 1, 0);
  auto v = u.static_slice<1, 1, 1>(1, 1, 0);
  tensor w(x, extents<int, 3, dynamic_extent>(2), array<int, 2>{2, 5});
  y[0] = t[array<int, 3>{3, 2, 1}];
  y[1] = s.get_extent(0) + 10 * s.get_extent(1) + 100 * s.get_extent(2);
  y[2] = s[array<int, 3>{0, 1, 0}];
  y[3] = u.get_extent(0) + 10 * u.get_extent(1) + 100 * u.get_extent(2);
  y[4] = v[array<int, 3>{0, 0, 0}];
  y[5] = w[array<int, 2>{2, 1}] + 100 * w.get_stride(1) + 1000 * w.get_rank();
  s[array<int, 3>{1, 0, 0}] = -1;
}
"""


def test_other_operands_and_parts_of_tensors() -> None:
    rng = np.random.default_rng(4)
    library = mg.compile(OTHERS, language_version="4.0")
    a, b = rng.integers(-128, 127, (7, 3, 5)).astype(np.int8), rng.integers(0, 255, (7, 5, 4)).astype(np.uint8)
    c = np.ones((7, 3, 4), np.int32)
    library.function("alone")(7, a, b, c, threadgroup=7)
    assert np.array_equal(c, a.astype(int) @ b.astype(int) + 1)
    a, b = rng.standard_normal((24, 8)).astype(np.float32), rng.standard_normal((8, 40)).astype(np.float32)
    sums = np.zeros((24, 40), np.float32)
    library.function("tiles")(64, a, b, sums, threadgroup=64)
    assert np.abs(sums - a.astype(np.float64) @ b.astype(np.float64)).max() < 1e-5
    x, y = np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.zeros(6, np.float32)
    library.function("parts")(1, x, y)
    assert y.tolist() == [23, 3 + 20 + 100, x_before(1, 2, 1), 2 + 20 + 100, x_before(0, 2, 3), 9 + 500 + 2000]
    assert x[1, 1, 2] == -1
    compile_for_cuda(translate(OTHERS, "cuda", launch="box", definitions={"__METAL_VERSION__": "400"}).source, "others.metal")


def x_before(z: int, y: int, x: int) -> int:
    """The element of ``numpy.arange(24).reshape(2, 3, 4)``."""
    return 12 * z + 4 * y + x


STAGED = """#include <metal_stdlib>
#ifdef __HAVE_TENSOR__
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#endif
using namespace metal;
constant constexpr mpp::tensor_ops::matmul2d_descriptor WHOLE(16, 64, 32, true, true);
template <typename T, int Rows> struct Stage {
  static constexpr constant auto descriptor = mpp::tensor_ops::matmul2d_descriptor(Rows, 64, 32, true, true, true, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
  using operation = mpp::tensor_ops::matmul2d<descriptor, execution_simdgroups<4>>;
  using kept = tensor<threadgroup T, dextents<int32_t, 2>, tensor_inline>;
};
kernel void f(device const half* weights, device const float* x, device float* y, constant int3& size, threadgroup char* memory [[threadgroup(0)]],
              uint3 tile [[threadgroup_position_in_grid]], ushort t [[thread_index_in_threadgroup]]) {
  threadgroup half* a = (threadgroup half*)memory;
  threadgroup half* b = (threadgroup half*)(memory + 4096);
  const int M = size.x, N = size.y, K = size.z, row = tile.y * 64, column = tile.x * 32;
  Stage<half, 32>::kept A(a, dextents<int32_t, 2>(32, 64));
  auto B = tensor<threadgroup half, dextents<int32_t, 2>, tensor_inline>(b, dextents<int32_t, 2>(32, 32));
  mpp::tensor_ops::matmul2d<mpp::tensor_ops::matmul2d_descriptor(32, 64, 32, true, true, true, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate), execution_simdgroups<4>> named;
  typename Stage<half, 32>::operation same;
  mpp::tensor_ops::matmul2d<WHOLE, execution_simdgroups<4>> unused;
  auto sums = named.get_destination_cooperative_tensor<decltype(B), decltype(A), float>();
  for (short i = 0; i < sums.get_capacity(); ++i) sums[i] = 0;
  for (int k = 0; k < K; k += 32) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = t; i < 32 * 64; i += 128) a[i] = row + i / 32 < M && k + i % 32 < K ? weights[(row + i / 32) * K + k + i % 32] : 0.h;
    for (int i = t; i < 32 * 32; i += 128) b[i] = column + i % 32 < N && k + i / 32 < K ? half(x[(column + i % 32) * K + k + i / 32]) : 0.h;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    auto left = B.slice(0, 0), right = A.slice(0, 0);
    if (k % 64) named.run(left, right, sums);
    else same.run(left, right, sums);
  }
  auto C = tensor<device float, dextents<int32_t, 2>, tensor_inline>(y + row + column * M, dextents<int32_t, 2>(min(64, M - row), min(32, N - column)), array<int, 2>({1, M}));
  sums.store(C);
}
"""


@given(rows=st.integers(1, 130), columns=st.integers(1, 70), terms=st.integers(1, 100))
def test_tiles_staged_in_threadgroup_memory(rows: int, columns: int, terms: int) -> None:
    function = mg.compile(STAGED, language_version="4.0").function("f")
    rng = np.random.default_rng(5)
    weights, x = rng.standard_normal((rows, terms)).astype(np.float16), rng.standard_normal((columns, terms)).astype(np.float32)
    y = np.zeros((columns, rows), np.float32)
    grid, options = (-(-columns // 32), -(-rows // 64)), {"threadgroup": 128, "grid_of_threadgroups": True}
    function(grid, weights, x, y, (rows, columns, terms), threadgroup_memory=[6144], **options)
    exact = x.astype(np.float16).astype(np.float64), weights.astype(np.float64).T
    assert np.all(np.abs(y - exact[0] @ exact[1]) <= (terms + 1) * 2.0**-24 * (np.abs(exact[0]) @ np.abs(exact[1])))


@pytest.mark.usefixtures("opencl_device")
def test_checks_look_at_staged_tiles() -> None:
    function = mg.compile(STAGED, language_version="4.0").function("f")
    weights, x, y = np.ones((3, 5), np.float16), np.ones((4, 5), np.float32), np.zeros((4, 3), np.float32)
    options = {"threadgroup": 128, "grid_of_threadgroups": True, "threadgroup_memory": [6144]}
    assert function.check((1, 1), weights, x, y, (3, 4, 5), **options) == ()
    late = mg.compile(STAGED.replace("threadgroup_barrier(mem_flags::mem_threadgroup);\n    auto", "auto"), language_version="4.0")
    found = late.function("f").check((1, 1), weights, x, y, (3, 4, 5), **options)
    assert any(each.name == "data-race" for each in found), [*map(str, found)]


def test_earlier_versions_have_no_tensors() -> None:
    source = HEAD.replace("using namespace mpp::tensor_ops;", "") + """
    #if defined(__HAVE_TENSOR__) && __has_include(<MetalPerformancePrimitives/MetalPerformancePrimitives.h>)
    kernel void tensors(device int* y) { y[0] = __METAL_VERSION__; }
    #else
    struct tensor { int v; };
    kernel void others(device int* y) { tensor t = {__METAL_VERSION__}; y[0] = t.v; }
    #endif
    """
    for version, name in (("3.2", "others"), ("4.0", "tensors")):
        library = mg.compile(source, language_version=version)
        y = np.zeros(1, np.int32)
        library.function(name)(1, y)
        assert (*library.function_names,) == (name,) and y[0] == int(version.replace(".", "")) * 10


def test_what_is_not_carried_is_refused_with_the_reason() -> None:
    source = source_of(PRODUCTS[0])
    of_later = "tensor_inline", "matmul2d_descriptor"
    for text, name in zip((source, source.replace("tensor_inline", "Inline")), of_later, strict=True):
        with pytest.raises(ShaderError, match=f"'{name}' needs Metal 4.0 or later, and this is compiled as 3.2"):
            mg.compile(text, language_version="3.2")
    found = [*map(str, lint(source, language_version="3.2"))]
    assert any("use of undeclared identifier 'matmul2d_descriptor': " in each and "4.0" in each for each in found), found
    several = HEAD + """kernel void f(device float* y) {
      constexpr auto descriptor = matmul2d_descriptor(16, 16, 16);
      matmul2d<descriptor, execution_simdgroups<2>> op;
      auto a = op.get_left_input_cooperative_tensor<float, float, float>();
      auto b = op.get_right_input_cooperative_tensor<float, float, float>();
      auto c = op.get_destination_cooperative_tensor<decltype(a), decltype(b), float>();
      op.run(a, b, c);
      y[0] = c[0];
    }"""
    with pytest.raises(ShaderError, match="cooperative operands are those of one simdgroup"):
        mg.compile(several, language_version="4.0").function("f")
    mapped = several.replace("op.run(a, b, c);\n      y[0] = c[0];", "y[0] = *a.map_iterator(b.begin());").replace("16, 16, 16", "16, 32, 48")
    with pytest.raises(ShaderError, match="the tensors' elements lie with other threads; see is_iterator_compatible"):
        mg.compile(mapped, language_version="4.0").function("f")


def test_kernels_may_require_a_threadgroup() -> None:
    source = """#include <metal_stdlib>
    using namespace metal;
    constant int HEIGHT = 4;
    [[required_threads_per_threadgroup(8, HEIGHT)]] [[user_annotation("sizes")]]
    kernel void f(device uint* y, uint2 size [[threads_per_threadgroup]], uint2 i [[thread_position_in_grid]]) { y[i.y * 16 + i.x] = size.x * 100 + size.y; }
    """
    function = mg.compile(source, language_version="4.0").function("f")
    for options in ({}, {"threadgroup": (8, 4)}):
        y = np.zeros((16, 16), np.uint32)
        function((16, 16), y, **options)
        assert np.all(y == 804)
    with pytest.raises(GeometryError, match=r"threadgroup is \(4, 8\) but the kernel's required_threads_per_threadgroup is \(8, 4, 1\)"):
        function((16, 16), y, threadgroup=(4, 8))
    with pytest.raises(ShaderError, match="'required_threads_per_threadgroup' needs Metal 4.0 or later"):
        mg.compile(source, language_version="3.2")
    with pytest.raises(ShaderError, match=r"required_threads_per_threadgroup\(8, 400\) must have 1 to 3 extents of 1 to 1024 threads"):
        mg.compile(source.replace("HEIGHT = 4", "HEIGHT = 400"), language_version="4.0")


def test_class_templates_deduce_their_arguments_since_4() -> None:
    source = """#include <metal_stdlib>
    using namespace metal;
    template <typename T> struct Pair { T a, b; Pair(T x, T y) : a(x), b(y) {} };
    template <typename T> struct Held { T v; };
    template <typename T> Held(T) -> Held<T>;
    kernel void f(device float* y) {
      Pair p(1.5f, 2.0f);
      Held h{p.b};
      if constexpr (is_same_v<decltype(h), Held<float>>) y[0] = p.a + h.v;
    }"""
    y = np.zeros(1, np.float32)
    mg.compile(source, language_version="4.0").function("f")(1, y)
    assert y[0] == 3.5 and lint(source, language_version="4.0") == []
    compile_for_cuda(translate(source, "cuda", launch="box", definitions={"__METAL_VERSION__": "400"}).source, "pairs.metal")
    with pytest.raises(ShaderError, match="use of class template 'Pair' requires template arguments"):
        mg.compile(source, language_version="3.2")
