"""Programs as people write them for metalcompute give what NumPy gives."""

from __future__ import annotations

import math
from array import array

import numpy as np
import pytest

import mpsgrad.metalcompute as mc
from mpsgrad.testing import assert_within, error_bound

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"


@pytest.fixture(scope="module")
def device() -> mc.Device:
    return mc.Device()


def test_vector_addition(device: mc.Device) -> None:
    add = device.kernel(f"""{HEADER}
    kernel void add(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                    device float* sum [[buffer(2)]], uint i [[thread_position_in_grid]]) {{
        sum[i] = a[i] + b[i];
    }}""").function("add")
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 12345), dtype=np.float32)
    result = device.buffer(a.nbytes)
    add(a.size, a, array("f", b), result)
    np.testing.assert_array_equal(np.frombuffer(result, np.float32), a + b)


def test_the_sine_of_more_numbers_than_whole_threadgroups(device: mc.Device) -> None:
    sine = device.kernel(f"""{HEADER}
    kernel void sine(const device float* in [[buffer(0)]], device float* out [[buffer(1)]],
                     uint id [[thread_position_in_grid]]) {{ out[id] = sin(in[id]); }}""").function("sine")
    count = 1234567
    source = device.buffer(4 * count)
    memoryview(source).cast("f")[:] = array("f", np.linspace(-np.pi, np.pi, count, dtype=np.float32))
    result = device.buffer(4 * count)
    sine(count, source, result)
    expected = np.sin(np.frombuffer(source, np.float32).astype(np.float64))
    assert_within(np.frombuffer(result, np.float32), expected, np.full(count, 2.0**-13))


def test_the_mandelbrot_set(device: mc.Device) -> None:
    width, height, limit = 101, 67, 60
    mandelbrot = device.kernel(f"""{HEADER}
    struct View {{ float2 center; float scale; uint width, height; }};
    kernel void mandelbrot(constant View& view [[buffer(0)]], device uchar* escaped_after [[buffer(1)]],
                           uint id [[thread_position_in_grid]]) {{
        float2 place = float2(id % view.width, id / view.width) - 0.5 * float2(view.width, view.height);
        float2 c = view.center + view.scale * place, z = 0.0;
        uchar steps = 0;
        while (steps < {limit} && dot(z, z) < 4.0) {{
            z = float2(z.x * z.x - z.y * z.y, 2.0 * z.x * z.y) + c;
            steps++;
        }}
        escaped_after[id] = steps;
    }}""").function("mandelbrot")
    layout = np.dtype(
        [("center", "2f4"), ("scale", "f4"), ("width", "u4"), ("height", "u4"), ("end", "V4")], align=True
    )
    view = np.array(((-0.7, 0.1), 0.03, width, height, b""), layout)
    image = device.buffer(width * height)
    mandelbrot(width * height, view, image)

    x, y = np.meshgrid(np.arange(width) - width / 2, np.arange(height) - height / 2)
    c = np.float64(view["center"][0]) + 1j * np.float64(view["center"][1]) + np.float64(view["scale"]) * (x + 1j * y)
    z, steps = np.zeros_like(c), np.zeros(c.shape, int)
    with np.errstate(all="ignore"):
        for _ in range(limit):
            inside = np.abs(z) < 2
            z = np.where(inside, z * z + c, z)
            steps += inside
    found = np.frombuffer(image, np.uint8).reshape(steps.shape)
    assert len(np.unique(found)) > 10
    # Rounding decides next to the border only, where neighbours differ.
    assert (found != steps).mean() < 0.02


def test_structs_made_with_numpy(device: mc.Device) -> None:
    sources = f"""{HEADER}
    struct Particle {{ packed_float3 position; half charge; short kind; float4 velocity; }};
    struct Step {{ float time; bool reflect; }};
    kernel void move(device Particle* particles [[buffer(0)]], constant Step& step [[buffer(1)]],
                     constant uint& count [[buffer(2)]], uint i [[thread_position_in_grid]]) {{
        if (i >= count) return;
        device Particle& p = particles[i];
        float3 moved = float3(p.position) + step.time * p.velocity.xyz;
        if (step.reflect && moved.x < 0) {{ moved.x = -moved.x; p.velocity.x = -p.velocity.x; }}
        p.position = moved;
        p.kind += 1;
        p.charge *= 2.0h;
    }}"""
    layout = np.dtype([("position", "3f4"), ("charge", "f2"), ("kind", "i2"), ("velocity", "4f4")])
    particles = np.zeros(1500, layout)
    rng = np.random.default_rng(2)
    particles["position"] = rng.standard_normal((1500, 3))
    particles["velocity"] = rng.standard_normal((1500, 4))
    particles["charge"], particles["kind"] = rng.integers(-5, 5, (2, 1500))
    memory = device.buffer(particles)
    step = np.array((0.5, True), np.dtype([("time", "f4"), ("reflect", "?")], align=True))
    device.kernel(sources).function("move")(1500, memory, step, np.uint32(1500))
    found = np.frombuffer(memory, layout)

    moved = particles["position"] + 0.5 * particles["velocity"][:, :3]
    turned = moved[:, 0] < 0
    assert 0 < turned.sum() < 1500
    moved[turned, 0] *= -1
    velocity = particles["velocity"].copy()
    velocity[turned, 0] *= -1
    magnitude = np.abs(particles["position"]) + np.abs(particles["velocity"][:, :3])
    assert_within(found["position"], moved, error_bound(np.float32, 2, magnitude, moved))
    np.testing.assert_array_equal(found["velocity"], velocity)
    np.testing.assert_array_equal(found["kind"], particles["kind"] + 1)
    np.testing.assert_array_equal(found["charge"], 2 * particles["charge"])


def test_a_sum_in_two_passes_over_threadgroup_memory(device: mc.Device) -> None:
    total = device.kernel(f"""{HEADER}
    kernel void total(device const float* x [[buffer(0)]], device float* sums [[buffer(1)]],
                      constant uint& count [[buffer(2)]], uint i [[thread_position_in_grid]],
                      uint t [[thread_position_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
                      uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]]) {{
        threadgroup float partial[32];
        float sum = simd_sum(i < count ? x[i] : 0.0);
        if (lane == 0) partial[simdgroup] = sum;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (t < 32) {{
            sum = simd_sum(t < threads / 32 ? partial[t] : 0.0);
            if (t == 0) sums[group] = sum;
        }}
    }}""").function("total")
    count = 100_000
    x = np.random.default_rng(3).standard_normal(count).astype(np.float32)
    groups = math.ceil(count / 1024)
    sums, result = device.buffer(4 * groups), device.buffer(4)
    first = total(count, x, sums, np.uint32(count))
    second = total(groups, sums, result, np.uint32(groups))
    del first, second
    exact = np.float64(x).sum()
    # No number goes through more than four sums of 32.
    bound = error_bound(np.float32, 4 * 32, np.abs(np.float64(x)).sum(), exact)
    assert_within(np.frombuffer(result, np.float32), [exact], bound)


def test_sorting_in_place_with_numbers_of_numpy_as_arguments(device: mc.Device) -> None:
    exchange = device.kernel(f"""{HEADER}
    kernel void exchange(device float* x [[buffer(0)]], constant uint& distance [[buffer(1)]],
                         constant uint& block [[buffer(2)]], uint i [[thread_position_in_grid]]) {{
        uint other = i ^ distance;
        if (other <= i) return;
        bool ascending = (i & block) == 0;
        float a = x[i], b = x[other];
        if ((a > b) == ascending) {{ x[i] = b; x[other] = a; }}
    }}""").function("exchange")
    count = 1 << 11
    x = np.random.default_rng(4).standard_normal(count).astype(np.float32)
    memory = device.buffer(x)
    handles = []
    block = 2
    while block <= count:
        distance = block // 2
        while distance:
            handles.append(exchange(count, memory, np.uint32(distance), np.uint32(block)))
            distance //= 2
        block *= 2
    del handles
    np.testing.assert_array_equal(np.frombuffer(memory, np.float32), np.sort(x))
