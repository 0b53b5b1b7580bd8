"""``GradientKernel``: the base of kernels that compute the gradient of a forward kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, overload

from mpsgrad.batch_arguments import require_batch, require_state_batch
from mpsgrad.binary_kernel import BinaryKernel
from mpsgrad.command import CommandBuffer
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.fill import fill_with_zeros
from mpsgrad.geometry import MAXIMUM, NO_CLIP, EdgeMode, Offset, Origin, Region, Size
from mpsgrad.image import Image, ImageBatch, ImageDescriptor
from mpsgrad.kernel_property import PositionProperty
from mpsgrad.read_counts import count_repeats_once, read_once
from mpsgrad.regions import Regions, clip_layout, source_layout
from mpsgrad.state import BinaryGradientState, ForwardSnapshot, GradientState, State, StateBatch


class GradientKernel(BinaryKernel):
    """A kernel that computes the gradient of a forward kernel. Source: ``MPSCNNGradientKernel``.

    The primary source is the incoming gradient (with respect to the forward result), the secondary the forward source
    image; the result is the gradient with respect to the forward source and has its extents. It is overwritten, never
    accumulated. Gradient pixels that the forward kernel did not produce, outside its clip rectangle or the image, count
    as 0: MPS does not say what they are.
    """

    source_names = ("source_gradient", "source_image")

    forward_kernels: ClassVar[tuple[str, ...]] = ()
    """Names of the forward kernels whose states this kernel takes."""

    kernel_offset_x = PositionProperty(
        "With primary_offset: the window's position on the gradient after zeros are inserted for the stride."
    )
    kernel_offset_y = PositionProperty("The same along y.")

    properties_without_use: ClassVar[tuple[str, ...]] = ("primary_edge_mode", "kernel_offset_x", "kernel_offset_y")
    strides_of_forward_kernel: ClassVar[tuple[str, ...]] = ("primary", "secondary")
    """For which sources the strides may be set to what the forward kernel has, without effect, and to nothing else."""
    offsets_of_images: ClassVar[tuple[str, ...]] = ()
    """Names of offsets that only choose the first image: the encode is for all of its pixels."""

    reads_secondary_edge_mode: ClassVar[bool] = False
    """Whether ``secondary_edge_mode`` has an effect; else it has to be ZERO or the forward kernel's."""

    takes_binary_states: ClassVar[bool] = False
    """Whether the forward kernels have two sources, and so states that are a ``BinaryGradientState``."""

    def _configure_from(self, state: Any) -> None:
        snapshot = self._snapshot_of(state)
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
        written = snapshot.destination.number_of_images - snapshot.clip_rect.origin.z
        if snapshot.offset.z == 0 and snapshot.images == snapshot.source.number_of_images == written:
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
        clip_rect = self._snapshot_of(state).clip_rect
        origin = clip_rect.origin
        return (
            clip_layout(layout, clip_rect),
            self.primary_offset.x - origin.x,
            self.primary_offset.y - origin.y,
        )

    def _make_state(self, *arguments: Any, **_: Any) -> None:
        """Gradients of gradient kernels do not exist, so there is no state for one."""
        return None

    def _primary_channels(self, secondary_channels: int) -> int:
        """Channels of the incoming gradient that belong to ``secondary_channels`` of the source."""
        return secondary_channels

    def _channel_counts(self, source_image: Image, state: Any) -> tuple[int, int, int]:
        """How many channels of the source and of the incoming gradient are read, and how many are written."""
        channels = self._channels_of(source_image, "secondary")
        return channels, self._primary_channels(channels), channels

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        """Checks that only the concrete kernel can make."""

    # objc: -destinationImageDescriptorForSourceImages:sourceStates:
    def destination_image_descriptor(
        self, source_images: Sequence[Image], source_states: Sequence[State] | None = None
    ) -> ImageDescriptor:
        """The descriptor of the gradient for ``[source_gradient, source_image]`` and ``[gradient_state]``.

        The state sets this kernel's offsets, edge modes and channel ranges, and the size: that of the forward source.
        """
        images = self._list_of_sources(source_images)
        source_image = images[1]
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
    @overload  # type: ignore[override]
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        gradient_state: Any,
    ) -> Image: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        gradient_state: Any,
        *,
        destination_gradient: Image,
    ) -> None: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        gradient_state: Any,
        *,
        destination_gradient: Image | None = None,
    ) -> Any: ...

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
        sources = (source_gradient, source_image)
        key = self._encode_key(command_buffer, sources, destination_gradient, gradient_state)
        remembered = self._recall(key)
        if remembered is not None:
            made = self._encode_again(remembered, command_buffer, sources, destination_gradient, gradient_state)
            read_once((source_gradient, source_image, gradient_state))
            return made if destination_gradient is None else None
        self._require_images(
            command_buffer, {"source_gradient": source_gradient, "source_image": source_image}, None
        )
        start = command_buffer._position()
        self._require_gradient_state(gradient_state, source_image)
        if destination_gradient is not None:
            if not self._configured_by_hand:
                gradient_state.destination_image_descriptor(
                    [source_gradient, source_image], [gradient_state], self, source_image.descriptor
                )
                self._require_gradient_size(source_gradient, gradient_state)
            regions = self._run(command_buffer, *sources, gradient_state, destination_gradient)
            images = (*sources, destination_gradient)
            descriptor = destination_gradient.descriptor
            self._remember(key, command_buffer, start, images, gradient_state, descriptor, regions)
            return None
        descriptor = self.destination_image_descriptor([source_gradient, source_image], [gradient_state])
        self._validate(source_gradient, source_image, gradient_state)
        self._require_gradient_size(source_gradient, gradient_state)
        destination = self._new_image(command_buffer, descriptor)
        snapshot = self._snapshot_of(gradient_state)
        with command_buffer._all_or_nothing():
            if snapshot.source_channels < descriptor.feature_channels or snapshot.images < descriptor.number_of_images:
                fill_with_zeros(command_buffer, destination)
            regions = self._run(command_buffer, *sources, gradient_state, destination)
        self._remember(key, command_buffer, start, (*sources, destination), gradient_state, descriptor, regions)
        return destination

    # objc: -encodeBatchToCommandBuffer:sourceGradients:sourceImages:gradientStates:
    # objc: -encodeBatchToCommandBuffer:sourceGradients:sourceImages:gradientStates:destinationGradients:
    @overload  # type: ignore[override]
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[Image],
        source_images: Sequence[Image],
        gradient_states: Sequence[State],
    ) -> ImageBatch: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[Image],
        source_images: Sequence[Image],
        gradient_states: Sequence[State],
        *,
        destination_gradients: Sequence[Image],
    ) -> None: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[Image],
        source_images: Sequence[Image],
        gradient_states: Sequence[State],
        *,
        destination_gradients: Sequence[Image] | None = None,
    ) -> Any: ...

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
        gradients = require_batch(owner, "source_gradients", source_gradients)
        sources = require_batch(owner, "source_images", source_images, len(gradients))
        states = require_state_batch(owner, "gradient_states", gradient_states, len(gradients))
        gradient, source, state = gradients.whole, sources.whole, states.whole
        joined = gradient is not None and source is not None and state is not None
        if destination_gradients is None:
            if joined:
                result = self.encode(command_buffer, gradient, source, state)  # type: ignore[arg-type]
                return None if result is None else result.batch_representation()
            self._require_command_buffer(command_buffer, "encode_batch")
            with command_buffer._all_or_nothing():
                count_repeats_once(zip(gradients, sources, states, strict=True))
                results = [
                    self.encode(command_buffer, g, s, t) for g, s, t in zip(gradients, sources, states, strict=True)
                ]
            return None if results[0] is None else ImageBatch(results)
        destinations = require_batch(owner, "destination_gradients", destination_gradients, len(gradients))
        destination = destinations.whole
        if joined and destination is not None and (not self._configured_by_hand or self._takes_all_images()):
            self.encode(command_buffer, gradient, source, state, destination_gradient=destination)  # type: ignore[arg-type]
            return None
        self._require_command_buffer(command_buffer, "encode_batch")
        with command_buffer._all_or_nothing():
            count_repeats_once(zip(gradients, sources, states, strict=True))
            for g, s, t, d in zip(gradients, sources, states, destinations, strict=True):
                self.encode(command_buffer, g, s, t, destination_gradient=d)
        return None

    def _require_gradient_state(self, state: Any, source_image: Image) -> None:
        owner = type(self).__name__
        if isinstance(state, StateBatch):
            raise FormatError(f"{owner}: gradient_state is a StateBatch; encode_batch takes batches")
        kind = BinaryGradientState if self.takes_binary_states else GradientState
        if not isinstance(state, kind):
            raise FormatError(
                f"{owner}: gradient_state is {type(state).__name__}; it has to be the {kind.__name__} of the forward "
                "encode"
            )
        snapshot = self._snapshot_of(state)
        if snapshot.kernel not in self.forward_kernels:
            raise StateError(
                f"{owner}: gradient_state was made by {snapshot.kernel}; it has to be made by "
                f"{' or '.join(self.forward_kernels)}"
            )
        if state.device is not self.device:
            raise StateError(
                f"{owner}: gradient_state is on {state.device.identifier} but the kernel on {self.device.identifier}"
            )
        forward = self._expected_source(state)
        if forward.shape[1:] != source_image.shape[1:]:
            raise GeometryError(
                f"{owner}: source_image is {source_image.descriptor.shape_text} but gradient_state was made for "
                f"{forward.shape_text}"
            )

    def _expected_source(self, state: Any) -> ImageDescriptor:
        """The forward image of ``state`` that is this kernel's ``source_image``."""
        return self._forward_image(self._snapshot_of(state))

    def _forward_image(self, snapshot: ForwardSnapshot) -> ImageDescriptor:
        """The forward image that is this kernel's ``source_image``: the forward source."""
        return snapshot.source

    def _require_gradient_size(self, source_gradient: Image, state: Any) -> None:
        """Raises ``GeometryError`` unless the gradient has the extents of the forward result."""
        snapshot = self._snapshot_of(state)
        forward = snapshot.destination
        if source_gradient.shape[1:] != forward.shape[1:]:
            source = snapshot.source
            raise GeometryError(
                f"{type(self).__name__}: source_gradient is {source_gradient.descriptor.shape_text} but "
                f"{snapshot.kernel} of a {source.shape_text} source {self._describe_window()}gives "
                f"{forward.shape_text}"
            )

    def _require_whole_destination(self, regions: Regions, source_image: Image) -> None:
        """Raises ``GeometryError`` unless as many pixels are written as the forward source has."""
        if (regions.width, regions.height) != (source_image.width, source_image.height):
            raise GeometryError(
                f"{type(self).__name__}: the destination is {regions.width} wide and {regions.height} high but "
                f"source_image is {source_image.width} x {source_image.height}"
            )

    def _require_defaults(self) -> None:
        super()._require_defaults()
        owner = type(self).__name__
        for source in self.strides_of_forward_kernel:
            for axis, own in zip("xy", self._window[2:4], strict=True):
                name = f"{source}_stride_in_pixels_{axis}"
                stride = getattr(self, name)
                if stride not in (1, own):
                    raise NotImplementedError(f"{owner}: {name} is {stride}; the forward kernel's, {own}, is used")
        for name in self.offsets_of_images:
            offset = getattr(self, name)
            if offset[:2] != (0, 0):
                raise NotImplementedError(f"{owner}: {name} is {tuple(offset)}; x and y have to be 0")

    def _require_edge_mode_of_forward_kernel(self, state: Any) -> None:
        mode = self.secondary_edge_mode
        if mode is EdgeMode.ZERO or self.reads_secondary_edge_mode:
            return
        forward = self._source_snapshot(state).edge_mode
        if mode is not forward:
            raise NotImplementedError(
                f"{type(self).__name__}: secondary_edge_mode is {mode.name}; the forward kernel's, {forward.name}, is "
                "used"
            )

    def _source_snapshot(self, state: Any) -> ForwardSnapshot:
        """What ``state`` holds of the forward image that is this kernel's ``source_image``."""
        return self._snapshot_of(state)

    def _describe_window(self) -> str:
        width, height, stride_x, stride_y, dilation_x, dilation_y = self._window
        if (width, height, stride_x, stride_y) == (1, 1, 1, 1):
            return ""
        stride = f"{stride_x}" if stride_x == stride_y else f"{stride_x}x{stride_y}"
        text = f"with a {width}x{height} window and stride {stride}"
        if (dilation_x, dilation_y) != (1, 1):
            text += f" and dilation {dilation_x}x{dilation_y}"
        return text + " "

    def _gradient_regions(
        self, source_gradient: Image, source_image: Image, destination: Image, state: Any
    ) -> Regions | None:
        """What the encode reads and writes, or None if that is nothing; raises ``GeometryError`` if it does not fit."""
        owner = type(self).__name__
        channels, wanted, written = self._channel_counts(source_image, state)
        gradient_channel = self.primary_source_feature_channel_offset
        source_channel = self.secondary_source_feature_channel_offset
        have = self._channels_of(source_gradient, "primary")
        if have < wanted:
            raise GeometryError(
                f"{owner}: source_gradient has {have} feature channels from channel {gradient_channel} on but the "
                f"source needs {wanted}"
            )
        gradients = self._images_from(source_gradient, "primary_offset", "source_gradient")
        sources = self._images_from(source_image, "secondary_offset", "source_image")
        if gradients != sources and self.clip_rect.size.depth == MAXIMUM:
            raise GeometryError(
                f"{owner}: source_image has {sources} images from its first one on but source_gradient {gradients}; "
                "clip_rect.size.depth says how many to process"
            )
        layout, width, height, images = self._destination_region(destination, written, min(gradients, sources))
        if not (width and height and images):
            return None
        gradient_layout = source_layout(source_gradient, gradient_channel, wanted, self.primary_offset.z, images)
        source = source_layout(source_image, source_channel, channels, self.secondary_offset.z, images)
        return Regions((gradient_layout, source), layout, width, height, images)

    def _run(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        state: Any,
        destination: Image,
    ) -> Regions | None:
        self._require_usable(command_buffer, "gradient_state", state)
        self._require_images(
            command_buffer,
            {
                "source_gradient": source_gradient,
                "source_image": source_image,
                "destination_gradient": destination,
            },
            written=destination,
        )
        self._require_defaults()
        self._validate(source_gradient, source_image, state)
        self._require_edge_mode("secondary_edge_mode")
        self._require_edge_mode_of_forward_kernel(state)
        regions = self._gradient_regions(source_gradient, source_image, destination, state)
        if regions is not None:
            self._begin_encode(command_buffer, state)
            self._dispatch(command_buffer, source_gradient, source_image, destination, regions, state)
            self._note_encode(command_buffer, state, regions)
        destination._written_by(command_buffer)
        read_once((source_gradient, source_image, state))
        return regions
