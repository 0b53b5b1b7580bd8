"""Neurons (activations) and their gradients."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import GeometryError, StateError
from mpsgrad.geometry import EdgeMode
from mpsgrad.image import Image
from mpsgrad.kernel import (
    IMAGE_LAYOUT,
    BaseKernel,
    GradientKernel,
    Kernel,
    Regions,
    fill_buffer_with_zeros,
)
from mpsgrad.kernels.accumulation import Accumulation
from mpsgrad.kernels.neuron_descriptor import (
    NEURON,
    NEURON_TYPE_NAMES,
    NeuronDescriptor,
    NeuronType,
    require_neuron_descriptor,
)
from mpsgrad.kernels.pointwise import (
    CHUNKED_ROWS,
    THREADS_OF_EIGHTS,
    Operand,
    chunked_rows,
    elements_per_thread,
    exceeds_caches,
    is_run_of_eights,
    is_run_of_vectors,
    merge_channels,
    pieces,
    summing_pixels_per_row,
    values_of_vector,
)
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.state import ForwardSnapshot, GradientState
from mpsgrad.tunables import tunables
from mpsgrad.vector import Vector

THREADS = 256
VECTOR_THREADS, VECTORS_AT_ONCE = 128, 2
"""Of the kernels that take elements by vectors, which GPUs have: a thread has so many vectors of all images together on
the way."""

ELEMENTS_AHEAD = 128
"""So far ahead two cores read memory fastest: a page ahead costs up to a seventh, none at all up to an eighth. What the
caches hold takes up to a quarter longer if it is fetched ahead."""

CONSTANT_DERIVATIVES = NeuronType.NONE, NeuronType.LINEAR
"""Gradients of these do not read the source."""

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


def _family(name: str) -> ShaderFamily:
    return ShaderFamily(
        f"neuron_{name}",
        (IMAGE_LAYOUT, NEURON, PARAMETERS, SLOPE_SUM_PARAMETERS),
        {
            "threads": THREADS,
            "neuron_types": (name,),
            "by_vectors": True,
            "by_eights": False,
            "threads_of_eights": THREADS_OF_EIGHTS,
            "elements_ahead": ELEMENTS_AHEAD,
            "constant_derivatives": tuple(NEURON_TYPE_NAMES[kind] for kind in CONSTANT_DERIVATIVES),
            "vector_threads": VECTOR_THREADS,
            "vectors_at_once": VECTORS_AT_ONCE,
            "calls_functions": True,
        },
        {"cpu": {"by_vectors": False, "by_eights": True, "calls_functions": False}},
        measured=lambda numbers: {
            "elements": numbers.neuron_elements_per_simdgroup,
            "loads": numbers.neuron_loads_before_a_store,
        },
        template="neuron",
        ahead_of_time=name == "relu",
    )


FAMILIES = {kind: _family(name) for kind, name in zip(NeuronType, NEURON_TYPE_NAMES, strict=True)}


class _NeuronProperties:
    """The descriptor of a neuron kernel and its parts."""

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


def _add_dispatches(
    kernel: Neuron | NeuronGradient,
    command_buffer: CommandBuffer,
    function_name: str,
    destination: Image,
    layout: tuple[int, ...],
    operands: Sequence[tuple[Image, Operand]],
) -> None:
    """One run of ``function_name`` for each piece of ``layout``; the last operand is the forward source."""
    descriptor, device = kernel.neuron_descriptor, kernel.device
    metal_type = destination.channel_format.metal_type
    numbers = tunables(device.tuning)
    elements = numbers.neuron_elements_per_simdgroup
    channels = layout[6]
    is_constant = len(operands) == 2 and descriptor.neuron_type in CONSTANT_DERIVATIVES
    read = 1 if is_constant else len(operands)
    slopes: tuple[Buffer, ...] = ()
    if descriptor.neuron_type is NeuronType.PRELU:
        slopes = (descriptor.slope_table(device, channels),)
    for piece in pieces(layout, tuple(operand for _, operand in operands)):
        zeros: tuple[int, ...] = (0, 0, 0, 0, *piece.destination[4:])
        target, *parts = merge_channels([piece.destination, *(part or zeros for part in piece.operands)])
        images = [
            image.buffer if part is not None else device.constant_buffer(bytes(4 * channels))
            for (image, _), part in zip(operands, piece.operands, strict=True)
        ]
        _, _, _, _, width, height, run, count = target
        chunks = -(-run // elements)
        pixels_per_simdgroup = max(1, elements // run)
        simdgroups = chunks * -(-(width * height * count) // pixels_per_simdgroup)
        threadgroups = -(-simdgroups // (THREADS // 32))
        variant, share = "", elements_per_thread(run, device.compute_units, numbers)
        if None not in piece.operands:
            values = values_of_vector(metal_type)
            if device.family == "cpu":
                if metal_type == "float" and is_run_of_eights((target, *parts)):
                    variant = "_of_eights"
                    threadgroups = -(-run // (THREADS_OF_EIGHTS * share))
            elif is_run_of_vectors((target, *parts), values):
                variant = "_of_vectors"
                threadgroups = -(-run // (values * VECTOR_THREADS * (VECTORS_AT_ONCE // len(operands))))
        parameters = PARAMETERS.pack(
            gradient=parts[0],
            source=parts[-1],
            destination=target,
            chunks=chunks,
            pixels_per_simdgroup=pixels_per_simdgroup,
            elements_per_thread=share,
            exceeds_caches=int(exceeds_caches(target, 1 + read, numbers)),
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


class NeuronGradientState(GradientState):
    """The state of a neuron: a ``GradientState`` that remembers the neuron. Source: ``MPSNNGradientState``.

    For a PRELU it also has room for the gradient for the slopes, which is ours: MPS has none. ``resource(0)`` is its
    buffer. The states of a batch that is one image share it.
    """

    def __init__(
        self,
        neuron_descriptor: NeuronDescriptor,
        snapshot: ForwardSnapshot,
        device: Device,
        *,
        command_buffer: CommandBuffer | None = None,
    ) -> None:
        slopes = (4 * snapshot.source_channels,) if neuron_descriptor.data is not None else ()
        super().__init__(snapshot, slopes, device, command_buffer=command_buffer)
        self.neuron_descriptor = neuron_descriptor
        self._slope_sums = Accumulation("gradients for the slopes")

    def _require_gradients(self, owner: str, command_buffer: CommandBuffer) -> None:
        self._slope_sums.require_ordered(owner, command_buffer)

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        return (self.snapshot, self.neuron_descriptor, self._slope_sums.pixels > 0)

    @property
    def gradient_for_slopes(self) -> np.ndarray | None:
        """``sum over images and pixels with x < 0 of g x``: float32, one value for each channel, a copy.

        The sum of all encodes of a ``NeuronGradient`` that ``computes_gradient_for_slopes``; None before the first.
        Waits for the work that writes it. Raises ``StateError`` for a temporary state and before ``commit``.
        """
        owner = type(self).__name__
        if self._slope_sums.pixels == 0:
            return None
        if self.is_temporary:
            raise StateError(f"{owner}: read on the CPU, but temporary states have no CPU access")
        self._slope_sums.wait(owner)
        return self.resource(0).read(0, self.buffer_size(0)).view(np.float32)

    @property
    def gradient_vectors(self) -> tuple[Vector, ...]:
        """The gradient for the slopes as a vector, for optimizers. Raises ``StateError`` before it was encoded."""
        if self._slope_sums.pixels == 0:
            raise StateError(f"{type(self).__name__}: no gradient for slopes yet; encode NeuronGradient first")
        return (Vector.of_buffer(self.resource(0), self.buffer_size(0) // 4),)


class Neuron(_NeuronProperties, Kernel):
    """``y = f(x)`` for every element, ``f`` being that of ``neuron_descriptor``. Source: ``MPSCNNNeuron``.

    Raises ``FormatError`` if ``neuron_descriptor`` is none; ``encode`` raises ``GeometryError`` if a PRELU has fewer
    slopes than channels are processed.
    """

    remembers_encodes = True

    # objc: -initWithDevice:neuronDescriptor:
    def __init__(
        self, neuron_descriptor: NeuronDescriptor, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(device=device, label=label)
        self._neuron_descriptor = require_neuron_descriptor(
            type(self).__name__, "neuron_descriptor", neuron_descriptor
        )

    def _validate(self, source: Image) -> None:
        self.neuron_descriptor.require_channels(type(self).__name__, self._source_channels(source))

    def _make_state(self, source: Image, destination: Image, command_buffer: CommandBuffer | None) -> Any:
        return NeuronGradientState(
            self.neuron_descriptor,
            self._shared_snapshot(source, destination),
            self.device,
            command_buffer=command_buffer,
        )

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        operand = Operand(regions.sources[0], self.offset.x, self.offset.y, self.edge_mode is EdgeMode.CLAMP)
        _add_dispatches(
            self,
            command_buffer,
            f"neuron_{self.neuron_descriptor.function_name}",
            destination,
            regions.destination,
            [(source, operand)],
        )


class NeuronLinear(Neuron):
    """``a x + b``. Source: ``MPSCNNNeuronLinear``."""

    # objc: -initWithDevice:a:b:
    def __init__(
        self, a: float = 1.0, b: float = 0.0, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(NeuronDescriptor(NeuronType.LINEAR, a, b), device=device, label=label)


class NeuronReLU(Neuron):
    """``x >= 0 ? x : a x``. Source: ``MPSCNNNeuronReLU``."""

    # objc: -initWithDevice:a:
    def __init__(self, a: float = 0.0, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(NeuronDescriptor(NeuronType.RELU, a), device=device, label=label)


class NeuronPReLU(Neuron):
    """``x >= 0 ? x : data[channel] x``. Source: ``MPSCNNNeuronPReLU``."""

    # objc: -initWithDevice:a:count:
    def __init__(self, data: Any, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(NeuronDescriptor.prelu(data), device=device, label=label)


class NeuronSigmoid(Neuron):
    """``1 / (1 + e^-x)``. Source: ``MPSCNNNeuronSigmoid``."""

    # objc: -initWithDevice:
    def __init__(self, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(NeuronDescriptor(NeuronType.SIGMOID), device=device, label=label)


class NeuronHardSigmoid(Neuron):
    """``clamp(a x + b, 0, 1)``. Source: ``MPSCNNNeuronHardSigmoid``."""

    # objc: -initWithDevice:a:b:
    def __init__(
        self, a: float = 0.2, b: float = 0.5, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(NeuronDescriptor(NeuronType.HARD_SIGMOID, a, b), device=device, label=label)


class NeuronTanH(Neuron):
    """``a tanh(b x)``. Source: ``MPSCNNNeuronTanH``."""

    # objc: -initWithDevice:a:b:
    def __init__(
        self, a: float = 1.0, b: float = 1.0, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(NeuronDescriptor(NeuronType.TANH, a, b), device=device, label=label)


class NeuronAbsolute(Neuron):
    """``|x|``. Source: ``MPSCNNNeuronAbsolute``."""

    # objc: -initWithDevice:
    def __init__(self, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(NeuronDescriptor(NeuronType.ABSOLUTE), device=device, label=label)


class NeuronSoftPlus(Neuron):
    """``a ln(1 + e^(b x))``. Source: ``MPSCNNNeuronSoftPlus``."""

    # objc: -initWithDevice:a:b:
    def __init__(
        self, a: float = 1.0, b: float = 1.0, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(NeuronDescriptor(NeuronType.SOFT_PLUS, a, b), device=device, label=label)


class NeuronSoftSign(Neuron):
    """``x / (1 + |x|)``. Source: ``MPSCNNNeuronSoftSign``."""

    # objc: -initWithDevice:
    def __init__(self, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(NeuronDescriptor(NeuronType.SOFT_SIGN), device=device, label=label)


class NeuronELU(Neuron):
    """``x >= 0 ? x : a (e^x - 1)``. Source: ``MPSCNNNeuronELU``."""

    # objc: -initWithDevice:a:
    def __init__(self, a: float = 1.0, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(NeuronDescriptor(NeuronType.ELU, a), device=device, label=label)


class NeuronReLUN(Neuron):
    """``min(x >= 0 ? x : a x, b)``; with the default ``a`` negative elements pass. Source: ``MPSCNNNeuronReLUN``."""

    # objc: -initWithDevice:a:b:
    def __init__(
        self, a: float = 1.0, b: float = 6.0, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(NeuronDescriptor(NeuronType.RELUN, a, b), device=device, label=label)


class NeuronPower(Neuron):
    """``(a x + b)^c``. Source: ``MPSCNNNeuronPower``."""

    # objc: -initWithDevice:a:b:c:
    def __init__(
        self,
        a: float = 1.0,
        b: float = 0.0,
        c: float = 1.0,
        *,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(NeuronDescriptor(NeuronType.POWER, a, b, c), device=device, label=label)


class NeuronExponential(Neuron):
    """``c^(a x + b)``; c = -1 stands for e. Source: ``MPSCNNNeuronExponential``."""

    # objc: -initWithDevice:a:b:c:
    def __init__(
        self,
        a: float = 1.0,
        b: float = 0.0,
        c: float = -1.0,
        *,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(NeuronDescriptor(NeuronType.EXPONENTIAL, a, b, c), device=device, label=label)


class NeuronLogarithm(Neuron):
    """``log_c(a x + b)``; c = -1 stands for e. Source: ``MPSCNNNeuronLogarithm``."""

    # objc: -initWithDevice:a:b:c:
    def __init__(
        self,
        a: float = 1.0,
        b: float = 0.0,
        c: float = -1.0,
        *,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(NeuronDescriptor(NeuronType.LOGARITHM, a, b, c), device=device, label=label)


NEURON_CLASSES = (
    Neuron,
    NeuronLinear,
    NeuronReLU,
    NeuronPReLU,
    NeuronSigmoid,
    NeuronHardSigmoid,
    NeuronTanH,
    NeuronAbsolute,
    NeuronSoftPlus,
    NeuronSoftSign,
    NeuronELU,
    NeuronReLUN,
    NeuronPower,
    NeuronExponential,
    NeuronLogarithm,
)


class NeuronGradient(_NeuronProperties, GradientKernel):
    """``dx = g f'(x)`` for every element, ``x`` being the forward source. Source: ``MPSCNNNeuronGradient``.

    ``neuron_descriptor`` has to equal the forward kernel's. A forward result that was read from beyond the edge of its
    source with ``EdgeMode.CLAMP`` has no gradient here: ``encode`` raises ``NotImplementedError``.

    MPS has no gradient for the slopes of a PRELU. With ``computes_gradient_for_slopes`` this kernel adds it to the
    state's ``gradient_for_slopes``, in float32 and in a fixed order.
    """

    remembers_encodes = True

    forward_kernels = tuple(cls.__name__ for cls in NEURON_CLASSES)

    # objc: -initWithDevice:neuronDescriptor:
    def __init__(
        self,
        neuron_descriptor: NeuronDescriptor,
        *,
        computes_gradient_for_slopes: bool = False,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(device=device, label=label)
        owner = type(self).__name__
        self._neuron_descriptor = require_neuron_descriptor(owner, "neuron_descriptor", neuron_descriptor)
        self._computes_gradient_for_slopes = bool(computes_gradient_for_slopes)
        if self._computes_gradient_for_slopes and self.neuron_type is not NeuronType.PRELU:
            raise GeometryError(
                f"{owner}: computes_gradient_for_slopes is True but {self.neuron_type.name} has no slopes; only PRELU "
                "has"
            )

    @property
    def computes_gradient_for_slopes(self) -> bool:
        """Whether encodes also add to the state's ``gradient_for_slopes``."""
        return self._computes_gradient_for_slopes

    @property
    def is_state_modified(self) -> bool:
        return self._computes_gradient_for_slopes

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        owner = type(self).__name__
        if state.neuron_descriptor != self.neuron_descriptor:
            raise StateError(
                f"{owner}: neuron_descriptor is {self.neuron_descriptor} but gradient_state was made with "
                f"{state.neuron_descriptor}"
            )
        channels = self._channels_of(source_image, "secondary")
        self.neuron_descriptor.require_channels(owner, channels)
        require_no_clamped_reads(owner, state.snapshot)
        if self._computes_gradient_for_slopes and channels != state.snapshot.source_channels:
            raise GeometryError(
                f"{owner}: {channels} feature channels are read from source_image but gradient_state has slopes for "
                f"{state.snapshot.source_channels}"
            )

    def _begin_encode(self, command_buffer: CommandBuffer, state: Any) -> None:
        if self._computes_gradient_for_slopes:
            state._slope_sums.require_ordered(type(self).__name__, command_buffer)

    def _note_encode(self, command_buffer: CommandBuffer, state: Any, regions: Regions) -> None:
        if self._computes_gradient_for_slopes:
            _, _, _, _, width, height, _, images = regions.sources[1]
            state._slope_sums.add(command_buffer, width * height * images)

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        gradient = Operand(*self._pointwise_gradient(regions.sources[0], state))
        source = Operand(regions.sources[1], self.secondary_offset.x, self.secondary_offset.y)
        if self._computes_gradient_for_slopes:
            self._add_slope_sums(command_buffer, source_gradient, source_image, regions.sources[1], gradient, state)
        _add_dispatches(
            self,
            command_buffer,
            f"neuron_{self.neuron_descriptor.function_name}_gradient",
            destination,
            regions.destination,
            [(source_gradient, gradient), (source_image, source)],
        )

    def _add_slope_sums(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        layout: tuple[int, ...],
        gradient: Operand,
        state: NeuronGradientState,
    ) -> None:
        """Adds the sums over the source, whose layout is ``layout``, to the state."""
        accumulates = state._slope_sums.pixels > 0
        channels, metal_type = layout[6], source_image.channel_format.metal_type
        for piece in pieces(layout, (gradient,)):
            part = piece.operands[0]
            if part is None:
                continue
            layouts = part, piece.destination
            numbers = tunables(self.device.tuning)
            work = chunked_rows(("gradient", "source"), layouts, summing_pixels_per_row(channels), numbers)
            sums = command_buffer.scratch(4 * work.chunks * work.columns)
            parameters = self.device.constant_buffer(
                SLOPE_SUM_PARAMETERS.pack(**work.parameters, channels=channels, accumulates=int(accumulates))
            )
            command_buffer.add_dispatch(
                FAMILIES[NeuronType.PRELU].function(self.device, "prelu_slope_sums", metal_type),
                -(-work.threads // THREADS),
                source_gradient.buffer,
                source_image.buffer,
                sums,
                parameters,
            )
            command_buffer.add_dispatch(
                FAMILIES[NeuronType.PRELU].function(self.device, "merge_prelu_slope_sums", metal_type),
                -(-channels // 32),
                sums,
                state.resource(0),
                parameters,
            )
            accumulates = True
        if not accumulates:
            fill_buffer_with_zeros(command_buffer, state.resource(0), channels)


def require_no_clamped_reads(owner: str, snapshot: ForwardSnapshot, axes: Sequence[str] = ("x", "y")) -> None:
    """Raises ``NotImplementedError`` if a pointwise forward kernel repeated edge pixels, which gradients leave out.

    ``axes`` are those along which it took one pixel after the other.
    """
    if snapshot.edge_mode is not EdgeMode.CLAMP:
        return
    origin, size = snapshot.clip_rect
    for axis, offset, first, extent, destination, source in (
        ("x", snapshot.offset.x, origin.x, size.width, snapshot.destination.width, snapshot.source.width),
        ("y", snapshot.offset.y, origin.y, size.height, snapshot.destination.height, snapshot.source.height),
    ):
        length = min(extent, destination - first)
        if axis in axes and (offset < 0 or offset + length > source):
            raise NotImplementedError(
                f"{owner}: the forward kernel read pixels {offset} to {offset + length} along {axis} of a source with "
                f"{source} with EdgeMode.CLAMP; the gradient of repeated edge pixels is not supported"
            )
