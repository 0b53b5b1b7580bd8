"""``ForwardKernel``: the encode forms that kernels with one source image and with two share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from mpsgrad.base_kernel import BaseKernel
from mpsgrad.batch_arguments import require_batch, require_state_batch
from mpsgrad.command import CommandBuffer
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.fill import fill_with_zeros
from mpsgrad.geometry import MAXIMUM, NO_CLIP
from mpsgrad.image import Image, ImageBatch, ImageDescriptor
from mpsgrad.read_counts import count_repeats_once, parts_in_place_of, read_once
from mpsgrad.regions import Regions, share_memory
from mpsgrad.repeated_encode import RememberedEncode, RepeatedEncode, image_token, stand_in
from mpsgrad.state import ForwardSnapshot, GradientState, State, StateBatch


class ForwardKernel(BaseKernel):
    """What kernels with one source image and kernels with two have in common.

    ``sources`` are the images of ``source_names``, in that order.
    """

    source_names: ClassVar[tuple[str, ...]]
    _last_made: tuple[tuple[int, ...], Any] | None = None

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

    def _made_once(self, make: Callable[..., Any], *images: Image) -> Any:
        """``make(*images)``, the same object as long as neither the properties nor the images' extents change.

        For one ``make`` of a class, which depends on nothing else.
        """
        key = (self._token_of_values(), *map(image_token, images))
        if key[0] == 0 or self._last_made is None or self._last_made[0] != key:
            self._last_made = (key, make(*images))
        return self._last_made[1]

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
        if remembered is not None and destination_state is None and not return_state:
            destination = self._encode_again(remembered, command_buffer, sources, destination_image, None)
            read_once(sources)
            return destination if destination_image is None else None
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
            destination = self._new_image_as_before(remembered, command_buffer)
            state = self._make_state(*sources, destination, command_buffer if state_is_temporary else None)
        destination = self._encode_again(remembered, command_buffer, sources, destination, state)
        if state is not None:
            state._written_by(command_buffer)
            if command_buffer._repeated is not None:
                self._tell_of_state(command_buffer._repeated[-1], return_state)
        read_once(sources)
        if destination_image is not None:
            return None
        return (destination, state) if return_state else destination

    def _tell_of_state(self, repeated: RepeatedEncode, is_made: bool) -> None:
        repeated.writes_state = True
        if is_made:
            repeated.make_state = partial(self._make_state, *map(stand_in, repeated.images), None)

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
