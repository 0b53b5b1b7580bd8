"""The gradient of a loss as a kernel of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, overload

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import flag
from mpsgrad.image import FeatureChannelFormat, Image, ImageBatch, ImageDescriptor
from mpsgrad.kernel import BinaryKernel, Regions
from mpsgrad.kernels.forward_loss import LossGradientState
from mpsgrad.kernels.half_of_a_loss import HalfOfALoss, given
from mpsgrad.kernels.loss_descriptor import LossDescriptor
from mpsgrad.read_counts import parts_in_place_of, read_once
from mpsgrad.state import State


class LossGradient(HalfOfALoss, BinaryKernel):
    """The gradient of ``ForwardLoss`` by the chain rule. Source: ``MPSNNLossGradient``.

    ``source_gradient`` is the gradient with respect to the loss image, FLOAT32 and of its size. The result is that with
    respect to the prediction, ``source_gradient * scale * w * d loss / dy`` with the derivatives of ``Loss``, or with
    ``compute_label_gradients`` that with respect to the labels, a FLOAT32 image. ``scale`` is 1 for reductions NONE and
    SUM, and one over the count that the loss was divided by for the others. Across a batch the first image's
    ``source_gradient`` counts for all. The gradient of softmax cross-entropy is exact whatever the labels of a pixel
    add up to: ``soft_max(y) * sum(f * t) - f * t`` with ``f = source_gradient * scale * w``.
    """

    source_names = ("source_gradient", "source_image")
    forward_kernels = ("ForwardLoss",)

    # objc: -initWithDevice:lossDescriptor:
    def __init__(
        self,
        loss_descriptor: LossDescriptor,
        *,
        compute_label_gradients: bool = False,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(device=device, label=label)
        self._set_loss_descriptor(loss_descriptor)
        self.compute_label_gradients = compute_label_gradients

    @property
    def compute_label_gradients(self) -> bool:
        """Whether the result is the gradient with respect to the labels."""
        return self._compute_label_gradients

    @compute_label_gradients.setter
    def compute_label_gradients(self, compute: bool) -> None:
        self._compute_label_gradients = flag(type(self).__name__, "compute_label_gradients", compute)

    def _make_state(self, *arguments: Any, **_: Any) -> None:
        return None

    def destination_image_descriptor(
        self, source_images: Sequence[Image], source_states: Sequence[State] | None = None
    ) -> ImageDescriptor:
        """The descriptor of the gradient for ``[source_gradient, source_image]``."""
        _, source = self._list_of_sources(source_images)
        if self.compute_label_gradients:
            return replace(source.descriptor, channel_format=FeatureChannelFormat.FLOAT32)
        return source.descriptor

    def _descriptor_of(self, command_buffer: CommandBuffer, state: Any, source: Image) -> LossDescriptor:
        """The descriptor that the forward encode had, or this kernel's without a state."""
        if state is None:
            return self._loss_descriptor
        owner = type(self).__name__
        if not isinstance(state, LossGradientState):
            raise FormatError(f"{owner}: source_state is {type(state).__name__}; it has to be made by ForwardLoss")
        if state.device is not self.device:
            raise StateError(
                f"{owner}: source_state is on {state.device.identifier} but the kernel on {self.device.identifier}"
            )
        self._require_usable(command_buffer, "source_state", state)
        if state.snapshot.source.shape != source.shape:
            raise GeometryError(
                f"{owner}: source_state was made for a {state.snapshot.source.shape_text} source but source_image is "
                f"{source.descriptor.shape_text}"
            )
        for name in ("loss_type", "reduction_type", "reduce_across_batch", "number_of_classes"):
            theirs, ours = getattr(state.loss_descriptor, name), getattr(self, name)
            if theirs != ours:
                raise StateError(f"{owner}: {name} is {ours!r} but that of source_state is {theirs!r}")
        return state.loss_descriptor

    @overload  # type: ignore[override]
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        labels: Image,
        weights: Image | None = None,
        source_state: State | None = None,
    ) -> Image: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        labels: Image,
        weights: Image | None = None,
        source_state: State | None = None,
        *,
        destination_gradient: Image,
    ) -> None: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        labels: Image,
        weights: Image | None = None,
        source_state: State | None = None,
        *,
        destination_gradient: Image | None = None,
    ) -> Any: ...

    def encode(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        labels: Image,
        weights: Image | None = None,
        source_state: State | None = None,
        *,
        destination_gradient: Image | None = None,
    ) -> Any:
        """Adds the work to ``command_buffer``; returns the gradient unless ``destination_gradient`` is given.

        ``source_image``, ``labels`` and ``weights`` are those of the forward encode. With ``source_state``, what that
        encode returned, the weight, label smoothing, epsilon and delta are what they were then. Raises
        ``GeometryError``, ``FormatError`` or ``StateError`` if something does not fit the source.
        """
        sources = given(source_gradient, source_image, labels, weights)
        options = (weights is None, self._compute_label_gradients)
        key = self._encode_key(command_buffer, sources, destination_gradient, source_state, options)
        remembered = self._recall(key)
        if remembered is not None:
            made = self._encode_again(remembered, command_buffer, sources, destination_gradient, source_state)
            read_once(given(*sources, source_state))
            return made if destination_gradient is None else None
        self._require_images(command_buffer, {"source_image": source_image}, None)
        start = command_buffer._position()
        descriptor = self._descriptor_of(command_buffer, source_state, source_image)
        terms = self._terms(command_buffer, descriptor, source_image, labels, weights)
        shape = self._loss_shape(source_image)
        self._require_float_image(command_buffer, "source_gradient", source_gradient, shape, source_image)
        result = self.destination_image_descriptor([source_gradient, source_image])
        if destination_gradient is None:
            destination = self._new_image(command_buffer, result)
        else:
            destination = destination_gradient
            self._require_images(command_buffer, {"destination_gradient": destination}, None)
            if destination.shape != result.shape or destination.channel_format is not result.channel_format:
                raise GeometryError(
                    f"{type(self).__name__}: destination_gradient is {destination.descriptor.shape_text} "
                    f"{destination.channel_format.name} but the gradient {result.shape_text} "
                    f"{result.channel_format.name}"
                )
            self._require_apart(destination, terms, source_gradient=source_gradient)
        self._family().add_gradient(
            command_buffer, terms, source_gradient, destination, self.compute_label_gradients
        )
        destination._written_by(command_buffer)
        regions = Regions.of_whole(destination)
        self._remember(key, command_buffer, start, (*sources, destination), source_state, result, regions)
        read_once(given(*sources, source_state))
        return destination if destination_gradient is None else None

    # objc: -encodeBatchToCommandBuffer:sourceGradients:sourceImages:labels:weights:sourceStates:
    # objc: -encodeBatchToCommandBuffer:sourceGradients:sourceImages:labels:weights:sourceStates:destinationGradients:
    @overload  # type: ignore[override]
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[Image],
        source_images: Sequence[Image],
        labels: Sequence[Image],
        weights: Sequence[Image] | None = None,
        source_states: Sequence[State] | None = None,
    ) -> ImageBatch: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[Image],
        source_images: Sequence[Image],
        labels: Sequence[Image],
        weights: Sequence[Image] | None = None,
        source_states: Sequence[State] | None = None,
        *,
        destination_gradients: Sequence[Image],
    ) -> None: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[Image],
        source_images: Sequence[Image],
        labels: Sequence[Image],
        weights: Sequence[Image] | None = None,
        source_states: Sequence[State] | None = None,
        *,
        destination_gradients: Sequence[Image] | None = None,
    ) -> Any: ...

    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[Image],
        source_images: Sequence[Image],
        labels: Sequence[Image],
        weights: Sequence[Image] | None = None,
        source_states: Sequence[State] | None = None,
        *,
        destination_gradients: Sequence[Image] | None = None,
    ) -> Any:
        """``encode`` for a batch of images of one image each; batches made of one image are encoded at once.

        With ``reduce_across_batch`` separate images are copied to one for that. Raises ``NotImplementedError`` if there
        are states then that are no parts of one state.
        """
        batches, joined = self._batches(
            source_gradients=source_gradients,
            source_images=source_images,
            labels=labels,
            weights=weights,
            destination_gradients=destination_gradients,
        )
        self._require_command_buffer(command_buffer, "encode_batch")
        results = []
        with command_buffer._all_or_nothing():
            encodes = self._encodes_of_batch(command_buffer, batches, joined, "source_states", source_states)
            for images, state in encodes:
                result = self.encode(
                    command_buffer,
                    images["source_gradients"],
                    images["source_images"],
                    images["labels"],
                    images["weights"],
                    state,
                    destination_gradient=images["destination_gradients"],
                )
                results.append(result)
            self._split(command_buffer, batches["destination_gradients"], encodes, "destination_gradients")
        if destination_gradients is not None:
            return None
        return parts_in_place_of(results[0]) if len(results) < len(source_images) else ImageBatch(results)
