"""Pictures and grids of cells: kernels that demonstrations of Metal are made of, written anew."""

# Shaders are written as they would be in a file of their own.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np

import mpsgrad as mg

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"


def test_mandelbrot_with_a_smooth_colour() -> None:
    """The colour is |log(log|z|)|, by the program that metalcompute's mandelbrot example draws."""
    source = HEADER + """
    constant int limit = 60;
    kernel void mandelbrot(constant uint2& size, device uchar4* image, uint2 p [[thread_position_in_grid]]) {
        float2 c = (2.0 * (float2(p) + 0.5) - float2(size)) / min(size.x, size.y) * 1.2 + float2(-0.6, 0.0), z = 0.0;
        int n = 0;
        for (; n < limit && dot(z, z) < 1e4; n++) { z = float2(z.x * z.x - z.y * z.y, 2.0 * z.x * z.y) + c; }
        float level = n == limit ? 0.0 : n + 1 - log(log(length(z))) / log(2.0);
        float3 colour = 0.5 + 0.5 * cos(0.15 * level + float3(0.0, 0.6, 1.0));
        image[p.y * size.x + p.x] = uchar4(uchar3(n == limit ? float3(0.0) : colour * 255.0), 255);
    }"""
    width, height = 80, 56
    image = np.zeros((height, width, 4), np.uint8)
    mg.compile(source).function("mandelbrot")((width, height), (width, height), image)
    y, x = np.mgrid[:height, :width] + 0.5
    c = (2 * (x + 1j * y) - (width + 1j * height)) / height * 1.2 - 0.6
    z, n = np.zeros_like(c), np.zeros(c.shape)
    for _ in range(60):
        inside = abs(z) ** 2 < 1e4
        z, n = np.where(inside, z * z + c, z), n + inside
    level = n + 1 - np.log(np.log(np.maximum(abs(z), 1.5))) / np.log(2)
    colour = (0.5 + 0.5 * np.cos(0.15 * level[..., None] + [0.0, 0.6, 1.0])) * 255 * (n < 60)[..., None]
    close = np.abs(image[..., :3] - np.floor(colour)).max(-1) <= 2
    assert close.mean() > 0.98
    assert (image[..., 3] == 255).all()


def test_a_ray_marched_sphere_over_a_checkered_floor() -> None:
    source = HEADER + """
    float distance_to_scene(float3 p) { return min(length(p) - 1.0, p.y + 1.0); }
    kernel void march(device float* depth, device uchar* checker, constant int& size, uint2 p [[thread_position_in_grid]]) {
        float3 forward = normalize(float3(0, -0.2, 1)), right = normalize(cross(float3(0, 1, 0), forward));
        float2 uv = (float2(p) + 0.5) / size * 2.0 - 1.0;
        float3 ray = normalize(forward + uv.x * right - uv.y * cross(forward, right)), at = float3(0, 0.5, -3);
        float travelled = 0;
        for (int i = 0; i < 80; i++) { travelled += distance_to_scene(at + ray * travelled); }
        float3 hit = at + ray * travelled;
        depth[p.y * size + p.x] = min(travelled, 20.0);
        float2 tile = fract(hit.xz * 0.5);
        checker[p.y * size + p.x] = uchar((tile.x < 0.5) != (tile.y < 0.5));
    }"""
    size = 32
    depth, checker = np.zeros((size, size), np.float32), np.zeros((size, size), np.uint8)
    mg.compile(source).function("march")((size, size), depth, checker, size)
    forward = np.array([0, -0.2, 1]) / np.sqrt(1.04)
    right = np.array([1.0, 0, 0])
    y, x = (np.mgrid[:size, :size] + 0.5) / size * 2 - 1
    ray = forward + x[..., None] * right - y[..., None] * np.cross(forward, right)
    ray /= np.linalg.norm(ray, axis=-1, keepdims=True)
    at = np.array([0, 0.5, -3.0])
    b = ray @ at
    discriminant = b * b - (at @ at - 1)
    sphere = np.where(discriminant > 0, -b - np.sqrt(np.maximum(discriminant, 0)), np.inf)
    floor = np.where(ray[..., 1] < 0, -(at[1] + 1) / np.minimum(ray[..., 1], -1e-9), np.inf)
    nearest = np.minimum(sphere, floor)
    # Marching stops short where a ray grazes something, so only clear hits are compared.
    clear = (nearest < 8) & (np.abs(discriminant) > 0.2)
    assert clear.sum() > size
    np.testing.assert_allclose(depth[clear], nearest[clear], rtol=2e-3)
    hit = at + ray * np.where(clear, nearest, 0)[..., None]
    tile = (hit[..., [0, 2]] * 0.5) % 1
    certain = clear & (np.abs(tile - 0.5).min(-1) > 0.02) & (tile.min(-1) > 0.02) & (tile.max(-1) < 0.98)
    np.testing.assert_array_equal(checker[certain], (tile[..., 0] < 0.5)[certain] != (tile[..., 1] < 0.5)[certain])


def test_game_of_life() -> None:
    source = HEADER + """
    kernel void step(device const bool* now, device bool* next, uint2 p [[thread_position_in_grid]],
                     uint2 size [[threads_per_grid]]) {
        int alive = 0;
        for (int dy = -1; dy <= 1; dy++) for (int dx = -1; dx <= 1; dx++) {
            uint2 q = (p + size + uint2(int2(dx, dy))) % size;
            alive += (dx || dy) && now[q.y * size.x + q.x];
        }
        bool self = now[p.y * size.x + p.x];
        next[p.y * size.x + p.x] = alive == 3 || (self && alive == 2);
    }"""
    step = mg.compile(source).function("step")
    cells = np.random.default_rng(1).random((37, 53)) < 0.4
    expected = cells.copy()
    for _ in range(5):
        following = np.zeros_like(cells)
        step((53, 37), cells, following, threadgroup=(16, 8))
        cells = following
        neighbours = sum(
            np.roll(expected, (dy, dx), (0, 1)).astype(int) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx
        )
        expected = (neighbours == 3) | (expected & (neighbours == 2))
    np.testing.assert_array_equal(cells, expected)


def test_sobel_edges_of_a_packed_picture() -> None:
    source = HEADER + """
    constant float3 weights = float3(0.2126, 0.7152, 0.0722);
    constant float kx[3][3] = {{-1, 0, 1}, {-2, 0, 2}, {-1, 0, 1}};
    float grey(device const uint* image, int2 p, int2 size) {
        p = clamp(p, int2(0), size - 1);
        return dot(unpack_unorm4x8_to_float(image[p.y * size.x + p.x]).rgb, weights);
    }
    kernel void sobel(device const uint* image, device uint* edges, constant int2& size, ushort2 p [[thread_position_in_grid]]) {
        float2 gradient = 0;
        for (int j = 0; j < 3; j++) for (int i = 0; i < 3; i++)
            gradient += grey(image, int2(p) + int2(i, j) - 1, size) * float2(kx[j][i], kx[i][j]);
        float strength = saturate(length(gradient));
        edges[p.y * size.x + p.x] = pack_float_to_unorm4x8(float4(float3(strength), 1.0));
    }"""
    picture = np.random.default_rng(2).integers(0, 256, (19, 23, 4), np.uint8)
    edges = np.zeros((19, 23), np.uint32)
    mg.compile(source).function("sobel")((23, 19), picture.view(np.uint32).reshape(19, 23), edges, (23, 19))
    grey = np.pad(picture[..., :3] / 255 @ [0.2126, 0.7152, 0.0722], 1, mode="edge")
    kernel = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    gx = sum(kernel[j, i] * grey[j : j + 19, i : i + 23] for j in range(3) for i in range(3))
    gy = sum(kernel[i, j] * grey[j : j + 19, i : i + 23] for j in range(3) for i in range(3))
    expected = np.clip(np.hypot(gx, gy), 0, 1) * 255
    got = edges.view(np.uint8).reshape(19, 23, 4)
    np.testing.assert_allclose(got[..., 0], expected, atol=0.51)
    assert (got[..., 3] == 255).all()


def test_histogram_with_threadgroup_atomics() -> None:
    source = HEADER + """
    kernel void histogram(device const uchar* values, device atomic_uint* bins, constant uint& count,
                          uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]],
                          uint width [[threads_per_threadgroup]]) {
        threadgroup atomic_uint local_bins[256];
        for (uint b = t; b < 256; b += width) atomic_store_explicit(&local_bins[b], 0, memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (i < count) atomic_fetch_add_explicit(&local_bins[values[i]], 1, memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint b = t; b < 256; b += width) {
            uint n = atomic_load_explicit(&local_bins[b], memory_order_relaxed);
            if (n > 0) atomic_fetch_add_explicit(&bins[b], n, memory_order_relaxed);
        }
    }"""
    values = (np.random.default_rng(3).normal(128, 30, 10_000).clip(0, 255)).astype(np.uint8)
    bins = np.zeros(256, np.uint32)
    mg.compile(source).function("histogram")(79, values, bins, values.size, threadgroup=128, grid_of_threadgroups=True)
    np.testing.assert_array_equal(bins, np.bincount(values, minlength=256))
