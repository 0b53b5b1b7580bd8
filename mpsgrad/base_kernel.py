"""``BaseKernel``: what every kernel has in common."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from mpsgrad.checked_attribute import EnumAttribute, Label
from mpsgrad.command import CommandBuffer
from mpsgrad.device_bound import DeviceBound
from mpsgrad.devices import Buffer, Device, require_device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import MAXIMUM, NO_CLIP, EdgeMode, integer
from mpsgrad.image import (
    HandedImageAllocator,
    Image,
    ImageBatch,
    ImageDescriptor,
    RegularImageAllocator,
    TemporaryImageAllocator,
    allocated,
)
from mpsgrad.kernel_property import AllocatorProperty, IntegerProperty, PaddingProperty, RegionProperty
from mpsgrad.known_attributes import KnownAttributes
from mpsgrad.padding import SAME, PaddingMethod
from mpsgrad.regions import Regions, share_memory
from mpsgrad.repeated_encode import (
    REMEMBERED_ENCODES,
    Hook,
    RememberedEncode,
    RememberedWork,
    RepeatedEncode,
    image_token,
    token,
    token_of_whole,
)
from mpsgrad.state import BinaryGradientState, ForwardSnapshot, GradientState, State

_ALLOCATORS_OF_NEW_IMAGES = (RegularImageAllocator, TemporaryImageAllocator, HandedImageAllocator)
"""Those whose images are whole ones that share no memory with an encode's sources."""


class KernelOptions(enum.IntFlag):
    """Source: ``MPSKernelOptions``. Accepted for ported code; validation is never skipped."""

    NONE = 0
    SKIP_API_VALIDATION = 1
    ALLOW_REDUCED_PRECISION = 2
    DISABLE_INTERNAL_TILING = 4
    INSERT_DEBUG_GROUPS = 8
    VERBOSE = 16


class BaseKernel(KnownAttributes, DeviceBound):
    """What unary, binary and gradient kernels have in common. Source: ``MPSKernel``.

    ``device`` None takes the default device.
    """

    _fixed_attributes = ("device",)

    classes: ClassVar[dict[str, type[BaseKernel]]] = {}
    """Every kernel class by its name."""

    kernel_name: ClassVar[str] = "BaseKernel"
    """By which name states and archives know the class: its own, or that of the class that it is another name for."""

    supported_edge_modes: ClassVar[tuple[EdgeMode, ...]] = (EdgeMode.ZERO, EdgeMode.CLAMP)

    properties_without_use: ClassVar[tuple[str, ...]] = ()
    """Names of properties that encodes of the class do not read: they have to keep their defaults."""

    remembers_encodes: ClassVar[bool] = False
    """Whether the outcome of an encode follows from its key, and so may be taken over from the one before."""

    label = Label()
    options = EnumAttribute(KernelOptions.NONE, "Accepted for ported code; validation is never skipped.")
    clip_rect = RegionProperty(
        NO_CLIP,
        "The region of the destination that is written; all other pixels keep their value. It is cut to the image.",
        configures=True,
    )
    destination_feature_channel_offset = IntegerProperty(
        0, "The first destination channel that is written; a multiple of 4.", multiple_of=4, configures=True
    )
    padding = PaddingProperty(SAME, "The policy that sizes results of encodes that return an image.")
    destination_image_allocator = AllocatorProperty(
        RegularImageAllocator(), "Makes the images of encodes that return one."
    )

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls.kernel_name = vars(cls).get("kernel_name", cls.__name__)
        if cls.kernel_name == cls.__name__:
            BaseKernel.classes[cls.__name__] = cls

    def __init__(self, *, device: Device | None = None, label: str | None = None) -> None:
        self.device = require_device(type(self).__name__, device)
        self.label = label
        self._values: dict[str, Any] = {}
        self._values_token = 0
        self._encodes: dict[tuple[Any, ...], RememberedEncode] = {}
        self._configured_by_hand = False
        self._window = (1, 1, 1, 1, 1, 1)

    @property
    def is_backwards(self) -> bool:
        """Whether the stride is measured in the destination."""
        return False

    @property
    def is_state_modified(self) -> bool:
        """Whether encode writes into a source state."""
        return False

    @property
    def is_result_state_reused_across_batch(self) -> bool:
        """Whether one state serves the whole batch; else there is one for each image."""
        return False

    @property
    def append_batch_barrier(self) -> bool:
        """Whether the whole batch has to be encoded before a consumer may run."""
        return False

    def _set_window(
        self, width: Any, height: Any, stride_x: Any, stride_y: Any, dilation_x: Any, dilation_y: Any
    ) -> None:
        owner = type(self).__name__
        names = (
            "kernel_width",
            "kernel_height",
            "stride_in_pixels_x",
            "stride_in_pixels_y",
            "dilation_rate_x",
            "dilation_rate_y",
        )
        values = (width, height, stride_x, stride_y, dilation_x, dilation_y)
        self._window = tuple(  # type: ignore[assignment]
            integer(owner, name, value, 1) for name, value in zip(names, values, strict=True)
        )
        if max(self._window) > 2**15:
            name, value = max(zip(names, self._window, strict=True), key=lambda each: each[1])
            raise GeometryError(f"{owner}: {name} is {value}; it has to be at most {2**15}")

    @property
    def _dilated_width(self) -> int:
        return (self._window[0] - 1) * self._window[4] + 1

    @property
    def _dilated_height(self) -> int:
        return (self._window[1] - 1) * self._window[5] + 1

    def _window_layout(self, offset_x: int, offset_y: int) -> tuple[int, ...]:
        """The fields of ``WINDOW`` for a window whose centre tap is first at ``(offset_x, offset_y)``."""
        width, height, stride_x, stride_y, dilation_x, dilation_y = self._window
        return (
            width,
            height,
            stride_x,
            stride_y,
            dilation_x,
            dilation_y,
            offset_x - self._dilated_width // 2,
            offset_y - self._dilated_height // 2,
        )

    def _require_instances(self, **images: Any) -> None:
        for name, image in images.items():
            if isinstance(image, ImageBatch):
                raise FormatError(f"{type(self).__name__}: {name} is an ImageBatch; encode_batch takes batches")
            if not isinstance(image, Image):
                raise FormatError(f"{type(self).__name__}: {name} is {type(image).__name__}; it has to be an Image")

    def _require_command_buffer(self, command_buffer: Any, what: str) -> None:
        """Raises unless ``command_buffer`` is an open one for this kernel's device."""
        owner = type(self).__name__
        if not isinstance(command_buffer, CommandBuffer):
            raise FormatError(f"{owner}: command_buffer is {command_buffer!r}; it has to be a CommandBuffer")
        if not command_buffer._is_open:
            command_buffer._require_open(f"{owner}.{what}")
        if command_buffer.device is not self.device:
            raise StateError(
                f"{owner}: command_buffer is for {command_buffer.device.identifier} but the kernel for "
                f"{self.device.identifier}"
            )

    def _require_usable(self, command_buffer: CommandBuffer, name: str, item: Image | State) -> None:
        """Raises ``StateError`` if ``item`` is temporary and of another command buffer or without reads left."""
        owner = type(self).__name__
        home = getattr(item, "command_buffer", None)
        if home is not None and home is not command_buffer:
            raise StateError(f"{owner}: {name} is temporary and belongs to {home}, not to {command_buffer}")
        item._require_readable(owner, name)

    def _require_edge_mode(self, name: str) -> None:
        mode = getattr(self, name)
        if mode not in self.supported_edge_modes:
            supported = " and ".join(known.name for known in self.supported_edge_modes)
            raise NotImplementedError(f"{type(self).__name__}: {name} is {mode.name}; it supports {supported}")

    def _require_defaults(self) -> None:
        """Raises ``NotImplementedError`` if a property is set that would have no effect."""
        for name in self.properties_without_use:
            value, default = getattr(self, name), getattr(type(self), name).default
            if value != default:
                raise NotImplementedError(f"{type(self).__name__}: {name} is {value}; only {default} is supported")

    def _channels_in_use(self, image: Image, source: str) -> int:
        """How many channels of ``image`` are read; ``source`` is the properties' names up to ``_feature``."""
        first = getattr(self, f"{source}_feature_channel_offset")
        available = image.feature_channels - first
        if available <= 0:
            raise GeometryError(
                f"{type(self).__name__}: {source}_feature_channel_offset is {first} but that image has "
                f"{image.feature_channels} feature channels"
            )
        return min(available, getattr(self, f"{source}_feature_channel_max_count"))

    def _images_from(self, image: Image, offset: str, name: str) -> int:
        """How many images ``image`` has from the first one on, which the property called ``offset`` gives."""
        first = getattr(self, offset).z
        if first >= image.number_of_images:
            raise GeometryError(
                f"{type(self).__name__}: {offset}.z is {first} but the {name} has {image.number_of_images} images"
            )
        return image.number_of_images - first

    def _require_images(self, command_buffer: Any, images: dict[str, Any], written: Image | None) -> None:
        """The checks that every encode makes of its command buffer and images; one that is ``written`` comes last."""
        owner = type(self).__name__
        self._require_command_buffer(command_buffer, "encode")
        first_name, first = next(iter(images.items()))
        self._require_instances(**images)
        for name, image in images.items():
            if image.device is not self.device:
                raise StateError(
                    f"{owner}: {name} is on {image.device.identifier} but the kernel on {self.device.identifier}"
                )
            if image.channel_format is not first.channel_format:
                raise FormatError(
                    f"{owner}: {name} is {image.channel_format.name} but {first_name} is {first.channel_format.name}"
                )
            self._require_usable(command_buffer, name, image)
            if not name.startswith("destination"):
                writer = image._root._writer
                if writer is not None:
                    command_buffer._reads(owner, name, writer, image.buffer)
        if written is not None:
            *sources, _ = images.items()
            for name, image in sources:
                if share_memory(image, written):
                    raise GeometryError(
                        f"{owner}: the destination shares memory with {name}; the destination may not alias a source"
                    )

    def _destination_region(
        self, destination: Image, channels: int, available_images: int
    ) -> tuple[tuple[int, ...], int, int, int]:
        """The layout of the clipped destination, and its width, height and number of images.

        ``available_images`` is how many images the sources have from their first one on.
        """
        owner = type(self).__name__
        origin, size = self.clip_rect
        first_channel = self.destination_feature_channel_offset
        if first_channel + channels > destination.feature_channels:
            raise GeometryError(
                f"{owner}: the destination has {destination.feature_channels} feature channels but {channels} are "
                f"written from channel {first_channel} on"
            )
        width = max(min(size.width, destination.width - origin.x), 0)
        height = max(min(size.height, destination.height - origin.y), 0)
        images = max(min(size.depth, destination.number_of_images - origin.z), 0)
        if images > available_images:
            raise GeometryError(
                f"{owner}: {images} images are to be written but the source has {available_images} from its first one "
                "on"
            )
        if size.depth == MAXIMUM and images < available_images:
            raise GeometryError(
                f"{owner}: the source has {available_images} images but the destination has room for {images}; "
                "clip_rect.size.depth says how many to process"
            )
        start, pixel, row, image, *_ = destination.layout
        first = start + origin.z * image + origin.y * row + origin.x * pixel + first_channel
        return (first, pixel, row, image, width, height, channels, images), width, height, images

    def _configure_from(self, state: Any) -> None:
        """Called by a state that this kernel consumes; only gradient kernels take their geometry from it."""

    def _snapshot_of(self, state: Any) -> ForwardSnapshot:
        """What ``state`` holds of the forward source to which this kernel's result belongs."""
        return state.snapshot

    def _configure(self, **values: Any) -> None:
        """Sets properties to values that need no check, without marking the kernel as configured by hand."""
        now = self._values
        if any(name not in now or now[name] != value for name, value in values.items()):
            self._values = {**now, **values}
            self._values_token = 0

    def _token_of_values(self) -> int:
        """The token of the checked properties as they are now; 0 if one of them has none."""
        if self._values_token == 0:
            with suppress(TypeError):
                self._values_token = token(frozenset(self._values.items()))
        return self._values_token

    def _new_image(self, command_buffer: CommandBuffer, descriptor: ImageDescriptor) -> Image:
        """A result that the kernel's allocator makes."""
        allocator = self.destination_image_allocator
        if type(allocator) is RegularImageAllocator:
            return Image(descriptor, self.device)
        return allocated(allocator, command_buffer, descriptor, self)

    def _encode_aspects(self, state: Any) -> Hashable:
        """What the outcome of an encode depends on besides the checked properties, the images, and the state's key."""
        return None

    def _encode_buffers(self) -> Mapping[Any, Buffer]:
        """The buffers of the kernel that encodes use and that may be others at the next encode, by name."""
        return {}

    def _encode_buffer(self, name: Any, command_buffer: CommandBuffer) -> Buffer:
        """The buffer called ``name``, ready for work that is added to ``command_buffer`` next."""
        raise NotImplementedError

    def _encode_key(
        self,
        command_buffer: Any,
        sources: Sequence[Any],
        destination: Any,
        state: Any,
        options: Hashable = None,
    ) -> tuple[Any, ...] | None:
        """What decides the outcome of an encode, or None if it is to be looked at from scratch.

        None also where something is wrong that the key says nothing of.
        """
        device = self.device
        if (
            not self.remembers_encodes
            or not isinstance(command_buffer, CommandBuffer)
            or command_buffer._device is not device
            or not command_buffer._is_open
        ):
            return None
        if self._values_token == 0 and self._token_of_values() == 0:
            return None
        tokens: list[int] = []
        buffers: list[Buffer] = []
        is_borrowed = False
        images = sources if destination is None else (*sources, destination)
        for image in images:
            if not isinstance(image, Image) or image._device is not device:
                return None
            if image._command_buffer is not None and not _is_usable(image, command_buffer):
                return None
            if image._is_borrowed:
                is_borrowed = True
            tokens.append(image._token or image_token(image))
            buffers.append(image._buffer or image.buffer)
        shared = None
        if len(buffers) > 1:
            if is_borrowed and destination is not None and any(share_memory(each, destination) for each in sources):
                return None
            if len({*buffers}) < len(buffers):
                if destination is not None and buffers.index(buffers[-1]) < len(sources):
                    return None
                shared = tuple(map(buffers.index, buffers))
        of_state = None
        if state is not None:
            if not isinstance(state, (GradientState, BinaryGradientState)) or state._device is not device:
                return None
            if state._command_buffer is not None and not _is_usable(state, command_buffer):
                return None
            of_state = state._encode_key(self)
        return (
            self._values_token,
            self._configured_by_hand,
            self._encode_aspects(state),
            options,
            of_state,
            shared,
            destination is None,
            *tokens,
        )

    def _recall(self, key: tuple[Any, ...] | None) -> RememberedEncode | None:
        """What the encode with ``key`` found out, with the kernel's properties set as that encode left them."""
        remembered = self._encodes.get(key) if key is not None else None
        if remembered is not None and remembered.values is not self._values:
            self._values, self._values_token = remembered.values, remembered.values_token
        return remembered

    def _remember(
        self,
        key: tuple[Any, ...] | None,
        command_buffer: CommandBuffer,
        start: tuple[int, int],
        images: Sequence[Image],
        state: State | None,
        descriptor: ImageDescriptor | None = None,
        regions: Regions | None = None,
    ) -> None:
        """Keeps what the encode with ``key`` found out, where the next one can rely on it.

        Its dispatches are those of ``command_buffer`` from ``start`` on. ``images`` are its sources and its destination
        if it has one, ``descriptor`` is that of the destination.
        """
        is_empty = descriptor is not None and regions is None
        if key is None or is_empty or self._is_custom():
            return
        allocator = type(self.destination_image_allocator)
        if allocator not in _ALLOCATORS_OF_NEW_IMAGES:
            return
        if self._token_of_values() == 0:
            return
        if len(self._encodes) >= REMEMBERED_ENCODES:
            self._encodes.clear()
        dispatches, scratch = start
        kind = type(self)
        work = RememberedWork.of(
            command_buffer._dispatches[dispatches:],
            images,
            self,
            state,
            command_buffer._lent.scratch[scratch:],
            command_buffer._lent.workspaces,
        )
        self._encodes[key] = RememberedEncode(
            self._values,
            self._values_token,
            descriptor,
            token_of_whole(descriptor) if descriptor is not None else 0,
            regions,
            work,
            allocator is RegularImageAllocator,
            kind._begin_encode is not BaseKernel._begin_encode,
            kind._note_encode is not BaseKernel._note_encode,
        )

    def _encode_again(
        self,
        remembered: RememberedEncode,
        command_buffer: CommandBuffer,
        sources: Sequence[Image],
        destination: Image | None,
        state: Any,
        written: Image | None = None,
    ) -> Image:
        """Adds the dispatches of an encode whose key is that of ``remembered``; returns the destination.

        It is made first if it is None. ``written`` is the one of ``sources`` that is a result too, if any.
        """
        assert remembered.regions is not None
        for source in sources:
            writer = source._writer if source._parent is None else source._root._writer
            if writer is not None and source is not written:
                command_buffer._reads(type(self).__name__, "a source image", writer)
        if destination is None:
            if remembered.makes_regular_images:
                assert remembered.descriptor is not None
                destination = Image._allocated(remembered.descriptor, self.device, remembered.destination_token)
            else:
                destination = self._new_image_as_before(remembered, command_buffer)
        if remembered.begins:
            self._begin_encode(command_buffer, state)
        remembered.work.add_to(command_buffer, (*sources, destination), self, state)
        if remembered.notes:
            self._note_encode(command_buffer, state, remembered.regions)
        command_buffer._writes(destination if destination._parent is None else destination._root)
        if command_buffer._repeated is not None:
            self._tell_of(remembered, command_buffer, (*sources, destination), state, written)
        return destination

    def _tell_of(
        self,
        remembered: RememberedEncode,
        command_buffer: CommandBuffer,
        images: tuple[Image, ...],
        state: Any,
        written: Image | None,
    ) -> None:
        """Adds an encode that was repeated to those that ``command_buffer`` is asked for."""
        assert command_buffer._repeated is not None
        regions = remembered.regions
        assert regions is not None
        begin: Hook | None = self._begin_encode if remembered.begins else None
        note: Hook | None = None
        if remembered.notes:
            note = partial(self._note_encode, regions=regions)  # type: ignore[call-arg]
        results = images[-1:] if written is None else (images[-1], written)
        command_buffer._repeated.append(
            RepeatedEncode(self, remembered.work, images, state, results, begin, note)
        )

    def _new_image_as_before(self, remembered: RememberedEncode, command_buffer: CommandBuffer) -> Image:
        """A destination like the one of the encode that is remembered."""
        assert remembered.descriptor is not None
        if remembered.makes_regular_images:
            return Image._allocated(remembered.descriptor, self.device, remembered.destination_token)
        return self._new_image(command_buffer, remembered.descriptor)

    def _begin_encode(self, command_buffer: CommandBuffer, state: Any) -> None:
        """Called before the dispatches of each encode: makes the checks whose outcome depends on the moment."""

    def _dispatch(self, command_buffer: CommandBuffer, *arguments: Any) -> None:
        """Adds the dispatches of one encode: of the sources, the destination, their ``Regions`` and the state."""
        raise NotImplementedError(f"{type(self).__name__}: encodes nothing by itself; classes that derive from it do")

    def _note_encode(self, command_buffer: CommandBuffer, state: Any, regions: Regions) -> None:
        """Called after the dispatches of each encode: notes in the state what it has become, besides its buffers."""

    def _archived_properties(self) -> dict[str, Any]:
        """Further properties that an archive keeps, besides the checked ones."""
        return {"options": self.options}

    def _is_custom(self) -> bool:
        return bool(self.padding.padding_method & PaddingMethod.CUSTOM)

    def __repr__(self) -> str:
        name = f" {self.label!r}" if self.label else ""
        width, height, stride_x, stride_y, dilation_x, dilation_y = self._window
        window = f" {width}x{height}" if (width, height) != (1, 1) else ""
        stride = f" stride {stride_x}x{stride_y}" if (stride_x, stride_y) != (1, 1) else ""
        dilation = f" dilation {dilation_x}x{dilation_y}" if (dilation_x, dilation_y) != (1, 1) else ""
        return f"<{type(self).__name__}{name}{window}{stride}{dilation} on {self.device.identifier}>"


def _is_usable(item: Image | State, command_buffer: CommandBuffer) -> bool:
    """Whether ``item`` is regular, or temporary on ``command_buffer`` with reads left."""
    home = item.command_buffer
    return home is None or (home is command_buffer and item.read_count > 0)
