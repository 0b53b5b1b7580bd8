"""Dropout and its gradient."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import GeometryError, StateError
from mpsgrad.geometry import NO_CLIP, EdgeMode, Size, integer, integers, real
from mpsgrad.image import Image
from mpsgrad.kernel import IMAGE_LAYOUT, BaseKernel, GradientKernel, Kernel, Regions, clip_layout
from mpsgrad.kernels.pointwise import (
    Layout,
    Operand,
    dense_layout,
    is_run_of_vectors,
    merge_channels,
    pieces,
    require_no_clamped_reads,
    values_of_vector,
)
from mpsgrad.kernels.written_images import WrittenImages
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.state import ForwardSnapshot, GradientState

THREADS = 256
UNSIGNED = struct.Struct("<I")
ELEMENTS, PIXELS = 1024, 8
"""How many elements that follow each other, or else pixels, a simdgroup owns."""
FEWEST_ELEMENTS = 128
"""As far as a GPU has simdgroups for them."""
SIMDGROUPS_WANTED = 4096
SIMDGROUPS_AT_ONCE, ELEMENTS_BY_TURNS = 8192, 256
"""A large GPU runs so many. Of more each owns fewer elements: the last ones to begin leave it idle for less time.
Measured on an H200."""
MOST_TURNS = 4
"""Of more than so many the last one counts for little: six of halves take 73.6 us, 80.8 with fewer elements each."""
VECTORS_AT_ONCE = 2
"""Of which a thread of a GPU has so many on the way at a time."""

PARAMETERS = ParameterStruct(
    "DropoutParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    mask=IMAGE_LAYOUT,
    shift_x="int",
    shift_y="int",
    clamps="int",
    mask_step_x="int",
    mask_step_y="int",
    mask_step_channel="int",
    elements="int",
    chunks="int",
    elements_of_chunk="int",
    seed="uint",
    threshold="uint",
    scale="float",
)
"""``elements`` are those of an image; a random number below ``threshold`` keeps its element."""
GRADIENT_PARAMETERS = ParameterStruct(
    "DropoutGradientParameters",
    gradient=IMAGE_LAYOUT,
    mask=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    chunks="int",
    elements_of_chunk="int",
    scale="float",
)
FAMILY = ShaderFamily(
    "dropout",
    (IMAGE_LAYOUT, PARAMETERS, GRADIENT_PARAMETERS),
    {
        "threads": THREADS,
        "pixels": PIXELS,
        "by_vectors": True,
        "vectors_at_once": VECTORS_AT_ONCE,
    },
    {"cpu": {"by_vectors": False}},
    ahead_of_time=False,
)


def _elements_of_chunk(device: Device, elements: int) -> int:
    """How many elements a simdgroup owns, of so many in all."""
    if device.family == "cpu":
        return ELEMENTS
    if ELEMENTS * SIMDGROUPS_AT_ONCE < elements <= ELEMENTS * SIMDGROUPS_AT_ONCE * MOST_TURNS:
        return ELEMENTS_BY_TURNS
    share = -(-elements // (SIMDGROUPS_WANTED * FEWEST_ELEMENTS)) * FEWEST_ELEMENTS
    return max(FEWEST_ELEMENTS, min(share, ELEMENTS))


class DropoutGradientState(GradientState):
    """The mask of one encode of ``Dropout``. Source: ``MPSCNNDropoutGradientState``.

    One byte for each element of the forward result, 1 for kept and 0 for dropped, whatever the mask's stride.
    """

    def __init__(
        self, kernel: Dropout, snapshot: ForwardSnapshot, *, command_buffer: CommandBuffer | None = None
    ) -> None:
        sizes = (snapshot.destination.element_count,)
        super().__init__(snapshot, sizes, kernel.device, command_buffer=command_buffer)
        self._settings = kernel._settings
        self._drawn = WrittenImages()

    def resource(self, index: int) -> Buffer:
        is_new = self._buffers[index] is None
        buffer = super().resource(index)
        if is_new and not self.is_temporary and not self._is_whole():
            buffer.write(np.zeros(self.buffer_size(index), np.uint8))
        return buffer

    def _is_whole(self) -> bool:
        """Whether the forward kernel writes all of its result, and with it the mask."""
        snapshot = self.snapshot
        return snapshot.clip_rect == NO_CLIP and snapshot.source_channels >= snapshot.destination.feature_channels

    @property
    def _images(self) -> range:
        """The images of the result that the forward kernel writes, among those of the state's buffer."""
        first = self._index + self.snapshot.clip_rect.origin.z
        return range(first, first + self.snapshot.images)

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        return (self.snapshot, self._index, self._settings)

    @property
    def _drawn_by(self) -> Sequence[CommandBuffer] | None:
        """The command buffers that write the mask, or None if it is not there."""
        return self._drawn.writers(self._images)

    def _mask_layout(self) -> Layout:
        """Where the mask of image 0 lies, and of those behind it."""
        _, pixel, row, image, *extents = self.snapshot.destination.dense_layout
        return (self._index * image, pixel, row, image, *extents)

    def _mask_of_images(self, owner: str, argument: str, what: str, begin: int, count: int) -> Layout:
        """Where the masks of images ``begin`` to ``begin + count`` lie; raises ``StateError`` if there are fewer.

        ``owner`` and ``argument`` name the kernel and the state, and ``what`` says what is done to the masks.
        """
        first, pixel, row, image, width, height, channels, room = self._mask_layout()
        if begin + count > room:
            raise StateError(
                f"{owner}: {argument} holds masks of {room} images but images {begin} to {begin + count} are {what}"
            )
        return (first + begin * image, pixel, row, image, width, height, channels, count)

    @property
    def mask_data(self) -> np.ndarray | None:
        """The mask as uint8 of the shape of the forward result, a copy; None before the forward encode.

        Waits for the work that writes it; 0 where the kernel writes nothing. Raises ``StateError`` for a
        temporary state and before ``commit``.
        """
        drawn_by = self._drawn_by
        if drawn_by is None:
            return None
        if self.is_temporary:
            raise StateError(f"{type(self).__name__}: read on the CPU, but temporary states have no CPU access")
        for command_buffer in drawn_by:
            command_buffer._wait_for(type(self).__name__, "read", needs_result=True)
        result = self.snapshot.destination
        return self.resource(0).read(self._mask_layout()[0], result.element_count).reshape(result.shape)


def _checked_settings(owner: str, keep_probability: Any, seed: Any, mask_stride: Any) -> tuple[float, int, Size]:
    keep = real(owner, "keep_probability", keep_probability)
    if not 0.0 < np.float32(keep) < 1.0:
        raise GeometryError(f"{owner}: keep_probability is {keep}; it has to lie between 0 and 1, both excluded")
    number = integer(owner, "seed", seed, 0)
    if number >= 2**32:
        raise GeometryError(f"{owner}: seed is {number}; it has to be below 2**32")
    stride = Size(*integers(owner, "mask_stride_in_pixels", mask_stride, 3, 0))
    if max(stride) > 1:
        raise GeometryError(f"{owner}: mask_stride_in_pixels is {tuple(stride)}; each has to be 0 or 1")
    return float(np.float32(keep)), number, stride


class _Settings:
    """The constructor's arguments, which the forward kernel and the gradient kernel share."""

    _settings: tuple[float, int, Size]

    @property
    def keep_probability(self) -> float:
        """The probability that an element is kept."""
        return self._settings[0]

    @property
    def seed(self) -> int:
        """The key of the random numbers."""
        return self._settings[1]

    @property
    def mask_stride_in_pixels(self) -> Size:
        """1 along an axis (x, y, feature channels) with a mask value for each coordinate, 0 with one for all."""
        return self._settings[2]


class Dropout(_Settings, Kernel[DropoutGradientState]):
    """``y = m x / keep_probability`` with ``m`` 1 with ``keep_probability`` and else 0. Source: ``MPSCNNDropout``.

    MPS does not say how ``m`` is drawn; here it is by Philox 4x32-10 from ``seed``, the number of images that this
    kernel has processed before, and the element's place in the image: kernels of equal arguments that encode equal
    images draw the same masks, on every device, and each encode draws new ones, as does each replay of a ``Recording``.
    An axis (x, y, feature channels) whose ``mask_stride_in_pixels`` is 0 has one mask value along it.

    Raises ``GeometryError`` unless ``0 < keep_probability < 1``, ``0 <= seed < 2**32`` and the strides are 0 or 1.
    """

    remembers_encodes = True

    # objc: -initWithDevice:keepProbability:seed:maskStrideInPixels:
    def __init__(
        self,
        keep_probability: float,
        *,
        seed: int = 0,
        mask_stride_in_pixels: Size = Size(1, 1, 1),  # noqa: B008
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(device=device, label=label)
        self._settings = _checked_settings(type(self).__name__, keep_probability, seed, mask_stride_in_pixels)
        self._drawn_images = 0
        self._last_drawn: Mapping[Any, Buffer] = {}

    @property
    def drawn_images(self) -> int:
        """How many images' masks were drawn, by encodes and replays; set it to draw those of then again."""
        return self._drawn_images

    @drawn_images.setter
    def drawn_images(self, value: int) -> None:
        self._drawn_images = integer(type(self).__name__, "drawn_images", value, 0)

    def _archived_properties(self) -> dict[str, Any]:
        return {**super()._archived_properties(), "drawn_images": self._drawn_images}

    def _make_state(
        self, source: Image, destination: Image, command_buffer: CommandBuffer | None
    ) -> DropoutGradientState:
        return DropoutGradientState(self, self._shared_snapshot(source, destination), command_buffer=command_buffer)

    def _mask(self, command_buffer: CommandBuffer, target: Layout, state: Any) -> tuple[Buffer, Layout]:
        """The buffer and the layout of the masks of what an encode writes to ``target``."""
        *_, width, height, channels, images = target
        if state is None:
            return command_buffer.scratch(width * height * channels * images), dense_layout(*target[4:])
        x, y, z = self.clip_rect.origin
        owner = type(self).__name__
        first, pixel, row, image, *_ = state._mask_of_images(owner, "destination_state", "written", z, images)
        first += y * row + x * pixel + self.destination_feature_channel_offset
        return state.resource(0), (first, pixel, row, image, width, height, channels, images)

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        *_, width, height, channels, images = target = regions.destination
        mask, layout = self._mask(command_buffer, target, state)
        operand = Operand(regions.sources[0], self.offset.x, self.offset.y)
        elements = width * height * channels
        stride = self.mask_stride_in_pixels
        across, row_length = channels if stride.depth else 1, width if stride.width else 1
        in_runs = tuple(stride) == (1, 1, 1) and operand.covers(width, height)
        shifted = regions.sources[0]
        if in_runs:
            start, pixel, row, *_ = shifted
            shifted = (start + operand.dy * row + operand.dx * pixel, *shifted[1:])
            in_runs = all(each[1] == channels and each[2] == width * channels for each in (shifted, target, layout))
        elements_of_chunk = _elements_of_chunk(self.device, elements * images)
        chunks = -(-elements // elements_of_chunk)
        keep, seed, _ = self._settings
        parameters = PARAMETERS.pack(
            source=shifted if in_runs else regions.sources[0],
            destination=target,
            mask=layout,
            shift_x=operand.dx,
            shift_y=operand.dy,
            clamps=int(self.edge_mode is EdgeMode.CLAMP),
            mask_step_x=across if stride.width else 0,
            mask_step_y=across * row_length if stride.height else 0,
            mask_step_channel=int(stride.depth > 0),
            elements=elements,
            chunks=chunks,
            elements_of_chunk=elements_of_chunk,
            seed=seed,
            threshold=max(1, min(round(keep * 2**32), 2**32 - 1)),
            scale=1.0 / keep,
        )
        function = FAMILY.function(
            self.device, "dropout_of_runs" if in_runs else "dropout", source.channel_format.metal_type
        )
        simdgroups = chunks * images if in_runs else -(-width * height * images // PIXELS)
        command_buffer.add_dispatch(
            function,
            -(-simdgroups // (THREADS // 32)),
            source.buffer,
            destination.buffer,
            mask,
            self._encode_buffer(images, command_buffer),
            self.device.constant_buffer(parameters),
        )

    def _encode_buffers(self) -> Mapping[Any, Buffer]:
        return self._last_drawn

    def _encode_buffer(self, name: Any, command_buffer: CommandBuffer) -> Buffer:
        """How many images were drawn before an encode of as many as ``name`` says."""
        if command_buffer._undo is not None:
            command_buffer._if_taken_back(partial(setattr, self, "_drawn_images", self._drawn_images))
        drawn = command_buffer.varying(partial(self._draw, name))
        # Past the checks of attributes that users set.
        vars(self)["_last_drawn"] = {name: drawn}
        return drawn

    def _draw(self, images: int) -> bytes:
        first = self._drawn_images
        vars(self)["_drawn_images"] = first + images
        return UNSIGNED.pack(first % 2**32)

    def _note_encode(self, command_buffer: CommandBuffer, state: Any, regions: Regions) -> None:
        if state is not None:
            first = state._index + self.clip_rect.origin.z
            state._drawn.add(command_buffer, range(first, first + regions.images))


class DropoutGradient(_Settings, GradientKernel):
    """``dx = m g / keep_probability`` with the mask of the forward encode. Source: ``MPSCNNDropoutGradient``.

    The arguments have to be those of the forward kernel. The values of ``source_image`` are not read;
    ``secondary_offset`` shifts the position in the mask. Raises what ``Dropout`` raises.
    """

    remembers_encodes = True

    forward_kernels = ("Dropout",)

    # objc: -initWithDevice:keepProbability:seed:maskStrideInPixels:
    def __init__(
        self,
        keep_probability: float,
        *,
        seed: int = 0,
        mask_stride_in_pixels: Size = Size(1, 1, 1),  # noqa: B008
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(device=device, label=label)
        self._settings = _checked_settings(type(self).__name__, keep_probability, seed, mask_stride_in_pixels)

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        owner = type(self).__name__
        names = ("keep_probability", "seed", "mask_stride_in_pixels")
        for name, own, forward in zip(names, self._settings, state._settings, strict=True):
            if own != forward:
                raise StateError(f"{owner}: {name} is {own} but that of gradient_state's kernel is {forward}")
        require_no_clamped_reads(owner, state.snapshot)

    def _begin_encode(self, command_buffer: CommandBuffer, state: Any) -> None:
        owner, writers = type(self).__name__, state._drawn_by
        if writers is None:
            raise StateError(f"{owner}: gradient_state holds no mask; encode Dropout into it first")
        command_buffer._reads_from(owner, "gradient_state", writers)

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        gradient_layout, dx, dy = self._pointwise_gradient(regions.sources[0], state)
        *_, channels, images = gradient_layout
        first, *rest = state._mask_of_images(
            type(self).__name__, "gradient_state", "read", self.primary_offset.z, images
        )
        first += self.primary_source_feature_channel_offset
        mask = clip_layout((first, *rest[:5], channels, images), state.snapshot.clip_rect)
        operands = (
            Operand(gradient_layout, dx, dy),
            Operand(mask, dx + self.secondary_offset.x, dy + self.secondary_offset.y),
        )
        metal_type = source_gradient.channel_format.metal_type
        for piece in pieces(regions.destination, operands):
            zeros: Layout = (0, 0, 0, 0, *piece.destination[4:])
            gradient, kept = piece.operands
            nothing = self.device.constant_buffer(bytes(4 * channels))
            buffers = (
                source_gradient.buffer if gradient is not None else nothing,
                state.resource(0) if kept is not None else nothing,
            )
            target, *parts = merge_channels([piece.destination, gradient or zeros, kept or zeros])
            _, _, _, _, columns, lines, run, count = target
            elements_of_chunk = _elements_of_chunk(self.device, run * columns * lines * count)
            chunks = -(-run // elements_of_chunk)
            name, threadgroups = "dropout_gradient", -(-chunks * columns * lines * count // (THREADS // 32))
            values = values_of_vector(metal_type)
            if self.device.family != "cpu" and is_run_of_vectors((target, *parts), values):
                name, threadgroups = f"{name}_of_vectors", -(-run // (THREADS * VECTORS_AT_ONCE * values))
            parameters = GRADIENT_PARAMETERS.pack(
                gradient=parts[0],
                mask=parts[1],
                destination=target,
                chunks=chunks,
                elements_of_chunk=elements_of_chunk,
                scale=1.0 / self.keep_probability,
            )
            command_buffer.add_dispatch(
                FAMILY.function(self.device, name, metal_type),
                threadgroups,
                *buffers,
                destination.buffer,
                self.device.constant_buffer(parameters),
            )
