"""Regions of images resized by bilinear interpolation, and the gradient."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import Offset, flag, integer, real
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.kernel import IMAGE_LAYOUT, BaseKernel, GradientKernel, Kernel, Regions, fill_with_zeros
from mpsgrad.kernels.divisor import DIVISOR, divisor
from mpsgrad.kernels.upsampling import require_whole_images
from mpsgrad.kernels.walk import (
    CONSTANTS,
    CPU_CONSTANTS,
    DIVISORS,
    Layout,
    divisors_of,
    shares_of_lines,
    threads_of,
    walk_of,
    works_by_rows,
)
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.state import ForwardSnapshot, GradientState
from mpsgrad.tunables import tunables

READ = ParameterStruct("CropRead", near="int", last="int", share="float")
"""What an output reads along an axis whose last pixel is ``last``; ``near`` is -1 outside."""
READERS = ParameterStruct("CropReaders", first="int", last="int")
"""The outputs that read a pixel."""
PARAMETERS = ParameterStruct(
    "CropParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    regions="int",
    channels_per_region="int",
    lines_of_thread="int",
    **DIVISORS,
    by_regions=DIVISOR,
)
"""A forward kernel's ``destination`` has a region of an image in the place of each image. The divisors are of the
threads of a pixel, of pixels, and of such regions."""
MOST_IN_TILE = 4096
"""Numbers of a row of pixels whose gradients a thread of a CPU adds up at a time."""
MOST_CHANNELS_ALONE, MOST_CHANNELS_ALONE_OF_FEW_REGISTERS = 2, 31
"""So many channels of a row of outputs are taken by a thread of a CPU alone, where it has few registers by eights or
fours: the lanes of a simdgroup without a channel rest."""
CPU_WALKS = (*CPU_CONSTANTS["walks"], "channels")
CPU_FORWARD_WALKS = (*CPU_WALKS, "fours", "eights")
FAMILY = ShaderFamily(
    "crop_and_resize",
    (IMAGE_LAYOUT, READ, READERS, DIVISOR, PARAMETERS),
    {**CONSTANTS, "forward_walks": (*CONSTANTS["walks"], "elements"), "most_in_tile": 0},
    {"cpu": {**CPU_CONSTANTS, "walks": CPU_WALKS, "forward_walks": CPU_FORWARD_WALKS, "most_in_tile": MOST_IN_TILE}},
    ahead_of_time=False,
)

TOLERANCE = 1e-6
"""Positions outside by so much of an image's extent, as the rounding of a region's numbers may put them, are inside."""

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Crops:
    """The regions of a kernel, (x, y, width, height) each, and the size to which each is resized."""

    width: int
    height: int
    regions: tuple[Box, ...]

    def axis(self, index: int, size: int) -> tuple[bytes, bytes]:
        """Along x (0) or y (1), for a source of ``size`` pixels: a ``READ`` for each output of each region, and
        ``READERS`` for each pixel of the source and each region."""
        sections = tuple((box[index], box[2 + index]) for box in self.regions)
        return _axis(sections, (self.width, self.height)[index], size)


@lru_cache(maxsize=64)
def _axis(sections: tuple[tuple[float, float], ...], count: int, size: int) -> tuple[bytes, bytes]:
    last, reads, readers = size - 1, [], []
    for start, extent in sections:
        along = np.linspace(0.0, 1.0, count) if count > 1 else np.full(1, 0.5)
        position = (start + extent * along) * last
        slack = TOLERANCE * max(last, 1)
        inside = (position >= -slack) & (position <= last + slack)
        position = np.clip(position, 0.0, last)
        near = position.astype(np.int64)
        read = np.zeros(count, READ.dtype)
        read["near"], read["last"], read["share"] = np.where(inside, near, -1), last, position - near
        reads.append(read)
        of_pixel = np.zeros(size, READERS.dtype)
        for pixel in range(size):
            outputs = np.flatnonzero(inside & ((near == pixel) | (np.minimum(near + 1, last) == pixel)))
            of_pixel[pixel] = (outputs[0], outputs[-1]) if outputs.size else (0, -1)
        readers.append(of_pixel)
    return np.concatenate(reads).tobytes(), np.concatenate(readers).tobytes()


class CropAndResizeGradientState(GradientState):
    """The state of ``CropAndResizeBilinear``: its regions, and how many channels each has in the result."""

    def __init__(
        self,
        snapshot: ForwardSnapshot,
        crops: Crops,
        channels_per_region: int,
        device: Device,
        *,
        command_buffer: CommandBuffer | None = None,
    ) -> None:
        super().__init__(snapshot, (), device, command_buffer=command_buffer)
        self.crops = crops
        self.channels_per_region = channels_per_region

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        return (self.snapshot, self.crops, self.channels_per_region)


class CropAndResizeBilinear(Kernel[CropAndResizeGradientState]):
    """Regions of an image, each resized by bilinear interpolation to one size. Source: ``MPSNNCropAndResizeBilinear``.

    A region (x, y, width, height) is in parts of the image: 0 is the centre of its first column or row, 1 that of the
    last. Output ``o`` of ``n`` lies at ``s = (x + width o / (n - 1)) (size - 1)``, a single one in the middle, and is
    ``(1 - f) x[i] + f x[i + 1]`` with ``i = floor(s)`` and ``f = s - i`` along both axes, and 0 where ``s`` is outside
    the image. A negative width or height mirrors the region. Where outputs lie and what is outside is not published by
    Apple; this is TensorFlow's ``crop_and_resize``.

    The regions follow each other in the result's feature channels, with as many as are read of the source each; with
    ``aligns_channels`` each begins at a multiple of 4, as in MPS. The channels between are 0 in encodes that return an
    image. Whole images are read: other offsets and clip rectangles raise ``NotImplementedError``.
    """

    remembers_encodes = True

    # objc: -initWithDevice:resizeWidth:resizeHeight:numberOfRegions:regions:
    def __init__(
        self,
        *,
        resize_width: int,
        resize_height: int,
        regions: Sequence[Sequence[float]],
        aligns_channels: bool = False,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(device=device, label=label)
        owner = type(self).__name__
        self._crops = Crops(
            integer(owner, "resize_width", resize_width, 1),
            integer(owner, "resize_height", resize_height, 1),
            _regions(owner, regions),
        )
        self._aligns_channels = flag(type(self).__name__, "aligns_channels", aligns_channels)

    @property
    def resize_width(self) -> int:
        """Width of each resized region in pixels."""
        return self._crops.width

    @property
    def resize_height(self) -> int:
        """Height of each resized region in pixels."""
        return self._crops.height

    @property
    def regions(self) -> tuple[Box, ...]:
        """The regions, (x, y, width, height) each."""
        return self._crops.regions

    @property
    def number_of_regions(self) -> int:
        """How many there are."""
        return len(self._crops.regions)

    @property
    def aligns_channels(self) -> bool:
        """Whether each region takes a multiple of 4 channels."""
        return self._aligns_channels

    def _channels_per_region(self, source_channels: int) -> int:
        return -(-source_channels // 4) * 4 if self._aligns_channels else source_channels

    def _destination_channels(self, source_channels: int) -> int:
        return self.number_of_regions * self._channels_per_region(source_channels)

    def _adjust_descriptor(self, source: Image, descriptor: ImageDescriptor) -> ImageDescriptor:
        self._configure(offset=Offset(0, 0, self.offset.z))
        return replace(descriptor, width=self.resize_width, height=self.resize_height)

    def _fill_what_is_clipped(self, command_buffer: CommandBuffer, destination: Image) -> None:
        if self._aligns_channels:
            fill_with_zeros(command_buffer, destination)

    def _make_state(
        self, source: Image, destination: Image, command_buffer: CommandBuffer | None
    ) -> CropAndResizeGradientState:
        per_region = self._channels_per_region(self._source_channels(source))
        snapshot = self._shared_snapshot(source, destination)
        return CropAndResizeGradientState(
            snapshot, self._crops, per_region, self.device, command_buffer=command_buffer
        )

    def _dispatch(  # type: ignore[override]
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        require_whole_images(self, "offset")
        if (regions.width, regions.height) != (self.resize_width, self.resize_height):
            raise GeometryError(
                f"{type(self).__name__}: the destination is {regions.width} wide and {regions.height} high but each "
                f"region becomes {self.resize_width} x {self.resize_height}"
            )
        (read,), count = regions.sources, self.number_of_regions
        written = (*regions.destination[:6], read[6], regions.images * count)
        columns, _ = self._crops.axis(0, source.width)
        rows, _ = self._crops.axis(1, source.height)
        buffers = (source.buffer, *map(self.device.constant_buffer, (columns, rows)), destination.buffer)
        metal_type = source.channel_format.metal_type
        _add_dispatch(command_buffer, "", metal_type, buffers, read, written, count, self._channels_per_region(read[6]))


class CropAndResizeBilinearGradient(GradientKernel):
    """Each pixel of the source adds up what read it, region by region and row by row; MPS has none.

    The regions are those of the state. Of the source image only the size matters.
    """

    remembers_encodes = True
    forward_kernels = ("CropAndResizeBilinear",)
    offsets_of_images = ("primary_offset", "secondary_offset")

    def _channel_counts(self, source_image: Image, state: Any) -> tuple[int, int, int]:
        channels = self._channels_of(source_image, "secondary")
        return channels, len(state.crops.regions) * state.channels_per_region, channels

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        self._require_gradient_size(source_gradient, state)

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        require_whole_images(self, "primary_offset")
        self._require_whole_destination(regions, source_image)
        columns, column_readers = state.crops.axis(0, source_image.width)
        rows, row_readers = state.crops.axis(1, source_image.height)
        _add_dispatch(
            command_buffer,
            "_gradient",
            destination.channel_format.metal_type,
            (
                source_gradient.buffer,
                *map(self.device.constant_buffer, (columns, rows, column_readers, row_readers)),
                destination.buffer,
            ),
            regions.sources[0],
            regions.destination,
            len(state.crops.regions),
            state.channels_per_region,
        )


def _add_dispatch(
    command_buffer: CommandBuffer,
    name: str,
    metal_type: str,
    buffers: Sequence[Buffer],
    source: Layout,
    destination: Layout,
    regions: int,
    channels_per_region: int,
) -> None:
    device = command_buffer.device
    layouts = destination, source
    walk = walk_of(device, layouts, has_elements=True, has_element8=metal_type == "half")
    lines_of_thread = 1
    if works_by_rows(device):
        walk = _walk_alone(device, destination[6]) or walk
    threads = threads_of(walk, destination)
    if name == "_gradient" and works_by_rows(device) and destination[6] <= MOST_IN_TILE:
        walk, (threads, lines_of_thread) = "runs", shares_of_lines(device, destination)
    function = FAMILY.function(device, f"crop_and_resize{name}_by_{walk}", metal_type)
    parameters = PARAMETERS.pack(
        source=source,
        destination=destination,
        regions=regions,
        channels_per_region=channels_per_region,
        lines_of_thread=lines_of_thread,
        **divisors_of(walk, destination),
        by_regions=divisor(regions),
    )
    command_buffer.add_dispatch(
        function,
        -(-threads // function.threadgroup_size),
        *buffers,
        device.constant_buffer(parameters),
    )


def _walk_alone(device: Device, channels: int) -> str | None:
    """How a thread of a CPU takes a row of outputs alone, or None if a simdgroup does."""
    if channels <= MOST_CHANNELS_ALONE:
        return "channels"
    if tunables(device.tuning).has_many_registers or channels > MOST_CHANNELS_ALONE_OF_FEW_REGISTERS:
        return None
    return "eights" if channels >= 8 else "fours" if channels >= 4 else "channels"


def _regions(owner: str, regions: Any) -> tuple[Box, ...]:
    try:
        boxes = [tuple(box) for box in regions]
    except TypeError:
        raise FormatError(f"{owner}: regions is {regions!r}; it has to be a list of (x, y, width, height)") from None
    if not boxes:
        raise GeometryError(f"{owner}: regions is empty; it has to have at least one region")
    checked: list[Box] = []
    for index, box in enumerate(boxes):
        if len(box) != 4:
            raise FormatError(f"{owner}: regions[{index}] is {box!r}; it has to be (x, y, width, height)")
        x, y, width, height = (real(owner, f"regions[{index}]", number) for number in box)
        checked.append((x, y, width, height))
    return tuple(checked)
