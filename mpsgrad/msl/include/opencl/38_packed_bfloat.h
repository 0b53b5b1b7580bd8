// Packed vectors of bfloat, which unpack to the class.
//@ packed_bfloat2 packed_bfloat3 packed_bfloat4 : bfloat_vector_mtl packed_vector_mtl
template <> struct packed_storage_mtl<bfloat, 2> {
  union { bfloat v[2]; struct { bfloat x, y; }; struct { bfloat r, g; }; BFLOAT_SWIZZLES_2_MTL };
  packed_storage_mtl() = default;
  constexpr packed_storage_mtl(components_mtl<bfloat, 2> c) : v{c.v[0], c.v[1]} {}
};
template <> struct packed_storage_mtl<bfloat, 3> {
  union { bfloat v[3]; struct { bfloat x, y, z; }; struct { bfloat r, g, b; }; BFLOAT_SWIZZLES_3_MTL };
  packed_storage_mtl() = default;
  constexpr packed_storage_mtl(components_mtl<bfloat, 3> c) : v{c.v[0], c.v[1], c.v[2]} {}
};
template <> struct packed_storage_mtl<bfloat, 4> {
  union { bfloat v[4]; struct { bfloat x, y, z, w; }; struct { bfloat r, g, b, a; }; BFLOAT_SWIZZLES_4_MTL };
  packed_storage_mtl() = default;
  constexpr packed_storage_mtl(components_mtl<bfloat, 4> c) : v{c.v[0], c.v[1], c.v[2], c.v[3]} {}
};
typedef packed_vector_mtl<bfloat, 2, bfloat2> packed_bfloat2;
typedef packed_vector_mtl<bfloat, 3, bfloat3> packed_bfloat3;
typedef packed_vector_mtl<bfloat, 4, bfloat4> packed_bfloat4;
template <int N> inline bfloat_vector_mtl<N> unpack_mtl(packed_vector_mtl<bfloat, N, bfloat_vector_mtl<N>> p) { return p; }
