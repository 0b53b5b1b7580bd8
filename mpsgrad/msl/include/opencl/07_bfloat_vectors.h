// Vectors of bfloat: a class, because the compiler's own vectors hold its own types only.
//@ bfloat2 bfloat3 bfloat4 bfloat_vector_mtl : bfloat components_mtl bool_vector_mtl
template <int N> using bfloat_vector_mtl = class_vector_mtl<bfloat, N>;
template <int N> struct vector_of_mtl<bfloat, N, false> { typedef bfloat_vector_mtl<N> type; };
template <int N> struct bfloat_storage_mtl;
template <> struct alignas(16) bfloat_storage_mtl<8> {
  bfloat v[8];
  bfloat_storage_mtl() = default;
  constexpr bfloat_storage_mtl(components_mtl<bfloat, 8> c) : v{c.v[0], c.v[1], c.v[2], c.v[3], c.v[4], c.v[5], c.v[6], c.v[7]} {}
};
template <> struct alignas(4) bfloat_storage_mtl<2> {
  union { bfloat v[2]; struct { bfloat x, y; }; struct { bfloat r, g; }; BFLOAT_SWIZZLES_2_MTL };
  bfloat_storage_mtl() = default;
  constexpr bfloat_storage_mtl(components_mtl<bfloat, 2> c) : v{c.v[0], c.v[1]} {}
};
template <> struct alignas(8) bfloat_storage_mtl<3> {
  union { bfloat v[3]; struct { bfloat x, y, z; }; struct { bfloat r, g, b; }; BFLOAT_SWIZZLES_3_MTL };
  bfloat_storage_mtl() = default;
  constexpr bfloat_storage_mtl(components_mtl<bfloat, 3> c) : v{c.v[0], c.v[1], c.v[2]} {}
};
template <> struct alignas(8) bfloat_storage_mtl<4> {
  union { bfloat v[4]; struct { bfloat x, y, z, w; }; struct { bfloat r, g, b, a; }; BFLOAT_SWIZZLES_4_MTL };
  bfloat_storage_mtl() = default;
  constexpr bfloat_storage_mtl(components_mtl<bfloat, 4> c) : v{c.v[0], c.v[1], c.v[2], c.v[3]} {}
};
template <int N> struct class_vector_mtl<bfloat, N> : bfloat_storage_mtl<N> {
  typedef bfloat_storage_mtl<N> base;
  using base::v;
  class_vector_mtl() = default;
  constexpr class_vector_mtl(const class_vector_mtl &o) : base(components_mtl<bfloat, N>(o.v)) {}
  template <typename A, SCALARS_ONLY_MTL(A)> constexpr class_vector_mtl(A a) : base(splat((bfloat)a)) {}
  template <typename A, typename B, typename... C> constexpr class_vector_mtl(A a, B b, C... c) : base(components_mtl<bfloat, N>(a, b, c...)) {}
  template <typename E> explicit constexpr class_vector_mtl(vec_mtl<E, N> a) : base(components_mtl<bfloat, N>(a)) {}
  explicit constexpr class_vector_mtl(bool_vector_mtl<N> a) : base(components_mtl<bfloat, N>(a)) {}
  class_vector_mtl &operator=(const class_vector_mtl &o) { for (int i = 0; i < N; i++) v[i] = o.v[i]; return *this; }
  bfloat &operator[](int i) { return v[i]; }
  constexpr bfloat operator[](int i) const { return v[i]; }
  template <typename E> explicit operator vec_mtl<E, N>() const { return convert<E>(); }
  template <typename E> vec_mtl<E, N> convert() const { vec_mtl<E, N> r; for (int i = 0; i < N; i++) r[i] = (E)whole_number_mtl<E>(0, (float)v[i]); return r; }
#define ELEMENTWISE_MTL(op) \
  friend class_vector_mtl operator op(class_vector_mtl a, class_vector_mtl b) { class_vector_mtl r; for (int i = 0; i < N; i++) r.v[i] = a.v[i] op b.v[i]; return r; } \
  friend class_vector_mtl &operator op##=(class_vector_mtl &a, class_vector_mtl b) { return a = a op b; }
  ELEMENTWISE_MTL(+)
  ELEMENTWISE_MTL(-)
  ELEMENTWISE_MTL(*)
  ELEMENTWISE_MTL(/)
#undef ELEMENTWISE_MTL
#define COMPARISON_MTL(op) \
  friend bool_vector_mtl<N> operator op(class_vector_mtl a, class_vector_mtl b) { bool_vector_mtl<N> r; for (int i = 0; i < N; i++) r.v[i] = (float)a.v[i] op(float) b.v[i]; return r; }
  COMPARISON_MTL(==)
  COMPARISON_MTL(!=)
  COMPARISON_MTL(<)
  COMPARISON_MTL(>)
  COMPARISON_MTL(<=)
  COMPARISON_MTL(>=)
#undef COMPARISON_MTL
  friend class_vector_mtl operator-(class_vector_mtl a) { class_vector_mtl r; for (int i = 0; i < N; i++) r.v[i] = -a.v[i]; return r; }
 private:
  static constexpr components_mtl<bfloat, N> splat(bfloat a) { components_mtl<bfloat, N> c{}; for (int i = 0; i < N; i++) c.v[i] = a; return c; }
};
typedef bfloat_vector_mtl<2> bfloat2;
typedef bfloat_vector_mtl<3> bfloat3;
typedef bfloat_vector_mtl<4> bfloat4;
