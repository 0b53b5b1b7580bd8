// Types and what moves between them.
//@ *
inline uint position_mtl(size_t x) { __builtin_assume(x <= 0x7fffffffUL); return (uint)x; }
inline uint local_position_mtl(size_t x) { __builtin_assume(x <= 1024); return (uint)x; }
inline uint lane_mtl(uint x) { __builtin_assume(x <= 32); return x; }
template <typename T, int N> using vec_mtl = T __attribute__((ext_vector_type(N)));

//@ vec
// vec_mtl is always there; this names it.

//@ int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t uint64_t
typedef char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;

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

//@ array
template <typename T, size_t N> struct array {
  T values_mtl[N];
  const T &operator[](size_t i) const { return values_mtl[i]; }
  T &operator[](size_t i) { return values_mtl[i]; }
  constexpr size_t size() const { return N; }
  constexpr bool empty() const { return N == 0; }
};

//@ packed_vector_mtl
template <typename T, int N> struct packed_vector_mtl;
template <typename T> struct packed_vector_mtl<T, 2> {
  T x, y;
  packed_vector_mtl() = default;
  packed_vector_mtl(T a) : x(a), y(a) {}
  packed_vector_mtl(T a, T b) : x(a), y(b) {}
  packed_vector_mtl(vec_mtl<T, 2> v) : x(v.x), y(v.y) {}
  operator vec_mtl<T, 2>() const { return (vec_mtl<T, 2>)(x, y); }
  T operator[](int i) const { return (&x)[i]; }
  T &operator[](int i) { return (&x)[i]; }
};
template <typename T> struct packed_vector_mtl<T, 3> {
  T x, y, z;
  packed_vector_mtl() = default;
  packed_vector_mtl(T a) : x(a), y(a), z(a) {}
  packed_vector_mtl(T a, T b, T c) : x(a), y(b), z(c) {}
  packed_vector_mtl(vec_mtl<T, 3> v) : x(v.x), y(v.y), z(v.z) {}
  operator vec_mtl<T, 3>() const { return (vec_mtl<T, 3>)(x, y, z); }
  T operator[](int i) const { return (&x)[i]; }
  T &operator[](int i) { return (&x)[i]; }
};
template <typename T> struct packed_vector_mtl<T, 4> {
  T x, y, z, w;
  packed_vector_mtl() = default;
  packed_vector_mtl(T a) : x(a), y(a), z(a), w(a) {}
  packed_vector_mtl(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  packed_vector_mtl(vec_mtl<T, 4> v) : x(v.x), y(v.y), z(v.z), w(v.w) {}
  operator vec_mtl<T, 4>() const { return (vec_mtl<T, 4>)(x, y, z, w); }
  T operator[](int i) const { return (&x)[i]; }
  T &operator[](int i) { return (&x)[i]; }
};
template <typename T, int N> inline vec_mtl<T, N> unpack_mtl(packed_vector_mtl<T, N> p) { return p; }
template <typename T, int N> inline vec_mtl<T, N> unpack_mtl(vec_mtl<T, N> p) { return p; }
template <typename T> inline T unpack_mtl(T p) { return p; }
#define PACKED_OPERATOR_MTL(op) \
  template <typename T, int N, typename B> inline vec_mtl<T, N> operator op(packed_vector_mtl<T, N> a, B b) { return unpack_mtl(a) op unpack_mtl(b); } \
  template <typename T, int N, typename A> inline vec_mtl<T, N> operator op(A a, packed_vector_mtl<T, N> b) { return unpack_mtl(a) op unpack_mtl(b); } \
  template <typename T, int N> inline vec_mtl<T, N> operator op(packed_vector_mtl<T, N> a, packed_vector_mtl<T, N> b) { return unpack_mtl(a) op unpack_mtl(b); }
PACKED_OPERATOR_MTL(+)
PACKED_OPERATOR_MTL(-)
PACKED_OPERATOR_MTL(*)
PACKED_OPERATOR_MTL(/)
#undef PACKED_OPERATOR_MTL
template <typename T, int N> inline vec_mtl<T, N> operator-(packed_vector_mtl<T, N> a) { return -unpack_mtl(a); }
template <typename T, int N, typename B> inline packed_vector_mtl<T, N> &operator+=(packed_vector_mtl<T, N> &a, B b) { return a = packed_vector_mtl<T, N>(a + b); }
template <typename T, int N, typename B> inline packed_vector_mtl<T, N> &operator-=(packed_vector_mtl<T, N> &a, B b) { return a = packed_vector_mtl<T, N>(a - b); }
template <typename T, int N, typename B> inline packed_vector_mtl<T, N> &operator*=(packed_vector_mtl<T, N> &a, B b) { return a = packed_vector_mtl<T, N>(a * b); }
template <typename T, int N, typename B> inline packed_vector_mtl<T, N> &operator/=(packed_vector_mtl<T, N> &a, B b) { return a = packed_vector_mtl<T, N>(a / b); }

//@ packed_float2 packed_float3 packed_float4 packed_half2 packed_half3 packed_half4 packed_int2 packed_int3 packed_int4 packed_uint2 packed_uint3 packed_uint4 packed_char2 packed_char3 packed_char4 packed_uchar2 packed_uchar3 packed_uchar4 packed_short2 packed_short3 packed_short4 packed_ushort2 packed_ushort3 packed_ushort4 : packed_vector_mtl
#define PACKED_TYPES_MTL(t) \
  typedef packed_vector_mtl<t, 2> packed_##t##2; \
  typedef packed_vector_mtl<t, 3> packed_##t##3; \
  typedef packed_vector_mtl<t, 4> packed_##t##4;
PACKED_TYPES_MTL(float)
PACKED_TYPES_MTL(half)
PACKED_TYPES_MTL(int)
PACKED_TYPES_MTL(uint)
PACKED_TYPES_MTL(short)
PACKED_TYPES_MTL(ushort)
PACKED_TYPES_MTL(char)
PACKED_TYPES_MTL(uchar)
#undef PACKED_TYPES_MTL

//@ MAXFLOAT
// OpenCL has it.
//@ MAXHALF
#define MAXHALF 65504.0h
//@ HUGE_VALH
#define HUGE_VALH ((half)INFINITY)
