// Atomics of Metal 2.4 to 3.2.
//@ atomic_float : atomic_int
typedef float atomic_float;
inline float atomic_fetch_sub_explicit(volatile float *p, float v, memory_order) { return atomicAdd((float *)p, -v); }
inline bool atomic_compare_exchange_weak_explicit(volatile float *p, float *expected, float desired, memory_order, memory_order) {
  uint seen = atomicCAS((uint *)p, __float_as_uint(*expected), __float_as_uint(desired));
  bool same = seen == __float_as_uint(*expected);
  *expected = __uint_as_float(seen);
  return same;
}
//@ atomic : atomic_float atomic_int
template <typename T> struct atomic_of_mtl;
template <> struct atomic_of_mtl<int> { typedef int type; };
template <> struct atomic_of_mtl<uint> { typedef uint type; };
template <> struct atomic_of_mtl<ulong> { typedef ulong type; };
template <> struct atomic_of_mtl<float> { typedef float type; };
template <typename T> using atomic_mtl = typename atomic_of_mtl<T>::type;
//@ atomic_ulong
typedef ulong atomic_ulong;
//@ atomic_max_explicit atomic_min_explicit : atomic_ulong memory_order
inline void atomic_max_explicit(volatile ulong *p, ulong v, memory_order) { atomicMax((unsigned long long *)p, v); }
inline void atomic_min_explicit(volatile ulong *p, ulong v, memory_order) { atomicMin((unsigned long long *)p, v); }
//@ thread_scope thread_scope_thread thread_scope_simdgroup thread_scope_threadgroup thread_scope_device
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };
//@ atomic_thread_fence : mem_flags thread_scope memory_order
inline void atomic_thread_fence(mem_flags, memory_order order, thread_scope = thread_scope_device) { if (order != memory_order_relaxed) __threadfence(); }
