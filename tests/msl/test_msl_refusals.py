"""What cannot be carried is refused where it stands, with the reason, for both targets."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

import pytest
from metal_runner import LIBRARY

from mpsgrad.errors import ShaderError
from mpsgrad.msl import translate

# The place of the error is marked by @.
REFUSED = [
    ("kernel void f(@texture2d<float> t [[texture(0)]]) {}", "kernels take buffers only"),
    ("kernel void f(@texture2d<half, access::write> t [[texture(0)]], uint2 i [[thread_position_in_grid]]) {}", "kernels take buffers only"),
    ("float g(@texture3d<float> t) { return 0; }", "'texture3d' is not supported"),
    ("float g(metal::@texture_buffer<float> t) { return 0; }", "'texture_buffer' is not supported"),
    ("float g(@depth2d<float> t) { return 0; }", "'depth2d' is not supported"),
    ("constexpr @sampler s(filter::linear);", "samplers are not supported"),
    ("kernel void f(@sampler s [[sampler(0)]]) {}", "samplers are not supported"),
    ("kernel void f(device float* x, @visible_function_table<float(float)> t [[buffer(1)]]) {}", "'visible_function_table' is not supported"),
    ("kernel void f(device float* x) { @intersector<triangle_data> i; }", "'intersector' is not supported"),
    ("kernel void f(device float* x, @instance_acceleration_structure s [[buffer(1)]]) {}", "acceleration structures are not supported"),
    ("kernel void f(device float* x, raytracing::@primitive_acceleration_structure s [[buffer(1)]]) {}", "acceleration structures are not supported"),
    ("[[@visible]] float g(float x) { return x; }", "only compute kernels"),
    ("[[@stitchable]] float g(float x) { return x; }", "only compute kernels"),
    ("[[@intersection(triangle)]] bool g() { return true; }", "only compute kernels"),
    ("[[@mesh]] void g() {}", "only compute kernels"),
    ("[[@object]] void g() {}", "only compute kernels"),
    ("[[@vertex]] float4 g(uint i [[vertex_id]]) { return 0; }", "only compute kernels"),
    ("@fragment float4 g() { return 0; }", "only compute kernels"),
    ("kernel void f(@imageblock<float4> b) {}", "'imageblock' is not supported"),
    ("struct A { device float* p [[@id(0)]]; };\nkernel void f(constant A& a) {}", "argument buffers are not supported"),
    ("struct A { device float* @p; };\nkernel void f(constant A& a) { a.p[0] = 1; }", "argument buffers are not supported"),
    ("struct A { @command_buffer c; };\nkernel void f(device A& a) {}", "'command_buffer' is not supported"),
    ("kernel void f(device float* x) { @render_command c; }", "'render_command' is not supported"),
    ("float g(float x) { return x; }\nkernel void f(device float* x) { float (@*p)(float) = g; x[0] = p(1); }", "function pointers are not supported"),
    ("typedef float (@*F)(float);", "function pointers are not supported"),
    ("struct S { float (@*f)(float); };", "function pointers are not supported"),
    ("kernel void f(device float* x, uint v [[@vertex_id]]) {}", "unknown attribute 'vertex_id'"),
    ("kernel void f(device float* x, float4 c [[@payload]]) {}", "unknown attribute 'payload'"),
    ("kernel void f(device float* x) { @os_log_default.log(\"x\"); }", "'os_log_default' is not supported"),
    ("kernel void f(device float* x) { @discard_fragment(); }", "'discard_fragment' is not supported"),
    ("kernel void f(device float* x) { x[0] = @dfdx(x[1]); }", "'dfdx' is not supported"),
    ("kernel void f(device float* x) { x[0] = @simd_is_helper_thread(); }", "'simd_is_helper_thread' is not supported"),
]  # fmt: skip


@pytest.mark.parametrize("target", ["opencl", "cuda"])
@pytest.mark.parametrize(("marked", "message"), REFUSED, ids=lambda v: v[:70])
def test_what_cannot_be_carried(marked: str, message: str, target: str) -> None:
    before = marked.split("@")[0]
    line, column = before.count("\n") + 3, len(before) - before.rfind("\n")
    with pytest.raises(ShaderError) as raised:
        translate(LIBRARY + marked.replace("@", ""), target, filename="no.metal")  # type: ignore[arg-type]
    assert message in raised.value.message
    assert (raised.value.file, raised.value.line, raised.value.column) == ("no.metal", line, column)


def test_users_names_that_stand_for_nothing_refused() -> None:
    source = LIBRARY + (
        "struct Sampler { float x; }; float dfdx(float x) { return 2 * x; } struct command_buffer { int n; };\n"
        "kernel void f(device float* sampler, uint color [[thread_position_in_grid]]) {\n"
        "  command_buffer vertex = {3}; int fragment = 4, visible = 5, mesh = 6, object = 7;\n"
        "  sampler[color] = dfdx(sampler[0]) + vertex.n + fragment + visible + mesh + object; }\n"
    )
    for target in ("opencl", "cuda"):
        assert translate(source, target).kernels  # type: ignore[arg-type]
