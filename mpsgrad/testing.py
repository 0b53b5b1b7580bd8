"""Tools to test kernels with: a check of gradients, error bounds, fenced destinations, and Hypothesis strategies.

Needs Hypothesis (``pip install 'mpsgrad[test]'``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from mpsgrad.accuracy import assert_within, error_bound
from mpsgrad.devices import Device, default_device
from mpsgrad.gradient_check import check_gradient
from mpsgrad.image import FeatureChannelFormat, Image, ImageDescriptor

_CANARY = 0x5A

__all__ = [
    "FencedImage",
    "WindowGeometry",
    "assert_within",
    "batch_sizes",
    "channel_counts",
    "channel_formats",
    "check_gradient",
    "error_bound",
    "values",
    "window_geometries",
]


@dataclass
class FencedImage:
    """An image of NaNs between two images of canary bytes: shows elements that were not written and overruns."""

    image: Image
    _storage: Image

    @classmethod
    def of(cls, descriptor: ImageDescriptor, device: Device | None = None) -> FencedImage:
        """A fenced image of ``descriptor``."""
        count = descriptor.number_of_images
        storage = Image(replace(descriptor, number_of_images=count + 2), device or default_device())
        image = storage._images(1, count)
        values = np.empty(storage.shape, storage.dtype)
        values.view(np.uint8)[...] = _CANARY
        values[1:-1] = np.nan
        storage.write(values)
        return cls(image, storage)

    def check(self) -> np.ndarray:
        """A copy of the image's values; fails if one is still NaN or a canary changed."""
        values = np.array(self.image)
        missing = int(np.isnan(values).sum())
        assert missing == 0, f"{missing} of {values.size} elements were not written (or are NaN)"
        everything = np.asarray(self._storage)
        for index, where in ((0, "before"), (-1, "behind")):
            touched = int((np.ascontiguousarray(everything[index]).view(np.uint8) != _CANARY).sum())
            assert touched == 0, f"{touched} bytes {where} the destination were overwritten"
        return values


@dataclass(frozen=True)
class WindowGeometry:
    """A drawn window along both axes with the source's extents; sizes of results follow from the offset and size."""

    width: int
    height: int
    kernel_width: int
    kernel_height: int
    stride_x: int
    stride_y: int
    dilation_x: int
    dilation_y: int
    offset_x: int
    offset_y: int
    result_width: int
    result_height: int

    @property
    def reference(self) -> dict[str, tuple[int, int]]:
        """The keywords of the functions in ``mpsgrad.reference``."""
        return {
            "kernel": (self.kernel_height, self.kernel_width),
            "stride": (self.stride_y, self.stride_x),
            "dilation": (self.dilation_y, self.dilation_x),
            "offset": (self.offset_y, self.offset_x),
            "size": (self.result_height, self.result_width),
        }


@st.composite
def window_geometries(
    draw: Any, *, dilation: bool = True, largest: int = 13, largest_kernel: int = 5
) -> WindowGeometry:
    """Odd and even sizes, windows larger than the image, strides above the window, windows partly or wholly outside."""

    def axis() -> tuple[int, int, int, int, int, int]:
        size = draw(st.integers(1, largest))
        kernel = draw(st.integers(1, largest_kernel))
        stride = draw(st.integers(1, 4))
        rate = draw(st.integers(1, 3)) if dilation else 1
        extent = (kernel - 1) * rate + 1
        offset = draw(st.integers(-extent, extent))
        result = draw(st.integers(1, max(1, (size + extent) // stride)))
        return size, kernel, stride, rate, offset, result

    x, y = axis(), axis()
    return WindowGeometry(x[0], y[0], x[1], y[1], x[2], y[2], x[3], y[3], x[4], y[4], x[5], y[5])


CHANNEL_FORMATS: Sequence[FeatureChannelFormat] = (FeatureChannelFormat.FLOAT32, FeatureChannelFormat.FLOAT16)


def channel_formats() -> st.SearchStrategy[FeatureChannelFormat]:
    """FLOAT32 and FLOAT16."""
    return st.sampled_from(CHANNEL_FORMATS)


def batch_sizes() -> st.SearchStrategy[int]:
    """1 to 5 images."""
    return st.integers(1, 5)


def channel_counts() -> st.SearchStrategy[int]:
    """Channel counts around the simdgroup's width and those that are no multiple of 4."""
    return st.one_of(st.integers(1, 9), st.sampled_from([16, 31, 32, 33, 37, 64, 65]))


@st.composite
def values(draw: Any, shape: tuple[int, ...], dtype: Any, *, ties: bool = False, scale: float = 1.0) -> np.ndarray:
    """Finite values of ``shape``: normally distributed, or with ``ties`` a few small integers.

    Only the seed is drawn, so that large arrays stay cheap; Hypothesis shrinks the shape.
    """
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if ties:
        return generator.integers(-2, 3, shape).astype(dtype)
    return (scale * generator.standard_normal(shape)).astype(dtype)
