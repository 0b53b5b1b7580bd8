// Products of two tiles in threadgroup memory by the simdgroups of a threadgroup, four for each 64 rows of the sums.
//
// A tile has rows of 64 half numbers, whose eight parts of 16 bytes are swapped about so that neither the rows nor the
// columns of parts meet in a bank. GPUs of compute capability 9.0 multiply such tiles without registers for the factors,
// while the threads work on; for others each simdgroup loads its factors.
//@ threadgroup_tile_part threadgroup_end_tile threadgroup_multiply_tiles threadgroup_wait_for_products simdgroup_scale_columns simdgroup_store_halves : simdgroup_float8x8 simdgroup_half8x8 simdgroup_multiply_accumulate_16x8x16
MATRIX_FUNCTION_MTL void simdgroup_scale_columns(simdgroup_float8x8 &upper, simdgroup_float8x8 &lower, const vec_mtl<float, 2> *numbers, int lane) {
  float4 two = *(const float4 *)(numbers + lane % 4 * 2);
  pair_mtl<float> above = upper.in_rows_mtl(), below = lower.in_rows_mtl();
  upper.set_rows_mtl(pair_mtl<float>(fmaf(above.x, two.x, two.y), fmaf(above.y, two.z, two.w)));
  lower.set_rows_mtl(pair_mtl<float>(fmaf(below.x, two.x, two.y), fmaf(below.y, two.z, two.w)));
}
inline int threadgroup_tile_part(int row, int part) { return row * 8 + (part ^ (row & 7)); }
MATRIX_FUNCTION_MTL void simdgroup_store_halves(const simdgroup_float8x8 &m, vec_mtl<uint, 4> *tile, int part, int lane) {
  pair_mtl<float> pair = m.in_rows_mtl();
  uint halves;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(pair.y), "f"(pair.x));
  ((uint *)(tile + threadgroup_tile_part(lane / 4, part)))[lane % 4] = halves;
}
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SUM_8_MTL(j) "+f"(upper[j].rows_mtl.x), "+f"(upper[j].rows_mtl.y), "+f"(lower[j].rows_mtl.x), "+f"(lower[j].rows_mtl.y)
#define SUM_32_MTL(j) SUM_8_MTL(j), SUM_8_MTL(j + 1), SUM_8_MTL(j + 2), SUM_8_MTL(j + 3)
#define SUM_64_MTL(j) SUM_32_MTL(j), SUM_32_MTL(j + 4)
#define SUM_128_MTL(j) SUM_64_MTL(j), SUM_64_MTL(j + 8)
#define SUM_192_MTL(j) SUM_128_MTL(j), SUM_64_MTL(j + 16)
#define SUM_256_MTL(j) SUM_128_MTL(j), SUM_128_MTL(j + 16)
#define REGISTERS_0_MTL "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_1_MTL "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_2_MTL "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define REGISTERS_3_MTL "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
template <int columns> struct tile_product_mtl;
#define TILE_PRODUCT_MTL(columns, registers, left, right, left_transposed, right_transposed, adds) \
  template <> struct tile_product_mtl<columns> { \
    template <int of_left, int of_right> static MATRIX_FUNCTION_MTL void add(simdgroup_float8x8 *upper, simdgroup_float8x8 *lower, ulong a, ulong b) { \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, " adds ", 0; wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 {" registers "}, " \
        left ", " right ", p, 1, 1, " left_transposed ", " right_transposed "; }" \
        : SUM_##columns##_MTL(0) : "l"(a), "l"(b), "n"(of_left), "n"(of_right), "r"(1)); \
    } \
    static MATRIX_FUNCTION_MTL void hold(simdgroup_float8x8 *upper, simdgroup_float8x8 *lower) { asm volatile("" : SUM_##columns##_MTL(0) :: "memory"); } \
  };
TILE_PRODUCT_MTL(64, REGISTERS_0_MTL, "%32", "%33", "%34", "%35", "%36")
TILE_PRODUCT_MTL(128, REGISTERS_0_MTL ", " REGISTERS_1_MTL, "%64", "%65", "%66", "%67", "%68")
TILE_PRODUCT_MTL(192, REGISTERS_0_MTL ", " REGISTERS_1_MTL ", " REGISTERS_2_MTL, "%96", "%97", "%98", "%99", "%100")
TILE_PRODUCT_MTL(256, REGISTERS_0_MTL ", " REGISTERS_1_MTL ", " REGISTERS_2_MTL ", " REGISTERS_3_MTL, "%128", "%129", "%130", "%131", "%132")
inline void threadgroup_end_tile() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// A tile's address, the distance of blocks of 64 columns and that of 8 rows, each in 16 bytes, and how its parts are swapped.
inline ulong tile_descriptor_mtl(const vec_mtl<uint, 4> *tile, uint block_parts) {
  return ((uint)__cvta_generic_to_shared(tile) >> 4 & 0x3fffu) | (ulong)block_parts << 16 | 64ul << 32 | 1ul << 62;
}
template <int columns, int depth, bool left_transposed, bool right_transposed>
MATRIX_FUNCTION_MTL void threadgroup_multiply_tiles(simdgroup_float8x8 *upper, simdgroup_float8x8 *lower, const vec_mtl<uint, 4> *left, const vec_mtl<uint, 4> *right, int) {
  ulong a = tile_descriptor_mtl(left, left_transposed ? depth * 8 : 1), b = tile_descriptor_mtl(right, right_transposed ? depth * 8 : 1);
  tile_product_mtl<columns>::hold(upper, lower);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < depth / 16; k++) tile_product_mtl<columns>::template add<left_transposed, right_transposed>(upper, lower, a + k * (left_transposed ? 128 : 2), b + k * (right_transposed ? 128 : 2));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int columns, int pending> MATRIX_FUNCTION_MTL void threadgroup_wait_for_products(simdgroup_float8x8 *upper, simdgroup_float8x8 *lower) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(pending) : "memory");
  tile_product_mtl<columns>::hold(upper, lower);
}
#else
inline void threadgroup_end_tile() {}
// Value k of row or column i of a factor: tiles have values of one row side by side, transposed ones those of one k.
template <int depth, bool transposed> inline half tile_value_mtl(const vec_mtl<uint, 4> *tile, int i, int k) {
  int row = transposed ? i / 64 * depth + k : i, column = transposed ? i % 64 : k;
  return ((const half *)(tile + threadgroup_tile_part(row, column / 8)))[column % 8];
}
template <int depth, bool transposed> inline pair_mtl<half> tile_pair_mtl(const vec_mtl<uint, 4> *tile, int i, int k) {
  return pair_mtl<half>(tile_value_mtl<depth, transposed>(tile, i, k), tile_value_mtl<depth, transposed>(tile, i, k + 1));
}
template <int columns, int depth, bool left_transposed, bool right_transposed>
MATRIX_FUNCTION_MTL void threadgroup_multiply_tiles(simdgroup_float8x8 *upper, simdgroup_float8x8 *lower, const vec_mtl<uint, 4> *left, const vec_mtl<uint, 4> *right, int simdgroup) {
  int lane = lane_index_mtl(), row = simdgroup % 4 * 16 + lane / 4;
  for (int k = lane % 4 * 2; k < depth; k += 16) {
    simdgroup_half8x8 a[4], b[2];
    for (int i = 0; i < 4; i++) a[i].set_rows_mtl(tile_pair_mtl<depth, left_transposed>(left, row + i / 2 * 8, k + i % 2 * 8));
#pragma unroll
    for (int j = 0; j < columns / 8; j++) {
      for (int i = 0; i < 2; i++) b[i].set_columns_mtl(tile_pair_mtl<depth, right_transposed>(right, j * 8 + lane / 4, k + i * 8));
      simdgroup_multiply_accumulate_16x8x16(upper[j], lower[j], a, b);
    }
  }
}
template <int columns, int pending> MATRIX_FUNCTION_MTL void threadgroup_wait_for_products(simdgroup_float8x8 *upper, simdgroup_float8x8 *lower) {}
#endif
