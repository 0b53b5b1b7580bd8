"""Pointers to vectors that are cast from pointers to elements, which Metal lets be aligned to an element only."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

import re

import numpy as np
import pytest
from metal_runner import LIBRARY, evaluate, run
from nvrtc import compile_for_cuda

from mpsgrad.msl import translate

# What is done with a pointer p to four elements of x beginning with the second, and what it gives.
USES = [
    ("out[i] = p[0].x + 10 * p[0].y + 100 * p[0].z + 1000 * p[0].w;", 5432),
    ("out[i] = p->r + 10 * p->g + 100 * p->b + 1000 * p->a;", 5432),
    ("float4 v = *p; out[i] = v.x + 10 * v.y + 100 * v.z + 1000 * v.w;", 5432),
    ("device const float4& r = *p; out[i] = r[0] + 10 * r[1] + 100 * r.zw.x + 1000 * r.wz.x;", 5432),
    ("out[i] = dot(*p, float4(1, 10, 100, 1000)) + length_squared(*p) - 54;", 5432),
    ("float4 v = p[0] * 2 + p[0]; out[i] = v.x + v.w;", 21),
    ("float3 v = cross(((device const packed_float3*)p)[0], float3(0, 0, 1)); out[i] = v.x + v.y;", 1),
    ("device float4* q = (device float4*)(out + 1); float4 v = *p; if (i == 0) { q[0] = v; q[0].x += 1; q[0].zw = v.xy; } if (i == 0) out[0] = q->x + q->w;", 6),
    ("struct S { half h; float4 v; }; device const S* s = (device const S*)(x + 1); out[i] = sizeof(S) + (device const char*)&s->v - (device const char*)s;", 48),
]  # fmt: skip


@pytest.mark.parametrize(("use", "expected"), USES, ids=lambda v: v[:50] if isinstance(v, str) else "")
def test_a_vector_at_the_address_of_an_element(use: str, expected: float) -> None:
    x = np.arange(1, 17, dtype=np.float32)
    body = f"device const float* x = a; device const float4* p = reinterpret_cast<device const float4*>(a + 1); {use}"
    assert evaluate(body, x, of_user=True)[0] == expected


@pytest.mark.parametrize(("use", "expected"), USES, ids=lambda v: v[:50] if isinstance(v, str) else "")
def test_an_address_is_looked_at_before_a_whole_vector_is_moved_on_gpus(use: str, expected: float) -> None:
    head = "kernel void f(device float* out, device const float* x, uint i [[thread_position_in_grid]]) {\n"
    source = f"{LIBRARY}{head}device const float4* p = (device const float4*)(x + i); {use} }}"
    assembly = compile_for_cuda(translate(source, "cuda", filename="unaligned.metal", launch="row").source, "unaligned.metal")
    loads_and_stores = len(re.findall(r"\b(?:ld|st)\.global\S*\.v[24]\.", assembly))
    assert loads_and_stores <= len(re.findall(r"\band\.b64\s+\S+ \S+ 15;", assembly))


def test_vectors_of_other_programs_are_moved_whole_on_gpus() -> None:
    head = "kernel void f(device float4* out, device const float4* x, uint i [[thread_position_in_grid]]) {\n"
    source = f"{LIBRARY}{head}out[i] = x[i]; }}"
    assembly = compile_for_cuda(translate(source, "cuda", filename="whole.metal", launch="row").source, "whole.metal")
    assert ".v4.f32" in assembly or ".v2.u64" in assembly
    assert not re.search(r"\band\.b64\s+\S+ \S+ 15;", assembly)


def test_vectors_that_are_converted_are_loaded_whole_on_gpus() -> None:
    head = "kernel void f(device float4* out, device const half4* x, uint i [[thread_position_in_grid]]) {\n"
    source = f"{LIBRARY}{head}out[i] = float4(x[i]); }}"
    assembly = compile_for_cuda(translate(source, "cuda", filename="halves.metal", launch="row").source, "halves.metal")
    assert re.search(r"\bld\.global\S*(u64|v2\.u32|v4\.u16)", assembly)
    assert not re.search(r"\bld\.global\S*[a-z]\.u16", assembly)


def test_swizzles_and_members_of_the_programs_own_stay_as_they_are() -> None:
    body = "struct S { float r; }; S s; s.r = 1; float4 v = *(device const float4*)x; v.xy += v.zw; v.x += v.rgb.z; out[0] = v.a + s.r;"
    source = f"{LIBRARY}kernel void f(device float* out, device const float* x) {{\n{body}\n}}"
    translated = translate(source, "cuda", filename="names.metal", launch="row").source
    for kept in ("s.r = 1", "v.xy += v.zw", "v[0] += v[2]", "v[3] + s.r"):
        assert kept in translated
    compile_for_cuda(translated, "names.metal")


def test_numbers_are_read_anywhere_where_a_cast_reads_them() -> None:
    head = "kernel void f(device uint* out, device const ushort* x) {\n"
    source = f"{LIBRARY}{head}uint n = *((device const uint*)(x + 1)); out[0] = n + 2 * *((const device uint*)x); }}"
    arrays = np.zeros(1, np.uint32), np.arange(1, 5, dtype=np.uint16)
    assert run(source, "f", *arrays, threads=1, of_user=True)[0][0] == 0x30002 + 2 * 0x20001
    translated = translate(source, "cuda", filename="anywhere.metal", launch="row").source
    assert translated.count("= unaligned_read_mtl((") == 1 and "* unaligned_read_mtl((" in translated
    compile_for_cuda(translated, "anywhere.metal")
