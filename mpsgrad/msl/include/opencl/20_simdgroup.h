//@ mem_flags
struct mem_flags { enum flags : uint { mem_none = 0, mem_threadgroup = 1, mem_device = 2, mem_texture = 4, mem_threadgroup_imageblock = 8 }; };

//@ threadgroup_barrier : mem_flags
#define threadgroup_barrier(flags) barrier((((flags) & 1) ? CLK_LOCAL_MEM_FENCE : 0) | (((flags) & 6) ? CLK_GLOBAL_MEM_FENCE : 0))

//@ simdgroup_barrier : mem_flags
#define simdgroup_barrier(flags) sub_group_barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)

//@ simd_sum
template <typename T> inline T simd_sum(T x) { return sub_group_reduce_add(x); }
//@ simd_product
template <typename T> inline T simd_product(T x) { return sub_group_non_uniform_reduce_mul(x); }
//@ simd_max
template <typename T> inline T simd_max(T x) { return sub_group_reduce_max(x); }
//@ simd_min
template <typename T> inline T simd_min(T x) { return sub_group_reduce_min(x); }
//@ simd_prefix_exclusive_sum
template <typename T> inline T simd_prefix_exclusive_sum(T x) { return sub_group_scan_exclusive_add(x); }
//@ simd_prefix_inclusive_sum
template <typename T> inline T simd_prefix_inclusive_sum(T x) { return sub_group_scan_inclusive_add(x); }
//@ simd_broadcast
template <typename T> inline T simd_broadcast(T x, ushort lane) { return sub_group_shuffle(x, lane); }
//@ simd_broadcast_first
template <typename T> inline T simd_broadcast_first(T x) { return sub_group_non_uniform_broadcast(x, 0); }
//@ simd_shuffle
template <typename T> inline T simd_shuffle(T x, ushort lane) { return sub_group_shuffle(x, lane); }
//@ simd_shuffle_xor
template <typename T> inline T simd_shuffle_xor(T x, ushort mask) { return sub_group_shuffle_xor(x, mask); }
//@ simd_shuffle_down
template <typename T> inline T simd_shuffle_down(T x, ushort delta) { return sub_group_shuffle_down(x, delta); }
//@ simd_shuffle_up
template <typename T> inline T simd_shuffle_up(T x, ushort delta) { return sub_group_shuffle_up(x, delta); }
