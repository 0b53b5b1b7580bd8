// <metal_simdgroup_matrix>: 8x8, two neighbouring elements of a row per lane, in the layout that Apple's GPUs use.
//@ simdgroup_matrix simdgroup_float8x8 simdgroup_half8x8 simdgroup_load simdgroup_store simdgroup_multiply_accumulate simdgroup_multiply make_filled_simdgroup_matrix
inline uint matrix_row_mtl(uint lane) { return ((lane >> 4) & 1) * 4 + ((lane >> 1) & 3); }
inline uint matrix_column_mtl(uint lane) { return ((lane >> 3) & 1) * 4 + (lane & 1) * 2; }
inline uint matrix_lane_mtl(uint row, uint column) { return ((row >> 2) << 4) | ((column >> 2) << 3) | ((row & 3) << 1) | ((column >> 1) & 1); }
template <typename T, int C, int R> struct simdgroup_matrix {
  static_assert(C == 8 && R == 8, "a simdgroup_matrix is 8x8");
  vec_mtl<T, 2> elements_mtl;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) {
    uint lane = get_sub_group_local_id(), row = matrix_row_mtl(lane), column = matrix_column_mtl(lane);
    elements_mtl = (vec_mtl<T, 2>)(row == column ? diagonal : (T)0, row == column + 1 ? diagonal : (T)0);
  }
  __private vec_mtl<T, 2> &thread_elements() __private { return elements_mtl; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
template <typename T, int C, int R, typename U> inline simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(U value) {
  simdgroup_matrix<T, C, R> m;
  m.elements_mtl = (vec_mtl<T, 2>)((T)value);
  return m;
}
#define MATRIX_MOVES_MTL(space) \
  template <typename T> inline void simdgroup_load(__private simdgroup_matrix<T, 8, 8> &m, const space T *source, ulong row_elements = 8, ulong2 origin = (ulong2)(0), bool transposed = false) { \
    uint lane = get_sub_group_local_id(), row = matrix_row_mtl(lane), column = matrix_column_mtl(lane); \
    const space T *p = source + origin.y * row_elements + origin.x; \
    m.elements_mtl.x = transposed ? p[column * row_elements + row] : p[row * row_elements + column]; \
    m.elements_mtl.y = transposed ? p[(column + 1) * row_elements + row] : p[row * row_elements + column + 1]; \
  } \
  template <typename T> inline void simdgroup_store(simdgroup_matrix<T, 8, 8> m, space T *destination, ulong row_elements = 8, ulong2 origin = (ulong2)(0), bool transposed = false) { \
    uint lane = get_sub_group_local_id(), row = matrix_row_mtl(lane), column = matrix_column_mtl(lane); \
    space T *p = destination + origin.y * row_elements + origin.x; \
    if (transposed) { p[column * row_elements + row] = m.elements_mtl.x; p[(column + 1) * row_elements + row] = m.elements_mtl.y; } \
    else { p[row * row_elements + column] = m.elements_mtl.x; p[row * row_elements + column + 1] = m.elements_mtl.y; } \
  }
MATRIX_MOVES_MTL(__global)
MATRIX_MOVES_MTL(__local)
#undef MATRIX_MOVES_MTL
template <typename D, typename A, typename B, typename S>
inline void simdgroup_multiply_accumulate(__private simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<S, 8, 8> c) {
  uint lane = get_sub_group_local_id(), row = matrix_row_mtl(lane), column = matrix_column_mtl(lane);
  float2 sum = __builtin_convertvector(c.elements_mtl, float2);
  for (uint k = 0; k < 8; k++) {
    uint from_a = matrix_lane_mtl(row, k), from_b = matrix_lane_mtl(k, column);
    float x = (float)sub_group_shuffle((k & 1) ? a.elements_mtl.y : a.elements_mtl.x, from_a);
    float2 y = (float2)((float)sub_group_shuffle(b.elements_mtl.x, from_b), (float)sub_group_shuffle(b.elements_mtl.y, from_b));
    sum = fma((float2)(x), y, sum);
  }
  d.elements_mtl = __builtin_convertvector(sum, vec_mtl<D, 2>);
}
template <typename D, typename A, typename B> inline void simdgroup_multiply(__private simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>((D)0));
}
template <typename T> inline simdgroup_matrix<T, 8, 8> operator*(simdgroup_matrix<T, 8, 8> a, simdgroup_matrix<T, 8, 8> b) {
  simdgroup_matrix<T, 8, 8> d;
  simdgroup_multiply(d, a, b);
  return d;
}
