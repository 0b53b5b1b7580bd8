// <metal_atomic>: OpenCL's functions of the same name; the order is an enumerator of another type there.
//@ memory_order_relaxed
#define memory_order_relaxed_mtl ((memory_order)0)
// Metal reads what is const, too; less qualified pointers fit the compiler's own functions better.
//@ atomic_load_explicit
#define CONST_LOAD_MTL(space, atomic, type) \
  inline type atomic_load_explicit(const volatile space atomic *p, memory_order o) { return atomic_load_explicit((volatile space atomic *)p, o); }
CONST_LOAD_MTL(__global, atomic_int, int)
CONST_LOAD_MTL(__global, atomic_uint, uint)
CONST_LOAD_MTL(__local, atomic_int, int)
CONST_LOAD_MTL(__local, atomic_uint, uint)
#undef CONST_LOAD_MTL
