"""The loss of object detectors that predict boxes and classes for the anchors of each cell of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from mpsgrad.archive import archivable
from mpsgrad.command import CommandBuffer
from mpsgrad.data_type import float_values
from mpsgrad.devices import Device
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import flag, member, real
from mpsgrad.image import Image
from mpsgrad.kernel import IMAGE_LAYOUT, Regions
from mpsgrad.kernels.loss import Loss, LossKernel
from mpsgrad.kernels.loss_descriptor import LossDescriptor, LossReductionType, LossType
from mpsgrad.kernels.loss_labels import LossLabels
from mpsgrad.kernels.loss_soft_max import add_reduction
from mpsgrad.kernels.loss_terms import NOWHERE, LossTerms
from mpsgrad.kernels.pointwise import merge_channels
from mpsgrad.shader import ParameterStruct, ShaderFamily

THREADS = 128
BOX_CHANNELS = 5
"""x, y, width, height and confidence."""
MOST_IN_TILE, FEWEST_THREADS_OF_TILE = 3072, 32
"""Threadgroups of GPUs keep so many numbers of whole cells, where these have blocks for so many threads."""

PART = ParameterStruct(
    "YoloPart", type="int", label_scale="float", label_shift="float", weight="float", epsilon="float", delta="float"
)
PARAMETERS = ParameterStruct(
    "YoloLossParameters",
    source=IMAGE_LAYOUT,
    labels=IMAGE_LAYOUT,
    weights=IMAGE_LAYOUT,
    elements=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    xy=PART,
    wh=PART,
    confidence=PART,
    classes=PART,
    anchors="int",
    number_of_classes="int",
    takes_soft_max="int",
    rescores="int",
    has_weights="int",
    has_scales="int",
    writes_elements="int",
    cells_of_tile="int",
    scale="float",
    scale_xy="float",
    scale_wh="float",
    scale_object="float",
    scale_no_object="float",
    scale_class="float",
    least_of_object="float",
    most_of_nothing="float",
)
FAMILY = ShaderFamily(
    "yolo_loss",
    (IMAGE_LAYOUT, PART, PARAMETERS),
    {
        "threads": THREADS,
        "types": {kind.name.lower(): int(kind) for kind in LossType},
        "neuron_types": (),
        "calls_functions": False,
        "most_in_tile": MOST_IN_TILE,
    },
    {"cpu": {"most_in_tile": 0}},
    ahead_of_time=False,
)

_PARTS = ("xy_loss_descriptor", "wh_loss_descriptor", "confidence_loss_descriptor", "classes_loss_descriptor")


@archivable
@dataclass(frozen=True)
class YOLOLossDescriptor:
    """What a ``YOLOLoss`` computes. Source: ``MPSCNNYOLOLossDescriptor``.

    ``anchor_boxes`` are the (width, height) of each anchor, in cells, or float32 bytes of them. The four descriptors
    are of the losses of the boxes' positions, sizes and confidences and of the classes; ``reduction_type`` and
    ``reduce_across_batch`` take the place of their own. With ``rescore`` the confidence of an object is to become the
    intersection of the predicted box and the label's over their union, without it 1. The scales are factors of the
    losses' parts.

    Raises ``FormatError`` for what is no descriptor or number, ``GeometryError`` for anchors that are not positive or
    thresholds beyond 0 to 1, and ``NotImplementedError`` for the cosine distance, and for softmax cross-entropy of
    anything but the classes.
    """

    anchor_boxes: Sequence[Sequence[float]]
    xy_loss_descriptor: LossDescriptor = field(default_factory=lambda: LossDescriptor("mean_squared_error"))
    wh_loss_descriptor: LossDescriptor = field(default_factory=lambda: LossDescriptor("huber"))
    confidence_loss_descriptor: LossDescriptor = field(default_factory=lambda: LossDescriptor("sigmoid_cross_entropy"))
    classes_loss_descriptor: LossDescriptor = field(default_factory=lambda: LossDescriptor("softmax_cross_entropy"))
    reduction_type: LossReductionType | str = LossReductionType.SUM
    rescore: bool = True
    scale_xy: float = 10.0
    scale_wh: float = 10.0
    scale_no_object: float = 5.0
    scale_object: float = 100.0
    scale_class: float = 2.0
    min_iou_for_object_presence: float = 0.7
    max_iou_for_object_absence: float = 0.3
    reduce_across_batch: bool = False

    def __post_init__(self) -> None:
        owner = type(self).__name__
        object.__setattr__(self, "anchor_boxes", _anchors(owner, self.anchor_boxes))
        reduction = member(owner, "reduction_type", LossReductionType, self.reduction_type)
        object.__setattr__(self, "reduction_type", reduction)
        for name in ("rescore", "reduce_across_batch"):
            object.__setattr__(self, name, flag(owner, name, getattr(self, name)))
        for name in _PARTS:
            part = getattr(self, name)
            if not isinstance(part, LossDescriptor):
                raise FormatError(f"{owner}: {name} is {part!r}; it has to be a LossDescriptor")
            is_soft_max = part.loss_type is LossType.SOFTMAX_CROSS_ENTROPY and name != "classes_loss_descriptor"
            if is_soft_max or part.loss_type is LossType.COSINE_DISTANCE:
                raise NotImplementedError(f"{owner}: {name} is of type {cast(LossType, part.loss_type).name}")
            shared = replace(part, reduction_type=reduction, reduce_across_batch=self.reduce_across_batch)
            object.__setattr__(self, name, shared)
        for name in ("scale_xy", "scale_wh", "scale_no_object", "scale_object", "scale_class"):
            object.__setattr__(self, name, real(owner, name, getattr(self, name)))
        for name in ("min_iou_for_object_presence", "max_iou_for_object_absence"):
            object.__setattr__(self, name, real(owner, name, getattr(self, name), 0.0, 1.0))

    # objc: +cnnLossDescriptorWithXYLossType:WHLossType:confidenceLossType:classesLossType:reductionType:anchorBoxes:
    # objc:     numberOfAnchorBoxes:
    @classmethod
    def with_loss_types(
        cls,
        xy_loss_type: LossType | str,
        wh_loss_type: LossType | str,
        confidence_loss_type: LossType | str,
        classes_loss_type: LossType | str,
        reduction_type: LossReductionType | str,
        anchor_boxes: Sequence[Sequence[float]],
        number_of_anchor_boxes: int | None = None,
    ) -> YOLOLossDescriptor:
        """A descriptor of losses of these types; everything else has its default.

        Raises ``GeometryError`` if there are not ``number_of_anchor_boxes``.
        """
        made = cls(
            anchor_boxes,
            LossDescriptor(xy_loss_type),
            LossDescriptor(wh_loss_type),
            LossDescriptor(confidence_loss_type),
            LossDescriptor(classes_loss_type),
            reduction_type,
        )
        if number_of_anchor_boxes not in (None, made.number_of_anchor_boxes):
            raise GeometryError(
                f"{cls.__name__}: number_of_anchor_boxes is {number_of_anchor_boxes} but anchor_boxes has "
                f"{made.number_of_anchor_boxes}"
            )
        return made

    @property
    def number_of_anchor_boxes(self) -> int:
        """How many anchors each cell has."""
        return len(self.anchor_boxes)


class YOLOLoss(LossKernel):
    """The loss of boxes and classes for the anchors of each cell of a grid. Source: ``MPSCNNYOLOLoss``.

    A pixel of the source is a cell; its channels are x, y, w, h, c and one for each class, anchor after anchor. The
    predicted box has its centre at ``sigmoid(x), sigmoid(y)`` in the cell and the size ``a exp(w), b exp(h)`` for the
    anchor ``(a, b)``. The labels have the same channels: the centre itself, ``w`` and ``h`` as the logarithms of the
    size over the anchor's, ``c`` above 0 where there is an object, and the classes.

    With ``u`` the intersection of a predicted box and its label's over their union, 0 without an object, an anchor

    * has found an object if there is one and ``u`` is the largest of the cell's anchors that have one, of equal ones
      that of the first, or at least ``min_iou_for_object_presence``. Its losses are ``scale_xy
      loss_xy(sigmoid(x, y))``, ``scale_wh loss_wh(w, h)``, ``scale_object loss_confidence(c, u or 1)`` and
      ``scale_class loss_classes``;
    * else has found nothing if ``u`` is at most ``max_iou_for_object_absence``, with ``scale_no_object
      loss_confidence(c, 0)``;
    * else counts for nothing.

    Element by element these are multiplied by the labels' weights image, or by the weight of the part's descriptor.
    MEAN divides by all elements of an image, SUM_BY_NON_ZERO_WEIGHTS by those whose factor is not 0. ``encode`` writes
    the gradient, for which ``u`` and the choices by it are constants, to the destination image, and the loss to
    ``labels.loss_image``. The gradient is not scaled by the reduction; ``gradient_follows_reduction`` (ours) makes it
    that of the reduced loss. How exactly MPS tells objects from nothing is not published.
    """

    # objc: -initWithDevice:lossDescriptor:
    def __init__(
        self,
        loss_descriptor: YOLOLossDescriptor,
        *,
        gradient_follows_reduction: bool = False,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(device=device, label=label)
        if not isinstance(loss_descriptor, YOLOLossDescriptor):
            raise FormatError(
                f"{type(self).__name__}: loss_descriptor is {loss_descriptor!r}; it has to be a YOLOLossDescriptor"
            )
        self._loss_descriptor = loss_descriptor
        self._gradient_follows_reduction = flag(
            type(self).__name__, "gradient_follows_reduction", gradient_follows_reduction
        )
        self._losses = {name: Loss(getattr(loss_descriptor, name), device=self.device) for name in _PARTS}

    @property
    def loss_descriptor(self) -> YOLOLossDescriptor:
        """What the loss computes."""
        return self._loss_descriptor

    @property
    def gradient_follows_reduction(self) -> bool:
        """Whether the gradient is that of the reduced loss; not in MPS."""
        return self._gradient_follows_reduction

    @property
    def loss_xy(self) -> Loss:
        """A kernel with the loss of the boxes' positions."""
        return self._losses["xy_loss_descriptor"]

    @property
    def loss_wh(self) -> Loss:
        """A kernel with the loss of the boxes' sizes."""
        return self._losses["wh_loss_descriptor"]

    @property
    def loss_confidence(self) -> Loss:
        """A kernel with the loss of the confidences."""
        return self._losses["confidence_loss_descriptor"]

    @property
    def loss_classes(self) -> Loss:
        """A kernel with the loss of the classes."""
        return self._losses["classes_loss_descriptor"]

    @property
    def scale_xy(self) -> float:
        """Factor of the loss of positions."""
        return self._loss_descriptor.scale_xy

    @property
    def scale_wh(self) -> float:
        """Factor of the loss of extents."""
        return self._loss_descriptor.scale_wh

    @property
    def scale_no_object(self) -> float:
        """Factor of the confidence where there is no object."""
        return self._loss_descriptor.scale_no_object

    @property
    def scale_object(self) -> float:
        """Factor of the confidence where there is an object."""
        return self._loss_descriptor.scale_object

    @property
    def scale_class(self) -> float:
        """Factor of the loss of classes."""
        return self._loss_descriptor.scale_class

    @property
    def min_iou_for_object_presence(self) -> float:
        """Overlap from which on an anchor box has an object."""
        return self._loss_descriptor.min_iou_for_object_presence

    @property
    def max_iou_for_object_absence(self) -> float:
        """Overlap up to which an anchor box has none."""
        return self._loss_descriptor.max_iou_for_object_absence

    @property
    def reduction_type(self) -> LossReductionType:
        """How the losses of the elements become one."""
        return cast(LossReductionType, self._loss_descriptor.reduction_type)

    @property
    def reduce_across_batch(self) -> bool:
        """Whether the losses of all images become one."""
        return self._loss_descriptor.reduce_across_batch

    @property
    def number_of_anchor_boxes(self) -> int:
        """How many boxes each cell has."""
        return self._loss_descriptor.number_of_anchor_boxes

    @property
    def anchor_boxes(self) -> Sequence[Sequence[float]]:
        """(width, height) of each."""
        return self._loss_descriptor.anchor_boxes

    def _require_labels(self, source: Image, labels: Any) -> None:
        super()._require_labels(source, labels)
        channels, anchors = source.feature_channels, self.number_of_anchor_boxes
        if channels % anchors or channels < anchors * (BOX_CHANNELS + 1):
            raise GeometryError(
                f"{type(self).__name__}: source_image has {channels} feature channels for {anchors} anchor boxes; each "
                f"has {BOX_CHANNELS} and those of at least one class"
            )

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        labels: LossLabels = state
        # The sums of the parts are put together like those of any loss of elements.
        terms = LossTerms(
            self._loss_descriptor.xy_loss_descriptor, source, labels.labels_image, labels.weights_image
        )
        blocks = source.width * source.height * self.number_of_anchor_boxes
        losses, counts = (command_buffer.scratch(4 * blocks * source.number_of_images) for _ in range(2))
        follows = self._gradient_follows_reduction
        by_count = follows and self.reduction_type is LossReductionType.SUM_BY_NON_ZERO_WEIGHTS
        is_mean = follows and self.reduction_type is LossReductionType.MEAN
        scales = None
        for has_scales in (False, True) if by_count else (False,):
            self._add_dispatch(
                command_buffer, terms, labels.loss_image, destination, losses, counts, scales if has_scales else None,
                1.0 / terms.count if is_mean else 1.0,
            )  # fmt: skip
            if scales is None and not terms.unreduced:
                scales = add_reduction(
                    command_buffer,
                    terms,
                    losses,
                    counts,
                    blocks * source.number_of_images if terms.across_batch else blocks,
                    loss_image=labels.loss_image,
                    scales_gradient=by_count,
                )

    def _add_dispatch(
        self,
        command_buffer: CommandBuffer,
        terms: LossTerms,
        loss_image: Image,
        destination: Image,
        losses: Any,
        counts: Any,
        scales: Any,
        scale: float,
    ) -> None:
        device, source, descriptor = self.device, terms.source, self._loss_descriptor
        anchors = self.number_of_anchor_boxes
        parts = {}
        for name in _PARTS:
            part: LossDescriptor = getattr(descriptor, name)
            smoothing = LossTerms(part, source, terms.labels, None).smoothing
            kind = int(cast(LossType, part.loss_type))
            parts[name.removesuffix("_loss_descriptor")] = (kind, *smoothing, part.weight, part.epsilon, part.delta)
        cells = _cells_of_tile(anchors, source, terms.labels, destination)
        parameters = PARAMETERS.pack(
            source=source.layout,
            labels=terms.labels.layout,
            weights=terms.weights.layout if terms.weights is not None else NOWHERE,
            elements=loss_image.layout if terms.unreduced else NOWHERE,
            destination=destination.layout,
            **parts,
            anchors=anchors,
            number_of_classes=source.feature_channels // anchors - BOX_CHANNELS,
            takes_soft_max=int(descriptor.classes_loss_descriptor.loss_type is LossType.SOFTMAX_CROSS_ENTROPY),
            rescores=int(descriptor.rescore),
            has_weights=int(terms.weights is not None),
            has_scales=int(scales is not None),
            writes_elements=int(terms.unreduced),
            cells_of_tile=cells,
            scale=scale,
            scale_xy=descriptor.scale_xy,
            scale_wh=descriptor.scale_wh,
            scale_object=descriptor.scale_object,
            scale_no_object=descriptor.scale_no_object,
            scale_class=descriptor.scale_class,
            least_of_object=descriptor.min_iou_for_object_presence,
            most_of_nothing=descriptor.max_iou_for_object_absence,
        )
        pixels = source.width * source.height * source.number_of_images
        command_buffer.add_dispatch(
            FAMILY.function(device, "yolo_loss_of_tiles" if cells else "yolo_loss", source.channel_format.metal_type),
            -(-pixels // cells) if cells else -(-pixels * anchors // THREADS),
            source.buffer,
            terms.labels.buffer,
            (terms.weights or terms.labels).buffer,
            device.constant_buffer(np.array(descriptor.anchor_boxes, np.float32).tobytes()),
            scales or losses,
            loss_image.buffer if terms.unreduced else losses,
            destination.buffer,
            losses,
            counts,
            device.constant_buffer(parameters),
        )


def _cells_of_tile(anchors: int, source: Image, *others: Image) -> int:
    """How many cells of the images a threadgroup of a GPU keeps in memory of its own; 0 if it does not pay."""
    layouts = merge_channels([image.layout for image in (source, *others)])
    _, _, _, _, width, height, _, images = layouts[0]
    cells = min(MOST_IN_TILE // source.feature_channels, THREADS // anchors)
    is_run = width == height == images == 1
    return cells if source.device.family != "cpu" and is_run and cells * anchors >= FEWEST_THREADS_OF_TILE else 0


def _anchors(owner: str, anchors: Any) -> tuple[tuple[float, float], ...]:
    if isinstance(anchors, (bytes, bytearray)) or (isinstance(anchors, np.ndarray) and anchors.ndim == 1):
        values = float_values(owner, anchors)
        if values.size % 2:
            raise GeometryError(f"{owner}: anchor_boxes has {values.size} values; each box has a width and a height")
        anchors = values.reshape(-1, 2).tolist()
    try:
        pairs = [tuple(anchor) for anchor in anchors]
    except TypeError:
        raise FormatError(f"{owner}: anchor_boxes is {anchors!r}; it has to be a list of (width, height)") from None
    if not pairs:
        raise GeometryError(f"{owner}: anchor_boxes is empty; it has to have at least one anchor")
    checked = []
    for index, pair in enumerate(pairs):
        if len(pair) != 2:
            raise FormatError(f"{owner}: anchor_boxes[{index}] is {pair!r}; it has to be (width, height)")
        width, height = (real(owner, f"anchor_boxes[{index}]", size) for size in pair)
        if width <= 0 or height <= 0:
            raise GeometryError(f"{owner}: anchor_boxes[{index}] is {pair}; both have to be above 0")
        checked.append((width, height))
    return tuple(checked)
