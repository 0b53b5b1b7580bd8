"""Adds the work of a convolution to a command buffer: the one place that knows which shaders do it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernels import convolution_depthwise_of_eights as depthwise
from mpsgrad.kernels import convolution_depthwise_rows as depthwise_rows
from mpsgrad.kernels import convolution_depthwise_runs as depthwise_runs
from mpsgrad.kernels import convolution_group_rows as group_rows
from mpsgrad.kernels import convolution_packing as packing
from mpsgrad.kernels import convolution_patches as patches
from mpsgrad.kernels import convolution_planes as planes
from mpsgrad.kernels import convolution_simdgroups as simdgroups
from mpsgrad.kernels import convolution_small_groups as small_groups
from mpsgrad.kernels import convolution_sums
from mpsgrad.kernels import convolution_tiles as tiles
from mpsgrad.kernels import convolution_weights_gradient as weights_gradient
from mpsgrad.kernels import convolution_winograd as winograd
from mpsgrad.kernels.channel_padding import add_paddings
from mpsgrad.kernels.convolution_gather import Plan as GatherPlan
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.kernels.convolution_packing import LANES, PackedWeights
from mpsgrad.kernels.format_conversion import add_conversion
from mpsgrad.kernels.pointwise import Layout
from mpsgrad.tunables import ALWAYS, tunables

FEWEST_ZEROED = 400_000
"""On CPUs so many values of a data gradient, most of which no window of one pixel reads, are zeroed first. Measured."""


class Algorithm(enum.Enum):
    """How a convolution is divided: each simdgroup its own sums, or matrices in tiles, which threadgroups share.

    With tiles, a 3 x 3 or 5 x 5 convolution is computed by Winograd's method where that is faster.
    """

    SIMDGROUPS = "simdgroups"
    TILES = "tiles"


def algorithm_for(device: Device) -> Algorithm:
    """The faster one on ``device``."""
    return Algorithm.SIMDGROUPS if device.family == "cpu" else Algorithm.TILES


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

    ``weights`` is [output channels][kernel height][kernel width][input channels / groups] and ``biases`` those of the
    result, both float32; ``packed`` are their packed forms, which have zeros or other biases for data gradients. With
    ``packs_all`` those of large fully connected layers use them too, which otherwise do without. ``window`` has the
    fields of ``WINDOW``; its origin is that of the encode. If it ``rounds``, one half number for each weight is enough.
    """

    weights: Buffer
    biases: Buffer
    packed: PackedWeights
    window: Layout
    groups: int
    clamps: bool
    metal_type: str
    algorithm: Algorithm
    rounds: bool = False
    packs_all: bool = False

    def geometry(self, source: ImagePart, result: ImagePart) -> ConvolutionGeometry:
        """That of the convolution of ``source``, which is the whole image where edges are clamped."""
        geometry = ConvolutionGeometry(source.layout, result.layout, self.window, self.groups)
        replicates = self.clamps and geometry.reaches_outside((0, 0), source.layout[4:6])
        return replace(geometry, replicates=True) if replicates else geometry


def _computes_in_float(device: Device, numbers: Weights) -> bool:
    """Whether half images are copied into float32 ones, so that no number is converted twice."""
    if numbers.metal_type != "half" or numbers.algorithm is not Algorithm.SIMDGROUPS:
        return False
    return tunables(device.tuning).convolution_by_eights == ALWAYS


def _float_images(command_buffer: CommandBuffer, *parts: ImagePart) -> list[ImagePart]:
    """Float32 images with the extents of ``parts``, in the workspace of the command buffer."""
    layouts, start = [], 0
    for part in parts:
        *_, width, height, channels, images = part.layout
        row = width * channels
        layouts.append((start, channels, row, height * row, width, height, channels, images))
        start += ceiling_divide(part.size, LANES) * LANES
    workspace = command_buffer.workspace(4 * start)
    return [ImagePart(workspace, layout) for layout in layouts]


def _add_conversion(command_buffer: CommandBuffer, metal_type: str, source: ImagePart, destination: ImagePart) -> None:
    of_images = (source.buffer, source.layout), (destination.buffer, destination.layout)
    add_conversion(command_buffer, metal_type, *of_images)


def _add_steps(command_buffer: CommandBuffer, plan: winograd.Plan, **operands: Buffer) -> None:
    """Adds the dispatches of ``plan``, whose operands besides the workspace are given by name."""
    device = command_buffer.device
    operands["workspace"] = command_buffer.workspace(plan.workspace)
    for step in plan.steps:
        command_buffer.add_dispatch(
            step.family.function(device, step.kernel, "float"),
            step.threadgroups,
            *(operands[operand] for operand in step.operands),
            device.constant_buffer(step.parameters),
        )


def _add_gather(
    command_buffer: CommandBuffer,
    numbers: Weights,
    source: ImagePart,
    destination: ImagePart,
    *,
    is_gradient: bool,
) -> None:
    """Adds the result ``destination`` of ``source``, or the data gradient, for which no edges are replicated."""
    device = command_buffer.device
    if _computes_in_float(device, numbers):
        float_source, result = _float_images(command_buffer, source, destination)
        in_float = replace(numbers, metal_type="float")
        _add_conversion(command_buffer, "half", source, float_source)
        _add_gather(command_buffer, in_float, float_source, result, is_gradient=is_gradient)
        _add_conversion(command_buffer, "float", result, destination)
        return
    if is_gradient:
        geometry = ConvolutionGeometry(destination.layout, source.layout, numbers.window, numbers.groups)
    else:
        geometry = numbers.geometry(source, destination)
    plan: GatherPlan | None = None
    if numbers.algorithm is Algorithm.TILES:
        where = numbers.metal_type, device.tiling, device.compute_units
        by_winograd = winograd.plan_gather(geometry, is_gradient, *where)
        if by_winograd is not None and by_winograd.packing is not None:
            packed = numbers.packed.buffer(command_buffer, by_winograd.packing)
            _add_steps(
                command_buffer, by_winograd, source=source.buffer, packed=packed, destination=destination.buffer
            )
            return
        plan = tiles.plan_gather(geometry, is_gradient, *where, rounds=numbers.rounds)
    else:
        of_read: ConvolutionGeometry | None = None
        if is_gradient and not numbers.packs_all and destination.size >= FEWEST_ZEROED:
            of_read = geometry.without_stride()
        if of_read is not None:
            convolution_sums.add_zeros(command_buffer, numbers.metal_type, destination.buffer, destination.layout)
            geometry, destination = of_read, ImagePart(destination.buffer, of_read.source)
        of_cpu = geometry, is_gradient, numbers.metal_type, tunables(device.tuning)
        plan = (
            planes.plan_gather(*of_cpu)
            or group_rows.plan_gather(*of_cpu)
            or small_groups.plan_gather(*of_cpu)
            or patches.plan_gather(*of_cpu)
            or depthwise_runs.plan_gather(*of_cpu)
            or depthwise_rows.plan_gather(*of_cpu)
            or depthwise.plan_gather(*of_cpu)
        )
    if plan is None:
        packs_all = is_gradient and numbers.packs_all
        plan = simdgroups.plan(geometry, is_gradient, numbers.metal_type, tunables(device.tuning), packs_all=packs_all)
    if plan.packing is not None:
        operands = [numbers.packed.buffer(command_buffer, plan.packing)]
    else:
        operands = [numbers.weights] if is_gradient else [numbers.weights, numbers.biases]
    add_planned_gather(command_buffer, plan, numbers.metal_type, source, destination, operands)


def add_planned_gather(
    command_buffer: CommandBuffer,
    plan: GatherPlan,
    metal_type: str,
    source: ImagePart,
    destination: ImagePart,
    weights: Sequence[Buffer],
) -> None:
    """Adds the dispatches of ``plan``, which takes ``weights``, packed unless it reads those of the user."""
    device = command_buffer.device
    function = plan.family.function(device, plan.kernel, metal_type)
    constants, sums = device.constant_buffer(plan.parameters), plan.sums
    result = destination.buffer if sums is None else command_buffer.scratch(sums.partial_bytes)
    (image,) = add_paddings(command_buffer, [source.buffer], [plan.padding])
    command_buffer.add_dispatch(function, plan.threadgroups, image, *weights, result, constants)
    if sums is not None:
        function = sums.family.function(device, sums.kernel, metal_type)
        command_buffer.add_dispatch(function, sums.threadgroups, result, *weights, destination.buffer, constants)


def add_forward(command_buffer: CommandBuffer, numbers: Weights, source: ImagePart, destination: ImagePart) -> None:
    """Adds ``destination = convolution(source) + biases``."""
    _add_gather(command_buffer, numbers, source, destination, is_gradient=False)


def add_forward_by_blocks(
    command_buffer: CommandBuffer, numbers: Weights, source: ImagePart, destination: ImagePart, factor: int
) -> bool:
    """Adds ``add_forward`` with the channels of each pixel written to a block of ``factor`` pixels a side.

    Where there is no kernel for that it adds nothing, and returns False.
    """
    *_, width, height, channels, images = destination.layout
    columns, rows, all_channels = ceiling_divide(width, factor), ceiling_divide(height, factor), channels * factor**2
    row = columns * all_channels
    of_blocks = 0, all_channels, row, rows * row, columns, rows, all_channels, images
    geometry = numbers.geometry(source, ImagePart(destination.buffer, of_blocks))
    where = numbers.metal_type, command_buffer.device.tiling, command_buffer.device.compute_units
    if numbers.algorithm is not Algorithm.TILES or winograd.plan_gather(geometry, False, *where) is not None:
        return False
    plan = tiles.plan_sub_pixels(geometry, destination.layout, factor, *where, rounds=numbers.rounds)
    if plan is None or plan.packing is None:
        return False
    # Of halves of even channels vectors are written, and then copied, sooner than single values. Measured on an H200.
    if numbers.metal_type == "half" and channels % 2 == 0 and plan.sums is None:
        return False
    packed = numbers.packed.buffer(command_buffer, plan.packing)
    add_planned_gather(command_buffer, plan, numbers.metal_type, source, destination, [packed])
    return True


def add_gradient_data(
    command_buffer: CommandBuffer,
    numbers: Weights,
    gradient: ImagePart,
    destination: ImagePart,
    *,
    first_pixel: tuple[int, int],
    source_size: tuple[int, int],
) -> None:
    """Adds ``destination = gradient for the source + packed biases``, without them where edges are replicated.

    ``first_pixel`` (x, y) is where pixel 0 of ``destination`` lies in the source, ``source_size`` the width and height
    of that; both matter only for replicated edges.
    """
    geometry = ConvolutionGeometry(destination.layout, gradient.layout, numbers.window, numbers.groups)
    if not numbers.clamps or not geometry.reaches_outside(first_pixel, source_size):
        _add_gather(command_buffer, numbers, gradient, destination, is_gradient=True)
        return
    device = command_buffer.device
    parameters = simdgroups.REPLICATED_PARAMETERS.pack(
        gradient=gradient.layout,
        destination=destination.layout,
        window=numbers.window,
        groups=numbers.groups,
        first_x=first_pixel[0],
        first_y=first_pixel[1],
        source_width=source_size[0],
        source_height=source_size[1],
    )
    command_buffer.add_dispatch(
        simdgroups.FAMILY.function(device, "convolution_gradient_data_replicated", numbers.metal_type),
        -(-destination.size // simdgroups.THREADS),
        gradient.buffer,
        numbers.weights,
        destination.buffer,
        device.constant_buffer(parameters),
    )


@dataclass(frozen=True, slots=True)
class GradientSums:
    """Where gradients for weights and biases go, float32: written, or added to what is there if it ``accumulates``."""

    weights: Buffer
    biases: Buffer
    accumulates: bool = False


def add_gradient_weights(
    command_buffer: CommandBuffer, numbers: Weights, gradient: ImagePart, source: ImagePart, sums: GradientSums
) -> None:
    """Adds the gradients for weights and biases."""
    device = command_buffer.device
    if _computes_in_float(device, numbers):
        halves = gradient, source
        gradient, source = _float_images(command_buffer, *halves)
        _add_conversion(command_buffer, "half", halves[0], gradient)
        _add_conversion(command_buffer, "half", halves[1], source)
        numbers = replace(numbers, metal_type="float")
    geometry, metal_type, accumulates = numbers.geometry(source, gradient), numbers.metal_type, sums.accumulates
    plan: weights_gradient.Plan | None = None
    if numbers.algorithm is Algorithm.TILES:
        if device.family != "cpu" and convolution_sums.has_few_outputs(geometry):
            of_images = (gradient.buffer, gradient.layout), (source.buffer, source.layout)
            convolution_sums.add_products_of_pixels(command_buffer, metal_type, *of_images, sums.weights, accumulates)
            convolution_sums.add_sums_of_pixels(command_buffer, metal_type, of_images[0], sums.biases, accumulates)
            return
        of_gpu = geometry, accumulates, metal_type, device.tiling, device.compute_units
        by_winograd = winograd.plan_weights(*of_gpu)
        if by_winograd is not None:
            images = {"gradient": gradient.buffer, "source": source.buffer}
            _add_steps(command_buffer, by_winograd, **images, weights=sums.weights, biases=sums.biases)
            return
        plan = tiles.plan_weights(*of_gpu)
    else:
        of_cpu = geometry, accumulates, metal_type, tunables(device.tuning)
        plan = (
            planes.plan_weights(*of_cpu)
            or depthwise_runs.plan_weights(*of_cpu)
            or depthwise_rows.plan_weights(*of_cpu)
            or small_groups.plan_weights(*of_cpu)
            or patches.plan_weights(*of_cpu)
        )
    if plan is None:
        plan = weights_gradient.plan(geometry, accumulates, metal_type, tunables(device.tuning))
    if plan.splits == 1:
        _add_products(command_buffer, plan, metal_type, (gradient, source), (sums.weights, sums.biases))
        return
    partial = command_buffer.scratch(4 * plan.splits * plan.split_stride)
    _add_products(command_buffer, plan, metal_type, (gradient, source), (partial, sums.biases))
    kernel, threadgroups = packing.sum_of_splits(
        plan.split_stride,
        plan.splits,
        device.tuning,
        has_many_threads=numbers.algorithm is Algorithm.TILES,
        has_fours=geometry.weights_count % 4 == geometry.outputs % 4 == 0,
    )
    command_buffer.add_dispatch(
        packing.FAMILY.function(device, kernel, "float"),
        threadgroups,
        partial,
        sums.weights,
        sums.biases,
        device.constant_buffer(plan.sum_parameters),
    )


def _add_products(
    command_buffer: CommandBuffer,
    plan: weights_gradient.Plan,
    metal_type: str,
    images: tuple[ImagePart, ImagePart],
    sums: tuple[Buffer, Buffer],
) -> None:
    """Adds what ``plan`` computes from the gradient and the source, for weights and biases."""
    function = plan.family.function(command_buffer.device, plan.kernel, metal_type)
    constants = command_buffer.device.constant_buffer(plan.parameters)
    buffers = add_paddings(command_buffer, [image.buffer for image in images], plan.paddings)
    command_buffer.add_dispatch(function, plan.threadgroups, *buffers, *sums, constants)


@dataclass(frozen=True, slots=True)
class PartialSums:
    """The gradient for weights in ``splits`` parts that are to be added up, with ``stride`` floats for each."""

    buffer: Buffer
    splits: int
    stride: int


def add_partial_gradient_weights(
    command_buffer: CommandBuffer, numbers: Weights, gradient: ImagePart, source: ImagePart
) -> PartialSums | None:
    """Adds the products of ``add_gradient_weights``; nothing, and None, on CPUs and where other methods add them up."""
    device = command_buffer.device
    geometry = ConvolutionGeometry(source.layout, gradient.layout, numbers.window, numbers.groups)
    uses_tiles = numbers.algorithm is Algorithm.TILES and not convolution_sums.has_few_outputs(geometry)
    if device.family == "cpu" or not uses_tiles:
        return None
    arguments = geometry, False, numbers.metal_type, device.tiling, device.compute_units
    plan = tiles.plan_weights(*arguments)
    if plan is None or winograd.plan_weights(*arguments) is not None:
        return None
    sums, unused = (command_buffer.scratch(4 * count * plan.split_stride) for count in (plan.splits, 1))
    _add_products(command_buffer, plan, numbers.metal_type, (gradient, source), (sums, unused))
    return PartialSums(sums, plan.splits, plan.split_stride)


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
    command_buffer.add_dispatch(
        packing.FAMILY.function(device, "copy_parameters", "float"),
        -(-count // packing.THREADS),
        source,
        destination,
        device.constant_buffer(packing.COPY_PARAMETERS.pack(count=count, source_offset=source_offset)),
    )
