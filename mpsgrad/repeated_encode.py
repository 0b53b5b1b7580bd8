"""Repeated encodes: what an encode of images of one geometry found out, for the next encode of images of the same one.

Checks, layouts and parameters of an encode depend on the kernel's properties, on where its images lie in their memory,
and on what its state says. The ``key`` of an encode stands for all of these. A kernel that was encoded with a key
before takes over what came out then, and makes only the checks that depend on the moment: open command buffers, reads
left of temporary images, images that share memory, and what the kernel's ``_begin_encode`` checks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mpsgrad.devices import Buffer, Dispatch, Function
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.picks import Pick, picker

if TYPE_CHECKING:
    from mpsgrad.command import CommandBuffer
    from mpsgrad.regions import Regions

REMEMBERED_ENCODES = 64
"""How many encodes a kernel remembers; then it starts again with none."""
SCRATCH_KEPT_BYTES = 64 << 10
"""Up to so much scratch memory of an encode is kept for the next one. A device's work runs in order, so that no other
work needs it at a time; to allocate it takes the host longer than small work takes the device."""
_REMEMBERED_TOKENS = 16384

_tokens: dict[Hashable, int] = {}
_next_token = itertools.count(1)


def token(value: Hashable) -> int:
    """A number that no unequal value has; equal values mostly get the same one."""
    found = _tokens.get(value)
    if found is None:
        if len(_tokens) >= _REMEMBERED_TOKENS:
            _tokens.clear()
        found = _tokens[value] = next(_next_token)
    return found


def stand_in(image: Image) -> Image:
    """An image of the extents of ``image``, which has no memory as long as nobody asks for it."""
    return Image(image.descriptor, image.device)


def image_token(image: Image) -> int:
    """The token of where the elements of ``image`` lie in its buffer, and of their format."""
    if image._token == 0:
        image._token = token((image.channel_format, image.layout))
    return image._token


def token_of_whole(descriptor: ImageDescriptor) -> int:
    """``image_token`` of images that are no views."""
    return token((descriptor.channel_format, descriptor.dense_layout))


class Lender(Protocol):
    """What has buffers that encodes use and that may be others at the next encode: a kernel's parameters, a state."""

    def _encode_buffers(self) -> Mapping[Any, Buffer]:
        """The buffers that there are, by name."""
        ...

    def _encode_buffer(self, name: Any, command_buffer: CommandBuffer) -> Buffer:
        """The buffer called ``name``, ready for work that is added to ``command_buffer`` next."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DispatchPattern:
    """A dispatch whose buffers are picked from a list. Its constants are always the same ones."""

    function: Function
    threadgroups: int
    pick: Pick


@dataclass(frozen=True, slots=True)
class RememberedWork:
    """The dispatches of an encode.

    Their buffers are picked from a list: those of all images of the encode, ``constants`` (among them little scratch
    memory), those that the kernel and the state lend (names), scratch memory of ``scratch_sizes`` bytes, and workspaces
    of ``workspace_sizes`` bytes. ``is_lent`` says whether there are any but the first two.
    """

    dispatches: tuple[DispatchPattern, ...]
    constants: tuple[Buffer, ...]
    is_lent: bool
    of_kernel: tuple[Hashable, ...]
    of_state: tuple[Hashable, ...]
    scratch_sizes: tuple[int, ...]
    workspace_sizes: tuple[int, ...]

    @classmethod
    def of(
        cls,
        dispatches: Sequence[Dispatch],
        images: Sequence[Image],
        kernel: Lender,
        state: Lender | None,
        scratch: Sequence[Buffer],
        workspaces: Sequence[Buffer],
    ) -> RememberedWork:
        """What ``dispatches`` do with these images, buffers that are lent, scratch memory, and workspaces.

        Left out are those that touch only what the kernel lends, which prepare it: ``_encode_buffer`` does that again
        where it has to be done again.
        """
        origins: list[Mapping[Any, Buffer]] = [
            {index: image.buffer for index, image in enumerate(images)},
            {},
            kernel._encode_buffers(),
            state._encode_buffers() if state is not None else {},
            dict(enumerate(scratch)),
            dict(enumerate(workspaces)),
        ]
        constant, of_scratch = 1, 4
        keeps_scratch = sum(buffer.nbytes for buffer in scratch) <= SCRATCH_KEPT_BYTES
        found: dict[int, tuple[int, Any]] = {}
        for origin, buffers in enumerate(origins):
            for name, buffer in buffers.items():
                found.setdefault(id(buffer), (origin, name))
        used: list[dict[Any, Buffer]] = [{} for _ in origins]
        used[0] |= origins[0]
        kept = []
        for dispatch in dispatches:
            places = [found.get(id(buffer), (constant, id(buffer))) for buffer in dispatch.buffers]
            if all(origin in (constant, 2) for origin, _ in places):
                continue
            if keeps_scratch:
                places = [
                    (constant, id(buffer)) if origin == of_scratch else (origin, name)
                    for (origin, name), buffer in zip(places, dispatch.buffers, strict=True)
                ]
            for (origin, name), buffer in zip(places, dispatch.buffers, strict=True):
                used[origin][name] = buffer
            kept.append((dispatch, places))
        order = [(origin, name) for origin, buffers in enumerate(used) for name in buffers]
        position = {place: index for index, place in enumerate(order)}
        patterns = []
        for dispatch, places in kept:
            assert isinstance(dispatch.threadgroups, int)
            pick = picker([position[place] for place in places])
            patterns.append(DispatchPattern(dispatch.function, dispatch.threadgroups, pick))
        _, constants, of_kernel, of_state, scratch_used, workspaces_used = used
        return cls(
            tuple(patterns),
            tuple(constants.values()),
            any(used[2:]),
            tuple(of_kernel),
            tuple(of_state),
            tuple(buffer.nbytes for buffer in scratch_used.values()),
            tuple(buffer.nbytes for buffer in workspaces_used.values()),
        )

    def lent_buffers(self, command_buffer: CommandBuffer, kernel: Lender, state: Any) -> list[Buffer]:
        """The buffers that are lent for an encode to ``command_buffer``, in their order."""
        # Most encodes are lent some of one kind only.
        buffers: list[Buffer] = []
        for name in self.of_kernel:
            buffers.append(kernel._encode_buffer(name, command_buffer))
        if self.of_state:
            buffers += state._encode_buffers_called(self.of_state, command_buffer)
        for size in self.scratch_sizes:
            buffers.append(command_buffer._device.allocate(size))
        for size in self.workspace_sizes:
            buffers.append(command_buffer.workspace(size))
        return buffers

    def add_to(self, command_buffer: CommandBuffer, images: Sequence[Image], kernel: Lender, state: Any) -> None:
        """Adds the dispatches for other images and another state to ``command_buffer``."""
        buffers = [image._buffer or image.buffer for image in images]
        buffers += self.constants
        if self.is_lent:
            buffers += self.lent_buffers(command_buffer, kernel, state)
        self.add_dispatches(command_buffer._dispatches, buffers)

    def add_dispatches(self, dispatches: list[Dispatch], buffers: list[Buffer]) -> None:
        """Adds the dispatches to ``dispatches``, with what they pick from ``buffers``."""
        # By position: names would take twice as long.
        for each in self.dispatches:
            dispatches.append(Dispatch(each.function, each.threadgroups, each.pick(buffers), None, None, (), (), each))

    def places_used(self, images: int) -> set[Any]:
        """Which of the buffers that the dispatches pick from they use, of an encode of so many images."""
        lent = len(self.of_kernel) + len(self.of_state) + len(self.scratch_sizes) + len(self.workspace_sizes)
        places: list[Any] = [*range(images + len(self.constants) + lent)]
        return {place for dispatch in self.dispatches for place in dispatch.pick(places)}


Hook = Callable[["CommandBuffer", Any], None]
"""Called with the command buffer and the state of an encode."""


@dataclass(slots=True)
class RepeatedEncode:
    """An encode that took over what ``kernel`` remembers, for those who repeat the encodes of several kernels.

    ``images`` are its sources and its destination if it has one, of which it writes those in ``written``. ``begin`` and
    ``note`` are what has to be called before its dispatches and after them. ``make_state`` makes another state like the
    one that was made for it, and ``writes_state`` says that the state is noted as written.
    """

    kernel: Any
    work: RememberedWork
    images: tuple[Image, ...]
    state: Any
    written: tuple[Image, ...]
    begin: Hook | None
    note: Hook | None
    make_state: Callable[[], Any] | None = None
    writes_state: bool = False


@dataclass(frozen=True, slots=True)
class RememberedEncode:
    """What one encode found out.

    ``values`` are the kernel's properties after it. ``descriptor`` is that of its destination, of which a whole image
    has the token ``destination_token``, and ``regions`` are what it read and wrote; descriptor and regions are None for
    an encode that writes to a state only. ``makes_regular_images`` says whether its allocator is the one of regular
    images, ``begins`` and ``notes`` whether the kernel has a ``_begin_encode`` and a ``_note_encode`` of its own.
    """

    values: dict[str, Any]
    values_token: int
    descriptor: ImageDescriptor | None
    destination_token: int
    regions: Regions | None
    work: RememberedWork
    makes_regular_images: bool
    begins: bool
    notes: bool
