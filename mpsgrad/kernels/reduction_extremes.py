"""Gradients of extremes over rows or columns on CPUs: a thread finds the winners and writes what they get."""

from __future__ import annotations

from functools import lru_cache

from mpsgrad.kernels.strided_reductions import FEWEST_TERMS_OF_THREAD, enough_threads
from mpsgrad.kernels.strides import View, Work, axes_of, element_count, extents_of, filled, joined_axes, strides_of
from mpsgrad.tunables import Tunables

NAMES = ("gradient", "source", "destination")


@lru_cache(maxsize=512)
def extreme_gradient(
    views: tuple[View, View, View],
    extents: tuple[int, int, int, int],
    kept: tuple[bool, bool, bool, bool],
    compute_units: int,
    numbers: Tunables,
) -> Work | None:
    """The work of that for ``views`` of a gradient, a source and the result, of whose axes one is not ``kept``.

    None if the kernel does not fit: fewer than eight columns follow each other, or caches do not hold the images.
    """
    axes = axes_of(extents, views)
    (reduced,) = (axis for axis, keeps in zip(axes, kept, strict=True) if not keeps)
    staying = [axis for axis, keeps in zip(axes, kept, strict=True) if keeps]
    run, x, y, z = filled(joined_axes(staying, len(views)), 4, len(views))
    exceeds = 4 * element_count(axes, len(views)) > numbers.cached_bytes
    if exceeds or run.extent < 8 or any(step != 1 for step in run.strides):
        return None
    rows, terms = x.extent * y.extent * z.extent, reduced.extent * run.extent
    wanted = max(1, min(enough_threads(terms * rows, compute_units), terms * rows // FEWEST_TERMS_OF_THREAD))
    rows_of_thread = -(-rows // wanted)
    chunks = max(1, min(wanted // rows, run.extent // 8))
    parameters = strides_of(NAMES, views, (run, x, y, z, reduced, filled([], 1, len(views))[0]))
    parameters["extents"] = extents_of((run, x, y, z), (chunks, 0, rows_of_thread, 0), run.extent)
    parameters["reduced"] = (reduced.extent, *[1] * 11)
    return Work("gradient", chunks * -(-rows // rows_of_thread), parameters)
