// Atomics of Metal 2.4 to 3.2. A program that uses atomic_float calls the functions below for every atomic type.
//@ atomic_float : memory_order_relaxed atomic_load_explicit scalar_mtl
struct atomic_float_mtl { atomic_uint bits; };
#define NOT_FLOAT_MTL(P) typename P, typename require_mtl<!__is_class(P)>::type = 0
template <NOT_FLOAT_MTL(P)> inline auto atomic_load_explicit_mtl(P *p, memory_order o) { return atomic_load_explicit(p, o); }
template <NOT_FLOAT_MTL(P), typename C> inline void atomic_store_explicit_mtl(P *p, C v, memory_order o) { atomic_store_explicit(p, v, o); }
template <NOT_FLOAT_MTL(P), typename C> inline auto atomic_exchange_explicit_mtl(P *p, C v, memory_order o) { return atomic_exchange_explicit(p, v, o); }
template <NOT_FLOAT_MTL(P), typename E, typename C> inline bool atomic_compare_exchange_weak_explicit_mtl(P *p, E *e, C v, memory_order s, memory_order f) { return atomic_compare_exchange_weak_explicit(p, e, v, s, f); }
template <NOT_FLOAT_MTL(P), typename C> inline auto atomic_fetch_add_explicit_mtl(P *p, C v, memory_order o) { return atomic_fetch_add_explicit(p, v, o); }
template <NOT_FLOAT_MTL(P), typename C> inline auto atomic_fetch_sub_explicit_mtl(P *p, C v, memory_order o) { return atomic_fetch_sub_explicit(p, v, o); }
#define FLOAT_ATOMICS_MTL(space) \
  inline float atomic_load_explicit_mtl(const space atomic_float_mtl *p, memory_order o) { return as_float(atomic_load_explicit((volatile __global atomic_uint *)&p->bits, o)); } \
  inline float atomic_load_explicit_mtl(space atomic_float_mtl *p, memory_order o) { return as_float(atomic_load_explicit((volatile __global atomic_uint *)&p->bits, o)); } \
  inline void atomic_store_explicit_mtl(space atomic_float_mtl *p, float v, memory_order o) { atomic_store_explicit((volatile __global atomic_uint *)&p->bits, as_uint(v), o); } \
  inline float atomic_exchange_explicit_mtl(space atomic_float_mtl *p, float v, memory_order o) { return as_float(atomic_exchange_explicit((volatile __global atomic_uint *)&p->bits, as_uint(v), o)); } \
  inline bool atomic_compare_exchange_weak_explicit_mtl(space atomic_float_mtl *p, __private float *e, float v, memory_order s, memory_order f) { \
    uint expected = as_uint(*e); \
    bool same = atomic_compare_exchange_weak_explicit((volatile __global atomic_uint *)&p->bits, &expected, as_uint(v), s, f); \
    *e = as_float(expected); \
    return same; \
  } \
  inline float atomic_fetch_add_explicit_mtl(space atomic_float_mtl *p, float v, memory_order o) { \
    float old = atomic_load_explicit_mtl(p, o); \
    while (!atomic_compare_exchange_weak_explicit_mtl(p, &old, old + v, o, o)) {} \
    return old; \
  } \
  inline float atomic_fetch_sub_explicit_mtl(space atomic_float_mtl *p, float v, memory_order o) { return atomic_fetch_add_explicit_mtl(p, -v, o); }
FLOAT_ATOMICS_MTL(__global)
FLOAT_ATOMICS_MTL(volatile __global)

//@ atomic : atomic_float
template <typename T> struct atomic_of_mtl;
template <> struct atomic_of_mtl<int> { typedef atomic_int type; };
template <> struct atomic_of_mtl<uint> { typedef atomic_uint type; };
template <> struct atomic_of_mtl<ulong> { typedef atomic_ulong type; };
template <> struct atomic_of_mtl<float> { typedef atomic_float_mtl type; };
template <typename T> using atomic_mtl = typename atomic_of_mtl<T>::type;

//@ atomic_ulong : memory_order_relaxed
typedef atomic_ulong atomic_ulong_mtl;
//@ atomic_max_explicit atomic_min_explicit : atomic_ulong
inline void atomic_max_explicit(volatile __global atomic_ulong *p, ulong v, memory_order o) { atomic_fetch_max_explicit(p, v, o); }
inline void atomic_min_explicit(volatile __global atomic_ulong *p, ulong v, memory_order o) { atomic_fetch_min_explicit(p, v, o); }

//@ memory_order_seq_cst
#define memory_order_seq_cst_mtl ((memory_order)5)
//@ thread_scope thread_scope_thread thread_scope_simdgroup thread_scope_threadgroup thread_scope_device
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };
//@ atomic_thread_fence : mem_flags thread_scope
inline void atomic_thread_fence_mtl(mem_flags, memory_order order, thread_scope = thread_scope_device) {
  if (order != (memory_order)0) atomic_work_item_fence(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE, (memory_order)5, (memory_scope)2);
}
