// <metal_simdgroup_matrix>: 8x8, two neighbouring elements of a row per lane, in the layout that Apple's GPUs use.
//@ simdgroup_matrix simdgroup_float8x8 simdgroup_half8x8 simdgroup_load simdgroup_store simdgroup_multiply_accumulate simdgroup_multiply make_filled_simdgroup_matrix : simd_shuffle construct_mtl construct_one_mtl fma
inline uint matrix_row_mtl(uint lane) { return ((lane >> 4) & 1) * 4 + ((lane >> 1) & 3); }
inline uint matrix_column_mtl(uint lane) { return ((lane >> 3) & 1) * 4 + (lane & 1) * 2; }
inline uint matrix_lane_mtl(uint row, uint column) { return ((row >> 2) << 4) | ((column >> 2) << 3) | ((row & 3) << 1) | ((column >> 1) & 1); }
// Two neighbouring elements.
template <typename T> struct matrix_pair_mtl { typedef vec_mtl<T, 2> type; };
template <typename T> using matrix_pair_mtl_t = typename matrix_pair_mtl<T>::type;
template <typename T> inline matrix_pair_mtl_t<T> make_matrix_pair_mtl(T first, T second) {
  matrix_pair_mtl_t<T> pair;
  pair.x = first;
  pair.y = second;
  return pair;
}
template <typename T, int C, int R = C> struct simdgroup_matrix {
  static_assert(C == 8 && R == 8, "a simdgroup_matrix is 8x8");
  matrix_pair_mtl_t<T> elements_mtl;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) {
    uint lane = lane_index_mtl(), row = matrix_row_mtl(lane), column = matrix_column_mtl(lane);
    elements_mtl.x = row == column ? diagonal : (T)0;
    elements_mtl.y = row == column + 1 ? diagonal : (T)0;
  }
  __private matrix_pair_mtl_t<T> &thread_elements() __private { return elements_mtl; }
  const __private matrix_pair_mtl_t<T> &thread_elements() const __private { return elements_mtl; }
  // In a member function of a class that has matrices.
  matrix_pair_mtl_t<T> &thread_elements() { return elements_mtl; }
  const matrix_pair_mtl_t<T> &thread_elements() const { return elements_mtl; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
template <typename T, int C, int R = C, typename U> inline simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(U value) {
  simdgroup_matrix<T, C, R> m;
  m.elements_mtl = make_matrix_pair_mtl<T>((T)value, (T)value);
  return m;
}
// Two halves are read as one number: processors gather no shorter ones.
typedef uint two_halves_mtl __attribute__((aligned(2), may_alias));
#define MATRIX_MOVES_MTL(space) \
  template <typename T> inline matrix_pair_mtl_t<T> neighbours_mtl(const space T *p) { return make_matrix_pair_mtl<T>(p[0], p[1]); } \
  inline half2 neighbours_mtl(const space half *p) { return as_half2(*(const space two_halves_mtl *)p); } \
  template <typename T> inline void simdgroup_load(__private simdgroup_matrix<T, 8, 8> &m, const space T *source, ulong row_elements = 8, vec_mtl<ulong, 2> origin = (vec_mtl<ulong, 2>)(0ul), bool transposed = false) { \
    uint lane = lane_index_mtl(), row = matrix_row_mtl(lane), column = matrix_column_mtl(lane); \
    const space T *p = source + origin.y * row_elements + origin.x; \
    if (transposed) { m.elements_mtl.x = p[column * row_elements + row]; m.elements_mtl.y = p[(column + 1) * row_elements + row]; } \
    else { m.elements_mtl = neighbours_mtl(p + row * row_elements + column); } \
  } \
  template <typename T> inline void simdgroup_store(simdgroup_matrix<T, 8, 8> m, space T *destination, ulong row_elements = 8, vec_mtl<ulong, 2> origin = (vec_mtl<ulong, 2>)(0ul), bool transposed = false) { \
    uint lane = lane_index_mtl(), row = matrix_row_mtl(lane), column = matrix_column_mtl(lane); \
    space T *p = destination + origin.y * row_elements + origin.x; \
    if (transposed) { p[column * row_elements + row] = m.elements_mtl.x; p[(column + 1) * row_elements + row] = m.elements_mtl.y; } \
    else { p[row * row_elements + column] = m.elements_mtl.x; p[row * row_elements + column + 1] = m.elements_mtl.y; } \
  }
MATRIX_MOVES_MTL(__global)
#ifdef __OPENCL_VERSION__
MATRIX_MOVES_MTL(__local)
#endif
#undef MATRIX_MOVES_MTL
#ifdef TOGETHER_MTL
// ``x`` of the thread whose bit of the lane is ``value``, and whose others are this one's.
template <typename T> inline T at_bit_mtl(T x, uint bit, bool value) {
  T above = sub_group_rotate(x, (int)bit), below = sub_group_rotate(x, (int)(32 - bit));
  bool is_set = (lane_index_mtl() & bit) != 0;
  return is_set == value ? x : is_set ? below : above;
}
inline float2 at_bit_mtl(float2 x, uint bit, bool value) { return (float2)(at_bit_mtl(x.x, bit, value), at_bit_mtl(x.y, bit, value)); }
// A column of a and a row of b for each product, moved in registers: a row is bits 4, 2 and 1 of the lane, a pair of columns
// bits 3 and 0. A function of its own: kernels with many products in line took three seconds to compile, and are not faster.
__attribute__((noinline)) float2 matrix_product_mtl(float2 a, float2 b, float2 sum) {
  for (uint half_k = 0; half_k < 2; half_k++) {
    float2 columns = at_bit_mtl(a, 8, half_k), rows = at_bit_mtl(b, 16, half_k);
    for (uint pair = 0; pair < 2; pair++) {
      float2 two_columns = at_bit_mtl(columns, 1, pair), two_rows = at_bit_mtl(rows, 4, pair);
      float2 row = at_bit_mtl(two_rows, 2, false);
      sum.x = fma_mtl(two_columns.x, row.x, sum.x);
      sum.y = fma_mtl(two_columns.x, row.y, sum.y);
      row = at_bit_mtl(two_rows, 2, true);
      sum.x = fma_mtl(two_columns.y, row.x, sum.x);
      sum.y = fma_mtl(two_columns.y, row.y, sum.y);
    }
  }
  return sum;
}
#else
template <typename T> inline T at_bit_mtl(T x, uint bit, bool value) { return simd_shuffle(x, (ushort)(value ? lane_index_mtl() | bit : lane_index_mtl() & ~bit)); }
__attribute__((noinline)) float2 matrix_product_mtl(float2 a, float2 b, float2 sum) {
  uint lane = lane_index_mtl(), row = matrix_row_mtl(lane), column = matrix_column_mtl(lane);
  for (uint k = 0; k < 8; k++) {
    uint from_a = matrix_lane_mtl(row, k), from_b = matrix_lane_mtl(k, column);
    float x = simd_shuffle((k & 1) ? a.y : a.x, (ushort)from_a);
    sum.x = fma_mtl(x, simd_shuffle(b.x, (ushort)from_b), sum.x);
    sum.y = fma_mtl(x, simd_shuffle(b.y, (ushort)from_b), sum.y);
  }
  return sum;
}
#endif
template <typename T> inline float2 matrix_floats_mtl(matrix_pair_mtl_t<T> x) { return (float2)((float)x.x, (float)x.y); }
template <typename D, typename A, typename B, typename S>
inline void simdgroup_multiply_accumulate(__private simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<S, 8, 8> c) {
  float2 sum = matrix_product_mtl(matrix_floats_mtl<A>(a.elements_mtl), matrix_floats_mtl<B>(b.elements_mtl), matrix_floats_mtl<S>(c.elements_mtl));
  d.elements_mtl.x = (D)sum.x;
  d.elements_mtl.y = (D)sum.y;
}
template <typename D, typename A, typename B> inline void simdgroup_multiply(__private simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>((D)0));
}
// Members of objects that are in no address space with a name.
template <typename D, typename A, typename B, typename S>
inline void simdgroup_multiply_accumulate(__generic simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<S, 8, 8> c) {
  simdgroup_matrix<D, 8, 8> product;
  simdgroup_multiply_accumulate(product, a, b, c);
  d = product;
}
template <typename D, typename A, typename B> inline void simdgroup_multiply(__generic simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>((D)0));
}
template <typename T, typename S> inline void simdgroup_load(__generic simdgroup_matrix<T, 8, 8> &m, S *source, ulong row_elements = 8, vec_mtl<ulong, 2> origin = (vec_mtl<ulong, 2>)(0ul), bool transposed = false) {
  simdgroup_matrix<T, 8, 8> loaded;
  simdgroup_load(loaded, source, row_elements, origin, transposed);
  m = loaded;
}
template <typename T> inline simdgroup_matrix<T, 8, 8> operator*(simdgroup_matrix<T, 8, 8> a, simdgroup_matrix<T, 8, 8> b) {
  simdgroup_matrix<T, 8, 8> d;
  simdgroup_multiply(d, a, b);
  return d;
}

//@ simdgroup_bfloat8x8 : simdgroup_matrix bfloat2
template <> struct matrix_pair_mtl<bfloat> { typedef bfloat2 type; };
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

//@ matrix_storage_mtl : simdgroup_matrix
template <typename T> using matrix_storage_mtl = simdgroup_matrix<T, 8, 8>;
//@ multiply_accumulated_mtl : matrix_storage_mtl simdgroup_multiply_accumulate
template <typename A, typename B, typename C>
inline matrix_storage_mtl<C> multiply_accumulated_mtl(matrix_storage_mtl<A> a, matrix_storage_mtl<B> b, matrix_storage_mtl<C> c, matrix_storage_mtl<C>) {
  matrix_storage_mtl<C> product;
  simdgroup_multiply_accumulate(product, a, b, c);
  return product;
}
//@ add_square_product_mtl turn_square_mtl : simdgroup_matrix
// Squares of 16 x 16, of which a lane has four neighbours in each of two rows. A row is, from its highest bit on, that half,
// and bits 4, 2 and 1 of the lane; a column is bits 3 and 0 of the lane and the neighbour. Functions of their own, as above.
#define SQUARES_MTL(T, T4, T8) \
  inline T4 at_bit_mtl(T4 x, uint bit, bool value) { return (T4)(at_bit_mtl(x.x, bit, value), at_bit_mtl(x.y, bit, value), at_bit_mtl(x.z, bit, value), at_bit_mtl(x.w, bit, value)); } \
  inline T8 at_bit_mtl(T8 x, uint bit, bool value) { return (T8)(at_bit_mtl(x.lo, bit, value), at_bit_mtl(x.hi, bit, value)); } \
  __attribute__((noinline)) T8 square_product_mtl(T8 a, T8 b, T8 sum) { \
    _Pragma("unroll") for (uint half_k = 0; half_k < 2; half_k++) { \
      T8 of_a = at_bit_mtl(a, 8, half_k); \
      T4 of_b = half_k ? b.hi : b.lo; \
      _Pragma("unroll") for (uint quarter = 0; quarter < 2; quarter++) { \
        T8 columns = at_bit_mtl(of_a, 1, quarter); \
        T4 rows = at_bit_mtl(of_b, 16, quarter); \
        _Pragma("unroll") for (uint k = 0; k < 4; k++) { \
          T4 row = at_bit_mtl(at_bit_mtl(rows, 4, k / 2), 2, k % 2); \
          sum.lo += columns[k] * row; \
          sum.hi += columns[4 + k] * row; \
        } \
      } \
    } \
    return sum; \
  } \
  inline void swap_bits_mtl(__private T &first, __private T &second, uint bit) { \
    bool is_set = (lane_index_mtl() & bit) != 0; \
    T got = at_bit_mtl(is_set ? first : second, bit, !is_set); \
    if (is_set) first = got; \
    else second = got; \
  } \
  __attribute__((noinline)) T8 turned_square_mtl(T8 square) { \
    T x[8]; \
    for (uint i = 0; i < 8; i++) x[i] = square[i]; \
    bool moves = ((lane_index_mtl() >> 4 ^ lane_index_mtl()) & 1) != 0; \
    bool to_16 = (lane_index_mtl() & 1) != 0, to_1 = (lane_index_mtl() & 16) != 0; \
    _Pragma("unroll") for (uint i = 0; i < 4; i++) swap_bits_mtl(x[i], x[4 + i], 8); \
    _Pragma("unroll") for (uint i = 0; i < 8; i += 4) { \
      swap_bits_mtl(x[i], x[i + 2], 4); \
      swap_bits_mtl(x[i + 1], x[i + 3], 4); \
      swap_bits_mtl(x[i], x[i + 1], 2); \
      swap_bits_mtl(x[i + 2], x[i + 3], 2); \
    } \
    _Pragma("unroll") for (uint i = 0; i < 8; i++) { \
      T other = at_bit_mtl(at_bit_mtl(x[i], 16, !to_1), 1, !to_16); \
      square[i] = moves ? other : x[i]; \
    } \
    return square; \
  } \
  inline void add_square_product_mtl(__private T4 &upper, __private T4 &lower, T4 a_upper, T4 a_lower, T4 b_upper, T4 b_lower) { \
    T8 sum = square_product_mtl((T8)(a_upper, a_lower), (T8)(b_upper, b_lower), (T8)(upper, lower)); \
    upper = sum.lo; \
    lower = sum.hi; \
  } \
  inline void turn_square_mtl(__private T4 &upper, __private T4 &lower) { \
    T8 turned = turned_square_mtl((T8)(upper, lower)); \
    upper = turned.lo; \
    lower = turned.hi; \
  }
SQUARES_MTL(float, float4, float8)
SQUARES_MTL(int, int4, int8)
#undef SQUARES_MTL
