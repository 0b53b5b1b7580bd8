"""Constants at program scope that are made of others."""

from __future__ import annotations

import re

import numpy as np
import pytest
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.errors import ShaderError
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


OF_VECTORS = """
#include <metal_stdlib>
using namespace metal;
constant float3 luma = float3(1, 2, 3), doubled = luma * 2;
constant float y_of_luma = luma.y;
constant half slope = half(1.5) * 2, halved = slope / 2;
constant float steep = slope;
namespace tables {
    constant float2 rows[][2] = {{luma.zx, -doubled.yz}, {float2(1) + 1, {4, steep}}};
    constant int count = sizeof(rows) / sizeof(float2);
}
constant float sizes[tables::count] = {max(steep, y_of_luma), dot(luma, doubled), all(luma < doubled) ? 5 : 6};
constant float bits = as_type<float>(0x40e00000u);
float second(constant float3& v) { extern constant float3 luma; return v.y + 0 * luma.x; }
kernel void k(device float* out) {
    extern constant half halved;
    extern constant float last;
    constant float3& all = doubled;
    float luma = 8;
    out[0] = all.x + y_of_luma;
    out[1] = steep + halved;
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) out[2 + 2 * i + j] = tables::rows[i][j].x * 10 + tables::rows[i][j].y;
    out[6] = sizes[0] + sizes[1];
    out[7] = sizes[2] + sizeof(sizes) + bits;
    out[8] = second(doubled) + luma + last;
    constexpr uchar4 bytes = as_type<uchar4>(0x04030201u);
    constexpr uint joined = as_type<uint>(ushort2(3, 1)), length = as_type<uint>(ushort2(2, 0));
    constexpr float3 ones = as_type<float3>(uint3(0x3f800000u));
    threadgroup uchar made[length + as_type<ushort>(uchar2(1, 0))];
    out[9] = bytes.w + joined + ones.z + sizeof(made);
}
constant float last = 5;
"""


def test_constants_made_of_vectors_and_by_functions() -> None:
    expected = np.array([4, 4.5, 31, -46, 22, 43, 31, 28, 17, 4 + 65539 + 1 + 3], np.float32)
    out = np.zeros_like(expected)
    mg.compile(OF_VECTORS).function("k")(1, out)
    np.testing.assert_array_equal(out, expected)
    assembly = compile_for_cuda(translate(OF_VECTORS, "cuda", launch="box").source, "k.metal")
    # What halves are made to is not known to the compiler.
    whole = expected[[0, 2, 3, 4, 7, 8, 9]].view(np.int32)
    assert {*map(str, whole)} <= {*re.findall(r"mov.u32\s+%r\d+, (-?\d+);", assembly)}


@pytest.mark.parametrize("use", ["constant float3* p = &B", "constant float* p = L", "for (float v : L) out[0] = v"])
def test_what_is_computed_has_no_address(use: str) -> None:
    source = f"""using namespace metal; constant float3 A(1), B = A * 2; constant float L[] = {{B.x, 2}};
kernel void k(device float* out) {{ {use}; }}"""
    with pytest.raises(ShaderError, match=r"2:\d+: the constant '[BL]' is computed from others: on NVIDIA"):
        translate(source, "cuda", launch="box")
