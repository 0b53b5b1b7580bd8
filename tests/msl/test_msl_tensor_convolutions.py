"""Metal 4's convolutions of tensors, against NumPy in float64."""

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
from mpsgrad.errors import ShaderError
from mpsgrad.msl import translate
from mpsgrad.msl.lint import lint

pytestmark = pytest.mark.usefixtures("opencl_device")


class Convolution(NamedTuple):
    """A convolution by tiles of channels, width, height and images, of numbers of this type, by so many simdgroups, with
    a window of width and height, its strides and dilations; ``at_once`` keeps the sums in registers and adds a bias."""

    kind: str
    tile: tuple[int, int, int, int]
    simdgroups: int
    window: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    at_once: bool = False

    def source(self) -> str:
        channels, width, height, images = self.tile
        mode = "multiply_accumulate" if self.at_once else "multiply"
        run = "op.run(X, weights, y);"
        if self.at_once:
            run = """auto sums = op.template get_destination_cooperative_tensor<decltype(X), decltype(weights), float>();
  for (ushort i = 0; i < sums.get_capacity(); ++i) {
    if (sums.is_valid_element(i)) sums[i] = bias[min(sums.get_multidimensional_index(i)[0] + origin.x, int(Y.get_extent(0)) - 1)];
  }
  op.run(X, weights, sums);
  sums.store(y);"""
        return f"""#include <metal_stdlib>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
kernel void f(tensor<device {self.kind}, dextents<int, 4>> X, tensor<device const {self.kind}, dextents<int, 4>> W, tensor<device float, dextents<int, 4>> Y,
              device const float* bias, constant int2& padding, uint3 tile [[threadgroup_position_in_grid]]) {{
  int3 origin = int3(tile) * int3({channels}, {width}, {height});
  constexpr auto descriptor = convolution2d_descriptor(int4({channels}, {width}, {height}, {images}), int4(64, 64, 64, 1), int2{self.window},
    convolution2d_activation_layout::nhwc, convolution2d_weights_layout::hwio, int2{self.strides}, int2{self.dilations}, 1, false, convolution2d_descriptor::mode::{mode});
  convolution2d<descriptor, execution_simdgroups<{self.simdgroups}>> op;
  op.set_offsets(origin.yz * int2{self.strides} - padding + ((int2{self.window} - 1) * int2{self.dilations} + 1) / 2);
  auto weights = W.slice(origin.x, 0, 0, 0);
  auto y = Y.slice(origin.x, origin.y, origin.z, 0);
  {run}
}}
"""


CONVOLUTIONS = [
    Convolution("half", (16, 8, 4, 2), 4, (3, 3)),
    Convolution("float", (32, 5, 3, 1), 2, (4, 2), (2, 1), (1, 3), at_once=True),
    Convolution("float", (5, 7, 1, 3), 1, (1, 5), (3, 2)),
    Convolution("half", (8, 16, 1, 1), 1, (1, 1), at_once=True),
]


def expected(of: Convolution, x: np.ndarray, w: np.ndarray, padding: tuple[int, int], extents: tuple[int, int]) -> np.ndarray:
    """The sums for ``extents`` of height and width, and of what is added up the absolute values."""
    y = np.zeros((len(x), *extents, w.shape[3]))
    for v, u in np.ndindex(w.shape[:2]):
        for at in np.ndindex(extents):
            row = at[0] * of.strides[1] - padding[1] + v * of.dilations[1]
            column = at[1] * of.strides[0] - padding[0] + u * of.dilations[0]
            if 0 <= row < x.shape[1] and 0 <= column < x.shape[2]:
                y[:, *at] += x[:, row, column] @ w[v, u]
    return y


@pytest.mark.parametrize("of", CONVOLUTIONS, ids=lambda of: f"{of.kind} {of.window}")
@given(
    shape=st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 9)),
    channels=st.integers(1, 40),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    seed=st.integers(0, 99),
)
def test_convolutions(of: Convolution, shape: tuple[int, int, int], channels: int, padding: tuple[int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = {"half": np.float16, "float": np.float32}[of.kind]
    x = rng.standard_normal((of.tile[3], *shape)).astype(kind)
    w = rng.standard_normal((of.window[1], of.window[0], shape[2], channels)).astype(kind)
    bias = rng.standard_normal(channels).astype(np.float32)
    extents = (int(rng.integers(1, 9)), int(rng.integers(1, 9)))
    y = np.full((of.tile[3], *extents, channels), 7, np.float32)
    grid = [-(-size // tile) for size, tile in zip((channels, extents[1], extents[0]), of.tile, strict=False)]
    function = mg.compile(of.source(), language_version="4.0").function("f")
    function(grid, x, w, y, bias, np.array(padding, np.int32), threadgroup=32 * of.simdgroups, grid_of_threadgroups=True)
    exact = expected(of, x.astype(np.float64), w.astype(np.float64), padding, extents) + of.at_once * bias
    largest = expected(of, np.abs(x).astype(np.float64), np.abs(w).astype(np.float64), padding, extents) + np.abs(bias)
    assert np.all(np.abs(y - exact) <= (w[..., 0].size + 2) * 2.0**-24 * largest)


@pytest.mark.parametrize("of", CONVOLUTIONS[:2], ids=lambda of: f"{of.kind} {of.window}")
def test_convolutions_are_right_to_lint_checks_and_cuda(of: Convolution) -> None:
    source = of.source()
    assert lint(source, language_version="4.0") == []
    compile_for_cuda(translate(source, "cuda", launch="box", definitions={"__METAL_VERSION__": "400"}).source, "convolution.metal")
    kind = {"half": np.float16, "float": np.float32}[of.kind]
    x, w = np.ones((of.tile[3], 5, 6, 3), kind), np.ones((of.window[1], of.window[0], 3, of.tile[0]), kind)
    y, bias = np.zeros((of.tile[3], 3, 4, of.tile[0]), np.float32), np.zeros(of.tile[0], np.float32)
    function = mg.compile(source, language_version="4.0").function("f")
    found = function.check((1, 1, 1), x, w, y, bias, (1, 1), threadgroup=32 * of.simdgroups, grid_of_threadgroups=True, undefined=["Y"])
    assert found == ()


def test_what_is_not_carried_is_refused_with_the_reason() -> None:
    source = CONVOLUTIONS[0].source()
    for written, other in (("int2(3, 3),", "int2(40, 3),"), ("1, false, convolution2d", "2, false, convolution2d")):
        with pytest.raises(ShaderError, match="only convolutions of one group are supported, of up to 4095 channels"):
            mg.compile(source.replace(written, other), language_version="4.0").function("f")
    plain = "constexpr auto descriptor = convolution2d_descriptor(int4(1), int4(1), int2(1));"
    with pytest.raises(ShaderError, match="'convolution2d_descriptor' needs Metal 4.0 or later, and this is compiled as 3.2"):
        mg.compile(f"kernel void f(device float* y) {{ {plain} }}", language_version="3.2")
