"""How the CPU reads and writes an image, or a part of it, as bytes in either order of the axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import Region, integer, integers, values_apart
from mpsgrad.geometry import region as checked_region
from mpsgrad.image import Image
from mpsgrad.mps.metal import MPSImageReadWriteParams


class ImageBytes:
    """What ``MPSImage`` has for the CPU. ``layout`` 0 is height, width, channels and 1 channels, height, width.

    ``bytes`` is a C-contiguous array or a buffer. All raise ``FormatError`` for bytes of another type and another
    layout, and ``GeometryError`` for bytes that do not fit and for what the image does not have.
    """

    def read_bytes(self, bytes: Any, layout: int, image: int) -> None:
        """Copies image ``image`` into ``bytes``, which has its size."""
        assert isinstance(self, Image)
        room = self._of_one_image(bytes, layout, image, "room for ")
        self._require_writeable(room, bytes)
        room[...] = _in_order(np.asarray(self)[image], layout).reshape(-1)

    def write_bytes(self, bytes: Any, layout: int, image: int) -> None:
        """Replaces image ``image`` by what ``bytes``, which has its size, holds."""
        assert isinstance(self, Image)
        given = self._of_one_image(bytes, layout, image, "")
        values = np.array(self)
        part = _in_order(values[image], layout)
        part[...] = given.reshape(part.shape)
        self.write(values)

    def read_part(
        self,
        bytes: Any,
        layout: int,
        image: int,
        region: Region,
        channels: MPSImageReadWriteParams,
        bytes_per_row: int,
        bytes_per_image: int | None = None,
    ) -> None:
        """Copies ``channels`` of the pixels in ``region`` into ``bytes``; image 0 of the region is ``image``.

        Rows begin ``bytes_per_row`` after each other and images ``bytes_per_image``, without it one behind the other.
        Where channels come first, the rows of one follow those of the one before. What lies between rows is left.
        """
        assert isinstance(self, Image)
        part = _in_order(np.asarray(self)[self._indices(image, region, channels)], self._layout_of(layout))
        room = self._placed(bytes, part.shape, layout, (None, bytes_per_row, bytes_per_image))
        self._require_writeable(room, bytes)
        room[...] = part

    def write_part(
        self,
        bytes: Any,
        layout: int,
        image: int,
        region: Region,
        channels: MPSImageReadWriteParams,
        bytes_per_row: int,
        bytes_per_image: int | None = None,
        bytes_per_column: int | None = None,
    ) -> None:
        """Replaces ``channels`` of the pixels in ``region`` by what ``bytes`` holds, laid out as for ``read_part``.

        Pixels of a row begin ``bytes_per_column`` after each other, without it one behind the other.
        """
        assert isinstance(self, Image)
        values = np.array(self)
        part = _in_order(values[self._indices(image, region, channels)], self._layout_of(layout))
        part[...] = self._placed(bytes, part.shape, layout, (bytes_per_column, bytes_per_row, bytes_per_image))
        self.write(values)

    def _layout_of(self, layout: Any) -> int:
        if layout not in (0, 1):
            raise FormatError(f"{type(self).__name__}: dataLayout is {layout!r}; it has to be an MPSDataLayout")
        return int(layout)

    def _of_one_image(self, bytes: Any, layout: int, image: int, what: str) -> np.ndarray:
        """``bytes`` as the values of one image."""
        assert isinstance(self, Image)
        owner, count = type(self).__name__, self.height * self.width * self.feature_channels
        self._layout_of(layout)
        if integer(owner, "imageIndex", image, 0) >= self.number_of_images:
            raise GeometryError(f"{owner}: imageIndex is {image} but there are {self.number_of_images} images")
        values = self._values(bytes)
        if values.size != count:
            raise GeometryError(f"{owner}: bytes has {what}{values.size} values of {count}")
        return values

    def _indices(self, image: Any, region: Any, channels: Any) -> tuple[slice, ...]:
        """Which images, rows, columns and channels of the image a region and channels are."""
        assert isinstance(self, Image)
        owner = type(self).__name__
        first_image = integer(owner, "imageIndex", image, 0)
        (x, y, z), (width, height, depth) = checked_region(owner, "region", region)
        first, count = integers(owner, "featureChannelInfo", channels, 2, 0)
        if first % 4 or (first and count % 4):
            raise GeometryError(
                f"{owner}: featureChannelInfo is {count} channels from {first} on; both have to be multiples of 4 "
                "unless the first is 0"
            )
        indices = []
        for what, start, size, there_are in (
            ("images", first_image + z, depth, self.number_of_images),
            ("rows", y, height, self.height),
            ("columns", x, width, self.width),
            ("feature channels", first, count, self.feature_channels),
        ):
            if size == 0 or start + size > there_are:
                raise GeometryError(f"{owner}: {size} {what} from {start} on are asked for; there are {there_are}")
            indices.append(slice(start, start + size))
        return tuple(indices)

    def _placed(
        self, bytes: Any, shape: tuple[int, ...], layout: int, distances: tuple[int | None, int, int | None]
    ) -> np.ndarray:
        """``bytes`` as an array of ``shape`` whose columns, rows and images lie ``distances`` in bytes apart."""
        owner, values = type(self).__name__, self._values(bytes)
        images, channels, height, width = shape if layout else (shape[0], shape[3], *shape[1:3])
        pixel, planes = (1, channels) if layout else (channels, 1)
        of_column, of_row, of_image = distances
        column = values_apart(owner, "bytesPerColumn", of_column, values.itemsize, pixel)
        of_columns = column * (width - 1) + pixel
        row = values_apart(owner, "bytesPerRow", of_row, values.itemsize, of_columns)
        of_rows = row * (height * planes - 1) + of_columns
        image = values_apart(owner, "bytesPerImage", of_image, values.itemsize, of_rows, row * height * planes)
        needed = image * (images - 1) + of_rows
        if values.size < needed:
            raise GeometryError(f"{owner}: bytes has {values.size} values but the region needs {needed}")
        strides = (image, row * height, row, column) if layout else (image, row, column, 1)
        in_bytes = tuple(values.itemsize * stride for stride in strides)
        return np.lib.stride_tricks.as_strided(values, shape, in_bytes, writeable=values.flags.writeable)

    def _values(self, bytes: Any) -> np.ndarray:
        """``bytes`` as values of the image's type."""
        assert isinstance(self, Image)
        owner, kind = type(self).__name__, getattr(bytes, "dtype", self.dtype)
        if kind not in (self.dtype, np.uint8):
            raise FormatError(f"{owner}: bytes is an array of {kind}; the image holds {self.dtype}")
        try:
            return np.frombuffer(bytes, self.dtype)
        except (TypeError, ValueError, BufferError) as error:
            raise FormatError(f"{owner}: bytes is {type(bytes).__name__}: {error}") from None

    def _require_writeable(self, room: np.ndarray, bytes: Any) -> None:
        if not room.flags.writeable:
            raise FormatError(f"{type(self).__name__}: bytes is {type(bytes).__name__}, which cannot be written")


def _in_order(values: np.ndarray, layout: int) -> np.ndarray:
    """A view of ``values`` with the feature channels before rows and columns if ``layout`` is 1."""
    return np.moveaxis(values, -1, -3) if layout else values
