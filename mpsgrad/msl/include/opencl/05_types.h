// Types and what moves between them.
//@ *
inline uint position_mtl(size_t x) { __builtin_assume(x <= 0x7fffffffUL); return (uint)x; }
inline uint local_position_mtl(size_t x) { __builtin_assume(x <= 1024); return (uint)x; }
inline uint lane_mtl(uint x) { __builtin_assume(x <= 32); return x; }
inline uint lane_index_mtl() { return lane_mtl(get_sub_group_local_id()); }
template <typename T, int N> using vec_mtl = T __attribute__((ext_vector_type(N)));

//@ vec
// vec_mtl is always there; this names it.

//@ bool2 bool3 bool4
// The truth values of a comparison are a mask: all bits set or none. A variable of type bool4 keeps them as bytes.
template <int N> struct bool_vector_mtl;
template <> struct bool_vector_mtl<2> {
  bool x, y;
  bool_vector_mtl() = default;
  bool_vector_mtl(bool a) : x(a), y(a) {}
  bool_vector_mtl(bool a, bool b) : x(a), y(b) {}
  template <typename E> bool_vector_mtl(vec_mtl<E, 2> v) : x(v.x != 0), y(v.y != 0) {}
  bool operator[](int i) const { return i == 0 ? x : y; }
  char2 mask() const { return (char2)(-(char)x, -(char)y); }
};
template <> struct bool_vector_mtl<3> {
  bool x, y, z;
  bool_vector_mtl() = default;
  bool_vector_mtl(bool a) : x(a), y(a), z(a) {}
  bool_vector_mtl(bool a, bool b, bool c) : x(a), y(b), z(c) {}
  template <typename E> bool_vector_mtl(vec_mtl<E, 3> v) : x(v.x != 0), y(v.y != 0), z(v.z != 0) {}
  bool operator[](int i) const { return i == 0 ? x : i == 1 ? y : z; }
  char3 mask() const { return (char3)(-(char)x, -(char)y, -(char)z); }
};
template <> struct bool_vector_mtl<4> {
  bool x, y, z, w;
  bool_vector_mtl() = default;
  bool_vector_mtl(bool a) : x(a), y(a), z(a), w(a) {}
  bool_vector_mtl(bool a, bool b, bool c, bool d) : x(a), y(b), z(c), w(d) {}
  template <typename E> bool_vector_mtl(vec_mtl<E, 4> v) : x(v.x != 0), y(v.y != 0), z(v.z != 0), w(v.w != 0) {}
  bool operator[](int i) const { return i < 2 ? (i == 0 ? x : y) : (i == 2 ? z : w); }
  char4 mask() const { return (char4)(-(char)x, -(char)y, -(char)z, -(char)w); }
};
typedef bool_vector_mtl<2> bool2;
typedef bool_vector_mtl<3> bool3;
typedef bool_vector_mtl<4> bool4;
template <int N> inline bool_vector_mtl<N> operator!(bool_vector_mtl<N> a) { return a.mask() == (char)0; }
template <int N> inline bool_vector_mtl<N> operator&&(bool_vector_mtl<N> a, bool_vector_mtl<N> b) { return a.mask() & b.mask(); }
template <int N> inline bool_vector_mtl<N> operator||(bool_vector_mtl<N> a, bool_vector_mtl<N> b) { return a.mask() | b.mask(); }
template <int N> inline bool_vector_mtl<N> operator&(bool_vector_mtl<N> a, bool_vector_mtl<N> b) { return a.mask() & b.mask(); }
template <int N> inline bool_vector_mtl<N> operator|(bool_vector_mtl<N> a, bool_vector_mtl<N> b) { return a.mask() | b.mask(); }
template <int N> inline bool_vector_mtl<N> operator^(bool_vector_mtl<N> a, bool_vector_mtl<N> b) { return a.mask() ^ b.mask(); }
template <int N> inline bool_vector_mtl<N> operator==(bool_vector_mtl<N> a, bool_vector_mtl<N> b) { return a.mask() == b.mask(); }
template <int N> inline bool_vector_mtl<N> operator!=(bool_vector_mtl<N> a, bool_vector_mtl<N> b) { return a.mask() != b.mask(); }

//@ as_type
template <typename T, typename U> inline T as_type(U x) { return __builtin_astype(x, T); }

//@ construct
// vec<T, N>(a, b, ...) where the type is a name whose meaning only the compiler knows.
template <typename T, typename... A> inline constexpr T construct_mtl(A... a) { return T{a...}; }

//@ construct_one
template <typename T> struct constructor_mtl { template <typename A> static constexpr T make(A a) { return T(a); } };
template <typename T, int N> struct constructor_mtl<vec_mtl<T, N>> {
  template <typename A> static vec_mtl<T, N> make(A a) { return (vec_mtl<T, N>)((T)a); }
  template <typename E> static vec_mtl<T, N> make(vec_mtl<E, N> a) { return __builtin_convertvector(a, vec_mtl<T, N>); }
};
template <typename T, typename A> inline constexpr T construct_one_mtl(A a) { return constructor_mtl<T>::make(a); }

//@ cast : construct_one
// (float4)x, spelled cast_mtl<float4>()->*x: the operator ->* binds looser than a suffix and tighter than a product.
template <typename T> struct cast_mtl { template <typename A> T operator->*(A a) const { return construct_one_mtl<T>(a); } };

//@ HUGE_VALH
#define HUGE_VALH ((half)INFINITY)
//@ infinity_mtl
#define INFINITY_MTL __builtin_inff()
#define NAN_MTL __builtin_nanf("")
