"""Constants at program scope that are made of others."""

from __future__ import annotations

import numpy as np
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.msl import translate

SOURCE = """
#include <metal_stdlib>
using namespace metal;
constant float slope [[function_constant(0)]];
constant float factor = is_function_constant_defined(slope) ? 2 * slope : 1, half_of_it = factor / 2;
namespace angles { constant float PI = 3.25; static constant float TAU = 2 * PI; }
constant float weights[2] = {angles::TAU, half_of_it};
constant float sum = weights[0] + weights[1] * angles::TAU;
constant int count = int(sum) / 6;
constant bool is_steep = factor > 1;
kernel void k(device float* out) {
    float all[2] = {sum, factor};
    constant float& first = weights[0];
    out[0] = all[0] + all[1] + first + is_steep + count;
}
"""


def test_constants_made_of_constants() -> None:
    compile_for_cuda(translate(SOURCE, "cuda", launch="box", function_constants={"slope": 1.5}).source, "k.metal")
    out = np.zeros(1, np.float32)
    mg.compile(SOURCE, function_constants={"slope": 1.5}).function("k")(1, out)
    assert out[0] == (6.5 + 1.5 * 6.5) + 3 + 6.5 + 1 + 2
