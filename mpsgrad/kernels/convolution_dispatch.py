"""Which shaders a convolution runs: the one place that knows their names, grids and parameters."""

from __future__ import annotations

from dataclasses import dataclass

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Function
from mpsgrad.kernel import IMAGE_LAYOUT, WINDOW
from mpsgrad.shader import ParameterStruct, ShaderFamily

THREADS = 256

Layout = tuple[int, ...]

FORWARD_PARAMETERS = ParameterStruct(
    "ConvolutionParameters", source=IMAGE_LAYOUT, destination=IMAGE_LAYOUT, window=WINDOW, groups="int", clamps="int"
)
DATA_PARAMETERS = ParameterStruct(
    "ConvolutionGradientDataParameters",
    gradient=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    window=WINDOW,
    groups="int",
    clamps="int",
    first_x="int",
    first_y="int",
    source_width="int",
    source_height="int",
)
WEIGHTS_PARAMETERS = ParameterStruct(
    "ConvolutionGradientWeightsParameters",
    gradient=IMAGE_LAYOUT,
    source=IMAGE_LAYOUT,
    window=WINDOW,
    groups="int",
    clamps="int",
    accumulates="int",
)
COPY_PARAMETERS = ParameterStruct("CopyParameters", count="int", source_offset="int")
FAMILY = ShaderFamily(
    "convolution",
    (IMAGE_LAYOUT, WINDOW, FORWARD_PARAMETERS, DATA_PARAMETERS, WEIGHTS_PARAMETERS, COPY_PARAMETERS),
    {"threads": THREADS},
)


@dataclass(frozen=True, slots=True)
class ImagePart:
    """The part of an image that an encode uses: its buffer, and the fields of ``ImageLayout``."""

    buffer: Buffer
    layout: Layout

    @property
    def size(self) -> int:
        """The number of elements."""
        *_, width, height, channels, images = self.layout
        return width * height * channels * images


@dataclass(frozen=True, slots=True)
class Weights:
    """The numbers of a convolution on the device, the window that they belong to, and the storage type of its images.

    ``weights`` is [output channels][kernel height][kernel width][input channels / groups] and ``biases`` [output
    channels], both float32. ``window`` has the fields of ``WINDOW``; its origin is that of the encode.
    """

    weights: Buffer
    biases: Buffer
    window: Layout
    groups: int
    clamps: bool
    metal_type: str


def _add(command_buffer: CommandBuffer, function: Function, threads: int, *buffers: Buffer) -> None:
    command_buffer.add_dispatch(function, -(-threads // THREADS), *buffers)


def add_forward(command_buffer: CommandBuffer, numbers: Weights, source: ImagePart, destination: ImagePart) -> None:
    """Adds ``destination = convolution(source) + biases``."""
    device = command_buffer.device
    parameters = FORWARD_PARAMETERS.pack(
        source=source.layout,
        destination=destination.layout,
        window=numbers.window,
        groups=numbers.groups,
        clamps=int(numbers.clamps),
    )
    _add(
        command_buffer,
        FAMILY.function(device, "convolution", numbers.metal_type),
        destination.size,
        source.buffer,
        numbers.weights,
        numbers.biases,
        destination.buffer,
        device.constant_buffer(parameters),
    )


def add_gradient_data(
    command_buffer: CommandBuffer,
    numbers: Weights,
    gradient: ImagePart,
    destination: ImagePart,
    *,
    first_pixel: tuple[int, int],
    source_size: tuple[int, int],
) -> None:
    """Adds ``destination = gradient for the source``.

    ``first_pixel`` (x, y) is where pixel 0 of ``destination`` lies in the source, ``source_size`` the width and height
    of that; both matter only for replicated edges.
    """
    device = command_buffer.device
    parameters = DATA_PARAMETERS.pack(
        gradient=gradient.layout,
        destination=destination.layout,
        window=numbers.window,
        groups=numbers.groups,
        clamps=int(numbers.clamps),
        first_x=first_pixel[0],
        first_y=first_pixel[1],
        source_width=source_size[0],
        source_height=source_size[1],
    )
    _add(
        command_buffer,
        FAMILY.function(device, "convolution_gradient_data", numbers.metal_type),
        destination.size,
        gradient.buffer,
        numbers.weights,
        destination.buffer,
        device.constant_buffer(parameters),
    )


def add_gradient_weights(
    command_buffer: CommandBuffer,
    numbers: Weights,
    gradient: ImagePart,
    source: ImagePart,
    *,
    for_weights: Buffer,
    for_biases: Buffer,
    accumulates: bool,
) -> None:
    """Adds the gradients for weights and biases, written to ``for_weights`` and ``for_biases`` or added to them."""
    device = command_buffer.device
    constants = device.constant_buffer(
        WEIGHTS_PARAMETERS.pack(
            gradient=gradient.layout,
            source=source.layout,
            window=numbers.window,
            groups=numbers.groups,
            clamps=int(numbers.clamps),
            accumulates=int(accumulates),
        )
    )
    width, height = numbers.window[:2]
    outputs, channels = gradient.layout[6], source.layout[6] // numbers.groups
    _add(
        command_buffer,
        FAMILY.function(device, "convolution_gradient_weights", numbers.metal_type),
        outputs * height * width * channels,
        gradient.buffer,
        source.buffer,
        for_weights,
        constants,
    )
    _add(
        command_buffer,
        FAMILY.function(device, "convolution_gradient_biases", numbers.metal_type),
        outputs,
        gradient.buffer,
        for_biases,
        constants,
    )


def add_copy(
    command_buffer: CommandBuffer,
    source: Buffer,
    destination: Buffer,
    count: int,
    *,
    source_offset: int = 0,
) -> None:
    """Adds a copy of ``count`` floats of ``source``, from number ``source_offset`` on."""
    device = command_buffer.device
    parameters = COPY_PARAMETERS.pack(count=count, source_offset=source_offset)
    function = FAMILY.function(device, "copy_parameters", "float")
    _add(command_buffer, function, count, source, destination, device.constant_buffer(parameters))
