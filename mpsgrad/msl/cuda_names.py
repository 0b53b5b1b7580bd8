"""Names that CUDA C++ defines: those that Metal lacks belong to the user there and must be renamed."""

LIBRARY_NAMES = frozenset({"main"})
RESERVED_NAMES = frozenset({"threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize"})
