"""What losses are computed of besides the prediction: labels and weights, and the image that receives the loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.data_type import float_values
from mpsgrad.devices import Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import Size, integers, values_apart
from mpsgrad.image import FeatureChannelFormat, Image, ImageDescriptor
from mpsgrad.state import State


def _require(owner: str, argument: str, kind: type, value: Any) -> None:
    if not isinstance(value, kind):
        raise FormatError(f"{owner}: {argument} is {type(value).__name__}; it has to be of class {kind.__name__}")


class LossDataDescriptor:
    """Labels or weights as float32 values. Source: ``MPSCNNLossDataDescriptor``.

    ``data``, an array or the bytes of one, is copied; its layout is "HWC" or "CHW"; ``size`` is (width, height, feature
    channels). A row, of pixels or in CHW of one channel, begins ``bytes_per_row`` after the one before, and with CHW
    the rows of a channel ``bytes_per_image`` after those of the one before; without them the values follow each other.
    Raises ``FormatError`` for another dtype or layout, and ``GeometryError`` for another number of values, for fewer
    than these distances need, and for distances that are no multiple of 4 or too short.
    """

    def __init__(
        self,
        data: Any,
        *,
        layout: str = "HWC",
        size: tuple[int, int, int],
        bytes_per_row: int | None = None,
        bytes_per_image: int | None = None,
    ) -> None:
        owner = type(self).__name__
        values = float_values(owner, data)
        if values.dtype != np.float32 or not values.dtype.isnative:
            raise FormatError(f"{owner}: data is {values.dtype!r}; it has to be float32 in native byte order")
        if layout not in ("HWC", "CHW"):
            raise FormatError(f"{owner}: layout is {layout!r}; it has to be 'HWC' or 'CHW'")
        self.layout = layout
        self.size = Size(*integers(owner, "size", size, 3, 1))
        self._values = np.array(values, order="C").reshape(-1)
        self._lay_out(bytes_per_row, bytes_per_image)

    def _lay_out(self, bytes_per_row: int | None, bytes_per_image: int | None) -> None:
        owner, (width, height, channels) = type(self).__name__, self.size
        run, images = (width * channels, 1) if self.layout == "HWC" else (width, channels)
        row = values_apart(owner, "bytes_per_row", bytes_per_row, 4, run)
        image = values_apart(owner, "bytes_per_image", bytes_per_image, 4, row * (height - 1) + run, row * height)
        needed = image * (images - 1) + row * (height - 1) + run
        count, is_dense = self._values.size, bytes_per_row is None and bytes_per_image is None
        if count < needed or (is_dense and count > needed):
            raise GeometryError(f"{owner}: data has {count} values but size {tuple(self.size)} needs {needed}")
        self._bytes_per_row, self._bytes_per_image = 4 * row, 4 * image
        strides = (4 * image, 4 * row, 4)
        rows = np.lib.stride_tricks.as_strided(self._values, (images, height, run), strides, writeable=False)
        pixels = rows.transpose(1, 2, 0) if self.layout == "CHW" else rows.reshape(height, width, channels)
        self.data = np.array(pixels, order="C")

    @property
    def bytes_per_row(self) -> int:
        """How far apart rows are in the data; setting it reads them anew, and raises what the constructor raises."""
        return self._bytes_per_row

    @bytes_per_row.setter
    def bytes_per_row(self, distance: int) -> None:
        self._lay_out(distance, self._bytes_per_image)

    @property
    def bytes_per_image(self) -> int:
        """With CHW, how far apart the rows of one channel and of the next are in the data; setting it is the same."""
        return self._bytes_per_image

    @bytes_per_image.setter
    def bytes_per_image(self, distance: int) -> None:
        self._lay_out(self._bytes_per_row, distance)


class LossLabels(State):
    """The labels of a loss, optional weights, and the image that receives the loss. Source: ``MPSCNNLossLabels``.

    Made from descriptors (one image) or, with ``from_images`` and ``from_array``, from labels of N images. The
    ``loss_image`` is FLOAT32; its size is (1, 1, 1), one value per image, or for unreduced losses that of the source.
    """

    def __init__(
        self,
        labels_descriptor: LossDataDescriptor,
        *,
        weights_descriptor: LossDataDescriptor | None = None,
        loss_image_size: tuple[int, int, int] = (1, 1, 1),
        device: Device | None = None,
    ) -> None:
        super().__init__((), device)
        _require(type(self).__name__, "labels_descriptor", LossDataDescriptor, labels_descriptor)
        if weights_descriptor is not None:
            _require(type(self).__name__, "weights_descriptor", LossDataDescriptor, weights_descriptor)
        labels = Image.from_array(labels_descriptor.data, self.device)
        weights = Image.from_array(weights_descriptor.data, self.device) if weights_descriptor is not None else None
        self._set_images(labels, weights, loss_image_size)

    @classmethod
    def from_images(
        cls,
        labels_image: Image,
        weights_image: Image | None = None,
        *,
        loss_image_size: tuple[int, int, int] = (1, 1, 1),
    ) -> LossLabels:
        """Labels and weights that are images already; they are kept, not copied."""
        _require(cls.__name__, "labels_image", Image, labels_image)
        if weights_image is not None:
            _require(cls.__name__, "weights_image", Image, weights_image)
        labels = cls.__new__(cls)
        State.__init__(labels, (), labels_image.device)
        labels._set_images(labels_image, weights_image, loss_image_size)
        return labels

    @classmethod
    def from_array(
        cls,
        labels: Any,
        weights: Any = None,
        *,
        loss_image_size: tuple[int, int, int] = (1, 1, 1),
        device: Device | None = None,
    ) -> LossLabels:
        """Labels (and weights) from float32 arrays of shape images x height x width x channels."""
        return cls.from_images(
            Image.from_array(labels, device),
            Image.from_array(weights, device) if weights is not None else None,
            loss_image_size=loss_image_size,
        )

    def _set_images(self, labels: Image, weights: Image | None, loss_image_size: tuple[int, int, int]) -> None:
        owner = type(self).__name__
        for name, image in (("labels_image", labels), ("weights_image", weights)):
            if image is not None and image.channel_format is not FeatureChannelFormat.FLOAT32:
                raise FormatError(f"{owner}: {name} is {image.channel_format.name}; it has to be FLOAT32")
        if weights is not None and weights.device is not labels.device:
            raise StateError(
                f"{owner}: weights_image is on {weights.device.identifier} but labels_image on "
                f"{labels.device.identifier}"
            )
        if weights is not None and weights.shape != labels.shape:
            raise GeometryError(
                f"{owner}: weights are {weights.descriptor.shape_text} but labels {labels.descriptor.shape_text}"
            )
        size = Size(*integers(owner, "loss_image_size", loss_image_size, 3, 1))
        whole = (labels.width, labels.height, labels.feature_channels)
        if tuple(size) not in ((1, 1, 1), whole):
            raise GeometryError(f"{owner}: loss_image_size is {tuple(size)}; it has to be (1, 1, 1) or {whole}")
        self.labels_image = labels
        self.weights_image = weights
        self.loss_image = Image(
            ImageDescriptor(FeatureChannelFormat.FLOAT32, *size, labels.number_of_images), labels.device
        )

    @property
    def _images(self) -> tuple[Image, ...]:
        """The image of the loss, that of the labels, and that of the weights if there is one."""
        images = (self.loss_image, self.labels_image)
        return images if self.weights_image is None else (*images, self.weights_image)
