// Barriers, simdgroup and quadgroup functions: a simdgroup is a warp, and all its threads must take part.
//@ mem_flags
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4, mem_threadgroup_imageblock = 8 };
inline constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((uint)a | (uint)b); }
//@ threadgroup_barrier : mem_flags
inline void threadgroup_barrier(mem_flags) { __syncthreads(); }
//@ simdgroup_barrier : mem_flags
inline void simdgroup_barrier(mem_flags) { __syncwarp(); }

//@ simd_shuffle simd_broadcast shuffle_mtl
template <typename T> inline T simd_shuffle(T x, ushort lane) {
  constexpr int words = (sizeof(T) + 3) / 4;
  uint bits[words] = {};
  memcpy(bits, &x, sizeof(T));
  for (int i = 0; i < words; i++) bits[i] = __shfl_sync(0xffffffffu, bits[i], lane);
  memcpy(&x, bits, sizeof(T));
  return x;
}
inline float simd_shuffle(float x, ushort lane) { return __shfl_sync(0xffffffffu, x, lane); }
template <typename T> inline T simd_broadcast(T x, ushort lane) { return simd_shuffle(x, lane); }
//@ simd_broadcast_first : simd_shuffle
template <typename T> inline T simd_broadcast_first(T x) { return simd_shuffle(x, (ushort)0); }
//@ simd_shuffle_xor : simd_shuffle
template <typename T> inline T simd_shuffle_xor(T x, ushort mask) { return simd_shuffle(x, (ushort)(lane_index_mtl() ^ mask)); }
inline float simd_shuffle_xor(float x, ushort mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
//@ simd_shuffle_down : simd_shuffle
// A lane whose partner lies outside keeps its own value.
template <typename T> inline T simd_shuffle_down(T x, ushort delta) { uint from = lane_index_mtl() + delta; return simd_shuffle(x, (ushort)(from < 32 ? from : lane_index_mtl())); }
inline float simd_shuffle_down(float x, ushort delta) { return __shfl_down_sync(0xffffffffu, x, delta); }
//@ simd_shuffle_up : simd_shuffle
template <typename T> inline T simd_shuffle_up(T x, ushort delta) { uint lane = lane_index_mtl(); return simd_shuffle(x, (ushort)(lane >= delta ? lane - delta : lane)); }
inline float simd_shuffle_up(float x, ushort delta) { return __shfl_up_sync(0xffffffffu, x, delta); }
//@ simd_shuffle_rotate_down : simd_shuffle
template <typename T> inline T simd_shuffle_rotate_down(T x, ushort delta) { return simd_shuffle(x, (ushort)((lane_index_mtl() + delta) & 31)); }
//@ simd_shuffle_rotate_up : simd_shuffle
template <typename T> inline T simd_shuffle_rotate_up(T x, ushort delta) { return simd_shuffle(x, (ushort)((lane_index_mtl() - delta) & 31)); }

//@ simd_sum : simd_shuffle_xor
template <typename T> inline T simd_sum(T x) { for (int m = 16; m; m >>= 1) x = (T)(x + simd_shuffle_xor(x, (ushort)m)); return x; }
//@ simd_product : simd_shuffle_xor
template <typename T> inline T simd_product(T x) { for (int m = 16; m; m >>= 1) x = (T)(x * simd_shuffle_xor(x, (ushort)m)); return x; }
//@ simd_max : simd_shuffle_xor max
template <typename T> inline T simd_max(T x) { for (int m = 16; m; m >>= 1) x = max_mtl(x, simd_shuffle_xor(x, (ushort)m)); return x; }
//@ simd_min : simd_shuffle_xor min
template <typename T> inline T simd_min(T x) { for (int m = 16; m; m >>= 1) x = min_mtl(x, simd_shuffle_xor(x, (ushort)m)); return x; }
//@ simd_and : simd_shuffle_xor
template <typename T> inline T simd_and(T x) { for (int m = 16; m; m >>= 1) x = (T)(x & simd_shuffle_xor(x, (ushort)m)); return x; }
//@ simd_or : simd_shuffle_xor
template <typename T> inline T simd_or(T x) { for (int m = 16; m; m >>= 1) x = (T)(x | simd_shuffle_xor(x, (ushort)m)); return x; }
//@ simd_xor : simd_shuffle_xor
template <typename T> inline T simd_xor(T x) { for (int m = 16; m; m >>= 1) x = (T)(x ^ simd_shuffle_xor(x, (ushort)m)); return x; }
//@ simd_prefix_inclusive_sum simd_prefix_exclusive_sum : simd_shuffle_up
template <typename T> inline T simd_prefix_inclusive_sum(T x) {
  for (int d = 1; d < 32; d <<= 1) { T y = simd_shuffle_up(x, (ushort)d); if (lane_index_mtl() >= d) x = (T)(x + y); }
  return x;
}
template <typename T> inline T simd_prefix_exclusive_sum(T x) { T y = simd_shuffle_up(simd_prefix_inclusive_sum(x), (ushort)1); return lane_index_mtl() ? y : (T)0; }
//@ simd_prefix_inclusive_product simd_prefix_exclusive_product : simd_shuffle_up
template <typename T> inline T simd_prefix_inclusive_product(T x) {
  for (int d = 1; d < 32; d <<= 1) { T y = simd_shuffle_up(x, (ushort)d); if (lane_index_mtl() >= d) x = (T)(x * y); }
  return x;
}
template <typename T> inline T simd_prefix_exclusive_product(T x) { T y = simd_shuffle_up(simd_prefix_inclusive_product(x), (ushort)1); return lane_index_mtl() ? y : (T)1; }
//@ simd_all simd_any
inline bool simd_all(bool x) { return __all_sync(0xffffffffu, x); }
inline bool simd_any(bool x) { return __any_sync(0xffffffffu, x); }
//@ simd_is_first
inline bool simd_is_first() { return lane_index_mtl() == __ffs(__activemask()) - 1; }
// The members all and any are renamed like the functions of that name.
//@ simd_vote simd_ballot simd_active_threads_mask
struct simd_vote {
  typedef ulong vote_t;
  vote_t bits_mtl;
  simd_vote() = default;
  explicit simd_vote(vote_t v) : bits_mtl(v) {}
  explicit operator vote_t() const { return bits_mtl; }
  explicit operator uint() const { return (uint)bits_mtl; }
  bool all_mtl() const { return (uint)bits_mtl == 0xffffffffu; }
  bool any_mtl() const { return bits_mtl != 0; }
};
inline simd_vote simd_ballot(bool x) { return simd_vote((ulong)__ballot_sync(0xffffffffu, x)); }
inline simd_vote simd_active_threads_mask() { return simd_vote((ulong)__activemask()); }

//@ quad_broadcast quad_shuffle : simd_shuffle
template <typename T> inline T quad_broadcast(T x, ushort n) { return simd_shuffle(x, (ushort)((lane_index_mtl() & ~3u) | (n & 3u))); }
template <typename T> inline T quad_shuffle(T x, ushort n) { return quad_broadcast(x, n); }
//@ quad_shuffle_xor : simd_shuffle_xor
template <typename T> inline T quad_shuffle_xor(T x, ushort n) { return simd_shuffle_xor(x, (ushort)(n & 3u)); }
//@ quad_shuffle_down : simd_shuffle
template <typename T> inline T quad_shuffle_down(T x, ushort n) { uint l = lane_index_mtl(); return simd_shuffle(x, (ushort)((l & 3) + n < 4 ? l + n : l)); }
//@ quad_shuffle_up : simd_shuffle
template <typename T> inline T quad_shuffle_up(T x, ushort n) { uint l = lane_index_mtl(); return simd_shuffle(x, (ushort)((l & 3) >= n ? l - n : l)); }
//@ quad_shuffle_rotate_down : simd_shuffle
template <typename T> inline T quad_shuffle_rotate_down(T x, ushort n) { uint l = lane_index_mtl(); return simd_shuffle(x, (ushort)((l & ~3u) | ((l + n) & 3))); }
//@ quad_shuffle_rotate_up : simd_shuffle
template <typename T> inline T quad_shuffle_rotate_up(T x, ushort n) { uint l = lane_index_mtl(); return simd_shuffle(x, (ushort)((l & ~3u) | ((l - n) & 3))); }
//@ quad_sum : simd_shuffle_xor
template <typename T> inline T quad_sum(T x) { x = (T)(x + simd_shuffle_xor(x, (ushort)2)); return (T)(x + simd_shuffle_xor(x, (ushort)1)); }
//@ quad_product : simd_shuffle_xor
template <typename T> inline T quad_product(T x) { x = (T)(x * simd_shuffle_xor(x, (ushort)2)); return (T)(x * simd_shuffle_xor(x, (ushort)1)); }
//@ quad_max : simd_shuffle_xor max
template <typename T> inline T quad_max(T x) { x = max_mtl(x, simd_shuffle_xor(x, (ushort)2)); return max_mtl(x, simd_shuffle_xor(x, (ushort)1)); }
//@ quad_min : simd_shuffle_xor min
template <typename T> inline T quad_min(T x) { x = min_mtl(x, simd_shuffle_xor(x, (ushort)2)); return min_mtl(x, simd_shuffle_xor(x, (ushort)1)); }
