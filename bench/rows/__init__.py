"""The rows, one module for each op family.

Each has ``cases(dtype, hardware)``, and for the kernel classes whose host cost is measured ``tiny_ops(device)``.
"""
