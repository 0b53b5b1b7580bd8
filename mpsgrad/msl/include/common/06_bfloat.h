// The bfloat of Metal 3.1: the upper half of a float. Its arithmetic is made in float and rounded once.
//@ bfloat : scalar_mtl
template <typename A> struct is_whole_mtl { static constexpr bool value = is_scalar_mtl<A>::value; };
template <> struct is_whole_mtl<float> { static constexpr bool value = false; };
template <> struct is_whole_mtl<half> { static constexpr bool value = false; };
#define WHOLE_MTL(A) typename A, typename require_mtl<is_whole_mtl<A>::value>::type = 0
struct bfloat;
template <typename A> struct is_bfloat_mtl { static constexpr bool value = false; };
template <> struct is_bfloat_mtl<bfloat> { static constexpr bool value = true; };
#ifdef __OPENCL_VERSION__
template <> struct is_bfloat_mtl<__global bfloat> : is_bfloat_mtl<bfloat> {};
template <> struct is_bfloat_mtl<__local bfloat> : is_bfloat_mtl<bfloat> {};
template <> struct is_bfloat_mtl<__private bfloat> : is_bfloat_mtl<bfloat> {};
#endif
SCALAR_MTL(bfloat)
template <> struct is_whole_mtl<bfloat> { static constexpr bool value = false; };
#ifndef __OPENCL_VERSION__
template <> struct becomes_half_mtl<bfloat> { static constexpr bool value = false; };
#endif
struct bfloat {
  ushort bits_mtl;
  bfloat() = default;
  template <WHOLE_MTL(A)> constexpr bfloat(A a) : bits_mtl(pack_mtl((float)a)) {}
  explicit constexpr bfloat(float a) : bits_mtl(pack_mtl(a)) {}
  explicit constexpr bfloat(half a) : bits_mtl(pack_mtl((float)a)) {}
  template <typename A, typename require_mtl<is_bfloat_mtl<A>::value>::type = 0> bfloat(const volatile A &a) : bits_mtl(a.bits_mtl) {}
  constexpr operator float() const { return __builtin_bit_cast(float, (uint)bits_mtl << 16); }
  operator float() const volatile { ushort bits = bits_mtl; return __builtin_bit_cast(float, (uint)bits << 16); }
  template <WHOLE_MTL(A)> constexpr bfloat &operator=(A a) { return *this = bfloat(a); }
  template <WHOLE_MTL(A)> void operator=(A a) volatile { bits_mtl = bfloat(a).bits_mtl; }
  template <typename A, typename require_mtl<is_bfloat_mtl<A>::value>::type = 0, int = 0> void operator=(A a) volatile { bits_mtl = a.bits_mtl; }
  template <typename A> void operator+=(A a) volatile { *this = bfloat((float)*this + (float)a); }
  template <typename A> void operator-=(A a) volatile { *this = bfloat((float)*this - (float)a); }
  template <typename A> void operator*=(A a) volatile { *this = bfloat((float)*this * (float)a); }
  template <typename A> void operator/=(A a) volatile { *this = bfloat((float)*this / (float)a); }
  static constexpr ushort pack_mtl(float x) {
    uint u = __builtin_bit_cast(uint, x);
    return (u & 0x7fffffffu) > 0x7f800000u ? (ushort)(u >> 16 | 0x40u) : (ushort)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
  }
  template <typename A> bfloat &operator+=(A a) { return *this = bfloat((float)*this + (float)a); }
  template <typename A> bfloat &operator-=(A a) { return *this = bfloat((float)*this - (float)a); }
  template <typename A> bfloat &operator*=(A a) { return *this = bfloat((float)*this * (float)a); }
  template <typename A> bfloat &operator/=(A a) { return *this = bfloat((float)*this / (float)a); }
  bfloat &operator++() { return *this += 1.0f; }
  bfloat &operator--() { return *this -= 1.0f; }
  bfloat operator++(int) { bfloat old = *this; *this += 1.0f; return old; }
  bfloat operator--(int) { bfloat old = *this; *this -= 1.0f; return old; }
};
template <> struct has_fraction_mtl<bfloat> { static constexpr bool value = true; };
#ifndef __OPENCL_VERSION__
template <> struct is_real_mtl<bfloat> { static constexpr bool value = true; };
#endif
#define BFLOAT_OPERATOR_MTL(op) \
  inline constexpr bfloat operator op(bfloat a, bfloat b) { return bfloat((float)a op(float) b); } \
  inline constexpr float operator op(bfloat a, float b) { return (float)a op b; } \
  inline constexpr float operator op(float a, bfloat b) { return a op(float) b; } \
  template <WHOLE_MTL(A)> inline constexpr bfloat operator op(bfloat a, A b) { return bfloat((float)a op(float) b); } \
  template <WHOLE_MTL(A)> inline constexpr bfloat operator op(A a, bfloat b) { return bfloat((float)a op(float) b); }
BFLOAT_OPERATOR_MTL(+)
BFLOAT_OPERATOR_MTL(-)
BFLOAT_OPERATOR_MTL(*)
BFLOAT_OPERATOR_MTL(/)
#undef BFLOAT_OPERATOR_MTL
inline constexpr bfloat operator-(bfloat a) { return bfloat(-(float)a); }
#ifdef __OPENCL_VERSION__
// The compiler's own vectors do not convert what is a class.
#define BFLOAT_OPERATOR_MTL(op) \
  template <int N> inline vec_mtl<float, N> operator op(bfloat a, vec_mtl<float, N> b) { return (float)a op b; } \
  template <int N> inline vec_mtl<float, N> operator op(vec_mtl<float, N> a, bfloat b) { return a op(float) b; } \
  template <int N> inline vec_mtl<float, N> &operator op##=(vec_mtl<float, N> &a, bfloat b) { return a = a op(float) b; }
BFLOAT_OPERATOR_MTL(+)
BFLOAT_OPERATOR_MTL(-)
BFLOAT_OPERATOR_MTL(*)
BFLOAT_OPERATOR_MTL(/)
#undef BFLOAT_OPERATOR_MTL
#endif

//@ arm_of_bfloat_mtl : bfloat choose_mtl
ARM_MTL(bfloat)

//@ MAXBFLOAT HUGE_VALBF M_E_BF M_LOG2E_BF M_LOG10E_BF M_LN2_BF M_LN10_BF M_PI_BF M_PI_2_BF M_PI_4_BF M_1_PI_BF M_2_PI_BF M_2_SQRTPI_BF M_SQRT2_BF M_SQRT1_2_BF : bfloat
#define MAXBFLOAT (bfloat(0x1.fep127f))
#define HUGE_VALBF (bfloat(__builtin_bit_cast(float, 0x7f800000)))
#define M_E_BF (bfloat(2.71828183f))
#define M_LOG2E_BF (bfloat(1.44269504f))
#define M_LOG10E_BF (bfloat(0.43429448f))
#define M_LN2_BF (bfloat(0.69314718f))
#define M_LN10_BF (bfloat(2.30258509f))
#define M_PI_BF (bfloat(3.14159265f))
#define M_PI_2_BF (bfloat(1.57079633f))
#define M_PI_4_BF (bfloat(0.78539816f))
#define M_1_PI_BF (bfloat(0.31830989f))
#define M_2_PI_BF (bfloat(0.63661977f))
#define M_2_SQRTPI_BF (bfloat(1.12837917f))
#define M_SQRT2_BF (bfloat(1.41421356f))
#define M_SQRT1_2_BF (bfloat(0.70710678f))
