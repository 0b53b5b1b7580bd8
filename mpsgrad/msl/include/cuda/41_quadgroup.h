// Quadgroup functions of which lanes are active, and scans. Lanes that do not take part are left out.
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
inline quad_vote quad_ballot(bool x) { return quad_vote(__ballot_sync(__activemask(), x) >> (lane_index_mtl() & 28) & 15); }
inline quad_vote quad_active_threads_mask() { return quad_ballot(true); }
//@ quad_is_first : quad_vote
inline bool quad_is_first() { return (lane_index_mtl() & 3) == __ffs((int)quad_active_threads_mask().bits_mtl) - 1; }
//@ quad_broadcast_first : quad_vote quad_shuffle
template <typename T> inline T quad_broadcast_first(T x) { return quad_shuffle(x, (ushort)(__ffs((int)quad_active_threads_mask().bits_mtl) - 1)); }
//@ quad_scan_mtl : quad_vote quad_shuffle
#define QUAD_SCAN_MTL(inclusive, exclusive, identity, op) \
  template <typename T> inline T exclusive(T x) { \
    T sum = (T)identity; \
    uint lanes = quad_active_threads_mask().bits_mtl; \
    for (uint from = 0; from < 3; from++) { \
      T y = quad_shuffle(x, (ushort)from); \
      if ((lanes >> from & 1) && from < (lane_index_mtl() & 3)) sum = (T)(sum op y); \
    } \
    return sum; \
  } \
  template <typename T> inline T inclusive(T x) { return (T)(exclusive(x) op x); }
//@ quad_prefix_inclusive_sum quad_prefix_exclusive_sum : quad_scan_mtl
QUAD_SCAN_MTL(quad_prefix_inclusive_sum, quad_prefix_exclusive_sum, 0, +)
//@ quad_prefix_inclusive_product quad_prefix_exclusive_product : quad_scan_mtl
QUAD_SCAN_MTL(quad_prefix_inclusive_product, quad_prefix_exclusive_product, 1, *)
