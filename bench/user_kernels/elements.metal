#include <metal_stdlib>
using namespace metal;

// Functions of single elements: activations with their slopes, and noise.

constant float SCALE = 1.0f + VARIANT * 1e-6f;

struct Elements {
    uint count;
    float a;
    float b;
    uint seed;
};

inline float sigmoid(float x) {
    return 1.0f / (1.0f + exp(-x));
}

inline float softplus(float x) {
    return max(x, 0.0f) + log(1.0f + exp(-abs(x)));
}

inline float error_function(float x) {
    float t = 1.0f / (1.0f + 0.3275911f * abs(x));
    float sum = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    return copysign(1.0f - sum * exp(-x * x), x);
}

inline float log_gamma(float x) {
    const float weights[6] = {76.18009173f, -86.50532033f, 24.01409822f, -1.231739516f, 0.120858003e-2f, -0.536382e-5f};
    float t = x + 5.5f;
    t -= (x + 0.5f) * log(t);
    float sum = 1.000000000190015f;
    for (int k = 0; k < 6; k++) {
        sum += weights[k] / (x + 1.0f + k);
    }
    return -t + log(2.5066282746f * sum / x);
}

inline uint hashed(uint x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

inline float2 normal_pair(uint seed, uint index) {
    float u = (hashed(seed ^ (2 * index)) >> 8) * (1.0f / 16777216.0f) + 1.0f / 33554432.0f;
    float v = (hashed(seed ^ (2 * index + 1)) >> 8) * (1.0f / 16777216.0f);
    float radius = sqrt(-2.0f * log(u));
    return radius * float2(cos(2.0f * M_PI_F * v), sin(2.0f * M_PI_F * v));
}

enum class Function : uint {
    sigmoid,
    tanh,
    softplus,
    gelu,
    swish,
    mish,
    elu,
    selu,
    power,
    log_gamma,
    hyperbolic,
    angle
};

inline float function_of(Function which, float x, float a, float b) {
    switch (which) {
        case Function::sigmoid: return sigmoid(x);
        case Function::tanh: return a * tanh(b * x);
        case Function::softplus: return a * softplus(b * x);
        case Function::gelu: return 0.5f * x * (1.0f + error_function(x * M_SQRT1_2_F));
        case Function::swish: return x * sigmoid(a * x);
        case Function::mish: return x * tanh(softplus(x));
        case Function::elu: return x > 0.0f ? x : a * (exp(x) - 1.0f);
        case Function::selu: return 1.0507009873554805f * (x > 0.0f ? x : 1.6732632423543772f * (exp(x) - 1.0f));
        case Function::power: return pow(abs(x) + a, b);
        case Function::log_gamma: return log_gamma(abs(x) + 1.0f);
        case Function::hyperbolic: return sinh(a * x) / cosh(b * x) + asinh(x);
        case Function::angle: return atan2(a * x, b) + acos(clamp(x, -1.0f, 1.0f)) - asin(saturate(x));
    }
    return 0.0f;
}

kernel void apply(device const float* x [[buffer(0)]],
                  device float* y [[buffer(1)]],
                  constant Elements& elements [[buffer(2)]],
                  constant uint& which [[buffer(3)]],
                  uint i [[thread_position_in_grid]])
{
    if (i >= elements.count) {
        return;
    }
    y[i] = SCALE * function_of(Function(which), x[i], elements.a, elements.b);
}

kernel void add_noise(device float* x [[buffer(0)]],
                      constant Elements& elements [[buffer(1)]],
                      uint i [[thread_position_in_grid]])
{
    if (2 * i >= elements.count) {
        return;
    }
    float2 noise = normal_pair(elements.seed, i) * elements.a + elements.b;
    x[2 * i] += noise.x * SCALE;
    if (2 * i + 1 < elements.count) {
        x[2 * i + 1] += noise.y * SCALE;
    }
}

kernel void rotate_pairs(device float2* x [[buffer(0)]],
                         constant Elements& elements [[buffer(1)]],
                         uint i [[thread_position_in_grid]])
{
    if (i >= elements.count) {
        return;
    }
    float angle = i * pow(elements.a, -elements.b);
    float s = sin(angle);
    float c = cos(angle);
    float2 pair = x[i];
    x[i] = float2(pair.x * c - pair.y * s, pair.x * s + pair.y * c) * SCALE;
}

kernel void tone_map(device const float4* x [[buffer(0)]],
                     device float4* y [[buffer(1)]],
                     constant Elements& elements [[buffer(2)]],
                     uint i [[thread_position_in_grid]])
{
    if (i >= elements.count) {
        return;
    }
    float4 colour = x[i] * elements.a;
    float luminance = dot(colour.rgb, float3(0.2126f, 0.7152f, 0.0722f));
    float mapped = luminance * (1.0f + luminance / (elements.b * elements.b)) / (1.0f + luminance);
    float3 scaled = colour.rgb * (mapped / max(luminance, 1e-6f));
    float3 encoded = mix(scaled * 12.92f, 1.055f * powr(max(scaled, 0.0f), float3(1.0f / 2.4f)) - 0.055f,
                         step(float3(0.0031308f), scaled));
    y[i] = float4(clamp(encoded, 0.0f, 1.0f), colour.a) * SCALE;
}

kernel void gradient_norm(device const float4* x [[buffer(0)]],
                          device float* y [[buffer(1)]],
                          constant Elements& elements [[buffer(2)]],
                          uint i [[thread_position_in_grid]])
{
    if (i >= elements.count) {
        return;
    }
    float4 v = x[i];
    float size = length(v);
    float4 direction = size > elements.a ? normalize(v) : v / elements.a;
    y[i] = SCALE * (size + distance(direction, fract(v)) + fmod(size, elements.b) + log2(1.0f + exp2(-size)));
}
