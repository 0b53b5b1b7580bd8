"""Pooling: max (plain and dilated), average and L2 norm, forward and gradient.

Images are N x H x W x C; channels are independent. Geometry is (y, x): `kernel`, `stride`, `dilation` (max only),
`offset` (source position of the centre tap of the first output pixel) and `size` (of the result). Gradients take the
geometry of the forward pass; there `size` may be left out, since the source gradient has it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .window import Array, Edge, Pair, Window, gradient_image, image


def _maximum(source: Array, window: Window) -> tuple[Array, npt.NDArray[np.int64]]:
    """Values and tap numbers of the window maxima, by the rules of `pooling_max_indices`."""
    inside = window.inside()
    readable = np.logical_or(inside, ~inside.any(axis=0, keepdims=True)) if window.edge == "clamp" else inside
    extended = window.extend(source)
    shape = (source.shape[0], *window.size, source.shape[3])
    values = np.zeros(shape)
    indices = np.full(shape, -1, np.int64)
    for number, (_, reads) in enumerate(window.taps()):
        candidate = extended[reads]
        better = readable[number][:, :, None] & ((indices < 0) | (candidate > values))
        values = np.where(better, candidate, values)
        indices = np.where(better, number, indices)
    if window.edge == "zero":
        zero_wins = ~np.all(inside, axis=0)[:, :, None] & ((indices < 0) | (values < 0))
        values = np.where(zero_wins, 0.0, values)
        indices = np.where(zero_wins, window.kernel[0] * window.kernel[1], indices)
    return values, indices


def pooling_max(
    source: npt.ArrayLike,
    *,
    kernel: Pair,
    size: Pair,
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    offset: Pair = (0, 0),
    edge: Edge = "zero",
) -> Array:
    """Largest value of each window (MPSCNNPoolingMax, MPSCNNDilatedPoolingMax).

    Edge "zero": taps outside the source count as the value 0. Edge "clamp": taps outside are ignored when the window
    has at least one tap inside; a window with none takes the maximum over its taps clamped to the nearest edge pixels.
    """
    x = image(source, "source")
    return _maximum(x, Window(x.shape[1:3], kernel, stride, dilation, offset, size, edge))[0]


def pooling_max_indices(
    source: npt.ArrayLike,
    *,
    kernel: Pair,
    size: Pair,
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    offset: Pair = (0, 0),
    edge: Edge = "zero",
) -> npt.NDArray[np.int64]:
    """Which tap each window's maximum comes from: its number ky * kw + kx, or kh * kw for an outside zero.

    Among equal values the first tap in row-major order wins. Edge "zero": the outside zero wins (kh * kw) only when it
    is strictly larger than every tap inside, or no tap is inside. Edge "clamp": the winner is a tap inside when there
    is one; for a window with none it is the first maximal tap, and stands for the pixel at its clamped coordinates.
    """
    x = image(source, "source")
    return _maximum(x, Window(x.shape[1:3], kernel, stride, dilation, offset, size, edge))[1]


def pooling_max_gradient(
    source_gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    *,
    kernel: Pair,
    size: Pair | None = None,
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    offset: Pair = (0, 0),
    edge: Edge = "zero",
) -> Array:
    """Gradient of `pooling_max` (MPSCNNPoolingMaxGradient, MPSCNNDilatedPoolingMaxGradient).

    Each window gives its whole gradient to the one pixel that `pooling_max_indices` names; an outside zero that won
    swallows it. Pixels that win no window get 0.
    """
    g, x = gradient_image(source_gradient, size), image(source, "source")
    window = Window(x.shape[1:3], kernel, stride, dilation, offset, g.shape[1:3], edge)
    extended = np.zeros_like(window.extend(x))
    _, indices = _maximum(x, window)
    for number, (_, reads) in enumerate(window.taps()):
        extended[reads] += np.where(indices == number, g, 0.0)
    return window.fold(extended)


def _average_counts(window: Window, zero_pad: Pair) -> Array:
    """The divisor N of each window, [output y][output x]; 0 for a clamped window that is empty."""
    if window.edge == "zero":
        return np.full(window.size, float(window.kernel[0] * window.kernel[1]))
    counts = []
    for axis in (0, 1):
        positions = window.positions(axis)
        grown = (positions >= -zero_pad[axis]) & (positions < window.source_size[axis] + zero_pad[axis])
        counts.append(grown.sum(axis=1).astype(np.float64))
    return np.outer(counts[0], counts[1])


def _average_factors(window: Window, zero_pad: Pair) -> Array:
    counts = _average_counts(window, zero_pad)
    return np.divide(1.0, counts, out=np.zeros_like(counts), where=counts > 0)[:, :, None]


def pooling_average(
    source: npt.ArrayLike,
    *,
    kernel: Pair,
    size: Pair,
    stride: Pair = (1, 1),
    offset: Pair = (0, 0),
    edge: Edge = "zero",
    zero_pad: Pair = (0, 0),
) -> Array:
    """Sum of each window's pixels inside the source, over N (MPSCNNPoolingAverage).

    Edge "zero": N = kh * kw, and `zero_pad` is ignored. Edge "clamp" shrinks the window instead of replicating:
    N = ny * nx with n counting the taps of an axis that lie in the source grown by `zero_pad` pixels on each side; the
    result is 0 where N is 0.
    """
    x = image(source, "source")
    window = Window(x.shape[1:3], kernel, stride, (1, 1), offset, size, edge)
    extended, inside = window.extend(x), window.inside()
    total = np.zeros((x.shape[0], *size, x.shape[3]))
    for number, (_, reads) in enumerate(window.taps()):
        total += np.where(inside[number][:, :, None], extended[reads], 0.0)
    return total * _average_factors(window, zero_pad)


def pooling_average_gradient(
    source_gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    *,
    kernel: Pair,
    size: Pair | None = None,
    stride: Pair = (1, 1),
    offset: Pair = (0, 0),
    edge: Edge = "zero",
    zero_pad: Pair = (0, 0),
) -> Array:
    """Gradient of `pooling_average` (MPSCNNPoolingAverageGradient): every pixel of a window gets 1 / N of its gradient.

    Of `source` only the size matters.
    """
    g, x = gradient_image(source_gradient, size), image(source, "source")
    window = Window(x.shape[1:3], kernel, stride, (1, 1), offset, g.shape[1:3], edge)
    share, inside = g * _average_factors(window, zero_pad), window.inside()
    extended = np.zeros_like(window.extend(x))
    for number, (_, reads) in enumerate(window.taps()):
        extended[reads] += np.where(inside[number][:, :, None], share, 0.0)
    return window.fold(extended)


def pooling_l2_norm(
    source: npt.ArrayLike,
    *,
    kernel: Pair,
    size: Pair,
    stride: Pair = (1, 1),
    offset: Pair = (0, 0),
    edge: Edge = "zero",
) -> Array:
    """sqrt of the sum of squares of each window (MPSCNNPoolingL2Norm); "clamp" replicates the edge pixels."""
    x = image(source, "source")
    window = Window(x.shape[1:3], kernel, stride, (1, 1), offset, size, edge)
    extended = window.extend(x)
    total = np.zeros((x.shape[0], *size, x.shape[3]))
    for _, reads in window.taps():
        total += extended[reads] ** 2
    return np.sqrt(total)


def pooling_l2_norm_gradient(
    source_gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    *,
    kernel: Pair,
    size: Pair | None = None,
    stride: Pair = (1, 1),
    offset: Pair = (0, 0),
    edge: Edge = "zero",
) -> Array:
    """Gradient of `pooling_l2_norm` (MPSCNNPoolingL2NormGradient): g * in / out for every tap, 0 where out is 0.

    With "clamp" an edge pixel gathers the share of each tap that replicates it, so the derivative is exact there too.
    """
    g, x = gradient_image(source_gradient, size), image(source, "source")
    geometry = {"kernel": kernel, "stride": stride, "offset": offset, "size": g.shape[1:3]}
    norm = pooling_l2_norm(x, edge=edge, **geometry)
    ratio = np.divide(g, norm, out=np.zeros_like(norm), where=norm > 0)
    window = Window(source_size=x.shape[1:3], dilation=(1, 1), edge=edge, **geometry)
    values = window.extend(x)
    extended = np.zeros_like(values)
    for _, reads in window.taps():
        extended[reads] += ratio * values[reads]
    return window.fold(extended)
