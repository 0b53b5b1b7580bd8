// Copies to threadgroup memory that need no registers and are on their way while the thread works on, which Turing does not
// have. What is copied stays in the L1 cache, because the taps of a convolution read it again, unless it is copied once.
//@ threadgroup_copy_16_bytes threadgroup_copy_16_bytes_once threadgroup_copy_8_bytes_once threadgroup_copy_4_bytes_once threadgroup_end_copies threadgroup_wait_for_copies
// `from` has to be readable memory also where it does not exist, of which zeros are written then.
#if __CUDA_ARCH__ >= 800
inline void threadgroup_copy_16_bytes(vec_mtl<uint, 4> *to, const vec_mtl<uint, 4> *from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
    :: "r"((uint)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from)), "r"(exists ? 16 : 0) : "memory");
}
inline void threadgroup_copy_16_bytes_once(vec_mtl<uint, 4> *to, const vec_mtl<uint, 4> *from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
    :: "r"((uint)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from)), "r"(exists ? 16 : 0) : "memory");
}
inline void threadgroup_copy_8_bytes_once(vec_mtl<uint, 2> *to, const vec_mtl<uint, 2> *from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
    :: "r"((uint)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from)), "r"(exists ? 8 : 0) : "memory");
}
inline void threadgroup_copy_4_bytes_once(uint *to, const uint *from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
    :: "r"((uint)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from)), "r"(exists ? 4 : 0) : "memory");
}
inline void threadgroup_end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> inline void threadgroup_wait_for_copies() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
#else
inline void threadgroup_copy_16_bytes(vec_mtl<uint, 4> *to, const vec_mtl<uint, 4> *from, bool exists) { *to = exists ? *from : vec_mtl<uint, 4>(0u); }
inline void threadgroup_copy_16_bytes_once(vec_mtl<uint, 4> *to, const vec_mtl<uint, 4> *from, bool exists) { threadgroup_copy_16_bytes(to, from, exists); }
inline void threadgroup_copy_8_bytes_once(vec_mtl<uint, 2> *to, const vec_mtl<uint, 2> *from, bool exists) { *to = exists ? *from : vec_mtl<uint, 2>(0u); }
inline void threadgroup_copy_4_bytes_once(uint *to, const uint *from, bool exists) { *to = exists ? *from : 0u; }
inline void threadgroup_end_copies() {}
template <int N> inline void threadgroup_wait_for_copies() {}
#endif
