#include <metal_stdlib>
using namespace metal;

// A scene of signed distances, marched along rays with shadows, occlusion and one reflection.

constant float SCALE = 1.0f + VARIANT * 1e-6f;

struct Camera {
    float3 position;
    float3 target;
    float2 size;
    float time;
    uint steps;
};

struct Hit {
    float distance;
    int material;
};

inline float3x3 look_at(float3 from, float3 to)
{
    float3 forward = normalize(to - from);
    float3 right = normalize(cross(forward, float3(0, 1, 0)));
    return float3x3(right, cross(right, forward), forward);
}

inline float2 turned(float2 p, float angle)
{
    float c, s = sincos(angle, c);
    return float2(c * p.x - s * p.y, s * p.x + c * p.y);
}

inline float sphere(float3 p, float radius) { return length(p) - radius; }

inline float box(float3 p, float3 half_size)
{
    float3 q = abs(p) - half_size;
    return length(max(q, 0.0f)) + min(max(q.x, max(q.y, q.z)), 0.0f);
}

inline float torus(float3 p, float2 radii)
{
    float2 q = float2(length(p.xz) - radii.x, p.y);
    return length(q) - radii.y;
}

inline float capsule(float3 p, float3 a, float3 b, float radius)
{
    float3 pa = p - a, ba = b - a;
    float h = saturate(dot(pa, ba) / dot(ba, ba));
    return length(pa - ba * h) - radius;
}

inline float smooth_union(float a, float b, float k)
{
    float h = saturate(0.5f + 0.5f * (b - a) / k);
    return mix(b, a, h) - k * h * (1.0f - h);
}

inline Hit nearer(Hit a, Hit b)
{
    if (b.distance < a.distance) {
        return b;
    }
    return a;
}

inline Hit scene(float3 p, float time)
{
    Hit ground = {p.y + 1.0f + 0.05f * sin(4.0f * p.x) * sin(4.0f * p.z), 0};
    float3 q = p - float3(0, 0.2f * sin(SCALE * time), 0);
    float body = smooth_union(sphere(q, 0.6f), box(q - float3(0.5f, 0.3f, 0), float3(0.3f, 0.2f, 0.25f)), 0.2f);
    body = smooth_union(body, capsule(q, float3(-1, 0, 0), float3(-0.3f, 0.6f, 0.2f), 0.15f), 0.1f);
    Hit middle = {body, 1};
    float3 r = p - float3(0, 0.2f, 0);
    r.xy = turned(r.xy, time);
    r.yz = turned(r.yz, 0.5f * time);
    Hit ring = {torus(r, float2(1.2f, 0.1f)), 2};
    float3 cell = fract(p * 0.25f + 0.5f) * 4.0f - 2.0f;
    Hit pillars = {max(length(cell.xz) - 0.1f, p.y - 0.5f), 3};
    return nearer(nearer(ground, middle), nearer(ring, pillars));
}

inline float3 normal_at(float3 p, float time)
{
    const float2 e = float2(1e-3f, -1e-3f);
    return normalize(e.xyy * scene(p + e.xyy, time).distance + e.yyx * scene(p + e.yyx, time).distance
                     + e.yxy * scene(p + e.yxy, time).distance + e.xxx * scene(p + e.xxx, time).distance);
}

inline float soft_shadow(float3 origin, float3 direction, float time)
{
    float light = 1.0f;
    float t = 0.02f;
    for (int i = 0; i < 24; i++) {
        float d = scene(origin + direction * t, time).distance;
        light = min(light, 8.0f * d / t);
        t += clamp(d, 0.02f, 0.2f);
        if (light < 1e-3f || t > 5.0f) {
            break;
        }
    }
    return saturate(light);
}

inline float occlusion(float3 p, float3 n, float time)
{
    float sum = 0, weight = 1;
    for (int i = 0; i < 5; i++) {
        float h = 0.01f + 0.12f * float(i) / 4.0f;
        sum += (h - scene(p + n * h, time).distance) * weight;
        weight *= 0.95f;
    }
    return saturate(1.0f - 3.0f * sum);
}

inline float3 sky(float3 direction)
{
    float t = 0.5f * (direction.y + 1.0f);
    float3 color = mix(float3(0.9f, 0.9f, 1.0f), float3(0.3f, 0.5f, 0.9f), t);
    float sun = saturate(dot(direction, normalize(float3(0.6f, 0.5f, -0.4f))));
    return color + float3(1.0f, 0.8f, 0.5f) * pow(sun, 64.0f);
}

inline float3 albedo(int material, float3 p)
{
    switch (material) {
    case 0: {
        float2 checks = floor(p.xz * 2.0f);
        return fmod(abs(checks.x + checks.y), 2.0f) < 0.5f ? float3(0.8f) : float3(0.3f);
    }
    case 1:
        return float3(0.9f, 0.4f, 0.2f);
    case 2:
        return 0.5f + 0.5f * cos(6.2831853f * (p.xyz * 0.3f + float3(0, 0.33f, 0.67f)));
    default:
        return float3(0.4f, 0.6f, 0.4f);
    }
}

kernel void render(device uchar4* picture [[buffer(0)]],
                   device float* depths [[buffer(1)]],
                   constant Camera& camera [[buffer(2)]],
                   uint2 p [[thread_position_in_grid]])
{
    if (any(float2(p) >= camera.size)) {
        return;
    }
    float2 uv = (2.0f * (float2(p) + 0.5f) - camera.size) / camera.size.y;
    uv.y = -uv.y;
    float3 direction = look_at(camera.position, camera.target) * normalize(float3(uv, 1.8f));
    float3 origin = camera.position;
    float3 color = 0, through = 1;
    float depth = 0;
    for (int bounce = 0; bounce < 2; bounce++) {
        float t = 0.01f;
        Hit hit = {1e9f, -1};
        for (uint i = 0; i < camera.steps && t < 30.0f; i++) {
            hit = scene(origin + direction * t, camera.time);
            if (hit.distance < 1e-3f * t) {
                break;
            }
            t += hit.distance;
        }
        if (t >= 30.0f) {
            color += through * sky(direction);
            break;
        }
        depth = bounce == 0 ? t : depth;
        float3 place = origin + direction * t;
        float3 n = normal_at(place, camera.time);
        float3 sun = normalize(float3(0.6f, 0.5f, -0.4f));
        float diffuse = saturate(dot(n, sun)) * soft_shadow(place + n * 1e-2f, sun, camera.time);
        float ambient = 0.3f * occlusion(place, n, camera.time);
        float3 halfway = normalize(sun - direction);
        float shine = pow(saturate(dot(n, halfway)), 32.0f) * diffuse;
        float3 base = albedo(hit.material, place);
        float fresnel = 0.04f + 0.96f * pow(1.0f - saturate(dot(-direction, n)), 5.0f);
        color += through * (base * (diffuse + ambient) + shine) * (1.0f - fresnel);
        through *= fresnel;
        origin = place + n * 1e-2f;
        direction = reflect(direction, n);
    }
    color = powr(saturate(color), float3(1.0f / 2.2f));
    uint i = p.y * uint(camera.size.x) + p.x;
    picture[i] = uchar4(uchar3(color * 255.0f + 0.5f), 255);
    depths[i] = depth;
}
