"""The rows, one module for each op family.

Each says in ``cases_of(shape, dtype, group)`` which cases a shape makes, in ``cases(dtype, hardware)`` which shapes it
has in every run, in ``drawn_shape(draw)`` how one is drawn, and in ``tiny_ops(device)`` whose host cost is measured.
"""
