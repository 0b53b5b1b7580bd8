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
inline half max_mtl(half x, half y) { return half(fmaxf((float)x, (float)y)); }
inline half min_mtl(half x, half y) { return half(fminf((float)x, (float)y)); }
inline half clamp_mtl(half x, half low, half high) { return min_mtl(max_mtl(x, low), high); }
inline half max3_mtl(half x, half y, half z) { return max_mtl(x, max_mtl(y, z)); }
inline half min3_mtl(half x, half y, half z) { return min_mtl(x, min_mtl(y, z)); }
inline half median3_mtl(half x, half y, half z) { return max_mtl(min_mtl(x, y), min_mtl(max_mtl(x, y), z)); }
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
inline float fmin3_mtl(float x, float y, float z) { return fmin_mtl(x, fmin_mtl(y, z)); }
inline half fmin3_mtl(half x, half y, half z) { return fmin_mtl(x, fmin_mtl(y, z)); }
inline float fmax3_mtl(float x, float y, float z) { return fmax_mtl(x, fmax_mtl(y, z)); }
inline half fmax3_mtl(half x, half y, half z) { return fmax_mtl(x, fmax_mtl(y, z)); }
inline float fmedian3_mtl(float x, float y, float z) { return fmax_mtl(fmin_mtl(x, y), fmin_mtl(fmax_mtl(x, y), z)); }
inline half fmedian3_mtl(half x, half y, half z) { return fmax_mtl(fmin_mtl(x, y), fmin_mtl(fmax_mtl(x, y), z)); }

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
// Within 2 + |x| units in the last place.
inline float fast_exp_mtl(float x) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x * 1.44269504f)); return r; }
//@ exp2 : floating_mtl
FLOATING_1_MTL(exp2_mtl, exp2f(x))
//@ exp10 : floating_mtl
FLOATING_1_MTL(exp10_mtl, exp10f(x))
//@ fabs : floating_mtl
FLOATING_1_MTL(fabs_mtl, fabsf(x))
//@ floor : floating_mtl
FLOATING_1_MTL(floor_mtl, floorf(x))
//@ fract : floating_mtl
inline float fract_mtl(float x) { float r = x - floorf(x); return r >= 1.0f ? 0x1.fffffep-1f : r; }
inline half fract_mtl(half x) { float r = (float)x - floorf((float)x); return half(r > 0x1.ffcp-1f ? 0x1.ffcp-1f : r); }
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
//@ precise::rsqrt
// CUDA's may be off by two units in the last place.
inline float precise_rsqrt_mtl(float x) { return (float)rsqrt((double)x); }
inline half precise_rsqrt_mtl(half x) { return half(rsqrtf((float)x)); }
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
//@ precise::sqrt : floating_mtl
FLOATING_1_MTL(precise_sqrt_mtl, __fsqrt_rn(x))
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
//@ precise::divide : floating_mtl
FLOATING_2_MTL(precise_divide_mtl, __fdiv_rn(x, y))
//@ fast::divide
// Within 2 units in the last place.
inline float fast_divide_mtl(float x, float y) { float r; asm("div.full.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y)); return r; }
//@ fdim : floating_mtl
FLOATING_2_MTL(fdim_mtl, fdimf(x, y))
//@ fmod : floating_mtl
FLOATING_2_MTL(fmod_mtl, fmodf(x, y))
//@ nextafter : floating_mtl
inline float nextafter_mtl(float x, float y) { return nextafterf(x, y); }
inline half nextafter_mtl(half x, half y) {
  float from = (float)x, to = (float)y;
  if (from != from || to != to) return half(from + to);
  if (from == to) return y;
  if (from == 0.0f) x.bits = to > 0.0f ? 0x0001 : 0x8001;
  else x.bits += (from < to) == (from > 0.0f) ? 1 : -1;
  return x;
}
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
inline bool isnormal_mtl(half x) { uint e = x.bits & 0x7c00; return e != 0x7c00 && e != 0; }
inline bool signbit_mtl(float x) { return __float_as_uint(x) >> 31; }

//@ isordered isunordered : isnan
inline bool isordered_mtl(float x, float y) { return !isnan_mtl(x) && !isnan_mtl(y); }
inline bool isunordered_mtl(float x, float y) { return isnan_mtl(x) || isnan_mtl(y); }

//@ integer_mtl
// The integer types: their unsigned type, one in which a product of two and a sum have room, and their bits.
template <typename T> struct integer_mtl {};
#define INTEGER_MTL(t, u, w) template <> struct integer_mtl<t> { typedef t self; typedef u bare; typedef w wide; static constexpr uint bits = sizeof(t) * 8; };
INTEGER_MTL(char, uchar, long)
INTEGER_MTL(uchar, uchar, ulong)
INTEGER_MTL(short, ushort, long)
INTEGER_MTL(ushort, ushort, ulong)
INTEGER_MTL(int, uint, long)
INTEGER_MTL(uint, uint, ulong)
INTEGER_MTL(long, ulong, long)
INTEGER_MTL(ulong, ulong, ulong)
// Functions that return it are for integers only: what converts to a vector of them is none.
template <typename T> using self_mtl = typename integer_mtl<T>::self;
template <typename T> using bare_mtl = typename integer_mtl<T>::bare;
template <typename T> inline ulong bits_mtl(T x) { return (bare_mtl<T>)x; }
template <typename T> inline T narrow_mtl(typename integer_mtl<T>::wide x) {
  constexpr bool is_signed = (T)-1 < (T)0;
  constexpr typename integer_mtl<T>::wide high = (T)((bare_mtl<T>)-1 >> is_signed), low = is_signed ? -high - 1 : 0;
  return (T)(x < low ? low : x > high ? high : x);
}
//@ clz : integer_mtl
template <typename T> inline self_mtl<T> clz_mtl(T x) { return (T)(__clzll((long)bits_mtl(x)) - (64 - (int)integer_mtl<T>::bits)); }
inline int clz_mtl(int x) { return __clz(x); }
inline uint clz_mtl(uint x) { return __clz((int)x); }
//@ ctz : integer_mtl
template <typename T> inline self_mtl<T> ctz_mtl(T x) { return (T)(x ? __ffsll((long)bits_mtl(x)) - 1 : integer_mtl<T>::bits); }
//@ popcount : integer_mtl
template <typename T> inline self_mtl<T> popcount_mtl(T x) { return (T)__popcll(bits_mtl(x)); }
//@ mulhi : integer_mtl
template <typename T> inline self_mtl<T> mulhi_mtl(T x, T y) { typedef typename integer_mtl<T>::wide W; return (T)((W)x * (W)y >> integer_mtl<T>::bits); }
inline int mulhi_mtl(int x, int y) { return __mulhi(x, y); }
inline uint mulhi_mtl(uint x, uint y) { return __umulhi(x, y); }
inline long mulhi_mtl(long x, long y) { return __mul64hi(x, y); }
inline ulong mulhi_mtl(ulong x, ulong y) { return __umul64hi(x, y); }
//@ madhi : mulhi
template <typename T> inline self_mtl<T> madhi_mtl(T a, T b, T c) { return (T)(mulhi_mtl(a, b) + c); }
//@ madsat : mulhi
template <typename T> inline self_mtl<T> madsat_mtl(T a, T b, T c) { typedef typename integer_mtl<T>::wide W; return narrow_mtl<T>((W)a * (W)b + (W)c); }
inline ulong madsat_mtl(ulong a, ulong b, ulong c) {
  ulong low = a * b + c;
  return mulhi_mtl(a, b) + (low < c) == 0 ? low : 0xfffffffffffffffful;
}
inline long madsat_mtl(long a, long b, long c) {
  ulong low = (ulong)a * (ulong)b + (ulong)c;
  long high = mulhi_mtl(a, b) + (c >> 63) + (low < (ulong)c);
  return high == (long)low >> 63 ? (long)low : high < 0 ? (long)0x8000000000000000ul : 0x7fffffffffffffffl;
}
//@ mul24 mad24
inline int mul24_mtl(int x, int y) { return __mul24(x, y); }
inline uint mul24_mtl(uint x, uint y) { return __umul24(x, y); }
inline int mad24_mtl(int a, int b, int c) { return __mul24(a, b) + c; }
inline uint mad24_mtl(uint a, uint b, uint c) { return __umul24(a, b) + c; }
//@ reverse_bits : integer_mtl
template <typename T> inline self_mtl<T> reverse_bits_mtl(T x) { return (T)(__brevll(bits_mtl(x)) >> (64 - integer_mtl<T>::bits)); }
inline uint reverse_bits_mtl(uint x) { return __brev(x); }
inline int reverse_bits_mtl(int x) { return (int)__brev((uint)x); }
//@ rotate : integer_mtl
template <typename T> inline self_mtl<T> rotate_mtl(T x, T n) {
  constexpr uint mask = integer_mtl<T>::bits - 1;
  return (T)(bits_mtl(x) << ((uint)n & mask) | bits_mtl(x) >> (-(uint)n & mask));
}
inline uint rotate_mtl(uint x, uint n) { return __funnelshift_l(x, x, n); }
inline int rotate_mtl(int x, int n) { return (int)__funnelshift_l((uint)x, (uint)x, (uint)n); }
//@ absdiff : integer_mtl
template <typename T> inline bare_mtl<T> absdiff_mtl(T x, T y) { return (bare_mtl<T>)(x > y ? bits_mtl(x) - bits_mtl(y) : bits_mtl(y) - bits_mtl(x)); }
//@ addsat : integer_mtl
template <typename T> inline self_mtl<T> addsat_mtl(T x, T y) { typedef typename integer_mtl<T>::wide W; return narrow_mtl<T>((W)x + (W)y); }
inline ulong addsat_mtl(ulong x, ulong y) { ulong s = x + y; return s < x ? 0xfffffffffffffffful : s; }
inline long addsat_mtl(long x, long y) {
  long s = (long)((ulong)x + (ulong)y);
  return ((x ^ s) & (y ^ s)) >= 0 ? s : x < 0 ? (long)0x8000000000000000ul : 0x7fffffffffffffffl;
}
//@ subsat : integer_mtl
template <typename T> inline self_mtl<T> subsat_mtl(T x, T y) { return narrow_mtl<T>((long)x - (long)y); }
inline uchar subsat_mtl(uchar x, uchar y) { return x > y ? x - y : 0; }
inline ushort subsat_mtl(ushort x, ushort y) { return x > y ? x - y : 0; }
inline uint subsat_mtl(uint x, uint y) { return x > y ? x - y : 0u; }
inline ulong subsat_mtl(ulong x, ulong y) { return x > y ? x - y : 0ul; }
inline long subsat_mtl(long x, long y) {
  long d = (long)((ulong)x - (ulong)y);
  return ((x ^ y) & (x ^ d)) >= 0 ? d : x < 0 ? (long)0x8000000000000000ul : 0x7fffffffffffffffl;
}
//@ hadd rhadd : integer_mtl
template <typename T> inline self_mtl<T> hadd_mtl(T x, T y) { return (T)((x >> 1) + (y >> 1) + (x & y & 1)); }
template <typename T> inline self_mtl<T> rhadd_mtl(T x, T y) { return (T)((x >> 1) + (y >> 1) + ((x | y) & 1)); }
//@ extract_bits : integer_mtl
template <typename T> inline self_mtl<T> extract_bits_mtl(T x, uint offset, uint bits) {
  if (bits == 0) return (T)0;
  return (T)((T)(bits_mtl(x) << (integer_mtl<T>::bits - bits - offset)) >> (integer_mtl<T>::bits - bits));
}
//@ insert_bits : integer_mtl
template <typename T> inline self_mtl<T> insert_bits_mtl(T base, T insert, uint offset, uint bits) {
  ulong mask = (bits >= 64 ? ~0ul : (1ul << bits) - 1) << offset;
  return (T)((bits_mtl(base) & ~mask) | ((bits_mtl(insert) << offset) & mask));
}

//@ dot length length_squared distance distance_squared normalize cross reflect refract faceforward : sqrt rsqrt
// Vectors bring these along: dot_mtl length_squared_mtl distance_squared_mtl normalize_mtl cross_mtl reflect_mtl
// refract_mtl faceforward_mtl
inline float length_mtl(float x) { return fabsf(x); }
inline float distance_mtl(float x, float y) { return fabsf(x - y); }

//@ __builtin_ctz __builtin_clz __builtin_popcount
// The compiler's own of clang, also in constants.
constexpr inline int __builtin_popcount_mtl(uint x) {
  if (!__builtin_is_constant_evaluated()) return __popc(x);
  int n = 0;
  for (; x; x &= x - 1) n++;
  return n;
}
constexpr inline int __builtin_ctz_mtl(uint x) { return __builtin_popcount_mtl(~x & (x - 1)); }
constexpr inline int __builtin_clz_mtl(uint x) {
  int n = 0;
  for (int shift = 16; shift; shift >>= 1) if (!(x >> (32 - shift))) { n += shift; x <<= shift; }
  return n;
}

//@ unaligned_read_mtl
// What *p is where p may lie at any address, as Apple's GPUs read it.
template <typename T> inline T unaligned_read_mtl(const T *p) {
  if (((ulong)p & (sizeof(T) - 1)) == 0) return *p;
  T value;
  for (int i = 0; i < sizeof(T); i++) ((uchar *)&value)[i] = ((const uchar *)p)[i];
  return value;
}
