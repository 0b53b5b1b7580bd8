// <metal_atomic>: relaxed atomics on int and uint.
//@ atomic_int atomic_uint memory_order_relaxed memory_order_seq_cst memory_order
typedef int atomic_int;
typedef uint atomic_uint;
enum memory_order { memory_order_relaxed, memory_order_seq_cst };
//@ atomic_load_explicit : atomic_int
template <typename T> inline T atomic_load_explicit(const volatile T *p, memory_order) { return *p; }
//@ atomic_store_explicit : atomic_int
template <typename T, typename U> inline void atomic_store_explicit(volatile T *p, U v, memory_order) { *p = (T)v; }
//@ atomic_exchange_explicit : atomic_int
template <typename T, typename U> inline T atomic_exchange_explicit(volatile T *p, U v, memory_order) { return atomicExch((T *)p, (T)v); }
//@ atomic_fetch_add_explicit : atomic_int
template <typename T, typename U> inline T atomic_fetch_add_explicit(volatile T *p, U v, memory_order) { return atomicAdd((T *)p, (T)v); }
//@ atomic_fetch_sub_explicit : atomic_int
template <typename T, typename U> inline T atomic_fetch_sub_explicit(volatile T *p, U v, memory_order) { return atomicSub((T *)p, (T)v); }
//@ atomic_fetch_min_explicit : atomic_int
template <typename T, typename U> inline T atomic_fetch_min_explicit(volatile T *p, U v, memory_order) { return atomicMin((T *)p, (T)v); }
//@ atomic_fetch_max_explicit : atomic_int
template <typename T, typename U> inline T atomic_fetch_max_explicit(volatile T *p, U v, memory_order) { return atomicMax((T *)p, (T)v); }
//@ atomic_fetch_and_explicit : atomic_int
template <typename T, typename U> inline T atomic_fetch_and_explicit(volatile T *p, U v, memory_order) { return atomicAnd((T *)p, (T)v); }
//@ atomic_fetch_or_explicit : atomic_int
template <typename T, typename U> inline T atomic_fetch_or_explicit(volatile T *p, U v, memory_order) { return atomicOr((T *)p, (T)v); }
//@ atomic_fetch_xor_explicit : atomic_int
template <typename T, typename U> inline T atomic_fetch_xor_explicit(volatile T *p, U v, memory_order) { return atomicXor((T *)p, (T)v); }
//@ atomic_compare_exchange_weak_explicit : atomic_int
template <typename T, typename U> inline bool atomic_compare_exchange_weak_explicit(volatile T *p, T *expected, U desired, memory_order, memory_order) {
  T seen = atomicCAS((T *)p, *expected, (T)desired);
  bool same = seen == *expected;
  *expected = seen;
  return same;
}
