// Vectors of bfloat.
//@ bfloat2 bfloat3 bfloat4 : bfloat
VECTOR_TYPES_MTL(bfloat)
