"""The kernels, one module for each family."""
