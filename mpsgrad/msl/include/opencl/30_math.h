// <metal_math>, <metal_common>, <metal_integer>, <metal_relational> and <metal_geometric>, where OpenCL differs.
//@ abs : overloads_mtl
// OpenCL's abs of a signed integer is unsigned.
#define FLOATING_ABS_MTL(V) inline V abs_mtl(V x) { return __builtin_elementwise_abs(x); }
#define SIGNED_ABS_MTL(V) FLOATING_ABS_MTL(V)
#define UNSIGNED_ABS_MTL(V) inline V abs_mtl(V x) { return x; }
FLOATS_MTL(FLOATING_ABS_MTL)
SIGNED_MTL(SIGNED_ABS_MTL)
UNSIGNED_MTL(UNSIGNED_ABS_MTL)

//@ floor ceil trunc rint : overloads_mtl
// Operations of the compiler: under a condition it would call OpenCL's functions of vectors for one lane after another.
#define ROUNDING_MTL(V) \
  inline V floor_mtl(V x) { return __builtin_elementwise_floor(x); } \
  inline V ceil_mtl(V x) { return __builtin_elementwise_ceil(x); } \
  inline V trunc_mtl(V x) { return __builtin_elementwise_trunc(x); } \
  inline V rint_mtl(V x) { return __builtin_elementwise_rint(x); }
FLOATS_MTL(ROUNDING_MTL)

//@ saturate : clamp overloads_mtl
#define SATURATE_MTL(V) inline V saturate(V x) { return clamp_mtl(x, (V)0, (V)1); }
FLOATS_MTL(SATURATE_MTL)

//@ fract : overloads_mtl
#define FRACT_MTL(V, below_one) inline V fract_mtl(V x) { V r = x - __builtin_elementwise_floor(x); return r >= (V)1 ? (V)below_one : r; }
#define FLOAT_FRACT_MTL(V) FRACT_MTL(V, 0x1.fffffep-1f)
#define HALF_FRACT_MTL(V) FRACT_MTL(V, ((half)0x1.ffcp-1f))
WIDTHS_MTL(FLOAT_FRACT_MTL, float)
WIDTHS_MTL(HALF_FRACT_MTL, half)

//@ divide : overloads_mtl
#define DIVIDE_MTL(V) inline V divide(V x, V y) { return x / y; }
FLOATS_MTL(DIVIDE_MTL)

//@ sincos : overloads_mtl sin
#define SINCOS_MTL(V) inline V sincos_mtl(V x, __private V &c) { c = cos_mtl(x); return sin_mtl(x); }
FLOATS_MTL(SINCOS_MTL)

//@ modf : overloads_mtl
#define SCALAR_MODF_MTL(T) inline T modf_mtl(T x, __private T &whole) { whole = trunc(x); return copysign(isinf(x) ? (T)0 : x - whole, x); }
#define VECTOR_MODF_MTL(t, n) inline t##n modf_mtl(t##n x, __private t##n &whole) { return modf(x, &whole); }
SCALAR_MODF_MTL(float)
SCALAR_MODF_MTL(half)
VECTORS_MTL(VECTOR_MODF_MTL, float)
VECTORS_MTL(VECTOR_MODF_MTL, half)

//@ frexp : overloads_mtl
#define VECTOR_FREXP_MTL(t, n) inline t##n frexp_mtl(t##n x, __private int##n &exponent) { return frexp(x, &exponent); }
inline float frexp_mtl(float x, __private int &exponent) { return frexp(x, &exponent); }
inline half frexp_mtl(half x, __private int &exponent) { return frexp(x, &exponent); }
VECTORS_MTL(VECTOR_FREXP_MTL, float)
VECTORS_MTL(VECTOR_FREXP_MTL, half)

// Intel's compiler has no ldexp and ilogb of 32 floats on every processor, which kernels with simdgroups need.
//@ ldexp : overloads_mtl
// Steps of powers of two that the exponent has room for; a step down stops 24 bits above the smallest normal number, so
// that only the last product is rounded. Of constant steps the product would be infinity, or 0.
#define LDEXP_MTL(n) \
  inline float##n ldexp_mtl(float##n x, int##n k) { \
    _Pragma("clang fp reassociate(off)") \
    int##n high = k > 127, low = k < -126; \
    x = high ? x * 0x1p127f : low ? x * 0x1p-102f : x; \
    k = high ? k - 127 : low ? k + 102 : k; \
    high = k > 127; \
    low = k < -126; \
    x = high ? x * 0x1p127f : low ? x * 0x1p-102f : x; \
    k = high ? k - 127 : low ? k + 102 : k; \
    return x * __builtin_astype((clamp(k, (int##n)-126, (int##n)127) + 127) << 23, float##n); \
  } \
  inline half##n ldexp_mtl(half##n x, int##n k) { return ldexp(x, k); }
LDEXP_MTL() LDEXP_MTL(2) LDEXP_MTL(3) LDEXP_MTL(4)
//@ ilogb : overloads_mtl
#define ILOGB_MTL(n) \
  inline int##n ilogb_mtl(float##n x) { int##n e; frexp(x, &e); return isfinite(x) ? (x == 0 ? (int##n)FP_ILOGB0 : e - 1) : (int##n)FP_ILOGBNAN; } \
  inline int##n ilogb_mtl(half##n x) { return ilogb(x); }
ILOGB_MTL() ILOGB_MTL(2) ILOGB_MTL(3) ILOGB_MTL(4)

//@ min3 max3 median3 : min overloads_mtl
#define MIN3_MTL(V) \
  inline V min3(V x, V y, V z) { return min_mtl(x, min_mtl(y, z)); } \
  inline V max3(V x, V y, V z) { return max_mtl(x, max_mtl(y, z)); } \
  inline V median3(V x, V y, V z) { return max_mtl(min_mtl(x, y), min_mtl(max_mtl(x, y), z)); }
FLOATS_MTL(MIN3_MTL)
INTEGERS_MTL(MIN3_MTL)

//@ fmin3 fmax3 fmedian3 : fmin overloads_mtl
#define FMIN3_MTL(V) \
  inline V fmin3(V x, V y, V z) { return fmin_mtl(x, fmin_mtl(y, z)); } \
  inline V fmax3(V x, V y, V z) { return fmax_mtl(x, fmax_mtl(y, z)); } \
  inline V fmedian3(V x, V y, V z) { return fmax_mtl(fmin_mtl(x, y), fmin_mtl(fmax_mtl(x, y), z)); }
FLOATS_MTL(FMIN3_MTL)

// With precise:: the smaller and the larger of a number and NaN are the number; OpenCL's min and max may give NaN.
//@ precise::min precise::max precise::min3 precise::max3 precise::median3 precise::clamp precise::saturate : min fmin overloads_mtl
#define PRECISE_MIN_MTL(V, min, max) \
  inline V precise_min_mtl(V x, V y) { return min(x, y); } \
  inline V precise_max_mtl(V x, V y) { return max(x, y); } \
  inline V precise_min3_mtl(V x, V y, V z) { return min(x, min(y, z)); } \
  inline V precise_max3_mtl(V x, V y, V z) { return max(x, max(y, z)); } \
  inline V precise_median3_mtl(V x, V y, V z) { return max(min(x, y), min(max(x, y), z)); } \
  inline V precise_clamp_mtl(V x, V low, V high) { return min(max(x, low), high); }
#define PRECISE_FLOATING_MIN_MTL(V) PRECISE_MIN_MTL(V, fmin_mtl, fmax_mtl) inline V precise_saturate_mtl(V x) { return fmin_mtl(fmax_mtl(x, (V)0), (V)1); }
#define PRECISE_INTEGER_MIN_MTL(V) PRECISE_MIN_MTL(V, min_mtl, max_mtl)
FLOATS_MTL(PRECISE_FLOATING_MIN_MTL)
INTEGERS_MTL(PRECISE_INTEGER_MIN_MTL)

//@ precise::rsqrt : overloads_mtl
// OpenCL's may be off by two units in the last place; that of a half is rounded once.
#define PRECISE_RSQRT_MTL(t, n) inline t##n precise_rsqrt_mtl(t##n x) { return __builtin_convertvector(1.0 / sqrt(__builtin_convertvector(x, double##n)), t##n); }
inline float precise_rsqrt_mtl(float x) { return (float)(1.0 / sqrt((double)x)); }
inline half precise_rsqrt_mtl(half x) { return rsqrt(x); }
VECTORS_MTL(PRECISE_RSQRT_MTL, float)
#define PRECISE_HALF_RSQRT_MTL(t, n) inline t##n precise_rsqrt_mtl(t##n x) { return rsqrt(x); }
VECTORS_MTL(PRECISE_HALF_RSQRT_MTL, half)

//@ absdiff : overloads_mtl
#define ABSDIFF_MTL(V) inline auto absdiff(V x, V y) { return abs_diff(x, y); }
INTEGERS_MTL(ABSDIFF_MTL)
//@ addsat : overloads_mtl
#define ADDSAT_MTL(V) inline V addsat(V x, V y) { return add_sat(x, y); }
INTEGERS_MTL(ADDSAT_MTL)
//@ subsat : overloads_mtl
#define SUBSAT_MTL(V) inline V subsat(V x, V y) { return sub_sat(x, y); }
INTEGERS_MTL(SUBSAT_MTL)
//@ mulhi : overloads_mtl
#define MULHI_MTL(V) inline V mulhi(V x, V y) { return mul_hi(x, y); }
INTEGERS_MTL(MULHI_MTL)
//@ madhi : overloads_mtl
#define MADHI_MTL(V) inline V madhi(V a, V b, V c) { return mad_hi(a, b, c); }
INTEGERS_MTL(MADHI_MTL)

//@ madsat : overloads_mtl
// Intel's mad_sat is right for 8 and 16 bits only.
#define NARROW_MADSAT_MTL(V) inline V madsat(V a, V b, V c) { return mad_sat(a, b, c); }
// Its saturating conversions of 64 bits are not there where 32 threads are computed together.
#define INT_MADSAT_MTL(t, w, least, most) inline t madsat(t a, t b, t c) { w r = (w)a * b + c; return r < least ? (t)least : r > most ? (t)most : (t)r; }
#define WIDE_MADSAT_MTL(t, n) inline t##n madsat(t##n a, t##n b, t##n c) { t##n r; for (int i = 0; i < n; i++) r[i] = madsat(a[i], b[i], c[i]); return r; }
WIDTHS_MTL(NARROW_MADSAT_MTL, char) WIDTHS_MTL(NARROW_MADSAT_MTL, uchar)
WIDTHS_MTL(NARROW_MADSAT_MTL, short) WIDTHS_MTL(NARROW_MADSAT_MTL, ushort)
INT_MADSAT_MTL(int, long, -0x80000000l, 0x7fffffffl)
INT_MADSAT_MTL(uint, ulong, 0, 0xfffffffful)
VECTORS_MTL(WIDE_MADSAT_MTL, int)
VECTORS_MTL(WIDE_MADSAT_MTL, uint)
inline ulong madsat(ulong a, ulong b, ulong c) {
  ulong low = a * b + c;
  return mul_hi(a, b) + (low < c) == 0 ? low : 0xfffffffffffffffful;
}
inline long madsat(long a, long b, long c) {
  ulong low = (ulong)a * (ulong)b + (ulong)c;
  long high = mul_hi(a, b) + (c >> 63) + (low < (ulong)c);
  return high == (long)low >> 63 ? (long)low : high < 0 ? (long)0x8000000000000000ul : 0x7fffffffffffffffl;
}
VECTORS_MTL(WIDE_MADSAT_MTL, long)
VECTORS_MTL(WIDE_MADSAT_MTL, ulong)

//@ reverse_bits : overloads_mtl
#define REVERSE_BITS_MTL(V) inline V reverse_bits(V x) { return bit_reverse(x); }
INTEGERS_MTL(REVERSE_BITS_MTL)

//@ extract_bits : overloads_mtl
inline int extract_bits(int x, uint offset, uint bits) { return bits == 0 ? 0 : bits >= 32 ? x >> offset : (int)((uint)x << (32 - bits - offset)) >> (32 - bits); }
inline uint extract_bits(uint x, uint offset, uint bits) { return bits >= 32 ? x >> offset : (x >> offset) & ((1u << bits) - 1); }
inline short extract_bits(short x, uint offset, uint bits) { return extract_bits((int)x, offset, bits); }
inline ushort extract_bits(ushort x, uint offset, uint bits) { return extract_bits((uint)x, offset, bits); }
inline char extract_bits(char x, uint offset, uint bits) { return extract_bits((int)x, offset, bits); }
inline uchar extract_bits(uchar x, uint offset, uint bits) { return extract_bits((uint)x, offset, bits); }
inline long extract_bits(long x, uint offset, uint bits) { return bits == 0 ? 0 : bits >= 64 ? x >> offset : (long)((ulong)x << (64 - bits - offset)) >> (64 - bits); }
inline ulong extract_bits(ulong x, uint offset, uint bits) { return bits >= 64 ? x >> offset : (x >> offset) & ((1ul << bits) - 1); }
#define EXTRACT_BITS_MTL(t, n) inline t##n extract_bits(t##n x, uint offset, uint bits) { t##n r; for (int i = 0; i < n; i++) r[i] = extract_bits((t)x[i], offset, bits); return r; }
VECTORS_MTL(EXTRACT_BITS_MTL, char) VECTORS_MTL(EXTRACT_BITS_MTL, uchar) VECTORS_MTL(EXTRACT_BITS_MTL, short) VECTORS_MTL(EXTRACT_BITS_MTL, ushort)
VECTORS_MTL(EXTRACT_BITS_MTL, int) VECTORS_MTL(EXTRACT_BITS_MTL, uint) VECTORS_MTL(EXTRACT_BITS_MTL, long) VECTORS_MTL(EXTRACT_BITS_MTL, ulong)

//@ insert_bits : overloads_mtl
#define INSERT_BITS_MTL(t) \
  inline t insert_bits(t base, t insert, uint offset, uint bits) { \
    ulong mask = (bits >= 64 ? ~0ul : (1ul << bits) - 1) << offset; \
    return (t)(((ulong)base & ~mask) | (((ulong)insert << offset) & mask)); \
  } \
  VECTORS_MTL(INSERT_VECTOR_BITS_MTL, t)
#define INSERT_VECTOR_BITS_MTL(t, n) inline t##n insert_bits(t##n base, t##n insert, uint offset, uint bits) { t##n r; for (int i = 0; i < n; i++) r[i] = insert_bits((t)base[i], (t)insert[i], offset, bits); return r; }
INSERT_BITS_MTL(char) INSERT_BITS_MTL(uchar) INSERT_BITS_MTL(short) INSERT_BITS_MTL(ushort)
INSERT_BITS_MTL(int) INSERT_BITS_MTL(uint) INSERT_BITS_MTL(long) INSERT_BITS_MTL(ulong)

//@ dot : overloads_mtl
// Intel's functions of vectors take one lane after another, most in double precision, and lose halves in infinity.
inline float dot_mtl(float2 x, float2 y) { return x.x * y.x + x.y * y.y; }
inline float dot_mtl(float3 x, float3 y) { return x.x * y.x + x.y * y.y + x.z * y.z; }
inline float dot_mtl(float4 x, float4 y) { return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w; }
#define HALF_DOT_MTL(t, n) inline t dot_mtl(t##n x, t##n y) { return (t)dot_mtl(__builtin_convertvector(x, float##n), __builtin_convertvector(y, float##n)); }
VECTORS_MTL(HALF_DOT_MTL, half)
//@ cross : overloads_mtl
#define CROSS_MTL(t) inline t##3 cross_mtl(t##3 x, t##3 y) { return (t##3)(x.y * y.z - x.z * y.y, x.z * y.x - x.x * y.z, x.x * y.y - x.y * y.x); }
CROSS_MTL(float)
CROSS_MTL(half)
//@ length distance normalize : overloads_mtl dot
#define LENGTH_MTL(t, n) \
  inline t length_mtl(t##n x) { float##n v = __builtin_convertvector(x, float##n); return (t)sqrt(dot_mtl(v, v)); } \
  inline t distance_mtl(t##n x, t##n y) { float##n v = __builtin_convertvector(x, float##n) - __builtin_convertvector(y, float##n); return (t)sqrt(dot_mtl(v, v)); } \
  inline t##n normalize_mtl(t##n x) { float##n v = __builtin_convertvector(x, float##n); return __builtin_convertvector(v * rsqrt(dot_mtl(v, v)), t##n); }
VECTORS_MTL(LENGTH_MTL, float)
VECTORS_MTL(LENGTH_MTL, half)
//@ length_squared distance_squared : overloads_mtl dot
#define LENGTH_SQUARED_MTL(t, n) \
  inline t length_squared(t##n x) { return dot_mtl(x, x); } \
  inline t distance_squared(t##n x, t##n y) { return dot_mtl(x - y, x - y); }
VECTORS_MTL(LENGTH_SQUARED_MTL, float)
VECTORS_MTL(LENGTH_SQUARED_MTL, half)
//@ faceforward reflect refract : overloads_mtl dot
#define REFLECT_MTL(t, n) \
  inline t##n faceforward(t##n x, t##n i, t##n nref) { return dot_mtl(nref, i) < (t)0 ? x : -x; } \
  inline t##n reflect(t##n i, t##n x) { return i - x * ((t)2 * dot_mtl(x, i)); } \
  inline t##n refract(t##n i, t##n x, t eta) { \
    t d = dot_mtl(x, i), k = (t)1 - eta * eta * ((t)1 - d * d); \
    return k < (t)0 ? (t##n)((t)0) : i * eta - x * (eta * d + sqrt(k)); \
  }
VECTORS_MTL(REFLECT_MTL, float)
VECTORS_MTL(REFLECT_MTL, half)
