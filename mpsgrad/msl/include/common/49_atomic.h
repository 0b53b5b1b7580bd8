// What atomic objects are on any target, each of which says how their values lie in memory: atomic_of_mtl.
//@ atomic atomic_int atomic_uint atomic_bool atomic_float atomic_ulong
template <typename T> struct atomic_of_mtl;
template <typename T> struct atomic_mtl {
  typename atomic_of_mtl<T>::type bits;
  typedef T type;
};
#define ATOMIC_VALUE_MTL(T) typename atomic_mtl<T>::type
// Only integers are changed at once; other types have no value here.
template <typename T> struct atomic_integer_mtl;
template <> struct atomic_integer_mtl<int> { typedef int type; };
template <> struct atomic_integer_mtl<uint> { typedef uint type; };
//@ thread_scope thread_scope_thread thread_scope_simdgroup thread_scope_threadgroup thread_scope_device
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };
