"""Upsampling, resizing and cropping, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.functional.arrays import Pair, pair_of, run_forward, run_gradient, shape_of
from mpsgrad.functional.kept import kept
from mpsgrad.kernels.crop_and_resize import CropAndResizeBilinear, CropAndResizeBilinearGradient
from mpsgrad.kernels.upsampling import (
    ResizeBilinear,
    ResizeBilinearGradient,
    UpsamplingBilinear,
    UpsamplingBilinearGradient,
    UpsamplingNearest,
    UpsamplingNearestGradient,
)


def _factors(factor: Any) -> dict[str, Any]:
    y, x = factor if np.shape(factor) == (2,) else (factor, factor)
    return {"scale_factor_x": x, "scale_factor_y": y}


def upsampling_nearest(source: Any, *, factor: float | tuple[float, float]) -> np.ndarray:
    """``y[o] = x[floor(o / factor)]`` along both axes; a pair of factors, at least 1, is (y, x).

    The result has ``floor(factor H) x floor(factor W)`` pixels. Source: ``UpsamplingNearest``.
    """
    return run_forward(kept(UpsamplingNearest, **_factors(factor)), source)


def upsampling_nearest_gradient(
    source_gradient: Any, source: Any, *, factor: float | tuple[float, float]
) -> np.ndarray:
    """The gradient of ``upsampling_nearest``: for each pixel the sum over those that were copied from it.

    ``source`` is looked at for its shape only. Source: ``UpsamplingNearestGradient``.
    """
    factors = _factors(factor)
    return run_gradient(
        kept(UpsamplingNearest, **factors), kept(UpsamplingNearestGradient, **factors), source_gradient, source
    )[0]


def upsampling_bilinear(source: Any, *, factor: float | tuple[float, float], align_corners: bool = False) -> np.ndarray:
    """Bilinear interpolation at ``o / factor``, without a shift by half a pixel; a pair of factors is (y, x).

    With ``align_corners`` at ``o (size - 1) / (result's size - 1)``, as in PyTorch; without, PyTorch shifts by half a
    pixel. Source: ``UpsamplingBilinear``.
    """
    return run_forward(kept(UpsamplingBilinear, **_factors(factor), align_corners=align_corners), source)


def upsampling_bilinear_gradient(
    source_gradient: Any, source: Any, *, factor: float | tuple[float, float], align_corners: bool = False
) -> np.ndarray:
    """The gradient of ``upsampling_bilinear``: each pixel adds up, by their shares, what read it.

    ``source`` is looked at for its shape only. Source: ``UpsamplingBilinearGradient``.
    """
    factors = _factors(factor)
    forward = kept(UpsamplingBilinear, **factors, align_corners=align_corners)
    return run_gradient(forward, kept(UpsamplingBilinearGradient, **factors), source_gradient, source)[0]


def resize_bilinear(source: Any, *, size: Pair, align_corners: bool = False) -> np.ndarray:
    """Bilinear interpolation to ``size`` (y, x) at ``o H / size``, without a shift by half a pixel.

    With ``align_corners`` at ``o (H - 1) / (size - 1)``. Source: ``ResizeBilinear``.
    """
    height, width = pair_of("size", size)
    kernel = kept(ResizeBilinear, resize_width=width, resize_height=height, align_corners=align_corners)
    return run_forward(kernel, source)


def resize_bilinear_gradient(
    source_gradient: Any, source: Any, *, size: Pair, align_corners: bool = False
) -> np.ndarray:
    """The gradient of ``resize_bilinear``: each pixel adds up, by their shares, what read it.

    ``source`` is looked at for its shape only. Source: ``ResizeBilinearGradient``.
    """
    height, width = pair_of("size", size)
    arguments: dict[str, Any] = {"resize_width": width, "resize_height": height, "align_corners": align_corners}
    return run_gradient(
        kept(ResizeBilinear, **arguments), kept(ResizeBilinearGradient, **arguments), source_gradient, source
    )[0]


def _crops(size: Pair, regions: Any) -> CropAndResizeBilinear:
    height, width = pair_of("size", size)
    return CropAndResizeBilinear(resize_width=width, resize_height=height, regions=regions)


def crop_and_resize(source: Any, regions: Any, *, size: Pair) -> np.ndarray:
    """Each of ``regions``, resized to ``size`` (y, x), one after the other in the channels.

    A region is (x, y, width, height) in parts of the image: 0 is the centre of the first column or row, 1 that of the
    last. What lies outside is 0. Source: ``CropAndResizeBilinear``.
    """
    return run_forward(_crops(size, regions), source)


def crop_and_resize_gradient(source_gradient: Any, source: Any, regions: Any) -> np.ndarray:
    """The gradient of ``crop_and_resize``: each pixel adds up, by their shares, what read it.

    ``source`` is looked at for its shape only. Source: ``CropAndResizeBilinearGradient``.
    """
    *_, height, width, _ = shape_of("source_gradient", source_gradient)
    return run_gradient(_crops((height, width), regions), CropAndResizeBilinearGradient(), source_gradient, source)[0]
