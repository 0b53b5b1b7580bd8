// Types that both targets build alike. The address space qualifiers are empty macros for CUDA.
//@ in_each_space_mtl
// An element of a container that is no temporary object, for a reference that says which memory it lies in.
#ifdef __OPENCL_VERSION__
#define IN_SPACE_MTL(space, index, elements, ...) \
  constexpr space __VA_ARGS__ &operator[](index i) space & { return elements[i]; } \
  constexpr const space __VA_ARGS__ &operator[](index i) const space & { return elements[i]; }
#define IN_EACH_SPACE_MTL(...) IN_SPACE_MTL(__private, __VA_ARGS__) IN_SPACE_MTL(__global, __VA_ARGS__) IN_SPACE_MTL(__local, __VA_ARGS__)
#define ENDS_IN_SPACE_MTL(space, ...) \
  constexpr space __VA_ARGS__ *begin() space { return values_mtl; } \
  constexpr space __VA_ARGS__ *end() space { return values_mtl + N; } \
  constexpr const space __VA_ARGS__ *begin() const space { return values_mtl; } \
  constexpr space __VA_ARGS__ *data() space { return values_mtl; } \
  constexpr const space __VA_ARGS__ *data() const space { return values_mtl; } \
  constexpr const space __VA_ARGS__ *end() const space { return values_mtl + N; }
#define ENDS_IN_EACH_SPACE_MTL(...) ENDS_IN_SPACE_MTL(__private, __VA_ARGS__) ENDS_IN_SPACE_MTL(__global, __VA_ARGS__) ENDS_IN_SPACE_MTL(__local, __VA_ARGS__)
#else
#define IN_EACH_SPACE_MTL(...)
#define ENDS_IN_EACH_SPACE_MTL(...)
#endif

//@ int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t uint64_t
typedef char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;

//@ array_of_mtl
template <typename T, size_t N> using array_of_mtl = T[N];

//@ array : in_each_space_mtl
template <typename T, size_t N> struct array {
  T values_mtl[N];
  constexpr const T &operator[](size_t i) const & { return values_mtl[i]; }
  constexpr T operator[](size_t i) const && { return values_mtl[i]; }
  constexpr T &operator[](size_t i) & { return values_mtl[i]; }
  IN_EACH_SPACE_MTL(size_t, values_mtl, T)
  constexpr const T *begin() const { return values_mtl; }
  constexpr const T *end() const { return values_mtl + N; }
  constexpr T *begin() { return values_mtl; }
  constexpr T *end() { return values_mtl + N; }
  constexpr const T *data() const { return values_mtl; }
  constexpr T *data() { return values_mtl; }
  ENDS_IN_EACH_SPACE_MTL(T)
  constexpr size_t size() const { return N; }
  constexpr bool empty() const { return N == 0; }
};

//@ initializer_list
// A copy of what stands in braces.
template <typename T> struct initializer_list {
  enum : size_t { MOST = 32 };
  T values_mtl[MOST];
  size_t count_mtl;
  initializer_list() : count_mtl(0) {}
  template <typename... A> initializer_list(T first, A... others) : values_mtl{first, others...}, count_mtl(1 + sizeof...(A)) {
    static_assert(sizeof...(A) < MOST, "an initializer_list has up to 32 elements here");
  }
  const T *begin() const { return values_mtl; }
  const T *end() const { return values_mtl + count_mtl; }
  T *begin() { return values_mtl; }
  T *end() { return values_mtl + count_mtl; }
  size_t size() const { return count_mtl; }
};

//@ packed_vector_mtl packed_vec : construct_mtl components_mtl swizzle_mtl lift_mtl in_each_space_mtl
template <typename T, int N> struct packed_storage_mtl;
template <typename T> struct packed_storage_mtl<T, 2> {
  union { T v[2]; struct { T x, y; }; struct { T r, g; }; SWIZZLES_2_MTL };
  packed_storage_mtl() = default;
  constexpr packed_storage_mtl(components_mtl<T, 2> c) : v{c.v[0], c.v[1]} {}
};
template <typename T> struct packed_storage_mtl<T, 3> {
  union { T v[3]; struct { T x, y, z; }; struct { T r, g, b; }; SWIZZLES_3_MTL };
  packed_storage_mtl() = default;
  constexpr packed_storage_mtl(components_mtl<T, 3> c) : v{c.v[0], c.v[1], c.v[2]} {}
};
template <typename T> struct packed_storage_mtl<T, 4> {
  union { T v[4]; struct { T x, y, z, w; }; struct { T r, g, b, a; }; SWIZZLES_4_MTL };
  packed_storage_mtl() = default;
  constexpr packed_storage_mtl(components_mtl<T, 4> c) : v{c.v[0], c.v[1], c.v[2], c.v[3]} {}
};
template <typename T, int N, typename V> struct packed_vector_mtl : packed_storage_mtl<T, N> {
  typedef packed_storage_mtl<T, N> base;
  using base::v;
  packed_vector_mtl() = default;
  constexpr packed_vector_mtl(const packed_vector_mtl &o) : base(components_mtl<T, N>(o.v)) {}
  template <typename A, typename require_mtl<is_scalar_mtl<A>::value>::type = 0> constexpr packed_vector_mtl(A a) : base(splat((T)a)) {}
  template <typename A, typename B, typename... C> constexpr packed_vector_mtl(A a, B b, C... c) : base(components_mtl<T, N>(a, b, c...)) {}
  constexpr packed_vector_mtl(V o) : base(components_mtl<T, N>(o)) {}
  template <typename E> explicit constexpr packed_vector_mtl(vec_mtl<E, N> o) : base(components_mtl<T, N>(o)) {}
  template <typename E> explicit constexpr packed_vector_mtl(packed_vector_mtl<E, N> o) : base(components_mtl<T, N>(o)) {}
  template <typename W, int M, int... I> constexpr packed_vector_mtl(swizzle_mtl<W, T, M, I...> o) : base(components_mtl<T, N>(o)) {}
  packed_vector_mtl &operator=(const packed_vector_mtl &o) { for (int i = 0; i < N; i++) v[i] = o.v[i]; return *this; }
  operator V() const { return unpacked(places<N>()); }
  constexpr T operator[](int i) const & { return v[i]; }
  constexpr T operator[](int i) const && { return v[i]; }
  T &operator[](int i) & { return v[i]; }
  IN_EACH_SPACE_MTL(int, v, T)
 private:
  template <int> struct places {};
  V unpacked(places<2>) const { return construct_mtl<V>(v[0], v[1]); }
  V unpacked(places<3>) const { return construct_mtl<V>(v[0], v[1], v[2]); }
  V unpacked(places<4>) const { return construct_mtl<V>(v[0], v[1], v[2], v[3]); }
  static constexpr components_mtl<T, N> splat(T a) { components_mtl<T, N> c{}; for (int i = 0; i < N; i++) c.v[i] = a; return c; }
};
template <typename T, int N> using packed_vec = packed_vector_mtl<T, N>;
template <typename A> struct is_packed_mtl { static constexpr bool value = false; };
template <typename T, int N> struct is_packed_mtl<packed_vector_mtl<T, N>> { static constexpr bool value = true; };
template <typename A> struct is_operand_mtl { static constexpr bool value = is_scalar_mtl<A>::value || is_packed_mtl<A>::value; };
template <typename T, int N> struct is_operand_mtl<vec_mtl<T, N>> { static constexpr bool value = true; };
template <typename T, int N> inline vec_mtl<T, N> unpack_mtl(packed_vector_mtl<T, N> p) { return p; }
#ifdef __OPENCL_VERSION__
// There a view of some components converts to a vector that has no operators for classes.
template <typename T, int M, typename U, int N, int... I> struct is_packed_mtl<swizzle_mtl<vec_mtl<T, M>, U, N, I...>> { static constexpr bool value = true; };
template <typename T, int M, typename U, int N, int... I> inline vec_mtl<T, M> unpack_mtl(swizzle_mtl<vec_mtl<T, M>, U, N, I...> s) { return s; }
#define UNPACKED_MTL(op) unpack_mtl(a) op lift_mtl() op unpack_mtl(b)
#else
#define UNPACKED_MTL(op) unpack_mtl(a) op unpack_mtl(b)
#endif
#define PACKED_OPERATOR_MTL(op) \
  template <typename A, typename B, typename require_mtl<(is_packed_mtl<A>::value || is_packed_mtl<B>::value) && is_operand_mtl<A>::value && is_operand_mtl<B>::value>::type = 0> \
  inline auto operator op(A a, B b) { return UNPACKED_MTL(op); }
#define PACKED_ASSIGNMENT_MTL(op) \
  PACKED_OPERATOR_MTL(op) \
  template <typename T, int N, typename B> inline packed_vector_mtl<T, N> &operator op##=(packed_vector_mtl<T, N> &a, B b) { return a = packed_vector_mtl<T, N>(UNPACKED_MTL(op)); }
PACKED_ASSIGNMENT_MTL(+)
PACKED_ASSIGNMENT_MTL(-)
PACKED_ASSIGNMENT_MTL(*)
PACKED_ASSIGNMENT_MTL(/)
PACKED_ASSIGNMENT_MTL(%)
PACKED_ASSIGNMENT_MTL(&)
PACKED_ASSIGNMENT_MTL(|)
PACKED_ASSIGNMENT_MTL(^)
PACKED_OPERATOR_MTL(==)
PACKED_OPERATOR_MTL(!=)
PACKED_OPERATOR_MTL(<)
PACKED_OPERATOR_MTL(>)
PACKED_OPERATOR_MTL(<=)
PACKED_OPERATOR_MTL(>=)
#undef PACKED_ASSIGNMENT_MTL
#undef PACKED_OPERATOR_MTL
#define PACKED_SHIFT_MTL(op) \
  template <typename A, typename B, typename require_mtl<is_packed_mtl<A>::value && is_operand_mtl<B>::value>::type = 0> inline auto operator op(A a, B b) { return unpack_mtl(a) op unpack_mtl(b); } \
  template <typename T, int N, typename B> inline packed_vector_mtl<T, N> &operator op##=(packed_vector_mtl<T, N> &a, B b) { return a = packed_vector_mtl<T, N>(unpack_mtl(a) op unpack_mtl(b)); }
PACKED_SHIFT_MTL(<<)
PACKED_SHIFT_MTL(>>)
#undef PACKED_SHIFT_MTL
#define PACKED_STEP_MTL(op) \
  template <typename T, int N, typename V, typename = decltype(T() % T())> inline packed_vector_mtl<T, N, V> &operator op(packed_vector_mtl<T, N, V> &a) { for (int i = 0; i < N; i++) a.v[i] op; return a; } \
  template <typename T, int N, typename V, typename = decltype(T() % T())> inline packed_vector_mtl<T, N, V> operator op(packed_vector_mtl<T, N, V> &a, int) { packed_vector_mtl<T, N, V> old = a; op a; return old; }
PACKED_STEP_MTL(++)
PACKED_STEP_MTL(--)
#undef PACKED_STEP_MTL
template <typename A, typename require_mtl<is_packed_mtl<A>::value>::type = 0> inline auto operator-(A a) { return -unpack_mtl(a); }
template <typename A, typename require_mtl<is_packed_mtl<A>::value>::type = 0> inline auto operator~(A a) { return ~unpack_mtl(a); }

//@ packed_float2 packed_float3 packed_float4 packed_half2 packed_half3 packed_half4 packed_int2 packed_int3 packed_int4 packed_uint2 packed_uint3 packed_uint4 packed_char2 packed_char3 packed_char4 packed_uchar2 packed_uchar3 packed_uchar4 packed_short2 packed_short3 packed_short4 packed_ushort2 packed_ushort3 packed_ushort4 packed_long2 packed_long3 packed_long4 packed_ulong2 packed_ulong3 packed_ulong4 : packed_vector_mtl
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
PACKED_TYPES_MTL(long)
PACKED_TYPES_MTL(ulong)
#undef PACKED_TYPES_MTL

//@ MAXHALF
#define MAXHALF ((half)65504.0f)
