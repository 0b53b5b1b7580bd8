"""Losses and their gradients as two kernels, so that other kernels may follow the loss."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.image import FeatureChannelFormat, Image, ImageBatch, ImageDescriptor, TemporaryImage
from mpsgrad.kernel import BaseKernel, BinaryKernel, Kernel, Regions, require_batch, require_state_batch, share_memory
from mpsgrad.kernels import loss_elements, loss_soft_max
from mpsgrad.kernels.joined_batch import join_batch, require_one_size, split_batch
from mpsgrad.kernels.loss_descriptor import LossDescriptor, LossReductionType, LossType, SettableLossProperties
from mpsgrad.kernels.loss_terms import LossTerms, require_whole_images
from mpsgrad.kernels.neuron import Neuron
from mpsgrad.kernels.neuron_descriptor import NeuronDescriptor, NeuronType
from mpsgrad.kernels.neuron_dispatch import add_neuron
from mpsgrad.kernels.pointwise import Operand
from mpsgrad.read_counts import read_once
from mpsgrad.state import GradientState, State, StateBatch


class LossGradientState(GradientState):
    """What ``LossGradient`` has to know of the encode of a ``ForwardLoss``: its descriptor as it was then."""

    loss_descriptor: LossDescriptor

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        return (self.snapshot, self.loss_descriptor)


class _HalfOfALoss(SettableLossProperties, BaseKernel):
    """What ``ForwardLoss`` and ``LossGradient`` have in common."""

    remembers_encodes = True

    def _encode_aspects(self, state: Any) -> Hashable:
        return self._loss_descriptor

    def _terms(
        self, command_buffer: Any, descriptor: LossDescriptor, source: Any, labels: Any, weights: Any
    ) -> LossTerms:
        self._require_images(command_buffer, {"source_image": source}, None)
        require_whole_images(self)
        for name, image in (("labels", labels), ("weights", weights)):
            if image is not None or name == "labels":
                self._require_float_image(command_buffer, name, image, source.shape, source)
        return LossTerms(descriptor, source, labels, weights)

    def _require_float_image(
        self, command_buffer: CommandBuffer, name: str, image: Any, shape: tuple[int, ...], source: Image
    ) -> None:
        """Raises unless ``image`` is a FLOAT32 image of ``shape``, which goes with ``source``, and may be used."""
        owner = type(self).__name__
        self._require_instances(**{name: image})
        self._require_images(command_buffer, {name: image}, None)
        if image.channel_format is not FeatureChannelFormat.FLOAT32:
            raise FormatError(f"{owner}: {name} is {image.channel_format.name}; it has to be FLOAT32")
        if image.shape != shape:
            raise GeometryError(
                f"{owner}: {name} is {image.descriptor.shape_text} but has to be {'x'.join(map(str, shape))} for a "
                f"{source.descriptor.shape_text} source_image and reduction {self.reduction_type.name}"
            )

    def _require_apart(self, destination: Image, sources: dict[str, Image | None]) -> None:
        for name, source in sources.items():
            if source is not None and share_memory(source, destination):
                raise GeometryError(
                    f"{type(self).__name__}: the destination shares memory with {name}; the destination may not alias "
                    "a source"
                )

    def _loss_shape(self, source: Image) -> tuple[int, int, int, int]:
        unreduced = self.reduction_type is LossReductionType.NONE
        return source.shape if unreduced else (source.number_of_images, 1, 1, 1)

    def _family(self) -> Any:
        return loss_soft_max if self.loss_type is LossType.SOFTMAX_CROSS_ENTROPY else loss_elements

    def _batches(self, **given: Any) -> tuple[dict[str, ImageBatch | None], bool]:
        """The batches that are given, and whether each is all images of one image, so that one encode takes them."""
        batches: dict[str, ImageBatch | None] = {}
        count: int | None = None
        for name, images in given.items():
            batches[name] = None if images is None else require_batch(type(self).__name__, name, images, count)
            count = count if images is None else len(images)
        joined = all(batch is None or batch.whole is not None for batch in batches.values())
        return batches, joined

    def _encodes_of_batch(
        self,
        command_buffer: CommandBuffer,
        batches: dict[str, ImageBatch | None],
        joined: bool,
        states_name: str,
        given_states: Sequence[State] | None,
    ) -> list[tuple[dict[str, Any], Any]]:
        """The images by name and the state of each encode of a batch."""
        count = next(len(batch) for batch in batches.values() if batch is not None)
        states: StateBatch | None = None
        if given_states is not None:
            states = require_state_batch(type(self).__name__, states_name, given_states, count)
        if joined and (states is None or states.whole is not None):
            return [({name: batch and batch.whole for name, batch in batches.items()}, states and states.whole)]
        if self.reduce_across_batch and self.reduction_type is not LossReductionType.NONE and count > 1:
            if states is not None and states.whole is None:
                raise NotImplementedError(
                    f"{type(self).__name__}: reduce_across_batch with {states_name} that are no parts of one state"
                )
            wholes = {name: batch and self._whole_of(command_buffer, name, batch) for name, batch in batches.items()}
            return [(wholes, states and states.whole)]
        return [
            ({name: batch and batch[i] for name, batch in batches.items()}, states and states[i]) for i in range(count)
        ]

    def _whole_of(self, command_buffer: CommandBuffer, name: str, batch: ImageBatch) -> Image:
        """``batch`` as one image: one to be split where it is a destination."""
        owner = type(self).__name__
        for index, image in enumerate(batch):
            self._require_images(command_buffer, {f"{name}[{index}]": image}, None)
        if name.startswith("destination") and batch.whole is None:
            require_one_size(owner, name, batch)
            return TemporaryImage(command_buffer, replace(batch[0].descriptor, number_of_images=len(batch)))
        return join_batch(owner, name, command_buffer, batch)

    @staticmethod
    def _split(command_buffer: CommandBuffer, batch: ImageBatch | None, encodes: Sequence[Any], name: str) -> None:
        """Copies what an encode of the whole batch wrote for separate destinations to these."""
        if batch is not None and len(encodes) < len(batch) and batch.whole is None:
            split_batch(command_buffer, encodes[0][0][name], batch)


def _read(*items: Image | State | None) -> None:
    read_once([item for item in items if item is not None])


def _given(*images: Any) -> tuple[Any, ...]:
    return tuple(image for image in images if image is not None)


def _whole(destination: Image) -> Regions:
    """What an encode writes that fills ``destination``."""
    layout = destination.layout
    return Regions((), layout, layout[4], layout[5], layout[7])


class ForwardLoss(_HalfOfALoss, Kernel):
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

    def encode(  # type: ignore[override]
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
        sources = _given(source_image, labels, weights)
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
            self._require_apart(destination, {"source_image": source_image, "labels": labels, "weights": weights})
            if state is not None:
                self._require_state(state, source_image, destination)
                self._require_usable(command_buffer, "destination_state", state)
        self._family().add_loss(command_buffer, terms, destination, None, False)
        destination._written_by(command_buffer)
        self._remember(
            key, command_buffer, start, (*sources, destination), state, destination.descriptor, _whole(destination)
        )
        if state is not None:
            state._written_by(command_buffer)
        _read(*sources)
        if destination_image is not None:
            return None
        return (destination, state) if return_state else destination

    # objc: -encodeBatchToCommandBuffer:sourceImages:labels:weights:destinationStates:destinationImages:
    # objc: -encodeBatchToCommandBuffer:sourceImages:labels:weights:destinationStates:destinationStateIsTemporary:
    def encode_batch(  # type: ignore[override]
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
            return _parts(results[0]) if joined else ImageBatch(results)
        if joined:
            return _parts(results[0][0]), _parts(results[0][1])
        return ImageBatch(image for image, _ in results), StateBatch(state for _, state in results)


def _parts(whole: Any) -> Any:
    """The batch of an image's or a state's parts, which take the place of ``whole`` itself."""
    parts = whole.batch_representation()
    if len(parts) > 1:
        whole._read_once()
    return parts


class LossGradient(_HalfOfALoss, BinaryKernel):
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
        self._compute_label_gradients = bool(compute)

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

    def encode(  # type: ignore[override]
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
        sources = _given(source_gradient, source_image, labels, weights)
        options = (weights is None, self._compute_label_gradients)
        key = self._encode_key(command_buffer, sources, destination_gradient, source_state, options)
        remembered = self._recall(key)
        if remembered is not None:
            made = self._encode_again(remembered, command_buffer, sources, destination_gradient, source_state)
            _read(*sources, source_state)
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
            self._require_apart(
                destination,
                {
                    "source_gradient": source_gradient,
                    "source_image": source_image,
                    "labels": labels,
                    "weights": weights,
                },
            )
        self._family().add_gradient(
            command_buffer, terms, source_gradient, destination, self.compute_label_gradients
        )
        destination._written_by(command_buffer)
        self._remember(key, command_buffer, start, (*sources, destination), source_state, result, _whole(destination))
        _read(*sources, source_state)
        return destination if destination_gradient is None else None

    # objc: -encodeBatchToCommandBuffer:sourceGradients:sourceImages:labels:weights:sourceStates:
    # objc: -encodeBatchToCommandBuffer:sourceGradients:sourceImages:labels:weights:sourceStates:destinationGradients:
    def encode_batch(  # type: ignore[override]
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
        return _parts(results[0]) if len(results) < len(source_images) else ImageBatch(results)


class InitialGradient(Kernel):
    """An image of ones of the size of the source: the gradient of a loss image with respect to itself.

    Source: ``MPSNNInitialGradient``.
    """

    remembers_encodes = True

    # objc: -initWithDevice:
    def __init__(self, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(device=device, label=label)
        self._neuron = Neuron(NeuronDescriptor(NeuronType.LINEAR, 0.0, 1.0), device=self.device)

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        beyond = Operand(regions.sources[0], dx=regions.sources[0][4])
        operands = [(source, beyond)]
        add_neuron(self._neuron, command_buffer, "neuron_linear", destination, regions.destination, operands)
