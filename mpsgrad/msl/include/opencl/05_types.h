// Types and what moves between them.
//@ *
template <> struct has_fraction_mtl<half> { static constexpr bool value = true; };
inline uint position_mtl(size_t x) { __builtin_assume(x <= 0x7fffffffUL); return (uint)x; }
inline uint local_position_mtl(size_t x) { __builtin_assume(x <= 1024); return (uint)x; }
inline uint lane_mtl(uint x) { __builtin_assume(x <= 32); return x; }
inline uint lane_index_mtl() { return lane_mtl(get_sub_group_local_id()); }
template <typename T, int N> using vec_mtl = T __attribute__((ext_vector_type(N)));
// Vectors of what is no element of the compiler's own: bool and bfloat.
template <typename T, int N> struct class_vector_mtl;
template <int N> using bool_vector_mtl = class_vector_mtl<bool, N>;
// vec<T, N> of any T. A template that takes it cannot deduce T: it takes the compiler's vectors, and a copy of it these.
template <typename T, int N, bool = __is_arithmetic(T)> struct vector_of_mtl {};
template <typename T, int N> struct vector_of_mtl<T, N, true> { typedef vec_mtl<T, N> type; };
template <int N> struct vector_of_mtl<bool, N, true> { typedef bool_vector_mtl<N> type; };
template <typename T, int N> using vector_mtl = typename vector_of_mtl<T, N>::type;
template <typename T, int N, typename V = vec_mtl<T, N>> struct packed_vector_mtl;
template <typename V, typename T, int N, int... I> struct swizzle_mtl;
template <typename A> constexpr inline A unpack_mtl(A a) { return a; }
template <typename V, typename E, int N> constexpr inline V converted_vector_mtl(vec_mtl<E, N> x) {
#ifdef TOGETHER_MTL
  // Threads that are computed together convert vectors one after another, but a component all at once; not halves.
  constexpr bool is_of_halves = __is_same(E, half) || __is_same(V, vec_mtl<half, N>);
  typedef decltype(unpack_mtl(V()[0])) element;
  if ((!is_of_halves || bits_of_mtl<element>::value != 0) && !__builtin_is_constant_evaluated()) {
    V r = {};
    for (int i = 0; i < N; i++) r[i] = whole_number_mtl<element>(0, x[i]);
    return r;
  }
#endif
  return __builtin_convertvector(x, V);
}
// V(x) of a scalar x, or of an object of a class that converts to V. Intel's compiler crashes at operators of vectors.
template <typename V, typename T, typename E, int = sizeof(char[__is_class(E) ? 1 : -1])> constexpr inline auto spread_mtl(E x, int) -> decltype(x.operator V()) { return x.operator V(); }
template <typename E> struct count_mtl { static constexpr int value = 1; };
template <typename E, int N> struct count_mtl<vec_mtl<E, N>> { static constexpr int value = N; };
template <typename V, typename T, typename E> constexpr inline V spread_mtl(E x, long) {
  static_assert(count_mtl<E>::value <= count_mtl<V>::value, "too many elements in vector initialization");
  static_assert(count_mtl<E>::value == 1 || count_mtl<E>::value >= count_mtl<V>::value, "too few elements in vector initialization");
#ifdef TOGETHER_MTL
  if constexpr (count_mtl<E>::value == 1) return (V)((T)whole_number_mtl<T>(0, x));
#else
  if constexpr (count_mtl<E>::value == 1) return (V)((T)x);
#endif
  else return V();
}

//@ vec
// vec_mtl is always there; this names it.

//@ declared_mtl
// decltype(x) of a thread's object x, without the address space that its name has here.
template <typename T> struct declared_type_mtl { typedef T type; };
template <typename T> struct declared_type_mtl<__private T> { typedef T type; };
template <typename V, typename T, int N, int... I> struct declared_type_mtl<swizzle_mtl<V, T, N, I...>> { typedef V type; };
template <typename T> using declared_mtl = typename declared_type_mtl<T>::type;

//@ scalar_mtl
template <bool C> struct require_mtl {};
template <> struct require_mtl<true> { typedef int type; };
template <typename T> struct is_scalar_mtl { static constexpr bool value = false; };
#define SCALAR_MTL(t) template <> struct is_scalar_mtl<t> { static constexpr bool value = true; };
SCALAR_MTL(bool)
SCALAR_MTL(char)
SCALAR_MTL(uchar)
SCALAR_MTL(short)
SCALAR_MTL(ushort)
SCALAR_MTL(int)
SCALAR_MTL(uint)
SCALAR_MTL(long)
SCALAR_MTL(ulong)
SCALAR_MTL(half)
SCALAR_MTL(float)
#define SCALARS_ONLY_MTL(A) typename require_mtl<is_scalar_mtl<A>::value>::type = 0

//@ of_temporaries_mtl : scalar_mtl
// Calls f, which takes named objects of a thread, with such objects that have the values of temporary ones.
#define of_temporaries_mtl(f) \
  template <typename... A> inline constexpr auto f##_of_named_mtl(A... a) { return f(a...); } \
  template <typename... A, typename require_mtl<!(__is_lvalue_reference(A) && ...)>::type = 0> \
  inline constexpr auto f(A &&...a) { return f##_of_named_mtl<A...>(a...); }

//@ of_another_mtl : scalar_mtl
// Begins a function of an A &&, a temporary T.
#define of_another_mtl(T) template <typename A, typename require_mtl<__is_same(A, T)>::type = 0>

//@ swizzle_mtl : scalar_mtl lift_mtl
struct lift_mtl {};
// v.xz and its like of a vector that is a class: a view of some components, which reads as a vector and can be assigned.
template <typename V, typename T, int N, int... I> struct swizzle_mtl {
  T v[N];
  swizzle_mtl() = default;
  operator V() const { return V{v[I]...}; }
  swizzle_mtl &operator=(const swizzle_mtl &o) { return *this = o.operator V(); }
  swizzle_mtl &operator=(V o) {
    int k = 0;
    ((v[I] = o[k++]), ...);
    return *this;
  }
  T operator[](int i) const { const int place[] = {I...}; return v[place[i]]; }
#define ASSIGNMENT_MTL(op) template <typename A> swizzle_mtl &operator op##=(A a) { return *this = V(operator V() op lift_mtl() op a); }
  ASSIGNMENT_MTL(+)
  ASSIGNMENT_MTL(-)
  ASSIGNMENT_MTL(*)
  ASSIGNMENT_MTL(/)
  ASSIGNMENT_MTL(%)
  ASSIGNMENT_MTL(&)
  ASSIGNMENT_MTL(|)
  ASSIGNMENT_MTL(^)
#undef ASSIGNMENT_MTL
};

//@ copy_mtl
template <typename T> inline constexpr T copy_mtl(T x) { return x; }

//@ whole_mtl : swizzle_mtl
// (v.zyx).x: a view has no views of its own.
template <typename V> inline constexpr V whole_mtl(V v) { return v; }
template <typename V, typename T, int N, int... I> inline V whole_mtl(swizzle_mtl<V, T, N, I...> v) { return v; }

//@ components_mtl : swizzle_mtl
// The components of several values in a row.
template <typename T, int N> struct components_mtl {
  T v[N] = {};
  int n = 0;
  template <typename A, SCALARS_ONLY_MTL(A)> constexpr void put(A a) { v[n++] = (T)a; }
  template <typename E, int M> constexpr void put(vec_mtl<E, M> a) { for (int i = 0; i < M; i++) v[n++] = (T)a[i]; }
  template <typename E, int M> constexpr void put(class_vector_mtl<E, M> a) { for (int i = 0; i < M; i++) v[n++] = (T)a.v[i]; }
  template <typename E, int M, typename V> constexpr void put(packed_vector_mtl<E, M, V> a) { for (int i = 0; i < M; i++) v[n++] = (T)a.v[i]; }
  template <typename V, typename E, int M, int... I> constexpr void put(swizzle_mtl<V, E, M, I...> a) { put(a.operator V()); }
  template <typename... A> constexpr components_mtl(A... a) { (put(a), ...); }
  constexpr components_mtl(const T (&a)[N]) { for (int i = 0; i < N; i++) v[i] = a[i]; }
};

//@ bool2 bool3 bool4 bool_vector_mtl : components_mtl
// The compiler's own comparisons of vectors give masks of integers; Metal's give truth values, one byte each.
template <int N> struct truth_storage_mtl;
// Of the eight that a thread has of a square of 16 x 16; they have no names.
template <> struct alignas(8) truth_storage_mtl<8> {
  bool v[8];
  truth_storage_mtl() = default;
  constexpr truth_storage_mtl(bool a, bool b, bool c, bool d, bool e, bool f, bool g, bool h) : v{a, b, c, d, e, f, g, h} {}
};
template <> struct alignas(2) truth_storage_mtl<2> {
  union { bool v[2]; struct { bool x, y; }; struct { bool r, g; }; BOOL_SWIZZLES_2_MTL };
  truth_storage_mtl() = default;
  constexpr truth_storage_mtl(bool a, bool b) : v{a, b} {}
};
template <> struct alignas(4) truth_storage_mtl<3> {
  union { bool v[3]; struct { bool x, y, z; }; struct { bool r, g, b; }; BOOL_SWIZZLES_3_MTL };
  truth_storage_mtl() = default;
  constexpr truth_storage_mtl(bool a, bool b, bool c) : v{a, b, c} {}
};
template <> struct alignas(4) truth_storage_mtl<4> {
  union { bool v[4]; struct { bool x, y, z, w; }; struct { bool r, g, b, a; }; BOOL_SWIZZLES_4_MTL };
  truth_storage_mtl() = default;
  constexpr truth_storage_mtl(bool a, bool b, bool c, bool d) : v{a, b, c, d} {}
};
template <int N> struct class_vector_mtl<bool, N> : truth_storage_mtl<N> {
  typedef truth_storage_mtl<N> base;
  using base::v;
  class_vector_mtl() = default;
  constexpr class_vector_mtl(const class_vector_mtl &o) : class_vector_mtl(components_mtl<bool, N>(o.v), places<N>()) {}
  class_vector_mtl &operator=(const class_vector_mtl &o) { for (int i = 0; i < N; i++) v[i] = o.v[i]; return *this; }
  template <typename A, SCALARS_ONLY_MTL(A)> constexpr class_vector_mtl(A a) : class_vector_mtl(places<N>(), (bool)a) {}
  template <typename A, typename B, typename... C> constexpr class_vector_mtl(A a, B b, C... c) : class_vector_mtl(components_mtl<bool, N>(a, b, c...), places<N>()) {}
  template <typename E> explicit constexpr class_vector_mtl(vec_mtl<E, N> a) : class_vector_mtl(components_mtl<bool, N>(a), places<N>()) {}
  template <typename E> explicit constexpr class_vector_mtl(class_vector_mtl<E, N> a) : class_vector_mtl(components_mtl<bool, N>(a), places<N>()) {}
  bool &operator[](int i) { return v[i]; }
  constexpr bool operator[](int i) const { return v[i]; }
  template <typename E> explicit operator vec_mtl<E, N>() const { return convert<E>(); }
  template <typename E> vec_mtl<E, N> convert() const { vec_mtl<E, N> r; for (int i = 0; i < N; i++) r[i] = (E)v[i]; return r; }
  vec_mtl<char, N> mask() const { return -convert<char>(); }
  friend class_vector_mtl operator!(class_vector_mtl a) { class_vector_mtl r; for (int i = 0; i < N; i++) r.v[i] = !a.v[i]; return r; }
#define TRUTH_OPERATOR_MTL(op, how) \
  friend class_vector_mtl operator op(class_vector_mtl a, class_vector_mtl b) { class_vector_mtl r; for (int i = 0; i < N; i++) r.v[i] = a.v[i] how b.v[i]; return r; }
  TRUTH_OPERATOR_MTL(&&, &)
  TRUTH_OPERATOR_MTL(||, |)
  TRUTH_OPERATOR_MTL(&, &)
  TRUTH_OPERATOR_MTL(|, |)
  TRUTH_OPERATOR_MTL(^, ^)
  TRUTH_OPERATOR_MTL(==, ==)
  TRUTH_OPERATOR_MTL(!=, !=)
#undef TRUTH_OPERATOR_MTL
  friend class_vector_mtl &operator&=(class_vector_mtl &a, class_vector_mtl b) { return a = a & b; }
  friend class_vector_mtl &operator|=(class_vector_mtl &a, class_vector_mtl b) { return a = a | b; }
  friend class_vector_mtl &operator^=(class_vector_mtl &a, class_vector_mtl b) { return a = a ^ b; }
 private:
  template <int> struct places {};
  constexpr class_vector_mtl(places<2>, bool a) : base(a, a) {}
  constexpr class_vector_mtl(places<3>, bool a) : base(a, a, a) {}
  constexpr class_vector_mtl(places<4>, bool a) : base(a, a, a, a) {}
  constexpr class_vector_mtl(places<8>, bool a) : base(a, a, a, a, a, a, a, a) {}
  constexpr class_vector_mtl(components_mtl<bool, 2> t, places<2>) : base(t.v[0], t.v[1]) {}
  constexpr class_vector_mtl(components_mtl<bool, 3> t, places<3>) : base(t.v[0], t.v[1], t.v[2]) {}
  constexpr class_vector_mtl(components_mtl<bool, 4> t, places<4>) : base(t.v[0], t.v[1], t.v[2], t.v[3]) {}
  constexpr class_vector_mtl(components_mtl<bool, 8> t, places<8>) : base(t.v[0], t.v[1], t.v[2], t.v[3], t.v[4], t.v[5], t.v[6], t.v[7]) {}
};
typedef bool_vector_mtl<2> bool2;
typedef bool_vector_mtl<3> bool3;
typedef bool_vector_mtl<4> bool4;
// What a function or an operator of the compiler says is true.
template <typename T> constexpr inline T truth_of_mtl(T x) { return x; }
template <typename E, int N> constexpr inline bool_vector_mtl<N> truth_of_mtl(vec_mtl<E, N> mask) { return bool_vector_mtl<N>(mask); }

//@ lift_mtl : scalar_mtl bool_vector_mtl
// a < lift_mtl() < b: what Metal means by a < b where one of them may be a vector. A scalar becomes an element of it.
template <typename A> struct left_mtl { A value; };
// Whether a program made the class A, which may have operators that are found where it uses them only.
template <typename A> struct is_of_program_mtl { static constexpr bool value = __is_class(A) && !is_scalar_mtl<A>::value; };
template <typename T, int N> struct is_of_program_mtl<class_vector_mtl<T, N>> { static constexpr bool value = false; };
template <typename T, int N, typename V> struct is_of_program_mtl<packed_vector_mtl<T, N, V>> { static constexpr bool value = false; };
template <typename V, typename T, int N, int... I> struct is_of_program_mtl<swizzle_mtl<V, T, N, I...>> { static constexpr bool value = false; };
template <typename A, bool = is_of_program_mtl<A>::value> struct lifted_mtl { typedef left_mtl<A> type; };
template <typename A> struct lifted_mtl<A, true> { typedef A type; };
template <typename A, typename B> struct operands_mtl { typedef A first; typedef B second; };
template <typename E, typename S> struct converted_mtl { typedef E type; };
template <typename E> struct converted_mtl<E, float> { static_assert((E)0.5f != (E)0, "invalid operands to binary expression: a vector of integers and a floating-point scalar"); typedef E type; };
template <typename E> struct converted_mtl<E, half> { static_assert((E)0.5f != (E)0, "invalid operands to binary expression: a vector of integers and a floating-point scalar"); typedef E type; };
// An enumerator without a scope counts as a scalar.
template <typename E, int N, typename S, bool = is_scalar_mtl<S>::value || (__is_enum(S) && __is_convertible_to(S, int))> struct with_scalar_mtl { typedef S type; };
template <typename E, int N, typename S> struct with_scalar_mtl<E, N, S, true> { typedef typename converted_mtl<E, S>::type type; };
template <typename E, int N, typename B> struct operands_mtl<vec_mtl<E, N>, B> { typedef vec_mtl<E, N> first; typedef typename with_scalar_mtl<E, N, B>::type second; };
template <typename A, typename E, int N> struct operands_mtl<A, vec_mtl<E, N>> { typedef typename with_scalar_mtl<E, N, A>::type first; typedef vec_mtl<E, N> second; };
template <typename E, int N, typename F, int M> struct operands_mtl<vec_mtl<E, N>, vec_mtl<F, M>> { typedef vec_mtl<E, N> first; typedef vec_mtl<F, M> second; };
#define LIFTED_WITH_MTL(op, B, ...) \
  template <__VA_ARGS__> constexpr inline auto operator op(left_mtl<A> a, B b) { \
    typedef operands_mtl<A, B> types; \
    return (typename types::first)a.value op (typename types::second)b; \
  }
// With a float on its own, too: a program's operator may take that and any type.
#define LIFTED_OPERATOR_MTL(op) \
  template <typename A> constexpr inline typename lifted_mtl<A>::type operator op(A a, lift_mtl) { return {a}; } \
  LIFTED_WITH_MTL(op, B, typename A, typename B) \
  LIFTED_WITH_MTL(op, float, typename A)
LIFTED_OPERATOR_MTL(+)
LIFTED_OPERATOR_MTL(-)
LIFTED_OPERATOR_MTL(*)
LIFTED_OPERATOR_MTL(/)
LIFTED_OPERATOR_MTL(%)
LIFTED_OPERATOR_MTL(&)
LIFTED_OPERATOR_MTL(|)
LIFTED_OPERATOR_MTL(^)
#undef LIFTED_OPERATOR_MTL
#undef LIFTED_WITH_MTL
#define LIFTED_COMPARISON_MTL(op) \
  template <typename A> constexpr inline typename lifted_mtl<A>::type operator op(A a, lift_mtl) { return {a}; } \
  template <typename A, typename B> constexpr inline auto operator op(left_mtl<A> a, B b) { \
    typedef operands_mtl<A, B> types; \
    return truth_of_mtl((typename types::first)a.value op (typename types::second)b); \
  }
LIFTED_COMPARISON_MTL(<)
LIFTED_COMPARISON_MTL(>)
LIFTED_COMPARISON_MTL(<=)
LIFTED_COMPARISON_MTL(>=)
LIFTED_COMPARISON_MTL(==)
LIFTED_COMPARISON_MTL(!=)
#undef LIFTED_COMPARISON_MTL

//@ convert_operand_mtl : scalar_mtl
// The right side of a compound assignment to an L: a scalar becomes an element of a vector.
template <typename A> A value_mtl(A a);
template <typename L> struct convert_operand_mtl_of { template <typename B> static constexpr B convert(B b) { return b; } };
// What a class converts to is not found where a pointer is moved by it.
#define POINTER_MTL(space) \
  template <typename T> struct convert_operand_mtl_of<space T *> { template <typename B> static constexpr auto convert(B b) { if constexpr (__is_class(B)) return (long)b; else return b; } };
POINTER_MTL(__global)
POINTER_MTL(__constant)
POINTER_MTL(__local)
POINTER_MTL(__private)
#undef POINTER_MTL
template <typename E, int N> struct convert_operand_mtl_of<vec_mtl<E, N>> {
  template <typename B, SCALARS_ONLY_MTL(B)> static constexpr E convert(B b) { return (E)b; }
  static constexpr vec_mtl<E, N> convert(vec_mtl<E, N> v) { return v; }
  static constexpr vec_mtl<E, N> convert(packed_vector_mtl<E, N> v) { return v; }
  template <int M, int... I> static constexpr vec_mtl<E, N> convert(swizzle_mtl<vec_mtl<E, N>, E, M, I...> v) { return v; }
};
template <typename L, typename B> constexpr inline auto convert_operand_mtl(B b) { return convert_operand_mtl_of<L>::convert(b); }

//@ construct_mtl
// vec<T, N>(a, b, ...) where the type is a name whose meaning only the compiler knows.
template <typename T, typename... A> inline constexpr T construct_mtl(A... a) { return T{unpack_mtl(a)...}; }

//@ construct_one_mtl
template <typename T> struct constructor_mtl { template <typename A> static constexpr T make(A a) { return T(a); } };
template <typename T, int N> struct constructor_mtl<vec_mtl<T, N>> {
  static constexpr vec_mtl<T, N> make(vec_mtl<T, N> a) { return a; }
  template <typename A> static constexpr vec_mtl<T, N> make(A a) { return of_value(a, 0); }
  template <typename A> static constexpr auto of_value(A a, int) -> decltype(a.operator vec_mtl<T, N>()) { return a.operator vec_mtl<T, N>(); }
  template <typename A> static constexpr vec_mtl<T, N> of_value(A a, long) { return (vec_mtl<T, N>)((T)a); }
  template <typename E> static constexpr vec_mtl<T, N> make(vec_mtl<E, N> a) { return __builtin_convertvector(a, vec_mtl<T, N>); }
  template <typename E, int M> static constexpr vec_mtl<T, N> make(class_vector_mtl<E, M> a) { return a.template convert<T>(); }
  template <typename E, typename V> static constexpr vec_mtl<T, N> make(packed_vector_mtl<E, N, V> a) { return make(unpack_mtl(a)); }
  template <typename V, typename E, int M, int... I> static constexpr vec_mtl<T, N> make(swizzle_mtl<V, E, M, I...> a) { return make(a.operator V()); }
};
template <typename T, typename A> inline constexpr T construct_one_mtl(A a) { return constructor_mtl<T>::make(a); }

//@ construct_all_mtl : construct_mtl construct_one_mtl
// The same of all that a template's pack has.
template <typename T, typename... A> inline constexpr T construct_all_mtl(A... a) {
  if constexpr (sizeof...(A) == 0) return T();
  else if constexpr (sizeof...(A) == 1) return construct_one_mtl<T>(a...);
  else return construct_mtl<T>(a...);
}

//@ cast_mtl : construct_one_mtl
// (float4)x, spelled cast_mtl<float4>()->*x: the operator ->* binds looser than a suffix and tighter than a product.
template <typename T> struct cast_mtl { template <typename A> T operator->*(A a) const { return construct_one_mtl<T>(a); } };

//@ HUGE_VALH
#define HUGE_VALH ((half)INFINITY)
//@ infinity_mtl
#define INFINITY_MTL __builtin_inff()
#define NAN_MTL __builtin_nanf("")

//@ otherwise_mtl : copy_mtl
// a ?: b
template <typename A, typename F> inline auto otherwise_mtl(A a, F f) { return a ? copy_mtl(a) : copy_mtl(f()); }
