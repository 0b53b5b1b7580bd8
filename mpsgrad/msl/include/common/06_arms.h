// choose_mtl(c ? arm_mtl(a) : arm_mtl(b)): what Metal means by c ? a : b where an arm may be a scalar that is a class. As an
// arm such a scalar becomes a float beside a float, an integer becomes such a scalar beside it, and all else stays as it is.
//@ choose_mtl arm_mtl : scalar_mtl
template <typename A, typename B> struct are_same_mtl { static constexpr bool value = false; };
template <typename A> struct are_same_mtl<A, A> { static constexpr bool value = true; };
template <typename A, bool = is_scalar_mtl<A>::value> struct is_integral_arm_mtl { static constexpr bool value = false; };
template <typename A> struct is_integral_arm_mtl<A, true> { static constexpr bool value = (A)1.5f == (A)1; };
template <typename H> struct arm_of_mtl {
  H value;
  constexpr arm_of_mtl(H h) : value(h) {}
  template <typename A, typename require_mtl<is_integral_arm_mtl<A>::value>::type = 0> constexpr arm_of_mtl(A a) : value((H)a) {}
  template <typename F, typename require_mtl<are_same_mtl<F, float>::value>::type = 0> constexpr operator F() const { return (float)value; }
};
template <typename H> struct is_scalar_mtl<arm_of_mtl<H>> { static constexpr bool value = true; };
template <typename H> struct is_integral_arm_mtl<arm_of_mtl<H>, true> { static constexpr bool value = false; };
template <typename T> inline constexpr T &arm_mtl(T &x) { return x; }
template <typename T> inline constexpr T arm_mtl(T &&x) { return (T &&)x; }
template <typename T> inline constexpr T &choose_mtl(T &x) { return x; }
template <typename T> inline constexpr T choose_mtl(T &&x) { return (T &&)x; }
template <typename H> inline constexpr H choose_mtl(arm_of_mtl<H> &&x) { return x.value; }
#define ARM_MTL(h) inline constexpr arm_of_mtl<h> arm_mtl(h x) { return arm_of_mtl<h>(x); }
#ifndef __OPENCL_VERSION__
ARM_MTL(half)
#endif
