// <metal_pack>: the first component is in the lowest bits.
//@ pack_mtl : construct_mtl
#ifdef __OPENCL_VERSION__
#define RINT_MTL rint
#define POW_MTL pow
#else
#define RINT_MTL rintf
#define POW_MTL powf
#endif
// NaN becomes 0, and what is out of range its nearest end.
inline uint unorm_mtl(float x, float largest) { return (uint)RINT_MTL((x >= 0.0f ? (x <= 1.0f ? x : 1.0f) : 0.0f) * largest); }
inline uint snorm_mtl(float x, float largest) { return (uint)(int)RINT_MTL((x > -1.0f ? (x < 1.0f ? x : 1.0f) : x <= -1.0f ? -1.0f : 0.0f) * largest); }
inline float from_snorm_mtl(int x, float largest) { float r = (float)x / largest; return r < -1.0f ? -1.0f : r; }
inline float to_srgb_mtl(float x) { return x >= 1.0f ? 1.0f : x > 0.0031308f ? 1.055f * POW_MTL(x, 1.0f / 2.4f) - 0.055f : 12.92f * x; }
inline float from_srgb_mtl(float x) { return x <= 0.04045f ? x / 12.92f : POW_MTL((x + 0.055f) / 1.055f, 2.4f); }

//@ pack_float_to_unorm4x8 pack_half_to_unorm4x8 : pack_mtl
inline uint pack_float_to_unorm4x8(vec_mtl<float, 4> v) { return (uint)(unorm_mtl(v[0], 255.0f) | unorm_mtl(v[1], 255.0f) << 8 | unorm_mtl(v[2], 255.0f) << 16 | unorm_mtl(v[3], 255.0f) << 24); }
inline uint pack_half_to_unorm4x8(vec_mtl<half, 4> v) { return pack_float_to_unorm4x8(construct_mtl<vec_mtl<float, 4>>((float)v[0], (float)v[1], (float)v[2], (float)v[3])); }
//@ pack_float_to_snorm4x8 pack_half_to_snorm4x8 : pack_mtl
inline uint pack_float_to_snorm4x8(vec_mtl<float, 4> v) { return (uint)((snorm_mtl(v[0], 127.0f) & 255u) | (snorm_mtl(v[1], 127.0f) & 255u) << 8 | (snorm_mtl(v[2], 127.0f) & 255u) << 16 | (snorm_mtl(v[3], 127.0f) & 255u) << 24); }
inline uint pack_half_to_snorm4x8(vec_mtl<half, 4> v) { return pack_float_to_snorm4x8(construct_mtl<vec_mtl<float, 4>>((float)v[0], (float)v[1], (float)v[2], (float)v[3])); }
//@ pack_float_to_srgb_unorm4x8 pack_half_to_srgb_unorm4x8 : pack_mtl
inline uint pack_float_to_srgb_unorm4x8(vec_mtl<float, 4> v) { return (uint)(unorm_mtl(to_srgb_mtl(v[0]), 255.0f) | unorm_mtl(to_srgb_mtl(v[1]), 255.0f) << 8 | unorm_mtl(to_srgb_mtl(v[2]), 255.0f) << 16 | unorm_mtl(v[3], 255.0f) << 24); }
inline uint pack_half_to_srgb_unorm4x8(vec_mtl<half, 4> v) { return pack_float_to_srgb_unorm4x8(construct_mtl<vec_mtl<float, 4>>((float)v[0], (float)v[1], (float)v[2], (float)v[3])); }
//@ pack_float_to_unorm2x16 pack_half_to_unorm2x16 : pack_mtl
inline uint pack_float_to_unorm2x16(vec_mtl<float, 2> v) { return (uint)(unorm_mtl(v[0], 65535.0f) | unorm_mtl(v[1], 65535.0f) << 16); }
inline uint pack_half_to_unorm2x16(vec_mtl<half, 2> v) { return pack_float_to_unorm2x16(construct_mtl<vec_mtl<float, 2>>((float)v[0], (float)v[1])); }
//@ pack_float_to_snorm2x16 pack_half_to_snorm2x16 : pack_mtl
inline uint pack_float_to_snorm2x16(vec_mtl<float, 2> v) { return (uint)((snorm_mtl(v[0], 32767.0f) & 65535u) | (snorm_mtl(v[1], 32767.0f) & 65535u) << 16); }
inline uint pack_half_to_snorm2x16(vec_mtl<half, 2> v) { return pack_float_to_snorm2x16(construct_mtl<vec_mtl<float, 2>>((float)v[0], (float)v[1])); }
//@ pack_float_to_unorm10a2 pack_half_to_unorm10a2 : pack_mtl
inline uint pack_float_to_unorm10a2(vec_mtl<float, 4> v) { return (uint)(unorm_mtl(v[0], 1023.0f) | unorm_mtl(v[1], 1023.0f) << 10 | unorm_mtl(v[2], 1023.0f) << 20 | unorm_mtl(v[3], 3.0f) << 30); }
inline uint pack_half_to_unorm10a2(vec_mtl<half, 4> v) { return pack_float_to_unorm10a2(construct_mtl<vec_mtl<float, 4>>((float)v[0], (float)v[1], (float)v[2], (float)v[3])); }
//@ pack_float_to_unorm565 pack_half_to_unorm565 : pack_mtl
inline ushort pack_float_to_unorm565(vec_mtl<float, 3> v) { return (ushort)(unorm_mtl(v[0], 31.0f) | unorm_mtl(v[1], 63.0f) << 5 | unorm_mtl(v[2], 31.0f) << 11); }
inline ushort pack_half_to_unorm565(vec_mtl<half, 3> v) { return pack_float_to_unorm565(construct_mtl<vec_mtl<float, 3>>((float)v[0], (float)v[1], (float)v[2])); }
//@ unpack_unorm4x8_to_float unpack_unorm4x8_to_half : pack_mtl
inline vec_mtl<float, 4> unpack_unorm4x8_to_float(uint x) { return construct_mtl<vec_mtl<float, 4>>((float)(x & 255u) / 255.0f, (float)(x >> 8 & 255u) / 255.0f, (float)(x >> 16 & 255u) / 255.0f, (float)(x >> 24 & 255u) / 255.0f); }
inline vec_mtl<half, 4> unpack_unorm4x8_to_half(uint x) { vec_mtl<float, 4> v = unpack_unorm4x8_to_float(x); return construct_mtl<vec_mtl<half, 4>>((half)v[0], (half)v[1], (half)v[2], (half)v[3]); }
//@ unpack_snorm4x8_to_float unpack_snorm4x8_to_half : pack_mtl
inline vec_mtl<float, 4> unpack_snorm4x8_to_float(uint x) { return construct_mtl<vec_mtl<float, 4>>(from_snorm_mtl((int)(x << 24) >> 24, 127.0f), from_snorm_mtl((int)(x << 16) >> 24, 127.0f), from_snorm_mtl((int)(x << 8) >> 24, 127.0f), from_snorm_mtl((int)x >> 24, 127.0f)); }
inline vec_mtl<half, 4> unpack_snorm4x8_to_half(uint x) { vec_mtl<float, 4> v = unpack_snorm4x8_to_float(x); return construct_mtl<vec_mtl<half, 4>>((half)v[0], (half)v[1], (half)v[2], (half)v[3]); }
//@ unpack_unorm4x8_srgb_to_float unpack_unorm4x8_srgb_to_half : pack_mtl
inline vec_mtl<float, 4> unpack_unorm4x8_srgb_to_float(uint x) { return construct_mtl<vec_mtl<float, 4>>(from_srgb_mtl((float)(x & 255u) / 255.0f), from_srgb_mtl((float)(x >> 8 & 255u) / 255.0f), from_srgb_mtl((float)(x >> 16 & 255u) / 255.0f), (float)(x >> 24) / 255.0f); }
inline vec_mtl<half, 4> unpack_unorm4x8_srgb_to_half(uint x) { vec_mtl<float, 4> v = unpack_unorm4x8_srgb_to_float(x); return construct_mtl<vec_mtl<half, 4>>((half)v[0], (half)v[1], (half)v[2], (half)v[3]); }
//@ unpack_unorm2x16_to_float unpack_unorm2x16_to_half : pack_mtl
inline vec_mtl<float, 2> unpack_unorm2x16_to_float(uint x) { return construct_mtl<vec_mtl<float, 2>>((float)(x & 65535u) / 65535.0f, (float)(x >> 16 & 65535u) / 65535.0f); }
inline vec_mtl<half, 2> unpack_unorm2x16_to_half(uint x) { vec_mtl<float, 2> v = unpack_unorm2x16_to_float(x); return construct_mtl<vec_mtl<half, 2>>((half)v[0], (half)v[1]); }
//@ unpack_snorm2x16_to_float unpack_snorm2x16_to_half : pack_mtl
inline vec_mtl<float, 2> unpack_snorm2x16_to_float(uint x) { return construct_mtl<vec_mtl<float, 2>>(from_snorm_mtl((int)(x << 16) >> 16, 32767.0f), from_snorm_mtl((int)x >> 16, 32767.0f)); }
inline vec_mtl<half, 2> unpack_snorm2x16_to_half(uint x) { vec_mtl<float, 2> v = unpack_snorm2x16_to_float(x); return construct_mtl<vec_mtl<half, 2>>((half)v[0], (half)v[1]); }
//@ unpack_unorm10a2_to_float unpack_unorm10a2_to_half : pack_mtl
inline vec_mtl<float, 4> unpack_unorm10a2_to_float(uint x) { return construct_mtl<vec_mtl<float, 4>>((float)(x & 1023u) / 1023.0f, (float)(x >> 10 & 1023u) / 1023.0f, (float)(x >> 20 & 1023u) / 1023.0f, (float)(x >> 30) / 3.0f); }
inline vec_mtl<half, 4> unpack_unorm10a2_to_half(uint x) { vec_mtl<float, 4> v = unpack_unorm10a2_to_float(x); return construct_mtl<vec_mtl<half, 4>>((half)v[0], (half)v[1], (half)v[2], (half)v[3]); }
//@ unpack_unorm565_to_float unpack_unorm565_to_half : pack_mtl
inline vec_mtl<float, 3> unpack_unorm565_to_float(ushort x) { return construct_mtl<vec_mtl<float, 3>>((float)(x & 31) / 31.0f, (float)(x >> 5 & 63) / 63.0f, (float)(x >> 11 & 31) / 31.0f); }
inline vec_mtl<half, 3> unpack_unorm565_to_half(ushort x) { vec_mtl<float, 3> v = unpack_unorm565_to_float(x); return construct_mtl<vec_mtl<half, 3>>((half)v[0], (half)v[1], (half)v[2]); }
