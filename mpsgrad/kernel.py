"""The base classes of every kernel: geometry, validation, allocation of results, and the four encode forms.

A concrete kernel says how many channels it produces, checks what only it knows, and adds its dispatches in
``_dispatch``; everything else happens here, before anything is dispatched.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device, default_device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import MAXIMUM, NO_CLIP, EdgeMode, Offset, Origin, Region, Size, integer, integers, region
from mpsgrad.image import Image, ImageAllocator, ImageBatch, ImageDescriptor, RegularImageAllocator
from mpsgrad.padding import SAME, Padding, PaddingMethod, apply_padding, require_padding
from mpsgrad.shader import IMAGE_LAYOUT, ParameterStruct, ShaderFamily
from mpsgrad.state import ForwardSnapshot, GradientState, State, StateBatch

FILL_PARAMETERS = ParameterStruct("FillParameters", count="int")
FILL = ShaderFamily("fill", (FILL_PARAMETERS,), {"threads": 256, "elements": 16})

WINDOW = ParameterStruct(
    "Window",
    width="int",
    height="int",
    stride_x="int",
    stride_y="int",
    dilation_x="int",
    dilation_y="int",
    origin_x="int",
    origin_y="int",
)
"""A window: ``origin`` is the source pixel of the first tap of the first output pixel."""

__all__ = ["IMAGE_LAYOUT", "WINDOW", "BaseKernel", "BinaryKernel", "GradientKernel", "Kernel", "KernelOptions", "Regions"]


class KernelOptions(enum.IntFlag):
    """Source: ``MPSKernelOptions``. Accepted for ported code; validation is never skipped."""

    NONE = 0
    SKIP_API_VALIDATION = 1
    ALLOW_REDUCED_PRECISION = 2
    DISABLE_INTERNAL_TILING = 4
    INSERT_DEBUG_GROUPS = 8
    VERBOSE = 16


class _Property:
    """A checked property of a kernel. Setting one that ``configures`` marks the kernel as configured by hand."""

    def __init__(self, default: Any, description: str, *, configures: bool = False) -> None:
        self.default = default
        self.configures = configures
        self.__doc__ = description

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, kernel: Any, owner: type) -> Any:
        return self if kernel is None else kernel._values.get(self.name, self.default)

    def __set__(self, kernel: Any, value: Any) -> None:
        kernel._values[self.name] = self.check(type(kernel).__name__, value)
        if self.configures:
            kernel._configured_by_hand = True

    def check(self, owner: str, value: Any) -> Any:
        raise NotImplementedError


class IntegerProperty(_Property):
    """An integer that is at least ``minimum`` and a multiple of ``multiple_of``."""

    def __init__(
        self,
        default: int,
        description: str,
        *,
        minimum: int | None = 0,
        multiple_of: int = 1,
        configures: bool = False,
    ) -> None:
        super().__init__(default, description, configures=configures)
        self.minimum = minimum
        self.multiple_of = multiple_of

    def check(self, owner: str, value: Any) -> int:
        number = integer(owner, self.name, value, self.minimum)
        if number % self.multiple_of:
            raise GeometryError(f"{owner}: {self.name} is {number}; it has to be a multiple of {self.multiple_of}")
        return number


class OffsetProperty(_Property):
    def check(self, owner: str, value: Any) -> Offset:
        offset = Offset(*integers(owner, self.name, value, 3))
        if offset.z < 0:
            raise GeometryError(f"{owner}: {self.name}.z is {offset.z}; the first image has to be at least 0")
        return offset


class RegionProperty(_Property):
    def check(self, owner: str, value: Any) -> Region:
        return region(owner, self.name, value)


class SizeProperty(_Property):
    def check(self, owner: str, value: Any) -> Size:
        return Size(*integers(owner, self.name, value, 3, 0))


class EdgeModeProperty(_Property):
    def check(self, owner: str, value: Any) -> EdgeMode:
        try:
            return EdgeMode(value)
        except ValueError:
            raise FormatError(f"{owner}: {self.name} is {value!r}; it has to be an EdgeMode") from None


class EnumProperty(_Property):
    """A member of the enumeration of its default."""

    def check(self, owner: str, value: Any) -> Any:
        kind = type(self.default)
        try:
            return kind(value)
        except ValueError:
            raise FormatError(f"{owner}: {self.name} is {value!r}; it has to be a {kind.__name__}") from None


class PaddingProperty(_Property):
    def check(self, owner: str, value: Any) -> Padding:
        return require_padding(owner, value)


class AllocatorProperty(_Property):
    def check(self, owner: str, value: Any) -> ImageAllocator:
        if not hasattr(value, "image"):
            raise FormatError(f"{owner}: {self.name} is {value!r}; it has to have an image() method")
        return value


@dataclass(frozen=True, slots=True)
class Regions:
    """What one encode reads and writes, as layouts for the shaders (the fields of ``ImageLayout``).

    ``width``, ``height``, ``images`` are the extents of the destination region; channels of the layouts are those in use.
    """

    sources: tuple[tuple[int, ...], ...]
    destination: tuple[int, ...]
    width: int
    height: int
    images: int


class BaseKernel:
    """What unary, binary and gradient kernels have in common. Source: ``MPSKernel``.

    ``device`` None takes the default device.
    """

    classes: ClassVar[dict[str, type[BaseKernel]]] = {}
    """Every kernel class by its name."""

    supported_edge_modes: ClassVar[tuple[EdgeMode, ...]] = (EdgeMode.ZERO, EdgeMode.CLAMP)

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
        BaseKernel.classes[cls.__name__] = cls

    def __init__(self, *, device: Device | None = None, label: str | None = None) -> None:
        self.device = device or default_device()
        self.label = label
        self.options = KernelOptions.NONE
        self._values: dict[str, Any] = {}
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

    def _set_window(self, width: Any, height: Any, stride_x: Any, stride_y: Any, dilation_x: Any, dilation_y: Any) -> None:
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
            raise GeometryError(f"{owner}: the window {self._window} has a value over {2**15}")

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

    def _require_images(self, command_buffer: Any, images: dict[str, Any], written: Image | None) -> None:
        """The checks that every encode makes of its command buffer and images."""
        owner = type(self).__name__
        if not isinstance(command_buffer, CommandBuffer):
            raise FormatError(f"{owner}: command_buffer is {command_buffer!r}; it has to be a CommandBuffer")
        command_buffer._require_open(f"{owner}.encode")
        if command_buffer.device is not self.device:
            raise StateError(
                f"{owner}: command_buffer is for {command_buffer.device.identifier} but the kernel for "
                f"{self.device.identifier}"
            )
        first_name, first = next(iter(images.items()))
        for name, image in images.items():
            if isinstance(image, ImageBatch):
                raise FormatError(f"{owner}: {name} is an ImageBatch; encode_batch takes batches")
            if not isinstance(image, Image):
                raise FormatError(f"{owner}: {name} is {type(image).__name__}; it has to be an Image")
            if image.device is not self.device:
                raise StateError(
                    f"{owner}: {name} is on {image.device.identifier} but the kernel on {self.device.identifier}"
                )
            if image.channel_format is not first.channel_format:
                raise FormatError(
                    f"{owner}: {name} is {image.channel_format.name} but {first_name} is {first.channel_format.name}"
                )
            owner_buffer = getattr(image, "command_buffer", command_buffer)
            if owner_buffer is not command_buffer:
                raise StateError(f"{owner}: {name} is a temporary image of another command buffer")
            image._require_readable(owner, name)
        if written is not None:
            for name, image in images.items():
                if image is not written and image._root is written._root and _overlap(image, written):
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
                f"{owner}: the destination has {destination.feature_channels} feature channels but {channels} are written "
                f"from channel {first_channel} on"
            )
        width = max(min(size.width, destination.width - origin.x), 0)
        height = max(min(size.height, destination.height - origin.y), 0)
        images = max(min(size.depth, destination.number_of_images - origin.z), 0)
        if images > available_images:
            raise GeometryError(
                f"{owner}: {images} images are to be written but the source has {available_images} from its first one on"
            )
        if size.depth == MAXIMUM and images < available_images:
            raise GeometryError(
                f"{owner}: the source has {available_images} images but the destination has room for {images}; "
                "clip_rect.size.depth says how many to process"
            )
        start, pixel, row, image, *_ = destination.layout
        first = start + origin.z * image + origin.y * row + origin.x * pixel + first_channel
        return (first, pixel, row, image, width, height, channels, images), width, height, images

    def _configure_from(self, state: GradientState) -> None:
        """Called by a state that this kernel consumes; only gradient kernels take their geometry from it."""

    def _configure(self, **values: Any) -> None:
        """Sets properties to values that need no check, without marking the kernel as configured by hand."""
        self._values.update(values)

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


def _overlap(a: Image, b: Image) -> bool:
    """Whether two views of one image share an element, judged by image and channel ranges."""
    stride = a._strides[2]
    pixel = a._strides[0]
    a_image, b_image = a._first_element // stride, b._first_element // stride
    if a_image + a.number_of_images <= b_image or b_image + b.number_of_images <= a_image:
        return False
    a_channel, b_channel = a._first_element % pixel, b._first_element % pixel
    return a_channel < b_channel + b.feature_channels and b_channel < a_channel + a.feature_channels


def source_layout(image: Image, first_channel: int, channels: int, first_image: int, images: int) -> tuple[int, ...]:
    """The layout of the part of ``image`` that a kernel reads."""
    start, pixel, row, step, width, height, _, _ = image.layout
    return (start + first_image * step + first_channel, pixel, row, step, width, height, channels, images)


def fill_with_zeros(command_buffer: CommandBuffer, image: Image) -> None:
    """Writes 0 to every element of ``image``, which is no view."""
    fill_buffer_with_zeros(
        command_buffer, image.buffer, image.descriptor.element_count, image.channel_format.metal_type
    )


def fill_buffer_with_zeros(
    command_buffer: CommandBuffer, buffer: Buffer, count: int, metal_type: str = "float"
) -> None:
    """Writes 0 to the first ``count`` elements of ``metal_type`` in ``buffer``."""
    function = FILL.function(command_buffer.device, "fill_with_zeros", metal_type)
    parameters = command_buffer.device.constant_buffer(FILL_PARAMETERS.pack(count=count))
    command_buffer.add_dispatch(function, -(-count // (256 * 16)), buffer, parameters)


def clip_layout(layout: tuple[int, ...], clip_rect: Region) -> tuple[int, ...]:
    """``layout`` cut to the columns and rows of ``clip_rect``; its pixel 0 is the clip rectangle's first."""
    start, pixel, row, step, width, height, channels, images = layout
    (x, y, _), size = clip_rect
    return (
        start + y * row + x * pixel,
        pixel,
        row,
        step,
        max(min(size.width, width - x), 0),
        max(min(size.height, height - y), 0),
        channels,
        images,
    )


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

        Applies ``padding``, then the kernel's own rule, then each source state, then a custom policy. The result has the
        source's channel format. Raises ``GeometryError`` if the result would be empty.
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
        sources = _batch(owner, "source_images", source_images)
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
        destinations = _batch(owner, "destination_images", destination_images, len(sources))
        states = None
        if destination_states is not None:
            states = _state_batch(owner, "destination_states", destination_states, len(sources))
        self._run_batch(command_buffer, sources, destinations, states)
        return None

    def _run_batch(
        self, command_buffer: CommandBuffer, sources: ImageBatch, destinations: ImageBatch, states: StateBatch | None
    ) -> None:
        for index, destination in enumerate(destinations):
            for source in sources:
                if source._root is destination._root and _overlap(source, destination):
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
            raise FormatError(f"{owner}: destination_state is {type(state).__name__}; it has to be made by result_state")
        snapshot = state.snapshot
        if snapshot.kernel != owner:
            raise StateError(f"{owner}: destination_state was made by {snapshot.kernel}")
        if snapshot.source.shape[1:] != source.shape[1:]:
            raise StateError(
                f"{owner}: destination_state was made for a source of {snapshot.source.shape_text} but source_image is "
                f"{source.descriptor.shape_text}"
            )
        state._require_readable(owner, "destination_state")


class BinaryKernel(BaseKernel):
    """A kernel with two source images, the primary and the secondary. Source: ``MPSCNNBinaryKernel``."""

    primary_offset = OffsetProperty(
        Offset(), "The primary source's pixel under the centre tap of the first pixel written.", configures=True
    )
    secondary_offset = OffsetProperty(Offset(), "The same for the secondary source.", configures=True)
    primary_edge_mode = EdgeModeProperty(
        EdgeMode.ZERO, "What reads outside the primary source give.", configures=True
    )
    secondary_edge_mode = EdgeModeProperty(
        EdgeMode.ZERO, "What reads outside the secondary source give.", configures=True
    )
    primary_source_feature_channel_offset = IntegerProperty(
        0, "The first channel of the primary source that is read; a multiple of 4.", multiple_of=4, configures=True
    )
    secondary_source_feature_channel_offset = IntegerProperty(
        0, "The same for the secondary source.", multiple_of=4, configures=True
    )
    primary_source_feature_channel_max_count = IntegerProperty(
        MAXIMUM, "The largest number of channels of the primary source that are read.", minimum=1, configures=True
    )
    secondary_source_feature_channel_max_count = IntegerProperty(
        MAXIMUM, "The same for the secondary source.", minimum=1, configures=True
    )
    primary_stride_in_pixels_x = IntegerProperty(1, "Stride along x in the primary source.", minimum=1)
    primary_stride_in_pixels_y = IntegerProperty(1, "Stride along y in the primary source.", minimum=1)
    secondary_stride_in_pixels_x = IntegerProperty(1, "Stride along x in the secondary source.", minimum=1)
    secondary_stride_in_pixels_y = IntegerProperty(1, "Stride along y in the secondary source.", minimum=1)

    @property
    def primary_kernel_width(self) -> int:
        return self._window[0]

    @property
    def primary_kernel_height(self) -> int:
        return self._window[1]

    @property
    def secondary_kernel_width(self) -> int:
        return self._window[0]

    @property
    def secondary_kernel_height(self) -> int:
        return self._window[1]

    @property
    def primary_dilation_rate_x(self) -> int:
        return self._window[4]

    @property
    def primary_dilation_rate_y(self) -> int:
        return self._window[5]

    @property
    def secondary_dilation_rate_x(self) -> int:
        return self._window[4]

    @property
    def secondary_dilation_rate_y(self) -> int:
        return self._window[5]

    def _channels_of(self, image: Image, which: str) -> int:
        first = getattr(self, f"{which}_source_feature_channel_offset")
        available = image.feature_channels - first
        if available <= 0:
            raise GeometryError(
                f"{type(self).__name__}: {which}_source_feature_channel_offset is {first} but that image has "
                f"{image.feature_channels} feature channels"
            )
        return min(available, getattr(self, f"{which}_source_feature_channel_max_count"))


class GradientKernel(BinaryKernel):
    """A kernel that computes the gradient of a forward kernel. Source: ``MPSCNNGradientKernel``.

    The primary source is the incoming gradient (with respect to the forward result), the secondary the forward source
    image; the result is the gradient with respect to the forward source and has its extents. It is overwritten, never
    accumulated.
    """

    forward_kernels: ClassVar[tuple[str, ...]] = ()
    """Names of the forward kernels whose states this kernel takes."""

    kernel_offset_x = IntegerProperty(
        0,
        "With primary_offset: the window's position on the gradient after zeros are inserted for the stride.",
        minimum=None,
        configures=True,
    )
    kernel_offset_y = IntegerProperty(0, "The same along y.", minimum=None, configures=True)

    def _configure_from(self, state: GradientState) -> None:
        snapshot = state.snapshot
        self._configure(
            primary_offset=Offset(),
            secondary_offset=Offset(),
            primary_edge_mode=EdgeMode.ZERO,
            secondary_edge_mode=snapshot.edge_mode,
            clip_rect=self._whole_forward_source(snapshot),
            destination_feature_channel_offset=snapshot.source_feature_channel_offset,
            primary_source_feature_channel_offset=snapshot.destination_feature_channel_offset,
            primary_source_feature_channel_max_count=MAXIMUM,
            secondary_source_feature_channel_offset=snapshot.source_feature_channel_offset,
            secondary_source_feature_channel_max_count=snapshot.source_feature_channel_max_count,
            kernel_offset_x=0,
            kernel_offset_y=0,
        )
        self._configure_geometry(snapshot)

    @staticmethod
    def _whole_forward_source(snapshot: ForwardSnapshot) -> Region:
        """All pixels of the images that the forward kernel read."""
        if snapshot.offset.z == 0 and snapshot.images == snapshot.source.number_of_images:
            return NO_CLIP
        return Region(Origin(0, 0, snapshot.offset.z), Size(MAXIMUM, MAXIMUM, snapshot.images))

    def _configure_geometry(self, snapshot: ForwardSnapshot) -> None:
        """The part of the configuration that depends on the family. Here that of pointwise kernels.

        Pixel ``p`` of the source belongs to pixel ``p - offset + clip origin`` of the forward result.
        """
        origin, offset = snapshot.clip_rect.origin, snapshot.offset
        self._configure(
            primary_offset=Offset(origin.x - offset.x, origin.y - offset.y, origin.z),
            secondary_offset=Offset(0, 0, offset.z),
        )

    def _pointwise_gradient(self, layout: tuple[int, ...], state: Any) -> tuple[tuple[int, ...], int, int]:
        """The gradient's ``layout`` cut to what the forward encode produced, and where destination pixel 0 lies in it.

        For kernels without a window: destination pixel ``(x, y)`` takes gradient pixel ``(x + dx, y + dy)`` of the cut
        layout, and 0 where that lies outside it.
        """
        clip_rect = state.snapshot.clip_rect
        origin = clip_rect.origin
        return (
            clip_layout(layout, clip_rect),
            self.primary_offset.x - origin.x,
            self.primary_offset.y - origin.y,
        )

    def _primary_channels(self, secondary_channels: int) -> int:
        """Channels of the incoming gradient that belong to ``secondary_channels`` of the source."""
        return secondary_channels

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        """Checks that only the concrete kernel can make."""

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        """Adds the dispatches of one encode; ``regions.sources`` are the layouts of gradient and source."""
        raise NotImplementedError

    # objc: -destinationImageDescriptorForSourceImages:sourceStates:
    def destination_image_descriptor(
        self, source_images: Sequence[Image], source_states: Sequence[State] | None = None
    ) -> ImageDescriptor:
        """The descriptor of the gradient for ``[source_gradient, source_image]`` and ``[gradient_state]``.

        The state sets this kernel's offsets, edge modes and channel ranges, and the size: that of the forward source.
        """
        owner = type(self).__name__
        images = list(source_images)
        if len(images) != 2:
            raise FormatError(f"{owner}: source_images has {len(images)} elements; it has to be [gradient, source image]")
        source_gradient, source_image = images
        descriptor = source_image.descriptor
        states = list(source_states or ())
        for state in states:
            self._require_gradient_state(state, source_image)
            descriptor = state.destination_image_descriptor(images, states, self, descriptor)  # type: ignore[attr-defined]
        if self._is_custom():
            descriptor = self.padding.destination_image_descriptor(  # type: ignore[attr-defined]
                images, states, self, descriptor
            )
        return descriptor

    # objc: -encodeToCommandBuffer:sourceGradient:sourceImage:gradientState:
    # objc: -encodeToCommandBuffer:sourceGradient:sourceImage:gradientState:destinationGradient:
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        gradient_state: Any,
        *,
        destination_gradient: Image | None = None,
    ) -> Any:
        """Adds the gradient's work to ``command_buffer``.

        ``gradient_state`` is the state of the forward encode that read ``source_image``. Without
        ``destination_gradient`` the state configures the kernel, and the result, of the size of the forward source, is
        allocated and returned. With it the kernel's own properties are used if any was set by hand (else the state's),
        and None is returned.

        Raises ``GeometryError``, ``FormatError`` or ``StateError`` before anything is dispatched.
        """
        self._require_images(
            command_buffer, {"source_gradient": source_gradient, "source_image": source_image}, None
        )
        self._require_gradient_state(gradient_state, source_image)
        if destination_gradient is not None:
            if not self._configured_by_hand:
                gradient_state.destination_image_descriptor(
                    [source_gradient, source_image], [gradient_state], self, source_image.descriptor
                )
            self._run(command_buffer, source_gradient, source_image, gradient_state, destination_gradient)
            return None
        descriptor = self.destination_image_descriptor([source_gradient, source_image], [gradient_state])
        self._validate(source_gradient, source_image, gradient_state)
        self._require_gradient_size(source_gradient, gradient_state)
        destination = self.destination_image_allocator.image(command_buffer, descriptor, self)
        snapshot = gradient_state.snapshot
        if snapshot.source_channels < descriptor.feature_channels or snapshot.images < descriptor.number_of_images:
            fill_with_zeros(command_buffer, destination)
        self._run(command_buffer, source_gradient, source_image, gradient_state, destination)
        return destination

    # objc: -encodeBatchToCommandBuffer:sourceGradients:sourceImages:gradientStates:
    # objc: -encodeBatchToCommandBuffer:sourceGradients:sourceImages:gradientStates:destinationGradients:
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[Image],
        source_images: Sequence[Image],
        gradient_states: Sequence[State],
        *,
        destination_gradients: Sequence[Image] | None = None,
    ) -> Any:
        """``encode`` for batches of images of one image each; batches made of one image are encoded at once."""
        owner = type(self).__name__
        gradients = _batch(owner, "source_gradients", source_gradients)
        sources = _batch(owner, "source_images", source_images, len(gradients))
        states = _state_batch(owner, "gradient_states", gradient_states, len(gradients))
        gradient, source, state = gradients.whole, sources.whole, states.whole
        joined = gradient is not None and source is not None and state is not None
        if destination_gradients is None:
            if joined:
                result = self.encode(command_buffer, gradient, source, state)  # type: ignore[arg-type]
                return None if result is None else result.batch_representation()
            states._count_repeats_once()
            results = [
                self.encode(command_buffer, g, s, t) for g, s, t in zip(gradients, sources, states, strict=True)
            ]
            return None if results[0] is None else ImageBatch(results)
        destinations = _batch(owner, "destination_gradients", destination_gradients, len(gradients))
        destination = destinations.whole
        if joined and destination is not None:
            self.encode(command_buffer, gradient, source, state, destination_gradient=destination)  # type: ignore[arg-type]
            return None
        states._count_repeats_once()
        for g, s, t, d in zip(gradients, sources, states, destinations, strict=True):
            self.encode(command_buffer, g, s, t, destination_gradient=d)
        return None

    def _require_gradient_state(self, state: Any, source_image: Image) -> None:
        owner = type(self).__name__
        if isinstance(state, StateBatch):
            raise FormatError(f"{owner}: gradient_state is a StateBatch; encode_batch takes batches")
        if not isinstance(state, GradientState):
            raise FormatError(
                f"{owner}: gradient_state is {type(state).__name__}; it has to be the GradientState of the forward encode"
            )
        snapshot = state.snapshot
        if snapshot.kernel not in self.forward_kernels:
            raise StateError(
                f"{owner}: gradient_state was made by {snapshot.kernel}; it has to be made by "
                f"{' or '.join(self.forward_kernels)}"
            )
        if state.device is not self.device:
            raise StateError(f"{owner}: gradient_state is on {state.device.identifier} but the kernel on "
                             f"{self.device.identifier}")
        state._require_readable(owner, "gradient_state")
        forward = self._forward_image(snapshot)
        if forward.shape[1:] != source_image.shape[1:]:
            raise GeometryError(
                f"{owner}: source_image is {source_image.descriptor.shape_text} but gradient_state was made for "
                f"{forward.shape_text}"
            )

    def _forward_image(self, snapshot: ForwardSnapshot) -> ImageDescriptor:
        """The forward image that is this kernel's ``source_image``: the forward source."""
        return snapshot.source

    def _require_gradient_size(self, source_gradient: Image, state: Any) -> None:
        """Raises ``GeometryError`` unless the gradient has the extents of the forward result."""
        forward = state.snapshot.destination
        if source_gradient.shape[1:] != forward.shape[1:]:
            source = state.snapshot.source
            raise GeometryError(
                f"{type(self).__name__}: source_gradient is {source_gradient.descriptor.shape_text} but "
                f"{state.snapshot.kernel} of a {source.shape_text} source {self._describe_window()}gives "
                f"{forward.shape_text}"
            )

    def _describe_window(self) -> str:
        width, height, stride_x, stride_y, dilation_x, dilation_y = self._window
        if (width, height, stride_x, stride_y) == (1, 1, 1, 1):
            return ""
        stride = f"{stride_x}" if stride_x == stride_y else f"{stride_x}x{stride_y}"
        text = f"with a {width}x{height} window and stride {stride}"
        if (dilation_x, dilation_y) != (1, 1):
            text += f" and dilation {dilation_x}x{dilation_y}"
        return text + " "

    def _run(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        state: Any,
        destination: Image,
    ) -> None:
        owner = type(self).__name__
        self._require_images(
            command_buffer,
            {
                "source_gradient": source_gradient,
                "source_image": source_image,
                "destination_gradient": destination,
            },
            written=destination,
        )
        if destination is source_gradient or destination is source_image:
            raise GeometryError(f"{owner}: destination_gradient is one of the sources; it may not alias them")
        self._validate(source_gradient, source_image, state)
        if self.secondary_edge_mode not in self.supported_edge_modes:
            raise NotImplementedError(
                f"{owner}: secondary_edge_mode is {self.secondary_edge_mode.name}; it supports ZERO and CLAMP"
            )
        channels = self._channels_of(source_image, "secondary")
        wanted = self._primary_channels(channels)
        have = self._channels_of(source_gradient, "primary")
        if have < wanted:
            raise GeometryError(
                f"{owner}: source_gradient has {have} feature channels from channel "
                f"{self.primary_source_feature_channel_offset} on but the source needs {wanted}"
            )
        first_gradient, first_source = self.primary_offset.z, self.secondary_offset.z
        available = min(
            source_gradient.number_of_images - first_gradient, source_image.number_of_images - first_source
        )
        if available <= 0:
            raise GeometryError(
                f"{owner}: the first images are {first_gradient} of {source_gradient.number_of_images} gradients and "
                f"{first_source} of {source_image.number_of_images} sources"
            )
        layout, width, height, images = self._destination_region(destination, channels, available)
        if width and height and images:
            regions = Regions(
                (
                    source_layout(
                        source_gradient, self.primary_source_feature_channel_offset, wanted, first_gradient, images
                    ),
                    source_layout(
                        source_image, self.secondary_source_feature_channel_offset, channels, first_source, images
                    ),
                ),
                layout,
                width,
                height,
                images,
            )
            self._dispatch(command_buffer, source_gradient, source_image, destination, regions, state)
        destination._written_by(command_buffer)
        for item in {id(i): i for i in (source_gradient, source_image)}.values():
            item._read_once()
        state._read_once()


def _batch(owner: str, argument: str, images: Any, count: int | None = None) -> ImageBatch:
    if isinstance(images, Image) or not isinstance(images, Sequence):
        raise FormatError(f"{owner}: {argument} is {type(images).__name__}; it has to be an ImageBatch or a list of images")
    batch = images if isinstance(images, ImageBatch) else ImageBatch(images)
    if count is not None and len(batch) != count:
        raise GeometryError(f"{owner}: {argument} has {len(batch)} images but the batch has {count}")
    return batch


def _state_batch(owner: str, argument: str, states: Any, count: int) -> StateBatch:
    if isinstance(states, State) or not isinstance(states, Sequence):
        raise FormatError(f"{owner}: {argument} is {type(states).__name__}; it has to be a StateBatch or a list of states")
    batch = states if isinstance(states, StateBatch) else StateBatch(states)
    if len(batch) != count:
        raise GeometryError(f"{owner}: {argument} has {len(batch)} states but the batch has {count} images")
    return batch


