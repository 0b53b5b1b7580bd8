"""``BinaryKernel``: the base of kernels with two source images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Literal, overload

from mpsgrad.command import CommandBuffer
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.forward_kernel import ForwardKernel
from mpsgrad.geometry import MAXIMUM, EdgeMode, Offset
from mpsgrad.image import Image, ImageBatch, ImageDescriptor
from mpsgrad.kernel_property import EdgeModeProperty, IntegerProperty, OffsetProperty
from mpsgrad.padding import forward_size_and_offset
from mpsgrad.regions import Regions, require_reach, source_layout
from mpsgrad.state import BinaryGradientState, ForwardSnapshot, State, StateBatch, StateType


class BinaryKernel(ForwardKernel, Generic[StateType]):
    """A kernel with two source images, the primary and the secondary. Source: ``MPSCNNBinaryKernel``.

    For each source pixel ``i`` of the clip rectangle reads, with that source's offset and stride, what it does for a
    ``Kernel``. A stride of 0 keeps reading at the offset, which spreads a source over the result.
    """

    source_names = ("primary_image", "secondary_image")

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
    primary_stride_in_pixels_x = IntegerProperty(1, "Stride along x in the primary source.")
    primary_stride_in_pixels_y = IntegerProperty(1, "Stride along y in the primary source.")
    secondary_stride_in_pixels_x = IntegerProperty(1, "Stride along x in the secondary source.")
    secondary_stride_in_pixels_y = IntegerProperty(1, "Stride along y in the secondary source.")

    @property
    def primary_kernel_width(self) -> int:
        """Columns of the window over the primary source."""
        return self._window[0]

    @property
    def primary_kernel_height(self) -> int:
        """Rows of the window over the primary source."""
        return self._window[1]

    @property
    def secondary_kernel_width(self) -> int:
        """Columns of the window over the secondary source."""
        return self._window[0]

    @property
    def secondary_kernel_height(self) -> int:
        """Rows of the window over the secondary source."""
        return self._window[1]

    @property
    def primary_dilation_rate_x(self) -> int:
        """Pixels from one column of that window to the next."""
        return self._window[4]

    @property
    def primary_dilation_rate_y(self) -> int:
        """Pixels from one row of that window to the next."""
        return self._window[5]

    @property
    def secondary_dilation_rate_x(self) -> int:
        """Pixels from one column of that window to the next."""
        return self._window[4]

    @property
    def secondary_dilation_rate_y(self) -> int:
        """Pixels from one row of that window to the next."""
        return self._window[5]

    def _window_of(self, which: str) -> tuple[int, int, int, int, int, int]:
        """The window over the primary or the secondary source, in the order of ``_window``."""
        names = (
            "kernel_width",
            "kernel_height",
            "stride_in_pixels_x",
            "stride_in_pixels_y",
            "dilation_rate_x",
            "dilation_rate_y",
        )
        return tuple(getattr(self, f"{which}_{name}") for name in names)  # type: ignore[return-value]

    def _channels_of(self, image: Image, which: str) -> int:
        return self._channels_in_use(image, f"{which}_source")

    def _destination_channels(self, primary_channels: int, secondary_channels: int) -> int:
        """How many channels are produced from those of the sources."""
        return primary_channels

    # objc: -destinationImageDescriptorForSourceImages:sourceStates:
    def destination_image_descriptor(
        self, source_images: Sequence[Image], source_states: Sequence[State] | None = None
    ) -> ImageDescriptor:
        """The descriptor of the result for ``[primary image, secondary image]``; sets both offsets for it.

        Applies ``padding`` to each source whose stride is not 0, then the kernel's own rule, then each source state,
        then a custom policy. The result has the primary source's channel format. Raises ``GeometryError`` if the two
        sources give results of different sizes or numbers of images.
        """
        sources = self._list_of_sources(source_images)
        primary, secondary = sources
        channels = self._destination_channels(
            self._channels_of(primary, "primary"), self._channels_of(secondary, "secondary")
        )
        images = self._images_from(primary, "primary_offset", "primary_image")
        others = self._images_from(secondary, "secondary_offset", "secondary_image")
        if images != others:
            raise GeometryError(
                f"{type(self).__name__}: primary_image has {images} images from its first one on but secondary_image "
                f"{others}"
            )
        width, height = self._size_along("x", primary, secondary), self._size_along("y", primary, secondary)
        descriptor = ImageDescriptor(primary.channel_format, width, height, channels, images)
        return self._negotiate(sources, source_states, self._adjust_descriptor(primary, secondary, descriptor))

    def _size_along(self, axis: str, primary: Image, secondary: Image) -> int:
        """The extent that the padding policy gives the result; sets that coordinate of both offsets."""
        owner = type(self).__name__
        sizes = []
        for which, image in (("primary", primary), ("secondary", secondary)):
            window = self._window_of(which)
            taps, stride, dilation = window[0::2] if axis == "x" else window[1::2]
            pixels = image.width if axis == "x" else image.height
            start = 0
            if stride:
                extent = (taps - 1) * dilation + 1
                size, start = forward_size_and_offset(
                    owner, axis, self.padding.padding_method, pixels, extent, stride
                )
                sizes.append(size)
            offset = getattr(self, f"{which}_offset")
            self._configure(**{f"{which}_offset": offset._replace(**{axis: start})})
        if len(set(sizes)) > 1:
            raise GeometryError(
                f"{owner}: the result has {sizes[0]} pixels along {axis} for the primary_image of "
                f"{primary.descriptor.shape_text} but {sizes[1]} for the secondary_image of "
                f"{secondary.descriptor.shape_text}"
            )
        return sizes[0] if sizes else 1

    def _adjust_descriptor(self, primary: Image, secondary: Image, descriptor: ImageDescriptor) -> ImageDescriptor:
        """The kernel's own say in the result's descriptor and its offsets."""
        return descriptor

    # objc: -resultStateForPrimaryImage:secondaryImage:sourceStates:destinationImage:
    def result_state(
        self,
        primary_image: Image,
        secondary_image: Image,
        *,
        source_states: Sequence[State] | None = None,
        destination_image: Image,
    ) -> StateType:
        """The state that an encode of the two sources to ``destination_image`` fills, or None if there is none.

        It holds a copy of the properties as they are now.
        """
        self._require_instances(
            primary_image=primary_image, secondary_image=secondary_image, destination_image=destination_image
        )
        return self._make_state(primary_image, secondary_image, destination_image, None)

    # objc: -resultStateBatchForPrimaryImage:secondaryImage:sourceStates:destinationImage:
    def result_state_batch(
        self,
        primary_images: Sequence[Image],
        secondary_images: Sequence[Image],
        *,
        source_states: Sequence[State] | None = None,
        destination_images: Sequence[Image],
    ) -> StateBatch | None:
        """One state for each pair of images, or the same one for all if ``is_result_state_reused_across_batch``."""
        return self._result_state_batch((primary_images, secondary_images), destination_images, None)

    # objc: -temporaryResultStateForCommandBuffer:primaryImage:secondaryImage:sourceStates:destinationImage:
    def temporary_result_state(
        self,
        command_buffer: CommandBuffer,
        primary_image: Image,
        secondary_image: Image,
        *,
        source_states: Sequence[State] | None = None,
        destination_image: Image,
    ) -> StateType:
        """As ``result_state``, but a temporary state of ``command_buffer``."""
        self._require_instances(
            primary_image=primary_image, secondary_image=secondary_image, destination_image=destination_image
        )
        return self._make_state(primary_image, secondary_image, destination_image, command_buffer)

    # objc: -temporaryResultStateBatchForCommandBuffer:primaryImage:secondaryImage:sourceStates:destinationImage:
    def temporary_result_state_batch(
        self,
        command_buffer: CommandBuffer,
        primary_images: Sequence[Image],
        secondary_images: Sequence[Image],
        *,
        source_states: Sequence[State] | None = None,
        destination_images: Sequence[Image],
    ) -> StateBatch | None:
        """As ``result_state_batch``, but temporary states of ``command_buffer``."""
        return self._result_state_batch((primary_images, secondary_images), destination_images, command_buffer)

    def _make_state(
        self, primary: Image, secondary: Image, destination: Image, command_buffer: CommandBuffer | None
    ) -> Any:
        first, second = self._shared_snapshots(primary, secondary, destination)
        return BinaryGradientState(first, second, (), self.device, command_buffer=command_buffer)

    def _shared_snapshots(
        self, primary: Image, secondary: Image, destination: Image
    ) -> tuple[ForwardSnapshot, ForwardSnapshot]:
        """The properties as they are now, the same objects as long as neither they nor the images' extents change."""
        return self._made_once(self._snapshots, primary, secondary, destination)

    def _snapshots(
        self, primary: Image, secondary: Image, destination: Image
    ) -> tuple[ForwardSnapshot, ForwardSnapshot]:
        return self._snapshot("primary", primary, destination), self._snapshot("secondary", secondary, destination)

    def _snapshot(self, which: str, source: Image, destination: Image) -> ForwardSnapshot:
        return ForwardSnapshot(
            self.kernel_name,
            getattr(self, f"{which}_offset"),
            self.clip_rect,
            getattr(self, f"{which}_edge_mode"),
            *self._window_of(which),
            getattr(self, f"{which}_source_feature_channel_offset"),
            getattr(self, f"{which}_source_feature_channel_max_count"),
            self.destination_feature_channel_offset,
            source.descriptor,
            destination.descriptor,
        )

    # objc: -encodeToCommandBuffer:primaryImage:secondaryImage:
    # objc: -encodeToCommandBuffer:primaryImage:secondaryImage:destinationImage:
    # objc: -encodeToCommandBuffer:primaryImage:secondaryImage:destinationState:destinationImage:
    # objc: -encodeToCommandBuffer:primaryImage:secondaryImage:destinationState:destinationStateIsTemporary:
    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        primary_image: Image,
        secondary_image: Image,
    ) -> Image: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        primary_image: Image,
        secondary_image: Image,
        *,
        return_state: Literal[True],
        state_is_temporary: bool = False,
    ) -> tuple[Image, StateType]: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        primary_image: Image,
        secondary_image: Image,
        *,
        destination_image: Image,
        destination_state: State | None = None,
    ) -> None: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        primary_image: Image,
        secondary_image: Image,
        *,
        destination_image: Image | None = None,
        destination_state: State | None = None,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any: ...

    def encode(
        self,
        command_buffer: CommandBuffer,
        primary_image: Image,
        secondary_image: Image,
        *,
        destination_image: Image | None = None,
        destination_state: State | None = None,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any:
        """Adds the kernel's work to ``command_buffer``.

        Without ``destination_image`` the padding policy sets both offsets and sizes the result, which is made by
        ``destination_image_allocator`` and returned, with zeros outside ``clip_rect``; with ``return_state`` the pair
        (image, state) is returned. With ``destination_image`` the kernel's offsets are used as they are, the image (and
        ``destination_state``, made by ``result_state``) is filled, and None is returned.

        Raises ``GeometryError``, ``FormatError`` or ``StateError`` before anything is dispatched.
        """
        return self._encode(
            command_buffer,
            (primary_image, secondary_image),
            destination_image,
            destination_state,
            return_state,
            state_is_temporary,
        )

    # objc: -encodeBatchToCommandBuffer:primaryImages:secondaryImages:
    # objc: -encodeBatchToCommandBuffer:primaryImages:secondaryImages:destinationImages:
    # objc: -encodeBatchToCommandBuffer:primaryImages:secondaryImages:destinationStates:destinationImages:
    # objc: -encodeBatchToCommandBuffer:primaryImages:secondaryImages:destinationStates:destinationStateIsTemporary:
    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        primary_images: Sequence[Image],
        secondary_images: Sequence[Image],
    ) -> ImageBatch: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        primary_images: Sequence[Image],
        secondary_images: Sequence[Image],
        *,
        return_state: Literal[True],
        state_is_temporary: bool = False,
    ) -> tuple[ImageBatch, StateBatch | None]: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        primary_images: Sequence[Image],
        secondary_images: Sequence[Image],
        *,
        destination_images: Sequence[Image],
        destination_states: Sequence[State] | None = None,
    ) -> None: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        primary_images: Sequence[Image],
        secondary_images: Sequence[Image],
        *,
        destination_images: Sequence[Image] | None = None,
        destination_states: Sequence[State] | None = None,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any: ...

    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        primary_images: Sequence[Image],
        secondary_images: Sequence[Image],
        *,
        destination_images: Sequence[Image] | None = None,
        destination_states: Sequence[State] | None = None,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any:
        """``encode`` for batches of images of one image each; batches made of one image are encoded at once.

        Returns what ``encode`` returns, as ``ImageBatch`` and ``StateBatch``.
        """
        return self._encode_batch(
            command_buffer,
            (primary_images, secondary_images),
            destination_images,
            destination_states,
            return_state,
            state_is_temporary,
        )

    def _first_images(self) -> set[int]:
        return {self.primary_offset.z, self.secondary_offset.z}

    def _regions(self, sources: Sequence[Image], destination: Image) -> Regions:
        channels, available, layouts = [], [], []
        for image, which, name in zip(sources, ("primary", "secondary"), self.source_names, strict=True):
            self._require_edge_mode(f"{which}_edge_mode")
            channels.append(self._channels_of(image, which))
            available.append(self._images_from(image, f"{which}_offset", name))
        if self.clip_rect.size.depth == MAXIMUM and available[0] != available[1]:
            raise GeometryError(
                f"{type(self).__name__}: primary_image has {available[0]} images from its first one on but "
                f"secondary_image {available[1]}; clip_rect.size.depth says how many to process"
            )
        layout, width, height, images = self._destination_region(
            destination, self._destination_channels(*channels), min(available)
        )
        for image, which, count in zip(sources, ("primary", "secondary"), channels, strict=True):
            require_reach(self, f"{which}_offset", self._window_of(which), width, height)
            first_channel = getattr(self, f"{which}_source_feature_channel_offset")
            first_image = getattr(self, f"{which}_offset").z
            layouts.append(source_layout(image, first_channel, count, first_image, images))
        return Regions(tuple(layouts), layout, width, height, images)

    def _require_state(self, state: Any, primary: Image, secondary: Image, destination: Image) -> None:
        if not isinstance(state, BinaryGradientState):
            raise FormatError(
                f"{type(self).__name__}: destination_state is {type(state).__name__}; it has to be made by result_state"
            )
        if state.device is not self.device:
            raise StateError(
                f"{type(self).__name__}: destination_state is on {state.device.identifier} but the kernel on "
                f"{self.device.identifier}"
            )
        for made, which, name, image in (
            (state.primary, "primary", "primary_image", primary),
            (state.secondary, "secondary", "secondary_image", secondary),
        ):
            self._require_snapshot(made, self._snapshot(which, image, destination), name, image, destination)
