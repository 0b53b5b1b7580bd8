"""Adds the work of a transposed convolution: that of the ordinary convolution whose data gradient it is.

With the weights of output channel ``o`` and input channel ``c`` exchanged, and the taps in the opposite order, the
result of a transposed convolution is the gradient for the source of an ordinary one, and the gradients are a result and
a gradient for weights.
"""

from __future__ import annotations

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer
from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernels.convolution_descriptor import ConvolutionDescriptor
from mpsgrad.kernels.convolution_dispatch import (
    GradientSums,
    ImagePart,
    Weights,
    add_gradient_weights,
    add_partial_gradient_weights,
)
from mpsgrad.kernels.convolution_sums import add_sum, add_sum_of_parts, add_sums_of_pixels
from mpsgrad.kernels.strides import View, zeros
from mpsgrad.shader import ParameterStruct, ShaderFamily

TURNED_TILE, TURNING_THREADS = 32, 256
TURNED_TILE_OF_CPU = FEWEST_TURNED = 16
"""So many channels of either kind are worth a tile."""
TURNING_PARAMETERS = ParameterStruct(
    "ConvolutionTurningParameters",
    outputs="int",
    taps="int",
    inputs="int",
    output_tiles="int",
    input_tiles="int",
    accumulates="int",
)
TURNING_FAMILY = ShaderFamily(
    "convolution_turning",
    (TURNING_PARAMETERS,),
    {"tile": TURNED_TILE, "threads": TURNING_THREADS, "by_eights": False},
    {"cpu": {"tile": TURNED_TILE_OF_CPU, "by_eights": True}},
    dtypes=("float",),
    ahead_of_time=False,
)


def _axes(descriptor: ConvolutionDescriptor) -> tuple[int, int, int, int]:
    """Groups, outputs of a group, taps, and inputs of a group."""
    taps = descriptor.kernel_width * descriptor.kernel_height
    if descriptor.channel_multiplier:
        return descriptor.output_feature_channels, 1, taps, 1
    groups = descriptor.groups
    return groups, descriptor.output_feature_channels // groups, taps, descriptor.input_feature_channels // groups


def turned(descriptor: ConvolutionDescriptor, weights: np.ndarray) -> np.ndarray:
    """``weights`` [group][output][tap][input] as [group][input][opposite tap][output], one row."""
    return np.ascontiguousarray(weights.reshape(_axes(descriptor))[:, :, ::-1].transpose(0, 3, 2, 1)).reshape(-1)


def add_turning(
    command_buffer: CommandBuffer,
    descriptor: ConvolutionDescriptor,
    source: Buffer,
    destination: Buffer,
    *,
    back: bool = False,
    accumulates: bool = False,
) -> None:
    """``turned`` on the device, or with ``back`` its inverse; the sum with ``destination`` if it ``accumulates``."""
    groups, outputs, taps, inputs = _axes(descriptor)
    if back:
        outputs, inputs = inputs, outputs
    device = command_buffer.device
    if min(outputs, inputs) >= FEWEST_TURNED:
        tile = TURNED_TILE_OF_CPU if device.family == "cpu" else TURNED_TILE
        input_tiles, output_tiles = ceiling_divide(inputs, tile), ceiling_divide(outputs, tile)
        parameters = TURNING_PARAMETERS.pack(
            outputs=outputs,
            taps=taps,
            inputs=inputs,
            output_tiles=output_tiles,
            input_tiles=input_tiles,
            accumulates=int(accumulates),
        )
        command_buffer.add_dispatch(
            TURNING_FAMILY.function(device, "turn_weights", "float"),
            groups * taps * input_tiles * (1 if device.family == "cpu" else output_tiles),
            source,
            destination,
            device.constant_buffer(parameters),
        )
        return
    of_source = View((taps - 1) * inputs, (taps * inputs, -inputs, 1, outputs * taps * inputs))
    of_destination = View(0, (1, outputs, taps * outputs, inputs * taps * outputs))
    addend = (destination, of_destination) if accumulates else zeros(command_buffer.device)
    extents = (outputs, taps, inputs, groups)
    add_sum(command_buffer, "float", (source, of_source), addend, (destination, of_destination), extents)


def add_gradients(
    command_buffer: CommandBuffer,
    descriptor: ConvolutionDescriptor,
    numbers: Weights,
    gradient: ImagePart,
    source: ImagePart,
    sums: GradientSums,
) -> None:
    """Adds the gradients for weights and biases.

    ``numbers`` are those of the ordinary convolution, which takes ``gradient`` for its source.
    """
    groups, outputs, taps, inputs = _axes(descriptor)
    parts = add_partial_gradient_weights(command_buffer, numbers, source, gradient) if groups == 1 else None
    if parts is not None and parts.splits > 1:
        # [input][opposite tap][output], added up in the order of the weights.
        in_parts = View(0, (1, outputs, taps * outputs, parts.stride))
        of_weights = View((taps - 1) * inputs, (taps * inputs, -inputs, 1, 0))
        extents = outputs, taps, inputs, parts.splits
        in_place = sums.weights, of_weights
        add_sum_of_parts(command_buffer, (parts.buffer, in_parts), in_place, extents, sums.accumulates)
    else:
        if parts is not None:
            weights = parts.buffer
        else:
            weights, unused = (command_buffer.scratch(4 * count) for count in (_count(descriptor), source.layout[6]))
            add_gradient_weights(command_buffer, numbers, source, gradient, GradientSums(weights, unused))
        add_turning(command_buffer, descriptor, weights, sums.weights, back=True, accumulates=sums.accumulates)
    of_image = gradient.buffer, gradient.layout
    add_sums_of_pixels(command_buffer, numbers.metal_type, of_image, sums.biases, sums.accumulates)


def _count(descriptor: ConvolutionDescriptor) -> int:
    return int(np.prod(descriptor.weights_shape))
