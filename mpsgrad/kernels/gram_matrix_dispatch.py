"""Adds the work of a Gram matrix: products of channels, summed over the pixels of each image, and their gradient.

GPUs multiply in the tiles of convolutions: the sums are those of the gradient for the weights of a 1 x 1 convolution,
and their gradient is that convolution's data gradient, but for each image by itself. Some have tiles of their own, and
gradients of few channels are made in blocks.
"""

from __future__ import annotations

import math

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer
from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernels import convolution_tiles as tiles
from mpsgrad.kernels import gram_matrix_few_channels as few
from mpsgrad.kernels import gram_matrix_gradient_blocks as blocks
from mpsgrad.kernels import gram_matrix_tiles as in_place
from mpsgrad.kernels.channel_padding import TIME_WITHOUT_VECTORS, Padding, add_paddings
from mpsgrad.kernels.convolution_dispatch import Algorithm, ImagePart, add_planned_gather, algorithm_for
from mpsgrad.kernels.convolution_packing import HALVES_AT_ONCE, LANES
from mpsgrad.kernels.pointwise import ASSUMED_COMPUTE_UNITS, THREADS_OF_EIGHTS
from mpsgrad.kernels.strided_reductions import add_reduction
from mpsgrad.kernels.strides import EXTENTS, REDUCED, STRIDES, View, add_elementwise, strided_family
from mpsgrad.shader import ParameterStruct

FEW_CHANNELS = LANES // 2
"""So few channels are not worth a tile."""
FEWEST_PRODUCTS = 1 << 22
"""With fewer, the dispatches of tiles take longer than the sums."""
FEWEST_CHANNELS_IN_PLACE, FEWEST_PRODUCTS_IN_PLACE = 8, 1 << 18
"""The same of tiles that are multiplied where they lie, which are worth it for so few channels if four are copied at a
time. Measured on an H200."""
TERMS_THREADS = 256
SQUARES = (32, 1), (16, 4), (8, 16), (4, 64)
"""The sides of the squares in which partial sums are added up, and how many threads add up the same ones: the largest
of which each compute unit has one, or two where no vector fits the rows. Measured on an H200."""

PARAMETERS = ParameterStruct(
    "GramMatrixParameters",
    source=STRIDES,
    other=STRIDES,
    parts=STRIDES,
    destination=STRIDES,
    extents=EXTENTS,
    reduced=REDUCED,
    scale="float",
)
TILES = (6, 16), (8, 8)
"""Rows and columns whose sums a thread of a CPU has in registers: twelve of sixteen, or eight of few channels."""
TERMS_PARAMETERS = ParameterStruct(
    "GramMatrixTermsParameters",
    start="int",
    column_stride="int",
    image_stride="int",
    channels="int",
    padded_channels="int",
    rows="int",
    weight_rows="int",
    scale="float",
)
SQUARES_PARAMETERS = ParameterStruct(
    "GramMatrixSquaresParameters",
    matrix="int",
    column_stride="int",
    matrix_image_stride="int",
    channels="int",
    splits="int",
    split_stride="int",
    row_stride="int",
    scale="float",
)
FAMILY = strided_family(
    "gram_matrix",
    (PARAMETERS, TERMS_PARAMETERS, SQUARES_PARAMETERS),
    squares=SQUARES,
    tiles=TILES,
    threads_of_tiles=THREADS_OF_EIGHTS,
    terms_threads=TERMS_THREADS,
)
_KEPT = (True, True, False, True)


def add_products(
    command_buffer: CommandBuffer, alpha: float, metal_type: str, source: ImagePart, destination: ImagePart
) -> None:
    """Adds ``destination[f][c] = alpha * sum of source[p][f] * source[p][c]`` over the pixels ``p`` of each image."""
    start, pixel, _, image, width, height, channels, images = source.layout
    first, column, _, step, *_ = destination.layout
    pixels = width * height
    view = destination.buffer, View(first, (1, column, 0, step))
    takes_few = few.takes(command_buffer, metal_type, source)
    chunks = few.chunks_of(command_buffer, source)
    if takes_few and chunks == 1:
        whole = destination.buffer, few.Matrices(first, column, step)
        few.add_products(command_buffer, alpha, metal_type, source, whole, 1)
        return
    if takes_few:
        size = channels**2
        parts = command_buffer.scratch(4 * size * chunks * images)
        places = few.Matrices(0, channels, size * chunks, size)
        few.add_products(command_buffer, 1.0, metal_type, source, (parts, places), chunks)
        operands = {"parts": (parts, View(0, (1, channels, size, chunks * size))), "destination": view}
        extents, name = (channels, channels, chunks, images), "sum_parts"
    elif _uses_tiles(command_buffer, metal_type, source, FEWEST_CHANNELS_IN_PLACE):
        _add_products_of_tiles(command_buffer, alpha, metal_type, source, destination)
        return
    else:
        operands = {
            "source": (source.buffer, View(start, (1, 0, pixel, image))),
            "other": (source.buffer, View(start, (0, 1, pixel, image))),
            "destination": view,
        }
        extents, name = (channels, channels, pixels, images), "product"
    add_reduction(
        command_buffer,
        FAMILY,
        PARAMETERS,
        name,
        metal_type,
        operands,
        extents,
        _KEPT,
        merge="sum_parts",
        tile=_tile(channels),
        scale=alpha,
    )


def _tile(channels: int) -> tuple[int, int]:
    wide, narrow = TILES
    return wide if channels >= wide[1] else narrow


def _uses_tiles(
    command_buffer: CommandBuffer, metal_type: str, source: ImagePart, fewest_in_place: int = FEW_CHANNELS + 1
) -> bool:
    start, pixel, _, image, _, _, channels, _ = source.layout
    has_tiles = in_place.has_tiles(command_buffer.device.tiling, metal_type)
    is_in_place = metal_type == "half" and channels % 2 == 0 and has_tiles
    fewest = FEWEST_PRODUCTS_IN_PLACE if is_in_place else FEWEST_PRODUCTS
    takes_fours = is_in_place and not any(number % 4 for number in (start, pixel, image, channels))
    return (
        channels >= (fewest_in_place if takes_fours else FEW_CHANNELS + 1)
        and source.size * channels >= fewest
        and algorithm_for(command_buffer.device) is Algorithm.TILES
    )


def _add_products_of_tiles(
    command_buffer: CommandBuffer, alpha: float, metal_type: str, source: ImagePart, destination: ImagePart
) -> None:
    device = command_buffer.device
    start, pixel, _, image, width, height, channels, images = source.layout
    where = device.tiling, device.compute_units
    plan = in_place.plan_products(metal_type, source.layout, destination.layout, alpha, *where)
    if plan is not None:
        _add_products_in_place(command_buffer, alpha, metal_type, plan, source.buffer, destination, images)
        return
    pixels, values, row_stride = width * height, source.buffer, channels
    each = start, pixel, pixels * pixel, image, pixels, 1, channels, images
    of_weights = tiles.plan_products_of_channels(each, metal_type, *where)
    padding, units = Padding(source.layout, metal_type), device.compute_units or ASSUMED_COMPUTE_UNITS
    if metal_type == "half":
        plan = in_place.plan_products(metal_type, padding.destination, None, alpha, *where)
        if plan is not None and plan.time + padding.time(units) < TIME_WITHOUT_VECTORS * of_weights.time:
            (copy,) = add_paddings(command_buffer, [source.buffer], [padding])
            _add_products_in_place(command_buffer, alpha, metal_type, plan, copy, destination, images)
            return
    elif channels % 2 or pixel % 2:
        _, _, _, step, *_, padded, _ = padding.destination
        of_padded = tiles.plan_products_of_channels(
            (0, padded, step, step, pixels, 1, padded, images), metal_type, *where
        )
        if of_padded.time + padding.time(units) < TIME_WITHOUT_VECTORS * of_weights.time:
            (values,) = add_paddings(command_buffer, [source.buffer], [padding])
            of_weights, row_stride = of_padded, padded
    parts, unused = (command_buffer.scratch(4 * count * of_weights.split_stride) for count in (of_weights.splits, 1))
    command_buffer.add_dispatch(
        of_weights.family.function(device, of_weights.kernel, metal_type),
        of_weights.threadgroups,
        values,
        values,
        parts,
        unused,
        device.constant_buffer(of_weights.parameters),
    )
    sums = parts, of_weights.splits // images, of_weights.split_stride, row_stride
    _add_sums_of_squares(command_buffer, alpha, metal_type, sums, destination)


def _add_products_in_place(
    command_buffer: CommandBuffer,
    alpha: float,
    metal_type: str,
    plan: in_place.Plan,
    source: Buffer,
    destination: ImagePart,
    images: int,
) -> None:
    device = command_buffer.device
    parts = command_buffer.scratch(4 * (plan.splits * images * plan.split_stride if plan.leaves_parts else 1))
    command_buffer.add_dispatch(
        plan.family.function(device, plan.kernel, metal_type),
        plan.threadgroups,
        source,
        parts,
        destination.buffer,
        device.constant_buffer(plan.parameters),
    )
    if plan.leaves_parts:
        sums = parts, plan.splits, plan.split_stride, plan.row_stride
        _add_sums_of_squares(command_buffer, alpha, metal_type, sums, destination)


def _add_sums_of_squares(
    command_buffer: CommandBuffer,
    alpha: float,
    metal_type: str,
    sums: tuple[Buffer, int, int, int],
    destination: ImagePart,
) -> None:
    """``sums`` are a buffer with partial sums, how many there are of each image, their stride, and that of rows."""
    device, (parts, splits, split_stride, row_stride) = command_buffer.device, sums
    first, column, _, step, _, _, channels, images = destination.layout
    fewest = (1 if channels % 4 == 0 else 2) * (device.compute_units or ASSUMED_COMPUTE_UNITS)
    squares = {side: math.comb(ceiling_divide(channels, side) + 1, 2) * images for side, _ in SQUARES}
    side = next((side for side, count in squares.items() if count >= fewest), SQUARES[-1][0])
    parameters = SQUARES_PARAMETERS.pack(
        matrix=first,
        column_stride=column,
        matrix_image_stride=step,
        channels=channels,
        splits=splits,
        split_stride=split_stride,
        row_stride=row_stride,
        scale=alpha,
    )
    command_buffer.add_dispatch(
        FAMILY.function(device, f"sum_of_squares_of_{side}", metal_type),
        squares[side],
        parts,
        destination.buffer,
        device.constant_buffer(parameters),
    )


def add_gradient(
    command_buffer: CommandBuffer,
    alpha: float,
    metal_type: str,
    gradient: ImagePart,
    source: ImagePart,
    destination: ImagePart,
) -> None:
    """Adds ``destination[p][c] = alpha * sum of source[p][f] * (gradient[f][c] + gradient[c][f])`` over ``f``."""
    device = command_buffer.device
    uses_tiles = algorithm_for(device) is Algorithm.TILES
    layouts = gradient.layout, source.layout, destination.layout
    of_blocks = blocks.plan(metal_type, *layouts, alpha) if uses_tiles else None
    if of_blocks is not None:
        command_buffer.add_dispatch(
            of_blocks.family.function(device, of_blocks.kernel, metal_type),
            of_blocks.threadgroups,
            gradient.buffer,
            source.buffer,
            destination.buffer,
            device.constant_buffer(of_blocks.parameters),
        )
        return
    if _uses_tiles(command_buffer, metal_type, source):
        _add_product_with_terms(command_buffer, alpha, metal_type, gradient, source, destination)
        return
    if few.takes(command_buffer, metal_type, source, destination):
        few.add_gradient(command_buffer, alpha, metal_type, gradient, source, destination)
        return
    first, column, _, step, *_ = gradient.layout
    start, pixel, _, image, width, height, channels, images = source.layout
    matrices = command_buffer.scratch(4 * channels * channels * images)
    view = matrices, View(0, (1, channels, 0, channels * channels))
    # The transposed one is read column by column.
    operands = {
        "source": (gradient.buffer, View(first, (1, column, 0, step))),
        "other": (gradient.buffer, View(first, (column, 1, 0, step))),
        "parts": view,
    }
    square = channels, channels, 1, images
    add_elementwise(command_buffer, FAMILY, PARAMETERS, "symmetric", metal_type, operands, square, scale=alpha)
    at, across, _, far, *_ = destination.layout
    # Channels that the forward kernel read, pixels, and the channels f that are added up.
    add_reduction(
        command_buffer,
        FAMILY,
        PARAMETERS,
        "product_of_sums",
        metal_type,
        {
            "source": (source.buffer, View(start, (0, pixel, 1, image))),
            "other": (matrices, View(0, (1, 0, channels, channels * channels))),
            "destination": (destination.buffer, View(at, (1, across, 0, far))),
        },
        (channels, width * height, channels, images),
        _KEPT,
        merge="sum_parts",
        tile=_tile(channels),
        scale=1.0,
    )


def _add_product_with_terms(
    command_buffer: CommandBuffer,
    alpha: float,
    metal_type: str,
    gradient: ImagePart,
    source: ImagePart,
    destination: ImagePart,
) -> None:
    """``add_gradient`` in tiles. A packed weight is the sum of two numbers; halves stay apart, and are not rounded."""
    device = command_buffer.device
    where = device.tiling, device.compute_units
    first, column, _, step, *_, channels, images = gradient.layout
    squares = ceiling_divide(channels, LANES)
    # Own tiles take halves as they lie, and floats as they are packed.
    as_packed = 0, LANES, 0, squares * channels * LANES, channels, channels, channels, images
    matrices = gradient.layout if metal_type == "half" else as_packed
    own = in_place.plan_gradient(metal_type, matrices, source.layout, destination.layout, alpha, *where)
    if own is not None and metal_type == "half":
        _add_gradient_in_tiles(command_buffer, metal_type, own, gradient.buffer, source, destination)
        return
    gather = tiles.plan_products_with_matrices(source.layout, destination.layout, metal_type, *where)
    assert gather.packing is not None
    if own is not None and gather.time <= own.time:
        own = None
    weight_rows = channels * images * (1 if metal_type == "half" else squares)
    count = gather.packing.count if own is None else weight_rows * LANES
    if metal_type == "half":
        padded, rows = ceiling_divide(channels, HALVES_AT_ONCE) * HALVES_AT_ONCE, weight_rows
        threadgroups = ceiling_divide(rows * padded, TERMS_THREADS)
    else:
        padded, rows = squares * LANES, count // LANES
        zeros = (rows - weight_rows) * LANES
        threadgroups = images * squares**2 + ceiling_divide(zeros, 4 * TERMS_THREADS)
    parameters = TERMS_PARAMETERS.pack(
        start=first,
        column_stride=column,
        image_stride=step,
        channels=channels,
        padded_channels=padded,
        rows=rows,
        weight_rows=weight_rows,
        scale=alpha,
    )
    packed = command_buffer.scratch(4 * count)
    command_buffer.add_dispatch(
        FAMILY.function(device, "pack_terms", metal_type),
        threadgroups,
        gradient.buffer,
        packed,
        device.constant_buffer(parameters),
    )
    if own is not None:
        _add_gradient_in_tiles(command_buffer, metal_type, own, packed, source, destination)
    else:
        add_planned_gather(command_buffer, gather, metal_type, source, destination, [packed])


def _add_gradient_in_tiles(
    command_buffer: CommandBuffer,
    metal_type: str,
    plan: in_place.Plan,
    matrices: Buffer,
    source: ImagePart,
    destination: ImagePart,
) -> None:
    device = command_buffer.device
    command_buffer.add_dispatch(
        plan.family.function(device, plan.kernel, metal_type),
        plan.threadgroups,
        matrices,
        source.buffer,
        destination.buffer,
        device.constant_buffer(plan.parameters),
    )
