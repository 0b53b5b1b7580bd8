#include <metal_stdlib>
using namespace metal;

// Eight independent chains of float32 multiply-adds: enough for the latency of any unit, so that its rate shows.
kernel void multiply_add(device float* results, constant uint& rounds, constant float& factor,
                         uint i [[thread_position_in_grid]]) {
    float a = i, b = a + 1, c = a + 2, d = a + 3, e = a + 4, f = a + 5, g = a + 6, h = a + 7;
    for (uint k = 0; k < rounds; k++) {
        a = fma(a, factor, 1.0f);
        b = fma(b, factor, 1.0f);
        c = fma(c, factor, 1.0f);
        d = fma(d, factor, 1.0f);
        e = fma(e, factor, 1.0f);
        f = fma(f, factor, 1.0f);
        g = fma(g, factor, 1.0f);
        h = fma(h, factor, 1.0f);
    }
    results[i] = a + b + c + d + e + f + g + h;
}
