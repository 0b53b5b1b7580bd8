// Barriers, simdgroup and quadgroup functions.
//@ mem_flags
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4, mem_threadgroup_imageblock = 8 };
inline constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((uint)a | (uint)b); }

//@ threadgroup_barrier : mem_flags
// A macro, because the fence's flags must be constants.
#define threadgroup_barrier(flags) barrier((((uint)(true ? (flags) : mem_flags::mem_none) & 1) ? CLK_GLOBAL_MEM_FENCE : 0) | CLK_LOCAL_MEM_FENCE)

//@ any_thread_mtl
// Whether the condition is true for any thread of the threadgroup; all of them have to ask, but for what is the same anyway.
inline bool any_thread_mtl(bool is_true) { return __builtin_constant_p(is_true) ? is_true : work_group_any(is_true); }
//@ simdgroup_barrier : mem_flags
#define simdgroup_barrier(flags) sub_group_barrier((((uint)(flags) & 1) ? CLK_GLOBAL_MEM_FENCE : 0) | CLK_LOCAL_MEM_FENCE)

//@ lanes_mtl
// Lanes exchange values through an array of lane 0: optimized code runs them abreast, and Intel's own shuffle takes 25
// times as long. The package's shaders are also run without optimization.
#ifdef TOGETHER_MTL
template <typename T> inline T from_lane_mtl(T x, uint lane) {
  T values[32];
  __private T *shared = (__private T *)sub_group_broadcast((ulong)(__private T *)values, 0u);
  shared[get_sub_group_local_id()] = x;
  return shared[lane & 31];
}
#else
template <typename T> inline T from_lane_mtl(T x, uint lane) { return (T)sub_group_shuffle(x, lane); }
#endif
#define LANEWISE_MTL(name, expression) \
  template <typename T> inline T name(T x) { return (T)(expression); } \
  template <typename E, int N> inline vec_mtl<E, N> name(vec_mtl<E, N> v) { \
    vec_mtl<E, N> r; \
    for (int i = 0; i < N; i++) { E x = v[i]; r[i] = expression; } \
    return r; \
  } \
  template <typename E, int N> inline class_vector_mtl<E, N> name(class_vector_mtl<E, N> v) { \
    class_vector_mtl<E, N> r; \
    for (int i = 0; i < N; i++) { E x = v[i]; r[i] = (E)(expression); } \
    return r; \
  }
#define LANEWISE_WITH_MTL(name, expression) \
  template <typename T> inline T name(T x, ushort n) { return (T)(expression); } \
  template <typename E, int N> inline vec_mtl<E, N> name(vec_mtl<E, N> v, ushort n) { \
    vec_mtl<E, N> r; \
    for (int i = 0; i < N; i++) { E x = v[i]; r[i] = expression; } \
    return r; \
  } \
  template <typename E, int N> inline class_vector_mtl<E, N> name(class_vector_mtl<E, N> v, ushort n) { \
    class_vector_mtl<E, N> r; \
    for (int i = 0; i < N; i++) { E x = v[i]; r[i] = (E)(expression); } \
    return r; \
  }

//@ simd_sum : lanes_mtl
LANEWISE_MTL(simd_sum, sub_group_reduce_add(x))
//@ extreme_mtl
// Intel's reductions of floats compare lane by lane; those of integers do not. Floats in their order as integers: NaN is
// ``nan``, an end of the order, so that it loses against any number.
inline int in_order_mtl(float x, int nan) { int i = as_int(x); return x != x ? nan : i ^ ((i >> 31) & 0x7fffffff); }
inline float from_order_mtl(int i) { return as_float(i ^ ((i >> 31) & 0x7fffffff)); }
template <typename T> inline T lanes_max_mtl(T x) { return (T)sub_group_reduce_max(x); }
template <typename T> inline T lanes_min_mtl(T x) { return (T)sub_group_reduce_min(x); }
inline float lanes_max_mtl(float x) { return from_order_mtl(sub_group_reduce_max(in_order_mtl(x, (int)0x80000000))); }
inline float lanes_min_mtl(float x) { return from_order_mtl(sub_group_reduce_min(in_order_mtl(x, 0x7fffffff))); }
//@ simd_max : lanes_mtl extreme_mtl
LANEWISE_MTL(simd_max, lanes_max_mtl(x))
//@ simd_min : lanes_mtl extreme_mtl
LANEWISE_MTL(simd_min, lanes_min_mtl(x))
//@ simd_product : lanes_mtl
LANEWISE_MTL(simd_product, sub_group_non_uniform_reduce_mul(x))
//@ simd_and : lanes_mtl
LANEWISE_MTL(simd_and, sub_group_non_uniform_reduce_and(x))
//@ simd_or : lanes_mtl
LANEWISE_MTL(simd_or, sub_group_non_uniform_reduce_or(x))
//@ simd_xor : lanes_mtl
LANEWISE_MTL(simd_xor, sub_group_non_uniform_reduce_xor(x))
//@ simd_prefix_exclusive_sum : lanes_mtl
LANEWISE_MTL(simd_prefix_exclusive_sum, sub_group_non_uniform_scan_exclusive_add(x))
//@ simd_prefix_inclusive_sum : lanes_mtl
LANEWISE_MTL(simd_prefix_inclusive_sum, sub_group_non_uniform_scan_inclusive_add(x))
//@ simd_prefix_exclusive_product : lanes_mtl
LANEWISE_MTL(simd_prefix_exclusive_product, sub_group_non_uniform_scan_exclusive_mul(x))
//@ simd_prefix_inclusive_product : lanes_mtl
LANEWISE_MTL(simd_prefix_inclusive_product, sub_group_non_uniform_scan_inclusive_mul(x))
//@ simd_broadcast : lanes_mtl
LANEWISE_WITH_MTL(simd_broadcast, sub_group_broadcast(x, (uint)n))
//@ simd_broadcast_first : lanes_mtl
LANEWISE_MTL(simd_broadcast_first, sub_group_broadcast_first(x))
//@ simd_shuffle : lanes_mtl
LANEWISE_WITH_MTL(simd_shuffle, from_lane_mtl(x, (uint)n))
//@ rotated_mtl : lanes_mtl
// Rotations move registers, and read no memory.
#ifdef TOGETHER_MTL
template <typename T> struct is_rotated_mtl { static constexpr bool value = false; };
#define ROTATED_MTL(T) template <> struct is_rotated_mtl<T> { static constexpr bool value = true; };
ROTATED_MTL(char) ROTATED_MTL(uchar) ROTATED_MTL(short) ROTATED_MTL(ushort) ROTATED_MTL(int) ROTATED_MTL(uint)
ROTATED_MTL(long) ROTATED_MTL(ulong) ROTATED_MTL(half) ROTATED_MTL(float)
#undef ROTATED_MTL
template <typename T> inline T rotated_mtl(T x, uint n) {
  if constexpr (is_rotated_mtl<T>::value) return sub_group_rotate(x, (int)(n & 31));
  else if constexpr (sizeof(T) == sizeof(ushort)) return __builtin_bit_cast(T, sub_group_rotate(__builtin_bit_cast(ushort, x), (int)(n & 31)));
  else return from_lane_mtl(x, get_sub_group_local_id() + n);
}
template <typename T> inline T flipped_mtl(T x, uint n) {
  if (n & (n - 1)) return from_lane_mtl(x, get_sub_group_local_id() ^ n);
  T above = rotated_mtl(x, n), below = rotated_mtl(x, 32 - n);
  return get_sub_group_local_id() & n ? below : above;
}
#else
template <typename T> inline T rotated_mtl(T x, uint n) { return from_lane_mtl(x, (get_sub_group_local_id() + n) & 31); }
template <typename T> inline T flipped_mtl(T x, uint n) { return from_lane_mtl(x, get_sub_group_local_id() ^ n); }
#endif
// A lane whose partner lies outside keeps its own value.
template <typename T> inline T from_above_mtl(T x, uint n) { T y = rotated_mtl(x, n); return get_sub_group_local_id() + n < 32 ? y : x; }
template <typename T> inline T from_below_mtl(T x, uint n) { T y = rotated_mtl(x, 32 - n); return get_sub_group_local_id() >= n ? y : x; }
//@ simd_shuffle_xor : rotated_mtl
LANEWISE_WITH_MTL(simd_shuffle_xor, flipped_mtl(x, (uint)n))
//@ simd_shuffle_down : rotated_mtl
LANEWISE_WITH_MTL(simd_shuffle_down, from_above_mtl(x, (uint)n))
//@ simd_shuffle_up : rotated_mtl
LANEWISE_WITH_MTL(simd_shuffle_up, from_below_mtl(x, (uint)n))
//@ simd_shuffle_rotate_down : rotated_mtl
LANEWISE_WITH_MTL(simd_shuffle_rotate_down, rotated_mtl(x, (uint)n))
//@ simd_shuffle_rotate_up : rotated_mtl
LANEWISE_WITH_MTL(simd_shuffle_rotate_up, rotated_mtl(x, 32 - (uint)n))

//@ quad_sum : lanes_mtl
LANEWISE_MTL(quad_sum, sub_group_clustered_reduce_add(x, 4))
//@ quad_product : lanes_mtl
LANEWISE_MTL(quad_product, sub_group_clustered_reduce_mul(x, 4))
//@ quad_max : lanes_mtl
LANEWISE_MTL(quad_max, sub_group_clustered_reduce_max(x, 4))
//@ quad_min : lanes_mtl
LANEWISE_MTL(quad_min, sub_group_clustered_reduce_min(x, 4))
//@ quad_and : lanes_mtl
LANEWISE_MTL(quad_and, sub_group_clustered_reduce_and(x, 4))
//@ quad_or : lanes_mtl
LANEWISE_MTL(quad_or, sub_group_clustered_reduce_or(x, 4))
//@ quad_xor : lanes_mtl
LANEWISE_MTL(quad_xor, sub_group_clustered_reduce_xor(x, 4))
//@ quad_broadcast quad_shuffle : lanes_mtl
LANEWISE_WITH_MTL(quad_broadcast, from_lane_mtl(x, (get_sub_group_local_id() & ~3u) | (n & 3u)))
LANEWISE_WITH_MTL(quad_shuffle, from_lane_mtl(x, (get_sub_group_local_id() & ~3u) | (n & 3u)))
//@ quad_shuffle_xor : lanes_mtl
LANEWISE_WITH_MTL(quad_shuffle_xor, from_lane_mtl(x, get_sub_group_local_id() ^ (n & 3u)))
//@ quad_shuffle_down : lanes_mtl
LANEWISE_WITH_MTL(quad_shuffle_down, from_lane_mtl(x, (get_sub_group_local_id() & 3) + n < 4 ? get_sub_group_local_id() + n : get_sub_group_local_id()))
//@ quad_shuffle_up : lanes_mtl
LANEWISE_WITH_MTL(quad_shuffle_up, from_lane_mtl(x, (get_sub_group_local_id() & 3) >= n ? get_sub_group_local_id() - n : get_sub_group_local_id()))
//@ quad_shuffle_rotate_down : lanes_mtl
LANEWISE_WITH_MTL(quad_shuffle_rotate_down, from_lane_mtl(x, (get_sub_group_local_id() & ~3u) | ((get_sub_group_local_id() + n) & 3)))
//@ quad_shuffle_rotate_up : lanes_mtl
LANEWISE_WITH_MTL(quad_shuffle_rotate_up, from_lane_mtl(x, (get_sub_group_local_id() & ~3u) | ((get_sub_group_local_id() - n) & 3)))

//@ quad_lanes_mtl
template <typename T> inline T quad_up_mtl(T x, uint n) { uint lane = get_sub_group_local_id(); return from_lane_mtl(x, (lane & 3) >= n ? lane - n : lane); }
template <typename T> inline T quad_scan_sum_mtl(T x) {
  uint lane = get_sub_group_local_id() & 3;
  T y = quad_up_mtl(x, 1);
  if (lane >= 1) x = (T)(x + y);
  T z = quad_up_mtl(x, 2);
  if (lane >= 2) x = (T)(x + z);
  return x;
}
template <typename T> inline T quad_scan_product_mtl(T x) {
  uint lane = get_sub_group_local_id() & 3;
  T y = quad_up_mtl(x, 1);
  if (lane >= 1) x = (T)(x * y);
  T z = quad_up_mtl(x, 2);
  if (lane >= 2) x = (T)(x * z);
  return x;
}
template <typename T> inline T quad_shifted_mtl(T x, T first) { T y = quad_up_mtl(x, 1); return (get_sub_group_local_id() & 3) ? y : first; }
//@ quad_prefix_inclusive_sum : lanes_mtl quad_lanes_mtl
LANEWISE_MTL(quad_prefix_inclusive_sum, quad_scan_sum_mtl(x))
//@ quad_prefix_exclusive_sum : lanes_mtl quad_lanes_mtl
LANEWISE_MTL(quad_prefix_exclusive_sum, quad_shifted_mtl(quad_scan_sum_mtl(x), (decltype(x))0))
//@ quad_prefix_inclusive_product : lanes_mtl quad_lanes_mtl
LANEWISE_MTL(quad_prefix_inclusive_product, quad_scan_product_mtl(x))
//@ quad_prefix_exclusive_product : lanes_mtl quad_lanes_mtl
LANEWISE_MTL(quad_prefix_exclusive_product, quad_shifted_mtl(quad_scan_product_mtl(x), (decltype(x))1))

//@ simd_all simd_any
inline bool simd_all(bool x) { return sub_group_non_uniform_all(x); }
inline bool simd_any(bool x) { return sub_group_non_uniform_any(x); }
//@ quad_all quad_any
inline bool quad_all(bool x) { return sub_group_clustered_reduce_min((int)x, 4); }
inline bool quad_any(bool x) { return sub_group_clustered_reduce_max((int)x, 4); }
//@ simd_lane_mtl
inline ushort simd_lane_mtl() { return (ushort)lane_mtl(get_sub_group_local_id()); }
//@ simd_group_mtl
inline uint simd_group_mtl() { return sub_group_broadcast((uint)get_local_id(0) / 32, 0); }
//@ simd_is_first
inline bool simd_is_first() { return sub_group_elect(); }
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
inline simd_vote simd_ballot(bool x) { return simd_vote((ulong)sub_group_ballot(x).x); }
inline simd_vote simd_active_threads_mask() { return simd_ballot(true); }
//@ quad_vote quad_ballot quad_active_threads_mask
struct quad_vote {
  typedef uint vote_t;
  vote_t bits_mtl;
  quad_vote() = default;
  explicit quad_vote(vote_t v) : bits_mtl(v) {}
  explicit operator vote_t() const { return bits_mtl; }
  bool all_mtl() const { return bits_mtl == 15; }
  bool any_mtl() const { return bits_mtl != 0; }
};
inline quad_vote quad_ballot(bool x) { return quad_vote((sub_group_ballot(x).x >> (get_sub_group_local_id() & 28)) & 15); }
inline quad_vote quad_active_threads_mask() { return quad_ballot(true); }
//@ quad_first_mtl : quad_vote ctz
inline uint quad_first_mtl() { return ctz(quad_active_threads_mask().bits_mtl); }
//@ quad_is_first : quad_first_mtl
inline bool quad_is_first() { return (get_sub_group_local_id() & 3) == quad_first_mtl(); }
//@ quad_broadcast_first : lanes_mtl quad_first_mtl
LANEWISE_MTL(quad_broadcast_first, from_lane_mtl(x, (get_sub_group_local_id() & 28) + quad_first_mtl()))
