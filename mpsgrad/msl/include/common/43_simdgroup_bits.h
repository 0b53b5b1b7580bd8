// The bits of floats, too, which the functions without _mtl do not take.
//@ simd_and_mtl : simd_and
template <typename T> inline T simd_and_mtl(T x) { return simd_and(x); }
inline float simd_and_mtl(float x) { return __builtin_bit_cast(float, simd_and(__builtin_bit_cast(uint, x))); }
//@ simd_or_mtl : simd_or
template <typename T> inline T simd_or_mtl(T x) { return simd_or(x); }
inline float simd_or_mtl(float x) { return __builtin_bit_cast(float, simd_or(__builtin_bit_cast(uint, x))); }
//@ simd_xor_mtl : simd_xor
template <typename T> inline T simd_xor_mtl(T x) { return simd_xor(x); }
inline float simd_xor_mtl(float x) { return __builtin_bit_cast(float, simd_xor(__builtin_bit_cast(uint, x))); }
