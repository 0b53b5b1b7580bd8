//@ as_type : as_constant_mtl
template <typename T, typename U> constexpr inline T as_type(U x) {
  static_assert(sizeof(T) == sizeof(U), "as_type cast between types of different sizes is not allowed");
  if constexpr (__is_arithmetic(T) && __is_arithmetic(U) && sizeof(T) == sizeof(U)) return __builtin_bit_cast(T, x);
  else if constexpr (__is_class(T) || __is_class(U)) {
    T r;
    for (int i = 0; i < sizeof(T); i++) ((__private uchar *)&r)[i] = ((__private uchar *)&x)[i];
    return r;
  }
  // Vectors of more than four components are not Metal's.
  else if constexpr (components_of_mtl<T>::count > 4 || components_of_mtl<U>::count > 4) return __builtin_astype(x, T);
  else if (__builtin_is_constant_evaluated()) return as_constant_mtl<T>(x);
  else return __builtin_astype(x, T);
}
