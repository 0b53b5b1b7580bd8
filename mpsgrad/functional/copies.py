"""Slices, other shapes, concatenation and padding, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.errors import FormatError
from mpsgrad.functional.arrays import Pair, array_like, image_of, pair_of, run_forward, run_gradient, shape_of
from mpsgrad.functional.kept import kept
from mpsgrad.geometry import EdgeMode, Offset, Origin, Region, Size
from mpsgrad.image import Image
from mpsgrad.kernels.concatenation import Concatenation, ConcatenationGradient
from mpsgrad.kernels.pad import Pad, PadGradient
from mpsgrad.kernels.reshape import Reshape, ReshapeGradient
from mpsgrad.kernels.slice import Slice, SliceGradient


def _slice(offset: Pair, size: Pair | None, first_channel: int, channels: int | None) -> Slice:
    kernel = Slice()
    y, x = pair_of("offset", offset)
    kernel.offset, kernel.source_feature_channel_offset = Offset(x, y), first_channel
    if channels is not None:
        kernel.source_feature_channel_max_count = channels
    if size is not None:
        height, width = pair_of("size", size)
        kernel.clip_rect = Region(Origin(), Size(width, height))
    return kernel


def slice_image(
    source: Any, *, offset: Pair = 0, size: Pair | None = None, first_channel: int = 0, channels: int | None = None
) -> np.ndarray:
    """The box of ``size`` pixels (y, x) from ``offset`` on, and ``channels`` from ``first_channel``, a multiple of 4.

    None is all that there are, and a box that goes on behind the source is cut, as in NumPy; before it, where
    ``offset`` is negative, there are zeros. Source: ``Slice``.
    """
    return run_forward(kept(_slice, offset, size, first_channel, channels), source)


def slice_image_gradient(
    source_gradient: Any,
    source: Any,
    *,
    offset: Pair = 0,
    size: Pair | None = None,
    first_channel: int = 0,
    channels: int | None = None,
) -> np.ndarray:
    """The gradient of ``slice_image``: where the slice was that of the result, zeros elsewhere.

    ``source`` is looked at for its shape only. Source: ``SliceGradient``.
    """
    forward = kept(_slice, offset, size, first_channel, channels)
    return run_gradient(forward, kept(SliceGradient), source_gradient, source)[0]


def _reshape(height: int, width: int, channels: int) -> Reshape:
    kernel = Reshape()
    kernel.reshaped_height, kernel.reshaped_width, kernel.reshaped_feature_channels = height, width, channels
    return kernel


def reshape(source: Any, height: int, width: int, channels: int) -> np.ndarray:
    """The elements of each image in another shape of as many, in the order of rows, columns and channels.

    Raises ``GeometryError`` for another number of elements. Source: ``Reshape``.
    """
    return run_forward(kept(_reshape, height, width, channels), source)


def reshape_gradient(source_gradient: Any, source: Any) -> np.ndarray:
    """The gradient of ``reshape``: that of the result in the shape of ``source``. Source: ``ReshapeGradient``."""
    *_, height, width, channels = shape_of("source_gradient", source_gradient)
    return run_gradient(kept(_reshape, height, width, channels), kept(ReshapeGradient), source_gradient, source)[0]


def _images(sources: tuple[Any, ...]) -> list[Image]:
    return [image_of(f"sources[{index}]", each) for index, each in enumerate(sources)]


def concatenation(*sources: Any, aligns_channels: bool = False) -> np.ndarray:
    """The channels of all ``sources``, which have equal batches, heights and widths, one after the other.

    If it ``aligns_channels`` each source begins at a multiple of 4, as in MPS, with zeros between. Source:
    ``Concatenation``.
    """
    with CommandBuffer() as commands:
        result = kept(Concatenation, aligns_channels=aligns_channels).encode(commands, _images(sources))
    return array_like(result, sources[0])


def concatenation_gradient(source_gradient: Any, *sources: Any, aligns_channels: bool = False) -> list[np.ndarray]:
    """The gradients of ``concatenation`` for each of the ``sources``, as a list. Source: ``ConcatenationGradient``."""
    images, incoming = _images(sources), image_of("source_gradient", source_gradient)
    with CommandBuffer() as commands:
        _, state = kept(Concatenation, aligns_channels=aligns_channels).encode(commands, images, return_state=True)
        results = [
            kept(ConcatenationGradient, index).encode(commands, incoming, image, state)
            for index, image in enumerate(images)
        ]
    return [array_like(result, source) for result, source in zip(results, sources, strict=True)]


def _pad(before: Any, after: Any, edge_mode: str | EdgeMode, fill: Any) -> Pad:
    sizes = []
    for name, value in (("before", before), ("after", after)):
        try:
            y, x, *channels = value
            (channel,) = channels or (0,)
        except (TypeError, ValueError):
            raise FormatError(f"{name} is {value!r}; it has to be (y, x) or (y, x, channels)") from None
        sizes.append((x, y, channel))
    fills = None if np.ndim(fill) == 0 else fill
    kernel = Pad(sizes[0], sizes[1], fills)
    kernel.edge_mode = edge_mode
    if fills is None:
        kernel.fill_value = fill
    return kernel


def pad(
    source: Any,
    before: tuple[int, ...],
    after: tuple[int, ...],
    *,
    edge_mode: str | EdgeMode = "zero",
    fill: Any = 0.0,
) -> np.ndarray:
    """``source`` with so many rows, columns and, if given, channels (y, x, channels) before and after it.

    ``edge_mode`` is ``"zero"``, ``"constant"``, ``"clamp"`` (NumPy's ``edge``), ``"mirror"`` (its ``reflect``) or
    ``"mirror_with_edge"`` (its ``symmetric``); ``fill``, for ``"constant"``, a number or one for each channel of the
    result. Source: ``Pad``.
    """
    return run_forward(kept(_pad, before, after, edge_mode, fill), source)


def pad_gradient(
    source_gradient: Any,
    source: Any,
    before: tuple[int, ...],
    after: tuple[int, ...],
    *,
    edge_mode: str | EdgeMode = "zero",
) -> np.ndarray:
    """The gradient of ``pad``: for each element the sum of those of its copies. Source: ``PadGradient``."""
    return run_gradient(kept(_pad, before, after, edge_mode, 0.0), kept(PadGradient), source_gradient, source)[0]
