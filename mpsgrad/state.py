"""States: what a forward kernel hands to the gradient kernel and to the update of its parameters."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from mpsgrad.checked_attribute import Label, fixed
from mpsgrad.command import CommandBuffer
from mpsgrad.device_bound import DeviceBound
from mpsgrad.devices import Buffer, Device, require_device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import EdgeMode, Offset, Region, integer
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.read_counts import increment_read_counts

if TYPE_CHECKING:
    from mpsgrad.base_kernel import BaseKernel

StateType = TypeVar("StateType")
"""Of what a forward kernel's encode records."""


class State(DeviceBound):
    """A container of buffers that travels between kernels. Source: ``MPSState``.

    ``buffer_sizes`` are in bytes; the buffers are allocated at their first use. With ``command_buffer`` the state is
    temporary: it lives on that command buffer, its ``read_count`` starts at 1, and it cannot be read on the CPU.
    """

    label = Label()
    device: Device = fixed("_device", "Where the buffers are.")
    command_buffer: CommandBuffer | None = fixed("_command_buffer", "What a temporary state lives on, or None.")

    def __init__(
        self,
        buffer_sizes: Sequence[int] = (),
        device: Device | None = None,
        *,
        command_buffer: CommandBuffer | None = None,
        label: str | None = None,
    ) -> None:
        self._command_buffer = command_buffer
        owner = type(self).__name__
        if command_buffer is not None and not isinstance(command_buffer, CommandBuffer):
            raise FormatError(f"{owner}: command_buffer is {command_buffer!r}; it has to be a CommandBuffer")
        self._device = command_buffer.device if command_buffer is not None else require_device(owner, device)
        if label is not None:
            self.label = label
        self._sizes = tuple([integer(owner, "buffer size", size, 1) for size in buffer_sizes])
        self._buffers: list[Buffer | None] = [None] * len(self._sizes)
        self._read_count = 1 if command_buffer is not None else 0
        self._writer: CommandBuffer | None = None

    @property
    def resource_count(self) -> int:
        """The number of buffers."""
        return len(self._sizes)

    # objc: -bufferSizeAtIndex:
    def buffer_size(self, index: int) -> int:
        """Bytes of the buffer at ``index``. Raises ``GeometryError`` if there is none."""
        self._require_index(index)
        return self._sizes[index]

    # objc: -resourceAtIndex:allocateMemory:
    def resource(self, index: int) -> Buffer:
        """The buffer at ``index``.

        Raises ``GeometryError`` if there is none and ``StateError`` if the state is temporary and has no reads left.
        """
        self._require_readable(type(self).__name__, "the state")
        self._require_index(index)
        buffer = self._buffers[index]
        if buffer is None:
            size, reused = self._sizes[index], None
            if self._command_buffer is not None:
                reused = self._command_buffer._reuse_buffer(size)
                self._command_buffer._if_taken_back(partial(self._buffers.__setitem__, index, None))
            buffer = self._buffers[index] = reused if reused is not None else self.device.allocate(size)
        return buffer

    def _require_index(self, index: int) -> None:
        if index not in range(len(self._sizes)):
            raise GeometryError(f"{type(self).__name__}: index is {index!r} but there are {len(self._sizes)} buffers")

    def _encode_buffers(self) -> Mapping[Any, Buffer]:
        """The buffers that encodes of kernels use, as far as there are any yet, by the names of ``_encode_buffer``."""
        return {index: buffer for index, buffer in enumerate(self._buffers) if buffer is not None}

    def _encode_buffer(self, name: Any, command_buffer: CommandBuffer) -> Buffer:
        """The buffer called ``name`` for an encode into ``command_buffer``, which has checked that it may be read."""
        buffer = self._buffers[name]
        return self.resource(name) if buffer is None else buffer

    def _encode_buffers_called(self, names: Iterable[Any], command_buffer: CommandBuffer) -> list[Buffer]:
        """``_encode_buffer`` of each of the ``names``."""
        return [self._encode_buffer(name, command_buffer) for name in names]

    @property
    def resource_size(self) -> int:
        """Bytes of all buffers."""
        return sum(self._sizes)

    @property
    def is_temporary(self) -> bool:
        """Whether the state lives on one command buffer."""
        return self._command_buffer is not None

    @property
    def read_count(self) -> int:
        """How many encodes may still read a temporary state; 0 for regular ones.

        Setting raises ``StateError`` for a regular state and once the count is 0, ``GeometryError`` for a negative one.
        """
        return self._read_count

    @read_count.setter
    def read_count(self, count: int) -> None:
        name = type(self).__name__
        if self._command_buffer is None:
            raise StateError(f"{name}: read_count is {count}, but only temporary states count their reads")
        if self._read_count == 0:
            raise StateError(f"{name}: read_count is 0, so the memory is gone and the count cannot be changed")
        self._command_buffer._if_taken_back(partial(setattr, self, "_read_count", self._read_count))
        self._read_count = integer(name, "read_count", count, 0)
        if self._read_count == 0:
            self._release()

    def _release(self) -> None:
        """Gives the memory of a temporary state back."""
        assert self._command_buffer is not None
        for buffer in self._buffers:
            if buffer is not None:
                self._command_buffer._give_back(buffer)

    def _read_once(self) -> None:
        if self._command_buffer is not None:
            self.read_count = self._read_count - 1

    def _require_readable(self, owner: str, argument: str) -> None:
        if self._command_buffer is not None and self._read_count == 0:
            raise StateError(f"{owner}: {argument} is temporary with read_count 0, so its contents are gone")

    def _written_by(self, command_buffer: CommandBuffer) -> None:
        command_buffer._writes(self)

    def _require_gradients(self, owner: str, command_buffer: CommandBuffer) -> None:
        """Raises ``StateError`` if ``command_buffer`` would read gradients for parameters before they are written."""

    # objc: -synchronizeOnCommandBuffer:
    def synchronize(self, command_buffer: CommandBuffer) -> None:
        """Makes what kernels write visible to the CPU once ``command_buffer`` has completed.

        Reads on the CPU wait for the kernels of this package by themselves; this makes them wait for
        ``command_buffer``, which may hold kernels of your own. Raises ``StateError`` for a temporary state and after
        ``commit``.
        """
        command_buffer._require_open("synchronize")
        if self.is_temporary:
            raise StateError(f"{type(self).__name__}: synchronize, but temporary states have no CPU access")
        self._written_by(command_buffer)

    def _read(self, index: int, count: int, byte_offset: int = 0) -> np.ndarray:
        """``count`` float32 values of the buffer at ``index``, after the work that writes them has completed."""
        if self.is_temporary:
            raise StateError(f"{type(self).__name__}: read on the CPU, but temporary states have no CPU access")
        if self._writer is not None:
            self._writer._wait_for(type(self).__name__, "read", needs_result=True)
        return self.resource(index).read(byte_offset, 4 * count).view(np.float32)

    def _write(self, index: int, values: Any) -> None:
        self.resource(index).write(np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8))

    def __repr__(self) -> str:
        name = f" {self.label!r}" if self.label else ""
        kind = f" temporary, read_count {self.read_count}" if self.is_temporary else ""
        return f"<{type(self).__name__}{name}{kind} on {self.device.identifier}>"


@dataclass(frozen=True)
class ForwardSnapshot:
    """A forward kernel's properties at the time of ``result_state``, and the images' extents."""

    kernel: str
    offset: Offset
    clip_rect: Region
    edge_mode: EdgeMode
    kernel_width: int
    kernel_height: int
    stride_in_pixels_x: int
    stride_in_pixels_y: int
    dilation_rate_x: int
    dilation_rate_y: int
    source_feature_channel_offset: int
    source_feature_channel_max_count: int
    destination_feature_channel_offset: int
    source: ImageDescriptor
    destination: ImageDescriptor

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    def __hash__(self) -> int:
        return self._hash

    def of_one_image(self) -> ForwardSnapshot:
        """The same for one of the images."""
        return replace(
            self,
            source=replace(self.source, number_of_images=1),
            destination=replace(self.destination, number_of_images=1),
        )

    def differs_from(self, other: ForwardSnapshot) -> str | None:
        """The name of the first property, images' extents left out, that ``other`` has with another value, or None."""
        names = (f.name for f in fields(self) if f.name not in ("kernel", "source", "destination"))
        return next((name for name in names if getattr(self, name) != getattr(other, name)), None)

    @property
    def source_channels(self) -> int:
        """How many source channels the forward kernel read."""
        available = self.source.feature_channels - self.source_feature_channel_offset
        return min(available, self.source_feature_channel_max_count)

    @cached_property
    def images(self) -> int:
        """How many images the forward kernel processed."""
        return min(self.clip_rect.size.depth, self.destination.number_of_images - self.clip_rect.origin.z)


class ForwardState(State):
    """A state of one encode of a forward kernel over N images, which has a part for each image."""

    _parent: ForwardState | None = None
    parent: ForwardState | None = fixed("_parent", "The state of several images that this one is a part of, or None.")
    _index = 0

    @property
    def number_of_images(self) -> int:
        """How many images the encode's sources have."""
        raise NotImplementedError

    def batch_representation(self) -> StateBatch:
        """This state of N images as N states of one image that share its buffers.

        The parts of a temporary state are temporary: each counts as one read of it until it has been read itself.
        """
        return StateBatch(self._part(index) for index in range(self.number_of_images))

    def _part(self, index: int) -> ForwardState:
        """The state of image ``index`` alone; classes with buffers per image override ``_part_of_buffers``."""
        if self.number_of_images == 1:
            return self
        part = type(self).__new__(type(self))
        part.__dict__.update(self.__dict__)
        part._parent, part._index = self, index
        part._keep_one_image()
        part._part_of_buffers(index)
        if self.is_temporary:
            self.read_count += 1
            part._read_count = 1
        return part

    def _keep_one_image(self) -> None:
        """Called on a new part: reduces what it says of the sources and the result to one image."""

    def _part_of_buffers(self, index: int) -> None:
        """Called on a new part: makes its buffers views of image ``index``."""

    def _release(self) -> None:
        if self._parent is not None:
            self._parent._read_once()
        else:
            super()._release()


class GradientState(ForwardState):
    """What a gradient kernel has to know of the forward encode: a snapshot of its configuration.

    Made by a forward kernel's ``result_state``; opaque otherwise. Source: ``MPSNNGradientState``.
    """

    def __init__(
        self,
        snapshot: ForwardSnapshot,
        buffer_sizes: Sequence[int] = (),
        device: Device | None = None,
        *,
        command_buffer: CommandBuffer | None = None,
    ) -> None:
        super().__init__(buffer_sizes, device, command_buffer=command_buffer)
        self.snapshot = snapshot

    @property
    def number_of_images(self) -> int:
        """How many images the forward source has."""
        return self.snapshot.source.number_of_images

    def _keep_one_image(self) -> None:
        self.snapshot = self.snapshot.of_one_image()

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        """What an encode of ``kernel`` depends on in this state, apart from the contents of its buffers."""
        return self.snapshot

    @property
    def source_width(self) -> int:
        """Width of the forward source image in pixels."""
        return self.snapshot.source.width

    @property
    def source_height(self) -> int:
        """Height of the forward source image in pixels."""
        return self.snapshot.source.height

    # objc: -destinationImageDescriptorForSourceImages:sourceStates:forKernel:suggestedDescriptor:
    def destination_image_descriptor(
        self,
        source_images: Sequence[Image],
        source_states: Sequence[State],
        kernel: BaseKernel,
        suggested_descriptor: ImageDescriptor,
    ) -> ImageDescriptor:
        """Configures ``kernel``, the consumer of this state, and says how large its result is.

        A gradient kernel gets the forward kernel's geometry, and its result the extents of the forward source.
        """
        kernel._configure_from(self)
        source = kernel._snapshot_of(self).source
        if source.channel_format is suggested_descriptor.channel_format:
            return source
        return replace(source, channel_format=suggested_descriptor.channel_format)


class SharedGradientState(GradientState):
    """A state that all images of a batch share, with sums over them."""

    # objc: -destinationImageDescriptorForSourceImages:sourceStates:forKernel:suggestedDescriptor:
    def destination_image_descriptor(
        self,
        source_images: Sequence[Image],
        source_states: Sequence[State],
        kernel: BaseKernel,
        suggested_descriptor: ImageDescriptor,
    ) -> ImageDescriptor:
        """As ``GradientState.destination_image_descriptor``, for as many images as this part of the batch has."""
        descriptor = super().destination_image_descriptor(source_images, source_states, kernel, suggested_descriptor)
        return replace(descriptor, number_of_images=suggested_descriptor.number_of_images)


class BinaryGradientState(ForwardState):
    """The counterpart of ``GradientState`` for kernels with two sources: one snapshot for each.

    Source: ``MPSNNBinaryGradientState``.
    """

    def __init__(
        self,
        primary: ForwardSnapshot,
        secondary: ForwardSnapshot,
        buffer_sizes: Sequence[int] = (),
        device: Device | None = None,
        *,
        command_buffer: CommandBuffer | None = None,
    ) -> None:
        super().__init__(buffer_sizes, device, command_buffer=command_buffer)
        self.primary = primary
        self.secondary = secondary

    @property
    def number_of_images(self) -> int:
        """How many images the forward primary source has."""
        return self.primary.source.number_of_images

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        """What an encode of ``kernel`` depends on in this state, apart from the contents of its buffers."""
        return (self.primary, self.secondary)

    # objc: -destinationImageDescriptorForSourceImages:sourceStates:forKernel:suggestedDescriptor:
    def destination_image_descriptor(
        self,
        source_images: Sequence[Image],
        source_states: Sequence[State],
        kernel: BaseKernel,
        suggested_descriptor: ImageDescriptor,
    ) -> ImageDescriptor:
        """Configures ``kernel``, the consumer of this state, and says how large its result is.

        A gradient kernel gets the geometry of the forward source that it differentiates, and its result the extents.
        """
        kernel._configure_from(self)
        source = kernel._snapshot_of(self).source
        return replace(source, channel_format=suggested_descriptor.channel_format)

    def _keep_one_image(self) -> None:
        self.primary, self.secondary = self.primary.of_one_image(), self.secondary.of_one_image()


class StateBatch(Sequence[Any]):
    """A list of states, one for each image of a batch; an accumulating state stands in it once for each image.

    Source: ``MPSStateBatch``.
    """

    def __init__(self, states: Iterable[State]) -> None:
        if isinstance(states, State) or not isinstance(states, Iterable):
            raise FormatError(f"StateBatch: states is {type(states).__name__}; it has to be a list of states")
        self._states = tuple(states)
        if not self._states:
            raise GeometryError("StateBatch: an empty batch; it has to hold at least one state")
        for index, state in enumerate(self._states):
            if not isinstance(state, State):
                raise FormatError(f"StateBatch: element {index} is {state!r}; it has to be a State")

    @property
    def whole(self) -> Any:
        """The one state whose parts, in order, are this batch, or the state that it repeats; None otherwise.

        None for the parts of a temporary state, which count their reads one by one.
        """
        first = self._states[0]
        if all(state is first for state in self._states):
            return first
        parent = getattr(first, "parent", None)
        if parent is None or parent.is_temporary or len(self._states) != parent.number_of_images:
            return None
        matches = (
            isinstance(s, ForwardState) and s.parent is parent and s._index == i for i, s in enumerate(self._states)
        )
        return parent if all(matches) else None

    # objc: MPSStateBatchIncrementReadCount
    def increment_read_count(self, amount: int) -> int:
        """Adds ``amount`` to the read count of each different temporary state; returns the number of states."""
        return increment_read_counts(self._states, amount)

    # objc: MPSStateBatchSynchronize
    def synchronize(self, command_buffer: CommandBuffer) -> None:
        """Synchronizes each different state."""
        for state in {id(s): s for s in self._states}.values():
            state.synchronize(command_buffer)

    # objc: MPSStateBatchResourceSize
    def resource_size(self) -> int:
        """Bytes of all different states."""
        return sum(state.resource_size for state in {id(s): s for s in self._states}.values())

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> StateBatch: ...
    def __getitem__(self, index: int | slice) -> Any:
        return StateBatch(self._states[index]) if isinstance(index, slice) else self._states[index]

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._states)


