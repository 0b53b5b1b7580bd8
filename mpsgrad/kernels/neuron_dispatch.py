"""How the kernels of neurons and their gradients are dispatched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.image import Image
from mpsgrad.kernel import IMAGE_LAYOUT
from mpsgrad.kernels.neuron_descriptor import NEURON, NEURON_TYPE_NAMES, NeuronDescriptor, NeuronType
from mpsgrad.kernels.pointwise import (
    CHUNKED_ROWS,
    THREADS_OF_EIGHTS,
    Layout,
    Operand,
    bytes_of_floats,
    elements_per_thread,
    is_run_of_eights,
    is_run_of_vectors,
    merge_channels,
    pieces,
    values_of_vector,
)
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import tunables

THREADS = 256
VECTOR_THREADS, VECTORS_AT_ONCE = 128, 2
"""Of the kernels that take elements by vectors, which GPUs have: a thread has so many vectors of all images together on
the way."""

ELEMENTS_AHEAD = 128
"""So far ahead two cores with AVX2 read memory fastest: a page ahead costs up to a seventh, none at all an eighth.
What the caches hold takes up to a quarter longer if it is fetched ahead, and so does all of it on a Zen 5."""

CONSTANT_DERIVATIVES = NeuronType.NONE, NeuronType.LINEAR
"""Gradients of these do not read the source."""

LONG_FUNCTIONS = frozenset(
    {
        NeuronType.SIGMOID,
        NeuronType.TANH,
        NeuronType.SOFT_PLUS,
        NeuronType.POWER,
        NeuronType.EXPONENTIAL,
        NeuronType.LOGARITHM,
        NeuronType.GELU,
    }
)
"""Those that take many instructions, so that lines that are not read before they are overwritten are worth less."""
LONG_DERIVATIVES = LONG_FUNCTIONS - {NeuronType.LOGARITHM, NeuronType.GELU}
BY_LANES = frozenset({NeuronType.POWER})
"""Of these CPUs with registers of sixteen floats take a tenth less time by the lanes of simdgroups than by sixteens."""
HALVES_BY_EIGHTS = frozenset({NeuronType.ELU})
GRADIENTS_OF_HALVES_BY_EIGHTS = frozenset(
    {NeuronType.ABSOLUTE, NeuronType.ELU, NeuronType.HARD_SIGMOID, NeuronType.RELUN}
)
"""Those of halves that CPUs with 16 registers of eight floats take by eights, in a twentieth to a third less time than
by the lanes of simdgroups. Of others eights take as long, or longer."""
DOUBLED_HALVES = frozenset({NeuronType.SIGMOID, NeuronType.PRELU, NeuronType.RELUN, NeuronType.GELU})
GRADIENTS_OF_DOUBLED_HALVES = frozenset({NeuronType.PRELU, NeuronType.GELU})
"""Those of halves for which CPUs with 16 registers of eight floats take less time if these are doubled and divided by
two again, so that no compiler chooses between halves. Others take as long, or longer."""

PARAMETERS = ParameterStruct(
    "NeuronParameters",
    gradient=IMAGE_LAYOUT,
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    chunks="int",
    pixels_per_simdgroup="int",
    elements_per_thread="int",
    exceeds_caches="int",
    slope_count="int",
    neuron=NEURON,
)
SLOPE_SUM_PARAMETERS = ParameterStruct("SlopeSumParameters", **CHUNKED_ROWS, channels="int", accumulates="int")


def _family(kind: NeuronType, name: str) -> ShaderFamily:
    chooses = kind in HALVES_BY_EIGHTS | GRADIENTS_OF_HALVES_BY_EIGHTS
    return ShaderFamily(
        f"neuron_{name}",
        (IMAGE_LAYOUT, NEURON, PARAMETERS, SLOPE_SUM_PARAMETERS),
        {
            "threads": THREADS,
            "neuron_types": (name,),
            "by_vectors": True,
            "by_eights": False,
            "threads_of_eights": THREADS_OF_EIGHTS,
            "constant_derivatives": tuple(NEURON_TYPE_NAMES[kind] for kind in CONSTANT_DERIVATIVES),
            "vector_threads": VECTOR_THREADS,
            "vectors_at_once": VECTORS_AT_ONCE,
            "calls_functions": True,
        },
        {"cpu": {"by_vectors": False, "by_eights": True, "calls_functions": False}},
        measured=lambda numbers: {
            "elements_ahead": 0 if numbers.has_many_registers else ELEMENTS_AHEAD,
            "elements": numbers.neuron_elements_per_simdgroup,
            "loads": numbers.neuron_loads_before_a_store,
            "by_sixteens": numbers.has_many_registers,
            "halves_by_eights": chooses and not numbers.has_many_registers,
            "doubles_halves": kind in DOUBLED_HALVES and not numbers.has_many_registers,
            "doubles_of_gradients": kind in GRADIENTS_OF_DOUBLED_HALVES and not numbers.has_many_registers,
        },
        template="neuron",
        ahead_of_time=name == "relu",
    )


FAMILIES = {kind: _family(kind, name) for kind, name in zip(NeuronType, NEURON_TYPE_NAMES, strict=True)}


class NeuronProperties:
    """The descriptor of a neuron kernel and its parts."""

    device: Device
    _neuron_descriptor: NeuronDescriptor

    @property
    def neuron_descriptor(self) -> NeuronDescriptor:
        """The type and the parameters of the neuron."""
        return self._neuron_descriptor

    @property
    def neuron_type(self) -> NeuronType:
        """Which function it is."""
        return self._neuron_descriptor.neuron_type

    @property
    def a(self) -> float:
        """The parameter a of the function."""
        return self._neuron_descriptor.a

    @property
    def b(self) -> float:
        """The parameter b of the function."""
        return self._neuron_descriptor.b

    @property
    def c(self) -> float:
        """The parameter c of the function."""
        return self._neuron_descriptor.c

    @property
    def data(self) -> np.ndarray | None:
        """The slopes of a PRELU, float32; None for other types."""
        return self._neuron_descriptor.data


def _threadgroups_of_run(
    device: Device, metal_type: str, layouts: Sequence[Layout], operands: int, share: int, has_eights: bool
) -> tuple[str, int] | None:
    """The variant for elements that follow each other in all images, by eights or vectors, and its threadgroups.

    None where that does not take them. ``layouts`` are merged, the destination's first; ``share`` are the elements of a
    thread of a CPU, where ``has_eights`` says whether it takes them by eights.
    """
    run = layouts[0][6]
    if device.family == "cpu":
        if has_eights and is_run_of_eights(layouts):
            return "_of_eights", -(-run // (THREADS_OF_EIGHTS * share))
        return None
    values = values_of_vector(metal_type)
    if is_run_of_vectors(layouts, values):
        return "_of_vectors", -(-run // (values * VECTOR_THREADS * (VECTORS_AT_ONCE // operands)))
    return None


def add_neuron(
    kernel: NeuronProperties,
    command_buffer: CommandBuffer,
    function_name: str,
    destination: Image,
    layout: Layout,
    operands: Sequence[tuple[Image, Operand]],
) -> None:
    """One run of ``function_name`` for each piece of ``layout``; the last operand is the forward source."""
    descriptor, device = kernel.neuron_descriptor, kernel.device
    metal_type = destination.channel_format.metal_type
    numbers = tunables(device.tuning)
    elements = numbers.neuron_elements_per_simdgroup
    channels = layout[6]
    is_gradient = len(operands) == 2
    read = 1 if is_gradient and descriptor.neuron_type in CONSTANT_DERIVATIVES else len(operands)
    long_types = LONG_DERIVATIVES if is_gradient else LONG_FUNCTIONS
    may_take_lanes = device.family == "cpu" and numbers.has_many_registers and not is_gradient
    by_lanes = may_take_lanes and descriptor.neuron_type in BY_LANES
    most_bytes = numbers.cached_bytes if descriptor.neuron_type in long_types else numbers.streamed_bytes
    halves_by_eights = GRADIENTS_OF_HALVES_BY_EIGHTS if is_gradient else HALVES_BY_EIGHTS
    has_eights = metal_type == "float" or (
        not numbers.has_many_registers and descriptor.neuron_type in halves_by_eights
    )
    slopes: tuple[Buffer, ...] = ()
    if descriptor.neuron_type is NeuronType.PRELU:
        slopes = (descriptor.slope_table(device, channels),)
    for piece in pieces(layout, tuple(operand for _, operand in operands)):
        zeros: Layout = (0, 0, 0, 0, *piece.destination[4:])
        target, *parts = merge_channels([piece.destination, *(part or zeros for part in piece.operands)])
        images = [
            image.buffer if part is not None else device.constant_buffer(bytes(4 * channels))
            for (image, _), part in zip(operands, piece.operands, strict=True)
        ]
        _, _, _, _, width, height, run, count = target
        share = elements_per_thread(run, device.compute_units, numbers)
        exceeds = (1 + read) * bytes_of_floats(target) > most_bytes
        chunks = -(-run // elements)
        pixels_per_simdgroup = max(1, elements // run)
        simdgroups = chunks * -(-(width * height * count) // pixels_per_simdgroup)
        variant, threadgroups = "", -(-simdgroups // (THREADS // 32))
        if None not in piece.operands and not by_lanes:
            merged = target, *parts
            of_run = _threadgroups_of_run(device, metal_type, merged, len(operands), share, has_eights)
            variant, threadgroups = of_run or (variant, threadgroups)
        parameters = PARAMETERS.pack(
            gradient=parts[0],
            source=parts[-1],
            destination=target,
            chunks=chunks,
            pixels_per_simdgroup=pixels_per_simdgroup,
            elements_per_thread=share,
            exceeds_caches=int(exceeds),
            slope_count=channels,
            neuron=descriptor.shader_parameters,
        )
        command_buffer.add_dispatch(
            FAMILIES[descriptor.neuron_type].function(device, function_name + variant, metal_type),
            threadgroups,
            *images,
            *slopes,
            destination.buffer,
            device.constant_buffer(parameters),
        )
