// <metal_relational>: truth values instead of masks.
//@ isnan isinf isfinite isnormal signbit isordered isunordered : bool_vector_mtl
#define VECTOR_TEST_MTL(t, n, test, name) inline bool##n test(t##n x) { return truth_of_mtl(name(x)); }
#define VECTOR_TEST_2_MTL(t, n, test, name) inline bool##n test(t##n x, t##n y) { return truth_of_mtl(name(x, y)); }
#define EVERY_TEST_MTL(define, test, name) \
  define(float, , test, name) define(float, 2, test, name) define(float, 3, test, name) define(float, 4, test, name) \
  define(half, , test, name) define(half, 2, test, name) define(half, 3, test, name) define(half, 4, test, name)
#define TEST_MTL(test, name) EVERY_TEST_MTL(VECTOR_TEST_MTL, test, name)
#define TEST_2_MTL(test, name) EVERY_TEST_MTL(VECTOR_TEST_2_MTL, test, name)
TEST_MTL(isnan_mtl, isnan)
TEST_MTL(isinf_mtl, isinf)
TEST_MTL(isfinite_mtl, isfinite)
TEST_MTL(isnormal_mtl, isnormal)
TEST_MTL(signbit_mtl, signbit)
TEST_2_MTL(isordered_mtl, isordered)
TEST_2_MTL(isunordered_mtl, isunordered)

//@ any all : bool_vector_mtl
inline bool any_mtl(bool x) { return x; }
inline bool all_mtl(bool x) { return x; }
inline bool any_mtl(bool2 a) { return a.x | a.y; }
inline bool all_mtl(bool2 a) { return a.x & a.y; }
inline bool any_mtl(bool3 a) { return a.x | a.y | a.z; }
inline bool all_mtl(bool3 a) { return a.x & a.y & a.z; }
inline bool any_mtl(bool4 a) { return a.x | a.y | a.z | a.w; }
inline bool all_mtl(bool4 a) { return a.x & a.y & a.z & a.w; }

//@ select : bool_vector_mtl
template <int S> struct mask_element_mtl;
template <> struct mask_element_mtl<1> { typedef char type; };
template <> struct mask_element_mtl<2> { typedef short type; };
template <> struct mask_element_mtl<4> { typedef int type; };
template <> struct mask_element_mtl<8> { typedef long type; };
#define SELECT_VECTOR_MTL(t, n) \
  inline t##n select_mtl(t##n a, t##n b, bool##n c) { return -c.convert<mask_element_mtl<sizeof(t)>::type>() ? b : a; } \
  inline t##n select_mtl(t##n a, t##n b, bool c) { return c ? b : a; }
#define SELECT_MTL(t) \
  inline t select_mtl(t a, t b, bool c) { return c ? b : a; } \
  SELECT_VECTOR_MTL(t, 2) SELECT_VECTOR_MTL(t, 3) SELECT_VECTOR_MTL(t, 4)
SELECT_MTL(char)
SELECT_MTL(uchar)
SELECT_MTL(short)
SELECT_MTL(ushort)
SELECT_MTL(int)
SELECT_MTL(uint)
SELECT_MTL(long)
SELECT_MTL(ulong)
SELECT_MTL(half)
SELECT_MTL(float)
inline bool select_mtl(bool a, bool b, bool c) { return c ? b : a; }
#define SELECT_TRUTH_MTL(V) \
  inline V select_mtl(V a, V b, V c) { return (c & b) | (!c & a); } \
  inline V select_mtl(V a, V b, bool c) { return c ? b : a; }
SELECT_TRUTH_MTL(bool2)
SELECT_TRUTH_MTL(bool3)
SELECT_TRUTH_MTL(bool4)
template <typename T, int N> inline class_vector_mtl<T, N> select_mtl(class_vector_mtl<T, N> a, class_vector_mtl<T, N> b, bool_vector_mtl<N> c) {
  for (int i = 0; i < N; i++) a[i] = c[i] ? b[i] : a[i];
  return a;
}
template <typename T, int N> inline class_vector_mtl<T, N> select_mtl(class_vector_mtl<T, N> a, class_vector_mtl<T, N> b, bool c) { return c ? b : a; }
template <typename T, typename require_mtl<is_scalar_mtl<T>::value && !__is_arithmetic(T)>::type = 0> inline T select_mtl(T a, T b, bool c) { return c ? b : a; }
