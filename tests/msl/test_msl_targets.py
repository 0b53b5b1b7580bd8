"""Our own shaders keep Apple's rules, and sources compile for both targets."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from cuda_compiler import ARCHITECTURE, check_for_cuda, needs_compiler
from metal_runner import LIBRARY

import mpsgrad as mg
from mpsgrad.commands.report import report
from mpsgrad.devices.cuda_compiler import OWN_MATH, compile_cubin
from mpsgrad.kernels.batch_normalization_families import FAMILIES
from mpsgrad.kernels.neuron_descriptor import NeuronType
from mpsgrad.msl import translate
from mpsgrad.msl.lint import lint
from mpsgrad.shader import ShaderFamily, families

MOST_SPILLED_BYTES = 32
"""What a thread of our own kernels may store of its registers to memory: a few values that are needed late."""
FUSED_NEURONS = NeuronType.NONE, NeuronType.RELU, NeuronType.PRELU, NeuronType.GELU
REPEATED = {family for kind, family in FAMILIES.items() if kind not in FUSED_NEURONS}
"""Shaders that differ from these by an expression that a neuron's own shader has, too."""
SHADERS = [(family, dtype) for family in families().values() for dtype in family.dtypes]
FOR_CUDA = [(family, family.dtypes[-1]) for family in families().values() if "nvidia" in family.device_families]
"""With halves where a family has them: its source for floats lacks only what these need, which compilers refuse."""


def each_of(shaders: list[tuple[ShaderFamily, str]]) -> pytest.MarkDecorator:
    """Runs a test for each of ``shaders``, those that are repeated nightly only."""
    return pytest.mark.parametrize(
        ("family", "dtype"),
        [
            pytest.param(
                family, dtype, id=f"{family.name}-{dtype}", marks=[pytest.mark.nightly] if family in REPEATED else []
            )
            for family, dtype in shaders
        ],
    )


EVERY_CONSTRUCT = (
    LIBRARY
    + """
struct Box { packed_float3 p; half h; float get() const thread { return h; } };
constant float4 corners[2] = {float4(1, 2, 3, 4), float4(0.5)};
constant half tenth = 0.1h;
template <typename T> T smooth(T x) { return mix(x, x * 2.0, T(0.5)) + clamp(x, T(0), T(1)); }
kernel void f(device const float4* x [[buffer(0)]], device float* out [[buffer(1)]], constant Box& box [[buffer(2)]],
    device atomic_uint* count [[buffer(3)]], uint2 i [[thread_position_in_grid]],
    ushort lane [[thread_index_in_simdgroup]])
{
    threadgroup half2 shared[32];
    float4 v = x[i.x];
    v.xz = v.zx * 2.0;
    v.rgb += float3(box.p).bgr;
    bool4 inside = v < corners[1] && v > -1.0;
    v = select(v, float4(tenth), inside) + float4(int4(v) % 3) + smooth(v) + exp(v.wzyx) + fma(v, 2.0, corners[0]);
    shared[lane] = half2(v.xy) * 0.5h + half(lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float3x3 m = float3x3(1.0);
    float3 w = m * normalize(cross(v.xyz, float3(0, 1, 0))) + reflect(v.xyz, v.yzw);
    simdgroup_half8x8 a = make_filled_simdgroup_matrix<half, 8, 8>(1.0h), b(2.0h);
    simdgroup_float8x8 c(0.0);
    simdgroup_multiply_accumulate(c, a, b, c);
    simdgroup_store(c, out, 8);
    atomic_fetch_add_explicit(count, any(inside) ? 1u : popcount(as_type<uint>(v.x)), memory_order_relaxed);
    out[i.y] = simd_sum(dot(v, v)) + simd_shuffle_xor(w, 1).y + float(shared[lane ^ 1].x) + box.h + length(w.xz)
        + numeric_limits<float>::epsilon() + simd_prefix_exclusive_sum(float(max(lane, ushort(3)))) + quad_max(w.z);
}
"""
)


@each_of(SHADERS)
def test_own_shaders_keep_the_rules(family, dtype) -> None:
    """Those of metalcompute and of simdgroups too, but where threads of a CPU work alone: it never sees these."""
    tunings = [(device, None) for device in family.device_families]
    tunings += [("cpu", "cpu-avx2")] if "cpu" in family.device_families else []
    renderings: dict[str, list[tuple[str, str]]] = {}
    for device, tuning in tunings:
        rendering = family.render(dtype, device, tuning)
        without_pragmas = re.sub(r"(?m)^\s*#pragma clang loop .*\n", "", rendering.source)
        renderings.setdefault(without_pragmas, []).append((device, rendering.with_line_directives()))
    for alike in renderings.values():
        # The one with most pragmas stands for those that differ in nothing else.
        source = max((each for _, each in alike), key=len)
        named = {device for device, _ in alike}
        on_metal = named != {"cpu"}
        findings = [str(finding) for finding in lint(source, filename=family.file, metalcompute=on_metal)]
        findings = [finding for finding in findings if on_metal or "simdgroup idle" not in finding]
        assert [each for each in findings if "apple" in named or "; Apple GPUs have" not in each] == []


@needs_compiler
@each_of(FOR_CUDA)
def test_own_shaders_compile_for_cuda(family, dtype) -> None:
    """Those with instructions for matrices to machine code, since only the assembler knows these, as fast as the
    compiler can; the nightly run makes code of all of them, for floats too."""
    rendering = family.render(dtype, "nvidia")
    source = rendering.with_line_directives()
    translation = translate(source, "cuda", filename=family.path)
    assert translation.kernels.keys() == {*rendering.kernels}
    if "matrices" not in family.name:
        check_for_cuda(translation, OWN_MATH)
        return
    options = {**OWN_MATH, "ofast_compile": "max"}
    code, _ = compile_cubin(translation, source, family.path, ARCHITECTURE, options)
    assert all(kernel.entry_point.encode() in code for kernel in translation.kernels.values())


@pytest.mark.nightly
@needs_compiler
@pytest.mark.parametrize("name", sorted({family.name for family, _ in FOR_CUDA}))
def test_own_shaders_stay_in_registers(name) -> None:
    """In a process for each: after a quick compilation of a source NVRTC gives other registers for it."""
    command = [sys.executable, "-m", "mpsgrad", "report", name, "--architecture", ARCHITECTURE, "--json"]
    kernels = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["kernels"]
    assert kernels
    for kernel in kernels:
        assert kernel["spill_store_bytes"] <= MOST_SPILLED_BYTES, kernel


def test_threadgroups_of_a_cluster_are_declared_for_cuda_only() -> None:
    source = """
#ifdef __MPSGRAD_CUDA__
[[threadgroups_of_cluster(8)]]
#endif
[[max_total_threads_per_threadgroup(64)]]
kernel void fill(device float* out [[buffer(0)]], uint index [[thread_position_in_grid]])
{
    out[index] = 1.0f;
}
"""
    assert "void CLUSTER_MTL(8) __launch_bounds__(64) fill" in translate(source, "cuda").source
    assert "CLUSTER_MTL" not in translate(source, "opencl").source


def test_fast_exponentials_are_one_instruction_for_cuda() -> None:
    source = "kernel void f(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {{ x[i] = {}(x[i]); }}"
    translated = {each: translate(source.format(each), "cuda").source for each in ("fast::exp", "precise::exp")}
    assert "ex2.approx" in translated["fast::exp"] and "ex2.approx" not in translated["precise::exp"]


@needs_compiler
def test_products_of_matrices_compile_for_the_oldest_gpus() -> None:
    """Turing lacks the larger product and copies that are made meanwhile."""
    assert report(families()["convolution_weights_matrices_64x128x32x3"], "half", "sm_75")


@needs_compiler
def test_products_in_threadgroup_memory_compile_for_gpus_that_load_the_factors() -> None:
    (row,) = report(families()["convolution_weights_matrices_64x128x64x4_in_place"], "half", "sm_80")
    assert row.usage.spill_store_bytes == 0


@needs_compiler
@pytest.mark.parametrize("launch", ["whole", "box"])
def test_every_construct_compiles_for_cuda(launch) -> None:
    translation = translate(EVERY_CONSTRUCT, "cuda", filename="every.metal", launch=launch)
    code, _ = compile_cubin(translation, EVERY_CONSTRUCT, "every.metal", ARCHITECTURE, OWN_MATH)
    assert code


def test_every_construct_compiles_for_the_default_device() -> None:
    device = mg.default_device()
    assert device.compile(EVERY_CONSTRUCT, name="every.metal").function("f").name == "f"
