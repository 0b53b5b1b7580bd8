"""What an image is besides its contents: the format of a feature channel, and the extents."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import integer, member

LARGEST_ELEMENT_COUNT = 2**31 - 1
"""Kernels index with 32-bit integers; larger images are refused."""


class FeatureChannelFormat(enum.IntEnum):
    """How one feature channel is stored. Source: ``MPSImageFeatureChannelFormat``."""

    NONE = 0
    UNORM8 = 1
    UNORM16 = 2
    FLOAT16 = 3
    FLOAT32 = 4

    @property
    def dtype(self) -> np.dtype:
        """The NumPy dtype; raises ``NotImplementedError`` for formats that images do not have here."""
        if self not in _DTYPES:
            raise NotImplementedError(f"images are FLOAT16 or FLOAT32, not {self.name}")
        return _DTYPES[self]

    @property
    def metal_type(self) -> str:
        """The name of the storage type in Metal."""
        return "half" if self is FeatureChannelFormat.FLOAT16 else "float"

    @classmethod
    def from_dtype(cls, dtype: Any) -> FeatureChannelFormat:
        """The format of a NumPy dtype; raises ``FormatError`` for any but native float16 and float32."""
        try:
            dtype = np.dtype(dtype)
        except TypeError:
            raise FormatError(f"{dtype!r} is no dtype; images hold float16 or float32") from None
        for format, known in _DTYPES.items():
            if dtype == known and dtype.isnative:
                return format
        raise FormatError(f"images hold float16 or float32 in native byte order, not {dtype!r}; convert with astype")


_DTYPES: dict[FeatureChannelFormat, np.dtype] = {
    FeatureChannelFormat.FLOAT16: np.dtype(np.float16),
    FeatureChannelFormat.FLOAT32: np.dtype(np.float32),
}


@dataclass(frozen=True)
class ImageDescriptor:
    """The format and the extents of an image. Source: ``MPSImageDescriptor``.

    ``width`` and ``height`` are in pixels. Raises ``GeometryError`` for an extent below 1 or more than
    ``LARGEST_ELEMENT_COUNT`` elements, and ``NotImplementedError`` for a format other than FLOAT16 and FLOAT32.
    """

    channel_format: FeatureChannelFormat = FeatureChannelFormat.FLOAT32
    width: int = 1
    height: int = 1
    feature_channels: int = 1
    number_of_images: int = 1

    def __post_init__(self) -> None:
        channel_format = member("ImageDescriptor", "channel_format", FeatureChannelFormat, self.channel_format)
        object.__setattr__(self, "channel_format", channel_format)
        if self.channel_format not in _DTYPES:
            raise NotImplementedError(
                f"ImageDescriptor: channel_format is {self.channel_format.name}; images are FLOAT16 or FLOAT32"
            )
        for name in ("width", "height", "feature_channels", "number_of_images"):
            object.__setattr__(self, name, integer("ImageDescriptor", name, getattr(self, name), 1))
        if self.element_count > LARGEST_ELEMENT_COUNT:
            raise GeometryError(
                f"ImageDescriptor: {self.shape_text} has {self.element_count} elements; "
                f"the largest image has {LARGEST_ELEMENT_COUNT}"
            )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(number_of_images, height, width, feature_channels)."""
        return self.number_of_images, self.height, self.width, self.feature_channels

    @property
    def shape_text(self) -> str:
        """The shape as messages print it: ``8x32x32x16``."""
        return "x".join(map(str, self.shape))

    @property
    def element_count(self) -> int:
        """The number of elements of all images."""
        return self.number_of_images * self.height * self.width * self.feature_channels

    @cached_property
    def pixel_count(self) -> int:
        """The number of pixels of all images."""
        return self.number_of_images * self.height * self.width

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.element_count * self.channel_format.dtype.itemsize

    @cached_property
    def dense_strides(self) -> tuple[int, int, int]:
        """Elements from one pixel, row and image to the next where they follow each other without gaps."""
        row = self.feature_channels * self.width
        return self.feature_channels, row, row * self.height

    @cached_property
    def dense_layout(self) -> tuple[int, ...]:
        """``Image.layout`` of an image that is no view."""
        extents = (self.width, self.height, self.feature_channels, self.number_of_images)
        return (0, *self.dense_strides, *extents)
