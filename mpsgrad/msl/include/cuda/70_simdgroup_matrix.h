// <metal_simdgroup_matrix>: 8x8, two elements per lane, multiplied by the tensor cores where both factors are half.
//
// A matrix is held in the layouts of the mma instructions: in rows (lane l has row l / 4, columns l % 4 * 2 and the next),
// which the left factor and the sum need, or in columns (the transpose of that), which the right factor needs; each is
// made of the other when it is first asked for. thread_elements() gives the layout of Apple's GPUs. Which of them exist is
// known to the compiler once everything is inlined. With ELEMENTS_KEPT_MTL that layout always exists: a program may ask for
// it where some threads do not come.
//@ simdgroup_matrix simdgroup_float8x8 simdgroup_half8x8 simdgroup_load simdgroup_store simdgroup_multiply_accumulate simdgroup_multiply make_filled_simdgroup_matrix simdgroup_multiply_accumulate_16x8x16 simdgroup_load_left_16x16 simdgroup_load_right_16x16 : simd_shuffle construct construct_one fma
#define MATRIX_FUNCTION_MTL __forceinline__
template <typename T> struct pair_mtl {
  T x, y;
  pair_mtl() = default;
  MATRIX_FUNCTION_MTL pair_mtl(T a, T b) : x(a), y(b) {}
  MATRIX_FUNCTION_MTL T first() const { return x; }
  MATRIX_FUNCTION_MTL T second() const { return y; }
};
template <> struct pair_mtl<half> {
  uint bits;
  pair_mtl() = default;
  MATRIX_FUNCTION_MTL pair_mtl(half a, half b) { asm("mov.b32 %0, {%1, %2};" : "=r"(bits) : "h"(a.bits), "h"(b.bits)); }
  MATRIX_FUNCTION_MTL half first() const { half h; h.bits = (ushort)bits; return h; }
  MATRIX_FUNCTION_MTL half second() const { half h; h.bits = (ushort)(bits >> 16); return h; }
};
MATRIX_FUNCTION_MTL pair_mtl<float> shuffle_pair_mtl(pair_mtl<float> a, uint lane) { return pair_mtl<float>(simd_shuffle(a.x, (ushort)lane), simd_shuffle(a.y, (ushort)lane)); }
MATRIX_FUNCTION_MTL pair_mtl<half> shuffle_pair_mtl(pair_mtl<half> a, uint lane) { pair_mtl<half> r; r.bits = __shfl_sync(0xffffffffu, a.bits, lane); return r; }
// The same matrix in the other of the two layouts.
MATRIX_FUNCTION_MTL pair_mtl<half> transpose_pair_mtl(pair_mtl<half> a) {
  pair_mtl<half> r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r.bits) : "r"(a.bits));
  return r;
}
MATRIX_FUNCTION_MTL pair_mtl<float> transpose_pair_mtl(pair_mtl<float> a) {
  uint lane = lane_index_mtl(), from = (lane & 3) * 8 + (lane >> 3);
  pair_mtl<float> upper = shuffle_pair_mtl(a, from), lower = shuffle_pair_mtl(a, from + 4);
  return lane & 4 ? pair_mtl<float>(upper.y, lower.y) : pair_mtl<float>(upper.x, lower.x);
}
// From the layout in rows to Apple's, and back.
template <typename T> MATRIX_FUNCTION_MTL pair_mtl<T> rows_to_apple_mtl(pair_mtl<T> a) { uint lane = lane_index_mtl(); return shuffle_pair_mtl(a, (lane & 0x11) | ((lane & 6) << 1) | ((lane & 8) >> 2)); }
template <typename T> MATRIX_FUNCTION_MTL pair_mtl<T> apple_to_rows_mtl(pair_mtl<T> a) { uint lane = lane_index_mtl(); return shuffle_pair_mtl(a, (lane & 0x11) | ((lane & 12) >> 1) | ((lane & 2) << 2)); }
template <typename T, int C, int R = C> struct simdgroup_matrix {
  static_assert(C == 8 && R == 8, "a simdgroup_matrix is 8x8");
  mutable pair_mtl<T> rows_mtl, columns_mtl;
  mutable bool has_rows_mtl = true, has_columns_mtl = false;
  mutable vec_mtl<T, 2> elements_mtl;
  MATRIX_FUNCTION_MTL simdgroup_matrix() {}
  MATRIX_FUNCTION_MTL explicit simdgroup_matrix(T diagonal) {
    uint lane = lane_index_mtl(), row = lane >> 2, column = (lane & 3) * 2;
    rows_mtl = pair_mtl<T>(row == column ? diagonal : (T)0, row == column + 1 ? diagonal : (T)0);
    keep_elements_mtl();
  }
  MATRIX_FUNCTION_MTL void set_rows_mtl(pair_mtl<T> pair) { rows_mtl = pair; has_rows_mtl = true; has_columns_mtl = false; keep_elements_mtl(); }
  MATRIX_FUNCTION_MTL void set_columns_mtl(pair_mtl<T> pair) { columns_mtl = pair; has_rows_mtl = false; has_columns_mtl = true; keep_elements_mtl(); }
  MATRIX_FUNCTION_MTL void convert_to_elements_mtl() const {
    pair_mtl<T> pair = rows_to_apple_mtl(in_rows_mtl());
    elements_mtl.x = pair.first();
    elements_mtl.y = pair.second();
  }
#ifdef ELEMENTS_KEPT_MTL
  MATRIX_FUNCTION_MTL void keep_elements_mtl() const { convert_to_elements_mtl(); }
  // Elements may have been written by some threads only.
  static MATRIX_FUNCTION_MTL bool lacks_mtl(bool exists) { return __any_sync(0xffffffffu, !exists); }
  MATRIX_FUNCTION_MTL bool makes_rows_of_columns_mtl() const { return __all_sync(0xffffffffu, has_columns_mtl); }
  MATRIX_FUNCTION_MTL const vec_mtl<T, 2> &thread_elements() const { return elements_mtl; }
  MATRIX_FUNCTION_MTL vec_mtl<T, 2> &thread_elements() {
    has_rows_mtl = has_columns_mtl = false;
    return elements_mtl;
  }
#else
  MATRIX_FUNCTION_MTL void keep_elements_mtl() const {}
  static MATRIX_FUNCTION_MTL bool lacks_mtl(bool exists) { return !exists; }
  MATRIX_FUNCTION_MTL bool makes_rows_of_columns_mtl() const { return has_columns_mtl; }
  MATRIX_FUNCTION_MTL const vec_mtl<T, 2> &thread_elements() const {
    if (has_rows_mtl || has_columns_mtl) {
      convert_to_elements_mtl();
      has_rows_mtl = has_columns_mtl = false;
    }
    return elements_mtl;
  }
  MATRIX_FUNCTION_MTL vec_mtl<T, 2> &thread_elements() {
    return const_cast<vec_mtl<T, 2> &>(static_cast<const simdgroup_matrix &>(*this).thread_elements());
  }
#endif
  MATRIX_FUNCTION_MTL pair_mtl<T> in_rows_mtl() const {
    if (lacks_mtl(has_rows_mtl)) {
      rows_mtl = makes_rows_of_columns_mtl() ? transpose_pair_mtl(columns_mtl) : apple_to_rows_mtl(pair_mtl<T>(elements_mtl.x, elements_mtl.y));
      has_rows_mtl = true;
    }
    return rows_mtl;
  }
  MATRIX_FUNCTION_MTL pair_mtl<T> in_columns_mtl() const {
    if (lacks_mtl(has_columns_mtl)) {
      columns_mtl = transpose_pair_mtl(in_rows_mtl());
      has_columns_mtl = true;
    }
    return columns_mtl;
  }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
template <typename T, int C, int R = C, typename U> MATRIX_FUNCTION_MTL simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(U value) {
  simdgroup_matrix<T, C, R> m;
  m.set_rows_mtl(pair_mtl<T>((T)value, (T)value));
  return m;
}
template <typename T> MATRIX_FUNCTION_MTL void simdgroup_load(simdgroup_matrix<T, 8, 8> &m, const T *source, ulong row_elements = 8, vec_mtl<ulong, 2> origin = vec_mtl<ulong, 2>(0ul), bool transposed = false) {
  uint lane = lane_index_mtl();
  const T *p = source + origin.y * row_elements + origin.x + (lane >> 2) * row_elements + (lane & 3) * 2;
  pair_mtl<T> pair(p[0], p[1]);
  if (transposed) m.set_columns_mtl(pair);
  else m.set_rows_mtl(pair);
}
template <typename T> MATRIX_FUNCTION_MTL void simdgroup_store(const simdgroup_matrix<T, 8, 8> &m, T *destination, ulong row_elements = 8, vec_mtl<ulong, 2> origin = vec_mtl<ulong, 2>(0ul), bool transposed = false) {
  uint lane = lane_index_mtl();
  T *p = destination + origin.y * row_elements + origin.x + (lane >> 2) * row_elements + (lane & 3) * 2;
  pair_mtl<T> pair = transposed ? m.in_columns_mtl() : m.in_rows_mtl();
  p[0] = pair.first();
  p[1] = pair.second();
}
// sum += a * b. The tensor core adds in float, whatever the sum is stored as.
template <typename D, typename A, typename B, typename S> struct matrix_product_mtl {
  static MATRIX_FUNCTION_MTL void accumulate(simdgroup_matrix<D, 8, 8> &d, const simdgroup_matrix<A, 8, 8> &a, const simdgroup_matrix<B, 8, 8> &b, const simdgroup_matrix<S, 8, 8> &c) {
    pair_mtl<A> rows_a = a.in_rows_mtl();
    pair_mtl<B> rows_b = b.in_rows_mtl();
    pair_mtl<S> sum = c.in_rows_mtl();
    float x = (float)sum.first(), y = (float)sum.second();
    uint lane = lane_index_mtl();
    for (uint k = 0; k < 8; k++) {
      pair_mtl<A> of_row = shuffle_pair_mtl(rows_a, (lane & 28) + k / 2);
      pair_mtl<B> of_columns = shuffle_pair_mtl(rows_b, k * 4 + (lane & 3));
      float factor = (float)(k & 1 ? of_row.second() : of_row.first());
      x = fma(factor, (float)of_columns.first(), x);
      y = fma(factor, (float)of_columns.second(), y);
    }
    d.set_rows_mtl(pair_mtl<D>((D)x, (D)y));
  }
};
template <typename D, typename S> struct matrix_product_mtl<D, half, half, S> {
  static MATRIX_FUNCTION_MTL void accumulate(simdgroup_matrix<D, 8, 8> &d, const simdgroup_matrix<half, 8, 8> &a, const simdgroup_matrix<half, 8, 8> &b, const simdgroup_matrix<S, 8, 8> &c) {
    pair_mtl<S> sum = c.in_rows_mtl();
    float x = (float)sum.first(), y = (float)sum.second(), lower_x = 0.0f, lower_y = 0.0f;
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(x), "+f"(y), "+f"(lower_x), "+f"(lower_y) : "r"(a.in_rows_mtl().bits), "r"(0u), "r"(b.in_columns_mtl().bits));
    d.set_rows_mtl(pair_mtl<D>((D)x, (D)y));
  }
};
template <typename D, typename A, typename B, typename S>
MATRIX_FUNCTION_MTL void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8> &d, const simdgroup_matrix<A, 8, 8> &a, const simdgroup_matrix<B, 8, 8> &b, const simdgroup_matrix<S, 8, 8> &c) {
  matrix_product_mtl<D, A, B, S>::accumulate(d, a, b, c);
}
template <typename D, typename A, typename B> MATRIX_FUNCTION_MTL void simdgroup_multiply(simdgroup_matrix<D, 8, 8> &d, const simdgroup_matrix<A, 8, 8> &a, const simdgroup_matrix<B, 8, 8> &b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>((D)0));
}
template <typename T> MATRIX_FUNCTION_MTL simdgroup_matrix<T, 8, 8> operator*(const simdgroup_matrix<T, 8, 8> &a, const simdgroup_matrix<T, 8, 8> &b) {
  simdgroup_matrix<T, 8, 8> d;
  simdgroup_multiply(d, a, b);
  return d;
}
// upper += a[0] * b, lower += a[1] * b with a 16 x 16 and b 16 x 8: one instruction, on Turing two. a holds the 8x8 parts row by row.
MATRIX_FUNCTION_MTL void simdgroup_multiply_accumulate_16x8x16(simdgroup_float8x8 &upper, simdgroup_float8x8 &lower, const simdgroup_half8x8 *a, const simdgroup_half8x8 *b) {
  pair_mtl<float> u = upper.in_rows_mtl(), l = lower.in_rows_mtl();
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
    : "+f"(u.x), "+f"(u.y), "+f"(l.x), "+f"(l.y)
    : "r"(a[0].in_rows_mtl().bits), "r"(a[2].in_rows_mtl().bits), "r"(a[1].in_rows_mtl().bits), "r"(a[3].in_rows_mtl().bits),
      "r"(b[0].in_columns_mtl().bits), "r"(b[1].in_columns_mtl().bits));
#else
  for (uint k = 0; k < 2; k++)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(u.x), "+f"(u.y), "+f"(l.x), "+f"(l.y)
      : "r"(a[k].in_rows_mtl().bits), "r"(a[k + 2].in_rows_mtl().bits), "r"(b[k].in_columns_mtl().bits));
#endif
  upper.set_rows_mtl(u);
  lower.set_rows_mtl(l);
}
// Four 8x8 matrices of threadgroup memory by one instruction, from rows of 16 that are aligned to 16 bytes: row by row, or
// column by column, of what is in memory.
MATRIX_FUNCTION_MTL void load_four_matrices_mtl(pair_mtl<half> *pairs, const half *source, ulong row_elements, bool transposed, bool by_columns) {
  uint lane = lane_index_mtl(), matrix = lane >> 3;
  uint row = (by_columns ? matrix & 1 : matrix >> 1) * 8 + (lane & 7), column = (by_columns ? matrix >> 1 : matrix & 1) * 8;
  uint address = (uint)__cvta_generic_to_shared(source + row * row_elements + column);
  if (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(pairs[0].bits), "=r"(pairs[1].bits), "=r"(pairs[2].bits), "=r"(pairs[3].bits) : "r"(address) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(pairs[0].bits), "=r"(pairs[1].bits), "=r"(pairs[2].bits), "=r"(pairs[3].bits) : "r"(address) : "memory");
}
// The parts of a 16x16 left factor, row by row, and of a right one, column by column.
MATRIX_FUNCTION_MTL void simdgroup_load_left_16x16(simdgroup_half8x8 *m, const half *source, ulong row_elements, bool transposed) {
  pair_mtl<half> pairs[4];
  // In the order in which the product takes them, so that no register has to be moved.
  load_four_matrices_mtl(pairs, source, row_elements, transposed, !transposed);
  for (uint i = 0; i < 4; i++) m[i % 2 * 2 + i / 2].set_rows_mtl(pairs[i]);
}
MATRIX_FUNCTION_MTL void simdgroup_load_right_16x16(simdgroup_half8x8 *m, const half *source, ulong row_elements, bool transposed) {
  pair_mtl<half> pairs[4];
  load_four_matrices_mtl(pairs, source, row_elements, !transposed, !transposed);
  for (uint i = 0; i < 4; i++) m[i].set_columns_mtl(pairs[i]);
}

//@ simdgroup_bfloat8x8 : simdgroup_matrix bfloat2
MATRIX_FUNCTION_MTL pair_mtl<float> floats_of_pair_mtl(pair_mtl<bfloat> a) { return pair_mtl<float>((float)a.x, (float)a.y); }
MATRIX_FUNCTION_MTL pair_mtl<bfloat> pair_of_floats_mtl(pair_mtl<float> a) { return pair_mtl<bfloat>((bfloat)a.x, (bfloat)a.y); }
MATRIX_FUNCTION_MTL pair_mtl<bfloat> shuffle_pair_mtl(pair_mtl<bfloat> a, uint lane) { return pair_of_floats_mtl(shuffle_pair_mtl(floats_of_pair_mtl(a), lane)); }
MATRIX_FUNCTION_MTL pair_mtl<bfloat> transpose_pair_mtl(pair_mtl<bfloat> a) { return pair_of_floats_mtl(transpose_pair_mtl(floats_of_pair_mtl(a))); }
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

//@ matrix_storage_mtl : simdgroup_matrix
// A matrix in the layout of Apple's GPUs, for who reaches its elements otherwise than by thread_elements().
template <typename T> struct matrix_storage_mtl { vec_mtl<T, 2> elements_mtl; };
//@ multiply_accumulated_mtl : matrix_storage_mtl simdgroup_multiply_accumulate
template <typename T> inline simdgroup_matrix<T, 8, 8> stored_mtl(const matrix_storage_mtl<T> &a) {
  simdgroup_matrix<T, 8, 8> m;
  m.thread_elements() = a.elements_mtl;
  return m;
}
template <typename A, typename B, typename C>
inline matrix_storage_mtl<C> multiply_accumulated_mtl(matrix_storage_mtl<A> a, matrix_storage_mtl<B> b, matrix_storage_mtl<C> c, matrix_storage_mtl<C>) {
  simdgroup_matrix<C, 8, 8> product;
  simdgroup_multiply_accumulate(product, stored_mtl(a), stored_mtl(b), stored_mtl(c));
  return {product.thread_elements()};
}
//@ add_square_product_mtl turn_square_mtl : simd_shuffle vec_mtl
// Squares of 16 x 16, of which a lane has four neighbours in each of two rows. A row is, from its highest bit on, that half,
// and bits 4, 2 and 1 of the lane; a column is bits 3 and 0 of the lane and the neighbour.
template <typename T> inline void add_square_product_mtl(vec_mtl<T, 4> &upper, vec_mtl<T, 4> &lower, vec_mtl<T, 4> a_upper, vec_mtl<T, 4> a_lower, vec_mtl<T, 4> b_upper, vec_mtl<T, 4> b_lower) {
  uint lane = lane_index_mtl();
  for (uint k = 0; k < 16; k++) {
    ushort of_a = (lane & 22) | (k & 8) | (k >> 2 & 1), of_b = (lane & 9) | (k << 2 & 16) | (k << 1 & 6);
    T high = simd_shuffle(a_upper[k % 4], of_a), low = simd_shuffle(a_lower[k % 4], of_a);
    for (uint i = 0; i < 4; i++) {
      T value = simd_shuffle(k < 8 ? b_upper[i] : b_lower[i], of_b);
      upper[i] += high * value;
      lower[i] += low * value;
    }
  }
}
template <typename T> inline void turn_square_mtl(vec_mtl<T, 4> &upper, vec_mtl<T, 4> &lower) {
  uint lane = lane_index_mtl();
  vec_mtl<T, 4> before[2] = {upper, lower};
  // The column of this lane's element becomes the row, whose neighbour is this lane's place in its four rows.
  for (uint row = 0; row < 2; row++)
    for (uint i = 0; i < 4; i++) {
      ushort from = (lane << 4 & 16) | i << 1 | row << 3 | (lane >> 4 & 1);
      T found = 0;
      for (uint half_k = 0; half_k < 2; half_k++)
        for (uint k = 0; k < 4; k++) {
          T value = simd_shuffle(before[half_k][k], from);
          if ((lane >> 3 & 1) == half_k && (lane >> 1 & 3) == k) found = value;
        }
      (row ? lower : upper)[i] = found;
    }
}
