// <metal_atomic>: relaxed atomics. A class tells templates the type of an atomic object.
//@ memory_order_relaxed memory_order_seq_cst memory_order
enum memory_order { memory_order_relaxed, memory_order_seq_cst };
//@ atomic atomic_int atomic_uint atomic_bool atomic_float atomic_ulong : memory_order
#define ATOMIC_OF_MTL(T, B, to, from) \
  template <> struct atomic_of_mtl<T> { \
    typedef B type; \
    static B bits(T v) { return to(v); } \
    static T value(B b) { return from(b); } \
  };
ATOMIC_OF_MTL(int, int, int, int)
ATOMIC_OF_MTL(uint, uint, uint, uint)
ATOMIC_OF_MTL(ulong, unsigned long long, ulong, ulong)
ATOMIC_OF_MTL(float, uint, __float_as_uint, __uint_as_float)
ATOMIC_OF_MTL(bool, uint, uint, bool)
#undef ATOMIC_OF_MTL
typedef atomic_mtl<int> atomic_int;
typedef atomic_mtl<uint> atomic_uint;
typedef atomic_mtl<bool> atomic_bool;
typedef atomic_mtl<float> atomic_float;
typedef atomic_mtl<ulong> atomic_ulong;
#define ATOMIC_BITS_MTL(T, p) ((typename atomic_of_mtl<T>::type *)&(p)->bits)
#define ATOMIC_FETCH_MTL(name, function) \
  template <typename T> inline T name(volatile atomic_mtl<T> *p, typename atomic_integer_mtl<T>::type v, memory_order) { return function(ATOMIC_BITS_MTL(T, p), v); }
//@ atomic_load_explicit : atomic
template <typename T> inline T atomic_load_explicit(const volatile atomic_mtl<T> *p, memory_order) { return atomic_of_mtl<T>::value(p->bits); }
//@ atomic_store_explicit : atomic
template <typename T> inline void atomic_store_explicit(volatile atomic_mtl<T> *p, ATOMIC_VALUE_MTL(T) v, memory_order) { p->bits = atomic_of_mtl<T>::bits(v); }
//@ atomic_exchange_explicit : atomic
template <typename T> inline T atomic_exchange_explicit(volatile atomic_mtl<T> *p, ATOMIC_VALUE_MTL(T) v, memory_order) { return atomic_of_mtl<T>::value(atomicExch(ATOMIC_BITS_MTL(T, p), atomic_of_mtl<T>::bits(v))); }
//@ atomic_fetch_add_explicit : atomic
ATOMIC_FETCH_MTL(atomic_fetch_add_explicit, atomicAdd)
inline float atomic_fetch_add_explicit(volatile atomic_float *p, float v, memory_order) { return atomicAdd((float *)&p->bits, v); }
//@ atomic_fetch_sub_explicit : atomic
ATOMIC_FETCH_MTL(atomic_fetch_sub_explicit, atomicSub)
inline float atomic_fetch_sub_explicit(volatile atomic_float *p, float v, memory_order) { return atomicAdd((float *)&p->bits, -v); }
//@ atomic_fetch_min_explicit : atomic
ATOMIC_FETCH_MTL(atomic_fetch_min_explicit, atomicMin)
//@ atomic_fetch_max_explicit : atomic
ATOMIC_FETCH_MTL(atomic_fetch_max_explicit, atomicMax)
//@ atomic_fetch_and_explicit : atomic
ATOMIC_FETCH_MTL(atomic_fetch_and_explicit, atomicAnd)
//@ atomic_fetch_or_explicit : atomic
ATOMIC_FETCH_MTL(atomic_fetch_or_explicit, atomicOr)
//@ atomic_fetch_xor_explicit : atomic
ATOMIC_FETCH_MTL(atomic_fetch_xor_explicit, atomicXor)
//@ atomic_compare_exchange_weak_explicit : atomic
template <typename T> inline bool atomic_compare_exchange_weak_explicit(volatile atomic_mtl<T> *p, ATOMIC_VALUE_MTL(T) *expected, ATOMIC_VALUE_MTL(T) desired, memory_order, memory_order) {
  auto known = atomic_of_mtl<T>::bits(*expected), seen = atomicCAS(ATOMIC_BITS_MTL(T, p), known, atomic_of_mtl<T>::bits(desired));
  *expected = atomic_of_mtl<T>::value(seen);
  return seen == known;
}
//@ atomic_max_explicit atomic_min_explicit : atomic
inline void atomic_max_explicit(volatile atomic_ulong *p, ulong v, memory_order) { atomicMax(ATOMIC_BITS_MTL(ulong, p), v); }
inline void atomic_min_explicit(volatile atomic_ulong *p, ulong v, memory_order) { atomicMin(ATOMIC_BITS_MTL(ulong, p), v); }
//@ atomic_thread_fence : mem_flags thread_scope memory_order
inline void atomic_thread_fence(mem_flags, memory_order order, thread_scope = thread_scope_device) { if (order != memory_order_relaxed) __threadfence(); }
