// <metal_math>, <metal_common>, <metal_integer>, <metal_relational> and <metal_geometric>, where CUDA lacks a scalar form.
//@ abs
inline int abs_mtl(int x) { return x < 0 ? -x : x; }
inline uint abs_mtl(uint x) { return x; }
inline long abs_mtl(long x) { return x < 0 ? -x : x; }
inline ulong abs_mtl(ulong x) { return x; }
inline short abs_mtl(short x) { return x < 0 ? -x : x; }
inline ushort abs_mtl(ushort x) { return x; }
inline char abs_mtl(char x) { return x < 0 ? -x : x; }
inline uchar abs_mtl(uchar x) { return x; }
inline float abs_mtl(float x) { return fabsf(x); }
inline half abs_mtl(half x) { return half(fabsf((float)x)); }

//@ min max min3 max3 median3 clamp
// Both arguments have one type, as in Metal.
#define ORDERED_MTL(t) \
  inline t max_mtl(t x, t y) { return x < y ? y : x; } \
  inline t min_mtl(t x, t y) { return y < x ? y : x; } \
  inline t clamp_mtl(t x, t low, t high) { return min_mtl(max_mtl(x, low), high); } \
  inline t max3_mtl(t x, t y, t z) { return max_mtl(x, max_mtl(y, z)); } \
  inline t min3_mtl(t x, t y, t z) { return min_mtl(x, min_mtl(y, z)); } \
  inline t median3_mtl(t x, t y, t z) { return max_mtl(min_mtl(x, y), min_mtl(max_mtl(x, y), z)); }
inline float max_mtl(float x, float y) { return fmaxf(x, y); }
inline float min_mtl(float x, float y) { return fminf(x, y); }
inline float clamp_mtl(float x, float low, float high) { return fminf(fmaxf(x, low), high); }
inline float max3_mtl(float x, float y, float z) { return fmaxf(x, fmaxf(y, z)); }
inline float min3_mtl(float x, float y, float z) { return fminf(x, fminf(y, z)); }
inline float median3_mtl(float x, float y, float z) { return fmaxf(fminf(x, y), fminf(fmaxf(x, y), z)); }
ORDERED_MTL(half)
ORDERED_MTL(char)
ORDERED_MTL(uchar)
ORDERED_MTL(short)
ORDERED_MTL(ushort)
ORDERED_MTL(int)
ORDERED_MTL(uint)
ORDERED_MTL(long)
ORDERED_MTL(ulong)
//@ fmin fmax fmin3 fmax3 fmedian3
inline float fmin_mtl(float x, float y) { return fminf(x, y); }
inline float fmax_mtl(float x, float y) { return fmaxf(x, y); }
inline half fmin_mtl(half x, half y) { return half(fminf((float)x, (float)y)); }
inline half fmax_mtl(half x, half y) { return half(fmaxf((float)x, (float)y)); }
template <typename T> inline T fmin3_mtl(T x, T y, T z) { return fmin_mtl(x, fmin_mtl(y, z)); }
template <typename T> inline T fmax3_mtl(T x, T y, T z) { return fmax_mtl(x, fmax_mtl(y, z)); }
template <typename T> inline T fmedian3_mtl(T x, T y, T z) { return fmax_mtl(fmin_mtl(x, y), fmin_mtl(fmax_mtl(x, y), z)); }

//@ floating_mtl
#define FLOATING_1_MTL(name, expression) \
  inline float name(float x) { return expression; } \
  inline half name(half h) { float x = (float)h; return half(expression); }
#define FLOATING_2_MTL(name, expression) \
  inline float name(float x, float y) { return expression; } \
  inline half name(half h, half k) { float x = (float)h, y = (float)k; return half(expression); }
#define FLOATING_3_MTL(name, expression) \
  inline float name(float x, float y, float z) { return expression; } \
  inline half name(half h, half k, half l) { float x = (float)h, y = (float)k, z = (float)l; return half(expression); }
//@ acos : floating_mtl
FLOATING_1_MTL(acos_mtl, acosf(x))
//@ acosh : floating_mtl
FLOATING_1_MTL(acosh_mtl, acoshf(x))
//@ asin : floating_mtl
FLOATING_1_MTL(asin_mtl, asinf(x))
//@ asinh : floating_mtl
FLOATING_1_MTL(asinh_mtl, asinhf(x))
//@ atan : floating_mtl
FLOATING_1_MTL(atan_mtl, atanf(x))
//@ atanh : floating_mtl
FLOATING_1_MTL(atanh_mtl, atanhf(x))
//@ ceil : floating_mtl
FLOATING_1_MTL(ceil_mtl, ceilf(x))
//@ cos : floating_mtl
FLOATING_1_MTL(cos_mtl, cosf(x))
//@ cosh : floating_mtl
FLOATING_1_MTL(cosh_mtl, coshf(x))
//@ cospi : floating_mtl
FLOATING_1_MTL(cospi_mtl, cospif(x))
//@ exp : floating_mtl
FLOATING_1_MTL(exp_mtl, expf(x))
//@ fast::exp
// The error grows with the size of x: 2 and 1.16 |x| units in the last place.
inline float fast_exp_mtl(float x) { return __expf(x); }
//@ exp2 : floating_mtl
FLOATING_1_MTL(exp2_mtl, exp2f(x))
//@ exp10 : floating_mtl
FLOATING_1_MTL(exp10_mtl, exp10f(x))
//@ fabs : floating_mtl
FLOATING_1_MTL(fabs_mtl, fabsf(x))
//@ floor : floating_mtl
FLOATING_1_MTL(floor_mtl, floorf(x))
//@ fract : floating_mtl
inline float fract_mtl(float x) { return fminf(x - floorf(x), 0x1.fffffep-1f); }
inline half fract_mtl(half x) { return half(fminf((float)x - floorf((float)x), 0x1.ffcp-1f)); }
//@ log : floating_mtl
FLOATING_1_MTL(log_mtl, logf(x))
//@ log2 : floating_mtl
FLOATING_1_MTL(log2_mtl, log2f(x))
//@ log10 : floating_mtl
FLOATING_1_MTL(log10_mtl, log10f(x))
//@ rint : floating_mtl
FLOATING_1_MTL(rint_mtl, rintf(x))
//@ round : floating_mtl
FLOATING_1_MTL(round_mtl, roundf(x))
//@ rsqrt : floating_mtl
FLOATING_1_MTL(rsqrt_mtl, rsqrtf(x))
//@ saturate : floating_mtl
FLOATING_1_MTL(saturate_mtl, __saturatef(x))
//@ sign : floating_mtl
FLOATING_1_MTL(sign_mtl, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? x : 0.0f)
//@ sin : floating_mtl
FLOATING_1_MTL(sin_mtl, sinf(x))
//@ sinh : floating_mtl
FLOATING_1_MTL(sinh_mtl, sinhf(x))
//@ sinpi : floating_mtl
FLOATING_1_MTL(sinpi_mtl, sinpif(x))
//@ sqrt : floating_mtl
FLOATING_1_MTL(sqrt_mtl, sqrtf(x))
//@ tan : floating_mtl
FLOATING_1_MTL(tan_mtl, tanf(x))
//@ tanh : floating_mtl
FLOATING_1_MTL(tanh_mtl, tanhf(x))
//@ tanpi : floating_mtl
FLOATING_1_MTL(tanpi_mtl, sinpif(x) / cospif(x))
//@ trunc : floating_mtl
FLOATING_1_MTL(trunc_mtl, truncf(x))
//@ atan2 : floating_mtl
FLOATING_2_MTL(atan2_mtl, atan2f(x, y))
//@ copysign : floating_mtl
FLOATING_2_MTL(copysign_mtl, copysignf(x, y))
//@ divide : floating_mtl
FLOATING_2_MTL(divide_mtl, x / y)
//@ fast::divide
// Within 2 units in the last place for divisors below 2^126.
inline float fast_divide_mtl(float x, float y) { return __fdividef(x, y); }
//@ fdim : floating_mtl
FLOATING_2_MTL(fdim_mtl, fdimf(x, y))
//@ fmod : floating_mtl
FLOATING_2_MTL(fmod_mtl, fmodf(x, y))
//@ nextafter : floating_mtl
inline float nextafter_mtl(float x, float y) { return nextafterf(x, y); }
//@ pow : floating_mtl
FLOATING_2_MTL(pow_mtl, powf(x, y))
//@ powr : floating_mtl
FLOATING_2_MTL(powr_mtl, powf(x, y))
//@ step : floating_mtl
FLOATING_2_MTL(step_mtl, y < x ? 0.0f : 1.0f)
//@ fma : floating_mtl
FLOATING_3_MTL(fma_mtl, fmaf(x, y, z))
//@ mix : floating_mtl
FLOATING_3_MTL(mix_mtl, x + (y - x) * z)
//@ smoothstep : floating_mtl
inline float smoothstep_mtl(float a, float b, float x) { float t = __saturatef((x - a) / (b - a)); return t * t * (3.0f - 2.0f * t); }
inline half smoothstep_mtl(half a, half b, half x) { return half(smoothstep_mtl((float)a, (float)b, (float)x)); }
//@ ldexp
inline float ldexp_mtl(float x, int e) { return ldexpf(x, e); }
inline half ldexp_mtl(half x, int e) { return half(ldexpf((float)x, e)); }
//@ frexp
inline float frexp_mtl(float x, int &e) { return frexpf(x, &e); }
inline half frexp_mtl(half x, int &e) { return half(frexpf((float)x, &e)); }
//@ ilogb
inline int ilogb_mtl(float x) { return ilogbf(x); }
//@ modf
inline float modf_mtl(float x, float &whole) { return modff(x, &whole); }
inline half modf_mtl(half x, half &whole) { float w, f = modff((float)x, &w); whole = half(w); return half(f); }
//@ sincos
inline float sincos_mtl(float x, float &c) { float s; sincosf(x, &s, &c); return s; }
inline half sincos_mtl(half x, half &c) { float s, k; sincosf((float)x, &s, &k); c = half(k); return half(s); }

//@ isnan isinf isfinite isnormal signbit
inline bool isnan_mtl(float x) { return (__float_as_uint(x) & 0x7fffffffu) > 0x7f800000u; }
inline bool isinf_mtl(float x) { return (__float_as_uint(x) & 0x7fffffffu) == 0x7f800000u; }
inline bool isfinite_mtl(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }
inline bool isnormal_mtl(float x) { uint e = __float_as_uint(x) & 0x7f800000u; return e != 0x7f800000u && e != 0; }
inline bool signbit_mtl(float x) { return __float_as_uint(x) >> 31; }

//@ isordered isunordered : isnan
inline bool isordered_mtl(float x, float y) { return !isnan_mtl(x) && !isnan_mtl(y); }
inline bool isunordered_mtl(float x, float y) { return isnan_mtl(x) || isnan_mtl(y); }

//@ clz
inline int clz_mtl(int x) { return __clz(x); }
inline uint clz_mtl(uint x) { return __clz((int)x); }
inline long clz_mtl(long x) { return __clzll(x); }
inline ulong clz_mtl(ulong x) { return __clzll((long)x); }
inline ushort clz_mtl(ushort x) { return (ushort)(__clz((int)x) - 16); }
inline uchar clz_mtl(uchar x) { return (uchar)(__clz((int)x) - 24); }
//@ ctz
inline int ctz_mtl(int x) { return x ? __ffs(x) - 1 : 32; }
inline uint ctz_mtl(uint x) { return x ? __ffs((int)x) - 1 : 32; }
inline ulong ctz_mtl(ulong x) { return x ? __ffsll((long)x) - 1 : 64; }
//@ popcount
inline int popcount_mtl(int x) { return __popc((uint)x); }
inline uint popcount_mtl(uint x) { return __popc(x); }
inline ulong popcount_mtl(ulong x) { return __popcll(x); }
inline ushort popcount_mtl(ushort x) { return __popc(x); }
inline uchar popcount_mtl(uchar x) { return __popc(x); }
//@ mulhi madhi
inline int mulhi_mtl(int x, int y) { return __mulhi(x, y); }
inline uint mulhi_mtl(uint x, uint y) { return __umulhi(x, y); }
inline long mulhi_mtl(long x, long y) { return __mul64hi(x, y); }
inline ulong mulhi_mtl(ulong x, ulong y) { return __umul64hi(x, y); }
template <typename T> inline T madhi_mtl(T a, T b, T c) { return mulhi_mtl(a, b) + c; }
//@ mul24 mad24
inline int mul24_mtl(int x, int y) { return __mul24(x, y); }
inline uint mul24_mtl(uint x, uint y) { return __umul24(x, y); }
template <typename T> inline T mad24_mtl(T a, T b, T c) { return mul24_mtl(a, b) + c; }
//@ reverse_bits
inline uint reverse_bits_mtl(uint x) { return __brev(x); }
inline int reverse_bits_mtl(int x) { return (int)__brev((uint)x); }
//@ rotate
inline uint rotate_mtl(uint x, uint n) { return __funnelshift_l(x, x, n); }
inline int rotate_mtl(int x, int n) { return (int)__funnelshift_l((uint)x, (uint)x, (uint)n); }
//@ absdiff
template <typename T> inline T absdiff_mtl(T x, T y) { return x > y ? x - y : y - x; }
//@ addsat
inline uint addsat_mtl(uint x, uint y) { uint s = x + y; return s < x ? 0xffffffffu : s; }
inline int addsat_mtl(int x, int y) { long s = (long)x + y; return s > 2147483647L ? 2147483647 : s < -2147483648L ? (int)-2147483648L : (int)s; }
//@ subsat
inline uint subsat_mtl(uint x, uint y) { return x > y ? x - y : 0u; }
inline int subsat_mtl(int x, int y) { long s = (long)x - y; return s > 2147483647L ? 2147483647 : s < -2147483648L ? (int)-2147483648L : (int)s; }
//@ hadd
inline uint hadd_mtl(uint x, uint y) { return (uint)(((ulong)x + y) >> 1); }
inline int hadd_mtl(int x, int y) { return (int)(((long)x + y) >> 1); }
//@ rhadd
inline uint rhadd_mtl(uint x, uint y) { return (uint)(((ulong)x + y + 1) >> 1); }
inline int rhadd_mtl(int x, int y) { return (int)(((long)x + y + 1) >> 1); }
//@ extract_bits
inline uint extract_bits_mtl(uint x, uint offset, uint bits) { return bits >= 32 ? x >> offset : (x >> offset) & ((1u << bits) - 1); }
inline int extract_bits_mtl(int x, uint offset, uint bits) { return bits == 0 ? 0 : bits >= 32 ? x >> offset : (int)((uint)x << (32 - bits - offset)) >> (32 - bits); }
//@ insert_bits
template <typename T> inline T insert_bits_mtl(T base, T insert, uint offset, uint bits) {
  ulong mask = (bits >= 64 ? ~0ul : (1ul << bits) - 1) << offset;
  return (T)(((ulong)base & ~mask) | (((ulong)insert << offset) & mask));
}

//@ dot length length_squared distance distance_squared normalize cross reflect refract faceforward : sqrt rsqrt
// Vectors bring these along: dot_mtl length_squared_mtl distance_squared_mtl normalize_mtl cross_mtl reflect_mtl
// refract_mtl faceforward_mtl
inline float length_mtl(float x) { return fabsf(x); }
inline float distance_mtl(float x, float y) { return fabsf(x - y); }
