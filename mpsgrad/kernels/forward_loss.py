"""Losses as kernels of their own, so that other kernels may follow them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Literal, overload

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Device
from mpsgrad.image import FeatureChannelFormat, Image, ImageBatch, ImageDescriptor
from mpsgrad.kernel import BaseKernel, Kernel, Regions
from mpsgrad.kernels.half_of_a_loss import HalfOfALoss, given
from mpsgrad.kernels.loss_descriptor import LossDescriptor
from mpsgrad.read_counts import parts_in_place_of, read_once
from mpsgrad.state import GradientState, State, StateBatch


class LossGradientState(GradientState):
    """What ``LossGradient`` has to know of the encode of a ``ForwardLoss``: its descriptor as it was then."""

    loss_descriptor: LossDescriptor

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        return (self.snapshot, self.loss_descriptor)


class ForwardLoss(HalfOfALoss, Kernel):
    """The loss of a prediction, which ``LossGradient`` differentiates. Source: ``MPSNNForwardLoss``.

    The result is the loss image, FLOAT32: one value per image, or with reduction NONE one for each element of the
    source. The losses are those of ``Loss``. Labels and weights are FLOAT32 images of the size of the source; without
    weights the descriptor's weight is used. ``weight``, ``label_smoothing``, ``epsilon`` and ``delta`` may be set
    between encodes; the state holds what they were.
    """

    # objc: -initWithDevice:lossDescriptor:
    def __init__(
        self, loss_descriptor: LossDescriptor, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(device=device, label=label)
        self._set_loss_descriptor(loss_descriptor)

    def destination_image_descriptor(
        self, source_images: Sequence[Image], source_states: Sequence[State] | None = None
    ) -> ImageDescriptor:
        """The descriptor of the loss image for ``[source_image]``."""
        (source,) = self._list_of_sources(source_images)
        images, height, width, channels = self._loss_shape(source)
        return ImageDescriptor(FeatureChannelFormat.FLOAT32, width, height, channels, images)

    def _make_state(self, source: Image, *others: Any) -> Any:
        destination, command_buffer = others[-2:]
        state = LossGradientState(
            self._shared_snapshot(source, destination), (), self.device, command_buffer=command_buffer
        )
        state.loss_descriptor = self._loss_descriptor
        return state

    @overload  # type: ignore[override]
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        labels: Image,
        weights: Image | None = None,
    ) -> Image: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        labels: Image,
        weights: Image | None = None,
        *,
        return_state: Literal[True],
        state_is_temporary: bool = False,
    ) -> tuple[Image, LossGradientState]: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        labels: Image,
        weights: Image | None = None,
        *,
        destination_image: Image,
        destination_state: State | None = None,
    ) -> None: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        labels: Image,
        weights: Image | None = None,
        *,
        destination_image: Image | None = None,
        destination_state: State | None = None,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any: ...

    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        labels: Image,
        weights: Image | None = None,
        *,
        destination_image: Image | None = None,
        destination_state: State | None = None,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any:
        """Adds the work to ``command_buffer``; returns the loss image, with ``return_state`` the pair (image, state).

        With ``destination_image`` that image (and ``destination_state``, made by ``result_state``) is filled, and None
        is returned. Raises ``GeometryError``, ``FormatError`` or ``StateError`` if labels, weights or destination do
        not fit the source.
        """
        sources = given(source_image, labels, weights)
        options = (weights is None, destination_state is None, return_state)
        key = self._encode_key(command_buffer, sources, destination_image, destination_state, options)
        remembered = self._recall(key)
        if remembered is not None:
            return self._encode_forward_again(
                remembered,
                command_buffer,
                sources,
                destination_image,
                destination_state,
                return_state,
                state_is_temporary,
            )
        terms = self._terms(command_buffer, self._loss_descriptor, source_image, labels, weights)
        start = command_buffer._position()
        self._require_one_way_of_states(destination_image, destination_state, return_state)
        state = destination_state
        if destination_image is None:
            descriptor = self.destination_image_descriptor([source_image])
            destination = self._new_image(command_buffer, descriptor)
            if return_state:
                state = self._make_state(source_image, destination, command_buffer if state_is_temporary else None)
        else:
            destination = destination_image
            shape = self._loss_shape(source_image)
            self._require_float_image(command_buffer, "destination_image", destination, shape, source_image)
            self._require_apart(destination, terms)
            if state is not None:
                self._require_state(state, source_image, destination)
                self._require_usable(command_buffer, "destination_state", state)
        self._family().add_loss(command_buffer, terms, destination, None, False)
        destination._written_by(command_buffer)
        regions = Regions.of_whole(destination)
        self._remember(key, command_buffer, start, (*sources, destination), state, destination.descriptor, regions)
        if state is not None:
            state._written_by(command_buffer)
        read_once(sources)
        if destination_image is not None:
            return None
        return (destination, state) if return_state else destination

    # objc: -encodeBatchToCommandBuffer:sourceImages:labels:weights:destinationStates:destinationImages:
    # objc: -encodeBatchToCommandBuffer:sourceImages:labels:weights:destinationStates:destinationStateIsTemporary:
    @overload  # type: ignore[override]
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        labels: Sequence[Image],
        weights: Sequence[Image] | None = None,
    ) -> ImageBatch: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        labels: Sequence[Image],
        weights: Sequence[Image] | None = None,
        *,
        return_state: Literal[True],
        state_is_temporary: bool = False,
    ) -> tuple[ImageBatch, StateBatch | None]: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        labels: Sequence[Image],
        weights: Sequence[Image] | None = None,
        *,
        destination_images: Sequence[Image],
        destination_states: Sequence[State] | None = None,
    ) -> None: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        labels: Sequence[Image],
        weights: Sequence[Image] | None = None,
        *,
        destination_images: Sequence[Image] | None = None,
        destination_states: Sequence[State] | None = None,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any: ...

    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        labels: Sequence[Image],
        weights: Sequence[Image] | None = None,
        *,
        destination_images: Sequence[Image] | None = None,
        destination_states: Sequence[State] | None = None,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any:
        """``encode`` for a batch of images of one image each; batches made of one image are encoded at once.

        With ``reduce_across_batch`` separate images are copied to one for that. Raises ``NotImplementedError`` if there
        are states then that are no parts of one state.
        """
        batches, joined = self._batches(
            source_images=source_images, labels=labels, weights=weights, destination_images=destination_images
        )
        self._require_command_buffer(command_buffer, "encode_batch")
        results = []
        with command_buffer._all_or_nothing():
            encodes = self._encodes_of_batch(command_buffer, batches, joined, "destination_states", destination_states)
            for images, state in encodes:
                result = self.encode(
                    command_buffer,
                    images["source_images"],
                    images["labels"],
                    images["weights"],
                    destination_image=images["destination_images"],
                    destination_state=state,
                    return_state=return_state,
                    state_is_temporary=state_is_temporary,
                )
                results.append(result)
            self._split(command_buffer, batches["destination_images"], encodes, "destination_images")
        joined = len(results) < len(source_images)
        if destination_images is not None:
            return None
        if not return_state:
            return parts_in_place_of(results[0]) if joined else ImageBatch(results)
        if joined:
            return parts_in_place_of(results[0][0]), parts_in_place_of(results[0][1])
        return ImageBatch(image for image, _ in results), StateBatch(state for _, state in results)
