"""Our own shaders keep Apple's rules, and sources compile for both targets."""

from __future__ import annotations

import ctypes
import importlib.metadata
from functools import cache

import pytest
from metal_runner import LIBRARY, cpu

from mpsgrad.msl import translate
from mpsgrad.msl.cuda import COMPILER_OPTIONS
from mpsgrad.msl.lint import lint
from mpsgrad.shader import FAMILIES

SHADERS = [(family, dtype) for family in FAMILIES.values() for dtype in family.dtypes]

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


@pytest.mark.parametrize(("family", "dtype"), SHADERS, ids=lambda v: v if isinstance(v, str) else v.name)
def test_own_shaders_keep_the_rules(family, dtype) -> None:
    source = family.source(cpu(), dtype)
    assert [str(finding) for finding in lint(source, filename=family.file, metalcompute=True)] == []


@cache
def nvrtc() -> ctypes.CDLL | None:
    """NVIDIA's run-time compiler, which needs no GPU; None where it is not installed."""
    for distribution in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12"):
        try:
            files = importlib.metadata.files(distribution) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name.startswith("libnvrtc.so"):
                return ctypes.CDLL(str(file.locate()))
    return None


def compile_for_cuda(source: str, name: str) -> None:
    compiler = nvrtc()
    if compiler is None:
        pytest.skip("NVIDIA's run-time compiler is not installed (pip install nvidia-cuda-nvrtc)")
    program = ctypes.c_void_p()
    assert compiler.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None) == 0
    options = [option.encode() for option in ("--gpu-architecture=compute_80", *COMPILER_OPTIONS)]
    failed = compiler.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    compiler.nvrtcGetProgramLog(program, log)
    compiler.nvrtcDestroyProgram(ctypes.byref(program))
    assert not failed, log.value.decode()[:4000]


@pytest.mark.parametrize(("family", "dtype"), SHADERS, ids=lambda v: v if isinstance(v, str) else v.name)
def test_own_shaders_compile_for_cuda(family, dtype) -> None:
    source = family.source(cpu(), dtype)
    compile_for_cuda(translate(source, "cuda", filename=family.file).source, family.file)


def test_every_construct_compiles_for_cuda() -> None:
    compile_for_cuda(translate(EVERY_CONSTRUCT, "cuda", filename="every.metal").source, "every.metal")


def test_every_construct_compiles_for_opencl() -> None:
    assert cpu().compile(EVERY_CONSTRUCT, name="every.metal").function("f").name == "f"
