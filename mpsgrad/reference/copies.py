"""Operations that only move elements, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .window import Array, Pair, image


def slice_image(source: npt.ArrayLike, offset: Pair, size: Pair, first_channel: int, channels: int) -> Array:
    """The box of `size` pixels from `offset` (y, x) on, 0 outside the source, of `channels` channels (MPSNNSlice)."""
    x = image(source, "source")
    result = np.zeros((x.shape[0], *size, channels))
    (inner, outer) = _boxes(x.shape, offset, size)
    result[inner] = x[(*outer, slice(first_channel, first_channel + channels))]
    return result


def slice_image_gradient(
    source_gradient: npt.ArrayLike, source_shape: tuple[int, ...], offset: Pair, first_channel: int
) -> Array:
    """The gradient where the slice was, 0 elsewhere."""
    g = image(source_gradient, "source_gradient")
    result = np.zeros(source_shape)
    (inner, outer) = _boxes(source_shape, offset, (g.shape[1], g.shape[2]))
    result[(*outer, slice(first_channel, first_channel + g.shape[3]))] = g[inner]
    return result


def _boxes(shape: tuple[int, ...], offset: Pair, size: Pair) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """What the slice and the source have in common: its pixels in the slice, and in the source."""
    inner, outer = [slice(None)], [slice(None)]
    for extent, start, count in zip(shape[1:3], offset, size, strict=True):
        first, last = max(start, 0), max(min(start + count, extent), max(start, 0))
        inner.append(slice(first - start, last - start))
        outer.append(slice(first, last))
    return tuple(inner), tuple(outer)


def reshape(source: npt.ArrayLike, size: Pair, channels: int) -> Array:
    """The elements of each image in the order of rows, columns and channels, in another shape (MPSNNReshape)."""
    x = image(source, "source")
    return x.reshape(x.shape[0], *size, channels)


def reshape_gradient(source_gradient: npt.ArrayLike, source_shape: tuple[int, ...]) -> Array:
    """The gradient in the source's shape (MPSNNReshapeGradient)."""
    return image(source_gradient, "source_gradient").reshape(source_shape)


def concatenation(sources: Sequence[npt.ArrayLike], *, aligns_channels: bool = False) -> Array:
    """The channels of all sources; with `aligns_channels` each takes a multiple of 4, the rest being 0, as
    MPSNNConcatenationNode lets it."""
    parts = []
    for source in sources:
        x = image(source, "source")
        parts.append(np.pad(x, ((0, 0),) * 3 + ((0, -x.shape[3] % 4 if aligns_channels else 0),)))
    return np.concatenate(parts, axis=3)


def concatenation_gradient(
    source_gradient: npt.ArrayLike, channels: Sequence[int], *, aligns_channels: bool = False
) -> list[Array]:
    """Each source's channels of the gradient, of which it has as many as `channels` say."""
    g, first, results = image(source_gradient, "source_gradient"), 0, []
    for count in channels:
        results.append(g[..., first : first + count])
        first += -(-count // 4) * 4 if aligns_channels else count
    return results


def sub_pixels(result: npt.ArrayLike, factor: int) -> Array:
    """Channels spread over blocks of pixels (MPSCNNSubPixelConvolutionDescriptor).

    Pixel (y, x) takes block factor * (y % factor) + x % factor of the channels of pixel (y / factor, x / factor).
    """
    x = image(result, "result")
    images, height, width, channels = x.shape
    blocks = x.reshape(images, height, width, factor, factor, channels // factor**2)
    return blocks.transpose(0, 1, 3, 2, 4, 5).reshape(images, height * factor, width * factor, -1)
