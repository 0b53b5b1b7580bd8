// <metal_matrix>: columns of vectors.
//@ matrix : construct_one_mtl scalar_mtl in_each_space_mtl
template <typename T, int C, int R> struct matrix {
  vector_mtl<T, R> columns[C];
  matrix() = default;
  explicit constexpr matrix(T diagonal) : matrix(columns_mtl<C>(), on_diagonal_mtl(diagonal)) {}
  // From C columns or from C * R elements; never from one value of either.
  template <typename A, typename B, typename... E> constexpr matrix(A first, B second, E... rest) : matrix(count_mtl<sizeof...(E) + 2>(), first, second, rest...) {}
  // Columns in braces have no type of their own.
  struct braces_mtl {
    vector_mtl<T, R> v;
    constexpr braces_mtl(vector_mtl<T, R> a) : v(a) {}
    constexpr braces_mtl(T a, T b) : v{a, b} {}
    constexpr braces_mtl(T a, T b, T c) : v{a, b, c} {}
    constexpr braces_mtl(T a, T b, T c, T d) : v{a, b, c, d} {}
  };
  constexpr matrix(braces_mtl a, braces_mtl b) : columns{a.v, b.v} { static_assert(C == 2, "a matrix takes as many columns as it has"); }
  constexpr matrix(braces_mtl a, braces_mtl b, braces_mtl c) : columns{a.v, b.v, c.v} { static_assert(C == 3, "a matrix takes as many columns as it has"); }
  constexpr matrix(braces_mtl a, braces_mtl b, braces_mtl c, braces_mtl d) : columns{a.v, b.v, c.v, d.v} { static_assert(C == 4, "a matrix takes as many columns as it has"); }
  template <int> struct count_mtl {};
  template <int> struct columns_mtl {};
  template <int> struct rows_mtl {};
  struct elements_mtl { T at[C * R]; };
  template <typename A, typename B, typename... E> constexpr matrix(count_mtl<C>, A first, B second, E... rest) : columns{first, second, rest...} {}
  template <typename A, typename B, typename... E> constexpr matrix(count_mtl<C * R>, A first, B second, E... rest) : matrix(columns_mtl<C>(), elements_mtl{{(T)first, (T)second, (T)rest...}}) {}
  constexpr matrix(columns_mtl<2>, elements_mtl e) : columns{column_mtl(rows_mtl<R>(), e, 0), column_mtl(rows_mtl<R>(), e, 1)} {}
  constexpr matrix(columns_mtl<3>, elements_mtl e) : columns{column_mtl(rows_mtl<R>(), e, 0), column_mtl(rows_mtl<R>(), e, 1), column_mtl(rows_mtl<R>(), e, 2)} {}
  constexpr matrix(columns_mtl<4>, elements_mtl e) : columns{column_mtl(rows_mtl<R>(), e, 0), column_mtl(rows_mtl<R>(), e, 1), column_mtl(rows_mtl<R>(), e, 2), column_mtl(rows_mtl<R>(), e, 3)} {}
  static constexpr vector_mtl<T, R> column_mtl(rows_mtl<2>, elements_mtl e, int c) { return vector_mtl<T, R>{e.at[c * R], e.at[c * R + 1]}; }
  static constexpr vector_mtl<T, R> column_mtl(rows_mtl<3>, elements_mtl e, int c) { return vector_mtl<T, R>{e.at[c * R], e.at[c * R + 1], e.at[c * R + 2]}; }
  static constexpr vector_mtl<T, R> column_mtl(rows_mtl<4>, elements_mtl e, int c) { return vector_mtl<T, R>{e.at[c * R], e.at[c * R + 1], e.at[c * R + 2], e.at[c * R + 3]}; }
  static constexpr elements_mtl on_diagonal_mtl(T value) {
    elements_mtl e = {};
    for (int c = 0; c < C && c < R; c++) e.at[c * R + c] = value;
    return e;
  }
  template <typename U> explicit matrix(const matrix<U, C, R> &m) { for (int c = 0; c < C; c++) columns[c] = construct_one_mtl<vector_mtl<T, R>>(m.columns[c]); }
  const vector_mtl<T, R> &operator[](int c) const & { return columns[c]; }
  vector_mtl<T, R> operator[](int c) const && { return columns[c]; }
  vector_mtl<T, R> &operator[](int c) & { return columns[c]; }
  IN_EACH_SPACE_MTL(int, columns, vector_mtl<T, R>)
};
template <typename T, int C, int R> inline vec_mtl<T, R> operator*(matrix<T, C, R> m, vec_mtl<T, C> v) {
  vec_mtl<T, R> r = m.columns[0] * v[0];
  for (int c = 1; c < C; c++) r = r + m.columns[c] * v[c];
  return r;
}
template <typename T, int C, int R> inline vec_mtl<T, C> operator*(vec_mtl<T, R> v, matrix<T, C, R> m) {
  vec_mtl<T, C> r;
  for (int c = 0; c < C; c++) {
    T sum = v[0] * m.columns[c][0];
    for (int k = 1; k < R; k++) sum = sum + v[k] * m.columns[c][k];
    r[c] = sum;
  }
  return r;
}
template <typename T, int C, int R> inline vec_mtl<T, R> operator*(matrix<T, C, R> m, packed_vector_mtl<T, C> v) { return m * unpack_mtl(v); }
template <typename T, int C, int R> inline vec_mtl<T, C> operator*(packed_vector_mtl<T, R> v, matrix<T, C, R> m) { return unpack_mtl(v) * m; }
#ifdef __OPENCL_VERSION__
template <typename T, int C, int R, typename V, int N, int... I> inline vec_mtl<T, R> operator*(matrix<T, C, R> m, swizzle_mtl<V, T, N, I...> v) { return m * unpack_mtl(v); }
template <typename T, int C, int R, typename V, int N, int... I> inline vec_mtl<T, C> operator*(swizzle_mtl<V, T, N, I...> v, matrix<T, C, R> m) { return unpack_mtl(v) * m; }
#endif
template <typename T, int C, int R, int K> inline matrix<T, C, R> operator*(matrix<T, K, R> a, matrix<T, C, K> b) {
  matrix<T, C, R> r;
  for (int c = 0; c < C; c++) r.columns[c] = a * b.columns[c];
  return r;
}
#define MATRIX_SCALAR_MTL typename S, typename require_mtl<is_scalar_mtl<S>::value>::type = 0
template <typename T, int C, int R, MATRIX_SCALAR_MTL> inline matrix<T, C, R> operator*(matrix<T, C, R> m, S s) { for (int c = 0; c < C; c++) m.columns[c] *= (T)s; return m; }
template <typename T, int C, int R, MATRIX_SCALAR_MTL> inline matrix<T, C, R> operator*(S s, matrix<T, C, R> m) { return m * s; }
template <typename T, int C, int R, MATRIX_SCALAR_MTL> inline matrix<T, C, R> &operator*=(matrix<T, C, R> &m, S s) { return m = m * s; }
template <typename T, int C, int R> inline matrix<T, C, R> &operator*=(matrix<T, C, R> &m, matrix<T, C, C> n) { return m = m * n; }
#undef MATRIX_SCALAR_MTL
template <typename T, int C, int R> inline matrix<T, C, R> operator+(matrix<T, C, R> a, matrix<T, C, R> b) { for (int c = 0; c < C; c++) a.columns[c] += b.columns[c]; return a; }
template <typename T, int C, int R> inline matrix<T, C, R> operator-(matrix<T, C, R> a, matrix<T, C, R> b) { for (int c = 0; c < C; c++) a.columns[c] -= b.columns[c]; return a; }
template <typename T, int C, int R> inline matrix<T, C, R> &operator+=(matrix<T, C, R> &a, matrix<T, C, R> b) { return a = a + b; }
template <typename T, int C, int R> inline matrix<T, C, R> &operator-=(matrix<T, C, R> &a, matrix<T, C, R> b) { return a = a - b; }
template <typename T, int C, int R> inline matrix<T, C, R> operator-(matrix<T, C, R> a) { for (int c = 0; c < C; c++) a.columns[c] = -a.columns[c]; return a; }
template <typename T, int C, int R> inline matrix<T, R, C> transpose(matrix<T, C, R> m) {
  matrix<T, R, C> r;
  for (int c = 0; c < C; c++) for (int k = 0; k < R; k++) r.columns[k][c] = m.columns[c][k];
  return r;
}
template <typename T> inline T determinant(matrix<T, 2, 2> m) { return m.columns[0].x * m.columns[1].y - m.columns[1].x * m.columns[0].y; }
template <typename T> inline T determinant(matrix<T, 3, 3> m) {
  vec_mtl<T, 3> a = m.columns[0], b = m.columns[1], c = m.columns[2];
  return a.x * (b.y * c.z - b.z * c.y) + a.y * (b.z * c.x - b.x * c.z) + a.z * (b.x * c.y - b.y * c.x);
}
template <typename T> inline T determinant(matrix<T, 4, 4> m) {
  vec_mtl<T, 4> a = m.columns[0], b = m.columns[1], c = m.columns[2], d = m.columns[3];
  T s0 = a.x * b.y - b.x * a.y, s1 = a.x * b.z - b.x * a.z, s2 = a.x * b.w - b.x * a.w;
  T s3 = a.y * b.z - b.y * a.z, s4 = a.y * b.w - b.y * a.w, s5 = a.z * b.w - b.z * a.w;
  T t5 = c.z * d.w - d.z * c.w, t4 = c.y * d.w - d.y * c.w, t3 = c.y * d.z - d.y * c.z;
  T t2 = c.x * d.w - d.x * c.w, t1 = c.x * d.z - d.x * c.z, t0 = c.x * d.y - d.x * c.y;
  return s0 * t5 - s1 * t4 + s2 * t3 + s3 * t2 - s4 * t1 + s5 * t0;
}

//@ float2x2 float2x3 float2x4 float3x2 float3x3 float3x4 float4x2 float4x3 float4x4 : matrix
typedef matrix<float, 2, 2> float2x2; typedef matrix<float, 2, 3> float2x3; typedef matrix<float, 2, 4> float2x4;
typedef matrix<float, 3, 2> float3x2; typedef matrix<float, 3, 3> float3x3; typedef matrix<float, 3, 4> float3x4;
typedef matrix<float, 4, 2> float4x2; typedef matrix<float, 4, 3> float4x3; typedef matrix<float, 4, 4> float4x4;
//@ half2x2 half2x3 half2x4 half3x2 half3x3 half3x4 half4x2 half4x3 half4x4 : matrix
typedef matrix<half, 2, 2> half2x2; typedef matrix<half, 2, 3> half2x3; typedef matrix<half, 2, 4> half2x4;
typedef matrix<half, 3, 2> half3x2; typedef matrix<half, 3, 3> half3x3; typedef matrix<half, 3, 4> half3x4;
typedef matrix<half, 4, 2> half4x2; typedef matrix<half, 4, 3> half4x3; typedef matrix<half, 4, 4> half4x4;
//@ transpose determinant : matrix
// They come with the type.
