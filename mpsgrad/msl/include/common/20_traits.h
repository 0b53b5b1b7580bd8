// <metal_type_traits> and <metal_limits>.
//@ integral_constant bool_constant true_type false_type traits_mtl
template <typename T, T V> struct integral_constant {
  static constexpr T value = V;
  typedef T value_type;
  constexpr operator T() const { return V; }
  constexpr T operator()() const { return V; }
};
template <bool V> using bool_constant = integral_constant<bool, V>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;

//@ enable_if enable_if_t
template <bool C, typename T = void> struct enable_if {};
template <typename T> struct enable_if<true, T> { typedef T type; };
template <bool C, typename T = void> using enable_if_t = typename enable_if<C, T>::type;

//@ conditional conditional_t
template <bool C, typename A, typename B> struct conditional { typedef A type; };
template <typename A, typename B> struct conditional<false, A, B> { typedef B type; };
template <bool C, typename A, typename B> using conditional_t = typename conditional<C, A, B>::type;

//@ void_t
template <typename...> using void_t = void;

//@ remove_const remove_cv remove_cv_t remove_reference remove_reference_t remove_const_t decay decay_t remove_volatile remove_volatile_t
template <typename T> struct remove_const { typedef T type; };
template <typename T> struct remove_const<const T> { typedef T type; };
template <typename T> using remove_const_t = typename remove_const<T>::type;
template <typename T> struct remove_volatile { typedef T type; };
template <typename T> struct remove_volatile<volatile T> { typedef T type; };
template <typename T> using remove_volatile_t = typename remove_volatile<T>::type;
template <typename T> struct remove_cv { typedef typename remove_const<typename remove_volatile<T>::type>::type type; };
template <typename T> using remove_cv_t = typename remove_cv<T>::type;
template <typename T> struct remove_reference { typedef T type; };
template <typename T> struct remove_reference<T &> { typedef T type; };
template <typename T> struct remove_reference<T &&> { typedef T type; };
#ifdef __OPENCL_VERSION__
// An object of a thread has the type without its address space.
template <typename T> struct remove_reference<__private T &> { typedef T type; };
#endif
template <typename T> using remove_reference_t = typename remove_reference<T>::type;
template <typename T> struct decay { typedef typename remove_cv<typename remove_reference<T>::type>::type type; };
template <typename T> using decay_t = typename decay<T>::type;

//@ remove_addrspace remove_addrspace_t
template <typename T> struct remove_addrspace { typedef T type; };
#ifdef __OPENCL_VERSION__
template <typename T> struct remove_addrspace<__private T> { typedef T type; };
template <typename T> struct remove_addrspace<__global T> { typedef T type; };
template <typename T> struct remove_addrspace<__local T> { typedef T type; };
template <typename T> struct remove_addrspace<__constant T> { typedef T type; };
#endif
template <typename T> using remove_addrspace_t = typename remove_addrspace<T>::type;

//@ is_same is_same_v : traits_mtl
template <typename A, typename B> struct is_same : false_type {};
template <typename A> struct is_same<A, A> : true_type {};
template <typename A, typename B> constexpr bool is_same_v = is_same<A, B>::value;

//@ is_integral is_integral_v is_arithmetic is_arithmetic_v is_unsigned is_unsigned_v is_signed is_signed_v is_floating_point is_floating_point_v make_unsigned make_unsigned_t make_signed make_signed_t : traits_mtl
template <typename T> struct is_floating_point : false_type {};
template <> struct is_floating_point<float> : true_type {};
template <> struct is_floating_point<half> : true_type {};
template <typename T> struct is_floating_point<const T> : is_floating_point<T> {};
template <typename T> constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <typename T> struct is_integral : false_type {};
template <typename T> struct is_integral<const T> : is_integral<T> {};
template <typename T> struct make_unsigned;
template <typename T> struct make_signed;
#define INTEGRAL_MTL(s, u) \
  template <> struct is_integral<s> : true_type {}; \
  template <> struct is_integral<u> : true_type {}; \
  template <> struct make_unsigned<s> { typedef u type; }; \
  template <> struct make_unsigned<u> { typedef u type; }; \
  template <> struct make_signed<s> { typedef s type; }; \
  template <> struct make_signed<u> { typedef s type; };
INTEGRAL_MTL(char, uchar)
INTEGRAL_MTL(short, ushort)
INTEGRAL_MTL(int, uint)
INTEGRAL_MTL(long, ulong)
#undef INTEGRAL_MTL
template <> struct is_integral<bool> : true_type {};
template <typename T> constexpr bool is_integral_v = is_integral<T>::value;
template <typename T> using make_unsigned_t = typename make_unsigned<T>::type;
template <typename T> using make_signed_t = typename make_signed<T>::type;
template <typename T> struct is_arithmetic : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template <typename T> constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <typename T, bool = is_arithmetic<T>::value> struct is_unsigned : false_type {};
template <typename T> struct is_unsigned<T, true> : bool_constant<(T(0) < T(-1))> {};
template <typename T> constexpr bool is_unsigned_v = is_unsigned<T>::value;
template <typename T, bool = is_arithmetic<T>::value> struct is_signed : false_type {};
template <typename T> struct is_signed<T, true> : bool_constant<(T(-1) < T(0))> {};
template <typename T> constexpr bool is_signed_v = is_signed<T>::value;

//@ is_pointer is_pointer_v : traits_mtl
template <typename T> struct is_pointer : false_type {};
template <typename T> struct is_pointer<T *> : true_type {};
#ifdef __OPENCL_VERSION__
template <typename T> struct is_pointer<__global T *> : true_type {};
template <typename T> struct is_pointer<__local T *> : true_type {};
template <typename T> struct is_pointer<__private T *> : true_type {};
#endif
template <typename T> constexpr bool is_pointer_v = is_pointer<T>::value;

//@ is_const is_const_v : traits_mtl
template <typename T> struct is_const : false_type {};
template <typename T> struct is_const<const T> : true_type {};
template <typename T> constexpr bool is_const_v = is_const<T>::value;

//@ is_void is_void_v : traits_mtl
template <typename T> struct is_void : false_type {};
template <> struct is_void<void> : true_type {};
template <typename T> constexpr bool is_void_v = is_void<T>::value;

//@ is_empty is_empty_v : traits_mtl
template <typename T> struct is_empty : bool_constant<__is_empty(T)> {};
template <typename T> constexpr bool is_empty_v = is_empty<T>::value;
//@ is_convertible is_convertible_v is_enum is_enum_v is_class is_class_v is_trivially_copyable is_trivially_copyable_v : traits_mtl scalar_mtl
template <typename A, typename B> struct is_convertible : bool_constant<__is_convertible_to(A, B)> {};
template <typename A, typename B> constexpr bool is_convertible_v = is_convertible<A, B>::value;
template <typename T> struct is_enum : bool_constant<__is_enum(T)> {};
template <typename T> constexpr bool is_enum_v = is_enum<T>::value;
// Of what Metal's compiler has itself some are classes here.
template <typename T> struct is_built_in_mtl : bool_constant<is_scalar_mtl<T>::value> {};
template <typename T> struct is_built_in_mtl<const T> : is_built_in_mtl<T> {};
#ifdef __OPENCL_VERSION__
template <typename T, int N> struct is_built_in_mtl<class_vector_mtl<T, N>> : true_type {};
#else
template <typename T, int N> struct vec_mtl;
template <typename T, int N, typename V> struct packed_vector_mtl;
template <typename T, int N> struct is_built_in_mtl<vec_mtl<T, N>> : true_type {};
#endif
template <typename T, int N, typename V> struct is_built_in_mtl<packed_vector_mtl<T, N, V>> : true_type {};
template <typename T> struct is_class : bool_constant<__is_class(T) && !is_built_in_mtl<T>::value> {};
template <typename T> constexpr bool is_class_v = is_class<T>::value;
template <typename T> struct is_trivially_copyable : bool_constant<__is_trivially_copyable(T) || is_built_in_mtl<T>::value> {};
template <typename T> constexpr bool is_trivially_copyable_v = is_trivially_copyable<T>::value;

//@ is_scalar is_scalar_v : is_arithmetic is_pointer is_enum
template <typename T> struct is_scalar : bool_constant<is_arithmetic<T>::value || is_pointer<T>::value || is_enum<T>::value> {};
template <typename T> constexpr bool is_scalar_v = is_scalar<T>::value;

//@ vec_elements is_vector is_vector_v : traits_mtl
// How many components a vector has: none where it is a scalar.
#ifndef __OPENCL_VERSION__
template <typename T, int N> struct vec_mtl;
#endif
template <typename T> struct vec_elements : integral_constant<int, 0> {};
template <typename T> struct vec_elements<const T> : vec_elements<T> {};
template <typename T, int N> struct vec_elements<vec_mtl<T, N>> : integral_constant<int, N> {};
#ifdef __OPENCL_VERSION__
template <typename T, int N> struct vec_elements<class_vector_mtl<T, N>> : integral_constant<int, N> {};
#endif
template <typename T> struct is_vector : bool_constant<vec_elements<T>::value != 0> {};
template <typename T> constexpr bool is_vector_v = is_vector<T>::value;

// What functions of simdgroups take.
//@ __is_valid_simdgroup_type : is_integral is_same
template <typename T> struct __is_valid_simdgroup_type : bool_constant<is_arithmetic<T>::value && !is_same<T, bool>::value && sizeof(T) <= 4> {};
template <typename T> struct __is_valid_simdgroup_type<const T> : __is_valid_simdgroup_type<T> {};
#ifndef __OPENCL_VERSION__
template <typename T, int N> struct vec_mtl;
#endif
template <typename T, int N> struct __is_valid_simdgroup_type<vec_mtl<T, N>> : __is_valid_simdgroup_type<T> {};

//@ underlying_type underlying_type_t
template <typename T> struct underlying_type { typedef __underlying_type(T) type; };
template <typename T> using underlying_type_t = typename underlying_type<T>::type;

//@ conjunction conjunction_v disjunction disjunction_v negation negation_v : traits_mtl conditional
template <typename...> struct conjunction : true_type {};
template <typename A, typename... B> struct conjunction<A, B...> : conditional_t<bool(A::value), conjunction<B...>, false_type> {};
template <typename...> struct disjunction : false_type {};
template <typename A, typename... B> struct disjunction<A, B...> : conditional_t<bool(A::value), true_type, disjunction<B...>> {};
template <typename T> struct negation : bool_constant<!bool(T::value)> {};
template <typename... A> constexpr bool conjunction_v = conjunction<A...>::value;
template <typename... A> constexpr bool disjunction_v = disjunction<A...>::value;
template <typename T> constexpr bool negation_v = negation<T>::value;

//@ declval
template <typename T> T &&declval();

// Every function called min or max is renamed where those of the library are.
// Programs specialise _numeric_limits_impl, the base that numeric_limits has in Metal's own header, for classes.
//@ numeric_limits _numeric_limits_impl : infinity_mtl
template <typename T> struct _numeric_limits_impl { static constexpr bool is_specialized = false; };
template <typename T> struct numeric_limits : _numeric_limits_impl<T> {};
#define INTEGER_LIMITS_MTL(t, low, high, digits_, sign) \
  template <> struct numeric_limits<t> { \
    static constexpr bool is_specialized = true, is_signed = sign, is_integer = true, is_exact = true; \
    static constexpr bool has_infinity = false, has_quiet_NaN = false; \
    static constexpr int digits = digits_, digits10 = digits_ * 3 / 10, radix = 2; \
    static constexpr t min() { return low; } static constexpr t min_mtl() { return low; } static constexpr t precise_min_mtl() { return low; } static constexpr t min_own_mtl() { return low; } \
    static constexpr t lowest() { return low; } \
    static constexpr t max() { return high; } static constexpr t max_mtl() { return high; } static constexpr t precise_max_mtl() { return high; } static constexpr t max_own_mtl() { return high; } \
  };
INTEGER_LIMITS_MTL(bool, false, true, 1, false)
INTEGER_LIMITS_MTL(char, -128, 127, 7, true)
INTEGER_LIMITS_MTL(uchar, 0, 255, 8, false)
INTEGER_LIMITS_MTL(short, -32768, 32767, 15, true)
INTEGER_LIMITS_MTL(ushort, 0, 65535, 16, false)
INTEGER_LIMITS_MTL(int, -2147483647 - 1, 2147483647, 31, true)
INTEGER_LIMITS_MTL(uint, 0u, 4294967295u, 32, false)
INTEGER_LIMITS_MTL(long, -9223372036854775807L - 1, 9223372036854775807L, 63, true)
INTEGER_LIMITS_MTL(ulong, 0ul, 18446744073709551615ul, 64, false)
#undef INTEGER_LIMITS_MTL
template <> struct numeric_limits<float> {
  static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false;
  static constexpr bool has_infinity = true, has_quiet_NaN = true;
  static constexpr int digits = 24, digits10 = 6, max_digits10 = 9, radix = 2;
  static constexpr int max_exponent = 128, min_exponent = -125, max_exponent10 = 38, min_exponent10 = -37;
  static constexpr float min() { return 0x1p-126f; } static constexpr float min_mtl() { return 0x1p-126f; } static constexpr float precise_min_mtl() { return 0x1p-126f; } static constexpr float min_own_mtl() { return 0x1p-126f; }
  static constexpr float lowest() { return -0x1.fffffep127f; }
  static constexpr float max() { return 0x1.fffffep127f; } static constexpr float max_mtl() { return 0x1.fffffep127f; } static constexpr float precise_max_mtl() { return 0x1.fffffep127f; } static constexpr float max_own_mtl() { return 0x1.fffffep127f; }
  static constexpr float epsilon() { return 0x1p-23f; }
  static constexpr float round_error() { return 0.5f; }
  static constexpr float infinity() { return INFINITY_MTL; }
  static constexpr float quiet_NaN() { return NAN_MTL; }
  static constexpr float denorm_min() { return 0x1p-149f; }
};
template <> struct numeric_limits<half> {
  static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false;
  static constexpr bool has_infinity = true, has_quiet_NaN = true;
  static constexpr int digits = 11, digits10 = 3, max_digits10 = 5, radix = 2;
  static constexpr int max_exponent = 16, min_exponent = -13, max_exponent10 = 4, min_exponent10 = -4;
  static constexpr half min() { return (half)0x1p-14f; } static constexpr half min_mtl() { return (half)0x1p-14f; } static constexpr half precise_min_mtl() { return (half)0x1p-14f; } static constexpr half min_own_mtl() { return (half)0x1p-14f; }
  static constexpr half lowest() { return (half)-65504.0f; }
  static constexpr half max() { return (half)65504.0f; } static constexpr half max_mtl() { return (half)65504.0f; } static constexpr half precise_max_mtl() { return (half)65504.0f; } static constexpr half max_own_mtl() { return (half)65504.0f; }
  static constexpr half epsilon() { return (half)0x1p-10f; }
  static constexpr half round_error() { return (half)0.5f; }
  static constexpr half infinity() { return (half)INFINITY_MTL; }
  static constexpr half quiet_NaN() { return (half)NAN_MTL; }
  static constexpr half denorm_min() { return (half)0x1p-24f; }
};
