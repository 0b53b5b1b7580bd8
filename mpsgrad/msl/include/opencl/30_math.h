// <metal_math>, <metal_common>, <metal_integer>, <metal_relational> and <metal_geometric>, where OpenCL differs.
//@ abs
// OpenCL's abs of a signed integer is unsigned.
inline float abs_mtl(float x) { return fabs(x); }
inline half abs_mtl(half x) { return fabs(x); }
template <typename T> inline T abs_mtl(T x) { return x < (T)0 ? (T)-x : x; }
template <int N> inline vec_mtl<float, N> abs_mtl(vec_mtl<float, N> x) { return fabs(x); }
template <int N> inline vec_mtl<half, N> abs_mtl(vec_mtl<half, N> x) { return fabs(x); }
template <typename E, int N> inline vec_mtl<E, N> abs_mtl(vec_mtl<E, N> x) { return x < (E)0 ? -x : x; }

//@ saturate
inline float saturate(float x) { return clamp(x, 0.0f, 1.0f); }
inline half saturate(half x) { return clamp(x, (half)0, (half)1); }
template <typename E, int N> inline vec_mtl<E, N> saturate(vec_mtl<E, N> x) { return clamp(x, (E)0, (E)1); }

//@ fract
inline float fract_mtl(float x) { return fmin(x - floor(x), 0x1.fffffep-1f); }
inline half fract_mtl(half x) { return fmin(x - floor(x), (half)0x1.ffcp-1f); }
template <int N> inline vec_mtl<float, N> fract_mtl(vec_mtl<float, N> x) { return fmin(x - floor(x), 0x1.fffffep-1f); }
template <int N> inline vec_mtl<half, N> fract_mtl(vec_mtl<half, N> x) { return fmin(x - floor(x), (half)0x1.ffcp-1f); }

//@ divide
template <typename T> inline T divide(T x, T y) { return x / y; }

//@ sincos
template <typename T> inline T sincos_mtl(T x, __private T &c) { c = cos(x); return sin(x); }

//@ modf
template <typename T> inline T modf_mtl(T x, __private T &whole) { whole = trunc(x); return copysign(isinf(x) ? (T)0 : x - whole, x); }
template <typename E, int N> inline vec_mtl<E, N> modf_mtl(vec_mtl<E, N> x, __private vec_mtl<E, N> &whole) { return modf(x, &whole); }

//@ frexp
template <typename T, typename I> inline T frexp_mtl(T x, __private I &exponent) { return frexp(x, &exponent); }

//@ ldexp
// Intel's compiler has no ldexp of 32 floats on every processor. Steps of powers of two that the exponent has room for; a
// step down stops 24 bits above the smallest normal number, so that only the last product is rounded.
#define LDEXP_MTL(n) \
  inline float##n ldexp_mtl(float##n x, int##n k) { \
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

//@ min3 max3 median3 fmin3 fmax3 fmedian3
template <typename T> inline T min3(T x, T y, T z) { return min(x, min(y, z)); }
template <typename T> inline T max3(T x, T y, T z) { return max(x, max(y, z)); }
template <typename T> inline T median3(T x, T y, T z) { return max(min(x, y), min(max(x, y), z)); }
template <typename T> inline T fmin3(T x, T y, T z) { return fmin(x, fmin(y, z)); }
template <typename T> inline T fmax3(T x, T y, T z) { return fmax(x, fmax(y, z)); }
template <typename T> inline T fmedian3(T x, T y, T z) { return fmax(fmin(x, y), fmin(fmax(x, y), z)); }

//@ absdiff addsat subsat madhi madsat mulhi
template <typename T> inline auto absdiff(T x, T y) { return abs_diff(x, y); }
template <typename T> inline T addsat(T x, T y) { return add_sat(x, y); }
template <typename T> inline T subsat(T x, T y) { return sub_sat(x, y); }
template <typename T> inline T madhi(T a, T b, T c) { return mad_hi(a, b, c); }
template <typename T> inline T madsat(T a, T b, T c) { return mad_sat(a, b, c); }
template <typename T> inline T mulhi(T x, T y) { return mul_hi(x, y); }

//@ reverse_bits
template <typename T> inline T reverse_bits(T x) { return bit_reverse(x); }

//@ extract_bits
inline int extract_bits(int x, uint offset, uint bits) { return bits == 0 ? 0 : bits >= 32 ? x >> offset : (int)((uint)x << (32 - bits - offset)) >> (32 - bits); }
inline uint extract_bits(uint x, uint offset, uint bits) { return bits >= 32 ? x >> offset : (x >> offset) & ((1u << bits) - 1); }
inline short extract_bits(short x, uint offset, uint bits) { return extract_bits((int)x, offset, bits); }
inline ushort extract_bits(ushort x, uint offset, uint bits) { return extract_bits((uint)x, offset, bits); }
inline char extract_bits(char x, uint offset, uint bits) { return extract_bits((int)x, offset, bits); }
inline uchar extract_bits(uchar x, uint offset, uint bits) { return extract_bits((uint)x, offset, bits); }
inline long extract_bits(long x, uint offset, uint bits) { return bits == 0 ? 0 : bits >= 64 ? x >> offset : (long)((ulong)x << (64 - bits - offset)) >> (64 - bits); }
inline ulong extract_bits(ulong x, uint offset, uint bits) { return bits >= 64 ? x >> offset : (x >> offset) & ((1ul << bits) - 1); }
template <typename E, int N> inline vec_mtl<E, N> extract_bits(vec_mtl<E, N> x, uint offset, uint bits) {
  vec_mtl<E, N> r;
  for (int i = 0; i < N; i++) r[i] = extract_bits((E)x[i], offset, bits);
  return r;
}

//@ insert_bits
template <typename T> inline T insert_bits(T base, T insert, uint offset, uint bits) {
  ulong mask = (bits >= 64 ? ~0ul : (1ul << bits) - 1) << offset;
  return (T)(((ulong)base & ~mask) | (((ulong)insert << offset) & mask));
}
template <typename E, int N> inline vec_mtl<E, N> insert_bits(vec_mtl<E, N> base, vec_mtl<E, N> insert, uint offset, uint bits) {
  vec_mtl<E, N> r;
  for (int i = 0; i < N; i++) r[i] = insert_bits((E)base[i], (E)insert[i], offset, bits);
  return r;
}

//@ length_squared
template <typename V> inline auto length_squared(V x) { return dot(x, x); }
//@ distance_squared
template <typename V> inline auto distance_squared(V x, V y) { return dot(x - y, x - y); }
//@ faceforward
template <typename V> inline V faceforward(V n, V i, V nref) { return dot(nref, i) < 0 ? n : -n; }
//@ reflect
template <typename E, int N> inline vec_mtl<E, N> reflect(vec_mtl<E, N> i, vec_mtl<E, N> n) { return i - n * ((E)2 * dot(n, i)); }
//@ refract
template <typename E, int N> inline vec_mtl<E, N> refract(vec_mtl<E, N> i, vec_mtl<E, N> n, E eta) {
  E d = dot(n, i), k = (E)1 - eta * eta * ((E)1 - d * d);
  return k < (E)0 ? (vec_mtl<E, N>)((E)0) : i * eta - n * (eta * d + sqrt(k));
}
