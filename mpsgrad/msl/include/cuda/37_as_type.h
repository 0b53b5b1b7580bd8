//@ as_type : as_constant_mtl
template <typename T, typename U> inline T as_copied_mtl(const U &x) {
  T r;
  memcpy(&r, (const void *)&x, sizeof(T) < sizeof(U) ? sizeof(T) : sizeof(U));
  return r;
}
template <typename T, typename U, typename require_mtl<sizeof(T) == sizeof(U)>::type = 0> constexpr inline T as_type(const U &x) {
  if constexpr (is_scalar_mtl<typename components_of_mtl<T>::element>::value && is_scalar_mtl<typename components_of_mtl<U>::element>::value && sizeof(T) == sizeof(U)) {
    if constexpr (is_scalar_mtl<T>::value && is_scalar_mtl<U>::value) return __builtin_bit_cast(T, x);
    else if (__builtin_is_constant_evaluated()) return as_constant_mtl<T>(x);
    else return as_copied_mtl<T>(x);
  } else return as_copied_mtl<T>(x);
}
