"""``Kernel``: the base of kernels with one source image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mpsgrad.base_kernel import BaseKernel, Regions, overlap, require_batch, require_state_batch, source_layout
from mpsgrad.command import CommandBuffer
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import MAXIMUM, EdgeMode, Offset
from mpsgrad.image import Image, ImageBatch, ImageDescriptor
from mpsgrad.kernel_property import EdgeModeProperty, IntegerProperty, OffsetProperty
from mpsgrad.padding import apply_padding
from mpsgrad.state import ForwardSnapshot, GradientState, State, StateBatch


class Kernel(BaseKernel):
    """A kernel with one source image. Source: ``MPSCNNKernel``.

    For a window of ``k`` taps with dilation ``d`` (extent ``kd = (k - 1) * d + 1``), pixel ``i`` of the clip rectangle
    reads the source pixels ``offset + stride * i - floor(kd / 2) + d * p`` for ``p = 0 .. k - 1``.
    """

    offset = OffsetProperty(
        Offset(), "The source pixel under the centre tap of the first pixel written; z is the first source image."
    )
    edge_mode = EdgeModeProperty(EdgeMode.ZERO, "What reads outside the source give.")
    source_feature_channel_offset = IntegerProperty(
        0, "The first source channel that is read; a multiple of 4.", multiple_of=4
    )
    source_feature_channel_max_count = IntegerProperty(
        MAXIMUM, "The largest number of source channels that are read.", minimum=1
    )

    @property
    def kernel_width(self) -> int:
        """Taps along x."""
        return self._window[0]

    @property
    def kernel_height(self) -> int:
        """Taps along y."""
        return self._window[1]

    @property
    def stride_in_pixels_x(self) -> int:
        return self._window[2]

    @property
    def stride_in_pixels_y(self) -> int:
        return self._window[3]

    @property
    def dilation_rate_x(self) -> int:
        return self._window[4]

    @property
    def dilation_rate_y(self) -> int:
        return self._window[5]

    def _source_channels(self, source: Image) -> int:
        """How many channels of ``source`` are read."""
        available = source.feature_channels - self.source_feature_channel_offset
        if available <= 0:
            raise GeometryError(
                f"{type(self).__name__}: source_feature_channel_offset is {self.source_feature_channel_offset} but the "
                f"source has {source.feature_channels} feature channels"
            )
        return min(available, self.source_feature_channel_max_count)

    def _destination_channels(self, source_channels: int) -> int:
        """How many channels are produced from ``source_channels``."""
        return source_channels

    def _validate(self, source: Image) -> None:
        """Checks that only the concrete kernel can make; raises before anything is allocated or dispatched."""

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        """Adds the dispatches of one encode."""
        raise NotImplementedError

    # objc: -destinationImageDescriptorForSourceImages:sourceStates:
    def destination_image_descriptor(
        self, source_images: Sequence[Image], source_states: Sequence[State] | None = None
    ) -> ImageDescriptor:
        """The descriptor of the result for ``source_images`` (one image), and sets ``offset`` for it.

        Applies ``padding``, then the kernel's own rule, then each source state, then a custom policy. The result has
        the source's channel format. Raises ``GeometryError`` if the result would be empty.
        """
        source = self._only_source(source_images)
        channels = self._destination_channels(self._source_channels(source))
        descriptor, offset = apply_padding(self, source, channels, source.number_of_images - self.offset.z)
        self.offset = offset
        descriptor = self._adjust_descriptor(source, descriptor)
        states = list(source_states or ())
        for state in states:
            if isinstance(state, GradientState):
                descriptor = state.destination_image_descriptor([source], states, self, descriptor)
        if self._is_custom():
            descriptor = self.padding.destination_image_descriptor(  # type: ignore[attr-defined]
                [source], states, self, descriptor
            )
        return descriptor

    def _adjust_descriptor(self, source: Image, descriptor: ImageDescriptor) -> ImageDescriptor:
        """The kernel's own say in the result's descriptor and its ``offset``."""
        return descriptor

    def _only_source(self, source_images: Sequence[Image]) -> Image:
        owner = type(self).__name__
        if isinstance(source_images, Image) or len(source_images) != 1 or not isinstance(source_images[0], Image):
            raise FormatError(f"{owner}: source_images is {source_images!r}; it has to be a list of one Image")
        return source_images[0]

    # objc: -resultStateForSourceImage:sourceStates:destinationImage:
    def result_state(
        self,
        source_image: Image,
        *,
        source_states: Sequence[State] | None = None,
        destination_image: Image,
    ) -> Any:
        """The state that an encode from ``source_image`` to ``destination_image`` fills, or None if there is none.

        It holds a copy of the properties as they are now.
        """
        return self._make_state(source_image, destination_image, None)

    # objc: -resultStateBatchForSourceImage:sourceStates:destinationImage:
    def result_state_batch(
        self,
        source_images: Sequence[Image],
        *,
        source_states: Sequence[State] | None = None,
        destination_images: Sequence[Image],
    ) -> StateBatch | None:
        """One state for each image, or the same one for all if ``is_result_state_reused_across_batch``."""
        return self._make_state_batch(ImageBatch(source_images), ImageBatch(destination_images), None)

    # objc: -temporaryResultStateForCommandBuffer:sourceImage:sourceStates:destinationImage:
    def temporary_result_state(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        *,
        source_states: Sequence[State] | None = None,
        destination_image: Image,
    ) -> Any:
        """As ``result_state``, but a temporary state of ``command_buffer``."""
        return self._make_state(source_image, destination_image, command_buffer)

    def _make_state(self, source: Image, destination: Image, command_buffer: CommandBuffer | None) -> Any:
        return GradientState(self._snapshot(source, destination), (), self.device, command_buffer=command_buffer)

    def _make_state_batch(
        self, sources: ImageBatch, destinations: ImageBatch, command_buffer: CommandBuffer | None
    ) -> StateBatch | None:
        whole_source, whole_destination = sources.whole, destinations.whole
        joined = whole_source is not None and whole_destination is not None
        if self.is_result_state_reused_across_batch or joined:
            source, destination = (whole_source, whole_destination) if joined else (sources[0], destinations[0])
            state = self._make_state(source, destination, command_buffer)  # type: ignore[arg-type]
            if state is None:
                return None
            if self.is_result_state_reused_across_batch:
                return StateBatch([state] * len(sources))
            return state.batch_representation()
        states = [self._make_state(s, d, command_buffer) for s, d in zip(sources, destinations, strict=True)]
        return None if states[0] is None else StateBatch(states)

    def _snapshot(self, source: Image, destination: Image) -> ForwardSnapshot:
        return ForwardSnapshot(
            type(self).__name__,
            self.offset,
            self.clip_rect,
            self.edge_mode,
            *self._window,
            self.source_feature_channel_offset,
            self.source_feature_channel_max_count,
            self.destination_feature_channel_offset,
            source.descriptor,
            destination.descriptor,
        )

    # objc: -encodeToCommandBuffer:sourceImage:
    # objc: -encodeToCommandBuffer:sourceImage:destinationImage:
    # objc: -encodeToCommandBuffer:sourceImage:destinationState:destinationImage:
    # objc: -encodeToCommandBuffer:sourceImage:destinationState:destinationStateIsTemporary:
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        *,
        destination_image: Image | None = None,
        destination_state: State | None = None,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any:
        """Adds the kernel's work to ``command_buffer``.

        Without ``destination_image`` the padding policy sets ``offset`` and sizes the result, which is made by
        ``destination_image_allocator`` and returned; with ``return_state`` the pair (image, state) is returned. With
        ``destination_image`` the kernel's ``offset`` is used as it is, the image (and ``destination_state``, made by
        ``result_state``) is filled, and None is returned.

        Raises ``GeometryError``, ``FormatError`` or ``StateError`` before anything is dispatched.
        """
        self._require_images(command_buffer, {"source_image": source_image}, None)
        self._validate(source_image)
        if destination_image is not None:
            if return_state:
                raise FormatError(
                    f"{type(self).__name__}: return_state with a destination_image; make the state with result_state "
                    "and pass it as destination_state"
                )
            self._run(command_buffer, source_image, destination_image, destination_state)
            return None
        if destination_state is not None:
            raise FormatError(
                f"{type(self).__name__}: destination_state without destination_image; use return_state=True"
            )
        descriptor = self.destination_image_descriptor([source_image])
        destination = self.destination_image_allocator.image(command_buffer, descriptor, self)
        state = None
        if return_state:
            state = self._make_state(source_image, destination, command_buffer if state_is_temporary else None)
        self._run(command_buffer, source_image, destination, state)
        return (destination, state) if return_state else destination

    # objc: -encodeBatchToCommandBuffer:sourceImages:
    # objc: -encodeBatchToCommandBuffer:sourceImages:destinationImages:
    # objc: -encodeBatchToCommandBuffer:sourceImages:destinationStates:destinationImages:
    # objc: -encodeBatchToCommandBuffer:sourceImages:destinationStates:destinationStateIsTemporary:
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        *,
        destination_images: Sequence[Image] | None = None,
        destination_states: Sequence[State] | None = None,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any:
        """``encode`` for a batch of images of one image each; batches made of one image are encoded at once.

        Returns what ``encode`` returns, as ``ImageBatch`` and ``StateBatch``.
        """
        owner = type(self).__name__
        sources = require_batch(owner, "source_images", source_images)
        whole = sources.whole
        if destination_images is None:
            if destination_states is not None:
                raise FormatError(f"{owner}: destination_states without destination_images; use return_state=True")
            if whole is not None:
                result = self.encode(
                    command_buffer, whole, return_state=return_state, state_is_temporary=state_is_temporary
                )
                image, state = result if return_state else (result, None)
                images = image.batch_representation()
                if not return_state:
                    return images
                if state is None:
                    return images, None
                if self.is_result_state_reused_across_batch:
                    return images, StateBatch([state] * len(images))
                return images, state.batch_representation()
            self._require_images(command_buffer, {f"source_images[{i}]": im for i, im in enumerate(sources)}, None)
            self._validate(sources[0])
            descriptor = self.destination_image_descriptor([sources[0]])
            joined = replace(descriptor, number_of_images=len(sources))
            made = self.destination_image_allocator.image(command_buffer, joined, self).batch_representation()
            states = None
            if return_state:
                states = self._make_state_batch(sources, made, command_buffer if state_is_temporary else None)
            self._run_batch(command_buffer, sources, made, states)
            return (made, states) if return_state else made
        if return_state:
            raise FormatError(f"{owner}: return_state with destination_images; pass destination_states")
        destinations = require_batch(owner, "destination_images", destination_images, len(sources))
        states = None
        if destination_states is not None:
            states = require_state_batch(owner, "destination_states", destination_states, len(sources))
        self._run_batch(command_buffer, sources, destinations, states)
        return None

    def _run_batch(
        self, command_buffer: CommandBuffer, sources: ImageBatch, destinations: ImageBatch, states: StateBatch | None
    ) -> None:
        for index, destination in enumerate(destinations):
            for source in sources:
                if source._root is destination._root and overlap(source, destination):
                    raise GeometryError(
                        f"{type(self).__name__}: destination_images[{index}] shares memory with a source image; the "
                        "destination may not alias a source"
                    )
        source, destination = sources.whole, destinations.whole
        if source is not None and destination is not None and (states is None or states.whole is not None):
            self._validate(source)
            self._run(command_buffer, source, destination, states.whole if states is not None else None)
            return
        for index, (one, result) in enumerate(zip(sources, destinations, strict=True)):
            self._validate(one)
            self._run(command_buffer, one, result, states[index] if states is not None else None)

    def _run(self, command_buffer: CommandBuffer, source: Image, destination: Image, state: Any) -> None:
        owner = type(self).__name__
        self._require_images(
            command_buffer, {"source_image": source, "destination_image": destination}, written=destination
        )
        if source is destination:
            raise GeometryError(f"{owner}: destination_image is source_image; the destination may not alias a source")
        if self.edge_mode not in self.supported_edge_modes:
            raise NotImplementedError(f"{owner}: edge_mode is {self.edge_mode.name}; it supports ZERO and CLAMP")
        if state is not None:
            self._require_state(state, source, destination)
        channels = self._source_channels(source)
        first_image = self.offset.z
        available = source.number_of_images - first_image
        if available <= 0:
            raise GeometryError(
                f"{owner}: offset.z is {first_image} but the source has {source.number_of_images} images"
            )
        layout, width, height, images = self._destination_region(
            destination, self._destination_channels(channels), available
        )
        if width and height and images:
            regions = Regions(
                (source_layout(source, self.source_feature_channel_offset, channels, first_image, images),),
                layout,
                width,
                height,
                images,
            )
            self._dispatch(command_buffer, source, destination, regions, state)
        destination._written_by(command_buffer)
        if state is not None:
            state._written_by(command_buffer)
        source._read_once()

    def _require_state(self, state: Any, source: Image, destination: Image) -> None:
        owner = type(self).__name__
        if not isinstance(state, GradientState):
            raise FormatError(
                f"{owner}: destination_state is {type(state).__name__}; it has to be made by result_state"
            )
        snapshot = state.snapshot
        if snapshot.kernel != owner:
            raise StateError(f"{owner}: destination_state was made by {snapshot.kernel}")
        if snapshot.source.shape[1:] != source.shape[1:]:
            raise StateError(
                f"{owner}: destination_state was made for a source of {snapshot.source.shape_text} but source_image is "
                f"{source.descriptor.shape_text}"
            )
        state._require_readable(owner, "destination_state")
