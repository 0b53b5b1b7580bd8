"""The rows, one module for each op family; each has ``cases(dtype, device)``."""
