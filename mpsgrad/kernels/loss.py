"""Losses: the value and the gradient that starts the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import flag
from mpsgrad.image import Image, ImageBatch, TemporaryImage
from mpsgrad.kernel import Kernel, Regions, require_batch, require_state_batch, share_memory
from mpsgrad.kernels import loss_elements, loss_soft_max
from mpsgrad.kernels.joined_batch import join_batch, split_batch
from mpsgrad.kernels.loss_descriptor import LossDescriptor, LossProperties, LossReductionType, LossType
from mpsgrad.kernels.loss_labels import LossLabels
from mpsgrad.kernels.loss_terms import LossTerms, require_whole_images
from mpsgrad.read_counts import count_repeats_once, parts_in_place_of
from mpsgrad.state import StateBatch


class LossKernel(Kernel):
    """The base of kernels that compute a loss of a prediction and labels, and the gradient for the prediction.

    ``encode`` writes the **gradient** to the destination image, of the size of the source, and the loss to
    ``labels.loss_image``: a value for each image, or one for each element if ``reduction_type`` is NONE.
    """

    remembers_encodes = True

    @property
    def reduction_type(self) -> LossReductionType:
        """How the losses of an image are put together."""
        raise NotImplementedError

    @property
    def reduce_across_batch(self) -> bool:
        """Whether the losses of all images are put together in the first one's."""
        raise NotImplementedError

    # objc: -encodeToCommandBuffer:sourceImage:labels:
    # objc: -encodeToCommandBuffer:sourceImage:labels:destinationImage:
    @overload  # type: ignore[override]
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        labels: LossLabels,
    ) -> Image: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        labels: LossLabels,
        *,
        destination_image: Image,
    ) -> None: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        labels: LossLabels,
        *,
        destination_image: Image | None = None,
    ) -> Any: ...

    def encode(
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
        owner = type(self).__name__
        key = None
        sources: tuple[Image, ...] = (source_image,)
        if isinstance(labels, LossLabels) and labels.device is self.device:
            sources += labels._images
            key = self._encode_key(command_buffer, sources, destination_image, None)
        remembered = self._recall(key)
        if remembered is not None:
            written = labels.loss_image
            made = self._encode_again(remembered, command_buffer, sources, destination_image, labels, written)
            source_image._read_once()
            return made if destination_image is None else None
        self._require_images(command_buffer, {"source_image": source_image}, None)
        start = command_buffer._position()
        self._require_labels(source_image, labels)
        for name in ("labels_image", "weights_image"):
            image = getattr(labels, name)
            if image is not None:
                command_buffer._reads(owner, name, image._root._writer, image.buffer)
        if destination_image is not None:
            self._require_instances(destination_image=destination_image)
            for name in ("labels_image", "weights_image", "loss_image"):
                image = getattr(labels, name)
                if image is not None and share_memory(image, destination_image):
                    raise GeometryError(
                        f"{owner}: the destination shares memory with {name}; the destination may not alias a source"
                    )
            if destination_image.shape != source_image.shape:
                raise GeometryError(
                    f"{owner}: destination_image is {destination_image.descriptor.shape_text} but source_image is "
                    f"{source_image.descriptor.shape_text}"
                )
            destination = destination_image
        else:
            destination = self._new_image(command_buffer, source_image.descriptor)
        regions = self._run(command_buffer, source_image, destination, labels)
        self._remember(
            key, command_buffer, start, (*sources, destination), labels, destination.descriptor, regions
        )
        return destination if destination_image is None else None

    # objc: -encodeBatchToCommandBuffer:sourceImages:labels:
    # objc: -encodeBatchToCommandBuffer:sourceImages:labels:destinationImages:
    @overload  # type: ignore[override]
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        labels: Sequence[LossLabels],
    ) -> ImageBatch: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        labels: Sequence[LossLabels],
        *,
        destination_images: Sequence[Image],
    ) -> None: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        labels: Sequence[LossLabels],
        *,
        destination_images: Sequence[Image] | None = None,
    ) -> Any: ...

    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        labels: Sequence[LossLabels],
        *,
        destination_images: Sequence[Image] | None = None,
    ) -> ImageBatch | None:
        """``encode`` for each image with its labels.

        With ``reduce_across_batch`` the loss image of the first labels gets the loss of all images, and those of the
        others 0. Separate images, and labels, are copied to one for that.
        """
        owner = type(self).__name__
        sources = require_batch(owner, "source_images", source_images)
        targets = require_state_batch(owner, "labels", labels, len(sources))
        destinations = None
        if destination_images is not None:
            destinations = require_batch(owner, "destination_images", destination_images, len(sources))
        self._require_command_buffer(command_buffer, "encode")
        with command_buffer._all_or_nothing():
            if self.reduce_across_batch and self.reduction_type is not LossReductionType.NONE:
                return self._encode_joined(command_buffer, sources, targets, destinations)
            count_repeats_once(zip(sources, strict=True))
            if destinations is None:
                results = [self.encode(command_buffer, s, t) for s, t in zip(sources, targets, strict=True)]
                return ImageBatch(result for result in results if result is not None)
            for source, target, destination in zip(sources, targets, destinations, strict=True):
                self.encode(command_buffer, source, target, destination_image=destination)
        return None

    def _encode_joined(
        self, command_buffer: CommandBuffer, sources: ImageBatch, targets: StateBatch, destinations: ImageBatch | None
    ) -> ImageBatch | None:
        """One encode of all images; returns the gradients unless there are ``destinations``."""
        owner = type(self).__name__
        for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
            self._require_images(command_buffer, {f"source_images[{index}]": source}, None)
            self._require_labels(source, target)
            if (target.weights_image is None) is not (targets[0].weights_image is None):
                raise GeometryError(f"{owner}: labels[0] and labels[{index}] do not both have weights")
        whole = join_batch(owner, "source_images", command_buffer, sources)
        labels = LossLabels.from_images(
            join_batch(owner, "labels", command_buffer, ImageBatch(target.labels_image for target in targets)),
            None
            if targets[0].weights_image is None
            else join_batch(owner, "weights", command_buffer, ImageBatch(target.weights_image for target in targets)),
        )
        written = None if destinations is None else destinations.whole
        if destinations is not None and written is None:
            written = TemporaryImage(command_buffer, whole.descriptor)
            for index, destination in enumerate(destinations):
                self._require_images(command_buffer, {"source_image": whole, "destination_image": destination}, None)
                if destination.shape != sources[index].shape:
                    raise GeometryError(
                        f"{owner}: destination_images[{index}] is {destination.descriptor.shape_text} but "
                        f"source_images[{index}] is {sources[index].descriptor.shape_text}"
                    )
        result = self.encode(command_buffer, whole, labels, destination_image=written)
        split_batch(command_buffer, labels.loss_image, [target.loss_image for target in targets])
        if destinations is None:
            return parts_in_place_of(result)
        if destinations.whole is None:
            assert written is not None
            split_batch(command_buffer, written, destinations)
        return None

    def _require_labels(self, source: Image, labels: Any) -> None:
        owner = type(self).__name__
        if not isinstance(labels, LossLabels):
            raise FormatError(f"{owner}: labels is {type(labels).__name__}; it has to be LossLabels")
        if labels.device is not self.device:
            raise StateError(
                f"{owner}: labels are on {labels.device.identifier} but the kernel on {self.device.identifier}"
            )
        if labels.labels_image.shape != source.shape:
            raise GeometryError(
                f"{owner}: labels are {labels.labels_image.descriptor.shape_text} but source_image is "
                f"{source.descriptor.shape_text}"
            )
        unreduced = self.reduction_type is LossReductionType.NONE
        expected = source.shape if unreduced else (source.number_of_images, 1, 1, 1)
        if labels.loss_image.shape != expected:
            raise GeometryError(
                f"{owner}: labels.loss_image is {labels.loss_image.descriptor.shape_text} but reduction "
                f"{self.reduction_type.name} of a {source.descriptor.shape_text} source needs "
                f"{'x'.join(map(str, expected))}"
            )
        require_whole_images(self)
        for name, image in (("labels_image", labels.labels_image), ("weights_image", labels.weights_image)):
            if image is not None:
                image._require_readable(owner, name)

    def _note_encode(self, command_buffer: CommandBuffer, state: Any, regions: Regions) -> None:
        loss_image, *read = state._images
        loss_image._written_by(command_buffer)
        for image in {id(image): image for image in read}.values():
            image._read_once()


class Loss(LossProperties, LossKernel):
    """The loss of a prediction and its gradient with respect to the prediction. Source: ``MPSCNNLoss``.

    ``encode`` writes the **gradient** to the destination image, of the size of the source, and the loss to
    ``labels.loss_image``: the sum of ``w * loss`` over an image, its mean over width, height and channels, or each
    element's. With predictions ``y`` and labels ``t``, and ``s`` for label smoothing, where ``t'`` is
    ``t * (1 - s) + s / number_of_classes`` for softmax and ``t * (1 - s) + s / 2`` for sigmoid cross-entropy::

        mean_absolute_error          |y - t|                                   gradient  sign(y - t), 0 where equal
        mean_squared_error           (y - t)^2                                           2 (y - t)
        softmax_cross_entropy        -t' log_soft_max(y)                                 soft_max(y) - t'
        sigmoid_cross_entropy        max(y, 0) - y t' + ln(1 + e^-|y|)                   sigmoid(y) - t'
        categorical_cross_entropy    -t ln(y)                                            -t / y
        hinge                        max(1 - (2 t - 1) y, 0)                             1 - 2 t where the loss is not 0
        huber, d = y - t             |d| <= delta ? d^2 / 2                              clamp(d, -delta, delta)
                                     : delta^2 / 2 + delta (|d| - delta)
        cosine_distance              1 - sum(y t)                                        -t
        log, e = epsilon             -t ln(y + e) - (1 - t) ln(1 - y + e)                derivative of that
        kullback_leibler_divergence  t (ln(t) - y), y being log-probabilities            -t

    A label of 0 makes its product with a logarithm 0, so that a prediction of minus infinity rules out a class; of log
    so does one of 1 the other product, and predictions of 0 and 1 may be certain without an epsilon. ``w`` is the
    weights image of the labels if there is one, else the descriptor's weight; the cosine distance of an image is ``w (1
    - sum(y t))`` with the descriptor's weight and ``1 - sum(w y t)`` with an image of weights. The mean of softmax
    cross-entropy is that over the pixels. SUM_BY_NON_ZERO_WEIGHTS divides the sum by the number of elements whose
    weight is not 0, of softmax cross-entropy too: MPS makes no exception for it. The gradient of softmax cross-entropy
    is that of the loss where the labels of a pixel add up to 1 and its weights are equal; ``LossGradient`` is exact for
    all. The gradient of the mean absolute error where both are equal is ours: the printed one is 0 / 0. As in MPS the
    gradient is not scaled by the reduction; ``gradient_follows_reduction`` (ours) makes it the gradient of the reduced
    loss. Where Apple's printed gradients of huber, hinge and Kullback-Leibler differ from these, they are not the
    derivatives of the losses.
    """

    def __init__(
        self,
        loss_descriptor: LossDescriptor,
        *,
        gradient_follows_reduction: bool = False,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(device=device, label=label)
        self._set_loss_descriptor(loss_descriptor)
        self._gradient_follows_reduction = flag(
            type(self).__name__, "gradient_follows_reduction", gradient_follows_reduction
        )

    @property
    def gradient_follows_reduction(self) -> bool:
        """Whether the gradient is that of the reduced loss; not in MPS."""
        return self._gradient_follows_reduction

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        labels: LossLabels = state
        terms = LossTerms(self._loss_descriptor, source, labels.labels_image, labels.weights_image)
        family = loss_soft_max if self.loss_type is LossType.SOFTMAX_CROSS_ENTROPY else loss_elements
        family.add_loss(command_buffer, terms, labels.loss_image, destination, self._gradient_follows_reduction)
