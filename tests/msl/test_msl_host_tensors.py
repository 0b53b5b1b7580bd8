"""Metal 4's tensors that the host passes: arrays, and what has a shape."""

# Code is easier to read on lines of its own length.
# ruff: noqa: E501
from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.errors import FormatError, ShaderError
from mpsgrad.msl import translate
from mpsgrad.msl.lint import lint

pytestmark = pytest.mark.usefixtures("opencl_device")

SOURCE = """#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
kernel void multiply(tensor<device half, dextents<int32_t, 2>> A [[buffer(0)]], metal::tensor<device const half, metal::dextents<int32_t, 2>, tensor_handle> B [[buffer(1)]],
                     tensor<device float, dextents<int32_t, 2>> C [[buffer(2)]], uint2 tile [[threadgroup_position_in_grid]]) {
  constexpr auto descriptor = matmul2d_descriptor(64, 32, static_cast<int>(dynamic_extent));
  matmul2d<descriptor, execution_simdgroups<4>> product;
  auto a = A.slice(0, tile.y * 64);
  auto b = B.slice(tile.x * 32, 0);
  auto c = C.slice(tile.x * 32, tile.y * 64);
  product.run(a, b, c);
}
constant int CHANNELS = 3;
using Images = tensor<device const float, extents<int, CHANNELS, dynamic_extent, dynamic_extent, dynamic_extent>>;
template <typename T> kernel void sums(Images images, tensor<device T, dextents<ulong, 1>> out, constant T& factor, uint i [[thread_position_in_grid]]) {
  if (images.get_extent(3) <= int(i)) return;
  float sum = 0;
  for (int y = 0; y < images.get_extent(2); ++y)
    for (int x = 0; x < images.get_extent(1); ++x)
      for (int c = 0; c < CHANNELS; ++c) sum += images[array<int, 4>{c, x, y, int(i)}];
  out[array<ulong, 1>{ulong(i)}] = factor * sum;
}
template [[host_name("sums_of_floats")]] kernel void sums<float>(Images images, tensor<device float, dextents<ulong, 1>> out, constant float&, uint);
template [[host_name("sums_of_ints")]] kernel void sums<int>(Images images, tensor<device int, dextents<ulong, 1>> out, constant int&, uint);
"""


def compiled() -> Any:
    return mg.compile(SOURCE, language_version="4.0")


def test_arrays_are_tensors() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((100, 50)).astype(np.float16), rng.standard_normal((50, 40)).astype(np.float16)
    c = np.zeros((100, 40), np.float32)
    options = {"threadgroup": 128, "grid_of_threadgroups": True}
    multiply = compiled().function("multiply")
    multiply((2, 2), a, b, c, **options)
    assert np.abs(c - a.astype(np.float64) @ b.astype(np.float64)).max() < 50 * 2.0**-24 * 50
    assert multiply.check((2, 2), a, b, c, undefined=["C"], **options) == ()
    partly = [*map(str, multiply.check((1, 2), a, b, c, undefined=["C"], **options))]
    assert any("800 of 4000 elements of 'C' were never written, the first is 32" in each for each in partly), partly


def test_images_and_vectors_are_tensors() -> None:
    x = np.arange(2 * 4 * 5 * 3, dtype=np.float32).reshape(2, 4, 5, 3)
    sums = compiled().function("sums_of_floats")
    out = mg.Vector.from_array(np.zeros(2, np.float32))
    sums(2, mg.Image.from_array(x), out, 2.0)
    assert np.array_equal(np.asarray(out), 2 * x.sum((1, 2, 3)))
    of_ints = np.zeros(2, np.int32)
    compiled().function("sums_of_ints")(2, x, of_ints, 1)
    assert np.array_equal(of_ints, x.sum((1, 2, 3)))


@pytest.mark.parametrize(
    "images, out, says",
    [
        (np.zeros((1, 2, 2, 4), np.float32), np.zeros(1, np.float32), "argument 0 (tensor<device const float, extents<int, 3, dynamic_extent, dynamic_extent, dynamic_extent>> images) has the shape 1x2x2x4; it has to be ?x?x?x3"),
        (np.zeros((1, 2, 2, 3), np.float32), np.zeros((1, 1), np.float32), "argument 1 (tensor<device float, dextents<ulong, 1>> out) has the shape 1x1; it has to have 1 axis"),
        (np.zeros((1, 2, 2, 3), np.float64), np.zeros(1, np.float32), "is a float64 array of shape 1x2x2x3; it has to be float32"),
        (np.zeros((1, 2, 3, 2), np.float32).swapaxes(2, 3), np.zeros(1, np.float32), "that is not contiguous"),
        (3.0, np.zeros(1, np.float32), "is 3.0; it has to be an array, a tensor or an Image, which have a shape"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(images: Any, out: np.ndarray, says: str) -> None:
    with pytest.raises(FormatError, match=re.escape(says)):
        compiled().function("sums_of_floats")(1, images, out, 1.0)


def test_tensors_of_the_host_are_right_to_lint_and_cuda() -> None:
    assert lint(SOURCE, language_version="4.0") == []
    translated = translate(SOURCE, "cuda", launch="box", definitions={"__METAL_VERSION__": "400"})
    compile_for_cuda(translated.source, "host_tensors.metal")


@pytest.mark.parametrize(
    "parameter, says",
    [
        ("tensor<device float, dextents<int, 2>, tensor_inline> a", "the host passes tensors with tensor_handle only"),
        ("tensor<threadgroup float, dextents<int, 2>> a", "has elements in device or constant memory"),
    ],
)
def test_what_the_host_cannot_pass_is_refused(parameter: str, says: str) -> None:
    head = SOURCE[: SOURCE.index("kernel")]
    with pytest.raises(ShaderError, match=says):
        mg.compile(f"{head}kernel void f({parameter}) {{}}", language_version="4.0")


def test_only_the_host_makes_tensors_with_handles() -> None:
    head = SOURCE[: SOURCE.index("kernel")]
    source = f"{head}kernel void f(device float* p) {{ tensor<device float, dextents<int, 1>> a(p, dextents<int, 1>{{4}}); a[array<int, 1>{{0}}] = 1; }}"
    with pytest.raises(ShaderError, match="a tensor of a pointer is a tensor_inline"):
        mg.compile(source, language_version="4.0").function("f")
