"""Reductions, weighted ones and the Gram matrix, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.errors import FormatError
from mpsgrad.functional.arrays import array_like, image_of, run_forward, run_gradient
from mpsgrad.functional.kept import kept
from mpsgrad.image import Image
from mpsgrad.kernel import BaseKernel
from mpsgrad.kernels.gram_matrix import GramMatrixCalculation, GramMatrixCalculationGradient
from mpsgrad.kernels.reduction import ReduceGradient, ReduceUnary
from mpsgrad.kernels.weighted_reduction import (
    ReduceFeatureChannelsAndWeightsGradient,
    ReduceFeatureChannelsAndWeightsMean,
    ReduceFeatureChannelsAndWeightsSum,
)


def gram_matrix(source: Any, *, alpha: float = 1.0) -> np.ndarray:
    """``y[f][c] = alpha sum_p x[p][f] x[p][c]`` over the pixels ``p`` of each image, N x 1 x C x C.

    Source: ``GramMatrixCalculation``.
    """
    return run_forward(kept(GramMatrixCalculation, alpha), source)


def gram_matrix_gradient(source_gradient: Any, source: Any, *, alpha: float = 1.0) -> np.ndarray:
    """The gradient of ``gram_matrix``, ``alpha sum_f x[p][f] (g[f][c] + g[c][f])`` of a gradient N x 1 x C x C.

    Source: ``GramMatrixCalculationGradient``.
    """
    forward = kept(GramMatrixCalculation, alpha)
    return run_gradient(forward, kept(GramMatrixCalculationGradient), source_gradient, source)[0]


def _weighted_reduction(mean: bool, by_non_zero_weights: bool) -> Any:
    if mean and by_non_zero_weights:
        raise FormatError("mean and by_non_zero_weights are True; a sum is divided by one number only")
    if mean:
        return ReduceFeatureChannelsAndWeightsMean()
    return ReduceFeatureChannelsAndWeightsSum(by_non_zero_weights)


def weighted_reduction(
    source: Any, weights: Any, *, mean: bool = False, by_non_zero_weights: bool = False
) -> np.ndarray:
    """``sum_c x[c] w[c]`` of each pixel, N x H x W x 1, with ``weights`` of the source's shape.

    It is divided by the number of channels for a ``mean``, and ``by_non_zero_weights`` by the number of weights that
    are not 0. Source: ``ReduceFeatureChannelsAndWeightsSum``, ``ReduceFeatureChannelsAndWeightsMean``.
    """
    kernel = kept(_weighted_reduction, mean, by_non_zero_weights)
    images = image_of("source", source), image_of("weights", weights)
    with CommandBuffer() as commands:
        result = kernel.encode(commands, *images)
    return array_like(result, source)


def weighted_reduction_gradient(
    source_gradient: Any, source: Any, weights: Any, *, mean: bool = False, by_non_zero_weights: bool = False
) -> tuple[np.ndarray, np.ndarray | None]:
    """The gradients of ``weighted_reduction`` with respect to source and weights.

    ``source_gradient`` is N x H x W x 1. ``by_non_zero_weights`` there is no gradient for the weights: None. Source:
    ``ReduceFeatureChannelsAndWeightsGradient``.
    """
    forward, of_weights = kept(_weighted_reduction, mean, by_non_zero_weights), None
    x, w = image_of("source", source), image_of("weights", weights)
    incoming = image_of("source_gradient", source_gradient)
    state = forward.result_state(x, w, destination_image=Image(forward.destination_image_descriptor([x, w])))
    with CommandBuffer() as commands:
        of_source = kept(ReduceFeatureChannelsAndWeightsGradient).encode(commands, incoming, w, state)
        if not by_non_zero_weights:
            gradient = kept(ReduceFeatureChannelsAndWeightsGradient, is_secondary_source_filter=True)
            of_weights = gradient.encode(commands, incoming, x, state)
    return array_like(of_source, source), None if of_weights is None else array_like(of_weights, weights)


def _reduction(over: str, operation: str, weight: float) -> ReduceUnary:
    words = "".join(word.capitalize() for word in f"{over}_{operation}".split("_"))
    name = "ReductionSpatialMean" if words == "SpatialMean" else f"Reduce{words}"
    cls = BaseKernel.classes.get(name)
    if cls is None or not issubclass(cls, ReduceUnary):
        raise FormatError(
            f"reduction: there is no {operation!r} over {over!r}; min, max, mean and sum go over 'row', 'column' or "
            "'feature_channels', argument_min and argument_max over 'feature_channels', and mean over 'spatial'"
        )
    kernel = cls()
    if weight != 1.0:
        if not hasattr(kernel, "weight"):
            raise FormatError(f"reduction: weight is {weight} but {name} has none; ReduceFeatureChannelsSum has")
        kernel.weight = weight
    return kernel


def reduction(source: Any, over: str, operation: str, *, weight: float = 1.0) -> np.ndarray:
    """The ``operation`` min, max, mean or sum of each "row" (over x), "column" (over y) or pixel's "feature_channels".

    The axis that goes has an extent of 1 in the result. Over the feature channels there are also argument_min and
    argument_max, the index of the first that won, and ``weight`` times their sum; over all pixels, "spatial", the mean.
    Source: ``ReduceRowMin`` and its like, ``ReductionSpatialMean``.
    """
    return run_forward(kept(_reduction, over, operation, weight), source)


def reduction_gradient(
    source_gradient: Any, source: Any, over: str, operation: str, *, weight: float = 1.0
) -> np.ndarray:
    """The gradient of ``reduction``; that of a minimum or maximum goes to the first that won.

    ``source_gradient`` has the shape of the result. There is none of argument_min and argument_max. Source:
    ``ReduceGradient``.
    """
    return run_gradient(kept(_reduction, over, operation, weight), kept(ReduceGradient), source_gradient, source)[0]
