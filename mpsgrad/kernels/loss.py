"""Losses: the value and the gradient that starts the backward pass."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from mpsgrad.archive import archivable
from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import MAXIMUM, NO_CLIP, Offset, Size, integer, integers, real
from mpsgrad.image import FeatureChannelFormat, Image, ImageBatch, ImageDescriptor
from mpsgrad.kernel import IMAGE_LAYOUT, Kernel, Regions, overlap, require_batch, require_state_batch
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.state import State
from mpsgrad.tunables import tunables

THREADS = 256
LEAST_SPREAD, SPREAD = 256, (1024, 2048, 4096)
"""From so many channels on, up to so many, a pixel is spread over the threads of a GPU's threadgroup."""


@archivable
class LossType(enum.IntEnum):
    """Source: ``MPSCNNLossType``."""

    MEAN_ABSOLUTE_ERROR = 0
    MEAN_SQUARED_ERROR = 1
    SOFTMAX_CROSS_ENTROPY = 2
    SIGMOID_CROSS_ENTROPY = 3
    CATEGORICAL_CROSS_ENTROPY = 4
    HINGE = 5
    HUBER = 6
    COSINE_DISTANCE = 7
    LOG = 8
    KULLBACK_LEIBLER_DIVERGENCE = 9


@archivable
class LossReductionType(enum.IntEnum):
    """Source: ``MPSCNNReductionType``."""

    NONE = 0
    SUM = 1
    MEAN = 2
    SUM_BY_NON_ZERO_WEIGHTS = 3


PARAMETERS = ParameterStruct(
    "LossParameters",
    source=IMAGE_LAYOUT,
    labels=IMAGE_LAYOUT,
    weights=IMAGE_LAYOUT,
    elements=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    has_weights="int",
    writes_elements="int",
    weight="float",
    label_scale="float",
    label_shift="float",
    scale="float",
)
REDUCTION_PARAMETERS = ParameterStruct(
    "LossReductionParameters",
    pixels="int",
    images="int",
    reduction="int",
    across_batch="int",
    scales_gradient="int",
    writes_values="int",
    first_value="int",
    value_stride="int",
)
FAMILY = ShaderFamily(
    "loss",
    (IMAGE_LAYOUT, PARAMETERS, REDUCTION_PARAMETERS),
    {
        "threads": THREADS,
        "spread": SPREAD,
        "reducing_threads": 1024,
        "mean": int(LossReductionType.MEAN),
        "non_zero": int(LossReductionType.SUM_BY_NON_ZERO_WEIGHTS),
    },
    {"cpu": {"spread": (), "reducing_threads": THREADS}},
    measured=lambda numbers: {"pixels": numbers.loss_pixels_per_simdgroup},
)


def _spread(device: Device, channels: int) -> str:
    """The end of the names of the kernels that spread a pixel over a threadgroup; empty for a simdgroup's."""
    if device.family == "cpu" or channels < LEAST_SPREAD:
        return ""
    return next((f"_spread_up_to_{most}" for most in SPREAD if channels <= most), "")


def _member(owner: str, argument: str, kind: type[enum.IntEnum], value: Any) -> Any:
    if isinstance(value, str):
        if value.upper() in kind.__members__:
            return kind[value.upper()]
    elif value in set(kind):
        return kind(value)
    names = ", ".join(name.lower() for name in kind.__members__)
    raise FormatError(f"{owner}: {argument} is {value!r}; it has to be a {kind.__name__} or one of {names}")


def _require(owner: str, argument: str, kind: type, value: Any) -> None:
    if not isinstance(value, kind):
        raise FormatError(f"{owner}: {argument} is {type(value).__name__}; it has to be of class {kind.__name__}")


@archivable
@dataclass(frozen=True)
class LossDescriptor:
    """What a loss computes. Source: ``MPSCNNLossDescriptor``.

    ``loss_type`` and ``reduction_type`` are enum members or their names in lower case. ``weight`` multiplies every
    element where no weights image is given; ``label_smoothing`` in [0, 1] moves labels toward
    ``1 / number_of_classes``.
    Raises ``FormatError`` for an unknown type and ``GeometryError`` for a value out of range.
    """

    loss_type: LossType | str
    reduction_type: LossReductionType | str = LossReductionType.SUM
    weight: float = 1.0
    label_smoothing: float = 0.0
    number_of_classes: int = 1
    epsilon: float = 1e-7
    delta: float = 1.0
    reduce_across_batch: bool = False

    def __post_init__(self) -> None:
        owner = type(self).__name__
        object.__setattr__(self, "loss_type", _member(owner, "loss_type", LossType, self.loss_type))
        object.__setattr__(
            self, "reduction_type", _member(owner, "reduction_type", LossReductionType, self.reduction_type)
        )
        for name, minimum, maximum in (
            ("weight", None, None),
            ("label_smoothing", 0.0, 1.0),
            ("epsilon", 0.0, None),
            ("delta", 0.0, None),
        ):
            object.__setattr__(self, name, real(owner, name, getattr(self, name), minimum, maximum))
        object.__setattr__(self, "number_of_classes", integer(owner, "number_of_classes", self.number_of_classes, 1))
        object.__setattr__(self, "reduce_across_batch", bool(self.reduce_across_batch))


class LossDataDescriptor:
    """Labels or weights as float32 values. Source: ``MPSCNNLossDataDescriptor``.

    ``data`` is copied; its layout is "HWC" or "CHW"; ``size`` is (width, height, feature channels). Raises
    ``FormatError`` for another dtype or layout and ``GeometryError`` for another number of values.
    """

    def __init__(self, data: Any, *, layout: str = "HWC", size: tuple[int, int, int]) -> None:
        owner = type(self).__name__
        values = np.asarray(data)
        if values.dtype != np.float32 or not values.dtype.isnative:
            raise FormatError(f"{owner}: data is {values.dtype!r}; it has to be float32 in native byte order")
        if layout not in ("HWC", "CHW"):
            raise FormatError(f"{owner}: layout is {layout!r}; it has to be 'HWC' or 'CHW'")
        self.layout = layout
        self.size = Size(*integers(owner, "size", size, 3, 1))
        width, height, channels = self.size
        if values.size != width * height * channels:
            raise GeometryError(
                f"{owner}: data has {values.size} values but size {tuple(self.size)} needs {width * height * channels}"
            )
        if layout == "CHW":
            values = values.reshape(channels, height, width).transpose(1, 2, 0)
        self.data = np.array(values.reshape(height, width, channels), order="C")


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


class Loss(Kernel):
    """The loss of a prediction and its gradient with respect to the prediction. Source: ``MPSCNNLoss``.

    ``encode`` writes the **gradient** to the destination image, of the size of the source, and the loss to
    ``labels.loss_image``. For softmax cross-entropy, with ``t' = t * (1 - s) + s / number_of_classes``::

        loss     = reduce(w * sum_k(-t'[k] * log_soft_max(x)[k]))      mean divides by width * height
        gradient = w * (soft_max(x) - t')

    ``w`` is the weights image of the labels if there is one, else the descriptor's weight. As in MPS the gradient is
    not scaled by the reduction; ``gradient_follows_reduction`` (ours) makes it the gradient of the reduced loss. The
    gradient is that of the loss where the labels of a pixel add up to 1. Raises ``NotImplementedError`` for the other
    loss types.
    """

    remembers_encodes = True

    def __init__(
        self,
        loss_descriptor: LossDescriptor,
        *,
        gradient_follows_reduction: bool = False,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(device=device, label=label)
        if not isinstance(loss_descriptor, LossDescriptor):
            raise FormatError(f"Loss: loss_descriptor is {loss_descriptor!r}; it has to be a LossDescriptor")
        if loss_descriptor.loss_type is not LossType.SOFTMAX_CROSS_ENTROPY:
            raise NotImplementedError(
                f"Loss: loss_type is {loss_descriptor.loss_type!r}; so far there is SOFTMAX_CROSS_ENTROPY"
            )
        self._loss_descriptor = loss_descriptor
        self._gradient_follows_reduction = bool(gradient_follows_reduction)

    @property
    def loss_descriptor(self) -> LossDescriptor:
        return self._loss_descriptor

    @property
    def gradient_follows_reduction(self) -> bool:
        return self._gradient_follows_reduction

    @property
    def loss_type(self) -> LossType:
        return cast(LossType, self._loss_descriptor.loss_type)

    @property
    def reduction_type(self) -> LossReductionType:
        return cast(LossReductionType, self._loss_descriptor.reduction_type)

    @property
    def weight(self) -> float:
        return self._loss_descriptor.weight

    @property
    def label_smoothing(self) -> float:
        return self._loss_descriptor.label_smoothing

    @property
    def number_of_classes(self) -> int:
        return self._loss_descriptor.number_of_classes

    @property
    def epsilon(self) -> float:
        return self._loss_descriptor.epsilon

    @property
    def delta(self) -> float:
        return self._loss_descriptor.delta

    @property
    def reduce_across_batch(self) -> bool:
        return self._loss_descriptor.reduce_across_batch

    # objc: -encodeToCommandBuffer:sourceImage:labels:
    # objc: -encodeToCommandBuffer:sourceImage:labels:destinationImage:
    def encode(  # type: ignore[override]
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        labels: LossLabels,
        *,
        destination_image: Image | None = None,
    ) -> Image | None:
        """Adds the work to ``command_buffer``; returns the gradient image unless ``destination_image`` is given.

        Raises ``GeometryError`` if the labels, the loss image or the destination do not fit the source.
        """
        key = None
        sources: tuple[Image, ...] = (source_image,)
        if isinstance(labels, LossLabels) and labels.device is self.device:
            sources += labels._images
            key = self._encode_key(command_buffer, sources, destination_image, None)
        remembered = self._recall(key)
        if remembered is not None:
            made = self._encode_again(remembered, command_buffer, sources, destination_image, labels)
            source_image._read_once()
            return made if destination_image is None else None
        start = command_buffer._position()
        self._require_images(command_buffer, {"source_image": source_image}, None)
        self._require_labels(source_image, labels)
        if destination_image is not None:
            self._require_instances(destination_image=destination_image)
            for name in ("labels_image", "weights_image", "loss_image"):
                image = getattr(labels, name)
                if image is not None and image._root is destination_image._root and overlap(image, destination_image):
                    raise GeometryError(
                        f"Loss: the destination shares memory with {name}; the destination may not alias a source"
                    )
            if destination_image.shape != source_image.shape:
                raise GeometryError(
                    f"Loss: destination_image is {destination_image.descriptor.shape_text} but source_image is "
                    f"{source_image.descriptor.shape_text}"
                )
            destination = destination_image
        else:
            destination = self.destination_image_allocator.image(command_buffer, source_image.descriptor, self)
        regions = self._run(command_buffer, source_image, destination, labels)
        self._remember(
            key, command_buffer, start, (*sources, destination), labels, destination.descriptor, regions
        )
        return destination if destination_image is None else None

    # objc: -encodeBatchToCommandBuffer:sourceImages:labels:
    # objc: -encodeBatchToCommandBuffer:sourceImages:labels:destinationImages:
    def encode_batch(  # type: ignore[override]
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        labels: Sequence[LossLabels],
        *,
        destination_images: Sequence[Image] | None = None,
    ) -> ImageBatch | None:
        """``encode`` for each image with its labels. Raises ``NotImplementedError`` for ``reduce_across_batch``, which
        needs one ``LossLabels`` of all images: use ``encode``."""
        if self.reduce_across_batch:
            raise NotImplementedError("Loss: reduce_across_batch in encode_batch; encode an image that holds the batch")
        sources = require_batch("Loss", "source_images", source_images)
        targets = require_state_batch("Loss", "labels", labels, len(sources))
        destinations = None
        if destination_images is not None:
            destinations = require_batch("Loss", "destination_images", destination_images, len(sources))
        self._require_command_buffer(command_buffer, "encode")
        with command_buffer._all_or_nothing():
            if destinations is None:
                results = [self.encode(command_buffer, s, t) for s, t in zip(sources, targets, strict=True)]
                return ImageBatch(result for result in results if result is not None)
            for source, target, destination in zip(sources, targets, destinations, strict=True):
                self.encode(command_buffer, source, target, destination_image=destination)
        return None

    def _require_labels(self, source: Image, labels: Any) -> None:
        if not isinstance(labels, LossLabels):
            raise FormatError(f"Loss: labels is {type(labels).__name__}; it has to be LossLabels")
        if labels.device is not self.device:
            raise StateError(
                f"Loss: labels are on {labels.device.identifier} but the kernel on {self.device.identifier}"
            )
        if labels.labels_image.shape != source.shape:
            raise GeometryError(
                f"Loss: labels are {labels.labels_image.descriptor.shape_text} but source_image is "
                f"{source.descriptor.shape_text}"
            )
        unreduced = self.reduction_type is LossReductionType.NONE
        expected = source.shape if unreduced else (source.number_of_images, 1, 1, 1)
        if labels.loss_image.shape != expected:
            raise GeometryError(
                f"Loss: labels.loss_image is {labels.loss_image.descriptor.shape_text} but reduction "
                f"{self.reduction_type.name} of a {source.descriptor.shape_text} source needs "
                f"{'x'.join(map(str, expected))}"
            )
        for name, default in (
            ("offset", Offset()),
            ("clip_rect", NO_CLIP),
            ("source_feature_channel_offset", 0),
            ("source_feature_channel_max_count", MAXIMUM),
            ("destination_feature_channel_offset", 0),
        ):
            if getattr(self, name) != default:
                raise GeometryError(f"Loss: {name} is {getattr(self, name)}; a loss works on whole images")
        for name, image in (("labels_image", labels.labels_image), ("weights_image", labels.weights_image)):
            if image is not None:
                image._require_readable("Loss", name)

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        labels: LossLabels = state
        weights = labels.weights_image
        smoothing = self.label_smoothing
        unreduced = self.reduction_type is LossReductionType.NONE
        dtype = source.channel_format.metal_type
        pixels = source.width * source.height
        images = source.number_of_images
        across_batch = self.reduce_across_batch and not unreduced
        is_mean = self.reduction_type is LossReductionType.MEAN and self.gradient_follows_reduction
        parameters = self.device.constant_buffer(
            PARAMETERS.pack(
                source=source.layout,
                labels=labels.labels_image.layout,
                weights=(weights or labels.labels_image).layout,
                elements=labels.loss_image.layout,
                destination=destination.layout,
                has_weights=int(weights is not None),
                writes_elements=int(unreduced),
                weight=self.weight,
                label_scale=1.0 - smoothing,
                label_shift=smoothing / self.number_of_classes,
                scale=1.0 / (pixels * (images if across_batch else 1)) if is_mean else 1.0,
            )
        )
        reduction = self.device.constant_buffer(
            REDUCTION_PARAMETERS.pack(
                pixels=pixels,
                images=images,
                reduction=int(self.reduction_type),
                across_batch=int(across_batch),
                scales_gradient=int(self.gradient_follows_reduction),
                writes_values=int(not unreduced),
                first_value=labels.loss_image.layout[0],
                value_stride=labels.loss_image.layout[3],
            )
        )
        losses, counts = (command_buffer.scratch(4 * pixels * images) for _ in range(2))
        scales = command_buffer.scratch(4 * images)
        sources = (source.buffer, labels.labels_image.buffer, (weights or labels.labels_image).buffer)
        results = (losses, counts, labels.loss_image.buffer)
        pixels_per_threadgroup = tunables(self.device.tuning).loss_pixels_per_simdgroup * (THREADS // 32)
        threadgroups = -(-pixels * images // pixels_per_threadgroup)
        counts_first = (
            self.reduction_type is LossReductionType.SUM_BY_NON_ZERO_WEIGHTS and self.gradient_follows_reduction
        )
        firsts: tuple[Buffer, ...] = (destination.buffer,)
        if counts_first:
            firsts = command_buffer.scratch(4 * pixels * images), command_buffer.scratch(4 * pixels * images)
        name = f"loss_soft_max_cross_entropy{'' if counts_first else '_and_gradient'}"
        spread = _spread(self.device, source.feature_channels)
        command_buffer.add_dispatch(
            FAMILY.function(self.device, name + spread, dtype),
            pixels * images if spread else threadgroups,
            *sources,
            *results,
            *firsts,
            parameters,
        )
        command_buffer.add_dispatch(
            FAMILY.function(self.device, "loss_reduce", dtype),
            1 if across_batch else images,
            *results,
            scales,
            reduction,
        )
        if counts_first:
            command_buffer.add_dispatch(
                FAMILY.function(self.device, "loss_soft_max_cross_entropy_gradient", dtype),
                threadgroups,
                *sources,
                *firsts,
                scales,
                destination.buffer,
                parameters,
            )

    def _note_encode(self, command_buffer: CommandBuffer, state: Any, regions: Regions) -> None:
        loss_image, *read = state._images
        loss_image._written_by(command_buffer)
        for image in {id(image): image for image in read}.values():
            image._read_once()
