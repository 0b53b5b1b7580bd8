"""``ForwardKernel``: the encode forms that kernels with one source and with two share; ``Kernel``: one source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from mpsgrad.base_kernel import BaseKernel
from mpsgrad.batch_arguments import require_batch, require_state_batch
from mpsgrad.command import CommandBuffer
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.fill import fill_with_zeros
from mpsgrad.geometry import MAXIMUM, NO_CLIP, EdgeMode, Offset
from mpsgrad.image import Image, ImageBatch, ImageDescriptor
from mpsgrad.kernel_property import EdgeModeProperty, IntegerProperty, OffsetProperty
from mpsgrad.padding import apply_padding
from mpsgrad.read_counts import count_repeats_once, parts_in_place_of, read_once
from mpsgrad.regions import Regions, require_reach, share_memory, source_layout
from mpsgrad.repeated_encode import RememberedEncode, image_token
from mpsgrad.state import ForwardSnapshot, GradientState, State, StateBatch
from mpsgrad.window_properties import WindowProperties


class ForwardKernel(BaseKernel):
    """What kernels with one source image and kernels with two have in common.

    ``sources`` are the images of ``source_names``, in that order.
    """

    source_names: ClassVar[tuple[str, ...]]

    def _validate(self, *sources: Any, **_: Any) -> None:
        """Checks that only the concrete kernel can make; raises before anything is allocated or dispatched."""

    def _regions(self, sources: Sequence[Image], destination: Image) -> Regions:
        """What an encode reads and writes; raises ``GeometryError`` where that does not fit the images."""
        raise NotImplementedError

    def _make_state(self, *arguments: Any, **_: Any) -> Any:
        """The state of an encode from the sources to the destination, the last but one argument, or None.

        The last argument is the command buffer of a temporary state, or None.
        """
        return None

    def _require_state(self, state: Any, *arguments: Any, **_: Any) -> None:
        """Checks ``state``, given as ``destination_state`` with the sources and the destination."""

    def destination_image_descriptor(
        self, source_images: Sequence[Image], source_states: Sequence[State] | None = None
    ) -> ImageDescriptor:
        """The descriptor of the result for ``source_images``; sets the kernel's offset for it."""
        raise NotImplementedError

    def _list_of_sources(self, source_images: Any) -> list[Image]:
        owner, count = type(self).__name__, len(self.source_names)
        if isinstance(source_images, Image) or not isinstance(source_images, Sequence):
            raise FormatError(
                f"{owner}: source_images is {type(source_images).__name__}; it has to be a list of {count} images"
            )
        if len(source_images) != count or not all(isinstance(image, Image) for image in source_images):
            raise FormatError(
                f"{owner}: source_images is {source_images!r}; it has to be a list of {' and '.join(self.source_names)}"
            )
        return list(source_images)

    def _negotiate(
        self, sources: list[Image], source_states: Sequence[State] | None, descriptor: ImageDescriptor
    ) -> ImageDescriptor:
        """``descriptor`` after each source state, and then a custom padding policy, had its say."""
        states = list(source_states or ())
        for state in states:
            if isinstance(state, GradientState):
                descriptor = state.destination_image_descriptor(sources, states, self, descriptor)
        if self._is_custom():
            descriptor = self.padding.destination_image_descriptor(  # type: ignore[attr-defined]
                sources, states, self, descriptor
            )
            if not isinstance(descriptor, ImageDescriptor):
                raise FormatError(
                    f"{type(self).__name__}: the padding policy {self.padding!r} gave {descriptor!r}; it has to give "
                    "an ImageDescriptor"
                )
        return descriptor

    def _require_one_way_of_states(
        self, destination: Any, state: Any, return_state: bool, *, of_batch: bool = False
    ) -> None:
        """Raises ``FormatError`` for a state to be made beside a given destination, or a given one without."""
        owner = type(self).__name__
        s, maker = ("s", "result_state_batch()") if of_batch else ("", "result_state()")
        if destination is not None and return_state:
            raise FormatError(f"{owner}: return_state with destination_image{s}; pass {maker} as destination_state{s}")
        if destination is None and state is not None:
            raise FormatError(f"{owner}: destination_state{s} without destination_image{s}; use return_state=True")

    def _encode(
        self,
        command_buffer: CommandBuffer,
        sources: tuple[Image, ...],
        destination_image: Image | None,
        destination_state: State | None,
        return_state: bool,
        state_is_temporary: bool,
    ) -> Any:
        options = (destination_state is None, return_state)
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
        self._require_images(command_buffer, dict(zip(self.source_names, sources, strict=True)), None)
        start = command_buffer._position()
        self._validate(*sources)
        self._require_one_way_of_states(destination_image, destination_state, return_state)
        if destination_image is not None:
            if destination_state is not None:
                self._require_instances(destination_image=destination_image)
                self._require_state(destination_state, *sources, destination_image)
                self._require_usable(command_buffer, "destination_state", destination_state)
            regions = self._run(command_buffer, *sources, destination_image, destination_state)
            images = (*sources, destination_image)
            descriptor = destination_image.descriptor
            self._remember(key, command_buffer, start, images, destination_state, descriptor, regions)
            return None
        descriptor = self.destination_image_descriptor(sources)
        destination = self._new_image(command_buffer, descriptor)
        state = None
        if return_state:
            state = self._make_state(*sources, destination, command_buffer if state_is_temporary else None)
        with command_buffer._all_or_nothing():
            self._fill_what_is_clipped(command_buffer, destination)
            regions = self._run(command_buffer, *sources, destination, state)
        self._remember(key, command_buffer, start, (*sources, destination), state, descriptor, regions)
        return (destination, state) if return_state else destination

    def _encode_forward_again(
        self,
        remembered: RememberedEncode,
        command_buffer: CommandBuffer,
        sources: tuple[Image, ...],
        destination_image: Image | None,
        state: Any,
        return_state: bool,
        state_is_temporary: bool,
    ) -> Any:
        destination = destination_image
        if return_state:
            assert remembered.descriptor is not None
            destination = self._new_image(command_buffer, remembered.descriptor)
            state = self._make_state(*sources, destination, command_buffer if state_is_temporary else None)
        destination = self._encode_again(remembered, command_buffer, sources, destination, state)
        if state is not None:
            state._written_by(command_buffer)
        read_once(sources)
        if destination_image is not None:
            return None
        return (destination, state) if return_state else destination

    def _encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_batches: tuple[Any, ...],
        destination_images: Any,
        destination_states: Any,
        return_state: bool,
        state_is_temporary: bool,
    ) -> Any:
        owner = type(self).__name__
        batches: list[ImageBatch] = []
        images: dict[str, Image] = {}
        for name, given in zip(self.source_names, source_batches, strict=True):
            batch = require_batch(owner, f"{name}s", given, len(batches[0]) if batches else None)
            images |= {f"{name}s[{index}]": image for index, image in enumerate(batch)}
            batches.append(batch)
        self._require_images(command_buffer, images, None)
        self._require_one_way_of_states(destination_images, destination_states, return_state, of_batch=True)
        if destination_images is not None:
            destinations = require_batch(owner, "destination_images", destination_images, len(batches[0]))
            states = None
            if destination_states is not None:
                states = require_state_batch(owner, "destination_states", destination_states, len(batches[0]))
                for state, *parts in zip(states, *batches, destinations, strict=True):
                    self._require_state(state, *parts)
                    self._require_usable(command_buffer, "destination_state", state)
            self._run_batch(command_buffer, batches, destinations, states)
            return None
        for name, batch in zip(self.source_names, batches, strict=True):
            for index, image in enumerate(batch):
                if image.shape != batch[0].shape:
                    raise GeometryError(
                        f"{owner}: {name}s[{index}] is {image.descriptor.shape_text} but {name}s[0] is "
                        f"{batch[0].descriptor.shape_text}; without destination_images all have to have one size"
                    )
        self._validate(*(batch[0] for batch in batches))
        one = self.destination_image_descriptor([batch[0] for batch in batches])
        descriptor = replace(one, number_of_images=len(batches[0]))
        joined = self._new_image(command_buffer, descriptor)
        made = parts_in_place_of(joined)
        states = None
        if return_state:
            states = self._make_state_batch(batches, made, command_buffer if state_is_temporary else None)
        with command_buffer._all_or_nothing():
            self._fill_what_is_clipped(command_buffer, joined)
            self._run_batch(command_buffer, batches, made, states)
        return (made, states) if return_state else made

    def _takes_all_images(self) -> bool:
        """Whether an image that holds a whole batch is processed as its images would be one by one."""
        return self.clip_rect.origin.z == 0 and self.clip_rect.size.depth == MAXIMUM and self._first_images() == {0}

    def _first_images(self) -> set[int]:
        """The first images that are read of the sources."""
        raise NotImplementedError

    def _fill_what_is_clipped(self, command_buffer: CommandBuffer, destination: Image) -> None:
        """A new image has no values of its own to keep outside the clip rectangle: it gets zeros there."""
        if self.clip_rect != NO_CLIP:
            fill_with_zeros(command_buffer, destination)

    def _make_state_batch(
        self, batches: Sequence[ImageBatch], destinations: ImageBatch, command_buffer: CommandBuffer | None
    ) -> StateBatch | None:
        wholes = [batch.whole for batch in (*batches, destinations)]
        joined = self._takes_all_images() and None not in wholes
        if self.is_result_state_reused_across_batch or joined:
            images = wholes if joined else [batch[0] for batch in (*batches, destinations)]
            state = self._make_state(*images, command_buffer)
            if state is None:
                return None
            if self.is_result_state_reused_across_batch:
                return StateBatch([state] * len(destinations))
            return parts_in_place_of(state)
        states = [
            self._make_state(*images, command_buffer) for images in zip(*batches, destinations, strict=True)
        ]
        return None if states[0] is None else StateBatch(states)

    def _run_batch(
        self,
        command_buffer: CommandBuffer,
        batches: Sequence[ImageBatch],
        destinations: ImageBatch,
        states: StateBatch | None,
    ) -> None:
        sources = {id(image): image for batch in batches for image in batch}.values()
        for index, destination in enumerate(destinations):
            if any(share_memory(source, destination) for source in sources):
                raise GeometryError(
                    f"{type(self).__name__}: destination_images[{index}] shares memory with a source image; the "
                    "destination may not alias a source"
                )
        wholes = [batch.whole for batch in batches]
        wholes.append(destinations.whole)
        state = states.whole if states is not None else None
        if self._takes_all_images() and None not in wholes and (states is None or state is not None):
            self._validate(*wholes[:-1])
            self._run(command_buffer, *wholes, state)
            return
        with command_buffer._all_or_nothing():
            count_repeats_once(zip(*batches, strict=True))
            for index, images in enumerate(zip(*batches, strict=True)):
                self._validate(*images)
                self._run(
                    command_buffer,
                    *images,
                    destinations[index],
                    states[index] if states is not None else None,
                )

    def _run(self, command_buffer: CommandBuffer, *arguments: Any) -> Regions | None:
        """One encode of the sources, the destination and the state; the regions unless they are empty."""
        *sources, destination, state = arguments
        images = dict(zip(self.source_names, sources, strict=True))
        self._require_images(command_buffer, {**images, "destination_image": destination}, written=destination)
        regions = self._regions(sources, destination)
        is_empty = not (regions.width and regions.height and regions.images)
        self._begin_encode(command_buffer, state)
        if not is_empty:
            self._dispatch(command_buffer, *sources, destination, regions, state)
            self._note_encode(command_buffer, state, regions)
        destination._written_by(command_buffer)
        if state is not None:
            state._written_by(command_buffer)
        read_once(sources)
        return None if is_empty else regions

    def _result_state_batch(
        self, source_batches: Sequence[Any], destination_images: Any, command_buffer: CommandBuffer | None
    ) -> StateBatch | None:
        owner = type(self).__name__
        destinations = require_batch(owner, "destination_images", destination_images)
        batches = [
            require_batch(owner, f"{name}s", batch, len(destinations))
            for name, batch in zip(self.source_names, source_batches, strict=True)
        ]
        return self._make_state_batch(batches, destinations, command_buffer)

    def _require_snapshot(
        self, made: ForwardSnapshot, now: ForwardSnapshot, name: str, source: Image, destination: Image
    ) -> None:
        """Raises ``StateError`` unless the state's snapshot ``made`` is that of this encode, but for image counts."""
        owner = type(self).__name__
        if made.kernel != self.kernel_name:
            raise StateError(f"{owner}: destination_state was made by {made.kernel}")
        for what, descriptor, argument, image in (
            ("source", made.source, name, source),
            ("result", made.destination, "destination_image", destination),
        ):
            if descriptor.shape[1:] != image.shape[1:]:
                raise StateError(
                    f"{owner}: destination_state was made for a {what} of {descriptor.shape_text} but {argument} is "
                    f"{image.descriptor.shape_text}"
                )
        changed = made.differs_from(now)
        if changed:
            raise StateError(
                f"{owner}: {changed} is {getattr(now, changed)} but destination_state was made when it was "
                f"{getattr(made, changed)}; make the state after the last property is set"
            )


class Kernel(WindowProperties, ForwardKernel):
    """A kernel with one source image. Source: ``MPSCNNKernel``.

    For a window of ``k`` taps with dilation ``d`` (extent ``kd = (k - 1) * d + 1``), pixel ``i`` of the clip rectangle
    reads the source pixels ``offset + stride * i - floor(kd / 2) + d * p`` for ``p = 0 .. k - 1``.
    """

    source_names = ("source_image",)
    _last_snapshot: tuple[tuple[int, ...], ForwardSnapshot] | None = None

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

    def _source_channels(self, source: Image) -> int:
        """How many channels of ``source`` are read."""
        return self._channels_in_use(source, "source")

    def _destination_channels(self, source_channels: int) -> int:
        """How many channels are produced from ``source_channels``."""
        return source_channels

    # objc: -destinationImageDescriptorForSourceImages:sourceStates:
    def destination_image_descriptor(
        self, source_images: Sequence[Image], source_states: Sequence[State] | None = None
    ) -> ImageDescriptor:
        """The descriptor of the result for ``source_images`` (one image), and sets ``offset`` for it.

        Applies ``padding``, then the kernel's own rule, then each source state, then a custom policy. The result has
        the source's channel format, which MPS does not say for kernels outside graphs. Raises ``GeometryError`` if the
        result would be empty.
        """
        sources = self._list_of_sources(source_images)
        source = sources[0]
        channels = self._destination_channels(self._source_channels(source))
        images = self._images_from(source, "offset", "source")
        descriptor, self.offset = apply_padding(self, source, channels, images)
        return self._negotiate(sources, source_states, self._adjust_descriptor(source, descriptor))

    def _adjust_descriptor(self, source: Image, descriptor: ImageDescriptor) -> ImageDescriptor:
        """The kernel's own say in the result's descriptor and its ``offset``."""
        return descriptor

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
        self._require_instances(source_image=source_image, destination_image=destination_image)
        return self._state_given(source_states, self._make_state(source_image, destination_image, None))

    # objc: -resultStateBatchForSourceImage:sourceStates:destinationImage:
    def result_state_batch(
        self,
        source_images: Sequence[Image],
        *,
        source_states: Sequence[State] | None = None,
        destination_images: Sequence[Image],
    ) -> StateBatch | None:
        """One state for each image, or the same one for all if ``is_result_state_reused_across_batch``."""
        return self._state_given(
            source_states, self._result_state_batch((source_images,), destination_images, None)
        )

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
        self._require_instances(source_image=source_image, destination_image=destination_image)
        return self._state_given(source_states, self._make_state(source_image, destination_image, command_buffer))

    # objc: -temporaryResultStateBatchForCommandBuffer:sourceImage:sourceStates:destinationImage:
    def temporary_result_state_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        *,
        source_states: Sequence[State] | None = None,
        destination_images: Sequence[Image],
    ) -> StateBatch | None:
        """As ``result_state_batch``, but temporary states of ``command_buffer``."""
        return self._state_given(
            source_states, self._result_state_batch((source_images,), destination_images, command_buffer)
        )

    def _state_given(self, source_states: Sequence[State] | None, state: Any) -> Any:
        """``state``, or a batch of them, after it has taken what it needs of the states that the encode reads."""
        return state

    def _make_state(self, source: Image, destination: Image, command_buffer: CommandBuffer | None) -> Any:
        return GradientState(self._shared_snapshot(source, destination), (), self.device, command_buffer=command_buffer)

    def _shared_snapshot(self, source: Image, destination: Image) -> ForwardSnapshot:
        """The properties as they are now, in the same object as long as neither they nor the images' extents change."""
        key = (self._token_of_values(), image_token(source), image_token(destination))
        if key[0] == 0 or self._last_snapshot is None or self._last_snapshot[0] != key:
            self._last_snapshot = (key, self._snapshot(source, destination))
        return self._last_snapshot[1]

    def _snapshot(self, source: Image, destination: Image) -> ForwardSnapshot:
        return ForwardSnapshot(
            self.kernel_name,
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
        ``destination_image_allocator`` and returned, with zeros outside ``clip_rect``; with ``return_state`` the pair
        (image, state) is returned. With ``destination_image`` the kernel's ``offset`` is used as it is, the image (and
        ``destination_state``, made by ``result_state``) is filled, and None is returned.

        Raises ``GeometryError``, ``FormatError`` or ``StateError`` before anything is dispatched.
        """
        return self._encode(
            command_buffer, (source_image,), destination_image, destination_state, return_state, state_is_temporary
        )

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
        return self._encode_batch(
            command_buffer,
            (source_images,),
            destination_images,
            destination_states,
            return_state,
            state_is_temporary,
        )

    def _first_images(self) -> set[int]:
        return {self.offset.z}

    def _regions(self, sources: Sequence[Image], destination: Image) -> Regions:
        (source,) = sources
        self._require_edge_mode("edge_mode")
        channels = self._source_channels(source)
        available = self._images_from(source, "offset", "source")
        layout, width, height, images = self._destination_region(
            destination, self._destination_channels(channels), available
        )
        require_reach(self, "offset", self._window, width, height)
        first = source_layout(source, self.source_feature_channel_offset, channels, self.offset.z, images)
        return Regions((first,), layout, width, height, images)

    def _require_state(self, state: Any, source: Image, destination: Image) -> None:
        if not isinstance(state, GradientState):
            raise FormatError(
                f"{type(self).__name__}: destination_state is {type(state).__name__}; it has to be made by result_state"
            )
        if state.device is not self.device:
            raise StateError(
                f"{type(self).__name__}: destination_state is on {state.device.identifier} but the kernel on "
                f"{self.device.identifier}"
            )
        self._require_snapshot(state.snapshot, self._snapshot(source, destination), "source_image", source, destination)
