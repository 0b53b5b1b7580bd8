#include <metal_stdlib>
using namespace metal;

// y = x * sigmoid(x)
kernel void swish(device const float* x, device float* y, uint i [[thread_position_in_grid]]) {
    y[i] = x[i] / (1 + exp(-x[i]));
}

// dx = dy * (s + x * s * (1 - s)) with s = sigmoid(x)
kernel void swish_gradient(device const float* dy, device const float* x, device float* dx,
                           uint i [[thread_position_in_grid]]) {
    float s = 1 / (1 + exp(-x[i]));
    dx[i] = dy[i] * (s + x[i] * s * (1 - s));
}
