// <metal_atomic>: OpenCL's functions of the same name; the order is an enumerator of another type there.
//@ memory_order_relaxed
#define memory_order_relaxed_mtl ((memory_order)0)
