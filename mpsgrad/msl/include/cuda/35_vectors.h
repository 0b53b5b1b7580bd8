// Vectors with the swizzles and functions that the program uses, and what moves between types.
//@ *
template <typename T, int N> struct vec_mtl;
// What packed vectors convert to is among their arguments, so that its friends are found.
template <typename T, int N> using vector_mtl = vec_mtl<T, N>;
template <typename T, int N, typename V = vec_mtl<T, N>> struct packed_vector_mtl;
template <typename B> struct count_mtl_of { B value; };
template <typename A> constexpr inline const A &unpack_mtl(const A &a) { return a; }

#ifndef VOLATILE_MTL
#define VOLATILE_MTL(...)
#endif
// No reference to what is not volatile takes what is, whatever it could be converted to.
#define VOLATILE_OPERANDS_MTL(r, op) VOLATILE_MTL( \
  friend r operator op(const volatile vec_mtl &a, const volatile vec_mtl &b) { return vec_mtl(a) op vec_mtl(b); } \
  friend r operator op(const volatile vec_mtl &a, const vec_mtl &b) { return vec_mtl(a) op b; } \
  friend r operator op(const vec_mtl &a, const volatile vec_mtl &b) { return a op vec_mtl(b); })
#define VOLATILE_ASSIGNMENT_MTL(op) VOLATILE_MTL( \
  friend volatile vec_mtl &operator op##=(volatile vec_mtl &a, const vec_mtl &b) { return a = vec_mtl(a) op b; } \
  friend volatile vec_mtl &operator op##=(volatile vec_mtl &a, const volatile vec_mtl &b) { return a = vec_mtl(a) op vec_mtl(b); } \
  friend vec_mtl &operator op##=(vec_mtl &a, const volatile vec_mtl &b) { return a = a op vec_mtl(b); })

// v.xz and its like: a view of some components, which reads as a vector and can be assigned.
template <typename V, typename T, int N, int... I> struct swizzle_mtl {
  T v[N];
  swizzle_mtl() = default;
  operator V() const { return V(v[I]...); }
  V value_mtl() const { return V(v[I]...); }
  swizzle_mtl &operator=(const swizzle_mtl &o) { return *this = o.operator V(); }
  // By value: the vector may be the one that this views.
  swizzle_mtl &operator=(V o) {
    int k = 0;
    ((v[I] = o.v[k++]), ...);
    return *this;
  }
  T operator[](int i) const { return operator V().v[i]; }
  V operator++() { V all = *this; return *this = ++all; }
  V operator--() { V all = *this; return *this = --all; }
  V operator++(int) { V all = *this, old = all; *this = ++all; return old; }
  V operator--(int) { V all = *this, old = all; *this = --all; return old; }
  template <typename A> swizzle_mtl &operator+=(const A &a) { return *this = operator V() + V(a); }
  template <typename A> swizzle_mtl &operator-=(const A &a) { return *this = operator V() - V(a); }
  template <typename A> swizzle_mtl &operator*=(const A &a) { return *this = operator V() * V(a); }
  template <typename A> swizzle_mtl &operator/=(const A &a) { return *this = operator V() / V(a); }
  template <typename A> swizzle_mtl &operator%=(const A &a) { return *this = operator V() % V(a); }
  template <typename A> swizzle_mtl &operator&=(const A &a) { return *this = operator V() & V(a); }
  template <typename A> swizzle_mtl &operator|=(const A &a) { return *this = operator V() | V(a); }
  template <typename A> swizzle_mtl &operator^=(const A &a) { return *this = operator V() ^ V(a); }
  template <typename A> swizzle_mtl &operator<<=(const A &a) { return *this = operator V() << V(a); }
  template <typename A> swizzle_mtl &operator>>=(const A &a) { return *this = operator V() >> V(a); }
  template <typename A> swizzle_mtl &operator<<=(const count_mtl_of<A> &a) { return *this <<= a.value; }
  template <typename A> swizzle_mtl &operator>>=(const count_mtl_of<A> &a) { return *this >>= a.value; }
  VOLATILE_MTL(
    operator V() const volatile { return V(v[I]...); }
    V value_mtl() const volatile { return V(v[I]...); }
    void operator=(V o) volatile { int k = 0; ((v[I] = o.v[k++]), ...); }
    T operator[](int i) const volatile { return operator V().v[i]; }
  )
};

// A converted to T. Of constants NVIDIA's compiler makes false of a NaN that it converts to bool.
template <typename T, typename A> struct element_mtl { static constexpr T of(const A &a) { return (T)whole_number_mtl<T>(0, a); } };
template <> struct element_mtl<bool, float> { static constexpr bool of(float a) { return !(a == 0.0f); } };

// All components as one aligned object, so that a vector is loaded and stored by one instruction.
template <typename T, int N> struct alignas(N == 3 ? 4 * sizeof(T) : N * sizeof(T)) whole_mtl_t { T v[N]; };
template <typename T, int N> struct storage_mtl;
template <typename T> struct alignas(2 * sizeof(T)) storage_mtl<T, 2> {
  union {
    T v[2];
    whole_mtl_t<T, 2> whole_mtl;
    struct { T x, y; };
    struct { T r, g; };
    SWIZZLES_2_MTL
  };
  storage_mtl() = default;
  constexpr storage_mtl(T a) : v{a, a} {}
  constexpr storage_mtl(const T (&a)[2]) : v{a[0], a[1]} {}
};
template <typename T> struct alignas(4 * sizeof(T)) storage_mtl<T, 3> {
  union {
    T v[3];
    whole_mtl_t<T, 3> whole_mtl;
    struct { T x, y, z; };
    struct { T r, g, b; };
    SWIZZLES_3_MTL
  };
  storage_mtl() = default;
  constexpr storage_mtl(T a) : v{a, a, a} {}
  constexpr storage_mtl(const T (&a)[3]) : v{a[0], a[1], a[2]} {}
};
template <typename T> struct alignas(4 * sizeof(T)) storage_mtl<T, 4> {
  union {
    T v[4];
    whole_mtl_t<T, 4> whole_mtl;
    struct { T x, y, z, w; };
    struct { T r, g, b, a; };
    SWIZZLES_4_MTL
  };
  storage_mtl() = default;
  constexpr storage_mtl(T c) : v{c, c, c, c} {}
  constexpr storage_mtl(const T (&c)[4]) : v{c[0], c[1], c[2], c[3]} {}
};

// Of the eight that a thread has of a square of 16 x 16; they have no names.
template <typename T> struct alignas(8 * sizeof(T)) storage_mtl<T, 8> {
  union {
    T v[8];
    whole_mtl_t<T, 8> whole_mtl;
  };
  storage_mtl() = default;
  constexpr storage_mtl(T c) : v{c, c, c, c, c, c, c, c} {}
  constexpr storage_mtl(const T (&c)[8]) : v{c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]} {}
};

// A component: by a function, the compiler does not see that it is the first of an aligned vector, and loads it alone.
#ifdef UNALIGNED_MTL
#define AT_MTL(a, i) a[i]
template <typename V> constexpr bool is_aligned_mtl(const V *p) { return !__builtin_is_constant_evaluated() && ((ulong)p & (alignof(V) - 1)) == 0; }
#else
#define AT_MTL(a, i) a.v[i]
#endif

template <typename T, int N> struct components_mtl {
  T v[N]{};
  int n = 0;
  template <typename A> constexpr void put(const A &a) { v[n++] = element_mtl<T, A>::of(a); }
  template <typename A, int M> constexpr void put(const vec_mtl<A, M> &a) { for (int i = 0; i < M; i++) v[n++] = element_mtl<T, A>::of(a.v[i]); }
  template <typename V, typename A, int M, int... I> constexpr void put(const swizzle_mtl<V, A, M, I...> &a) { put(a.operator V()); }
  template <typename A, int M> constexpr void put(const packed_vector_mtl<A, M> &a) { for (int i = 0; i < M; i++) v[n++] = element_mtl<T, A>::of(a.v[i]); }
  template <typename... A> constexpr components_mtl(const A &...a) { (put(a), ...); }
  constexpr components_mtl(const T (&a)[N]) { for (int i = 0; i < N; i++) v[i] = a[i]; }
};

// Only scalars are converted on their way into a vector.
template <typename T, typename A> struct is_part_mtl { static constexpr bool value = true; };
template <typename T, typename A, int M> struct is_part_mtl<T, vec_mtl<A, M>> { static constexpr bool value = is_same_type_mtl<T, A>::value; };
template <typename T, typename A, int M> struct is_part_mtl<T, packed_vector_mtl<A, M>> : is_part_mtl<T, vec_mtl<A, M>> {};
template <typename T, typename V, typename A, int M, int... I> struct is_part_mtl<T, swizzle_mtl<V, A, M, I...>> : is_part_mtl<T, V> {};

// A value of an enumeration that is no class is a scalar, too.
template <typename A, bool = __is_enum(A)> struct is_enumerator_mtl { static constexpr bool value = false; };
template <typename A> struct is_enumerator_mtl<A, true> {
  static char of(int);
  static int of(...);
  static constexpr bool value = sizeof(of(A())) == 1;
};

#define EACH_MTL for (int i = 0; i < N; i++)
// A real number beside a vector of integers, which would be cut off.
#define REFUSED_OPERATOR_MTL(op) \
  template <typename A, typename require_mtl<is_real_mtl<A>::value && !is_real_mtl<T>::value>::type = 0> friend void operator op(const vec_mtl &a, const A &b) = delete; \
  template <typename A, typename require_mtl<is_real_mtl<A>::value && !is_real_mtl<T>::value>::type = 0> friend void operator op(const A &a, const vec_mtl &b) = delete;
#define VECTOR_OPERATOR_MTL(op) \
  friend vec_mtl operator op(const vec_mtl &a, const vec_mtl &b) { vec_mtl r; EACH_MTL r.v[i] = (T)(a.v[i] op b.v[i]); return r; } \
  friend vec_mtl &operator op##=(vec_mtl &a, const vec_mtl &b) { EACH_MTL a.v[i] = (T)(a.v[i] op b.v[i]); return a; } \
  VOLATILE_OPERANDS_MTL(vec_mtl, op) VOLATILE_ASSIGNMENT_MTL(op) \
  REFUSED_OPERATOR_MTL(op)
#define VECTOR_SHIFT_MTL(op) \
  friend vec_mtl operator op(const vec_mtl &a, const vec_mtl &b) { vec_mtl r; EACH_MTL r.v[i] = (T)(a.v[i] op ((uint)b.v[i] & (sizeof(T) * 8 - 1))); return r; } \
  friend vec_mtl &operator op##=(vec_mtl &a, const vec_mtl &b) { return a = a op b; } \
  VOLATILE_OPERANDS_MTL(vec_mtl, op) VOLATILE_ASSIGNMENT_MTL(op) \
  REFUSED_OPERATOR_MTL(op)
#define VECTOR_COMPARISON_MTL(op) \
  friend vec_mtl<bool, N> operator op(const vec_mtl &a, const vec_mtl &b) { vec_mtl<bool, N> r; EACH_MTL r.v[i] = a.v[i] op b.v[i]; return r; } \
  VOLATILE_OPERANDS_MTL(truths_mtl, op) \
  REFUSED_OPERATOR_MTL(op)
#define VECTOR_UNARY_MTL(op) \
  friend vec_mtl operator op(const vec_mtl &a) { vec_mtl r; EACH_MTL r.v[i] = (T)(op a.v[i]); return r; } \
  VOLATILE_MTL(friend vec_mtl operator op(const volatile vec_mtl &a) { return op vec_mtl(a); })
#define FUNCTION_1_MTL(f) friend vec_mtl f(const vec_mtl &a) { vec_mtl r; EACH_MTL r.v[i] = (T)f(a.v[i]); return r; }
#define FUNCTION_2_MTL(f) friend vec_mtl f(const vec_mtl &a, const vec_mtl &b) { vec_mtl r; EACH_MTL r.v[i] = (T)f(a.v[i], b.v[i]); return r; }
#define FUNCTION_3_MTL(f) friend vec_mtl f(const vec_mtl &a, const vec_mtl &b, const vec_mtl &c) { vec_mtl r; EACH_MTL r.v[i] = (T)f(a.v[i], b.v[i], c.v[i]); return r; }
#define FUNCTION_TEST_MTL(f) friend vec_mtl<bool, N> f(const vec_mtl &a) { vec_mtl<bool, N> r; EACH_MTL r.v[i] = f(a.v[i]); return r; }
#define FUNCTION_TEST_2_MTL(f) friend vec_mtl<bool, N> f(const vec_mtl &a, const vec_mtl &b) { vec_mtl<bool, N> r; EACH_MTL r.v[i] = f(a.v[i], b.v[i]); return r; }

// The second argument takes a second result, or has the integers of an exponent.
#define FUNCTION_AND_RESULT_MTL(f) friend vec_mtl f(const vec_mtl &a, vec_mtl &b) { vec_mtl r; EACH_MTL r.v[i] = f(a.v[i], b.v[i]); return r; }
#define FUNCTION_AND_EXPONENT_MTL(f) friend vec_mtl f(const vec_mtl &a, vec_mtl<int, N> &b) { vec_mtl r; EACH_MTL r.v[i] = f(a.v[i], b.v[i]); return r; }
#define FUNCTION_OF_EXPONENT_MTL(f) friend vec_mtl f(const vec_mtl &a, const vec_mtl<int, N> &b) { vec_mtl r; EACH_MTL r.v[i] = f(a.v[i], b.v[i]); return r; }
#define FUNCTION_EXPONENT_MTL(f) friend vec_mtl<int, N> f(const vec_mtl &a) { vec_mtl<int, N> r; EACH_MTL r.v[i] = f(a.v[i]); return r; }
#define FUNCTION_BARE_MTL(f) template <typename E = T, typename U = bare_mtl<E>> friend vec_mtl<U, N> f(const vec_mtl &a, const vec_mtl &b) { vec_mtl<U, N> r; EACH_MTL r.v[i] = f(a.v[i], b.v[i]); return r; }
#define FUNCTION_EXTRACT_MTL(f) friend vec_mtl f(const vec_mtl &a, uint offset, uint bits) { vec_mtl r; EACH_MTL r.v[i] = f(a.v[i], offset, bits); return r; }
#define FUNCTION_INSERT_MTL(f) friend vec_mtl f(const vec_mtl &a, const vec_mtl &b, uint offset, uint bits) { vec_mtl r; EACH_MTL r.v[i] = f(a.v[i], b.v[i], offset, bits); return r; }

// Templates, and not of integers: a program may have such functions of its own.
template <typename T> struct only_of_floats_mtl { typedef T type; };
#define NO_FLOATS_MTL(t) template <> struct only_of_floats_mtl<t> {};
NO_FLOATS_MTL(bool) NO_FLOATS_MTL(char) NO_FLOATS_MTL(uchar) NO_FLOATS_MTL(short) NO_FLOATS_MTL(ushort)
NO_FLOATS_MTL(int) NO_FLOATS_MTL(uint) NO_FLOATS_MTL(long) NO_FLOATS_MTL(ulong)
#undef NO_FLOATS_MTL
#define OF_FLOATS_MTL template <typename E = T, typename = typename only_of_floats_mtl<E>::type>
#define VECTOR_dot_MTL OF_FLOATS_MTL friend T dot_mtl(const vec_mtl &a, const vec_mtl &b) { T s = (T)(AT_MTL(a, 0) * AT_MTL(b, 0)); for (int i = 1; i < N; i++) s = (T)(s + a.v[i] * b.v[i]); return s; }
#define VECTOR_length_squared_MTL OF_FLOATS_MTL friend T length_squared_mtl(const vec_mtl &a) { T s = (T)(AT_MTL(a, 0) * AT_MTL(a, 0)); for (int i = 1; i < N; i++) s = (T)(s + a.v[i] * a.v[i]); return s; }
#define VECTOR_length_MTL OF_FLOATS_MTL friend T length_mtl(const vec_mtl &a) { T s = (T)(AT_MTL(a, 0) * AT_MTL(a, 0)); for (int i = 1; i < N; i++) s = (T)(s + a.v[i] * a.v[i]); return (T)sqrt_mtl(s); }
#define VECTOR_distance_squared_MTL OF_FLOATS_MTL friend T distance_squared_mtl(const vec_mtl &a, const vec_mtl &b) { vec_mtl d = a - b; T s = (T)(AT_MTL(d, 0) * AT_MTL(d, 0)); for (int i = 1; i < N; i++) s = (T)(s + d.v[i] * d.v[i]); return s; }
#define VECTOR_distance_MTL OF_FLOATS_MTL friend T distance_mtl(const vec_mtl &a, const vec_mtl &b) { vec_mtl d = a - b; T s = (T)(AT_MTL(d, 0) * AT_MTL(d, 0)); for (int i = 1; i < N; i++) s = (T)(s + d.v[i] * d.v[i]); return (T)sqrt_mtl(s); }
#define VECTOR_normalize_MTL OF_FLOATS_MTL friend vec_mtl normalize_mtl(const vec_mtl &a) { T s = (T)(AT_MTL(a, 0) * AT_MTL(a, 0)); for (int i = 1; i < N; i++) s = (T)(s + a.v[i] * a.v[i]); return a * (T)rsqrt_mtl(s); }
#define VECTOR_cross_MTL OF_FLOATS_MTL friend vec_mtl cross_mtl(const vec_mtl &a, const vec_mtl &b) { return vec_mtl(AT_MTL(a, 1) * AT_MTL(b, 2) - AT_MTL(a, 2) * AT_MTL(b, 1), AT_MTL(a, 2) * AT_MTL(b, 0) - AT_MTL(a, 0) * AT_MTL(b, 2), AT_MTL(a, 0) * AT_MTL(b, 1) - AT_MTL(a, 1) * AT_MTL(b, 0)); }
#define VECTOR_reflect_MTL OF_FLOATS_MTL friend vec_mtl reflect_mtl(const vec_mtl &a, const vec_mtl &n) { T s = (T)(AT_MTL(a, 0) * AT_MTL(n, 0)); for (int i = 1; i < N; i++) s = (T)(s + a.v[i] * n.v[i]); return a - n * (T)(s + s); }
#define VECTOR_faceforward_MTL OF_FLOATS_MTL friend vec_mtl faceforward_mtl(const vec_mtl &n, const vec_mtl &a, const vec_mtl &r) { T s = (T)(AT_MTL(a, 0) * AT_MTL(r, 0)); for (int i = 1; i < N; i++) s = (T)(s + a.v[i] * r.v[i]); return s < (T)0 ? n : -n; }
#define VECTOR_refract_MTL OF_FLOATS_MTL friend vec_mtl refract_mtl(const vec_mtl &a, const vec_mtl &n, T eta) { \
    T d = (T)(AT_MTL(n, 0) * AT_MTL(a, 0)); \
    for (int i = 1; i < N; i++) d = (T)(d + n.v[i] * a.v[i]); \
    T k = (T)((T)1 - eta * eta * ((T)1 - d * d)); \
    return k < (T)0 ? vec_mtl((T)0) : a * eta - n * (T)(eta * d + sqrt_mtl(k)); \
  }
#define VECTOR_select_MTL friend vec_mtl select_mtl(const vec_mtl &a, const vec_mtl &b, const vec_mtl<bool, N> &c) { vec_mtl r; EACH_MTL r.v[i] = c.v[i] ? b.v[i] : a.v[i]; return r; }

template <typename T, int N> struct vec_mtl : storage_mtl<T, N> {
  typedef storage_mtl<T, N> base;
  VOLATILE_MTL(typedef vec_mtl<bool, N> truths_mtl;)
  using base::v;
  vec_mtl() = default;
#ifdef UNALIGNED_MTL
  constexpr vec_mtl(const vec_mtl &o) : base(is_aligned_mtl(&o) ? static_cast<const base &>(o) : base(o.v)) {}
  vec_mtl &operator=(const vec_mtl &o) {
    if (is_aligned_mtl(this) && is_aligned_mtl(&o)) this->whole_mtl = o.whole_mtl;
    else EACH_MTL v[i] = o.v[i];
    return *this;
  }
#else
  constexpr vec_mtl(const vec_mtl &o) = default;
  vec_mtl &operator=(const vec_mtl &o) { this->whole_mtl = o.whole_mtl; return *this; }
#endif
  template <typename A, typename require_mtl<is_scalar_mtl<A>::value>::type = 0> constexpr vec_mtl(A a) : base(element_mtl<T, A>::of(a)) {}
  template <typename A, typename require_mtl<is_enumerator_mtl<A>::value>::type = 0> constexpr vec_mtl(A a) : base((T)a) {}
  // Of a copy, which is loaded whole: the conversion of each component keeps the compiler from joining their loads.
  template <typename A> explicit constexpr vec_mtl(const vec_mtl<A, N> &o) : base(components_mtl<T, N>(vec_mtl<A, N>(o)).v) {}
  template <typename A, typename B, typename... C, typename require_mtl<is_part_mtl<T, A>::value && is_part_mtl<T, B>::value && (is_part_mtl<T, C>::value && ...)>::type = 0> constexpr vec_mtl(const A &a, const B &b, const C &...c) : base(components_mtl<T, N>(a, b, c...).v) {}
  template <typename A> explicit constexpr vec_mtl(const packed_vector_mtl<A, N> &o) : base(components_mtl<T, N>(o).v) {}
  template <typename V, typename A, int M, int... I> explicit vec_mtl(const swizzle_mtl<V, A, M, I...> &a) : vec_mtl(a.operator V()) {}
  // Of integers only.
  template <typename A = T, typename require_mtl<!is_real_mtl<A>::value>::type = 0> vec_mtl &operator++() { return *this += vec_mtl((T)1); }
  template <typename A = T, typename require_mtl<!is_real_mtl<A>::value>::type = 0> vec_mtl &operator--() { return *this -= vec_mtl((T)1); }
  template <typename A = T, typename require_mtl<!is_real_mtl<A>::value>::type = 0> vec_mtl operator++(int) { vec_mtl old = *this; ++*this; return old; }
  template <typename A = T, typename require_mtl<!is_real_mtl<A>::value>::type = 0> vec_mtl operator--(int) { vec_mtl old = *this; --*this; return old; }
  T &operator[](int i) { return v[i]; }
  constexpr const T &operator[](int i) const { return v[i]; }
  VOLATILE_MTL(
    template <typename V, typename require_mtl<is_same_type_mtl<V, vec_mtl>::value>::type = 0> vec_mtl(const volatile V &o) { EACH_MTL v[i] = o.v[i]; }
    template <typename A> explicit vec_mtl(const volatile vec_mtl<A, N> &o) { EACH_MTL v[i] = element_mtl<T, A>::of((A)o.v[i]); }
    volatile vec_mtl &operator=(const vec_mtl &o) volatile { EACH_MTL v[i] = o.v[i]; return *this; }
    volatile vec_mtl &operator=(const volatile vec_mtl &o) volatile { EACH_MTL v[i] = o.v[i]; return *this; }
    vec_mtl &operator=(const volatile vec_mtl &o) { EACH_MTL v[i] = o.v[i]; return *this; }
    volatile T &operator[](int i) volatile { return v[i]; }
    const volatile T &operator[](int i) const volatile { return v[i]; }
  )
  VECTOR_OPERATOR_MTL(+)
  VECTOR_OPERATOR_MTL(-)
  VECTOR_OPERATOR_MTL(*)
  VECTOR_OPERATOR_MTL(/)
  VECTOR_OPERATOR_MTL(%)
  VECTOR_OPERATOR_MTL(&)
  VECTOR_OPERATOR_MTL(|)
  VECTOR_OPERATOR_MTL(^)
  VECTOR_SHIFT_MTL(<<)
  VECTOR_SHIFT_MTL(>>)
  VECTOR_COMPARISON_MTL(==)
  VECTOR_COMPARISON_MTL(!=)
  VECTOR_COMPARISON_MTL(<)
  VECTOR_COMPARISON_MTL(>)
  VECTOR_COMPARISON_MTL(<=)
  VECTOR_COMPARISON_MTL(>=)
  VECTOR_COMPARISON_MTL(&&)
  VECTOR_COMPARISON_MTL(||)
  VECTOR_UNARY_MTL(-)
  VECTOR_UNARY_MTL(+)
  VECTOR_UNARY_MTL(~)
  VECTOR_UNARY_MTL(!)
  VECTOR_FUNCTIONS_MTL
};
#define VECTOR_TYPES_MTL(t) \
  typedef vec_mtl<t, 2> t##2_mtl; \
  typedef vec_mtl<t, 3> t##3_mtl; \
  typedef vec_mtl<t, 4> t##4_mtl;
VECTOR_TYPES_MTL(bool)
VECTOR_TYPES_MTL(char)
VECTOR_TYPES_MTL(uchar)
VECTOR_TYPES_MTL(short)
VECTOR_TYPES_MTL(ushort)
VECTOR_TYPES_MTL(int)
VECTOR_TYPES_MTL(uint)
VECTOR_TYPES_MTL(long)
VECTOR_TYPES_MTL(ulong)
VECTOR_TYPES_MTL(half)
VECTOR_TYPES_MTL(float)

//@ wrap_mtl
// a << wrap_mtl() << b and a <<= count_mtl(b): the count modulo the width of the promoted a, as in Metal. Classes do so
// themselves.
struct wrap_mtl {};
template <typename A> struct shifted_mtl { A value; };
template <typename B> inline constexpr count_mtl_of<B> count_mtl(const B &b) { return {b}; }
template <typename A, typename B> inline constexpr auto wrapped_mtl(const A &a, const B &b) {
  if constexpr (__is_class(A) || __is_union(A) || __is_class(B) || __is_union(B)) return b;
  else return (uint)b & (sizeof(+a) * 8 - 1);
}
#define WRAPPING_SHIFT_MTL(op) \
  template <typename A> inline constexpr shifted_mtl<A> operator op(A &&a, wrap_mtl) { return {(A &&)a}; } \
  template <typename A, typename B> inline constexpr decltype(auto) operator op(const shifted_mtl<A> &a, const B &b) { return a.value op wrapped_mtl(a.value, b); } \
  template <typename A, typename B> inline A &operator op##=(A &a, const count_mtl_of<B> &b) { return a op##= wrapped_mtl(a, b.value); } \
  template <typename T, int N, typename B> inline packed_vector_mtl<T, N> &operator op##=(packed_vector_mtl<T, N> &a, const count_mtl_of<B> &b) { return a op##= b.value; }
WRAPPING_SHIFT_MTL(<<)
WRAPPING_SHIFT_MTL(>>)
#undef WRAPPING_SHIFT_MTL

//@ whole_mtl
// (v.zyx).x: a view has no views of its own.
template <typename V> inline constexpr V whole_mtl(V v) { return v; }
template <typename V, typename T, int N, int... I> inline V whole_mtl(swizzle_mtl<V, T, N, I...> v) { return v; }

//@ vec
// vec_mtl is always there; this names it.

//@ construct_mtl
template <typename T, typename... A> inline T construct_mtl(const A &...a) { return T(a...); }
//@ construct_all_mtl : construct_mtl
template <typename T, typename... A> inline T construct_all_mtl(const A &...a) { return construct_mtl<T>(a...); }
//@ construct_one_mtl
template <typename T, typename A> inline T construct_one_mtl(const A &a) { return T(a); }

//@ any all
inline bool any_mtl(bool x) { return x; }
inline bool all_mtl(bool x) { return x; }
template <typename T, int N> inline bool any_mtl(const vec_mtl<T, N> &a) { bool r = false; EACH_MTL r = r || a.v[i] != (T)0; return r; }
template <typename T, int N> inline bool all_mtl(const vec_mtl<T, N> &a) { bool r = true; EACH_MTL r = r && a.v[i] != (T)0; return r; }
//@ select
template <typename T> inline T select_mtl(T a, T b, bool c) { return c ? b : a; }
