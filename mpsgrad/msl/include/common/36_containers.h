// Types that both targets build alike. The address space qualifiers are empty macros for CUDA.
//@ int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t uint64_t
typedef char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;

//@ array
template <typename T, size_t N> struct array {
  T values_mtl[N];
  const T &operator[](size_t i) const { return values_mtl[i]; }
  T &operator[](size_t i) { return values_mtl[i]; }
  constexpr size_t size() const { return N; }
  constexpr bool empty() const { return N == 0; }
};

//@ packed_vector_mtl : construct
template <typename T, int N> struct packed_vector_mtl;
template <typename T> struct packed_vector_mtl<T, 2> {
  T x, y;
  packed_vector_mtl() = default;
  packed_vector_mtl(T a) : x(a), y(a) {}
  packed_vector_mtl(T a, T b) : x(a), y(b) {}
  packed_vector_mtl(vec_mtl<T, 2> v) : x(v.x), y(v.y) {}
  operator vec_mtl<T, 2>() const { return construct_mtl<vec_mtl<T, 2>>(x, y); }
  T operator[](int i) const { return (&x)[i]; }
  T &operator[](int i) { return (&x)[i]; }
};
template <typename T> struct packed_vector_mtl<T, 3> {
  T x, y, z;
  packed_vector_mtl() = default;
  packed_vector_mtl(T a) : x(a), y(a), z(a) {}
  packed_vector_mtl(T a, T b, T c) : x(a), y(b), z(c) {}
  packed_vector_mtl(vec_mtl<T, 3> v) : x(v.x), y(v.y), z(v.z) {}
  operator vec_mtl<T, 3>() const { return construct_mtl<vec_mtl<T, 3>>(x, y, z); }
  T operator[](int i) const { return (&x)[i]; }
  T &operator[](int i) { return (&x)[i]; }
};
template <typename T> struct packed_vector_mtl<T, 4> {
  T x, y, z, w;
  packed_vector_mtl() = default;
  packed_vector_mtl(T a) : x(a), y(a), z(a), w(a) {}
  packed_vector_mtl(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  packed_vector_mtl(vec_mtl<T, 4> v) : x(v.x), y(v.y), z(v.z), w(v.w) {}
  operator vec_mtl<T, 4>() const { return construct_mtl<vec_mtl<T, 4>>(x, y, z, w); }
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

//@ MAXHALF
#define MAXHALF ((half)65504.0f)
