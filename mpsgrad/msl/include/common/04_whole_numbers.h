// What has a fraction as an integer: 0 for NaN, and the nearest integer of the type for what it cannot hold.
//@ *
template <typename T> struct bits_of_mtl { static constexpr int value = 0; };
template <typename T> struct has_fraction_mtl { static constexpr bool value = false; };
template <> struct has_fraction_mtl<float> { static constexpr bool value = true; };
#define BITS_OF_MTL(t, n) template <> struct bits_of_mtl<t> { static constexpr int value = n; };
BITS_OF_MTL(char, 8)
BITS_OF_MTL(unsigned char, 8)
BITS_OF_MTL(short, 16)
BITS_OF_MTL(unsigned short, 16)
BITS_OF_MTL(int, 32)
BITS_OF_MTL(unsigned int, 32)
BITS_OF_MTL(long, 64)
BITS_OF_MTL(unsigned long, 64)
template <typename T> constexpr inline T whole_number_of_mtl(float x) {
  if (__builtin_is_constant_evaluated()) return (T)x;
  constexpr int bits = bits_of_mtl<T>::value;
  constexpr bool is_signed = (T)-1 < (T)0;
  constexpr float end = (float)(1ul << (bits - 1)) * (is_signed ? 1.0f : 2.0f);
  if constexpr (bits < 32) {
    if (is_signed) x = x < -end ? -end : x;
    else x = x > 0.0f ? x : 0.0f;
    x = x > end - 1.0f ? end - 1.0f : x;
    // Of unsigned types NaN is 0 already.
    return !is_signed || x == x ? (T)(int)x : (T)0;
#ifdef __OPENCL_VERSION__
  } else if constexpr (is_signed) {
    constexpr T most = (T)(~0ul >> (65 - bits));
    x = x < -end ? -end : x;
    T r = x >= end ? most : (T)x;
    return x == x ? r : (T)0;
  } else {
    x = x > 0.0f ? x : 0.0f;
    return x >= end ? (T)-1 : (T)x;
#else
  } else {
    // NVIDIA's GPUs stop at the ends by themselves, and make 0 of NaN but for 64 bits.
    return bits == 32 || x == x ? (T)x : (T)0;
#endif
  }
}
// x, as an integer if that is what T is and x has a fraction. Elements of vectors are not referred to, classes not copied.
template <typename T, typename S, int = sizeof(char[__is_class(S) && !has_fraction_mtl<S>::value ? -1 : 1])> constexpr inline auto whole_number_mtl(int, S x) {
  if constexpr (bits_of_mtl<T>::value != 0 && has_fraction_mtl<S>::value) return whole_number_of_mtl<T>((float)x);
  else return x;
}
template <typename T, typename S> constexpr inline S &&whole_number_mtl(long, S &&x) { return (S &&)x; }

