// Threadgroups that run at the same time and write to each other's variables: the clusters of compute capability 9.0.
//@ threadgroup_arrive_in_cluster threadgroup_wait_for_cluster threadgroup_store_in_cluster
// Earlier GPUs have none; kernels that are compiled for these are never run on them.
#if __CUDA_ARCH__ >= 900
inline void threadgroup_arrive_in_cluster() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
inline void threadgroup_wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
inline void threadgroup_store_in_cluster(float *at, float value, int threadgroup) {
  asm volatile("{ .reg .u32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.f32 [there], %2; }"
    :: "r"((uint)__cvta_generic_to_shared(at)), "r"(threadgroup), "f"(value) : "memory");
}
#else
inline void threadgroup_arrive_in_cluster() {}
inline void threadgroup_wait_for_cluster() {}
inline void threadgroup_store_in_cluster(float *at, float value, int threadgroup) {}
#endif
