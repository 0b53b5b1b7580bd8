// Vectors of bfloat.
//@ bfloat2 bfloat3 bfloat4 : bfloat
VECTOR_TYPES_MTL(bfloat)
//@ packed_bfloat2 packed_bfloat3 packed_bfloat4 : bfloat2 packed_vector_mtl
typedef packed_vector_mtl<bfloat, 2> packed_bfloat2;
typedef packed_vector_mtl<bfloat, 3> packed_bfloat3;
typedef packed_vector_mtl<bfloat, 4> packed_bfloat4;
