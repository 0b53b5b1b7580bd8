"""``Kernel``: the base of kernels with one source image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Literal, overload

from mpsgrad.command import CommandBuffer
from mpsgrad.errors import FormatError, StateError
from mpsgrad.forward_kernel import ForwardKernel
from mpsgrad.geometry import MAXIMUM, EdgeMode, Offset
from mpsgrad.image import Image, ImageBatch, ImageDescriptor
from mpsgrad.kernel_property import EdgeModeProperty, IntegerProperty, OffsetProperty
from mpsgrad.padding import apply_padding
from mpsgrad.regions import Regions, require_reach, source_layout
from mpsgrad.state import ForwardSnapshot, GradientState, State, StateBatch, StateType
from mpsgrad.window_properties import WindowProperties


class Kernel(WindowProperties, ForwardKernel, Generic[StateType]):
    """A kernel with one source image. Source: ``MPSCNNKernel``.

    For a window of ``k`` taps with dilation ``d`` (extent ``kd = (k - 1) * d + 1``), pixel ``i`` of the clip rectangle
    reads the source pixels ``offset + stride * i - floor(kd / 2) + d * p`` for ``p = 0 .. k - 1``.
    """

    source_names = ("source_image",)

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
    ) -> StateType:
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
    ) -> StateType:
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
        return self._made_once(self._snapshot, source, destination)

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
    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
    ) -> Image: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        *,
        return_state: Literal[True],
        state_is_temporary: bool = False,
    ) -> tuple[Image, StateType]: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        *,
        destination_image: Image,
        destination_state: State | None = None,
    ) -> None: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
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
    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
    ) -> ImageBatch: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        *,
        return_state: Literal[True],
        state_is_temporary: bool = False,
    ) -> tuple[ImageBatch, StateBatch | None]: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        *,
        destination_images: Sequence[Image],
        destination_states: Sequence[State] | None = None,
    ) -> None: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
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
