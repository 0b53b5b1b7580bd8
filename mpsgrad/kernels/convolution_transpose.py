"""Transposed convolution and its gradient."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, overload

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import EdgeMode, Offset
from mpsgrad.image import Image, ImageBatch, ImageDescriptor
from mpsgrad.kernel import (
    BaseKernel,
    PositionProperty,
    Regions,
    clip_layout,
    require_batch,
    require_first_window,
    require_state_batch,
)
from mpsgrad.kernels.convolution import Convolution, ConvolutionGradient
from mpsgrad.kernels.convolution_data_source import ConvolutionDataSource
from mpsgrad.kernels.convolution_dispatch import (
    GradientSums,
    ImagePart,
    Weights,
    add_forward,
    add_gradient_data,
    algorithm_for,
)
from mpsgrad.kernels.convolution_neuron import result_before
from mpsgrad.kernels.convolution_state import ConvolutionGradientState
from mpsgrad.kernels.convolution_transpose_dispatch import add_gradients, add_turning, turned
from mpsgrad.kernels.convolution_weights import _ForwardKernel, _WeightedKernel
from mpsgrad.padding import ExplicitPadding, transposed_size_and_offset
from mpsgrad.state import ForwardSnapshot, GradientState, State, StateBatch


class ConvolutionTransposeGradientState(ConvolutionGradientState):
    """The gradients for the weights and biases of one batch. Source: ``MPSCNNConvolutionTransposeGradientState``."""

    def __init__(
        self,
        convolution_transpose: ConvolutionTranspose,
        snapshot: ForwardSnapshot,
        *,
        command_buffer: CommandBuffer | None = None,
    ) -> None:
        super().__init__(convolution_transpose, snapshot, command_buffer=command_buffer)  # type: ignore[arg-type]
        self.kernel_offset = convolution_transpose.kernel_offset_x, convolution_transpose.kernel_offset_y
        self.coupled_with: Convolution | None = None

    @property
    def convolution_transpose(self) -> ConvolutionTranspose:
        """The kernel that made the state."""
        return self.made_by  # type: ignore[return-value]

    @property
    def convolution(self) -> Convolution | None:  # type: ignore[override]
        """The convolution that the transposed one undoes, or None if the encode was not given the state of one."""
        return self.coupled_with

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        return (super()._encode_key(kernel), self.kernel_offset)


def _is_of_convolution(state: Any) -> bool:
    return isinstance(state, ConvolutionGradientState) and not isinstance(state, ConvolutionTransposeGradientState)


class _TurnedWeights(_WeightedKernel):
    """The weights as they are, and as those of the ordinary convolution whose data gradient the kernel computes."""

    _turned: Buffer

    def _weights_and_biases_of_results(self, weights: np.ndarray) -> tuple[Buffer, Buffer]:
        _, biases = super()._weights_and_biases_of_results(weights)
        array = turned(self._descriptor, weights)
        self._turned = self.device.allocate(array.nbytes)
        self._turned.write(array.view(np.uint8))
        return self._turned, biases

    def _parameters_changed(self, command_buffer: CommandBuffer) -> None:
        add_turning(command_buffer, self._descriptor, self._parameters.resource(0), self._turned)
        super()._parameters_changed(command_buffer)

    def _encode_buffers(self) -> Mapping[Any, Buffer]:
        return {**super()._encode_buffers(), "turned": self._turned}

    def _encode_buffer(self, name: Any, command_buffer: CommandBuffer) -> Buffer:
        if name == "turned":
            return self._turned
        return super()._encode_buffer(name, command_buffer)

    def _turned_weights(self, image: Image, offset: Offset, kernel_offset: tuple[int, int]) -> Weights:
        """What the shaders need to know of the ordinary convolution, for images of the format of ``image``."""
        descriptor, window = self._descriptor, self._window
        total_x = offset.x * window[2] + kernel_offset[0]
        total_y = offset.y * window[3] + kernel_offset[1]
        width, height = self._dilated_width, self._dilated_height
        origin = (width // 2 - (width - 1) - total_x, height // 2 - (height - 1) - total_y)
        require_first_window(type(self).__name__, *origin)
        return Weights(
            self._turned,
            self._result_biases,
            self._packed,
            (*window, *origin),
            descriptor.output_feature_channels if descriptor.channel_multiplier else descriptor.groups,
            False,
            image.channel_format.metal_type,
            algorithm_for(self.device),
            self._rounds,
            packs_all=True,
        )


class ConvolutionTranspose(_ForwardKernel[ConvolutionTransposeGradientState], _TurnedWeights):
    """``y[v][o] = act(b[o] + sum over taps t and channels c of w[o][t][c] * z[v + first + dilation * t][c])``.

    ``z`` is the source with ``stride - 1`` zeros between neighbouring pixels, and ``first`` is ``offset * stride +
    kernel_offset - floor(kd / 2)`` with ``kd = (k - 1) * dilation + 1``, along each axis (of dilation MPS does not say
    anything). Weights [output channels] [height][width][input channels / groups] are used as they are: PyTorch and
    TensorFlow turn them by 180 degrees. Source: ``MPSCNNConvolutionTranspose``.

    The image that an encode returns has ``(n - 1) * stride + 1`` pixels with padding SIZE_SAME, ``kd - 1`` more with
    SIZE_FULL and fewer with SIZE_VALID_ONLY; with ``ExplicitPadding`` as many less than the full size as it says, as in
    PyTorch. Given the state of a ``Convolution`` it has the size of that one's source, and lines up with it: the kernel
    is then that convolution's data gradient, but for the order of the weights. Raises ``StateError`` if the data source
    cannot load.
    """

    remembers_encodes = True

    supported_edge_modes = (EdgeMode.ZERO,)

    kernel_offset_x = PositionProperty("The window's position on the source after zeros are inserted.")
    kernel_offset_y = PositionProperty("The same along y.")

    # objc: -initWithDevice:weights:
    def __init__(
        self, data_source: ConvolutionDataSource, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(data_source, device=device, label=label)
        if self._descriptor.sub_pixel_scale_factor > 1:
            raise GeometryError(f"{type(self).__name__}: the descriptor is for sub-pixel convolution")
        self._coupled: ConvolutionGradientState | None = None

    @property
    def is_backwards(self) -> bool:
        return True

    def _destination_channels(self, source_channels: int) -> int:
        return self._descriptor.output_feature_channels

    def destination_image_descriptor(
        self, source_images: Sequence[Image], source_states: Sequence[State] | None = None
    ) -> ImageDescriptor:
        """The descriptor of the result for ``source_images`` (one image); sets ``offset`` and ``kernel_offset`` for it.

        A ``ConvolutionGradientState`` in ``source_states`` takes the place of the padding policy. Raises
        ``GeometryError`` if the result would be empty.
        """
        (source,) = sources = self._list_of_sources(source_images)
        channels = self._destination_channels(self._source_channels(source))
        images = self._images_from(source, "offset", "source")
        owner, sizes, offsets = type(self).__name__, [], []
        window = (self._dilated_width, self._dilated_height)
        pads = (self.padding.x, self.padding.y) if isinstance(self.padding, ExplicitPadding) else (None, None)
        method, strides = self.padding.padding_method, self._window[2:4]
        for axis, size, extent, stride, pad in zip(
            "xy", (source.width, source.height), window, strides, pads, strict=True
        ):
            made, offset = transposed_size_and_offset(owner, axis, method, size, extent, stride, pad)
            sizes.append(made)
            offsets.append(offset)
        self._configure(offset=Offset(0, 0, self.offset.z), kernel_offset_x=offsets[0], kernel_offset_y=offsets[1])
        descriptor = ImageDescriptor(source.channel_format, sizes[0], sizes[1], channels, images)
        if isinstance(self.padding, ExplicitPadding):
            return descriptor
        states = source_states if source_states is not None or self._coupled is None else [self._coupled]
        return self._negotiate(sources, states, descriptor)

    def _configure_from(self, state: GradientState) -> None:
        offset = state.snapshot.offset
        self._configure(
            offset=Offset(0, 0, self.offset.z),
            kernel_offset_x=-offset.x + (1 if self._dilated_width % 2 == 0 else 0),
            kernel_offset_y=-offset.y + (1 if self._dilated_height % 2 == 0 else 0),
        )

    # objc: -encodeToCommandBuffer:sourceImage:convolutionGradientState:
    # objc: -encodeToCommandBuffer:sourceImage:convolutionGradientState:destinationImage:
    # objc: -encodeToCommandBuffer:sourceImage:convolutionGradientState:destinationState:destinationStateIsTemporary:
    @overload  # type: ignore[override]
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        convolution_gradient_state: ConvolutionGradientState | None = None,
    ) -> Image: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        convolution_gradient_state: ConvolutionGradientState | None = None,
        *,
        return_state: Literal[True],
        state_is_temporary: bool = False,
    ) -> tuple[Image, ConvolutionTransposeGradientState]: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        convolution_gradient_state: ConvolutionGradientState | None = None,
        *,
        destination_image: Image,
        destination_state: State | None = None,
    ) -> None: ...

    @overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: Image,
        convolution_gradient_state: ConvolutionGradientState | None = None,
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
        convolution_gradient_state: ConvolutionGradientState | None = None,
        *,
        destination_image: Image | None = None,
        destination_state: State | None = None,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any:
        """As ``Kernel.encode``; ``convolution_gradient_state`` is that of the convolution which this one undoes.

        It sets the offsets, and the size of a result that is returned.
        """
        coupling: Any = nullcontext()
        if convolution_gradient_state is not None:
            configures = destination_image is not None
            coupling = self._coupled_with(command_buffer, convolution_gradient_state, configures)
        with coupling:
            return self._encode(
                command_buffer, (source_image,), destination_image, destination_state, return_state, state_is_temporary
            )

    # objc: -encodeBatchToCommandBuffer:sourceImages:convolutionGradientStates:
    # objc: -encodeBatchToCommandBuffer:sourceImages:convolutionGradientStates:destinationImages:
    # objc: -encodeBatchToCommandBuffer:sourceImages:convolutionGradientStates:destinationStates:
    # objc:     destinationStateIsTemporary:
    @overload  # type: ignore[override]
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        convolution_gradient_states: Sequence[State] | None = None,
    ) -> ImageBatch: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        convolution_gradient_states: Sequence[State] | None = None,
        *,
        return_state: Literal[True],
        state_is_temporary: bool = False,
    ) -> tuple[ImageBatch, StateBatch | None]: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        convolution_gradient_states: Sequence[State] | None = None,
        *,
        destination_images: Sequence[Image],
        destination_states: Sequence[State] | None = None,
    ) -> None: ...

    @overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Image],
        convolution_gradient_states: Sequence[State] | None = None,
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
        convolution_gradient_states: Sequence[State] | None = None,
        *,
        destination_images: Sequence[Image] | None = None,
        destination_states: Sequence[State] | None = None,
        return_state: bool = False,
        state_is_temporary: bool = False,
    ) -> Any:
        """As ``Kernel.encode_batch``; ``convolution_gradient_states`` has the state of the whole batch for each image.

        Raises ``StateError`` if it has several states.
        """
        arguments = (destination_images, destination_states, return_state, state_is_temporary)
        if convolution_gradient_states is None:
            return self._encode_batch(command_buffer, (source_images,), *arguments)
        owner = type(self).__name__
        batch = require_batch(owner, "source_images", source_images)
        states = require_state_batch(
            owner, "convolution_gradient_states", convolution_gradient_states, len(batch)
        )
        if states.whole is None:
            raise StateError(
                f"{owner}: convolution_gradient_states has several states; a convolution makes one for the whole batch"
            )
        with self._coupled_with(command_buffer, states.whole, destination_images is not None):
            return self._encode_batch(command_buffer, (batch,), *arguments)

    @contextmanager
    def _coupled_with(self, command_buffer: CommandBuffer, state: Any, configures: bool) -> Iterator[None]:
        """Encodes in the block line up with the convolution that made ``state``, which may configure the kernel."""
        owner = type(self).__name__
        if not _is_of_convolution(state):
            raise FormatError(
                f"{owner}: convolution_gradient_state is {type(state).__name__}; it has to be made by a Convolution"
            )
        self._require_usable(command_buffer, "convolution_gradient_state", state)
        if state.convolution.descriptor.geometry[:6] != self._descriptor.geometry[:6]:
            raise StateError(
                f"{owner}: convolution_gradient_state was made by a kernel for {state.convolution.descriptor!r} but "
                f"this one is for {self._descriptor!r}"
            )
        self._coupled = state
        try:
            if configures:
                self._configure_from(state)
            yield
        finally:
            self._coupled = None

    def _encode_aspects(self, state: Any) -> Hashable:
        return (super()._encode_aspects(state), self._coupled and self._coupled.snapshot)

    def _make_state(
        self, source: Image, destination: Image, command_buffer: CommandBuffer | None
    ) -> ConvolutionTransposeGradientState:
        snapshot = self._shared_snapshot(source, destination)
        state = ConvolutionTransposeGradientState(self, snapshot, command_buffer=command_buffer)
        if self._coupled is not None:
            state.coupled_with = self._coupled.convolution
        return state

    def _state_given(self, source_states: Sequence[State] | None, state: Any) -> Any:
        for source_state in source_states or ():
            if _is_of_convolution(source_state):
                made = state[0] if isinstance(state, StateBatch) else state
                made.coupled_with = source_state.convolution  # type: ignore[attr-defined]
        return state

    def _require_state(self, state: Any, source: Image, destination: Image) -> None:
        super()._require_state(state, source, destination)
        offset = self.kernel_offset_x, self.kernel_offset_y
        if state.kernel_offset != offset:
            raise StateError(
                f"{type(self).__name__}: kernel_offset is {offset} but destination_state was made when it was "
                f"{state.kernel_offset}; make the state after the last property is set"
            )

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        numbers = self._turned_weights(source, self.offset, (self.kernel_offset_x, self.kernel_offset_y))
        with result_before(self._descriptor.fused_neuron_descriptor, command_buffer, destination, regions) as part:
            add_gradient_data(
                command_buffer,
                numbers,
                ImagePart(source.buffer, regions.sources[0]),
                part,
                first_pixel=(0, 0),
                source_size=(regions.width, regions.height),
            )


class ConvolutionTransposeGradient(_TurnedWeights, ConvolutionGradient):
    """The gradients of ``ConvolutionTranspose`` for its source, weights and biases.

    Source: ``MPSCNNConvolutionTransposeGradient``. With ``first`` as there, and taps ``t``::

        dx[i][c]    = sum over o and t of w[o][t][c] * g[stride * i - first - dilation * t][o]      the result
        dw[o][t][c] = sum over images and pixels i of x[i][c] * g[stride * i - first - dilation * t][o]
        db[o]       = sum over images and pixels of g[o]                                 the last two in the state

    where ``g`` is 0 outside the image. The state configures the kernel; properties set by hand raise
    ``NotImplementedError``. A descriptor with a neuron or a batch normalization is refused as by
    ``ConvolutionGradient``.
    """

    forward_kernels = ("ConvolutionTranspose",)

    def _configure_geometry(self, snapshot: ForwardSnapshot) -> None:
        origin = snapshot.clip_rect.origin
        self._configure(
            primary_offset=Offset(origin.x, origin.y, origin.z), secondary_offset=Offset(0, 0, snapshot.offset.z)
        )

    def _require_gradient_state(self, state: Any, source_image: Image) -> None:
        if self._configured_by_hand:
            raise NotImplementedError(
                f"{type(self).__name__}: a property that chooses a part of the images was set; the state sets them all"
            )
        super()._require_gradient_state(state, source_image)

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        numbers = self._turned_weights(source_gradient, state.snapshot.offset, state.kernel_offset)
        gradient = ImagePart(source_gradient.buffer, clip_layout(regions.sources[0], state.snapshot.clip_rect))
        if self._computes_weights_gradient:
            weights, biases = state.accumulators
            add_gradients(
                command_buffer,
                self._descriptor,
                numbers,
                gradient,
                ImagePart(source_image.buffer, regions.sources[1]),
                GradientSums(weights, biases, state.has_gradients),
            )
        if self._computes_data_gradient:
            add_forward(command_buffer, numbers, gradient, ImagePart(destination.buffer, regions.destination))
