// The scalar types and constants. NVRTC is called with -default-device.
//@ *
#define __global
#define __local
#define __private
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
// Blocks are rows of threads.
inline uint lane_index_mtl() { return threadIdx.x & 31; }
// A launch that may overlap the end of the one before it begins here: nothing is read or written before all earlier work has
// ended and can be seen. It does not let the next one come before its blocks end: early ones would crowd on the
// multiprocessors that have room first.
inline void begin_launch_mtl() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// So many blocks are a cluster.
#if __CUDA_ARCH__ >= 900
#define CLUSTER_MTL(n) __attribute__((cluster_dims(n, 1, 1)))
#else
#define CLUSTER_MTL(n)
#endif

template <bool C> struct require_mtl {};
template <> struct require_mtl<true> { typedef int type; };
template <typename T> struct is_scalar_mtl { static constexpr bool value = false; };
template <typename T> struct is_scalar_mtl<const T> : is_scalar_mtl<T> {};
#define SCALAR_MTL(t) template <> struct is_scalar_mtl<t> { static constexpr bool value = true; };
SCALAR_MTL(bool)
SCALAR_MTL(char)
SCALAR_MTL(signed char)
SCALAR_MTL(uchar)
SCALAR_MTL(short)
SCALAR_MTL(ushort)
SCALAR_MTL(int)
SCALAR_MTL(uint)
SCALAR_MTL(long)
SCALAR_MTL(ulong)
SCALAR_MTL(float)

// Sums and products of halves are made in float and rounded once, which gives the same bits as half arithmetic.
inline ushort round_to_half_mtl(float x) { ushort r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
inline float widen_half_mtl(ushort h) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h)); return r; }
struct half;
SCALAR_MTL(half)
template <typename A> struct becomes_half_mtl : is_scalar_mtl<A> {};
template <typename A> struct is_same_half_mtl { static constexpr bool value = false; };
template <> struct is_same_half_mtl<half> { static constexpr bool value = true; };
struct half {
  ushort bits;
  half() = default;
  template <typename A, typename require_mtl<becomes_half_mtl<A>::value>::type = 0> constexpr half(A a) : bits(pack((float)a)) {}
  template <typename A, typename require_mtl<is_scalar_mtl<A>::value && !becomes_half_mtl<A>::value>::type = 0> explicit constexpr half(A a) : bits(pack((float)a)) {}
  template <typename A, typename require_mtl<is_same_half_mtl<A>::value>::type = 0> half(const volatile A &a) : bits(a.bits) {}
  constexpr operator float() const { return unpack(bits); }
  operator float() const volatile { return unpack(bits); }
  template <typename A, typename require_mtl<becomes_half_mtl<A>::value && !is_same_half_mtl<A>::value>::type = 0> constexpr half &operator=(A a) { bits = half(a).bits; return *this; }
  template <typename A, typename require_mtl<becomes_half_mtl<A>::value>::type = 0> void operator=(A a) volatile { bits = half(a).bits; }
  template <typename A> void operator+=(A a) volatile { *this = half((float)*this + (float)a); }
  template <typename A> void operator-=(A a) volatile { *this = half((float)*this - (float)a); }
  template <typename A> void operator*=(A a) volatile { *this = half((float)*this * (float)a); }
  template <typename A> void operator/=(A a) volatile { *this = half((float)*this / (float)a); }
  template <typename A> half &operator+=(A a) { return *this = half((float)*this + (float)a); }
  template <typename A> half &operator-=(A a) { return *this = half((float)*this - (float)a); }
  template <typename A> half &operator*=(A a) { return *this = half((float)*this * (float)a); }
  template <typename A> half &operator/=(A a) { return *this = half((float)*this / (float)a); }
  half &operator++() { return *this += 1.0f; }
  half &operator--() { return *this -= 1.0f; }
  half operator++(int) { half old = *this; *this += 1.0f; return old; }
  half operator--(int) { half old = *this; *this -= 1.0f; return old; }
  static constexpr ushort pack(float x) {
    if (!__builtin_is_constant_evaluated()) return round_to_half_mtl(x);
    uint bits = __builtin_bit_cast(uint, x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return (ushort)(sign | 0x7e00u);
    if (size >= 0x477ff000u) return (ushort)(sign | 0x7c00u);
    // Below the smallest normal half, 2^-14, the significand is shifted out.
    uint exponent = size >> 23, significand = (size & 0x7fffffu) | 0x800000u;
    uint dropped = exponent >= 113 ? 13 : exponent > 101 ? 126 - exponent : 25;
    uint whole = exponent >= 113 ? (size - 0x38000000u) >> 13 : significand >> dropped;
    uint rest = significand & ((1u << dropped) - 1), middle = 1u << (dropped - 1);
    whole += rest > middle || (rest == middle && (whole & 1));
    return (ushort)(sign | whole);
  }
  static constexpr float unpack(ushort h) {
    if (!__builtin_is_constant_evaluated()) return widen_half_mtl(h);
    uint sign = (uint)(h & 0x8000) << 16, exponent = h >> 10 & 31, rest = h & 1023;
    if (exponent == 31) return __builtin_bit_cast(float, sign | 0x7f800000u | rest << 13);
    if (exponent) return __builtin_bit_cast(float, sign | (exponent + 112) << 23 | rest << 13);
    float small = (float)rest * 0x1p-24f;
    return sign ? -small : small;
  }
};
template <typename T> struct is_real_mtl { static constexpr bool value = false; };
template <> struct is_real_mtl<float> { static constexpr bool value = true; };
template <> struct is_real_mtl<half> { static constexpr bool value = true; };
template <> struct has_fraction_mtl<half> { static constexpr bool value = true; };
template <typename A, typename B> struct is_same_type_mtl { static constexpr bool value = false; };
template <typename A> struct is_same_type_mtl<A, A> { static constexpr bool value = true; };
#define HALF_OPERATOR_MTL(op) \
  inline constexpr half operator op(half a, half b) { return half((float)a op(float) b); } \
  inline constexpr float operator op(half a, float b) { return (float)a op b; } \
  inline constexpr float operator op(float a, half b) { return a op(float) b; } \
  template <typename A, typename require_mtl<is_scalar_mtl<A>::value>::type = 0> inline constexpr half operator op(half a, A b) { return half((float)a op(float) b); } \
  template <typename A, typename require_mtl<is_scalar_mtl<A>::value>::type = 0> inline constexpr half operator op(A a, half b) { return half((float)a op(float) b); }
HALF_OPERATOR_MTL(+)
HALF_OPERATOR_MTL(-)
HALF_OPERATOR_MTL(*)
HALF_OPERATOR_MTL(/)
inline constexpr half operator-(half a) { return half(-(float)a); }

//@ INFINITY NAN HUGE_VALF HUGE_VALH MAXFLOAT
#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#define NAN __builtin_bit_cast(float, 0x7fc00000)
#define HUGE_VALF INFINITY
#define HUGE_VALH ((half)INFINITY)
#define MAXFLOAT 3.402823466e+38f
//@ FLT_MAX FLT_MIN FLT_EPSILON FLT_DIG FLT_MANT_DIG FLT_MAX_10_EXP FLT_MAX_EXP FLT_MIN_10_EXP FLT_MIN_EXP FLT_RADIX
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define FLT_MAX_10_EXP 38
#define FLT_MAX_EXP 128
#define FLT_MIN_10_EXP -37
#define FLT_MIN_EXP -125
#define FLT_RADIX 2
//@ HALF_MAX HALF_MIN HALF_EPSILON HALF_DIG HALF_MANT_DIG HALF_MAX_10_EXP HALF_MAX_EXP HALF_MIN_10_EXP HALF_MIN_EXP HALF_RADIX
#define HALF_MAX ((half)65504.0f)
#define HALF_MIN ((half)6.103515625e-05f)
#define HALF_EPSILON ((half)9.765625e-04f)
#define HALF_DIG 3
#define HALF_MANT_DIG 11
#define HALF_MAX_10_EXP 4
#define HALF_MAX_EXP 16
#define HALF_MIN_10_EXP -4
#define HALF_MIN_EXP -13
#define HALF_RADIX 2
//@ INT_MAX INT_MIN UINT_MAX SHRT_MAX SHRT_MIN USHRT_MAX CHAR_BIT SCHAR_MAX SCHAR_MIN CHAR_MAX CHAR_MIN UCHAR_MAX LONG_MAX LONG_MIN ULONG_MAX
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define SHRT_MAX 32767
#define SHRT_MIN (-32768)
#define USHRT_MAX 65535
#define CHAR_BIT 8
#define SCHAR_MAX 127
#define SCHAR_MIN (-128)
#define CHAR_MAX 127
#define CHAR_MIN (-128)
#define UCHAR_MAX 255
#define LONG_MAX 9223372036854775807L
#define LONG_MIN (-9223372036854775807L - 1)
#define ULONG_MAX 18446744073709551615ul
//@ M_E_F M_LOG2E_F M_LOG10E_F M_LN2_F M_LN10_F M_PI_F M_PI_2_F M_PI_4_F M_1_PI_F M_2_PI_F M_2_SQRTPI_F M_SQRT2_F M_SQRT1_2_F
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.434294481903251827651f
#define M_LN2_F 0.693147180559945309417f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.785398163397448309616f
#define M_1_PI_F 0.318309886183790671538f
#define M_2_PI_F 0.636619772367581343076f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.707106781186547524401f
//@ M_E_H M_LOG2E_H M_LOG10E_H M_LN2_H M_LN10_H M_PI_H M_PI_2_H M_PI_4_H M_1_PI_H M_2_PI_H M_2_SQRTPI_H M_SQRT2_H M_SQRT1_2_H
#define M_E_H ((half)2.71828182845904523536f)
#define M_LOG2E_H ((half)1.44269504088896340736f)
#define M_LOG10E_H ((half)0.434294481903251827651f)
#define M_LN2_H ((half)0.693147180559945309417f)
#define M_LN10_H ((half)2.30258509299404568402f)
#define M_PI_H ((half)3.14159265358979323846f)
#define M_PI_2_H ((half)1.57079632679489661923f)
#define M_PI_4_H ((half)0.785398163397448309616f)
#define M_1_PI_H ((half)0.318309886183790671538f)
#define M_2_PI_H ((half)0.636619772367581343076f)
#define M_2_SQRTPI_H ((half)1.12837916709551257390f)
#define M_SQRT2_H ((half)1.41421356237309504880f)
#define M_SQRT1_2_H ((half)0.707106781186547524401f)
//@ unaligned_mtl
// The program makes pointers to vectors of other pointers, which Metal lets be aligned to an element only.
#define UNALIGNED_MTL
//@ volatile
// Vectors in volatile memory, of which each component is read and written for itself.
#define VOLATILE_MTL(...) __VA_ARGS__
//@ infinity_mtl
#define INFINITY_MTL __builtin_bit_cast(float, 0x7f800000)
#define NAN_MTL __builtin_bit_cast(float, 0x7fc00000)

//@ increment_mtl
// x ->*increment_mtl() is x++, and increment_mtl()->* x is ++x: a bool becomes true.
struct increment_mtl {};
template <typename T> inline constexpr decltype(auto) operator->*(T &x, increment_mtl) { return x++; }
template <typename T> inline constexpr decltype(auto) operator->*(increment_mtl, T &x) { return ++x; }
inline constexpr bool operator->*(bool &x, increment_mtl) { bool before = x; x = true; return before; }
inline constexpr bool &operator->*(increment_mtl, bool &x) { return x = true; }

//@ otherwise_mtl
// a ?: b
template <typename A, typename F> inline auto otherwise_mtl(A a, F f) { return a ? a : f(); }
