// <metal_limits> and <metal_type_traits> for bfloat.
//@ bfloat : numeric_limits is_floating_point
template <> struct is_floating_point<bfloat> : true_type {};
template <> struct numeric_limits<bfloat> {
  static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false;
  static constexpr bool has_infinity = true, has_quiet_NaN = true;
  static constexpr int digits = 8, digits10 = 2, max_digits10 = 4, radix = 2;
  static constexpr int max_exponent = 128, min_exponent = -125, max_exponent10 = 38, min_exponent10 = -37;
  static constexpr bfloat min() { return bfloat(0x1p-126f); } static constexpr bfloat min_mtl() { return bfloat(0x1p-126f); } static constexpr bfloat precise_min_mtl() { return bfloat(0x1p-126f); } static constexpr bfloat min_own_mtl() { return bfloat(0x1p-126f); }
  static constexpr bfloat lowest() { return bfloat(-0x1.fep127f); }
  static constexpr bfloat max() { return bfloat(0x1.fep127f); } static constexpr bfloat max_mtl() { return bfloat(0x1.fep127f); } static constexpr bfloat precise_max_mtl() { return bfloat(0x1.fep127f); } static constexpr bfloat max_own_mtl() { return bfloat(0x1.fep127f); }
  static constexpr bfloat epsilon() { return bfloat(0x1p-7f); }
  static constexpr bfloat round_error() { return bfloat(0.5f); }
  static constexpr bfloat infinity() { return bfloat(INFINITY_MTL); }
  static constexpr bfloat quiet_NaN() { return bfloat(NAN_MTL); }
  static constexpr bfloat denorm_min() { return bfloat(0x1p-133f); }
};
