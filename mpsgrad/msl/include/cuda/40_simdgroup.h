// Barriers, simdgroup and quadgroup functions: a simdgroup is a warp, and all its threads must take part.
//@ mem_flags
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4, mem_threadgroup_imageblock = 8 };
inline constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((uint)a | (uint)b); }
//@ threadgroup_barrier : mem_flags
inline void threadgroup_barrier(mem_flags) { __syncthreads(); }
//@ any_thread_mtl
// Whether the condition is true for any thread of the threadgroup; all of them have to ask.
inline bool any_thread_mtl(bool is_true) { return __syncthreads_or(is_true); }
//@ lanes_mtl
// The lanes that take part. A grid of any size has simdgroups that are not full, and users' kernels call these functions
// where only some lanes are active. Our own kernels do neither, so that the compiler sees that all lanes take part.
#ifdef ANY_GRID_MTL
inline uint lanes_mtl() { return __activemask(); }
#else
inline constexpr uint lanes_mtl() { return 0xffffffffu; }
#endif
//@ simdgroup_barrier : mem_flags lanes_mtl
inline void simdgroup_barrier(mem_flags) { __syncwarp(lanes_mtl()); }

//@ simd_shuffle simd_broadcast : lanes_mtl
template <typename T> inline T simd_shuffle(T x, ushort lane) {
  constexpr int words = (sizeof(T) + 3) / 4;
  uint bits[words] = {};
  memcpy(bits, &x, sizeof(T));
  uint lanes = lanes_mtl();
  for (int i = 0; i < words; i++) bits[i] = __shfl_sync(lanes, bits[i], lane);
  memcpy(&x, bits, sizeof(T));
  return x;
}
inline float simd_shuffle(float x, ushort lane) { return __shfl_sync(lanes_mtl(), x, lane); }
template <typename T> inline T simd_broadcast(T x, ushort lane) { return simd_shuffle(x, lane); }
//@ simd_broadcast_first : simd_shuffle
template <typename T> inline T simd_broadcast_first(T x) { return simd_shuffle(x, (ushort)(__ffs(lanes_mtl()) - 1)); }
//@ simd_shuffle_xor : simd_shuffle
template <typename T> inline T simd_shuffle_xor(T x, ushort mask) { return simd_shuffle(x, (ushort)(lane_index_mtl() ^ mask)); }
inline float simd_shuffle_xor(float x, ushort mask) { return __shfl_xor_sync(lanes_mtl(), x, mask); }
//@ simd_shuffle_down : simd_shuffle
// A lane whose partner lies outside keeps its own value.
template <typename T> inline T simd_shuffle_down(T x, ushort delta) { uint from = lane_index_mtl() + delta; return simd_shuffle(x, (ushort)(from < 32 ? from : lane_index_mtl())); }
inline float simd_shuffle_down(float x, ushort delta) { return __shfl_down_sync(lanes_mtl(), x, delta); }
//@ simd_shuffle_up : simd_shuffle
template <typename T> inline T simd_shuffle_up(T x, ushort delta) { uint lane = lane_index_mtl(); return simd_shuffle(x, (ushort)(lane >= delta ? lane - delta : lane)); }
inline float simd_shuffle_up(float x, ushort delta) { return __shfl_up_sync(lanes_mtl(), x, delta); }
//@ simd_shuffle_rotate_down : simd_shuffle
template <typename T> inline T simd_shuffle_rotate_down(T x, ushort delta) { return simd_shuffle(x, (ushort)((lane_index_mtl() + delta) & 31)); }
//@ simd_shuffle_rotate_up : simd_shuffle
template <typename T> inline T simd_shuffle_rotate_up(T x, ushort delta) { return simd_shuffle(x, (ushort)((lane_index_mtl() - delta) & 31)); }

//@ reduce_mtl : simd_shuffle simd_shuffle_xor
// Pairs of lanes, then pairs of pairs; if some lanes do not take part, one lane after the other.
#define SIMD_REDUCE_MTL(name, expression) \
  template <typename T> inline T name(T x) { \
    uint lanes = lanes_mtl(); \
    if (lanes == 0xffffffffu) { \
      for (int m = 1; m < 32; m <<= 1) { T y = simd_shuffle_xor(x, (ushort)m); x = (T)(expression); } \
      return x; \
    } \
    T mine = x; \
    x = simd_shuffle(mine, (ushort)(__ffs(lanes) - 1)); \
    for (lanes &= lanes - 1; lanes; lanes &= lanes - 1) { T y = simd_shuffle(mine, (ushort)(__ffs(lanes) - 1)); x = (T)(expression); } \
    return x; \
  }
#define QUAD_REDUCE_MTL(name, expression) \
  template <typename T> inline T name(T x) { \
    uint first = lane_index_mtl() & ~3u, lanes = lanes_mtl() >> first & 15u; \
    if (lanes == 15u) { \
      for (int m = 1; m < 4; m <<= 1) { T y = simd_shuffle_xor(x, (ushort)m); x = (T)(expression); } \
      return x; \
    } \
    T mine = x; \
    x = simd_shuffle(mine, (ushort)(first + __ffs(lanes) - 1)); \
    for (lanes &= lanes - 1; lanes; lanes &= lanes - 1) { T y = simd_shuffle(mine, (ushort)(first + __ffs(lanes) - 1)); x = (T)(expression); } \
    return x; \
  }
//@ simd_sum : reduce_mtl
SIMD_REDUCE_MTL(simd_sum, x + y)
//@ simd_product : reduce_mtl
SIMD_REDUCE_MTL(simd_product, x * y)
//@ simd_max : reduce_mtl max
SIMD_REDUCE_MTL(simd_max, max_mtl(x, y))
//@ simd_min : reduce_mtl min
SIMD_REDUCE_MTL(simd_min, min_mtl(x, y))
//@ simd_and : reduce_mtl
SIMD_REDUCE_MTL(simd_and, x & y)
//@ simd_or : reduce_mtl
SIMD_REDUCE_MTL(simd_or, x | y)
//@ simd_xor : reduce_mtl
SIMD_REDUCE_MTL(simd_xor, x ^ y)
//@ scan_mtl : simd_shuffle_up
#define SIMD_SCAN_MTL(inclusive, exclusive, identity, op) \
  template <typename T> inline T exclusive(T x) { \
    uint lanes = lanes_mtl(); \
    T sum = (T)identity; \
    if (lanes != 0xffffffffu) { \
      for (; lanes; lanes &= lanes - 1) { \
        uint from = __ffs(lanes) - 1; \
        T y = simd_shuffle(x, (ushort)from); \
        if (from < lane_index_mtl()) sum = (T)(sum op y); \
      } \
      return sum; \
    } \
    for (int d = 1; d < 32; d <<= 1) { T y = simd_shuffle_up(x, (ushort)d); if (lane_index_mtl() >= d) x = (T)(y op x); } \
    x = simd_shuffle_up(x, (ushort)1); \
    return lane_index_mtl() ? x : sum; \
  } \
  template <typename T> inline T inclusive(T x) { return (T)(exclusive(x) op x); }
//@ simd_prefix_inclusive_sum simd_prefix_exclusive_sum : scan_mtl
SIMD_SCAN_MTL(simd_prefix_inclusive_sum, simd_prefix_exclusive_sum, 0, +)
//@ simd_prefix_inclusive_product simd_prefix_exclusive_product : scan_mtl
SIMD_SCAN_MTL(simd_prefix_inclusive_product, simd_prefix_exclusive_product, 1, *)
//@ simd_all simd_any : lanes_mtl
inline bool simd_all(bool x) { return __all_sync(lanes_mtl(), x); }
inline bool simd_any(bool x) { return __any_sync(lanes_mtl(), x); }
//@ simd_lane_mtl
inline ushort simd_lane_mtl() { return (ushort)lane_index_mtl(); }
//@ simd_group_mtl
inline uint simd_group_mtl() { return threadIdx.x >> 5; }
//@ simd_is_first
inline bool simd_is_first() { return lane_index_mtl() == __ffs(__activemask()) - 1; }
// The members all and any are renamed like the functions of that name.
//@ simd_vote simd_ballot simd_active_threads_mask : lanes_mtl
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
inline simd_vote simd_ballot(bool x) { return simd_vote((ulong)__ballot_sync(lanes_mtl(), x)); }
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
//@ quad_sum : reduce_mtl
QUAD_REDUCE_MTL(quad_sum, x + y)
//@ quad_product : reduce_mtl
QUAD_REDUCE_MTL(quad_product, x * y)
//@ quad_max : reduce_mtl max
QUAD_REDUCE_MTL(quad_max, max_mtl(x, y))
//@ quad_min : reduce_mtl min
QUAD_REDUCE_MTL(quad_min, min_mtl(x, y))
//@ quad_and : reduce_mtl
QUAD_REDUCE_MTL(quad_and, x & y)
//@ quad_or : reduce_mtl
QUAD_REDUCE_MTL(quad_or, x | y)
//@ quad_xor : reduce_mtl
QUAD_REDUCE_MTL(quad_xor, x ^ y)
//@ quad_all quad_any : quad_min quad_max
inline bool quad_all(bool x) { return quad_min((int)x); }
inline bool quad_any(bool x) { return quad_max((int)x); }
