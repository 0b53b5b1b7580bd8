//@ as_constant_mtl
// What as_type gives where a compiler works it out: the bits of vectors, too.
template <int size> struct word_of_mtl { typedef ulong type; };
template <> struct word_of_mtl<1> { typedef uchar type; };
template <> struct word_of_mtl<2> { typedef ushort type; };
template <> struct word_of_mtl<4> { typedef uint type; };
template <typename E> struct components_of_mtl {
  typedef E element;
  static constexpr int count = 1;
  static constexpr E at(E x, int) { return x; }
  static constexpr E of(const E (&e)[4]) { return e[0]; }
};
template <typename E, int N> struct components_of_mtl<vec_mtl<E, N>> {
  typedef E element;
  static constexpr int count = N;
  static constexpr E at(const vec_mtl<E, N> x, int i) { return x[i]; }
  static constexpr vec_mtl<E, N> of(const E (&e)[4]) {
    if constexpr (N == 2) return vec_mtl<E, N>{e[0], e[1]};
    else if constexpr (N == 3) return vec_mtl<E, N>{e[0], e[1], e[2]};
    else return vec_mtl<E, N>{e[0], e[1], e[2], e[3]};
  }
};
template <typename T, typename U> inline constexpr T as_constant_mtl(U x) {
  typedef components_of_mtl<U> from;
  typedef components_of_mtl<T> to;
  typedef typename from::element F;
  typedef typename to::element E;
  ulong bytes[32] = {};
  for (int i = 0; i < from::count; i++)
    for (int k = 0; k < sizeof(F); k++)
      bytes[i * sizeof(F) + k] = (ulong)__builtin_bit_cast(typename word_of_mtl<sizeof(F)>::type, from::at(x, i)) >> 8 * k & 255;
  E found[4] = {};
  for (int i = 0; i < to::count; i++) {
    ulong bits = 0;
    for (int k = 0; k < sizeof(E); k++) bits |= bytes[i * sizeof(E) + k] << 8 * k;
    found[i] = __builtin_bit_cast(E, (typename word_of_mtl<sizeof(E)>::type)bits);
  }
  return to::of(found);
}
