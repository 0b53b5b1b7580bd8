// Threadgroups that run at the same time and write to each other's variables: the clusters of compute capability 9.0.
//@ threadgroup_arrive_in_cluster threadgroup_wait_for_cluster threadgroup_expect_in_cluster threadgroup_send_in_cluster threadgroup_wait_for_sent
// Earlier GPUs have none; kernels that are compiled for these are never run on them.
#if __CUDA_ARCH__ >= 900
inline void threadgroup_arrive_in_cluster() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
inline void threadgroup_wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
inline void threadgroup_expect_in_cluster(ulong *arrivals, int values) {
  asm volatile("{ .reg .b64 state; mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster; "
    "mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }"
    :: "r"((uint)__cvta_generic_to_shared(arrivals)), "r"(values * 4) : "memory");
}
inline void threadgroup_send_in_cluster(float *at, float value, int threadgroup, ulong *arrivals) {
  asm volatile("{ .reg .u32 there, counted; mapa.shared::cluster.u32 there, %0, %1; mapa.shared::cluster.u32 counted, %2, %1; "
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %3, [counted]; }"
    :: "r"((uint)__cvta_generic_to_shared(at)), "r"(threadgroup), "r"((uint)__cvta_generic_to_shared(arrivals)), "f"(value) : "memory");
}
inline void threadgroup_wait_for_sent(ulong *arrivals) {
  uint done;
  do {
    asm volatile("{ .reg .pred all; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 all, [%1], 0; selp.u32 %0, 1, 0, all; }"
      : "=r"(done) : "r"((uint)__cvta_generic_to_shared(arrivals)) : "memory");
  } while (!done);
}
#else
inline void threadgroup_arrive_in_cluster() {}
inline void threadgroup_wait_for_cluster() {}
inline void threadgroup_expect_in_cluster(ulong *arrivals, int values) {}
inline void threadgroup_send_in_cluster(float *at, float value, int threadgroup, ulong *arrivals) {}
inline void threadgroup_wait_for_sent(ulong *arrivals) {}
#endif
