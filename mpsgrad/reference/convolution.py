"""Convolution (cross-correlation) with groups, its data, weight and bias gradients, and the fully connected layer.

Images are N x H x W x C, weights OHWI: [O][kH][kW][I / groups]. Depthwise is groups = I = O, weights [O][kH][kW][1].
Geometry is (y, x) as in `window`. With edge "clamp" both gradients are the exact derivatives through replication.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .window import Array, Edge, Pair, Window, gradient_image, image

Indices = npt.NDArray[np.intp]


def _grouped_weights(weights: npt.ArrayLike, groups: int) -> Array:
    """Weights as [group][O / groups][kH][kW][I / groups]."""
    w = np.asarray(weights, np.float64)
    if w.ndim != 4 or w.shape[0] % groups:
        raise ValueError(f"weights have shape {w.shape} not O x kH x kW x I/groups with O a multiple of {groups}")
    return w.reshape(groups, w.shape[0] // groups, *w.shape[1:])


def _grouped(pixels: Array, groups: int) -> Array:
    """The feature channels of N x H x W x C as [group][N * H * W][channel of the group], for products of matrices."""
    if pixels.shape[3] % groups:
        raise ValueError(f"{pixels.shape[3]} feature channels cannot be divided into {groups} groups")
    return np.moveaxis(pixels.reshape(math.prod(pixels.shape[:3]), groups, pixels.shape[3] // groups), 1, 0)


def _products(left: Array, right: Array) -> Array:
    """Matrix products, group by group; those of rows and columns, as depthwise convolutions have, are plain sums."""
    if left.shape[2] == 1:
        return left * right
    if left.shape[1] == right.shape[2] == 1:
        return np.einsum("gop,gpi->goi", left, right)
    return left @ right


def _ungrouped(pixels: Array, shape: tuple[int, int, int]) -> Array:
    """What ``_grouped`` made of an image of ``shape``, N x H x W, as N x H x W x C again."""
    return np.moveaxis(pixels, 0, 1).reshape(*shape, pixels.shape[0] * pixels.shape[2])


def convolution(
    source: npt.ArrayLike,
    weights: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    size: Pair,
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    offset: Pair = (0, 0),
    groups: int = 1,
    edge: Edge = "zero",
) -> Array:
    """y[n, i, o] = bias[o] + sum over taps p and channels c of w[o, p, c] * x[n, tap(i, p), group(o) * I/groups + c].

    source: N x H x W x I. weights: O x kH x kW x I/groups. bias: O. Result: N x size x O. The kernel is not flipped
    (MPSCNNConvolution).
    """
    x, w = image(source, "source"), _grouped_weights(weights, groups)
    if x.shape[3] != groups * w.shape[4]:
        raise ValueError(f"source has {x.shape[3]} feature channels but the weights read {groups * w.shape[4]}")
    window = Window(x.shape[1:3], w.shape[2:4], stride, dilation, offset, size, edge)
    extended = window.extend(x)
    pixels = (x.shape[0], *size)
    sums = np.zeros((groups, math.prod(pixels), w.shape[1]))
    for (ky, kx), reads in window.taps():
        sums += _products(_grouped(extended[reads], groups), w[:, :, ky, kx].swapaxes(1, 2))
    y = _ungrouped(sums, pixels)
    return y if bias is None else y + np.asarray(bias, np.float64)


def convolution_gradient_data(
    source_gradient: npt.ArrayLike,
    weights: npt.ArrayLike,
    *,
    source_size: Pair,
    size: Pair | None = None,
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    offset: Pair = (0, 0),
    groups: int = 1,
    edge: Edge = "zero",
) -> Array:
    """dx[n, y, c] = sum over output channels o, taps p and pixels i with tap(i, p) = y of w[o, p, c] * g[n, i, o].

    source_gradient: N x size x O. Result: N x source_size x I. With "clamp", y gathers also the taps outside that
    replicate it (MPSCNNConvolutionGradient, destination gradient).
    """
    g, w = gradient_image(source_gradient, size), _grouped_weights(weights, groups)
    if g.shape[3] != groups * w.shape[1]:
        raise ValueError(f"source_gradient has {g.shape[3]} channels but the weights produce {groups * w.shape[1]}")
    window = Window(source_size, w.shape[2:4], stride, dilation, offset, g.shape[1:3], edge)
    extended = window.extend(np.zeros((g.shape[0], *source_size, groups * w.shape[4])))
    gradients = _grouped(g, groups)
    for (ky, kx), reads in window.taps():
        extended[reads] += _ungrouped(_products(gradients, w[:, :, ky, kx]), g.shape[:3])
    return window.fold(extended)


def convolution_gradient_weights(
    source_gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    *,
    kernel: Pair,
    size: Pair | None = None,
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    offset: Pair = (0, 0),
    groups: int = 1,
    edge: Edge = "zero",
) -> Array:
    """dw[o, p, c] = sum over images n and pixels i of g[n, i, o] * x[n, tap(i, p), group(o) * I/groups + c].

    Result: O x kH x kW x I/groups, summed over the batch (MPSCNNConvolutionGradientState.gradientForWeights).
    """
    g, x = gradient_image(source_gradient, size), image(source, "source")
    if g.shape[0] != x.shape[0]:
        raise ValueError(f"source_gradient has {g.shape[0]} images but source has {x.shape[0]}")
    window = Window(x.shape[1:3], kernel, stride, dilation, offset, g.shape[1:3], edge)
    extended, gradients = window.extend(x), _grouped(g, groups).swapaxes(1, 2)
    dw = np.zeros((groups, gradients.shape[1], *kernel, x.shape[3] // groups))
    for (ky, kx), reads in window.taps():
        dw[:, :, ky, kx] = _products(gradients, _grouped(extended[reads], groups))
    return dw.reshape(g.shape[3], *kernel, -1)


def convolution_gradient_biases(source_gradient: npt.ArrayLike) -> Array:
    """db[o] = sum over images and pixels of g[n, i, o]; also the bias gradient of `fully_connected`."""
    return gradient_image(source_gradient, None).sum(axis=(0, 1, 2))


def fully_connected(source: npt.ArrayLike, weights: npt.ArrayLike, bias: npt.ArrayLike | None = None) -> Array:
    """y[n, 0, 0, o] = bias[o] + sum over ky, kx, c of w[o, ky, kx, c] * x[n, ky, kx, c] (MPSCNNFullyConnected).

    source: N x kH x kW x I, exactly as large as the kernel. weights: O x kH x kW x I. Result: N x 1 x 1 x O.
    """
    x, w = image(source, "source"), image(weights, "weights")
    if x.shape[1:] != w.shape[1:]:
        raise ValueError(f"source is {x.shape[1:]} but the weights are for {w.shape[1:]}")
    y = x.reshape(x.shape[0], -1) @ w.reshape(w.shape[0], -1).T
    if bias is not None:
        y = y + np.asarray(bias, np.float64)
    return y[:, None, None, :]


def fully_connected_gradient_data(source_gradient: npt.ArrayLike, weights: npt.ArrayLike) -> Array:
    """dx[n, ky, kx, c] = sum over o of w[o, ky, kx, c] * g[n, o]; source_gradient: N x 1 x 1 x O."""
    g, w = gradient_image(source_gradient, (1, 1)), image(weights, "weights")
    return np.einsum("no,oyxc->nyxc", g[:, 0, 0], w)


def fully_connected_gradient_weights(source_gradient: npt.ArrayLike, source: npt.ArrayLike) -> Array:
    """dw[o, ky, kx, c] = sum over images of g[n, o] * x[n, ky, kx, c]; source_gradient: N x 1 x 1 x O."""
    g, x = gradient_image(source_gradient, (1, 1)), image(source, "source")
    return np.einsum("no,nyxc->oyxc", g[:, 0, 0], x)


def _transposed_taps(
    kernel: Pair, source_size: Pair, size: Pair, stride: Pair, dilation: Pair, offset: Pair
) -> Iterator[tuple[Pair, tuple[Indices, Indices], tuple[Indices, Indices]]]:
    """For each tap (ky, kx): rows and columns of the source, and those of the result that they are added to."""

    def axis(k: int, a: int) -> tuple[Indices, Indices]:
        i = np.arange(source_size[a])
        extent = (kernel[a] - 1) * dilation[a] + 1
        v = stride[a] * i - offset[a] + extent // 2 - dilation[a] * k
        inside = (v >= 0) & (v < size[a])
        return i[inside], v[inside]

    for ky in range(kernel[0]):
        for kx in range(kernel[1]):
            (rows, to_rows), (columns, to_columns) = axis(ky, 0), axis(kx, 1)
            yield (ky, kx), (rows[:, None], columns[None]), (to_rows[:, None], to_columns[None])


def convolution_transpose(
    source: npt.ArrayLike,
    weights: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    size: Pair,
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    offset: Pair = (0, 0),
    groups: int = 1,
) -> Array:
    """y[n, v, o] = bias[o] + sum over taps q, pixels i and channels c of w[o, q, c] * x[n, i, c], for all v with

    v = stride * i - offset + floor(kd / 2) - dilation * q, kd = (k - 1) * dilation + 1, c in the group of o. offset is
    MPSCNNConvolutionTranspose's offset * stride + kernelOffset. weights: O x kH x kW x I/groups. Result: N x size x O.
    """
    x, w = image(source, "source"), _grouped_weights(weights, groups)
    y = np.zeros((x.shape[0], *size, groups * w.shape[1]))
    for (ky, kx), (rows, columns), (to_rows, to_columns) in _transposed_taps(
        w.shape[2:4], x.shape[1:3], size, stride, dilation, offset
    ):
        reads = x[:, rows, columns]
        products = _products(_grouped(reads, groups), w[:, :, ky, kx].swapaxes(1, 2))
        y[:, to_rows, to_columns] += _ungrouped(products, reads.shape[:3])
    return y if bias is None else y + np.asarray(bias, np.float64)


def convolution_transpose_gradient(
    source_gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    weights: npt.ArrayLike,
    *,
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    offset: Pair = (0, 0),
    groups: int = 1,
) -> tuple[Array, Array, Array]:
    """The gradients for the source, the weights and the biases (MPSCNNConvolutionTransposeGradient)."""
    g, x, w = gradient_image(source_gradient, None), image(source, "source"), _grouped_weights(weights, groups)
    dx, dw = np.zeros(x.shape), np.zeros_like(w)
    for (ky, kx), (rows, columns), (to_rows, to_columns) in _transposed_taps(
        w.shape[2:4], x.shape[1:3], g.shape[1:3], stride, dilation, offset
    ):
        reads = g[:, to_rows, to_columns]
        gradients = _grouped(reads, groups)
        dx[:, rows, columns] += _ungrouped(_products(gradients, w[:, :, ky, kx]), reads.shape[:3])
        dw[:, :, ky, kx] += _products(gradients.swapaxes(1, 2), _grouped(x[:, rows, columns], groups))
    return dx, dw.reshape(np.shape(weights)), g.sum(axis=(0, 1, 2))
