"""Normalizations by statistics of the source, or of what surrounds each element, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.errors import FormatError
from mpsgrad.functional.arrays import (
    Pair,
    array_like,
    array_of,
    channels_of,
    image_of,
    pair_of,
    run_both,
    run_forward,
    run_gradient,
)
from mpsgrad.functional.kept import kept
from mpsgrad.image import Image
from mpsgrad.kernels.batch_normalization import BatchNormalization
from mpsgrad.kernels.batch_normalization_data_source import BatchNormalizationDataSource
from mpsgrad.kernels.batch_normalization_gradient import (
    BatchNormalizationGradient,
    BatchNormalizationStatisticsGradient,
)
from mpsgrad.kernels.batch_normalization_statistics import BatchNormalizationStatistics
from mpsgrad.kernels.group_normalization import (
    GroupNormalization,
    GroupNormalizationGradient,
    InstanceNormalization,
    InstanceNormalizationGradient,
)
from mpsgrad.kernels.group_normalization_data_source import (
    GroupNormalizationDataSource,
    InstanceNormalizationDataSource,
)
from mpsgrad.kernels.response_normalization import (
    CrossChannelNormalization,
    CrossChannelNormalizationGradient,
    LocalContrastNormalization,
    LocalContrastNormalizationGradient,
    SpatialNormalization,
    SpatialNormalizationGradient,
)


def _parameters(source: Any, **arrays: Any) -> dict[str, Any]:
    """``arrays`` as data sources take them, and the number of channels, which they all have to have."""
    given = {name: None if array is None else array_of(name, array) for name, array in arrays.items()}
    return given | {"number_of_feature_channels": channels_of("source", source)}


def _normalization(
    source: Any, gamma: Any, beta: Any, epsilon: float, mean: Any = None, variance: Any = None
) -> BatchNormalization:
    arrays = _parameters(source, gamma=gamma, beta=beta, mean=mean, variance=variance)
    return BatchNormalization(BatchNormalizationDataSource.from_arrays(**arrays, epsilon=epsilon))


def batch_normalization(
    source: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    mean: Any = None,
    variance: Any = None,
    epsilon: float = 1e-5,
) -> np.ndarray:
    """``gamma * (x - mean) / sqrt(variance + epsilon) + beta`` for each channel (``BatchNormalization``).

    Without ``mean`` and ``variance`` those of the batch are used, the variance divided by the count; ``FormatError`` is
    raised for one without the other. ``gamma`` None is 1, ``beta`` None is 0. Source: ``BatchNormalization``.
    """
    if (mean is None) != (variance is None):
        raise FormatError("batch_normalization: mean and variance have to be given both or not at all")
    kernel = _normalization(source, gamma, beta, epsilon, mean, variance)
    if mean is not None:
        return run_forward(kernel, source)
    image = image_of("source", source)
    destination = Image(image.descriptor)
    state = kernel.result_state(image, destination_image=destination)
    with CommandBuffer() as commands:
        kept(BatchNormalizationStatistics).encode_batch(commands, image.batch_representation(), state)
        kernel.encode(commands, image, batch_normalization_state=state, destination_image=destination)
    return array_like(destination, source)


def batch_normalization_gradient(
    source_gradient: Any, source: Any, gamma: Any = None, beta: Any = None, *, epsilon: float = 1e-5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients of ``batch_normalization`` with respect to source, gamma and beta, through the batch's statistics.

    The last two are float32 with a value for each channel. Source: ``BatchNormalizationStatisticsGradient``,
    ``BatchNormalizationGradient``.
    """
    kernel = _normalization(source, gamma, beta, epsilon)
    image, incoming = image_of("source", source), image_of("source_gradient", source_gradient)
    state = kernel.result_state(image, destination_image=Image(image.descriptor))
    images, gradients = image.batch_representation(), incoming.batch_representation()
    with CommandBuffer() as commands:
        kept(BatchNormalizationStatistics).encode_batch(commands, images, state)
        kept(BatchNormalizationStatisticsGradient).encode_batch(commands, gradients, images, state)
        result = kept(BatchNormalizationGradient).encode(commands, incoming, image, state)
    return array_like(result, source), np.array(state.gradient_for_gamma), np.array(state.gradient_for_beta)


def _instance_normalization(source: Any, gamma: Any, beta: Any, epsilon: float) -> InstanceNormalization:
    parameters = _parameters(source, gamma=gamma, beta=beta)
    return InstanceNormalization(InstanceNormalizationDataSource.from_arrays(**parameters, epsilon=epsilon))


def _group_normalization(source: Any, groups: int, gamma: Any, beta: Any, epsilon: float) -> GroupNormalization:
    parameters = _parameters(source, gamma=gamma, beta=beta)
    return GroupNormalization(GroupNormalizationDataSource.from_arrays(groups, **parameters, epsilon=epsilon))


def instance_normalization(source: Any, gamma: Any = None, beta: Any = None, *, epsilon: float = 1e-5) -> np.ndarray:
    """``gamma (x - mean) / sqrt(variance + epsilon) + beta`` with the statistics of each image and channel.

    The variance is divided by the count. ``gamma`` None is 1, ``beta`` None is 0. Source: ``InstanceNormalization``.
    """
    return run_forward(_instance_normalization(source, gamma, beta, epsilon), source)


def instance_normalization_gradient(
    source_gradient: Any, source: Any, gamma: Any = None, *, epsilon: float = 1e-5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients of ``instance_normalization`` with respect to source, gamma and beta.

    The last two are float32, a value for each channel, summed over the batch. Source:
    ``InstanceNormalizationGradient``.
    """
    kernel = _instance_normalization(source, gamma, None, epsilon)
    result, state = run_both(kernel, kept(InstanceNormalizationGradient), source_gradient, source)
    return result, state.gradient_for_gamma.sum(0), state.gradient_for_beta.sum(0)


def group_normalization(
    source: Any, groups: int, gamma: Any = None, beta: Any = None, *, epsilon: float = 1e-5
) -> np.ndarray:
    """``gamma (x - mean) / sqrt(variance + epsilon) + beta`` with the statistics of each image and group of channels.

    ``groups`` divides the channels; the variance is divided by the count. ``gamma`` and ``beta`` have a value for each
    channel; None is 1 and 0. Source: ``GroupNormalization``.
    """
    return run_forward(_group_normalization(source, groups, gamma, beta, epsilon), source)


def group_normalization_gradient(
    source_gradient: Any, source: Any, groups: int, gamma: Any = None, *, epsilon: float = 1e-5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients of ``group_normalization`` with respect to source, gamma and beta.

    The last two are float32, a value for each channel, summed over the batch. Source: ``GroupNormalizationGradient``.
    """
    kernel = _group_normalization(source, groups, gamma, None, epsilon)
    result, state = run_both(kernel, kept(GroupNormalizationGradient), source_gradient, source)
    return result, state.gradient_for_gamma.sum(0), state.gradient_for_beta.sum(0)


def _response(cls: Any, window: tuple[int, ...], /, **parameters: float) -> Any:
    """A kernel over ``window``, the number of channels or the height and the width, with these parameters."""
    kernel = cls(*window) if len(window) == 1 else cls(kernel_height=window[0], kernel_width=window[1])
    for name, value in parameters.items():
        if name not in kernel._parameter_names:
            known = ", ".join(kernel._parameter_names)
            raise FormatError(f"{type(kernel).__name__}: there is no {name}; it has {known}")
        setattr(kernel, name, value)
    return kernel


def _response_gradient(
    forward: Any,
    gradient: Any,
    window: tuple[int, ...],
    source_gradient: Any,
    source: Any,
    parameters: dict[str, float],
) -> np.ndarray:
    made, made_gradient = (kept(_response, cls, window, **parameters) for cls in (forward, gradient))
    return run_gradient(made, made_gradient, source_gradient, source)[0]


def cross_channel_normalization(source: Any, *, kernel: int = 5, **parameters: float) -> np.ndarray:
    """``x / (delta + alpha / N sum(x^2))^beta`` with the sum over the ``kernel`` = N channels around each.

    ``parameters`` are ``alpha`` (1 at first), ``beta`` (5) and ``delta`` (1); PyTorch's ``k`` is ``delta``. Source:
    ``CrossChannelNormalization``.
    """
    return run_forward(kept(_response, CrossChannelNormalization, (kernel,), **parameters), source)


def cross_channel_normalization_gradient(
    source_gradient: Any, source: Any, *, kernel: int = 5, **parameters: float
) -> np.ndarray:
    """The gradient of ``cross_channel_normalization``. Source: ``CrossChannelNormalizationGradient``."""
    return _response_gradient(
        CrossChannelNormalization, CrossChannelNormalizationGradient, (kernel,), source_gradient, source, parameters
    )


def spatial_normalization(source: Any, *, kernel: Pair, **parameters: float) -> np.ndarray:
    """``x / (delta + alpha / N sum(x^2))^beta`` with the sum over the N pixels of a window of ``kernel`` x ``kernel``.

    Each channel is by itself; pixels outside the source are zeros, and count. ``parameters`` are ``alpha`` (1 at
    first), ``beta`` (5) and ``delta`` (1). Source: ``SpatialNormalization``.
    """
    return run_forward(kept(_response, SpatialNormalization, pair_of("kernel", kernel), **parameters), source)


def spatial_normalization_gradient(
    source_gradient: Any, source: Any, *, kernel: Pair, **parameters: float
) -> np.ndarray:
    """The gradient of ``spatial_normalization``. Source: ``SpatialNormalizationGradient``."""
    window = pair_of("kernel", kernel)
    return _response_gradient(
        SpatialNormalization, SpatialNormalizationGradient, window, source_gradient, source, parameters
    )


def local_contrast_normalization(source: Any, *, kernel: Pair, **parameters: float) -> np.ndarray:
    """``pm + ps (x - p0 mean) / (delta + alpha variance)^beta``, both those of a window of ``kernel`` x ``kernel``.

    Each channel is by itself; pixels outside the source are zeros, and count. ``parameters`` are ``alpha`` (0 at
    first, so that the variance has no part), ``beta`` (1/2), ``delta`` (1/1024), ``p0`` (1), ``pm`` (0) and ``ps`` (1).
    Source: ``LocalContrastNormalization``.
    """
    return run_forward(kept(_response, LocalContrastNormalization, pair_of("kernel", kernel), **parameters), source)


def local_contrast_normalization_gradient(
    source_gradient: Any, source: Any, *, kernel: Pair, **parameters: float
) -> np.ndarray:
    """The gradient of ``local_contrast_normalization``. Source: ``LocalContrastNormalizationGradient``."""
    window = pair_of("kernel", kernel)
    return _response_gradient(
        LocalContrastNormalization, LocalContrastNormalizationGradient, window, source_gradient, source, parameters
    )
