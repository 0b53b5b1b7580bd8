#include <metal_stdlib>
using namespace metal;

// Matrix products through tiles in threadgroup memory, and what a layer of a network does around them.

constant uint TILE = 32;
constant uint STEP = 16;
constant uint PER_THREAD = 4;
constant float SCALE = 1.0f + VARIANT * 1e-6f;

struct Sizes {
    uint rows;
    uint columns;
    uint inner;
    uint stride_a;
    uint stride_b;
    uint stride_c;
    float alpha;
    float beta;
};

struct Tile {
    uint row;
    uint column;
};

inline Tile tile_of(uint2 group) {
    Tile tile;
    tile.row = group.y * TILE;
    tile.column = group.x * TILE;
    return tile;
}

inline float load_or_zero(device const float* matrix, uint row, uint column, uint rows, uint columns, uint stride) {
    return row < rows && column < columns ? matrix[row * stride + column] : 0.0f;
}

inline float activated(float x) {
    float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanh(inner));
}

inline float activation_slope(float x) {
    float cube = 0.044715f * x * x * x;
    float t = tanh(0.7978845608f * (x + cube));
    float inner_slope = 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner_slope;
}

[[max_total_threads_per_threadgroup(64)]]
kernel void multiply(device const float* a [[buffer(0)]],
                     device const float* b [[buffer(1)]],
                     device float* c [[buffer(2)]],
                     constant Sizes& sizes [[buffer(3)]],
                     uint2 group [[threadgroup_position_in_grid]],
                     uint2 local [[thread_position_in_threadgroup]],
                     uint index [[thread_index_in_threadgroup]])
{
    threadgroup float tile_a[STEP][TILE + 1];
    threadgroup float tile_b[STEP][TILE + 1];
    Tile tile = tile_of(group);
    float sums[PER_THREAD][PER_THREAD];
    for (uint i = 0; i < PER_THREAD; i++) {
        for (uint j = 0; j < PER_THREAD; j++) {
            sums[i][j] = 0;
        }
    }
    for (uint start = 0; start < sizes.inner; start += STEP) {
        for (uint k = index; k < STEP * TILE; k += 64) {
            uint along = k % STEP;
            uint across = k / STEP;
            tile_a[along][across] =
                load_or_zero(a, tile.row + across, start + along, sizes.rows, sizes.inner, sizes.stride_a);
        }
        for (uint k = index; k < STEP * TILE; k += 64) {
            uint across = k % TILE;
            uint along = k / TILE;
            tile_b[along][across] =
                load_or_zero(b, start + along, tile.column + across, sizes.inner, sizes.columns, sizes.stride_b);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < STEP; k++) {
            float left[PER_THREAD];
            float right[PER_THREAD];
            for (uint i = 0; i < PER_THREAD; i++) {
                left[i] = tile_a[k][local.y * PER_THREAD + i];
                right[i] = tile_b[k][local.x * PER_THREAD + i];
            }
            for (uint i = 0; i < PER_THREAD; i++) {
                for (uint j = 0; j < PER_THREAD; j++) {
                    sums[i][j] = fma(left[i], right[j], sums[i][j]);
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint i = 0; i < PER_THREAD; i++) {
        uint row = tile.row + local.y * PER_THREAD + i;
        for (uint j = 0; j < PER_THREAD; j++) {
            uint column = tile.column + local.x * PER_THREAD + j;
            if (row < sizes.rows && column < sizes.columns) {
                uint place = row * sizes.stride_c + column;
                c[place] = sizes.alpha * SCALE * sums[i][j] + sizes.beta * c[place];
            }
        }
    }
}

[[max_total_threads_per_threadgroup(256)]]
kernel void transpose(device const float* source [[buffer(0)]],
                      device float* destination [[buffer(1)]],
                      constant Sizes& sizes [[buffer(2)]],
                      uint2 group [[threadgroup_position_in_grid]],
                      uint2 local [[thread_position_in_threadgroup]])
{
    threadgroup float tile[16][17];
    uint2 from = group * 16 + local;
    if (from.x < sizes.columns && from.y < sizes.rows) {
        tile[local.y][local.x] = source[from.y * sizes.stride_a + from.x];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint2 to = group.yx * 16 + local;
    if (to.x < sizes.rows && to.y < sizes.columns) {
        destination[to.y * sizes.stride_b + to.x] = tile[local.x][local.y];
    }
}

kernel void add_bias_and_activate(device float* c [[buffer(0)]],
                                  device const float* bias [[buffer(1)]],
                                  device float* kept [[buffer(2)]],
                                  constant Sizes& sizes [[buffer(3)]],
                                  uint2 position [[thread_position_in_grid]])
{
    if (position.x >= sizes.columns || position.y >= sizes.rows) {
        return;
    }
    uint place = position.y * sizes.stride_c + position.x;
    float x = c[place] + bias[position.x];
    kept[place] = x;
    c[place] = activated(x) * SCALE;
}

kernel void activation_gradient(device float* gradient [[buffer(0)]],
                                device const float* kept [[buffer(1)]],
                                constant Sizes& sizes [[buffer(2)]],
                                uint2 position [[thread_position_in_grid]])
{
    if (position.x >= sizes.columns || position.y >= sizes.rows) {
        return;
    }
    uint place = position.y * sizes.stride_c + position.x;
    gradient[place] *= activation_slope(kept[place]);
}

[[max_total_threads_per_threadgroup(64)]]
kernel void bias_gradient(device const float* gradient [[buffer(0)]],
                          device float* bias_gradient [[buffer(1)]],
                          constant Sizes& sizes [[buffer(2)]],
                          uint column [[threadgroup_position_in_grid]],
                          uint index [[thread_position_in_threadgroup]])
{
    threadgroup float partial[64];
    float sum = 0;
    for (uint row = index; row < sizes.rows; row += 64) {
        sum += gradient[row * sizes.stride_c + column];
    }
    partial[index] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint half_size = 32; half_size > 0; half_size /= 2) {
        if (index < half_size) {
            partial[index] += partial[index + half_size];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (index == 0) {
        bias_gradient[column] = partial[0] * SCALE;
    }
}
