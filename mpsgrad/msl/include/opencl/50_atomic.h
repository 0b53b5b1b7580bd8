// <metal_atomic>: a class for the atomic objects of each type, as OpenCL's own types do not tell a template theirs.
//@ memory_order_relaxed
#define memory_order_relaxed_mtl ((memory_order)0)
//@ memory_order_seq_cst
#define memory_order_seq_cst_mtl ((memory_order)5)
//@ atomic atomic_int atomic_uint atomic_bool atomic_float atomic_ulong : memory_order_relaxed
#define ATOMIC_OF_MTL(T, A, to, from) \
  template <> struct atomic_of_mtl<T> { \
    typedef A type; \
    static auto bits(T v) { return to(v); } \
    template <typename B> static T value(B b) { return from(b); } \
  };
ATOMIC_OF_MTL(int, atomic_int, int, int)
ATOMIC_OF_MTL(uint, atomic_uint, uint, uint)
ATOMIC_OF_MTL(ulong, atomic_ulong, ulong, ulong)
ATOMIC_OF_MTL(float, atomic_uint, as_uint, as_float)
ATOMIC_OF_MTL(bool, atomic_uint, uint, bool)
#undef ATOMIC_OF_MTL
typedef atomic_mtl<int> atomic_int_mtl;
typedef atomic_mtl<uint> atomic_uint_mtl;
typedef atomic_mtl<bool> atomic_bool_mtl;
typedef atomic_mtl<float> atomic_float_mtl;
typedef atomic_mtl<ulong> atomic_ulong_mtl;
#define ATOMIC_BITS_MTL(space, T, p) ((volatile space typename atomic_of_mtl<T>::type *)&(p)->bits)
//@ atomic_load_explicit : atomic
#define ATOMIC_LOAD_MTL(space) \
  template <typename T> inline T atomic_load_explicit_mtl(const volatile space atomic_mtl<T> *p, memory_order o) { \
    return atomic_of_mtl<T>::value(atomic_load_explicit(ATOMIC_BITS_MTL(space, T, p), o)); \
  }
ATOMIC_LOAD_MTL(__global)
ATOMIC_LOAD_MTL(__local)
//@ atomic_store_explicit : atomic
#define ATOMIC_STORE_MTL(space) \
  template <typename T> inline void atomic_store_explicit_mtl(volatile space atomic_mtl<T> *p, ATOMIC_VALUE_MTL(T) v, memory_order o) { \
    atomic_store_explicit(ATOMIC_BITS_MTL(space, T, p), atomic_of_mtl<T>::bits(v), o); \
  }
ATOMIC_STORE_MTL(__global)
ATOMIC_STORE_MTL(__local)
//@ atomic_exchange_explicit : atomic
#define ATOMIC_EXCHANGE_MTL(space) \
  template <typename T> inline T atomic_exchange_explicit_mtl(volatile space atomic_mtl<T> *p, ATOMIC_VALUE_MTL(T) v, memory_order o) { \
    return atomic_of_mtl<T>::value(atomic_exchange_explicit(ATOMIC_BITS_MTL(space, T, p), atomic_of_mtl<T>::bits(v), o)); \
  }
ATOMIC_EXCHANGE_MTL(__global)
ATOMIC_EXCHANGE_MTL(__local)
//@ atomic_compare_exchange_weak_explicit atomic_fetch_add_explicit atomic_fetch_sub_explicit : atomic
#define ATOMIC_COMPARE_EXCHANGE_MTL(space) \
  template <typename T> inline bool atomic_compare_exchange_weak_explicit_mtl(volatile space atomic_mtl<T> *p, __private ATOMIC_VALUE_MTL(T) *e, ATOMIC_VALUE_MTL(T) v, memory_order s, memory_order f) { \
    auto expected = atomic_of_mtl<T>::bits(*e); \
    bool same = atomic_compare_exchange_weak_explicit(ATOMIC_BITS_MTL(space, T, p), &expected, atomic_of_mtl<T>::bits(v), s, f); \
    *e = atomic_of_mtl<T>::value(expected); \
    return same; \
  }
ATOMIC_COMPARE_EXCHANGE_MTL(__global)
ATOMIC_COMPARE_EXCHANGE_MTL(__local)
//@ atomic_fetch_add_explicit atomic_fetch_sub_explicit atomic_fetch_min_explicit atomic_fetch_max_explicit atomic_fetch_and_explicit atomic_fetch_or_explicit atomic_fetch_xor_explicit : atomic
#define ATOMIC_FETCH_IN_MTL(space, function, name) \
  template <typename T> inline T name(volatile space atomic_mtl<T> *p, typename atomic_integer_mtl<T>::type v, memory_order o) { \
    return function(ATOMIC_BITS_MTL(space, T, p), v, o); \
  }
#define ATOMIC_FETCH_MTL(function, name) ATOMIC_FETCH_IN_MTL(__global, function, name) ATOMIC_FETCH_IN_MTL(__local, function, name)
//@ atomic_fetch_add_explicit : atomic_load_explicit
ATOMIC_FETCH_MTL(atomic_fetch_add_explicit, atomic_fetch_add_explicit_mtl)
//@ atomic_fetch_sub_explicit
ATOMIC_FETCH_MTL(atomic_fetch_sub_explicit, atomic_fetch_sub_explicit_mtl)
//@ atomic_fetch_min_explicit
ATOMIC_FETCH_MTL(atomic_fetch_min_explicit, atomic_fetch_min_explicit_mtl)
//@ atomic_fetch_max_explicit
ATOMIC_FETCH_MTL(atomic_fetch_max_explicit, atomic_fetch_max_explicit_mtl)
//@ atomic_fetch_and_explicit
ATOMIC_FETCH_MTL(atomic_fetch_and_explicit, atomic_fetch_and_explicit_mtl)
//@ atomic_fetch_or_explicit
ATOMIC_FETCH_MTL(atomic_fetch_or_explicit, atomic_fetch_or_explicit_mtl)
//@ atomic_fetch_xor_explicit
ATOMIC_FETCH_MTL(atomic_fetch_xor_explicit, atomic_fetch_xor_explicit_mtl)
//@ atomic_fetch_add_explicit atomic_fetch_sub_explicit
inline float atomic_fetch_add_explicit_mtl(volatile __global atomic_float_mtl *p, float v, memory_order o) {
  float old = atomic_load_explicit_mtl(p, o);
  while (!atomic_compare_exchange_weak_explicit_mtl(p, &old, old + v, o, o)) {}
  return old;
}
inline float atomic_fetch_sub_explicit_mtl(volatile __global atomic_float_mtl *p, float v, memory_order o) { return atomic_fetch_add_explicit_mtl(p, -v, o); }
//@ atomic_max_explicit atomic_min_explicit : atomic
inline void atomic_max_explicit_mtl(volatile __global atomic_ulong_mtl *p, ulong v, memory_order o) { atomic_fetch_max_explicit(&p->bits, v, o); }
inline void atomic_min_explicit_mtl(volatile __global atomic_ulong_mtl *p, ulong v, memory_order o) { atomic_fetch_min_explicit(&p->bits, v, o); }
//@ atomic_thread_fence : mem_flags thread_scope
inline void atomic_thread_fence_mtl(mem_flags, memory_order order, thread_scope = thread_scope_device) {
  if (order != (memory_order)0) atomic_work_item_fence(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE, (memory_order)5, (memory_scope)2);
}
