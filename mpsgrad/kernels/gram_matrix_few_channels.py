"""Gram matrices of images of few channels on CPUs: eight pixels are whole vectors, which single ones do not fill."""

from __future__ import annotations

from typing import NamedTuple

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer
from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernels.convolution_dispatch import ImagePart
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import tunables

MOST_CHANNELS = 7
FEWEST_TERMS, THREADS_PER_UNIT = 1 << 17, 4
"""Of a chunk of an image, and how many threads there are at most, if one for each image is not enough."""

PARAMETERS = ParameterStruct(
    "GramMatrixFewParameters",
    source="int",
    source_image_stride="int",
    destination="int",
    destination_image_stride="int",
    matrix="int",
    matrix_column_stride="int",
    matrix_image_stride="int",
    matrix_chunk_stride="int",
    channels="int",
    pixels="int",
    images="int",
    chunks="int",
    pixels_per_chunk="int",
    scale="float",
)
FAMILY = ShaderFamily(
    "gram_matrix_of_few_channels",
    (PARAMETERS,),
    {"most_channels": MOST_CHANNELS},
    ahead_of_time=False,
    device_families=("cpu",),
)


class Matrices(NamedTuple):
    """Where the matrices of images begin, and the strides of their columns, of images, and of an image's chunks."""

    start: int
    column_stride: int
    image_stride: int
    chunk_stride: int = 0


def takes(command_buffer: CommandBuffer, metal_type: str, *parts: ImagePart) -> bool:
    """Whether its kernels are for images with these parts; those of halves were measured with few registers only."""
    device = command_buffer.device
    return (
        device.family == "cpu"
        and (metal_type == "float" or not tunables(device.tuning).has_many_registers)
        and all(part.layout[1] == part.layout[6] <= MOST_CHANNELS for part in parts)
    )


def chunks_of(command_buffer: CommandBuffer, source: ImagePart) -> int:
    """How many threads share an image of ``source``."""
    *_, width, height, channels, images = source.layout
    wanted = ceiling_divide(THREADS_PER_UNIT * command_buffer.device.compute_units, images)
    return max(1, min(wanted, width * height * channels**2 // FEWEST_TERMS))


def add_products(
    command_buffer: CommandBuffer,
    alpha: float,
    metal_type: str,
    source: ImagePart,
    matrices: tuple[Buffer, Matrices],
    chunks: int,
) -> None:
    """Adds the products of channels of ``source``, summed over each of so many ``chunks`` of an image.

    Those of several chunks are floats, of whichever type the source is.
    """
    buffer, places = matrices
    name = "few_products" if chunks == 1 else "few_products_of_chunk"
    _add(command_buffer, name, metal_type, (source.buffer, buffer), alpha, source, places, chunks)


def add_gradient(
    command_buffer: CommandBuffer,
    alpha: float,
    metal_type: str,
    gradient: ImagePart,
    source: ImagePart,
    destination: ImagePart,
) -> None:
    """Adds the gradient of the Gram matrices of ``source``."""
    first, column, _, step, *_ = gradient.layout
    _add(
        command_buffer,
        "few_products_of_sums",
        metal_type,
        (gradient.buffer, source.buffer, destination.buffer),
        alpha,
        source,
        Matrices(first, column, step),
        chunks_of(command_buffer, source),
        destination=destination.layout[0],
        destination_image_stride=destination.layout[3],
    )


def _add(
    command_buffer: CommandBuffer,
    function_name: str,
    metal_type: str,
    buffers: tuple[Buffer, ...],
    alpha: float,
    source: ImagePart,
    matrices: Matrices,
    chunks: int,
    **destination: int,
) -> None:
    device = command_buffer.device
    start, _, _, image, width, height, channels, images = source.layout
    pixels_per_chunk = ceiling_divide(width * height, chunks)
    parameters = PARAMETERS.pack(
        **{"destination": 0, "destination_image_stride": 0, **destination},
        source=start,
        source_image_stride=image,
        matrix=matrices.start,
        matrix_column_stride=matrices.column_stride,
        matrix_image_stride=matrices.image_stride,
        matrix_chunk_stride=matrices.chunk_stride,
        channels=channels,
        pixels=width * height,
        images=images,
        chunks=chunks,
        pixels_per_chunk=pixels_per_chunk,
        scale=alpha,
    )
    function = FAMILY.function(device, function_name, metal_type)
    command_buffer.add_dispatch(function, chunks * images, *buffers, device.constant_buffer(parameters))
