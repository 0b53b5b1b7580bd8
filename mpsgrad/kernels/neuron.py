"""Neurons (activations)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Device
from mpsgrad.errors import StateError
from mpsgrad.geometry import EdgeMode
from mpsgrad.image import Image
from mpsgrad.kernel import (
    BaseKernel,
    Kernel,
    Regions,
)
from mpsgrad.kernels.accumulation import Accumulation
from mpsgrad.kernels.neuron_descriptor import (
    NeuronDescriptor,
    NeuronType,
    require_neuron_descriptor,
)
from mpsgrad.kernels.neuron_dispatch import NeuronProperties, add_neuron
from mpsgrad.kernels.pointwise import (
    Operand,
)
from mpsgrad.state import ForwardSnapshot, GradientState
from mpsgrad.vector import Vector


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


class Neuron(NeuronProperties, Kernel[NeuronGradientState]):
    """``y = f(x)`` for every element, ``f`` being that of ``neuron_descriptor``. Source: ``MPSCNNNeuron``.

    Raises ``FormatError`` if ``neuron_descriptor`` is none; ``encode`` raises ``GeometryError`` if a PRELU has fewer
    slopes than channels are processed.
    """

    remembers_encodes = True
    _type: ClassVar[NeuronType]
    """The only one of a subclass."""

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
        add_neuron(
            self,
            command_buffer,
            f"neuron_{self.neuron_descriptor.function_name}",
            destination,
            regions.destination,
            [(source, operand)],
        )


class NeuronLinear(Neuron):
    """``a x + b``. Source: ``MPSCNNNeuronLinear``."""

    _type = NeuronType.LINEAR

    # objc: -initWithDevice:a:b:
    def __init__(
        self, a: float = 1.0, b: float = 0.0, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(NeuronDescriptor(self._type, a, b), device=device, label=label)


class NeuronReLU(Neuron):
    """``x >= 0 ? x : a x``. Source: ``MPSCNNNeuronReLU``."""

    _type = NeuronType.RELU

    # objc: -initWithDevice:a:
    def __init__(self, a: float = 0.0, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(NeuronDescriptor(self._type, a), device=device, label=label)


class NeuronPReLU(Neuron):
    """``x >= 0 ? x : data[channel] x``. Source: ``MPSCNNNeuronPReLU``."""

    _type = NeuronType.PRELU

    # objc: -initWithDevice:a:count:
    def __init__(self, data: Any, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(NeuronDescriptor(self._type, data=data), device=device, label=label)


class NeuronSigmoid(Neuron):
    """``1 / (1 + e^-x)``. Source: ``MPSCNNNeuronSigmoid``."""

    _type = NeuronType.SIGMOID

    # objc: -initWithDevice:
    def __init__(self, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(NeuronDescriptor(self._type), device=device, label=label)


class NeuronHardSigmoid(Neuron):
    """``clamp(a x + b, 0, 1)``. Source: ``MPSCNNNeuronHardSigmoid``."""

    _type = NeuronType.HARD_SIGMOID

    # objc: -initWithDevice:a:b:
    def __init__(
        self, a: float = 0.2, b: float = 0.5, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(NeuronDescriptor(self._type, a, b), device=device, label=label)


class NeuronTanH(Neuron):
    """``a tanh(b x)``. Source: ``MPSCNNNeuronTanH``."""

    _type = NeuronType.TANH

    # objc: -initWithDevice:a:b:
    def __init__(
        self, a: float = 1.0, b: float = 1.0, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(NeuronDescriptor(self._type, a, b), device=device, label=label)


class NeuronAbsolute(Neuron):
    """``|x|``. Source: ``MPSCNNNeuronAbsolute``."""

    _type = NeuronType.ABSOLUTE

    # objc: -initWithDevice:
    def __init__(self, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(NeuronDescriptor(self._type), device=device, label=label)


class NeuronSoftPlus(Neuron):
    """``a ln(1 + e^(b x))``. Source: ``MPSCNNNeuronSoftPlus``."""

    _type = NeuronType.SOFT_PLUS

    # objc: -initWithDevice:a:b:
    def __init__(
        self, a: float = 1.0, b: float = 1.0, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(NeuronDescriptor(self._type, a, b), device=device, label=label)


class NeuronSoftSign(Neuron):
    """``x / (1 + |x|)``. Source: ``MPSCNNNeuronSoftSign``."""

    _type = NeuronType.SOFT_SIGN

    # objc: -initWithDevice:
    def __init__(self, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(NeuronDescriptor(self._type), device=device, label=label)


class NeuronELU(Neuron):
    """``x >= 0 ? x : a (e^x - 1)``. Source: ``MPSCNNNeuronELU``."""

    _type = NeuronType.ELU

    # objc: -initWithDevice:a:
    def __init__(self, a: float = 1.0, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(NeuronDescriptor(self._type, a), device=device, label=label)


class NeuronReLUN(Neuron):
    """``min(x >= 0 ? x : a x, b)``; with the default ``a`` negative elements pass. Source: ``MPSCNNNeuronReLUN``."""

    _type = NeuronType.RELUN

    # objc: -initWithDevice:a:b:
    def __init__(
        self, a: float = 1.0, b: float = 6.0, *, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(NeuronDescriptor(self._type, a, b), device=device, label=label)


class NeuronPower(Neuron):
    """``(a x + b)^c``. Source: ``MPSCNNNeuronPower``."""

    _type = NeuronType.POWER

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
        super().__init__(NeuronDescriptor(self._type, a, b, c), device=device, label=label)


class NeuronExponential(Neuron):
    """``c^(a x + b)``; c = -1 stands for e. Source: ``MPSCNNNeuronExponential``."""

    _type = NeuronType.EXPONENTIAL

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
        super().__init__(NeuronDescriptor(self._type, a, b, c), device=device, label=label)


class NeuronLogarithm(Neuron):
    """``log_c(a x + b)``; c = -1 stands for e. Source: ``MPSCNNNeuronLogarithm``."""

    _type = NeuronType.LOGARITHM

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
        super().__init__(NeuronDescriptor(self._type, a, b, c), device=device, label=label)


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
